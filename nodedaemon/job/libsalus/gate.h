/*
 * The session's side of the gate; docs/protocol.md says what each word means. Without contention a
 * boundary is a load and a compare. Whatever instruction a session dies at, salusd can tell from
 * `state` whether its successor runs, so each write is a point of the kill test (point.h).
 */
#ifndef SALUS_GATE_H
#define SALUS_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* Makes sure that a grant is held, waiting if need be. 0 held already, 1 newly granted, -ENOTCONN.
 */
int gate_enter(void);

/* The iteration is over; starts the next under the same lease (0), after a hand-over (1), or
 * -ENOTCONN. */
int gate_boundary(void);

/* Gives the grant back and asks for none. 0, or 1 if it must be kept because the stash does not
 * fit. */
int gate_leave(void);

/* By the receiver: if nothing happened since `activity`, stash and offer the lease. True if idle
 * now. */
bool gate_try_idle(uint64_t activity);

/* Wakes whoever waits in the gate of this process. */
void gate_ring(void);

/* After a reconnect: says WANT again if a thread waits. */
void gate_want_again(void);

#endif
