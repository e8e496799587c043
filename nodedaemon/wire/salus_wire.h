/*
 * The frames that salusd and a session exchange on the session socket.
 *
 * docs/protocol.md is the specification. tools/layouts.py writes messages.py from this file, so
 * keep it regular: fixed-width types, every padding byte declared as `reserved`, one comment above
 * each struct. Integers are little-endian. Kind SALUS_X has the body struct salus_x.
 */
#ifndef SALUS_WIRE_H
#define SALUS_WIRE_H

#include <stdint.h>

#define SALUS_MAGIC           0x534c4153u /* "SALS" */
#define SALUS_WIRE_VERSION    1u
#define SALUS_TEXT_BYTES      192
#define SALUS_RULE_BYTES      128
#define SALUS_DEVICE_BYTES    64
#define SALUS_FRAME_BYTES_MAX 512
#define SALUS_FDS_MAX         3

/* The kind of a frame, as in its header. */
enum salus_message_kind {
    SALUS_HELLO = 1,
    SALUS_WELCOME = 2,
    SALUS_REJECT = 3,
    SALUS_MAP = 4,
    SALUS_UNMAP = 5,
    SALUS_UNMAPPED = 6,
    SALUS_WANT = 7,
    SALUS_RETURN = 8,
    SALUS_PROFILE_REPORT = 9,
    SALUS_OVERRUN = 10,
    SALUS_ALLOW = 11,
    SALUS_DENY = 12,
    SALUS_FAULT = 13,
    SALUS_NOTICE = 14,
    SALUS_BYE = 15,
    SALUS_STARTED = 16,
};

/* The framework whose allocator libsalus redirects. */
enum salus_framework {
    SALUS_FRAMEWORK_NONE = 0,
    SALUS_FRAMEWORK_TORCH = 1,
};

/* Flags of HELLO. */
enum salus_hello_flag {
    SALUS_HELLO_RESUME = 1,  /* reconnect: with session, lane, grant and descriptors */
    SALUS_HELLO_FORKED = 2,  /* the process was forked from another session's process */
    SALUS_HELLO_UNGATED = 4, /* iteration boundaries are not visible: never asks for a grant */
};

/* Flags of WELCOME. */
enum salus_welcome_flag {
    SALUS_WELCOME_TRAP = 1,    /* StrayAccess=trap: make the lane unreadable while others hold it */
    SALUS_WELCOME_UNGATED = 2, /* no profile, or several sessions: measure, never send WANT */
    SALUS_WELCOME_RELAY = 8,   /* a successor's STARTED may replace its predecessor's RETURN */
};

/* Which limit a session exceeds. */
enum salus_overrun_kind {
    SALUS_OVERRUN_PERSISTENT = 1, /* an allocation waits for the answer; DENY makes it fail */
    SALUS_OVERRUN_EPHEMERAL = 2,  /* the lane was too small and blocks spilled; nothing waits */
    SALUS_OVERRUN_STASH = 3, /* at a boundary; after DENY the grant is kept for one iteration */
};

/* The start of every frame. */
struct salus_header {
    uint32_t magic;
    uint16_t version;
    uint16_t kind;
    uint32_t size; /* of the whole frame; each kind has one size */
    uint32_t reserved;
};

/* First frame of a session. With RESUME the gate page, the turn page and the lane (if mapped) are
 * attached, in that order. */
struct salus_hello {
    struct salus_header header;
    uint64_t session; /* RESUME only, else 0 */
    uint64_t lane;
    uint64_t lane_epoch;
    uint64_t grant_epoch; /* 0: holds no grant */
    uint64_t model_hash;
    uint64_t input_hash;
    uint64_t declared_persistent_bytes; /* salus_job.declare(); can only raise the measured sizes */
    uint64_t declared_ephemeral_bytes;
    uint32_t pid; /* a hint, in the session's own pid namespace */
    uint32_t flags;
    uint32_t framework;
    uint32_t reserved;
    char device[SALUS_DEVICE_BYTES]; /* uuid or index that the job wants, or "" */
};

