/*
 * Idle release: a session that holds a grant and does nothing offers it back.
 *
 * The receiver thread stashes the survivors and changes the state from RUNNING to IDLE. From then
 * on salusd may change it to REVOKED without asking. An entry that arrives meanwhile must not run
 * in a lane that is about to be lent to another session. The receiver therefore first sets
 * `is_idle_check` and clears `is_fast_path`, so that entries take the slow path and gate_lock. Then
 * it issues a barrier on all threads, and only then checks that no entry is open and no activity
 * was counted. The next entry ends the idle time: it changes IDLE back to RUNNING, or finds REVOKED
 * and asks for a new grant. An iteration that was interrupted in this way continues under the new
 * grant.
 */
#define _GNU_SOURCE
#include "idle.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gate.h"
#include "lending.h"
#include "point.h"

static struct gate *const gate = &session.gate;

void idle_end(void)
{
    uint64_t seen = __atomic_load_n(&gate->page->state, __ATOMIC_SEQ_CST);

    __atomic_store_n(&gate->is_idle_check, 0, __ATOMIC_SEQ_CST);
    if (!gate->lease_seen)
        return;
    pthread_mutex_lock(&session.memory_lock);
    if (state_of(seen) == SALUS_STATE_IDLE && session.lane->mapped_bytes &&
        state_swap(&gate->page->state, &seen, gate->epoch, SALUS_STATE_RUNNING)) {
        SALUS_POINT(POINT_IDLE_ENDED);
        lane_open(session.lane);
        gate_set_calm(true);
    } else {
        gate->lease_seen = 0;
        /* A boundary that was delayed while salusd took the lease back counts under the next grant.
         */
        gate->is_interrupted = gate->started_count == gate->idle_count;
        gate->iteration_count -= gate->started_count - gate->idle_count;
    }
    pthread_mutex_unlock(&session.memory_lock);
}

/* Makes the plain stores of all entries visible before we read them, so that the fast path needs no
 * fence. */
static bool fence_all_threads(void)
{
    return !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) ||
           (!syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) &&
            !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
}

bool idle_try(uint64_t activity)
{
    bool is_idle = false;

    if (pthread_mutex_trylock(&session.gate_lock))
        return false;
    if (session.phase != PHASE_GATED || !gate->lease_seen || gate->is_idle_check)
        goto unlock;
    __atomic_store_n(&gate->is_idle_check, 1, __ATOMIC_SEQ_CST);
    gate_set_calm(false);
    if (!fence_all_threads() || __atomic_load_n(&gate->entry.depth, __ATOMIC_SEQ_CST) ||
        __atomic_load_n(&gate->entry.activity, __ATOMIC_SEQ_CST) != activity)
        goto resume;
    gate_send_started();
    is_idle = !lending_shut();
    if (!is_idle)
        goto resume;
    /* Idle time does not count as part of an iteration. */
    gate->iteration_since_ns = 0;
    /* salusd reads this count if it takes the lease back, even if a delayed thread counts more. */
    gate->idle_count = __atomic_load_n(&gate->started_count, __ATOMIC_RELAXED);
    gate_note_return(gate->idle_count, 0);
    gate_set_state(SALUS_STATE_IDLE);
    SALUS_POINT(POINT_IDLE);
    goto unlock;
resume:
    __atomic_store_n(&gate->is_idle_check, 0, __ATOMIC_SEQ_CST);
    gate_set_calm(true);
unlock:
    pthread_mutex_unlock(&session.gate_lock);
    return is_idle;
}
