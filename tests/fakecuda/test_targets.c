// The same kernels (kernels/model.cuh) for every target, by two releases of NVRTC and with blocks and warps in any order must give the same bits:
// with -fmad=false their arithmetic is the same, however differently the compilers spell and arrange it.
#include "model_runs.h"

static u64 first[KERNELS];
static int count;
static int same_as_the_first(int cc, const char *seed)
{
    static const char *const options[] = { "-fmad=false" };
    char *source = read_all("tests/fakecuda/kernels/model.cuh"), *ptx = compile(source, "model.cuh", cc, options, 1), number[16];
    int wrong = 0;
    fresh();
    snprintf(number, sizeof number, "%d", cc);
    CHECK(FC.set("cc", number) == 1 && FC.set("driver", "13020") == 1 && FC.set("seed", seed) == 1);
    CUmodule m = load_module(ptx);
    for (int k = 0; k < KERNELS; k++) {
        u64 h = digest(m, k);
        if (!count) first[k] = h;
        if (h != first[k]) fprintf(stderr, "%s for compute_%d, seed %s: other bits\n", names[k], cc, seed), wrong++;
    }
    count++;
    FC.set("seed", "0");
    free(source);
    free(ptx);
    CHECK(wrong == 0);
    return 0;
}

static int all_targets_give_the_same_bits(void)
{
    static const int targets[] = { 80, 86, 89, 90, 100, 120 };
    for (int i = 0; i < 6; i++) { int line = same_as_the_first(targets[i], "0"); if (line) return line; }
    for (int i = 1; i < KERNELS; i++) CHECK(first[i] != first[i - 1]);
    return 0;
}
static int any_order_of_blocks_and_warps_gives_the_same_bits(void)
{
    static const char *const seeds[] = { "1", "2", "77" };
    for (int i = 0; i < 3; i++) { int line = same_as_the_first(89, seeds[i]); if (line) return line; }
    return 0;
}
static int the_older_nvrtc_gives_the_same_bits(void)
{
    if (!use_nvrtc(12)) SKIP("no NVRTC 12 here");
    int line = same_as_the_first(80, "0");
    return line ? line : same_as_the_first(89, "0");
}

int main(void)
{
    open_card();
    if (!open_nvrtc()) { puts("no NVRTC here\n0 passed, 0 failed, 1 skipped"); return 0; }
    RUN(all_targets_give_the_same_bits);
    RUN(any_order_of_blocks_and_warps_gives_the_same_bits);
    RUN(the_older_nvrtc_gives_the_same_bits);
    return test_done();
}