/* Accepts a HELLO. The gate page and the turn page are attached, in that order. */
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
    uint32_t slot;               /* the session's slot in the turn page */
    char rule[SALUS_RULE_BYTES]; /* boundary rule learned earlier, in the adaptor's format, or "" */
};

/* Rejects a HELLO. The job runs without Salus. */
struct salus_reject {
    struct salus_header header;
    char text[SALUS_TEXT_BYTES];
};

/* Map the attached lane. It replaces a lane that is mapped already. */
struct salus_map {
    struct salus_header header;
    uint64_t lane;
    uint64_t epoch;
    uint64_t lane_bytes;      /* size of the attached memfd */
    uint64_t ephemeral_bytes; /* the part of it that the session may use */
};

/* Stash survivors, unmap the lane, close its descriptor and answer UNMAPPED. Sent only to a session
 * without a grant. */
struct salus_unmap {
    struct salus_header header;
    uint64_t lane;
    uint64_t epoch;
};

/* Answers UNMAP. */
struct salus_unmapped {
    struct salus_header header;
    uint64_t lane;
    uint64_t epoch;
    uint64_t persistent_bytes; /* held now, stash included */
};

/* The session waits in the gate and holds no grant. */
struct salus_want {
    struct salus_header header;
    uint64_t last_epoch; /* of the session's last grant, or 0 */
};

/* The grant `epoch` is over. If `handed_over` is 1, the session has started `successor_epoch`
 * directly. */
struct salus_return {
    struct salus_header header;
    uint64_t epoch;
    uint64_t successor_epoch;
    uint64_t held_ns;
    uint32_t iteration_count;
    uint32_t contended_count;
    uint8_t wants_next;
    uint8_t handed_over;
    uint8_t reserved[6];
};

/* The offer `epoch` was started and its sender will send no RETURN. The sender's gate page holds
 * the counts instead. */
struct salus_started {
    struct salus_header header;
    uint64_t epoch;
};

/* Running maxima over the whole session so far. */
struct salus_profile_report {
    struct salus_header header;
    uint64_t persistent_bytes;      /* P: own memory, peak before the first grant, stash */
    uint64_t ephemeral_bytes;       /* E: highest lane offset ever used */
    uint64_t live_persistent_bytes; /* live at a boundary */
    uint64_t live_ephemeral_bytes;  /* peak in an iteration, less the live bytes at its boundary */
    uint64_t iteration_ns;          /* median of recent iterations, waits excluded */
    uint64_t iteration_count;
    uint64_t promotion_count;
    uint64_t spill_count;
    uint64_t spill_bytes_max;
    uint64_t model_hash;
    uint64_t input_hash;
    char rule[SALUS_RULE_BYTES];
};

/* The session needs more than its caps. Both sizes are totals. ALLOW or DENY with the same serial
 * answers it. */
struct salus_overrun {
    struct salus_header header;
    uint64_t persistent_bytes;
    uint64_t ephemeral_bytes;
    uint32_t what; /* enum salus_overrun_kind */
    uint32_t serial;
};

/* Raises the caps to these totals. */
struct salus_allow {
    struct salus_header header;
    uint64_t persistent_bytes;
    uint64_t ephemeral_bytes;
    uint32_t serial;
    uint32_t reserved;
};

/* Keeps the caps as they are. */
struct salus_deny {
    struct salus_header header;
    uint32_t serial;
    uint32_t reserved;
    char text[SALUS_TEXT_BYTES];
};

/* Salus failed in the job. With `is_off` the job continues as if Salus were absent. */
struct salus_fault {
    struct salus_header header;
    uint32_t is_off;
    uint32_t reserved;
    char text[SALUS_TEXT_BYTES];
};

/* A line for the user. The adaptor decides where to show it, never on stdout. */
struct salus_notice {
    struct salus_header header;
    char text[SALUS_TEXT_BYTES];
};

/* The session ends normally. */
struct salus_bye {
    struct salus_header header;
    uint64_t iteration_count;
};

#endif
