// Oracle: what lanes tell each other: shuffles, votes, matches and reductions against a model that walks over 32 lanes, with all of them there and
// with some; special registers; barriers that return a value or count their threads.
#include "oracle.h"

typedef uint32_t u32;

// Kernel k<index>(in, out): a warp per block. A lane reads a, b, c and the mask of those who take part, which all 32 lanes know; the others step aside.
// `body` may use %r0 (a), %r1 (b), %r2 (c), %r3 (mask), %p0 (bit 0 of b) and leaves its results in %r8 and %r9.
static void warp_kernel(text *t, int index, const char *body)
{
    add(t, ".visible .entry k%d(.param .u64 in, .param .u64 out)\n{\n  .reg .b32 %%r<16>; .reg .b64 %%d<4>; .reg .pred %%p<4>;\n", index);
    add(t, "  mov.u32 %%r10, %%ctaid.x;\n  mov.u32 %%r11, %%laneid;\n  shl.b32 %%r12, %%r10, 5;\n  add.s32 %%r12, %%r12, %%r11;\n");
    add(t, "  ld.param.u64 %%d0, [in];\n  ld.param.u64 %%d1, [out];\n  mul.wide.u32 %%d2, %%r12, 16;\n  add.s64 %%d0, %%d0, %%d2;\n");
    add(t, "  mul.wide.u32 %%d2, %%r12, 8;\n  add.s64 %%d1, %%d1, %%d2;\n  ld.global.v4.u32 {%%r0, %%r1, %%r2, %%r3}, [%%d0];\n");
    add(t, "  and.b32 %%r13, %%r1, 1;\n  setp.ne.s32 %%p0, %%r13, 0;\n  mov.u32 %%r8, 0;\n  mov.u32 %%r9, 0;\n");
    add(t, "  shr.u32 %%r13, %%r3, %%r11;\n  and.b32 %%r13, %%r13, 1;\n  setp.eq.s32 %%p1, %%r13, 0;\n  @%%p1 bra $aside%d;\n", index);
    add(t, "  %s\n  bra.uni $store%d;\n$aside%d:\n  mov.u32 %%r8, 0xa51de;\n$store%d:\n  st.global.v2.u32 [%%d1], {%%r8, %%r9};\n  ret;\n}\n", body, index, index, index);
}

typedef struct lanes { u32 a[32], b[32], c[32], mask; } lanes;
// What lane `i` gets; false: undefined, not compared.
typedef bool (*model)(const lanes *w, int i, u32 *x, u32 *y);

// ---- shuffles (PTX manual, shfl.sync): the source lane by mode, and whether it lies in the segment

static bool shuffle(const lanes *w, int i, u32 *x, u32 *y, char mode)
{
    int b = w->b[i] & 31, clamp = w->c[i] & 31, segment = w->c[i] >> 8 & 31;
    int top = (i & segment) | (clamp & ~segment), bottom = i & segment, j;
    bool in;
    if (mode == 'u') { j = i - b; in = j >= top; }
    else { j = mode == 'd' ? i + b : mode == 'b' ? i ^ b : bottom | (b & ~segment); in = j <= top; }
    if (!in) j = i;
    *y = in;
    if (!(w->mask >> (j & 31) & 1)) return false;
    *x = w->a[j & 31];
    return true;
}
static bool shuffle_up(const lanes *w, int i, u32 *x, u32 *y) { return shuffle(w, i, x, y, 'u'); }
static bool shuffle_down(const lanes *w, int i, u32 *x, u32 *y) { return shuffle(w, i, x, y, 'd'); }
static bool shuffle_bfly(const lanes *w, int i, u32 *x, u32 *y) { return shuffle(w, i, x, y, 'b'); }
static bool shuffle_idx(const lanes *w, int i, u32 *x, u32 *y) { return shuffle(w, i, x, y, 'i'); }
static bool value_only(bool known, u32 *y) { *y = 0; return known; }
static bool shuffle_up1(const lanes *w, int i, u32 *x, u32 *y) { return value_only(shuffle(w, i, x, y, 'u'), y); }
static bool shuffle_down1(const lanes *w, int i, u32 *x, u32 *y) { return value_only(shuffle(w, i, x, y, 'd'), y); }
static bool shuffle_bfly1(const lanes *w, int i, u32 *x, u32 *y) { return value_only(shuffle(w, i, x, y, 'b'), y); }
static bool shuffle_idx1(const lanes *w, int i, u32 *x, u32 *y) { return value_only(shuffle(w, i, x, y, 'i'), y); }

// ---- votes, matches, reductions over the lanes of the mask

