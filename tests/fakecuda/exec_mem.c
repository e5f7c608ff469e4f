// exec_mem.c: owns loads and stores: where an address may point, what a check sees of it, and the quick ways for the usual patterns.
// Every access is checked whole: its bytes must lie in one live allocation (or in the block's shared memory), aligned to its full size.
#define _GNU_SOURCE
#include "fakecuda.h"

// ---- where a request goes

FC_CLONES static void addresses(const unsigned char *reg, bool wide, int64_t imm, uint64_t *at)
{
    if (wide) for (int i = 0; i < 32; i++) at[i] = ((const uint64_t *)reg)[i] + (uint64_t)imm;
    else for (int i = 0; i < 32; i++) at[i] = (uint32_t)(((const uint32_t *)reg)[i] + (uint32_t)imm);
}

// Equal steps first: they need no search for the least and the greatest.
FC_CLONES static void measure(fc_span *s)
{
    uint64_t lo = ~(uint64_t)0, hi = 0, low = 0, off = 0, first = s->at[0], step = s->at[1] - first;
    for (int i = 0; i < 32; i++) low |= s->at[i], off |= s->at[i] - (first + (uint64_t)i * step);
    s->aligned = !(low & (s->bytes - 1));
    s->shape = FC_SCATTERED;
    if (!off && step < (uint64_t)1 << 32) {
        s->lo = first;
        s->hi = s->at[31];
        if (!step) s->shape = FC_SAME;
        else if (s->mask == 0xffffffffu) s->shape = step == s->bytes ? FC_STRAIGHT : FC_RISING;
        return;
    }
    for (int i = 0; i < 32; i++) {
        lo = s->at[i] < lo ? s->at[i] : lo;
        hi = s->at[i] > hi ? s->at[i] : hi;
    }
    s->lo = lo;
    s->hi = hi;
}

void fc_reach(const fc_warp *w, uint16_t reg, bool wide, int64_t imm, uint32_t mask, uint32_t bytes, fc_span *s)
{
    s->mask = mask;
    s->bytes = bytes;
    addresses(w->r + (size_t)reg * FC_SLOT, wide, imm, s->at);
    if (mask != 0xffffffffu) {
        int first = __builtin_ctz(mask), last = 31 - __builtin_clz(mask);
        for (int i = 0; i < 32; i++) if (!(mask >> i & 1)) s->at[i] = s->at[i < first ? first : last];
    }
    measure(s);
}

// ---- global memory

static _Noreturn void bad_global(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, const char *what)
{
    drv_range *f = drv_mem_freed(at), *r = drv_mem_find(at);
    if (f) fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at 0x%llx: %llu bytes into allocation %llu, which was freed",
        what, bytes,
                    (unsigned long long)at, (unsigned long long)(at - f->lo), (unsigned long long)f->serial);
    if (!r && at > 1024) r = drv_mem_find(at - 1024);
    for (uint64_t back = 16; !r && back <= 65536 && back < at; back *= 2) r = drv_mem_find(at - back);
    if (r) fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at 0x%llx: %lld bytes behind the %llu of allocation %llu",
        what, bytes,
                    (unsigned long long)at, (long long)(at + bytes - r->lo - r->bytes), (unsigned long long)r->bytes, (unsigned long long)r->serial);
    fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at 0x%llx, where there is no allocation", what, bytes,
        (unsigned long long)at);
}

// One bit a byte: whether it was ever written. Other workers may set bits of the same byte.
static inline bool is_set(const uint8_t *bits, uint64_t i) { return __atomic_load_n(&bits[i >> 3], __ATOMIC_RELAXED) >> (i & 7) & 1; }

static bool all_set(const uint8_t *bits, uint64_t at, uint64_t n)
{
    for (uint64_t i = at; i < at + n; i++) if (!is_set(bits, i)) return false;
    return true;
}

static bool any_set(const uint8_t *bits, uint64_t at, uint64_t n)
{
    for (uint64_t i = at; i < at + n; i++) if (is_set(bits, i)) return true;
    return false;
}

