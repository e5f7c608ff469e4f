// Matrix products on the card: every format, shape and number of rows against sums in double.
#include "card.h"

enum { MOST = 70, SLACK = 64 };

static uint64_t state = 88172645463325252u;
static uint32_t random_u32(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return (uint32_t)(state >> 32); }
static float random_f32(void) { return (float)(random_u32() >> 8) / 8388608.0f - 1.0f; }

static const float f8_scale = 0.37f;

// Random weights as a file brings them. The caller frees with weights_free.
static g3__bits weights(g3__format format, int rows, int cols, uint32_t blocksize, uint32_t nested)
{
    const size_t n = (size_t)rows * (size_t)cols, blocks = blocksize ? (n + blocksize - 1) / blocksize : 0;
    g3__bits w = G3__ZERO;
    uint8_t *data = (uint8_t *)malloc(4 * n + 16);
    w.format = format;
    w.map = -1;
    for (size_t i = 0; i < n; i++) {
        const float f = random_f32();
        if (format == G3__F32) memcpy(data + 4 * i, &f, 4);
        else if (format == G3__BF16) { const uint16_t h = g3__f32_to_bf16(f); memcpy(data + 2 * i, &h, 2); }
        else if (format == G3__F16) { const uint16_t h = (uint16_t)((random_u32() & 0x83ff) | 0x3800); memcpy(data + 2 * i, &h, 2); }
        else if (format == G3__E4M3) data[i] = g3__f32_to_e4m3(f);
        else if (format == G3__E5M2) data[i] = (uint8_t)((random_u32() & 0x83) | 0x38);
        else data[i / 2] = (uint8_t)random_u32();
    }
    w.data = data;
    if (format == G3__E4M3 || format == G3__E5M2) { w.scale = &f8_scale; w.scale_format = G3__F32; }
    if (!g3__is_4bit(format)) return w;
    w.blocksize = blocksize;
    if (!nested) {
        float *absmax = (float *)malloc(blocks * 4);
        for (size_t i = 0; i < blocks; i++) absmax[i] = 0.01f + 0.1f * fabsf(random_f32());
        w.absmax = absmax;
        return w;
    }
    uint8_t *code = (uint8_t *)malloc(blocks);
    float *map = (float *)malloc(256 * 4), *groups = (float *)malloc(((blocks + nested - 1) / nested) * 4);
    for (size_t i = 0; i < blocks; i++) code[i] = (uint8_t)random_u32();
    for (int i = 0; i < 256; i++) map[i] = -1.0f + (float)i / 127.5f;
    for (size_t i = 0; i < (blocks + nested - 1) / nested; i++) groups[i] = 0.01f + 0.02f * fabsf(random_f32());
    w.absmax = code; w.nested_map = map; w.nested_absmax = groups; w.nested_blocksize = nested; w.nested_offset = 0.06f;
    return w;
}

static void weights_free(g3__bits *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->absmax);
    free((void *)(uintptr_t)w->nested_absmax);
    free((void *)(uintptr_t)w->nested_map);
}

typedef struct piece { g3__format format; int rows; uint32_t blocksize, nested; } piece;
typedef struct product { int cols, n_segs; piece seg[3]; bool transposed, bias, norm; } product;

typedef struct sums { g3__mat W, there; g3__norm norm, norm_there; float *w, *bias, *x, *gain; int n; } sums;     // w [rows][cols] decoded

static void sums_open(sums *s, const product *p)
{
    memset(s, 0, sizeof *s);
    s->W.cols = p->cols;
    s->W.transposed = p->transposed;
    for (int i = 0; i < p->n_segs; i++) {
        g3__seg *seg = &s->W.seg[s->W.n_segs++];
        seg->rows = p->seg[i].rows;
        seg->bits = weights(p->seg[i].format, seg->rows, p->cols, p->seg[i].blocksize, p->seg[i].nested);
        if (p->bias) seg->bias = weights(i == 1 ? G3__F32 : G3__BF16, 1, seg->rows, 0, 0);
        s->W.rows += seg->rows;
    }
    s->w = (float *)calloc((size_t)s->W.rows * (size_t)p->cols, 4);
    s->bias = (float *)calloc((size_t)s->W.rows, 4);
    s->x = (float *)malloc((size_t)MOST * (size_t)p->cols * 4);
    s->gain = (float *)malloc((size_t)p->cols * 4);
    float *w = s->w, *bias = s->bias;
    for (int i = 0; i < p->n_segs; w += (size_t)s->W.seg[i].rows * (size_t)p->cols, bias += s->W.seg[i].rows, i++) {
        const size_t rows = (size_t)s->W.seg[i].rows, cols = (size_t)p->cols;
        float *flat = (float *)malloc(rows * cols * 4);
        g3__decode(&s->W.seg[i].bits, 0, rows * cols, flat);
        for (size_t r = 0; r < rows; r++) for (size_t k = 0; k < cols; k++) w[r * cols + k] = p->transposed ? flat[k * rows + r] : flat[r * cols + k];
        free(flat);
        if (p->bias) g3__decode(&s->W.seg[i].bias, 0, rows, bias);
    }
    for (int i = 0; i < MOST * p->cols; i++) s->x[i] = random_f32() * 2;
    s->norm.dim = p->cols; s->norm.eps = 1e-6f; s->norm.w = weights(G3__BF16, 1, p->cols, 0, 0);
    g3__decode(&s->norm.w, 0, (uint64_t)p->cols, s->gain);
    s->there = card_mat(&s->W);
    s->norm_there = card_norm(&s->norm);
}

static void sums_close(sums *s)
{
    for (int i = 0; i < s->W.n_segs; i++) { weights_free(&s->W.seg[i].bits); weights_free(&s->W.seg[i].bias); }
    weights_free(&s->norm.w);
    free(s->w); free(s->bias); free(s->x); free(s->gain);
}

