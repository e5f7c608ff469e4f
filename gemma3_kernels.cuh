// gemma3_kernels.cuh: the CUDA kernels of gemma3.h. The header carries a copy of this file, one string per line; after an edit run `make embed`.
//
// Rules of this file
//  - It includes nothing and asks for no header of the CUDA toolkit: NVRTC compiles it on machines that have none. Types of 16 and 8 bits are
//    plain integers whose bits are moved by hand; what C++ has no word for is inline PTX.
//  - It compiles with NVRTC 12 and 13 for sm_80 and up, to CUBIN for the card that is there, to PTX where NVRTC does not know the card yet.
//  - Kernels are extern "C" and named g3k_...; device functions are static, named g3k__... . No printf, no assert, no allocation, no globals
//    that are written.
//  - Numbers as on the CPU: sums, norms, softmax and the residual stream are float; float16 is never used for activations. An order of summation
//    depends on shapes alone, never on timing: no floating-point atomics, so that the same call gives the same bits.
//  - Indices into weights and caches are size_t from the first multiplication on. Nothing is read or written outside the arrays named above a
//    kernel, whatever the launch: a kernel checks its own bounds where the grid does not fit them exactly.
//  - Above each kernel: the formula, the shapes, the launch. What changes from token to token (positions, counts) is read from device memory,
//    since a recorded graph replays the arguments of its first run.
//  - What is compiled: where G3K_HEAD_DIM, G3K_GROUP and G3K_KV are defined, the kernels of attention for them; else all others, and with G3K_ALL
//    those of attention for the published models too. G3K_FORMATS is a mask of weight formats, bit g3k__format; G3K_PRECISE 1 multiplies near float32.
//  - Spaces, printable ASCII, lines under 300 bytes, no two question marks in a row: the file lives on as C strings.

// ---- the header's own structs, as kernel arguments: same members, same sizes

enum g3k__format { G3K_F32, G3K_BF16, G3K_F16, G3K_E4M3, G3K_E5M2, G3K_NF4, G3K_FP4 };

#if defined(G3K_HEAD_DIM)
#define G3K_ATTENTION 1
#define G3K_REST      0
#else
#define G3K_ATTENTION defined(G3K_ALL)
#define G3K_REST      1
#endif
#ifndef G3K_FORMATS
#define G3K_FORMATS 0x7f
#endif
#define G3K_HAS(format) ((G3K_FORMATS >> (format) & 1) != 0)

typedef unsigned char      g3k__u8;
typedef unsigned short     g3k__u16;
typedef unsigned           g3k__u32;
typedef unsigned long long g3k__u64;

struct g3k__bits {
    int format;
    const void *data, *absmax;
    const float *nested_absmax, *nested_map;
    float nested_offset;
    unsigned blocksize, nested_blocksize;
    const void *scale;
    int scale_format;
    bool tiled;
    signed char map;
};
struct g3k__seg  { int rows; g3k__bits bits, bias; };
struct g3k__mat  { int rows, cols, n_segs; g3k__seg seg[3]; bool transposed; };
struct g3k__norm { bool layer; int dim; float eps; g3k__bits w, b; };
struct g3k__attn { int heads, kv_heads, head_dim, window; float scale, theta, factor; int angles; g3k__norm q_norm, k_norm; };
struct g3k__kv   { int format, rows, kv_heads, head_dim; void *k, *v; float *k_scale, *v_scale; };
struct g3k__row  { int pos, span, seq; };
static_assert(sizeof(g3k__bits) == 72 && sizeof(g3k__mat) == 480 && sizeof(g3k__norm) == 160 && sizeof(g3k__attn) == 352 && sizeof(g3k__kv) == 48 && sizeof(g3k__row) == 12, "as in the header");

// ---- numbers

static __device__ __forceinline__ float g3k__bf16(g3k__u16 h) { return __uint_as_float((g3k__u32)h << 16); }

static __device__ __forceinline__ float g3k__f16(g3k__u16 h)
{
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

// e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities, 0x7f and 0xff are NaN. No instruction of sm_80 knows it.
static __device__ __forceinline__ float g3k__e4m3(g3k__u8 b)
{
    const g3k__u32 sign = (g3k__u32)(b & 0x80) << 24, rest = b & 0x7f;
    if (rest == 0x7f) return __uint_as_float(0x7fc00000u);
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 20) * 0x1p120f));      // the exponent's bias: 127 - 7
}

static __device__ __constant__ const float g3k__nf4[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f
};
static __device__ __constant__ const float g3k__fp4[16] = {
    0.0f, 0.0625f / 12, 8.0f / 12, 12.0f / 12, 4.0f / 12, 6.0f / 12, 2.0f / 12, 3.0f / 12, 0.0f, -0.0625f / 12, -8.0f / 12, -12.0f / 12, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12
};

// scale[b] = absmax[b], or with double quantisation map[absmax[b]] * nested_absmax[b / nested_blocksize] + offset, the product rounded before the sum.
// b: the block's number in the matrix; at: where its absmax lies, which is b unless the rows lie in tiles.
static __device__ __forceinline__ float g3k__scale(const g3k__bits &w, size_t b, size_t at)
{
    if (!w.nested_absmax) return ((const float *)w.absmax)[at];
    return __fadd_rn(__fmul_rn(w.nested_map[((const g3k__u8 *)w.absmax)[at]], w.nested_absmax[b / w.nested_blocksize]), w.nested_offset);
}

// Tiles: 16 rows of a matrix lie interleaved in units of 8 bytes, [rows / 16][row bytes / 8][16][8]; their scales [rows / 16][blocks of a row][16].
// So 32 bytes of each of 16 rows are 512 bytes that a warp loads at once, 16 bytes a lane: lane 4 u + ... see g3k_linear.
static __device__ __forceinline__ size_t g3k__tiled(size_t row, size_t byte, size_t row_bytes)
{
    return row / 16 * 16 * row_bytes + byte / 8 * 128 + row % 16 * 8 + byte % 8;
}

// Element (row, col) of a matrix of `cols` columns, in any format, tiled or as stored: exact, and slow. What is fast decodes for itself.
static __device__ __forceinline__ float g3k__get(const g3k__bits &w, size_t row, size_t col, size_t cols)
{
    const size_t i = row * cols + col;
    const char *data = (const char *)w.data;
    if (G3K_HAS(G3K_NF4) || G3K_HAS(G3K_FP4))
        if (w.format == G3K_NF4 || w.format == G3K_FP4) {
            const size_t b = i / w.blocksize, per_row = cols / w.blocksize;
            const g3k__u8 byte = (g3k__u8)data[w.tiled ? g3k__tiled(row, col / 2, cols / 2) : i / 2];
            const int code = i & 1 ? byte & 15 : byte >> 4;
            return (w.format == G3K_NF4 ? g3k__nf4[code] : g3k__fp4[code]) * g3k__scale(w, b, w.tiled ? row / 16 * 16 * per_row + col / w.blocksize * 16 + row % 16 : b);
        }
    switch (w.format) {
    case G3K_F32:  return ((const float *)data)[i];
    case G3K_F16:  return g3k__f16(((const g3k__u16 *)data)[i]);
    case G3K_BF16: return g3k__bf16(*(const g3k__u16 *)(data + (w.tiled ? g3k__tiled(row, 2 * col, 2 * cols) : 2 * i)));
    }
    if (G3K_HAS(G3K_E4M3) || G3K_HAS(G3K_E5M2)) {
        const float f = w.format == G3K_E4M3 ? g3k__e4m3(((const g3k__u8 *)data)[i]) : g3k__f16((g3k__u16)(((const g3k__u8 *)data)[i] << 8));
        if (!w.scale) return f;
        return f * (w.scale_format == G3K_F32 ? *(const float *)w.scale : w.scale_format == G3K_BF16 ? g3k__bf16(*(const g3k__u16 *)w.scale) : g3k__f16(*(const g3k__u16 *)w.scale));
    }
    return 0.0f;
}

