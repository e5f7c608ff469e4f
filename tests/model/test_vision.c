// Pictures through whole tiny models: every case of the fixtures in every layout and through every chunking, the stages of the tower,
// the attention rule, and what sessions with pictures hold, take back, copy, refuse and survive.
#include "tiny.h"

typedef struct sample { box files; st_file gold; int side, tokens, image_token, vocab; float tolerance; char name[64]; } sample;

static const char *const cases[] = {"one_image", "two_images", "long_text_then_image", "image_at_end", "crops_like_three_images", "two_images_touching", "text_only"};
enum { ONE, TWO, LONG, END, THREE, TOUCHING, TEXT, N_CASES };

static bool sample_open(sample *s, const char *model, const char *weights, const char *config)
{
    char path[256];
    size_t size;
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s/%s", model, weights);
    snprintf(path, sizeof path, "vision/%s/golden.safetensors", model);
    if (!st_open(&s->gold, golden(path))) return false;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "vision/%s/%s", model, i ? config : weights);
        unsigned char *data = st_read(golden(path), &size);
        if (!data) return false;
        box_put(&s->files, i ? "config.json" : "model.safetensors", data, size);
        free(data);
    }
    bool a = !strncmp(model, "tiny-a", 6);
    s->side = a ? 56 : 224;
    s->tokens = a ? 4 : 16;
    s->vocab = a ? 512 : 520;
    s->image_token = a ? 508 : 262144;
    s->tolerance = 2e-4f;
    return true;
}

static void sample_close(sample *s) { box_free(&s->files); st_close(&s->gold); }

static const float *gold_floats(const sample *s, const char *fmt, const char *what) { const st_tensor *t = st_find(&s->gold, fmt, what); return t ? (const float *)(const void *)t->data : NULL; }

static const int *gold_ids(const sample *s, int c, const char *what, int *n)
{
    const st_tensor *t = st_find(&s->gold, "%s.%s", cases[c], what);
    if (t) *n = (int)t->dims[0];
    return t ? (const int *)(const void *)t->data : NULL;
}

// The fixture's pictures lie [3][side][side]; ours are rows of RGB, with some bytes between them.
static g3_image picture(const sample *s, int i)
{
    const st_tensor *t = st_find(&s->gold, "pixel_u8");
    size_t side = (size_t)s->side, stride = 3 * side + 5;
    unsigned char *rgb = (unsigned char *)malloc(stride * side);
    g3_image img = G3__ZERO;
    memset(rgb, 77, stride * side);
    for (size_t c = 0; c < 3; c++)
        for (size_t y = 0; y < side; y++)
            for (size_t x = 0; x < side; x++) rgb[y * stride + 3 * x + c] = t->data[(((size_t)i * 3 + c) * side + y) * side + x];
    img.rgb = rgb;
    img.width = img.height = s->side;
    img.stride = (int)stride;
    return img;
}

static void picture_free(g3_image *img) { free((void *)(uintptr_t)img->rgb); }

static g3_model *sample_model(sample *s, int threads, bool no_vision)
{
    g3_error err;
    g3_model_desc d = tiny_desc(&s->files, threads);
    d.no_vision = no_vision;
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "    %s: %s\n", s->name, err.text);
    return m;
}

static g3_session *sample_session(g3_model *m, int context, int batch, int rows)
{
    g3_error err;
    return open_session(m, context, batch, G3_KV_F32, rows, &err);
}

// One prompt: ids with the image token in runs, pictures 0, 1, … in their places, as the chat adds it.
static bool add_case(const sample *s, g3_session *x, int c, g3_error *err)
{
    int n = 0, run = 0, pictures = 0;
    const int *ids = gold_ids(s, c, "input_ids", &n);
    g3_image img[3];
    for (int i = 0; i < 3; i++) img[i] = picture(s, i);
    g3__call_begin(x);
    for (int i = 0; i < n; i++) {
        x->ids[x->held + i] = ids[i];
        if (ids[i] != s->image_token) { run = 0; continue; }
        if (run++ % s->tokens) continue;
        g3__rect whole = { 0, 0, s->side, s->side };
        g3__picture *p = &x->pictures[x->n_pictures + pictures];
        p->pos = x->held + i;
        p->image = &img[pictures];
        p->crop = whole;
        p->hash = g3__image_hash(&img[pictures++], &whole);
    }
    bool ok = g3__check_ids(x, x->ids + x->held, n, pictures) && g3__check_room(x, x->held, n) && g3__add_held(x, n, pictures);
    g3__call_end(x, err);
    for (int i = 0; i < 3; i++) picture_free(&img[i]);
    return ok;
}

