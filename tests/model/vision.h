// The tiny models with a vision tower, and how their fixtures' prompts reach a session: shared by the tests of pictures.
#ifndef MODEL_VISION_H
#define MODEL_VISION_H
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"       // no test needs all of the helpers
#endif
#include "tiny.h"

typedef struct sample { box files; st_file gold; int side, tokens, image_token, vocab; const char *simd; char name[64]; } sample;

static const char *const cases[] = {"one_image", "two_images", "long_text_then_image", "image_at_end", "crops_like_three_images", "two_images_touching", "text_only"};
enum { ONE, TWO, LONG, END, THREE, TOUCHING, TEXT, N_CASES };

static const struct { const char *model, *weights, *config; } layouts[] = {
    {"tiny-a", "model-classic.safetensors", "config-classic.json"}, {"tiny-a", "model-classic-bf16.safetensors", "config-classic.json"},
    {"tiny-a", "model-new.safetensors", "config.json"}, {"tiny-a", "model-5.24.safetensors", "config.json"}, {"tiny-a-nf4", "model.safetensors", "config.json"},
    {"tiny-b", "model-classic.safetensors", "config-classic.json"}, {"tiny-b", "model-classic-bf16.safetensors", "config-classic.json"},
    {"tiny-b", "model-new.safetensors", "config.json"}, {"tiny-b", "model-5.24.safetensors", "config.json"}};
enum { A = 0, A_NF4 = 4, B = 5 };                        // of the layouts: one of each model

static bool sample_open(sample *s, int layout)
{
    const char *model = layouts[layout].model;
    char path[256];
    size_t size;
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s/%s", model, layouts[layout].weights);
    snprintf(path, sizeof path, "vision/%s/golden.safetensors", model);
    if (!st_open(&s->gold, golden(path))) return false;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "vision/%s/%s", model, i ? layouts[layout].config : layouts[layout].weights);
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

static void picture_free(g3_image *img) { free((void *)(uintptr_t)img->rgb); img->rgb = NULL; }

static g3_model *sample_model(sample *s, int threads, bool no_vision)
{
    g3_error err;
    g3_model_desc d = tiny_desc(&s->files, threads);
    d.no_vision = no_vision;
    d.simd = s->simd;
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "    %s: %s\n", s->name, err.text);
    return m;
}

static g3_session *sample_session(g3_model *m, int context, int batch, int rows)
{
    g3_error err;
    return open_session(m, context, batch, G3_KV_F32, rows, &err);
}

// One prompt: ids with the image token in runs, pictures 0, 1, … in their places, all in one piece as the chat adds it.
static bool add_ids(const sample *s, g3_session *x, const int *ids, int n, g3_error *err)
{
    int run = 0, pictures = 0;
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

static bool add_case(const sample *s, g3_session *x, int c, g3_error *err)
{
    int n = 0;
    const int *ids = gold_ids(s, c, "input_ids", &n);
    return add_ids(s, x, ids, n, err);
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

static const double sample_tolerance = 2e-4;

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
        if (!z || distance(z, logits + (size_t)i * (size_t)s->vocab, (size_t)s->vocab) > sample_tolerance) return false;
        int id = g3_sample(x, &greedy, &err);
        if (id != want[i]) { fprintf(stderr, "    %s %s: token %d is %d, not %d\n", s->name, cases[c], i, id, want[i]); return false; }
        if (g3_add_tokens(x, &id, 1, &err) != G3_OK) return false;
    }
    return true;
}

// The vector units here, from the best down, then plain C.
static int variants(const char *names[8])
{
    int n = 0;
#ifdef G3__SIMD
    for (int i = 0; i < G3__COUNT(g3__simds); i++) if (g3__simds[i].here()) names[n++] = g3__simds[i].name;
#endif
    names[n++] = "c";
    return n;
}
#endif
