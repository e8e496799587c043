/* Idle release; idle.c explains it. */
#ifndef SALUS_IDLE_H
#define SALUS_IDLE_H

#include <stdbool.h>
#include <stdint.h>

/* By the receiver: if nothing happened since `activity`, stashes and offers the lease. True if the
 * session is idle now. */
bool idle_try(uint64_t activity);

/* By an entry: takes the lease back, unless salusd was faster. Caller holds gate_lock. */
void idle_end(void);

#endif
