// Many threads on one model: each session gives the bits it gives alone, threads may be lent and come late, in any order or
// one at a time, sessions open and close while others run, and a call can be cancelled from anywhere. Quick: TSan runs it.
#include "vision.h"
#include <pthread.h>

enum { WIDE_VOCAB = 4096 };
static box files;                                        // wide_box of tiny.h
static int ids[128];

enum { THREADS = 8, MADE = 12 };

typedef struct job { g3_model *m; int number, made[MADE]; float logits[WIDE_VOCAB]; bool ok; } job;

// A session of its own: a prompt, drawn tokens, a copy that goes back and on again, text.
static void *work(void *user)
{
    job *j = (job *)user;
    g3_error err;
    heard h = G3__ZERO;
    g3_generate_desc d = ask(&h, MADE, false);
    d.sampler.seed = (uint64_t)j->number + 1;
    d.ignore_stop_ids = true;
    g3_session *s = tiny_session(j->m, 80, 5 + j->number), *t = tiny_session(j->m, 80, 5 + j->number);
    j->ok = s && t && g3_add_tokens(s, ids, 20 + j->number, &err) == G3_OK && g3_generate(s, &d, &err) == MADE && g3_session_copy(t, s, &err) == G3_OK;
    g3_session_close(s);
    memcpy(j->made, h.id, sizeof j->made);
    j->ok = j->ok && g3_session_rewind(t, 20 + j->number + MADE - 3, &err) > 0 && g3_add_tokens(t, ids + 50, 4, &err) == G3_OK && g3_logits(t, &err);
    if (j->ok) memcpy(j->logits, g3_logits(t, &err), sizeof j->logits);
    g3_turn u = G3__ZERO;
    u.text = "Hi";
    u.generate.max_tokens = 2;
    j->ok = j->ok && g3_session_rewind(t, 0, &err) == 0 && g3_chat(t, &u, &err) >= 0 && g3_tokenize(j->m, "user", 4, 0, NULL, 0) == 1;
    g3_session_close(t);
    return NULL;
}

static bool same_job(const job *a, const job *b)
{
    return a->ok && b->ok && memcmp(a->made, b->made, sizeof a->made) == 0 && memcmp(a->logits, b->logits, sizeof a->logits) == 0;
}

static job alone[THREADS];

static void all_alone(void)
{
    g3_model *m = tiny_open(&files, 1);
    for (int i = 0; i < THREADS; i++) { alone[i].m = m; alone[i].number = i; work(&alone[i]); }
    g3_model_close(m);
}

static int sessions_on_threads_give_the_bits_of_single_runs(void)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        g3_model *m = tiny_open(&files, threads);
        job j[THREADS];
        pthread_t t[THREADS];
        CHECK(m);
        memset(j, 0, sizeof j);
        for (int i = 0; i < THREADS; i++) { j[i].m = m; j[i].number = i; CHECK(pthread_create(&t[i], NULL, work, &j[i]) == 0); }
        for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
        for (int i = 0; i < THREADS; i++) CHECK(same_job(&alone[i], &j[i]));
        g3_model_close(m);
    }
    return 0;
}

// ---- threads that are lent

enum { ONE_AT_A_TIME, REVERSED, LATE, SHUFFLED, THREADED, WAYS };
typedef struct lender { int way, calls, bodies; unsigned seed; } lender;
typedef struct errand { void (*body)(void *ctx, int i); void *ctx; int i, delay; } errand;

static void *run_errand(void *user)
{
    errand *e = (errand *)user;
    if (e->delay) usleep((useconds_t)e->delay);
    e->body(e->ctx, e->i);
    return NULL;
}

static void lend(void *user, int n, void (*body)(void *ctx, int i), void *ctx)
{
    lender *l = (lender *)user;
    __atomic_fetch_add(&l->calls, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&l->bodies, n, __ATOMIC_RELAXED);
    if (l->way == ONE_AT_A_TIME) for (int i = 0; i < n; i++) body(ctx, i);
    if (l->way == REVERSED) for (int i = n; i-- > 0; ) body(ctx, i);
    if (l->way == SHUFFLED) {
        int order[1024];
        for (int i = 0; i < n; i++) {
            l->seed = l->seed * 1664525u + 1013904223u;
            int k = (int)(l->seed >> 8) % (i + 1);
            order[i] = order[k];
            order[k] = i;
        }
        for (int i = 0; i < n; i++) body(ctx, order[i]);
    }
    if (l->way == LATE || l->way == THREADED) {          // the first bodies come last
        pthread_t t[64];
        errand e[64];
        for (int from = 0; from < n; from += 64) {
            int k = n - from < 64 ? n - from : 64;
            for (int i = 0; i < k; i++) {
                e[i].body = body; e[i].ctx = ctx; e[i].i = from + i; e[i].delay = l->way == LATE ? (k - i) * 60 : 0;
                if (pthread_create(&t[i], NULL, run_errand, &e[i])) { fprintf(stderr, "no thread\n"); exit(1); }
            }
            for (int i = 0; i < k; i++) pthread_join(t[i], NULL);
        }
    }
}

