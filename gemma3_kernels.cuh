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
//  - Spaces, printable ASCII, lines under 300 bytes, no two question marks in a row: the file lives on as C strings.

typedef unsigned short g3k__bf16;                     // the upper half of a float

static __device__ __forceinline__ float g3k__wide(g3k__bf16 h) { return __uint_as_float((unsigned)h << 16); }

// The sum over the block, in every thread; the same tree for every run. sum: one float per warp, in shared memory, free for use again on return.
static __device__ float g3k__block_sum(float v, float *sum)
{
    unsigned lane = threadIdx.x & 31, warps = blockDim.x >> 5;
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    if (lane == 0) sum[threadIdx.x >> 5] = v;
    __syncthreads();
    v = lane < warps ? sum[lane] : 0.0f;
    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);
    __syncthreads();
    return v;
}

// RMSNorm of n rows:  y[r][i] = x[r][i] / sqrt(mean of x[r]^2 + eps) * (1 + w[i])
//   x, y  float [n][d], may be the same array      w  bf16 [d]
//   launch: one block of 32 to 1024 threads (whole warps) per row, grid n; no dynamic shared memory
extern "C" __global__ void __launch_bounds__(1024) g3k_norm(float *y, const float *x, const g3k__bf16 *w, int d, float eps)
{
    __shared__ float sum[32];
    size_t row = (size_t)blockIdx.x * (size_t)d;
    float square = 0.0f;
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x) square += x[row + i] * x[row + i];
    float scale = 1.0f / sqrtf(g3k__block_sum(square, sum) / (float)d + eps);
    for (int i = (int)threadIdx.x; i < d; i += (int)blockDim.x) y[row + i] = x[row + i] * scale * (1.0f + g3k__wide(w[i]));
}
