#define _GNU_SOURCE
#include "lending.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "gate.h"
#include "memory.h"
#include "session.h"
#include "trap.h"

static struct {
    uint64_t lane, epoch;
    bool is_set;
} pending_unmap;

/* Bytes of own memory once the survivors are stashed. The caller holds memory_lock. */
static uint64_t bytes_with_stash(void)
{
    return session.counts.own_bytes + session.counts.private_bytes +
           stash_total_bytes(session.lane);
}

/* The caller holds memory_lock. */
static int stash_and_shut(void)
{
    struct lane *lane = session.lane;
    uint64_t cap_bytes = session.counts.cap_persistent_bytes;
    int error = 0;

    if (session.has_stash && (lane->region.used_count || lane->private_pages)) {
        if (cap_bytes && lane->region.used_count && bytes_with_stash() > cap_bytes)
            return -EDQUOT;
        /* Guarded: a logger or an asynchronous checkpoint may write to a survivor during the copy;
         * it then waits in the SIGSEGV handler. */
        error = trap_install();
        if (!error)
            error = stash_keep(lane, session.gate.iteration_count, true);
    }
    if (!error)
        lane_shut(lane);
    return error;
}

int lending_shut(void)
{
    int error;

    pthread_mutex_lock(&session.memory_lock);
    error = stash_and_shut();
    pthread_mutex_unlock(&session.memory_lock);
    return error;
}

int lending_shut_or_ask(void)
{
    uint64_t wanted_bytes;
    int error = lending_shut();

    /* Other threads may allocate or free while we ask, so the new cap may not suffice either. */
    while (error == -EDQUOT) {
        pthread_mutex_lock(&session.memory_lock);
        wanted_bytes = bytes_with_stash();
        pthread_mutex_unlock(&session.memory_lock);
        error = client_ask(SALUS_OVERRUN_STASH, wanted_bytes, session.counts.cap_ephemeral_bytes);
        if (error)
            return error;
        error = lending_shut();
    }
    if (error)
        client_send_fault("stash: survivors: out of memory; the grant is kept", false);
    return error;
}

static void finish_unmap(void)
{
    struct salus_unmapped frame = {0};

    pthread_mutex_lock(&session.memory_lock);
    frame.lane = pending_unmap.lane;
    frame.epoch = pending_unmap.epoch;
    pending_unmap.is_set = false;
    if (session.lane && session.lane->mapped_bytes && session.lane->id == frame.lane &&
        session.lane->epoch == frame.epoch)
        lane_unmap(session.lane);
    frame.persistent_bytes = memory_persistent_bytes();
    pthread_mutex_unlock(&session.memory_lock);
    client_send(&frame, SALUS_UNMAPPED, sizeof(frame));
}

void lending_finish(void)
{
    if (pending_unmap.is_set)
        finish_unmap();
}

void lending_unmap(uint64_t lane, uint64_t epoch)
{
    bool is_held;

    pthread_mutex_lock(&session.memory_lock);
    pending_unmap.lane = lane;
    pending_unmap.epoch = epoch;
    pending_unmap.is_set = true;
    is_held = session.lane && session.lane->is_open;
    pthread_mutex_unlock(&session.memory_lock);
    /* Without a grant the survivors are private already. */
    if (!is_held)
        finish_unmap();
}

void lending_map(int fd, uint64_t lane, uint64_t epoch, uint64_t lane_bytes,
                 uint64_t ephemeral_bytes)
{
    char text[SALUS_TEXT_BYTES];
    int error = -EBUSY;

    pthread_mutex_lock(&session.memory_lock);
    if (session.lane && !session.lane->is_open)
        error = lane_map(session.lane, fd, lane, epoch, lane_bytes, ephemeral_bytes);
    if (!error)
        session.counts.cap_ephemeral_bytes = ephemeral_bytes;
    pthread_mutex_unlock(&session.memory_lock);
    if (error) {
        close(fd);
        snprintf(text, sizeof(text), "map lane: lane %llu: %s", (unsigned long long)lane,
                 strerror(-error));
        client_send_fault(text, false);
        return;
    }
    gate_wake();
}

void lending_set_caps(uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    struct lane *lane;
    uint64_t limit_bytes = ephemeral_bytes;

    pthread_mutex_lock(&session.memory_lock);
    lane = session.lane;
    session.counts.cap_persistent_bytes = persistent_bytes;
    session.counts.cap_ephemeral_bytes = ephemeral_bytes;
    if (lane && lane->mapped_bytes && !lane->is_self) {
        if (limit_bytes > lane->mapped_bytes)
            limit_bytes = lane->mapped_bytes;
        /* If this fails for lack of memory, new blocks still lie below the old limit. */
        if (limit_bytes > lane->region.limit_bytes)
            region_limit(&lane->region, limit_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
}
