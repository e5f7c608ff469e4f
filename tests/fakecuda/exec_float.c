// exec_float.c: owns arithmetic on f32, f64 and the small formats, and conversions to and from them.
// A result that is no number is 0x7fffffff, as on the card; .ftz flushes what goes in and what comes out, by the instruction alone.
// Approximations are computed nearly exactly; the field perturb moves each within the bound that the PTX manual allows.
#define _GNU_SOURCE
#include "fakecuda.h"
#include <fenv.h>
#include <math.h>

static inline uint32_t bits(float v) { uint32_t u; memcpy(&u, &v, 4); return u; }
static inline float real(uint32_t u) { float v; memcpy(&v, &u, 4); return v; }
static inline float canon(float v) { return v != v ? real(0x7fffffff) : v; }
static inline float flush(float v) { return (bits(v) & 0x7f800000) ? v : real(bits(v) & 0x80000000); }
static inline double canon64(double v) { return v != v ? (double)NAN : v; }

// The bound is relative; the sign and size of the move come from a hash of the bits, so that it is the same in every run of a seed.
float fc_perturb(double v, double bound)
{
    if (!fc_opt.perturb || !(fabs(v) > 0) || isinf(v) || fabs(v) == 1) return (float)v;      // 0 and 1 are exact, as ex2(0) and cos(0)
    uint32_t h = (bits((float)v) ^ (uint32_t)fc_opt.perturb * 0x9e3779b9u) * 0x85ebca6bu;
    h ^= h >> 15;
    return (float)(v * (1 + bound * ((double)(int32_t)(h * 0xc2b2ae35u) * 0x1p-31)));
}

// What .ftz takes of a result: all below 2^-126 after rounding to 24 bits as if exponents had no end, so also what would round up to 2^-126 as a
// subnormal (ptxas folds mul.ftz and cvt.ftz so). `scaled` is the same result made of operands 2^64 times larger, where nothing is subnormal; if it
// overflows there, r is not small. Sums need only flush: so near to zero they are exact.
static inline float taken(float r, float scaled) { return fabsf(scaled) < 0x1p-62f ? real(bits(r) & 0x80000000) : canon(r); }
static inline float smaller(float x, float y) { return fabsf(x) < fabsf(y) ? x : y; }
static inline float larger(float x, float y) { return fabsf(x) < fabsf(y) ? y : x; }
static inline float mul_z(float x, float y) { return taken(x * y, smaller(x, y) * 0x1p64f * larger(x, y)); }
static inline float fma_z(float x, float y, float z)
{
    return taken(__builtin_fmaf(x, y, z), __builtin_fmaf(smaller(x, y) * 0x1p64f, larger(x, y), z * 0x1p64f));
}
static inline float div_z(float x, float y) { return taken(x / y, x * 0x1p64f / y); }

#define F2(name, expr) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0); const float *a = RF32(1); LANES(float x = a[i]; d[i] = (expr)); }
#define F3(name, expr) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0); const float *a = RF32(1), *b = RF32(2); LANES(float x = a[i], y = b[i]; d[i] = (expr)); }
#define F4(name, expr) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0); const float *a = RF32(1), *b = RF32(2), *c = RF32(3); LANES(float x = a[i], y = b[i], z = c[i]; d[i] = (expr)); }
#define FX flush(x)
#define FY flush(y)
#define FZ flush(z)

// min and max give the number where the other is none, and order -0 below +0.
static inline float least(float x, float y) { return x != x ? canon(y) : y != y ? x : x == y ? real(bits(x) | bits(y)) : x < y ? x : y; }
static inline float most(float x, float y) { return x != x ? canon(y) : y != y ? x : x == y ? real(bits(x) & bits(y)) : x > y ? x : y; }

F3(radd, canon(x + y))  F3(rsub, canon(x - y))  F3(rmul, canon(x * y))  F3(fmin_, least(x, y))  F3(fmax_, most(x, y))
F3(radd_z, canon(flush(FX + FY)))  F3(rsub_z, canon(flush(FX - FY)))  F3(rmul_z, mul_z(FX, FY))  F3(fmin_z, least(FX, FY))  F3(fmax_z, most(FX, FY))
F4(rfma, canon(__builtin_fmaf(x, y, z)))  F4(rfma_z, fma_z(FX, FY, FZ))
F2(fneg, real(bits(x) ^ 0x80000000))  F2(fabs_, real(bits(x) & 0x7fffffff))  F2(fneg_z, real(bits(FX) ^ 0x80000000))
F2(fabs_z, real(bits(FX) & 0x7fffffff))
F3(rdiv, canon(x / y))  F2(frcp, canon(1.0f / x))  F2(root, canon(sqrtf(x)))  F2(root_z, canon(flush(sqrtf(FX))))  F3(rdiv_z, div_z(FX, FY))
F2(frcp_rn_z, canon(flush(1.0f / FX)))
F3(fcopysign, real((bits(y) & 0x7fffffff) | (bits(x) & 0x80000000)))
static inline float saturated(float v) { return v != v ? 0.0f : v < 0 ? 0.0f : v > 1 ? 1.0f : bits(v) == 0x80000000 ? 0.0f : v; }
F2(fsat, saturated(x))  F3(radd_sat, saturated(x + y))  F3(rmul_sat, saturated(x * y))  F4(rfma_sat, saturated(__builtin_fmaf(x, y, z)))