// The same by the public calls, piece by piece.
static bool add_pieces(const sample *s, g3_session *x, int c, g3_error *err)
{
    int n = 0, pictures = 0;
    const int *ids = gold_ids(s, c, "input_ids", &n);
    bool ok = true;
    for (int i = 0; i < n && ok; ) {
        int from = i;
        while (i < n && ids[i] != s->image_token) i++;
        if (i > from) ok = g3_add_tokens(x, ids + from, i - from, err) == G3_OK;
        if (i == n || !ok) break;
        g3_image img = picture(s, pictures++);
        ok = g3_add_image(x, &img, err) == G3_OK;
        picture_free(&img);
        i += s->tokens;
    }
    return ok;
}

static bool greedy_matches(const sample *s, g3_session *x, int c)
{
    int n = 0;
    const int *want = gold_ids(s, c, "greedy_ids", &n);
    g3_error err;
    g3_sampler greedy = G3__ZERO;
    greedy.greedy = true;
    const float *logits = gold_floats(s, "%s.greedy_logits", cases[c]);
    for (int i = 0; i < n; i++) {
        const float *z = g3_logits(x, &err);
        if (!z || distance(z, logits + (size_t)i * (size_t)s->vocab, (size_t)s->vocab) > (double)s->tolerance) return false;
        int id = g3_sample(x, &greedy, &err);
        if (id != want[i]) { fprintf(stderr, "    %s %s: token %d is %d, not %d\n", s->name, cases[c], i, id, want[i]); return false; }
        if (g3_add_tokens(x, &id, 1, &err) != G3_OK) return false;
    }
    return true;
}

static int check_sample(sample *s)
{
    g3_model *m = sample_model(s, 1, false);
    double most = 0;
    CHECK(m && g3_model_get_info(m).vision);
    for (int c = 0; c < N_CASES; c++) {
        int n = 0;
        g3_error err;
        gold_ids(s, c, "input_ids", &n);
        g3_session *x = sample_session(m, 192, 192, 192);
        CHECK(x && add_case(s, x, c, &err) && g3_session_tokens(x, NULL, 0) == n);
        const float *want = gold_floats(s, "%s.logits", cases[c]);
        for (int i = 0; i < n; i++) {
            const float *z = g3_logits_at(x, n - 1 - i, &err);
            CHECK(z);
            double d = distance(z, want + (size_t)i * (size_t)s->vocab, (size_t)s->vocab);
            most = G3__MAX(most, d);
            if (d > (double)s->tolerance) fprintf(stderr, "    %s %s: row %d is %g away\n", s->name, cases[c], i, d);
            CHECK(d <= (double)s->tolerance);
        }
        static const char *const wrong[] = {"%s.wrong.causal_only.last_logits", "%s.wrong.block_ignores_window.last_logits"};
        for (int k = 0; k < 2 && c != TEXT; k++) CHECK(distance(g3_logits(x, &err), gold_floats(s, wrong[k], cases[c]), (size_t)s->vocab) > 0.01);
        CHECK(greedy_matches(s, x, c));
        g3_session_close(x);
    }
    printf("    %s: %.1e\n", s->name, most);
    g3_model_close(m);
    return 0;
}

static const struct { const char *model, *weights, *config; } layouts[] = {
    {"tiny-a", "model-classic.safetensors", "config-classic.json"}, {"tiny-a", "model-classic-bf16.safetensors", "config-classic.json"},
    {"tiny-a", "model-new.safetensors", "config.json"}, {"tiny-a", "model-5.24.safetensors", "config.json"}, {"tiny-a-nf4", "model.safetensors", "config.json"},
    {"tiny-b", "model-classic.safetensors", "config-classic.json"}, {"tiny-b", "model-classic-bf16.safetensors", "config-classic.json"},
    {"tiny-b", "model-new.safetensors", "config.json"}, {"tiny-b", "model-5.24.safetensors", "config.json"}};

static int every_layout_and_4_bit_agree_with_the_reference(void)
{
    for (int i = 0; i < G3__COUNT(layouts); i++) {
        sample s;
        CHECK(sample_open(&s, layouts[i].model, layouts[i].weights, layouts[i].config));
        int line = check_sample(&s);
        if (line) return line;
        sample_close(&s);
    }
    return 0;
}

// ---- the stages of the tower, by the probe

typedef struct stages { const sample *s; int seen, wrong; bool shift; } stages;

