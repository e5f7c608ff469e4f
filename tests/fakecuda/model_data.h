// model_data.h: data and plain C references for the kernels of kernels/model.cuh.
// References work in double from the same inputs; what a kernel rounds on the way (bf16, e4m3) is in the tolerance or rounded here too.
#ifndef MODEL_DATA_H
#define MODEL_DATA_H
#include "oracle.h"
#include <math.h>

typedef uint8_t u8;
typedef uint16_t bf16;
typedef uint32_t u32;
typedef uint64_t u64;

static void *need(void *p) { if (!p) abort(); return p; }
static bf16 *random_bf16(size_t n, double scale) { bf16 *p = need(malloc(n * 2)); for (size_t i = 0; i < n; i++) p[i] = bf16_of((float)rand_pm(scale)); return p; }
static float *random_floats(size_t n, double scale) { float *p = need(malloc(n * 4)); for (size_t i = 0; i < n; i++) p[i] = (float)rand_pm(scale); return p; }
static u8 *random_bytes(size_t n) { u8 *p = need(malloc(n)); for (size_t i = 0; i < n; i++) p[i] = (u8)(rand64() >> 33); return p; }
static u8 *random_e4m3(size_t n) { u8 *p = random_bytes(n); for (size_t i = 0; i < n; i++) p[i] &= 0xbf; return p; }      // below 2, no NaN

// An output array of the kernel, filled with a pattern that no result is, so that what was not written shows.
static CUdeviceptr blank(size_t bytes) { void *p = need(malloc(bytes)); memset(p, 0xee, bytes); CUdeviceptr d = device(p, bytes); free(p); return d; }
static void *fetched(CUdeviceptr p, size_t bytes) { void *h = need(malloc(bytes)); fetch(h, p, bytes); return h; }

// ---- 4-bit weights as bitsandbytes stores them

static const float nf4_value[16] = { -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f };
typedef struct nf4 { int rows, cols; u8 *w, *q; float *outer, code[256], offset; CUdeviceptr dw, dq, douter, dcode; } nf4;

static nf4 nf4_random(int rows, int cols)
{
    size_t n = (size_t)rows * (size_t)cols;
    nf4 m = { .rows = rows, .cols = cols, .w = random_bytes(n / 2), .q = random_bytes(n / 64), .outer = random_floats(n / 16384 + 1, 0.01), .offset = 0.02f };
    for (size_t i = 0; i < n / 16384 + 1; i++) m.outer[i] = 0.01f + fabsf(m.outer[i]);
    for (int i = 0; i < 256; i++) m.code[i] = ((float)i - 127.5f) / 128;
    m.dw = device(m.w, n / 2);
    m.dq = device(m.q, n / 64);
    m.douter = device(m.outer, (n / 16384 + 1) * 4);
    m.dcode = device(m.code, sizeof m.code);
    return m;
}
static void nf4_free(nf4 *m)
{
    free(m->w); free(m->q); free(m->outer);
    CU.cuMemFree_v2(m->dw); CU.cuMemFree_v2(m->dq); CU.cuMemFree_v2(m->douter); CU.cuMemFree_v2(m->dcode);
}
static int nf4_code(const nf4 *m, size_t e) { return e & 1 ? m->w[e / 2] & 15 : m->w[e / 2] >> 4; }
static float nf4_absmax(const nf4 *m, size_t e) { return fmaf(m->code[m->q[e / 64]], m->outer[e / 16384], m->offset); }      // one rounding, as NVRTC makes it

// ---- comparing: the worst of |got - want| / (bound * (|want| + floor)), which must not be above 1

static double worst;
static void compare(double got, double want, double bound, double floor)
{
    double off = fabs(got - want) / (bound * (fabs(want) + floor));
    if (!(off <= worst)) worst = off != off ? INFINITY : off;
}
#define CLOSE(name) do { if (!(worst <= 1)) fprintf(stderr, "%s: %.3g of what is allowed\n", name, worst); CHECK(worst <= 1); } while (0)
#endif
