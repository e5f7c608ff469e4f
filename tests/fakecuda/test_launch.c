// Modules and launches: which PTX is taken, what a launch may ask for, when arguments are copied, and how a kernel's fault shows.
#include "driver_test.h"
#include <unistd.h>
#include <unistd.h>

static char *ptx;
#define OK(call) CHECK((call) == CUDA_SUCCESS)
#define NEED() do { if (!ptx && (ptx = ptx_of("tests/fakecuda/kernels/driver.cuh", 80)) == NULL) SKIP("no NVRTC"); } while (0)

static CUresult launch1(CUfunction f, unsigned grid, unsigned block, unsigned shared, CUstream s, void **args)
{
    return CU.cuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, s, args, NULL);
}

static int a_kernel_runs(void)
{
    NEED();
    fresh();
    float y[100], x[100];
    for (int i = 0; i < 100; i++) x[i] = (float)i, y[i] = 1000;
    CUfunction add = function(load_module(ptx), "add");
    CUdeviceptr dy = device_floats(y, 100), dx = device_floats(x, 100);
    int n = 100;
    OK(launch1(add, 4, 32, 0, NULL, (void *[]){&dy, &dx, &n}));
    OK(CU.cuMemcpyDtoH_v2(y, dy, sizeof y));
    for (int i = 0; i < 100; i++) CHECK(y[i] == 1000 + (float)i);
    return 0;
}

static int only_ptx_that_driver_and_device_know_is_taken(void)
{
    NEED();
    CUmodule m;
    char log[256] = "";
    int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    fresh();
    FC.set("driver", "11000");
    CHECK(CU.cuModuleLoadDataEx(&m, ptx, 2, options, values) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION && strstr(log, "newer than the driver 11.0"));
    FC.set("driver", "13020");
    FC.set("cc", "75");
    CHECK(CU.cuModuleLoadData(&m, ptx) == CUDA_ERROR_NO_BINARY_FOR_GPU);
    FC.set("cc", "80");
    OK(CU.cuModuleLoadData(&m, ptx));
    CHECK(CU.cuModuleLoadData(&m, "\177ELF\2\1\1") == CUDA_ERROR_NO_BINARY_FOR_GPU);
    CHECK(CU.cuModuleLoadData(&m, "no ptx") == CUDA_ERROR_INVALID_PTX && CU.cuModuleLoadData(&m, "") == CUDA_ERROR_INVALID_IMAGE);
    return 0;
}

static int what_the_table_does_not_know_is_refused_by_name(void)
{
    CUmodule m;
    char log[512] = "";
    int options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)sizeof log};
    fresh();
    const char *text = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<3>;\nfrobnicate.u32 %r1, %r2;\nret;\n}\n";
    CHECK(CU.cuModuleLoadDataEx(&m, text, 2, options, values) == CUDA_ERROR_INVALID_PTX && strstr(log, "frobnicate.u32"));
    return 0;
}

static int names_are_looked_up(void)
{
    NEED();
    CUfunction f, g;
    CUdeviceptr p;
    size_t bytes;
    float y[4];
    fresh();
    CUmodule m = load_module(ptx);
    CHECK(CU.cuModuleGetFunction(&f, m, "no_such_kernel") == CUDA_ERROR_NOT_FOUND && CU.cuModuleGetGlobal_v2(&p, &bytes, m, "none") == CUDA_ERROR_NOT_FOUND);
    CHECK(CU.cuModuleGetFunction(&f, m, "fill") == CUDA_SUCCESS && CU.cuModuleGetFunction(&g, m, "fill") == CUDA_SUCCESS && f == g);
    CHECK(CU.cuModuleGetGlobal_v2(&p, &bytes, m, "table") == CUDA_SUCCESS && bytes == 16);
    OK(CU.cuMemsetD32_v2(p + 4, 0x41100000, 1));     // 9.0f
    CUdeviceptr d = device_floats(NULL, 4);
    OK(launch1(function(m, "read_table"), 1, 4, 0, NULL, (void *[]){&d}));
    OK(CU.cuMemcpyDtoH_v2(y, d, sizeof y));
    CHECK(y[0] == 1 && y[1] == 9 && y[2] == 3 && y[3] == 4);
    OK(CU.cuModuleUnload(m));
    CHECK(launch1(f, 1, 1, 0, NULL, NULL) == CUDA_ERROR_INVALID_HANDLE && CU.cuModuleGetFunction(&f, m, "fill") == CUDA_ERROR_INVALID_HANDLE);
    return 0;
}

