/*
 * Queued work of this process. The shared ring holds its timing, this list its
 * effects. When the model reports work as complete, the next thread that checks
 * applies its effects in the order of submission. Work that nobody waited for can
 * therefore still write later, as on hardware.
 */
#include "local.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct emu_op *first_op, **last_op = &first_op;
static bool is_applying;

struct emu_op *op_new(enum op_kind kind)
{
    struct emu_op *op = calloc(1, sizeof(*op));
    if (op)
        op->kind = kind;
    return op;
}

CUresult op_start(struct emu_context *context, CUstream handle, enum op_kind kind,
                  struct emu_op **op)
{
    CUresult rc = CU_OK;
    struct emu_stream *stream = emu_stream_of(context, handle, &rc);
    if (rc)
        return rc;
    *op = op_new(kind);
    if (!*op)
        return CU_OUT_OF_MEMORY;
    (*op)->stream = stream;
    return CU_OK;
}

static void sleep_until(uint64_t at_ns)
{
    struct timespec at = {(time_t)(at_ns / 1000000000ULL), (long)(at_ns % 1000000000ULL)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* The caller holds both locks. */
static void collect(uint32_t device)
{
    for (struct emu_op *op = first_op; op; op = op->next) {
        const struct emu_ring *ring = &emu->rings[op->stream->ring];
        if (op->is_done || op->stream->context->device != device || ring->done <= op->sequence)
            continue;
        op->is_done = true;
        op->done_ns = ring->items[op->sequence % EMU_RING].done_ns;
    }
}

static void finish(struct emu_op *op)
{
    uint32_t device = op->stream->context->device;
    if (op->kind == OP_CALL || op->kind == OP_FREE) {
        pthread_mutex_unlock(&local_lock);
        if (op->call)
            op->call(op->call_argument);
        if (op->stream_call)
            op->stream_call(op->stream, CU_OK, op->call_argument);
        if (op->kind == OP_FREE)
            memory_free(op->freed);
        pthread_mutex_lock(&local_lock);
    } else if (op->kind == OP_STAMP) {
        /* An event that was recorded again counts only for its last record. */
        if (op->event && op->event->stream == op->stream && op->event->until == op->sequence + 1) {
            op->event->done_ns = op->done_ns;
            op->event->is_done = true;
        }
    } else if (!effect_apply(op)) {
        emu_lock();
        PUT(emu->processes[emu_self()].on[device].sticky, CU_ILLEGAL_ADDRESS);
        emu_unlock();
    }
}

/* The caller holds local_lock. Only one thread at a time does this, so that
 * callbacks, which run without the lock, stay in order. */
static void apply(void)
{
    if (is_applying)
        return;
    is_applying = true;
    for (struct emu_op *op = first_op; op;) {
        if (!op->is_done) {
            op = op->next;
            continue;
        }
        finish(op);
        /* The list may have changed meanwhile: find the place again. */
        for (struct emu_op **link = &first_op; *link; link = &(*link)->next)
            if (*link == op) {
                *link = op->next;
                if (last_op == &op->next)
                    last_op = link;
                break;
            }
        free(op->rows.staged);
        free(op);
        op = first_op;
    }
    is_applying = false;
}

/* Returns when the model may advance next. The caller holds local_lock. */
static uint64_t pump(uint32_t device)
{
    emu_lock();
    emu_advance(device);
    collect(device);
    uint64_t wake_ns = emu_wake_ns(device);
    emu_unlock();
    apply();
    return wake_ns;
}

static void wait_unlocked(uint64_t wake_ns)
{
    pthread_mutex_unlock(&local_lock);
    sleep_until(wake_ns);
    pthread_mutex_lock(&local_lock);
}

/* The caller holds local_lock. */
static bool is_complete(const struct emu_stream *stream, uint64_t until)
{
    if (emu->rings[stream->ring].done < until)
        return false;
    for (const struct emu_op *op = first_op; op; op = op->next)
        if (op->stream == stream && op->sequence < until)
            return false;
    return true;
}

static CUresult push(struct emu_stream *stream, const struct emu_item *item, struct emu_op *op,
                     uint64_t *sequence)
{
    struct emu_ring *ring = &emu->rings[stream->ring];
    uint32_t device = stream->context->device;
    for (;;) {
        CUresult rc = emu_device_check(device);
        if (rc)
            return rc;
        emu_lock();
        bool is_running = emu->processes[emu_self()].checkpoint == CHECKPOINT_RUNNING;
        emu_advance(device);
        collect(device);
        if (is_running && ring->queued - ring->done < EMU_RING) {
            uint64_t place = ring->queued;
            emu_inject();
            ring->items[place % EMU_RING] = *item;
            PUT(ring->queued, place + 1);
            if (op) {
                op->stream = stream;
                op->sequence = place;
                *last_op = op;
                last_op = &op->next;
            }
            if (sequence)
                *sequence = place + 1;
            emu_unlock();
            apply();
            return CU_OK;
        }
        uint64_t wake_ns = emu_wake_ns(device);
        emu_unlock();
        apply();
        wait_unlocked(wake_ns);
    }
}

static CUresult order(struct emu_stream *stream, const struct emu_stream *other, uint64_t until)
{
    struct emu_item item = {.work = WORK_WAIT, .wait_stream = other->ring, .wait_until = until};
    if (emu->rings[other->ring].done >= until)
        return CU_OK;
    return push(stream, &item, NULL, NULL);
}

CUresult op_queue(struct emu_stream *stream, const struct emu_item *item, struct emu_op *op,
                  uint64_t *sequence)
{
    CUresult rc = CU_OK;
    struct emu_stream *legacy = stream->context->legacy;
    if (stream->capture)
        return graph_note(stream->capture, item, op);
    pthread_mutex_lock(&local_lock);
    /* The legacy stream waits for all others that did not opt out, and they for
     * it. */
    if (stream == legacy) {
        for (struct emu_stream *other = streams; other && !rc; other = other->next)
            if (other != legacy && other->context == stream->context && !(other->flags & 1))
                rc = order(stream, other, emu->rings[other->ring].queued);
    } else if (legacy && !(stream->flags & 1)) {
        rc = order(stream, legacy, emu->rings[legacy->ring].queued);
    }
    if (!rc)
        rc = push(stream, item, op, sequence);
    pthread_mutex_unlock(&local_lock);
    if (rc && op) {
        free(op->rows.staged);
        free(op);
    }
    return rc;
}

CUresult op_order_after(struct emu_stream *stream, struct emu_stream *other, uint64_t until)
{
    pthread_mutex_lock(&local_lock);
    CUresult rc = order(stream, other, until);
    pthread_mutex_unlock(&local_lock);
    return rc;
}

uint64_t op_queued(struct emu_stream *stream)
{
    return emu->rings[stream->ring].queued;
}

CUresult op_wait(struct emu_stream *stream, uint64_t until)
{
    CUresult rc;
    pthread_mutex_lock(&local_lock);
    for (;;) {
        uint64_t wake_ns = pump(stream->context->device);
        rc = emu_device_check(stream->context->device);
        if (rc || is_complete(stream, until))
            break;
        wait_unlocked(wake_ns);
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

CUresult op_query(struct emu_stream *stream, uint64_t until)
{
    pthread_mutex_lock(&local_lock);
    pump(stream->context->device);
    CUresult rc = emu_device_check(stream->context->device);
    if (!rc && !is_complete(stream, until))
        rc = CU_NOT_READY;
    pthread_mutex_unlock(&local_lock);
    return rc;
}

CUresult op_wait_context(struct emu_context *context)
{
    CUresult rc = CU_OK;
    for (struct emu_stream *stream = streams; stream; stream = stream->next)
        if (stream->context == context && stream->capture)
            rc = graph_break(stream->capture);
    if (rc)
        return rc;
    /* A stream may be destroyed by another thread while this one waits, so start
     * over after each wait. */
    for (bool again = true; again && !rc;) {
        struct emu_stream *busy = NULL;
        pthread_mutex_lock(&local_lock);
        pump(context->device);
        for (struct emu_stream *stream = streams; stream && !busy; stream = stream->next)
            if (stream->context == context && !is_complete(stream, emu->rings[stream->ring].queued))
                busy = stream;
        pthread_mutex_unlock(&local_lock);
        again = busy != NULL;
        rc = busy ? op_wait(busy, op_queued(busy)) : emu_device_check(context->device);
    }
    return rc;
}

void op_forget_event(struct emu_event *event)
{
    pthread_mutex_lock(&local_lock);
    for (struct emu_op *op = first_op; op; op = op->next)
        if (op->event == event)
            op->event = NULL;
    pthread_mutex_unlock(&local_lock);
}
