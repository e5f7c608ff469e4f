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
//  - What is compiled: all kernels below; or, where G3K_HEAD_DIM and G3K_KV (0 float, 1 bf16, 2 fp8, 3 int8) are defined, those of attention for
//    one size of head and one format of the cache, and else those of the rest. G3K_FORMATS is a mask of weight formats, bit g3k_format.
//  - Spaces, printable ASCII, lines under 300 bytes, no two question marks in a row: the file lives on as C strings.

// ---- the header's own structs, as kernel arguments: same members, same sizes

enum g3k_format { G3K_F32, G3K_BF16, G3K_F16, G3K_E4M3, G3K_E5M2, G3K_NF4, G3K_FP4 };

#ifdef G3K_HEAD_DIM
#define G3K_ATTENTION 1
#define G3K_REST      0
#else
#define G3K_ATTENTION 0
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

struct g3k_bits {
    int format;
    const void *data, *absmax;
    const float *nested_absmax, *nested_map;
    float nested_offset;
    unsigned blocksize, nested_blocksize;
    const void *scale;
    int scale_format;
    bool tiled;
};
struct g3k_seg  { int rows; g3k_bits bits, bias; };
struct g3k_mat  { int rows, cols, n_segs; g3k_seg seg[3]; bool transposed; };
struct g3k_norm { bool layer; int dim; float eps; g3k_bits w, b; };
struct g3k_attn { int heads, kv_heads, head_dim, window; float scale, theta, factor; int angles; g3k_norm q_norm, k_norm; };
struct g3k_kv   { int format, rows, kv_heads, head_dim; void *k, *v; float *k_scale, *v_scale; };
struct g3k_row  { int pos, span, seq; };
static_assert(sizeof(g3k_bits) == 72 && sizeof(g3k_mat) == 480 && sizeof(g3k_norm) == 160 && sizeof(g3k_attn) == 352 && sizeof(g3k_kv) == 48 && sizeof(g3k_row) == 12, "as in the header");

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
static __device__ __forceinline__ float g3k__scale(const g3k_bits &w, size_t b, size_t at)
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
static __device__ float g3k__get(const g3k_bits &w, size_t row, size_t col, size_t cols)
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

// ---- sums over a warp and a block: the same tree for every run

static __device__ __forceinline__ float g3k__warp_sum(float v)
{
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    return v;
}

// In every thread; room: one float per warp, in shared memory, free for use again on return.
static __device__ float g3k__block_sum(float v, float *room)
{
    const unsigned lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    v = g3k__warp_sum(v);
    if (lane == 0) room[threadIdx.x >> 5] = v;
    __syncthreads();
    v = g3k__warp_sum(lane < warps ? room[lane] : 0.0f);
    __syncthreads();
    return v;
}

// True in all threads of the block that comes last to the ticket, which is 0 before and after the launch. What the other blocks wrote before is then seen.
static __device__ bool g3k__last_block(unsigned *ticket, unsigned blocks)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(ticket, 1u) == blocks - 1;
        if (last) *ticket = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// ==================================================================================================================
// Matrix products
// ==================================================================================================================

#if G3K_REST
// naive
extern "C" __global__ void g3k_linear_plain(float *y, const float *x, const __grid_constant__ g3k_mat W, int n)
{
    int row = blockIdx.x, seg = 0, first = 0;
    while (row - first >= W.seg[seg].rows) first += W.seg[seg++].rows;
    for (int t = 0; t < n; t++) {
        float sum = 0;
        for (int k = (int)threadIdx.x; k < W.cols; k += 32)
            sum = fmaf(W.transposed ? g3k__get(W.seg[seg].bits, k, row - first, W.rows) : g3k__get(W.seg[seg].bits, row - first, k, W.cols), x[(size_t)t * W.cols + k], sum);
        sum = g3k__warp_sum(sum);
        if (threadIdx.x == 0) y[(size_t)t * W.rows + row] = sum + (W.seg[seg].bias.data ? g3k__get(W.seg[seg].bias, 0, row - first, W.seg[seg].rows) : 0.0f);
    }
}
extern "C" __global__ void g3k_embed(float *y, const __grid_constant__ g3k_mat E, const int *ids, float scale)
{
    const int t = blockIdx.x, id = ids ? ids[t] : t;
    if (id < 0) return;
    for (int i = (int)threadIdx.x; i < E.cols; i += (int)blockDim.x) y[(size_t)t * E.cols + i] = g3k__get(E.seg[0].bits, id, i, E.cols) * scale;
}
#endif

// ==================================================================================================================
// Norms, embedding, sums, gelu, pooling
// ==================================================================================================================

#if G3K_REST

