// examples/quantize.c: its arithmetic against what bitsandbytes made of the same numbers, bit for bit, and its directories: what it writes
// opens and decodes to what it should, and what goes wrong leaves nothing behind.
#define QUANTIZE_NO_MAIN
#include "../../examples/quantize.c"
#include "../test.h"
#include "../tools/st.h"
#include <sys/resource.h>
#include <sys/wait.h>

static uint32_t bits_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float float_of(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a == 0 && b == 0); }
static uint32_t roll(uint32_t *s) { *s ^= *s << 13; *s ^= *s >> 17; *s ^= *s << 5; return *s; }

static nester the_nester;

// ---- arithmetic

static int codes_at_and_around_every_decision_point_equal_bitsandbytes(void)
{
    static const struct { const char *name; const float *table; } kind[2] = { { "nf4", g3__nf4_table }, { "fp4", g3__fp4_table } };
    st_file f;
    CHECK(st_open(&f, golden("bnb/tensors/quant_ties.safetensors")));
    for (int k = 0; k < 2; k++) {
        const st_tensor *points = st_find(&f, "%s.bounds", kind[k].name), *order = st_find(&f, "%s.order", kind[k].name);
        const st_tensor *source = st_find(&f, "%s.source", kind[k].name), *codes = st_find(&f, "%s.codes", kind[k].name);
        const st_tensor *packed = st_find(&f, "%s.packed", kind[k].name);
        coder c;
        CHECK(points && order && source && codes && packed);
        coder_init(&c, kind[k].table);
        for (size_t i = 0; i < 15; i++) CHECK(same(c.middle[i], st_f32(points, i)));
        for (size_t i = 0; i < 16; i++) CHECK(c.code[i] == order->data[i]);
        float x[128], absmax[2];
        uint8_t out[64];
        CHECK(st_count(source) == 128 && packed->size == 64);
        for (size_t i = 0; i < 128; i++) x[i] = st_f32(source, i);
        CHECK(quantise(&c, x, 128, 64, out, absmax) && absmax[0] == 1 && absmax[1] == 1);
        CHECK(memcmp(out, packed->data, 64) == 0);
        for (size_t i = 0; i < 128; i++) CHECK((i % 2 ? out[i / 2] & 15 : out[i / 2] >> 4) == codes->data[i]);
    }
    st_close(&f);
    return 0;
}

// Full blocks are multiplied by the reciprocal, short ones divided: four pairs found where bitsandbytes 0.50.2 gives another code for each.
static int short_blocks_divide_and_full_blocks_multiply(void)
{
    static const struct { uint32_t max, x; uint8_t in_short, in_full; } t[] = {
        { 0x3ec6057a, 0xbdb9d442, 0xf4, 0xf5 }, { 0x3eff8f11, 0xbcba262e, 0xf6, 0xf7 },
        { 0x3f2d85e9, 0xbe6bc4d5, 0xf4, 0xf3 }, { 0x3f6202dc, 0x3d0fe368, 0xf8, 0xf7 },
    };
    coder c;
    coder_init(&c, g3__nf4_table);
    for (int i = 0; i < G3__COUNT(t); i++) {
        float x[64] = { 0 }, scale;
        uint8_t codes[32];
        x[0] = float_of(t[i].max);
        x[1] = float_of(t[i].x);
        CHECK(quantise(&c, x, 2, 64, codes, &scale) && codes[0] == t[i].in_short && scale == x[0]);
        CHECK(quantise(&c, x, 64, 64, codes, &scale) && codes[0] == t[i].in_full && scale == x[0]);
    }
    return 0;
}

static int the_dynamic_map_equals_bitsandbytes(void)
{
    st_file f;
    float map[256];
    CHECK(st_open(&f, golden("bnb/tensors/quant_ties.safetensors")));
    const st_tensor *t = st_find(&f, "dynamic_map");
    CHECK(t && st_count(t) == 256);
    dynamic_map(map);
    for (size_t i = 0; i < 256; i++) CHECK(bits_of(map[i]) == bits_of(st_f32(t, i)));
    st_close(&f);
    return 0;
}

static int blocks_of_bytes_equal_bitsandbytes(void)
{
    st_file f;
    static float x[1024];
    uint8_t codes[1024];
    float scale[4];
    CHECK(st_open(&f, golden("bnb/tensors/quant_ties.safetensors")));
    const st_tensor *source = st_find(&f, "blockwise8.source"), *want = st_find(&f, "blockwise8.codes"), *absmax = st_find(&f, "blockwise8.absmax");
    CHECK(source && want && absmax && st_count(source) == 503 && st_count(absmax) == 2);
    for (size_t i = 0; i < 503; i++) x[i] = st_f32(source, i);
    nest(&the_nester, x, 503, codes, scale);
    CHECK(memcmp(codes, want->data, 503) == 0);
    CHECK(scale[0] == st_f32(absmax, 0) && scale[1] == st_f32(absmax, 1));
    st_close(&f);
    return 0;
}

