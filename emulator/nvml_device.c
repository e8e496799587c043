/* NVML: what a device reports about itself. Power, clocks and temperature are
 * plausible numbers, not a model. */
#include "nvml.h"

#include <string.h>
#include <time.h>

static uint32_t busy_percent(uint32_t device)
{
    emu_lock();
    emu_advance(device);
    uint32_t percent = emu_busy_percent(emu->devices[device].buckets, emu_now_ns());
    emu_unlock();
    return percent;
}

static struct nvml_memory read_memory(uint32_t device)
{
    emu_lock();
    emu_reap();
    uint64_t used = emu->devices[device].used_bytes, total = emu->devices[device].total_bytes;
    emu_unlock();
    return (struct nvml_memory){total, total - used, used};
}

EXPORT NVML_PROPERTY(nvmlDeviceGetMemoryInfo, struct nvml_memory, read_memory(device))

    EXPORT nvml_result nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct nvml_memory_v2 *memory)
{
    struct nvml_memory plain;
    nvml_result rc = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (!rc)
        *memory = (struct nvml_memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    return rc;
}

EXPORT NVML_PROPERTY(nvmlDeviceGetBAR1MemoryInfo, struct nvml_memory,
                     ((struct nvml_memory){256 * MIB, 255 * MIB, MIB}))

    static struct nvml_utilization read_utilization(uint32_t device)
{
    uint32_t percent = busy_percent(device);
    return (struct nvml_utilization){percent, percent / 2};
}

EXPORT NVML_PROPERTY(nvmlDeviceGetUtilizationRates, struct nvml_utilization,
                     read_utilization(device))

    EXPORT nvml_result nvmlDeviceGetEncoderUtilization(nvml_device handle, unsigned int *percent,
                                                       unsigned int *period_us)
{
    uint32_t device;
    *percent = 0;
    *period_us = 1000000;
    return nvml_find(handle, &device);
}

EXPORT nvml_result nvmlDeviceGetDecoderUtilization(nvml_device handle, unsigned int *percent,
                                                   unsigned int *period_us)
{
    return nvmlDeviceGetEncoderUtilization(handle, percent, period_us);
}

static uint64_t wall_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000ULL + (uint64_t)now.tv_nsec / 1000;
}

/* The history, oldest first. Only type 1, GPU utilisation, is kept. */
EXPORT nvml_result nvmlDeviceGetSamples(nvml_device handle, int type, unsigned long long after_us,
                                        unsigned int *value_type, unsigned int *count,
                                        struct nvml_sample *samples)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    unsigned int room = *count, found = 0;
    if (rc)
        return rc;
    if (type != 1)
        return NVML_NOT_SUPPORTED;
    *value_type = 1;
    *count = EMU_BUCKETS_READ;
    if (!samples)
        return NVML_OK;
    busy_percent(device);
    uint64_t now_bucket = emu_now_ns() / EMU_BUCKET_NS, now_us = wall_us();
    for (uint64_t back = EMU_BUCKETS_READ; back >= 1 && found < room; back--) {
        const struct emu_bucket *bucket =
            &emu->devices[device].buckets[(now_bucket - back) % EMU_BUCKETS];
        uint64_t at_us = now_us - back * (EMU_BUCKET_NS / 1000);
        if (at_us <= after_us)
            continue;
        samples[found].timestamp = at_us;
        samples[found].value.wide = 0;
        samples[found++].value.word = bucket->index == now_bucket - back
                                          ? (unsigned int)(bucket->busy_ns * 100 / EMU_BUCKET_NS)
                                          : 0;
    }
    *count = found;
    return NVML_OK;
}

static unsigned int temperature(uint32_t device)
{
    return 32 + busy_percent(device) / 3;
}

static unsigned int power_mw(uint32_t device)
{
    unsigned int limit = (unsigned int)emu_profile_of(device)->power_limit_mw;
    return limit / 8 + (limit - limit / 8) / 100 * busy_percent(device);
}

static NVML_PROPERTY(read_temperature, unsigned int, temperature(device))

    EXPORT nvml_result
    nvmlDeviceGetTemperature(nvml_device handle, int sensor, unsigned int *celsius)
{
    (void)sensor;
    return read_temperature(handle, celsius);
}

EXPORT nvml_result nvmlDeviceGetTemperatureV(nvml_device handle, int *versioned)
{
    return read_temperature(handle, (unsigned int *)&versioned[2]);
}

EXPORT nvml_result nvmlDeviceGetTemperatureThreshold(nvml_device handle, int kind,
                                                     unsigned int *celsius)
{
    uint32_t device;
    (void)kind;
    *celsius = 90;
    return nvml_find(handle, &device);
}

