/*
 * salusd's side of the shared pages, as far as the hand-over benchmark needs it. salusd has its own
 * in nodedaemon/service/sessions/gate_memory.py.
 */
#ifndef SALUS_DAEMON_PAGES_H
#define SALUS_DAEMON_PAGES_H

#include "page_words.h"
#include "salus.h"

/* Initializes a page whose memory is zero. */
SALUS_API void salus_page_init_gate(struct salus_gate_page *gate, uint64_t session);
SALUS_API void salus_page_init_turn(struct salus_turn_page *turn);

/* Prepares a grant that a predecessor will start. The limit may be SALUS_UNLIMITED. */
SALUS_API void salus_page_arm(struct salus_gate_page *gate, uint64_t lane, uint64_t lane_epoch,
                              uint64_t epoch, uint32_t limit_count);
/* Arms a grant and starts it without a predecessor. */
SALUS_API void salus_page_grant(struct salus_gate_page *gate, struct salus_turn_page *turn,
                                uint32_t slot, uint64_t lane, uint64_t lane_epoch, uint64_t epoch,
                                uint32_t limit_count);
/* Names the successor that the holder starts when it returns its grant. Arm the successor first. */
SALUS_API void salus_page_name(struct salus_gate_page *gate, uint32_t slot, uint64_t epoch);

#endif
