/*
 * Slurm's callbacks. In sbatch, srun and salloc they handle options and signature. In slurmstepd
 * they set the environment before a task starts, and report its start and its end.
 * slurm_spank_user_init is not used: it runs as the user, and a failure there drains the node.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "salus_spank.h"

SPANK_PLUGIN(salus, 1)

static struct salus_settings settings = {.socket = "/run/salus/salusd.sock"};

static void read_arguments(int count, char **arguments)
{
    const char *named = getenv("SALUS_SOCKET");

    for (int i = 0; i < count; i++) {
        if (strncmp(arguments[i], "socket=", 7) == 0)
            snprintf(settings.socket, sizeof settings.socket, "%s", arguments[i] + 7);
        else if (strcmp(arguments[i], "on_loss=refuse") == 0)
            settings.is_refused_on_loss = true;
        else if (strcmp(arguments[i], "on_loss=run") == 0)
            settings.is_refused_on_loss = false;
        else
            slurm_error(
                "salus: start: plugstack.conf: unknown argument %s; use socket= and on_loss=",
                arguments[i]);
    }
    /* Several slurmd on one host have different daemons, so slurmd's environment takes precedence.
     */
    if (named && spank_context() == S_CTX_REMOTE)
        snprintf(settings.socket, sizeof settings.socket, "%s", named);
}

int slurm_spank_init(spank_t spank, int count, char **arguments)
{
    read_arguments(count, arguments);
    salus_options_register(spank);
    return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **arguments)
{
    (void)count, (void)arguments;
    if (spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_ALLOCATOR)
        salus_options_send(spank);
    return 0;
}

struct task {
    uint32_t job, step, number;
    uid_t uid;
    pid_t pid;
    int status;
    enum salus_mark mark;
};

/* True for a task of a Salus job. */
static bool task_of(spank_t spank, struct task *task)
{
    *task = (struct task){0};
    if (spank_get_item(spank, S_JOB_ID, &task->job) != ESPANK_SUCCESS)
        return false;
    spank_get_item(spank, S_JOB_STEPID, &task->step);
    spank_get_item(spank, S_JOB_UID, &task->uid);
    spank_get_item(spank, S_TASK_GLOBAL_ID, &task->number);
    spank_get_item(spank, S_TASK_PID, &task->pid);
    task->mark = salus_mark_of(settings.socket, task->job);
    return task->mark != SALUS_NONE;
}

/* Writes to the user's standard error and to Slurm's log. */
static int refuse(const char *text)
{
    slurm_error("salus: start: %s", text);
    dprintf(STDERR_FILENO, "salus: start: %s\n", text);
    return -1;
}

int slurm_spank_task_init_privileged(spank_t spank, int count, char **arguments)
{
    char request[512], cuda[128] = "", text[1024];
    struct task task;
    char *answer;
    int fault, result = 0;

    (void)count, (void)arguments;
    if (!task_of(spank, &task))
        return 0;
    answer = malloc(SALUS_PACKET_MAX + 1);
    if (!answer)
        return 0;
    spank_getenv(spank, "CUDA_VISIBLE_DEVICES", cuda, sizeof cuda);
    if (strspn(cuda, "0123456789,GPUMIabcdef/-") != strlen(cuda))
        cuda[0] = '\0';
    snprintf(request, sizeof request,
             "{\"verb\":\"task_env\",\"job\":\"%u\",\"step\":\"%u\",\"uid\":%u,\"pid\":%d,\"cuda\":"
             "\"%s\"}",
             task.job, task.step, task.uid, getpid(), cuda);
    fault = salus_ask(settings.socket, request,
                      task.mark == SALUS_ENDED ? SALUS_UNANNOUNCED_S : SALUS_TIMEOUT_S, answer,
                      SALUS_PACKET_MAX);
    if (fault) {
        snprintf(text, sizeof text,
                 "salusd on this node does not answer (%s); ask your administrator",
                 strerror(fault));
        if (settings.is_refused_on_loss)
            result = refuse(text);
        else
            slurm_info("salus: start: %s", text);
    } else if (salus_reply_text(answer, "refuse", text, sizeof text)) {
        result = refuse(text);
    } else {
        salus_reply_list(answer, "env", salus_environment_set, spank);
    }
    free(answer);
    return result;
}

static void report(spank_t spank, const char *verb)
{
    char request[512], answer[1024];
    struct task task;
    int fault;

    if (!task_of(spank, &task))
        return;
    spank_get_item(spank, S_TASK_EXIT_STATUS, &task.status);
    snprintf(request, sizeof request,
             "{\"verb\":\"%s\",\"job\":\"%u\",\"step\":\"%u\",\"task\":%u,\"uid\":%u,\"pid\":%d,"
             "\"status\":%d}",
             verb, task.job, task.step, task.number, task.uid, task.pid, task.status);
    fault = salus_ask(settings.socket, request, SALUS_TIMEOUT_S, answer, sizeof answer);
    if (fault)
        slurm_info("salus: %s: job %u: %s", verb, task.job, strerror(fault));
}

int slurm_spank_task_post_fork(spank_t spank, int count, char **arguments)
{
    (void)count, (void)arguments;
    report(spank, "task_start");
    return 0;
}

int slurm_spank_task_exit(spank_t spank, int count, char **arguments)
{
    (void)count, (void)arguments;
    report(spank, "task_exit");
    return 0;
}