// Directed rounding by the machine's own mode; the barrier keeps the compiler from moving the operation across the change.
static float fma_in(int mode, float x, float y, float z)
{
    volatile float vx = x, vy = y, vz = z;
    int old = fegetround();
    fesetround(mode);
    volatile float r = fmaf(vx, vy, vz);
    fesetround(old);
    return r;
}
static void rfma_rm(fc_warp *w, fc_insn *in, uint32_t mask)
{ float *d = RF32(0), *a = RF32(1), *b = RF32(2), *c = RF32(3); LANES(d[i] = canon(fma_in(FE_DOWNWARD, a[i], b[i], c[i]))); }
static void rfma_rz(fc_warp *w, fc_insn *in, uint32_t mask)
{ float *d = RF32(0), *a = RF32(1), *b = RF32(2), *c = RF32(3); LANES(d[i] = canon(fma_in(FE_TOWARDZERO, a[i], b[i], c[i]))); }
static void rfma_rp(fc_warp *w, fc_insn *in, uint32_t mask)
{ float *d = RF32(0), *a = RF32(1), *b = RF32(2), *c = RF32(3); LANES(d[i] = canon(fma_in(FE_UPWARD, a[i], b[i], c[i]))); }

enum { R_ADD, R_MUL };
static float in_mode(int op, int mode, float x, float y)
{
    volatile float vx = x, vy = y;
    int old = fegetround();
    fesetround(mode);
    volatile float r = op == R_ADD ? vx + vy : vx * vy;
    fesetround(old);
    return r;
}
#define DIRECTED(name, op, mode) \
    static void name(fc_warp *w, fc_insn *in, uint32_t mask) { float *d = RF32(0), *a = RF32(1), *b = RF32(2); \
        LANES(d[i] = canon(in_mode(op, mode, a[i], b[i]))); }
DIRECTED(radd_rz, R_ADD, FE_TOWARDZERO) DIRECTED(radd_rm, R_ADD, FE_DOWNWARD) DIRECTED(radd_rp, R_ADD, FE_UPWARD)
DIRECTED(rmul_rz, R_MUL, FE_TOWARDZERO) DIRECTED(rmul_rm, R_MUL, FE_DOWNWARD) DIRECTED(rmul_rp, R_MUL, FE_UPWARD)

static float mul_in_z(int mode, float x, float y)
{
    return taken(in_mode(R_MUL, mode, x, y), in_mode(R_MUL, mode, smaller(x, y) * 0x1p64f, larger(x, y)));
}
static float fma_in_z(int mode, float x, float y, float z)
{
    return taken(fma_in(mode, x, y, z), fma_in(mode, smaller(x, y) * 0x1p64f, larger(x, y), z * 0x1p64f));
}
#define ADD_Z(name, mode) static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0), *a = RF32(1), *b = RF32(2); LANES(d[i] = canon(flush(in_mode(R_ADD, mode, flush(a[i]), flush(b[i]))))); }
#define MUL_Z(name, mode) static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0), *a = RF32(1), *b = RF32(2); LANES(d[i] = mul_in_z(mode, flush(a[i]), flush(b[i]))); }
#define FMA_Z(name, mode) static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0), *a = RF32(1), *b = RF32(2), *c = RF32(3); LANES(d[i] = fma_in_z(mode, flush(a[i]), flush(b[i]), flush(c[i]))); }
ADD_Z(radd_rz_z, FE_TOWARDZERO) ADD_Z(radd_rm_z, FE_DOWNWARD) ADD_Z(radd_rp_z, FE_UPWARD)
MUL_Z(rmul_rz_z, FE_TOWARDZERO) MUL_Z(rmul_rm_z, FE_DOWNWARD) MUL_Z(rmul_rp_z, FE_UPWARD)
FMA_Z(rfma_rz_z, FE_TOWARDZERO) FMA_Z(rfma_rm_z, FE_DOWNWARD) FMA_Z(rfma_rp_z, FE_UPWARD)

