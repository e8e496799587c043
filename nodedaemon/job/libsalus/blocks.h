/*
 * Sizes of the framework's private blocks by address: free() does not say them, and
 * malloc_usable_size is not what was asked for. Open addressing, grows by doubling. The caller
 * holds session.memory_lock.
 */
#ifndef SALUS_BLOCKS_H
#define SALUS_BLOCKS_H

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

/* Size that was noted for this address before (a stale note), else 0. A note is dropped if memory
 * is short. */
uint64_t blocks_note(struct blocks *blocks, uintptr_t address, uint64_t size_bytes);

/* Size of the block, forgotten now; 0 if unknown. */
uint64_t blocks_forget(struct blocks *blocks, uintptr_t address);

#endif
