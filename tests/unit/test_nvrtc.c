// The embedded kernels compile with NVRTC, without any header of the toolkit, for every architecture from sm_80 that it knows. Skips where it is absent.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <dlfcn.h>
#include "../test.h"

typedef struct nvrtc_program *program;

static struct nvrtc {
    int (*version)(int *major, int *minor);
    int (*count)(int *n);
    int (*archs)(int *list);
    int (*create)(program *p, const char *source, const char *name, int n, const char *const *headers, const char *const *names);
    int (*compile)(program p, int n, const char *const *options);
    int (*log_size)(program p, size_t *n);
    int (*log)(program p, char *text);
    int (*cubin_size)(program p, size_t *n);
    int (*destroy)(program *p);
} rtc;

static bool load(void *lib, const char *name, void *slot)
{
    void *f = dlsym(lib, name);
    memcpy(slot, &f, sizeof f);
    return f != NULL;
}

static bool open_nvrtc(void)
{
    static const char *const names[] = { "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so", "/usr/local/cuda/lib/libnvrtc.so" };
    void *lib = NULL;
    for (int i = 0; i < 5 && !lib; i++) lib = dlopen(names[i], RTLD_NOW);
    return lib && load(lib, "nvrtcVersion", &rtc.version) && load(lib, "nvrtcGetNumSupportedArchs", &rtc.count) && load(lib, "nvrtcGetSupportedArchs", &rtc.archs)
        && load(lib, "nvrtcCreateProgram", &rtc.create) && load(lib, "nvrtcCompileProgram", &rtc.compile) && load(lib, "nvrtcGetProgramLogSize", &rtc.log_size)
        && load(lib, "nvrtcGetProgramLog", &rtc.log) && load(lib, "nvrtcGetCUBINSize", &rtc.cubin_size) && load(lib, "nvrtcDestroyProgram", &rtc.destroy);
}

static char *source(void)
{
    size_t n = 1;
    for (int i = 0; g3__kernel_source[i]; i++) n += strlen(g3__kernel_source[i]);
    char *text = (char *)malloc(n), *p = text;
    for (int i = 0; text && g3__kernel_source[i]; i++) p += sprintf(p, "%s", g3__kernel_source[i]);
    return text;
}

static bool compiles(const char *text, int arch, bool attention, size_t *cubin)
{
    char option[32], log[4096] = "";
    const char *options[4] = { option, "-DG3K_HEAD_DIM=256", "-DG3K_GROUP=4", "-DG3K_KV=1" };
    size_t n = 0;
    program p;
    snprintf(option, sizeof option, "--gpu-architecture=sm_%d", arch);
    if (rtc.create(&p, text, "gemma3_kernels.cuh", 0, NULL, NULL) != 0) return false;
    bool ok = rtc.compile(p, attention ? 4 : 1, options) == 0 && rtc.cubin_size(p, cubin) == 0;
    if (!ok && rtc.log_size(p, &n) == 0 && n <= sizeof log && rtc.log(p, log) == 0) fprintf(stderr, "%s\n%s\n", option, log);
    rtc.destroy(&p);
    return ok;
}

static int kernels_compile_for_every_architecture(void)
{
    int major, minor, n = 0, archs[64], done = 0;
    size_t cubin = 0;
    if (!open_nvrtc()) SKIP("no libnvrtc here");
    char *text = source();
    CHECK(text && rtc.version(&major, &minor) == 0 && rtc.count(&n) == 0 && n > 0 && n <= 64 && rtc.archs(archs) == 0);
    for (int i = 0; i < n; i++) {
        if (archs[i] < 80) continue;
        CHECK(compiles(text, archs[i], false, &cubin) && cubin > 0);
        CHECK(compiles(text, archs[i], true, &cubin) && cubin > 0);
        done++;
    }
    free(text);
    printf("    NVRTC %d.%d, %d architectures\n", major, minor, done);
    CHECK(done >= 4);
    return 0;
}

static int an_include_would_be_noticed(void)
{
    size_t cubin;
    if (!rtc.create) SKIP("no libnvrtc here");
    CHECK(!compiles("#include <cuda_bf16.h>\n", 80, false, &cubin));
    return 0;
}

int main(void)
{
    RUN(kernels_compile_for_every_architecture);
    RUN(an_include_would_be_noticed);
    return test_done();
}
