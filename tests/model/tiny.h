// A tiny checkpoint with a tokenizer, and what tests of sessions and chats need around it: listeners for token_fn, an
// allocator that tells arenas from the rest, and the model written out once more, in double, without any cache.
#ifndef MODEL_TINY_H
#define MODEL_TINY_H
#include "golden.h"
#include "../tools/checkpoint.h"

// ---- the tokenizer: Gemma's scaffold at Gemma's ids, printable ASCII from 4 on, newline runs, all bytes, and words that
// no merge reaches, so that ids of a plain text are known by hand and the model may still say anything

enum { EOS = 1, BOS = 2, SOT = 105, EOT = 106, NL = 107, NL2 = 108, USER = 112, MODEL = 116, BYTES = 200, E_ACUTE = 456, HANGUL = 457, FACE = 458 };
enum { TINY_VOCAB = 512 };
#define CH(c) ((int)(unsigned char)(c) - 0x20 + 4)

static const char *const tiny_specials[] = {"<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"};
static const int tiny_special_ids[] = {0, EOS, BOS, 3, SOT, EOT, 120, 121, 122};

static void tiny_piece(int id, char *out)                // as it stands in the file's JSON
{
    static const char *const fixed[] = {"us", "er", "user", "mo", "de", "mode", "model", "th", "the", "he"};
    for (int i = 0; i < G3__COUNT(tiny_specials); i++) if (tiny_special_ids[i] == id) { strcpy(out, tiny_specials[i]); return; }
    if (id == CH(' ')) strcpy(out, "\xE2\x96\x81");
    else if (id >= CH('!') && id <= CH('~')) sprintf(out, id == CH('"') || id == CH('\\') ? "\\%c" : "%c", id - 4 + 0x20);
    else if (id > CH('~') && id < SOT) sprintf(out, "<unused%d>", id);
    else if (id >= NL && id < 110) strcpy(out, id == NL ? "\\n" : id == NL2 ? "\\n\\n" : "\\n\\n\\n");
    else if (id >= 110 && id < 110 + G3__COUNT(fixed)) strcpy(out, fixed[id - 110]);
    else if (id >= BYTES && id < BYTES + 256) sprintf(out, "<0x%02X>", (unsigned)(id - BYTES));
    else if (id >= E_ACUTE && id <= FACE) strcpy(out, id == E_ACUTE ? "\xC3\xA9" : id == HANGUL ? "\xEA\xB9\xB0" : "\xF0\x9F\x98\x80");
    else sprintf(out, "\xE2\x96\x81w%d", id);
}

// pieces: ids from there on have none; without: a literal left out of the file ("<start_of_turn>"), or NULL.
static void tiny_tokenizer(box *b, int pieces, const char *without)
{
    char *text = (char *)malloc(1 << 16), piece[32];
    size_t n = (size_t)sprintf(text, "{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"},\"added_tokens\":[");
    int added = 0;
    for (int id = 0; id < pieces; id++) {
        bool special = false, newline = id >= NL && id < 110, unused = id > CH('~') && id < SOT;
        tiny_piece(id, piece);
        for (int i = 0; i < G3__COUNT(tiny_specials); i++) special = special || tiny_special_ids[i] == id;
        if ((!special && !newline && !unused) || (without && !strcmp(piece, without))) continue;
        n += (size_t)sprintf(text + n, "%s{\"id\":%d,\"content\":\"%s\",\"special\":%s}", added++ ? "," : "", id, piece, special ? "true" : "false");
    }
    n += (size_t)sprintf(text + n, "],\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"vocab\":{");
    for (int id = 0; id < pieces; id++) {
        tiny_piece(id, piece);
        if (without && !strcmp(piece, without)) strcpy(piece, "left out");
        n += (size_t)sprintf(text + n, "%s\"%s\":%d", id ? "," : "", piece, id);
    }
    sprintf(text + n, "},\"merges\":[[\"u\",\"s\"],[\"e\",\"r\"],[\"us\",\"er\"],[\"m\",\"o\"],[\"d\",\"e\"],[\"mo\",\"de\"],[\"mode\",\"l\"],[\"t\",\"h\"],[\"th\",\"e\"],[\"h\",\"e\"]]}}");
    box_text(b, "tokenizer.json", text);
    free(text);
}

