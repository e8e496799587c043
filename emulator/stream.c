/* Streams and events. */
#include "local.h"

#include <stdlib.h>

struct emu_stream *streams;

static uint64_t last_id;
static _Thread_local struct emu_stream *per_thread;

/* The first unused ring, or EMU_STREAMS_MAX. */
static uint32_t find_ring(void)
{
    uint32_t ring = 0;
    while (ring < EMU_STREAMS_MAX && emu->rings[ring].in_use)
        ring++;
    return ring;
}

CUresult stream_new(struct emu_context *context, int32_t priority, uint32_t flags,
                    struct emu_stream **out)
{
    struct emu_stream *stream = calloc(1, sizeof(*stream));
    if (!stream)
        return CU_OUT_OF_MEMORY;
    emu_lock();
    uint32_t ring = find_ring();
    if (ring == EMU_STREAMS_MAX) {
        emu_reap();
        ring = find_ring();
    }
    if (ring < EMU_STREAMS_MAX)
        emu_ring_reset(ring, emu_self(), context->device, priority);
    emu_unlock();
    if (ring == EMU_STREAMS_MAX) {
        free(stream);
        return CU_OUT_OF_MEMORY;
    }
    *stream =
        (struct emu_stream){.context = context, .ring = ring, .priority = priority, .flags = flags};
    pthread_mutex_lock(&local_lock);
    stream->id = ++last_id;
    stream->next = streams;
    streams = stream;
    pthread_mutex_unlock(&local_lock);
    *out = stream;
    return CU_OK;
}

void stream_free(struct emu_stream *stream)
{
    pthread_mutex_lock(&local_lock);
    for (struct emu_stream **link = &streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    pthread_mutex_unlock(&local_lock);
    emu_lock();
    PUT(emu->rings[stream->ring].in_use, 0);
    emu_unlock();
    free(stream);
}

static bool is_known(const struct emu_stream *stream)
{
    bool found = false;
    pthread_mutex_lock(&local_lock);
    for (const struct emu_stream *at = streams; at && !found; at = at->next)
        found = at == stream;
    pthread_mutex_unlock(&local_lock);
    return found;
}

struct emu_stream *emu_stream_of(struct emu_context *context, CUstream handle, CUresult *rc)
{
    if (handle == CU_STREAM_PER_THREAD) {
        if (!per_thread || !is_known(per_thread) || per_thread->context != context)
            *rc = stream_new(context, 0, 0, &per_thread);
        return per_thread;
    }
    if (handle && handle != CU_STREAM_LEGACY) {
        if (!is_known(handle))
            *rc = CU_INVALID_HANDLE;
        return handle;
    }
    if (!context->legacy)
        *rc = stream_new(context, 0, 0, &context->legacy);
    return context->legacy;
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (rc)
        return rc;
    /* Clamped to the range, as in the driver. */
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return stream_new(context, priority, flags, stream);
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return cuStreamCreateWithPriority(stream, flags, 0);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    CUresult rc = emu_ready();
    if (rc || !is_known(stream))
        return rc ? rc : CU_INVALID_HANDLE;
    op_wait(stream, op_queued(stream));
    stream_free(stream);
    return CU_OK;
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return cuStreamDestroy_v2(stream);
}

CUresult stream_find(CUstream handle, struct emu_stream **stream)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (!rc)
        *stream = emu_stream_of(context, handle, &rc);
    return rc;
}

/* Finds a stream to wait for, which invalidates its capture. */
static CUresult find_uncaptured(CUstream handle, struct emu_stream **stream)
{
    CUresult rc = stream_find(handle, stream);
    return !rc && (*stream)->capture ? graph_break((*stream)->capture) : rc;
}

EXPORT CUresult cuStreamSynchronize(CUstream handle)
{
    struct emu_stream *stream;
    CUresult rc = find_uncaptured(handle, &stream);
    return rc ? rc : op_wait(stream, op_queued(stream));
}

EXPORT CUresult cuStreamQuery(CUstream handle)
{
    struct emu_stream *stream;
    CUresult rc = find_uncaptured(handle, &stream);
    return rc ? rc : op_query(stream, op_queued(stream));
}

/* Properties of a stream that a query only reads. */
#define STREAM_PROPERTY(name, type, value)                                                         \
    EXPORT CUresult name(CUstream handle, type *out)                                               \
    {                                                                                              \
        struct emu_stream *stream;                                                                 \
        CUresult rc = stream_find(handle, &stream);                                                \
        if (!rc)                                                                                   \
            *out = value;                                                                          \
        return rc;                                                                                 \
    }

