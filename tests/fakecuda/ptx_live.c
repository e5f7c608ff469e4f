// ptx_live.c: owns a guess of how many registers a kernel takes, which only the assembler decides: the most values that live at one place.
#include "fakecuda.h"

// Its instructions; blocks that may follow, or -1; what lives at its start.
typedef struct block { size_t from, to; long next[2]; uint64_t *in; } block;
typedef struct liveness { const fc_kernel *k; block *b; size_t n, words; uint64_t *now; uint8_t *weight; int most, count; } liveness;

static bool ends(const fc_insn *in) { return in->row->flags & FC_FLOW && strchr("bret", in->row->spelling[0]) && in->row->spelling[1] != 'a'; }
static bool is_branch(const fc_insn *in) { return strchr(in->row->shape, 'l') != NULL; }

static void *made(size_t n, size_t bytes)
{
    void *p = calloc(n + 1, bytes);
    if (!p) drv_missing("memory for the registers of a kernel");
    return p;
}

static void split(liveness *x, long *block_at)
{
    const fc_kernel *k = x->k;
    for (size_t i = 0; i < k->n; i++) {
        if (i == 0 || k->code[i].leader || ends(&k->code[i - 1])) x->b[x->n++].from = i;
        x->b[x->n - 1].to = i + 1;
        block_at[i] = (long)x->n - 1;
    }
    for (size_t j = 0; j < x->n; j++) {
        const fc_insn *last = &k->code[x->b[j].to - 1];
        x->b[j].next[0] = (!ends(last) || last->guard) && j + 1 < x->n ? (long)j + 1 : -1;
        x->b[j].next[1] = is_branch(last) ? block_at[last->more] : -1;
        x->b[j].in = made(x->words, 8);
    }
}

static void set_live(liveness *x, uint16_t at, bool lives)
{
    uint64_t bit = (uint64_t)1 << (at & 63), *word = &x->now[at >> 6];
    if (!x->weight[at] || !(*word & bit) == !lives) return;
    *word ^= bit;
    x->count += lives ? x->weight[at] : -x->weight[at];
}

// Upwards: results die, unless a guard may leave them as they were; sources live.
static void pass(liveness *x, const fc_insn *in)
{
    fc_operand list[FC_OPS];
    int n = fc_operands(in, list);
    if (x->count > x->most) x->most = x->count;
    for (int i = 0; i < n; i++) if (list[i].result && !in->guard) set_live(x, in->o[list[i].at], false);
    for (int i = 0; i < n; i++) if (!list[i].result) set_live(x, in->o[list[i].at], true);
}

static bool walk(liveness *x, block *b)
{
    memset(x->now, 0, x->words * 8);
    x->count = 0;
    for (int s = 0; s < 2; s++)
        for (size_t at = 0; b->next[s] >= 0 && at < x->words * 64; at++) if (x->b[b->next[s]].in[at >> 6] >> (at & 63) & 1) set_live(x,
            (uint16_t)at, true);
    for (size_t i = b->to; i-- > b->from;) pass(x, &x->k->code[i]);
    bool same = !memcmp(b->in, x->now, x->words * 8);
    memcpy(b->in, x->now, x->words * 8);
    return !same;
}

// Only what some instruction writes is a register of its own; literals and special registers are not.
static void weigh(liveness *x)
{
    fc_operand list[FC_OPS];
    for (size_t i = 0; i < x->k->n; i++) {
        const fc_insn *in = &x->k->code[i];
        int n = fc_operands(in, list);
        for (int j = 0; j < n; j++) if (list[j].result) x->weight[in->o[list[j].at]] = list[j].kind == 'p' ? 0 : list[j].kind == 'd' ? 2 : 1;
    }
}

int fc_live_registers(const fc_kernel *k)
{
    liveness x = {.k = k, .words = k->file_bytes / FC_SLOT / 64 + 1};
    long *block_at = made(k->n, sizeof *block_at);
    x.b = made(k->n, sizeof *x.b);
    x.now = made(x.words, 8);
    x.weight = made(x.words * 64, 1);
    weigh(&x);
    split(&x, block_at);
    for (bool more = true; more;) {
        more = false;
        for (size_t j = x.n; j-- > 0;) more |= walk(&x, &x.b[j]);
    }
    for (size_t j = 0; j < x.n; j++) free(x.b[j].in);
    free(x.b); free(x.now); free(x.weight); free(block_at);
    return x.most;
}
