/* Acts when a session reaches a point: kills the process, or calls a function of the test. For
 * builds of libsalus with SALUS_FAULT_POINTS. */
#define _GNU_SOURCE
#include "point.h"

#include <signal.h>
#include <stdint.h>
#include <unistd.h>

#include "salus.h"

static enum salus_point armed, called;
static uint32_t remaining_count;
static uint64_t passed_counts[POINT_LAST];
static void (*callback)(void);

/* Kills the process when it reaches this point for the `nth` time, counted from 1. */
SALUS_API void salus_point_arm(uint32_t point, uint32_t nth);
/* Calls the function the next time this point is reached. It may block. */
SALUS_API void salus_point_call(uint32_t point, void (*function)(void));
/* How often this point was reached. */
SALUS_API uint64_t salus_point_passed_count(uint32_t point);

void salus_point_arm(uint32_t point, uint32_t nth)
{
    remaining_count = nth;
    armed = (enum salus_point)point;
}

void salus_point_call(uint32_t point, void (*function)(void))
{
    callback = function;
    called = (enum salus_point)point;
}

uint64_t salus_point_passed_count(uint32_t point)
{
    return __atomic_load_n(&passed_counts[point], __ATOMIC_RELAXED);
}

void salus_point(enum salus_point point)
{
    __atomic_add_fetch(&passed_counts[point], 1, __ATOMIC_RELAXED);
    if (point == armed && !--remaining_count)
        kill(getpid(), SIGKILL);
    if (point == called) {
        called = POINT_NONE;
        callback();
    }
}
