// Looking inside: what each view shows, where it stands and that its numbers are the reference's; that writing to a view
// counts, that observing changes no bit, and that the probe may stop anywhere.
#include "tiny.h"

static box files;                                        // t1 with the tokenizer of tiny.h
static g3_model *model;
static expected e;

typedef struct seen { g3_view v; float data[64]; g3_session *s; } seen;      // data: the first numbers
typedef struct album { seen *view; int n, cap, stop_at, calls; g3_session *s; bool bad; } album;

static int collect(void *user, const g3_view *v)
{
    album *a = (album *)user;
    a->calls++;
    if (a->n < a->cap) {
        seen *x = &a->view[a->n++];
        x->v = *v;
        int size = v->data ? v->rows * v->heads * v->cols : 0;
        if (v->point == G3_POINT_ATTENTION) size = v->heads * v->cols;
        for (int i = 0; i < size && i < 64; i++) x->data[i] = v->data[i];
    }
    // A hook may ask its session for its tokens and use the model.
    if (g3_session_tokens(a->s, NULL, 0) < 0 || g3_model_get_info(model).layers != T1_LAYERS || g3_tokenize(model, "user", 4, 0, NULL, 0) != 1) a->bad = true;
    return a->calls == a->stop_at;
}

static g3_session *watched(album *a, unsigned points, int rows, int batch, g3_kv kv)
{
    g3_error err;
    g3_session_desc d = G3__ZERO;
    d.context = 128; d.batch = batch; d.kv = kv;
    d.probe.probe_fn = collect; d.probe.user = a; d.probe.points = points; d.probe.rows = rows;
    a->s = g3_session_open(model, &d, &err);
    if (!a->s) fprintf(stderr, "    %s\n", err.text);
    return a->s;
}

static album album_of(int cap)
{
    album a = G3__ZERO;
    a.view = (seen *)calloc((size_t)cap, sizeof *a.view);
    a.cap = cap;
    return a;
}

static int every_view_says_where_it_stands(void)
{
    for (int rows = 0; rows <= 5; rows++) {
        g3_error err;
        album a = album_of(2000);
        g3_session *s = watched(&a, G3_POINT_EMBED | G3_POINT_LAYER | G3_POINT_BRANCH | G3_POINT_ATTENTION, rows, 4, G3_KV_F32);
        CHECK(s && g3_add_tokens(s, e.ids, 11, &err) == G3_OK && g3_logits(s, &err));
        int k = 0;
        for (int from = 0; from < 11; from += 4) {       // steps of 4, 4 and 3
            int n = from < 8 ? 4 : 3, shown = rows == 0 ? 1 : rows < n ? rows : n;
            const g3_view *v = &a.view[k++].v;
            CHECK(v->point == G3_POINT_EMBED && v->layer == -1 && v->pos == from + n - shown && v->rows == shown && v->cols == 64 && v->name && v->name[0]);
            for (int l = 0; l < T1_LAYERS; l++) {
                for (int t = from + n - shown; t < from + n; t++) {          // row by row
                    v = &a.view[k++].v;
                    int cols = l % 2 || t < 8 ? t + 1 : 8;
                    CHECK(v->point == G3_POINT_ATTENTION && v->layer == l && v->pos == t && v->rows == 1 && v->heads == 4 && v->cols == cols && v->key == t + 1 - cols);
                }
                for (int b = 0; b < 2; b++) {
                    v = &a.view[k++].v;
                    CHECK(v->point == G3_POINT_BRANCH && v->layer == l && v->pos == from + n - shown && v->rows == shown && v->cols == 64);
                    CHECK(strstr(v->name, b ? "feed" : "attention"));
                }
                v = &a.view[k++].v;
                CHECK(v->point == G3_POINT_LAYER && v->layer == l && v->pos == from + n - shown && v->rows == shown && v->cols == 64);
            }
        }
        CHECK(k == a.n && a.n == a.calls && !a.bad);
        g3_session_close(s);
        free(a.view);
    }
    return 0;
}