static bool tiny_box(box *b, const char *fixture)        // a tiny checkpoint, with that tokenizer and a chat template
{
    if (!box_load(b, tiny_path(fixture))) return false;
    box_drop(b, "expected.bin");
    box_drop(b, "expected.json");
    tiny_tokenizer(b, TINY_VOCAB, NULL);
    box_text(b, "tokenizer_config.json", "{\"chat_template\":\"any\",\"eos_token\":\"x\",\"eos_token_id\":107}");
    return true;
}

static void widen(ck *c, const char *name, int rows, int cols)
{
    float *w = (float *)malloc(sizeof(float) * (size_t)rows * (size_t)cols);
    uint64_t random = (uint64_t)(unsigned char)name[strlen(name) - 8] + 1;
    size_t dims[2] = {(size_t)rows, (size_t)cols};
    for (size_t i = 0; i < dims[0] * dims[1]; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        w[i] = (float)((double)(int64_t)random / 9223372036854775808.0 / sqrt((double)cols));
    }
    ck_set(ck_find(c, name), "F32", 2, dims, w, sizeof(float) * dims[0] * dims[1]);
    free(w);
}

// Two layers of t1 with a wide feed-forward and a long table, so that even one token's work is shared among threads.
static bool wide_box(box *b)
{
    ck c;
    if (!ck_load(&c, tiny_path("t1-f32-text")) || !ck_config(&c, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 2")) return false;
    if (!ck_config(&c, "\"intermediate_size\": 96", "\"intermediate_size\": 1024") || !ck_config(&c, "\"vocab_size\": 512", "\"vocab_size\": 4096")) return false;
    for (int i = 0; i < 2; i++) {
        char name[3][64];
        static const char *const what[] = {"gate", "up", "down"};
        for (int k = 0; k < 3; k++) { snprintf(name[k], sizeof name[k], "model.layers.%d.mlp.%s_proj.weight", i, what[k]); widen(&c, name[k], k < 2 ? 1024 : 64, k < 2 ? 64 : 1024); }
    }
    widen(&c, "model.embed_tokens.weight", 4096, 64);
    ck_build(&c, b);
    ck_free(&c);
    tiny_tokenizer(b, TINY_VOCAB, NULL);
    return true;
}

static g3_model_desc tiny_desc(box *b, int threads)
{
    g3_model_desc d = box_desc(b);
    d.no_weights = false;
    d.threads = threads;
    d.precise = true;
    d.no_vision = true;
    on_card(&d);
    return d;
}

static g3_model *tiny_open(box *b, int threads)
{
    g3_error err;
    g3_model_desc d = tiny_desc(b, threads);
    g3_model *m = g3_model_open(&d, &err);
    if (!m) fprintf(stderr, "    %s\n", err.text);
    return m;
}

static g3_session *tiny_session(g3_model *m, int context, int batch)     // KV in f32
{
    g3_error err;
    return open_session(m, context, batch, G3_KV_F32, 1, &err);
}

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static void some_ids(int *ids, int n, unsigned seed)     // <bos>, then anything that is no stop id
{
    for (int i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = i ? 4 + (int)((seed >> 8) % 500) : BOS;
        if (ids[i] == EOT) ids[i] = EOT + 1;
    }
}

static int argmax(const float *z, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++) if (z[i] > z[best]) best = i;
    return best;
}

// ---- what token_fn gets

enum { HEARD_MOST = 600 };
typedef struct heard {
    int id[HEARD_MOST], size[HEARD_MOST], n;             // counted tokens, and the bytes that came with each
    float logprob[HEARD_MOST];
    char text[8192];
    int bytes, rest, at_end;                             // all text; bytes of the call with id -1; how many such calls
    int stop_after, cancel_after;                        // counted tokens; 0: never
    g3_session *s;
} heard;

static int hear(void *user, const g3_token *t)
{
    heard *h = (heard *)user;
    if (h->bytes + t->size < (int)sizeof h->text) memcpy(h->text + h->bytes, t->text, (size_t)t->size);
    h->bytes += t->size;
    h->text[h->bytes] = 0;
    if (t->id < 0) { h->at_end++; h->rest = t->size; return 0; }
    h->id[h->n] = t->id;
    h->size[h->n] = t->size;
    h->logprob[h->n++] = t->logprob;
    if (h->cancel_after == h->n) g3_session_cancel(h->s);
    return h->stop_after == h->n;
}

static g3_generate_desc ask(heard *h, int max_tokens, bool greedy)
{
    g3_generate_desc d = G3__ZERO;
    d.max_tokens = max_tokens;
    d.sampler.greedy = greedy;
    d.sampler.seed = 7;
    d.token_fn = hear;
    d.user = h;
    return d;
}

// Steers the sampler: the token at position p becomes want[p - from], whatever the model says; -1 leaves the logits alone.
typedef struct script { const int *want; int n, at; } script;

static int follow(void *user, float *logits, int vocab)
{
    script *s = (script *)user;
    int id = s->at < s->n ? s->want[s->at] : -1;
    s->at++;
    if (id < 0) return 0;
    for (int i = 0; i < vocab; i++) logits[i] = i == id ? 1.0f : -INFINITY;
    return 0;
}

// ---- an allocator that tells arenas from the rest, by what the plan says they take

enum { RECORD_MOST = 256 };
typedef struct record {
    uint64_t arena[8], arenas_live, rest_live, rest_peak;  // arena: sizes that are arenas; 0: none
    int n_arenas, calls, refuse_above_calls;
    unsigned char fill;                                  // what fresh memory holds
    bool bad;
} record;

static bool record_is_arena(const record *r, size_t size)
{
    for (int i = 0; i < 8; i++) if (r->arena[i] && r->arena[i] == size) return true;
    return false;
}

static void *record_alloc(void *user, size_t size, size_t align)
{
    record *r = (record *)user;
    void *p = NULL;
    r->calls++;
    if (posix_memalign(&p, align < sizeof p ? sizeof p : align, size ? size : 1)) return NULL;
    memset(p, r->fill, size);
    if (record_is_arena(r, size)) { r->arenas_live += size; r->n_arenas++; return p; }
    r->rest_live += size;
    if (r->rest_live > r->rest_peak) r->rest_peak = r->rest_live;
    return p;
}

static void record_free(void *user, void *p, size_t size)
{
    record *r = (record *)user;
    uint64_t *live = record_is_arena(r, size) ? &r->arenas_live : &r->rest_live;
    if (!p || size > *live) r->bad = true;
    *live -= size;
    free(p);
}

static g3_allocator record_hooks(record *r)
{
    g3_allocator a;
    a.alloc_fn = record_alloc;
    a.free_fn = record_free;
    a.user = r;
    return a;
}

// ---- t1 once more: all positions at once, no cache, no chunk, in double (Gemma 3 as modeling_gemma3.py of transformers has it)

enum { T1_LAYERS = 4, T1_DIM = 64, T1_FFN = 96, T1_HEADS = 4, T1_KV = 2, T1_HEAD = 16, T1_ROWS = 256 };

typedef struct ref {
    ck c;
    int window, layers;
    bool full[T1_LAYERS];
    g3_kv noise;                                         // K and V are off by what this format may be off; DEFAULT: exact
    uint64_t random;
} ref;

static bool ref_open(ref *r)
{
    memset(r, 0, sizeof *r);
    r->window = 8;
    r->layers = T1_LAYERS;
    r->full[1] = r->full[3] = true;
    return ck_load(&r->c, tiny_path("t1-f32-text"));
}

static const float *ref_weight(ref *r, int layer, const char *name)
{
    char full[128];
    if (layer < 0) snprintf(full, sizeof full, "model.%s.weight", name);
    else snprintf(full, sizeof full, "model.layers.%d.%s.weight", layer, name);
    ck_tensor *t = ck_find(&r->c, full);
    if (!t) { fprintf(stderr, "no tensor %s\n", full); exit(1); }
    return (const float *)(const void *)t->data;
}

static void ref_norm(double *y, const double *x, const float *w, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(sum / n + 1e-6) * (1.0 + (double)w[i]);
}

static void ref_linear(double *y, const double *x, const float *w, int rows, int cols)
{
    for (int r = 0; r < rows; r++) {
        y[r] = 0;
        for (int c = 0; c < cols; c++) y[r] += (double)w[r * cols + c] * x[c];
    }
}

static void ref_rope(double *x, int pos, double theta)
{
    for (int j = 0; j < T1_HEAD / 2; j++) {
        double a = pos * pow(theta, -2.0 * j / T1_HEAD), u = x[j], v = x[j + T1_HEAD / 2];
        x[j] = u * cos(a) - v * sin(a);
        x[j + T1_HEAD / 2] = v * cos(a) + u * sin(a);
    }
}

// The rounding of a stored row, as noise of its largest size: bf16 keeps 8 bits and e4m3 keeps 4, the last one rounded, so
// a number moves by up to 2^-8 or 2^-4 of itself; int8 has steps of a 127th of the row's largest, and moves by half of one.
static void ref_store(ref *r, double *x)
{
    double most = 0;
    for (int i = 0; i < T1_HEAD; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    for (int i = 0; i < T1_HEAD; i++) {
        r->random = r->random * 6364136223846793005u + 1442695040888963407u;
        double u = (double)(int64_t)r->random / 9223372036854775808.0;
        if (r->noise == G3_KV_BF16) x[i] *= 1 + u / 256;
        else if (r->noise == G3_KV_FP8) x[i] *= 1 + u / 16;
        else if (r->noise == G3_KV_INT8) x[i] += u * most / 254;
    }
}

static void ref_attend(ref *r, int layer, double (*q)[T1_HEADS * T1_HEAD], double (*k)[T1_KV * T1_HEAD], double (*v)[T1_KV * T1_HEAD], int pos, double *out)
{
    for (int h = 0; h < T1_HEADS; h++) {
        int low = r->full[layer] || pos < r->window ? 0 : pos - r->window + 1, g = h / (T1_HEADS / T1_KV) * T1_HEAD;
        double w[T1_ROWS], most = -1e300, sum = 0;
        for (int j = low; j <= pos; j++) {
            w[j] = 0;
            for (int i = 0; i < T1_HEAD; i++) w[j] += q[pos][h * T1_HEAD + i] * k[j][g + i];
            w[j] /= sqrt(24.0);
            if (w[j] > most) most = w[j];
        }
        for (int j = low; j <= pos; j++) sum += w[j] = exp(w[j] - most);
        for (int i = 0; i < T1_HEAD; i++) {
            out[h * T1_HEAD + i] = 0;
            for (int j = low; j <= pos; j++) out[h * T1_HEAD + i] += w[j] / sum * v[j][g + i];
        }
    }
}

static void ref_layer(ref *r, int l, double (*x)[T1_DIM], int n)
{
    static double q[T1_ROWS][T1_HEADS * T1_HEAD], k[T1_ROWS][T1_KV * T1_HEAD], v[T1_ROWS][T1_KV * T1_HEAD];
    double h[T1_DIM], y[T1_DIM], att[T1_HEADS * T1_HEAD], gate[T1_FFN], up[T1_FFN];
    double theta = r->full[l] ? 1e6 : 1e4;
    for (int p = 0; p < n; p++) {
        ref_norm(h, x[p], ref_weight(r, l, "input_layernorm"), T1_DIM);
        ref_linear(q[p], h, ref_weight(r, l, "self_attn.q_proj"), T1_HEADS * T1_HEAD, T1_DIM);
        ref_linear(k[p], h, ref_weight(r, l, "self_attn.k_proj"), T1_KV * T1_HEAD, T1_DIM);
        ref_linear(v[p], h, ref_weight(r, l, "self_attn.v_proj"), T1_KV * T1_HEAD, T1_DIM);
        for (int i = 0; i < T1_HEADS; i++) { ref_norm(q[p] + i * T1_HEAD, q[p] + i * T1_HEAD, ref_weight(r, l, "self_attn.q_norm"), T1_HEAD); ref_rope(q[p] + i * T1_HEAD, p, theta); }
        for (int i = 0; i < T1_KV; i++) {
            ref_norm(k[p] + i * T1_HEAD, k[p] + i * T1_HEAD, ref_weight(r, l, "self_attn.k_norm"), T1_HEAD);
            ref_rope(k[p] + i * T1_HEAD, p, theta);
            ref_store(r, k[p] + i * T1_HEAD);
            ref_store(r, v[p] + i * T1_HEAD);
        }
    }
    for (int p = 0; p < n; p++) {
        ref_attend(r, l, q, k, v, p, att);
        ref_linear(h, att, ref_weight(r, l, "self_attn.o_proj"), T1_DIM, T1_HEADS * T1_HEAD);
        ref_norm(y, h, ref_weight(r, l, "post_attention_layernorm"), T1_DIM);
        for (int i = 0; i < T1_DIM; i++) x[p][i] += y[i];
        ref_norm(h, x[p], ref_weight(r, l, "pre_feedforward_layernorm"), T1_DIM);
        ref_linear(gate, h, ref_weight(r, l, "mlp.gate_proj"), T1_FFN, T1_DIM);
        ref_linear(up, h, ref_weight(r, l, "mlp.up_proj"), T1_FFN, T1_DIM);
        for (int i = 0; i < T1_FFN; i++) gate[i] = 0.5 * gate[i] * (1 + tanh(0.79788456080286536 * (gate[i] + 0.044715 * gate[i] * gate[i] * gate[i]))) * up[i];
        ref_linear(h, gate, ref_weight(r, l, "mlp.down_proj"), T1_DIM, T1_FFN);
        ref_norm(y, h, ref_weight(r, l, "post_feedforward_layernorm"), T1_DIM);
        for (int i = 0; i < T1_DIM; i++) x[p][i] += y[i];
    }
}

static void ref_logits(ref *r, const int *ids, int n, float *logits)         // [n][TINY_VOCAB]
{
    static double x[T1_ROWS][T1_DIM];
    double h[T1_DIM], z[TINY_VOCAB];
    const float *E = ref_weight(r, -1, "embed_tokens");
    r->random = 1;
    for (int p = 0; p < n; p++)
        for (int i = 0; i < T1_DIM; i++) x[p][i] = 8.0 * (double)E[ids[p] * T1_DIM + i];
    for (int l = 0; l < r->layers; l++) ref_layer(r, l, x, n);
    for (int p = 0; p < n; p++) {
        ref_norm(h, x[p], ref_weight(r, -1, "norm"), T1_DIM);
        ref_linear(z, h, E, TINY_VOCAB, T1_DIM);
        for (int i = 0; i < TINY_VOCAB; i++) logits[p * TINY_VOCAB + i] = (float)z[i];
    }
}

static G3__UNUSED void tiny_quiet(void)                  // for programs that leave some of this unused
{
    (void)st_state; (void)st_f32; (void)st_count; (void)st_find; (void)wide_box; (void)tiny_box; (void)tiny_open; (void)tiny_session; (void)starts; (void)some_ids; (void)argmax; (void)ask; (void)follow; (void)record_hooks;
    (void)ref_open; (void)ref_logits; (void)box_hash; (void)expected_array; (void)distance; (void)open_model; (void)tiny_models; (void)expected_open; (void)expected_close;
}
#endif
