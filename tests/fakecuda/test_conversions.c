// Oracle: every 16-bit and 8-bit float both ways, floats to integers in every rounding, integers to floats, against the formats' definitions.
#include "rows.h"
#include <math.h>

typedef uint32_t u32;

// ---- small floats by search: the code whose value lies nearest, the even one of two

static u32 nearest(double v, int e, int m, u32 codes)             // v >= 0; codes: how many there are, the last one standing for overflow
{
    u32 lo = 0, hi = codes - 1;
    if (v >= small_float(hi, e, m)) return hi;
    while (hi - lo > 1) { u32 mid = (lo + hi) / 2; if (small_float(mid, e, m) <= v) lo = mid; else hi = mid; }
    double below = v - small_float(lo, e, m), above = small_float(hi, e, m) - v;
    return below < above || (below == above && !(lo & 1)) ? lo : hi;
}
static u32 to_bf16(uint64_t u) { return is_nan32(u) ? 0x7fff : (u32)(u >> 16 & 0x8000) | nearest(fabs(f_of((u32)u)), 8, 7, 0x7f81); }
static u32 to_half(uint64_t u) { return is_nan32(u) ? 0x7fff : (u32)(u >> 16 & 0x8000) | nearest(fabs(f_of((u32)u)), 5, 10, 0x7c01); }
static u32 to_e4m3(uint64_t u) { return is_nan32(u) ? 0x7f : (u32)(u >> 24 & 0x80) | nearest(fabs(f_of((u32)u)), 4, 3, 0x7f); }      // saturates at 0x7e
MEANING(bf16_1, to_bf16(a)) MEANING(half_1, to_half(a))
MEANING(bf16_2, to_bf16(a) << 16 | to_bf16(b)) MEANING(half_2, to_half(a) << 16 | to_half(b)) MEANING(e4m3_2, to_e4m3(a) << 8 | to_e4m3(b))

static u32 of_half(uint64_t h)
{
    if ((h & 0x7c00) == 0x7c00) return h & 0x3ff ? 0x7fffffff : f_bits(h & 0x8000 ? -INFINITY : INFINITY);
    return f_bits((float)small_float((u32)h, 5, 10));
}
static u32 half_of_e4m3(uint64_t b) { return (b & 0x7f) == 0x7f ? 0x7fff : (u32)(b << 8 & 0x8000) | nearest(fabs(e4m3_value((uint8_t)b)), 5, 10, 0x7c01); }
MEANING(wide_half, of_half(a & 0xffff)) MEANING(wide_bf16, (a & 0xffff) << 16) MEANING(wide_e4m3, half_of_e4m3(a & 255) | half_of_e4m3(a >> 8 & 255) << 16)

// ---- integers

static double rounded(double v, char mode) { return mode == 'n' ? nearbyint(v) : mode == 'z' ? trunc(v) : mode == 'm' ? floor(v) : ceil(v); }
static uint64_t to_integer(double v, char mode, double lo, double hi, uint64_t least, uint64_t most)
{
    if (v != v) return 0;
    v = rounded(v, mode);
    return v <= lo ? least : v >= hi ? most : lo < 0 ? (uint64_t)(int64_t)v : (uint64_t)v;
}
static double in_f(uint64_t a) { return (double)f_of((u32)a); }
#define TO_S32(v, mode) to_integer(v, mode, -0x1p31, 0x1p31 - 1, 0x80000000, 0x7fffffff)
#define TO_U32(v, mode) to_integer(v, mode, 0, 0x1p32 - 1, 0, 0xffffffff)
#define TO_S64(v, mode) to_integer(v, mode, -0x1p63, 0x1p63, (uint64_t)1 << 63, ~(uint64_t)0 >> 1)
#define TO_U64(v, mode) to_integer(v, mode, 0, 0x1p64, 0, ~(uint64_t)0)
MEANING(s32_n, TO_S32(in_f(a), 'n')) MEANING(s32_z, TO_S32(in_f(a), 'z')) MEANING(s32_m, TO_S32(in_f(a), 'm')) MEANING(s32_p, TO_S32(in_f(a), 'p'))
MEANING(u32_n, TO_U32(in_f(a), 'n')) MEANING(u32_z, TO_U32(in_f(a), 'z')) MEANING(u32_m, TO_U32(in_f(a), 'm')) MEANING(u32_p, TO_U32(in_f(a), 'p'))
MEANING(s64_n, TO_S64(in_f(a), 'n')) MEANING(s64_z, TO_S64(in_f(a), 'z')) MEANING(u64_n, TO_U64(in_f(a), 'n')) MEANING(u64_z, TO_U64(in_f(a), 'z'))
MEANING(s32_from_g, TO_S32(d_of(a), 'z')) MEANING(u32_from_g, TO_U32(d_of(a), 'z')) MEANING(s64_from_g, TO_S64(d_of(a), 'z'))
static u32 flush(uint64_t u) { return u & 0x7f800000 ? (u32)u : (u32)u & 0x80000000; }
MEANING(s32_n_ftz, TO_S32(in_f(flush(a)), 'n')) MEANING(s32_z_ftz, TO_S32(in_f(flush(a)), 'z')) MEANING(s32_m_ftz, TO_S32(in_f(flush(a)), 'm'))
MEANING(s32_p_ftz, TO_S32(in_f(flush(a)), 'p')) MEANING(u32_z_ftz, TO_U32(in_f(flush(a)), 'z'))

