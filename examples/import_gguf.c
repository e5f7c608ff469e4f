// import_gguf: a Gemma 3 GGUF file becomes a Hugging Face directory that this header, transformers and others open.
//
//     build/import_gguf [--force] MODEL.gguf OUT_DIR
//
// It shows how to read a foreign weight format safely and with little memory: every number of the file is suspect, one
// slice of one tensor is in memory at a time, and OUT_DIR appears only when all of it is written and opens. The tokenizer is
// rebuilt too: a GGUF has no merges, but they follow from the pieces (see "merges" below).
//
// GGUF in a few lines; everything is little-endian (source: the gguf document of the ggml project):
//
//     "GGUF" | u32 version | u64 tensors | u64 keys | the keys | the tensor list | padding | data
//     string   u64 size, then the bytes
//     key      string name | u32 type | value; an array is u32 element type | u64 count | the elements
//     tensor   string name | u32 rank | u64 dims[rank], fastest first | u32 type | u64 offset into data
//
// `data` begins at a multiple of the key general.alignment (32 if absent), and so does every tensor. A quantised tensor is a
// sequence of blocks: some scales, then the codes of 32 or 256 elements. A Gemma GGUF stores its norms as 1 + w where
// Hugging Face files store w; everything else is the same matrix in the same order.
#define _FILE_OFFSET_BITS 64
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#ifdef _WIN32
#include <direct.h>
#include <io.h>
#define mkdir(path, mode) _mkdir(path)
#define lstat             stat
#define fseeko            _fseeki64
#define ftello            _ftelli64
#define fsync             _commit
#define rename_over(a, b) (remove(b), rename(a, b))      // rename does not replace there
#else
#include <unistd.h>
#define rename_over       rename
#endif

typedef unsigned long long ull;            // what %llu takes

enum { MAX_ENTRIES = 1 << 16 };            // keys, or tensors: the largest Gemma 3 has about 50 and 808
enum { MAX_PIECES  = 1 << 20 };            // Gemma 3 has 262144
enum { MAX_PIECE   = 256 };                // bytes; the longest piece has 93
enum { MAX_TEXT    = 1 << 20 };            // bytes of a string value that is read, such as the chat template
enum { SLICE       = 1 << 16 };            // elements in memory at a time: a multiple of every block size

// ---- blocks: one function per type, from the bytes of one block to its float32 elements
//
// All arithmetic is float32 with every product rounded on its own, hence one statement each.

