/*
 * The one session of this process. It is global because the framework calls us without a context
 * argument.
 *
 * Locks, in order: gate_lock (changes of the grant's holder), memory_lock (blocks, pages,
 * counters). No lock is held while waiting for salusd or for a grant.
 */
#ifndef SALUS_SESSION_H
#define SALUS_SESSION_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "../../wire/salus_wire.h"
#include "lane.h"
#include "page_words.h"
#include "salus.h"

#define LANES_MAX          4 /* ranges of ours: one, and one more for each generation of forked trainers */
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

struct memory_counts {
    uint64_t live_bytes, live_peak_bytes;
    uint64_t iteration_start_bytes, iteration_peak_bytes, last_iteration_bytes;
    uint64_t live_persistent_bytes, live_ephemeral_bytes;
    uint64_t private_bytes, private_peak_bytes;
    uint64_t lane_bytes, survivor_peak_bytes;
    uint64_t lane_count, private_count;
    uint64_t own_bytes;
    uint64_t spill_count, spill_bytes, spill_bytes_max;
    uint64_t cap_persistent_bytes, cap_ephemeral_bytes;
    uint64_t stray_count;
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
    uint32_t idle_count;     /* started_count when the receiver found us idle */
    bool is_interrupted;     /* salusd took the grant from the idle session in mid-iteration */
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
    bool is_asking;             /* salusd knows that we wait; stays set if a wait is interrupted */
    uint64_t started_due_epoch; /* STARTED must be sent for this epoch; 0: none */
    uint32_t is_pausing;        /* the receiver checks for idleness: entries take the slow path */
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
    struct lane *lane; /* where new blocks go; NULL before the first entry */
    struct memory_counts counts;
    struct gate gate;
    char reason[SALUS_TEXT_BYTES];
};

extern struct session session __attribute__((visibility("hidden")));

uint64_t clock_ns(void);
void session_reason(const char *text);

/* True if SALUS_DISABLE is set to anything but "" or 0. */
bool session_is_disabled(void);

/* salus_boundary if that needs neither a wait nor a message. Otherwise does nothing and returns
 * false.
 */
bool session_try_boundary(uint64_t now_ns);

/* Makes lane blocks private and ends all waits, without a message. Takes both locks. */
void session_detach(void);

#endif
