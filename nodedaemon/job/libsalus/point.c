#define _GNU_SOURCE
#include "point.h"

/* Kills the process at a point; only in builds with SALUS_FAULT_POINTS. */

#ifdef SALUS_FAULT_POINTS
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

#include "salus.h"

static enum salus_point armed, called;
static uint32_t remaining_count;
static void (*callback)(void);

/* The process dies when it reaches this point for the `nth` time, counted from 1. */
SALUS_API void salus_point_arm(uint32_t point, uint32_t nth);
/* The function is called when this point is reached next; it may block. */
SALUS_API void salus_point_call(uint32_t point, void (*function)(void));
SALUS_API uint32_t salus_point_count(void);

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

uint32_t salus_point_count(void)
{
    return POINT_LAST;
}

void salus_point(enum salus_point point)
{
    if (point == armed && !--remaining_count)
        kill(getpid(), SIGKILL);
    if (point == called) {
        called = POINT_NONE;
        callback();
    }
}
#else
typedef int salus_point_is_off; /* ISO C does not allow an empty file. */
#endif
