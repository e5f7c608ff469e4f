// The section >>numbers: every conversion over its whole range against a formula of its own, and 152 weights that bitsandbytes
// quantised and dequantised, bit for bit.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "../tools/st.h"

static uint32_t bits_of(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
static float float_of(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
static bool is_nan(float f) { return f != f; }
static bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a == 0 && b == 0); }            // zeros whatever their sign

// The value of a small float, from the definition: sign, exponent field of `e` bits, mantissa field of `m` bits. Infinity and NaN are the caller's.
static double value_of(unsigned code, int e, int m)
{
    unsigned field = code >> m & ((1u << e) - 1), mant = code & ((1u << m) - 1);
    int bias = (1 << (e - 1)) - 1;
    double v = field ? ldexp(1.0 + ldexp((double)mant, -m), (int)field - bias) : ldexp((double)mant, 1 - bias - m);
    return code >> (e + m) & 1 ? -v : v;
}

// A random number generator for the slices below (xorshift).
static uint32_t roll(uint32_t *s) { *s ^= *s << 13; *s ^= *s >> 17; *s ^= *s << 5; return *s; }

// ---- bfloat16 and float16

static int every_bf16_round_trips(void)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = g3__bf16_to_f32((uint16_t)h);
        if ((h & 0x7fff) > 0x7f80) { CHECK(is_nan(f) && is_nan(g3__bf16_to_f32(g3__f32_to_bf16(f)))); continue; }
        CHECK(g3__f32_to_bf16(f) == h);
        if ((h & 0x7f80) != 0x7f80) CHECK(f == (float)value_of(h, 8, 7));
    }
    return 0;
}

static int every_f16_equals_its_formula_and_round_trips(void)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = g3__f16_to_f32((uint16_t)h);
        if ((h & 0x7fff) > 0x7c00) { CHECK(is_nan(f) && is_nan(g3__f16_to_f32(g3__f32_to_f16(f)))); continue; }
        CHECK(g3__f32_to_f16(f) == h);
        if ((h & 0x7fff) == 0x7c00) CHECK(fabsf(f) > FLT_MAX && (f < 0) == (h >> 15 == 1));
        else CHECK(f == (float)value_of(h, 5, 10) && bits_of(f) >> 31 == h >> 15);
    }
    return 0;
}

// Between two neighbours: below the middle goes down, above it up, the middle to the even one.
static int rounding_to_bf16_and_f16_is_to_nearest_even(void)
{
    for (unsigned h = 0; h < 0x7f7f; h++) {
        uint32_t low = (uint32_t)h << 16, even = h & 1 ? h + 1 : h;
        CHECK(g3__f32_to_bf16(float_of(low | 0x7fff)) == h && g3__f32_to_bf16(float_of(low | 0x8001)) == h + 1);
        CHECK(g3__f32_to_bf16(float_of(low | 0x8000)) == even && g3__f32_to_bf16(float_of(low | 0x80008000)) == (even | 0x8000));
    }
    CHECK(g3__f32_to_bf16(FLT_MAX) == 0x7f80 && g3__f32_to_bf16(float_of(0x7f7f7fff)) == 0x7f7f);
    for (unsigned h = 0; h < 0x7bff; h++) {
        float middle = (float)((value_of(h, 5, 10) + value_of(h + 1, 5, 10)) / 2);                       // exact in float32
        unsigned even = h & 1 ? h + 1 : h;
        CHECK(g3__f32_to_f16(middle) == even && g3__f32_to_f16(-middle) == (even | 0x8000));
        CHECK(g3__f32_to_f16(float_of(bits_of(middle) - 1)) == h && g3__f32_to_f16(float_of(bits_of(middle) + 1)) == h + 1);
    }
    CHECK(g3__f32_to_f16(65519.996f) == 0x7bff && g3__f32_to_f16(65520.0f) == 0x7c00 && g3__f32_to_f16(-FLT_MAX) == 0xfc00);
    CHECK(g3__f32_to_f16(float_of(0x00000001)) == 0 && g3__f32_to_f16(float_of(0x807fffff)) == 0x8000);
    return 0;
}

// ---- fp8

