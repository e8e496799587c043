/* libsalus-preload.so; preload.h says what it is for. */
#define _GNU_SOURCE
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))

API int posix_memalign(void **address, size_t align_bytes, size_t size_bytes);
API void free(void *address);
API void salus_preload_set(const struct preload_route *route, struct preload_plain *plain);

static struct preload_plain next;
static const struct preload_route *current;
static __thread bool is_searching;

/* At the first call, not in a constructor: other constructors may allocate before ours runs. */
static bool find_next(void)
{
    if (__atomic_load_n(&next.free, __ATOMIC_ACQUIRE))
        return true;
    /* dlsym may allocate and free. The few bytes that it frees meanwhile are lost, once. */
    if (is_searching)
        return false;
    is_searching = true;
    *(void **)&next.allocate = dlsym(RTLD_NEXT, "posix_memalign");
    __atomic_store_n((void **)&next.free, dlsym(RTLD_NEXT, "free"), __ATOMIC_RELEASE);
    is_searching = false;
    return next.free && next.allocate;
}

static bool is_ours(const struct preload_route *route, const void *caller)
{
    return (uintptr_t)caller >= route->start && (uintptr_t)caller < route->end;
}

int posix_memalign(void **address, size_t align_bytes, size_t size_bytes)
{
    const struct preload_route *route = __atomic_load_n(&current, __ATOMIC_ACQUIRE);

    if (!find_next())
        return ENOMEM;
    if (route && is_ours(route, __builtin_return_address(0)))
        return route->allocate(address, align_bytes, size_bytes);
    return next.allocate(address, align_bytes, size_bytes);
}

void free(void *address)
{
    const struct preload_route *route = __atomic_load_n(&current, __ATOMIC_ACQUIRE);

    if (!address || !find_next())
        return;
    if (!route)
        next.free(address);
    else if (is_ours(route, __builtin_return_address(0)))
        route->free(address);
    else
        route->free_elsewhere(address);
}

void salus_preload_set(const struct preload_route *route, struct preload_plain *plain)
{
    if (!find_next())
        return;
    *plain = next;
    __atomic_store_n(&current, route, __ATOMIC_RELEASE);
}
