/*
 * The loop follower. Theory of operation:
 *
 * The boundary rule (salus_job/boundary.py) is deterministic: from the same state, the same events
 * get the same answers and lead to the same state. So once one iteration has led the rule from a
 * state to an equal state, the next iterations need only be compared with it, event by event. The
 * adaptor stores the keys of that iteration here. While each event matches, this file does what the
 * event requires and the rule is not asked. The first event that differs goes to the adaptor, which
 * replays the events that the rule has missed (salus_job/follower.py).
 *
 * The position in the loop exists only here and is advanced only here. An event has one of three
 * results:
 *   True                   the event was expected and is complete;
 *   False, pending is 0    the event was not expected: ask the rule. `key` identifies the event;
 *   False, pending is set  the event was expected and the position has advanced, but the gate needs
 *                          work that may wait, and a wait must not hold the interpreter's lock. The
 *                          adaptor enters or passes the boundary.
 * All fields are changed only under the interpreter's lock. `thread` is the one thread whose events
 * count; events of other threads change nothing here.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>

#include "salus.h"
#include "session.h"

/* Keys of events without an object. The other keys contain the object's address, shifted by three
 * bits, and are larger than these. */
enum event_key {
    KEY_UNKNOWN, /* an event that cannot be identified: never expected */
    KEY_FORWARD_LEFT,
    KEY_FORWARD_LEFT_WITH_GRADIENT,
    KEY_LOADER_ENTERED,
    KEY_LOADER_LEFT,
    KEY_BACKWARD_ENTERED,
    KEY_BACKWARD_LEFT,
};

/* The low three bits of keys with an address. */
#define KIND_FORWARD      4 /* plus 1 for gradients, plus 2 for training mode */
#define KIND_STEP_ENTERED 1
#define KIND_STEP_LEFT    2

static struct salus_follower follower = {.at = -1};
static struct salus_interpreter interpreter;

struct salus_follower *salus_follower_state(void)
{
    return &follower;
}

void salus_follower_interpreter(const struct salus_interpreter *functions)
{
    interpreter = *functions;
}

static void *to_python(bool is_complete)
{
    void *object = is_complete ? interpreter.true_object : interpreter.false_object;

    interpreter.add_reference(object);
    return object;
}

static uint64_t key_of(const void *object, unsigned kind)
{
    return (uint64_t)(uintptr_t)object << 3 | kind;
}

/* Whether the event is the expected one; advances the position. */
static bool advance(uint64_t key, bool *is_boundary)
{
    if (follower.thread != (uint64_t)pthread_self())
        return false;
    follower.key = key;
    follower.pending = SALUS_FOLLOWER_NOTHING;
    if (follower.at < 0 || (uint64_t)follower.at >= follower.count ||
        follower.keys[follower.at] != key)
        return false;
    follower.at++;
    *is_boundary = (uint64_t)follower.at == follower.count;
    if (*is_boundary) {
        follower.at = 0;
        follower.lap_count++;
    }
    return true;
}

/* As described at struct salus_entry. */
static bool try_enter(void)
{
    struct salus_entry *entry = &session.gate.entry;

    __atomic_add_fetch(&entry->activity, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&entry->depth, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&entry->is_calm, __ATOMIC_SEQ_CST))
        return true;
    __atomic_sub_fetch(&entry->depth, 1, __ATOMIC_RELAXED);
    follower.pending = SALUS_FOLLOWER_ENTER;
    return false;
}

static bool try_boundary(void)
{
    struct salus_entry *entry = &session.gate.entry;
    uint64_t now_ns = clock_ns();

    follower.pending = SALUS_FOLLOWER_BOUNDARY;
    if (now_ns >= follower.report_due_ns || !session_try_boundary(now_ns))
        return false;
    follower.pending = SALUS_FOLLOWER_NOTHING;
    /* The boundary lies before an entry point, which is now in progress. */
    __atomic_store_n(&entry->depth, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&entry->is_calm, __ATOMIC_SEQ_CST))
        return true;
    /* This thread was delayed for longer than IdleRelease since the boundary, and the receiver
     * thread took the session for idle. The session must ask for a grant again, which may wait. */
    __atomic_store_n(&entry->depth, 0, __ATOMIC_SEQ_CST);
    follower.pending = SALUS_FOLLOWER_ENTER;
    return false;
}

static void *follow_entry(uint64_t key)
{
    bool is_boundary;

    return to_python(advance(key, &is_boundary) && (is_boundary ? try_boundary() : try_enter()));
}

static void *follow_inner(uint64_t key)
{
    bool is_boundary;

    return to_python(advance(key, &is_boundary));
}

static void *follow_exit(uint64_t key)
{
    bool is_boundary;

    if (!advance(key, &is_boundary))
        return to_python(false);
    salus_exit();
    /* The boundary lies after this event (a step without a module or a loader). */
    if (is_boundary)
        follower.pending = SALUS_FOLLOWER_BOUNDARY;
    return to_python(!is_boundary);
}

void *salus_follow_forward_entered(void *self, void *const *arguments, long count)
{
    bool is_training = count == 3 && arguments[2] == interpreter.true_object;
    unsigned kind = KIND_FORWARD;

    (void)self;
    /* Modules may set `training` to any object. */
    if (!is_training && (count != 3 || arguments[2] != interpreter.false_object))
        return follow_inner(KEY_UNKNOWN);
    if (arguments[1] == interpreter.true_object)
        kind |= 1;
    if (is_training)
        kind |= 2;
    return follow_entry(key_of(arguments[0], kind));
}

void *salus_follow_forward_left(void *self, void *has_gradients)
{
    (void)self;
    return follow_exit(has_gradients == interpreter.true_object ? KEY_FORWARD_LEFT_WITH_GRADIENT
                                                                : KEY_FORWARD_LEFT);
}

void *salus_follow_loader_entered(void *self, void *unused)
{
    (void)self, (void)unused;
    return follow_entry(KEY_LOADER_ENTERED);
}

void *salus_follow_loader_left(void *self, void *unused)
{
    (void)self, (void)unused;
    return follow_exit(KEY_LOADER_LEFT);
}

void *salus_follow_backward_entered(void *self, void *unused)
{
    (void)self, (void)unused;
    return follow_inner(KEY_BACKWARD_ENTERED);
}

void *salus_follow_backward_left(void *self, void *unused)
{
    (void)self, (void)unused;
    return follow_inner(KEY_BACKWARD_LEFT);
}

void *salus_follow_step_entered(void *self, void *optimizer)
{
    (void)self;
    return follow_entry(key_of(optimizer, KIND_STEP_ENTERED));
}

void *salus_follow_step_left(void *self, void *optimizer)
{
    (void)self;
    return follow_exit(key_of(optimizer, KIND_STEP_LEFT));
}