static int fp8_decodes_like_the_fixture_and_the_formula(void)
{
    st_file f;
    CHECK(st_open(&f, golden("bnb/formats/fp8.safetensors")));
    const st_tensor *a = st_find(&f, "e4m3.decode"), *b = st_find(&f, "e5m2.decode");
    CHECK(a && b);
    for (unsigned i = 0; i < 256; i++) {
        float x = g3__e4m3_to_f32((uint8_t)i), y = g3__e5m2_to_f32((uint8_t)i);
        if ((i & 0x7f) == 0x7f) CHECK(is_nan(x) && is_nan(st_f32(a, i)));
        else CHECK(bits_of(x) == bits_of(st_f32(a, i)) && x == (float)value_of(i, 4, 3));
        if ((i & 0x7f) > 0x7c) CHECK(is_nan(y) && is_nan(st_f32(b, i)));
        else CHECK(bits_of(y) == bits_of(st_f32(b, i)));
        if ((i & 0x7f) < 0x7c) CHECK(y == (float)value_of(i, 5, 2));
    }
    st_close(&f);
    return 0;
}

static int fp8_encodes_like_the_fixture(void)
{
    st_file f;
    CHECK(st_open(&f, golden("bnb/formats/fp8.safetensors")));
    const st_tensor *in = st_find(&f, "e4m3.encode_input"), *out = st_find(&f, "e4m3.encode_sat");
    CHECK(in && out && st_count(in) == 1562 && st_count(out) == 1562);
    for (size_t i = 0; i < st_count(in); i++) {
        if (is_nan(st_f32(in, i))) CHECK((g3__f32_to_e4m3(st_f32(in, i)) & 0x7f) == 0x7f && (out->data[i] & 0x7f) == 0x7f);
        else CHECK(g3__f32_to_e4m3(st_f32(in, i)) == out->data[i]);
    }
    st_close(&f);
    return 0;
}

static int fp8_rounds_once_to_nearest_even(void)
{
    for (unsigned b = 0; b < 0x7e; b++) {
        float middle = (float)((value_of(b, 4, 3) + value_of(b + 1, 4, 3)) / 2);
        unsigned even = b & 1 ? b + 1 : b;
        CHECK(g3__f32_to_e4m3(g3__e4m3_to_f32((uint8_t)b)) == b);
        CHECK(g3__f32_to_e4m3(middle) == even && g3__f32_to_e4m3(-middle) == (even | 0x80));
        CHECK(g3__f32_to_e4m3(float_of(bits_of(middle) - 1)) == b && g3__f32_to_e4m3(float_of(bits_of(middle) + 1)) == b + 1);
    }
    CHECK(g3__f32_to_e4m3(448) == 0x7e && g3__f32_to_e4m3(464) == 0x7e && g3__f32_to_e4m3(1e30f) == 0x7e && g3__f32_to_e4m3(-(float)HUGE_VAL) == 0xfe);
    return 0;
}

// ---- 4-bit weights

static int tables_equal_those_of_bitsandbytes(void)
{
    st_file f;
    CHECK(st_open(&f, golden("bnb/tensors/quant_ties.safetensors")));
    const st_tensor *nf4 = st_find(&f, "nf4.table"), *fp4 = st_find(&f, "fp4.table");
    CHECK(nf4 && fp4);
    for (size_t i = 0; i < 16; i++) CHECK(bits_of(g3__nf4_table[i]) == bits_of(st_f32(nf4, i)) && same(g3__fp4_table[i], st_f32(fp4, i)));
    st_close(&f);
    return 0;
}

enum { MOST = 1 << 15 };
typedef struct bench {
    st_file f;
    const st_tensor *weight, *absmax, *state, *f32, *bf16, *f16, *scales;
    g3__bits bits;
    float nested[64], map[256];
    size_t n;                                            // elements
} bench;

// Case i as a checkpoint stores it, seen through g3__bits; false: there is no such case.
static bool bench_load(bench *b, int i)
{
    const st_file *f = &b->f;
    const st_tensor *nf4 = st_find(f, "case%03d.weight.quant_state.bitsandbytes__nf4", i);
    const st_tensor *fp4 = st_find(f, "case%03d.weight.quant_state.bitsandbytes__fp4", i);
    const st_tensor *nested = st_find(f, "case%03d.weight.nested_absmax", i), *map = st_find(f, "case%03d.weight.nested_quant_map", i);
    b->weight = st_find(f, "case%03d.weight", i);
    b->absmax = st_find(f, "case%03d.weight.absmax", i);
    b->scales = st_find(f, "case%03d.absmax_f32", i);
    b->f32 = st_find(f, "case%03d.expect_f32", i);
    b->bf16 = st_find(f, "case%03d.expect_bf16", i);
    b->f16 = st_find(f, "case%03d.expect_f16", i);
    b->state = nf4 ? nf4 : fp4;
    if (!b->state || !b->weight || !b->f32) return false;
    memset(&b->bits, 0, sizeof b->bits);
    b->n = st_count(b->f32);
    b->bits.format = nf4 ? G3__NF4 : G3__FP4;
    b->bits.data = b->weight->data;
    b->bits.absmax = b->absmax->data;
    b->bits.blocksize = (uint32_t)st_state(b->state, "blocksize");
    if (nested) {
        memcpy(b->nested, nested->data, nested->size);
        memcpy(b->map, map->data, map->size);
        b->bits.nested_absmax = b->nested;
        b->bits.nested_map = b->map;
        b->bits.nested_blocksize = (uint32_t)st_state(b->state, "nested_blocksize");
        b->bits.nested_offset = (float)st_state(b->state, "nested_offset");
    }
    return true;
}

