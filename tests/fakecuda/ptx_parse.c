// ptx_parse.c: owns the way from PTX text to instructions: declarations, scopes, operands by the shape that the table gives for a spelling.
// What it does not know it names and refuses. A register wider or narrower than the instruction is adapted by an instruction of its own.
#define _GNU_SOURCE
#include "fakecuda.h"
#include <ctype.h>
#include <stdarg.h>

typedef struct reg { char name[48]; int kind; uint32_t at; int scope; } reg;      // kind: p h w d
typedef struct range_reg { char stem[40]; int kind, count, scope; uint32_t *at; } range_reg;
typedef struct label { char name[512]; size_t at; } label;
typedef struct fix { char name[512]; size_t insn; } fix;

typedef struct parser {
    const char *p;
    fc_module *m;
    fc_kernel *k;
    char *log;
    size_t log_bytes;
    int scope, line, file, textline;
    range_reg *regs; size_t nregs, regs_cap;
    label *labels; size_t nlabels, labels_cap;
    fix *fixes; size_t nfixes, fixes_cap;
    fc_symbol *locals;                               // of the kernel: its parameters, .shared, .local
    struct { int kind; uint64_t value; uint32_t at; } lits[512];
    int nlits;
    jmp_buf out;
} parser;

__attribute__((format(printf, 2, 3))) static _Noreturn void refuse(parser *s, const char *format, ...)
{
    va_list v;
    va_start(v, format);
    int n = snprintf(s->log, s->log_bytes, "PTX line %d%s%s: ", s->textline, s->k ? ", kernel " : "", s->k ? s->k->name : "");
    if (n > 0 && (size_t)n < s->log_bytes) vsnprintf(s->log + n, s->log_bytes - (size_t)n, format, v);
    va_end(v);
    longjmp(s->out, 1);
}

static void *grow(parser *s, void *list, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return list;
    *cap = *cap ? 2 * *cap : 64;
    list = realloc(list, *cap * size);
    if (!list) refuse(s, "out of memory");
    return list;
}

// ---- words

static void space(parser *s)
{
    for (;;) {
        while (isspace((unsigned char)*s->p)) if (*s->p++ == '\n') s->textline++;
        if (s->p[0] == '/' && s->p[1] == '/') while (*s->p && *s->p != '\n') s->p++;
        else if (s->p[0] == '/' && s->p[1] == '*') {
            const char *e = strstr(s->p + 2, "*/");
            if (!e) refuse(s, "a comment does not end");
            for (; s->p < e; s->p++) s->textline += *s->p == '\n';
            s->p = e + 2;
        } else return;
    }
}

static bool is_word(int c) { return isalnum(c) || c == '_' || c == '$' || c == '%' || c == '.' || c == ':'; }

// A word with its dots and doubled colons; a single colon ends it.
static void word(parser *s, char *out, size_t cap)
{
    space(s);
    size_t n = 0;
    while (is_word((unsigned char)*s->p) && (*s->p != ':' || s->p[1] == ':' || (n && out[n - 1] == ':'))) {
        if (n + 1 >= cap) refuse(s, "a word is too long");
        out[n++] = *s->p++;
    }
    out[n] = 0;
    if (!n) refuse(s, "a word is missing at '%.20s'", s->p);
}

static bool take(parser *s, char c)
{
    space(s);
    if (*s->p != c) return false;
    s->p++;
    return true;
}

static void need(parser *s, char c) { if (!take(s, c)) refuse(s, "'%c' is missing at '%.20s'", c, s->p); }

static void skip_statement(parser *s)
{
    while (*s->p && *s->p != ';') { if (*s->p == '\n') s->textline++; s->p++; }
    need(s, ';');
}

static void skip_line(parser *s) { while (*s->p && *s->p != '\n') s->p++; }