// ---- approximations: the bounds are those of the PTX manual, in parts of the result

// A flush to zero is of what comes in and goes out. Sine and cosine are bounded absolutely, which their relative bound keeps.
#define APPROX(name, expr, bound) static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0), *a = RF32(1); LANES(float x = a[i]; d[i] = canon(fc_perturb((expr), bound))); }
#define APPROX_Z(name, expr, bound) static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { float *d = RF32(0), *a = RF32(1); LANES(float x = flush(a[i]); d[i] = canon(flush(fc_perturb((expr), bound)))); }
#define BOTH(name, expr, bound) APPROX(name, expr, bound) APPROX_Z(name##_z, expr, bound)
BOTH(ex2, exp2f(x), 0x1p-23)  BOTH(lg2, log2f(x), 0x1p-24)  BOTH(rcp, 1.0 / (double)x, 0x1p-24)  BOTH(rsqrt, 1.0 / sqrt((double)x), 0x1p-24)
BOTH(sqrt_a, sqrt((double)x), 0x1p-24)  APPROX_Z(sin_a_z, sinf(x), 0x1p-22)  APPROX_Z(cos_a_z, cosf(x), 0x1p-22)  APPROX(tanh_a, tanhf(x), 0x1.fp-12)
// div.approx is x times the reciprocal of y: beyond 2^126 that is 0, and infinity times it no number.
static float divided(float x, float y)
{
    return fabsf(y) > 0x1p126f && !isinf(y) ? (isinf(x) ? NAN : real((bits(x) ^ bits(y)) & 0x80000000)) : fc_perturb((double)x / (double)y,
        0x1p-23);
}
static void div_a(fc_warp *w, fc_insn *in, uint32_t mask)
{
    float *d = RF32(0), *a = RF32(1), *b = RF32(2);
    LANES(d[i] = canon(divided(a[i], b[i])));
}
static void div_a_z(fc_warp *w, fc_insn *in, uint32_t mask)
{
    float *d = RF32(0), *a = RF32(1), *b = RF32(2);
    LANES(d[i] = canon(flush(divided(flush(a[i]), flush(b[i])))));
}

// ---- comparisons: the forms with u are true where one side is no number

#define UNORDERED (x != x || y != y)
#define FSETP(name, expr) \
    FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) { const float *a = RF32(1), *b = RF32(2); uint32_t r = 0; \
    for (int i = 0; i < 32; i++) { float x = a[i], y = b[i]; r |= (uint32_t)(expr) << i; } *RPRED(0) = (*RPRED(0) & ~mask) | (r & mask); } \
    FC_CLONES static void name##_z(fc_warp *w, fc_insn *in, uint32_t mask) { const float *a = RF32(1), *b = RF32(2); uint32_t r = 0; \
    for (int i = 0; i < 32; i++) { float x = flush(a[i]), y = flush(b[i]); r |= (uint32_t)(expr) << i; } \
    *RPRED(0) = (*RPRED(0) & ~mask) | (r & mask); }
FSETP(f_eq, x == y) FSETP(f_ne, !UNORDERED && x != y) FSETP(f_lt, x < y) FSETP(f_le, x <= y) FSETP(f_gt, x > y) FSETP(f_ge, x >= y)
FSETP(f_equ, UNORDERED || x == y) FSETP(f_neu, x != y) FSETP(f_ltu, !(x >= y)) FSETP(f_leu, !(x > y)) FSETP(f_gtu, !(x <= y)) FSETP(f_geu, !(x < y))
FSETP(f_num, !UNORDERED) FSETP(f_nan, UNORDERED)

// ---- f64

#define D3(name, expr) \
    static void name(fc_warp *w, fc_insn *in, uint32_t mask) { double *d = (double *)R64(0), *a = (double *)R64(1), *b = (double *)R64(2); \
        LANES(d[i] = canon64(expr)); }
D3(dadd, a[i] + b[i])  D3(dsub, a[i] - b[i])  D3(dmul, a[i] * b[i])  D3(ddiv, a[i] / b[i])
static void dfma(fc_warp *w, fc_insn *in, uint32_t mask)
{
    double *d = (double *)R64(0), *a = (double *)R64(1), *b = (double *)R64(2), *c = (double *)R64(3);
    LANES(d[i] = canon64(fma(a[i], b[i], c[i])));
}

#define D2(name, expr) \
    static void name(fc_warp *w, fc_insn *in, uint32_t mask) { double *d = (double *)R64(0), *a = (double *)R64(1); LANES(d[i] = (expr)); }
