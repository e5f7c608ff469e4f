// The window and its rings: whatever the length of a prompt and however it is cut into steps, every logit is that of one
// whole run and of the reference; what lies outside the window has no influence at all; the formats of the cache only cost
// their own precision, however often the rings have wrapped.
#include "tiny.h"

// The logits of every id of one step.
static bool whole_run(g3_model *m, const int *ids, int n, g3_kv kv, float *out)
{
    g3_error err;
    int vocab = g3_model_get_info(m).vocab;
    g3_session *s = open_session(m, n, n, kv, n, &err);
    bool ok = s && g3_add_tokens(s, ids, n, &err) == G3_OK;
    for (int i = 0; i < n && ok; i++) {
        const float *row = g3_logits_at(s, n - 1 - i, &err);
        ok = row != NULL;
        if (ok) memcpy(out + (size_t)i * (size_t)vocab, row, (size_t)vocab * sizeof *row);
    }
    g3_session_close(s);
    return ok;
}

// A prompt of n ids in steps of `chunk`, then 6 ids one by one: after each the logits are row n - 1 + i of `want`, bit for bit.
static int prompt_then_decode(g3_model *m, const int *ids, int n, int chunk, const float *want)
{
    g3_error err;
    size_t vocab = (size_t)g3_model_get_info(m).vocab;
    g3_session *s = open_session(m, 256, chunk, G3_KV_F32, 1, &err);
    CHECK(s && g3_add_tokens(s, ids, n, &err) == G3_OK);
    for (int i = 0; i <= 6; i++) {
        const float *z = g3_logits(s, &err);
        CHECK(z && memcmp(z, want + (size_t)(n - 1 + i) * vocab, vocab * sizeof *z) == 0);
        if (i < 6) CHECK(g3_add_tokens(s, ids + n + i, 1, &err) == G3_OK);
    }
    g3_session_close(s);
    return 0;
}

// https://github.com/ggml-org/llama.cpp/pull/13194 https://github.com/ggml-org/llama.cpp/pull/13833 https://github.com/ggml-org/llama.cpp/pull/18727
// https://github.com/pytorch/executorch/pull/20346 https://github.com/sgl-project/sglang/pull/4823 https://github.com/ml-explore/mlx-lm/issues/58
// https://github.com/lmstudio-ai/mlx-engine/issues/131 https://github.com/kekzl/imp/pull/569 https://github.com/lablup/mlxcel/issues/401
static int prompts_around_the_window_are_the_references_for_every_chunk(void)
{
    for (int i = 0; i < G3__COUNT(tiny_models); i++) {
        expected e;
        g3_error err;
        int rows, cols, runs = 0;
        CHECK(expected_open(&e, tiny_models[i]));
        const float *want = expected_array(&e, "logits", &rows, &cols);
        g3_model *m = open_model(tiny_path(tiny_models[i]), 1, &err);
        CHECK(m && want);
        size_t size = (size_t)rows * (size_t)cols;
        float *whole = (float *)malloc(size * sizeof *whole);
        CHECK(whole_run(m, e.ids, e.n, G3_KV_F32, whole) && distance(whole, want, size) <= 2e-4);
        int W = g3_model_get_info(m).window, lengths[] = {1, W - 1, W, W + 1, W + 2, 2 * W - 1, 2 * W, 2 * W + 1, 2 * W + 2, 3 * W + 5, e.n - 6};
        for (int l = 0; l < G3__COUNT(lengths); l++) {
            int n = lengths[l];
            if (n > e.n - 6) continue;
            for (int chunk = 1; chunk <= n + 1; chunk += W == 8 || chunk < 3 || abs(chunk % W - 1) < 2 || chunk >= n ? 1 : 3) {
                int line = prompt_then_decode(m, e.ids, n, chunk, whole);
                if (line) { fprintf(stderr, "    %s: a prompt of %d in steps of %d\n", tiny_models[i], n, chunk); return line; }
                runs++;
            }
        }
        printf("    %s: window %d, %d runs\n", tiny_models[i], W, runs);
        free(whole);
        g3_model_close(m);
        expected_close(&e);
    }
    return 0;
}

static ref t1;
enum { LONG = 150 };
static int long_ids[LONG];
static float exact[LONG * TINY_VOCAB], other[LONG * TINY_VOCAB];

