// model.cuh: representative kernels of a transformer, one of each kind that matters: norms, GEMVs, a tensor-core GEMM, attention, sampling.
// They exist to try the emulated card before and apart from the engine's own kernels: test_kernels.c checks each against plain C.
// Nothing is included; 16- and 8-bit floats are integers whose bits are moved by hand. bf16 is the upper half of a float.

typedef unsigned char u8;
typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define ALL 0xffffffffu
#define NEG_INF __int_as_float(0xff800000)

// ---- numbers

DEVICE float wide(bf16 h) { return __uint_as_float((u32)h << 16); }
DEVICE float wide_lo(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float wide_hi(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
DEVICE bf16 narrow(float f) { bf16 h; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f)); return h; }
DEVICE u32 narrow2(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float tanh_fast(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Two e4m3 bytes to two halves. Before sm_89 by hand: the exponent is moved into place and its bias corrected by 2^8, which is exact.
DEVICE u32 e4m3x2_to_half2(u32 v)
{
    u32 r;
#if __CUDA_ARCH__ >= 890
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"((unsigned short)v));
#else
    u32 bits = (v & 0x80) << 8 | (v & 0x7f) << 7 | (v & 0x8000) << 16 | (v & 0x7f00) << 15;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(bits), "r"(0x5c005c00u));
#endif
    return r;
}

DEVICE float2 half2_to_float2(u32 h)
{
    float2 f;
    asm("{ .reg .f16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi; }" : "=f"(f.x), "=f"(f.y) : "r"(h));
    return f;
}
DEVICE float2 e4m3x2_to_float2(u32 v) { return half2_to_float2(e4m3x2_to_half2(v)); }

// Two floats to e4m3, ties to even, saturating at 448; NaN is 0x7f. Before sm_89 by hand.
#if __CUDA_ARCH__ >= 890
DEVICE u32 to_e4m3x2(float lo, float hi)
{
    unsigned short r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo));
    return r;
}
#else
DEVICE u32 to_e4m3(float f)
{
    u32 u = __float_as_uint(f), sign = u >> 24 & 0x80, m = u & 0x7fffffff;
    if (m > 0x7f800000) return 0x7f;
    if (m >= 0x43e80000) return sign | 0x7e;                                       // 464 is the tie between 448 and the next
    if (m < 0x3c800000) return sign | (u32)__float2int_rn(__uint_as_float(m) * 512.0f);   // below 2^-6: subnormals, steps of 2^-9
    m += 0x7ffff + (m >> 20 & 1);
    return sign | ((m >> 20) - (120 << 3));
}
DEVICE u32 to_e4m3x2(float lo, float hi) { return to_e4m3(lo) | to_e4m3(hi) << 8; }
#endif

// ---- sums

DEVICE float warp_sum(float v) { for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(ALL, v, step); return v; }
DEVICE float warp_max(float v) { for (int step = 16; step; step >>= 1) v = fmaxf(v, __shfl_xor_sync(ALL, v, step)); return v; }

DEVICE float block_sum(float v, float *part)
{
    u32 lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    v = warp_sum(v);
    if (lane == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? part[lane] : 0.0f);
    __syncthreads();
    return v;
}

