// What sessions with pictures hold, take back, copy, reuse, refuse and survive; chats with pictures; the memory that looking takes.
#include "vision.h"
#include "../tools/sparse.h"

static bool same_ids(const int *a, int n, g3_session *x) { int got[256]; return g3_session_tokens(x, got, 256) == n && !memcmp(a, got, (size_t)n * sizeof *got); }

static bool same_logits(g3_session *x, g3_session *y)
{
    g3_error err;
    const float *a = g3_logits(x, &err), *b = g3_logits(y, &err);
    return a && b && !memcmp(a, b, sizeof *a * (size_t)x->m->config.vocab);
}

// ---- what is held

static int going_back_reaches_the_start_of_a_picture(void)
{
    sample s;
    g3_error err;
    int n = 0;
    CHECK(sample_open(&s, A));
    g3_model *m = sample_model(&s, 1, false);
    const int *ids = gold_ids(&s, TWO, "input_ids", &n), first = 0;
    int from[2], k = 0;
    for (int i = first; i < n; i++) if (ids[i] == s.image_token && ids[i - 1] != s.image_token && k < 2) from[k++] = i;
    for (int pos = 0; pos <= n; pos++) {
        g3_session *x = sample_session(m, 128, 64, 1), *y = sample_session(m, 128, 64, 1);
        int want = pos;
        for (int i = 0; i < 2; i++) if (pos > from[i] && pos < from[i] + s.tokens) want = from[i];
        CHECK(add_pieces(&s, x, TWO, &err) && g3_session_rewind(x, pos, &err) == want && same_ids(ids, want, x) && x->n_pictures == (want > from[0]) + (want > from[1]));
        if (want == from[1]) {                           // the second picture again, and the rest: as if nothing had been taken back
            g3_image img = picture(&s, 1);
            CHECK(g3_add_image(x, &img, &err) == G3_OK && g3_add_tokens(x, ids + from[1] + s.tokens, n - from[1] - s.tokens, &err) == G3_OK && add_pieces(&s, y, TWO, &err));
            CHECK(!memcmp(g3_logits(x, &err), g3_logits(y, &err), sizeof(float) * (size_t)s.vocab));
            picture_free(&img);
        }
        g3_session_close(x); g3_session_close(y);
    }
    g3_model_close(m);
    sample_close(&s);
    return 0;
}

static int a_copy_has_the_pictures(void)
{
    sample s;
    g3_error err;
    int n = 0;
    CHECK(sample_open(&s, B));
    g3_model *m = sample_model(&s, 1, false);
    const int *ids = gold_ids(&s, THREE, "input_ids", &n);
    g3_session *x = sample_session(m, 160, 64, 1), *y = sample_session(m, 160, 64, 1);
    CHECK(add_pieces(&s, x, THREE, &err) && g3_session_copy(y, x, &err) == G3_OK && same_ids(ids, n, y) && y->n_pictures == 3);
    CHECK(!memcmp(g3_logits(x, &err), g3_logits(y, &err), sizeof(float) * (size_t)s.vocab) && greedy_matches(&s, y, THREE));
    g3_session_close(x); g3_session_close(y);
    g3_model_close(m);
    sample_close(&s);
    return 0;
}

// Texts and pictures in any order, taken back and added again, copied: what is held answers as if it had come at once.
static int any_history_of_adding_and_going_back_is_forgotten(void)
{
    enum { CONTEXT = 60, ROUNDS = 400 };
    sample s;
    uint32_t r = 12345;
    int which[CONTEXT], n = 0, compared = 0, back = 0;    // of every position: its id, or -1 - picture
    CHECK(sample_open(&s, A));
    g3_model *m = sample_model(&s, 1, false);
    g3_session *x = sample_session(m, CONTEXT, 8, 1), *y = sample_session(m, CONTEXT, 8, 1), *fresh = sample_session(m, CONTEXT, 8, 1);
    g3_image img[3];
    for (int i = 0; i < 3; i++) img[i] = picture(&s, i);
    for (int round = 0; round < ROUNDS; round++) {
        g3_error err;
#define DICE(k) ((int)((r = r * 1664525u + 1013904223u) >> 16) % (k))
        int what = DICE(8), id = 4 + DICE(90), i = DICE(3);
        if (what < 3) {
            if (g3_add_tokens(x, &id, 1, &err) == G3_OK) which[n++] = id; else CHECK(err.code == G3_ERR_CONTEXT && n == CONTEXT);
        } else if (what < 5) {
            const bool touches = n && which[n - 1] < 0;
            if (g3_add_image(x, &img[i], &err) == G3_OK) { CHECK(!touches); for (int k = 0; k < s.tokens; k++) which[n++] = -1 - i; }
            else CHECK(err.code == (n + s.tokens > CONTEXT ? G3_ERR_CONTEXT : G3_ERR_ARGUMENT) && (touches || n + s.tokens > CONTEXT));
        } else if (what < 6 && n) {
            int pos = DICE(n + 1), got = g3_session_rewind(x, pos, &err);
            CHECK(got <= pos && (got == 0 || got == n || which[got] >= 0 || which[got - 1] >= 0) && (got || pos < s.tokens + 10 || n > 12));
            back += got > 0 && got < n;
            n = got;
        } else if (what == 6) {
            CHECK(g3_session_copy(y, x, &err) == G3_OK);
            g3_session *t = x; x = y; y = t;
        }
        if (!n || DICE(3)) continue;
        CHECK(g3_session_rewind(fresh, 0, &err) == 0 && g3_session_tokens(x, NULL, 0) == n);
        for (int p = 0; p < n; p += which[p] < 0 ? s.tokens : 1)
            CHECK((which[p] < 0 ? g3_add_image(fresh, &img[-1 - which[p]], &err) : g3_add_tokens(fresh, &which[p], 1, &err)) == G3_OK);
        if (!x->kept) continue;                          // just taken back: no logits until the next token
        CHECK(same_logits(x, fresh));
        compared++;
    }
    CHECK(compared > ROUNDS / 8 && back > 10);
    for (int i = 0; i < 3; i++) picture_free(&img[i]);
    g3_session_close(x); g3_session_close(y); g3_session_close(fresh);
    g3_model_close(m);
    sample_close(&s);
    return 0;
}

