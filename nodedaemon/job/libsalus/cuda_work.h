/*
 * Launches, copies and sets: nothing of this process may start while it holds no grant, and nothing
 * may still run when the lane is lent. Every such call passes here; without contention that is two
 * atomic additions.
 */
#ifndef SALUS_CUDA_WORK_H
#define SALUS_CUDA_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_driver.h"

/* Around a call that starts work; enter waits while the lane is not ours. */
void work_enter(void);
void work_leave(void);

/* No new work from now on; waits until what was started has ended. 0, or -EIO if the driver cannot
 * say. */
int work_close(void);

/* Work may start again. */
void work_open(void);

uint64_t work_launch_count(void);

#endif
