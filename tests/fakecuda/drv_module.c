// drv_module.c: owns modules and functions, and the laws of a launch: PTX version against driver, target against device, sizes of grids and
// blocks, registers, shared memory. What breaks a law is refused at the call, as the driver does; faults of a kernel show later.
#define _GNU_SOURCE
#include "driver.h"
#include <unistd.h>

// ---- what PTX a driver and a device take

// Which PTX a driver knows; source: the release history in the manual of the PTX instruction set.
static int ptx_of_driver(int driver)
{
    static const int known[][2] = {
        {11000, 70}, {11010, 71}, {11020, 72}, {11030, 73}, {11040, 74}, {11050, 75}, {11060, 76}, {11070, 77}, {11080, 78}, {12000, 80}, {12010, 81},
        {12020, 82}, {12030, 83}, {12040, 84}, {12050, 85}, {12060, 85}, {12070, 86}, {12080, 87}, {12090, 88}, {13000, 90}, {13010, 91}, {13020, 92} };
    int ptx = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) if (driver >= known[i][0]) ptx = known[i][1];
    return ptx;
}

// The word after a directive at the head of the file: ".version 9.0", ".target sm_89".
static bool directive(const char *ptx, const char *name, char *word, size_t cap)
{
    for (const char *p = ptx; (p = strstr(p, name)) != NULL; p++) {
        if (p != ptx && p[-1] != '\n') continue;
        p += strlen(name);
        p += strspn(p, " \t");
        size_t n = strcspn(p, " \t\r\n,");
        if (n >= cap) return false;
        memcpy(word, p, n);
        word[n] = 0;
        return true;
    }
    return false;
}

static CUresult version_law(const char *ptx, char *log, size_t cap)
{
    char word[32];
    int major, minor;
    if (!directive(ptx, ".version", word, sizeof word) || sscanf(word, "%d.%d", &major, &minor) != 2) {
        snprintf(log, cap, "the PTX has no .version");
        return CUDA_ERROR_INVALID_PTX;
    }
    if (major * 10 + minor <= ptx_of_driver(drv.card.driver)) return CUDA_SUCCESS;
    snprintf(log, cap, "PTX .version %s is newer than the driver %d.%d", word, drv.card.driver / 1000, drv.card.driver % 1000 / 10);
    return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

// PTX for sm_XY runs on every device from X.Y on; with the suffix a only on X.Y itself, with f within the generation X.
static CUresult target_law(const char *ptx, char *log, size_t cap)
{
    char word[32], suffix = 0;
    int cc;
    if (!directive(ptx, ".target", word, sizeof word) || sscanf(word, "sm_%d%c", &cc, &suffix) < 1) {
        snprintf(log, cap, "the PTX has no .target sm_...");
        return CUDA_ERROR_INVALID_PTX;
    }
    bool fits = suffix == 'a' ? cc == drv.card.cc : suffix == 'f' ? cc <= drv.card.cc && cc / 10 == drv.card.cc / 10 : cc <= drv.card.cc;
    if (fits) return CUDA_SUCCESS;
    snprintf(log, cap, "PTX .target %s does not run on a device of compute capability %d.%d", word, drv.card.cc / 10, drv.card.cc % 10);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

// ---- loading

typedef struct logs { char *text[2]; size_t cap[2]; size_t *used[2]; } logs;    // 0: info, 1: error

static logs read_options(unsigned n, const int *options, void **values)
{
    logs l = {{0}, {0}, {0}};
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == CU_JIT_INFO_LOG_BUFFER) l.text[0] = values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) l.text[1] = values[i];
        if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES) l.cap[0] = (size_t)(uintptr_t)values[i], l.used[0] = (size_t *)&values[i];
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) l.cap[1] = (size_t)(uintptr_t)values[i], l.used[1] = (size_t *)&values[i];
    }
    return l;
}

