// The GGUF importer: every block type against gguf's own decoding, a whole synthetic file imported and compared with an
// independent computation, and hostile files, each of which must be refused with a sentence and leave the target alone.
#define IMPORT_GGUF_NO_MAIN
#include "../../examples/import_gguf.c"
#include "../test.h"
#include "../tools/st.h"
#include <signal.h>
#include <sys/resource.h>

// ---- blocks

static int check_blocks(const st_file *f, const char *type)
{
    const st_tensor *blocks = st_find(f, "%s.blocks", type), *want = st_find(f, "%s.f32", type);
    const block_type *b = NULL;
    float y[256];
    for (int i = 0; i < G3__COUNT(block_types); i++)
        if (!strcmp(block_types[i].name, type)) b = &block_types[i];
    CHECK(b && b->decode && blocks && want && blocks->dims[1] == b->bytes && want->dims[1] == b->elements);
    for (size_t i = 0; i < blocks->dims[0]; i++) {
        b->decode(blocks->data + i * b->bytes, y);
        CHECK(!memcmp(y, want->data + i * b->elements * 4, b->elements * 4));
    }
    return 0;
}

static int blocks_decode_as_gguf_does(void)
{
    static const char *const types[] = { "Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K" };
    st_file f;
    CHECK(st_open(&f, golden("bnb/formats/gguf_blocks.safetensors")));
    for (int i = 0; i < 5; i++) {
        int line = check_blocks(&f, types[i]);
        if (line) { fprintf(stderr, "%s differs\n", types[i]); return line; }
    }
    st_close(&f);
    return 0;
}

static int plain_types_decode(void)
{
    static const unsigned char f32[4] = { 0, 0, 0x40, 0xc0 }, f16[2] = { 0, 0x3e }, bf16[2] = { 0x80, 0x3f }, tiny[2] = { 1, 0 };
    float y;
    block_f32(f32, &y);   CHECK(y == -3.0f);
    block_f16(f16, &y);   CHECK(y == 1.5f);
    block_f16(tiny, &y);  CHECK(y == ldexpf(1, -24));
    block_bf16(bf16, &y); CHECK(y == 1.0f);
    return 0;
}

// ---- a GGUF in memory

typedef struct bytes { unsigned char *p; size_t n, cap; } bytes;

static void put(bytes *b, const void *p, size_t n)
{
    while (b->cap < b->n + n + 1) { b->cap = 2 * b->cap + 4096; b->p = (unsigned char *)realloc(b->p, b->cap); }
    if (p) memcpy(b->p + b->n, p, n);
    else memset(b->p + b->n, 0, n);
    b->n += n;
}

static void put_number(bytes *b, unsigned long long v, int size)
{
    for (int i = 0; i < size; i++) { unsigned char c = (unsigned char)(v >> 8 * i); put(b, &c, 1); }
}

static void put_text(bytes *b, const char *s) { put_number(b, strlen(s), 8); put(b, s, strlen(s)); }
static void put_f32(bytes *b, float v) { uint32_t u; memcpy(&u, &v, 4); put_number(b, u, 4); }

// What a file is to be like. Zeros make a small sound one; `odd` names one thing that is wrong or unusual.
typedef struct recipe { unsigned layers, dim, ffn, heads, kv_heads, head_dim; const char *odd; } recipe;

static const recipe small = { 2, 32, 64, 2, 1, 32, NULL };
static const recipe broad = { 6, 256, 512, 4, 2, 64, NULL };     // rows for Q4_K and Q6_K; the last layer is global

static bool odd(const recipe *r, const char *what) { return r->odd && !strcmp(r->odd, what); }

typedef struct maker { const recipe *r; bytes keys, infos, data; unsigned n_keys, n_tensors; uint32_t seed; } maker;

static uint32_t draw(uint32_t *seed) { *seed = *seed * 1664525u + 1013904223u; return *seed >> 8; }

static void key(maker *m, const char *name, unsigned type) { m->n_keys++; put_text(&m->keys, name); put_number(&m->keys, type, 4); }
static void key_u32(maker *m, const char *name, unsigned v) { key(m, name, U32); put_number(&m->keys, v, 4); }
static void key_f32(maker *m, const char *name, float v) { key(m, name, F32); put_f32(&m->keys, v); }
static void key_string(maker *m, const char *name, const char *v) { key(m, name, STRING); put_text(&m->keys, v); }
static void key_list(maker *m, const char *name, unsigned element, unsigned long long n) { key(m, name, ARRAY); put_number(&m->keys, element, 4); put_number(&m->keys, n, 8); }

// The vocabulary of the tests: 0..7 control, 8 and 9 runs of newlines, 10 and 11 of spaces, 12..267 bytes, the rest below in order.
static const char *const learned[] = { "\xE2\x96\x81" "ab", "aba", "ab", "ba", "\xC3\xA9\xC3\xA9", "\xC3\xA9\xC3\xA9" "b", "\"\\", "a\x01\x7f",
                                       "a", "b", "\xC3\xA9", "\"", "\\", "\x01", "\x7f", "\xE2\x96\x81", "\n", "\t" };
enum { FIRST = 268, PIECES = FIRST + G3__COUNT(learned) };