static int the_size_of_a_launch_has_limits(void)
{
    NEED();
    fresh();
    CUmodule m = load_module(ptx);
    CUfunction fill = function(m, "fill"), bounded = function(m, "bounded");
    CUdeviceptr d = device_floats(NULL, 1024);
    float v = 1;
    int n = 1024, most;
    void *args[] = {&d, &v, &n};
    OK(launch1(fill, 1, 1024, 0, NULL, args));
    CHECK(launch1(fill, 1, 1025, 0, NULL, args) == CUDA_ERROR_INVALID_VALUE && launch1(fill, 0, 32, 0, NULL, args) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU.cuLaunchKernel(fill, 1, 65536, 1, 32, 1, 1, 0, NULL, args, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU.cuLaunchKernel(fill, 1, 1, 1, 32, 33, 1, 0, NULL, args, NULL) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU.cuLaunchKernel(fill, 1, 1, 1, 1, 1, 65, 0, NULL, args, NULL) == CUDA_ERROR_INVALID_VALUE);
    OK(launch1(bounded, 1, 128, 0, NULL, args));
    CHECK(launch1(bounded, 1, 129, 0, NULL, args) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU.cuFuncGetAttribute(&most, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, bounded) == CUDA_SUCCESS && most == 128);
    CHECK(launch1(fill, 1, 32, 0, NULL, NULL) == CUDA_ERROR_INVALID_VALUE);
    OK(CU.cuCtxSynchronize());                       // a refused launch is not a fault
    CHECK(FC.reports("launch") == 6);
    return 0;
}

static int much_shared_memory_must_be_asked_for(void)
{
    NEED();
    fresh();
    CUfunction f = function(load_module(ptx), "dynamic_shared");
    CUdeviceptr d = device_floats(NULL, 1);
    int n = 64 * 1024 / 4, optin;
    float y;
    CHECK(launch1(f, 1, 64, 65536, NULL, (void *[]){&d, &n}) == CUDA_ERROR_INVALID_VALUE);
    OK(CU.cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536));
    OK(launch1(f, 1, 64, 65536, NULL, (void *[]){&d, &n}));
    OK(CU.cuMemcpyDtoH_v2(&y, d, 4));
    CHECK(y == (float)(n - 1));
    OK(CU.cuDeviceGetAttribute(&optin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0));
    OK(CU.cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, optin));
    CHECK(CU.cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, optin + 1) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

