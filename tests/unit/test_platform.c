// The five primitives of >>platform: the thread pool gives every index to exactly one body, files are read whole or not
// at all, and what a control group leaves of the memory is read from a made-up tree.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include <sys/stat.h>

// ---- the pool

enum { MOST = 4096 };
typedef struct count { int hits[MOST], running, most; } count;

static void hit(void *ctx, int i)
{
    count *c = (count *)ctx;
    int now = g3__atomic_add(&c->running, 1) + 1;
    if (now > g3__atomic_get(&c->most)) g3__atomic_set(&c->most, now);
    g3__atomic_add(&c->hits[i], 1);
    g3__atomic_add(&c->running, -1);
}

static int every_index_once(g3__pool *p, int n)
{
    static count c;
    memset(&c, 0, sizeof c);
    g3__pool_for(p, n, hit, &c);
    if (g3__atomic_get(&c.running)) return 0;            // a body still at work after the call
    for (int i = 0; i < MOST; i++) if (c.hits[i] != (i < n)) return 0;
    return c.most <= g3__pool_width(p);
}

static int a_pool_runs_every_index_exactly_once(void)
{
    for (int width = 0; width <= 9; width++) {
        g3__pool p;
        g3__pool_init(&p, width, NULL);
        CHECK(g3__pool_width(&p) == G3__MAX(width, 1));
        for (int round = 0; round < 300; round++) CHECK(every_index_once(&p, round % 67));
        CHECK(every_index_once(&p, MOST));
        g3__pool_free(&p);
    }
    return 0;
}

static int a_pool_that_has_slept_wakes_again(void)
{
    g3__pool p;
    g3__pool_init(&p, 4, NULL);
    for (int round = 0; round < 5; round++) {
        struct timespec nap = {0, 20000000};             // far longer than the workers spin
        nanosleep(&nap, NULL);
        CHECK(every_index_once(&p, 100));
    }
    g3__pool_free(&p);
    return 0;
}

static int pools_come_and_go_without_work(void)
{
    for (int i = 0; i < 50; i++) {
        g3__pool p;
        g3__pool_init(&p, 1 + i % 8, NULL);
        g3__pool_free(&p);
    }
    return 0;
}

// Two callers at once: their calls take turns, and both get their own job done.
typedef struct caller { g3__pool *p; long sum; } caller;
typedef struct adding { long sum[64]; } adding;
static void add(void *ctx, int i) { ((adding *)ctx)->sum[i] += i; }

static void *call_often(void *user)
{
    caller *c = (caller *)user;
    for (int round = 0; round < 2000; round++) {
        adding a;
        memset(&a, 0, sizeof a);
        g3__pool_for(c->p, 64, add, &a);
        for (int i = 0; i < 64; i++) c->sum += a.sum[i];
    }
    return NULL;
}

static int two_callers_take_turns(void)
{
    g3__pool p;
    pthread_t t[3];
    caller c[3];
    g3__pool_init(&p, 3, NULL);
    for (int i = 0; i < 3; i++) { c[i].p = &p; c[i].sum = 0; CHECK(pthread_create(&t[i], NULL, call_often, &c[i]) == 0); }
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 3; i++) CHECK(c[i].sum == 2000L * (63 * 64 / 2));
    g3__pool_free(&p);
    return 0;
}

static void backwards(void *user, int n, void (*body)(void *ctx, int i), void *ctx)
{
    ++*(int *)user;
    while (n-- > 0) body(ctx, n);
}

static int lent_threads_do_the_work(void)
{
    int calls = 0;
    g3_parallel lent = {backwards, 3, &calls};
    g3__pool p;
    g3__pool_init(&p, 8, &lent);
    CHECK(g3__pool_width(&p) == 3);
    CHECK(every_index_once(&p, 50) && calls == 1);
    g3__pool_free(&p);
    return 0;
}

// ---- memory that a control group leaves

static int put(const char *dir, const char *name, const char *text)
{
    char path[512];
    FILE *f;
    snprintf(path, sizeof path, "build/tmp/cgroup/%s", dir);
    for (char *p = path + 10; (p = strchr(p + 1, '/')) != NULL; ) { *p = 0; mkdir(path, 0777); *p = '/'; }
    mkdir(path, 0777);
    snprintf(path, sizeof path, "build/tmp/cgroup/%s/%s", dir, name);
    f = fopen(path, "w");
    if (!f) return 0;
    fputs(text, f);
    return fclose(f) == 0;
}