// An integer or the bits of a float. False: no literal here.
static bool literal(parser *s, uint64_t *v)
{
    space(s);
    const char *p = s->p + (*s->p == '-');
    if (!isdigit((unsigned char)*p)) return false;
    char *end;
    if (p[0] == '0' && (p[1] == 'f' || p[1] == 'F' || p[1] == 'd' || p[1] == 'D')) *v = strtoull(p + 2, &end, 16);
    else *v = strtoull(p, &end, 0);
    if (*end == 'U') end++;
    if (*s->p == '-') *v = 0 - *v;
    s->p = end;
    return true;
}

static uint64_t number(parser *s)
{
    uint64_t v;
    if (!literal(s, &v)) refuse(s, "a number is missing at '%.20s'", s->p);
    return v;
}

// ---- the register file

static uint32_t bytes_of(int kind) { return kind == 'd' ? 256 : kind == 'p' ? 64 : 128; }

static uint32_t slot(parser *s, int kind)
{
    fc_kernel *k = s->k;
    uint32_t at = k->file_bytes, bytes = bytes_of(kind);
    if (at + bytes > k->file_cap) {
        uint32_t cap = k->file_cap ? k->file_cap * 2 : 65536;
        unsigned char *f = aligned_alloc(64, cap);
        if (!f) refuse(s, "out of memory");
        memset(f, 0, cap);
        if (k->file) memcpy(f, k->file, at);
        free(k->file);
        k->file = f;
        k->file_cap = cap;
    }
    k->file_bytes += bytes;
    return at;
}

static uint32_t literal_slot(parser *s, int kind, uint64_t v)
{
    for (int i = 0; i < s->nlits; i++) if (s->lits[i].kind == kind && s->lits[i].value == v) return s->lits[i].at;
    uint32_t at = slot(s, kind);
    for (int i = 0; i < 32; i++) {
        if (kind == 'd') ((uint64_t *)(s->k->file + at))[i] = v;
        else ((uint32_t *)(s->k->file + at))[kind == 'p' ? 0 : i] = kind == 'h' ? (uint16_t)v : kind == 'p' ? (v ? 0xffffffffu : 0) : (uint32_t)v;
    }
    if (s->nlits < 512) s->lits[s->nlits].kind = kind, s->lits[s->nlits].value = v, s->lits[s->nlits++].at = at;
    return at;
}

static const char *const specials[] = { "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x",
    "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge", "%nwarpid", NULL };

static range_reg *find_reg(parser *s, const char *name, int *index)
{
    range_reg *best = NULL;
    for (size_t i = 0; i < s->nregs; i++) {
        range_reg *r = &s->regs[i];
        size_t n = strlen(r->stem);
        if (strncmp(name, r->stem, n)) continue;
        int at = 0;
        if (r->count >= 0) {
            if (!isdigit((unsigned char)name[n]) || name[n + strspn(name + n, "0123456789")]) continue;
            at = atoi(name + n);
            if (at >= r->count) continue;
        } else if (name[n]) continue;
        if (!best || r->scope >= best->scope) best = r, *index = at;
    }
    return best;
}

static fc_symbol *find_symbol(parser *s, const char *name)
{
    for (fc_symbol *y = s->locals; y; y = y->next) if (!strcmp(y->name, name)) return y;
    for (fc_symbol *y = s->m->symbols; y; y = y->next) if (!strcmp(y->name, name)) return y;
    return NULL;
}

// ---- instructions

static fc_insn *emit(parser *s, const fc_row *row)
{
    fc_kernel *k = s->k;
    k->code = grow(s, k->code, k->n, &k->cap, sizeof *k->code);
    k->notes = grow(s, k->notes, k->n, &k->notes_cap, sizeof *k->notes);
    k->notes[k->n] = (fc_note){.file = s->file, .line = s->line};
    fc_insn *in = &k->code[k->n++];
    *in = (fc_insn){.fn = row->fn, .row = row};
    return in;
}

