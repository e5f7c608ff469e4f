// drv_stream.c: owns the queues: streams, events, and the order in which queued work runs.
// Nothing runs at its call. Work runs when something waits for it, as late as the laws of streams allow; with a seed, in an order drawn from
// all legal ones. So a program that lacks an event, or reads a result without waiting, sees it here.
#define _GNU_SOURCE
#include "driver.h"
#include <time.h>

enum { STAGED_LIMIT = 64 << 20 };                    // bytes of copies from pageable memory that may wait in queues

static drv_object *streams(void) { return &drv.lists[DRV_STREAM]; }

void drv_op_free(drv_op *op)
{
    if (op->staged) drv.staged_bytes -= op->bytes;
    if (op->event) {
        CUevent e = op->event;
        if (!--e->uses && e->dead) free(e->leaves), drv_free(e);
    }
    drv_body_drop(op->body);
    free(op->params);
    free(op->staged);
    free(op);
}

static void *copied(const void *p, size_t bytes)
{
    if (!p) return NULL;
    void *q = malloc(bytes ? bytes : 1);
    if (!q) drv_missing("memory for queued work");
    return memcpy(q, p, bytes);
}

drv_op *drv_op_copy(const drv_op *op)
{
    drv_op *o = copied(op, sizeof *op);
    o->params = copied(op->params, op->param_bytes);
    o->staged = copied(op->staged, op->bytes);
    if (o->staged) drv.staged_bytes += o->bytes;
    if (o->event) o->event->uses++;
    if (o->body) o->body->uses++;
    o->next = NULL;
    return o;
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

// ---- one operation

// Device memory may have been freed between the call and now; pinned memory too. Pageable memory cannot be checked.
static bool span_ok(uint64_t at, uint64_t bytes, bool pageable) { return pageable ? !drv_mem_freed(at) : drv_mem_inside(at, bytes); }

static CUresult run_copy(drv_op *op)
{
    bool src_host = op->staged || !drv_mem_find(op->src), dst_host = !drv_mem_find(op->dst);
    if (!span_ok(op->dst, op->bytes, dst_host) || (!op->staged && !span_ok(op->src, op->bytes, src_host))) {
        drv_report("memcheck", "a queued copy of %llu bytes found its memory freed or shorter when it ran", (unsigned long long)op->bytes);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    const void *from = op->staged ? (const void *)op->staged : (const void *)(uintptr_t)op->src;
    memmove((void *)(uintptr_t)op->dst, from, op->bytes);
    if (!dst_host) core_copied(drv_mem_find(op->dst), op->dst, src_host ? NULL : drv_mem_find(op->src), op->src, op->bytes);
    return CUDA_SUCCESS;
}

static CUresult run_set(drv_op *op)
{
    if (!drv_mem_inside(op->dst, op->bytes)) return CUDA_ERROR_ILLEGAL_ADDRESS;
    unsigned char *p = (unsigned char *)(uintptr_t)op->dst;
    if (op->width == 1) memset(p, (int)op->value, op->bytes);
    else for (uint64_t i = 0; i < op->bytes; i += 4) memcpy(p + i, &op->value, 4);
    drv_mem_written(op->dst, op->bytes);
    return CUDA_SUCCESS;
}

static void run_record(drv_op *op)
{
    if (op->event->done < op->turn) op->event->done = op->turn;
    op->event->when = now_ms();
}

CUresult drv_op_run(drv_op *op)
{
    drv_mem_open();
    switch (op->kind) {
    case DRV_KERNEL: return core_launch(op, ++drv.launches);
    case DRV_COPY: return run_copy(op);
    case DRV_SET: return run_set(op);
    case DRV_RECORD: run_record(op); return CUDA_SUCCESS;
    case DRV_WAIT: return CUDA_SUCCESS;
    default: return drv_body_run(op->body);
    }
}

// ---- which may run

static uint64_t first_seq(const struct CUstream_st *s) { return s->first ? s->first->seq : UINT64_MAX; }

static uint64_t first_blocking(void)
{
    uint64_t least = UINT64_MAX;
    for (drv_object *o = streams()->next; o && o != streams(); o = o->next) {
        CUstream s = (CUstream)o;
        if (s->blocking && first_seq(s) < least) least = first_seq(s);
    }
    return least;
}

// The default stream waits for what came before it in blocking streams, and those for what came before them in it.
static bool runnable(const struct CUstream_st *s)
{
    if (!s->first) return false;
    if (s->first->kind == DRV_WAIT && s->first->event->done < s->first->turn) return false;
    if (s == &drv.default_stream) return first_blocking() > s->first->seq;
    return !s->blocking || first_seq(&drv.default_stream) > s->first->seq;
}

static CUstream better(CUstream best, CUstream s, uint64_t *seen)
{
    if (!runnable(s)) return best;
    ++*seen;
    if (drv.card.seed) return drv_random(*seen) ? best : s;
    return !best || first_seq(s) < first_seq(best) ? s : best;
}

static CUstream choose(void)
{
    uint64_t seen = 0;
    CUstream best = better(NULL, &drv.default_stream, &seen);
    for (drv_object *o = streams()->next; o && o != streams(); o = o->next) best = better(best, (CUstream)o, &seen);
    return best;
}

static void pop(CUstream s)
{
    drv_op *op = s->first;
    s->first = op->next;
    if (!s->first) s->last = NULL;
    drv_op_free(op);
}

// After a fault nothing more runs: what was queued is lost, and no one waits for it.
static void drop_all(CUstream s)
{
    while (s->first) {
        if (s->first->kind == DRV_RECORD) run_record(s->first);
        pop(s);
    }
}

static void faulted(CUresult r)
{
    drv.sticky = r;
    drop_all(&drv.default_stream);
    for (drv_object *o = streams()->next; o && o != streams(); o = o->next) drop_all((CUstream)o);
}

bool drv_step(void)
{
    CUstream s = choose();
    if (!s) return false;
    CUresult r = drv_op_run(s->first);
    pop(s);
    if (r != CUDA_SUCCESS) faulted(r);
    return true;
}

CUresult drv_drain(CUstream s)
{
    while (s->first) if (!drv_step()) drv_missing("an order in which the queued work can run (a stream waits for an event that cannot come)");
    return drv.sticky;
}

CUresult drv_drain_event(CUevent e)
{
    uint64_t turn = e->asked;
    while (e->done < turn) if (!drv_step()) drv_missing("an order in which the queued work can run (an event that cannot come)");
    return drv.sticky;
}

CUresult drv_drain_all(void)
{
    while (drv_step()) {}
    return drv.sticky;
}

static bool touches(const drv_op *op, uint64_t lo, uint64_t bytes)
{
    if (op->kind != DRV_COPY) return false;
    return (op->dst < lo + bytes && lo < op->dst + op->bytes) || (!op->staged && op->src < lo + bytes && lo < op->src + op->bytes);
}

bool drv_in_flight(uint64_t lo, uint64_t bytes)
{
    for (const drv_op *op = drv.default_stream.first; op; op = op->next) if (touches(op, lo, bytes)) return true;
    for (drv_object *o = streams()->next; o && o != streams(); o = o->next)
        for (const drv_op *op = ((CUstream)o)->first; op; op = op->next) if (touches(op, lo, bytes)) return true;
    return false;
}

// ---- queueing

CUresult drv_stream_arg(CUstream *s)
{
    if (!*s || *s == (CUstream)1) { *s = &drv.default_stream; return CUDA_SUCCESS; }
    if (*s == (CUstream)2) drv_missing("the per-thread default stream");
    return drv_is(*s, DRV_STREAM) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static drv_op *op_new(int kind)
{
    drv_op *op = calloc(1, sizeof *op);
    if (!op) drv_missing("memory for queued work");
    op->kind = kind;
    return op;
}

static CUresult enqueue_on(CUstream s, drv_op *op)
{
    CUresult r = drv_stream_arg(&s);
    if (r != CUDA_SUCCESS) drv_op_free(op);
    return r != CUDA_SUCCESS ? r : drv_submit(s, op);
}

// ---- copies and fills

// Both ends must lie in memory that is allowed there now; the host's end may be any pageable memory.
static CUresult copy_arg(uint64_t dst, uint64_t src, uint64_t bytes, bool dst_host, bool src_host)
{
    bool ok = (dst_host ? !drv_mem_freed(dst) && dst : drv_mem_inside(dst, bytes)) && (src_host ? !drv_mem_freed(src) && src : drv_mem_inside(src, bytes));
    drv_range *d = dst_host ? drv_mem_find(dst) : NULL, *s = src_host ? drv_mem_find(src) : NULL;
    if (d && !drv_mem_inside(dst, bytes)) ok = false;
    if (s && !drv_mem_inside(src, bytes)) ok = false;
    if (!ok) drv_report("memcheck", "copy of %llu bytes from 0x%llx to 0x%llx leaves an allocation", (unsigned long long)bytes, (unsigned long long)src, (unsigned long long)dst);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// From pageable memory the bytes are taken at the call; to pageable memory the call returns when they are there.
static CUresult copy(uint64_t dst, uint64_t src, uint64_t bytes, bool dst_host, bool src_host, CUstream s, bool wait)
{
    CUresult r = drv_stream_arg(&s);
    if (r != CUDA_SUCCESS || !bytes) return r;
    r = copy_arg(dst, src, bytes, dst_host, src_host);
    if (r != CUDA_SUCCESS) return r;
    bool stage = src_host && !drv_mem_pinned((void *)(uintptr_t)src, bytes), late = dst_host && !drv_mem_pinned((void *)(uintptr_t)dst, bytes);
    if ((stage || late) && s->capture) { drv_invalidate(s->capture); return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; }
    drv_op *op = op_new(DRV_COPY);
    op->dst = dst; op->src = src; op->bytes = bytes;
    if (stage) op->staged = copied((void *)(uintptr_t)src, bytes), drv.staged_bytes += bytes;
    r = drv_submit(s, op);
    if (r == CUDA_SUCCESS && (wait || late || drv.staged_bytes > STAGED_LIMIT)) r = drv_drain(s);
    return r;
}

#define AT(p) ((uint64_t)(uintptr_t)(p))
CUresult_CALL cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{ ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE); LEAVE(copy(dst, AT(src), bytes, false, true, NULL, true)); }
CUresult_CALL cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{ ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE); LEAVE(copy(AT(dst), src, bytes, true, false, NULL, true)); }
CUresult_CALL cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{ ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE); LEAVE(copy(dst, src, bytes, false, false, NULL, false)); }
CUresult_CALL cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes, CUstream s)
{ ENTER(DRV_CTX); LEAVE(copy(dst, AT(src), bytes, false, true, s, false)); }
CUresult_CALL cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes, CUstream s)
{ ENTER(DRV_CTX); LEAVE(copy(AT(dst), src, bytes, true, false, s, false)); }
CUresult_CALL cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream s)
{ ENTER(DRV_CTX); LEAVE(copy(dst, src, bytes, false, false, s, false)); }

