/*
 * The session socket: hello, frames out, and a receiver thread for frames in.
 *
 * A thread, not a look at each boundary: an idle session must still answer UNMAP. It is started
 * with all signals blocked, allocates nothing of the framework and never counts as activity.
 */
#ifndef SALUS_CLIENT_H
#define SALUS_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "../../wire/salus_wire.h"
#include "salus.h"

/* Connects, says HELLO, reads the answer and fills session and gate. 0, -EACCES (refused) or
 * -errno. */
int client_hello(const char *path, const struct salus_hello_options *options,
                 struct salus_welcome *welcome);

/* Starts the receiver. 0 or -errno. */
int client_listen(void);

/* Sends a frame; the header is filled in here. 0 or -errno; never blocks for long, never raises
 * SIGPIPE. */
int client_send(void *frame, enum salus_message_kind kind, uint32_t size_bytes);

/* Async-signal-safe FAULT. */
void client_send_fault(const char *text, bool is_off);

/* Asks for higher caps and waits for the answer. 0 allowed (caps are raised), -EDQUOT denied or
 * nobody answered. */
int client_ask(enum salus_overrun_kind what, uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* Asks without waiting; an ALLOW raises the caps when it comes. */
void client_tell_overrun(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* Says BYE if `is_polite`, ends the receiver and closes the socket. Not from the receiver thread.
 */
void client_close(bool is_polite);

/* In a forked child: the descriptors are the parent's. */
void client_forget(void);

/* True while the socket is up. */
bool client_is_connected(void);

#endif
