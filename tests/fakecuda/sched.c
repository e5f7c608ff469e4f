// sched.c: owns the order of execution: groups of lanes within a warp, warps within a block, blocks of a grid, and the barriers between them.
// A warp is a list of groups, each with its own place in the code; the lowest place runs, and groups that meet become one. That is a habit of the
// compiler's layout, not a law, so an instruction that names lanes parks a group until all of the named and living ones stand beside it.
#define _GNU_SOURCE
#include "fakecuda.h"
#include <stdarg.h>
#include <fenv.h>

enum { SLICE = 20000 };                              // instructions a warp runs before others get their turn: spinning on another's work must end

fc_options fc_opt = {.sync = true, .count = 1, .threads = 1, .launches = 65536};

// ---- telling where

static void where(fc_warp *w, const fc_insn *in, int lane, char *out, size_t cap)
{
    const fc_block *b = w->block;
    const fc_note *note = &w->launch->kernel->notes[in - w->launch->kernel->code];
    const unsigned *dim = w->launch->op->block, t = w->index * 32 + (unsigned)lane;
    const char *file = note->file >= 0 && note->file < 16 ? w->launch->kernel->module->files[note->file] : "", *slash = strrchr(file, '/');
    snprintf(out, cap, "%s, block (%u,%u,%u), thread (%u,%u,%u), %s:%d", w->launch->kernel->name, b->id[0], b->id[1], b->id[2], t % dim[0],
        t / dim[0] % dim[1],
             t / dim[0] / dim[1], *file ? slash ? slash + 1 : file : "PTX", note->line);
}

void fc_tell(fc_warp *w, fc_insn *in, int lane, const char *check, const char *format, ...)
{
    char place[640], what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    where(w, in, lane, place, sizeof place);
    drv_report(check, "%s: %s", place, what);
}

bool fc_first(bool *told) { return !__atomic_exchange_n(told, true, __ATOMIC_RELAXED); }

// A fault ends a run in its midst: what stands behind it did not happen.
static void uncount(fc_warp *w, const fc_insn *in)
{
    const fc_insn *code = w->launch->kernel->code, *end = code + w->group[0].pc + code[w->group[0].pc].run;
    for (const fc_insn *k = in + 1; w->in_run && k < end; k++) {
        w->launch->tally[k - code].hits--;
        w->launch->tally[k - code].lanes -= fc_lanes(w->group[0].mask);
    }
}

_Noreturn void fc_fault(fc_warp *w, fc_insn *in, int lane, CUresult code, const char *check, const char *format, ...)
{
    char what[640];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    fc_tell(w, in, lane, check, "%s", what);
    uncount(w, in);
    pthread_mutex_lock(&w->launch->grid->lock);
    if (w->launch->grid->error == CUDA_SUCCESS) w->launch->grid->error = code;
    pthread_mutex_unlock(&w->launch->grid->lock);
    __atomic_store_n(&w->launch->grid->stop, true, __ATOMIC_RELAXED);
    longjmp(w->launch->out, 1);
}

// ---- groups

static void drop_group(fc_warp *w, int g) { w->group[g] = w->group[--w->ngroups]; }

// The group to run: the lowest place among those that do not wait; -1: all wait.
static int pick(const fc_warp *w)
{
    int best = -1;
    for (int g = 0; g < w->ngroups; g++) if (!w->group[g].parked && (best < 0 || w->group[g].pc < w->group[best].pc)) best = g;
    return best;
}

// All groups at this place become one. Its index is returned, since the list moves.
static int merge(fc_warp *w, int g)
{
    for (int k = 0; k < w->ngroups; k++) {
        if (k == g || w->group[k].pc != w->group[g].pc) continue;
        w->group[g].mask |= w->group[k].mask;
        w->group[g].parked = false;
        if (g == w->ngroups - 1) g = k, w->group[k] = w->group[w->ngroups - 1], w->ngroups--;
        else drop_group(w, k);
        k = -1;
    }
    return g;
}

