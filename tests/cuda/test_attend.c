// Attention on the card: every format of the cache, sizes of heads, groups, windows, rings and pictures against plain C, and the same bits however the
// rows are cut into steps.
#include "card.h"
#include "../ops/run.h"

typedef struct scene {
    int head_dim, heads, kv_heads, window, ring, length;         // ring 0: as long as the conversation
    g3_kv kv;
    int picture, end;                                            // rows [picture, end) see each other; 0: none
    bool bare;                                                   // no norms, no rotation
    float most;                                                  // error allowed, of values about 1
} scene;

// Where the cache rounds, norms and rotation that differ in the last bit of a float may differ in the last bit of a code: those scenes are bare, but for two.
static const scene scenes[] = {
    { 8, 4, 1, 0, 0, 600, G3_KV_F32, 0, 0, false, 2e-6f },       { 32, 4, 4, 20, 60, 300, G3_KV_F32, 30, 39, false, 2e-6f }, { 16, 6, 2, 300, 340, 700, G3_KV_BF16, 0, 0, true, 2e-6f },
    { 18, 2, 1, 0, 0, 300, G3_KV_BF16, 5, 20, true, 2e-6f },     { 32, 8, 1, 7, 47, 100, G3_KV_FP8, 0, 0, true, 2e-6f },     { 18, 3, 1, 0, 0, 280, G3_KV_INT8, 0, 0, true, 2e-6f },
    { 72, 2, 2, 0, 0, 64, G3_KV_F32, 1, 64, true, 2e-6f },       { 128, 4, 2, 0, 0, 270, G3_KV_BF16, 0, 0, true, 2e-6f },    { 128, 2, 1, 33, 73, 270, G3_KV_INT8, 0, 0, true, 2e-6f },
    { 256, 4, 1, 0, 0, 262, G3_KV_BF16, 0, 0, true, 2e-6f },     { 256, 2, 1, 40, 80, 100, G3_KV_FP8, 0, 0, true, 2e-6f },   { 256, 4, 1, 0, 0, 50, G3_KV_F32, 0, 0, false, 2e-6f },
    { 128, 12, 1, 0, 0, 20, G3_KV_BF16, 0, 0, true, 2e-6f },     { 64, 4, 2, 0, 0, 40, G3_KV_BF16, 0, 0, false, 5e-3f },     { 64, 4, 2, 0, 0, 40, G3_KV_INT8, 0, 0, false, 1e-2f },
};

typedef struct stage {
    const scene *s;
    g3__attn a, there;
    g3__kv kv;
    float *qkv, *want, *y, *angle, *parts;                       // [length] rows; parts on the card
    unsigned *tickets;
    g3__row *rows;
    size_t row, out;                                             // floats of a row of qkv, of y
} stage;

static uint16_t gains[2][256];

