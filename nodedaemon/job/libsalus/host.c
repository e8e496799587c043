/*
 * Where PyTorch's CPU blocks go.
 *
 * libc10 allocates with posix_memalign and frees with free (c10::alloc_cpu and free_cpu, seen from
 * torch 1.x to 2.13), so its slots for these two are pointed here after `import torch`. Blocks of
 * the gating thread and of autograd's threads lie in the lane while the grant is held; every other
 * block is plain memory, counted and capped. `free` is redirected in torch's other libraries too,
 * because a block may be released by code that was inlined there. Where the slots cannot be
 * written, a small library that was preloaded hands us the same calls (preload.h).
 */
#define _GNU_SOURCE
#include "host.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "blocks.h"
#include "client.h"
#include "gate.h"
#include "patch.h"
#include "preload.h"
#include "session.h"

#define SPILL_FLAG      (1ull << 63)
#define AUTOGRAD_PREFIX "pt_autograd_"

enum thread_class {
    THREAD_UNKNOWN,
    THREAD_LANE, /* gating thread or one of autograd's */
    THREAD_OTHER,
};

static struct blocks blocks;
static struct preload_plain plain = {posix_memalign, free};
static uint32_t thread_generation; /* raised in a forked child */
static __thread enum thread_class thread_class;
static __thread uint32_t thread_seen;
static __thread uint32_t thread_persist_depth;

void host_mark_thread(void)
{
    thread_class = THREAD_LANE;
    thread_seen = thread_generation;
}

void host_forget_threads(void)
{
    thread_generation++;
}

static bool is_lane_thread(void)
{
    char name[THREAD_NAME_BYTES] = "";

    if (thread_class == THREAD_UNKNOWN || thread_seen != thread_generation) {
        prctl(PR_GET_NAME, name);
        thread_class =
            strncmp(name, AUTOGRAD_PREFIX, strlen(AUTOGRAD_PREFIX)) ? THREAD_OTHER : THREAD_LANE;
        thread_seen = thread_generation;
    }
    return thread_class == THREAD_LANE && !thread_persist_depth;
}

void salus_persist_begin(void)
{
    thread_persist_depth++;
}

void salus_persist_end(void)
{
    if (thread_persist_depth)
        thread_persist_depth--;
}

static uint64_t stash_bytes(void)
{
    uint64_t page_count = 0;
    uint32_t index;

    for (index = 0; index < session.lane_count; index++)
        page_count += session.lanes[index].private_pages;
    return page_count * REGION_PAGE_BYTES;
}

uint64_t host_persistent_bytes(void)
{
    return session.counts.own_bytes + session.counts.private_bytes + stash_bytes();
}

uint64_t host_persistent_peak_bytes(void)
{
    const struct memory_counts *counts = &session.counts;

    return counts->own_bytes + counts->private_peak_bytes + counts->survivor_peak_bytes;
}

static uint64_t anonymous_bytes(void)
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

void host_measure_own(void)
{
    uint64_t anonymous = anonymous_bytes();
    uint64_t blocks_bytes, own_bytes;

    pthread_mutex_lock(&session.memory_lock);
    blocks_bytes = session.counts.private_bytes + stash_bytes();
    if (session.lane && session.lane->is_self)
        blocks_bytes += session.lane->region.high_bytes;
    own_bytes = anonymous > blocks_bytes ? anonymous - blocks_bytes : 0;
    if (own_bytes > session.counts.own_bytes)
        session.counts.own_bytes = own_bytes;
    pthread_mutex_unlock(&session.memory_lock);
}

static void raise_peak(uint64_t *peak, uint64_t value)
{
    if (value > *peak)
        *peak = value;
}

static void count_live(uint64_t size_bytes)
{
    struct memory_counts *counts = &session.counts;

    counts->live_bytes += size_bytes;
    raise_peak(&counts->live_peak_bytes, counts->live_bytes);
    raise_peak(&counts->iteration_peak_bytes, counts->live_bytes);
}

