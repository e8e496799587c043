#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "client.h"
#include "host.h"
#include "lending.h"
#include "point.h"
#include "session.h"

/*
 * A futex wake-up on another CPU costs 30 to 50 us, a spin that succeeds under 1 us; on one CPU a
 * spin only keeps the peer from running. So: spin this long, only if the peer was last seen
 * elsewhere and the last wait was as short.
 */
#define SPIN_NS 20000ull

static struct gate *const gate = &session.gate;

static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static void store_relaxed(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static void set_calm(bool is_calm)
{
    __atomic_store_n(&gate->entry.is_calm, is_calm, __ATOMIC_SEQ_CST);
}

static void begin_iteration(uint64_t now_ns)
{
    SALUS_POINT(POINT_BEFORE_COUNT);
    gate->is_interrupted = false;
    gate->started_count++;
    gate->iteration_count++;
    gate->iteration_since_ns = now_ns;
    store_relaxed(&gate->page->iteration_count, gate->iteration_count);
    store_relaxed(&gate->page->started_count, gate->started_count);
    store_relaxed(&gate->page->boundary_ns, now_ns);
    SALUS_POINT(POINT_COUNT_STORED);
}

static void end_iteration(uint64_t now_ns)
{
    if (gate->iteration_since_ns) {
        gate->iteration_ns[gate->iteration_next % ITERATIONS_KEPT] =
            now_ns - gate->iteration_since_ns;
        gate->iteration_next++;
        gate->iteration_since_ns = 0;
    }
    pthread_mutex_lock(&session.memory_lock);
    host_roll_iteration();
    pthread_mutex_unlock(&session.memory_lock);
}

/*
 * The rest of an iteration that was counted under the grant before. It uses the new grant up like
 * one that starts, or mates would be overtaken once more than salusd has allowed.
 */
static void resume_iteration(void)
{
    gate->is_interrupted = false;
    gate->resumed_count = 1;
}

/* Whether a lease word of ours lets another iteration start. */
static bool has_room(uint64_t word)
{
    return (uint64_t)gate->started_count + gate->resumed_count < (uint32_t)word;
}

/* Moves `state` on from whatever salusd left there; only the session itself leaves RUNNING. */
static void set_state(enum salus_gate_state state)
{
    uint64_t seen = load(&gate->page->state);
    uint64_t next;

    do {
        next = state_word(gate->epoch, (uint8_t)(state_sequence(seen) + 1), state);
    } while (!__atomic_compare_exchange_n(&gate->page->state, &seen, next, false, __ATOMIC_SEQ_CST,
                                          __ATOMIC_SEQ_CST));
}

void gate_ring(void)
{
    if (gate->slot) {
        __atomic_add_fetch(&gate->slot->bell, 1, __ATOMIC_SEQ_CST);
        futex_wake(&gate->slot->bell);
    }
}

void gate_tell_started(void)
{
    uint64_t epoch = __atomic_exchange_n(&gate->told_epoch, 0, __ATOMIC_RELAXED);
    struct salus_started frame = {.epoch = epoch};

    if (!epoch)
        return;
    client_send(&frame, SALUS_STARTED, sizeof(frame));
    SALUS_POINT(POINT_STARTED_TOLD);
}

/*
 * On one CPU whatever we do before we sleep keeps the successor from running, and waking salusd is
 * the dearest of it (a call and, where its CPU sleeps, an interrupt to that CPU). So the successor
 * tells salusd in our place, once it is at work; on another CPU it runs while we tell it ourselves.
 */
static bool is_relay_useful(const struct salus_turn_slot *slot, bool wants_next)
{
    return wants_next && session.may_relay &&
           __atomic_load_n(&slot->cpu, __ATOMIC_RELAXED) == (uint32_t)sched_getcpu();
}

void gate_nudge(void)
{
    if (gate->slot && __atomic_load_n(&gate->slot->sleepers, __ATOMIC_RELAXED))
        futex_wake(&gate->slot->bell);
}

/* Starts the successor that salusd has named, if any; its epoch, or 0. `is_relayed`: it tells
 * salusd. */
static uint64_t start_successor(bool wants_next, bool *is_relayed)
{
    uint64_t word = __atomic_exchange_n(&gate->page->successor, 0, __ATOMIC_SEQ_CST);
    uint32_t index = (uint32_t)(word & 0xffff) - 1;
    struct salus_turn_slot *slot;

    SALUS_POINT(POINT_SUCCESSOR_TAKEN);
    *is_relayed = false;
    gate->peer_slot = SALUS_SLOT_COUNT;
    if (!word || index >= SALUS_SLOT_COUNT)
        return 0;
    slot = &gate->turn->slots[index];
    gate->peer_slot = index;
    *is_relayed = is_relay_useful(slot, wants_next);
    __atomic_store_n(&slot->owed, *is_relayed, __ATOMIC_RELAXED);
    SALUS_POINT(POINT_OWED_WRITTEN);
    __atomic_store_n(&slot->offer, word >> 16, __ATOMIC_SEQ_CST);
    SALUS_POINT(POINT_OFFER_WRITTEN);
    __atomic_add_fetch(&slot->bell, 1, __ATOMIC_SEQ_CST);
    SALUS_POINT(POINT_BELL_RAISED);
    if (__atomic_load_n(&slot->sleepers, __ATOMIC_SEQ_CST))
        futex_wake(&slot->bell);
    SALUS_POINT(POINT_WOKEN);
    return word >> 16;
}

static void note_return(uint32_t iteration_count, uint32_t contended_count)
{
    store_relaxed(&gate->page->returned_epoch, gate->epoch);
    store_relaxed(&gate->page->returned_counts, (uint64_t)contended_count << 32 | iteration_count);
}

/* 0: the grant is back; 1: it must be kept for another iteration. gate_lock held. */
static int hand_over(bool wants_next)
{
    struct salus_return frame = {
        .epoch = gate->epoch,
        .iteration_count = gate->started_count,
        .contended_count = gate->started_count - gate->contended_from,
        .wants_next = wants_next,
    };
    bool is_relayed;

    gate_tell_started();
    SALUS_POINT(POINT_BEFORE_RETURN);
    if (lending_shut_or_ask())
        return 1;
    SALUS_POINT(POINT_STASHED);
    gate->lease_seen = 0;
    set_calm(false);
    gate->is_asking = wants_next;
    note_return(frame.iteration_count, frame.contended_count);
    SALUS_POINT(POINT_RETURN_NOTED);
    /* Before the state: a count of this grant must not be taken for one of the next. */
    store_relaxed(&gate->page->started_count, 0);
    set_state(wants_next ? SALUS_STATE_WAITING : SALUS_STATE_OUT);
    SALUS_POINT(POINT_STATE_LEFT);
    frame.successor_epoch = start_successor(wants_next, &is_relayed);
    if (!is_relayed) {
        frame.handed_over = frame.successor_epoch != 0;
        frame.held_ns = clock_ns() - gate->held_since_ns;
        client_send(&frame, SALUS_RETURN, sizeof(frame));
        SALUS_POINT(POINT_RETURN_SENT);
    }
    gate->handover_count++;
    lending_finish();
    return 0;
}

/* The epoch that may start under this lease word, or 0. */
static uint64_t startable_epoch(uint64_t lease)
{
    uint64_t epochs[2] = {load(&gate->page->grant), load(&gate->slot->offer)};
    int index;

    for (index = 0; index < 2; index++)
        if (epochs[index] > gate->epoch && (uint32_t)epochs[index] == lease >> 32)
            return epochs[index];
    return 0;
}

static bool try_start(void)
{
    uint64_t lease = load(&gate->page->lease);
    uint64_t seen = load(&gate->page->state);
    uint64_t epoch = lease ? startable_epoch(lease) : 0;
    struct lane *lane = session.lane;
    bool is_started;

    if (!epoch || state_of(seen) != SALUS_STATE_WAITING)
        return false;
    /* The sequence was read before the lease is looked at again: a disarm in between makes the swap
     * fail. */
    if (load(&gate->page->lease) != lease)
        return false;
    /* salusd has what was started before it took a lease back: a limit that comes now counts from
     * here. */
    store_relaxed(&gate->page->started_count, 0);
    pthread_mutex_lock(&session.memory_lock);
    /* LANE may still be with the receiver, which rings when it is mapped. */
    is_started = lane->mapped_bytes && lane->id == load(&gate->page->lane) &&
                 lane->epoch == load(&gate->page->lane_epoch) &&
                 __atomic_compare_exchange_n(
                     &gate->page->state, &seen,
                     state_word(epoch, (uint8_t)(state_sequence(seen) + 1), SALUS_STATE_RUNNING),
                     false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (is_started) {
        SALUS_POINT(POINT_STARTED);
        gate->epoch = epoch;
        gate->started_count = 0;
        gate->resumed_count = 0;
        gate->contended_from = 0;
        gate->lease_seen = load(&gate->page->lease);
        if (load(&gate->slot->offer) == epoch &&
            __atomic_exchange_n(&gate->slot->owed, 0, __ATOMIC_RELAXED))
            __atomic_store_n(&gate->told_epoch, epoch, __ATOMIC_RELAXED);
        SALUS_POINT(POINT_OWED_TAKEN);
        lane_open(lane);
        set_calm(true);
        SALUS_POINT(POINT_LANE_OPEN);
    }
    pthread_mutex_unlock(&session.memory_lock);
    return is_started;
}

static bool is_spin_useful(void)
{
    uint32_t index = gate->peer_slot;

    return index < SALUS_SLOT_COUNT && gate->wait_last_ns < 2 * SPIN_NS &&
           __atomic_load_n(&gate->turn->slots[index].cpu, __ATOMIC_RELAXED) != gate->slot->cpu;
}

static void spin(uint32_t bell)
{
    uint64_t end_ns = clock_ns() + SPIN_NS;
    int turn;

    do {
        for (turn = 0; turn < 64; turn++) {
            if (__atomic_load_n(&gate->slot->bell, __ATOMIC_ACQUIRE) != bell)
                return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (clock_ns() < end_ns);
}

/* Half of it: the receiver's second began before this wait did. */
static bool is_nudged(uint64_t since_ns)
{
    return clock_ns() - since_ns >= NUDGE_MS * 500000ull;
}

/* Until a grant is ours. 0; -EINTR, also after a second of waiting; -ENOTCONN when the session was
 * switched off meanwhile. */
static int wait_turn(uint64_t since_ns)
{
    bool may_spin = true;
    uint64_t now_ns;
    int error;

    __atomic_store_n(&gate->slot->cpu, (uint32_t)sched_getcpu(), __ATOMIC_RELAXED);
    SALUS_POINT(POINT_CPU_STORED);
    for (;;) {
        uint32_t bell = __atomic_load_n(&gate->slot->bell, __ATOMIC_SEQ_CST);

        if (session.phase != PHASE_GATED) {
            set_state(SALUS_STATE_OUT);
            return -ENOTCONN;
        }
        if (try_start())
            break;
        if (may_spin && is_spin_useful()) {
            spin(bell);
            may_spin = false;
            continue;
        }
        __atomic_store_n(&gate->slot->sleepers, 1, __ATOMIC_SEQ_CST);
        SALUS_POINT(POINT_SLEEPERS_RAISED);
        /* Without a time-out, which would cost a sixth of the hand-over: the receiver nudges. */
        error = futex_wait(&gate->slot->bell, bell, NULL);
        __atomic_store_n(&gate->slot->sleepers, 0, __ATOMIC_SEQ_CST);
        SALUS_POINT(POINT_SLEEPERS_LOWERED);
        /* A signal that came just before the sleep interrupts nothing: a nudge lets it be seen. */
        if (session.is_interruptible && (error == -EINTR || is_nudged(since_ns))) {
            gate->wait_ns += clock_ns() - since_ns;
            return -EINTR;
        }
    }
    now_ns = clock_ns();
    gate->wait_last_ns = now_ns - since_ns;
    gate->wait_ns += gate->wait_last_ns;
    gate->held_since_ns = now_ns;
    return 0;
}

static void want(void)
{
    struct salus_want frame = {.last_epoch = gate->epoch};

    set_state(SALUS_STATE_WAITING);
    client_send(&frame, SALUS_WANT, sizeof(frame));
}

void gate_want_again(void)
{
    struct salus_want frame = {.last_epoch = gate->epoch};

    if (gate->page && state_of(load(&gate->page->state)) == SALUS_STATE_WAITING)
        client_send(&frame, SALUS_WANT, sizeof(frame));
}

/* A grant is held when this answers 0 and one iteration may start. gate_lock held, no grant held.
 */
static int acquire(void)
{
    int error;

    if (!gate->is_asking)
        want();
    gate->is_asking = true;
    for (;;) {
        error = wait_turn(clock_ns());
        if (error)
            return error;
        gate->is_asking = false;
        /* Revoked before it began: give it back and go on waiting. */
        if ((uint32_t)gate->lease_seen || gate->lease_seen >> 32 != (uint32_t)gate->epoch)
            return 0;
        if (hand_over(true))
            return 0;
    }
}

/* The receiver found us idle: take the lease back, unless salusd was faster. gate_lock held. */
static void end_idle(void)
{
    uint64_t seen = load(&gate->page->state);
    uint64_t next =
        state_word(gate->epoch, (uint8_t)(state_sequence(seen) + 1), SALUS_STATE_RUNNING);

    __atomic_store_n(&gate->is_pausing, 0, __ATOMIC_SEQ_CST);
    if (!gate->lease_seen)
        return;
    pthread_mutex_lock(&session.memory_lock);
    if (state_of(seen) == SALUS_STATE_IDLE && session.lane->mapped_bytes &&
        __atomic_compare_exchange_n(&gate->page->state, &seen, next, false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST)) {
        SALUS_POINT(POINT_IDLE_ENDED);
        lane_open(session.lane);
        set_calm(true);
    } else {
        gate->lease_seen = 0;
        /* A boundary that was held up while the lease was taken back falls under the next grant. */
        gate->is_interrupted = gate->started_count == gate->idle_count;
        gate->iteration_count -= gate->started_count - gate->idle_count;
    }
    pthread_mutex_unlock(&session.memory_lock);
}

/* Everything but the fast path; gate_lock held. */
static int renew(bool is_boundary, uint64_t now_ns)
{
    uint64_t word;
    bool is_new = false;
    int error;

    if (session.phase != PHASE_GATED)
        return -ENOTCONN;
    if (gate->is_pausing)
        end_idle();
    if (gate->lease_seen) {
        word = load(&gate->page->lease);
        if (!is_boundary)
            return 0;
        if (word != gate->lease_seen)
            gate->contended_from = gate->started_count;
        /* A word of another epoch is no lease of ours: the grant is over. */
        if (word >> 32 == (uint32_t)gate->epoch && has_room(word)) {
            gate->lease_seen = word;
        } else if (!hand_over(true)) {
            is_new = true;
            error = acquire();
            if (error)
                return error;
            now_ns = gate->held_since_ns;
        }
    } else {
        is_new = true;
        if (!is_boundary)
            end_iteration(now_ns);
        error = acquire();
        if (error)
            return error;
        now_ns = gate->held_since_ns;
    }
    if (gate->is_interrupted && !is_boundary)
        resume_iteration();
    else
        begin_iteration(now_ns);
    return is_new;
}

int gate_enter(void)
{
    int answer;

    if (gate->lease_seen && !__atomic_load_n(&gate->is_pausing, __ATOMIC_RELAXED))
        return 0;
    pthread_mutex_lock(&session.gate_lock);
    answer = renew(false, clock_ns());
    pthread_mutex_unlock(&session.gate_lock);
    return answer;
}

/* The load and the compare. */
static bool is_lease_open(void)
{
    uint64_t word = load(&gate->page->lease);

    return __builtin_expect(word == gate->lease_seen && has_room(word) &&
                                !__atomic_load_n(&gate->is_pausing, __ATOMIC_RELAXED),
                            1);
}

int gate_boundary(void)
{
    uint64_t now_ns = clock_ns();
    int answer;

    end_iteration(now_ns);
    if (is_lease_open()) {
        begin_iteration(now_ns);
        return 0;
    }
    pthread_mutex_lock(&session.gate_lock);
    answer = renew(true, now_ns);
    pthread_mutex_unlock(&session.gate_lock);
    return answer;
}

bool gate_try_boundary(uint64_t now_ns)
{
    if (!is_lease_open())
        return false;
    end_iteration(now_ns);
    begin_iteration(now_ns);
    return true;
}

int gate_leave(void)
{
    int answer = 0;

    pthread_mutex_lock(&session.gate_lock);
    if (gate->is_pausing)
        end_idle();
    if (gate->lease_seen) {
        end_iteration(clock_ns());
        answer = hand_over(false);
    }
    gate->is_interrupted = false;
    pthread_mutex_unlock(&session.gate_lock);
    return answer;
}

/* Orders the entries' plain stores against our look at them, so that the fast path needs no fence.
 */
static bool fence_all_threads(void)
{
    return !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) ||
           (!syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) &&
            !syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0));
}

bool gate_try_idle(uint64_t activity)
{
    uint64_t seen, next;
    bool is_idle = false;

    if (pthread_mutex_trylock(&session.gate_lock))
        return false;
    if (session.phase != PHASE_GATED || !gate->lease_seen || gate->is_pausing)
        goto unlock;
    __atomic_store_n(&gate->is_pausing, 1, __ATOMIC_SEQ_CST);
    set_calm(false);
    if (!fence_all_threads() || __atomic_load_n(&gate->entry.depth, __ATOMIC_SEQ_CST) ||
        __atomic_load_n(&gate->entry.activity, __ATOMIC_SEQ_CST) != activity)
        goto resume;
    gate_tell_started();
    is_idle = !lending_shut();
    if (!is_idle)
        goto resume;
    /* Time without work is no part of an iteration. */
    gate->iteration_since_ns = 0;
    /* What salusd finds should it take the lease back, whatever a thread that is held up counts. */
    gate->idle_count = __atomic_load_n(&gate->started_count, __ATOMIC_RELAXED);
    note_return(gate->idle_count, 0);
    seen = load(&gate->page->state);
    next = state_word(gate->epoch, (uint8_t)(state_sequence(seen) + 1), SALUS_STATE_IDLE);
    /* Only ours to change while RUNNING, so this cannot fail for long. */
    while (!__atomic_compare_exchange_n(&gate->page->state, &seen, next, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST))
        ;
    SALUS_POINT(POINT_IDLE);
    goto unlock;
resume:
    __atomic_store_n(&gate->is_pausing, 0, __ATOMIC_SEQ_CST);
    set_calm(true);
unlock:
    pthread_mutex_unlock(&session.gate_lock);
    return is_idle;
}