// What bitsandbytes 0.50.2's CPU library gives for blocks whose reciprocal overflows: 0/0 is code 0, anything else an end of the map.
static int blocks_of_zeros_and_of_tiny_numbers_equal_bitsandbytes(void)
{
    static const float tiny[8] = { 1e-39f, -1e-39f, 0, 5e-40f, -5e-40f, 1e-45f, 0, 0 }, zeros[5] = { 0, 0, 0, 0, 0 };
    static const float tens[5] = { 1, -1, 0, -0.0f, -0.9964f };
    static const uint8_t tiny_codes[8] = { 255, 0, 0, 255, 0, 255, 0, 0 }, zero_codes[5] = { 0, 0, 0, 0, 0 }, ten_codes[5] = { 255, 0, 131, 131, 0 };
    uint8_t codes[8];
    float scale;
    nest(&the_nester, tiny, 8, codes, &scale);
    CHECK(memcmp(codes, tiny_codes, 8) == 0 && scale == 1e-39f);
    nest(&the_nester, zeros, 5, codes, &scale);
    CHECK(memcmp(codes, zero_codes, 5) == 0 && scale == 0);
    nest(&the_nester, tens, 5, codes, &scale);
    CHECK(memcmp(codes, ten_codes, 5) == 0 && scale == 1);
    return 0;
}

// torch 2.15.0, one thread: the mean of n numbers (s >> 8) / 2^24 of a xorshift generator that begins with 12345. The order of the sum shows.
static int means_round_as_torch_does(void)
{
    static const struct { uint64_t n; uint32_t bits; } want[] = {
        { 1, 0x3f46e574 }, { 5, 0x3efaef95 }, { 7, 0x3f1a127d }, { 8, 0x3f223cf5 }, { 31, 0x3eeddcc2 }, { 32, 0x3ef54fb9 }, { 100, 0x3ef5de16 },
        { 511, 0x3efadb9a }, { 4097, 0x3effb6e2 }, { 65536, 0x3f0049f8 }, { 100003, 0x3f0021da }, { 1806336, 0x3effdb94 },
    };
    float *x = (float *)malloc(1806336 * sizeof *x);
    uint32_t s = 12345;
    int bad = 0;
    for (size_t i = 0; i < 1806336; i++) x[i] = (float)(roll(&s) >> 8) / 16777216;
    for (int i = 0; i < G3__COUNT(want); i++)
        if (bits_of(torch_mean(x, want[i].n)) != want[i].bits) { fprintf(stderr, "n %d\n", (int)want[i].n); bad++; }
    free(x);
    CHECK(bad == 0);
    return 0;
}

static float source_value(const st_tensor *t, size_t i)
{
    uint16_t h;
    if (!strcmp(t->dtype, "F32")) return st_f32(t, i);
    memcpy(&h, t->data + 2 * i, 2);
    return !strcmp(t->dtype, "BF16") ? float_of((uint32_t)h << 16) : g3__f16_to_f32(h);
}

// 152 weights: nf4 and fp4, plain and double quantised, blocks of 32 to 4096, short and odd last blocks, zeros, outliers, denormals, huge values.
static int all_152_weights_quantise_like_bitsandbytes_bit_for_bit(void)
{
    enum { MOST = 1 << 15 };
    static float x[MOST], absmax[MOST], nested[64];
    static uint8_t codes[MOST], absmax_codes[MOST];
    st_file f;
    int cases = 0, doubled = 0;
    CHECK(st_open(&f, golden("bnb/tensors/dequant_cases.safetensors")));
    for (const st_tensor *source; (source = st_find(&f, "case%03d.source", cases)) != NULL; cases++) {
        const st_tensor *nf4 = st_find(&f, "case%03d.weight.quant_state.bitsandbytes__nf4", cases);
        const st_tensor *state = nf4 ? nf4 : st_find(&f, "case%03d.weight.quant_state.bitsandbytes__fp4", cases);
        const st_tensor *weight = st_find(&f, "case%03d.weight", cases), *scales = st_find(&f, "case%03d.weight.absmax", cases);
        const st_tensor *second = st_find(&f, "case%03d.weight.nested_absmax", cases);
        size_t n = st_count(source), blocks = st_count(scales);
        coder c;
        CHECK(state && weight && scales && n <= MOST);
        coder_init(&c, nf4 ? g3__nf4_table : g3__fp4_table);
        for (size_t i = 0; i < n; i++) x[i] = source_value(source, i);
        memset(codes, 0xee, sizeof codes);
        CHECK(quantise(&c, x, n, (int)st_state(state, "blocksize"), codes, absmax));
        CHECK(weight->size == (n + 1) / 2 && memcmp(codes, weight->data, weight->size) == 0 && codes[weight->size] == 0xee);
        if (!second) { for (size_t i = 0; i < blocks; i++) CHECK(bits_of(absmax[i]) == bits_of(st_f32(scales, i))); continue; }
        float offset = nest_scales(&the_nester, absmax, blocks, absmax_codes, nested);
        CHECK(bits_of(offset) == bits_of((float)st_state(state, "nested_offset")));
        CHECK(memcmp(absmax_codes, scales->data, blocks) == 0);
        for (size_t i = 0; i < st_count(second); i++) CHECK(bits_of(nested[i]) == bits_of(st_f32(second, i)));
        doubled++;
    }
    CHECK(cases == 152 && doubled == 76);
    st_close(&f);
    return 0;
}

