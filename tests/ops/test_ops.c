// Every entry of the CPU's table of operations against formulas in double precision written here, over shapes and storages, with the same
// bits demanded for every number of rows, threads and chunks.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "run.h"

// ---- weights: random bits in each format, and what they mean, from the formats' definitions

static double pow2(int e) { return ldexp(1.0, e); }

static double small_float(uint32_t u, int exp_bits, int man_bits, int bias)       // sign, exponent, mantissa; no infinities asked for
{
    const uint32_t man = u & ((1u << man_bits) - 1), e = u >> man_bits & ((1u << exp_bits) - 1);
    const double sign = u >> (man_bits + exp_bits) & 1 ? -1 : 1;
    return sign * (e ? (1 + man * pow2(-man_bits)) * pow2((int)e - bias) : man * pow2(-man_bits) * pow2(1 - bias));
}

static const double nf4[16] = { -1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1 };
static const double fp4[16] = { 0, 0.0052083333333, 0.6666666667, 1, 0.3333333333, 0.5, 0.1666666667, 0.25, 0, -0.0052083333333, -0.6666666667, -1, -0.3333333333, -0.5, -0.1666666667, -0.25 };

typedef struct weight { g3__bits bits; double *value; void *owned[4]; } weight;      // value: what each element must decode to

static weight weight_open(g3__format format, size_t n, uint32_t blocksize, bool nested)
{
    weight w;
    memset(&w, 0, sizeof w);
    const size_t bytes = (n * g3__format_bits(format) + 7) / 8, blocks = (n + blocksize - 1) / blocksize;
    uint8_t *p = (uint8_t *)malloc(bytes), *absmax8 = (uint8_t *)malloc(blocks);
    float *absmax = (float *)malloc(blocks * sizeof(float)), *map = (float *)malloc((256 + blocks / 4 + 1) * sizeof(float));
    w.owned[0] = p; w.owned[1] = absmax8; w.owned[2] = absmax; w.owned[3] = map;
    w.value = (double *)malloc(n * sizeof(double));
    w.bits.format = format; w.bits.data = p; w.bits.blocksize = blocksize; w.bits.nested_blocksize = 4;
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)random_u32();
    for (int i = 0; i < 256; i++) map[i] = random_f32();
    for (size_t b = 0; b <= blocks / 4; b++) map[256 + b] = 0.1f + random_f32() * 0.05f;
    for (size_t b = 0; b < blocks; b++) { absmax8[b] = (uint8_t)random_u32(); absmax[b] = 0.5f + 0.4f * random_f32(); }
    w.bits.absmax = absmax;
    if (nested) { w.bits.absmax = absmax8; w.bits.nested_map = map; w.bits.nested_absmax = map + 256; w.bits.nested_offset = 0.3f; }
    for (size_t i = 0; i < n; i++) {
        uint16_t h = 0;
        if (format == G3__F32) { float f = random_f32(); memcpy(p + 4 * i, &f, 4); w.value[i] = (double)f; }
        if (format == G3__BF16) { h = (uint16_t)((random_u32() & 0x83ff) | 0x3c00); memcpy(p + 2 * i, &h, 2); w.value[i] = small_float(h, 8, 7, 127); }
        if (format == G3__F16) { h = (uint16_t)((random_u32() & 0x87ff) | (i % 9 ? 0x3000 : 0)); memcpy(p + 2 * i, &h, 2); w.value[i] = small_float(h, 5, 10, 15); }
        if (format == G3__E4M3) { p[i] &= 0xbf; w.value[i] = small_float(p[i], 4, 3, 7); }
        if (format == G3__NF4 || format == G3__FP4) {
            const size_t b = i / blocksize;
            const int code = i % 2 ? p[i / 2] & 15 : p[i / 2] >> 4;
            const float table = format == G3__NF4 ? (float)nf4[code] : g3__fp4_table[code];
            const float scale = nested ? (float)((double)(float)((double)map[absmax8[b]] * (double)map[256 + b / 4]) + (double)0.3f) : absmax[b];
            if (format == G3__FP4 && fabs((double)table - fp4[code]) > 1e-7) w.value[0] = NAN;
            w.value[i] = (double)(float)((double)table * (double)scale);
        }
    }
    return w;
}

// Whole rows, laid in tiles as the loader does it where the layout and the loops under test allow.
static void weight_tile(weight *w, int rows, int cols, bool nested)
{
    const size_t row = (size_t)cols * g3__format_bits(w->bits.format) / 8, size = (size_t)rows * row, unit = nested ? 1 : 4;
    if (!rig_simd || !g3__tiles(w->bits.format, rows, cols, w->bits.blocksize, nested ? w->bits.nested_blocksize : 0)) return;
    char *p = (char *)malloc(size + 3), *q;                                      // three more: the loops for 4-bit codes may read what lies behind
    g3__tile_copy(p, (const char *)w->bits.data, size, row, 4);
    free(w->owned[0]);
    w->bits.data = w->owned[0] = p;
    w->bits.tiled = true;
    if (w->bits.format != G3__NF4 && w->bits.format != G3__FP4) return;
    const size_t per_row = (size_t)cols / w->bits.blocksize * unit;
    q = (char *)malloc(per_row * (size_t)rows);
    g3__tile_copy(q, (const char *)w->bits.absmax, per_row * (size_t)rows, per_row, unit);
    free(w->owned[nested ? 1 : 2]);
    w->bits.absmax = w->owned[nested ? 1 : 2] = q;
}

static void weight_close(weight *w) { for (int i = 0; i < 4; i++) free(w->owned[i]); free(w->value); }

// ---- linear

enum { GUARD = 16 };
static float *guarded(size_t n)                                                   // n floats between canaries
{
    float *p = (float *)malloc((n + 2 * GUARD) * sizeof *p);
    for (size_t i = 0; i < n + 2 * GUARD; i++) p[i] = -12345.0f;
    return p + GUARD;
}
static bool intact(const float *p, size_t n)
{
    for (int i = 0; i < GUARD; i++) if (p[-1 - i] != -12345.0f || p[n + (size_t)i] != -12345.0f) return false;
    return true;
}
static void guarded_free(float *p) { free(p - GUARD); }

static float *random_row(size_t n) { float *x = (float *)malloc(n * sizeof *x); for (size_t i = 0; i < n; i++) x[i] = random_f32(); return x; }

typedef struct stack { g3__mat W; weight part[3], bias[3]; } stack;

static void stack_open(stack *s, int n_segs, const g3__format *format, const int *rows, int cols, uint32_t blocksize, bool nested, bool bias, bool transposed)
{
    memset(s, 0, sizeof *s);
    s->W.transposed = transposed;
    s->W.cols = cols; s->W.n_segs = n_segs;
    for (int i = 0; i < n_segs; i++) {
        s->part[i] = weight_open(format[i], (size_t)rows[i] * (size_t)cols, blocksize, nested);
        if (!transposed) weight_tile(&s->part[i], rows[i], cols, nested);
        s->bias[i] = weight_open(i ? G3__F32 : G3__BF16, (size_t)rows[i], 64, false);
        s->W.seg[i].rows = rows[i];
        s->W.seg[i].bits = s->part[i].bits;
        if (bias) s->W.seg[i].bias = s->bias[i].bits;
        s->W.rows += rows[i];
    }
}
static void stack_close(stack *s) { for (int i = 0; i < s->W.n_segs; i++) { weight_close(&s->part[i]); weight_close(&s->bias[i]); } }

