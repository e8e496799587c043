/* Sets the variables that salusd sends for a task. In search paths, the user's own entries follow
 * ours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "salus_spank.h"

static void set(const char *item, void *context)
{
    spank_t spank = context;
    const char *sign = strchr(item, '=');
    char name[64], *value, own[SALUS_PACKET_MAX];
    size_t size;

    if (!sign || sign == item || (size_t)(sign - item) >= sizeof name)
        return;
    snprintf(name, sizeof name, "%.*s", (int)(sign - item), item);
    size = strlen(sign + 1) + sizeof own + 2;
    value = malloc(size);
    if (!value)
        return;
    snprintf(value, size, "%s", sign + 1);
    if ((strcmp(name, "LD_PRELOAD") == 0 || strcmp(name, "PYTHONPATH") == 0) &&
        spank_getenv(spank, name, own, sizeof own) == ESPANK_SUCCESS && own[0])
        snprintf(value, size, "%s:%s", sign + 1, own);
    if (spank_setenv(spank, name, value, 1) != ESPANK_SUCCESS)
        slurm_error("salus: environment: %s not set", name);
    free(value);
}

void salus_environment_set(spank_t spank, const char *json)
{
    salus_reply_list(json, "env", set, spank);
}