DEVICE float block_max(float v, float *part)
{
    u32 lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    v = warp_max(v);
    if (lane == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = warp_max(lane < warps ? part[lane] : NEG_INF);
    __syncthreads();
    return v;
}

// ---- RMSNorm with the residual:  x += r;  y = bf16(x / sqrt(mean of x^2 + eps) * (1 + w))
//   x float [rows][n]   r bf16 [rows][n] or NULL   w bf16 [n]   y bf16 [rows][n]      launch: a block of whole warps per row
KERNEL rms_norm(float *x, const bf16 *r, const bf16 *w, bf16 *y, int n, float eps)
{
    __shared__ float part[32];
    u64 row = (u64)blockIdx.x * n;
    float square = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        float v = x[row + i] + (r ? wide(r[row + i]) : 0.0f);
        x[row + i] = v;
        square += v * v;
    }
    float scale = rsqrtf(block_sum(square, part) / (float)n + eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[row + i] = narrow(x[row + i] * scale * (1.0f + wide(w[i])));
}

// ---- GEMV:  y[r] = sum of W[r][c] * x[c].  One warp per row, 16-byte loads; cols a multiple of 8 (bf16) or 64 (NF4)

DEVICE uint4 load_once(const void *p)                         // weights are read once: past L1
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE float dot2(u32 a, u32 b, float sum) { return wide_hi(a) * wide_hi(b) + (wide_lo(a) * wide_lo(b) + sum); }

KERNEL __launch_bounds__(128) gemv_bf16(const bf16 *__restrict__ W, const bf16 *__restrict__ x, float *__restrict__ y, int rows, int cols)
{
    int row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= rows) return;
    const uint4 *wp = (const uint4 *)(W + (u64)row * cols), *xp = (const uint4 *)x;
    float sum = 0.0f;
    for (int i = lane; i < cols / 8; i += 32) {
        uint4 w = load_once(wp + i), v = __ldg(xp + i);
        sum = dot2(w.x, v.x, dot2(w.y, v.y, dot2(w.z, v.z, dot2(w.w, v.w, sum))));
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] = sum;
}

// NF4 with double quantisation: 64 weights share absmax = code[q[b]] * outer[b / 256] + offset; the first of two weights is the high nibble.
__constant__ float nf4_value[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
    -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f
};
DEVICE float absmax_of(u64 element, const u8 *q, const float *outer, const float *code, float offset)
{
    return code[q[element >> 6]] * outer[element >> 14] + offset;
}

// by a table in shared memory
KERNEL __launch_bounds__(128) gemv_nf4_lut(const u8 *__restrict__ W, const u8 *__restrict__ q, const float *__restrict__ outer, const float *__restrict__ code,
    float offset, const bf16 *__restrict__ x, float *__restrict__ y, int rows, int cols)
{
    __shared__ float value[16], codes[256];
    if (threadIdx.x < 16) value[threadIdx.x] = nf4_value[threadIdx.x];
    for (int i = threadIdx.x; i < 256; i += 128) codes[i] = code[i];
    __syncthreads();
    int row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = lane * 32; c < cols; c += 1024) {
        u64 e = (u64)row * cols + c;
        uint4 w4 = load_once(W + e / 2);
        u32 w[4] = { w4.x, w4.y, w4.z, w4.w };
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint4 v4 = __ldg((const uint4 *)(x + c) + j);
            u32 v[4] = { v4.x, v4.y, v4.z, v4.w };
#pragma unroll
            for (int k = 0; k < 4; k++) {
                u32 byte = w[j] >> 8 * k & 255;
                part += value[byte >> 4] * wide_lo(v[k]);
                part += value[byte & 15] * wide_hi(v[k]);
            }
        }
        sum += part * absmax_of(e, q, outer, codes, offset);
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] = sum;
}

// by byte permutation: 16 codes in bf16 are 16 low and 16 high bytes, 8 of them in two registers
DEVICE u32 look_up4(u32 a, u32 b, u32 c, u32 d, u32 nibbles)
{
    u32 lower = __byte_perm(a, b, nibbles & 0x7777), upper = __byte_perm(c, d, nibbles & 0x7777);
    return __byte_perm(lower, upper, (nibbles & 0x8888) >> 1 | 0x3210);
}
DEVICE void nf4_to_bf16(u32 w, u32 *out)                      // 8 weights to 4 pairs, in order
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        u32 n = w >> 16 * h;
        u32 low = look_up4(0xca063280u, 0x00ba3d92u, 0xad7c25a3u, 0x803910e2u, n);
        u32 high = look_up4(0xbebfbfbfu, 0x00bdbebeu, 0x3e3e3e3du, 0x3f3f3f3eu, n);
        out[2 * h] = __byte_perm(low, high, 0x4051);
        out[2 * h + 1] = __byte_perm(low, high, 0x6273);
    }
}
KERNEL __launch_bounds__(128) gemv_nf4_prmt(const u8 *__restrict__ W, const u8 *__restrict__ q, const float *__restrict__ outer, const float *__restrict__ code,
    float offset, const bf16 *__restrict__ x, float *__restrict__ y, int rows, int cols)
{
    int row = blockIdx.x * 4 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = lane * 32; c < cols; c += 1024) {
        u64 e = (u64)row * cols + c;
        uint4 w4 = load_once(W + e / 2);
        u32 w[4] = { w4.x, w4.y, w4.z, w4.w };
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint4 v = __ldg((const uint4 *)(x + c) + j);
            u32 p[4];
            nf4_to_bf16(w[j], p);
            part = dot2(p[0], v.x, dot2(p[1], v.y, dot2(p[2], v.z, dot2(p[3], v.w, part))));
        }
        sum += part * absmax_of(e, q, outer, code, offset);
    }
    sum = warp_sum(sum);
    if (lane == 0) y[row] = sum;
}

