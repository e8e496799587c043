/*
 * What happens to lane memory when the grant goes: survivors are stashed, the lane is shut, and
 * what UNMAP or LANE asked for meanwhile is done. All take memory_lock themselves.
 */
#ifndef SALUS_LENDING_H
#define SALUS_LENDING_H

#include <stdint.h>

/* 0: survivors are safe and the lane is shut. -EDQUOT: they do not fit the cap; -ENOMEM: no memory.
 */
int lending_shut(void);

/* The same, asking the daemon for a higher cap if need be. 0, or an error: the grant must be kept.
 */
int lending_shut_or_ask(void);

/* Carries out an UNMAP that came while the lane was held. */
void lending_finish(void);

/* By the receiver: UNMAP, now or when the grant is back; LANE. */
void lending_unmap(uint64_t lane, uint64_t epoch);
void lending_map(int fd, uint64_t lane, uint64_t epoch, uint64_t lane_bytes,
                 uint64_t ephemeral_bytes);

/* The caps that ALLOW gives; a larger share of the mapped lane is used at once. */
void lending_raise_caps(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

#endif