static const char *piece_text(const recipe *r, unsigned i, unsigned *type, char *buffer)
{
    static const char *const head[] = { "<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]", "<start_of_turn>", "<end_of_turn>", "\n\n", "\n\n\n", "  ", "   " };
    *type = i < 8 ? (i == 5 ? USER : CONTROL) : i < 12 ? USER : i < FIRST ? BYTE_PIECE : NORMAL;
    if (i >= PIECES) {                                           // only with "padded"
        *type = i == PIECES ? CONTROL : UNUSED;
        snprintf(buffer, 32, "[PAD%u]", i);
        return i == PIECES ? "<image_soft_token>" : buffer;
    }
    if (i == FIRST + 3 && odd(r, "duplicate piece")) return "ab";
    if (i == FIRST + 3 && odd(r, "piece not utf-8")) return "b\xff";
    if (i == FIRST + 3 && odd(r, "long piece")) { memset(buffer, 'z', 400); buffer[400] = 0; return buffer; }
    if (i < 12) return head[i];
    if (i >= FIRST) return learned[i - FIRST];
    snprintf(buffer, 32, "<0x%02X>", i - 12);
    return buffer;
}

static unsigned piece_count(const recipe *r) { return PIECES + (odd(r, "padded") ? 3 : 0); }

static void put_tokenizer(maker *m)
{
    const recipe *r = m->r;
    unsigned n = piece_count(r), type;
    char buffer[512];
    key_string(m, "tokenizer.ggml.model", odd(r, "gpt2") ? "gpt2" : "llama");
    key_list(m, "tokenizer.ggml.tokens", odd(r, "tokens are arrays") ? ARRAY : STRING, odd(r, "endless tokens") ? 1ull << 63 : n);
    for (unsigned i = 0; i < n; i++) {
        const char *s = piece_text(r, i, &type, buffer);
        if (i == 100 && odd(r, "endless piece")) put_number(&m->keys, ~0ull - 7, 8);
        else put_text(&m->keys, s);
    }
    key_list(m, "tokenizer.ggml.scores", F32, n - (odd(r, "few scores") ? 1 : 0));
    for (unsigned i = 0; i < n - (odd(r, "few scores") ? 1 : 0); i++) {
        piece_text(r, i, &type, buffer);
        put_f32(&m->keys, odd(r, "score nan") && i == 300 % n ? NAN : type == NORMAL ? -(float)(i - FIRST) : -1000.0f);
    }
    key_list(m, "tokenizer.ggml.token_type", odd(r, "float types") ? F32 : I32, n);
    for (unsigned i = 0; i < n; i++) {
        piece_text(r, i, &type, buffer);
        put_number(&m->keys, i == 9 && odd(r, "piece type 9") ? 9 : type, 4);
    }
    key_u32(m, "tokenizer.ggml.bos_token_id", odd(r, "far bos") ? n : 2);
    key_u32(m, "tokenizer.ggml.eos_token_id", 1);
    key_u32(m, "tokenizer.ggml.unknown_token_id", 3);
    key_u32(m, "tokenizer.ggml.padding_token_id", 0);
    if (odd(r, "chat")) key_string(m, "tokenizer.chat_template", "{{ bos_token }}\n\"quoted\"\t\\n\xC3\xA9");
}

static void put_keys(maker *m)
{
    const recipe *r = m->r;
    key_string(m, "general.architecture", odd(r, "llama") ? "llama" : "gemma3");
    if (odd(r, "alignment 0")) key_u32(m, "general.alignment", 0);
    if (odd(r, "alignment 24")) key_u32(m, "general.alignment", 24);
    if (odd(r, "alignment 2^31")) key_u32(m, "general.alignment", 1u << 31);
    if (odd(r, "alignment 128")) key_u32(m, "general.alignment", 128);
    if (odd(r, "float layers")) key_f32(m, "gemma3.block_count", (float)r->layers);
    else if (!odd(r, "no layers")) key_u32(m, "gemma3.block_count", odd(r, "endless layers") ? ~0u : odd(r, "more layers") ? 3 : r->layers);
    key_u32(m, "gemma3.context_length", 4096);
    key_u32(m, "gemma3.embedding_length", r->dim);
    key_u32(m, "gemma3.feed_forward_length", r->ffn);
    key_u32(m, "gemma3.attention.head_count", odd(r, "no heads") ? 0 : r->heads);
    key_u32(m, "gemma3.attention.head_count_kv", r->kv_heads);
    key_u32(m, "gemma3.attention.key_length", r->head_dim);
    key_u32(m, "gemma3.attention.sliding_window", 512);
    key_f32(m, "gemma3.attention.layer_norm_rms_epsilon", odd(r, "eps nan") ? NAN : 1e-6f);
    key_f32(m, "gemma3.rope.freq_base", odd(r, "odd theta") ? 123456.7f : 1e6f);
    if (odd(r, "rope linear")) { key_string(m, "gemma3.rope.scaling.type", "linear"); key_f32(m, "gemma3.rope.scaling.factor", 8); }
    if (odd(r, "rope yarn")) key_string(m, "gemma3.rope.scaling.type", "yarn");
    if (odd(r, "duplicate key")) key_u32(m, "gemma3.context_length", 4096);
    if (odd(r, "array of arrays")) { key_list(m, "some.list", ARRAY, 1); put_number(&m->keys, U8, 4); put_number(&m->keys, 0, 8); }
    if (odd(r, "endless array")) key_list(m, "some.list", U64, 1ull << 61);
    if (odd(r, "endless string")) { key(m, "some.text", STRING); put_number(&m->keys, ~0ull, 8); }
    if (odd(r, "unknown value")) { key(m, "some.value", 13); put_number(&m->keys, 0, 8); }
    if (odd(r, "half true")) { key(m, "some.flag", FLAG); put_number(&m->keys, 2, 1); }
    if (odd(r, "long key")) { m->n_keys++; put_number(&m->keys, 70000, 8); put(&m->keys, NULL, 70000); put_number(&m->keys, FLAG, 4); put_number(&m->keys, 1, 1); }
    if (odd(r, "all types"))
        for (unsigned t = 0; t < VALUE_TYPES; t++) {
            char name[32];
            snprintf(name, sizeof name, "some.%u", t);
            if (t == STRING) key_string(m, name, "text");
            else if (t == ARRAY) { key_list(m, name, I16, 500); put(&m->keys, NULL, 1000); }
            else { key(m, name, t); put(&m->keys, NULL, value_size[t]); }
        }
    put_tokenizer(m);
}

