// Oracle: the approximate instructions within the error that the PTX manual promises, against double precision; their special values; and with the
// field `perturb`, which moves results about inside that error as another card would, so that nothing downstream can rely on luck.
#include "rows.h"
#include <math.h>

// kind of error allowed: 'r' relative, 'a' absolute, 'l' the logarithm's: absolute between 1/2 and 2, else relative
typedef struct approximation { const char *op, *shape; double (*exact)(double a, double b); double bound; char kind; double lo, hi; bool ftz; } approximation;

static double rcp(double a, double b) { (void)b; return 1 / a; }
static double rsqrt(double a, double b) { (void)b; return 1 / sqrt(a); }
static double root(double a, double b) { (void)b; return sqrt(a); }
static double power(double a, double b) { (void)b; return exp2(a); }
static double logarithm(double a, double b) { (void)b; return log2(a); }
static double sine(double a, double b) { (void)b; return sin(a); }
static double cosine(double a, double b) { (void)b; return cos(a); }
static double tangent(double a, double b) { (void)b; return tanh(a); }
static double quotient(double a, double b) { return a / b; }

static const approximation all[] = {
    { "rcp.approx.f32", "f f", rcp, 0x1p-23, 'r', 0x1p-126, 0x1p126, false },             { "rcp.approx.ftz.f32", "f f", rcp, 0x1p-23, 'r', 0x1p-126, 0x1p126, true },
    { "rsqrt.approx.f32", "f f", rsqrt, 0x1.2p-23, 'r', 0x1p-126, 0x1p127, false },       { "rsqrt.approx.ftz.f32", "f f", rsqrt, 0x1.2p-23, 'r', 0x1p-126, 0x1p127, true },
    { "sqrt.approx.f32", "f f", root, 0x1p-23, 'r', 0x1p-126, 0x1p127, false },           { "sqrt.approx.ftz.f32", "f f", root, 0x1p-23, 'r', 0x1p-126, 0x1p127, true },
    { "ex2.approx.f32", "f f", power, 0x1p-22, 'r', 0x1p-20, 125, false },                { "ex2.approx.ftz.f32", "f f", power, 0x1p-22, 'r', 0x1p-20, 125, true },
    { "lg2.approx.f32", "f f", logarithm, 0x1p-22, 'l', 0x1p-126, 0x1p127, false },       { "lg2.approx.ftz.f32", "f f", logarithm, 0x1p-22, 'l', 0x1p-126, 0x1p127, true },
    { "sin.approx.f32", "f f", sine, 0x1.7p-21, 'a', 0x1p-20, 6.28, false },              { "sin.approx.ftz.f32", "f f", sine, 0x1.7p-21, 'a', 0x1p-20, 6.28, true },
    { "cos.approx.f32", "f f", cosine, 0x1.7p-21, 'a', 0x1p-20, 6.28, false },            { "cos.approx.ftz.f32", "f f", cosine, 0x1.7p-21, 'a', 0x1p-20, 6.28, true },
    { "tanh.approx.f32", "f f", tangent, 0x1p-11, 'r', 0x1p-20, 16, false },
    { "div.approx.f32", "f ff", quotient, 0x1p-22, 'r', 0x1p-60, 0x1p60, false },         { "div.approx.ftz.f32", "f ff", quotient, 0x1p-22, 'r', 0x1p-60, 0x1p60, true },
};
enum { ALL = sizeof all / sizeof *all, VALUES = 1 << 15 };

static bool signed_argument(const approximation *a) { return a->exact != rsqrt && a->exact != root && a->exact != logarithm; }

static uint64_t operand(const approximation *a)          // spread evenly over the exponents of the range
{
    float v = (float)exp2(log2(a->lo) + (log2(a->hi) - log2(a->lo)) * rand_unit());
    return f_bits(signed_argument(a) && rand64() & 1 ? -v : v);
}

static double allowed(const approximation *a, double x, double want)
{
    double near = a->kind == 'r' || (a->kind == 'l' && (x <= 0.5 || x >= 2)) ? fabs(want) : 1;
    return a->bound * near + fabs(want) * 0x1p-25;       // the last: rounding the promise itself to float
}

