/*
 * The session's side of the gate; docs/protocol.md says what each word means. Without contention a
 * boundary is a load and a compare. Whatever instruction a session dies at, salusd can tell from
 * `state` whether its successor runs, so each write is a point of the kill test (point.h).
 */
#ifndef SALUS_GATE_H
#define SALUS_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "session.h"

/* Makes sure that a grant is held, waiting if need be. 0 held already, 1 newly granted, -ENOTCONN.
 */
int gate_enter(void);

/* The iteration is over; starts the next under the same lease (0), after a hand-over (1), or
 * -ENOTCONN. */
int gate_boundary(void);

/* As gate_boundary where the lease is still ours; false, and nothing done, where it would have to
 * look further. */
bool gate_try_boundary(uint64_t now_ns);

/* Gives the grant back and asks for none. 0, or 1 if it must be kept because the stash does not
 * fit. */
int gate_leave(void);

/* For idle.c: whether entries may skip the gate, and the counts of a grant that is being returned.
 */
void gate_set_calm(bool is_calm);
void gate_note_return(uint32_t iteration_count, uint32_t contended_count);

/* Sends the STARTED that a predecessor left to us. */
void gate_send_started(void);

/*
 * An entry point or a block of the job: something is being done. Whatever is still owed to salusd
 * for the start of this iteration is told here, so that it delays neither the hand-over nor the
 * naming of the next successor.
 */
static inline void gate_mark_activity(void)
{
    /* Entry points and lane blocks of one thread would need no atomic; autograd has several. */
    __atomic_add_fetch(&session.gate.entry.activity, 1, __ATOMIC_RELAXED);
    if (__builtin_expect(__atomic_load_n(&session.gate.started_due_epoch, __ATOMIC_RELAXED) != 0,
                         0))
        gate_send_started();
}

/* Wakes whoever waits in the gate of this process. */
void gate_ring(void);

/* By the receiver, now and then: has a waiting thread look again, should a wake-up have been lost
 * (a mate was killed or stopped between raising the bell and waking). */
void gate_nudge(void);

/* After a reconnect: says WANT again if a thread waits. */
void gate_want_again(void);

#endif
