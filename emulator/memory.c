/*
 * cuMemAlloc and related calls. Large allocations get whole granules. Small ones
 * share a granule, as in a driver, so that the used memory that a program sees
 * changes in steps of 2 MiB.
 */
#include "local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SMALL_MAX        MIB
#define UNIT_BYTES       512ULL
#define UNITS            (EMU_GRANULE / UNIT_BYTES)
#define REAP_INTERVAL_NS 1000000ULL

struct chunk {
    struct chunk *next;
    uint64_t start;
    struct emu_context *context;
    uint32_t used_units;
    bool is_used[UNITS];
};

static struct chunk *chunks;

static uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Charges before it maps, so that a refusal leaves nothing behind. */
static CUresult map_granules(struct emu_context *context, uint64_t bytes, uint64_t *start)
{
    emu_lock();
    CUresult rc = emu_charge_private(context->device, bytes);
    emu_unlock();
    if (rc)
        return rc;
    /* Aligned to the granule, as device memory is. */
    char *wide = mmap(NULL, bytes + EMU_GRANULE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t at = wide == MAP_FAILED ? 0 : round_up((uint64_t)wide, EMU_GRANULE);
    if (!at || mprotect((void *)at, bytes, PROT_READ | PROT_WRITE)) {
        if (at)
            munmap(wide, bytes + EMU_GRANULE);
        emu_lock();
        emu_refund_private(context->device, bytes);
        emu_unlock();
        return CU_OUT_OF_MEMORY;
    }
    if (at > (uint64_t)wide)
        munmap(wide, at - (uint64_t)wide);
    munmap((void *)(at + bytes), (uint64_t)wide + EMU_GRANULE - at);
    *start = at;
    return CU_OK;
}

static void unmap_granules(struct emu_context *context, uint64_t start, uint64_t bytes)
{
    munmap((void *)start, bytes);
    emu_lock();
    emu_refund_private(context->device, bytes);
    emu_unlock();
}

static bool find_run(const struct chunk *chunk, uint64_t units, uint64_t *first)
{
    uint64_t run = 0;
    for (uint64_t i = 0; i < UNITS; i++) {
        run = chunk->is_used[i] ? 0 : run + 1;
        if (run == units) {
            *first = i + 1 - units;
            return true;
        }
    }
    return false;
}

/* The caller holds local_lock. */
static CUresult allocate_small(struct emu_context *context, uint64_t bytes, uint64_t *start)
{
    uint64_t units = round_up(bytes, UNIT_BYTES) / UNIT_BYTES, first = 0;
    struct chunk *chunk = chunks;
    while (chunk && (chunk->context != context || !find_run(chunk, units, &first)))
        chunk = chunk->next;
    if (!chunk) {
        chunk = calloc(1, sizeof(*chunk));
        if (!chunk)
            return CU_OUT_OF_MEMORY;
        CUresult rc = map_granules(context, EMU_GRANULE, &chunk->start);
        if (rc) {
            free(chunk);
            return rc;
        }
        chunk->context = context;
        chunk->next = chunks;
        chunks = chunk;
        first = 0;
    }
    memset(&chunk->is_used[first], 1, units);
    chunk->used_units += (uint32_t)units;
    *start = chunk->start + first * UNIT_BYTES;
    return CU_OK;
}

/* The caller holds local_lock. */
static void free_small(uint64_t start, uint64_t bytes)
{
    for (struct chunk **link = &chunks; *link; link = &(*link)->next) {
        struct chunk *chunk = *link;
        uint64_t units = round_up(bytes, UNIT_BYTES) / UNIT_BYTES;
        if (start - chunk->start >= EMU_GRANULE)
            continue;
        memset(&chunk->is_used[(start - chunk->start) / UNIT_BYTES], 0, units);
        chunk->used_units -= (uint32_t)units;
        if (chunk->used_units == 0) {
            *link = chunk->next;
            unmap_granules(chunk->context, chunk->start, EMU_GRANULE);
            free(chunk);
        }
        return;
    }
}

static void add_range(struct emu_context *context, uint64_t start, uint64_t bytes,
                      enum range_kind kind)
{
    range_add((struct emu_range){.start = start,
                                 .bytes = bytes,
                                 .kind = kind,
                                 .device = context->device,
                                 .access = 3,
                                 .context = context,
                                 .buffer_id = range_new_id()});
}

CUresult memory_allocate(struct emu_context *context, size_t bytes, CUdeviceptr *address)
{
    uint64_t start;
    bool is_small = bytes <= SMALL_MAX;
    if (bytes == 0)
        return CU_INVALID_VALUE;
    if (bytes > emu->devices[context->device].total_bytes)
        return CU_OUT_OF_MEMORY;
    pthread_mutex_lock(&local_lock);
    CUresult rc = is_small ? allocate_small(context, bytes, &start)
                           : map_granules(context, round_up(bytes, EMU_GRANULE), &start);
    if (!rc) {
        add_range(context, start, bytes, is_small ? RANGE_SMALL : RANGE_DEVICE);
        *address = start | DEVICE_TAG;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

CUresult memory_free(CUdeviceptr address)
{
    CUresult rc = CU_INVALID_VALUE;
    pthread_mutex_lock(&local_lock);
    const struct emu_range *range = range_at(host_address(address));
    if (is_device_address(address) && range && range->start == host_address(address) &&
        (range->kind == RANGE_DEVICE || range->kind == RANGE_SMALL)) {
        struct emu_range gone = *range;
        range_remove(gone.start);
        if (gone.kind == RANGE_SMALL)
            free_small(gone.start, gone.bytes);
        else
            unmap_granules(gone.context, gone.start, round_up(gone.bytes, EMU_GRANULE));
        rc = CU_OK;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    return rc ? rc : memory_allocate(context, bytes, address);
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                   unsigned int element_bytes)
{
    (void)element_bytes;
    *pitch = round_up(width, 512);
    return cuMemAlloc_v2(address, *pitch * height);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (rc || address == 0)
        return rc;
    /* Freeing waits for queued work, which may still use the block. */
    rc = op_wait_context(context);
    return rc ? rc : memory_free(address);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    static uint64_t reaped_ns;
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (rc)
        return rc;
    uint64_t now_ns = emu_now_ns();
    emu_lock();
    if (now_ns - reaped_ns > REAP_INTERVAL_NS) {
        emu_reap();
        reaped_ns = now_ns;
    }
    *total_bytes = emu->devices[context->device].total_bytes;
    *free_bytes = *total_bytes - emu->devices[context->device].used_bytes;
    emu_unlock();
    return CU_OK;
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    CUresult rc = CU_NOT_FOUND;
    pthread_mutex_lock(&local_lock);
    const struct emu_range *range = range_at(host_address(address));
    if (range && is_device_address(address)) {
        if (start)
            *start = range->start | DEVICE_TAG;
        if (bytes)
            *bytes = range->bytes;
        rc = CU_OK;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned int flags)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    (void)flags;
    if (rc || bytes == 0)
        return rc ? rc : CU_INVALID_VALUE;
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return CU_OUT_OF_MEMORY;
    pthread_mutex_lock(&local_lock);
    add_range(context, (uint64_t)start, bytes, RANGE_HOST);
    pthread_mutex_unlock(&local_lock);
    *address = start;
    return CU_OK;
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
    return cuMemHostAlloc(address, bytes, 0);
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (rc)
        return rc;
    op_wait_context(context);
    pthread_mutex_lock(&local_lock);
    const struct emu_range *range = range_at((uint64_t)address);
    if (range && range->kind == RANGE_HOST && range->start == (uint64_t)address) {
        munmap(address, range->bytes);
        range_remove((uint64_t)address);
    } else {
        rc = CU_INVALID_VALUE;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *host, unsigned int flags)
{
    (void)flags;
    *address = (CUdeviceptr)host;
    return emu_ready();
}

EXPORT CUresult cuMemHostGetFlags(unsigned int *flags, void *host)
{
    (void)host;
    *flags = 0;
    return emu_ready();
}

EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned int flags)
{
    (void)flags;
    return address && bytes ? emu_ready() : CU_INVALID_VALUE;
}

EXPORT CUresult cuMemHostUnregister(void *address)
{
    return address ? emu_ready() : CU_INVALID_VALUE;
}

/* Numbers of the public pointer attributes: 1 context, 2 memory type, 3 device,
 * 4 host, 7 id, 9 ordinal, 11, 12 range. */
EXPORT CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address)
{
    CUresult rc = CU_OK;
    pthread_mutex_lock(&local_lock);
    const struct emu_range *range = range_at(host_address(address));
    if (!range || (is_device_address(address) == (range->kind == RANGE_HOST)))
        rc = CU_INVALID_VALUE;
    else if (attribute == 1)
        *(CUcontext *)value = range->context;
    else if (attribute == 2)
        *(unsigned int *)value = range->kind == RANGE_HOST ? 1 : 2;
    else if (attribute == 3)
        *(CUdeviceptr *)value = address;
    else if (attribute == 4 && range->kind == RANGE_HOST)
        *(void **)value = (void *)address;
    else if (attribute == 7)
        *(uint64_t *)value = range->buffer_id;
    else if (attribute == 8)
        *(unsigned int *)value = 0;
    else if (attribute == 9)
        *(int *)value = (int)range->device;
    else if (attribute == 11)
        *(CUdeviceptr *)value =
            range->kind == RANGE_HOST ? range->start : (range->start | DEVICE_TAG);
    else if (attribute == 12)
        *(size_t *)value = range->bytes;
    else
        rc = attribute == 4 ? CU_INVALID_VALUE : CU_NOT_SUPPORTED;
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **values,
                                       CUdeviceptr address)
{
    for (unsigned int i = 0; i < count; i++)
        if (cuPointerGetAttribute(values[i], attributes[i], address) != CU_OK)
            *(void **)values[i] = NULL;
    return CU_OK;
}
