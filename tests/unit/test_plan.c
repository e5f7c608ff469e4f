// The memory plan against a formula of our own, on sparse checkpoints of the five published sizes: no weight is read, no
// arena taken. Then limits, the largest context, and the advice.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "../tools/checkpoint.h"
#include "../tools/sparse.h"

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static sparse made[5];
static char where[5][64];

// ---- the formula

// Weights as stored: all of a tensor's parts but the constant code table and the JSON.
static uint64_t stored_bytes(const sparse *s, bool vision)
{
    uint64_t sum = 0;
    for (int i = 0; i < s->n; i++) {
        bool tower = !strncmp(s->t[i].name, "vision_tower.", 13) || !strncmp(s->t[i].name, "multi_modal_projector.", 22);
        if (tower == vision && s->t[i].kind != SPARSE_CODES && s->t[i].kind != SPARSE_STATE) sum += s->t[i].bytes;
    }
    return sum;
}

// Two caches a layer: a row holds kv_heads vectors of head_dim elements and, in the 8-bit formats, one float32 scale each.
static uint64_t kv_bytes(const sparse_size *z, uint64_t context, uint64_t batch, g3_kv kv)
{
    uint64_t element = kv == G3_KV_F32 ? 4 : kv == G3_KV_BF16 ? 2 : 1, scale = element == 1 ? 4 : 0, sum = 0;
    for (int i = 0; i < z->layers; i++) {
        uint64_t ring = (uint64_t)z->window + batch, rows = i % 6 == 5 || context < ring ? context : ring;
        sum += 2 * rows * (uint64_t)z->kv_heads * ((uint64_t)z->head_dim * element + scale);
    }
    return sum;
}

// ---- descriptions and sums

static g3_model_desc plan_desc(int size, g3_session_desc *s, int context, g3_kv kv)
{
    g3_model_desc d;
    memset(&d, 0, sizeof d);
    memset(s, 0, sizeof *s);
    s->context = context;
    s->kv = kv;
    d.path = where[size];
    d.backend = G3_BACKEND_CPU;
    d.no_weights = true;
    d.threads = 1;
    d.session = s;
    d.sessions = 1;
    return d;
}

static bool items_add_up(const g3_plan *p)
{
    uint64_t sum = 0;
    for (int i = 0; i < p->n_items; i++) {
        if (!p->items[i].name || !p->items[i].name[0]) return false;
        for (int k = 0; k < i; k++) if (!strcmp(p->items[i].name, p->items[k].name)) return false;
        if (strncmp(p->items[i].name, "host", 4)) sum += p->items[i].bytes;
    }
    return p->n_items > 5 && sum == p->total && p->total == p->weights + p->kv + p->scratch + p->vision;
}

static int max_context_of(int size) { return sparse_sizes[size].vision ? 131072 : 32768; }

// ---- the files themselves

static int sparse_checkpoints_have_the_published_layout(void)
{
    for (int i = 0; i < 5; i++) {
        const sparse_size *z = &sparse_sizes[i];
        g3_error err;
        CHECK(made[i].n == z->tensors && made[i].shards == z->shards && made[i].linears == z->linears && made[i].tensor_bytes == z->tensor_bytes && made[i].file_bytes == z->file_bytes);
        g3_session_desc s;
        g3_model_desc d = plan_desc(i, &s, 4096, G3_KV_BF16);
        double from = g3__clock();
        g3_model *m = g3_model_open(&d, &err);
        double took = g3__clock() - from;
        if (!m) fprintf(stderr, "    %s: %s\n", z->name, err.text);
        CHECK(m && g3_model_tensor(m, 0, NULL) == z->tensors);
        uint64_t sum = 0;
        int quantised = 0;
        for (int k = 0; k < z->tensors; k++) { g3_tensor t; g3_model_tensor(m, k, &t); sum += t.bytes; quantised += !strcmp(t.format, "nf4"); }
        CHECK(sum == z->tensor_bytes && quantised == z->linears);
        g3_model_info info = g3_model_get_info(m);
        CHECK(info.layers == z->layers && info.dim == z->hidden && info.heads == z->heads && info.kv_heads == z->kv_heads && info.head_dim == z->head_dim && info.vocab == z->vocab && info.window == z->window);
        CHECK(info.vision == (z->vision != 0) && info.max_context == max_context_of(i));
        CHECK(info.weight_bytes == stored_bytes(&made[i], false) + stored_bytes(&made[i], true));
        printf("    %s: %d tensors in %d files opened in %.1f ms\n", z->name, z->tensors, z->shards, 1e3 * took);
        g3_model_close(m);
    }
    return 0;
}

