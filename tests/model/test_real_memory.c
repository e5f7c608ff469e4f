// Memory is what the plan said, to the byte: arenas, everything beside them, what the system counts, and no call to the allocator once a
// session is open. On the real 270M, on the published layouts from 1B to 27B as sparse files, and on tiny models.
#define _GNU_SOURCE                      // fork and pread before any header is read
#include "real.h"
#include "../tools/checkpoint.h"
#include "../tools/sparse.h"
#include <sys/wait.h>

#define MIB ((uint64_t)1 << 20)

static char *sparse_dir[5];              // NULL: not written yet

static const char *sparse_path(int i)
{
    if (!sparse_dir[i]) {
        sparse s;
        sparse_dir[i] = (char *)malloc(64);
        strcpy(sparse_dir[i], temp_dir());
        sparse_init(&s, &sparse_sizes[i]);
        if (!sparse_write(&s, sparse_dir[i])) perror(sparse_dir[i]);
        sparse_free(&s);
    }
    return sparse_dir[i];
}

// ---- an allocator that knows the sizes of the arenas and counts everything else

typedef struct watch {
    uint64_t arena[2], taken[2];         // sizes of the model's and a session's arena; how many of each were asked for
    uint64_t live, peak, calls;          // of the rest; calls of both hooks
    uint64_t limit, refused;             // sizes above it are refused; 0: none. The largest that was
} watch;

static int watch_arena(const watch *w, size_t size) { return size == w->arena[0] ? 0 : size == w->arena[1] ? 1 : -1; }

static void *watch_alloc(void *user, size_t size, size_t align)
{
    watch *w = (watch *)user;
    void *p = NULL;
    int i = watch_arena(w, size);
    w->calls++;
    if (w->limit && size > w->limit) { w->refused = G3__MAX(w->refused, size); return NULL; }
    if (posix_memalign(&p, G3__MAX(align, sizeof p), size ? size : 1)) return NULL;
    if (i >= 0) w->taken[i]++;
    else w->live += size;
    w->peak = G3__MAX(w->peak, w->live);
    return p;
}

static void watch_free(void *user, void *ptr, size_t size)
{
    watch *w = (watch *)user;
    w->calls++;
    if (watch_arena(w, size) < 0) w->live -= size;
    free(ptr);
}

static void watch_hooks(watch *w, g3_model_desc *d)
{
    memset(w, 0, sizeof *w);
    d->allocator.alloc_fn = watch_alloc;
    d->allocator.free_fn = watch_free;
    d->allocator.user = w;
}

// The plan for one session and, from that for two, the sizes of the two arenas.
static int plan_of(const g3_model_desc *d, g3_plan *one, uint64_t arena[2])
{
    g3_model_desc twice = *d;
    g3_plan two;
    g3_error err;
    twice.sessions = 2;
    CHECK(g3_plan_memory(d, one, &err) == G3_OK && g3_plan_memory(&twice, &two, &err) == G3_OK);
    CHECK(two.total > one->total && one->total == one->weights + one->kv + one->scratch + one->vision);
    arena[1] = two.total - one->total;
    arena[0] = one->total - arena[1];
    return 0;
}

// What a program does with a session: a prompt longer than a batch, logits, an answer; a chat where the files allow it.
static int use(g3_model *m, g3_session *s, int tokens)
{
    static const int prompt[] = { 2, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97 };
    g3_error err;
    g3_generate_desc d = G3__ZERO;
    g3_turn turn = G3__ZERO;
    d.max_tokens = tokens;
    d.sampler.seed = 1;
    CHECK(g3_add_tokens(s, prompt, G3__COUNT(prompt), &err) == G3_OK && g3_logits(s, &err));
    CHECK(g3_generate(s, &d, &err) >= 0);
    CHECK(g3_session_rewind(s, 0, &err) == 0);
    if (!g3_token_piece(m, 2, NULL)) return 0;
    turn.text = "Name three primary colours.";
    turn.generate = d;
    CHECK(g3_chat(s, &turn, &err) >= 0);
    turn.generate.stops = (const char *const *)&turn.text;
    turn.generate.n_stops = 1;
    turn.generate.sampler.logprobs = true;
    turn.text = "And now in French.";
    CHECK(g3_chat(s, &turn, &err) >= 0);
    return 0;
}