// Bytes of random blocks whose scales are float16 numbers of a few hundredths.
static void put_blocks(maker *m, const block_type *b, uint64_t elements)
{
    for (uint64_t i = 0; i < elements / b->elements; i++) {
        size_t at = m->data.n;
        put(&m->data, NULL, b->bytes);
        unsigned char *p = m->data.p + at;
        for (uint32_t k = 0; k < b->bytes; k++) p[k] = (unsigned char)draw(&m->seed);
        unsigned scale = 0x2000 + (draw(&m->seed) & 0x7ff);      // 2^-7 to 2^-5
        if (b->id == 0) { uint32_t u = 0x3c000000u | (draw(&m->seed) & 0x3ffffff); memcpy(p, &u, 4); }           // little-endian hosts only
        else if (b->id == 30) p[1] = 0x3c;
        else {
            unsigned char *d = b->id == 14 ? p + 208 : p;
            d[0] = (unsigned char)scale; d[1] = (unsigned char)(scale >> 8);
            if (b->id == 12) { p[2] = (unsigned char)draw(&m->seed); p[3] = 0x1c; }
        }
    }
}

static void tensor(maker *m, const char *name, unsigned type, uint64_t cols, uint64_t rows)      // rows 0: a vector
{
    const recipe *r = m->r;
    const block_type *b = find_block_type(type);
    bool here = !strcmp(name, "blk.1.ffn_up.weight");
    uint64_t align = odd(r, "alignment 128") ? 128 : 32;
    while (m->data.n % align) put(&m->data, NULL, 1);
    m->n_tensors++;
    put_text(&m->infos, here && odd(r, "duplicate tensor") ? "blk.1.ffn_gate.weight" : here && odd(r, "stranger") ? "blk.1.ffn_up.bias" : name);
    if (here && odd(r, "rank 5")) put_number(&m->infos, 5, 4);
    else if (here && odd(r, "rank 0")) put_number(&m->infos, 0, 4);
    else put_number(&m->infos, rows ? 2 : 1, 4);
    if (here && odd(r, "size 2^64")) cols = 1ull << 33, put_number(&m->infos, cols, 8), put_number(&m->infos, 1ull << 31, 8);
    else if (here && odd(r, "bytes 2^64")) put_number(&m->infos, 1ull << 60, 8), put_number(&m->infos, 8, 8);
    else if (here && odd(r, "no rows")) put_number(&m->infos, cols, 8), put_number(&m->infos, 0, 8);
    else if (here && odd(r, "half block")) put_number(&m->infos, cols / 2, 8), put_number(&m->infos, rows * 2, 8);
    else if (here && odd(r, "turned")) put_number(&m->infos, rows, 8), put_number(&m->infos, cols, 8);
    else { put_number(&m->infos, cols, 8); if (rows) put_number(&m->infos, rows, 8); }
    put_number(&m->infos, here && odd(r, "unknown type") ? 999 : here && odd(r, "IQ4_XS") ? 23 : type, 4);
    put_number(&m->infos, here && odd(r, "offset odd") ? m->data.n + 1 : here && odd(r, "offset far") ? 1ull << 40 : here && odd(r, "offset 2^64") ? ~0ull - 31
                        : here && odd(r, "overlap") ? 0 : m->data.n, 8);
    if (b && cols < 1u << 20) put_blocks(m, b, cols * (rows ? rows : 1));
    if (here && odd(r, "weight nan")) { m->data.p[m->data.n - 34 * 3] = 0; m->data.p[m->data.n - 34 * 3 + 1] = 0x7e; }       // scale of the third Q8_0 block from the end
}

static void put_tensors(maker *m)
{
    const recipe *r = m->r;
    bool k = r->dim % 256 == 0;
    unsigned q = r->heads * r->head_dim, kv = r->kv_heads * r->head_dim;
    tensor(m, "token_embd.weight", 8, r->dim, piece_count(r));
    for (unsigned i = 0; i < r->layers; i++) {
        struct { const char *name; unsigned type; uint64_t cols, rows; } t[] = {
            { "attn_norm", 0, r->dim, 0 }, { "attn_q", k ? 12u : 6u, r->dim, q }, { "attn_k", k ? 14u : 2u, r->dim, kv }, { "attn_v", 8, r->dim, kv },
            { "attn_output", k ? 14u : 1u, q, r->dim }, { "attn_q_norm", 0, r->head_dim, 0 }, { "attn_k_norm", 0, r->head_dim, 0 },
            { "post_attention_norm", 0, r->dim, 0 }, { "ffn_norm", 1, r->dim, 0 }, { "ffn_gate", k ? 2u : 30u, r->dim, r->ffn }, { "ffn_up", 8, r->dim, r->ffn },
            { "ffn_down", k ? 6u : 0u, r->ffn, r->dim }, { "post_ffw_norm", 30, r->dim, 0 } };
        for (int j = 0; j < 13; j++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", i, t[j].name);
            if (!(odd(r, "missing") && i == 1 && j == 11)) tensor(m, name, t[j].type, t[j].cols, t[j].rows);
        }
    }
    tensor(m, "output_norm.weight", 0, r->dim, 0);
    if (odd(r, "one too many")) tensor(m, "rope_freqs.weight", 0, r->head_dim / 2, 0);
    if (odd(r, "untied")) tensor(m, "output.weight", 1, r->dim, piece_count(r));
}

