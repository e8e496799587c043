/*
 * A lane on a GPU: the same interface as on host memory (lane.h), on the driver's virtual memory
 * management.
 *
 * The address range is reserved once, and the lane's memory is mapped into it whole. The stash is a
 * copy: only work on the device touches device memory, and work waits while the lane is lent, so
 * survivors can be copied back when the lane returns. A caching framework keeps whole segments and
 * knows which blocks in them are live; its list limits what is copied (salus_cuda_live). Blocks
 * that the list does not name are copied whole.
 */
#define _GNU_SOURCE
#include "lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"
#include "cuda_lane.h"
#include "cuda_share.h"
#include "cuda_work.h"
#include "gate.h"
#include "session.h"
#include "trap.h"

#define POSIX_FD 1

struct piece {
    uint64_t offset_bytes, size_bytes;
};

/* Survivors outside the lane; guarded by memory_lock. */
static struct {
    struct piece *pieces;
    uint32_t count;
    uint64_t address;
    uint64_t size_bytes;
} stash;

/* The adaptor's list, valid for one boundary; guarded by memory_lock. */
static struct {
    struct salus_cuda_range *segments, *blocks;
    uint32_t segment_count, block_count;
    uint64_t iteration; /* in which it was made */
} live;

int cuda_map(uint64_t address, uint64_t size_bytes, uint64_t handle)
{
    struct {
        int type, id, flags;
    } access = {1, cuda_device(), 3};
    int answer = REAL(cuMemMap)(address, size_bytes, (cuda_word)0, handle, (cuda_word)0);

    if (!answer) {
        answer = REAL(cuMemSetAccess)(address, size_bytes, &access, (cuda_word)1);
        if (answer)
            REAL(cuMemUnmap)(address, size_bytes);
    }
    return answer;
}

int cuda_create(uint64_t size_bytes, uint64_t *handle)
{
    struct {
        int type, handle_types, location_type, location_id;
        void *metadata;
        unsigned char flags[8];
    } prop = {1, 0, 1, cuda_device(), NULL, {0}};

    return REAL(cuMemCreate)(handle, size_bytes, &prop, (cuda_word)0);
}

int lane_reserve(struct lane *lane, uint64_t bytes)
{
    uint64_t base = 0;
    int error;

    memset(lane, 0, sizeof(*lane));
    lane->fd = -1;
    bytes = round_up(bytes, CUDA_GRANULE_BYTES);
    error = region_open(&lane->region, 0);
    if (error)
        return error;
    error = cuda_push();
    if (!error) {
        if (REAL(cuMemAddressReserve)(&base, bytes, (cuda_word)0, (cuda_word)0, (cuda_word)0))
            error = -ENOMEM;
        cuda_pop();
    }
    if (error) {
        region_drop(&lane->region);
        return error;
    }
    lane->reserve_bytes = bytes;
    lane->base = (char *)base;
    return 0;
}

/* Ungated: the driver places the blocks, and the region only measures what a lane would need
 * (memory_cuda.c). */
int lane_map_self(struct lane *lane, uint64_t bytes)
{
    return lane_limit_self(lane, bytes);
}

int lane_map(struct lane *lane, int fd, uint64_t id, uint64_t epoch, uint64_t bytes,
             uint64_t limit_bytes)
{
    uint64_t handle;
    int error;

    if (bytes > lane->reserve_bytes || bytes % CUDA_GRANULE_BYTES)
        return -EINVAL;
    if (lane->mapped_bytes)
        lane_unmap(lane);
    error = region_limit(&lane->region, limit_bytes < bytes ? limit_bytes : bytes);
    if (!error)
        error = cuda_push();
    if (error)
        return error;
    if (REAL(cuMemImportFromShareableHandle)(&handle, (cuda_word)(unsigned int)fd,
                                             (cuda_word)POSIX_FD)) {
        error = -EBADF;
    } else {
        if (cuda_map((uint64_t)lane->base, bytes, handle))
            error = -ENOMEM;
        REAL(cuMemRelease)(handle);
    }
    cuda_pop();
    if (error)
        return error;
    lane->mapped_bytes = bytes;
    lane_note_mapped(lane, fd, id, epoch);
    return 0;
}

