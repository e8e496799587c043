/*
 * salusd's side of the shared pages, for tests and benchmarks that stand in for salusd. It is not
 * part of libsalus.so; salusd has its own in nodedaemon/service/sessions/gate_memory.py.
 */
#ifndef SALUS_DAEMON_PAGES_H
#define SALUS_DAEMON_PAGES_H

#include "page_words.h"
#include "salus.h"

/* Lays the page out; the memory is zero before. */
SALUS_API void salus_page_init_gate(struct salus_gate_page *gate, uint64_t session);
SALUS_API void salus_page_init_turn(struct salus_turn_page *turn);

/* Prepares a grant that a predecessor will start; SALUS_UNLIMITED: until revoked. */
SALUS_API void salus_page_arm(struct salus_gate_page *gate, uint64_t lane, uint64_t lane_epoch,
                              uint64_t epoch, uint32_t limit_count);
/* Arms and starts it from here. */
SALUS_API void salus_page_grant(struct salus_gate_page *gate, struct salus_turn_page *turn,
                                uint32_t slot, uint64_t lane, uint64_t lane_epoch, uint64_t epoch,
                                uint32_t limit_count);
/* Takes an armed grant back. 0: it will never start; 1: the session runs it or has run it. */
SALUS_API int salus_page_disarm(struct salus_gate_page *gate, uint64_t epoch);
/* At most `further_count` more iterations start under this epoch. */
SALUS_API void salus_page_limit(struct salus_gate_page *gate, uint64_t epoch,
                                uint32_t further_count);
/*
 * Names the successor that the holder starts when it returns; arm it first. Epoch 0: none. Returns
 * the epoch of an earlier successor that the holder has not taken, else 0.
 */
SALUS_API uint64_t salus_page_name(struct salus_gate_page *gate, uint32_t slot, uint64_t epoch);
/* Asks for the grant at the next boundary. */
SALUS_API void salus_page_revoke(struct salus_gate_page *gate, uint64_t epoch);
/* Takes an idle lease back. 1: done; 0: the session is not idle under that epoch. */
SALUS_API int salus_page_take_idle(struct salus_gate_page *gate, uint64_t epoch);
/* Holds kernels back or releases them; at most `in_flight_max` in flight (0: any number). */
SALUS_API void salus_page_launch(struct salus_gate_page *gate, uint32_t is_held,
                                 uint32_t in_flight_max);
SALUS_API void salus_page_wake(struct salus_turn_page *turn, uint32_t slot);

#endif