// ---- tensor cores

DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void copy16(u32 to, const void *from, bool real)       // 16 bytes to shared memory, zeros when not real
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(real ? 16 : 0));
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(N)); }
DEVICE void load_tiles(u32 *r, u32 at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
DEVICE void load_tiles_trans(u32 *r, u32 at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
DEVICE void mma(float *d, const u32 *a, const u32 *b)         // d[16][8] += a[16][16] * b[16][8]
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// A tile of shared memory has rows of `chunks` times 16 bytes; chunks are exchanged within a row so that eight rows meet all banks.
template <int chunks> DEVICE u32 tile(int row, int chunk) { return (row * chunks + (chunk ^ (row & 7))) * 16; }

// GEMM:  C[m][n] = sum of A[m][k] * NF4 W[n][k].  A bf16 [M][K], W [N][K]; N and K multiples of 64
//   launch: grid (N / 64, M / 64 rounded up), 128 threads as 2 x 2 warps of 32 x 32; dynamic shared memory 16 KB A (two stages) + 4 KB W + 8 KB B
enum { GEMM_W = 16384, GEMM_B = GEMM_W + 4096, GEMM_SHARED = GEMM_B + 8192 };

DEVICE void gemm_fetch(u32 base, int stage, int k, const bf16 *A, const u8 *W, int M, int K)
{
    int t = threadIdx.x, m0 = blockIdx.y * 64, n0 = blockIdx.x * 64;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int r = (t + i * 128) >> 3, c = t & 7;
        bool real = m0 + r < M;
        copy16(base + stage * 8192 + tile<8>(r, c), A + (u64)(real ? m0 + r : 0) * K + k * 64 + c * 8, real);
    }
    copy16(base + GEMM_W + stage * 2048 + t * 16, W + ((u64)(n0 + (t >> 1)) * K + k * 64) / 2 + (t & 1) * 16, true);
    copy_commit();
}

DEVICE void gemm_widen(u8 *shared, int stage, float absmax)   // a thread widens 32 weights of one row
{
    int t = threadIdx.x;
    uint4 q4 = *(const uint4 *)(shared + GEMM_W + stage * 2048 + t * 16);
    u32 q[4] = { q4.x, q4.y, q4.z, q4.w };
#pragma unroll
    for (int j = 0; j < 4; j++) {
        u32 p[4];
        nf4_to_bf16(q[j], p);
#pragma unroll
        for (int k = 0; k < 4; k++) p[k] = narrow2(wide_lo(p[k]) * absmax, wide_hi(p[k]) * absmax);
        *(uint4 *)(shared + GEMM_B + tile<8>(t >> 1, (t & 1) * 4 + j)) = make_uint4(p[0], p[1], p[2], p[3]);
    }
}

DEVICE void gemm_multiply(u32 a_base, u32 b_base, float (*acc)[4][4])
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, m = (warp & 1) * 32, n = (warp >> 1) * 32;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        u32 a[2][4], b[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) load_tiles(a[i], a_base + tile<8>(m + i * 16 + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
        for (int i = 0; i < 2; i++) load_tiles(b[i], b_base + tile<8>(n + i * 16 + (lane & 7) + (lane >> 4) * 8, k * 2 + (lane >> 3 & 1)));
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) mma(acc[i][j], a[i], &b[j >> 1][(j & 1) * 2]);
    }
}

