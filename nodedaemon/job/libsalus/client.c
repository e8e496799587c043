#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "gate.h"
#include "lending.h"
#include "receive.h"
#include "session.h"

#define TIMEOUT_MS_DEFAULT 2000
#define NOTICED_MS         60000 /* salusd repeats its NOTICE every 20 s */
#define SEND_TIMEOUT_S     1
#define BACKOFF_MS_MIN     50
#define BACKOFF_MS_MAX     5000

static struct {
    pthread_mutex_t send_lock;
    pthread_mutex_t answer_lock;
    pthread_cond_t answered;
    struct sockaddr_un address;
    uint32_t framework;
    uint64_t model_hash, input_hash;
    int fd;
    int stop_fd;
    pthread_t thread;
    bool is_listening;
    uint32_t serial;        /* of the last OVERRUN */
    uint32_t serial_answer; /* of the last answer */
    bool is_allowed;
} client = {
    .send_lock = PTHREAD_MUTEX_INITIALIZER,
    .answer_lock = PTHREAD_MUTEX_INITIALIZER,
    .fd = -1,
    .stop_fd = -1,
};

bool client_is_connected(void)
{
    return __atomic_load_n(&client.fd, __ATOMIC_RELAXED) >= 0;
}

static void fill_header(void *frame, enum salus_message_kind kind, uint32_t size_bytes)
{
    struct salus_header header = {
        .magic = SALUS_MAGIC,
        .version = SALUS_WIRE_VERSION,
        .kind = (uint16_t)kind,
        .size = size_bytes,
    };

    memcpy(frame, &header, sizeof(header));
}

