/*
 * The session's side of the gate. Theory of operation.
 *
 * One lane runs one session at a time. A session may touch lane memory only while the `state` word
 * of its gate page says RUNNING; `lane` and `lane_epoch` name the lane. Every grant has an epoch.
 * salusd assigns epochs in increasing order and never uses one twice.
 *
 * The states of a session, in the low byte of `state`:
 *
 *   OUT      holds no grant and wants none
 *   WAITING  wants a grant
 *   RUNNING  holds the grant `epoch`
 *   IDLE     holds it too, but its survivors are stashed: salusd may take the grant back
 *   REVOKED  salusd has taken the grant back
 *
 * Who changes the state, and from what:
 *
 *   acquire()     OUT, REVOKED -> WAITING  at an entry
 *   try_start()   WAITING -> RUNNING
 *   wait_turn()   WAITING -> OUT           if the session was switched off while it waited
 *   hand_over()   RUNNING -> WAITING, OUT  at a boundary or at the end
 *   idle_try()    RUNNING -> IDLE          in the receiver thread
 *   idle_end()    IDLE -> RUNNING          at the next entry
 *   salusd        IDLE -> REVOKED
 *
 * Who writes the other words of the pages:
 *
 *   gate page  lease, grant, lane, lane_epoch, launch: salusd
 *              successor: salusd; the holder takes it by exchange with 0
 *              all counts, boundary_ns and returned_epoch: the session
 *   turn slot  cpu, sleepers: the session that owns the slot
 *              offer: the predecessor; salusd clears it when it assigns the slot
 *              is_started_due: the predecessor; the owner of the slot takes it by exchange with 0
 *              wake_count: anyone; it only increases
 *
 * `state` changes by compare-and-swap, and every change increments its sequence, so a swap that is
 * based on an old value fails. (The sequence has 8 bits. A thread would have to stop between two
 * instructions for exactly 256 changes to mistake an old value for the current one.)
 *
 * Memory order. All words that decide who holds the lane are accessed with sequentially consistent
 * operations. Counts are relaxed: the sequentially consistent change of `state` that follows makes
 * them visible. A sleeper writes `sleepers`, then sleeps if `wake_count` still has the value that
 * it read before it looked for a grant. A waker increments `wake_count`, then reads `sleepers`. At
 * least one of the two sees what the other wrote, so no wake-up is lost.
 *
 * No grant runs twice. A waiter starts an epoch only if (1) the epoch is newer than its last one,
 * (2) `grant` or `offer` names it, (3) it matches the epoch half of `lease`, and (4) the swap of
 * `state` succeeds. To disarm a grant that has not started, salusd clears `lease` and then
 * increments the sequence. try_start() reads `state` before it reads `lease` again. Either it sees
 * the cleared lease, or its swap fails, or its swap comes first: then the disarm fails, and the
 * next boundary finds a lease that is not its own and returns the grant. The holder and salusd both
 * take a named successor by exchange with 0. Exactly one of them gets it: the holder starts it, or
 * salusd disarms it. The holder shuts its lane and leaves RUNNING before it writes the offer, so
 * two sessions never run in one lane.
 *
 * No grant is lost. A grant ends when salusd receives RETURN, or the STARTED that the successor
 * sends instead, or when salusd revokes it from IDLE, or when the holder dies, which salusd learns
 * from its pidfd. If the holder dies in hand_over(), the result depends on how far it got:
 *
 *   `state` not changed   salusd sees RUNNING, ends the grant and disarms the successor
 *   offer not written     the successor cannot start: salusd disarms it and grants again
 *   successor not woken   it wakes within a second, because its own receiver nudges it. If salusd
 *                         disarms it first, salusd grants again. If not, the disarm fails, and
 *                         salusd knows that the successor is the holder
 *   RETURN not sent       the same: the successor's `state` says whether it has started
 *
 * A waiter that dies before its swap holds nothing; after the swap it is a holder that dies. Each
 * of these places is a SALUS_POINT (point.h), and tests/integration/libsalus/test_kills.py kills a
 * session at every one of them.
 *
 * Locks. gate_lock is held by everything that may change the holder. The fast path of a boundary
 * changes no holder and takes no gate_lock: it is a load and a compare, in the one thread that
 * passes boundaries.
 */
