/*
 * libsalus: placement of a job's memory in a lane, and the gate between iterations.
 *
 * An unmodified job loads it by path (ctypes). Loading it changes nothing until salus_hook or
 * salus_hello is called. No call exits, prints to stdout or raises a signal. If Salus fails, the
 * job continues in plain memory and salusd is informed. All calls are thread-safe. After salus_off,
 * and in a forked child without a salus_hello of its own, calls do nothing and return -ENOTCONN.
 *
 * Order for a torch job: import torch; salus_hook(); at the first entry point salus_hello(path,
 * ...). Then at every entry point salus_boundary() if a new iteration begins, otherwise
 * salus_enter(); salus_exit() when the entry point returns; salus_report() from time to time;
 * salus_bye() at exit.
 */
#ifndef SALUS_H
#define SALUS_H

#include <stdint.h>

#define SALUS_API         __attribute__((visibility("default")))
#define SALUS_API_VERSION 1u

/* salus_enter and salus_boundary return -EINTR if a signal handler ran while they waited, and after
 * each second of waiting. Call again: the place in the queue is kept. */
#define SALUS_INTERRUPTIBLE 0x100u

struct salus_hello_options {
    uint32_t size_bytes; /* sizeof the caller's struct; fields that it lacks count as 0 */
    uint32_t framework;  /* enum salus_framework of salus_wire.h */
    uint32_t flags;      /* SALUS_HELLO_UNGATED, SALUS_INTERRUPTIBLE; FORKED is set by libsalus */
    uint32_t timeout_ms; /* for connect and answer; 0: 2000 */
    uint64_t model_hash;
    uint64_t input_hash;
    char device[64];
    uint64_t declared_persistent_bytes;
    uint64_t declared_ephemeral_bytes;
};

/* The content of WELCOME. */
struct salus_hello_view {
    uint64_t session;
    uint64_t device_bytes;
    uint64_t persistent_bytes;
    uint64_t ephemeral_bytes;
    uint64_t profile_persistent_bytes;
    uint64_t profile_ephemeral_bytes;
    uint64_t profile_model_hash;
    uint64_t profile_input_hash;
    uint64_t idle_release_ns;
    uint32_t flags; /* SALUS_WELCOME_* */
    uint32_t is_gated;
    char rule[128];
};

/* Counters of the session. */
struct salus_counters {
    uint64_t iteration_count;
    uint64_t handover_count;
    uint64_t wait_ns;      /* total time in the gate */
    uint64_t iteration_ns; /* median of the last 63, waits excluded; 0 before the second boundary */
    uint64_t live_bytes;   /* framework blocks live now, requested sizes */
    uint64_t live_peak_bytes;
    uint64_t iteration_start_bytes; /* live when the current iteration began */
    uint64_t iteration_peak_bytes;  /* highest live_bytes of the current iteration */
    uint64_t last_iteration_bytes;  /* the same for the previous iteration */
    uint64_t live_persistent_bytes; /* running maximum of live bytes at boundaries */
    uint64_t live_ephemeral_bytes;  /* running maximum of peak less live, per iteration */
    uint64_t persistent_bytes;      /* P, running maximum */
    uint64_t ephemeral_bytes;       /* E: highest lane offset used */
    uint64_t own_bytes;             /* the part of P that is not framework blocks */
    uint64_t private_bytes;         /* framework blocks outside the lane, now */
    uint64_t lane_bytes;            /* framework blocks in the lane, now */
    uint64_t lane_count;            /* lane blocks allocated so far */
    uint64_t private_count;         /* other framework blocks allocated so far */
    uint64_t stash_bytes;           /* private pages that hold lane blocks now */
    uint64_t stash_copied_bytes;    /* total copied by hand-overs */
    uint64_t promotion_count;
    uint64_t spill_count;
    uint64_t spill_bytes_max;
    uint64_t stray_count;
    uint64_t cap_persistent_bytes;
    uint64_t cap_ephemeral_bytes;
};

SALUS_API uint32_t salus_version(void);

/*
 * Redirects the allocation calls of the loaded libc10 to libsalus: through its slots or, if these
 * cannot be written, through libsalus-preload.so. From then on blocks are counted; they are still
 * plain memory.
 * Returns 0; -ENOENT if the process has no libc10; -ENOTSUP if libc10 allocates in an unknown way;
 * -ECANCELED if SALUS_DISABLE is set; another -errno if its slots cannot be written.
 */
SALUS_API int salus_hook(void);

/*
 * Attaches this process to salusd at the SEQPACKET socket `path`, once. Returns 0; -EALREADY;
 * -ECANCELED if SALUS_DISABLE is set; -EACCES if salusd rejects it (salus_reason has the reason);
 * another -errno if there is no answer. `view` may be NULL.
 */
SALUS_API int salus_hello(const char *path, const struct salus_hello_options *options,
                          struct salus_hello_view *view);

/*
 * Call it at an entry point. From then on the calling thread's blocks go to the lane. Waits for a
 * grant if the session holds none. The session counts as active until the matching salus_exit.
 * Returns 0, 1 under a new grant, or -ENOTCONN.
 */
SALUS_API int salus_enter(void);
SALUS_API void salus_exit(void);

