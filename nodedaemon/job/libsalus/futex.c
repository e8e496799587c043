#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "page_words.h"

/* Not FUTEX_PRIVATE_FLAG: the pages are shared between processes. */
int futex_wait(uint32_t *word, uint32_t seen, const struct timespec *timeout)
{
    return syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout, NULL, 0) < 0 ? -errno : 0;
}

int futex_wake(uint32_t *word)
{
    return syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0) < 0 ? -errno : 0;
}
