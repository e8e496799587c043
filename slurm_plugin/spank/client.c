/* One request to salusd and its answer, over its SEQPACKET socket. The time is bounded, because
 * slurmstepd waits. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "salus_spank.h"

/* The answer changes the environment of a user's job, so it must come from a daemon that runs as
 * root or as our own user. */
static bool is_trusted(int peer)
{
    struct ucred owner;
    socklen_t size = sizeof owner;

    return getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &owner, &size) == 0 &&
           (owner.uid == 0 || owner.uid == geteuid());
}

int salus_ask(const char *socket_path, const char *request, int timeout_s, char *answer,
              size_t size)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = timeout_s};
    int fault = 0;
    ssize_t got;
    int peer = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (peer < 0)
        return errno;
    if (strlen(socket_path) >= sizeof address.sun_path) {
        fault = ENAMETOOLONG;
        goto done;
    }
    strcpy(address.sun_path, socket_path);
    if (setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(peer, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        connect(peer, (struct sockaddr *)&address, sizeof address) != 0) {
        fault = errno;
        goto done;
    }
    if (!is_trusted(peer)) {
        fault = EPERM;
        goto done;
    }
    if (send(peer, request, strlen(request), MSG_NOSIGNAL) < 0) {
        fault = errno;
        goto done;
    }
    got = recv(peer, answer, size - 1, 0);
    if (got < 0)
        fault = errno;
    else if (got == 0)
        fault = ECONNRESET;
    answer[got > 0 ? got : 0] = '\0';
done:
    close(peer);
    return fault;
}

static bool file_exists(const char *socket_path, const char *folder, uint32_t job)
{
    char path[SALUS_PATH_MAX + 32];
    const char *slash = strrchr(socket_path, '/');

    if (!slash)
        return false;
    snprintf(path, sizeof path, "%.*s/%s/%u", (int)(slash - socket_path), socket_path, folder, job);
    return access(path, F_OK) == 0;
}

/* The Prolog leaves a file for each Salus job, so that other jobs cost nothing and ours are
 * recognised without salusd. The Epilog moves the file, because a job that starts again may get no
 * Prolog. */
enum salus_mark salus_mark_of(const char *socket_path, uint32_t job)
{
    if (file_exists(socket_path, "jobs", job))
        return SALUS_ANNOUNCED;
    return file_exists(socket_path, "ended", job) ? SALUS_ENDED : SALUS_NONE;
}
