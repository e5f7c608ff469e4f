// exec_mem.c: owns loads, stores, atomics and cp.async: where an address may point, what each access counts, and what the checks see of it.
// Every access is checked whole: its bytes must lie in one live allocation (or in the block's shared memory), aligned to its full size.
// Data of cp.async arrives at the wait and not before, so that a kernel without the wait reads what was there.
#define _GNU_SOURCE
#include "fakecuda.h"

static uint64_t base(const fc_warp *w, uint32_t at, int wide, int64_t imm, int i)
{
    return wide ? ((uint64_t *)(w->r + at))[i] + (uint64_t)imm : (uint32_t)(((uint32_t *)(w->r + at))[i] + (uint32_t)imm);
}

// ---- global memory

static _Noreturn void bad_global(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, const char *what)
{
    drv_range *f = drv_mem_freed(at), *r = drv_mem_find(at);
    if (f) fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at 0x%llx: %llu bytes into allocation %llu, which was freed", what, bytes,
                    (unsigned long long)at, (unsigned long long)(at - f->lo), (unsigned long long)f->serial);
    if (!r && at > 1024) r = drv_mem_find(at - 1024);
    for (uint64_t back = 16; !r && back <= 65536 && back < at; back *= 2) r = drv_mem_find(at - back);
    if (r) fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at 0x%llx: %lld bytes behind the %llu of allocation %llu", what, bytes,
                    (unsigned long long)at, (long long)(at + bytes - r->lo - r->bytes), (unsigned long long)r->bytes, (unsigned long long)r->serial);
    fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at 0x%llx, where there is no allocation", what, bytes, (unsigned long long)at);
}

static inline bool holds(const drv_range *r, uint64_t at, uint64_t bytes) { return r && at - r->lo < r->bytes && bytes <= r->bytes - (at - r->lo); }

static unsigned char *global_at(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, const char *what)
{
    if (at & (bytes - 1)) fc_fault(w, in, lane, CUDA_ERROR_MISALIGNED_ADDRESS, "memcheck", "%s of %u bytes at the misaligned address 0x%llx", what, bytes, (unsigned long long)at);
    if (!holds(in->cache, at, bytes)) {
        in->cache = drv_mem_find(at);
        if (!holds(in->cache, at, bytes)) bad_global(w, in, lane, at, bytes, what);
    }
    return (unsigned char *)(uintptr_t)at;
}

// One bit a byte: whether it was ever written.
static bool all_set(const uint8_t *bits, uint64_t at, uint64_t n)
{
    for (uint64_t i = at; i < at + n; i++) if (!(bits[i >> 3] >> (i & 7) & 1)) return false;
    return true;
}

static void set_bits(uint8_t *bits, uint64_t at, uint64_t n) { for (uint64_t i = at; i < at + n; i++) bits[i >> 3] |= (uint8_t)(1 << (i & 7)); }

static void seen_read(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes)
{
    drv_range *r = in->cache;
    fc_range *c = r->core;
    c->read_bytes += bytes;
    if (fc_opt.init && c->init && !all_set(c->init, at - r->lo, bytes) && !w->launch->told_init) {
        w->launch->told_init = true;
        fc_tell(w, in, lane, "initcheck", "read of %u bytes, %llu bytes into allocation %llu, that nothing has written", bytes, (unsigned long long)(at - r->lo), (unsigned long long)r->serial);
    }
    if (fc_opt.nc && in->row->arg && c->written && c->launch == w->launch->number && !w->launch->told_nc)
        for (uint64_t i = at - r->lo; i < at - r->lo + bytes; i++)
            if (c->written[i >> 3] >> (i & 7) & 1) {
                w->launch->told_nc = true;
                fc_tell(w, in, lane, "nccheck", "read by way of the read-only cache, %llu bytes into allocation %llu, of what this launch has written", (unsigned long long)i, (unsigned long long)r->serial);
                break;
            }
}

static void seen_write(fc_warp *w, fc_insn *in, uint64_t at, uint32_t bytes)
{
    drv_range *r = in->cache;
    fc_range *c = r->core;
    c->written_bytes += bytes;
    if (c->init) set_bits(c->init, at - r->lo, bytes);
    if (!fc_opt.nc || r->bytes > (uint64_t)1 << 31) return;
    if (!c->written) c->written = calloc(1, r->bytes / 8 + 1);
    if (!c->written) drv_missing("memory for nccheck");
    if (c->launch != w->launch->number) memset(c->written, 0, r->bytes / 8 + 1), c->launch = w->launch->number;
    set_bits(c->written, at - r->lo, bytes);
}

static bool watched(const drv_range *r) { return fc_opt.init || fc_opt.nc || ((const fc_range *)r->core)->init; }

