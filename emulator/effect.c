/*
 * What completed work does to memory. A kernel has one of a few built-in effects,
 * which a comment in its module selects (README.md). Code is never executed.
 */
#include "local.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { EFFECT_NONE, EFFECT_FILL, EFFECT_ADD, EFFECT_MIX };

uint32_t effect_named(const char *name)
{
    static const char *const names[] = {"none", "fill", "add", "mix"};
    for (uint32_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return EFFECT_NONE;
}

static bool may_touch(uint64_t address, uint64_t bytes, uint32_t access)
{
    /* Host addresses are not checked: they are the caller's own memory. */
    return !is_device_address(address) || range_covers(host_address(address), bytes, access);
}

static bool apply_copy(const struct op_rows *rows)
{
    for (size_t row = 0; row < rows->height; row++) {
        uint64_t to = rows->to + row * rows->to_pitch;
        uint64_t from = rows->from + row * rows->from_pitch;
        if (!may_touch(to, rows->width, 3) || !may_touch(from, rows->width, 1))
            return false;
        memmove((void *)host_address(to), (void *)host_address(from), rows->width);
    }
    return true;
}

/* Clears memory by releasing its pages, so that clearing a large lane costs no host memory. */
static bool clear_pages(unsigned char *start, size_t bytes)
{
    if (bytes < EMU_GRANULE || (uint64_t)start % EMU_GRANULE || bytes % EMU_GRANULE)
        return false;
    const struct emu_range *range = range_at((uint64_t)start);
    return !madvise(start, bytes, range->kind == RANGE_MAPPED ? MADV_REMOVE : MADV_DONTNEED);
}

static bool apply_set(const struct emu_op *op)
{
    const struct op_rows *rows = &op->rows;
    for (size_t row = 0; row < rows->height; row++) {
        uint64_t to = rows->to + row * rows->to_pitch;
        if (!may_touch(to, rows->width, 3))
            return false;
        unsigned char *bytes = (unsigned char *)host_address(to);
        if (op->value == 0 && clear_pages(bytes, rows->width))
            continue;
        if (op->unit_bytes == 1)
            memset(bytes, (int)op->value, rows->width);
        else
            for (size_t i = 0; i < rows->width; i += op->unit_bytes)
                memcpy(bytes + i, &op->value, op->unit_bytes);
    }
    return true;
}

static bool apply_kernel(const struct emu_op *op)
{
    uint64_t count = (uint32_t)op->arguments[1];
    uint32_t value = (uint32_t)op->arguments[2];
    if (op->effect == EFFECT_NONE)
        return true;
    if (!is_device_address(op->arguments[0]) || !may_touch(op->arguments[0], count * 4, 3))
        return false;
    uint32_t *words = (uint32_t *)host_address(op->arguments[0]);
    for (uint64_t i = 0; i < count; i++)
        words[i] = op->effect == EFFECT_FILL  ? value
                   : op->effect == EFFECT_ADD ? words[i] + value
                                              : words[i] * 1664525u + value;
    return true;
}

bool effect_apply(const struct emu_op *op)
{
    switch (op->kind) {
    case OP_COPY:
        return apply_copy(&op->rows);
    case OP_SET:
        return apply_set(op);
    case OP_KERNEL:
        return apply_kernel(op);
    default:
        return true;
    }
}
