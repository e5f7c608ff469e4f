// The gate: every instruction that the project's kernels hold, for any target and release of NVRTC, must occur in a program that some oracle
// compares with the truth. Oracles tell theirs with --spellings. A kernel with a new spelling fails here until a row is written for it.
#include "oracle.h"

static const char *const oracles[] = { "integers", "floats", "conversions", "layouts", "warps", "access", "folds", "approximations", "fuzz" };
static const char *const sources[] = { "gemma3_kernels.cuh", "tests/fakecuda/kernels/model.cuh", "tests/fakecuda/kernels/driver.cuh" };
static const int targets[] = { 80, 86, 89, 90, 100, 120 };
#define COUNT(a) (sizeof a / sizeof *a)

typedef struct set { char (*names)[96]; size_t n, cap; } set;
static set covered, told;

static bool has(const set *s, const char *name)
{
    for (size_t i = 0; i < s->n; i++) if (!strcmp(s->names[i], name)) return true;
    return false;
}
static void put(const char *name, void *user)
{
    set *s = user;
    if (has(s, name)) return;
    if (s->n == s->cap && !(s->names = realloc(s->names, (s->cap = 2 * s->cap + 64) * sizeof *s->names))) abort();
    snprintf(s->names[s->n++], sizeof *s->names, "%s", name);
}

static int the_oracles_tell_what_they_cover(void)
{
    for (size_t i = 0; i < COUNT(oracles); i++) {
        char line[512];
        size_t before = covered.n;
        snprintf(line, sizeof line, "build/fakecuda/test_%s --spellings", oracles[i]);
        FILE *p = popen(line, "r");
        CHECK(p);
        while (fgets(line, sizeof line, p)) { line[strcspn(line, "\n")] = 0; put(line, &covered); }
        if (pclose(p) != 0 || covered.n == before) fprintf(stderr, "test_%s tells nothing; is it built?\n", oracles[i]);
        CHECK(covered.n > before);
    }
    printf("    %zu spellings covered\n", covered.n);
    return 0;
}

typedef struct place { const char *source; int cc, generation; long seen, missing; } place;
static void look(const char *spelling, void *user)
{
    place *p = user;
    p->seen++;
    if (has(&covered, spelling)) return;
    p->missing++;
    if (!has(&told, spelling)) fprintf(stderr, "%s for compute_%d by NVRTC %d: no oracle covers %s\n", p->source, p->cc, p->generation, spelling);
    put(spelling, &told);
}

static int kernels_hold_nothing_else(int generation)
{
    static const char *const options[] = { "-default-device", "-use_fast_math" };
    for (size_t s = 0; s < COUNT(sources); s++) {
        char *text = read_all(sources[s]);
        long missing = 0;
        for (size_t i = 0; i < 2 * COUNT(targets); i++) {
            place p = { sources[s], targets[i / 2], generation, 0, 0 };
            char *ptx = compile(text, sources[s], p.cc, options, i & 1 ? 2 : 1);
            each_spelling(ptx, look, &p);
            CHECK(p.seen > 0);
            missing += p.missing;
            free(ptx);
        }
        free(text);
        CHECK(missing == 0);
    }
    return 0;
}
// Attention is compiled for one size of head, one group and one format of the cache at a time.
static int attention_holds_nothing_else(int generation)
{
    static const char *const options[][4] = {
        { "-default-device", "-DG3K_HEAD_DIM=72", "-DG3K_GROUP=1", "-DG3K_KV=0" }, { "-default-device", "-DG3K_HEAD_DIM=256", "-DG3K_GROUP=4", "-DG3K_KV=1" },
        { "-default-device", "-DG3K_HEAD_DIM=128", "-DG3K_GROUP=2", "-DG3K_KV=2" }, { "-default-device", "-DG3K_HEAD_DIM=18", "-DG3K_GROUP=3", "-DG3K_KV=3" } };
    static const int first_and_last[] = { 80, 120 };
    char *text = read_all(sources[0]);
    for (size_t i = 0; i < 2 * COUNT(options); i++) {
        place p = { sources[0], first_and_last[i % 2], generation, 0, 0 };
        char *ptx = compile(text, sources[0], p.cc, options[i / 2], 4);
        each_spelling(ptx, look, &p);
        free(ptx);
        CHECK(p.seen > 0 && p.missing == 0);
    }
    free(text);
    return 0;
}
static int attention_by_nvrtc_13_holds_nothing_else(void) { if (!use_nvrtc(13)) SKIP("no NVRTC 13 here"); return attention_holds_nothing_else(13); }
static int attention_by_nvrtc_12_holds_nothing_else(void) { if (!use_nvrtc(12)) SKIP("no NVRTC 12 here"); return attention_holds_nothing_else(12); }

static int kernels_by_nvrtc_13_hold_nothing_else(void) { if (!use_nvrtc(13)) SKIP("no NVRTC 13 here"); return kernels_hold_nothing_else(13); }
static int kernels_by_nvrtc_12_hold_nothing_else(void) { if (!use_nvrtc(12)) SKIP("no NVRTC 12 here"); return kernels_hold_nothing_else(12); }

int main(void)
{
    unsetenv("FUZZ_ROUNDS");                             // the gate counts what the standard rounds cover
    unsetenv("FUZZ_SEED");
    if (!open_nvrtc()) { puts("no NVRTC here\n0 passed, 0 failed, 1 skipped"); return 0; }
    RUN(the_oracles_tell_what_they_cover);
    RUN(kernels_by_nvrtc_13_hold_nothing_else);
    RUN(kernels_by_nvrtc_12_hold_nothing_else);
    RUN(attention_by_nvrtc_13_holds_nothing_else);
    RUN(attention_by_nvrtc_12_holds_nothing_else);
    free(covered.names);
    free(told.names);
    return test_done();
}
