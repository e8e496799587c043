#define _GNU_SOURCE
#include "memory.h"

#include <string.h>
#include <sys/prctl.h>

#include "client.h"
#include "gate.h"

#define AUTOGRAD_PREFIX "pt_autograd_"

__thread struct memory_thread memory_thread;
uint32_t memory_generation;

void memory_forget_threads(void)
{
    memory_generation++;
}

bool memory_is_lane_thread(void)
{
    struct memory_thread *thread = &memory_thread;
    char name[THREAD_NAME_BYTES] = "";

    if (thread->kind == THREAD_UNKNOWN || thread->generation != memory_generation) {
        prctl(PR_GET_NAME, name);
        thread->kind =
            strncmp(name, AUTOGRAD_PREFIX, strlen(AUTOGRAD_PREFIX)) ? THREAD_OTHER : THREAD_LANE;
        thread->generation = memory_generation;
    }
    return thread->kind == THREAD_LANE && !thread->persist_depth;
}

void salus_persist_begin(void)
{
    memory_thread.persist_depth++;
}

void salus_persist_end(void)
{
    if (memory_thread.persist_depth)
        memory_thread.persist_depth--;
}

static uint64_t stash_bytes(void)
{
    uint64_t page_count = 0;
    uint32_t index;

    for (index = 0; index < session.lane_count; index++)
        page_count += session.lanes[index].private_pages;
    return page_count * REGION_PAGE_BYTES;
}

uint64_t memory_persistent_bytes(void)
{
    return session.counts.own_bytes + session.counts.private_bytes + stash_bytes();
}

uint64_t memory_persistent_peak_bytes(void)
{
    return session.counts.own_bytes + session.private_peak_bytes + session.survivor_peak_bytes;
}

void memory_measure_own(void)
{
    uint64_t process_bytes = memory_process_bytes(), block_bytes;

    pthread_mutex_lock(&session.memory_lock);
    block_bytes = session.counts.private_bytes + stash_bytes();
    if (session.lane && session.lane->is_self)
        block_bytes += memory_self_lane_bytes(session.lane);
    if (process_bytes > block_bytes)
        raise_peak(&session.counts.own_bytes, process_bytes - block_bytes);
    pthread_mutex_unlock(&session.memory_lock);
}

static void count_live(uint64_t size_bytes)
{
    struct salus_counters *counts = &session.counts;

    counts->live_bytes += size_bytes;
    raise_peak(&counts->live_peak_bytes, counts->live_bytes);
    raise_peak(&counts->iteration_peak_bytes, counts->live_bytes);
}

void memory_count_lane_block(uint64_t size_bytes)
{
    session.counts.lane_bytes += size_bytes;
    session.counts.lane_count++;
    count_live(size_bytes);
}

void memory_uncount_lane_block(uint64_t size_bytes)
{
    session.counts.lane_bytes -= size_bytes;
    session.counts.live_bytes -= size_bytes;
}

uintptr_t memory_allocate_in_lane(uint64_t size_bytes, uint64_t align_bytes, bool *is_spill)
{
    struct lane *lane = session.lane;
    uint64_t offset_bytes = REGION_NONE;

    *is_spill = false;
    if (!lane || !lane->is_open || !memory_is_lane_thread())
        return 0;
    pthread_mutex_lock(&session.memory_lock);
    if (lane->is_open) {
        offset_bytes =
            region_allocate(&lane->region, size_bytes, align_bytes, session.gate.iteration_count);
        *is_spill = offset_bytes == REGION_NONE;
        if (!*is_spill)
            memory_count_lane_block(size_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
    gate_mark_activity();
    return offset_bytes == REGION_NONE ? 0 : (uintptr_t)lane->base + offset_bytes;
}

bool memory_free_in_lane(uintptr_t address)
{
    struct lane *lane = session_lane_at((void *)address);
    uint64_t offset_bytes, size_bytes;
    struct region_extent *block;

    if (!lane)
        return false;
    offset_bytes = address - (uintptr_t)lane->base;
    pthread_mutex_lock(&session.memory_lock);
    block = region_find(&lane->region, offset_bytes);
    if (block) {
        size_bytes = block->size_bytes;
        memory_uncount_lane_block(region_free(&lane->region, offset_bytes));
        stash_forget(lane, offset_bytes, size_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
    return true;
}

bool memory_fits_cap(uint64_t size_bytes)
{
    uint64_t wanted_bytes, cap_bytes;

    if (!session_is_attached())
        return true;
    pthread_mutex_lock(&session.memory_lock);
    wanted_bytes = memory_persistent_bytes() + size_bytes;
    cap_bytes = session.counts.cap_persistent_bytes;
    pthread_mutex_unlock(&session.memory_lock);
    if (!cap_bytes || wanted_bytes <= cap_bytes)
        return true;
    return !client_ask(SALUS_OVERRUN_PERSISTENT, wanted_bytes, session.counts.cap_ephemeral_bytes);
}

static void uncount_private(uint64_t noted)
{
    struct salus_counters *counts = &session.counts;

    counts->private_bytes -= noted & BLOCK_SIZE_MASK;
    counts->live_bytes -= noted & BLOCK_SIZE_MASK;
    if (noted & BLOCK_SPILL)
        session.spill_bytes -= noted & BLOCK_SIZE_MASK;
}

void memory_note_private(struct blocks *blocks, uintptr_t address, uint64_t size_bytes,
                         uint64_t flags)
{
    struct salus_counters *counts = &session.counts;

    pthread_mutex_lock(&session.memory_lock);
    /* A record of this address is stale: its block was freed without a call to us. */
    uncount_private(blocks_note(blocks, address, size_bytes | flags));
    counts->private_bytes += size_bytes;
    counts->private_count++;
    raise_peak(&session.private_peak_bytes, counts->private_bytes);
    if (flags & BLOCK_SPILL) {
        counts->spill_count++;
        session.spill_bytes += size_bytes;
        raise_peak(&counts->spill_bytes_max, session.spill_bytes);
    }
    count_live(size_bytes);
    pthread_mutex_unlock(&session.memory_lock);
}

uint64_t memory_forget_private(struct blocks *blocks, uintptr_t address)
{
    uint64_t noted;

    pthread_mutex_lock(&session.memory_lock);
    noted = blocks_forget(blocks, address);
    uncount_private(noted);
    pthread_mutex_unlock(&session.memory_lock);
    return noted;
}
