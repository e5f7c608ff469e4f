// The representative kernels (kernels/model.cuh), as NVRTC compiles them for several targets, against plain C. Shapes are uneven where kernels allow it.
#include "model_data.h"

static CUmodule kernels;
#define BF16_BOUND 0x1p-8                                // a rounding to bf16 moves a number by 2^-9 of itself; twice that is allowed

static int rms_norm_adds_and_scales(void)
{
    enum { ROWS = 5, N = 1152 };
    float *x = random_floats(ROWS * N, 1), eps = 1e-6f;
    bf16 *r = random_bf16(ROWS * N, 1), *w = random_bf16(N, 1);
    int n = N;
    CUdeviceptr dx = device(x, ROWS * N * 4), dr = device(r, ROWS * N * 2), dw = device(w, N * 2), dy = blank(ROWS * N * 2);
    run(function(kernels, "rms_norm"), ROWS, 256, 0, ARGS(&dx, &dr, &dw, &dy, &n, &eps));
    float *sum = fetched(dx, ROWS * N * 4);
    bf16 *y = fetched(dy, ROWS * N * 2);
    worst = 0;
    for (int i = 0; i < ROWS; i++) {
        double square = 0;
        for (int j = 0; j < N; j++) {
            x[i * N + j] += (float)bf16_value(r[i * N + j]);
            CHECK(sum[i * N + j] == x[i * N + j]);
            square += (double)x[i * N + j] * x[i * N + j];
        }
        for (int j = 0; j < N; j++) compare(bf16_value(y[i * N + j]), x[i * N + j] / sqrt(square / N + eps) * (1 + bf16_value(w[j])), BF16_BOUND, 1e-6);
    }
    CLOSE("rms_norm");
    free(x); free(r); free(w); free(sum); free(y);
    return 0;
}

static int gemv_bf16_sums_rows(void)
{
    enum { ROWS = 203, COLS = 1160 };                    // a block's last warps have no row, a warp's last step not all lanes
    bf16 *w = random_bf16((size_t)ROWS * COLS, 1), *x = random_bf16(COLS, 1);
    int rows = ROWS, cols = COLS;
    CUdeviceptr dw = device(w, (size_t)ROWS * COLS * 2), dx = device(x, COLS * 2), dy = blank((ROWS + 8) * 4);
    run(function(kernels, "gemv_bf16"), (ROWS + 3) / 4, 128, 0, ARGS(&dw, &dx, &dy, &rows, &cols));
    float *y = fetched(dy, (ROWS + 8) * 4);
    worst = 0;
    for (int i = 0; i < ROWS; i++) {
        double sum = 0;
        for (int j = 0; j < COLS; j++) sum += bf16_value(w[(size_t)i * COLS + j]) * bf16_value(x[j]);
        compare(y[i], sum, 1e-6, 30);
    }
    for (int i = ROWS; i < ROWS + 8; i++) CHECK(f_bits(y[i]) == 0xeeeeeeee);
    CLOSE("gemv_bf16");
    free(w); free(x); free(y);
    return 0;
}

static int gemv_nf4(const char *name, bool codes_in_bf16)
{
    nf4 m = nf4_random(130, 1344);
    bf16 *x = random_bf16(1344, 1);
    CUdeviceptr dx = device(x, 1344 * 2), dy = blank(130 * 4);
    run(function(kernels, name), 33, 128, 0, ARGS(&m.dw, &m.dq, &m.douter, &m.dcode, &m.offset, &dx, &dy, &m.rows, &m.cols));
    float *y = fetched(dy, 130 * 4);
    worst = 0;
    for (int i = 0; i < m.rows; i++) {
        double sum = 0;
        for (int j = 0; j < m.cols; j++) {
            size_t e = (size_t)i * (size_t)m.cols + (size_t)j;
            float v = nf4_value[nf4_code(&m, e)];
            sum += (codes_in_bf16 ? bf16_value(bf16_of(v)) : (double)v) * nf4_absmax(&m, e) * bf16_value(x[j]);
        }
        compare(y[i], sum, 1e-6, 1);
    }
    nf4_free(&m);
    free(x); free(y);
    CLOSE(name);
    return 0;
}
static int gemv_nf4_by_table(void) { return gemv_nf4("gemv_nf4_lut", false); }
static int gemv_nf4_by_permutation(void) { return gemv_nf4("gemv_nf4_prmt", true); }