static void set_bits(uint8_t *bits, uint64_t at, uint64_t n)
{
    for (uint64_t i = at; i < at + n; i++)
        if (!is_set(bits, i)) __atomic_fetch_or(&bits[i >> 3], (uint8_t)(1 << (i & 7)), __ATOMIC_RELAXED);
}

enum { NC = 1, CONSTANT = 2 };                       // arg of a row of global memory

static void seen_read(fc_warp *w, fc_insn *in, int lane, const fc_use *u, uint64_t at, uint32_t bytes)
{
    const fc_range *c = u->core;
    uint64_t off = at - u->lo, serial = u->range->serial;
    if (fc_opt.init && c->init && !all_set(c->init, off, bytes) && fc_first(&w->launch->grid->told_init))
        fc_tell(w, in, lane, "initcheck", "read of %u bytes, %llu bytes into allocation %llu, that nothing has written", bytes,
            (unsigned long long)off, (unsigned long long)serial);
    if (fc_opt.nc && in->row->arg & NC && c->written && any_set(c->written, off, bytes) && fc_first(&w->launch->grid->told_nc))
        fc_tell(w, in, lane, "nccheck", "read by way of the read-only cache, %llu bytes into allocation %llu, of what this launch has written",
            (unsigned long long)off,
                (unsigned long long)serial);
}

static void seen_write(const fc_use *u, uint64_t at, uint32_t bytes)
{
    const fc_range *c = u->core;
    if (c->init) set_bits(c->init, at - u->lo, bytes);
    if (fc_opt.nc && c->written) set_bits(c->written, at - u->lo, bytes);
}

static inline bool holds(const fc_use *u, uint64_t at, uint64_t bytes)
{
    return u && bytes <= u->bytes && at >= u->lo && at - u->lo <= u->bytes - bytes;
}
static inline fc_traffic *traffic_of(fc_launch *l, const fc_insn *in) { return in->row->arg & CONSTANT ? &l->c.constant : &l->c.global; }

static void touch_lanes(fc_warp *w, fc_insn *in, const fc_span *s, const uint8_t *parts, int how, const char *what)
{
    for (uint32_t left = s->mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        uint32_t bytes = parts ? parts[i] : s->bytes;
        if (s->at[i] & (s->bytes - 1))
            fc_fault(w, in, i, CUDA_ERROR_MISALIGNED_ADDRESS, "memcheck", "%s of %u bytes at the misaligned address 0x%llx", what, s->bytes,
                (unsigned long long)s->at[i]);
        fc_use *u = fc_use_at(w->launch, s->at[i]);
        if (!holds(u, s->at[i], bytes)) bad_global(w, in, i, s->at[i], bytes, what);
        if (how != FC_WRITE && u->watched) seen_read(w, in, i, u, s->at[i], bytes);
        if (how != FC_READ) seen_write(u, s->at[i], bytes);
    }
    fc_count_lanes(w->launch, traffic_of(w->launch, in), s, parts, how != FC_READ);
}

// The quick way where all lies in the allocation of the last time and no check looks into it; else lane by lane.
void fc_touch_global(fc_warp *w, fc_insn *in, const fc_span *s, const uint8_t *parts, int how, const char *what)
{
    fc_launch *l = w->launch;
    fc_use **last = &l->cache[in - l->kernel->code];
    if (!holds(*last, s->lo, s->bytes)) *last = fc_use_at(l, s->lo);
    fc_use *u = *last;
    if (!parts && s->aligned && holds(u, s->lo, s->bytes) && holds(u, s->hi, s->bytes) && !u->watched)
        fc_count_global(traffic_of(l, in), u, s, (uint64_t)fc_lanes(s->mask) * s->bytes, how != FC_READ);
    else touch_lanes(w, in, s, parts, how, what);
}

// ---- elements: what memory holds and how it comes into a register

