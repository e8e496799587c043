/* Measurements: for the adaptor, and as the PROFILE_REPORT for salusd. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "memory.h"
#include "session.h"

/* Running maxima that the framework has reported; guarded by memory_lock. */
static struct reported {
    uint64_t persistent_bytes, ephemeral_bytes;
} live, reserved;

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
    pthread_mutex_lock(&session.memory_lock);
    *counters = session.counts;
    counters->iteration_count = session.gate.iteration_count;
    counters->handover_count = session.gate.handover_count;
    counters->wait_ns = session.gate.wait_ns;
    counters->iteration_ns = median_iteration_ns();
    counters->persistent_bytes = memory_persistent_peak_bytes();
    sum_lanes(counters);
    if (live.persistent_bytes || live.ephemeral_bytes) {
        counters->live_persistent_bytes = live.persistent_bytes;
        counters->live_ephemeral_bytes = live.ephemeral_bytes;
    }
    if (reserved.persistent_bytes || reserved.ephemeral_bytes) {
        counters->persistent_bytes = reserved.persistent_bytes;
        counters->ephemeral_bytes = reserved.ephemeral_bytes;
    }
    pthread_mutex_unlock(&session.memory_lock);
}

static void raise_reported(struct reported *reported, uint64_t persistent_bytes,
                           uint64_t ephemeral_bytes)
{
    pthread_mutex_lock(&session.memory_lock);
    raise_peak(&reported->persistent_bytes, persistent_bytes);
    raise_peak(&reported->ephemeral_bytes, ephemeral_bytes);
    pthread_mutex_unlock(&session.memory_lock);
}

void salus_live(uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    raise_reported(&live, persistent_bytes, ephemeral_bytes);
}

void salus_reserved(uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    raise_reported(&reserved, persistent_bytes, ephemeral_bytes);
}

void salus_counters_reset(void)
{
    struct salus_counters *counts = &session.counts;

    pthread_mutex_lock(&session.memory_lock);
    counts->live_peak_bytes = counts->live_bytes;
    counts->iteration_start_bytes = counts->live_bytes;
    counts->iteration_peak_bytes = counts->live_bytes;
    counts->live_persistent_bytes = 0;
    counts->live_ephemeral_bytes = 0;
    live = reserved = (struct reported){0};
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
