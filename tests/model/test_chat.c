// Chats: the ids after any number of turns are those of the rendered conversation with the answers' own ids, however each
// answer ended; turns that fail are taken back; whole conversations keep what they share with what is held.
#include "tiny.h"

static box files;                                        // t1 with the tokenizer of tiny.h
static g3_model *model;

// ---- the conversation written by hand

typedef struct conv { int id[2048], n; } conv;

static void say_id(conv *c, int id) { c->id[c->n++] = id; }
static void say_ids(conv *c, const int *id, int n) { for (int i = 0; i < n; i++) say_id(c, id[i]); }
static void say_plain(conv *c, const char *text) { for (; *text; text++) say_id(c, CH(*text)); }          // without a pair that merges, and no newline
static void say_user(conv *c, const char *text) { say_id(c, SOT); say_id(c, USER); say_id(c, NL); say_plain(c, text); say_id(c, EOT); say_id(c, NL); }
static void say_open(conv *c) { say_id(c, SOT); say_id(c, MODEL); say_id(c, NL); }
static void say_close(conv *c, bool ended) { if (!ended) say_id(c, EOT); say_id(c, NL); }

static bool holds(g3_session *s, const conv *c)
{
    static int held[2048];
    int n = g3_session_tokens(s, held, 2048), i = 0;
    while (i < n && i < c->n && held[i] == c->id[i]) i++;
    if (i < n || i < c->n) fprintf(stderr, "    held %d, wanted %d; they part at %d: %d, %d\n", n, c->n, i, i < n ? held[i] : -1, i < c->n ? c->id[i] : -1);
    return i == n && i == c->n;
}

static bool like_fresh(g3_session *s, int context, int batch)                // the next logits are those of a session that read the same ids at once
{
    static int held[2048];
    g3_error err;
    int n = g3_session_tokens(s, held, 2048);
    g3_session *f = tiny_session(model, context, batch);
    bool same = f && g3_add_tokens(f, held, n, &err) == G3_OK && g3_logits(s, &err) && memcmp(g3_logits(s, &err), g3_logits(f, &err), TINY_VOCAB * 4) == 0;
    g3_session_close(f);
    return same;
}

// ---- one turn whose answer is known

enum { END_TURN, END_EOS, END_MAX, END_CALLBACK, END_CANCEL, END_STOP_STRING, ENDS };
static const g3_finish end_finish[ENDS] = {G3_FINISH_STOP, G3_FINISH_STOP, G3_FINISH_LENGTH, G3_FINISH_CALLBACK, G3_FINISH_CANCELLED, G3_FINISH_STOP};

static g3_turn turn_that(const char *text, heard *h, script *k, const int *want, int n, int end, g3_session *s)
{
    static const char *stops[] = {"!?"};
    g3_turn t = G3__ZERO;
    memset(h, 0, sizeof *h);
    k->want = want;
    k->n = n;
    k->at = 0;
    t.text = text;
    t.generate = ask(h, end == END_MAX ? n : n + 5, true);
    t.generate.sampler.logits_fn = follow;
    t.generate.sampler.user = k;
    if (end == END_CALLBACK) h->stop_after = n;
    if (end == END_CANCEL) { h->cancel_after = n; h->s = s; }
    if (end == END_STOP_STRING) { t.generate.stops = stops; t.generate.n_stops = 1; }
    return t;
}

static int answer_ending(int end, int *want)             // an answer whose text would be encoded otherwise: t and h apart, a word no merge makes
{
    int n = 0;
    want[n++] = CH('t'); want[n++] = CH('h'); want[n++] = 470; want[n++] = E_ACUTE;
    if (end == END_TURN) want[n++] = EOT;
    if (end == END_EOS) want[n++] = EOS;
    if (end == END_STOP_STRING) { want[n++] = CH('!'); want[n++] = CH('?'); }
    return n;
}

// https://github.com/unslothai/unsloth/pull/10312 https://github.com/sgl-project/sglang/pull/888
static int ids_after_any_turns_are_those_of_the_rendered_conversation(void)
{
    for (int first = 0; first < ENDS; first++)
        for (int batch = 3; batch <= 48; batch *= 4) {
            g3_error err;
            conv c = G3__ZERO;
            g3_session *s = tiny_session(model, 500, batch);
            say_id(&c, BOS);
            for (int turn = 0; turn < 7; turn++) {
                heard h;
                script k;
                int end = (first + turn) % ENDS, want[16], n = answer_ending(end, want);
                char text[32];
                snprintf(text, sizeof text, "Say %d, Bob", turn);
                if (turn == 3) strcpy(text, "");         // an empty text is an empty turn
                bool stop = end == END_TURN || end == END_EOS;
                g3_turn t = turn_that(text, &h, &k, want, n, end, s);
                CHECK(g3_chat(s, &t, &err) == n - stop && err.code == G3_OK && g3_session_finish(s) == end_finish[end] && h.n == n - stop);
                CHECK(!strcmp(h.text, "th w470\xC3\xA9"));
                say_user(&c, text);
                say_open(&c);
                say_ids(&c, want, n);
                CHECK(holds(s, &c));
                say_close(&c, end == END_TURN);
            }
            CHECK(like_fresh(s, 500, batch));
            g3_session_close(s);
        }
    return 0;
}

