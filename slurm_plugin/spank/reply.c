/*
 * Reads salusd's answers: one flat JSON object with booleans, strings and lists of strings. Other
 * values are skipped. Keys after anything that is not JSON count as absent.
 */
#include <stdlib.h>
#include <string.h>

#include "salus_spank.h"

#define DEPTH_MAX 8

static const char *skip_blanks(const char *next)
{
    return next + strspn(next, " \t\r\n");
}

/* Writes one character as UTF-8. Surrogates become a question mark; our names and paths have none.
 */
static size_t put_code(unsigned long code, char *into)
{
    if (code < 0x80) {
        into[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        into[0] = (char)(0xc0 | code >> 6);
        into[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code >= 0xd800 && code < 0xe000) {
        into[0] = '?';
        return 1;
    }
    into[0] = (char)(0xe0 | code >> 12);
    into[1] = (char)(0x80 | (code >> 6 & 0x3f));
    into[2] = (char)(0x80 | (code & 0x3f));
    return 3;
}

/* Reads the string at `next` into `text`, truncated to its size. Returns the position after it, or
 * NULL. */
static const char *read_string(const char *next, char *text, size_t size)
{
    static const char NAMES[] = "\"\\/bfnrt", CODES[] = "\"\\/\b\f\n\r\t";
    size_t used = 0;

    if (*next++ != '"')
        return NULL;
    while (*next && *next != '"') {
        char piece[4];
        size_t length = 1;

        piece[0] = *next++;
        if (piece[0] == '\\') {
            const char *name = *next ? strchr(NAMES, *next) : NULL;
            if (*next == 'u' && strspn(next + 1, "0123456789abcdefABCDEF") >= 4) {
                char digits[5] = {next[1], next[2], next[3], next[4], '\0'};
                length = put_code(strtoul(digits, NULL, 16), piece);
                next += 5;
            } else if (name) {
                piece[0] = CODES[name - NAMES];
                next++;
            } else {
                return NULL;
            }
        }
        if (text && used + length < size) {
            memcpy(text + used, piece, length);
            used += length;
        }
    }
    if (text && size)
        text[used] = '\0';
    return *next == '"' ? next + 1 : NULL;
}

/* Returns the position after the value, or NULL. With a `key`, sets `found` to the value of that key
 * in the outermost object. */
static const char *skip_value(const char *next, int depth, const char *key, const char **found)
{
    char name[64];

    next = skip_blanks(next);
    if (*next == '"')
        return read_string(next, NULL, 0);
    if (*next != '{' && *next != '[') {
        size_t length = strcspn(next, ",]} \t\r\n");
        return length ? next + length : NULL;
    }
    if (depth >= DEPTH_MAX)
        return NULL;
    char end = *next == '{' ? '}' : ']';
    next = skip_blanks(next + 1);
    while (next && *next && *next != end) {
        if (end == '}') {
            next = read_string(next, name, sizeof name);
            if (!next || *(next = skip_blanks(next)) != ':')
                return NULL;
            next = skip_blanks(next + 1);
            if (key && !*found && strcmp(name, key) == 0)
                *found = next;
        }
        next = skip_value(next, depth + 1, NULL, NULL);
        if (!next)
            return NULL;
        next = skip_blanks(next);
        if (*next == ',')
            next = skip_blanks(next + 1);
        else if (*next != end)
            return NULL;
    }
    return next && *next == end ? next + 1 : NULL;
}

/* The value of `key` in the object, or NULL. */
static const char *find(const char *json, const char *key)
{
    const char *found = NULL;

    skip_value(json, 0, key, &found);
    return found;
}

bool salus_reply_text(const char *json, const char *key, char *text, size_t size)
{
    const char *value = find(json, key);
    return value && read_string(value, text, size) != NULL;
}

bool salus_reply_list(const char *json, const char *key, salus_each each, void *context)
{
    const char *next = find(json, key);
    char item[SALUS_PACKET_MAX];

    if (!next || *next != '[')
        return false;
    next = skip_blanks(next + 1);
    while (*next == '"') {
        next = read_string(next, item, sizeof item);
        if (!next)
            return false;
        each(item, context);
        next = skip_blanks(next);
        if (*next == ',')
            next = skip_blanks(next + 1);
    }
    return *next == ']';
}