static int lent_threads_give_the_same_bits_whenever_their_bodies_run(void)
{
    for (int way = 0; way < WAYS; way++)
        for (int width = 1; width <= 7; width += 3) {
            if ((way == LATE || way == THREADED) && width == 7) continue;    // a thread for each body: enough is enough
            g3_error err;
            lender l = {way, 0, 0, 1};
            job j = G3__ZERO;
            g3_model_desc d = tiny_desc(&files, 0);
            d.parallel.for_fn = lend; d.parallel.width = width; d.parallel.user = &l;
            j.m = g3_model_open(&d, &err);
            if (!j.m) fprintf(stderr, "    %s\n", err.text);
            CHECK(j.m && g3_model_get_desc(j.m).threads == width);
            j.number = width;
            work(&j);
            CHECK(same_job(&alone[width], &j));
            CHECK(width == 1 || (l.calls > 10 && l.bodies > l.calls));
            g3_model_close(j.m);
        }
    return 0;
}

static int lent_threads_may_serve_several_sessions_at_once(void)
{
    g3_error err;
    lender l = {REVERSED, 0, 0, 1};
    job j[3];
    pthread_t t[3];
    g3_model_desc d = tiny_desc(&files, 0);
    d.parallel.for_fn = lend; d.parallel.width = 4; d.parallel.user = &l;
    g3_model *m = g3_model_open(&d, &err);
    CHECK(m);
    memset(j, 0, sizeof j);
    for (int i = 0; i < 3; i++) { j[i].m = m; j[i].number = i; CHECK(pthread_create(&t[i], NULL, work, &j[i]) == 0); }
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 3; i++) CHECK(same_job(&alone[i], &j[i]));
    g3_model_close(m);
    return 0;
}

// ---- the number of threads

static int any_number_of_threads_gives_the_same_bits_in_every_mode(void)
{
    for (int precise = 0; precise < 2; precise++) {
        float first[WIDE_VOCAB];
        for (int threads = 1; threads <= 5; threads++) {
            g3_error err;
            g3_model_desc d = tiny_desc(&files, threads);
            d.precise = precise;
            g3_model *m = g3_model_open(&d, &err);
            g3_session *s = open_session(m, 100, 16, G3_KV_DEFAULT, 1, &err);
            CHECK(s && g3_add_tokens(s, ids, 40, &err) == G3_OK && g3_add_tokens(s, ids + 40, 1, &err) == G3_OK && g3_logits(s, &err));
            if (threads == 1) memcpy(first, g3_logits(s, &err), sizeof first);
            CHECK(memcmp(first, g3_logits(s, &err), sizeof first) == 0);
            g3_session_close(s);
            g3_model_close(m);
        }
    }
    return 0;
}

// ---- opening and closing beside each other

typedef struct churn { g3_model *m; int rounds; bool ok; } churn;

static void *open_and_close(void *user)
{
    churn *c = (churn *)user;
    g3_error err;
    c->ok = true;
    for (int i = 0; i < c->rounds && c->ok; i++) {
        g3_session *s = tiny_session(c->m, 16 + i, 8);
        c->ok = s && g3_add_tokens(s, ids, 9, &err) == G3_OK && g3_logits(s, &err);
        g3_session_close(s);
    }
    return NULL;
}

static int sessions_open_and_close_while_others_run(void)
{
    g3_model *m = tiny_open(&files, 2);
    churn c[4];
    pthread_t t[4];
    CHECK(m);
    for (int i = 0; i < 4; i++) { c[i].m = m; c[i].rounds = 15; CHECK(pthread_create(&t[i], NULL, open_and_close, &c[i]) == 0); }
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 4; i++) CHECK(c[i].ok);
    g3_model_close(m);
    return 0;
}

typedef struct last_user { g3_session *s; bool ok; } last_user;

static void *use_and_close(void *user)
{
    last_user *l = (last_user *)user;
    g3_error err;
    l->ok = g3_add_tokens(l->s, ids, 20, &err) == G3_OK && g3_logits(l->s, &err);
    g3_session_close(l->s);
    return NULL;
}