static bool lower_waits(const fc_warp *w, int g)
{
    for (int k = 0; k < w->ngroups; k++) if (k != g && !w->group[k].parked && w->group[k].pc < w->group[g].pc) return true;
    return false;
}

static void unpark(fc_warp *w) { for (int g = 0; g < w->ngroups; g++) w->group[g].parked = false; }

static _Noreturn void stuck(fc_warp *w)
{
    fc_group *g = &w->group[0];
    fc_insn *in = &w->launch->kernel->code[g->pc];
    fc_fault(w, in, __builtin_ctz(g->mask), CUDA_ERROR_LAUNCH_FAILED, "synccheck",
        "%s: lanes %08x wait for others of the living %08x that never come (%d groups)", in->row->spelling,
             g->mask, w->live, w->ngroups);
}

// ---- instructions that change the flow. Each returns whether the same group may simply go on.

static void nothing(fc_warp *w, fc_insn *in, uint32_t mask) { (void)w; (void)in; (void)mask; }

static bool branch(fc_warp *w, int g, fc_insn *in, uint32_t mask)
{
    fc_group *me = &w->group[g];
    if (mask == me->mask) {
        bool back = in->more <= me->pc;
        me->pc = in->more;
        return !back || w->ngroups == 1;
    }
    me->pc++;
    if (!mask) return true;
    me->mask &= ~mask;
    w->group[w->ngroups++] = (fc_group){.mask = mask, .pc = in->more};
    return false;
}

static bool leave(fc_warp *w, int g, uint32_t mask)
{
    fc_group *me = &w->group[g];
    w->live &= ~mask;
    me->mask &= ~mask;
    me->pc++;
    unpark(w);
    if (!me->mask) drop_group(w, g);
    return false;
}

// The whole warp must stand at a barrier; what lanes that stand here alone wait for is the rest of the warp.
static bool barrier(fc_warp *w, int g, fc_insn *in, uint32_t mask)
{
    fc_group *me = &w->group[g];
    int first = in->row->arg ? 1 : 0;
    if (mask != w->live) {
        me->parked = true;
        return false;
    }
    if (in->o[first] >= FC_BARRIERS) fc_fault(w, in, __builtin_ctz(mask), CUDA_ERROR_ILLEGAL_INSTRUCTION, "synccheck", "barrier %d: there are %d",
        in->o[first], FC_BARRIERS);
    w->waits = (int)in->o[first];
    w->wait_pc = me->pc;
    if (first) w->block->red[w->waits] += (uint32_t)__builtin_popcount(*RPRED(2) & mask);
    me->pc++;
    return false;
}

static bool flow(fc_warp *w, int g, fc_insn *in, uint32_t mask)
{
    switch (in->row->spelling[0]) {
    case 'r': case 'e': return leave(w, g, mask);
    case 'b': if (in->row->spelling[1] == 'a') return barrier(w, g, in, mask); break;
    case 't': fc_fault(w, in, __builtin_ctz(mask | 1u << 31), CUDA_ERROR_LAUNCH_FAILED, "memcheck", "trap");
    }
    return branch(w, g, in, mask);
}

// Whether all named lanes that live are here.
static bool together(fc_warp *w, int g, fc_insn *in, uint32_t mask)
{
    uint32_t named = w->live;
    if (!mask) return true;
    if (!(in->row->flags & FC_ALIGNED)) {
        named = R32(in->row->arg)[__builtin_ctz(mask)];
        if (mask & ~named) fc_fault(w, in, __builtin_ctz(mask & ~named), CUDA_ERROR_LAUNCH_FAILED, "synccheck",
            "%s: a lane that is not among the named %08x takes part", in->row->spelling, named);
        named &= w->live;
    }
    return !(named & ~(in->row->flags & FC_ALIGNED ? mask : w->group[g].mask));
}

// ---- one warp, until it ends, waits, or has had its share

