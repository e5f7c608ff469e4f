// quantize: makes a 4-bit bitsandbytes checkpoint (NF4, double quantisation) out of a dense Gemma 3 checkpoint.
//
//     build/quantize [--keep PATTERN]… [--shard-size SIZE] [--force] SOURCE TARGET
//
// Shows how the format comes about, number by number, so that any Gemma 3 (a fine-tune, say) fits a smaller machine without Python.
// Codes and scales are those that bitsandbytes computes on a CPU, bit for bit; transformers and gemma3.h load the result alike.
// Linear weights of decoder and vision tower become 4-bit; embeddings, norms, projector, convolution and lm_head stay as they are.
// One tensor at a time passes through in slices, so that 27B needs a few MB. The target is written as TARGET.part and renamed at the end.
//
// Like the tests, this program includes the implementation and uses private names: it needs files as files, which the API hides.
// Reading order: numbers, plan, writing, directories, options.
#define _FILE_OFFSET_BITS 64
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/stat.h>
#include "common.h"
#if defined(_WIN32)
#include <direct.h>
#include <io.h>
#define quantize_mkdir(path)  _mkdir(path)
#define quantize_sync(file)   _commit(_fileno(file))
#define quantize_seek(f, at)  _fseeki64(f, (long long)(at), SEEK_SET)
#define quantize_tty()        _isatty(2)
#else
#include <unistd.h>
#define quantize_mkdir(path)  mkdir(path, 0777)
#define quantize_sync(file)   fsync(fileno(file))
#define quantize_seek(f, at)  fseeko(f, (off_t)(at), SEEK_SET)
#define quantize_tty()        isatty(2)
#endif

// ---- numbers: what bitsandbytes computes on a CPU, in float32 throughout

enum { BLOCK = 64, NESTED_BLOCK = 256, DYNAMIC_STEPS = 65536 };

// A 4-bit code is found by comparing with the 15 middles between neighbours of the sorted table.
typedef struct coder { float middle[15]; uint8_t code[16]; } coder;

static void coder_init(coder *c, const float table[16])
{
    for (int i = 0; i < 16; i++) {                        // insertion sort by value; equal ones (FP4 has two zeros) by code
        int k = i;
        for (; k && table[c->code[k - 1]] > table[i]; k--) c->code[k] = c->code[k - 1];
        c->code[k] = (uint8_t)i;
    }
    for (int i = 0; i < 15; i++) c->middle[i] = (table[c->code[i]] + table[c->code[i + 1]]) / 2;
}

// The number of middles strictly below v is v's place in the table, so that a tie goes to the lower value. Four steps of bisection.
static unsigned coder_code(const coder *c, float v)
{
    const float *m = c->middle;
    unsigned at = v > m[7] ? 8 : 0;
    at += v > m[at + 3] ? 4 : 0;
    at += v > m[at + 1] ? 2 : 0;
    at += v > m[at] ? 1 : 0;
    return c->code[at];
}

static float clamp1(float v) { return v < -1 ? -1 : v > 1 ? 1 : v; }

// One block: codes of x / max|x|, the first of each pair in the high nibble. A full block is multiplied by the reciprocal of its maximum,
// a short one (the last of a tensor) is divided by it and stores at least 1e-38. Returns the scale; NaN where x holds NaN or infinity.
static float quantise_block(const coder *c, const float *x, int n, bool full, uint8_t *codes)
{
    const float tiny = 1e-38f;
    float max = 0, v[2];
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (!(a <= FLT_MAX)) return (float)NAN;
        if (a > max) max = a;
    }
    float floor = max > tiny ? max : tiny, inverse = 1.0f / floor;
    for (int i = 0; i < n; i += 2) {
        for (int k = 0; k < 2; k++) v[k] = i + k >= n ? 0 : clamp1(full ? x[i + k] * inverse : x[i + k] / floor);
        codes[i / 2] = (uint8_t)(coder_code(c, v[0]) << 4 | coder_code(c, v[1]));
    }
    return full ? max : floor;
}

// n elements that begin at a block: (n + 1) / 2 bytes of codes, ceil(n / block) scales. false: x holds NaN or infinity.
static bool quantise(const coder *c, const float *x, uint64_t n, int block, uint8_t *codes, float *absmax)
{
    for (uint64_t i = 0; i < n; i += (uint64_t)block, absmax++) {
        bool full = n - i >= (uint64_t)block;
        *absmax = quantise_block(c, x + i, full ? block : (int)(n - i), full, codes + i / 2);
        if (*absmax != *absmax) return false;
    }
    return true;
}

// The signed dynamic map with 7 bits of exponent ("8-Bit Approximations for Parallelism in Deep Learning", Dettmers 2015): for each power
// of ten 10^(i-6) the middles of 2^i equal parts of [0.1, 1], of both signs; then 0 and 1. Sorted. torch.linspace goes from the nearer end,
// with fused multiply-adds: fmaf gives them on every machine.
static int compare_floats(const void *a, const void *b) { float x = *(const float *)a, y = *(const float *)b; return (x > y) - (x < y); }

static void dynamic_map(float map[256])
{
    static const float power[7] = { 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f };
    int n = 0;
    for (int i = 0; i < 7; i++) {
        int parts = 1 << i;
        float step = (1.0f - 0.1f) / (float)parts, edge[65];
        for (int k = 0; k <= parts; k++) edge[k] = k < (parts + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(parts - k), 1.0f);
        for (int k = 0; k < parts; k++) {
            map[n] = power[i] * ((edge[k] + edge[k + 1]) / 2);
            map[n + 1] = -map[n];
            n += 2;
        }
    }
    map[n++] = 0;
    map[n++] = 1;
    qsort(map, (size_t)n, sizeof *map, compare_floats);
}

// bitsandbytes' CPU library finds the nearest entry through a table of 65536 values from -1 to 1; a tie goes to the lower one.
typedef struct nester { float map[256]; uint8_t nearest[DYNAMIC_STEPS]; } nester;

static void nester_init(nester *t)
{
    int at = 0;
    dynamic_map(t->map);
    for (int k = 0; k < DYNAMIC_STEPS; k++) {
        volatile float way = (float)k * (2.0f / 65535.0f);
        float v = way - 1.0f;
        while (at < 255 && fabsf(t->map[at + 1] - v) < fabsf(t->map[at] - v)) at++;
        t->nearest[k] = (uint8_t)at;
    }
}

