/*
 * Stream-ordered allocation. Memory is allocated at the call and freed when the
 * stream reaches the free. Pools cache nothing, like those of a driver with the
 * default release threshold of 0.
 */
#include "local.h"

#include <stdlib.h>

struct emu_pool {
    uint32_t device;
    uint64_t threshold_bytes;
};

static struct emu_pool defaults[EMU_DEVICES_MAX];

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    if (emu_ready() || device < 0 || (uint32_t)device >= emu->device_count)
        return CU_INVALID_DEVICE;
    defaults[device].device = (uint32_t)device;
    *pool = &defaults[device];
    return CU_OK;
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return cuDeviceGetDefaultMemPool(pool, device);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    return pool && pool->device == (uint32_t)device ? emu_ready() : CU_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct cu_pool_props *props)
{
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    if (props->handle_types)
        return CU_NOT_SUPPORTED; /* pools that other processes import */
    if (props->location.type != 1 || (uint32_t)props->location.id >= emu->device_count)
        return CU_INVALID_VALUE;
    *pool = calloc(1, sizeof(**pool));
    if (!*pool)
        return CU_OUT_OF_MEMORY;
    (*pool)->device = (uint32_t)props->location.id;
    return CU_OK;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    if (!pool || (pool >= defaults && pool < defaults + EMU_DEVICES_MAX))
        return CU_INVALID_VALUE;
    free(pool);
    return CU_OK;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    (void)bytes;
    return pool ? emu_ready() : CU_INVALID_VALUE;
}

/* Attribute 4 is the release threshold; sizes (5 to 8) read 0, since nothing is
 * kept. */
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (!pool)
        return CU_INVALID_VALUE;
    if (attribute == 4)
        pool->threshold_bytes = *(uint64_t *)value;
    return emu_ready();
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (!pool)
        return CU_INVALID_VALUE;
    if (attribute <= 3)
        *(int *)value = 1;
    else
        *(uint64_t *)value = attribute == 4 ? pool->threshold_bytes : 0;
    return emu_ready();
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool pool, const struct cu_access_desc *map,
                                   size_t count)
{
    (void)map;
    (void)count;
    return pool ? emu_ready() : CU_INVALID_VALUE;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream handle)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (!rc)
        emu_stream_of(context, handle, &rc);
    return rc ? rc : memory_allocate(context, bytes, address);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                        CUstream handle)
{
    return pool ? cuMemAllocAsync(address, bytes, handle) : CU_INVALID_VALUE;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    static const struct emu_item mark = {.work = WORK_MARK};
    struct emu_context *context;
    struct emu_op *op;
    CUresult rc = emu_enter(&context);
    if (!rc)
        rc = op_start(context, handle, OP_FREE, &op);
    if (rc)
        return rc;
    op->freed = address;
    return op_queue(op->stream, &mark, op, NULL);
}
