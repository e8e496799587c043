/*
 * Memory of the session: the interface of a backend, and what all backends share.
 *
 * A backend decides where the framework's blocks go and gets memory from the system. Each library
 * has one: memory_host.c places PyTorch's CPU blocks, memory_cuda.c places device memory. memory.c
 * is common to both: which threads use the lane, blocks in the lane, private blocks, the cap, and
 * all counters. A backend also implements lane.h: lane.c and stash.c for the host, cuda_lane.c for
 * CUDA. Functions take session.memory_lock themselves unless they say otherwise.
 */
#ifndef SALUS_MEMORY_H
#define SALUS_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "blocks.h"
#include "session.h"

/* Flags of a private block, stored together with its size in struct blocks. */
#define BLOCK_SPILL     (1ull << 63) /* the lane had no room for it */
#define BLOCK_OWN_RANGE (1ull << 62) /* memory_cuda.c: lies in an address range of ours */
#define BLOCK_SIZE_MASK (BLOCK_OWN_RANGE - 1)

/* The next four functions are implemented by the backend. */

/* Redirects the framework's allocation calls; returns what salus_hook returns. */
int memory_hook(void);

/* Bytes that the system attributes to this process. Slow; call it without a lock. */
uint64_t memory_process_bytes(void);

/* The part of these bytes that lies behind the lane of an ungated session. The caller holds
 * memory_lock. */
uint64_t memory_self_lane_bytes(const struct lane *lane);

/* Rolls the counters of an iteration over to the next one. The caller holds memory_lock. */
void memory_roll_iteration(void);

/* In a forked child: forgets which threads use the lane. */
void memory_forget_threads(void);

/* Bytes of the session's own memory now: process, private blocks, stash. The caller holds
 * memory_lock. */
uint64_t memory_persistent_bytes(void);

/* P as a running maximum. The caller holds memory_lock. */
uint64_t memory_persistent_peak_bytes(void);

/* Measures the part of the process that is not a framework block. Slow. */
void memory_measure_own(void);

/* True if the calling thread's blocks belong in the lane. */
bool memory_is_lane_thread(void);

/* Allocates a block in the open lane. Returns its address, or 0. `is_spill`: the lane has no room
 * for it. */
uintptr_t memory_allocate_in_lane(uint64_t size_bytes, uint64_t align_bytes, bool *is_spill);

/* Frees the block at this address if the address lies in a lane's range. False if it does not. */
bool memory_free_in_lane(uintptr_t address);

/* Counts a new or freed lane block of that many bytes. The caller holds memory_lock. */
void memory_count_lane_block(uint64_t size_bytes);
void memory_uncount_lane_block(uint64_t size_bytes);

/* Records a private block in `blocks` and counts it. */
void memory_note_private(struct blocks *blocks, uintptr_t address, uint64_t size_bytes,
                         uint64_t flags);

/* Removes the record. Returns the block's size and flags, or 0 if it was not recorded. */
uint64_t memory_forget_private(struct blocks *blocks, uintptr_t address);

/* Whether the session may have that many more private bytes. Asks salusd for a higher cap if they
 * exceed the current one. */
bool memory_fits_cap(uint64_t size_bytes);

static inline void raise_peak(uint64_t *peak, uint64_t value)
{
    if (value > *peak)
        *peak = value;
}

/* What decides where the calling thread's blocks go. */
struct memory_thread {
    enum { THREAD_UNKNOWN, THREAD_LANE, THREAD_OTHER } kind;
    uint32_t generation; /* `kind` is valid if this is memory_generation */
    uint32_t persist_depth;
};
extern __thread struct memory_thread memory_thread __attribute__((visibility("hidden")));
extern uint32_t memory_generation __attribute__((visibility("hidden")));

/* The calling thread's blocks go to the lane from now on. */
static inline void memory_mark_thread(void)
{
    memory_thread.kind = THREAD_LANE;
    memory_thread.generation = memory_generation;
}

/* For the backends' memory_roll_iteration; inline because every boundary calls it. */
static inline void roll_counters(uint64_t survivor_bytes)
{
    struct salus_counters *counts = &session.counts;
    uint64_t resting_bytes = counts->iteration_start_bytes;

    /* Blocks that an iteration leaves behind are not ephemeral, nor are those that it found. */
    raise_peak(&resting_bytes, counts->live_bytes);
    if (session.gate.iteration_count)
        raise_peak(&counts->live_ephemeral_bytes, counts->iteration_peak_bytes - resting_bytes);
    raise_peak(&counts->live_persistent_bytes, counts->live_bytes);
    raise_peak(&session.survivor_peak_bytes, survivor_bytes);
    counts->last_iteration_bytes = counts->iteration_peak_bytes;
    counts->iteration_start_bytes = counts->live_bytes;
    counts->iteration_peak_bytes = counts->live_bytes;
}

#endif
