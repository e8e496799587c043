/*
 * What happens to lane memory when the grant is returned: survivors are stashed, the lane is shut,
 * and an UNMAP or MAP that arrived meanwhile is carried out. All functions take memory_lock
 * themselves.
 */
#ifndef SALUS_LENDING_H
#define SALUS_LENDING_H

#include <stdint.h>

/* Stashes survivors and shuts the lane. 0; -EDQUOT: they exceed the cap; -ENOMEM. */
int lending_shut(void);

/* The same, but asks salusd for a higher cap if needed. On an error the grant must be kept. */
int lending_shut_or_ask(void);

/* Carries out an UNMAP that arrived while the lane was held. */
void lending_finish(void);

/* By the receiver: UNMAP, at once or when the grant is returned; MAP. */
void lending_unmap(uint64_t lane, uint64_t epoch);
void lending_map(int fd, uint64_t lane, uint64_t epoch, uint64_t lane_bytes,
                 uint64_t ephemeral_bytes);

/* Sets the caps of ALLOW. A larger share of the mapped lane is usable at once. */
void lending_raise_caps(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

#endif