static float got[MOST];

static int all_152_weights_of_bitsandbytes_decode_bit_for_bit(void)
{
    static bench b;
    int cases = 0, nested = 0;
    CHECK(st_open(&b.f, golden("bnb/tensors/dequant_cases.safetensors")));
    for (; bench_load(&b, cases); cases++) {
        CHECK(b.n <= MOST);
        g3__decode(&b.bits, 0, b.n, got);
        nested += b.bits.nested_absmax != NULL;
        for (size_t e = 0; e < st_count(b.scales); e++) CHECK(same(g3__block_scale(&b.bits, e), st_f32(b.scales, e)));
        for (size_t e = 0; e < b.n; e++) {
            CHECK(same(got[e], st_f32(b.f32, e)));
            CHECK(same(g3__bf16_to_f32(g3__f32_to_bf16(got[e])), g3__bf16_to_f32(g3__load_u16(b.bf16->data + 2 * e))));
            CHECK(same(g3__f16_to_f32(g3__f32_to_f16(got[e])), g3__f16_to_f32(g3__load_u16(b.f16->data + 2 * e))));
        }
    }
    CHECK(cases == 152 && nested == 76);
    st_close(&b.f);
    return 0;
}

// Rows of any width cut blocks, and an embedding or a tile may ask for any part of a matrix.
static int any_slice_of_a_weight_equals_that_part_of_the_whole(void)
{
    static bench b;
    static float part[MOST];
    uint32_t seed = 2463534242u;
    CHECK(st_open(&b.f, golden("bnb/tensors/dequant_cases.safetensors")));
    for (int i = 0; bench_load(&b, i); i++) {
        g3__decode(&b.bits, 0, b.n, got);
        for (int turn = 0; turn < 40; turn++) {
            size_t first = roll(&seed) % (b.n + 1), n = roll(&seed) % (b.n + 1 - first);
            if (turn < 20) n = G3__MIN(n, (size_t)turn);                                                  // short ones, empty ones
            memset(part, 0x7e, sizeof part);
            g3__decode(&b.bits, first, n, part);
            CHECK(n == 0 || memcmp(part, got + first, n * sizeof *part) == 0);
            CHECK(bits_of(part[n]) == 0x7e7e7e7e);                                                        // not one element more
        }
    }
    st_close(&b.f);
    return 0;
}

// In rows of 272 = 4 * 64 + 16 elements most blocks begin inside a row (as in the vision tower's fc2, 4304 wide). bitsandbytes' own
// AVX-512 kernel looks scales up per row there and is wrong; its CUDA kernels and its plain Python are the rule.
static int blocks_run_over_the_ends_of_rows(void)
{
    uint8_t codes[3 * 272 / 2];
    float absmax[13], row[272];
    g3__bits w = G3__ZERO;
    memset(codes, 0xff, sizeof codes);                                                                    // NF4 code 15 is 1: the scales themselves
    for (int i = 0; i < 13; i++) absmax[i] = (float)(i + 1);
    w.format = G3__NF4; w.data = codes; w.absmax = absmax; w.blocksize = 64;
    for (int r = 0; r < 3; r++) {
        g3__decode(&w, (uint64_t)r * 272, 272, row);
        for (int c = 0; c < 272; c++) CHECK(row[c] == (float)((r * 272 + c) / 64 + 1));
    }
    return 0;
}

// https://github.com/paiml/entrenar/issues/298: a wrong mapping of the codes only makes the model worse, nothing fails.
static int the_first_element_is_the_high_nibble_and_odd_counts_end_in_padding(void)
{
    const uint8_t codes[] = { 0x0f, 0x7e, 0x8a };
    const float one = 1;
    float out[5];
    g3__bits w = G3__ZERO;
    w.format = G3__NF4; w.data = codes; w.absmax = &one; w.blocksize = 64;
    g3__decode(&w, 0, 5, out);
    CHECK(out[0] == -1 && out[1] == 1 && out[2] == 0 && out[3] == g3__nf4_table[14] && out[4] == g3__nf4_table[8]);
    w.format = G3__FP4;
    g3__decode(&w, 1, 4, out);
    CHECK(out[0] == -0.25f && out[1] == 0.25f && out[2] == -2.0f / 12 && out[3] == 0);
    return 0;
}