int client_send(void *frame, enum salus_message_kind kind, uint32_t size_bytes)
{
    int error = 0;

    fill_header(frame, kind, size_bytes);
    pthread_mutex_lock(&client.send_lock);
    if (client.fd < 0) {
        error = -ENOTCONN;
    } else if (send(client.fd, frame, size_bytes, MSG_NOSIGNAL) < 0) {
        error = -errno;
        /* A lost frame breaks the protocol. Close: the receiver sees the end and reconnects. */
        shutdown(client.fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&client.send_lock);
    return error;
}

void client_send_fault(const char *text, bool is_off)
{
    struct salus_fault frame = {.is_off = is_off};
    int fd = __atomic_load_n(&client.fd, __ATOMIC_RELAXED);
    int saved_errno = errno;
    size_t length = strnlen(text, sizeof(frame.text) - 1);

    fill_header(&frame, SALUS_FAULT, sizeof(frame));
    memcpy(frame.text, text, length);
    if (fd >= 0 && send(fd, &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        errno = saved_errno;
}

static int ask(enum salus_overrun_kind what, uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    struct salus_overrun frame = {
        .persistent_bytes = persistent_bytes,
        .ephemeral_bytes = ephemeral_bytes,
        .what = what,
    };

    frame.serial = ++client.serial;
    return client_send(&frame, SALUS_OVERRUN, sizeof(frame));
}

void client_report_overrun(uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    pthread_mutex_lock(&client.answer_lock);
    ask(SALUS_OVERRUN_EPHEMERAL, persistent_bytes, ephemeral_bytes);
    pthread_mutex_unlock(&client.answer_lock);
}

int client_ask(enum salus_overrun_kind what, uint64_t persistent_bytes, uint64_t ephemeral_bytes)
{
    struct timespec deadline;
    uint32_t serial;
    int error;

    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += (time_t)(ANSWER_DEADLINE_NS / 1000000000ull);
    pthread_mutex_lock(&client.answer_lock);
    error = ask(what, persistent_bytes, ephemeral_bytes);
    serial = client.serial;
    while (!error && (int32_t)(client.serial_answer - serial) < 0) {
        error = client_is_connected()
                    ? -pthread_cond_timedwait(&client.answered, &client.answer_lock, &deadline)
                    : -ENOTCONN;
        if (error == -EINTR)
            error = 0;
    }
    if (!error && !client.is_allowed)
        error = -EDQUOT;
    pthread_mutex_unlock(&client.answer_lock);
    return error ? -EDQUOT : 0;
}

void receive_answer(uint32_t serial, const struct salus_allow *allow)
{
    if (allow)
        lending_set_caps(allow->persistent_bytes, allow->ephemeral_bytes);
    pthread_mutex_lock(&client.answer_lock);
    client.serial_answer = serial;
    client.is_allowed = allow != NULL;
    pthread_cond_broadcast(&client.answered);
    pthread_mutex_unlock(&client.answer_lock);
}

static int open_socket(void)
{
    const struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) ||
        connect(fd, (const struct sockaddr *)&client.address, sizeof(client.address))) {
        int error = -errno;

        close(fd);
        return error;
    }
    return fd;
}

static int send_hello(int fd, struct salus_hello *hello, const int *fds, uint32_t fd_count)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SALUS_FDS_MAX)];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec part = {.iov_base = hello, .iov_len = sizeof(*hello)};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};

    fill_header(hello, SALUS_HELLO, sizeof(*hello));
    if (fd_count) {
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        CMSG_FIRSTHDR(&message)->cmsg_level = SOL_SOCKET;
        CMSG_FIRSTHDR(&message)->cmsg_type = SCM_RIGHTS;
        CMSG_FIRSTHDR(&message)->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), fds, sizeof(int) * fd_count);
    }
    return sendmsg(fd, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/*
 * Waits for the answer to HELLO. Returns 0 with WELCOME in `packet`, -EACCES after REJECT, or
 * -errno. A NOTICE before it means that salusd is not ready yet, and extends the time-out.
 */
static int await_welcome(int fd, uint32_t timeout_ms, struct packet *packet)
{
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int count;

    for (;;) {
        do {
            count = poll(&ready, 1, (int)timeout_ms);
        } while (count < 0 && errno == EINTR);
        if (count <= 0)
            return count ? -errno : -ETIMEDOUT;
        count = packet_read(fd, packet);
        if (count <= 0)
            return count ? count : -ECONNRESET;
        if (packet->frame.header.kind != SALUS_NOTICE)
            break;
        packet_close(packet);
        timeout_ms = timeout_ms > NOTICED_MS ? timeout_ms : NOTICED_MS;
    }
    if (packet->frame.header.kind == SALUS_WELCOME)
        return 0;
    packet_close(packet);
    if (packet->frame.header.kind != SALUS_REJECT)
        return -EPROTO;
    session_set_reason(packet->frame.reject.text);
    return -EACCES;
}

/* Opens a connection, sends HELLO and reads the answer. Returns the socket, or -errno. */
static int open_session(struct salus_hello *hello, const int *fds, uint32_t fd_count,
                        uint32_t timeout_ms, struct packet *packet)
{
    int fd = open_socket(), error;

    if (fd < 0)
        return fd;
    error = send_hello(fd, hello, fds, fd_count);
    if (!error)
        error = await_welcome(fd, timeout_ms, packet);
    if (!error)
        return fd;
    close(fd);
    return error;
}

static int adopt_pages(struct packet *packet)
{
    const struct salus_welcome *welcome = &packet->frame.welcome;
    struct gate *gate = &session.gate;
    int prot = PROT_READ | PROT_WRITE;

    if (packet->fd_count != 2 || welcome->slot >= SALUS_SLOT_COUNT)
        return -EPROTO;
    gate->page = mmap(NULL, SALUS_PAGE_BYTES, prot, MAP_SHARED, packet->fds[0], 0);
    gate->turn = mmap(NULL, SALUS_PAGE_BYTES, prot, MAP_SHARED, packet->fds[1], 0);
    if (gate->page == MAP_FAILED || gate->turn == MAP_FAILED ||
        madvise(gate->page, SALUS_PAGE_BYTES, MADV_DONTFORK) ||
        madvise(gate->turn, SALUS_PAGE_BYTES, MADV_DONTFORK))
        return -errno;
    if (gate->page->magic != SALUS_MAGIC || gate->turn->magic != SALUS_MAGIC ||
        gate->page->version != SALUS_PAGE_VERSION)
        return -EPROTO;
    gate->slot = &gate->turn->slots[welcome->slot];
    gate->peer_slot = SALUS_SLOT_COUNT;
    gate->page_fd = packet->fds[0];
    gate->turn_fd = packet->fds[1];
    packet->fd_count = 0;
    return 0;
}

int client_hello(const char *path, const struct salus_hello_options *options,
                 struct salus_welcome *welcome)
{
    struct salus_hello hello = {
        .pid = (uint32_t)getpid(),
        .framework = options->framework,
        .model_hash = options->model_hash,
        .input_hash = options->input_hash,
        .declared_persistent_bytes = options->declared_persistent_bytes,
        .declared_ephemeral_bytes = options->declared_ephemeral_bytes,
        .flags =
            (options->flags & SALUS_HELLO_UNGATED) | (session.is_child ? SALUS_HELLO_FORKED : 0),
    };
    uint32_t timeout_ms = options->timeout_ms ? options->timeout_ms : TIMEOUT_MS_DEFAULT;
    struct packet packet = {0};
    int fd, error;

    if (strlen(path) >= sizeof(client.address.sun_path))
        return -ENAMETOOLONG;
    client.address = (struct sockaddr_un){.sun_family = AF_UNIX};
    strcpy(client.address.sun_path, path);
    client.framework = options->framework;
    client.model_hash = options->model_hash;
    client.input_hash = options->input_hash;
    memcpy(hello.device, options->device, sizeof(hello.device) - 1);
    fd = open_session(&hello, NULL, 0, timeout_ms, &packet);
    if (fd < 0)
        return fd;
    error = adopt_pages(&packet);
    packet_close(&packet);
    if (error) {
        close(fd);
        return error;
    }
    *welcome = packet.frame.welcome;
    __atomic_store_n(&client.fd, fd, __ATOMIC_SEQ_CST);
    return 0;
}

static void drop_socket(void)
{
    pthread_mutex_lock(&client.send_lock);
    if (client.fd >= 0)
        close(client.fd);
    __atomic_store_n(&client.fd, -1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&client.send_lock);
    /* A thread that waits for ALLOW or DENY will get no answer. */
    pthread_mutex_lock(&client.answer_lock);
    pthread_cond_broadcast(&client.answered);
    pthread_mutex_unlock(&client.answer_lock);
}

/* 0: resumed; -EACCES: salusd does not know the session; otherwise try again later. */
static int resume(void)
{
    struct salus_hello hello = {
        .session = session.session,
        .model_hash = client.model_hash,
        .input_hash = client.input_hash,
        .pid = (uint32_t)getpid(),
        .flags = SALUS_HELLO_RESUME,
        .framework = client.framework,
    };
    int fds[SALUS_FDS_MAX] = {session.gate.page_fd, session.gate.turn_fd, -1};
    uint64_t state = __atomic_load_n(&session.gate.page->state, __ATOMIC_SEQ_CST);
    struct packet packet = {0};
    int fd;

    if (state_of(state) == SALUS_STATE_RUNNING || state_of(state) == SALUS_STATE_IDLE)
        hello.grant_epoch = state_epoch(state);
    pthread_mutex_lock(&session.memory_lock);
    if (session.lane && session.lane->fd >= 0) {
        hello.lane = session.lane->id;
        hello.lane_epoch = session.lane->epoch;
        fds[2] = session.lane->fd;
    }
    pthread_mutex_unlock(&session.memory_lock);
    fd = open_session(&hello, fds, fds[2] < 0 ? 2 : 3, TIMEOUT_MS_DEFAULT, &packet);
    if (fd < 0)
        return fd;
    packet_close(&packet);
    pthread_mutex_lock(&client.send_lock);
    __atomic_store_n(&client.fd, fd, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&client.send_lock);
    session.may_relay = packet.frame.welcome.flags & SALUS_WELCOME_RELAY;
    lending_set_caps(packet.frame.welcome.persistent_bytes, packet.frame.welcome.ephemeral_bytes);
    gate_send_want();
    return 0;
}

/* True if the receiver must end. */
static int wait_stop(int timeout_ms)
{
    struct pollfd stop = {.fd = client.stop_fd, .events = POLLIN};

    return poll(&stop, 1, timeout_ms) > 0;
}

static int reconnect(void)
{
    int wait_ms = BACKOFF_MS_MIN;
    int error;

    drop_socket();
    for (;;) {
        if (wait_stop(wait_ms))
            return -ECANCELED;
        gate_rewake();
        error = resume();
        if (!error || error == -EACCES)
            return error;
        wait_ms = wait_ms * 2 < BACKOFF_MS_MAX ? wait_ms * 2 : BACKOFF_MS_MAX;
    }
}

static void *listen_main(void *argument)
{
    (void)argument;
    for (;;) {
        int answer = receive_until_end(client.fd, client.stop_fd);

        if (answer == -ECANCELED)
            break;
        answer = reconnect();
        if (answer == -ECANCELED)
            break;
        if (answer == -EACCES) {
            session_detach();
            break;
        }
    }
    return NULL;
}

int client_listen(void)
{
    pthread_condattr_t attributes;
    sigset_t all, before;
    int error;

    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&client.answered, &attributes);
    pthread_condattr_destroy(&attributes);
    client.stop_fd = eventfd(0, EFD_CLOEXEC);
    if (client.stop_fd < 0)
        return -errno;
    /* The job's signal handlers must never run on our thread. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = -pthread_create(&client.thread, NULL, listen_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return error;
    client.is_listening = true;
    pthread_setname_np(client.thread, "salus-receive");
    return 0;
}

void client_close(void)
{
    struct salus_bye frame = {.iteration_count = session.gate.iteration_count};
    uint64_t one = 1;

    client_send(&frame, SALUS_BYE, sizeof(frame));
    if (client.is_listening && write(client.stop_fd, &one, sizeof(one)) == sizeof(one))
        pthread_join(client.thread, NULL);
    client.is_listening = false;
    drop_socket();
    if (client.stop_fd >= 0)
        close(client.stop_fd);
    client.stop_fd = -1;
}

void client_forget(void)
{
    pthread_mutex_init(&client.send_lock, NULL);
    pthread_mutex_init(&client.answer_lock, NULL);
    if (client.fd >= 0)
        close(client.fd);
    if (client.stop_fd >= 0)
        close(client.stop_fd);
    client.fd = -1;
    client.stop_fd = -1;
    client.is_listening = false;
}
