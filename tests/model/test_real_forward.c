// The real 270M against the reference's runs of it (text/270m.json): logits, residual stream and 64 greedy tokens of four prompts,
// the default mode, threads and chunks, and the same model in bitsandbytes NF4.
#include "real.h"

static const char *const prompts[] = {"short", "code", "chat", "passage-700"};
enum { LONGEST = 700, POINTS = 16 };

// What the probe saw of the last row of the last step: the residual stream after the embedding and after every layer.
typedef struct seen { float x[REAL_LAYERS + 1][REAL_DIM]; } seen;

static int see(void *user, const g3_view *v)
{
    memcpy(((seen *)user)->x[v->point == G3_POINT_EMBED ? 0 : v->layer + 1], v->data, sizeof(float) * REAL_DIM);
    return 0;
}

static g3_session *open_seeing(g3_model *m, g3_kv kv, seen *to, g3_error *err)
{
    g3_session_desc d = G3__ZERO;
    d.context = 1024;
    d.kv = kv;
    d.probe.probe_fn = see;
    d.probe.user = to;
    d.probe.points = G3_POINT_EMBED | G3_POINT_LAYER;
    return g3_session_open(m, &d, err);
}

static g3__value of_prompt(const char *mode, const char *prompt, const char *rest)
{
    char path[128];
    snprintf(path, sizeof path, "modes.%s.prompts.%s.%s", mode, prompt, rest);
    return at(reference(), path);
}

// ---- one position's logits

static int logits_match(const float *logits, g3__value want, double *most)
{
    int top[20];
    double value[20], mean = 0, var = 0, low = logits[0];
    CHECK(ints(want, "top_ids", top, 20) == 20 && numbers(want, "top_logits", value, 20) == 20);
    for (int i = 0; i < 20; i++) {
        double d = fabs((double)logits[top[i]] - value[i]);
        *most = G3__MAX(*most, d);
        CHECK(d <= 2e-3);
        for (int k = 0; k < i; k++) CHECK(value[k] - value[i] <= 4e-3 || logits[top[k]] > logits[top[i]]);      // the order too
    }
    int above = 0;                                       // nothing else belongs to the twenty
    for (int i = 0; i < REAL_VOCAB; i++) {
        mean += (double)logits[i] / REAL_VOCAB;
        low = G3__MIN(low, (double)logits[i]);
        if ((double)logits[i] > value[19] + 2e-3) above++;
    }
    for (int i = 0; i < REAL_VOCAB; i++) var += ((double)logits[i] - mean) * ((double)logits[i] - mean) / REAL_VOCAB;
    CHECK(above <= 19);
    CHECK(fabs(mean - number(want, "mean")) <= 2e-3 && fabs(sqrt(var) - number(want, "std")) <= 2e-3);
    CHECK(fabs(low - number(want, "min")) <= 2e-3 && fabs(log_sum_exp(logits, REAL_VOCAB) - number(want, "logsumexp")) <= 2e-3);
    return 0;
}

static double rms(const float *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum / n);
}

// Of the last layer's residual x: the final norm by its formula, x / sqrt(mean x^2 + eps) (1 + w), against its rms and first eight values.
static int final_norm_matches(const float *x, const float *w, g3__value want, double *most)
{
    float y[REAL_DIM];
    double first[8], scale = 1 / sqrt(rms(x, REAL_DIM) * rms(x, REAL_DIM) + 1e-6);
    CHECK(numbers(want, "final_norm_hidden_first8", first, 8) == 8);
    for (int i = 0; i < REAL_DIM; i++) y[i] = (float)((double)x[i] * scale * (1 + (double)w[i]));
    for (int i = 0; i < 8; i++) {
        double d = fabs((double)y[i] - first[i]);
        *most = G3__MAX(*most, d);
        CHECK(d <= 2e-3);
    }
    CHECK(fabs(rms(y, REAL_DIM) - number(want, "final_norm_hidden_rms")) <= 2e-3);
    return 0;
}

// ---- the residual stream: its size grows to the thousands, so the bound is relative to its rms; the file rounds to five decimals

