/*
 * The backend for host memory: where PyTorch's CPU blocks go.
 *
 * libc10 allocates with posix_memalign and frees with free (c10::alloc_cpu and free_cpu, from torch
 * 1.x to 2.13). After `import torch` its slots for these two functions point here. Blocks of the
 * gating thread and of autograd's threads lie in the lane while the grant is held; every other
 * block is plain memory, counted and capped. `free` is redirected in torch's other libraries too,
 * because inlined code may release a block there. If the slots cannot be written, a small preloaded
 * library passes the same calls to us (preload.h).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "memory.h"
#include "patch.h"
#include "point.h"
#include "preload.h"

static struct blocks blocks;
static struct preload_plain plain = {posix_memalign, free};

uint64_t memory_process_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");

    if (!file)
        return 0;
    while (fgets(line, sizeof(line), file))
        if (sscanf(line, "RssAnon: %llu kB", &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}

uint64_t memory_self_lane_bytes(const struct lane *lane)
{
    return lane->region.high_bytes;
}

void memory_roll_iteration(void)
{
    roll_counters(session.lane ? session.lane->region.page_bytes : 0);
}

static int hooked_posix_memalign(void **address, size_t align_bytes, size_t size_bytes)
{
    bool is_spill = false;
    uintptr_t block = size_bytes ? memory_allocate_in_lane(size_bytes, align_bytes, &is_spill) : 0;
    int error;

    if (block) {
        *address = (void *)block;
        return 0;
    }
    /* The framework turns ENOMEM into its own out-of-memory error, as on a full machine. Only the
     * job that exceeded its cap sees it. */
    if (!memory_fits_cap(size_bytes))
        return ENOMEM;
    error = plain.allocate(address, align_bytes, size_bytes);
    if (!error)
        memory_note_private(&blocks, (uintptr_t)*address, size_bytes, is_spill ? BLOCK_SPILL : 0);
    return error;
}

/* For callers other than libc10: almost none of the blocks that they free are ours. */
static void hooked_free_elsewhere(void *address)
{
    if (!memory_free_in_lane((uintptr_t)address))
        plain.free(address);
}

static void hooked_free(void *address)
{
    if (!address || memory_free_in_lane((uintptr_t)address))
        return;
    memory_forget_private(&blocks, (uintptr_t)address);
    plain.free(address);
}

static int patch_all(void)
{
    static const char *const elsewhere[] = {"libtorch", "libshm"};
    const struct patch allocate = {"posix_memalign", (void *)hooked_posix_memalign};
    const struct patch release = {"free", (void *)hooked_free};
    const struct patch release_elsewhere = {"free", (void *)hooked_free_elsewhere};
    uint32_t index;
    int count;

    if (SALUS_TEST_SWITCH("SALUS_TEST_NO_PATCH"))
        return -EACCES;
    /* free first: the plain free must never get a block of ours. */
    for (index = 0; index < sizeof(elsewhere) / sizeof(elsewhere[0]); index++) {
        count = patch_library(elsewhere[index], &release_elsewhere);
        if (count < 0)
            return count;
    }
    count = patch_library("libc10.so", &release);
    if (count <= 0)
        return count ? count : -ENOTSUP;
    count = patch_library("libc10.so", &allocate);
    if (count <= 0)
        return count ? count : -ENOTSUP;
    return 0;
}

/* Makes the preloaded library pass libc10's calls to us. Returns 0, or -ENOTSUP if it is not
 * loaded.
 */
static int route_preloaded(uintptr_t start, uintptr_t end)
{
    static struct preload_route route;
    preload_set *set;

    *(void **)&set = dlsym(RTLD_DEFAULT, PRELOAD_SET);
    if (!set)
        return -ENOTSUP;
    route = (struct preload_route){
        .start = start,
        .end = end,
        .allocate = hooked_posix_memalign,
        .free = hooked_free,
        .free_elsewhere = hooked_free_elsewhere,
    };
    set(&route, &plain);
    return 0;
}

int memory_hook(void)
{
    uintptr_t start, end;
    int error;

    if (!patch_find("libc10.so", &start, &end))
        return -ENOENT;
    error = patch_all();
    /* A partial patch is harmless: our blocks exist only after the last slot is written. */
    return error && route_preloaded(start, end) ? error : 0;
}

#if defined(SALUS_FAULT_POINTS) || defined(SALUS_BLOCKS)
/* The functions behind libc10's slots, for tests and benchmarks without a framework. */
SALUS_API void *salus_block_allocate(uint64_t size_bytes);
SALUS_API void salus_block_free(void *address);

void *salus_block_allocate(uint64_t size_bytes)
{
    void *address = NULL;

    return hooked_posix_memalign(&address, REGION_LINE_BYTES, size_bytes) ? NULL : address;
}

void salus_block_free(void *address)
{
    hooked_free(address);
}
#endif