void host_roll_iteration(void)
{
    struct memory_counts *counts = &session.counts;
    uint64_t resting_bytes = counts->iteration_start_bytes;

    /* What the iteration leaves behind is not ephemeral, nor is what it found and freed. */
    raise_peak(&resting_bytes, counts->live_bytes);
    if (session.gate.iteration_count)
        raise_peak(&counts->live_ephemeral_bytes, counts->iteration_peak_bytes - resting_bytes);
    raise_peak(&counts->live_persistent_bytes, counts->live_bytes);
    if (session.lane)
        raise_peak(&counts->survivor_peak_bytes, session.lane->region.page_bytes);
    counts->last_iteration_bytes = counts->iteration_peak_bytes;
    counts->iteration_start_bytes = counts->live_bytes;
    counts->iteration_peak_bytes = counts->live_bytes;
}

/* NULL: not a block for the lane, or no room in it (`is_spill` is set). */
static void *take_lane_block(size_t align_bytes, size_t size_bytes, bool *is_spill)
{
    struct lane *lane = session.lane;
    uint64_t offset_bytes;

    *is_spill = false;
    if (!lane || !lane->is_open || !size_bytes || !is_lane_thread())
        return NULL;
    pthread_mutex_lock(&session.memory_lock);
    if (!lane->is_open) {
        pthread_mutex_unlock(&session.memory_lock);
        return NULL;
    }
    offset_bytes =
        region_take(&lane->region, size_bytes, align_bytes, session.gate.iteration_count);
    if (offset_bytes != REGION_NONE) {
        session.counts.lane_bytes += size_bytes;
        session.counts.lane_count++;
        count_live(size_bytes);
    }
    pthread_mutex_unlock(&session.memory_lock);
    gate_mark_activity();
    *is_spill = offset_bytes == REGION_NONE;
    return *is_spill ? NULL : lane->base + offset_bytes;
}

/* True if the block fits the session's cap, which the daemon may raise on the way. */
static bool is_within_cap(uint64_t size_bytes)
{
    uint64_t wanted_bytes, cap_bytes;

    if (session.phase != PHASE_GATED && session.phase != PHASE_UNGATED)
        return true;
    pthread_mutex_lock(&session.memory_lock);
    wanted_bytes = host_persistent_bytes() + size_bytes;
    cap_bytes = session.counts.cap_persistent_bytes;
    pthread_mutex_unlock(&session.memory_lock);
    if (!cap_bytes || wanted_bytes <= cap_bytes)
        return true;
    return !client_ask(SALUS_OVERRUN_PERSISTENT, wanted_bytes, session.counts.cap_ephemeral_bytes);
}

static void note_private(void *address, uint64_t size_bytes, bool is_spill)
{
    struct memory_counts *counts = &session.counts;
    uint64_t stale_bytes;

    pthread_mutex_lock(&session.memory_lock);
    stale_bytes =
        blocks_note(&blocks, (uintptr_t)address, size_bytes | (is_spill ? SPILL_FLAG : 0));
    if (stale_bytes & SPILL_FLAG)
        counts->spill_bytes -= stale_bytes & ~SPILL_FLAG;
    counts->private_bytes -= stale_bytes & ~SPILL_FLAG;
    counts->live_bytes -= stale_bytes & ~SPILL_FLAG;
    counts->private_bytes += size_bytes;
    counts->private_count++;
    raise_peak(&counts->private_peak_bytes, counts->private_bytes);
    if (is_spill) {
        counts->spill_count++;
        counts->spill_bytes += size_bytes;
        raise_peak(&counts->spill_bytes_max, counts->spill_bytes);
    }
    count_live(size_bytes);
    pthread_mutex_unlock(&session.memory_lock);
}

static int hooked_posix_memalign(void **address, size_t align_bytes, size_t size_bytes)
{
    bool is_spill;
    void *block = take_lane_block(align_bytes, size_bytes, &is_spill);
    int error;

    if (block) {
        *address = block;
        return 0;
    }
    /*
     * The framework turns ENOMEM into its own out-of-memory error, so the job that overran sees
     * what it would see on a full machine, and nobody else sees anything.
     */
    if (!is_within_cap(size_bytes))
        return ENOMEM;
    error = plain.take(address, align_bytes, size_bytes);
    if (!error)
        note_private(*address, size_bytes, is_spill);
    return error;
}

