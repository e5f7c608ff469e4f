// The real 270M and what the reference says of it (text/270m.json): shared by the tests named test_real*.
#ifndef MODEL_REAL_H
#define MODEL_REAL_H
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"       // no test needs all of the helpers
#endif
#include "golden.h"

static const char dense_270m[] = "build/gemma-3-270m", nf4_270m[] = "build/gemma-3-270m-nf4";
enum { REAL_VOCAB = 262144, REAL_DIM = 640, REAL_LAYERS = 18, REAL_PASSAGE = 1987 };

#define NEED(model) do { if (!is_there(model)) SKIP("the real 270M is not here: `make model` makes it"); } while (0)

static bool is_there(const char *dir)
{
    char path[256];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "rb");
    if (f) fclose(f);
    return f != NULL;
}

static g3__value reference(void)                         // read once, kept to the end
{
    static g3__value v;
    if (!v.p) v = read_json(golden("text/270m.json"));
    return v;
}

static int prompt_ids(const char *name, int *ids, int cap)
{
    char path[64];
    snprintf(path, sizeof path, "prompts.%s", name);
    return ints(reference(), path, ids, cap);
}

static int passage_ids(int ids[REAL_PASSAGE]) { return ints(reference(), "passage_ids", ids, REAL_PASSAGE); }

static double log_sum_exp(const float *x, int n)         // sums in double
{
    double sum = 0;
    float most = x[0];
    for (int i = 1; i < n; i++) if (x[i] > most) most = x[i];
    for (int i = 0; i < n; i++) sum += (double)expf(x[i] - most);
    return (double)most + log(sum);
}

// -log p of ids[1], …, ids[n - 1], each after the ones before it, at the speed of prompts: nll[i - 1] is that of ids[i]. False: s failed.
static bool passage_nll(g3_model *m, g3_kv kv, const int *ids, int n, double *nll, g3_error *err)
{
    enum { ROWS = 128 };
    g3_session *s = open_session(m, 2048, ROWS, kv, ROWS, err);
    for (int at = 0; s && at < n; at += ROWS) {
        int rows = G3__MIN(ROWS, n - at);
        if (g3_add_tokens(s, ids + at, rows, err) != G3_OK) { g3_session_close(s); return false; }
        for (int r = 0; r < rows && at + r + 1 < n; r++) {
            const float *logits = g3_logits_at(s, rows - 1 - r, err);
            if (!logits) { g3_session_close(s); return false; }
            nll[at + r] = log_sum_exp(logits, REAL_VOCAB) - (double)logits[ids[at + r + 1]];
        }
    }
    g3_session_close(s);
    return s != NULL;
}

static double mean_of(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    return sum / n;
}
#endif
