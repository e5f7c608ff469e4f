// drv_state.c: owns the one state of the emulated driver: the lock, the laws every call passes, live handles, contexts and devices.
// A call is refused before cuInit, without a context, after a fault (errors are sticky), and where a test planned a failure.
#define _GNU_SOURCE
#include "driver.h"
#include <stdarg.h>

drv_state drv = {.lock = PTHREAD_MUTEX_INITIALIZER};
static __thread CUcontext stack[16];
static __thread int depth;

CUcontext drv_current(void) { return depth ? stack[depth - 1] : NULL; }

uint64_t drv_random(uint64_t below)
{
    drv.random = drv.random * 6364136223846793005u + 1442695040888963407u;
    return (drv.random >> 33) % below;
}

_Noreturn void drv_missing(const char *what)
{
    fprintf(stderr, "fakecuda: not emulated: %s\n", what);
    abort();
}

// A failure that a test planned: the N-th call of this name answers the code.
static CUresult planned(const char *call)
{
    CUresult code = CUDA_SUCCESS;
    for (drv_fail *f = drv.fails; f; f = f->next)
        if (!strcmp(f->call, call) && ++f->seen == f->at) code = f->code;
    return code;
}

static bool fatal(CUresult code) { return code >= CUDA_ERROR_ILLEGAL_ADDRESS && code <= CUDA_ERROR_LAUNCH_FAILED && code != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    && code != CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE && code != 704 && code != 705 && code != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED && code != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED; }    // 704, 705: peer access

static CUresult allowed(const char *call, int wants)
{
    if ((wants & DRV_INITED) && !drv.ready) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult r = planned(call);
    if (fatal(r)) drv.sticky = r;
    if (r != CUDA_SUCCESS) return r;
    if ((wants & DRV_CTX) == DRV_CTX) {
        if (!drv_is(drv_current(), DRV_CONTEXT)) return depth ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
        if (drv.sticky) return drv.sticky;
    }
    return wants & DRV_NOT_IN_CAPTURE ? drv_capture_guard(NULL) : CUDA_SUCCESS;
}

CUresult drv_enter(const char *call, int wants)
{
    pthread_mutex_lock(&drv.lock);
    CUresult r = allowed(call, wants);
    if (r != CUDA_SUCCESS) pthread_mutex_unlock(&drv.lock);
    return r;
}

CUresult drv_leave(CUresult result)
{
    drv_mem_close();
    pthread_mutex_unlock(&drv.lock);
    return result;
}

// ---- handles

void *drv_new(int kind, size_t bytes)
{
    drv_object *o = calloc(1, bytes), *list = &drv.lists[kind];
    if (!o) drv_missing("memory for a handle");
    if (!list->next) list->next = list->prev = list;
    o->kind = kind;
    o->next = list->next;
    o->prev = list;
    list->next->prev = o;
    list->next = o;
    drv.count[kind]++;
    return o;
}

void drv_free(void *object)
{
    drv_object *o = object;
    o->prev->next = o->next;
    o->next->prev = o->prev;
    drv.count[o->kind]--;
    free(o);
}

// A dead handle is not looked into: it is only compared with the live ones.
bool drv_is(const void *handle, int kind)
{
    const drv_object *list = &drv.lists[kind];
    for (const drv_object *o = list->next; o && o != list; o = o->next)
        if (o == handle) return true;
    return false;
}

// ---- devices

CUresult_CALL cuInit(unsigned flags)
{
    ENTER(DRV_ANY);
    if (flags) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (drv.card.devices < 1) LEAVE(CUDA_ERROR_NO_DEVICE);
    drv.ready = true;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuDriverGetVersion(int *version)
{
    ENTER(DRV_ANY);
    if (!version) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *version = drv.card.driver;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuDeviceGetCount(int *count)
{
    ENTER(DRV_INITED);
    if (!count) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *count = drv.card.devices;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuDeviceGet(CUdevice *dev, int ordinal)
{
    ENTER(DRV_INITED);
    if (!dev) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (ordinal < 0 || ordinal >= drv.card.devices) LEAVE(CUDA_ERROR_INVALID_DEVICE);
    *dev = ordinal;
    LEAVE(CUDA_SUCCESS);
}

static CUresult device_arg(CUdevice dev, const void *out)
{
    if (dev < 0 || dev >= drv.card.devices) return CUDA_ERROR_INVALID_DEVICE;
    return out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult_CALL cuDeviceGetName(char *name, int len, CUdevice dev)
{
    ENTER(DRV_INITED);
    CUresult r = device_arg(dev, name);
    if (r == CUDA_SUCCESS && len < 1) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) snprintf(name, (size_t)len, "%s", drv.card.name);
    LEAVE(r);
}

CUresult_CALL cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    ENTER(DRV_INITED);
    CUresult r = device_arg(dev, bytes);
    if (r == CUDA_SUCCESS) *bytes = drv.card.memory;
    LEAVE(r);
}

static CUresult uuid(CUuuid *out, CUdevice dev)
{
    CUresult r = device_arg(dev, out);
    if (r != CUDA_SUCCESS) return r;
    memcpy(out->bytes, "emulated card ", 14);
    out->bytes[14] = (char)drv.card.cc;
    out->bytes[15] = (char)dev;
    return r;
}
CUresult_CALL cuDeviceGetUuid(CUuuid *out, CUdevice dev) { ENTER(DRV_INITED); LEAVE(uuid(out, dev)); }
CUresult_CALL cuDeviceGetUuid_v2(CUuuid *out, CUdevice dev) { ENTER(DRV_INITED); LEAVE(uuid(out, dev)); }

// What differs between generations; source: the table "Technical Specifications per Compute Capability" of the CUDA programming guide.
typedef struct limits { int cc, threads_per_sm, blocks_per_sm, shared_per_sm, shared_optin, l2; } limits;
static const limits generations[] = {
    { 80, 2048, 32, 167936, 166912, 41943040 }, { 86, 1536, 16, 102400, 101376, 6291456 }, { 87, 1536, 16, 167936, 166912, 4194304 },
    { 89, 1536, 24, 102400, 101376, 75497472 }, { 90, 2048, 32, 233472, 232448, 52428800 }, { 100, 2048, 32, 233472, 232448, 132644864 },
    { 120, 1536, 32, 102400, 101376, 100663296 }, { 75, 1024, 16, 65536, 65536, 4194304 } };

static const limits *limits_of(int cc)
{
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++) if (generations[i].cc == cc) return &generations[i];
    return &generations[0];
}

int drv_attribute(int a)
{
    const limits *l = limits_of(drv.card.cc);
    switch (a) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X: case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1500000;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return drv.card.sms;
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: return 0;
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS: case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 10000000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 384;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return l->l2;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return l->threads_per_sm;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return drv.card.cc / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return drv.card.cc % 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return l->shared_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return l->shared_optin;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return l->blocks_per_sm;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return drv.card.cc >= 80 ? 1024 : 0;
    default: return -1;
    }
}

