// Zero is the default everywhere: what an empty description means, and that it can be read back; results, versions, NULLs.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "../tools/checkpoint.h"

static g3_model *open_zero(const char *dir, bool no_weights, g3_error *err)
{
    g3_model_desc d;
    memset(&d, 0, sizeof d);
    d.path = dir;
    d.no_weights = no_weights;
    return g3_model_open(&d, err);
}

static int every_result_has_a_text(void)
{
    for (int r = 0; r >= -11; r--) {
        const char *text = g3_result_text((g3_result)r);
        CHECK(text && text[0]);
        for (int q = 0; q > r; q--) CHECK(strcmp(text, g3_result_text((g3_result)q)));
    }
    CHECK(!strcmp(g3_result_text(G3_OK), "ok") && !strcmp(g3_result_text(G3_ERR_VRAM), "not enough device memory"));
    CHECK(g3_result_text((g3_result)-99) && g3_result_text((g3_result)7) && g3_result_text(G3__RESULT_MAX));
    CHECK(!strcmp(g3_version(), GEMMA3_VERSION));
    return 0;
}

static int closing_nothing_is_harmless(void)
{
    g3_model_close(NULL);
    g3_session_close(NULL);
    g3_session_cancel(NULL);
    g3_image_free(NULL, NULL);
    CHECK(g3_session_tokens(NULL, NULL, 0) <= 0 && g3_model_tensor(NULL, 0, NULL) <= 0);
    g3_model_info info = g3_model_get_info(NULL);
    g3_model_desc desc = g3_model_get_desc(NULL);
    CHECK(info.layers == 0 && desc.path == NULL);
    return 0;
}

static int an_empty_description_can_be_read_back_with_its_defaults(void)
{
    g3_error err;
    g3_model *m = open_zero(golden("text/tiny/t1-f32-text"), true, &err);
    if (!m) fprintf(stderr, "    %s\n", err.text);
    CHECK(m && err.code == G3_OK);
    g3_model_desc d = g3_model_get_desc(m);
    CHECK(d.path && !strcmp(d.path, golden("text/tiny/t1-f32-text")));
    CHECK(d.backend == G3_BACKEND_CPU && d.threads >= 1);
    CHECK(d.no_weights && !d.no_vision && !d.precise && !d.screened_head && d.device == 0);
    CHECK(d.allocator.alloc_fn && d.allocator.free_fn && d.sessions == 1 && d.session);
    CHECK(d.session->batch > 0 && d.session->kv == G3_KV_BF16 && d.session->logits_rows == 1);
    g3_model_info i = g3_model_get_info(m);
    CHECK(d.session->context == (i.max_context < 8192 ? i.max_context : 8192));
    g3_model_close(m);
    return 0;
}

static int what_is_asked_for_is_read_back(void)
{
    g3_error err;
    g3_session_desc s;
    g3_model_desc d;
    char path[600];
    memset(&d, 0, sizeof d);
    memset(&s, 0, sizeof s);
    snprintf(path, sizeof path, "%s", golden("text/tiny/t1-f32-text"));
    s.context = 17; s.batch = 9; s.kv = G3_KV_INT8; s.logits_rows = 3;
    d.path = path; d.no_weights = true; d.threads = 2; d.backend = G3_BACKEND_CPU; d.memory_limit = 123456789; d.session = &s; d.sessions = 2; d.precise = true;
    g3_model *m = g3_model_open(&d, &err);
    CHECK(m);
    memset(path, 'x', 10);                               // strings and structs were copied
    memset(&s, 0x55, sizeof s);
    g3_model_desc r = g3_model_get_desc(m);
    CHECK(!strcmp(r.path, golden("text/tiny/t1-f32-text")) && r.threads == 2 && r.memory_limit == 123456789 && r.sessions == 2 && r.precise);
    CHECK(r.session && r.session != &s && r.session->context == 17 && r.session->kv == G3_KV_INT8 && r.session->logits_rows == 3 && r.session->batch == 9);
    g3_model_close(m);
    return 0;
}

static int the_info_describes_the_model(void)
{
    g3_error err;
    g3_model *m = open_zero(golden("text/tiny/t1-f32-text"), true, &err);
    CHECK(m);
    g3_model_info i = g3_model_get_info(m);
    CHECK(i.layers == 4 && i.dim == 64 && i.ffn == 96 && i.heads == 4 && i.kv_heads == 2 && i.head_dim == 16 && i.window == 8 && i.vocab == 512 && !i.vision && !i.chat);
    CHECK(i.name && i.name[0] && i.backend && i.backend[0] && i.device);
    uint64_t layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 4 * 64 + 2 * 16;              // q o, k v, gate up down, norms
    CHECK(i.parameters == 512 * 64 + 4 * layer + 64 && i.weight_bytes == 4 * i.parameters);
    g3_model_close(m);
    return 0;
}