static double stack_value(const stack *s, int row, int col, double *bias)
{
    int i = 0;
    while (row >= s->W.seg[i].rows) row -= s->W.seg[i++].rows;
    *bias = s->W.seg[i].bias.data ? s->bias[i].value[row] : 0;
    return s->part[i].value[s->W.transposed ? (size_t)col * (size_t)s->W.rows + (size_t)row : (size_t)row * (size_t)s->W.cols + (size_t)col];
}

// y = W x + b in double; a float32 sum of k terms in 8 lanes is off by at most about (k / 8 + 4) half units of sum |w x|, twice that when serial.
static int linear_matches(const stack *s, const float *y, const float *x, int n)
{
    const int rows = s->W.rows, cols = s->W.cols;
    const double blocks = s->W.transposed && !rig_simd ? cols + 2 : rig_simd ? G3__DENSE_BLOCK + cols / 32 + 4 : cols / 8 + 8, unit = 6e-8 * blocks;     // by vector units: blocks of at most 128 in order, then theirs
    for (int t = 0; t < n; t++)
        for (int i = 0; i < rows; i++) {
            double b, sum = 0, size = 0;
            for (int k = 0; k < cols; k++) { double p = stack_value(s, i, k, &b) * (double)x[t * cols + k]; sum += p; size += fabs(p); }
            if (!(fabs((double)y[t * rows + i] - sum - b) <= unit * (size + fabs(b)))) {
                fprintf(stderr, "row %d of W, row %d of x, %d columns: %.9g, not %.9g\n", i, t, cols, (double)y[t * rows + i], sum + b);
                return __LINE__;
            }
        }
    return 0;
}

static int linear_case(stack *s, int n, int widths)
{
    const size_t count = (size_t)n * (size_t)s->W.rows, cols = (size_t)s->W.cols;
    float *x = random_row((size_t)n * cols), *first = guarded(count), *y = guarded(count);
    int line = 0;
    for (int width = 1; width <= widths && !line; width++) {
        rig g;
        rig_open(&g, shape_of(n, s->W.cols, 1, 1, 1, 2, 0, width), NULL);
        float *out = width == 1 ? first : y;
        g.r.op->linear(&g.r, out, x, NULL, &s->W, n);
        if (width == 1) line = linear_matches(s, out, x, n);
        else if (memcmp(first, y, count * sizeof *y)) line = __LINE__;           // threads do not change a bit
        if (!line && (!intact(out, count) || g.err.code)) line = __LINE__;
        for (int t = 0; t < n && !line; t++) {                                   // nor does company
            g.r.op->linear(&g.r, y, x + (size_t)t * cols, NULL, &s->W, 1);
            if (memcmp(y, first + (size_t)t * (size_t)s->W.rows, (size_t)s->W.rows * sizeof *y)) line = __LINE__;
        }
        rig_close(&g);
    }
    free(x); guarded_free(first); guarded_free(y);
    return line;
}

static const g3__format formats[] = { G3__F32, G3__BF16, G3__F16, G3__E4M3, G3__NF4, G3__FP4 };

static int linear_all_formats_and_shapes(void)
{
    static const int cols[] = { 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 72, 100, 511, 512, 513, 530, 1030 };
    for (int f = 0; f < G3__COUNT(formats); f++)
        for (int c = 0; c < G3__COUNT(cols); c++)
            for (int nested = 0; nested < 2; nested++) {
                static const uint32_t blocks[] = { 64, 32, 128 };
                const int rows = 1 + (c * 5 + f) % 9, n = 1 + (c + f) % 5;
                stack s;
                stack_open(&s, 1, &formats[f], &rows, cols[c], blocks[(c + f) % 3], nested != 0, c % 2 != 0, false);
                const int line = linear_case(&s, n, 1);
                stack_close(&s);
                CHECK(line == 0);
            }
    return 0;
}

static int linear_tiles(void)                                                     // whole tiles, and what is left after every four of them; few and many rows of x
{
    static const int rows[] = { 16, 64, 80, 176 }, cols[] = { 32, 128, 192, 640, 130, 516 }, n[] = { 1, 2, 3, 4, 5, 12, 13, 17, 26 };
    int line = 0, i = 0;
    for (int f = 0; f < G3__COUNT(formats); f++)
        for (int r = 0; r < G3__COUNT(rows); r++)
            for (int c = 0; c < G3__COUNT(cols) && !line; c++, i++) {
                static const uint32_t blocks[] = { 64, 32, 128 };
                stack s;
                stack_open(&s, 1, &formats[f], &rows[r], cols[c], blocks[i % 3], i % 2 != 0, i % 5 == 0, false);
                line = linear_case(&s, cols[c] > 600 ? n[i % 5] : n[i % G3__COUNT(n)], i % 7 ? 1 : 3);
                stack_close(&s);
            }
    CHECK(line == 0);
    return 0;
}

static int tiles_hold_what_the_rows_held(void)                                    // bit for bit
{
    float *y = (float *)malloc(640 * sizeof *y);
    for (int i = 0; i < 2 * G3__COUNT(formats); i++) {
        const int rows = 48, cols = 640;
        weight w = weight_open(formats[i / 2], (size_t)(rows * cols), 64, i % 2 != 0);
        weight_tile(&w, rows, cols, i % 2 != 0);
        CHECK(w.bits.tiled == (rig_simd != NULL));
        for (int r = 0; r < rows; r++) {
            g3__decode_row(&w.bits, (uint64_t)r, (uint64_t)cols, y);
            for (int c = 0; c < cols; c++) CHECK((double)y[c] == w.value[r * cols + c]);
        }
        weight_close(&w);
    }
    free(y);
    return 0;
}

static int linear_vision_shapes(void)                                             // 4304 is no multiple of 32 or 64: blocks cross rows
{
    for (int f = 0; f < G3__COUNT(formats); f++) {
        const int rows = 21;
        stack s;
        stack_open(&s, 1, &formats[f], &rows, 4304, 64, f % 2 != 0, true, false);
        const int line = linear_case(&s, 3, 1);
        stack_close(&s);
        CHECK(line == 0);
    }
    return 0;
}

static int linear_mixed_stacks_any_thread_count(void)
{
    static const g3__format mixed[][3] = { { G3__NF4, G3__BF16, G3__F32 }, { G3__F16, G3__FP4, G3__NF4 }, { G3__BF16, G3__NF4, G3__E4M3 } };
    static const int rows[][3] = { { 97, 33, 70 }, { 16, 5, 180 }, { 1, 2, 199 } };
    for (int i = 0; i < 3; i++)
        for (int n = 1; n <= 5; n++) {
            stack s;
            stack_open(&s, 3, mixed[i], rows[i], 1030 + i, 64, i % 2 != 0, i == 1, false);
            const int line = linear_case(&s, n, n == 5 ? 4 : 2);
            stack_close(&s);
            CHECK(line == 0);
        }
    return 0;
}