static bytes make(const recipe *r)                               // the caller frees .p
{
    maker m;
    bytes f = { NULL, 0, 0 };
    memset(&m, 0, sizeof m);
    m.r = r;
    m.seed = 12345;
    put_keys(&m);
    put_tensors(&m);
    put(&f, odd(r, "magic") ? "GGUT" : "GGUF", 4);
    put_number(&f, odd(r, "version 1") ? 1 : odd(r, "big-endian") ? 3u << 24 : odd(r, "version 2") ? 2 : 3, 4);
    put_number(&f, odd(r, "endless tensors") ? 1ull << 63 : odd(r, "one tensor more") ? m.n_tensors + 1 : m.n_tensors, 8);
    put_number(&f, odd(r, "endless keys") ? 1ull << 63 : m.n_keys, 8);
    put(&f, m.keys.p, m.keys.n);
    put(&f, m.infos.p, m.infos.n);
    while (f.n % (odd(r, "alignment 128") ? 128 : 32)) put(&f, NULL, 1);
    put(&f, m.data.p, m.data.n);
    free(m.keys.p);
    free(m.infos.p);
    free(m.data.p);
    return f;
}

// ---- places

static char root[64];

static const char *in_root(const char *name)                     // valid to the end of the program
{
    static char path[64][128];
    char p[128];
    int i = 0;
    snprintf(p, sizeof p, "%s/%s", root, name);
    while (i < 63 && path[i][0] && strcmp(path[i], p)) i++;
    return strcpy(path[i], p);
}

static bool write_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(p, 1, n, f) == n;
    return f && !fclose(f) && ok;
}

static bool exists(const char *path) { struct stat st; return !stat(path, &st); }

static void clear(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) remove(path);
    }
    closedir(d);
    rmdir(dir);
}

static bool import_recipe(const recipe *r, const char *out, bool force, g3_error *err)
{
    bytes f = make(r);
    bool ok = write_file(in_root("in.gguf"), f.p, f.n) && import_gguf(in_root("in.gguf"), out, force, err);
    free(f.p);
    return ok;
}

static char *text_of(const char *dir, const char *name)
{
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return (char *)st_read(path, &n);
}

// ---- the whole import

// Element e of a tensor whose data begin at p, by the formulas of the format description, one element at a time.
static float half_at(const unsigned char *p)
{
    int e = p[1] >> 2 & 31, m = (p[1] & 3) << 8 | p[0];
    float v = e == 0 ? ldexpf((float)m, -24) : ldexpf((float)(1024 + m), e - 25);
    return p[1] & 128 ? -v : v;
}

static float element(unsigned type, const unsigned char *p, size_t e)
{
    uint32_t u = 0;
    float f;
    if (type == 0) { memcpy(&f, p + 4 * e, 4); return f; }
    if (type == 1) return half_at(p + 2 * e);
    if (type == 30) { u = (uint32_t)p[2 * e] << 16 | (uint32_t)p[2 * e + 1] << 24; memcpy(&f, &u, 4); return f; }
    if (type == 8) { p += e / 32 * 34; return half_at(p) * (float)(signed char)p[2 + e % 32]; }
    if (type == 2) { p += e / 32 * 18; e %= 32; return half_at(p) * (float)((p[2 + e % 16] >> (e < 16 ? 0 : 4) & 15) - 8); }
    if (type == 6) { p += e / 32 * 22; e %= 32; int five = p[2 + e / 8] >> (e % 8) & 1; return half_at(p) * (float)(((p[6 + e % 16] >> (e < 16 ? 0 : 4) & 15) | five << 4) - 16); }
    if (type == 12) {
        p += e / 256 * 144;
        e %= 256;
        size_t j = e / 32;
        const unsigned char *sc = p + 4;
        unsigned s = j < 4 ? sc[j] & 63u : (sc[j + 4] & 15u) | (unsigned)(sc[j - 4] >> 6) << 4, n = j < 4 ? sc[j + 4] & 63u : (unsigned)(sc[j + 4] >> 4) | (unsigned)(sc[j] >> 6) << 4;
        unsigned q = p[16 + 32 * (e / 64) + e % 32];
        volatile float a = half_at(p) * (float)s, b = half_at(p + 2) * (float)n, c = a * (float)(j & 1 ? q >> 4 : q & 15);
        return c - b;
    }
    p += e / 256 * 210;
    e %= 256;
    size_t h = e / 128, k = e % 128;
    int q = (p[64 * h + k % 64] >> 4 * (k / 64) & 15) | (p[128 + 32 * h + k % 32] >> 2 * (k / 32) & 3) << 4;
    volatile float a = half_at(p + 208) * (float)(signed char)p[192 + e / 16];
    return a * (float)(q - 32);
}

static unsigned to_bf16(float f)                                 // nearest, ties to even, of a finite number
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static int check_tensor(const st_file *st, const gguf_tensor *t, const unsigned char *file, const char *name)
{
    const st_tensor *s = st_find(st, "%s", name);
    bool norm = strstr(name, "norm") != NULL;                    // all of them, and nothing else, have it in their name
    CHECK(s && !strcmp(s->dtype, "BF16") && st_count(s) == t->elements && s->dims[s->rank - 1] == t->dims[0] && (unsigned)s->rank == t->rank);
    for (size_t e = 0; e < t->elements; e++)
        CHECK((unsigned)(s->data[2 * e] | s->data[2 * e + 1] << 8) == to_bf16(element(t->type->id, file + t->at, e) - (norm ? 1.0f : 0.0f)));
    return 0;
}

