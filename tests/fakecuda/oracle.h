// oracle.h: what the oracles share: growing text, PTX from NVRTC with any options, modules whose spellings are listed, arrays on the card.
// An oracle started with --spellings runs nothing: it prints each instruction that its PTX holds, for the coverage gate.
#ifndef ORACLE_H
#define ORACLE_H
#define _GNU_SOURCE
#include "driver_test.h"
#include "spellings.h"
#include <stdarg.h>
#include <stdint.h>

// ---- text that grows

typedef struct text { char *s; size_t n, cap; } text;

__attribute__((format(printf, 2, 3))) static void add(text *t, const char *format, ...)
{
    va_list v;
    va_start(v, format);
    int n = vsnprintf(NULL, 0, format, v);
    va_end(v);
    if (t->n + (size_t)n + 1 > t->cap) {
        t->cap = 2 * t->cap + (size_t)n + 4096;
        t->s = realloc(t->s, t->cap);
        if (!t->s) abort();
    }
    va_start(v, format);
    t->n += (size_t)vsnprintf(t->s + t->n, t->cap - t->n, format, v);
    va_end(v);
}

// ---- NVRTC

// PTX of a program text, or NULL where there is no compiler; a program that does not compile ends the test.
static char *compile(const char *source, const char *name, int cc, const char *const *more, int n)
{
    if (!open_nvrtc()) return NULL;
    char arch[64];
    const char *options[16] = { arch };
    snprintf(arch, sizeof arch, "--gpu-architecture=compute_%d", cc);
    for (int i = 0; i < n; i++) options[i + 1] = more[i];
    void *prog = NULL;
    size_t size = 0;
    char *ptx = NULL;
    if (rtc.create(&prog, source, name, 0, NULL, NULL) == 0 && rtc.compile(prog, n + 1, options) == 0 && rtc.ptx_size(prog, &size) == 0
        && (ptx = malloc(size + 1)) != NULL) rtc.ptx(prog, ptx);
    if (!ptx) show_log(prog), exit(1);
    rtc.destroy(&prog);
    return ptx;
}

// From now on this release is used: 12 or 13 as get_nvrtc.sh knows them. False: it cannot be had.
static bool use_nvrtc(int generation)
{
    char line[64], path[1024] = "";
    snprintf(line, sizeof line, "sh tests/tools/get_nvrtc.sh %d", generation);
    FILE *p = popen(line, "r");
    if (!p || !fgets(path, sizeof path, p)) path[0] = 0;
    if (p) pclose(p);
    path[strcspn(path, "\n")] = 0;
    if (!*path) return false;
    setenv("NVRTC", path, 1);
    rtc.lib = NULL;
    rtc.none = false;
    return open_nvrtc();
}

// ---- modules

static bool listing;                                     // --spellings

static void print_spelling(const char *spelling, void *user) { (void)user; puts(spelling); }

// The module of a PTX text; NULL when only spellings are wanted, which are printed then.
static CUmodule oracle_module(const char *ptx)
{
    if (listing) { each_spelling(ptx, print_spelling, NULL); return NULL; }
    return load_module(ptx);
}
#define ORACLE_MODULE(m, ptx) CUmodule m = oracle_module(ptx); if (!m) return 0

// In place of main's arguments; cases print their verdicts only when they run.
static bool oracle_begin(int argc, char **argv)
{
    listing = argc > 1 && !strcmp(argv[1], "--spellings");
    if (!listing) open_card();
    return !listing;
}
#define ORACLE(fn) do { if (listing) (void)fn(); else RUN(fn); } while (0)
static int oracle_end(void) { return listing ? 0 : test_done(); }

// ---- arrays on the card

static CUdeviceptr device(const void *host, size_t bytes)
{
    CUdeviceptr p = 0;
    CUresult r = CU.cuMemAlloc_v2(&p, bytes);
    if (!r && host) r = CU.cuMemcpyHtoD_v2(p, host, bytes);
    if (r) fprintf(stderr, "no room for %zu bytes on the card (error %d)\n", bytes, r), exit(1);
    return p;
}

static void fetch(void *host, CUdeviceptr p, size_t bytes)
{
    CUresult r = CU.cuMemcpyDtoH_v2(host, p, bytes);
    if (r) fprintf(stderr, "nothing comes back from the card (error %d)\n", r), exit(1);
}

// Runs a kernel to its end. A fault is the test's end: the card has said where it was.
static void run2(CUfunction f, unsigned gx, unsigned gy, unsigned threads, unsigned shared, void **args)
{
    CUresult r = CU.cuLaunchKernel(f, gx, gy, 1, threads, 1, 1, shared, NULL, args, NULL);
    if (!r) r = CU.cuCtxSynchronize();
    if (r) fprintf(stderr, "a kernel ended with error %d\n", r), exit(1);
}
static void run(CUfunction f, unsigned grid, unsigned threads, unsigned shared, void **args) { run2(f, grid, 1, threads, shared, args); }
#define ARGS(...) ((void *[]){ __VA_ARGS__ })

// ---- numbers: a small generator, and the formats by their definitions

static uint64_t rand_state = 88172645463325252u;
static uint64_t rand64(void)                             // xorshift64* (Vigna, 2014)
{
    rand_state ^= rand_state >> 12;
    rand_state ^= rand_state << 25;
    rand_state ^= rand_state >> 27;
    return rand_state * 2685821657736338717u;
}
static double rand_unit(void) { return (double)(rand64() >> 11) * 0x1p-53; }
static double rand_pm(double scale) { return (rand_unit() * 2 - 1) * scale; }

static uint32_t f_bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float f_of(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static uint64_t d_bits(double f) { uint64_t u; memcpy(&u, &f, 8); return u; }
static double d_of(uint64_t u) { double f; memcpy(&f, &u, 8); return f; }

// The value of a small binary float: a sign, `e` exponent bits, `m` mantissa bits, no thought of infinities.
static double small_float(uint32_t bits, int e, int m)
{
    uint32_t exponent = bits >> m & ((1u << e) - 1), mantissa = bits & ((1u << m) - 1);
    int bias = (1 << (e - 1)) - 1;
    double v = exponent ? (double)(mantissa | 1u << m) : 2.0 * mantissa;      // in steps of 2^(exponent - bias - m), or 2^(-bias - m)
    v *= d_of((uint64_t)(1023 + (int)exponent - bias - m) << 52);
    return bits >> (e + m) & 1 ? -v : v;
}
static double bf16_value(uint16_t h) { return (double)f_of((uint32_t)h << 16); }
static double e4m3_value(uint8_t b) { return small_float(b, 4, 3); }
static uint16_t bf16_of(float f) { uint32_t u = f_bits(f); return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16); }     // finite numbers

#endif
