/*
 * Virtual memory management: addresses and memory are separate. The memory of a
 * handle is a sparse memfd, so that a device of 80 GB costs only the pages that are
 * touched. Other processes map the same file.
 */
#include "local.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct reservation {
    struct reservation *next;
    uint64_t start, bytes;
};

static struct reservation *reservations;

static bool is_granular(uint64_t bytes)
{
    return bytes && bytes % EMU_GRANULE == 0;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const struct cu_allocation_prop *prop,
                                              int option)
{
    (void)option;
    if (emu_ready() || !bytes || !prop || prop->location.type != 1)
        return CU_INVALID_VALUE;
    *bytes = EMU_GRANULE;
    return CU_OK;
}

void physical_drop(struct emu_physical *physical)
{
    if (--physical->reference_count)
        return;
    emu_lock();
    if (emu_self() != NONE)
        emu_holding_drop(physical->holding);
    emu_unlock();
    close(physical->fd);
    free(physical);
}

EXPORT CUresult cuMemCreate(CUhandle *handle, size_t bytes, const struct cu_allocation_prop *prop,
                            unsigned long long flags)
{
    struct stat status;
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    if (flags || !handle || !prop || prop->type != 1 || prop->location.type != 1 ||
        !is_granular(bytes) || (uint32_t)prop->location.id >= emu->device_count ||
        (prop->requested_handle_types & ~1))
        return CU_INVALID_VALUE;
    rc = emu_device_check((uint32_t)prop->location.id);
    if (rc)
        return rc;
    struct emu_physical *physical = calloc(1, sizeof(*physical));
    if (!physical)
        return CU_OUT_OF_MEMORY;
    /* Sealed, so that no holder of a descriptor can change the size. */
    physical->fd = memfd_create("salus-emulator", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (physical->fd < 0 || ftruncate(physical->fd, (off_t)bytes) ||
        fcntl(physical->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ||
        fstat(physical->fd, &status)) {
        rc = CU_OPERATING_SYSTEM;
        goto out;
    }
    physical->device = (uint32_t)prop->location.id;
    physical->bytes = bytes;
    physical->prop = *prop;
    physical->reference_count = physical->handle_count = 1;
    emu_lock();
    rc = emu_allocation_add(physical->device, bytes, status.st_ino, &physical->holding);
    emu_unlock();
out:
    if (rc) {
        if (physical->fd >= 0)
            close(physical->fd);
        free(physical);
        return rc;
    }
    *handle = (CUhandle)physical;
    return CU_OK;
}

EXPORT CUresult cuMemRelease(CUhandle handle)
{
    struct emu_physical *physical = (struct emu_physical *)handle;
    CUresult rc = emu_ready();
    if (rc || !physical || physical->handle_count == 0)
        return rc ? rc : CU_INVALID_VALUE;
    pthread_mutex_lock(&local_lock);
    physical->handle_count--;
    physical_drop(physical);
    pthread_mutex_unlock(&local_lock);
    return CU_OK;
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, CUhandle handle, int type,
                                             unsigned long long flags)
{
    const struct emu_physical *physical = (struct emu_physical *)handle;
    CUresult rc = emu_ready();
    if (rc || !out || !physical || flags || type != 1 ||
        !(physical->prop.requested_handle_types & 1))
        return rc ? rc : CU_INVALID_VALUE;
    int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return CU_OPERATING_SYSTEM;
    *(int *)out = fd;
    return CU_OK;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUhandle *handle, void *os_handle, int type)
{
    struct stat status;
    int fd = (int)(intptr_t)os_handle;
    CUresult rc = emu_ready();
    if (rc || !handle || type != 1 || fstat(fd, &status))
        return rc ? rc : CU_INVALID_VALUE;
    struct emu_physical *physical = calloc(1, sizeof(*physical));
    if (!physical)
        return CU_OUT_OF_MEMORY;
    physical->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    physical->bytes = (uint64_t)status.st_size;
    physical->reference_count = physical->handle_count = 1;
    emu_lock();
    rc = physical->fd < 0 ? CU_OPERATING_SYSTEM
                          : emu_allocation_hold(status.st_ino, &physical->holding);
    if (!rc)
        physical->device = emu->allocations[emu->holdings[physical->holding].allocation].device;
    emu_unlock();
    if (rc) {
        if (physical->fd >= 0)
            close(physical->fd);
        free(physical);
        return rc;
    }
    physical->prop = (struct cu_allocation_prop){.type = 1, .requested_handle_types = 1};
    physical->prop.location.type = 1;
    physical->prop.location.id = (int)physical->device;
    *handle = (CUhandle)physical;
    return CU_OK;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                    CUdeviceptr hint, unsigned long long flags)
{
    CUresult rc = emu_ready();
    if (rc || flags || !is_granular(bytes))
        return rc ? rc : CU_INVALID_VALUE;
    uint64_t unit = alignment > EMU_GRANULE ? alignment : EMU_GRANULE;
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint64_t start = 0;
    if (hint) {
        void *fixed =
            mmap((void *)host_address(hint), bytes, PROT_NONE, how | MAP_FIXED_NOREPLACE, -1, 0);
        start = fixed == MAP_FAILED ? 0 : (uint64_t)fixed;
    }
    if (!start) {
        char *wide = mmap(NULL, bytes + unit, PROT_NONE, how, -1, 0);
        if (wide == MAP_FAILED)
            return CU_OUT_OF_MEMORY;
        start = ((uint64_t)wide + unit - 1) / unit * unit;
        if (start > (uint64_t)wide)
            munmap(wide, start - (uint64_t)wide);
        munmap((void *)(start + bytes), (uint64_t)wide + unit - start);
    }
    struct reservation *reservation = malloc(sizeof(*reservation));
    if (!reservation)
        return CU_OUT_OF_MEMORY;
    pthread_mutex_lock(&local_lock);
    *reservation = (struct reservation){reservations, start, bytes};
    reservations = reservation;
    pthread_mutex_unlock(&local_lock);
    *address = start | DEVICE_TAG;
    return CU_OK;
}

/* The caller holds local_lock. */
static bool is_reserved(uint64_t start, uint64_t bytes)
{
    for (const struct reservation *at = reservations; at; at = at->next)
        if (start >= at->start && start + bytes <= at->start + at->bytes)
            return true;
    return false;
}

/* The caller holds local_lock. */
static bool is_unmapped(uint64_t start, uint64_t bytes)
{
    for (uint64_t at = start; at < start + bytes; at += EMU_GRANULE)
        if (range_at(at))
            return false;
    return true;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    CUresult rc = CU_INVALID_VALUE;
    uint64_t start = host_address(address);
    pthread_mutex_lock(&local_lock);
    for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
        struct reservation *found = *link;
        if (found->start != start || found->bytes != bytes || !is_unmapped(start, bytes))
            continue;
        *link = found->next;
        munmap((void *)start, bytes);
        free(found);
        rc = CU_OK;
        break;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle,
                         unsigned long long flags)
{
    struct emu_physical *physical = (struct emu_physical *)handle;
    uint64_t start = host_address(address);
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    if (flags || !physical || !is_granular(bytes) || start % EMU_GRANULE || offset % EMU_GRANULE ||
        offset + bytes > physical->bytes)
        return CU_INVALID_VALUE;
    pthread_mutex_lock(&local_lock);
    if (!is_reserved(start, bytes) || !is_unmapped(start, bytes)) {
        rc = CU_INVALID_VALUE;
    } else if (mmap((void *)start, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd,
                    (off_t)offset) == MAP_FAILED) {
        rc = CU_OPERATING_SYSTEM;
    } else {
        physical->reference_count++;
        range_add((struct emu_range){.start = start,
                                     .bytes = bytes,
                                     .kind = RANGE_MAPPED,
                                     .device = physical->device,
                                     .physical = physical,
                                     .buffer_id = range_new_id()});
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

/* Unmaps whole mappings only: one, or several that follow each other. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    uint64_t start = host_address(address), at = start;
    CUresult rc = emu_ready();
    if (rc)
        return rc;
    pthread_mutex_lock(&local_lock);
    while (at < start + bytes) {
        const struct emu_range *range = range_at(at);
        if (!range || range->kind != RANGE_MAPPED || range->start != at ||
            at + range->bytes > start + bytes)
            break;
        at += range->bytes;
    }
    if (bytes == 0 || at != start + bytes)
        rc = CU_INVALID_VALUE;
    for (at = start; !rc && at < start + bytes;) {
        struct emu_range gone = *range_at(at);
        range_remove(at);
        mmap((void *)at, gone.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        physical_drop(gone.physical);
        at += gone.bytes;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const struct cu_access_desc *desc,
                               size_t count)
{
    uint64_t start = host_address(address);
    CUresult rc = emu_ready();
    if (rc || !desc || count != 1)
        return rc ? rc : CU_INVALID_VALUE;
    pthread_mutex_lock(&local_lock);
    for (uint64_t at = start; !rc && at < start + bytes;) {
        struct emu_range *range = range_at(at);
        if (!range || range->kind != RANGE_MAPPED || range->start != at ||
            at + range->bytes > start + bytes || desc->location.type != 1 ||
            desc->location.id != (int)range->device) {
            rc = CU_INVALID_VALUE;
            break;
        }
        int protection = desc->flags == 3   ? PROT_READ | PROT_WRITE
                         : desc->flags == 1 ? PROT_READ
                                            : PROT_NONE;
        if (mprotect((void *)at, range->bytes, protection))
            rc = CU_OPERATING_SYSTEM;
        range->access = (uint32_t)desc->flags;
        at += range->bytes;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const struct cu_location *location,
                               CUdeviceptr address)
{
    pthread_mutex_lock(&local_lock);
    const struct emu_range *range = range_at(host_address(address));
    CUresult rc = range && location->type == 1 ? CU_OK : CU_INVALID_VALUE;
    if (!rc)
        *flags = location->id == (int)range->device ? range->access : 0;
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUhandle *handle, void *address)
{
    pthread_mutex_lock(&local_lock);
    struct emu_range *range = range_at(host_address((uint64_t)address));
    CUresult rc = range && range->kind == RANGE_MAPPED ? CU_OK : CU_INVALID_VALUE;
    if (!rc) {
        range->physical->reference_count++;
        range->physical->handle_count++;
        *handle = (CUhandle)range->physical;
    }
    pthread_mutex_unlock(&local_lock);
    return rc;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(struct cu_allocation_prop *prop,
                                                       CUhandle handle)
{
    if (emu_ready() || !prop || !handle)
        return CU_INVALID_VALUE;
    *prop = ((const struct emu_physical *)handle)->prop;
    return CU_OK;
}
