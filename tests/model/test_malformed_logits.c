// The corpus of bad and odd-but-good checkpoints, opened with its weights: what must be refused is, also where only the weights
// show the fault (a NaN among block scales), and every good one gives the very logits of the plain good one.
#include "golden.h"

enum { VOCAB = 40, TOKENS = 6 };

static int logits_of(const char *dir, float *out, g3_error *err)       // 1: [TOKENS][VOCAB]; 0: not opened
{
    static const int ids[TOKENS] = {2, 6, 11, 39, 0, 17};
    char path[256];
    g3_model_desc d = G3__ZERO;
    g3_session_desc sd = G3__ZERO;
    snprintf(path, sizeof path, "bnb/malformed/%s", dir);
    d.path = golden(path);
    d.threads = 1;
    sd.context = 32;
    sd.logits_rows = TOKENS;
    d.session = &sd;
    g3_model *m = g3_model_open(&d, err);
    if (!m) return 0;
    g3_session *s = g3_session_open(m, NULL, err);
    int ok = s && g3_model_get_info(m).vocab == VOCAB && g3_add_tokens(s, ids, TOKENS, err) == G3_OK;
    for (int t = 0; ok && t < TOKENS; t++) {
        const float *row = g3_logits_at(s, TOKENS - 1 - t, err);
        if (row) memcpy(out + t * VOCAB, row, VOCAB * sizeof *row);
        ok = row != NULL;
    }
    g3_session_close(s);
    g3_model_close(m);
    return ok ? 1 : -1;
}

static bool field_is(g3__value c, const char *key, const char *text)
{
    g3__value v = at(c, key);
    return v.n == strlen(text) + 2 && !memcmp(v.p + 1, text, v.n - 2);
}

static int every_checkpoint_is_refused_or_gives_the_good_ones_logits(void)
{
    g3__value manifest = read_json(golden("bnb/malformed-manifest.json")), cases = at(manifest, "cases");
    float good[TOKENS * VOCAB], got[TOKENS * VOCAB];
    g3_error err;
    int n = 0, refused = 0, equal = 0;
    CHECK(cases.p && logits_of("001-good", good, &err) == 1);
    for (;; n++) {
        char index[16], dir[128];
        snprintf(index, sizeof index, "%d", n);
        g3__value c = at(cases, index), name = at(c, "dir");
        if (!c.p) break;
        snprintf(dir, sizeof dir, "%.*s", (int)name.n - 2, name.p + 1);
        int opened = logits_of(dir, got, &err);
        bool reject = field_is(c, "expect", "reject"), accept = field_is(c, "expect", "accept");
        if ((reject && opened) || (accept && opened != 1)) fprintf(stderr, "%s: opened %d, %s\n", dir, opened, err.text);
        CHECK(!(reject && opened) && !(accept && opened != 1));
        if (!opened) CHECK(err.code < 0 && err.text[0]);
        if (accept && memcmp(good, got, sizeof good)) fprintf(stderr, "%s: other logits\n", dir);
        CHECK(!accept || memcmp(good, got, sizeof good) == 0);
        refused += reject;
        equal += accept;
    }
    printf("    %d checkpoints, %d refused, %d with the same logits\n", n, refused, equal);
    CHECK(n == 208 && refused > 150 && equal > 15);
    free(manifest.p);
    return 0;
}

static int a_nan_among_block_scales_is_found_while_loading(void)
{
    float got[TOKENS * VOCAB];
    g3_error err;
    CHECK(logits_of("122-bnb-absmax-nan", got, &err) == 0);
    CHECK(err.code == G3_ERR_FORMAT && strstr(err.text, "o_proj.weight.absmax") && strstr(err.text, "model.safetensors"));
    return 0;
}

int main(void)
{
    RUN(every_checkpoint_is_refused_or_gives_the_good_ones_logits);
    RUN(a_nan_among_block_scales_is_found_while_loading);
    return test_done();
}
