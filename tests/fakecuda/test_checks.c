// Each check of the emulated card reports its planted bug, under its own name, and says nothing about the bug's innocent twin.
#include "driver_test.h"

static char *ptx;

// One kernel of one block on a fresh card, with the checks in this list on. Arguments follow the kernel's.
typedef struct plant { const char *checks, *kernel; unsigned threads; void **args; } plant;

static void fresh_with(const char *checks)
{
    fresh();
    if (FC.set("checks", checks) != 1) fprintf(stderr, "no field checks=%s\n", checks), exit(1);
}

static CUresult run_kernel(const char *kernel, unsigned threads, void **args)
{
    CUfunction f = function(load_module(ptx), kernel);
    CUresult r = CU.cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, 0, NULL, args, NULL);
    return r != CUDA_SUCCESS ? r : CU.cuCtxSynchronize();
}

#define NEED() do { if (!ptx && (ptx = ptx_of("tests/fakecuda/kernels/driver.cuh", 80)) == NULL) SKIP("no NVRTC"); } while (0)
#define SILENT() CHECK(FC.reports(NULL) == 0)

static int memcheck_sees_the_first_byte_behind_an_array(void)
{
    NEED();
    float x[33] = {0};
    for (int n = 32; n <= 33; n++) {
        fresh_with("memcheck");
        CUdeviceptr y = device_floats(x, 33), d = device_floats(x, 32);
        CUresult r = run_kernel("add", 64, (void *[]){&y, &d, &n});
        if (n == 32) { CHECK(r == CUDA_SUCCESS); SILENT(); }
        else CHECK(r == CUDA_ERROR_ILLEGAL_ADDRESS && FC.reports("memcheck") >= 1);
    }
    return 0;
}

static int memcheck_sees_a_misaligned_vector(void)
{
    NEED();
    float x[32] = {0};
    for (int offset = 0; offset <= 8; offset++) {
        fresh_with("memcheck");
        CUdeviceptr y = device_floats(x, 1), d = device_floats(x, 32);
        CUresult r = run_kernel("load4", 1, (void *[]){&y, &d, &offset});
        if (offset % 4 == 0) { CHECK(r == CUDA_SUCCESS); SILENT(); }
        else CHECK(r == CUDA_ERROR_MISALIGNED_ADDRESS && FC.reports("memcheck") >= 1);
    }
    return 0;
}

