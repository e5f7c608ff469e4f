// A model's whole life with something failing at every place once: the allocator, the reader of files, the hook that says
// stop. Each time the right code and one sentence that names something, nothing leaked, and what can go on goes on.
#include "tiny.h"
#include <pthread.h>

static box files, wide, sharded;                         // t1 with a tokenizer; larger than one read; NF4 in three shards

// ---- a life: open, session, a conversation with a text that needs memory, answers, close

enum { OPEN, SESSION, TALK, LIVED };
typedef struct life { int reached, tokens; g3_result code; g3_error err; } life;

static char knot[6000];                                  // a user's text without a place to cut: it takes memory to tokenise

static life live(box *b, tally *t, int width, bool text)
{
    life l;
    heard h = G3__ZERO;
    g3_model_desc d = tiny_desc(b, 2);
    int ids[12] = {BOS, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    memset(&l, 0, sizeof l);
    d.files.width = width;
    d.allocator.alloc_fn = tally_alloc; d.allocator.free_fn = tally_free; d.allocator.user = t;
    g3_model *m = g3_model_open(&d, &l.err);
    l.code = l.err.code;
    if (!m) return l;
    l.reached = SESSION;
    g3_session_desc sd = G3__ZERO;
    sd.context = 100; sd.batch = 16;
    g3_session *s = g3_session_open(m, &sd, &l.err);
    l.code = l.err.code;
    if (!s) { g3_model_close(m); return l; }
    l.reached = TALK;
    l.code = g3_add_tokens(s, ids, 12, &l.err);
    g3_generate_desc g = ask(&h, 4, false);
    g.ignore_stop_ids = true;
    if (l.code == G3_OK && g3_generate(s, &g, &l.err) != 4) l.code = l.err.code;
    if (l.code == G3_OK && text) {
        g3_turn u = G3__ZERO;
        g3_message msg[1] = {{"user", knot, NULL, 0}};
        u.text = knot;
        int n = g3_tokenize(m, knot, SIZE_MAX, 0, NULL, 0);                  // longer than the context: the text is read, then refused
        if (n < 0) { l.code = (g3_result)n; snprintf(l.err.text, sizeof l.err.text, "g3_tokenize has no sentence"); }
        if (n > 0 && n < 1000) l.code = G3_ERR_NUMERIC;
        if (l.code == G3_OK && g3_add_turn(s, &u, &l.err) != G3_ERR_CONTEXT) l.code = l.err.code;
        if (l.code == G3_OK && g3_add_messages(s, msg, 1, true, &l.err) != G3_ERR_CONTEXT) l.code = l.err.code;
        if (l.code == G3_OK && g3_render(m, msg, 1, true, NULL, 0, &l.err) < 1000) l.code = l.err.code;
    }
    l.tokens = g3_session_tokens(s, NULL, 0);
    if (l.code == G3_OK) l.reached = LIVED;
    else if (l.tokens != 16 || g3_add_tokens(s, ids + 1, 3, NULL) != G3_OK || !g3_logits(s, NULL)) l.code = G3_ERR_NUMERIC;      // it must still work
    g3_session_close(s);
    g3_model_close(m);
    return l;
}

static int an_allocator_that_fails_at_any_call_is_survived(void)
{
    box *all[2] = {&files, &sharded};
    for (int k = 0; k < 2; k++) {
        int at[LIVED] = {0};
        for (uint64_t n = 1; ; n++) {
            tally t;
            memset(&t, 0, sizeof t);
            t.fail_at = n;
            life l = live(all[k], &t, 1, k == 0);
            if (t.live || t.bad || all[k]->open_now) fprintf(stderr, "    call %d: %d bytes, %d files left\n", (int)n, (int)t.live, (int)all[k]->open_now);
            CHECK(!t.live && !t.bad && !all[k]->open_now);
            if (t.calls < n) { CHECK(l.reached == LIVED && l.code == G3_OK); break; }
            if (l.code != G3_ERR_MEMORY) fprintf(stderr, "    call %d: %d %s\n", (int)n, l.code, l.err.text);
            CHECK(l.code == G3_ERR_MEMORY && strlen(l.err.text) > 10 && l.reached < LIVED);
            at[l.reached]++;
        }
        printf("    failed %d times while opening, %d in the session, %d while talking\n", at[OPEN], at[SESSION], at[TALK]);
        CHECK(at[OPEN] > 5 && at[SESSION] == 2 && (at[TALK] > 3) == (k == 0));
    }
    return 0;
}

// ---- reads

typedef struct gate { box *b; int reads, fail_at, stay, half; pthread_mutex_t lock; } gate;      // the read that fails, and whether all later ones do

static int gate_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    gate *g = (gate *)user;
    pthread_mutex_lock(&g->lock);
    int now = ++g->reads;
    bool fail = g->fail_at && (g->stay ? now >= g->fail_at : now == g->fail_at);
    if (fail && g->half) memcpy(dst, ((box_file *)file)->data + offset, size / 2);
    int r = fail ? 1 : box_read(g->b, file, offset, dst, size);
    pthread_mutex_unlock(&g->lock);
    return r;
}

static void *gate_open(void *user, const char *name, uint64_t *size) { return box_open(((gate *)user)->b, name, size); }
static void gate_close(void *user, void *file) { box_close(((gate *)user)->b, file); }