static inline uint32_t guarded(const fc_warp *w, const fc_insn *in, uint32_t mask)
{
    if (!in->guard) return mask;
    uint32_t p = *(const uint32_t *)(w->r + (size_t)in->guard * FC_SLOT);
    return mask & (in->negated ? ~p : p);
}

static inline void count(fc_warp *w, const fc_insn *in, uint32_t mask)
{
    fc_tally *t = &w->launch->tally[in - w->launch->kernel->code];
    t->hits++;
    t->lanes += fc_lanes(mask);
}

// All lanes stand here: no group can meet another, and none splits off before the run ends.
static int go_through(fc_warp *w, fc_insn *in)
{
    uint32_t mask = w->group[0].mask;
    fc_tally *t = &w->launch->tally[w->group[0].pc];
    t->runs++;
    t->run_lanes += fc_lanes(mask);
    w->in_run = true;
    for (const fc_insn *end = in + in->run; in < end; in++) in->fn(w, in, mask);
    w->in_run = false;
    int n = w->launch->kernel->code[w->group[0].pc].run;
    w->group[0].pc += n;
    return n;
}

static int run_group(fc_warp *w, int g, int budget)
{
    fc_insn *code = w->launch->kernel->code;
    while (budget > 0) {
        fc_insn *in = &code[w->group[g].pc];
        if (w->ngroups == 1 && in->run) {
            budget -= go_through(w, in);
            continue;
        }
        budget--;
        if (w->ngroups > 1 && (in->leader || in->row->flags & FC_SYNC)) {
            g = merge(w, g);
            if (in->leader && lower_waits(w, g)) return budget;
        }
        uint32_t mask = guarded(w, in, w->group[g].mask);
        if (in->row->flags & FC_FLOW) {
            if (w->ngroups > 1) g = merge(w, g), mask = guarded(w, in, w->group[g].mask);
            count(w, in, mask);
            if (!flow(w, g, in, mask)) return budget;
            continue;
        }
        if (in->row->flags & FC_SYNC && in->row->cls != FC_sync && !together(w, g, in, mask)) {
            w->group[g].parked = true;
            return budget;
        }
        count(w, in, mask);
        if (mask) in->fn(w, in, mask);
        w->group[g].pc++;
    }
    return budget;
}

static bool finished(const fc_warp *w) { return !w->live; }

static void run_warp(fc_warp *w)
{
    int budget = SLICE;
    while (w->live && w->waits < 0 && budget > 0) {
        int g = pick(w);
        if (g < 0) stuck(w);
        budget = run_group(w, g, budget);
    }
    w->launch->steps += (uint64_t)(SLICE - budget);
    if (__atomic_load_n(&w->launch->grid->stop, __ATOMIC_RELAXED)) longjmp(w->launch->out, 1);      // another worker has met a fault
    if (fc_opt.watchdog && w->launch->steps > fc_opt.watchdog)
        fc_fault(w, &w->launch->kernel->code[w->ngroups ? w->group[0].pc : 0], 0, CUDA_ERROR_LAUNCH_TIMEOUT, "watchdog",
            "%llu instructions, and no end", (unsigned long long)w->launch->steps);
}

// ---- barriers of a block

static uint32_t first_lanes(const fc_launch *l, int warp)
{
    uint64_t left = l->threads - (uint64_t)warp * 32;
    return left >= 32 ? 0xffffffffu : (1u << left) - 1;
}

enum { RED_OR = 1, RED_AND, RED_POPC };
static void give_reduced(fc_warp *w, const fc_insn *in, uint32_t yes, uint32_t present)
{
    uint32_t *d = R32(0);
    if (in->row->arg == RED_POPC) for (int i = 0; i < 32; i++) d[i] = yes;
    else *d = (in->row->arg == RED_OR ? yes > 0 : yes == present) ? 0xffffffffu : 0;
}