static int a_turn_pulled_token_by_token_is_the_same_chat(void)
{
    g3_error err;
    g3_token t;
    conv c = G3__ZERO;
    g3_session *s = tiny_session(model, 500, 16);
    say_id(&c, BOS);
    for (int turn = 0; turn < 6; turn++) {
        heard h;
        script k;
        int want[16], n = answer_ending(turn, want), more;
        g3_turn u = turn_that("Go", &h, &k, want, n, turn, s);
        CHECK(g3_add_turn(s, &u, &err) == G3_OK);
        say_user(&c, "Go");
        say_open(&c);
        CHECK(holds(s, &c) && g3_session_finish(s) == G3_FINISH_NONE);
        if (turn == END_CALLBACK || turn == END_CANCEL) {                    // the caller just does not ask on
            for (int i = 0; i < n; i++) CHECK(g3_next(s, &u.generate, &t, &err) == 1 && t.id == want[i]);
        }
        else {
            while ((more = g3_next(s, &u.generate, &t, &err)) == 1) hear(&h, &t);
            CHECK(more == 0 && g3_session_finish(s) == end_finish[turn]);
        }
        say_ids(&c, want, n);
        CHECK(holds(s, &c));
        say_close(&c, turn == END_TURN);
    }
    g3_session_close(s);
    return 0;
}

// https://github.com/withcatai/node-llama-cpp/issues/624 https://github.com/ggml-org/llama.cpp/pull/5665
static int a_system_text_comes_first_or_not_at_all(void)
{
    g3_error err;
    heard h;
    script k;
    conv c = G3__ZERO;
    int want[16], n = answer_ending(END_TURN, want);
    g3_session *s = tiny_session(model, 300, 16);
    g3_turn t = turn_that(" Hi \n", &h, &k, want, n, END_TURN, s);
    t.system = "Be brief. ";
    CHECK(g3_chat(s, &t, &err) == n - 1);
    say_id(&c, BOS); say_id(&c, SOT); say_id(&c, USER); say_id(&c, NL);
    say_plain(&c, "Be brief. ");                         // not trimmed; the user's words are
    say_id(&c, NL2);
    say_plain(&c, "Hi"); say_id(&c, EOT); say_id(&c, NL); say_open(&c); say_ids(&c, want, n);
    CHECK(holds(s, &c));
    t = turn_that("Go", &h, &k, want, n, END_TURN, s);
    t.system = "Be long.";
    CHECK(g3_chat(s, &t, &err) == G3_ERR_ARGUMENT && strstr(err.text, "system") && g3_add_turn(s, &t, &err) == G3_ERR_ARGUMENT && holds(s, &c));
    CHECK(g3_session_rewind(s, 0, &err) == 0 && g3_chat(s, &t, &err) == n - 1);   // starting afresh allows it
    g3_session_close(s);
    return 0;
}

static int parts_of_a_turn_are_trimmed_and_joined(void)
{
    g3_error err;
    conv c = G3__ZERO;
    g3_part parts[3] = {{" Go ", NULL, false}, {"", NULL, false}, {"\n By\t", NULL, false}};
    g3_turn t = G3__ZERO;
    g3_session *s = tiny_session(model, 300, 16);
    t.parts = parts;
    t.n_parts = 3;
    CHECK(g3_add_turn(s, &t, &err) == G3_OK);
    say_id(&c, BOS); say_user(&c, "GoBy"); say_open(&c);
    CHECK(holds(s, &c));
    g3_session_close(s);
    return 0;
}

// ---- turns that fail

enum { FAIL_PROGRESS, FAIL_CANCEL_IN_PROMPT, FAIL_SAMPLER, FAIL_STOPS, FAIL_LOGITS_FN, FAIL_NAN, FAIL_ROOM, FAIL_TEXT, FAIL_PROBE, FAILS };
static const g3_result fail_code[FAILS] = {G3_ERR_STOPPED, G3_ERR_STOPPED, G3_ERR_ARGUMENT, G3_ERR_ARGUMENT, G3_ERR_STOPPED, G3_ERR_NUMERIC, G3_ERR_CONTEXT, G3_ERR_ARGUMENT, G3_ERR_STOPPED};

typedef struct trap { g3_session *s; int kind, at, seen; } trap;

static int trap_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    trap *t = (trap *)user;
    (void)stage; (void)done; (void)total;
    if (t->kind != FAIL_PROGRESS && t->kind != FAIL_CANCEL_IN_PROMPT) return 0;
    if (++t->seen != t->at) return 0;
    if (t->kind == FAIL_PROGRESS) return 1;
    g3_session_cancel(t->s);
    return 0;
}

static int trap_logits(void *user, float *z, int n)
{
    trap *t = (trap *)user;
    if (t->kind == FAIL_NAN) z[n / 3] = NAN;
    return t->kind == FAIL_LOGITS_FN;
}

