/*
 * The SIGSEGV handler: lets a thread that writes to a block while it is being stashed wait, and
 * reports a stray touch of a lent lane before the fault takes its course. The job's own handler is
 * called as if ours were not there.
 */
#ifndef SALUS_TRAP_H
#define SALUS_TRAP_H

/* Puts ours in front of whatever handles SIGSEGV now; again if somebody else took its place. 0 or
 * -errno. */
int trap_install(void);

#endif
