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

static inline uint64_t state_word(uint64_t epoch, uint8_t sequence, enum salus_gate_state state)
{
    return epoch << 16 | (uint64_t)sequence << 8 | (uint64_t)state;
}

static inline enum salus_gate_state state_of(uint64_t word)
{
    return (enum salus_gate_state)(word & 0xff);
}

static inline uint64_t state_epoch(uint64_t word)
{
    return word >> 16;
}

static inline uint8_t state_sequence(uint64_t word)
{
    return (uint8_t)(word >> 8);
}

/* Both return 0 or -errno and are async-signal-safe. `timeout` is relative; NULL waits forever. */
int futex_wait(uint32_t *word, uint32_t seen, const struct timespec *timeout);
int futex_wake(uint32_t *word);

#endif
