// bench: how fast a model reads and writes here, beside what this machine could do at most.
//
//     bench -m DIR                      a prompt of 512 tokens, then 64 new ones
//     bench -m DIR -d 8064 -c 8192      writing behind 8064 tokens
//     bench -m DIR --json               the same as one line for programs
//
// Every figure is the median of several runs, and its ceiling was measured in the same run: the memory's read speed, since a new token
// reads all weights once, and the float32 multiply-add peak, since a prompt is matrix products. Note the load average: on a busy machine
// none of it means anything. For POSIX systems; build with -O3 -march=native, or the ceilings are too low.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

enum { MAX_THREADS = 256, MAX_RUNS = 64 };

typedef struct settings {
    const char *model;
    int prompt, tokens, depth, runs, screen;             // screen: 0 off, 1 on, 2 where it fits
    bool json, first_only, load;
    g3_model_desc open;
    g3_session_desc session;
} settings;

static int fail(const char *what) { fprintf(stderr, "bench: %s\n", what); return 1; }

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static double median(double *t, int n) { qsort(t, (size_t)n, sizeof *t, by_value); return n ? t[n / 2] : 0; }

static double load_average(void)
{
    double load = -1;
    return getloadavg(&load, 1) == 1 ? load : -1;
}

// ---- ceilings

typedef struct probe { char *data; size_t size; double result, from, to; int kind; pthread_barrier_t *start; } probe;

typedef uint64_t words __attribute__((vector_size(64), may_alias));

// Reads everything once: as one stream, or as four with the memory asked 2 KB ahead, whichever this machine likes better.
static void read_all(probe *p)
{
    words a = { 0 }, b = a, c = a, d = a;
    const size_t quarter = p->size / 4 / 256 * 256;
    const size_t step = p->kind ? quarter : 64, stride = p->kind ? 64 : 256, end = p->kind ? quarter : quarter * 4;
    for (size_t i = 0; i < end; i += stride) {
        const char *q = p->data + i;
        if (p->kind) for (int k = 0; k < 4; k++) __builtin_prefetch(q + (size_t)k * step + 2048);
        a ^= *(const words *)(const void *)q;
        b ^= *(const words *)(const void *)(q + step);
        c ^= *(const words *)(const void *)(q + 2 * step);
        d ^= *(const words *)(const void *)(q + 3 * step);
    }
    a ^= b ^ c ^ d;
    p->result += (double)(a[0] & 1);
}

enum { CHAINS = 12, ROUNDS = 4000000 };
#if defined(__AVX512F__)
#define FLOPS_PER_STEP 32.0
typedef __m512 lanes;
#define STEP(x) _mm512_fmadd_ps(m, m, x)
#define ALL(v) _mm512_set1_ps(v)
#elif defined(__AVX2__)
#define FLOPS_PER_STEP 16.0
typedef __m256 lanes;
#define STEP(x) _mm256_fmadd_ps(m, m, x)
#define ALL(v) _mm256_set1_ps(v)
#else
#define FLOPS_PER_STEP 8.0
typedef float lanes __attribute__((vector_size(16)));
#define STEP(x) ((x) + m * m)
#define ALL(v) ((lanes){ v, v, v, v })
#endif

static void multiply_add(probe *p)                       // twelve chains: more than any unit needs to stay busy
{
    const lanes m = ALL(1e-3f);
    lanes x[CHAINS];
    for (int i = 0; i < CHAINS; i++) x[i] = ALL((float)i * 1e-6f);              // different, or the compiler makes one of them
    for (int r = 0; r < ROUNDS; r++) {
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) x[i] = STEP(x[i]);
        __asm__ volatile("" ::: );                       // no round may be skipped or merged with the next
    }
    lanes sum = x[0];
    float out[sizeof sum / sizeof(float)];
    for (int i = 1; i < CHAINS; i++) sum += x[i];
    memcpy(out, &sum, sizeof out);
    p->result += (double)out[0];
}

static void *probe_thread(void *ctx)
{
    probe *p = (probe *)ctx;
    pthread_barrier_wait(p->start);
    p->from = now();
    if (p->kind < 2) read_all(p);
    else multiply_add(p);
    p->to = now();
    return NULL;
}

static double probe_once(int kind, int threads, char *data, size_t size)         // seconds from the first thread's start to the last one's end
{
    pthread_t id[MAX_THREADS];
    static probe p[MAX_THREADS];
    pthread_barrier_t start;
    double from = 1e300, to = 0;
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
        const size_t each = size / (size_t)threads / 4096 * 4096;
        p[i].data = data + (size_t)i * each; p[i].size = each; p[i].kind = kind; p[i].start = &start;
        if (pthread_create(&id[i], NULL, probe_thread, &p[i])) exit(fail("no more threads"));
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(id[i], NULL);
        if (p[i].from < from) from = p[i].from;
        if (p[i].to > to) to = p[i].to;
    }
    pthread_barrier_destroy(&start);
    return to - from;
}

