#define _GNU_SOURCE
#include "cuda_driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#if !defined(__x86_64__)
#error "the trampolines are written for x86-64"
#endif

#define PER_THREAD_STREAM 2u
#define PATH_BYTES        4096

static pthread_once_t resolve_once = PTHREAD_ONCE_INIT;
static void *context;
static int device = -1;

static int not_found(void)
{
    return CUDA_NOT_FOUND;
}

static bool is_ours(const char *path)
{
    struct stat theirs, ours;
    Dl_info self;

    return !dladdr((void *)cuda_resolve, &self) || stat(self.dli_fname, &ours) ||
           stat(path, &theirs) || (ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev);
}

static void *open_in(const char *directories)
{
    char path[PATH_BYTES];
    const char *start = directories, *end;
    void *library = NULL;

    while (start && *start && !library) {
        end = strchrnul(start, ':');
        if (end > start &&
            snprintf(path, sizeof(path), "%.*s/libcuda.so.1", (int)(end - start), start) <
                (int)sizeof(path) &&
            !is_ours(path))
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        start = *end ? end + 1 : NULL;
    }
    return library;
}

/* salusd sets SALUS_CUDA_DRIVER. Without it we try the directories where drivers are installed. */
static void *open_driver(void)
{
    const char *path = getenv("SALUS_CUDA_DRIVER");
    void *library = path && *path && !is_ours(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;

    if (!library)
        library = open_in(getenv("LD_LIBRARY_PATH"));
    if (!library)
        library = open_in("/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/lib:/usr/local/nvidia/lib64:"
                          "/usr/lib/x86_64-linux-gnu/nvidia/current");
    return library;
}

static void resolve(void)
{
    void *library = open_driver();
    uint32_t place;

    for (place = 0; place < REAL_COUNT; place++) {
        void *found = library ? dlsym(library, cuda_symbols[place]) : NULL;

        cuda_table[place] = found ? found : (void *)not_found;
    }
    if (!library)
        fprintf(stderr, "salus: load driver: libcuda.so.1 not found; set SALUS_CUDA_DRIVER\n");
}

void cuda_resolve(void)
{
    pthread_once(&resolve_once, resolve);
}

void cuda_note_context(void)
{
    void *current = NULL;

    if (__atomic_load_n(&context, __ATOMIC_ACQUIRE))
        return;
    cuda_resolve();
    if (!REAL(cuCtxGetCurrent)(&current) && current && !REAL(cuCtxGetDevice)(&device))
        __atomic_store_n(&context, current, __ATOMIC_RELEASE);
}

int cuda_push(void)
{
    cuda_note_context();
    return context && !REAL(cuCtxPushCurrent_v2)(context) ? 0 : -ENODEV;
}

void cuda_pop(void)
{
    void *popped;

    REAL(cuCtxPopCurrent_v2)(&popped);
}

int cuda_device(void)
{
    return device;
}

static const struct cuda_name *find(const char *base, int version, bool is_per_thread)
{
    const struct cuda_name *best = NULL, *row;

    for (row = cuda_names; row < cuda_names + cuda_name_count; row++)
        if (row->version <= version && row->is_per_thread == (int)is_per_thread &&
            !strcmp(row->base, base) && (!best || row->version > best->version))
            best = row;
    return best;
}

CUDA_EXPORT int cuGetProcAddress(const char *base, void **function, int version, cuda_word flags);
CUDA_EXPORT int cuGetProcAddress_v2(const char *base, void **function, int version, cuda_word flags,
                                    int *status);

/*
 * Replaces the driver's function with ours. The driver may know a newer form of the function than
 * we do, with other arguments. So we replace it only if the driver returns the same function for
 * the version that we know. Programs also look up cuGetProcAddress itself, which must be ours.
 */
static void replace(const char *base, void **function, int version, cuda_word flags)
{
    const struct cuda_name *row = NULL;
    void *known = NULL;

    if (!base || !function || !*function)
        return;
    if (!strcmp(base, "cuGetProcAddress")) {
        *function = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
        return;
    }
    if (flags & PER_THREAD_STREAM)
        row = find(base, version, true);
    if (!row)
        row = find(base, version, false);
    if (!row || !row->ours)
        return;
    REAL(cuGetProcAddress_v2)(base, &known, row->version, flags, NULL);
    if (known == *function)
        *function = row->ours;
}

CUDA_EXPORT int cuGetProcAddress_v2(const char *base, void **function, int version, cuda_word flags,
                                    int *status)
{
    int answer;

    cuda_resolve();
    answer = REAL(cuGetProcAddress_v2)(base, function, version, flags, status);
    replace(base, function, version, flags);
    return answer;
}

CUDA_EXPORT int cuGetProcAddress(const char *base, void **function, int version, cuda_word flags)
{
    int answer;

    cuda_resolve();
    answer = REAL(cuGetProcAddress)(base, function, version, flags);
    replace(base, function, version, flags);
    return answer;
}
