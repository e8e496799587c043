/* What other wrappers need of the placement of device memory. */
#ifndef SALUS_CUDA_MEMORY_H
#define SALUS_CUDA_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#define WRAP(name, ...) CUDA_EXPORT int name(__VA_ARGS__)

/* In the lane, in memory of the job's own, or the driver's code for no room. */
int memory_take(uint64_t *address, uint64_t size_bytes);

/* False where the session may not have that much more; the daemon was asked. */
bool memory_is_allowed(uint64_t size_bytes);

/* Counts a block that the driver placed as the job's own; memory_take's are counted already. */
void memory_count(uint64_t address, uint64_t size_bytes);

/* Whether Salus placed the block: in the lane, or where its memory can change. */
bool memory_is_ours(uint64_t address);

#endif
