// What can fail, fails at every place once: the allocator at call N, the files hook at its N-th open and N-th read, for
// every N until a run succeeds. Each time the right code, one sentence, nothing leaked.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "../tools/checkpoint.h"

static box with_tokenizer, sharded, dense;               // tiny: NF4 with a tokenizer; text in three shards; plain float32

static bool load_boxes(void)
{
    DIR *d = opendir(golden("bnb/malformed"));
    bool found = false;
    for (struct dirent *e; d && (e = readdir(d)) != NULL; ) {
        char path[800];
        if (!ck_ends(e->d_name, "-good-tokenizer")) continue;
        snprintf(path, sizeof path, "%s/%s", golden("bnb/malformed"), e->d_name);
        found = box_load(&with_tokenizer, path);
    }
    if (d) closedir(d);
    return found && box_load(&sharded, golden("bnb/models/text-nf4-mixed-3shards")) && box_load(&dense, golden("text/tiny/t1-f32-text"));
}

typedef enum deed { OPEN, PLAN, LOAD } deed;             // open without weights, plan, open with weights and one session

// Does it once; everything it opened is closed again. The code, and the sentence in err.
static g3_result attempt(box *b, tally *t, deed what, g3_error *err)
{
    g3_session_desc s;
    g3_model_desc d = box_desc(b);
    g3_plan p;
    memset(&s, 0, sizeof s);
    memset(err, 0, sizeof *err);
    s.context = 32;
    s.batch = 16;
    d.session = &s;
    d.sessions = 1;
    d.allocator.alloc_fn = tally_alloc; d.allocator.free_fn = tally_free; d.allocator.user = t;
    if (what == PLAN) return g3_plan_memory(&d, &p, err);
    d.no_weights = what == OPEN;
    g3_model *m = g3_model_open(&d, err);
    if (!m) return err->code ? err->code : G3_ERR_NUMERIC;                            // a failure without a code fits no test
    g3_session *session = what == LOAD ? g3_session_open(m, &s, err) : NULL;
    g3_result r = err->code;
    g3_session_close(session);
    g3_model_close(m);
    return r;
}

static int fail_every_allocation(box *b, deed what)
{
    tally t;
    g3_error err;
    int failures = 0;
    for (uint64_t n = 1; n < 100000; n++) {
        memset(&t, 0, sizeof t);
        t.fail_at = n;
        g3_result r = attempt(b, &t, what, &err);
        if (t.live || t.bad || b->open_now) { fprintf(stderr, "    call %d: %llu bytes and %d files are left\n", (int)n, (unsigned long long)t.live, (int)b->open_now); return __LINE__; }
        if (t.calls < n) { CHECK(r == G3_OK); break; }   // fewer calls than n: nothing failed
        failures++;
        if (r != G3_ERR_MEMORY || err.code != G3_ERR_MEMORY || strlen(err.text) < 10) { fprintf(stderr, "    call %d: %d %s\n", (int)n, r, err.text); return __LINE__; }
    }
    CHECK(failures > 2);
    return 0;
}

static int opening_survives_a_failing_allocator(void)
{
    box *boxes[3] = { &with_tokenizer, &sharded, &dense };
    for (int i = 0; i < 3; i++) { int line = fail_every_allocation(boxes[i], OPEN); CHECK(!line); }
    return 0;
}

static int planning_survives_a_failing_allocator(void)
{
    box *boxes[3] = { &with_tokenizer, &sharded, &dense };
    for (int i = 0; i < 3; i++) { int line = fail_every_allocation(boxes[i], PLAN); CHECK(!line); }
    return 0;
}

static int loading_and_sessions_survive_a_failing_allocator(void)
{
    tally t;
    g3_error err;
    memset(&t, 0, sizeof t);
    if (attempt(&dense, &t, LOAD, &err) == G3_ERR_UNSUPPORTED) SKIP("no forward pass in this build");
    box *boxes[3] = { &with_tokenizer, &sharded, &dense };
    for (int i = 0; i < 3; i++) { int line = fail_every_allocation(boxes[i], LOAD); CHECK(!line); }
    return 0;
}

// A file that does not open counts as absent: some may be (tokenizer.json), the others are named.
static int fail_every_open(box *b, deed what)
{
    int failures = 0;
    for (uint64_t n = 1; n < 100000; n++) {
        tally t;
        g3_error err;
        memset(&t, 0, sizeof t);
        b->opens = b->reads = 0;
        b->fail_open = n;
        g3_result r = attempt(b, &t, what, &err);
        b->fail_open = 0;
        if (t.live || t.bad || b->open_now) { fprintf(stderr, "    open %d: %llu bytes and %d files are left\n", (int)n, (unsigned long long)t.live, (int)b->open_now); return __LINE__; }
        if (b->opens < n) { CHECK(r == G3_OK); break; }
        if (r == G3_OK) continue;
        failures++;
        if (r != G3_ERR_IO || err.code != r || !(strstr(err.text, ".json") || strstr(err.text, ".safetensors"))) { fprintf(stderr, "    open %d: %d %s\n", (int)n, r, err.text); return __LINE__; }
    }
    CHECK(failures >= 2);                                // config.json and weights at least
    return 0;
}

