/*
 * Hand-over of a lane between two processes through libsalus, and a bare futex ping-pong, on the
 * same CPUs.
 *
 * usage: handover MODE ROUNDS CPU_A CPU_B BYTES
 *
 * MODE is boundary, contested, futex, peers, told, notice, trap or domain. Prints nanoseconds: the
 * mean of a boundary, or the median of a hand-over, from the boundary of one process to the start
 * of the other's iteration. Each leaves BYTES of survivors. The parent stands in for salusd: it
 * answers HELLO, reads every RETURN and STARTED, and in mode `domain` has the lane unmapped and
 * created again. In mode `peers` the sessions do salusd's stores themselves before their boundary.
 * Each iteration allocates a block, as real ones do. In mode `told` each peer reports to salusd
 * before it sleeps. Mode `notice` measures the first block of an iteration whose session reports
 * in its predecessor's place.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon_pages.h"

#include "../../wire/salus_wire.h"

#define LANE_BYTES  (64ull << 20)
#define WARM_ROUNDS 200
#define SAMPLES_MAX 100000
/* An iteration is never empty: salusd has time to read one RETURN before the next. */
#define ITERATION_NS 200000

void *salus_block_allocate(uint64_t size_bytes);
void salus_block_free(void *address);

struct shared {
    uint64_t epoch;
    uint64_t elapsed_ns; /* of all boundaries */
    uint64_t ready_count;
    uint64_t left_ns; /* when the holder came to its boundary */
    uint32_t words[2];
    uint32_t sample_count;
    uint64_t samples_ns[SAMPLES_MAX];
};

static struct shared *shared;

static struct salus_gate_page *gates[2];
static struct salus_turn_page *turn;
static int gate_fds[2], turn_fd, lane_fd = -1;
static uint64_t lane_id, lane_epoch;
static int sockets[2] = {-1, -1};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static void fail(const char *what)
{
    fprintf(stderr, "handover: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void pin(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set))
        fail("pin");
}

/* If permitted, both sides of the comparison run with real-time priority. */
static void go_ahead(void)
{
    const struct sched_param first = {.sched_priority = 1};

    sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &first);
}

static void *new_page(int *fd)
{
    void *page;

    *fd = memfd_create("page", MFD_CLOEXEC);
    if (*fd < 0 || ftruncate(*fd, SALUS_PAGE_BYTES))
        fail("memfd");
    page = mmap(NULL, SALUS_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (page == MAP_FAILED)
        fail("mmap");
    return page;
}

static void new_lane(void)
{
    if (lane_fd >= 0)
        close(lane_fd);
    lane_fd = memfd_create("lane", MFD_CLOEXEC);
    if (lane_fd < 0 || ftruncate(lane_fd, LANE_BYTES))
        fail("lane");
    lane_id++;
    lane_epoch = ++shared->epoch;
}

static void send_frame(int fd, void *frame, uint16_t kind, uint32_t size, const int *fds, int count)
{
    struct salus_header header = {SALUS_MAGIC, SALUS_WIRE_VERSION, kind, size, 0};
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SALUS_FDS_MAX)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {frame, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    memcpy(frame, &header, sizeof(header));
    if (count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)count);
        CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
        CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
        CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)count);
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), fds, sizeof(int) * (size_t)count);
    }
    if (sendmsg(fd, &message, MSG_NOSIGNAL) < 0)
        fail("send");
}

static void send_lane(int index)
{
    struct salus_map frame = {.lane = lane_id,
                              .epoch = lane_epoch,
                              .lane_bytes = LANE_BYTES,
                              .ephemeral_bytes = LANE_BYTES};

    send_frame(sockets[index], &frame, SALUS_MAP, sizeof(frame), &lane_fd, 1);
}

static void sample(int round, uint64_t value_ns)
{
    if (round >= WARM_ROUNDS && shared->sample_count < SAMPLES_MAX)
        shared->samples_ns[shared->sample_count++] = value_ns;
}

static void work(uint64_t begin_ns)
{
    while (now_ns() < begin_ns + ITERATION_NS)
        ;
}

static void run_futex(int index, int rounds)
{
    uint32_t *mine = &shared->words[index], *other = &shared->words[1 - index];
    int round;

    for (round = 0; round < rounds + WARM_ROUNDS; round++) {
        uint64_t begin_ns;

        if (index || round) {
            while (!__atomic_load_n(mine, __ATOMIC_SEQ_CST))
                futex_wait(mine, 0, NULL);
            __atomic_store_n(mine, 0, __ATOMIC_SEQ_CST);
        }
        begin_ns = now_ns();
        sample(round, begin_ns - shared->left_ns);
        work(begin_ns);
        shared->left_ns = now_ns();
        __atomic_store_n(other, 1, __ATOMIC_SEQ_CST);
        futex_wake(other);
    }
}