// Operands are kept in units of FC_SLOT, in 16 bits.
static uint16_t place_of(parser *s, uint32_t at)
{
    if (at / FC_SLOT > 0xffff) refuse(s, "the kernel has more registers than can be emulated");
    return (uint16_t)(at / FC_SLOT);
}

static void adapt(parser *s, const char *op, uint32_t to, uint32_t from, uint32_t guard, bool negated)
{
    fc_insn *in = emit(s, fc_find_row(op));
    in->o[0] = place_of(s, to);
    in->o[1] = place_of(s, from);
    in->guard = place_of(s, guard);
    in->negated = negated;
}

// A register operand for a kind: its offset, or after an adapting instruction that of a fitting slot.
static uint32_t source(parser *s, const char *name, int kind)
{
    int i = 0;
    for (int sp = 0; specials[sp]; sp++) {
        if (strcmp(specials[sp], name)) continue;
        if (!s->k->special[sp]) s->k->special[sp] = slot(s, 'w');
        if (kind != 'd') return s->k->special[sp];
        uint32_t wide = slot(s, 'd');
        adapt(s, "cvt.u64.u32", wide, s->k->special[sp], 0, false);
        return wide;
    }
    range_reg *r = find_reg(s, name, &i);
    if (!r) {
        fc_symbol *y = find_symbol(s, name);
        if (!y) refuse(s, "%s is not declared", name);
        return literal_slot(s, kind, y->at);             // of a parameter: its place among the parameters, for ld.param
    }
    if ((r->kind == 'p') != (kind == 'p')) refuse(s, "%s does not fit where it stands", name);
    if (r->kind == 'd' && kind != 'd') {
        uint32_t narrow = slot(s, kind);
        adapt(s, kind == 'h' ? "cvt.u16.u64" : "cvt.u32.u64", narrow, r->at[i], 0, false);
        return narrow;
    }
    if (r->kind != 'd' && kind == 'd') {
        uint32_t wide = slot(s, kind);
        adapt(s, "cvt.u64.u32", wide, r->at[i], 0, false);
        return wide;
    }
    if (r->kind == 'w' && kind == 'h') {             // the upper half must not be seen
        uint32_t narrow = slot(s, kind);
        adapt(s, "cvt.u16.u32", narrow, r->at[i], 0, false);
        return narrow;
    }
    return r->at[i];
}

typedef struct later { const char *op; uint32_t to, from; } later;      // adaptations of results, after the instruction

static uint32_t result(parser *s, const char *name, int kind, bool is_signed, later *after, int *nafter)
{
    int i = 0;
    if (!strcmp(name, "_")) return slot(s, kind);
    range_reg *r = find_reg(s, name, &i);
    if (!r) refuse(s, "%s is not declared", name);
    if ((r->kind == 'p') != (kind == 'p')) refuse(s, "%s does not fit where it stands", name);
    if (r->kind == kind || (r->kind != 'd' && kind != 'd')) return r->at[i];
    uint32_t t = slot(s, kind);
    after[*nafter].op = kind == 'd' ? (r->kind == 'h' ? "cvt.u16.u64" : "cvt.u32.u64") : is_signed ? "cvt.s64.s32" : "cvt.u64.u32";
    after[*nafter].to = r->at[i];
    after[(*nafter)++].from = t;
    return t;
}

static uint32_t value(parser *s, int kind)
{
    uint64_t v;
    char name[512];
    if (literal(s, &v)) return literal_slot(s, kind, v);
    if (take(s, '!')) {
        if (kind != 'p') refuse(s, "'!' stands before no predicate");
        word(s, name, sizeof name);
        uint32_t at = slot(s, 'p'), from = source(s, name, 'p');
        adapt(s, "not.pred", at, from, 0, false);
        return at;
    }
    word(s, name, sizeof name);
    return source(s, name, kind);
}

