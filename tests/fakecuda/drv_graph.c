// drv_graph.c: owns captures and graphs. A capture turns calls on a stream into nodes that know which nodes they come after.
// An executable graph is a copy: scalars of kernels are those of the capture, whatever the program does to its variables later.
// Nodes run in an order that the dependencies allow; with a seed, in one drawn from all of those.
#define _GNU_SOURCE
#include "driver.h"

static drv_body *body_new(void)
{
    drv_body *b = calloc(1, sizeof *b);
    if (!b) drv_missing("memory for a graph");
    b->uses = 1;
    return b;
}

static size_t *deps_copy(const size_t *deps, size_t n)
{
    size_t *d = malloc((n + 1) * sizeof *d);
    if (!d) drv_missing("memory for a graph");
    if (n) memcpy(d, deps, n * sizeof *d);
    return d;
}

static void body_add(drv_body *b, drv_op *op, const size_t *deps, size_t n)
{
    if (b->n == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 64;
        b->nodes = realloc(b->nodes, b->cap * sizeof *b->nodes);
        if (!b->nodes) drv_missing("memory for a graph");
    }
    b->nodes[b->n++] = (drv_node){op, deps_copy(deps, n), n};
}

drv_body *drv_body_copy(const drv_body *from)
{
    drv_body *b = body_new();
    for (size_t i = 0; i < from->n; i++) body_add(b, drv_op_copy(from->nodes[i].op), from->nodes[i].deps, from->nodes[i].ndeps);
    return b;
}

void drv_body_drop(drv_body *b)
{
    if (!b || --b->uses) return;
    for (size_t i = 0; i < b->n; i++) drv_op_free(b->nodes[i].op), free(b->nodes[i].deps);
    free(b->nodes);
    free(b);
}

// ---- running

static bool ready(const drv_body *b, const bool *done, size_t i)
{
    if (done[i]) return false;
    for (size_t d = 0; d < b->nodes[i].ndeps; d++) if (!done[b->nodes[i].deps[d]]) return false;
    return true;
}

// Nodes stand in the order of capture, so the first that is not done is always ready.
static size_t next_node(const drv_body *b, const bool *done, size_t low)
{
    if (!drv.card.seed) return low;
    size_t pick = low;
    uint64_t seen = 0;
    for (size_t i = low; i < b->n; i++) if (ready(b, done, i) && !drv_random(++seen)) pick = i;
    return pick;
}

CUresult drv_body_run(drv_body *b)
{
    bool *done = calloc(b->n + 1, sizeof *done);
    if (!done) drv_missing("memory for a graph");
    CUresult r = CUDA_SUCCESS;
    for (size_t ran = 0, low = 0; ran < b->n && r == CUDA_SUCCESS; ran++) {
        while (done[low]) low++;
        size_t i = next_node(b, done, low);
        r = drv_op_run(b->nodes[i].op);
        done[i] = true;
    }
    free(done);
    return r;
}

// ---- capture

typedef void visit(CUstream s, void *ctx);
static void each_stream(visit *f, void *ctx)
{
    drv_object *list = &drv.lists[DRV_STREAM];
    for (drv_object *o = list->next; o && o != list; o = o->next) f((CUstream)o, ctx);
}

static void invalidate(CUstream s, void *graph) { if (s->capture == graph) s->invalid = true; }
void drv_invalidate(CUgraph graph) { each_stream(invalidate, graph); }

static __thread int thread_mode;                     // cuThreadExchangeStreamCaptureMode