#define POWER_LIMIT (unsigned int)emu_profile_of(device)->power_limit_mw

EXPORT NVML_PROPERTY(nvmlDeviceGetPowerUsage, unsigned int, power_mw(device)) EXPORT
    NVML_PROPERTY(nvmlDeviceGetEnforcedPowerLimit, unsigned int, POWER_LIMIT)
EXPORT NVML_PROPERTY(nvmlDeviceGetPowerManagementLimit, unsigned int, POWER_LIMIT)
EXPORT NVML_PROPERTY(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, POWER_LIMIT)

EXPORT nvml_result nvmlDeviceGetClockInfo(nvml_device handle, int kind, unsigned int *megahertz)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    const struct emu_profile *card = emu_profile_of(device);
    *megahertz = (unsigned int)(kind == 2 ? card->memory_clock_mhz : card->clock_mhz);
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetMaxClockInfo(nvml_device handle, int kind, unsigned int *megahertz)
{
    return nvmlDeviceGetClockInfo(handle, kind, megahertz);
}

/* These are the same for every emulated device. */
EXPORT NVML_PROPERTY(nvmlDeviceGetPerformanceState, unsigned int, 0) EXPORT
    NVML_PROPERTY(nvmlDeviceGetComputeMode, unsigned int, 0) EXPORT
    NVML_PROPERTY(nvmlDeviceGetPersistenceMode, unsigned int, 1) EXPORT
    NVML_PROPERTY(nvmlDeviceGetDisplayMode, unsigned int, 0) EXPORT
    NVML_PROPERTY(nvmlDeviceGetDisplayActive, unsigned int, 0) EXPORT
    NVML_PROPERTY(nvmlDeviceGetMultiGpuBoard, unsigned int, 0) EXPORT
    NVML_PROPERTY(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 4) EXPORT
    NVML_PROPERTY(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16) EXPORT
    NVML_PROPERTY(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 4) EXPORT
    NVML_PROPERTY(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16) EXPORT
    NVML_PROPERTY(nvmlDeviceGetMaxMigDeviceCount, unsigned int, 0) EXPORT
    NVML_PROPERTY(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)

        EXPORT NVML_PROPERTY(nvmlDeviceGetBoardId, unsigned int, 0x100 + device) EXPORT
    NVML_PROPERTY(nvmlDeviceGetNumGpuCores, unsigned int,
                  (unsigned int)emu_profile_of(device)->sm_count * 64)

        EXPORT nvml_result
    nvmlDeviceGetPcieThroughput(nvml_device handle, int counter, unsigned int *kilobytes)
{
    (void)counter;
    *kilobytes = 0;
    return nvml_find(handle, &(uint32_t){0});
}

EXPORT nvml_result nvmlDeviceGetCudaComputeCapability(nvml_device handle, int *major, int *minor)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    *major = emu_profile_of(device)->major;
    *minor = emu_profile_of(device)->minor;
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetEccMode(nvml_device handle, unsigned int *current,
                                        unsigned int *pending)
{
    *current = *pending = 1;
    return nvml_find(handle, &(uint32_t){0});
}

EXPORT nvml_result nvmlDeviceGetTotalEccErrors(nvml_device handle, int kind, int counter,
                                               unsigned long long *count)
{
    uint32_t device;
    (void)kind;
    (void)counter;
    *count = 0;
    return nvml_find(handle, &device);
}

/* A card with MIG reports that it is off. A card without MIG does not support the
 * call. */
EXPORT nvml_result nvmlDeviceGetMigMode(nvml_device handle, unsigned int *current,
                                        unsigned int *pending)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    *current = *pending = 0;
    return rc || emu_profile_of(device)->has_mig ? rc : NVML_NOT_SUPPORTED;
}

/* Fields by number: 1 ECC mode, 82 memory temperature, 185 and 186 power. */
EXPORT nvml_result nvmlDeviceGetFieldValues(nvml_device handle, int count,
                                            struct nvml_field *fields)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    for (int i = 0; !rc && i < count; i++) {
        uint32_t field = fields[i].field;
        fields[i].timestamp = (int64_t)wall_us();
        fields[i].latency_us = 0;
        fields[i].value_type = 1;
        fields[i].value.wide = 0;
        fields[i].result = field == 1 || field == 82 || field == 185 || field == 186
                               ? NVML_OK
                               : NVML_NOT_SUPPORTED;
        fields[i].value.word = field == 1    ? 1
                               : field == 82 ? temperature(device)
                                             : power_mw(device);
    }
    return rc;
}