// Distinct 32-byte sectors of one request.
static uint32_t sectors(const uint64_t *at, uint32_t mask, uint32_t bytes)
{
    uint64_t seen[64], top = 0;                      // most requests rise from lane to lane: what is above all others is new
    uint32_t n = 0;
    for (uint32_t left = mask; left; left &= left - 1) {
        uint64_t first = at[__builtin_ctz(left)] >> 5, last = (at[__builtin_ctz(left)] + bytes - 1) >> 5;
        for (uint64_t s = first; s <= last; s++) {
            uint32_t k = s > top ? 0 : n;
            while (k && seen[k - 1] != s) k--;       // neighbours come one after the other: the newest first
            if (s > top) top = s;
            if (!k && n < 64) seen[n++] = s;
        }
    }
    return n;
}

static void count_global(fc_warp *w, const uint64_t *at, uint32_t mask, uint32_t bytes, bool write, bool straight)
{
    fc_counters *c = w->launch->c;
    uint32_t n = (uint32_t)__builtin_popcount(mask) * bytes;
    if (write) c->global_written += n;
    else c->global_read += n;
    if (!fc_opt.count) return;
    c->global_sectors += straight ? ((at[0] + 32 * bytes - 1) >> 5) - (at[0] >> 5) + 1 : sectors(at, mask, bytes);
}

// All lanes, each beside the one before.
FC_CLONES static bool in_line(const uint64_t *at, uint32_t mask, uint32_t bytes)
{
    uint64_t off = 0;
    if (mask != 0xffffffffu) return false;
    for (int i = 0; i < 32; i++) off |= at[i] - (at[0] + (uint64_t)i * bytes);
    return !off;
}

FC_CLONES static void addresses(const fc_warp *w, const fc_insn *in, int k, int wide, int64_t imm, uint64_t *at)
{
    if (wide) for (int i = 0; i < 32; i++) at[i] = ((const uint64_t *)(w->r + in->o[k]))[i] + (uint64_t)imm;
    else for (int i = 0; i < 32; i++) at[i] = (uint32_t)(((const uint32_t *)(w->r + in->o[k]))[i] + (uint32_t)imm);
}

static void check_lanes(fc_warp *w, fc_insn *in, const uint64_t *at, uint32_t mask, uint32_t bytes, bool write)
{
    const char *what = write ? "write" : "read";
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        global_at(w, in, i, at[i], bytes, what);
        if (write) seen_write(w, in, at[i], bytes);
        else seen_read(w, in, i, at[i], bytes);
    }
}

// The quick way where all is one stretch of one allocation that no check looks into; else lane by lane.
static bool check_global(fc_warp *w, fc_insn *in, const uint64_t *at, uint32_t mask, uint32_t bytes, bool write)
{
    bool straight = in_line(at, mask, bytes);
    if (straight && !(at[0] & (bytes - 1))) {
        if (!holds(in->cache, at[0], 32 * bytes)) in->cache = drv_mem_find(at[0]);
        if (holds(in->cache, at[0], 32 * bytes) && !watched(in->cache)) {
            fc_range *c = in->cache->core;
            if (write) c->written_bytes += 32 * bytes;
            else c->read_bytes += 32 * bytes;
            count_global(w, at, mask, bytes, write, true);
            return true;
        }
    }
    check_lanes(w, in, at, mask, bytes, write);
    count_global(w, at, mask, bytes, write, false);
    return false;
}

// Element kinds: what memory holds and how it comes into a register.
enum { E_U8, E_S8, E_U16, E_S16, E_32, E_64 };
static const uint8_t size_of[] = {1, 1, 2, 2, 4, 8};

static inline void get(fc_warp *w, uint32_t reg, int lane, const unsigned char *p, int kind)
{
    uint32_t *d = (uint32_t *)(w->r + reg) + lane;
    switch (kind) {
    case E_U8: *d = *p; break;
    case E_S8: *d = (uint32_t)(int8_t)*p; break;
    case E_U16: *d = (uint32_t)(p[0] | p[1] << 8); break;
    case E_S16: *d = (uint32_t)(int16_t)(p[0] | p[1] << 8); break;
    case E_32: memcpy(d, p, 4); break;
    default: memcpy((uint64_t *)(w->r + reg) + lane, p, 8);
    }
}

static inline void put(fc_warp *w, uint32_t reg, int lane, unsigned char *p, int kind)
{
    if (kind == E_64) memcpy(p, (uint64_t *)(w->r + reg) + lane, 8);
    else memcpy(p, (uint32_t *)(w->r + reg) + lane, size_of[kind]);
}

static inline void load_lanes(fc_warp *w, fc_insn *in, const uint64_t *at, uint32_t mask, int kind, int n)
{
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        const unsigned char *p = (const unsigned char *)(uintptr_t)at[i];
        for (int k = 0; k < n; k++) get(w, in->o[k], i, p + k * size_of[kind], kind);
    }
}

static inline void store_lanes(fc_warp *w, fc_insn *in, const uint64_t *at, uint32_t mask, int kind, int n)
{
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        unsigned char *p = (unsigned char *)(uintptr_t)at[i];
        for (int k = 0; k < n; k++) put(w, in->o[1 + k], i, p + k * size_of[kind], kind);
    }
}