static uint8_t nester_code(const nester *t, float v)
{
    if (v != v) return 0;                                 // a block of zeros, 0 * (1 / 0): bitsandbytes' code is 0, and its scale 0 as well
    volatile float place = (clamp1(v) + 1.0f) * 0.5f * 65535.0f;
    return t->nearest[(int)(place + 0.5f)];               // volatile: the product is rounded before the sum, whatever the compiler likes to fuse
}

// The sum of n floats, `step` apart, in the order of torch's CPU kernel: partial sums over stretches of 16 or more, summed over stretches
// of those and so on, four levels in all, so that rounding errors stay small.
static float cascade_sum(const float *x, uint64_t n, uint64_t step)
{
    float level[4] = { 0, 0, 0, 0 };
    int bits = 0, stretch;
    while (((uint64_t)1 << bits) < n) bits++;                                            // ceil(log2 n)
    stretch = bits / 4 > 4 ? bits / 4 : 4;
    uint64_t i = 0, length = (uint64_t)1 << stretch;
    while (i + length <= n) {
        for (uint64_t k = 0; k < length; k++, i++) level[0] += x[i * step];
        for (int j = 1; j < 4; j++) {
            level[j] += level[j - 1];
            level[j - 1] = 0;
            if (i & (length - 1) << (j * stretch)) break;
        }
    }
    for (; i < n; i++) level[0] += x[i * step];
    return level[0] + level[1] + level[2] + level[3];
}

