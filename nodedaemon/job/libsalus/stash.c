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
    for (; page_count && page % BITS_PER_WORD; page++, page_count--) {
        uint64_t bit = 1ull << (page % BITS_PER_WORD);

        bits[page / BITS_PER_WORD] =
            is_set ? bits[page / BITS_PER_WORD] | bit : bits[page / BITS_PER_WORD] & ~bit;
    }
    for (; page_count >= BITS_PER_WORD; page += BITS_PER_WORD, page_count -= BITS_PER_WORD)
        bits[page / BITS_PER_WORD] = is_set ? ~0ull : 0;
    for (; page_count; page++, page_count--) {
        uint64_t bit = 1ull << (page % BITS_PER_WORD);

        bits[page / BITS_PER_WORD] =
            is_set ? bits[page / BITS_PER_WORD] | bit : bits[page / BITS_PER_WORD] & ~bit;
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

    /* Blocks come by offset, so two that share a page follow each other. */
    while ((block = region_next(&lane->region, block))) {
        page_count += last_page(block) - first_page(block) + 1;
        if (first_page(block) == counted_page)
            page_count--;
        counted_page = last_page(block);
    }
    return page_count * REGION_PAGE_BYTES;
}

/* Private copies take over the addresses of one run. A write that comes in between waits in the
 * handler (trap.c). */
static int privatise_run(struct lane *lane, const struct lane_run *run, bool is_guarded)
{
    uint64_t size_bytes = run->page_count * REGION_PAGE_BYTES;
    char *address = lane->base + run->page * REGION_PAGE_BYTES;
    void *copy = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

    if (copy == MAP_FAILED)
        return -errno;
    if (is_guarded && mprotect(address, size_bytes, PROT_READ)) {
        int error = -errno;

        munmap(copy, size_bytes);
        return error;
    }
    memcpy(copy, address, size_bytes);
    if (mremap(copy, size_bytes, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) ==
        MAP_FAILED) {
        int error = -errno;

        if (is_guarded)
            mprotect(address, size_bytes, lane_protection(lane));
        munmap(copy, size_bytes);
        return error;
    }
    set_bits(lane->private_bits, run->page, run->page_count, true);
    lane->private_pages += run->page_count;
    lane->copied_bytes += size_bytes;
    return 0;
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

int stash_keep(struct lane *lane, uint64_t iteration, bool is_guarded)
{
    uint64_t end_page = lane->reserve_bytes / REGION_PAGE_BYTES;
    uint64_t top_page = lane->region.high_bytes / REGION_PAGE_BYTES + 1;
    const struct region_extent *block = NULL;
    struct lane_run run = {0, 0}, part;
    int error = 0;

    if (lane->is_self || (!lane->region.used_count && !lane->private_pages))
        return 0;
    if (top_page > end_page)
        top_page = end_page;
    lane->promotion_count += region_promote(&lane->region, iteration);
    while ((block = region_next(&lane->region, block)))
        set_bits(lane->needed_bits, first_page(block), last_page(block) - first_page(block) + 1,
                 true);
    /* Give back first, so that the sum of private pages never passes both the old and the new need.
     */
    while (lane_find_run(lane->private_bits, run.page + run.page_count, top_page, true, &run)) {
        part = (struct lane_run){run.page, 0};
        while (!error && lane_find_run(lane->needed_bits, part.page + part.page_count,
                                       run.page + run.page_count, false, &part))
            error = return_run(lane, &part);
    }
    __atomic_store_n(&lane->copying, is_guarded, __ATOMIC_SEQ_CST);
    run = (struct lane_run){0, 0};
    while (!error &&
           lane_find_run(lane->needed_bits, run.page + run.page_count, top_page, true, &run)) {
        part = (struct lane_run){run.page, 0};
        while (!error && lane_find_run(lane->private_bits, part.page + part.page_count,
                                       run.page + run.page_count, false, &part))
            error = privatise_run(lane, &part, is_guarded);
    }
    __atomic_store_n(&lane->copying, 0, __ATOMIC_SEQ_CST);
    block = NULL;
    while ((block = region_next(&lane->region, block)))
        set_bits(lane->needed_bits, first_page(block), last_page(block) - first_page(block) + 1,
                 false);
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

    /* Only blocks with pages of their own: a smaller one leaves with the last of its page. */
    if (lane->is_self || lane->is_open || size_bytes < REGION_PAGE_BYTES)
        return;
    if (is_set_at(lane->private_bits, run.page))
        return_run(lane, &run);
}
