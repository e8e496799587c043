/*
 * The real CUDA driver: opened by absolute path, called through one table.
 *
 * Our library has the SONAME libcuda.so.1 and is preloaded, so a lookup by name finds ours; only an
 * absolute path finds the real driver. Functions that we do not wrap jump through the table.
 */
#ifndef SALUS_CUDA_DRIVER_H
#define SALUS_CUDA_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_places.h"

#define CUDA_OK            0
#define CUDA_INVALID_VALUE 1
#define CUDA_OUT_OF_MEMORY 2
#define CUDA_NOT_FOUND     500
#define CUDA_NOT_SUPPORTED 801
#define CUDA_GRANULE_BYTES (2ull << 20)
#define CUDA_EXPORT        __attribute__((visibility("default")))

typedef uint64_t cuda_word;
typedef int (*cuda_function)();

struct cuda_name {
    const char *base;
    int version;
    int is_per_thread;
    void *ours; /* NULL: not wrapped */
};

extern void *cuda_table[REAL_COUNT] __attribute__((visibility("hidden")));
extern const char *const cuda_symbols[] __attribute__((visibility("hidden")));
extern const struct cuda_name cuda_names[] __attribute__((visibility("hidden")));
extern const unsigned int cuda_name_count __attribute__((visibility("hidden")));

/*
 * Calls the real driver. All arguments are words or pointers, so the call needs no prototype.
 * Constants must be cast to cuda_word.
 */
#define REAL(name) ((cuda_function)cuda_table[REAL_##name])

/* Opens the driver and fills the table, once. The trampolines and the first use of REAL need it. */
__attribute__((visibility("hidden"))) void cuda_resolve(void);

/* Makes the context of lanes and stash current to the calling thread until cuda_pop. Returns 0, or
 * -ENODEV. */
int cuda_push(void);
void cuda_pop(void);

/* Records the calling thread's context, unless one is recorded already. */
void cuda_note_context(void);

/* Ordinal of the device, for VMM calls. */
int cuda_device(void);

#endif
