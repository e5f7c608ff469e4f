// Sessions: what they hold, how they go back, copy, fill up, fail and close; and the memory they and their model take.
#include "tiny.h"

static box files;                                        // t1 with the tokenizer of tiny.h
static g3_model *model;                                  // opened on it, one thread
static int ids[512], low_ids[64];                       // low: below 300, for the fixtures with 320 rows

static bool same_logits(g3_session *a, g3_session *b)
{
    g3_error err;
    const float *x = g3_logits(a, &err), *y = x ? g3_logits(b, &err) : NULL;
    if (!y) fprintf(stderr, "    %s\n", err.text);
    return y && memcmp(x, y, TINY_VOCAB * sizeof *x) == 0;
}

static g3_session *fresh(const int *tokens, int n, int context, int batch)   // a session that never held anything else
{
    g3_error err;
    g3_session *s = tiny_session(model, context, batch);
    if (s && g3_add_tokens(s, tokens, n, &err) != G3_OK) fprintf(stderr, "    %s\n", err.text);
    return s;
}

// `s` continues with `more` tokens, in every way as a session that only ever read `tokens`, which end with these.
static bool continues_as_fresh(g3_session *s, const int *tokens, int n, int more, int context, int batch)
{
    g3_error err;
    g3_session *f = fresh(tokens, n - more, context, batch);
    bool same = f && g3_session_tokens(s, NULL, 0) == n - more;
    for (int i = n - more; i < n && same; i++) {
        same = g3_add_tokens(s, tokens + i, 1, &err) == G3_OK && g3_add_tokens(f, tokens + i, 1, &err) == G3_OK;
        same = same && same_logits(s, f);
    }
    g3_session_close(f);
    return same;
}

// ---- descriptions

static int a_zero_description_takes_the_defaults(void)
{
    g3_error err;
    g3_session_desc zero = G3__ZERO, same = G3__ZERO;
    same.context = 512; same.batch = 512; same.kv = G3_KV_BF16; same.logits_rows = 1;    // t1 was made for 512 tokens, less than 8192
    g3_session *a = g3_session_open(model, &zero, &err), *b = g3_session_open(model, NULL, &err), *c = g3_session_open(model, &same, &err);
    CHECK(a && b && c && err.code == G3_OK);
    g3_stats t = g3_session_stats(a);
    CHECK(t.context == 512 && t.held == 0 && t.prompt_tokens == 0 && t.new_tokens == 0 && t.images == 0);
    CHECK(t.memory == g3_session_stats(c).memory && t.memory == g3_session_stats(b).memory);
    CHECK(g3_session_finish(a) == G3_FINISH_NONE);
    CHECK(g3_add_tokens(a, ids, 20, &err) == G3_OK && g3_add_tokens(c, ids, 20, &err) == G3_OK && same_logits(a, c));
    CHECK(!g3_logits_at(a, 1, &err) && err.code == G3_ERR_ARGUMENT);                     // one row is kept
    g3_session_close(a); g3_session_close(b); g3_session_close(c);
    zero.context = -1;                                   // no limit, and little is needed: as much as the model was made for
    a = g3_session_open(model, &zero, &err);
    CHECK(a && g3_session_stats(a).context == 512);
    g3_session_close(a);
    return 0;
}

static int bad_descriptions_are_refused_by_name(void)
{
    static const struct { int context, batch, kv, rows, probe_rows; const char *word; } bad[] = {
        {513, 0, 0, 0, 0, "513"}, {0, -1, 0, 0, 0, "batch"}, {0, 0, 5, 0, 0, "kv"}, {0, 0, -1, 0, 0, "kv"}, {0, 0, 0, -1, 0, "logits_rows"}, {0, 0, 0, 0, -2, "probe.rows"}};
    for (int i = 0; i < G3__COUNT(bad); i++) {
        g3_error err;
        g3_session_desc d = G3__ZERO;
        d.context = bad[i].context; d.batch = bad[i].batch; d.kv = (g3_kv)bad[i].kv; d.logits_rows = bad[i].rows; d.probe.rows = bad[i].probe_rows;
        CHECK(!g3_session_open(model, &d, &err) && err.code == G3_ERR_ARGUMENT && strstr(err.text, bad[i].word));
    }
    return 0;
}

