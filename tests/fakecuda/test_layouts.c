// Oracle: where each lane's registers lie in the matrices of mma and ldmatrix. One factor holds a single 1, the other and the sum tell every place
// apart, so that a transposed or mirrored layout cannot pass; then sums of random numbers within what the hardware is known to promise.
#include "oracle.h"
#include <math.h>

// Fragments of m16n8k16 as the PTX manual gives them; lane = 4 * group + t. A holds rows group and group + 8, B and the sum columns by 2 t.
static void fragment_a(uint16_t a[16][16], int lane, uint32_t r[4])
{
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) {
        int row = g + (i & 1) * 8, k = 2 * t + (i >> 1) * 8;
        r[i] = a[row][k] | (uint32_t)a[row][k + 1] << 16;
    }
}
static void fragment_b(uint16_t b[16][8], int lane, uint32_t r[2])
{
    int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 2; i++) r[i] = b[2 * t + 8 * i][g] | (uint32_t)b[2 * t + 8 * i + 1][g] << 16;
}
static int sum_row(int lane, int i) { return lane / 4 + (i >> 1) * 8; }
static int sum_col(int lane, int i) { return 2 * (lane % 4) + (i & 1); }

typedef struct product { uint16_t a[16][16], b[16][8]; float c[16][8], d[16][8]; } product;

static void mma_kernel(text *t)
{
    add(t, ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry mma(.param .u64 in, .param .u64 out)\n{\n");
    add(t, "  .reg .b32 %%r<16>; .reg .f32 %%f<8>; .reg .b64 %%d<4>;\n  mov.u32 %%r10, %%ctaid.x;\n  mov.u32 %%r11, %%laneid;\n");
    add(t, "  shl.b32 %%r10, %%r10, 5;\n  add.s32 %%r10, %%r10, %%r11;\n  ld.param.u64 %%d0, [in];\n  ld.param.u64 %%d1, [out];\n");
    add(t, "  mul.wide.u32 %%d2, %%r10, 40;\n  add.s64 %%d0, %%d0, %%d2;\n  mul.wide.u32 %%d2, %%r10, 16;\n  add.s64 %%d1, %%d1, %%d2;\n");
    for (int i = 0; i < 6; i++) add(t, "  ld.global.u32 %%r%d, [%%d0+%d];\n", i, 4 * i);
    for (int i = 0; i < 4; i++) add(t, "  ld.global.f32 %%f%d, [%%d0+%d];\n", i, 24 + 4 * i);
    add(t, "  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%%f4, %%f5, %%f6, %%f7}, {%%r0, %%r1, %%r2, %%r3}, {%%r4, %%r5}, {%%f0, %%f1, %%f2, %%f3};\n");
    for (int i = 0; i < 4; i++) add(t, "  st.global.f32 [%%d1+%d], %%f%d;\n", 4 * i, 4 + i);
    add(t, "  ret;\n}\n");
}

static void multiply(CUfunction f, product *p, int n)
{
    uint32_t (*in)[32][10] = calloc((size_t)n, sizeof *in);
    float (*out)[32][4] = calloc((size_t)n, sizeof *out);
    for (int j = 0; j < n; j++)
        for (int lane = 0; lane < 32; lane++) {
            fragment_a(p[j].a, lane, in[j][lane]);
            fragment_b(p[j].b, lane, in[j][lane] + 4);
            for (int i = 0; i < 4; i++) in[j][lane][6 + i] = f_bits(p[j].c[sum_row(lane, i)][sum_col(lane, i)]);
        }
    CUdeviceptr in_dev = device(in, (size_t)n * sizeof *in), out_dev = device(NULL, (size_t)n * sizeof *out);
    run(f, (unsigned)n, 32, 0, ARGS(&in_dev, &out_dev));
    fetch(out, out_dev, (size_t)n * sizeof *out);
    for (int j = 0; j < n; j++)
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < 4; i++) p[j].d[sum_row(lane, i)][sum_col(lane, i)] = out[j][lane][i];
    free(in);
    free(out);
    CU.cuMemFree_v2(in_dev);
    CU.cuMemFree_v2(out_dev);
}

static float distinct(int row, int col) { return 1000.0f + 8.0f * (float)row + (float)col; }

// A has a single 1 at (row, k): row `row` of the product gains row k of B, which numbers its places.
static int one_hot_a(CUfunction f)
{
    product *p = calloc(256, sizeof *p);
    for (int j = 0; j < 256; j++) {
        p[j].a[j / 16][j % 16] = bf16_of(1.0f);
        for (int k = 0; k < 16; k++) for (int c = 0; c < 8; c++) p[j].b[k][c] = bf16_of((float)(1 + k * 8 + c));
        for (int r = 0; r < 16; r++) for (int c = 0; c < 8; c++) p[j].c[r][c] = distinct(r, c);
    }
    multiply(f, p, 256);
    for (int j = 0; j < 256; j++)
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 8; c++) CHECK(p[j].d[r][c] == distinct(r, c) + (r == j / 16 ? (float)(1 + j % 16 * 8 + c) : 0.0f));
    free(p);
    return 0;
}