static int linear_many_rows(void)                                                 // more rows than a decoded block serves
{
    static const int n[] = { 63, 64, 65, 131 };
    for (int i = 0; i < G3__COUNT(n); i++) {
        const int rows = 35;
        stack s;
        stack_open(&s, 1, &formats[i + 1], &rows, 70 + i, 64, false, false, false);
        const int line = linear_case(&s, n[i], i == 3 ? 4 : 1);
        stack_close(&s);
        CHECK(line == 0);
    }
    return 0;
}

static int linear_transposed(void)
{
    static const int shape[][3] = { { 5, 7, 1 }, { 513, 72, 3 }, { 1100, 144, 4 }, { 64, 1, 2 } };      // out, in, n
    for (int i = 0; i < G3__COUNT(shape); i++) {
        stack s;
        stack_open(&s, 1, &formats[i % 3], &shape[i][0], shape[i][1], 64, false, i == 1, true);
        const int line = linear_case(&s, shape[i][2], 4);
        stack_close(&s);
        CHECK(line == 0);
    }
    return 0;
}

// ---- norms

static void norm_reference(double *y, const float *x, const double *w, const double *b, int n, double eps)      // b NULL: RMSNorm
{
    double mean = 0, square = 0;
    for (int i = 0; i < n; i++) mean += (double)x[i] / n;
    if (!b) mean = 0;
    for (int i = 0; i < n; i++) square += ((double)x[i] - mean) * ((double)x[i] - mean) / n;
    for (int i = 0; i < n; i++) y[i] = b ? ((double)x[i] - mean) / sqrt(square + eps) * w[i] + b[i] : (double)x[i] / sqrt(square + eps) * (1 + w[i]);
}

static g3__norm norm_of(const weight *w, const weight *b, int dim, float eps)
{
    g3__norm m = G3__ZERO;
    m.layer = b != NULL; m.dim = dim; m.eps = eps; m.w = w->bits;
    if (b) m.b = b->bits;
    return m;
}

static int norms_of_both_kinds(void)
{
    static const int dims[] = { 1, 3, 16, 31, 640, 1152 };
    for (int d = 0; d < G3__COUNT(dims); d++)
        for (int layer = 0; layer < 2; layer++)
            for (int n = 1; n <= 5; n += 2) {
                const int dim = dims[d];
                const size_t count = (size_t)dim * (size_t)n;
                weight w = weight_open(d % 2 ? G3__BF16 : G3__F16, (size_t)dim, 64, false), b = weight_open(G3__F32, (size_t)dim, 64, false);
                g3__norm norm = norm_of(&w, layer ? &b : NULL, dim, 1e-6f);
                float *x = random_row(count), *y = guarded(count), *again = guarded(count), *x2 = guarded(count);
                double *want = (double *)malloc((size_t)dim * sizeof *want);
                rig g;
                rig_open(&g, shape_of(n, dim, 1, 1, 1, 2, 0, 3), NULL);
                if (n == 3) for (int i = 0; i < dim; i++) x[i] *= 1e-4f;          // eps decides
                memcpy(x2, x, count * sizeof *x);
                g.r.op->norm(&g.r, y, x, &norm, n);
                g.r.op->add(&g.r, x2, x, &norm, dim, n);
                for (int t = 0; t < n; t++) {
                    norm_reference(want, x + t * dim, w.value, layer ? b.value : NULL, dim, (double)1e-6f);
                    for (int i = 0; i < dim; i++) {
                        CHECK(fabs((double)y[t * dim + i] - want[i]) <= 1e-6 * (1 + fabs(want[i])));
                        if (!layer) CHECK(x2[t * dim + i] == x[t * dim + i] + y[t * dim + i]);     // add norms the branch, then adds
                    }
                }
                g.r.op->norm(&g.r, again, x + (n - 1) * dim, &norm, 1);
                CHECK(!memcmp(again, y + (n - 1) * dim, (size_t)dim * sizeof *y));
                CHECK(intact(y, count) && intact(x2, count) && intact(again, count) && !g.err.code);
                rig_close(&g);
                free(x); free(want); guarded_free(y); guarded_free(again); guarded_free(x2);
                weight_close(&w); weight_close(&b);
            }
    return 0;
}

static int norm_keeps_small_weights_and_outliers(void)
{
    enum { DIM = 5376 };
    static float x[DIM], y[DIM];
    static uint16_t w[DIM];
    static double want[DIM], wide[DIM];
    g3__norm norm = G3__ZERO;
    rig g;
    rig_open(&g, shape_of(1, DIM, 1, 1, 1, 2, 0, 1), NULL);
    for (int i = 0; i < DIM; i++) { x[i] = i == 17 ? 3e4f : 1.0f; w[i] = i % 2 ? 0x3b80 : 0; wide[i] = i % 2 ? 0.00390625 : 0; }   // 1 + 2^-8 is no bf16
    norm.dim = DIM; norm.eps = 1e-6f; norm.w.format = G3__BF16; norm.w.data = w;
    g.r.op->norm(&g.r, y, x, &norm, 1);
    norm_reference(want, x, wide, NULL, DIM, 1e-6);
    for (int i = 0; i < DIM; i++) CHECK(fabs((double)y[i] - want[i]) <= 1e-6 * fabs(want[i]));
    CHECK(fabs((double)y[3] / (double)y[2] - 1.00390625) < 2e-7);
    rig_close(&g);
    return 0;
}

static int linear_norms_its_input(void)
{
    const int rows = 19, cols = 72, n = 3;
    stack s;
    weight w = weight_open(G3__BF16, 72, 64, false);
    g3__norm norm = norm_of(&w, NULL, cols, 1e-6f);
    float *x = random_row(72 * 3), *h = random_row(72 * 3), *a = random_row(19 * 3), *b = random_row(19 * 3);
    rig g;
    rig_open(&g, shape_of(n, cols, 1, 1, 1, 2, 0, 1), NULL);
    stack_open(&s, 1, &formats[1], &rows, cols, 64, false, false, false);
    g.r.op->norm(&g.r, h, x, &norm, n);
    g.r.op->linear(&g.r, a, h, NULL, &s.W, n);
    g.r.op->linear(&g.r, b, x, &norm, &s.W, n);
    CHECK(!memcmp(a, b, sizeof *a * 19 * 3));
    rig_close(&g); stack_close(&s); weight_close(&w);
    free(x); free(h); free(a); free(b);
    return 0;
}

// ---- rope and attend against whole-sequence attention in double

typedef struct model { int heads, kv_heads, d, window, length; float theta, factor; const int *image; float *qkv; } model;   // image[p]: last position of p's image; qkv [length][heads + 2 kv_heads][d]

static bool allowed(const model *m, int p, int j)                                  // as masking_utils.py of transformers
{
    const bool same_image = m->image && m->image[p] >= j && j > p;
    return (j <= p || same_image) && (!m->window || p - j < m->window);
}