// A log of the assembler says 80 registers: 25 warps of 2,560 fit 65,536, so 800 threads may run and 832 may not.
static int registers_limit_a_block(void)
{
    NEED();
    fresh();
    char path[64];
    snprintf(path, sizeof path, "build/fakecuda/registers_%d.log", getpid());
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    fprintf(f, "ptxas info    : Compiling entry function 'fill' for 'sm_89'\nptxas info    : Used 80 registers, used 0 barriers\n");
    fclose(f);
    CHECK(FC.set("registers", path) == 1);
    CUfunction fill = function(load_module(ptx), "fill");
    remove(path);
    CUdeviceptr d = device_floats(NULL, 1024);
    float v = 1;
    int n = 1024, r = 0;
    CHECK(CU.cuFuncGetAttribute(&r, CU_FUNC_ATTRIBUTE_NUM_REGS, fill) == CUDA_SUCCESS && r == 80);
    OK(launch1(fill, 1, 800, 0, NULL, (void *[]){&d, &v, &n}));
    CHECK(launch1(fill, 1, 832, 0, NULL, (void *[]){&d, &v, &n}) == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    OK(CU.cuOccupancyMaxActiveBlocksPerMultiprocessor(&r, fill, 256, 0));
    CHECK(r == 3);                                   // 25 warps of 8
    return 0;
}

// Without a log the estimate counts what lives at once: a kernel that holds 80 numbers does not run with 1024 threads, one that sums as it reads does.
static char *many_numbers(bool hold)
{
    enum { N = 80, CAP = 1 << 16 };
    char *t = malloc(CAP);
    int n = snprintf(t, CAP, ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry many(.param .u64 x)\n{\n.reg .b64 %%d<2>;\n.reg .f32 %%f<%d>, %%s;\n"
                     "ld.param.u64 %%d0, [x];\nmov.f32 %%s, 0f00000000;\n", N);
    for (int i = 0; i < N; i++) {
        n += snprintf(t + n, (size_t)(CAP - n), "ld.global.f32 %%f%d, [%%d0+%d];\n", i, 4 * i);
        if (!hold) n += snprintf(t + n, (size_t)(CAP - n), "add.f32 %%s, %%s, %%f%d;\n", i);
    }
    for (int i = 0; i < N && hold; i++) n += snprintf(t + n, (size_t)(CAP - n), "add.f32 %%s, %%s, %%f%d;\n", i);
    snprintf(t + n, (size_t)(CAP - n), "st.global.f32 [%%d0], %%s;\nret;\n}\n");
    return t;
}

static int registers_are_estimated_by_what_lives_at_once(void)
{
    for (int hold = 0; hold <= 1; hold++) {
        fresh();
        char *text = many_numbers(hold);
        CUfunction f = function(load_module(text), "many");
        CUdeviceptr d = device_floats((float[80]){0}, 80);
        OK(launch1(f, 1, 512, 0, NULL, (void *[]){&d}));
        CHECK(launch1(f, 1, 1024, 0, NULL, (void *[]){&d}) == (hold ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS));
        CHECK(FC.reports("launch") == hold);
        OK(CU.cuCtxSynchronize());
        free(text);
    }
    return 0;
}

static int arguments_are_copied_at_the_launch(void)
{
    NEED();
    fresh();
    CUfunction fill = function(load_module(ptx), "fill");
    CUdeviceptr d = device_floats(NULL, 1);
    float v = 1, y;
    int n = 1;
    OK(launch1(fill, 1, 32, 0, NULL, (void *[]){&d, &v, &n}));
    v = 2;
    OK(CU.cuMemcpyDtoH_v2(&y, d, 4));
    CHECK(y == 1);
    return 0;
}

static int arguments_are_copied_at_the_capture(void)
{
    NEED();
    fresh();
    CUfunction fill = function(load_module(ptx), "fill");
    CUdeviceptr d = device_floats(NULL, 1);
    CUstream s;
    CUgraph g;
    CUgraphExec x;
    float v = 1, y;
    int n = 1;
    OK(CU.cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(CU.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(launch1(fill, 1, 32, 0, s, (void *[]){&d, &v, &n}));
    OK(CU.cuStreamEndCapture(s, &g));
    OK(CU.cuGraphInstantiateWithFlags(&x, g, 0));
    for (int i = 0; i < 3; i++) {
        v = 7;                                       // the graph still writes 1
        OK(CU.cuMemsetD32Async(d, 0, 1, s));
        OK(CU.cuGraphLaunch(x, s));
        OK(CU.cuStreamSynchronize(s));
        OK(CU.cuMemcpyDtoH_v2(&y, d, 4));
        CHECK(y == 1);
    }
    return 0;
}

static int a_fault_shows_at_the_wait_and_stays(void)
{
    NEED();
    fresh();
    CUfunction fill = function(load_module(ptx), "fill");
    CUdeviceptr d = device_floats(NULL, 32), p;
    float v = 1;
    int n = 64;
    OK(launch1(fill, 2, 32, 0, NULL, (void *[]){&d, &v, &n}));
    CHECK(CU.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(CU.cuMemAlloc_v2(&p, 4) == CUDA_ERROR_ILLEGAL_ADDRESS && launch1(fill, 1, 1, 0, NULL, (void *[]){&d, &v, &n}) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(FC.reports("memcheck") >= 1);
    return 0;
}

// A report names the kernel, the block, the thread and the line of the source.
static int a_fault_is_told_with_its_place(void)
{
    NEED();
    fresh();
    CUfunction fill = function(load_module(ptx), "fill");
    CUdeviceptr d = device_floats(NULL, 32);
    float v = 1;
    int n = 33;
    OK(launch1(fill, 2, 32, 0, NULL, (void *[]){&d, &v, &n}));
    CHECK(CU.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS && FC.report(0));
    const char *r = FC.report(0);
    if (!strstr(r, "fill") || !strstr(r, "driver.cuh:7") || !strstr(r, "block") || !strstr(r, "thread")) fprintf(stderr, "told: %s\n", r);
    CHECK(strstr(r, "fill") && strstr(r, "driver.cuh:7") && strstr(r, "block") && strstr(r, "thread"));
    return 0;
}

static int a_kernel_that_never_ends_is_stopped(void)
{
    NEED();
    fresh();
    if (FC.set("watchdog", "1000000") != 1) SKIP("no field watchdog");
    CUfunction f = function(load_module(ptx), "forever");
    CUdeviceptr d = device_floats((float[]){0}, 1);
    OK(launch1(f, 1, 32, 0, NULL, (void *[]){&d}));
    CHECK(CU.cuCtxSynchronize() == CUDA_ERROR_LAUNCH_TIMEOUT);
    return 0;
}

static int counters_are_json_per_kernel(void)
{
    NEED();
    fresh();
    CUfunction fill = function(load_module(ptx), "fill");
    CUdeviceptr d = device_floats(NULL, 1024);
    float v = 1;
    int n = 1024;
    FC.counters_reset();
    for (int i = 0; i < 3; i++) OK(launch1(fill, 4, 256, 0, NULL, (void *[]){&d, &v, &n}));
    OK(CU.cuCtxSynchronize());
    char *json = FC.counters();
    CHECK(json && strstr(json, "\"fill\"") && strstr(json, "\"launches\""));
    free(json);
    return 0;
}

int main(void)
{
    open_card();
    RUN(a_kernel_runs);
    RUN(only_ptx_that_driver_and_device_know_is_taken);
    RUN(what_the_table_does_not_know_is_refused_by_name);
    RUN(names_are_looked_up);
    RUN(the_size_of_a_launch_has_limits);
    RUN(much_shared_memory_must_be_asked_for);
    RUN(registers_limit_a_block);
    RUN(registers_are_estimated_by_what_lives_at_once);
    RUN(arguments_are_copied_at_the_launch);
    RUN(arguments_are_copied_at_the_capture);
    RUN(a_fault_shows_at_the_wait_and_stays);
    RUN(a_fault_is_told_with_its_place);
    RUN(a_kernel_that_never_ends_is_stopped);
    RUN(counters_are_json_per_kernel);
    FC.reset();
    free(ptx);
    return test_done();
}
