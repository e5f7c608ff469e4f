// fuzz.h: the words in which test_fuzz.c writes its random programs, once for NVRTC and once for the C compiler of this machine.
// Every word means the same on both sides, bit for bit. A float that is no number is seen as 0x7fffffff wherever its bits are looked at.
// With FLUSH the program is compiled with -ftz=true, and runs here with the processor's flush modes on. Which operations flush is then not all told:
// NVRTC drops some, as fmin(x, x), so a subnormal number may stand where another compiler has a zero. Bits are looked at with subnormals as zeros.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;
typedef struct state { u32 v[4]; float g[2]; } state;

#ifdef __CUDACC__
#define FN static __device__ __forceinline__
#define INLINE static __device__ __forceinline__
INLINE u32 raw_bits(float f) { return __float_as_uint(f); }
INLINE float as_float(u32 u) { return __uint_as_float(u); }
INLINE u64 raw_bits64(double f) { return (u64)__double_as_longlong(f); }
#define FLUSHED(x) (x)
INLINE float FMA(float x, float y, float z) { return fmaf(x, y, z); }
INLINE double FMA64(double x, double y, double z) { return fma(x, y, z); }
INLINE float SQRT(float x) { return sqrtf(x); }
INLINE float NEG(float x) { return -x; }
INLINE float ABS(float x) { return fabsf(x); }
INLINE float FMIN(float x, float y) { return fminf(x, y); }
INLINE float FMAX(float x, float y) { return fmaxf(x, y); }
INLINE float RINT(float x) { return rintf(x); }
INLINE float TRUNC(float x) { return truncf(x); }
INLINE float FLOOR(float x) { return floorf(x); }
INLINE float CEIL(float x) { return ceilf(x); }
INLINE float SATURATE(float x) { return __saturatef(x); }
INLINE s32 F2I(float x) { return __float2int_rz(x); }
INLINE s32 F2I_NEAR(float x) { return __float2int_rn(x); }
INLINE u32 F2U32(float x) { return __float2uint_rz(x); }
INLINE float ADD_RZ(float x, float y) { return __fadd_rz(x, y); }
INLINE float MUL_RU(float x, float y) { return __fmul_ru(x, y); }
INLINE float FMA_RD(float x, float y, float z) { return __fmaf_rd(x, y, z); }
INLINE u32 MULHI(u32 a, u32 b) { return (u32)__mulhi((s32)a, (s32)b); }
INLINE u32 UMULHI(u32 a, u32 b) { return __umulhi(a, b); }
INLINE u64 UMULHI64(u64 a, u64 b) { return __umul64hi(a, b); }
INLINE u32 POPC(u32 a) { return __popc(a); }
INLINE u32 CLZ(u32 a) { return __clz(a); }
INLINE u32 FFS(u32 a) { return __ffs(a); }
INLINE u32 BREV(u32 a) { return __brev(a); }
INLINE u32 POPC64(u64 a) { return __popcll(a); }
INLINE u32 CLZ64(u64 a) { return __clzll(a); }
INLINE u64 BREV64(u64 a) { return __brevll(a); }
INLINE u32 PERM(u32 a, u32 b, u32 s) { return __byte_perm(a, b, s); }
INLINE u32 FUNNEL_L(u32 lo, u32 hi, u32 s) { return __funnelshift_l(lo, hi, s); }
INLINE u32 FUNNEL_RC(u32 lo, u32 hi, u32 s) { return __funnelshift_rc(lo, hi, s); }
INLINE u32 DP4A(u32 a, u32 b, u32 c) { return (u32)__dp4a((s32)a, (s32)b, (s32)c); }
INLINE u32 BF16_OF(float x) { unsigned short h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
INLINE u32 HALF(float x) { unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h; }
INLINE float OF_HALF(u32 u) { float f; asm("{ .reg .f16 h; .reg .b16 hi; mov.b32 {h, hi}, %1; cvt.f32.f16 %0, h; }" : "=f"(f) : "r"(u)); return f; }
#else
#include <math.h>
#include <string.h>
#define FN static __attribute__((noinline))
#define INLINE static inline
INLINE u32 raw_bits(float f) { u32 u; memcpy(&u, &f, 4); return u; }
INLINE float as_float(u32 u) { float f; __asm__("" : "+r"(u)); memcpy(&f, &u, 4); return f; }      // the compiler must not fold: it would not flush
INLINE u64 raw_bits64(double f) { u64 u; memcpy(&u, &f, 8); return u; }
INLINE int none(float x) { return (raw_bits(x) & 0x7fffffff) > 0x7f800000; }
#ifdef FLUSH
INLINE float FLUSHED(float x) { return raw_bits(x) & 0x7f800000 ? x : as_float(raw_bits(x) & 0x80000000); }
#else
#define FLUSHED(x) (x)
#endif
INLINE float FMA(float x, float y, float z) { return fmaf(x, y, z); }
INLINE double FMA64(double x, double y, double z) { return fma(x, y, z); }
INLINE float SQRT(float x) { return sqrtf(x); }
INLINE float NEG(float x) { return as_float(raw_bits(FLUSHED(x)) ^ 0x80000000); }
INLINE float ABS(float x) { return as_float(raw_bits(FLUSHED(x)) & 0x7fffffff); }
INLINE u32 rank(float x) { u32 u = raw_bits(x); return u & 0x80000000 ? ~u : u | 0x80000000; }
INLINE float FMIN(float x, float y) { x = FLUSHED(x); y = FLUSHED(y); return none(x) ? y : none(y) ? x : rank(x) < rank(y) ? x : y; }
INLINE float FMAX(float x, float y) { x = FLUSHED(x); y = FLUSHED(y); return none(x) ? y : none(y) ? x : rank(x) > rank(y) ? x : y; }
INLINE float signed_as(float r, float x) { return as_float((raw_bits(r) & 0x7fffffff) | (raw_bits(x) & 0x80000000)); }
INLINE float RINT(float x) { x = FLUSHED(x); return signed_as(rintf(x), x); }
INLINE float TRUNC(float x) { x = FLUSHED(x); return signed_as(truncf(x), x); }
INLINE float FLOOR(float x) { x = FLUSHED(x); return signed_as(floorf(x), x); }
INLINE float CEIL(float x) { x = FLUSHED(x); return signed_as(ceilf(x), x); }
INLINE float SATURATE(float x) { x = FLUSHED(x); return x > 0 ? x < 1 ? x : 1.0f : 0.0f; }
INLINE s32 to_s32(double v) { return v != v ? 0 : v >= 2147483647.0 ? 2147483647 : v <= -2147483648.0 ? (s32)-2147483648 : (s32)v; }
INLINE s32 F2I(float x) { return to_s32(FLUSHED(x)); }
INLINE s32 F2I_NEAR(float x) { return to_s32(rint((double)FLUSHED(x))); }
INLINE u32 F2U32(float x) { return none(x) || x <= 0 ? 0 : x >= 4294967296.0f ? 0xffffffff : (u32)x; }
float (*fuzz_rounded)(int mode, int op, float x, float y, float z);    // the test's: one operation under another rounding mode
INLINE float ADD_RZ(float x, float y) { return fuzz_rounded('z', '+', x, y, 0); }
INLINE float MUL_RU(float x, float y) { return fuzz_rounded('u', '*', x, y, 0); }
INLINE float FMA_RD(float x, float y, float z) { return fuzz_rounded('d', 'f', x, y, z); }
INLINE u32 MULHI(u32 a, u32 b) { return (u32)((u64)((s64)(s32)a * (s32)b) >> 32); }
INLINE u32 UMULHI(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
INLINE u64 UMULHI64(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }
INLINE u32 POPC(u32 a) { return (u32)__builtin_popcount(a); }
INLINE u32 CLZ(u32 a) { return a ? (u32)__builtin_clz(a) : 32; }
INLINE u32 FFS(u32 a) { return (u32)__builtin_ffs((s32)a); }
INLINE u32 BREV(u32 a) { u32 r = 0; for (int i = 0; i < 32; i++) r |= (a >> i & 1) << (31 - i); return r; }
INLINE u32 POPC64(u64 a) { return (u32)__builtin_popcountll(a); }
INLINE u32 CLZ64(u64 a) { return a ? (u32)__builtin_clzll(a) : 64; }
INLINE u64 BREV64(u64 a) { return (u64)BREV((u32)a) << 32 | BREV((u32)(a >> 32)); }
INLINE u32 PERM(u32 a, u32 b, u32 s)
{
    u64 bytes = (u64)b << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; i++) r |= (u32)(bytes >> 8 * (s >> 4 * i & 7) & 255) << 8 * i;
    return r;
}
INLINE u32 FUNNEL_L(u32 lo, u32 hi, u32 s) { return (u32)(((u64)hi << 32 | lo) << (s & 31) >> 32); }
INLINE u32 FUNNEL_RC(u32 lo, u32 hi, u32 s) { return (u32)(((u64)hi << 32 | lo) >> (s > 32 ? 32 : s)); }
INLINE u32 DP4A(u32 a, u32 b, u32 c) { for (int i = 0; i < 4; i++) c += (u32)((signed char)(a >> 8 * i) * (signed char)(b >> 8 * i)); return c; }
INLINE u32 BF16_OF(float x) { u32 u = raw_bits(x); return none(x) ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16; }
INLINE u32 HALF(float x)                                  // by the processor's double: scaled so that the unit of the result is 1
{
    double v = fabs((double)as_float(raw_bits(x))), unit;
    u32 sign = raw_bits(x) >> 16 & 0x8000;
    int e;
    if (none(x)) return 0x7fff;
    if (!(raw_bits(x) & 0x7f800000)) return sign;
    if (v >= 65520) return sign | 0x7c00;
    frexp(v, &e);
    if (e < -13) e = -13;
    unit = ldexp(1.0, e - 11);
    v = rint(v / unit);
    return sign | (u32)(v < 1024 ? v : v + (e + 13) * 1024);
}
INLINE float OF_HALF(u32 u)
{
    int e = u >> 10 & 31, m = u & 1023;
    float v = e == 31 ? (m ? as_float(0x7fffffff) : as_float(0x7f800000)) : (float)ldexp(e ? m + 1024 : m, (e ? e : 1) - 25);
    return u & 0x8000 ? as_float(raw_bits(v) | 0x80000000) : v;
}
#endif

#ifdef FLUSH
INLINE u32 BITS(float f) { u32 u = raw_bits(f); return (u & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : (u & 0x7f800000) ? u : u & 0x80000000; }
#else
INLINE u32 BITS(float f) { u32 u = raw_bits(f); return (u & 0x7fffffff) > 0x7f800000 ? 0x7fffffff : u; }
#endif
INLINE u64 BITS64(double f) { u64 u = raw_bits64(f); return (u & 0x7fffffffffffffffull) > 0x7ff0000000000000ull ? 0x7fffffffffffffffull : u; }
INLINE u32 BF16(float x) { return BF16_OF(as_float(BITS(x))); }
INLINE float OF_BF16(u32 u) { return as_float(u << 16); }
INLINE float COPYSIGN(float x, float y) { return as_float((BITS(x) & 0x7fffffff) | (BITS(y) & 0x80000000)); }
INLINE u32 DIVS(u32 a, u32 b) { return b == 0 || b == 0xffffffff ? 0 : (u32)((s32)a / (s32)b); }
INLINE u32 REMS(u32 a, u32 b) { return b == 0 || b == 0xffffffff ? 0 : (u32)((s32)a % (s32)b); }
INLINE s32 D2I(double v) { return v >= 2147483647.0 ? 2147483647 : v > -2147483648.0 ? (s32)v : 0; }