static int reads_that_fail_at_any_call_are_survived(void)
{
    box *all[3] = {&files, &sharded, &wide};
    for (int k = 0; k < 3; k++)
        for (int how = 0; how < 6; how++) {              // once or from then on; half of it written; one or four readers
            int failures = 0;
            for (int n = 1; ; n++) {
                gate g = {all[k], 0, n, how & 1, how >> 1 & 1, PTHREAD_MUTEX_INITIALIZER};
                tally t;
                g3_error err;
                g3_model_desc d = tiny_desc(all[k], 1);
                d.allocator = tally_hooks(&t);
                d.files.open_fn = gate_open; d.files.read_fn = gate_read; d.files.close_fn = gate_close; d.files.user = &g;
                d.files.width = how < 4 ? 1 : 4;
                g3_model *m = g3_model_open(&d, &err);
                g3_model_close(m);
                CHECK(!t.live && !t.bad && !all[k]->open_now);
                if (g.reads < n) { CHECK(m && err.code == G3_OK); break; }
                if (m || err.code != G3_ERR_IO) fprintf(stderr, "    read %d: %d %s\n", n, err.code, err.text);
                CHECK(!m && err.code == G3_ERR_IO && (strstr(err.text, ".safetensors") || strstr(err.text, ".json")));
                failures++;
            }
            CHECK(failures >= 4);
        }
    return 0;
}

// A file of the file system that loses its end while it is being read.
typedef struct shrink { char path[600]; int calls, at; } shrink;

static int shrink_at(void *user, const char *stage, uint64_t done, uint64_t total)
{
    shrink *s = (shrink *)user;
    (void)stage; (void)done; (void)total;
    if (++s->calls == s->at && truncate(s->path, 100)) perror(s->path);
    return 0;
}

static int a_file_that_shrinks_while_it_is_read_is_an_error(void)
{
    for (int at = 1; at <= 2; at++) {
        g3_error err;
        shrink s = G3__ZERO;
        const char *dir = temp_dir();
        g3_model_desc d = G3__ZERO;
        box_write(&wide, dir);
        snprintf(s.path, sizeof s.path, "%s/model.safetensors", dir);
        s.at = at;
        d.path = dir;
        d.threads = 1;
        d.progress.progress_fn = shrink_at;
        d.progress.user = &s;
        g3_model *m = g3_model_open(&d, &err);
        int rounds = s.calls;
        if (!m) CHECK(err.code == G3_ERR_IO && strstr(err.text, "model.safetensors"));
        else {                                           // it was all in memory before the end was lost: reading rows later fails
            float row[64];
            CHECK(rounds <= at && (s.calls < at || g3_model_read(m, "model.norm.weight", 0, 1, row, &err) == G3_ERR_IO));
            g3_session *x = g3_session_open(m, NULL, &err);
            int id = 5;
            CHECK(x && g3_add_tokens(x, &id, 1, &err) == G3_OK && g3_logits(x, &err));
            g3_session_close(x);
        }
        g3_model_close(m);
        temp_remove(dir);
    }
    return 0;
}

// ---- saying stop while loading

typedef struct meter { int calls, stop_at; uint64_t last, total; bool bad; } meter;

static int measure(void *user, const char *stage, uint64_t done, uint64_t total)
{
    meter *m = (meter *)user;
    m->calls++;
    m->bad = m->bad || !stage || !*stage || done < m->last || done > total || (m->calls > 1 && total != m->total);
    m->last = done;
    m->total = total;
    return m->calls == m->stop_at;
}

static int loading_can_be_stopped_at_every_report(void)
{
    box *all[2] = {&sharded, &wide};
    for (int k = 0; k < 2; k++)
        for (int at = 1; ; at++) {
            tally t;
            g3_error err;
            meter p = {0, at, 0, 0, false};
            g3_model_desc d = tiny_desc(all[k], 1);
            d.allocator = tally_hooks(&t);
            d.progress.progress_fn = measure;
            d.progress.user = &p;
            g3_model *m = g3_model_open(&d, &err);
            CHECK(!p.bad && p.calls > 0);
            if (p.calls < at) {                          // all of it was reported
                CHECK(m && p.last == p.total && p.total == g3_model_get_info(m).weight_bytes);
                g3_model_close(m);
                break;
            }
            CHECK(!m && err.code == G3_ERR_STOPPED && strlen(err.text) > 10 && p.calls == at);
            CHECK(!t.live && !t.bad && !all[k]->open_now);
        }
    return 0;
}

int main(void)
{
    tiny_quiet();
    for (size_t i = 0; i + 2 < sizeof knot; i += 2) memcpy(knot + i, "\xC3\xA9", 2);         // text is never cut inside a run of these
    if (!tiny_box(&files, "t1-f32-text") || !wide_box(&wide) || !box_load(&sharded, golden("bnb/models/text-nf4-mixed-3shards"))) { fprintf(stderr, "no fixtures\n"); return 1; }
    tiny_tokenizer(&sharded, 320, NULL);
    tiny_tokenizer(&files, TINY_VOCAB, NULL);
    RUN(an_allocator_that_fails_at_any_call_is_survived);
    RUN(reads_that_fail_at_any_call_are_survived);
    RUN(a_file_that_shrinks_while_it_is_read_is_an_error);
    RUN(loading_can_be_stopped_at_every_report);
    box_free(&files);
    box_free(&wide);
    box_free(&sharded);
    return test_done();
}