// The JSON of every NF4 case with blocks of 64 and double quantisation, byte for byte, the number as Python prints it.
static int quant_states_equal_bitsandbytes_byte_for_byte(void)
{
    st_file f;
    int compared = 0;
    CHECK(st_open(&f, golden("bnb/tensors/dequant_cases.safetensors")));
    for (int i = 0; st_find(&f, "case%03d.source", i); i++) {
        const st_tensor *state = st_find(&f, "case%03d.weight.quant_state.bitsandbytes__nf4", i), *source = st_find(&f, "case%03d.source", i);
        if (!state || !st_find(&f, "case%03d.weight.nested_absmax", i) || st_state(state, "blocksize") != 64) continue;
        g3__tensor t = G3__ZERO;
        char text[STATE_MAX];
        t.dims[0] = source->dims[0];
        t.dims[1] = source->dims[1];
        t.dtype = (uint8_t)dtype_place(source->dtype);
        state_text(&t, (float)st_state(state, "nested_offset"), text);
        CHECK(strlen(text) == state->size && memcmp(text, state->data, state->size) == 0);
        compared++;
    }
    CHECK(compared > 15);
    st_close(&f);
    return 0;
}

static int floats_print_as_python_prints_them(void)
{
    static const struct { double v; const char *text; } t[] = {
        { 0, "0.0" }, { 1, "1.0" }, { -2.5, "-2.5" }, { 0.1, "0.1" }, { 0.0001, "0.0001" }, { 0.00001, "1e-05" }, { 1.5e-7, "1.5e-07" },
        { 1e16, "1e+16" }, { 123456789012345.0, "123456789012345.0" }, { 1e15, "1000000000000000.0" },
        { 1.25e300, "1.25e+300" }, { 0.0434112548828125, "0.0434112548828125" },
    };
    char text[400];
    for (int i = 0; i < G3__COUNT(t); i++) { python_float(t[i].v, text, sizeof text); CHECK(strcmp(text, t[i].text) == 0); }
    return 0;
}

// ---- patterns and options

static int patterns_match_whole_components(void)
{
    static const char *const module = "language_model.model.layers.1.mlp.gate_proj", *const eleven = "model.layers.11.mlp.gate_proj";
    CHECK(keep_match("layers.1.mlp", module) && keep_match("layers.1", module));
    CHECK(keep_match("gate_proj", module) && keep_match("language_model", module));
    CHECK(keep_match(module, module) && keep_match("layers.*.gate_proj", module) && keep_match("*_proj", module) && keep_match("layers.?.mlp", module));
    CHECK(!keep_match("layers.1", eleven) && keep_match("layers.1*.mlp", eleven) && !keep_match("layers.?.mlp", eleven));
    CHECK(!keep_match("gate", module) && !keep_match("proj", module) && !keep_match("ayers.1", module));
    CHECK(!keep_match("layers.1.mlp.gate_proj.x", module) && !keep_match("", module));
    return 0;
}

static g3_error last;

static bool options(int argc, const char *const *argv, quantize_job *q)
{
    static const char *keep[16];
    char *copy[16];
    for (int i = 0; i < argc; i++) copy[i] = (char *)(uintptr_t)argv[i];
    memset(&last, 0, sizeof last);
    memset(q, 0, sizeof *q);
    return parse_options(q, argc, copy, keep, &last);
}

static int options_are_exact(void)
{
    static const char *const good[] = { "quantize", "--keep", "a", "in", "--keep=b", "--shard-size", "2M", "--force", "-q", "out" };
    static const char *const bad[][4] = { { "q", "--ke", "in", "out" }, { "q", "-x", "in", "out" }, { "q", "in", "out", "more" },
        { "q", "in", "out", "--keep" }, { "q", "in", "--shard-size=5X", "out" }, { "q", "in", "--", "-q" } };
    quantize_job q;
    CHECK(options(10, good, &q) && q.n_keep == 2 && !strcmp(q.keep[1], "b") && q.shard_size == 2 << 20);
    CHECK(q.force && q.quiet && !strcmp(q.source, "in") && !strcmp(q.target, "out"));
    for (int i = 0; i < 5; i++) CHECK(!options(4, bad[i], &q) && last.code == G3_ERR_ARGUMENT && last.text[0]);
    CHECK(options(4, bad[5], &q) && !strcmp(q.target, "-q") && !q.quiet);
    CHECK(!options(2, bad[5], &q) && strstr(last.text, "SOURCE"));
    return 0;
}

