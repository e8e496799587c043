#define _GNU_SOURCE
#include "receive.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gate.h"
#include "lending.h"
#include "session.h"

#define IDLE_LOOKS 4 /* looks per idle_release_ns */

static uint32_t size_of_kind(uint16_t kind)
{
    switch (kind) {
    case SALUS_WELCOME:
        return sizeof(struct salus_welcome);
    case SALUS_REJECT:
        return sizeof(struct salus_reject);
    case SALUS_MAP:
        return sizeof(struct salus_map);
    case SALUS_UNMAP:
        return sizeof(struct salus_unmap);
    case SALUS_ALLOW:
        return sizeof(struct salus_allow);
    case SALUS_DENY:
        return sizeof(struct salus_deny);
    case SALUS_NOTICE:
        return sizeof(struct salus_notice);
    case SALUS_BYE:
        return sizeof(struct salus_bye);
    default:
        return 0;
    }
}

void packet_close(struct packet *packet)
{
    while (packet->fd_count)
        close(packet->fds[--packet->fd_count]);
}

static void take_fds(struct msghdr *message, struct packet *packet)
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
    take_fds(&message, packet);
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
        session_reason(packet->frame.deny.text);
        receive_answer(packet->frame.deny.serial, NULL);
        break;
    case SALUS_NOTICE:
        session_reason(packet->frame.notice.text);
        break;
    default:
        break;
    }
    packet_close(packet);
}

/* Remembers when activity was last seen to change; true when it has rested for long enough. */
static bool is_resting(uint64_t *activity, uint64_t *since_ns)
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
    uint64_t look_ms = session.idle_release_ns / IDLE_LOOKS / 1000000;
    int timeout_ms = NUDGE_MS;
    uint64_t activity = 0, since_ns = clock_ns(), nudged_ns = since_ns;
    struct packet packet;

    if (session.idle_release_ns && look_ms < NUDGE_MS)
        timeout_ms = look_ms ? (int)look_ms : 1;
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
            gate_nudge();
        }
        if (session.idle_release_ns && is_resting(&activity, &since_ns))
            gate_try_idle(activity);
    }
}