static int takes_what_was_planned(const char *path, g3_kv kv, int tokens)
{
    watch w;
    g3_model_desc d = G3__ZERO;
    g3_session_desc sd = G3__ZERO;
    g3_plan p;
    g3_error err;
    uint64_t arena[2];
    sd.context = 128;
    sd.batch = 16;
    sd.kv = kv;
    sd.logits_rows = 2;
    d.path = path;
    d.threads = 2;
    d.session = &sd;
    watch_hooks(&w, &d);
    CHECK(plan_of(&d, &p, arena) == 0 && w.live == 0);
    CHECK(w.peak <= p.host);                             // planning itself stays within what it says
    watch_hooks(&w, &d);
    memcpy(w.arena, arena, sizeof arena);
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "%s\n", err.text);
    g3_session *s = m ? g3_session_open(m, &sd, &err) : NULL;
    CHECK(s && g3_session_stats(s).memory == arena[1]);
    CHECK(w.taken[0] == 1 && w.taken[1] == 1);           // one arena each, of exactly those sizes, which make up `total`
    uint64_t calls = w.calls;
    CHECK(use(m, s, tokens) == 0);
    CHECK(w.calls == calls);                             // nothing was allocated or freed
    CHECK(w.peak <= p.host);
    printf("    %s: arenas %llu + %llu = total; beside them at most %llu, planned %llu\n", g3_model_get_info(m).name, (unsigned long long)arena[0], (unsigned long long)arena[1],
           (unsigned long long)w.peak, (unsigned long long)p.host);
    g3_model_close(m);
    CHECK(w.live > 0);                                   // the session still holds its model
    g3_session_close(s);
    CHECK(w.live == 0);
    return 0;
}

static int tiny_models_take_what_was_planned(void)
{
    static const g3_kv kv[] = { G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 };
    static const char *const packed[] = { "bnb/models/text-nf4-mixed-3shards", "bnb/models/text-fp4-plain", "bnb/models/text-nf4-storage-bf16" };
    for (int i = 0; i < G3__COUNT(tiny_models); i++)
        for (int k = 0; k < 4; k++) CHECK(takes_what_was_planned(tiny_path(tiny_models[i]), kv[k], 20) == 0);
    for (int i = 0; i < G3__COUNT(packed); i++) CHECK(takes_what_was_planned(golden(packed[i]), G3_KV_BF16, 20) == 0);
    return 0;
}

static int the_270m_takes_what_was_planned(void)
{
    NEED(dense_270m);
    return takes_what_was_planned(dense_270m, G3_KV_BF16, 12);
}

static int the_270m_in_nf4_takes_what_was_planned(void)
{
    NEED(nf4_270m);
    return takes_what_was_planned(nf4_270m, G3_KV_INT8, 12);
}

static int a_1b_takes_what_was_planned(void) { return takes_what_was_planned(sparse_path(1), G3_KV_BF16, 1); }

// From 4B up: an allocator that gives no more than 512 MB is asked for the model's arena, once, and opening fails cleanly.
static int larger_models_ask_for_what_was_planned(void)
{
    for (int i = 2; i < 5; i++)
        for (int vision = 0; vision < 2; vision++) {
            watch w;
            g3_model_desc d = G3__ZERO;
            g3_plan p;
            g3_error err;
            uint64_t arena[2];
            d.path = sparse_path(i);
            d.memory_limit = (uint64_t)1 << 40;          // so that this machine's own memory does not matter
            d.no_vision = !vision;
            CHECK(plan_of(&d, &p, arena) == 0 && (p.vision > 0) == vision);
            watch_hooks(&w, &d);
            w.limit = 512 * MIB;
            memcpy(w.arena, arena, sizeof arena);
            CHECK(!g3_model_open(&d, &err) && err.code == G3_ERR_MEMORY && strlen(err.text) > 10);
            printf("    %s%s: refused %llu bytes; %s\n", sparse_sizes[i].name, vision ? "" : " without vision", (unsigned long long)w.refused, err.text);
            CHECK(w.refused == arena[0] && w.refused == p.total - arena[1]);
            CHECK(w.live == 0 && w.peak <= p.host && w.taken[0] == 0);
        }
    return 0;
}

