// The real 270M with a screened head: the same tokens, out of 262,144.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "real.h"

enum { TOKENS = 150 };

static int written(const char *path, bool screened, const g3_sampler *p, int *out)
{
    g3_error err;
    g3_model_desc d = G3__ZERO;
    g3_session_desc sd = G3__ZERO;
    const int prompt[] = { 2, 818, 5279, 529, 7001, 563 };
    d.path = path;
    d.screened_head = screened;
    sd.context = 512;
    g3_model *m = g3_model_open(&d, &err);
    g3_session *s = m ? g3_session_open(m, &sd, &err) : NULL;
    CHECK(s && g3_add_tokens(s, prompt, G3__COUNT(prompt), &err) == G3_OK);
    for (int i = 0; i < TOKENS; i++) {
        out[i] = g3_sample(s, p, &err);
        CHECK(out[i] >= 0 && g3_add_tokens(s, &out[i], 1, &err) == G3_OK);
    }
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}

static int same_tokens(const g3_sampler *p)
{
    static const char *const paths[] = { dense_270m, nf4_270m };
    for (int i = 0; i < 2; i++) {
        int whole[TOKENS], screened[TOKENS], line;
        NEED(paths[i]);
        if ((line = written(paths[i], false, p, whole)) != 0 || (line = written(paths[i], true, p, screened)) != 0) return line;
        CHECK(!memcmp(whole, screened, sizeof whole));
    }
    return 0;
}

static int greedy_tokens_are_the_same(void)
{
    g3_sampler p = G3__ZERO;
    p.greedy = true;
    return same_tokens(&p);
}

static int drawn_tokens_are_the_same(void)
{
    g3_sampler p = G3__ZERO;
    p.seed = 7;
    p.repeat_penalty = 1.1f;
    return same_tokens(&p);
}

int main(void)
{
    RUN(greedy_tokens_are_the_same);
    RUN(drawn_tokens_are_the_same);
    return test_done();
}