static int residual_matches(const seen *s, g3__value want, double *most)
{
    for (int l = 0; l <= REAL_LAYERS; l++) {
        char path[8];
        double v[5];
        snprintf(path, sizeof path, "%d", l);
        CHECK(numbers(want, path, v, 5) == 5);
        for (int i = 0; i < 5; i++) {
            double d = fabs((i ? (double)s->x[l][i - 1] : rms(s->x[l], REAL_DIM)) - v[i]);
            *most = G3__MAX(*most, d / v[0]);
            CHECK(d <= 1e-4 * v[0] + 1e-5);
        }
    }
    return 0;
}

static int greedy_matches(g3_session *s, g3__value want, g3_error *err)
{
    int ids[64], held[1024], from = g3_session_tokens(s, NULL, 0);
    g3_generate_desc d = G3__ZERO;
    d.sampler.greedy = true;
    d.max_tokens = 64;
    d.ignore_stop_ids = true;
    CHECK(ints(want, "greedy.ids", ids, 64) == 64);
    CHECK(g3_generate(s, &d, err) == 64 && g3_session_tokens(s, held, 1024) == from + 64);
    CHECK(!memcmp(held + from, ids, sizeof ids));
    return 0;
}

static int prompt_matches(g3_model *m, const char *prompt, const float *norm)
{
    static seen stream;
    double logit = 0, hidden = 0, residual = 0;
    g3_error err;
    int ids[LONGEST], n = prompt_ids(prompt, ids, LONGEST), at_token = 0, points = 0;
    g3_session *s = open_seeing(m, G3_KV_F32, &stream, &err);
    CHECK(s && n > 0);
    for (; points < POINTS; points++) {
        char path[32];
        snprintf(path, sizeof path, "logits.%d", points);
        g3__value want = of_prompt("f32_scalebf", prompt, path);
        if (!want.p) break;
        int pos = (int)number(want, "pos");
        CHECK(pos >= at_token && pos < n && g3_add_tokens(s, ids + at_token, pos + 1 - at_token, &err) == G3_OK);
        at_token = pos + 1;
        const float *logits = g3_logits(s, &err);
        CHECK(logits && logits_match(logits, want, &logit) == 0);
        CHECK(final_norm_matches(stream.x[REAL_LAYERS], norm, want, &hidden) == 0);
    }
    CHECK(points >= 5 && at_token == n);
    CHECK(residual_matches(&stream, of_prompt("f32_scalebf", prompt, "residual_last_position"), &residual) == 0);
    CHECK(greedy_matches(s, of_prompt("f32_scalebf", prompt, ""), &err) == 0);
    printf("    %s: %d positions, logits at most %.2g away, final norm %.2g, residual %.2g of its rms; 64 greedy tokens equal\n", prompt, points, logit, hidden, residual);
    g3_session_close(s);
    return 0;
}

static int precise_mode_gives_the_references_numbers(void)
{
    float norm[REAL_DIM];
    g3_error err;
    NEED(dense_270m);
    g3_model *m = open_model(dense_270m, 0, &err);
    CHECK(m && g3_model_get_info(m).vocab == REAL_VOCAB && g3_model_get_info(m).dim == REAL_DIM && g3_model_get_info(m).layers == REAL_LAYERS);
    CHECK(g3_model_read(m, "model.norm.weight", 0, 1, norm, &err) == G3_OK);
    for (int i = 0; i < G3__COUNT(prompts); i++) CHECK(prompt_matches(m, prompts[i], norm) == 0);
    g3_model_close(m);
    return 0;
}

// ---- the default mode may round, but less than the reference does when it runs in bf16

typedef struct gap { double sum, most; int n; } gap;

static void gap_add(gap *g, double d) { g->sum += d * d; g->most = G3__MAX(g->most, fabs(d)); g->n++; }

