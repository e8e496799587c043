/* Names and sentences of result codes, and what is answered about export
 * tables: nothing. */
#include "abi.h"

struct result_text {
    CUresult code;
    const char *name;
    const char *sentence;
};

static const struct result_text texts[] = {
    {CU_OK, "CUDA_SUCCESS", "no error"},
    {CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CU_DEINITIALIZED, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {CU_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device is busy or unavailable"},
    {CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no device is detected"},
    {CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CU_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CU_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CU_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "a call of the operating system failed"},
    {CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CU_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CU_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CU_PRIMARY_CONTEXT_ACTIVE, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE",
     "the primary context is active"},
    {CU_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CU_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CU_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "not permitted while capturing"},
    {CU_TIMEOUT, "CUDA_ERROR_TIMEOUT", "the wait has timed out"},
    {CU_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static const struct result_text *find(CUresult code)
{
    for (unsigned int i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (texts[i].code == code)
            return &texts[i];
    return 0;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **name)
{
    const struct result_text *text = find(code);
    *name = text ? text->name : 0;
    return text ? CU_OK : CU_INVALID_VALUE;
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **sentence)
{
    const struct result_text *text = find(code);
    *sentence = text ? text->sentence : 0;
    return text ? CU_OK : CU_INVALID_VALUE;
}

/* The tables are undocumented and carry a check that the driver is genuine;
 * none of them is answered. */
EXPORT CUresult cuGetExportTable(const void **table, const struct cu_uuid *id)
{
    (void)id;
    if (table)
        *table = 0;
    return CU_NOT_FOUND;
}
