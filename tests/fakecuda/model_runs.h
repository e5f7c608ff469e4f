// model_runs.h: nine kernels of kernels/model.cuh on small inputs that are always the same, and a digest of what each writes: for tests that ask for
// the same bits in other circumstances.
#ifndef MODEL_RUNS_H
#define MODEL_RUNS_H
#include "model_data.h"

enum { KERNELS = 9, OUT = 16384 };
static const char *const names[KERNELS] = { "rms_norm", "gemv_bf16", "gemv_nf4_lut", "gemv_nf4_prmt", "gemm_nf4", "attend_decode", "attend_prefill", "rope_table", "geglu_fast" };

// Inputs are the same every time; one blank array takes what each kernel writes.
typedef struct inputs { CUdeviceptr x, r, w, bytes, floats, table, out, stat, position; nf4 m; } inputs;

static inputs make_inputs(void)
{
    rand_state = 20261201;
    inputs i = { .m = nf4_random(64, 256) };
    int position = 5;
    float *x = random_floats(OUT, 1), *f = random_floats(OUT, 3);
    bf16 *r = random_bf16(OUT, 1), *w = random_bf16(OUT, 1);
    u8 *b = random_e4m3(OUT);
    i.x = device(x, OUT * 4); i.floats = device(f, OUT * 4); i.table = device(f, OUT * 4); i.r = device(r, OUT * 2); i.w = device(w, OUT * 2); i.bytes = device(b, OUT);
    i.out = blank(OUT * 4); i.stat = blank(1024); i.position = device(&position, 4);
    free(x); free(f); free(r); free(w); free(b);
    return i;
}

static void launch(CUmodule m, int kernel, inputs *i)
{
    CUfunction f = function(m, names[kernel]);
    int n = 512, rows = 61, cols = 256, M = 50, q_heads = 2, kv_heads = 1, start = 2, len = 30, splits = 2, T = 20, window = 9, small = 1000;
    float eps = 1e-6f, scale2 = 0.09f;
    switch (kernel) {
        case 0: run(f, 4, 128, 0, ARGS(&i->x, &i->r, &i->w, &i->out, &n, &eps)); break;
        case 1: run(f, 16, 128, 0, ARGS(&i->w, &i->r, &i->out, &rows, &cols)); break;
        case 2: case 3: run(f, 16, 128, 0, ARGS(&i->m.dw, &i->m.dq, &i->m.douter, &i->m.dcode, &i->m.offset, &i->r, &i->out, &rows, &cols)); break;
        case 4: run2(f, 1, 1, 128, 28672, ARGS(&i->r, &i->m.dw, &i->m.dq, &i->m.douter, &i->m.dcode, &i->m.offset, &i->out, &M, &i->m.rows, &cols)); break;
        case 5: run2(f, 2, 2, 128, 0, ARGS(&i->r, &i->bytes, &i->bytes, &i->out, &i->stat, &q_heads, &kv_heads, &start, &len, &splits, &scale2)); break;
        case 6: run2(f, 1, 2, 128, 32768, ARGS(&i->r, &i->bytes, &i->bytes, &i->out, &q_heads, &kv_heads, &T, &start, &window, &scale2)); break;
        case 7: run(f, 3, 128, 0, ARGS(&i->w, &i->table, &i->position)); i->out = i->w; break;
        default: run(f, 4, 256, 0, ARGS(&i->floats, &i->x, &i->out, &small)); break;
    }
}

static u64 digest(CUmodule m, int kernel)                // FNV-1a over what the kernel wrote
{
    inputs i = make_inputs();
    launch(m, kernel, &i);
    u64 h = 14695981039346656037u;
    size_t bytes = kernel == 7 ? OUT * 2 : OUT * 4;
    u8 *out = fetched(i.out, bytes);
    for (size_t k = 0; k < bytes; k++) h = (h ^ out[k]) * 1099511628211u;
    free(out);
    nf4_free(&i.m);
    return h;
}
#endif
