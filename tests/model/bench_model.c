// Speed of a whole model: opening it from a warm cache, reading a prompt, writing. Not a test; note the load average beside the numbers.
// bench_model [model directory...]; without arguments the two that `make model` makes. Every figure is a median: of whole opens and
// prompts, and of single tokens, so that a burst of somebody else's work does not count.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <stdio.h>
#include <stdlib.h>

enum { OPENS = 5, PROMPTS = 3, PROMPT = 512, TOKENS = 64 };

static void load_average(void)
{
    char text[64];
    if (g3__small_file("/proc/loadavg", text, sizeof text)) printf("load average %.14s, %d core%s\n", text, g3__cores(), g3__cores() == 1 ? "" : "s");
}

static int by_value(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static double median(double *t, int n) { qsort(t, (size_t)n, sizeof *t, by_value); return t[n / 2]; }

// How fast this machine reads memory, the ceiling of writing: the best of a few passes over 256 MB, by as many threads.
enum { READ_PIECES = 64, READ_WORDS = (256 << 20) / 8 / READ_PIECES };
typedef struct reading { uint64_t *data, sum[READ_PIECES]; } reading;

static void read_piece(void *ctx, int i)
{
    reading *r = (reading *)ctx;
    const uint64_t *p = r->data + (size_t)i * READ_WORDS;
    uint64_t sum = 0;
    for (int k = 0; k < READ_WORDS; k++) sum += p[k];
    r->sum[i] += sum;
}

static void read_speed(int threads)
{
    static reading r;
    g3__pool pool;
    double best = 0;
    const size_t size = (size_t)READ_PIECES * READ_WORDS * sizeof *r.data;
    r.data = (uint64_t *)g3__pages_take(NULL, size, 64);
    if (!r.data) return;
    memset(r.data, 1, size);
    g3__pool_init(&pool, threads, NULL);
    for (int i = 0; i < 7; i++) {
        double start = g3__clock();
        g3__pool_for(&pool, READ_PIECES, read_piece, &r);
        best = G3__MAX(best, (double)size / (g3__clock() - start));
    }
    printf("memory read by %d thread%s: %.1f GB/s%s", threads, threads == 1 ? "" : "s", best / 1e9, r.sum[0] ? "\n" : " \n");
    g3__pool_free(&pool);
    g3__pages_give(NULL, r.data, size);
}

static g3_model *open_model(const char *path, int threads)
{
    g3_error err;
    g3_model_desc d = G3__ZERO;
    d.path = path;
    d.threads = threads;
    d.no_vision = true;
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "%s\n", err.text);
    return m;
}

static double open_seconds(const char *path, int threads, bool weights)
{
    double t[OPENS + 1];
    for (int i = 0; i <= OPENS; i++) {                   // the first one warms the cache
        g3_model_desc d = G3__ZERO;
        d.path = path;
        d.threads = threads;
        d.no_weights = !weights;
        double start = g3__clock();
        g3_model *m = g3_model_open(&d, NULL);
        t[i] = g3__clock() - start;
        g3_model_close(m);
    }
    return median(t + 1, OPENS);
}

static double prompt_seconds(g3_session *s, int n)       // ids spread over the table; without the head
{
    double t[PROMPTS];
    int ids[PROMPT];
    for (int i = 0; i < n; i++) ids[i] = i ? 1000 + 137 * i : 2;
    for (int k = 0; k < PROMPTS; k++) {
        g3_session_rewind(s, 0, NULL);
        double start = g3__clock();
        if (g3_add_tokens(s, ids, n, NULL) != G3_OK) return 0;
        t[k] = g3__clock() - start;
    }
    return median(t, PROMPTS);
}

static double token_seconds(g3_session *s, int n)        // of the next n tokens, the head included
{
    double t[TOKENS];
    g3_generate_desc d = G3__ZERO;
    g3_token token;
    d.sampler.greedy = true;
    d.ignore_stop_ids = true;
    d.max_tokens = n + 1;
    g3_next(s, &d, &token, NULL);
    for (int i = 0; i < n; i++) {
        double start = g3__clock();
        g3_next(s, &d, &token, NULL);
        t[i] = g3__clock() - start;
    }
    return median(t, n);
}

static void bench(const char *path, int threads)
{
    const int bos = 2;
    g3_session_desc d = G3__ZERO;
    g3_model *m = open_model(path, threads);
    if (!m) return;
    d.context = 4096;
    g3_session *s = g3_session_open(m, &d, NULL);
    if (!s) { g3_model_close(m); return; }
    g3_model_info info = g3_model_get_info(m);
    double all = open_seconds(path, threads, true), small = open_seconds(path, threads, false);
    double bytes = (double)g3_session_stats(s).bytes_per_token, prompt = prompt_seconds(s, PROMPT), deep, near;
    deep = token_seconds(s, TOKENS);
    g3_session_rewind(s, 0, NULL);
    g3_add_tokens(s, &bos, 1, NULL);
    near = token_seconds(s, TOKENS);
    printf("%-18s %d thread%s  open %.3f s (without weights %.3f)  prompt %4.0f tok/s  writing %5.1f tok/s %4.1f GB/s, behind %d tokens %5.1f tok/s\n",
           info.name, threads, threads == 1 ? " " : "s", all, small, PROMPT / prompt, 1 / near, bytes / near / 1e9, PROMPT, 1 / deep);
    fflush(stdout);
    g3_session_close(s);
    g3_model_close(m);
}

int main(int argc, char **argv)
{
    static const char *const usual[] = { "build/gemma-3-270m", "build/gemma-3-270m-nf4" };
    int n = argc > 1 ? argc - 1 : G3__COUNT(usual);
    load_average();
    for (int threads = 1; threads <= G3__MAX(g3__cores(), 2); threads *= 2) read_speed(threads);
    for (int i = 0; i < n; i++)
        for (int threads = 1; threads <= G3__MAX(g3__cores(), 2); threads *= 2) bench(argc > 1 ? argv[i + 1] : usual[i], threads);
    load_average();
    return 0;
}
