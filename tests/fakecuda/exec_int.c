// exec_int.c: owns integer, logical, predicate and move instructions. Each handler does one spelling's work for the lanes of a mask.
// Semantics are those of the PTX manual: shifts clamp, bfi takes positions modulo 256, division by zero gives all ones.
#include "fakecuda.h"
#ifdef FC_WIDE
#include <immintrin.h>
#endif

#define OP3(name, type, expr) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { type *d = (type *)R64(0); const type *a = (const type *)R64(1), *b = (const type *)R64(2); LANES(d[i] = (type)(expr)); }
#define OP2(name, to, from, expr) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { to *d = (to *)R64(0); const from *a = (const from *)R64(1); LANES(d[i] = (to)(expr)); }
#define OP4(name, to, from, third, expr) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { to *d = (to *)R64(0); const from *a = (const from *)R64(1), *b = (const from *)R64(2); const third *c = (const third *)R64(3); \
        LANES(d[i] = (to)(expr)); }

OP3(add32, uint32_t, a[i] + b[i])  OP3(add64, uint64_t, a[i] + b[i])  OP3(sub32, uint32_t, a[i] - b[i])  OP3(sub64, uint64_t, a[i] - b[i])
OP3(mul32, uint32_t, a[i] * b[i])  OP3(mul64, uint64_t, a[i] * b[i])
OP3(mulhi_s, int32_t, (int64_t)a[i] * b[i] >> 32)  OP3(mulhi_u, uint32_t, (uint64_t)a[i] * b[i] >> 32)
OP3(and32, uint32_t, a[i] & b[i])  OP3(or32, uint32_t, a[i] | b[i])  OP3(xor32, uint32_t, a[i] ^ b[i])
OP3(and64, uint64_t, a[i] & b[i])  OP3(or64, uint64_t, a[i] | b[i])  OP3(xor64, uint64_t, a[i] ^ b[i])
OP3(min_s32, int32_t, a[i] < b[i] ? a[i] : b[i])  OP3(max_s32, int32_t, a[i] > b[i] ? a[i] : b[i])
OP3(min_u32, uint32_t, a[i] < b[i] ? a[i] : b[i])  OP3(max_u32, uint32_t, a[i] > b[i] ? a[i] : b[i])
OP3(min_s64, int64_t, a[i] < b[i] ? a[i] : b[i])  OP3(max_s64, int64_t, a[i] > b[i] ? a[i] : b[i])
OP3(min_u64, uint64_t, a[i] < b[i] ? a[i] : b[i])  OP3(max_u64, uint64_t, a[i] > b[i] ? a[i] : b[i])
OP3(div_s32, int32_t, b[i] == 0 ? -1 : b[i] == -1 ? (int32_t)(0u - (uint32_t)a[i]) : a[i] / b[i])
OP3(rem_s32, int32_t, b[i] == 0 ? a[i] : b[i] == -1 ? 0 : a[i] % b[i])
OP3(div_u32, uint32_t, b[i] == 0 ? 0xffffffffu : a[i] / b[i])  OP3(rem_u32, uint32_t, b[i] == 0 ? a[i] : a[i] % b[i])
OP3(div_s64, int64_t, b[i] == 0 ? -1 : b[i] == -1 ? (int64_t)(0u - (uint64_t)a[i]) : a[i] / b[i])
OP3(rem_s64, int64_t, b[i] == 0 ? a[i] : b[i] == -1 ? 0 : a[i] % b[i])
OP3(div_u64, uint64_t, b[i] == 0 ? ~(uint64_t)0 : a[i] / b[i])  OP3(rem_u64, uint64_t, b[i] == 0 ? a[i] : a[i] % b[i])
OP2(neg32, uint32_t, uint32_t, 0 - a[i])  OP2(neg64, uint64_t, uint64_t, 0 - a[i])  OP2(not32, uint32_t, uint32_t, ~a[i])
OP2(not64, uint64_t, uint64_t, ~a[i])
OP2(abs_s32, uint32_t, int32_t, a[i] < 0 ? 0u - (uint32_t)a[i] : (uint32_t)a[i])
OP2(not16, uint32_t, uint32_t, ~a[i] & 0xffff)
OP3(add16, uint32_t, (a[i] + b[i]) & 0xffff)  OP3(sub16, uint32_t, (a[i] - b[i]) & 0xffff)  OP3(mul16, uint32_t, (a[i] * b[i]) & 0xffff)
OP3(shl16, uint32_t, b[i] > 15 ? 0 : a[i] << b[i] & 0xffff)  OP3(shr16, uint32_t, b[i] > 15 ? 0 : a[i] >> b[i])
OP3(shr_s16, uint32_t, ((int16_t)a[i] >> (b[i] > 15 ? 15 : b[i])) & 0xffff)
OP4(mad32, uint32_t, uint32_t, uint32_t, a[i] * b[i] + c[i])  OP4(mad64, uint64_t, uint64_t, uint64_t, a[i] * b[i] + c[i])
OP4(mad_wide_s, int64_t, int32_t, int64_t, (uint64_t)((int64_t)a[i] * b[i]) + (uint64_t)c[i])
OP4(mad_wide_u, uint64_t, uint32_t, uint64_t, (uint64_t)a[i] * b[i] + c[i])
OP3(shl32, uint32_t, b[i] > 31 ? 0 : a[i] << (b[i] & 31))  OP3(shr_u32, uint32_t, b[i] > 31 ? 0 : a[i] >> (b[i] & 31))
FC_CLONES static void shr_s32(fc_warp *w, fc_insn *in, uint32_t mask)
{ int32_t *d = (int32_t *)R32(0); const int32_t *a = (const int32_t *)R32(1); const uint32_t *b = R32(2);
    LANES(d[i] = a[i] >> (b[i] > 31 ? 31 : b[i])); }