KERNEL __launch_bounds__(128) gemm_nf4(const bf16 *__restrict__ A, const u8 *__restrict__ W, const u8 *__restrict__ q, const float *__restrict__ outer,
    const float *__restrict__ code, float offset, float *__restrict__ C, int M, int N, int K)
{
    extern __shared__ __align__(128) u8 shared[];
    u32 base = shared_address(shared);
    int t = threadIdx.x, lane = t & 31, warp = t >> 5, steps = K / 64;
    float acc[2][4][4] = {};
    gemm_fetch(base, 0, 0, A, W, M, K);
    for (int k = 0; k < steps; k++) {
        if (k + 1 < steps) { gemm_fetch(base, (k + 1) & 1, k + 1, A, W, M, K); copy_wait<1>(); }
        else copy_wait<0>();
        __syncthreads();
        gemm_widen(shared, k & 1, absmax_of((u64)(blockIdx.x * 64 + (t >> 1)) * K + k * 64, q, outer, code, offset));
        __syncthreads();
        gemm_multiply(base + (k & 1) * 8192, base + GEMM_B, acc);
        __syncthreads();
    }
    int row = blockIdx.y * 64 + (warp & 1) * 32 + (lane >> 2), col = blockIdx.x * 64 + (warp >> 1) * 32 + (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                int r = row + i * 16 + h * 8;
                if (r < M) *(float2 *)(C + (u64)r * N + col + j * 8) = make_float2(acc[i][j][2 * h], acc[i][j][2 * h + 1]);
            }
}

// ---- attention over a cache of e4m3 keys and values [position][kv_heads][D];  q bf16 [token][q_heads][D];  scale2 = log2(e) / sqrt(D)

DEVICE float dot8(const float *a, uint2 b)
{
    float2 p = e4m3x2_to_float2(b.x), q = e4m3x2_to_float2(b.x >> 16), r = e4m3x2_to_float2(b.y), s = e4m3x2_to_float2(b.y >> 16);
    return a[0] * p.x + a[1] * p.y + a[2] * q.x + a[3] * q.y + a[4] * r.x + a[5] * r.y + a[6] * s.x + a[7] * s.y;
}
DEVICE void scale_add8(float *o, float keep, float weight, uint2 b)
{
    float2 v[4] = { e4m3x2_to_float2(b.x), e4m3x2_to_float2(b.x >> 16), e4m3x2_to_float2(b.y), e4m3x2_to_float2(b.y >> 16) };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        o[2 * i] = o[2 * i] * keep + weight * v[i].x;
        o[2 * i + 1] = o[2 * i + 1] * keep + weight * v[i].y;
    }
}