// [register+offset], [symbol+offset], [number]
static uint32_t address(parser *s, int64_t *imm, uint8_t *wide)
{
    char name[512];
    uint64_t v;
    uint32_t at;
    need(s, '[');
    *imm = 0;
    *wide = 1;
    if (literal(s, &v)) {
        at = literal_slot(s, 'd', v);
    } else {
        int i = 0;
        word(s, name, sizeof name);
        range_reg *r = find_reg(s, name, &i);
        fc_symbol *y = r ? NULL : find_symbol(s, name);
        if (!r && !y) refuse(s, "%s is not declared", name);
        at = r ? r->at[i] : literal_slot(s, 'd', y->at);
        *wide = !r || r->kind == 'd';
        if (r && r->kind != 'd' && r->kind != 'w') refuse(s, "%s is no address", name);
    }
    if (take(s, '+')) *imm = (int64_t)number(s);
    else if (*s->p == '-') *imm = (int64_t)number(s);
    need(s, ']');
    return at;
}

typedef struct building { uint16_t o[FC_OPS]; int n; int64_t imm[2]; uint8_t wide[2]; int nmem; later after[8]; int nafter; char target[512]; } building;

static void add_operand(parser *s, building *b, uint32_t at)
{
    if (b->n == FC_OPS) refuse(s, "too many operands");
    b->o[b->n++] = place_of(s, at);
}

static void add_number(parser *s, building *b, uint64_t v)
{
    if (b->n == FC_OPS || v > 0xffff) refuse(s, "the number %llu is not emulated here", (unsigned long long)v);
    b->o[b->n++] = (uint16_t)v;
}

static void one(parser *s, building *b, const fc_row *row, int kind, bool is_result)
{
    char name[512];
    if (kind == 'm') {
        int i = b->nmem++;
        add_operand(s, b, address(s, &b->imm[i], &b->wide[i]));
    } else if (kind == 'l') word(s, b->target, sizeof b->target);
    else if (kind == 'i') add_number(s, b, number(s));
    else if (is_result) {
        word(s, name, sizeof name);
        add_operand(s, b, result(s, name, kind, row->flags & FC_SIGNED, b->after, &b->nafter));
    } else add_operand(s, b, value(s, kind));
}

static void vector(parser *s, building *b, const fc_row *row, int kind, int n, bool is_result)
{
    need(s, '{');
    for (int i = 0; i < n; i++) {
        if (i) need(s, ',');
        one(s, b, row, kind, is_result);
    }
    need(s, '}');
}

static void operands(parser *s, building *b, const fc_row *row)
{
    bool is_result = strchr(row->shape, '=') != NULL, first = true;
    for (const char *c = row->shape; *c; c++) {
        if (*c == '=') { is_result = false; continue; }
        if (*c == '|') {
            if (take(s, '|')) one(s, b, row, 'p', true);
            else add_operand(s, b, slot(s, 'p'));
            continue;
        }
        if (*c == 'x') {                             // red has no result: what atom would give goes nowhere
            add_operand(s, b, slot(s, 'd'));
            continue;
        }
        if (*c == '?') {
            space(s);
            if (*s->p == ';') return;
            continue;
        }
        if (!first) need(s, ',');
        first = false;
        if (isdigit((unsigned char)c[1])) vector(s, b, row, *c, c[1] - '0', is_result), c++;
        else one(s, b, row, *c, is_result);
    }
}

// `mov` packs and unpacks as well; the braces say which.
static void spell_mov(parser *s, char *op, size_t cap)
{
    const char *e = strchr(s->p, ';'), *brace = e ? memchr(s->p, '{', (size_t)(e - s->p)) : NULL;
    if (!brace) return;
    const char *close = memchr(brace, '}', (size_t)(e - brace));
    int parts = 1;
    for (const char *c = brace; close && c < close; c++) parts += *c == ',';
    const char *comma = memchr(s->p, ',', (size_t)(e - s->p));
    snprintf(op + strlen(op), cap - strlen(op), "%s%d", comma && comma < brace ? ".pack" : ".unpack", parts);
}