static void release(fc_block *b, int id, bool all)
{
    bool partial = false;
    uint32_t present = 0;
    for (int i = 0; i < b->nwarps; i++) {
        fc_warp *w = &b->warps[i];
        if (w->waits == id) present += (uint32_t)__builtin_popcount(w->live);
        if (w->waits == id && w->live != first_lanes(w->launch, i)) partial = true;
        if (w->waits < 0) partial = partial || all;
    }
    for (int i = 0; i < b->nwarps; i++) {
        fc_warp *w = &b->warps[i];
        if (w->waits != id) continue;
        fc_insn *in = &w->launch->kernel->code[w->wait_pc];
        if (partial && fc_opt.strict && fc_first(&w->launch->grid->told_sync)) fc_tell(w, in, 0, "synccheck",
            "barrier %d is reached by a part of the block only", id);
        if (in->row->arg) give_reduced(w, in, b->red[id], present);
        w->waits = -1;
        w->launch->c.barriers++;
    }
    b->red[id] = 0;
    if (all) b->epoch++;
}

// A barrier opens when every warp that lives waits at it, or as many threads as its second operand says.
static bool open_barriers(fc_block *b)
{
    int alive = 0, at[FC_BARRIERS] = {0};
    uint32_t want[FC_BARRIERS] = {0};
    for (int i = 0; i < b->nwarps; i++) {
        fc_warp *w = &b->warps[i];
        alive += !finished(w);
        if (w->waits < 0) continue;
        fc_insn *in = &w->launch->kernel->code[w->wait_pc];
        at[w->waits]++;
        if (!in->row->arg) want[w->waits] = in->o[1];
    }
    bool any = false;
    for (int id = 0; id < FC_BARRIERS; id++) {
        if (!at[id] || (want[id] ? (uint32_t)at[id] * 32 < want[id] : at[id] != alive)) continue;
        release(b, id, !want[id]);
        any = true;
    }
    return any;
}

// ---- blocks

// Special registers in the order in which ptx_parse.c numbers them. Those of the block change with it; the rest belongs to the thread.
enum { CTAID = 6, SPECIALS = 20 };
static void set_special(fc_warp *w, int s, int lane, uint32_t v)
{
    if (w->launch->kernel->special[s]) ((uint32_t *)(w->r + w->launch->kernel->special[s]))[lane] = v;
}

static void set_thread(fc_warp *w)
{
    const unsigned *dim = w->launch->op->block, *grid = w->launch->op->grid;
    for (int i = 0; i < 32; i++) {
        uint32_t t = w->index * 32 + (uint32_t)i, v[SPECIALS] = {t % dim[0], t / dim[0] % dim[1], t / dim[0] / dim[1], dim[0], dim[1], dim[2], 0, 0,
            0, grid[0], grid[1], grid[2],
            (uint32_t)i, w->index, 1u << i, (1u << i) - 1, (2u << i) - 1, ~((2u << i) - 1), ~((1u << i) - 1), (uint32_t)w->block->nwarps};
        for (int s = 0; s < SPECIALS; s++) set_special(w, s, i, v[s]);
    }
}

static void set_block(fc_warp *w)
{
    for (int s = 0; s < 3; s++) for (int i = 0; i < 32; i++) set_special(w, CTAID + s, i, w->block->id[s]);
}

// What no one has written yet looks like NaN, and no block sees what another left. The room is a multiple of 64 bytes.
static void poison(unsigned char *p, uint64_t bytes)
{
    static const unsigned char nan[4] = {0xc1, 0x7f, 0xc1, 0x7f};
    uint32_t word;
    memcpy(&word, nan, 4);
    for (uint64_t i = 0; i < bytes; i += 4) memcpy(p + i, &word, 4);
}

static void start_block(fc_launch *l, fc_block *b, uint64_t number)
{
    const unsigned *grid = l->op->grid;
    b->id[0] = (unsigned)(number % grid[0]);
    b->id[1] = (unsigned)(number / grid[0] % grid[1]);
    b->id[2] = (unsigned)(number / grid[0] / grid[1]);
    b->epoch++;
    poison(b->shared, b->shared_bytes);
    for (int i = 0; i < b->nwarps; i++) {
        fc_warp *w = &b->warps[i];
        w->live = first_lanes(l, i);
        w->ngroups = 1;
        w->group[0] = (fc_group){.mask = w->live};
        w->waits = -1;
        w->in_run = w->uneven = false;
        w->nasync = 0;
        memset(w->committed, 0, sizeof w->committed);
        if (w->local) poison(w->local, 32 * l->kernel->local_bytes);
        set_block(w);
    }
}