// Element i of a norm's weights or of a bias: float, bf16 or half. The host sees to it that they are no other format.
static __device__ __forceinline__ float g3k__dense(const g3k__bits &w, int i)
{
    if (w.format == G3K_F32) return ((const float *)w.data)[i];
    const g3k__u16 h = ((const g3k__u16 *)w.data)[i];
    return w.format == G3K_BF16 ? g3k__bf16(h) : g3k__f16(h);
}

// ---- sums over a warp and a block: the same tree for every run

static __device__ __forceinline__ float g3k__warp_sum(float v)
{
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// The sum of f(i) for i < n, in every thread of the block, whatever its size: 256 lanes take i, i + 256, ..., 32 of them are added as a tree, the 8 results
// in order. room: 8 floats of shared memory, free for use again on return.
template <class F> static __device__ __forceinline__ float g3k__block_sum(int n, float *room, F f)
{
    const int lane = (int)threadIdx.x & 31, warps = (int)blockDim.x >> 5;
    for (int v = (int)threadIdx.x >> 5; v < 8; v += warps) {
        float s = 0.0f;
        for (int i = 32 * v + lane; i < n; i += 256) s = __fadd_rn(s, f(i));
        s = g3k__warp_sum(s);
        if (lane == 0) room[v] = s;
    }
    __syncthreads();
    float s = room[0];
    for (int v = 1; v < 8; v++) s += room[v];
    __syncthreads();
    return s;
}

static __device__ __forceinline__ float g3k__root(float squares, int n, float eps) { return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)n), eps))); }

static __device__ __forceinline__ float g3k__fresh(const float *p) { return *(const volatile float *)p; }      // as the other blocks of this launch left it

// True in all threads of the block that comes last to the ticket, which is 0 before and after the launch. What the other blocks wrote before is then
// seen. room: 4 bytes of shared memory.
static __device__ __forceinline__ bool g3k__last_block(unsigned *ticket, unsigned blocks, void *room)
{
    unsigned *last = (unsigned *)room;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(ticket, 1u) == blocks - 1;
        if (*last) *ticket = 0;
    }
    __syncthreads();
    if (*last) __threadfence();
    return *last;
}

// ---- gelu, and the sum that ends a branch: parts of several kernels

// 0.5 x (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
// Where products and sums are fused is written out, here and below: left to the compiler it depends on what stands around, and so would the bits.
static __device__ __forceinline__ float g3k__gelu(float x)
{
    return __fdiv_rn(x, __fadd_rn(1.0f, expf(__fmul_rn(-1.595769122f, fmaf(__fmul_rn(__fmul_rn(0.044715f, x), x), x, x)))));
}

// One row: x += norm(y), or x += y where norm.dim is 0. y may have been written by other blocks of this launch.
static __device__ __forceinline__ void g3k__add_row(float *x, const float *y, const g3k__norm &norm, int dim, float *room)
{
    float scale = 1.0f;
    if (norm.dim) scale = g3k__root(g3k__block_sum(dim, room, [&](int i) { const float v = g3k__fresh(y + i); return __fmul_rn(v, v); }), dim, norm.eps);
    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) x[i] = fmaf(__fmul_rn(g3k__fresh(y + i), scale), norm.dim ? 1.0f + g3k__dense(norm.w, i) : 1.0f, x[i]);
}

// ==================================================================================================================
// Matrix products
// ==================================================================================================================

#if G3K_REST

#ifndef G3K_PRECISE
#define G3K_PRECISE 0
#endif

// y[t][r] = sum over k of W[r][k] h[t][k] + b[r],  h = x, or with a norm h[t][k] = x[t][k] (1 + w[k]) / sqrt(mean of x[t]^2 + eps)
//
// Tensor cores multiply 16 rows of W by 16 columns, times 8 rows of x (mma.m16n8k16, bf16 in, float out), whether there are 8 rows of x or one:
// the card waits for W, not for them. W comes in tiles (g3k__tiled): of 32 bytes of each of 16 rows, lane 4 g + t loads bytes [8 t, 8 t + 8) of
// rows 2 g and 2 g + 1, 16 bytes that lie together, and keeps them: mma's row g is row 2 g of the tile, its row g + 8 is row 2 g + 1, and its
// columns are dealt out so that the four numbers which a lane holds of a row in step s are columns 4 s .. 4 s + 3 of its part. A and B agree
// about that, so nothing is shuffled. What a lane has of the result: rows 2 g and 2 g + 1, rows 2 t and 2 t + 1 of x.
//
// Codes become bf16 by byte permutes of tables in registers; the 64 products of a block are summed first, then multiplied by the block's scale.
// G3K_PRECISE: codes are sums of two bf16 numbers, h of three, and what matters of the six products is added: near float32.
// The norm's factor 1 / sqrt(...) is taken out of the sum: the squares are gathered in the same pass.
//
// A block does 2 tiles with `splits` warps each, which share the columns, in chunks of 64; their sums are added in order. Which warp does what
// depends on the shape of W alone, so a row of y has the same bits whatever the number of rows of x.

struct g3k__fuse {                       // what is done with the result besides; all null: nothing
    float *act;                         // W is gate over up: act[t][i] = gelu(gate[i]) up[i] instead of y
    float *x;                           // the block that comes last does x += norm(y), or x += y where post.dim is 0
    unsigned *ticket;
    g3k__norm post;
};

// Distinct tables of double quantisation; a weight's `map` is its number here, or -1: then it is read where it lies.
__constant__ float g3k_maps[4][256];