static int trap_probe(void *user, const g3_view *v)
{
    trap *t = (trap *)user;
    (void)v;
    return t->kind == FAIL_PROBE && ++t->seen == t->at;
}

static g3_session *trapped_session(trap *t, int context, int batch)
{
    g3_error err;
    g3_session_desc d = G3__ZERO;
    memset(t, 0, sizeof *t);
    t->kind = -1;
    d.context = context; d.batch = batch; d.kv = G3_KV_F32;
    d.progress.progress_fn = trap_progress; d.progress.user = t;
    d.probe.probe_fn = trap_probe; d.probe.user = t; d.probe.points = G3_POINT_LAYER;
    return t->s = g3_session_open(model, &d, &err);
}

static int failing_turn(trap *t, int kind, int at)       // the code
{
    static const char *stops[] = {""};
    static char big[900];
    g3_error err;
    heard h = G3__ZERO;
    g3_turn u = G3__ZERO;
    t->kind = kind;
    t->at = at;
    t->seen = 0;
    u.text = "A longer text, so long that it takes many small bits";
    if (kind == FAIL_ROOM) { memset(big, 'x', sizeof big - 1); u.text = big; }
    if (kind == FAIL_TEXT) u.text = NULL;
    u.generate = ask(&h, 5, kind != FAIL_SAMPLER);
    u.generate.ignore_stop_ids = true;
    u.generate.sampler.logits_fn = trap_logits;
    u.generate.sampler.user = t;
    if (kind == FAIL_SAMPLER) u.generate.sampler.temperature = -1;
    if (kind == FAIL_STOPS) { u.generate.stops = stops; u.generate.n_stops = 1; }
    int r = g3_chat(t->s, &u, &err);
    t->kind = -1;
    if (r != err.code || !err.text[0] || h.n) return 1;
    if (kind == FAIL_ROOM && (!strstr(err.text, "300") || !strstr(err.text, "held"))) return 2;
    return r;
}

static int a_turn_that_fails_before_its_first_token_is_taken_back(void)
{
    for (int kind = 0; kind < FAILS; kind++)
        for (int before = 0; before < 4; before++)       // nothing, a turn, a turn that waits for its end to be closed, raw tokens
            for (int at = 1; at <= 2; at++) {            // the turn takes two steps
                g3_error err;
                heard h;
                script k;
                trap t;
                conv c = G3__ZERO;
                int end = before == 2 ? END_MAX : END_TURN, want[16], n = answer_ending(end, want);
                g3_session *s = trapped_session(&t, 300, 32);                // 40 rows: a turn of 60 tokens fits into what may be taken back
                say_id(&c, BOS);
                if (before == 3) { say_plain(&c, "Row"); CHECK(g3_add_tokens(s, c.id, 4, &err) == G3_OK); }
                else if (before) {
                    g3_turn u = turn_that("Hi", &h, &k, want, n, end, s);
                    CHECK(g3_chat(s, &u, &err) >= 0);
                    say_user(&c, "Hi"); say_open(&c); say_ids(&c, want, n);
                }
                conv none = G3__ZERO;
                int r = failing_turn(&t, kind, at);
                if (r != fail_code[kind]) fprintf(stderr, "    kind %d before %d at %d: %d\n", kind, before, at, r);
                CHECK(r == fail_code[kind]);
                int held = g3_session_tokens(s, NULL, 0);
                // 32 + 8 rows: what lies up to 33 back can be returned to; a turn that went in whole is longer than that.
                bool kept = held > (before ? c.n : 0);
                if (kept) CHECK(kind != FAIL_ROOM && kind != FAIL_TEXT && before && held - c.n > 33);
                else CHECK(holds(s, before ? &c : &none));
                g3_turn u = turn_that("Go", &h, &k, want, n, END_MAX, s);
                if (kept) { g3_session_close(s); continue; }
                CHECK(g3_chat(s, &u, &err) >= 0);
                if (before && before < 3) say_close(&c, end == END_TURN);
                say_user(&c, "Go"); say_open(&c); say_ids(&c, want, h.n + (before != 2));
                CHECK(holds(s, &c) && like_fresh(s, 300, 32));
                g3_session_close(s);
            }
    return 0;
}

static int where_the_rings_have_moved_on_the_next_turn_closes_the_open_one(void)
{
    for (int kind = 0; kind < 2; kind++)
        for (int at = 1; at <= 8; at++) {
            g3_error err;
            heard h;
            script k;
            trap t;
            conv c = G3__ZERO;
            int want[16], n = answer_ending(END_TURN, want), held[512];
            g3_session *s = trapped_session(&t, 300, 4);
            g3_turn u = turn_that("Hi", &h, &k, want, n, END_TURN, s);
            CHECK(g3_chat(s, &u, &err) == n - 1);
            int mark = g3_session_tokens(s, held, 512);
            CHECK(failing_turn(&t, kind ? FAIL_CANCEL_IN_PROMPT : FAIL_PROGRESS, at) == G3_ERR_STOPPED);
            int now = g3_session_tokens(s, held, 512);
            CHECK(now == mark || now == mark - 1 + 4 * at);                  // taken back, or all that went through is kept
            if (at >= 3) CHECK(now > mark);
            say_ids(&c, held, now);
            u = turn_that("Go", &h, &k, want, n, END_TURN, s);
            CHECK(g3_chat(s, &u, &err) == n - 1);
            say_close(&c, c.id[c.n - 1] == EOT);
            say_user(&c, "Go"); say_open(&c); say_ids(&c, want, n);
            CHECK(holds(s, &c) && like_fresh(s, 300, 4));
            g3_session_close(s);
        }
    return 0;
}

