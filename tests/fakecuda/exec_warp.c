// exec_warp.c: owns what lanes of a warp do together: shuffles, votes, ldmatrix, mma. sched.c has seen to it that all named lanes stand here.
// mma adds in order, each sum rounded to f32; or, with the field mma=truncated, as tensor cores are known to: products aligned to the largest
// exponent and cut (M. Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021).
#include "fakecuda.h"
#include <math.h>

enum { BFLY, UP, DOWN, IDX };

// What a lane that does not take part would give is undefined: here no number, and a report where synccheck is on.
static void absent(fc_warp *w, fc_insn *in, int lane, int from)
{
    if (fc_opt.strict && fc_first(&w->launch->grid->told_sync)) fc_tell(w, in, lane, "synccheck", "a shuffle reads lane %d, which does not take part", from);
}

// The common case: all lanes, one step for all, no segments.
FC_CLONES static bool butterfly(fc_warp *w, const fc_insn *in)
{
    uint32_t *d = R32(0), *a = R32(2), *b = R32(3), *c = R32(4), from[32], other = 0, step = b[0] & 31;
    for (int i = 0; i < 32; i++) other |= (b[i] ^ b[0]) | (c[i] ^ 31);
    if (other) return false;
    memcpy(from, a, sizeof from);
    for (uint32_t i = 0; i < 32; i++) d[i] = from[i ^ step];
    *RPRED(1) = 0xffffffffu;
    return true;
}

static void shfl(fc_warp *w, fc_insn *in, uint32_t mask, int mode)
{
    if (mode == BFLY && mask == 0xffffffffu && butterfly(w, in)) return;
    uint32_t *d = R32(0), *a = R32(2), *b = R32(3), *c = R32(4), from[32], ok = 0;
    memcpy(from, a, sizeof from);
    for (uint32_t left = mask; left; left &= left - 1) {
        int lane = __builtin_ctz(left), seg = (int)(c[lane] >> 8 & 31), clamp = (int)(c[lane] & 31), step = (int)(b[lane] & 31);
        int max = (lane & seg) | (clamp & ~seg), min = lane & seg, j;
        if (mode == UP) j = lane - step;
        else if (mode == DOWN) j = lane + step;
        else if (mode == BFLY) j = lane ^ step;
        else j = min | (step & ~seg);
        bool in_range = mode == UP ? j >= max : j <= max;
        if (!in_range) j = lane;
        if (!(mask >> j & 1)) absent(w, in, lane, j);
        d[lane] = mask >> j & 1 ? from[j] : 0x7fc17fc1;
        ok |= (uint32_t)in_range << lane;
    }
    *RPRED(1) = (*RPRED(1) & ~mask) | ok;
}
static void shfl_bfly(fc_warp *w, fc_insn *in, uint32_t mask) { shfl(w, in, mask, BFLY); }
static void shfl_up(fc_warp *w, fc_insn *in, uint32_t mask) { shfl(w, in, mask, UP); }
static void shfl_down(fc_warp *w, fc_insn *in, uint32_t mask) { shfl(w, in, mask, DOWN); }
static void shfl_idx(fc_warp *w, fc_insn *in, uint32_t mask) { shfl(w, in, mask, IDX); }

static void set_pred(fc_warp *w, fc_insn *in, uint32_t mask, bool v) { *RPRED(0) = (*RPRED(0) & ~mask) | (v ? mask : 0); }
static void vote_all(fc_warp *w, fc_insn *in, uint32_t mask) { set_pred(w, in, mask, (*RPRED(1) & mask) == mask); }
static void vote_any(fc_warp *w, fc_insn *in, uint32_t mask) { set_pred(w, in, mask, (*RPRED(1) & mask) != 0); }
static void vote_uni(fc_warp *w, fc_insn *in, uint32_t mask) { set_pred(w, in, mask, (*RPRED(1) & mask) == 0 || (*RPRED(1) & mask) == mask); }
static void ballot(fc_warp *w, fc_insn *in, uint32_t mask) { uint32_t *d = R32(0), v = *RPRED(1) & mask; LANES(d[i] = v); }
static void activemask(fc_warp *w, fc_insn *in, uint32_t mask) { uint32_t *d = R32(0); LANES(d[i] = mask); }
static void warp_sync(fc_warp *w, fc_insn *in, uint32_t mask) { (void)w; (void)in; (void)mask; }

static void match_any(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0), a[32];
    memcpy(a, R32(1), sizeof a);
    for (uint32_t left = mask; left; left &= left - 1) {
        uint32_t same = 0, me = a[__builtin_ctz(left)];
        for (int j = 0; j < 32; j++) same |= (uint32_t)(a[j] == me) << j;
        d[__builtin_ctz(left)] = same & mask;
    }
}

// match.all: the mask where all lanes hold one value, and true; else 0, and false
static void match_all(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0), *a = R32(2), me = a[__builtin_ctz(mask)];
    bool same = true;
    for (uint32_t left = mask; left; left &= left - 1) same = same && a[__builtin_ctz(left)] == me;
    LANES(d[i] = same ? mask : 0);
    *RPRED(1) = (*RPRED(1) & ~mask) | (same ? mask : 0);
}

