#define _GNU_SOURCE
#include "region.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A free extent of the right size may be too small once the block is aligned. After this many of
 * them we look for size + alignment. */
#define MISFITS_MAX 8

static struct region_extent *at(const struct region *region, uint32_t index)
{
    return &region->extents[index];
}

static uint64_t own_fit(const struct region_extent *extent)
{
    return extent->is_used ? 0 : extent->size_bytes;
}

static uint64_t subtree_fit(const struct region *region, uint32_t index)
{
    const struct region_extent *extent = at(region, index);
    uint64_t fit_bytes = own_fit(extent);

    /* The fit of index 0 is always 0, so absent children need no test. */
    if (at(region, extent->left)->fit_bytes > fit_bytes)
        fit_bytes = at(region, extent->left)->fit_bytes;
    if (at(region, extent->right)->fit_bytes > fit_bytes)
        fit_bytes = at(region, extent->right)->fit_bytes;
    return fit_bytes;
}

static void refit(struct region *region, uint32_t index)
{
    while (index) {
        uint64_t fit_bytes = subtree_fit(region, index);

        if (fit_bytes == at(region, index)->fit_bytes)
            return;
        at(region, index)->fit_bytes = fit_bytes;
        index = at(region, index)->parent;
    }
}

static void replace_child(struct region *region, uint32_t parent, uint32_t old, uint32_t new)
{
    if (!parent)
        region->root = new;
    else if (at(region, parent)->left == old)
        at(region, parent)->left = new;
    else
        at(region, parent)->right = new;
    if (new)
        at(region, new)->parent = parent;
}

/* Moves `child` above its parent; the order by offset stays. */
static void rotate_up(struct region *region, uint32_t child)
{
    uint32_t parent = at(region, child)->parent;
    uint32_t inner;

    replace_child(region, at(region, parent)->parent, parent, child);
    if (at(region, parent)->left == child) {
        inner = at(region, child)->right;
        at(region, parent)->left = inner;
        at(region, child)->right = parent;
    } else {
        inner = at(region, child)->left;
        at(region, parent)->right = inner;
        at(region, child)->left = parent;
    }
    if (inner)
        at(region, inner)->parent = parent;
    at(region, parent)->parent = child;
    at(region, parent)->fit_bytes = subtree_fit(region, parent);
    at(region, child)->fit_bytes = subtree_fit(region, child);
}

static uint32_t next_weight(struct region *region)
{
    region->seed ^= region->seed << 13;
    region->seed ^= region->seed >> 7;
    region->seed ^= region->seed << 17;
    return (uint32_t)(region->seed >> 32);
}

/* Allocates `count` nodes in advance, so that a change cannot fail half-way. */
static int reserve(struct region *region, uint32_t count)
{
    struct region_extent *extents;
    uint32_t index, capacity_count;
    uint32_t spare = region->spare;

    while (spare && count) {
        spare = at(region, spare)->after;
        count--;
    }
    if (!count)
        return 0;
    capacity_count = region->capacity_count ? region->capacity_count * 2 : 256;
    extents = realloc(region->extents, (size_t)capacity_count * sizeof(*extents));
    if (!extents)
        return -ENOMEM;
    region->extents = extents;
    index = region->capacity_count ? region->capacity_count : 1;
    if (!region->capacity_count)
        memset(&extents[0], 0, sizeof(extents[0]));
    for (; index < capacity_count; index++) {
        extents[index].after = region->spare;
        region->spare = index;
    }
    region->capacity_count = capacity_count;
    return 0;
}

static uint32_t new_extent(struct region *region, uint64_t offset_bytes, uint64_t size_bytes)
{
    uint32_t index = region->spare;
    struct region_extent *extent = at(region, index);

    region->spare = extent->after;
    memset(extent, 0, sizeof(*extent));
    extent->offset_bytes = offset_bytes;
    extent->size_bytes = size_bytes;
    extent->fit_bytes = size_bytes;
    extent->weight = next_weight(region);
    return index;
}

/* Links `index` directly after `before` (0: first) in the order, and into the treap. */
static void link_after(struct region *region, uint32_t before, uint32_t index)
{
    struct region_extent *extent = at(region, index);
    uint32_t after = before ? at(region, before)->after : region->first;
    uint32_t parent;

    extent->before = before;
    extent->after = after;
    if (before)
        at(region, before)->after = index;
    else
        region->first = index;
    if (after)
        at(region, after)->before = index;

    /* Of two neighbours by offset one has no child on the side that faces the other. */
    if (before && !at(region, before)->right) {
        parent = before;
        at(region, parent)->right = index;
    } else if (after) {
        parent = after;
        at(region, parent)->left = index;
    } else {
        parent = 0;
        region->root = index;
    }
    extent->parent = parent;
    refit(region, parent);
    while (extent->parent && at(region, extent->parent)->weight < extent->weight)
        rotate_up(region, index);
}

