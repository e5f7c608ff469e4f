// drv_ctl.c: owns what a test sets and asks: the card and its faults by FAKECUDA="field=value,..." or by fakecuda_set, and cuGetProcAddress.
// Fields: name, cc, sms, driver, devices, memory, reserved, seed, guard, quiet, registers, counters (a file), fail (call:n:code); all others are the interpreter's.
#define _GNU_SOURCE
#include "driver.h"
#include "fakecuda_control.h"
#include <ctype.h>

// ---- fields

void drv_card_defaults(drv_card *c)
{
    *c = (drv_card){.name = "Emulated card", .cc = 89, .sms = 128, .driver = 13000, .devices = 1, .memory = (uint64_t)24 << 30, .guard = 1};
}

// "24G": a number and a power of 1024.
static bool size_of(const char *s, uint64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)*s)) return false;
    uint64_t n = strtoull(s, &end, 0);
    const char *unit = *end ? strchr("KMG", *end) : NULL;
    if (*end && (!unit || end[1])) return false;
    int shift = !unit ? 0 : *unit == 'K' ? 10 : *unit == 'M' ? 20 : 30;
    if (shift && n >> (64 - shift)) return false;
    *out = n << shift;
    return true;
}

static int set_size(uint64_t *out, const char *value) { return size_of(value, out) ? 1 : -1; }

static int set_int(int *out, const char *value, uint64_t most)
{
    uint64_t n;
    if (!size_of(value, &n) || n > most) return -1;
    *out = (int)n;
    return 1;
}

static int set_text(char *out, size_t cap, const char *value)
{
    if (strlen(value) >= cap) return -1;
    snprintf(out, cap, "%s", value);
    return 1;
}

int drv_card_set(drv_card *c, const char *key, const char *value)
{
    if (!strcmp(key, "name")) return set_text(c->name, sizeof c->name, value);
    if (!strcmp(key, "counters")) return set_text(c->counters, sizeof c->counters, value);
    if (!strcmp(key, "cc")) return set_int(&c->cc, value, 999);
    if (!strcmp(key, "sms")) return set_int(&c->sms, value, 1024);
    if (!strcmp(key, "driver")) return set_int(&c->driver, value, 99999);
    if (!strcmp(key, "devices")) return set_int(&c->devices, value, 16);
    if (!strcmp(key, "guard")) return set_int(&c->guard, value, 1);
    if (!strcmp(key, "memory")) return set_size(&c->memory, value);
    if (!strcmp(key, "reserved")) return set_size(&c->reserved, value);
    return 0;
}

// "cuMemAlloc_v2:3:2": the third call from now answers code 2.
static int set_fail(const char *value)
{
    drv_fail f = {.at = 0};
    int code, used = 0;
    if (sscanf(value, "%63[^:]:%ld:%d%n", f.call, &f.at, &code, &used) != 3 || value[used] || f.at < 1 || code < 1) return -1;
    drv_fail *kept = malloc(sizeof *kept);
    if (!kept) return -1;
    f.code = (CUresult)code;
    f.next = drv.fails;
    *kept = f;
    drv.fails = kept;
    return 1;
}

static int set(const char *key, const char *value)
{
    int quiet = 0;
    if (!strcmp(key, "fail")) return set_fail(value);
    if (!strcmp(key, "registers")) return drv_registers_set(value);
    if (!strcmp(key, "quiet")) {
        if (set_int(&quiet, value, 1) < 0) return -1;
        drv_reports_quiet(quiet);
        return 1;
    }
    int card = drv_card_set(&drv.card, key, value);
    if (!strcmp(key, "seed")) {
        card = set_size(&drv.card.seed, value);
        drv.random = drv.card.seed;
    }
    int core = core_set(key, value);                 // the seed is for both
    return card < 0 || core < 0 ? -1 : card | core;
}

static void set_or_die(const char *key, const char *value)
{
    int r = set(key, value);
    if (r == 1) return;
    fprintf(stderr, "fakecuda: %s: %s=%s\n", r ? "bad value" : "no such field", key, value);
    abort();
}

static void read_environment(void)
{
    const char *env = getenv("FAKECUDA");
    char *copy = strdup(env ? env : ""), *rest = copy, *field;
    while (copy && (field = strsep(&rest, ",")) != NULL) {
        if (!*field) continue;
        char *value = strchr(field, '=');
        if (value) *value++ = 0;
        set_or_die(field, value ? value : "1");
    }
    free(copy);
}