static __device__ __forceinline__ void g3k__mma(float c[4], const g3k__u32 a[4], const g3k__u32 b[2])
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ __forceinline__ g3k__u32 g3k__pair(float low, float high)       // two numbers as bf16, side by side
{
    g3k__u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

static __device__ __forceinline__ uint4 g3k__stream(const void *p)                // 16 bytes that are read once
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// The bf16 bits of the 16 codes, and of what is left of them: low bytes of codes 0-3, 4-7, 8-11, 12-15, then high bytes.
__constant__ const g3k__u32 g3k_codes[2][2][8] = {
    { { 0xca063280u, 0x00ba3d92u, 0xad7c25a3u, 0x803910e2u, 0xbebfbfbfu, 0x00bdbebeu, 0x3e3e3e3du, 0x3f3f3f3eu },
      { 0xcad66700u, 0x0071553bu, 0xce9c5420u, 0x009ef537u, 0xb9baba00u, 0x00b9b93au, 0x3737b9b7u, 0x003938bau } },
    { { 0x802bab00u, 0x802b00abu, 0x802bab00u, 0x802b00abu, 0x3f3f3b00u, 0x3e3e3f3eu, 0xbfbfbb00u, 0xbebebfbeu },
      { 0x00ab2b00u, 0x00ab002bu, 0x00ab2b00u, 0x00ab002bu, 0x00bab700u, 0x00b900bau, 0x003a3700u, 0x0039003au } }
};

// Four codes, bytes `at` and `at` + 1 of the word (at 0 or 2; the high nibble comes first), as two pairs of bf16.
static __device__ __forceinline__ void g3k__decode(const g3k__u32 table[8], g3k__u32 word, int at, g3k__u32 &first, g3k__u32 &second)
{
    const g3k__u32 nibbles = at ? word >> 16 : word, eight = nibbles & 0x7777u, upper = __byte_perm(0x0000ff00u, 0, nibbles >> 3 & 0x1111u);      // upper: of codes 8 to 15
    const g3k__u32 low = (__byte_perm(table[0], table[1], eight) & ~upper) | (__byte_perm(table[2], table[3], eight) & upper);
    const g3k__u32 high = (__byte_perm(table[4], table[5], eight) & ~upper) | (__byte_perm(table[6], table[7], eight) & upper);
    first = __byte_perm(low, high, 0x4051);
    second = __byte_perm(low, high, 0x6273);
}

static __device__ __forceinline__ float4 g3k__gain(const g3k__norm &norm, int k)
{
    if (norm.w.format == G3K_BF16) {
        const uint2 w = *(const uint2 *)((const g3k__u16 *)norm.w.data + k);
        return make_float4(1.0f + g3k__bf16((g3k__u16)w.x), 1.0f + g3k__bf16((g3k__u16)(w.x >> 16)), 1.0f + g3k__bf16((g3k__u16)w.y), 1.0f + g3k__bf16((g3k__u16)(w.y >> 16)));
    }
    return make_float4(1.0f + g3k__dense(norm.w, k), 1.0f + g3k__dense(norm.w, k + 1), 1.0f + g3k__dense(norm.w, k + 2), 1.0f + g3k__dense(norm.w, k + 3));
}

template <int NT> struct g3k__columns {  // 8 NT rows of x
    const float *x[NT];                 // the lane's, of each eight; nullptr: not there
    float squares[NT];
    bool normed;
};

// acc += A B for one step of 16 columns: A in one or two terms, B made of four numbers of each of the lane's rows of x.
template <int NT> static __device__ __forceinline__ void g3k__step(float acc[NT][4], const g3k__u32 a[4], const g3k__u32 rest[4], bool has_rest, g3k__columns<NT> &B, const g3k__norm &norm, int k)
{
    float4 gain = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    if (B.normed) gain = g3k__gain(norm, k);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (B.x[i]) v = *(const float4 *)(B.x[i] + k);
        if (B.normed) {
            B.squares[i] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
            v.x *= gain.x; v.y *= gain.y; v.z *= gain.z; v.w *= gain.w;
        }
        g3k__u32 b[2] = { g3k__pair(v.x, v.y), g3k__pair(v.z, v.w) };
        g3k__mma(acc[i], a, b);
        if (!G3K_PRECISE) continue;
        if (has_rest) g3k__mma(acc[i], rest, b);
        v.x -= g3k__bf16((g3k__u16)b[0]); v.y -= g3k__bf16((g3k__u16)(b[0] >> 16)); v.z -= g3k__bf16((g3k__u16)b[1]); v.w -= g3k__bf16((g3k__u16)(b[1] >> 16));
        b[0] = g3k__pair(v.x, v.y); b[1] = g3k__pair(v.z, v.w);
        g3k__mma(acc[i], a, b);
        if (has_rest) g3k__mma(acc[i], rest, b);
        v.x -= g3k__bf16((g3k__u16)b[0]); v.y -= g3k__bf16((g3k__u16)(b[0] >> 16)); v.z -= g3k__bf16((g3k__u16)b[1]); v.w -= g3k__bf16((g3k__u16)(b[1] >> 16));
        b[0] = g3k__pair(v.x, v.y); b[1] = g3k__pair(v.z, v.w);
        g3k__mma(acc[i], a, b);
    }
}

// The scales of one tile, as a lane asks for them: rows 2 g and 2 g + 1 of block b, both in one load. Groups of nested_absmax last long: they are kept.
struct g3k__scales {
    const char *absmax;                 // of the tile, at row 2 g
    g3k__u32 first[2];                  // number of the first block of rows 2 g and 2 g + 1; the host refuses tiles of 2^31 blocks
    g3k__u32 group[2];                  // which nested_absmax is kept
    float kept[2];
};

static __device__ __forceinline__ float2 g3k__scale_pair(const g3k__bits &w, g3k__scales &s, int block)
{
    if (!w.nested_absmax) return *(const float2 *)(s.absmax + (size_t)block * 64);
    const g3k__u16 code = *(const g3k__u16 *)(s.absmax + (size_t)block * 16);
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const g3k__u32 group = (s.first[i] + (g3k__u32)block) >> (31 - __clz((int)w.nested_blocksize));
        if (group != s.group[i]) { s.group[i] = group; s.kept[i] = w.nested_absmax[group]; }
        const int c = i ? code >> 8 : code & 255;
        scale[i] = __fadd_rn(__fmul_rn(w.map < 0 ? w.nested_map[c] : g3k_maps[w.map][c], s.kept[i]), w.nested_offset);
    }
    return make_float2(scale[0], scale[1]);
}

// acc += the tile's rows at `row`, columns [64 from, 64 end), for 4-bit codes.
template <int NT> static __device__ __forceinline__ void g3k__tile_4bit(float acc[NT][4], const g3k__bits &w, int row, int cols, int from, int end, g3k__columns<NT> &B, const g3k__norm &norm)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, wide = (int)w.blocksize / 64;
    const char *codes = (const char *)w.data + (size_t)row * cols / 2 + t * 128 + g * 16;
    g3k__scales s;
    g3k__u32 table[8], small[8];
    const size_t per_row = cols / w.blocksize;
