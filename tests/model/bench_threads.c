// How threads share the work of a real model: equal cores, more threads than cores, a busy neighbour, one core at half speed. Not a test.
// bench_threads [model directory]. Figures are medians; a share is of what the same number of cores reached undisturbed.
#define _GNU_SOURCE
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 256, PROMPTS = 5, TOKENS = 60 };

static const char *path = "build/gemma-3-270m-nf4";

static int by_value(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return (x > y) - (x < y); }
static double median(double *t, int n) { qsort(t, (size_t)n, sizeof *t, by_value); return t[n / 2]; }

typedef struct speed { double prompt, writing; } speed;

static speed measure(int threads)
{
    g3_error err;
    g3_model_desc d = G3__ZERO;
    g3_session_desc sd = G3__ZERO;
    g3_sampler p = G3__ZERO;
    double t[TOKENS];
    int ids[PROMPT];
    speed s = { 0, 0 };
    d.path = path; d.threads = threads;
    sd.context = PROMPT + TOKENS + 1;
    p.greedy = true;
    g3_model *m = g3_model_open(&d, &err);
    g3_session *session = m ? g3_session_open(m, &sd, &err) : NULL;
    if (!session) { fprintf(stderr, "%s\n", err.text); exit(1); }
    for (int i = 0; i < PROMPT; i++) ids[i] = 1000 + i * 37;
    for (int r = 0; r < PROMPTS; r++) {
        g3_session_rewind(session, 0, &err);
        const double a = g3__clock();
        g3_add_tokens(session, ids, PROMPT, &err);
        t[r] = g3__clock() - a;
    }
    s.prompt = PROMPT / median(t, PROMPTS);
    for (int i = 0; i < TOKENS; i++) {
        const double a = g3__clock();
        const int id = g3_sample(session, &p, &err);
        g3_add_tokens(session, &id, 1, &err);
        t[i] = g3__clock() - a;
    }
    s.writing = 1 / median(t, TOKENS);
    g3_session_close(session);
    g3_model_close(m);
    return s;
}

static void show(const char *what, speed s, speed of, double share)
{
    printf("%-44s prompt %7.1f tok/s  %3.0f %%    writing %6.1f tok/s  %3.0f %%\n", what, s.prompt, 100 * s.prompt / (of.prompt * share), s.writing, 100 * s.writing / (of.writing * share));
    fflush(stdout);
}

// A process that does nothing but run, on one core or wherever it likes.
static pid_t neighbour(int core)
{
    pid_t id = fork();
    if (id) return id;
#ifdef __linux__
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    if (core >= 0) sched_setaffinity(0, sizeof set, &set);
#endif
    for (volatile unsigned i = 0;; i++) { }
}

int main(int argc, char **argv)
{
    if (argc > 1) path = argv[1];
    const int cores = g3__cores();
    char text[64];
    if (g3__small_file("/proc/loadavg", text, sizeof text)) printf("load average %.14s, %d cores\n", text, cores);
    const speed one = measure(1), all = measure(cores);
    show("one thread", one, one, 1);
    show("a thread a core; share of so many single ones", all, one, cores);
    show("twice as many threads", measure(2 * cores), all, 1);
    pid_t id = neighbour(-1);
    show("a busy neighbour", measure(cores), all, 1);
    kill(id, SIGKILL);
    waitpid(id, NULL, 0);
    id = neighbour(cores - 1);
    show("one core at half speed; share of what is left", measure(cores), all, (cores - 0.5) / cores);
    kill(id, SIGKILL);
    waitpid(id, NULL, 0);
    return 0;
}
