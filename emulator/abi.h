/*
 * The part of the driver's public binary interface that the emulator answers:
 * result codes, handles and the layout of the structures that cross the border.
 * Written from the public documentation; only what is used here is declared.
 */
#ifndef SALUS_EMULATOR_ABI_H
#define SALUS_EMULATOR_ABI_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUhandle;
typedef struct emu_context *CUcontext;
typedef struct emu_stream *CUstream;
typedef struct emu_event *CUevent;
typedef struct emu_module *CUmodule;
typedef struct emu_function *CUfunction;
typedef struct emu_pool *CUmemoryPool;

enum {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_DEINITIALIZED = 4,
    CU_DEVICE_UNAVAILABLE = 46,
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_INVALID_IMAGE = 200,
    CU_INVALID_CONTEXT = 201,
    CU_ECC_UNCORRECTABLE = 214,
    CU_FILE_NOT_FOUND = 301,
    CU_OPERATING_SYSTEM = 304,
    CU_INVALID_HANDLE = 400,
    CU_ILLEGAL_STATE = 401,
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_PRIMARY_CONTEXT_ACTIVE = 708,
    CU_CONTEXT_IS_DESTROYED = 709,
    CU_LAUNCH_FAILED = 719,
    CU_NOT_PERMITTED = 800,
    CU_NOT_SUPPORTED = 801,
    CU_STREAM_CAPTURE_UNSUPPORTED = 900,
    CU_STREAM_CAPTURE_INVALIDATED = 901,
    CU_TIMEOUT = 909,
    CU_UNKNOWN = 999,
};

struct cu_uuid {
    unsigned char bytes[16];
};

struct cu_location {
    int type; /* 1: device */
    int id;
};

struct cu_allocation_prop {
    int type;                   /* 1: pinned */
    int requested_handle_types; /* 1: POSIX file descriptor */
    struct cu_location location;
    void *win32_metadata;
    struct {
        unsigned char compression;
        unsigned char rdma_capable;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct cu_access_desc {
    struct cu_location location;
    int flags; /* 0 none, 1 read, 3 read and write */
};

struct cu_pool_props {
    int allocation_type;
    int handle_types;
    struct cu_location location;
    void *security;
    size_t bytes_max;
    unsigned short usage;
    unsigned char reserved[54];
};

struct cu_launch_config {
    unsigned int grid_x, grid_y, grid_z;
    unsigned int block_x, block_y, block_z;
    unsigned int shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned int attribute_count;
};

struct cu_memcpy2d {
    size_t src_x_bytes, src_y;
    int src_type; /* 1 host, 2 device, 3 array, 4 unified */
    const void *src_host;
    CUdeviceptr src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x_bytes, dst_y;
    int dst_type;
    void *dst_host;
    CUdeviceptr dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width_bytes, height;
};

#define CU_STREAM_LEGACY     ((CUstream)0x1)
#define CU_STREAM_PER_THREAD ((CUstream)0x2)

#endif
