#define _GNU_SOURCE
#include "cuda_work.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#include "cuda_lane.h"
#include "cuda_share.h"
#include "gate.h"
#include "page_words.h"
#include "session.h"

/*
 * A held session still launches one kernel per interval. The high class can slow it down but never
 * stop it, so its iteration ends and other sessions get the lane.
 */
#define HOLD_BOUND_NS   100000000ull
#define IN_FLIGHT_MAX   64u
#define EVENT_NO_TIMING 2u
#define FENCE_PAUSE_NS  20000
#define LIMIT_OF(word)  ((uint32_t)((word) >> 32) & 0x7fffffffu)
#define IS_HELD(word)   ((uint32_t)(word))

static uint32_t work_count; /* calls in progress */
static uint32_t is_closed;
static uint64_t launch_count;
static void *in_flight[IN_FLIGHT_MAX];
static uint32_t in_flight_next;
static pthread_mutex_t in_flight_lock = PTHREAD_MUTEX_INITIALIZER;

void work_enter(void)
{
    for (;;) {
        __atomic_add_fetch(&work_count, 1, __ATOMIC_SEQ_CST);
        if (__builtin_expect(!__atomic_load_n(&is_closed, __ATOMIC_SEQ_CST), 1))
            break;
        __atomic_sub_fetch(&work_count, 1, __ATOMIC_SEQ_CST);
        if (session.phase != PHASE_GATED || gate_enter() < 0)
            work_open();
        /* The grant may be held while survivors are still being copied back. */
        sched_yield();
    }
    gate_mark_activity();
}

void work_leave(void)
{
    __atomic_sub_fetch(&work_count, 1, __ATOMIC_SEQ_CST);
}

int work_close(void)
{
    static const struct timespec pause = {.tv_nsec = FENCE_PAUSE_NS};
    int answer;

    __atomic_store_n(&is_closed, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&work_count, __ATOMIC_SEQ_CST))
        nanosleep(&pause, NULL);
    if (cuda_push())
        return 0; /* no context, no work */
    answer = REAL(cuCtxSynchronize)();
    cuda_pop();
    return answer ? -EIO : 0;
}

void work_open(void)
{
    __atomic_store_n(&is_closed, 0, __ATOMIC_SEQ_CST);
}

uint64_t salus_cuda_launch_count(void)
{
    return __atomic_load_n(&launch_count, __ATOMIC_RELAXED);
}

/* Waits while the high class runs; salusd wakes us. */
static void wait_while_held(const uint64_t *word)
{
    const struct timespec bound = {.tv_nsec = HOLD_BOUND_NS};
    uint64_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    uint64_t end_ns;

    if (__builtin_expect(!IS_HELD(seen), 1))
        return;
    end_ns = clock_ns() + HOLD_BOUND_NS;
    while (IS_HELD(seen) && clock_ns() < end_ns) {
        futex_wait((uint32_t *)word, (uint32_t)seen, &bound);
        seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    }
}

/* Waits until fewer than `limit` kernels are in flight. Returns the slot for the new launch's
 * event. */
static void **reserve_slot(uint32_t limit)
{
    void **slot;

    if (limit > IN_FLIGHT_MAX)
        limit = IN_FLIGHT_MAX;
    pthread_mutex_lock(&in_flight_lock);
    slot = &in_flight[in_flight_next++ % limit];
    if (*slot)
        REAL(cuEventSynchronize)(*slot);
    else if (REAL(cuEventCreate)(slot, (cuda_word)EVENT_NO_TIMING))
        *slot = NULL;
    pthread_mutex_unlock(&in_flight_lock);
    return slot;
}

/* Call before a kernel. Returns the slot to record after it, or NULL. */
static void **launch_enter(cuda_word stream)
{
    const struct salus_gate_page *page = __atomic_load_n(&session.gate.page, __ATOMIC_ACQUIRE);
    void **slot = NULL;

    __atomic_add_fetch(&launch_count, 1, __ATOMIC_RELAXED);
    if (page && __builtin_expect(__atomic_load_n(&page->launch, __ATOMIC_RELAXED) != 0, 0) &&
        !capture_has(stream)) {
        wait_while_held(&page->launch);
        if (LIMIT_OF(page->launch))
            slot = reserve_slot(LIMIT_OF(page->launch));
    }
    work_enter();
    return slot;
}

static void launch_leave(void **slot, cuda_word stream)
{
    if (slot && *slot)
        REAL(cuEventRecord)(*slot, stream);
    work_leave();
}

#define WORK_BODY(name, parameters, arguments)                                                     \
    CUDA_EXPORT int name parameters                                                                \
    {                                                                                              \
        int answer;                                                                                \
                                                                                                   \
        cuda_resolve();                                                                            \
        work_enter();                                                                              \
        answer = REAL(name) arguments;                                                             \
        work_leave();                                                                              \
        return answer;                                                                             \
    }

