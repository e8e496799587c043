/* NVML: the processes of a device, memory limits by cgroup, and events. */
#include "nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EVENT_XID 8ULL

struct process_row {
    uint32_t row;
    int32_t pid;
    uint64_t bytes;
    uint32_t busy_percent;
};

static uint32_t list_processes(uint32_t device, struct process_row *rows)
{
    uint32_t count = 0;
    emu_lock();
    emu_reap();
    emu_advance(device);
    uint64_t now_ns = emu_now_ns();
    for (uint32_t row = 0; row < EMU_PROCESSES_MAX; row++) {
        const struct emu_process *process = &emu->processes[row];
        /* As with a driver, a process appears once it has a context. */
        if (!process->in_use || process->on[device].context_count == 0 ||
            process->checkpoint == CHECKPOINT_TAKEN)
            continue;
        rows[count++] = (struct process_row){row, process->pid, emu_process_bytes(row, device),
                                             emu_busy_percent(process->on[device].buckets, now_ns)};
    }
    emu_unlock();
    return count;
}

/* Lists the processes of a device and sets `count`, which is the size of `out` before. */
static nvml_result find_processes(nvml_device handle, unsigned int *count, const void *out,
                                  struct process_row *rows)
{
    uint32_t device, room = *count;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    *count = list_processes(device, rows);
    return *count && (!out || room < *count) ? NVML_INSUFFICIENT_SIZE : NVML_OK;
}

static nvml_result list(nvml_device handle, unsigned int *count, void *out, size_t stride)
{
    struct process_row rows[EMU_PROCESSES_MAX];
    nvml_result rc = find_processes(handle, count, out, rows);
    for (uint32_t i = 0; !rc && i < *count; i++) {
        struct nvml_process *to = (struct nvml_process *)((char *)out + i * stride);
        to->pid = (unsigned int)rows[i].pid;
        to->used_bytes = rows[i].bytes;
        if (stride == sizeof(struct nvml_process))
            to->gpu_instance = to->compute_instance = UINT32_MAX;
    }
    return rc;
}

EXPORT nvml_result nvmlDeviceGetComputeRunningProcesses_v3(nvml_device handle, unsigned int *count,
                                                           void *out)
{
    return list(handle, count, out, sizeof(struct nvml_process));
}

EXPORT nvml_result nvmlDeviceGetComputeRunningProcesses_v2(nvml_device handle, unsigned int *count,
                                                           void *out)
{
    return list(handle, count, out, sizeof(struct nvml_process));
}

EXPORT nvml_result nvmlDeviceGetComputeRunningProcesses(nvml_device handle, unsigned int *count,
                                                        void *out)
{
    return list(handle, count, out, sizeof(struct nvml_process_v1));
}

static nvml_result list_none(nvml_device handle, unsigned int *count)
{
    uint32_t device;
    *count = 0;
    return nvml_find(handle, &device);
}

EXPORT nvml_result nvmlDeviceGetGraphicsRunningProcesses_v3(nvml_device handle, unsigned int *count,
                                                            void *out)
{
    (void)out;
    return list_none(handle, count);
}

EXPORT nvml_result nvmlDeviceGetGraphicsRunningProcesses_v2(nvml_device handle, unsigned int *count,
                                                            void *out)
{
    (void)out;
    return list_none(handle, count);
}

EXPORT nvml_result nvmlDeviceGetGraphicsRunningProcesses(nvml_device handle, unsigned int *count,
                                                         void *out)
{
    (void)out;
    return list_none(handle, count);
}

EXPORT nvml_result nvmlDeviceGetMPSComputeRunningProcesses_v3(nvml_device handle,
                                                              unsigned int *count, void *out)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    return emu->devices[device].mps ? list(handle, count, out, sizeof(struct nvml_process))
                                    : list_none(handle, count);
}

EXPORT nvml_result nvmlDeviceGetProcessUtilization(nvml_device handle,
                                                   struct nvml_process_sample *out,
                                                   unsigned int *count, unsigned long long after_us)
{
    struct process_row rows[EMU_PROCESSES_MAX];
    struct timespec now;
    nvml_result rc = find_processes(handle, count, out, rows);
    (void)after_us;
    if (rc || *count == 0)
        return rc ? rc : NVML_NOT_FOUND;
    clock_gettime(CLOCK_REALTIME, &now);
    for (uint32_t i = 0; i < *count; i++)
        out[i] = (struct nvml_process_sample){.pid = (unsigned int)rows[i].pid,
                                              .timestamp = (uint64_t)now.tv_sec * 1000000ULL +
                                                           (uint64_t)now.tv_nsec / 1000,
                                              .sm = rows[i].busy_percent,
                                              .memory = rows[i].busy_percent / 2};
    return NVML_OK;
}

