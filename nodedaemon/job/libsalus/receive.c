#define _GNU_SOURCE
#include "receive.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gate.h"
#include "idle.h"
#include "lending.h"
#include "session.h"

#define IDLE_CHECKS 4 /* checks per idle_release_ns */

/* Sizes of the frames that a session may receive. */
static const uint32_t frame_bytes[] = {
    [SALUS_WELCOME] = sizeof(struct salus_welcome), [SALUS_REJECT] = sizeof(struct salus_reject),
    [SALUS_MAP] = sizeof(struct salus_map),         [SALUS_UNMAP] = sizeof(struct salus_unmap),
    [SALUS_ALLOW] = sizeof(struct salus_allow),     [SALUS_DENY] = sizeof(struct salus_deny),
    [SALUS_NOTICE] = sizeof(struct salus_notice),   [SALUS_BYE] = sizeof(struct salus_bye),
};

static uint32_t size_of_kind(uint16_t kind)
{
    return kind < sizeof(frame_bytes) / sizeof(*frame_bytes) ? frame_bytes[kind] : 0;
}

void packet_close(struct packet *packet)
{
    while (packet->fd_count)
        close(packet->fds[--packet->fd_count]);
}

static void read_descriptors(struct msghdr *message, struct packet *packet)
{
    struct cmsghdr *part;

    for (part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        packet->fd_count = (uint32_t)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(packet->fds, CMSG_DATA(part), packet->fd_count * sizeof(int));
    }
}

int packet_read(int fd, struct packet *packet)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int) * SALUS_FDS_MAX)];
        struct cmsghdr align;
    } control;
    struct iovec part = {.iov_base = &packet->frame, .iov_len = sizeof(packet->frame)};
    struct msghdr message = {
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
        .msg_controllen = sizeof(control.bytes),
    };
    const struct salus_header *header = &packet->frame.header;
    ssize_t size_bytes;

    memset(packet, 0, sizeof(*packet));
    do {
        size_bytes = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    } while (size_bytes < 0 && errno == EINTR);
    if (size_bytes < 0)
        return -errno;
    read_descriptors(&message, packet);
    if (!size_bytes)
        return 0;
    if ((size_t)size_bytes < sizeof(*header) || header->magic != SALUS_MAGIC ||
        header->version != SALUS_WIRE_VERSION || header->size != (uint32_t)size_bytes ||
        header->size != size_of_kind(header->kind) ||
        message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) {
        packet_close(packet);
        return -EPROTO;
    }
    return 1;
}

static void serve(struct packet *packet)
{
    const struct salus_map *lane = &packet->frame.lane;

    switch (packet->frame.header.kind) {
    case SALUS_MAP:
        if (packet->fd_count == 1) {
            packet->fd_count = 0;
            lending_map(packet->fds[0], lane->lane, lane->epoch, lane->lane_bytes,
                        lane->ephemeral_bytes);
        }
        break;
    case SALUS_UNMAP:
        lending_unmap(packet->frame.unmap.lane, packet->frame.unmap.epoch);
        break;
    case SALUS_ALLOW:
        receive_answer(packet->frame.allow.serial, &packet->frame.allow);
        break;
    case SALUS_DENY:
        session_set_reason(packet->frame.deny.text);
        receive_answer(packet->frame.deny.serial, NULL);
        break;
    case SALUS_NOTICE:
        session_set_reason(packet->frame.notice.text);
        break;
    default:
        break;
    }
    packet_close(packet);
}

/* Records when activity last changed; true if the session has been idle for long enough. */
static bool is_session_idle(uint64_t *activity, uint64_t *since_ns)
{
    uint64_t now_ns = clock_ns();
    uint64_t seen = __atomic_load_n(&session.gate.entry.activity, __ATOMIC_SEQ_CST);

    if (seen != *activity || __atomic_load_n(&session.gate.entry.depth, __ATOMIC_SEQ_CST)) {
        *activity = seen;
        *since_ns = now_ns;
    }
    return now_ns - *since_ns >= session.idle_release_ns;
}

int receive_until_end(int fd, int stop_fd)
{
    struct pollfd ready[2] = {{.fd = fd, .events = POLLIN}, {.fd = stop_fd, .events = POLLIN}};
    uint64_t check_ms = session.idle_release_ns / IDLE_CHECKS / 1000000;
    int timeout_ms = NUDGE_MS;
    uint64_t activity = 0, since_ns = clock_ns(), nudged_ns = since_ns;
    struct packet packet;

    if (session.idle_release_ns && check_ms < NUDGE_MS)
        timeout_ms = check_ms ? (int)check_ms : 1;
    for (;;) {
        int count = poll(ready, 2, timeout_ms);

        if (count < 0 && errno != EINTR)
            return -errno;
        if (ready[1].revents)
            return -ECANCELED;
        if (count > 0 && ready[0].revents) {
            int answer = packet_read(fd, &packet);

            if (answer <= 0)
                return answer;
            serve(&packet);
        }
        if (!count && clock_ns() - nudged_ns >= NUDGE_MS * 1000000ull) {
            nudged_ns = clock_ns();
            gate_rewake();
        }
        if (session.idle_release_ns && is_session_idle(&activity, &since_ns))
            idle_try(activity);
    }
}
