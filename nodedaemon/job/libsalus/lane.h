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

#include "region.h"

struct lane {
    char *base; /* NULL: not reserved */
    uint64_t reserve_bytes;
    uint64_t id;
    uint64_t epoch;
    uint64_t mapped_bytes; /* 0: no lane memory here, the range is unreadable */
    int fd;
    bool is_self;    /* private memory laid out like a lane, to measure an ungated session */
    bool is_open;    /* the grant is held: blocks may be made and accessed */
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
 * True if a live block at this address may be touched now. Async-signal-safe and without the lock:
 * a survivor's page is marked private before the lane is shut, so looking in the opposite order
 * never misses it.
 */
bool lane_is_usable(const struct lane *lane, const void *address);

/* The first run of pages at or above `page` whose private bit is `is_private`; false if none below
 * `end_page`. */
bool lane_find_run(const uint64_t *bits, uint64_t page, uint64_t end_page, bool is_set,
                   struct lane_run *run);

/* What the stash needs of the mapping. */
int lane_map_run(struct lane *lane, int fd, const struct lane_run *run);
int lane_reserve_run(struct lane *lane, const struct lane_run *run);
int lane_protection(const struct lane *lane);

/* Private bytes that stash_keep would hold in the end. O(live blocks). */
uint64_t stash_total_bytes(struct lane *lane);

/*
 * Makes the pages of all live blocks private and gives private pages without one back to the lane.
 * With `is_guarded` other threads may go on writing to the blocks meanwhile. `iteration` counts
 * promotions: blocks born two or more before. 0 or -errno; on failure what was private stays
 * private.
 */
int stash_keep(struct lane *lane, uint64_t iteration, bool is_guarded);

/* The process is about to fork: what the child must still see becomes private. */
void stash_before_fork(struct lane *lane, uint64_t iteration);

/* A live block was freed while the lane is not open: its own pages leave the stash at once. */
void stash_forget(struct lane *lane, uint64_t offset_bytes, uint64_t size_bytes);

#endif
