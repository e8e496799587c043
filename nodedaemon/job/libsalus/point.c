#define _GNU_SOURCE
#include "point.h"

/* The kill test's switch; only in the build that SALUS_FAULT_POINTS makes. */

#ifdef SALUS_FAULT_POINTS
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

#include "salus.h"

static enum salus_point armed;
static uint32_t remaining_count;

/* Dies at the `nth` pass (from 1) through this point. */
SALUS_API void salus_point_arm(uint32_t point, uint32_t nth);
SALUS_API uint32_t salus_point_count(void);

void salus_point_arm(uint32_t point, uint32_t nth)
{
    remaining_count = nth;
    armed = (enum salus_point)point;
}

uint32_t salus_point_count(void)
{
    return POINT_LAST;
}

void salus_point(enum salus_point point)
{
    if (point == armed && !--remaining_count)
        kill(getpid(), SIGKILL);
}
#else
typedef int salus_point_is_off; /* ISO C wants something in each file. */
#endif
