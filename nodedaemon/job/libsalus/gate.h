/*
 * The session's side of the gate; gate.c explains how it works. Without contention a boundary is a
 * load and a compare.
 */
#ifndef SALUS_GATE_H
#define SALUS_GATE_H

#include <stdbool.h>
#include <stdint.h>

#include "session.h"

/* Acquires a grant if none is held, and may wait for it. Returns 0 if one was held already, 1 if it
 * is new, or a negative error: -ENOTCONN, or -EINTR as in salus.h. */
int gate_enter(void);

/* Ends the iteration and starts the next. Returns 0 under the same lease, 1 after a hand-over, or
 * an error as for gate_enter. */
int gate_boundary(void);

/* Does what gate_boundary does if the lease allows another iteration. Otherwise does nothing and
 * returns false. */
bool gate_try_boundary(uint64_t now_ns);

/* Returns the grant and asks for no other. Returns 1 if the grant is kept because the stash does
 * not fit, else 0. */
int gate_leave(void);

/* Records how long the iteration took, and rolls the memory counters over. */
void gate_end_iteration(uint64_t now_ns);

/* For idle.c: sets whether entries may skip the gate, stores the counts of a grant that is being
 * returned, and sets the state, whatever its current sequence is. */
void gate_set_calm(bool is_fast_path);
void gate_note_return(uint32_t iteration_count, uint32_t contended_count);
void gate_set_state(enum salus_gate_state state);

/* Sends the STARTED that a predecessor left to us. */
void gate_send_started(void);

/*
 * The job is active: it entered an entry point or allocated a block. A STARTED that is due is sent
 * here. That is late enough not to delay the hand-over, and early enough for salusd to name the
 * next successor.
 */
static inline void gate_mark_activity(void)
{
    /* Atomic, because autograd has several threads. */
    __atomic_add_fetch(&session.gate.entry.activity, 1, __ATOMIC_RELAXED);
    if (__builtin_expect(__atomic_load_n(&session.gate.started_due_epoch, __ATOMIC_RELAXED) != 0,
                         0))
        gate_send_started();
}

/* Wakes the thread of this process that waits in the gate. */
void gate_wake(void);

/* Called by the receiver once per second: wakes a waiting thread in case its wake-up was lost. That
 * happens if the predecessor was killed or stopped between incrementing `wake_count` and waking. */
void gate_rewake(void);

/* Sends WANT if a thread waits; again after a reconnect. */
void gate_send_want(void);

#endif