static int check_weights(const recipe *r, const char *out)
{
    static const char *const pairs[13][2] = {
        { "attn_norm", "input_layernorm" }, { "attn_q", "self_attn.q_proj" }, { "attn_k", "self_attn.k_proj" }, { "attn_v", "self_attn.v_proj" },
        { "attn_output", "self_attn.o_proj" }, { "attn_q_norm", "self_attn.q_norm" }, { "attn_k_norm", "self_attn.k_norm" },
        { "post_attention_norm", "post_attention_layernorm" }, { "ffn_norm", "pre_feedforward_layernorm" }, { "ffn_gate", "mlp.gate_proj" },
        { "ffn_up", "mlp.up_proj" }, { "ffn_down", "mlp.down_proj" }, { "post_ffw_norm", "post_feedforward_layernorm" } };
    g3_error err = G3__ZERO;
    g3__heap heap;
    g3__zone zone;
    gguf g;
    st_file st;
    char path[256];
    bytes file = make(r);
    memset(&g, 0, sizeof g);
    g3__heap_init(&heap, NULL);
    g3__zone_init(&zone, &heap);
    g.zone = &zone;
    g.err = &err;
    CHECK(open_gguf(&g, in_root("in.gguf")));                    // for types and places only
    snprintf(path, sizeof path, "%s/model.safetensors", out);
    CHECK(st_open(&st, path) && !strcmp(st.metadata, "{\"format\":\"pt\"}") && st.header % 8 == 0);
    CHECK((unsigned)st.n == 2 + 13 * r->layers + (odd(r, "untied") ? 1 : 0) && (unsigned)st.n == g.n_tensors);
    for (int i = 1; i < st.n; i++) CHECK(strcmp(st.tensor[i - 1].name, st.tensor[i].name) < 0);
    for (uint32_t i = 0; i < g.n_tensors; i++) {
        char from[128], to[128];
        snprintf(from, sizeof from, "%s", g.tensor[i].name.p);
        if (!strcmp(from, "token_embd.weight")) strcpy(to, "model.embed_tokens.weight");
        else if (!strcmp(from, "output_norm.weight")) strcpy(to, "model.norm.weight");
        else if (!strcmp(from, "output.weight")) strcpy(to, "lm_head.weight");
        else {
            char *part = strchr(from + 4, '.') + 1;
            *strrchr(part, '.') = 0;
            int k = 0;
            while (k < 13 && strcmp(pairs[k][0], part)) k++;
            CHECK(k < 13);
            snprintf(to, sizeof to, "model.layers.%d.%s.weight", atoi(from + 4), pairs[k][1]);
        }
        int line = check_tensor(&st, &g.tensor[i], file.p, to);
        if (line) { fprintf(stderr, "tensor %s differs\n", to); return line; }
    }
    fclose(g.file);
    g3__zone_free(&zone);
    st_close(&st);
    free(file.p);
    return 0;
}

static int every_type_imports(void)
{
    const recipe *all[2] = { &small, &broad };
    for (int i = 0; i < 2; i++) {
        g3_error err;
        const char *out = in_root("all-types");
        if (!import_recipe(all[i], out, false, &err)) fprintf(stderr, "%s\n", err.text);
        CHECK(exists(out) && !exists(in_root("all-types.part")));
        int line = check_weights(all[i], out);
        clear(out);
        if (line) return line;
    }
    return 0;
}

static int import_odd(const recipe *base, const char *what, const char *file, char **text)      // *text: one file of the result
{
    recipe r = *base;
    g3_error err;
    r.odd = what;
    if (!import_recipe(&r, in_root("odd/"), false, &err)) fprintf(stderr, "%s: %s\n", what, err.text);
    *text = text_of(in_root("odd"), file);
    int line = check_weights(&r, in_root("odd"));
    clear(in_root("odd"));
    if (line) fprintf(stderr, "%s\n", what);
    return line;
}

static int unusual_but_sound_files_import(void)
{
    static const struct { const char *what, *file, *has; } cases[] = {
        { "version 2", "config.json", "\"rope_scaling\": null" },
        { "all types", "config.json", "\"rms_norm_eps\": 1e-06," },
        { "alignment 128", "config.json", "\"tie_word_embeddings\": true" },
        { "untied", "config.json", "\"tie_word_embeddings\": false" },
        { "odd theta", "config.json", "\"rope_theta\": 123456.7,\n  \"rope_local_base_freq\": 10000.0," },
        { "rope linear", "config.json", "\"rope_scaling\": {\n    \"factor\": 8.0,\n    \"rope_type\": \"linear\"\n  }" },
        { "chat", "tokenizer_config.json", "\"chat_template\": \"{{ bos_token }}\\n\\\"quoted\\\"\\t\\\\n\xC3\xA9\"" },
        { "padded", "tokenizer.json", "\"id\": 286,\n      \"content\": \"<image_soft_token>\",\n      \"single_word\": false,\n      \"lstrip\": false,\n      \"rstrip\": false,\n"
                                      "      \"normalized\": false,\n      \"special\": true\n    }\n  ]" },
        { "padded", "config.json", "\"vocab_size\": 289" },
    };
    CHECK(PIECES == 286);
    for (int i = 0; i < G3__COUNT(cases); i++) {
        char *text = NULL;
        int line = import_odd(&small, cases[i].what, cases[i].file, &text);
        bool has = text && strstr(text, cases[i].has);
        if (!has) fprintf(stderr, "%s: %s is\n%.4000s\n", cases[i].what, cases[i].file, text ? text : "absent");
        free(text);
        CHECK(has && !line);
    }
    return 0;
}