#define SHIFT64(name, type, expr) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { type *d = (type *)R64(0); const type *a = (const type *)R64(1); const uint32_t *b = R32(2); LANES(d[i] = (type)(expr)); }
SHIFT64(shl64, uint64_t, b[i] > 63 ? 0 : a[i] << (b[i] & 63))  SHIFT64(shr_u64, uint64_t, b[i] > 63 ? 0 : a[i] >> (b[i] & 63))
SHIFT64(shr_s64, int64_t, a[i] >> (b[i] > 63 ? 63 : b[i]))
#define WIDE(name, to, from) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { to *d = (to *)R64(0); const from *a = (const from *)R32(1), *b = (const from *)R32(2); LANES(d[i] = (to)a[i] * b[i]); }
WIDE(mul_wide_s32, int64_t, int32_t)  WIDE(mul_wide_u32, uint64_t, uint32_t)
OP3(mul_wide_u16, uint32_t, a[i] * b[i])  OP3(mul_wide_s16, uint32_t, (int16_t)a[i] * (int16_t)b[i])
OP4(shf_l_wrap, uint32_t, uint32_t, uint32_t, (((uint64_t)b[i] << 32 | a[i]) << (c[i] & 31)) >> 32)
OP4(shf_r_wrap, uint32_t, uint32_t, uint32_t, ((uint64_t)b[i] << 32 | a[i]) >> (c[i] & 31))
OP4(shf_l_clamp, uint32_t, uint32_t, uint32_t, (((uint64_t)b[i] << 32 | a[i]) << (c[i] > 32 ? 32 : c[i])) >> 32)
OP4(shf_r_clamp, uint32_t, uint32_t, uint32_t, ((uint64_t)b[i] << 32 | a[i]) >> (c[i] > 32 ? 32 : c[i]))
OP2(clz32, uint32_t, uint32_t, a[i] ? __builtin_clz(a[i]) : 32)  OP2(popc32, uint32_t, uint32_t, __builtin_popcount(a[i]))
OP2(bfind_shift, uint32_t, uint32_t, a[i] ? __builtin_clz(a[i]) : -1)  OP2(bfind, uint32_t, uint32_t, a[i] ? 31 - __builtin_clz(a[i]) : -1)

static uint32_t reversed(uint32_t v)
{
    v = (v >> 1 & 0x55555555) | (v & 0x55555555) << 1;
    v = (v >> 2 & 0x33333333) | (v & 0x33333333) << 2;
    v = (v >> 4 & 0x0f0f0f0f) | (v & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(v);
}
OP2(brev32, uint32_t, uint32_t, reversed(a[i]))

// prmt: byte k of the result is byte (selector nibble k & 7) of b:a, or that byte's sign over all 8 bits where the nibble's top bit is set.
static inline uint32_t prmt_byte(uint64_t both, uint32_t nibble)
{
    uint32_t byte = (uint32_t)(both >> (nibble & 7) * 8) & 0xff;
    return nibble & 8 ? (byte & 0x80 ? 0xff : 0) : byte;
}
OP4(prmt_plain, uint32_t, uint32_t, uint32_t, prmt_byte((uint64_t)b[i] << 32 | a[i], c[i] & 15) | prmt_byte((uint64_t)b[i] << 32 | a[i],
c[i] >> 4 & 15) << 8
    | prmt_byte((uint64_t)b[i] << 32 | a[i], c[i] >> 8 & 15) << 16 | prmt_byte((uint64_t)b[i] << 32 | a[i], c[i] >> 12 & 15) << 24)

// The same with the vector units' byte shuffle: nibbles spread to bytes choose within a and within b, bit 2 chooses between them.
#ifdef FC_WIDE
__attribute__((target("avx512bw"))) static void prmt_512(uint32_t *d, const uint32_t *a, const uint32_t *b, const uint32_t *c, uint32_t mask)
{
    const __m512i own = _mm512_broadcast_i32x4(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    for (int i = 0; i < 32; i += 16) {
        __m512i s = _mm512_loadu_si512(c + i), x, nibble, at, v;
        x = _mm512_or_si512(_mm512_and_si512(s, _mm512_set1_epi32(0xff)), _mm512_and_si512(_mm512_slli_epi32(s, 8), _mm512_set1_epi32(0xff0000)));
        nibble = _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi32(x, 4)), _mm512_set1_epi32(0x0f0f0f0f));
        at = _mm512_or_si512(_mm512_and_si512(nibble, _mm512_set1_epi32(0x03030303)), own);
        v = _mm512_mask_blend_epi8(_mm512_test_epi8_mask(nibble, _mm512_set1_epi32(0x04040404)), _mm512_shuffle_epi8(_mm512_loadu_si512(a + i), at),
                                   _mm512_shuffle_epi8(_mm512_loadu_si512(b + i), at));
        __mmask64 sign = _mm512_test_epi8_mask(nibble, _mm512_set1_epi32(0x08080808));
        if (sign) v = _mm512_mask_blend_epi8(sign, v, _mm512_movm_epi8(_mm512_movepi8_mask(v)));
        _mm512_mask_storeu_epi32(d + i, (__mmask16)(mask >> i), v);
    }
}

