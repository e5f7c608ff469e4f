// ptx_flow.c: owns what is known of a kernel before it runs: copies that need not be made, and runs of instructions that leave the flow alone.
// Taking a copy out changes no counter: it counts with a neighbour that always runs together with it.
#include "fakecuda.h"
#include <ctype.h>

static int registers_of(const char **c, char kind, bool result, int at, fc_operand *list)
{
    int n = 1;
    if (isdigit((unsigned char)(*c)[1])) n = *++*c - '0';
    for (int i = 0; i < n; i++) list[i] = (fc_operand){at + i, kind, result};
    return n;
}

// The shape of the row says it. A label takes no place; a number, and an operand that was left out (place 0), are no registers.
int fc_operands(const fc_insn *in, fc_operand *list)
{
    const char *shape = in->row->shape;
    bool result = strchr(shape, '=') != NULL;
    int n = 0, at = 0, mem = 0;
    for (const char *c = shape; *c; c++) {
        if (*c == '=') result = false;
        if (strchr("=?l", *c)) continue;
        if (*c == 'i') { at++; continue; }
        char kind = *c == '|' ? 'p' : *c == 'x' ? 'd' : *c != 'm' ? *c : (mem++ ? in->wide2 : in->wide) ? 'd' : 'w';
        int k = registers_of(&c, kind, result || *c == '|', at, list + n);
        at += k;
        if (in->o[at - 1]) n += k;
    }
    return n;
}

static bool plain(const fc_insn *in) { return !in->guard && !(in->row->flags & FC_FLOW) && !(in->row->flags & FC_SYNC && !(in->row->flags & FC_ALIGNED)); }

// ---- copies

typedef struct copies { uint16_t *defs, *alias; } copies;      // by place: how many instructions write it; what it is a copy of

static void count_results(const fc_insn *in, copies *x)
{
    fc_operand list[FC_OPS];
    int n = fc_operands(in, list);
    for (int i = 0; i < n; i++) if (list[i].result && x->defs[in->o[list[i].at]] < 2) x->defs[in->o[list[i].at]]++;
}

static uint16_t original(const copies *x, uint16_t at) { while (x->alias[at]) at = x->alias[at]; return at; }

// A copy can go where both sides are written once at most: then what reads the copy finds the same in the original, since in a program that reads
// nothing unwritten no write of the original lies between the copy and a reader of it that the copy does not follow.
static bool can_go(const fc_insn *in, const copies *x)
{
    const char *shape = in->row->shape;
    return in->row->cls == FC_move && strlen(shape) == 3 && shape[0] == shape[2] && strchr("phwd", shape[0])
        && x->defs[in->o[0]] == 1 && x->defs[in->o[1]] <= 1 && original(x, in->o[1]) != in->o[0];
}

static void follow(fc_insn *in, const copies *x)
{
    fc_operand list[FC_OPS];
    int n = fc_operands(in, list);
    for (int i = 0; i < n; i++) {
        uint16_t *at = &in->o[list[i].at];
        if (!list[i].result) *at = original(x, *at);
    }
    in->guard = original(x, in->guard);
}

static bool ends_segment(const fc_insn *in) { return !plain(in) || in->row->flags & FC_SYNC; }

static bool let_go(const fc_insn *in, copies *x)
{
    if (!can_go(in, x)) return false;
    x->alias[in->o[0]] = in->o[1];
    return true;
}

// Marks what goes among instructions that always run together, from one of them to the last; the first that stays counts for those that go.
static size_t thin(fc_kernel *k, size_t from, copies *x, bool *gone)
{
    size_t end = from, stays = k->n;
    int moves = 0;
    for (; end < k->n && !ends_segment(&k->code[end]) && (end == from || !k->code[end].leader); end++) {
        gone[end] = let_go(&k->code[end], x);
        moves += gone[end];
        if (!gone[end] && stays == k->n) stays = end;
    }
    if (end == from) return from + 1;
    if (stays == k->n) {                             // all would go: the last stays
        stays = end - 1;
        gone[stays] = false;
        x->alias[k->code[stays].o[0]] = 0;
        moves--;
    }
    k->notes[stays].moves = moves;
    return end;
}

static void take_out(fc_kernel *k, const bool *gone, int32_t *moved)
{
    size_t n = 0;
    bool leader = false;
    for (size_t i = 0; i < k->n; i++) {
        moved[i] = (int32_t)n;
        leader |= k->code[i].leader;
        if (gone[i]) continue;
        k->code[n] = k->code[i];
        k->code[n].leader = leader;
        k->notes[n++] = k->notes[i];
        leader = false;
    }
    for (size_t i = 0; i < n; i++) if (strchr(k->code[i].row->shape, 'l')) k->code[i].more = moved[k->code[i].more];
    k->n = n;
}

static void drop_copies(fc_kernel *k)
{
    size_t slots = k->file_bytes / FC_SLOT + 1;
    copies x = {calloc(slots, 2), calloc(slots, 2)};
    bool *gone = calloc(k->n, sizeof *gone);
    int32_t *moved = calloc(k->n, sizeof *moved);
    if (!x.defs || !x.alias || !gone || !moved) drv_missing("memory for a kernel");
    for (size_t i = 0; i < k->n; i++) count_results(&k->code[i], &x);
    for (size_t i = 0; i < k->n;) i = thin(k, i, &x, gone);
    for (size_t i = 0; i < k->n; i++) follow(&k->code[i], &x);
    take_out(k, gone, moved);
    free(x.defs); free(x.alias); free(gone); free(moved);
}

// ---- runs

// A warp whose lanes all stand together can go through a run in one go. Instructions that name lanes are looked at one by one.
static void mark_runs(fc_kernel *k)
{
    uint16_t run = 0;
    for (size_t i = k->n; i-- > 0;) {
        run = plain(&k->code[i]) ? (run < 0xffff ? run + 1 : 1) : 0;
        k->code[i].run = run;
        if (k->code[i].leader) run = 0;
    }
}

void fc_flow(fc_kernel *k)
{
    drop_copies(k);
    mark_runs(k);
}