enum { E_U8, E_S8, E_U16, E_S16, E_32, E_64 };
static const uint8_t size_of[] = {1, 1, 2, 2, 4, 8};

static inline void get(uint32_t *d, const unsigned char *p, int kind)            // d: of the lane
{
    uint16_t half;
    switch (kind) {
    case E_U8: *d = *p; break;
    case E_S8: *d = (uint32_t)(int8_t)*p; break;
    case E_U16: memcpy(&half, p, 2); *d = half; break;
    case E_S16: memcpy(&half, p, 2); *d = (uint32_t)(int16_t)half; break;
    case E_32: memcpy(d, p, 4); break;
    default: memcpy(d, p, 8);
    }
}

static inline uint32_t *lane_of(fc_warp *w, uint16_t reg, int lane, int kind)
{
    return (uint32_t *)(w->r + (size_t)reg * FC_SLOT) + (kind == E_64 ? 2 * lane : lane);
}

#ifdef FC_SHUFFLES
// Four words of each of four lanes, turned so that each word's register gets those of the four lanes side by side.
typedef uint32_t quad __attribute__((vector_size(16)));
static void load_quads(fc_warp *w, const fc_insn *in, const fc_span *s, uint64_t zero)
{
    for (int i = 0; i < 32; i += 4) {
        quad v[4];
        for (int j = 0; j < 4; j++) memcpy(&v[j], (const void *)(uintptr_t)(s->at[i + j] + zero), 16);
        quad low01 = __builtin_shufflevector(v[0], v[1], 0, 4, 1, 5), low23 = __builtin_shufflevector(v[2], v[3], 0, 4, 1, 5);
        quad high01 = __builtin_shufflevector(v[0], v[1], 2, 6, 3, 7), high23 = __builtin_shufflevector(v[2], v[3], 2, 6, 3, 7);
        *(quad *)(R32(0) + i) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
        *(quad *)(R32(1) + i) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
        *(quad *)(R32(2) + i) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
        *(quad *)(R32(3) + i) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
    }
}
#endif

static inline void load_lanes(fc_warp *w, fc_insn *in, const fc_span *s, uint64_t zero, int kind, int n)
{
#ifdef FC_SHUFFLES
    if (s->mask == 0xffffffffu && kind == E_32 && n == 4) {
        load_quads(w, in, s, zero);
        return;
    }
#endif
    if (s->mask == 0xffffffffu)
        for (int k = 0; k < n; k++)
            for (int i = 0; i < 32; i++) get(lane_of(w, in->o[k], i, kind), (const unsigned char *)(uintptr_t)(s->at[i] + zero) + k * size_of[kind],
                kind);
    else
        for (uint32_t left = s->mask; left; left &= left - 1) {
            int i = __builtin_ctz(left);
            for (int k = 0; k < n; k++) get(lane_of(w, in->o[k], i, kind), (const unsigned char *)(uintptr_t)(s->at[i] + zero) + k * size_of[kind],
                kind);
        }
}

static inline void store_lanes(fc_warp *w, fc_insn *in, const fc_span *s, uint64_t zero, int kind, int n)
{
    for (uint32_t left = s->mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        unsigned char *p = (unsigned char *)(uintptr_t)(s->at[i] + zero);
        for (int k = 0; k < n; k++) memcpy(p + k * size_of[kind], lane_of(w, in->o[1 + k], i, kind), size_of[kind]);
    }
}

// All lanes read one place.
FC_CLONES static void spread32(uint32_t *d, uint32_t v, uint32_t mask) { LANES(d[i] = v); }
FC_CLONES static void spread64(uint64_t *d, uint64_t v, uint32_t mask) { LANES(d[i] = v); }
static inline void load_same(fc_warp *w, fc_insn *in, const fc_span *s, uint64_t zero, int kind, int n)
{
    for (int k = 0; k < n; k++) {
        uint64_t wide = 0;
        uint32_t v[2] = {0, 0};
        get(v, (const unsigned char *)(uintptr_t)(s->at[0] + zero) + k * size_of[kind], kind);
        memcpy(&wide, v, 8);
        if (kind == E_64) spread64(R64(k), wide, s->mask);
        else spread32(R32(k), v[0], s->mask);
    }
}