static int only_what_was_asked_for_is_shown(void)
{
    static const unsigned points[] = {G3_POINT_EMBED, G3_POINT_LAYER, G3_POINT_BRANCH, G3_POINT_ATTENTION, G3_POINT_OP, G3_POINT_VISION, 0};
    static const int count[] = {1, 4, 8, 4, -1, 0, 0};   // of one step
    for (int i = 0; i < G3__COUNT(points); i++) {
        g3_error err;
        album a = album_of(500);
        g3_session *s = watched(&a, points[i], 1, 16, G3_KV_BF16);
        CHECK(s && g3_add_tokens(s, e.ids, 16, &err) == G3_OK && g3_add_tokens(s, e.ids, 1, &err) == G3_OK);
        for (int k = 0; k < a.n; k++) CHECK((unsigned)a.view[k].v.point == points[i]);
        CHECK(count[i] < 0 ? a.n > 60 : a.n == 2 * count[i]);
        g3_session_close(s);
        free(a.view);
    }
    return 0;
}

// ---- the numbers

typedef struct insides { float embed[40][64], layer[4][40][64], branch[2][4][40][64], att[4][40][4][40]; } insides;

static int keep_insides(void *user, const g3_view *v)
{
    insides *x = (insides *)user;
    size_t row = sizeof x->embed[0], size = row * (size_t)v->rows;
    if (v->point == G3_POINT_EMBED) memcpy(x->embed[v->pos], v->data, size);
    if (v->point == G3_POINT_LAYER) memcpy(x->layer[v->layer][v->pos], v->data, size);
    if (v->point == G3_POINT_BRANCH) memcpy(x->branch[v->name[0] == 'f'][v->layer][v->pos], v->data, size);
    if (v->point == G3_POINT_ATTENTION)
        for (int h = 0; h < v->heads; h++) memcpy(&x->att[v->layer][v->pos][h][v->key], v->data + h * v->cols, sizeof(float) * (size_t)v->cols);
    return 0;
}

static insides *insides_seen(int batch, int probe_rows, g3_kv kv)
{
    g3_error err;
    insides *x = (insides *)calloc(1, sizeof *x);
    g3_session_desc d = G3__ZERO;
    d.context = 64; d.batch = batch; d.kv = kv;
    d.probe.probe_fn = keep_insides; d.probe.user = x; d.probe.rows = probe_rows;
    d.probe.points = G3_POINT_EMBED | G3_POINT_LAYER | G3_POINT_BRANCH | G3_POINT_ATTENTION;
    g3_session *s = g3_session_open(model, &d, &err);
    if (!s || g3_add_tokens(s, e.ids, 40, &err) != G3_OK) { fprintf(stderr, "    %s\n", err.text); exit(1); }
    g3_session_close(s);
    return x;
}

static insides *insides_of(int batch, g3_kv kv) { return insides_seen(batch, batch, kv); }

static int fewer_rows_are_the_last_of_each_step(void)
{
    insides *all = insides_of(10, G3_KV_F32), *few = insides_seen(10, 3, G3_KV_F32);
    for (int t = 0; t < 40; t++)
        for (int l = 0; l < 4; l++)
            for (int i = 0; i < 64; i++) {
                bool shown = t % 10 >= 7;
                CHECK(few->embed[t][i] == (shown ? all->embed[t][i] : 0) && few->layer[l][t][i] == (shown ? all->layer[l][t][i] : 0));
                CHECK(few->branch[0][l][t][i] == (shown ? all->branch[0][l][t][i] : 0) && few->branch[1][l][t][i] == (shown ? all->branch[1][l][t][i] : 0));
                for (int h = 0; h < 4 && i < 40; h++) CHECK(few->att[l][t][h][i] == (shown ? all->att[l][t][h][i] : 0));
            }
    free(all);
    free(few);
    return 0;
}

static int views_show_the_references_insides(void)
{
    static const int batch[] = {40, 7, 1};
    for (int b = 0; b < 3; b++) {
        insides *x = insides_of(batch[b], G3_KV_F32);
        int rows, cols;
        CHECK(distance(x->embed[0], expected_array(&e, "embed", &rows, &cols), 40 * 64) <= 2e-4);
        for (int l = 0; l < 4; l++) {
            char name[40];
            snprintf(name, sizeof name, "layer_%d", l);
            CHECK(distance(x->layer[l][0], expected_array(&e, name, &rows, &cols), 40 * 64) <= 2e-4);
            if (l > 1) continue;                         // the fixture shows the insides of two layers, one of each kind
            snprintf(name, sizeof name, "layer_%d.attn_out", l);
            CHECK(distance(x->branch[0][l][0], expected_array(&e, name, &rows, &cols), 40 * 64) <= 2e-4);
            snprintf(name, sizeof name, "layer_%d.mlp_out", l);
            CHECK(distance(x->branch[1][l][0], expected_array(&e, name, &rows, &cols), 40 * 64) <= 2e-4);
            // The weights times the reference's values are the reference's heads: so they are its weights, wherever V has full rank.
            snprintf(name, sizeof name, "layer_%d.v", l);
            const float *v = expected_array(&e, name, &rows, &cols);
            snprintf(name, sizeof name, "layer_%d.heads_out", l);
            const float *want = expected_array(&e, name, &rows, &cols);
            for (int t = 0; t < 40; t++)
                for (int h = 0; h < 4; h++)
                    for (int i = 0; i < 16; i++) {
                        double sum = 0;
                        for (int k = 0; k <= t; k++) sum += (double)x->att[l][t][h][k] * (double)v[k * 32 + h / 2 * 16 + i];
                        CHECK(fabs(sum - (double)want[t * 64 + h * 16 + i]) <= 2e-4);
                    }
        }
        free(x);
    }
    return 0;
}