// B has a single 1 at (k, col): column `col` gains column k of A.
static int one_hot_b(CUfunction f)
{
    product *p = calloc(128, sizeof *p);
    for (int j = 0; j < 128; j++) {
        p[j].b[j / 8][j % 8] = bf16_of(1.0f);
        for (int r = 0; r < 16; r++) for (int k = 0; k < 16; k++) p[j].a[r][k] = bf16_of((float)(r * 16 + k));
        for (int r = 0; r < 16; r++) for (int c = 0; c < 8; c++) p[j].c[r][c] = distinct(r, c);
    }
    multiply(f, p, 128);
    for (int j = 0; j < 128; j++)
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 8; c++) CHECK(p[j].d[r][c] == distinct(r, c) + (c == j % 8 ? (float)(r * 16 + j / 8) : 0.0f));
    free(p);
    return 0;
}

// Hardware adds the 17 terms with at least 24 bits below the largest and may cut the rest off: 17 * 2^-23 of the sum of magnitudes at the worst.
static int random_sums(CUfunction f, double *worst)
{
    product *p = calloc(64, sizeof *p);
    for (int j = 0; j < 64; j++) {
        for (int i = 0; i < 256; i++) p[j].a[i / 16][i % 16] = bf16_of((float)rand_pm(i % 7 ? 1 : 100));
        for (int i = 0; i < 128; i++) { p[j].b[i / 8][i % 8] = bf16_of((float)rand_pm(1)); p[j].c[i / 8][i % 8] = (float)rand_pm(j % 2 ? 1 : 1000); }
    }
    multiply(f, p, 64);
    *worst = 0;
    for (int j = 0; j < 64; j++)
        for (int r = 0; r < 16; r++)
            for (int c = 0; c < 8; c++) {
                double sum = p[j].c[r][c], size = fabs(sum);
                for (int k = 0; k < 16; k++) {
                    double v = bf16_value(p[j].a[r][k]) * bf16_value(p[j].b[k][c]);
                    sum += v;
                    size += fabs(v);
                }
                double off = fabs(p[j].d[r][c] - sum) / size;
                if (off > *worst) *worst = off;
            }
    free(p);
    CHECK(*worst <= 17 * 0x1p-23);
    return 0;
}

static int with_mma(int (*test)(CUfunction))
{
    text t = { 0 };
    mma_kernel(&t);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    int line = 0;
    static const char *const modes[] = { "ordered", "truncated" };
    for (int i = 0; i < 2 && !line; i++) {
        if (FC.set("mma", modes[i]) != 1) { fprintf(stderr, "no mode %s\n", modes[i]); line = __LINE__; break; }
        line = test(function(m, "mma"));
    }
    FC.set("mma", modes[0]);
    CU.cuModuleUnload(m);
    return line;
}
static int mma_places_each_element_of_a(void) { return with_mma(one_hot_a); }
static int mma_places_each_element_of_b(void) { return with_mma(one_hot_b); }

// The two modes are both right and not the same: the second cuts off what the first rounds.
static double worst_of_mode[2];
static int both(CUfunction f) { static int mode; return random_sums(f, &worst_of_mode[mode++ & 1]); }
static int mma_adds_within_the_hardwares_bound(void)
{
    int line = with_mma(both);
    if (line || listing) return line;
    printf("    worst error of the sum of magnitudes: ordered %.3g, truncated %.3g\n", worst_of_mode[0], worst_of_mode[1]);
    CHECK(worst_of_mode[0] != worst_of_mode[1]);
    return 0;
}