static CUresult fill(CUdeviceptr dst, unsigned value, unsigned width, size_t count, CUstream s)
{
    if (!count) return CUDA_SUCCESS;
    if (count > SIZE_MAX / width || dst % width || !drv_mem_inside(dst, (uint64_t)count * width)) return CUDA_ERROR_INVALID_VALUE;
    drv_op *op = op_new(DRV_SET);
    op->dst = dst; op->bytes = (uint64_t)count * width; op->value = value; op->width = width;
    return enqueue_on(s, op);
}
CUresult_CALL cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t count)
{ ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE); LEAVE(fill(dst, value, 1, count, NULL)); }
CUresult_CALL cuMemsetD32_v2(CUdeviceptr dst, unsigned value, size_t count)
{ ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE); LEAVE(fill(dst, value, 4, count, NULL)); }
CUresult_CALL cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t count, CUstream s) { ENTER(DRV_CTX); LEAVE(fill(dst, value, 1, count, s)); }
CUresult_CALL cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t count, CUstream s) { ENTER(DRV_CTX); LEAVE(fill(dst, value, 4, count, s)); }

// ---- streams

static CUresult stream_new(CUstream *out, unsigned flags)
{
    if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    CUstream s = drv_new(DRV_STREAM, sizeof *s);
    s->blocking = flags != CU_STREAM_NON_BLOCKING;
    *out = s;
    return CUDA_SUCCESS;
}
CUresult_CALL cuStreamCreate(CUstream *s, unsigned flags) { ENTER(DRV_CTX); LEAVE(stream_new(s, flags)); }
// Both may be NULL; numbers fall as priority rises.
CUresult_CALL cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(DRV_CTX);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuStreamCreateWithPriority(CUstream *s, unsigned flags, int priority) { ENTER(DRV_CTX); (void)priority; LEAVE(stream_new(s, flags)); }