static u32 integral(uint64_t a, char mode) { return is_nan32(a) ? 0x7fffffff : f_bits((float)rounded(in_f(a), mode)) | ((u32)a & 0x80000000); }
MEANING(f_n, integral(a, 'n')) MEANING(f_z, integral(a, 'z')) MEANING(f_m, integral(a, 'm')) MEANING(f_p, integral(a, 'p'))
MEANING(f_n_ftz, integral(flush(a), 'n')) MEANING(f_z_ftz, integral(flush(a), 'z')) MEANING(f_m_ftz, integral(flush(a), 'm')) MEANING(f_p_ftz, integral(flush(a), 'p'))
static u32 saturated(uint64_t a) { float f = f_of((u32)a); return f != f || f <= 0 ? 0 : f >= 1 ? 0x3f800000 : (u32)a; }
MEANING(f_sat, saturated(a)) MEANING(f_sat_ftz, saturated(flush(a)))
MEANING(f_s32, f_bits((float)(int32_t)a)) MEANING(f_u32, f_bits((float)(u32)a)) MEANING(f_s64, f_bits((float)(int64_t)a)) MEANING(f_u64, f_bits((float)a))
MEANING(f_s16, f_bits((float)(int16_t)a)) MEANING(f_u16, f_bits((float)(uint16_t)a)) MEANING(f_s8, f_bits((float)(int8_t)a)) MEANING(f_u8, f_bits((float)(uint8_t)a))
MEANING(g_s32, d_bits((double)(int32_t)a)) MEANING(g_u32, d_bits((double)(u32)a)) MEANING(g_s64, d_bits((double)(int64_t)a)) MEANING(g_u64, d_bits((double)a))
MEANING(g_s16, d_bits((double)(int16_t)a)) MEANING(g_u16, d_bits((double)(uint16_t)a)) MEANING(g_s8, d_bits((double)(int8_t)a)) MEANING(g_u8, d_bits((double)(uint8_t)a))
MEANING(g_f, d_bits((double)f_of((u32)a))) MEANING(f_g, f_bits((float)d_of(a))) MEANING(g_f_ftz, d_bits((double)f_of(flush(a))))
// .ftz takes what is below 2^-126 after rounding to 24 bits: 64 powers of two higher, nothing is subnormal.
MEANING(f_g_ftz, fabsf((float)(d_of(a) * 0x1p64)) < 0x1p-62f ? (u32)(a >> 32 & 0x80000000) : f_bits((float)d_of(a)))