// https://github.com/huggingface/transformers/pull/38156
// https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/2656 https://github.com/onnxruntime/mobius/pull/371 https://github.com/pegainfer-project/pegainfer/issues/818
static int rings_that_wrap_many_times_are_the_uncached_model(void)
{
    static const int batch[] = {1, 2, 3, 7, 8, 9, 20, LONG};
    g3_error err;
    t1.noise = G3_KV_DEFAULT;
    ref_logits(&t1, long_ids, LONG, exact);
    for (int w = 7; w <= 9; w += 2) {                    // a window off by one is far outside of what is allowed here
        t1.window = w;
        ref_logits(&t1, long_ids, LONG, other);
        CHECK(distance(exact, other, LONG * TINY_VOCAB) > 0.1 && distance(exact, other, 7 * TINY_VOCAB) < 1e-6);
    }
    t1.window = 8;
    g3_model *m = open_model(tiny_path("t1-f32-text"), 2, &err);
    CHECK(m);
    for (int b = 0; b < G3__COUNT(batch); b++) {
        g3_session *s = open_session(m, LONG, batch[b], G3_KV_F32, batch[b], &err);
        double most = 0;
        CHECK(s);
        for (int i = 0; i < LONG; i += batch[b]) {
            int n = LONG - i < batch[b] ? LONG - i : batch[b];
            CHECK(g3_add_tokens(s, long_ids + i, n, &err) == G3_OK);
            for (int k = 0; k < n; k++) most = G3__MAX(most, distance(g3_logits_at(s, n - 1 - k, &err), exact + (size_t)(i + k) * TINY_VOCAB, TINY_VOCAB));
        }
        if (most > 2e-4) fprintf(stderr, "    steps of %d: %g\n", batch[b], most);
        CHECK(most <= 2e-4);
        g3_session_close(s);
    }
    g3_model_close(m);
    return 0;
}

// https://github.com/tenstorrent/tt-metal/issues/31471 https://github.com/InternLM/lmdeploy/pull/3772
static int the_window_is_the_configs_even_the_smallest(void)
{
    static const int windows[] = {1, 2, 3, 5, 33, 200};
    enum { N = 60 };
    t1.noise = G3_KV_DEFAULT;
    for (int w = 0; w < G3__COUNT(windows); w++) {
        ck c;
        box b;
        char text[40];
        snprintf(text, sizeof text, "\"sliding_window\": %d", windows[w]);
        CHECK(ck_load(&c, tiny_path("t1-f32-text")) && ck_config(&c, "\"sliding_window\": 8", text));
        ck_build(&c, &b);
        g3_model *m = tiny_open(&b, 1);
        CHECK(m && g3_model_get_info(m).window == windows[w]);
        t1.window = windows[w];
        ref_logits(&t1, long_ids, N, exact);
        for (int batch = 1; batch <= 40; batch *= 3) {
            g3_error err;
            g3_session *s = open_session(m, 64, batch, G3_KV_F32, 1, &err);
            CHECK(s);
            for (int i = 0, n; i < N; i += n) {
                n = N - i < batch + 2 ? N - i : batch + 2;                   // a whole step and a bit
                CHECK(g3_add_tokens(s, long_ids + i, n, &err) == G3_OK);
                CHECK(distance(g3_logits(s, &err), exact + (size_t)(i + n - 1) * TINY_VOCAB, TINY_VOCAB) <= 2e-4);
            }
            g3_session_close(s);
        }
        g3_model_close(m);
        box_free(&b);
        ck_free(&c);
    }
    t1.window = 8;
    return 0;
}

// ---- one sliding layer alone: position q sees the embeddings of q - W + 1 to q, and nothing else exists

typedef struct shout { int pos, seen; } shout;           // the embedding at `pos` becomes huge

static int shout_at(void *user, const g3_view *v)
{
    shout *h = (shout *)user;
    if (h->pos < v->pos || h->pos >= v->pos + v->rows) return 0;
    for (int i = 0; i < v->cols; i++) v->data[(h->pos - v->pos) * v->cols + i] = i == 7 ? 1e6f : i & 1 ? -3e3f : 2e3f;
    h->seen++;
    return 0;
}

static bool logits_with_a_shout(g3_model *m, const int *ids, int n, int batch, g3_kv kv, int pos, float *out)
{
    g3_error err;
    shout h = {pos, 0};
    g3_session_desc d = G3__ZERO;
    d.context = 256; d.batch = batch; d.kv = kv;
    d.probe.probe_fn = shout_at; d.probe.user = &h; d.probe.points = G3_POINT_EMBED; d.probe.rows = batch;
    g3_session *s = g3_session_open(m, &d, &err);
    bool ok = s && g3_add_tokens(s, ids, n, &err) == G3_OK && g3_logits(s, &err) && h.seen == (pos >= 0);
    if (ok) memcpy(out, g3_logits(s, &err), TINY_VOCAB * sizeof *out);
    g3_session_close(s);
    return ok;
}

