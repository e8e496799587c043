/* salus-emulator: creates the shared file, shows it, and injects faults. */
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: salus-emulator COMMAND [ARGUMENTS]   (state file: "
    "SALUS_EMULATOR_STATE)\n"
    "  profiles                      list the cards that can be emulated\n"
    "  create PROFILE[,PROFILE...]   create the state file; PROFILE=MIB[/MIB] sets the size of the "
    "memory and of a context\n"
    "  show                          show devices, memory, processes and faults\n"
    "  check                         compare every derived counter with the "
    "tables; exit 1 if one differs\n"
    "  xid DEVICE NUMBER [PID]       post an Xid; 13, 31 and 48 end contexts "
    "(of PID, or all), 79 loses the device\n"
    "  lose DEVICE                   the device falls off the bus\n"
    "  hang DEVICE                   queued work stops\n"
    "  hang-nvml DEVICE              NVML calls about the device do not "
    "return\n"
    "  oom DEVICE COUNT              refuse the next COUNT allocations; -1: "
    "all\n"
    "  slow DEVICE PERMILLE          run at this speed; 1000 is full\n"
    "  mps DEVICE 0|1                share by MPS instead of time slices\n"
    "  clear DEVICE                  end all faults; contexts that were ended stay ended\n";

static int complain(const char *what, const char *why)
{
    fprintf(stderr, "salus-emulator: %s: %s\n", what, why);
    return 1;
}

static void show(void)
{
    for (uint32_t i = 0; i < emu->device_count; i++) {
        const struct emu_device *on = &emu->devices[i];
        const struct emu_profile *card = emu_profile_of(i);
        printf("device %u profile=%s total_bytes=%llu used_bytes=%llu lost=%u "
               "hangs=%u nvml_hangs=%u oom=%d "
               "speed_permille=%u mps=%u\n",
               i, card->name, (unsigned long long)on->total_bytes,
               (unsigned long long)on->used_bytes, on->is_lost, on->hangs, on->nvml_hangs,
               on->oom_count, on->speed_permille, on->mps);
        for (uint32_t row = 0; row < EMU_PROCESSES_MAX; row++)
            if (emu->processes[row].in_use && emu_process_bytes(row, i))
                printf("process device=%u pid=%d used_bytes=%llu\n", i, emu->processes[row].pid,
                       (unsigned long long)emu_process_bytes(row, i));
    }
    printf("recoveries %llu\n", (unsigned long long)emu->recoveries);
}

/* Whether the counters stay the same when they are computed again. */
static int check(void)
{
    uint64_t before[EMU_DEVICES_MAX];
    int rc = 0;
    emu_reap();
    for (uint32_t i = 0; i < emu->device_count; i++)
        before[i] = emu->devices[i].used_bytes;
    emu_recompute();
    for (uint32_t i = 0; i < emu->device_count; i++)
        if (before[i] != emu->devices[i].used_bytes) {
            printf("device %u used_bytes=%llu recomputed=%llu\n", i, (unsigned long long)before[i],
                   (unsigned long long)emu->devices[i].used_bytes);
            rc = 1;
        }
    return rc;
}

static int set_fault(const char *command, uint32_t device, long long number, long long pid)
{
    struct emu_device *on = &emu->devices[device];
    if (strcmp(command, "xid") == 0)
        emu_fault_xid(device, (uint64_t)number, (int32_t)pid);
    else if (strcmp(command, "lose") == 0)
        PUT(on->is_lost, 1);
    else if (strcmp(command, "hang") == 0)
        PUT(on->hangs, 1);
    else if (strcmp(command, "hang-nvml") == 0)
        PUT(on->nvml_hangs, 1);
    else if (strcmp(command, "oom") == 0)
        PUT(on->oom_count, (int32_t)number);
    else if (strcmp(command, "slow") == 0 && number > 0)
        PUT(on->speed_permille, (uint32_t)number);
    else if (strcmp(command, "mps") == 0)
        PUT(on->mps, number != 0);
    else if (strcmp(command, "clear") == 0)
        emu_fault_clear(device);
    else
        return 2;
    return 0;
}

int main(int count, char **arguments)
{
    const char *command = count > 1 ? arguments[1] : "";
    int rc = 0;
    if (strcmp(command, "profiles") == 0) {
        for (uint32_t i = 0; i < emu_profile_count; i++)
            printf("%s %llu\n", emu_profiles[i].name,
                   (unsigned long long)emu_profiles[i].total_bytes);
        return 0;
    }
    if (strcmp(command, "create") == 0 && count == 3) {
        rc = emu_create(emu_path(), arguments[2]);
        return rc ? complain(emu_path(), strerror(-rc)) : 0;
    }
    if (strcmp(command, "show") != 0 && strcmp(command, "check") != 0 && count < 3) {
        fputs(usage, stderr);
        return 2;
    }
    rc = emu_open();
    if (rc)
        return complain(emu_path(), strerror(-rc));
    emu_lock();
    for (uint32_t device = 0; device < emu->device_count; device++)
        emu_advance(device);
    if (strcmp(command, "show") == 0) {
        emu_reap();
        show();
    } else if (strcmp(command, "check") == 0) {
        rc = check();
    } else {
        unsigned long device = strtoul(arguments[2], NULL, 10);
        rc = device >= emu->device_count
                 ? 2
                 : set_fault(command, (uint32_t)device, count > 3 ? atoll(arguments[3]) : 0,
                             count > 4 ? atoll(arguments[4]) : 0);
    }
    emu_unlock();
    if (rc == 2)
        fputs(usage, stderr);
    return rc;
}