static uint32_t le16(const unsigned char *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t le32(const unsigned char *p) { return le16(p) | le16(p + 2) << 16; }
static uint64_t le64(const unsigned char *p) { return le32(p) | (uint64_t)le32(p + 4) << 32; }
static float    half(const unsigned char *p) { return g3__f16_to_f32((uint16_t)le16(p)); }

static float float_of_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static void block_f32(const unsigned char *b, float *y)  { *y = float_of_bits(le32(b)); }
static void block_f16(const unsigned char *b, float *y)  { *y = half(b); }
static void block_bf16(const unsigned char *b, float *y) { *y = g3__bf16_to_f32((uint16_t)le16(b)); }

static void block_q4_0(const unsigned char *b, float *y)         // f16 d, u8 qs[16]: elements 0..15 in the low nibbles, 16..31 in the high ones
{
    float d = half(b);
    for (int e = 0; e < 16; e++) {
        y[e]      = d * (float)((b[2 + e] & 15) - 8);
        y[e + 16] = d * (float)((b[2 + e] >> 4) - 8);
    }
}

static void block_q5_0(const unsigned char *b, float *y)         // f16 d, u32 qh: the fifth bits, u8 qs[16] as in Q4_0
{
    float d = half(b);
    uint32_t qh = le32(b + 2);
    for (int e = 0; e < 16; e++) {
        int low  = (b[6 + e] & 15) | (int)(qh >> e & 1) << 4;
        int high = (b[6 + e] >> 4) | (int)(qh >> (e + 16) & 1) << 4;
        y[e]      = d * (float)(low - 16);
        y[e + 16] = d * (float)(high - 16);
    }
}

static void block_q8_0(const unsigned char *b, float *y)         // f16 d, i8 q[32]
{
    float d = half(b);
    for (int e = 0; e < 32; e++) y[e] = d * (float)(b[2 + e] < 128 ? b[2 + e] : b[2 + e] - 256);
}

// f16 d, f16 dmin, u8 sc[12]: eight scales and eight minima of 6 bits each, u8 qs[128].
static void block_q4_k(const unsigned char *b, float *y)
{
    float d = half(b), dmin = half(b + 2);
    const unsigned char *sc = b + 4, *qs = b + 16;
    for (int j = 0; j < 8; j++) {                                // 32 elements with one scale and one minimum
        int s = j < 4 ? sc[j] & 63     : (sc[j + 4] & 15) | (sc[j - 4] >> 6) << 4;
        int m = j < 4 ? sc[j + 4] & 63 : (sc[j + 4] >> 4) | (sc[j] >> 6) << 4;
        float scale = d * (float)s, least = dmin * (float)m;
        for (int e = 0; e < 32; e++) {
            int q = qs[32 * (j / 2) + e];
            float product = scale * (float)(j % 2 ? q >> 4 : q & 15);
            y[32 * j + e] = product - least;
        }
    }
}

// u8 ql[128]: low four bits, u8 qh[64]: high two bits, i8 sc[16]: a scale for 16 elements, f16 d.
static void block_q6_k(const unsigned char *b, float *y)
{
    const unsigned char *ql = b, *qh = b + 128, *sc = b + 192;
    float d = half(b + 208);
    for (int e = 0; e < 256; e++) {
        int h = e / 128, k = e % 128;
        int low = ql[64 * h + k % 64] >> 4 * (k / 64) & 15, high = qh[32 * h + k % 32] >> 2 * (k / 32) & 3;
        int s = sc[e / 16] < 128 ? sc[e / 16] : sc[e / 16] - 256;
        float scale = d * (float)s;
        y[e] = scale * (float)((low | high << 4) - 32);
    }
}

typedef struct block_type {
    uint32_t id;
    const char *name;
    uint32_t elements, bytes;                                    // of one block
    void (*decode)(const unsigned char *block, float *y);        // NULL: known by name only
} block_type;

static const block_type block_types[] = {
    { 0, "F32", 1, 4, block_f32 }, { 1, "F16", 1, 2, block_f16 }, { 30, "BF16", 1, 2, block_bf16 },
    { 2, "Q4_0", 32, 18, block_q4_0 }, { 6, "Q5_0", 32, 22, block_q5_0 }, { 8, "Q8_0", 32, 34, block_q8_0 },
    { 12, "Q4_K", 256, 144, block_q4_k }, { 14, "Q6_K", 256, 210, block_q6_k },
    { 3, "Q4_1", 0, 0, NULL }, { 7, "Q5_1", 0, 0, NULL }, { 9, "Q8_1", 0, 0, NULL }, { 10, "Q2_K", 0, 0, NULL }, { 11, "Q3_K", 0, 0, NULL },
    { 13, "Q5_K", 0, 0, NULL }, { 15, "Q8_K", 0, 0, NULL }, { 16, "IQ2_XXS", 0, 0, NULL }, { 17, "IQ2_XS", 0, 0, NULL }, { 18, "IQ3_XXS", 0, 0, NULL },
    { 19, "IQ1_S", 0, 0, NULL }, { 20, "IQ4_NL", 0, 0, NULL }, { 21, "IQ3_S", 0, 0, NULL }, { 22, "IQ2_S", 0, 0, NULL }, { 23, "IQ4_XS", 0, 0, NULL },
    { 24, "I8", 0, 0, NULL }, { 25, "I16", 0, 0, NULL }, { 26, "I32", 0, 0, NULL }, { 27, "I64", 0, 0, NULL }, { 28, "F64", 0, 0, NULL },
    { 29, "IQ1_M", 0, 0, NULL }, { 34, "TQ1_0", 0, 0, NULL }, { 35, "TQ2_0", 0, 0, NULL }, { 39, "MXFP4", 0, 0, NULL },
};

static const block_type *find_block_type(uint32_t id)
{
    for (int i = 0; i < G3__COUNT(block_types); i++)
        if (block_types[i].id == id) return &block_types[i];
    return NULL;
}

// ---- reading: a file with a position; the first failure sticks in err, and every later read gives zeros

typedef struct gguf_key {                  // the value stays in the file, unless it is a number
    g3__str name;
    uint32_t type, element;                // element: of an array
    uint64_t bits;                         // a number, as it is stored
    uint64_t at, count;                    // a string's bytes or an array's elements: where, how many
} gguf_key;

typedef struct gguf_tensor {
    g3__str name;
    const block_type *type;
    uint32_t rank;
    uint64_t dims[4], elements, at, bytes; // dims fastest first; at: in the file
    bool taken;
} gguf_tensor;

typedef struct gguf {
    FILE *file;
    const char *path;
    uint64_t size, pos;
    g3_error *err;
    g3__zone *zone;
    uint32_t n_keys, n_tensors;
    gguf_key *key;
    gguf_tensor *tensor;
    g3__index key_index, tensor_index;
} gguf;

static bool fine(const gguf *g) { return g->err->code == G3_OK; }

static bool bad(gguf *g, const char *fmt, ...) G3__PRINTF(2, 3);
static bool bad(gguf *g, const char *fmt, ...)                   // "PATH: what is wrong with it"
{
    char text[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    g3__fail(g->err, G3_ERR_FORMAT, "%.90s: %s", g->path, text);
    return false;
}

static bool room(gguf *g, uint64_t n, uint64_t size)             // does the rest of the file hold n things of at least size bytes?
{
    if (!fine(g)) return false;
    return n <= (g->size - g->pos) / size || bad(g, "the file ends before what it announces at byte %llu", (ull)g->pos);
}

static bool seek(gguf *g, uint64_t pos)
{
    if (!fine(g)) return false;
    if (pos > g->size) return bad(g, "the file ends before byte %llu", (ull)pos);
    if (fseeko(g->file, (off_t)pos, SEEK_SET)) return g3__fail(g->err, G3_ERR_IO, "%s cannot be read at byte %llu", g->path, (ull)pos) == G3_OK;
    g->pos = pos;
    return true;
}

static bool take(gguf *g, void *dst, uint64_t n)
{
    if (n && room(g, n, 1) && fread(dst, 1, (size_t)n, g->file) != n) g3__fail(g->err, G3_ERR_IO, "%s cannot be read at byte %llu", g->path, (ull)g->pos);
    if (!fine(g)) { memset(dst, 0, (size_t)n); return false; }
    g->pos += n;
    return true;
}

static void skip(gguf *g, uint64_t n)
{
    char small[256];
    if (n <= sizeof small) take(g, small, n);                    // stays in the stream's buffer
    else if (room(g, n, 1)) seek(g, g->pos + n);
}

static uint32_t take_u32(gguf *g) { unsigned char b[4]; take(g, b, 4); return le32(b); }
static uint64_t take_u64(gguf *g) { unsigned char b[8]; take(g, b, 8); return le64(b); }

static g3__str take_string(gguf *g, uint64_t limit, const char *what)
{
    uint64_t n = take_u64(g);
    char *p = NULL;
    if (!room(g, n, 1)) return g3__str_make(NULL, 0);
    if (n > limit) bad(g, "%s of %llu bytes at byte %llu; at most %llu are possible", what, (ull)n, (ull)g->pos, (ull)limit);
    else p = (char *)g3__zone_alloc(g->zone, n + 1, 1, g->err);
    if (!p) return g3__str_make(NULL, 0);
    take(g, p, n);
    return g3__str_make(p, (size_t)n);
}

// ---- keys

enum { U8, I8, U16, I16, U32, I32, F32, FLAG, STRING, ARRAY, U64, I64, F64, VALUE_TYPES };

static const unsigned char value_size[VALUE_TYPES] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };      // 0: it says its own

static void skip_array(gguf *g, gguf_key *k)
{
    k->element = take_u32(g);
    k->count = take_u64(g);
    k->at = g->pos;
    if (!fine(g)) return;
    if (k->element >= VALUE_TYPES || k->element == ARRAY) {
        bad(g, "key '%.*s' is an array of elements of type %u, which has no meaning here", G3__S(k->name), k->element);
        return;
    }
    uint64_t each = k->element == STRING ? 8 : value_size[k->element];
    if (!room(g, k->count, each)) return;
    if (k->element != STRING) { skip(g, k->count * each); return; }
    for (uint64_t i = 0; i < k->count && fine(g); i++) skip(g, take_u64(g));
}

static void read_key(gguf *g, gguf_key *k)
{
    unsigned char b[8] = { 0 };
    k->name = take_string(g, 65535, "a key");
    k->type = take_u32(g);
    if (!fine(g)) return;
    if (k->type == ARRAY) skip_array(g, k);
    else if (k->type == STRING) {
        k->count = take_u64(g);
        k->at = g->pos;
        skip(g, k->count);
    }
    else if (k->type < VALUE_TYPES) {
        take(g, b, value_size[k->type]);
        k->bits = le64(b);
        if (k->type == FLAG && k->bits > 1) bad(g, "key '%.*s' is neither true nor false", G3__S(k->name));
    }
    else bad(g, "key '%.*s' has the unknown type %u", G3__S(k->name), k->type);
}

static bool read_keys(gguf *g)
{
    g->key = (gguf_key *)g3__zone_alloc(g->zone, g->n_keys, sizeof *g->key, g->err);
    if (!g->key || !g3__index_init(&g->key_index, g->zone, g->n_keys, &g->key->name, sizeof *g->key, g->err)) return false;
    for (uint32_t i = 0; i < g->n_keys; i++) {
        read_key(g, &g->key[i]);
        if (!fine(g)) return false;
        if (!g3__index_put(&g->key_index, i)) return bad(g, "key '%.*s' stands there twice", G3__S(g->key[i].name));
    }
    return true;
}

static const gguf_key *find_key(const gguf *g, const char *name)
{
    int64_t i = g3__index_find(&g->key_index, g3__str_c(name));
    return i < 0 ? NULL : &g->key[i];
}

// A whole number within [low, high]; `absent` if there is no such key. absent < low: the key must be there.
static uint64_t key_int(gguf *g, const char *name, uint64_t absent, uint64_t low, uint64_t high)
{
    const gguf_key *k = find_key(g, name);
    uint64_t v = k ? k->bits : absent;
    if (!fine(g)) return low;
    if (!k && absent < low) { bad(g, "key '%s' is missing", name); return low; }
    if (!k) return v;
    bool sign = k->type == I8 || k->type == I16 || k->type == I32 || k->type == I64;
    if (!sign && k->type != U8 && k->type != U16 && k->type != U32 && k->type != U64) { bad(g, "key '%s' is not a whole number", name); return low; }
    bool negative = sign && v >> (8 * value_size[k->type] - 1);
    if (negative || v < low || v > high) { bad(g, "key '%s' is outside %llu to %llu", name, (ull)low, (ull)high); return low; }
    return v;
}

static float key_float(gguf *g, const char *name, float absent)  // a finite number above 0
{
    const gguf_key *k = find_key(g, name);
    if (!k || !fine(g)) return absent;
    double wide;
    memcpy(&wide, &k->bits, sizeof wide);
    float v = k->type == F64 ? (float)wide : float_of_bits((uint32_t)k->bits);
    if ((k->type != F32 && k->type != F64) || !(v > 0 && v <= FLT_MAX)) { bad(g, "key '%s' is not a number above 0", name); return absent; }
    return v;
}

static g3__str key_text(gguf *g, const char *name)               // NULL: absent
{
    const gguf_key *k = find_key(g, name);
    g3__str none = g3__str_make(NULL, 0);
    if (!k || !fine(g)) return none;
    if (k->type != STRING) { bad(g, "key '%s' is not a string", name); return none; }
    return seek(g, k->at - 8) ? take_string(g, MAX_TEXT, name) : none;
}

// ---- tensors

static void read_tensor(gguf *g, gguf_tensor *t)
{
    t->name = take_string(g, 1024, "a tensor's name");
    t->rank = take_u32(g);
    if (!fine(g)) return;
    if (t->rank < 1 || t->rank > 4) { bad(g, "tensor '%.*s' has %u dimensions; 1 to 4 are possible", G3__S(t->name), t->rank); return; }
    t->elements = 1;
    for (uint32_t d = 0; d < t->rank; d++) {
        t->dims[d] = take_u64(g);
        if (fine(g) && (!t->dims[d] || !g3__mul(t->elements, t->dims[d], &t->elements))) bad(g, "tensor '%.*s' has an impossible size", G3__S(t->name));
    }
    uint32_t id = take_u32(g);
    t->at = take_u64(g);                                         // from the start of data for now
    t->type = find_block_type(id);
    if (!fine(g)) return;
    if (!t->type) bad(g, "tensor '%.*s' is stored as type %u, which is unknown here", G3__S(t->name), id);
    else if (!t->type->decode)
        bad(g, "tensor '%.*s' is stored as %s; F32, F16, BF16, Q4_0, Q5_0, Q8_0, Q4_K and Q6_K can be imported", G3__S(t->name), t->type->name);
    else if (t->dims[0] % t->type->elements)
        bad(g, "tensor '%.*s' has rows of %llu elements, not whole %s blocks of %u", G3__S(t->name), (ull)t->dims[0], t->type->name, t->type->elements);
    else if (!g3__mul(t->elements / t->type->elements, t->type->bytes, &t->bytes)) bad(g, "tensor '%.*s' has an impossible size", G3__S(t->name));
}

static bool place_tensor(gguf *g, gguf_tensor *t, uint64_t data, uint64_t align)
{
    uint64_t end;
    if (t->at % align) return bad(g, "tensor '%.*s' begins at byte %llu of the data, not at a multiple of %llu", G3__S(t->name), (ull)t->at, (ull)align);
    if (!g3__add(t->at, data, &t->at) || !g3__add(t->at, t->bytes, &end) || end > g->size)
        return bad(g, "tensor '%.*s' reaches beyond the end of the file, which is cut or damaged", G3__S(t->name));
    return true;
}

static int by_place(const void *a, const void *b)
{
    const gguf_tensor *s = *(gguf_tensor *const *)a, *t = *(gguf_tensor *const *)b;
    return s->at < t->at ? -1 : s->at > t->at;
}

static bool check_overlaps(gguf *g)                              // so that a small file can never ask for an endless import
{
    gguf_tensor **order = (gguf_tensor **)g3__zone_alloc(g->zone, g->n_tensors, sizeof *order, g->err);
    if (!order) return false;
    for (uint32_t i = 0; i < g->n_tensors; i++) order[i] = &g->tensor[i];
    qsort(order, g->n_tensors, sizeof *order, by_place);
    for (uint32_t i = 1; i < g->n_tensors; i++)
        if (order[i]->at - order[i - 1]->at < order[i - 1]->bytes) return bad(g, "tensors '%.*s' and '%.*s' overlap", G3__S(order[i - 1]->name), G3__S(order[i]->name));
    return true;
}

static bool read_tensors(gguf *g)
{
    g->tensor = (gguf_tensor *)g3__zone_alloc(g->zone, g->n_tensors, sizeof *g->tensor, g->err);
    if (!g->tensor || !g3__index_init(&g->tensor_index, g->zone, g->n_tensors, &g->tensor->name, sizeof *g->tensor, g->err)) return false;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        read_tensor(g, &g->tensor[i]);
        if (!fine(g)) return false;
        if (!g3__index_put(&g->tensor_index, i)) return bad(g, "tensor '%.*s' stands there twice", G3__S(g->tensor[i].name));
    }
    uint64_t align = key_int(g, "general.alignment", 32, 1, 1 << 20);
    if (fine(g) && align & (align - 1)) return bad(g, "key 'general.alignment' is %llu, not a power of two", (ull)align);
    uint64_t data = g3__round_up(g->pos, align);
    for (uint32_t i = 0; i < g->n_tensors && fine(g); i++) place_tensor(g, &g->tensor[i], data, align);
    return fine(g) && check_overlaps(g);
}

