// Answers: token after token until something ends them, the same by callback and by pull, with whole characters, stop
// strings, hooks and seeds. What the model says is often steered by logits_fn, so that ends and texts are known by hand.
#include "tiny.h"

static box files;                                        // t1 with the tokenizer of tiny.h
static g3_model *model;
static int ids[256];

static g3_session *prompted(g3_model *m, int n, int context)
{
    g3_error err;
    g3_session *s = tiny_session(m, context, 16);
    if (s && g3_add_tokens(s, ids, n, &err) != G3_OK) fprintf(stderr, "    %s\n", err.text);
    return s;
}

static g3_generate_desc told(heard *h, script *k, const int *want, int n)    // the model will say want[0 .. n)
{
    g3_generate_desc d = ask(h, n, true);
    memset(h, 0, sizeof *h);
    k->want = want;
    k->n = n;
    k->at = 0;
    d.sampler.logits_fn = follow;
    d.sampler.user = k;
    return d;
}

static bool holds(g3_session *s, int from, const int *want, int n)           // the tokens held from there on
{
    static int held[1024];
    return g3_session_tokens(s, held, 1024) == from + n && memcmp(held + from, want, (size_t)n * sizeof *want) == 0;
}

// ---- which token

static int greedy_is_the_argmax_of_the_logits_step_by_step(void)
{
    g3_error err;
    heard h = G3__ZERO;
    g3_session *s = prompted(model, 20, 128), *t = prompted(model, 20, 128);
    g3_generate_desc d = ask(&h, 40, true);
    d.ignore_stop_ids = true;
    CHECK(g3_generate(s, &d, &err) == 40);
    for (int i = 0; i < 40; i++) {
        int id = argmax(g3_logits(t, &err), TINY_VOCAB);
        CHECK(id == h.id[i] && g3_add_tokens(t, &id, 1, &err) == G3_OK);
    }
    CHECK(holds(s, 20, h.id, 40));
    g3_session_close(s);
    g3_session_close(t);
    return 0;
}

static bool drawn(uint64_t seed, bool greedy, int *out)
{
    g3_error err;
    heard h = G3__ZERO;
    g3_session *s = prompted(model, 20, 128);
    g3_generate_desc d = ask(&h, 30, greedy);
    d.sampler.seed = seed;
    d.ignore_stop_ids = true;
    bool ok = g3_generate(s, &d, &err) == 30;
    memcpy(out, h.id, 30 * sizeof *out);
    g3_session_close(s);
    return ok;
}

// https://github.com/ollama/ollama/issues/586 https://github.com/ollama/ollama/issues/5044 https://github.com/unslothai/unsloth/issues/2124
// https://github.com/huggingface/candle/issues/2006
static int seeds_decide_draws_and_nothing_else_does(void)
{
    int a[30], b[30], different = 0;
    CHECK(drawn(7, true, a));
    for (uint64_t seed = 0; seed < 5; seed++) { CHECK(drawn(seed, true, b) && memcmp(a, b, sizeof a) == 0); }
    CHECK(drawn(7, false, a) && drawn(7, false, b) && memcmp(a, b, sizeof a) == 0);
    for (uint64_t seed = 8; seed < 13; seed++) { CHECK(drawn(seed, false, b)); different += memcmp(a, b, sizeof a) != 0; }
    CHECK(different == 5);
    return 0;
}

static int a_draw_depends_on_seed_and_position_alone(void)
{
    g3_error err;
    int first[40];
    heard h = G3__ZERO;
    g3_session *s = prompted(model, 20, 128);
    g3_generate_desc d = ask(&h, 40, false);
    d.ignore_stop_ids = true;
    CHECK(g3_generate(s, &d, &err) == 40);
    memcpy(first, h.id, sizeof first);
    for (int back = 1; back <= 16; back += 3) {          // back and again
        memset(&h, 0, sizeof h);
        d.max_tokens = back - 1;
        CHECK(g3_session_rewind(s, 60 - back, &err) == 60 - back && g3_add_tokens(s, first + 40 - back, 1, &err) == G3_OK);
        CHECK(!d.max_tokens || g3_generate(s, &d, &err) == back - 1);
        CHECK(holds(s, 20, first, d.max_tokens ? 40 : 40 - back + 1));
        if (!d.max_tokens) CHECK(g3_add_tokens(s, first + 41 - back, back - 1, &err) == G3_OK);
    }
    g3_session *t = prompted(model, 20, 128);            // in pieces, by sampling, and with tokens added by hand
    for (int i = 0; i < 40; ) {
        int id = g3_sample(t, &d.sampler, &err);
        CHECK(id == first[i] && g3_sample(t, &d.sampler, &err) == id && g3_session_tokens(t, NULL, 0) == 20 + i);
        if (i % 3 == 0) { CHECK(g3_add_tokens(t, &id, 1, &err) == G3_OK); i++; continue; }
        d.max_tokens = i % 3;
        CHECK(g3_generate(t, &d, &err) == d.max_tokens);
        i += d.max_tokens;
        CHECK(holds(t, 20, first, i));
    }
    g3_session_close(s);
    g3_session_close(t);
    return 0;
}