FC_CLONES static void load4_line(fc_warp *w, fc_insn *in, const uint32_t *p)
{
    uint32_t *a = R32(0), *b = R32(1), *c = R32(2), *d = R32(3);
    for (int i = 0; i < 32; i++) a[i] = p[4 * i], b[i] = p[4 * i + 1], c[i] = p[4 * i + 2], d[i] = p[4 * i + 3];
}
FC_CLONES static void load2_line(fc_warp *w, fc_insn *in, const uint32_t *p)
{
    uint32_t *a = R32(0), *b = R32(1);
    for (int i = 0; i < 32; i++) a[i] = p[2 * i], b[i] = p[2 * i + 1];
}

static inline void load_global(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, n, in->wide, in->imm, at);
    bool straight = check_global(w, in, at, mask, (uint32_t)n * size_of[kind], false);
    const void *p = (const void *)(uintptr_t)at[0];
    if (straight && kind == E_32 && n == 1) memcpy(R32(0), p, 128);
    else if (straight && kind == E_32 && n == 2) load2_line(w, in, p);
    else if (straight && kind == E_32 && n == 4) load4_line(w, in, p);
    else load_lanes(w, in, at, mask, kind, n);
}

static inline void store_global(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, 0, in->wide, in->imm, at);
    bool straight = check_global(w, in, at, mask, (uint32_t)n * size_of[kind], true);
    if (straight && kind == E_32 && n == 1) memcpy((void *)(uintptr_t)at[0], R32(1), 128);
    else store_lanes(w, in, at, mask, kind, n);
}

// ---- shared memory

static unsigned char *shared_at(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, const char *what)
{
    fc_block *b = w->block;
    if (at & (bytes - 1)) fc_fault(w, in, lane, CUDA_ERROR_MISALIGNED_ADDRESS, "memcheck", "%s of %u bytes at the misaligned shared address 0x%llx", what, bytes, (unsigned long long)at);
    if (at < FC_SHARED_BASE || at - FC_SHARED_BASE > b->shared_bytes || bytes > b->shared_bytes - (at - FC_SHARED_BASE))
        fc_fault(w, in, lane, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "%s of %u bytes at shared offset %lld, behind the %llu bytes of the block", what, bytes,
                 (long long)(at - FC_SHARED_BASE), (unsigned long long)b->shared_bytes);
    return b->shared + (at - FC_SHARED_BASE);
}

// Two warps touch one word between barriers, one of them writing: a race. Lanes of one warp are ordered by what the warp does.
static void race(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, bool write)
{
    fc_block *b = w->block;
    uint16_t me = (uint16_t)(w->index + 1);
    for (uint64_t k = (at - FC_SHARED_BASE) / 4; k <= (at - FC_SHARED_BASE + bytes - 1) / 4; k++) {
        fc_access *a = &b->access[k];
        if (a->epoch != b->epoch) *a = (fc_access){.epoch = b->epoch};
        bool bad = (a->writer && a->writer != me) || (write && a->reader && a->reader != me);
        if (bad && !w->launch->told_race) {
            w->launch->told_race = true;
            fc_tell(w, in, lane, "racecheck", "%s of shared offset %llu that warp %d %s since the last barrier", write ? "write" : "read", (unsigned long long)k * 4,
                    (a->writer && a->writer != me ? a->writer : a->reader) - 1, a->writer && a->writer != me ? "wrote" : "read");
        }
        if (write) a->writer = me;
        else a->reader = a->reader && a->reader != me ? 0xffff : me;
    }
}

// Every bank is asked for one word at most.
static bool one_wave(const uint64_t *at, uint32_t mask)
{
    uint32_t used = 0, word[32];
    for (uint32_t left = mask; left; left &= left - 1) {
        uint32_t k = (uint32_t)(at[__builtin_ctz(left)] >> 2), bank = k & 31;
        if (used >> bank & 1 && word[bank] != k) return false;
        used |= 1u << bank;
        word[bank] = k;
    }
    return true;
}

// Waves: 32 banks of 4 bytes serve one word each; requests of 8 and 16 bytes go by halves and quarters of a warp.
static void count_shared(fc_warp *w, const uint64_t *at, uint32_t mask, uint32_t bytes)
{
    fc_counters *c = w->launch->c;
    c->shared_requests++;
    if (!fc_opt.count) return;
    if (bytes <= 4 && one_wave(at, mask)) { c->shared_waves++; return; }
    int lanes = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
    for (int from = 0; from < 32; from += lanes) {
        uint64_t words[32][4];
        uint8_t n[32] = {0};
        uint32_t most = 0;
        for (int i = from; i < from + lanes; i++) {
            if (!(mask >> i & 1)) continue;
            for (uint64_t word = at[i] / 4; word <= (at[i] + bytes - 1) / 4; word++) {
                uint32_t bank = word & 31, k = 0;
                while (k < n[bank] && k < 4 && words[bank][k] != word) k++;
                if (k < 4 && k < n[bank]) continue;
                if (n[bank] < 4) words[bank][n[bank]] = word;
                if (++n[bank] > most) most = n[bank];
            }
        }
        c->shared_waves += most;
    }
}

