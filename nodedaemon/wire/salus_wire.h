/*
 * What salusd and a session say to each other: frames on the session socket, and the two shared pages.
 *
 * docs/protocol.md is the specification, nodedaemon/wire/messages.py the same layout in Python;
 * tests/unit/wire holds the two together. Little-endian, natural alignment, no implicit padding.
 */
#ifndef SALUS_WIRE_H
#define SALUS_WIRE_H

#include <stdint.h>

#define SALUS_WIRE_MAGIC   0x534c4153u /* "SALS" */
#define SALUS_WIRE_VERSION 1u
#define SALUS_TEXT_BYTES   192
#define SALUS_RULE_BYTES   128
#define SALUS_DEVICE_BYTES 64
#define SALUS_FRAME_MAX    512 /* no frame is larger */
#define SALUS_FDS_MAX      3

enum salus_kind {
    SALUS_HELLO = 1,
    SALUS_WELCOME = 2,
    SALUS_REFUSE = 3,
    SALUS_LANE = 4,
    SALUS_UNMAP = 5,
    SALUS_UNMAPPED = 6,
    SALUS_WANT = 7,
    SALUS_RETURN = 8,
    SALUS_PROFILE = 9,
    SALUS_OVERRUN = 10,
    SALUS_ALLOW = 11,
    SALUS_DENY = 12,
    SALUS_FAULT = 13,
    SALUS_NOTICE = 14,
    SALUS_BYE = 15,
    SALUS_STARTED = 16,
};

enum salus_framework {
    SALUS_FRAMEWORK_NONE = 0,
    SALUS_FRAMEWORK_TORCH = 1,
};

/* Flags of HELLO. */
#define SALUS_HELLO_RESUME  1u /* after a lost daemon: session, lane and grant below, descriptors attached */
#define SALUS_HELLO_FORKED  2u /* the process was forked from another session's process */
#define SALUS_HELLO_UNGATED 4u /* no boundaries can be seen: shares by its peak, asks for no grant */

/* Flags of WELCOME. */
#define SALUS_WELCOME_TRAP    1u /* StrayAccess=trap: keep a lent lane unreadable */
#define SALUS_WELCOME_UNGATED 2u /* no profile or several sessions: measure, never WANT */
#define SALUS_WELCOME_RELAY   8u /* STARTED of a successor may stand in for the RETURN of who started it */

/* What OVERRUN asks for. */
enum salus_overrun {
    SALUS_OVERRUN_PERSISTENT = 1, /* an allocation waits for the answer; DENY makes it fail */
    SALUS_OVERRUN_EPHEMERAL = 2,  /* the lane was too small and blocks spilled; nobody waits */
    SALUS_OVERRUN_STASH = 3,      /* at a boundary; DENY means: keep the grant for one more iteration */
};

struct salus_header {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;
    uint32_t size; /* of the whole frame; each kind has one size */
    uint32_t reserved;
};

struct salus_hello {
    struct salus_header header;
    uint64_t session; /* RESUME only, else 0 */
    uint64_t lane;
    uint64_t lane_epoch;
    uint64_t grant_epoch; /* 0: holds no grant */
    uint64_t model_hash;
    uint64_t input_hash;
    uint64_t declared_persistent_bytes; /* salus_job.declare(); only ever raises what was measured */
    uint64_t declared_ephemeral_bytes;
    uint32_t pid; /* a hint, in the session's own pid namespace */
    uint32_t flags;
    uint32_t framework;
    uint32_t reserved;
    char device[SALUS_DEVICE_BYTES]; /* uuid or index that the job wants, or "" */
};

struct salus_welcome {
    struct salus_header header;
    uint64_t session;
    uint64_t device_bytes;     /* usable bytes of the device: no lane is larger */
    uint64_t persistent_bytes; /* cap on the session's own memory, stash included */
    uint64_t ephemeral_bytes;  /* the session allocates in [0, ephemeral_bytes) of a lane */
    uint64_t profile_persistent_bytes;
    uint64_t profile_ephemeral_bytes;
    uint64_t profile_model_hash;
    uint64_t profile_input_hash;
    uint64_t idle_release_ns; /* 0: never */
    uint32_t flags;
    uint32_t slot;               /* the session's slot of the turn page */
    char rule[SALUS_RULE_BYTES]; /* learned boundary rule, the adaptor's own text, or "" */
};

struct salus_refuse {
    struct salus_header header;
    char text[SALUS_TEXT_BYTES];
};

struct salus_lane {
    struct salus_header header;
    uint64_t lane;
    uint64_t epoch;
    uint64_t lane_bytes;      /* size of the attached memfd */
    uint64_t ephemeral_bytes; /* of these, what the session may use */
};

struct salus_unmap {
    struct salus_header header;
    uint64_t lane;
    uint64_t epoch;
};

struct salus_unmapped {
    struct salus_header header;
    uint64_t lane;
    uint64_t epoch;
    uint64_t persistent_bytes; /* held now, stash included */
};

struct salus_want {
    struct salus_header header;
    uint64_t last_epoch; /* of the last grant that the session had, or 0 */
};