// Parameters of the text side as the published configurations make them; the tower is counted apart.
static int parameters_are_those_of_the_published_models(void)
{
    static const uint64_t text[5] = { 268098176u, 999885952u, 3880263168u, 11766034176u, 27009346304u };
    for (int i = 0; i < 5; i++) {
        g3_error err;
        g3_session_desc s;
        g3_model_desc d = plan_desc(i, &s, 4096, G3_KV_BF16);
        d.no_vision = true;
        g3_model *m = g3_model_open(&d, &err);
        CHECK(m && g3_model_get_info(m).parameters == text[i]);
        g3_model_close(m);
    }
    return 0;
}

// ---- the sums

// https://github.com/gpustack/gguf-parser-go/issues/32 https://github.com/karpathy/llama2.c/pull/153 https://github.com/karpathy/llm.c/pull/700
static int weights_and_kv_equal_the_formula_for_every_size_type_and_context(void)
{
    static const g3_kv kinds[4] = { G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 };
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++)
            for (int c = 0; c < 4; c++) {
                int context = c == 0 ? 4096 : c == 1 ? 8192 : c == 2 ? 32768 : max_context_of(i);
                g3_session_desc s;
                g3_model_desc d = plan_desc(i, &s, context, kinds[k]);
                g3_plan p;
                g3_error err;
                memset(&p, 0x5A, sizeof p);
                CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && err.code == G3_OK);
                bool same = p.weights == stored_bytes(&made[i], false) && p.vision == stored_bytes(&made[i], true) && p.kv == kv_bytes(&sparse_sizes[i], (uint64_t)context, 512, kinds[k]);
                if (!same) { fprintf(stderr, "    %s kv %d context %d: weights %llu vision %llu kv %llu\n", sparse_sizes[i].name, kinds[k], context, (unsigned long long)p.weights, (unsigned long long)p.vision, (unsigned long long)p.kv); return __LINE__; }
                CHECK(items_add_up(&p) && p.backend == G3_BACKEND_CPU && p.scratch > 0 && p.host > 0);
            }
    return 0;
}

// https://github.com/sgl-project/sglang/issues/4895 https://github.com/ggml-org/llama.cpp/pull/18720 https://github.com/jxiw/MambaInLlama/issues/30
// https://github.com/ikawrakow/ik_llama.cpp/issues/1607 https://github.com/google-deepmind/gemma/pull/648
static int sliding_layers_take_rings_and_no_more(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(4, &s, 4096, G3_KV_BF16);
    g3_plan p;
    g3_error err;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.kv == 989855744u);                      // 27B, context 4096, batch 512
    uint64_t sliding = 0;
    for (int i = 0; i < p.n_items; i++) if (strstr(p.items[i].name, "sliding")) sliding += p.items[i].bytes;
    CHECK(sliding == 624 * MIB);                                                             // 52 layers of 1,536 rows
    static const double ring[5][2] = { { 19.5, 391.5 }, { 27, 523 }, { 196, 2676 }, { 576, 8512 }, { 736, 10656 } };   // MiB with window rows only, at 4096 and 131072
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 2; k++) {
            int context = k ? max_context_of(i) : 4096, locals = sparse_sizes[i].layers - sparse_sizes[i].layers / 6;
            if (k && context != 131072) continue;
            uint64_t row = 4u * (uint64_t)sparse_sizes[i].kv_heads * (uint64_t)sparse_sizes[i].head_dim;
            d = plan_desc(i, &s, context, G3_KV_BF16);
            CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.kv == (uint64_t)(ring[i][k] * (double)MIB) + (uint64_t)locals * 512 * row);
        }
    return 0;
}

static int a_batch_lengthens_the_rings(void)
{
    static const int batches[] = { 256, 300, 1024, 4096 };
    for (int i = 0; i < G3__COUNT(batches); i++) {
        g3_session_desc s;
        g3_model_desc d = plan_desc(2, &s, 8192, G3_KV_INT8);
        g3_plan p;
        g3_error err;
        s.batch = batches[i];
        CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.kv == kv_bytes(&sparse_sizes[2], 8192, (uint64_t)batches[i], G3_KV_INT8) && items_add_up(&p));
    }
    return 0;
}

static int a_short_context_takes_no_more_than_its_rows(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(4, &s, 1000, G3_KV_FP8);
    g3_plan p;
    g3_error err;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.kv == kv_bytes(&sparse_sizes[4], 1000, 512, G3_KV_FP8));
    return 0;
}

