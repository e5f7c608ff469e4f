// drv_core.c: owns the seam between driver and interpreter: modules, functions, launches, what is kept beside allocations, options, counters.
#define _GNU_SOURCE
#include "fakecuda.h"
#include <stdarg.h>

CUresult core_load(CUmodule module, const char *ptx, char *log, size_t log_bytes)
{
    module->core = fc_parse(module, ptx, log, log_bytes);
    return module->core ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

void core_unload(CUmodule module) { fc_module_free(module->core); }

drv_range *core_global(CUmodule module, const char *name)
{
    for (fc_symbol *y = ((fc_module *)module->core)->symbols; y; y = y->next)
        if ((y->space == FC_GLOBAL || y->space == FC_CONST) && !strcmp(y->name, name)) return drv_mem_find(y->at);
    return NULL;
}

static void give_params(CUfunction f, const fc_kernel *k)
{
    for (const fc_symbol *y = k->params; y; y = y->next) f->nparams += y->space == FC_PARAM;
    f->param_at = calloc(f->nparams + 1, sizeof *f->param_at);
    f->param_size = calloc(f->nparams + 1, sizeof *f->param_size);
    if (!f->param_at || !f->param_size) drv_missing("memory for a function");
    size_t i = f->nparams;                           // the list has the last first
    for (const fc_symbol *y = k->params; y; y = y->next) if (y->space == FC_PARAM) f->param_at[--i] = y->at, f->param_size[i] = y->size;
}

CUfunction core_function(CUmodule module, const char *name)
{
    fc_kernel *k = ((fc_module *)module->core)->kernels;
    while (k && strcmp(k->name, name)) k = k->next;
    if (!k) return NULL;
    CUfunction f = drv_new(DRV_FUNCTION, sizeof *f);
    snprintf(f->name, sizeof f->name, "%s", name);
    f->module = module;
    f->core = k;
    f->max_threads = k->max_threads;
    f->static_shared = k->shared_bytes;
    f->local_bytes = k->local_bytes;
    f->param_bytes = k->param_bytes;
    give_params(f, k);
    return f;
}

int core_registers(CUfunction f) { return fc_live_registers(f->core); }

CUresult core_launch(const drv_op *op, uint64_t number) { return fc_run(op, number); }

// ---- beside allocations

enum { INIT_LIMIT = 1u << 31 };                      // no shadow beyond 2 GiB: it would take more memory than it is worth

void core_range_new(drv_range *r)
{
    fc_range *c = r->core = calloc(1, sizeof *c);
    if (!c) drv_missing("memory for an allocation's record");
    if (fc_opt.init && r->bytes <= INIT_LIMIT) c->init = calloc(1, r->bytes / 8 + 1);
}

void core_range_gone(drv_range *r)
{
    fc_range *c = r->core;
    free(c->init);
    free(c->written);
    free(c);
    r->core = NULL;
}

static void set_bit(uint8_t *bits, uint64_t i, bool on) { bits[i >> 3] = (uint8_t)(on ? bits[i >> 3] | 1 << (i & 7) : bits[i >> 3] & ~(1 << (i & 7))); }

void core_host_wrote(drv_range *r, uint64_t at, uint64_t bytes)
{
    fc_range *c = r->core;
    if (c->init) for (uint64_t i = at - r->lo; i < at - r->lo + bytes; i++) set_bit(c->init, i, true);
}

// What was never written stays so when it is copied.
void core_copied(drv_range *dst, uint64_t to, drv_range *src, uint64_t from, uint64_t bytes)
{
    fc_range *d = dst->core, *s = src ? src->core : NULL;
    if (!d->init) return;
    if (!s || !s->init) {
        core_host_wrote(dst, to, bytes);
        return;
    }
    for (uint64_t i = 0; i < bytes; i++) {
        uint64_t k = from - src->lo + i;
        set_bit(d->init, to - dst->lo + i, s->init[k >> 3] >> (k & 7) & 1);
    }
}

// ---- options: checks=memcheck+initcheck+..., mma=ordered|truncated, perturb=N, watchdog=N, sectors=0|1; the driver's seed counts here too

static int set_checks(const char *value)
{
    static const struct { const char *name; size_t at; } known[] = {{"initcheck", offsetof(fc_options, init)}, {"racecheck", offsetof(fc_options, race)},
        {"synccheck", offsetof(fc_options, strict)}, {"nccheck", offsetof(fc_options, nc)}};
    char list[128], *rest = list, *word;
    if (strlen(value) >= sizeof list) return -1;
    strcpy(list, value);
    fc_opt.init = fc_opt.race = fc_opt.strict = fc_opt.nc = false;
    while ((word = strsep(&rest, "+")) != NULL) {
        bool found = !strcmp(word, "memcheck") || !strcmp(word, "all");      // memcheck is always on
        for (size_t i = 0; i < 4; i++) if (!strcmp(word, known[i].name) || !strcmp(word, "all")) *((bool *)&fc_opt + known[i].at) = found = true;
        if (!found) return -1;
    }
    return 1;
}

static int number(const char *value, uint64_t *out)
{
    char *end;
    *out = strtoull(value, &end, 0);
    return *value && !*end ? 1 : -1;
}

int core_set(const char *key, const char *value)
{
    uint64_t n = 0;
    if (!strcmp(key, "defaults")) { fc_opt = (fc_options){.sync = true, .count = 1, .threads = 1, .launches = 65536}; return 1; }
    if (!strcmp(key, "checks")) return set_checks(value);
    if (!strcmp(key, "mma")) { fc_opt.mma_truncated = !strcmp(value, "truncated"); return fc_opt.mma_truncated || !strcmp(value, "ordered") ? 1 : -1; }
    if (!strcmp(key, "seed")) return number(value, &fc_opt.seed);
    if (!strcmp(key, "watchdog")) return number(value, &fc_opt.watchdog);
    if (!strcmp(key, "launches")) return number(value, &fc_opt.launches);
    if (!strcmp(key, "threads")) {
        if (number(value, &n) < 0 || n < 1 || n > 64) return -1;
        fc_opt.threads = (int)n;
        return 1;
    }
    if (strcmp(key, "perturb") && strcmp(key, "sectors")) return 0;
    if (number(value, &n) < 0 || n > 1000000) return -1;
    if (*key == 'p') fc_opt.perturb = (int)n;
    else fc_opt.count = (int)n;
    return 1;
}
