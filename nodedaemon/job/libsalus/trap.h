/*
 * The SIGSEGV handler. A thread that writes to a block while it is being stashed waits here. A
 * stray access to a lane that others hold is reported before the process ends. All other faults go
 * to the job's own handler.
 */
#ifndef SALUS_TRAP_H
#define SALUS_TRAP_H

/* Installs our handler in front of the current one, and again if something replaced it. 0 or
 * -errno.
 */
int trap_install(void);

#endif
