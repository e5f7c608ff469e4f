// Streams, events and graphs: work runs late and in every legal order, never in another; what a capture may hold, and what ends it.
#include "driver_test.h"

static CUstream stream(unsigned flags)
{
    CUstream s = NULL;
    if (CU.cuStreamCreate(&s, flags)) exit(1);
    return s;
}

static CUevent event(void)
{
    CUevent e = NULL;
    if (CU.cuEventCreate(&e, CU_EVENT_DISABLE_TIMING)) exit(1);
    return e;
}

static float *pinned(int n)
{
    void *p = NULL;
    if (CU.cuMemHostAlloc(&p, (size_t)n * 4, 0)) exit(1);
    memset(p, 0, (size_t)n * 4);
    return p;
}

static void seed(int n)
{
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    FC.set("seed", text);
}

#define OK(call) CHECK((call) == CUDA_SUCCESS)

static int pinned_sources_are_read_late_and_pageable_ones_at_the_call(void)
{
    float plain = 1, y[2];
    fresh();
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr d = device_floats(NULL, 2);
    float *p = pinned(1);
    *p = 1;
    OK(CU.cuMemcpyHtoDAsync_v2(d, p, 4, s));
    OK(CU.cuMemcpyHtoDAsync_v2(d + 4, &plain, 4, s));
    *p = plain = 2;
    CHECK(CU.cuStreamQuery(s) == CUDA_ERROR_NOT_READY);
    OK(CU.cuStreamSynchronize(s));
    OK(CU.cuStreamQuery(s));
    OK(CU.cuMemcpyDtoH_v2(y, d, 8));
    CHECK(y[0] == 2 && y[1] == 1);
    return 0;
}

static int results_in_pinned_memory_come_with_the_wait(void)
{
    float x = 5;
    fresh();
    CUstream s = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr d = device_floats(&x, 1);
    float *p = pinned(1), plain = 0;
    OK(CU.cuMemcpyDtoHAsync_v2(p, d, 4, s));
    CHECK(*p == 0);
    OK(CU.cuMemcpyDtoHAsync_v2(&plain, d, 4, s));    // pageable: the call itself waits
    CHECK(*p == 5 && plain == 5);
    return 0;
}

// Two streams that write one word: without an event both orders happen over the seeds, with one only the ordered one.
static int last_writer(int n, int ordered, float *out)
{
    fresh();
    seed(n);
    CUstream a = stream(CU_STREAM_NON_BLOCKING), b = stream(CU_STREAM_NON_BLOCKING);
    CUdeviceptr d = device_floats(NULL, 1);
    CUevent e = event();
    OK(CU.cuMemsetD32Async(d, 0x3f800000, 1, a));
    OK(CU.cuEventRecord(e, a));
    if (ordered) OK(CU.cuStreamWaitEvent(b, e, 0));
    OK(CU.cuMemsetD32Async(d, 0x40000000, 1, b));
    OK(CU.cuCtxSynchronize());
    OK(CU.cuMemcpyDtoH_v2(out, d, 4));
    return 0;
}

static int seeds_show_a_missing_event_and_keep_a_present_one(void)
{
    int first = 0, second = 0;
    for (int n = 1; n <= 40; n++) {
        float y;
        CHECK(last_writer(n, 0, &y) == 0);
        if (y == 1) first++;
        else second++;
        CHECK(last_writer(n, 1, &y) == 0 && y == 2);
    }
    CHECK(first > 0 && second > 0);
    return 0;
}

static int one_seed_gives_one_order(void)
{
    for (int n = 1; n <= 10; n++) {
        float y, z;
        CHECK(last_writer(n, 0, &y) == 0 && last_writer(n, 0, &z) == 0 && y == z);
    }
    return 0;
}

// The default stream waits for blocking streams, and not for the others.
static int default_stream_sees(int n, unsigned flags, float *out)
{
    fresh();
    seed(n);
    CUdeviceptr d = device_floats((float[]){0}, 1);
    CUstream s = stream(flags);
    float *p = pinned(1);
    OK(CU.cuMemsetD32Async(d, 0x3f800000, 1, s));
    OK(CU.cuMemcpyDtoHAsync_v2(p, d, 4, NULL));
    OK(CU.cuStreamSynchronize(NULL));
    *out = *p;
    return 0;
}