__attribute__((target("avx2"))) static void prmt_256(uint32_t *d, const uint32_t *a, const uint32_t *b, const uint32_t *c)
{
    const __m256i own = _mm256_broadcastsi128_si256(_mm_set_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0));
    for (int i = 0; i < 32; i += 8) {
        __m256i s = _mm256_loadu_si256((const __m256i *)(c + i)), x, nibble, at, v;
        x = _mm256_or_si256(_mm256_and_si256(s, _mm256_set1_epi32(0xff)), _mm256_and_si256(_mm256_slli_epi32(s, 8), _mm256_set1_epi32(0xff0000)));
        nibble = _mm256_and_si256(_mm256_or_si256(x, _mm256_slli_epi32(x, 4)), _mm256_set1_epi32(0x0f0f0f0f));
        at = _mm256_or_si256(_mm256_and_si256(nibble, _mm256_set1_epi32(0x03030303)), own);
        v = _mm256_blendv_epi8(_mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(a + i)), at),
            _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(b + i)), at),
                               _mm256_slli_epi32(nibble, 5));
        v = _mm256_blendv_epi8(v, _mm256_cmpgt_epi8(_mm256_setzero_si256(), v), _mm256_slli_epi32(nibble, 4));
        _mm256_storeu_si256((__m256i *)(d + i), v);
    }
}

static void prmt(fc_warp *w, fc_insn *in, uint32_t mask)
{
    if (__builtin_cpu_supports("avx512bw")) prmt_512(R32(0), R32(1), R32(2), R32(3), mask);
    else if (mask == 0xffffffffu && __builtin_cpu_supports("avx2")) prmt_256(R32(0), R32(1), R32(2), R32(3));
    else prmt_plain(w, in, mask);
}
#else
#define prmt prmt_plain
#endif

static uint64_t inserted(uint64_t a, uint64_t b, uint32_t pos, uint32_t len, uint32_t bits)
{
    pos &= 255; len &= 255;
    if (pos >= bits) return b;
    if (len > bits - pos) len = bits - pos;
    uint64_t field = (len >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << len) - 1) << pos;
    return (b & ~field) | (a << pos & field);
}
static void bfi32(fc_warp *w, fc_insn *in, uint32_t mask)
{ uint32_t *d = R32(0), *a = R32(1), *b = R32(2), *c = R32(3), *e = R32(4); LANES(d[i] = (uint32_t)inserted(a[i], b[i], c[i], e[i], 32)); }
static void bfi64(fc_warp *w, fc_insn *in, uint32_t mask)
{ uint64_t *d = R64(0), *a = R64(1), *b = R64(2); uint32_t *c = R32(3), *e = R32(4); LANES(d[i] = inserted(a[i], b[i], c[i], e[i], 64)); }

// bfe: bits that lie beyond the word are zero, or copies of the sign bit, which is that of the last bit inside the field or word.
static uint32_t extracted(uint32_t a, uint32_t pos, uint32_t len, bool is_signed)
{
    pos &= 255; len &= 255;
    uint32_t last = pos + len - 1 < 31 ? pos + len - 1 : 31, sign = is_signed && len ? a >> last & 1 : 0, r = 0;
    for (uint32_t k = 0; k < 32; k++) r |= (k < len && pos + k < 32 ? a >> (pos + k) & 1 : sign) << k;
    return r;
}
OP4(bfe_u32, uint32_t, uint32_t, uint32_t, extracted(a[i], b[i], c[i], false))
OP4(bfe_s32, uint32_t, uint32_t, uint32_t, extracted(a[i], b[i], c[i], true))

static void lop3(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0), *a = R32(1), *b = R32(2), *c = R32(3), table = in->o[4];
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        uint32_t r = 0;
        for (int k = 0; k < 8; k++) if (table >> k & 1) r |= (k & 4 ? a[i] : ~a[i]) & (k & 2 ? b[i] : ~b[i]) & (k & 1 ? c[i] : ~c[i]);
        d[i] = r;
    }
}

static int dot4(uint32_t a, uint32_t b)
{
    int s = 0;
    for (int k = 0; k < 4; k++) s += (int8_t)(a >> 8 * k) * (int8_t)(b >> 8 * k);
    return s;
}
OP4(dp4a_ss, uint32_t, uint32_t, uint32_t, (uint32_t)dot4(a[i], b[i]) + c[i])

// ---- moves

