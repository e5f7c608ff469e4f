// Oracle: loads and stores of every width, vector and space against a byte array; atomics against their sums; cp.async with all its sizes and groups.
#include "oracle.h"

typedef uint32_t u32;
typedef uint64_t u64;
#define COUNT(a) (int)(sizeof a / sizeof *a)

enum { IMAGE = 4096, LANES = 64 };                       // the bytes that are read or written, and the threads that do it
static unsigned char image[IMAGE];

// One spelling: its register class as in rows.h, elements, bytes of each, and whether a load extends the sign.
typedef struct access { const char *op; char class; int elements, bytes; bool extends; } access;
static const char *class_register(char c) { return c == 'r' ? "%r" : c == 'd' ? "%d" : c == 'h' ? "%h" : c == 'f' ? "%f" : "%g"; }

static const access loads[] = {
    { "ld.global.u8", 'h', 1, 1, 0 }, { "ld.global.s8", 'h', 1, 1, 1 }, { "ld.global.u8", 'r', 1, 1, 0 }, { "ld.global.s8", 'r', 1, 1, 1 }, { "ld.global.u16", 'h', 1, 2, 0 },
    { "ld.global.u16", 'r', 1, 2, 0 }, { "ld.global.s16", 'h', 1, 2, 1 }, { "ld.global.u32", 'r', 1, 4, 0 }, { "ld.global.s32", 'r', 1, 4, 0 }, { "ld.global.b32", 'r', 1, 4, 0 },
    { "ld.global.f32", 'f', 1, 4, 0 }, { "ld.global.u64", 'd', 1, 8, 0 }, { "ld.global.b64", 'd', 1, 8, 0 }, { "ld.global.f64", 'g', 1, 8, 0 },
    { "ld.global.v2.u16", 'h', 2, 2, 0 }, { "ld.global.v4.u16", 'h', 4, 2, 0 }, { "ld.global.v2.u8", 'h', 2, 1, 0 }, { "ld.global.v4.u8", 'h', 4, 1, 0 },
    { "ld.global.v2.u32", 'r', 2, 4, 0 }, { "ld.global.v4.u32", 'r', 4, 4, 0 }, { "ld.global.v2.f32", 'f', 2, 4, 0 }, { "ld.global.v4.f32", 'f', 4, 4, 0 },
    { "ld.global.v2.b32", 'r', 2, 4, 0 }, { "ld.global.v4.b32", 'r', 4, 4, 0 }, { "ld.global.v2.u64", 'd', 2, 8, 0 },
    { "ld.global.nc.u8", 'h', 1, 1, 0 }, { "ld.global.nc.s8", 'h', 1, 1, 1 }, { "ld.global.nc.u16", 'h', 1, 2, 0 }, { "ld.global.nc.u32", 'r', 1, 4, 0 }, { "ld.global.nc.b32", 'r', 1, 4, 0 }, { "ld.global.nc.f32", 'f', 1, 4, 0 },
    { "ld.global.nc.u64", 'd', 1, 8, 0 }, { "ld.global.nc.v2.u32", 'r', 2, 4, 0 }, { "ld.global.nc.v4.u32", 'r', 4, 4, 0 }, { "ld.global.nc.v2.f32", 'f', 2, 4, 0 },
    { "ld.global.nc.v4.f32", 'f', 4, 4, 0 }, { "ld.global.nc.v4.u16", 'h', 4, 2, 0 }, { "ld.global.nc.v2.u16", 'h', 2, 2, 0 },
    { "ld.global.nc.L1::no_allocate.v4.u32", 'r', 4, 4, 0 }, { "ld.global.nc.L1::no_allocate.v2.u32", 'r', 2, 4, 0 }, { "ld.global.nc.L1::no_allocate.u32", 'r', 1, 4, 0 },
    { "ld.volatile.global.f32", 'f', 1, 4, 0 }, { "ld.volatile.global.u32", 'r', 1, 4, 0 },
    { "ld.shared.u8", 'h', 1, 1, 0 }, { "ld.shared.u16", 'h', 1, 2, 0 }, { "ld.shared.u32", 'r', 1, 4, 0 }, { "ld.shared.b32", 'r', 1, 4, 0 }, { "ld.shared.f32", 'f', 1, 4, 0 },
    { "ld.shared.u64", 'd', 1, 8, 0 }, { "ld.shared.v2.u32", 'r', 2, 4, 0 }, { "ld.shared.v4.u32", 'r', 4, 4, 0 }, { "ld.shared.v2.f32", 'f', 2, 4, 0 }, { "ld.shared.v4.f32", 'f', 4, 4, 0 },
    { "ld.volatile.shared.f32", 'f', 1, 4, 0 }, { "ld.volatile.shared.u32", 'r', 1, 4, 0 },
    { "ld.local.u8", 'h', 1, 1, 0 }, { "ld.local.u16", 'h', 1, 2, 0 }, { "ld.local.u32", 'r', 1, 4, 0 }, { "ld.local.f32", 'f', 1, 4, 0 }, { "ld.local.u64", 'd', 1, 8, 0 },
    { "ld.local.v2.u32", 'r', 2, 4, 0 }, { "ld.local.v4.u32", 'r', 4, 4, 0 }, { "ld.local.v2.f32", 'f', 2, 4, 0 }, { "ld.local.v4.f32", 'f', 4, 4, 0 },
    { "ld.const.u8", 'h', 1, 1, 0 }, { "ld.const.u16", 'h', 1, 2, 0 }, { "ld.const.u32", 'r', 1, 4, 0 }, { "ld.const.f32", 'f', 1, 4, 0 }, { "ld.const.u64", 'd', 1, 8, 0 },
    { "ld.u8", 'h', 1, 1, 0 }, { "ld.u16", 'h', 1, 2, 0 }, { "ld.u32", 'r', 1, 4, 0 }, { "ld.f32", 'f', 1, 4, 0 }, { "ld.u64", 'd', 1, 8, 0 }, { "ld.v4.u32", 'r', 4, 4, 0 }, { "ld.v2.f32", 'f', 2, 4, 0 },
    { "ld.v4.f32", 'f', 4, 4, 0 }, { "ld.v2.u32", 'r', 2, 4, 0 },
};
static const access stores[] = {
    { "st.global.u8", 'h', 1, 1, 0 }, { "st.global.u8", 'r', 1, 1, 0 }, { "st.global.u16", 'h', 1, 2, 0 }, { "st.global.u16", 'r', 1, 2, 0 }, { "st.global.u32", 'r', 1, 4, 0 },
    { "st.global.u32", 'd', 1, 4, 0 }, { "st.global.b32", 'r', 1, 4, 0 }, { "st.global.f32", 'f', 1, 4, 0 }, { "st.global.u64", 'd', 1, 8, 0 }, { "st.global.b64", 'd', 1, 8, 0 },
    { "st.global.f64", 'g', 1, 8, 0 }, { "st.global.v2.u16", 'h', 2, 2, 0 }, { "st.global.v4.u16", 'h', 4, 2, 0 }, { "st.global.v2.u32", 'r', 2, 4, 0 }, { "st.global.v4.u32", 'r', 4, 4, 0 },
    { "st.global.v2.f32", 'f', 2, 4, 0 }, { "st.global.v4.f32", 'f', 4, 4, 0 }, { "st.global.v2.b32", 'r', 2, 4, 0 }, { "st.global.v4.b32", 'r', 4, 4, 0 }, { "st.global.v2.u64", 'd', 2, 8, 0 },
    { "st.volatile.global.f32", 'f', 1, 4, 0 }, { "st.volatile.global.u32", 'r', 1, 4, 0 },
    { "st.shared.u8", 'h', 1, 1, 0 }, { "st.shared.u16", 'h', 1, 2, 0 }, { "st.shared.u32", 'r', 1, 4, 0 }, { "st.shared.b32", 'r', 1, 4, 0 }, { "st.shared.f32", 'f', 1, 4, 0 }, { "st.shared.u64", 'd', 1, 8, 0 },
    { "st.shared.v2.u32", 'r', 2, 4, 0 }, { "st.shared.v4.u32", 'r', 4, 4, 0 }, { "st.shared.v2.f32", 'f', 2, 4, 0 }, { "st.shared.v4.f32", 'f', 4, 4, 0 },
    { "st.volatile.shared.f32", 'f', 1, 4, 0 }, { "st.volatile.shared.u32", 'r', 1, 4, 0 },
    { "st.local.u8", 'h', 1, 1, 0 }, { "st.local.u16", 'h', 1, 2, 0 }, { "st.local.u32", 'r', 1, 4, 0 }, { "st.local.f32", 'f', 1, 4, 0 }, { "st.local.u64", 'd', 1, 8, 0 },
    { "st.local.v2.u32", 'r', 2, 4, 0 }, { "st.local.v4.u32", 'r', 4, 4, 0 }, { "st.local.v2.f32", 'f', 2, 4, 0 }, { "st.local.v4.f32", 'f', 4, 4, 0 },
    { "st.u8", 'h', 1, 1, 0 }, { "st.u16", 'h', 1, 2, 0 }, { "st.u32", 'r', 1, 4, 0 }, { "st.f32", 'f', 1, 4, 0 }, { "st.u64", 'd', 1, 8, 0 }, { "st.v4.u32", 'r', 4, 4, 0 },
    { "st.v2.f32", 'f', 2, 4, 0 }, { "st.v4.f32", 'f', 4, 4, 0 }, { "st.v2.u32", 'r', 2, 4, 0 },
};