static void touch_shared(fc_warp *w, fc_insn *in, uint64_t *at, uint32_t mask, uint32_t bytes, bool write)
{
    count_shared(w, at, mask, bytes);
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        unsigned char *p = shared_at(w, in, i, at[i], bytes, write ? "write" : "read");
        if (fc_opt.race) race(w, in, i, at[i], bytes, write);
        at[i] = (uint64_t)(uintptr_t)p;
    }
}

static inline void load_shared(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, n, in->wide, in->imm, at);
    touch_shared(w, in, at, mask, (uint32_t)n * size_of[kind], false);
    load_lanes(w, in, at, mask, kind, n);
}

static inline void store_shared(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, 0, in->wide, in->imm, at);
    touch_shared(w, in, at, mask, (uint32_t)n * size_of[kind], true);
    store_lanes(w, in, at, mask, kind, n);
}

// ---- parameters, and memory of each lane

static inline void load_param(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, n, in->wide, in->imm, at);
    for (int i = 0; i < 32; i++) {
        if (at[i] + (uint64_t)n * size_of[kind] > w->launch->kernel->param_bytes) fc_fault(w, in, i, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "read behind the parameters");
        at[i] += (uint64_t)(uintptr_t)w->launch->op->params;
    }
    load_lanes(w, in, at, mask, kind, n);
}

static void local_at(fc_warp *w, fc_insn *in, uint64_t *at, uint32_t mask, uint32_t bytes)
{
    uint64_t size = w->launch->kernel->local_bytes;
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        uint64_t off = at[i] - FC_LOCAL_BASE;
        if (off > size || bytes > size - off || (off & (bytes - 1)))
            fc_fault(w, in, i, CUDA_ERROR_ILLEGAL_ADDRESS, "memcheck", "access of %u bytes at local offset %lld of %llu", bytes, (long long)off, (unsigned long long)size);
        at[i] = (uint64_t)(uintptr_t)(w->local + (uint64_t)i * size + off);
    }
}

static inline void load_local(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, n, in->wide, in->imm, at);
    local_at(w, in, at, mask, (uint32_t)n * size_of[kind]);
    load_lanes(w, in, at, mask, kind, n);
}

static inline void store_local(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, 0, in->wide, in->imm, at);
    local_at(w, in, at, mask, (uint32_t)n * size_of[kind]);
    store_lanes(w, in, at, mask, kind, n);
}

// ---- generic addresses: the window tells the space

static void split(fc_warp *w, fc_insn *in, uint64_t *at, uint32_t mask, uint32_t bytes, bool write)
{
    uint32_t shared = 0, local = 0;
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        if (at[i] >= FC_LOCAL_WINDOW) local |= 1u << i, at[i] -= FC_LOCAL_WINDOW;
        else if (at[i] >= FC_SHARED_WINDOW) shared |= 1u << i, at[i] -= FC_SHARED_WINDOW;
    }
    uint32_t global = mask & ~(shared | local);
    if (global) check_lanes(w, in, at, global, bytes, write), count_global(w, at, global, bytes, write, false);
    if (shared) touch_shared(w, in, at, shared, bytes, write);
    if (local) local_at(w, in, at, local, bytes);
}

static inline void load_generic(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, n, in->wide, in->imm, at);
    split(w, in, at, mask, (uint32_t)n * size_of[kind], false);
    load_lanes(w, in, at, mask, kind, n);
}

static inline void store_generic(fc_warp *w, fc_insn *in, uint32_t mask, int kind, int n)
{
    uint64_t at[32];
    addresses(w, in, 0, in->wide, in->imm, at);
    split(w, in, at, mask, (uint32_t)n * size_of[kind], true);
    store_lanes(w, in, at, mask, kind, n);
}

static void to_generic_shared(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] + FC_SHARED_WINDOW); }
static void to_generic_local(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] + FC_LOCAL_WINDOW); }
static void from_generic_shared(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] - FC_SHARED_WINDOW); }
static void from_generic_local(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i] - FC_LOCAL_WINDOW); }
static void same_address(fc_warp *w, fc_insn *in, uint32_t mask) { uint64_t *d = R64(0), *a = R64(1); LANES(d[i] = a[i]); }

// ---- atomics: lane after lane, in the order of lanes

enum { A_ADD, A_DEC, A_XOR, A_INC, A_MAX, A_MIN, A_EXCH, A_AND, A_OR, A_CAS };
static uint32_t atomic32(int op, bool is_signed, uint32_t old, uint32_t v, uint32_t v2)
{
    switch (op) {
    case A_ADD: return old + v;
    case A_INC: return old >= v ? 0 : old + 1;
    case A_DEC: return old == 0 || old > v ? v : old - 1;
    case A_XOR: return old ^ v;
    case A_MAX: return (is_signed ? (int32_t)old > (int32_t)v : old > v) ? old : v;
    case A_MIN: return (is_signed ? (int32_t)old < (int32_t)v : old < v) ? old : v;
    case A_AND: return old & v;
    case A_OR: return old | v;
    case A_CAS: return old == v ? v2 : old;
    default: return v;
    }
}

