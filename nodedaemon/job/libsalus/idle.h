/* Idle release; idle.c explains it. */
#ifndef SALUS_IDLE_H
#define SALUS_IDLE_H

#include <stdbool.h>
#include <stdint.h>

/* Called by the receiver: if nothing happened since `activity`, stashes the survivors and offers
 * the lease. True if the session is idle now. */
bool idle_try(uint64_t activity);

/* Called by an entry: takes the lease back, unless salusd has revoked it. The caller holds
 * gate_lock. */
void idle_end(void);

#endif