static bool open_gguf(gguf *g, const char *path)
{
    char magic[4];
    struct stat st;
    g->path = path;
    g->file = stat(path, &st) || !S_ISREG(st.st_mode) ? NULL : fopen(path, "rb");
    if (!g->file) return g3__fail(g->err, G3_ERR_IO, "%s cannot be opened; the first argument is a GGUF file", path) == G3_OK;
    g->size = (uint64_t)st.st_size;
    take(g, magic, 4);
    if (!fine(g) || memcmp(magic, "GGUF", 4)) { g3__error_clear(g->err); return bad(g, "this is not a GGUF file"); }
    uint32_t version = take_u32(g);
    if (fine(g) && version != 2 && version != 3)
        return bad(g, "GGUF version %u; 2 and 3 can be read%s", version, version & 0xffff ? "" : " (this one is for big-endian machines)");
    uint64_t tensors = take_u64(g), keys = take_u64(g);
    if (!room(g, keys, 13) || !room(g, tensors, 32)) return false;       // the least that one key, one tensor takes
    if (keys > MAX_ENTRIES || tensors > MAX_ENTRIES) return bad(g, "%llu keys and %llu tensors; at most %d of each are read", (ull)keys, (ull)tensors, MAX_ENTRIES);
    g->n_keys = (uint32_t)keys;
    g->n_tensors = (uint32_t)tensors;
    return read_keys(g) && read_tensors(g);
}

// ---- the model: its settings, and which tensors it must have

typedef struct model {
    uint64_t layers, dim, ffn, heads, kv_heads, head_dim, window, pattern, context, vocab, scalar;
    float eps, theta, theta_sliding, factor;                     // factor: of linear rope scaling, 0: none
    bool tied;
} model;

static bool read_rope_scaling(gguf *g, model *m)
{
    g3__str type = key_text(g, "gemma3.rope.scaling.type");
    m->factor = key_float(g, "gemma3.rope.scaling.factor", key_float(g, "gemma3.rope.scale_linear", 0));
    if (!fine(g) || !type.p) return fine(g);
    if (g3__str_is(type, "none")) m->factor = 0;
    else if (!g3__str_is(type, "linear")) return bad(g, "rope scaling of type '%.*s'; Gemma 3 knows 'linear' only", G3__S(type));
    else if (m->factor == 0) return bad(g, "linear rope scaling without key 'gemma3.rope.scaling.factor'");
    return true;
}

