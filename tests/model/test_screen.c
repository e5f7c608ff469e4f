// A model with a screened head writes what it writes without: 15,000 tokens, greedy and drawn; and its plan knows the copy.
#include "tiny.h"

enum { RUNS = 30, LENGTH = 500, VOCAB = 512 };

static g3_model *opened(bool screened, g3_plan *plan)
{
    g3_error err;
    g3_model_desc d = G3__ZERO;
    d.path = tiny_path("t4-bf16-defaults");
    d.threads = 1;
    d.screened_head = screened;
    if (g3_plan_memory(&d, plan, &err) != G3_OK) fprintf(stderr, "    %s\n", err.text);
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "    %s\n", err.text);
    return m;
}

static int every_token_is_the_same(void)
{
    g3_error err;
    g3_plan plan;
    g3_model *m[2] = { opened(false, &plan), opened(true, &plan) };
    g3_session *s[2];
    g3_session_desc sd = G3__ZERO;
    sd.context = LENGTH + 8;
    sd.batch = 8;
    CHECK(m[0] && m[1]);
    for (int i = 0; i < 2; i++) CHECK((s[i] = g3_session_open(m[i], &sd, &err)) != NULL);
    if (!m[1]->screen.rows) SKIP("there are no loops for a screened head on this machine");
    for (int run = 0; run < RUNS; run++) {
        g3_sampler p = G3__ZERO;
        p.greedy = run % 3 == 0;
        p.top_k = 1 + run % 8;
        p.top_p = run % 2 ? 0.9f : -1;
        p.temperature = run % 5 ? 1.0f : 3.0f;
        p.seed = (uint64_t)run + 1;
        int id = run * 5 % VOCAB;
        for (int i = 0; i < 2; i++) CHECK(g3_session_rewind(s[i], 0, &err) == 0 && g3_add_tokens(s[i], &id, 1, &err) == G3_OK);
        for (int k = 0; k < LENGTH; k++) {
            p.repeat_penalty = k < 3 && run % 4 == 0 ? 1.3f : 0;
            const int a = g3_sample(s[0], &p, &err), b = g3_sample(s[1], &p, &err);
            CHECK(a >= 0 && a == b);
            for (int i = 0; i < 2; i++) CHECK(g3_add_tokens(s[i], &a, 1, &err) == G3_OK);
        }
        const float *whole = g3_logits(s[0], &err), *asked = g3_logits(s[1], &err);          // who asks for logits gets them all
        CHECK(whole && asked && !memcmp(whole, asked, VOCAB * sizeof *whole));
    }
    for (int i = 0; i < 2; i++) { g3_session_close(s[i]); g3_model_close(m[i]); }
    return 0;
}

static int the_plan_knows_the_copy(void)
{
    g3_plan without, with;
    g3_model *a = opened(false, &without), *b = opened(true, &with);
    CHECK(a && b);
    const uint64_t rows = (uint64_t)b->screen.rows, copy = rows * (uint64_t)b->config.dim + 8 * rows;
    CHECK(with.weights == without.weights + copy);
    CHECK(b->arena_bytes >= a->arena_bytes + copy && with.total - without.total >= copy);
    g3_model_close(a);
    g3_model_close(b);
    return 0;
}

int main(void)
{
    tiny_quiet();
    RUN(every_token_is_the_same);
    RUN(the_plan_knows_the_copy);
    return test_done();
}
