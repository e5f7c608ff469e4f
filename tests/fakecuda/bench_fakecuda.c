// bench_fakecuda.c: how fast the emulated card is, counters on: the NF4 GEMVs, the bf16 GEMV, the tensor-core GEMM, and parsing.
// The best of several runs is printed; nothing is tested. `bench_fakecuda NAME [RUNS]` runs one alone; FAKECUDA=threads=2 takes two cores.
#include "model_data.h"
#include <time.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return (double)t.tv_sec + (double)t.tv_nsec * 1e-9; }

typedef struct bench { const char *kernel, *unit; double work, scale; unsigned gx, gy, shared; void **args; } bench;

static void measure(CUmodule m, const bench *b, int runs)
{
    double least = INFINITY;
    for (int i = 0; i < runs; i++) {
        double t = now();
        run2(function(m, b->kernel), b->gx, b->gy, 128, b->shared, b->args);
        least = fmin(least, now() - t);
    }
    printf("%-14s %8.2f %s\n", b->kernel, b->work / least / b->scale, b->unit);
}

static CUmodule parsed(const char *ptx)
{
    double least = INFINITY;
    CUmodule m = NULL;
    for (int i = 0; i < 5; i++) {
        if (m) CU.cuModuleUnload(m);
        double t = now();
        m = load_module(ptx);
        least = fmin(least, now() - t);
    }
    printf("module of %zu KB of PTX: %.1f ms (%.1f ms for 220 KB)\n", strlen(ptx) / 1024, least * 1e3, least * 1e3 * 220 * 1024 / (double)strlen(ptx));
    return m;
}

int main(int argc, char **argv)
{
    open_card();
    if (!open_nvrtc()) { puts("no NVRTC here"); return 0; }
    fresh();
    char *source = read_all("tests/fakecuda/kernels/model.cuh"), *ptx = compile(source, "model.cuh", 89, NULL, 0);
    CUmodule m = parsed(ptx);
    nf4 q = nf4_random(2048, 5376);
    bf16 *x = random_bf16(64 * 5376, 1), *w = random_bf16(2048 * 1152, 1);
    int cols = 1152, M = 64, N = 256, K = 1152, runs = argc > 2 ? atoi(argv[2]) : 6;
    CUdeviceptr dx = device(x, 64 * 5376 * 2), dw = device(w, 2048 * 1152 * 2), y = device(NULL, 1 << 20);
    void **gemv = ARGS(&q.dw, &q.dq, &q.douter, &q.dcode, &q.offset, &dx, &y, &q.rows, &q.cols);
    const bench all[] = {
        { "gemv_nf4_prmt", "M weights/s", 2048.0 * 5376, 1e6, 512, 1, 0, gemv },
        { "gemv_nf4_lut", "M weights/s", 2048.0 * 5376, 1e6, 512, 1, 0, gemv },
        { "gemv_bf16", "M weights/s", 2048.0 * 1152, 1e6, 512, 1, 0, ARGS(&dw, &dx, &y, &q.rows, &cols) },
        { "gemm_nf4", "GMAC/s (mma)", (double)M * N * K, 1e9, (unsigned)N / 64, (unsigned)M / 64, 28672,
          ARGS(&dx, &q.dw, &q.dq, &q.douter, &q.dcode, &q.offset, &y, &M, &N, &K) },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) if (argc < 2 || !strcmp(argv[1], all[i].kernel)) measure(m, &all[i], runs);
    free(source); free(ptx); free(x); free(w);
    nf4_free(&q);
    return 0;
}
