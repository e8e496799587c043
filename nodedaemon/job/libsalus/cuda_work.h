/*
 * Launches, copies and memsets. None may start while the process holds no grant, and none may still
 * run when the grant is returned. Each such call passes work_enter and work_leave; without
 * contention they cost two atomic additions.
 */
#ifndef SALUS_CUDA_WORK_H
#define SALUS_CUDA_WORK_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_driver.h"

/* Before and after a call that starts work. work_enter waits while no grant is held. */
void work_enter(void);
void work_leave(void);

/* Blocks new work and waits for the end of started work. 0, or -EIO if the driver fails. */
int work_close(void);

/* Work may start again. */
void work_open(void);

#endif