// ---- one kernel a spelling: k<index>(image, places, io)
// A copy of the image in the right space; a thread's place in it is a byte offset. Generic accesses go to global memory (variant 0) or shared (1).

static bool in_space(const char *op, const char *space) { return strstr(op, space) != NULL; }
static bool is_generic(const char *op) { return !in_space(op, ".global") && !in_space(op, ".shared") && !in_space(op, ".local") && !in_space(op, ".const"); }

static void prologue(text *t, const char *name)
{
    add(t, ".visible .entry %s(.param .u64 image, .param .u64 places, .param .u64 io)\n{\n", name);
    add(t, "  .shared .align 16 .b8 box_%s[%d];\n  .local .align 16 .b8 own_%s[%d];\n", name, IMAGE, name, IMAGE);
    add(t, "  .reg .b32 %%r<32>; .reg .b64 %%d<32>; .reg .b16 %%h<8>; .reg .f32 %%f<8>; .reg .f64 %%g<8>; .reg .pred %%p<4>;\n");
    add(t, "  mov.u32 %%r10, %%tid.x;\n  ld.param.u64 %%d10, [image];\n  ld.param.u64 %%d11, [places];\n  ld.param.u64 %%d12, [io];\n");
    add(t, "  mul.wide.u32 %%d13, %%r10, 4;\n  add.s64 %%d11, %%d11, %%d13;\n  ld.global.u32 %%r11, [%%d11];\n");
    add(t, "  mul.wide.u32 %%d13, %%r10, 32;\n  add.s64 %%d12, %%d12, %%d13;\n");
}

