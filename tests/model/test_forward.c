// The forward pass as a whole, on the tiny random checkpoints of the reference: every hidden state and logit, for any
// chunk size and number of threads, dense and bitsandbytes 4-bit. Bounds are those of the fixtures' README (2e-4).
#include "golden.h"

// Every logit of `ids`, fed in chunks of `chunk`; out [n][vocab].
static int all_logits(g3_model *m, const int *ids, int n, int chunk, g3_kv kv, float *out)
{
    g3_error err;
    int vocab = g3_model_get_info(m).vocab;
    g3_session *s = open_session(m, 256, chunk, kv, chunk, &err);
    if (!s) return -1;
    for (int i = 0; i < n; i += chunk) {
        int k = n - i < chunk ? n - i : chunk;
        if (g3_add_tokens(s, ids + i, k, &err) != G3_OK) { fprintf(stderr, "%s\n", err.text); g3_session_close(s); return -1; }
        for (int r = 0; r < k; r++) {
            const float *row = g3_logits_at(s, k - 1 - r, &err);
            if (!row) { fprintf(stderr, "%s\n", err.text); g3_session_close(s); return -1; }
            memcpy(out + (size_t)(i + r) * (size_t)vocab, row, (size_t)vocab * sizeof *row);
        }
    }
    g3_session_close(s);
    return 0;
}

static int tiny_models_give_the_references_logits(void)
{
    g3_error err;
    for (int i = 0; i < G3__COUNT(tiny_models); i++) {
        expected e;
        int rows, cols;
        CHECK(expected_open(&e, tiny_models[i]));
        const float *want = expected_array(&e, "logits", &rows, &cols);
        CHECK(want && rows == e.n);
        g3_model *m = open_model(tiny_path(tiny_models[i]), 1, &err);
        CHECK(m && g3_model_get_info(m).vocab == cols);
        float *got = (float *)malloc((size_t)rows * (size_t)cols * sizeof *got);
        CHECK(all_logits(m, e.ids, e.n, e.n, G3_KV_F32, got) == 0);
        double d = distance(got, want, (size_t)rows * (size_t)cols);
        printf("    %s: %.2g\n", tiny_models[i], d);
        CHECK(d <= 2e-4);
        free(got);
        g3_model_close(m);
        expected_close(&e);
    }
    return 0;
}

// Chunks and threads change nothing, bit for bit: prefill, decode and everything between are one code path.
static int chunks_and_threads_give_the_same_bits(void)
{
    static const int chunk[] = {1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 64};
    g3_error err;
    for (int i = 0; i < G3__COUNT(tiny_models); i++) {
        expected e;
        CHECK(expected_open(&e, tiny_models[i]));
        float *first = NULL, *got = NULL;
        size_t n = 0;
        for (int threads = 1; threads <= 4; threads++) {
            g3_model *m = open_model(tiny_path(tiny_models[i]), threads, &err);
            CHECK(m);
            n = (size_t)e.n * (size_t)g3_model_get_info(m).vocab;
            if (!first) { first = (float *)malloc(n * 4); got = (float *)malloc(n * 4); CHECK(all_logits(m, e.ids, e.n, e.n, G3_KV_F32, first) == 0); }
            for (int c = threads == 1 ? 0 : threads; c < G3__COUNT(chunk); c += threads) {
                CHECK(all_logits(m, e.ids, e.n, chunk[c], G3_KV_F32, got) == 0);
                CHECK(memcmp(first, got, n * 4) == 0);
            }
            g3_model_close(m);
        }
        free(first);
        free(got);
        expected_close(&e);
    }
    return 0;
}

// ---- the residual stream, through the probe

typedef struct stream { float *embed, *layer[16]; int rows, cols; } stream;

static int keep_stream(void *user, const g3_view *v)
{
    stream *s = (stream *)user;
    float *to = v->point == G3_POINT_EMBED ? s->embed : s->layer[v->layer];
    memcpy(to + (size_t)v->pos * (size_t)v->cols, v->data, (size_t)v->rows * (size_t)v->cols * sizeof(float));
    s->rows = v->rows;
    s->cols = v->cols;
    return 0;
}

static int the_residual_stream_is_the_references_after_every_layer(void)
{
    g3_error err;
    for (int i = 0; i < G3__COUNT(tiny_models); i++) {
        expected e;
        stream st = G3__ZERO;
        g3_session_desc d = G3__ZERO;
        int rows, cols;
        CHECK(expected_open(&e, tiny_models[i]));
        const float *want = expected_array(&e, "embed", &rows, &cols);
        CHECK(want);
        size_t size = (size_t)rows * (size_t)cols;
        st.embed = (float *)malloc(size * 4);
        for (int l = 0; l < 16; l++) st.layer[l] = (float *)malloc(size * 4);
        g3_model *m = open_model(tiny_path(tiny_models[i]), 2, &err);
        d.context = 128;
        d.kv = G3_KV_F32;
        d.probe.probe_fn = keep_stream;
        d.probe.user = &st;
        d.probe.points = G3_POINT_EMBED | G3_POINT_LAYER;
        d.probe.rows = 128;
        g3_session *s = m ? g3_session_open(m, &d, &err) : NULL;
        CHECK(s && g3_add_tokens(s, e.ids, e.n, &err) == G3_OK);
        CHECK(st.rows == rows && st.cols == cols);
        CHECK(distance(st.embed, want, size) <= 2e-4);
        for (int l = 0; l < g3_model_get_info(m).layers; l++) {
            char name[16];
            snprintf(name, sizeof name, "layer_%d", l);
            want = expected_array(&e, name, &rows, &cols);
            CHECK(want && distance(st.layer[l], want, size) <= 2e-4);
        }
        g3_session_close(s);
        g3_model_close(m);
        free(st.embed);
        for (int l = 0; l < 16; l++) free(st.layer[l]);
        expected_close(&e);
    }
    return 0;
}

