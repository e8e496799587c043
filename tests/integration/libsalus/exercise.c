/*
 * A session that does everything at once, to be run under the sanitizers: blocks of all sizes on
 * two threads, frees from another thread, turns with peers, forks, a loop that is followed, and
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

void *salus_block_allocate(uint64_t size_bytes);
void salus_block_free(void *address);

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
        salus_block_free(block->address);
        block->address = NULL;
    }
    if (rand_r(seed) % 3) {
        block->size_bytes = (size_t)1 << (rand_r(seed) % 18);
        block->size_bytes += (size_t)rand_r(seed) % block->size_bytes;
        block->fill = (unsigned char)rand_r(seed);
        block->address = salus_block_allocate(block->size_bytes);
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
        /* Leave the CPU to the threads under test. */
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

/* Stands in for an interpreter: its objects are addresses. */
static char true_object, false_object;

static void add_reference(void *object)
{
    (void)object;
}

/* As the adaptor does for an entry that libsalus has not completed. */
static int finish_entry(void *answer)
{
    if (answer == &true_object)
        return 0;
    return salus_follower_state()->pending == SALUS_FOLLOWER_BOUNDARY ? salus_boundary()
                                                                      : salus_enter();
}

/* The events of an iteration. Its blocks are made outside them, where a session may look idle. */
static int run_followed(void)
{
    void *arguments[] = {blocks, &true_object, &true_object};

    if (finish_entry(salus_follow_forward_entered(NULL, arguments, 3)) < 0)
        return -1;
    damaged_count += salus_follow_forward_left(NULL, &true_object) != &true_object;
    if (finish_entry(salus_follow_step_entered(NULL, blocks)) < 0)
        return -1;
    damaged_count += salus_follow_step_left(NULL, blocks) != &true_object;
    if (finish_entry(salus_follow_loader_entered(NULL, NULL)) < 0)
        return -1;
    damaged_count += salus_follow_loader_left(NULL, NULL) != &true_object;
    damaged_count += salus_follow_backward_entered(NULL, NULL) != &false_object;
    return 0;
}

/* Records the keys of one iteration, as the adaptor does, and expects the next. */
static void prepare_follower(void)
{
    static const struct salus_interpreter interpreter = {&true_object, &false_object,
                                                         add_reference};
    struct salus_follower *follower = salus_follower_state();
    void *arguments[] = {blocks, &true_object, &true_object};

    salus_follower_interpreter(&interpreter);
    follower->thread = (uint64_t)pthread_self();
    salus_follow_loader_left(NULL, NULL);
    follower->keys[0] = follower->key;
    salus_follow_forward_entered(NULL, arguments, 3);
    follower->keys[1] = follower->key;
    salus_follow_forward_left(NULL, &true_object);
    follower->keys[2] = follower->key;
    salus_follow_step_entered(NULL, blocks);
    follower->keys[3] = follower->key;
    salus_follow_step_left(NULL, blocks);
    follower->keys[4] = follower->key;
    salus_follow_loader_entered(NULL, NULL);
    follower->keys[5] = follower->key;
    follower->count = 6;
    follower->at = 1;
    follower->report_due_ns = UINT64_MAX;
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
    prepare_follower();
    for (iteration = 0; iteration < iteration_count; iteration++) {
        int step;

        for (step = 0; step < 20; step++) {
            pthread_mutex_lock(&lock);
            replace(&blocks[rand_r(&seed) % BLOCKS_MAX], &seed);
            pthread_mutex_unlock(&lock);
        }
        if (iteration % 50 == 25)
            fork_once();
        if (run_followed() < 0)
            return 102;
    }
    __atomic_store_n(&is_over, true, __ATOMIC_SEQ_CST);
    pthread_join(thread, NULL);
    salus_leave();
    for (index = 0; index < BLOCKS_MAX; index++) {
        if (blocks[index].address) {
            damaged_count += !is_whole(&blocks[index]);
            salus_block_free(blocks[index].address);
        }
    }
    salus_counters(&figures);
    salus_report(1, 2, "rule");
    salus_bye();
    if (figures.live_bytes || figures.lane_bytes || figures.private_bytes)
        return 103;
    return damaged_count < 99 ? (int)damaged_count : 99;
}
