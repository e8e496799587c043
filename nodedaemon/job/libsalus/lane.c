#define _GNU_SOURCE
#include "lane.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define BITS_PER_WORD 64

static void *map_bits(uint64_t page_count)
{
    size_t bytes = (page_count / BITS_PER_WORD + 1) * sizeof(uint64_t);
    void *bits = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return bits == MAP_FAILED ? NULL : bits;
}

int lane_reserve(struct lane *lane, uint64_t bytes)
{
    uint64_t page_count;
    void *base;
    int error;

    memset(lane, 0, sizeof(*lane));
    lane->fd = -1;
    bytes = round_up(bytes, REGION_PAGE_BYTES);
    page_count = bytes / REGION_PAGE_BYTES;
    error = region_open(&lane->region, 0);
    if (error)
        return error;
    lane->private_bits = map_bits(page_count);
    lane->needed_bits = map_bits(page_count);
    base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!lane->private_bits || !lane->needed_bits || base == MAP_FAILED) {
        /* Only address space can run out here. The bitmaps are freed when the process ends. */
        region_drop(&lane->region);
        return -ENOMEM;
    }
    lane->reserve_bytes = bytes;
    lane->base = base;
    return 0;
}

int lane_map_self(struct lane *lane, uint64_t bytes)
{
    if (bytes > lane->reserve_bytes)
        bytes = lane->reserve_bytes;
    if (mprotect(lane->base, bytes, PROT_READ | PROT_WRITE))
        return -errno;
    return lane_limit_self(lane, bytes);
}

static uint64_t next_with(const uint64_t *bits, uint64_t page, uint64_t end_page, bool is_set)
{
    while (page < end_page) {
        uint64_t word = bits[page / BITS_PER_WORD];

        if (!is_set)
            word = ~word;
        word >>= page % BITS_PER_WORD;
        if (word) {
            page += (uint64_t)__builtin_ctzll(word);
            return page < end_page ? page : end_page;
        }
        page = (page / BITS_PER_WORD + 1) * BITS_PER_WORD;
    }
    return end_page;
}

bool lane_find_run(const uint64_t *bits, uint64_t page, uint64_t end_page, bool is_set,
                   struct lane_run *run)
{
    run->page = next_with(bits, page, end_page, is_set);
    if (run->page >= end_page)
        return false;
    run->page_count = next_with(bits, run->page, end_page, !is_set) - run->page;
    return true;
}

int lane_protection(const struct lane *lane)
{
    return lane->is_open || !lane->is_trapped ? PROT_READ | PROT_WRITE : PROT_NONE;
}

/* MADV_DONTFORK, because a forked child would share every store to lane memory. */
int lane_map_run(struct lane *lane, int fd, const struct lane_run *run)
{
    uint64_t offset_bytes = run->page * REGION_PAGE_BYTES;
    uint64_t size_bytes = run->page_count * REGION_PAGE_BYTES;
    void *address = lane->base + offset_bytes;

    if (mmap(address, size_bytes, lane_protection(lane), MAP_SHARED | MAP_FIXED, fd,
             (off_t)offset_bytes) == MAP_FAILED)
        return -errno;
    if (madvise(address, size_bytes, MADV_DONTFORK))
        return -errno;
    return 0;
}

int lane_reserve_run(struct lane *lane, const struct lane_run *run)
{
    void *address = lane->base + run->page * REGION_PAGE_BYTES;

    if (mmap(address, run->page_count * REGION_PAGE_BYTES, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        return -errno;
    return 0;
}

static uint64_t mapped_pages(const struct lane *lane)
{
    return lane->mapped_bytes / REGION_PAGE_BYTES;
}

void lane_unmap(struct lane *lane)
{
    struct lane_run run = {0, 0};

    lane->is_open = false;
    while (lane_find_run(lane->private_bits, run.page + run.page_count, mapped_pages(lane), false,
                         &run))
        lane_reserve_run(lane, &run);
    lane_note_unmapped(lane);
}

int lane_map(struct lane *lane, int fd, uint64_t id, uint64_t epoch, uint64_t bytes,
             uint64_t limit_bytes)
{
    struct lane_run run = {0, 0};
    int error;

    if (bytes > lane->reserve_bytes || bytes % REGION_PAGE_BYTES)
        return -EINVAL;
    if (lane->mapped_bytes)
        lane_unmap(lane);
    if (limit_bytes > bytes)
        limit_bytes = bytes;
    error = region_limit(&lane->region, limit_bytes);
    if (error)
        return error;
    lane->mapped_bytes = bytes;
    while (lane_find_run(lane->private_bits, run.page + run.page_count, mapped_pages(lane), false,
                         &run)) {
        error = lane_map_run(lane, fd, &run);
        if (error) {
            lane_unmap(lane);
            return error;
        }
    }
    lane_note_mapped(lane, fd, id, epoch);
    return 0;
}

static int protect_runs(struct lane *lane, int prot)
{
    struct lane_run run = {0, 0};

    while (lane_find_run(lane->private_bits, run.page + run.page_count, mapped_pages(lane), false,
                         &run))
        if (mprotect(lane->base + run.page * REGION_PAGE_BYTES, run.page_count * REGION_PAGE_BYTES,
                     prot))
            return -errno;
    return 0;
}

int lane_open(struct lane *lane)
{
    lane->is_open = true;
    return lane->is_trapped && !lane->is_self ? protect_runs(lane, PROT_READ | PROT_WRITE) : 0;
}

void lane_shut(struct lane *lane)
{
    if (lane->is_self)
        return;
    lane->is_open = false;
    if (lane->is_trapped)
        protect_runs(lane, PROT_NONE);
}

void lane_disown(struct lane *lane)
{
    if (!lane->is_self && lane->base)
        lane_unmap(lane);
}