// ---- whole checkpoints. Work happens in a fresh directory under TMPDIR.

static char work[600];
static const char *in_work(const char *name)          // valid until the eighth next call
{
    static char path[8][1024];
    static int turn;
    char *p = path[turn++ & 7];
    snprintf(p, sizeof path[0], "%s/%s", work, name);
    return p;
}

static bool write_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(data, 1, size, f) == size;
    return f && fclose(f) == 0 && ok;
}

static bool copy_checkpoint(const char *from, const char *to)          // config.json and model.safetensors into a new directory
{
    static const char *const name[] = { "config.json", "model.safetensors" };
    bool ok = quantize_mkdir(to) == 0;
    for (int i = 0; ok && i < 2; i++) {
        char path[2048];
        size_t size = 0;
        unsigned char *data = st_read(join_path(from, name[i], path, sizeof path), &size);
        ok = data && write_file(join_path(to, name[i], path, sizeof path), data, size);
        free(data);
    }
    return ok;
}

static int open_files(void) { int n = 0; for (int i = 0; i < 256; i++) n += fcntl(i, F_GETFD) >= 0; return n; }
static bool exists(const char *path) { struct stat st; return stat(path, &st) == 0; }

static bool convert(const char *source, const char *target, const char *keep, uint64_t shard_size, bool force)
{
    quantize_job q;
    memset(&q, 0, sizeof q);
    memset(&last, 0, sizeof last);
    q.source = source; q.target = target; q.force = force; q.quiet = true;
    q.shard_size = shard_size ? shard_size : 5000000000u;
    q.keep = &keep;
    q.n_keep = keep != NULL;
    bool ok = quantize_run(&q, &last);
    if (ok != (last.code == G3_OK) || ok != !last.text[0]) fprintf(stderr, "result and error disagree: %s\n", last.text);
    return ok;
}

typedef struct set { st_file f[64]; int n; } set;                      // all shards of a checkpoint, through the test's own reader

static bool set_open(set *s, const char *dir)
{
    char path[2048];
    s->n = 0;
    if (st_open(&s->f[0], join_path(dir, "model.safetensors", path, sizeof path))) { s->n = 1; return true; }
    for (int of = 1; of <= 64; of++) {
        snprintf(path, sizeof path, "%s/model-00001-of-%05d.safetensors", dir, of);
        if (!exists(path)) continue;
        for (int i = 0; i < of; i++) {
            snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", dir, i + 1, of);
            if (!st_open(&s->f[s->n], path)) return false;
            s->n++;
        }
        return true;
    }
    return false;
}

static const st_tensor *set_find(const set *s, const char *name, const char *suffix)
{
    for (int i = 0; i < s->n; i++) {
        const st_tensor *t = st_find(&s->f[i], "%s%s", name, suffix);
        if (t) return t;
    }
    return NULL;
}

static int set_count(const set *s) { int n = 0; for (int i = 0; i < s->n; i++) n += s->f[i].n; return n; }
static void set_close(set *s) { for (int i = 0; i < s->n; i++) st_close(&s->f[i]); s->n = 0; }

typedef struct parts { const st_tensor *codes, *absmax, *state, *nested, *map, *table; float offset; } parts;

static parts parts_of(const set *s, const char *name)
{
    parts p;
    p.codes = set_find(s, name, "");
    p.absmax = set_find(s, name, ".absmax");
    p.state = set_find(s, name, ".quant_state.bitsandbytes__nf4");
    p.nested = set_find(s, name, ".nested_absmax");
    p.map = set_find(s, name, ".nested_quant_map");
    p.table = set_find(s, name, ".quant_map");
    p.offset = p.state ? (float)st_state(p.state, "nested_offset") : 0;
    return p;
}

// Element e by the rule of the format, from the tensors as they lie in the files: an independent dequantisation.
static float element(const parts *p, size_t e)
{
    size_t block = e / 64;
    volatile float product = st_f32(p->map, p->absmax->data[block]) * st_f32(p->nested, block / 256);
    volatile float scale = product + p->offset;
    return st_f32(p->table, e % 2 ? p->codes->data[e / 2] & 15 : p->codes->data[e / 2] >> 4) * scale;
}