static u32 ballot(const lanes *w) { u32 r = 0; for (int j = 0; j < 32; j++) r |= (w->mask >> j & w->b[j] & 1) << j; return r; }
static bool vote_ballot(const lanes *w, int i, u32 *x, u32 *y) { (void)i; *x = ballot(w); *y = 0; return true; }
static bool vote_all(const lanes *w, int i, u32 *x, u32 *y) { (void)i; *x = ballot(w) == w->mask; *y = 0; return true; }
static bool vote_any(const lanes *w, int i, u32 *x, u32 *y) { (void)i; *x = ballot(w) != 0; *y = 0; return true; }
static bool vote_uni(const lanes *w, int i, u32 *x, u32 *y) { (void)i; *x = ballot(w) == w->mask || ballot(w) == 0; *y = 0; return true; }
static u32 equals(const lanes *w, int i) { u32 r = 0; for (int j = 0; j < 32; j++) r |= (u32)((w->mask >> j & 1) && w->a[j] == w->a[i]) << j; return r; }
static bool match_any(const lanes *w, int i, u32 *x, u32 *y) { *x = equals(w, i); *y = 0; return true; }
static bool match_all(const lanes *w, int i, u32 *x, u32 *y) { bool same = equals(w, i) == w->mask; *x = same ? w->mask : 0; *y = same; return true; }
static bool active(const lanes *w, int i, u32 *x, u32 *y) { (void)i; *x = w->mask; *y = 0; return true; }

static u32 joined(u32 a, u32 b, int op)
{
    switch (op) {
        case '+': return a + b;
        case '&': return a & b;
        case '|': return a | b;
        case '^': return a ^ b;
        case 'n': return (int32_t)a < (int32_t)b ? a : b;
        case 'x': return (int32_t)a > (int32_t)b ? a : b;
        case 'N': return a < b ? a : b;
        default:  return a > b ? a : b;
    }
}
static bool reduced(const lanes *w, u32 *x, u32 *y, int op)
{
    bool first = true;
    for (int j = 0; j < 32; j++) {
        if (!(w->mask >> j & 1)) continue;
        *x = first ? w->a[j] : joined(*x, w->a[j], op);
        first = false;
    }
    *y = 0;
    return true;
}
#define REDUCED(name, op) static bool name(const lanes *w, int i, u32 *x, u32 *y) { (void)i; return reduced(w, x, y, op); }
REDUCED(redux_add, '+') REDUCED(redux_and, '&') REDUCED(redux_or, '|') REDUCED(redux_xor, '^') REDUCED(redux_min_s, 'n') REDUCED(redux_max_s, 'x') REDUCED(redux_min_u, 'N') REDUCED(redux_max_u, 'X')

static const struct { const char *body; model want; } rows[] = {
    { "shfl.sync.up.b32 %r8|%p2, %r0, %r1, %r2, %r3; selp.u32 %r9, 1, 0, %p2;", shuffle_up },
    { "shfl.sync.down.b32 %r8|%p2, %r0, %r1, %r2, %r3; selp.u32 %r9, 1, 0, %p2;", shuffle_down },
    { "shfl.sync.bfly.b32 %r8|%p2, %r0, %r1, %r2, %r3; selp.u32 %r9, 1, 0, %p2;", shuffle_bfly },
    { "shfl.sync.idx.b32 %r8|%p2, %r0, %r1, %r2, %r3; selp.u32 %r9, 1, 0, %p2;", shuffle_idx },
    { "shfl.sync.up.b32 %r8, %r0, %r1, %r2, %r3;", shuffle_up1 }, { "shfl.sync.down.b32 %r8, %r0, %r1, %r2, %r3;", shuffle_down1 },
    { "shfl.sync.bfly.b32 %r8, %r0, %r1, %r2, %r3;", shuffle_bfly1 }, { "shfl.sync.idx.b32 %r8, %r0, %r1, %r2, %r3;", shuffle_idx1 },
    { "vote.sync.ballot.b32 %r8, %p0, %r3;", vote_ballot },
    { "vote.sync.all.pred %p2, %p0, %r3; selp.u32 %r8, 1, 0, %p2;", vote_all }, { "vote.sync.any.pred %p2, %p0, %r3; selp.u32 %r8, 1, 0, %p2;", vote_any },
    { "vote.sync.uni.pred %p2, %p0, %r3; selp.u32 %r8, 1, 0, %p2;", vote_uni },
    { "match.any.sync.b32 %r8, %r0, %r3;", match_any }, { "match.all.sync.b32 %r8|%p2, %r0, %r3; selp.u32 %r9, 1, 0, %p2;", match_all },
    { "activemask.b32 %r8;", active }, { "bar.warp.sync %r3; mov.u32 %r8, %r3;", active },
    { "redux.sync.add.s32 %r8, %r0, %r3;", redux_add }, { "redux.sync.add.u32 %r8, %r0, %r3;", redux_add }, { "redux.sync.and.b32 %r8, %r0, %r3;", redux_and },
    { "redux.sync.or.b32 %r8, %r0, %r3;", redux_or }, { "redux.sync.xor.b32 %r8, %r0, %r3;", redux_xor }, { "redux.sync.min.s32 %r8, %r0, %r3;", redux_min_s },
    { "redux.sync.max.s32 %r8, %r0, %r3;", redux_max_s }, { "redux.sync.min.u32 %r8, %r0, %r3;", redux_min_u }, { "redux.sync.max.u32 %r8, %r0, %r3;", redux_max_u },
};
enum { ROWS = sizeof rows / sizeof *rows, WARPS = 2048 };

