/* Receiving frames: reading one packet, and what the receiver thread does with each kind. */
#ifndef SALUS_RECEIVE_H
#define SALUS_RECEIVE_H

#include <stdint.h>

#include "../../wire/salus_wire.h"

struct packet {
    union {
        struct salus_header header;
        struct salus_welcome welcome;
        struct salus_reject reject;
        struct salus_map lane;
        struct salus_unmap unmap;
        struct salus_allow allow;
        struct salus_deny deny;
        struct salus_notice notice;
        char bytes[SALUS_FRAME_BYTES_MAX];
    } frame;
    int fds[SALUS_FDS_MAX];
    uint32_t fd_count;
};

/* Returns 1 for a frame of our version that has the size of its kind, 0 at the end of the stream,
 * -EPROTO for any other frame, or another -errno. */
int packet_read(int fd, struct packet *packet);

/* Closes the descriptors that are still in the packet. */
void packet_close(struct packet *packet);

/* Serves frames and idle release until the socket ends (returns 0 or -errno) or `stop_fd` is
 * readable (returns -ECANCELED). */
int receive_until_end(int fd, int stop_fd);

/* Implemented by client.c: handles ALLOW, or DENY if `allow` is NULL. */
void receive_answer(uint32_t serial, const struct salus_allow *allow);

#endif