#define _GNU_SOURCE
#include "gate.h"

#include <errno.h>
#include <sched.h>

#include "client.h"
#include "idle.h"
#include "lending.h"
#include "memory.h"
#include "point.h"
#include "session.h"

/*
 * A futex wake-up on another CPU costs 30 to 50 us, a spin that succeeds less than 1 us. On the
 * same CPU a spin only keeps the peer from running. So we spin for this long, and only if the peer
 * ran on another CPU and the last wait was short.
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

void gate_set_calm(bool is_fast_path)
{
    __atomic_store_n(&gate->entry.is_fast_path, is_fast_path, __ATOMIC_SEQ_CST);
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

void gate_end_iteration(uint64_t now_ns)
{
    if (gate->iteration_since_ns) {
        gate->iteration_ns[gate->iteration_next % ITERATIONS_KEPT] =
            now_ns - gate->iteration_since_ns;
        gate->iteration_next++;
        gate->iteration_since_ns = 0;
    }
    pthread_mutex_lock(&session.memory_lock);
    memory_roll_iteration();
    pthread_mutex_unlock(&session.memory_lock);
}

/*
 * Continues an iteration that was counted under the previous grant. It uses up one iteration of the
 * new lease, as a new iteration would; otherwise the session would run once more than salusd
 * allowed.
 */
static void resume_iteration(void)
{
    gate->is_interrupted = false;
    gate->resumed_count = 1;
}

/* True if this lease word, which is of our epoch, allows another iteration. */
static bool has_room(uint64_t word)
{
    return (uint64_t)gate->started_count + gate->resumed_count < (uint32_t)word;
}

void gate_set_state(enum salus_gate_state state)
{
    uint64_t seen = load(&gate->page->state);

    while (!state_swap(&gate->page->state, &seen, gate->epoch, state))
        ;
}

void gate_wake(void)
{
    if (gate->slot) {
        __atomic_add_fetch(&gate->slot->wake_count, 1, __ATOMIC_SEQ_CST);
        futex_wake(&gate->slot->wake_count);
    }
}

void gate_send_started(void)
{
    uint64_t epoch = __atomic_exchange_n(&gate->started_due_epoch, 0, __ATOMIC_RELAXED);
    struct salus_started frame = {.epoch = epoch};

    if (!epoch)
        return;
    client_send(&frame, SALUS_STARTED, sizeof(frame));
    SALUS_POINT(POINT_STARTED_SENT);
}

/*
 * On one CPU everything we do before we sleep delays the successor, and waking salusd costs most of
 * it: a system call and, if its CPU sleeps, an interrupt. So the successor sends STARTED once it
 * runs. On another CPU the successor runs already while we send RETURN ourselves.
 */
static bool is_relay_useful(const struct salus_turn_slot *slot, bool wants_next)
{
    return wants_next && session.may_relay &&
           __atomic_load_n(&slot->cpu, __ATOMIC_RELAXED) == (uint32_t)sched_getcpu();
}

void gate_rewake(void)
{
    if (gate->slot && __atomic_load_n(&gate->slot->sleepers, __ATOMIC_RELAXED))
        futex_wake(&gate->slot->wake_count);
}

/* Starts the successor that salusd has named. Returns its epoch, or 0. `is_relayed`: the successor
 * will send STARTED in place of our RETURN. */
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
    __atomic_store_n(&slot->is_started_due, *is_relayed, __ATOMIC_RELAXED);
    SALUS_POINT(POINT_OWED_WRITTEN);
    __atomic_store_n(&slot->offer, state_epoch(word), __ATOMIC_SEQ_CST);
    SALUS_POINT(POINT_OFFER_WRITTEN);
    __atomic_add_fetch(&slot->wake_count, 1, __ATOMIC_SEQ_CST);
    SALUS_POINT(POINT_WAKE_COUNTED);
    if (__atomic_load_n(&slot->sleepers, __ATOMIC_SEQ_CST))
        futex_wake(&slot->wake_count);
    SALUS_POINT(POINT_WOKEN);
    return state_epoch(word);
}