#define P2 (cuda_word a, cuda_word b)
#define P3 (cuda_word a, cuda_word b, cuda_word c)
#define P4 (cuda_word a, cuda_word b, cuda_word c, cuda_word d)
#define P5 (cuda_word a, cuda_word b, cuda_word c, cuda_word d, cuda_word e)
#define P6 (cuda_word a, cuda_word b, cuda_word c, cuda_word d, cuda_word e, cuda_word f)
#define A1 (a)
#define A2 (a, b)
#define A3 (a, b, c)
#define A4 (a, b, c, d)
#define A5 (a, b, c, d, e)
#define A6 (a, b, c, d, e, f)
#define P1 (cuda_word a)

/* The name, and the suffix of its variant for the per-thread default stream. */
#define WORK(name, variant, count)                                                                 \
    WORK_BODY(name, P##count, A##count)                                                            \
    WORK_BODY(name##variant, P##count, A##count)

WORK(cuMemcpy, _ptds, 3)
WORK(cuMemcpyPeer, _ptds, 5)
WORK(cuMemcpyHtoD_v2, _ptds, 3)
WORK(cuMemcpyDtoH_v2, _ptds, 3)
WORK(cuMemcpyDtoD_v2, _ptds, 3)
WORK(cuMemcpy2D_v2, _ptds, 1)
WORK(cuMemcpy2DUnaligned_v2, _ptds, 1)
WORK(cuMemcpy3D_v2, _ptds, 1)
WORK(cuMemcpyAsync, _ptsz, 4)
WORK(cuMemcpyPeerAsync, _ptsz, 6)
WORK(cuMemcpyHtoDAsync_v2, _ptsz, 4)
WORK(cuMemcpyDtoHAsync_v2, _ptsz, 4)
WORK(cuMemcpyDtoDAsync_v2, _ptsz, 4)
WORK(cuMemcpy2DAsync_v2, _ptsz, 2)
WORK(cuMemcpy3DAsync_v2, _ptsz, 2)
WORK(cuMemsetD8_v2, _ptds, 3)
WORK(cuMemsetD16_v2, _ptds, 3)
WORK(cuMemsetD32_v2, _ptds, 3)
WORK(cuMemsetD2D8_v2, _ptds, 5)
WORK(cuMemsetD2D16_v2, _ptds, 5)
WORK(cuMemsetD2D32_v2, _ptds, 5)
WORK(cuMemsetD8Async, _ptsz, 4)
WORK(cuMemsetD16Async, _ptsz, 4)
WORK(cuMemsetD32Async, _ptsz, 4)
WORK(cuMemsetD2D8Async, _ptsz, 6)
WORK(cuMemsetD2D16Async, _ptsz, 6)
WORK(cuMemsetD2D32Async, _ptsz, 6)

#define LAUNCH_BODY(name, parameters, arguments, stream)                                           \
    CUDA_EXPORT int name parameters                                                                \
    {                                                                                              \
        void **slot;                                                                               \
        int answer;                                                                                \
                                                                                                   \
        cuda_resolve();                                                                            \
        slot = launch_enter(stream);                                                               \
        answer = REAL(name) arguments;                                                             \
        launch_leave(slot, stream);                                                                \
        return answer;                                                                             \
    }
#define LAUNCH(name, parameters, arguments, stream)                                                \
    LAUNCH_BODY(name, parameters, arguments, stream)                                               \
    LAUNCH_BODY(name##_ptsz, parameters, arguments, stream)

#define LAUNCH_PARAMETERS                                                                          \
    (cuda_word function, cuda_word gx, cuda_word gy, cuda_word gz, cuda_word bx, cuda_word by,     \
     cuda_word bz, cuda_word shared, cuda_word stream, cuda_word parameters, cuda_word extra)
#define LAUNCH_ARGUMENTS (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra)
#define COOPERATIVE_PARAMETERS                                                                     \
    (cuda_word function, cuda_word gx, cuda_word gy, cuda_word gz, cuda_word bx, cuda_word by,     \
     cuda_word bz, cuda_word shared, cuda_word stream, cuda_word parameters)
#define COOPERATIVE_ARGUMENTS (function, gx, gy, gz, bx, by, bz, shared, stream, parameters)
/* The stream follows seven words of 32 bits, at offset 32. */
#define CONFIG_STREAM (*(const cuda_word *)(a + 32))

LAUNCH(cuLaunchKernel, LAUNCH_PARAMETERS, LAUNCH_ARGUMENTS, stream)
LAUNCH(cuLaunchCooperativeKernel, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS, stream)
LAUNCH(cuLaunchKernelEx, P4, A4, CONFIG_STREAM)
LAUNCH(cuGraphLaunch, P2, A2, b)
