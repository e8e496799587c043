#define _GNU_SOURCE
#include "session.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client.h"
#include "gate.h"
#include "memory.h"
#include "point.h"
#include "trap.h"

/* Address space to reserve if salusd does not state the size of the device. */
#define RESERVE_BYTES_DEFAULT (64ull << 30)

struct session session = {
    .gate_lock = PTHREAD_MUTEX_INITIALIZER,
    .memory_lock = PTHREAD_MUTEX_INITIALIZER,
};

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void session_set_reason(const char *text)
{
    pthread_mutex_lock(&session.memory_lock);
    strncpy(session.reason, text, sizeof(session.reason) - 1);
    pthread_mutex_unlock(&session.memory_lock);
}

int salus_reason(char *text, uint32_t size_bytes)
{
    size_t length;

    if (!size_bytes)
        return 0;
    pthread_mutex_lock(&session.memory_lock);
    length = strnlen(session.reason, size_bytes - 1);
    memcpy(text, session.reason, length);
    text[length] = '\0';
    session.reason[0] = '\0';
    pthread_mutex_unlock(&session.memory_lock);
    return (int)length;
}

/* True if SALUS_DISABLE is set to anything but "" or 0. */
static bool is_disabled(void)
{
    const char *value = getenv("SALUS_DISABLE");

    return value && *value && strcmp(value, "0");
}

uint32_t salus_version(void)
{
    return SALUS_API_VERSION;
}

/*
 * A child must see the blocks as they were at the fork, while the parent keeps writing to them. So
 * they become private in the parent before the fork, and copy-on-write does the rest. The copy is
 * guarded because other threads may write meanwhile.
 */
static void before_fork(void)
{
    struct lane *lane;

    pthread_mutex_lock(&session.memory_lock);
    lane = session.lane;
    if (lane && lane->mapped_bytes && !lane->is_self && lane->region.used_count)
        stash_before_fork(lane, session.gate.iteration_count);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&session.memory_lock);
}

static void after_fork_in_child(void)
{
    uint32_t index;

    pthread_mutex_init(&session.memory_lock, NULL);
    pthread_mutex_init(&session.gate_lock, NULL);
    for (index = 0; index < session.lane_count; index++)
        lane_disown(&session.lanes[index]);
    if (session.gate.page) {
        close(session.gate.page_fd);
        close(session.gate.turn_fd);
    }
    memset(&session.gate, 0, sizeof(session.gate));
    client_forget();
    memory_forget_threads();
    session.lane = NULL;
    session.session = 0;
    session.is_child = true;
    if (session.phase != PHASE_OFF)
        session.phase = PHASE_NONE;
}