// ---- ldmatrix: shared memory holds at each 16-bit place the number of that place; a lane gives the address of a row

static void ldmatrix_kernel(text *t, int count, bool trans)
{
    add(t, ".visible .entry x%d%s(.param .u64 in, .param .u64 out)\n{\n", count, trans ? "t" : "");
    add(t, "  .shared .align 16 .b8 tile_x%d%s[2048];\n", count, trans ? "t" : "");
    add(t, "  .reg .b32 %%r<16>; .reg .b64 %%d<4>; .reg .pred %%p;\n  mov.u32 %%r10, %%laneid;\n  ld.param.u64 %%d0, [in];\n  ld.param.u64 %%d1, [out];\n");
    add(t, "  mov.u32 %%r14, tile_x%d%s;\n", count, trans ? "t" : "");
    add(t, "  mov.u32 %%r11, %%r10;\n$L%d%d:\n  shl.b32 %%r12, %%r11, 1;\n  add.s32 %%r13, %%r12, 1;\n  shl.b32 %%r13, %%r13, 16;\n  or.b32 %%r13, %%r13, %%r12;\n", count, trans);
    add(t, "  shl.b32 %%r12, %%r11, 2;\n  add.s32 %%r12, %%r12, %%r14;\n  st.shared.u32 [%%r12], %%r13;\n");
    add(t, "  add.s32 %%r11, %%r11, 32;\n  setp.lt.u32 %%p, %%r11, 512;\n  @%%p bra $L%d%d;\n  bar.sync 0;\n", count, trans);
    add(t, "  mul.wide.u32 %%d2, %%r10, 4;\n  add.s64 %%d0, %%d0, %%d2;\n  ld.global.u32 %%r12, [%%d0];\n  add.s32 %%r12, %%r12, %%r14;\n");
    add(t, "  ldmatrix.sync.aligned.m8n8.x%d%s.shared.b16 {", count, trans ? ".trans" : "");
    for (int i = 0; i < count; i++) add(t, "%s%%r%d", i ? ", " : "", i);
    add(t, "}, [%%r12];\n  mul.wide.u32 %%d2, %%r10, %d;\n  add.s64 %%d1, %%d1, %%d2;\n", 4 * count);
    for (int i = 0; i < count; i++) add(t, "  st.global.u32 [%%d1+%d], %%r%d;\n", 4 * i, i);
    add(t, "  ret;\n}\n");
}

static int ldmatrix_places_each_element(void)
{
    text t = { 0 };
    add(&t, ".version 7.8\n.target sm_80\n.address_size 64\n");
    for (int i = 0; i < 6; i++) ldmatrix_kernel(&t, 1 << i / 2, i & 1);
    CUmodule m = oracle_module(t.s);
    free(t.s);
    if (!m) return 0;
    for (int i = 0; i < 6; i++) {
        char name[8];
        int count = 1 << i / 2;
        snprintf(name, sizeof name, "x%d%s", count, i & 1 ? "t" : "");
        for (int round = 0; round < 8; round++) {
            uint32_t rows[32], got[32][4];               // rows lie anywhere, as multiples of 16 bytes; no two rounds alike
            for (int lane = 0; lane < 32; lane++) rows[lane] = (uint32_t)(rand64() % 128) * 16;
            CUdeviceptr in = device(rows, sizeof rows), out = device(NULL, sizeof got);
            run(function(m, name), 1, 32, 0, ARGS(&in, &out));
            fetch(got, out, (size_t)count * 128);
            for (int lane = 0; lane < 32; lane++)
                for (int k = 0; k < count; k++)
                    for (int h = 0; h < 2; h++) {
                        int row = lane / 4, col = 2 * (lane % 4) + h;
                        uint32_t want = i & 1 ? rows[k * 8 + col] / 2 + (uint32_t)row : rows[k * 8 + row] / 2 + (uint32_t)col;
                        CHECK((((uint32_t *)got)[lane * count + k] >> 16 * h & 0xffff) == want);
                    }
            CU.cuMemFree_v2(in);
            CU.cuMemFree_v2(out);
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (oracle_begin(argc, argv)) fresh();
    ORACLE(mma_places_each_element_of_a);
    ORACLE(mma_places_each_element_of_b);
    ORACLE(mma_adds_within_the_hardwares_bound);
    ORACLE(ldmatrix_places_each_element);
    return oracle_end();
}