#pragma unroll
    for (int i = 0; i < 8; i++) { table[i] = g3k_codes[w.format == G3K_FP4][0][i]; small[i] = g3k_codes[w.format == G3K_FP4][1][i]; }
    s.absmax = (const char *)w.absmax + ((size_t)row / 16 * per_row * 16 + 2 * g) * (w.nested_absmax ? 1 : 4);
    s.first[0] = (g3k__u32)(row + 2 * g) * (g3k__u32)per_row;
    s.first[1] = s.first[0] + (g3k__u32)per_row;
    s.group[0] = s.group[1] = ~0u;
    const int last = end - 1;
    uint4 next = g3k__stream(codes + (size_t)from * 512), after = g3k__stream(codes + (size_t)(from < last ? from + 1 : last) * 512);
    float2 scale = make_float2(0.0f, 0.0f);
    for (int chunk = from; chunk < end; chunk++) {                               // `from` is even: one request brings the scales of two chunks
        const g3k__u32 word[4] = { next.x, next.y, next.z, next.w };
        if (chunk % 2 == 0) scale = g3k__scale_pair(w, s, (chunk + (t & 1) < end ? chunk + (t & 1) : chunk) / wide);
        next = after;
        if (chunk + 2 < end) after = g3k__stream(codes + (size_t)(chunk + 2) * 512);
        const float even = __shfl_sync(0xffffffffu, scale.x, (lane & ~3) + chunk % 2), odd = __shfl_sync(0xffffffffu, scale.y, (lane & ~3) + chunk % 2);
        float block[NT][4];
#pragma unroll
        for (int i = 0; i < NT; i++) block[i][0] = block[i][1] = block[i][2] = block[i][3] = 0.0f;
#pragma unroll
        for (int step = 0; step < 4; step++) {
            g3k__u32 a[4], rest[4];
            g3k__decode(table, word[step / 2], step % 2 * 2, a[0], a[2]);
            g3k__decode(table, word[2 + step / 2], step % 2 * 2, a[1], a[3]);
            if (G3K_PRECISE) g3k__decode(small, word[step / 2], step % 2 * 2, rest[0], rest[2]);
            if (G3K_PRECISE) g3k__decode(small, word[2 + step / 2], step % 2 * 2, rest[1], rest[3]);
            g3k__step<NT>(block, a, rest, true, B, norm, chunk * 64 + 16 * t + 4 * step);
        }
#pragma unroll
        for (int i = 0; i < NT; i++) {
            acc[i][0] += block[i][0] * even; acc[i][1] += block[i][1] * even;
            acc[i][2] += block[i][2] * odd;  acc[i][3] += block[i][3] * odd;
        }
    }
}

// The same for bf16 weights: a chunk is up to four loads of 16 columns.
template <int NT> static __device__ __forceinline__ void g3k__tile_bf16(float acc[NT][4], const g3k__bits &w, int row, int cols, int from, int end, g3k__columns<NT> &B, const g3k__norm &norm)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = cols / 16 < 4 * end ? cols / 16 : 4 * end;
    const char *numbers = (const char *)w.data + (size_t)row * cols * 2 + t * 128 + g * 16;
    for (int part = 4 * from; part < last; part += 4) {
        uint4 now[4];
#pragma unroll
        for (int i = 0; i < 4; i++) if (part + i < last) now[i] = g3k__stream(numbers + (size_t)(part + i) * 512);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (part + i >= last) break;
            const g3k__u32 a[4] = { now[i].x, now[i].z, now[i].y, now[i].w };
            g3k__step<NT>(acc, a, a, false, B, norm, (part + i) * 16 + 4 * t);
        }
    }
}

// Which rows of which segment tile number `tile` of the matrix holds; first: of y.
static __device__ __forceinline__ int g3k__find_tile(const g3k__mat &W, int tile, int &row, int &first)
{
    int s = 0;
    first = 0;
    while (s < W.n_segs && tile >= W.seg[s].rows / 16) { tile -= W.seg[s].rows / 16; first += W.seg[s].rows; s++; }
    row = tile * 16;
    return s;
}

//   x  float [n][cols]    y  float [n][rows]    W  all segments in tiles    norm  RMSNorm, dim 0: none
//   launch: grid (tiles / 2 rounded up, n / (8 NT) rounded up), 64 splits threads, splits 1, 2 or 4
template <int NT> static __device__ __forceinline__ void g3k__linear(float *y, const float *x, const g3k__norm &norm, const g3k__mat &W, int n, const g3k__fuse &fuse)
{
    __shared__ float4 sums[8 * NT * 32];
    __shared__ float squares[4][8 * NT];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, splits = blockDim.x / 64, which = warp / splits, split = warp % splits;
    const int tiles = W.rows / 16, tile = fuse.act ? (int)blockIdx.x + which * (tiles / 2) : (int)blockIdx.x * 2 + which, first_row = (int)blockIdx.y * 8 * NT;
    const int chunks = (W.cols + 63) / 64, each = (chunks + 2 * splits - 1) / (2 * splits) * 2, from = split * each, end = from + each < chunks ? from + each : chunks;
    float acc[NT][4];
    g3k__columns<NT> B;
    B.normed = norm.dim != 0;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int t = first_row + 8 * i + (lane >> 2);
        B.x[i] = t < n ? x + (size_t)t * W.cols : nullptr;
        B.squares[i] = acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;
    }
    if (tile < tiles && from < end) {
        int row, first;
        const g3k__bits &w = W.seg[g3k__find_tile(W, tile, row, first)].bits;
        if ((G3K_HAS(G3K_NF4) || G3K_HAS(G3K_FP4)) && w.format != G3K_BF16) g3k__tile_4bit<NT>(acc, w, row, W.cols, from, end, B, norm);
        else if (G3K_HAS(G3K_BF16)) g3k__tile_bf16<NT>(acc, w, row, W.cols, from, end, B, norm);
    }
#pragma unroll
    for (int i = 0; i < NT; i++) {
        sums[(warp * NT + i) * 32 + lane] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
        float s = B.squares[i];
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        s += __shfl_xor_sync(0xffffffffu, s, 2);
        if (which == 0 && (lane & 3) == 0) squares[split][8 * i + (lane >> 2)] = s;
    }
    __syncthreads();
    for (int item = (int)threadIdx.x; item < (fuse.act ? 1 : 2) * NT * 32; item += (int)blockDim.x) {
        const int i = item / 32 % NT, of = item & 31, t = first_row + 8 * i + 2 * (of & 3), which_tile = item / 32 / NT;
        const int there = fuse.act ? (int)blockIdx.x : (int)blockIdx.x * 2 + which_tile;
        float v[2][4], factor[2] = { 1.0f, 1.0f };
        int row, first;
        if (there >= tiles) continue;
        if (norm.dim)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float s = 0.0f;
                for (int p = 0; p < splits; p++) s += squares[p][8 * i + 2 * (of & 3) + k];
                factor[k] = g3k__root(s, W.cols, norm.eps);
            }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half && !fuse.act) break;
            float4 s = sums[((which_tile + half) * splits * NT + i) * 32 + of];
            for (int p = 1; p < splits; p++) {
                const float4 u = sums[(((which_tile + half) * splits + p) * NT + i) * 32 + of];
                s.x += u.x; s.y += u.y; s.z += u.z; s.w += u.w;
            }
            v[half][0] = __fmul_rn(s.x, factor[0]); v[half][1] = __fmul_rn(s.y, factor[1]);      // rounded here, whatever follows: fused or not, the same bits
            v[half][2] = __fmul_rn(s.z, factor[0]); v[half][3] = __fmul_rn(s.w, factor[1]);
            const g3k__seg &seg = W.seg[g3k__find_tile(W, there + half * (tiles / 2), row, first)];
            if (seg.bias.data)
#pragma unroll
                for (int k = 0; k < 4; k++) v[half][k] += g3k__dense(seg.bias, row + 2 * (of >> 2) + k / 2);
        }
        g3k__find_tile(W, there, row, first);
        row += first + 2 * (of >> 2);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (t + k >= n) continue;
            if (fuse.act) *(float2 *)(fuse.act + (size_t)(t + k) * (W.rows / 2) + row) = make_float2(g3k__gelu(v[0][k]) * v[1][k], g3k__gelu(v[0][2 + k]) * v[1][2 + k]);
            else *(float2 *)(y + (size_t)(t + k) * W.rows + row) = make_float2(v[0][k], v[0][2 + k]);
        }
    }
    if (fuse.x && g3k__last_block(fuse.ticket, gridDim.x * gridDim.y, squares)) for (int t = 0; t < n; t++) g3k__add_row(fuse.x + (size_t)t * W.rows, y + (size_t)t * W.rows, fuse.post, W.rows, (float *)sums);
}

