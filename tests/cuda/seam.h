// seam.h: stands between the header and the system's loader, so that tests say which libraries are here, and which calls of NVRTC fail.
// Instead of card.h; what a test does not hide is as it is on this machine.
#ifndef SEAM_H
#define SEAM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
static void *seam_dlopen(const char *path, int mode);
static void *seam_dlsym(void *lib, const char *name);
#define dlopen seam_dlopen
#define dlsym  seam_dlsym
#include "card.h"
#undef dlopen
#undef dlsym
#include <sys/stat.h>

enum {
#define SEAM_NAME(name, params) SEAM_##name,
    G3__NVRTC(SEAM_NAME)
#undef SEAM_NAME
    SEAM_CALLS
};

static struct {
    bool hide;                                           // no library is here but those at
    const char *driver, *nvrtc;                          // these paths, which then are the emulated card and the NVRTC of this machine
    const char *lacks;                                   // a symbol that is missing in all of them
    char tried[1 << 16];                                 // the paths that were asked for, one a line
    char builtins[1024];                                 // the path at which the compiler's builtins were asked for
    int calls[SEAM_CALLS], fail_at[SEAM_CALLS], code[SEAM_CALLS];        // the fail_at-th call from now on answers code; 0: none
    void *real[SEAM_CALLS];
    int priority; unsigned flags;                        // of the last stream
} seam;

static void seam_reset(void) { void *real[SEAM_CALLS]; memcpy(real, seam.real, sizeof real); memset(&seam, 0, sizeof seam); memcpy(seam.real, real, sizeof real); }

static const char *seam_nvrtc(void)                      // this machine's, "" if none
{
    static char path[1024];
    FILE *p = *path ? NULL : popen("sh tests/tools/get_nvrtc.sh", "r");
    if (p && !fgets(path, sizeof path, p)) path[0] = 0;
    if (p) pclose(p);
    path[strcspn(path, "\n")] = 0;
    return path;
}

static void *seam_dlopen(const char *path, int mode)
{
    const size_t n = strlen(seam.tried);
    const char *slash = strrchr(path, '/'), *dir = strrchr(seam_nvrtc(), '/');
    char there[2048];
    snprintf(seam.tried + n, sizeof seam.tried - n, "%s\n", path);
    if (strstr(path, "builtins")) snprintf(seam.builtins, sizeof seam.builtins, "%s", path);
    if (!seam.hide) return dlopen(path, mode);
    if (strstr(path, "builtins") && slash && dir) {
        snprintf(there, sizeof there, "%.*s%s", (int)(dir - seam_nvrtc()), seam_nvrtc(), slash);
        return dlopen(there, mode);
    }
    if (seam.driver && !strcmp(path, seam.driver)) return dlopen(FAKECUDA_DIR "/libcuda.so.1", mode);
    return seam.nvrtc && !strcmp(path, seam.nvrtc) && *seam_nvrtc() ? dlopen(seam_nvrtc(), mode) : NULL;
}

// ---- NVRTC, whose calls are counted and may fail

static bool seam_fails(int call) { return ++seam.calls[call] == seam.fail_at[call]; }
static void seam_fail(int call, int at, int code) { seam.fail_at[call] = seam.calls[call] + at; seam.code[call] = code; }
static int seam_total(void) { int n = 0; for (int i = 0; i < SEAM_CALLS; i++) n += seam.calls[i]; return n; }

