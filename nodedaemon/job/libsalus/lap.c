#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>

#include "salus.h"
#include "session.h"

static struct salus_lap lap = {.at = -1};
static struct salus_interpreter interpreter;

struct salus_lap *salus_lap_words(void)
{
    return &lap;
}

void salus_lap_interpreter(const struct salus_interpreter *functions)
{
    interpreter = *functions;
}

static void *answer(bool is_passed)
{
    void *object = is_passed ? interpreter.yes : interpreter.no;

    interpreter.keep(object);
    return object;
}

static bool is_expected(uint64_t key)
{
    return lap.at >= 0 && (uint64_t)lap.at < lap.count && lap.keys[lap.at] == key &&
           lap.thread == (uint64_t)pthread_self();
}

/* As salus_entry says. */
static bool try_enter(void)
{
    struct salus_entry *entry = &session.gate.entry;

    __atomic_add_fetch(&entry->activity, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&entry->depth, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&entry->is_calm, __ATOMIC_SEQ_CST))
        return true;
    __atomic_sub_fetch(&entry->depth, 1, __ATOMIC_RELAXED);
    return false;
}

static bool try_boundary(void)
{
    struct salus_entry *entry = &session.gate.entry;
    uint64_t now_ns = clock_ns();

    if (now_ns >= lap.report_due_ns || !session_try_boundary(now_ns))
        return false;
    /* The entry point that the boundary lies before is under way. */
    __atomic_store_n(&entry->depth, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&entry->is_calm, __ATOMIC_SEQ_CST))
        return true;
    /*
     * Held up for IdleRelease since the boundary we were taken for idle. To ask again may take a
     * wait, and that is the adaptor's: it does not keep the interpreter's lock meanwhile.
     */
    __atomic_store_n(&entry->depth, 0, __ATOMIC_SEQ_CST);
    lap.is_passed = 1;
    return false;
}

static bool pass_entry(uint64_t key)
{
    bool is_last = lap.at == lap.last;

    if (!is_expected(key) || !(is_last ? try_boundary() : try_enter()))
        return false;
    lap.at = is_last ? 0 : lap.at + 1;
    lap.laps += is_last;
    return true;
}

static bool pass_inner(uint64_t key)
{
    if (!is_expected(key) || lap.at == lap.last)
        return false;
    lap.at++;
    return true;
}

static bool pass_exit(uint64_t key)
{
    if (!pass_inner(key))
        return false;
    salus_exit();
    return true;
}

void *salus_lap_forward(void *self, void *const *arguments, long count)
{
    uint64_t key;

    (void)self;
    /* Module, whether gradients are on, whether it is in training mode. */
    if (count != 3 || (arguments[2] != interpreter.yes && arguments[2] != interpreter.no))
        return answer(false);
    key = (uint64_t)(uintptr_t)arguments[0] * 8 + (arguments[2] == interpreter.yes ? 7 : 3) -
          (arguments[1] == interpreter.yes ? 0 : 2);
    return answer(pass_entry(key));
}

void *salus_lap_forward_left(void *self, void *opens)
{
    (void)self;
    return answer(
        pass_exit(opens == interpreter.yes ? SALUS_LAP_FORWARD_LEFT_OPEN : SALUS_LAP_FORWARD_LEFT));
}

void *salus_lap_event(void *self, void *key_object)
{
    uint64_t key = (uint64_t)interpreter.as_long(key_object);

    (void)self;
    if (key == SALUS_LAP_LOADER_ENTERED)
        return answer(pass_entry(key));
    return answer(key == SALUS_LAP_LOADER_LEFT ? pass_exit(key) : pass_inner(key));
}

void *salus_lap_step(void *self, void *optimizer)
{
    (void)self;
    return answer(pass_entry((uint64_t)(uintptr_t)optimizer * 8 + 2));
}

void *salus_lap_step_left(void *self, void *optimizer)
{
    (void)self;
    return answer(pass_exit((uint64_t)(uintptr_t)optimizer * 8 + 4));
}
