/* The sorted address ranges of the process, against which every access of emulated
 * work is checked. */
#include "local.h"

#include <stdlib.h>
#include <string.h>

static struct emu_range *ranges;
static size_t range_count, range_room;

uint64_t range_new_id(void)
{
    static uint64_t id;
    return ++id;
}

static size_t place_of(uint64_t address)
{
    size_t low = 0, high = range_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void range_add(struct emu_range range)
{
    size_t place = place_of(range.start);
    if (range_count == range_room) {
        range_room = range_room ? range_room * 2 : 64;
        struct emu_range *more = realloc(ranges, range_room * sizeof(*ranges));
        if (!more)
            abort();
        ranges = more;
    }
    memmove(&ranges[place + 1], &ranges[place], (range_count - place) * sizeof(*ranges));
    ranges[place] = range;
    range_count++;
}

struct emu_range *range_at(uint64_t address)
{
    size_t place = place_of(address);
    if (place == 0)
        return NULL;
    struct emu_range *range = &ranges[place - 1];
    return address - range->start < range->bytes ? range : NULL;
}

void range_remove(uint64_t start)
{
    size_t place = place_of(start);
    if (place == 0 || ranges[place - 1].start != start)
        return;
    memmove(&ranges[place - 1], &ranges[place], (range_count - place) * sizeof(*ranges));
    range_count--;
}

bool range_covers(uint64_t address, uint64_t bytes, uint32_t access)
{
    while (bytes) {
        const struct emu_range *range = range_at(address);
        if (!range || (range->access & access) != access)
            return false;
        uint64_t room = range->start + range->bytes - address;
        if (bytes <= room)
            return true;
        address += room;
        bytes -= room;
    }
    return true;
}

void range_each(void (*visit)(struct emu_range *, void *), void *argument)
{
    for (size_t i = 0; i < range_count; i++)
        visit(&ranges[i], argument);
}
