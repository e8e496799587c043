/*
 * The backend for device memory: where a job's blocks on the GPU go.
 *
 * While the grant is held they go to the lane, otherwise to the job's own memory, which is counted
 * and capped. Own blocks above 1 MiB lie in an address range that we reserve, so that the memory
 * behind an address can change later. The driver places smaller ones. Allocations beyond the cap
 * fail with out-of-memory; frameworks then empty their caches and try again. In an ungated session
 * the driver places all blocks, and we measure what a lane would have to hold.
 */
#define _GNU_SOURCE
#include "memory_cuda.h"

#include "cuda_lane.h"
#include "cuda_own.h"
#include "cuda_share.h"
#include "cuda_work.h"
#include "memory.h"

#define SMALL_BYTES_MAX (1ull << 20)
#define LANE_ALIGN      512

static struct blocks blocks;          /* by address */
static struct blocks handles;         /* memory that the program created with cuMemCreate */
static struct blocks measured_blocks; /* ungated: offset + 1 in the measuring region, by address */

int memory_hook(void)
{
    return 0; /* loading this library in the driver's place is the hook */
}

/* NVML includes the context. Without NVML this is 0. */
uint64_t memory_process_bytes(void)
{
    return cuda_used_bytes();
}

uint64_t memory_self_lane_bytes(const struct lane *lane)
{
    (void)lane;
    return session.counts.lane_bytes;
}

void memory_roll_iteration(void)
{
    roll_counters(session.lane ? session.lane->private_pages * REGION_PAGE_BYTES : 0);
}

/* For an ungated session: records a block that a lane would hold in the measuring region. False if
 * a lane would not hold it. */
