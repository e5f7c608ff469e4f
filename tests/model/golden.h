// Reading the fixtures of models: values out of their JSON files by path, and float arrays out of expected.bin.
// Includes the implementation, whose JSON cursor does the reading; the numbers themselves come from the reference's runs.
#ifndef MODEL_GOLDEN_H
#define MODEL_GOLDEN_H
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"

static void *read_file(const char *path, size_t *size)            // the whole file and a NUL; NULL: there is none
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    char *p = (char *)malloc((size_t)n + 1);
    rewind(f);
    if (p) { *size = fread(p, 1, (size_t)n, f); p[*size] = 0; }
    fclose(f);
    return p;
}

static g3__value read_json(const char *path)
{
    g3__value v;
    v.n = 0;
    v.p = (char *)read_file(path, &v.n);
    if (!v.p) fprintf(stderr, "%s: no such file\n", path);
    return v;
}

// The value at a path like "modes.f32.prompts.short.logits.2.top_ids"; p NULL: absent.
static g3__value at(g3__value v, const char *path)
{
    while (v.p && *path) {
        char key[64];
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        path += n + (path[n] == '.');
        g3__json j;
        g3__value next;
        next.p = NULL;
        next.n = 0;
        g3__json_init(&j, v.p, v.n, "fixture", NULL);
        j.dry = true;
        if (g3__json_peek(&j) == '{') { g3__json_get(v, "fixture", key, &next, NULL); v = next; continue; }
        int want = atoi(key), i = 0;
        if (!g3__json_array(&j)) { v.p = NULL; break; }
        while (g3__json_item(&j)) {
            char *from = j.p;
            if (!g3__json_skip(&j)) break;
            if (i++ == want) { next.p = from; next.n = (size_t)(j.p - from); break; }
        }
        v = next;
    }
    return v;
}

static double number(g3__value v, const char *path)
{
    g3__json j;
    double x = NAN;
    v = at(v, path);
    if (!v.p) return x;
    g3__json_init(&j, v.p, v.n, "fixture", NULL);
    return g3__json_f64(&j, &x) ? x : NAN;
}

static int numbers(g3__value v, const char *path, double *out, int cap)      // of a flat array; how many it has
{
    g3__json j;
    int n = 0;
    v = at(v, path);
    if (!v.p) return 0;
    g3__json_init(&j, v.p, v.n, "fixture", NULL);
    if (!g3__json_array(&j)) return 0;
    while (g3__json_item(&j)) {
        double x;
        if (!g3__json_f64(&j, &x)) return n;
        if (n < cap) out[n] = x;
        n++;
    }
    return n;
}

static int ints(g3__value v, const char *path, int *out, int cap)
{
    static double x[8192];
    int n = numbers(v, path, x, 8192);
    for (int i = 0; i < n && i < cap; i++) out[i] = (int)x[i];
    return n;
}

// ---- expected.bin of a tiny model

typedef struct expected { g3__value json; float *bin; size_t size; int ids[256], n; } expected;

static int expected_open(expected *e, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "text/tiny/%s/expected.json", name);
    e->json = read_json(golden(path));
    snprintf(path, sizeof path, "text/tiny/%s/expected.bin", name);
    e->bin = (float *)read_file(golden(path), &e->size);
    e->n = e->json.p ? ints(e->json, "ids", e->ids, 256) : 0;
    return e->json.p && e->bin && e->n > 0;
}

static void expected_close(expected *e) { free(e->json.p); free(e->bin); }

static const float *expected_array(const expected *e, const char *name, int *rows, int *cols)     // NULL: the fixture has none
{
    g3__value arrays = at(e->json, "arrays");
    for (int i = 0; i < 64; i++) {
        char path[32];
        snprintf(path, sizeof path, "%d", i);
        g3__value a = at(arrays, path), n = at(a, "name");
        if (!a.p) return NULL;
        if (n.n != strlen(name) + 2 || memcmp(n.p + 1, name, n.n - 2)) continue;
        *rows = (int)number(a, "shape.0");
        *cols = (int)number(a, "shape.1");
        return e->bin + (size_t)number(a, "offset") / 4;
    }
    return NULL;
}

static double distance(const float *a, const float *b, size_t n)             // the largest difference; infinite where one is not a number
{
    double most = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        if (!(d <= most)) most = d == d ? d : HUGE_VAL;
    }
    return most;
}

#ifndef ON_CARD
static void on_card(g3_model_desc *d) { (void)d; }       // tests/cuda/on_card.h moves the models that these tests open to a card
#endif

static g3_model *open_model(const char *path, int threads, g3_error *err)
{
    g3_model_desc d = G3__ZERO;
    d.path = path;
    d.threads = threads;
    d.precise = true;
    d.no_vision = true;
    on_card(&d);
    g3_model *m = g3_model_open(&d, err);
    if (!m) fprintf(stderr, "%s\n", err->text);
    return m;
}

static g3_session *open_session(g3_model *m, int context, int batch, g3_kv kv, int logits_rows, g3_error *err)
{
    g3_session_desc d = G3__ZERO;
    d.context = context;
    d.batch = batch;
    d.kv = kv;
    d.logits_rows = logits_rows;
    g3_session *s = m ? g3_session_open(m, &d, err) : NULL;
    if (!s) fprintf(stderr, "%s\n", err->text);
    return s;
}

static const char *const tiny_models[] = {"t1-f32-text", "t2-bf16-mm-old", "t3-f16-mm-new-sharded", "t4-bf16-defaults", "t5-bf16-untied"};

static const char *tiny_path(const char *name)
{
    static char path[512];
    char rest[128];
    snprintf(rest, sizeof rest, "text/tiny/%s", name);
    snprintf(path, sizeof path, "%s", golden(rest));
    return path;
}
#endif
