/*
 * Processes, allocations and holdings: how much of which device each process has.
 *
 * A row counts while its in_use word is set. The word is set last when a row is made.
 * It is cleared first when a holding ends. A process's row is cleared last, so that
 * emu_reap can repeat a removal that a death interrupted.
 */
#include "state.h"

#include "abi.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint32_t self_row = NONE;
static bool is_forked; /* this is a child of the process that attached: the driver does not survive
                          fork either */

/* Start time in ticks. 0 if there is no such process, or only its zombie, whose memory a driver
 * would have freed. A zombie with more threads is a process whose main thread has ended.
 */
uint64_t emu_process_start(int32_t pid)
{
    char path[32], text[512];
    unsigned long long start = 0;
    char status = 'Z';
    int thread_count = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    /* The name of the command may contain a newline. */
    text[fread(text, 1, sizeof(text) - 1, file)] = 0;
    fclose(file);
    char *after = strrchr(text, ')');
    if (!after || sscanf(after,
                         ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u "
                         "%*d %*d %*d %*d "
                         "%d %*d %llu",
                         &status, &thread_count, &start) != 3)
        return 0;
    return (status == 'Z' && thread_count < 2) || status == 'X' ? 0 : (uint64_t)start;
}

bool emu_process_is_alive(int32_t pid, uint64_t start)
{
    return start != 0 && emu_process_start(pid) == start;
}

uint32_t emu_self(void)
{
    return self_row;
}

static void forget_self(void)
{
    is_forked = self_row != NONE || is_forked;
    self_row = NONE;
}

static void read_cgroup(char *into)
{
    char line[512];
    FILE *file = fopen("/proc/self/cgroup", "re");
    into[0] = 0;
    if (!file)
        return;
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, "0::", 3) != 0)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(into, EMU_PATH_MAX, "%.*s", EMU_PATH_MAX - 1, line + 3);
    }
    fclose(file);
}

static void read_mps(struct emu_process *process)
{
    const char *percent = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    int share = percent ? atoi(percent) : 100;
    PUT(process->sm_percent, share >= 1 && share <= 100 ? (uint32_t)share : 100);
    for (uint32_t device = 0; device < emu->device_count; device++)
        PUT(process->on[device].limit_bytes, 0);
    /* The form is DEVICE=SIZE[,DEVICE=SIZE...], sizes with M or G. */
    while (limit && *limit) {
        char *end;
        unsigned long device = strtoul(limit, &end, 10);
        if (*end != '=' || device >= emu->device_count)
            return;
        uint64_t bytes = strtoull(end + 1, &end, 10);
        bytes *= *end == 'G' ? 1024 * MIB : MIB;
        PUT(emu->processes[process - emu->processes].on[device].limit_bytes, bytes);
        end += strcspn(end, ",");
        limit = *end ? end + 1 : NULL;
    }
}

uint32_t emu_attach(void)
{
    if (emu_self() != NONE)
        return self_row;
    if (is_forked)
        return NONE;
    emu_reap();
    for (uint32_t row = 0; row < EMU_PROCESSES_MAX; row++) {
        struct emu_process *process = &emu->processes[row];
        char cgroup[EMU_PATH_MAX];
        if (process->in_use)
            continue;
        read_cgroup(cgroup);
        emu_inject();
        memset(process, 0, sizeof(*process));
        PUT(process->pid, getpid());
        PUT(process->start, emu_process_start(getpid()));
        emu_inject();
        memcpy(process->cgroup, cgroup, sizeof(cgroup));
        read_mps(process);
        PUT(process->in_use, 1);
        pthread_atfork(NULL, NULL, forget_self);
        self_row = row;
        return row;
    }
    return NONE;
}

void emu_holding_drop(uint32_t index)
{
    struct emu_holding *holding = &emu->holdings[index];
    struct emu_allocation *allocation = &emu->allocations[holding->allocation];
    PUT(holding->in_use, 0);
    PUT(allocation->holders, allocation->holders - 1);
    if (allocation->holders == 0) {
        PUT(allocation->in_use, 0);
        PUT(emu->devices[allocation->device].used_bytes,
            emu->devices[allocation->device].used_bytes - allocation->bytes);
        return;
    }
    /* NVML lists the memory under its creator while that process holds it, then
     * under another holder. */
    if (allocation->creator != holding->process)
        return;
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++)
        if (emu->holdings[i].in_use && emu->holdings[i].allocation == holding->allocation) {
            PUT(allocation->creator, emu->holdings[i].process);
            if (emu->holdings[i].process == holding->process)
                return;
        }
}

