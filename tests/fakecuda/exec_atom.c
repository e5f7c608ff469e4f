// exec_atom.c: owns what memory does beyond loads and stores: atomics, copies by cp.async, fences.
// Data of cp.async arrives at the wait and not before, so that a kernel without the wait reads what was there.
#include "fakecuda.h"

// ---- atomics: lane after lane, in the order of lanes. Other workers may be at the same place, so each is one exchange of the host's.

enum { A_ADD, A_DEC, A_XOR, A_INC, A_MAX_U, A_MAX_S, A_MIN_U, A_MIN_S, A_EXCH, A_AND, A_OR, A_CAS, A_ADD_F };
static uint32_t atomic32(int op, uint32_t old, uint32_t v, uint32_t v2)
{
    float f, g;
    switch (op) {
    case A_ADD: return old + v;
    case A_INC: return old >= v ? 0 : old + 1;
    case A_DEC: return old == 0 || old > v ? v : old - 1;
    case A_XOR: return old ^ v;
    case A_MAX_U: return old > v ? old : v;
    case A_MAX_S: return (int32_t)old > (int32_t)v ? old : v;
    case A_MIN_U: return old < v ? old : v;
    case A_MIN_S: return (int32_t)old < (int32_t)v ? old : v;
    case A_AND: return old & v;
    case A_OR: return old | v;
    case A_CAS: return old == v ? v2 : old;
    case A_ADD_F:
        memcpy(&f, &old, 4);
        memcpy(&g, &v, 4);
        f += g;
        memcpy(&v, &f, 4);
        return v;
    default: return v;
    }
}

static uint64_t atomic64(int op, uint64_t old, uint64_t v)
{
    return op == A_ADD ? old + v : op == A_MAX_U ? (old > v ? old : v) : (old < v ? old : v);
}

static uint32_t exchange32(uint32_t *p, int op, uint32_t v, uint32_t v2)
{
    uint32_t old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &old, atomic32(op, old, v, v2), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}

static uint64_t exchange64(uint64_t *p, int op, uint64_t v)
{
    uint64_t old = __atomic_load_n(p, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(p, &old, atomic64(op, old, v), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}

// Where the lanes' places are, checked and counted: as one write, and in shared memory a wave for each lane. What turns addresses into the host's.
static uint64_t places(fc_warp *w, fc_insn *in, uint32_t mask, uint32_t bytes, bool shared, fc_span *s)
{
    fc_reach(w, in->o[1], in->wide, in->imm, mask, bytes, s);
    if (!shared) {
        fc_touch_global(w, in, s, NULL, FC_ATOMIC, "atomic");
        return 0;
    }
    fc_touch_shared(w, in, s, false, "atomic");      // atomics race with plain writes, not with each other
    fc_traffic *t = &w->launch->c.shared;
    uint64_t n = (uint64_t)__builtin_popcount(mask);
    t->requests++;
    t->written += n * bytes;
    t->sectors_written += fc_opt.count ? n : 0;
    return fc_shared_zero(w);
}

static inline void atom32(fc_warp *w, fc_insn *in, uint32_t mask, int op, bool shared)
{
    fc_span s;
    uint64_t zero = places(w, in, mask, 4, shared, &s);
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        R32(0)[i] = exchange32((uint32_t *)(uintptr_t)(s.at[i] + zero), op, R32(2)[i], op == A_CAS ? R32(3)[i] : 0);
    }
}

static inline void atom64(fc_warp *w, fc_insn *in, uint32_t mask, int op, bool shared)
{
    fc_span s;
    uint64_t zero = places(w, in, mask, 8, shared, &s);
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        R64(0)[i] = exchange64((uint64_t *)(uintptr_t)(s.at[i] + zero), op, R64(2)[i]);
    }
}

// ---- cp.async

static fc_async *new_async(fc_warp *w)
{
    if (w->nasync == w->async_cap) {
        w->async_cap = w->async_cap ? 2 * w->async_cap : 32;
        w->async = realloc(w->async, w->async_cap * sizeof *w->async);
        if (!w->async) drv_missing("memory for cp.async");
    }
    return &w->async[w->nasync++];
}

