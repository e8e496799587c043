/*
 * Copies and sets. A pageable host source is read when the call is made, a
 * pageable host destination is written before the call returns, as the driver
 * does; pinned memory is used when the work runs.
 */
#include "local.h"

#include <stdlib.h>
#include <string.h>

/* Bytes per nanosecond: a bus of 16 GB/s and device memory of 800 GB/s, rounded. */
#define BUS_BYTES_PER_NS    16.0
#define MEMORY_BYTES_PER_NS 800.0
#define COPY_START_NS       2000.0

static bool is_pinned(uint64_t address)
{
    pthread_mutex_lock(&local_lock);
    const struct emu_range *range = range_at(address);
    bool pinned = range && range->kind == RANGE_HOST;
    pthread_mutex_unlock(&local_lock);
    return pinned;
}

static bool may_use(uint64_t address, uint64_t bytes, uint32_t access)
{
    if (!is_device_address(address))
        return address != 0;
    pthread_mutex_lock(&local_lock);
    bool covers = range_covers(host_address(address), bytes, access);
    pthread_mutex_unlock(&local_lock);
    return covers;
}

static bool check_rows(const struct op_rows *rows, bool has_source)
{
    uint64_t to_bytes = rows->to_pitch * (rows->height - 1) + rows->width;
    uint64_t from_bytes = rows->from_pitch * (rows->height - 1) + rows->width;
    return may_use(rows->to, to_bytes, 3) && (!has_source || may_use(rows->from, from_bytes, 1));
}

static CUresult stage(struct op_rows *rows)
{
    uint64_t bytes = rows->from_pitch * (rows->height - 1) + rows->width;
    rows->staged = malloc(bytes);
    if (!rows->staged)
        return CU_OUT_OF_MEMORY;
    memcpy(rows->staged, (void *)rows->from, bytes);
    rows->from = (uint64_t)rows->staged;
    return CU_OK;
}

static CUresult copy_rows(struct op_rows rows, CUstream handle, bool is_async)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (rc || rows.width == 0 || rows.height == 0)
        return rc;
    if (!check_rows(&rows, true))
        return CU_INVALID_VALUE;
    bool from_host = !is_device_address(rows.from), to_host = !is_device_address(rows.to);
    double bytes = (double)rows.width * (double)rows.height;
    struct emu_item item = {.work = WORK_COPY, .left_ns = COPY_START_NS + bytes / BUS_BYTES_PER_NS};
    if (!from_host && !to_host)
        item = (struct emu_item){.work = WORK_KERNEL,
                                 .sm_percent = 10,
                                 .bandwidth_percent = 90,
                                 .left_ns = COPY_START_NS + bytes / MEMORY_BYTES_PER_NS};
    struct emu_op *op;
    rc = op_start(context, handle, OP_COPY, &op);
    if (rc)
        return rc;
    if (from_host && is_async && !is_pinned(rows.from))
        rc = stage(&rows);
    if (rc) {
        free(op);
        return rc;
    }
    struct emu_stream *stream = op->stream;
    uint64_t until;
    op->rows = rows;
    rc = op_queue(stream, &item, op, &until);
    if (rc)
        return rc;
    return !is_async || (to_host && !is_pinned(rows.to)) ? op_wait(stream, until) : CU_OK;
}

static struct op_rows line(uint64_t to, uint64_t from, size_t bytes)
{
    return (struct op_rows){.to = to, .from = from, .width = bytes, .height = 1};
}

#define NEEDS_DEVICE(address)                                                                      \
    if (!is_device_address(address))                                                               \
    return CU_INVALID_VALUE

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    NEEDS_DEVICE(to);
    return copy_rows(line(to, (uint64_t)from, bytes), NULL, false);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    NEEDS_DEVICE(from);
    return copy_rows(line((uint64_t)to, from, bytes), NULL, false);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    NEEDS_DEVICE(to);
    NEEDS_DEVICE(from);
    return copy_rows(line(to, from, bytes), NULL, true);
}

EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy_rows(line(to, from, bytes), NULL, false);
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes,
                                     CUstream stream)
{
    NEEDS_DEVICE(to);
    return copy_rows(line(to, (uint64_t)from, bytes), stream, true);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    NEEDS_DEVICE(from);
    return copy_rows(line((uint64_t)to, from, bytes), stream, true);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                     CUstream stream)
{
    NEEDS_DEVICE(to);
    NEEDS_DEVICE(from);
    return copy_rows(line(to, from, bytes), stream, true);
}

EXPORT CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy_rows(line(to, from, bytes), stream, true);
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                             CUcontext from_context, size_t bytes)
{
    (void)to_context;
    (void)from_context;
    return copy_rows(line(to, from, bytes), NULL, false);
}

static CUresult copy_2d(const struct cu_memcpy2d *copy, CUstream stream, bool is_async)
{
    if (copy->src_type == 3 || copy->dst_type == 3)
        return CU_NOT_SUPPORTED;
    uint64_t from = copy->src_type == 1 ? (uint64_t)copy->src_host : copy->src_device;
    uint64_t to = copy->dst_type == 1 ? (uint64_t)copy->dst_host : copy->dst_device;
    size_t from_pitch = copy->src_pitch ? copy->src_pitch : copy->width_bytes;
    size_t to_pitch = copy->dst_pitch ? copy->dst_pitch : copy->width_bytes;
    struct op_rows rows = {.to = to + copy->dst_y * to_pitch + copy->dst_x_bytes,
                           .from = from + copy->src_y * from_pitch + copy->src_x_bytes,
                           .width = copy->width_bytes,
                           .height = copy->height,
                           .to_pitch = to_pitch,
                           .from_pitch = from_pitch};
    return copy_rows(rows, stream, is_async);
}

EXPORT CUresult cuMemcpy2D_v2(const struct cu_memcpy2d *copy)
{
    return copy_2d(copy, NULL, false);
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const struct cu_memcpy2d *copy)
{
    return copy_2d(copy, NULL, false);
}

EXPORT CUresult cuMemcpy2DAsync_v2(const struct cu_memcpy2d *copy, CUstream stream)
{
    return copy_2d(copy, stream, true);
}

static CUresult set_rows(CUdeviceptr to, size_t pitch, uint32_t value, uint32_t unit_bytes,
                         size_t count, size_t height, CUstream handle)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    struct op_rows rows = {
        .to = to, .to_pitch = pitch, .width = count * unit_bytes, .height = height};
    if (rc || count == 0 || height == 0)
        return rc;
    if (!is_device_address(to) || to % unit_bytes || !check_rows(&rows, false))
        return CU_INVALID_VALUE;
    struct emu_op *op;
    rc = op_start(context, handle, OP_SET, &op);
    if (rc)
        return rc;
    op->rows = rows;
    op->value = value;
    op->unit_bytes = unit_bytes;
    struct emu_item item = {.work = WORK_KERNEL,
                            .sm_percent = 10,
                            .bandwidth_percent = 90,
                            .left_ns = COPY_START_NS +
                                       (double)(rows.width * height) / MEMORY_BYTES_PER_NS};
    return op_queue(op->stream, &item, op, NULL);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    return set_rows(to, 0, value, 1, count, 1, NULL);
}

EXPORT CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count)
{
    return set_rows(to, 0, value, 2, count, 1, NULL);
}

EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count)
{
    return set_rows(to, 0, value, 4, count, 1, NULL);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return set_rows(to, 0, value, 1, count, 1, stream);
}

EXPORT CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count,
                                 CUstream stream)
{
    return set_rows(to, 0, value, 2, count, 1, stream);
}

EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
    return set_rows(to, 0, value, 4, count, 1, stream);
}

EXPORT CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width,
                                size_t height)
{
    return set_rows(to, pitch, value, 1, width, height, NULL);
}

EXPORT CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width,
                                 size_t height)
{
    return set_rows(to, pitch, value, 4, width, height, NULL);
}
