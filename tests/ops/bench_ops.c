// Speed of the operations: bytes of weights per second when one row is multiplied (decoding), multiply-adds per second when many are
// (a prompt). Not a test: run it on a quiet machine, and note the load beside the numbers. bench_ops [threads [vector units, or c]]
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <time.h>

typedef struct bench { g3__run r; g3__pool pool; g3_error err; const g3__ops *op; } bench;

// With one thread: its processor time, which other programs disturb less.
static bool alone = true;
static double now(void) { return alone ? (double)clock() / CLOCKS_PER_SEC : g3__clock(); }

static void *take(size_t size)
{
    char *p = (char *)malloc(size);
    if (!p) exit(1);
    for (size_t i = 0; i < size; i++) p[i] = (char)(0x30 | (i * 2654435761u >> 13 & 15));      // normal numbers of middling size in every format
    return p;
}

static g3__seg weights(g3__format format, int rows, int cols, bool tiled)
{
    const size_t n = (size_t)rows * (size_t)cols;
    g3__seg s = G3__ZERO;
    s.rows = rows;
    s.bits.format = format;
    s.bits.data = take(n * g3__format_bits(format) / 8 + 64);                    // look-ups of vector units read a little beyond
    s.bits.tiled = tiled;
    s.bits.blocksize = 64;
    s.bits.nested_blocksize = 256;
    s.bits.absmax = take(n / 64 * sizeof(float));
    return s;
}

static void release(g3__seg *s) { free((void *)(uintptr_t)s->bits.data); free((void *)(uintptr_t)s->bits.absmax); }

static double best_of(bench *b, float *y, const float *x, const g3__mat *W, int n)       // seconds of one product
{
    double best = 1e9, start = now();
    for (int i = 0; i < 3 || now() - start < 0.3; i++) {
        double t = now();
        b->op->linear(&b->r, y, x, NULL, W, n);
        best = G3__MIN(best, now() - t);
    }
    return best;
}

static void linear(bench *b, const char *name, g3__format format)
{
    const int rows = 16384, cols = 2560, batch = 128;
    float *x = (float *)take(sizeof(float) * (size_t)cols * (size_t)batch), *y = (float *)take(sizeof(float) * (size_t)rows * (size_t)batch);
    g3__mat W = G3__ZERO;
    W.rows = rows; W.cols = cols; W.n_segs = 1;
    W.seg[0] = weights(format, rows, cols, b->r.simd != NULL);
    double n = (double)rows * cols, one = best_of(b, y, x, &W, 1), many = best_of(b, y, x, &W, batch);
    printf("linear %-5s  1 row: %6.2f GB/s %6.2f Gweights/s   %d rows: %6.1f GFLOP/s\n", name,
           n * g3__format_bits(format) / 8 / one / 1e9, n / one / 1e9, batch, 2 * n * batch / many / 1e9);
    release(&W.seg[0]);
    free(x); free(y);
}

static void attend(bench *b, const char *name, g3_kv format, int heads, int kv_heads, int d)
{
    const int context = 4096, batch = 128;
    const size_t stride = (size_t)(heads + 2 * kv_heads) * (size_t)d, cells = (size_t)context * (size_t)kv_heads * (size_t)d;
    float *qkv = (float *)take(sizeof(float) * stride * (size_t)batch), *y = (float *)take(sizeof(float) * (size_t)heads * (size_t)d * (size_t)batch);
    g3__kv kv = G3__ZERO;
    g3__attn a = G3__ZERO;
    g3__row row[128];
    kv.format = format; kv.rows = context; kv.kv_heads = kv_heads; kv.head_dim = d;
    kv.k = take(cells * 4); kv.v = take(cells * 4);
    kv.k_scale = (float *)take(sizeof(float) * (size_t)context * (size_t)kv_heads);
    kv.v_scale = (float *)take(sizeof(float) * (size_t)context * (size_t)kv_heads);
    a.heads = heads; a.kv_heads = kv_heads; a.head_dim = d; a.scale = 0.0625f; a.angles = -1;
    b->r.shape.heads = heads; b->r.shape.kv_heads = kv_heads; b->r.shape.head_dim = d;
    b->r.a.work = (float *)take(sizeof(float) * g3__work_each(&b->r.shape) * (size_t)b->r.shape.width);
    for (int t = 0; t < batch; t++) { row[t].pos = row[t].span = context - batch + t; row[t].seq = 0; }
    double t1 = 1e9, tn = 1e9;
    for (int i = 0; i < 9; i++) {
        double t = now();
        b->op->attend(&b->r, y, qkv, &a, &kv, row + batch - 1, 1);
        t1 = G3__MIN(t1, now() - t);
    }
    for (int i = 0; i < 2; i++) {
        double t = now();
        b->op->attend(&b->r, y, qkv, &a, &kv, row, batch);
        tn = G3__MIN(tn, now() - t);
    }
    printf("attend %-5s heads %d/%d x %d, %d keys:  1 row: %6.2f GB/s of cache   %d rows: %6.1f GFLOP/s\n", name, heads, kv_heads, d, context,
           2 * (double)cells * g3__kv_size(format) / t1 / 1e9, batch, 4.0 * heads * d * context * batch / tn / 1e9);
    free(qkv); free(y); free(kv.k); free(kv.v); free(kv.k_scale); free(kv.v_scale); free(b->r.a.work);
}

static void geglu(bench *b)
{
    const int m = 10240, n = 16;
    float *gu = (float *)take(sizeof(float) * 2 * (size_t)m * (size_t)n), *y = (float *)take(sizeof(float) * (size_t)m * (size_t)n);
    double best = 1e9;
    for (int i = 0; i < 2 * m * n; i++) gu[i] = (float)(i % 97) / 16 - 3;
    for (int i = 0; i < 9; i++) {
        double t = now();
        b->op->geglu(&b->r, y, gu, m, n);
        best = G3__MIN(best, now() - t);
    }
    printf("geglu: %.1f ns an element\n", best / m / n * 1e9);
    free(gu); free(y);
}

int main(int argc, char **argv)
{
    bench b;
    memset(&b, 0, sizeof b);
    g3__pool_init(&b.pool, argc > 1 ? atoi(argv[1]) : 1, NULL);
    b.r.simd = g3__simd_pick(argc > 2 ? argv[2] : NULL);
    b.op = b.r.op = g3__cpu_table(b.r.simd);
    b.r.err = &b.err;
    b.r.pool = &b.pool;
    b.r.shape.width = g3__pool_width(&b.pool);
    alone = b.r.shape.width == 1;
    printf("%d thread(s), %s\n", b.r.shape.width, argc > 2 ? argv[2] : "the best vector units here");
    linear(&b, "f32", G3__F32);
    linear(&b, "bf16", G3__BF16);
    linear(&b, "f16", G3__F16);
    linear(&b, "e4m3", G3__E4M3);
    linear(&b, "nf4", G3__NF4);
    attend(&b, "f32", G3_KV_F32, 8, 4, 256);
    attend(&b, "bf16", G3_KV_BF16, 8, 4, 256);
    attend(&b, "fp8", G3_KV_FP8, 8, 4, 256);
    attend(&b, "int8", G3_KV_INT8, 8, 4, 256);
    attend(&b, "bf16", G3_KV_BF16, 4, 1, 256);
    attend(&b, "bf16", G3_KV_BF16, 32, 16, 128);
    geglu(&b);
    g3__pool_free(&b.pool);
    return b.err.code != G3_OK;
}
