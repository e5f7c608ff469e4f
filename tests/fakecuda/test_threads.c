// Several workers share the blocks of a grid: the memory, the counters and the reports must be those of one worker.
#include "model_runs.h"

static char *ptx;

static const char atomics[] =
    "typedef unsigned int u32; typedef unsigned long long u64;\n"
    "extern \"C\" __global__ void tally(u32 *n, u32 *bins, u64 *most, float *sum)\n"
    "{\n"
    "    u32 i = blockIdx.x * blockDim.x + threadIdx.x;\n"
    "    atomicAdd(n, 1u);\n"
    "    atomicAdd(&bins[i % 7], i);\n"
    "    atomicMax(most, (u64)i << 20);\n"
    "    atomicAdd(sum, 1.0f);\n"
    "    u32 old = atomicAdd(&n[1], 0u), seen;\n"                            // an addition by hand, by compare and swap
    "    do { seen = old; old = atomicCAS(&n[1], seen, seen + 3); } while (old != seen);\n"
    "}\n"
    "extern \"C\" __global__ void race(float *y)\n"
    "{\n"
    "    __shared__ float s[64];\n"
    "    s[threadIdx.x] = (float)threadIdx.x;\n"
    "    y[blockIdx.x * 64 + threadIdx.x] = s[63 - threadIdx.x];\n"
    "}\n"
    "extern \"C\" __global__ void far(float *y, int n) { y[blockIdx.x == gridDim.x / 2 ? n : (int)blockIdx.x] = 1.0f; }\n"
    "extern \"C\" __global__ void unwritten(float *y, const float *x) { y[blockIdx.x] = x[blockIdx.x]; }\n";

static void fresh_with(const char *threads)
{
    fresh();
    if (FC.set("threads", threads) != 1) fprintf(stderr, "no field threads\n"), exit(1);
}

static int memory_and_counters_are_those_of_one_worker(void)
{
    char *source = read_all("tests/fakecuda/kernels/model.cuh"), *model = compile(source, "model.cuh", 89, NULL, 0), *counters[3];
    static const char *const threads[] = { "1", "2", "3" };
    u64 bits[3][KERNELS];
    for (int i = 0; i < 3; i++) {
        fresh_with(threads[i]);
        CUmodule m = load_module(model);
        for (int k = 0; k < KERNELS; k++) bits[i][k] = digest(m, k);
        counters[i] = FC.counters();
    }
    free(source);
    free(model);
    for (int i = 1; i < 3; i++) CHECK(!memcmp(bits[i], bits[0], sizeof *bits) && counters[i] && !strcmp(counters[i], counters[0]));
    CHECK(strlen(counters[0]) > 1000 && strstr(counters[0], "\"distinct_sectors\""));
    for (int i = 0; i < 3; i++) free(counters[i]);
    return 0;
}

static int atomics_of_all_workers_add_up(void)
{
    enum { BLOCKS = 96, THREADS = 128, ALL_THREADS = BLOCKS * THREADS };
    fresh_with("4");
    u32 n[2] = { 0, 0 }, bins[7] = { 0 }, want[7] = { 0 };
    u64 most = 0;
    float sum = 0;
    CUdeviceptr dn = device(n, 8), db = device(bins, sizeof bins), dm = device(&most, 8), ds = device(&sum, 4);
    for (u32 i = 0; i < ALL_THREADS; i++) want[i % 7] += i;
    run(function(load_module(ptx), "tally"), BLOCKS, THREADS, 0, ARGS(&dn, &db, &dm, &ds));
    fetch(n, dn, 8); fetch(bins, db, sizeof bins); fetch(&most, dm, 8); fetch(&sum, ds, 4);
    CHECK(n[0] == ALL_THREADS && n[1] == 3 * ALL_THREADS && sum == (float)ALL_THREADS && most == (u64)(ALL_THREADS - 1) << 20);
    CHECK(!memcmp(bins, want, sizeof bins));
    return 0;
}

static int the_last_block_sees_what_all_wrote(void)
{
    enum { N = 7777, BLOCKS = 9 };
    char *source = read_all("tests/fakecuda/kernels/model.cuh"), *model = compile(source, "model.cuh", 89, NULL, 0);
    int n = N;
    u32 arrived = 0;
    double sum = 0;
    fresh_with("2");
    float *x = random_floats(N, 1), out;
    for (int i = 0; i < N; i++) sum += x[i];
    CUdeviceptr dx = device(x, N * 4), dp = blank(BLOCKS * 4), da = device(&arrived, 4), dout = blank(4);
    CUmodule m = load_module(model);
    for (int round = 0; round < 100; round++) {
        run(function(m, "grid_sum"), BLOCKS, 128, 0, ARGS(&dx, &dp, &da, &dout, &n));
        fetch(&out, dout, 4);
        fetch(&arrived, da, 4);
        CHECK(fabs(out - sum) < 1e-3 && arrived == 0);
    }
    free(x);
    free(source);
    free(model);
    return 0;
}

static int each_check_reports_once_as_with_one_worker(void)
{
    float x[64] = { 0 };
    for (int threads = 1; threads <= 2; threads++) {
        fresh_with(threads == 1 ? "1" : "2");
        CHECK(FC.set("checks", "all") == 1);
        CUmodule m = load_module(ptx);
        CUdeviceptr y = device(x, sizeof x), big = device(NULL, 64 * 64 * 4), z = device(NULL, sizeof x);
        run(function(m, "race"), 64, 64, 0, ARGS(&big));
        CHECK(FC.reports("racecheck") == 1 && FC.reports(NULL) == 1);
        run(function(m, "unwritten"), 64, 1, 0, ARGS(&y, &z));
        CHECK(FC.reports("initcheck") == 1 && FC.reports(NULL) == 2);
    }
    return 0;
}

static int a_fault_of_one_worker_ends_the_launch(void)
{
    for (int round = 0; round < 20; round++) {
        fresh_with("2");
        int n = 64;
        CUdeviceptr y = device(NULL, 64 * 4);
        CUfunction f = function(load_module(ptx), "far");
        CHECK(CU.cuLaunchKernel(f, 64, 1, 1, 1, 1, 1, 0, NULL, ARGS(&y, &n), NULL) == CUDA_SUCCESS);
        CHECK(CU.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS && FC.reports("memcheck") == 1 && strstr(FC.report(0), "block (32,0,0)"));
    }
    return 0;
}

int main(void)
{
    open_card();
    if (!open_nvrtc()) { puts("no NVRTC here\n0 passed, 0 failed, 1 skipped"); return 0; }
    ptx = compile(atomics, "atomics.cu", 80, NULL, 0);
    RUN(memory_and_counters_are_those_of_one_worker);
    RUN(atomics_of_all_workers_add_up);
    RUN(the_last_block_sees_what_all_wrote);
    RUN(each_check_reports_once_as_with_one_worker);
    RUN(a_fault_of_one_worker_ends_the_launch);
    FC.reset();
    free(ptx);
    return test_done();
}
