/* What other wrappers of driver calls need from the backend for device memory. */
#ifndef SALUS_MEMORY_CUDA_H
#define SALUS_MEMORY_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_driver.h"

#define WRAP(name, ...) CUDA_EXPORT int name(__VA_ARGS__)

/* Allocates a block in the lane or in the job's own memory. Returns the driver's code. */
int cuda_allocate(uint64_t *address, uint64_t size_bytes);

/* True if Salus placed the block: in the lane, or in an address range of ours. */
bool cuda_is_placed(uint64_t address);

#endif
