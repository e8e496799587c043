/* Initialisation, primary and created contexts, and the stack of current
 * contexts of each thread. */
#include "local.h"

#include <stdlib.h>
#include <unistd.h>

#define STACK_MAX 64

pthread_mutex_t local_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_initialized;
static struct emu_context primaries[EMU_DEVICES_MAX];
static struct emu_context *created;
static uint64_t last_id;
static _Thread_local struct emu_context *stack[STACK_MAX];
static _Thread_local uint32_t depth;

EXPORT CUresult cuInit(unsigned int flags)
{
    if (flags)
        return CU_INVALID_VALUE;
    if (emu_open() != 0)
        return CU_NO_DEVICE;
    emu_lock();
    uint32_t row = emu_attach();
    emu_unlock();
    if (row == NONE)
        return CU_NOT_INITIALIZED;
    if (emu->device_count == 0)
        return CU_NO_DEVICE;
    __atomic_store_n(&is_initialized, true, __ATOMIC_RELEASE);
    return CU_OK;
}

CUresult emu_ready(void)
{
    return __atomic_load_n(&is_initialized, __ATOMIC_ACQUIRE) && emu_self() != NONE
               ? CU_OK
               : CU_NOT_INITIALIZED;
}

CUresult emu_device_check(uint32_t device)
{
    uint32_t sticky = emu->processes[emu_self()].on[device].sticky;
    if (sticky)
        return (CUresult)sticky;
    return emu->devices[device].is_lost ? CU_LAUNCH_FAILED : CU_OK;
}

CUresult emu_enter(struct emu_context **context)
{
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    if (depth == 0 || !stack[depth - 1])
        return CU_INVALID_CONTEXT;
    if (stack[depth - 1]->is_gone)
        return CU_CONTEXT_IS_DESTROYED;
    *context = stack[depth - 1];
    return emu_device_check((*context)->device);
}

struct emu_context *emu_primary(uint32_t device)
{
    return &primaries[device];
}

/* The caller holds local_lock. */
static CUresult open_context(struct emu_context *context, uint32_t device)
{
    emu_lock();
    CUresult rc = emu->devices[device].is_lost ? CU_DEVICE_UNAVAILABLE : CU_OK;
    if (!rc)
        rc = emu_charge_context(device);
    emu_unlock();
    if (rc)
        return rc;
    context->device = device;
    context->id = ++last_id;
    context->bytes = emu->devices[device].context_bytes;
    context->is_gone = false;
    return CU_OK;
}

struct freed {
    struct emu_context *context;
    uint64_t start;
};

static void find_owned(struct emu_range *range, void *argument)
{
    struct freed *freed = argument;
    if (range->context == freed->context && range->kind != RANGE_HOST &&
        range->kind != RANGE_MAPPED && !freed->start)
        freed->start = range->start;
}

/* Waits for the context's work, then frees its allocations and streams. Mappings
 * belong to the process. */