// Over the ids that both of the reference's runs list: how far ours and its bf16 run are from its float32 run.
static int gaps_at(const float *logits, g3__value f32, g3__value bf16, gap *ours, gap *theirs)
{
    int a[20], b[20];
    double x[20], y[20];
    CHECK(ints(f32, "top_ids", a, 20) == 20 && numbers(f32, "top_logits", x, 20) == 20);
    CHECK(ints(bf16, "top_ids", b, 20) == 20 && numbers(bf16, "top_logits", y, 20) == 20);
    for (int i = 0; i < 20; i++)
        for (int k = 0; k < 20; k++)
            if (a[i] == b[k]) { gap_add(ours, (double)logits[a[i]] - x[i]); gap_add(theirs, y[k] - x[i]); }
    return 0;
}

static int the_default_mode_is_closer_than_the_references_bf16(void)
{
    gap ours = G3__ZERO, theirs = G3__ZERO;
    g3_model_desc d = G3__ZERO;
    g3_error err;
    NEED(dense_270m);
    d.path = dense_270m;
    g3_model *m = g3_model_open(&d, &err);
    CHECK(m);
    for (int i = 0; i < G3__COUNT(prompts); i++) {
        int ids[LONGEST], n = prompt_ids(prompts[i], ids, LONGEST), at_token = 0;
        g3_session *s = g3_session_open(m, NULL, &err);  // all defaults: the cache is bf16 too
        for (int k = 0; k < POINTS; k++) {
            char path[32];
            snprintf(path, sizeof path, "logits.%d", k);
            g3__value f32 = of_prompt("f32_scalebf", prompts[i], path), bf16 = of_prompt("bf16", prompts[i], path);
            if (!f32.p) break;
            int pos = (int)number(f32, "pos");
            CHECK(pos < n && pos == (int)number(bf16, "pos"));
            CHECK(s && g3_add_tokens(s, ids + at_token, pos + 1 - at_token, &err) == G3_OK && g3_logits(s, &err));
            at_token = pos + 1;
            CHECK(gaps_at(g3_logits(s, &err), f32, bf16, &ours, &theirs) == 0);
        }
        g3_session_close(s);
    }
    g3_model_close(m);
    double rms_ours = sqrt(ours.sum / ours.n), rms_theirs = sqrt(theirs.sum / theirs.n);
    printf("    over %d logits: rms %.4f, at most %.4f; the reference in bf16: rms %.4f, at most %.4f\n", ours.n, rms_ours, ours.most, rms_theirs, theirs.most);
    CHECK(ours.n > 400 && rms_ours <= rms_theirs && ours.most <= theirs.most);
    return 0;
}

// ---- the same bits for any number of threads and, in precise mode, any chunks

typedef struct rows { float *x; int n; } rows;

static int keep_rows(void *user, const g3_view *v)
{
    rows *r = (rows *)user;
    if (v->layer != REAL_LAYERS - 1) return 0;
    memcpy(r->x + (size_t)v->pos * REAL_DIM, v->data, sizeof(float) * REAL_DIM * (size_t)v->rows);
    r->n += v->rows;
    return 0;
}

// Every row of the last layer, then the logits of the last position: [LONGEST][REAL_DIM] and [REAL_VOCAB]
static int whole_prompt(int threads, int batch, float *out)
{
    int ids[LONGEST];
    g3_error err;
    g3_session_desc d = G3__ZERO;
    rows r;
    r.x = out;
    r.n = 0;
    d.context = 1024;
    d.batch = batch;
    d.probe.probe_fn = keep_rows;
    d.probe.user = &r;
    d.probe.points = G3_POINT_LAYER;
    d.probe.rows = batch;
    CHECK(prompt_ids("passage-700", ids, LONGEST) == LONGEST);
    g3_model *m = open_model(dense_270m, threads, &err);
    g3_session *s = m ? g3_session_open(m, &d, &err) : NULL;
    CHECK(s && g3_add_tokens(s, ids, LONGEST, &err) == G3_OK && r.n == LONGEST);
    const float *logits = g3_logits(s, &err);
    CHECK(logits);
    memcpy(out + LONGEST * REAL_DIM, logits, sizeof(float) * REAL_VOCAB);
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}

