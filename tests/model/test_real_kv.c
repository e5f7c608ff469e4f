// The passage (1987 tokens) under every cache format: in float32 the reference's likelihood of every token, and how far the
// smaller formats move the mean from there.
#include "real.h"

static int ids[REAL_PASSAGE];
static double in_f32[REAL_PASSAGE];      // -log p with a float32 cache; 0: not there yet

static int the_passage_is_tokenized_as_by_the_reference(void)
{
    static int got[4096];
    g3_error err;
    size_t size;
    NEED(dense_270m);
    CHECK(passage_ids(ids) == REAL_PASSAGE);
    char *text = (char *)read_file(golden("text/passage.txt"), &size);
    g3_model_desc d = G3__ZERO;
    d.path = dense_270m;
    d.no_weights = true;
    g3_model *m = g3_model_open(&d, &err);
    CHECK(text && m);
    CHECK(g3_tokenize(m, text, size, G3_TOKENIZE_BOS, got, 4096) == REAL_PASSAGE && !memcmp(got, ids, sizeof ids));
    g3_model_close(m);
    free(text);
    return 0;
}

static int the_likelihood_of_every_token_is_the_references(void)
{
    double by_256[8], every_64th[32], mean = number(reference(), "modes.f32_scalebf.passage_nll.mean_nll");
    g3_error err;
    NEED(dense_270m);
    CHECK(passage_ids(ids) == REAL_PASSAGE && number(reference(), "modes.f32_scalebf.passage_nll.tokens_scored") == REAL_PASSAGE - 1);
    CHECK(numbers(reference(), "modes.f32_scalebf.passage_nll.mean_nll_by_256", by_256, 8) == 8);
    CHECK(numbers(reference(), "modes.f32_scalebf.passage_nll.nll_every_64th", every_64th, 32) == 32);
    g3_model *m = open_model(dense_270m, 0, &err);
    CHECK(m && passage_nll(m, G3_KV_F32, ids, REAL_PASSAGE, in_f32, &err));
    g3_model_close(m);
    double got = mean_of(in_f32, REAL_PASSAGE - 1), most = 0;
    for (int i = 0; i < 32; i++) most = G3__MAX(most, fabs(in_f32[64 * i] - every_64th[i]));
    printf("    mean nll %.6f, reference %.6f; single tokens at most %.2g away\n", got, mean, most);
    CHECK(fabs(got - mean) <= 1e-4);
    for (int i = 0; i < 8; i++) CHECK(fabs(mean_of(in_f32 + 256 * i, G3__MIN(256, REAL_PASSAGE - 1 - 256 * i)) - by_256[i]) <= 1e-4);
    CHECK(most <= 2e-3);
    return 0;
}

static int moves_by_less_than(g3_kv kv, const char *name, double bound)
{
    static double nll[REAL_PASSAGE];
    g3_error err;
    NEED(dense_270m);
    CHECK(in_f32[0] > 0);
    g3_model *m = open_model(dense_270m, 0, &err);
    CHECK(m && passage_nll(m, kv, ids, REAL_PASSAGE, nll, &err));
    g3_model_close(m);
    double base = mean_of(in_f32, REAL_PASSAGE - 1), got = mean_of(nll, REAL_PASSAGE - 1), far = 0;
    for (int i = 0; i < REAL_PASSAGE - 1; i++) far = G3__MAX(far, fabs(nll[i] - in_f32[i]));
    printf("    %s: mean nll %.6f, moved by %+.6f (bar %.3f); single tokens by at most %.3f\n", name, got, got - base, bound, far);
    CHECK(fabs(got - base) < bound);
    CHECK(far > 0);                      // another format than float32 was in use
    return 0;
}

static int a_bf16_cache_moves_it_by_less_than_2_thousandths(void) { return moves_by_less_than(G3_KV_BF16, "bf16", 0.002); }
static int an_int8_cache_moves_it_by_less_than_2_hundredths(void) { return moves_by_less_than(G3_KV_INT8, "int8", 0.02); }
static int an_fp8_cache_moves_it_by_less_than_5_hundredths(void)  { return moves_by_less_than(G3_KV_FP8, "fp8", 0.05); }

int main(void)
{
    RUN(the_passage_is_tokenized_as_by_the_reference);
    RUN(the_likelihood_of_every_token_is_the_references);
    RUN(a_bf16_cache_moves_it_by_less_than_2_thousandths);
    RUN(an_int8_cache_moves_it_by_less_than_2_hundredths);
    RUN(an_fp8_cache_moves_it_by_less_than_5_hundredths);
    return test_done();
}
