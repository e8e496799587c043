/*
 * The part of the driver's public binary interface that the emulator implements:
 * result codes, handles, and the layout of structures. Written from the public
 * documentation. Only what is used here is declared.
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

/* The result codes other than success: name, number and sentence. */
#define CU_ERRORS(X)                                                                               \
    X(INVALID_VALUE, 1, "invalid argument")                                                        \
    X(OUT_OF_MEMORY, 2, "out of memory")                                                           \
    X(NOT_INITIALIZED, 3, "initialization error")                                                  \
    X(DEINITIALIZED, 4, "driver shutting down")                                                    \
    X(DEVICE_UNAVAILABLE, 46, "device is busy or unavailable")                                     \
    X(NO_DEVICE, 100, "no device is detected")                                                     \
    X(INVALID_DEVICE, 101, "invalid device ordinal")                                               \
    X(INVALID_IMAGE, 200, "device kernel image is invalid")                                        \
    X(INVALID_CONTEXT, 201, "invalid device context")                                              \
    X(ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered")                               \
    X(FILE_NOT_FOUND, 301, "file not found")                                                       \
    X(OPERATING_SYSTEM, 304, "an operating system call failed")                                    \
    X(INVALID_HANDLE, 400, "invalid resource handle")                                              \
    X(ILLEGAL_STATE, 401, "the operation cannot be performed in the present state")                \
    X(NOT_FOUND, 500, "named symbol not found")                                                    \
    X(NOT_READY, 600, "device not ready")                                                          \
    X(ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                            \
    X(PRIMARY_CONTEXT_ACTIVE, 708, "the primary context is active")                                \
    X(CONTEXT_IS_DESTROYED, 709, "context is destroyed")                                           \
    X(LAUNCH_FAILED, 719, "unspecified launch failure")                                            \
    X(NOT_PERMITTED, 800, "operation not permitted")                                               \
    X(NOT_SUPPORTED, 801, "operation not supported")                                               \
    X(STREAM_CAPTURE_UNSUPPORTED, 900, "not permitted while capturing")                            \
    X(STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture")  \
    X(TIMEOUT, 909, "the wait has timed out")                                                      \
    X(UNKNOWN, 999, "unknown error")

#define CU_ENUMERATOR(name, code, sentence) CU_##name = code,
enum { CU_OK = 0, CU_ERRORS(CU_ENUMERATOR) };

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