OP2(mov32, uint32_t, uint32_t, a[i])  OP2(mov64, uint64_t, uint64_t, a[i])
static void movp(fc_warp *w, fc_insn *in, uint32_t mask) { *RPRED(0) = (*RPRED(0) & ~mask) | (*RPRED(1) & mask); }
static void pack16(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0), *a = R32(1), *b = R32(2);
    LANES(d[i] = (a[i] & 0xffff) | b[i] << 16);
}
static void unpack16(fc_warp *w, fc_insn *in, uint32_t mask)
{ uint32_t *d = R32(0), *e = R32(1), *a = R32(2); LANES(uint32_t v = a[i]; d[i] = v & 0xffff; e[i] = v >> 16); }
static void pack32(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint64_t *d = R64(0); uint32_t *a = R32(1), *b = R32(2); LANES(d[i] = (uint64_t)b[i] << 32 | a[i]);
}
static void unpack32(fc_warp *w, fc_insn *in, uint32_t mask)
{ uint32_t *d = R32(0), *e = R32(1); uint64_t *a = R64(2); LANES(uint64_t v = a[i]; d[i] = (uint32_t)v; e[i] = (uint32_t)(v >> 32)); }
static void pack64x4(fc_warp *w, fc_insn *in, uint32_t mask)
{ uint64_t *d = R64(0); uint32_t *a = R32(1), *b = R32(2), *c = R32(3), *e = R32(4);
  LANES(d[i] = (a[i] & 0xffff) | (uint64_t)(b[i] & 0xffff) << 16 | (uint64_t)(c[i] & 0xffff) << 32 | (uint64_t)(e[i] & 0xffff) << 48); }
static void unpack64x4(fc_warp *w, fc_insn *in, uint32_t mask)
{ uint32_t *d = R32(0), *e = R32(1), *f = R32(2), *g = R32(3); uint64_t *a = R64(4);
  LANES(uint64_t v = a[i]; d[i] = v & 0xffff; e[i] = v >> 16 & 0xffff; f[i] = v >> 32 & 0xffff; g[i] = (uint32_t)(v >> 48)); }

// ---- conversions between integers

OP2(cvt_s64_s32, int64_t, int32_t, a[i])  OP2(cvt_u64_u32, uint64_t, uint32_t, a[i])  OP2(cvt_u32_u64, uint32_t, uint64_t, a[i])
OP2(cvt_u16, uint32_t, uint32_t, a[i] & 0xffff)  OP2(cvt_u16_u64, uint32_t, uint64_t, a[i] & 0xffff)  OP2(cvt_u8, uint32_t, uint32_t, a[i] & 0xff)
OP2(cvt_s32_s16, int32_t, int32_t, (int16_t)a[i])  OP2(cvt_s32_s8, int32_t, int32_t, (int8_t)a[i])
OP2(cvt_s16_s8, uint32_t, uint32_t, (int8_t)a[i] & 0xffff)
OP2(cvt_u64_u16, uint64_t, uint32_t, a[i] & 0xffff)  OP2(cvt_s64_s16, int64_t, int32_t, (int16_t)a[i])

// ---- predicates

static void andp(fc_warp *w, fc_insn *in, uint32_t mask) { *RPRED(0) = (*RPRED(0) & ~mask) | (*RPRED(1) & *RPRED(2) & mask); }
static void orp(fc_warp *w, fc_insn *in, uint32_t mask) { *RPRED(0) = (*RPRED(0) & ~mask) | ((*RPRED(1) | *RPRED(2)) & mask); }
static void xorp(fc_warp *w, fc_insn *in, uint32_t mask) { *RPRED(0) = (*RPRED(0) & ~mask) | ((*RPRED(1) ^ *RPRED(2)) & mask); }
static void notp(fc_warp *w, fc_insn *in, uint32_t mask) { *RPRED(0) = (*RPRED(0) & ~mask) | (~*RPRED(1) & mask); }

#define SETP(name, type, op) FC_CLONES static void name(fc_warp *w, fc_insn *in, uint32_t mask) { \
    const type *a = (const type *)R64(1), *b = (const type *)R64(2); uint32_t r = 0; \
    for (int i = 0; i < 32; i++) r |= (uint32_t)(a[i] op b[i]) << i; \
    *RPRED(0) = (*RPRED(0) & ~mask) | (r & mask); }