D3(dmin, a[i] != a[i] ? b[i] : b[i] != b[i] ? a[i] : fmin(a[i], b[i]))  D3(dmax, a[i] != a[i] ? b[i] : b[i] != b[i] ? a[i] : fmax(a[i], b[i]))
static inline double real64(uint64_t u) { double v; memcpy(&v, &u, 8); return v; }
static inline uint64_t bits64(double v) { uint64_t u; memcpy(&u, &v, 8); return u; }
D3(dcopysign, real64((bits64(b[i]) & ~((uint64_t)1 << 63)) | (bits64(a[i]) & (uint64_t)1 << 63)))
D2(drcp, canon64(1.0 / a[i]))  D2(dneg, -a[i])  D2(dabs, fabs(a[i]))  D2(dsqrt, canon64(sqrt(a[i])))
#define DSETP(name, expr) \
    static void name(fc_warp *w, fc_insn *in, uint32_t mask) { const double *a = (const double *)R64(1), *b = (const double *)R64(2); \
        uint32_t r = 0; \
    for (int i = 0; i < 32; i++) { double x = a[i], y = b[i]; r |= (uint32_t)(expr) << i; } *RPRED(0) = (*RPRED(0) & ~mask) | (r & mask); }
DSETP(d_eq, x == y) DSETP(d_neu, x != y) DSETP(d_lt, x < y) DSETP(d_le, x <= y) DSETP(d_gt, x > y) DSETP(d_ge, x >= y)
DSETP(d_ne, x < y || x > y) DSETP(d_equ, !(x < y || x > y)) DSETP(d_ltu, !(x >= y)) DSETP(d_leu, !(x > y)) DSETP(d_gtu, !(x <= y))
DSETP(d_geu, !(x < y)) DSETP(d_num, !UNORDERED) DSETP(d_nan, UNORDERED)

// ---- conversions

#define CV(name, to, from, expr) \
    static void name(fc_warp *w, fc_insn *in, uint32_t mask) { to *d = (to *)R64(0); const from *a = (const from *)R64(1); \
        LANES(from x = a[i]; d[i] = (expr)); }
CV(s32_f32, float, int32_t, (float)x)  CV(u32_f32, float, uint32_t, (float)x)  CV(s64_f64, double, int64_t, (double)x)
CV(f64_f32, float, double, (float)x)
// 2^-126 less half of the last of 24 bits: the least that rounds up to it (`taken`).
CV(f64_f32_z, float, double, fabs(x) < 0x1.ffffffp-127 ? signbit(x) ? -0.0f : 0.0f : (float)x)
CV(s64_f32, float, int64_t, (float)x)  CV(u64_f32, float, uint64_t, (float)x)  CV(f32_f64, double, float, canon64((double)x))
CV(s32_f64, double, int32_t, (double)x)  CV(f32_f64_z, double, float, canon64((double)FX))

// Out of range saturates; what is no number becomes 0.
static inline int32_t to_s32(float r) { return r != r ? 0 : r >= 0x1p31f ? INT32_MAX : r < -0x1p31f ? INT32_MIN : (int32_t)r; }
static inline uint32_t to_u32(float r) { return r != r || r <= 0 ? 0 : r >= 0x1p32f ? UINT32_MAX : (uint32_t)r; }
CV(rni_s32, int32_t, float, to_s32(rintf(x)))  CV(rni_s32_z, int32_t, float, to_s32(rintf(FX)))  CV(rzi_s32, int32_t, float, to_s32(truncf(x)))
CV(rzi_u32, uint32_t, float, to_u32(truncf(x)))
CV(rni_u32, uint32_t, float, to_u32(rintf(x)))  CV(rmi_s32, int32_t, float, to_s32(floorf(x)))  CV(rpi_s32, int32_t, float, to_s32(ceilf(x)))
CV(rni_f32, float, float, canon(rintf(x)))  CV(rzi_f32, float, float, canon(truncf(x)))  CV(rmi_f32, float, float, canon(floorf(x)))
CV(rpi_f32, float, float, canon(ceilf(x)))