static int an_answer_cut_by_an_error_after_tokens_stays_and_is_closed(void)
{
    g3_error err;
    heard h;
    script k;
    conv c = G3__ZERO;
    int want[16], n = answer_ending(END_MAX, want);
    static const int nobody[] = {CH('a'), CH('b'), TINY_VOCAB};              // the third draw finds everything masked
    g3_session *s = tiny_session(model, 300, 32);
    g3_turn t = turn_that("Hi", &h, &k, nobody, 3, END_MAX, s);
    CHECK(g3_chat(s, &t, &err) == G3_ERR_NUMERIC && h.n == 2);
    say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c); say_ids(&c, nobody, 2);
    CHECK(holds(s, &c));
    t = turn_that("Go", &h, &k, want, n, END_MAX, s);
    CHECK(g3_chat(s, &t, &err) == n);
    say_close(&c, false); say_user(&c, "Go"); say_open(&c); say_ids(&c, want, n);
    CHECK(holds(s, &c));
    g3_session_close(s);
    return 0;
}

static int bad_turns_change_nothing(void)
{
    g3_error err;
    static const uint8_t grey[3] = {9, 9, 9};
    g3_image img = {grey, 1, 1, 0};
    g3_part picture[2] = {{"a", NULL, false}, {NULL, &img, false}}, both[1] = {{"a", &img, false}}, pan[1] = {{"a", NULL, true}};
    g3_message msg[1] = {{"user", NULL, picture, 2}};
    g3_session *s = tiny_session(model, 300, 16);
    g3_turn first = G3__ZERO;
    first.text = "Hi";
    CHECK(g3_add_turn(s, &first, &err) == G3_OK);
    conv c = G3__ZERO;
    say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c);
    for (int i = 0; i < 8; i++) {
        g3_turn t = G3__ZERO;
        g3_result want = G3_ERR_ARGUMENT;
        switch (i) {
        case 0: break;
        case 1: t.text = "a"; t.parts = pan; t.n_parts = 1; break;
        case 2: t.n_parts = 2; break;
        case 3: t.n_parts = -1; t.parts = pan; break;
        case 4: t.parts = picture; t.n_parts = 2; want = G3_ERR_MODEL; break;
        case 5: t.parts = both; t.n_parts = 1; want = G3_ERR_MODEL; break;
        case 6: t.parts = pan; t.n_parts = 1; break;
        default: t.text = "a"; t.system = "b"; break;
        }
        CHECK(g3_chat(s, &t, &err) == want && err.code == want && err.text[0] && holds(s, &c) && g3_add_turn(s, &t, &err) == want && holds(s, &c) && g3_logits(s, &err));
    }
    CHECK(g3_chat(s, NULL, &err) == G3_ERR_ARGUMENT && g3_add_turn(s, NULL, &err) == G3_ERR_ARGUMENT && holds(s, &c));
    CHECK(g3_add_messages(s, msg, 1, true, &err) == G3_ERR_MODEL && strstr(err.text, "picture") && holds(s, &c) && g3_logits(s, &err));
    CHECK(g3_add_image(s, &img, &err) == G3_ERR_MODEL && holds(s, &c));
    g3_session_close(s);
    return 0;
}

static int a_chat_that_fills_the_context_ends_and_says_so(void)
{
    g3_error err;
    heard h = G3__ZERO;
    g3_turn t = G3__ZERO;
    conv c = G3__ZERO;
    int held[64];
    g3_session *s = tiny_session(model, 24, 32);
    t.text = "Hi";
    t.generate = ask(&h, 0, true);
    t.generate.ignore_stop_ids = true;
    say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c);
    CHECK(g3_chat(s, &t, &err) == 24 - c.n && g3_session_finish(s) == G3_FINISH_CONTEXT && g3_session_tokens(s, held, 64) == 24);
    say_ids(&c, held + c.n, 24 - c.n);
    CHECK(g3_chat(s, &t, &err) == G3_ERR_CONTEXT && strstr(err.text, "24") && holds(s, &c));
    CHECK(g3_session_rewind(s, 0, &err) == 0 && g3_chat(s, &t, &err) == 24 - 11 && holds(s, &c));
    g3_session_close(s);
    return 0;
}

