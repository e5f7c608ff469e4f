// Oracle: every integer instruction, its edge cases and its conversions, against the same written in C.
#include "rows.h"

typedef int8_t s8; typedef int16_t s16; typedef int32_t s32; typedef int64_t s64;
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef uint64_t u64;
typedef __int128 s128; typedef unsigned __int128 u128;

// ---- arithmetic

MEANING(add_, a + b) MEANING(sub_, a - b) MEANING(mul_, a * b) MEANING(mad_, a * b + c)
MEANING(hi_s32, (u64)((s64)(s32)a * (s32)b) >> 32) MEANING(hi_u32, (u64)(u32)a * (u32)b >> 32)
MEANING(hi_s64, (u128)((s128)(s64)a * (s64)b) >> 64) MEANING(hi_u64, (u128)a * b >> 64)
MEANING(wide_s32, (s64)(s32)a * (s32)b) MEANING(wide_u32, (u64)(u32)a * (u32)b)
MEANING(wide_s16, (s32)(s16)a * (s16)b) MEANING(wide_u16, (u32)(u16)a * (u16)b)
MEANING(mad_wide_s32, (u64)((s64)(s32)a * (s32)b) + c) MEANING(mad_wide_u32, (u64)(u32)a * (u32)b + c)
MEANING(div_s32, (s64)(s32)a / (s32)b) MEANING(div_u32, (u32)a / (u32)b) MEANING(rem_s32, (s64)(s32)a % (s32)b) MEANING(rem_u32, (u32)a % (u32)b)
MEANING(div_s64, (s128)(s64)a / (s64)b) MEANING(div_u64, a / b) MEANING(rem_s64, (s128)(s64)a % (s64)b) MEANING(rem_u64, a % b)
MEANING(abs_s32, (s32)a < 0 ? 0 - a : a) MEANING(abs_s64, (s64)a < 0 ? 0 - a : a) MEANING(neg_, 0 - a)
MEANING(min_s32, (s32)a < (s32)b ? a : b) MEANING(min_u32, (u32)a < (u32)b ? a : b) MEANING(max_s32, (s32)a > (s32)b ? a : b) MEANING(max_u32, (u32)a > (u32)b ? a : b)
MEANING(min_s64, (s64)a < (s64)b ? a : b) MEANING(min_u64, a < b ? a : b) MEANING(max_s64, (s64)a > (s64)b ? a : b) MEANING(max_u64, a > b ? a : b)

static u64 dot4(u64 a, u64 b, u64 c, int sa, int sb)
{
    for (int i = 0; i < 4; i++) {
        s64 x = sa ? (s8)(a >> 8 * i) : (u8)(a >> 8 * i), y = sb ? (s8)(b >> 8 * i) : (u8)(b >> 8 * i);
        c += (u64)(x * y);
    }
    return c;
}
MEANING(dp4a_ss, dot4(a, b, c, 1, 1)) MEANING(dp4a_uu, dot4(a, b, c, 0, 0)) MEANING(dp4a_us, dot4(a, b, c, 0, 1)) MEANING(dp4a_su, dot4(a, b, c, 1, 0))

static u64 dot2(u64 a, u64 b, u64 c, int sa, int sb)    // dp2a: two halves by two bytes
{
    for (int i = 0; i < 2; i++) {
        s64 x = sa ? (s16)(a >> 16 * i) : (u16)(a >> 16 * i), y = sb ? (s8)(b >> 8 * i) : (u8)(b >> 8 * i);
        c += (u64)(x * y);
    }
    return c;
}
MEANING(lo_ss, dot2(a, b, c, 1, 1)) MEANING(lo_su, dot2(a, b, c, 1, 0)) MEANING(lo_us, dot2(a, b, c, 0, 1)) MEANING(lo_uu, dot2(a, b, c, 0, 0))
MEANING(hi_ss, dot2(a, b >> 16, c, 1, 1)) MEANING(hi_su, dot2(a, b >> 16, c, 1, 0)) MEANING(hi_us, dot2(a, b >> 16, c, 0, 1)) MEANING(hi_uu, dot2(a, b >> 16, c, 0, 0))

// ---- bits: shifts past the width give zero, or the sign