static int a_picture_may_follow_an_answer(void)          // whose last token has not been through the model yet
{
    for (int batch = 4; batch <= 16; batch += 12) {
        sample s;
        g3_error err;
        heard h = G3__ZERO;
        int ids[64], n = 0;
        CHECK(sample_open(&s, A));
        g3_model *m = sample_model(&s, 1, false);
        g3_session *x = sample_session(m, 64, batch, 1), *y = sample_session(m, 64, batch, 1);
        g3_generate_desc d = ask(&h, 3, true);
        d.ignore_stop_ids = true;
        g3_image img = picture(&s, 0);
        CHECK(add_case(&s, x, ONE, &err) && g3_generate(x, &d, &err) == 3 && x->held == x->done + 1);
        n = g3_session_tokens(x, ids, 64);
        CHECK(g3_add_image(x, &img, &err) == G3_OK && add_case(&s, y, ONE, &err) && g3_add_tokens(y, ids + n - 3, 3, &err) == G3_OK && g3_add_image(y, &img, &err) == G3_OK && same_logits(x, y));
        picture_free(&img);
        g3_session_close(x); g3_session_close(y);
        g3_model_close(m);
        sample_close(&s);
    }
    return 0;
}

// ---- what is refused

static int what_cannot_be_looked_at_is_refused_before_it_is(void)
{
    sample s;
    g3_error err;
    CHECK(sample_open(&s, A));
    g3_model *m = sample_model(&s, 1, false), *blind = sample_model(&s, 1, true);
    g3_image img = picture(&s, 0), bad = img;
    int soft[4] = {508, 508, 508, 508}, id = 9;
    g3_session *x = sample_session(m, 7, 7, 1), *b = sample_session(blind, 64, 16, 1);
    CHECK(g3_add_image(x, &img, &err) == G3_OK && g3_session_stats(x).images == 1 && g3_session_stats(x).prompt_tokens == 4);
    CHECK(g3_add_image(x, &img, &err) == G3_ERR_CONTEXT && g3_session_tokens(x, NULL, 0) == 4 && g3_logits(x, &err));     // 8 tokens where 7 fit: what was there still is
    CHECK(g3_session_rewind(x, 0, &err) == 0 && g3_add_tokens(x, soft, 4, &err) == G3_ERR_ARGUMENT && strstr(err.text, "508") && g3_session_tokens(x, NULL, 0) == 0);
    CHECK(g3_add_tokens(x, &id, 1, &err) == G3_OK);
    bad.rgb = NULL;                CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT);
    bad = img; bad.width = 0;      CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT);
    bad = img; bad.height = -1;    CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT);
    bad = img; bad.stride = 10;    CHECK(g3_add_image(x, &bad, &err) == G3_ERR_ARGUMENT && g3_session_tokens(x, NULL, 0) == 1);
    CHECK(g3_add_image(b, &img, &err) == G3_ERR_ARGUMENT && strstr(err.text, "no_vision"));
    g3_session *y = sample_session(m, 64, 16, 1);
    CHECK(g3_add_image(y, &img, &err) == G3_OK && g3_add_image(y, &img, &err) == G3_ERR_ARGUMENT && strstr(err.text, "touch") && g3_session_tokens(y, NULL, 0) == 4);
    g3_session_desc d = G3__ZERO;
    d.context = 64; d.batch = 2; d.no_images = true;
    g3_session *z = g3_session_open(m, &d, &err);
    CHECK(z && g3_add_image(z, &img, &err) == G3_ERR_ARGUMENT && strstr(err.text, "no_images") && g3_add_tokens(z, &id, 1, &err) == G3_OK);
    d.no_images = false;
    g3_session *w = g3_session_open(m, &d, &err);
    CHECK(w && g3_session_stats(w).memory > g3_session_stats(z).memory && w->desc.batch == 4);
    g3_session_close(x); g3_session_close(y); g3_session_close(z); g3_session_close(w); g3_session_close(b);
    g3_model_close(m); g3_model_close(blind);
    picture_free(&img);
    sample_close(&s);
    return 0;
}

// ---- chats

typedef struct talk { sample s; g3_model *m; g3_session *x; int layers, looked, reports; } talk;       // looked: pictures, of which each brings three reports (two layers)

static int count_looks(void *user, const char *stage, uint64_t done, uint64_t total)
{
    talk *t = (talk *)user;
    t->reports++;
    if (done <= total && !strcmp(stage, "pictures") && ++t->layers % 3 == 0) t->looked++;
    return 0;
}