#define G3K_LINEAR(name, NT) \
extern "C" __global__ void __launch_bounds__(256, (NT) == 1 && !G3K_PRECISE ? 3 : (NT) == 1 ? 2 : 1) name(float *y, const float *x, const __grid_constant__ g3k__norm norm, const __grid_constant__ g3k__mat W, int n, const __grid_constant__ g3k__fuse fuse) \
{ g3k__linear<NT>(y, x, norm, W, n, fuse); }
G3K_LINEAR(g3k_linear, 1)               // up to 8 rows of x
G3K_LINEAR(g3k_linear_many, 4)          // 32 a block

// The same for matrices that do not lie in tiles: any format and shape, float32 throughout. A warp does one row of W and up to 8 rows of x; lane l
// takes columns l, l + 32, ... and the lanes' sums are added as a tree.
//   launch: grid (rows / 4 rounded up, n / 8 rounded up), 128 threads
extern "C" __global__ void __launch_bounds__(128) g3k_linear_plain(float *y, const float *x, const __grid_constant__ g3k__mat W, int n)
{
    const int lane = threadIdx.x & 31, at = (int)(blockIdx.x * 4 + (threadIdx.x >> 5)), t = (int)blockIdx.y * 8;
    int s = 0, row = at;
    if (at >= W.rows) return;
    while (row >= W.seg[s].rows) row -= W.seg[s++].rows;
    const g3k__seg &seg = W.seg[s];
    float sum[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
    for (int k = lane; k < W.cols; k += 32) {
        const float w = W.transposed ? g3k__get(seg.bits, k, row, W.rows) : g3k__get(seg.bits, row, k, W.cols);
#pragma unroll
        for (int i = 0; i < 8; i++) if (t + i < n) sum[i] = fmaf(w, x[(size_t)(t + i) * W.cols + k], sum[i]);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float all = g3k__warp_sum(sum[i]);
        if (lane == 0 && t + i < n) y[(size_t)(t + i) * W.rows + at] = all + (seg.bias.data ? g3k__dense(seg.bias, row) : 0.0f);
    }
}

// y[t] = scale E[ids[t]], exactly; ids nullptr: rows 0, 1, 2, ...; an id below 0 leaves its row as it is
//   launch: grid n, 256 threads
extern "C" __global__ void __launch_bounds__(256) g3k_embed(float *y, const __grid_constant__ g3k__mat E, const int *ids, float scale)
{
    const int t = (int)blockIdx.x, id = ids ? ids[t] : t;
    if (id < 0 || id >= E.rows) return;
    for (int i = (int)threadIdx.x; i < E.cols; i += (int)blockDim.x) y[(size_t)t * E.cols + i] = g3k__get(E.seg[0].bits, id, i, E.cols) * scale;
}
#endif

// ==================================================================================================================
// Norms, embedding, sums, gelu, pooling
// ==================================================================================================================

#if G3K_REST

// y = norm(x), row by row.  RMSNorm: x / sqrt(mean of x^2 + eps) * (1 + w).  LayerNorm: (x - mean) / sqrt(mean of (x - mean)^2 + eps) * w + b
//   x, y  float [n][dim], may be the same array
//   launch: grid n, 256 threads
extern "C" __global__ void __launch_bounds__(256) g3k_norm(float *y, const float *x, const __grid_constant__ g3k__norm norm)
{
    __shared__ float room[8];
    const size_t row = (size_t)blockIdx.x * (size_t)norm.dim;
    const float mean = norm.layer ? g3k__block_sum(norm.dim, room, [&](int i) { return x[row + i]; }) / (float)norm.dim : 0.0f;
    const float scale = g3k__root(g3k__block_sum(norm.dim, room, [&](int i) { const float v = x[row + i] - mean; return __fmul_rn(v, v); }), norm.dim, norm.eps);
    for (int i = (int)threadIdx.x; i < norm.dim; i += 256)
        y[row + i] = norm.layer ? (x[row + i] - mean) * scale * g3k__dense(norm.w, i) + g3k__dense(norm.b, i) : x[row + i] * scale * (1.0f + g3k__dense(norm.w, i));
}

// x[t] += norm(y[t]), or x[t] += y[t] where norm.dim is 0.  x, y  float [n][dim]
//   launch: grid n, 256 threads
extern "C" __global__ void __launch_bounds__(256) g3k_add(float *x, const float *y, const __grid_constant__ g3k__norm norm, int dim)
{
    __shared__ float room[8];
    g3k__add_row(x + (size_t)blockIdx.x * dim, y + (size_t)blockIdx.x * dim, norm, dim, room);
}

// y[t][i] = gelu(gu[t][i]) gu[t][m + i].  y  float [n][m], gu  float [n][2 m]
//   launch: grid (m / 256 rounded up, n), 256 threads
extern "C" __global__ void __launch_bounds__(256) g3k_geglu(float *y, const float *gu, int m)
{
    const size_t t = blockIdx.y;
    const int i = (int)(blockIdx.x * 256 + threadIdx.x);
    if (i < m) y[t * m + i] = g3k__gelu(gu[t * 2 * m + i]) * gu[t * 2 * m + m + i];
}

// y = gelu(y).  y  float [n][m].  launch: grid (m / 256 rounded up, n), 256 threads
extern "C" __global__ void __launch_bounds__(256) g3k_gelu(float *y, int m)
{
    const int i = (int)(blockIdx.x * 256 + threadIdx.x);
    if (i < m) y[(size_t)blockIdx.y * m + i] = g3k__gelu(y[(size_t)blockIdx.y * m + i]);
}

// Means of k k patches of a side side grid: y  float [(side / k)^2][dim], x  float [side^2][dim].  launch: grid (side / k)^2, 256 threads
extern "C" __global__ void __launch_bounds__(256) g3k_pool(float *y, const float *x, int side, int k, int dim)
{
    const int out = side / k, cell = (int)blockIdx.x;
    for (int i = (int)threadIdx.x; i < dim; i += 256) {
        float sum = 0.0f;
        for (int p = 0; p < k * k; p++) sum += x[((size_t)(cell / out * k + p / k) * side + cell % out * k + p % k) * dim + i];
        y[(size_t)cell * dim + i] = sum / (float)(k * k);
    }
}

// angle[t][j] = cos, sin of pos freq[j], the product in float32: far positions tell.  angle  float [n][half][2]
//   launch: grid n, 64 threads
extern "C" __global__ void g3k_angles(float *angle, const float *freq, const g3k__row *rows, int half)
{
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float a = (float)rows[blockIdx.x].pos * freq[i];
        angle[((size_t)blockIdx.x * half + i) * 2] = cosf(a);
        angle[((size_t)blockIdx.x * half + i) * 2 + 1] = sinf(a);
    }
}
#endif

// ==================================================================================================================
// Attention
// ==================================================================================================================

