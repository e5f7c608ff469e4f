// The real 270M in 4 bits on the card: in precise mode it writes the same tokens as the CPU, greedily, on cards of several generations.
#include "on_card.h"
#include "../model/real.h"

enum { PROMPT = 100, MADE = 32, FEW = 4 };

static g3_model *open_at(g3_backend backend, g3_error *err)
{
    g3_model_desc d;
    memset(&d, 0, sizeof d);
    d.path = "build/gemma-3-270m-nf4";
    d.precise = true;
    d.threads = 2;
    d.backend = backend;
    if (backend == G3_BACKEND_CUDA) on_card(&d);
    return g3_model_open(&d, err);
}

// The ids that follow the prompt; 0: failed.
static int write_on(g3_model *m, int n, int *made)
{
    g3_error err;
    g3_session_desc d;
    g3_sampler greedy;
    int ids[PROMPT], count = 0;
    memset(&d, 0, sizeof d);
    memset(&greedy, 0, sizeof greedy);
    d.context = 256;
    greedy.greedy = true;
    static const char text[] = "The history of the lighthouse is the history of the sea itself. Long before there were maps, people who lived on the coast lit "
        "fires on the hills so that those who had gone out to fish would find their way home. The fires became towers, the towers were given lamps, and the lamps "
        "were given lenses of glass that threw their light as far as the horizon. Every lighthouse had a keeper, who climbed the stairs each evening and";
    if (g3_tokenize(m, text, SIZE_MAX, G3_TOKENIZE_BOS, ids, PROMPT) < PROMPT / 2) return 0;
    const int have = G3__MIN(g3_tokenize(m, text, SIZE_MAX, G3_TOKENIZE_BOS, NULL, 0), (int)PROMPT);
    g3_session *s = g3_session_open(m, &d, &err);
    if (s && g3_add_tokens(s, ids, have, &err) == G3_OK)
        while (count < n && (made[count] = g3_sample(s, &greedy, &err)) >= 0 && g3_add_tokens(s, &made[count], 1, &err) == G3_OK) count++;
    if (count < n) fprintf(stderr, "    %s\n", err.text);
    g3_session_close(s);
    return count;
}

static int cpu[MADE];

static int the_same_tokens(const char *card, int n)
{
    g3_error err;
    int made[MADE];
    if (!fake_card(card)) SKIP("no NVRTC here");
    fake.set("checks", "synccheck");                     // memory is always watched; the rest is seen to by the small models
    g3_model *m = open_at(G3_BACKEND_CUDA, &err);
    if (!m) fprintf(stderr, "    %s\n", err.text);
    CHECK(m && write_on(m, n, made) == n);
    g3_model_close(m);
    for (int i = 0; i < n; i++) CHECK(made[i] == cpu[i]);
    return 0;
}

static int sm_80_writes_what_the_cpu_writes(void)
{
    g3_error err;
    g3_model *m = open_at(G3_BACKEND_CPU, &err);
    if (!m) SKIP("the real 270M is not here: make model");
    CHECK(write_on(m, MADE, cpu) == MADE);
    g3_model_close(m);
    return the_same_tokens("cc=80,threads=2", MADE);
}

static int sm_120_writes_what_the_cpu_writes(void) { if (!cpu[0]) SKIP("the real 270M is not here: make model"); return the_same_tokens("cc=120,threads=2", MADE); }
static int sm_89_begins_the_same(void) { if (!cpu[0]) SKIP("the real 270M is not here: make model"); return the_same_tokens("cc=89,seed=3,threads=2", FEW); }
static int sm_90_begins_the_same(void) { if (!cpu[0]) SKIP("the real 270M is not here: make model"); return the_same_tokens("cc=90,perturb=1,threads=2", FEW); }

int main(void)
{
    RUN(sm_80_writes_what_the_cpu_writes);
    RUN(sm_120_writes_what_the_cpu_writes);
    RUN(sm_89_begins_the_same);
    RUN(sm_90_begins_the_same);
    return test_done();
}