void emu_process_drop(uint32_t row)
{
    struct emu_process *process = &emu->processes[row];
    for (uint32_t i = 0; i < emu->ring_count; i++)
        if (emu->rings[i].in_use && emu->rings[i].process == row)
            PUT(emu->rings[i].in_use, 0);
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++)
        if (emu->holdings[i].in_use && emu->holdings[i].process == row)
            emu_holding_drop(i);
    for (uint32_t device = 0; device < emu->device_count; device++) {
        struct emu_presence *on = &process->on[device];
        uint64_t gone =
            process->checkpoint == CHECKPOINT_TAKEN ? 0 : on->private_bytes + on->context_bytes;
        /* Clear the row first. After a death here the sum is too low and will be
         * recomputed; memory never counts for a process that is gone. */
        PUT(on->private_bytes, 0);
        PUT(on->context_bytes, 0);
        PUT(on->context_count, 0);
        PUT(emu->devices[device].used_bytes, emu->devices[device].used_bytes - gone);
        if (emu->devices[device].slice_process == row)
            PUT(emu->devices[device].slice_process, NONE);
    }
    PUT(process->in_use, 0);
}

void emu_reap(void)
{
    for (uint32_t row = 0; row < EMU_PROCESSES_MAX; row++) {
        const struct emu_process *process = &emu->processes[row];
        if (process->in_use && !emu_process_is_alive(process->pid, process->start))
            emu_process_drop(row);
    }
}

static void recompute_allocations(void)
{
    static uint32_t holders[EMU_ALLOCATIONS_MAX]; /* guarded by the lock */
    memset(holders, 0, sizeof(holders));
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++) {
        struct emu_holding *holding = &emu->holdings[i];
        if (!holding->in_use)
            continue;
        if (holding->allocation >= EMU_ALLOCATIONS_MAX ||
            !emu->allocations[holding->allocation].in_use ||
            holding->process >= EMU_PROCESSES_MAX || !emu->processes[holding->process].in_use)
            PUT(holding->in_use, 0);
        else
            holders[holding->allocation]++;
    }
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++) {
        struct emu_allocation *allocation = &emu->allocations[i];
        if (allocation->holders != holders[i])
            PUT(allocation->holders, holders[i]);
        if (allocation->in_use && holders[i] == 0)
            PUT(allocation->in_use, 0);
    }
}

static void recompute_sums(void)
{
    uint64_t used[EMU_DEVICES_MAX] = {0};
    for (uint32_t row = 0; row < EMU_PROCESSES_MAX; row++)
        for (uint32_t device = 0; emu->processes[row].in_use && device < emu->device_count &&
                                  emu->processes[row].checkpoint != CHECKPOINT_TAKEN;
             device++)
            used[device] += emu->processes[row].on[device].private_bytes +
                            emu->processes[row].on[device].context_bytes;
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++)
        if (emu->allocations[i].in_use)
            used[emu->allocations[i].device] += emu->allocations[i].bytes;
    for (uint32_t device = 0; device < emu->device_count; device++)
        PUT(emu->devices[device].used_bytes, used[device]);
}

void emu_recompute(void)
{
    recompute_allocations();
    for (uint32_t i = 0; i < emu->ring_count; i++) {
        struct emu_ring *ring = &emu->rings[i];
        if (ring->in_use &&
            (ring->process >= EMU_PROCESSES_MAX || !emu->processes[ring->process].in_use))
            PUT(ring->in_use, 0);
        if (ring->in_use && ring->queued - ring->done > EMU_RING)
            PUT(ring->done, ring->queued);
    }
    recompute_sums();
    emu_reap();
    recompute_sums();
}

uint64_t emu_process_bytes(uint32_t row, uint32_t device)
{
    const struct emu_presence *on = &emu->processes[row].on[device];
    uint64_t bytes = on->private_bytes + on->context_bytes;
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++)
        if (emu->allocations[i].in_use && emu->allocations[i].creator == row &&
            emu->allocations[i].device == device)
            bytes += emu->allocations[i].bytes;
    return bytes;
}

static bool is_below(const char *cgroup, const char *limit)
{
    size_t length = strlen(limit);
    return strncmp(cgroup, limit, length) == 0 &&
           (cgroup[length] == 0 || cgroup[length] == '/' || (length && limit[length - 1] == '/'));
}

uint64_t emu_limit_used(uint32_t device, const char *cgroup)
{
    uint64_t used = 0;
    for (uint32_t row = 0; row < EMU_PROCESSES_MAX; row++)
        if (emu->processes[row].in_use && is_below(emu->processes[row].cgroup, cgroup))
            used += emu_process_bytes(row, device);
    return used;
}