static void give_log(logs *l, const char *text)
{
    if (l->text[0] && l->cap[0]) l->text[0][0] = 0;
    if (l->text[1] && l->cap[1]) snprintf(l->text[1], l->cap[1], "%s", text);
    if (l->used[0]) *l->used[0] = 0;
    if (l->used[1]) *l->used[1] = strlen(text) < l->cap[1] ? strlen(text) : l->cap[1];
}

void drv_module_free(CUmodule m)
{
    for (CUfunction f = m->functions, next; f; f = next) {
        next = f->sibling;
        free(f->param_at);
        free(f->param_size);
        drv_free(f);
    }
    core_unload(m);
    for (size_t i = 0; i < m->nglobals; i++) drv_mem_free(m->globals[i]);
    free(m->globals);
    free(m->registers);
    drv_free(m);
}

static CUresult load(CUmodule *out, const char *image, char *log, size_t cap)
{
    if (!out || !image) return CUDA_ERROR_INVALID_VALUE;
    if (!strncmp(image, "\177ELF", 4)) {
        snprintf(log, cap, "machine code (CUBIN) cannot be interpreted; give PTX");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    if ((image[0] & 0x80) || image[0] < ' ') {
        if (!strchr("\n\t\r", image[0]) || !image[0]) return CUDA_ERROR_INVALID_IMAGE;
    }
    CUresult r = version_law(image, log, cap);
    if (r == CUDA_SUCCESS) r = target_law(image, log, cap);
    if (r != CUDA_SUCCESS) return r;
    drv_mem_open();
    CUmodule m = drv_new(DRV_MODULE, sizeof *m);
    r = core_load(m, image, log, cap);
    if (r == CUDA_SUCCESS) drv_registers_load(m, image), *out = m;
    else drv_module_free(m);
    return r;
}

CUresult_CALL cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, int *options, void **values)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    if (n && (!options || !values)) LEAVE(CUDA_ERROR_INVALID_VALUE);
    char log[1024] = "";
    logs l = read_options(n, options, values);
    CUresult r = load(module, image, log, sizeof log);
    give_log(&l, log);
    if (r != CUDA_SUCCESS && *log) fprintf(stderr, "fakecuda: cuModuleLoadData: %s\n", log);
    LEAVE(r);
}

CUresult_CALL cuModuleLoadData(CUmodule *module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }

CUresult_CALL cuModuleUnload(CUmodule m)
{
    ENTER(DRV_CTX | DRV_NOT_IN_CAPTURE);
    if (!drv_is(m, DRV_MODULE)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    CUresult r = drv_drain_all();
    drv_module_free(m);
    LEAVE(r);
}

CUresult_CALL cuModuleGetFunction(CUfunction *fn, CUmodule m, const char *name)
{
    ENTER(DRV_CTX);
    if (!fn || !name) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!drv_is(m, DRV_MODULE)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    CUfunction f = m->functions;
    while (f && strcmp(f->name, name)) f = f->sibling;
    if (!f && (f = core_function(m, name)) != NULL) {
        f->registers = drv_registers_of(f);
        f->dynamic_shared = f->static_shared < 49152 ? 49152 - (int)f->static_shared : 0;
        f->sibling = m->functions;
        m->functions = f;
    }
    *fn = f;
    LEAVE(f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

CUresult_CALL cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule m, const char *name)
{
    ENTER(DRV_CTX);
    if (!name) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!drv_is(m, DRV_MODULE)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    drv_range *r = core_global(m, name);
    if (!r) LEAVE(CUDA_ERROR_NOT_FOUND);
    if (ptr) *ptr = r->lo;
    if (bytes) *bytes = r->bytes;
    LEAVE(CUDA_SUCCESS);
}

// ---- attributes

static int optin(void) { return drv_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN); }

// Registers are given to a warp in pieces of 256.
static int register_threads(CUfunction f)
{
    int per_warp = (f->registers * 32 + 255) / 256 * 256;
    return per_warp ? 65536 / per_warp * 32 : 1024;
}

static int max_threads(CUfunction f)
{
    int n = f->max_threads ? f->max_threads : 1024, regs = register_threads(f);
    return n < regs ? n : regs;
}

static int function_attribute(CUfunction f, int a)
{
    switch (a) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return max_threads(f);
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: return (int)f->static_shared;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: return (int)f->const_bytes;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: return (int)f->local_bytes;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: return f->registers;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: case CU_FUNC_ATTRIBUTE_BINARY_VERSION: return drv.card.cc;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: return 0;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: return f->dynamic_shared;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: return -1;
    default: return -2;
    }
}