static int gemm_nf4_multiplies(void)
{
    enum { M = 100, N = 128, K = 448 };
    nf4 m = nf4_random(N, K);
    bf16 *a = random_bf16(M * K, 1);
    int mm = M, n = N, k = K;
    CUdeviceptr da = device(a, M * K * 2), dc = blank((M + 1) * N * 4);
    CUfunction f = function(kernels, "gemm_nf4");
    run2(f, N / 64, (M + 63) / 64, 128, 16384 + 4096 + 8192, ARGS(&da, &m.dw, &m.dq, &m.douter, &m.dcode, &m.offset, &dc, &mm, &n, &k));
    float *c = fetched(dc, (M + 1) * N * 4);
    worst = 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0, size = 0;
            for (int l = 0; l < K; l++) {
                size_t e = (size_t)j * K + (size_t)l;
                double w = bf16_value(bf16_of((float)bf16_value(bf16_of(nf4_value[nf4_code(&m, e)])) * nf4_absmax(&m, e))), v = w * bf16_value(a[i * K + l]);
                sum += v;
                size += fabs(v);
            }
            compare(c[i * N + j], sum, 17 * 0x1p-23, size);
        }
    for (int j = 0; j < N; j++) CHECK(f_bits(c[M * N + j]) == 0xeeeeeeee);
    nf4_free(&m);
    free(a); free(c);
    CLOSE("gemm_nf4");
    return 0;
}

// One head's attention in double: positions [first, last] of a cache of e4m3, a query in bf16.
static void attend(const bf16 *q, const u8 *keys, const u8 *values, int kv, int kv_heads, int d, int first, int last, double *out)
{
    double *w = need(malloc((size_t)(last - first + 1) * sizeof *w)), top = -INFINITY, sum = 0;
    for (int p = first; p <= last; p++) {
        double s = 0;
        for (int i = 0; i < d; i++) s += bf16_value(q[i]) * e4m3_value(keys[((size_t)p * (size_t)kv_heads + (size_t)kv) * (size_t)d + (size_t)i]);
        w[p - first] = s / sqrt(d);
        top = fmax(top, w[p - first]);
    }
    for (int p = first; p <= last; p++) sum += w[p - first] = exp(w[p - first] - top);
    for (int i = 0; i < d; i++) {
        double v = 0;
        for (int p = first; p <= last; p++) v += w[p - first] * e4m3_value(values[((size_t)p * (size_t)kv_heads + (size_t)kv) * (size_t)d + (size_t)i]);
        out[i] = v / sum;
    }
    free(w);
}

static int decode_attends_in_parts(void)
{
    enum { Q = 4, KV = 2, D = 256, START = 3, LEN = 101, SPLITS = 5 };
    int q_heads = Q, kv_heads = KV, start = START, len = LEN, splits = SPLITS;
    float scale2 = 1.4426950408889634f / 16;
    bf16 *q = random_bf16(Q * D, 1);
    u8 *k = random_e4m3((START + LEN) * KV * D), *v = random_e4m3((START + LEN) * KV * D);
    CUdeviceptr dq = device(q, Q * D * 2), dk = device(k, (START + LEN) * KV * D), dv = device(v, (START + LEN) * KV * D);
    CUdeviceptr part = blank(Q * SPLITS * D * 4), stat = blank(Q * SPLITS * 8), dout = blank(Q * D * 2);
    run2(function(kernels, "attend_decode"), Q, SPLITS, 128, 0, ARGS(&dq, &dk, &dv, &part, &stat, &q_heads, &kv_heads, &start, &len, &splits, &scale2));
    run(function(kernels, "attend_merge"), Q, 256, 0, ARGS(&part, &stat, &dout, &splits));
    bf16 *out = fetched(dout, Q * D * 2);
    worst = 0;
    for (int h = 0; h < Q; h++) {
        double want[D];
        attend(q + h * D, k, v, h / (Q / KV), KV, D, START, START + LEN - 1, want);
        for (int i = 0; i < D; i++) compare(bf16_value(out[h * D + i]), want[i], BF16_BOUND, 1e-3);
    }
    free(q); free(k); free(v); free(out);
    CLOSE("attend_decode");
    return 0;
}

