/*
 * Where a job's device memory goes: the lane while the grant is held, else memory of its own,
 * counted and capped.
 *
 * Own blocks above 1 MiB lie in a range of ours, so that what is behind an address can change
 * later; smaller ones are the driver's, which packs them. Where the allowance ends the answer is
 * out-of-memory: frameworks then empty their caches and try again. A session that is not gated
 * leaves placement to the driver and is measured.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "blocks.h"
#include "client.h"
#include "cuda_driver.h"
#include "cuda_lane.h"
#include "cuda_memory.h"
#include "cuda_own.h"
#include "cuda_share.h"
#include "cuda_work.h"
#include "gate.h"
#include "host.h"
#include "session.h"

#define SPILL_FLAG      (1ull << 63)
#define OWN_FLAG        (1ull << 62)
#define SIZE_MASK       (OWN_FLAG - 1)
#define SMALL_BYTES_MAX (1ull << 20)
#define LANE_ALIGN      512
#define AUTOGRAD_PREFIX "pt_autograd_"

static struct blocks blocks;  /* by address */
static struct blocks handles; /* memory that the program made by cuMemCreate */
static struct blocks shadows; /* ungated: offset + 1 in the measuring region, by address */
static __thread bool is_lane_thread, is_thread_known;
static __thread uint32_t persist_depth;

int host_hook(void)
{
    return 0; /* being loaded in the driver's place is the hook */
}

void host_mark_thread(void)
{
    cuda_note_context();
    is_lane_thread = is_thread_known = true;
}

void host_forget_threads(void)
{
}

void salus_persist_begin(void)
{
    persist_depth++;
}

void salus_persist_end(void)
{
    if (persist_depth)
        persist_depth--;
}

static bool may_use_lane(void)
{
    char name[THREAD_NAME_BYTES] = "";

    if (!is_thread_known) {
        prctl(PR_GET_NAME, name);
        is_lane_thread = !strncmp(name, AUTOGRAD_PREFIX, strlen(AUTOGRAD_PREFIX));
        is_thread_known = true;
    }
    return is_lane_thread && !persist_depth;
}

static uint64_t stash_bytes(void)
{
    return session.lane ? session.lane->private_pages * REGION_PAGE_BYTES : 0;
}

uint64_t host_persistent_bytes(void)
{
    return session.counts.own_bytes + session.counts.private_bytes + stash_bytes();
}

uint64_t host_persistent_peak_bytes(void)
{
    const struct memory_counts *counts = &session.counts;

    return counts->own_bytes + counts->private_peak_bytes + counts->survivor_peak_bytes;
}

/* Of the session's own memory, what is no block: the context. NVML knows it; where there is none it
 * reads 0. */
void host_measure_own(void)
{
    uint64_t used_bytes = cuda_used_bytes(), counted_bytes, own_bytes;

    pthread_mutex_lock(&session.memory_lock);
    counted_bytes = session.counts.private_bytes + stash_bytes();
    if (session.lane && session.lane->is_self)
        counted_bytes += session.counts.lane_bytes;
    own_bytes = used_bytes > counted_bytes ? used_bytes - counted_bytes : 0;
    if (own_bytes > session.counts.own_bytes)
        session.counts.own_bytes = own_bytes;
    pthread_mutex_unlock(&session.memory_lock);
}

static void raise_peak(uint64_t *peak, uint64_t value)
{
    if (value > *peak)
        *peak = value;
}

static void count_live(uint64_t size_bytes)
{
    struct memory_counts *counts = &session.counts;

    counts->live_bytes += size_bytes;
    raise_peak(&counts->live_peak_bytes, counts->live_bytes);
    raise_peak(&counts->iteration_peak_bytes, counts->live_bytes);
}

void host_roll_iteration(void)
{
    struct memory_counts *counts = &session.counts;
    uint64_t resting_bytes = counts->iteration_start_bytes;

    raise_peak(&resting_bytes, counts->live_bytes);
    if (session.gate.iteration_count)
        raise_peak(&counts->live_ephemeral_bytes, counts->iteration_peak_bytes - resting_bytes);
    raise_peak(&counts->live_persistent_bytes, counts->live_bytes);
    if (session.lane)
        raise_peak(&counts->survivor_peak_bytes, stash_bytes());
    counts->last_iteration_bytes = counts->iteration_peak_bytes;
    counts->iteration_start_bytes = counts->live_bytes;
    counts->iteration_peak_bytes = counts->live_bytes;
}