// A quarter of the warps have all lanes there; values repeat often enough for matches, and in some warps are all the same.
static void random_lanes(lanes *w, int index)
{
    w->mask = index % 4 ? (u32)rand64() | 1u << (rand64() & 31) : 0xffffffff;
    for (int i = 0; i < 32; i++) {
        w->a[i] = index % 3 == 0 ? (u32)rand64() : index % 3 == 1 ? (u32)(rand64() % 5) - 2 : 77;
        w->b[i] = index % 5 == 0 ? 1 : index % 5 == 1 ? (u32)(rand64() & 30) : (u32)(rand64() & 31);
        w->c[i] = index % 2 ? 31 : (u32)(rand64() & 0x1f1f);
    }
}

static int lanes_get_what_the_model_gives(void)
{
    text t = { 0 };
    add(&t, ".version 7.8\n.target sm_80\n.address_size 64\n");
    for (int i = 0; i < ROWS; i++) warp_kernel(&t, i, rows[i].body);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    static lanes w[WARPS];
    static u32 in[WARPS][32][4], out[WARPS][32][2];
    int wrong = 0;
    for (int k = 0; k < ROWS; k++) {
        long compared = 0;
        for (int j = 0; j < WARPS; j++) {
            random_lanes(&w[j], j);
            for (int i = 0; i < 32; i++) { in[j][i][0] = w[j].a[i]; in[j][i][1] = w[j].b[i]; in[j][i][2] = w[j].c[i]; in[j][i][3] = w[j].mask; }
        }
        char name[16];
        snprintf(name, sizeof name, "k%d", k);
        CUdeviceptr in_dev = device(in, sizeof in), out_dev = device(NULL, sizeof out);
        run(function(m, name), WARPS, 32, 0, ARGS(&in_dev, &out_dev));
        fetch(out, out_dev, sizeof out);
        int bad = 0;
        for (int j = 0; j < WARPS; j++)
            for (int i = 0; i < 32; i++) {
                u32 x = 0, y = 0;
                if (!(w[j].mask >> i & 1)) { bad += out[j][i][0] != 0xa51de; continue; }
                if (!rows[k].want(&w[j], i, &x, &y)) continue;
                compared++;
                if (out[j][i][0] == x && out[j][i][1] == y) continue;
                if (!bad++) fprintf(stderr, "%s warp %d (mask %08x) lane %d: %x %x, not %x %x\n", rows[k].body, j, w[j].mask, i, out[j][i][0], out[j][i][1], x, y);
            }
        if (bad) wrong++;
        CHECK(compared > WARPS * 8);
        CU.cuMemFree_v2(in_dev);
        CU.cuMemFree_v2(out_dev);
    }
    CHECK(wrong == 0);
    return 0;
}

// ---- special registers, for a block and a grid of three dimensions

static const char *const specials[] = { "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z",
    "%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge" };
enum { SPECIALS = sizeof specials / sizeof *specials };

