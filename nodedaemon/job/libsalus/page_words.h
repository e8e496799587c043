/* The words of the shared pages, packed and unpacked, and the futex calls on them. */
#ifndef SALUS_PAGE_WORDS_H
#define SALUS_PAGE_WORDS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../../wire/salus_pages.h"

static inline uint64_t lease_word(uint64_t epoch, uint32_t limit_count)
{
    return epoch << 32 | limit_count;
}

static inline enum salus_gate_state state_of(uint64_t word)
{
    return (enum salus_gate_state)(word & 0xff);
}

static inline uint64_t state_epoch(uint64_t word)
{
    return word >> 16;
}

/* Replaces the state word `*seen` with one of this epoch and state, and the next sequence. Returns
 * false if the word has changed; `*seen` then has its new value. */
static inline bool state_swap(uint64_t *word, uint64_t *seen, uint64_t epoch,
                              enum salus_gate_state state)
{
    uint64_t next = epoch << 16 | ((*seen + 0x100) & 0xff00) | (uint64_t)state;

    return __atomic_compare_exchange_n(word, seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Both return 0 or -errno and are async-signal-safe. `timeout` is relative; NULL waits forever. */
int futex_wait(uint32_t *word, uint32_t seen, const struct timespec *timeout);
int futex_wake(uint32_t *word);

#endif
