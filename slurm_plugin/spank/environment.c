/* Sets a variable that salusd sends for a task. In LD_PRELOAD and PYTHONPATH, the user's own
 * entries follow ours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "salus_spank.h"

void salus_environment_set(const char *item, void *context)
{
    spank_t spank = context;
    const char *sign = strchr(item, '=');
    char name[64], own[SALUS_PACKET_MAX], *joined = NULL;

    if (!sign || sign == item || (size_t)(sign - item) >= sizeof name)
        return;
    snprintf(name, sizeof name, "%.*s", (int)(sign - item), item);
    if ((strcmp(name, "LD_PRELOAD") == 0 || strcmp(name, "PYTHONPATH") == 0) &&
        spank_getenv(spank, name, own, sizeof own) == ESPANK_SUCCESS && own[0] &&
        asprintf(&joined, "%s:%s", sign + 1, own) < 0)
        return;
    if (spank_setenv(spank, name, joined ? joined : sign + 1, 1) != ESPANK_SUCCESS)
        slurm_error("salus: environment: %s not set", name);
    free(joined);
}