// Decoding, D = 256: a block takes one head and one of `splits` parts of the positions [start, start + len); a warp every fourth of them
//   part float [q_heads][splits][256]   stat float2 [q_heads][splits]: maximum, sum      launch: grid (q_heads, splits), 128 threads
KERNEL __launch_bounds__(128) attend_decode(const bf16 *__restrict__ q, const u8 *__restrict__ keys, const u8 *__restrict__ values, float *__restrict__ part,
    float2 *__restrict__ stat, int q_heads, int kv_heads, int start, int len, int splits, float scale2)
{
    __shared__ float out[4][256];
    __shared__ float2 stats[4];
    int head = blockIdx.x, kv = head / (q_heads / kv_heads), split = blockIdx.y, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int each = (len + splits - 1) / splits, first = start + split * each, end = min(first + each, start + len);
    uint4 q4 = *(const uint4 *)(q + head * 256 + lane * 8);
    float query[8] = { wide_lo(q4.x), wide_hi(q4.x), wide_lo(q4.y), wide_hi(q4.y), wide_lo(q4.z), wide_hi(q4.z), wide_lo(q4.w), wide_hi(q4.w) };
    float top = NEG_INF, sum = 0.0f, o[8] = {};
    for (int p = first + warp; p < end; p += 4) {
        u64 at = ((u64)p * kv_heads + kv) * 256 + lane * 8;
        float score = warp_sum(dot8(query, *(const uint2 *)(keys + at))) * scale2;
        float next = fmaxf(top, score), keep = exp2_fast(top - next), weight = exp2_fast(score - next);
        top = next;
        sum = sum * keep + weight;
        scale_add8(o, keep, weight, *(const uint2 *)(values + at));
    }
#pragma unroll
    for (int i = 0; i < 8; i++) out[warp][lane * 8 + i] = o[i];
    if (lane == 0) stats[warp] = make_float2(top, sum);
    __syncthreads();
    top = fmaxf(fmaxf(stats[0].x, stats[1].x), fmaxf(stats[2].x, stats[3].x));
    float share[4], total = 0.0f;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        share[w] = top == NEG_INF ? 0.0f : exp2_fast(stats[w].x - top);
        total += share[w] * stats[w].y;
    }
    for (int d = threadIdx.x; d < 256; d += 128) {
        float v = 0.0f;
#pragma unroll
        for (int w = 0; w < 4; w++) v += out[w][d] * share[w];
        part[((u64)head * splits + split) * 256 + d] = v;
    }
    if (threadIdx.x == 0) stat[head * splits + split] = make_float2(top, total);
}

// out bf16 [q_heads][256]      launch: a block of 256 threads per head
KERNEL attend_merge(const float *__restrict__ part, const float2 *__restrict__ stat, bf16 *__restrict__ out, int splits)
{
    int head = blockIdx.x, d = threadIdx.x;
    float top = NEG_INF, sum = 0.0f, v = 0.0f;
    for (int i = 0; i < splits; i++) top = fmaxf(top, stat[head * splits + i].x);
    for (int i = 0; i < splits; i++) {
        float2 s = stat[head * splits + i];
        float share = exp2_fast(s.x - top);
        sum += s.y * share;
        v += part[((u64)head * splits + i) * 256 + d] * share;
    }
    out[head * 256 + d] = narrow(__fdividef(v, sum));
}

// A prompt, D = 128: a block takes one head and 64 queries, a warp 16 of them; 32 positions at a time are widened to bf16 in shared memory.
// Query r stands at position start + r and sees the last `window` positions up to its own.
//   out bf16 [T][q_heads][128]      launch: grid (T / 64 rounded up, q_heads), 128 threads; dynamic shared memory 16 KB Q + 8 KB K + 8 KB V
enum { PRE_D = 128, PRE_K = 64 * PRE_D * 2, PRE_V = PRE_K + 32 * PRE_D * 2, PRE_SHARED = PRE_V + 32 * PRE_D * 2 };