// https://github.com/ollama/ollama/issues/9908
// Version 2: limit less use, the file cache not counted, and the tightest group on the way up counts.
static int the_tightest_control_group_counts(void)
{
    mkdir("build", 0777);
    mkdir("build/tmp", 0777);
    mkdir("build/tmp/cgroup", 0777);
    CHECK(put("a", "memory.max", "3000000\n") && put("a", "memory.current", "1000000\n") && put("a", "memory.stat", "anon 600000\nfile 400000\nkernel 1\n"));
    CHECK(put("a/b", "memory.max", "max\n") && put("a/b", "memory.current", "5\n"));
    CHECK(put("a/b/c", "memory.max", "2500000\n") && put("a/b/c", "memory.current", "500000\n"));
    CHECK(g3__cgroup_free("build/tmp/cgroup", "0::/a/b/c\n") == 2000000);         // c: 2,500,000 - 500,000; a leaves 2,400,000
    CHECK(g3__cgroup_free("build/tmp/cgroup", "0::/a/b\n") == 2400000);           // 3,000,000 - (1,000,000 - 400,000)
    CHECK(g3__cgroup_free("build/tmp/cgroup", "0::/nowhere\n") == UINT64_MAX);
    CHECK(g3__cgroup_free("build/tmp/cgroup", "") == UINT64_MAX);
    CHECK(g3__cgroup_free("build/tmp/cgroup", "garbage") == UINT64_MAX);
    return 0;
}

static int control_groups_of_version_1_count_too(void)
{
    CHECK(put("memory/x", "memory.limit_in_bytes", "7000000\n") && put("memory/x", "memory.usage_in_bytes", "3000000\n") && put("memory/x", "memory.stat", "cache 1\ntotal_cache 1000000\n"));
    CHECK(g3__cgroup_free("build/tmp/cgroup", "12:cpu,cpuacct:/y\n9:memory:/x\n1:name=systemd:/z\n") == 5000000);
    CHECK(put("memory/full", "memory.limit_in_bytes", "100\n") && put("memory/full", "memory.usage_in_bytes", "3000000\n"));
    CHECK(g3__cgroup_free("build/tmp/cgroup", "9:memory:/full\n") == 0);          // over its limit: nothing is left, and nothing wraps
    return 0;
}

static int this_machine_has_cores_and_memory(void)
{
    CHECK(g3__cores() >= 1 && g3__cores() <= sysconf(_SC_NPROCESSORS_ONLN));
    CHECK(g3__memory_free() > 0);
    return 0;
}

// ---- files

static int a_read_past_the_end_is_an_error(void)
{
    g3__source src;
    g3__file f;
    g3_error err;
    char text[16];
    g3__error_clear(&err);
    CHECK(put("files", "ten", "0123456789"));
    CHECK(g3__source_init(&src, "build/tmp/cgroup/files", NULL, &err) && g3__file_open(&src, "ten", &f, &err));
    CHECK(f.size == 10 && g3__file_read(&f, 3, text, 4, &err) && !memcmp(text, "3456", 4));
    CHECK(g3__file_read(&f, 10, text, 0, &err));
    CHECK(!g3__file_read(&f, 7, text, 4, &err) && err.code == G3_ERR_IO && strstr(err.text, "ten"));
    g3__error_clear(&err);
    CHECK(!g3__file_read(&f, UINT64_MAX, text, 2, &err) && err.code == G3_ERR_IO);
    g3__file_close(&f);
    g3__error_clear(&err);
    CHECK(!g3__file_open(&src, "eleven", &f, &err) && err.code == G3_ERR_IO && strstr(err.text, "eleven"));
    return 0;
}

// A shard that becomes shorter while it is open gives an error, never a signal or old bytes.
static int a_file_that_shrinks_gives_an_error(void)
{
    g3__source src;
    g3__file f;
    g3_error err;
    char text[16];
    g3__error_clear(&err);
    CHECK(put("files", "shrinks", "0123456789"));
    CHECK(g3__source_init(&src, "build/tmp/cgroup/files", NULL, &err) && g3__file_open(&src, "shrinks", &f, &err));
    CHECK(truncate("build/tmp/cgroup/files/shrinks", 5) == 0);
    CHECK(!g3__file_read(&f, 0, text, 10, &err) && err.code == G3_ERR_IO);
    g3__file_close(&f);
    return 0;
}

int main(void)
{
    RUN(a_pool_runs_every_index_exactly_once);
    RUN(a_pool_that_has_slept_wakes_again);
    RUN(pools_come_and_go_without_work);
    RUN(two_callers_take_turns);
    RUN(lent_threads_do_the_work);
    RUN(the_tightest_control_group_counts);
    RUN(control_groups_of_version_1_count_too);
    RUN(this_machine_has_cores_and_memory);
    RUN(a_read_past_the_end_is_an_error);
    RUN(a_file_that_shrinks_gives_an_error);
    return test_done();
}