// `lanes` rows of four interleaved sums each, as the kernel holds them in its vector registers.
static float lane_sum(const float *x, uint64_t n, int lanes, int lane)
{
    uint64_t rows = n / (uint64_t)lanes, quads = rows / 4;
    float sum[4];
    for (int k = 0; k < 4; k++) sum[k] = cascade_sum(x + k * lanes + lane, quads, 4 * (uint64_t)lanes);
    for (uint64_t i = quads * 4; i < rows; i++) sum[0] += x[i * (uint64_t)lanes + (uint64_t)lane];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

// torch.mean of a contiguous float32 tensor on one thread: eight lanes, what is left of them first, then the lanes in turn; then one division.
static float torch_mean(const float *x, uint64_t n)
{
    float sum = 0;
    if (n < 8) return lane_sum(x, n, 1, 0) / (float)n;
    for (uint64_t i = n / 8 * 8; i < n; i++) sum += x[i];
    for (int lane = 0; lane < 8; lane++) sum += lane_sum(x, n, 8, lane);
    return sum / (float)n;
}

// Blocks of 256 floats become one byte each, the code of x / max|x|, and a scale, max|x|.
static void nest(const nester *t, const float *x, uint64_t n, uint8_t *codes, float *nested)
{
    for (uint64_t i = 0; i < n; i += NESTED_BLOCK, nested++) {
        uint64_t end = n - i < NESTED_BLOCK ? n : i + NESTED_BLOCK;
        float max = 0;
        for (uint64_t k = i; k < end; k++) max = fabsf(x[k]) > max ? fabsf(x[k]) : max;
        for (uint64_t k = i; k < end; k++) codes[k] = nester_code(t, x[k] * (1.0f / max));
        *nested = max;
    }
}

// Double quantisation: the scales less their mean, nested. Returns the mean; absmax is overwritten.
static float nest_scales(const nester *t, float *absmax, uint64_t n, uint8_t *codes, float *nested)
{
    float offset = torch_mean(absmax, n);
    for (uint64_t i = 0; i < n; i++) absmax[i] -= offset;
    nest(t, absmax, n, codes, nested);
    return offset;
}

// ---- plan: which tensors the target has, and in which shard each one lies

typedef enum part { DENSE, CODES, ABSMAX, STATE, MAP, NESTED, NESTED_MAP } part;

typedef struct piece {                                    // one tensor of the target
    const char *name;
    const g3__tensor *from;                               // what it is made of
    part kind;
    int dtype, rank, shard;
    uint64_t dims[4], bytes, offset;                      // offset: in the data of its shard
} piece;

typedef struct quantize_job {
    const char *source, *target;
    const char **keep;                                    // [n_keep]
    bool *keep_used;
    int n_keep;
    uint64_t shard_size;
    bool force, quiet;

    g3__heap heap;
    g3__zone zone;
    g3__shards in;
    char part_path[1024], old_path[1024];
    piece *piece;
    uint64_t n_pieces;
    int n_shards;
    const char **kept;                                    // modules left dense
    uint64_t n_kept, n_quantised, before, after;
    const char *dtype;                                    // of the source, as torch calls it
    bool vision, tied;

    float *x, *absmax;                                    // [SLICE], [blocks of the largest weight]
    uint8_t *raw, *codes, *absmax_codes;
    float *nested;
    uint64_t *nested_at;                                  // [tensors of the source]: where in the shard its nested_absmax goes
    uint64_t cap_blocks;
    coder coder;
    nester *nester;
    FILE *out;
    char out_path[1200];
    uint64_t done, total;                                 // bytes of the source, for progress
    int percent;
    g3_error *err;
} quantize_job;

static bool fail(quantize_job *q, g3_result code, const char *fmt, ...) G3__PRINTF(3, 4);
static bool fail(quantize_job *q, g3_result code, const char *fmt, ...)        // always false, for `return fail(...)`
{
    va_list args;
    va_start(args, fmt);
    g3__vfail(q->err, code, fmt, args);
    va_end(args);
    return false;
}

enum { SLICE = 1 << 20, STATE_MAX = 512 };                // elements of a slice: whole blocks; bytes of a quant_state at most

static volatile sig_atomic_t quantize_stopped;

// A pattern matches a run of whole components of a module's name; * and ? as in a shell, * also over dots. "layers.1" is not in "layers.11".
static bool glob_match(const char *p, const char *s)      // p from its beginning, up to the end of a component of s
{
    const char *star = NULL, *retry = NULL;
    for (;;) {
        if (!*p && (!*s || *s == '.')) return true;
        if (*p == '*') { star = ++p; retry = s; continue; }
        if (*p && *s && (*p == '?' || *p == *s)) { p++; s++; continue; }
        if (!star || !*retry) return false;
        p = star;
        s = ++retry;
    }
}

static bool keep_match(const char *pattern, const char *module)
{
    for (const char *s = module; s; s = strchr(s, '.') ? strchr(s, '.') + 1 : NULL)
        if (glob_match(pattern, s)) return true;
    return false;
}

// The linear weights are told by the last two components of their names: those that transformers quantises, in either tower.
static bool is_linear(const g3__tensor *t)
{
    static const char *const name[] = {
        ".self_attn.q_proj.weight", ".self_attn.k_proj.weight", ".self_attn.v_proj.weight", ".self_attn.o_proj.weight", ".self_attn.out_proj.weight",
        ".mlp.gate_proj.weight", ".mlp.up_proj.weight", ".mlp.down_proj.weight", ".mlp.fc1.weight", ".mlp.fc2.weight",
    };
    for (int i = 0; i < G3__COUNT(name); i++)
        if (g3__str_ends(t->name, name[i])) return t->rank == 2 && t->count > 0;
    return false;
}

static const char *module_of(quantize_job *q, const g3__tensor *t)     // the name less ".weight"
{
    return g3__zone_text(&q->zone, g3__str_make(t->name.p, t->name.n - strlen(".weight")), q->err);
}

static bool is_kept(quantize_job *q, const char *module)
{
    bool kept = false;
    for (int i = 0; i < q->n_keep; i++)
        if (keep_match(q->keep[i], module)) q->keep_used[i] = kept = true;
    return kept;
}

static int dtype_place(const char *name)
{
    int i = 0;
    while (strcmp(g3__dtypes[i].name, name)) i++;
    return i;
}

static bool piece_add(quantize_job *q, const g3__tensor *from, const char *suffix, part kind, const char *dtype, int rank, uint64_t rows, uint64_t cols)
{
    piece *p = &q->piece[q->n_pieces++];
    char *name = (char *)g3__zone_alloc(&q->zone, from->name.n + strlen(suffix) + 1, 1, q->err);
    if (!name) return false;
    memcpy(name, from->name.p, from->name.n);
    strcpy(name + from->name.n, suffix);
    p->name = name;
    p->from = from;
    p->kind = kind;
    p->dtype = dtype_place(dtype);
    p->rank = rank;
    p->dims[0] = rows;
    p->dims[1] = cols;
    p->bytes = rows * (rank == 2 ? cols : 1) * (uint64_t)g3__dtypes[p->dtype].bits / 8;
    return true;
}

static bool plan_dense(quantize_job *q, const g3__tensor *t)
{
    if (t->rank > 4) return fail(q, G3_ERR_UNSUPPORTED, "tensor \"%.*s\": %d dimensions; at most 4 are copied", G3__S(t->name), t->rank);
    if (!piece_add(q, t, "", DENSE, g3__dtypes[t->dtype].name, 0, 0, 0)) return false;
    piece *p = &q->piece[q->n_pieces - 1];
    p->rank = t->rank;
    memcpy(p->dims, t->dims, sizeof p->dims);
    p->bytes = t->bytes;
    return true;
}

static const char *torch_name(const g3__tensor *t)        // of its dtype
{
    g3__format f = g3__tensor_format(t);
    return f == G3__F32 ? "float32" : f == G3__BF16 ? "bfloat16" : "float16";
}

static bool plan_weight(quantize_job *q, const g3__tensor *t)
{
    uint64_t blocks = (t->count + BLOCK - 1) / BLOCK, nested = (blocks + NESTED_BLOCK - 1) / NESTED_BLOCK;
    g3__format f = g3__tensor_format(t);
    if (f != G3__F32 && f != G3__BF16 && f != G3__F16)
        return fail(q, G3_ERR_UNSUPPORTED, "tensor \"%.*s\" is %s; a dense checkpoint (BF16, F16 or F32) is needed",
            G3__S(t->name), g3__dtypes[t->dtype].name);
    if (t->count > UINT64_MAX / 8) return fail(q, G3_ERR_FORMAT, "tensor \"%.*s\" is too large", G3__S(t->name));
    q->dtype = torch_name(t);
    q->cap_blocks = G3__MAX(q->cap_blocks, blocks);
    q->n_quantised++;
    return piece_add(q, t, "", CODES, "U8", 2, (t->count + 1) / 2, 1)
        && piece_add(q, t, ".absmax", ABSMAX, "U8", 1, blocks, 0)
        && piece_add(q, t, ".quant_state.bitsandbytes__nf4", STATE, "U8", 1, STATE_MAX, 0)             // its size is known when it is written
        && piece_add(q, t, ".quant_map", MAP, "F32", 1, 16, 0)
        && piece_add(q, t, ".nested_absmax", NESTED, "F32", 1, nested, 0)
        && piece_add(q, t, ".nested_quant_map", NESTED_MAP, "F32", 1, 256, 0);
}

// Names in the order of the model: numbers count as numbers, so that layer 10 comes after layer 9. It decides the shards.
static int compare_natural(const void *a, const void *b)
{
    g3__str s = (*(const g3__tensor *const *)a)->name, t = (*(const g3__tensor *const *)b)->name;
    size_t i = 0, k = 0;
    while (i < s.n && k < t.n) {
        size_t m = i, n = k;
        while (m < s.n && s.p[m] >= '0' && s.p[m] <= '9') m++;
        while (n < t.n && t.p[n] >= '0' && t.p[n] <= '9') n++;
        if (m - i != n - k && m > i && n > k) return m - i < n - k ? -1 : 1;             // more digits, a larger number
        if (s.p[i] != t.p[k]) return (unsigned char)s.p[i] < (unsigned char)t.p[k] ? -1 : 1;
        i++; k++;
    }
    return (s.n - i > t.n - k) - (s.n - i < t.n - k);
}

// safetensors' own writer puts the largest elements first, so that all are aligned, then goes by name.
static int compare_pieces(const void *a, const void *b)
{
    const piece *p = (const piece *)a, *r = (const piece *)b;
    if (p->shard != r->shard) return p->shard < r->shard ? -1 : 1;
    if (g3__dtypes[p->dtype].bits != g3__dtypes[r->dtype].bits) return g3__dtypes[p->dtype].bits > g3__dtypes[r->dtype].bits ? -1 : 1;
    return p->dtype != r->dtype ? (p->dtype < r->dtype ? -1 : 1) : strcmp(p->name, r->name);
}

static bool same_bytes(quantize_job *q, const g3__tensor *a, const g3__tensor *b)        // false also for what cannot be read: copying it tells
{
    uint64_t half = SLICE * 2;
    if (a->bytes != b->bytes || a->dtype != b->dtype) return false;
    for (uint64_t at = 0; at < a->bytes; at += half) {
        uint64_t n = G3__MIN(half, a->bytes - at);
        if (!g3__tensor_read(&q->in, a, at, q->raw, n, NULL) || !g3__tensor_read(&q->in, b, at, q->raw + half, n, NULL)) return false;
        if (memcmp(q->raw, q->raw + half, n)) return false;
    }
    return true;
}

// Some writers repeat the embedding as lm_head although the config ties the two: such a head is left out.
static bool is_tied_head(quantize_job *q, const g3__tensor *t)
{
    if (!q->tied || !g3__str_ends(t->name, "lm_head.weight")) return false;
    for (uint64_t i = 0; i < q->in.n; i++)
        if (!q->in.tensor[i].unlisted && g3__str_ends(q->in.tensor[i].name, "embed_tokens.weight")) return same_bytes(q, t, &q->in.tensor[i]);
    return false;
}

static bool contains(g3__str s, const char *word)
{
    for (; s.n >= strlen(word); s = g3__str_skip(s, 1))
        if (g3__str_starts(s, word)) return true;
    return false;
}

static bool check_dense(quantize_job *q)
{
    for (uint64_t i = 0; i < q->in.n; i++) {
        g3__str name = q->in.tensor[i].name;
        if (contains(name, ".quant_state.bitsandbytes__") || g3__str_ends(name, ".SCB"))
            return fail(q, G3_ERR_UNSUPPORTED, "%s is quantised already (tensor \"%.*s\"); a dense checkpoint is needed", q->source, G3__S(name));
    }
    return true;
}

static bool plan_tensor(quantize_job *q, const g3__tensor *t)
{
    if (memchr(t->name.p, 0, t->name.n)) return fail(q, G3_ERR_FORMAT, "a tensor's name holds a NUL byte");
    if (is_tied_head(q, t)) return true;
    q->vision = q->vision || contains(t->name, "vision_tower.") || contains(t->name, "multi_modal_projector.");
    q->total += t->bytes;
    if (!is_linear(t)) return plan_dense(q, t);
    const char *module = module_of(q, t);
    if (!module) return false;
    if (!is_kept(q, module)) return plan_weight(q, t);
    q->kept[q->n_kept++] = module;
    return plan_dense(q, t);
}

// A weight and its companions share a shard; a shard ends before the tensor that would make it too large.
static void plan_shards(quantize_job *q)
{
    uint64_t used = 0;
    for (uint64_t i = 0, end; i < q->n_pieces; i = end) {
        uint64_t bytes = 0;
        for (end = i; end < q->n_pieces && q->piece[end].from == q->piece[i].from; end++) bytes += q->piece[end].bytes;
        if (!q->n_shards || (used && bytes > q->shard_size - G3__MIN(used, q->shard_size))) { q->n_shards++; used = 0; }
        used += bytes;
        for (uint64_t k = i; k < end; k++) q->piece[k].shard = q->n_shards;
    }
}

static bool plan_all(quantize_job *q)
{
    const g3__tensor **order = (const g3__tensor **)g3__zone_alloc(&q->zone, q->in.n, sizeof *order, q->err);
    uint64_t n = 0;
    q->piece = (piece *)g3__zone_alloc(&q->zone, 6 * q->in.n, sizeof *q->piece, q->err);
    q->kept = (const char **)g3__zone_alloc(&q->zone, q->in.n, sizeof *q->kept, q->err);
    q->keep_used = (bool *)g3__zone_alloc(&q->zone, (uint64_t)q->n_keep + 1, sizeof *q->keep_used, q->err);
    if (!order || !q->piece || !q->kept || !q->keep_used || !check_dense(q)) return false;
    for (uint64_t i = 0; i < q->in.n; i++) if (!q->in.tensor[i].unlisted) order[n++] = &q->in.tensor[i];
    qsort(order, (size_t)n, sizeof *order, compare_natural);
    for (uint64_t i = 0; i < n; i++) if (!plan_tensor(q, order[i])) return false;
    for (int i = 0; i < q->n_keep; i++)
        if (!q->keep_used[i]) return fail(q, G3_ERR_ARGUMENT, "--keep %s: no linear module of %s matches", q->keep[i], q->source);
    if (!q->n_quantised) return fail(q, G3_ERR_MODEL, "%s: no linear weight is left to quantise", q->source);
    plan_shards(q);
    if (q->n_shards > G3__MAX_FILES)
        return fail(q, G3_ERR_ARGUMENT, "--shard-size: it would take %d shards; at most %d are possible", q->n_shards, (int)G3__MAX_FILES);
    qsort(q->piece, (size_t)q->n_pieces, sizeof *q->piece, compare_pieces);
    return true;
}

// ---- writing: every byte of the target goes through these

static bool out_fail(quantize_job *q) { return fail(q, G3_ERR_IO, "%s: cannot be written: %s", q->out_path, strerror(errno)); }

static bool out_open(quantize_job *q, const char *name)
{
    snprintf(q->out_path, sizeof q->out_path, "%s/%s", q->part_path, name);
    q->out = fopen(q->out_path, "wb");
    return q->out || out_fail(q);
}

static bool out_put(quantize_job *q, const void *data, uint64_t size) { return !size || fwrite(data, 1, (size_t)size, q->out) == size || out_fail(q); }
static bool out_text(quantize_job *q, const char *text) { return out_put(q, text, strlen(text)); }
static bool out_seek(quantize_job *q, uint64_t at) { return quantize_seek(q->out, at) == 0 || out_fail(q); }

static bool out_close(quantize_job *q)                    // to the disk: a full one may show only here
{
    bool ok = fflush(q->out) == 0 && quantize_sync(q->out) == 0;
    if (!ok) out_fail(q);
    if (fclose(q->out) && ok) ok = out_fail(q);
    q->out = NULL;
    return ok;
}

// A number as Python prints a float (the shortest that reads back as the same double), since bitsandbytes writes quant_state with Python.
static void python_float(double v, char *text, size_t size)
{
    char digits[40];
    int precision = 0;
    do snprintf(digits, sizeof digits, "%.*e", precision, v); while (strtod(digits, NULL) != v && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= -4 && exponent < 16) snprintf(text, size, "%.*f", G3__MAX(precision - exponent, 1), v);
    else snprintf(text, size, "%s", digits);
}

static void state_text(const g3__tensor *t, float offset, char text[STATE_MAX])
{
    char number[400];
    python_float((double)offset, number, sizeof number);
    snprintf(text, STATE_MAX, "{\"quant_type\": \"nf4\", \"blocksize\": %d, \"dtype\": \"%s\", \"shape\": [%llu, %llu], "
        "\"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %.60s}",
        (int)BLOCK, torch_name(t), (unsigned long long)t->dims[0], (unsigned long long)t->dims[1], (int)NESTED_BLOCK, number);
}

static bool json_text(quantize_job *q, const char *s)     // a JSON string, quotes and all
{
    char escape[8];
    if (!out_text(q, "\"")) return false;
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') { escape[0] = '\\'; escape[1] = *s; escape[2] = 0; }
        else if ((unsigned char)*s < 0x20) snprintf(escape, sizeof escape, "\\u%04x", (unsigned)*s);
        else { escape[0] = *s; escape[1] = 0; }
        if (!out_text(q, escape)) return false;
    }
    return out_text(q, "\"");
}