DEVICE void widen16(uint4 x, u8 *base, int row, int chunk)    // 16 e4m3 to 16 bf16
{
    u32 in[4] = { x.x, x.y, x.z, x.w }, o[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float2 f = e4m3x2_to_float2(in[j >> 1] >> 16 * (j & 1));
        o[j] = narrow2(f.x, f.y);
    }
    *(uint4 *)(base + tile<16>(row, 2 * chunk)) = make_uint4(o[0], o[1], o[2], o[3]);
    *(uint4 *)(base + tile<16>(row, 2 * chunk + 1)) = make_uint4(o[4], o[5], o[6], o[7]);
}
DEVICE void prefill_fetch(u8 *shared, const u8 *keys, const u8 *values, int first, int last, int kv, int kv_heads)
{
    for (int i = threadIdx.x; i < 32 * 8; i += 128) {
        int r = i >> 3, c = i & 7, p = first + r;
        uint4 k = make_uint4(0, 0, 0, 0), v = k;
        if (p <= last) {
            u64 at = ((u64)p * kv_heads + kv) * PRE_D + c * 16;
            k = *(const uint4 *)(keys + at);
            v = *(const uint4 *)(values + at);
        }
        widen16(k, shared + PRE_K, r, c);
        widen16(v, shared + PRE_V, r, c);
    }
}
DEVICE void prefill_scores(u32 base, int warp, int lane, float (*s)[4])    // S[16][32] = Q * K^T
{
#pragma unroll
    for (int d = 0; d < PRE_D / 16; d++) {
        u32 a[4], b[2][4];
        load_tiles(a, base + tile<16>(warp * 16 + (lane & 15), d * 2 + (lane >> 4)));
#pragma unroll
        for (int i = 0; i < 2; i++) load_tiles(b[i], base + PRE_K + tile<16>(i * 16 + (lane & 7) + (lane >> 4) * 8, d * 2 + (lane >> 3 & 1)));
#pragma unroll
        for (int j = 0; j < 4; j++) mma(s[j], a, &b[j >> 1][(j & 1) * 2]);
    }
}
// One of a thread's two rows: masks, turns scores into weights relative to the new maximum, and returns by what the old sums shrink.
DEVICE float prefill_weigh(float (*s)[4], int half, int query, int first, int window, int lane, float scale2, float *top, float *sum)
{
    float next = *top, add = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            int p = first + j * 8 + (lane & 3) * 2 + e;
            float v = p <= query && p > query - window ? s[j][half * 2 + e] * scale2 : NEG_INF;
            s[j][half * 2 + e] = v;
            next = fmaxf(next, v);
        }
    next = fmaxf(next, __shfl_xor_sync(ALL, next, 1));
    next = fmaxf(next, __shfl_xor_sync(ALL, next, 2));
    float keep = *top == NEG_INF ? 0.0f : exp2_fast(*top - next);
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float v = s[j][half * 2 + e];
            v = v == NEG_INF ? 0.0f : exp2_fast(v - next);
            s[j][half * 2 + e] = v;
            add += v;
        }
    *top = next;
    *sum = *sum * keep + add;
    return keep;
}
DEVICE void prefill_values(u32 base, int lane, float (*s)[4], float (*o)[4])    // O += S * V: the scores' layout is that of the first factor
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        u32 a[4] = { narrow2(s[2 * k][0], s[2 * k][1]), narrow2(s[2 * k][2], s[2 * k][3]),
                     narrow2(s[2 * k + 1][0], s[2 * k + 1][1]), narrow2(s[2 * k + 1][2], s[2 * k + 1][3]) };
#pragma unroll
        for (int j = 0; j < PRE_D / 16; j++) {
            u32 b[4];
            load_tiles_trans(b, base + PRE_V + tile<16>(k * 16 + (lane & 15), j * 2 + (lane >> 4)));
            mma(o[2 * j], a, b);
            mma(o[2 * j + 1], a, b + 2);
        }
    }
}
KERNEL __launch_bounds__(128) attend_prefill(const bf16 *__restrict__ q, const u8 *__restrict__ keys, const u8 *__restrict__ values, bf16 *__restrict__ out,
    int q_heads, int kv_heads, int T, int start, int window, float scale2)
{
    extern __shared__ __align__(128) u8 shared[];
    u32 base = shared_address(shared);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y, kv = head / (q_heads / kv_heads), row = blockIdx.x * 64;
    for (int i = threadIdx.x; i < 64 * 16; i += 128) {
        int r = i >> 4, c = i & 15;
        bool real = row + r < T;
        copy16(base + tile<16>(r, c), q + ((u64)(real ? row + r : 0) * q_heads + head) * PRE_D + c * 8, real);
    }
    copy_commit();
    copy_wait<0>();
    float o[PRE_D / 8][4] = {}, top[2] = { NEG_INF, NEG_INF }, sum[2] = {};
    int last = min(row + 63, T - 1) + start;
    for (int first = max(0, row + start - window + 1) & ~31; first <= last; first += 32) {
        __syncthreads();
        prefill_fetch(shared, keys, values, first, last, kv, kv_heads);
        __syncthreads();
        float s[4][4] = {};
        prefill_scores(base, warp, lane, s);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int query = row + warp * 16 + (lane >> 2) + half * 8 + start;
            float keep = prefill_weigh(s, half, query, first, window, lane, scale2, &top[half], &sum[half]);
#pragma unroll
            for (int j = 0; j < PRE_D / 8; j++) { o[j][half * 2] *= keep; o[j][half * 2 + 1] *= keep; }
        }
        prefill_values(base, lane, s, o);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float z = sum[half] + __shfl_xor_sync(ALL, sum[half], 1);
        float inverse = 1.0f / (z + __shfl_xor_sync(ALL, z, 2));
        int r = row + warp * 16 + (lane >> 2) + half * 8;
        if (r < T)
#pragma unroll
            for (int j = 0; j < PRE_D / 8; j++)
                *(u32 *)(out + ((u64)r * q_heads + head) * PRE_D + j * 8 + (lane & 3) * 2) = narrow2(o[j][half * 2] * inverse, o[j][half * 2 + 1] * inverse);
    }
}