// The image to or from shared memory by all threads together, or to and from every thread's own local memory.
static void copy_words(text *t, const char *name, const char *to, const char *from, const char *to_base, const char *from_base, bool each_its_own)
{
    add(t, "  mov.u32 %%r20, %s;\n%s_loop:\n  cvt.u64.u32 %%d20, %%r20;\n", each_its_own ? "0" : "%r10", name);
    add(t, "  shl.b64 %%d20, %%d20, 2;\n  add.s64 %%d21, %%d20, %s;\n  add.s64 %%d22, %%d20, %s;\n", from_base, to_base);
    add(t, "  ld.%s.u32 %%r21, [%%d21];\n  st.%s.u32 [%%d22], %%r21;\n", from, to);
    add(t, "  add.s32 %%r20, %%r20, %d;\n  setp.lt.u32 %%p1, %%r20, %d;\n  @%%p1 bra %s_loop;\n  bar.sync 0;\n", each_its_own ? 1 : LANES, IMAGE / 4, name);
}

static void operands(text *t, const access *a)
{
    for (int i = 0; i < a->elements; i++) add(t, "%s%s%d", i ? ", " : a->elements > 1 ? "{" : "", class_register(a->class), i);
    if (a->elements > 1) add(t, "}");
}
static void to_word(text *t, char class, int i)          // register i to %d15
{
    if (class == 'h') add(t, "  cvt.u64.u16 %%d15, %%h%d;\n", i);
    if (class == 'r') add(t, "  cvt.u64.u32 %%d15, %%r%d;\n", i);
    if (class == 'd') add(t, "  mov.b64 %%d15, %%d%d;\n", i);
    if (class == 'f') add(t, "  mov.b32 %%r15, %%f%d;\n  cvt.u64.u32 %%d15, %%r15;\n", i);
    if (class == 'g') add(t, "  mov.b64 %%d15, %%g%d;\n", i);
}
static void from_word(text *t, char class, int i)        // %d15 to register i
{
    if (class == 'h') add(t, "  cvt.u16.u64 %%h%d, %%d15;\n", i);
    if (class == 'r') add(t, "  cvt.u32.u64 %%r%d, %%d15;\n", i);
    if (class == 'd') add(t, "  mov.b64 %%d%d, %%d15;\n", i);
    if (class == 'f') add(t, "  cvt.u32.u64 %%r15, %%d15;\n  mov.b32 %%f%d, %%r15;\n", i);
    if (class == 'g') add(t, "  mov.b64 %%g%d, %%d15;\n", i);
}

// %d14 = where the thread reads or writes: the base in its space and its place. Shared is addressed by 32 bits in odd kernels.
static void address(text *t, const char *name, const char *op, int variant)
{
    bool shared = in_space(op, ".shared") || (is_generic(op) && variant), local = in_space(op, ".local"), constant = in_space(op, ".const");
    if (shared) add(t, "  mov.u64 %%d14, box_%s;\n", name);
    else if (local) add(t, "  mov.u64 %%d14, own_%s;\n", name);
    else if (constant) add(t, "  mov.u64 %%d14, table;\n");
    else add(t, "  cvta.to.global.u64 %%d14, %%d10;\n");
    if (is_generic(op)) add(t, shared ? "  cvta.shared.u64 %%d14, %%d14;\n" : "  cvta.global.u64 %%d14, %%d14;\n");
    add(t, "  cvt.u64.u32 %%d13, %%r11;\n  add.s64 %%d14, %%d14, %%d13;\n");
}

static void load_kernel(text *t, const access *a, const char *name, int variant)
{
    bool shared = in_space(a->op, ".shared") || (is_generic(a->op) && variant);
    prologue(t, name);
    if (shared) add(t, "  mov.u64 %%d23, box_%s;\n", name), copy_words(t, name, "shared", "global", "%d23", "%d10", false);
    if (in_space(a->op, ".local")) add(t, "  mov.u64 %%d23, own_%s;\n", name), copy_words(t, name, "local", "global", "%d23", "%d10", true);
    address(t, name, a->op, variant);
    if (in_space(a->op, ".shared") && variant) add(t, "  cvt.u32.u64 %%r14, %%d14;\n");
    add(t, "  %s ", a->op);
    operands(t, a);
    add(t, in_space(a->op, ".shared") && variant ? ", [%%r14];\n" : ", [%%d14];\n");
    for (int i = 0; i < a->elements; i++) { to_word(t, a->class, i); add(t, "  st.global.u64 [%%d12+%d], %%d15;\n", 8 * i); }
    add(t, "  ret;\n}\n");
}