static void close_context(struct emu_context *context)
{
    struct freed freed;
    op_wait_context(context);
    do {
        freed = (struct freed){context, 0};
        pthread_mutex_lock(&local_lock);
        range_each(find_owned, &freed);
        pthread_mutex_unlock(&local_lock);
        if (freed.start)
            memory_free(freed.start | DEVICE_TAG);
    } while (freed.start);
    for (struct emu_stream *stream = streams, *next; stream; stream = next) {
        next = stream->next;
        if (stream->context == context)
            stream_free(stream);
    }
    context->legacy = NULL;
    emu_lock();
    emu_refund_context(context->device, context->bytes);
    emu_unlock();
    context->is_gone = true;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    CUresult rc = emu_ready();
    if (rc || !out)
        return rc ? rc : CU_INVALID_VALUE;
    if (device < 0 || (uint32_t)device >= emu->device_count)
        return CU_INVALID_DEVICE;
    struct emu_context *context = &primaries[device];
    pthread_mutex_lock(&local_lock);
    if (context->reference_count == 0) {
        rc = open_context(context, (uint32_t)device);
        context->is_primary = true;
    }
    if (!rc) {
        context->reference_count++;
        *out = context;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

static CUresult release_primary(CUdevice device, bool is_reset)
{
    if (emu_ready() || device < 0 || (uint32_t)device >= emu->device_count)
        return CU_INVALID_DEVICE;
    struct emu_context *context = &primaries[device];
    pthread_mutex_lock(&local_lock);
    if (context->reference_count == 0) {
        pthread_mutex_unlock(&local_lock);
        return is_reset ? CU_OK : CU_INVALID_CONTEXT;
    }
    bool is_last = is_reset || context->reference_count == 1;
    context->reference_count = is_last ? 0 : context->reference_count - 1;
    pthread_mutex_unlock(&local_lock);
    if (is_last)
        close_context(context);
    return CU_OK;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release_primary(device, false);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return release_primary(device, false);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return release_primary(device, true);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return release_primary(device, true);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *is_active)
{
    if (emu_ready() || device < 0 || (uint32_t)device >= emu->device_count)
        return CU_INVALID_DEVICE;
    *flags = primaries[device].flags;
    *is_active = primaries[device].reference_count > 0;
    return CU_OK;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    if (emu_ready() || device < 0 || (uint32_t)device >= emu->device_count)
        return CU_INVALID_DEVICE;
    primaries[device].flags = flags;
    return CU_OK;
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device)
{
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    if (device < 0 || (uint32_t)device >= emu->device_count || depth == STACK_MAX)
        return CU_INVALID_DEVICE;
    struct emu_context *context = calloc(1, sizeof(*context));
    if (!context)
        return CU_OUT_OF_MEMORY;
    pthread_mutex_lock(&local_lock);
    rc = open_context(context, (uint32_t)device);
    if (!rc) {
        context->flags = flags;
        context->next = created;
        created = context;
    }
    pthread_mutex_unlock(&local_lock);
    if (rc) {
        free(context);
        return rc;
    }
    stack[depth++] = context;
    *out = context;
    return CU_OK;
}

EXPORT CUresult cuCtxCreate(CUcontext *out, unsigned int flags, CUdevice device)
{
    return cuCtxCreate_v2(out, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *out, void *parameters, int count, unsigned int flags,
                               CUdevice device)
{
    return parameters && count ? CU_NOT_SUPPORTED : cuCtxCreate_v2(out, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned int flags,
                               CUdevice device)
{
    return parameters ? CU_NOT_SUPPORTED : cuCtxCreate_v2(out, flags, device);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (emu_ready() || !context || context->is_primary || context->is_gone)
        return CU_INVALID_CONTEXT;
    /* Keep the object: other threads may still use its handle, and must get an
     * error and not a crash. */
    close_context(context);
    if (depth && stack[depth - 1] == context)
        depth--;
    return CU_OK;
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    if (emu_ready())
        return CU_NOT_INITIALIZED;
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    return CU_OK;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (emu_ready())
        return CU_NOT_INITIALIZED;
    *context = depth ? stack[depth - 1] : NULL;
    return CU_OK;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (emu_ready())
        return CU_NOT_INITIALIZED;
    if (!context || depth == STACK_MAX)
        return CU_INVALID_CONTEXT;
    stack[depth++] = context;
    return CU_OK;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context)
{
    return cuCtxPushCurrent_v2(context);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (emu_ready())
        return CU_NOT_INITIALIZED;
    if (depth == 0)
        return CU_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
    return CU_OK;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *context)
{
    return cuCtxPopCurrent_v2(context);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (!rc)
        *device = (CUdevice)context->device;
    return rc;
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    if (!context)
        return cuCtxGetDevice(device);
    *device = (CUdevice)context->device;
    return CU_OK;
}

EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (!rc)
        *flags = context->flags;
    return rc;
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    struct emu_context *current;
    CUresult rc = context ? CU_OK : emu_enter(&current);
    if (!rc)
        *id = (context ? context : current)->id;
    return rc;
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    (void)context;
    *version = 3020;
    return emu_ready();
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return emu_ready();
}

EXPORT CUresult cuCtxGetLimit(size_t *value, int limit)
{
    *value = limit == 0 ? 1024 : 8 * MIB;
    return emu_ready();
}

EXPORT CUresult cuCtxSetLimit(int limit, size_t value)
{
    (void)limit;
    (void)value;
    return emu_ready();
}

EXPORT CUresult cuCtxGetCacheConfig(int *config)
{
    *config = 0;
    return emu_ready();
}

EXPORT CUresult cuCtxSetCacheConfig(int config)
{
    (void)config;
    return emu_ready();
}

EXPORT CUresult cuCtxSynchronize(void)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    return rc ? rc : op_wait_context(context);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return context ? op_wait_context(context) : cuCtxSynchronize();
}