// "sweep": every upper half of a float with the lower halves that matter to rounding at bit 16, 13 or 20
static const row narrowing[] = {
    { "cvt.rn.bf16.f32", "h f", bf16_1, "sweep" }, { "cvt.rn.f16.f32", "h f", half_1, "sweep" }, { "cvt.rn.bf16x2.f32", "r ff", bf16_2, "sweep" },
    { "cvt.rn.f16x2.f32", "r ff", half_2, "sweep" }, { "cvt.rn.satfinite.e4m3x2.f32", "h ff", e4m3_2, "sweep" },
};
static const row widening[] = {
    { "cvt.f32.f16", "f h", wide_half, "all ~" }, { "cvt.rn.f16x2.e4m3x2", "r h", wide_e4m3, "all" },
};
static const row widening90[] = { { "cvt.f32.bf16", "f h", wide_bf16, "all ~" } };
static const row integers[] = {
    { "cvt.rni.s32.f32", "r f", s32_n, "sweep" }, { "cvt.rzi.s32.f32", "r f", s32_z, "sweep" }, { "cvt.rmi.s32.f32", "r f", s32_m, "sweep" }, { "cvt.rpi.s32.f32", "r f", s32_p, "sweep" },
    { "cvt.rni.u32.f32", "r f", u32_n, "sweep" }, { "cvt.rzi.u32.f32", "r f", u32_z, "sweep" }, { "cvt.rmi.u32.f32", "r f", u32_m, "sweep" }, { "cvt.rpi.u32.f32", "r f", u32_p, "sweep" },
    { "cvt.rni.ftz.s32.f32", "r f", s32_n_ftz, "sweep" }, { "cvt.rzi.ftz.s32.f32", "r f", s32_z_ftz, "sweep" }, { "cvt.rmi.ftz.s32.f32", "r f", s32_m_ftz, "sweep" },
    { "cvt.rpi.ftz.s32.f32", "r f", s32_p_ftz, "sweep" }, { "cvt.rzi.ftz.u32.f32", "r f", u32_z_ftz, "sweep" },
    { "cvt.rni.f32.f32", "f f", f_n, "sweep ~" }, { "cvt.rzi.f32.f32", "f f", f_z, "sweep ~" }, { "cvt.rmi.f32.f32", "f f", f_m, "sweep ~" }, { "cvt.rpi.f32.f32", "f f", f_p, "sweep ~" },
    { "cvt.rni.ftz.f32.f32", "f f", f_n_ftz, "sweep ~" }, { "cvt.rzi.ftz.f32.f32", "f f", f_z_ftz, "sweep ~" }, { "cvt.rmi.ftz.f32.f32", "f f", f_m_ftz, "sweep ~" },
    { "cvt.rpi.ftz.f32.f32", "f f", f_p_ftz, "sweep ~" }, { "cvt.sat.f32.f32", "f f", f_sat, "sweep" }, { "cvt.sat.ftz.f32.f32", "f f", f_sat_ftz, "sweep" },
    { "cvt.rni.s64.f32", "d f", s64_n, "sweep numbers" }, { "cvt.rzi.s64.f32", "d f", s64_z, "sweep numbers" }, { "cvt.rni.u64.f32", "d f", u64_n, "sweep numbers" },
    { "cvt.rzi.u64.f32", "d f", u64_z, "sweep numbers" },
    { "cvt.rzi.s32.f64", "r g", s32_from_g, "" }, { "cvt.rzi.u32.f64", "r g", u32_from_g, "" }, { "cvt.rzi.s64.f64", "d g", s64_from_g, "numbers" },
    { "cvt.rn.f32.s32", "f r", f_s32, "" }, { "cvt.rn.f32.u32", "f r", f_u32, "" }, { "cvt.rn.f32.s64", "f d", f_s64, "" }, { "cvt.rn.f32.u64", "f d", f_u64, "" },
    { "cvt.rn.f32.s16", "f h", f_s16, "" }, { "cvt.rn.f32.u16", "f h", f_u16, "" }, { "cvt.rn.f32.s8", "f h", f_s8, "" }, { "cvt.rn.f32.u8", "f h", f_u8, "" },
    { "cvt.rn.f64.s32", "g r", g_s32, "" }, { "cvt.rn.f64.u32", "g r", g_u32, "" }, { "cvt.rn.f64.s64", "g d", g_s64, "" }, { "cvt.rn.f64.u64", "g d", g_u64, "" },
    { "cvt.rn.f64.s16", "g h", g_s16, "" }, { "cvt.rn.f64.u16", "g h", g_u16, "" }, { "cvt.rn.f64.s8", "g h", g_s8, "" }, { "cvt.rn.f64.u8", "g h", g_u8, "" },
    { "cvt.f64.f32", "g f", g_f, "~" }, { "cvt.rn.f32.f64", "f g", f_g, "~" },
    { "cvt.rn.ftz.f32.f64", "f g", f_g_ftz, "edge ~" }, { "cvt.ftz.f64.f32", "g f", g_f_ftz, "~" },
};

