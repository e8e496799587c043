/*
 * The one session of this process. It is global because the framework calls us without a context
 * argument.
 *
 * Locks, in order: gate_lock (changes of the grant's holder), memory_lock (blocks, pages,
 * counters). memory_lock is never held while waiting for salusd or for a grant; gate_lock may be.
 */
#ifndef SALUS_SESSION_H
#define SALUS_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../wire/salus_wire.h"
#include "lane.h"
#include "page_words.h"
#include "salus.h"

#define LANES_MAX          4 /* one lane, and one more for each generation of forked trainers */
#define ITERATIONS_KEPT    63
#define ANSWER_DEADLINE_NS 10000000000ull
#define NUDGE_MS           1000 /* interval at which the receiver wakes a waiting thread */
#define THREAD_NAME_BYTES  16

enum session_phase {
    PHASE_NONE,    /* no hello yet */
    PHASE_GATED,   /* attached, iterations need a grant */
    PHASE_UNGATED, /* attached and measured, never waits */
    PHASE_OFF,     /* switched off for good */
};

struct gate {
    struct salus_gate_page *page;
    struct salus_turn_page *turn;
    struct salus_turn_slot *slot;
    int page_fd, turn_fd;
    uint64_t epoch;      /* of the current or the last grant */
    uint64_t lease_seen; /* word under which the last iteration started; 0 while no grant is held */
    uint32_t started_count;
    uint32_t contended_from; /* started_count when the last limit was seen */
    uint32_t idle_count;     /* started_count when the receiver found the session idle */
    bool is_interrupted;     /* salusd took the lease back in the middle of an iteration */
    uint32_t resumed_count;  /* 1: the grant began with the rest of an interrupted iteration */
    uint64_t iteration_count;
    uint64_t handover_count;
    uint64_t wait_ns;
    uint64_t held_since_ns;
    uint64_t iteration_since_ns;
    uint64_t wait_last_ns;
    uint32_t peer_slot; /* slot of our last successor; SALUS_SLOT_COUNT: none */
    uint64_t iteration_ns[ITERATIONS_KEPT];
    uint32_t iteration_next;
    struct salus_entry entry;
    bool is_asking;             /* WANT was sent; stays set if the wait is interrupted */
    uint64_t started_due_epoch; /* STARTED must be sent for this epoch; 0: none */
    uint32_t is_idle_check;     /* the receiver checks for idleness: entries take the slow path */
};

struct session {
    pthread_mutex_t gate_lock;
    pthread_mutex_t memory_lock;
    enum session_phase phase;
    bool is_hooked;
    bool is_child; /* forked from a hooked process */
    bool has_stash;
    bool is_interruptible;
    bool may_relay; /* salusd accepts STARTED in place of a predecessor's RETURN */
    uint64_t session;
    uint64_t idle_release_ns;
    struct lane lanes[LANES_MAX];
    uint32_t lane_count;
    struct lane *lane;            /* where new blocks go; NULL while not attached */
    struct salus_counters counts; /* of memory; salus_counters() adds those of gate and lanes */
    uint64_t private_peak_bytes, survivor_peak_bytes, spill_bytes;
    struct gate gate;
    char reason[SALUS_TEXT_BYTES];
};

extern struct session session __attribute__((visibility("hidden")));

uint64_t clock_ns(void);

/* Keeps a text for salus_reason. */
void session_set_reason(const char *text);

static inline bool session_is_attached(void)
{
    return session.phase == PHASE_GATED || session.phase == PHASE_UNGATED;
}

/* The lane whose range of addresses contains this one, or NULL. Async-signal-safe. */
static inline struct lane *session_lane_at(const void *address)
{
    uint32_t index;

    for (index = 0; index < session.lane_count; index++)
        if (lane_holds(&session.lanes[index], address))
            return &session.lanes[index];
    return NULL;
}

/* Does what salus_boundary does if that needs neither a wait nor a message. Otherwise does nothing
 * and returns false. */
bool session_try_boundary(uint64_t now_ns);

/* Makes lane blocks private and ends all waits, without a message. Takes memory_lock. */
void session_detach(void);

#endif