// Opens target through the header and compares every weight with `element` and with the source: within half the widest gap of the table
// (between -1 and -0.69) times the scale, and what double quantisation moves the scale by.
static int check_checkpoint(const char *source, const char *target, int quantised)
{
    static set in, out;
    static float got[1 << 17];
    quantize_job q;
    g3__shards s;
    g3__config config;
    g3__weights w;
    char *text;
    size_t size;
    int n = 0;
    memset(&q, 0, sizeof q);
    memset(&s, 0, sizeof s);
    memset(&last, 0, sizeof last);
    g3__heap_init(&q.heap, NULL);
    g3__zone_init(&q.zone, &q.heap);
    CHECK(g3__source_init(&s.src, target, NULL, &last) && g3__file_text(&s.src, "config.json", 1 << 20, &q.zone, &text, &size, &last));
    CHECK(strstr(text, "\"quant_method\": \"bitsandbytes\"") && strstr(text, "\"bnb_4bit_use_double_quant\": true"));
    CHECK(g3__config_read(&config, text, size, &q.zone, &last) && g3__shards_open(&s, &q.zone, &q.zone, &last));
    CHECK(g3__weights_bind(&w, &config, &s, false, true, &q.zone, &last));
    CHECK(set_open(&in, source) && set_open(&out, target));
    for (int i = 0; i < w.n; i++) {
        char name[300];
        if (!w.w[i].data) continue;
        snprintf(name, sizeof name, "%.*s", (int)w.w[i].data->name.n, w.w[i].data->name.p);
        const st_tensor *from = set_find(&in, name, ""), *to = set_find(&out, name, "");
        CHECK(from && to);
        if (w.w[i].format != G3__NF4) { CHECK(from->size == to->size && memcmp(from->data, to->data, to->size) == 0); continue; }
        static float nested[64], map[256];
        g3__bits bits = G3__ZERO;
        size_t count = st_count(from);
        CHECK(count <= G3__COUNT(got));
        parts p = parts_of(&out, name);
        CHECK(p.absmax && p.state && p.nested && p.map && p.table && p.nested->size <= sizeof nested);
        memcpy(nested, p.nested->data, p.nested->size);
        memcpy(map, p.map->data, sizeof map);
        bits.format = G3__NF4; bits.data = to->data; bits.absmax = p.absmax->data;
        bits.nested_absmax = nested; bits.nested_map = map; bits.nested_offset = w.w[i].nested_offset;
        bits.blocksize = w.w[i].blocksize; bits.nested_blocksize = w.w[i].nested_blocksize;
        g3__decode(&bits, 0, count, got);
        for (size_t e = 0; e < count; e++) {
            float scale = g3__block_scale(&bits, e / 64), was = source_value(from, e);
            CHECK(same(got[e], element(&p, e)));
            CHECK(fabsf(got[e] - was) <= 0.1521f * scale + 0.02f * nested[e / 64 / 256]);
        }
        n++;
    }
    set_close(&in);
    set_close(&out);
    g3__shards_close(&s);
    g3__zone_free(&q.zone);
    CHECK(q.heap.live == 0 && n == quantised);
    return 0;
}

static int a_text_checkpoint_opens_and_decodes(void)
{
    const char *source = golden("text/tiny/t1-f32-text"), *target = in_work("t1");
    CHECK(convert(source, target, NULL, 0, false));
    CHECK(check_checkpoint(source, target, 4 * 7) == 0);
    CHECK(!exists(in_work("t1.part")) && !exists(in_work("t1.old")) && !exists(in_work("t1/" G3__INDEX_NAME)));
    return 0;
}

// Vision linears of any size are quantised like the decoder's; patch convolution, position table, norms, biases and projector stay dense.
static int a_checkpoint_with_vision_opens_and_decodes(void)
{
    const char *source = golden("text/tiny/t2-bf16-mm-old"), *target = in_work("t2");
    CHECK(convert(source, target, NULL, 0, false));
    CHECK(check_checkpoint(source, target, 7 * 7 + 6) == 0);
    return 0;
}

static int a_sharded_f16_checkpoint_opens_and_decodes(void)
{
    const char *source = golden("text/tiny/t3-f16-mm-new-sharded"), *target = in_work("t3");
    static set in, out;
    CHECK(convert(source, target, NULL, 0, false));
    CHECK(set_open(&in, source) && set_open(&out, target));
    int quantised = (set_count(&out) - set_count(&in)) / 5;
    set_close(&in);
    set_close(&out);
    CHECK(quantised > 0 && check_checkpoint(source, target, quantised) == 0);
    return 0;
}

static int the_file_is_in_the_order_of_safetensors_own_writer(void)
{
    static set out;
    const char *target = in_work("order");
    CHECK(convert(golden("text/tiny/t2-bf16-mm-old"), target, NULL, 0, false) && set_open(&out, target));
    CHECK(strstr(out.f[0].metadata, "\"format\":\"pt\"") && out.f[0].header % 8 == 0);
    for (int i = 1; i < out.f[0].n; i++) {
        const st_tensor *a = &out.f[0].tensor[i - 1], *b = &out.f[0].tensor[i];
        CHECK(st_bits(a->dtype) > st_bits(b->dtype) || (st_bits(a->dtype) == st_bits(b->dtype) && strcmp(a->name, b->name) < 0));
        CHECK(b->begin % (size_t)(st_bits(b->dtype) / 8) == 0);
    }
    set_close(&out);
    return 0;
}

