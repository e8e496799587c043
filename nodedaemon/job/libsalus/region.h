/*
 * Allocator over the offsets [0, limit) of a lane.
 *
 * Metadata is kept outside lane memory, so it survives while other sessions use the lane or it is
 * unmapped. The lowest fitting offset is used, because E is the highest offset ever used.
 * Allocating and freeing are O(log n) in the number of extents. Not thread-safe: the caller holds a
 * lock.
 */
#ifndef SALUS_REGION_H
#define SALUS_REGION_H

#include <stdbool.h>
#include <stdint.h>

#define REGION_NONE       UINT64_MAX
#define REGION_PAGE_BYTES 4096u
#define REGION_LINE_BYTES 64u /* smallest alignment, and what sizes are rounded up to */

/* `unit` is a power of two. */
static inline uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

struct region_extent {
    uint64_t offset_bytes;
    uint64_t size_bytes;   /* rounded */
    uint64_t wanted_bytes; /* requested size; 0 while free */
    uint64_t fit_bytes;    /* largest free extent in the subtree */
    uint64_t birth;        /* iteration in which it was allocated */
    uint32_t left, right, parent;
    uint32_t before, after; /* neighbours by offset */
    uint32_t weight;        /* heap order of the treap */
    bool is_used;
    bool is_promoted; /* counted as promoted already */
};

struct region {
    struct region_extent *extents; /* index 0 means none */
    uint32_t capacity_count;
    uint32_t spare; /* list of unused nodes through `after` */
    uint32_t root;
    uint32_t first;
    uint64_t limit_bytes;
    uint64_t span_bytes; /* offsets that the extents cover */
    uint64_t high_bytes; /* end of the highest block so far */
    uint64_t used_bytes; /* rounded sizes of live blocks */
    uint64_t page_bytes; /* bytes of pages that live blocks may touch: at most what a stash needs */
    uint64_t used_count;
    uint64_t seed;
};

/* 0, or -ENOMEM. A zeroed region is valid for region_drop. */
int region_open(struct region *region, uint64_t limit_bytes);
void region_drop(struct region *region);

/* Sets the limit for new blocks. Live blocks above a lowered limit stay. 0, or -ENOMEM. */
int region_limit(struct region *region, uint64_t limit_bytes);

/*
 * Allocates a block. Returns its offset, or REGION_NONE. `align_bytes` is a power of two. Blocks of
 * a page or more get whole pages of their own, so that a stash copies no neighbour with them.
 */
uint64_t region_allocate(struct region *region, uint64_t size_bytes, uint64_t align_bytes,
                         uint64_t birth);

/* Frees the block at exactly this offset. Returns its requested size, or REGION_NONE if there is no
 * such block. */
uint64_t region_free(struct region *region, uint64_t offset_bytes);

/* The live block at exactly this offset, or NULL. Valid until the next allocate or free. */
struct region_extent *region_find(const struct region *region, uint64_t offset_bytes);

/* The live block after `extent` by offset, or NULL after the last one. NULL starts with the first.
 */
struct region_extent *region_next(const struct region *region, const struct region_extent *extent);

/* Marks blocks that are two or more iterations old as promoted. Returns how many are new. */
uint64_t region_promote(struct region *region, uint64_t iteration);

#endif