static int prefill_attends_in_a_window(void)
{
    enum { Q = 2, KV = 1, D = 128, START = 21, T = 85, WINDOW = 50 };
    int q_heads = Q, kv_heads = KV, t = T, start = START, window = WINDOW;
    float scale2 = 1.4426950408889634f / sqrtf(128);
    bf16 *q = random_bf16(T * Q * D, 1);
    u8 *k = random_e4m3((START + T) * KV * D), *v = random_e4m3((START + T) * KV * D);
    CUdeviceptr dq = device(q, T * Q * D * 2), dk = device(k, (START + T) * KV * D), dv = device(v, (START + T) * KV * D), dout = blank((T + 1) * Q * D * 2);
    run2(function(kernels, "attend_prefill"), (T + 63) / 64, Q, 128, 32768, ARGS(&dq, &dk, &dv, &dout, &q_heads, &kv_heads, &t, &start, &window, &scale2));
    bf16 *out = fetched(dout, (T + 1) * Q * D * 2);
    worst = 0;
    for (int r = 0; r < T; r++)
        for (int h = 0; h < Q; h++) {
            double want[D];
            int last = START + r, first = last - WINDOW + 1 > 0 ? last - WINDOW + 1 : 0;
            attend(q + (r * Q + h) * D, k, v, 0, KV, D, first, last, want);
            for (int i = 0; i < D; i++) compare(bf16_value(out[(r * Q + h) * D + i]), want[i], BF16_BOUND, 0.5);      // weights are bf16: the sum of their roundings
        }
    for (int i = 0; i < Q * D; i++) CHECK(out[T * Q * D + i] == 0xeeee);
    free(q); free(k); free(v); free(out);
    CLOSE("attend_prefill");
    return 0;
}

static int rope_turns_pairs_and_fills_the_cache(void)
{
    enum { HEADS = 3, D = 256 };
    int position = 777;
    float log2_base = 13.287712f, stretch = 0.125f;
    bf16 *x = random_bf16(HEADS * D, 1);
    CUdeviceptr dx = device(x, HEADS * D * 2), dc = blank(HEADS * D), dp = device(&position, 4);
    run(function(kernels, "rope_cache"), HEADS, 128, 0, ARGS(&dx, &dc, &dp, &log2_base, &stretch));
    bf16 *y = fetched(dx, HEADS * D * 2);
    u8 *cache = fetched(dc, HEADS * D);
    worst = 0;
    for (int h = 0; h < HEADS; h++) {
        double square = 0;
        for (int i = 0; i < D; i++) square += bf16_value(x[h * D + i]) * bf16_value(x[h * D + i]);
        double scale = 1 / sqrt(square / D + 1e-6);
        for (int i = 0; i < D / 2; i++) {
            double angle = position * stretch * exp2(-log2_base * i / 128.0), a = bf16_value(x[h * D + i]) * scale, b = bf16_value(x[h * D + i + 128]) * scale;
            double u = a * cos(angle) - b * sin(angle), v = b * cos(angle) + a * sin(angle);
            compare(bf16_value(y[h * D + i]), u, BF16_BOUND, 0.02);
            compare(bf16_value(y[h * D + i + 128]), v, BF16_BOUND, 0.02);
            compare(e4m3_value(cache[h * D + i]), u, 1.0 / 15, 0.03);
            compare(e4m3_value(cache[h * D + i + 128]), v, 1.0 / 15, 0.03);
        }
    }
    free(x); free(y); free(cache);
    CLOSE("rope_cache");
    return 0;
}

static int rope_by_table_turns_alike(void)
{
    enum { HEADS = 2, D = 256, POSITIONS = 4 };
    int position = 3;
    float table[POSITIONS][128][2];
    for (int p = 0; p < POSITIONS; p++) for (int i = 0; i < 128; i++) { table[p][i][0] = (float)cos(p * 10 + i); table[p][i][1] = (float)sin(p * 10 + i); }
    bf16 *x = random_bf16(HEADS * D, 1);
    CUdeviceptr dx = device(x, HEADS * D * 2), dt = device(table, sizeof table), dp = device(&position, 4);
    run(function(kernels, "rope_table"), HEADS, 128, 0, ARGS(&dx, &dt, &dp));
    bf16 *y = fetched(dx, HEADS * D * 2);
    worst = 0;
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < 128; i++) {
            double a = bf16_value(x[h * D + i]), b = bf16_value(x[h * D + i + 128]), c = table[position][i][0], s = table[position][i][1];
            compare(bf16_value(y[h * D + i]), a * c - b * s, BF16_BOUND, 0.001);
            compare(bf16_value(y[h * D + i + 128]), b * c + a * s, BF16_BOUND, 0.001);
        }
    free(x); free(y);
    CLOSE("rope_table");
    return 0;
}