/*
 * What salus_enter and salus_exit read and change. If a call is too expensive, the thread that
 * passes the boundaries may do the same itself: increment `activity`, then increment `depth`
 * (enter) or decrement it (exit). If `is_fast_path` is 0 after entering, it must decrement `depth`
 * again and call salus_enter.
 */
struct salus_entry {
    uint64_t activity; /* incremented by entry points and blocks; idle if unchanged for long */
    uint64_t
        is_fast_path; /* 1: a grant is held or not needed, and no check for idleness is under way */
    uint64_t depth;   /* open entry points */
};
SALUS_API struct salus_entry *salus_entry_words(void);

/*
 * Ends an iteration and starts the next. Returns 0 under the same lease, 1 under a new grant
 * (others may have used the lane in between), or -ENOTCONN. Forgets the open entries of the thread.
 * Without contention it is a load and a compare, without a system call.
 */
SALUS_API int salus_boundary(void);

/*
 * The loop follower compares the events of a loop that repeats itself with those of its last
 * iteration, so that the adaptor need not ask the boundary rule. follower.c explains how it works
 * and who changes which field.
 */
#define SALUS_FOLLOWER_EVENTS_MAX 256

/* What an expected event has left for the adaptor to do. */
enum salus_follower_pending {
    SALUS_FOLLOWER_NOTHING = 0,
    SALUS_FOLLOWER_ENTER = 1,
    SALUS_FOLLOWER_BOUNDARY = 2,
};

struct salus_follower {
    int64_t at;             /* position of the next event in `keys`; -1: the rule is asked */
    uint64_t count;         /* events of an iteration, the last at the boundary; 0: none expected */
    uint64_t lap_count;     /* iterations followed since the keys were stored */
    uint64_t thread;        /* pthread_self() of the thread whose events count; 0: none */
    uint64_t report_due_ns; /* the adaptor passes the boundaries from then on */
    uint64_t key;           /* of the last event of that thread; 0: it cannot be identified */
    uint64_t pending;       /* enum salus_follower_pending, for the last event */
    uint64_t keys[SALUS_FOLLOWER_EVENTS_MAX];
};
SALUS_API struct salus_follower *salus_follower_state(void);

/* What the follower needs from the interpreter; this library is not linked to one. */
struct salus_interpreter {
    void *true_object, *false_object;
    void (*add_reference)(void *object); /* Py_IncRef */
};
SALUS_API void salus_follower_interpreter(const struct salus_interpreter *interpreter);

/*
 * Built-in functions of the interpreter: METH_FASTCALL for forward_entered (module, whether
 * gradients are on, whether it is in training mode), METH_O for events with one argument, and
 * METH_NOARGS for the others. True: the event was expected and is complete.
 */
SALUS_API void *salus_follow_forward_entered(void *self, void *const *arguments, long count);
SALUS_API void *salus_follow_forward_left(void *self, void *has_gradients);
SALUS_API void *salus_follow_loader_entered(void *self, void *unused);
SALUS_API void *salus_follow_loader_left(void *self, void *unused);
SALUS_API void *salus_follow_backward_entered(void *self, void *unused);
SALUS_API void *salus_follow_backward_left(void *self, void *unused);
SALUS_API void *salus_follow_step_entered(void *self, void *optimizer);
SALUS_API void *salus_follow_step_left(void *self, void *optimizer);

/* Ends the iteration and returns the grant. The next enter or boundary asks for another. */
SALUS_API int salus_leave(void);

/* Blocks that the calling thread allocates between these calls are persistent, such as those of the
 * first Optimizer.step. The calls nest. */
SALUS_API void salus_persist_begin(void);
SALUS_API void salus_persist_end(void);

/* Reads the counters; works after salus_hook. */
SALUS_API void salus_counters(struct salus_counters *counters);

/* Live bytes as the framework counts them. A framework that caches device memory hides its blocks
 * from us; the running maxima of these values then replace our own. */
SALUS_API void salus_live(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* P and E as the framework's allocator counts them, for a device whose driver we do not replace.
 * The running maxima are reported. */
SALUS_API void salus_reserved(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* Resets the running maxima and the peak, so that measuring starts again after learning. */
SALUS_API void salus_counters_reset(void);

/* Sends PROFILE_REPORT with the current maxima. 0, or -errno. */
SALUS_API int salus_report(uint64_t model_hash, uint64_t input_hash, const char *rule);

/* Sends FAULT: Salus failed in this job. */
SALUS_API int salus_fault(const char *text);

/*
 * Switches Salus off for good. Lane blocks become private at their addresses, the grant is
 * returned, and salusd gets the reason. The job continues as if Salus were absent.
 */
SALUS_API int salus_off(const char *text);

/* Returns the grant and the lane, and sends BYE. Live lane blocks become private at their
 * addresses. */
SALUS_API int salus_bye(void);

/* Copies the last text of REJECT, DENY or NOTICE and clears it. Returns its length, 0 if there is
 * none. */
SALUS_API int salus_reason(char *text, uint32_t size_bytes);

/* 1 if `address` lies in the lane's range. */
SALUS_API int salus_is_lane(const void *address);

#endif