static bool fits(uint32_t device, uint64_t bytes)
{
    const struct emu_process *process = &emu->processes[self_row];
    const struct emu_device *on = &emu->devices[device];
    if (on->used_bytes + bytes > on->total_bytes)
        return false;
    if (on->mps && process->on[device].limit_bytes &&
        emu_process_bytes(self_row, device) + bytes > process->on[device].limit_bytes)
        return false;
    for (uint32_t i = 0; i < EMU_LIMITS_MAX; i++) {
        const struct emu_limit *limit = &emu->limits[i];
        if (limit->in_use && limit->device == device && is_below(process->cgroup, limit->cgroup) &&
            emu_limit_used(device, limit->cgroup) + bytes > limit->hard_bytes)
            return false;
    }
    return true;
}

static int admit(uint32_t device, uint64_t bytes)
{
    struct emu_device *on = &emu->devices[device];
    if (emu_self() == NONE)
        return CU_NOT_INITIALIZED;
    if (on->oom_count != 0) {
        if (on->oom_count > 0)
            PUT(on->oom_count, on->oom_count - 1);
        return CU_OUT_OF_MEMORY;
    }
    if (fits(device, bytes))
        return CU_OK;
    emu_reap();
    return fits(device, bytes) ? CU_OK : CU_OUT_OF_MEMORY;
}

static int charge(uint32_t device, uint64_t bytes, bool is_context)
{
    int rc = admit(device, bytes);
    if (rc)
        return rc;
    struct emu_presence *own = &emu->processes[self_row].on[device];
    PUT(emu->devices[device].used_bytes, emu->devices[device].used_bytes + bytes);
    if (is_context) {
        PUT(own->context_bytes, own->context_bytes + bytes);
        PUT(own->context_count, own->context_count + 1);
    } else {
        PUT(own->private_bytes, own->private_bytes + bytes);
    }
    return CU_OK;
}

static void refund(uint32_t device, uint64_t bytes, bool is_context)
{
    if (emu_self() == NONE)
        return;
    struct emu_presence *own = &emu->processes[self_row].on[device];
    if (is_context) {
        PUT(own->context_count, own->context_count - 1);
        PUT(own->context_bytes, own->context_bytes - bytes);
    } else {
        PUT(own->private_bytes, own->private_bytes - bytes);
    }
    PUT(emu->devices[device].used_bytes, emu->devices[device].used_bytes - bytes);
}

int emu_charge_private(uint32_t device, uint64_t bytes)
{
    return charge(device, bytes, false);
}

void emu_refund_private(uint32_t device, uint64_t bytes)
{
    refund(device, bytes, false);
}

int emu_charge_context(uint32_t device)
{
    return charge(device, emu->devices[device].context_bytes, true);
}

void emu_refund_context(uint32_t device, uint64_t bytes)
{
    refund(device, bytes, true);
}

static uint32_t free_holding(void)
{
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++)
        if (!emu->holdings[i].in_use)
            return i;
    return NONE;
}

static void hold(uint32_t index, uint32_t allocation)
{
    struct emu_holding *holding = &emu->holdings[index];
    PUT(holding->allocation, allocation);
    PUT(holding->process, self_row);
    PUT(holding->in_use, 1);
    PUT(emu->allocations[allocation].holders, emu->allocations[allocation].holders + 1);
}

int emu_allocation_add(uint32_t device, uint64_t bytes, uint64_t inode, uint32_t *holding)
{
    uint32_t row = 0, place = free_holding();
    int rc = admit(device, bytes);
    if (rc)
        return rc;
    while (row < EMU_ALLOCATIONS_MAX && emu->allocations[row].in_use)
        row++;
    if (row == EMU_ALLOCATIONS_MAX || place == NONE)
        return CU_OUT_OF_MEMORY;
    struct emu_allocation *allocation = &emu->allocations[row];
    PUT(allocation->device, device);
    PUT(allocation->inode, inode);
    PUT(allocation->bytes, bytes);
    PUT(allocation->creator, self_row);
    PUT(allocation->holders, 0);
    PUT(allocation->in_use, 1);
    hold(place, row);
    PUT(emu->devices[device].used_bytes, emu->devices[device].used_bytes + bytes);
    *holding = place;
    return CU_OK;
}

int emu_allocation_hold(uint64_t inode, uint32_t *holding)
{
    uint32_t place = free_holding();
    for (uint32_t row = 0; row < EMU_ALLOCATIONS_MAX && place != NONE; row++)
        if (emu->allocations[row].in_use && emu->allocations[row].inode == inode) {
            hold(place, row);
            *holding = place;
            return CU_OK;
        }
    return place == NONE ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE;
}