static unsigned char *atom_place(fc_warp *w, fc_insn *in, int k, int lane, uint32_t bytes, bool shared)
{
    uint64_t at[32] = {0};
    at[lane] = base(w, in->o[k], in->wide, in->imm, lane);
    if (shared) {
        touch_shared(w, in, at, 1u << lane, bytes, false);           // atomics race with plain writes, not with each other
        return (unsigned char *)(uintptr_t)at[lane];
    }
    unsigned char *p = global_at(w, in, lane, at[lane], bytes, "atomic");
    seen_read(w, in, lane, at[lane], bytes);
    seen_write(w, in, at[lane], bytes);
    count_global(w, at, 1u << lane, bytes, true, false);
    return p;
}

static inline void atom32(fc_warp *w, fc_insn *in, uint32_t mask, int op, bool is_signed, bool shared)
{
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        unsigned char *p = atom_place(w, in, 1, i, 4, shared);
        uint32_t old, v = R32(2)[i], v2 = op == A_CAS ? R32(3)[i] : 0;
        memcpy(&old, p, 4);
        v = atomic32(op, is_signed, old, v, v2);
        memcpy(p, &v, 4);
        R32(0)[i] = old;
    }
}

static inline void atom64(fc_warp *w, fc_insn *in, uint32_t mask, int op, bool shared)
{
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        unsigned char *p = atom_place(w, in, 1, i, 8, shared);
        uint64_t old, v = R64(2)[i];
        memcpy(&old, p, 8);
        if (op == A_ADD) v = old + v;
        else if (op == A_MAX) v = old > v ? old : v;
        else v = old < v ? old : v;
        memcpy(p, &v, 8);
        R64(0)[i] = old;
    }
}

static void atom_addf(fc_warp *w, fc_insn *in, uint32_t mask)
{
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        unsigned char *p = atom_place(w, in, 1, i, 4, in->row->arg);
        float old, v;
        memcpy(&old, p, 4);
        v = old + RF32(2)[i];
        memcpy(p, &v, 4);
        RF32(0)[i] = old;
    }
}

// ---- cp.async

static void cp_async(fc_warp *w, fc_insn *in, uint32_t mask)
{
    uint64_t dst[32], src[32];
    uint32_t bytes = in->o[2];
    addresses(w, in, 0, in->wide, in->imm, dst);
    addresses(w, in, 1, in->wide2, in->imm2, src);
    for (uint32_t left = mask; left; left &= left - 1) {
        int i = __builtin_ctz(left);
        uint32_t from = in->o[3] ? R32(3)[i] : bytes;
        if (from > bytes) fc_fault(w, in, i, CUDA_ERROR_ILLEGAL_INSTRUCTION, "memcheck", "cp.async takes %u of %u bytes", from, bytes);
        shared_at(w, in, i, dst[i], bytes, "cp.async");
        if (from && (src[i] & (bytes - 1))) global_at(w, in, i, src[i], bytes, "cp.async");
        if (from && !holds(in->cache, src[i], from) && !holds(in->cache = drv_mem_find(src[i]), src[i], from)) bad_global(w, in, i, src[i], from, "cp.async");
        if (from) seen_read(w, in, i, src[i], from);
        if (w->nasync == w->async_cap) {
            w->async_cap = w->async_cap ? 2 * w->async_cap : 256;
            w->async = realloc(w->async, w->async_cap * sizeof *w->async);
            if (!w->async) drv_missing("memory for cp.async");
        }
        w->async[w->nasync++] = (fc_async){dst[i], src[i], bytes, from, w->committed[i], (uint8_t)i, in};
    }
    count_global(w, src, mask, bytes, false, false);
    count_shared(w, dst, mask, bytes);
}

void fc_async_commit(fc_warp *w, uint32_t mask) { for (uint32_t left = mask; left; left &= left - 1) w->committed[__builtin_ctz(left)]++; }

// What lanes of the mask have committed, but for their newest `keep` groups, arrives now; the tail of a short copy is zero.
void fc_async_land(fc_warp *w, uint32_t mask, uint32_t keep)
{
    size_t left = 0;
    for (size_t k = 0; k < w->nasync; k++) {
        fc_async *a = &w->async[k];
        if (!(mask >> a->lane & 1) || (keep != 0xffffffffu && a->group + keep >= w->committed[a->lane])) {
            w->async[left++] = *a;
            continue;
        }
        unsigned char *p = w->block->shared + (a->dst - FC_SHARED_BASE);
        memcpy(p, (void *)(uintptr_t)a->src, a->from_src);
        memset(p + a->from_src, 0, a->bytes - a->from_src);
        if (fc_opt.race) race(w, a->in, a->lane, a->dst, a->bytes, true);
    }
    w->nasync = left;
}