static void rotate_reference(double *y, const float *x, int p, int d, float theta, float factor, double eps, const float *gain)
{
    double square = 0;
    for (int i = 0; i < d; i++) square += (double)x[i] * (double)x[i] / d;
    for (int i = 0; i < d; i++) y[i] = gain ? (double)x[i] / sqrt(square + eps) * (1 + (double)gain[i]) : (double)x[i];
    for (int i = 0; theta > 0 && i < d / 2; i++) {
        const double angle = p * pow((double)theta, -2.0 * i / d) / (double)factor, a = y[i], b = y[i + d / 2];
        y[i] = a * cos(angle) - b * sin(angle);
        y[i + d / 2] = b * cos(angle) + a * sin(angle);
    }
}

typedef double (*squeeze_fn)(double x, double most);                               // what storing a number does to it; most: the row's largest magnitude

// out [length][heads][d]
static double *attend_reference(const model *m, double scale, const float *q_gain, const float *k_gain, squeeze_fn squeeze)
{
    const int d = m->d, T = m->length, all = m->heads + 2 * m->kv_heads;
    double *z = (double *)malloc((size_t)(T * all * d) * sizeof *z), *out = (double *)calloc((size_t)(T * m->heads * d), sizeof *out), *s = (double *)malloc((size_t)T * sizeof *s);
    for (int p = 0; p < T; p++)
        for (int h = 0; h < all; h++) {
            const float *x = m->qkv + (p * all + h) * d, *gain = h < m->heads ? q_gain : k_gain;
            double *y = z + (p * all + h) * d, most = 0;
            if (h < m->heads + m->kv_heads) rotate_reference(y, x, p, d, m->theta, m->factor, 1e-6, gain);
            else for (int i = 0; i < d; i++) y[i] = (double)x[i];
            for (int i = 0; i < d; i++) most = fabs(y[i]) > most ? fabs(y[i]) : most;
            if (squeeze && h >= m->heads) for (int i = 0; i < d; i++) y[i] = squeeze(y[i], most);
        }
    for (int p = 0; p < T; p++)
        for (int h = 0; h < m->heads; h++) {
            const int kh = m->heads + h / (m->heads / m->kv_heads), vh = kh + m->kv_heads;
            double most = -1e300, sum = 0;
            for (int j = 0; j < T; j++) {
                s[j] = 0;
                for (int i = 0; i < d; i++) s[j] += z[(p * all + h) * d + i] * z[(j * all + kh) * d + i] * scale;
                if (allowed(m, p, j) && s[j] > most) most = s[j];
            }
            for (int j = 0; j < T; j++) if (allowed(m, p, j)) sum += exp(s[j] - most);
            for (int j = 0; j < T; j++)
                if (allowed(m, p, j)) for (int i = 0; i < d; i++) out[(p * m->heads + h) * d + i] += exp(s[j] - most) / sum * z[(j * all + vh) * d + i];
        }
    free(z); free(s);
    return out;
}

// Runs the sequence through rope and attend: chunks of `chunk` (an image is never cut) up to `prompt`, then one by one.
static void attend_chunks(float *out, const model *m, g3_kv format, int ring, int chunk, int prompt, int width, float scale, const float *q_gain, const float *k_gain, const g3_parallel *lent)
{
    const int all = m->heads + 2 * m->kv_heads;
    const size_t row = (size_t)(all * m->d);
    g3__attn a = G3__ZERO;
    g3__layer layer = G3__ZERO;
    g3__tower tower = G3__ZERO;
    g3__kv kv = kv_open(format, ring, m->kv_heads, m->d);
    rig g;
    a.heads = m->heads; a.kv_heads = m->kv_heads; a.head_dim = m->d; a.window = m->window; a.scale = scale;
    a.theta = m->theta; a.factor = m->factor; a.angles = m->theta > 0 ? 0 : -1;
    if (q_gain) { a.q_norm.dim = a.k_norm.dim = m->d; a.q_norm.eps = a.k_norm.eps = 1e-6f; a.q_norm.w.data = q_gain; a.k_norm.w.data = k_gain; }
    rig_open(&g, shape_of(m->length, 1, 1, m->heads, m->kv_heads, m->d, m->theta > 0, width), lent);
    layer.op = g.r.op; layer.att = a;
    tower.layers = 1; tower.layer = &layer;
    g.r.tower = &tower;
    for (int p = 0, n; p < m->length; p += n) {
        n = p < prompt ? G3__MIN(chunk, prompt - p) : 1;
        while (m->image && m->image[p + n - 1] > p + n - 1) n++;
        for (int t = 0; t < n; t++) { g.rows[t].pos = p + t; g.rows[t].span = m->image ? m->image[p + t] : p + t; g.rows[t].seq = 0; }
        memcpy(g.r.a.qkv, m->qkv + (size_t)p * row, (size_t)n * row * sizeof(float));
        g.r.op->begin(&g.r, n);
        g.r.op->rope(&g.r, g.r.a.qkv, &layer.att, &kv, g.rows, n);
        g.r.op->attend(&g.r, out + p * m->heads * m->d, g.r.a.qkv, &layer.att, &kv, g.rows, n);
    }
    rig_close(&g);
    kv_close(&kv);
}

static double distance(const float *y, const double *want, size_t n)               // NaN counts as far
{
    double most = 0;
    for (size_t i = 0; i < n; i++) { double e = fabs((double)y[i] - want[i]); if (!(e <= most)) most = e == e ? e : 1e300; }
    return most;
}

static int windows_chunks_and_rings(void)       // window 4, prompts 1..23, every chunk size, six more tokens one by one
{
    static const int chunks[] = { 1, 2, 3, 4, 5, 8, 23 };
    const int heads = 4, kv_heads = 2, d = 16, all = 8, most = 29;
    float *qkv = random_row((size_t)(most * all * d)), *gain = random_row(32);
    float *out = random_row((size_t)(most * heads * d)), *first = random_row((size_t)(most * heads * d));
    for (int prompt = 1; prompt <= 23; prompt++) {
        model m = { heads, kv_heads, d, 4, prompt + 6, 1e4f, 1.0f, NULL, qkv };
        const size_t count = (size_t)(m.length * heads * d);
        double *want = attend_reference(&m, 0.3, gain, gain + 16, NULL);
        for (int c = 0; c < G3__COUNT(chunks); c++) {
            attend_chunks(c ? out : first, &m, G3_KV_F32, 4 + chunks[c], chunks[c], prompt, 1, 0.3f, gain, gain + 16, NULL);
            CHECK(distance(c ? out : first, want, count) < 1e-5);
            CHECK(!c || !memcmp(out, first, count * sizeof *out));
            if (prompt == 23 && chunks[c] > 2 && chunks[c] < 23) {                 // the ring is needed: one cell under the need shows
                attend_chunks(out, &m, G3_KV_F32, 4 + chunks[c] - 2, chunks[c], prompt, 1, 0.3f, gain, gain + 16, NULL);
                CHECK(distance(out, want, count) > 1e-3);
            }
        }
        free(want);
    }
    free(qkv); free(gain); free(out); free(first);
    return 0;
}