static g3_session *talk_session(talk *t, int context, int batch)
{
    g3_error err;
    g3_session_desc d = G3__ZERO;
    d.context = context; d.batch = batch; d.kv = G3_KV_F32;
    d.progress.progress_fn = count_looks; d.progress.user = t;
    return g3_session_open(t->m, &d, &err);
}

static bool talk_open(talk *t, int context, int batch)
{
    memset(t, 0, sizeof *t);
    if (!sample_open(&t->s, A)) return false;
    tiny_tokenizer(&t->s.files, TINY_VOCAB, NULL);
    t->m = sample_model(&t->s, 1, false);
    t->x = t->m ? talk_session(t, context, batch) : NULL;
    return t->x != NULL;
}

static void talk_close(talk *t) { g3_session_close(t->x); g3_model_close(t->m); sample_close(&t->s); }

static g3_part say(const char *text) { g3_part p = G3__ZERO; p.text = text; return p; }
static g3_part show(const g3_image *img) { g3_part p = G3__ZERO; p.image = img; return p; }

static int a_turn_with_a_picture_has_the_templates_ids(void)
{
    static const int want[] = {BOS, SOT, USER, 109, 507, 508, 508, 508, 508, 509, NL2, CH('H'), CH('i'), CH('?'), EOT, NL, SOT, MODEL, NL};     // three newlines are one token
    enum { N = G3__COUNT(want) };
    talk t;
    g3_error err;
    int ids[64];
    CHECK(talk_open(&t, 64, 16));
    g3_image img = picture(&t.s, 0);
    g3_part parts[2];
    parts[0] = show(&img); parts[1] = say(" Hi? ");
    g3_turn turn = G3__ZERO;
    g3_message msg = {"user", NULL, parts, 2};
    turn.parts = parts; turn.n_parts = 2;
    CHECK(g3_render(t.m, &msg, 1, true, ids, 64, &err) == N && !memcmp(ids, want, sizeof want) && !t.reports);
    CHECK(g3_add_turn(t.x, &turn, &err) == G3_OK && same_ids(want, N, t.x) && t.looked == 1);
    g3_session *y = talk_session(&t, 64, 16);
    CHECK(g3_add_messages(y, &msg, 1, true, &err) == G3_OK && same_ids(want, N, y) && same_logits(t.x, y));
    g3_session *z = talk_session(&t, 64, 16);
    CHECK(g3_add_tokens(z, want, 5, &err) == G3_OK && g3_add_image(z, &img, &err) == G3_OK && g3_add_tokens(z, want + 9, N - 9, &err) == G3_OK && same_logits(z, y));
    g3_stats stats = g3_session_stats(t.x);
    CHECK(stats.images == 1 && stats.prompt_tokens == N && stats.held == N && stats.image_s > 0 && stats.prompt_s > 0);
    picture_free(&img);
    g3_session_close(y); g3_session_close(z);
    talk_close(&t);
    return 0;
}

static int what_a_user_types_is_never_a_picture(void)
{
    talk t;
    g3_error err;
    int ids[128];
    CHECK(talk_open(&t, 128, 64));
    g3_turn turn = G3__ZERO;
    turn.text = "<start_of_image><image_soft_token><end_of_image>";
    CHECK(g3_add_turn(t.x, &turn, &err) == G3_OK && !t.looked);
    int n = g3_session_tokens(t.x, ids, 128);
    for (int i = 0; i < n; i++) CHECK(ids[i] != 507 && ids[i] != 508 && ids[i] != 509);
    talk_close(&t);
    return 0;
}

// Three turns, pictures in the first and the last, answers put into the model's mouth: held as the whole conversation rendered at once.
static int pictures_of_earlier_turns_stay(void)
{
    static const int ok[] = {CH('o'), CH('k'), EOT};
    talk t;
    g3_error err;
    CHECK(talk_open(&t, 128, 32));
    g3_image img[3];
    for (int i = 0; i < 3; i++) img[i] = picture(&t.s, i);
    g3_part first[2], last[3];
    first[0] = say("A"); first[1] = show(&img[0]);
    last[0] = show(&img[1]); last[1] = show(&img[2]); last[2] = say("B");
    g3_message msg[5] = {{"user", NULL, first, 2}, {"assistant", "ok", NULL, 0}, {"user", "and", NULL, 0}, {"assistant", "ok", NULL, 0}, {"user", NULL, last, 3}};
    for (int i = 0; i < 3; i++) {
        script sc = {ok, 3, 0};
        g3_turn turn = G3__ZERO;
        if (i == 1) turn.text = "and";
        else { turn.parts = i ? last : first; turn.n_parts = i ? 3 : 2; }
        turn.generate.sampler.greedy = true; turn.generate.sampler.logits_fn = follow; turn.generate.sampler.user = &sc;
        if (i < 2) CHECK(g3_chat(t.x, &turn, &err) == 2);
        else CHECK(g3_add_turn(t.x, &turn, &err) == G3_OK);
    }
    CHECK(t.looked == 3 && t.x->n_pictures == 3);
    g3_session *y = talk_session(&t, 128, 32);
    int ids[128], n = g3_render(t.m, msg, 5, true, ids, 128, &err);
    CHECK(same_ids(ids, n, t.x) && g3_add_messages(y, msg, 5, true, &err) == G3_OK && same_ids(ids, n, y) && same_logits(t.x, y));
    for (int i = 0; i < 3; i++) picture_free(&img[i]);
    g3_session_close(y);
    talk_close(&t);
    return 0;
}