static int going_back_to_before_a_turn_lets_it_be_said_anew(void)
{
    for (int end = 0; end < ENDS; end++) {
        g3_error err;
        heard h;
        script k;
        conv c = G3__ZERO;
        int want[16], n = answer_ending(end, want), other[3] = {CH('q'), CH('r'), EOT};
        g3_session *s = tiny_session(model, 300, 64);
        g3_turn t = turn_that("Hi", &h, &k, want, n, end, s);
        CHECK(g3_chat(s, &t, &err) >= 0);
        say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c); say_ids(&c, want, n);
        int mark = g3_session_tokens(s, NULL, 0);
        t = turn_that("Go", &h, &k, want, n, end, s);
        CHECK(g3_chat(s, &t, &err) >= 0 && g3_session_rewind(s, mark, &err) == mark && holds(s, &c));
        t = turn_that("By", &h, &k, other, 3, END_TURN, s);
        CHECK(g3_chat(s, &t, &err) == 2);
        say_close(&c, end == END_TURN); say_user(&c, "By"); say_open(&c); say_ids(&c, other, 3);
        CHECK(holds(s, &c) && like_fresh(s, 300, 64));
        g3_session_close(s);
    }
    return 0;
}

// ---- whole conversations

static int read_again(g3_session *s, const g3_message *msg, int n, bool prompt)      // tokens that went through the model for it, or a g3_result
{
    g3_error err;
    heard h = G3__ZERO;
    int had = g3_session_stats(s).prompt_tokens;
    (void)h;
    g3_result r = g3_add_messages(s, msg, n, prompt, &err);
    if (r != G3_OK) { fprintf(stderr, "    %s\n", err.text); return r; }
    return g3_session_stats(s).prompt_tokens - had;
}

// https://github.com/ollama/ollama/issues/11365 https://github.com/ml-explore/mlx-lm/issues/118 https://github.com/ml-explore/mlx-lm/pull/1437
static int conversations_keep_the_beginning_they_share_with_what_is_held(void)
{
    g3_session *s = tiny_session(model, 300, 100);       // 108 rows: all of these can be gone back in
    g3_message msg[5] = {{"user", "Abcd", NULL, 0}, {"assistant", "Fg", NULL, 0}, {"user", "Hijk", NULL, 0}, {"model", "Lmn", NULL, 0}, {"user", "Op", NULL, 0}};
    conv c = G3__ZERO;
    say_id(&c, BOS); say_user(&c, "Abcd"); say_open(&c);
    CHECK(read_again(s, msg, 1, true) == c.n && holds(s, &c));
    CHECK(read_again(s, msg, 1, true) == 1 && holds(s, &c));                 // nothing is new: the last token is read again, for its logits
    int had = c.n;
    say_plain(&c, "Fg"); say_close(&c, false); say_user(&c, "Hijk"); say_open(&c);
    CHECK(read_again(s, msg, 3, true) == c.n - had && holds(s, &c) && like_fresh(s, 300, 100));
    had = c.n - 3;                                       // without the opened turn of the model
    c.n = had;
    CHECK(read_again(s, msg, 3, false) == 1 && holds(s, &c));
    say_open(&c); say_plain(&c, "Lmn"); say_close(&c, false); say_user(&c, "Op"); say_open(&c);
    CHECK(read_again(s, msg, 5, true) == c.n - had && holds(s, &c) && like_fresh(s, 300, 100));
    msg[2].text = "Hixk";                                // history changed in its middle: read from the first difference on
    conv d = G3__ZERO;
    say_id(&d, BOS); say_user(&d, "Abcd"); say_open(&d); say_plain(&d, "Fg"); say_close(&d, false);
    had = d.n + 3 + 2;                                   // <start_of_turn> user \n H i
    say_user(&d, "Hixk"); say_open(&d); say_plain(&d, "Lmn"); say_close(&d, false); say_user(&d, "Op"); say_open(&d);
    CHECK(read_again(s, msg, 5, true) == d.n - had && holds(s, &d) && like_fresh(s, 300, 100));
    msg[0].text = "Zbcd";
    conv e = G3__ZERO;
    say_id(&e, BOS); say_user(&e, "Zbcd"); say_open(&e);
    CHECK(read_again(s, msg, 1, true) == e.n - 4 && holds(s, &e) && like_fresh(s, 300, 100));
    g3_session_close(s);
    return 0;
}

// https://github.com/ggml-org/llama.cpp/issues/14157 https://github.com/ikawrakow/ik_llama.cpp/pull/2378
static int where_the_rings_have_moved_on_the_conversation_is_read_again(void)
{
    g3_session *s = tiny_session(model, 300, 4);
    g3_message msg[3] = {{"user", "Abcd", NULL, 0}, {"assistant", "Fg", NULL, 0}, {"user", "A b c d e f g h i j k l m n o p q", NULL, 0}};
    conv c = G3__ZERO, d = G3__ZERO;
    say_id(&c, BOS); say_user(&c, "Abcd"); say_open(&c); say_plain(&c, "Fg"); say_close(&c, false); say_user(&c, msg[2].text); say_open(&c);
    CHECK(read_again(s, msg, 3, true) == c.n && holds(s, &c));
    CHECK(read_again(s, msg, 3, true) == 1 && holds(s, &c) && like_fresh(s, 300, 4));
    msg[0].text = "Abxd";
    say_id(&d, BOS); say_user(&d, "Abxd"); say_open(&d); say_plain(&d, "Fg"); say_close(&d, false); say_user(&d, msg[2].text); say_open(&d);
    CHECK(read_again(s, msg, 3, true) == d.n && holds(s, &d) && like_fresh(s, 300, 4));
    g3_session_close(s);
    return 0;
}