// All lanes read side by side.
#define LINE(name, type) \
    FC_CLONES static void name##_1(fc_warp *w, fc_insn *in, const type *p) { uint32_t *a = R32(0); for (int i = 0; i < 32; i++) a[i] = p[i]; } \
    FC_CLONES static void name##_2(fc_warp *w, fc_insn *in, const type *p) \
    { uint32_t *a = R32(0), *b = R32(1); for (int i = 0; i < 32; i++) a[i] = p[2 * i], b[i] = p[2 * i + 1]; } \
    FC_CLONES static void name##_4(fc_warp *w, fc_insn *in, const type *p) \
    { uint32_t *a = R32(0), *b = R32(1), *c = R32(2), *d = R32(3); for (int i = 0; i < 32; i++) a[i] = p[4 * i], b[i] = p[4 * i + 1], \
        c[i] = p[4 * i + 2], d[i] = p[4 * i + 3]; }
LINE(line32, uint32_t) LINE(line16, uint16_t)
static inline bool load_line(fc_warp *w, fc_insn *in, const void *p, int kind, int n)
{
    if (kind == E_32) (n == 1 ? line32_1 : n == 2 ? line32_2 : line32_4)(w, in, p);
    else if (kind == E_U16) (n == 1 ? line16_1 : n == 2 ? line16_2 : line16_4)(w, in, p);
    else return false;
    return true;
}

#define STORE_LINE(name, type, cast) \
    FC_CLONES static void name##_1(fc_warp *w, fc_insn *in, type *p) { const uint32_t *a = R32(1); for (int i = 0; i < 32; i++) p[i] = (type)a[i]; } \
    FC_CLONES static void name##_2(fc_warp *w, fc_insn *in, type *p) \
    { const uint32_t *a = R32(1), *b = R32(2); for (int i = 0; i < 32; i++) p[2 * i] = (type)a[i], p[2 * i + 1] = (type)b[i]; } \
    FC_CLONES static void name##_4(fc_warp *w, fc_insn *in, type *p) \
    { const uint32_t *a = R32(1), *b = R32(2), *c = R32(3), *d = R32(4); \
      for (int i = 0; i < 32; i++) p[4 * i] = (type)a[i], p[4 * i + 1] = (type)b[i], p[4 * i + 2] = (type)c[i], p[4 * i + 3] = (type)d[i]; }
STORE_LINE(put32, uint32_t, ) STORE_LINE(put16, uint16_t, )
static inline bool store_line(fc_warp *w, fc_insn *in, void *p, int kind, int n)
{
    if (kind == E_32) (n == 1 ? put32_1 : n == 2 ? put32_2 : put32_4)(w, in, p);
    else if (kind == E_U16) (n == 1 ? put16_1 : n == 2 ? put16_2 : put16_4)(w, in, p);
    else return false;
    return true;
}

// The quickest way that the shape of the request allows. zero: what turns an address of its space into one of the host.
static inline void load(fc_warp *w, fc_insn *in, const fc_span *s, uint64_t zero, int kind, int n)
{
    if (s->shape == FC_SAME) load_same(w, in, s, zero, kind, n);
    else if (s->shape != FC_STRAIGHT || !load_line(w, in, (const void *)(uintptr_t)(s->at[0] + zero), kind, n)) load_lanes(w, in, s, zero, kind, n);
}

static inline void store(fc_warp *w, fc_insn *in, const fc_span *s, uint64_t zero, int kind, int n)
{
    if (s->shape != FC_STRAIGHT || !store_line(w, in, (void *)(uintptr_t)(s->at[0] + zero), kind, n)) store_lanes(w, in, s, zero, kind, n);
}

static inline void load_global(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    fc_span s;
    fc_reach(w, in->o[n], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &s);
    fc_touch_global(w, in, &s, NULL, FC_READ, "read");
    load(w, in, &s, 0, kind, n);
}