// A call that a capture forbids also ends the capture's hopes: on hardware the mistake shows at cuStreamEndCapture again.
static void forbid(CUstream s, void *hit)
{
    if (!s->capture || !s->origin || s->mode == CU_STREAM_CAPTURE_MODE_RELAXED || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
    bool own = pthread_equal(s->owner, pthread_self());
    if (!own && (s->mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL || thread_mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)) return;
    drv_invalidate(s->capture);
    *(bool *)hit = true;
}

CUresult drv_capture_guard(CUstream s)
{
    if (s && s->capture) {
        drv_invalidate(s->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    bool hit = false;
    each_stream(forbid, &hit);
    return hit ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static void implicit(CUstream s, void *hit)
{
    if (!s->capture || !s->blocking) return;
    drv_invalidate(s->capture);
    *(bool *)hit = true;
}

static CUresult capture_op(CUstream s, drv_op *op)
{
    if (s->invalid) {
        drv_op_free(op);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    drv_body *b = s->capture->body;
    if (op->kind == DRV_GRAPH_RUN) drv_missing("a graph launched inside a capture (child graphs)");
    body_add(b, op, s->leaves, s->nleaves);
    free(s->leaves);
    s->leaves = deps_copy(NULL, 0);
    s->leaves[0] = b->n - 1;
    s->nleaves = 1;
    return CUDA_SUCCESS;
}

CUresult drv_submit(CUstream s, drv_op *op)
{
    if (s->capture) return capture_op(s, op);
    bool hit = false;
    if (s == &drv.default_stream) each_stream(implicit, &hit);
    if (hit) {
        drv_op_free(op);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    op->seq = ++drv.seq;
    if (s->last) s->last->next = op;
    else s->first = op;
    s->last = op;
    return CUDA_SUCCESS;
}

CUresult_CALL cuStreamBeginCapture_v2(CUstream s, int mode)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    if (r == CUDA_SUCCESS && s == &drv.default_stream) r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (r == CUDA_SUCCESS && mode > CU_STREAM_CAPTURE_MODE_RELAXED) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && s->capture) r = CUDA_ERROR_ILLEGAL_STATE;
    if (r != CUDA_SUCCESS) LEAVE(r);
    s->capture = drv_new(DRV_GRAPH, sizeof *s->capture);
    s->capture->body = body_new();
    s->origin = true;
    s->invalid = false;
    s->mode = mode;
    s->owner = pthread_self();
    s->nleaves = 0;
    LEAVE(CUDA_SUCCESS);
}

static void mark(const drv_body *b, bool *seen, const size_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (seen[from[i]]) continue;
        seen[from[i]] = true;
        mark(b, seen, b->nodes[from[i]].deps, b->nodes[from[i]].ndeps);
    }
}

// Every node must come before the end of the first stream; a branch that was not waited for would be lost.
static bool joined(CUstream s)
{
    const drv_body *b = s->capture->body;
    bool *seen = calloc(b->n + 1, sizeof *seen);
    if (!seen) drv_missing("memory for a graph");
    mark(b, seen, s->leaves, s->nleaves);
    bool all = true;
    for (size_t i = 0; i < b->n; i++) all = all && seen[i];
    free(seen);
    return all;
}

static void leave_capture(CUstream s, void *graph)
{
    if (s->capture != graph) return;
    s->capture = NULL;
    s->nleaves = 0;
    s->invalid = s->origin = false;
}

// An event of a capture that is over is as good as never recorded.
static void forget_events(CUgraph g)
{
    drv_object *list = &drv.lists[DRV_EVENT];
    for (drv_object *o = list->next; o && o != list; o = o->next) if (((CUevent)o)->capture == g) ((CUevent)o)->capture = NULL;
}

CUresult_CALL cuStreamEndCapture(CUstream s, CUgraph *graph)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    if (r == CUDA_SUCCESS && !graph) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && !s->capture) r = CUDA_ERROR_ILLEGAL_STATE;
    if (r == CUDA_SUCCESS && !s->origin) r = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (r == CUDA_SUCCESS && s->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(s->owner, pthread_self())) r = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (r != CUDA_SUCCESS) LEAVE(r);
    CUgraph g = s->capture;
    if (s->invalid) r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(s)) r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    each_stream(leave_capture, g);
    forget_events(g);
    *graph = r == CUDA_SUCCESS ? g : NULL;
    if (r != CUDA_SUCCESS) drv_body_drop(g->body), drv_free(g);
    LEAVE(r);
}

CUresult_CALL cuStreamIsCapturing(CUstream s, int *status)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    if (r == CUDA_SUCCESS && !status) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        *status = !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE : s->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    LEAVE(r);
}

CUresult_CALL cuThreadExchangeStreamCaptureMode(int *mode)
{
    ENTER(DRV_CTX);
    if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) LEAVE(CUDA_ERROR_INVALID_VALUE);
    int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    LEAVE(CUDA_SUCCESS);
}

// ---- graphs

CUresult_CALL cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    ENTER(DRV_CTX);
    if (!exec || flags > 15) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!drv_is(graph, DRV_GRAPH)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    CUgraphExec e = drv_new(DRV_EXEC, sizeof *e);
    e->body = drv_body_copy(graph->body);
    *exec = e;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuGraphLaunch(CUgraphExec exec, CUstream s)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    if (r == CUDA_SUCCESS && !drv_is(exec, DRV_EXEC)) r = CUDA_ERROR_INVALID_HANDLE;
    if (r != CUDA_SUCCESS) LEAVE(r);
    drv_op *op = calloc(1, sizeof *op);
    if (!op) drv_missing("memory for queued work");
    op->kind = DRV_GRAPH_RUN;
    op->body = exec->body;
    op->body->uses++;
    LEAVE(drv_submit(s, op));
}

CUresult_CALL cuGraphUpload(CUgraphExec exec, CUstream s)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    LEAVE(r == CUDA_SUCCESS && !drv_is(exec, DRV_EXEC) ? CUDA_ERROR_INVALID_HANDLE : r);
}

static int node_differs(const drv_node *a, const drv_node *b)
{
    if (a->op->kind != b->op->kind) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (a->ndeps != b->ndeps || memcmp(a->deps, b->deps, a->ndeps * sizeof *a->deps)) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static int bodies_differ(const drv_body *a, const drv_body *b)
{
    if (a->n != b->n) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < a->n; i++) {
        int why = node_differs(&a->nodes[i], &b->nodes[i]);
        if (why) return why;
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// Launches that were queued before keep the body of their time.
CUresult_CALL cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    ENTER(DRV_CTX);
    if (!info) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!drv_is(exec, DRV_EXEC) || !drv_is(graph, DRV_GRAPH)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    *info = (CUgraphExecUpdateResultInfo){.result = bodies_differ(exec->body, graph->body)};
    if (info->result) LEAVE(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
    drv_body_drop(exec->body);
    exec->body = drv_body_copy(graph->body);
    LEAVE(CUDA_SUCCESS);
}

// The addresses of nodes serve as their handles: they can be counted, and nothing else.
CUresult_CALL cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    ENTER(DRV_CTX);
    if (!count) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!drv_is(graph, DRV_GRAPH)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    size_t n = graph->body->n;
    for (size_t i = 0; nodes && i < *count; i++) nodes[i] = i < n ? (CUgraphNode)&graph->body->nodes[i] : NULL;
    if (!nodes || n < *count) *count = n;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuGraphDestroy(CUgraph graph)
{
    ENTER(DRV_CTX);
    if (!drv_is(graph, DRV_GRAPH)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    drv_body_drop(graph->body);
    drv_free(graph);
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuGraphExecDestroy(CUgraphExec exec)
{
    ENTER(DRV_CTX);
    if (!drv_is(exec, DRV_EXEC)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    drv_body_drop(exec->body);
    drv_free(exec);
    LEAVE(CUDA_SUCCESS);
}
