// Oracle: exact floating-point instructions in every rounding mode, .ftz, halves and NaNs, against this machine's own arithmetic (IEEE 754).
// NaN results are 0x7fffffff as on the hardware; where PTX leaves the NaN open any is taken.
#include "rows.h"
#include <fenv.h>
#include <math.h>

typedef uint32_t u32;
enum { CANONICAL = 0x7fffffff };

// ---- one operation under a rounding mode. volatile keeps the compiler from folding it under another

typedef float (*op32)(float a, float b, float c);
static float add32(float a, float b, float c) { (void)c; volatile float x = a, y = b, z = x + y; return z; }
static float sub32(float a, float b, float c) { (void)c; volatile float x = a, y = b, z = x - y; return z; }
static float mul32(float a, float b, float c) { (void)c; volatile float x = a, y = b, z = x * y; return z; }
static float div32(float a, float b, float c) { (void)c; volatile float x = a, y = b, z = x / y; return z; }
static float rcp32(float a, float b, float c) { (void)b; (void)c; volatile float x = 1, y = a, z = x / y; return z; }
static float sqrt32(float a, float b, float c) { (void)b; (void)c; volatile float x = a, z = sqrtf(x); return z; }
static float fma32(float a, float b, float c) { volatile float x = a, y = b, z = c, r = fmaf(x, y, z); return r; }

static u32 flush(u32 u) { return (u & 0x7f800000) ? u : u & 0x80000000; }

// Whether .ftz takes a result: when it lies below 2^-126 after rounding to 24 bits as if exponents had no end. A subnormal has fewer bits, and one that
// would round up to 2^-126 is still taken; ptxas folds mul.ftz and cvt.ftz so (folds.txt). Products, and quotients as near as matters, fit a double.
typedef double (*op64)(double a, double b, double c);
static double add64(double a, double b, double c) { (void)c; volatile double x = a, y = b, z = x + y; return z; }
static double sub64(double a, double b, double c) { (void)c; volatile double x = a, y = b, z = x - y; return z; }
static double mul64(double a, double b, double c) { (void)c; volatile double x = a, y = b, z = x * y; return z; }
static double div64(double a, double b, double c) { (void)c; volatile double x = a, y = b, z = x / y; return z; }
static double sqrt64(double a, double b, double c) { (void)b; (void)c; volatile double x = a, z = sqrt(x); return z; }
static double fma64(double a, double b, double c) { volatile double x = a, y = b, z = c, r = fma(x, y, z); return r; }
static double rcp64(double a, double b, double c) { (void)b; (void)c; volatile double x = 1, y = a, z = x / y; return z; }
static bool tiny(op64 op, float a, float b, float c)
{
    volatile double v = op(a, b, c) * 0x1p64;
    volatile float s = (float)v;
    return fabsf(s) < 0x1p-62f;
}

