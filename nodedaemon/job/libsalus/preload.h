/*
 * The way in for a framework whose slots cannot be patched: a small library that was preloaded
 * stands between everybody and the C library, and lets libsalus have the calls of one library.
 *
 * It depends on nothing and does nothing by itself: without a route each call goes on to the next.
 */
#ifndef SALUS_PRELOAD_H
#define SALUS_PRELOAD_H

#include <stddef.h>
#include <stdint.h>

struct preload_route {
    uintptr_t start, end; /* code of the library whose calls are ours */
    int (*allocate)(void **address, size_t align_bytes, size_t size_bytes);
    void (*free)(void *address);
    void (*free_elsewhere)(void *address); /* for all other callers */
};

struct preload_plain {
    int (*allocate)(void **address, size_t align_bytes, size_t size_bytes);
    void (*free)(void *address);
};

/* Exported by the preloaded library. `route` stays valid for ever; `plain` is what would be called
 * without us. */
typedef void preload_set(const struct preload_route *route, struct preload_plain *plain);
#define PRELOAD_SET "salus_preload_set"

#endif
