/*
 * Lane memory between grants: when the grant is returned, survivors are stashed, the lane is shut,
 * and an UNMAP that arrived meanwhile is carried out. The receiver maps and unmaps lanes and raises
 * caps here. All functions take memory_lock themselves.
 */
#ifndef SALUS_LENDING_H
#define SALUS_LENDING_H

#include <stdint.h>

/* Stashes survivors and shuts the lane. Returns 0, -EDQUOT if they exceed the cap, or another
 * -errno. */
int lending_shut(void);

/* The same, but asks salusd for a higher cap if needed. On an error the grant must be kept. */
int lending_shut_or_ask(void);

/* Carries out an UNMAP that arrived while the lane was held. */
void lending_finish(void);

/* Called by the receiver. An UNMAP is carried out at once, or when the grant is returned. A MAP
 * that arrives while the grant is held is refused with a FAULT. */
void lending_unmap(uint64_t lane, uint64_t epoch);
void lending_map(int fd, uint64_t lane, uint64_t epoch, uint64_t lane_bytes,
                 uint64_t ephemeral_bytes);

/* Sets the caps from ALLOW or WELCOME. A larger share of the mapped lane is usable at once. */
void lending_set_caps(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

#endif
