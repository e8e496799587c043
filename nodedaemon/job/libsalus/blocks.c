#include "blocks.h"

#include <stdlib.h>

#define CAPACITY_MIN 1024

static uint64_t home(const struct blocks *blocks, uintptr_t address)
{
    /* Blocks are aligned to 64 bytes: the low bits carry no information. */
    return ((uint64_t)address >> 6) * 0x9e3779b97f4a7c15ull >> 20 & (blocks->capacity_count - 1);
}

static uint64_t find(const struct blocks *blocks, uintptr_t address)
{
    uint64_t index = home(blocks, address);

    while (blocks->entries[index].address && blocks->entries[index].address != address)
        index = (index + 1) & (blocks->capacity_count - 1);
    return index;
}

static int grow(struct blocks *blocks)
{
    struct blocks old = *blocks;
    uint64_t index;

    blocks->capacity_count = old.capacity_count ? old.capacity_count * 2 : CAPACITY_MIN;
    blocks->entries = calloc(blocks->capacity_count, sizeof(*blocks->entries));
    if (!blocks->entries) {
        *blocks = old;
        return -1;
    }
    for (index = 0; index < old.capacity_count; index++)
        if (old.entries[index].address)
            blocks->entries[find(blocks, old.entries[index].address)] = old.entries[index];
    free(old.entries);
    return 0;
}

uint64_t blocks_note(struct blocks *blocks, uintptr_t address, uint64_t size_bytes)
{
    struct blocks_entry *entry;
    uint64_t stale_bytes;

    if (blocks->used_count * 4 >= blocks->capacity_count * 3 && grow(blocks) &&
        blocks->used_count + 1 >= blocks->capacity_count)
        return 0;
    entry = &blocks->entries[find(blocks, address)];
    stale_bytes = entry->address ? entry->size_bytes : 0;
    blocks->used_count += !entry->address;
    entry->address = address;
    entry->size_bytes = size_bytes;
    return stale_bytes;
}

bool blocks_hold(const struct blocks *blocks, uintptr_t address)
{
    return blocks->capacity_count && blocks->entries[find(blocks, address)].address;
}

uint64_t blocks_forget(struct blocks *blocks, uintptr_t address)
{
    uint64_t mask = blocks->capacity_count - 1;
    uint64_t hole, index, size_bytes;

    if (!blocks->capacity_count)
        return 0;
    hole = find(blocks, address);
    if (!blocks->entries[hole].address)
        return 0;
    size_bytes = blocks->entries[hole].size_bytes;
    /* Close the gap: move up each later entry of the chain whose home is not between hole and
     * itself. */
    for (index = (hole + 1) & mask; blocks->entries[index].address; index = (index + 1) & mask) {
        uint64_t distance = (index - home(blocks, blocks->entries[index].address)) & mask;

        if (distance >= ((index - hole) & mask)) {
            blocks->entries[hole] = blocks->entries[index];
            hole = index;
        }
    }
    blocks->entries[hole].address = 0;
    blocks->used_count--;
    return size_bytes;
}
