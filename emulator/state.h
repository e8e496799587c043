/*
 * What all processes that use the emulated devices share: one mapped file under
 * one robust mutex.
 *
 * The tables (processes, allocations, holdings, streams) are the source of truth.
 * Every sum is derived from them, and is recomputed after the mutex's owner has
 * died. Every store into the file goes through PUT or follows emu_inject, so that a
 * test build can kill the process before each of them.
 */
#ifndef SALUS_EMULATOR_STATE_H
#define SALUS_EMULATOR_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define EMU_MAGIC           0x53414c5553454d34ULL
#define EMU_DEVICES_MAX     8
#define EMU_PROCESSES_MAX   256
#define EMU_ALLOCATIONS_MAX 16384
#define EMU_STREAMS_MAX     512
#define EMU_RING            256
#define EMU_XIDS_MAX        64
#define EMU_LIMITS_MAX      32
#define EMU_PATH_MAX        200

/* Utilisation is kept as busy time in buckets, so that a client that has just
 * started reads the past. */
#define EMU_BUCKETS      16
#define EMU_BUCKET_NS    100000000ULL
#define EMU_BUCKETS_READ 10

#define MIB         (1024ULL * 1024ULL)
#define EMU_GRANULE (2 * MIB)
#define NONE        UINT32_MAX

struct emu_profile {
    const char *name; /* in SALUS_EMULATOR_DEVICES */
    const char *title;
    uint64_t total_bytes;
    uint64_t context_bytes;
    int major, minor;
    int sm_count;
    int clock_mhz, memory_clock_mhz, bus_bits, l2_bytes;
    int power_limit_mw;
    int pci_device_id;
    bool has_mig;
};

struct emu_bucket {
    uint64_t index;
    uint64_t busy_ns;
};

enum emu_work { WORK_MARK, WORK_KERNEL, WORK_COPY, WORK_WAIT };

struct emu_item {
    uint32_t work;
    uint32_t sm_percent;
    uint32_t bandwidth_percent;
    uint32_t wait_stream;
    uint64_t wait_until; /* the waited-for stream's sequence number */
    double left_ns;      /* solo time still to run */
    uint64_t done_ns;
};

struct emu_ring {
    uint32_t in_use;
    uint32_t process;
    uint32_t device;
    int32_t priority; /* lower runs first, as in the driver */
    uint64_t done;    /* items before this one are complete */
    uint64_t queued;
    struct emu_item items[EMU_RING];
};

enum emu_checkpoint { CHECKPOINT_RUNNING, CHECKPOINT_LOCKED, CHECKPOINT_TAKEN, CHECKPOINT_FAILED };

struct emu_presence {
    uint64_t private_bytes; /* memory that no other process can hold */
    uint64_t context_bytes;
    uint32_t context_count;
    uint64_t limit_bytes; /* pinned-memory limit under MPS; 0: none */
    uint32_t sticky;      /* result that every later call on this device gives */
    struct emu_bucket buckets[EMU_BUCKETS];
};

struct emu_process {
    uint32_t in_use;
    int32_t pid;
    uint64_t start; /* start time in ticks since boot: a reused pid is another process */
    uint32_t checkpoint;
    uint32_t sm_percent; /* the share that MPS leaves to this process */
    char cgroup[EMU_PATH_MAX];
    struct emu_presence on[EMU_DEVICES_MAX];
};

struct emu_allocation {
    uint32_t in_use;
    uint32_t device;
    uint64_t inode; /* of the memory's file: an import finds it by this */
    uint64_t bytes;
    uint32_t creator;
    uint32_t holders; /* derived */
};

struct emu_holding {
    uint32_t in_use;
    uint32_t allocation;
    uint32_t process;
};

struct emu_limit {
    uint32_t in_use;
    uint32_t device;
    uint64_t soft_bytes, hard_bytes;
    char cgroup[EMU_PATH_MAX];
};

struct emu_xid {
    uint64_t number;
    uint32_t device;
};

