/*
 * The state of the emulated driver in one process: contexts, addresses, streams
 * and the effects that its queued work will have. Guarded by local_lock, which
 * is never held while waiting.
 */
#ifndef SALUS_EMULATOR_LOCAL_H
#define SALUS_EMULATOR_LOCAL_H

#include "abi.h"
#include "state.h"

#include <pthread.h>
#include <stdbool.h>

/*
 * Device addresses carry these bits: no processor maps such an address for a
 * program, so a host dereference of device memory faults, as it does on
 * hardware.
 */
#define DEVICE_TAG ((1ULL << 60) | (1ULL << 55))

struct emu_context {
    struct emu_context *next;
    uint64_t id;
    uint32_t device;
    uint32_t reference_count;
    uint32_t flags;
    uint64_t bytes;
    bool is_primary;
    bool is_gone;
    struct emu_stream *legacy;
};

struct emu_stream {
    struct emu_stream *next;
    struct emu_context *context;
    uint32_t ring;
    int32_t priority;
    uint32_t flags; /* 1: does not wait for the legacy stream */
    uint64_t id;
    struct emu_graph *capture; /* records the stream's work; NULL: no capture */
};

struct emu_event {
    uint32_t flags;
    struct emu_stream *stream;
    uint64_t ring_id; /* of the stream: if it was destroyed since, the event is done */
    uint64_t until;
    uint64_t done_ns;
    uint32_t device;
    bool is_recorded;
    bool is_done;
};

enum op_kind { OP_COPY, OP_SET, OP_KERNEL, OP_CALL, OP_STAMP, OP_FREE };

struct op_rows {
    uint64_t to, from; /* as the caller passed them: tagged if on the device */
    size_t width, height, to_pitch, from_pitch;
    void *staged; /* copy of a pageable source */
};

struct emu_op {
    struct emu_op *next;
    struct emu_stream *stream;
    uint64_t sequence;
    uint64_t done_ns;
    bool is_done;
    enum op_kind kind;
    struct op_rows rows;
    uint32_t value, unit_bytes;
    uint32_t effect;
    uint64_t arguments[3];
    void (*call)(void *);
    void *call_argument;
    void (*stream_call)(CUstream, CUresult, void *);
    CUdeviceptr freed;
    struct emu_event *event;
};

enum range_kind { RANGE_DEVICE, RANGE_SMALL, RANGE_MAPPED, RANGE_HOST };

struct emu_physical {
    uint32_t holding;
    uint32_t device;
    uint64_t bytes;
    uint32_t reference_count; /* handles and mappings */
    uint32_t handle_count;
    int fd;
    struct cu_allocation_prop prop;
};

struct emu_range {
    uint64_t start; /* host address */
    uint64_t bytes;
    enum range_kind kind;
    uint32_t device;
    uint32_t access; /* 0 none, 1 read, 3 read and write */
    struct emu_context *context;
    struct emu_physical *physical;
    uint64_t buffer_id;
};

extern pthread_mutex_t local_lock;

/* context.c: emu_enter finds the current context of this thread. The caller returns any
 * result other than CU_OK. */
CUresult emu_enter(struct emu_context **context);
CUresult emu_ready(void);
CUresult emu_device_check(uint32_t device);
struct emu_context *emu_primary(uint32_t device);

/* address.c: the caller holds local_lock. */
void range_add(struct emu_range range);
struct emu_range *range_at(uint64_t address);
void range_remove(uint64_t start);
bool range_covers(uint64_t address, uint64_t bytes, uint32_t access);
void range_each(void (*visit)(struct emu_range *, void *), void *argument);
uint64_t range_new_id(void);
static inline bool is_device_address(uint64_t address)
{
    return (address & DEVICE_TAG) == DEVICE_TAG;
}
static inline uint64_t host_address(uint64_t address)
{
    return is_device_address(address) ? address & ~DEVICE_TAG : address;
}

/* op.c */
struct emu_op *op_new(enum op_kind kind);
/* Finds the stream of a call and makes a piece of work for it. */
CUresult op_start(struct emu_context *context, CUstream handle, enum op_kind kind,
                  struct emu_op **op);
CUresult op_queue(struct emu_stream *stream, const struct emu_item *item, struct emu_op *op,
                  uint64_t *sequence);
CUresult op_wait(struct emu_stream *stream, uint64_t until);
CUresult op_query(struct emu_stream *stream, uint64_t until);
uint64_t op_queued(struct emu_stream *stream);
CUresult op_wait_context(struct emu_context *context);
CUresult op_order_after(struct emu_stream *stream, struct emu_stream *other, uint64_t until);
void op_forget_event(struct emu_event *event);

/* effect.c: applies the effect of completed work. False if it touched unmapped memory. */
bool effect_apply(const struct emu_op *op);
uint32_t effect_named(const char *name);

/* graph.c: graph_note takes ownership of the op; graph_break returns the result of the
 * call that broke the capture. */
CUresult graph_note(struct emu_graph *graph, const struct emu_item *item, struct emu_op *op);
CUresult graph_break(struct emu_graph *graph);

/* stream.c */
struct emu_stream *emu_stream_of(struct emu_context *context, CUstream handle, CUresult *rc);
CUresult stream_new(struct emu_context *context, int32_t priority, uint32_t flags,
                    struct emu_stream **stream);
void stream_free(struct emu_stream *stream);
CUresult stream_find(CUstream handle, struct emu_stream **stream);
extern struct emu_stream *streams;

/* memory.c */
CUresult memory_allocate(struct emu_context *context, size_t bytes, CUdeviceptr *address);
CUresult memory_free(CUdeviceptr address);
void physical_drop(struct emu_physical *physical);

#endif