static int threads_and_chunks_leave_every_bit_as_it_is(void)
{
    const size_t n = LONGEST * REAL_DIM + REAL_VOCAB;
    NEED(dense_270m);
    float *a = (float *)malloc(n * sizeof *a), *b = (float *)malloc(n * sizeof *b);
    CHECK(a && b && whole_prompt(2, 512, a) == 0 && whole_prompt(1, 64, b) == 0);
    CHECK(!memcmp(a, b, n * sizeof *a));
    free(a);
    free(b);
    return 0;
}

// ---- NF4

// A checkpoint that is nowhere: the NF4 model's weights as g3_model_read gives them, 4-bit ones as float32 and the others as the bf16
// they are, in a safetensors file that exists while it is read. Running it is running the dense path on the same weights.
typedef struct plain { g3_model *of; char *head; uint64_t head_size, size; g3_tensor tensor[1024]; uint64_t at[1024]; int n; float *row; } plain;

static bool is_companion(const char *name) { const char *p = strstr(name, ".weight"); return p && p[7]; }

static void plain_make(plain *p, g3_model *of)
{
    uint64_t data = 0, size = 8;
    p->of = of;
    p->n = 0;
    p->head = (char *)malloc(1 << 20);
    p->row = (float *)malloc(sizeof(float) * 4096);
    size += (uint64_t)sprintf(p->head + size, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0, all = g3_model_tensor(of, 0, NULL); i < all && p->n < 1024; i++) {
        g3_tensor t;
        g3_model_tensor(of, i, &t);
        if (is_companion(t.name)) continue;
        bool bf16 = !strcmp(t.format, "bf16");
        uint64_t bytes = (uint64_t)t.rows * (uint64_t)t.cols * (bf16 ? 2 : 4);
        size += (uint64_t)sprintf(p->head + size, t.rows == 1 ? ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%.0d%d]" : ",\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%d]", t.name, bf16 ? "BF16" : "F32",
                                  t.rows == 1 ? 0 : t.rows, t.cols);
        size += (uint64_t)sprintf(p->head + size, ",\"data_offsets\":[%llu,%llu]}", (unsigned long long)data, (unsigned long long)(data + bytes));
        p->tensor[p->n] = t;
        p->at[p->n++] = data;
        data += bytes;
    }
    p->head[size++] = '}';
    while (size % 8) p->head[size++] = ' ';
    for (int i = 0; i < 8; i++) p->head[i] = (char)((size - 8) >> (8 * i) & 255);
    p->head_size = size;
    p->size = size + data;
}

// Bytes [from, from + n) of tensor i, row by row.
static bool plain_bytes(plain *p, int i, uint64_t from, unsigned char *dst, uint64_t n)
{
    const g3_tensor *t = &p->tensor[i];
    const bool bf16 = !strcmp(t->format, "bf16");
    const uint64_t width = (uint64_t)t->cols * (bf16 ? 2 : 4);
    for (uint64_t done = 0; done < n; ) {
        uint64_t row = (from + done) / width, skip = (from + done) % width, take = G3__MIN(width - skip, n - done);
        if (t->cols > 4096 || g3_model_read(p->of, t->name, (int)row, 1, p->row, NULL) != G3_OK) return false;
        if (bf16) for (int k = 0; k < t->cols; k++) memcpy((char *)p->row + 2 * k, (char *)&p->row[k] + 2, 2);       // the upper half; here little-endian
        memcpy(dst + done, (char *)p->row + skip, (size_t)take);
        done += take;
    }
    return true;
}

static void *plain_open(void *user, const char *name, uint64_t *size)
{
    plain *p = (plain *)user;
    if (!strcmp(name, "model.safetensors")) { *size = p->size; return p; }
    if (strcmp(name, "config.json")) return NULL;
    char path[256];
    snprintf(path, sizeof path, "%s/config.json", nf4_270m);
    g3__value *file = (g3__value *)malloc(sizeof *file);
    *file = read_json(path);
    *size = file->n;
    return file;
}

