// check.c: owns the reports. Every check, of the driver or of the interpreter, tells what it found in one line that a test can count and read.
// A report is also printed, unless the field quiet=1 is set: a test that plants a bug wants no noise.
#define _GNU_SOURCE
#include "driver.h"
#include "fakecuda_control.h"
#include <stdarg.h>

enum { KEPT = 256 };                                 // later ones are counted, not kept
typedef struct report { char check[16], text[512]; } report;
static report reports[KEPT];
static long kept, total;
static int quiet;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void drv_reports_quiet(int on) { quiet = on; }

void drv_report(const char *check, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    if (!quiet) fprintf(stderr, "fakecuda: %s: %s\n", check, text);
    if (kept < KEPT) {
        snprintf(reports[kept].check, sizeof reports[kept].check, "%s", check);
        snprintf(reports[kept].text, sizeof reports[kept].text, "%s", text);
        kept++;
    }
    total++;
    pthread_mutex_unlock(&lock);
}

long fakecuda_reports(const char *check)
{
    if (!check) return total;
    long n = 0;
    for (long i = 0; i < kept; i++) n += !strcmp(reports[i].check, check);
    return n;
}

const char *fakecuda_report(long i) { return i >= 0 && i < kept ? reports[i].text : NULL; }
void fakecuda_reports_clear(void) { kept = total = 0; }

// ---- leaks, and the end of a context

static long tell_kind(int kind, const char *what, bool tell)
{
    if (drv.count[kind] && tell) drv_report("leakcheck", "%ld %s not given back", drv.count[kind], what);
    return drv.count[kind];
}

// Variables of modules go with their module, functions too: neither is a leak of its own.
long drv_leaks(bool tell)
{
    long n = 0;
    for (size_t i = 0; i < drv.mem.nlive; i++) {
        const drv_range *r = drv.mem.live[i];
        if (r->kind == DRV_GLOBAL) continue;
        n++;
        if (tell) drv_report("leakcheck", "allocation %llu, %llu bytes of %s memory, was not freed", (unsigned long long)r->serial,
                             (unsigned long long)r->bytes, r->kind == DRV_DEVICE ? "device" : r->kind == DRV_PINNED ? "pinned" : "registered");
    }
    return n + tell_kind(DRV_MODULE, "modules", tell) + tell_kind(DRV_STREAM, "streams", tell) + tell_kind(DRV_EVENT, "events", tell)
        + tell_kind(DRV_GRAPH, "graphs", tell) + tell_kind(DRV_EXEC, "executable graphs", tell);
}

static void *first_of(int kind)
{
    drv_object *list = &drv.lists[kind];
    return list->next && list->next != list ? list->next : NULL;
}

static void drop_queue(CUstream s)
{
    for (drv_op *op = s->first, *next; op; op = next) {
        next = op->next;
        drv_op_free(op);
    }
    s->first = s->last = NULL;
    free(s->leaves);
    s->leaves = NULL;
}

void drv_reset_context(void)
{
    CUstream s;
    CUevent e;
    CUgraph g;
    CUgraphExec x;
    drop_queue(&drv.default_stream);
    while ((s = first_of(DRV_STREAM)) != NULL) drop_queue(s), drv_free(s);
    while ((g = first_of(DRV_GRAPH)) != NULL) drv_body_drop(g->body), drv_free(g);
    while ((x = first_of(DRV_EXEC)) != NULL) drv_body_drop(x->body), drv_free(x);
    while ((e = first_of(DRV_EVENT)) != NULL) free(e->leaves), drv_free(e);
    while (first_of(DRV_MODULE)) drv_module_free(first_of(DRV_MODULE));
    drv_mem_reset();
}