static void cp_commit(fc_warp *w, fc_insn *in, uint32_t mask) { (void)in; fc_async_commit(w, mask); }
static void cp_wait(fc_warp *w, fc_insn *in, uint32_t mask) { fc_async_land(w, mask, in->o[0]); }
static void cp_wait_all(fc_warp *w, fc_insn *in, uint32_t mask) { (void)in; fc_async_land(w, mask, 0xffffffffu); }
static void fence(fc_warp *w, fc_insn *in, uint32_t mask) { (void)w; (void)in; (void)mask; }

// ---- the table

#define LD(space, cls, nc, mods, type, shape, kind, n) {"ld" mods type, shape, ld_##space##_##kind##_##n, cls, kind == E_S8 || kind == E_S16 || type[1] == 's' ? FC_SIGNED : 0, nc}
#define LOADER(space, kind, n) static void ld_##space##_##kind##_##n(fc_warp *w, fc_insn *in, uint32_t mask) { load_##space(w, in, mask, kind, n); }
#define STORER(space, kind, n) static void st_##space##_##kind##_##n(fc_warp *w, fc_insn *in, uint32_t mask) { store_##space(w, in, mask, kind, n); }
#define LOADERS(space) LOADER(space, E_U8, 1) LOADER(space, E_S8, 1) LOADER(space, E_U16, 1) LOADER(space, E_S16, 1) LOADER(space, E_32, 1) LOADER(space, E_64, 1) LOADER(space, E_32, 2) LOADER(space, E_32, 4) \
    LOADER(space, E_U16, 2) LOADER(space, E_U16, 4) LOADER(space, E_U8, 2) LOADER(space, E_U8, 4) LOADER(space, E_64, 2)
#define STORERS(space) STORER(space, E_U8, 1) STORER(space, E_U16, 1) STORER(space, E_32, 1) STORER(space, E_64, 1) STORER(space, E_32, 2) STORER(space, E_32, 4) STORER(space, E_U16, 2) STORER(space, E_U16, 4) \
    STORER(space, E_U8, 2) STORER(space, E_U8, 4) STORER(space, E_64, 2)
LOADERS(global) LOADERS(shared) LOADERS(param) LOADERS(local) LOADERS(generic) STORERS(generic) STORERS(global) STORERS(shared) STORERS(local)

#define L(space, cls, nc, m) \
    LD(space, cls, nc, m, ".u8", "h=m", E_U8, 1), LD(space, cls, nc, m, ".b8", "h=m", E_U8, 1), LD(space, cls, nc, m, ".s8", "h=m", E_S8, 1), LD(space, cls, nc, m, ".u16", "h=m", E_U16, 1), LD(space, cls, nc, m, ".b16", "h=m", E_U16, 1), \
    LD(space, cls, nc, m, ".s16", "h=m", E_S16, 1), LD(space, cls, nc, m, ".u32", "w=m", E_32, 1), LD(space, cls, nc, m, ".s32", "w=m", E_32, 1), LD(space, cls, nc, m, ".b32", "w=m", E_32, 1), LD(space, cls, nc, m, ".f32", "w=m", E_32, 1), \
    LD(space, cls, nc, m, ".u64", "d=m", E_64, 1), LD(space, cls, nc, m, ".s64", "d=m", E_64, 1), LD(space, cls, nc, m, ".b64", "d=m", E_64, 1), LD(space, cls, nc, m, ".f64", "d=m", E_64, 1), \
    LD(space, cls, nc, m, ".v2.u32", "w2=m", E_32, 2), LD(space, cls, nc, m, ".v2.b32", "w2=m", E_32, 2), LD(space, cls, nc, m, ".v2.f32", "w2=m", E_32, 2), LD(space, cls, nc, m, ".v4.u32", "w4=m", E_32, 4), LD(space, cls, nc, m, ".v4.b32", "w4=m", E_32, 4), \
    LD(space, cls, nc, m, ".v4.f32", "w4=m", E_32, 4), LD(space, cls, nc, m, ".v2.u16", "h2=m", E_U16, 2), LD(space, cls, nc, m, ".v4.u16", "h4=m", E_U16, 4), LD(space, cls, nc, m, ".v2.b16", "h2=m", E_U16, 2), LD(space, cls, nc, m, ".v4.b16", "h4=m", E_U16, 4), \
    LD(space, cls, nc, m, ".v2.u8", "h2=m", E_U8, 2), LD(space, cls, nc, m, ".v4.u8", "h4=m", E_U8, 4), LD(space, cls, nc, m, ".v2.u64", "d2=m", E_64, 2), LD(space, cls, nc, m, ".v2.b64", "d2=m", E_64, 2)