static int attention_of_many_shapes_any_thread_count(void)
{
    static const struct { int heads, kv_heads, d, window, length, chunk; float theta, factor; } c[] = {
        { 4, 1, 32, 0, 150, 37, 1e6f, 8 }, { 4, 2, 16, 70, 200, 50, 1e4f, 1 }, { 2, 2, 72, 0, 90, 90, 0, 1 }, { 3, 1, 6, 1, 20, 20, 1e4f, 1 }, { 6, 1, 8, 64, 130, 129, 1e4f, 1 },
        { 32, 16, 128, 33, 70, 16, 1e4f, 1 }, { 8, 4, 256, 16, 40, 40, 1e6f, 8 }, { 5, 5, 2, 128, 300, 300, 1e4f, 1 },
        { 4, 1, 24, 0, 800, 130, 1e6f, 8 }, { 2, 1, 16, 512, 800, 256, 1e4f, 1 }, { 36, 1, 4, 0, 300, 100, 1e4f, 1 },
    };
    for (int i = 0; i < G3__COUNT(c); i++) {
        model m = { c[i].heads, c[i].kv_heads, c[i].d, c[i].window, c[i].length, c[i].theta, c[i].factor, NULL, NULL };
        const size_t count = (size_t)(m.length * m.heads * m.d);
        const float scale = 1.0f / sqrtf((float)m.d);
        m.qkv = random_row((size_t)(m.length * (m.heads + 2 * m.kv_heads) * m.d));
        float *gain = random_row((size_t)m.d * 2), *first = guarded(count), *out = guarded(count);
        double *want = attend_reference(&m, (double)scale, gain, gain + m.d, NULL);
        for (int width = 1; width <= 4; width++) {
            const int ring = m.window ? m.window + c[i].chunk : m.length;
            attend_chunks(width == 1 ? first : out, &m, G3_KV_F32, ring, width == 3 ? 1 : c[i].chunk, m.length, width, scale, gain, gain + m.d, NULL);
            if (width == 1) CHECK(distance(first, want, count) < 3e-5);
            else CHECK(!memcmp(first, out, count * sizeof *out));
        }
        CHECK(intact(first, count) && intact(out, count));
        free(m.qkv); free(gain); guarded_free(first); guarded_free(out); free(want);
    }
    return 0;
}

static int window_counts_the_row_itself(void)   // W = 4: query 10 sees 7, 8, 9, 10 and nothing else
{
    float *qkv = random_row(11 * 3 * 8), *out = random_row(11 * 8), *base = random_row(11 * 8);
    model m = { 1, 1, 8, 4, 11, 1e4f, 1.0f, NULL, qkv };
    attend_chunks(base, &m, G3_KV_F32, 15, 11, 11, 1, 0.3f, NULL, NULL, NULL);
    for (int key = 0; key <= 10; key++) {
        const float kept = qkv[(key * 3 + 2) * 8];
        qkv[(key * 3 + 2) * 8] = 1e6f;
        attend_chunks(out, &m, G3_KV_F32, 15, 11, 11, 1, 0.3f, NULL, NULL, NULL);
        CHECK((fabsf(out[10 * 8] - base[10 * 8]) > 1000) == (key >= 7));
        CHECK(key >= 7 || !memcmp(out + 80, base + 80, 8 * sizeof *out));
        qkv[(key * 3 + 2) * 8] = kept;
    }
    free(qkv); free(out); free(base);
    return 0;
}

static int image_spans_see_both_ways(void)      // T T [I I I I] T [J J J J] T
{
    static const int image[] = { 0, 1, 5, 5, 5, 5, 6, 10, 10, 10, 10, 11 };
    static const char *const seen[2][12] = {
        { "100000000000", "110000000000", "111111000000", "111111000000", "011111000000", "001111000000",           // window 4: backwards only
          "000111100000", "000011111110", "000001111110", "000000111110", "000000011110", "000000001111" },
        { "100000000000", "110000000000", "111111000000", "111111000000", "111111000000", "111111000000",           // window 16
          "111111100000", "111111111110", "111111111110", "111111111110", "111111111110", "111111111111" } };
    for (int w = 0; w < 2; w++) {
        float *qkv = random_row(12 * 4 * 8), *out = random_row(12 * 2 * 8), *again = random_row(12 * 2 * 8), *shown = random_row(2 * 12);
        model m = { 2, 1, 8, w ? 16 : 4, 12, 1e4f, 1.0f, image, qkv };
        double *want = attend_reference(&m, 0.3, NULL, NULL, NULL);
        for (int p = 0; p < 12; p++) for (int j = 0; j < 12; j++) CHECK(allowed(&m, p, j) == (seen[w][p][j] == '1'));
        attend_chunks(out, &m, G3_KV_F32, 28, 12, 12, 1, 0.3f, NULL, NULL, NULL);
        CHECK(distance(out, want, 12 * 2 * 8) < 1e-5);
        attend_chunks(again, &m, G3_KV_F32, 16, 1, 12, 1, 0.3f, NULL, NULL, NULL);                    // the chunker keeps images whole
        CHECK(!memcmp(out, again, 12 * 2 * 8 * sizeof *out));

        g3__attn a = G3__ZERO;                                                                        // what an observer is shown
        g3__kv kv = kv_open(G3_KV_F32, 28, 1, 8);
        rig g;
        rig_open(&g, shape_of(12, 1, 1, 2, 1, 8, 0, 1), NULL);
        a.heads = 2; a.kv_heads = 1; a.head_dim = 8; a.window = m.window; a.scale = 0.3f; a.angles = -1;
        for (int p = 0; p < 12; p++) { g.rows[p].pos = p; g.rows[p].span = image[p]; }
        g.r.op->rope(&g.r, qkv, &a, &kv, g.rows, 12);
        g.r.op->attend(&g.r, out, qkv, &a, &kv, g.rows, 12);
        for (int p = 0; p < 12; p++) {
            int low;
            const int cols = g3__cpu_attention_row(shown, qkv + p * 32, &a, &kv, &g.rows[p], g.r.a.work, &low);
            for (int j = 0; j < 12; j++) CHECK((j >= low && j < low + cols) == (seen[w][p][j] == '1'));
            for (int h = 0; h < 2; h++)
                for (int i = 0; i < 8; i++) {                                                         // the weights times V are attend's answer
                    double sum = 0;
                    for (int j = 0; j < cols; j++) sum += (double)shown[h * cols + j] * (double)((float *)kv.v)[(low + j) * 8 + i];
                    CHECK(fabs(sum - (double)out[p * 16 + h * 8 + i]) < 1e-5);
                }
        }
        rig_close(&g); kv_close(&kv);
        free(qkv); free(out); free(again); free(shown); free(want);
    }
    return 0;
}