// RMSNorm of n rows:  y[r][i] = x[r][i] / sqrt(mean of x[r]^2 + eps) * (1 + w[i])
//   x, y  float [n][dim], may be the same array
//   launch: one block of 32 to 1024 threads (whole warps) per row, grid n; no dynamic shared memory
extern "C" __global__ void __launch_bounds__(1024) g3k_norm(float *y, const float *x, const __grid_constant__ g3k_norm norm)
{
    __shared__ float room[32];
    const size_t row = (size_t)blockIdx.x * (size_t)norm.dim;
    float square = 0.0f;
    for (int i = (int)threadIdx.x; i < norm.dim; i += (int)blockDim.x) square += x[row + i] * x[row + i];
    float mean = 0.0f;
    if (norm.layer) {
        for (int i = (int)threadIdx.x; i < norm.dim; i += (int)blockDim.x) mean += x[row + i];
        mean = g3k__block_sum(mean, room) / (float)norm.dim;
        square = 0.0f;
        for (int i = (int)threadIdx.x; i < norm.dim; i += (int)blockDim.x) square += (x[row + i] - mean) * (x[row + i] - mean);
    }
    const float scale = 1.0f / sqrtf(g3k__block_sum(square, room) / (float)norm.dim + norm.eps);
    for (int i = (int)threadIdx.x; i < norm.dim; i += (int)blockDim.x)
        y[row + i] = norm.layer ? (x[row + i] - mean) * scale * g3k__get(norm.w, 0, i, norm.dim) + g3k__get(norm.b, 0, i, norm.dim) : x[row + i] * scale * (1.0f + g3k__get(norm.w, 0, i, norm.dim));
}
extern "C" __global__ void g3k_add(float *x, const float *y, int n) { for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) x[i] += y[i]; }
static __device__ float g3k__gelu(float x) { return x / (1.0f + expf(-1.595769122f * (x + 0.044715f * x * x * x))); }
extern "C" __global__ void g3k_geglu(float *y, const float *gu, int m)
{
    for (int i = threadIdx.x; i < m; i += blockDim.x) y[(size_t)blockIdx.x * m + i] = g3k__gelu(gu[(size_t)blockIdx.x * 2 * m + i]) * gu[(size_t)blockIdx.x * 2 * m + m + i];
}
extern "C" __global__ void g3k_gelu(float *y, int m) { for (int i = threadIdx.x; i < m; i += blockDim.x) y[(size_t)blockIdx.x * m + i] = g3k__gelu(y[(size_t)blockIdx.x * m + i]); }
extern "C" __global__ void g3k_pool(float *y, const float *x, int side, int k, int dim)
{
    const int out = side / k, cell = blockIdx.x;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        float sum = 0;
        for (int p = 0; p < k * k; p++) sum += x[((size_t)(cell / out * k + p / k) * side + cell % out * k + p % k) * dim + i];
        y[(size_t)cell * dim + i] = sum / (float)(k * k);
    }
}
extern "C" __global__ void g3k_angles(float *angle, const float *freq, const g3k_row *rows, int half)
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

#if G3K_ATTENTION
static __device__ void g3k__put(void *codes, float *scales, const g3k_kv &kv, int head, int pos, const float *x)
{
    const size_t row = (size_t)head * kv.rows + pos % kv.rows, at = row * kv.head_dim;
    for (int i = 0; i < kv.head_dim; i++) {
        if (G3K_KV == 0) ((float *)codes)[at + i] = x[i];
        else { unsigned u = __float_as_uint(x[i]); ((g3k__u16 *)codes)[at + i] = (g3k__u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16); }
    }
}
static __device__ float g3k__kv_at(const void *codes, size_t at) { return G3K_KV == 0 ? ((const float *)codes)[at] : g3k__bf16(((const g3k__u16 *)codes)[at]); }
extern "C" __global__ void g3k_rope(float *qkv, const __grid_constant__ g3k_attn a, const g3k_kv kv, const g3k_row *rows, const float *angle)     // grid (heads + 2 kv_heads, n), 1 thread
{
    const int h = blockIdx.x, t = blockIdx.y, d = a.head_dim, half = d / 2;
    float *x = qkv + ((size_t)t * gridDim.x + h) * d;
    if (h < a.heads + a.kv_heads) {
        const bool q = h < a.heads;
        if ((q ? a.q_norm.dim : a.k_norm.dim)) {
            float s = 0;
            for (int i = 0; i < d; i++) s += x[i] * x[i];
            s = 1.0f / sqrtf(s / d + (q ? a.q_norm.eps : a.k_norm.eps));
            for (int i = 0; i < d; i++) x[i] = x[i] * s * (1.0f + (q ? g3k__get(a.q_norm.w, 0, i, d) : g3k__get(a.k_norm.w, 0, i, d)));
        }
        if (angle) for (int i = 0; i < half; i++) {
            const float c = angle[((size_t)t * half + i) * 2], s = angle[((size_t)t * half + i) * 2 + 1], u = x[i], v = x[i + half];
            x[i] = u * c - v * s;
            x[i + half] = v * c + u * s;
        }
        if (!q) g3k__put(kv.k, kv.k_scale, kv, h - a.heads, rows[t].pos, x);
    } else g3k__put(kv.v, kv.v_scale, kv, h - a.heads - a.kv_heads, rows[t].pos, x);
}
extern "C" __global__ void g3k_attend(float *y, const float *qkv, const __grid_constant__ g3k_attn a, const g3k_kv kv, const g3k_row *rows)        // grid (heads, n), 1 thread
{
    const int h = blockIdx.x, t = blockIdx.y, d = a.head_dim, g = h / (a.heads / a.kv_heads), pos = rows[t].pos, low = a.window && pos >= a.window ? pos - a.window + 1 : 0;
    const float *q = qkv + ((size_t)t * (a.heads + 2 * a.kv_heads) + h) * d;
    float *o = y + ((size_t)t * a.heads + h) * d, top = __uint_as_float(0xff800000u), sum = 0;
    for (int i = 0; i < d; i++) o[i] = 0;
    for (int p = low; p <= rows[t].span; p++) {
        const size_t at = ((size_t)g * kv.rows + p % kv.rows) * d;
        float s = 0;
        for (int i = 0; i < d; i++) s = fmaf(q[i], g3k__kv_at(kv.k, at + i), s);
        s *= a.scale;
        if (s > top) { const float f = expf(top - s); sum *= f; for (int i = 0; i < d; i++) o[i] *= f; top = s; }
        const float w = expf(s - top);
        sum += w;
        for (int i = 0; i < d; i++) o[i] = fmaf(w, g3k__kv_at(kv.v, at + i), o[i]);
    }
    for (int i = 0; i < d; i++) o[i] /= sum;
}
#endif