CV(rni_f32_z, float, float, canon(rintf(FX)))  CV(rzi_f32_z, float, float, canon(truncf(FX)))  CV(rmi_f32_z, float, float, canon(floorf(FX)))
CV(rpi_f32_z, float, float, canon(ceilf(FX)))
CV(rzi_s32_z, int32_t, float, to_s32(truncf(FX)))  CV(rmi_s32_z, int32_t, float, to_s32(floorf(FX)))  CV(rpi_s32_z, int32_t, float, to_s32(ceilf(FX)))
CV(rzi_u32_z, uint32_t, float, to_u32(truncf(FX)))
CV(rmi_u32, uint32_t, float, to_u32(floorf(x)))  CV(rpi_u32, uint32_t, float, to_u32(ceilf(x)))  CV(fsat_z, float, float, saturated(FX))
static inline int64_t to_s64(double r) { return r != r ? INT64_MIN : r >= 0x1p63 ? INT64_MAX : r < -0x1p63 ? INT64_MIN : (int64_t)r; }
static inline uint64_t to_u64(double r) { return r != r ? (uint64_t)1 << 63 : r <= 0 ? 0 : r >= 0x1p64 ? UINT64_MAX : (uint64_t)r; }
static inline int32_t d_to_s32(double r) { return r != r ? 0 : r >= 0x1p31 ? INT32_MAX : r < -0x1p31 ? INT32_MIN : (int32_t)r; }
static inline uint32_t d_to_u32(double r) { return r != r || r <= 0 ? 0 : r >= 0x1p32 ? UINT32_MAX : (uint32_t)r; }
CV(rni_s64, int64_t, float, to_s64(rint((double)x)))  CV(rzi_s64, int64_t, float, to_s64(trunc((double)x)))
CV(rni_u64, uint64_t, float, to_u64(rint((double)x)))  CV(rzi_u64, uint64_t, float, to_u64(trunc((double)x)))
CV(d_rzi_s32, int32_t, double, d_to_s32(trunc(x)))  CV(d_rzi_u32, uint32_t, double, d_to_u32(trunc(x)))
CV(d_rzi_s64, int64_t, double, to_s64(trunc(x)))
CV(s16_f64, double, uint32_t, (double)(int16_t)x)  CV(u16_f64, double, uint32_t, (double)(uint16_t)x)  CV(s8_f64, double, uint32_t, (double)(int8_t)x)
CV(u8_f64, double, uint32_t, (double)(uint8_t)x)
CV(s16_f32, float, uint32_t, (float)(int16_t)x)  CV(u16_f32, float, uint32_t, (float)(uint16_t)x)  CV(s8_f32, float, uint32_t, (float)(int8_t)x)
CV(u8_f32, float, uint32_t, (float)(uint8_t)x)
CV(u32_f64, double, uint32_t, (double)x)  CV(u64_f64, double, uint64_t, (double)x)

// To bfloat16: nearest, ties to even; what is no number is 0x7fff.
static inline uint32_t bf16(float v)
{
    uint32_t u = bits(v);
    return v != v ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
CV(to_bf16, uint32_t, float, bf16(x))
CV(from_bf16, float, uint32_t, canon(real(x << 16)))
FC_CLONES static void to_bf16x2(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0); const float *a = RF32(1), *b = RF32(2); LANES(d[i] = bf16(a[i]) << 16 | bf16(b[i]));
}

// A small float: `exp` bits of exponent with this bias, `man` bits of mantissa, exact in f32.
static float widen(uint32_t v, int exp, int man, int bias)
{
    uint32_t e = v >> man & ((1u << exp) - 1), m = v & ((1u << man) - 1);
    float r = e ? ldexpf((float)(m | 1u << man), (int)e - bias - man) : ldexpf((float)m, 1 - bias - man);
    return v >> (exp + man) & 1 ? -r : r;
}
static float from_f16(uint32_t h)
{
    if ((h & 0x7c00) != 0x7c00) return widen(h & 0xffff, 5, 10, 15);
    return h & 0x3ff ? real(0x7fffffff) : h & 0x8000 ? -INFINITY : INFINITY;
}
// Nearest, ties to even, in units of the last place: subnormal results share the smallest exponent's unit.
static uint32_t to_f16(float v)
{
    uint32_t sign = bits(v) >> 16 & 0x8000;
    float x = fabsf(v);
    if (v != v) return 0x7fff;
    if (x >= 65520.0f) return sign | 0x7c00;
    int e;
    frexpf(x, &e);
    if (e < -13) e = -13;
    uint32_t n = (uint32_t)rintf(ldexpf(x, 11 - e));                 // up to 2048: the carry runs into the exponent by itself
    return sign | (n < 1024 ? n : n + ((uint32_t)(e + 13) << 10));
}
// From f64: to f32 with the last bit told (rounding to odd), so that the second rounding is the right one.
static uint32_t to_f16_wide(double v)
{
    float f = (float)v;
    if ((double)f == v || v != v || isinf(f)) return to_f16(f);
    uint32_t u = bits(f);
    if (fabs((double)f) > fabs(v)) u--;
    return to_f16(real(u | 1));
}
// e4m3: no infinity, one NaN (0x7f), largest 448; satfinite keeps what is too large at that.
static uint32_t to_e4m3(float v)
{
    uint32_t sign = bits(v) >> 24 & 0x80;
    float x = fabsf(v);
    if (v != v) return 0x7f;
    if (x >= 448.0f) return sign | 0x7e;
    int e;
    frexpf(x, &e);
    if (e < -5) e = -5;
    uint32_t n = (uint32_t)rintf(ldexpf(x, 4 - e)), r = n < 8 ? n : n + ((uint32_t)(e + 5) << 3);
    return sign | (r > 0x7e ? 0x7e : r);
}
static float from_e4m3(uint32_t b) { return (b & 0x7f) == 0x7f ? real(0x7fffffff) : widen(b, 4, 3, 7); }
CV(f16_f32, float, uint32_t, from_f16(x))
CV(f32_f16, uint32_t, float, to_f16(x))
CV(e4m3x2_f16x2, uint32_t, uint32_t, to_f16(from_e4m3(x & 0xff)) | to_f16(from_e4m3(x >> 8 & 0xff)) << 16)
static void to_f16x2(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0); float *a = RF32(1), *b = RF32(2); LANES(d[i] = to_f16(a[i]) << 16 | to_f16(b[i]));
}
static void to_e4m3x2(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0); float *a = RF32(1), *b = RF32(2); LANES(d[i] = to_e4m3(a[i]) << 8 | to_e4m3(b[i]));
}
// Products and sums of f16 are exact in f64, so one rounding is the right one; f32 holds them too.
#define H2(name, op) static void name(fc_warp *w, fc_insn *in, uint32_t mask) { uint32_t *d = R32(0), *a = R32(1), *b = R32(2); \
    LANES(d[i] = to_f16(from_f16(a[i]) op from_f16(b[i])) | to_f16(from_f16(a[i] >> 16) op from_f16(b[i] >> 16)) << 16); }