static void instruction(parser *s, char *op, uint32_t guard, bool negated)
{
    char spelled[512];
    snprintf(spelled, sizeof spelled, "%s", op);
    if (!strncmp(op, "mov.b", 5)) spell_mov(s, spelled, sizeof spelled);
    const fc_row *row = fc_find_row(spelled);
    if (!row) refuse(s, "the instruction %s is not emulated", spelled);
    building b = {.n = 0};
    operands(s, &b, row);
    need(s, ';');
    fc_insn *in = emit(s, row);
    memcpy(in->o, b.o, sizeof in->o);
    in->imm = b.imm[0];
    in->more = (int32_t)b.imm[1];
    if (in->more != b.imm[1]) refuse(s, "the offset %lld is too large", (long long)b.imm[1]);
    in->wide = b.wide[0]; in->wide2 = b.wide[1];
    in->guard = place_of(s, guard);
    in->negated = negated;
    if (*b.target) {
        s->fixes = grow(s, s->fixes, s->nfixes, &s->fixes_cap, sizeof *s->fixes);
        snprintf(s->fixes[s->nfixes].name, sizeof s->fixes->name, "%s", b.target);
        s->fixes[s->nfixes++].insn = s->k->n - 1;
    }
    for (int i = 0; i < b.nafter; i++) adapt(s, b.after[i].op, b.after[i].to, b.after[i].from, guard, negated);
}

// ---- declarations

static const struct { const char *name; int kind, bytes; } types[] = { {".pred", 'p', 1}, {".b8", 'h', 1}, {".u8", 'h', 1}, {".s8", 'h', 1}, {".b16", 'h', 2},
    {".u16", 'h', 2}, {".s16", 'h', 2}, {".f16", 'h', 2}, {".b32", 'w', 4}, {".u32", 'w', 4}, {".s32", 'w', 4}, {".f32", 'w', 4}, {".f16x2", 'w', 4},
    {".b64", 'd', 8}, {".u64", 'd', 8}, {".s64", 'd', 8}, {".f64", 'd', 8} };

static int type_of(parser *s, const char *name)
{
    for (int i = 0; i < (int)(sizeof types / sizeof *types); i++) if (!strcmp(types[i].name, name)) return i;
    refuse(s, "the type %s is not known", name);
}

static void declare_registers(parser *s)
{
    char name[40];
    word(s, name, sizeof name);
    int kind = types[type_of(s, name)].kind;
    do {
        word(s, name, sizeof name);
        s->regs = grow(s, s->regs, s->nregs, &s->regs_cap, sizeof *s->regs);
        range_reg *r = &s->regs[s->nregs++];
        if (strlen(name) >= sizeof r->stem) refuse(s, "the name %s is too long", name);
        *r = (range_reg){.kind = kind, .count = -1, .scope = s->scope};
        snprintf(r->stem, sizeof r->stem, "%s", name);
        uint64_t n = 1;
        if (take(s, '<')) {
            n = number(s);
            if (n > 100000) refuse(s, "too many registers");
            r->count = (int)n;
            need(s, '>');
        }
        r->at = malloc((n + 1) * sizeof *r->at);
        if (!r->at) refuse(s, "out of memory");
        for (uint64_t i = 0; i < n; i++) r->at[i] = slot(s, kind);
    } while (take(s, ','));
    need(s, ';');
}

static void initialiser(parser *s, fc_symbol *y, int bytes)
{
    uint64_t at = 0;
    y->init = calloc(1, y->size + 8);
    if (!y->init) refuse(s, "out of memory");
    bool braces = take(s, '{');
    do {
        uint64_t v = number(s);
        if (at + (uint64_t)bytes > y->size) refuse(s, "%s has too many values", y->name);
        memcpy(y->init + at, &v, (size_t)bytes);
        at += (uint64_t)bytes;
    } while (braces && take(s, ','));
    if (braces) need(s, '}');
}

static uint64_t up(uint64_t n, uint64_t align) { return (n + align - 1) / align * align; }