static int the_default_stream_orders_blocking_streams_only(void)
{
    int missed = 0;
    for (int n = 1; n <= 40; n++) {
        float y;
        CHECK(default_stream_sees(n, CU_STREAM_DEFAULT, &y) == 0 && y == 1);
        CHECK(default_stream_sees(n, CU_STREAM_NON_BLOCKING, &y) == 0);
        missed += y == 0;
    }
    CHECK(missed > 0);
    return 0;
}

static int a_wait_binds_to_the_record_before_it(void)
{
    fresh();
    CUstream a = stream(1), b = stream(1);
    CUevent e = event();
    OK(CU.cuStreamWaitEvent(b, e, 0));               // never recorded: no wait
    OK(CU.cuEventQuery(e));
    OK(CU.cuEventRecord(e, a));
    CHECK(CU.cuEventQuery(e) == CUDA_ERROR_NOT_READY);
    OK(CU.cuEventSynchronize(e));
    OK(CU.cuEventQuery(e));
    OK(CU.cuEventRecord(e, a));
    OK(CU.cuStreamWaitEvent(b, e, 0));
    OK(CU.cuEventDestroy_v2(e));                     // allowed while it is waited for
    CHECK(CU.cuEventRecord(e, a) == CUDA_ERROR_INVALID_HANDLE);
    OK(CU.cuStreamSynchronize(b));
    return 0;
}

static int events_measure_only_when_asked_to(void)
{
    CUevent a, b;
    float ms = -1;
    fresh();
    OK(CU.cuEventCreate(&a, 0));
    OK(CU.cuEventCreate(&b, 0));
    CHECK(CU.cuEventElapsedTime(&ms, a, b) == CUDA_ERROR_INVALID_HANDLE);
    OK(CU.cuEventRecord(a, NULL));
    OK(CU.cuEventRecord(b, NULL));
    CHECK(CU.cuEventElapsedTime(&ms, a, b) == CUDA_ERROR_NOT_READY);
    OK(CU.cuEventSynchronize(b));
    CHECK(CU.cuEventElapsedTime(&ms, a, b) == CUDA_SUCCESS && ms >= 0);
    CHECK(CU.cuEventElapsedTime(&ms, event(), b) == CUDA_ERROR_INVALID_HANDLE);
    return 0;
}

static int pinned_memory_in_flight_is_not_to_be_freed(void)
{
    fresh();
    CUstream s = stream(1);
    CUdeviceptr d = device_floats(NULL, 1);
    float *p = pinned(1);
    OK(CU.cuMemcpyHtoDAsync_v2(d, p, 4, s));
    OK(CU.cuMemFreeHost(p));
    CHECK(FC.reports("memcheck") == 1);
    p = pinned(1);
    OK(CU.cuMemcpyHtoDAsync_v2(d, p, 4, s));
    OK(CU.cuStreamSynchronize(s));
    OK(CU.cuMemFreeHost(p));
    CHECK(FC.reports("memcheck") == 1);
    return 0;
}

static int dead_handles_are_known(void)
{
    fresh();
    CUstream s = stream(0);
    OK(CU.cuStreamDestroy_v2(s));
    CHECK(CU.cuStreamSynchronize(s) == CUDA_ERROR_INVALID_HANDLE && CU.cuStreamDestroy_v2(s) == CUDA_ERROR_INVALID_HANDLE);
    CHECK(CU.cuGraphLaunch((CUgraphExec)s, NULL) == CUDA_ERROR_INVALID_HANDLE);
    return 0;
}

// ---- capture

