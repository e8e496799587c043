/* One row of the generated table: a public name, the version that introduced it,
 * and its function. */
#ifndef SALUS_EMULATOR_PROC_ADDRESS_H
#define SALUS_EMULATOR_PROC_ADDRESS_H

struct driver_name {
    const char *base;
    int version;
    int is_per_thread;
    void *function;
};

extern const struct driver_name driver_names[];
extern const unsigned int driver_name_count;

#endif
