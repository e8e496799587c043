/* NVML: what a device says of itself. Power, clocks and temperature are
 * plausible figures, not a model. */
#include "nvml.h"

#include <string.h>
#include <time.h>

static const struct emu_profile *profile(nvml_device handle, uint32_t *device, nvml_result *rc)
{
    *rc = nvml_find(handle, device);
    return *rc ? NULL : emu_profile_of(*device);
}

static uint32_t busy_percent(uint32_t device)
{
    emu_lock();
    emu_advance(device);
    uint32_t percent = emu_busy_percent(emu->devices[device].buckets, emu_now_ns());
    emu_unlock();
    return percent;
}

EXPORT nvml_result nvmlDeviceGetMemoryInfo(nvml_device handle, struct nvml_memory *memory)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    emu_lock();
    emu_reap();
    uint64_t used = emu->devices[device].used_bytes, total = emu->devices[device].total_bytes;
    emu_unlock();
    *memory = (struct nvml_memory){total, total - used, used};
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct nvml_memory_v2 *memory)
{
    struct nvml_memory plain;
    nvml_result rc = nvmlDeviceGetMemoryInfo(handle, &plain);
    if (!rc)
        *memory = (struct nvml_memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    return rc;
}

EXPORT nvml_result nvmlDeviceGetBAR1MemoryInfo(nvml_device handle, struct nvml_memory *memory)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (!rc)
        *memory = (struct nvml_memory){256 * MIB, 255 * MIB, MIB};
    return rc;
}

EXPORT nvml_result nvmlDeviceGetUtilizationRates(nvml_device handle, struct nvml_utilization *rates)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (rc)
        return rc;
    rates->gpu = busy_percent(device);
    rates->memory = rates->gpu / 2;
    return NVML_OK;
}

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

/* The kept history, oldest first; type 1 is GPU utilisation and the only one
 * kept. */
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

EXPORT nvml_result nvmlDeviceGetTemperature(nvml_device handle, int sensor, unsigned int *celsius)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    (void)sensor;
    if (!rc)
        *celsius = temperature(device);
    return rc;
}

EXPORT nvml_result nvmlDeviceGetTemperatureV(nvml_device handle, int *versioned)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (!rc)
        versioned[2] = (int)temperature(device);
    return rc;
}

EXPORT nvml_result nvmlDeviceGetTemperatureThreshold(nvml_device handle, int kind,
                                                     unsigned int *celsius)
{
    uint32_t device;
    (void)kind;
    *celsius = 90;
    return nvml_find(handle, &device);
}

EXPORT nvml_result nvmlDeviceGetPowerUsage(nvml_device handle, unsigned int *milliwatts)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (!rc)
        *milliwatts = power_mw(device);
    return rc;
}

EXPORT nvml_result nvmlDeviceGetEnforcedPowerLimit(nvml_device handle, unsigned int *milliwatts)
{
    uint32_t device;
    nvml_result rc;
    const struct emu_profile *card = profile(handle, &device, &rc);
    if (!rc)
        *milliwatts = (unsigned int)card->power_limit_mw;
    return rc;
}

EXPORT nvml_result nvmlDeviceGetPowerManagementLimit(nvml_device handle, unsigned int *milliwatts)
{
    return nvmlDeviceGetEnforcedPowerLimit(handle, milliwatts);
}

EXPORT nvml_result nvmlDeviceGetPowerManagementDefaultLimit(nvml_device handle,
                                                            unsigned int *milliwatts)
{
    return nvmlDeviceGetEnforcedPowerLimit(handle, milliwatts);
}

EXPORT nvml_result nvmlDeviceGetClockInfo(nvml_device handle, int kind, unsigned int *megahertz)
{
    uint32_t device;
    nvml_result rc;
    const struct emu_profile *card = profile(handle, &device, &rc);
    if (!rc)
        *megahertz = (unsigned int)(kind == 2 ? card->memory_clock_mhz : card->clock_mhz);
    return rc;
}

EXPORT nvml_result nvmlDeviceGetMaxClockInfo(nvml_device handle, int kind, unsigned int *megahertz)
{
    return nvmlDeviceGetClockInfo(handle, kind, megahertz);
}

static nvml_result answer(nvml_device handle, unsigned int *out, unsigned int value)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (!rc)
        *out = value;
    return rc;
}

/* Facts that are the same for every emulated device. */
#define ANSWER_CONSTANT(name, value) \
    EXPORT nvml_result name(nvml_device handle, unsigned int *out) \
    { \
        return answer(handle, out, value); \
    }

ANSWER_CONSTANT(nvmlDeviceGetPerformanceState, 0)
ANSWER_CONSTANT(nvmlDeviceGetComputeMode, 0)
ANSWER_CONSTANT(nvmlDeviceGetPersistenceMode, 1)
ANSWER_CONSTANT(nvmlDeviceGetDisplayMode, 0)
ANSWER_CONSTANT(nvmlDeviceGetDisplayActive, 0)
ANSWER_CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
ANSWER_CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, 4)
ANSWER_CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, 16)
ANSWER_CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, 4)
ANSWER_CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, 16)
ANSWER_CONSTANT(nvmlDeviceGetMaxMigDeviceCount, 0)
ANSWER_CONSTANT(nvmlDeviceIsMigDeviceHandle, 0)

EXPORT nvml_result nvmlDeviceGetBoardId(nvml_device handle, unsigned int *board)
{
    uint32_t device;
    nvml_result rc = nvml_find(handle, &device);
    if (!rc)
        *board = 0x100 + device;
    return rc;
}

EXPORT nvml_result nvmlDeviceGetPcieThroughput(nvml_device handle, int counter,
                                               unsigned int *kilobytes)
{
    (void)counter;
    return answer(handle, kilobytes, 0);
}

EXPORT nvml_result nvmlDeviceGetNumGpuCores(nvml_device handle, unsigned int *cores)
{
    uint32_t device;
    nvml_result rc;
    const struct emu_profile *card = profile(handle, &device, &rc);
    if (!rc)
        *cores = (unsigned int)card->sm_count * 64;
    return rc;
}

EXPORT nvml_result nvmlDeviceGetCudaComputeCapability(nvml_device handle, int *major, int *minor)
{
    uint32_t device;
    nvml_result rc;
    const struct emu_profile *card = profile(handle, &device, &rc);
    if (rc)
        return rc;
    *major = card->major;
    *minor = card->minor;
    return NVML_OK;
}

EXPORT nvml_result nvmlDeviceGetEccMode(nvml_device handle, unsigned int *current,
                                        unsigned int *pending)
{
    *pending = 1;
    return answer(handle, current, 1);
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

/* Cards that could be split say that they are not; the others do not know the
 * question. */
EXPORT nvml_result nvmlDeviceGetMigMode(nvml_device handle, unsigned int *current,
                                        unsigned int *pending)
{
    uint32_t device;
    nvml_result rc;
    const struct emu_profile *card = profile(handle, &device, &rc);
    if (rc)
        return rc;
    *current = *pending = 0;
    return card->has_mig ? NVML_OK : NVML_NOT_SUPPORTED;
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