static void place(parser *s, fc_symbol *y, bool is_extern)
{
    fc_kernel *k = s->k;
    if (y->space == FC_SHARED) {
        if (is_extern) return;                       // after all static ones, when they are known
        if (!k) refuse(s, "shared memory outside of a kernel is not emulated");
        k->shared_bytes = up(k->shared_bytes, y->align);
        y->at = FC_SHARED_BASE + k->shared_bytes;
        k->shared_bytes += y->size;
    } else if (y->space == FC_LOCAL) {
        k->local_bytes = up(k->local_bytes, y->align);
        y->at = FC_LOCAL_BASE + k->local_bytes;
        k->local_bytes += y->size;
    } else if (y->space == FC_PARAM) {
        k->param_bytes = up(k->param_bytes, y->align);
        y->at = k->param_bytes;
        k->param_bytes += y->size;
    }
}

static fc_symbol *declare(parser *s, int where, bool is_extern, char end)
{
    char name[512];
    fc_symbol *y = calloc(1, sizeof *y);
    if (!y) refuse(s, "out of memory");
    fc_symbol **list = s->k ? &s->locals : &s->m->symbols;
    y->next = *list;
    *list = y;
    y->space = where;
    y->align = 1;
    word(s, name, sizeof name);
    uint64_t align = 0;
    if (!strcmp(name, ".align")) align = number(s), word(s, name, sizeof name);
    int t = type_of(s, name), bytes = types[t].bytes;
    word(s, name, sizeof name);
    if (!strcmp(name, ".ptr")) {                     // what a pointer points to changes nothing
        for (word(s, name, sizeof name); name[0] == '.'; word(s, name, sizeof name)) if (!strcmp(name, ".align")) number(s);
    }
    y->align = align ? align : (uint64_t)bytes;
    snprintf(y->name, sizeof y->name, "%s", name);
    y->size = (uint64_t)bytes;
    while (take(s, '[')) {
        space(s);
        uint64_t n = *s->p == ']' ? 0 : number(s);
        if (n > ((uint64_t)1 << 32)) refuse(s, "%s is too large", name);
        y->size *= n;
        need(s, ']');
    }
    if (take(s, '=')) initialiser(s, y, bytes);
    place(s, y, is_extern);
    if (end) need(s, end);
    return y;
}

static void give_global(parser *s, fc_symbol *y)
{
    CUmodule h = s->m->handle;
    drv_range *r;
    if (drv_mem_alloc(y->size ? y->size : 1, DRV_GLOBAL, &r) != CUDA_SUCCESS) refuse(s, "no device memory for %s", y->name);
    h->globals = realloc(h->globals, (h->nglobals + 1) * sizeof *h->globals);
    if (!h->globals) refuse(s, "out of memory");
    h->globals[h->nglobals++] = r;
    y->at = r->lo;
    memset((void *)(uintptr_t)r->lo, 0, r->bytes);
    if (y->init) memcpy((void *)(uintptr_t)r->lo, y->init, y->size);
    core_host_wrote(r, r->lo, r->bytes);
}

// ---- bodies

static void mark_label(parser *s, const char *name)
{
    s->labels = grow(s, s->labels, s->nlabels, &s->labels_cap, sizeof *s->labels);
    snprintf(s->labels[s->nlabels].name, sizeof s->labels->name, "%s", name);
    s->labels[s->nlabels++].at = s->k->n;
}

static void close_scope(parser *s)
{
    while (s->nregs && s->regs[s->nregs - 1].scope == s->scope) free(s->regs[--s->nregs].at);
    s->scope--;
}

static void loc(parser *s)
{
    s->file = (int)number(s);
    s->line = (int)number(s);
    skip_line(s);
}

static void body_directive(parser *s, const char *w)
{
    if (!strcmp(w, ".reg")) declare_registers(s);
    else if (!strcmp(w, ".shared")) declare(s, FC_SHARED, false, ';');
    else if (!strcmp(w, ".local")) declare(s, FC_LOCAL, false, ';');
    else if (!strcmp(w, ".loc")) loc(s);
    else if (!strcmp(w, ".pragma")) skip_statement(s);
    else refuse(s, "the directive %s is not emulated", w);
}

