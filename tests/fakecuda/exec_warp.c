// exec_warp.c: owns what lanes of a warp do together: shuffles, votes, ldmatrix. sched.c has seen to it that all named lanes stand here.
#include "fakecuda.h"

enum { BFLY, UP, DOWN, IDX };

// What a lane that does not take part would give is undefined: here no number, and a report where synccheck is on.
static void absent(fc_warp *w, fc_insn *in, int lane, int from)
{
    if (fc_opt.strict && fc_first(&w->launch->grid->told_sync)) fc_tell(w, in, lane, "synccheck", "a shuffle reads lane %d, which does not take part",
        from);
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
    for (uint32_t left = mask; left; left &= left - 1, first = false) v = first ? a[__builtin_ctz(left)] : reduced(in->row->flags >> 4, v,
        a[__builtin_ctz(left)]);
    LANES(d[i] = v);
}

// ---- ldmatrix: lane l gives the address of row l % 8 of matrix l / 8, and gets columns 2 (l % 4) and + 1 of row l / 4; transposed: of column l / 4

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

// flags: the low bits are FC_..., the high ones which reduction; arg: which operand is the mask of named lanes
#define W(s, shape, fn, arg) {s, shape, fn, FC_shuffle, FC_SYNC, arg}
#define X(s, op) {"redux.sync." s, "w=ww", redux, FC_shuffle, FC_SYNC | op << 4, 2}
#define Q(s, shape, fn, cls) {s, shape, fn, cls, FC_SYNC | FC_ALIGNED, 0}
static const fc_row rows[] = {
    W("shfl.sync.bfly.b32", "w|=wwww", shfl_bfly, 5), W("shfl.sync.up.b32", "w|=wwww", shfl_up, 5), W("shfl.sync.down.b32", "w|=wwww", shfl_down, 5),
    W("shfl.sync.idx.b32", "w|=wwww", shfl_idx, 5),
    W("vote.sync.all.pred", "p=pw", vote_all, 2), W("vote.sync.any.pred", "p=pw", vote_any, 2), W("vote.sync.uni.pred", "p=pw", vote_uni, 2),
    W("vote.sync.ballot.b32", "w=pw", ballot, 2), W("match.any.sync.b32", "w=ww", match_any, 2), W("match.all.sync.b32", "w|=ww", match_all, 3),
    W("bar.warp.sync", "w", warp_sync, 0), {"activemask.b32", "w=", activemask, FC_shuffle, 0, 0},
    X("add.s32", R_ADD), X("add.u32", R_ADD), X("min.s32", R_MIN_S), X("max.s32", R_MAX_S), X("min.u32", R_MIN_U), X("max.u32", R_MAX_U),
    X("and.b32", R_AND), X("or.b32", R_OR), X("xor.b32", R_XOR),
    Q("ldmatrix.sync.aligned.m8n8.x1.shared.b16", "w1=m", ldm_1_0, FC_shared),
    Q("ldmatrix.sync.aligned.m8n8.x2.shared.b16", "w2=m", ldm_2_0, FC_shared),
    Q("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "w4=m", ldm_4_0, FC_shared),
    Q("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16", "w1=m", ldm_1_1, FC_shared),
    Q("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16", "w2=m", ldm_2_1, FC_shared),
    Q("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "w4=m", ldm_4_1, FC_shared),
    Q("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "w4=w4w2w4", fc_mma_bf16, FC_mma),
};
const fc_table fc_warp_rows = {rows, sizeof rows / sizeof *rows};