static inline void store_global(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    fc_span s;
    fc_reach(w, in->o[0], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &s);
    fc_touch_global(w, in, &s, NULL, FC_WRITE, "write");
    store(w, in, &s, 0, kind, n);
}

// ---- shared memory

static void check_shared(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, const char *what)
{
    fc_block *b = w->block;
    if (at & (bytes - 1)) fc_fault(w, in, lane, CUDA_ERROR_MISALIGNED_ADDRESS, "memcheck", "%s of %u bytes at the misaligned shared address 0x%llx",
        what, bytes, (unsigned long long)at);
    if (at < FC_SHARED_BASE || at - FC_SHARED_BASE > b->shared_bytes || bytes > b->shared_bytes - (at - FC_SHARED_BASE))
        fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at shared offset %lld, behind the %llu bytes of the block",
            what, bytes,
                 (long long)(at - FC_SHARED_BASE), (unsigned long long)b->shared_bytes);
}

// Two warps touch one word between barriers, one of them writing: a race. Lanes of one warp are ordered by what the warp does.
void fc_race(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, bool write)
{
    fc_block *b = w->block;
    uint16_t me = (uint16_t)(w->index + 1);
    for (uint64_t k = (at - FC_SHARED_BASE) / 4; k <= (at - FC_SHARED_BASE + bytes - 1) / 4; k++) {
        fc_access *a = &b->access[k];
        if (a->epoch != b->epoch) *a = (fc_access){.epoch = b->epoch};
        bool wrote = a->writer && a->writer != me, bad = wrote || (write && a->reader && a->reader != me);
        if (bad && fc_first(&w->launch->grid->told_race))
            fc_tell(w, in, lane, "racecheck", "%s of shared offset %llu that warp %d %s since the last barrier", write ? "write" : "read",
                (unsigned long long)k * 4,
                    (wrote ? a->writer : a->reader) - 1, wrote ? "wrote" : "read");
        if (write) a->writer = me;
        else a->reader = a->reader && a->reader != me ? 0xffff : me;
    }
}

void fc_bound_shared(fc_warp *w, fc_insn *in, const fc_span *s, const char *what)
{
    uint64_t size = w->block->shared_bytes;
    if (s->aligned && s->lo >= FC_SHARED_BASE && s->bytes <= size && s->hi - FC_SHARED_BASE <= size - s->bytes) return;
    for (uint32_t left = s->mask; left; left &= left - 1) check_shared(w, in, __builtin_ctz(left), s->at[__builtin_ctz(left)], s->bytes, what);
}

void fc_touch_shared(fc_warp *w, fc_insn *in, const fc_span *s, bool write, const char *what)
{
    fc_bound_shared(w, in, s, what);
    for (uint32_t left = fc_opt.race ? s->mask : 0; left; left &= left - 1) fc_race(w, in, __builtin_ctz(left), s->at[__builtin_ctz(left)], s->bytes,
        write);
}

static inline void load_shared(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    fc_span s;
    fc_reach(w, in->o[n], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &s);
    fc_touch_shared(w, in, &s, false, "read");
    fc_count_shared(&w->launch->c.shared, &s, false);
    load(w, in, &s, fc_shared_zero(w), kind, n);
}

static inline void store_shared(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    fc_span s;
    fc_reach(w, in->o[0], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &s);
    fc_touch_shared(w, in, &s, true, "write");
    fc_count_shared(&w->launch->c.shared, &s, true);
    store(w, in, &s, fc_shared_zero(w), kind, n);
}

// ---- parameters, and memory of each lane

static inline void load_param(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    fc_span s;
    uint64_t size = w->launch->kernel->param_bytes;
    fc_reach(w, in->o[n], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &s);
    if (s.bytes > size || s.hi > size - s.bytes) fc_fault(w, in, __builtin_ctz(mask), CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck",
        "read behind the parameters");
    load(w, in, &s, (uint64_t)(uintptr_t)w->launch->op->params, kind, n);
}

