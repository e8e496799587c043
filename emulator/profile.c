/*
 * The cards that the emulator can imitate. Memory sizes are those that such a card
 * reports, to the MiB. The size of a context is a rough estimate.
 */
#include "state.h"

const struct emu_profile emu_profiles[] = {
    {"p100-16g", "Emulated P100-PCIE-16GB", 16276 * MIB, 300 * MIB, 6, 0, 56, 1328, 715, 4096,
     4194304, 250000, 0x15f810de, false},
    {"t4-16g", "Emulated T4", 15102 * MIB, 200 * MIB, 7, 5, 40, 1590, 5001, 256, 4194304, 70000,
     0x1eb810de, false},
    {"a100-40g", "Emulated A100-PCIE-40GB", 40338 * MIB, 400 * MIB, 8, 0, 108, 1410, 1215, 5120,
     41943040, 250000, 0x20f110de, true},
    {"h100-80g", "Emulated H100-PCIE-80GB", 81008 * MIB, 500 * MIB, 9, 0, 114, 1755, 1593, 5120,
     52428800, 350000, 0x233110de, true},
    /* Small enough that a test may fill and copy it whole. */
    {"tiny-1g", "Emulated test device 1 GiB", 1024 * MIB, 16 * MIB, 8, 0, 8, 1000, 1000, 256,
     1048576, 50000, 0x000110de, false},
    {"old-1g", "Emulated test device without VMM", 1024 * MIB, 16 * MIB, 5, 0, 8, 1000, 1000, 256,
     1048576, 50000, 0x000210de, false},
};
const uint32_t emu_profile_count = sizeof(emu_profiles) / sizeof(emu_profiles[0]);

const struct emu_profile *emu_profile_of(uint32_t device)
{
    return &emu_profiles[emu->devices[device].profile];
}