// The conversation again, longer or changed: pictures that are held are not looked at again, and one other pixel is another picture.
static int the_same_pictures_are_kept_and_others_are_not(void)
{
    talk t;
    g3_error err;
    CHECK(talk_open(&t, 160, 160));                      // rings as long as the context: nothing is lost by going back
    g3_image img[3], copy = picture(&t.s, 1);
    for (int i = 0; i < 3; i++) img[i] = picture(&t.s, i);
    for (int change = 0; change < 6; change++) {
        g3_part a[2], b[2];
        a[0] = show(&img[0]); a[1] = say("one");
        b[0] = show(&img[1]); b[1] = say("two");
        g3_message msg[5] = {{"user", NULL, a, 2}, {"assistant", "ok", NULL, 0}, {"user", NULL, b, 2}, {"assistant", "fine", NULL, 0}, {"user", "three", NULL, 0}};
        g3_session *y = talk_session(&t, 160, 160), *z = talk_session(&t, 160, 160);
        CHECK(g3_add_messages(y, msg, 3, true, &err) == G3_OK);
        int n = 3, want = 0;
        t.looked = 0;
        switch (change) {
        case 0: n = 5; break;                            // a longer one
        case 1: b[0].image = &copy; n = 5; break;        // the same pixels in another place
        case 2: ((uint8_t *)(uintptr_t)copy.rgb)[7000] ^= 1; b[0].image = &copy; want = 1; break;
        case 3: a[0].image = &img[2]; want = 2; break;   // all that comes after it, too
        case 4: b[1].text = "otherwise"; break;
        default: a[1] = say("won"); want = 1; break;     // the first stays, the second comes anew
        }
        CHECK(g3_add_messages(y, msg, n, true, &err) == G3_OK && t.looked == want);
        if (t.looked != want) fprintf(stderr, "    change %d: %d looked at, not %d\n", change, t.looked, want);
        CHECK(g3_add_messages(z, msg, n, true, &err) == G3_OK && same_logits(y, z) && y->n_pictures == 2 && z->n_pictures == 2);
        for (int i = 0; i < 2; i++) CHECK(y->pictures[i].pos == z->pictures[i].pos && y->pictures[i].hash == z->pictures[i].hash && !y->pictures[i].image);
        g3_session_close(y); g3_session_close(z);
    }
    picture_free(&copy);
    for (int i = 0; i < 3; i++) picture_free(&img[i]);
    talk_close(&t);
    return 0;
}

static int pan_and_scan_shows_the_crops_as_pictures_of_their_own(void)
{
    talk t;
    g3_error err;
    int ids[300], soft = 0;
    CHECK(talk_open(&t, 300, 64));
    g3_image img = {NULL, 1200, 1000, 0}, square = {NULL, 1000, 1000, 0};
    uint8_t *rgb = (uint8_t *)malloc(3 * 1200 * 1000);
    for (int i = 0; i < 3 * 1200 * 1000; i++) rgb[i] = (uint8_t)(i / 3600 + i % 3600 / 3);
    img.rgb = square.rgb = rgb;
    g3_part part = show(&img);
    part.pan_and_scan = true;
    g3_turn turn = G3__ZERO;
    turn.parts = &part; turn.n_parts = 1;
    CHECK(g3_add_turn(t.x, &turn, &err) == G3_OK && t.looked == 3 && t.x->n_pictures == 3 && t.x->pictures[1].hash != t.x->pictures[2].hash);
    int n = g3_session_tokens(t.x, ids, 300), h = 0;
    for (int i = 0; i < n; i++) soft += ids[i] == 508;
    while (h < n && ids[h] != CH('H')) h++;
    CHECK(soft == 12 && h < n && ids[h + 1] == 111 && ids[h + 2] == CH('e'));   // "Here": "er" is one token
    part.image = &square;
    CHECK(g3_session_rewind(t.x, 0, &err) == 0);
    t.looked = 0;
    CHECK(g3_add_turn(t.x, &turn, &err) == G3_OK && t.looked == 1);           // too square for crops
    free(rgb);
    talk_close(&t);
    return 0;
}

static int a_turn_that_does_not_fit_is_refused_before_anything_is_looked_at(void)
{
    enum { MANY = 60 };
    talk t;
    g3_error err;
    static g3_part parts[MANY];
    CHECK(talk_open(&t, 64, 16));
    g3_image img = picture(&t.s, 0);
    g3_turn turn = G3__ZERO, hello = G3__ZERO;
    hello.text = "hello";
    CHECK(g3_add_turn(t.x, &hello, &err) == G3_OK);
    const int held = g3_session_tokens(t.x, NULL, 0);
    for (int n = 8; n <= MANY; n += 8) {
        for (int i = 0; i < n; i++) parts[i] = show(&img);
        turn.parts = parts; turn.n_parts = n;
        g3_message msg = {"user", NULL, parts, n};
        t.reports = 0;
        CHECK(g3_chat(t.x, &turn, &err) == G3_ERR_CONTEXT && g3_add_turn(t.x, &turn, &err) == G3_ERR_CONTEXT && strstr(err.text, "context is 64") && !t.reports);
        CHECK(g3_session_tokens(t.x, NULL, 0) == held && !t.x->n_pictures && g3_logits(t.x, &err));
        CHECK(g3_add_messages(t.x, &msg, 1, true, &err) == G3_ERR_CONTEXT && !t.reports && g3_session_tokens(t.x, NULL, 0) == held);
    }
    turn.n_parts = 2;
    CHECK(g3_add_turn(t.x, &turn, &err) == G3_OK && t.looked == 2);            // two do
    picture_free(&img);
    talk_close(&t);
    return 0;
}