static int sweep(uint64_t *in, bool numbers)
{
    static const u32 lower[] = { 0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001 };
    int n = 0;
    for (u32 hi = 0; hi < 65536; hi += 2)                // two upper halves a step: the second operand, and the next tuple's first
        for (size_t i = 0; i < sizeof lower / sizeof *lower; i++) {
            u32 a = hi << 16 | lower[i], b = (hi + 1) << 16 | lower[(i + 4) % 9];
            if (numbers && (is_nan32(a) || is_nan32(b))) continue;
            in[4 * n] = a; in[4 * n + 1] = b;
            n++;
        }
    return n;
}
// Doubles around 2^-126, those that round to it in 24 bits, in 23, and not at all.
static int edge(uint64_t *in, int n)
{
    for (int sign = 0; sign < 2; sign++)
        for (int i = -64; i < 64; i++)
            for (int j = -1; j < 2; j++) in[4 * n++] = ((uint64_t)sign << 63 | 0x3810000000000000) + (uint64_t)((int64_t)i * 0x08000000 + j);
    return n;
}
static int operands(const row *r, uint64_t *in, int most)
{
    bool numbers = strstr(r->kind, "numbers") != NULL;
    int n = 0, kept = 0;
    if (!strncmp(r->kind, "all", 3)) for (n = 0; n < 65536; n++) in[4 * n] = (uint64_t)n;
    else if (!strncmp(r->kind, "sweep", 5)) {
        n = sweep(in, numbers);
        if (n + n <= most && !strchr(r->shape + 3, 'f'))                      // one operand: the other half of the sweep as well
            for (int i = 0; i < n; i++) in[4 * (n + i)] = in[4 * i + 1];
        if (!strchr(r->shape + 3, 'f')) n = n + n <= most ? n + n : n;
    } else {
        n = product_and_random(r, in, most);
        if (!strncmp(r->kind, "edge", 4)) n = edge(in, n);
        for (int i = 0; i < n; i++) if (!numbers || !is_nan64(in[4 * i])) in[4 * kept++] = in[4 * i];
        n = kept;
    }
    return n;
}

#define COUNT(a) (int)(sizeof a / sizeof *a)
static int narrowing_rounds_to_the_nearest_code(void) { CHECK(rows_check(narrowing, COUNT(narrowing), 81, 89, operands) == 0); return 0; }
static int every_narrow_code_widens_to_its_value(void)
{
    CHECK(rows_check(widening, COUNT(widening), 81, 89, operands) == 0);
    FC.set ? (void)FC.set("cc", "90") : (void)0;
    CHECK(rows_check(widening90, COUNT(widening90), 81, 90, operands) == 0);
    FC.set ? (void)FC.set("cc", "89") : (void)0;
    return 0;
}
static int integers_and_floats_convert(void) { CHECK(rows_check(integers, COUNT(integers), 81, 89, operands) == 0); return 0; }

// All 2^32 floats to bf16, when asked for (about a minute): NIGHTLY=1.
static int all_floats_narrow_to_bf16(void)
{
    if (listing) return 0;
    if (!getenv("NIGHTLY")) SKIP("2^32 values; set NIGHTLY=1");
    text t = { 0 };
    row_header(&t, 81, 89);
    row_kernel(&t, 0, "cvt.rn.bf16.f32", "h f", NULL);
    CUmodule m = load_module(t.s);
    free(t.s);
    enum { BATCH = 1 << 18 };
    uint64_t *in = calloc(BATCH, 32), *out = malloc(BATCH * 8);
    CHECK(in && out);
    for (uint64_t at = 0; at < (uint64_t)1 << 32; at += BATCH) {
        for (uint64_t i = 0; i < BATCH; i++) in[4 * i] = at + i;
        row_run(m, 0, in, out, BATCH);
        for (uint64_t i = 0; i < BATCH; i++) CHECK(out[i] == (is_nan32(at + i) ? 0x7fff : (at + i + 0x7fff + ((at + i) >> 16 & 1)) >> 16 & 0xffff));
    }
    free(in);
    free(out);
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(narrowing_rounds_to_the_nearest_code);
    ORACLE(every_narrow_code_widens_to_its_value);
    ORACLE(integers_and_floats_convert);
    ORACLE(all_floats_narrow_to_bf16);
    return oracle_end();
}