// ---- what the system counts: the peak of resident memory, in a process of its own

#if defined(__linux__)
static uint64_t resident(const char *field)              // "VmHWM:" the peak so far, "VmRSS:" now
{
    char text[4096], *p;
    uint64_t bytes = 0;
    if (g3__small_file("/proc/self/status", text, sizeof text) && (p = strstr(text, field)) != NULL) bytes = strtoull(p + strlen(field), NULL, 10) * 1024;
    return bytes;
}

typedef struct peaks { uint64_t before, peak; int line; } peaks;

static peaks in_child(const char *path, int context, int tokens)
{
    peaks r = G3__ZERO;
    g3_error err;
    g3_model_desc d = G3__ZERO;
    g3_session_desc sd = G3__ZERO;
    sd.context = context;
    d.path = path;
    d.threads = 2;
    d.session = &sd;
    r.before = resident("VmRSS:");
    g3_model *m = g3_model_open(&d, &err);
    g3_session *s = m ? g3_session_open(m, &sd, &err) : NULL;
    r.line = s ? use(m, s, tokens) : __LINE__;
    r.peak = resident("VmHWM:");
    return r;
}

static int stays_resident_within_the_plan(const char *path, int context, int tokens)
{
    g3_model_desc d = G3__ZERO;
    g3_session_desc sd = G3__ZERO;
    g3_plan p;
    g3_error err;
    peaks r = G3__ZERO;
    int ends[2], status = 0;
    sd.context = context;
    d.path = path;
    d.threads = 2;
    d.session = &sd;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK);
    CHECK(pipe(ends) == 0);
    pid_t child = fork();
    if (!child) {
        r = in_child(path, context, tokens);
        _exit(write(ends[1], &r, sizeof r) != sizeof r);
    }
    close(ends[1]);
    CHECK(child > 0 && read(ends[0], &r, sizeof r) == sizeof r && waitpid(child, &status, 0) == child && status == 0);
    close(ends[0]);
    if (r.line) fprintf(stderr, "%s: the child stopped at line %d\n", path, r.line);
    double mib = 1.0 / (double)MIB, got = (double)(r.peak - r.before) * mib, plan = (double)(p.total + p.host) * mib;
    printf("    %s: peak %.1f MiB, plan %.1f (arenas %.1f, weights %.1f)\n", path, got, plan, (double)p.total * mib, (double)p.weights * mib);
    CHECK(r.line == 0 && r.peak > r.before);
    CHECK(got <= plan + 64);                             // never more than it said …
    CHECK(got >= (double)p.weights * mib - 64);          // … and the weights are there: what a session does not use yet is not resident
    return 0;
}

static int the_system_counts_no_more_than_the_plan(void)
{
    if (!resident("VmHWM:")) SKIP("no /proc/self/status");
    for (int i = 0; i < G3__COUNT(tiny_models); i++) CHECK(stays_resident_within_the_plan(tiny_path(tiny_models[i]), 128, 20) == 0);
    return stays_resident_within_the_plan(sparse_path(1), 4096, 1);
}

static int the_system_counts_no_more_than_the_plan_for_the_270m(void)
{
    if (!resident("VmHWM:")) SKIP("no /proc/self/status");
    NEED(dense_270m);
    NEED(nf4_270m);
    CHECK(stays_resident_within_the_plan(dense_270m, 4096, 12) == 0);
    return stays_resident_within_the_plan(nf4_270m, 32768, 12);
}
#else
static int the_system_counts_no_more_than_the_plan(void) { SKIP("/proc/self/status is Linux's"); }
static int the_system_counts_no_more_than_the_plan_for_the_270m(void) { SKIP("/proc/self/status is Linux's"); }
#endif

// ---- loading is one pass over the files; only the small scales and maps of double quantisation, less than a thousandth of them, are looked at
// before (so that a bad one is found before any memory is taken)