enum { R_ADD, R_MIN_S, R_MAX_S, R_MIN_U, R_MAX_U, R_AND, R_OR, R_XOR };
static uint32_t reduced(int op, uint32_t x, uint32_t y)
{
    switch (op) {
    case R_ADD: return x + y;
    case R_MIN_S: return (int32_t)x < (int32_t)y ? x : y;
    case R_MAX_S: return (int32_t)x > (int32_t)y ? x : y;
    case R_MIN_U: return x < y ? x : y;
    case R_MAX_U: return x > y ? x : y;
    case R_AND: return x & y;
    case R_OR: return x | y;
    default: return x ^ y;
    }
}
static void redux(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint32_t *d = R32(0), *a = R32(1), v = 0;
    bool first = true;
    for (uint32_t left = mask; left; left &= left - 1, first = false) v = first ? a[__builtin_ctz(left)] : reduced(in->row->flags >> 4, v, a[__builtin_ctz(left)]);
    LANES(d[i] = v);
}

// ---- ldmatrix: lane l gives the address of row l % 8 of matrix l / 8; lane l gets columns 2 (l % 4) and + 1 of row l / 4, transposed: of column l / 4

static void take_row(uint32_t *d, const unsigned char *row) { memcpy(d, row, 16); }

// Column c of eight rows to lanes 4 c to 4 c + 3.
static void take_columns(uint32_t *d, const unsigned char *const *row)
{
    uint16_t v[8][8];
    for (int r = 0; r < 8; r++) memcpy(v[r], row[r], 16);
    for (int c = 0; c < 8; c++) for (int t = 0; t < 4; t++) d[4 * c + t] = v[2 * t][c] | (uint32_t)v[2 * t + 1][c] << 16;
}

static void ldmatrix(fc_warp *w, fc_insn *in, int n, bool trans)
{
    fc_span s;
    const unsigned char *row[32];
    uint64_t zero = fc_shared_zero(w);
    fc_reach(w, in->o[n], in->wide, in->imm, n == 4 ? 0xffffffffu : (1u << 8 * n) - 1, 16, &s);
    fc_touch_shared(w, in, &s, false, "ldmatrix");
    fc_count_shared(&w->launch->c.shared, &s, false);
    for (int l = 0; l < 8 * n; l++) row[l] = (const unsigned char *)(uintptr_t)(s.at[l] + zero);
    for (int m = 0; m < n; m++) {
        if (trans) take_columns(R32(m), row + 8 * m);
        else for (int r = 0; r < 8; r++) take_row(R32(m) + 4 * r, row[8 * m + r]);
    }
}
#define LDM(n, t) static void ldm_##n##_##t(fc_warp *w, fc_insn *in, uint32_t mask) { (void)mask; ldmatrix(w, in, n, t); }
LDM(1, 0) LDM(2, 0) LDM(4, 0) LDM(1, 1) LDM(2, 1) LDM(4, 1)

// ---- mma m16n8k16, bf16: D = A B + C. Lane l = 4 g + t holds of A rows g and g + 8, of B column g, of C and D columns 2 t and 2 t + 1.
// In order: products of bf16 are exact in f32, sums run over k and are rounded each time. The registers stay as they lie: four lanes hold a row, so
// the row's factor of A is spread over them by a shuffle; of B four numbers, those of the even or the odd columns, are the same for every row.

typedef uint32_t bits __attribute__((vector_size(64)));
typedef float vec __attribute__((vector_size(64)));

#define SPREAD(v, j) __builtin_shufflevector(v, v, j, j, j, j, j + 4, j + 4, j + 4, j + 4, j + 8, j + 8, j + 8, j + 8, j + 12, j + 12, j + 12, j + 12)
#define COLUMNS(v, w, j) __builtin_shufflevector(v, w, j, j + 8, j + 16, j + 24, j, j + 8, j + 16, j + 24, j, j + 8, j + 16, j + 24, j, j + 8, j + 16, j + 24)
#define LOW(v) ((vec)((v) << 16))
#define HIGH(v) ((vec)((v) & 0xffff0000u))

// One k: its number of each row by the even and odd columns', for both halves of the warp's lanes. Sums have names, since an array would lie in memory.
#define ADD(sum, word, j, take) do { vec a_ = SPREAD(take(word), j); sum##_even = sum##_even + a_ * even; sum##_odd = sum##_odd + a_ * odd; } while (0)
#define STEP(upper, lower, pair, j, take) do { vec even = take(pair##_even), odd = take(pair##_odd); \
    ADD(up0, upper##0, j, take); ADD(up1, upper##1, j, take); ADD(low0, lower##0, j, take); ADD(low1, lower##1, j, take); } while (0)
#define STEPS(upper, lower, col, j) do { bits pair_even = COLUMNS(col##0, col##1, j), pair_odd = COLUMNS(col##0, col##1, j + 4); \
    STEP(upper, lower, pair, j, LOW); STEP(upper, lower, pair, j, HIGH); } while (0)
