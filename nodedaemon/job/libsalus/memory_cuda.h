/* What other wrappers of driver calls need of the placement of device memory. */
#ifndef SALUS_MEMORY_CUDA_H
#define SALUS_MEMORY_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_driver.h"

#define WRAP(name, ...) CUDA_EXPORT int name(__VA_ARGS__)

/* A block in the lane or in memory of the job's own. The driver's code. */
int cuda_allocate(uint64_t *address, uint64_t size_bytes);

/* Counts a block that the driver placed for the job. */
void cuda_note_private(uint64_t address, uint64_t size_bytes);

/* True if Salus placed the block: in the lane, or in an address range of ours. */
bool cuda_is_placed(uint64_t address);

#endif