// ---- stopping

typedef struct stopper { int calls, stop_at, bad; uint64_t last; bool cancel; g3_session *s; } stopper;

static int count_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    stopper *p = (stopper *)user;
    if (strcmp(stage, "pictures")) return 0;
    p->bad |= done < p->last || done > total;
    p->last = done;
    if (++p->calls != p->stop_at) return 0;
    if (!p->cancel) return 1;
    g3_session_cancel(p->s);
    return 0;
}

static int looking_can_be_stopped_between_any_layers(void)
{
    for (int cancel = 0; cancel < 2; cancel++)
        for (int at = 1; ; at++) {
            sample s;
            g3_error err;
            stopper p = {0, at, 0, 0, cancel != 0, NULL};
            g3_session_desc d = G3__ZERO;
            CHECK(sample_open(&s, B));
            g3_model *m = sample_model(&s, 1, false);
            d.context = 160; d.batch = 64; d.kv = G3_KV_F32; d.progress.progress_fn = count_progress; d.progress.user = &p;
            g3_session *x = p.s = g3_session_open(m, &d, &err);
            bool ok = x && add_case(&s, x, TWO, &err);
            CHECK(!p.bad && x->n_pictures <= 2);
            if (ok) { CHECK(p.calls < at || (cancel && p.calls == at)); at = -1; }
            else CHECK(err.code == G3_ERR_STOPPED && p.calls == at && (g3_session_rewind(x, 0, &err), p.stop_at = 0, p.last = 0, add_case(&s, x, TWO, &err)));
            CHECK(greedy_matches(&s, x, TWO));
            g3_session_close(x);
            g3_model_close(m);
            sample_close(&s);
            if (at < 0) break;
        }
    return 0;
}

static int a_chat_stopped_while_looking_takes_its_turn_back(void)
{
    for (int cancel = 0; cancel < 2; cancel++)
        for (int at = 1; at <= 6; at++) {                // two pictures, three reports each
            talk t;
            g3_error err;
            heard h = G3__ZERO;
            int before[128];
            CHECK(talk_open(&t, 128, 128));
            stopper p = {0, 0, 0, 0, cancel != 0, NULL};
            g3_session_desc d = G3__ZERO;
            d.context = d.batch = 128; d.kv = G3_KV_F32; d.progress.progress_fn = count_progress; d.progress.user = &p;
            g3_session *y = p.s = g3_session_open(t.m, &d, &err);
            g3_image img[2] = {picture(&t.s, 0), picture(&t.s, 1)};
            g3_part parts[3];
            parts[0] = show(&img[0]); parts[1] = say("and"); parts[2] = show(&img[1]);
            g3_turn turn = G3__ZERO;
            turn.parts = parts; turn.n_parts = 1;
            turn.generate = ask(&h, 3, true);
            CHECK(g3_chat(y, &turn, &err) >= 0 && g3_chat(t.x, &turn, &err) >= 0);
            int n = g3_session_tokens(y, before, 128);
            turn.n_parts = 3;
            p.calls = 0; p.last = 0; p.stop_at = at;
            CHECK(g3_chat(y, &turn, &err) == G3_ERR_STOPPED && p.calls == at && !p.bad && same_ids(before, n, y) && y->n_pictures == 1);
            p.calls = 0; p.last = 0; p.stop_at = 0;
            CHECK(g3_chat(y, &turn, &err) >= 0 && g3_chat(t.x, &turn, &err) >= 0 && y->n_pictures == 3);
            n = g3_session_tokens(t.x, before, 128);
            CHECK(same_ids(before, n, y) && same_logits(t.x, y));
            picture_free(&img[0]); picture_free(&img[1]);
            g3_session_close(y);
            talk_close(&t);
        }
    return 0;
}

// ---- the probe

typedef struct watching { int n, stop_at, vision, ops, other, soft; uint64_t bytes, flops; bool change, bad; } watching;

static int watch(void *user, const g3_view *v)
{
    watching *w = (watching *)user;
    const bool sight = !strncmp(v->name, "vision ", 7);
    if (++w->n == w->stop_at) return 1;
    if (v->point == G3_POINT_VISION) {
        w->vision++;
        w->soft += !strcmp(v->name, "soft tokens");
        w->bad = w->bad || v->pos != 5 || v->rows != (strcmp(v->name, "soft tokens") ? 16 : 4) || v->cols != (strcmp(v->name, "soft tokens") ? 24 : 32) || v->heads != 1 || v->layer >= 2;
        if (w->change && !strcmp(v->name, "patches")) for (int i = 0; i < 24; i++) v->data[i] += 1;
    } else if (v->point == G3_POINT_OP && sight) {
        w->ops++;
        if (v->layer >= 0 && (strstr(v->name, "qkv") || strstr(v->name, "wo") || strstr(v->name, "up") || strstr(v->name, "down"))) { w->bytes += v->bytes; w->flops += v->flops; }
    } else {
        w->other++;
        w->bad = w->bad || (v->point != G3_POINT_OP && (v->rows != 1 || (v->point != G3_POINT_ATTENTION && v->cols != 32)));      // nothing of the tower's under the text's names
    }
    return 0;
}