MEANING(and_, a & b) MEANING(or_, a | b) MEANING(xor_, a ^ b) MEANING(not_, ~a)
MEANING(shl_16, (u32)b > 15 ? 0 : a << b) MEANING(shl_32, (u32)b > 31 ? 0 : a << b) MEANING(shl_64, (u32)b > 63 ? 0 : a << b)
MEANING(shr_u16, (u32)b > 15 ? 0 : a >> b) MEANING(shr_u32, (u32)b > 31 ? 0 : a >> b) MEANING(shr_u64, (u32)b > 63 ? 0 : a >> b)
MEANING(shr_s16, (s16)a >> ((u32)b > 15 ? 15 : b)) MEANING(shr_s32, (s32)a >> ((u32)b > 31 ? 31 : b)) MEANING(shr_s64, (s64)a >> ((u32)b > 63 ? 63 : b))

static u64 leading(u64 a, int width) { int n = 0; while (n < width && !(a >> (width - 1 - n) & 1)) n++; return (u64)n; }
static u64 reversed(u64 a, int width) { u64 r = 0; for (int i = 0; i < width; i++) r |= (a >> i & 1) << (width - 1 - i); return r; }
static u64 ones(u64 a, int width) { u64 n = 0; for (int i = 0; i < width; i++) n += a >> i & 1; return n; }
static u64 highest(u64 a, int width) { return (u64)(width - 1) - leading(a, width); }        // -1 when there is none
MEANING(clz_32, leading(a, 32)) MEANING(clz_64, leading(a, 64)) MEANING(popc_32, ones(a, 32)) MEANING(popc_64, ones(a, 64))
MEANING(brev_32, reversed(a, 32)) MEANING(brev_64, reversed(a, 64))
MEANING(bfind_u32, highest(a, 32)) MEANING(bfind_s32, highest((s32)a < 0 ? ~a : a, 32)) MEANING(bfind_shift, a & 0xffffffff ? leading(a, 32) : ~(u64)0)

// bfi d, a, b, c, d: the low `len` bits of a take the place of b's bits from `pos` on; only the low byte of both counts
static u64 insert(u64 a, u64 b, u64 pos, u64 len, unsigned width)
{
    pos &= 255; len &= 255;
    for (u64 i = 0; i < len && pos + i < width; i++) b = (b & ~((u64)1 << (pos + i))) | (i < width ? (a >> i & 1) : 0) << (pos + i);
    return b;
}
// bfe: `len` bits of a from `pos` on, bits beyond the end taken as the sign (or zero), the top one extended
static u64 extract(u64 a, u64 pos, u64 len, unsigned width, int is_signed)
{
    pos &= 255; len &= 255;
    u64 sign = !is_signed || !len ? 0 : a >> (pos + len - 1 < width - 1 ? pos + len - 1 : width - 1) & 1, r = 0;
    for (unsigned i = 0; i < width; i++) r |= (i < len && pos + i < width ? a >> (pos + i) & 1 : sign) << i;
    return r;
}
MEANING(bfi_32, insert(a, b, c, d, 32)) MEANING(bfi_64, insert(a, b, c, d, 64))
MEANING(bfe_u32, extract(a, b, c, 32, 0)) MEANING(bfe_s32, extract(a, b, c, 32, 1)) MEANING(bfe_u64, extract(a, b, c, 64, 0)) MEANING(bfe_s64, extract(a, b, c, 64, 1))
MEANING(shf_l_wrap, ((b & 0xffffffff) << 32 | (a & 0xffffffff)) << (c & 31) >> 32)
MEANING(shf_r_wrap, ((b & 0xffffffff) << 32 | (a & 0xffffffff)) >> (c & 31))
MEANING(shf_l_clamp, (u128)((b & 0xffffffff) << 32 | (a & 0xffffffff)) << ((u32)c > 32 ? 32 : c) >> 32)
MEANING(shf_r_clamp, ((b & 0xffffffff) << 32 | (a & 0xffffffff)) >> ((u32)c > 32 ? 32 : c))

