/* Devices as a program sees them: count, names, attributes;
 * CUDA_VISIBLE_DEVICES in index and UUID form. */
#include "local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EXPORT CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CU_INVALID_VALUE;
    *version = 13000;
    return CU_OK;
}

static uint32_t visible[EMU_DEVICES_MAX]; /* ordinal -> device */
static uint32_t visible_count;
static pthread_once_t visible_once = PTHREAD_ONCE_INIT;

static bool matches_uuid(const char *name, const unsigned char *uuid)
{
    char text[48];
    int at = snprintf(text, sizeof(text), "GPU-");
    for (int i = 0; i < 16; i++)
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%02x",
                       i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
    return strlen(name) >= 8 && strncmp(name, text, strlen(name)) == 0;
}

/* The first name that is not a device ends the list, as in the driver. */
static void read_visible(void)
{
    char list[1024];
    char *rest = list;
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    if (!wanted) {
        for (visible_count = 0; visible_count < emu->device_count; visible_count++)
            visible[visible_count] = visible_count;
        return;
    }
    snprintf(list, sizeof(list), "%s", wanted);
    for (char *name; (name = strsep(&rest, ",")) != NULL && visible_count < EMU_DEVICES_MAX;) {
        uint32_t device = 0;
        char *end;
        if (strncmp(name, "GPU-", 4) == 0) {
            while (device < emu->device_count && !matches_uuid(name, emu->devices[device].uuid))
                device++;
        } else {
            long index = strtol(name, &end, 10);
            device = *name && !*end && index >= 0 ? (uint32_t)index : NONE;
        }
        if (device >= emu->device_count)
            return;
        visible[visible_count++] = device;
    }
}

static CUresult check(CUdevice device)
{
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    return device >= 0 && (uint32_t)device < emu->device_count ? CU_OK : CU_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    pthread_once(&visible_once, read_visible);
    *count = (int)visible_count;
    return CU_OK;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    pthread_once(&visible_once, read_visible);
    if (ordinal < 0 || (uint32_t)ordinal >= visible_count)
        return CU_INVALID_DEVICE;
    *device = (CUdevice)visible[ordinal];
    return CU_OK;
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult rc = check(device);
    if (!rc)
        snprintf(name, (size_t)length, "%s", emu_profile_of((uint32_t)device)->title);
    return rc;
}

EXPORT CUresult cuDeviceGetUuid(struct cu_uuid *uuid, CUdevice device)
{
    CUresult rc = check(device);
    if (!rc)
        memcpy(uuid->bytes, emu->devices[device].uuid, 16);
    return rc;
}

EXPORT CUresult cuDeviceGetUuid_v2(struct cu_uuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult rc = check(device);
    if (!rc)
        *bytes = emu->devices[device].total_bytes;
    return rc;
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult rc = check(device);
    if (!rc) {
        *major = emu_profile_of((uint32_t)device)->major;
        *minor = emu_profile_of((uint32_t)device)->minor;
    }
    return rc;
}

/* Chosen so that one profile has no VMM. It does not say which real cards have VMM. */
#define FIRST_WITH_VMM 6

/*
 * Attributes that are the same on all cards, by their public numbers. All others read 0, as on a
 * card without the feature.
 */
static const int fixed_attributes[][2] = {
    {1, 1024},   {2, 1024},  {3, 1024},    {4, 64},  {5, 2147483647},  {6, 65535},
    {7, 65535},  {8, 49152}, {9, 65536},   {10, 32}, {11, 2147483647}, {12, 65536},
    {14, 512},   {15, 1},    {19, 1},      {31, 1},  {32, 1},          {39, 2048},
    {40, 2},     {41, 1},    {78, 1},      {79, 1},  {80, 1},          {81, 102400},
    {82, 65536}, {90, 1},    {97, 101376}, {99, 1}, /* host memory can be registered */
    {106, 32},   {115, 1},                          /* pools */
    {130, -1},   {131, -1},
};

static int attribute_of(int attribute, uint32_t device)
{
    const struct emu_profile *profile = emu_profile_of(device);
    switch (attribute) {
    case 13:
        return profile->clock_mhz * 1000;
    case 16:
        return profile->sm_count;
    case 33:
        return 0x10 + (int)device;
    case 36:
        return profile->memory_clock_mhz * 1000;
    case 37:
        return profile->bus_bits;
    case 38:
        return profile->l2_bytes;
    case 75:
        return profile->major;
    case 76:
        return profile->minor;
    case 102: /* virtual memory management */
    case 103: /* and its export as a file descriptor */
        return profile->major >= FIRST_WITH_VMM;
    case 133:
        return emu->devices[device].mps ? 1 : 0;
    default:
        break;
    }
    for (size_t i = 0; i < sizeof(fixed_attributes) / sizeof(fixed_attributes[0]); i++)
        if (fixed_attributes[i][0] == attribute)
            return fixed_attributes[i][1];
    return 0;
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    CUresult rc = check(device);
    if (rc)
        return rc;
    if (!value || attribute < 1)
        return CU_INVALID_VALUE;
    *value = attribute_of(attribute, (uint32_t)device);
    return CU_OK;
}

EXPORT CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    CUresult rc = check(device);
    if (!rc)
        snprintf(text, (size_t)length, "0000:%02X:00.0", 0x10 + (unsigned int)device);
    return rc;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    unsigned int domain, bus, slot;
    if (emu_ready() || sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3)
        return CU_INVALID_VALUE;
    if (bus < 0x10 || bus - 0x10 >= emu->device_count)
        return CU_INVALID_DEVICE;
    *device = (CUdevice)(bus - 0x10);
    return CU_OK;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can_access, CUdevice device, CUdevice peer)
{
    (void)peer;
    *can_access = 0;
    return check(device);
}

EXPORT CUresult cuDeviceGetExecAffinitySupport(int *is_supported, int type, CUdevice device)
{
    (void)type;
    *is_supported = 0;
    return check(device);
}
