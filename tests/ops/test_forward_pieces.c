// The forward pass of a tiny model laid out by hand, without loader and session: every piece of layers 0 and 1, the residual stream,
// the logits and a greedy continuation against the reference, for several chunk and thread counts. The pieces are seen through a table
// of operations that wraps the CPU's, as an observer does it.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "../tools/st.h"
#include "run.h"

enum { LAYERS = 4, DIM = 64, FFN = 96, HEADS = 4, KV = 2, HEAD = 16, WINDOW = 8, VOCAB = 512, T = 40, CONTEXT = 64 };

typedef struct tiny {
    st_file file;
    unsigned char *json, *bin;
    g3__mat E;
    g3__norm final;
    g3__layer layer[LAYERS];
    g3__tower tower;
    g3__ops op;                        // the observer
    int ids[T];
} tiny;

// ---- the model, from the tensors' names and the settings in its config.json (layers 1 and 3 are global, no linear factor)

static g3__bits bits_of(const tiny *m, const char *fmt, int l)
{
    char name[128];
    g3__bits b = G3__ZERO;
    snprintf(name, sizeof name, fmt, l);
    const st_tensor *t = st_find(&m->file, "%s", name);
    if (!t) { fprintf(stderr, "no tensor %s\n", name); exit(1); }
    b.format = G3__F32;
    b.data = t->data;
    return b;
}

static void stack_add(g3__mat *W, const tiny *m, const char *fmt, int l, int rows, int cols)
{
    W->seg[W->n_segs].rows = rows;
    W->seg[W->n_segs++].bits = bits_of(m, fmt, l);
    W->rows += rows;
    W->cols = cols;
}

static g3__norm norm_of(const tiny *m, const char *fmt, int l, int dim)
{
    g3__norm n = G3__ZERO;
    n.dim = dim; n.eps = 1e-6f; n.w = bits_of(m, fmt, l);
    return n;
}

static void layer_of(const tiny *m, g3__layer *L, int l)
{
    memset(L, 0, sizeof *L);
    L->op = &m->op;
    stack_add(&L->qkv, m, "model.layers.%d.self_attn.q_proj.weight", l, HEADS * HEAD, DIM);
    stack_add(&L->qkv, m, "model.layers.%d.self_attn.k_proj.weight", l, KV * HEAD, DIM);
    stack_add(&L->qkv, m, "model.layers.%d.self_attn.v_proj.weight", l, KV * HEAD, DIM);
    stack_add(&L->wo, m, "model.layers.%d.self_attn.o_proj.weight", l, DIM, HEADS * HEAD);
    stack_add(&L->gate_up, m, "model.layers.%d.mlp.gate_proj.weight", l, FFN, DIM);
    stack_add(&L->gate_up, m, "model.layers.%d.mlp.up_proj.weight", l, FFN, DIM);
    stack_add(&L->down, m, "model.layers.%d.mlp.down_proj.weight", l, DIM, FFN);
    L->norm_att = norm_of(m, "model.layers.%d.input_layernorm.weight", l, DIM);
    L->post_att = norm_of(m, "model.layers.%d.post_attention_layernorm.weight", l, DIM);
    L->norm_ffn = norm_of(m, "model.layers.%d.pre_feedforward_layernorm.weight", l, DIM);
    L->post_ffn = norm_of(m, "model.layers.%d.post_feedforward_layernorm.weight", l, DIM);
    g3__attn *a = &L->att;
    a->heads = HEADS; a->kv_heads = KV; a->head_dim = HEAD;
    a->window = l % 2 ? 0 : WINDOW; a->angles = l % 2; a->theta = l % 2 ? 1e6f : 1e4f; a->factor = 1.0f;
    a->scale = 1.0f / sqrtf(24.0f);
    a->q_norm = norm_of(m, "model.layers.%d.self_attn.q_norm.weight", l, HEAD);
    a->k_norm = norm_of(m, "model.layers.%d.self_attn.k_norm.weight", l, HEAD);
}