STREAM_PROPERTY(cuStreamGetPriority, int, stream->priority)
STREAM_PROPERTY(cuStreamGetFlags, unsigned int, stream->flags)
STREAM_PROPERTY(cuStreamGetId, unsigned long long, stream->id)
STREAM_PROPERTY(cuStreamGetCtx, CUcontext, stream->context)
STREAM_PROPERTY(cuStreamGetDevice, CUdevice, (CUdevice)stream->context->device)

static CUresult queue_call(CUstream handle, struct emu_op *op)
{
    static const struct emu_item mark = {.work = WORK_MARK};
    struct emu_stream *stream;
    if (!op)
        return CU_OUT_OF_MEMORY;
    CUresult rc = stream_find(handle, &stream);
    if (rc) {
        free(op);
        return rc;
    }
    return op_queue(stream, &mark, op, NULL);
}

EXPORT CUresult cuLaunchHostFunc(CUstream handle, void (*call)(void *), void *argument)
{
    struct emu_op *op = op_new(OP_CALL);
    if (op) {
        op->call = call;
        op->call_argument = argument;
    }
    return queue_call(handle, op);
}

EXPORT CUresult cuStreamAddCallback(CUstream handle, void (*call)(CUstream, CUresult, void *),
                                    void *argument, unsigned int flags)
{
    struct emu_op *op = op_new(OP_CALL);
    (void)flags;
    if (op) {
        op->stream_call = call;
        op->call_argument = argument;
    }
    return queue_call(handle, op);
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (rc)
        return rc;
    if (flags & 4)
        return CU_NOT_SUPPORTED; /* interprocess events */
    struct emu_event *event = calloc(1, sizeof(*event));
    if (!event)
        return CU_OUT_OF_MEMORY;
    event->flags = flags;
    event->device = context->device;
    *out = event;
    return CU_OK;
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    if (!event)
        return CU_INVALID_HANDLE;
    op_forget_event(event);
    free(event);
    return CU_OK;
}

EXPORT CUresult cuEventDestroy(CUevent event)
{
    return cuEventDestroy_v2(event);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream handle)
{
    static const struct emu_item mark = {.work = WORK_MARK};
    struct emu_stream *stream;
    CUresult rc = stream_find(handle, &stream);
    if (rc || !event)
        return rc ? rc : CU_INVALID_HANDLE;
    if (stream->capture)
        return graph_break(stream->capture);
    struct emu_op *op = op_new(OP_STAMP);
    if (!op)
        return CU_OUT_OF_MEMORY;
    pthread_mutex_lock(&local_lock);
    op->event = event;
    event->is_recorded = true;
    event->is_done = false;
    event->stream = stream;
    event->until = UINT64_MAX;
    event->ring_id = stream->id;
    pthread_mutex_unlock(&local_lock);
    return op_queue(stream, &mark, op, &event->until);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned int flags)
{
    return flags ? CU_NOT_SUPPORTED : cuEventRecord(event, handle);
}

/* A stream that is gone has finished its work: destroying it waits. */
static bool is_pending(const struct emu_event *event)
{
    return event->is_recorded && !event->is_done && is_known(event->stream) &&
           event->stream->id == event->ring_id;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    if (!event)
        return CU_INVALID_HANDLE;
    return is_pending(event) ? op_query(event->stream, event->until) : CU_OK;
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    if (!event)
        return CU_INVALID_HANDLE;
    return is_pending(event) ? op_wait(event->stream, event->until) : CU_OK;
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    if (!start || !end || !start->is_recorded || !end->is_recorded ||
        ((start->flags | end->flags) & 2))
        return CU_INVALID_HANDLE;
    if (cuEventQuery(start) || cuEventQuery(end) || !start->is_done || !end->is_done)
        return CU_NOT_READY;
    *milliseconds = (float)((double)(int64_t)(end->done_ns - start->done_ns) / 1e6);
    return CU_OK;
}

EXPORT CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime(milliseconds, start, end);
}

EXPORT CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    struct emu_stream *stream;
    CUresult rc = stream_find(handle, &stream);
    (void)flags;
    if (rc || !event)
        return rc ? rc : CU_INVALID_HANDLE;
    if (stream->capture)
        return graph_break(stream->capture);
    return is_pending(event) ? op_order_after(stream, event->stream, event->until) : CU_OK;
}