static void write_counters(void)
{
    if (!*drv.card.counters) return;
    FILE *f = fopen(drv.card.counters, "w");
    char *json = core_counters_json();
    if (!f || !json || fputs(json, f) < 0 || fclose(f)) fprintf(stderr, "fakecuda: cannot write %s\n", drv.card.counters);
    free(json);
}

__attribute__((constructor)) static void begin(void)
{
    drv_card_defaults(&drv.card);
    drv.default_stream.blocking = true;
    read_environment();
}
__attribute__((destructor)) static void end(void) { write_counters(); }

// ---- what tests call

int fakecuda_set(const char *key, const char *value)
{
    pthread_mutex_lock(&drv.lock);
    int r = set(key, value);
    pthread_mutex_unlock(&drv.lock);
    return r;
}

long fakecuda_leaks(void)
{
    pthread_mutex_lock(&drv.lock);
    long n = drv_leaks(true);
    pthread_mutex_unlock(&drv.lock);
    return n;
}

char *fakecuda_counters(void)
{
    pthread_mutex_lock(&drv.lock);
    char *json = core_counters_json();
    pthread_mutex_unlock(&drv.lock);
    return json;
}

void fakecuda_counters_reset(void)
{
    pthread_mutex_lock(&drv.lock);
    core_counters_reset();
    pthread_mutex_unlock(&drv.lock);
}

unsigned long long fakecuda_launches(void) { return drv.launches; }

static void drop_fails(void)
{
    while (drv.fails) {
        drv_fail *next = drv.fails->next;
        free(drv.fails);
        drv.fails = next;
    }
}

// As if the program began anew: everything freed without a word, the card as the environment says.
void fakecuda_reset(void)
{
    pthread_mutex_lock(&drv.lock);
    drv_mem_open();
    drv_reset_context();
    drv.sticky = CUDA_SUCCESS;
    drv.ready = false;
    drv.launches = drv.mem.serial = 0;
    while (drv.lists[DRV_CONTEXT].next && drv.lists[DRV_CONTEXT].next != &drv.lists[DRV_CONTEXT]) drv_free(drv.lists[DRV_CONTEXT].next);
    drv.primary = NULL;
    drop_fails();
    drv_card_defaults(&drv.card);
    core_set("defaults", "");
    drv_reports_quiet(0);
    drv_registers_set("estimate");
    core_counters_reset();
    fakecuda_reports_clear();
    read_environment();
    pthread_mutex_unlock(&drv.lock);
}

// ---- cuGetProcAddress

typedef void any_fn(void);
typedef struct call { const char *name; any_fn *fn; } call;
#define PROTOTYPE(name, params) CUresult name params;
CUDA_ABI_CALLS(PROTOTYPE)
#define CALL_ROW(name, params) {#name, (any_fn *)name},
static const call calls[] = { CUDA_ABI_CALLS(CALL_ROW) };
any_fn *drv_stub(const char *name);

static any_fn *find(const char *name)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) if (!strcmp(calls[i].name, name)) return calls[i].fn;
    return NULL;
}

// The program names a call without its version, and gets the newest one that is emulated.
CUresult_CALL cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
    ENTER(DRV_ANY);
    (void)flags;
    if (!name || !fn) LEAVE(CUDA_ERROR_INVALID_VALUE);
    char versioned[128];
    snprintf(versioned, sizeof versioned, "%s_v2", name);
    any_fn *f = find(versioned);
    if (!f) f = find(name);
    if (!f) f = drv_stub(name);
    int found = !f ? 1 : version > drv.card.driver ? 2 : 0;      // 1: no such name, 2: the driver is older than asked for
    *fn = found ? NULL : (void *)f;
    if (status) *status = found;
    LEAVE(found && !status ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS);
}

// The compiler library asks for private tables of a driver that is in its process, and goes on when there are none.
CUresult_CALL cuGetExportTable(const void **table, const CUuuid *id)
{
    ENTER(DRV_ANY);
    (void)id;
    if (table) *table = NULL;
    LEAVE(CUDA_ERROR_NOT_FOUND);
}