/* True if the block was one of a lane's. */
static bool give_lane_block(void *address)
{
    uint32_t index;

    for (index = 0; index < session.lane_count; index++) {
        struct lane *lane = &session.lanes[index];
        uint64_t offset_bytes = (uint64_t)((char *)address - lane->base);
        struct region_extent *block;
        uint64_t size_bytes = 0, wanted_bytes;

        if (!lane_holds(lane, address))
            continue;
        pthread_mutex_lock(&session.memory_lock);
        block = region_find(&lane->region, offset_bytes);
        if (block)
            size_bytes = block->size_bytes;
        wanted_bytes = region_give(&lane->region, offset_bytes);
        if (wanted_bytes != REGION_NONE) {
            session.counts.lane_bytes -= wanted_bytes;
            session.counts.live_bytes -= wanted_bytes;
            stash_forget(lane, offset_bytes, size_bytes);
        }
        pthread_mutex_unlock(&session.memory_lock);
        /* An address inside our range that is no block: nobody's to free. */
        return true;
    }
    return false;
}

/* For callers other than libc10: they free a great many blocks, nearly none of them ours. */
static void hooked_free_elsewhere(void *address)
{
    if (!give_lane_block(address))
        plain.give(address);
}

static void hooked_free(void *address)
{
    struct memory_counts *counts = &session.counts;
    uint64_t noted_bytes;

    if (!address || give_lane_block(address))
        return;
    pthread_mutex_lock(&session.memory_lock);
    noted_bytes = blocks_forget(&blocks, (uintptr_t)address);
    if (noted_bytes & SPILL_FLAG)
        counts->spill_bytes -= noted_bytes & ~SPILL_FLAG;
    counts->private_bytes -= noted_bytes & ~SPILL_FLAG;
    counts->live_bytes -= noted_bytes & ~SPILL_FLAG;
    pthread_mutex_unlock(&session.memory_lock);
    plain.give(address);
}

/* The negative control of the tests, in their build only: as if libc10 could not be patched. */
static bool is_patch_refused(void)
{
#ifdef SALUS_FAULT_POINTS
    return getenv("SALUS_TEST_NO_PATCH") != NULL;
#else
    return false;
#endif
}

static int patch_all(void)
{
    static const char *const elsewhere[] = {"libtorch", "libshm"};
    const struct patch take = {"posix_memalign", (void *)hooked_posix_memalign};
    const struct patch give = {"free", (void *)hooked_free};
    const struct patch give_elsewhere = {"free", (void *)hooked_free_elsewhere};
    uint32_t index;
    int count;

    if (is_patch_refused())
        return -EACCES;
    /* free first: a block of ours must never meet the plain one. */
    for (index = 0; index < sizeof(elsewhere) / sizeof(elsewhere[0]); index++) {
        count = patch_library(elsewhere[index], &give_elsewhere);
        if (count < 0)
            return count;
    }
    count = patch_library("libc10.so", &give);
    if (count <= 0)
        return count ? count : -ENOTSUP;
    count = patch_library("libc10.so", &take);
    if (count <= 0)
        return count ? count : -ENOTSUP;
    return 0;
}

/* 0 if the small library was preloaded and gives us libc10's calls from now on. */
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
        .take = hooked_posix_memalign,
        .give = hooked_free,
        .give_elsewhere = hooked_free_elsewhere,
    };
    set(&route, &plain);
    return 0;
}

int host_hook(void)
{
    uintptr_t start, end;
    int error;

    if (!patch_find("libc10.so", &start, &end))
        return -ENOENT;
    error = patch_all();
    /* Half a patch does no harm: blocks of ours are made only once the last slot is written. */
    return error && route_preloaded(start, end) ? error : 0;
}

#if defined(SALUS_FAULT_POINTS) || defined(SALUS_BLOCKS)
/* What libc10's slots lead to, for tests and benchmarks without a framework. */
SALUS_API void *salus_block_take(uint64_t size_bytes);
SALUS_API void salus_block_give(void *address);

void *salus_block_take(uint64_t size_bytes)
{
    void *address = NULL;

    return hooked_posix_memalign(&address, REGION_LINE_BYTES, size_bytes) ? NULL : address;
}

void salus_block_give(void *address)
{
    hooked_free(address);
}
#endif
