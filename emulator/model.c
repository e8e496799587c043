/*
 * Time: how queued work advances. There are no threads: every process that looks
 * at a device advances it first, under the lock.
 *
 * Work at the head of each stream is active. Without MPS one process runs at a
 * time, in slices, and each switch costs time. With MPS all processes run:
 * streaming multiprocessors are assigned by priority and then in proportion to
 * demand, and bandwidth is divided when demand exceeds it. The lengths of slice
 * and switch are assumptions, not measurements: the model says nothing about the
 * speed of a real GPU (README.md).
 */
#include "state.h"

#define SLICE_NS   2000000ULL
#define SWITCH_NS  150000ULL
#define ACTIVE_MAX 128

struct active {
    uint32_t ring;
    double speed;
};

static void record_busy(struct emu_bucket *buckets, uint64_t from_ns, uint64_t busy_ns)
{
    while (busy_ns) {
        uint64_t index = from_ns / EMU_BUCKET_NS;
        uint64_t room = (index + 1) * EMU_BUCKET_NS - from_ns;
        uint64_t part = busy_ns < room ? busy_ns : room;
        struct emu_bucket *bucket = &buckets[index % EMU_BUCKETS];
        if (bucket->index != index) {
            PUT(bucket->busy_ns, 0);
            PUT(bucket->index, index);
        }
        PUT(bucket->busy_ns, bucket->busy_ns + part);
        from_ns += part;
        busy_ns -= part;
    }
}

uint32_t emu_busy_percent(const struct emu_bucket *buckets, uint64_t now_ns)
{
    uint64_t index = now_ns / EMU_BUCKET_NS, busy = 0;
    for (uint32_t i = 0; i < EMU_BUCKETS; i++)
        if (buckets[i].index + EMU_BUCKETS_READ >= index && buckets[i].index < index)
            busy += buckets[i].busy_ns;
    uint64_t percent = busy * 100 / (EMU_BUCKETS_READ * EMU_BUCKET_NS);
    return percent > 100 ? 100 : (uint32_t)percent;
}

void emu_ring_reset(uint32_t stream, uint32_t process, uint32_t device, int32_t priority)
{
    struct emu_ring *ring = &emu->rings[stream];
    PUT(ring->process, process);
    PUT(ring->device, device);
    PUT(ring->priority, priority);
    PUT(ring->done, 0);
    PUT(ring->queued, 0);
    PUT(ring->in_use, 1);
    if (stream >= emu->ring_count)
        PUT(emu->ring_count, stream + 1);
}

static bool is_waited_for(const struct emu_item *item, uint32_t process)
{
    const struct emu_ring *other = &emu->rings[item->wait_stream % EMU_STREAMS_MAX];
    return other->in_use && other->process == process && other->done < item->wait_until;
}

/* Completes marks and satisfied waits, which take no time. Completing one may
 * satisfy another, so this repeats until nothing changes. */
static void complete_ready(uint32_t device, uint64_t now_ns)
{
    bool again = true;
    while (again) {
        again = false;
        for (uint32_t i = 0; i < emu->ring_count; i++) {
            struct emu_ring *ring = &emu->rings[i];
            while (ring->in_use && ring->device == device && ring->done < ring->queued) {
                struct emu_item *item = &ring->items[ring->done % EMU_RING];
                bool has_work = item->work == WORK_KERNEL || item->work == WORK_COPY;
                if ((has_work && item->left_ns > 0.5) ||
                    (item->work == WORK_WAIT && is_waited_for(item, ring->process)))
                    break;
                PUT(item->done_ns, now_ns);
                PUT(ring->done, ring->done + 1);
                again = true;
            }
        }
    }
}

static uint32_t find_active(uint32_t device, struct active *active)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < emu->ring_count && count < ACTIVE_MAX; i++) {
        const struct emu_ring *ring = &emu->rings[i];
        if (!ring->in_use || ring->device != device || ring->done == ring->queued ||
            ring->items[ring->done % EMU_RING].work == WORK_WAIT ||
            emu->processes[ring->process].checkpoint == CHECKPOINT_TAKEN)
            continue;
        active[count++] = (struct active){i, 0.0};
    }
    return count;
}

static const struct emu_item *head(const struct active *active)
{
    const struct emu_ring *ring = &emu->rings[active->ring];
    return &ring->items[ring->done % EMU_RING];
}

/* Copies share the bus equally; kernels of the processes that may run share the
 * multiprocessors. */
