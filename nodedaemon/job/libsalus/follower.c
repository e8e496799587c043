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

/* A key is the address of the event's object, or 0 without one, shifted by three bits, plus the
 * kind of the event. Kinds with and without an object may therefore share a number. */
#define KEY_UNKNOWN          0 /* an event that cannot be identified: never expected */
#define KIND_FORWARD_ENTERED 4 /* plus 1 for gradients, plus 2 for training mode */
#define KIND_FORWARD_LEFT    3
#define KIND_STEP_ENTERED    1
#define KIND_STEP_LEFT       2
/* Without an object. */
#define KIND_LOADER_ENTERED   1
#define KIND_LOADER_LEFT      2
#define KIND_BACKWARD_ENTERED 3
#define KIND_BACKWARD_LEFT    4

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

/* Whether the event is the expected one; advances the position, which is 0 after a boundary. */
static bool advance(uint64_t key)
{
    if (follower.thread != (uint64_t)pthread_self())
        return false;
    follower.key = key;
    follower.pending = SALUS_FOLLOWER_NOTHING;
    if (follower.at < 0 || (uint64_t)follower.at >= follower.count ||
        follower.keys[follower.at] != key)
        return false;
    if ((uint64_t)++follower.at == follower.count) {
        follower.at = 0;
        follower.lap_count++;
    }
    return true;
}

/* Whether the gate is calm, so that the entry is complete. If not, undoes the entry: the adaptor
 * must enter, which may wait. */
static bool is_entered(struct salus_entry *entry)
{
    if (__atomic_load_n(&entry->is_fast_path, __ATOMIC_SEQ_CST))
        return true;
    __atomic_sub_fetch(&entry->depth, 1, __ATOMIC_SEQ_CST);
    follower.pending = SALUS_FOLLOWER_ENTER;
    return false;
}

/* As described at struct salus_entry. */
static bool try_enter(void)
{
    struct salus_entry *entry = &session.gate.entry;

    __atomic_add_fetch(&entry->activity, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&entry->depth, 1, __ATOMIC_SEQ_CST);
    return is_entered(entry);
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
    /* The gate is not calm if this thread was delayed for longer than IdleRelease since the
     * boundary: the receiver thread then considers the session idle. */
    return is_entered(entry);
}

static bool follow_entry(uint64_t key)
{
    return advance(key) && (follower.at == 0 ? try_boundary() : try_enter());
}

static bool follow_exit(uint64_t key)
{
    if (!advance(key))
        return false;
    salus_exit();
    if (follower.at > 0)
        return true;
    /* The boundary lies after this event (a step without a module or a loader). */
    follower.pending = SALUS_FOLLOWER_BOUNDARY;
    return false;
}

void *salus_follow_forward_entered(void *self, void *const *arguments, long count)
{
    bool is_training = count == 3 && arguments[2] == interpreter.true_object;
    unsigned kind = KIND_FORWARD_ENTERED;

    (void)self;
    /* Modules may set `training` to any object. */
    if (!is_training && (count != 3 || arguments[2] != interpreter.false_object))
        return to_python(advance(KEY_UNKNOWN));
    kind |= (arguments[1] == interpreter.true_object) | is_training << 1;
    return to_python(follow_entry(key_of(arguments[0], kind)));
}

/* The other events have one argument or none. `object` is then NULL; that of forward_left is True
 * or False. */
#define DEFINE_EVENT(event, follow, kind)                                                          \
    void *salus_follow_##event(void *self, void *object)                                           \
    {                                                                                              \
        (void)self;                                                                                \
        return to_python(follow(key_of(object, kind)));                                            \
    }

DEFINE_EVENT(forward_left, follow_exit, KIND_FORWARD_LEFT)
DEFINE_EVENT(loader_entered, follow_entry, KIND_LOADER_ENTERED)
DEFINE_EVENT(loader_left, follow_exit, KIND_LOADER_LEFT)
DEFINE_EVENT(backward_entered, advance, KIND_BACKWARD_ENTERED)
DEFINE_EVENT(backward_left, advance, KIND_BACKWARD_LEFT)
DEFINE_EVENT(step_entered, follow_entry, KIND_STEP_ENTERED)
DEFINE_EVENT(step_left, follow_exit, KIND_STEP_LEFT)
