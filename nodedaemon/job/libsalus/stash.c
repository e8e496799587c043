#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "lane.h"
#include "trap.h"

#define BITS_PER_WORD 64

static uint64_t first_page(const struct region_extent *block)
{
    return block->offset_bytes / REGION_PAGE_BYTES;
}

static uint64_t last_page(const struct region_extent *block)
{
    return (block->offset_bytes + block->size_bytes - 1) / REGION_PAGE_BYTES;
}

static void set_bits(uint64_t *bits, uint64_t page, uint64_t page_count, bool is_set)
{
    while (page_count) {
        uint64_t shift = page % BITS_PER_WORD;
        uint64_t count = page_count < BITS_PER_WORD - shift ? page_count : BITS_PER_WORD - shift;
        uint64_t mask = ~0ull >> (BITS_PER_WORD - count) << shift;
        uint64_t *word = &bits[page / BITS_PER_WORD];

        *word = is_set ? *word | mask : *word & ~mask;
        page += count;
        page_count -= count;
    }
}

static bool is_set_at(const uint64_t *bits, uint64_t page)
{
    return bits[page / BITS_PER_WORD] >> (page % BITS_PER_WORD) & 1;
}

bool lane_is_usable(const struct lane *lane, const void *address)
{
    uint64_t page = (uint64_t)((const char *)address - lane->base) / REGION_PAGE_BYTES;

    if (__atomic_load_n(&lane->is_open, __ATOMIC_SEQ_CST))
        return true;
    return is_set_at(lane->private_bits, page);
}

uint64_t stash_total_bytes(struct lane *lane)
{
    const struct region_extent *block = NULL;
    uint64_t page_count = 0, counted_page = UINT64_MAX;

    /* Blocks are visited by offset, so two that share a page follow each other. */
    while ((block = region_next(&lane->region, block))) {
        page_count += last_page(block) - first_page(block) + 1;
        if (first_page(block) == counted_page)
            page_count--;
        counted_page = last_page(block);
    }
    return page_count * REGION_PAGE_BYTES;
}

/* Puts a private copy at the addresses of one run. While lane->copying is set, a write to them
 * waits in the handler (trap.c). */
static int privatise_run(struct lane *lane, const struct lane_run *run)
{
    uint64_t size_bytes = run->page_count * REGION_PAGE_BYTES;
    char *address = lane->base + run->page * REGION_PAGE_BYTES;
    void *copy = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    int error;

    if (copy == MAP_FAILED)
        return -errno;
    if (lane->copying && mprotect(address, size_bytes, PROT_READ))
        goto fail;
    memcpy(copy, address, size_bytes);
    if (mremap(copy, size_bytes, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED)
        goto fail;
    set_bits(lane->private_bits, run->page, run->page_count, true);
    lane->private_pages += run->page_count;
    lane->copied_bytes += size_bytes;
    return 0;
fail:
    error = -errno;
    if (lane->copying)
        mprotect(address, size_bytes, lane_protection(lane));
    munmap(copy, size_bytes);
    return error;
}

static int return_run(struct lane *lane, const struct lane_run *run)
{
    struct lane_run part = *run;
    uint64_t end_page = lane->mapped_bytes / REGION_PAGE_BYTES;
    int error = 0;

    set_bits(lane->private_bits, run->page, run->page_count, false);
    lane->private_pages -= run->page_count;
    /* Above a lane that was made smaller there is no lane memory to put back. */
    if (part.page < end_page && part.page + part.page_count > end_page)
        part.page_count = end_page - part.page;
    if (part.page < end_page)
        error = lane_map_run(lane, lane->fd, &part);
    if (error)
        return error;
    part.page += part.page < end_page ? part.page_count : 0;
    part.page_count = run->page + run->page_count - part.page;
    return part.page_count ? lane_reserve_run(lane, &part) : 0;
}

static void mark_needed(struct lane *lane, bool is_needed)
{
    const struct region_extent *block = NULL;

    while ((block = region_next(&lane->region, block)))
        set_bits(lane->needed_bits, first_page(block), last_page(block) - first_page(block) + 1,
                 is_needed);
}

/* Calls `change` for each run of pages that is set in `bits` and not in `others`. 0 or -errno. */
static int change_runs(struct lane *lane, const uint64_t *bits, const uint64_t *others,
                       int (*change)(struct lane *, const struct lane_run *))
{
    uint64_t end_page = lane->reserve_bytes / REGION_PAGE_BYTES;
    uint64_t top_page = lane->region.high_bytes / REGION_PAGE_BYTES + 1;
    struct lane_run run = {0, 0}, part;
    int error = 0;

    if (top_page > end_page)
        top_page = end_page;
    while (!error && lane_find_run(bits, run.page + run.page_count, top_page, true, &run)) {
        part = (struct lane_run){run.page, 0};
        while (!error && lane_find_run(others, part.page + part.page_count,
                                       run.page + run.page_count, false, &part))
            error = change(lane, &part);
    }
    return error;
}

int stash_keep(struct lane *lane, uint64_t iteration, bool is_guarded)
{
    int error;

    if (lane->is_self || (!lane->region.used_count && !lane->private_pages))
        return 0;
    lane->promotion_count += region_promote(&lane->region, iteration);
    mark_needed(lane, true);
    /* Return pages first, so that there are never more private pages than before or after. */
    error = change_runs(lane, lane->private_bits, lane->needed_bits, return_run);
    __atomic_store_n(&lane->copying, is_guarded, __ATOMIC_SEQ_CST);
    if (!error)
        error = change_runs(lane, lane->needed_bits, lane->private_bits, privatise_run);
    __atomic_store_n(&lane->copying, 0, __ATOMIC_SEQ_CST);
    mark_needed(lane, false);
    return error;
}

void stash_before_fork(struct lane *lane, uint64_t iteration)
{
    trap_install();
    stash_keep(lane, iteration, lane->is_open);
}

void stash_forget(struct lane *lane, uint64_t offset_bytes, uint64_t size_bytes)
{
    struct lane_run run = {offset_bytes / REGION_PAGE_BYTES, size_bytes / REGION_PAGE_BYTES};

    /* Only blocks with pages of their own: the page of smaller blocks leaves at the next stash. */
    if (lane->is_self || lane->is_open || size_bytes < REGION_PAGE_BYTES)
        return;
    if (is_set_at(lane->private_bits, run.page))
        return_run(lane, &run);
}