// Addresses become those of the host: each lane has local_bytes of its own.
static void local_at(fc_warp *w, fc_insn *in, fc_span *s, bool write)
{
    uint64_t size = w->launch->kernel->local_bytes;
    for (uint32_t left = s->mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        uint64_t off = s->at[i] - FC_LOCAL_BASE;
        if (off > size || s->bytes > size - off || (off & (s->bytes - 1)))
            fc_fault(w, in, i, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "access of %u bytes at local offset %lld of %llu", s->bytes, (long long)off,
                (unsigned long long)size);
    }
    fc_count_local(&w->launch->c.local, s, write);
    for (uint32_t left = s->mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        s->at[i] = (uint64_t)(uintptr_t)(w->local + (uint64_t)i * size + (s->at[i] - FC_LOCAL_BASE));
    }
}

static inline void load_local(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    fc_span s;
    fc_reach(w, in->o[n], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &s);
    local_at(w, in, &s, false);
    load_lanes(w, in, &s, 0, kind, n);
}

static inline void store_local(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    fc_span s;
    fc_reach(w, in->o[0], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &s);
    local_at(w, in, &s, true);
    store_lanes(w, in, &s, 0, kind, n);
}

// ---- generic addresses: the window tells the space

// The lanes of one space, with addresses of that space; false: none go there.
static bool lanes_in(const fc_span *all, uint64_t from, uint64_t to, fc_span *s)
{
    uint32_t mask = 0;
    for (int i = 0; i < 32; i++) if (all->mask >> i & 1 && all->at[i] >= from && all->at[i] < to) mask |= 1u << i;
    if (!mask) return false;
    *s = (fc_span){.mask = mask, .bytes = all->bytes};
    int first = __builtin_ctz(mask), last = 31 - __builtin_clz(mask);
    for (int i = 0; i < 32; i++) s->at[i] = all->at[mask >> i & 1 ? i : i < first ? first : last] - from;
    measure(s);
    return true;
}

static inline void generic(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n, bool write)
{
    fc_span all, s;
    fc_reach(w, in->o[write ? 0 : n], in->wide, in->imm, mask, (uint32_t)n * size_of[kind], &all);
    if (lanes_in(&all, 0, FC_SHARED_WINDOW, &s)) {
        fc_touch_global(w, in, &s, NULL, write ? FC_WRITE : FC_READ, write ? "write" : "read");
        if (write) store_lanes(w, in, &s, 0, kind, n);
        else load_lanes(w, in, &s, 0, kind, n);
    }
    if (lanes_in(&all, FC_SHARED_WINDOW, FC_LOCAL_WINDOW, &s)) {
        fc_touch_shared(w, in, &s, write, write ? "write" : "read");
        fc_count_shared(&w->launch->c.shared, &s, write);
        if (write) store_lanes(w, in, &s, fc_shared_zero(w), kind, n);
        else load_lanes(w, in, &s, fc_shared_zero(w), kind, n);
    }
    if (lanes_in(&all, FC_LOCAL_WINDOW, ~(uint64_t)0, &s)) {
        local_at(w, in, &s, write);
        if (write) store_lanes(w, in, &s, 0, kind, n);
        else load_lanes(w, in, &s, 0, kind, n);
    }
}
static inline void load_generic(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n) { generic(w, in, mask, kind, n, false); }
static inline void store_generic(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n) { generic(w, in, mask, kind, n, true); }

static void to_generic_shared(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] + FC_SHARED_WINDOW); }
static void to_generic_local(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] + FC_LOCAL_WINDOW); }
static void from_generic_shared(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] - FC_SHARED_WINDOW); }
static void from_generic_local(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] - FC_LOCAL_WINDOW); }
static void same_address(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i]); }

// ---- the table