CUresult_CALL cuDeviceGetAttribute(int *value, int a, CUdevice dev)
{
    ENTER(DRV_INITED);
    CUresult r = device_arg(dev, value);
    if (r != CUDA_SUCCESS) LEAVE(r);
    int v = drv_attribute(a);
    if (v < 0) {
        char what[64];
        snprintf(what, sizeof what, "cuDeviceGetAttribute(%d)", a);
        drv_missing(what);
    }
    *value = v;
    LEAVE(CUDA_SUCCESS);
}

// ---- contexts

static CUcontext context_new(bool primary)
{
    CUcontext c = drv_new(DRV_CONTEXT, sizeof *c);
    c->uses = 1;
    c->primary = primary;
    return c;
}

CUresult_CALL cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
    ENTER(DRV_INITED);
    CUresult r = device_arg(dev, ctx);
    if (r != CUDA_SUCCESS) LEAVE(r);
    if (drv.primary) drv.primary->uses++;
    else drv.primary = context_new(true);
    *ctx = drv.primary;
    LEAVE(CUDA_SUCCESS);
}

// The context's end frees all that is left, which is what a driver does; what was left is told as a leak first.
static void context_end(CUcontext ctx)
{
    drv_drain_all();
    drv_reset_context();
    drv.sticky = CUDA_SUCCESS;
    if (ctx == drv.primary) drv.primary = NULL;
    drv_free(ctx);
}

CUresult_CALL cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
    ENTER(DRV_INITED);
    if (dev < 0 || dev >= drv.card.devices) LEAVE(CUDA_ERROR_INVALID_DEVICE);
    if (!drv.primary) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    if (!--drv.primary->uses) context_end(drv.primary);
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxCreate_v2(CUcontext *ctx, unsigned flags, CUdevice dev)
{
    ENTER(DRV_INITED);
    (void)flags;
    CUresult r = device_arg(dev, ctx);
    if (r != CUDA_SUCCESS) LEAVE(r);
    if (drv.count[DRV_CONTEXT]) drv_missing("a second context (cuCtxCreate_v2 beside a live one)");
    if (depth == 16) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *ctx = stack[depth++] = context_new(false);
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxDestroy_v2(CUcontext ctx)
{
    ENTER(DRV_INITED);
    if (!drv_is(ctx, DRV_CONTEXT) || ctx->primary) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    if (drv_current() == ctx) depth--;
    context_end(ctx);
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxSetCurrent(CUcontext ctx)
{
    ENTER(DRV_INITED);
    if (ctx && !drv_is(ctx, DRV_CONTEXT)) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    if (!ctx) depth = depth ? depth - 1 : 0;
    else stack[depth ? depth - 1 : depth++] = ctx;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxGetCurrent(CUcontext *ctx)
{
    ENTER(DRV_INITED);
    if (!ctx) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *ctx = drv_current();
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxPushCurrent_v2(CUcontext ctx)
{
    ENTER(DRV_INITED);
    if (!drv_is(ctx, DRV_CONTEXT) || depth == 16) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = ctx;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxPopCurrent_v2(CUcontext *ctx)
{
    ENTER(DRV_INITED);
    if (!depth) LEAVE(CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (ctx) *ctx = stack[depth];
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxGetDevice(CUdevice *dev)
{
    ENTER(DRV_CTX);
    if (!dev) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *dev = 0;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuCtxSynchronize(void)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    LEAVE(drv_drain_all());
}

// ---- names of errors

#define NAME_CASE(name, code, text) case name: *out = #name; break;
#define TEXT_CASE(name, code, text_) case name: *out = text_; break;
CUresult_CALL cuGetErrorName(CUresult error, const char **out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    switch (error) { CUDA_ABI_ERRORS(NAME_CASE) default: *out = NULL; }
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult_CALL cuGetErrorString(CUresult error, const char **out)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    switch (error) { CUDA_ABI_ERRORS(TEXT_CASE) default: *out = NULL; }
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
