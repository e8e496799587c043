#define _GNU_SOURCE
#include "cuda_own.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_driver.h"
#include "cuda_lane.h"
#include "region.h"

#define PROCESSES_MAX         256
#define NVML_HANDLE_BY_BUS_ID "nvmlDeviceGetHandleByPciBusId_v2"

static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
static struct region region;
static uint64_t base, reserve_bytes;

/* The caller holds own_lock. */
static int reserve(void)
{
    size_t total_bytes = 0;
    int answer;

    if (base)
        return CUDA_OK;
    answer = REAL(cuDeviceTotalMem_v2)(&total_bytes, cuda_device());
    if (answer)
        return answer;
    total_bytes = total_bytes / CUDA_GRANULE_BYTES * CUDA_GRANULE_BYTES;
    if (region_open(&region, total_bytes))
        return CUDA_OUT_OF_MEMORY;
    answer = REAL(cuMemAddressReserve)(&base, (cuda_word)total_bytes, (cuda_word)0, (cuda_word)0,
                                       (cuda_word)0);
    if (answer)
        region_drop(&region);
    else
        reserve_bytes = total_bytes;
    return answer;
}

int own_allocate(uint64_t size_bytes, uint64_t *address)
{
    uint64_t offset_bytes, handle;
    int answer;

    pthread_mutex_lock(&own_lock);
    answer = reserve();
    if (answer)
        goto unlock;
    offset_bytes = region_allocate(&region, size_bytes, CUDA_GRANULE_BYTES, 0);
    if (offset_bytes == REGION_NONE) {
        answer = CUDA_OUT_OF_MEMORY;
        goto unlock;
    }
    answer = cuda_create(size_bytes, &handle);
    if (!answer) {
        answer = cuda_map(base + offset_bytes, size_bytes, handle);
        REAL(cuMemRelease)(handle);
    }
    if (answer)
        region_free(&region, offset_bytes);
    else
        *address = base + offset_bytes;
unlock:
    pthread_mutex_unlock(&own_lock);
    return answer;
}

int own_free(uint64_t address)
{
    uint64_t size_bytes;
    int answer = CUDA_INVALID_VALUE;

    pthread_mutex_lock(&own_lock);
    size_bytes = region_free(&region, address - base);
    if (size_bytes != REGION_NONE)
        answer = REAL(cuMemUnmap)(address, size_bytes);
    pthread_mutex_unlock(&own_lock);
    return answer;
}

bool own_holds(uint64_t address)
{
    return base && address - base < reserve_bytes;
}

struct nvml_process {
    unsigned int pid;
    unsigned long long used_bytes;
    unsigned int gpu_instance, compute_instance;
};

/* The device is found by its bus id, which the driver and NVML write in the same way. */
static void *find_handle(void *library)
{
    int (*find)(const char *, void **) =
        (int (*)(const char *, void **))dlsym(library, NVML_HANDLE_BY_BUS_ID);
    char bus_id[32] = "";
    void *handle = NULL;

    if (!find || REAL(cuDeviceGetPCIBusId)(bus_id, (cuda_word)sizeof(bus_id), cuda_device()) ||
        find(bus_id, &handle))
        return NULL;
    return handle;
}

uint64_t cuda_used_bytes(void)
{
    struct nvml_process *rows = NULL;
    unsigned int count = PROCESSES_MAX, index;
    void *library, *handle;
    uint64_t used_bytes = 0;
    int (*start)(void), (*stop)(void), (*list)(void *, unsigned int *, struct nvml_process *);

    cuda_resolve();
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 0;
    start = (int (*)(void))dlsym(library, "nvmlInit_v2");
    stop = (int (*)(void))dlsym(library, "nvmlShutdown");
    list = (int (*)(void *, unsigned int *, struct nvml_process *))dlsym(
        library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (!start || !stop || !list || start())
        goto close;
    handle = find_handle(library);
    rows = calloc(count, sizeof(*rows));
    if (handle && rows && !list(handle, &count, rows))
        for (index = 0; index < count; index++)
            if (rows[index].pid == (unsigned int)getpid())
                used_bytes = rows[index].used_bytes;
    free(rows);
    stop();
close:
    dlclose(library);
    return used_bytes;
}