static void *room(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!p) drv_missing("memory for a block");
    return p;
}

static void make_block(fc_launch *l, fc_block *b)
{
    const fc_kernel *k = l->kernel;
    b->nwarps = (int)((l->threads + 31) / 32);
    b->shared_bytes = (k->dynamic_at > k->shared_bytes ? k->dynamic_at : k->shared_bytes) + l->op->shared;
    b->shared = room(b->shared_bytes);
    b->access = calloc(b->shared_bytes / 4 + 2, sizeof *b->access);
    b->warps = calloc((size_t)b->nwarps, sizeof *b->warps);
    if (!b->access || !b->warps) drv_missing("memory for a block");
    for (int i = 0; i < b->nwarps; i++) {
        fc_warp *w = &b->warps[i];
        w->r = room(k->file_bytes);
        memcpy(w->r, k->file, k->file_bytes);
        w->local = k->local_bytes ? room(32 * k->local_bytes) : NULL;
        w->index = (uint32_t)i;
        w->block = b;
        w->launch = l;
        set_thread(w);
    }
}

static void free_block(fc_block *b)
{
    for (int i = 0; i < b->nwarps; i++) {
        free(b->warps[i].r);
        free(b->warps[i].local);
        free(b->warps[i].async);
    }
    free(b->warps);
    free(b->shared);
    free(b->access);
}

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// Every warp gets a turn, beginning with one that the seed chooses. False: the block has ended.
static bool turn(fc_block *b, uint64_t round)
{
    bool alive = false, ran = false;
    int from = fc_opt.seed ? (int)(mixed(fc_opt.seed + round) % (uint64_t)b->nwarps) : 0;
    for (int i = 0; i < b->nwarps; i++) {
        fc_warp *w = &b->warps[(from + i) % b->nwarps];
        if (finished(w) || w->waits >= 0) continue;
        run_warp(w);
        ran = true;
    }
    for (int i = 0; i < b->nwarps; i++) alive |= !finished(&b->warps[i]);
    if (alive && !open_barriers(b) && !ran) {
        fc_warp *w = b->warps;
        while (w->waits < 0) w++;
        fc_fault(w, &w->launch->kernel->code[w->wait_pc], 0, CUDA_ERROR_LAUNCH_FAILED, "synccheck",
            "warps wait at different barriers, or for threads that never come");
    }
    return alive;
}

// A permutation of the grid by the seed: steps of a length that shares no factor with the number of blocks.
static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }
static uint64_t stride(uint64_t blocks)
{
    uint64_t s = fc_opt.seed ? mixed(fc_opt.seed) % blocks : 1;
    while (gcd(s ? s : blocks, blocks) != 1) s++;
    return s ? s : 1;
}

// Blocks that run side by side, until the last has ended.
static void run_together(fc_grid *g, fc_block *blocks, uint64_t *round)
{
    for (bool alive = true; alive;) {
        alive = false;
        for (uint64_t k = 0; k < g->together; k++) alive |= turn(&blocks[k], (*round)++);
    }
}

// ---- workers: each takes the next block as it becomes free, with registers, shared memory and counters of its own

typedef struct worker { pthread_t thread; fc_launch launch; fc_block *blocks; } worker;