// prmt: each nibble of the selector takes one of eight bytes, or its sign eight times
static u64 permute(u64 a, u64 b, u64 selector)
{
    u64 bytes = (b & 0xffffffff) << 32 | (a & 0xffffffff), r = 0;
    for (int i = 0; i < 4; i++) {
        u64 n = selector >> 4 * i & 15, byte = bytes >> 8 * (n & 7) & 255;
        r |= (n & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return r;
}
MEANING(prmt_, permute(a, b, c))

// ---- choice and comparison

MEANING(selp_, c & 1 ? a : b)
#define COMPARE(type) MEANING(eq_##type, (type)a == (type)b) MEANING(ne_##type, (type)a != (type)b) MEANING(lt_##type, (type)a < (type)b) \
    MEANING(le_##type, (type)a <= (type)b) MEANING(gt_##type, (type)a > (type)b) MEANING(ge_##type, (type)a >= (type)b)
COMPARE(s16) COMPARE(u16) COMPARE(s32) COMPARE(u32) COMPARE(s64) COMPARE(u64)
#define COMPARE_ROWS(t, shape) { "setp.eq." #t, shape, eq_##t, "" }, { "setp.ne." #t, shape, ne_##t, "" }, { "setp.lt." #t, shape, lt_##t, "" }, \
    { "setp.le." #t, shape, le_##t, "" }, { "setp.gt." #t, shape, gt_##t, "" }, { "setp.ge." #t, shape, ge_##t, "" }

// ---- between widths

MEANING(from_u8, (u8)a) MEANING(from_s8, (s64)(s8)a) MEANING(from_u16, (u16)a) MEANING(from_s16, (s64)(s16)a) MEANING(from_u32, (u32)a) MEANING(from_s32, (s64)(s32)a)
MEANING(same_, a)

static const row arithmetic[] = {
    { "add.s32", "r rr", add_, "" }, { "add.u32", "r rr", add_, "" }, { "add.s64", "d dd", add_, "" }, { "add.u64", "d dd", add_, "" }, { "add.s16", "h hh", add_, "" },
    { "sub.s32", "r rr", sub_, "" }, { "sub.u32", "r rr", sub_, "" }, { "sub.s64", "d dd", sub_, "" }, { "sub.u64", "d dd", sub_, "" }, { "sub.s16", "h hh", sub_, "" },
    { "mul.lo.s32", "r rr", mul_, "" }, { "mul.lo.u32", "r rr", mul_, "" }, { "mul.lo.s64", "d dd", mul_, "" }, { "mul.lo.u64", "d dd", mul_, "" }, { "mul.lo.s16", "h hh", mul_, "" },
    { "mul.hi.s32", "r rr", hi_s32, "" }, { "mul.hi.u32", "r rr", hi_u32, "" }, { "mul.hi.s64", "d dd", hi_s64, "" }, { "mul.hi.u64", "d dd", hi_u64, "" },
    { "mul.wide.s32", "d rr", wide_s32, "" }, { "mul.wide.u32", "d rr", wide_u32, "" }, { "mul.wide.s16", "r hh", wide_s16, "" }, { "mul.wide.u16", "r hh", wide_u16, "" },
    { "mad.lo.s32", "r rrr", mad_, "" }, { "mad.lo.u32", "r rrr", mad_, "" }, { "mad.lo.s64", "d ddd", mad_, "" },
    { "mad.wide.s32", "d rrd", mad_wide_s32, "" }, { "mad.wide.u32", "d rrd", mad_wide_u32, "" },
    { "div.s32", "r rr", div_s32, "nonzero" }, { "div.u32", "r rr", div_u32, "nonzero" }, { "rem.s32", "r rr", rem_s32, "nonzero" }, { "rem.u32", "r rr", rem_u32, "nonzero" },
    { "div.s64", "d dd", div_s64, "nonzero" }, { "div.u64", "d dd", div_u64, "nonzero" }, { "rem.s64", "d dd", rem_s64, "nonzero" }, { "rem.u64", "d dd", rem_u64, "nonzero" },
    { "abs.s32", "r r", abs_s32, "" }, { "abs.s64", "d d", abs_s64, "" }, { "neg.s32", "r r", neg_, "" }, { "neg.s64", "d d", neg_, "" },
    { "min.s32", "r rr", min_s32, "" }, { "min.u32", "r rr", min_u32, "" }, { "max.s32", "r rr", max_s32, "" }, { "max.u32", "r rr", max_u32, "" },
    { "min.s64", "d dd", min_s64, "" }, { "min.u64", "d dd", min_u64, "" }, { "max.s64", "d dd", max_s64, "" }, { "max.u64", "d dd", max_u64, "" },
    { "dp4a.s32.s32", "r rrr", dp4a_ss, "" }, { "dp4a.u32.u32", "r rrr", dp4a_uu, "" }, { "dp4a.u32.s32", "r rrr", dp4a_us, "" }, { "dp4a.s32.u32", "r rrr", dp4a_su, "" },
    { "dp2a.lo.s32.s32", "r rrr", lo_ss, "" }, { "dp2a.lo.s32.u32", "r rrr", lo_su, "" }, { "dp2a.lo.u32.s32", "r rrr", lo_us, "" }, { "dp2a.lo.u32.u32", "r rrr", lo_uu, "" },
    { "dp2a.hi.s32.s32", "r rrr", hi_ss, "" }, { "dp2a.hi.s32.u32", "r rrr", hi_su, "" }, { "dp2a.hi.u32.s32", "r rrr", hi_us, "" }, { "dp2a.hi.u32.u32", "r rrr", hi_uu, "" },
};
static const row bits[] = {
    { "and.b16", "h hh", and_, "" }, { "and.b32", "r rr", and_, "" }, { "and.b64", "d dd", and_, "" }, { "and.pred", "p pp", and_, "" },
    { "or.b16", "h hh", or_, "" }, { "or.b32", "r rr", or_, "" }, { "or.b64", "d dd", or_, "" }, { "or.pred", "p pp", or_, "" },
    { "xor.b16", "h hh", xor_, "" }, { "xor.b32", "r rr", xor_, "" }, { "xor.b64", "d dd", xor_, "" }, { "xor.pred", "p pp", xor_, "" },
    { "not.b16", "h h", not_, "" }, { "not.b32", "r r", not_, "" }, { "not.b64", "d d", not_, "" }, { "not.pred", "p p", not_, "" },
    { "shl.b16", "h hr", shl_16, "" }, { "shl.b32", "r rr", shl_32, "" }, { "shl.b64", "d dr", shl_64, "" },
    { "shr.u16", "h hr", shr_u16, "" }, { "shr.u32", "r rr", shr_u32, "" }, { "shr.u64", "d dr", shr_u64, "" },
    { "shr.s16", "h hr", shr_s16, "" }, { "shr.s32", "r rr", shr_s32, "" }, { "shr.s64", "d dr", shr_s64, "" },
    { "clz.b32", "r r", clz_32, "" }, { "clz.b64", "r d", clz_64, "" }, { "popc.b32", "r r", popc_32, "" }, { "popc.b64", "r d", popc_64, "" },
    { "brev.b32", "r r", brev_32, "" }, { "brev.b64", "d d", brev_64, "" },
    { "bfind.u32", "r r", bfind_u32, "" }, { "bfind.s32", "r r", bfind_s32, "" }, { "bfind.shiftamt.u32", "r r", bfind_shift, "" },
    { "bfi.b32", "r rrrr", bfi_32, "" }, { "bfi.b64", "d ddrr", bfi_64, "" },
    { "bfe.u32", "r rrr", bfe_u32, "" }, { "bfe.s32", "r rrr", bfe_s32, "" }, { "bfe.u64", "d drr", bfe_u64, "" }, { "bfe.s64", "d drr", bfe_s64, "" },
    { "shf.l.wrap.b32", "r rrr", shf_l_wrap, "" }, { "shf.r.wrap.b32", "r rrr", shf_r_wrap, "" },
    { "shf.l.clamp.b32", "r rrr", shf_l_clamp, "" }, { "shf.r.clamp.b32", "r rrr", shf_r_clamp, "" },
    { "prmt.b32", "r rrr", prmt_, "" },
};
static const row choices[] = {
    COMPARE_ROWS(s16, "p hh"), COMPARE_ROWS(u16, "p hh"), COMPARE_ROWS(s32, "p rr"), COMPARE_ROWS(u32, "p rr"), COMPARE_ROWS(s64, "p dd"), COMPARE_ROWS(u64, "p dd"),
    { "setp.eq.b32", "p rr", eq_u32, "" }, { "setp.ne.b32", "p rr", ne_u32, "" }, { "setp.eq.b64", "p dd", eq_u64, "" }, { "setp.ne.b64", "p dd", ne_u64, "" },
    { "setp.eq.b16", "p hh", eq_u16, "" }, { "setp.ne.b16", "p hh", ne_u16, "" },
    { "selp.b16", "h hhp", selp_, "" }, { "selp.u16", "h hhp", selp_, "" }, { "selp.s16", "h hhp", selp_, "" }, { "selp.b32", "r rrp", selp_, "" },
    { "selp.u32", "r rrp", selp_, "" }, { "selp.s32", "r rrp", selp_, "" }, { "selp.f32", "f ffp", selp_, "" }, { "selp.b64", "d ddp", selp_, "" },
    { "selp.u64", "d ddp", selp_, "" }, { "selp.s64", "d ddp", selp_, "" }, { "selp.f64", "g ggp", selp_, "" },
    { "mov.b32", "r r", same_, "" }, { "mov.u32", "r r", same_, "" }, { "mov.f32", "f f", same_, "" }, { "mov.b64", "d d", same_, "" }, { "mov.u64", "d d", same_, "" },
    { "mov.f64", "g g", same_, "" }, { "mov.b16", "h h", same_, "" }, { "mov.u16", "h h", same_, "" }, { "mov.pred", "p p", same_, "" },
};
static const row widths[] = {
    { "cvt.u16.u8", "h h", from_u8, "" }, { "cvt.s16.s8", "h h", from_s8, "" }, { "cvt.u16.u32", "h r", from_u16, "" }, { "cvt.u16.u64", "h d", from_u16, "" },
    { "cvt.u32.u8", "r h", from_u8, "" }, { "cvt.s32.s8", "r h", from_s8, "" }, { "cvt.u32.u16", "r h", from_u16, "" }, { "cvt.s32.s16", "r h", from_s16, "" },
    { "cvt.u32.u64", "r d", from_u32, "" }, { "cvt.s32.s8", "r r", from_s8, "" }, { "cvt.u64.u8", "d h", from_u8, "" }, { "cvt.s64.s8", "d h", from_s8, "" },
    { "cvt.u64.u16", "d h", from_u16, "" }, { "cvt.s64.s16", "d h", from_s16, "" }, { "cvt.u64.u32", "d r", from_u32, "" }, { "cvt.s64.s32", "d r", from_s32, "" },
    { "cvt.s16.s32", "h r", from_u16, "" }, { "cvt.s32.s64", "r d", from_u32, "" }, { "cvt.u32.s32", "r r", same_, "" },
};

static int without_zero_divisors(const row *r, uint64_t *in, int most)
{
    int n = product_and_random(r, in, most), kept = 0;
    for (int i = 0; i < n; i++)
        if (in[4 * i + 1] || strcmp(r->kind, "nonzero")) { memcpy(in + 4 * kept, in + 4 * i, 32); kept++; }
    return kept;
}

#define COUNT(a) (int)(sizeof a / sizeof *a)
static int arithmetic_is_right(void) { CHECK(rows_check(arithmetic, COUNT(arithmetic), 78, 80, without_zero_divisors) == 0); return 0; }
static int bit_operations_are_right(void) { CHECK(rows_check(bits, COUNT(bits), 78, 80, product_and_random) == 0); return 0; }
static int choices_and_comparisons_are_right(void) { CHECK(rows_check(choices, COUNT(choices), 78, 80, product_and_random) == 0); return 0; }
static int conversions_between_widths_are_right(void) { CHECK(rows_check(widths, COUNT(widths), 78, 80, product_and_random) == 0); return 0; }

// All 2^16 selectors of the byte permutation, on bytes of both signs.
static int every_selector(const row *r, uint64_t *in, int most)
{
    (void)r;
    int n = 0;
    for (uint64_t s = 0; s < 65536 && n + 2 <= most; s++) {
        const uint64_t two[2][4] = { { 0x80027f00, 0x1122ff44, s, 0 }, { 0x03828100, 0xf7067584, s | rand64() << 16, 0 } };
        memcpy(in + 4 * n, two, sizeof two);
        in[4 * n + 6] &= 0xffffffff;
        n += 2;
    }
    return n;
}
static int every_selector_of_prmt_is_right(void)
{
    static const row prmt = { "prmt.b32", "r rrr", prmt_, "" };
    CHECK(rows_check(&prmt, 1, 78, 80, every_selector) == 0);
    return 0;
}

// lop3 applies a table of 8 bits, its immediate, to each three bits.
static int every_table_of_lop3_is_right(void)
{
    static char ops[256][16];
    text t = { 0 };
    row_header(&t, 78, 80);
    for (int i = 0; i < 256; i++) {
        snprintf(ops[i], sizeof ops[i], "lop3.b32");
        text k = { 0 };
        row_kernel(&k, i, ops[i], "r rrr", NULL);
        char *at = strchr(strstr(k.s, "lop3"), ';');
        add(&t, "%.*s, 0x%02x%s", (int)(at - k.s), k.s, i, at);
        free(k.s);
    }
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    uint64_t in[64][4], out[64];
    for (int j = 0; j < 64; j++) for (int i = 0; i < 4; i++) in[j][i] = rand64() & 0xffffffff;
    for (int i = 0; i < 256; i++) {
        row_run(m, i, in[0], out, 64);
        for (int j = 0; j < 64; j++) {
            uint64_t want = 0;
            for (int b = 0; b < 32; b++) want |= (uint64_t)(i >> ((in[j][0] >> b & 1) << 2 | (in[j][1] >> b & 1) << 1 | (in[j][2] >> b & 1)) & 1) << b;
            CHECK(out[j] == want);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(arithmetic_is_right);
    ORACLE(bit_operations_are_right);
    ORACLE(choices_and_comparisons_are_right);
    ORACLE(conversions_between_widths_are_right);
    ORACLE(every_selector_of_prmt_is_right);
    ORACLE(every_table_of_lop3_is_right);
    return oracle_end();
}
