/*
 * Sizes of blocks by address. free() does not get the size, and malloc_usable_size is not the size
 * that was requested. Open addressing; grows by doubling. The caller holds session.memory_lock.
 */
#ifndef SALUS_BLOCKS_H
#define SALUS_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct blocks_entry {
    uintptr_t address; /* 0: empty */
    uint64_t size_bytes;
};

struct blocks {
    struct blocks_entry *entries;
    uint64_t capacity_count; /* power of two */
    uint64_t used_count;
};

/* Records the size of a block. Returns the size in an earlier record of this address, or 0. If
 * there is no memory to grow, the block is not recorded. */
uint64_t blocks_note(struct blocks *blocks, uintptr_t address, uint64_t size_bytes);

/* Removes the record of a block and returns its size; 0 if there is none. */
uint64_t blocks_forget(struct blocks *blocks, uintptr_t address);

bool blocks_hold(const struct blocks *blocks, uintptr_t address);

#endif
