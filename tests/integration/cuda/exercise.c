/*
 * Uses the whole CUDA part of libsalus in a loop that checks its data: lane and own blocks, pools,
 * lists of live blocks, capture and graphs, a second thread that allocates. Linked with sanitizers
 * against the library in the driver's place. Prints nothing if all is well.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_lane.h"
#include "salus.h"

#define MIB        (1024u * 1024u)
#define WORDS      1024u
#define BLOCKS     6u
#define MULTIPLIER 1664525u

typedef uint64_t address;
typedef void *handle;

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(handle *context, int device);
int cuCtxSetCurrent(handle context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(address *block, size_t bytes);
int cuMemFree_v2(address block);
int cuMemAllocAsync(address *block, size_t bytes, handle stream);
int cuMemFreeAsync(address block, handle stream);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
int cuMemGetAddressRange_v2(address *start, size_t *bytes, address block);
int cuMemsetD32Async(address block, unsigned int value, size_t count, handle stream);
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, handle stream);
int cuStreamCreate(handle *stream, unsigned int flags);
int cuStreamSynchronize(handle stream);
int cuStreamBeginCapture_v2(handle stream, int mode);
int cuStreamEndCapture(handle stream, handle *graph);
int cuGraphInstantiateWithFlags(handle *run, handle graph, unsigned long long flags);
int cuGraphLaunch(handle run, handle stream);
int cuGraphExecDestroy(handle run);
int cuGraphDestroy(handle graph);
int cuModuleLoadData(handle *module, const void *image);
int cuModuleGetFunction(handle *function, handle module, const char *name);
int cuLaunchKernel(handle function, unsigned int gx, unsigned int gy, unsigned int gz,
                   unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                   handle stream, void **parameters, void **extra);

static const char image[] =
    "// salus-kernel: mix ns=20000 sm=100 bandwidth=10 effect=mix\n"
    ".visible .entry mix(.param .u64 p, .param .u32 n, .param .u32 v) { ret; }\n";
static handle context, stream, function;
static atomic_bool is_over;

#define OK(call)                                                                                   \
    do {                                                                                           \
        int answer = (call);                                                                       \
        if (answer) {                                                                              \
            fprintf(stderr, "exercise: %s: %d\n", #call, answer);                                  \
            exit(3);                                                                               \
        }                                                                                          \
    } while (0)

struct block {
    address at;
    uint32_t word;
};

static void fill(struct block *block, uint32_t word)
{
    block->word = word;
    OK(cuMemsetD32Async(block->at, word, WORDS, stream));
}

static void mix(struct block *block, uint32_t value)
{
    uint32_t count = WORDS;
    void *parameters[] = {&block->at, &count, &value};

    OK(cuLaunchKernel(function, 4, 1, 1, 256, 1, 1, 0, stream, parameters, NULL));
    block->word = block->word * MULTIPLIER + value;
}

static void check(const struct block *block)
{
    static uint32_t words[WORDS];

    OK(cuMemcpyDtoHAsync_v2(words, block->at, sizeof(words), stream));
    OK(cuStreamSynchronize(stream));
    for (uint32_t i = 0; i < WORDS; i++)
        if (words[i] != block->word) {
            fprintf(stderr, "exercise: wrong data\n");
            exit(4);
        }
}

/* A free waits for the device, which would invalidate a capture of another thread, as on a GPU. */
static pthread_mutex_t capturing = PTHREAD_MUTEX_INITIALIZER;

/* The thread beside the gating thread: its blocks are the job's own memory. */
static void *allocate_beside(void *unused)
{
    (void)unused;
    OK(cuCtxSetCurrent(context));
    while (!is_over) {
        address block;
        size_t free_bytes, total_bytes;

        pthread_mutex_lock(&capturing);
        if (!cuMemAlloc_v2(&block, 64 * 1024))
            OK(cuMemFree_v2(block));
        pthread_mutex_unlock(&capturing);
        OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    }
    return NULL;
}

static void list_live(const struct block *survivor)
{
    struct salus_cuda_range segment = {survivor->at, 4 * MIB}, block = {survivor->at, WORDS * 4};

    if (salus_cuda_will_yield())
        salus_cuda_live(&segment, 1, &block, 1);
}

static void replay(struct block *block, uint32_t iteration)
{
    handle graph, run;
    uint32_t word = block->word;

    pthread_mutex_lock(&capturing);
    OK(cuStreamBeginCapture_v2(stream, 0));
    mix(block, iteration);
    salus_boundary();
    OK(cuStreamEndCapture(stream, &graph));
    pthread_mutex_unlock(&capturing);
    block->word = word;
    OK(cuGraphInstantiateWithFlags(&run, graph, 0));
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(run, stream));
        block->word = block->word * MULTIPLIER + iteration;
    }
    check(block);
    OK(cuGraphExecDestroy(run));
    OK(cuGraphDestroy(graph));
}

static void iterate(struct block *survivor, uint32_t iteration)
{
    struct block blocks[BLOCKS];
    address start;
    size_t bytes;

    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (i % 3 == 0)
            salus_persist_begin();
        OK(i % 2 ? cuMemAllocAsync(&blocks[i].at, (i + 1) * 512 * 1024, stream)
                 : cuMemAlloc_v2(&blocks[i].at, (i + 1) * 512 * 1024));
        if (i % 3 == 0)
            salus_persist_end();
        fill(&blocks[i], iteration * 31 + i);
        mix(&blocks[i], i);
        OK(cuMemGetAddressRange_v2(&start, &bytes, blocks[i].at));
    }
    mix(survivor, iteration);
    check(survivor);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        check(&blocks[i]);
        OK(i % 2 ? cuMemFreeAsync(blocks[i].at, stream) : cuMemFree_v2(blocks[i].at));
    }
    if (iteration % 8 == 0)
        replay(survivor, iteration);
}

int main(int count, char **arguments)
{
    struct salus_hello_options options = {.size_bytes = sizeof(options)};
    struct salus_counters counters;
    struct block survivor;
    pthread_t beside;
    handle module;

    if (count != 3)
        return 2;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&stream, 1));
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "mix"));
    OK(salus_hello(arguments[1], &options, NULL));
    OK(pthread_create(&beside, NULL, allocate_beside, NULL));
    salus_boundary();
    OK(cuMemAlloc_v2(&survivor.at, 4 * MIB));
    fill(&survivor, 9);
    for (uint32_t i = 1; i <= (uint32_t)atoi(arguments[2]); i++) {
        list_live(&survivor);
        if (salus_boundary() < 0)
            return 5;
        iterate(&survivor, i);
        if (i % 10 == 0)
            salus_leave();
    }
    is_over = true;
    pthread_join(beside, NULL);
    salus_counters(&counters);
    OK(salus_report(1, 1, "explicit"));
    OK(salus_bye());
    check(&survivor);
    OK(cuMemFree_v2(survivor.at));
    OK(cuCtxSynchronize());
    return 0;
}