static bool watched(talk *t, watching *w, unsigned points, g3_result *code, float *logits)
{
    g3_error err;
    g3_session_desc d = G3__ZERO;
    d.context = d.batch = 64; d.kv = G3_KV_F32;
    d.probe.probe_fn = watch; d.probe.user = w; d.probe.points = points;
    g3_session *x = g3_session_open(t->m, &d, &err);
    g3_image img = picture(&t->s, 0);
    g3_part part = show(&img);
    g3_turn turn = G3__ZERO;
    turn.parts = &part; turn.n_parts = 1;
    *code = g3_add_turn(x, &turn, &err);
    const bool ok = *code == G3_OK;
    if (ok && g3_logits(x, &err)) memcpy(logits, g3_logits(x, &err), 512 * sizeof *logits);
    picture_free(&img);
    g3_session_close(x);
    return ok;
}

static int the_probe_sees_the_tower_apart_and_may_change_or_stop_it(void)
{
    const unsigned all = G3_POINT_EMBED | G3_POINT_LAYER | G3_POINT_BRANCH | G3_POINT_ATTENTION | G3_POINT_VISION | G3_POINT_OP;
    talk t;
    g3_result code;
    static float plain[512], seen[512], changed[512];
    watching none = G3__ZERO, w = G3__ZERO, c = G3__ZERO;
    CHECK(talk_open(&t, 64, 64));
    CHECK(watched(&t, &none, 0, &code, plain) && !none.n);
    CHECK(watched(&t, &w, all, &code, seen) && !w.bad && w.vision == 1 + 2 + 1 && w.soft == 1 && w.ops == 3 + 2 * 9 + 3 && !memcmp(plain, seen, sizeof plain));
    const uint64_t weights = 4 * 24 * 24 + 2 * 24 * 44;  // of a layer, float32 in this file
    CHECK(w.flops == 2 * 2 * 16 * weights && w.bytes >= 2 * 4 * weights && w.bytes <= 2 * 4 * (weights + 8 * 24 + 44));
    c.change = true;
    CHECK(watched(&t, &c, all, &code, changed) && memcmp(plain, changed, sizeof plain));
    for (int at = 1; at <= w.n; at++) {
        watching stop = G3__ZERO;
        stop.stop_at = at;
        const bool ok = watched(&t, &stop, all, &code, seen);
        CHECK(stop.n == at && (ok || code == G3_ERR_STOPPED));
    }
    talk_close(&t);
    return 0;
}

// ---- memory

static int the_plan_is_what_the_arenas_take_and_looking_takes_nothing(void)
{
    for (int k = 0; k < 4; k++) {
        sample s;
        tally t;
        g3_error err;
        g3_plan p;
        g3_session_desc d = G3__ZERO;
        CHECK(sample_open(&s, k & 1 ? B : A));
        g3_model_desc md = tiny_desc(&s.files, 2);
        md.no_vision = false;
        md.allocator = tally_hooks(&t);
        md.session = &d;
        d.context = 160; d.batch = 64; d.kv = G3_KV_F32; d.no_images = k > 1;
        CHECK(g3_plan_memory(&md, &p, &err) == G3_OK && p.vision > 0);
        uint64_t items = 0;
        for (int i = 0; i < p.n_items; i++) if (strncmp(p.items[i].name, "host", 4)) items += p.items[i].bytes;
        CHECK(items == p.total && p.weights + p.kv + p.scratch + p.vision == p.total);
        g3_model *m = g3_model_open(&md, &err);
        g3_session *x = g3_session_open(m, &d, &err);
        CHECK(x && m->arena_bytes + x->arena_bytes == p.total);
        uint64_t calls = t.calls, live = t.live;
        if (k < 2) CHECK(add_pieces(&s, x, THREE, &err) && greedy_matches(&s, x, THREE));
        CHECK(t.calls == calls && t.live == live);
        g3_session_close(x);
        g3_model_close(m);
        CHECK(!t.live && !t.bad);
        sample_close(&s);
    }
    return 0;
}