// https://github.com/sgl-project/sglang/pull/4840
static int without_vision_its_weights_are_not_planned(void)
{
    for (int i = 0; i < 5; i++) {
        g3_session_desc s;
        g3_model_desc d = plan_desc(i, &s, 4096, G3_KV_BF16);
        g3_plan with, without;
        g3_error err;
        CHECK(g3_plan_memory(&d, &with, &err) == G3_OK);
        d.no_vision = true;
        CHECK(g3_plan_memory(&d, &without, &err) == G3_OK && without.vision == 0 && without.weights == with.weights && without.kv == with.kv && without.total <= with.total - with.vision);
        CHECK(sparse_sizes[i].vision ? with.vision == stored_bytes(&made[i], true) && with.vision > 800000000u : with.vision == 0);
    }
    return 0;
}

static int sessions_multiply_cache_and_scratch_but_not_weights(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(3, &s, 8192, G3_KV_BF16);
    g3_plan one, three;
    g3_error err;
    CHECK(g3_plan_memory(&d, &one, &err) == G3_OK);
    d.sessions = 3;
    CHECK(g3_plan_memory(&d, &three, &err) == G3_OK && three.weights == one.weights && three.vision == one.vision && three.kv == 3 * one.kv && items_add_up(&three));
    CHECK(three.scratch > 2 * one.scratch && three.scratch <= 3 * one.scratch);
    return 0;
}

static int defaults_are_a_session_of_8192_tokens_in_bf16(void)
{
    for (int i = 0; i < 5; i++) {
        g3_session_desc s;
        g3_model_desc d = plan_desc(i, &s, 0, G3_KV_DEFAULT);
        g3_plan p, q;
        g3_error err;
        CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.kv == kv_bytes(&sparse_sizes[i], 8192, 512, G3_KV_BF16));
        d.session = NULL;
        d.sessions = 0;
        CHECK(g3_plan_memory(&d, &q, &err) == G3_OK && p.kv == q.kv && p.total == q.total);
    }
    return 0;
}

// ---- limits

// https://github.com/sgl-project/sglang/issues/4895 https://github.com/sgl-project/sglang/issues/4897: the founding case, a 24 GB card with 22.46 GB free.
static int the_27b_fits_where_it_was_said_not_to(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(4, &s, 4096, G3_KV_FP8);
    g3_plan p;
    g3_error err;
    d.memory_limit = 22460000000u;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.fits && p.available == d.memory_limit && p.max_context >= 4096);
    s.kv = G3_KV_BF16;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.fits && p.kv == 989855744u);
    d.memory_limit = 19000000000u;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && !p.fits && p.advice[0]);
    return 0;
}

static int the_limit_is_exact_to_the_byte(void)
{
    for (int i = 0; i < 5; i++) {
        g3_session_desc s;
        g3_model_desc d = plan_desc(i, &s, 4096, G3_KV_BF16);
        g3_plan p, q;
        g3_error err;
        CHECK(g3_plan_memory(&d, &p, &err) == G3_OK);
        d.memory_limit = p.total;
        CHECK(g3_plan_memory(&d, &q, &err) == G3_OK && q.fits && q.total == p.total && q.available == p.total && !q.advice[0]);
        d.memory_limit = p.total - 1;
        CHECK(g3_plan_memory(&d, &q, &err) == G3_OK && !q.fits && q.total == p.total && q.advice[0]);
    }
    return 0;
}

static bool context_fits(g3_model_desc *d, g3_session_desc *s, int context)
{
    g3_plan p;
    g3_error err;
    int was = s->context;
    s->context = context;
    bool ok = g3_plan_memory(d, &p, &err) == G3_OK && p.fits;
    s->context = was;
    return ok;
}

static int the_largest_context_is_accepted_and_one_more_is_not(void)
{
    static const uint64_t spare[] = { 0, 1, 40 * MIB, 300 * MIB, 1234567890u, 40 * GIB };
    static const g3_kv kinds[] = { G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 };
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++)
            for (int l = 0; l < G3__COUNT(spare); l++) {
                g3_session_desc s;
                g3_model_desc d = plan_desc(i, &s, 1, kinds[k]);
                g3_plan p;
                g3_error err;
                CHECK(g3_plan_memory(&d, &p, &err) == G3_OK);                                // one token
                d.memory_limit = p.total + spare[l];
                s.context = 4096;
                CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.max_context >= 1 && p.max_context <= max_context_of(i));
                CHECK(p.fits == (p.max_context >= 4096));
                CHECK(context_fits(&d, &s, p.max_context));
                if (p.max_context < max_context_of(i)) CHECK(!context_fits(&d, &s, p.max_context + 1));
                else CHECK(!l || spare[l] > MIB);
            }
    return 0;
}