#define ST(space, cls, m, type, shape, kind, n) {"st" m type, shape, st_##space##_##kind##_##n, cls, 0, 0}
#define T(space, cls, m) \
    ST(space, cls, m, ".u8", "mh", E_U8, 1), ST(space, cls, m, ".b8", "mh", E_U8, 1), ST(space, cls, m, ".u16", "mh", E_U16, 1), ST(space, cls, m, ".b16", "mh", E_U16, 1), ST(space, cls, m, ".u32", "mw", E_32, 1), \
    ST(space, cls, m, ".b32", "mw", E_32, 1), ST(space, cls, m, ".s32", "mw", E_32, 1), ST(space, cls, m, ".f32", "mw", E_32, 1), ST(space, cls, m, ".u64", "md", E_64, 1), ST(space, cls, m, ".b64", "md", E_64, 1), ST(space, cls, m, ".s64", "md", E_64, 1), \
    ST(space, cls, m, ".f64", "md", E_64, 1), ST(space, cls, m, ".v2.u32", "mw2", E_32, 2), ST(space, cls, m, ".v2.b32", "mw2", E_32, 2), ST(space, cls, m, ".v2.f32", "mw2", E_32, 2), ST(space, cls, m, ".v4.u32", "mw4", E_32, 4), ST(space, cls, m, ".v4.b32", "mw4", E_32, 4), \
    ST(space, cls, m, ".v4.f32", "mw4", E_32, 4), ST(space, cls, m, ".v2.u16", "mh2", E_U16, 2), ST(space, cls, m, ".v4.u16", "mh4", E_U16, 4), ST(space, cls, m, ".v2.b16", "mh2", E_U16, 2), ST(space, cls, m, ".v4.b16", "mh4", E_U16, 4), \
    ST(space, cls, m, ".v2.u8", "mh2", E_U8, 2), ST(space, cls, m, ".v4.u8", "mh4", E_U8, 4), ST(space, cls, m, ".v2.u64", "md2", E_64, 2), ST(space, cls, m, ".v2.b64", "md2", E_64, 2)

