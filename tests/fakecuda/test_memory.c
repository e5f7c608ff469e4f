// The card's memory: sizes and alignment, the end of the card, planned failures, errors that stay, leaks, and what a late or wild use meets.
#define _GNU_SOURCE
#include "driver_test.h"
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

static int calls_before_cuInit_are_refused(void)
{
    FC.reset();
    int n;
    CHECK(CU.cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED);
    CHECK(CU.cuInit(0) == CUDA_SUCCESS && CU.cuDeviceGetCount(&n) == CUDA_SUCCESS && n == 1);
    FC.set("devices", "0");
    CHECK(CU.cuInit(0) == CUDA_ERROR_NO_DEVICE);
    return 0;
}

static int calls_without_a_context_are_refused(void)
{
    CUdeviceptr p;
    FC.reset();
    CHECK(CU.cuInit(0) == CUDA_SUCCESS && CU.cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
    CHECK(CU.cuMemAlloc_v2(&p, 4) == CUDA_ERROR_INVALID_CONTEXT);
    return 0;
}

static int the_card_is_what_the_fields_say(void)
{
    char name[64];
    size_t total, room;
    int major, minor, sms, version;
    fresh();
    CHECK(FC.set("name", "Small card") == 1 && FC.set("memory", "6G") == 1 && FC.set("reserved", "1G") == 1 && FC.set("cc", "86") == 1);
    CHECK(FC.set("sms", "28") == 1 && FC.set("driver", "12040") == 1);
    CHECK(FC.set("memory", "much") == -1 && FC.set("no_such_field", "1") == 0 && FC.set("fail", "cuMemAlloc_v2") == -1);
    CHECK(CU.cuDeviceGetName(name, 64, 0) == CUDA_SUCCESS && !strcmp(name, "Small card"));
    CHECK(CU.cuDeviceGetName(name, 6, 0) == CUDA_SUCCESS && !strcmp(name, "Small"));
    CHECK(CU.cuDeviceTotalMem_v2(&total, 0) == CUDA_SUCCESS && total == (size_t)6 << 30);
    CHECK(CU.cuMemGetInfo_v2(&room, &total) == CUDA_SUCCESS && room == (size_t)5 << 30);
    CHECK(CU.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 0) == CUDA_SUCCESS && major == 8);
    CHECK(CU.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0) == CUDA_SUCCESS && minor == 6);
    CHECK(CU.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0) == CUDA_SUCCESS && sms == 28);
    CHECK(CU.cuDriverGetVersion(&version) == CUDA_SUCCESS && version == 12040);
    CHECK(CU.cuDeviceGetAttribute(&sms, 16, 1) == CUDA_ERROR_INVALID_DEVICE);
    return 0;
}

