/* Names and sentences of the result codes. */
#include "abi.h"

struct result_text {
    CUresult code;
    const char *name;
    const char *sentence;
};

#define RESULT_TEXT(name, code, sentence) {code, "CUDA_ERROR_" #name, sentence},
static const struct result_text texts[] = {{CU_OK, "CUDA_SUCCESS", "no error"},
                                           CU_ERRORS(RESULT_TEXT)};

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

/* The export tables are undocumented and check that the driver is genuine, so
 * the emulator has none of them. */
EXPORT CUresult cuGetExportTable(const void **table, const struct cu_uuid *id)
{
    (void)id;
    if (table)
        *table = 0;
    return CU_NOT_FOUND;
}