// https://github.com/google/tunix/issues/1651
static int rows_without_a_token_are_never_drawn(void)
{
    enum { PIECES = 500 };
    g3_error err;
    ck c;
    box b;
    CHECK(ck_load(&c, tiny_path("t1-f32-text")));
    float *E = (float *)(void *)ck_find(&c, "model.embed_tokens.weight")->data;
    for (int i = PIECES * T1_DIM; i < TINY_VOCAB * T1_DIM; i++) E[i] *= 100;     // tied: their logits are a hundred times as large
    ck_build(&c, &b);
    tiny_tokenizer(&b, PIECES, NULL);
    g3_model *m = tiny_open(&b, 1);
    int tempted = 0;
    CHECK(m && g3_model_get_info(m).vocab == TINY_VOCAB);
    for (int i = 0; i < 40; i++) {
        g3_session *s = prompted(m, 5 + i, 64);
        const float *z = g3_logits(s, &err);
        tempted += argmax(z, TINY_VOCAB) >= PIECES;
        g3_sampler p = G3__ZERO;
        p.seed = (uint64_t)i + 1;
        int id = g3_sample(s, &p, &err);
        CHECK(id >= 0 && id < PIECES);
        p.greedy = true;
        CHECK(g3_sample(s, &p, &err) == argmax(z, PIECES));
        g3_session_close(s);
    }
    CHECK(tempted > 30);
    g3_model_close(m);
    box_free(&b);
    ck_free(&c);
    return 0;
}

typedef struct push { int id[3]; int n; } push;

static int push_up(void *user, float *z, int vocab)
{
    push *p = (push *)user;
    for (int i = 0; i < p->n; i++) if (p->id[i] < vocab) z[p->id[i]] = 1e6f + (float)i;
    return 0;
}

// https://github.com/google/tunix/issues/1651
static int ids_that_stand_for_pictures_are_never_drawn(void)
{
    g3_error err;
    ck c;
    box b;
    push p = {{300, 301, 302}, 3};
    g3_sampler q = G3__ZERO;
    CHECK(ck_load(&c, tiny_path("t2-bf16-mm-old")) && ck_config(&c, "262144", "300") && ck_config(&c, "255999", "301") && ck_config(&c, "256000", "302"));
    ck_build(&c, &b);
    g3_model *m = tiny_open(&b, 1);
    g3_session *s = m ? prompted(m, 9, 64) : NULL;
    CHECK(s);
    q.logits_fn = push_up;
    q.user = &p;
    for (int i = 0; i < 20; i++) {
        q.greedy = i == 0;
        q.seed = (uint64_t)i + 1;
        int id = g3_sample(s, &q, &err);
        CHECK(id >= 0 && (id < 300 || id > 302));
    }
    g3_session_close(s);
    g3_model_close(m);
    box_free(&b);
    ck_free(&c);
    return 0;
}

static int logprobs_are_those_of_the_whole_distribution(void)
{
    g3_error err;
    g3_generate_desc d = G3__ZERO;
    g3_token t;
    g3_session *s = prompted(model, 20, 128);
    d.sampler.seed = 3;
    d.sampler.temperature = 0.7f;                        // and filters: none of them counts
    d.sampler.top_k = 20;
    d.sampler.logprobs = true;
    d.ignore_stop_ids = true;
    for (int i = 0; i < 30; i++) {
        const float *z = g3_logits(s, &err);
        double sum = 0, most = (double)z[argmax(z, TINY_VOCAB)];
        for (int k = 0; k < TINY_VOCAB; k++) sum += exp((double)z[k] - most);
        double lse = most + log(sum), row[TINY_VOCAB];
        for (int k = 0; k < TINY_VOCAB; k++) row[k] = (double)z[k] - lse;
        d.sampler.greedy = i % 2 == 0;
        CHECK(g3_next(s, &d, &t, &err) == 1 && fabs((double)t.logprob - row[t.id]) < 1e-5);
    }
    g3_session_close(s);
    return 0;
}

typedef struct two { int a, b; float za, zb; } two;

static int only_two(void *user, float *z, int vocab)
{
    two *t = (two *)user;
    for (int i = 0; i < vocab; i++) z[i] = -1e4f;
    z[t->a] = t->za;
    z[t->b] = t->zb;
    return 0;
}

static int the_repeat_penalty_looks_at_all_that_is_held(void)
{
    g3_error err;
    g3_session *s = prompted(model, 12, 128);
    two t = {ids[4], 40, 2.0f, 1.5f};                    // ids[4] stands in the prompt, 40 does not
    g3_sampler p = G3__ZERO;
    for (int i = 0; i < 12; i++) CHECK(ids[i] != 40 && (i == 4 || ids[i] != ids[4]));
    p.top_k = 1;
    p.seed = 1;
    p.logits_fn = only_two;
    p.user = &t;
    CHECK(g3_sample(s, &p, &err) == ids[4]);
    p.repeat_penalty = 2;                                // 2 / 2 < 1.5
    CHECK(g3_sample(s, &p, &err) == 40);
    t.za = -1;                                           // -1 * 2 < -1.5: a penalty never raises
    t.zb = -1.5f;
    CHECK(g3_sample(s, &p, &err) == 40);
    t.za = 3.5f;                                         // 3.5 / 2 > 1.5, however often it stands there
    t.zb = 1.5f;
    CHECK(g3_add_tokens(s, &ids[4], 1, &err) == G3_OK && g3_add_tokens(s, &ids[4], 1, &err) == G3_OK && g3_sample(s, &p, &err) == ids[4]);
    heard h = G3__ZERO;                                  // what the answer itself has said counts, too: 40, then it is penalised
    g3_generate_desc d = ask(&h, 2, false);
    d.sampler = p;
    t.za = 2;
    CHECK(g3_generate(s, &d, &err) == 2 && h.id[0] == 40 && h.id[1] == ids[4]);
    p.greedy = true;                                     // greedy ignores the rest
    CHECK(g3_sample(s, &p, &err) == ids[4]);
    g3_session_close(s);
    return 0;
}

