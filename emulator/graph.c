/*
 * Stream capture and graphs, for one stream. Work on a capturing stream is
 * recorded instead of queued, and a launch queues all of it. What a driver forbids
 * during a capture (waiting for the stream or its context) is refused and
 * invalidates the capture. Events and several streams in one capture are not
 * modelled and are refused as well.
 */
#include "local.h"

#include <stdlib.h>
#include <string.h>

struct node {
    struct node *next;
    struct emu_item item;
    struct emu_op *op;
};

struct emu_graph {
    struct node *first, **last;
    bool is_broken;
};

static void drop_op(struct emu_op *op)
{
    if (op)
        free(op->rows.staged);
    free(op);
}

static struct emu_op *copy_op(const struct emu_op *from)
{
    struct emu_op *op = op_new(from->kind);
    if (!op)
        return NULL;
    *op = *from;
    op->next = NULL;
    if (from->rows.staged) {
        op->rows.staged = malloc(from->rows.width * from->rows.height);
        if (!op->rows.staged) {
            free(op);
            return NULL;
        }
        memcpy(op->rows.staged, from->rows.staged, from->rows.width * from->rows.height);
        op->rows.from = (uint64_t)op->rows.staged;
    }
    return op;
}

CUresult graph_note(struct emu_graph *graph, const struct emu_item *item, struct emu_op *op)
{
    struct node *node = graph->is_broken ? NULL : calloc(1, sizeof(*node));
    if (!node) {
        drop_op(op);
        return graph->is_broken ? CU_STREAM_CAPTURE_INVALIDATED : CU_OUT_OF_MEMORY;
    }
    node->item = *item;
    node->op = op;
    *graph->last = node;
    graph->last = &node->next;
    return CU_OK;
}

CUresult graph_break(struct emu_graph *graph)
{
    graph->is_broken = true;
    return CU_STREAM_CAPTURE_UNSUPPORTED;
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    struct emu_stream *stream;
    CUresult rc = stream_find(handle, &stream);
    (void)mode;
    if (rc)
        return rc;
    if (stream == stream->context->legacy)
        return CU_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CU_ILLEGAL_STATE;
    struct emu_graph *graph = calloc(1, sizeof(*graph));
    if (!graph)
        return CU_OUT_OF_MEMORY;
    graph->last = &graph->first;
    stream->capture = graph;
    return CU_OK;
}

EXPORT CUresult cuStreamBeginCapture(CUstream handle)
{
    return cuStreamBeginCapture_v2(handle, 0);
}

EXPORT CUresult cuGraphDestroy(struct emu_graph *graph)
{
    if (!graph)
        return CU_INVALID_VALUE;
    for (struct node *node = graph->first, *next; node; node = next) {
        next = node->next;
        drop_op(node->op);
        free(node);
    }
    free(graph);
    return CU_OK;
}

EXPORT CUresult cuStreamEndCapture(CUstream handle, struct emu_graph **out)
{
    struct emu_stream *stream;
    CUresult rc = stream_find(handle, &stream);
    if (rc)
        return rc;
    if (!stream->capture)
        return CU_ILLEGAL_STATE;
    *out = stream->capture;
    stream->capture = NULL;
    if (!(*out)->is_broken)
        return CU_OK;
    cuGraphDestroy(*out);
    *out = NULL;
    return CU_STREAM_CAPTURE_INVALIDATED;
}

EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
    struct emu_stream *stream;
    CUresult rc = stream_find(handle, &stream);
    if (!rc)
        *status = !stream->capture ? 0 : stream->capture->is_broken ? 2 : 1;
    return rc;
}

EXPORT CUresult cuGraphGetNodes(const struct emu_graph *graph, void **nodes, size_t *count)
{
    size_t found = 0;
    for (struct node *node = graph->first; node; node = node->next) {
        if (nodes && found < *count)
            nodes[found] = node;
        found++;
    }
    *count = found;
    return CU_OK;
}

static CUresult instantiate(struct emu_graph **out, const struct emu_graph *graph)
{
    struct emu_graph *copy = calloc(1, sizeof(*copy));
    if (!copy || !graph) {
        free(copy);
        return graph ? CU_OUT_OF_MEMORY : CU_INVALID_VALUE;
    }
    copy->last = &copy->first;
    for (const struct node *node = graph->first; node; node = node->next) {
        struct emu_op *op = node->op ? copy_op(node->op) : NULL;
        if ((node->op && !op) || graph_note(copy, &node->item, op)) {
            cuGraphDestroy(copy);
            return CU_OUT_OF_MEMORY;
        }
    }
    *out = copy;
    return CU_OK;
}

EXPORT CUresult cuGraphInstantiateWithFlags(struct emu_graph **out, const struct emu_graph *graph,
                                            unsigned long long flags)
{
    (void)flags;
    return instantiate(out, graph);
}

EXPORT CUresult cuGraphInstantiate(struct emu_graph **out, const struct emu_graph *graph,
                                   void **error_node, char *log, size_t log_bytes)
{
    (void)error_node;
    if (log && log_bytes)
        *log = 0;
    return instantiate(out, graph);
}

EXPORT CUresult cuGraphInstantiate_v2(struct emu_graph **out, const struct emu_graph *graph,
                                      void **error_node, char *log, size_t log_bytes)
{
    return cuGraphInstantiate(out, graph, error_node, log, log_bytes);
}

EXPORT CUresult cuGraphExecDestroy(struct emu_graph *graph)
{
    return cuGraphDestroy(graph);
}

EXPORT CUresult cuGraphLaunch(const struct emu_graph *graph, CUstream handle)
{
    struct emu_stream *stream;
    CUresult rc = stream_find(handle, &stream);
    for (const struct node *node = graph->first; node && !rc; node = node->next) {
        struct emu_op *op = node->op ? copy_op(node->op) : NULL;
        rc = node->op && !op ? CU_OUT_OF_MEMORY : op_queue(stream, &node->item, op, NULL);
    }
    return rc;
}