/* What salusd does for the next hand-over: arm the peer, then name it. */
static void arm_peer(int index)
{
    uint64_t epoch = ++shared->epoch;

    salus_page_arm(gates[1 - index], lane_id, lane_epoch, epoch, 1);
    salus_page_name(gates[index], (uint32_t)(1 - index), epoch);
}

static void run_session(int index, int rounds, const char *path, const char *mode, uint64_t bytes)
{
    bool is_domain = !strcmp(mode, "domain"), is_notice = !strcmp(mode, "notice");
    struct salus_hello_options options = {.size_bytes = sizeof(options), .timeout_ms = 10000};
    void *survivor = NULL;
    int round;

    if (salus_hello(path, &options, NULL))
        fail("hello");
    for (round = 0; round < rounds + WARM_ROUNDS; round++) {
        uint64_t begin_ns, block_ns;

        if (salus_boundary() < 0)
            fail("boundary");
        begin_ns = now_ns();
        salus_block_free(salus_block_allocate(4096));
        block_ns = now_ns() - begin_ns;
        sample(round, is_notice ? block_ns : begin_ns - shared->left_ns);
        work(begin_ns);
        if (!is_domain)
            arm_peer(index);
        if (bytes) {
            /* Like a hidden state: the new block is allocated before the old one is freed, so it
             * has another address. */
            void *last = survivor;

            survivor = salus_block_allocate(bytes);
            memset(survivor, index + 1, bytes);
            if (last)
                salus_block_free(last);
        }
        shared->left_ns = now_ns();
    }
    salus_leave();
    __atomic_add_fetch(&shared->ready_count, 1, __ATOMIC_SEQ_CST);
    pause();
}

static int forbid_calls(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof(rules) / sizeof(rules[0]), rules};

    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0);
}

/*
 * Boundaries under a lease that nobody contests. The seccomp filter would kill the process at any
 * system call but exit, before it can report.
 */
static void run_boundary(int rounds, const char *path)
{
    struct salus_hello_options options = {.size_bytes = sizeof(options), .timeout_ms = 10000};
    uint64_t since_ns;
    int round;

    if (salus_hello(path, &options, NULL) || salus_boundary() != 1)
        fail("hello");
    for (round = 0; round < WARM_ROUNDS; round++)
        salus_boundary();
    if (forbid_calls())
        fail("seccomp");
    since_ns = now_ns();
    for (round = 0; round < rounds; round++)
        salus_boundary();
    shared->elapsed_ns = now_ns() - since_ns;
    __atomic_add_fetch(&shared->ready_count, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_exit, 0);
}

static int accept_session(int listener, int index, uint32_t flags)
{
    struct salus_welcome welcome = {
        .session = (uint64_t)index + 1,
        .device_bytes = LANE_BYTES,
        .ephemeral_bytes = LANE_BYTES,
        .flags = flags,
        .slot = (uint32_t)index,
    };
    int fds[2] = {gate_fds[index], turn_fd};
    char frame[SALUS_FRAME_BYTES_MAX];
    int fd = accept(listener, NULL, NULL);

    if (fd < 0 || recv(fd, frame, sizeof(frame), 0) <= 0)
        fail("accept");
    sockets[index] = fd;
    send_frame(fd, &welcome, SALUS_WELCOME, sizeof(welcome), fds, 2);
    return fd;
}

static void start(int index, uint32_t limit_count)
{
    uint64_t epoch = ++shared->epoch;

    salus_page_grant(gates[index], turn, (uint32_t)index, lane_id, lane_epoch, epoch, limit_count);
}

/* A change of domain: one session unmaps the lane, it is created again, and the other maps it and
 * gets a grant. */
static void serve_domain(int index)
{
    char frame[SALUS_FRAME_BYTES_MAX];
    struct salus_header header;

    for (;;) {
        struct salus_unmap unmap = {.lane = lane_id, .epoch = lane_epoch};

        do {
            if (recv(sockets[index], frame, sizeof(frame), 0) <= 0)
                return;
            memcpy(&header, frame, sizeof(header));
        } while (header.kind != SALUS_RETURN);
        send_frame(sockets[index], &unmap, SALUS_UNMAP, sizeof(unmap), NULL, 0);
        do {
            if (recv(sockets[index], frame, sizeof(frame), 0) <= 0)
                return;
            memcpy(&header, frame, sizeof(header));
        } while (header.kind != SALUS_UNMAPPED);
        if (__atomic_load_n(&shared->ready_count, __ATOMIC_SEQ_CST))
            return;
        index = 1 - index;
        new_lane();
        send_lane(index);
        start(index, 1);
    }
}