static int look_at(void *user, const g3_view *v)
{
    stages *g = (stages *)user;
    char name[64];
    const float *want;
    if (v->point != G3_POINT_VISION) return 0;
    if (!strcmp(v->name, "soft tokens")) want = gold_floats(g->s, "%s", "projector.out");
    else {
        snprintf(name, sizeof name, v->layer < 0 ? "vision.embeddings" : "vision.layer%d", v->layer);
        want = gold_floats(g->s, "%s", name);
    }
    if (!want || distance(v->data, want, (size_t)v->rows * (size_t)v->cols) > 1e-4) g->wrong++;
    g->seen++;
    return 0;
}

static int the_tower_agrees_stage_by_stage(void)
{
    static const int layers[] = {2, 2, 3}, which[] = {0, 4, 5};
    for (int i = 0; i < 3; i++) {
        sample s;
        g3_error err;
        g3_session_desc d = G3__ZERO;
        CHECK(sample_open(&s, layouts[which[i]].model, layouts[which[i]].weights, layouts[which[i]].config));
        stages g = {&s, 0, 0, false};
        g3_model *m = sample_model(&s, 2, false);
        d.context = 128; d.batch = 64; d.kv = G3_KV_F32;
        d.probe.probe_fn = look_at; d.probe.user = &g; d.probe.points = G3_POINT_VISION;
        g3_session *x = m ? g3_session_open(m, &d, &err) : NULL;
        CHECK(x && add_pieces(&s, x, ONE, &err));
        CHECK(g.seen == layers[i] + 2 && !g.wrong);
        g3_session_close(x);
        g3_model_close(m);
        sample_close(&s);
    }
    return 0;
}

// ---- chunks

static int any_chunking_gives_the_same_bits(void)
{
    for (int k = 0; k < 2; k++) {
        sample s;
        int batches[] = {64, 41, 33, 32, 31, 20, 17, 16, 7, 4}, which[] = {0, 5};
        CHECK(sample_open(&s, layouts[which[k]].model, layouts[which[k]].weights, layouts[which[k]].config));
        g3_model *m = sample_model(&s, 2, false);
        for (int c = 0; c < N_CASES; c++) {
            float first[520];
            for (int i = 0; i < G3__COUNT(batches) + 1; i++) {
                int batch = i < G3__COUNT(batches) ? batches[i] : 64;
                g3_error err;
                if (c == TOUCHING && (i == G3__COUNT(batches) || G3__MAX(batch, s.tokens) < 2 * s.tokens)) continue;
                g3_session *x = sample_session(m, 128, batch, 1);
                CHECK(x && (i < G3__COUNT(batches) ? add_case(&s, x, c, &err) : add_pieces(&s, x, c, &err)));
                const float *z = g3_logits(x, &err);
                CHECK(z);
                if (!i) memcpy(first, z, sizeof *z * (size_t)s.vocab);
                if (memcmp(first, z, sizeof *z * (size_t)s.vocab)) fprintf(stderr, "    %s %s batch %d\n", s.name, cases[c], batch);
                CHECK(!memcmp(first, z, sizeof *z * (size_t)s.vocab));
                g3_session_close(x);
            }
        }
        g3_model_close(m);
        sample_close(&s);
    }
    return 0;
}

// ---- what a session with pictures holds

static bool same_ids(const int *a, int n, g3_session *x) { int got[256]; return g3_session_tokens(x, got, 256) == n && !memcmp(a, got, (size_t)n * sizeof *got); }

static int going_back_reaches_the_start_of_a_picture(void)
{
    sample s;
    g3_error err;
    int n = 0;
    CHECK(sample_open(&s, "tiny-a", "model-classic.safetensors", "config-classic.json"));
    g3_model *m = sample_model(&s, 1, false);
    const int *ids = gold_ids(&s, TWO, "input_ids", &n), first = 0;
    int from[2], k = 0;
    for (int i = first; i < n; i++) if (ids[i] == s.image_token && ids[i - 1] != s.image_token && k < 2) from[k++] = i;
    for (int pos = 0; pos <= n; pos++) {
        g3_session *x = sample_session(m, 128, 64, 1), *y = sample_session(m, 128, 64, 1);
        int want = pos;
        for (int i = 0; i < 2; i++) if (pos > from[i] && pos < from[i] + s.tokens) want = from[i];
        CHECK(add_pieces(&s, x, TWO, &err) && g3_session_rewind(x, pos, &err) == want && same_ids(ids, want, x) && x->n_pictures == (want > from[0]) + (want > from[1]));
        if (want == from[1]) {                           // the second picture again, and the rest: as if nothing had been taken back
            g3_image img = picture(&s, 1);
            CHECK(g3_add_image(x, &img, &err) == G3_OK && g3_add_tokens(x, ids + from[1] + s.tokens, n - from[1] - s.tokens, &err) == G3_OK && add_pieces(&s, y, TWO, &err));
            CHECK(!memcmp(g3_logits(x, &err), g3_logits(y, &err), sizeof(float) * (size_t)s.vocab));
            picture_free(&img);
        }
        g3_session_close(x); g3_session_close(y);
    }
    g3_model_close(m);
    sample_close(&s);
    return 0;
}