static int base_model_gets_no_chat_template(void)
{
    char *text = NULL;
    CHECK(!import_odd(&small, NULL, "tokenizer_config.json", &text));
    CHECK(text && !strstr(text, "chat_template") && strstr(text, "\"bos_token\": \"<bos>\""));
    free(text);
    return 0;
}

static int config_has_the_attention_scale_of_27b(void)           // 62 layers: (dim / heads)^-0.5, not head_dim^-0.5
{
    recipe big = { 62, 96, 32, 2, 1, 32, NULL };
    char *text = NULL;
    CHECK(!import_odd(&big, NULL, "config.json", &text));
    CHECK(text && strstr(text, "\"query_pre_attn_scalar\": 48,") && strstr(text, "\"head_dim\": 32,"));
    free(text);
    CHECK(!import_odd(&small, NULL, "config.json", &text));
    CHECK(text && strstr(text, "\"query_pre_attn_scalar\": 32,") && strstr(text, "\"layer_types\": [\n    \"sliding_attention\",\n    \"sliding_attention\"\n  ]"));
    free(text);
    return 0;
}

// By hand from the pieces: runs first (score 0, longest left part first), then by id of the whole.
static int tokenizer_has_merges_escapes_and_added_tokens(void)
{
    static const char merges[] =
        "    \"merges\": [\n"
        "      [\n        \"\\n\\n\",\n        \"\\n\"\n      ],\n"                                      // three newlines
        "      [\n        \"\xE2\x96\x81\xE2\x96\x81\",\n        \"\xE2\x96\x81\"\n      ],\n"            // three spaces
        "      [\n        \"\\n\",\n        \"\\n\\n\"\n      ],\n"                                      // of equal left length: the longer right part
        "      [\n        \"\xE2\x96\x81\",\n        \"\xE2\x96\x81\xE2\x96\x81\"\n      ],\n"
        "      [\n        \"\xE2\x96\x81\",\n        \"ab\"\n      ],\n"                                  // the first learned piece has score 0 too
        "      [\n        \"\\n\",\n        \"\\n\"\n      ],\n"
        "      [\n        \"\xE2\x96\x81\",\n        \"\xE2\x96\x81\"\n      ],\n"
        "      [\n        \"ab\",\n        \"a\"\n      ],\n"                                             // aba
        "      [\n        \"a\",\n        \"ba\"\n      ],\n"
        "      [\n        \"a\",\n        \"b\"\n      ],\n"
        "      [\n        \"b\",\n        \"a\"\n      ],\n"
        "      [\n        \"\xC3\xA9\",\n        \"\xC3\xA9\"\n      ],\n"
        "      [\n        \"\xC3\xA9\xC3\xA9\",\n        \"b\"\n      ],\n"
        "      [\n        \"\\\"\",\n        \"\\\\\"\n      ]\n"
        "    ]\n  }\n}";
    char *text = NULL;
    CHECK(!import_odd(&small, NULL, "tokenizer.json", &text));
    CHECK(text != NULL);
    const char *at = strstr(text, "    \"merges\"");
    if (!at || strcmp(at, merges)) fprintf(stderr, "%s\n", at ? at : "no merges");
    CHECK(at && !strcmp(at, merges));
    CHECK(strstr(text, "      \"\\\"\\\\\": 274,\n      \"a\\u0001\x7f\": 275,\n"));
    CHECK(strstr(text, "      \"\xE2\x96\x81\xE2\x96\x81\": 10,\n"));
    CHECK(strstr(text, "\"id\": 7,\n      \"content\": \"<end_of_turn>\",\n      \"single_word\": false,\n      \"lstrip\": false,\n      \"rstrip\": false,\n      \"normalized\": false,\n      \"special\": true"));
    CHECK(strstr(text, "\"id\": 4,\n      \"content\": \"<mask>\",\n      \"single_word\": false,\n      \"lstrip\": false,\n      \"rstrip\": false,\n      \"normalized\": false,\n      \"special\": false"));
    CHECK(strstr(text, "\"content\": \"\xE2\x96\x81\xE2\x96\x81\xE2\x96\x81\"") && !strstr(text, "\"content\": \"<0x00>\"") && !strstr(text, "image_soft_token"));
    free(text);
    return 0;
}

static int floats_are_written_as_python_does(void)
{
    static const struct { float v; const char *text; } cases[] = {
        { 1e-6f, "1e-06" }, { 1e6f, "1000000.0" }, { 10000, "10000.0" }, { 8, "8.0" }, { 0.1f, "0.1" }, { 1e-5f, "1e-05" }, { 1.5f, "1.5" }, { 123456.7f, "123456.7" },
        { 0.0001f, "0.0001" }, { 1e20f, "1e+20" }, { 16777216, "16777216.0" } };
    for (int i = 0; i < G3__COUNT(cases); i++) {
        char text[64] = { 0 };
        FILE *f = fopen(in_root("number"), "w+b");
        CHECK(f != NULL);
        put_float(f, cases[i].v);
        rewind(f);
        CHECK(fread(text, 1, 63, f) > 0);
        fclose(f);
        if (strcmp(text, cases[i].text)) fprintf(stderr, "%s, not %s\n", text, cases[i].text);
        CHECK(!strcmp(text, cases[i].text));
    }
    return 0;
}

// ---- hostile files

static bool is_sentence(const char *text)
{
    size_t n = strlen(text);
    return n > 10 && n < 500 && text[n - 1] != '\n' && text[n - 1] != '.';
}

