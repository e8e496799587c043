/* Drives the parts of the SPANK plugin that need no Slurm: `hash` of standard input, `text KEY` and
 * `list KEY` of a reply, `ask PATH` sends it to a socket. */
#include <stdio.h>
#include <string.h>

#include "salus_spank.h"

static void print_item(const char *item, void *context)
{
    (void)context;
    printf("%s%c", item, '\0');
}

int main(int count, char **arguments)
{
    static char input[1 << 20], text[SALUS_PACKET_MAX];
    size_t size = fread(input, 1, sizeof input - 1, stdin);
    struct salus_sha256 hash;
    uint8_t digest[32];

    if (count > 1 && strcmp(arguments[1], "hash") == 0) {
        salus_sha256_start(&hash);
        salus_sha256_add(&hash, input, size);
        salus_sha256_end(&hash, digest);
        for (int i = 0; i < 32; i++)
            printf("%02x", digest[i]);
        return 0;
    }
    if (count > 2 && strcmp(arguments[1], "text") == 0) {
        if (!salus_reply_text(input, arguments[2], text, sizeof text))
            return 1;
        printf("%s", text);
        return 0;
    }
    if (count > 2 && strcmp(arguments[1], "list") == 0)
        return salus_reply_list(input, arguments[2], print_item, NULL) ? 0 : 1;
    if (count > 2 && strcmp(arguments[1], "ask") == 0) {
        int fault = salus_ask(arguments[2], input, 10, text, sizeof text);

        printf("%s", fault ? strerror(fault) : text);
        return fault ? 1 : 0;
    }
    return 1;
}