static bool put_header(quantize_job *q, const piece *p, uint64_t n)
{
    char text[200];
    uint64_t at = 0;
    if (!out_text(q, "{\"__metadata__\":{\"format\":\"pt\"}")) return false;
    for (uint64_t i = 0; i < n; at += p[i++].bytes) {
        if (!out_text(q, ",") || !json_text(q, p[i].name)) return false;
        snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":[", g3__dtypes[p[i].dtype].name);
        if (!out_text(q, text)) return false;
        for (int d = 0; d < p[i].rank; d++) {
            snprintf(text, sizeof text, "%s%llu", d ? "," : "", (unsigned long long)p[i].dims[d]);
            if (!out_text(q, text)) return false;
        }
        snprintf(text, sizeof text, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at, (unsigned long long)(at + p[i].bytes));
        if (!out_text(q, text)) return false;
    }
    return out_text(q, "}");
}

// ---- one shard. Its U8 tensors are written in order while the weights stream by, each weight's codes, scales and state one after another;
// only nested_absmax lies further up, and the header, whose numbers depend on the sizes of the states, comes last into the room left for it.

static bool progress(quantize_job *q, uint64_t bytes, const char *name)
{
    q->done += bytes;
    int percent = (int)(100.0 * (double)q->done / (double)G3__MAX(q->total, (uint64_t)1));
    if (!q->quiet && percent != q->percent) fprintf(stderr, "\r%3d%%  %-90.90s", percent, name);
    q->percent = percent;
    return !quantize_stopped || fail(q, G3_ERR_STOPPED, "stopped; %s is as it was", q->target);
}