typedef struct reads { const char *dir; int n; char name[64][64]; uint64_t size[64], bytes[64], calls; } reads;
typedef struct open_file { int fd, which; } open_file;

static void *reads_open(void *user, const char *name, uint64_t *size)
{
    reads *r = (reads *)user;
    char path[512];
    struct stat st;
    int i = 0;
    open_file *f = (open_file *)malloc(sizeof *f);
    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    f->fd = open(path, O_RDONLY);
    if (f->fd < 0 || fstat(f->fd, &st)) { free(f); return NULL; }
    while (i < r->n && strcmp(r->name[i], name)) i++;
    if (i == r->n) snprintf(r->name[r->n++], sizeof r->name[0], "%s", name);
    f->which = i;
    r->size[i] = *size = (uint64_t)st.st_size;
    return f;
}

static int reads_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    reads *r = (reads *)user;
    open_file *f = (open_file *)file;
    r->calls++;
    r->bytes[f->which] += size;
    return pread(f->fd, dst, size, (off_t)offset) != (ssize_t)size;
}

static void reads_close(void *user, void *file)
{
    (void)user;
    close(((open_file *)file)->fd);
    free(file);
}

static bool is_small_scale(const char *name) { return ck_ends(name, ".nested_absmax") || ck_ends(name, ".nested_quant_map"); }

static int reads_in_one_pass(const char *path, uint64_t least)
{
    static reads r;
    g3_model_desc d = G3__ZERO;
    g3_error err;
    uint64_t sum = 0, size = 0, scales = 0;
    memset(&r, 0, sizeof r);
    r.dir = path;
    d.files.open_fn = reads_open;
    d.files.read_fn = reads_read;
    d.files.close_fn = reads_close;
    d.files.user = &r;
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "%s\n", err.text);
    CHECK(m);
    reads opened = r;                                    // what follows reads again
    for (int i = 0, n = g3_model_tensor(m, 0, NULL); i < n; i++) {
        g3_tensor t;
        g3_model_tensor(m, i, &t);
        if (is_small_scale(t.name)) scales += t.bytes;
    }
    g3_model_close(m);
    for (int i = 0; i < r.n; i++) {
        uint64_t most = r.size[i] + (ck_ends(r.name[i], ".safetensors") ? scales : 0);
        if (opened.bytes[i] > most) fprintf(stderr, "%s: %llu bytes read, of %llu\n", r.name[i], (unsigned long long)opened.bytes[i], (unsigned long long)r.size[i]);
        CHECK(opened.bytes[i] <= most);
        sum += opened.bytes[i];
        size += r.size[i];
    }
    printf("    %s: %llu of %llu bytes in %llu reads\n", path, (unsigned long long)sum, (unsigned long long)size, (unsigned long long)opened.calls);
    CHECK(sum >= least && scales <= size / 1000);
    return 0;
}

static int loading_is_one_pass_over_the_files(void)
{
    for (int i = 0; i < G3__COUNT(tiny_models); i++) CHECK(reads_in_one_pass(tiny_path(tiny_models[i]), 1000) == 0);
    return reads_in_one_pass(sparse_path(1), 1000 * MIB);
}

static int loading_the_270m_is_one_pass_over_the_files(void)
{
    NEED(dense_270m);
    NEED(nf4_270m);
    CHECK(reads_in_one_pass(dense_270m, 500 * MIB) == 0);
    return reads_in_one_pass(nf4_270m, 350 * MIB);
}

int main(void)
{
    RUN(the_system_counts_no_more_than_the_plan);        // first: a child starts as large as its parent
    RUN(the_system_counts_no_more_than_the_plan_for_the_270m);
    RUN(tiny_models_take_what_was_planned);
    RUN(a_1b_takes_what_was_planned);
    RUN(the_270m_takes_what_was_planned);
    RUN(the_270m_in_nf4_takes_what_was_planned);
    RUN(larger_models_ask_for_what_was_planned);
    RUN(loading_is_one_pass_over_the_files);
    RUN(loading_the_270m_is_one_pass_over_the_files);
    for (int i = 0; i < 5; i++) if (sparse_dir[i]) { temp_remove(sparse_dir[i]); free(sparse_dir[i]); }
    return test_done();
}