static int attention_rows_are_distributions_over_the_window(void)
{
    static const g3_kv kinds[] = {G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8};
    for (int k = 0; k < 4; k++) {
        insides *x = insides_of(9, kinds[k]);
        for (int l = 0; l < 4; l++)
            for (int t = 0; t < 40; t++)
                for (int h = 0; h < 4; h++) {
                    double sum = 0;
                    for (int i = 0; i < 40; i++) {
                        float w = x->att[l][t][h][i];
                        bool may = i <= t && (l % 2 || i > t - 8);
                        CHECK(w >= 0 && w <= 1.00001f && (may || w == 0));
                        sum += (double)w;
                    }
                    CHECK(fabs(sum - 1) < 1e-5);
                }
        free(x);
    }
    return 0;
}

// ---- writing

typedef struct writer { g3_point point; int layer; const float *rows; int calls; } writer;      // rows: by position, [.][64]

static int overwrite(void *user, const g3_view *v)
{
    writer *w = (writer *)user;
    if (v->point != w->point || v->layer != w->layer) return 0;
    memcpy(v->data, w->rows + v->pos * 64, sizeof(float) * 64 * (size_t)v->rows);
    w->calls++;
    return 0;
}

static bool logits_written(writer *w, const int *ids, int n, int batch, float *out)
{
    g3_error err;
    g3_session_desc d = G3__ZERO;
    d.context = 64; d.batch = batch; d.kv = G3_KV_F32;
    if (w) { d.probe.probe_fn = overwrite; d.probe.user = w; d.probe.points = G3_POINT_EMBED | G3_POINT_LAYER; d.probe.rows = batch; }
    g3_session *s = g3_session_open(model, &d, &err);
    bool ok = s && g3_add_tokens(s, ids, n, &err) == G3_OK && g3_logits(s, &err);
    if (ok) memcpy(out, g3_logits(s, &err), TINY_VOCAB * sizeof *out);
    g3_session_close(s);
    return ok;
}

// The residual stream of one text is written over that of another, at each place it is shown: what comes out is the first text's.
static int what_is_written_counts(void)
{
    int other[40];
    float want[TINY_VOCAB], calm[TINY_VOCAB], got[TINY_VOCAB];
    insides *x = insides_of(40, G3_KV_F32);
    some_ids(other, 40, 77);
    CHECK(logits_written(NULL, e.ids, 40, 40, want) && logits_written(NULL, other, 40, 40, calm) && distance(want, calm, TINY_VOCAB) > 0.1);
    for (int layer = -1; layer < T1_LAYERS; layer++)
        for (int batch = 40; batch >= 6; batch -= 17) {
            writer w = {layer < 0 ? G3_POINT_EMBED : G3_POINT_LAYER, layer, layer < 0 ? x->embed[0] : x->layer[layer][0], 0};
            CHECK(logits_written(&w, other, 40, batch, got) && w.calls == (40 + batch - 1) / batch);
            CHECK(memcmp(want, got, sizeof got) == 0);
        }
    free(x);
    return 0;
}

static int an_embedding_written_by_hand_is_its_token(void)
{
    g3_error err;
    float rows[40 * 64], want[TINY_VOCAB], got[TINY_VOCAB];
    int other[40];
    some_ids(other, 40, 78);
    for (int i = 0; i < 40; i++) {
        CHECK(g3_model_read(model, "model.embed_tokens.weight", e.ids[i], 1, rows + i * 64, &err) == G3_OK);
        for (int k = 0; k < 64; k++) rows[i * 64 + k] *= 8;                  // sqrt(64)
    }
    writer w = {G3_POINT_EMBED, -1, rows, 0};
    CHECK(logits_written(NULL, e.ids, 40, 16, want) && logits_written(&w, other, 40, 16, got) && memcmp(want, got, sizeof got) == 0);
    return 0;
}