static int hostile_files_are_refused(void)
{
    static const struct { const char *what, *says; } cases[] = {
        { "magic", "not a GGUF" }, { "version 1", "version 1" }, { "big-endian", "big-endian" }, { "endless tensors", "file ends" }, { "endless keys", "file ends" },
        { "one tensor more", "" }, { "llama", "'llama'" }, { "alignment 0", "general.alignment" }, { "alignment 24", "power of two" }, { "alignment 2^31", "general.alignment" },
        { "float layers", "gemma3.block_count" }, { "no layers", "'gemma3.block_count' is missing" }, { "endless layers", "gemma3.block_count" }, { "more layers", "blk.2." },
        { "no heads", "head_count" }, { "eps nan", "epsilon" }, { "rope yarn", "'yarn'" }, { "duplicate key", "gemma3.context_length" }, { "array of arrays", "some.list" },
        { "endless array", "file ends" }, { "endless string", "file ends" }, { "unknown value", "type 13" }, { "half true", "some.flag" }, { "long key", "70000" },
        { "gpt2", "gpt2" }, { "tokens are arrays", "tokenizer.ggml.tokens" }, { "endless tokens", "file ends" }, { "endless piece", "file ends" }, { "few scores", "scores" },
        { "score nan", "score" }, { "float types", "token_type" }, { "piece type 9", "type 9" }, { "far bos", "bos_token_id" }, { "duplicate piece", "twice" },
        { "piece not utf-8", "UTF-8" }, { "long piece", "400" }, { "duplicate tensor", "'blk.1.ffn_gate.weight' stands there twice" }, { "stranger", "blk.1.ffn_up" }, { "one too many", "'rope_freqs.weight' has no place" },
        { "rank 5", "5 dimensions" }, { "rank 0", "0 dimensions" }, { "size 2^64", "impossible size" }, { "bytes 2^64", "" }, { "no rows", "impossible size" },
        { "half block", "blocks of 32" }, { "turned", "blk.1.ffn_up.weight" }, { "unknown type", "type 999" }, { "IQ4_XS", "IQ4_XS" }, { "offset odd", "multiple of 32" },
        { "offset far", "beyond the end" }, { "offset 2^64", "beyond the end" }, { "overlap", "overlap" }, { "missing", "'blk.1.ffn_down.weight' is missing" },
        { "weight nan", "not a finite number" },
    };
    for (int i = 0; i < G3__COUNT(cases); i++) {
        recipe r = small;
        g3_error err;
        r.odd = cases[i].what;
        bool ok = import_recipe(&r, in_root("never"), false, &err);
        if (ok || !strstr(err.text, cases[i].says) || !is_sentence(err.text)) fprintf(stderr, "%s: %s\n", cases[i].what, ok ? "imported" : err.text);
        CHECK(!ok && err.code != G3_OK && strstr(err.text, "in.gguf") && strstr(err.text, cases[i].says) && is_sentence(err.text));
        CHECK(!exists(in_root("never")) && !exists(in_root("never.part")));
    }
    return 0;
}

static int a_file_cut_at_any_byte_is_refused(void)
{
    recipe least = { 1, 32, 32, 1, 1, 32, NULL };
    bytes f = make(&least);
    size_t data = f.n - 9000;                                    // all of the header; the data in steps
    CHECK(f.n > 9000 && write_file(in_root("cut.gguf"), f.p, f.n));
    for (size_t n = f.n; n-- > 0; n -= n > data && n > 96 ? 96 : 0) {
        g3_error err;
        CHECK(!truncate(in_root("cut.gguf"), (off_t)n));
        bool ok = import_gguf(in_root("cut.gguf"), in_root("never"), false, &err);
        if (ok || !is_sentence(err.text)) fprintf(stderr, "cut to %lu bytes: %s\n", (unsigned long)n, ok ? "imported" : err.text);
        CHECK(!ok && is_sentence(err.text));
    }
    CHECK(!exists(in_root("never")) && !exists(in_root("never.part")));
    free(f.p);
    return 0;
}

static int a_file_with_any_byte_changed_never_crashes(void)      // refused or imported, both are right
{
    static const unsigned char flips[] = { 0xff, 0x01, 0x80 };
    recipe least = { 1, 32, 32, 1, 1, 32, NULL };
    bytes f = make(&least);
    size_t header = 0;
    while (header + 17 < f.n && memcmp(f.p + header, "output_norm.weight", 18)) header++;
    header += 18 + 24;                                           // the end of the last tensor's entry
    CHECK(header < f.n);
    for (size_t at = 0; at < header; at += at < 1024 || at + 1500 > header ? 1 : 7) {
        g3_error err;
        f.p[at] ^= flips[at % 3];
        CHECK(write_file(in_root("bent.gguf"), f.p, f.n));
        if (import_gguf(in_root("bent.gguf"), in_root("bent"), false, &err)) clear(in_root("bent"));
        else CHECK(is_sentence(err.text) && !exists(in_root("bent")) && !exists(in_root("bent.part")));
        f.p[at] ^= flips[at % 3];
    }
    free(f.p);
    return 0;
}

