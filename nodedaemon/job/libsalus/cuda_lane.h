/* Calls that the CUDA part adds to libsalus, and functions that its files share. */
#ifndef SALUS_CUDA_LANE_H
#define SALUS_CUDA_LANE_H

#include <stdint.h>

#include "salus.h"

struct salus_cuda_range {
    uint64_t address;
    uint64_t size_bytes;
};

/*
 * For a framework that caches device memory: `segments` are the driver allocations that it caches,
 * `blocks` the live blocks inside them. Valid for the next boundary only. Allocations that are not
 * in `segments` are kept whole. 0, or -ENOMEM.
 */
SALUS_API int salus_cuda_live(const struct salus_cuda_range *segments, uint32_t segment_count,
                              const struct salus_cuda_range *blocks, uint32_t block_count);

/* 1 if a boundary now would return the grant, so that a list is useful. Costs one load. */
SALUS_API int salus_cuda_will_yield(void);

/* Kernels launched so far. */
SALUS_API uint64_t salus_cuda_launch_count(void);

/* Maps the memory of a handle for reading and writing, and creates a handle. Both return the
 * driver's code. */
int cuda_map(uint64_t address, uint64_t size_bytes, uint64_t handle);
int cuda_create(uint64_t size_bytes, uint64_t *handle);

#endif
