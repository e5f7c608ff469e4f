// exec_mma.c: owns mma. It adds in order, each sum rounded to f32; or, with the field mma=truncated, as tensor cores are known to: products aligned
// to the largest exponent and cut (M. Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021).
#include "fakecuda.h"
#include <math.h>

// m16n8k16, bf16: D = A B + C. Lane l = 4 g + t holds of A rows g and g + 8, of B column g, of C and D columns 2 t and 2 t + 1.
// In order: products of bf16 are exact in f32, sums run over k and are rounded each time. (This file alone is compiled so that product and sum may
// fuse: no bit changes but where a product is below 2^-126.) The sums stay as they lie in the registers: four lanes hold a row, so each number of A
// is spread over its row's four lanes, and of B four numbers, those of the even or the odd columns, are the same for every row.

static inline float low(uint32_t v) { float f; v <<= 16; memcpy(&f, &v, 4); return f; }
static inline float high(uint32_t v) { float f; v &= 0xffff0000u; memcpy(&f, &v, 4); return f; }

// ---- row by row, for vectors of four

typedef float quad __attribute__((vector_size(16)));

static inline void give_quad(uint32_t *d, quad v)
{
    for (int i = 0; i < 4; i++) {
        float x = v[i];
        d[i] = 0x7fffffff;
        if (x == x) memcpy(&d[i], &x, 4);
    }
}

FC_CLONES static void mma_by_rows(fc_warp *w, const fc_insn *in)
{
    float a[4][2][32];                               // register of A, upper half of its words, lane
    quad b[16][2], sum[8][4];                        // k, odd columns; g, register of C
    for (int r = 0; r < 4; r++) for (int l = 0; l < 32; l++) a[r][0][l] = low(R32(4 + r)[l]), a[r][1][l] = high(R32(4 + r)[l]);
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < 32; l++) {
            int n = l / 4, k = 8 * half + 2 * (l % 4);
            b[k][n & 1][n >> 1] = low(R32(8 + half)[l]);
            b[k + 1][n & 1][n >> 1] = high(R32(8 + half)[l]);
        }
    for (int g = 0; g < 8; g++) {
        quad c[4];
        for (int r = 0; r < 4; r++) memcpy(&c[r], RF32(10 + r) + 4 * g, 16);
        for (int k = 0; k < 16; k++) {
            float upper = a[k / 8 * 2][k & 1][4 * g + k % 8 / 2], lower = a[k / 8 * 2 + 1][k & 1][4 * g + k % 8 / 2];
            c[0] = c[0] + upper * b[k][0];
            c[1] = c[1] + upper * b[k][1];
            c[2] = c[2] + lower * b[k][0];
            c[3] = c[3] + lower * b[k][1];
        }
        for (int r = 0; r < 4; r++) sum[g][r] = c[r];
    }
    for (int g = 0; g < 8; g++) for (int r = 0; r < 4; r++) give_quad(R32(r) + 4 * g, sum[g][r]);
}

// ---- four rows at a time, for vectors of sixteen

#if defined(FC_WIDE) && defined(FC_SHUFFLES)
typedef uint32_t bits __attribute__((vector_size(64)));
typedef float vec __attribute__((vector_size(64)));

#define SPREAD(v, j) __builtin_shufflevector(v, v, j, j, j, j, j + 4, j + 4, j + 4, j + 4, j + 8, j + 8, j + 8, j + 8, j + 12, j + 12, j + 12, j + 12)
#define COLUMNS(v, w, j) \
    __builtin_shufflevector(v, w, j, j + 8, j + 16, j + 24, j, j + 8, j + 16, j + 24, j, j + 8, j + 16, j + 24, j, j + 8, j + 16, j + 24)
#define LOW(v) ((vec)((v) << 16))
#define HIGH(v) ((vec)((v) & 0xffff0000u))

