/* cuGetProcAddress: the newest variant of a name that is not newer than the
 * version that the caller asks for. */
#include "proc_address.h"

#include "abi.h"

#include <string.h>

#define PER_THREAD_STREAM 2

static const struct driver_name *first_of(const char *base)
{
    unsigned int low = 0, high = driver_name_count;
    while (low < high) {
        unsigned int middle = (low + high) / 2;
        if (strcmp(driver_names[middle].base, base) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < driver_name_count && strcmp(driver_names[low].base, base) == 0 ? &driver_names[low]
                                                                                : NULL;
}

EXPORT CUresult cuGetProcAddress_v2(const char *base, void **function, int version, uint64_t flags,
                                    int *status)
{
    const struct driver_name *row = base ? first_of(base) : NULL;
    const struct driver_name *best = NULL, *best_per_thread = NULL;
    if (!function)
        return CU_INVALID_VALUE;
    *function = NULL;
    for (const struct driver_name *at = row; at && at < driver_names + driver_name_count; at++) {
        if (strcmp(at->base, base) != 0)
            break;
        if (at->version > version)
            continue;
        const struct driver_name **slot = at->is_per_thread ? &best_per_thread : &best;
        if (!*slot || at->version >= (*slot)->version)
            *slot = at;
    }
    if ((flags & PER_THREAD_STREAM) && best_per_thread)
        best = best_per_thread;
    if (best)
        *function = best->function;
    if (status)
        *status = best ? 0 : row ? 2 : 1;
    return best || status ? CU_OK : CU_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *base, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(base, function, version, flags, NULL);
}