// ---- no influence, no cost

static int observing_changes_no_bit(void)
{
    static const g3_kv kinds[] = {G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8};
    for (int k = 0; k < 4; k++) {
        g3_error err;
        album a = album_of(8);
        heard h = G3__ZERO, g = G3__ZERO;
        g3_generate_desc d = ask(&h, 12, false), f = ask(&g, 12, false);
        d.ignore_stop_ids = f.ignore_stop_ids = true;
        g3_session *s = watched(&a, 63, 100, 9, kinds[k]), *t = open_session(model, 128, 9, kinds[k], 1, &err);
        CHECK(s && t && g3_add_tokens(s, e.ids, 30, &err) == G3_OK && g3_add_tokens(t, e.ids, 30, &err) == G3_OK);
        CHECK(memcmp(g3_logits(s, &err), g3_logits(t, &err), TINY_VOCAB * 4) == 0);
        CHECK(g3_generate(s, &d, &err) == 12 && g3_generate(t, &f, &err) == 12 && memcmp(h.id, g.id, 12 * sizeof(int)) == 0);
        CHECK(memcmp(g3_logits(s, &err), g3_logits(t, &err), TINY_VOCAB * 4) == 0 && a.calls > 500 && !a.bad);
        CHECK(t->arena_bytes + t->host_bytes < s->arena_bytes + s->host_bytes);      // its buffers are in the plan, of those who ask for it
        g3_session_close(s);
        g3_session_close(t);
        free(a.view);
    }
    return 0;
}

static int the_probe_may_stop_at_every_view(void)
{
    g3_error err;
    float want[TINY_VOCAB];
    CHECK(logits_written(NULL, e.ids, 25, 25, want));
    for (int at = 1; ; at++) {
        album a = album_of(1);
        g3_session *s = watched(&a, 63, 3, 8, G3_KV_F32);
        CHECK(s && g3_add_tokens(s, e.ids, 20, &err) == G3_OK);
        a.calls = 0;
        a.stop_at = at;
        g3_result r = g3_add_tokens(s, e.ids + 20, 5, &err);
        bool all = a.calls < at;
        a.stop_at = 0;
        if (!all) {
            CHECK(r == G3_ERR_STOPPED && err.code == r && strstr(err.text, "probe_fn") && a.calls == at && g3_session_tokens(s, NULL, 0) == 20 && !g3_logits(s, &err));
            r = g3_add_tokens(s, e.ids + 20, 5, &err);   // and once more, to the end
        }
        CHECK(r == G3_OK && memcmp(g3_logits(s, &err), want, sizeof want) == 0);
        g3_session_close(s);
        free(a.view);
        if (all) { CHECK(at > 60); break; }
    }
    return 0;
}

static int the_probe_may_stop_while_logits_are_computed(void)
{
    g3_error err;
    album a = album_of(1);
    g3_session *s = watched(&a, G3_POINT_OP, 1, 8, G3_KV_F32);
    float want[TINY_VOCAB];
    CHECK(s && logits_written(NULL, e.ids, 8, 8, want) && g3_add_tokens(s, e.ids, 8, &err) == G3_OK);
    a.stop_at = a.calls + 1;
    CHECK(!g3_logits(s, &err) && err.code == G3_ERR_STOPPED && g3_session_tokens(s, NULL, 0) == 8);
    CHECK(g3_logits(s, &err) && memcmp(g3_logits(s, &err), want, sizeof want) == 0);
    a.stop_at = a.calls + 1;
    float x[64] = {1}, z[TINY_VOCAB];
    CHECK(g3_head(s, x, z, &err) == G3_ERR_STOPPED && g3_head(s, x, z, &err) == G3_OK);
    g3_session_close(s);
    free(a.view);
    return 0;
}

// ---- what operations cost

// What one row reads of the matrices, from the tensors of the files: projections and the head with their scales; no norms,
// and of bitsandbytes neither the tables of codes nor the JSON.
static uint64_t matrix_bytes(g3_model *m)
{
    uint64_t sum = 0, table = 0, head = 0;
    g3_tensor t;
    for (int i = 0; i < g3_model_tensor(m, i, &t); i++) {
        bool scales = strstr(t.name, ".weight.absmax") || strstr(t.name, ".weight.nested_absmax"), weight = ck_ends(t.name, ".weight");
        if (strstr(t.name, "vision") || strstr(t.name, "projector")) continue;
        if (ck_ends(t.name, "embed_tokens.weight")) table = t.bytes;
        else if (ck_ends(t.name, "lm_head.weight")) head = t.bytes;
        else if (strstr(t.name, "_proj.weight") && (weight || scales)) sum += t.bytes;
    }
    return sum + (head ? head : table);
}