static bool read_model(gguf *g, model *m)
{
    const uint64_t most = 1 << 24;
    g3__str arch = key_text(g, "general.architecture");
    if (!fine(g)) return false;
    if (!g3__str_is(arch, "gemma3")) return bad(g, "its architecture is '%.*s'; this imports the text side of 'gemma3'", G3__S(arch));
    m->layers   = key_int(g, "gemma3.block_count", 0, 1, 4096);
    m->dim      = key_int(g, "gemma3.embedding_length", 0, 1, most);
    m->ffn      = key_int(g, "gemma3.feed_forward_length", 0, 1, most);
    m->heads    = key_int(g, "gemma3.attention.head_count", 0, 1, 65536);
    m->kv_heads = key_int(g, "gemma3.attention.head_count_kv", m->heads, 1, 65536);
    m->head_dim = key_int(g, "gemma3.attention.key_length", 256, 1, 65536);
    m->window   = key_int(g, "gemma3.attention.sliding_window", 0, 1, most);
    m->pattern  = key_int(g, "gemma3.attention.sliding_window_pattern", 6, 1, 4096);
    m->context  = key_int(g, "gemma3.context_length", 131072, 1, most);
    m->eps      = key_float(g, "gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
    m->theta    = key_float(g, "gemma3.rope.freq_base", 1e6f);
    m->theta_sliding = key_float(g, "gemma3.rope.freq_base_swa", 1e4f);
    if (!fine(g)) return false;
    if (key_int(g, "gemma3.attention.value_length", m->head_dim, 1, most) != m->head_dim) return bad(g, "keys and values of different length");
    if (find_key(g, "gemma3.final_logit_softcapping") || find_key(g, "gemma3.attn_logit_softcapping")) return bad(g, "it caps logits, which Gemma 3 does not");
    // No key holds the attention scale: it is head_dim^-0.5, but for the 27B, known by its 62 layers, (dim / heads)^-0.5.
    m->scalar = m->layers == 62 ? m->dim / m->heads : m->head_dim;
    return read_rope_scaling(g, m);
}

typedef struct output { char name[96]; gguf_tensor *t; } output; // one tensor of model.safetensors

typedef enum extent { ONE, DIM, FFN, QUERY, KEYS, HEAD, VOCAB } extent;

typedef struct role { const char *gguf, *name; extent rows, cols; } role;    // rows ONE: a vector

static const role layer_roles[] = {
    { "attn_norm",           "input_layernorm",            ONE,   DIM },
    { "attn_q",              "self_attn.q_proj",           QUERY, DIM },
    { "attn_k",              "self_attn.k_proj",           KEYS,  DIM },
    { "attn_v",              "self_attn.v_proj",           KEYS,  DIM },
    { "attn_output",         "self_attn.o_proj",           DIM,   QUERY },
    { "attn_q_norm",         "self_attn.q_norm",           ONE,   HEAD },
    { "attn_k_norm",         "self_attn.k_norm",           ONE,   HEAD },
    { "post_attention_norm", "post_attention_layernorm",   ONE,   DIM },
    { "ffn_norm",            "pre_feedforward_layernorm",  ONE,   DIM },
    { "ffn_gate",            "mlp.gate_proj",              FFN,   DIM },
    { "ffn_up",              "mlp.up_proj",                FFN,   DIM },
    { "ffn_down",            "mlp.down_proj",              DIM,   FFN },
    { "post_ffw_norm",       "post_feedforward_layernorm", ONE,   DIM },
};
static const role embedding_role = { "token_embd", "embed_tokens", VOCAB, DIM };
static const role norm_role      = { "output_norm", "norm", ONE, DIM };
static const role head_role      = { "output", "lm_head", VOCAB, DIM };

static uint64_t extent_of(const model *m, extent e)
{
    switch (e) {
    case DIM:   return m->dim;
    case FFN:   return m->ffn;
    case QUERY: return m->heads * m->head_dim;
    case KEYS:  return m->kv_heads * m->head_dim;
    case HEAD:  return m->head_dim;
    case VOCAB: return m->vocab;
    default:    return 1;
    }
}

// Finds the tensor of a role, checks its shape, and writes its Hugging Face name.
static bool find_role(gguf *g, const model *m, const char *gguf_prefix, const char *prefix, const role *r, output *out)
{
    char name[64];
    snprintf(name, sizeof name, "%s%s.weight", gguf_prefix, r->gguf);
    snprintf(out->name, sizeof out->name, "%s%s.weight", prefix, r->name);
    int64_t i = g3__index_find(&g->tensor_index, g3__str_c(name));
    if (i < 0) return bad(g, "tensor '%s' is missing", name);
    gguf_tensor *t = out->t = &g->tensor[i];
    uint64_t rows = extent_of(m, r->rows), cols = extent_of(m, r->cols);
    if (t->rank != (r->rows == ONE ? 1u : 2u) || t->dims[0] != cols || t->elements / cols != rows)
        return bad(g, "tensor '%s' is not %llu x %llu as the keys have it", name, (ull)rows, (ull)cols);
    t->taken = true;
    return true;
}

static int by_name(const void *a, const void *b) { return strcmp(((const output *)a)->name, ((const output *)b)->name); }

static bool find_outputs(gguf *g, model *m, output **list, size_t *n)
{
    int64_t e = g3__index_find(&g->tensor_index, g3__str_c("token_embd.weight"));
    *n = 0;
    if (m->layers > g->n_tensors) return bad(g, "it has %u tensors, too few for %llu layers", g->n_tensors, (ull)m->layers);
    if (e >= 0) m->vocab = g->tensor[e].elements / g->tensor[e].dims[0];         // if it is a matrix, which find_role checks
    m->tied = g3__index_find(&g->tensor_index, g3__str_c("output.weight")) < 0;
    output *o = *list = (output *)g3__zone_alloc(g->zone, m->layers * G3__COUNT(layer_roles) + 3, sizeof *o, g->err);
    if (!o || !find_role(g, m, "", "model.", &embedding_role, o++) || !find_role(g, m, "", "model.", &norm_role, o++)) return false;
    if (!m->tied && !find_role(g, m, "", "", &head_role, o++)) return false;
    for (unsigned i = 0; i < m->layers; i++)
        for (int r = 0; r < G3__COUNT(layer_roles); r++) {
            char from[32], to[32];
            snprintf(from, sizeof from, "blk.%u.", i);
            snprintf(to, sizeof to, "model.layers.%u.", i);
            if (!find_role(g, m, from, to, &layer_roles[r], o++)) return false;
        }
    for (uint32_t i = 0; i < g->n_tensors; i++)
        if (!g->tensor[i].taken) return bad(g, "tensor '%.*s' has no place in a Gemma 3 model of %llu layers", G3__S(g->tensor[i].name), (ull)m->layers);
    *n = (size_t)(o - *list);
    qsort(*list, *n, sizeof **list, by_name);
    return true;
}

// ---- the vocabulary

enum { NORMAL = 1, UNKNOWN, CONTROL, USER, UNUSED, BYTE_PIECE };       // types of pieces

typedef struct piece { g3__str text; float score; uint32_t type; } piece;

typedef struct vocabulary {
    piece *pieces;
    uint32_t n;                            // pieces of tokenizer.json's vocabulary
    bool image;                            // one more token, <image_soft_token>, has the id n
    uint32_t bos, eos, pad, unk;
    g3__index index;
} vocabulary;

static const char image_token[] = "<image_soft_token>";
static const char *const special_tokens[] = { "<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>" };

static bool is_added(const piece *p) { return p->type == UNKNOWN || p->type == CONTROL || p->type == USER; }

static bool is_special(const piece *p)
{
    for (int i = 0; i < G3__COUNT(special_tokens); i++)
        if (g3__str_is(p->text, special_tokens[i])) return true;
    return false;
}

static bool valid_utf8(g3__str s)
{
    const char *p = s.p, *end = s.p + s.n;
    for (int n = 0; p < end; p += n)
        if ((n = g3__utf8_size(p, end)) == 0) return false;
    return true;
}

// Who wrote the GGUF turned U+2581, the vocabulary's mark of a space, into plain spaces in user-defined pieces: turn them back.
static g3__str with_marks(gguf *g, g3__str s)
{
    size_t spaces = 0, k = 0;
    for (size_t i = 0; i < s.n; i++) spaces += s.p[i] == ' ';
    if (!spaces) return s;
    char *p = (char *)g3__zone_alloc(g->zone, s.n + 2 * spaces, 1, g->err);
    for (size_t i = 0; p && i < s.n; i++) {
        if (s.p[i] == ' ') { memcpy(p + k, "\xE2\x96\x81", 3); k += 3; }
        else p[k++] = s.p[i];
    }
    return g3__str_make(p, k);
}

static const gguf_key *key_array(gguf *g, const char *name, uint32_t element, uint32_t or_element)
{
    const gguf_key *k = find_key(g, name);
    if (!fine(g)) return NULL;
    if (!k) { bad(g, "key '%s' is missing", name); return NULL; }
    if (k->type != ARRAY || (k->element != element && k->element != or_element)) { bad(g, "key '%s' is not an array of the right type", name); return NULL; }
    return k;
}

static bool read_piece_types(gguf *g, vocabulary *v)             // and the scores
{
    const gguf_key *scores = key_array(g, "tokenizer.ggml.scores", F32, F32), *types = key_array(g, "tokenizer.ggml.token_type", I32, U32);
    if (!fine(g)) return false;
    if (scores->count != v->n || types->count != v->n) return bad(g, "%u pieces, %llu scores and %llu types in its tokenizer", v->n, (ull)scores->count, (ull)types->count);
    seek(g, scores->at);
    for (uint32_t i = 0; i < v->n && fine(g); i++) {
        v->pieces[i].score = float_of_bits(take_u32(g));
        if (!(fabsf(v->pieces[i].score) <= FLT_MAX)) return bad(g, "the score of piece %u is not a number", i);
    }
    seek(g, types->at);
    for (uint32_t i = 0; i < v->n && fine(g); i++) {
        v->pieces[i].type = take_u32(g);
        if (v->pieces[i].type < NORMAL || v->pieces[i].type > BYTE_PIECE) return bad(g, "piece %u has the unknown type %u", i, v->pieces[i].type);
        if (v->pieces[i].type != NORMAL) v->pieces[i].score = 0;   // their -1000 is not meant for merging
        if (v->pieces[i].type == USER) v->pieces[i].text = with_marks(g, v->pieces[i].text);
    }
    return fine(g);
}

static bool read_pieces(gguf *g, vocabulary *v)
{
    g3__str kind = key_text(g, "tokenizer.ggml.model");
    if (fine(g) && !g3__str_is(kind, "llama")) return bad(g, "its tokenizer is of the kind '%.*s', not the 'llama' of Gemma", G3__S(kind));
    const gguf_key *tokens = key_array(g, "tokenizer.ggml.tokens", STRING, STRING);
    if (!tokens) return false;
    if (tokens->count < 1 || tokens->count > MAX_PIECES) return bad(g, "a vocabulary of %llu pieces; 1 to %d are possible", (ull)tokens->count, MAX_PIECES);
    v->n = (uint32_t)tokens->count;
    v->pieces = (piece *)g3__zone_alloc(g->zone, v->n, sizeof *v->pieces, g->err);
    if (!v->pieces || !seek(g, tokens->at)) return false;
    for (uint32_t i = 0; i < v->n && fine(g); i++) {
        v->pieces[i].text = take_string(g, MAX_PIECE, "a piece");
        if (fine(g) && !valid_utf8(v->pieces[i].text)) return bad(g, "piece %u of the vocabulary is not UTF-8", i);
    }
    return fine(g) && read_piece_types(g, v);
}

static bool read_vocabulary(gguf *g, vocabulary *v)
{
    if (!read_pieces(g, v)) return false;
    // Larger models pad the table with unused pieces and list the image token, which tokenizer.json keeps outside its vocabulary.
    while (v->n > 1 && v->pieces[v->n - 1].type == UNUSED) v->n--;
    v->image = v->n == 262144;
    if (v->n > 1 && g3__str_is(v->pieces[v->n - 1].text, image_token)) { v->n--; v->image = true; }
    if (!g3__index_init(&v->index, g->zone, v->n, &v->pieces->text, sizeof *v->pieces, g->err)) return false;
    for (uint32_t i = 0; i < v->n; i++)
        if (!g3__index_put(&v->index, i)) return bad(g, "piece %u of the vocabulary, '%.*s', stands there twice", i, G3__S(v->pieces[i].text));
    v->bos = (uint32_t)key_int(g, "tokenizer.ggml.bos_token_id", 2, 0, v->n - 1);
    v->eos = (uint32_t)key_int(g, "tokenizer.ggml.eos_token_id", 1, 0, v->n - 1);
    v->pad = (uint32_t)key_int(g, "tokenizer.ggml.padding_token_id", 0, 0, v->n - 1);
    v->unk = (uint32_t)key_int(g, "tokenizer.ggml.unknown_token_id", 3, 0, v->n - 1);
    return fine(g) && (G3__MAX(G3__MAX(v->bos, v->eos), G3__MAX(v->pad, v->unk)) < v->n || bad(g, "a vocabulary of %u pieces lacks its control tokens", v->n));
}

// ---- merges
//
// tokenizer.json lists every merge in order of rank; a GGUF has none. But they follow from the pieces: every cut of a piece
// into two pieces is a merge, and the order is by the score of the whole, then by the length in characters of the left part,
// then of the right part (both falling), then by id. For Gemma 3 this gives the published list, all 514906 in their order.

typedef struct merge { float score; uint32_t id; uint16_t left, right, cut; } merge;     // left, right: characters; cut: bytes

static int by_rank(const void *a, const void *b)
{
    const merge *s = (const merge *)a, *t = (const merge *)b;
    if (s->score != t->score) return s->score > t->score ? -1 : 1;
    if (s->left != t->left)   return s->left > t->left ? -1 : 1;
    if (s->right != t->right) return s->right > t->right ? -1 : 1;
    return s->id < t->id ? -1 : s->id > t->id;
}

static bool add_merge(merge **list, size_t *n, size_t *cap, merge m)
{
    if (*n == *cap) {
        size_t more = *cap ? 2 * *cap : 1 << 16;
        merge *grown = (merge *)realloc(*list, more * sizeof **list);
        if (!grown) return false;
        *list = grown;
        *cap = more;
    }
    (*list)[(*n)++] = m;
    return true;
}

static bool cut_piece(const vocabulary *v, uint32_t id, merge **list, size_t *n, size_t *cap)
{
    g3__str s = v->pieces[id].text;
    unsigned chars = 0, left = 0;
    for (size_t i = 0; i < s.n; i++) chars += (s.p[i] & 0xC0) != 0x80;
    for (size_t cut = 1; cut < s.n; cut++) {
        if ((s.p[cut] & 0xC0) == 0x80) continue;                 // inside a character
        left++;
        if (g3__index_find(&v->index, g3__str_make(s.p, cut)) < 0 || g3__index_find(&v->index, g3__str_skip(s, cut)) < 0) continue;
        merge m = { v->pieces[id].score, id, (uint16_t)left, (uint16_t)(chars - left), (uint16_t)cut };
        if (!add_merge(list, n, cap, m)) return false;
    }
    return true;
}

static bool find_merges(gguf *g, const vocabulary *v, merge **list, size_t *n)   // *list is the caller's to free
{
    size_t cap = 0;
    for (uint32_t id = 0; id < v->n; id++)
        if (!cut_piece(v, id, list, n, &cap)) return g3__fail(g->err, G3_ERR_MEMORY, "not enough memory for the merges of the vocabulary") == G3_OK;
    if (*n) qsort(*list, *n, sizeof **list, by_rank);
    return true;
}

// ---- writing

static FILE *create(gguf *g, const char *dir, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = n < (int)sizeof path ? fopen(path, "wb") : NULL;
    if (!f) g3__fail(g->err, G3_ERR_IO, "%s/%s cannot be created: %s", dir, name, strerror(n < (int)sizeof path ? errno : ENAMETOOLONG));
    return f;
}

static bool finish(gguf *g, FILE *f, const char *dir, const char *name)  // closes f; a full disk shows here at the latest
{
    errno = 0;
    bool lost = fflush(f) != 0 || ferror(f) != 0;
    int why = errno;
    if (fclose(f) && !lost) { lost = true; why = errno; }
    if (lost && fine(g)) g3__fail(g->err, G3_ERR_IO, "%s/%s cannot be written: %s", dir, name, why ? strerror(why) : "the disk may be full");
    return fine(g);
}

static void put_string(FILE *f, g3__str s)                       // as a JSON string; what need not be escaped is not
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    fputc('"', f);
    for (size_t i = 0, run = 0; i <= s.n; i++) {
        unsigned char c = i < s.n ? (unsigned char)s.p[i] : '"';
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        fwrite(s.p + run, 1, i - run, f);
        run = i + 1;
        if (i == s.n) break;
        const char *k = c ? strchr(from, c) : NULL;
        if (k) fprintf(f, "\\%c", to[k - from]);
        else fprintf(f, "\\u%04x", c);
    }
    fputc('"', f);
}