static int a_checkpoint_may_ask_for_greedy(void)
{
    g3_error err;
    box b;
    CHECK(tiny_box(&b, "t1-f32-text"));
    box_text(&b, "generation_config.json", "{\"do_sample\": false}");
    g3_model *m = tiny_open(&b, 1);
    g3_session *s = prompted(m, 20, 64);
    g3_sampler p = G3__ZERO;
    p.seed = 99;
    CHECK(g3_sample(s, NULL, &err) == argmax(g3_logits(s, &err), TINY_VOCAB) && g3_sample(s, &p, &err) == argmax(g3_logits(s, &err), TINY_VOCAB));
    g3_session_close(s);
    g3_model_close(m);
    box_free(&b);
    return 0;
}

// ---- ends

typedef struct stop_case { const char *config, *generation; int more[3]; } stop_case;   // more: stop ids beside 1 and 106

// https://github.com/mlc-ai/mlc-llm/pull/3191 https://github.com/Blaizzy/mlx-vlm/issues/244 https://github.com/Blaizzy/mlx-vlm/pull/2112
// https://github.com/google/tunix/issues/842 https://github.com/apple/coreai-models/issues/25
static int stop_ids_are_1_and_106_and_those_of_the_files_and_never_107(void)
{
    static const stop_case cases[] = {
        {"\"eos_token_id\": 1", NULL, {-1, -1, -1}},
        {"\"eos_token_id\": [1, 106]", NULL, {-1, -1, -1}},
        {"\"no_eos\": 1", NULL, {-1, -1, -1}},
        {"\"eos_token_id\": 150", NULL, {150, -1, -1}},
        {"\"eos_token_id\": [160, 150]", "{\"eos_token_id\": 170}", {150, 160, 170}},
        {"\"eos_token_id\": 106", "{\"eos_token_id\": [1, 170, 171]}", {170, 171, -1}},
    };
    static const int tried[] = {1, 106, 107, 108, 150, 160, 170, 171, 0, 2, 105};
    for (int i = 0; i < G3__COUNT(cases); i++) {
        g3_error err;
        ck c;
        box b;
        CHECK(ck_load(&c, tiny_path("t1-f32-text")) && ck_config(&c, "\"eos_token_id\": 1", cases[i].config));
        ck_build(&c, &b);
        tiny_tokenizer(&b, TINY_VOCAB, NULL);
        box_text(&b, "tokenizer_config.json", "{\"eos_token\": \"<bos>\", \"eos_token_id\": 107}");
        if (cases[i].generation) box_text(&b, "generation_config.json", cases[i].generation);
        g3_model *m = tiny_open(&b, 1);
        CHECK(m);
        for (int k = 0; k < G3__COUNT(tried); k++)
            for (int ignore = 0; ignore < 2; ignore++) {
                heard h;
                script say;
                int want[4] = {CH('a'), CH('b'), tried[k], CH('c')};
                bool stop = tried[k] == 1 || tried[k] == 106;
                for (int j = 0; j < 3; j++) stop = stop || cases[i].more[j] == tried[k];
                g3_session *s = prompted(m, 5, 64);
                g3_generate_desc d = told(&h, &say, want, 4);
                d.ignore_stop_ids = ignore;
                int made = g3_generate(s, &d, &err);
                if (stop && !ignore) CHECK(made == 2 && g3_session_finish(s) == G3_FINISH_STOP && holds(s, 5, want, 3) && !strcmp(h.text, "ab") && h.n == 2 && !h.at_end);
                else CHECK(made == 4 && g3_session_finish(s) == G3_FINISH_LENGTH && holds(s, 5, want, 4) && h.n == 4 && h.id[2] == tried[k]);
                g3_session_close(s);
            }
        g3_model_close(m);
        box_free(&b);
        ck_free(&c);
    }
    return 0;
}

static int max_tokens_ends_an_answer_and_the_next_one_goes_on(void)
{
    g3_error err;
    heard h = G3__ZERO, all = G3__ZERO;
    g3_session *s = prompted(model, 10, 128), *t = prompted(model, 10, 128);
    g3_generate_desc d = ask(&h, 0, true), e = ask(&all, 45, true);
    d.ignore_stop_ids = e.ignore_stop_ids = true;
    for (int n = 1; n <= 9; n++) { d.max_tokens = n; CHECK(g3_generate(s, &d, &err) == n && g3_session_finish(s) == G3_FINISH_LENGTH); }
    CHECK(g3_generate(t, &e, &err) == 45 && h.n == 45 && memcmp(h.id, all.id, 45 * sizeof(int)) == 0);
    d.max_tokens = -1;
    CHECK(g3_generate(s, &d, &err) == G3_ERR_ARGUMENT && strstr(err.text, "max_tokens") && holds(s, 10, h.id, 45));
    d.max_tokens = 0;                                    // until the context is full
    CHECK(g3_generate(s, &d, &err) == 128 - 55 && g3_session_finish(s) == G3_FINISH_CONTEXT);
    g3_session_close(s);
    g3_session_close(t);
    return 0;
}