H2(h2mul, *) H2(h2add, +) H2(h2sub, -)

// The product of two f16 is exact in f64, the sum is rounded there at most once more, beyond what f16 can see.
static uint32_t h_fma(uint32_t a, uint32_t b, uint32_t c) { return to_f16_wide((double)from_f16(a) * (double)from_f16(b) + (double)from_f16(c)); }
static void h2fma(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0), *a = R32(1), *b = R32(2), *c = R32(3);
    LANES(d[i] = h_fma(a[i], b[i], c[i]) | h_fma(a[i] >> 16, b[i] >> 16, c[i] >> 16) << 16);
}
#define F(s, shape, fn) {s, shape, fn, FC_float, 0, 0}
#define S(s, shape, fn) {s, shape, fn, FC_special, 0, 0}
#define C(s, shape, fn) {s, shape, fn, FC_convert, 0, 0}
#define SETF(op, fn) {"setp." op ".f32", "p=ww", fn, FC_predicate, 0, 0}, {"setp." op ".ftz.f32", "p=ww", fn##_z, FC_predicate, 0, 0}
#define SETD(op, fn) {"setp." op ".f64", "p=dd", fn, FC_predicate, 0, 0}
static const fc_row rows[] = {
    F("add.f32", "w=ww", radd), F("add.rn.f32", "w=ww", radd), F("add.ftz.f32", "w=ww", radd_z), F("add.rn.ftz.f32", "w=ww", radd_z),
    F("sub.f32", "w=ww", rsub), F("sub.rn.f32", "w=ww", rsub), F("sub.ftz.f32", "w=ww", rsub_z),
    F("mul.f32", "w=ww", rmul), F("mul.rn.f32", "w=ww", rmul), F("mul.ftz.f32", "w=ww", rmul_z), F("mul.rn.ftz.f32", "w=ww", rmul_z),
    F("fma.rn.f32", "w=www", rfma), F("fma.rn.ftz.f32", "w=www", rfma_z),
    F("fma.rm.f32", "w=www", rfma_rm), F("fma.rz.f32", "w=www", rfma_rz), F("fma.rz.ftz.f32", "w=www", rfma_rz_z), F("fma.rp.f32", "w=www", rfma_rp),
    F("add.sat.f32", "w=ww", radd_sat), F("mul.sat.f32", "w=ww", rmul_sat), F("fma.rn.sat.f32", "w=www", rfma_sat),
    F("min.f32", "w=ww", fmin_), F("max.f32", "w=ww", fmax_), F("min.ftz.f32", "w=ww", fmin_z), F("max.ftz.f32", "w=ww", fmax_z),
    F("neg.f32", "w=w", fneg), F("neg.ftz.f32", "w=w", fneg_z), F("abs.f32", "w=w", fabs_), F("abs.ftz.f32", "w=w", fabs_z),
    F("copysign.f32", "w=ww", fcopysign),
    S("div.rn.f32", "w=ww", rdiv), S("div.rn.ftz.f32", "w=ww", rdiv_z), S("rcp.rn.f32", "w=w", frcp), S("rcp.rn.ftz.f32", "w=w", frcp_rn_z),
    S("sqrt.rn.f32", "w=w", root), S("sqrt.rn.ftz.f32", "w=w", root_z),
    S("div.approx.f32", "w=ww", div_a), S("div.approx.ftz.f32", "w=ww", div_a_z), S("div.full.f32", "w=ww", div_a),
    S("div.full.ftz.f32", "w=ww", div_a_z),
    S("ex2.approx.f32", "w=w", ex2), S("ex2.approx.ftz.f32", "w=w", ex2_z), S("lg2.approx.f32", "w=w", lg2), S("lg2.approx.ftz.f32", "w=w", lg2_z),
    S("rcp.approx.f32", "w=w", rcp), S("rcp.approx.ftz.f32", "w=w", rcp_z),
    S("rsqrt.approx.f32", "w=w", rsqrt), S("rsqrt.approx.ftz.f32", "w=w", rsqrt_z), S("sqrt.approx.f32", "w=w", sqrt_a),
    S("sqrt.approx.ftz.f32", "w=w", sqrt_a_z),
    S("sin.approx.f32", "w=w", sin_a_z), S("sin.approx.ftz.f32", "w=w", sin_a_z), S("cos.approx.f32", "w=w", cos_a_z),
    S("cos.approx.ftz.f32", "w=w", cos_a_z), S("tanh.approx.f32", "w=w", tanh_a),
    SETF("eq", f_eq), SETF("ne", f_ne), SETF("lt", f_lt), SETF("le", f_le), SETF("gt", f_gt), SETF("ge", f_ge), SETF("equ", f_equ),
    SETF("neu", f_neu), SETF("ltu", f_ltu), SETF("leu", f_leu), SETF("gtu", f_gtu),
    SETF("geu", f_geu), SETF("num", f_num), SETF("nan", f_nan),
    F("add.rz.f32", "w=ww", radd_rz), F("add.rm.f32", "w=ww", radd_rm), F("add.rp.f32", "w=ww", radd_rp), F("mul.rz.f32", "w=ww", rmul_rz),
    F("mul.rm.f32", "w=ww", rmul_rm), F("mul.rp.f32", "w=ww", rmul_rp), F("sub.rn.ftz.f32", "w=ww", rsub_z),
    F("add.rz.ftz.f32", "w=ww", radd_rz_z), F("add.rm.ftz.f32", "w=ww", radd_rm_z), F("add.rp.ftz.f32", "w=ww", radd_rp_z),
    F("mul.rz.ftz.f32", "w=ww", rmul_rz_z), F("mul.rm.ftz.f32", "w=ww", rmul_rm_z), F("mul.rp.ftz.f32", "w=ww", rmul_rp_z),
    F("fma.rm.ftz.f32", "w=www", rfma_rm_z), F("fma.rp.ftz.f32", "w=www", rfma_rp_z), C("cvt.ftz.f64.f32", "d=w", f32_f64_z),
    C("cvt.ftz.sat.f32.f32", "w=w", fsat_z),
    F("sub.rn.f64", "d=dd", dsub), F("min.f64", "d=dd", dmin), F("max.f64", "d=dd", dmax), F("neg.f64", "d=d", dneg), F("abs.f64", "d=d", dabs),
    F("sqrt.rn.f64", "d=d", dsqrt), F("rcp.rn.f64", "d=d", drcp), F("copysign.f64", "d=dd", dcopysign), F("fma.rn.f16x2", "w=www", h2fma),
    {"setp.eq.f64", "p=dd", d_eq, FC_predicate, 0, 0}, {"setp.neu.f64", "p=dd", d_neu, FC_predicate, 0, 0},
    {"setp.lt.f64", "p=dd", d_lt, FC_predicate, 0, 0}, {"setp.le.f64", "p=dd", d_le, FC_predicate, 0, 0},
    SETD("ne", d_ne), SETD("equ", d_equ), SETD("ltu", d_ltu), SETD("leu", d_leu), SETD("gtu", d_gtu), SETD("geu", d_geu), SETD("num", d_num),
    SETD("nan", d_nan),
    {"setp.gt.f64", "p=dd", d_gt, FC_predicate, 0, 0}, {"setp.ge.f64", "p=dd", d_ge, FC_predicate, 0, 0},
    C("cvt.rni.ftz.f32.f32", "w=w", rni_f32_z), C("cvt.rzi.ftz.f32.f32", "w=w", rzi_f32_z), C("cvt.rmi.ftz.f32.f32", "w=w", rmi_f32_z),
    C("cvt.rpi.ftz.f32.f32", "w=w", rpi_f32_z), C("cvt.rzi.ftz.s32.f32", "w=w", rzi_s32_z),
    C("cvt.rmi.ftz.s32.f32", "w=w", rmi_s32_z), C("cvt.rpi.ftz.s32.f32", "w=w", rpi_s32_z), C("cvt.rzi.ftz.u32.f32", "w=w", rzi_u32_z),
    C("cvt.rmi.u32.f32", "w=w", rmi_u32), C("cvt.rpi.u32.f32", "w=w", rpi_u32), C("cvt.sat.ftz.f32.f32", "w=w", fsat_z),
    C("cvt.rni.s64.f32", "d=w", rni_s64), C("cvt.rzi.s64.f32", "d=w", rzi_s64), C("cvt.rni.u64.f32", "d=w", rni_u64),
    C("cvt.rzi.u64.f32", "d=w", rzi_u64), C("cvt.rzi.s32.f64", "w=d", d_rzi_s32), C("cvt.rzi.u32.f64", "w=d", d_rzi_u32),
    C("cvt.rzi.s64.f64", "d=d", d_rzi_s64), C("cvt.rn.f64.s16", "d=h", s16_f64), C("cvt.rn.f64.u16", "d=h", u16_f64),
    C("cvt.rn.f64.s8", "d=h", s8_f64), C("cvt.rn.f64.u8", "d=h", u8_f64),
    C("cvt.rn.f32.s16", "w=h", s16_f32), C("cvt.rn.f32.u16", "w=h", u16_f32), C("cvt.rn.f32.s8", "w=h", s8_f32), C("cvt.rn.f32.u8", "w=h", u8_f32),
    C("cvt.rn.f64.u32", "d=w", u32_f64), C("cvt.rn.f64.u64", "d=d", u64_f64),
    F("add.f64", "d=dd", dadd), F("add.rn.f64", "d=dd", dadd), F("sub.f64", "d=dd", dsub), F("mul.f64", "d=dd", dmul), F("mul.rn.f64", "d=dd", dmul),
    F("div.rn.f64", "d=dd", ddiv), F("fma.rn.f64", "d=ddd", dfma),
    C("cvt.rn.f32.s32", "w=w", s32_f32), C("cvt.rn.f32.u32", "w=w", u32_f32), C("cvt.rn.f64.s64", "d=d", s64_f64),
    C("cvt.rn.f32.f64", "w=d", f64_f32), C("cvt.rn.ftz.f32.f64", "w=d", f64_f32_z), C("cvt.rn.f32.s64", "w=d", s64_f32),
    C("cvt.rn.f32.u64", "w=d", u64_f32),
    C("cvt.f64.f32", "d=w", f32_f64), C("cvt.rn.f64.s32", "d=w", s32_f64), C("cvt.rni.s32.f32", "w=w", rni_s32),
    C("cvt.rni.ftz.s32.f32", "w=w", rni_s32_z), C("cvt.rzi.s32.f32", "w=w", rzi_s32), C("cvt.rzi.u32.f32", "w=w", rzi_u32),
    C("cvt.rni.u32.f32", "w=w", rni_u32), C("cvt.rmi.s32.f32", "w=w", rmi_s32), C("cvt.rpi.s32.f32", "w=w", rpi_s32),
    C("cvt.rni.f32.f32", "w=w", rni_f32), C("cvt.rzi.f32.f32", "w=w", rzi_f32), C("cvt.rmi.f32.f32", "w=w", rmi_f32),
    C("cvt.rpi.f32.f32", "w=w", rpi_f32), C("cvt.sat.f32.f32", "w=w", fsat), C("cvt.rn.bf16.f32", "h=w", to_bf16),
    C("cvt.f32.bf16", "w=h", from_bf16), C("cvt.rn.bf16x2.f32", "w=ww", to_bf16x2),
    C("cvt.f32.f16", "w=h", f16_f32), C("cvt.rn.f16.f32", "h=w", f32_f16), C("cvt.rn.f16x2.f32", "w=ww", to_f16x2),
    C("cvt.rn.f16x2.e4m3x2", "w=h", e4m3x2_f16x2), C("cvt.rn.satfinite.e4m3x2.f32", "h=ww", to_e4m3x2),
    F("mul.rn.f16x2", "w=ww", h2mul), F("mul.f16x2", "w=ww", h2mul), F("add.rn.f16x2", "w=ww", h2add), F("add.f16x2", "w=ww", h2add),
    F("sub.f16x2", "w=ww", h2sub),
};
const fc_table fc_float_rows = {rows, sizeof rows / sizeof *rows};