static void store_kernel(text *t, const access *a, const char *name, int variant)
{
    bool shared = in_space(a->op, ".shared") || (is_generic(a->op) && variant), local = in_space(a->op, ".local");
    prologue(t, name);
    if (shared) add(t, "  mov.u64 %%d23, box_%s;\n", name), copy_words(t, name, "shared", "global", "%d23", "%d10", false);
    if (local) add(t, "  mov.u64 %%d23, own_%s;\n", name), copy_words(t, name, "local", "global", "%d23", "%d10", true);
    address(t, name, a->op, variant);
    for (int i = 0; i < a->elements; i++) { add(t, "  ld.global.u64 %%d15, [%%d12+%d];\n", 8 * i); from_word(t, a->class, i); }
    if (in_space(a->op, ".shared") && variant) add(t, "  cvt.u32.u64 %%r14, %%d14;\n");
    add(t, "  %s ", a->op);
    add(t, in_space(a->op, ".shared") && variant ? "[%%r14], " : "[%%d14], ");
    operands(t, a);
    add(t, ";\n");
    char back[64];
    snprintf(back, sizeof back, "%s_back", name);
    if (shared) add(t, "  bar.sync 0;\n"), copy_words(t, back, "global", "shared", "%d10", "%d23", false);
    if (local) {                                         // each thread brings back only what it wrote
        add(t, "  cvt.u64.u32 %%d13, %%r11;\n  add.s64 %%d10, %%d10, %%d13;\n  add.s64 %%d23, %%d23, %%d13;\n");
        for (int i = 0; i < a->elements * a->bytes; i++) add(t, "  ld.local.u8 %%h7, [%%d23+%d];\n  st.global.u8 [%%d10+%d], %%h7;\n", i, i);
    }
    add(t, "  ret;\n}\n");
}

// ---- running

static u64 element(const unsigned char *p, const access *a)
{
    u64 v = 0;
    memcpy(&v, p, (size_t)a->bytes);
    if (a->extends && v >> (8 * a->bytes - 1) & 1) v |= ~(u64)0 << 8 * a->bytes;
    return v & (a->class == 'h' ? 0xffff : a->class == 'r' || a->class == 'f' ? 0xffffffff : ~(u64)0);
}

static u32 places[LANES];
static u64 io[LANES][4];

// Places of whole vectors, no two alike: a permutation of the image's slots, then in one round of three all next to each other.
static void choose_places(const access *a, int round)
{
    int size = a->elements * a->bytes, slots = IMAGE / size;
    static int order[IMAGE];
    for (int i = 0; i < slots; i++) order[i] = i;
    for (int i = 0; i < LANES; i++) {
        int j = i + (int)(rand64() % (u64)(slots - i)), swap = order[i];
        if (round != 1) { order[i] = order[j]; order[j] = swap; }
        places[i] = (u32)(order[i] * size);
    }
}

static int check_load(CUfunction f, const access *a)
{
    for (int round = 0; round < 3; round++) {
        choose_places(a, round);
        CUdeviceptr img = device(image, IMAGE), at = device(places, sizeof places), out = device(NULL, sizeof io);
        run(f, 1, LANES, 0, ARGS(&img, &at, &out));
        fetch(io, out, sizeof io);
        for (int i = 0; i < LANES; i++)
            for (int e = 0; e < a->elements; e++) CHECK(io[i][e] == element(image + places[i] + e * a->bytes, a));
        CU.cuMemFree_v2(img);
        CU.cuMemFree_v2(at);
        CU.cuMemFree_v2(out);
    }
    return 0;
}

static int check_store(CUfunction f, const access *a)
{
    unsigned char want[IMAGE], got[IMAGE];
    for (int round = 0; round < 3; round++) {
        choose_places(a, round);
        memcpy(want, image, IMAGE);
        for (int i = 0; i < LANES; i++)
            for (int e = 0; e < 4; e++) {
                io[i][e] = rand64();
                if (e < a->elements) memcpy(want + places[i] + e * a->bytes, &io[i][e], (size_t)a->bytes);
            }
        CUdeviceptr img = device(image, IMAGE), at = device(places, sizeof places), in = device(io, sizeof io);
        run(f, 1, LANES, 0, ARGS(&img, &at, &in));
        fetch(got, img, IMAGE);
        CHECK(memcmp(got, want, IMAGE) == 0);
        CU.cuMemFree_v2(img);
        CU.cuMemFree_v2(at);
        CU.cuMemFree_v2(in);
    }
    return 0;
}

static int check_all(const access *list, int n, void (*kernel)(text *, const access *, const char *, int), int (*check)(CUfunction, const access *))
{
    text t = { 0 };
    char name[16];
    add(&t, ".version 7.8\n.target sm_80\n.address_size 64\n.const .align 16 .b8 table[%d] = {", IMAGE);
    for (int i = 0; i < IMAGE; i++) image[i] = (unsigned char)rand64(), add(&t, "%s%d", i ? ", " : "", image[i]);
    add(&t, "};\n");
    for (int i = 0; i < 2 * n; i++) { snprintf(name, sizeof name, "k%d", i); kernel(&t, &list[i / 2], name, i & 1); }
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    int wrong = 0;
    for (int i = 0; i < 2 * n; i++) {
        snprintf(name, sizeof name, "k%d", i);
        if (check(function(m, name), &list[i / 2])) fprintf(stderr, "%s from class %c, variant %d\n", list[i / 2].op, list[i / 2].class, i & 1), wrong++;
    }
    CU.cuModuleUnload(m);
    CHECK(wrong == 0);
    return 0;
}
static int loads_read_the_bytes(void) { return check_all(loads, COUNT(loads), load_kernel, check_load); }
static int stores_write_the_bytes_and_no_others(void) { return check_all(stores, COUNT(stores), store_kernel, check_store); }