// Where 1 + tanh cancels, the error of an approximate tanh stays as it is while the result goes to zero.
static int geglu_is_close(const char *name, double tanh_error)
{
    enum { N = 1000 };
    int n = N;
    float *gate = random_floats(N, 6), *up = random_floats(N, 2);
    CUdeviceptr dg = device(gate, N * 4), du = device(up, N * 4), dy = blank((N + 4) * 2);
    run(function(kernels, name), 4, 256, 0, ARGS(&dg, &du, &dy, &n));
    bf16 *y = fetched(dy, (N + 4) * 2);
    worst = 0;
    for (int i = 0; i < N; i++) {
        double x = gate[i];
        compare(bf16_value(y[i]), 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))) * up[i], BF16_BOUND, 1e-3 + fabs(x * up[i]) * tanh_error / BF16_BOUND);
    }
    for (int i = N; i < N + 4; i++) CHECK(y[i] == 0xeeee);
    free(gate); free(up); free(y);
    CLOSE(name);
    return 0;
}
static int geglu_with_the_exact_tanh(void) { return geglu_is_close("geglu", 1e-6); }
static int geglu_with_the_cards_tanh(void) { return geglu_is_close("geglu_fast", 0x1p-11); }

static int embed_copies_rows(void)
{
    enum { TOKENS = 4, VOCABULARY = 50, D = 300 };
    int ids[TOKENS] = { 49, 0, 7, 7 }, d = D;
    float scale = 17.5f;
    bf16 *e = random_bf16(VOCABULARY * D, 1);
    CUdeviceptr di = device(ids, sizeof ids), de = device(e, VOCABULARY * D * 2), dx = blank(TOKENS * D * 4);
    run(function(kernels, "embed"), TOKENS, 128, 0, ARGS(&di, &de, &dx, &d, &scale));
    float *x = fetched(dx, TOKENS * D * 4);
    for (int t = 0; t < TOKENS; t++) for (int i = 0; i < D; i++) CHECK(x[t * D + i] == (float)bf16_value(e[ids[t] * D + i]) * scale);
    free(e); free(x);
    return 0;
}

static u32 order_key(float f) { u32 u = f_bits(f); return u & 0x80000000 ? ~u : u | 0x80000000; }

static int argmax_takes_the_first_of_the_largest(void)
{
    enum { N = 5000 };
    int n = N;
    float *x = random_floats(N, 10);
    x[1234] = x[3456] = x[4567] = 11;
    u64 best = 0;
    CUdeviceptr dx = device(x, N * 4), db = device(&best, 8);
    run(function(kernels, "argmax"), 7, 128, 0, ARGS(&dx, &n, &db));
    fetch(&best, db, 8);
    CHECK(~(u32)best == 1234 && (u32)(best >> 32) == order_key(11));
    free(x);
    return 0;
}

static int histogram_counts(CUdeviceptr dx, const float *x, int n, CUdeviceptr dh, u32 prefix, int shift)
{
    u32 hist[256], want[256] = { 0 };
    CHECK(CU.cuMemsetD8_v2(dh, 0, sizeof hist) == 0);
    for (int i = 0; i < n; i++) if (shift == 24 || order_key(x[i]) >> (shift + 8) == prefix) want[order_key(x[i]) >> shift & 255]++;
    run(function(kernels, "top_k_histogram"), 5, 256, 0, ARGS(&dx, &n, &dh, &prefix, &shift));
    fetch(hist, dh, sizeof hist);
    CHECK(memcmp(hist, want, sizeof hist) == 0);
    return 0;
}

static int top_k_finds_a_threshold_and_collects(void)
{
    enum { N = 5000, ROOM = 512 };
    int n = N;
    float *x = random_floats(N, 10);
    u32 count = 0, threshold = order_key(9.5f), room = ROOM, above = 0;
    for (int i = 0; i < N; i++) above += x[i] >= 9.5f;
    CHECK(above > 40 && above < ROOM);
    CUdeviceptr dx = device(x, N * 4), dh = blank(1024), dc = device(&count, 4), dout = blank(ROOM * 8);
    CHECK(histogram_counts(dx, x, N, dh, 0, 24) == 0 && histogram_counts(dx, x, N, dh, threshold >> 24, 16) == 0);
    run(function(kernels, "top_k_collect"), 5, 96, 0, ARGS(&dx, &n, &threshold, &dout, &dc, &room));
    fetch(&count, dc, 4);
    u32 (*out)[2] = fetched(dout, ROOM * 8);
    CHECK(count == above);
    bool seen[N] = { false };
    for (u32 i = 0; i < count; i++) {
        CHECK(out[i][1] < N && !seen[out[i][1]] && out[i][0] == order_key(x[out[i][1]]) && x[out[i][1]] >= 9.5f);
        seen[out[i][1]] = true;
    }
    for (u32 i = count; i < ROOM; i++) CHECK(out[i][0] == 0xeeeeeeee);
    free(x); free(out);
    return 0;
}