struct salus_return {
    struct salus_header header;
    uint64_t epoch;
    uint64_t successor_epoch; /* that was started directly, or 0 */
    uint64_t held_ns;
    uint32_t iteration_count;
    uint32_t contended_count;
    uint8_t wants_next;
    uint8_t handed_over;
    uint8_t reserved[6];
};

/* A predecessor left its RETURN to us: its page says what it would have said. */
struct salus_started {
    struct salus_header header;
    uint64_t epoch; /* that its offer started */
};

struct salus_profile {
    struct salus_header header;
    uint64_t persistent_bytes;      /* as design says: own memory, peak before the first grant, stash */
    uint64_t ephemeral_bytes;       /* highest lane offset ever used */
    uint64_t live_persistent_bytes; /* live at a boundary */
    uint64_t live_ephemeral_bytes;  /* peak in an iteration, less that */
    uint64_t iteration_ns;          /* median-like running mean of the iteration, waits excluded */
    uint64_t iteration_count;
    uint64_t promotion_count;
    uint64_t spill_count;
    uint64_t spill_bytes_max;
    uint64_t model_hash;
    uint64_t input_hash;
    char rule[SALUS_RULE_BYTES];
};

struct salus_overrun_ask {
    struct salus_header header;
    uint64_t persistent_bytes; /* wanted in all */
    uint64_t ephemeral_bytes;
    uint32_t what; /* enum salus_overrun */
    uint32_t serial;
};

struct salus_allow {
    struct salus_header header;
    uint64_t persistent_bytes; /* the new caps */
    uint64_t ephemeral_bytes;
    uint32_t serial;
    uint32_t reserved;
};

struct salus_deny {
    struct salus_header header;
    uint32_t serial;
    uint32_t reserved;
    char text[SALUS_TEXT_BYTES];
};

struct salus_fault {
    struct salus_header header;
    uint32_t is_off; /* ours switched itself off: the job runs as if Salus were absent */
    uint32_t reserved;
    char text[SALUS_TEXT_BYTES];
};

struct salus_notice {
    struct salus_header header;
    char text[SALUS_TEXT_BYTES];
};

struct salus_bye {
    struct salus_header header;
    uint64_t iteration_count;
};

/*
 * The gate page: one a session, mapped by the session and salusd only. Every word is read and written whole.
 *
 * lease      epoch's low 32 bits << 32 | iterations that may start under it; ...ffffffff: until revoked, 0: revoked
 * grant      epoch that salusd starts by itself; a successor is started by the offer in its slot instead
 * successor  epoch << 16 | slot + 1; the holder takes it by exchange with 0
 * state      epoch << 16 | sequence << 8 | enum salus_state; changed by compare-and-swap only
 */
#define SALUS_PAGE_BYTES   4096
#define SALUS_PAGE_VERSION 1u
#define SALUS_UNLIMITED    0xffffffffu

enum salus_state {
    SALUS_STATE_OUT = 0,     /* holds nothing, asks for nothing */
    SALUS_STATE_WAITING = 1, /* in the gate */
    SALUS_STATE_RUNNING = 2, /* holds `epoch` */
    SALUS_STATE_IDLE = 3,    /* holds `epoch`, survivors stashed: salusd may take it back */
    SALUS_STATE_REVOKED = 4, /* salusd took `epoch` back from IDLE; the next entry asks again */
};

struct salus_gate_page {
    uint32_t magic;
    uint32_t version;
    uint64_t session;
    uint64_t reserved0[6];
    /* Written by salusd: a line of its own, so that the boundary's load stays in the holder's cache. */
    uint64_t lease;
    uint64_t grant;
    uint64_t lane; /* where `lease` holds: the session SHALL have mapped this lane at this epoch */
    uint64_t lane_epoch;
    uint64_t successor;
    uint64_t launch; /* kernels: low half not 0: held back; high half: at most so many under way, 0: any */
    uint64_t reserved1[2];
    /* Both. */
    uint64_t state;
    uint64_t reserved2[7];
    /* Written by the session. */
    uint64_t iteration_count; /* started since hello */
    uint64_t started_count;   /* of these, under the present grant */
    uint64_t boundary_ns;     /* CLOCK_MONOTONIC of the last boundary */
    uint64_t returned_epoch;  /* the last grant that was given back, */
    uint64_t returned_counts; /* contended iterations << 32 | iterations under it */
    uint64_t reserved3[3];
};

/*
 * The turn page: shared by the sessions of one uid, domain and device, so that a holder can start its successor.
 * A session sleeps on `bell` of its own slot, whoever wakes it.
 */
#define SALUS_SLOTS 63

struct salus_turn_slot {
    uint32_t bell;     /* futex: raised by one, then woken */
    uint32_t sleepers; /* 1: the session may be asleep on `bell`, a wake-up call is needed */
    uint64_t offer;    /* epoch that the predecessor hands over */
    uint32_t cpu;      /* where the session ran last */
    uint32_t owed;     /* 1: who wrote `offer` left it to this session to tell salusd (STARTED) */
    uint32_t reserved[10];
};

struct salus_turn_page {
    uint32_t magic;
    uint32_t version;
    uint64_t reserved[7];
    struct salus_turn_slot slots[SALUS_SLOTS];
};

#endif