static void put_float(FILE *f, float v)                          // the fewest digits that read back as v, written as Python does: 1e-06, 10000.0
{
    char text[64];
    int digits = 0;
    do snprintf(text, sizeof text, "%.*e", digits, (double)v); while (strtof(text, NULL) != v && ++digits < 9);
    int power = atoi(strchr(text, 'e') + 1);
    if (power >= -4 && power < 16) fprintf(f, "%.*f", G3__MAX(digits - power, 1), (double)v);
    else fputs(text, f);
}

static bool write_config(gguf *g, const model *m, const vocabulary *v, const char *dir)
{
    FILE *f = create(g, dir, "config.json");
    if (!f) return false;
    fprintf(f, "{\n  \"architectures\": [\n    \"Gemma3ForCausalLM\"\n  ],\n  \"model_type\": \"gemma3_text\",\n");
    fprintf(f, "  \"vocab_size\": %llu,\n  \"hidden_size\": %llu,\n  \"intermediate_size\": %llu,\n", (ull)m->vocab, (ull)m->dim, (ull)m->ffn);
    fprintf(f, "  \"num_hidden_layers\": %llu,\n  \"num_attention_heads\": %llu,\n", (ull)m->layers, (ull)m->heads);
    fprintf(f, "  \"num_key_value_heads\": %llu,\n  \"head_dim\": %llu,\n", (ull)m->kv_heads, (ull)m->head_dim);
    fprintf(f, "  \"hidden_activation\": \"gelu_pytorch_tanh\",\n  \"max_position_embeddings\": %llu,\n", (ull)m->context);
    fprintf(f, "  \"initializer_range\": 0.02,\n  \"rms_norm_eps\": ");
    put_float(f, m->eps);
    fprintf(f, ",\n  \"use_cache\": true,\n  \"bos_token_id\": %u,\n  \"eos_token_id\": %u,\n  \"pad_token_id\": %u,\n", v->bos, v->eos, v->pad);
    fprintf(f, "  \"tie_word_embeddings\": %s,\n  \"attention_bias\": false,\n  \"attention_dropout\": 0.0,\n", m->tied ? "true" : "false");
    fprintf(f, "  \"attn_logit_softcapping\": null,\n  \"final_logit_softcapping\": null,\n  \"query_pre_attn_scalar\": %llu,\n", (ull)m->scalar);
    fprintf(f, "  \"rope_theta\": ");
    put_float(f, m->theta);
    fprintf(f, ",\n  \"rope_local_base_freq\": ");
    put_float(f, m->theta_sliding);
    fprintf(f, ",\n  \"rope_scaling\": ");
    if (m->factor > 0) { fprintf(f, "{\n    \"factor\": "); put_float(f, m->factor); fprintf(f, ",\n    \"rope_type\": \"linear\"\n  }"); }
    else fprintf(f, "null");
    fprintf(f, ",\n  \"sliding_window\": %llu,\n  \"_sliding_window_pattern\": %llu,\n  \"layer_types\": [\n", (ull)m->window, (ull)m->pattern);
    for (uint64_t i = 0; i < m->layers; i++)
        fprintf(f, "    \"%s\"%s\n", (i + 1) % m->pattern ? "sliding_attention" : "full_attention", i + 1 < m->layers ? "," : "");
    fprintf(f, "  ],\n  \"use_bidirectional_attention\": false,\n  \"torch_dtype\": \"bfloat16\"\n}\n");
    return finish(g, f, dir, "config.json");
}