static int greedy_continuations_are_the_references(void)
{
    g3_error err;
    for (int i = 0; i < G3__COUNT(tiny_models); i++) {
        expected e;
        int want[64], held[256];
        g3_generate_desc d = G3__ZERO;
        CHECK(expected_open(&e, tiny_models[i]));
        int n = ints(e.json, "greedy_continuation", want, 64), prompt = (int)number(e.json, "greedy_prompt_len");
        g3_model *m = open_model(tiny_path(tiny_models[i]), 2, &err);
        g3_session *s = open_session(m, 128, 8, G3_KV_F32, 1, &err);
        CHECK(s && n > 0 && g3_add_tokens(s, e.ids, prompt, &err) == G3_OK);
        d.sampler.greedy = true;
        d.max_tokens = n;
        d.ignore_stop_ids = true;
        CHECK(g3_generate(s, &d, &err) == n && g3_session_finish(s) == G3_FINISH_LENGTH);
        CHECK(g3_session_tokens(s, held, 256) == prompt + n);
        CHECK(memcmp(held + prompt, want, (size_t)n * sizeof *want) == 0);
        g3_session_close(s);
        g3_model_close(m);
        expected_close(&e);
    }
    return 0;
}

// ---- bitsandbytes: weights are code times scale in float32, so the float32 run of the reference is met as closely as by dense files

static const char *const quantised[] = {"text-nf4-mixed-3shards", "text-fp4-plain", "text-nf4-storage-bf16"};

static int quantised_models_give_the_references_logits(void)
{
    g3_error err;
    for (int i = 0; i < G3__COUNT(quantised); i++) {
        char name[128];
        snprintf(name, sizeof name, "bnb/models/%s", quantised[i]);
        g3_model *m = open_model(golden(name), 2, &err), *r = NULL;
        CHECK(m);
        // The reference's arrays lie in a safetensors file of their own: read through the header's table of tensors.
        g3__shards ref;
        g3__zone keep, temp;
        g3__heap heap;
        memset(&ref, 0, sizeof ref);
        g3__heap_init(&heap, NULL);
        g3__zone_init(&keep, &heap);
        g3__zone_init(&temp, &heap);
        (void)r; (void)temp;
        g3__source src;
        g3__file f;
        g3__header h;
        snprintf(name, sizeof name, "%s.reference.safetensors", quantised[i]);
        g3__error_clear(&err);
        CHECK(g3__source_init(&src, golden("bnb/models"), NULL, &err) && g3__file_open(&src, name, &f, &err) && g3__st_header(&f, 0, &keep, &keep, &h, &err));
        int tried = 0;
        for (uint64_t t = 0; t < h.n; t++) {
            if (!g3__str_ends(h.tensor[t].name, ".input_ids")) continue;
            int n = (int)h.tensor[t].count, ids[64];
            CHECK(n <= 64 && g3__file_read(&f, h.tensor[t].offset, ids, h.tensor[t].bytes, &err));
            for (uint64_t u = 0; u < h.n; u++) {
                if (h.tensor[u].name.n != h.tensor[t].name.n + 1 || memcmp(h.tensor[u].name.p, h.tensor[t].name.p, 8) || !g3__str_ends(h.tensor[u].name, ".logits_f32")) continue;
                float *want = (float *)malloc(h.tensor[u].bytes), *got = (float *)malloc(h.tensor[u].bytes);
                CHECK(g3__file_read(&f, h.tensor[u].offset, want, h.tensor[u].bytes, &err));
                CHECK(h.tensor[u].count == (uint64_t)n * (uint64_t)g3_model_get_info(m).vocab);
                for (int chunk = 1; chunk <= n; chunk += 4) {
                    CHECK(all_logits(m, ids, n, chunk, G3_KV_F32, got) == 0);
                    double d = distance(got, want, (size_t)h.tensor[u].count);
                    if (chunk == 1) printf("    %s, %d tokens: %.2g\n", quantised[i], n, d);
                    CHECK(d <= 2e-4);
                }
                free(want);
                free(got);
                tried++;
            }
        }
        CHECK(tried >= 2);
        g3__file_close(&f);
        g3__zone_free(&keep);
        g3_model_close(m);
    }
    return 0;
}

int main(void)
{
    RUN(tiny_models_give_the_references_logits);
    RUN(chunks_and_threads_give_the_same_bits);
    RUN(the_residual_stream_is_the_references_after_every_layer);
    RUN(greedy_continuations_are_the_references);
    RUN(quantised_models_give_the_references_logits);
    return test_done();
}