static int special_registers_name_the_thread(void)
{
    text t = { 0 };
    add(&t, ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 out)\n{\n  .reg .b32 %%r<8>; .reg .b64 %%d<4>;\n");
    static const char dims[] = "zyx";
    add(&t, "  mov.u32 %%r0, 0;\n");
    for (int i = 0; i < 6; i++)                          // the thread's place, blocks first: ((cz * ncy + cy) * ncx + cx) ... * ntx + tx
        add(&t, "  mov.u32 %%r1, %%n%s.%c;\n  mov.u32 %%r2, %%%s.%c;\n  mad.lo.s32 %%r0, %%r0, %%r1, %%r2;\n", i < 3 ? "ctaid" : "tid", dims[i % 3], i < 3 ? "ctaid" : "tid", dims[i % 3]);
    add(&t, "  ld.param.u64 %%d0, [out];\n  mul.wide.u32 %%d1, %%r0, %d;\n  add.s64 %%d0, %%d0, %%d1;\n", 4 * SPECIALS);
    for (int i = 0; i < SPECIALS; i++) add(&t, "  mov.u32 %%r3, %s;\n  st.global.u32 [%%d0+%d], %%r3;\n", specials[i], 4 * i);
    add(&t, "  ret;\n}\n");
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    enum { BX = 5, BY = 3, BZ = 4, GX = 3, GY = 2, GZ = 2, BLOCK = BX * BY * BZ, ALL = BLOCK * GX * GY * GZ };
    static u32 got[ALL][SPECIALS];
    CUdeviceptr out = device(NULL, sizeof got);
    CHECK(CU.cuLaunchKernel(function(m, "k"), GX, GY, GZ, BX, BY, BZ, 0, NULL, ARGS(&out), NULL) == 0 && CU.cuCtxSynchronize() == 0);
    fetch(got, out, sizeof got);
    for (u32 i = 0; i < ALL; i++) {
        u32 tid = i % BLOCK, block = i / BLOCK, lane = tid % 32, bit = 1u << lane;
        const u32 want[SPECIALS] = { tid % BX, tid / BX % BY, tid / BX / BY, BX, BY, BZ, block % GX, block / GX % GY, block / GX / GY, GX, GY, GZ,
            lane, bit, bit - 1, bit | (bit - 1), ~(bit | (bit - 1)), ~(bit - 1) };
        for (int k = 0; k < SPECIALS; k++) CHECK(got[i][k] == want[k]);
    }
    return 0;
}

// ---- barriers

// bar.red over 96 threads; then warps 0 and 1 pass numbers through shared memory by barrier 3, which counts 64 threads, while warp 2 does not come.
static const char barriers[] = ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n"
    "  .shared .align 4 .b8 box[128];\n  .reg .b32 %r<16>; .reg .b64 %d<4>; .reg .pred %p<8>;\n  mov.u32 %r0, %tid.x;\n  ld.param.u64 %d0, [in];\n  ld.param.u64 %d1, [out];\n"
    "  mul.wide.u32 %d2, %r0, 4;\n  add.s64 %d0, %d0, %d2;\n  ld.global.u32 %r1, [%d0];\n  setp.ne.s32 %p0, %r1, 0;\n"
    "  bar.red.or.pred %p1, 0, %p0;\n  selp.u32 %r2, 1, 0, %p1;\n  bar.red.and.pred %p1, 0, %p0;\n  selp.u32 %r3, 1, 0, %p1;\n  bar.red.popc.u32 %r4, 0, %p0;\n"
    "  mov.u32 %r6, box;\n  mov.u32 %r5, 0;\n  setp.ge.u32 %p2, %r0, 64;\n  @%p2 bra $out;\n  setp.ge.u32 %p3, %r0, 32;\n  and.b32 %r7, %r0, 31;\n  shl.b32 %r7, %r7, 2;\n  add.s32 %r7, %r7, %r6;\n"
    "  @%p3 bra $take;\n  mul.lo.s32 %r8, %r0, 3;\n  st.shared.u32 [%r7], %r8;\n  bar.sync 3, 64;\n  bra.uni $out;\n$take:\n  bar.sync 3, 64;\n  ld.shared.u32 %r5, [%r7];\n"
    "$out:\n  mul.wide.u32 %d2, %r0, 16;\n  add.s64 %d1, %d1, %d2;\n  st.global.v4.u32 [%d1], {%r2, %r3, %r4, %r5};\n  ret;\n}\n";

static int barriers_gather_and_count(void)
{
    ORACLE_MODULE(m, barriers);
    static const int on[] = { 0, 1, 40, 95, 96 };        // how many threads say yes
    for (size_t k = 0; k < sizeof on / sizeof *on; k++) {
        u32 in[96], got[96][4];
        for (int i = 0; i < 96; i++) in[(i * 37) % 96] = i < on[k] ? 5 : 0;
        CUdeviceptr in_dev = device(in, sizeof in), out = device(NULL, sizeof got);
        run(function(m, "k"), 1, 96, 0, ARGS(&in_dev, &out));
        fetch(got, out, sizeof got);
        for (u32 i = 0; i < 96; i++) {
            CHECK(got[i][0] == (on[k] > 0) && got[i][1] == (on[k] == 96) && got[i][2] == (u32)on[k]);
            CHECK(got[i][3] == (i >= 32 && i < 64 ? 3 * (i - 32) : 0));
        }
        CU.cuMemFree_v2(in_dev);
        CU.cuMemFree_v2(out);
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(lanes_get_what_the_model_gives);
    ORACLE(special_registers_name_the_thread);
    ORACLE(barriers_gather_and_count);
    return oracle_end();
}