static int kept_modules_stay_dense_and_are_listed(void)
{
    const char *source = golden("text/tiny/t2-bf16-mm-old"), *target = in_work("keep");
    size_t size;
    CHECK(convert(source, target, "layers.1.mlp", 0, false));
    CHECK(check_checkpoint(source, target, 7 * 7 + 6 - 3) == 0);
    char *config = (char *)st_read(in_work("keep/config.json"), &size);
    CHECK(config && strstr(config, "\"language_model.model.layers.1.mlp.gate_proj\""));
    CHECK(strstr(config, "\"model.language_model.layers.1.mlp.gate_proj\""));
    CHECK(strstr(config, "\"lm_head\"") && !strstr(config, "layers.0.mlp"));
    free(config);
    CHECK(!convert(source, in_work("keep2"), "layers.7.mlp", 0, false) && strstr(last.text, "layers.7.mlp"));
    CHECK(!exists(in_work("keep2")) && !exists(in_work("keep2.part")));
    CHECK(!convert(source, in_work("keep2"), "*", 0, false) && last.code == G3_ERR_MODEL);
    return 0;
}

static int small_shards_come_with_an_index(void)
{
    static set out;
    const char *source = golden("text/tiny/t2-bf16-mm-old"), *target = in_work("shards");
    size_t size, total = 0;
    CHECK(convert(source, target, NULL, 100000, false));
    CHECK(!exists(in_work("shards/model.safetensors")) && set_open(&out, target) && out.n >= 4);
    char *index = (char *)st_read(in_work("shards/" G3__INDEX_NAME), &size);
    CHECK(index != NULL);
    for (int i = 0; i < out.n; i++) {
        size_t bytes = 0;
        for (int k = 0; k < out.f[i].n; k++) {
            char line[600];
            const st_tensor *t = &out.f[i].tensor[k];
            bytes += t->size;
            snprintf(line, sizeof line, "\"%s\": \"model-%05d-of-%05d.safetensors\"", t->name, i + 1, out.n);
            CHECK(strstr(index, line) != NULL);
            const char *companion = strstr(t->name, ".weight.");                          // in the same shard as its weight
            if (companion) CHECK(st_find(&out.f[i], "%.*s", (int)(companion - t->name) + 7, t->name) != NULL);
        }
        total += bytes;
        CHECK(bytes <= 100000);
    }
    CHECK((size_t)strtoull(strchr(strstr(index, "total_size"), ':') + 1, NULL, 10) == total);
    free(index);
    set_close(&out);
    CHECK(check_checkpoint(source, target, 7 * 7 + 6) == 0);
    return 0;
}

static int other_files_come_along(void)
{
    size_t size;
    CHECK(copy_checkpoint(golden("text/tiny/t1-f32-text"), in_work("src")));
    CHECK(write_file(in_work("src/tokenizer_config.json"), "{\"a\": 1}", 8) && write_file(in_work("src/chat_template.jinja"), "x", 1));
    CHECK(write_file(in_work("src/notes.md"), "x", 1) && write_file(in_work("src/pytorch_model.bin.index.json"), "x", 1));
    CHECK(convert(in_work("src"), in_work("dst"), NULL, 0, false));
    char *text = (char *)st_read(in_work("dst/tokenizer_config.json"), &size);
    CHECK(text && size == 8 && !strcmp(text, "{\"a\": 1}") && exists(in_work("dst/chat_template.jinja")));
    CHECK(!exists(in_work("dst/notes.md")) && !exists(in_work("dst/pytorch_model.bin.index.json")));
    free(text);
    return 0;
}

// Gemma 3 ties its head to the embedding; some writers store it nevertheless.
static int a_tied_lm_head_that_repeats_the_embedding_is_left_out(void)
{
    static set out;
    st_file f;
    size_t size;
    CHECK(copy_checkpoint(golden("text/tiny/t5-bf16-untied"), in_work("untied")) && st_open(&f, in_work("untied/model.safetensors")));
    CHECK(convert(in_work("untied"), in_work("untied-out"), NULL, 0, false) && set_open(&out, in_work("untied-out")));
    const st_tensor *head = st_find(&f, "lm_head.weight"), *embed = st_find(&f, "model.embed_tokens.weight");
    const st_tensor *kept = set_find(&out, "lm_head.weight", "");
    CHECK(head && embed && kept && kept->size == head->size && memcmp(kept->data, head->data, head->size) == 0);
    set_close(&out);
    char *config = (char *)st_read(in_work("untied/config.json"), &size), *tie = config ? strstr(config, "\"tie_word_embeddings\": false") : NULL;
    CHECK(tie != NULL);
    memcpy(tie, "\"tie_word_embeddings\": true ", strlen("\"tie_word_embeddings\": false"));
    CHECK(write_file(in_work("untied/config.json"), config, size));
    CHECK(convert(in_work("untied"), in_work("other-out"), NULL, 0, false) && set_open(&out, in_work("other-out")));
    CHECK(set_find(&out, "lm_head.weight", "") != NULL);                                 // not the same: kept
    set_close(&out);
    memcpy(f.bytes + head->begin, embed->data, embed->size);
    CHECK(write_file(in_work("untied/model.safetensors"), f.bytes, f.size));
    CHECK(convert(in_work("untied"), in_work("tied-out"), NULL, 0, false) && set_open(&out, in_work("tied-out")));
    CHECK(!set_find(&out, "lm_head.weight", "") && set_find(&out, "model.embed_tokens.weight", ""));
    st_close(&f);
    free(config);
    set_close(&out);
    return 0;
}

