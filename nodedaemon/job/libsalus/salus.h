/*
 * libsalus: placement of a job's memory in a lane, and the gate between iterations.
 *
 * Meant to be loaded by path (ctypes) into an unmodified job. Loading does nothing; without
 * salus_hook and salus_hello nothing changes. No call exits, prints to stdout or raises; where ours
 * fails the job goes on in plain memory and the daemon is told why. All calls are thread-safe; all
 * are no-ops that answer -ENOTCONN (or 0 for void) after salus_off or in a forked child that has
 * not said hello itself.
 *
 * Order for a torch job:   import torch; salus_hook();  at the first entry point: salus_hello(path,
 * ...); then at every entry point either salus_boundary() (the rule says: a new iteration begins)
 * or salus_enter(); salus_exit() when the entry point returns; salus_report() now and then;
 * salus_bye() at exit.
 */
#ifndef SALUS_H
#define SALUS_H

#include <stdint.h>

#define SALUS_API         __attribute__((visibility("default")))
#define SALUS_API_VERSION 1u

/* Enter and boundary answer -EINTR when a signal handler ran while they waited, and every second
 * of waiting, for one that ran just before: call again, the place is kept. */
#define SALUS_INTERRUPTIBLE 0x100u

struct salus_hello_options {
    uint32_t size_bytes; /* sizeof the caller's struct: later fields of a longer one are 0 here */
    uint32_t framework;  /* enum salus_framework of salus_wire.h */
    uint32_t flags;      /* SALUS_HELLO_UNGATED, SALUS_INTERRUPTIBLE; FORKED is found out here */
    uint32_t timeout_ms; /* for connect and answer; 0: 2000 */
    uint64_t model_hash;
    uint64_t input_hash;
    char device[64];
    uint64_t declared_persistent_bytes;
    uint64_t declared_ephemeral_bytes;
};

/* What WELCOME said. */
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

/* Counters; all are right at the moment of the call. */
struct salus_counters {
    uint64_t iteration_count;
    uint64_t handover_count;
    uint64_t wait_ns;      /* in the gate, in all */
    uint64_t iteration_ns; /* median of the last 63, waits excluded; 0 before the second boundary */
    uint64_t live_bytes;   /* framework blocks live now, as asked for */
    uint64_t live_peak_bytes;
    uint64_t iteration_start_bytes; /* live when the present iteration began */
    uint64_t iteration_peak_bytes;  /* highest live figure of the present iteration */
    uint64_t last_iteration_bytes;  /* the same of the iteration before */
    uint64_t live_persistent_bytes; /* running maximum of live bytes at boundaries */
    uint64_t live_ephemeral_bytes;  /* running maximum of peak less live, per iteration */
    uint64_t persistent_bytes;      /* P of the design, running maximum */
    uint64_t ephemeral_bytes;       /* E of the design: highest lane offset used */
    uint64_t own_bytes;             /* of P: memory of the process that is no framework block */
    uint64_t private_bytes;         /* framework blocks outside the lane, now */
    uint64_t lane_bytes;            /* framework blocks in the lane, now */
    uint64_t lane_count;            /* lane blocks made so far */
    uint64_t private_count;         /* other framework blocks made so far */
    uint64_t stash_bytes;           /* pages held privately for lane blocks, now */
    uint64_t stash_copied_bytes;    /* copied by hand-overs in all */
    uint64_t promotion_count;
    uint64_t spill_count;
    uint64_t spill_bytes_max;
    uint64_t stray_count;
    uint64_t cap_persistent_bytes;
    uint64_t cap_ephemeral_bytes;
};

SALUS_API uint32_t salus_version(void);

/*
 * Redirects the allocation calls of the loaded libc10 to us, by its slots or, where these cannot be
 * written, by libsalus-preload.so if that was preloaded; everything is counted from then on and
 * still plain memory. 0; -ENOENT: no libc10 in the process; -ENOTSUP: it does not allocate the way
 * we know; -ECANCELED: SALUS_DISABLE is set; another -errno: its slots cannot be written.
 */
SALUS_API int salus_hook(void);

/*
 * Attaches this process to salusd at the SEQPACKET socket `path`, once. 0; -EALREADY; -ECANCELED
 * (SALUS_DISABLE); -EACCES: refused, the reason is in salus_reason; another -errno: nobody
 * answered. `view` may be NULL.
 */
SALUS_API int salus_hello(const char *path, const struct salus_hello_options *options,
                          struct salus_hello_view *view);

/*
 * An entry point is reached: the calling thread's blocks go to the lane from now on, and the
 * session holds a grant when this returns (it may wait). Counts as activity until the matching
 * salus_exit. 0, or -ENOTCONN.
 */
SALUS_API int salus_enter(void);
SALUS_API void salus_exit(void);

/*
 * What enter and exit look at and change. A caller for whom a call is dear may do the same by
 * itself, in the thread that passes the boundaries: raise `activity`, then raise `depth` (enter) or
 * lower it (exit); and on entering, call salus_enter all the same if `is_calm` is 0 afterwards,
 * less the one it has added to `depth`.
 */
struct salus_entry {
    uint64_t activity; /* raised by entry points and blocks; unchanged for long means idle */
    uint64_t
        is_calm; /* 1: a grant is held (or none is needed) and nobody looks whether we are idle */
    uint64_t depth; /* entry points under way */
};
SALUS_API struct salus_entry *salus_entry_words(void);

/*
 * An iteration is over and the next begins. 0: still under the same lease; 1: the lane was with
 * others in between (or this is the first grant); -ENOTCONN. Open entries of the thread are
 * forgotten. Without contention: a load and a compare, no system call.
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

/* The iteration is over and no other begins: gives the grant back. The next enter or boundary asks
 * again. */
SALUS_API int salus_leave(void);

/* Between these, blocks of the calling thread are persistent (the first Optimizer.step). They nest.
 */
SALUS_API void salus_persist_begin(void);
SALUS_API void salus_persist_end(void);

/* Reads the counters; works from salus_hook on. */
SALUS_API void salus_counters(struct salus_counters *figures);

/* Live bytes as the framework counts them itself, where its blocks are not ours to see (it caches
 * device memory): their running maxima stand in for ours. */
SALUS_API void salus_live(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* P and E of the design as the framework's own allocator counts them in reserved segments of a
 * device that this library does not see (no stand-in for its driver): their running maxima are
 * reported. */
SALUS_API void salus_reserved(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* Forgets the running maxima and the peak, so that measuring starts afresh (after learning). */
SALUS_API void salus_counters_reset(void);

/* Sends PROFILE with the present maxima. 0, or -errno. */
SALUS_API int salus_report(uint64_t model_hash, uint64_t input_hash, const char *rule);

/* Tells the daemon that something of ours failed (FAULT). */
SALUS_API int salus_fault(const char *text);

/*
 * Switches ours off for good: lane blocks become private at their addresses, the grant goes back,
 * the daemon learns why. The job goes on as if Salus were absent.
 */
SALUS_API int salus_off(const char *text);

/* Reports, returns the grant and the lane, says BYE. Live lane blocks become private at their
 * addresses. */
SALUS_API int salus_bye(void);

/* Last REJECT, FAULT or NOTICE text, and forgets it; length, 0 if none. */
SALUS_API int salus_reason(char *text, uint32_t size_bytes);

/* 1 if `address` lies in the lane's range. */
SALUS_API int salus_is_lane(const void *address);

#endif