// ---- kernels' parameters: all types, at their natural places, and an array

static const char parameters[] = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out, .param .u8 a, .param .u16 b, .param .f32 c, .param .u64 d,\n"
    "  .param .u32 e, .param .align 8 .b8 f[24], .param .f64 g)\n{\n  .reg .b32 %r<4>; .reg .b64 %d<8>; .reg .b16 %h<4>; .reg .f32 %f<4>; .reg .f64 %g<4>;\n"
    "  ld.param.u64 %d0, [out];\n  ld.param.u8 %h0, [a];\n  ld.param.u16 %h1, [b];\n  ld.param.f32 %f0, [c];\n  ld.param.u64 %d1, [d];\n  ld.param.u32 %r0, [e];\n"
    "  ld.param.u64 %d2, [f+16];\n  ld.param.f64 %g0, [g];\n  ld.param.v2.u32 {%r1, %r2}, [f+8];\n"
    "  mov.b64 %d3, f;\n  add.s64 %d3, %d3, 4;\n  ld.param.s8 %h2, [%d3+11];\n  ld.param.s32 %r3, [%d3+8];\n  st.global.u16 [%d0+48], %h2;\n  st.global.u32 [%d0+52], %r3;\n"   // by its address
    "  st.global.u8 [%d0], %h0;\n  st.global.u16 [%d0+2], %h1;\n  st.global.f32 [%d0+4], %f0;\n  st.global.u64 [%d0+8], %d1;\n  st.global.u32 [%d0+16], %r0;\n"
    "  st.global.u64 [%d0+24], %d2;\n  st.global.f64 [%d0+32], %g0;\n  st.global.v2.u32 [%d0+40], {%r1, %r2};\n  ret;\n}\n";
static int parameters_arrive(void)
{
    ORACLE_MODULE(m, parameters);
    unsigned char got[56], want[56] = { 0 }, a = 201;
    uint16_t b = 54321;
    float c = 1.25f;
    u64 d = 0x123456789abcdef0, f[3] = { 1, 0xfedcba9876543210, 3 };
    u32 e = 0xdeadbeef;
    double g = -2.5;
    CUdeviceptr out = device(want, sizeof want);
    run(function(m, "k"), 1, 1, 0, ARGS(&out, &a, &b, &c, &d, &e, f, &g));
    fetch(got, out, sizeof got);
    want[0] = a;
    memcpy(want + 2, &b, 2); memcpy(want + 4, &c, 4); memcpy(want + 8, &d, 8); memcpy(want + 16, &e, 4);
    memcpy(want + 24, &f[2], 8); memcpy(want + 32, &g, 8); memcpy(want + 40, &f[1], 8);
    const int16_t extended = (signed char)((unsigned char *)f)[15];
    memcpy(want + 48, &extended, 2); memcpy(want + 52, (unsigned char *)f + 12, 4);
    CHECK(memcmp(got, want, sizeof got) == 0);
    return 0;
}

// ---- atomics: threads meet in eight places; what each saw before must be one of the values on the way

typedef struct atomic { const char *op; char class; u64 (*join)(u64 a, u64 b); } atomic;
#define JOIN(name, expr) static u64 name(u64 a, u64 b) { return (u64)(expr); }
JOIN(plus32, (u32)(a + b)) JOIN(plus64, a + b) JOIN(both, a & b) JOIN(either, a | b) JOIN(odd, a ^ b) JOIN(less_s, (int32_t)a < (int32_t)b ? a : b) JOIN(more_s, (int32_t)a > (int32_t)b ? a : b)
JOIN(less_u, a < b ? a : b) JOIN(more_u, a > b ? a : b) JOIN(plus_f, f_bits(f_of((u32)a) + f_of((u32)b))) JOIN(inc, a >= b ? 0 : a + 1) JOIN(dec, a == 0 || a > b ? b : a - 1)

static const atomic meeting[] = {
    { "add.u32", 'r', plus32 }, { "add.s32", 'r', plus32 }, { "add.u64", 'd', plus64 }, { "add.f32", 'f', plus_f }, { "and.b32", 'r', both }, { "or.b32", 'r', either }, { "xor.b32", 'r', odd },
    { "min.s32", 'r', less_s }, { "max.s32", 'r', more_s }, { "min.u32", 'r', less_u }, { "max.u32", 'r', more_u }, { "max.u64", 'd', more_u }, { "min.u64", 'd', less_u },
    { "inc.u32", 'r', inc }, { "dec.u32", 'r', dec },
};
enum { THREADS = 96, PLACES = 8 };