static int a_small_hostile_file_asks_for_little_memory(void)     // tables grow with what the file really holds
{
    static const char *const cases[] = { "endless tensors", "endless keys", "endless array", "endless tokens", "endless string", "endless layers", "size 2^64" };
    for (int i = 0; i < G3__COUNT(cases); i++) {
        recipe r = small;
        g3_error err = G3__ZERO;
        g3__heap heap;
        g3__zone zone;
        gguf g;
        model m;
        output *list;
        size_t n;
        r.odd = cases[i];
        bytes f = make(&r);
        CHECK(write_file(in_root("in.gguf"), f.p, f.n));
        memset(&g, 0, sizeof g);
        g3__heap_init(&heap, NULL);
        g3__zone_init(&zone, &heap);
        g.zone = &zone;
        g.err = &err;
        CHECK(!(open_gguf(&g, in_root("in.gguf")) && read_model(&g, &m) && find_outputs(&g, &m, &list, &n)) || !strcmp(cases[i], "endless tokens"));
        CHECK(heap.peak < 4 * f.n + (1 << 20));
        if (g.file) fclose(g.file);
        g3__zone_free(&zone);
        free(f.p);
    }
    return 0;
}

// ---- targets

static int a_target_that_is_not_empty_is_kept(void)
{
    g3_error err;
    const char *out = in_root("full");
    CHECK(!mkdir(out, 0777) && import_recipe(&small, out, false, &err));             // an empty one is taken
    CHECK(write_file(in_root("full/config.json"), "old", 3) && write_file(in_root("full/notes.txt"), "mine", 4));
    CHECK(!import_recipe(&small, out, false, &err) && strstr(err.text, "--force") && is_sentence(err.text));
    char *text = text_of(out, "config.json");
    CHECK(text && !strcmp(text, "old"));
    free(text);
    CHECK(import_recipe(&small, out, true, &err));
    text = text_of(out, "config.json");
    CHECK(text && strstr(text, "gemma3_text"));
    free(text);
    text = text_of(out, "notes.txt");
    CHECK(text && !strcmp(text, "mine") && !exists(in_root("full.part")));
    free(text);
    clear(out);
    return 0;
}

static int what_a_killed_import_left_is_cleared(void)
{
    g3_error err;
    CHECK(!mkdir(in_root("again.part"), 0777) && write_file(in_root("again.part/model.safetensors"), "half", 4));
    CHECK(import_recipe(&small, in_root("again"), false, &err) && !check_weights(&small, in_root("again")) && !exists(in_root("again.part")));
    clear(in_root("again"));
    return 0;
}

static int a_target_that_cannot_be_is_refused(void)
{
    g3_error err;
    CHECK(write_file(in_root("file"), "x", 1));
    CHECK(!import_recipe(&small, in_root("file"), true, &err) && strstr(err.text, "not a directory"));
    CHECK(!import_recipe(&small, in_root("no/such/place"), false, &err) && strstr(err.text, "no/such/place"));
    CHECK(!mkdir(in_root("blocked"), 0777) && !mkdir(in_root("blocked/config.json"), 0777));
    CHECK(!import_recipe(&small, in_root("blocked"), true, &err) && strstr(err.text, "in the way"));
    CHECK(!rmdir(in_root("blocked/config.json")) && !rmdir(in_root("blocked")));
    CHECK(!import_gguf(in_root("absent.gguf"), in_root("never"), false, &err) && strstr(err.text, "absent.gguf"));
    CHECK(!import_gguf(root, in_root("never"), false, &err) && strstr(err.text, "cannot be opened"));
    return 0;
}

static int a_full_disk_leaves_the_target_as_it_was(void)         // files may not grow beyond a limit, for every small limit
{
    struct rlimit old, tight;
    g3_error err;
    const char *out = in_root("kept");
    bytes f = make(&small);
    CHECK(write_file(in_root("disk.gguf"), f.p, f.n));
    free(f.p);
    CHECK(!mkdir(out, 0777) && write_file(in_root("kept/config.json"), "old", 3) && !getrlimit(RLIMIT_FSIZE, &old));
    signal(SIGXFSZ, SIG_IGN);
    for (unsigned limit = 0; limit < 40000; limit += limit < 2000 ? 250 : 4000) {
        tight = old;
        tight.rlim_cur = limit;
        CHECK(!setrlimit(RLIMIT_FSIZE, &tight));
        bool ok = import_gguf(in_root("disk.gguf"), out, true, &err);
        CHECK(!setrlimit(RLIMIT_FSIZE, &old));
        CHECK(!ok && strstr(err.text, "cannot be written") && is_sentence(err.text));
        char *text = text_of(out, "config.json");
        CHECK(text && !strcmp(text, "old") && !exists(in_root("kept.part")) && !exists(in_root("kept/model.safetensors")));
        free(text);
    }
    signal(SIGXFSZ, SIG_DFL);
    clear(out);
    return 0;
}

int main(void)
{
    mkdir("build", 0777);
    snprintf(root, sizeof root, "build/test_gguf.%ld", (long)getpid());
    clear(root);
    if (mkdir(root, 0777)) { perror(root); return 1; }
    RUN(blocks_decode_as_gguf_does);
    RUN(plain_types_decode);
    RUN(every_type_imports);
    RUN(unusual_but_sound_files_import);
    RUN(base_model_gets_no_chat_template);
    RUN(config_has_the_attention_scale_of_27b);
    RUN(tokenizer_has_merges_escapes_and_added_tokens);
    RUN(floats_are_written_as_python_does);
    RUN(hostile_files_are_refused);
    RUN(a_file_cut_at_any_byte_is_refused);
    RUN(a_file_with_any_byte_changed_never_crashes);
    RUN(a_small_hostile_file_asks_for_little_memory);
    RUN(a_target_that_is_not_empty_is_kept);
    RUN(what_a_killed_import_left_is_cleared);
    RUN(a_target_that_cannot_be_is_refused);
    RUN(a_full_disk_leaves_the_target_as_it_was);
    clear(root);
    return test_done();
}
