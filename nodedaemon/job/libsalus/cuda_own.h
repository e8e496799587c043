/* Device memory of the job's own in a range of ours, and what the driver says the process uses. */
#ifndef SALUS_CUDA_OWN_H
#define SALUS_CUDA_OWN_H

#include <stdbool.h>
#include <stdint.h>

/* Whole granules; the driver's code. */
int own_allocate(uint64_t size_bytes, uint64_t *address);
int own_free(uint64_t address);
bool own_holds(uint64_t address);

/* Device memory of this process by NVML; 0 where NVML does not tell. Slow. */
uint64_t cuda_used_bytes(void);

#endif