static bool write_generation(gguf *g, const vocabulary *v, const char *dir)      // the settings of Gemma's model card
{
    int64_t stop[3] = { g3__index_find(&v->index, g3__str_c("<eos>")), g3__index_find(&v->index, g3__str_c("<end_of_turn>")), v->eos };
    const char *comma = "";
    FILE *f = create(g, dir, "generation_config.json");
    if (!f) return false;
    fprintf(f, "{\n  \"bos_token_id\": %u,\n  \"eos_token_id\": [", v->bos);
    for (int i = 0; i < 3; i++) {
        if (stop[i] < 0 || (i == 2 && (stop[2] == stop[0] || stop[2] == stop[1]))) continue;
        fprintf(f, "%s\n    %lld", comma, (long long)stop[i]);
        comma = ",";
    }
    fprintf(f, "\n  ],\n  \"pad_token_id\": %u,\n  \"do_sample\": true,\n  \"top_k\": 64,\n  \"top_p\": 0.95,\n  \"cache_implementation\": \"hybrid\"\n}\n", v->pad);
    return finish(g, f, dir, "generation_config.json");
}

// What tokenizer.json does not say. A chat template is written if the GGUF has one, and only then: a base model has none.
static bool write_tokenizer_config(gguf *g, const vocabulary *v, const char *dir)
{
    g3__str chat = key_text(g, "tokenizer.chat_template");
    if (fine(g) && chat.p && !valid_utf8(chat)) return bad(g, "key 'tokenizer.chat_template' is not UTF-8");
    FILE *f = fine(g) ? create(g, dir, "tokenizer_config.json") : NULL;
    if (!f) return false;
    fprintf(f, "{\n  \"add_bos_token\": true,\n  \"add_eos_token\": false,\n  \"bos_token\": ");
    put_string(f, v->pieces[v->bos].text);
    if (chat.p) { fprintf(f, ",\n  \"chat_template\": "); put_string(f, chat); }
    fprintf(f, ",\n  \"clean_up_tokenization_spaces\": false,\n  \"eos_token\": ");
    put_string(f, v->pieces[v->eos].text);
    fprintf(f, ",\n  \"pad_token\": ");
    put_string(f, v->pieces[v->pad].text);
    fprintf(f, ",\n  \"spaces_between_special_tokens\": false,\n  \"tokenizer_class\": \"GemmaTokenizer\",\n  \"unk_token\": ");
    put_string(f, v->pieces[v->unk].text);
    fprintf(f, "\n}\n");
    return finish(g, f, dir, "tokenizer_config.json");
}

