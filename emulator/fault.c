/*
 * Faults on demand. An Xid is posted to the listeners of NVML; some kinds of Xid
 * also end contexts.
 */
#include "state.h"

#include "abi.h"

void emu_fault_xid(uint32_t device, uint64_t number, int32_t pid)
{
    struct emu_xid *xid = &emu->xids[emu->xid_count % EMU_XIDS_MAX];
    uint32_t result = number == 31 || number == 13 ? CU_ILLEGAL_ADDRESS
                      : number == 48               ? CU_ECC_UNCORRECTABLE
                                                   : 0;
    PUT(xid->device, device);
    PUT(xid->number, number);
    PUT(emu->xid_count, emu->xid_count + 1);
    for (uint32_t row = 0; result && row < EMU_PROCESSES_MAX; row++)
        if (emu->processes[row].in_use && (pid == 0 || emu->processes[row].pid == pid))
            PUT(emu->processes[row].on[device].sticky, result);
    if (number == 79)
        PUT(emu->devices[device].is_lost, 1);
}

/* As after a reset of the device: contexts that a fault has ended stay ended.
 */
void emu_fault_clear(uint32_t device)
{
    struct emu_device *on = &emu->devices[device];
    PUT(on->is_lost, 0);
    PUT(on->hangs, 0);
    PUT(on->nvml_hangs, 0);
    PUT(on->oom_count, 0);
    PUT(on->speed_permille, 1000);
}