#define WORDS(k, h) (*(bits *)(R32(k) + 16 * h))
#define SUMS(name, k, h) vec name##_even = *(vec *)(RF32(k) + 16 * h), name##_odd = *(vec *)(RF32(k + 1) + 16 * h)
#define GIVE(k, h, v) do { bits none_ = (bits)(v != v); WORDS(k, h) = ((bits)v & ~none_) | (none_ & 0x7fffffff); } while (0)

FC_CLONES static void mma_ordered(fc_warp *w, const fc_insn *in)
{
    SUMS(up0, 10, 0); SUMS(up1, 10, 1); SUMS(low0, 12, 0); SUMS(low1, 12, 1);
    bits a0 = WORDS(4, 0), a1 = WORDS(4, 1), b0 = WORDS(5, 0), b1 = WORDS(5, 1), c0 = WORDS(6, 0), c1 = WORDS(6, 1), d0 = WORDS(7, 0), d1 = WORDS(7, 1);
    bits x0 = WORDS(8, 0), x1 = WORDS(8, 1), y0 = WORDS(9, 0), y1 = WORDS(9, 1);
    STEPS(a, b, x, 0); STEPS(a, b, x, 1); STEPS(a, b, x, 2); STEPS(a, b, x, 3);
    STEPS(c, d, y, 0); STEPS(c, d, y, 1); STEPS(c, d, y, 2); STEPS(c, d, y, 3);
    GIVE(0, 0, up0_even); GIVE(0, 1, up1_even); GIVE(1, 0, up0_odd); GIVE(1, 1, up1_odd);
    GIVE(2, 0, low0_even); GIVE(2, 1, low1_even); GIVE(3, 0, low0_odd); GIVE(3, 1, low1_odd);
}

// Truncated: whole matrices, one number after the other.
typedef struct tile { float a[16][16], b[16][8], c[16][8]; } tile;

static inline float low(uint32_t v) { float f; v <<= 16; memcpy(&f, &v, 4); return f; }
static inline float high(uint32_t v) { float f; v &= 0xffff0000u; memcpy(&f, &v, 4); return f; }

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

static void mma_bf16(fc_warp *w, fc_insn *in, uint32_t mask)
{
    (void)mask;
    if (fc_opt.mma_truncated) mma_truncated(w, in);
    else mma_ordered(w, in);
    w->launch->c.mma++;
}

// flags: the low bits are FC_..., the high ones which reduction; arg: which operand is the mask of named lanes
#define W(s, shape, fn, arg) {s, shape, fn, FC_shuffle, FC_SYNC, arg}
#define X(s, op) {"redux.sync." s, "w=ww", redux, FC_shuffle, FC_SYNC | op << 4, 2}
#define Q(s, shape, fn, cls) {s, shape, fn, cls, FC_SYNC | FC_ALIGNED, 0}
static const fc_row rows[] = {
    W("shfl.sync.bfly.b32", "w|=wwww", shfl_bfly, 5), W("shfl.sync.up.b32", "w|=wwww", shfl_up, 5), W("shfl.sync.down.b32", "w|=wwww", shfl_down, 5), W("shfl.sync.idx.b32", "w|=wwww", shfl_idx, 5),
    W("vote.sync.all.pred", "p=pw", vote_all, 2), W("vote.sync.any.pred", "p=pw", vote_any, 2), W("vote.sync.uni.pred", "p=pw", vote_uni, 2), W("vote.sync.ballot.b32", "w=pw", ballot, 2), W("match.any.sync.b32", "w=ww", match_any, 2), W("match.all.sync.b32", "w|=ww", match_all, 3),
    W("bar.warp.sync", "w", warp_sync, 0), {"activemask.b32", "w=", activemask, FC_shuffle, 0, 0},
    X("add.s32", R_ADD), X("add.u32", R_ADD), X("min.s32", R_MIN_S), X("max.s32", R_MAX_S), X("min.u32", R_MIN_U), X("max.u32", R_MAX_U), X("and.b32", R_AND), X("or.b32", R_OR), X("xor.b32", R_XOR),
    Q("ldmatrix.sync.aligned.m8n8.x1.shared.b16", "w1=m", ldm_1_0, FC_shared), Q("ldmatrix.sync.aligned.m8n8.x2.shared.b16", "w2=m", ldm_2_0, FC_shared), Q("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "w4=m", ldm_4_0, FC_shared),
    Q("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", "w1=m", ldm_1_1, FC_shared), Q("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", "w2=m", ldm_2_1, FC_shared), Q("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "w4=m", ldm_4_1, FC_shared),
    Q("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "w4=w4w2w4", mma_bf16, FC_mma),
};
const fc_table fc_warp_rows = {rows, sizeof rows / sizeof *rows};
