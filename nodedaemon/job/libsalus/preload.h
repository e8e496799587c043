/*
 * For a framework whose slots cannot be patched: a small preloaded library intercepts the C
 * library's allocation calls and passes those of one library to libsalus.
 *
 * It has no dependencies. Without a route it forwards every call.
 */
#ifndef SALUS_PRELOAD_H
#define SALUS_PRELOAD_H

#include <stddef.h>
#include <stdint.h>

struct preload_route {
    uintptr_t start, end; /* code of the library whose calls we handle */
    int (*allocate)(void **address, size_t align_bytes, size_t size_bytes);
    void (*free)(void *address);
    void (*free_elsewhere)(void *address); /* for all other callers */
};

struct preload_plain {
    int (*allocate)(void **address, size_t align_bytes, size_t size_bytes);
    void (*free)(void *address);
};

/* Exported by the preloaded library. `route` stays valid forever; `plain` receives the functions
 * that would be called without us. */
typedef void preload_set(const struct preload_route *route, struct preload_plain *plain);
#define PRELOAD_SET "salus_preload_set"

#endif