static void statement(parser *s)
{
    char w[512], name[512];
    uint32_t guard = 0;
    bool negated = false;
    if (take(s, '@')) {
        negated = take(s, '!');
        word(s, name, sizeof name);
        guard = source(s, name, 'p');
    }
    word(s, w, sizeof w);
    space(s);
    if (!guard && w[0] == '.') body_directive(s, w);
    else if (!guard && *s->p == ':') s->p++, mark_label(s, w);
    else instruction(s, w, guard, negated);
}

static void resolve(parser *s)
{
    fc_kernel *k = s->k;
    k->code[0].leader = 1;
    for (size_t i = 0; i < s->nfixes; i++) {
        size_t l = 0;
        while (l < s->nlabels && strcmp(s->labels[l].name, s->fixes[i].name)) l++;
        if (l == s->nlabels) refuse(s, "the label %s is missing", s->fixes[i].name);
        k->code[s->fixes[i].insn].more = (int32_t)s->labels[l].at;
        k->code[s->labels[l].at].leader = 1;
    }
}

static void body(parser *s)
{
    s->scope = 1;
    need(s, '{');
    while (s->scope) {
        space(s);
        if (!*s->p) refuse(s, "the kernel does not end");
        if (take(s, '{')) s->scope++;
        else if (take(s, '}')) close_scope(s);
        else if (take(s, ';')) continue;
        else statement(s);
    }
    emit(s, fc_find_row("ret"));                     // for bodies that end on a label
    resolve(s);
    fc_flow(s->k);
}

static void free_symbols(fc_symbol *y)
{
    for (fc_symbol *next; y; y = next) {
        next = y->next;
        free(y->init);
        free(y);
    }
}

static void forget(parser *s)
{
    while (s->nregs) free(s->regs[--s->nregs].at);
    s->nlabels = s->nfixes = 0;
    s->nlits = 0;
}

// Symbols of parameters stay with the kernel, in their order; extern shared memory begins after the static.
static void finish(parser *s)
{
    fc_kernel *k = s->k;
    k->params = s->locals;
    s->locals = NULL;
    forget(s);
    s->k = NULL;
}

static void attributes(parser *s)
{
    char w[64];
    for (space(s); *s->p == '.'; space(s)) {
        word(s, w, sizeof w);
        uint64_t n = 1;
        if (!strcmp(w, ".maxntid") || !strcmp(w, ".reqntid")) {
            do n *= number(s); while (take(s, ','));
            s->k->max_threads = (int)n;
        } else if (!strcmp(w, ".minnctapersm") || !strcmp(w, ".maxnreg")) number(s);
        else refuse(s, "the directive %s is not emulated", w);
    }
}

// Extern shared memory begins after the static, which the body declares later: so the declarations are read ahead.
static uint64_t static_shared_ahead(parser *s, uint64_t align)
{
    parser ahead = *s;
    uint64_t bytes = 0;
    int depth = 0;
    for (; *ahead.p; ahead.p++) {
        if (*ahead.p == '{') depth++;
        if (*ahead.p == '}' && --depth == 0) break;
        if (depth != 1 || strncmp(ahead.p, ".shared ", 8)) continue;
        unsigned long a = 1, n = 1;
        char type[8];
        if (sscanf(ahead.p, ".shared .align %lu .%7s", &a, type) != 2) refuse(s, "a declaration of shared memory is not understood: %.60s", ahead.p);
        const char *end = strchr(ahead.p, ';'), *open = end ? memchr(ahead.p, '[', (size_t)(end - ahead.p)) : NULL;
        unsigned long unit = (unsigned long)atoi(type + 1) / 8;
        for (; open; open = memchr(open + 1, '[', (size_t)(end - open - 1))) n *= strtoul(open + 1, NULL, 10);
        bytes = up(bytes, a) + n * unit;
    }
    return up(bytes, align);
}

