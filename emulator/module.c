/*
 * Modules and launches. Code is not executed. Comments in the text of a module may
 * say how long each kernel takes alone, what share of the device it uses, and which
 * built-in effect it has (README.md):
 *
 *     // salus-kernel: NAME ns=1000000 sm=40 bandwidth=20 effect=add
 */
#include "local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_NS     100000.0
#define NAME_MAX_BYTES 128

struct emu_function {
    struct emu_function *next;
    struct emu_module *module;
    char name[NAME_MAX_BYTES];
    double ns;
    uint32_t sm_percent, bandwidth_percent, effect;
};

struct emu_module {
    char *text; /* NULL: a binary image, in which every name is found */
    struct emu_function *functions;
};

static bool is_text(const char *image)
{
    return strncmp(image, "\177ELF", 4) != 0 && (unsigned char)image[0] >= 9 &&
           (unsigned char)image[0] < 0x7f;
}

static void read_model(struct emu_function *function, const char *text)
{
    char wanted[NAME_MAX_BYTES + 20], effect[16] = "none";
    snprintf(wanted, sizeof(wanted), "// salus-kernel: %s ", function->name);
    const char *line = text ? strstr(text, wanted) : NULL;
    if (!line)
        return;
    line += strlen(wanted);
    const char *end = line + strcspn(line, "\n");
    while (line < end) {
        unsigned long long number;
        if (sscanf(line, "ns=%llu", &number) == 1)
            function->ns = (double)number;
        else if (sscanf(line, "sm=%llu", &number) == 1 && number >= 1 && number <= 100)
            function->sm_percent = (uint32_t)number;
        else if (sscanf(line, "bandwidth=%llu", &number) == 1 && number <= 100)
            function->bandwidth_percent = (uint32_t)number;
        else if (sscanf(line, "effect=%15[a-z]", effect) == 1)
            function->effect = effect_named(effect);
        line += strcspn(line, " \n");
        line += strspn(line, " ");
    }
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    if (rc || !out || !image)
        return rc ? rc : CU_INVALID_VALUE;
    struct emu_module *module = calloc(1, sizeof(*module));
    if (!module)
        return CU_OUT_OF_MEMORY;
    if (is_text(image))
        module->text = strdup(image);
    *out = module;
    return CU_OK;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count,
                                   int *options, void **values)
{
    (void)count;
    (void)options;
    (void)values;
    return cuModuleLoadData(out, image);
}

EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path)
{
    char *image = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return CU_FILE_NOT_FOUND;
    ssize_t length = getdelim(&image, &room, 0, file);
    fclose(file);
    CUresult rc = length > 0 ? cuModuleLoadData(out, image) : CU_INVALID_IMAGE;
    free(image);
    return rc;
}

/* Functions stay allocated: queued work may still refer to them. */
EXPORT CUresult cuModuleUnload(CUmodule module)
{
    return module ? emu_ready() : CU_INVALID_HANDLE;
}

EXPORT CUresult cuModuleGetLoadingMode(int *mode)
{
    *mode = 1;
    return CU_OK;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    char entry[NAME_MAX_BYTES + 8];
    CUresult rc = emu_ready();
    if (rc || !module || !name || strlen(name) >= NAME_MAX_BYTES)
        return rc ? rc : CU_INVALID_VALUE;
    snprintf(entry, sizeof(entry), ".entry %s", name);
    if (module->text && !strstr(module->text, entry))
        return CU_NOT_FOUND;
    for (struct emu_function *at = module->functions; at; at = at->next)
        if (strcmp(at->name, name) == 0) {
            *out = at;
            return CU_OK;
        }
    struct emu_function *function = calloc(1, sizeof(*function));
    if (!function)
        return CU_OUT_OF_MEMORY;
    *function = (struct emu_function){.module = module, .ns = DEFAULT_NS, .sm_percent = 100};
    snprintf(function->name, sizeof(function->name), "%s", name);
    read_model(function, module->text);
    function->next = module->functions;
    module->functions = function;
    *out = function;
    return CU_OK;
}