static int plain_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    plain *p = (plain *)user;
    unsigned char *to = (unsigned char *)dst;
    if (file != user) { memcpy(dst, ((g3__value *)file)->p + offset, size); return 0; }
    if (offset < p->head_size) {
        uint64_t n = G3__MIN(size, p->head_size - offset);
        memcpy(to, p->head + offset, (size_t)n);
        offset += n; to += n; size -= (size_t)n;
    }
    for (int i = 0; i < p->n && size; i++) {
        uint64_t at_data = offset - p->head_size, end = i + 1 < p->n ? p->at[i + 1] : p->size - p->head_size;
        if (at_data >= end) continue;
        uint64_t n = G3__MIN(size, end - at_data);
        if (!plain_bytes(p, i, at_data - p->at[i], to, n)) return 1;
        offset += n; to += n; size -= (size_t)n;
    }
    return size != 0;
}

static void plain_close(void *user, void *file)
{
    if (file == user) return;
    free(((g3__value *)file)->p);
    free(file);
}

static int last_logits(g3_model *m, const char *prompt, float *out)
{
    int ids[LONGEST], n = prompt_ids(prompt, ids, LONGEST);
    g3_error err;
    g3_session *s = open_session(m, 1024, 512, G3_KV_F32, 1, &err);
    CHECK(s && n > 0 && g3_add_tokens(s, ids, n, &err) == G3_OK && g3_logits(s, &err));
    memcpy(out, g3_logits(s, &err), sizeof(float) * REAL_VOCAB);
    g3_session_close(s);
    return 0;
}

static int nf4_runs_as_its_weights_written_out_in_float32(void)
{
    static plain p;
    g3_error err;
    g3_model_desc d = G3__ZERO;
    double most = 0;
    NEED(nf4_270m);
    g3_model *packed = open_model(nf4_270m, 0, &err);
    CHECK(packed);
    plain_make(&p, packed);
    CHECK(p.n == 236);                                   // 1 + 18 * 13 + 1
    d.precise = true;
    d.files.open_fn = plain_open;
    d.files.read_fn = plain_read;
    d.files.close_fn = plain_close;
    d.files.user = &p;
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "%s\n", err.text);
    CHECK(m && g3_model_get_info(m).parameters == 268098176u && g3_model_get_info(packed).parameters == 268098176u);
    CHECK(g3_model_get_info(m).weight_bytes > 700000000u && g3_model_get_info(packed).weight_bytes < 400000000u);
    float *a = (float *)malloc(sizeof(float) * REAL_VOCAB), *b = (float *)malloc(sizeof(float) * REAL_VOCAB);
    for (int i = 0; i < 3; i++) {
        CHECK(last_logits(packed, prompts[i], a) == 0 && last_logits(m, prompts[i], b) == 0);
        most = G3__MAX(most, distance(a, b, REAL_VOCAB));
    }
    printf("    logits at most %.2g apart\n", most);
    CHECK(most <= 2e-3);
    free(a);
    free(b);
    free(p.head);
    free(p.row);
    g3_model_close(m);
    g3_model_close(packed);
    return 0;
}