static int asking_for_the_largest_context_plans_it(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(4, &s, -1, G3_KV_FP8);
    g3_plan p;
    g3_error err;
    d.memory_limit = 24 * GIB;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.fits && p.max_context > 8192 && p.kv == kv_bytes(&sparse_sizes[4], (uint64_t)p.max_context, 512, G3_KV_FP8));
    d.memory_limit = 64 * GIB;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && p.fits && p.max_context == 131072);
    return 0;
}

// https://github.com/sgl-project/sglang/issues/322 https://github.com/sgl-project/sglang/issues/4330: advice that can be followed.
static int advice_says_by_how_much_and_what_would_do(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(4, &s, 131072, G3_KV_BF16);
    g3_plan p;
    g3_error err;
    char number[32];
    d.memory_limit = 22 * GIB;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && !p.fits && p.max_context > 0);
    snprintf(number, sizeof number, "%d", p.max_context);
    if (!strstr(p.advice, number) || !strstr(p.advice, "context")) fprintf(stderr, "    %s\n", p.advice);
    CHECK(strstr(p.advice, number) && strstr(p.advice, "context"));
    CHECK(strpbrk(p.advice, "0123456789") && memchr(p.advice, 0, sizeof p.advice));
    d = plan_desc(4, &s, 4096, G3_KV_FP8);                                                   // where only the tower's weights are too many
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK);
    d.memory_limit = p.total - p.vision + 1;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && !p.fits && strstr(p.advice, "no_vision"));
    printf("    advice: %s\n", p.advice);
    d = plan_desc(0, &s, 32768, G3_KV_F32);                                                  // where a narrower cache does
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK);
    d.memory_limit = p.total - p.kv / 3;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && !p.fits && strstr(p.advice, "bf16"));
    printf("    advice: %s\n", p.advice);
    d = plan_desc(4, &s, 8192, G3_KV_BF16);
    d.memory_limit = GIB;                                                                    // nothing would do
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && !p.fits && p.max_context == 0 && p.advice[0]);
    printf("    advice: %s\n", p.advice);
    return 0;
}

// What is to be opened is checked before a weight is read; the sentence carries the parts.
static int opening_beyond_the_limit_fails_before_reading(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(4, &s, 4096, G3_KV_BF16);
    g3_plan p;
    g3_error err;
    d.no_weights = false;
    d.memory_limit = 19 * GIB / 2;
    double from = g3__clock();
    g3_model *m = g3_model_open(&d, &err);
    CHECK(!m && (err.code == G3_ERR_MEMORY || err.code == G3_ERR_VRAM) && g3__clock() - from < 10);
    int numbers = 0;
    for (const char *c = err.text; *c; c++) numbers += *c >= '0' && *c <= '9' && (c == err.text || ((c[-1] < '0' || c[-1] > '9') && c[-1] != '.'));
    if (numbers < 4) fprintf(stderr, "    %s\n", err.text);
    CHECK(numbers >= 4);                                                                     // weights, kv, scratch, what is there
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && !p.fits);
    return 0;
}

static int bad_session_settings_are_argument_errors(void)
{
    g3_session_desc s;
    g3_model_desc d = plan_desc(0, &s, 32769, G3_KV_BF16);
    g3_plan p;
    g3_error err;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_ERR_ARGUMENT && strstr(err.text, "32768"));
    s.context = 4096;
    s.batch = -1;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_ERR_ARGUMENT && strstr(err.text, "batch"));
    s.batch = 0;
    s.kv = (g3_kv)77;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_ERR_ARGUMENT && strstr(err.text, "kv"));
    s.kv = G3_KV_DEFAULT;
    d.sessions = -1;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_ERR_ARGUMENT && strstr(err.text, "sessions"));
    d.sessions = 1;
    CHECK(g3_plan_memory(&d, NULL, &err) == G3_ERR_ARGUMENT && g3_plan_memory(NULL, &p, &err) == G3_ERR_ARGUMENT);
    CHECK(g3_plan_memory(&d, &p, NULL) == G3_OK);
    d.sessions = 65536;
    s.context = 32768;
    CHECK(g3_plan_memory(&d, &p, &err) == G3_OK);
    CHECK(!p.fits && items_add_up(&p));
    CHECK(p.kv / 65536 == kv_bytes(&sparse_sizes[0], 32768, 512, G3_KV_BF16));     // 64-bit sums
    return 0;
}