static int bad_settings_are_argument_errors_that_name_the_setting(void)
{
    static const struct { int what; const char *word; } bad[] = { { 0, "backend" }, { 1, "threads" }, { 2, "sessions" }, { 3, "context" }, { 4, "batch" }, { 5, "kv" }, { 6, "logits_rows" }, { 7, "allocator" } };
    for (int i = 0; i < G3__COUNT(bad); i++) {
        g3_error err;
        g3_session_desc s;
        g3_model_desc d;
        tally t;
        memset(&d, 0, sizeof d);
        memset(&s, 0, sizeof s);
        d.path = golden("text/tiny/t1-f32-text");
        d.no_weights = true;
        d.session = &s;
        d.sessions = 1;
        switch (bad[i].what) {
        case 0: d.backend = (g3_backend)99; break;
        case 1: d.threads = -1; break;
        case 2: d.sessions = -1; break;
        case 3: s.context = INT_MAX; break;
        case 4: s.batch = -5; break;
        case 5: s.kv = (g3_kv)-3; break;
        case 6: s.logits_rows = -1; break;
        default: d.allocator = tally_hooks(&t); d.allocator.free_fn = NULL; break;
        }
        g3_model *m = g3_model_open(&d, &err);
        if (m || err.code != G3_ERR_ARGUMENT || !strstr(err.text, bad[i].word)) { fprintf(stderr, "    %s: %d %s\n", bad[i].word, err.code, m ? "opened" : err.text); g3_model_close(m); return __LINE__; }
    }
    return 0;
}

static int errors_are_optional_and_rewritten_by_each_call(void)
{
    g3_error err;
    memset(&err, 0x5A, sizeof err);
    CHECK(!open_zero("/tmp/g3-test-nothing-here", true, &err) && err.code == G3_ERR_IO && err.text[0]);
    g3_model *m = open_zero(golden("text/tiny/t1-f32-text"), true, &err);
    CHECK(m && err.code == G3_OK && !err.text[0]);
    g3_model_close(m);
    CHECK(!open_zero("/tmp/g3-test-nothing-here", true, NULL));
    return 0;
}

// Without weights there is a tokenizer and a plan, but no session.
static int a_model_without_weights_opens_no_session(void)
{
    g3_error err;
    g3_model *m = open_zero(golden("text/tiny/t1-f32-text"), true, &err);
    CHECK(m);
    CHECK(!g3_session_open(m, NULL, &err) && err.code == G3_ERR_ARGUMENT && strstr(err.text, "weights"));
    CHECK(!g3_session_open(NULL, NULL, &err) && err.code == G3_ERR_ARGUMENT);
    g3_model_close(m);
    return 0;
}

static int a_directory_without_a_tokenizer_answers_text_calls_with_a_code(void)
{
    g3_error err;
    int ids[4], size = 0;
    g3_message msg;
    memset(&msg, 0, sizeof msg);
    msg.role = "user";
    msg.text = "hi";
    g3_model *m = open_zero(golden("text/tiny/t1-f32-text"), true, &err);
    CHECK(m);
    CHECK(g3_tokenize(m, "hi", SIZE_MAX, 0, ids, 4) == G3_ERR_MODEL);
    CHECK(g3_render(m, &msg, 1, true, ids, 4, &err) == G3_ERR_MODEL && err.code == G3_ERR_MODEL && strstr(err.text, "tokenizer.json"));
    CHECK(g3_token_piece(m, 5, &size) == NULL || size == 0);
    g3_model_close(m);
    return 0;
}

static int logged;
static void log_line(void *user, g3_level level, const char *text) { (void)user; (void)level; if (text && text[0]) logged++; }

static int a_log_comes_through_its_hook(void)
{
    g3_error err;
    g3_model_desc d;
    memset(&d, 0, sizeof d);
    d.path = golden("text/tiny/t2-bf16-mm-old");
    d.no_weights = true;
    d.logger.log_fn = log_line;
    g3_model *m = g3_model_open(&d, &err);
    CHECK(m && g3_model_get_desc(m).logger.log_fn == log_line);
    g3_model_close(m);
    return 0;
}

int main(void)
{
    RUN(every_result_has_a_text);
    RUN(closing_nothing_is_harmless);
    RUN(an_empty_description_can_be_read_back_with_its_defaults);
    RUN(what_is_asked_for_is_read_back);
    RUN(the_info_describes_the_model);
    RUN(bad_settings_are_argument_errors_that_name_the_setting);
    RUN(errors_are_optional_and_rewritten_by_each_call);
    RUN(a_model_without_weights_opens_no_session);
    RUN(a_directory_without_a_tokenizer_answers_text_calls_with_a_code);
    RUN(a_log_comes_through_its_hook);
    (void)box_hash;
    return test_done();
}