void gate_note_return(uint32_t iteration_count, uint32_t contended_count)
{
    store_relaxed(&gate->page->returned_epoch, gate->epoch);
    store_relaxed(&gate->page->returned_counts, (uint64_t)contended_count << 32 | iteration_count);
}

/* Returns 0 if the grant was returned, 1 if it is kept for another iteration. The caller holds
 * gate_lock. */
static int hand_over(bool wants_next)
{
    struct salus_return frame = {
        .epoch = gate->epoch,
        .iteration_count = gate->started_count,
        .contended_count = gate->started_count - gate->contended_from,
        .wants_next = wants_next,
    };
    bool is_relayed;

    gate_send_started();
    SALUS_POINT(POINT_BEFORE_RETURN);
    if (lending_shut_or_ask())
        return 1;
    SALUS_POINT(POINT_STASHED);
    gate->lease_seen = 0;
    gate_set_calm(false);
    gate->is_asking = wants_next;
    gate_note_return(frame.iteration_count, frame.contended_count);
    SALUS_POINT(POINT_RETURN_NOTED);
    /* This precedes the change of `state`, so that salusd never reads this grant's count as that of
     * the next grant. */
    store_relaxed(&gate->page->started_count, 0);
    gate_set_state(wants_next ? SALUS_STATE_WAITING : SALUS_STATE_OUT);
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

/* The epoch that this lease word allows to start, or 0. */
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
    /* `seen` was read before this second look at the lease: a disarm in between makes the swap
     * fail. */
    if (load(&gate->page->lease) != lease)
        return false;
    /* salusd adds a new limit to this count, so it must be 0 before the grant starts. */
    store_relaxed(&gate->page->started_count, 0);
    pthread_mutex_lock(&session.memory_lock);
    /* The receiver may still be handling MAP; it wakes the session when the lane is mapped. */
    is_started = lane->mapped_bytes && lane->id == load(&gate->page->lane) &&
                 lane->epoch == load(&gate->page->lane_epoch) &&
                 state_swap(&gate->page->state, &seen, epoch, SALUS_STATE_RUNNING);
    if (is_started) {
        SALUS_POINT(POINT_STARTED);
        gate->epoch = epoch;
        gate->started_count = 0;
        gate->resumed_count = 0;
        gate->contended_from = 0;
        gate->lease_seen = load(&gate->page->lease);
        /* salusd has cleared the lease since our last look, and its disarm fails. The grant is
         * ours: the next boundary returns it. */
        if (!gate->lease_seen)
            gate->lease_seen = lease;
        if (load(&gate->slot->offer) == epoch &&
            __atomic_exchange_n(&gate->slot->is_started_due, 0, __ATOMIC_RELAXED))
            __atomic_store_n(&gate->started_due_epoch, epoch, __ATOMIC_RELAXED);
        SALUS_POINT(POINT_OWED_TAKEN);
        lane_open(lane);
        gate_set_calm(true);
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

static void spin(uint32_t wake_count)
{
    uint64_t end_ns = clock_ns() + SPIN_NS;
    int turn;

    do {
        for (turn = 0; turn < 64; turn++) {
            if (__atomic_load_n(&gate->slot->wake_count, __ATOMIC_ACQUIRE) != wake_count)
                return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (clock_ns() < end_ns);
}

/* Whether the wait has lasted so long that a nudge may have ended it. Half the interval, because
 * the receiver's timer started before this wait. */
static bool is_nudged(uint64_t since_ns)
{
    return clock_ns() - since_ns >= NUDGE_MS * 500000ull;
}

/* Waits for a grant. Returns 0, -EINTR after a signal or a second of waiting, or -ENOTCONN if the
 * session was switched off meanwhile. */
static int wait_turn(uint64_t since_ns)
{
    bool may_spin = true;
    uint64_t now_ns;
    int error;

    __atomic_store_n(&gate->slot->cpu, (uint32_t)sched_getcpu(), __ATOMIC_RELAXED);
    SALUS_POINT(POINT_CPU_STORED);
    for (;;) {
        uint32_t wake_count = __atomic_load_n(&gate->slot->wake_count, __ATOMIC_SEQ_CST);

        if (session.phase != PHASE_GATED) {
            gate_set_state(SALUS_STATE_OUT);
            return -ENOTCONN;
        }
        if (try_start())
            break;
        if (may_spin && is_spin_useful()) {
            spin(wake_count);
            may_spin = false;
            continue;
        }
        __atomic_store_n(&gate->slot->sleepers, 1, __ATOMIC_SEQ_CST);
        SALUS_POINT(POINT_SLEEPERS_RAISED);
        /* No time-out, which would cost a sixth of a hand-over; the receiver nudges instead. */
        error = futex_wait(&gate->slot->wake_count, wake_count, NULL);
        __atomic_store_n(&gate->slot->sleepers, 0, __ATOMIC_SEQ_CST);
        SALUS_POINT(POINT_SLEEPERS_LOWERED);
        /* A signal that arrived just before the sleep did not interrupt it; then a nudge does. */
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

void gate_send_want(void)
{
    struct salus_want frame = {.last_epoch = gate->epoch};

    if (gate->page && state_of(load(&gate->page->state)) == SALUS_STATE_WAITING)
        client_send(&frame, SALUS_WANT, sizeof(frame));
}

/* Waits for a grant that allows an iteration. Returns 0, or the error of wait_turn. The caller
 * holds gate_lock and no grant. */
static int acquire(void)
{
    int error;

    if (!gate->is_asking) {
        gate_set_state(SALUS_STATE_WAITING);
        gate_send_want();
    }
    gate->is_asking = true;
    for (;;) {
        error = wait_turn(clock_ns());
        if (error)
            return error;
        gate->is_asking = false;
        /* Revoked before it started: return it and wait again. */
        if ((uint32_t)gate->lease_seen || gate->lease_seen >> 32 != (uint32_t)gate->epoch ||
            hand_over(true))
            return 0;
    }
}

/* Everything but the fast path. The caller holds gate_lock. */
static int renew(bool is_boundary, uint64_t now_ns)
{
    uint64_t word;
    bool is_new = false;
    int error;

    if (session.phase != PHASE_GATED)
        return -ENOTCONN;
    if (gate->is_idle_check)
        idle_end();
    if (!gate->lease_seen) {
        if (!is_boundary)
            gate_end_iteration(now_ns);
        is_new = true;
    } else if (!is_boundary) {
        return 0;
    } else {
        word = load(&gate->page->lease);
        if (word != gate->lease_seen)
            gate->contended_from = gate->started_count;
        /* A lease of another epoch is not ours: the grant is over. */
        if (word >> 32 == (uint32_t)gate->epoch && has_room(word))
            gate->lease_seen = word;
        else
            is_new = !hand_over(true);
    }
    if (is_new) {
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

    if (gate->lease_seen && !__atomic_load_n(&gate->is_idle_check, __ATOMIC_RELAXED))
        return 0;
    pthread_mutex_lock(&session.gate_lock);
    answer = renew(false, clock_ns());
    pthread_mutex_unlock(&session.gate_lock);
    return answer;
}

/* The fast path of a boundary. */
static bool is_lease_open(void)
{
    uint64_t word = load(&gate->page->lease);

    return __builtin_expect(word == gate->lease_seen && has_room(word) &&
                                !__atomic_load_n(&gate->is_idle_check, __ATOMIC_RELAXED),
                            1);
}

int gate_boundary(void)
{
    uint64_t now_ns = clock_ns();
    int answer;

    gate_end_iteration(now_ns);
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
    gate_end_iteration(now_ns);
    begin_iteration(now_ns);
    return true;
}

int gate_leave(void)
{
    int answer = 0;

    pthread_mutex_lock(&session.gate_lock);
    if (gate->is_idle_check)
        idle_end();
    if (gate->lease_seen) {
        gate_end_iteration(clock_ns());
        answer = hand_over(false);
    }
    gate->is_interrupted = false;
    pthread_mutex_unlock(&session.gate_lock);
    return answer;
}