typedef struct ceilings { double read_gbs, one_read_gbs, gflops; } ceilings;

static char *fresh_pages(size_t size)
{
    char *p = (char *)mmap(NULL, size + (2 << 20), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) exit(fail("no memory to measure with"));
    p = (char *)(((uintptr_t)p + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
#ifdef MADV_HUGEPAGE
    madvise(p, size, MADV_HUGEPAGE);
#endif
    return p;
}

static double read_speed(int threads, char *data, size_t size)                   // the best of a few passes, in GB/s
{
    double best = 0;
    for (int i = 0; i < 8; i++) {
        const double gbs = (double)size / probe_once(i & 1, threads, data, size) / 1e9;
        if (gbs > best) best = gbs;
    }
    return best;
}

static ceilings measure_ceilings(int threads)
{
    const size_t size = (size_t)512 << 20;
    ceilings c = { 0, 0, 0 };
    char *data = fresh_pages(size);
    memset(data, 1, size);
    c.read_gbs = read_speed(threads, data, size);
    c.one_read_gbs = threads > 1 ? read_speed(1, data, size) : c.read_gbs;
    for (int i = 0; i < 3; i++) {
        const double g = (double)threads * ROUNDS * CHAINS * FLOPS_PER_STEP / probe_once(2, threads, data, size) / 1e9;
        if (g > c.gflops) c.gflops = g;
    }
    munmap(data, size);
    return c;
}

// ---- the model

typedef struct results { double open_s, prompt_tps, gen_tps, sample_ms; uint64_t bytes; int held; } results;

static int random_ids(int *ids, int n, int vocab)
{
    uint32_t r = 12345;
    for (int i = 0; i < n; i++) { r = r * 1664525u + 1013904223u; ids[i] = 1000 + (int)(r >> 8) % (vocab > 4000 ? vocab - 3000 : 100); }
    return n;
}

static bool write_tokens(g3_session *s, int n, double *each, double *sampling, g3_error *err)
{
    g3_sampler p;
    memset(&p, 0, sizeof p);
    p.seed = 1;
    for (int i = 0; i < n; i++) {
        const double a = now();
        const int id = g3_sample(s, &p, err);
        if (id < 0 || g3_add_tokens(s, &id, 1, err) != G3_OK) return false;
        each[i] = now() - a;
    }
    const float *all = g3_logits(s, err);                // computed: now drawing is only drawing
    for (int i = 0; all && i < 21; i++) { const double a = now(); g3_sample(s, &p, err); sampling[i] = now() - a; }
    return all != NULL;
}

static bool measure(settings *o, g3_model *m, results *r, g3_error *err)
{
    static double prompt[MAX_RUNS], sampling[21];
    const int longest = o->depth > o->prompt ? o->depth : o->prompt, vocab = g3_model_get_info(m).vocab;
    int *ids = (int *)malloc(sizeof *ids * (size_t)(longest + 1));
    double *each = (double *)malloc(sizeof *each * (size_t)(o->tokens + 1));
    g3_session *s = g3_session_open(m, &o->session, err);
    bool ok = s && ids && each && random_ids(ids, longest, vocab);
    for (int i = 0; ok && i < o->runs; i++) {
        g3_session_rewind(s, 0, err);
        const double a = now();
        ok = g3_add_tokens(s, ids, o->prompt, err) == G3_OK;
        prompt[i] = now() - a;
    }
    g3_session_rewind(s, 0, err);
    ok = ok && g3_add_tokens(s, ids, o->depth ? o->depth : 1, err) == G3_OK && write_tokens(s, o->tokens, each, sampling, err);
    if (ok) {
        r->prompt_tps = o->prompt / median(prompt, o->runs);
        r->gen_tps = 1 / median(each, o->tokens);
        r->sample_ms = 1e3 * median(sampling, 21);
        r->bytes = g3_session_stats(s).bytes_per_token;
        r->held = g3_session_stats(s).held;
    }
    g3_session_close(s);
    free(ids);
    free(each);
    return ok;
}

// ---- opening, against reading the same bytes the same way

typedef struct reading { int fd; uint64_t size; char *dst; int next; } reading;

static void *read_file(void *ctx)
{
    reading *r = (reading *)ctx;
    for (uint64_t at; (at = (uint64_t)__atomic_fetch_add(&r->next, 1, __ATOMIC_RELAXED) << 20) < r->size; )
        if (pread(r->fd, r->dst + at, r->size - at < 1 << 20 ? r->size - at : 1 << 20, (off_t)at) <= 0) break;
    return NULL;
}

static double read_weights(const char *dir, uint64_t *total)
{
    double t = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL; ) {
        char path[2048];
        struct stat st;
        const char *dot = strrchr(e->d_name, '.');
        if (!dot || strcmp(dot, ".safetensors") || snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= (int)sizeof path) continue;
        reading r = { open(path, O_RDONLY), 0, NULL, 0 };
        if (r.fd < 0 || fstat(r.fd, &st)) continue;
        pthread_t id[8];
        r.size = (uint64_t)st.st_size;
        const double a = now();
        r.dst = fresh_pages((size_t)r.size);
        for (int i = 0; i < 8; i++) pthread_create(&id[i], NULL, read_file, &r);
        for (int i = 0; i < 8; i++) pthread_join(id[i], NULL);
        t += now() - a;
        *total += r.size;
        munmap(r.dst, (size_t)r.size);
        close(r.fd);
    }
    if (d) closedir(d);
    return t;
}

static int print_load(const settings *o)                 // in turns, so that both meet the same machine
{
    double opens[5], reads[5];
    uint64_t bytes = 0;
    g3_error err;
    for (int i = 0; i < 5; i++) {
        bytes = 0;
        reads[i] = read_weights(o->open.path, &bytes);
        const double a = now();
        g3_model *m = g3_model_open(&o->open, &err);
        opens[i] = now() - a;
        if (!m) return fail(err.text);
        g3_model_close(m);
    }
    const double open_s = median(opens, 5), read_s = median(reads, 5);
    printf("open %.3f s, reading the same %.2f GB alone %.3f s: %.0f %%\n", open_s, (double)bytes / 1e9, read_s, 100 * read_s / open_s);
    return 0;
}

// The time from before a process starts to the first token it writes.
static double first_token(const char *self, const settings *o)
{
    char command[4096];
    snprintf(command, sizeof command, "%s -m '%s' --first --screened-head %s", self, o->model, o->open.screened_head ? "on" : "off");
    const double a = now();
    FILE *f = popen(command, "r");
    const int c = f ? fgetc(f) : EOF;
    const double t = now() - a;
    if (f) pclose(f);
    return c == EOF ? -1 : t;
}

static int print_first(settings *o)
{
    static const int prompt[] = { 2, 818, 5279, 529, 7001, 563 };
    g3_error err;
    g3_sampler p;
    memset(&p, 0, sizeof p);
    p.greedy = true;
    g3_model *m = g3_model_open(&o->open, &err);
    g3_session *s = m ? g3_session_open(m, &o->session, &err) : NULL;
    if (!s || g3_add_tokens(s, prompt, 6, &err) != G3_OK) return fail(err.text);
    printf("%d\n", g3_sample(s, &p, &err));
    return 0;
}

// ---- the table

static void print_table(const settings *o, const g3_model *m, const results *r, const ceilings *c, double first_s)
{
    const g3_model_info i = g3_model_get_info(m);
    const int threads = g3_model_get_desc(m).threads;
    const double gbs = (double)r->bytes * r->gen_tps / 1e9, table = (double)i.vocab * i.dim, flops = 2 * ((double)i.parameters - table) * r->prompt_tps / 1e9;
    if (o->json) {
        printf("{\"model\":\"%s\",\"device\":\"%s\",\"threads\":%d,\"screened_head\":%s,\"prompt\":%d,\"prompt_tps\":%.2f,\"prompt_gflops\":%.1f,\"fp32_gflops\":%.1f,"
               "\"tokens\":%d,\"depth\":%d,\"gen_tps\":%.2f,\"bytes_per_token\":%llu,\"gen_gbs\":%.2f,\"read_gbs\":%.2f,\"one_thread_read_gbs\":%.2f,\"sample_ms\":%.3f,\"open_s\":%.3f,"
               "\"first_token_s\":%.3f,\"load\":%.2f}\n", i.name, i.device, threads, o->open.screened_head ? "true" : "false", o->prompt, r->prompt_tps, flops, c->gflops, o->tokens, o->depth,
               r->gen_tps, (unsigned long long)r->bytes, gbs, c->read_gbs, c->one_read_gbs, r->sample_ms, r->open_s, first_s, load_average());
        return;
    }
    printf("%s on %s, %d threads, load average %.2f\n", i.name, i.device, threads, load_average());
    printf("  memory read        %8.1f GB/s (one thread %.1f)    float32 multiply-adds %.0f GFLOPS\n", c->read_gbs, c->one_read_gbs, c->gflops);
    printf("  prompt %6d      %8.1f tokens/s    %6.0f GFLOPS in the layers   %3.0f %% of the peak\n", o->prompt, r->prompt_tps, flops, 100 * flops / c->gflops);
    printf("  writing %5d      %8.1f tokens/s    %6.1f GB/s, %.0f MB a token  %3.0f %% of the read speed%s\n", o->tokens, r->gen_tps, gbs, (double)r->bytes / 1e6, 100 * gbs / c->read_gbs,
           o->open.screened_head ? "    (screened head)" : "");
    printf("  drawing a token    %8.3f ms    opening %.3f s    first token of a new process %.2f s\n", r->sample_ms, r->open_s, first_s);
}

// ---- flags

static int whole(const char *v, int least) { char *end; long n = strtol(v, &end, 10); if (*end || n < least || n > 1 << 24) exit(fail("a flag wants another number")); return (int)n; }

static int one_of(const char *v, const char *const *words, int n)
{
    for (int i = 0; i < n; i++) if (!strcmp(v, words[i])) return i;
    fprintf(stderr, "bench: \"%s\" is none of", v);
    for (int i = 0; i < n; i++) fprintf(stderr, " %s", words[i]);
    fputc('\n', stderr);
    exit(1);
}

static bool read_flags(settings *o, int argc, char **argv)
{
    static const char *const kvs[] = { "f32", "bf16", "fp8", "int8" }, *const switches[] = { "off", "on", "auto" };      // in the order of g3_kv, and of screen
    for (int i = 1; i < argc; i++) {
        const char *f = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(f, "--json")) { o->json = true; continue; }
        if (!strcmp(f, "--precise")) { o->open.precise = true; continue; }
        if (!strcmp(f, "--load")) { o->load = true; continue; }
        if (!strcmp(f, "--first")) { o->first_only = true; continue; }
        if (!v) return false;
        i++;
        if (!strcmp(f, "-m")) o->model = v;
        else if (!strcmp(f, "-p")) o->prompt = whole(v, 1);
        else if (!strcmp(f, "-n")) o->tokens = whole(v, 1);
        else if (!strcmp(f, "-d")) o->depth = whole(v, 0);
        else if (!strcmp(f, "-r")) { o->runs = whole(v, 1); if (o->runs > MAX_RUNS) o->runs = MAX_RUNS; }
        else if (!strcmp(f, "-c")) o->session.context = whole(v, 1);
        else if (!strcmp(f, "-t")) o->open.threads = whole(v, 1);
        else if (!strcmp(f, "--simd")) o->open.simd = v;
        else if (!strcmp(f, "--kv")) o->session.kv = (g3_kv)(G3_KV_F32 + one_of(v, kvs, 4));
        else if (!strcmp(f, "--screened-head")) o->screen = one_of(v, switches, 3);
        else return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    static char dir[2048];
    settings o;
    results r;
    g3_error err;
    memset(&o, 0, sizeof o);
    memset(&r, 0, sizeof r);
    o.model = "build/gemma-3-270m-nf4"; o.prompt = 512; o.tokens = 64; o.runs = 5; o.screen = 2;
    if (!read_flags(&o, argc, argv))
        return fail("bench [-m DIR] [-p PROMPT] [-n TOKENS] [-d DEPTH] [-c CONTEXT] [-t THREADS] [-r RUNS] [--kv bf16|f32|fp8|int8] [--precise] [--screened-head on|off|auto] [--simd NAME] [--load] [--json]");
    o.open.path = find_model(o.model, dir, sizeof dir);
    const int need = (o.depth > o.prompt ? o.depth : o.prompt) + o.tokens + 1;
    if (!o.session.context) o.session.context = need;
    o.open.session = &o.session;
    o.open.screened_head = o.screen > 0 && (!o.load || o.screen == 1);
    if (o.load) return print_load(&o);
    if (o.first_only) return print_first(&o);
    double a = now();
    g3_model *m = g3_model_open(&o.open, &err);
    if (!m && o.screen == 2 && err.code == G3_ERR_MEMORY) { o.open.screened_head = false; a = now(); m = g3_model_open(&o.open, &err); }
    r.open_s = now() - a;
    if (!m) return fail(err.text);
    const ceilings c = measure_ceilings(g3_model_get_desc(m).threads < MAX_THREADS ? g3_model_get_desc(m).threads : MAX_THREADS);
    if (!measure(&o, m, &r, &err)) return fail(err.text);
    print_table(&o, m, &r, &c, first_token(argv[0], &o));
    g3_model_close(m);
    return 0;
}