static void serve_peers(int session_count)
{
    struct pollfd ready[2] = {{sockets[0], POLLIN, 0}, {sockets[1], POLLIN, 0}};
    char frame[SALUS_FRAME_BYTES_MAX];

    while (!__atomic_load_n(&shared->ready_count, __ATOMIC_SEQ_CST)) {
        int index;

        if (poll(ready, (nfds_t)session_count, 100) < 0)
            return;
        for (index = 0; index < session_count; index++)
            if (ready[index].revents && recv(sockets[index], frame, sizeof(frame), 0) <= 0)
                return;
    }
}

static int compare_ns(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

static double median_ns(void)
{
    qsort(shared->samples_ns, shared->sample_count, sizeof(uint64_t), compare_ns);
    return (double)shared->samples_ns[shared->sample_count / 2];
}

/* Creates the pages, the lane and the socket on which sessions say hello. */
static int prepare(struct sockaddr_un *address)
{
    int index, listener;

    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    turn = new_page(&turn_fd);
    salus_page_init_turn(turn);
    for (index = 0; index < 2; index++) {
        gates[index] = new_page(&gate_fds[index]);
        salus_page_init_gate(gates[index], (uint64_t)index + 1);
    }
    new_lane();
    snprintf(address->sun_path, sizeof(address->sun_path), "/tmp/salus-handover-%d", (int)getpid());
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)address, sizeof(*address)) ||
        listen(listener, 2))
        fail("listen");
    return listener;
}

int main(int argc, char **argv)
{
    const char *mode = argc == 6 ? argv[1] : "";
    bool is_futex = !strcmp(mode, "futex"), is_domain = !strcmp(mode, "domain");
    uint32_t flags = (strcmp(mode, "trap") ? 0 : SALUS_WELCOME_TRAP) |
                     (strcmp(mode, "told") ? SALUS_WELCOME_RELAY : 0);
    bool is_contested = !strcmp(mode, "contested");
    bool is_boundary = is_contested || !strcmp(mode, "boundary");
    int session_count = is_boundary ? 1 : 2;
    int rounds = argc == 6 ? atoi(argv[2]) : 0;
    uint64_t bytes = argc == 6 ? strtoull(argv[5], NULL, 10) : 0;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    pid_t children[2];
    int index, listener;

    if (rounds <= 0) {
        fprintf(stderr,
                "usage: handover boundary|contested|futex|peers|told|notice|trap|domain ROUNDS "
                "CPU_A CPU_B BYTES\n");
        return 2;
    }
    listener = prepare(&address);
    for (index = 0; index < session_count; index++) {
        children[index] = fork();
        if (!children[index]) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pin(atoi(argv[3 + index]));
            go_ahead();
            if (is_boundary)
                run_boundary(rounds, address.sun_path);
            else if (is_futex)
                run_futex(index, rounds);
            else
                run_session(index, rounds, address.sun_path, mode, bytes);
            _exit(0);
        }
        if (!is_futex)
            accept_session(listener, index, flags);
    }
    unlink(address.sun_path);
    /* salusd has a CPU of its own if one is left. */
    if (atoi(argv[3]) == atoi(argv[4]) && sysconf(_SC_NPROCESSORS_ONLN) > 1)
        pin(atoi(argv[3]) ? 0 : 1);
    if (!is_futex) {
        send_lane(0);
        if (!is_domain && !is_boundary)
            send_lane(1);
        start(0, is_contested ? (uint32_t)rounds / 2 : is_boundary ? SALUS_UNLIMITED : 1);
        is_domain ? serve_domain(0) : serve_peers(session_count);
        for (index = 0; index < session_count; index++)
            kill(children[index], SIGKILL);
    }
    for (index = 0; index < session_count; index++)
        waitpid(children[index], NULL, 0);
    if (is_boundary)
        printf("%.1f\n", (double)shared->elapsed_ns / rounds);
    else
        printf("%.1f\n", median_ns());
    return shared->elapsed_ns || shared->sample_count || is_contested ? 0 : 1;
}