static int a_copy_has_the_pictures(void)
{
    sample s;
    g3_error err;
    int n = 0;
    CHECK(sample_open(&s, "tiny-b", "model-classic.safetensors", "config-classic.json"));
    g3_model *m = sample_model(&s, 1, false);
    const int *ids = gold_ids(&s, THREE, "input_ids", &n);
    g3_session *x = sample_session(m, 160, 64, 1), *y = sample_session(m, 160, 64, 1);
    CHECK(add_pieces(&s, x, THREE, &err) && g3_session_copy(y, x, &err) == G3_OK && same_ids(ids, n, y) && y->n_pictures == 3);
    CHECK(!memcmp(g3_logits(x, &err), g3_logits(y, &err), sizeof(float) * (size_t)s.vocab) && greedy_matches(&s, y, THREE));
    g3_session_close(x); g3_session_close(y);
    g3_model_close(m);
    sample_close(&s);
    return 0;
}

static int what_cannot_be_looked_at_is_refused_before_it_is(void)
{
    sample s;
    g3_error err;
    CHECK(sample_open(&s, "tiny-a", "model-classic.safetensors", "config-classic.json"));
    g3_model *m = sample_model(&s, 1, false), *blind = sample_model(&s, 1, true);
    g3_image img = picture(&s, 0), bad = img;
    int soft[4] = {508, 508, 508, 508}, id = 9;
    g3_session *x = sample_session(m, 7, 7, 1), *b = sample_session(blind, 64, 16, 1);
    CHECK(g3_add_image(x, &img, &err) == G3_OK && g3_session_stats(x).images == 1 && g3_session_stats(x).prompt_tokens == 4);
    CHECK(g3_add_image(x, &img, &err) == G3_ERR_CONTEXT && g3_session_tokens(x, NULL, 0) == 4 && g3_logits(x, &err));     // 8 tokens where 7 fit: what was there still is
    CHECK(g3_session_rewind(x, 0, &err) == 0 && g3_add_tokens(x, soft, 4, &err) == G3_ERR_ARGUMENT && strstr(err.text, "508") && g3_session_tokens(x, NULL, 0) == 0);
    CHECK(g3_add_tokens(x, &id, 1, &err) == G3_OK);
    bad.rgb = NULL;                CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT);
    bad = img; bad.width = 0;      CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT);
    bad = img; bad.height = -1;    CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT);
    bad = img; bad.stride = 10;    CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT && g3_session_tokens(x, NULL, 0) == 1);
    CHECK(g3_add_image(b, &img, &err) == G3_ERR_ARGUMENT && strstr(err.text, "no_vision"));
    g3_session *y = sample_session(m, 64, 16, 1);
    CHECK(g3_add_image(y, &img, &err) == G3_OK && g3_add_image(y, &img, &err) == G3_ERR_ARGUMENT && strstr(err.text, "touch") && g3_session_tokens(y, NULL, 0) == 4);
    g3_session_desc d = G3__ZERO;
    d.context = 64; d.batch = 2; d.no_images = true;
    g3_session *z = g3_session_open(m, &d, &err);
    CHECK(z && g3_add_image(z, &img, &err) == G3_ERR_ARGUMENT && strstr(err.text, "no_images") && g3_add_tokens(z, &id, 1, &err) == G3_OK);
    d.no_images = false;
    g3_session *w = g3_session_open(m, &d, &err);
    CHECK(w && g3_session_stats(w).memory > g3_session_stats(z).memory && w->desc.batch == 4);
    g3_session_close(x); g3_session_close(y); g3_session_close(z); g3_session_close(w); g3_session_close(b);
    g3_model_close(m); g3_model_close(blind);
    picture_free(&img);
    sample_close(&s);
    return 0;
}

// ---- stopping

typedef struct stopper { int calls, stop_at, bad; uint64_t last; bool cancel; g3_session *s; } stopper;

static int count_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    stopper *p = (stopper *)user;
    if (strcmp(stage, "pictures")) return 0;
    p->bad |= done < p->last || done > total;
    p->last = done;
    if (++p->calls != p->stop_at) return 0;
    if (!p->cancel) return 1;
    g3_session_cancel(p->s);
    return 0;
}

