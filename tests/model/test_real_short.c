// Six tokens into the real 270M and four out of it, dense and 4-bit: short enough for the sanitizers, which run it, too.
#include "real.h"

static int goes_on(const char *dir, const int *want)
{
    int ids[16], held[32];
    g3_error err;
    g3_generate_desc d = G3__ZERO;
    int n = prompt_ids("short", ids, 16);
    CHECK(n == 6);
    g3_model *m = open_model(dir, 2, &err);
    g3_session *s = open_session(m, 64, 4, G3_KV_BF16, 1, &err);
    CHECK(s && g3_add_tokens(s, ids, n, &err) == G3_OK);
    d.sampler.greedy = true;
    d.max_tokens = 4;
    CHECK(g3_generate(s, &d, &err) == 4 && g3_session_tokens(s, held, 32) == n + 4);
    for (int i = 0; want && i < 4; i++) CHECK(held[n + i] == want[i]);
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}

static int the_dense_model_goes_on_as_the_reference(void)
{
    int want[64];
    NEED(dense_270m);
    CHECK(ints(reference(), "modes.f32_scalebf.prompts.short.greedy.ids", want, 64) == 64);
    return goes_on(dense_270m, want);
}

static int the_4_bit_model_goes_on(void)
{
    NEED(nf4_270m);
    return goes_on(nf4_270m, NULL);
}

int main(void)
{
    RUN(the_dense_model_goes_on_as_the_reference);
    RUN(the_4_bit_model_goes_on);
    free(reference().p);
    return test_done();
}