static int there_must_be_something_to_continue(void)
{
    g3_error err;
    g3_token t;
    g3_session *s = tiny_session(model, 32, 8);
    CHECK(g3_generate(s, NULL, &err) == G3_ERR_ARGUMENT && err.text[0] && g3_next(s, NULL, &t, &err) == G3_ERR_ARGUMENT && g3_sample(s, NULL, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_session_tokens(s, NULL, 0) == 0 && g3_session_finish(s) == G3_FINISH_NONE);
    g3_session_close(s);
    return 0;
}

static int the_callback_may_stop_at_every_token(void)
{
    g3_error err;
    heard all = G3__ZERO;
    g3_session *s = prompted(model, 10, 128);
    g3_generate_desc d = ask(&all, 25, false);
    d.ignore_stop_ids = true;
    CHECK(g3_generate(s, &d, &err) == 25);
    g3_session_close(s);
    for (int k = 1; k <= 25; k++) {
        heard h = G3__ZERO, rest = G3__ZERO;
        s = prompted(model, 10, 128);
        d = ask(&h, 25, false);
        d.ignore_stop_ids = true;
        h.stop_after = k;
        CHECK(g3_generate(s, &d, &err) == k && err.code == G3_OK && g3_session_finish(s) == G3_FINISH_CALLBACK && h.n == k && !h.at_end && holds(s, 10, all.id, k));
        CHECK(g3_next(s, &d, NULL, &err) == 0);          // that answer is over
        d.user = &rest;
        d.max_tokens = 25 - k;
        if (k < 25) CHECK(g3_generate(s, &d, &err) == 25 - k && holds(s, 10, all.id, 25));
        g3_session_close(s);
    }
    return 0;
}

static int cancelling_from_the_callback_keeps_what_was_made(void)
{
    for (int k = 1; k <= 12; k++) {
        g3_error err;
        heard h = G3__ZERO;
        g3_session *s = prompted(model, 10, 128);
        g3_generate_desc d = ask(&h, 13, true);
        d.ignore_stop_ids = true;
        h.cancel_after = k;
        h.s = s;
        CHECK(g3_generate(s, &d, &err) == k && err.code == G3_OK && g3_session_finish(s) == G3_FINISH_CANCELLED && h.n == k && holds(s, 10, h.id, k));
        h.cancel_after = 0;
        CHECK(g3_generate(s, &d, &err) == 13 && g3_session_finish(s) == G3_FINISH_LENGTH);      // the next call is not cancelled
        g3_session_close(s);
    }
    return 0;
}

static int cancelling_with_nothing_running_does_nothing(void)
{
    g3_error err;
    heard h = G3__ZERO;
    g3_token t;
    g3_session *s = tiny_session(model, 128, 16);
    g3_generate_desc d = ask(&h, 5, true);
    d.ignore_stop_ids = true;
    g3_session_cancel(s);
    CHECK(g3_add_tokens(s, ids, 10, &err) == G3_OK);
    g3_session_cancel(s);
    CHECK(g3_logits(s, &err));
    g3_session_cancel(s);
    CHECK(g3_generate(s, &d, &err) == 5);
    for (int i = 0; i < 5; i++) { g3_session_cancel(s); CHECK(g3_next(s, &d, &t, &err) == (i == 0 ? 0 : 0)); }
    CHECK(g3_add_tokens(s, ids, 1, &err) == G3_OK);
    for (int i = 0; i < 5; i++) { g3_session_cancel(s); CHECK(g3_next(s, &d, &t, &err) == 1); }
    g3_session_cancel(s);
    CHECK(g3_next(s, &d, &t, &err) == 0 && g3_session_finish(s) == G3_FINISH_LENGTH);
    g3_session_close(s);
    return 0;
}

typedef struct watch { g3_session *s; int calls, cancel_at, stop_at; uint64_t last, total; bool bad; } watch;

static int watch_prompt(void *user, const char *stage, uint64_t done, uint64_t total)
{
    watch *w = (watch *)user;
    w->calls++;
    w->bad = w->bad || strcmp(stage, "prompt") || done <= w->last || done > total;
    w->last = done;
    w->total = total;
    if (w->calls == w->cancel_at) g3_session_cancel(w->s);
    return w->calls == w->stop_at;
}

static int a_prompt_can_be_stopped_between_steps_and_keeps_what_went_through(void)
{
    for (int how = 0; how < 2; how++)
        for (int k = 1; k <= 5; k++) {
            g3_error err;
            watch w = G3__ZERO;
            g3_session_desc d = G3__ZERO;
            d.context = 128; d.batch = 8; d.kv = G3_KV_F32;
            d.progress.progress_fn = watch_prompt; d.progress.user = &w;
            w.s = g3_session_open(model, &d, &err);
            if (how) w.cancel_at = k;
            else w.stop_at = k;
            g3_result r = g3_add_tokens(w.s, ids, 40, &err);
            CHECK(!w.bad && w.total == 40 && w.calls == k && w.last == (uint64_t)(8 * k));
            if (k < 5 || !how) CHECK(r == G3_ERR_STOPPED && err.code == r && err.text[0]);
            else CHECK(r == G3_OK);                      // cancelled after the last step: nothing was left to do
            CHECK(holds(w.s, 0, ids, 8 * k) && g3_logits(w.s, &err));
            w.cancel_at = w.stop_at = 0;
            w.last = 0;
            if (k < 5) CHECK(g3_add_tokens(w.s, ids + 8 * k, 40 - 8 * k, &err) == G3_OK);
            g3_session *f = prompted(model, 40, 128);
            CHECK(memcmp(g3_logits(f, &err), g3_logits(w.s, &err), TINY_VOCAB * 4) == 0);
            g3_session_close(f);
            g3_session_close(w.s);
        }
    return 0;
}

// ---- hooks

typedef struct poison { int id, at, calls; float value; } poison;

static int poison_at(void *user, float *z, int vocab)
{
    poison *p = (poison *)user;
    if (p->calls++ == p->at && p->id < vocab) z[p->id] = p->value;
    return 0;
}

// https://github.com/ggml-org/llama.cpp/issues/12433 https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/520
static int logits_that_are_no_numbers_are_an_error_and_the_session_goes_on(void)
{
    static const int where[] = {0, 1, 255, 256, 511};
    static const float what[] = {NAN, INFINITY};
    for (int i = 0; i < 10; i++)
        for (int at = 0; at < 4; at += 3) {
            g3_error err;
            heard h = G3__ZERO, ok = G3__ZERO;
            poison p = {where[i / 2], at, 0, what[i % 2]};
            char number[24];
            g3_session *s = prompted(model, 10, 64), *t = prompted(model, 10, 64);
            g3_generate_desc d = ask(&h, 8, i % 3 == 0), e = ask(&ok, 8, i % 3 == 0);
            d.ignore_stop_ids = e.ignore_stop_ids = true;
            d.sampler.logits_fn = poison_at;
            d.sampler.user = &p;
            snprintf(number, sizeof number, "%d", where[i / 2]);
            CHECK(g3_generate(s, &d, &err) == G3_ERR_NUMERIC && err.code == G3_ERR_NUMERIC && strstr(err.text, number) && h.n == at && holds(s, 10, h.id, at));
            d.sampler.logits_fn = NULL;                  // the session is as it was before that token
            d.max_tokens = 8 - at;
            CHECK(g3_generate(s, &d, &err) == 8 - at && g3_generate(t, &e, &err) == 8 && holds(s, 10, ok.id, 8));
            g3_session_close(s);
            g3_session_close(t);
        }
    return 0;
}

typedef struct weigh { float add; int stop_at, calls, vocab; } weigh;

static int weigh_nine(void *user, float *z, int vocab)
{
    weigh *w = (weigh *)user;
    z[9] += w->add;
    w->vocab = vocab;
    return ++w->calls == w->stop_at;
}

static int what_a_hook_writes_counts_for_one_draw_only(void)
{
    g3_error err;
    float z[TINY_VOCAB];
    weigh w = {0.5f, 0, 0, 0};
    g3_sampler p = G3__ZERO;
    g3_session *s = prompted(model, 10, 64);
    memcpy(z, g3_logits(s, &err), sizeof z);
    p.logits_fn = weigh_nine;
    p.user = &w;
    p.seed = 5;
    int id = g3_sample(s, &p, &err);
    for (int i = 0; i < 8; i++) CHECK(g3_sample(s, &p, &err) == id);
    CHECK(w.calls == 9 && w.vocab == TINY_VOCAB && memcmp(z, g3_logits(s, &err), sizeof z) == 0);
    w.add = 1e4f;                                        // and count they do
    CHECK(g3_sample(s, &p, &err) == 9);
    w.add = -1e4f;
    z[9] = -1e4f;
    p.greedy = true;
    CHECK(g3_sample(s, &p, &err) == argmax(z, TINY_VOCAB));
    g3_session_close(s);
    return 0;
}

static int masking_everything_is_an_error(void)
{
    g3_error err;
    static const int nobody[] = {TINY_VOCAB + 5};
    script none = {nobody, 1, 0};                        // an id that is not there: all are masked
    g3_sampler p = G3__ZERO;
    g3_session *s = prompted(model, 10, 64);
    p.logits_fn = follow;
    p.user = &none;
    CHECK(g3_sample(s, &p, &err) == G3_ERR_NUMERIC && err.text[0] && g3_sample(s, &p, &err) >= 0);
    g3_session_close(s);
    return 0;
}

static int the_logits_hook_may_stop_at_every_token(void)
{
    for (int k = 1; k <= 6; k++) {
        g3_error err;
        heard h = G3__ZERO;
        weigh w = {0, k, 0, 0};
        g3_session *s = prompted(model, 10, 64);
        g3_generate_desc d = ask(&h, 5, true);
        d.ignore_stop_ids = true;
        d.sampler.logits_fn = weigh_nine;
        d.sampler.user = &w;
        int made = g3_generate(s, &d, &err);
        if (k == 1) CHECK(made == G3_ERR_STOPPED && err.code == G3_ERR_STOPPED && err.text[0] && h.n == 0);
        else if (k < 6) CHECK(made == k - 1 && err.code == G3_OK && g3_session_finish(s) == G3_FINISH_CALLBACK);
        else CHECK(made == 5 && g3_session_finish(s) == G3_FINISH_LENGTH);
        CHECK(holds(s, 10, h.id, k - 1));
        w.stop_at = 0;
        CHECK(g3_generate(s, &d, &err) == 5);
        g3_session_close(s);
    }
    return 0;
}

typedef struct brake { int after, seen; } brake;

static int brake_at(void *user, const g3_view *v)
{
    brake *b = (brake *)user;
    (void)v;
    return b->after && ++b->seen == b->after;
}

// A token that was given out is held, also when the step that takes it into the model does not get through.
static int a_probe_that_stops_loses_no_token_that_was_given_out(void)
{
    for (int after = 1; after <= 24; after++) {          // four layers a step
        g3_error err;
        heard h = G3__ZERO, all = G3__ZERO;
        brake b = {0, 0};
        g3_session_desc d = G3__ZERO;
        d.context = 64; d.batch = 16; d.kv = G3_KV_F32;
        d.probe.probe_fn = brake_at; d.probe.user = &b; d.probe.points = G3_POINT_LAYER;
        g3_session *s = g3_session_open(model, &d, &err), *t = prompted(model, 10, 64);
        g3_generate_desc g = ask(&h, 6, true), e = ask(&all, 6, true);
        g.ignore_stop_ids = e.ignore_stop_ids = true;
        CHECK(s && g3_add_tokens(s, ids, 10, &err) == G3_OK && g3_generate(t, &e, &err) == 6);
        b.after = after;
        int made = g3_generate(s, &g, &err);
        CHECK(made == h.n && h.n == (after > 20 ? 6 : (after + 3) / 4) && g3_session_finish(s) == (after > 20 ? G3_FINISH_LENGTH : G3_FINISH_CALLBACK));
        CHECK(holds(s, 10, all.id, h.n));
        b.after = 0;
        g.max_tokens = 6 - h.n;
        if (g.max_tokens) CHECK(g3_generate(s, &g, &err) == g.max_tokens);
        CHECK(holds(s, 10, all.id, 6) && memcmp(g3_logits(s, &err), g3_logits(t, &err), TINY_VOCAB * 4) == 0);
        g3_session_close(s);
        g3_session_close(t);
    }
    return 0;
}

// ---- text

typedef struct stop_text { const char *say, *stop[2], *shown, *rest; int made; } stop_text;

// shown: all text there is; rest: what of it came in the last call, with id -1; made: tokens counted.
static int stop_strings_are_met_across_tokens_and_not_shown(void)
{
    static const stop_text cases[] = {
        {"abSTOPcd", {"STOP", NULL}, "ab", "", 6},
        {"abSTOPcd", {"STOPc", NULL}, "ab", "", 7},
        {"abSTOcd", {"STOP", NULL}, "abSTOcd", "", 7},
        {"abSTO", {"STOP", NULL}, "abSTO", "STO", 5},
        {"aaab", {"aab", NULL}, "a", "", 4},
        {"aaaa", {"aab", NULL}, "aaaa", "aa", 4},
        {"xSTOSTOPy", {"STOP", "nothing"}, "xSTO", "", 8},
        {"one two", {"o t", "two"}, "one ", "", 7},
        {"one two", {"e t", "two"}, "on", "", 5},
        {"x", {"x", NULL}, "", "", 1},
        {"", {"x", NULL}, "", "", 0},
        {"abcabd", {"abd", "bca"}, "a", "", 4},
    };
    for (int i = 0; i < G3__COUNT(cases); i++) {
        g3_error err;
        heard h;
        script say;
        int want[16], n = (int)strlen(cases[i].say);
        for (int k = 0; k < n; k++) want[k] = CH(cases[i].say[k]);
        want[n] = EOT;
        g3_session *s = prompted(model, 4, 64);
        g3_generate_desc d = told(&h, &say, want, n + 1);
        d.stops = cases[i].stop;
        d.n_stops = cases[i].stop[1] ? 2 : 1;
        int made = g3_generate(s, &d, &err);
        CHECK(made == cases[i].made && g3_session_finish(s) == G3_FINISH_STOP);
        CHECK(!strcmp(h.text, cases[i].shown) && h.rest == (int)strlen(cases[i].rest) && h.at_end == (h.rest > 0) && h.n == cases[i].made);
        CHECK(holds(s, 4, want, cases[i].made < n || strlen(cases[i].shown) < (size_t)n ? cases[i].made : n + 1));
        g3_session_close(s);
    }
    return 0;
}

static int held_back_text_comes_at_every_kind_of_end_but_the_callbacks(void)
{
    static const int want[4] = {CH('a'), CH('S'), CH('T'), CH('O')};
    const char *stops[] = {"STOP"};
    for (int end = 0; end < 4; end++) {
        g3_error err;
        heard h;
        script say;
        g3_session *s = prompted(model, 4, end == 0 ? 8 : 64);
        g3_generate_desc d = told(&h, &say, want, 4);
        d.stops = stops;
        d.n_stops = 1;
        if (end == 0) d.max_tokens = 0;                  // the context is full
        if (end == 2) { h.cancel_after = 4; h.s = s; d.max_tokens = 9; }
        if (end == 3) h.stop_after = 4;
        CHECK(g3_generate(s, &d, &err) == 4);
        static const g3_finish why[] = {G3_FINISH_CONTEXT, G3_FINISH_LENGTH, G3_FINISH_CANCELLED, G3_FINISH_CALLBACK};
        CHECK(g3_session_finish(s) == why[end]);
        if (end < 3) CHECK(!strcmp(h.text, "aSTO") && h.at_end == 1 && h.rest == 3);
        else CHECK(!strcmp(h.text, "a") && h.at_end == 0);
        g3_session_close(s);
    }
    return 0;
}

static int bad_stop_strings_are_refused(void)
{
    static const char *const bad[][2] = {{"", "x"}, {"x", ""}, {NULL, "x"}, {"\xC3", "x"}};
    g3_error err;
    heard h = G3__ZERO;
    g3_session *s = prompted(model, 4, 64);
    g3_generate_desc d = ask(&h, 3, true);
    d.n_stops = 2;
    for (int i = 0; i < 4; i++) { d.stops = bad[i]; CHECK(g3_generate(s, &d, &err) == G3_ERR_ARGUMENT && strstr(err.text, "stop")); }
    d.stops = NULL;
    CHECK(g3_generate(s, &d, &err) == G3_ERR_ARGUMENT);
    d.n_stops = -1;
    CHECK(g3_generate(s, &d, &err) == G3_ERR_ARGUMENT && h.n == 0 && g3_session_tokens(s, NULL, 0) == 4);
    g3_session_close(s);
    return 0;
}

typedef struct stream_case { int say[4], n, size[4]; const char *text; int rest; } stream_case;

// https://github.com/cactus-compute/cactus/issues/684 https://github.com/jundot/omlx/issues/1649 https://github.com/Blaizzy/mlx-vlm/pull/1076
// https://github.com/exo-explore/exo/pull/1691 https://github.com/antonellof/ferrox/issues/124 https://github.com/nobodywho-ooo/nobodywho/pull/101
static int characters_come_whole(void)
{
    static const stream_case cases[] = {
        {{BYTES + 0xEA, BYTES + 0xB9, BYTES + 0xB0}, 3, {0, 0, 3}, "\xEA\xB9\xB0", 0},
        {{BYTES + 0xEA, BYTES + 0xB9}, 2, {0, 0}, "\xEF\xBF\xBD", 3},
        {{BYTES + 0xEA, MODEL}, 2, {0, 8}, "\xEF\xBF\xBDmodel", 0},
        {{BYTES + 0xFF, CH('a')}, 2, {3, 1}, "\xEF\xBF\xBD" "a", 0},
        {{BYTES + 0xC3, HANGUL, BYTES + 0xA9}, 3, {0, 6, 3}, "\xEF\xBF\xBD\xEA\xB9\xB0\xEF\xBF\xBD", 0},
        {{FACE, BYTES + 0xF0, BYTES + 0x9F, BYTES + 0x98}, 4, {4, 0, 0, 0}, "\xF0\x9F\x98\x80\xEF\xBF\xBD", 3},
        {{NL, CH(' '), BYTES + 0x41, E_ACUTE}, 4, {1, 1, 1, 2}, "\n A\xC3\xA9", 0},
    };
    for (int i = 0; i < G3__COUNT(cases); i++)
        for (int stops = 0; stops < 2; stops++) {
            g3_error err;
            heard h;
            script say;
            const char *never[] = {"nothing of the kind"};
            g3_session *s = prompted(model, 4, 64);
            g3_generate_desc d = told(&h, &say, cases[i].say, cases[i].n);
            d.stops = never;
            d.n_stops = stops;
            CHECK(g3_generate(s, &d, &err) == cases[i].n && !strcmp(h.text, cases[i].text) && h.rest == cases[i].rest && h.at_end == (h.rest > 0));
            for (int k = 0; k < cases[i].n; k++) CHECK(h.size[k] == cases[i].size[k]);
            g3_session_close(s);
        }
    return 0;
}

static int replace_invalid(const unsigned char *p, int n, char *out)         // Unicode's table 3-7: each maximal part of no character is one U+FFFD
{
    int size = 0;
    for (int i = 0; i < n; ) {
        int want = p[i] < 0x80 ? 1 : p[i] >= 0xC2 && p[i] < 0xE0 ? 2 : p[i] >= 0xE0 && p[i] < 0xF0 ? 3 : p[i] >= 0xF0 && p[i] < 0xF5 ? 4 : 0, have = want > 0;
        for (; have && have < want && i + have < n; have++) {
            int low = 0x80, high = 0xBF, c = p[i + have];
            if (have == 1) { low = p[i] == 0xE0 ? 0xA0 : p[i] == 0xF0 ? 0x90 : low; high = p[i] == 0xED ? 0x9F : p[i] == 0xF4 ? 0x8F : high; }
            if (c < low || c > high) break;
        }
        if (want && have == want) memcpy(out + size, p + i, (size_t)want);
        else memcpy(out + size, "\xEF\xBF\xBD", 3);
        size += want && have == want ? want : 3;
        i += have ? have : 1;
    }
    return size;
}

static int streams_of_random_ids_are_the_whole_text(void)
{
    unsigned seed = 17;
    g3_session *s = prompted(model, 4, 64);
    for (int round = 0; round < 1000; round++) {
        g3_error err;
        heard h;
        script say;
        int want[20];
        char bytes[512], text[1600];
        for (int k = 0; k < 20; k++) {
            seed = seed * 1664525u + 1013904223u;
            want[k] = (int)(seed >> 9) % (seed >> 28 < 12 ? 256 : TINY_VOCAB - BYTES) + BYTES;
            if (seed >> 28 < 3) want[k] = BYTES + 0x80 + want[k] % 128;
        }
        int n = g3_detokenize(model, want, 20, bytes, 512), size = replace_invalid((unsigned char *)bytes, n, text);
        g3_generate_desc d = told(&h, &say, want, 20);
        CHECK(g3_session_rewind(s, 3, &err) == 3 && g3_add_tokens(s, ids + 3, 1, &err) == G3_OK && g3_generate(s, &d, &err) == 20);
        CHECK(h.bytes == size && memcmp(h.text, text, (size_t)size) == 0);
    }
    g3_session_close(s);
    return 0;
}

static int pulling_gives_what_the_callback_gets(void)
{
    const char *stops[] = {"e", "w47", "ab"};
    int stopped = 0;
    for (int round = 0; round < 60; round++) {
        g3_error err;
        heard h = G3__ZERO, p = G3__ZERO;
        g3_token t;
        int more;
        g3_session *a = prompted(model, 4 + round, 128), *b = prompted(model, 4 + round, 128);
        g3_generate_desc d = ask(&h, round % 2 ? 40 : 0, false), e;
        d.sampler.seed = (uint64_t)round + 1;
        d.sampler.top_k = -1;
        d.sampler.top_p = -1;
        d.sampler.temperature = 3;
        d.sampler.logprobs = true;
        d.stops = stops;
        d.n_stops = round % 4;
        if (d.n_stops == 3) d.ignore_stop_ids = true;
        e = d;
        int made = g3_generate(a, &d, &err);
        CHECK(made >= 0);
        while ((more = g3_next(b, &e, &t, &err)) == 1) { CHECK(g3_session_finish(b) == G3_FINISH_NONE || g3_session_finish(b) == G3_FINISH_STOP); hear(&p, &t); }
        CHECK(more == 0 && t.id == -1);
        if (t.size) hear(&p, &t);
        CHECK(h.n == made && p.n == made && memcmp(h.id, p.id, (size_t)made * sizeof(int)) == 0 && memcmp(h.size, p.size, (size_t)made * sizeof(int)) == 0);
        CHECK(memcmp(h.logprob, p.logprob, (size_t)made * sizeof(float)) == 0 && h.bytes == p.bytes && memcmp(h.text, p.text, (size_t)h.bytes) == 0 && h.rest == p.rest && h.at_end == p.at_end);
        CHECK(g3_session_finish(a) == g3_session_finish(b) && g3_session_tokens(a, NULL, 0) == g3_session_tokens(b, NULL, 0));
        CHECK(g3_next(b, &e, &t, &err) == 0 && t.id == -1 && t.size == 0 && g3_next(b, &e, NULL, &err) == 0);       // over is over
        stopped += g3_session_finish(a) == G3_FINISH_STOP;
        g3_session_close(a);
        g3_session_close(b);
    }
    CHECK(stopped > 10 && stopped < 60);
    return 0;
}

// What a refused call brought along must not leak into the answer that is being pulled.
static int a_refused_description_leaves_a_running_answer_alone(void)
{
    const char *bad_stops[] = {"x", ""};
    for (int what = 0; what < 4; what++) {
        g3_error err;
        heard h = G3__ZERO;
        g3_token t;
        g3_session *s = prompted(model, 10, 64), *f = prompted(model, 10, 64);
        g3_generate_desc d = ask(&h, 20, false), bad = G3__ZERO;
        d.ignore_stop_ids = true;
        d.sampler.temperature = 2;
        CHECK(g3_generate(f, &d, &err) == 20);
        bad.sampler.seed = 1234;
        bad.sampler.top_k = 1;
        if (what == 0) bad.sampler.temperature = -1;
        if (what == 1) bad.sampler.top_p = 2;
        if (what == 2) { bad.stops = bad_stops; bad.n_stops = 2; }
        if (what == 3) bad.max_tokens = -1;
        for (int i = 0; i < 20; i++) {
            if (i % 4 == 1) CHECK(g3_generate(s, &bad, &err) == G3_ERR_ARGUMENT && g3_session_tokens(s, NULL, 0) == 10 + i);
            CHECK(g3_next(s, &d, &t, &err) == 1 && t.id == h.id[i]);
        }
        g3_session_close(s);
        g3_session_close(f);
    }
    return 0;
}

static int a_token_too_long_to_show_is_an_error(void)
{
    g3_error err;
    heard h;
    script say;
    box b;
    static const int want[2] = {CH('a'), 130};
    CHECK(tiny_box(&b, "t1-f32-text"));
    box_file *f = box_find(&b, "tokenizer.json");
    char *text = (char *)calloc(1, f->size + 6000), *at;
    memcpy(text, f->data, f->size);
    at = strstr(text, "w130\"");
    CHECK(at);
    memmove(at + 5000, at, strlen(at) + 1);
    memset(at, 'w', 5000);
    box_text(&b, "tokenizer.json", text);
    free(text);
    g3_model *m = tiny_open(&b, 1);
    g3_session *s = m ? prompted(m, 10, 64) : NULL;
    CHECK(s);
    g3_generate_desc d = told(&h, &say, want, 2);
    CHECK(g3_generate(s, &d, &err) == G3_ERR_FORMAT && strstr(err.text, "130") && h.n == 1);
    d = told(&h, &say, want, 1);                         // and the session goes on
    CHECK(g3_generate(s, &d, &err) == 1 && !strcmp(h.text, "a"));
    g3_session_close(s);
    g3_model_close(m);
    box_free(&b);
    return 0;
}

static int a_model_without_a_tokenizer_answers_in_ids(void)
{
    g3_error err;
    heard h = G3__ZERO;
    const char *stops[] = {"x"};
    g3_model *m = open_model(tiny_path("t1-f32-text"), 1, &err);
    g3_session *s = prompted(m, 10, 64);
    g3_generate_desc d = ask(&h, 10, true);
    d.ignore_stop_ids = true;
    CHECK(s && g3_generate(s, &d, &err) == 10 && h.n == 10 && h.bytes == 0 && h.at_end == 0);
    d.stops = stops;
    d.n_stops = 1;
    CHECK(g3_generate(s, &d, &err) == G3_ERR_MODEL && strstr(err.text, "tokenizer.json") && g3_session_tokens(s, NULL, 0) == 20);
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}

int main(void)
{
    tiny_quiet();
    if (!tiny_box(&files, "t1-f32-text") || !(model = tiny_open(&files, 1))) { fprintf(stderr, "no fixtures\n"); return 1; }
    some_ids(ids, G3__COUNT(ids), 11);
    RUN(greedy_is_the_argmax_of_the_logits_step_by_step);
    RUN(seeds_decide_draws_and_nothing_else_does);
    RUN(a_draw_depends_on_seed_and_position_alone);
    RUN(rows_without_a_token_are_never_drawn);
    RUN(ids_that_stand_for_pictures_are_never_drawn);
    RUN(logprobs_are_those_of_the_whole_distribution);
    RUN(the_repeat_penalty_looks_at_all_that_is_held);
    RUN(a_checkpoint_may_ask_for_greedy);
    RUN(stop_ids_are_1_and_106_and_those_of_the_files_and_never_107);
    RUN(max_tokens_ends_an_answer_and_the_next_one_goes_on);
    RUN(there_must_be_something_to_continue);
    RUN(the_callback_may_stop_at_every_token);
    RUN(cancelling_from_the_callback_keeps_what_was_made);
    RUN(cancelling_with_nothing_running_does_nothing);
    RUN(a_prompt_can_be_stopped_between_steps_and_keeps_what_went_through);
    RUN(logits_that_are_no_numbers_are_an_error_and_the_session_goes_on);
    RUN(what_a_hook_writes_counts_for_one_draw_only);
    RUN(masking_everything_is_an_error);
    RUN(the_logits_hook_may_stop_at_every_token);
    RUN(a_probe_that_stops_loses_no_token_that_was_given_out);
    RUN(stop_strings_are_met_across_tokens_and_not_shown);
    RUN(held_back_text_comes_at_every_kind_of_end_but_the_callbacks);
    RUN(bad_stop_strings_are_refused);
    RUN(characters_come_whole);
    RUN(streams_of_random_ids_are_the_whole_text);
    RUN(pulling_gives_what_the_callback_gets);
    RUN(a_refused_description_leaves_a_running_answer_alone);
    RUN(a_token_too_long_to_show_is_an_error);
    RUN(a_model_without_a_tokenizer_answers_in_ids);
    g3_model_close(model);
    box_free(&files);
    return test_done();
}