// The driver lets queued work finish after the handle is gone; here it is finished first.
CUresult_CALL cuStreamDestroy_v2(CUstream s)
{
    ENTER(DRV_CTX);
    if (!drv_is(s, DRV_STREAM)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    if (s->capture) drv_invalidate(s->capture);
    CUresult r = drv_drain(s);
    free(s->leaves);
    drv_free(s);
    LEAVE(r);
}

CUresult_CALL cuStreamSynchronize(CUstream s)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    if (r == CUDA_SUCCESS) r = drv_capture_guard(s);
    if (r == CUDA_SUCCESS) r = drv_drain(s);
    LEAVE(r);
}

// A program may ask until it is done: each question lets one operation run.
CUresult_CALL cuStreamQuery(CUstream s)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    if (r == CUDA_SUCCESS) r = drv_capture_guard(s);
    if (r != CUDA_SUCCESS) LEAVE(r);
    bool busy = s->first != NULL;
    if (busy) drv_step();
    if (drv.sticky) LEAVE(drv.sticky);
    LEAVE(busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

// ---- events

CUresult_CALL cuEventCreate(CUevent *out, unsigned flags)
{
    ENTER(DRV_CTX);
    if (!out || flags > 3) LEAVE(CUDA_ERROR_INVALID_VALUE);
    CUevent e = drv_new(DRV_EVENT, sizeof *e);
    e->flags = flags;
    *out = e;
    LEAVE(CUDA_SUCCESS);
}

static bool event_ok(CUevent e) { return drv_is(e, DRV_EVENT) && !e->dead; }

static CUresult record_in_capture(CUevent e, CUstream s)
{
    if (s->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    free(e->leaves);
    e->leaves = copied(s->leaves, s->nleaves * sizeof *s->leaves);
    e->nleaves = s->nleaves;
    e->capture = s->capture;
    return CUDA_SUCCESS;
}

CUresult_CALL cuEventRecord(CUevent e, CUstream s)
{
    ENTER(DRV_CTX);
    CUresult r = drv_stream_arg(&s);
    if (r == CUDA_SUCCESS && !event_ok(e)) r = CUDA_ERROR_INVALID_HANDLE;
    if (r != CUDA_SUCCESS) LEAVE(r);
    if (s->capture) LEAVE(record_in_capture(e, s));
    e->capture = NULL;
    drv_op *op = op_new(DRV_RECORD);
    op->event = e;
    op->turn = ++e->asked;
    e->uses++;
    LEAVE(drv_submit(s, op));
}

// Waiting for an event of a capture takes the stream into that capture.
static CUresult wait_in_capture(CUstream s, CUevent e)
{
    if (s == &drv.default_stream) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (s->capture && s->capture != e->capture) { drv_invalidate(s->capture); return CUDA_ERROR_STREAM_CAPTURE_MERGE; }
    if (!s->capture) s->capture = e->capture, s->origin = false, s->invalid = false, s->owner = pthread_self(), s->nleaves = 0;
    if (s->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    size_t *both = malloc((s->nleaves + e->nleaves + 1) * sizeof *both);
    if (!both) drv_missing("memory for a capture");
    memcpy(both, s->leaves ? s->leaves : both, s->nleaves * sizeof *both);
    memcpy(both + s->nleaves, e->leaves ? e->leaves : both, e->nleaves * sizeof *both);
    free(s->leaves);
    s->leaves = both;
    s->nleaves += e->nleaves;
    return CUDA_SUCCESS;
}

CUresult_CALL cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags)
{
    ENTER(DRV_CTX);
    CUresult r = flags ? CUDA_ERROR_INVALID_VALUE : drv_stream_arg(&s);
    if (r == CUDA_SUCCESS && !event_ok(e)) r = CUDA_ERROR_INVALID_HANDLE;
    if (r != CUDA_SUCCESS) LEAVE(r);
    if (e->capture) LEAVE(wait_in_capture(s, e));
    if (s->capture) { drv_invalidate(s->capture); LEAVE(CUDA_ERROR_STREAM_CAPTURE_ISOLATION); }
    if (e->done >= e->asked) LEAVE(CUDA_SUCCESS);    // never recorded, or reached already
    drv_op *op = op_new(DRV_WAIT);
    op->event = e;
    op->turn = e->asked;
    e->uses++;
    LEAVE(drv_submit(s, op));
}

static CUresult event_arg(CUevent e)
{
    if (!event_ok(e)) return CUDA_ERROR_INVALID_HANDLE;
    if (!e->capture) return drv_capture_guard(NULL);
    drv_invalidate(e->capture);
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult_CALL cuEventQuery(CUevent e)
{
    ENTER(DRV_CTX);
    CUresult r = event_arg(e);
    if (r != CUDA_SUCCESS) LEAVE(r);
    bool busy = e->done < e->asked;
    if (busy) drv_step();
    if (drv.sticky) LEAVE(drv.sticky);
    LEAVE(busy ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult_CALL cuEventSynchronize(CUevent e)
{
    ENTER(DRV_CTX);
    CUresult r = event_arg(e);
    LEAVE(r != CUDA_SUCCESS ? r : drv_drain_event(e));
}

static CUresult elapsed(float *ms, CUevent a, CUevent b)
{
    if (!ms) return CUDA_ERROR_INVALID_VALUE;
    if (!event_ok(a) || !event_ok(b) || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) || !a->asked || !b->asked) return CUDA_ERROR_INVALID_HANDLE;
    if (a->done < a->asked || b->done < b->asked) return CUDA_ERROR_NOT_READY;
    *ms = (float)(b->when - a->when);
    return CUDA_SUCCESS;
}
CUresult_CALL cuEventElapsedTime(float *ms, CUevent a, CUevent b) { ENTER(DRV_CTX); LEAVE(elapsed(ms, a, b)); }
CUresult_CALL cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b) { ENTER(DRV_CTX); LEAVE(elapsed(ms, a, b)); }

CUresult_CALL cuEventDestroy_v2(CUevent e)
{
    ENTER(DRV_CTX);
    if (!event_ok(e)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    if (e->uses) e->dead = true;
    else free(e->leaves), drv_free(e);
    LEAVE(CUDA_SUCCESS);
}