// Groups are each lane's own: lanes that have committed equally often share a record.
static void remember(fc_warp *w, fc_insn *in, const fc_span *dst, const fc_span *src, const uint8_t *from)
{
    for (uint32_t left = dst->mask; left;) {
        uint32_t group = w->committed[__builtin_ctz(left)], mask = w->uneven ? 0 : left;
        for (uint32_t k = w->uneven ? left : 0; k; k &= k - 1) if (w->committed[__builtin_ctz(k)] == group) mask |= k & (0 - k);
        fc_async *a = new_async(w);
        a->in = in;
        a->mask = mask;
        a->group = group;
        a->bytes = dst->bytes;
        for (int i = 0; i < 32; i++) a->dst[i] = (uint32_t)(dst->at[i] - FC_SHARED_BASE), a->src[i] = src->at[i];
        memcpy(a->from_src, from, 32);
        left &= ~mask;
    }
}

// How many bytes of its source each lane takes; all lanes that take all of them: no list is needed.
static uint32_t sizes(fc_warp *w, fc_insn *in, uint32_t mask, uint32_t bytes, uint8_t *from, bool *whole)
{
    uint32_t some = 0;
    *whole = true;
    memset(from, (int)bytes, 32);
    if (!in->o[3]) return mask;
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        uint32_t n = R32(3)[i];
        if (n > bytes) fc_fault(w, in, i, CUDA_ERROR_ILLEGAL_INSTRUCTION, "memcheck", "cp.async takes %u of %u bytes", n, bytes);
        from[i] = (uint8_t)n;
        some |= (uint32_t)(n > 0) << i;
        if (n && n != bytes) *whole = false;
    }
    return some;
}

static void cp_async(fc_warp *w, fc_insn *in, uint32_t mask)
{
    fc_span dst, src = {.mask = 0};
    uint8_t from[32];
    bool whole;
    uint32_t bytes = in->o[2], some = sizes(w, in, mask, bytes, from, &whole);
    if (bytes != 4 && bytes != 8 && bytes != 16) fc_fault(w, in, __builtin_ctz(mask), CUDA_ERROR_ILLEGAL_INSTRUCTION, "memcheck",
        "cp.async of %u bytes", bytes);
    fc_reach(w, in->o[0], in->wide, in->imm, mask, bytes, &dst);
    fc_bound_shared(w, in, &dst, "cp.async");
    if (some) {
        fc_reach(w, in->o[1], in->wide2, in->more, some, bytes, &src);
        fc_touch_global(w, in, &src, whole ? NULL : from, FC_READ, "cp.async");
    }
    fc_count_shared(&w->launch->c.shared, &dst, true);
    remember(w, in, &dst, &src, from);
}

static void land(fc_warp *w, const fc_async *a, uint32_t lanes)
{
    for (uint32_t left = lanes; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        unsigned char *p = w->block->shared + a->dst[i];
        if (a->from_src[i] == 16) memcpy(p, (const void *)(uintptr_t)a->src[i], 16);
        else {
            if (a->from_src[i]) memcpy(p, (const void *)(uintptr_t)a->src[i], a->from_src[i]);
            memset(p + a->from_src[i], 0, a->bytes - a->from_src[i]);
        }
        if (fc_opt.race) fc_race(w, a->in, i, a->dst[i] + FC_SHARED_BASE, a->bytes, true);
    }
}

// Which of the record's lanes are due. While all lanes have committed together, one of them speaks for all.
static uint32_t due(const fc_warp *w, const fc_async *a, uint32_t mask, uint32_t keep)
{
    uint32_t lanes = a->mask & mask, ready = 0;
    if (!w->uneven) return lanes && (uint64_t)a->group + keep < w->committed[__builtin_ctz(lanes)] ? lanes : 0;
    for (uint32_t m = lanes; m; m &= m - 1) if ((uint64_t)a->group + keep < w->committed[__builtin_ctz(m)]) ready |= m & (0 - m);
    return ready;
}

// What lanes of the mask have committed, but for their newest `keep` groups, arrives now; the tail of a short copy is zero.
static void arrive(fc_warp *w, uint32_t mask, uint32_t keep, bool all)
{
    size_t left = 0;
    for (size_t k = 0; k < w->nasync; k++) {
        fc_async *a = &w->async[k];
        uint32_t ready = all ? a->mask & mask : due(w, a, mask, keep);
        land(w, a, ready);
        a->mask &= ~ready;
        if (!a->mask) continue;
        if (left != k) w->async[left] = *a;
        left++;
    }
    w->nasync = left;
}