static u32 under(op32 op, op64 exact, int mode, bool ftz, uint64_t a, uint64_t b, uint64_t c)
{
    if (ftz) { a = flush((u32)a); b = flush((u32)b); c = flush((u32)c); }
    fesetround(mode);
    u32 r = f_bits(op(f_of((u32)a), f_of((u32)b), f_of((u32)c)));
    bool none = ftz && tiny(exact, f_of((u32)a), f_of((u32)b), f_of((u32)c));
    fesetround(FE_TONEAREST);
    return is_nan32(r) ? CANONICAL : none ? r & 0x80000000 : r;
}
#define MODES(op) \
    MEANING(op##32_rn, under(op##32, op##64, FE_TONEAREST, false, a, b, c)) MEANING(op##32_rz, under(op##32, op##64, FE_TOWARDZERO, false, a, b, c)) \
    MEANING(op##32_rm, under(op##32, op##64, FE_DOWNWARD, false, a, b, c))  MEANING(op##32_rp, under(op##32, op##64, FE_UPWARD, false, a, b, c)) \
    MEANING(op##32_rn_ftz, under(op##32, op##64, FE_TONEAREST, true, a, b, c)) MEANING(op##32_rz_ftz, under(op##32, op##64, FE_TOWARDZERO, true, a, b, c)) \
    MEANING(op##32_rm_ftz, under(op##32, op##64, FE_DOWNWARD, true, a, b, c)) MEANING(op##32_rp_ftz, under(op##32, op##64, FE_UPWARD, true, a, b, c))
MODES(add) MODES(sub) MODES(mul) MODES(div) MODES(rcp) MODES(sqrt) MODES(fma)

static uint64_t exact64(op64 op, uint64_t a, uint64_t b, uint64_t c) { return d_bits(op(d_of(a), d_of(b), d_of(c))); }
MEANING(add64_, exact64(add64, a, b, c)) MEANING(sub64_, exact64(sub64, a, b, c)) MEANING(mul64_, exact64(mul64, a, b, c)) MEANING(div64_, exact64(div64, a, b, c))
MEANING(sqrt64_, exact64(sqrt64, a, b, c)) MEANING(fma64_, exact64(fma64, a, b, c))
MEANING(rcp64_, exact64(rcp64, a, b, c)) MEANING(copysign64_, (a & (uint64_t)1 << 63) | (b & ~(uint64_t)0 >> 1))          // the sign of the first
MEANING(neg64_, a ^ (uint64_t)1 << 63) MEANING(abs64_, a & ~((uint64_t)1 << 63))

// ---- minimum and maximum: the number of a number and a NaN, and -0 below +0

static u32 order(u32 u) { return u & 0x80000000 ? ~u : u | 0x80000000; }
static u32 extreme(uint64_t a64, uint64_t b64, bool smaller, bool ftz)
{
    u32 a = (u32)a64, b = (u32)b64;
    if (ftz) { a = flush(a); b = flush(b); }
    if (is_nan32(a) || is_nan32(b)) return is_nan32(a) && is_nan32(b) ? CANONICAL : is_nan32(a) ? b : a;
    return (order(a) < order(b)) == smaller ? a : b;
}
MEANING(min_, extreme(a, b, true, false)) MEANING(max_, extreme(a, b, false, false)) MEANING(min_ftz, extreme(a, b, true, true)) MEANING(max_ftz, extreme(a, b, false, true))
MEANING(abs_, a & 0x7fffffff) MEANING(neg_, a ^ 0x80000000) MEANING(abs_ftz, flush(a & 0x7fffffff)) MEANING(neg_ftz, flush((u32)a ^ 0x80000000))
MEANING(copysign_, (a & 0x80000000) | (b & 0x7fffffff))          // the sign of the first, the number of the second

// ---- pairs of halves: each half is rounded once from the exact value, which a double holds for products and sums

static double half_value(u32 h)
{
    if ((h & 0x7c00) == 0x7c00) return h & 0x3ff ? (double)NAN : h & 0x8000 ? -(double)INFINITY : (double)INFINITY;
    return small_float(h & 0xffff, 5, 10);
}
static u32 half_nearest(double v)
{
    if (v != v) return 0x7fff;
    u32 sign = signbit(v) ? 0x8000 : 0, lo = 0, hi = 0x7c00;      // the infinity stands for 2^16
    v = fabs(v);
    if (v >= 65536) return sign | 0x7c00;
    while (hi - lo > 1) { u32 mid = (lo + hi) / 2; if (small_float(mid, 5, 10) <= v) lo = mid; else hi = mid; }
    double below = v - small_float(lo, 5, 10), above = small_float(hi, 5, 10) - v;
    return sign | (below < above || (below == above && !(lo & 1)) ? lo : hi);
}
static u32 pair(uint64_t a, uint64_t b, uint64_t c, int op)
{
    u32 r = 0;
    for (int i = 0; i < 2; i++) {
        double x = half_value((u32)a >> 16 * i & 0xffff), y = half_value((u32)b >> 16 * i & 0xffff), z = half_value((u32)c >> 16 * i & 0xffff);
        r |= half_nearest(op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x * y + z) << 16 * i;     // x * y + z: at most 53 bits unless far apart
    }
    return r;
}
MEANING(add_h2, pair(a, b, c, '+')) MEANING(sub_h2, pair(a, b, c, '-')) MEANING(mul_h2, pair(a, b, c, '*')) MEANING(fma_h2, pair(a, b, c, 'f'))

static const row single[] = {
    { "add.f32", "f ff", add32_rn, "" }, { "add.rn.f32", "f ff", add32_rn, "" }, { "add.rz.f32", "f ff", add32_rz, "" }, { "add.rm.f32", "f ff", add32_rm, "" },
    { "add.rp.f32", "f ff", add32_rp, "" }, { "add.ftz.f32", "f ff", add32_rn_ftz, "" }, { "add.rn.ftz.f32", "f ff", add32_rn_ftz, "" },
    { "sub.f32", "f ff", sub32_rn, "" }, { "sub.rn.f32", "f ff", sub32_rn, "" }, { "sub.ftz.f32", "f ff", sub32_rn_ftz, "" }, { "sub.rn.ftz.f32", "f ff", sub32_rn_ftz, "" },
    { "mul.f32", "f ff", mul32_rn, "" }, { "mul.rn.f32", "f ff", mul32_rn, "" }, { "mul.rz.f32", "f ff", mul32_rz, "" }, { "mul.rm.f32", "f ff", mul32_rm, "" },
    { "mul.rp.f32", "f ff", mul32_rp, "" }, { "mul.ftz.f32", "f ff", mul32_rn_ftz, "" }, { "mul.rn.ftz.f32", "f ff", mul32_rn_ftz, "" },
    { "fma.rn.f32", "f fff", fma32_rn, "" }, { "fma.rz.f32", "f fff", fma32_rz, "" }, { "fma.rm.f32", "f fff", fma32_rm, "" }, { "fma.rp.f32", "f fff", fma32_rp, "" },
    { "fma.rn.ftz.f32", "f fff", fma32_rn_ftz, "" }, { "fma.rz.ftz.f32", "f fff", fma32_rz_ftz, "" },
    { "fma.rm.ftz.f32", "f fff", fma32_rm_ftz, "" }, { "fma.rp.ftz.f32", "f fff", fma32_rp_ftz, "" },
    { "add.rz.ftz.f32", "f ff", add32_rz_ftz, "" }, { "add.rm.ftz.f32", "f ff", add32_rm_ftz, "" }, { "add.rp.ftz.f32", "f ff", add32_rp_ftz, "" },
    { "mul.rz.ftz.f32", "f ff", mul32_rz_ftz, "" }, { "mul.rm.ftz.f32", "f ff", mul32_rm_ftz, "" }, { "mul.rp.ftz.f32", "f ff", mul32_rp_ftz, "" },
    { "div.rn.f32", "f ff", div32_rn, "" }, { "div.rn.ftz.f32", "f ff", div32_rn_ftz, "" },
    { "rcp.rn.f32", "f f", rcp32_rn, "" }, { "rcp.rn.ftz.f32", "f f", rcp32_rn_ftz, "" },
    { "sqrt.rn.f32", "f f", sqrt32_rn, "" }, { "sqrt.rn.ftz.f32", "f f", sqrt32_rn_ftz, "" },
    { "min.f32", "f ff", min_, "" }, { "max.f32", "f ff", max_, "" }, { "min.ftz.f32", "f ff", min_ftz, "" }, { "max.ftz.f32", "f ff", max_ftz, "" },
    { "abs.f32", "f f", abs_, "~" }, { "neg.f32", "f f", neg_, "~" }, { "abs.ftz.f32", "f f", abs_ftz, "~" }, { "neg.ftz.f32", "f f", neg_ftz, "~" },
    { "copysign.f32", "f ff", copysign_, "~" },
};
static const row doubles[] = {
    { "add.f64", "g gg", add64_, "~" }, { "add.rn.f64", "g gg", add64_, "~" }, { "sub.f64", "g gg", sub64_, "~" }, { "mul.f64", "g gg", mul64_, "~" },
    { "mul.rn.f64", "g gg", mul64_, "~" }, { "fma.rn.f64", "g ggg", fma64_, "~" }, { "div.rn.f64", "g gg", div64_, "~" }, { "sqrt.rn.f64", "g g", sqrt64_, "~" }, { "rcp.rn.f64", "g g", rcp64_, "~" },
    { "copysign.f64", "g gg", copysign64_, "~" },
    { "neg.f64", "g g", neg64_, "~" }, { "abs.f64", "g g", abs64_, "~" },
};
static const row halves[] = {
    { "add.rn.f16x2", "r rr", add_h2, "" }, { "add.f16x2", "r rr", add_h2, "" }, { "sub.f16x2", "r rr", sub_h2, "" }, { "mul.rn.f16x2", "r rr", mul_h2, "" },
    { "mul.f16x2", "r rr", mul_h2, "" }, { "fma.rn.f16x2", "r rrr", fma_h2, "" },
};

// Half operands of all sizes; for fma kept within 2^13 of each other, where the double's sum of a product and a half is exact.
static int pairs(const row *r, uint64_t *in, int most)
{
    int n = 0;
    (void)most;
    for (; n < 1 << 17; n++)
        for (int i = 0; i < 4; i++) {
            uint64_t v = rand64() & 0xffffffff;
            in[4 * n + i] = strlen(r->shape) == 5 && !(n & 7) ? (v & 0x8fff8fff) | 0x30003000 : v;
        }
    return n;
}

#define COUNT(a) (int)(sizeof a / sizeof *a)
static int single_precision_is_exact(void) { CHECK(rows_check(single, COUNT(single), 78, 80, product_and_random) == 0); return 0; }
static int double_precision_is_exact(void) { CHECK(rows_check(doubles, COUNT(doubles), 78, 80, product_and_random) == 0); return 0; }
static int pairs_of_halves_are_exact(void) { CHECK(rows_check(halves, COUNT(halves), 78, 80, pairs) == 0); return 0; }

// ---- comparisons: ordered ones are false for a NaN, those that end in u are true

#define ORDERED(name, expr) static uint64_t name(uint64_t a64, uint64_t b64, uint64_t c64, uint64_t d64) \
    { (void)c64; (void)d64; float a = f_of((u32)a64), b = f_of((u32)b64); bool nan = a != a || b != b; (void)nan; return expr; }
ORDERED(eq, !nan && a == b) ORDERED(ne, !nan && a != b) ORDERED(lt, !nan && a < b) ORDERED(le, !nan && a <= b) ORDERED(gt, !nan && a > b) ORDERED(ge, !nan && a >= b)
ORDERED(equ, nan || a == b) ORDERED(neu, nan || a != b) ORDERED(ltu, nan || a < b) ORDERED(leu, nan || a <= b) ORDERED(gtu, nan || a > b) ORDERED(geu, nan || a >= b)
ORDERED(num, !nan) ORDERED(nan_, nan)
#define FLUSHED(name) static uint64_t name##_ftz(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return name(flush((u32)a), flush((u32)b), c, d); }
FLUSHED(eq) FLUSHED(ne) FLUSHED(lt) FLUSHED(le) FLUSHED(gt) FLUSHED(ge) FLUSHED(equ) FLUSHED(neu) FLUSHED(ltu) FLUSHED(leu) FLUSHED(gtu) FLUSHED(geu) FLUSHED(num) FLUSHED(nan_)
#define BOTH(op, name) { "setp." op ".f32", "p ff", name, "" }, { "setp." op ".ftz.f32", "p ff", name##_ftz, "" }
static const row comparisons[] = {
    BOTH("eq", eq), BOTH("ne", ne), BOTH("lt", lt), BOTH("le", le), BOTH("gt", gt), BOTH("ge", ge), BOTH("equ", equ), BOTH("neu", neu), BOTH("ltu", ltu),
    BOTH("leu", leu), BOTH("gtu", gtu), BOTH("geu", geu), BOTH("num", num), BOTH("nan", nan_),
};
#define ORDERED64(name, expr) static uint64_t name(uint64_t a64, uint64_t b64, uint64_t c64, uint64_t d64) \
    { (void)c64; (void)d64; double a = d_of(a64), b = d_of(b64); bool nan = a != a || b != b; (void)nan; return expr; }
ORDERED64(eq64, !nan && a == b) ORDERED64(lt64, !nan && a < b) ORDERED64(le64, !nan && a <= b) ORDERED64(gt64, !nan && a > b) ORDERED64(ge64, !nan && a >= b) ORDERED64(neu64, nan || a != b)
static const row comparisons64[] = {
    { "setp.eq.f64", "p gg", eq64, "" }, { "setp.lt.f64", "p gg", lt64, "" }, { "setp.le.f64", "p gg", le64, "" }, { "setp.gt.f64", "p gg", gt64, "" },
    { "setp.ge.f64", "p gg", ge64, "" }, { "setp.neu.f64", "p gg", neu64, "" },
};
static int comparisons_are_right(void)
{
    CHECK(rows_check(comparisons, COUNT(comparisons), 78, 80, product_and_random) == 0);
    CHECK(rows_check(comparisons64, COUNT(comparisons64), 78, 80, product_and_random) == 0);
    return 0;
}

// A comparison joined with a predicate: setp.CMP.and p, a, b, c.
MEANING(lt_and, (int32_t)a < (int32_t)b && (c & 1)) MEANING(lt_or, (int32_t)a < (int32_t)b || (c & 1)) MEANING(eq_xor, ((u32)a == (u32)b) != (c & 1))
static int joined_comparisons_are_right(void)
{
    static const row joined[] = { { "setp.lt.and.s32", "p rrp", lt_and, "" }, { "setp.lt.or.s32", "p rrp", lt_or, "" }, { "setp.eq.xor.s32", "p rrp", eq_xor, "" } };
    CHECK(rows_check(joined, COUNT(joined), 78, 80, product_and_random) == 0);
    return 0;
}

// Whoever calls the driver may have told the processor to flush subnormals; the card must neither notice nor undo it.
static int the_hosts_rounding_and_flushing_do_not_reach_the_card(void)
{
#if defined(__x86_64__)
    static const row some[] = { { "mul.f32", "f ff", mul32_rn, "" }, { "add.f32", "f ff", add32_rn, "" } };
    static uint64_t in[4096][4], out[4096];
    text t = { 0 };
    row_header(&t, 78, 80);
    for (int i = 0; i < 2; i++) row_kernel(&t, i, some[i].op, some[i].shape, NULL);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    for (int i = 0; i < 4096; i++) { in[i][0] = rand64() & 0x80ffffff; in[i][1] = (rand64() & 0x80ffffff) | 0x3f000000; }
    unsigned control = 0xff80, after;                    // flush to zero, subnormals are zero, round to zero, all masked
    for (int i = 0; i < 2; i++) {
        unsigned normal;
        __asm__ volatile("stmxcsr %0" : "=m"(normal));
        __asm__ volatile("ldmxcsr %0" : : "m"(control));
        row_run(m, i, in[0], out, 4096);
        __asm__ volatile("stmxcsr %0" : "=m"(after));
        __asm__ volatile("ldmxcsr %0" : : "m"(normal));
        CHECK((after & 0xffc0) == (control & 0xffc0));
        for (int j = 0; j < 4096; j++) CHECK(out[j] == some[i].want(in[j][0], in[j][1], 0, 0));
    }
#endif
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(single_precision_is_exact);
    ORACLE(double_precision_is_exact);
    ORACLE(pairs_of_halves_are_exact);
    ORACLE(comparisons_are_right);
    ORACLE(joined_comparisons_are_right);
    ORACLE(the_hosts_rounding_and_flushing_do_not_reach_the_card);
    return oracle_end();
}
