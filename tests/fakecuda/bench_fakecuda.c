// bench_fakecuda.c: how fast the emulated card is on one core, counters on: the NF4 GEMVs, the bf16 GEMV, the tensor-core GEMM, and parsing.
// The best of several runs is printed; nothing is tested.
#include "model_data.h"
#include <time.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + (double)t.tv_nsec * 1e-9; }
static double best(CUfunction f, unsigned gx, unsigned gy, unsigned shared, void **args)
{
    double least = INFINITY;
    for (int i = 0; i < 6; i++) {
        double t = now();
        run2(f, gx, gy, 128, shared, args);
        least = fmin(least, now() - t);
    }
    return least;
}

int main(void)
{
    open_card();
    if (!open_nvrtc()) { puts("no NVRTC here"); return 0; }
    fresh();
    char *source = read_all("tests/fakecuda/kernels/model.cuh"), *ptx = compile(source, "model.cuh", 89, NULL, 0);
    double parse = INFINITY;
    CUmodule m = NULL;
    for (int i = 0; i < 5; i++) {
        if (m) CU.cuModuleUnload(m);
        double t = now();
        m = load_module(ptx);
        parse = fmin(parse, now() - t);
    }
    printf("module of %zu KB of PTX: %.1f ms (%.1f ms for 220 KB)\n", strlen(ptx) / 1024, parse * 1e3, parse * 1e3 * 220 * 1024 / (double)strlen(ptx));

    nf4 q = nf4_random(2048, 5376);
    double weights = 2048.0 * 5376;
    bf16 *x = random_bf16(64 * 5376, 1), *w = random_bf16(2048 * 1152, 1);
    int cols = 1152, M = 64, N = 256, K = 1152;
    CUdeviceptr dx = device(x, 64 * 5376 * 2), dw = device(w, 2048 * 1152 * 2), y = device(NULL, 1 << 20);
    void **gemv = ARGS(&q.dw, &q.dq, &q.douter, &q.dcode, &q.offset, &dx, &y, &q.rows, &q.cols);
    printf("gemv_nf4_prmt  %7.1f M weights/s\n", weights / best(function(m, "gemv_nf4_prmt"), 512, 1, 0, gemv) / 1e6);
    printf("gemv_nf4_lut   %7.1f M weights/s\n", weights / best(function(m, "gemv_nf4_lut"), 512, 1, 0, gemv) / 1e6);
    printf("gemv_bf16      %7.1f M weights/s\n", 2048.0 * 1152 / best(function(m, "gemv_bf16"), 512, 1, 0, ARGS(&dw, &dx, &y, &q.rows, &cols)) / 1e6);
    double t = best(function(m, "gemm_nf4"), (unsigned)N / 64, (unsigned)M / 64, 28672, ARGS(&dx, &q.dw, &q.dq, &q.douter, &q.dcode, &q.offset, &y, &M, &N, &K));
    printf("gemm_nf4 (mma) %7.2f GMAC/s\n", (double)M * N * K / t / 1e9);
    free(source); free(ptx); free(x); free(w);
    nf4_free(&q);
    return 0;
}