static int the_last_of_many_threads_frees_the_model(void)
{
    const uint64_t open = files.open_now;
    for (int round = 0; round < 5; round++) {
        g3_model *m = tiny_open(&files, 2);
        last_user l[4];
        pthread_t t[4];
        for (int i = 0; i < 4; i++) l[i].s = tiny_session(m, 64, 8);
        for (int i = 0; i < 4; i++) CHECK(l[i].s && pthread_create(&t[i], NULL, use_and_close, &l[i]) == 0);
        g3_model_close(m);                               // while they run
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
        for (int i = 0; i < 4; i++) CHECK(l[i].ok);
        CHECK(files.open_now == open);
    }
    return 0;
}

// ---- on which thread hooks run

typedef struct home { pthread_t me; int calls, strange, reading, most; } home;

static int at_home(home *h)
{
    __atomic_fetch_add(&h->calls, 1, __ATOMIC_RELAXED);
    if (!pthread_equal(h->me, pthread_self())) __atomic_fetch_add(&h->strange, 1, __ATOMIC_RELAXED);
    return 0;
}

static int home_token(void *user, const g3_token *t) { (void)t; return at_home((home *)user); }
static int home_logits(void *user, float *z, int n) { (void)z; (void)n; return at_home((home *)user); }
static int home_probe(void *user, const g3_view *v) { (void)v; return at_home((home *)user); }
static int home_progress(void *user, const char *stage, uint64_t done, uint64_t total) { (void)stage; (void)done; (void)total; return at_home((home *)user); }
static void home_log(void *user, g3_level level, const char *text) { (void)level; (void)text; at_home((home *)user); }

static int hooks_run_on_the_callers_thread(void)
{
    g3_error err;
    home h = G3__ZERO;
    g3_model_desc d = tiny_desc(&files, 3);
    g3_session_desc sd = G3__ZERO;
    g3_turn t = G3__ZERO;
    h.me = pthread_self();
    d.progress.progress_fn = home_progress; d.progress.user = &h;
    d.logger.log_fn = home_log; d.logger.user = &h;
    sd.context = 100; sd.batch = 16;
    sd.progress = d.progress;
    sd.probe.probe_fn = home_probe; sd.probe.user = &h; sd.probe.points = 63;
    t.text = "Hi";
    t.generate.token_fn = home_token; t.generate.user = &h;
    t.generate.sampler.logits_fn = home_logits; t.generate.sampler.user = &h;
    t.generate.max_tokens = 5;
    t.generate.ignore_stop_ids = true;                   // or one draw in fifty ends the answer before there is enough to count
    g3_model *m = g3_model_open(&d, &err);
    g3_session *s = m ? g3_session_open(m, &sd, &err) : NULL;
    CHECK(s && g3_chat(s, &t, &err) >= 0 && h.calls > 100 && !h.strange);
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static home readers;

static int slow_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    box_file *f = (box_file *)file;
    (void)user;
    pthread_mutex_lock(&counting);
    readers.calls++;
    if (++readers.reading > readers.most) readers.most = readers.reading;
    if (!pthread_equal(readers.me, pthread_self())) readers.strange++;
    pthread_mutex_unlock(&counting);
    usleep(300);
    memcpy(dst, f->data + offset, size);
    pthread_mutex_lock(&counting);
    readers.reading--;
    pthread_mutex_unlock(&counting);
    return 0;
}

static int reads_in_flight_are_at_most_as_many_as_allowed(void)
{
    box b;
    CHECK(box_load(&b, golden("bnb/models/text-nf4-mixed-3shards")));
    for (int width = 0; width <= 4; width += 2) {
        g3_error err;
        g3_model_desc d = tiny_desc(&b, 3);
        memset(&readers, 0, sizeof readers);
        readers.me = pthread_self();
        d.files.read_fn = slow_read;
        d.files.width = width;
        g3_model *m = g3_model_open(&d, &err);
        CHECK(m && readers.calls > 20 && readers.most <= (width ? width : 1));
        if (width < 2) CHECK(!readers.strange);          // then read_fn need not know of threads
        else CHECK(readers.most > 1);
        g3_model_close(m);
    }
    box_free(&b);
    return 0;
}

// ---- cancelling

typedef struct runner { g3_session *s; int started, done, result; g3_finish finish; heard h; } runner;

static int tell(void *user, const g3_token *t)
{
    runner *r = (runner *)user;
    hear(&r->h, t);
    r->h.n = r->h.n > 500 ? 500 : r->h.n;
    __atomic_store_n(&r->started, 1, __ATOMIC_SEQ_CST);
    return 0;
}