static int large_scores_stay_finite(void)
{
    float *qkv = random_row(80 * 3 * 8), *out = random_row(80 * 8);
    model m = { 1, 1, 8, 0, 80, 0, 1.0f, NULL, qkv };
    for (int i = 0; i < 80 * 24; i++) qkv[i] *= 300;
    double *want = attend_reference(&m, 1.0, NULL, NULL, NULL);
    attend_chunks(out, &m, G3_KV_F32, 80, 80, 80, 1, 1.0f, NULL, NULL, NULL);
    for (int i = 0; i < 80 * 8; i++) CHECK(fabs((double)out[i]) <= 300.001);
    CHECK(distance(out, want, 80 * 8) < 30);                                                          // scores near 1e5 leave 0.01 of float32
    free(qkv); free(out); free(want);
    return 0;
}

static int angles_as_published(void)            // 4B global at position 8: 1.0 and locally 8.0; pair 127 of 256 at position 1000
{
    g3__layer layer[2];
    g3__tower tower = G3__ZERO;
    rig g;
    memset(layer, 0, sizeof layer);
    rig_open(&g, shape_of(3, 1, 1, 1, 1, 256, 2, 1), NULL);
    for (int i = 0; i < 2; i++) { layer[i].att.head_dim = 256; layer[i].att.angles = i; layer[i].att.theta = i ? 1e6f : 1e4f; layer[i].att.factor = i ? 8.0f : 1.0f; }
    tower.layers = 2; tower.layer = layer;
    g.r.tower = &tower;
    g.rows[0].pos = 8; g.rows[1].pos = 1000; g.rows[2].pos = 131071;
    g.r.op->begin(&g.r, 3);
    const float *local = g.r.a.angle, *global = g.r.a.angle + 3 * 256;
    CHECK(fabs((double)global[0] - cos(1.0)) < 1e-7 && fabs((double)global[1] - sin(1.0)) < 1e-7);
    CHECK(fabs((double)local[0] - cos(8.0)) < 1e-7 && fabs((double)local[1] - sin(8.0)) < 1e-7);
    CHECK(fabs((double)global[256 + 255] - sin(125 * pow(1e6, -254.0 / 256))) < 1e-9);
    for (int i = 0; i < 128; i++) {                                                                   // far out, the roundings to float32 turn fast pairs by up to 0.01
        const float f = 1.0f / (float)pow(1e4, (double)((float)(2 * i) / 256.0f));
        volatile float product = 131071.0f * f;
        CHECK(fabs((double)local[2 * 256 + 2 * i] - cos((double)product)) < 1e-6 && fabs((double)local[2 * 256 + 2 * i + 1] - sin((double)product)) < 1e-6);
    }
    rig_close(&g);
    return 0;
}

// ---- the cache's formats

static double as_bf16(double x, double most)
{
    int e;
    (void)most;
    double m = frexp(x, &e);                                                       // 8 bits of mantissa, ties to even
    return ldexp(nearbyint(ldexp(m, 8)), e - 8);
}
static double as_int8(double x, double most) { return most > 0 ? nearbyint(x / (most / 127)) * (most / 127) : 0; }
static double as_fp8(double x, double most)
{
    if (most == 0) return 0;
    const double y = x / (most / 448);
    int e;
    frexp(y, &e);
    if (e < -5) e = -5;                                                            // subnormals below 2^-6
    return ldexp(nearbyint(ldexp(y, 4 - e)), e - 4) * (most / 448);
}

static int cache_formats(void)
{
    static const struct { g3_kv format; squeeze_fn squeeze; } c[] = { { G3_KV_F32, NULL }, { G3_KV_BF16, as_bf16 }, { G3_KV_FP8, as_fp8 }, { G3_KV_INT8, as_int8 } };
    static const int shape[][3] = { { 4, 2, 16 }, { 2, 1, 128 }, { 2, 2, 256 } };
    for (int i = 0; i < G3__COUNT(c); i++)
        for (int s = 0; s < G3__COUNT(shape); s++) {
            model m = { shape[s][0], shape[s][1], shape[s][2], 8, 40, 1e4f, 1.0f, NULL, NULL };
            const size_t count = (size_t)(m.length * m.heads * m.d);
            const int all = m.heads + 2 * m.kv_heads;
            m.qkv = random_row((size_t)(m.length * all * m.d));
            for (int v = 0; v < m.d; v++) m.qkv[(5 * all + all - 1) * m.d + v] = 0;                   // a row of V without any scale
            m.qkv[(9 * all + all - 1) * m.d + 3] = 1e4f;                                              // and an outlier in another
            float *out = random_row(count), *again = random_row(count);
            double *want = attend_reference(&m, 0.2, NULL, NULL, c[i].squeeze), *plain = attend_reference(&m, 0.2, NULL, NULL, NULL);
            attend_chunks(out, &m, c[i].format, 8 + 5, 5, 30, 1, 0.2f, NULL, NULL, NULL);
            attend_chunks(again, &m, c[i].format, 8 + 40, 40, 40, 3, 0.2f, NULL, NULL, NULL);         // ring wrap, chunks, threads: same bits
            CHECK(!memcmp(out, again, count * sizeof *out));
            // A number within float32's rounding of a tie may go either way. One such changes what the next 8 rows see, a fifth of all; a wrong
            // rule changes nearly all.
            int off = 0;
            for (size_t k = 0; k < count; k++) {
                const double size = k / (size_t)(m.heads * m.d) >= 9 && k / (size_t)(m.heads * m.d) < 17 ? 1e4 : 1;
                off += !(fabs((double)out[k] - want[k]) <= 1e-5 * size);
                CHECK(fabs((double)out[k] - want[k]) <= 0.02 * size);
                CHECK(fabs((double)out[k] - plain[k]) <= (c[i].format == G3_KV_F32 ? 1e-5 : 0.1) * size);
            }
            if (off) printf("    format %d, shape %d: %d of %d beside a tie\n", (int)c[i].format, s, off, (int)count);
            CHECK(off <= (int)count / 2);
            free(m.qkv); free(out); free(again); free(want); free(plain);
        }
    return 0;
}

static int cache_scales_are_safe(void)          // zeros, the tiniest, the largest and what is not finite
{
    static const g3_kv format[] = { G3_KV_FP8, G3_KV_INT8 };
    for (int f = 0; f < 2; f++) {
        g3__kv kv = kv_open(format[f], 4, 1, 4);
        const float rows[][4] = { { 0, 0, 0, 0 }, { 1e-45f, 0, -1e-45f, 0 }, { 3.4e38f, -3.4e38f, 1, 0 }, { 1, NAN, 2, 3 }, { INFINITY, 0, 1, 1 }, { -1, 0.5f, 1, -0.25f } };
        float table[256], room[4];
        g3__cpu_e4m3_table(table);
        for (int i = 0; i < 6; i++) {
            g3__cpu_put(kv.k, kv.k_scale, &kv, 0, i + 5, rows[i]);
            const float *y = g3__cpu_get(kv.k, kv.k_scale, &kv, 0, i + 5, table, room);
            const bool finite = i != 3 && i != 4;
            for (int k = 0; k < 4; k++) {
                if (finite) CHECK(fabsf(y[k]) <= FLT_MAX && fabsf(y[k] - rows[i][k]) <= (i == 2 ? 1e37f : i == 1 ? 1e-44f : 0.02f));
            }
            if (!finite) CHECK(!(y[0] + y[1] + y[2] + y[3] <= FLT_MAX));                              // seen, not hidden
        }
        kv_close(&kv);
    }
    return 0;
}