static void drop_stash(struct lane *lane)
{
    if (stash.address)
        REAL(cuMemFree_v2)(stash.address);
    free(stash.pieces);
    memset(&stash, 0, sizeof(stash));
    lane->private_pages = 0;
}

/* Copies between the lane and the stash. Returns 0 or the driver's code. */
static int move_pieces(const struct lane *lane, bool is_out)
{
    uint64_t at = stash.address;
    uint32_t index;
    int answer = 0;

    for (index = 0; index < stash.count && !answer; index++) {
        const struct piece *piece = &stash.pieces[index];
        uint64_t there = (uint64_t)lane->base + piece->offset_bytes;

        answer = REAL(cuMemcpyDtoD_v2)(is_out ? at : there, is_out ? there : at, piece->size_bytes);
        at += piece->size_bytes;
    }
    return answer ? answer : REAL(cuCtxSynchronize)();
}

/* When Salus leaves a job, its blocks get memory of the job's own at the same addresses. */
static void privatise(struct lane *lane)
{
    uint64_t bytes = round_up(lane->region.high_bytes, CUDA_GRANULE_BYTES), handle;

    if (!stash.count || cuda_create(bytes, &handle))
        return;
    if (!cuda_map((uint64_t)lane->base, bytes, handle) && !move_pieces(lane, false))
        drop_stash(lane);
    REAL(cuMemRelease)(handle);
    work_open();
}

void lane_unmap(struct lane *lane)
{
    lane->is_open = false;
    if (!cuda_push()) {
        if (lane->mapped_bytes && !lane->is_self)
            REAL(cuMemUnmap)(lane->base, lane->mapped_bytes);
        if (session.phase == PHASE_OFF)
            privatise(lane);
        cuda_pop();
    }
    lane_note_unmapped(lane);
}

int lane_open(struct lane *lane)
{
    int answer = 0;

    if (stash.count && !cuda_push()) {
        answer = move_pieces(lane, false);
        drop_stash(lane);
        cuda_pop();
    }
    lane->is_open = true;
    work_open();
    return answer ? -EIO : 0;
}

void lane_shut(struct lane *lane)
{
    if (lane->is_self)
        return;
    work_close();
    lane->is_open = false;
}

/* The driver does not survive fork: the child has no device memory and must not call the driver. */
void lane_disown(struct lane *lane)
{
    lane->mapped_bytes = 0;
    lane->is_open = false;
    work_open();
}

static bool is_named(uint64_t address)
{
    uint32_t index;

    if (live.iteration != session.gate.iteration_count)
        return false;
    for (index = 0; index < live.segment_count; index++)
        if (live.segments[index].address == address)
            return true;
    return false;
}

/* Appends the live blocks of the framework's list that lie in this block. Returns the new count. */
static uint32_t add_named(const struct lane *lane, const struct region_extent *block,
                          struct piece *pieces, uint32_t count)
{
    uint64_t start = (uint64_t)lane->base + block->offset_bytes;
    uint32_t index;

    for (index = 0; index < live.block_count; index++) {
        const struct salus_cuda_range *range = &live.blocks[index];

        if (range->address - start < block->size_bytes &&
            range->size_bytes <= block->size_bytes - (range->address - start))
            pieces[count++] =
                (struct piece){range->address - (uint64_t)lane->base, range->size_bytes};
    }
    return count;
}

/* What must be kept, by offset, with its piece count and its size. NULL if out of memory. */
static struct piece *list_pieces(const struct lane *lane, uint32_t *count, uint64_t *size_bytes)
{
    const struct region_extent *block = NULL;
    struct piece *pieces;
    uint32_t index;

