// rows.h: one instruction at a time against its meaning in C: a row names the spelling, the classes of its operands, and a function.
// A kernel is written for each row, in PTX, and runs over tuples of operands; operands come from memory, or as literals of the instruction.
// Classes: r 32 bits, d 64 bits, h 16 bits, f float, g double, p predicate. "r fr" has a 32-bit result and two sources.
#ifndef ROWS_H
#define ROWS_H
#include "oracle.h"

typedef uint64_t (*meaning)(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
// kind: what a test wants to know of a row, such as which operands it is tried on; '~' in it: any NaN is as good as the one wanted
typedef struct row { const char *op, *shape; meaning want; const char *kind; } row;
#define MEANING(name, expr) static uint64_t name(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { (void)a; (void)b; (void)c; (void)d; return (uint64_t)(expr); }

// ---- the kernels

static const char *class_register(char c) { return c == 'r' ? "%r" : c == 'd' ? "%d" : c == 'h' ? "%h" : c == 'f' ? "%f" : c == 'g' ? "%g" : "%p"; }

// %d<i> to a register of the class with number i
static void narrow_to(text *t, char c, int i)
{
    switch (c) {
        case 'r': add(t, "  cvt.u32.u64 %%r%d, %%d%d;\n", i, i); break;
        case 'h': add(t, "  cvt.u16.u64 %%h%d, %%d%d;\n", i, i); break;
        case 'f': add(t, "  cvt.u32.u64 %%r%d, %%d%d;\n  mov.b32 %%f%d, %%r%d;\n", i, i, i, i); break;
        case 'g': add(t, "  mov.b64 %%g%d, %%d%d;\n", i, i); break;
        case 'p': add(t, "  setp.ne.s64 %%p%d, %%d%d, 0;\n", i, i); break;
        default: break;
    }
}

// the result, number 0, to %d0
static void widen_from(text *t, char c)
{
    switch (c) {
        case 'r': add(t, "  cvt.u64.u32 %%d0, %%r0;\n"); break;
        case 'h': add(t, "  cvt.u64.u16 %%d0, %%h0;\n"); break;
        case 'f': add(t, "  mov.b32 %%r0, %%f0;\n  cvt.u64.u32 %%d0, %%r0;\n"); break;
        case 'g': add(t, "  mov.b64 %%d0, %%g0;\n"); break;
        case 'p': add(t, "  selp.u32 %%r0, 1, 0, %%p0;\n  cvt.u64.u32 %%d0, %%r0;\n"); break;
        default: break;
    }
}

static void literal(text *t, char c, uint64_t v)
{
    if (c == 'f') add(t, ", 0f%08x", (unsigned)v);
    else if (c == 'g') add(t, ", 0d%016llx", (unsigned long long)v);
    else add(t, ", 0x%llx", (unsigned long long)v);
}

static void row_header(text *t, int version, int cc) { add(t, ".version %d.%d\n.target sm_%d\n.address_size 64\n", version / 10, version % 10, cc); }

// Kernel k<index>(in, out, n): out[i] = op(in[4 * i], in[4 * i + 1], ...), all as 64-bit words.
// literals, if given, take the place of the operands of class r, d, f, g; predicates and 16-bit values stay registers.
static void row_kernel(text *t, int index, const char *op, const char *shape, const uint64_t *literals)
{
    const char *sources = shape + 2;
    add(t, ".visible .entry k%d(.param .u64 in, .param .u64 out, .param .u32 n)\n{\n", index);
    add(t, "  .reg .b32 %%r<9>; .reg .b64 %%d<9>; .reg .b16 %%h<9>; .reg .f32 %%f<9>; .reg .f64 %%g<9>; .reg .pred %%p<9>;\n");
    add(t, "  mov.u32 %%r5, %%ctaid.x;\n  mov.u32 %%r6, %%ntid.x;\n  mov.u32 %%r7, %%tid.x;\n  mad.lo.s32 %%r5, %%r5, %%r6, %%r7;\n");
    add(t, "  ld.param.u32 %%r6, [n];\n  setp.ge.u32 %%p8, %%r5, %%r6;\n  @%%p8 ret;\n");
    add(t, "  ld.param.u64 %%d7, [in];\n  ld.param.u64 %%d8, [out];\n  cvta.to.global.u64 %%d7, %%d7;\n  cvta.to.global.u64 %%d8, %%d8;\n");
    add(t, "  mul.wide.u32 %%d6, %%r5, 32;\n  add.s64 %%d7, %%d7, %%d6;\n  mul.wide.u32 %%d6, %%r5, 8;\n  add.s64 %%d8, %%d8, %%d6;\n");
    for (int i = 0; sources[i]; i++) {
        add(t, "  ld.global.u64 %%d%d, [%%d7+%d];\n", i + 1, 8 * i);
        narrow_to(t, sources[i], i + 1);
    }
    add(t, "  %s %s0", op, class_register(shape[0]));
    for (int i = 0; sources[i]; i++)
        if (literals && strchr("rdfg", sources[i])) literal(t, sources[i], literals[i]);
        else add(t, ", %s%d", class_register(sources[i]), i + 1);
    add(t, ";\n");
    widen_from(t, shape[0]);
    add(t, "  st.global.u64 [%%d8], %%d0;\n  ret;\n}\n");
}

static void row_run(CUmodule m, int index, const uint64_t *in, uint64_t *out, int n)
{
    char name[16];
    snprintf(name, sizeof name, "k%d", index);
    CUdeviceptr in_dev = device(in, (size_t)n * 32), out_dev = device(NULL, (size_t)n * 8);
    run(function(m, name), (unsigned)(n + 255) / 256, 256, 0, ARGS(&in_dev, &out_dev, &n));
    fetch(out, out_dev, (size_t)n * 8);
    CU.cuMemFree_v2(in_dev);
    CU.cuMemFree_v2(out_dev);
}

// ---- comparing

static bool is_nan32(uint64_t u) { return (u & 0x7fffffff) > 0x7f800000; }
static bool is_nan64(uint64_t u) { return (u & 0x7fffffffffffffff) > 0x7ff0000000000000; }

static bool same(char class, const char *kind, uint64_t want, uint64_t got)
{
    if (want == got) return true;
    if (!kind || !strchr(kind, '~')) return false;
    return class == 'f' ? is_nan32(want) && is_nan32(got) : class == 'g' && is_nan64(want) && is_nan64(got);
}
#define U(x) (unsigned long long)(x)

static uint64_t class_mask(char c) { return c == 'h' ? 0xffff : c == 'd' || c == 'g' ? ~(uint64_t)0 : c == 'p' ? 1 : 0xffffffff; }

// ---- operands: all tuples of special values, then random ones

static const uint64_t special_integers[] = {
    0, 1, 2, 3, 5, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 0x7654, 0x7fff, 0x8000, 0xba98, 0xffff, 0x10000, 0x7fffffff, 0x80000000,
    0x80000001, 0xdeadbeef, 0xfffffffe, 0xffffffff, 0x100000000, 0x7fffffffffffffff, 0x8000000000000000, 0xfffffffffffffffe, 0xffffffffffffffff
};
static const uint32_t special_floats[] = {            // zero, subnormals, one, two, thirds, large, infinity, NaNs; each with both signs
    0, 1, 2, 0x400000, 0x7fffff, 0x800000, 0x800001, 0x1000000, 0x33800000, 0x3e99999a, 0x3eaaaaab, 0x3f000000, 0x3f7fffff, 0x3f800000, 0x3f800001,
    0x3fc00000, 0x40000000, 0x40490fdb, 0x4b000001, 0x4b800000, 0x4effffff, 0x4f000000, 0x4f800000, 0x5f000000, 0x5f800000, 0x7f7fffff, 0x7f800000,
    0x7f800001, 0x7fc00000, 0x7fc01234
};
enum { INTEGERS = sizeof special_integers / sizeof *special_integers, FLOATS = 2 * sizeof special_floats / sizeof *special_floats };

static int specials_of(char c) { return c == 'p' ? 2 : c == 'f' || c == 'g' ? FLOATS : INTEGERS; }
static uint64_t special_of(char c, int i)
{
    if (c == 'p') return (uint64_t)i;
    if (c != 'f' && c != 'g') return special_integers[i] & class_mask(c);
    uint32_t u = special_floats[i / 2] | (uint32_t)(i & 1) << 31;
    if (c == 'f') return u;
    return is_nan32(u) ? (uint64_t)u << 32 : d_bits((double)f_of(u) * 1.0000001);
}
// Random operands lie close together half of the time, so that sums cancel and comparisons are near.
static uint64_t random_of(char c, uint64_t near)
{
    uint64_t u = rand64();
    if (c == 'p') return u & 1;
    if (c == 'g' || c == 'f') u = u & 1 ? near ^ (u & 0x01ff00ff0000ffff & class_mask(c)) ^ (u >> 1 & 1) << (c == 'f' ? 31 : 63) : u;
    return u & class_mask(c);
}

static int product_and_random(const row *r, uint64_t *in, int most)
{
    const char *sources = r->shape + 2;
    int k = (int)strlen(sources), n = 0;
    long all = 1;
    for (int i = 0; i < k; i++) all *= specials_of(sources[i]);
    long step = all > most / 2 ? all / (most / 2) * 2 + 1 : 1;      // too many: an odd stride goes through them
    for (long j = 0; j < all && n < most / 2; j += step, n++) {
        long rest = j;
        for (int i = 0; i < k; i++) { in[4 * n + i] = special_of(sources[i], (int)(rest % specials_of(sources[i]))); rest /= specials_of(sources[i]); }
    }
    for (int j = 0; j < 10000; j++, n++)
        for (int i = 0; i < k; i++) in[4 * n + i] = random_of(sources[i], i ? in[4 * n] : rand64());
    return n;
}

// Every row over the operands that `tuples` makes for it (n of them into in[][4]); how many rows were wrong, the first wrong tuple of each told.
static int rows_check(const row *rows, int count, int version, int cc, int (*tuples)(const row *r, uint64_t *in, int most))
{
    enum { MOST = 1 << 19 };
    text t = { 0 };
    row_header(&t, version, cc);
    for (int i = 0; i < count; i++) row_kernel(&t, i, rows[i].op, rows[i].shape, NULL);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    uint64_t *in = malloc((size_t)MOST * 32), *out = malloc((size_t)MOST * 8);
    int wrong = 0;
    long total = 0;
    for (int i = 0; i < count && in && out; i++) {
        int n = tuples(&rows[i], in, MOST), bad = 0;
        row_run(m, i, in, out, n);
        for (int j = 0; j < n; j++) {
            const uint64_t *o = in + 4 * j;
            uint64_t want = rows[i].want(o[0], o[1], o[2], o[3]) & class_mask(rows[i].shape[0]);
            if (same(rows[i].shape[0], rows[i].kind, want, out[j])) continue;
            if (!bad++) fprintf(stderr, "%s of %llx %llx %llx %llx: %llx, not %llx\n", rows[i].op, U(o[0]), U(o[1]), U(o[2]), U(o[3]), U(out[j]), U(want));
        }
        if (bad) fprintf(stderr, "%s: %d of %d wrong\n", rows[i].op, bad, n), wrong++;
        total += n;
    }
    printf("    %d instructions, %ld values\n", count, total);
    free(in);
    free(out);
    CU.cuModuleUnload(m);
    return wrong || total == 0;
}
#endif
