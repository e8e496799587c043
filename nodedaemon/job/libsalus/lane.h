/*
 * A lane as this process sees it: a fixed range of addresses, its blocks, and for each page whether
 * the lane's memory or private memory lies behind it.
 *
 * The stash is in place. When the grant is returned, the pages of survivors are copied to private
 * pages at the same addresses. A survivor can be read and written at any time, and nothing is
 * copied back. At the next stash a private page without a live block becomes lane memory again; a
 * block that stays longer counts as promoted. The caller holds session.memory_lock throughout.
 */
#ifndef SALUS_LANE_H
#define SALUS_LANE_H

#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "region.h"

struct lane {
    char *base; /* NULL: not reserved */
    uint64_t reserve_bytes;
    uint64_t id;
    uint64_t epoch;
    uint64_t mapped_bytes; /* 0: no lane memory here, the range is unreadable */
    int fd;
    bool is_self;    /* private memory laid out like a lane, to measure an ungated session */
    bool is_open;    /* the grant is held: blocks may be allocated and accessed */
    bool is_trapped; /* unreadable while not open */
    struct region region;
    uint64_t *private_bits; /* one bit per page: private memory is there */
    uint64_t *needed_bits;  /* scratch of the stash; all zero between calls */
    uint64_t private_pages;
    uint64_t copied_bytes;
    uint64_t promotion_count;
    /* 1 while pages are write-protected for copying: a fault then waits (trap.c). */
    uint32_t copying;
};

struct lane_run {
    uint64_t page;
    uint64_t page_count;
};

/* For the two implementations: the lane is mapped now, or no longer. */
static inline void lane_note_mapped(struct lane *lane, int fd, uint64_t id, uint64_t epoch)
{
    lane->fd = fd;
    lane->id = id;
    lane->epoch = epoch;
}

static inline void lane_note_unmapped(struct lane *lane)
{
    lane->mapped_bytes = 0;
    if (lane->fd >= 0)
        close(lane->fd);
    lane_note_mapped(lane, -1, 0, 0);
}

/* For the two implementations of lane_map_self. */
static inline int lane_limit_self(struct lane *lane, uint64_t bytes)
{
    lane->is_self = true;
    lane->is_open = true;
    lane->mapped_bytes = bytes;
    return region_limit(&lane->region, bytes);
}

/* Reserves addresses for lanes up to `bytes`. 0 or -errno. */
int lane_reserve(struct lane *lane, uint64_t bytes);

/* Backs [0, bytes) with private memory. No other session uses it. */
int lane_map_self(struct lane *lane, uint64_t bytes);

/* Maps the lane's memory behind every page that is not private. Owns `fd` on success. */
int lane_map(struct lane *lane, int fd, uint64_t id, uint64_t epoch, uint64_t bytes,
             uint64_t limit_bytes);

/* Unmaps the lane's memory; survivors must have been stashed. */
void lane_unmap(struct lane *lane);

/* The grant is held from now on / no longer. */
int lane_open(struct lane *lane);
void lane_shut(struct lane *lane);

/* In a forked child, which does not inherit lane memory: keeps the addresses reserved. */
void lane_disown(struct lane *lane);

static inline bool lane_holds(const struct lane *lane, const void *address)
{
    return (uintptr_t)address - (uintptr_t)lane->base < lane->reserve_bytes;
}

/*
 * True if a live block at this address may be touched now. Async-signal-safe, and takes no lock: a
 * survivor's page is marked private before the lane is shut, and this function checks in the
 * opposite order, so it never misses the page.
 */
bool lane_is_usable(const struct lane *lane, const void *address);

/* Finds the first run of pages in [page, end_page) whose bit is `is_set`. False if there is none.
 */
bool lane_find_run(const uint64_t *bits, uint64_t page, uint64_t end_page, bool is_set,
                   struct lane_run *run);

/* For stash.c: puts lane memory behind a run of pages, or only reserves its addresses. */
int lane_map_run(struct lane *lane, int fd, const struct lane_run *run);
int lane_reserve_run(struct lane *lane, const struct lane_run *run);

/* For stash.c: the current protection of lane memory. */
int lane_protection(const struct lane *lane);

/* Private bytes that the lane would have after stash_keep. O(live blocks). */
uint64_t stash_total_bytes(struct lane *lane);

/*
 * Makes the pages of all live blocks private, and makes private pages without a live block lane
 * memory again. With `is_guarded`, other threads may keep writing to the blocks meanwhile.
 * `iteration` is the current one: blocks allocated two or more before it count as promoted.
 * Returns 0 or -errno. If it fails, private pages stay private.
 */
int stash_keep(struct lane *lane, uint64_t iteration, bool is_guarded);

/* The process is about to fork: makes private what the child must still see. */
void stash_before_fork(struct lane *lane, uint64_t iteration);

/* A live block was freed. If the lane is not open, the block's own pages leave the stash at once.
 */
void stash_forget(struct lane *lane, uint64_t offset_bytes, uint64_t size_bytes);

#endif