/* The address of a lane block, or 0: not for the lane, or no room in it (`is_spill`). */
static uint64_t take_lane_block(uint64_t size_bytes, bool *is_spill)
{
    struct lane *lane = session.lane;
    uint64_t offset_bytes = REGION_NONE;

    *is_spill = false;
    if (session.phase != PHASE_GATED || !lane || !lane->is_open || !may_use_lane())
        return 0;
    pthread_mutex_lock(&session.memory_lock);
    if (lane->is_open) {
        offset_bytes =
            region_take(&lane->region, size_bytes, LANE_ALIGN, session.gate.iteration_count);
        *is_spill = offset_bytes == REGION_NONE;
    }
    if (offset_bytes != REGION_NONE) {
        session.counts.lane_bytes += size_bytes;
        session.counts.lane_count++;
        count_live(size_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
    gate_mark_activity();
    return offset_bytes == REGION_NONE ? 0 : (uint64_t)lane->base + offset_bytes;
}

static bool is_within_cap(uint64_t size_bytes)
{
    uint64_t wanted_bytes, cap_bytes;

    if (session.phase != PHASE_GATED && session.phase != PHASE_UNGATED)
        return true;
    pthread_mutex_lock(&session.memory_lock);
    wanted_bytes = host_persistent_bytes() + size_bytes;
    cap_bytes = session.counts.cap_persistent_bytes;
    pthread_mutex_unlock(&session.memory_lock);
    if (!cap_bytes || wanted_bytes <= cap_bytes)
        return true;
    return !client_ask(SALUS_OVERRUN_PERSISTENT, wanted_bytes, session.counts.cap_ephemeral_bytes);
}

static void note_private(uint64_t address, uint64_t size_bytes, uint64_t flags)
{
    struct memory_counts *counts = &session.counts;

    pthread_mutex_lock(&session.memory_lock);
    blocks_note(&blocks, (uintptr_t)address, size_bytes | flags);
    counts->private_bytes += size_bytes;
    counts->private_count++;
    raise_peak(&counts->private_peak_bytes, counts->private_bytes);
    if (flags & SPILL_FLAG) {
        counts->spill_count++;
        counts->spill_bytes += size_bytes;
        raise_peak(&counts->spill_bytes_max, counts->spill_bytes);
    }
    count_live(size_bytes);
    pthread_mutex_unlock(&session.memory_lock);
}

/* Ungated: true if the block counts as one that a lane would hold. */
static bool note_shadow(uint64_t address, uint64_t size_bytes)
{
    struct lane *lane = session.lane;
    uint64_t offset_bytes;

    if (session.phase != PHASE_UNGATED || !lane || !lane->is_self || !may_use_lane())
        return false;
    pthread_mutex_lock(&session.memory_lock);
    offset_bytes = region_take(&lane->region, size_bytes, LANE_ALIGN, session.gate.iteration_count);
    if (offset_bytes != REGION_NONE) {
        blocks_note(&shadows, (uintptr_t)address, offset_bytes + 1);
        session.counts.lane_bytes += size_bytes;
        session.counts.lane_count++;
        count_live(size_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
    return offset_bytes != REGION_NONE;
}

static int allocate(uint64_t *address, uint64_t size_bytes)
{
    uint64_t flags, counted_bytes = size_bytes;
    bool is_spill;
    int answer;

    cuda_resolve();
    if (!address || !size_bytes)
        return REAL(cuMemAlloc_v2)(address, size_bytes);
    cuda_note_context();
    *address = take_lane_block(size_bytes, &is_spill);
    if (*address)
        return CUDA_OK;
    if (size_bytes > SMALL_BYTES_MAX)
        counted_bytes =
            (size_bytes + CUDA_GRANULE_BYTES - 1) / CUDA_GRANULE_BYTES * CUDA_GRANULE_BYTES;
    if (!is_within_cap(counted_bytes))
        return CUDA_OUT_OF_MEMORY;
    flags = is_spill ? SPILL_FLAG : 0;
    if (session.phase == PHASE_GATED && size_bytes > SMALL_BYTES_MAX) {
        answer = own_take(counted_bytes, address);
        flags |= OWN_FLAG;
    } else {
        answer = REAL(cuMemAlloc_v2)(address, size_bytes);
        if (!answer && note_shadow(*address, counted_bytes))
            return CUDA_OK;
    }
    if (!answer)
        note_private(*address, counted_bytes, flags);
    return answer;
}

/* True if the block was the lane's. memory_lock is taken here. */
static bool give_lane_block(uint64_t address)
{
    uint32_t index;

    for (index = 0; index < session.lane_count; index++) {
        struct lane *lane = &session.lanes[index];
        uint64_t offset_bytes = address - (uint64_t)lane->base;
        struct region_extent *block;
        uint64_t size_bytes = 0, wanted_bytes;

        if (lane->is_self || !lane_holds(lane, (void *)address))
            continue;
        pthread_mutex_lock(&session.memory_lock);
        block = region_find(&lane->region, offset_bytes);
        if (block)
            size_bytes = block->size_bytes;
        wanted_bytes = region_give(&lane->region, offset_bytes);
        if (wanted_bytes != REGION_NONE) {
            session.counts.lane_bytes -= wanted_bytes;
            session.counts.live_bytes -= wanted_bytes;
            stash_forget(lane, offset_bytes, size_bytes);
        }
        pthread_mutex_unlock(&session.memory_lock);
        return true;
    }
    return false;
}

static void give_shadow(uint64_t address)
{
    uint64_t place, size_bytes;

    pthread_mutex_lock(&session.memory_lock);
    place = blocks_forget(&shadows, (uintptr_t)address);
    if (place && session.lane) {
        size_bytes = region_give(&session.lane->region, place - 1);
        if (size_bytes != REGION_NONE) {
            session.counts.lane_bytes -= size_bytes;
            session.counts.live_bytes -= size_bytes;
        }
    }
    pthread_mutex_unlock(&session.memory_lock);
}

static int release(uint64_t address)
{
    struct memory_counts *counts = &session.counts;
    uint64_t noted;

    if (give_lane_block(address))
        return CUDA_OK;
    give_shadow(address);
    pthread_mutex_lock(&session.memory_lock);
    noted = blocks_forget(&blocks, (uintptr_t)address);
    counts->private_bytes -= noted & SIZE_MASK;
    counts->live_bytes -= noted & SIZE_MASK;
    if (noted & SPILL_FLAG)
        counts->spill_bytes -= noted & SIZE_MASK;
    pthread_mutex_unlock(&session.memory_lock);
    return noted & OWN_FLAG ? own_give(address) : REAL(cuMemFree_v2)(address);
}

static bool is_ours(uint64_t address)
{
    return salus_is_lane((void *)address) || own_holds(address);
}

WRAP(cuMemAlloc_v2, uint64_t *address, size_t size_bytes)
{
    return allocate(address, size_bytes);
}

WRAP(cuMemAllocPitch_v2, uint64_t *address, size_t *pitch, size_t width, size_t height,
     unsigned int element_bytes)
{
    (void)element_bytes;
    if (!pitch)
        return CUDA_INVALID_VALUE;
    *pitch = (width + LANE_ALIGN - 1) / LANE_ALIGN * LANE_ALIGN;
    return allocate(address, *pitch * height);
}

WRAP(cuMemFree_v2, uint64_t address)
{
    cuda_resolve();
    /* As the driver does: a block is free when the work that may use it has ended. Lent, it has
     * ended. */
    if (is_ours(address) && (!session.lane || session.lane->is_open))
        REAL(cuCtxSynchronize)();
    return release(address);
}

static int allocate_async(uint64_t *address, size_t size_bytes, cuda_word stream,
                          enum cuda_place real)
{
    cuda_resolve();
    if (session.phase != PHASE_GATED || capture_has(stream))
        return ((cuda_function)cuda_table[real])(address, size_bytes, stream);
    return allocate(address, size_bytes);
}

WRAP(cuMemAllocAsync, uint64_t *address, size_t size_bytes, cuda_word stream)
{
    return allocate_async(address, size_bytes, stream, REAL_cuMemAllocAsync);
}

WRAP(cuMemAllocAsync_ptsz, uint64_t *address, size_t size_bytes, cuda_word stream)
{
    return allocate_async(address, size_bytes, stream, REAL_cuMemAllocAsync_ptsz);
}

/* Blocks that came from allocate, wherever they lie; the rest is the driver's pool. */
static bool is_noted(uint64_t address)
{
    uint64_t noted;

    pthread_mutex_lock(&session.memory_lock);
    noted = blocks_forget(&blocks, (uintptr_t)address);
    if (noted)
        blocks_note(&blocks, (uintptr_t)address, noted);
    pthread_mutex_unlock(&session.memory_lock);
    return noted || is_ours(address);
}

static int release_async(uint64_t address, cuda_word stream, enum cuda_place real,
                         enum cuda_place wait)
{
    int answer;

    cuda_resolve();
    if (!is_noted(address))
        return ((cuda_function)cuda_table[real])(address, stream);
    answer = ((cuda_function)cuda_table[wait])(stream);
    return answer ? answer : release(address);
}

WRAP(cuMemFreeAsync, uint64_t address, cuda_word stream)
{
    return release_async(address, stream, REAL_cuMemFreeAsync, REAL_cuStreamSynchronize);
}

WRAP(cuMemFreeAsync_ptsz, uint64_t address, cuda_word stream)
{
    return release_async(address, stream, REAL_cuMemFreeAsync_ptsz, REAL_cuStreamSynchronize_ptsz);
}

WRAP(cuMemCreate, uint64_t *handle, size_t size_bytes, const void *prop, unsigned long long flags)
{
    int answer;

    cuda_resolve();
    if (!is_within_cap(size_bytes))
        return CUDA_OUT_OF_MEMORY;
    answer = REAL(cuMemCreate)(handle, size_bytes, prop, (cuda_word)flags);
    if (!answer) {
        pthread_mutex_lock(&session.memory_lock);
        blocks_note(&handles, (uintptr_t)*handle, size_bytes);
        session.counts.private_bytes += size_bytes;
        raise_peak(&session.counts.private_peak_bytes, session.counts.private_bytes);
        count_live(size_bytes);
        pthread_mutex_unlock(&session.memory_lock);
    }
    return answer;
}

/* Counted until the handle goes: a mapping may outlive it, and the daemon's own reading sees that.
 */
WRAP(cuMemRelease, uint64_t handle)
{
    uint64_t size_bytes;

    cuda_resolve();
    pthread_mutex_lock(&session.memory_lock);
    size_bytes = blocks_forget(&handles, (uintptr_t)handle);
    session.counts.private_bytes -= size_bytes;
    session.counts.live_bytes -= size_bytes;
    pthread_mutex_unlock(&session.memory_lock);
    return REAL(cuMemRelease)(handle);
}

/* Free is what this session may still have, or frameworks that take a share of it would take the
 * others'. */
WRAP(cuMemGetInfo_v2, size_t *free_bytes, size_t *total_bytes)
{
    uint64_t left_bytes;
    int answer;

    cuda_resolve();
    answer = REAL(cuMemGetInfo_v2)(free_bytes, total_bytes);
    if (answer || !free_bytes || session.phase != PHASE_GATED ||
        !session.counts.cap_persistent_bytes)
        return answer;
    pthread_mutex_lock(&session.memory_lock);
    left_bytes = host_persistent_bytes();
    left_bytes = session.counts.cap_persistent_bytes > left_bytes
                     ? session.counts.cap_persistent_bytes - left_bytes
                     : 0;
    if (session.lane && session.lane->region.limit_bytes > session.lane->region.used_bytes)
        left_bytes += session.lane->region.limit_bytes - session.lane->region.used_bytes;
    pthread_mutex_unlock(&session.memory_lock);
    if (left_bytes < *free_bytes)
        *free_bytes = left_bytes;
    return answer;
}

WRAP(cuMemGetAddressRange_v2, uint64_t *start, size_t *size_bytes, uint64_t address)
{
    const struct region_extent *block = NULL;
    const struct lane *lane = session.lane;
    bool is_found = false;

    cuda_resolve();
    if (!lane || lane->is_self || !lane_holds(lane, (void *)address))
        return REAL(cuMemGetAddressRange_v2)(start, size_bytes, address);
    pthread_mutex_lock(&session.memory_lock);
    while (!is_found && (block = region_next(&lane->region, block)))
        if (address - (uint64_t)lane->base - block->offset_bytes < block->size_bytes) {
            is_found = true;
            if (start)
                *start = (uint64_t)lane->base + block->offset_bytes;
            if (size_bytes)
                *size_bytes = block->wanted_bytes;
        }
    pthread_mutex_unlock(&session.memory_lock);
    return is_found ? CUDA_OK : CUDA_NOT_FOUND;
}

int memory_take(uint64_t *address, uint64_t size_bytes)
{
    return allocate(address, size_bytes);
}

bool memory_is_allowed(uint64_t size_bytes)
{
    return is_within_cap(size_bytes);
}

void memory_count(uint64_t address, uint64_t size_bytes)
{
    note_private(address, size_bytes, 0);
}

bool memory_is_ours(uint64_t address)
{
    return is_ours(address);
}

uint64_t salus_cuda_launch_count(void)
{
    return work_launch_count();
}