static void put_added_token(FILE *f, uint32_t id, g3__str text, bool special, bool first)
{
    fprintf(f, "%s\n    {\n      \"id\": %u,\n      \"content\": ", first ? "" : ",", id);
    put_string(f, text);
    fputs(",\n      \"single_word\": false,\n      \"lstrip\": false,\n      \"rstrip\": false,\n      \"normalized\": false,\n", f);
    fprintf(f, "      \"special\": %s\n    }", special ? "true" : "false");
}

static void put_added_tokens(FILE *f, const vocabulary *v)
{
    bool first = true;
    fputs("  \"added_tokens\": [", f);
    for (uint32_t id = 0; id < v->n; id++) {
        if (!is_added(&v->pieces[id])) continue;
        put_added_token(f, id, v->pieces[id].text, is_special(&v->pieces[id]), first);
        first = false;
    }
    if (v->image) put_added_token(f, v->n, g3__str_c(image_token), true, first);
    fputs("\n  ],\n", f);
}

static void put_bos(FILE *f, g3__str bos, int type)              // one step of the post-processor
{
    fputs("      {\n        \"SpecialToken\": {\n          \"id\": ", f);
    put_string(f, bos);
    fprintf(f, ",\n          \"type_id\": %d\n        }\n      },\n", type);
}

static void put_sequence(FILE *f, char which, int type, bool last)
{
    fprintf(f, "      {\n        \"Sequence\": {\n          \"id\": \"%c\",\n          \"type_id\": %d\n        }\n      }%s\n", which, type, last ? "" : ",");
}

// Spaces become U+2581 on the way in and come back on the way out; <bos> goes in front.
static void put_rules(FILE *f, const vocabulary *v)
{
    g3__str bos = v->pieces[v->bos].text;
    fputs("  \"normalizer\": {\n    \"type\": \"Replace\",\n    \"pattern\": {\n      \"String\": \" \"\n    },\n    \"content\": \"\xE2\x96\x81\"\n  },\n", f);
    fputs("  \"pre_tokenizer\": {\n    \"type\": \"Split\",\n    \"pattern\": {\n      \"String\": \" \"\n    },\n"
          "    \"behavior\": \"MergedWithPrevious\",\n    \"invert\": false\n  },\n", f);
    fputs("  \"post_processor\": {\n    \"type\": \"TemplateProcessing\",\n    \"single\": [\n", f);
    put_bos(f, bos, 0);
    put_sequence(f, 'A', 0, true);
    fputs("    ],\n    \"pair\": [\n", f);
    put_bos(f, bos, 0);
    put_sequence(f, 'A', 0, false);
    put_bos(f, bos, 1);
    put_sequence(f, 'B', 1, true);
    fputs("    ],\n    \"special_tokens\": {\n      ", f);
    put_string(f, bos);
    fputs(": {\n        \"id\": ", f);
    put_string(f, bos);
    fprintf(f, ",\n        \"ids\": [\n          %u\n        ],\n        \"tokens\": [\n          ", v->bos);
    put_string(f, bos);
    fputs("\n        ]\n      }\n    }\n  },\n", f);
    fputs("  \"decoder\": {\n    \"type\": \"Sequence\",\n    \"decoders\": [\n"
          "      {\n        \"type\": \"Replace\",\n        \"pattern\": {\n          \"String\": \"\xE2\x96\x81\"\n        },\n"
          "        \"content\": \" \"\n      },\n      {\n        \"type\": \"ByteFallback\"\n      },\n      {\n        \"type\": \"Fuse\"\n      }\n    ]\n  },\n", f);
}

static void put_vocabulary(FILE *f, const vocabulary *v)
{
    fputs("    \"vocab\": {", f);
    for (uint32_t id = 0; id < v->n; id++) {
        fputs(id ? ",\n      " : "\n      ", f);
        put_string(f, v->pieces[id].text);
        fprintf(f, ": %u", id);
    }
    fputs("\n    },\n", f);
}

static void put_merges(FILE *f, const vocabulary *v, const merge *list, size_t n)
{
    fputs("    \"merges\": [", f);
    for (size_t i = 0; i < n; i++) {
        g3__str whole = v->pieces[list[i].id].text;
        fputs(i ? ",\n      [\n        " : "\n      [\n        ", f);
        put_string(f, g3__str_make(whole.p, list[i].cut));
        fputs(",\n        ", f);
        put_string(f, g3__str_skip(whole, list[i].cut));
        fputs("\n      ]", f);
    }
    fputs(n ? "\n    ]\n" : "]\n", f);
}

// The layout is that of the `tokenizers` library, so the published file comes out byte for byte.
static bool write_tokenizer(gguf *g, const vocabulary *v, const char *dir)
{
    merge *list = NULL;
    size_t n = 0;
    FILE *f = find_merges(g, v, &list, &n) ? create(g, dir, "tokenizer.json") : NULL;
    if (f) {
        fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n", f);
        put_added_tokens(f, v);
        put_rules(f, v);
        fputs("  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ", f);
        put_string(f, v->pieces[v->unk].text);
        fputs(",\n    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n"
              "    \"fuse_unk\": true,\n    \"byte_fallback\": true,\n    \"ignore_merges\": false,\n", f);
        put_vocabulary(f, v);
        put_merges(f, v, list, n);
        fputs("  }\n}", f);
        finish(g, f, dir, "tokenizer.json");
    }
    free(list);
    return fine(g);
}

// ---- weights

static void put_header(FILE *f, const output *o, size_t n)       // u64 size | JSON, padded with spaces to a multiple of 8
{
    unsigned char size[8];
    uint64_t at = 0;
    fwrite("\0\0\0\0\0\0\0", 1, 8, f);                           // the size, when it is known
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", f);
    for (size_t i = 0; i < n; i++) {
        const gguf_tensor *t = o[i].t;
        fprintf(f, ",\"%s\":{\"dtype\":\"BF16\",\"shape\":[", o[i].name);
        for (uint32_t d = t->rank; d-- > 0;) fprintf(f, "%llu%s", (ull)t->dims[d], d ? "," : "");
        fprintf(f, "],\"data_offsets\":[%llu,%llu]}", (ull)at, (ull)(at + 2 * t->elements));
        at += 2 * t->elements;
    }
    fputc('}', f);
    while (ftello(f) % 8) fputc(' ', f);
    uint64_t bytes = (uint64_t)ftello(f) - 8;
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)(bytes >> 8 * i);
    fseeko(f, 0, SEEK_SET);
    fwrite(size, 1, 8, f);
    fseeko(f, 0, SEEK_END);
}

typedef struct slices { unsigned char *raw, *bf16; float *f32; } slices;

// Reads, decodes, rounds once to bf16 and writes n elements of t from element `first` on.
static bool write_slice(gguf *g, FILE *f, const gguf_tensor *t, uint64_t first, uint64_t n, const slices *s)
{
    const block_type *b = t->type;
    uint64_t blocks = n / b->elements;
    float less = g3__str_ends(t->name, "norm.weight") ? 1.0f : 0.0f;
    if (!seek(g, t->at + first / b->elements * b->bytes) || !take(g, s->raw, blocks * b->bytes)) return false;
    for (uint64_t i = 0; i < blocks; i++) b->decode(s->raw + i * b->bytes, s->f32 + i * b->elements);
    for (uint64_t i = 0; i < n; i++) {
        uint16_t h = g3__f32_to_bf16(s->f32[i] - less);
        if ((h & 0x7f80) == 0x7f80) return bad(g, "element %llu of tensor '%.*s' is not a finite number", (ull)(first + i), G3__S(t->name));
        s->bf16[2 * i] = (unsigned char)h;
        s->bf16[2 * i + 1] = (unsigned char)(h >> 8);
    }
    return fwrite(s->bf16, 2, (size_t)n, f) == n;                // a short write is reported by finish
}