static int answers_given_back_word_for_word_keep_their_ids(void)
{
    for (int end = 0; end < ENDS - 1; end++) {           // a stop string is not in the text, so that text is not what was generated
        g3_error err;
        heard h;
        script k;
        conv c = G3__ZERO;
        int want[16], n = answer_ending(end, want);
        g3_session *s = tiny_session(model, 300, 100);
        g3_message msg[5] = {{"user", "Hi", NULL, 0}, {"assistant", NULL, NULL, 0}, {"user", "Go", NULL, 0}, {"assistant", NULL, NULL, 0}, {"user", "By", NULL, 0}};
        char text[2][sizeof h.text + 4];
        g3_turn t = turn_that("", &h, &k, want, n, end, s);
        CHECK(read_again(s, msg, 1, true) == 11 && g3_generate(s, &t.generate, &err) >= 0);
        snprintf(text[0], sizeof text[0], "%s", h.text);
        msg[1].text = text[0];
        say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c); say_ids(&c, want, n);
        CHECK(holds(s, &c));
        int waiting = 1, had = c.n;                      // the last token generated has not been through the model
        say_close(&c, end == END_TURN); say_user(&c, "Go"); say_open(&c);
        int read = read_again(s, msg, 3, true);
        CHECK(holds(s, &c) && read >= 0);
        CHECK(g3_session_stats(s).prompt_tokens <= c.n - had + waiting);
        t = turn_that("", &h, &k, want, n, end, s);
        CHECK(g3_generate(s, &t.generate, &err) >= 0);
        snprintf(text[1], sizeof text[1], " %s\n", h.text);                  // white space around does not count: the template trims it
        msg[3].text = text[1];
        say_ids(&c, want, n); say_close(&c, end == END_TURN); say_user(&c, "By"); say_open(&c);
        CHECK(read_again(s, msg, 5, true) >= 0 && holds(s, &c) && like_fresh(s, 300, 100));
        msg[1].text = "th w470e";                        // not what it said: encoded like any text, "th" as one token
        conv d = G3__ZERO;
        say_id(&d, BOS); say_user(&d, "Hi"); say_open(&d); say_id(&d, 117); say_plain(&d, " w470e"); say_close(&d, false); say_user(&d, "Go"); say_open(&d);
        CHECK(read_again(s, msg, 3, true) >= 0 && holds(s, &d) && like_fresh(s, 300, 100));
        g3_session_close(s);
    }
    return 0;
}

static int chat_and_conversations_mix(void)
{
    g3_error err;
    heard h;
    script k;
    conv c = G3__ZERO;
    int want[16], n = answer_ending(END_MAX, want);
    g3_session *s = tiny_session(model, 300, 100);
    g3_message msg[3] = {{"user", "Hi", NULL, 0}, {"assistant", "Fg", NULL, 0}, {"user", "Go", NULL, 0}};
    CHECK(g3_add_messages(s, msg, 2, false, &err) == G3_OK);
    say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c); say_plain(&c, "Fg"); say_close(&c, false);
    CHECK(holds(s, &c));
    g3_turn t = turn_that("Go", &h, &k, want, n, END_MAX, s);                // the model's turn is closed: nothing to close
    CHECK(g3_chat(s, &t, &err) == n);
    say_user(&c, "Go"); say_open(&c); say_ids(&c, want, n);
    CHECK(holds(s, &c));
    t = turn_that("By", &h, &k, want, n, END_MAX, s);
    CHECK(g3_chat(s, &t, &err) == n);
    say_close(&c, false); say_user(&c, "By"); say_open(&c); say_ids(&c, want, n);
    CHECK(holds(s, &c));
    CHECK(g3_add_messages(s, msg, 3, true, &err) == G3_OK && g3_generate(s, &t.generate, &err) >= 0);
    c.n = 0;
    say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c); say_plain(&c, "Fg"); say_close(&c, false); say_user(&c, "Go"); say_open(&c);
    CHECK(g3_session_rewind(s, c.n, &err) == c.n && holds(s, &c));
    t = turn_that("By", &h, &k, want, n, END_MAX, s);
    CHECK(g3_chat(s, &t, &err) == n);                    // an opened turn in which nothing was said is closed all the same
    say_close(&c, false); say_user(&c, "By"); say_open(&c); say_ids(&c, want, n);
    CHECK(holds(s, &c) && like_fresh(s, 300, 100));
    g3_session_close(s);
    return 0;
}

