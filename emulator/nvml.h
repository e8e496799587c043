/* The part of NVML's public binary interface that the emulator implements, and
 * what its files share. */
#ifndef SALUS_EMULATOR_NVML_H
#define SALUS_EMULATOR_NVML_H

#include "abi.h"
#include "state.h"

typedef int nvml_result;
typedef struct nvml_handle *nvml_device;

enum {
    NVML_OK = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_GPU_IS_LOST = 15,
    NVML_INSUFFICIENT_RESOURCES = 23,
};

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

struct nvml_utilization {
    unsigned int gpu, memory;
};

struct nvml_pci {
    char bus_id_legacy[16];
    unsigned int domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};

struct nvml_process {
    unsigned int pid;
    unsigned long long used_bytes;
    unsigned int gpu_instance, compute_instance;
};

struct nvml_process_v1 {
    unsigned int pid;
    unsigned long long used_bytes;
};

struct nvml_process_sample {
    unsigned int pid;
    unsigned long long timestamp;
    unsigned int sm, memory, encoder, decoder;
};

union nvml_value {
    double real;
    unsigned int word;
    unsigned long long wide;
};

struct nvml_sample {
    unsigned long long timestamp;
    union nvml_value value;
};

struct nvml_field {
    uint32_t field, scope;
    int64_t timestamp, latency_us;
    unsigned int value_type;
    nvml_result result;
    union nvml_value value;
};

struct nvml_event {
    nvml_device device;
    unsigned long long type, data;
    unsigned int gpu_instance, compute_instance;
};

struct nvml_set_limits {
    const char *name;
    unsigned long long soft_bytes, hard_bytes;
};

struct nvml_get_limits {
    const char *name;
    unsigned long long soft_bytes, hard_bytes, used_bytes;
};

/*
 * Finds the device of a handle. Every call about a lost device returns "lost". A
 * call about a device that hangs does not return until the fault is cleared. The
 * daemon has time-outs for this case.
 */
nvml_result nvml_find(nvml_device handle, uint32_t *device);
nvml_device nvml_handle_of(uint32_t device);
nvml_result nvml_is_ready(void);

/* Defines a function that answers with one value; `device` is the device's number in it. */
#define NVML_PROPERTY(name, type, value)                                                           \
    nvml_result name(nvml_device handle, type *out)                                                \
    {                                                                                              \
        uint32_t device;                                                                           \
        nvml_result rc = nvml_find(handle, &device);                                               \
        if (!rc)                                                                                   \
            *out = value;                                                                          \
        return rc;                                                                                 \
    }

#endif
