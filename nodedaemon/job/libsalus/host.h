/* PyTorch's CPU blocks: redirected, placed, counted and capped. See host.c for how. */
#ifndef SALUS_HOST_H
#define SALUS_HOST_H

#include <stdbool.h>
#include <stdint.h>

/* As salus_hook. */
int host_hook(void);

/* The calling thread's blocks go to the lane while the grant is held. */
void host_mark_thread(void);

/* Bytes of the session's own memory now: process, private blocks, stash. Caller holds memory_lock.
 */
uint64_t host_persistent_bytes(void);

/* P of the design as a running maximum. Caller holds memory_lock. */
uint64_t host_persistent_peak_bytes(void);

/* Reads the process's own memory anew; slow (a file of /proc). Takes memory_lock. */
void host_measure_own(void);

/* An iteration ends and the next begins: per-iteration figures roll over. Caller holds memory_lock.
 */
void host_roll_iteration(void);

/* After fork in the child: forget which threads were ours. */
void host_forget_threads(void);

#endif
