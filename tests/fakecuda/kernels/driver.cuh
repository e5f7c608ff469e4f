// Kernels for the tests of the driver and of the checks. Each planted bug has an innocent twin: the same kernel, told by an argument or a name.

// y[i] = value
extern "C" __global__ void fill(float *y, float value, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] = value;
}

// y[i] += x[i], exact up to n; a larger n reads behind the arrays
extern "C" __global__ void add(float *y, const float *x, int n)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) y[i] += x[i];
}

// y[0] = x[offset .. offset + 3] summed, by one 16-byte load: offset must be a multiple of 4
extern "C" __global__ void load4(float *y, const float *x, int offset)
{
    float4 v = *(const float4 *)(x + offset);
    y[0] = v.x + v.y + v.z + v.w;
}

extern "C" __global__ void __launch_bounds__(128) bounded(float *y) { y[threadIdx.x] = 1.0f; }

extern "C" __global__ void dynamic_shared(float *y, int n)
{
    extern __shared__ float s[];
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) s[i] = (float)i;
    __syncthreads();
    if (threadIdx.x == 0) y[0] = s[n - 1];
}

// racecheck: one thread reads what another of a different warp wrote, with and without a barrier between
extern "C" __global__ void neighbour_barrier(float *y)
{
    __shared__ float s[64];
    s[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    y[threadIdx.x] = s[63 - threadIdx.x];
}
extern "C" __global__ void neighbour_race(float *y)
{
    __shared__ float s[64];
    s[threadIdx.x] = (float)threadIdx.x;
    y[threadIdx.x] = s[63 - threadIdx.x];
}

// synccheck: a shuffle that names all 32 lanes where only some of them come by while the rest waits, and one that names those that do
extern "C" __global__ void shuffle_all_named(float *y)
{
    float v = (float)threadIdx.x;
    if (threadIdx.x < 8) v = __shfl_xor_sync(0xffffffffu, v, 1);
    __syncwarp();
    y[threadIdx.x] = v;
}
extern "C" __global__ void shuffle_some_named(float *y)
{
    float v = (float)threadIdx.x;
    if (threadIdx.x < 8) v = __shfl_xor_sync(0x000000ffu, v, 1);
    __syncwarp();
    y[threadIdx.x] = v;
}

// synccheck, strict: a barrier that part of the block never reaches
extern "C" __global__ void barrier_for(float *y, int reach)
{
    __shared__ float s[64];
    s[threadIdx.x] = 1.0f;
    if ((int)threadIdx.x < reach) __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}

// nc-after-write: a value is written and then read by way of the read-only cache, from the same array or from another
extern "C" __global__ void write_then_nc(float *w, const float *r)
{
    float v;
    w[threadIdx.x] = 2.0f;
    asm volatile("ld.global.nc.f32 %0, [%1];" : "=f"(v) : "l"(r + threadIdx.x));
    w[threadIdx.x] = v + 1.0f;
}

// cp.async: with and without the wait for its group
__device__ __forceinline__ void copy_async(float *s, const float *x)
{
    unsigned d = (unsigned)__cvta_generic_to_shared(s);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\ncp.async.commit_group;" : : "r"(d), "l"(x) : "memory");
}
extern "C" __global__ void async_waited(float *y, const float *x)
{
    __shared__ __align__(16) float s[128];
    copy_async(s + threadIdx.x * 4, x + threadIdx.x * 4);
    asm volatile("cp.async.wait_group 0;" : : : "memory");
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void async_not_waited(float *y, const float *x)
{
    __shared__ __align__(16) float s[128];
    copy_async(s + threadIdx.x * 4, x + threadIdx.x * 4);
    __syncthreads();
    y[threadIdx.x] = s[threadIdx.x];
}

__device__ float table[4] = {1.0f, 2.0f, 3.0f, 4.0f};
extern "C" __global__ void read_table(float *y) { y[threadIdx.x] = table[threadIdx.x & 3]; }

extern "C" __global__ void forever(int *y) { while (*(volatile int *)y == 0) {} }
