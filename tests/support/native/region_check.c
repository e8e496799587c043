/*
 * The allocator of libsalus with a check of its structure, for tests/property/test_region.py. It
 * includes region.c because the check needs that file's static functions.
 */
#include "region.c"

/* True if order, links, sums and heap are consistent. O(n). */
bool region_is_sound(const struct region *region);

bool region_is_sound(const struct region *region)
{
    uint64_t offset_bytes = 0, used_bytes = 0, page_bytes = 0, used_count = 0;
    uint32_t index, before = 0;
    bool was_free = false;

    for (index = region->first; index; index = at(region, index)->after) {
        const struct region_extent *extent = at(region, index);

        if (extent->offset_bytes != offset_bytes || !extent->size_bytes || extent->before != before)
            return false;
        if (was_free && !extent->is_used)
            return false;
        if (extent->fit_bytes != subtree_fit(region, index))
            return false;
        if (extent->parent ? at(region, extent->parent)->weight < extent->weight
                           : region->root != index)
            return false;
        if (extent->left && at(region, extent->left)->offset_bytes >= extent->offset_bytes)
            return false;
        if (extent->right && at(region, extent->right)->offset_bytes <= extent->offset_bytes)
            return false;
        if (extent->is_used) {
            used_bytes += extent->size_bytes;
            page_bytes += touched_bytes(extent);
            used_count++;
        }
        was_free = !extent->is_used;
        offset_bytes += extent->size_bytes;
        before = index;
    }
    return offset_bytes == region->span_bytes && used_bytes == region->used_bytes &&
           page_bytes == region->page_bytes && used_count == region->used_count &&
           at(region, 0)->fit_bytes == 0;
}