#define LD(space, cls, nc, mods, type, shape, kind, n) \
    {"ld" mods type, shape, ld_##space##_##kind##_##n, cls, kind == E_S8 || kind == E_S16 || type[1] == 's' ? FC_SIGNED : 0, nc}
#define LOADER(space, kind, n) static void ld_##space##_##kind##_##n(fc_warp *w, fc_insn *in, uint32_t mask) { load_##space(w, in, mask, kind, n); }
#define STORER(space, kind, n) static void st_##space##_##kind##_##n(fc_warp *w, fc_insn *in, uint32_t mask) { store_##space(w, in, mask, kind, n); }
#define LOADERS(space) \
    LOADER(space, E_U8, 1) LOADER(space, E_S8, 1) LOADER(space, E_U16, 1) LOADER(space, E_S16, 1) LOADER(space, E_32, 1) LOADER(space, E_64, 1) \
    LOADER(space, E_32, 2) LOADER(space, E_32, 4) \
    LOADER(space, E_U16, 2) LOADER(space, E_U16, 4) LOADER(space, E_U8, 2) LOADER(space, E_U8, 4) LOADER(space, E_64, 2)
#define STORERS(space) \
    STORER(space, E_U8, 1) STORER(space, E_U16, 1) STORER(space, E_32, 1) STORER(space, E_64, 1) STORER(space, E_32, 2) STORER(space, E_32, 4) \
    STORER(space, E_U16, 2) STORER(space, E_U16, 4) \
    STORER(space, E_U8, 2) STORER(space, E_U8, 4) STORER(space, E_64, 2)
LOADERS(global) LOADERS(shared) LOADERS(param) LOADERS(local) LOADERS(generic) STORERS(generic) STORERS(global) STORERS(shared) STORERS(local)

#define L(space, cls, nc, m) \
    LD(space, cls, nc, m, ".u8", "h=m", E_U8, 1), LD(space, cls, nc, m, ".b8", "h=m", E_U8, 1), LD(space, cls, nc, m, ".s8", "h=m", E_S8, 1), \
    LD(space, cls, nc, m, ".u16", "h=m", E_U16, 1), LD(space, cls, nc, m, ".b16", "h=m", E_U16, 1), \
    LD(space, cls, nc, m, ".s16", "h=m", E_S16, 1), LD(space, cls, nc, m, ".u32", "w=m", E_32, 1), LD(space, cls, nc, m, ".s32", "w=m", E_32, 1), \
    LD(space, cls, nc, m, ".b32", "w=m", E_32, 1), LD(space, cls, nc, m, ".f32", "w=m", E_32, 1), \
    LD(space, cls, nc, m, ".u64", "d=m", E_64, 1), LD(space, cls, nc, m, ".s64", "d=m", E_64, 1), LD(space, cls, nc, m, ".b64", "d=m", E_64, 1), \
    LD(space, cls, nc, m, ".f64", "d=m", E_64, 1), \
    LD(space, cls, nc, m, ".v2.u32", "w2=m", E_32, 2), LD(space, cls, nc, m, ".v2.b32", "w2=m", E_32, 2), \
    LD(space, cls, nc, m, ".v2.f32", "w2=m", E_32, 2), LD(space, cls, nc, m, ".v4.u32", "w4=m", E_32, 4), \
    LD(space, cls, nc, m, ".v4.b32", "w4=m", E_32, 4), \
    LD(space, cls, nc, m, ".v4.f32", "w4=m", E_32, 4), LD(space, cls, nc, m, ".v2.u16", "h2=m", E_U16, 2), \
    LD(space, cls, nc, m, ".v4.u16", "h4=m", E_U16, 4), LD(space, cls, nc, m, ".v2.b16", "h2=m", E_U16, 2), \
    LD(space, cls, nc, m, ".v4.b16", "h4=m", E_U16, 4), \
    LD(space, cls, nc, m, ".v2.u8", "h2=m", E_U8, 2), LD(space, cls, nc, m, ".v4.u8", "h4=m", E_U8, 4), \
    LD(space, cls, nc, m, ".v2.u64", "d2=m", E_64, 2), LD(space, cls, nc, m, ".v2.b64", "d2=m", E_64, 2)
#define ST(space, cls, m, type, shape, kind, n) {"st" m type, shape, st_##space##_##kind##_##n, cls, 0, 0}
#define T(space, cls, m) \
    ST(space, cls, m, ".u8", "mh", E_U8, 1), ST(space, cls, m, ".b8", "mh", E_U8, 1), ST(space, cls, m, ".u16", "mh", E_U16, 1), \
    ST(space, cls, m, ".b16", "mh", E_U16, 1), ST(space, cls, m, ".u32", "mw", E_32, 1), \
    ST(space, cls, m, ".b32", "mw", E_32, 1), ST(space, cls, m, ".s32", "mw", E_32, 1), ST(space, cls, m, ".f32", "mw", E_32, 1), \
    ST(space, cls, m, ".u64", "md", E_64, 1), ST(space, cls, m, ".b64", "md", E_64, 1), ST(space, cls, m, ".s64", "md", E_64, 1), \
    ST(space, cls, m, ".f64", "md", E_64, 1), ST(space, cls, m, ".v2.u32", "mw2", E_32, 2), ST(space, cls, m, ".v2.b32", "mw2", E_32, 2), \
    ST(space, cls, m, ".v2.f32", "mw2", E_32, 2), ST(space, cls, m, ".v4.u32", "mw4", E_32, 4), ST(space, cls, m, ".v4.b32", "mw4", E_32, 4), \
    ST(space, cls, m, ".v4.f32", "mw4", E_32, 4), ST(space, cls, m, ".v2.u16", "mh2", E_U16, 2), ST(space, cls, m, ".v4.u16", "mh4", E_U16, 4), \
    ST(space, cls, m, ".v2.b16", "mh2", E_U16, 2), ST(space, cls, m, ".v4.b16", "mh4", E_U16, 4), \
    ST(space, cls, m, ".v2.u8", "mh2", E_U8, 2), ST(space, cls, m, ".v4.u8", "mh4", E_U8, 4), ST(space, cls, m, ".v2.u64", "md2", E_64, 2), \
    ST(space, cls, m, ".v2.b64", "md2", E_64, 2)

static const fc_row rows[] = {
    L(global, FC_global, 0, ".global"), L(global, FC_global, 0, ".volatile.global"), L(global, FC_global, NC, ".global.nc"),
    L(global, FC_global, NC, ".global.nc.L1::no_allocate"), L(global, FC_global, 0, ".global.L1::no_allocate"),
    L(global, FC_global, CONSTANT, ".const"),
    L(global, FC_global, 0, ".relaxed.gpu.global"), L(global, FC_global, 0, ".acquire.gpu.global"), L(shared, FC_shared, 0, ".shared"),
    L(shared, FC_shared, 0, ".volatile.shared"), L(param, FC_move, 0, ".param"), L(local, FC_global, 0, ".local"),
    T(global, FC_global, ".global"), T(global, FC_global, ".volatile.global"), T(global, FC_global, ".relaxed.gpu.global"),
    T(global, FC_global, ".release.gpu.global"), T(shared, FC_shared, ".shared"), T(shared, FC_shared, ".volatile.shared"),
    T(local, FC_global, ".local"),
    L(generic, FC_global, 0, ""), T(generic, FC_global, ""),
    {"cvta.to.global.u64", "d=d", same_address, FC_int, 0, 0}, {"cvta.global.u64", "d=d", same_address, FC_int, 0, 0},
    {"cvta.shared.u64", "d=d", to_generic_shared, FC_int, 0, 0}, {"cvta.local.u64", "d=d", to_generic_local, FC_int, 0, 0},
    {"cvta.to.shared.u64", "d=d", from_generic_shared, FC_int, 0, 0}, {"cvta.to.local.u64", "d=d", from_generic_local, FC_int, 0, 0},
};
const fc_table fc_mem_rows = {rows, sizeof rows / sizeof *rows};
