// driver_test.h: what tests of the emulated driver share: the library, NVRTC, a fresh card, and PTX made once per target.
// CU holds every call of the driver under its exported name; FC the control calls.
#ifndef DRIVER_TEST_H
#define DRIVER_TEST_H
#include "../test.h"
#include "cuda_abi.h"
#include "fakecuda_control.h"
#include <dlfcn.h>
#include <glob.h>
#include <stdbool.h>

#ifndef FAKECUDA_LIBRARY
#define FAKECUDA_LIBRARY "build/fakecuda/libcuda.so.1"       // another one in the sanitized build
#endif

#define CU_SLOT(name, params) CUresult (*name) params;
static struct { CUDA_ABI_CALLS(CU_SLOT) } CU;
static struct {
    int (*set)(const char *, const char *);
    void (*reset)(void);
    long (*reports)(const char *);
    const char *(*report)(long);
    void (*reports_clear)(void);
    long (*leaks)(void);
    char *(*counters)(void);
    void (*counters_reset)(void);
} FC;

static void *symbol(void *lib, const char *name)
{
    void *p = dlsym(lib, name);
    if (!p) fprintf(stderr, "%s has no %s\n", "libcuda.so.1", name), exit(1);
    return p;
}

static void *open_card(void)
{
    void *lib = dlopen(FAKECUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!lib) fprintf(stderr, "%s\n", dlerror()), exit(1);
#define CU_FIND(name, params) *(void **)&CU.name = symbol(lib, #name);
    CUDA_ABI_CALLS(CU_FIND)
#define FC_FIND(name) *(void **)&FC.name = symbol(lib, "fakecuda_" #name)
    FC_FIND(set); FC_FIND(reset); FC_FIND(reports); FC_FIND(report); FC_FIND(reports_clear); FC_FIND(leaks); FC_FIND(counters); FC_FIND(counters_reset);
    return lib;
}

// ---- NVRTC

static struct {
    void *lib;
    bool none;                                           // was looked for and is not here
    int (*create)(void **, const char *, const char *, int, const char *const *, const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*log_size)(void *, size_t *), (*log)(void *, char *);
    int (*ptx_size)(void *, size_t *), (*ptx)(void *, char *), (*destroy)(void **);
} rtc;

// The compiler opens its builtins beside itself, which fails where a sanitizer stands between it and dlopen: they are loaded before it asks.
static void load_builtins(const char *nvrtc)
{
    char pattern[1100];
    glob_t found;
    const char *slash = strrchr(nvrtc, '/');
    snprintf(pattern, sizeof pattern, "%.*slibnvrtc-builtins.so.*", slash ? (int)(slash - nvrtc) + 1 : 0, nvrtc);
    if (glob(pattern, 0, NULL, &found) == 0 && found.gl_pathc) (void)dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_GLOBAL);
    globfree(&found);
}

// Which library: the environment's NVRTC, else what get_nvrtc.sh finds or fetches.
static bool open_nvrtc(void)
{
    char path[1024] = "";
    if (rtc.lib || rtc.none) return rtc.lib != NULL;
    if (getenv("NVRTC")) snprintf(path, sizeof path, "%s", getenv("NVRTC"));
    else {
        FILE *p = popen("sh tests/tools/get_nvrtc.sh", "r");
        if (!p || !fgets(path, sizeof path, p)) path[0] = 0;
        if (p) pclose(p);
    }
    path[strcspn(path, "\n")] = 0;
    load_builtins(path);
    rtc.lib = *path ? dlopen(path, RTLD_NOW) : NULL;
    rtc.none = !rtc.lib;
    if (rtc.none) return false;
#define RTC_FIND(slot, name) *(void **)&rtc.slot = symbol(rtc.lib, name)
    RTC_FIND(create, "nvrtcCreateProgram"); RTC_FIND(compile, "nvrtcCompileProgram"); RTC_FIND(destroy, "nvrtcDestroyProgram");
    RTC_FIND(log_size, "nvrtcGetProgramLogSize"); RTC_FIND(log, "nvrtcGetProgramLog");
    RTC_FIND(ptx_size, "nvrtcGetPTXSize"); RTC_FIND(ptx, "nvrtcGetPTX");
    return true;
}

static char *read_all(const char *path)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (!f || !text || fread(text, 1, (1 << 20) - 1, f) == 0) fprintf(stderr, "cannot read %s\n", path), exit(1);
    fclose(f);
    return text;
}

static void show_log(void *prog)
{
    size_t n = 0;
    char *log;
    if (rtc.log_size(prog, &n) || (log = malloc(n + 1)) == NULL) return;
    if (rtc.log(prog, log) == 0) fprintf(stderr, "%s\n", log);
    free(log);
}

// The PTX of a .cuh for compute_NN, or NULL where there is no compiler.
static char *ptx_of(const char *path, int cc)
{
    if (!open_nvrtc()) return NULL;
    char arch[64], *text = read_all(path);
    const char *options[] = {arch, "-lineinfo", "-default-device"};
    snprintf(arch, sizeof arch, "--gpu-architecture=compute_%d", cc);
    void *prog = NULL;
    size_t n = 0;
    char *ptx = NULL;
    if (rtc.create(&prog, text, path, 0, NULL, NULL) == 0 && rtc.compile(prog, 3, options) == 0 && rtc.ptx_size(prog, &n) == 0
        && (ptx = malloc(n + 1)) != NULL) rtc.ptx(prog, ptx);
    if (!ptx) show_log(prog), exit(1);
    rtc.destroy(&prog);
    free(text);
    return ptx;
}

// ---- a fresh card for every case

static CUcontext fresh(void)
{
    CUcontext ctx = NULL;
    FC.reset();
    FC.set("quiet", "1");
    if (CU.cuInit(0) || CU.cuDevicePrimaryCtxRetain(&ctx, 0) || CU.cuCtxSetCurrent(ctx)) fprintf(stderr, "no fresh card\n"), exit(1);
    return ctx;
}

static CUmodule load_module(const char *ptx)
{
    CUmodule m = NULL;
    if (CU.cuModuleLoadData(&m, ptx)) fprintf(stderr, "the module does not load\n"), exit(1);
    return m;
}

static CUfunction function(CUmodule m, const char *name)
{
    CUfunction f = NULL;
    if (CU.cuModuleGetFunction(&f, m, name)) fprintf(stderr, "no kernel %s\n", name), exit(1);
    return f;
}

static CUdeviceptr device_floats(const float *x, int n)
{
    CUdeviceptr p = 0;
    if (CU.cuMemAlloc_v2(&p, (size_t)n * 4) || (x && CU.cuMemcpyHtoD_v2(p, x, (size_t)n * 4))) fprintf(stderr, "no device memory\n"), exit(1);
    return p;
}

#endif
