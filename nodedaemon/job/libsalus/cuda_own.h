/* The job's own device memory in a reserved address range, and how much the process uses. */
#ifndef SALUS_CUDA_OWN_H
#define SALUS_CUDA_OWN_H

#include <stdbool.h>
#include <stdint.h>

/* Sizes are whole granules. Both return the driver's code. */
int own_allocate(uint64_t size_bytes, uint64_t *address);
int own_free(uint64_t address);
bool own_holds(uint64_t address);

/* Device memory of this process according to NVML; 0 if unknown. Slow. */
uint64_t cuda_used_bytes(void);

#endif