static bool note_shadow(uint64_t address, uint64_t size_bytes)
{
    struct lane *lane = session.lane;
    uint64_t offset_bytes;

    if (session.phase != PHASE_UNGATED || !lane || !lane->is_self || !memory_is_lane_thread())
        return false;
    pthread_mutex_lock(&session.memory_lock);
    offset_bytes =
        region_allocate(&lane->region, size_bytes, LANE_ALIGN, session.gate.iteration_count);
    if (offset_bytes != REGION_NONE) {
        blocks_note(&measured_blocks, address, offset_bytes + 1);
        memory_count_lane_block(size_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
    return offset_bytes != REGION_NONE;
}

static void forget_shadow(uint64_t address)
{
    uint64_t place, size_bytes;

    pthread_mutex_lock(&session.memory_lock);
    place = blocks_forget(&measured_blocks, address);
    if (place && session.lane) {
        size_bytes = region_free(&session.lane->region, place - 1);
        if (size_bytes != REGION_NONE)
            memory_uncount_lane_block(size_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
}

int cuda_allocate(uint64_t *address, uint64_t size_bytes)
{
    uint64_t flags, counted_bytes = size_bytes;
    bool is_spill = false;
    int answer;

    cuda_resolve();
    if (!address || !size_bytes)
        return REAL(cuMemAlloc_v2)(address, size_bytes);
    cuda_note_context();
    if (session.phase == PHASE_GATED) {
        *address = memory_allocate_in_lane(size_bytes, LANE_ALIGN, &is_spill);
        if (*address)
            return CUDA_OK;
    }
    if (size_bytes > SMALL_BYTES_MAX)
        counted_bytes = round_up(size_bytes, CUDA_GRANULE_BYTES);
    if (!memory_fits_cap(counted_bytes))
        return CUDA_OUT_OF_MEMORY;
    flags = is_spill ? BLOCK_SPILL : 0;
    if (session.phase == PHASE_GATED && size_bytes > SMALL_BYTES_MAX) {
        answer = own_allocate(counted_bytes, address);
        flags |= BLOCK_OWN_RANGE;
    } else {
        answer = REAL(cuMemAlloc_v2)(address, size_bytes);
        if (!answer && note_shadow(*address, counted_bytes))
            return CUDA_OK;
    }
    if (!answer)
        memory_note_private(&blocks, *address, counted_bytes, flags);
    return answer;
}

static int release(uint64_t address)
{
    uint64_t noted;

    if (memory_free_in_lane(address))
        return CUDA_OK;
    if (measured_blocks.used_count)
        forget_shadow(address);
    noted = memory_forget_private(&blocks, address);
    return noted & BLOCK_OWN_RANGE ? own_free(address) : REAL(cuMemFree_v2)(address);
}

bool cuda_is_placed(uint64_t address)
{
    return salus_is_lane((void *)address) || own_holds(address);
}

WRAP(cuMemAlloc_v2, uint64_t *address, size_t size_bytes)
{
    return cuda_allocate(address, size_bytes);
}

WRAP(cuMemAllocPitch_v2, uint64_t *address, size_t *pitch, size_t width, size_t height,
     unsigned int element_bytes)
{
    (void)element_bytes;
    if (!pitch)
        return CUDA_INVALID_VALUE;
    *pitch = round_up(width, LANE_ALIGN);
    return cuda_allocate(address, *pitch * height);
}

WRAP(cuMemFree_v2, uint64_t address)
{
    cuda_resolve();
    /* Like the driver, we free a block only after the work that may use it has ended. No work runs
     * while the lane is lent. */
    if (cuda_is_placed(address) && (!session.lane || session.lane->is_open))
        REAL(cuCtxSynchronize)();
    return release(address);
}

static int allocate_async(uint64_t *address, size_t size_bytes, cuda_word stream,
                          enum cuda_place real)
{
    cuda_resolve();
    if (session.phase != PHASE_GATED || capture_has(stream))
        return ((cuda_function)cuda_table[real])(address, size_bytes, stream);
    return cuda_allocate(address, size_bytes);
}

WRAP(cuMemAllocAsync, uint64_t *address, size_t size_bytes, cuda_word stream)
{
    return allocate_async(address, size_bytes, stream, REAL_cuMemAllocAsync);
}

WRAP(cuMemAllocAsync_ptsz, uint64_t *address, size_t size_bytes, cuda_word stream)
{
    return allocate_async(address, size_bytes, stream, REAL_cuMemAllocAsync_ptsz);
}

/* True for blocks of cuda_allocate. All others come from the driver's pool. */
static bool is_noted(uint64_t address)
{
    bool is_found;

    pthread_mutex_lock(&session.memory_lock);
    is_found = blocks_hold(&blocks, address);
    pthread_mutex_unlock(&session.memory_lock);
    return is_found || cuda_is_placed(address);
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

/* Managed memory may move between host and device, so it is not in the lane; it is counted. */
WRAP(cuMemAllocManaged, uint64_t *address, size_t size_bytes, unsigned int flags)
{
    int answer;

    cuda_resolve();
    if (!memory_fits_cap(size_bytes))
        return CUDA_OUT_OF_MEMORY;
    answer = REAL(cuMemAllocManaged)(address, size_bytes, (cuda_word)flags);
    if (!answer)
        memory_note_private(&blocks, *address, size_bytes, 0);
    return answer;
}

WRAP(cuMemCreate, uint64_t *handle, size_t size_bytes, const void *prop, unsigned long long flags)
{
    int answer;

    cuda_resolve();
    if (!memory_fits_cap(size_bytes))
        return CUDA_OUT_OF_MEMORY;
    answer = REAL(cuMemCreate)(handle, size_bytes, prop, (cuda_word)flags);
    if (!answer)
        memory_note_private(&handles, *handle, size_bytes, 0);
    return answer;
}

/* The memory counts until its handle is released. A mapping may outlive the handle; salusd measures
 * that. */
WRAP(cuMemRelease, uint64_t handle)
{
    cuda_resolve();
    memory_forget_private(&handles, handle);
    return REAL(cuMemRelease)(handle);
}

/* Reports as free what this session may still allocate: a framework that allocates a share of the
 * free memory must not take the memory of others. */
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
    left_bytes = memory_persistent_bytes();
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