static int looking_can_be_stopped_between_any_layers(void)
{
    for (int cancel = 0; cancel < 2; cancel++)
        for (int at = 1; ; at++) {
            sample s;
            g3_error err;
            stopper p = {0, at, 0, 0, cancel != 0, NULL};
            g3_session_desc d = G3__ZERO;
            CHECK(sample_open(&s, "tiny-b", "model-classic.safetensors", "config-classic.json"));
            g3_model *m = sample_model(&s, 1, false);
            d.context = 160; d.batch = 64; d.kv = G3_KV_F32; d.progress.progress_fn = count_progress; d.progress.user = &p;
            g3_session *x = p.s = g3_session_open(m, &d, &err);
            bool ok = x && add_case(&s, x, TWO, &err);
            CHECK(!p.bad && x->n_pictures <= 2);
            if (ok) { CHECK(p.calls < at || (cancel && p.calls == at)); at = -1; }
            else CHECK(err.code == G3_ERR_STOPPED && p.calls == at && (g3_session_rewind(x, 0, &err), p.stop_at = 0, p.last = 0, add_case(&s, x, TWO, &err)));
            CHECK(greedy_matches(&s, x, TWO));
            g3_session_close(x);
            g3_model_close(m);
            sample_close(&s);
            if (at < 0) break;
        }
    return 0;
}

// ---- memory

static int the_plan_is_what_the_arenas_take_and_looking_takes_nothing(void)
{
    for (int k = 0; k < 4; k++) {
        sample s;
        tally t;
        g3_error err;
        g3_plan p;
        g3_session_desc d = G3__ZERO;
        CHECK(sample_open(&s, k & 1 ? "tiny-b" : "tiny-a", "model-classic.safetensors", "config-classic.json"));
        g3_model_desc md = tiny_desc(&s.files, 2);
        md.no_vision = false;
        md.allocator = tally_hooks(&t);
        md.session = &d;
        d.context = 160; d.batch = 64; d.kv = G3_KV_F32; d.no_images = k > 1;
        CHECK(g3_plan_memory(&md, &p, &err) == G3_OK && p.vision > 0);
        uint64_t items = 0;
        for (int i = 0; i < p.n_items; i++) if (strncmp(p.items[i].name, "host", 4)) items += p.items[i].bytes;
        CHECK(items == p.total && p.weights + p.kv + p.scratch + p.vision == p.total);
        g3_model *m = g3_model_open(&md, &err);
        g3_session *x = g3_session_open(m, &d, &err);
        CHECK(x && m->arena_bytes + x->arena_bytes == p.total);
        uint64_t calls = t.calls, live = t.live;
        if (k < 2) CHECK(add_pieces(&s, x, THREE, &err) && greedy_matches(&s, x, THREE));
        CHECK(t.calls == calls && t.live == live);
        g3_session_close(x);
        g3_model_close(m);
        CHECK(!t.live && !t.bad);
        sample_close(&s);
    }
    return 0;
}

static int an_allocator_that_fails_leaves_nothing_behind(void)
{
    sample s;
    CHECK(sample_open(&s, "tiny-a-nf4", "model.safetensors", "config.json"));
    for (uint64_t n = 1; ; n++) {
        tally t;
        g3_error err;
        g3_model_desc d = tiny_desc(&s.files, 1);
        d.no_vision = false;
        d.allocator = tally_hooks(&t);
        t.fail_at = n;
        g3_model *m = g3_model_open(&d, &err);
        g3_session *x = m ? g3_session_open(m, NULL, &err) : NULL;
        if (!x) CHECK(err.code == G3_ERR_MEMORY);
        else CHECK(add_pieces(&s, x, ONE, &err));
        uint64_t calls = t.calls;
        g3_session_close(x);
        g3_model_close(m);
        CHECK(!t.live && !t.bad && !s.files.open_now);
        if (calls < n) { CHECK(n > 10); break; }
    }
    sample_close(&s);
    return 0;
}

int main(void)
{
    tiny_quiet();
    RUN(going_back_reaches_the_start_of_a_picture);
    RUN(a_copy_has_the_pictures);
    RUN(what_cannot_be_looked_at_is_refused_before_it_is);
    RUN(looking_can_be_stopped_between_any_layers);
    RUN(the_plan_is_what_the_arenas_take_and_looking_takes_nothing);
    RUN(an_allocator_that_fails_leaves_nothing_behind);
    RUN(every_layout_and_4_bit_agree_with_the_reference);
    RUN(the_tower_agrees_stage_by_stage);
    RUN(any_chunking_gives_the_same_bits);
    return test_done();
}