static void watch_fork(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

int salus_hook(void)
{
    int error;

    if (is_disabled())
        return -ECANCELED;
    if (session.is_hooked)
        return 0;
    pthread_once(&fork_once, watch_fork);
    error = memory_hook();
    session.is_hooked = !error;
    return error;
}

static void fill_view(struct salus_hello_view *view, const struct salus_welcome *welcome,
                      bool is_gated)
{
    memset(view, 0, sizeof(*view));
    view->session = welcome->session;
    view->device_bytes = welcome->device_bytes;
    view->persistent_bytes = welcome->persistent_bytes;
    view->ephemeral_bytes = welcome->ephemeral_bytes;
    view->profile_persistent_bytes = welcome->profile_persistent_bytes;
    view->profile_ephemeral_bytes = welcome->profile_ephemeral_bytes;
    view->profile_model_hash = welcome->profile_model_hash;
    view->profile_input_hash = welcome->profile_input_hash;
    view->idle_release_ns = welcome->idle_release_ns;
    view->flags = welcome->flags;
    view->is_gated = is_gated;
    memcpy(view->rule, welcome->rule, sizeof(view->rule) - 1);
}

/* Reserves the lane's addresses. An ungated session gets private memory there, which is measured
 * like a lane. */
static int prepare_lane(const struct salus_welcome *welcome, bool is_gated)
{
    uint64_t bytes = welcome->device_bytes ? welcome->device_bytes : RESERVE_BYTES_DEFAULT;
    struct lane *lane = &session.lanes[session.lane_count];
    int error = lane_reserve(lane, bytes);

    if (!error && !is_gated)
        error = lane_map_self(lane, bytes);
    if (error)
        return error;
    lane->is_trapped = welcome->flags & SALUS_WELCOME_TRAP;
    __atomic_store_n(&session.lane_count, session.lane_count + 1, __ATOMIC_SEQ_CST);
    session.lane = lane;
    return 0;
}

int salus_hello(const char *path, const struct salus_hello_options *options,
                struct salus_hello_view *view)
{
    struct salus_hello_options full = {0};
    struct salus_welcome welcome;
    char why[SALUS_TEXT_BYTES];
    bool is_gated;
    int error;

    if (is_disabled())
        return -ECANCELED;
    if (options->size_bytes < offsetof(struct salus_hello_options, declared_persistent_bytes) ||
        options->size_bytes > sizeof(full))
        return -EINVAL;
    memcpy(&full, options, options->size_bytes);
    pthread_once(&fork_once, watch_fork);
    pthread_mutex_lock(&session.gate_lock);
    error = session.phase != PHASE_NONE ? -EALREADY : session.lane_count == LANES_MAX ? -ENOSPC : 0;
    if (!error)
        error = client_hello(path, &full, &welcome);
    if (error)
        goto unlock;
    is_gated = welcome.ephemeral_bytes && !(welcome.flags & SALUS_WELCOME_UNGATED) &&
               !(full.flags & SALUS_HELLO_UNGATED);
    session.session = welcome.session;
    session.idle_release_ns = is_gated ? welcome.idle_release_ns : 0;
    session.is_interruptible = full.flags & SALUS_INTERRUPTIBLE;
    session.may_relay = welcome.flags & SALUS_WELCOME_RELAY;
    session.has_stash = !SALUS_TEST_SWITCH("SALUS_TEST_NO_STASH");
    session.counts.cap_persistent_bytes = welcome.persistent_bytes;
    session.counts.cap_ephemeral_bytes = welcome.ephemeral_bytes;
    error = prepare_lane(&welcome, is_gated);
    if (!error && (welcome.flags & SALUS_WELCOME_TRAP || session.idle_release_ns))
        error = trap_install();
    if (!error)
        error = client_listen();
    if (error) {
        snprintf(why, sizeof(why), "hello: lane memory of this process: %s", strerror(-error));
        client_send_fault(why, true);
        client_close();
        session.lane = NULL;
        goto unlock;
    }
    session.phase = is_gated ? PHASE_GATED : PHASE_UNGATED;
    if (view)
        fill_view(view, &welcome, is_gated);
unlock:
    pthread_mutex_unlock(&session.gate_lock);
    if (!error)
        memory_measure_own();
    return error;
}

static int count_iteration(bool is_boundary, uint64_t now_ns)
{
    struct gate *gate = &session.gate;

    if (!is_boundary && gate->iteration_count)
        return 0;
    gate_end_iteration(now_ns);
    gate->iteration_count++;
    gate->iteration_since_ns = now_ns;
    __atomic_store_n(&gate->entry.is_fast_path, 1, __ATOMIC_RELAXED);
    return 0;
}

static uint64_t spill_reported_bytes;

static bool has_unreported_spill(void)
{
    return session.counts.spill_bytes_max > spill_reported_bytes;
}

/* Reports each new maximum once, so that the lane can grow at a boundary. */
static void report_spill(void)
{
    uint64_t bytes = session.counts.spill_bytes_max;

    spill_reported_bytes = bytes;
    client_report_overrun(session.counts.cap_persistent_bytes,
                          session.counts.cap_ephemeral_bytes + bytes);
}

struct salus_entry *salus_entry_words(void)
{
    return &session.gate.entry;
}

int salus_enter(void)
{
    int answer;

    if (!session_is_attached())
        return -ENOTCONN;
    memory_mark_thread();
    __atomic_add_fetch(&session.gate.entry.depth, 1, __ATOMIC_RELAXED);
    gate_mark_activity();
    if (session.phase != PHASE_GATED)
        return count_iteration(false, clock_ns());
    answer = gate_enter();
    /* The caller will call again: count the entry once. */
    if (answer == -EINTR)
        __atomic_sub_fetch(&session.gate.entry.depth, 1, __ATOMIC_RELAXED);
    return answer;
}

void salus_exit(void)
{
    uint64_t depth = __atomic_load_n(&session.gate.entry.depth, __ATOMIC_RELAXED);

    while (depth && !__atomic_compare_exchange_n(&session.gate.entry.depth, &depth, depth - 1,
                                                 false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    gate_mark_activity();
}

int salus_boundary(void)
{
    if (!session_is_attached())
        return -ENOTCONN;
    memory_mark_thread();
    __atomic_store_n(&session.gate.entry.depth, 0, __ATOMIC_RELAXED);
    gate_mark_activity();
    if (session.phase == PHASE_UNGATED)
        return count_iteration(true, clock_ns());
    if (has_unreported_spill())
        report_spill();
    return gate_boundary();
}

bool session_try_boundary(uint64_t now_ns)
{
    struct gate *gate = &session.gate;

    if (!__atomic_load_n(&gate->entry.is_fast_path, __ATOMIC_RELAXED) || has_unreported_spill() ||
        __atomic_load_n(&gate->started_due_epoch, __ATOMIC_RELAXED))
        return false;
    memory_mark_thread();
    gate_mark_activity();
    if (session.phase == PHASE_UNGATED)
        return !count_iteration(true, now_ns);
    return session.phase == PHASE_GATED && gate_try_boundary(now_ns);
}

int salus_leave(void)
{
    return session.phase == PHASE_GATED ? gate_leave() : session_is_attached() ? 0 : -ENOTCONN;
}

void session_detach(void)
{
    struct lane *lane;

    session.phase = PHASE_OFF;
    __atomic_store_n(&session.gate.entry.is_fast_path, 0, __ATOMIC_SEQ_CST);
    gate_wake();
    pthread_mutex_lock(&session.memory_lock);
    lane = session.lane;
    session.lane = NULL;
    /* Without memory for the copies the lane stays mapped. */
    if (lane && lane->mapped_bytes && !lane->is_self) {
        trap_install();
        if (!stash_keep(lane, session.gate.iteration_count, true))
            lane_unmap(lane);
    }
    pthread_mutex_unlock(&session.memory_lock);
}

/* Ends the session and returns everything. Lane blocks stay at their addresses, in private memory.
 */
static void end_session(const char *fault)
{
    /* From now on a waiting thread leaves the gate and its lock, and the cap no longer applies. */
    session.phase = PHASE_OFF;
    session.counts.cap_persistent_bytes = 0;
    gate_wake();
    if (fault)
        client_send_fault(fault, true);
    if (session.gate.page)
        gate_leave();
    session_detach();
    client_close();
}

int salus_off(const char *text)
{
    bool was_attached = session_is_attached();

    session.phase = PHASE_OFF;
    if (was_attached)
        end_session(text);
    return was_attached ? 0 : -ENOTCONN;
}

int salus_bye(void)
{
    if (!session_is_attached())
        return -ENOTCONN;
    end_session(NULL);
    return 0;
}

int salus_fault(const char *text)
{
    if (!client_is_connected())
        return -ENOTCONN;
    client_send_fault(text, false);
    return 0;
}

int salus_is_lane(const void *address)
{
    return session_lane_at(address) != NULL;
}