// NF4 with blocks of 64 has an error of 0.092 of the rms of normally distributed weights ("QLoRA", Dettmers et al., 2023: its codes are
// the quantiles of that distribution); real matrices are near it.
static int nf4_weights_are_as_far_from_the_dense_ones_as_nf4_is(void)
{
    static const char *const names[] = { "layers.0.self_attn.q_proj", "layers.3.mlp.gate_proj", "layers.9.self_attn.o_proj", "layers.9.mlp.down_proj", "layers.17.mlp.up_proj" };
    static float a[4096 * 64], b[4096 * 64];
    g3_error err;
    NEED(dense_270m);
    NEED(nf4_270m);
    g3_model_desc d = G3__ZERO;
    d.no_weights = true;
    d.path = dense_270m;
    g3_model *dense = g3_model_open(&d, &err);
    d.path = nf4_270m;
    g3_model *nf4 = g3_model_open(&d, &err);
    CHECK(dense && nf4);
    int tried = 0;
    for (int i = 0, n = g3_model_tensor(nf4, 0, NULL); i < n; i++) {
        g3_tensor t;
        g3_model_tensor(nf4, i, &t);
        bool mine = false;
        for (int k = 0; k < G3__COUNT(names); k++) mine = mine || (strstr(t.name, names[k]) && !is_companion(t.name));
        if (!mine || strcmp(t.format, "nf4")) continue;
        int rows = G3__MIN(t.rows, 64);
        double error = 0, size = 0;
        CHECK(t.cols <= 4096 && g3_model_read(dense, t.name, 0, rows, a, &err) == G3_OK && g3_model_read(nf4, t.name, 0, rows, b, &err) == G3_OK);
        for (int k = 0; k < rows * t.cols; k++) { error += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]); size += (double)a[k] * (double)a[k]; }
        printf("    %s: %.4f\n", t.name, sqrt(error / size));
        CHECK(sqrt(error / size) > 0.07 && sqrt(error / size) < 0.12);
        tried++;
    }
    CHECK(tried >= 3);
    g3_model_close(dense);
    g3_model_close(nf4);
    return 0;
}

// What NF4 costs: published perplexities of models of 1 to 70 billion weights rise by 0.03 to 0.12 nats a token, the smallest most
// ("any4", Elhoushi and Johnson, 2025); one of 0.1 billion outside its table may lose three times that. And what it writes, the dense model
// must find likely: a token at random costs 12.5 nats.
static int nf4_still_knows_the_passage_and_writes_what_the_dense_model_would(void)
{
    enum { N = 257, NEW = 32 };
    static int ids[REAL_PASSAGE];
    double nll[N], mean = number(reference(), "modes.f32_scalebf.passage_nll.mean_nll_by_256.0");
    int held[64];
    char text[512];
    g3_error err;
    NEED(dense_270m);
    NEED(nf4_270m);
    CHECK(passage_ids(ids) == REAL_PASSAGE);
    g3_model *m = open_model(nf4_270m, 0, &err), *dense = open_model(dense_270m, 0, &err);
    CHECK(m && dense && passage_nll(m, G3_KV_BF16, ids, N, nll, &err));
    printf("    mean nll of 256 tokens %.4f, dense %.4f\n", mean_of(nll, N - 1), mean);
    CHECK(mean_of(nll, N - 1) < mean + 0.36 && mean_of(nll, N - 1) > mean - 0.05);
    for (int i = 0; i < 3; i++) {
        int n = prompt_ids(prompts[i], held, 64);
        g3_generate_desc d = G3__ZERO;
        g3_session *s = open_session(m, 64, 64, G3_KV_BF16, 1, &err);
        d.sampler.greedy = true;
        d.ignore_stop_ids = true;
        d.max_tokens = NEW;
        CHECK(s && g3_add_tokens(s, held, n, &err) == G3_OK && g3_generate(s, &d, &err) == NEW && g3_session_tokens(s, held, 64) == n + NEW);
        g3_session_close(s);
        CHECK(passage_nll(dense, G3_KV_BF16, held, n + NEW, nll, &err));
        int size = g3_detokenize(m, held + n, NEW, text, sizeof text);
        printf("    %s (%.2f nats a token under the dense model):%.*s\n", prompts[i], mean_of(nll + n - 1, NEW), G3__MIN(size, (int)sizeof text), text);
        CHECK(mean_of(nll + n - 1, NEW) < 2.5);
    }
    g3_model_close(m);
    g3_model_close(dense);
    return 0;
}

int main(void)
{
    RUN(precise_mode_gives_the_references_numbers);
    RUN(the_default_mode_is_closer_than_the_references_bf16);
    RUN(threads_and_chunks_leave_every_bit_as_it_is);
    RUN(nf4_runs_as_its_weights_written_out_in_float32);
    RUN(nf4_weights_are_as_far_from_the_dense_ones_as_nf4_is);
    RUN(nf4_still_knows_the_passage_and_writes_what_the_dense_model_would);
    return test_done();
}