// Keys and values of a sequence lie in a ring: position p in row p % rows, [kv_heads][rows][head_dim]. A row of the step at position p sees positions
// max(0, p - window + 1) to its span, which is p, or the end of its image. What is compiled: for one size of head, one format of the cache, and one
// group, the query heads that share a kv head (in sets of at most 8). The names say so: g3k_attend_256x4_bf16.
//
// The softmax is cut into parts of 256 positions that begin at multiples of 256, each made by one block, and merged in order ("Online normalizer
// calculation for softmax", Milakov and Gimelshein, 2018): a row alone, whose parts many blocks share, has the same bits as among others.

#if G3K_ATTENTION

#define G3K_KV_F32  0
#define G3K_KV_BF16 1
#define G3K_KV_FP8  2
#define G3K_KV_INT8 3

enum { G3K_PART = 256 };

template <int D, int KV, int G> struct g3k__size {
    static constexpr int bytes = KV == G3K_KV_F32 ? 4 : KV == G3K_KV_BF16 ? 2 : 1;      // of one number
    static constexpr int each = 16 / bytes;                                             // numbers that a lane loads at once
    static constexpr bool whole = D * bytes % 16 == 0;                                  // rows are whole 16 bytes
    static constexpr int loads = (D + each - 1) / each;                                 // of a row
    static constexpr int lanes = loads > 16 ? 32 : loads > 8 ? 16 : loads > 4 ? 8 : loads > 2 ? 4 : loads > 1 ? 2 : 1;     // that share a row
    static constexpr int turns = (loads + lanes - 1) / lanes;
    static constexpr int keys = 32 / lanes;                                             // rows that a warp loads at once
    static constexpr int warps = G * D > 1024 ? 2 : 4;
    static constexpr bool scaled = KV == G3K_KV_FP8 || KV == G3K_KV_INT8;
};

// ---- the cache