static void unlink_extent(struct region *region, uint32_t index)
{
    struct region_extent *extent = at(region, index);
    uint32_t parent;

    while (extent->left && extent->right) {
        bool is_left = at(region, extent->left)->weight > at(region, extent->right)->weight;

        rotate_up(region, is_left ? extent->left : extent->right);
    }
    parent = extent->parent;
    replace_child(region, parent, index, extent->left ? extent->left : extent->right);
    refit(region, parent);

    if (extent->before)
        at(region, extent->before)->after = extent->after;
    else
        region->first = extent->after;
    if (extent->after)
        at(region, extent->after)->before = extent->before;
    extent->is_used = false;
    extent->after = region->spare;
    region->spare = index;
}

static uint32_t last_extent(const struct region *region)
{
    uint32_t index = region->root;

    while (index && at(region, index)->right)
        index = at(region, index)->right;
    return index;
}

int region_limit(struct region *region, uint64_t limit_bytes)
{
    uint32_t last;
    uint64_t added_bytes;

    limit_bytes &= ~(uint64_t)(REGION_PAGE_BYTES - 1);
    region->limit_bytes = limit_bytes;
    if (limit_bytes <= region->span_bytes)
        return 0;
    if (reserve(region, 1))
        return -ENOMEM;
    added_bytes = limit_bytes - region->span_bytes;
    last = last_extent(region);
    if (last && !at(region, last)->is_used) {
        at(region, last)->size_bytes += added_bytes;
        refit(region, last);
    } else {
        link_after(region, last, new_extent(region, region->span_bytes, added_bytes));
    }
    region->span_bytes = limit_bytes;
    return 0;
}

int region_open(struct region *region, uint64_t limit_bytes)
{
    memset(region, 0, sizeof(*region));
    /* A fixed seed: the same job lays its blocks out the same way in every run. */
    region->seed = 0x9e3779b97f4a7c15u;
    if (reserve(region, 1))
        return -ENOMEM;
    return region_limit(region, limit_bytes);
}

void region_drop(struct region *region)
{
    free(region->extents);
    memset(region, 0, sizeof(*region));
}

/* The lowest free extent at or above `from_bytes` with at least `size_bytes`, or 0. */
static uint32_t lowest_fit(const struct region *region, uint32_t index, uint64_t from_bytes,
                           uint64_t size_bytes)
{
    uint32_t fallback = 0;

    /*
     * Walk towards from_bytes. Where we turn left, the extent and its right subtree lie at or above
     * from_bytes. Remember the lowest such place that has a fit; then take the extent itself, or
     * the leftmost fit in its right subtree.
     */
    while (index) {
        const struct region_extent *extent = at(region, index);

        if (extent->offset_bytes < from_bytes) {
            index = extent->right;
        } else {
            if (own_fit(extent) >= size_bytes || at(region, extent->right)->fit_bytes >= size_bytes)
                fallback = index;
            index = extent->left;
        }
    }
    if (!fallback)
        return 0;
    if (own_fit(at(region, fallback)) >= size_bytes)
        return fallback;
    index = at(region, fallback)->right;
    for (;;) {
        const struct region_extent *extent = at(region, index);

        if (at(region, extent->left)->fit_bytes >= size_bytes)
            index = extent->left;
        else if (own_fit(extent) >= size_bytes)
            return index;
        else
            index = extent->right;
    }
}

/* A free extent in which an aligned block of this size fits, or 0. */
static uint32_t find_room(const struct region *region, uint64_t size_bytes, uint64_t align_bytes)
{
    uint64_t from_bytes = 0;
    uint32_t index;
    int misfits;

    for (misfits = 0; misfits < MISFITS_MAX; misfits++) {
        const struct region_extent *extent;
        uint64_t lost_bytes;

        index = lowest_fit(region, region->root, from_bytes, size_bytes);
        if (!index)
            return 0;
        extent = at(region, index);
        lost_bytes = round_up(extent->offset_bytes, align_bytes) - extent->offset_bytes;
        if (extent->size_bytes - size_bytes >= lost_bytes)
            return index;
        from_bytes = extent->offset_bytes + 1;
    }
    return lowest_fit(region, region->root, from_bytes, size_bytes + align_bytes);
}

static uint64_t touched_bytes(const struct region_extent *extent)
{
    uint64_t first_page = extent->offset_bytes / REGION_PAGE_BYTES;

    return round_up(extent->offset_bytes + extent->size_bytes, REGION_PAGE_BYTES) -
           first_page * REGION_PAGE_BYTES;
}

static uint32_t link_used(struct region *region, uint32_t before, uint64_t offset_bytes,
                          uint64_t size_bytes)
{
    uint32_t index = new_extent(region, offset_bytes, size_bytes);

    at(region, index)->is_used = true;
    at(region, index)->fit_bytes = 0;
    link_after(region, before, index);
    return index;
}