static bool copy_tensor(quantize_job *q, const piece *p)
{
    for (uint64_t at = 0; at < p->bytes; at += SLICE) {
        uint64_t n = G3__MIN((uint64_t)SLICE, p->bytes - at);
        if (!g3__tensor_read(&q->in, p->from, at, q->raw, n, q->err) || !out_put(q, q->raw, n) || !progress(q, n, p->name)) return false;
    }
    return true;
}

static bool put_codes(quantize_job *q, const piece *p)    // codes to the file, scales to q->absmax
{
    const g3__tensor *t = p->from;
    uint64_t size = g3__format_bits(g3__tensor_format(t)) / 8;
    g3__bits bits = G3__ZERO;
    bits.format = g3__tensor_format(t);
    bits.data = q->raw;
    for (uint64_t at = 0; at < t->count; at += SLICE) {
        uint64_t n = G3__MIN((uint64_t)SLICE, t->count - at);
        if (!g3__tensor_read(&q->in, t, at * size, q->raw, n * size, q->err)) return false;
        g3__decode(&bits, 0, n, q->x);
        if (!quantise(&q->coder, q->x, n, BLOCK, q->codes, q->absmax + at / BLOCK))
            return fail(q, G3_ERR_NUMERIC, "tensor \"%.*s\" holds a NaN or an infinity", G3__S(t->name));
        if (!out_put(q, q->codes, (n + 1) / 2) || !progress(q, n * size, p->name)) return false;
    }
    return true;
}

// Codes, scales and state of one weight stand in this order: X.weight, X.weight.absmax, X.weight.quant_state… (no name can come between).
static bool put_weight(quantize_job *q, piece *p, uint64_t data)
{
    const g3__tensor *t = p->from;
    piece *absmax = p + 1, *state = p + 2;
    uint64_t nested = q->nested_at[t - q->in.tensor], blocks = absmax->bytes;
    char text[STATE_MAX];
    GEMMA3_ASSERT(absmax->from == t && absmax->kind == ABSMAX && state->from == t && state->kind == STATE);
    if (!put_codes(q, p)) return false;
    float offset = nest_scales(q->nester, q->absmax, blocks, q->absmax_codes, q->nested);
    if (!(fabsf(offset) <= FLT_MAX)) return fail(q, G3_ERR_NUMERIC, "tensor \"%.*s\": the mean of its scales is not finite", G3__S(t->name));
    state_text(t, offset, text);
    state->bytes = state->dims[0] = strlen(text);
    return out_put(q, q->absmax_codes, blocks) && out_text(q, text)
        && out_seek(q, data + nested) && out_put(q, q->nested, (blocks + NESTED_BLOCK - 1) / NESTED_BLOCK * sizeof *q->nested)
        && out_seek(q, data + p->offset + p->bytes + blocks + state->bytes);
}

static bool put_shard(quantize_job *q, piece *p, uint64_t n, const char *name)
{
    uint64_t data = 0, at = 0, padding;
    if (!out_open(q, name) || !out_seek(q, 8) || !put_header(q, p, n)) return false;     // with the states at their largest: room for the real one
    data = g3__round_up((uint64_t)ftell(q->out), 8);
    if (!out_seek(q, data)) return false;
    for (uint64_t i = 0; i < n; at += p[i++].bytes) {
        p[i].offset = at;
        if (p[i].kind == NESTED) q->nested_at[p[i].from - q->in.tensor] = at;
        bool ok = p[i].kind == DENSE      ? copy_tensor(q, &p[i])
                : p[i].kind == CODES      ? put_weight(q, &p[i], data)                   // its scales and state too
                : p[i].kind == MAP        ? out_put(q, g3__nf4_table, sizeof g3__nf4_table)
                : p[i].kind == NESTED_MAP ? out_put(q, q->nester->map, sizeof q->nester->map)
                : p[i].kind == NESTED     ? out_seek(q, data + at + p[i].bytes)          // put_weight fills it in
                : true;
        if (!ok) return false;
    }
    q->after += at;
    if (!out_seek(q, 8) || !put_header(q, p, n)) return false;
    padding = data - (uint64_t)ftell(q->out);
    for (uint64_t i = 0; i < padding; i++) if (!out_text(q, " ")) return false;
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((data - 8) >> (8 * i));
    return out_seek(q, 0) && out_put(q, size, 8) && out_close(q);
}