// ---- failures: one sentence, nothing left behind, the target as it was

static int a_quantised_source_is_refused(void)
{
    CHECK(!convert(golden("bnb/models/text-nf4-mixed-3shards"), in_work("twice"), NULL, 0, false));
    CHECK(last.code == G3_ERR_UNSUPPORTED && strstr(last.text, "quantised already") && !exists(in_work("twice")) && !exists(in_work("twice.part")));
    return 0;
}

static int a_nan_in_a_weight_is_refused(void)
{
    st_file f;
    int files = open_files();
    CHECK(copy_checkpoint(golden("text/tiny/t1-f32-text"), in_work("nan")) && st_open(&f, in_work("nan/model.safetensors")));
    const st_tensor *t = st_find(&f, "model.layers.2.mlp.up_proj.weight");
    CHECK(t != NULL);
    memset(f.bytes + t->begin + 400, 0xff, 4);
    CHECK(write_file(in_work("nan/model.safetensors"), f.bytes, f.size));
    st_close(&f);
    CHECK(!convert(in_work("nan"), in_work("nan-out"), NULL, 0, false) && last.code == G3_ERR_NUMERIC && strstr(last.text, "layers.2.mlp.up_proj"));
    CHECK(!exists(in_work("nan-out")) && !exists(in_work("nan-out.part")));
    CHECK(open_files() == files);
    return 0;
}

static int a_bad_source_is_one_sentence(void)
{
    int files = open_files();
    CHECK(!convert(in_work("nowhere"), in_work("bad"), NULL, 0, false) && strstr(last.text, "nowhere"));
    CHECK(copy_checkpoint(golden("text/tiny/t1-f32-text"), in_work("cut")));
    CHECK(truncate(in_work("cut/model.safetensors"), 100000) == 0);
    CHECK(!convert(in_work("cut"), in_work("bad"), NULL, 0, false) && last.code == G3_ERR_FORMAT && strstr(last.text, "model.safetensors"));
    CHECK(write_file(in_work("cut/config.json"), "{", 1));
    CHECK(!convert(in_work("cut"), in_work("bad"), NULL, 0, false) && strstr(last.text, "config.json"));
    CHECK(!exists(in_work("bad")) && !exists(in_work("bad.part")));
    CHECK(open_files() == files);
    return 0;
}

static int a_target_in_use_is_left_alone(void)
{
    const char *source = golden("text/tiny/t1-f32-text");
    size_t size;
    CHECK(quantize_mkdir(in_work("full")) == 0 && write_file(in_work("full/mine.txt"), "mine", 4));
    CHECK(!convert(source, in_work("full"), NULL, 0, false) && strstr(last.text, "not empty"));
    CHECK(!convert(source, in_work("full"), NULL, 0, true) && strstr(last.text, "no checkpoint"));       // --force replaces checkpoints only
    char *text = (char *)st_read(in_work("full/mine.txt"), &size);
    CHECK(text && !strcmp(text, "mine") && !exists(in_work("full.part")));
    free(text);
    CHECK(!convert(in_work("src"), in_work("src"), NULL, 0, true) && strstr(last.text, "source") && exists(in_work("src/model.safetensors")));
    CHECK(quantize_mkdir(in_work("empty")) == 0 && convert(source, in_work("empty/"), NULL, 0, false) && exists(in_work("empty/config.json")));
    return 0;
}

static int force_replaces_a_checkpoint(void)
{
    const char *source = golden("text/tiny/t1-f32-text"), *target = in_work("again");
    CHECK(convert(golden("text/tiny/t2-bf16-mm-old"), target, NULL, 100000, false) && exists(in_work("again/" G3__INDEX_NAME)));
    CHECK(!convert(source, target, NULL, 0, false) && exists(in_work("again/" G3__INDEX_NAME)));
    CHECK(convert(source, target, NULL, 0, true) && !exists(in_work("again/" G3__INDEX_NAME)) && !exists(in_work("again.old")));
    CHECK(check_checkpoint(source, target, 4 * 7) == 0);
    return 0;
}