static void stage_open(stage *t, const scene *s)
{
    g3__shape shape = shape_of(s->length, 1, 1, s->heads, s->kv_heads, s->head_dim, 1, 1);
    rig g;
    memset(t, 0, sizeof *t);
    t->s = s;
    t->row = (size_t)(s->heads + 2 * s->kv_heads) * (size_t)s->head_dim;
    t->out = (size_t)s->heads * (size_t)s->head_dim;
    t->a.heads = s->heads; t->a.kv_heads = s->kv_heads; t->a.head_dim = s->head_dim; t->a.window = s->window;
    t->a.scale = 1.0f / sqrtf((float)s->head_dim); t->a.theta = 10000; t->a.factor = 1; t->a.angles = s->bare ? -1 : 0;
    for (int i = 0; i < 2 && !s->bare; i++) {
        g3__norm *n = i ? &t->a.k_norm : &t->a.q_norm;
        for (int k = 0; k < s->head_dim; k++) gains[i][k] = g3__f32_to_bf16(0.5f * random_f32());
        n->dim = s->head_dim; n->eps = 1e-6f; n->w.format = G3__BF16; n->w.data = gains[i];
    }
    t->there = t->a;
    t->there.q_norm = card_norm(&t->a.q_norm);
    t->there.k_norm = card_norm(&t->a.k_norm);
    t->qkv = (float *)malloc((size_t)s->length * t->row * 4);
    t->want = (float *)malloc((size_t)s->length * t->out * 4);
    t->y = (float *)malloc((size_t)s->length * t->out * 4);
    for (size_t i = 0; i < (size_t)s->length * t->row; i++) t->qkv[i] = random_f32() * 2;
    t->rows = (g3__row *)calloc((size_t)s->length, sizeof *t->rows);
    for (int p = 0; p < s->length; p++) { t->rows[p].pos = p; t->rows[p].span = p >= s->picture && p < s->end ? s->end - 1 : p; }
    t->kv = kv_open(s->kv, s->ring ? s->ring : s->length, s->kv_heads, s->head_dim);
    rig_open(&g, shape, NULL);
    float *x = (float *)malloc((size_t)s->length * t->row * 4);
    memcpy(x, t->qkv, (size_t)s->length * t->row * 4);
    g3__frequencies(&t->a, g.r.a.freq);
    for (int first = 0, n; first < s->length; first += n) {      // as the session does: steps that the ring allows
        n = G3__MIN(s->length - first, s->ring ? s->ring - s->window : s->length);
        memcpy(g.rows, t->rows + first, (size_t)n * sizeof *g.rows);
        if (!s->bare) g3__cpu_angles(&g.r, &t->a, n);
        g3__cpu_rope(&g.r, x + (size_t)first * t->row, &t->a, &t->kv, g.rows, n);
        g3__cpu_attend(&g.r, t->want + (size_t)first * t->out, x + (size_t)first * t->row, &t->a, &t->kv, g.rows, n);
    }
    t->angle = (float *)card_take((size_t)s->length * (size_t)s->head_dim * 4);
    float *freq = (float *)card_copy(g.r.a.freq, (size_t)s->head_dim * 2);
    g3__row *all = (g3__row *)card_copy(t->rows, (size_t)s->length * sizeof *all);
    g3__card_angles(&card, t->angle, freq, all, s->head_dim / 2, s->length, &card_err);
    t->parts = (float *)card_take((size_t)(s->length / 256 + 3) * (size_t)s->heads * (size_t)(s->head_dim + 2) * 4);
    t->tickets = (unsigned *)card_copy(calloc(64, 4), 256);
    free(x);
    rig_close(&g);
}

static void stage_close(stage *t) { free(t->qkv); free(t->want); free(t->y); free(t->rows); kv_close(&t->kv); }

static g3__kv kv_there(const g3__kv *kv)                 // a cache on the card, of NaN
{
    g3__kv d = *kv;
    const size_t cells = (size_t)kv->rows * (size_t)kv->kv_heads, bytes = cells * (size_t)kv->head_dim * (size_t)g3__kv_size(kv->format);
    void *blank = malloc(bytes + cells * 4);
    memset(blank, 0xff, bytes + cells * 4);
    d.k = card_copy(blank, bytes); d.v = card_copy(blank, bytes);
    if (kv->k_scale) { d.k_scale = (float *)card_copy(blank, cells * 4); d.v_scale = (float *)card_copy(blank, cells * 4); }
    free(blank);
    return d;
}

enum { FUSED = -1 };

// The whole scene in steps of `chunk` rows, or FUSED: single rows in one launch. Pictures are never cut. False: something failed.
static bool stage_run(stage *t, int chunk, g3__kv *kv)
{
    const scene *s = t->s;
    const int most = s->ring ? s->ring - s->window : s->length;
    *kv = kv_there(&t->kv);
    float *x = (float *)card_copy(t->qkv, (size_t)s->length * t->row * 4), *y = (float *)card_copy(NULL, (size_t)s->length * t->out * 4);
    g3__row *rows = (g3__row *)card_copy(t->rows, (size_t)s->length * sizeof *rows);
    for (int first = 0, n; first < s->length; first += n) {
        const size_t at = (size_t)first;
        n = G3__MIN(G3__MIN(G3__MAX(chunk, 1), most), s->length - first);
        if (first < s->end && first + n > s->picture) n = s->end - first;
        float *angle = s->bare ? NULL : t->angle + at * (size_t)s->head_dim;
        if (chunk == FUSED && n == 1) g3__card_attend_one(&card, y + at * t->out, x + at * t->row, &t->there, kv, rows + first, angle, t->parts, t->tickets, &card_err);
        else {
            g3__card_rope(&card, x + at * t->row, &t->there, kv, rows + first, angle, n, &card_err);
            g3__card_attend(&card, y + at * t->out, x + at * t->row, &t->there, kv, rows + first, n, &card_err);
        }
    }
    if (card_err.code) fprintf(stderr, "    %s\n", card_err.text);
    return card_from(t->y, y, (size_t)s->length * t->out * 4) && !card_err.code;
}