static int allocations_are_aligned_to_256_and_no_more(void)
{
    CUdeviceptr p[50];
    fresh();
    for (int i = 0; i < 50; i++) {
        CHECK(CU.cuMemAlloc_v2(&p[i], (size_t)i * 37 + 1) == CUDA_SUCCESS);
        CHECK(p[i] % 256 == 0 && p[i] % 512 != 0);
    }
    for (int i = 0; i < 50; i++) CHECK(CU.cuMemFree_v2(p[i]) == CUDA_SUCCESS);
    CHECK(CU.cuMemAlloc_v2(&p[0], 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(FC.leaks() == 0);
    return 0;
}

static int a_full_card_refuses_and_recovers(void)
{
    CUdeviceptr a, b;
    size_t room, total;
    fresh();
    FC.set("memory", "1G");
    CHECK(CU.cuMemAlloc_v2(&a, (size_t)1 << 30) == CUDA_SUCCESS);
    CHECK(CU.cuMemGetInfo_v2(&room, &total) == CUDA_SUCCESS && room == 0);
    CHECK(CU.cuMemAlloc_v2(&b, 1) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(CU.cuMemFree_v2(a) == CUDA_SUCCESS && CU.cuMemAlloc_v2(&b, 1) == CUDA_SUCCESS);
    CHECK(CU.cuMemGetInfo_v2(&room, &total) == CUDA_SUCCESS && room == ((size_t)1 << 30) - ((size_t)2 << 20));
    CHECK(CU.cuMemAlloc_v2(&a, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY && CU.cuMemAlloc_v2(&a, SIZE_MAX - 300) == CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
}

static int the_nth_call_fails_as_planned(void)
{
    CUdeviceptr p;
    fresh();
    CHECK(FC.set("fail", "cuMemAlloc_v2:3:2") == 1);
    CHECK(CU.cuMemAlloc_v2(&p, 8) == CUDA_SUCCESS && CU.cuMemAlloc_v2(&p, 8) == CUDA_SUCCESS);
    CHECK(CU.cuMemAlloc_v2(&p, 8) == CUDA_ERROR_OUT_OF_MEMORY && CU.cuMemAlloc_v2(&p, 8) == CUDA_SUCCESS);
    return 0;
}

static int a_fault_stays_until_the_context_ends(void)
{
    CUdeviceptr p;
    CUcontext ctx;
    size_t room, total;
    fresh();
    FC.set("fail", "cuMemAlloc_v2:1:700");
    CHECK(CU.cuMemAlloc_v2(&p, 8) == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(CU.cuMemGetInfo_v2(&room, &total) == CUDA_ERROR_ILLEGAL_ADDRESS && CU.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    CHECK(CU.cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
    CHECK(CU.cuMemAlloc_v2(&p, 8) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
    CHECK(CU.cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS && CU.cuCtxSetCurrent(ctx) == CUDA_SUCCESS && CU.cuMemAlloc_v2(&p, 8) == CUDA_SUCCESS);
    return 0;
}

static int copies_and_fills_arrive(void)
{
    float x[100], y[100];
    for (int i = 0; i < 100; i++) x[i] = (float)i;
    fresh();
    CUdeviceptr a = device_floats(x, 100), b = device_floats(NULL, 100);
    CHECK(CU.cuMemcpyDtoD_v2(b, a, 400) == CUDA_SUCCESS && CU.cuMemsetD32_v2(b + 40, 0x40a00000, 2) == CUDA_SUCCESS);
    CHECK(CU.cuMemsetD8_v2(b + 80, 0, 4) == CUDA_SUCCESS && CU.cuMemcpyDtoH_v2(y, b, 400) == CUDA_SUCCESS);
    for (int i = 0; i < 100; i++) CHECK(y[i] == (i == 10 || i == 11 ? 5.0f : i == 20 ? 0.0f : (float)i));
    CHECK(CU.cuMemsetD32_v2(b + 2, 0, 1) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static int unwritten_memory_reads_as_nan(void)
{
    float y[64];
    fresh();
    CHECK(CU.cuMemcpyDtoH_v2(y, device_floats(NULL, 64), sizeof y) == CUDA_SUCCESS);
    for (int i = 0; i < 64; i++) CHECK(y[i] != y[i]);
    return 0;
}

static int copies_over_an_end_are_refused_and_reported(void)
{
    char host[64] = {0};
    fresh();
    CUdeviceptr p = device_floats(NULL, 8);
    CHECK(CU.cuMemcpyHtoD_v2(p, host, 32) == CUDA_SUCCESS && FC.reports("memcheck") == 0);
    CHECK(CU.cuMemcpyHtoD_v2(p, host, 33) == CUDA_ERROR_INVALID_VALUE && FC.reports("memcheck") == 1);
    CHECK(CU.cuMemcpyHtoD_v2(p + 4, host, 32) == CUDA_ERROR_INVALID_VALUE && CU.cuMemcpyDtoH_v2(host, p - 4, 8) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU.cuMemcpyDtoH_v2(host, p, SIZE_MAX) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static int freeing_twice_or_inside_is_refused_and_reported(void)
{
    fresh();
    CUdeviceptr p = device_floats(NULL, 8), q = device_floats(NULL, 8);
    CHECK(CU.cuMemFree_v2(p) == CUDA_SUCCESS && FC.reports("memcheck") == 0);
    CHECK(CU.cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE && FC.reports("memcheck") == 1 && strstr(FC.report(0), "freed before"));
    CHECK(CU.cuMemFree_v2(q + 4) == CUDA_ERROR_INVALID_VALUE && CU.cuMemFree_v2(0) == CUDA_SUCCESS);
    CHECK(CU.cuMemcpyHtoD_v2(p, &q, 4) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static int what_is_not_given_back_is_told(void)
{
    CUstream s;
    CUevent e;
    fresh();
    CUdeviceptr p = device_floats(NULL, 8);
    CHECK(CU.cuStreamCreate(&s, 0) == CUDA_SUCCESS && CU.cuEventCreate(&e, 0) == CUDA_SUCCESS);
    CHECK(FC.leaks() == 3 && FC.reports("leakcheck") == 3 && strstr(FC.report(0), "32 bytes of device memory"));
    CHECK(CU.cuMemFree_v2(p) == CUDA_SUCCESS && CU.cuStreamDestroy_v2(s) == CUDA_SUCCESS && CU.cuEventDestroy_v2(e) == CUDA_SUCCESS && FC.leaks() == 0);
    return 0;
}

static int registered_memory_is_pinned_once(void)
{
    char host[256];
    CUdeviceptr p;
    void *pinned;
    fresh();
    CHECK(CU.cuMemHostGetDevicePointer_v2(&p, host, 0) == CUDA_ERROR_INVALID_VALUE);
    CHECK(CU.cuMemHostRegister_v2(host, 256, 0) == CUDA_SUCCESS && CU.cuMemHostRegister_v2(host + 64, 256, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK(CU.cuMemHostGetDevicePointer_v2(&p, host + 8, 0) == CUDA_SUCCESS && p == (uintptr_t)(host + 8));
    CHECK(CU.cuMemHostUnregister(host) == CUDA_SUCCESS && CU.cuMemHostUnregister(host) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    CHECK(CU.cuMemHostAlloc(&pinned, 100, 0) == CUDA_SUCCESS);
    memset(pinned, 1, 100);
    CHECK(CU.cuMemFreeHost(pinned) == CUDA_SUCCESS && CU.cuMemFreeHost(pinned) == CUDA_ERROR_INVALID_VALUE);
    return 0;
}

// The host must crash when it follows a device pointer, as it does with a real card. A child process tries.
static int crashes(CUdeviceptr p)
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(volatile char *)(uintptr_t)p == 77);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) > 1;
}

static int the_host_cannot_follow_a_device_pointer(void)
{
    fresh();
    CUdeviceptr p = device_floats(NULL, 8);
    CHECK(crashes(p));
    CHECK(CU.cuMemFree_v2(p) == CUDA_SUCCESS && crashes(p));
    return 0;
}

static int calls_that_are_not_emulated_end_the_program_with_their_name(void)
{
    char text[256] = "";
    int ends[2], status = 0, (*stub)(void) = (int (*)(void))symbol(dlopen(FAKECUDA_LIBRARY, RTLD_NOW), "cuTexObjectCreate");
    CHECK(pipe(ends) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        dup2(ends[1], 2);
        stub();
        _exit(0);
    }
    close(ends[1]);
    CHECK(read(ends[0], text, sizeof text - 1) > 0 && strstr(text, "not emulated: cuTexObjectCreate"));
    waitpid(child, &status, 0);
    close(ends[0]);
    CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != 0);
    return 0;
}

static int names_lead_to_the_newest_calls(void)
{
    void *fn = NULL, *other;
    int status = -1;
    fresh();
    CHECK(CU.cuGetProcAddress_v2("cuMemAlloc", &fn, 12000, 0, &status) == CUDA_SUCCESS && status == 0 && fn == (void *)CU.cuMemAlloc_v2);
    CHECK(CU.cuGetProcAddress_v2("cuInit", &fn, 12000, 0, NULL) == CUDA_SUCCESS && fn == (void *)CU.cuInit);
    CHECK(CU.cuGetProcAddress_v2("cuNoSuchCall", &other, 12000, 0, NULL) == CUDA_ERROR_NOT_FOUND && other == NULL);
    FC.set("driver", "12000");
    CHECK(CU.cuGetProcAddress_v2("cuInit", &fn, 13000, 0, &status) == CUDA_SUCCESS && status == 2 && fn == NULL);
    return 0;
}

static int errors_have_names(void)
{
    const char *s;
    CHECK(CU.cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &s) == CUDA_SUCCESS && !strcmp(s, "CUDA_ERROR_OUT_OF_MEMORY"));
    CHECK(CU.cuGetErrorString(CUDA_ERROR_ILLEGAL_ADDRESS, &s) == CUDA_SUCCESS && *s);
    CHECK(CU.cuGetErrorName((CUresult)12345, &s) == CUDA_ERROR_INVALID_VALUE && s == NULL);
    return 0;
}

int main(void)
{
    open_card();
    RUN(calls_before_cuInit_are_refused);
    RUN(calls_without_a_context_are_refused);
    RUN(the_card_is_what_the_fields_say);
    RUN(allocations_are_aligned_to_256_and_no_more);
    RUN(a_full_card_refuses_and_recovers);
    RUN(the_nth_call_fails_as_planned);
    RUN(a_fault_stays_until_the_context_ends);
    RUN(copies_and_fills_arrive);
    RUN(unwritten_memory_reads_as_nan);
    RUN(copies_over_an_end_are_refused_and_reported);
    RUN(freeing_twice_or_inside_is_refused_and_reported);
    RUN(what_is_not_given_back_is_told);
    RUN(registered_memory_is_pinned_once);
    RUN(the_host_cannot_follow_a_device_pointer);
    RUN(calls_that_are_not_emulated_end_the_program_with_their_name);
    RUN(names_lead_to_the_newest_calls);
    RUN(errors_have_names);
    FC.reset();
    return test_done();
}
