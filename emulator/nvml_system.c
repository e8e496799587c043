/* NVML: start, stop, the system's versions, and how devices are found. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define HANDLE_BASE 0x5a1u

static int started;

nvml_device nvml_handle_of(uint32_t device)
{
    return (nvml_device)(uintptr_t)(HANDLE_BASE + device);
}

nvml_result nvml_is_ready(void)
{
    return __atomic_load_n(&started, __ATOMIC_ACQUIRE) > 0 ? NVML_OK : NVML_UNINITIALIZED;
}

nvml_result nvml_find(nvml_device handle, uint32_t *device)
{
    static const struct timespec pause = {0, 5000000};
    uintptr_t place = (uintptr_t)handle - HANDLE_BASE;
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    if (place >= emu->device_count)
        return NVML_INVALID_ARGUMENT;
    while (__atomic_load_n(&emu->devices[place].nvml_hangs, __ATOMIC_RELAXED))
        nanosleep(&pause, NULL);
    *device = (uint32_t)place;
    return emu->devices[place].is_lost ? NVML_GPU_IS_LOST : NVML_OK;
}

EXPORT nvml_result nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    if (emu_open())
        return NVML_DRIVER_NOT_LOADED;
    __atomic_add_fetch(&started, 1, __ATOMIC_ACQ_REL);
    return NVML_OK;
}

EXPORT nvml_result nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvml_result nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvml_result nvmlShutdown(void)
{
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    __atomic_sub_fetch(&started, 1, __ATOMIC_ACQ_REL);
    return NVML_OK;
}

EXPORT const char *nvmlErrorString(nvml_result result)
{
    static const char *const texts[] = {
        "Success",
        "Uninitialized",
        "Invalid Argument",
        "Not Supported",
        "Insufficient Permissions",
        "Already Initialized",
        "Not Found",
        "Insufficient Size",
        "Insufficient Power",
        "Driver Not Loaded",
        "Timeout",
        "Interrupt Issue",
        "Library Not Found",
        "Function Not Found",
        "Corrupted infoROM",
        "GPU is lost",
    };
    return result >= 0 && (size_t)result < sizeof(texts) / sizeof(texts[0]) ? texts[result]
                                                                            : "Unknown Error";
}

EXPORT nvml_result nvmlSystemGetDriverVersion(char *text, unsigned int length)
{
    snprintf(text, length, "580.0-emulated");
    return nvml_is_ready();
}

EXPORT nvml_result nvmlSystemGetNVMLVersion(char *text, unsigned int length)
{
    snprintf(text, length, "13.580.0-emulated");
    return nvml_is_ready();
}

EXPORT nvml_result nvmlSystemGetCudaDriverVersion(int *version)
{
    *version = 13000;
    return nvml_is_ready();
}

EXPORT nvml_result nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

EXPORT nvml_result nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    char path[32];
    snprintf(path, sizeof(path), "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_NOT_FOUND;
    char *line = fgets(name, (int)length, file);
    fclose(file);
    if (!line)
        return NVML_NOT_FOUND;
    name[strcspn(name, "\n")] = 0;
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetCount_v2(unsigned int *count)
{
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    *count = emu->device_count;
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT nvml_result nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvml_device *handle)
{
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    if (index >= emu->device_count)
        return NVML_INVALID_ARGUMENT;
    *handle = nvml_handle_of(index);
    return emu->devices[index].is_lost ? NVML_GPU_IS_LOST : NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetHandleByIndex(unsigned int index, nvml_device *handle)
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

static void write_uuid(char *text, uint32_t device)
{
    const unsigned char *uuid = emu->devices[device].uuid;
    text += sprintf(text, "GPU-");
    for (int i = 0; i < 16; i++)
        text += sprintf(text, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

EXPORT nvml_result nvmlDeviceGetHandleByUUID(const char *wanted, nvml_device *handle)
{
    char text[64];
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    for (uint32_t device = 0; device < emu->device_count; device++) {
        write_uuid(text, device);
        if (strcmp(text, wanted) == 0) {
            *handle = nvml_handle_of(device);
            return emu->devices[device].is_lost ? NVML_GPU_IS_LOST : NVML_OK;
        }
    }
    return NVML_NOT_FOUND;
}

EXPORT nvml_result nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvml_device *handle)
{
    unsigned int domain, bus;
    if (nvml_is_ready())
        return NVML_UNINITIALIZED;
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || bus < 0x10 ||
        bus - 0x10 >= emu->device_count)
        return NVML_NOT_FOUND;
    *handle = nvml_handle_of(bus - 0x10);
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetIndex(nvml_device handle, unsigned int *index)
{
    return nvml_find(handle, index);
}

EXPORT nvml_result nvmlDeviceGetMinorNumber(nvml_device handle, unsigned int *minor)
{
    return nvml_find(handle, minor);
}

EXPORT nvml_result nvmlDeviceGetUUID(nvml_device handle, char *text, unsigned int length)
{
    uint32_t device;
    char whole[64];
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    write_uuid(whole, device);
    snprintf(text, length, "%s", whole);
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetName(nvml_device handle, char *text, unsigned int length)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (!rc)
        snprintf(text, length, "%s", emu_profile_of(device)->title);
    return rc;
}

EXPORT nvml_result nvmlDeviceGetSerial(nvml_device handle, char *text, unsigned int length)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (!rc)
        snprintf(text, length, "EMULATED%04u", device);
    return rc;
}

static struct nvml_pci read_pci(uint32_t device)
{
    struct nvml_pci pci = {.bus = 0x10 + device,
                           .device_id = (unsigned int)emu_profile_of(device)->pci_device_id};
    snprintf(pci.bus_id_legacy, sizeof(pci.bus_id_legacy), "0000:%02X:00.0", pci.bus & 0xff);
    snprintf(pci.bus_id, sizeof(pci.bus_id), "00000000:%02X:00.0", pci.bus & 0xff);
    return pci;
}

EXPORT NVML_PROPERTY(nvmlDeviceGetPciInfo_v3, struct nvml_pci, read_pci(device))

    EXPORT nvml_result nvmlDeviceGetPciInfo_v2(nvml_device handle, struct nvml_pci *pci)
{
    return nvmlDeviceGetPciInfo_v3(handle, pci);
}