#define ATOMIC(name, op, is_signed, shared) static void name(fc_warp *w, fc_insn *in, uint32_t mask) { atom32(w, in, mask, op, is_signed, shared); }
#define ATOMIC64(name, op, shared) static void name(fc_warp *w, fc_insn *in, uint32_t mask) { atom64(w, in, mask, op, shared); }
#define ATOMICS(s, shared) ATOMIC(add_##s, A_ADD, 0, shared) ATOMIC(inc_##s, A_INC, 0, shared) ATOMIC(dec_##s, A_DEC, 0, shared) ATOMIC(xor_##s, A_XOR, 0, shared) ATOMIC(max_u_##s, A_MAX, 0, shared) ATOMIC(max_s_##s, A_MAX, 1, shared) ATOMIC(min_u_##s, A_MIN, 0, shared) ATOMIC(min_s_##s, A_MIN, 1, shared) \
    ATOMIC(exch_##s, A_EXCH, 0, shared) ATOMIC(and_##s, A_AND, 0, shared) ATOMIC(or_##s, A_OR, 0, shared) ATOMIC(cas_##s, A_CAS, 0, shared) ATOMIC64(add64_##s, A_ADD, shared) ATOMIC64(max64_##s, A_MAX, shared) ATOMIC64(min64_##s, A_MIN, shared)
ATOMICS(g, false) ATOMICS(s, true)
#define A(name, s, cls, sh) {"atom." name ".add.u32", "w=mw", add_##s, cls, 0, 0}, {"atom." name ".add.s32", "w=mw", add_##s, cls, 0, 0}, {"atom." name ".inc.u32", "w=mw", inc_##s, cls, 0, 0}, {"atom." name ".dec.u32", "w=mw", dec_##s, cls, 0, 0}, {"atom." name ".xor.b32", "w=mw", xor_##s, cls, 0, 0}, {"atom." name ".max.u32", "w=mw", max_u_##s, cls, 0, 0}, \
    {"atom." name ".max.s32", "w=mw", max_s_##s, cls, 0, 0}, {"atom." name ".min.u32", "w=mw", min_u_##s, cls, 0, 0}, {"atom." name ".min.s32", "w=mw", min_s_##s, cls, 0, 0}, {"atom." name ".exch.b32", "w=mw", exch_##s, cls, 0, 0}, \
    {"atom." name ".and.b32", "w=mw", and_##s, cls, 0, 0}, {"atom." name ".or.b32", "w=mw", or_##s, cls, 0, 0}, {"atom." name ".cas.b32", "w=mww", cas_##s, cls, 0, 0}, {"atom." name ".add.u64", "d=md", add64_##s, cls, 0, 0}, \
    {"atom." name ".max.u64", "d=md", max64_##s, cls, 0, 0}, {"atom." name ".min.u64", "d=md", min64_##s, cls, 0, 0}, {"atom." name ".add.f32", "w=mw", atom_addf, cls, 0, sh}
#define RED(name, s, cls, sh) {"red." name ".add.u32", "x=mw", add_##s, cls, 0, 0}, {"red." name ".add.s32", "x=mw", add_##s, cls, 0, 0}, {"red." name ".inc.u32", "x=mw", inc_##s, cls, 0, 0}, {"red." name ".dec.u32", "x=mw", dec_##s, cls, 0, 0}, {"red." name ".xor.b32", "x=mw", xor_##s, cls, 0, 0}, {"red." name ".max.u32", "x=mw", max_u_##s, cls, 0, 0}, \
    {"red." name ".max.s32", "x=mw", max_s_##s, cls, 0, 0}, {"red." name ".min.u32", "x=mw", min_u_##s, cls, 0, 0}, {"red." name ".min.s32", "x=mw", min_s_##s, cls, 0, 0}, {"red." name ".and.b32", "x=mw", and_##s, cls, 0, 0}, {"red." name ".or.b32", "x=mw", or_##s, cls, 0, 0}, {"red." name ".add.u64", "x=md", add64_##s, cls, 0, 0}, \
    {"red." name ".max.u64", "x=md", max64_##s, cls, 0, 0}, {"red." name ".min.u64", "x=md", min64_##s, cls, 0, 0}, {"red." name ".add.f32", "x=mw", atom_addf, cls, 0, sh}

static const fc_row rows[] = {
    L(global, FC_global, 0, ".global"), L(global, FC_global, 0, ".volatile.global"), L(global, FC_global, 1, ".global.nc"), L(global, FC_global, 1, ".global.nc.L1::no_allocate"), L(global, FC_global, 0, ".global.L1::no_allocate"), L(global, FC_global, 0, ".const"),
    L(global, FC_global, 0, ".relaxed.gpu.global"), L(global, FC_global, 0, ".acquire.gpu.global"), L(shared, FC_shared, 0, ".shared"), L(shared, FC_shared, 0, ".volatile.shared"), L(param, FC_move, 0, ".param"), L(local, FC_global, 0, ".local"),
    T(global, FC_global, ".global"), T(global, FC_global, ".volatile.global"), T(global, FC_global, ".relaxed.gpu.global"), T(global, FC_global, ".release.gpu.global"), T(shared, FC_shared, ".shared"), T(shared, FC_shared, ".volatile.shared"), T(local, FC_global, ".local"),
    L(generic, FC_global, 0, ""), T(generic, FC_global, ""),
    A("global", g, FC_global, 0), A("shared", s, FC_shared, 1), RED("global", g, FC_global, 0), RED("shared", s, FC_shared, 1),
    {"cvta.to.global.u64", "d=d", same_address, FC_int, 0, 0}, {"cvta.global.u64", "d=d", same_address, FC_int, 0, 0}, {"cvta.shared.u64", "d=d", to_generic_shared, FC_int, 0, 0}, {"cvta.local.u64", "d=d", to_generic_local, FC_int, 0, 0},
    {"cvta.to.shared.u64", "d=d", from_generic_shared, FC_int, 0, 0}, {"cvta.to.local.u64", "d=d", from_generic_local, FC_int, 0, 0},
    {"cp.async.cg.shared.global", "mmi?w", cp_async, FC_global, 0, 0}, {"cp.async.cg.shared.global.L2::128B", "mmi?w", cp_async, FC_global, 0, 0}, {"cp.async.ca.shared.global", "mmi?w", cp_async, FC_global, 0, 0},
    {"cp.async.ca.shared.global.L2::128B", "mmi?w", cp_async, FC_global, 0, 0}, {"cp.async.commit_group", "", cp_commit, FC_sync, 0, 0}, {"cp.async.wait_group", "i", cp_wait, FC_sync, 0, 0}, {"cp.async.wait_all", "", cp_wait_all, FC_sync, 0, 0},
    {"membar.gl", "", fence, FC_sync, 0, 0}, {"membar.cta", "", fence, FC_sync, 0, 0}, {"membar.sys", "", fence, FC_sync, 0, 0}, {"fence.acq_rel.gpu", "", fence, FC_sync, 0, 0}, {"fence.sc.gpu", "", fence, FC_sync, 0, 0},
};
const fc_table fc_mem_rows = {rows, sizeof rows / sizeof *rows};

// ---- rows of ldmatrix: 16 bytes of shared memory each; a wave serves 8 of them where no two share a bank

unsigned char *fc_shared_row(fc_warp *w, fc_insn *in, int lane, uint64_t at)
{
    unsigned char *p = shared_at(w, in, lane, at, 16, "ldmatrix");
    if (fc_opt.race) race(w, in, lane, at, 16, false);
    return p;
}

uint32_t fc_row_waves(const unsigned char *const *row, int matrices)
{
    uint32_t waves = 0;
    for (int m = 0; m < matrices; m++) {
        uint8_t n[8] = {0}, most = 0;
        for (int r = 0; r < 8; r++) {
            uint8_t *k = &n[(uintptr_t)row[8 * m + r] / 16 & 7];
            if (++*k > most) most = *k;
        }
        waves += most;
    }
    return waves;
}
