/*
 * Words of the shared pages. The salus_page_* calls are salusd's side as tests and benchmarks need
 * it (pages.c is no part of libsalus.so): single writer, safe to repeat, never trusting what the
 * session wrote.
 */
#ifndef SALUS_PAGES_H
#define SALUS_PAGES_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "../../wire/salus_wire.h"
#include "salus.h"

static inline uint64_t lease_word(uint64_t epoch, uint32_t limit_count)
{
    return epoch << 32 | limit_count;
}

static inline uint64_t state_word(uint64_t epoch, uint8_t sequence, enum salus_state state)
{
    return epoch << 16 | (uint64_t)sequence << 8 | (uint64_t)state;
}

static inline enum salus_state state_of(uint64_t word)
{
    return (enum salus_state)(word & 0xff);
}

static inline uint64_t state_epoch(uint64_t word)
{
    return word >> 16;
}

static inline uint8_t state_sequence(uint64_t word)
{
    return (uint8_t)(word >> 8);
}

/* Both answer 0 or -errno and are async-signal-safe. `timeout` is relative; NULL waits for ever. */
int futex_wait(uint32_t *word, uint32_t seen, const struct timespec *timeout);
int futex_wake(uint32_t *word);

/* Lays the page out; the memory is zero before. */
SALUS_API void salus_page_init_gate(struct salus_gate_page *gate, uint64_t session);
SALUS_API void salus_page_init_turn(struct salus_turn_page *turn);

/* Prepares a grant that a predecessor will start; limit_count UINT32_MAX means until revoked. */
SALUS_API void salus_page_arm(struct salus_gate_page *gate, uint64_t lane, uint64_t lane_epoch,
                              uint64_t epoch, uint32_t limit_count);
/* Arms and starts it from here. */
SALUS_API void salus_page_grant(struct salus_gate_page *gate, struct salus_turn_page *turn,
                                uint32_t slot, uint64_t lane, uint64_t lane_epoch, uint64_t epoch,
                                uint32_t limit_count);
/* Takes an armed grant back: 0 it will never start, 1 the session runs it or has run it. */
SALUS_API int salus_page_disarm(struct salus_gate_page *gate, uint64_t epoch);
/* At most `further_count` more iterations start under this epoch. */
SALUS_API void salus_page_limit(struct salus_gate_page *gate, uint64_t epoch,
                                uint32_t further_count);
/*
 * Names whom the holder starts at its return (epoch 0: nobody; arm it first). Answers the epoch of
 * a successor named before and not taken yet, else 0: after an earlier name, 0 means that the
 * holder took it.
 */
SALUS_API uint64_t salus_page_name(struct salus_gate_page *gate, uint32_t slot, uint64_t epoch);
/* Asks for the grant at the next boundary. */
SALUS_API void salus_page_revoke(struct salus_gate_page *gate, uint64_t epoch);
/* Takes an idle lease back: 1 done, 0 the session is not idle under that epoch. */
SALUS_API int salus_page_take_idle(struct salus_gate_page *gate, uint64_t epoch);
/* Kernels of this session: held back or not, at most `in_flight_max` under way (0: any). Wakes
 * whoever was held. */
SALUS_API void salus_page_launch(struct salus_gate_page *gate, uint32_t is_held,
                                 uint32_t in_flight_max);
SALUS_API void salus_page_wake(struct salus_turn_page *turn, uint32_t slot);

#endif
