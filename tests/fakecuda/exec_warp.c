// exec_warp.c: owns what lanes of a warp do together: shuffles, votes, ldmatrix, mma. sched.c has seen to it that all named lanes stand here.
// mma adds in order, each sum rounded to f32; or, with the field mma=truncated, as tensor cores are known to: products aligned to the largest
// exponent and cut (M. Fasi et al., "Numerical behavior of NVIDIA tensor cores", PeerJ Computer Science 7:e330, 2021).
#include "fakecuda.h"
#include <math.h>

enum { BFLY, UP, DOWN, IDX };

// What a lane that does not take part would give is undefined: here no number, and a report where synccheck is on.
static void absent(fc_warp *w, fc_insn *in, int lane, int from)
{
    if (!fc_opt.strict || w->launch->told_sync) return;
    w->launch->told_sync = true;
    fc_tell(w, in, lane, "synccheck", "a shuffle reads lane %d, which does not take part", from);
}

static void shfl(fc_warp *w, fc_insn *in, uint32_t mask, int mode)
{
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

static void ldmatrix(fc_warp *w, fc_insn *in, int n, bool trans)
{
    const unsigned char *row[32];
    for (int l = 0; l < 8 * n; l++) {
        uint64_t at = in->wide ? ((uint64_t *)(w->r + in->o[n]))[l] + (uint64_t)in->imm : (uint32_t)(((uint32_t *)(w->r + in->o[n]))[l] + (uint32_t)in->imm);
        row[l] = fc_shared_row(w, in, l, at);
    }
    w->launch->c->shared_requests++;
    w->launch->c->shared_waves += fc_opt.count ? fc_row_waves(row, n) : 0;
    for (int m = 0; m < n; m++) {
        uint32_t *d = R32(m);
        for (int l = 0; l < 32; l++) {
            int r = l / 4, c = 2 * (l % 4);
            uint16_t lo, hi;
            memcpy(&lo, trans ? row[8 * m + c] + 2 * r : row[8 * m + r] + 2 * c, 2);
            memcpy(&hi, trans ? row[8 * m + c + 1] + 2 * r : row[8 * m + r] + 2 * c + 2, 2);
            d[l] = lo | (uint32_t)hi << 16;
        }
    }
}
#define LDM(n, t) static void ldm_##n##_##t(fc_warp *w, fc_insn *in, uint32_t mask) { (void)mask; ldmatrix(w, in, n, t); }
LDM(1, 0) LDM(2, 0) LDM(4, 0) LDM(1, 1) LDM(2, 1) LDM(4, 1)

// ---- mma m16n8k16, bf16: D = A B + C. Lane l = 4 g + t holds of A rows g and g + 8, of B column g, of C and D columns 2 t and 2 t + 1.

typedef struct tile { float a[16][16], b[16][8], c[16][8]; } tile;

static inline float low(uint32_t v) { float f; v <<= 16; memcpy(&f, &v, 4); return f; }
static inline float high(uint32_t v) { float f; v &= 0xffff0000u; memcpy(&f, &v, 4); return f; }

FC_CLONES static void gather(const fc_warp *w, const fc_insn *in, tile *x)
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

// Products of bf16 are exact in f32; sums run over k in its order.
FC_CLONES static void ordered(tile *x)
{
    for (int m = 0; m < 16; m++) {
        float s[8];
        for (int n = 0; n < 8; n++) s[n] = x->c[m][n];
        for (int k = 0; k < 16; k++) for (int n = 0; n < 8; n++) s[n] = s[n] + x->a[m][k] * x->b[k][n];
        for (int n = 0; n < 8; n++) x->c[m][n] = s[n];
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

static void truncated(tile *x)
{
    for (int m = 0; m < 16; m++)
        for (int n = 0; n < 8; n++)
            for (int half = 0; half < 16; half += 8) {
                double p[8];
                for (int k = 0; k < 8; k++) p[k] = (double)x->a[m][half + k] * (double)x->b[half + k][n];
                x->c[m][n] = cut_sum(p, x->c[m][n]);
            }
}

static void mma_bf16(fc_warp *w, fc_insn *in, uint32_t mask)
{
    tile x;
    (void)mask;
    gather(w, in, &x);
    if (fc_opt.mma_truncated) truncated(&x);
    else ordered(&x);
    for (int r = 0; r < 4; r++)
        for (int l = 0; l < 32; l++) {
            float v = x.c[l / 4 + (r >> 1) * 8][2 * (l % 4) + (r & 1)];
            R32(r)[l] = 0x7fffffff;
            if (v == v) RF32(r)[l] = v;
        }
    w->launch->c->mma++;
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
