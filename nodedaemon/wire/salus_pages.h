/*
 * The two pages that salusd shares with sessions. docs/protocol.md is the specification;
 * libsalus/gate.c explains why the protocol is safe.
 *
 * tools/layouts.py writes pages.py from this file, so keep it as regular as salus_wire.h. Each word
 * is read and written with one atomic access.
 */
#ifndef SALUS_PAGES_H
#define SALUS_PAGES_H

#include <stdint.h>

#define SALUS_PAGE_BYTES   4096
#define SALUS_PAGE_VERSION 1u
#define SALUS_UNLIMITED    0xffffffffu
#define SALUS_SLOT_COUNT   63

/* Where the words below keep an epoch, beside a state or a slot, and how long it is there. */
#define SALUS_EPOCH_SHIFT   16
#define SALUS_EPOCH_MASK    0xffffffffffff
#define SALUS_STATE_MASK    0xff
#define SALUS_SEQUENCE_MASK 0xff00
#define SALUS_SEQUENCE_STEP 0x100
/* The upper half of a word of two numbers: lease, launch and returned_counts. */
#define SALUS_UPPER_SHIFT 32
#define SALUS_LOWER_MASK  0xffffffffu

/* What a session does, according to its gate page. */
enum salus_gate_state {
    SALUS_STATE_OUT = 0,     /* holds no grant and asks for none */
    SALUS_STATE_WAITING = 1, /* waits in the gate */
    SALUS_STATE_RUNNING = 2, /* holds `epoch` */
    SALUS_STATE_IDLE = 3,    /* holds `epoch`, survivors stashed: salusd may take it back */
    SALUS_STATE_REVOKED = 4, /* salusd took `epoch` back from IDLE; the next entry asks again */
};

/*
 * The gate page: one per session, mapped by that session and salusd.
 *
 * lease      low 32 bits of the epoch << 32 | iterations that may start under it;
 *            SALUS_UNLIMITED: until revoked, 0: revoked
 * grant      epoch that salusd starts itself; a successor is started by the offer in its slot
 * successor  epoch << 16 | slot + 1; the holder takes it by an exchange with 0
 * launch     low half: nonzero holds kernels back; high half: most kernels in flight, 0: no limit
 * state      epoch << 16 | sequence << 8 | enum salus_gate_state; only compare-and-swap changes it
 */
struct salus_gate_page {
    uint32_t magic;
    uint32_t version;
    uint64_t session;
    uint64_t reserved0[6];
    /* Written by salusd, in its own cache line, so that the holder's load at a boundary hits. */
    uint64_t lease;
    uint64_t grant;
    uint64_t lane; /* the session SHALL have mapped this lane at `lane_epoch` before it starts */
    uint64_t lane_epoch;
    uint64_t successor;
    uint64_t launch;
    uint64_t reserved1[2];
    /* Written by both. */
    uint64_t state;
    uint64_t reserved2[7];
    /* Written by the session. */
    uint64_t iteration_count; /* started since HELLO */
    uint64_t started_count;   /* started under the current grant */
    uint64_t boundary_ns;     /* CLOCK_MONOTONIC of the last boundary */
    uint64_t returned_epoch;  /* the grant that was returned last */
    uint64_t returned_counts; /* of that grant: contended iterations << 32 | iterations */
    uint64_t reserved3[3];
};

/* One session's part of the turn page. The session always sleeps on its own `wake_count`. */
struct salus_turn_slot {
    uint32_t wake_count;     /* futex: incremented, then woken */
    uint32_t sleepers;       /* 1: the session may be asleep on `wake_count`: wake it */
    uint64_t offer;          /* epoch that the predecessor hands over */
    uint32_t cpu;            /* where the session ran last */
    uint32_t is_started_due; /* 1: whoever wrote `offer` expects STARTED from this session */
    uint32_t reserved[10];
};

/* The turn page: shared by the sessions of one uid, domain and device, so that a holder can start
 * its successor. */
struct salus_turn_page {
    uint32_t magic;
    uint32_t version;
    uint64_t reserved[7];
    struct salus_turn_slot slots[SALUS_SLOT_COUNT];
};

#endif
