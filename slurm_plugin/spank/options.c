/* The options of sbatch, srun and salloc. salus-admitd checks them; this file checks only their
 * length. */
#include <stdio.h>
#include <string.h>

#include "salus_spank.h"

#define VALUE_MAX 128

enum { PROFILE, MEMORY, CLASS, TIME, OPTION_COUNT };

static char values[OPTION_COUNT][VALUE_MAX];
static const char *const VARIABLES[OPTION_COUNT] = {"SALUS_PROFILE", "SALUS_MEM", "SALUS_CLASS",
                                                    "SALUS_TIME"};

static int store(int which, const char *text, int is_remote)
{
    (void)is_remote;
    if (!text || !*text || strlen(text) >= VALUE_MAX) {
        slurm_error("salus: options: a value is empty or longer than %d characters", VALUE_MAX - 1);
        return -1;
    }
    snprintf(values[which], VALUE_MAX, "%s", text);
    return 0;
}

static struct spank_option options[] = {
    {"salus-profile", "NAME", "Salus: use the profile of this name for the job's memory", 1,
     PROFILE, store},
    {"salus-mem", "P[,E]",
     "Salus: persistent memory and memory of one iteration, as in 2G,6G", 1, MEMORY, store},
    {"salus-class", "CLASS", "Salus: high, normal or best-effort", 1, CLASS, store},
    {"salus-time", "TIME", "Salus: expected run time, for shortest-remaining-first", 1, TIME,
     store},
    SPANK_OPTIONS_TABLE_END};

void salus_options_register(spank_t spank)
{
    for (struct spank_option *option = options; option->name; option++)
        if (spank_option_register(spank, option) != ESPANK_SUCCESS)
            slurm_error("salus: options: --%s not registered", option->name);
}

void salus_options_send(spank_t spank)
{
    char signature[SALUS_SIGNATURE_MAX];

    for (int which = 0; which < OPTION_COUNT; which++)
        if (values[which][0])
            spank_job_control_setenv(spank, VARIABLES[which], values[which], 1);
    if (!values[PROFILE][0] && salus_signature(signature, sizeof signature))
        spank_job_control_setenv(spank, "SALUS_SIGNATURE", signature, 1);
}