static void shard_name(const quantize_job *q, int shard, char *name, size_t size)
{
    if (q->n_shards == 1) snprintf(name, size, "model.safetensors");
    else g3__numbered_name(name, size, shard, q->n_shards);
}

static bool put_index(quantize_job *q)
{
    char text[100];
    if (!out_open(q, G3__INDEX_NAME)) return false;
    snprintf(text, sizeof text, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {", (unsigned long long)q->after);
    if (!out_text(q, text)) return false;
    for (uint64_t i = 0; i < q->n_pieces; i++) {
        shard_name(q, q->piece[i].shard, text, sizeof text);
        if (!out_text(q, i ? ",\n    " : "\n    ") || !json_text(q, q->piece[i].name) || !out_text(q, ": ") || !json_text(q, text)) return false;
    }
    return out_text(q, "\n  }\n}\n") && out_close(q);
}

static bool put_weights(quantize_job *q)
{
    char name[64];
    for (uint64_t i = 0, end; i < q->n_pieces; i = end) {
        for (end = i; end < q->n_pieces && q->piece[end].shard == q->piece[i].shard; ) end++;
        shard_name(q, q->piece[i].shard, name, sizeof name);
        if (!put_shard(q, q->piece + i, end - i, name)) return false;
    }
    return q->n_shards == 1 || put_index(q);
}

// ---- config.json: as it was, with a quantization_config

// transformers matches the modules that stay dense by the names they have when it runs, which have changed over its versions: a module is
// listed as stored, and for a model with vision also as later versions call it. gemma3.h never reads the list: tensors say what they are.
static bool put_skip(quantize_job *q, const char *a, const char *b)
{
    char name[600];
    snprintf(name, sizeof name, "%s%s", a, b);
    return out_text(q, ",\n      ") && json_text(q, name);
}

static bool put_skipped(quantize_job *q, const char *module)
{
    static const char *const decoder[] = { "model.language_model.", "language_model.model.", "language_model." };
    static const char *const tower[] = { "model.vision_tower.vision_model.", "model.vision_tower.", "vision_tower.vision_model.", "vision_tower." };
    if (!put_skip(q, module, "")) return false;
    for (int i = 0; q->vision && i < G3__COUNT(decoder); i++)
        if (g3__str_starts(g3__str_c(module), decoder[i])) return i == 0 || put_skip(q, decoder[0], module + strlen(decoder[i]));
    for (int i = 0; q->vision && i < G3__COUNT(tower); i++)
        if (g3__str_starts(g3__str_c(module), tower[i])) {
            const char *rest = module + strlen(tower[i]);
            return (i == 0 || put_skip(q, tower[0], rest)) && (i == 1 || put_skip(q, tower[1], rest));
        }
    return true;
}

static bool put_quantization(quantize_job *q)
{
    bool ok = out_text(q,
        "{\n"
        "    \"_load_in_4bit\": true,\n"
        "    \"_load_in_8bit\": false,\n"
        "    \"bnb_4bit_compute_dtype\": \"") && out_text(q, q->dtype) && out_text(q, "\",\n"
        "    \"bnb_4bit_quant_storage\": \"uint8\",\n"
        "    \"bnb_4bit_quant_type\": \"nf4\",\n"
        "    \"bnb_4bit_use_double_quant\": true,\n"
        "    \"llm_int8_enable_fp32_cpu_offload\": false,\n"
        "    \"llm_int8_has_fp16_weight\": false,\n"
        "    \"llm_int8_skip_modules\": [\n"
        "      \"lm_head\",\n"
        "      \"multi_modal_projector\"");
    for (uint64_t i = 0; ok && i < q->n_kept; i++) ok = put_skipped(q, q->kept[i]);
    return ok && out_text(q,
        "\n    ],\n"
        "    \"llm_int8_threshold\": 6.0,\n"
        "    \"load_in_4bit\": true,\n"
        "    \"load_in_8bit\": false,\n"
        "    \"quant_method\": \"bitsandbytes\"\n"
        "  }");
}

// Where the new object goes into the text: over the null of a quantization_config that is there, else before the last brace.
typedef struct gap { size_t from, to; bool key, first; } gap;

static bool find_gap(quantize_job *q, char *text, size_t size, gap *s)             // text is changed
{
    g3__json j;
    g3__str key;
    memset(s, 0, sizeof *s);
    s->first = true;
    g3__json_init(&j, text, size, "config.json", q->err);
    if (!g3__json_object(&j)) return false;
    for (; g3__json_key(&j, &key); s->first = false) {
        size_t at = (size_t)(j.p - text);
        bool mine = g3__str_is(key, "quantization_config"), none = mine && g3__json_null(&j);
        if (mine && !none)
            return fail(q, G3_ERR_UNSUPPORTED, "%s/config.json: quantization_config is there already; a dense checkpoint is needed", q->source);
        if (!none && !g3__json_skip(&j)) return false;
        if (none) { s->key = true; s->from = at; s->to = (size_t)(j.p - text); }
    }
    size_t brace = (size_t)(j.p - text) - 1;
    if (!s->key) s->from = s->to = brace;
    while (!s->key && s->from && strchr(" \t\r\n", text[s->from - 1])) s->from--;        // the comma stands behind the last value
    return g3__json_end(&j);
}

static bool put_config(quantize_job *q)
{
    char *text, *copy;
    size_t size;
    gap s;
    if (!g3__file_text(&q->in.src, "config.json", G3__HEADER_LIMIT, &q->zone, &text, &size, q->err)) return false;
    copy = (char *)g3__zone_alloc(&q->zone, size + 1, 1, q->err);
    if (!copy) return false;
    memcpy(copy, text, size);
    if (!find_gap(q, copy, size, &s) || !out_open(q, "config.json") || !out_put(q, text, s.from)) return false;
    if (!s.key && !out_text(q, s.first ? "\n  \"quantization_config\": " : ",\n  \"quantization_config\": ")) return false;
    if (!put_quantization(q) || (!s.key && !out_text(q, "\n"))) return false;
    return out_put(q, text + s.to, size - s.to) && out_close(q);
}

// ---- directories

static bool is_there(const char *path, struct stat *st) { return stat(path, st) == 0; }
static bool is_dots(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

static const char *join_path(const char *dir, const char *name, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", dir, name);
    return path;
}

// What a directory holds: -1 it cannot be read, 0 nothing, 1 plain files only, 2 something else as well.
static int dir_content(const char *dir)
{
    char path[2048];
    struct stat st;
    int what = 0;
    DIR *d = opendir(dir);
    if (!d) return -1;
    for (struct dirent *e; (e = readdir(d)) != NULL; )
        if (!is_dots(e->d_name)) what = G3__MAX(what, is_there(join_path(dir, e->d_name, path, sizeof path), &st) && S_ISREG(st.st_mode) ? 1 : 2);
    closedir(d);
    return what;
}

static void dir_remove(const char *dir)                   // with the plain files in it; anything else stays, and so does the directory then
{
    char path[2048];
    struct stat st;
    DIR *d = opendir(dir);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL; )
        if (is_there(join_path(dir, e->d_name, path, sizeof path), &st) && S_ISREG(st.st_mode)) remove(path);
    closedir(d);
    rmdir(dir);
}

// The target must be new or empty. --force replaces one that holds a checkpoint and plain files only, so that no other directory is lost.
static bool check_target(quantize_job *q)
{
    struct stat st, in;
    char path[2048];
    if (!is_there(q->source, &in) || !S_ISDIR(in.st_mode)) return fail(q, G3_ERR_IO, "%s: no such directory", q->source);
    if (is_there(q->old_path, &st)) return fail(q, G3_ERR_IO, "%s is in the way: remove it", q->old_path);
    if (is_there(q->part_path, &st) && (!q->force || !S_ISDIR(st.st_mode)))
        return fail(q, G3_ERR_IO, "%s is in the way, left by a run that was cut short or made by one that still runs: "
            "remove it, or give --force", q->part_path);
    if (!is_there(q->target, &st)) return true;
    if (!S_ISDIR(st.st_mode)) return fail(q, G3_ERR_IO, "%s is there and no directory", q->target);
    if (in.st_ino && st.st_ino == in.st_ino && st.st_dev == in.st_dev)
        return fail(q, G3_ERR_ARGUMENT, "%s is the source: the target must be another directory", q->target);
    int what = dir_content(q->target);
    if (what == 0) return true;
    if (what < 0) return fail(q, G3_ERR_IO, "%s cannot be read: %s", q->target, strerror(errno));
    if (!q->force) return fail(q, G3_ERR_IO, "%s is not empty: give another directory, or --force to replace it", q->target);
    if (what == 2 || !is_there(join_path(q->target, "config.json", path, sizeof path), &st))
        return fail(q, G3_ERR_IO, "%s is no checkpoint, or holds more than plain files: --force does not replace it", q->target);
    return true;
}

static bool make_part(quantize_job *q)
{
    if (q->force) dir_remove(q->part_path);
    return quantize_mkdir(q->part_path) == 0 || fail(q, G3_ERR_IO, "%s: cannot be made: %s", q->part_path, strerror(errno));
}

static bool rename_part(quantize_job *q)                  // the old target stays until the new one has its name
{
    struct stat st;
    bool old = is_there(q->target, &st);
    if (old && rename(q->target, q->old_path)) return fail(q, G3_ERR_IO, "%s: cannot be renamed: %s", q->target, strerror(errno));
    if (rename(q->part_path, q->target)) {
        g3__fail(q->err, G3_ERR_IO, "%s: cannot be renamed to %s: %s", q->part_path, q->target, strerror(errno));
        if (old && rename(q->old_path, q->target)) g3__fail(q->err, G3_ERR_IO, "%s is now %s", q->target, q->old_path);
        return false;
    }
    if (old) dir_remove(q->old_path);
    return true;
}

static bool copy_file(quantize_job *q, const char *name)
{
    g3__file f;
    if (!g3__file_open(&q->in.src, name, &f, q->err)) return false;
    bool ok = out_open(q, name);
    for (uint64_t at = 0; ok && at < f.size; at += SLICE) {
        uint64_t n = G3__MIN((uint64_t)SLICE, f.size - at);
        ok = g3__file_read(&f, at, q->raw, n, q->err) && out_put(q, q->raw, n);
    }
    g3__file_close(&f);
    return ok && out_close(q);
}

// Tokenizer, chat template, generation settings: all *.json, *.jinja and *.model but what is written anew.
static bool copy_rest(quantize_job *q)
{
    bool ok = true;
    DIR *d = opendir(q->source);
    if (!d) return fail(q, G3_ERR_IO, "%s cannot be read: %s", q->source, strerror(errno));
    for (struct dirent *e; ok && (e = readdir(d)) != NULL; ) {
        g3__str name = g3__str_c(e->d_name);
        bool wanted = g3__str_ends(name, ".json") || g3__str_ends(name, ".jinja") || g3__str_ends(name, ".model");
        if (!wanted || g3__str_is(name, "config.json") || g3__str_ends(name, ".index.json") || !g3__file_exists(&q->in.src, e->d_name)) continue;
        ok = copy_file(q, e->d_name);
    }
    closedir(d);
    return ok;
}

// ---- the whole job

// Opens a checkpoint's headers and checks that they are those of a Gemma 3: every tensor there, every shape right. On success the shards stay open.
static bool open_checked(quantize_job *q, const char *dir, g3__shards *s)
{
    g3__config config;
    g3__weights weights;
    char *text;
    size_t size;
    memset(s, 0, sizeof *s);
    bool ok = g3__source_init(&s->src, dir, NULL, q->err)
        && g3__file_text(&s->src, "config.json", G3__HEADER_LIMIT, &q->zone, &text, &size, q->err)
        && g3__config_read(&config, text, size, &q->zone, q->err)
        && g3__shards_open(s, &q->zone, &q->zone, q->err)
        && g3__weights_bind(&weights, &config, s, false, true, &q->zone, q->err);
    q->tied = ok && config.tied;
    if (!ok) g3__shards_close(s);
    return ok;
}

static bool take_buffers(quantize_job *q)
{
    q->x = (float *)g3__zone_alloc(&q->zone, SLICE, sizeof *q->x, q->err);
    q->codes = (uint8_t *)g3__zone_alloc(&q->zone, SLICE / 2, 1, q->err);
    q->absmax = (float *)g3__zone_alloc(&q->zone, q->cap_blocks, sizeof *q->absmax, q->err);
    q->absmax_codes = (uint8_t *)g3__zone_alloc(&q->zone, q->cap_blocks, 1, q->err);
    q->nested = (float *)g3__zone_alloc(&q->zone, q->cap_blocks / NESTED_BLOCK + 1, sizeof *q->nested, q->err);
    q->nested_at = (uint64_t *)g3__zone_alloc(&q->zone, q->in.n, sizeof *q->nested_at, q->err);
    q->nester = (nester *)g3__zone_alloc(&q->zone, 1, sizeof *q->nester, q->err);
    if (!q->x || !q->codes || !q->absmax || !q->absmax_codes || !q->nested || !q->nested_at || !q->nester) return false;
    coder_init(&q->coder, g3__nf4_table);
    nester_init(q->nester);
    return true;
}

static bool write_part(quantize_job *q)
{
    g3__shards result;
    bool ok = put_weights(q) && put_config(q) && copy_rest(q) && open_checked(q, q->part_path, &result);      // what was written must open
    if (ok) g3__shards_close(&result);
    if (q->out) fclose(q->out);
    q->out = NULL;
    ok = ok && rename_part(q);
    if (!ok) dir_remove(q->part_path);
    return ok;
}

static bool quantize_run(quantize_job *q, g3_error *err)
{
    int length = (int)strlen(q->target);
    q->err = err;
    q->percent = -1;
    while (length > 1 && q->target[length - 1] == '/') length--;
    if (length > 900) return g3__fail(err, G3_ERR_ARGUMENT, "the target's path is too long") == G3_OK;
    snprintf(q->part_path, sizeof q->part_path, "%.*s.part", length, q->target);
    snprintf(q->old_path, sizeof q->old_path, "%.*s.old", length, q->target);
    if (!check_target(q)) return false;
    g3__heap_init(&q->heap, NULL);
    g3__zone_init(&q->zone, &q->heap);
    q->raw = (uint8_t *)g3__zone_alloc(&q->zone, SLICE, 4, err);
    bool ok = q->raw && open_checked(q, q->source, &q->in);
    if (ok) {
        ok = plan_all(q) && take_buffers(q) && make_part(q) && write_part(q);
        for (uint64_t i = 0; i < q->in.n; i++) if (!q->in.tensor[i].unlisted) q->before += q->in.tensor[i].bytes;
        g3__shards_close(&q->in);
    }
    g3__zone_free(&q->zone);
    if (!q->quiet) fprintf(stderr, "\r%-98s\r", "");
    return ok;
}

// ---- options

static const char quantize_help[] =
    "quantize [options] SOURCE TARGET\n"
    "Makes a bitsandbytes NF4 checkpoint (double quantisation) in the directory TARGET out of the dense Gemma 3 checkpoint SOURCE,\n"
    "a directory or OWNER/NAME (looked up in ./models and in the Hugging Face cache).\n"
    "\n"
    "  --keep PATTERN     leave linear modules dense whose name has PATTERN as a run of whole components: layers.1.mlp, vision_tower, down_proj;\n"
    "                     * and ? as in a shell: layers.*.v_proj. May be given many times; each must match something\n"
    "  --shard-size SIZE  bytes of a shard at most, such as 500M or 5G (the default; powers of 1024); a tensor is never split\n"
    "  --force            replace a checkpoint that TARGET holds\n"
    "  -q, --quiet        no progress, no closing line\n"
    "  -h, --help         this text\n";

static const char *option_value(int argc, char **argv, int *i, const char *name)         // --name VALUE or --name=VALUE; NULL: not this option
{
    size_t n = strlen(name);
    if (strncmp(argv[*i], name, n)) return NULL;
    if (argv[*i][n] == '=') return argv[*i] + n + 1;
    if (argv[*i][n]) return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
}

static bool parse_options(quantize_job *q, int argc, char **argv, const char **keep, g3_error *err)
{
    const char *value;
    bool flags = true;
    q->keep = keep;
    q->shard_size = (uint64_t)5 << 30;
    for (int i = 1; i < argc; i++) {
        if (flags && !strcmp(argv[i], "--")) flags = false;
        else if (!flags || argv[i][0] != '-' || !argv[i][1]) {
            if (q->target) return g3__fail(err, G3_ERR_ARGUMENT, "%s: only SOURCE and TARGET are expected", argv[i]) == G3_OK;
            *(q->source ? &q->target : &q->source) = argv[i];
        }
        else if (!strcmp(argv[i], "--force")) q->force = true;
        else if (!strcmp(argv[i], "-q") || !strcmp(argv[i], "--quiet")) q->quiet = true;
        else if ((value = option_value(argc, argv, &i, "--keep")) != NULL) {
            if (!*value) return g3__fail(err, G3_ERR_ARGUMENT, "--keep needs a pattern") == G3_OK;
            keep[q->n_keep++] = value;
        }
        else if ((value = option_value(argc, argv, &i, "--shard-size")) != NULL) {
            q->shard_size = parse_bytes(value);
            if (!q->shard_size)
                return g3__fail(err, G3_ERR_ARGUMENT, "--shard-size \"%s\": a number of bytes is expected, such as 5000000, 500M or 5G", value) == G3_OK;
        }
        else return g3__fail(err, G3_ERR_ARGUMENT, "%s: unknown option (--help lists them)", argv[i]) == G3_OK;
    }
    if (!q->target || !*q->source || !*q->target) return g3__fail(err, G3_ERR_ARGUMENT, "SOURCE and TARGET are needed (--help tells more)") == G3_OK;
    return true;
}

static int quantize_main(int argc, char **argv)
{
    g3_error err = G3__ZERO;
    quantize_job q;
    char path[2048], before[32], after[32];
    memset(&q, 0, sizeof q);
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help")) { fputs(quantize_help, stdout); return 0; }
    const char **keep = (const char **)calloc((size_t)argc + 1, sizeof *keep);
    if (!keep) return 1;
    bool ok = parse_options(&q, argc, argv, keep, &err), quiet = q.quiet;
    q.quiet = quiet || !quantize_tty();
    if (ok) q.source = find_model(q.source, path, sizeof path);
    ok = ok && quantize_run(&q, &err);
    if (!ok) fprintf(stderr, "quantize: %s\n", err.text);
    else if (!quiet) printf("%s: %llu modules 4-bit, %llu left dense, %s of %s, %d file%s\n", q.target,
        (unsigned long long)q.n_quantised, (unsigned long long)q.n_kept,
        human_bytes(q.after, after, sizeof after), human_bytes(q.before, before, sizeof before), q.n_shards, q.n_shards == 1 ? "" : "s");
    free(keep);
    return ok ? 0 : 1;
}

#ifndef QUANTIZE_NO_MAIN
static void quantize_on_signal(int sig) { (void)sig; quantize_stopped = 1; }

int main(int argc, char **argv)
{
    signal(SIGINT, quantize_on_signal);
    signal(SIGTERM, quantize_on_signal);
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_IGN);                             // a file size limit is then an error like a full disk
#endif
    return quantize_main(argc, argv);
}
#endif