static bool tiny_open(tiny *m)
{
    size_t size;
    memset(m, 0, sizeof *m);
    m->json = st_read(golden("text/tiny/t1-f32-text/expected.json"), &size);
    m->bin = st_read(golden("text/tiny/t1-f32-text/expected.bin"), &size);
    if (!m->json || !m->bin || !st_open(&m->file, golden("text/tiny/t1-f32-text/model.safetensors"))) return false;
    stack_add(&m->E, m, "model.embed_tokens.weight", 0, VOCAB, DIM);
    m->final = norm_of(m, "model.norm.weight", 0, DIM);
    m->op = g3__cpu_ops;
    for (int l = 0; l < LAYERS; l++) layer_of(m, &m->layer[l], l);
    m->tower.layers = LAYERS; m->tower.dim = DIM; m->tower.embed_scale = 8.0f; m->tower.layer = m->layer;
    const char *p = strstr((char *)m->json, "\"ids\"");
    for (int i = 0; p && i < T; i++) { p = strpbrk(p, "0123456789"); if (p) m->ids[i] = (int)strtol(p, (char **)(uintptr_t)&p, 10); }
    return p != NULL;
}

static void tiny_close(tiny *m) { st_close(&m->file); free(m->json); free(m->bin); }

static const float *expected(const tiny *m, const char *name)         // its array; NULL: the fixture has none
{
    char key[64];
    snprintf(key, sizeof key, "\"name\": \"%s\"", name);
    const char *p = strstr((char *)m->json, key);
    p = p ? strstr(p, "\"offset\":") : NULL;
    return p ? (const float *)(const void *)(m->bin + strtoul(p + 9, NULL, 10)) : NULL;
}

// ---- the observer: compares what an operation reads or leaves with the reference

typedef struct watch { g3__run r; const tiny *m; int seen, wrong; double worst; } watch;      // r first: the operations get its address

static void see(g3__run *r, const char *fmt, const float *y, int n, int cols, int ld)          // rows of the step, `ld` apart
{
    watch *w = (watch *)r;
    char name[64];
    snprintf(name, sizeof name, fmt, r->layer);
    const float *want = expected(w->m, name);
    if (!want) return;
    for (int t = 0; t < n; t++)
        for (int i = 0; i < cols; i++) {
            const double e = fabs((double)y[t * ld + i] - (double)want[(r->rows[t].pos) * cols + i]);
            if (!(e <= w->worst)) w->worst = e;
            if (!(e <= 2e-4)) { if (!w->wrong++) fprintf(stderr, "%s: position %d, column %d: %g apart\n", name, r->rows[t].pos, i, e); }
        }
    w->seen++;
}

static void see_norm(g3__run *r, const char *fmt, const float *x, const g3__norm *norm, int n)
{
    float *y = (float *)malloc(sizeof(float) * (size_t)(n * norm->dim));
    g3__cpu_ops.norm(r, y, x, norm, n);
    see(r, fmt, y, n, norm->dim, norm->dim);
    free(y);
}

static void see_heads(g3__run *r, const char *fmt, const float *x, const g3__norm *norm, int heads, int n)   // normed heads; the reference has [heads][T][HEAD]
{
    watch *w = (watch *)r;
    char name[64];
    float y[HEADS * HEAD];
    snprintf(name, sizeof name, fmt, r->layer);
    const float *want = expected(w->m, name);
    for (int t = 0; t < n && want; t++) {
        g3__cpu_ops.norm(r, y, x + t * (HEADS + 2 * KV) * HEAD, norm, heads);
        for (int i = 0; i < heads * HEAD; i++)
            w->wrong += !(fabsf(y[i] - want[(i / HEAD * T + r->rows[t].pos) * HEAD + i % HEAD]) <= 2e-4f);
    }
    w->seen += want != NULL;
}