// k: place = tid % 8; old[tid] = atomic(place, value[tid]).  space 0 global, 1 shared, 2 global without result, 3 shared without
static void atomic_kernel(text *t, const atomic *a, int index, int space)
{
    bool shared = space & 1, result = space < 2;
    const char *r = class_register(a->class);
    add(t, ".visible .entry k%d(.param .u64 cells, .param .u64 value, .param .u64 old)\n{\n  .shared .align 8 .b8 box%d[64];\n", index, index);
    add(t, "  .reg .b32 %%r<32>; .reg .b64 %%d<32>; .reg .f32 %%f<8>; .reg .pred %%p<4>;\n  mov.u32 %%r10, %%tid.x;\n  and.b32 %%r11, %%r10, 7;\n");
    add(t, "  ld.param.u64 %%d10, [cells];\n  ld.param.u64 %%d11, [value];\n  ld.param.u64 %%d12, [old];\n  mul.wide.u32 %%d13, %%r10, 8;\n  add.s64 %%d11, %%d11, %%d13;\n");
    add(t, "  add.s64 %%d12, %%d12, %%d13;\n  mul.wide.u32 %%d13, %%r11, 8;\n  add.s64 %%d10, %%d10, %%d13;\n  mov.u64 %%d14, box%d;\n  add.s64 %%d14, %%d14, %%d13;\n", index);
    add(t, "  setp.gt.u32 %%p0, %%r10, 7;\n");
    if (shared) add(t, "  @%%p0 bra $in%d;\n  ld.global.u64 %%d1, [%%d10];\n  st.shared.u64 [%%d14], %%d1;\n$in%d:\n  bar.sync 0;\n", index, index);
    add(t, "  ld.global.u64 %%d15, [%%d11];\n");
    from_word(t, a->class, 1);
    if (result) add(t, "  atom.%s.%s %s0, [%s], %s1;\n", shared ? "shared" : "global", a->op, r, shared ? "%d14" : "%d10", r);
    else add(t, "  red.%s.%s [%s], %s1;\n", shared ? "shared" : "global", a->op, shared ? "%d14" : "%d10", r);
    if (result) { to_word(t, a->class, 0); add(t, "  st.global.u64 [%%d12], %%d15;\n"); }
    if (shared) add(t, "  bar.sync 0;\n  @%%p0 ret;\n  ld.shared.u64 %%d1, [%%d14];\n  st.global.u64 [%%d10], %%d1;\n");
    add(t, "  ret;\n}\n");
}

static int check_atomic(CUfunction f, const atomic *a, bool result)
{
    u64 cells[PLACES], value[THREADS], old[THREADS], after[PLACES], want[PLACES];
    for (int i = 0; i < PLACES; i++) cells[i] = a->class == 'f' ? f_bits((float)(i * 16)) : a->class == 'd' ? rand64() : (u32)rand64() & (strchr("id", a->op[0]) ? 7 : 0xffffffff);
    for (int i = 0; i < THREADS; i++) value[i] = a->class == 'f' ? f_bits((float)(i % 7 + 1)) : a->class == 'd' ? rand64() : strchr("id", a->op[0]) ? 9 : (u32)rand64();
    CUdeviceptr c = device(cells, sizeof cells), v = device(value, sizeof value), o = device(value, sizeof old);
    run(f, 1, THREADS, 0, ARGS(&c, &v, &o));
    fetch(after, c, sizeof after);
    fetch(old, o, sizeof old);
    u64 mask = a->class == 'd' ? ~(u64)0 : 0xffffffff;
    memcpy(want, cells, sizeof want);
    for (int i = 0; i < THREADS; i++) want[i % PLACES] = a->join(want[i % PLACES] & mask, value[i] & mask);
    for (int i = 0; i < PLACES; i++) CHECK((after[i] & mask) == (want[i] & mask));      // these operations come to the same in any order
    // A chain: starting from the cell, each thread of the place can be put next so that it saw what stood there.
    for (int p = 0; p < PLACES && result; p++) {
        bool used[THREADS] = { false };
        u64 now = cells[p] & mask;
        for (int step = 0; step < THREADS / PLACES; step++) {
            int next = -1;
            for (int i = p; i < THREADS; i += PLACES)
                if (!used[i] && (old[i] & mask) == now && (next < 0 || (a->join(now, value[i] & mask) & mask) == now)) next = i;
            CHECK(next >= 0);
            used[next] = true;
            now = a->join(now, value[next] & mask) & mask;
        }
    }
    return 0;
}

static int atomics_join_in_some_order(void)
{
    text t = { 0 };
    add(&t, ".version 7.8\n.target sm_80\n.address_size 64\n");
    for (int i = 0; i < 4 * COUNT(meeting); i++) atomic_kernel(&t, &meeting[i / 4], i, i % 4);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    int wrong = 0;
    for (int i = 0; i < 4 * COUNT(meeting); i++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", i);
        if (check_atomic(function(m, name), &meeting[i / 4], i % 4 < 2)) fprintf(stderr, "%s, space %d\n", meeting[i / 4].op, i % 4), wrong++;
    }
    CHECK(wrong == 0);
    return 0;
}