/* The name is the path of a cgroup. The limit applies to it and to everything
 * below it. Only root may set one, as with a driver. */
EXPORT nvml_result nvmlDeviceSetMemoryLimits_v1(nvml_device handle,
                                                const struct nvml_set_limits *limits)
{
    uint32_t device;
    struct emu_limit *place = NULL;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    if (!limits || !limits->name || limits->name[0] != '/' || strlen(limits->name) >= EMU_PATH_MAX)
        return NVML_INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NVML_NO_PERMISSION;
    emu_lock();
    for (uint32_t i = 0; i < EMU_LIMITS_MAX; i++) {
        struct emu_limit *limit = &emu->limits[i];
        if (limit->in_use && limit->device == device && strcmp(limit->cgroup, limits->name) == 0) {
            place = limit;
            break;
        }
        if (!limit->in_use && !place)
            place = limit;
    }
    if (!place) {
        rc = NVML_INSUFFICIENT_RESOURCES;
    } else if (limits->hard_bytes == UINT64_MAX) {
        PUT(place->in_use, 0);
    } else {
        PUT(place->device, device);
        PUT(place->soft_bytes, limits->soft_bytes);
        PUT(place->hard_bytes, limits->hard_bytes);
        emu_inject();
        snprintf(place->cgroup, sizeof(place->cgroup), "%s", limits->name);
        PUT(place->in_use, 1);
    }
    emu_unlock();
    return rc;
}

EXPORT nvml_result nvmlDeviceGetMemoryLimits_v1(nvml_device handle, struct nvml_get_limits *limits)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    if (!limits || !limits->name)
        return NVML_INVALID_ARGUMENT;
    emu_lock();
    limits->soft_bytes = limits->hard_bytes = UINT64_MAX;
    for (uint32_t i = 0; i < EMU_LIMITS_MAX; i++)
        if (emu->limits[i].in_use && emu->limits[i].device == device &&
            strcmp(emu->limits[i].cgroup, limits->name) == 0) {
            limits->soft_bytes = emu->limits[i].soft_bytes;
            limits->hard_bytes = emu->limits[i].hard_bytes;
        }
    limits->used_bytes = emu_limit_used(device, limits->name);
    emu_unlock();
    return NVML_OK;
}

struct event_set {
    uint64_t seen;
    bool is_wanted[EMU_DEVICES_MAX];
};

EXPORT nvml_result nvmlEventSetCreate(struct event_set **set)
{
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    *set = calloc(1, sizeof(**set));
    if (!*set)
        return NVML_INSUFFICIENT_RESOURCES;
    (*set)->seen = emu->xid_count;
    return NVML_OK;
}

EXPORT nvml_result nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetSupportedEventTypes(nvml_device handle, unsigned long long *types)
{
    uint32_t device;
    *types = EVENT_XID;
    return nvml_find(handle, &device);
}

EXPORT nvml_result nvmlDeviceRegisterEvents(nvml_device handle, unsigned long long types,
                                            struct event_set *set)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    if (types & ~EVENT_XID)
        return NVML_NOT_SUPPORTED;
    set->is_wanted[device] = (types & EVENT_XID) != 0;
    return NVML_OK;
}

static bool take_event(struct event_set *set, struct nvml_event *event)
{
    bool is_found = false;
    emu_lock();
    if (emu->xid_count - set->seen > EMU_XIDS_MAX)
        set->seen = emu->xid_count - EMU_XIDS_MAX;
    while (set->seen < emu->xid_count && !is_found) {
        const struct emu_xid *xid = &emu->xids[set->seen++ % EMU_XIDS_MAX];
        if (!set->is_wanted[xid->device])
            continue;
        *event = (struct nvml_event){nvml_handle_of(xid->device), EVENT_XID, xid->number,
                                     UINT32_MAX, UINT32_MAX};
        is_found = true;
    }
    emu_unlock();
    return is_found;
}

EXPORT nvml_result nvmlEventSetWait_v2(struct event_set *set, struct nvml_event *event,
                                       unsigned int timeout_ms)
{
    static const struct timespec pause = {0, 2000000};
    uint64_t until_ns = emu_now_ns() + timeout_ms * 1000000ULL;
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    while (!take_event(set, event)) {
        if (emu_now_ns() >= until_ns)
            return NVML_TIMEOUT;
        nanosleep(&pause, NULL);
    }
    return NVML_OK;
}

EXPORT nvml_result nvmlEventSetWait(struct event_set *set, struct nvml_event *event,
                                    unsigned int timeout_ms)
{
    return nvmlEventSetWait_v2(set, event, timeout_ms);
}