// https://github.com/huggingface/text-generation-inference/issues/3198 https://github.com/SillyTavern/SillyTavern/issues/4349
static int bad_conversations_change_nothing(void)
{
    static const struct { const char *role[3]; int n; g3_result want; const char *word; } bad[] = {
        {{"user", "user", NULL}, 2, G3_ERR_ARGUMENT, "message 1"}, {{"assistant", NULL, NULL}, 1, G3_ERR_ARGUMENT, "message 0"}, {{"system", NULL, NULL}, 1, G3_ERR_ARGUMENT, "system"},
        {{"user", "assistant", "assistant"}, 3, G3_ERR_ARGUMENT, "message 2"}, {{NULL, NULL, NULL}, 1, G3_ERR_ARGUMENT, "role"}, {{NULL, NULL, NULL}, 0, G3_ERR_ARGUMENT, "no messages"},
        {{NULL, NULL, NULL}, -1, G3_ERR_ARGUMENT, "-1"}};
    g3_error err;
    g3_session *s = tiny_session(model, 60, 16);
    g3_turn t = G3__ZERO;
    t.text = "Hi";
    conv c = G3__ZERO;
    CHECK(g3_add_turn(s, &t, &err) == G3_OK);
    say_id(&c, BOS); say_user(&c, "Hi"); say_open(&c);
    for (int i = 0; i < G3__COUNT(bad); i++) {
        g3_message msg[3];
        for (int k = 0; k < 3; k++) { memset(&msg[k], 0, sizeof msg[k]); msg[k].role = bad[i].role[k]; msg[k].text = "x"; }
        CHECK(g3_add_messages(s, msg, bad[i].n, true, &err) == bad[i].want && strstr(err.text, bad[i].word) && holds(s, &c) && g3_logits(s, &err));
    }
    g3_message big[1] = {{"user", "This text has more characters than the context has room for", NULL, 0}};
    CHECK(g3_add_messages(s, big, 1, true, &err) == G3_ERR_CONTEXT && strstr(err.text, "60") && holds(s, &c) && g3_logits(s, &err));
    CHECK(g3_add_messages(s, NULL, 1, true, &err) == G3_ERR_ARGUMENT && holds(s, &c));
    g3_session_close(s);
    return 0;
}

// ---- what users type

static bool scaffold_only(const int *id, int n, int turns, bool open)        // control ids are those of the frame and nothing else
{
    int sot = 0, eot = 0, bos = 0, other = 0;
    for (int i = 0; i < n; i++) {
        bos += id[i] == BOS;
        sot += id[i] == SOT;
        eot += id[i] == EOT;
        other += id[i] == 0 || id[i] == EOS || id[i] == 3 || (id[i] >= 120 && id[i] <= 122);
    }
    return bos == 1 && id[0] == BOS && sot == turns + open && eot == turns && other == 0;
}

// https://github.com/google-deepmind/gemma/pull/770 https://github.com/ggml-org/llama.cpp/issues/8349 https://github.com/ollama/ollama/pull/10743
// https://github.com/DenisovAV/flutter_gemma/issues/92
static int nothing_a_user_types_becomes_a_control_token(void)
{
    unsigned seed = 23;
    g3_session *s = tiny_session(model, 512, 256);
    for (int round = 0; round < 3000; round++) {
        g3_error err;
        char text[160];
        int n = 0, held[512];
        for (int k = 0; k < 12; k++) {
            seed = seed * 1664525u + 1013904223u;
            unsigned pick = seed >> 16;
            if (pick % 3 == 0) n += sprintf(text + n, "%s", tiny_specials[(pick >> 4) % (unsigned)G3__COUNT(tiny_specials)]);
            else if (pick % 3 == 1) { const char *part[] = {"<", "start_of_turn", ">", "<end_of", "_turn>", "\n", "model", "user", " ", "<bos"}; n += sprintf(text + n, "%s", part[(pick >> 4) % 10]); }
            else text[n++] = (char)(1 + (pick >> 4) % 255);
            if (n > 130) break;
        }
        text[n] = 0;
        g3_message msg[3] = {{"user", text, NULL, 0}, {"assistant", text, NULL, 0}, {"user", "x", NULL, 0}};
        g3_turn t = G3__ZERO;
        if (round < 300) {                               // the session's way is slow; the render is the same code
            CHECK(g3_session_rewind(s, 0, &err) == 0);
            t.text = text;
            t.system = round % 2 ? text : NULL;
            CHECK(g3_add_turn(s, &t, &err) == G3_OK);
            int m = g3_session_tokens(s, held, 512);
            CHECK(scaffold_only(held, m, 1, true));
        }
        int m = g3_render(model, msg, 3, true, held, 512, &err);
        CHECK(m > 0 && m <= 512 && scaffold_only(held, m, 3, true));
        msg[1].role = text;                              // a role is text, too
        if (strcmp(text, "user")) { m = g3_render(model, msg, 2, true, held, 512, &err); CHECK(m > 0 && m <= 512 && scaffold_only(held, m, 2, true)); }
    }
    g3_session_close(s);
    return 0;
}

// ---- models that were not made for it

typedef struct lines { int n; char last[512]; } lines;

static void take_line(void *user, g3_level level, const char *text)
{
    lines *l = (lines *)user;
    if (level > G3_LOG_WARN) return;
    l->n++;
    snprintf(l->last, sizeof l->last, "%s", text);
}

