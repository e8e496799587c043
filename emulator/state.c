/*
 * The shared file. SALUS_EMULATOR_STATE names it, the first process creates it,
 * and a robust mutex guards it.
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct emu_state *emu;

static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;

uint64_t emu_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

#ifdef SALUS_EMULATOR_INJECT
#define PLACES_MAX 256

/*
 * Kills this process before a store into the shared file. A test selects the store by its number
 * (SALUS_EMULATOR_DIE_AT=N, the N-th store), or by its place in the source and the number of the
 * pass (SALUS_EMULATOR_DIE_IN=FILE:LINE:N), because the clock decides how often the time model
 * stores. Each place that this process passes is appended to the file SALUS_EMULATOR_PASSED, so
 * that a test knows all of them.
 */
static void record_place(const char *file, int line)
{
    static struct {
        const char *file;
        int line;
    } recorded[PLACES_MAX];
    static uint32_t recorded_count;
    const char *path = getenv("SALUS_EMULATOR_PASSED");
    for (uint32_t i = 0; i < recorded_count; i++)
        if (recorded[i].file == file && recorded[i].line == line)
            return;
    int fd = path && recorded_count < PLACES_MAX
                 ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)
                 : -1;
    if (fd < 0)
        return;
    recorded[recorded_count].file = file;
    recorded[recorded_count++].line = line;
    dprintf(fd, "%s:%d\n", file, line);
    close(fd);
}

static bool is_named(const char *named, const char *file, int line)
{
    char place[64];
    int length = snprintf(place, sizeof(place), "%s:%d:", file, line);
    return length < (int)sizeof(place) && strncmp(named, place, (size_t)length) == 0;
}

void emu_inject_at(const char *file, int line)
{
    static long left = -1;
    static const char *named;
    if (left < 0) {
        const char *at = getenv("SALUS_EMULATOR_DIE_AT");
        named = getenv("SALUS_EMULATOR_DIE_IN");
        const char *pass = named ? strrchr(named, ':') : NULL;
        left = at ? atol(at) : pass ? atol(pass + 1) : 0;
    }
    record_place(file, line);
    if (left == 0 || (named && !is_named(named, file, line)))
        return;
    if (--left == 0)
        raise(SIGKILL);
}
#endif

const char *emu_path(void)
{
    static char fallback[64];
    const char *path = getenv("SALUS_EMULATOR_STATE");
    if (path && *path)
        return path;
    snprintf(fallback, sizeof(fallback), "/dev/shm/salus-emulator-%u", (unsigned int)getuid());
    return fallback;
}

/* TOTAL[/CONTEXT] in MiB. */
static bool read_sizes(struct emu_device *device, const char *text)
{
    unsigned long long total, context;
    int count = sscanf(text, "%llu/%llu", &total, &context);
    if (count < 1 || total == 0)
        return false;
    PUT(device->total_bytes, total * MIB);
    if (count == 2)
        PUT(device->context_bytes, context * MIB);
    return true;
}

static int add_devices(struct emu_state *state, const char *devices)
{
    char list[512];
    char *rest = list;
    snprintf(list, sizeof(list), "%s", devices && *devices ? devices : "a100-40g");
    for (char *name; (name = strsep(&rest, ",")) != NULL;) {
        uint32_t profile = 0;
        char *sizes = strchr(name, '=');
        if (sizes)
            *sizes++ = 0;
        while (profile < emu_profile_count && strcmp(emu_profiles[profile].name, name) != 0)
            profile++;
        if (profile == emu_profile_count || state->device_count == EMU_DEVICES_MAX)
            return -EINVAL;
        struct emu_device *device = &state->devices[state->device_count];
        PUT(device->profile, profile);
        PUT(device->total_bytes, emu_profiles[profile].total_bytes);
        PUT(device->context_bytes, emu_profiles[profile].context_bytes);
        if (sizes && !read_sizes(device, sizes))
            return -EINVAL;
        PUT(device->speed_permille, 1000);
        PUT(device->slice_process, NONE);
        PUT(device->advanced_ns, emu_now_ns());
        /* A device keeps its UUID from run to run: FNV-1a of its name and position. */
        uint64_t hash = 1469598103934665603ULL + state->device_count;
        for (unsigned int i = 0; i < 16; i++) {
            hash = (hash ^ (unsigned char)name[i % strlen(name)]) * 1099511628211ULL;
            PUT(device->uuid[i], (unsigned char)(hash >> 32));
        }
        PUT(state->device_count, state->device_count + 1);
    }
    return 0;
}

static int fill(struct emu_state *state, const char *devices)
{
    pthread_mutexattr_t attributes;
    int rc = add_devices(state, devices);
    if (rc)
        return rc;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    emu_inject();
    pthread_mutex_init(&state->lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
    PUT(state->bytes, sizeof(*state));
    PUT(state->magic, EMU_MAGIC);
    emu_inject();
    __atomic_store_n(&state->is_ready, 1, __ATOMIC_RELEASE);
    return 0;
}

static int map(const char *path, int flags, const char *devices)
{
    struct stat status;
    void *mapping = MAP_FAILED;
    int rc = -EINVAL;
    int fd = open(path, O_RDWR | O_CLOEXEC | flags, 0666);
    if (fd < 0)
        return -errno;
    /* The file lock covers only the creation of the file, and ends with its holder.
     */
    if (flock(fd, LOCK_EX) || fstat(fd, &status)) {
        rc = -errno;
        goto out;
    }
    if (status.st_size == 0 && ftruncate(fd, sizeof(struct emu_state))) {
        rc = -errno;
        goto out;
    }
    if (status.st_size != 0 && status.st_size != (off_t)sizeof(struct emu_state))
        goto out;
    mapping = mmap(NULL, sizeof(struct emu_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapping == MAP_FAILED) {
        rc = -errno;
        goto out;
    }
    struct emu_state *state = mapping;
    if (!state->is_ready) {
        emu_inject();
        memset(state, 0, offsetof(struct emu_state, processes));
        rc = fill(state, devices);
        if (rc == 0 && fchmod(fd, 0666) != 0)
            rc = 0; /* another user's file: its creator has set the mode */
    } else {
        rc = state->magic == EMU_MAGIC && state->bytes == sizeof(*state) ? 0 : -EINVAL;
    }
    if (rc == 0)
        emu = state;
out:
    if (rc && mapping != MAP_FAILED)
        munmap(mapping, sizeof(struct emu_state));
    /* Unlock explicitly: the mapping keeps the open file, and with it the lock, alive after close.
     */
    flock(fd, LOCK_UN);
    close(fd);
    return rc;
}

int emu_create(const char *path, const char *devices)
{
    return map(path, O_CREAT | O_EXCL, devices);
}

int emu_open(void)
{
    int rc = 0;
    pthread_mutex_lock(&open_lock);
    if (!emu)
        rc = map(emu_path(), O_CREAT, getenv("SALUS_EMULATOR_DEVICES"));
    pthread_mutex_unlock(&open_lock);
    return rc;
}

void emu_lock(void)
{
    if (pthread_mutex_lock(&emu->lock) == EOWNERDEAD) {
#ifdef SALUS_EMULATOR_INJECT
        /* Negative control of the tests: trust the counters. */
        if (getenv("SALUS_EMULATOR_TRUST_COUNTERS"))
            emu_reap();
        else
#endif
            emu_recompute();
        PUT(emu->recoveries, emu->recoveries + 1);
        pthread_mutex_consistent(&emu->lock);
    }
}

void emu_unlock(void)
{
    emu_inject();
    pthread_mutex_unlock(&emu->lock);
}
