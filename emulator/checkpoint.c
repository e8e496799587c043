/*
 * Process checkpoint as a state machine: running -> locked -> taken -> locked
 * -> running. In the state `taken`, the process's own memory does not count on the
 * device. It is not known whether a real driver can checkpoint a process that holds
 * imported memory; here it is refused.
 */
#include "local.h"

#include <time.h>

static uint32_t find(int pid)
{
    for (uint32_t row = 0; row < EMU_PROCESSES_MAX; row++)
        if (emu->processes[row].in_use && emu->processes[row].pid == pid)
            return row;
    return NONE;
}

static uint64_t own_bytes(uint32_t row, uint32_t device)
{
    return emu->processes[row].on[device].private_bytes +
           emu->processes[row].on[device].context_bytes;
}

/* Changes the checkpoint state of a process, and takes its memory off the device or puts it back.
 * `check` may refuse the change. */
static CUresult move(int pid, uint32_t from, uint32_t to, CUresult (*check)(uint32_t row))
{
    if (emu_open())
        return CU_NOT_INITIALIZED;
    emu_lock();
    uint32_t row = find(pid);
    CUresult rc = CU_OK;
    if (row == NONE)
        rc = CU_INVALID_VALUE;
    else if (emu->processes[row].checkpoint != from)
        rc = CU_ILLEGAL_STATE;
    else if (check)
        rc = check(row);
    if (!rc)
        PUT(emu->processes[row].checkpoint, to);
    for (uint32_t device = 0; !rc && device < emu->device_count; device++) {
        uint64_t used = emu->devices[device].used_bytes, own = own_bytes(row, device);
        if (to == CHECKPOINT_TAKEN)
            PUT(emu->devices[device].used_bytes, used - own);
        else if (from == CHECKPOINT_TAKEN)
            PUT(emu->devices[device].used_bytes, used + own);
    }
    emu_unlock();
    return rc;
}

EXPORT CUresult cuCheckpointProcessGetState(int pid, int *state)
{
    if (emu_open())
        return CU_NOT_INITIALIZED;
    emu_lock();
    uint32_t row = find(pid);
    if (row != NONE)
        *state = (int)emu->processes[row].checkpoint;
    emu_unlock();
    return row == NONE ? CU_INVALID_VALUE : CU_OK;
}

EXPORT CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
    *tid = pid;
    return CU_OK;
}

static bool is_idle(uint32_t row)
{
    for (uint32_t device = 0; device < emu->device_count; device++)
        emu_advance(device);
    for (uint32_t i = 0; i < emu->ring_count; i++)
        if (emu->rings[i].in_use && emu->rings[i].process == row &&
            emu->rings[i].done < emu->rings[i].queued)
            return false;
    return true;
}

/* Waits for running work. The first word of the arguments is a time limit in ms, 0
 * for none. */
EXPORT CUresult cuCheckpointProcessLock(int pid, const unsigned int *arguments)
{
    uint64_t limit_ms = arguments ? arguments[0] : 0, start_ns = emu_now_ns();
    CUresult rc = move(pid, CHECKPOINT_RUNNING, CHECKPOINT_LOCKED, NULL);
    while (!rc) {
        static const struct timespec pause = {0, 200000};
        emu_lock();
        uint32_t row = find(pid);
        bool is_done = row == NONE || is_idle(row);
        emu_unlock();
        if (is_done)
            return row == NONE ? CU_INVALID_VALUE : CU_OK;
        if (limit_ms && emu_now_ns() - start_ns > limit_ms * 1000000ULL) {
            move(pid, CHECKPOINT_LOCKED, CHECKPOINT_RUNNING, NULL);
            return CU_TIMEOUT;
        }
        nanosleep(&pause, NULL);
    }
    return rc;
}

static CUresult check_shared(uint32_t row)
{
    for (uint32_t i = 0; i < EMU_ALLOCATIONS_MAX; i++)
        if (emu->holdings[i].in_use && emu->holdings[i].process == row &&
            emu->allocations[emu->holdings[i].allocation].holders > 1)
            return CU_NOT_SUPPORTED;
    return CU_OK;
}

EXPORT CUresult cuCheckpointProcessCheckpoint(int pid, void *arguments)
{
    (void)arguments;
    return move(pid, CHECKPOINT_LOCKED, CHECKPOINT_TAKEN, check_shared);
}

static CUresult check_room(uint32_t row)
{
    for (uint32_t device = 0; device < emu->device_count; device++)
        if (emu->devices[device].used_bytes + own_bytes(row, device) >
            emu->devices[device].total_bytes)
            return CU_OUT_OF_MEMORY;
    return CU_OK;
}

EXPORT CUresult cuCheckpointProcessRestore(int pid, void *arguments)
{
    (void)arguments;
    return move(pid, CHECKPOINT_TAKEN, CHECKPOINT_LOCKED, check_room);
}

EXPORT CUresult cuCheckpointProcessUnlock(int pid, void *arguments)
{
    (void)arguments;
    return move(pid, CHECKPOINT_LOCKED, CHECKPOINT_RUNNING, NULL);
}