// Texts and pictures in chats, in every way to add them: after opening, the allocator is never called.
static int chats_with_pictures_allocate_nothing(void)
{
    talk t;
    tally a;
    g3_error err;
    heard h = G3__ZERO;
    CHECK(talk_open(&t, 64, 16));
    g3_model_desc d = tiny_desc(&t.s.files, 2);
    d.no_vision = false;
    d.allocator = tally_hooks(&a);
    g3_session_desc sd = G3__ZERO;
    sd.context = 300; sd.batch = 64;
    g3_model *m = g3_model_open(&d, &err);
    g3_session *x = m ? g3_session_open(m, &sd, &err) : NULL;
    CHECK(x);
    g3_image img = picture(&t.s, 0);
    g3_part parts[3];
    parts[0] = say("look"); parts[1] = show(&img); parts[2] = say("what is it?");
    g3_message msg = {"user", NULL, parts, 3};
    g3_turn turn = G3__ZERO;
    turn.parts = parts; turn.n_parts = 3;
    turn.generate = ask(&h, 5, false);
    const uint64_t calls = a.calls, live = a.live;
    for (int i = 0; i < 3; i++) CHECK(g3_chat(x, &turn, &err) >= 0);
    CHECK(g3_session_rewind(x, 0, &err) == 0 && g3_add_messages(x, &msg, 1, true, &err) == G3_OK && g3_add_image(x, &img, &err) == G3_OK && g3_generate(x, &turn.generate, &err) >= 0);
    CHECK(a.calls == calls && a.live == live);
    picture_free(&img);
    g3_session_close(x);
    g3_model_close(m);
    CHECK(!a.live && !a.bad);
    talk_close(&t);
    return 0;
}

// Four pictures between long texts in steps of 300: one arena, no larger than without them, and the bits of steps of 16.
static int four_pictures_between_long_texts_take_the_memory_of_none(void)
{
    enum { LONG_TEXT = 350, CONTEXT = 2000 };
    sample s;
    tally a;
    g3_error err;
    float z[2][520];
    int ids[LONG_TEXT];
    CHECK(sample_open(&s, B));
    for (int i = 0; i < LONG_TEXT; i++) ids[i] = 3 + (i * 31) % 500;
    g3_image img = picture(&s, 0);
    for (int k = 0; k < 2; k++) {
        g3_model_desc d = tiny_desc(&s.files, 2);
        d.no_vision = false;
        d.allocator = tally_hooks(&a);
        g3_session_desc sd = G3__ZERO;
        sd.context = CONTEXT; sd.batch = k ? 16 : 300; sd.kv = G3_KV_F32;
        g3_model *m = g3_model_open(&d, &err);
        g3_session *x = m ? g3_session_open(m, &sd, &err) : NULL;
        CHECK(x && g3_add_tokens(x, ids, LONG_TEXT, &err) == G3_OK);
        const uint64_t calls = a.calls, peak = a.peak, memory = g3_session_stats(x).memory;
        for (int i = 0; i < 4; i++) CHECK(g3_add_image(x, &img, &err) == G3_OK && g3_add_tokens(x, ids, LONG_TEXT, &err) == G3_OK);
        CHECK(g3_logits(x, &err) && a.calls == calls && a.peak == peak && g3_session_stats(x).memory == memory && g3_session_stats(x).images == 4);
        memcpy(z[k], g3_logits(x, &err), sizeof z[k]);
        g3_session_close(x);
        g3_model_close(m);
        CHECK(!a.live && !a.bad);
    }
    CHECK(!memcmp(z[0], z[1], sizeof z[0]));
    picture_free(&img);
    sample_close(&s);
    return 0;
}

static int what_fresh_memory_holds_does_not_matter(void)
{
    static const unsigned char fill[] = {0, 0xFF, 0x7F, 0xA5};       // 0xFF and 0x7F: NaN in every format
    const char *simd[8];
    int n = variants(simd);
    for (int v = 0; v < n; v++) {
        float first[512];
        for (int i = 0; i < 4; i++) {
            record r = G3__ZERO;
            sample s;
            g3_error err;
            CHECK(sample_open(&s, A_NF4));
            g3_model_desc d = tiny_desc(&s.files, 2);
            d.no_vision = false;
            d.simd = simd[v];
            r.fill = fill[i];
            d.allocator = record_hooks(&r);
            g3_model *m = g3_model_open(&d, &err);
            g3_session *x = open_session(m, 100, 16, G3_KV_F32, 1, &err);
            CHECK(x && add_pieces(&s, x, THREE, &err) && g3_logits(x, &err));
            if (!i) memcpy(first, g3_logits(x, &err), sizeof first);
            CHECK(!memcmp(first, g3_logits(x, &err), sizeof first));
            g3_session_close(x);
            g3_model_close(m);
            CHECK(!r.bad && !r.rest_live);
            sample_close(&s);
        }
    }
    return 0;
}

// The published sizes: what a session takes more for pictures is at most 200 MB, whatever the context, and nothing with no_images or no_vision.
static int looking_takes_at_most_200_MB_at_the_published_sizes(void)
{
    for (int size = 2; size < 5; size++) {
        sparse f;
        const char *dir = temp_dir();
        sparse_init(&f, &sparse_sizes[size]);
        CHECK(sparse_write(&f, dir));
        for (int k = 0; k < 6; k++) {
            g3_plan p[3];
            for (int i = 0; i < 3; i++) {
                g3_error err;
                g3_session_desc sd = G3__ZERO;
                g3_model_desc d = G3__ZERO;
                sd.context = k < 3 ? 4096 : 32768; sd.batch = k % 3 == 1 ? 4096 : k % 3 == 2 ? 256 : 0; sd.no_images = i == 1;
                d.path = dir; d.backend = G3_BACKEND_CPU; d.threads = 16; d.session = &sd; d.no_vision = i == 2;
                g3_result r = g3_plan_memory(&d, &p[i], &err);
                if (r) fprintf(stderr, "    %s\n", err.text);
                CHECK(r == G3_OK);
            }
            CHECK(p[0].kv == p[1].kv && p[0].vision == p[1].vision && p[0].vision > 400e6 && !p[2].vision && p[1].scratch - p[2].scratch < 64 * 500);   // but for the ends of lines that its tensors leave empty
            const double more = (double)(p[0].scratch - p[1].scratch);
            if (!k) printf("    %s: %.0f MB more for pictures, scratch %.0f MB in all\n", sparse_sizes[size].name, more / 1e6, (double)p[0].scratch / 1e6);
            CHECK(more >= 0 && more < 200e6 && (k % 3 != 1 || more < 1e6));    // steps of 4096 need more than a picture does: the room is shared
        }
        sparse_free(&f);
        temp_remove(dir);
    }
    return 0;
}