// y [n][rows] on the card, from rows first, first + 1, ... of x; what lies behind must stay.
static bool sums_run(const sums *s, int first, int n, bool norm, float *y)
{
    const size_t count = (size_t)n * (size_t)s->W.rows;
    float *all = (float *)malloc((count + SLACK) * 4);
    for (size_t i = 0; i < count + SLACK; i++) all[i] = NAN;
    float *dy = (float *)card_copy(all, (count + SLACK) * 4), *h = (float *)card_take((size_t)n * (size_t)s->W.cols * 4);
    float *dx = (float *)card_copy(s->x + (size_t)first * (size_t)s->W.cols, (size_t)n * (size_t)s->W.cols * 4);
    g3__card_linear(&card, dy, dx, norm ? &s->norm_there : NULL, &s->there, n, h, NULL, &card_err);
    bool ok = card_from(all, dy, (count + SLACK) * 4) && !card_err.code;
    if (card_err.code) fprintf(stderr, "    %s\n", card_err.text);
    for (size_t i = count; i < count + SLACK; i++) ok = ok && all[i] != all[i];
    memcpy(y, all, count * 4);
    free(all);
    return ok;
}

// The largest error, as a part of the sum of magnitudes.
static double sums_error(const sums *s, int first, int n, bool norm, const float *y)
{
    double most = 0;
    for (int t = 0; t < n; t++) {
        const float *x = s->x + (size_t)(first + t) * (size_t)s->W.cols;
        double square = 0;
        for (int k = 0; k < s->W.cols; k++) square += (double)x[k] * (double)x[k];
        const double scale = norm ? 1 / sqrt(square / s->W.cols + (double)s->norm.eps) : 1;
        for (int r = 0; r < s->W.rows; r++) {
            double sum = 0, size = fabs((double)s->bias[r]);
            for (int k = 0; k < s->W.cols; k++) {
                const double term = (double)s->w[(size_t)r * (size_t)s->W.cols + (size_t)k] * (double)x[k] * (norm ? scale * (1 + (double)s->gain[k]) : 1);
                sum += term; size += fabs(term);
            }
            const double e = fabs((double)y[(size_t)t * (size_t)s->W.rows + (size_t)r] - (sum + (double)s->bias[r])) / size;
            if (!(e <= most)) most = e;
        }
    }
    return most;
}

static const product products[] = {
    { 128, 1, { { G3__NF4, 32, 64, 256 } }, false, false, false }, { 640, 3, { { G3__NF4, 64, 64, 256 }, { G3__BF16, 16, 0, 0 }, { G3__NF4, 16, 64, 256 } }, false, false, true },
    { 192, 2, { { G3__NF4, 48, 64, 0 }, { G3__FP4, 48, 64, 256 } }, false, true, true }, { 256, 1, { { G3__FP4, 16, 128, 0 } }, false, false, false },
    { 2112, 1, { { G3__NF4, 48, 64, 256 } }, false, false, true }, { 80, 2, { { G3__BF16, 32, 0, 0 }, { G3__BF16, 32, 0, 0 } }, false, true, true },
    { 2064, 1, { { G3__BF16, 32, 0, 0 } }, false, false, false }, { 72, 1, { { G3__BF16, 17, 0, 0 } }, false, true, true },
    { 100, 2, { { G3__F16, 5, 0, 0 }, { G3__F32, 9, 0, 0 } }, false, true, true }, { 64, 1, { { G3__E4M3, 16, 0, 0 } }, false, false, false }, { 33, 1, { { G3__E5M2, 3, 0, 0 } }, false, false, true },
    { 72, 1, { { G3__NF4, 20, 64, 256 } }, false, true, true }, { 96, 1, { { G3__BF16, 40, 0, 0 } }, true, false, true }, { 4304, 1, { { G3__NF4, 1, 64, 256 } }, false, true, false },
};

static int product_matches(const product *p, double most)
{
    static const int rows[] = { 1, 2, 5, 8, 9, 33, 70 };
    sums s;
    sums_open(&s, p);
    float *y = (float *)malloc((size_t)MOST * (size_t)s.W.rows * 4), *all = (float *)malloc((size_t)MOST * (size_t)s.W.rows * 4);
    CHECK(sums_run(&s, 0, MOST, p->norm, all));
    for (int i = 0; i < G3__COUNT(rows); i++) {
        const int n = rows[i], first = MOST - n;
        CHECK(sums_run(&s, first, n, p->norm, y));
        if (i < 2 || n == MOST) CHECK(sums_error(&s, first, n, p->norm, y) < most);
        CHECK(!memcmp(y, all + (size_t)first * (size_t)s.W.rows, (size_t)n * (size_t)s.W.rows * 4));          // a row's bits do not depend on the others
    }
    free(y); free(all);
    sums_close(&s);
    return 0;
}

static int products_match(const char *fields, const char *options, double most)
{
    for (int i = 0; i < G3__COUNT(products); i++) {
        if (!card_open(fields)) SKIP("no NVRTC here");
        CHECK(g3__card_module(&card, options, &card_err));
        int line = product_matches(&products[i], most);
        if (line) { fprintf(stderr, "    product %d\n", i); return line; }
        card_close();
    }
    return 0;
}

static int every_format_and_shape_is_near_float32_when_precise(void) { return products_match("cc=80", "-DG3K_PRECISE=1", 2e-6); }
static int every_format_and_shape_is_within_bf16_by_default(void)    { return products_match("cc=80", "-DG3K_PRECISE=0", 4e-3); }

int main(void)
{
    RUN(every_format_and_shape_is_near_float32_when_precise);
    RUN(every_format_and_shape_is_within_bf16_by_default);
    return test_done();
}
