/* Measurements: for the adaptor, and as the PROFILE_REPORT for salusd. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "memory.h"
#include "session.h"

/* What the framework reported (salus_live, salus_reserved); guarded by memory_lock. */
static uint64_t stated_persistent_bytes, stated_ephemeral_bytes;
static uint64_t reserved_persistent_bytes, reserved_ephemeral_bytes;

static int compare_ns(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static uint64_t median_iteration_ns(void)
{
    uint64_t sorted[ITERATIONS_KEPT];
    uint32_t count = session.gate.iteration_next;

    if (count > ITERATIONS_KEPT)
        count = ITERATIONS_KEPT;
    if (!count)
        return 0;
    memcpy(sorted, session.gate.iteration_ns, count * sizeof(sorted[0]));
    qsort(sorted, count, sizeof(sorted[0]), compare_ns);
    return sorted[count / 2];
}

static void sum_lanes(struct salus_counters *counters)
{
    uint32_t index;

    for (index = 0; index < session.lane_count; index++) {
        const struct lane *lane = &session.lanes[index];

        counters->stash_bytes += lane->private_pages * REGION_PAGE_BYTES;
        counters->stash_copied_bytes += lane->copied_bytes;
        counters->promotion_count += lane->promotion_count;
    }
    if (session.lane_count)
        counters->ephemeral_bytes = session.lanes[session.lane_count - 1].region.high_bytes;
}

void salus_counters(struct salus_counters *counters)
{
    const struct memory_counts *counts = &session.counts;

    memset(counters, 0, sizeof(*counters));
    pthread_mutex_lock(&session.memory_lock);
    counters->iteration_count = session.gate.iteration_count;
    counters->handover_count = session.gate.handover_count;
    counters->wait_ns = session.gate.wait_ns;
    counters->iteration_ns = median_iteration_ns();
    counters->live_bytes = counts->live_bytes;
    counters->live_peak_bytes = counts->live_peak_bytes;
    counters->iteration_start_bytes = counts->iteration_start_bytes;
    counters->iteration_peak_bytes = counts->iteration_peak_bytes;
    counters->last_iteration_bytes = counts->last_iteration_bytes;
    counters->live_persistent_bytes = counts->live_persistent_bytes;
    counters->live_ephemeral_bytes = counts->live_ephemeral_bytes;
    if (stated_persistent_bytes || stated_ephemeral_bytes) {
        counters->live_persistent_bytes = stated_persistent_bytes;
        counters->live_ephemeral_bytes = stated_ephemeral_bytes;
    }
    counters->persistent_bytes = memory_persistent_peak_bytes();
    counters->own_bytes = counts->own_bytes;
    counters->private_bytes = counts->private_bytes;
    counters->lane_bytes = counts->lane_bytes;
    counters->lane_count = counts->lane_count;
    counters->private_count = counts->private_count;
    counters->spill_count = counts->spill_count;
    counters->spill_bytes_max = counts->spill_bytes_max;
    counters->stray_count = counts->stray_count;
    counters->cap_persistent_bytes = counts->cap_persistent_bytes;
    counters->cap_ephemeral_bytes = counts->cap_ephemeral_bytes;
    sum_lanes(counters);
    if (reserved_persistent_bytes || reserved_ephemeral_bytes) {
        counters->persistent_bytes = reserved_persistent_bytes;
        counters->ephemeral_bytes = reserved_ephemeral_bytes;
    }
    pthread_mutex_unlock(&session.memory_lock);
}

static void raise_both(uint64_t *first, uint64_t first_bytes, uint64_t *second,
                       uint64_t second_bytes)
{
    pthread_mutex_lock(&session.memory_lock);
    if (first_bytes > *first)
        *first = first_bytes;
    if (second_bytes > *second)
        *second = second_bytes;
    pthread_mutex_unlock(&session.memory_lock);
}

void salus_live(uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    raise_both(&stated_persistent_bytes, persistent_bytes, &stated_ephemeral_bytes,
               ephemeral_bytes);
}

void salus_reserved(uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    raise_both(&reserved_persistent_bytes, persistent_bytes, &reserved_ephemeral_bytes,
               ephemeral_bytes);
}

void salus_counters_reset(void)
{
    struct memory_counts *counts = &session.counts;

    pthread_mutex_lock(&session.memory_lock);
    counts->live_peak_bytes = counts->live_bytes;
    counts->iteration_start_bytes = counts->live_bytes;
    counts->iteration_peak_bytes = counts->live_bytes;
    counts->live_persistent_bytes = 0;
    counts->live_ephemeral_bytes = 0;
    stated_persistent_bytes = stated_ephemeral_bytes = 0;
    reserved_persistent_bytes = reserved_ephemeral_bytes = 0;
    pthread_mutex_unlock(&session.memory_lock);
}

int salus_report(uint64_t model_hash, uint64_t input_hash, const char *rule)
{
    struct salus_profile_report frame = {.model_hash = model_hash, .input_hash = input_hash};
    struct salus_counters counters;

    if (!client_is_connected())
        return -ENOTCONN;
    memory_measure_own();
    salus_counters(&counters);
    frame.persistent_bytes = counters.persistent_bytes;
    frame.ephemeral_bytes = counters.ephemeral_bytes;
    frame.live_persistent_bytes = counters.live_persistent_bytes;
    frame.live_ephemeral_bytes = counters.live_ephemeral_bytes;
    frame.iteration_ns = counters.iteration_ns;
    frame.iteration_count = counters.iteration_count;
    frame.promotion_count = counters.promotion_count;
    frame.spill_count = counters.spill_count;
    frame.spill_bytes_max = counters.spill_bytes_max;
    if (rule)
        strncpy(frame.rule, rule, sizeof(frame.rule) - 1);
    return client_send(&frame, SALUS_PROFILE_REPORT, sizeof(frame));
}