#define SEAM(name, params, args) static int seam_##name params { int (*real) params; memcpy(&real, &seam.real[SEAM_##name], sizeof real); return seam_fails(SEAM_##name) ? seam.code[SEAM_##name] : real args; }
SEAM(nvrtcVersion, (int *major, int *minor), (major, minor))
SEAM(nvrtcGetNumSupportedArchs, (int *n), (n))
SEAM(nvrtcGetSupportedArchs, (int *archs), (archs))
SEAM(nvrtcCreateProgram, (void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names), (program, source, name, n, headers, names))
SEAM(nvrtcCompileProgram, (void *program, int n, const char *const *options), (program, n, options))
SEAM(nvrtcGetProgramLogSize, (void *program, size_t *size), (program, size))
SEAM(nvrtcGetProgramLog, (void *program, char *text), (program, text))
SEAM(nvrtcGetCUBINSize, (void *program, size_t *size), (program, size))
SEAM(nvrtcGetCUBIN, (void *program, char *image), (program, image))
SEAM(nvrtcGetPTXSize, (void *program, size_t *size), (program, size))
SEAM(nvrtcGetPTX, (void *program, char *image), (program, image))
SEAM(nvrtcDestroyProgram, (void **program), (program))

// ---- the driver, of which only the making of the stream is looked at: the rest fails by the emulated card's own field

static void *seam_make_stream;
static int seam_cuStreamCreateWithPriority(void **stream, unsigned flags, int priority)
{
    int (*real)(void **, unsigned, int);
    memcpy(&real, &seam_make_stream, sizeof real);
    seam.flags = flags;
    seam.priority = priority;
    return real(stream, flags, priority);
}

static void *seam_dlsym(void *lib, const char *name)
{
    void *f = seam.lacks && !strcmp(seam.lacks, name) ? NULL : dlsym(lib, name);
#define SEAM_FIND(call, params) if (f && !strcmp(name, #call)) { int (*mine) params = seam_##call; seam.real[SEAM_##call] = f; memcpy(&f, &mine, sizeof f); return f; }
    G3__NVRTC(SEAM_FIND)
#undef SEAM_FIND
    if (f && !strcmp(name, "cuStreamCreateWithPriority")) { int (*mine)(void **, unsigned, int) = seam_cuStreamCreateWithPriority; seam_make_stream = f; memcpy(&f, &mine, sizeof f); }
    return f;
}

// ---- a card for each case

static char seam_log[1 << 16];                           // "level text", one a line
static void seam_logger(void *user, g3_level level, const char *text)
{
    const size_t n = strlen(seam_log);
    (void)user;
    snprintf(seam_log + n, sizeof seam_log - n, "%d %s\n", (int)level, text);
}

static int seam_logged(const char *part)                 // lines that have it
{
    int n = 0;
    for (char *p = seam_log; (p = strstr(p, part)) != NULL; p++) n++;
    return n;
}

// The emulated card with these fields, and a desc that finds it and the compiler; nothing is opened. False: the emulated card or the compiler is not here.
static bool seam_begin(const char *fields)
{
    if (real_card() || !fake_card(fields)) return false;
    fake.set("quiet", "1");
    seam_reset();
    seam_log[0] = 0;
    memset(&card_desc, 0, sizeof card_desc);
    card_desc.libraries = card_libraries();
    card_desc.logger.log_fn = seam_logger;
    g3__heap_init(&card_heap, NULL);
    g3__error_clear(&card_err);
    return true;
}

static bool seam_open(void)
{
    g3__error_clear(&card_err);
    return g3__card_open(&card, &card_desc, &card_heap, &card_err);
}

static bool seam_said(g3_result code, const char *part)  // one sentence, whole, with this in it
{
    const bool ok = card_err.code == code && strstr(card_err.text, part) && strlen(card_err.text) < sizeof card_err.text - 1 && !strchr(card_err.text, '\n');
    if (!ok) fprintf(stderr, "code %d, text: %s\n(wanted %d: %s)\n", (int)card_err.code, card_err.text, (int)code, part);
    return ok;
}

static bool seam_nothing_left(void)                      // after the close, of the card's and of the host's memory
{
    if (card_heap.live) fprintf(stderr, "%llu bytes of host memory are left\n", (unsigned long long)card_heap.live);
    if (fake.leaks()) fake_clean();
    return !card_heap.live && !fake.leaks();
}
#endif
