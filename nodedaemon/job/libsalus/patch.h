/* Redirects the calls of a loaded library by writing to its relocated slots. */
#ifndef SALUS_PATCH_H
#define SALUS_PATCH_H

#include <stdint.h>

struct patch {
    const char *symbol;
    void *target;
};

/*
 * Patches every slot of `symbol` in each loaded library whose file name starts with `library`.
 * Returns the number of slots written, 0 if no such library is loaded or it does not use the
 * symbol, or -errno if a slot could not be written.
 */
int patch_library(const char *library, const struct patch *patch);

/* 1 if such a library is loaded; `start` and `end` are its addresses. */
int patch_find(const char *library, uintptr_t *start, uintptr_t *end);

#endif