static __device__ __forceinline__ g3k__u16 g3k__to_bf16(float f)                  // nearest, ties to even
{
    const g3k__u32 u = __float_as_uint(f);
    return (u & 0x7fffffffu) > 0x7f800000u ? (g3k__u16)(u >> 16 | 0x40) : (g3k__u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static __device__ __forceinline__ g3k__u8 g3k__to_e4m3(float f)                   // |f| <= 448; nearest, ties to even
{
    const g3k__u32 u = __float_as_uint(f) & 0x7fffffffu, sign = __float_as_uint(f) >> 24 & 0x80;
    if (u < 121u << 23) return (g3k__u8)(sign | (g3k__u32)__float2int_rn(__uint_as_float(u) * 512.0f));      // below 2^-6: multiples of 2^-9
    return (g3k__u8)(sign | (((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120u << 3)));
}

static __device__ __forceinline__ float g3k__limit(float x, float most) { return x > most ? most : x < -most ? -most : x == x ? x : 0.0f; }

// One row of K or V into the cache, by a warp. 8 bits: the largest magnitude becomes the largest code; what is not finite makes the scale infinite.
template <int D, int KV> static __device__ __forceinline__ void g3k__put(void *codes, float *scales, size_t row, const float *x)
{
    const int lane = (int)threadIdx.x & 31;
    const size_t at = row * D;
    if (KV == G3K_KV_F32)  { for (int i = lane; i < D; i += 32) ((float *)codes)[at + i] = x[i]; return; }
    if (KV == G3K_KV_BF16) { for (int i = lane; i < D; i += 32) ((g3k__u16 *)codes)[at + i] = g3k__to_bf16(x[i]); return; }
    const float largest = KV == G3K_KV_FP8 ? 448.0f : 127.0f;
    float most = 0.0f;
    bool finite = true;
    for (int i = lane; i < D; i += 32) { const float a = fabsf(x[i]); finite = finite && a <= 3.402823466e+38f; most = a > most ? a : most; }
    for (int step = 16; step; step >>= 1) { const float a = __shfl_xor_sync(0xffffffffu, most, step); most = a > most ? a : most; }
    const float scale = __all_sync(0xffffffffu, finite) ? __fdiv_rn(most, largest) : __uint_as_float(0x7f800000u);
    if (lane == 0) scales[row] = scale;
    for (int i = lane; i < D; i += 32) {
        const float code = g3k__limit(scale > 0.0f ? __fdiv_rn(x[i], scale) : 0.0f, largest);
        if (KV == G3K_KV_FP8) ((g3k__u8 *)codes)[at + i] = g3k__to_e4m3(code);
        else ((signed char *)codes)[at + i] = (signed char)__float2int_rn(code);
    }
}

// Numbers e, e + 1, ... of a row of codes, as many as a lane loads at once; beyond the row 0.
template <int D, int KV, int G> static __device__ __forceinline__ void g3k__load(float *v, const void *codes, size_t row, int e)
{
    typedef g3k__size<D, KV, G> size;
    const char *p = (const char *)codes + (row * D + e) * size::bytes;
    if (size::whole) {
        uint4 w = make_uint4(0, 0, 0, 0);
        if (e < D) w = *(const uint4 *)p;
        const g3k__u32 word[4] = { w.x, w.y, w.z, w.w };
#pragma unroll
        for (int i = 0; i < size::each; i++) {
            if (KV == G3K_KV_F32) v[i] = __uint_as_float(word[i]);
            else if (KV == G3K_KV_BF16) v[i] = __uint_as_float(i & 1 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
            else if (KV == G3K_KV_INT8) v[i] = (float)((int)(word[i / 4] << (24 - i % 4 * 8)) >> 24);
            else v[i] = g3k__e4m3((g3k__u8)(word[i / 4] >> (i % 4 * 8)));
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < size::each; i++) {
        v[i] = 0.0f;
        if (e + i >= D) continue;
        if (KV == G3K_KV_F32) v[i] = ((const float *)p)[i];
        else if (KV == G3K_KV_BF16) v[i] = g3k__bf16(((const g3k__u16 *)p)[i]);
        else if (KV == G3K_KV_INT8) v[i] = (float)((const signed char *)p)[i];
        else v[i] = g3k__e4m3(((const g3k__u8 *)p)[i]);
    }
}

// ---- rope: one head, by a warp.  u = x / sqrt(mean of x^2 + eps) * (1 + w);  y[i] = u[i] cos - u[i + D / 2] sin,  y[i + D / 2] = u[i + D / 2] cos + u[i] sin
// norm.dim 0: no norm; angle nullptr: no rotation. y may be x.

template <int D> static __device__ __forceinline__ void g3k__rope_head(float *y, const float *x, const g3k__norm &norm, const float *angle)
{
    const int lane = (int)threadIdx.x & 31, half = D / 2;
    float square = 0.0f, scale = 1.0f;
    if (norm.dim) {
        for (int i = lane; i < D; i += 32) square = fmaf(x[i], x[i], square);
        scale = g3k__root(g3k__warp_sum(square), D, norm.eps);
    }
    __syncwarp();
    for (int i = lane; i < half; i += 32) {
        float a = x[i], b = x[i + half];
        if (norm.dim) { a = __fmul_rn(__fmul_rn(a, scale), 1.0f + g3k__dense(norm.w, i)); b = __fmul_rn(__fmul_rn(b, scale), 1.0f + g3k__dense(norm.w, i + half)); }
        const float c = angle ? angle[2 * i] : 1.0f, s = angle ? angle[2 * i + 1] : 0.0f;
        y[i] = angle ? fmaf(a, c, -__fmul_rn(b, s)) : a;
        y[i + half] = angle ? fmaf(b, c, __fmul_rn(a, s)) : b;
    }
    __syncwarp();
}

// q and k are normed and rotated where they lie, k and v go into the cache.  qkv  float [n][heads + 2 kv_heads][D]
//   launch: grid (heads + 2 kv_heads, n), 32 threads
template <int D, int KV> static __device__ __forceinline__ void g3k__rope(float *qkv, const g3k__attn &a, const g3k__kv &kv, const g3k__row *rows, const float *angle)
{
    const int h = (int)blockIdx.x, t = (int)blockIdx.y, of = h - a.heads;
    float *x = qkv + ((size_t)t * gridDim.x + h) * D;
    const size_t at = (size_t)(rows[t].pos % kv.rows);
    if (of < a.kv_heads) g3k__rope_head<D>(x, x, of < 0 ? a.q_norm : a.k_norm, angle ? angle + (size_t)t * D : nullptr);
    if (of >= a.kv_heads) g3k__put<D, KV>(kv.v, kv.v_scale, (size_t)(of - a.kv_heads) * kv.rows + at, x);
    else if (of >= 0) g3k__put<D, KV>(kv.k, kv.k_scale, (size_t)of * kv.rows + at, x);
}

// ---- attend

template <int D, int KV, int G> struct g3k__attending {  // in shared memory
    float q[G][D], score[G][G3K_PART], out[g3k__size<D, KV, G>::warps][G][D], sum[G][D];       // out: of each warp; sum: over the parts so far
    float scale[2][g3k__size<D, KV, G>::scaled ? G3K_PART : 1];                                // of keys, of values
    float top[G], total[G], part_top[G], part_total[G];                                        // maximum and sum of exp(s - maximum)
};

// One part: keys [first, first + count) of kv head `head`. Leaves its maximum and sum in part_top and part_total, the weighted values in out[0].
template <int D, int KV, int G> static __device__ __forceinline__ void g3k__part(g3k__attending<D, KV, G> &m, const g3k__kv &kv, int head, int first, int count, float scale)
{
    typedef g3k__size<D, KV, G> size;
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, in_row = lane % size::lanes, key = lane / size::lanes;
    const size_t base = (size_t)head * kv.rows;
    if (size::scaled)
        for (int i = (int)threadIdx.x; i < count; i += 32 * size::warps) {
            m.scale[0][i] = kv.k_scale[base + (first + i) % kv.rows];
            m.scale[1][i] = kv.v_scale[base + (first + i) % kv.rows];
        }
    __syncthreads();
    float q[G][size::turns * size::each];
#pragma unroll
    for (int h = 0; h < G; h++)
#pragma unroll
        for (int i = 0; i < size::turns * size::each; i++) {
            const int e = (i / size::each * size::lanes + in_row) * size::each + i % size::each;
            q[h][i] = e < D ? m.q[h][e] : 0.0f;
        }
    for (int k = warp * size::keys; k < count; k += size::warps * size::keys) {              // scores: a few keys a warp
        const bool there = k + key < count;
        float dot[G], v[size::each];
#pragma unroll
        for (int h = 0; h < G; h++) dot[h] = 0.0f;
#pragma unroll
        for (int turn = 0; turn < size::turns; turn++) {
            g3k__load<D, KV, G>(v, kv.k, base + (first + (there ? k + key : k)) % kv.rows, (turn * size::lanes + in_row) * size::each);
#pragma unroll
            for (int h = 0; h < G; h++)
#pragma unroll
                for (int i = 0; i < size::each; i++) dot[h] = fmaf(q[h][turn * size::each + i], v[i], dot[h]);
        }
#pragma unroll
        for (int h = 0; h < G; h++) {
            for (int step = size::lanes / 2; step; step >>= 1) dot[h] += __shfl_xor_sync(0xffffffffu, dot[h], step);
            if (in_row == 0 && there) m.score[h][k + key] = __fmul_rn(size::scaled ? __fmul_rn(dot[h], m.scale[0][k + key]) : dot[h], scale);
        }
    }
    __syncthreads();
    for (int h = warp; h < G; h += size::warps) {                                            // softmax: a head a warp
        float top = __uint_as_float(0xff800000u), total = 0.0f;
        for (int i = lane; i < count; i += 32) top = m.score[h][i] > top ? m.score[h][i] : top;
        for (int step = 16; step; step >>= 1) { const float other = __shfl_xor_sync(0xffffffffu, top, step); top = other > top ? other : top; }
        for (int i = lane; i < count; i += 32) {
            const float w = expf(m.score[h][i] - top);
            total += w;
            m.score[h][i] = size::scaled ? __fmul_rn(w, m.scale[1][i]) : w;
        }
        total = g3k__warp_sum(total);
        if (lane == 0) { m.part_top[h] = top; m.part_total[h] = total; }
    }
    __syncthreads();
    float sum[G][size::turns * size::each];
#pragma unroll
    for (int h = 0; h < G; h++)
#pragma unroll
        for (int i = 0; i < size::turns * size::each; i++) sum[h][i] = 0.0f;
    for (int k = warp * size::keys; k < count; k += size::warps * size::keys) {              // values, by the same lanes
        const bool there = k + key < count;
        float v[size::each];
#pragma unroll
        for (int turn = 0; turn < size::turns; turn++) {
            g3k__load<D, KV, G>(v, kv.v, base + (first + (there ? k + key : k)) % kv.rows, (turn * size::lanes + in_row) * size::each);
#pragma unroll
            for (int h = 0; h < G; h++) {
                const float w = there ? m.score[h][k + key] : 0.0f;
#pragma unroll
                for (int i = 0; i < size::each; i++) if (there) sum[h][turn * size::each + i] = fmaf(w, v[i], sum[h][turn * size::each + i]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < G; h++)
#pragma unroll
        for (int i = 0; i < size::turns * size::each; i++) {
            const int e = (i / size::each * size::lanes + in_row) * size::each + i % size::each;
            for (int step = size::lanes; step < 32; step <<= 1) sum[h][i] += __shfl_xor_sync(0xffffffffu, sum[h][i], step);
            if (key == 0 && e < D) m.out[warp][h][e] = sum[h][i];
        }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) {
        float s = m.out[0][0][i];
        for (int w = 1; w < size::warps; w++) s += m.out[w][0][i];
        m.out[0][0][i] = s;
    }
    __syncthreads();
}

// Two runs of softmax become one: sum = sum exp(top - t) + other exp(other_top - t), t the larger maximum; the first is taken as it is.
static __device__ __forceinline__ float g3k__joined(float top, float other_top, float sum, float other)
{
    const float most = other_top > top ? other_top : top;
    return fmaf(other, expf(other_top - most), __fmul_rn(sum, expf(top - most)));
}

// sum, top and total of shared memory go on with a part's, which lie at out [G][D], tops [G] and totals [G].
template <int D, int KV, int G> static __device__ __forceinline__ void g3k__merge(g3k__attending<D, KV, G> &m, const float *out, size_t stride, int tops, bool first)
{
    typedef g3k__size<D, KV, G> size;
    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) {
        const int h = i / D;
        const float *part = out + h * stride;
        m.sum[0][i] = first ? part[i % D] : g3k__joined(m.top[h], part[tops], m.sum[0][i], part[i % D]);
    }
    __syncthreads();
    for (int h = (int)threadIdx.x; h < G; h += 32 * size::warps) {
        const float *part = out + h * stride;
        m.total[h] = first ? part[tops + 1] : g3k__joined(m.top[h], part[tops], m.total[h], part[tops + 1]);
        m.top[h] = first || part[tops] > m.top[h] ? part[tops] : m.top[h];
    }
    __syncthreads();
}

// y[t][h] = softmax(scale q[t][h] K^T) V.  y  float [n][heads][D], qkv as g3k__rope left it.
//   launch: grid (n, heads / G), 32 warps threads
template <int D, int KV, int G> static __device__ __forceinline__ void g3k__attend(float *y, const float *qkv, const g3k__attn &a, const g3k__kv &kv, const g3k__row *rows)
{
    typedef g3k__size<D, KV, G> size;
    __shared__ g3k__attending<D, KV, G> m;
    __shared__ float part[G][D + 2];
    const int t = (int)blockIdx.x, h = (int)blockIdx.y * G, head = h / (a.heads / a.kv_heads), pos = rows[t].pos, last = rows[t].span;
    const int low = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;
    const float *q = qkv + ((size_t)t * (a.heads + 2 * a.kv_heads) + h) * D;
    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) m.q[0][i] = q[i];
    for (int p = low / G3K_PART; p <= last / G3K_PART; p++) {
        const int first = p * G3K_PART > low ? p * G3K_PART : low, end = (p + 1) * G3K_PART <= last ? (p + 1) * G3K_PART : last + 1;
        g3k__part(m, kv, head, first, end - first, a.scale);
        for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) part[i / D][i % D] = m.out[0][0][i];
        for (int i = (int)threadIdx.x; i < G; i += 32 * size::warps) { part[i][D] = m.part_top[i]; part[i][D + 1] = m.part_total[i]; }
        __syncthreads();
        g3k__merge(m, part[0], D + 2, D, p == low / G3K_PART);
    }
    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) y[((size_t)t * a.heads + h) * D + i] = __fdiv_rn(m.sum[0][i], m.total[i / D]);
}

// Rope and attend of one row in one launch, for writing. Each block ropes the heads of q it needs; the one whose part holds the row's own position
// ropes k, and puts k and v into the cache. Parts go to memory, [parts][heads][D + 2], and the block that comes last joins them.
//   launch: grid (splits, heads / G), 32 warps threads; splits from the size of the cache, not from the position; tickets  [heads / G]
template <int D, int KV, int G> static __device__ __forceinline__ void g3k__attend_one(float *y, const float *qkv, const g3k__attn &a, const g3k__kv &kv, const g3k__row *rows, const float *angle,
                                                                                     float *parts, unsigned *tickets)
{
    typedef g3k__size<D, KV, G> size;
    __shared__ g3k__attending<D, KV, G> m;
    const int h = (int)blockIdx.y * G, group = a.heads / a.kv_heads, head = h / group, warp = (int)threadIdx.x >> 5, pos = rows[0].pos;
    const int low = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0, begin = low / G3K_PART, count = pos / G3K_PART - begin + 1, splits = (int)gridDim.x;
    const bool own = (count - 1) % splits == (int)blockIdx.x;                                // the last part is this block's
    if ((int)blockIdx.x < count)
        for (int i = warp; i < G; i += size::warps) g3k__rope_head<D>(m.q[i], qkv + (size_t)(h + i) * D, a.q_norm, angle);
    if (own) {
        const size_t row = (size_t)head * kv.rows + pos % kv.rows;
        const float *k = qkv + (size_t)(a.heads + head) * D, *v = k + (size_t)a.kv_heads * D;
        if (warp == 0) { g3k__rope_head<D>(m.sum[0], k, a.k_norm, angle); g3k__put<D, KV>(kv.k, kv.k_scale, row, m.sum[0]); }
        if (warp == 1) g3k__put<D, KV>(kv.v, kv.v_scale, row, v);
    }
    __syncthreads();
    for (int p = (int)blockIdx.x; p < count; p += splits) {
        const int at = (begin + p) * G3K_PART, first = at > low ? at : low, end = at + G3K_PART <= pos ? at + G3K_PART : pos + 1;
        float *part = parts + ((size_t)p * a.heads + h) * (D + 2);
        g3k__part(m, kv, head, first, end - first, a.scale);
        for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) part[i / D * (D + 2) + i % D] = m.out[0][0][i];
        for (int i = (int)threadIdx.x; i < G; i += 32 * size::warps) { part[i * (D + 2) + D] = m.part_top[i]; part[i * (D + 2) + D + 1] = m.part_total[i]; }
        __syncthreads();
    }
    if (!g3k__last_block(tickets + blockIdx.y, (unsigned)splits, m.score)) return;
    for (int p = 0; p < count; p++) {
        const float *part = parts + ((size_t)p * a.heads + h) * (D + 2);
        for (int i = (int)threadIdx.x; i < G * (D + 2); i += 32 * size::warps) m.out[0][0][i] = g3k__fresh(part + i);      // of the first warp, and a little of the next
        __syncthreads();
        g3k__merge(m, m.out[0][0], D + 2, D, p == 0);
    }
    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) y[(size_t)h * D + i] = __fdiv_rn(m.sum[0][i], m.total[i / D]);
}

#define G3K_ATTEND(D, G, KV, name) \
extern "C" __global__ void __launch_bounds__(32) g3k_rope_##D##x##G##_##name(float *qkv, const __grid_constant__ g3k__attn a, const __grid_constant__ g3k__kv kv, const g3k__row *rows, const float *angle) \
{ g3k__rope<D, KV>(qkv, a, kv, rows, angle); } \
extern "C" __global__ void __launch_bounds__(128) g3k_attend_##D##x##G##_##name(float *y, const float *qkv, const __grid_constant__ g3k__attn a, const __grid_constant__ g3k__kv kv, const g3k__row *rows) \
{ g3k__attend<D, KV, G>(y, qkv, a, kv, rows); } \
extern "C" __global__ void __launch_bounds__(128) g3k_attend_one_##D##x##G##_##name(float *y, const float *qkv, const __grid_constant__ g3k__attn a, const __grid_constant__ g3k__kv kv, \
                                                                                   const g3k__row *rows, const float *angle, float *parts, unsigned *tickets) \
{ g3k__attend_one<D, KV, G>(y, qkv, a, kv, rows, angle, parts, tickets); }
#define G3K_ATTEND_OF(D, G, KV, name) G3K_ATTEND(D, G, KV, name)

#if defined(G3K_HEAD_DIM)
#if G3K_KV == G3K_KV_F32
G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 0, f32)
#elif G3K_KV == G3K_KV_BF16
G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 1, bf16)
#elif G3K_KV == G3K_KV_FP8
G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 2, fp8)
#else
G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 3, int8)
#endif
#else                                   // the published models: 270M and 1B, 4B and 12B, 27B, and the vision tower
#define G3K_ATTEND_KV(D, G) G3K_ATTEND(D, G, 0, f32) G3K_ATTEND(D, G, 1, bf16) G3K_ATTEND(D, G, 2, fp8) G3K_ATTEND(D, G, 3, int8)
G3K_ATTEND_KV(256, 4)
G3K_ATTEND_KV(256, 2)
G3K_ATTEND_KV(128, 2)
G3K_ATTEND(72, 1, 0, f32)
#endif
#endif
