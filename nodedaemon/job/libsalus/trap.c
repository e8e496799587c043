#define _GNU_SOURCE
#include "trap.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "client.h"
#include "session.h"

/* A write may fault during several copies in a row. After this many faults on a page that we
 * consider usable, the fault is the job's own. */
#define TRIES_MAX 1000

static struct sigaction earlier;
static uint32_t is_installing;

/* snprintf is not async-signal-safe. */
static void report_stray(const struct lane *lane, const void *address)
{
    static const char digits[] = "0123456789abcdef";
    static const char start[] = "stray access: lent lane: offset 0x";
    uint64_t offset_bytes = (uint64_t)((const char *)address - lane->base);
    char text[sizeof(start) + 17];
    int shift, length = sizeof(start) - 1;

    memcpy(text, start, sizeof(start));
    for (shift = 60; shift >= 0; shift -= 4)
        text[length++] = digits[offset_bytes >> shift & 15];
    text[length] = '\0';
    __atomic_add_fetch(&session.counts.stray_count, 1, __ATOMIC_RELAXED);
    client_send_fault(text, false);
}

static void pass_on(int signal_number, siginfo_t *info, void *context)
{
    struct sigaction plain = {.sa_handler = SIG_DFL};

    if (earlier.sa_flags & SA_SIGINFO) {
        earlier.sa_sigaction(signal_number, info, context);
    } else if (earlier.sa_handler != SIG_DFL && earlier.sa_handler != SIG_IGN) {
        earlier.sa_handler(signal_number);
    } else {
        /* The instruction runs again, and the process ends as it would without us. */
        sigaction(SIGSEGV, &plain, NULL);
    }
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    static __thread const void *tried;
    static __thread uint32_t tried_count;
    const struct timespec pause = {.tv_nsec = 20000};
    const void *address = info->si_addr;
    struct lane *lane = session_lane_at(address);
    int saved_errno = errno;

    if (!lane) {
        pass_on(signal_number, info, context);
        return;
    }
    while (__atomic_load_n(&lane->copying, __ATOMIC_SEQ_CST))
        nanosleep(&pause, NULL);
    tried_count = tried == address ? tried_count + 1 : 0;
    tried = address;
    if (lane_is_usable(lane, address) && tried_count < TRIES_MAX) {
        errno = saved_errno;
        return;
    }
    report_stray(lane, address);
    errno = saved_errno;
    pass_on(signal_number, info, context);
}

int trap_install(void)
{
    struct sigaction ours = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    struct sigaction now;
    int error = 0;

    /* If another thread is installing it now, there is nothing to do. */
    if (__atomic_exchange_n(&is_installing, 1, __ATOMIC_SEQ_CST))
        return 0;
    if (sigaction(SIGSEGV, NULL, &now)) {
        error = -errno;
    } else if (!(now.sa_flags & SA_SIGINFO) || now.sa_sigaction != on_fault) {
        earlier = now;
        sigemptyset(&ours.sa_mask);
        if (sigaction(SIGSEGV, &ours, NULL))
            error = -errno;
    }
    __atomic_store_n(&is_installing, 0, __ATOMIC_SEQ_CST);
    return error;
}