// ---- RoPE, D = 256, halves as pairs:  a' = a cos - b sin, b' = b cos + a sin, angle = position / base^(i / 128); keys go to the cache as e4m3
//   x bf16 [heads][256], normalised first      cache u8 [heads][256]      launch: a block of 128 threads per head
KERNEL rope_cache(bf16 *x, u8 *cache, const int *position, float log2_base, float stretch)
{
    __shared__ float part[32];
    int i = threadIdx.x;
    bf16 *row = x + blockIdx.x * 256;
    u8 *to = cache + blockIdx.x * 256;
    float a = wide(row[i]), b = wide(row[i + 128]), s, c;
    float scale = rsqrtf(block_sum(a * a + b * b, part) / 256.0f + 1e-6f);
    sincosf((float)*position * stretch * exp2f(-log2_base * (float)i / 128.0f), &s, &c);
    float u = (a * c - b * s) * scale, v = (b * c + a * s) * scale;
    row[i] = narrow(u);
    row[i + 128] = narrow(v);
    float next_u = __shfl_down_sync(ALL, u, 1), next_v = __shfl_down_sync(ALL, v, 1);
    if (i & 1) return;
    *(unsigned short *)(to + i) = (unsigned short)to_e4m3x2(u, next_u);
    *(unsigned short *)(to + i + 128) = (unsigned short)to_e4m3x2(v, next_v);
}
// the same turn from a table of cosines and sines [position][128]
KERNEL rope_table(bf16 *x, const float2 *__restrict__ table, const int *__restrict__ position)
{
    int i = threadIdx.x;
    bf16 *row = x + blockIdx.x * 256;
    float2 t = table[(u64)*position * 128 + i];
    float a = wide(row[i]), b = wide(row[i + 128]);
    row[i] = narrow(a * t.x - b * t.y);
    row[i + 128] = narrow(b * t.x + a * t.y);
}

// ---- element by element

DEVICE float gelu_argument(float x) { return 0.7978845608028654f * (x + 0.044715f * x * x * x); }
// y = gelu(gate) * up, gelu by its tanh formula: with the exact tanh, and with the hardware's
KERNEL geglu(const float *gate, const float *up, bf16 *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = narrow(0.5f * gate[i] * (1.0f + tanhf(gelu_argument(gate[i]))) * up[i]);
}
KERNEL geglu_fast(const float *gate, const float *up, bf16 *y, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = narrow(0.5f * gate[i] * (1.0f + tanh_fast(gelu_argument(gate[i]))) * up[i]);
}
// x[token] = E[id of token] * scale      launch: a block per token
KERNEL embed(const int *__restrict__ ids, const bf16 *__restrict__ E, float *__restrict__ x, int d, float scale)
{
    for (int i = threadIdx.x; i < d; i += blockDim.x) x[(u64)blockIdx.x * d + i] = wide(E[(u64)ids[blockIdx.x] * d + i]) * scale;
}

// ---- sampling

// A float's bits, turned so that unsigned order is the order of the numbers.
DEVICE u32 order_key(float f) { u32 u = __float_as_uint(f); return u ^ ((u32)((int)u >> 31) | 0x80000000u); }