// The token must be the one whose share of the line from 0 to 1 holds the number drawn, but for the rounding of sums.
static int sampling_follows_the_line(void)
{
    enum { N = 1000 };
    int n = N;
    float inverse = 1 / 0.8f, *x = random_floats(N, 4);
    double e[N], total = 0, top = -INFINITY;
    for (int i = 0; i < N; i++) top = fmax(top, x[i]);
    for (int i = 0; i < N; i++) total += e[i] = exp((x[i] - top) * inverse);
    for (int k = 0; k < 40; k++) {
        float uniform = k ? (float)rand_unit() : 0;
        int token = -1;
        CUdeviceptr dx = device(x, N * 4), dt = device(&token, 4);
        run(function(kernels, "sample"), 1, 256, 0, ARGS(&dx, &n, &inverse, &uniform, &dt));
        fetch(&token, dt, 4);
        CHECK(token >= 0 && token < N);
        double before = 0;
        for (int i = 0; i < token; i++) before += e[i];
        CHECK(uniform * total >= before - 1e-5 * total && uniform * total <= before + e[token] + 1e-5 * total);
        CU.cuMemFree_v2(dx);
        CU.cuMemFree_v2(dt);
    }
    free(x);
    return 0;
}

static int the_last_block_sums_the_grid(void)
{
    enum { N = 7777, BLOCKS = 9 };
    int n = N;
    float *x = random_floats(N, 1), out = 0;
    u32 arrived = 0;
    double sum = 0;
    for (int i = 0; i < N; i++) sum += x[i];
    CUdeviceptr dx = device(x, N * 4), dp = blank(BLOCKS * 4), da = device(&arrived, 4), dout = blank(4);
    for (int round = 0; round < 2; round++) {            // twice: the counter must stand at zero again
        run(function(kernels, "grid_sum"), BLOCKS, 128, 0, ARGS(&dx, &dp, &da, &dout, &n));
        fetch(&out, dout, 4);
        fetch(&arrived, da, 4);
        CHECK(fabs(out - sum) < 1e-3 && arrived == 0);
    }
    free(x);
    return 0;
}

// ---- all of them, for one target and mode

static void all_kernels(void)
{
    RUN(rms_norm_adds_and_scales);
    RUN(gemv_bf16_sums_rows);
    RUN(gemv_nf4_by_table);
    RUN(gemv_nf4_by_permutation);
    RUN(gemm_nf4_multiplies);
    RUN(decode_attends_in_parts);
    RUN(prefill_attends_in_a_window);
    RUN(rope_turns_pairs_and_fills_the_cache);
    RUN(rope_by_table_turns_alike);
    RUN(geglu_with_the_exact_tanh);
    RUN(geglu_with_the_cards_tanh);
    RUN(embed_copies_rows);
    RUN(argmax_takes_the_first_of_the_largest);
    RUN(top_k_finds_a_threshold_and_collects);
    RUN(sampling_follows_the_line);
    RUN(the_last_block_sums_the_grid);
}

static int the_checks_found_nothing(void)
{
    for (long i = 0; FC.report(i); i++) fprintf(stderr, "%s\n", FC.report(i));
    CHECK(FC.reports(NULL) == 0);
    return 0;
}

static void with(int cc, bool fast, const char *key, const char *value)
{
    static const char *const options[] = { "-lineinfo", "-use_fast_math" };
    char *source = read_all("tests/fakecuda/kernels/model.cuh"), *ptx = compile(source, "model.cuh", cc, options, fast ? 2 : 1), number[16];
    printf("  compute_%d%s%s%s%s%s\n", cc, fast ? " -use_fast_math" : "", *key ? ", " : "", key, *key ? "=" : "", value);
    fresh();
    snprintf(number, sizeof number, "%d", cc);
    FC.set("cc", number);
    FC.set("driver", "13020");
    if (*key && FC.set(key, value) != 1) fprintf(stderr, "no field %s\n", key), exit(1);
    kernels = load_module(ptx);
    all_kernels();
    RUN(the_checks_found_nothing);
    free(source);
    free(ptx);
}

// As they are for each target; fast; with approximations moved about; with sums cut off as tensor cores may; in another order; by the other release.
int main(void)
{
    open_card();
    if (!open_nvrtc()) { puts("no NVRTC here\n0 passed, 0 failed, 1 skipped"); return 0; }
    static const int targets[] = { 80, 86, 89, 90, 100, 120 };
    for (int i = 0; i < 6; i++) with(targets[i], false, "", "");
    with(80, true, "", "");
    with(89, false, "perturb", "3");
    with(89, false, "mma", "truncated");
    with(89, false, "seed", "5");
    if (use_nvrtc(12)) with(89, false, "", "");
    return test_done();
}