// https://github.com/sgl-project/sglang/pull/26147 https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/2656
static int a_huge_value_outside_the_window_has_no_influence(void)
{
    static const int last[] = {8, 9, 10, 15, 16, 17, 31, 100};
    static const g3_kv kinds[] = {G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8};
    float calm[TINY_VOCAB], out[TINY_VOCAB], in[TINY_VOCAB];
    ck c;
    box b;
    CHECK(ck_load(&c, tiny_path("t1-f32-text")) && ck_config(&c, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 1"));
    ck_build(&c, &b);
    g3_model *m = tiny_open(&b, 1);
    CHECK(m && g3_model_get_info(m).layers == 1 && g3_model_get_info(m).window == 8);
    for (int l = 0; l < G3__COUNT(last); l++)
        for (int batch = 1; batch <= 17; batch += batch < 4 ? 1 : 4)
            for (int k = 0; k < G3__COUNT(kinds); k++) {
                int q = last[l];
                CHECK(logits_with_a_shout(m, long_ids, q + 1, batch, kinds[k], -1, calm));
                CHECK(logits_with_a_shout(m, long_ids, q + 1, batch, kinds[k], q - 8, out));
                CHECK(logits_with_a_shout(m, long_ids, q + 1, batch, kinds[k], q - 7, in));
                CHECK(memcmp(calm, out, sizeof calm) == 0);
                CHECK(distance(calm, in, TINY_VOCAB) > 1e-3);
            }
    g3_model_close(m);
    box_free(&b);
    ck_free(&c);
    return 0;
}

// ---- formats of the cache. The allowance is the reference's own: its K and V moved at random by as much as the format
// may move them (ref_store), over all positions; the sum of many such moves has one size, so that twice the rms and three
// times the largest of one draw bound another.

static double rms(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

// https://github.com/ikawrakow/ik_llama.cpp/issues/363 https://github.com/vllm-project/vllm/issues/41343 https://github.com/kekzl/imp/pull/91
static int every_cache_format_costs_its_own_precision_and_no_more(void)
{
    static const g3_kv kinds[] = {G3_KV_BF16, G3_KV_FP8, G3_KV_INT8};
    static float got[LONG * TINY_VOCAB];
    g3_error err;
    t1.noise = G3_KV_DEFAULT;
    ref_logits(&t1, long_ids, LONG, exact);
    g3_model *m = open_model(tiny_path("t1-f32-text"), 1, &err);
    CHECK(m);
    for (int k = 0; k < G3__COUNT(kinds); k++) {
        t1.noise = kinds[k];
        ref_logits(&t1, long_ids, LONG, other);
        double most = distance(exact, other, LONG * TINY_VOCAB), mean = rms(exact, other, LONG * TINY_VOCAB);
        for (int batch = 1; batch <= LONG; batch = batch * 5 + 1) {
            g3_session *s = open_session(m, LONG, batch, kinds[k], batch, &err);
            CHECK(s);
            for (int i = 0; i < LONG; i += batch) {
                int n = LONG - i < batch ? LONG - i : batch;
                CHECK(g3_add_tokens(s, long_ids + i, n, &err) == G3_OK);
                for (int r = 0; r < n; r++) memcpy(got + (size_t)(i + r) * TINY_VOCAB, g3_logits_at(s, n - 1 - r, &err), TINY_VOCAB * sizeof *got);
            }
            double d = distance(exact, got, LONG * TINY_VOCAB), r = rms(exact, got, LONG * TINY_VOCAB);
            if (batch == 1) printf("    kv %d: rms %.2g of %.2g, largest %.2g of %.2g\n", (int)kinds[k], r, mean, d, most);
            CHECK(r <= 2 * mean && d <= 3 * most);
            CHECK(r > mean / 10);                        // the format is in use at all
            g3_session_close(s);
        }
    }
    t1.noise = G3_KV_DEFAULT;
    g3_model_close(m);
    return 0;
}

static int cache_formats_give_the_same_bits_for_every_chunk(void)
{
    static const g3_kv kinds[] = {G3_KV_BF16, G3_KV_FP8, G3_KV_INT8};
    g3_error err;
    g3_model *m = open_model(tiny_path("t5-bf16-untied"), 2, &err);
    float first[TINY_VOCAB];
    CHECK(m);
    for (int k = 0; k < G3__COUNT(kinds); k++)
        for (int batch = 60; batch >= 1; batch -= batch > 40 ? 20 : 3) {
            g3_session *s = open_session(m, 64, batch, kinds[k], 1, &err);
            CHECK(s && g3_add_tokens(s, long_ids, 60, &err) == G3_OK && g3_logits(s, &err));
            if (batch == 60) memcpy(first, g3_logits(s, &err), sizeof first);
            CHECK(memcmp(first, g3_logits(s, &err), sizeof first) == 0);
            g3_session_close(s);
        }
    g3_model_close(m);
    return 0;
}

int main(void)
{
    tiny_quiet();
    if (!ref_open(&t1)) { fprintf(stderr, "no fixtures\n"); return 1; }
    some_ids(long_ids, LONG, 3);
    RUN(prompts_around_the_window_are_the_references_for_every_chunk);
    RUN(rings_that_wrap_many_times_are_the_uncached_model);
    RUN(the_window_is_the_configs_even_the_smallest);
    RUN(a_huge_value_outside_the_window_has_no_influence);
    RUN(every_cache_format_costs_its_own_precision_and_no_more);
    RUN(cache_formats_give_the_same_bits_for_every_chunk);
    ck_free(&t1.c);
    return test_done();
}