// One k: its number of each row by the even and odd columns', for both halves of the warp's lanes. Sums have names: an array would lie in memory.
#define ADD(sum, word, j, take) \
    do { vec a_ = SPREAD(take(word), j); sum##_even = sum##_even + a_ * even; sum##_odd = sum##_odd + a_ * odd; } while (0)
#define STEP(upper, lower, pair, j, take) do { vec even = take(pair##_even), odd = take(pair##_odd); \
    ADD(up0, upper##0, j, take); ADD(up1, upper##1, j, take); ADD(low0, lower##0, j, take); ADD(low1, lower##1, j, take); } while (0)
#define STEPS(upper, lower, col, j) do { bits pair_even = COLUMNS(col##0, col##1, j), pair_odd = COLUMNS(col##0, col##1, j + 4); \
    STEP(upper, lower, pair, j, LOW); STEP(upper, lower, pair, j, HIGH); } while (0)
#define WORDS(k, h) (*(bits *)(R32(k) + 16 * h))
#define SUMS(name, k, h) vec name##_even = *(vec *)(RF32(k) + 16 * h), name##_odd = *(vec *)(RF32(k + 1) + 16 * h)
#define GIVE(k, h, v) do { bits none_ = (bits)(v != v); WORDS(k, h) = ((bits)v & ~none_) | (none_ & 0x7fffffff); } while (0)

__attribute__((target("arch=x86-64-v4"))) static void mma_wide(fc_warp *w, const fc_insn *in)
{
    SUMS(up0, 10, 0); SUMS(up1, 10, 1); SUMS(low0, 12, 0); SUMS(low1, 12, 1);
    bits a0 = WORDS(4, 0), a1 = WORDS(4, 1), b0 = WORDS(5, 0), b1 = WORDS(5, 1), c0 = WORDS(6, 0), c1 = WORDS(6, 1), d0 = WORDS(7, 0),
        d1 = WORDS(7, 1);
    bits x0 = WORDS(8, 0), x1 = WORDS(8, 1), y0 = WORDS(9, 0), y1 = WORDS(9, 1);
    STEPS(a, b, x, 0); STEPS(a, b, x, 1); STEPS(a, b, x, 2); STEPS(a, b, x, 3);
    STEPS(c, d, y, 0); STEPS(c, d, y, 1); STEPS(c, d, y, 2); STEPS(c, d, y, 3);
    GIVE(0, 0, up0_even); GIVE(0, 1, up1_even); GIVE(1, 0, up0_odd); GIVE(1, 1, up1_odd);
    GIVE(2, 0, low0_even); GIVE(2, 1, low1_even); GIVE(3, 0, low0_odd); GIVE(3, 1, low1_odd);
}

static void mma_ordered(fc_warp *w, const fc_insn *in)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) mma_wide(w, in);
    else mma_by_rows(w, in);
}
#else
#define mma_ordered mma_by_rows
#endif

// ---- truncated: whole matrices, one number after the other
typedef struct tile { float a[16][16], b[16][8], c[16][8]; } tile;

static void gather(const fc_warp *w, const fc_insn *in, tile *x)
{
    for (int l = 0; l < 32; l++) {
        int g = l / 4, t = l % 4;
        for (int r = 0; r < 4; r++) {
            uint32_t v = R32(4 + r)[l];
            x->a[g + (r & 1) * 8][2 * t + (r >> 1) * 8] = low(v);
            x->a[g + (r & 1) * 8][2 * t + (r >> 1) * 8 + 1] = high(v);
            x->c[g + (r >> 1) * 8][2 * t + (r & 1)] = RF32(10 + r)[l];
        }
        for (int r = 0; r < 2; r++) {
            uint32_t v = R32(8 + r)[l];
            x->b[2 * t + r * 8][g] = low(v);
            x->b[2 * t + r * 8 + 1][g] = high(v);
        }
    }
}

static float toward_zero(double v)
{
    float f = (float)v;
    return fabs((double)f) > fabs(v) ? nextafterf(f, 0) : f;
}

// Eight products and the sum so far, aligned to the largest and cut 24 bits below it, then cut to f32.
static float cut_sum(const double *p, float c)
{
    double largest = fabs((double)c), sum = 0;
    int e;
    for (int k = 0; k < 8; k++) if (fabs(p[k]) > largest) largest = fabs(p[k]);
    if (!(largest > 0) || isinf(largest)) {
        for (int k = 0; k < 8; k++) sum += p[k];
        return (float)(sum + c);
    }
    frexp(largest, &e);
    double unit = ldexp(1.0, e - 24);
    for (int k = 0; k < 8; k++) {
        if (p[k] != p[k]) return NAN;
        sum += trunc(p[k] / unit) * unit;
    }
    return toward_zero(sum + trunc((double)c / unit) * unit);
}

static void mma_truncated(fc_warp *w, const fc_insn *in)
{
    tile x;
    gather(w, in, &x);
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++)
            for (int half = 0; half < 16; half += 8) {
                double p[8];
                for (int k = 0; k < 8; k++) p[k] = (double)x.a[m][half + k] * (double)x.b[half + k][n];
                x.c[m][n] = cut_sum(p, x.c[m][n]);
            }
    for (int r = 0; r < 4; r++)
        for (int l = 0; l < 32; l++) {
            float v = x.c[l / 4 + (r >> 1) * 8][2 * (l % 4) + (r & 1)];
            R32(r)[l] = 0x7fffffff;
            if (v == v) RF32(r)[l] = v;
        }
}

void fc_mma_bf16(fc_warp *w, fc_insn *in, uint32_t mask)
{
    (void)mask;
    if (fc_opt.mma_truncated) mma_truncated(w, in);
    else mma_ordered(w, in);
    w->launch->c.mma++;
}