// A read that fails is never mistaken for anything else; short: half of the bytes came.
static int fail_every_read(box *b, deed what, bool brief)
{
    int failures = 0;
    for (uint64_t n = 1; n < 100000; n++) {
        tally t;
        g3_error err;
        memset(&t, 0, sizeof t);
        b->opens = b->reads = 0;
        b->fail_read = n;
        b->fail_short = brief;
        g3_result r = attempt(b, &t, what, &err);
        b->fail_read = 0;
        if (t.live || t.bad || b->open_now) { fprintf(stderr, "    read %d: %llu bytes and %d files are left\n", (int)n, (unsigned long long)t.live, (int)b->open_now); return __LINE__; }
        if (b->reads < n) { CHECK(r == G3_OK); break; }
        failures++;
        if (r != G3_ERR_IO || err.code != r || !(strstr(err.text, ".json") || strstr(err.text, ".safetensors"))) { fprintf(stderr, "    read %d: %d %s\n", (int)n, r, err.text); return __LINE__; }
    }
    CHECK(failures >= 3);                                // config.json, the size of a header, a header
    return 0;
}

static int opening_survives_files_that_do_not_open(void)
{
    box *boxes[3] = { &with_tokenizer, &sharded, &dense };
    for (int i = 0; i < 3; i++) { int line = fail_every_open(boxes[i], OPEN); CHECK(!line); }
    return 0;
}

static int opening_survives_reads_that_fail(void)
{
    box *boxes[3] = { &with_tokenizer, &sharded, &dense };
    for (int i = 0; i < 6; i++) { int line = fail_every_read(boxes[i / 2], OPEN, i & 1); CHECK(!line); }
    return 0;
}

static int planning_survives_files_that_fail(void)
{
    int line = fail_every_open(&sharded, PLAN);
    CHECK(!line);
    line = fail_every_read(&sharded, PLAN, true);
    CHECK(!line);
    return 0;
}

static int loading_survives_reads_that_fail(void)
{
    tally t;
    g3_error err;
    memset(&t, 0, sizeof t);
    if (attempt(&dense, &t, LOAD, &err) == G3_ERR_UNSUPPORTED) SKIP("no forward pass in this build");
    box *boxes[3] = { &with_tokenizer, &sharded, &dense };
    for (int i = 0; i < 6; i++) { int line = fail_every_read(boxes[i / 2], LOAD, i & 1); CHECK(!line); }
    return 0;
}

static int reading_rows_survives_a_failing_read(void)
{
    g3_error err;
    float row[4096];
    g3_model_desc d = box_desc(&sharded);
    g3_model *m = g3_model_open(&d, &err);
    CHECK(m);
    sharded.reads = 0;
    CHECK(g3_model_read(m, "model.layers.0.mlp.up_proj.weight", 3, 1, row, &err) == G3_OK);
    for (uint64_t n = 1, all = sharded.reads; n <= all; n++) {
        sharded.reads = 0;
        sharded.fail_read = n;
        CHECK(g3_model_read(m, "model.layers.0.mlp.up_proj.weight", 3, 1, row, &err) == G3_ERR_IO && strstr(err.text, ".safetensors"));
    }
    sharded.fail_read = 0;
    CHECK(g3_model_read(m, "model.layers.0.mlp.up_proj.weight", 3, 1, row, &err) == G3_OK && err.code == G3_OK);   // and works again
    g3_model_close(m);
    CHECK(!sharded.open_now);
    return 0;
}

// A text that arrives in pieces of a file that shrinks or lies about its size is a failed read, not a hang.
static void *lying_open(void *user, const char *name, uint64_t *size)
{
    void *f = box_open(user, name, size);
    if (f) *size += (uint64_t)1 << 40;
    return f;
}

static int honest_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    box_file *f = (box_file *)file;
    if (offset > f->size || size > f->size - offset) return 1;
    return box_read(user, file, offset, dst, size);
}

static int a_file_that_claims_a_terabyte_takes_no_terabyte(void)
{
    tally t;
    g3_error err;
    g3_model_desc d = box_desc(&with_tokenizer);
    d.allocator = tally_hooks(&t);
    d.files.open_fn = lying_open;
    d.files.read_fn = honest_read;
    CHECK(!g3_model_open(&d, &err) && err.code < 0 && err.text[0] && t.live == 0 && t.peak < (uint64_t)64 << 20 && !with_tokenizer.open_now);
    return 0;
}

int main(void)
{
    if (!load_boxes()) { fprintf(stderr, "no fixtures\n"); return 1; }
    RUN(opening_survives_a_failing_allocator);
    RUN(planning_survives_a_failing_allocator);
    RUN(loading_and_sessions_survive_a_failing_allocator);
    RUN(opening_survives_files_that_do_not_open);
    RUN(opening_survives_reads_that_fail);
    RUN(planning_survives_files_that_fail);
    RUN(loading_survives_reads_that_fail);
    RUN(reading_rows_survives_a_failing_read);
    RUN(a_file_that_claims_a_terabyte_takes_no_terabyte);
    box_free(&with_tokenizer);
    box_free(&sharded);
    box_free(&dense);
    (void)box_hash;
    return test_done();
}