// Rounding to nearest and no flush to zero, whatever modes the program has set.
static void run_worker(worker *x)
{
    fc_launch *l = &x->launch;
    fc_grid *g = l->grid;
    fenv_t modes;
    uint64_t round = 0, i;
    fegetenv(&modes);
    fesetenv(FE_DFL_ENV);
    if (!setjmp(l->out))
        while ((i = __atomic_fetch_add(&g->next, g->together, __ATOMIC_RELAXED)) < g->blocks && !__atomic_load_n(&g->stop, __ATOMIC_RELAXED)) {
            for (uint64_t k = 0; k < g->together; k++) start_block(l, &x->blocks[k], (i + k) * g->step % g->blocks);
            run_together(g, x->blocks, &round);
        }
    fesetenv(&modes);
}

static void *thread_main(void *x) { run_worker(x); return NULL; }

static void worker_open(worker *x, fc_grid *g, const drv_op *op, uint64_t number)
{
    fc_launch *l = &x->launch;
    l->op = op;
    l->kernel = op->fn->core;
    l->grid = g;
    l->number = number;
    l->threads = (uint64_t)op->block[0] * op->block[1] * op->block[2];
    l->tally = calloc(l->kernel->n, sizeof *l->tally);
    l->cache = calloc(l->kernel->n, sizeof *l->cache);
    x->blocks = calloc(g->together, sizeof *x->blocks);
    if (!l->tally || !l->cache || !x->blocks) drv_missing("memory for a launch");
    for (uint64_t k = 0; k < g->together; k++) make_block(l, &x->blocks[k]);
}

static void worker_close(worker *x, uint64_t together)
{
    for (uint64_t k = 0; k < together; k++) free_block(&x->blocks[k]);
    free(x->blocks);
    free(x->launch.tally);
    free(x->launch.cache);
    fc_uses_free(&x->launch);
}

static void run_workers(worker *x, int n)
{
    for (int i = 1; i < n; i++) if (pthread_create(&x[i].thread, NULL, thread_main, &x[i])) drv_missing("a thread for a worker");
    run_worker(&x[0]);
    for (int i = 1; i < n; i++) pthread_join(x[i].thread, NULL);
}

// Blocks of a cooperative grid run side by side on one worker, since they may wait for each other.
CUresult fc_run(const drv_op *op, uint64_t number)
{
    uint64_t blocks = (uint64_t)op->grid[0] * op->grid[1] * op->grid[2];
    fc_grid g = {.lock = PTHREAD_MUTEX_INITIALIZER, .blocks = blocks, .step = stride(blocks), .together = op->cooperative ? blocks : 1};
    int n = op->cooperative ? 1 : (uint64_t)fc_opt.threads < blocks ? fc_opt.threads : (int)blocks;
    worker *x = calloc((size_t)n, sizeof *x);
    fc_launch **launches = calloc((size_t)n, sizeof *launches);
    if (!x || !launches) drv_missing("memory for a launch");
    for (int i = 0; i < n; i++) worker_open(&x[i], &g, op, number), launches[i] = &x[i].launch;
    run_workers(x, n);
    fc_count_launch(launches, n);
    for (int i = 0; i < n; i++) worker_close(&x[i], g.together);
    free(launches);
    free(x);
    return g.error;
}

static const fc_row rows[] = {
    {"bra", "l", nothing, FC_control, FC_FLOW, 0}, {"bra.uni", "l", nothing, FC_control, FC_FLOW, 0}, {"ret", "", nothing, FC_control, FC_FLOW, 0},
    {"exit", "", nothing, FC_control, FC_FLOW, 0},
    {"trap", "", nothing, FC_control, FC_FLOW, 0}, {"bar.sync", "i?i", nothing, FC_sync, FC_FLOW, 0},
    {"bar.red.or.pred", "p=ip", nothing, FC_sync, FC_FLOW, RED_OR}, {"bar.red.and.pred", "p=ip", nothing, FC_sync, FC_FLOW, RED_AND},
    {"bar.red.popc.u32", "w=ip", nothing, FC_sync, FC_FLOW, RED_POPC},
    {"barrier.sync", "i?i", nothing, FC_sync, FC_FLOW, 0},
};
const fc_table fc_flow_rows = {rows, sizeof rows / sizeof *rows};