static void watch_embed(g3__run *r, float *y, const g3__mat *E, const int *ids, int n, float scale)
{
    g3__cpu_ops.embed(r, y, E, ids, n, scale);
    see(r, "embed", y, n, DIM, DIM);
}

static void watch_linear(g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, int n)
{
    const g3__layer *L = r->layer < 0 ? NULL : &r->tower->layer[r->layer];
    if (L && W == &L->qkv) see_norm(r, "layer_%d.input_norm", x, norm, n);
    if (L && W == &L->gate_up) see_norm(r, "layer_%d.pre_ffn_norm", x, norm, n);
    if (!L) see_norm(r, "final_norm", x, norm, n);
    g3__cpu_ops.linear(r, y, x, norm, W, n);
    if (L && W == &L->qkv) see(r, "layer_%d.v", y + (HEADS + KV) * HEAD, n, KV * HEAD, W->rows);
    if (L && W == &L->wo) see(r, "layer_%d.attn_out", y, n, DIM, DIM);
    if (L && W == &L->down) see(r, "layer_%d.mlp_out", y, n, DIM, DIM);
    if (!L) see(r, "logits", y, n, VOCAB, VOCAB);
}

static void watch_rope(g3__run *r, float *qkv, const g3__attn *a, g3__kv *kv, const g3__row *rows, int n)
{
    see_heads(r, "layer_%d.q_normed", qkv, &a->q_norm, HEADS, n);
    see_heads(r, "layer_%d.k_normed", qkv + HEADS * HEAD, &a->k_norm, KV, n);
    g3__cpu_ops.rope(r, qkv, a, kv, rows, n);
}

static void watch_attend(g3__run *r, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n)
{
    g3__cpu_ops.attend(r, y, qkv, a, kv, rows, n);
    see(r, "layer_%d.heads_out", y, n, HEADS * HEAD, HEADS * HEAD);
}

static void watch_geglu(g3__run *r, float *y, const float *gu, int m, int n)
{
    g3__cpu_ops.geglu(r, y, gu, m, n);
    see(r, "layer_%d.geglu", y, n, FFN, FFN);
}

static void watch_add(g3__run *r, float *x, const float *y, const g3__norm *norm, int dim, int n)
{
    const g3__layer *L = &r->tower->layer[r->layer];
    see_norm(r, norm == &L->post_att ? "layer_%d.post_attn_norm" : "layer_%d.post_ffn_norm", y, norm, n);
    g3__cpu_ops.add(r, x, y, norm, dim, n);
    if (norm == &L->post_ffn) see(r, "layer_%d", x, n, DIM, DIM);
}

static void watch_all(g3__ops *op)
{
    op->embed = watch_embed; op->linear = watch_linear; op->rope = watch_rope; op->attend = watch_attend; op->geglu = watch_geglu; op->add = watch_add;
}

// ---- a session in a few lines

typedef struct talk { rig g; watch w; g3__kv kv[LAYERS], *seq[LAYERS]; int pos; } talk;

static void talk_open(talk *t, tiny *m, g3_kv format, int batch, int width)
{
    memset(t, 0, sizeof *t);
    rig_open(&t->g, shape_of(batch, DIM, FFN, HEADS, KV, HEAD, 2, width), NULL);
    for (int l = 0; l < LAYERS; l++) {
        t->kv[l] = kv_open(format, l % 2 ? CONTEXT : WINDOW + batch, KV, HEAD);
        t->seq[l] = &t->kv[l];
    }
    t->w.r = t->g.r;
    t->w.r.op = &m->op;
    t->w.r.kv = t->seq;
    t->w.m = m;
}

static void talk_add(talk *t, tiny *m, const int *ids, int n, float *logits)
{
    for (int i = 0; i < n; i++) { t->g.rows[i].pos = t->g.rows[i].span = t->pos + i; t->g.rows[i].seq = 0; }
    g3__text_forward(&t->w.r, &m->tower, &m->E, ids, n);
    g3__logits(&t->w.r, &m->E, &m->final, 0, n, logits);
    t->pos += n;
}

