// Oracle: instructions with constant operands against what ptxas, NVIDIA's own assembler, computes for them (folds.txt, made by folds.py).
// Each case runs twice: with its operands read from memory, and as literals of the instruction.
#include "rows.h"
#include <math.h>

typedef struct fold { char op[64], shape[12]; uint64_t in[4], want; } fold;
enum { MOST = 8192 };
static fold folds[MOST];
static int count;

static bool read_fold(char *line, fold *f)
{
    int at = 0;
    char dest, sources[8];
    if (sscanf(line, "%63s %c %7s%n", f->op, &dest, sources, &at) != 3) return false;
    snprintf(f->shape, sizeof f->shape, "%c %s", dest, sources);
    char *p = line + at;
    for (size_t i = 0; sources[i]; i++) f->in[i] = strtoull(p, &p, 16);
    if (!(p = strchr(p, '='))) return false;
    f->want = strtoull(p + 1, NULL, 16);
    return true;
}

static int the_goldens_are_there(void)
{
    FILE *f = fopen("tests/fakecuda/folds.txt", "r");
    char line[256];
    CHECK(f);
    while (fgets(line, sizeof line, f)) {
        if (*line == '#') continue;
        CHECK(count < MOST && read_fold(line, &folds[count]));
        count++;
    }
    fclose(f);
    CHECK(count > 1500);
    return 0;
}

// Approximations are not the same bits on the hardware, nor here: within the manual's bound of the assembler's value, and the same special values.
static bool close_enough(const fold *f, uint64_t got)
{
    float want = f_of((uint32_t)f->want), is = f_of((uint32_t)got);
    if (!strstr(f->op, ".approx")) return got == f->want || (strchr("f", f->shape[0]) && (!strncmp(f->op, "abs", 3) || !strncmp(f->op, "neg", 3)) && is_nan32(got) && is_nan32(f->want));
    if (is_nan32(f->want)) return is_nan32(got);
    if (isinf(want) || want == 0 || isinf(is)) return got == f->want;
    if (!strncmp(f->op, "sin", 3) || !strncmp(f->op, "cos", 3)) return fabsf(is - want) <= 0x1p-20f;
    if (!strncmp(f->op, "lg2", 3)) return fabsf(is - want) <= 0x1p-22f * fmaxf(1, fabsf(want));
    if (!strncmp(f->op, "tanh", 4)) return fabsf(is - want) <= 0x1p-10f * fabsf(want);
    return fabsf(is - want) <= 3 * 0x1p-23f * fabsf(want);
}

static int wrong;
static void compare(const fold *f, uint64_t got, const char *how)
{
    if (close_enough(f, got)) return;
    wrong++;
    fprintf(stderr, "%s of %llx %llx %llx %llx %s: %llx, not %llx\n", f->op, U(f->in[0]), U(f->in[1]), U(f->in[2]), U(f->in[3]), how, U(got), U(f->want));
}

static bool alike(const fold *a, const fold *b) { return !strcmp(a->op, b->op) && !strcmp(a->shape, b->shape); }

// Cases of one spelling stand together in the file: a kernel for each run of them.
static int operands_from_memory(void)
{
    text t = { 0 };
    row_header(&t, 81, 89);
    for (int i = 0; i < count; i++) if (!i || !alike(&folds[i], &folds[i - 1])) row_kernel(&t, i, folds[i].op, folds[i].shape, NULL);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    wrong = 0;
    for (int i = 0, n; i < count; i += n) {
        uint64_t in[256][4], out[256];
        for (n = 0; i + n < count && n < 256 && alike(&folds[i], &folds[i + n]); n++) memcpy(in[n], folds[i + n].in, sizeof in[n]);
        row_run(m, i, in[0], out, n);
        for (int j = 0; j < n; j++) compare(&folds[i + j], out[j], "from memory");
    }
    CU.cuModuleUnload(m);
    CHECK(wrong == 0);
    return 0;
}

// The assembler refuses literal positions and lengths of bit fields past 255.
static bool takes_literals(const fold *f)
{
    bool field = !strncmp(f->op, "bfi", 3) || !strncmp(f->op, "bfe", 3);
    return !field || (f->in[1] < 256 && f->in[2] < 256 && f->in[3] < 256);
}

static int operands_as_literals(void)
{
    text t = { 0 };
    row_header(&t, 81, 89);
    for (int i = 0; i < count; i++) row_kernel(&t, i, folds[i].op, folds[i].shape, takes_literals(&folds[i]) ? folds[i].in : NULL);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    wrong = 0;
    for (int i = 0; i < count; i++) {
        uint64_t out;
        row_run(m, i, folds[i].in, &out, 1);
        compare(&folds[i], out, "as literals");
    }
    CU.cuModuleUnload(m);
    CHECK(wrong == 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(the_goldens_are_there);
    ORACLE(operands_from_memory);
    ORACLE(operands_as_literals);
    return oracle_end();
}
