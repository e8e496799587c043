/* The words of the shared pages, packed and unpacked, and the futex calls on them. */
#ifndef SALUS_PAGE_WORDS_H
#define SALUS_PAGE_WORDS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../../wire/salus_pages.h"

static inline uint64_t lease_word(uint64_t epoch, uint32_t limit_count)
{
    return epoch << SALUS_UPPER_SHIFT | limit_count;
}

static inline enum salus_gate_state state_of(uint64_t word)
{
    return (enum salus_gate_state)(word & SALUS_STATE_MASK);
}

/* The epoch of a state word, or of a successor word. */
static inline uint64_t state_epoch(uint64_t word)
{
    return word >> SALUS_EPOCH_SHIFT;
}

/* Names the session in `slot` as the successor under this epoch. */
static inline uint64_t successor_word(uint64_t epoch, uint32_t slot)
{
    return epoch << SALUS_EPOCH_SHIFT | (slot + 1);
}

/* Replaces the state word `*seen` with one of this epoch and state, and the next sequence. Returns
 * false if the word has changed; `*seen` then has its new value. */
static inline bool state_swap(uint64_t *word, uint64_t *seen, uint64_t epoch,
                              enum salus_gate_state state)
{
    uint64_t sequence = (*seen + SALUS_SEQUENCE_STEP) & SALUS_SEQUENCE_MASK;
    uint64_t next = epoch << SALUS_EPOCH_SHIFT | sequence | (uint64_t)state;

    return __atomic_compare_exchange_n(word, seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* Both return 0 or -errno and are async-signal-safe. `timeout` is relative; NULL waits forever. */
int futex_wait(uint32_t *word, uint32_t seen, const struct timespec *timeout);
int futex_wake(uint32_t *word);

#endif