static int nothing_is_a_session(void)
{
    g3_error err;
    float x[T1_DIM] = {0}, z[TINY_VOCAB];
    g3_session *s = tiny_session(model, 8, 8);
    g3_session_close(NULL);
    g3_model_close(NULL);
    g3_session_cancel(NULL);
    CHECK(!g3_session_open(NULL, NULL, &err) && err.code == G3_ERR_ARGUMENT);
    CHECK(g3_add_tokens(NULL, ids, 1, &err) == G3_ERR_ARGUMENT && g3_generate(NULL, NULL, &err) == G3_ERR_ARGUMENT && g3_next(NULL, NULL, NULL, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_chat(NULL, NULL, &err) == G3_ERR_ARGUMENT && g3_add_turn(NULL, NULL, &err) == G3_ERR_ARGUMENT && g3_add_messages(NULL, NULL, 0, false, &err) == G3_ERR_ARGUMENT);
    CHECK(!g3_logits(NULL, &err) && err.code == G3_ERR_ARGUMENT && g3_head(NULL, x, z, &err) == G3_ERR_ARGUMENT && g3_sample(NULL, NULL, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_session_rewind(NULL, 0, &err) == G3_ERR_ARGUMENT && g3_session_copy(NULL, s, &err) == G3_ERR_ARGUMENT && g3_session_copy(s, NULL, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_session_tokens(NULL, NULL, 0) == 0 && g3_session_finish(NULL) == G3_FINISH_NONE && g3_session_seed(NULL) == 0 && g3_session_stats(NULL).context == 0);
    CHECK(g3_add_tokens(s, NULL, 1, &err) == G3_ERR_ARGUMENT && g3_add_tokens(s, ids, -1, &err) == G3_ERR_ARGUMENT && g3_session_rewind(s, -1, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_head(s, NULL, z, &err) == G3_ERR_ARGUMENT && g3_head(s, x, NULL, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_add_tokens(s, NULL, 0, NULL) == G3_OK && g3_session_tokens(s, NULL, 0) == 0 && g3_add_tokens(s, ids, 3, NULL) == G3_OK && g3_logits(s, NULL));   // no error struct is fine
    g3_session_close(s);
    return 0;
}

static int a_model_without_weights_has_no_sessions(void)
{
    g3_error err;
    g3_model_desc d = tiny_desc(&files, 1);
    d.no_weights = true;
    g3_model *m = g3_model_open(&d, &err);
    CHECK(m && !g3_session_open(m, NULL, &err) && err.code == G3_ERR_ARGUMENT && strstr(err.text, "no_weights"));
    int n = g3_tokenize(m, "us", 2, 0, NULL, 0);
    CHECK(n == 1);
    g3_model_close(m);
    return 0;
}

// ---- what is held

static int tokens_held_are_listed(void)
{
    g3_error err;
    int got[20];
    g3_session *s = tiny_session(model, 32, 4);
    CHECK(s && g3_session_tokens(s, got, 20) == 0);
    CHECK(g3_add_tokens(s, ids, 7, &err) == G3_OK && g3_add_tokens(s, ids + 7, 6, &err) == G3_OK);
    memset(got, -1, sizeof got);
    CHECK(g3_session_tokens(s, got, 20) == 13 && memcmp(got, ids, 13 * sizeof *ids) == 0 && got[13] == -1);
    memset(got, -1, sizeof got);
    CHECK(g3_session_tokens(s, got, 5) == 13 && memcmp(got, ids, 5 * sizeof *ids) == 0 && got[5] == -1);
    CHECK(g3_session_tokens(s, NULL, 0) == 13 && g3_session_tokens(s, got, -3) == 13 && g3_session_stats(s).held == 13);
    g3_session_close(s);
    return 0;
}

static int a_prompt_longer_than_the_context_adds_nothing_and_names_both_numbers(void)
{
    g3_error err;
    g3_session *s = tiny_session(model, 37, 8);
    CHECK(s && g3_add_tokens(s, ids, 38, &err) == G3_ERR_CONTEXT && strstr(err.text, "38") && strstr(err.text, "37") && g3_session_tokens(s, NULL, 0) == 0);
    CHECK(g3_add_tokens(s, ids, 30, &err) == G3_OK && g3_add_tokens(s, ids + 30, 8, &err) == G3_ERR_CONTEXT && strstr(err.text, "38") && strstr(err.text, "37"));
    CHECK(g3_session_tokens(s, NULL, 0) == 30 && continues_as_fresh(s, ids, 37, 7, 37, 8));
    CHECK(g3_add_tokens(s, ids, 1, &err) == G3_ERR_CONTEXT && g3_session_tokens(s, NULL, 0) == 37 && g3_add_tokens(s, NULL, 0, &err) == G3_OK);
    g3_session_close(s);
    return 0;
}

// https://github.com/MemPalace/mempalace/issues/2114 https://github.com/MemPalace/mempalace/pull/2136
static int ids_out_of_range_are_named_and_add_nothing(void)
{
    static const int bad[] = {-1, TINY_VOCAB, INT_MAX, INT_MIN};
    g3_error err;
    g3_session *s = fresh(ids, 5, 64, 4);
    CHECK(s && g3_logits(s, &err));
    for (int i = 0; i < G3__COUNT(bad); i++) {
        int prompt[9] = {4, 5, 6, 7, 8, 9, 10, 11, 12};
        char id[16];
        prompt[6] = bad[i];
        snprintf(id, sizeof id, "%d", bad[i]);
        CHECK(g3_add_tokens(s, prompt, 9, &err) == G3_ERR_ARGUMENT && strstr(err.text, id) && strstr(err.text, "token 6") && strstr(err.text, "511"));
        CHECK(g3_session_tokens(s, NULL, 0) == 5 && g3_logits(s, &err));
    }
    CHECK(continues_as_fresh(s, ids, 9, 4, 64, 4));
    g3_session_close(s);
    return 0;
}

// https://github.com/ggml-org/llama.cpp/issues/12357 https://github.com/ollama/ollama/pull/5368
static int a_full_context_gives_its_last_token_and_then_says_so(void)
{
    g3_error err;
    heard h = G3__ZERO;
    int held[40];
    g3_session *s = fresh(ids, 25, 32, 8);
    g3_generate_desc d = ask(&h, 0, true);
    d.ignore_stop_ids = true;
    CHECK(s && g3_generate(s, &d, &err) == 7 && g3_session_finish(s) == G3_FINISH_CONTEXT && h.n == 7);
    CHECK(g3_session_tokens(s, held, 40) == 32 && memcmp(held + 25, h.id, 7 * sizeof(int)) == 0);
    CHECK(g3_generate(s, &d, &err) == G3_ERR_CONTEXT && err.code == G3_ERR_CONTEXT && strstr(err.text, "32"));
    CHECK(g3_next(s, &d, NULL, &err) <= 0 && g3_session_tokens(s, held, 40) == 32);
    const float *z = g3_logits(s, &err);                 // the last token is there like any other
    g3_session *f = fresh(held, 32, 32, 8);
    CHECK(z && same_logits(s, f));
    CHECK(g3_session_rewind(s, 0, &err) == 0 && continues_as_fresh(s, held, 8, 8, 32, 8));      // starting over reproduces
    g3_session_close(f);
    g3_session_close(s);
    s = fresh(ids, 32, 32, 8);                           // a prompt that fills it all leaves no room for an answer
    CHECK(g3_logits(s, &err) && g3_generate(s, &d, &err) == G3_ERR_CONTEXT && g3_session_tokens(s, NULL, 0) == 32);
    g3_session_close(s);
    return 0;
}

static int a_context_of_one_token_is_enough_for_logits(void)
{
    g3_error err;
    g3_session *s = tiny_session(model, 1, 0), *f = fresh(ids, 1, 64, 8);
    CHECK(s && g3_session_stats(s).context == 1 && g3_add_tokens(s, ids, 2, &err) == G3_ERR_CONTEXT && g3_add_tokens(s, ids, 1, &err) == G3_OK && same_logits(s, f));
    CHECK(g3_generate(s, NULL, &err) == G3_ERR_CONTEXT && g3_session_rewind(s, 0, &err) == 0 && g3_add_tokens(s, ids, 1, &err) == G3_OK && same_logits(s, f));
    g3_session_close(s);
    g3_session_close(f);
    return 0;
}

// ---- going back

// https://github.com/ollama/ollama/issues/11365 https://github.com/ml-explore/mlx-lm/issues/980 https://github.com/raullenchai/Rapid-MLX/pull/2064
// https://github.com/ggml-org/llama.cpp/issues/14157 https://github.com/ikawrakow/ik_llama.cpp/pull/2459
static int going_back_is_exact_within_the_slack_and_refused_beyond(void)
{
    static const int batches[] = {1, 3, 8, 16};
    enum { N = 60 };
    for (int b = 0; b < G3__COUNT(batches); b++)
        for (int k = 0; k <= N; k++) {
            g3_error err;
            int batch = batches[b], other[N + 6];
            g3_session *s = fresh(ids, N, 128, batch);
            CHECK(s);
            int reached = g3_session_rewind(s, N - k, &err);
            // A ring of 8 + batch rows holds the last 8 + batch positions; position N - k needs the 7 before it.
            CHECK(err.code == G3_OK && reached == (k <= batch + 1 ? N - k : 0) && g3_session_tokens(s, NULL, 0) == reached);
            memcpy(other, ids, sizeof other);
            for (int i = reached; i < N - k + 6; i++) other[i] = i < N - k ? ids[i] : ids[i + 100];   // what follows is not what was there
            if (!reached && k < N) CHECK(g3_add_tokens(s, ids, N - k, &err) == G3_OK);
            CHECK(continues_as_fresh(s, other, N - k + 6, 6, 128, batch));
            g3_session_close(s);
        }
    return 0;
}

static int rings_that_have_not_moved_on_lose_nothing(void)
{
    static const struct { int context, batch, n; } kind[] = {{24, 16, 24}, {24, 30, 24}, {128, 16, 24}, {16, 16, 16}};      // 8 + 16 rows hold all 24
    for (int i = 0; i < G3__COUNT(kind); i++)
        for (int pos = 0; pos <= kind[i].n; pos++) {
            g3_error err;
            g3_session *s = fresh(ids, kind[i].n, kind[i].context, kind[i].batch);
            CHECK(g3_session_rewind(s, pos, &err) == pos);
            if (pos < kind[i].context - 3) CHECK(continues_as_fresh(s, ids, pos + 3, 3, kind[i].context, kind[i].batch));
            g3_session_close(s);
        }
    return 0;
}

static int a_model_without_sliding_layers_loses_nothing(void)
{
    g3_error err;
    ck c;
    box b;
    CHECK(ck_load(&c, tiny_path("t1-f32-text")) && ck_config(&c, "\"sliding_window_pattern\": 2", "\"sliding_window_pattern\": 1"));
    ck_build(&c, &b);
    g3_model *m = tiny_open(&b, 1);
    g3_session *s = m ? tiny_session(m, 100, 4) : NULL, *f = m ? tiny_session(m, 100, 4) : NULL;
    CHECK(s && f && g3_add_tokens(s, ids, 60, &err) == G3_OK && g3_add_tokens(f, ids, 7, &err) == G3_OK && g3_add_tokens(f, ids + 90, 9, &err) == G3_OK);
    CHECK(g3_session_rewind(s, 7, &err) == 7 && g3_add_tokens(s, ids + 90, 9, &err) == G3_OK && same_logits(s, f));
    g3_session_close(s);
    g3_session_close(f);
    g3_model_close(m);
    box_free(&b);
    ck_free(&c);
    return 0;
}

static int going_back_further_than_there_is_reaches_what_there_is(void)
{
    g3_error err;
    g3_session *s = fresh(ids, 9, 64, 8);
    CHECK(g3_session_rewind(s, 500, &err) == 9 && g3_session_rewind(s, 9, &err) == 9 && continues_as_fresh(s, ids, 12, 3, 64, 8));
    CHECK(g3_session_rewind(s, 0, &err) == 0 && g3_session_rewind(s, 5, &err) == 0 && !g3_logits(s, &err));
    g3_session_close(s);
    return 0;
}

// Back and on again, many times, by random lengths that the rings allow or not: rows of an earlier try must never be seen.
static int retries_never_see_what_an_earlier_try_left_behind(void)
{
    enum { STEPS = 160 };
    static const int batches[] = {1, 4, 7};
    for (int b = 0; b < G3__COUNT(batches); b++) {
        g3_error err;
        unsigned seed = 5;
        int held[256], n = 40, kept = 0;
        g3_session *s = fresh(ids, n, 256, batches[b]);
        memcpy(held, ids, (size_t)n * sizeof *held);
        for (int i = 0; i < STEPS; i++) {
            seed = seed * 1664525u + 1013904223u;
            int back = (int)(seed >> 10) % (batches[b] + 4), more = 1 + (int)(seed >> 20) % 6;
            if (n - back < 20) back = 0;
            int reached = g3_session_rewind(s, n - back, &err);
            CHECK(reached == n - back || reached == 0);
            kept += reached > 0;
            if (!reached) CHECK(g3_add_tokens(s, held, n - back, &err) == G3_OK);
            n -= back;
            if (n + more > 120) { CHECK(g3_session_rewind(s, 0, &err) == 0 && g3_add_tokens(s, held, 30, &err) == G3_OK); n = 30; }
            for (int k = 0; k < more; k++) held[n + k] = 4 + (int)(seed >> (5 + k)) % 90;
            CHECK(g3_add_tokens(s, held + n, more, &err) == G3_OK);
            n += more;
            g3_session *f = fresh(held, n, 256, batches[b]);
            CHECK(same_logits(s, f));
            g3_session_close(f);
        }
        CHECK(kept > STEPS / 4 && kept < STEPS);
        g3_session_close(s);
    }
    return 0;
}

static int logits_are_gone_after_going_back(void)
{
    g3_error err;
    g3_session *s = open_session(model, 64, 8, G3_KV_F32, 4, &err);
    CHECK(s && g3_add_tokens(s, ids, 8, &err) == G3_OK && g3_logits_at(s, 3, &err));
    CHECK(g3_session_rewind(s, 6, &err) == 6 && !g3_logits(s, &err) && err.code == G3_ERR_ARGUMENT && err.text[0]);
    CHECK(!g3_logits_at(s, 1, &err) && g3_sample(s, NULL, &err) == G3_ERR_ARGUMENT && g3_generate(s, NULL, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_add_tokens(s, ids + 6, 1, &err) == G3_OK && g3_logits(s, &err));
    g3_session_close(s);
    return 0;
}

// ---- copies

static int a_copy_goes_on_like_its_original(void)
{
    static const g3_kv kinds[] = {G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8};
    for (int k = 0; k < G3__COUNT(kinds); k++) {
        g3_error err;
        int a_ids[128], b_ids[128];
        g3_session *a = open_session(model, 96, 8, kinds[k], 3, &err), *b = open_session(model, 96, 8, kinds[k], 3, &err);
        CHECK(a && b && g3_add_tokens(a, ids, 41, &err) == G3_OK && g3_add_tokens(b, ids + 60, 13, &err) == G3_OK);
        CHECK(g3_session_copy(b, a, &err) == G3_OK && err.code == G3_OK && g3_session_tokens(b, b_ids, 128) == 41 && memcmp(b_ids, ids, 41 * sizeof *ids) == 0);
        CHECK(same_logits(a, b) && g3_session_rewind(b, 39, &err) == 39 && g3_session_rewind(a, 39, &err) == 39);
        heard h = G3__ZERO;
        g3_generate_desc d = ask(&h, 20, false);
        d.ignore_stop_ids = true;
        CHECK(g3_add_tokens(a, ids + 39, 5, &err) == G3_OK && g3_add_tokens(b, ids + 39, 5, &err) == G3_OK && same_logits(a, b));
        CHECK(g3_generate(a, &d, &err) == 20 && g3_generate(b, &d, &err) == 20);
        CHECK(g3_session_tokens(a, a_ids, 128) == 64 && g3_session_tokens(b, b_ids, 128) == 64 && memcmp(a_ids, b_ids, 64 * sizeof(int)) == 0);
        CHECK(g3_session_copy(a, b, &err) == G3_OK && same_logits(a, b) && g3_session_copy(a, a, &err) == G3_OK);
        g3_session *late = open_session(model, 96, 8, kinds[k], 3, &err);    // nor can a copy go back further: 16 rows are all there is
        CHECK(late && g3_session_copy(late, a, &err) == G3_OK && g3_session_rewind(late, 64 - 30, &err) == 0);
        g3_session_close(late);
        g3_session_close(a);                             // the copy needs nothing of its original
        CHECK(g3_add_tokens(b, ids, 9, &err) == G3_OK && g3_logits(b, &err));
        g3_session_close(b);
    }
    return 0;
}

static int a_copy_is_refused_between_different_sessions(void)
{
    g3_error err;
    box b;
    CHECK(tiny_box(&b, "t1-f32-text"));
    g3_model *twin = tiny_open(&b, 1);
    g3_session *a = fresh(ids, 10, 64, 8), *other[5];
    other[0] = tiny_session(model, 65, 8);
    other[1] = tiny_session(model, 64, 9);
    other[2] = open_session(model, 64, 8, G3_KV_BF16, 1, &err);
    other[3] = open_session(model, 64, 8, G3_KV_F32, 2, &err);
    other[4] = tiny_session(twin, 64, 8);
    for (int i = 0; i < 5; i++) {
        CHECK(other[i] && g3_add_tokens(other[i], ids + 20, 4, &err) == G3_OK);
        CHECK(g3_session_copy(other[i], a, &err) == G3_ERR_ARGUMENT && err.text[0]);
        CHECK(g3_session_tokens(other[i], NULL, 0) == 4 && g3_logits(other[i], &err));
        g3_session_close(other[i]);
    }
    g3_session_close(a);
    g3_model_close(twin);
    box_free(&b);
    return 0;
}

// ---- logits

static int logits_of_kept_rows_are_those_of_their_prefixes(void)
{
    g3_error err;
    for (int rows = 1; rows <= 9; rows += 4)
        for (int n = 1; n <= 13; n += 3) {
            g3_session *s = open_session(model, 64, 6, G3_KV_F32, rows, &err);
            CHECK(s && g3_add_tokens(s, ids, n, &err) == G3_OK);
            int last = n % 6 ? n % 6 : 6, kept = rows < last ? rows : last;      // of the last step
            for (int back = 0; back < kept; back++) {
                g3_session *f = fresh(ids, n - back, 64, 6);
                CHECK(memcmp(g3_logits_at(s, back, &err), g3_logits(f, &err), TINY_VOCAB * sizeof(float)) == 0);
                g3_session_close(f);
            }
            CHECK(!g3_logits_at(s, kept, &err) && err.code == G3_ERR_ARGUMENT && !g3_logits_at(s, -1, &err) && err.code == G3_ERR_ARGUMENT);
            g3_session_close(s);
        }
    g3_session *s = tiny_session(model, 64, 6);
    CHECK(!g3_logits(s, &err) && err.code == G3_ERR_ARGUMENT);                   // nothing added yet
    g3_session_close(s);
    return 0;
}

typedef struct residual { float x[8][T1_DIM]; int rows; } residual;

static int keep_residual(void *user, const g3_view *v)
{
    residual *r = (residual *)user;
    if (v->layer != T1_LAYERS - 1) return 0;
    r->rows = v->rows;
    memcpy(r->x, v->data, sizeof(float) * (size_t)(v->rows * v->cols));
    return 0;
}

static int the_head_of_a_residual_row_is_its_logits(void)
{
    g3_error err;
    residual r = G3__ZERO;
    float z[TINY_VOCAB];
    g3_session_desc d = G3__ZERO;
    d.context = 64; d.batch = 8; d.logits_rows = 8;
    d.probe.probe_fn = keep_residual; d.probe.user = &r; d.probe.points = G3_POINT_LAYER; d.probe.rows = 8;
    g3_session *s = g3_session_open(model, &d, &err);
    CHECK(s && g3_add_tokens(s, ids, 8, &err) == G3_OK && r.rows == 8);
    for (int i = 0; i < 8; i++) {
        CHECK(g3_head(s, r.x[i], z, &err) == G3_OK && memcmp(z, g3_logits_at(s, 7 - i, &err), sizeof z) == 0);
    }
    CHECK(g3_add_tokens(s, ids + 8, 3, &err) == G3_OK && g3_head(s, r.x[0], z, &err) == G3_OK && g3_session_tokens(s, NULL, 0) == 11);
    CHECK(memcmp(z, g3_logits_at(s, 2, &err), sizeof z) == 0);                   // also before the rows were asked for
    g3_session_close(s);
    return 0;
}

// ---- closing

static int a_model_may_be_closed_before_its_sessions(void)
{
    const uint64_t open = files.open_now;                // by the model of the other tests
    for (int order = 0; order < 6; order++) {            // three things, closed in every order
        static const int turn[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
        record r = G3__ZERO;
        g3_error err;
        g3_model_desc d = tiny_desc(&files, 2);
        d.allocator = record_hooks(&r);
        g3_model *m = g3_model_open(&d, &err);
        g3_session *s[2];
        for (int i = 0; i < 2; i++) s[i] = tiny_session(m, 64, 8);
        for (int i = 0; i < 3; i++) {
            if (turn[order][i] == 2) g3_model_close(m);
            else g3_session_close(s[turn[order][i]]);
            for (int k = 0; k < 2; k++) {                // what is still open still works
                bool closed = false;
                for (int j = 0; j <= i; j++) closed = closed || turn[order][j] == k;
                if (!closed) CHECK(g3_add_tokens(s[k], ids, 5, &err) == G3_OK && g3_logits(s[k], &err) && g3_tokenize(model, "a", 1, 0, NULL, 0) == 1);
            }
        }
        CHECK(!r.bad && r.rest_live == 0 && files.open_now == open);
    }
    return 0;
}

// ---- numbers about a session

static int stats_count_what_went_through(void)
{
    g3_error err;
    heard h = G3__ZERO;
    g3_session *s = tiny_session(model, 200, 8);
    g3_generate_desc d = ask(&h, 6, true);
    d.ignore_stop_ids = true;
    CHECK(s && g3_add_tokens(s, ids, 20, &err) == G3_OK && g3_add_tokens(s, ids + 20, 3, &err) == G3_OK);
    g3_stats t = g3_session_stats(s);
    CHECK(t.context == 200 && t.held == 23 && t.prompt_tokens == 23 && t.new_tokens == 0 && t.images == 0 && t.prompt_s > 0 && t.new_s == 0);
    CHECK(g3_generate(s, &d, &err) == 6);
    t = g3_session_stats(s);
    CHECK(t.held == 29 && t.prompt_tokens == 23 && t.new_tokens == 6 && t.new_s > 0 && t.first_s >= t.prompt_s && t.first_s <= t.prompt_s + t.new_s + t.image_s + 1e-9);
    CHECK(g3_add_tokens(s, ids, 4, &err) == G3_OK);      // the next prompt is counted by itself
    t = g3_session_stats(s);
    CHECK(t.held == 33 && t.prompt_tokens == 4 && t.new_tokens == 0 && t.new_s == 0);
    // Tied embeddings: a token reads every weight once, the table as the head. t1 is float32.
    CHECK(t.bytes_per_token == g3_model_get_info(model).weight_bytes && t.bytes_per_token == 4 * g3_model_get_info(model).parameters);
    g3_session_close(s);
    return 0;
}

static int the_seed_in_use_can_be_read_and_used_again(void)
{
    g3_error err;
    heard a = G3__ZERO, b = G3__ZERO;
    g3_session *s = fresh(ids, 10, 200, 8), *t = fresh(ids, 10, 200, 8);
    g3_generate_desc d = ask(&a, 30, false);
    d.sampler.seed = 0;
    d.ignore_stop_ids = true;
    CHECK(g3_generate(s, &d, &err) == 30);
    uint64_t seed = g3_session_seed(s);
    CHECK(seed != 0 && g3_session_seed(t) != seed && g3_session_seed(t) != 0);
    d.user = &b;
    d.sampler.seed = seed;
    CHECK(g3_generate(t, &d, &err) == 30 && memcmp(a.id, b.id, 30 * sizeof(int)) == 0 && g3_session_seed(t) == seed);
    g3_session_close(s);
    g3_session_close(t);
    return 0;
}

// ---- memory

static g3_plan plan_of(g3_model_desc d, int sessions)
{
    g3_plan p;
    g3_error err;
    d.sessions = sessions;
    memset(&d.allocator, 0, sizeof d.allocator);
    if (g3_plan_memory(&d, &p, &err) != G3_OK) fprintf(stderr, "    %s\n", err.text);
    return p;
}

static int use_session(g3_session *s, bool text)         // everything a session is for
{
    g3_error err;
    heard h = G3__ZERO;
    g3_turn t = G3__ZERO;
    g3_message msg[3] = {{"user", "one two three", NULL, 0}, {"assistant", "four five", NULL, 0}, {"user", "six seven", NULL, 0}};
    const char *stops[] = {"zebra", "antelope"};
    CHECK(g3_add_tokens(s, low_ids, 30, &err) == G3_OK && g3_logits(s, &err));
    t.generate = ask(&h, 12, false);
    t.generate.sampler.logprobs = true;
    CHECK(g3_generate(s, &t.generate, &err) >= 0);
    CHECK(g3_session_rewind(s, 3, &err) >= 0);
    if (!text) return 0;
    t.text = "The quick brown fox jumps over the lazy dog, again and again. It does not stop for anybody at all, and nobody knows why.";
    t.generate.stops = stops;
    t.generate.n_stops = 2;
    t.generate.sampler.repeat_penalty = 1.3f;
    CHECK(g3_session_rewind(s, 0, &err) == 0 && g3_chat(s, &t, &err) >= 0 && g3_chat(s, &t, &err) >= 0);
    CHECK(g3_session_rewind(s, 0, &err) == 0 && g3_add_messages(s, msg, 3, true, &err) == G3_OK && g3_next(s, &t.generate, NULL, &err) >= 0);
    return 0;
}

static int look_away(void *user, const g3_view *v) { (void)user; (void)v; return 0; }

static int memory_is_what_the_plan_says(box *b, g3_session_desc sd, bool vision, bool text)
{
    record r = G3__ZERO;
    g3_error err;
    g3_model_desc d = tiny_desc(b, 3);
    d.no_vision = !vision;
    d.session = &sd;
    g3_plan one = plan_of(d, 1), two = plan_of(d, 2);
    CHECK(one.fits && two.fits && one.total == one.weights + one.kv + one.scratch + one.vision && two.weights == one.weights && two.kv == 2 * one.kv);
    r.arena[0] = two.total - one.total;                  // a session's arena
    r.arena[1] = one.total - r.arena[0];                 // the model's
    d.allocator = record_hooks(&r);
    d.sessions = 2;
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "    %s\n", err.text);
    CHECK(m && r.n_arenas == 1 && r.arenas_live == r.arena[1] && r.rest_peak <= two.host);
    g3_session *s = g3_session_open(m, &sd, &err), *t = g3_session_open(m, &sd, &err);
    CHECK(s && t && r.n_arenas == 3 && r.arenas_live == two.total && g3_session_stats(s).memory == r.arena[0]);
    int calls = r.calls;
    int line = use_session(s, text);
    CHECK(!line);
    CHECK(g3_add_tokens(t, low_ids, 10, &err) == G3_OK && g3_session_copy(t, s, &err) == G3_OK);
    CHECK(r.calls == calls);                             // nothing is allocated after open
    CHECK(r.rest_peak <= two.host && two.host < r.rest_peak + ((uint64_t)256 << 10));
    g3_session_close(t);
    g3_session_close(s);
    g3_model_close(m);
    CHECK(!r.bad && !r.arenas_live && !r.rest_live);
    return 0;
}

static int arenas_are_the_plans_total_and_the_rest_is_at_most_host(void)
{
    static const char *const other[] = {"text/tiny/t3-f16-mm-new-sharded", "text/tiny/t4-bf16-defaults", "bnb/models/text-nf4-mixed-3shards", "bnb/models/mm-nf4-mixed-4shards-published-names"};
    g3_session_desc sd = G3__ZERO;
    int line;
    line = memory_is_what_the_plan_says(&files, sd, false, true);
    CHECK(!line);
    sd.context = 400; sd.batch = 7; sd.kv = G3_KV_INT8; sd.logits_rows = 5;
    line = memory_is_what_the_plan_says(&files, sd, false, true);
    CHECK(!line);
    sd.probe.probe_fn = look_away;
    sd.probe.points = G3_POINT_ATTENTION | G3_POINT_LAYER;                       // the probe's buffers are in the plan, too
    line = memory_is_what_the_plan_says(&files, sd, false, true);
    CHECK(!line);
    memset(&sd, 0, sizeof sd);
    for (int i = 0; i < G3__COUNT(other); i++) {
        box b;
        CHECK(box_load(&b, golden(other[i])));
        for (int k = b.n - 1; k >= 0; k--) if (starts(b.f[k].name, "expected")) box_drop(&b, b.f[k].name);
        sd.context = 256; sd.batch = 32; sd.kv = (g3_kv)(i % 4 + 1);
        line = memory_is_what_the_plan_says(&b, sd, i == 3, false);
        CHECK(!line);
        box_free(&b);
    }
    return 0;
}

static int what_fresh_memory_holds_does_not_matter(void)
{
    static const unsigned char fill[] = {0, 0xFF, 0x7F, 0xA5};       // 0xFF and 0x7F: NaN in every format
    float first[TINY_VOCAB];
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 4; i++) {
            record r = G3__ZERO;
            g3_error err;
            g3_model_desc d = tiny_desc(&files, 2);
            r.fill = fill[i];
            d.allocator = record_hooks(&r);
            g3_model *m = g3_model_open(&d, &err);
            g3_session *s = open_session(m, 100, 5, (g3_kv)(k + 1), 1, &err);
            CHECK(s && g3_add_tokens(s, ids, 23, &err) == G3_OK && g3_add_tokens(s, ids + 23, 2, &err) == G3_OK && g3_logits(s, &err));
            if (!i) memcpy(first, g3_logits(s, &err), sizeof first);
            CHECK(memcmp(first, g3_logits(s, &err), sizeof first) == 0);
            g3_session_close(s);
            g3_model_close(m);
        }
    return 0;
}

static int the_largest_context_fits_and_one_more_does_not(void)
{
    static const g3_kv kinds[] = {G3_KV_F32, G3_KV_BF16, G3_KV_INT8};
    g3_model_desc d = tiny_desc(&files, 1);
    g3_session_desc sd = G3__ZERO;
    for (int k = 0; k < 3; k++)
        for (int extra = 40; extra <= 400; extra += 90) {
            g3_error err;
            sd.kv = kinds[k];
            sd.batch = 16;
            sd.context = 1;
            d.memory_limit = 0;
            d.session = &sd;
            uint64_t least = plan_of(d, 1).total;
            d.memory_limit = least + (uint64_t)extra * 300;
            sd.context = -1;
            g3_plan p = plan_of(d, 1);
            CHECK(p.fits && p.total <= d.memory_limit && p.max_context >= 1 && p.max_context <= 512 && p.available == d.memory_limit);
            int largest = p.max_context;
            g3_model *m = g3_model_open(&d, &err);
            g3_session *s = m ? g3_session_open(m, &sd, &err) : NULL;
            CHECK(s && g3_session_stats(s).context == largest);
            CHECK(g3_add_tokens(s, ids, largest, &err) == G3_OK && g3_add_tokens(s, ids, 1, &err) == G3_ERR_CONTEXT);
            g3_session_close(s);
            sd.context = largest + 1;                    // after the model was opened: the session says no, and what would do
            s = largest < 512 ? g3_session_open(m, &sd, &err) : NULL;
            if (largest < 512) { char number[16]; snprintf(number, sizeof number, "%d", largest); CHECK(!s && err.code == G3_ERR_MEMORY && strstr(err.text, number)); }
            g3_model_close(m);
            if (largest == 512) continue;
            p = plan_of(d, 1);
            CHECK(!p.fits && p.total > d.memory_limit && p.max_context == largest && p.advice[0]);
            CHECK(!g3_model_open(&d, &err) && err.code == G3_ERR_MEMORY);        // before any weight is read
        }
    return 0;
}

static int the_limit_counts_all_sessions_that_are_open(void)
{
    g3_error err;
    g3_model_desc d = tiny_desc(&files, 1);
    g3_session_desc sd = G3__ZERO;
    g3_session *s[4];
    sd.context = 100; sd.batch = 8;
    d.session = &sd;
    d.sessions = 3;
    d.memory_limit = plan_of(d, 3).total;                // to the byte
    g3_model *m = g3_model_open(&d, &err);
    for (int i = 0; i < 4; i++) s[i] = m ? g3_session_open(m, &sd, &err) : NULL;
    CHECK(s[0] && s[1] && s[2] && !s[3] && err.code == G3_ERR_MEMORY && strstr(err.text, "100"));
    g3_session_close(s[1]);
    s[1] = g3_session_open(m, &sd, &err);                // what was given back can be had again
    CHECK(s[1] && !g3_session_open(m, &sd, &err));
    for (int i = 0; i < 3; i++) { CHECK(g3_add_tokens(s[i], ids, 50, &err) == G3_OK && same_logits(s[0], s[i])); }
    for (int i = 0; i < 3; i++) g3_session_close(s[i]);
    g3_model_close(m);
    d.memory_limit--;
    CHECK(!g3_model_open(&d, &err) && err.code == G3_ERR_MEMORY);
    return 0;
}

static int planned_sessions_of_the_largest_context_can_all_be_opened(void)
{
    g3_error err;
    g3_model_desc d = tiny_desc(&files, 1);
    g3_session_desc sd = G3__ZERO;
    sd.context = 100; sd.batch = 8;
    d.session = &sd;
    d.sessions = 2;
    d.memory_limit = plan_of(d, 2).total + 1000;
    sd.context = -1;
    g3_plan p = plan_of(d, 2);
    g3_model *m = g3_model_open(&d, &err);
    CHECK(m && p.fits && p.max_context >= 100 && p.max_context < 110);
    g3_session *a = g3_session_open(m, NULL, &err), *b = g3_session_open(m, NULL, &err);
    CHECK(a && b && g3_session_stats(a).context == p.max_context && g3_session_stats(b).context == p.max_context);
    g3_session_close(a);
    g3_session_close(b);
    g3_model_close(m);
    return 0;
}

int main(void)
{
    tiny_quiet();
    if (!tiny_box(&files, "t1-f32-text") || !(model = tiny_open(&files, 1))) { fprintf(stderr, "no fixtures\n"); return 1; }
    some_ids(ids, G3__COUNT(ids), 11);
    for (int i = 0; i < G3__COUNT(low_ids); i++) low_ids[i] = ids[i] % 300;
    RUN(a_zero_description_takes_the_defaults);
    RUN(bad_descriptions_are_refused_by_name);
    RUN(nothing_is_a_session);
    RUN(a_model_without_weights_has_no_sessions);
    RUN(tokens_held_are_listed);
    RUN(a_prompt_longer_than_the_context_adds_nothing_and_names_both_numbers);
    RUN(ids_out_of_range_are_named_and_add_nothing);
    RUN(a_full_context_gives_its_last_token_and_then_says_so);
    RUN(a_context_of_one_token_is_enough_for_logits);
#ifndef ON_CARD                         // on a card, as long as it is emulated, only what differs there and is quick
    RUN(going_back_is_exact_within_the_slack_and_refused_beyond);
    RUN(retries_never_see_what_an_earlier_try_left_behind);
    RUN(arenas_are_the_plans_total_and_the_rest_is_at_most_host);
    RUN(what_fresh_memory_holds_does_not_matter);
    RUN(the_largest_context_fits_and_one_more_does_not);
    RUN(the_limit_counts_all_sessions_that_are_open);
    RUN(planned_sessions_of_the_largest_context_can_all_be_opened);
#endif
    RUN(rings_that_have_not_moved_on_lose_nothing);
    RUN(a_model_without_sliding_layers_loses_nothing);
    RUN(going_back_further_than_there_is_reaches_what_there_is);
    RUN(logits_are_gone_after_going_back);
    RUN(a_copy_goes_on_like_its_original);
    RUN(a_copy_is_refused_between_different_sessions);
    RUN(logits_of_kept_rows_are_those_of_their_prefixes);
    RUN(the_head_of_a_residual_row_is_its_logits);
    RUN(a_model_may_be_closed_before_its_sessions);
    RUN(stats_count_what_went_through);
    RUN(the_seed_in_use_can_be_read_and_used_again);
    g3_model_close(model);
    box_free(&files);
    return test_done();
}