static void *generate_long(void *user)
{
    runner *r = (runner *)user;
    g3_error err;
    g3_generate_desc d = G3__ZERO;
    d.sampler.greedy = true;
    d.ignore_stop_ids = true;
    d.token_fn = tell;
    d.user = r;
    r->result = g3_generate(r->s, &d, &err);
    r->finish = g3_session_finish(r->s);
    __atomic_store_n(&r->done, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

static int another_thread_cancels_the_running_call_and_no_other(void)
{
    g3_model *m = tiny_open(&files, 2);
    CHECK(m);
    int cancelled = 0;
    for (int round = 0; round < 3; round++) {
        g3_error err;
        runner r[2];
        pthread_t t[2];
        memset(r, 0, sizeof r);
        for (int i = 0; i < 2; i++) {
            r[i].s = tiny_session(m, 120, 16);
            CHECK(r[i].s && g3_add_tokens(r[i].s, ids, 8, &err) == G3_OK && pthread_create(&t[i], NULL, generate_long, &r[i]) == 0);
        }
        while (!__atomic_load_n(&r[0].started, __ATOMIC_SEQ_CST)) usleep(50);
        while (!__atomic_load_n(&r[0].done, __ATOMIC_SEQ_CST)) { g3_session_cancel(r[0].s); usleep(20); }
        for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
        cancelled += r[0].finish == G3_FINISH_CANCELLED;
        CHECK(r[0].finish == G3_FINISH_CANCELLED || r[0].finish == G3_FINISH_CONTEXT);
        CHECK(r[0].result >= 1 && g3_session_tokens(r[0].s, NULL, 0) == 8 + r[0].result);
        CHECK(r[1].finish == G3_FINISH_CONTEXT && r[1].result == 112);
        int a[120], b[120], n = g3_session_tokens(r[0].s, a, 120);           // what was made is what would have been made
        CHECK(g3_session_tokens(r[1].s, b, 120) == 120 && memcmp(a, b, (size_t)n * sizeof *a) == 0);
        if (n < 120) CHECK(g3_add_tokens(r[0].s, b + n, 120 - n, &err) == G3_OK && memcmp(g3_logits(r[0].s, &err), g3_logits(r[1].s, &err), WIDE_VOCAB * 4) == 0);
        for (int i = 0; i < 2; i++) g3_session_close(r[i].s);
    }
    CHECK(cancelled > 0);
    g3_model_close(m);
    return 0;
}

// ---- pictures

typedef struct looker { sample *s; g3_model *m; float logits[520]; bool ok; } looker;

static void *look_at_three(void *user)
{
    looker *l = (looker *)user;
    g3_error err;
    g3_session *x = sample_session(l->m, 160, 64, 1);
    l->ok = x && add_pieces(l->s, x, THREE, &err) && g3_logits(x, &err);
    if (l->ok) memcpy(l->logits, g3_logits(x, &err), sizeof l->logits);
    g3_session_close(x);
    return NULL;
}

static int several_sessions_look_at_once(void)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        sample s;
        static looker first, l[4];
        pthread_t t[4];
        CHECK(sample_open(&s, B));
        g3_model *m = first.m = sample_model(&s, threads, false);
        first.s = &s;
        look_at_three(&first);
        for (int i = 0; i < 4; i++) { l[i].s = &s; l[i].m = m; CHECK(pthread_create(&t[i], NULL, look_at_three, &l[i]) == 0); }
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
        for (int i = 0; i < 4; i++) CHECK(first.ok && l[i].ok && !memcmp(first.logits, l[i].logits, sizeof first.logits));
        g3_model_close(m);
        sample_close(&s);
    }
    return 0;
}

int main(void)
{
    tiny_quiet();
    if (!wide_box(&files)) { fprintf(stderr, "no fixtures\n"); return 1; }
    some_ids(ids, G3__COUNT(ids), 11);
    all_alone();
    RUN(sessions_on_threads_give_the_bits_of_single_runs);
    RUN(lent_threads_give_the_same_bits_whenever_their_bodies_run);
    RUN(lent_threads_may_serve_several_sessions_at_once);
    RUN(any_number_of_threads_gives_the_same_bits_in_every_mode);
    RUN(sessions_open_and_close_while_others_run);
    RUN(the_last_of_many_threads_frees_the_model);
    RUN(hooks_run_on_the_callers_thread);
    RUN(reads_in_flight_are_at_most_as_many_as_allowed);
    RUN(another_thread_cancels_the_running_call_and_no_other);
    RUN(several_sessions_look_at_once);
    box_free(&files);
    return test_done();
}