static int a_model_without_a_template_chats_and_says_once_that_it_was_not_trained_to(void)
{
    for (int template = 0; template < 2; template++) {
        g3_error err;
        lines l = G3__ZERO;
        box b;
        CHECK(tiny_box(&b, "t1-f32-text"));
        if (!template) box_drop(&b, "tokenizer_config.json");
        g3_model_desc d = tiny_desc(&b, 1);
        d.logger.log_fn = take_line;
        d.logger.user = &l;
        g3_model *m = g3_model_open(&d, &err);
        g3_session *s = m ? tiny_session(m, 200, 32) : NULL;
        CHECK(s && g3_model_get_info(m).chat == (template == 1));
        int before = l.n;
        g3_turn t = G3__ZERO;
        t.text = "Hi";
        t.generate.max_tokens = 3;
        for (int i = 0; i < 3; i++) CHECK(g3_chat(s, &t, &err) >= 0);
        CHECK(l.n - before == (template ? 0 : 1) && (template || strstr(l.last, "chat")));
        g3_session_close(s);
        g3_model_close(m);
        box_free(&b);
    }
    return 0;
}

static int a_model_without_a_tokenizer_refuses_text(void)
{
    g3_error err;
    g3_model *m = open_model(tiny_path("t1-f32-text"), 1, &err);
    g3_session *s = tiny_session(m, 64, 16);
    g3_turn t = G3__ZERO;
    g3_message msg[1] = {{"user", "Hi", NULL, 0}};
    int ids[4] = {2, 3, 4, 5}, size;
    t.text = "Hi";
    CHECK(g3_chat(s, &t, &err) == G3_ERR_MODEL && strstr(err.text, "tokenizer.json"));
    CHECK(g3_add_turn(s, &t, &err) == G3_ERR_MODEL && g3_add_messages(s, msg, 1, true, &err) == G3_ERR_MODEL && strstr(err.text, "tokenizer.json"));
    CHECK(g3_render(m, msg, 1, true, ids, 4, &err) == G3_ERR_MODEL && strstr(err.text, "tokenizer.json") && g3_tokenize(m, "a", 1, 0, ids, 4) == G3_ERR_MODEL);
    CHECK(g3_detokenize(m, ids, 4, NULL, 0) == G3_ERR_MODEL && !g3_token_piece(m, 5, &size) && size == 0);
    CHECK(g3_session_tokens(s, NULL, 0) == 0 && g3_add_tokens(s, ids, 4, &err) == G3_OK && g3_logits(s, &err));
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}

static int a_tokenizer_without_the_scaffold_is_named(void)
{
    static const char *const needed[] = {"<start_of_turn>", "<end_of_turn>", "<bos>"};
    for (int i = 0; i < 3; i++) {
        g3_error err;
        box b;
        g3_turn t = G3__ZERO;
        CHECK(tiny_box(&b, "t1-f32-text"));
        tiny_tokenizer(&b, TINY_VOCAB, needed[i]);
        g3_model *m = tiny_open(&b, 1);
        g3_session *s = m ? tiny_session(m, 64, 16) : NULL;
        t.text = "Hi";
        CHECK(s && g3_chat(s, &t, &err) == G3_ERR_MODEL && strstr(err.text, needed[i]) && g3_session_tokens(s, NULL, 0) == 0);
        g3_session_close(s);
        g3_model_close(m);
        box_free(&b);
    }
    return 0;
}

int main(void)
{
    tiny_quiet();
    if (!tiny_box(&files, "t1-f32-text") || !(model = tiny_open(&files, 1))) { fprintf(stderr, "no fixtures\n"); return 1; }
    RUN(ids_after_any_turns_are_those_of_the_rendered_conversation);
    RUN(a_turn_pulled_token_by_token_is_the_same_chat);
    RUN(a_system_text_comes_first_or_not_at_all);
    RUN(parts_of_a_turn_are_trimmed_and_joined);
    RUN(a_turn_that_fails_before_its_first_token_is_taken_back);
    RUN(where_the_rings_have_moved_on_the_next_turn_closes_the_open_one);
    RUN(an_answer_cut_by_an_error_after_tokens_stays_and_is_closed);
    RUN(bad_turns_change_nothing);
    RUN(a_chat_that_fills_the_context_ends_and_says_so);
    RUN(going_back_to_before_a_turn_lets_it_be_said_anew);
    RUN(conversations_keep_the_beginning_they_share_with_what_is_held);
    RUN(where_the_rings_have_moved_on_the_conversation_is_read_again);
    RUN(answers_given_back_word_for_word_keep_their_ids);
    RUN(chat_and_conversations_mix);
    RUN(bad_conversations_change_nothing);
    RUN(nothing_a_user_types_becomes_a_control_token);
    RUN(a_model_without_a_template_chats_and_says_once_that_it_was_not_trained_to);
    RUN(a_model_without_a_tokenizer_refuses_text);
    RUN(a_tokenizer_without_the_scaffold_is_named);
    g3_model_close(model);
    box_free(&files);
    return test_done();
}
