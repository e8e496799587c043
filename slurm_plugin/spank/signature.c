/*
 * The signature of a job. The submitting command computes it as the user, so that the controller
 * never opens a user's file.
 *
 * The hash covers the job script without blank lines, comments and #SBATCH lines, its arguments,
 * and the Python files that it names; for srun and salloc it covers the command. sbatch, srun and
 * salloc parse their options with getopt_long and stop at the first other argument, so libc's
 * `optind` is where the script or command begins. No other way works for all releases and options.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "salus_spank.h"

/* What is hashed is limited to the first bytes of a file and the first arguments of a command. */
#define FILE_BYTES_MAX (4 * 1024 * 1024)
#define ARGUMENTS_MAX  1024

struct bytes {
    char *start;
    size_t size;
};

static bool read_whole(const char *path, struct bytes *into)
{
    struct stat status;
    bool is_read = false;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    into->start = NULL;
    into->size = 0;
    if (file < 0)
        return false;
    if (fstat(file, &status) != 0 ||
        !(S_ISREG(status.st_mode) || strcmp(path, "/proc/self/cmdline") == 0))
        goto done;
    into->start = malloc(FILE_BYTES_MAX + 1);
    if (!into->start)
        goto done;
    while (into->size < FILE_BYTES_MAX) {
        ssize_t got = read(file, into->start + into->size, FILE_BYTES_MAX - into->size);
        if (got < 0)
            goto done;
        if (got == 0)
            break;
        into->size += (size_t)got;
    }
    into->start[into->size] = '\0';
    is_read = true;
done:
    close(file);
    if (!is_read) {
        free(into->start);
        into->start = NULL;
    }
    return is_read;
}

/* The file that sbatch would use: as named, or else found in PATH. */
static bool read_script(const char *name, struct bytes *into)
{
    char path[PATH_MAX];
    const char *folder = getenv("PATH");

    if (read_whole(name, into))
        return true;
    while (!strchr(name, '/') && folder && *folder) {
        size_t length = strcspn(folder, ":");
        snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, name);
        if (read_whole(path, into))
            return true;
        folder += length + (folder[length] == ':');
    }
    return false;
}

/* Adds the contents of the Python files named in `text`, words split at blanks and quotes. */
static void add_python_files(struct salus_sha256 *hash, const char *text)
{
    static const char ENDS[] = " \t\r\n\"';|&()<>=";

    for (const char *next = text + strspn(text, ENDS); *next; next += strspn(next, ENDS)) {
        size_t length = strcspn(next, ENDS);
        if (length > 3 && length < PATH_MAX && strncmp(next + length - 3, ".py", 3) == 0) {
            char path[PATH_MAX];
            struct bytes file;
            snprintf(path, sizeof path, "%.*s", (int)length, next);
            if (read_whole(path, &file)) {
                salus_sha256_add(hash, "py", 3);
                salus_sha256_add(hash, file.start, file.size);
                free(file.start);
            }
        }
        next += length;
    }
}

static void add_script(struct salus_sha256 *hash, const char *text)
{
    while (*text) {
        size_t length = strcspn(text, "\n");
        size_t blanks = strspn(text, " \t\r");
        char line[4096];

        if (blanks < length && text[blanks] != '#') {
            salus_sha256_add(hash, text, length);
            salus_sha256_add(hash, "\n", 1);
            snprintf(line, sizeof line, "%.*s", (int)length, text);
            add_python_files(hash, line);
        }
        text += length + (text[length] == '\n');
    }
}

/* The text of --wrap, which stands for a script. */
static const char *wrapped(char *const *arguments, int count)
{
    for (int i = 1; i < count; i++) {
        if (strncmp(arguments[i], "--wrap=", 7) == 0)
            return arguments[i] + 7;
        if (strcmp(arguments[i], "--wrap") == 0 && i + 1 < count)
            return arguments[i + 1];
    }
    return NULL;
}

static int split(struct bytes line, char **arguments)
{
    int count = 0;

    for (char *next = line.start; next < line.start + line.size && count < ARGUMENTS_MAX;
         next += strlen(next) + 1)
        arguments[count++] = next;
    return count;
}

static bool hash_command(struct salus_sha256 *hash, char *const *arguments, int count, int first)
{
    const char *program =
        strrchr(arguments[0], '/') ? strrchr(arguments[0], '/') + 1 : arguments[0];
    const char *wrap = wrapped(arguments, count);
    struct bytes script;

    if (strcmp(program, "sbatch") == 0 && wrap) {
        add_script(hash, wrap);
        return true;
    }
    if (first < 1 || first >= count)
        return false;
    if (strcmp(program, "sbatch") == 0) {
        if (!read_script(arguments[first], &script))
            return false;
        add_script(hash, script.start);
        free(script.start);
        first++;
    }
    for (int i = first; i < count; i++) {
        salus_sha256_add(hash, arguments[i], strlen(arguments[i]) + 1);
        add_python_files(hash, arguments[i]);
    }
    return true;
}

bool salus_signature(char *text, size_t size)
{
    struct salus_sha256 hash;
    struct bytes line;
    uint8_t digest[32];
    char *arguments[ARGUMENTS_MAX];
    bool is_hashed = false;
    int count;

    if (size < SALUS_SIGNATURE_MAX || !read_whole("/proc/self/cmdline", &line))
        return false;
    salus_sha256_start(&hash);
    count = split(line, arguments);
    if (count > 0)
        is_hashed = hash_command(&hash, arguments, count, optind);
    free(line.start);
    if (!is_hashed)
        return false;
    salus_sha256_end(&hash, digest);
    /* 128 bits are enough: only jobs of one user share a key. It must fit into admin_comment.
     */
    snprintf(text, size, "job:");
    for (int i = 0; i < 16; i++)
        snprintf(text + 4 + 2 * i, 3, "%02x", digest[i]);
    return true;
}