// ---- failures

typedef struct lived { g3_result code; bool open, session, all; } lived;

static lived live(sample *s, const g3_image *img, tally *t, g3_error *err)
{
    lived l = G3__ZERO;
    g3_model_desc d = tiny_desc(&s->files, 2);
    g3_session_desc sd = G3__ZERO;
    g3_part parts[2];
    g3_turn turn = G3__ZERO;
    heard h = G3__ZERO;
    d.no_vision = false;
    d.allocator.alloc_fn = tally_alloc; d.allocator.free_fn = tally_free; d.allocator.user = t;
    g3_model *m = g3_model_open(&d, err);
    l.open = m != NULL;
    sd.context = 100; sd.batch = 16;
    g3_session *x = m ? g3_session_open(m, &sd, err) : NULL;
    l.session = x != NULL;
    parts[0] = show(img); parts[1] = say("what is it?");
    turn.parts = parts; turn.n_parts = 2;
    turn.generate = ask(&h, 3, true);
    l.all = x && g3_chat(x, &turn, err) >= 0 && g3_add_image(x, img, err) == G3_OK && x->n_pictures == 2;
    l.code = err->code;
    g3_session_close(x);
    g3_model_close(m);
    return l;
}

static int an_allocator_that_fails_at_any_call_leaves_nothing_behind(void)
{
    sample s;
    int opening = 0, sessions = 0;
    CHECK(sample_open(&s, A_NF4));
    tiny_tokenizer(&s.files, TINY_VOCAB, NULL);
    g3_image img = picture(&s, 0);
    for (uint64_t n = 1; ; n++) {
        tally t;
        g3_error err;
        memset(&t, 0, sizeof t);
        t.fail_at = n;
        lived l = live(&s, &img, &t, &err);
        CHECK(!t.live && !t.bad && !s.files.open_now);
        if (t.calls < n) { CHECK(l.all && l.code == G3_OK); break; }
        CHECK(l.code == G3_ERR_MEMORY && strlen(err.text) > 10 && !l.all && !l.session);
        if (l.open) sessions++; else opening++;
    }
    CHECK(opening > 10 && sessions == 2);
    picture_free(&img);
    sample_close(&s);
    return 0;
}

static int reads_that_fail_at_any_call_leave_nothing_behind(void)
{
    sample s;
    int failures = 0;
    CHECK(sample_open(&s, B));
    for (uint64_t n = 1; ; n++) {
        tally t;
        g3_error err;
        g3_model_desc d = tiny_desc(&s.files, 1);
        d.no_vision = false;
        d.allocator = tally_hooks(&t);
        s.files.reads = 0;
        s.files.fail_read = n;
        s.files.fail_short = n & 1;
        g3_model *m = g3_model_open(&d, &err);
        g3_model_close(m);
        CHECK(!t.live && !t.bad && !s.files.open_now);
        if (s.files.reads < n) { CHECK(m && err.code == G3_OK); break; }
        CHECK(!m && err.code == G3_ERR_IO);
        failures++;
    }
    CHECK(failures >= 3);
    sample_close(&s);
    return 0;
}

int main(void)
{
    tiny_quiet();
    RUN(going_back_reaches_the_start_of_a_picture);
    RUN(a_copy_has_the_pictures);
    RUN(any_history_of_adding_and_going_back_is_forgotten);
    RUN(a_picture_may_follow_an_answer);
    RUN(what_cannot_be_looked_at_is_refused_before_it_is);
    RUN(a_turn_with_a_picture_has_the_templates_ids);
    RUN(what_a_user_types_is_never_a_picture);
    RUN(pictures_of_earlier_turns_stay);
    RUN(the_same_pictures_are_kept_and_others_are_not);
    RUN(pan_and_scan_shows_the_crops_as_pictures_of_their_own);
    RUN(a_turn_that_does_not_fit_is_refused_before_anything_is_looked_at);
    RUN(looking_can_be_stopped_between_any_layers);
    RUN(a_chat_stopped_while_looking_takes_its_turn_back);
    RUN(the_probe_sees_the_tower_apart_and_may_change_or_stop_it);
    RUN(the_plan_is_what_the_arenas_take_and_looking_takes_nothing);
    RUN(chats_with_pictures_allocate_nothing);
    RUN(four_pictures_between_long_texts_take_the_memory_of_none);
    RUN(what_fresh_memory_holds_does_not_matter);
    RUN(looking_takes_at_most_200_MB_at_the_published_sizes);
    RUN(an_allocator_that_fails_at_any_call_leaves_nothing_behind);
    RUN(reads_that_fail_at_any_call_leave_nothing_behind);
    return test_done();
}