CUresult_CALL cuFuncGetAttribute(int *value, int a, CUfunction f)
{
    ENTER(DRV_CTX);
    if (!value) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!drv_is(f, DRV_FUNCTION)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    int v = function_attribute(f, a);
    if (v == -2) LEAVE(CUDA_ERROR_INVALID_VALUE);
    *value = v;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuFuncSetAttribute(CUfunction f, int a, int value)
{
    ENTER(DRV_CTX);
    if (!drv_is(f, DRV_FUNCTION)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    if (a == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) LEAVE(value < -1 || value > 100 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
    if (a != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || (size_t)value + f->static_shared > (size_t)optin()) LEAVE(CUDA_ERROR_INVALID_VALUE);
    f->dynamic_shared = value;
    LEAVE(CUDA_SUCCESS);
}

CUresult_CALL cuFuncSetCacheConfig(CUfunction f, int config)
{
    ENTER(DRV_CTX);
    if (!drv_is(f, DRV_FUNCTION)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    LEAVE(config < 0 || config > 3 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

static int least(int a, int b) { return a < b ? a : b; }

// Blocks that fit one multiprocessor: by threads, by its slots for blocks, by registers, by shared memory.
static int resident(CUfunction f, unsigned threads, size_t shared)
{
    int warps = (int)(threads + 31) / 32, per_warp = (f->registers * 32 + 255) / 256 * 256;
    size_t need = f->static_shared + shared + (size_t)drv_attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    int n = drv_attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / (warps * 32);
    n = least(n, drv_attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR));
    if (per_warp) n = least(n, 65536 / per_warp / warps);
    size_t by_shared = (size_t)drv_attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR) / (need ? need : 1);
    return by_shared < (size_t)n ? (int)by_shared : n;
}

CUresult_CALL cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction f, int threads, size_t shared)
{
    ENTER(DRV_CTX);
    if (!blocks || threads < 1) LEAVE(CUDA_ERROR_INVALID_VALUE);
    if (!drv_is(f, DRV_FUNCTION)) LEAVE(CUDA_ERROR_INVALID_HANDLE);
    *blocks = threads > max_threads(f) || shared > (size_t)f->dynamic_shared ? 0 : resident(f, (unsigned)threads, shared);
    LEAVE(CUDA_SUCCESS);
}

// ---- launching

// A refused launch tells the law in one line, since the code alone says little.
static CUresult law(CUresult code, CUfunction f, const char *what, uint64_t have, uint64_t most)
{
    drv_report("launch", "%s: %s is %llu, the most is %llu", f->name, what, (unsigned long long)have, (unsigned long long)most);
    return code;
}

static CUresult launch_law(CUfunction f, const drv_op *op)
{
    static const uint64_t grid_most[3] = {2147483647, 65535, 65535}, block_most[3] = {1024, 1024, 64};
    for (int i = 0; i < 3; i++) {
        if (!op->grid[i] || op->grid[i] > grid_most[i]) return law(CUDA_ERROR_INVALID_VALUE, f, "a side of the grid", op->grid[i], grid_most[i]);
        if (!op->block[i] || op->block[i] > block_most[i]) return law(CUDA_ERROR_INVALID_VALUE, f, "a side of the block", op->block[i], block_most[i]);
    }
    uint64_t threads = (uint64_t)op->block[0] * op->block[1] * op->block[2];
    if (threads > 1024) return law(CUDA_ERROR_INVALID_VALUE, f, "the number of threads of a block", threads, 1024);
    if (f->max_threads && threads > (uint64_t)f->max_threads) return law(CUDA_ERROR_INVALID_VALUE, f, "a block against __launch_bounds__", threads, (uint64_t)f->max_threads);
    if (threads > (uint64_t)register_threads(f)) return law(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, f, "a block against its registers", threads, (uint64_t)register_threads(f));
    if (op->shared > (unsigned)f->dynamic_shared) return law(CUDA_ERROR_INVALID_VALUE, f, "dynamic shared memory (cuFuncSetAttribute raises it)", op->shared, (uint64_t)f->dynamic_shared);
    uint64_t blocks = (uint64_t)op->grid[0] * op->grid[1] * op->grid[2], fit = (uint64_t)resident(f, (unsigned)threads, op->shared) * (uint64_t)drv.card.sms;
    if (op->cooperative && blocks > fit) return law(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, f, "a cooperative grid", blocks, fit);
    return CUDA_SUCCESS;
}

// Arguments are copied here, at the call: a launch or a capture never looks at the program's variables again.
static CUresult take_params(CUfunction f, drv_op *op, void **params, void **extra)
{
    if (extra) drv_missing("arguments by the extra list of cuLaunchKernel");
    if (f->nparams && !params) return CUDA_ERROR_INVALID_VALUE;
    op->param_bytes = f->param_bytes;
    op->params = calloc(1, f->param_bytes + 16);
    if (!op->params) drv_missing("memory for queued work");
    for (size_t i = 0; i < f->nparams; i++) {
        if (!params[i]) return CUDA_ERROR_INVALID_VALUE;
        memcpy(op->params + f->param_at[i], params[i], f->param_size[i]);
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, const drv_op *shape, CUstream s, void **params, void **extra)
{
    CUresult r = drv_is(f, DRV_FUNCTION) ? drv_stream_arg(&s) : CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) r = launch_law(f, shape);
    if (r != CUDA_SUCCESS) return r;
    drv_op *op = malloc(sizeof *op);
    if (!op) drv_missing("memory for queued work");
    *op = *shape;
    op->kind = DRV_KERNEL;
    op->fn = f;
    r = take_params(f, op, params, extra);
    if (r == CUDA_SUCCESS) return drv_submit(s, op);
    drv_op_free(op);
    return r;
}

CUresult_CALL cuLaunchKernel(CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                             CUstream stream, void **params, void **extra)
{
    ENTER(DRV_CTX);
    drv_op shape = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared};
    LEAVE(launch(fn, &shape, stream, params, extra));
}

CUresult_CALL cuLaunchCooperativeKernel(CUfunction fn, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                        unsigned shared, CUstream stream, void **params)
{
    ENTER(DRV_CTX);
    drv_op shape = {.grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared, .cooperative = true};
    LEAVE(launch(fn, &shape, stream, params, NULL));
}

static void read_attribute(const CUlaunchAttribute *a, drv_op *shape)
{
    char what[64];
    if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) shape->cooperative = a->value.first != 0;
    else if (a->id != CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION && a->id) {
        snprintf(what, sizeof what, "attribute %d of cuLaunchKernelEx", a->id);
        drv_missing(what);
    }
}

CUresult_CALL cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction fn, void **params, void **extra)
{
    ENTER(DRV_CTX);
    if (!c || (c->numAttrs && !c->attrs)) LEAVE(CUDA_ERROR_INVALID_VALUE);
    drv_op shape = {.grid = {c->gridDimX, c->gridDimY, c->gridDimZ}, .block = {c->blockDimX, c->blockDimY, c->blockDimZ}, .shared = c->sharedMemBytes};
    for (unsigned i = 0; i < c->numAttrs; i++) read_attribute(&c->attrs[i], &shape);
    LEAVE(launch(fn, &shape, c->hStream, params, extra));
}