static void place_extern_shared(parser *s)
{
    for (fc_symbol *y = s->m->symbols; y; y = y->next)
        if (y->space == FC_SHARED) y->at = FC_SHARED_BASE + static_shared_ahead(s, y->align > 16 ? y->align : 16), s->k->dynamic_at = y->at - FC_SHARED_BASE;
}

static void entry(parser *s)
{
    fc_kernel *k = calloc(1, sizeof *k);
    if (!k) refuse(s, "out of memory");
    k->next = s->m->kernels;
    s->m->kernels = k;
    k->module = s->m;
    s->k = k;
    word(s, k->name, sizeof k->name);
    slot(s, 'p');                                    // offset 0 belongs to nothing
    if (take(s, '(') && !take(s, ')')) {
        char w[64];
        do {
            word(s, w, sizeof w);
            if (strcmp(w, ".param")) refuse(s, "a parameter begins with %s", w);
            declare(s, FC_PARAM, false, 0);
        } while (take(s, ','));
        need(s, ')');
    }
    attributes(s);
    if (take(s, ';')) { finish(s); return; }   // a declaration
    place_extern_shared(s);
    body(s);
    finish(s);
}

static void file_directive(parser *s)
{
    uint64_t n = number(s);
    need(s, '"');
    const char *e = strchr(s->p, '"');
    if (!e) refuse(s, "a file name does not end");
    if (n < 16) snprintf(s->m->files[n], sizeof s->m->files[n], "%.*s", (int)(e - s->p), s->p);
    s->p = e;
    skip_line(s);
}

static void top(parser *s)
{
    char w[64];
    bool is_extern = false;
    word(s, w, sizeof w);
    while (!strcmp(w, ".visible") || !strcmp(w, ".weak") || !strcmp(w, ".extern")) is_extern |= !strcmp(w, ".extern"), word(s, w, sizeof w);
    if (!strcmp(w, ".version") || !strcmp(w, ".target") || !strcmp(w, ".address_size")) skip_line(s);
    else if (!strcmp(w, ".file")) file_directive(s);
    else if (!strcmp(w, ".section")) {               // debugging data, braces and all
        while (*s->p && *s->p != '}') s->p++;
        need(s, '}');
    } else if (!strcmp(w, ".entry")) entry(s);
    else if (!strcmp(w, ".global")) give_global(s, declare(s, FC_GLOBAL, is_extern, ';'));
    else if (!strcmp(w, ".const")) give_global(s, declare(s, FC_CONST, is_extern, ';'));
    else if (!strcmp(w, ".shared")) declare(s, FC_SHARED, is_extern, ';');
    else refuse(s, "the directive %s is not emulated", w);
}

fc_module *fc_parse(CUmodule handle, const char *ptx, char *log, size_t log_bytes)
{
    parser *s = calloc(1, sizeof *s);
    fc_module *volatile m = calloc(1, sizeof *m);
    if (!s || !m) drv_missing("memory for a module");
    *s = (parser){.p = ptx, .m = m, .log = log, .log_bytes = log_bytes, .textline = 1};
    m->handle = handle;
    volatile bool ok = false;
    if (!setjmp(s->out)) {
        for (space(s); *s->p; space(s)) top(s);
        ok = true;
    }
    forget(s);
    free_symbols(s->locals);
    free(s->regs); free(s->labels); free(s->fixes);
    free(s);
    if (ok) return m;
    fc_module_free(m);
    return NULL;
}

void fc_module_free(fc_module *m)
{
    if (!m) return;
    free_symbols(m->symbols);
    for (fc_kernel *k = m->kernels, *next; k; k = next) {
        next = k->next;
        free_symbols(k->params);
        free(k->code);
        free(k->notes);
        free(k->file);
        free(k);
    }
    free(m);
}