static uint64_t in[VALUES][4], out[VALUES], before[ALL][VALUES];

static CUmodule approximations(void)
{
    text t = { 0 };
    row_header(&t, 78, 80);
    for (int i = 0; i < ALL; i++) row_kernel(&t, i, all[i].op, all[i].shape, NULL);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    return m;
}

// The worst error of an approximation as a part of what is allowed; results in out.
static double worst_of(CUmodule m, int k)
{
    double worst = 0;
    rand_state = 4711 + (uint64_t)k;
    for (int i = 0; i < VALUES; i++) { in[i][0] = operand(&all[k]); in[i][1] = operand(&all[k]); }
    row_run(m, k, in[0], out, VALUES);
    for (int i = 0; i < VALUES; i++) {
        double x = f_of((uint32_t)in[i][0]), want = all[k].exact(x, f_of((uint32_t)in[i][1])), got = f_of((uint32_t)out[i]);
        double off = fabs(got - want) / allowed(&all[k], x, want);
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

static int approximations_keep_the_manuals_bounds(void)
{
    CUmodule m = approximations();
    if (!m) return 0;
    for (int k = 0; k < ALL; k++) {
        double worst = worst_of(m, k);
        if (!(worst <= 1)) fprintf(stderr, "%s: %.3g of what is allowed\n", all[k].op, worst);
        CHECK(worst <= 1);
        memcpy(before[k], out, sizeof out);
    }
    CU.cuModuleUnload(m);
    return 0;
}

// Two seeds: most results move, not all the same way, none out of bounds; the same seed gives the same bits.
static int perturbed_ones_move_within_the_bounds(void)
{
    CUmodule m = approximations();
    if (!m) return 0;
    static uint64_t moved[VALUES];
    for (int k = 0; k < ALL; k++) {
        CHECK(FC.set("perturb", "1") == 1);
        double worst = worst_of(m, k);
        int up = 0, down = 0;
        for (int i = 0; i < VALUES; i++) {
            float was = f_of((uint32_t)before[k][i]), is = f_of((uint32_t)out[i]);
            up += is > was;
            down += is < was;
        }
        if (!(worst <= 1) || up < VALUES / 20 || down < VALUES / 20) fprintf(stderr, "%s: %.3g of what is allowed, %d up, %d down\n", all[k].op, worst, up, down);
        CHECK(worst <= 1 && up > VALUES / 20 && down > VALUES / 20);
        memcpy(moved, out, sizeof out);
        worst_of(m, k);
        CHECK(memcmp(moved, out, sizeof out) == 0);
        CHECK(FC.set("perturb", "2") == 1 && worst_of(m, k) <= 1 && memcmp(moved, out, sizeof out) != 0);
        CHECK(FC.set("perturb", "0") == 1);
    }
    CU.cuModuleUnload(m);
    return 0;
}

// ---- special values (PTX manual). NAN_ stands for any NaN

enum { INF = 0x7f800000, NINF = (int)0xff800000, NAN_ = 0x7fffffff, ZERO = 0, NZERO = (int)0x80000000, ONE = 0x3f800000 };
static const struct { const char *op, *shape; uint32_t a, b, want; } specials[] = {
    { "rcp.approx.f32", "f f", (uint32_t)NINF, 0, (uint32_t)NZERO }, { "rcp.approx.f32", "f f", (uint32_t)NZERO, 0, (uint32_t)NINF }, { "rcp.approx.f32", "f f", ZERO, 0, INF },
    { "rcp.approx.f32", "f f", INF, 0, ZERO }, { "rcp.approx.f32", "f f", NAN_, 0, NAN_ }, { "rcp.approx.ftz.f32", "f f", 1, 0, INF }, { "rcp.approx.ftz.f32", "f f", 0x7f000000, 0, ZERO },
    { "rsqrt.approx.f32", "f f", (uint32_t)NINF, 0, NAN_ }, { "rsqrt.approx.f32", "f f", 0xbf800000, 0, NAN_ }, { "rsqrt.approx.f32", "f f", (uint32_t)NZERO, 0, (uint32_t)NINF },
    { "rsqrt.approx.f32", "f f", ZERO, 0, INF }, { "rsqrt.approx.f32", "f f", INF, 0, ZERO }, { "rsqrt.approx.ftz.f32", "f f", 1, 0, INF },
    { "sqrt.approx.f32", "f f", (uint32_t)NINF, 0, NAN_ }, { "sqrt.approx.f32", "f f", (uint32_t)NZERO, 0, (uint32_t)NZERO }, { "sqrt.approx.f32", "f f", INF, 0, INF },
    { "sqrt.approx.f32", "f f", 0xbf800000, 0, NAN_ }, { "sqrt.approx.ftz.f32", "f f", 1, 0, ZERO },
    { "ex2.approx.f32", "f f", (uint32_t)NINF, 0, ZERO }, { "ex2.approx.f32", "f f", ZERO, 0, ONE }, { "ex2.approx.f32", "f f", (uint32_t)NZERO, 0, ONE }, { "ex2.approx.f32", "f f", INF, 0, INF },
    { "ex2.approx.ftz.f32", "f f", 0x43000000, 0, INF }, { "ex2.approx.ftz.f32", "f f", 0xc3010000, 0, ZERO }, { "ex2.approx.ftz.f32", "f f", (uint32_t)NINF, 0, ZERO }, { "ex2.approx.ftz.f32", "f f", NAN_, 0, NAN_ },
    { "lg2.approx.f32", "f f", (uint32_t)NINF, 0, NAN_ }, { "lg2.approx.f32", "f f", ZERO, 0, (uint32_t)NINF }, { "lg2.approx.f32", "f f", (uint32_t)NZERO, 0, (uint32_t)NINF }, { "lg2.approx.f32", "f f", INF, 0, INF },
    { "lg2.approx.f32", "f f", ONE, 0, ZERO }, { "lg2.approx.ftz.f32", "f f", 1, 0, (uint32_t)NINF },
    { "sin.approx.f32", "f f", INF, 0, NAN_ }, { "cos.approx.f32", "f f", (uint32_t)NINF, 0, NAN_ }, { "sin.approx.f32", "f f", (uint32_t)NZERO, 0, (uint32_t)NZERO }, { "cos.approx.f32", "f f", ZERO, 0, ONE },
    { "tanh.approx.f32", "f f", INF, 0, ONE }, { "tanh.approx.f32", "f f", (uint32_t)NINF, 0, 0xbf800000 }, { "tanh.approx.f32", "f f", (uint32_t)NZERO, 0, (uint32_t)NZERO }, { "tanh.approx.f32", "f f", NAN_, 0, NAN_ },
    { "div.approx.f32", "f ff", ONE, ZERO, INF }, { "div.approx.f32", "f ff", ZERO, ZERO, NAN_ }, { "div.approx.f32", "f ff", ONE, 0x7e800001, ZERO }, { "div.approx.f32", "f ff", INF, 0x7e800001, NAN_ },
    { "div.approx.ftz.f32", "f ff", ONE, 1, INF },
};
static int special_values_are_as_the_manual_says(void)
{
    enum { N = sizeof specials / sizeof *specials };
    text t = { 0 };
    row_header(&t, 78, 80);
    for (int i = 0; i < N; i++) row_kernel(&t, i, specials[i].op, specials[i].shape, NULL);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    int wrong = 0;
    for (int seed = 0; seed < 2; seed++) {
        FC.set("perturb", seed ? "1" : "0");
        for (int i = 0; i < N; i++) {
            uint64_t operands[4] = { specials[i].a, specials[i].b }, got;
            row_run(m, i, operands, &got, 1);
            if (got == specials[i].want || (is_nan32(got) && is_nan32(specials[i].want))) continue;
            fprintf(stderr, "%s of %x %x: %llx, not %x%s\n", specials[i].op, specials[i].a, specials[i].b, U(got), specials[i].want, seed ? " (perturbed)" : "");
            wrong++;
        }
    }
    FC.set("perturb", "0");
    CU.cuModuleUnload(m);
    CHECK(wrong == 0);
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(approximations_keep_the_manuals_bounds);
    ORACLE(perturbed_ones_move_within_the_bounds);
    ORACLE(special_values_are_as_the_manual_says);
    return oracle_end();
}
