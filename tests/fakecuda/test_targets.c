// The same kernels (kernels/model.cuh) for every target, by two releases of NVRTC and with blocks and warps in any order must give the same bits:
// with -fmad=false their arithmetic is the same, however differently the compilers spell and arrange it.
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

static u64 first[KERNELS];
static int count;
static int same_as_the_first(int cc, const char *seed)
{
    static const char *const options[] = { "-fmad=false" };
    char *source = read_all("tests/fakecuda/kernels/model.cuh"), *ptx = compile(source, "model.cuh", cc, options, 1), number[16];
    int wrong = 0;
    fresh();
    snprintf(number, sizeof number, "%d", cc);
    CHECK(FC.set("cc", number) == 1 && FC.set("driver", "13020") == 1 && FC.set("seed", seed) == 1);
    CUmodule m = load_module(ptx);
    for (int k = 0; k < KERNELS; k++) {
        u64 h = digest(m, k);
        if (!count) first[k] = h;
        if (h != first[k]) fprintf(stderr, "%s for compute_%d, seed %s: other bits\n", names[k], cc, seed), wrong++;
    }
    count++;
    FC.set("seed", "0");
    free(source);
    free(ptx);
    CHECK(wrong == 0);
    return 0;
}

static int all_targets_give_the_same_bits(void)
{
    static const int targets[] = { 80, 86, 89, 90, 100, 120 };
    for (int i = 0; i < 6; i++) { int line = same_as_the_first(targets[i], "0"); if (line) return line; }
    for (int i = 1; i < KERNELS; i++) CHECK(first[i] != first[i - 1]);
    return 0;
}
static int any_order_of_blocks_and_warps_gives_the_same_bits(void)
{
    static const char *const seeds[] = { "1", "2", "77" };
    for (int i = 0; i < 3; i++) { int line = same_as_the_first(89, seeds[i]); if (line) return line; }
    return 0;
}
static int the_older_nvrtc_gives_the_same_bits(void)
{
    if (!use_nvrtc(12)) SKIP("no NVRTC 12 here");
    int line = same_as_the_first(80, "0");
    return line ? line : same_as_the_first(89, "0");
}

int main(void)
{
    open_card();
    if (!open_nvrtc()) { puts("no NVRTC here\n0 passed, 0 failed, 1 skipped"); return 0; }
    RUN(all_targets_give_the_same_bits);
    RUN(any_order_of_blocks_and_warps_gives_the_same_bits);
    RUN(the_older_nvrtc_gives_the_same_bits);
    return test_done();
}