static void talk_close(talk *t)
{
    for (int l = 0; l < LAYERS; l++) kv_close(&t->kv[l]);
    rig_close(&t->g);
}

static int pieces_of_every_layer(void)
{
    static const int chunk[] = { 40, 7, 1, 16, 40 }, width[] = { 1, 2, 1, 3, 4 };
    static float logits[G3__COUNT(chunk)][T * VOCAB];
    tiny m;
    CHECK(tiny_open(&m));
    watch_all(&m.op);
    for (int c = 0; c < G3__COUNT(chunk); c++) {
        talk t;
        talk_open(&t, &m, G3_KV_F32, chunk[c], width[c]);
        for (int p = 0; p < T; p += chunk[c]) talk_add(&t, &m, m.ids + p, G3__MIN(chunk[c], T - p), logits[c] + p * VOCAB);
        CHECK(t.g.err.code == G3_OK && !t.w.wrong);
        CHECK(t.w.seen == (T + chunk[c] - 1) / chunk[c] * (1 + 2 * 11 + LAYERS + 2));      // embed, insides of two layers, layers, final norm and logits
        CHECK(!memcmp(logits[c], logits[0], sizeof logits[0]));                            // any chunks, any threads: the same bits
        if (!c) printf("    farthest from the reference: %.2g\n", t.w.worst);
        talk_close(&t);
    }
    tiny_close(&m);
    return 0;
}

static int greedy_continuation(void)
{
    static float logits[20 * VOCAB];
    tiny m;
    talk t;
    CHECK(tiny_open(&m));
    const char *p = strstr((char *)m.json, "\"greedy_continuation\"");
    CHECK(p);
    talk_open(&t, &m, G3_KV_F32, 20, 2);
    talk_add(&t, &m, m.ids, 20, logits);
    const float *last = logits + 19 * VOCAB;
    for (int i = 0; i < 24; i++, last = logits) {
        int best = 0;
        for (int k = 1; k < VOCAB; k++) if (last[k] > last[best]) best = k;
        p = strpbrk(p, "0123456789");
        CHECK(p && best == strtol(p, (char **)(uintptr_t)&p, 10));
        talk_add(&t, &m, &best, 1, logits);
    }
    talk_close(&t);
    tiny_close(&m);
    return 0;
}

static int cache_formats_stay_close(void)       // the same model over smaller caches: near, and the same bits for any chunks
{
    static const struct { g3_kv format; double far; } c[] = { { G3_KV_BF16, 0.05 }, { G3_KV_INT8, 0.1 }, { G3_KV_FP8, 0.5 } };
    static float all[T * VOCAB], one[T * VOCAB];
    tiny m;
    CHECK(tiny_open(&m));
    const float *want = expected(&m, "logits");
    for (int i = 0; i < G3__COUNT(c); i++) {
        double worst = 0;
        for (int pass = 0; pass < 2; pass++) {
            talk t;
            talk_open(&t, &m, c[i].format, pass ? 1 : T, 1);
            for (int p = 0; p < T; p += pass ? 1 : T) talk_add(&t, &m, m.ids + p, pass ? 1 : T, (pass ? one : all) + p * VOCAB);
            talk_close(&t);
        }
        CHECK(!memcmp(all, one, sizeof all));
        for (int k = 0; k < T * VOCAB; k++) { const double e = fabs((double)all[k] - (double)want[k]); if (!(e <= worst)) worst = e; }
        printf("    cache format %d: %.2g from the reference\n", (int)c[i].format, worst);
        CHECK(worst < c[i].far && worst > 0);
    }
    tiny_close(&m);
    return 0;
}

int main(void)
{
    RUN(pieces_of_every_layer);
    RUN(greedy_continuation);
    RUN(cache_formats_stay_close);
    return test_done();
}