    *count = 0;
    *size_bytes = 0;
    /* A range of the list lies in one block at most. */
    pieces = calloc(lane->region.used_count + live.block_count + 1, sizeof(*pieces));
    while (pieces && (block = region_next(&lane->region, block))) {
        if (is_named((uint64_t)lane->base + block->offset_bytes))
            *count = add_named(lane, block, pieces, *count);
        else
            pieces[(*count)++] = (struct piece){block->offset_bytes, block->size_bytes};
    }
    for (index = 0; index < *count; index++)
        *size_bytes += pieces[index].size_bytes;
    return pieces;
}

uint64_t stash_total_bytes(struct lane *lane)
{
    uint64_t size_bytes;
    uint32_t count;

    free(list_pieces(lane, &count, &size_bytes));
    return size_bytes;
}

int stash_keep(struct lane *lane, uint64_t iteration, bool is_guarded)
{
    uint64_t size_bytes = 0;
    uint32_t count = 0;
    int error = -ENOMEM;

    (void)is_guarded; /* no other thread can touch the device: its calls wait */
    if (lane->is_self || !lane->is_open)
        return 0;
    /* Waiting for the device would invalidate the capture. The lane is returned at a later
     * boundary.
     */
    if (capture_is_open())
        return -EBUSY;
    if (work_close() || cuda_push()) {
        work_open();
        return -EIO;
    }
    lane->promotion_count += region_promote(&lane->region, iteration);
    stash.pieces = list_pieces(lane, &count, &size_bytes);
    if (stash.pieces && count &&
        !REAL(cuMemAlloc_v2)(&stash.address, size_bytes ? size_bytes : (cuda_word)1)) {
        stash.count = count;
        stash.size_bytes = size_bytes;
        error = move_pieces(lane, true) ? -EIO : 0;
    } else if (stash.pieces && !count) {
        error = 0;
    }
    if (error || !count)
        drop_stash(lane);
    cuda_pop();
    if (error) {
        work_open();
        return error;
    }
    lane->private_pages = (size_bytes + REGION_PAGE_BYTES - 1) / REGION_PAGE_BYTES;
    lane->copied_bytes += size_bytes;
    return 0;
}

void stash_before_fork(struct lane *lane, uint64_t iteration)
{
    (void)lane;
    (void)iteration; /* a child has no device memory at all */
}

/* A block that is freed while the lane is lent is copied back with the others. That is harmless:
 * the lane is ours again, and the bytes are free. */
void stash_forget(struct lane *lane, uint64_t offset_bytes, uint64_t size_bytes)
{
    (void)lane;
    (void)offset_bytes;
    (void)size_bytes;
}

int trap_install(void)
{
    return 0; /* the CPU never touches device memory */
}

static struct salus_cuda_range *copy_ranges(const struct salus_cuda_range *from, uint32_t count)
{
    struct salus_cuda_range *to = calloc(count ? count : 1, sizeof(*to));

    if (to && count)
        memcpy(to, from, count * sizeof(*to));
    return to;
}

static void forget_live(void)
{
    free(live.segments);
    free(live.blocks);
    memset(&live, 0, sizeof(live));
}

int salus_cuda_live(const struct salus_cuda_range *segments, uint32_t segment_count,
                    const struct salus_cuda_range *blocks, uint32_t block_count)
{
    int error = 0;

    pthread_mutex_lock(&session.memory_lock);
    forget_live();
    live.segments = copy_ranges(segments, segment_count);
    live.blocks = copy_ranges(blocks, block_count);
    if (live.segments && live.blocks) {
        live.segment_count = segment_count;
        live.block_count = block_count;
        live.iteration = session.gate.iteration_count;
    } else {
        forget_live();
        error = -ENOMEM;
    }
    pthread_mutex_unlock(&session.memory_lock);
    return error;
}

int salus_cuda_will_yield(void)
{
    const struct gate *gate = &session.gate;
    uint64_t word;

    if (session.phase != PHASE_GATED || !gate->lease_seen)
        return 0;
    word = __atomic_load_n(&gate->page->lease, __ATOMIC_SEQ_CST);
    return word >> 32 != (uint32_t)gate->epoch || gate->started_count >= (uint32_t)word;
}