struct emu_device {
    uint32_t profile;
    unsigned char uuid[16];
    uint64_t total_bytes;   /* the profile's, or PROFILE=MIB */
    uint64_t context_bytes; /* of each process */
    uint64_t used_bytes;    /* derived */
    uint64_t advanced_ns;
    uint32_t is_lost;
    uint32_t hangs;
    uint32_t nvml_hangs;
    uint32_t mps;
    int32_t oom_count; /* allocations still to be refused; negative: all */
    uint32_t speed_permille;
    uint32_t slice_process; /* the process that runs, without MPS */
    uint64_t slice_until_ns;
    uint64_t switch_until_ns;
    struct emu_bucket buckets[EMU_BUCKETS];
};

struct emu_state {
    uint64_t magic;
    uint64_t bytes;
    uint32_t is_ready;
    uint32_t device_count;
    pthread_mutex_t lock;
    uint64_t recoveries;
    uint32_t ring_count; /* rings from here on were never used */
    uint64_t xid_count;
    struct emu_xid xids[EMU_XIDS_MAX];
    struct emu_limit limits[EMU_LIMITS_MAX];
    struct emu_device devices[EMU_DEVICES_MAX];
    struct emu_process processes[EMU_PROCESSES_MAX];
    struct emu_allocation allocations[EMU_ALLOCATIONS_MAX];
    struct emu_holding holdings[EMU_ALLOCATIONS_MAX];
    struct emu_ring rings[EMU_STREAMS_MAX];
};

extern struct emu_state *emu;

#ifdef SALUS_EMULATOR_INJECT
void emu_inject_at(const char *file, int line);
#define emu_inject() emu_inject_at(__FILE__, __LINE__)
#define PUT(field, value)                                                                          \
    do {                                                                                           \
        emu_inject();                                                                              \
        (field) = (value);                                                                         \
    } while (0)
#else
#define emu_inject()      ((void)0)
#define PUT(field, value) ((field) = (value))
#endif

/* profile.c */
extern const struct emu_profile emu_profiles[];
extern const uint32_t emu_profile_count;
const struct emu_profile *emu_profile_of(uint32_t device);

/* state.c: 0, or a negative errno. Each process maps the file once. */
int emu_open(void);
int emu_create(const char *path, const char *devices);
const char *emu_path(void);
void emu_lock(void);
void emu_unlock(void);
uint64_t emu_now_ns(void);

/* table.c: the caller holds the lock. */
void emu_recompute(void);
void emu_reap(void);
uint32_t emu_attach(void);
uint32_t emu_self(void); /* this process's row; NONE before emu_attach or in a forked child */
void emu_process_drop(uint32_t process);
bool emu_process_is_alive(int32_t pid, uint64_t start);
uint64_t emu_process_start(int32_t pid);
uint64_t emu_process_bytes(uint32_t process, uint32_t device);
int emu_charge_private(uint32_t device, uint64_t bytes);
void emu_refund_private(uint32_t device, uint64_t bytes);
int emu_charge_context(uint32_t device);
void emu_refund_context(uint32_t device, uint64_t bytes);
int emu_allocation_add(uint32_t device, uint64_t bytes, uint64_t inode, uint32_t *holding);
int emu_allocation_hold(uint64_t inode, uint32_t *holding);
void emu_holding_drop(uint32_t holding);
uint64_t emu_limit_used(uint32_t device, const char *cgroup);

/* model.c: the caller holds the lock. */
void emu_advance(uint32_t device);
void emu_ring_reset(uint32_t stream, uint32_t process, uint32_t device, int32_t priority);
uint64_t emu_wake_ns(uint32_t device);
uint32_t emu_busy_percent(const struct emu_bucket *buckets, uint64_t now_ns);

/* fault.c: the caller holds the lock. */
void emu_fault_xid(uint32_t device, uint64_t number, int32_t pid);
void emu_fault_clear(uint32_t device);

#endif