#define SETP6(s, type) \
    SETP(setp_eq_##s, type, ==) SETP(setp_ne_##s, type, !=) SETP(setp_lt_##s, type, <) SETP(setp_le_##s, type, <=) SETP(setp_gt_##s, type, >) \
    SETP(setp_ge_##s, type, >=)
SETP6(s32, int32_t) SETP6(u32, uint32_t) SETP6(s64, int64_t) SETP6(u64, uint64_t)
#define SETP16(s, type) SETP(setp_eq_##s, uint32_t, ==) SETP(setp_ne_##s, uint32_t, !=)
SETP16(b16, uint32_t)
#define SETP_HALF(name, type, op) \
    static void name(fc_warp *w, fc_insn *in, uint32_t mask) { const uint32_t *a = R32(1), *b = R32(2); uint32_t r = 0; \
    for (int i = 0; i < 32; i++) r |= (uint32_t)((type)a[i] op (type)b[i]) << i; \
    *RPRED(0) = (*RPRED(0) & ~mask) | (r & mask); }
#define SETP_HALF6(s, type) \
    SETP_HALF(setp_eq_##s, type, ==) SETP_HALF(setp_ne_##s, type, !=) SETP_HALF(setp_lt_##s, type, <) SETP_HALF(setp_le_##s, type, <=) \
        SETP_HALF(setp_gt_##s, type, >) SETP_HALF(setp_ge_##s, type, >=)
SETP_HALF6(s16, int16_t) SETP_HALF6(u16, uint16_t)
#define SEL(name, type) static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { type *d = (type *)R64(0); const type *a = (const type *)R64(1), *b = (const type *)R64(2); uint32_t p = *RPRED(3); \
        LANES(d[i] = p >> i & 1 ? a[i] : b[i]); }
SEL(selp32, uint32_t) SEL(selp64, uint64_t)

// ---- less common ones

#define H(v) ((int16_t)(v))
OP2(neg16, uint32_t, uint32_t, (0 - a[i]) & 0xffff)  OP2(abs16, uint32_t, uint32_t, (H(a[i]) < 0 ? 0 - a[i] : a[i]) & 0xffff)
OP3(min_s16, uint32_t, H(a[i]) < H(b[i]) ? a[i] : b[i])  OP3(max_s16, uint32_t, H(a[i]) > H(b[i]) ? a[i] : b[i])
OP3(div_u16, uint32_t, b[i] ? a[i] / b[i] : 0xffff)  OP3(rem_u16, uint32_t, b[i] ? a[i] % b[i] : a[i])
OP3(div_s16, uint32_t, (b[i] ? H(a[i]) / H(b[i]) : -1) & 0xffff)  OP3(rem_s16, uint32_t, (b[i] ? H(a[i]) % H(b[i]) : H(a[i])) & 0xffff)
OP3(mulhi_s16, uint32_t, (H(a[i]) * H(b[i]) >> 16) & 0xffff)  OP3(mulhi_u16, uint32_t, a[i] * b[i] >> 16)
OP4(mad16, uint32_t, uint32_t, uint32_t, (a[i] * b[i] + c[i]) & 0xffff)

OP3(mulhi_s64, int64_t, (int64_t)((__int128)a[i] * b[i] >> 64))  OP3(mulhi_u64, uint64_t, (uint64_t)((unsigned __int128)a[i] * b[i] >> 64))
OP2(abs_s64, uint64_t, int64_t, a[i] < 0 ? 0 - (uint64_t)a[i] : (uint64_t)a[i])
OP2(clz64, uint32_t, uint64_t, a[i] ? __builtin_clzll(a[i]) : 64)  OP2(popc64, uint32_t, uint64_t, __builtin_popcountll(a[i]))
OP2(brev64, uint64_t, uint64_t, (uint64_t)reversed((uint32_t)a[i]) << 32 | reversed((uint32_t)(a[i] >> 32)))
// bfind of a signed value looks for the highest bit that differs from the sign
OP2(bfind_s, uint32_t, int32_t, a[i] == 0 || a[i] == -1 ? -1 : 31 - __builtin_clz(a[i] < 0 ? ~(uint32_t)a[i] : (uint32_t)a[i]))
static uint64_t extracted64(uint64_t a, uint32_t pos, uint32_t len, bool is_signed)
{
    pos &= 255; len &= 255;
    uint32_t last = pos + len - 1 < 63 ? pos + len - 1 : 63;
    uint64_t sign = is_signed && len ? a >> last & 1 : 0, r = 0;
    for (uint32_t k = 0; k < 64; k++) r |= (k < len && pos + k < 64 ? a >> (pos + k) & 1 : sign) << k;
    return r;
}
#define BFE64(name, is_signed) static void name(fc_warp *w, fc_insn *in, uint32_t mask) \
    { uint64_t *d = R64(0), *a = R64(1); uint32_t *b = R32(2), *c = R32(3); LANES(d[i] = extracted64(a[i], b[i], c[i], is_signed)); }
BFE64(bfe_u64, false) BFE64(bfe_s64, true)
static uint32_t dot4_of(uint32_t a, uint32_t b, bool sa, bool sb)
{
    uint32_t s = 0;
    for (int k = 0; k < 4; k++) {
        int x = sa ? (int8_t)(a >> 8 * k) : (int)(a >> 8 * k & 0xff), y = sb ? (int8_t)(b >> 8 * k) : (int)(b >> 8 * k & 0xff);
        s += (uint32_t)(x * y);
    }
    return s;
}
OP4(dp4a_su, uint32_t, uint32_t, uint32_t, dot4_of(a[i], b[i], true, false) + c[i])
OP4(dp4a_us, uint32_t, uint32_t, uint32_t, dot4_of(a[i], b[i], false, true) + c[i])
OP4(dp4a_uu, uint32_t, uint32_t, uint32_t, dot4_of(a[i], b[i], false, false) + c[i])

// dp2a: two 16-bit halves by two bytes, the lower or the upper ones.
static uint32_t dot2_of(uint32_t a, uint32_t b, bool sa, bool sb)
{
    uint32_t s = 0;
    for (int k = 0; k < 2; k++) {
        int x = sa ? (int16_t)(a >> 16 * k) : (int)(a >> 16 * k & 0xffff), y = sb ? (int8_t)(b >> 8 * k) : (int)(b >> 8 * k & 0xff);
        s += (uint32_t)(x * y);
    }
    return s;
}
#define DP2A(name, sa, sb) OP4(dp2a_lo_##name, uint32_t, uint32_t, uint32_t, dot2_of(a[i], b[i], sa, sb) + c[i]) \
    OP4(dp2a_hi_##name, uint32_t, uint32_t, uint32_t, dot2_of(a[i], b[i] >> 16, sa, sb) + c[i])
DP2A(ss, true, true)  DP2A(su, true, false)  DP2A(us, false, true)  DP2A(uu, false, false)
OP2(cvt_s8_s32, uint32_t, uint32_t, (int8_t)a[i] & 0xffff)  OP2(cvt_s8_s64, uint32_t, uint64_t, (int8_t)a[i] & 0xffff)
OP2(cvt_u64_u8, uint64_t, uint32_t, a[i] & 0xff)  OP2(cvt_s64_s8, int64_t, int32_t, (int8_t)a[i])

// setp with a second predicate: the comparison, and / or / xor that predicate
#define SETP_WITH(name, type, cmp, op) \
    static void name(fc_warp *w, fc_insn *in, uint32_t mask) { const type *a = (const type *)R32(1), *b = (const type *)R32(2); uint32_t r = 0; \
    for (int i = 0; i < 32; i++) r |= (uint32_t)(a[i] cmp b[i]) << i; \
    *RPRED(0) = (*RPRED(0) & ~mask) | ((r op *RPRED(3)) & mask); }
#define SETP_WITH3(s, type, c, cmp) \
    SETP_WITH(setp_##c##_and_##s, type, cmp, &) SETP_WITH(setp_##c##_or_##s, type, cmp, |) SETP_WITH(setp_##c##_xor_##s, type, cmp, ^)
#define SETP_WITH18(s, type) \
    SETP_WITH3(s, type, eq, ==) SETP_WITH3(s, type, ne, !=) SETP_WITH3(s, type, lt, <) SETP_WITH3(s, type, le, <=) SETP_WITH3(s, type, gt, >) \
        SETP_WITH3(s, type, ge, >=)
SETP_WITH18(s32, int32_t) SETP_WITH18(u32, uint32_t)

#define I(s, shape, fn) {s, shape, fn, FC_int, 0, 0}
#define M(s, shape, fn) {s, shape, fn, FC_move, 0, 0}
#define P(s, shape, fn) {s, shape, fn, FC_predicate, 0, 0}
#define SETROWS(t, k, fn) P("setp.eq." t, "p=" k k, setp_eq_##fn), P("setp.ne." t, "p=" k k, setp_ne_##fn), P("setp.lt." t, "p=" k k, setp_lt_##fn), \
    P("setp.le." t, "p=" k k, setp_le_##fn), P("setp.gt." t, "p=" k k, setp_gt_##fn), P("setp.ge." t, "p=" k k, setp_ge_##fn)
#define SW(c, t, s) \
    P("setp." #c ".and." t, "p=wwp", setp_##c##_and_##s), P("setp." #c ".or." t, "p=wwp", setp_##c##_or_##s), \
    P("setp." #c ".xor." t, "p=wwp", setp_##c##_xor_##s)
#define SETWITH(t, s) SW(eq, t, s), SW(ne, t, s), SW(lt, t, s), SW(le, t, s), SW(gt, t, s), SW(ge, t, s)
static const fc_row rows[] = {
    I("add.s32", "w=ww", add32), I("add.u32", "w=ww", add32), I("add.s64", "d=dd", add64), I("add.u64", "d=dd", add64), I("sub.s32", "w=ww", sub32),
    I("sub.u32", "w=ww", sub32), I("sub.s64", "d=dd", sub64), I("sub.u64", "d=dd", sub64), I("mul.lo.s32", "w=ww", mul32),
    I("mul.lo.u32", "w=ww", mul32),
    I("mul.lo.s64", "d=dd", mul64), I("mul.lo.u64", "d=dd", mul64), I("mul.hi.s32", "w=ww", mulhi_s), I("mul.hi.u32", "w=ww", mulhi_u),
    I("mul.wide.s32", "d=ww", mul_wide_s32), I("mul.wide.u32", "d=ww", mul_wide_u32), I("mul.wide.u16", "w=hh", mul_wide_u16),
    I("mul.wide.s16", "w=hh", mul_wide_s16),
    I("mad.lo.s32", "w=www", mad32), I("mad.lo.u32", "w=www", mad32), I("mad.lo.s64", "d=ddd", mad64), I("mad.lo.u64", "d=ddd", mad64),
    I("mad.wide.s32", "d=wwd", mad_wide_s), I("mad.wide.u32", "d=wwd", mad_wide_u),
    I("add.s16", "h=hh", add16), I("add.u16", "h=hh", add16), I("sub.s16", "h=hh", sub16), I("sub.u16", "h=hh", sub16),
    I("mul.lo.s16", "h=hh", mul16), I("mul.lo.u16", "h=hh", mul16),
    I("and.b16", "h=hh", and32), I("or.b16", "h=hh", or32), I("xor.b16", "h=hh", xor32), I("not.b16", "h=h", not16), I("shl.b16", "h=hw", shl16),
    I("shr.u16", "h=hw", shr16), I("shr.s16", "h=hw", shr_s16),
    I("and.b32", "w=ww", and32), I("or.b32", "w=ww", or32), I("xor.b32", "w=ww", xor32), I("not.b32", "w=w", not32),
    I("and.b64", "d=dd", and64), I("or.b64", "d=dd", or64), I("xor.b64", "d=dd", xor64), I("not.b64", "d=d", not64),
    I("shl.b32", "w=ww", shl32), I("shr.u32", "w=ww", shr_u32), I("shr.b32", "w=ww", shr_u32), I("shr.s32", "w=ww", shr_s32),
    I("shl.b64", "d=dw", shl64), I("shr.u64", "d=dw", shr_u64), I("shr.b64", "d=dw", shr_u64), I("shr.s64", "d=dw", shr_s64),
    I("min.s32", "w=ww", min_s32), I("max.s32", "w=ww", max_s32), I("min.u32", "w=ww", min_u32), I("max.u32", "w=ww", max_u32),
    I("min.s64", "d=dd", min_s64), I("max.s64", "d=dd", max_s64), I("min.u64", "d=dd", min_u64), I("max.u64", "d=dd", max_u64),
    I("div.s32", "w=ww", div_s32), I("rem.s32", "w=ww", rem_s32), I("div.u32", "w=ww", div_u32), I("rem.u32", "w=ww", rem_u32),
    I("div.s64", "d=dd", div_s64), I("rem.s64", "d=dd", rem_s64), I("div.u64", "d=dd", div_u64), I("rem.u64", "d=dd", rem_u64),
    I("neg.s32", "w=w", neg32), I("neg.s64", "d=d", neg64), I("abs.s32", "w=w", abs_s32),
    I("shf.l.wrap.b32", "w=www", shf_l_wrap), I("shf.r.wrap.b32", "w=www", shf_r_wrap), I("shf.l.clamp.b32", "w=www", shf_l_clamp),
    I("shf.r.clamp.b32", "w=www", shf_r_clamp),
    I("clz.b32", "w=w", clz32), I("popc.b32", "w=w", popc32), I("brev.b32", "w=w", brev32), I("bfind.u32", "w=w", bfind),
    I("bfind.shiftamt.u32", "w=w", bfind_shift),
    I("prmt.b32", "w=www", prmt), I("bfi.b32", "w=wwww", bfi32), I("bfi.b64", "d=ddww", bfi64), I("bfe.u32", "w=www", bfe_u32),
    I("bfe.s32", "w=www", bfe_s32),
    I("lop3.b32", "w=wwwi", lop3), I("dp4a.s32.s32", "w=www", dp4a_ss),
    M("mov.b32", "w=w", mov32), M("mov.u32", "w=w", mov32), M("mov.s32", "w=w", mov32), M("mov.f32", "w=w", mov32), M("mov.b16", "h=h", mov32),
    M("mov.u16", "h=h", mov32),
    M("mov.s16", "h=h", mov32), M("mov.b64", "d=d", mov64), M("mov.u64", "d=d", mov64), M("mov.s64", "d=d", mov64), M("mov.f64", "d=d", mov64),
    M("mov.pred", "p=p", movp),
    M("mov.b32.pack2", "w=h2", pack16), M("mov.b32.unpack2", "h2=w", unpack16), M("mov.b64.pack2", "d=w2", pack32),
    M("mov.b64.unpack2", "w2=d", unpack32),
    M("mov.b64.pack4", "d=h4", pack64x4), M("mov.b64.unpack4", "h4=d", unpack64x4),
    M("selp.b32", "w=wwp", selp32), M("selp.u32", "w=wwp", selp32), M("selp.s32", "w=wwp", selp32), M("selp.f32", "w=wwp", selp32),
    M("selp.b16", "h=hhp", selp32), M("selp.u16", "h=hhp", selp32),
    M("selp.b64", "d=ddp", selp64), M("selp.u64", "d=ddp", selp64), M("selp.s64", "d=ddp", selp64),
    {"cvt.s64.s32", "d=w", cvt_s64_s32, FC_convert, 0, 0}, {"cvt.u64.u32", "d=w", cvt_u64_u32, FC_convert, 0, 0},
    {"cvt.s64.u32", "d=w", cvt_u64_u32, FC_convert, 0, 0}, {"cvt.u32.u64", "w=d", cvt_u32_u64, FC_convert, 0, 0},
    {"cvt.s32.s64", "w=d", cvt_u32_u64, FC_convert, 0, 0}, {"cvt.u32.u16", "w=h", cvt_u16, FC_convert, 0, 0},
    {"cvt.u16.u32", "h=w", cvt_u16, FC_convert, 0, 0}, {"cvt.u16.u64", "h=d", cvt_u16_u64, FC_convert, 0, 0},
    {"cvt.u32.u8", "w=h", cvt_u8, FC_convert, 0, 0}, {"cvt.u16.u8", "h=h", cvt_u8, FC_convert, 0, 0},
    {"cvt.s32.s16", "w=h", cvt_s32_s16, FC_convert, 0, 0}, {"cvt.s32.s8", "w=h", cvt_s32_s8, FC_convert, 0, 0},
    {"cvt.s16.s8", "h=h", cvt_s16_s8, FC_convert, 0, 0}, {"cvt.u64.u16", "d=h", cvt_u64_u16, FC_convert, 0, 0},
    {"cvt.s64.s16", "d=h", cvt_s64_s16, FC_convert, 0, 0},
    {"cvt.s8.s32", "h=w", cvt_s8_s32, FC_convert, 0, 0}, {"cvt.u8.u32", "h=w", cvt_u8, FC_convert, 0, 0},
    {"cvt.s8.s64", "h=d", cvt_s8_s64, FC_convert, 0, 0}, {"cvt.s8.u32", "h=w", cvt_s8_s32, FC_convert, 0, 0},
    I("neg.s16", "h=h", neg16), I("abs.s16", "h=h", abs16), I("min.s16", "h=hh", min_s16), I("max.s16", "h=hh", max_s16),
    I("min.u16", "h=hh", min_u32), I("max.u16", "h=hh", max_u32), I("div.u16", "h=hh", div_u16),
    I("rem.u16", "h=hh", rem_u16), I("div.s16", "h=hh", div_s16), I("rem.s16", "h=hh", rem_s16), I("mul.hi.s16", "h=hh", mulhi_s16),
    I("mul.hi.u16", "h=hh", mulhi_u16), I("mad.lo.s16", "h=hhh", mad16), I("mad.lo.u16", "h=hhh", mad16),
    {"cvt.s64.u16", "d=h", cvt_u64_u16, FC_convert, 0, 0}, {"cvt.s32.u16", "w=h", cvt_u16, FC_convert, 0, 0},
    {"cvt.s32.u8", "w=h", cvt_u8, FC_convert, 0, 0}, {"cvt.s32.s32", "w=w", mov32, FC_convert, 0, 0},
    {"cvt.u16.s16", "h=h", mov32, FC_convert, 0, 0}, {"cvt.s16.u16", "h=h", mov32, FC_convert, 0, 0},
    {"cvt.s16.s64", "h=d", cvt_u16_u64, FC_convert, 0, 0}, {"cvt.u32.s16", "w=h", cvt_s32_s16, FC_convert, 0, 0},
    {"cvt.u64.s32", "d=w", cvt_s64_s32, FC_convert, 0, 0},
    {"cvt.s16.u8", "h=h", cvt_u8, FC_convert, 0, 0}, {"cvt.u64.s16", "d=h", cvt_s64_s16, FC_convert, 0, 0},
    {"cvt.u32.s8", "w=h", cvt_s32_s8, FC_convert, 0, 0}, {"cvt.u16.s8", "h=h", cvt_s16_s8, FC_convert, 0, 0},
    I("mul.hi.s64", "d=dd", mulhi_s64), I("mul.hi.u64", "d=dd", mulhi_u64), I("abs.s64", "d=d", abs_s64), I("clz.b64", "w=d", clz64),
    I("popc.b64", "w=d", popc64), I("brev.b64", "d=d", brev64),
    I("bfind.s32", "w=w", bfind_s), I("bfe.u64", "d=dww", bfe_u64), I("bfe.s64", "d=dww", bfe_s64), I("dp4a.s32.u32", "w=www", dp4a_su),
    I("dp4a.u32.s32", "w=www", dp4a_us), I("dp4a.u32.u32", "w=www", dp4a_uu),
    I("dp2a.lo.s32.s32", "w=www", dp2a_lo_ss), I("dp2a.lo.s32.u32", "w=www", dp2a_lo_su), I("dp2a.lo.u32.s32", "w=www", dp2a_lo_us),
    I("dp2a.lo.u32.u32", "w=www", dp2a_lo_uu),
    I("dp2a.hi.s32.s32", "w=www", dp2a_hi_ss), I("dp2a.hi.s32.u32", "w=www", dp2a_hi_su), I("dp2a.hi.u32.s32", "w=www", dp2a_hi_us),
    I("dp2a.hi.u32.u32", "w=www", dp2a_hi_uu),
    M("selp.f64", "d=ddp", selp64), M("selp.s16", "h=hhp", selp32), {"cvt.s16.s32", "h=w", cvt_u16, FC_convert, 0, 0},
    {"cvt.u32.s32", "w=w", mov32, FC_convert, 0, 0}, {"cvt.s32.u32", "w=w", mov32, FC_convert, 0, 0},
    {"cvt.u64.u8", "d=h", cvt_u64_u8, FC_convert, 0, 0}, {"cvt.s64.s8", "d=h", cvt_s64_s8, FC_convert, 0, 0},
    SETWITH("s32", s32), SETWITH("u32", u32),
    P("and.pred", "p=pp", andp), P("or.pred", "p=pp", orp), P("xor.pred", "p=pp", xorp), P("not.pred", "p=p", notp),
    SETROWS("s32", "w", s32), SETROWS("u32", "w", u32), SETROWS("s64", "d", s64), SETROWS("u64", "d", u64), P("setp.eq.b32", "p=ww", setp_eq_u32),
    P("setp.ne.b32", "p=ww", setp_ne_u32),
    P("setp.eq.b64", "p=dd", setp_eq_u64), P("setp.ne.b64", "p=dd", setp_ne_u64), SETROWS("s16", "h", s16), SETROWS("u16", "h", u16),
    P("setp.eq.b16", "p=hh", setp_eq_b16),
    P("setp.ne.b16", "p=hh", setp_ne_b16),
};
const fc_table fc_alu_rows = {rows, sizeof rows / sizeof *rows};