static int a_run_cut_short_is_noticed(void)
{
    const char *source = golden("text/tiny/t1-f32-text");
    CHECK(quantize_mkdir(in_work("cutrun.part")) == 0 && write_file(in_work("cutrun.part/model.safetensors"), "x", 1));
    CHECK(!convert(source, in_work("cutrun"), NULL, 0, false) && strstr(last.text, "cutrun.part") && exists(in_work("cutrun.part/model.safetensors")));
    CHECK(convert(source, in_work("cutrun"), NULL, 0, true) && !exists(in_work("cutrun.part")));
    return 0;
}

static int a_signal_stops_and_leaves_nothing(void)
{
    quantize_stopped = 1;
    bool ok = convert(golden("text/tiny/t1-f32-text"), in_work("stopped"), NULL, 0, false);
    quantize_stopped = 0;
    CHECK(!ok && last.code == G3_ERR_STOPPED && !exists(in_work("stopped")) && !exists(in_work("stopped.part")));
    return 0;
}

static int run_main(int argc, const char *const *argv)    // the whole program in a process of its own, silent; its exit status
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        char *copy[16];
        for (int i = 0; i < argc; i++) copy[i] = (char *)(uintptr_t)argv[i];
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(99);
        _exit(quantize_main(argc, copy));
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int the_exit_status_tells(void)
{
    const char *good[3] = { "quantize", NULL, NULL };
    const char *const help[] = { "quantize", "--help" }, *const unknown[] = { "quantize", "--help-me", "a", "b" };
    good[1] = golden("text/tiny/t1-f32-text");
    good[2] = in_work("main");
    CHECK(run_main(2, help) == 0 && run_main(4, unknown) == 1 && run_main(1, help) == 1);
    CHECK(run_main(3, good) == 0 && exists(in_work("main/config.json")) && run_main(3, good) == 1);      // the second time the target is there
    return 0;
}

// A file size limit acts like a disk that becomes full in the middle of a file. For every size up to that of the whole file the run fails
// with the system's word for it and an old target stays as it was.
static int a_full_disk_leaves_the_target_as_it_was(void)
{
    const char *source = golden("text/tiny/t1-f32-text");
    CHECK(convert(golden("text/tiny/t2-bf16-mm-old"), in_work("disk"), NULL, 0, false));
    for (rlim_t limit = 0; limit < 250000; limit += 16381) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit r;
            r.rlim_cur = r.rlim_max = limit;
            signal(SIGXFSZ, SIG_IGN);
            if (setrlimit(RLIMIT_FSIZE, &r)) _exit(2);
            bool ok = convert(source, in_work("disk"), NULL, 0, true);
            _exit(!ok && last.code == G3_ERR_IO && strstr(last.text, "cannot be written") ? 0 : 1);
        }
        int status = 0;
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        CHECK(!exists(in_work("disk.part")) && !exists(in_work("disk.old")));
    }
    CHECK(check_checkpoint(golden("text/tiny/t2-bf16-mm-old"), in_work("disk"), 7 * 7 + 6) == 0);
    return 0;
}

static void clean_up(void)
{
    DIR *d = opendir(work);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d)) != NULL; ) if (!is_dots(e->d_name)) dir_remove(in_work(e->d_name));
    closedir(d);
    rmdir(work);
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(work, sizeof work, "%s/quantize-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(work)) { perror(work); return 1; }
    nester_init(&the_nester);
    RUN(codes_at_and_around_every_decision_point_equal_bitsandbytes);
    RUN(short_blocks_divide_and_full_blocks_multiply);
    RUN(the_dynamic_map_equals_bitsandbytes);
    RUN(blocks_of_bytes_equal_bitsandbytes);
    RUN(blocks_of_zeros_and_of_tiny_numbers_equal_bitsandbytes);
    RUN(means_round_as_torch_does);
    RUN(all_152_weights_quantise_like_bitsandbytes_bit_for_bit);
    RUN(quant_states_equal_bitsandbytes_byte_for_byte);
    RUN(floats_print_as_python_prints_them);
    RUN(patterns_match_whole_components);
    RUN(options_are_exact);
    RUN(a_text_checkpoint_opens_and_decodes);
    RUN(a_checkpoint_with_vision_opens_and_decodes);
    RUN(a_sharded_f16_checkpoint_opens_and_decodes);
    RUN(the_file_is_in_the_order_of_safetensors_own_writer);
    RUN(kept_modules_stay_dense_and_are_listed);
    RUN(small_shards_come_with_an_index);
    RUN(other_files_come_along);
    RUN(a_tied_lm_head_that_repeats_the_embedding_is_left_out);
    RUN(a_quantised_source_is_refused);
    RUN(a_nan_in_a_weight_is_refused);
    RUN(a_bad_source_is_one_sentence);
    RUN(a_target_in_use_is_left_alone);
    RUN(force_replaces_a_checkpoint);
    RUN(a_run_cut_short_is_noticed);
    RUN(a_signal_stops_and_leaves_nothing);
    RUN(the_exit_status_tells);
    RUN(a_full_disk_leaves_the_target_as_it_was);
    clean_up();
    return test_done();
}