static int scene_matches(const scene *s)
{
    stage t;
    g3__kv kv;
    double most = 0;
    CHECK(g3__card_module(&card, "", &card_err) && g3__card_attention_module(&card, s->heads, s->kv_heads, s->head_dim, s->kv, &card_err));
    stage_open(&t, s);
    CHECK(stage_run(&t, s->length, &kv));
    for (size_t i = 0; i < (size_t)s->length * t.out; i++) { const double d = fabs((double)t.y[i] - (double)t.want[i]); if (!(d <= most)) most = d; }
    if (most > (double)s->most) fprintf(stderr, "    head_dim %d: %g\n", s->head_dim, most);
    CHECK(most <= (double)s->most);
    if (s->bare) {                                       // nothing is computed on the way into the cache: the same bytes
        const size_t bytes = (size_t)kv.rows * (size_t)kv.kv_heads * (size_t)kv.head_dim * (size_t)g3__kv_size(kv.format);
        char *k = (char *)malloc(bytes);
        CHECK(card_from(k, kv.k, bytes) && !memcmp(k, t.kv.k, bytes) && card_from(k, kv.v, bytes) && !memcmp(k, t.kv.v, bytes));
        free(k);
    }
    float *first = t.y;
    t.y = (float *)malloc((size_t)s->length * t.out * 4);
    static const int chunks[] = { 1, 7, FUSED };
    for (int i = 0; i < G3__COUNT(chunks); i++) {
        CHECK(stage_run(&t, chunks[i], &kv));
        CHECK(!memcmp(first, t.y, (size_t)s->length * t.out * 4));
    }
    free(first);
    stage_close(&t);
    return 0;
}

static int attention_is_that_of_plain_c_however_rows_are_cut(void)
{
    for (int i = 0; i < G3__COUNT(scenes); i++) {
        if (!card_open("cc=80")) SKIP("no NVRTC here");
        const int line = scene_matches(&scenes[i]);
        if (line) { fprintf(stderr, "    scene %d\n", i); return line; }
        card_close();
    }
    return 0;
}

// Rows whose values are chosen: into the cache byte for byte as plain C does it, whatever cannot be a number included.
static int rows_go_into_the_cache_as_in_plain_c(void)
{
    enum { D = 16, N = 40 };
    static const g3_kv kinds[] = { G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 };
    static float x[N * 3 * D], q[N * 3 * D];
    g3__row rows[N];
    for (int i = 0; i < N * 3 * D; i++) x[i] = ldexpf(random_f32(), (int)(random_u32() % 40) - 30);
    for (int i = 0; i < D; i++) { x[i + D] = 0; x[3 * D + D + i] = (float)i - 7.5f; }                  // a row of zeros; halves of a code
    x[6 * D + D + 3] = HUGE_VALF; x[9 * D + 2 * D + 4] = NAN; x[12 * D + D + 1] = -0.0f; x[15 * D + D] = 3e38f; x[18 * D + D + 2] = 1e-40f;
    for (int i = 0; i < 4; i++) {
        if (!card_open("cc=80")) SKIP("no NVRTC here");
        g3__attn a = G3__ZERO;
        rig g;
        a.heads = a.kv_heads = 1; a.head_dim = D; a.angles = -1; a.scale = 1;
        for (int t = 0; t < N; t++) { rows[t].pos = rows[t].span = t; rows[t].seq = 0; }
        g3__kv kv = kv_open(kinds[i], N, 1, D), there = kv_there(&kv);
        memcpy(q, x, sizeof q);
        rig_open(&g, shape_of(N, 1, 1, 1, 1, D, 0, 1), NULL);
        g3__cpu_rope(&g.r, q, &a, &kv, rows, N);
        rig_close(&g);
        CHECK(g3__card_attention_module(&card, 1, 1, D, kinds[i], &card_err));
        float *dx = (float *)card_copy(x, sizeof x);
        g3__card_rope(&card, dx, &a, &there, (g3__row *)card_copy(rows, sizeof rows), NULL, N, &card_err);
        const size_t bytes = (size_t)N * D * (size_t)g3__kv_size(kinds[i]);
        char got[N * D * 4];
        float scales[N];
        CHECK(!card_err.code && card_from(got, there.k, bytes));
        CHECK(!memcmp(got, kv.k, bytes));
        CHECK(card_from(got, there.v, bytes) && (kinds[i] == G3_KV_F32 || !memcmp(got, kv.v, bytes)));
        if (kv.k_scale) CHECK(card_from(scales, there.k_scale, sizeof scales) && !memcmp(scales, kv.k_scale, sizeof scales));
        kv_close(&kv);
        card_close();
    }
    return 0;
}

int main(void)
{
    RUN(attention_is_that_of_plain_c_however_rows_are_cut);
    RUN(rows_go_into_the_cache_as_in_plain_c);
    return test_done();
}