static int rows_of_several_sequences(void)      // one step decodes two conversations: each as if alone
{
    const int d = 8, all = 3;
    float *qkv[2] = { random_row(20 * 3 * 8), random_row(20 * 3 * 8) }, *alone[2] = { random_row(20 * 8), random_row(20 * 8) }, out[16];
    g3__kv kv[2] = { kv_open(G3_KV_BF16, 20, 1, 8), kv_open(G3_KV_BF16, 20, 1, 8) };
    g3__attn a = G3__ZERO;
    rig g;
    a.heads = a.kv_heads = 1; a.head_dim = d; a.scale = 0.4f; a.angles = -1;
    rig_open(&g, shape_of(2, 1, 1, 1, 1, d, 0, 1), NULL);
    for (int s = 0; s < 2; s++) {
        model m = { 1, 1, 8, 0, 20, 0, 1.0f, NULL, qkv[s] };
        attend_chunks(alone[s], &m, G3_KV_BF16, 20, 20, 20, 1, 0.4f, NULL, NULL, NULL);
    }
    for (int p = 0; p < 20; p++) {
        for (int s = 0; s < 2; s++) { g.rows[s].pos = g.rows[s].span = p; g.rows[s].seq = s; memcpy(g.r.a.qkv + s * all * d, qkv[s] + p * all * d, 24 * sizeof(float)); }
        g.r.op->rope(&g.r, g.r.a.qkv, &a, kv, g.rows, 2);
        g.r.op->attend(&g.r, out, g.r.a.qkv, &a, kv, g.rows, 2);
        for (int s = 0; s < 2; s++) CHECK(!memcmp(out + s * d, alone[s] + p * d, 8 * sizeof(float)));
    }
    rig_close(&g);
    for (int s = 0; s < 2; s++) { kv_close(&kv[s]); free(qkv[s]); free(alone[s]); }
    return 0;
}

// ---- the small ones

static int gelu_and_geglu(void)
{
    enum { M = 1003, N = 70 };
    static float gu[N * 2 * M], y[N * M], one[M], z[N * M];
    for (int width = 1; width <= 4; width += 3) {
        rig g;
        rig_open(&g, shape_of(1, 1, 1, 1, 1, 2, 0, width), NULL);
        if (width == 1) for (int i = 0; i < N * 2 * M; i++) gu[i] = random_f32() * (i % 5 ? 4.0f : 40.0f);
        if (width == 1) { gu[0] = 3e4f; gu[M] = 4e4f; gu[1] = -3e4f; gu[2] = 1e30f; }
        g.r.op->geglu(&g.r, width == 1 ? y : z, gu, M, N);
        CHECK(width == 1 || !memcmp(y, z, sizeof y));
        for (int t = 0; t < N; t += 23) { g.r.op->geglu(&g.r, one, gu + t * 2 * M, M, 1); CHECK(!memcmp(one, y + t * M, sizeof one)); }
        for (int t = 0; t < N; t++)
            for (int i = 0; i < M; i++) {
                const double x = (double)gu[t * 2 * M + i], up = (double)gu[t * 2 * M + M + i], want = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x))) * up;
                CHECK(fabs((double)y[t * M + i] - want) <= 4e-7 * (fabs(want) + fabs(x * up)));
            }
        CHECK(y[0] == 1.2e9f);                                                                        // beyond float16, no reason to overflow
        memcpy(z, gu, sizeof z);
        g.r.op->gelu(&g.r, z, M, N);
        for (int i = 3; i < N * M; i++) {
            const double x = (double)gu[i], want = 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
            CHECK(fabs((double)z[i] - want) <= 4e-7 * (fabs(want) + fabs(x)));
        }
        rig_close(&g);
    }
    return 0;
}

static int residuals_beyond_float16(void)       // post norm weights that bring the stream to 1e5
{
    enum { DIM = 640 };
    float *x = random_row(DIM), *y = random_row(DIM), *w = random_row(DIM);
    double want[DIM], wide[DIM];
    g3__norm norm = G3__ZERO;
    rig g;
    rig_open(&g, shape_of(1, DIM, 1, 1, 1, 2, 0, 1), NULL);
    for (int i = 0; i < DIM; i++) { x[i] *= 1e5f; y[i] *= 1e5f; w[i] = 1e5f; wide[i] = 1e5; }
    norm.dim = DIM; norm.eps = 1e-6f; norm.w.format = G3__F32; norm.w.data = w;
    norm_reference(want, y, wide, NULL, DIM, 1e-6);
    for (int i = 0; i < DIM; i++) want[i] += (double)x[i];
    g.r.op->add(&g.r, x, y, &norm, DIM, 1);
    for (int i = 0; i < DIM; i++) CHECK(fabs((double)x[i] - want[i]) <= 1e-6 * 2e5);
    rig_close(&g);
    free(x); free(y); free(w);
    return 0;
}

static int embed_scales_and_skips(void)
{
    const int rows[] = { 5, 6 }, ids[] = { 10, 0, -1, 5, 4 };
    const g3__format two[] = { G3__BF16, G3__NF4 };
    stack s;
    rig g;
    stack_open(&s, 2, two, rows, 7, 64, true, false, false);
    rig_open(&g, shape_of(5, 7, 1, 1, 1, 2, 0, 1), NULL);
    float *y = guarded(11 * 7);
    for (int i = 0; i < 5 * 7; i++) y[i] = 99;
    g.r.op->embed(&g.r, y, &s.W, ids, 5, 25.25f);
    for (int t = 0; t < 5; t++)
        for (int i = 0; i < 7; i++) {
            double b;
            CHECK(ids[t] < 0 ? y[t * 7 + i] == 99 : y[t * 7 + i] == (float)stack_value(&s, ids[t], i, &b) * 25.25f);
        }
    g.r.op->embed(&g.r, y, &s.W, NULL, 11, 1.0f);
    for (int t = 0; t < 11; t++) for (int i = 0; i < 7; i++) { double b; CHECK((double)y[t * 7 + i] == stack_value(&s, t, i, &b)); }
    CHECK(intact(y, 77) && !g.err.code);
    rig_close(&g); stack_close(&s); guarded_free(y);
    return 0;
}

static int pooling(void)
{
    enum { SIDE = 6, K = 2, DIM = 5 };
    float *x = random_row(SIDE * SIDE * DIM), *y = guarded(3 * 3 * DIM);
    rig g;
    rig_open(&g, shape_of(1, 1, 1, 1, 1, 2, 0, 1), NULL);
    g.r.op->pool(&g.r, y, x, SIDE, K, DIM);
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 3; c++)
            for (int i = 0; i < DIM; i++) {
                double sum = 0;
                for (int a = 0; a < K; a++) for (int b = 0; b < K; b++) sum += (double)x[((r * K + a) * SIDE + c * K + b) * DIM + i];
                CHECK(fabs((double)y[(r * 3 + c) * DIM + i] - sum / 4) < 1e-6);
            }
    CHECK(intact(y, 3 * 3 * DIM));
    rig_close(&g); free(x); guarded_free(y);
    return 0;
}