typedef struct sums { uint64_t bytes, flops, matrix_bytes, matrix_flops, cache_bytes; int n; bool bad; } sums;

static int add_up(void *user, const g3_view *v)
{
    sums *s = (sums *)user;
    s->bad = s->bad || v->point != G3_POINT_OP || v->data || !v->name || !v->name[0] || !(v->seconds >= 0 && v->seconds < 60) || v->rows < 1;
    s->n++;
    s->bytes += v->bytes;
    s->flops += v->flops;
    if (!strcmp(v->name, "attend")) s->cache_bytes += v->bytes;
    if (!strcmp(v->name, "qkv") || !strcmp(v->name, "wo") || !strcmp(v->name, "gate_up") || !strcmp(v->name, "down") || !strcmp(v->name, "linear")) { s->matrix_bytes += v->bytes; s->matrix_flops += v->flops; }
    return 0;
}

static int bytes_and_flops_of_a_token_are_those_of_the_weights(void)
{
    static const char *const dirs[] = {"text/tiny/t1-f32-text", "text/tiny/t2-bf16-mm-old", "text/tiny/t5-bf16-untied", "bnb/models/text-nf4-mixed-3shards", "bnb/models/text-fp4-plain"};
    for (int i = 0; i < G3__COUNT(dirs); i++) {
        g3_error err;
        sums s = G3__ZERO;
        g3_session_desc d = G3__ZERO;
        g3_model *m = open_model(golden(dirs[i]), 1, &err);
        CHECK(m);
        g3_model_info info = g3_model_get_info(m);
        d.context = 64; d.batch = 16;
        d.probe.probe_fn = add_up; d.probe.user = &s; d.probe.points = G3_POINT_OP;
        g3_session *x = g3_session_open(m, &d, &err);
        int ids[17];
        for (int k = 0; k < 17; k++) ids[k] = 3 * k + 2;
        CHECK(x && g3_add_tokens(x, ids, 16, &err) == G3_OK);
        memset(&s, 0, sizeof s);
        CHECK(g3_add_tokens(x, ids + 16, 1, &err) == G3_OK && g3_logits(x, &err) && !s.bad && s.n > 9 * info.layers);
        // One row reads every matrix once, and two flops go with each of its numbers; activations and the cache come on top.
        double weights = (double)g3_session_stats(x).bytes_per_token, numbers = (double)info.parameters;
        if (i == 2) numbers -= 512.0 * 128;              // untied: the table of the embeddings is not multiplied
        printf("    %s: %.0f bytes of %.0f, %.0f flops of %.0f\n", dirs[i], (double)s.bytes, weights, (double)s.flops, 2 * numbers);
        CHECK((double)(s.bytes - s.cache_bytes) > 0.97 * weights && (double)(s.bytes - s.cache_bytes) < 1.5 * weights);
        CHECK((double)s.flops > 1.95 * numbers && (double)s.flops < 2.5 * numbers);
        CHECK(s.cache_bytes > 0 && s.matrix_bytes == matrix_bytes(m));
        g3_session_close(x);
        g3_model_close(m);
    }
    return 0;
}

int main(void)
{
    tiny_quiet();
    if (!tiny_box(&files, "t1-f32-text") || !(model = tiny_open(&files, 1)) || !expected_open(&e, "t1-f32-text")) { fprintf(stderr, "no fixtures\n"); return 1; }
    RUN(every_view_says_where_it_stands);
    RUN(only_what_was_asked_for_is_shown);
    RUN(fewer_rows_are_the_last_of_each_step);
    RUN(views_show_the_references_insides);
    RUN(attention_rows_are_distributions_over_the_window);
    RUN(what_is_written_counts);
    RUN(an_embedding_written_by_hand_is_its_token);
    RUN(observing_changes_no_bit);
    RUN(the_probe_may_stop_at_every_view);
    RUN(the_probe_may_stop_while_logits_are_computed);
    RUN(bytes_and_flops_of_a_token_are_those_of_the_weights);
    expected_close(&e);
    g3_model_close(model);
    box_free(&files);
    return test_done();
}
