/*
 * The session socket: HELLO, sending frames, and a receiver thread.
 *
 * The receiver is a thread because an idle session must still answer UNMAP. It blocks all signals,
 * allocates no framework blocks, and never counts as activity.
 */
#ifndef SALUS_CLIENT_H
#define SALUS_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "../../wire/salus_wire.h"
#include "salus.h"

/* Connects, sends HELLO, reads the answer and maps the pages. Returns 0, -EACCES if salusd rejects
 * the session, or another -errno. */
int client_hello(const char *path, const struct salus_hello_options *options,
                 struct salus_welcome *welcome);

/* Starts the receiver. 0 or -errno. */
int client_listen(void);

/* Fills in the header and sends the frame. 0 or -errno. Never blocks for long, never raises
 * SIGPIPE.
 */
int client_send(void *frame, enum salus_message_kind kind, uint32_t size_bytes);

/* Async-signal-safe FAULT. */
void client_send_fault(const char *text, bool is_off);

/* Asks for higher caps and waits for the answer. Returns 0 if they were raised, -EDQUOT if salusd
 * denied them or did not answer in time. */
int client_ask(enum salus_overrun_kind what, uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* Asks for higher caps without waiting. ALLOW raises them when it arrives. */
void client_report_overrun(uint64_t persistent_bytes, uint64_t ephemeral_bytes);

/* Sends BYE, ends the receiver and closes the socket. Not for the receiver thread. */
void client_close(void);

/* In a forked child: forgets the descriptors, which belong to the parent. */
void client_forget(void);

bool client_is_connected(void);

#endif
