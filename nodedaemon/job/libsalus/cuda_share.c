/*
 * Pools, stream capture and memory for other processes: calls that behave like the driver's, or are
 * refused with a reason on standard error. docs/gpus.md has the table.
 */
#define _GNU_SOURCE
#include "cuda_share.h"

#include <stdio.h>

#include "memory_cuda.h"
#include "session.h"

#define CAPTURE_INVALIDATED 901

static uint32_t capture_count;

bool capture_is_open(void)
{
    return __atomic_load_n(&capture_count, __ATOMIC_SEQ_CST) != 0;
}

bool capture_has(cuda_word stream)
{
    int status = 0;

    return capture_is_open() && !REAL(cuStreamIsCapturing)(stream, &status) && status;
}

static int begun(int answer)
{
    if (!answer)
        __atomic_add_fetch(&capture_count, 1, __ATOMIC_SEQ_CST);
    return answer;
}

static int ended(int answer)
{
    if (!answer || answer == CAPTURE_INVALIDATED)
        __atomic_sub_fetch(&capture_count, 1, __ATOMIC_SEQ_CST);
    return answer;
}

#define CAPTURE(name, done, parameters, arguments)                                                 \
    CUDA_EXPORT int name parameters                                                                \
    {                                                                                              \
        cuda_resolve();                                                                            \
        return done(REAL(name) arguments);                                                         \
    }

#define TO_GRAPH_PARAMETERS                                                                        \
    (cuda_word stream, cuda_word graph, cuda_word after, cuda_word edges, cuda_word count,         \
     cuda_word mode)
#define TO_GRAPH_ARGUMENTS (stream, graph, after, edges, count, mode)

CAPTURE(cuStreamBeginCapture, begun, (cuda_word stream), (stream))
CAPTURE(cuStreamBeginCapture_ptsz, begun, (cuda_word stream), (stream))
CAPTURE(cuStreamBeginCapture_v2, begun, (cuda_word stream, cuda_word mode), (stream, mode))
CAPTURE(cuStreamBeginCapture_v2_ptsz, begun, (cuda_word stream, cuda_word mode), (stream, mode))
CAPTURE(cuStreamBeginCaptureToGraph, begun, TO_GRAPH_PARAMETERS, TO_GRAPH_ARGUMENTS)
CAPTURE(cuStreamBeginCaptureToGraph_ptsz, begun, TO_GRAPH_PARAMETERS, TO_GRAPH_ARGUMENTS)
CAPTURE(cuStreamEndCapture, ended, (cuda_word stream, cuda_word graph), (stream, graph))
CAPTURE(cuStreamEndCapture_ptsz, ended, (cuda_word stream, cuda_word graph), (stream, graph))

/* Salus ignores the pool when it places the block. During a capture the allocation becomes a node
 * of the graph, so it is left to the driver. */
static int allocate_from_pool(uint64_t *address, size_t size_bytes, cuda_word pool,
                              cuda_word stream, enum cuda_place real)
{
    cuda_resolve();
    if (session.phase != PHASE_GATED || !pool || capture_has(stream))
        return ((cuda_function)cuda_table[real])(address, size_bytes, pool, stream);
    return cuda_allocate(address, size_bytes);
}

WRAP(cuMemAllocFromPoolAsync, uint64_t *address, size_t size_bytes, cuda_word pool,
     cuda_word stream)
{
    return allocate_from_pool(address, size_bytes, pool, stream, REAL_cuMemAllocFromPoolAsync);
}

WRAP(cuMemAllocFromPoolAsync_ptsz, uint64_t *address, size_t size_bytes, cuda_word pool,
     cuda_word stream)
{
    return allocate_from_pool(address, size_bytes, pool, stream, REAL_cuMemAllocFromPoolAsync_ptsz);
}

/* Other sessions use the lane too, and the memory behind our own range may change. So neither can
 * be shared with another process. */
static int refuse(const char *call)
{
    fprintf(stderr,
            "salus: share memory: %s: a gated job's memory cannot be shared between processes; "
            "submit with --salus-mem or SALUS_DISABLE=1\n",
            call);
    return CUDA_NOT_SUPPORTED;
}

WRAP(cuIpcGetMemHandle, void *handle, uint64_t address)
{
    cuda_resolve();
    return cuda_is_placed(address) ? refuse("cuIpcGetMemHandle")
                                   : REAL(cuIpcGetMemHandle)(handle, address);
}

WRAP(cuMemPoolExportPointer, void *data, uint64_t address)
{
    cuda_resolve();
    return cuda_is_placed(address) ? refuse("cuMemPoolExportPointer")
                                   : REAL(cuMemPoolExportPointer)(data, address);
}