/* Makes [offset, offset + size) of the free extent `index` a used extent of its own; two nodes are
 * reserved. */
static uint32_t split_block(struct region *region, uint32_t index, uint64_t offset_bytes,
                            uint64_t size_bytes)
{
    struct region_extent *extent = at(region, index);
    uint64_t tail_bytes = extent->offset_bytes + extent->size_bytes - offset_bytes - size_bytes;
    uint32_t used;

    if (offset_bytes > extent->offset_bytes) {
        extent->size_bytes = offset_bytes - extent->offset_bytes;
        refit(region, index);
        used = link_used(region, index, offset_bytes, size_bytes);
        if (tail_bytes)
            link_after(region, used, new_extent(region, offset_bytes + size_bytes, tail_bytes));
        return used;
    }
    if (tail_bytes) {
        /* The free extent keeps its node and its place in the order: only its front moves. */
        extent->offset_bytes += size_bytes;
        extent->size_bytes = tail_bytes;
        refit(region, index);
        return link_used(region, extent->before, offset_bytes, size_bytes);
    }
    extent->is_used = true;
    refit(region, index);
    return index;
}

uint64_t region_allocate(struct region *region, uint64_t size_bytes, uint64_t align_bytes,
                         uint64_t birth)
{
    uint64_t wanted_bytes = size_bytes;
    struct region_extent *extent;
    uint64_t offset_bytes;
    uint32_t index;

    if (!size_bytes || size_bytes > region->limit_bytes)
        return REGION_NONE;
    if (align_bytes < REGION_LINE_BYTES)
        align_bytes = REGION_LINE_BYTES;
    size_bytes = round_up(size_bytes, REGION_LINE_BYTES);
    if (size_bytes >= REGION_PAGE_BYTES) {
        size_bytes = round_up(size_bytes, REGION_PAGE_BYTES);
        if (align_bytes < REGION_PAGE_BYTES)
            align_bytes = REGION_PAGE_BYTES;
    }
    index = find_room(region, size_bytes, align_bytes);
    if (!index || reserve(region, 2))
        return REGION_NONE;
    extent = at(region, index);
    offset_bytes = round_up(extent->offset_bytes, align_bytes);
    /* Any other fit lies higher still. */
    if (offset_bytes + size_bytes > region->limit_bytes)
        return REGION_NONE;

    index = split_block(region, index, offset_bytes, size_bytes);
    extent = at(region, index);
    extent->is_promoted = false;
    extent->wanted_bytes = wanted_bytes;
    extent->birth = birth;
    region->used_bytes += extent->size_bytes;
    region->page_bytes += touched_bytes(extent);
    region->used_count++;
    if (offset_bytes + size_bytes > region->high_bytes)
        region->high_bytes = offset_bytes + size_bytes;
    return offset_bytes;
}

struct region_extent *region_find(const struct region *region, uint64_t offset_bytes)
{
    uint32_t index = region->root;

    while (index) {
        struct region_extent *extent = at(region, index);

        if (extent->offset_bytes == offset_bytes)
            return extent->is_used ? extent : NULL;
        index = offset_bytes < extent->offset_bytes ? extent->left : extent->right;
    }
    return NULL;
}

uint64_t region_free(struct region *region, uint64_t offset_bytes)
{
    struct region_extent *extent = region_find(region, offset_bytes);
    uint64_t wanted_bytes, grown_bytes;
    uint32_t index, before, after;

    if (!extent)
        return REGION_NONE;
    wanted_bytes = extent->wanted_bytes;
    region->used_bytes -= extent->size_bytes;
    region->page_bytes -= touched_bytes(extent);
    region->used_count--;
    index = (uint32_t)(extent - region->extents);
    before = extent->before;
    after = extent->after;
    grown_bytes = extent->size_bytes;
    /* Unlink first, then grow: refit stops at the first node that is right, so only one node may be
     * wrong at a time. */
    if (after && !at(region, after)->is_used) {
        grown_bytes += at(region, after)->size_bytes;
        unlink_extent(region, after);
    }
    if (before && !at(region, before)->is_used) {
        unlink_extent(region, index);
        index = before;
        grown_bytes += at(region, before)->size_bytes;
    }
    at(region, index)->is_used = false;
    at(region, index)->wanted_bytes = 0;
    at(region, index)->size_bytes = grown_bytes;
    refit(region, index);
    return wanted_bytes;
}

struct region_extent *region_next(const struct region *region, const struct region_extent *extent)
{
    uint32_t index = extent ? extent->after : region->first;

    while (index && !at(region, index)->is_used)
        index = at(region, index)->after;
    return index ? at(region, index) : NULL;
}

uint64_t region_promote(struct region *region, uint64_t iteration)
{
    struct region_extent *block = NULL;
    uint64_t count = 0;

    while ((block = region_next(region, block)))
        if (!block->is_promoted && block->birth + 2 <= iteration) {
            block->is_promoted = true;
            count++;
        }
    return count;
}