// exch and cas, each thread in a place of its own; then 96 threads fight for one lock-free counter by cas.
static const char exchanges[] = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 cells, .param .u64 out)\n{\n  .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<4>;\n"
    "  mov.u32 %r0, %tid.x;\n  ld.param.u64 %d0, [cells];\n  ld.param.u64 %d1, [out];\n  mul.wide.u32 %d2, %r0, 8;\n  add.s64 %d3, %d0, %d2;\n  add.s64 %d1, %d1, %d2;\n"
    "  atom.global.exch.b32 %r1, [%d3+8], %r0;\n  atom.global.cas.b32 %r2, [%d3+12], 77, %r0;\n  st.global.v2.u32 [%d1], {%r1, %r2};\n"
    "  ld.global.u32 %r3, [%d0];\n$again:\n  add.s32 %r4, %r3, 1;\n  atom.global.cas.b32 %r5, [%d0], %r3, %r4;\n  setp.ne.s32 %p0, %r5, %r3;\n  mov.u32 %r3, %r5;\n  @%p0 bra $again;\n  ret;\n}\n";
static int exchanges_and_compares_are_atomic(void)
{
    ORACLE_MODULE(m, exchanges);
    u32 cells[2 + 2 * THREADS] = { 5 }, old[2 * THREADS], before[2 + 2 * THREADS];
    for (u32 i = 0; i < THREADS; i++) { cells[2 + 2 * i] = 1000 + i; cells[3 + 2 * i] = i % 3 ? 77 : i; }
    memcpy(before, cells, sizeof cells);
    CUdeviceptr c = device(cells, sizeof cells), o = device(NULL, sizeof old);
    run(function(m, "k"), 1, THREADS, 0, ARGS(&c, &o));
    fetch(cells, c, sizeof cells);
    fetch(old, o, sizeof old);
    CHECK(cells[0] == 5 + THREADS);
    for (u32 i = 0; i < THREADS; i++) {
        CHECK(old[2 * i] == before[2 + 2 * i] && old[2 * i + 1] == before[3 + 2 * i]);
        CHECK(cells[2 + 2 * i] == i && cells[3 + 2 * i] == (before[3 + 2 * i] == 77 ? i : before[3 + 2 * i]));
    }
    return 0;
}

// ---- cp.async: every size of the source, zeros behind it; a source of size 0 is not touched, so it may be no address at all

typedef struct async_row { const char *op; int bytes; bool sized; } async_row;
static const async_row copies[] = {
    { "cp.async.cg.shared.global", 16, true }, { "cp.async.cg.shared.global.L2::128B", 16, true }, { "cp.async.cg.shared.global", 16, false }, { "cp.async.cg.shared.global.L2::128B", 16, false },
    { "cp.async.ca.shared.global", 16, true }, { "cp.async.ca.shared.global", 8, true }, { "cp.async.ca.shared.global", 4, true }, { "cp.async.ca.shared.global", 4, false },
    { "cp.async.ca.shared.global.L2::128B", 16, true },
};
static void async_kernel(text *t, const async_row *a, int index)
{
    add(t, ".visible .entry k%d(.param .u64 in, .param .u64 out)\n{\n  .shared .align 16 .b8 box%d[512];\n  .reg .b32 %%r<16>; .reg .b64 %%d<8>;\n  mov.u32 %%r0, %%tid.x;\n", index, index);
    add(t, "  ld.param.u64 %%d0, [in];\n  ld.param.u64 %%d1, [out];\n  mul.wide.u32 %%d2, %%r0, 16;\n  add.s64 %%d0, %%d0, %%d2;\n  add.s64 %%d1, %%d1, %%d2;\n  mov.u32 %%r1, box%d;\n", index);
    add(t, "  shl.b32 %%r2, %%r0, 4;\n  add.s32 %%r1, %%r1, %%r2;\n  mov.u32 %%r3, 0x5a5a5a5a;\n  st.shared.v4.u32 [%%r1], {%%r3, %%r3, %%r3, %%r3};\n");
    add(t, "  rem.u32 %%r4, %%r0, %d;\n", a->bytes + 1);
    if (a->sized) add(t, "  setp.ne.u32 %%p0, %%r4, 0;\n  selp.b64 %%d0, %%d0, 16, %%p0;\n");      // size 0: address 16, where nothing is
    add(t, a->sized ? "  %s [%%r1], [%%d0], %d, %%r4;\n" : "  %s [%%r1], [%%d0], %d;\n", a->op, a->bytes);
    add(t, "  cp.async.commit_group;\n  %s;\n  ld.shared.v4.u32 {%%r5, %%r6, %%r7, %%r8}, [%%r1];\n  st.global.v4.u32 [%%d1], {%%r5, %%r6, %%r7, %%r8};\n  ret;\n}\n", index & 1 ? "cp.async.wait_all" : "cp.async.wait_group 0");
}
static int async_copies_take_the_size_they_are_told(void)
{
    text t = { 0 };
    add(&t, ".version 7.8\n.target sm_80\n.address_size 64\n");
    for (int i = 0; i < COUNT(copies); i++) {
        size_t at = t.n;
        async_kernel(&t, &copies[i], i);
        char *regs = strstr(t.s + at, ".reg .b64");      // one more register file where a predicate is used
        text again = { 0 };
        add(&again, "%.*s.reg .pred %%p<2>; %s", (int)(regs - t.s), t.s, regs);
        free(t.s);
        t = again;
    }
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    unsigned char in[32][16], got[32][16];
    for (int i = 0; i < 512; i++) in[i / 16][i % 16] = (unsigned char)rand64();
    for (int k = 0; k < COUNT(copies); k++) {
        char name[16];
        snprintf(name, sizeof name, "k%d", k);
        CUdeviceptr in_dev = device(in, sizeof in), out = device(NULL, sizeof got);
        run(function(m, name), 1, 32, 0, ARGS(&in_dev, &out));
        fetch(got, out, sizeof got);
        for (int i = 0; i < 32; i++)
            for (int b = 0; b < 16; b++) {
                int size = copies[k].sized ? i % (copies[k].bytes + 1) : copies[k].bytes;
                CHECK(got[i][b] == (b >= copies[k].bytes ? 0x5a : b < size ? in[i][b] : 0));
            }
        CU.cuMemFree_v2(in_dev);
        CU.cuMemFree_v2(out);
    }
    return 0;
}

// Groups are counted per thread, empty ones too. Thread i commits i % 3 empty groups behind its copy; then `wait_group 1` lands the copy
// of those who committed any, and only of those: the card lets a copy land no earlier than a wait asks for it.
static const char groups[] = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n  .shared .align 16 .b8 box[512];\n  .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<4>;\n"
    "  mov.u32 %r0, %tid.x;\n  ld.param.u64 %d0, [in];\n  ld.param.u64 %d1, [out];\n  mul.wide.u32 %d2, %r0, 16;\n  add.s64 %d0, %d0, %d2;\n  mul.wide.u32 %d2, %r0, 8;\n  add.s64 %d1, %d1, %d2;\n"
    "  mov.u32 %r1, box;\n  shl.b32 %r2, %r0, 4;\n  add.s32 %r1, %r1, %r2;\n  mov.u32 %r3, 0x5a5a5a5a;\n  st.shared.u32 [%r1], %r3;\n"
    "  cp.async.cg.shared.global [%r1], [%d0], 16;\n  cp.async.commit_group;\n  rem.u32 %r4, %r0, 3;\n$more:\n  setp.eq.s32 %p0, %r4, 0;\n  @%p0 bra $wait;\n"
    "  cp.async.commit_group;\n  sub.s32 %r4, %r4, 1;\n  bra.uni $more;\n$wait:\n  bar.warp.sync 0xffffffff;\n  cp.async.wait_group 1;\n  ld.volatile.shared.u32 %r5, [%r1];\n  cp.async.wait_group 0;\n"
    "  ld.volatile.shared.u32 %r6, [%r1];\n  st.global.v2.u32 [%d1], {%r5, %r6};\n  ret;\n}\n";
static int async_groups_are_counted_by_each_thread(void)
{
    ORACLE_MODULE(m, groups);
    u32 in[32][4], got[32][2];
    for (int i = 0; i < 128; i++) in[i / 4][i % 4] = (u32)rand64();
    CUdeviceptr in_dev = device(in, sizeof in), out = device(NULL, sizeof got);
    run(function(m, "k"), 1, 32, 0, ARGS(&in_dev, &out));
    fetch(got, out, sizeof got);
    for (int i = 0; i < 32; i++) CHECK(got[i][0] == (i % 3 ? in[i][0] : 0x5a5a5a5a) && got[i][1] == in[i][0]);
    return 0;
}

// Every block leaves its number and passes a fence before it is counted; the last to be counted must see all numbers.
static const char fences[] = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 parts, .param .u64 count, .param .u64 out)\n{\n  .reg .b32 %r<8>; .reg .b64 %d<8>; .reg .pred %p<4>;\n"
    "  mov.u32 %r0, %ctaid.x;\n  mov.u32 %r1, %nctaid.x;\n  ld.param.u64 %d0, [parts];\n  ld.param.u64 %d1, [count];\n  ld.param.u64 %d2, [out];\n  mul.wide.u32 %d3, %r0, 4;\n  add.s64 %d3, %d0, %d3;\n"
    "  add.s32 %r2, %r0, 1;\n  st.global.u32 [%d3], %r2;\n  membar.cta;\n  membar.gl;\n  sub.s32 %r3, %r1, 1;\n  atom.global.inc.u32 %r4, [%d1], %r3;\n  setp.ne.s32 %p0, %r4, %r3;\n  @%p0 ret;\n"
    "  membar.gl;\n  mov.u32 %r5, 0;\n$next:\n  ld.volatile.global.u32 %r6, [%d0];\n  add.s32 %r5, %r5, %r6;\n  add.s64 %d0, %d0, 4;\n  sub.s32 %r1, %r1, 1;\n  setp.ne.s32 %p0, %r1, 0;\n  @%p0 bra $next;\n"
    "  st.global.u32 [%d2], %r5;\n  ret;\n}\n";
static int the_last_block_sees_what_the_others_left(void)
{
    ORACLE_MODULE(m, fences);
    u32 zero[300] = { 0 }, sum;
    CUdeviceptr parts = device(zero, sizeof zero), n = device(zero, 4), out = device(zero, 4);
    run(function(m, "k"), 300, 1, 0, ARGS(&parts, &n, &out));
    fetch(&sum, out, 4);
    CHECK(sum == 300 * 301 / 2);
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(loads_read_the_bytes);
    ORACLE(stores_write_the_bytes_and_no_others);
    ORACLE(parameters_arrive);
    ORACLE(atomics_join_in_some_order);
    ORACLE(exchanges_and_compares_are_atomic);
    ORACLE(async_copies_take_the_size_they_are_told);
    ORACLE(async_groups_are_counted_by_each_thread);
    ORACLE(the_last_block_sees_what_the_others_left);
    return oracle_end();
}
