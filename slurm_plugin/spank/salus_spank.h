/*
 * Declarations of Salus's SPANK plugin. The plugin decides nothing: it carries options from the
 * user to salus-admitd and the environment from salusd to the task. It uses only Slurm's public
 * headers, so one source works with all releases. A fault of ours must not drain a node: only
 * slurm_spank_task_init_privileged ever returns an error, which fails that one task.
 */
#ifndef SALUS_SPANK_H
#define SALUS_SPANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <slurm/spank.h>

#define SALUS_PACKET_MAX    16384
#define SALUS_PATH_MAX      108
#define SALUS_SIGNATURE_MAX 72
#define SALUS_TIMEOUT_S     2
/* salusd first asks slurmctld for what the Prolog would have reported. */
#define SALUS_UNANNOUNCED_S 12

/* Arguments of the plugstack line. */
struct salus_settings {
    char socket[SALUS_PATH_MAX];
    bool is_refused_on_loss;
};

/* options.c */
void salus_options_register(spank_t spank);
void salus_options_send(spank_t spank);

/* signature.c: hashes script and arguments of the submitting command; false if there is nothing to
 * hash. */
bool salus_signature(char *text, size_t size);

/* sha256.c */
struct salus_sha256 {
    uint32_t state[8];
    uint64_t length;
    uint8_t block[64];
};
void salus_sha256_start(struct salus_sha256 *hash);
void salus_sha256_add(struct salus_sha256 *hash, const void *bytes, size_t size);
void salus_sha256_end(struct salus_sha256 *hash, uint8_t digest[32]);

/* client.c: one request packet, one answer packet, within the time; 0 or an errno. */
int salus_ask(const char *socket_path, const char *request, int timeout_s, char *answer,
              size_t size);
enum salus_mark { SALUS_NONE, SALUS_ANNOUNCED, SALUS_ENDED };
enum salus_mark salus_mark_of(const char *socket_path, uint32_t job);

/* reply.c: reads salusd's answers. Each returns false if the key is absent or malformed. */
bool salus_reply_text(const char *json, const char *key, char *text, size_t size);
typedef void (*salus_each)(const char *item, void *context);
bool salus_reply_list(const char *json, const char *key, salus_each each, void *context);

/* environment.c: sets the variable in `item`, NAME=VALUE; `context` is the spank_t. */
void salus_environment_set(const char *item, void *context);

#endif