static void share(const struct emu_device *on, struct active *active, uint32_t count, uint32_t only)
{
    double bandwidth = 0.0, left = 100.0;
    uint32_t copies = 0;
    for (uint32_t i = 0; i < count; i++)
        copies += head(&active[i])->work == WORK_COPY;
    for (bool more = true; more;) {
        int32_t priority = INT32_MAX;
        double demand = 0.0;
        for (uint32_t i = 0; i < count; i++)
            if (active[i].speed == 0.0 && emu->rings[active[i].ring].priority < priority)
                priority = emu->rings[active[i].ring].priority;
        more = false;
        for (int pass = 0; pass < 2; pass++)
            for (uint32_t i = 0; i < count; i++) {
                const struct emu_ring *ring = &emu->rings[active[i].ring];
                const struct emu_item *item = head(&active[i]);
                if (active[i].speed != 0.0 || ring->priority != priority)
                    continue;
                double cap = on->mps ? emu->processes[ring->process].sm_percent : 100.0;
                double want = item->sm_percent < cap ? item->sm_percent : cap;
                if (pass == 0) {
                    demand += item->work == WORK_COPY || (only != NONE && ring->process != only)
                                  ? 0.0
                                  : want;
                    continue;
                }
                more = true;
                if (item->work == WORK_COPY)
                    active[i].speed = 1.0 / copies;
                else if ((only != NONE && ring->process != only) || left < 0.01)
                    active[i].speed = -1.0;
                else
                    active[i].speed =
                        want / item->sm_percent * (demand > left ? left / demand : 1.0);
            }
        left = demand > left ? 0.0 : left - demand;
    }
    for (uint32_t i = 0; i < count; i++)
        if (active[i].speed > 0.0 && head(&active[i])->work == WORK_KERNEL)
            bandwidth += head(&active[i])->bandwidth_percent * active[i].speed;
    for (uint32_t i = 0; i < count; i++)
        if (bandwidth > 100.0 && active[i].speed > 0.0 && head(&active[i])->work == WORK_KERNEL)
            active[i].speed *= 100.0 / bandwidth;
}

/* Passes the time slice on when it is over. The next owner is the next row that has
 * kernels waiting. */
static void turn_slice(struct emu_device *on, const struct active *active, uint32_t count,
                       uint64_t now_ns)
{
    uint32_t next = NONE, first = NONE;
    bool owner_works = false;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t process = emu->rings[active[i].ring].process;
        if (head(&active[i])->work == WORK_COPY)
            continue;
        owner_works |= process == on->slice_process;
        if (first == NONE || process < first)
            first = process;
        if (on->slice_process != NONE && process > on->slice_process &&
            (next == NONE || process < next))
            next = process;
    }
    if (first == NONE || (owner_works && now_ns < on->slice_until_ns))
        return;
    if (next == NONE)
        next = first;
    if (next != on->slice_process && on->slice_process != NONE)
        PUT(on->switch_until_ns, now_ns + SWITCH_NS);
    PUT(on->slice_process, next);
    PUT(on->slice_until_ns, now_ns + SLICE_NS);
}

static uint64_t step(struct emu_device *on, struct active *active, uint32_t count, uint64_t at_ns,
                     uint64_t until_ns)
{
    double factor = on->speed_permille / 1000.0;
    uint64_t span = until_ns - at_ns;
    bool is_switching = !on->mps && at_ns < on->switch_until_ns;
    if (is_switching && on->switch_until_ns - at_ns < span)
        span = on->switch_until_ns - at_ns;
    if (!on->mps && !is_switching && on->slice_until_ns > at_ns &&
        on->slice_until_ns - at_ns < span)
        span = on->slice_until_ns - at_ns;
    share(on, active, count, on->mps ? NONE : on->slice_process);
    for (uint32_t i = 0; i < count; i++) {
        const struct emu_item *item = head(&active[i]);
        if (is_switching && item->work == WORK_KERNEL)
            active[i].speed = 0.0;
        if (active[i].speed > 0.0 && item->left_ns / (active[i].speed * factor) < (double)span)
            span = (uint64_t)(item->left_ns / (active[i].speed * factor)) + 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct emu_ring *ring = &emu->rings[active[i].ring];
        struct emu_item *item = &ring->items[ring->done % EMU_RING];
        if (active[i].speed <= 0.0)
            continue;
        double left = item->left_ns - (double)span * active[i].speed * factor;
        PUT(item->left_ns, left > 0.0 ? left : 0.0);
        if (item->work == WORK_KERNEL)
            record_busy(emu->processes[ring->process].on[ring->device].buckets, at_ns, span);
    }
    return span;
}

void emu_advance(uint32_t device)
{
    struct emu_device *on = &emu->devices[device];
    struct active active[ACTIVE_MAX];
    uint64_t now_ns = emu_now_ns(), at_ns = on->advanced_ns;
    while (at_ns < now_ns) {
        complete_ready(device, at_ns);
        uint32_t count = find_active(device, active);
        if (count == 0 || on->hangs || on->is_lost)
            break;
        if (!on->mps)
            turn_slice(on, active, count, at_ns);
        uint64_t span = step(on, active, count, at_ns, now_ns);
        bool has_kernel = false;
        for (uint32_t i = 0; i < count; i++)
            has_kernel |= active[i].speed > 0.0 && head(&active[i])->work == WORK_KERNEL;
        if (has_kernel)
            record_busy(on->buckets, at_ns, span);
        at_ns += span;
        PUT(on->advanced_ns, at_ns);
    }
    PUT(on->advanced_ns, now_ns > at_ns ? now_ns : at_ns);
    complete_ready(device, now_ns);
}

/* The time at which work may complete next if nothing else is queued. A waiter
 * sleeps until then and looks again. */
uint64_t emu_wake_ns(uint32_t device)
{
    struct active active[ACTIVE_MAX];
    const struct emu_device *on = &emu->devices[device];
    uint64_t now_ns = emu_now_ns(), wait_ns = 1000000;
    uint32_t count = find_active(device, active);
    share(on, active, count, on->mps ? NONE : on->slice_process);
    for (uint32_t i = 0; i < count; i++)
        if (active[i].speed > 0.0 && head(&active[i])->left_ns / active[i].speed < (double)wait_ns)
            wait_ns = (uint64_t)(head(&active[i])->left_ns / active[i].speed);
    return now_ns + wait_ns;
}