// map * absmax = 1 + 2^-22 + 2^-46 exactly; as float32 1 + 2^-22. Minus 1 that is 2^-22, and 2^-22 + 2^-46 with a fused multiply-add.
static int nested_scales_are_rounded_twice(void)
{
    uint8_t code = 3;
    float map[256] = G3__ZERO, nested = 1 + ldexpf(1, -23);
    g3__bits w = G3__ZERO;
    map[3] = nested;
    w.format = G3__NF4; w.absmax = &code; w.nested_absmax = &nested; w.nested_map = map; w.nested_offset = -1;
    w.blocksize = 64; w.nested_blocksize = 256;
    CHECK(g3__block_scale(&w, 0) == ldexpf(1, -22));
    return 0;
}

// ---- dense weights

static int unaligned_elements_of_every_dense_format_decode(void)
{
    static const struct { g3__format format; uint8_t bytes[4]; int size; float value; } t[] = {
        { G3__F32,  { 0x00, 0x00, 0x20, 0xc0 }, 4, -2.5f }, { G3__BF16, { 0x20, 0xc0 }, 2, -2.5f }, { G3__F16, { 0x00, 0xc1 }, 2, -2.5f },
        { G3__E4M3, { 0xc2 }, 1, -2.5f }, { G3__E5M2, { 0xc1 }, 1, -2.5f }, { G3__U8, { 0xfe }, 1, 254 }, { G3__I8, { 0xfe }, 1, -2 },
    };
    for (int i = 0; i < G3__COUNT(t); i++) {
        uint8_t raw[1 + 5 * 4];
        float out[6];
        g3__bits w = G3__ZERO;
        for (int k = 0; k < 5; k++) memcpy(raw + 1 + k * t[i].size, t[i].bytes, (size_t)t[i].size);
        memset(out, 0x7e, sizeof out);
        w.format = t[i].format;
        w.data = raw + 1;
        g3__decode(&w, 1, 4, out);
        for (int k = 0; k < 4; k++) CHECK(out[k] == t[i].value);
        CHECK(bits_of(out[4]) == 0x7e7e7e7e);
    }
    return 0;
}

static int unaligned_scales_decode(void)
{
    uint8_t raw[9], codes[2] = { 0xff, 0xff };
    float scale[2] = { 3, 5 }, out[4];
    g3__bits w = G3__ZERO;
    memcpy(raw + 1, scale, 8);
    w.format = G3__NF4; w.data = codes; w.absmax = raw + 1; w.blocksize = 2;
    g3__decode(&w, 0, 4, out);
    CHECK(out[0] == 3 && out[1] == 3 && out[2] == 5 && out[3] == 5);
    return 0;
}

static int one_scale_multiplies_an_fp8_weight(void)
{
    const uint8_t raw[2] = { 0x42, 0xc2 };                                                                // 2.5 and -2.5 in E4M3
    const float scale = 0.5f;
    float out[2];
    g3__bits w = G3__ZERO;
    w.format = G3__E4M3; w.data = raw; w.scale = &scale; w.scale_format = G3__F32;
    g3__decode(&w, 0, 2, out);
    CHECK(out[0] == 1.25f && out[1] == -1.25f);
    return 0;
}

int main(void)
{
    RUN(every_bf16_round_trips);
    RUN(every_f16_equals_its_formula_and_round_trips);
    RUN(rounding_to_bf16_and_f16_is_to_nearest_even);
    RUN(fp8_decodes_like_the_fixture_and_the_formula);
    RUN(fp8_encodes_like_the_fixture);
    RUN(fp8_rounds_once_to_nearest_even);
    RUN(tables_equal_those_of_bitsandbytes);
    RUN(all_152_weights_of_bitsandbytes_decode_bit_for_bit);
    RUN(any_slice_of_a_weight_equals_that_part_of_the_whole);
    RUN(blocks_run_over_the_ends_of_rows);
    RUN(the_first_element_is_the_high_nibble_and_odd_counts_end_in_padding);
    RUN(nested_scales_are_rounded_twice);
    RUN(unaligned_elements_of_every_dense_format_decode);
    RUN(unaligned_scales_decode);
    RUN(one_scale_multiplies_an_fp8_weight);
    return test_done();
}