static bool write_weights(gguf *g, const output *o, size_t n, const char *dir)
{
    slices s;
    s.raw  = (unsigned char *)g3__zone_alloc(g->zone, SLICE, 4, g->err);         // no type takes more than 4 bytes an element
    s.f32  = (float *)g3__zone_alloc(g->zone, SLICE, sizeof(float), g->err);
    s.bf16 = (unsigned char *)g3__zone_alloc(g->zone, SLICE, 2, g->err);
    FILE *f = s.raw && s.f32 && s.bf16 ? create(g, dir, "model.safetensors") : NULL;
    if (!f) return false;
    put_header(f, o, n);
    bool ok = true, show = isatty(2) != 0;
    for (size_t i = 0; ok && i < n; i++) {
        if (show) fprintf(stderr, "\r%u of %u tensors ", (unsigned)i + 1, (unsigned)n);
        for (uint64_t e = 0; ok && e < o[i].t->elements; e += SLICE)
            ok = write_slice(g, f, o[i].t, e, G3__MIN(o[i].t->elements - e, (uint64_t)SLICE), &s);
    }
    if (show) fprintf(stderr, "\r%24s\r", "");
    ok = ok && !fflush(f) && (!fsync(fileno(f)) || errno == EINVAL);             // on the disk before its directory gets its name
    return finish(g, f, dir, "model.safetensors") && (ok || g3__fail(g->err, G3_ERR_IO, "%s/model.safetensors cannot be written", dir) == G3_OK);
}

// ---- the target: written beside, checked, then put in place

static const char *const target_files[] = { "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors" };

static const char *path_of(gguf *g, const char *dir, const char *sep, const char *name)
{
    size_t n = strlen(dir) + strlen(sep) + strlen(name) + 1;
    char *p = (char *)g3__zone_alloc(g->zone, n, 1, g->err);
    if (p) snprintf(p, n, "%s%s%s", dir, sep, name);
    return p;
}

static bool target_usable(gguf *g, const char *out, bool force)
{
    struct stat st;
    int others = 0;
    if (stat(out, &st)) return errno == ENOENT || g3__fail(g->err, G3_ERR_IO, "%s cannot be looked at: %s", out, strerror(errno)) == G3_OK;
    DIR *d = opendir(out);
    if (!d) return g3__fail(g->err, G3_ERR_IO, "%s exists and is not a directory that can be read", out) == G3_OK;
    for (struct dirent *e; (e = readdir(d)) != NULL;) others += strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
    closedir(d);
    if (others && !force) return g3__fail(g->err, G3_ERR_ARGUMENT, "%s is not empty; --force replaces the model files in it", out) == G3_OK;
    for (int i = 0; i < G3__COUNT(target_files); i++) {
        const char *p = path_of(g, out, "/", target_files[i]);
        if (p && !lstat(p, &st) && S_ISDIR(st.st_mode)) return g3__fail(g->err, G3_ERR_IO, "%s is a directory and in the way", p) == G3_OK;
    }
    return fine(g);
}

static void remove_part(gguf *g, const char *part)
{
    for (int i = 0; i < G3__COUNT(target_files); i++) {
        const char *p = path_of(g, part, "/", target_files[i]);
        if (p) remove(p);
    }
    rmdir(part);
}

static bool check_opens(gguf *g, const char *dir)                // what was written must be a model to this header
{
    g3_model_desc desc;
    g3_error err;
    memset(&desc, 0, sizeof desc);
    desc.path = dir;
    desc.no_weights = true;
    g3_model *m = g3_model_open(&desc, &err);
    if (!m) return bad(g, "the imported model does not open: %s", err.text);
    g3_model_close(m);
    return true;
}

static bool put_in_place(gguf *g, const char *part, const char *out)
{
    struct stat st;
    if (stat(out, &st)) return !rename(part, out) || g3__fail(g->err, G3_ERR_IO, "%s cannot be renamed to %s: %s", part, out, strerror(errno)) == G3_OK;
    for (int i = 0; i < G3__COUNT(target_files); i++) {
        const char *from = path_of(g, part, "/", target_files[i]), *to = path_of(g, out, "/", target_files[i]);
        if (!from || !to) return false;
        if (rename_over(from, to)) return g3__fail(g->err, G3_ERR_IO, "%s cannot be renamed to %s: %s", from, to, strerror(errno)) == G3_OK;
    }
    rmdir(part);
    return true;
}

static bool write_target(gguf *g, const model *m, const vocabulary *v, const output *o, size_t n, const char *out)
{
    const char *part = path_of(g, out, ".part", "");
    if (!part) return false;
    remove_part(g, part);                                        // what a killed run left there
    if (mkdir(part, 0777)) return g3__fail(g->err, G3_ERR_IO, "%s cannot be made: %s", part, strerror(errno)) == G3_OK;
    bool ok = write_config(g, m, v, part) && write_generation(g, v, part) && write_tokenizer_config(g, v, part) && write_tokenizer(g, v, part)
           && write_weights(g, o, n, part) && check_opens(g, part) && put_in_place(g, part, out);
    if (!ok) remove_part(g, part);
    return ok;
}

// The whole import. false: err says why in one sentence, and out is as it was before.
static bool import_gguf(const char *in, const char *out_dir, bool force, g3_error *err)
{
    g3__heap heap;
    g3__zone zone;
    gguf g;
    model m;
    vocabulary v;
    output *list = NULL;
    size_t n = 0, slash = strlen(out_dir);
    g3__error_clear(err);
    g3__heap_init(&heap, NULL);
    g3__zone_init(&zone, &heap);
    memset(&g, 0, sizeof g);
    memset(&m, 0, sizeof m);
    memset(&v, 0, sizeof v);
    g.err = err;
    g.zone = &zone;
    while (slash > 1 && out_dir[slash - 1] == '/') slash--;      // so that ".part" comes beside, not inside
    const char *out = g3__zone_text(&zone, g3__str_make(out_dir, slash), err);
    bool ok = out && target_usable(&g, out, force) && open_gguf(&g, in) && read_model(&g, &m) && find_outputs(&g, &m, &list, &n) && read_vocabulary(&g, &v)
           && write_target(&g, &m, &v, list, n, out);
    if (g.file) fclose(g.file);
    g3__zone_free(&zone);
    return ok;
}

#ifndef IMPORT_GGUF_NO_MAIN
static const char usage[] =
    "usage: import_gguf [--force] MODEL.gguf OUT_DIR\n"
    "\n"
    "Turns a Gemma 3 GGUF file (F32, F16, BF16, Q4_0, Q5_0, Q8_0, Q4_K, Q6_K) into a Hugging Face directory:\n"
    "model.safetensors in bf16, config.json, generation_config.json, tokenizer.json, tokenizer_config.json.\n"
    "\n"
    "  --force   replace these five files in an OUT_DIR that is not empty; others in it stay\n"
    "  --help    this text\n";

int main(int argc, char **argv)
{
    const char *path[2] = { NULL, NULL };
    int n = 0;
    bool force = false;
    g3_error err;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) { fputs(usage, stdout); return 0; }
        if (!strcmp(argv[i], "--force")) force = true;
        else if (argv[i][0] != '-' && n < 2) path[n++] = argv[i];
        else { fprintf(stderr, "import_gguf: unexpected argument '%s'; see --help\n", argv[i]); return 1; }
    }
    if (n < 2) { fputs(usage, stderr); return 1; }
    if (!import_gguf(path[0], path[1], force, &err)) { fprintf(stderr, "import_gguf: %s\n", err.text); return 1; }
    fprintf(stderr, "%s written\n", path[1]);
    return 0;
}
#endif