// best = max over i of (key of x[i], ~i): the largest number, the first of equal ones      *best starts as 0
KERNEL argmax(const float *x, int n, u64 *best)
{
    u64 mine = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u64 v = (u64)order_key(x[i]) << 32 | (u32)~i;
        mine = v > mine ? v : mine;
    }
    for (int step = 16; step; step >>= 1) {
        u64 other = __shfl_down_sync(ALL, mine, step);
        mine = other > mine ? other : mine;
    }
    if ((threadIdx.x & 31) == 0) atomicMax(best, mine);
}

// hist[byte] += how many keys have this byte at `shift`, of those whose bits above it are `prefix`      launch: 256 threads
KERNEL top_k_histogram(const float *__restrict__ x, int n, u32 *__restrict__ hist, u32 prefix, int shift)
{
    __shared__ u32 count[256];
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) {
        u32 key = order_key(x[i]);
        if (shift == 24 || key >> (shift + 8) == prefix) atomicAdd(&count[key >> shift & 255], 1u);
    }
    __syncthreads();
    if (count[threadIdx.x]) atomicAdd(hist + threadIdx.x, count[threadIdx.x]);
}

// out[0 .. *count): (key, index) of all numbers with key >= threshold, in any order; a warp reserves its places at once
KERNEL top_k_collect(const float *__restrict__ x, int n, u32 threshold, uint2 *__restrict__ out, u32 *count, u32 room)
{
    u32 lane = threadIdx.x & 31;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 key = order_key(x[i]), mask = __ballot_sync(__activemask(), key >= threshold), at = 0;
        if (key < threshold) continue;
        u32 leader = __ffs(mask) - 1;
        if (lane == leader) at = atomicAdd(count, __popc(mask));
        at = __shfl_sync(mask, at, leader) + __popc(mask & ((1u << lane) - 1));
        if (at < room) out[at] = make_uint2(key, i);
    }
}

// *out = the first i with  sum of e[0..i] > uniform * sum of e,  e = exp((x - max) / temperature)      x becomes e; launch: one block of 256
KERNEL sample(float *x, int n, float inverse_temperature, float uniform, int *out)
{
    __shared__ float part[32], before[256];
    int t = threadIdx.x, each = (n + 255) / 256, first = min(t * each, n), end = min(first + each, n);
    float top = NEG_INF, sum = 0.0f;
    for (int i = t; i < n; i += 256) top = fmaxf(top, x[i]);
    top = block_max(top, part);
    for (int i = t; i < n; i += 256) x[i] = __expf((x[i] - top) * inverse_temperature);
    __syncthreads();
    for (int i = first; i < end; i++) sum += x[i];
    float upto = sum;
    for (int step = 1; step < 32; step <<= 1) {
        float v = __shfl_up_sync(ALL, upto, step);
        if ((t & 31) >= step) upto += v;
    }
    if ((t & 31) == 31) part[t >> 5] = upto;
    __syncthreads();
    float base = 0.0f, total = 0.0f;
    for (int w = 0; w < 8; w++) { if (w < t >> 5) base += part[w]; total += part[w]; }
    before[t] = base + upto - sum;
    __syncthreads();
    float goal = uniform * total, at = before[t];
    if (goal < at || (t < 255 && goal >= before[t + 1])) return;
    for (int i = first; i < end; i++) {
        at += x[i];
        if (at > goal || i == n - 1) { *out = i; return; }
    }
}

// ---- a sum over the grid in one launch: the last block to arrive adds the parts      *arrived starts as 0 and ends as 0
KERNEL grid_sum(const float *__restrict__ x, volatile float *parts, u32 *arrived, float *out, int n)
{
    __shared__ float part[32];
    __shared__ int last;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
        __threadfence();
        last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!__syncthreads_or(threadIdx.x == 0 && last)) return;
    sum = 0.0f;
    for (int i = threadIdx.x; i < (int)gridDim.x; i += blockDim.x) sum += parts[i];
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) *out = sum;
}