static void cp_commit(fc_warp *w, fc_insn *in, uint32_t mask)
{
    (void)in;
    if (mask != w->live) w->uneven = true;
    for (uint32_t left = mask; left; left &= left - 1) w->committed[__builtin_ctz(left)]++;
}

static void cp_wait(fc_warp *w, fc_insn *in, uint32_t mask) { arrive(w, mask, in->o[0], false); }
static void cp_wait_all(fc_warp *w, fc_insn *in, uint32_t mask) { (void)in; arrive(w, mask, 0, true); }
// A fence meets every other fence of the grid at one place, and so orders what workers did before it.
static void fence(fc_warp *w, fc_insn *in, uint32_t mask) { (void)in; (void)mask; __atomic_fetch_add(&w->launch->grid->fences, 1, __ATOMIC_SEQ_CST); }

// ---- the table: each atomic for both spaces, and as red, whose result goes nowhere

#define ATOMICS32(X) \
    X(add_u, ".add.u32", A_ADD) X(add_s, ".add.s32", A_ADD) X(inc, ".inc.u32", A_INC) X(dec, ".dec.u32", A_DEC) X(xor, ".xor.b32", A_XOR) \
    X(max_u, ".max.u32", A_MAX_U) X(max_s, ".max.s32", A_MAX_S) X(min_u, ".min.u32", A_MIN_U) X(min_s, ".min.s32", A_MIN_S) \
    X(and, ".and.b32", A_AND) \
    X(or, ".or.b32", A_OR) X(add_f, ".add.f32", A_ADD_F)
#define ATOMICS64(X) X(add_d, ".add.u64", A_ADD) X(max_d, ".max.u64", A_MAX_U) X(min_d, ".min.u64", A_MIN_U)
#define HANDLERS(name, width, op) \
    static void name##_global(fc_warp *w, fc_insn *in, uint32_t mask) { atom##width(w, in, mask, op, false); } \
    static void name##_shared(fc_warp *w, fc_insn *in, uint32_t mask) { atom##width(w, in, mask, op, true); }
#define HANDLERS32(name, text, op) HANDLERS(name, 32, op)
#define HANDLERS64(name, text, op) HANDLERS(name, 64, op)
ATOMICS32(HANDLERS32) ATOMICS64(HANDLERS64) HANDLERS(exch, 32, A_EXCH) HANDLERS(cas, 32, A_CAS)

#define BOTH(name, text, shape) \
    {"atom.global" text, shape, name##_global, FC_global, 0, 0}, {"atom.shared" text, shape, name##_shared, FC_shared, 0, 0}
#define REDS(name, text, shape) {"red.global" text, shape, name##_global, FC_global, 0, 0}, {"red.shared" text, shape, name##_shared, FC_shared, 0, 0}
#define ROWS32(name, text, op) BOTH(name, text, "w=mw"), REDS(name, text, "x=mw"),
#define ROWS64(name, text, op) BOTH(name, text, "d=md"), REDS(name, text, "x=md"),
#define COPY(op) {op, "mmi?w", cp_async, FC_global, 0, 0}
#define SYNC(op, shape, fn) {op, shape, fn, FC_sync, 0, 0}
static const fc_row rows[] = {
    ATOMICS32(ROWS32) ATOMICS64(ROWS64) BOTH(exch, ".exch.b32", "w=mw"), BOTH(cas, ".cas.b32", "w=mww"),
    COPY("cp.async.cg.shared.global"), COPY("cp.async.cg.shared.global.L2::128B"), COPY("cp.async.ca.shared.global"),
    COPY("cp.async.ca.shared.global.L2::128B"),
    SYNC("cp.async.commit_group", "", cp_commit), SYNC("cp.async.wait_group", "i", cp_wait), SYNC("cp.async.wait_all", "", cp_wait_all),
    SYNC("membar.gl", "", fence), SYNC("membar.cta", "", fence), SYNC("membar.sys", "", fence), SYNC("fence.acq_rel.gpu", "", fence),
    SYNC("fence.sc.gpu", "", fence),
};
const fc_table fc_atom_rows = {rows, sizeof rows / sizeof *rows};