static void backwards(void *user, int n, void (*body)(void *ctx, int i), void *ctx)
{
    (void)user;
    for (int i = n - 1; i >= 0; i--) body(ctx, i);
}

static int lent_threads_in_any_order(void)
{
    const g3_parallel lent = { backwards, 3, NULL };
    model m = { 4, 2, 16, 20, 100, 1e4f, 1.0f, NULL, NULL };
    const size_t count = (size_t)(m.length * m.heads * m.d);
    m.qkv = random_row((size_t)(m.length * 8 * m.d));
    float *a = random_row(count), *b = random_row(count);
    attend_chunks(a, &m, G3_KV_INT8, 120, 100, 100, 1, 0.2f, NULL, NULL, NULL);
    attend_chunks(b, &m, G3_KV_INT8, 120, 100, 100, 3, 0.2f, NULL, NULL, &lent);
    CHECK(!memcmp(a, b, count * sizeof *a));
    free(m.qkv); free(a); free(b);
    return 0;
}

static void *no_memory(void *user, size_t size, size_t align) { (void)user; (void)size; (void)align; return NULL; }

static int the_first_failure_sticks(void)
{
    const g3_allocator none = { no_memory, NULL, NULL };
    const int rows = 3, bad = 3, good = 1;
    stack s;
    rig g;
    float x[4] = { 1, 2, 3, 4 }, y[4] = { 7, 7, 7, 7 };
    stack_open(&s, 1, &formats[0], &rows, 4, 64, false, false, false);
    rig_open(&g, shape_of(1, 4, 1, 1, 1, 2, 0, 1), NULL);
    void *p = g.r.op->alloc(&g.r, 100);
    CHECK(p && (uintptr_t)p % G3__ALIGN == 0);
    g.r.op->upload(&g.r, p, x, sizeof x);
    g.r.op->download(&g.r, y, p, sizeof y);
    CHECK(!memcmp(x, y, sizeof x));
    g.r.op->release(&g.r, p, 100);
    y[0] = 7;
    g.r.op->embed(&g.r, y, &s.W, &bad, 1, 1.0f);
    CHECK(g.err.code == G3_ERR_ARGUMENT && strstr(g.err.text, "3") && y[0] == 7);
    g.r.op->embed(&g.r, y, &s.W, &good, 1, 1.0f);
    g.r.op->linear(&g.r, y, x, NULL, &s.W, 1);
    g.r.op->add(&g.r, y, x, NULL, 4, 1);
    CHECK(y[0] == 7 && g.err.code == G3_ERR_ARGUMENT && !g.r.op->alloc(&g.r, 1));
    g3__error_clear(&g.err);
    g.r.memory = &none;
    CHECK(!g.r.op->alloc(&g.r, 1) && g.err.code == G3_ERR_MEMORY);
    rig_close(&g); stack_close(&s);
    return 0;
}

static int scratch_sizes_do_not_overflow(void)
{
    g3__acts_item item[G3__ACTS_ITEMS];
    g3__shape s = shape_of(INT_MAX, INT_MAX, INT_MAX, INT_MAX, 1, INT_MAX, 2, INT_MAX);
    g3__acts_sizes(&s, item);
    CHECK(!strcmp(item[2].name, "qkv") && item[2].count == UINT64_MAX);
    CHECK(item[0].count == (uint64_t)INT_MAX * INT_MAX && item[10].count == UINT64_MAX);
    return 0;
}

#ifdef G3__SIMD
static int exponentials(void)                     // of every size, against the C library's in double
{
    double worst = 0;
    for (int i = 0; i < 400000; i += 8) {
        float x[64], score[64], top = 0, sum = 1, fade[16];
        const float v = -87.0f + 87.0f * (float)i / 400000;
        for (int k = 0; k < 64; k++) { x[k] = fminf(v + (float)k * 2e-5f, 0); score[k] = x[k]; }
        rig_simd->soften(score, 1, 64, &top, &sum, fade);
        for (int k = 0; k < 64; k++) worst = fmax(worst, fabs((double)score[k] / exp((double)x[k]) - 1));
        CHECK(fade[0] == 1 && top == 0);
    }
    printf("    e^x is at most %.2g of itself away\n", worst);
    CHECK(worst < 2.5e-7);
    return 0;
}

static int what_is_masked_or_not_finite(void)     // -infinity weighs nothing, NaN is not lost
{
    float score[3 * 64], top[3] = { -1e30f, -1e30f, -1e30f }, sum[3] = { 0 }, fade[16];
    for (int i = 0; i < 3 * 64; i++) score[i] = i / 64 == 1 ? -HUGE_VALF : i == 2 * 64 + 5 ? NAN : -1000.0f;
    rig_simd->soften(score, 3, 64, top, sum, fade);
    CHECK(sum[0] == 64 && top[0] == -1000 && fade[0] == 0 && score[0] == 1);
    CHECK(sum[1] == 0 && top[1] == -1e30f && fade[1] == 1 && score[64] == 0);
    CHECK(sum[2] != sum[2]);
    return 0;
}
#endif

static void run_all(void)
{
    RUN(linear_all_formats_and_shapes);
    RUN(linear_tiles);
    RUN(tiles_hold_what_the_rows_held);
    RUN(linear_vision_shapes);
    RUN(linear_mixed_stacks_any_thread_count);
    RUN(linear_many_rows);
    RUN(linear_transposed);
    RUN(norms_of_both_kinds);
    RUN(norm_keeps_small_weights_and_outliers);
    RUN(linear_norms_its_input);
    RUN(windows_chunks_and_rings);
    RUN(attention_of_many_shapes_any_thread_count);
    RUN(window_counts_the_row_itself);
    RUN(image_spans_see_both_ways);
    RUN(large_scores_stay_finite);
    RUN(angles_as_published);
    RUN(cache_formats);
    RUN(cache_scales_are_safe);
    RUN(rows_of_several_sequences);
    RUN(gelu_and_geglu);
    RUN(residuals_beyond_float16);
    RUN(embed_scales_and_skips);
    RUN(pooling);
    RUN(lent_threads_in_any_order);
    RUN(the_first_failure_sticks);
    RUN(scratch_sizes_do_not_overflow);
}

// Everything with the plain loops, then with those of each instruction set that this machine has.
int main(void)
{
    run_all();
#ifdef G3__SIMD
    for (int i = 0; i < G3__COUNT(g3__simds); i++) {
        rig_simd = &g3__simds[i];
        printf("%s%s\n", rig_simd->name, rig_simd->here() ? "" : ": not on this machine");
        if (!rig_simd->here()) continue;
        run_all();
        RUN(exponentials);
        RUN(what_is_masked_or_not_finite);
    }
#endif
    return test_done();
}
