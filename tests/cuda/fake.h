// fake.h: the emulated card as tests see it: where it is, its fields, its reports.
#ifndef FAKE_H
#define FAKE_H
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <stdio.h>
#include <stdlib.h>

#ifndef FAKECUDA_DIR
#define FAKECUDA_DIR "build/fakecuda"                    // another one in the sanitized build
#endif

static struct {
    int  (*set)(const char *, const char *);
    void (*reset)(void);
    long (*reports)(const char *);
    const char *(*report)(long);
    void (*reports_clear)(void);
    long (*leaks)(void);
    char *(*counters)(void);
    void (*counters_reset)(void);
    unsigned long long (*launches)(void);
} fake;

static bool real_card(void) { return getenv("REAL_CARD") != NULL; }

// Where driver and compiler are, for desc.libraries. "": there is no compiler, and none can be fetched.
static const char *card_libraries(void)
{
    static char dirs[2048];
    char path[1024] = "";
    if (*dirs || real_card()) return dirs;
    FILE *p = popen("sh tests/tools/get_nvrtc.sh", "r");
    if (!p || !fgets(path, sizeof path, p)) path[0] = 0;
    if (p) pclose(p);
    char *slash = strrchr(path, '/');
    if (slash) { *slash = 0; snprintf(dirs, sizeof dirs, "%s:%s", FAKECUDA_DIR, path); }
    return dirs;
}

#define FAKE_FIND(name) g3__library_symbol(lib, "fakecuda_" #name, (void *)&fake.name)
static bool fake_open(void)                              // once: the control calls of the emulated card
{
    void *lib = fake.set || real_card() ? NULL : g3__library_open(FAKECUDA_DIR "/libcuda.so.1");
    if (lib) FAKE_FIND(set), FAKE_FIND(reset), FAKE_FIND(reports), FAKE_FIND(report), FAKE_FIND(reports_clear), FAKE_FIND(leaks), FAKE_FIND(counters), FAKE_FIND(counters_reset), FAKE_FIND(launches);
    return fake.set != NULL;
}

// A fresh emulated card; fields as in tests/fakecuda/README.md, "cc=86,seed=3". False: there is no compiler here.
static bool fake_card(const char *fields)
{
    char list[512], *rest = list;
    if (real_card()) return true;
    if (!*card_libraries() || !fake_open()) return false;
    fake.reset();
    fake.set("checks", "all");
    snprintf(list, sizeof list, "%s", fields);
    for (char *field; (field = strtok_r(rest, ",", &rest)) != NULL; ) {
        char *value = strchr(field, '=');
        if (!value || (*value++ = 0, fake.set(field, value) != 1)) { fprintf(stderr, "the emulated card has no field %s\n", field); exit(1); }
    }
    return true;
}

static bool fake_clean(void)                             // no check has reported anything
{
    for (long i = 0; fake.reports && i < fake.reports(NULL); i++) fprintf(stderr, "%s\n", fake.report(i));
    return !fake.reports || fake.reports(NULL) == 0;
}
#endif