// ---- the plan and what is then taken

static const char *const tiny[] = { "text/tiny/t1-f32-text", "text/tiny/t5-bf16-untied", "text/tiny/t4-bf16-defaults", "bnb/models/text-nf4-mixed-3shards", "bnb/models/text-fp4-plain", "bnb/models/text-nf4-storage-bf16" };

// https://github.com/gpustack/gguf-parser-go/issues/32 https://github.com/ollama/ollama/issues/10041: arenas are exactly what was planned, all else
// stays within `host`, and once a session is open nothing is allocated any more.
static int what_is_taken_is_what_was_planned(void)
{
    static const g3_kv kinds[] = { G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 };
    for (int i = 0; i < G3__COUNT(tiny); i++)
        for (int k = 0; k < 4; k++) {
            tally t;
            g3_error err;
            g3_plan p;
            g3_session_desc s;
            g3_model_desc d;
            g3_session *open[3];
            int ids[40];
            memset(&d, 0, sizeof d);
            memset(&s, 0, sizeof s);
            s.context = 48; s.batch = 20; s.kv = kinds[k]; s.logits_rows = 2;
            d.path = golden(tiny[i]); d.threads = 2; d.session = &s; d.sessions = 3;
            d.allocator = tally_hooks(&t);
            CHECK(g3_plan_memory(&d, &p, &err) == G3_OK && t.live == 0);
            memset(&t, 0, sizeof t);
            g3_model *m = g3_model_open(&d, &err);
            if (!m && err.code == G3_ERR_UNSUPPORTED) SKIP("no forward pass in this build");
            CHECK(m);
            for (int n = 0; n < 3; n++) CHECK((open[n] = g3_session_open(m, &s, &err)) != NULL);
            CHECK(t.live - m->heap.live == p.total && p.weights + p.vision == g3_model_get_info(m).weight_bytes);
            if (t.peak > p.total + p.host) fprintf(stderr, "    %s: peak %llu, planned %llu + %llu\n", tiny[i], (unsigned long long)t.peak, (unsigned long long)p.total, (unsigned long long)p.host);
            CHECK(t.peak <= p.total + p.host);
            uint64_t calls = t.calls;
            for (int n = 0; n < 40; n++) ids[n] = 5 + n;
            for (int n = 0; n < 3; n++) {
                g3_generate_desc g;
                memset(&g, 0, sizeof g);
                g.sampler.greedy = true;
                g.max_tokens = 4;
                g.ignore_stop_ids = true;
                CHECK(g3_add_tokens(open[n], ids, 40, &err) == G3_OK && g3_logits(open[n], &err) && g3_generate(open[n], &g, &err) == 4);
            }
            CHECK(t.calls == calls);
            for (int n = 0; n < 3; n++) g3_session_close(open[n]);
            g3_model_close(m);
            CHECK(t.live == 0 && !t.bad);
        }
    return 0;
}

int main(void)
{
    for (int i = 0; i < 5; i++) {
        strcpy(where[i], temp_dir());
        sparse_init(&made[i], &sparse_sizes[i]);
        if (!sparse_write(&made[i], where[i])) { perror(where[i]); return 1; }
    }
    RUN(sparse_checkpoints_have_the_published_layout);
    RUN(parameters_are_those_of_the_published_models);
    RUN(weights_and_kv_equal_the_formula_for_every_size_type_and_context);
    RUN(sliding_layers_take_rings_and_no_more);
    RUN(a_batch_lengthens_the_rings);
    RUN(a_short_context_takes_no_more_than_its_rows);
    RUN(without_vision_its_weights_are_not_planned);
    RUN(sessions_multiply_cache_and_scratch_but_not_weights);
    RUN(defaults_are_a_session_of_8192_tokens_in_bf16);
    RUN(the_27b_fits_where_it_was_said_not_to);
    RUN(the_limit_is_exact_to_the_byte);
    RUN(the_largest_context_is_accepted_and_one_more_is_not);
    RUN(asking_for_the_largest_context_plans_it);
    RUN(advice_says_by_how_much_and_what_would_do);
    RUN(opening_beyond_the_limit_fails_before_reading);
    RUN(bad_session_settings_are_argument_errors);
    RUN(what_is_taken_is_what_was_planned);
    for (int i = 0; i < 5; i++) { temp_remove(where[i]); sparse_free(&made[i]); }
    (void)box_hash;
    return test_done();
}