static int a_capture_runs_nothing_and_a_graph_runs_it_all(void)
{
    CUgraph g;
    CUgraphExec x;
    float y;
    size_t n = 0;
    fresh();
    CUstream s = stream(1);
    CUdeviceptr d = device_floats((float[]){0, 0}, 2);
    OK(CU.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(CU.cuMemsetD32Async(d, 0x3f800000, 1, s));
    OK(CU.cuMemcpyDtoDAsync_v2(d + 4, d, 4, s));
    OK(CU.cuStreamEndCapture(s, &g));
    CHECK(CU.cuGraphGetNodes(g, NULL, &n) == CUDA_SUCCESS && n == 2);
    OK(CU.cuMemcpyDtoH_v2(&y, d + 4, 4));
    CHECK(y == 0);
    OK(CU.cuGraphInstantiateWithFlags(&x, g, 0));
    OK(CU.cuGraphDestroy(g));
    OK(CU.cuGraphLaunch(x, s));
    OK(CU.cuGraphExecDestroy(x));                    // what is queued still runs
    OK(CU.cuStreamSynchronize(s));
    OK(CU.cuMemcpyDtoH_v2(&y, d + 4, 4));
    CHECK(y == 1);
    return 0;
}

static int forbidden_calls_end_a_capture(void)
{
    fresh();
    CUdeviceptr p;
    CUgraph g = (CUgraph)1;
    CUstream s = stream(1);
    int status;
    OK(CU.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(CU.cuMemAlloc_v2(&p, 4) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(CU.cuStreamIsCapturing(s, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    CHECK(CU.cuStreamEndCapture(s, &g) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && g == NULL);
    OK(CU.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(CU.cuMemAlloc_v2(&p, 4));                     // what global mode forbids, relaxed mode allows
    OK(CU.cuStreamEndCapture(s, &g));
    OK(CU.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(CU.cuStreamSynchronize(s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(CU.cuStreamEndCapture(s, &g) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(CU.cuStreamBeginCapture_v2(NULL, 0) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(CU.cuStreamEndCapture(s, &g) == CUDA_ERROR_ILLEGAL_STATE);
    return 0;
}

static int pageable_copies_cannot_be_captured(void)
{
    float x = 1;
    fresh();
    CUgraph g;
    CUstream s = stream(1);
    CUdeviceptr d = device_floats(NULL, 1);
    OK(CU.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CHECK(CU.cuMemcpyHtoDAsync_v2(d, &x, 4, s) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK(CU.cuStreamEndCapture(s, &g) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    return 0;
}

static int branches_must_be_joined(void)
{
    CUgraph g;
    fresh();
    CUstream a = stream(1), b = stream(1);
    CUevent fork = event(), join = event();
    CUdeviceptr d = device_floats(NULL, 2);
    for (int joined = 0; joined < 2; joined++) {
        OK(CU.cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(CU.cuMemsetD32Async(d, 1, 1, a));
        OK(CU.cuEventRecord(fork, a));
        OK(CU.cuStreamWaitEvent(b, fork, 0));
        OK(CU.cuMemsetD32Async(d + 4, 1, 1, b));
        OK(CU.cuEventRecord(join, b));
        if (joined) OK(CU.cuStreamWaitEvent(a, join, 0));
        CHECK(CU.cuStreamEndCapture(b, &g) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        CHECK(CU.cuStreamEndCapture(a, &g) == (joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED));
    }
    OK(CU.cuStreamSynchronize(b));                   // the other stream is free again
    return 0;
}

static int update_takes_the_same_shape_only(void)
{
    CUgraph g[3];
    CUgraphExec x;
    CUgraphExecUpdateResultInfo info;
    unsigned y;
    fresh();
    CUstream s = stream(1);
    CUdeviceptr d = device_floats(NULL, 1);
    for (unsigned i = 0; i < 3; i++) {
        OK(CU.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(CU.cuMemsetD32Async(d, i, 1, s));
        if (i == 2) OK(CU.cuMemsetD32Async(d, 7, 1, s));
        OK(CU.cuStreamEndCapture(s, &g[i]));
    }
    OK(CU.cuGraphInstantiateWithFlags(&x, g[0], 0));
    CHECK(CU.cuGraphExecUpdate_v2(x, g[2], &info) == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE && info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
    OK(CU.cuGraphExecUpdate_v2(x, g[1], &info));
    OK(CU.cuGraphLaunch(x, s));
    OK(CU.cuStreamSynchronize(s));
    OK(CU.cuMemcpyDtoH_v2(&y, d, 4));
    CHECK(y == 1);
    return 0;
}

int main(void)
{
    open_card();
    RUN(pinned_sources_are_read_late_and_pageable_ones_at_the_call);
    RUN(results_in_pinned_memory_come_with_the_wait);
    RUN(seeds_show_a_missing_event_and_keep_a_present_one);
    RUN(one_seed_gives_one_order);
    RUN(the_default_stream_orders_blocking_streams_only);
    RUN(a_wait_binds_to_the_record_before_it);
    RUN(events_measure_only_when_asked_to);
    RUN(pinned_memory_in_flight_is_not_to_be_freed);
    RUN(dead_handles_are_known);
    RUN(a_capture_runs_nothing_and_a_graph_runs_it_all);
    RUN(forbidden_calls_end_a_capture);
    RUN(pageable_copies_cannot_be_captured);
    RUN(branches_must_be_joined);
    RUN(update_takes_the_same_shape_only);
    FC.reset();
    return test_done();
}
