/*
 * A session that does everything at once, to be run under the sanitizers: blocks of all sizes on
 * two threads, frees from another thread, turns with mates, forks, a loop that is followed, and
 * contents checked throughout.
 * Prints nothing; the exit status counts damage.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "salus.h"

#define BLOCKS_MAX 64

void *salus_block_take(uint64_t size_bytes);
void salus_block_give(void *address);

struct block {
    unsigned char *address;
    size_t size_bytes;
    unsigned char fill;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block blocks[BLOCKS_MAX];
static bool is_over;
static unsigned damaged_count;

static bool is_whole(const struct block *block)
{
    size_t index;

    for (index = 0; index < block->size_bytes; index++)
        if (block->address[index] != block->fill)
            return false;
    return true;
}

static void replace(struct block *block, unsigned *seed)
{
    if (block->address) {
        damaged_count += !is_whole(block);
        salus_block_give(block->address);
        block->address = NULL;
    }
    if (rand_r(seed) % 3) {
        block->size_bytes = (size_t)1 << (rand_r(seed) % 18);
        block->size_bytes += (size_t)rand_r(seed) % block->size_bytes;
        block->fill = (unsigned char)rand_r(seed);
        block->address = salus_block_take(block->size_bytes);
        if (block->address)
            memset(block->address, block->fill, block->size_bytes);
    }
}

/* A prefetcher: its own blocks are persistent, and it frees and rewrites those of the gating thread
 * at any time. */
static void *disturb(void *argument)
{
    unsigned seed = 7;

    (void)argument;
    while (!__atomic_load_n(&is_over, __ATOMIC_SEQ_CST)) {
        struct block *block;

        pthread_mutex_lock(&lock);
        block = &blocks[rand_r(&seed) % BLOCKS_MAX];
        if (block->address && rand_r(&seed) % 2) {
            block->fill++;
            memset(block->address, block->fill, block->size_bytes);
        } else {
            replace(block, &seed);
        }
        pthread_mutex_unlock(&lock);
        /* Leave the processor to those under test. */
        usleep(200);
    }
    return NULL;
}

static void fork_once(void)
{
    pid_t child;
    int status = 0;
    unsigned seed = 11;

    pthread_mutex_lock(&lock);
    child = fork();
    if (child == 0) {
        int index;

        for (index = 0; index < BLOCKS_MAX; index++) {
            if (blocks[index].address)
                memset(blocks[index].address, ++blocks[index].fill, blocks[index].size_bytes);
            replace(&blocks[index], &seed);
        }
        _exit(damaged_count ? 1 : 0);
    }
    pthread_mutex_unlock(&lock);
    if (child > 0)
        waitpid(child, &status, 0);
    damaged_count += status != 0;
}

/* Stands in for an interpreter: its objects are addresses, and a number is its own object. */
static char yes, no;

static void keep(void *object)
{
    (void)object;
}

static long as_long(void *object)
{
    return (long)(intptr_t)object;
}

#define NUMBER(key) ((void *)(intptr_t)(key))

static void prepare_lap(void)
{
    static const struct salus_interpreter interpreter = {
        .yes = &yes, .no = &no, .keep = keep, .as_long = as_long};
    uint64_t key = (uint64_t)(uintptr_t)blocks * 8;
    uint64_t keys[] = {
        SALUS_LAP_LOADER_LEFT,   key + 7, SALUS_LAP_FORWARD_LEFT_OPEN, key + 2, key + 4,
        SALUS_LAP_LOADER_ENTERED};
    struct salus_lap *lap = salus_lap_words();

    salus_lap_interpreter(&interpreter);
    memcpy(lap->keys, keys, sizeof(keys));
    lap->count = sizeof(keys) / sizeof(*keys);
    lap->last = (int64_t)lap->count - 1;
    lap->at = 1;
    lap->thread = (uint64_t)pthread_self();
    lap->report_due_ns = UINT64_MAX;
}

/* As the adaptor does it where an event is left to it. */
static int pass_entry(void *answer)
{
    struct salus_lap *lap = salus_lap_words();
    bool is_boundary = lap->at == lap->last && !lap->is_passed;

    if (answer == &yes)
        return 0;
    lap->at = lap->at == lap->last ? 0 : lap->at + 1;
    lap->is_passed = 0;
    return is_boundary ? salus_boundary() : salus_enter();
}

/* The events of an iteration. Its blocks are made outside them, where a session may look idle. */
static int run_lap(void)
{
    void *arguments[] = {blocks, &yes, &yes};

    damaged_count += salus_lap_event(NULL, NUMBER(SALUS_LAP_BACKWARD_ENTERED)) != &no;
    if (pass_entry(salus_lap_forward(NULL, arguments, 3)) < 0)
        return -1;
    damaged_count += salus_lap_forward_left(NULL, &yes) != &yes;
    if (pass_entry(salus_lap_step(NULL, blocks)) < 0)
        return -1;
    damaged_count += salus_lap_step_left(NULL, blocks) != &yes;
    if (pass_entry(salus_lap_event(NULL, NUMBER(SALUS_LAP_LOADER_ENTERED))) < 0)
        return -1;
    damaged_count += salus_lap_event(NULL, NUMBER(SALUS_LAP_LOADER_LEFT)) != &yes;
    return 0;
}

int main(int argc, char **argv)
{
    struct salus_hello_options options = {.size_bytes = sizeof(options), .timeout_ms = 20000};
    int iteration, iteration_count = argc > 2 ? atoi(argv[2]) : 0;
    unsigned seed = (unsigned)getpid();
    struct salus_counters figures;
    pthread_t thread;
    int index;

    if (argc < 3 || salus_hello(argv[1], &options, NULL) || salus_boundary() < 0)
        return 100;
    if (pthread_create(&thread, NULL, disturb, NULL))
        return 101;
    prepare_lap();
    for (iteration = 0; iteration < iteration_count; iteration++) {
        int step;

        for (step = 0; step < 20; step++) {
            pthread_mutex_lock(&lock);
            replace(&blocks[rand_r(&seed) % BLOCKS_MAX], &seed);
            pthread_mutex_unlock(&lock);
        }
        if (iteration % 50 == 25)
            fork_once();
        if (run_lap() < 0)
            return 102;
    }
    __atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    salus_leave();
    for (index = 0; index < BLOCKS_MAX; index++) {
        if (blocks[index].address) {
            damaged_count += !is_whole(&blocks[index]);
            salus_block_give(blocks[index].address);
        }
    }
    salus_counters(&figures);
    salus_report(1, 2, "rule");
    salus_bye();
    if (figures.live_bytes || figures.lane_bytes || figures.private_bytes)
        return 103;
    return damaged_count < 99 ? (int)damaged_count : 99;
}