EXPORT CUresult cuLibraryLoadData(CUmodule *out, const void *code, int *jit, void **jit_values,
                                  unsigned int jit_count, int *options, void **values,
                                  unsigned int count)
{
    (void)jit;
    (void)jit_values;
    (void)jit_count;
    (void)options;
    (void)values;
    (void)count;
    return cuModuleLoadData(out, code);
}

EXPORT CUresult cuLibraryUnload(CUmodule module)
{
    return cuModuleUnload(module);
}

EXPORT CUresult cuLibraryGetKernel(CUfunction *out, CUmodule module, const char *name)
{
    return cuModuleGetFunction(out, module, name);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUmodule module)
{
    *out = module;
    return module ? CU_OK : CU_INVALID_HANDLE;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUfunction kernel)
{
    *out = kernel;
    return kernel ? CU_OK : CU_INVALID_HANDLE;
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    *module = function->module;
    return CU_OK;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction function)
{
    *name = function->name;
    return CU_OK;
}

/* Attribute 0 is the maximum number of threads per block, 4 the registers per thread. */
EXPORT CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return function ? CU_OK : CU_INVALID_HANDLE;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    (void)attribute;
    (void)value;
    return function ? CU_OK : CU_INVALID_HANDLE;
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction function,
                                                            int block_size, size_t shared_bytes)
{
    (void)shared_bytes;
    *count = block_size > 0 ? 2048 / block_size : 0;
    return function ? CU_OK : CU_INVALID_HANDLE;
}

/* Arguments come as an array of pointers, or packed in one buffer named by a
 * list of tags (1 buffer, 2 size). */
static bool read_arguments(struct emu_op *op, void **parameters, void **extra)
{
    uint32_t word;
    const char *packed = NULL;
    if (parameters) {
        memcpy(&op->arguments[0], parameters[0], sizeof(uint64_t));
        memcpy(&word, parameters[1], sizeof(word));
        op->arguments[1] = word;
        memcpy(&word, parameters[2], sizeof(word));
        op->arguments[2] = word;
        return true;
    }
    for (void **at = extra; at && *at; at += 2)
        if (*at == (void *)1)
            packed = at[1];
    if (!packed)
        return false;
    memcpy(&op->arguments[0], packed, sizeof(uint64_t));
    memcpy(&word, packed + 8, sizeof(word));
    op->arguments[1] = word;
    memcpy(&word, packed + 12, sizeof(word));
    op->arguments[2] = word;
    return true;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                               unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                               unsigned int block_z, unsigned int shared_bytes, CUstream handle,
                               void **parameters, void **extra)
{
    struct emu_context *context;
    CUresult rc = emu_enter(&context);
    (void)shared_bytes;
    if (rc)
        return rc;
    if (!function)
        return CU_INVALID_HANDLE;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z ||
        block_x * block_y * block_z > 1024)
        return CU_INVALID_VALUE;
    struct emu_op *op;
    rc = op_start(context, handle, OP_KERNEL, &op);
    if (rc)
        return rc;
    op->effect = function->effect;
    if (op->effect && !read_arguments(op, parameters, extra)) {
        free(op);
        return CU_INVALID_VALUE;
    }
    struct emu_item item = {.work = WORK_KERNEL,
                            .sm_percent = function->sm_percent,
                            .bandwidth_percent = function->bandwidth_percent,
                            .left_ns = function->ns};
    return op_queue(op->stream, &item, op, NULL);
}

EXPORT CUresult cuLaunchKernelEx(const struct cu_launch_config *config, CUfunction function,
                                 void **parameters, void **extra)
{
    return cuLaunchKernel(function, config->grid_x, config->grid_y, config->grid_z, config->block_x,
                          config->block_y, config->block_z, config->shared_bytes, config->stream,
                          parameters, extra);
}