static int memcheck_sees_a_use_after_the_free(void)
{
    NEED();
    float x[32] = {0};
    int n = 32;
    fresh_with("memcheck");
    CUdeviceptr y = device_floats(x, 32), d = device_floats(x, 32);
    CHECK(run_kernel("add", 32, (void *[]){&y, &d, &n}) == CUDA_SUCCESS);
    SILENT();
    CHECK(CU.cuMemFree_v2(d) == CUDA_SUCCESS && run_kernel("add", 32, (void *[]){&y, &d, &n}) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(FC.reports("memcheck") >= 1 && FC.report(0) && strstr(FC.report(0), "freed"));
    return 0;
}

static int initcheck_sees_a_read_of_what_no_one_wrote(void)
{
    NEED();
    float x[32] = {0};
    int n = 32;
    fresh_with("initcheck");
    CUdeviceptr y = device_floats(x, 32), d = device_floats(NULL, 32);
    CHECK(CU.cuMemcpyHtoD_v2(d, x, 124) == CUDA_SUCCESS);                    // all but the last
    CHECK(run_kernel("add", 31, (void *[]){&y, &d, &n}) == CUDA_SUCCESS);
    SILENT();
    run_kernel("add", 32, (void *[]){&y, &d, &n});
    CHECK(FC.reports("initcheck") >= 1);
    return 0;
}

static int initcheck_counts_kernels_fills_and_copies_as_writes(void)
{
    NEED();
    float v = 1, x[32] = {0};
    int n = 32;
    fresh_with("initcheck");
    CUdeviceptr y = device_floats(x, 32), a = device_floats(NULL, 32), b = device_floats(NULL, 32), c = device_floats(NULL, 32);
    CHECK(run_kernel("fill", 32, (void *[]){&a, &v, &n}) == CUDA_SUCCESS && run_kernel("add", 32, (void *[]){&y, &a, &n}) == CUDA_SUCCESS);
    CHECK(CU.cuMemsetD8_v2(b, 0, 128) == CUDA_SUCCESS && run_kernel("add", 32, (void *[]){&y, &b, &n}) == CUDA_SUCCESS);
    CHECK(CU.cuMemcpyDtoD_v2(c, a, 128) == CUDA_SUCCESS && run_kernel("add", 32, (void *[]){&y, &c, &n}) == CUDA_SUCCESS);
    SILENT();
    CUdeviceptr e = device_floats(NULL, 32), f = device_floats(NULL, 32);    // a copy of nothing is nothing
    CHECK(CU.cuMemcpyDtoD_v2(e, f, 128) == CUDA_SUCCESS);
    run_kernel("add", 32, (void *[]){&y, &e, &n});
    CHECK(FC.reports("initcheck") >= 1);
    return 0;
}

static int racecheck_sees_a_missing_barrier(void)
{
    NEED();
    fresh_with("racecheck");
    CUdeviceptr y = device_floats(NULL, 64);
    CHECK(run_kernel("neighbour_barrier", 64, (void *[]){&y}) == CUDA_SUCCESS);
    SILENT();
    run_kernel("neighbour_race", 64, (void *[]){&y});
    CHECK(FC.reports("racecheck") >= 1);
    return 0;
}

static int synccheck_sees_lanes_that_are_named_and_missing(void)
{
    NEED();
    fresh_with("synccheck");
    CUdeviceptr y = device_floats(NULL, 32);
    CHECK(run_kernel("shuffle_some_named", 32, (void *[]){&y}) == CUDA_SUCCESS);
    SILENT();
    CHECK(run_kernel("shuffle_all_named", 32, (void *[]){&y}) != CUDA_SUCCESS && FC.reports("synccheck") >= 1);
    return 0;
}

static int synccheck_sees_a_barrier_for_part_of_a_block(void)
{
    NEED();
    fresh_with("synccheck");
    CUdeviceptr y = device_floats(NULL, 64);
    int reach = 64;
    CHECK(run_kernel("barrier_for", 64, (void *[]){&y, &reach}) == CUDA_SUCCESS);
    SILENT();
    reach = 40;
    run_kernel("barrier_for", 64, (void *[]){&y, &reach});
    CHECK(FC.reports("synccheck") >= 1);
    return 0;
}

static int ncheck_sees_the_read_only_path_to_what_was_written(void)
{
    NEED();
    float x[32] = {0};
    fresh_with("nccheck");
    CUdeviceptr w = device_floats(x, 32), r = device_floats(x, 32);
    CHECK(run_kernel("write_then_nc", 32, (void *[]){&w, &r}) == CUDA_SUCCESS);
    SILENT();
    run_kernel("write_then_nc", 32, (void *[]){&w, &w});
    CHECK(FC.reports("nccheck") >= 1);
    return 0;
}

// Data of cp.async is there after the wait and not before: what a kernel reads too early is NaN.
static int a_missing_wait_for_async_copies_reads_nan(void)
{
    NEED();
    float x[128], y[32];
    for (int i = 0; i < 128; i++) x[i] = (float)i;
    fresh();
    CUdeviceptr d = device_floats(x, 128), o = device_floats(NULL, 32);
    CHECK(run_kernel("async_waited", 32, (void *[]){&o, &d}) == CUDA_SUCCESS && CU.cuMemcpyDtoH_v2(y, o, sizeof y) == CUDA_SUCCESS);
    for (int i = 0; i < 32; i++) CHECK(y[i] == (float)i);
    SILENT();
    CHECK(run_kernel("async_not_waited", 32, (void *[]){&o, &d}) == CUDA_SUCCESS && CU.cuMemcpyDtoH_v2(y, o, sizeof y) == CUDA_SUCCESS);
    for (int i = 0; i < 32; i++) CHECK(y[i] != y[i]);
    return 0;
}

int main(void)
{
    open_card();
    RUN(memcheck_sees_the_first_byte_behind_an_array);
    RUN(memcheck_sees_a_misaligned_vector);
    RUN(memcheck_sees_a_use_after_the_free);
    RUN(initcheck_sees_a_read_of_what_no_one_wrote);
    RUN(initcheck_counts_kernels_fills_and_copies_as_writes);
    RUN(racecheck_sees_a_missing_barrier);
    RUN(synccheck_sees_lanes_that_are_named_and_missing);
    RUN(synccheck_sees_a_barrier_for_part_of_a_block);
    RUN(ncheck_sees_the_read_only_path_to_what_was_written);
    RUN(a_missing_wait_for_async_copies_reads_nan);
    FC.reset();
    free(ptx);
    return test_done();
}
