// The tokenizer: the real one against the fixtures (made with the tokenizers library), any other against a slow
// byte-pair encoder written here from the merges as they are listed, hostile files and bytes against their limits.
// The real tokenizer.json is taken from G3_TOKENIZER, else from build/gemma-3-270m; without it those cases skip.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "../tools/failing.h"

enum { MOST = 1 << 16 };                                  // ids and bytes that a case may take
static int ids[MOST], want[MOST];
static char bytes[4 * MOST];

// ---- opening tokenizers

typedef struct opened { g3__heap heap; g3__zone keep, temp; g3__tok t; g3_error err; char *text; bool ok; } opened;

static char *read_all(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    long n = -1;
    if (!f) return NULL;
    if (fseek(f, 0, SEEK_END) == 0) n = ftell(f);
    char *text = n < 0 ? NULL : (char *)malloc((size_t)n + 1);
    rewind(f);
    *size = text ? fread(text, 1, (size_t)n, f) : 0;
    if (text) text[*size] = 0;
    fclose(f);
    return text;
}

// From a copy of the text on the heap of its exact size, so that a sanitizer sees a read past its end; the copy is gone
// before the tokenizer is used.
static bool open_text(opened *o, const char *text, size_t size, int rows)
{
    memset(o, 0, sizeof *o);
    g3__heap_init(&o->heap, NULL);
    g3__zone_init(&o->keep, &o->heap);
    g3__zone_init(&o->temp, &o->heap);
    char *copy = (char *)malloc(size ? size : 1);
    if (!copy) return false;
    memcpy(copy, text, size);
    o->ok = g3__tok_load(&o->t, copy, size, rows, &o->keep, &o->temp, &o->err);
    g3__zone_free(&o->temp);
    free(copy);
    return o->ok;
}

static void close_text(opened *o)
{
    g3__zone_free(&o->keep);
    free(o->text);
    o->text = NULL;
}

static opened real;
static const opened *open_real(void)                      // NULL: there is none here
{
    static bool tried;
    const char *path = getenv("G3_TOKENIZER");
    size_t size = 0;
    if (tried) return real.ok ? &real : NULL;
    tried = true;
    char *text = read_all(path ? path : "build/gemma-3-270m/tokenizer.json", &size);
    if (!text) return NULL;
    if (!open_text(&real, text, size, 262144)) printf("    %s\n", real.err.text);
    free(text);
    return real.ok ? &real : NULL;
}
#define NO_REAL "no real tokenizer.json (make model brings it; G3_TOKENIZER names another)"

static void *no_alloc(void *user, size_t size, size_t align) { (void)user; (void)size; (void)align; return NULL; }
static void no_free(void *user, void *p, size_t size) { (void)user; (void)p; (void)size; }
static const g3_allocator nothing = { no_alloc, no_free, NULL };

static int64_t encode(const opened *o, const char *text, size_t n, int flags)
{
    return g3__tok_encode(&o->t, &o->heap.a, text, n, flags, ids, MOST, NULL);
}

static bool ids_are(int64_t n, const int *expected, int64_t m)
{
    bool same = n == m && (!n || memcmp(ids, expected, (size_t)n * sizeof *ids) == 0);
    for (int64_t i = 0; !same && i < G3__MAX(n, m) && i < 24; i++) fprintf(stderr, "    %lld: %d, expected %d\n", (long long)i, i < n ? ids[i] : -1, i < m ? expected[i] : -1);
    return same;
}

// ---- fixtures: one JSON object a line

typedef struct fixture { g3__str kind, name, text, replaced, bytes, skipped; int64_t ids, plain; bool has_plain, has_skipped; } fixture;
static int ids_plain[MOST];

static int64_t read_ids(g3__json *j, int *out)
{
    int64_t n = 0;
    uint64_t id;
    g3__json_array(j);
    while (g3__json_item(j) && g3__json_u64(j, &id) && n < MOST) out[n++] = (int)id;
    return n;
}

static bool read_fixture(char *line, size_t n, fixture *f)   // ids go to want, ids_plain to ids_plain
{
    g3__json j;
    g3__str key;
    memset(f, 0, sizeof *f);
    g3__json_init(&j, line, n, "a fixture", NULL);
    g3__json_object(&j);
    while (g3__json_key(&j, &key)) {
        if (g3__str_is(key, "kind")) g3__json_string(&j, &f->kind);
        else if (g3__str_is(key, "name")) g3__json_string(&j, &f->name);
        else if (g3__str_is(key, "text")) g3__json_string(&j, &f->text);
        else if (g3__str_is(key, "replaced_text")) g3__json_string(&j, &f->replaced);
        else if (g3__str_is(key, "bytes_hex")) g3__json_string(&j, &f->bytes);
        else if (g3__str_is(key, "text_skip_special")) f->has_skipped = g3__json_string(&j, &f->skipped);
        else if (g3__str_is(key, "ids")) f->ids = read_ids(&j, want);
        else if (g3__str_is(key, "ids_plain")) { f->plain = read_ids(&j, ids_plain); f->has_plain = true; }
        else g3__json_skip(&j);
    }
    return !j.failed;
}

static size_t unhex(g3__str hex, char *out)
{
    for (size_t i = 0; i + 1 < hex.n; i += 2) {
        char two[3] = { hex.p[i], hex.p[i + 1], 0 };
        out[i / 2] = (char)strtol(two, NULL, 16);
    }
    return hex.n / 2;
}

// Whole characters of the ids one after another, as a stream shows them.
static size_t stream(const g3__tok *t, const int *list, int64_t n, bool skip_special, char *out)
{
    g3__utf8 u = G3__ZERO;
    size_t size = 0;
    for (int64_t i = 0; i < n; i++)
        if (!(skip_special && g3__tok_special(t, list[i]))) size += (size_t)g3__utf8_stream(&u, g3__tok_piece(t, list[i]), out + size);
    return size + (size_t)g3__utf8_flush(&u, out + size);
}

static bool check_decode(const opened *o, const fixture *f)
{
    static char raw[MOST], text[MOST];
    size_t n = 0, m = unhex(f->bytes, raw), shown;
    bool valid = true;
    for (int64_t i = 0; i < f->ids; i++) {
        g3__str p = g3__tok_piece(&o->t, want[i]);
        memcpy(bytes + n, p.p, p.n);
        n += p.n;
    }
    if (n != m || memcmp(bytes, raw, n)) return false;
    for (size_t i = 0; i < n && valid; ) { int k = g3__utf8_size(raw + i, raw + n); valid = k > 0; i += (size_t)G3__MAX(k, 1); }
    if (!valid) return true;                              // the reference's string follows another rule for broken bytes
    shown = stream(&o->t, want, f->ids, false, text);
    if (!g3__str_equal(g3__str_make(text, shown), f->text)) return false;
    if (!f->has_skipped) return true;
    shown = stream(&o->t, want, f->ids, true, text);
    return g3__str_equal(g3__str_make(text, shown), f->skipped);
}

static bool check_fixture(const opened *o, const fixture *f)
{
    if (g3__str_is(f->kind, "decode")) return check_decode(o, f);
    if (g3__str_is(f->kind, "invalid_utf8")) {
        size_t n = unhex(f->bytes, bytes);
        return ids_are(encode(o, bytes, n, G3_TOKENIZE_SPECIAL), want, f->ids) && ids_are(encode(o, f->replaced.p, f->replaced.n, G3_TOKENIZE_SPECIAL), want, f->ids);
    }
    if (g3__str_is(f->kind, "encode_bos")) return ids_are(encode(o, f->text.p, f->text.n, G3_TOKENIZE_SPECIAL | G3_TOKENIZE_BOS), want, f->ids);
    if (!g3__str_is(f->kind, "encode") || !ids_are(encode(o, f->text.p, f->text.n, G3_TOKENIZE_SPECIAL), want, f->ids)) return false;
    return ids_are(encode(o, f->text.p, f->text.n, G3_TOKENIZE_PLAIN), f->has_plain ? ids_plain : want, f->has_plain ? f->plain : f->ids);
}

static int every_fixture_line_is_equal(void)
{
    const opened *o = open_real();
    size_t size = 0;
    int lines = 0, wrong = 0;
    if (!o) SKIP(NO_REAL);
    char *text = read_all(golden("text/tokenizer.jsonl"), &size);
    CHECK(text);
    for (char *p = text, *end; p < text + size; p = end + 1, lines++) {
        fixture f;
        end = (char *)memchr(p, '\n', (size_t)(text + size - p));
        if (!end) end = text + size;
        if (read_fixture(p, (size_t)(end - p), &f) && check_fixture(o, &f)) continue;
        fprintf(stderr, "    line %d differs: %.*s\n", lines + 1, G3__S(f.name));
        wrong++;
    }
    free(text);
    CHECK(lines == 653);
    CHECK(wrong == 0);
    return 0;
}

static int the_vocabulary_is_as_described(void)
{
    const opened *o = open_real();
    size_t size = 0;
    uint64_t count = 0, expected_added = 0;
    int specials = 0, n_special = 0, special[32];
    g3__json j;
    g3__str key, s;
    if (!o) SKIP(NO_REAL);
    char *text = read_all(golden("text/vocab_rules.json"), &size);
    CHECK(text);
    g3__json_init(&j, text, size, "vocab_rules.json", NULL);
    g3__json_object(&j);
    while (g3__json_key(&j, &key)) {
        if (g3__str_is(key, "added_special_ids")) n_special = (int)read_ids(&j, special);
        else if (g3__str_is(key, "added_tokens")) g3__json_u64(&j, &expected_added);
        else if (g3__str_is(key, "byte_token_first_id")) { g3__json_u64(&j, &count); for (int b = 0; b < 256; b++) CHECK(o->t.byte_id[b] == (int)count + b); }
        else if (g3__str_is(key, "added_nonspecial_contents_outside_unused")) {
            g3__json_array(&j);
            while (g3__json_item(&j)) {
                g3__json_array(&j);
                CHECK(g3__json_item(&j) && g3__json_u64(&j, &count) && g3__json_item(&j) && g3__json_string(&j, &s) && !g3__json_item(&j));
                memcpy(bytes, s.p, s.n);
                bytes[s.n] = 0;
                CHECK(g3__tok_find(&o->t, bytes) == (int64_t)count && !g3__tok_special(&o->t, (int)count));
                CHECK(encode(o, s.p, s.n, G3_TOKENIZE_PLAIN) == 1 && ids[0] == (int)count);
            }
        }
        else g3__json_skip(&j);
    }
    CHECK(!j.failed);
    free(text);
    CHECK(n_special == 9);
    for (int i = 0; i < n_special; i++) CHECK(g3__tok_special(&o->t, special[i]));
    for (int i = -5; i < o->t.n + 5; i++) specials += g3__tok_special(&o->t, i);
    CHECK(specials == 9);
    CHECK(o->t.n == 262145 && o->t.bos == 2 && o->t.unk == 3 && o->t.first[256] == expected_added);
    for (int i = 0; i < o->t.n; i++) CHECK(g3__tok_piece(&o->t, i).p != NULL);
    CHECK(g3__tok_find(&o->t, "<image_soft_token>") == 262144 && g3__tok_find(&o->t, "<0x0A>") == 248 && g3__tok_find(&o->t, "\xE2\x96\x81the") == 506);
    CHECK(g3__tok_find(&o->t, " the") == -1 && g3__tok_find(&o->t, "") == -1 && g3__tok_find(&o->t, "no such piece") == -1);
    return 0;
}

// ---- cases known from other engines

#define IDS(...) ids_are(n, (const int[]){ __VA_ARGS__ }, (int64_t)(sizeof((const int[]){ __VA_ARGS__ }) / sizeof(int)))
#define TEXT(text, flags, ...) do { int64_t n = encode(o, text, sizeof(text) - 1, flags); CHECK(IDS(__VA_ARGS__)); } while (0)

// https://github.com/kekzl/imp/pull/661  https://github.com/ggml-org/llama.cpp/issues/8338  https://github.com/ariannamethod/notorch/pull/44
static int runs_of_spaces_and_tabs_are_single_tokens(void)
{
    const opened *o = open_real();
    char run[32];
    if (!o) SKIP(NO_REAL);
    TEXT("a  b and    c", 0, 236746, 138, 236763, 532, 140, 236755);
    TEXT("\t\t\t\t\t\ttest", 0, 255973, 2181);
    TEXT("      test", 0, 142, 2181);
    TEXT(" Hello", 0, 26352);
    TEXT("Hello", 0, 9259);
    CHECK(encode(o, "", 0, 0) == 0);
    memset(run, ' ', sizeof run);
    CHECK(encode(o, run, 31, 0) == 1 && ids[0] == 167);
    CHECK(encode(o, run, 32, 0) == 2 && ids[0] == 167 && ids[1] == 236743);
    return 0;
}

static int newlines_digits_and_odd_characters(void)
{
    const opened *o = open_real();
    char run[32];
    if (!o) SKIP(NO_REAL);
    TEXT("\n", 0, 107);
    TEXT("\n\n", 0, 108);
    memset(run, '\n', sizeof run);
    CHECK(encode(o, run, 31, 0) == 1 && ids[0] == 137);
    CHECK(encode(o, run, 32, 0) == 2 && ids[0] == 137 && ids[1] == 107);
    TEXT("\n \n", 0, 107, 236743, 107);
    TEXT("\r\n", 0, 251, 107);
    TEXT("\xC2\xA0", 0, 432, 398);
    TEXT("\xC3\xA9", 0, 236859);                           // one character
    TEXT("e\xCC\x81", 0, 236744, 238288);                  // two: nothing is normalised
    TEXT("12345678", 0, 236770, 236778, 236800, 236812, 236810, 236825, 236832, 236828);
    TEXT("\xEA\xB9\xB0", 0, 472, 423, 414);
    TEXT("\xF0\xA0\x80\x8B", 0, 478, 398, 366, 377);
    TEXT("\0", 0, 238);
    TEXT("\xE2\x96\x81", 0, 236743);                       // the one lossy character: it comes back as a space
    CHECK(g3__str_is(g3__tok_piece(&o->t, 236743), " "));
    return 0;
}

// https://github.com/google-deepmind/gemma/pull/770  https://github.com/ggml-org/llama.cpp/issues/8349  https://github.com/ollama/ollama/pull/10743
static int control_tokens_in_plain_text_are_text(void)
{
    const opened *o = open_real();
    static const char *const controls[] = { "<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>" };
    if (!o) SKIP(NO_REAL);
    TEXT("A<start_of_turn>B", G3_TOKENIZE_PLAIN, 236776, 236820, 3041, 236779, 1340, 236779, 887, 236813, 236799);
    TEXT("A<start_of_turn>B", G3_TOKENIZE_SPECIAL, 236776, 105, 236799);
    TEXT("<table>", G3_TOKENIZE_PLAIN, 168);
    TEXT("</s>", G3_TOKENIZE_PLAIN, 212);
    for (int i = 0; i < G3__COUNT(controls); i++) {
        CHECK(encode(o, controls[i], strlen(controls[i]), G3_TOKENIZE_SPECIAL) == 1 && g3__tok_special(&o->t, ids[0]));
        int64_t n = encode(o, controls[i], strlen(controls[i]), G3_TOKENIZE_PLAIN);
        CHECK(n > 1);
        for (int64_t k = 0; k < n; k++) CHECK(!g3__tok_special(&o->t, ids[k]));
    }
    return 0;
}

// https://github.com/unslothai/unsloth/pull/10312  https://github.com/sgl-project/sglang/pull/888  https://github.com/EleutherAI/lm-evaluation-harness/pull/2049
static int bos_stands_in_front_once_when_asked_for(void)
{
    const opened *o = open_real();
    if (!o) SKIP(NO_REAL);
    TEXT("Hi", G3_TOKENIZE_BOS, 2, 10979);
    TEXT("Hi", G3_TOKENIZE_PLAIN, 10979);
    TEXT("<bos>Hi", G3_TOKENIZE_BOS | G3_TOKENIZE_SPECIAL, 2, 2, 10979);       // both were asked for
    int64_t n = encode(o, "<bos>Hi", 7, G3_TOKENIZE_BOS);
    CHECK(ids[0] == 2 && n > 2);
    for (int64_t i = 1; i < n; i++) CHECK(ids[i] != 2);
    return 0;
}

// https://github.com/cactus-compute/cactus/issues/684  https://github.com/jundot/omlx/issues/1649  https://github.com/exo-explore/exo/pull/1691
static int a_stream_shows_whole_characters(void)
{
    const opened *o = open_real();
    g3__utf8 u = G3__ZERO;
    char out[256];
    if (!o) SKIP(NO_REAL);
    CHECK(g3__utf8_stream(&u, g3__tok_piece(&o->t, 472), out) == 0);
    CHECK(g3__utf8_stream(&u, g3__tok_piece(&o->t, 423), out) == 0);
    CHECK(g3__utf8_stream(&u, g3__tok_piece(&o->t, 414), out) == 3 && memcmp(out, "\xEA\xB9\xB0", 3) == 0);
    CHECK(g3__utf8_stream(&u, g3__tok_piece(&o->t, 472), out) == 0 && g3__utf8_stream(&u, g3__tok_piece(&o->t, 423), out) == 0);
    CHECK(g3__utf8_flush(&u, out) == 3 && memcmp(out, "\xEF\xBF\xBD", 3) == 0 && g3__utf8_flush(&u, out) == 0);
    CHECK(g3__utf8_stream(&u, g3__tok_piece(&o->t, 472), out) == 0);
    CHECK(g3__utf8_stream(&u, g3__tok_piece(&o->t, 9259), out) == 8 && memcmp(out, "\xEF\xBF\xBDHello", 8) == 0);
    return 0;
}

// ---- random material

static uint32_t seed = 1;
static uint32_t roll(uint32_t n)                          // 0 … n - 1
{
    seed = seed * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(seed >> 4) * n >> 28);
}

// Bytes as a browser or Python shows them, written from the table of well-formed sequences (Unicode 3.9, table 3-7), not from the header.
static size_t shown(const unsigned char *s, size_t n, char *out)
{
    static const unsigned char row[][5] = {               // lead from, lead to, second from, second to, length
        { 0x00, 0x7F, 0, 0, 1 }, { 0xC2, 0xDF, 0x80, 0xBF, 2 }, { 0xE0, 0xE0, 0xA0, 0xBF, 3 }, { 0xE1, 0xEC, 0x80, 0xBF, 3 }, { 0xED, 0xED, 0x80, 0x9F, 3 },
        { 0xEE, 0xEF, 0x80, 0xBF, 3 }, { 0xF0, 0xF0, 0x90, 0xBF, 4 }, { 0xF1, 0xF3, 0x80, 0xBF, 4 }, { 0xF4, 0xF4, 0x80, 0x8F, 4 },
    };
    size_t size = 0;
    for (size_t i = 0; i < n; ) {
        size_t k = 0, length = 0;
        for (int r = 0; r < G3__COUNT(row); r++) {
            if (s[i] < row[r][0] || s[i] > row[r][1]) continue;
            length = row[r][4];
            for (k = 1; k < length && i + k < n && s[i + k] >= (k == 1 ? row[r][2] : 0x80) && s[i + k] <= (k == 1 ? row[r][3] : 0xBF); ) k++;
        }
        if (k && k == length) memcpy(out + size, s + i, k);
        else memcpy(out + size, "\xEF\xBF\xBD", 3);
        size += k && k == length ? k : 3;
        i += k ? k : 1;
    }
    return size;
}

static size_t random_bytes(char *out, size_t n)           // text-like, broken and wild stretches mixed
{
    size_t size = 0;
    while (size + 8 < n) {
        uint32_t kind = roll(8), k = 1 + roll(6);
        for (uint32_t i = 0; i < k && size + 8 < n; i++) {
            if (kind == 0) out[size++] = (char)roll(256);
            else if (kind == 1) size += (size_t)g3__utf8_put(out + size, 0x4E00 + roll(3000));
            else if (kind == 2) size += (size_t)g3__utf8_put(out + size, 0x1F600 + roll(64));
            else if (kind == 3) out[size++] = (char)(0x80 + roll(128));
            else if (kind == 4) out[size++] = " \n\t<>\r"[roll(6)];
            else out[size++] = (char)(' ' + roll(95));
        }
    }
    return size;
}

// A stream of any bytes, however cut, is what decoding all of them at once gives.
static int a_stream_equals_decoding_at_once(void)
{
    static char raw[400], out[3000], expected[3000];
    for (int round = 0; round < 2000; round++) {
        g3__utf8 u = G3__ZERO;
        size_t n = random_bytes(raw, 9 + roll(300)), size = 0, m = shown((const unsigned char *)raw, n, expected);
        for (size_t i = 0, k; i < n; i += k) {
            k = 1 + roll(5);
            k = G3__MIN(k, n - i);
            size_t got = (size_t)g3__utf8_stream(&u, g3__str_make(raw + i, k), out + size);
            CHECK(got <= 3 * k + 3 && (k > 1 || got <= k + 8));
            size += got;
        }
        size += (size_t)g3__utf8_flush(&u, out + size);
        CHECK(size == m && memcmp(out, expected, m) == 0);
    }
    return 0;
}

// Any bytes encode, and decode to what a browser would show of them, U+2581 as a space. cap cuts nothing but the writing.
static int any_bytes_encode_and_come_back(void)
{
    const opened *o = open_real();
    static char raw[3000], expected[9000], text[9000];
    if (!o) SKIP(NO_REAL);
    for (int round = 0; round < 300; round++) {
        size_t n = random_bytes(raw, 9 + roll(2500)), m = shown((const unsigned char *)raw, n, expected), k = 0;
        int64_t count = encode(o, raw, n, round & 1);
        CHECK(count >= 0 && count < MOST);
        for (size_t i = 0; i < m; k++) {
            bool block = m - i > 2 && memcmp(expected + i, "\xE2\x96\x81", 3) == 0;
            expected[k] = block ? ' ' : expected[i];
            i += block ? 3 : 1;
        }
        size_t size = stream(&o->t, ids, count, false, text);
        CHECK(size == k && memcmp(text, expected, k) == 0);
        int64_t cap = roll((uint32_t)count + 1);
        memcpy(want, ids, (size_t)count * sizeof *ids);
        ids[cap] = -7;
        CHECK(g3__tok_encode(&o->t, &o->heap.a, raw, n, round & 1, ids, cap, NULL) == count && ids[cap] == -7 && memcmp(ids, want, (size_t)cap * sizeof *ids) == 0);
        CHECK(g3__tok_encode(&o->t, &o->heap.a, raw, n, round & 1, NULL, 0, NULL) == count);
    }
    return 0;
}

static int ids_out_of_range_have_no_piece(void)
{
    const opened *o = open_real();
    if (!o) SKIP(NO_REAL);
    const int odd[] = { -1, -262144, INT_MIN, INT_MAX, o->t.n, o->t.n + 1, 1 << 22 };
    for (int i = 0; i < G3__COUNT(odd); i++) CHECK(!g3__tok_piece(&o->t, odd[i]).p && !g3__tok_piece(&o->t, odd[i]).n && !g3__tok_special(&o->t, odd[i]));
    return 0;
}

// ---- the slow encoder: symbols in a row, the whole row searched for each merge

typedef struct merge { g3__str left, right; } merge;
typedef struct rules { const merge *merges; int n; const g3__tok *real; } rules;   // a list, or the real vocabulary's own rule

// Order of a merge; smaller is sooner. The real list by its rule, found in the published file: by falling score of
// the result, 494 - id among the learned pieces and else 0, then the longer left part, then the longer right part, then the id.
static double slow_rank(const rules *r, g3__str left, g3__str right)
{
    char joined[256];
    if (!r->real) {
        for (int i = r->n - 1; i >= 0; i--)
            if (g3__str_equal(r->merges[i].left, left) && g3__str_equal(r->merges[i].right, right)) return i;
        return 1e300;
    }
    if (left.n + right.n > 128) return 1e300;
    memcpy(joined, left.p, left.n);
    memcpy(joined + left.n, right.p, right.n);
    joined[left.n + right.n] = 0;
    int64_t id = g3__tok_find(r->real, joined);
    if (id < 0 || id > 262143) return 1e300;
    double score = id >= 494 && id <= 255967 ? 494.0 - (double)id : 0;
    return ((-score * 100 + (100 - g3__characters(left.p, left.n))) * 100 + (100 - g3__characters(right.p, right.n))) * 300000.0 + (double)id;
}

// Text (valid, no added token in it, U+2581 for spaces) to symbols; a character outside the vocabulary is its own and never merges.
static int slow_encode(const rules *r, const char *text, size_t n, g3__str *out)
{
    static double rank[8192];                             // of each symbol with the next one
    int count = 0;
    for (size_t i = 0; i < n; count++) {
        out[count] = g3__str_make(text + i, (size_t)g3__utf8_size(text + i, text + n));
        i += out[count].n;
    }
    for (int i = 0; i + 1 < count; i++) rank[i] = slow_rank(r, out[i], out[i + 1]);
    for (;;) {
        int at = 0;
        for (int i = 1; i + 1 < count; i++)
            if (rank[i] < rank[at]) at = i;
        if (count < 2 || rank[at] >= 1e300) return count;
        out[at].n += out[at + 1].n;
        memmove(out + at + 1, out + at + 2, (size_t)(count - at - 2) * sizeof *out);
        memmove(rank + at, rank + at + 1, (size_t)(count - at - 2) * sizeof *rank);
        count--;
        if (at + 1 < count) rank[at] = slow_rank(r, out[at], out[at + 1]);
        if (at > 0) rank[at - 1] = slow_rank(r, out[at - 1], out[at]);
    }
}

static size_t with_blocks(const char *text, size_t n, char *out)   // spaces as U+2581, invalid bytes as U+FFFD
{
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') { memcpy(out + size, "\xE2\x96\x81", 3); size += 3; }
        else if (text[i] == '\xFF') { memcpy(out + size, "\xEF\xBF\xBD", 3); size += 3; }
        else out[size++] = text[i];
    }
    return size;
}

static bool same_symbols(const g3__tok *t, const g3__str *symbols, int n, int64_t count)
{
    char text[256];
    int64_t k = 0;
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%.*s", (int)symbols[i].n, symbols[i].p);
        int64_t id = g3__tok_find(t, text);
        if (id >= 0) { if (k >= count || ids[k++] != (int)id) return false; continue; }
        for (size_t b = 0; b < symbols[i].n; b++)
            if (k >= count || ids[k++] != t->byte_id[(unsigned char)symbols[i].p[b]]) return false;
    }
    return k == count;
}

// https://github.com/antirez/ds4/issues/853  https://github.com/warpfront/hipfire/pull/201
static int the_heap_equals_the_slow_encoder(void)
{
    const opened *o = open_real();
    static char raw[8192], spelled[3 * 8192];
    static g3__str symbols[8192];
    static const char letters[] = "eeetaoin  shrdlu,.'\"()=/+-_;:*&%$#@!0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
    rules r = G3__ZERO;
    if (!o) SKIP(NO_REAL);
    r.real = &o->t;
    for (int round = 0; round < 48; round++) {
        size_t n = 0, most = round < 8 ? 2048 : 200;       // one letter, CJK, base64, Hangul, words, spaces …
        while (n + 4 < most) {
            if (round % 8 == 0) raw[n++] = 'a';
            else if (round % 8 == 1) n += (size_t)g3__utf8_put(raw + n, 0x4E00 + roll(2500));
            else if (round % 8 == 2) raw[n++] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[roll(64)];
            else if (round % 8 == 3) n += (size_t)g3__utf8_put(raw + n, 0xAC00 + roll(11172));
            else if (round % 8 == 4) raw[n++] = " a"[roll(2)];
            else if (round % 8 == 5) raw[n++] = "ab"[roll(2)];
            else if (round % 8 == 6) n += (size_t)g3__utf8_put(raw + n, 0x400 + roll(96));
            else raw[n++] = letters[roll(sizeof letters - 1)];
        }
        int m = slow_encode(&r, spelled, with_blocks(raw, n, spelled), symbols);
        CHECK(same_symbols(&o->t, symbols, m, encode(o, raw, n, 0)));
    }
    return 0;
}

static void *limited_alloc(void *user, size_t size, size_t align)
{
    size_t *most = (size_t *)user;
    *most = G3__MAX(*most, size);
    return g3__default_alloc(NULL, size, align);
}

// A megabyte without a space, of one letter, CJK and base64: a quadratic encoder would not come back from here; 44 bytes of scratch a symbol.
static int a_megabyte_without_spaces(void)
{
    const opened *o = open_real();
    enum { N = 1 << 20 };
    size_t most = 0;
    const g3_allocator a = { limited_alloc, g3__default_free, &most };
    if (!o) SKIP(NO_REAL);
    char *raw = (char *)malloc(N + 8);
    int *out = (int *)malloc((N + 8) * sizeof *out);
    CHECK(raw && out);
    for (int kind = 0; kind < 3; kind++) {
        size_t n = 0, size = 0;
        while (n < N) {
            if (kind == 0) raw[n++] = 'a';
            else if (kind == 1) n += (size_t)g3__utf8_put(raw + n, 0x4E00 + roll(2500));
            else raw[n++] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[roll(64)];
        }
        int64_t count = g3__tok_encode(&o->t, &a, raw, n, 0, out, N + 8, NULL);
        CHECK(count > 0 && count <= (int64_t)n);
        for (int64_t i = 0; i < count; i++) {
            g3__str p = g3__tok_piece(&o->t, out[i]);
            CHECK(size + p.n <= n && memcmp(raw + size, p.p, p.n) == 0);
            size += p.n;
        }
        CHECK(size == n && most <= (size_t)n * 44);
        CHECK(kind != 0 || most == (size_t)n * 44);
    }
    free(raw);
    free(out);
    return 0;
}

static int ordinary_text_allocates_nothing(void)
{
    const opened *o = open_real();
    size_t size = 0;
    g3_error err = G3__ZERO;
    if (!o) SKIP(NO_REAL);
    char *text = read_all(golden("text/passage.txt"), &size);
    CHECK(text);
    CHECK(g3__tok_encode(&o->t, &nothing, text, size, G3_TOKENIZE_BOS, ids, MOST, &err) == 1987);   // with <bos>, as its README says
    memset(bytes, 'a', 2000);
    CHECK(g3__tok_encode(&o->t, &nothing, bytes, 1000, 0, ids, MOST, &err) > 0);
    CHECK(g3__tok_encode(&o->t, &nothing, bytes, 1001, 0, ids, MOST, &err) == G3_ERR_MEMORY && err.code == G3_ERR_MEMORY && strstr(err.text, "1001"));
    free(text);
    return 0;
}

static int the_tables_are_small(void)
{
    const opened *o = open_real();
    if (!o) SKIP(NO_REAL);
    printf("    %.1f MB kept, %.1f MB at the peak of loading\n", (double)o->heap.live / 1e6, (double)o->heap.peak / 1e6);
    CHECK(o->heap.live < 9000000 && o->heap.peak < 12000000);
    return 0;
}

// ---- other tokenizers than Gemma's: whatever the file lists is obeyed

#define NORMAL "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xE2\x96\x81\"}"

static size_t put_bytes(char *out, int first)             // the 256 byte tokens
{
    size_t n = 0;
    for (int b = 0; b < 256; b++) n += (size_t)sprintf(out + n, "\"<0x%02X>\":%d,", (unsigned)b, first + b);
    return n;
}

static size_t put_json(char *out, g3__str s)
{
    size_t n = 0;
    out[n++] = '"';
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '"' || s.p[i] == '\\') out[n++] = '\\';
        if (s.p[i] == '\n') { out[n++] = '\\'; out[n++] = 'n'; }
        else out[n++] = s.p[i];
    }
    out[n++] = '"';
    return n;
}

// Random vocabularies grown by joining pieces, their merges listed in any order, some left out, some twice, members of
// the file in any order, merges as pairs or as strings: always what the slow encoder makes of the list.
static int any_list_of_merges_is_obeyed(void)
{
    static const char *const chars[] = { "a", "b", "\"", "\\", "\xC3\xA9", "\xE2\x96\x81", "\n", "\xEF\xBF\xBD", "\xE4\xB8\x80" };
    static const char *const texts[] = { "a", "b", "\"", "\\", "\xC3\xA9", " ", "\n", "\xFF", "\xE4\xB8\x80", "\xE2\x96\x81", "x" };
    static char pool[1 << 16], json[1 << 18], raw[400], spelled[1600];
    static g3__str piece[128], symbols[400];
    static merge list[300];
    for (int round = 0; round < 400; round++) {
        int n = G3__COUNT(chars), merges = 0, alphabet = 1 + (int)roll((uint32_t)n), start = (int)roll((uint32_t)(n - alphabet + 1));
        size_t used = 0, size = 0;
        bool strings = roll(2), model_first = roll(2), merges_first = roll(2);
        uint32_t order = roll(4);                          // as grown, reversed, some neighbours swapped, shuffled
        for (int i = 0; i < n; i++) piece[i] = g3__str_c(chars[i]);
        for (int tries = 0; tries < 200 && n < 100 && merges < 200; tries++) {
            g3__str l = piece[roll(4) ? start + (int)roll((uint32_t)alphabet) : (int)roll((uint32_t)n)], r = piece[roll(2) ? start + (int)roll((uint32_t)alphabet) : (int)roll((uint32_t)n)], s;
            if (l.n + r.n > 120 || used + l.n + r.n > sizeof pool) continue;
            memcpy(pool + used, l.p, l.n);
            memcpy(pool + used + l.n, r.p, r.n);
            s = g3__str_make(pool + used, l.n + r.n);
            int k = 0;
            while (k < n && !g3__str_equal(piece[k], s)) k++;
            if (k == n) { piece[n++] = s; used += s.n; }
            list[merges].left = l;
            list[merges++].right = r;
            for (size_t c = l.n + r.n - 1; c > 0 && merges < 200; c--) {        // its other cuts, longest left part first, as Gemma lists them
                int x = 0, y = 0;
                while (x < n && !g3__str_equal(piece[x], g3__str_make(piece[k].p, c))) x++;
                while (y < n && !g3__str_equal(piece[y], g3__str_make(piece[k].p + c, s.n - c))) y++;
                if (x == n || y == n || roll(8) == 0) continue;
                list[merges].left = piece[x];
                list[merges++].right = piece[y];
            }
        }
        for (int i = 0; i < (order == 1 ? merges / 2 : order ? merges : 0); i++) {
            int k = order == 1 ? merges - 1 - i : order == 2 ? i - (i > 0 && roll(4) == 0) : (int)roll((uint32_t)merges);
            merge m = list[i];
            list[i] = list[k];
            list[k] = m;
        }

        char *vocab = json + (1 << 17), *rank = vocab + (1 << 15);
        size_t v = (size_t)sprintf(vocab, "\"vocab\":{"), m = (size_t)sprintf(rank, "\"merges\":[");
        v += put_bytes(vocab + v, n);
        for (int i = 0; i < n; i++) { v += put_json(vocab + v, piece[i]); v += (size_t)sprintf(vocab + v, ":%d%s", i, i + 1 < n ? "," : "}"); }
        for (int i = 0; i < merges; i++) {
            if (strings) {
                char both[300];
                size_t k = list[i].left.n;
                memcpy(both, list[i].left.p, k);
                both[k++] = ' ';
                memcpy(both + k, list[i].right.p, list[i].right.n);
                m += put_json(rank + m, g3__str_make(both, k + list[i].right.n));
            }
            else {
                m += (size_t)sprintf(rank + m, "[");
                m += put_json(rank + m, list[i].left);
                m += (size_t)sprintf(rank + m, roll(2) ? "," : " ,\n ");
                m += put_json(rank + m, list[i].right);
                m += (size_t)sprintf(rank + m, "]");
            }
            m += (size_t)sprintf(rank + m, "%s", i + 1 < merges ? "," : "");
        }
        rank[m++] = ']';
        size = (size_t)sprintf(json, "{" NORMAL ",%s\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,", model_first ? "" : "\"added_tokens\":[],");
        memcpy(json + size, merges_first ? rank : vocab, merges_first ? m : v);
        size += merges_first ? m : v;
        json[size++] = ',';
        memcpy(json + size, merges_first ? vocab : rank, merges_first ? v : m);
        size += merges_first ? v : m;
        size += (size_t)sprintf(json + size, "}%s}", model_first ? ",\"added_tokens\":[]" : "");

        opened o;
        if (!open_text(&o, json, size, n + 256)) fprintf(stderr, "    %s\n", o.err.text);
        CHECK(o.ok);
        rules rule = G3__ZERO;
        rule.merges = list;
        rule.n = merges;
        for (int t = 0; t < 20; t++) {
            size_t length = 0;
            for (uint32_t k = roll(100); k > 0; k--) {
                const char *c = texts[roll(12) ? (uint32_t)start + roll((uint32_t)alphabet) : roll(G3__COUNT(texts))];
                memcpy(raw + length, c, strlen(c));
                length += strlen(c);
            }
            int count = slow_encode(&rule, spelled, with_blocks(raw, length, spelled), symbols);
            CHECK(same_symbols(&o.t, symbols, count, encode(&o, raw, length, 0)));
        }
        close_text(&o);
    }
    return 0;
}

#define TINY(added, vocab, merges) "{" NORMAL ",\"added_tokens\":[" added "],\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"vocab\":{" vocab "},\"merges\":[" merges "]}}"
#define ADDED(id, text, special) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":" #special "}"

// Worked out by hand: the first rank wins, not the longer piece; equal ranks from the left; a cut that is not listed does not merge.
static int small_files_by_hand(void)
{
    static const char first[] = TINY("", "\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5", "[\"b\",\"c\"],[\"a\",\"b\"]");
    static const char left[] = TINY("", "\"a\":0,\"aa\":1,\"aaa\":2", "\"a a\",\"a aa\"");
    static const char late[] = TINY("", "\"a\":0,\"b\":1,\"ab\":2,\"ba\":3", "[\"a\",\"b\"],[\"b\",\"a\"],[\"a\",\"b\"]");
    static const char unk[] = TINY("", "\"<unk>\":7,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3", "");
    opened p;
    const opened *o = &p;
    CHECK(open_text(&p, first, sizeof first - 1, 8));
    TEXT("abc", 0, 0, 4);
    close_text(&p);
    CHECK(open_text(&p, left, sizeof left - 1, 8));
    TEXT("aaaaa", 0, 1, 1, 0);             // aa aa a: no merge of aa and a is listed
    TEXT("aaa", 0, 1, 0);
    close_text(&p);
    CHECK(open_text(&p, late, sizeof late - 1, 8));
    TEXT("aba", 0, 0, 3);                  // listed twice: the last place counts
    close_text(&p);
    CHECK(open_text(&p, unk, sizeof unk - 1, 8));
    TEXT("a\xC3\xA9zzza", 0, 1, 2, 3, 7, 1);              // byte tokens where all are there, else one <unk>
    CHECK(p.t.bos == -1 && g3__tok_encode(&p.t, &nothing, "a", 1, G3_TOKENIZE_BOS, ids, MOST, NULL) == G3_ERR_MODEL);
    CHECK(!g3__tok_piece(&p.t, 0).p && g3__tok_piece(&p.t, 7).p && !g3__tok_piece(&p.t, 8).p);   // 0 is unused
    close_text(&p);
    return 0;
}

static int the_longest_added_token_wins(void)
{
    static const char file[] = TINY(ADDED(9, "<b>", true) "," ADDED(3, "<", false) "," ADDED(4, "<bc", false) "," ADDED(5, "\xE2\x96\x81\xE2\x96\x81", false) "," ADDED(8, "<bos>", true) "," ADDED(10, "b>", false),
                                    "\"a\":0,\"b\":1,\"\xE2\x96\x81\":2,\"<\":3,\">\":6,\"c\":7", "");
    opened p;
    const opened *o = &p;
    CHECK(open_text(&p, file, sizeof file - 1, 8));       // 8, 9 and 10 lie above the rows, as <image_soft_token> does
    TEXT("a<bca", 0, 0, 4, 0);
    TEXT("a<ba", 0, 0, 3, 1, 0);
    TEXT("<b><bc", G3_TOKENIZE_SPECIAL, 9, 4);
    TEXT("<b>", G3_TOKENIZE_PLAIN, 3, 1, 6);              // the control token is skipped over, with what would match inside it
    TEXT("ab>", G3_TOKENIZE_PLAIN, 0, 10);
    TEXT("a  a", 0, 0, 2, 2, 0);                          // spaces do not match the token of two U+2581, literal ones do
    TEXT("a\xE2\x96\x81\xE2\x96\x81", 0, 0, 5);
    TEXT("a", G3_TOKENIZE_BOS, 8, 0);
    CHECK(p.t.bos == 8 && p.t.n == 11 && g3__tok_special(&p.t, 9) && !g3__tok_special(&p.t, 4) && g3__str_is(g3__tok_piece(&p.t, 5), "  "));
    close_text(&p);
    return 0;
}

// ---- files that must be refused

static int other_kinds_of_tokenizer_are_refused_in_one_sentence(void)
{
    static const char *const files[] = {
        "{\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",                                    // no normaliser
        "{\"normalizer\":null,\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{\"normalizer\":{\"type\":\"NFC\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{" NORMAL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{" NORMAL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"first\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0}}}",
        "{" NORMAL ",\"model\":{\"type\":\"Unigram\",\"vocab\":{\"a\":0}}}",
        "{" NORMAL ",\"model\":{\"type\":\"BPE\",\"byte_fallback\":false,\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{" NORMAL ",\"model\":{\"type\":\"BPE\",\"ignore_merges\":true,\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{" NORMAL ",\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{" NORMAL ",\"model\":{\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\",\"vocab\":{\"a\":0},\"merges\":[]}}",
        "{" NORMAL ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"<0x41>\":0,\"a\":1,\"<0x41>a\":2},\"merges\":[\"<0x41> a\"]}}",
        "{" NORMAL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\",\"lstrip\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}",
    };
    for (int i = 0; i < G3__COUNT(files); i++) {
        opened o;
        bool ok = open_text(&o, files[i], strlen(files[i]), 16);
        if (ok || o.err.code != G3_ERR_MODEL) fprintf(stderr, "    %d: %s\n", i, o.err.text);
        CHECK(!ok && o.err.code == G3_ERR_MODEL && strstr(o.err.text, "tokenizer.json"));
        close_text(&o);
    }
    return 0;
}

static int files_that_contradict_themselves_are_refused(void)
{
    static const char *const files[] = {
        TINY("", "\"a\":0,\"a\":1", ""), TINY("", "\"a\":0,\"b\":0", ""), TINY("", "\"a\":16", ""), TINY("", "\"a\":-1", ""), TINY("", "\"<0x41>\":0,\"<0x41>\":1", ""),
        TINY("", "\"a\":0,\"aa\":1", "[\"a\"]"), TINY("", "\"a\":0,\"aa\":1", "[\"a\",\"a\",\"a\"]"), TINY("", "\"a\":0,\"aa\":1", "\"a  a\""), TINY("", "\"a\":0,\"aa\":1", "\"aa\""),
        TINY("", "\"a\":0,\"aa\":1", "[\"\",\"aa\"]"), TINY("", "\"a\":0,\"aa\":1", "[\"aa\",\"\"]"), TINY("", "\"a\":0,\"aa\":1", "\" aa\""),
        TINY("", "\"a\":0", "[\"a\",\"a\"]"), TINY("", "\"a\":0,\"ab\":1", "[\"a\",\"b\"]"), TINY("", "\"b\":0,\"ab\":1", "[\"a\",\"b\"]"),
        TINY("", "\"a\":0,\"aa\":1,\"xyz\":2", "[\"a\",\"a\"],[\"x\",\"yz\"]"), TINY("", "\"\xC3\xA9\":0", "[\"\xC3\",\"\xA9\"]"),
        TINY(ADDED(0, "x", false), "\"a\":0", ""), TINY(ADDED(1, "a", false), "\"a\":0", ""), TINY(ADDED(1, "", false), "\"a\":0", ""), TINY(ADDED(4294967296, "x", false), "\"a\":0", ""),
        TINY(ADDED(100000, "x", false), "\"a\":0", ""), TINY(ADDED(1, "x", false) "," ADDED(2, "x", false), "\"a\":0", ""), TINY("{\"content\":\"x\"}", "\"a\":0", ""), TINY("{\"id\":1}", "\"a\":0", ""),
        TINY("", "\"a\":0", "") "x", "{}", "[]", "{" NORMAL "}", "{" NORMAL ",\"model\":{\"type\":\"BPE\"}}",
        "{" NORMAL ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"vocab\":{\"a\":0}}}", "{" NORMAL ",\"added_tokens\":[],\"model\":{\"type\":\"BPE\",\"vocab\":{}},\"model\":{\"type\":\"BPE\",\"vocab\":{}}}",
    };
    for (int i = 0; i < G3__COUNT(files); i++) {
        opened o;
        bool ok = open_text(&o, files[i], strlen(files[i]), 16);
        if (ok || !o.err.code || !o.err.text[0]) fprintf(stderr, "    %d is accepted: %s\n", i, files[i]);
        CHECK(!ok && (o.err.code == G3_ERR_FORMAT || o.err.code == G3_ERR_MODEL) && strstr(o.err.text, "tokenizer.json"));
        CHECK(o.heap.peak < 4u * strlen(files[i]) + (2u << 20));
        close_text(&o);
    }
    return 0;
}

static int corpus_case(const char *dir, bool accept)
{
    char name[300];
    size_t size = 0;
    uint64_t rows = 0;
    g3__json j;
    g3__str key;
    opened o;
    snprintf(name, sizeof name, "bnb/malformed/%s/config.json", dir);
    char *text = read_all(golden(name), &size);
    CHECK(text);
    g3__json_init(&j, text, size, "config.json", NULL);
    g3__json_object(&j);
    while (g3__json_key(&j, &key)) {
        if (g3__str_is(key, "vocab_size")) g3__json_u64(&j, &rows);
        else g3__json_skip(&j);
    }
    free(text);
    CHECK(!j.failed && rows > 0 && rows < 1000);
    snprintf(name, sizeof name, "bnb/malformed/%s/tokenizer.json", dir);
    text = read_all(golden(name), &size);
    CHECK(text);
    bool ok = open_text(&o, text, size, (int)rows);
    free(text);
    if (ok != accept) fprintf(stderr, "    %s: %s\n", dir, o.err.text);
    CHECK(ok == accept && (ok || (o.err.code && o.err.text[0])));
    CHECK(o.heap.peak < 4u * size + (2u << 20));
    if (ok) {                                             // merges: a b, ab c, U+2581 a, d e
        const opened *p = &o;
        int64_t n = encode(p, "abcde ab", 8, G3_TOKENIZE_BOS);
        const int expected[] = { 2, 12, 14, 5, 11 };      // <bos> abc de _ ab: "a b" is listed before "_ a"
        CHECK(ids_are(n, expected, 5));
        n = encode(p, "a<start_of_turn>", 16, G3_TOKENIZE_SPECIAL);
        CHECK(n == 2 && ids[0] == 6 && ids[1] == 15);
    }
    close_text(&o);
    return 0;
}

static int the_malformed_corpus_is_refused_and_its_good_files_open(void)
{
    size_t size = 0;
    int cases = 0;
    g3__json j;
    g3__str key, dir, area, expect;
    char *text = read_all(golden("bnb/malformed-manifest.json"), &size);
    if (!text) SKIP("no bnb fixtures");
    g3__json_init(&j, text, size, "the manifest", NULL);
    g3__json_object(&j);
    while (g3__json_key(&j, &key)) {
        if (!g3__str_is(key, "cases")) { g3__json_skip(&j); continue; }
        g3__json_array(&j);
        while (g3__json_item(&j)) {
            g3__json_object(&j);
            while (g3__json_key(&j, &key)) {
                if (g3__str_is(key, "dir")) g3__json_string(&j, &dir);
                else if (g3__str_is(key, "area")) g3__json_string(&j, &area);
                else if (g3__str_is(key, "expect")) g3__json_string(&j, &expect);
                else g3__json_skip(&j);
            }
            if (!g3__str_is(area, "tokenizer")) continue;
            char name[128];
            snprintf(name, sizeof name, "%.*s", G3__S(dir));
            if (corpus_case(name, g3__str_is(expect, "accept"))) { free(text); return __LINE__; }
            cases++;
        }
    }
    CHECK(!j.failed && cases >= 21);
    free(text);
    return 0;
}

static const char sample[] = TINY(ADDED(4, "<bos>", true) "," ADDED(20, "\\u00e9\\n", false), "\"a\":0,\"b\":1,\"\xE2\x96\x81\":2,\"ab\":3,\"<bos>\":4,\"a\xE2\x96\x81\":5,\"\\u00e9\":6", "[\"a\",\"b\"],\"a \xE2\x96\x81\"");

static void use(const opened *o)                          // whatever a strange file made: its tables must hold
{
    static const char text[] = "a ab  b\xC3\xA9\n <bos>\xFF\xE2\x96\x81 ab";
    encode(o, text, sizeof text - 1, G3_TOKENIZE_SPECIAL);
    for (int i = -2; i < o->t.n + 2; i++) { g3__str s = g3__tok_piece(&o->t, i); if (s.n) memcpy(bytes, s.p, G3__MIN(s.n, sizeof bytes)); }
}

static int every_cut_and_every_changed_byte_is_survived(void)
{
    static char changed[sizeof sample];
    opened p;
    const opened *o = &p;
    CHECK(open_text(&p, sample, sizeof sample - 1, 16));
    TEXT("ab \xC3\xA9\n", 0, 3, 2, 20);
    close_text(&p);
    for (size_t n = 0; n + 1 < sizeof sample; n++) {
        CHECK(!open_text(&p, sample, n, 16) && p.err.code);
        close_text(&p);
    }
    for (int round = 0; round < 20000; round++) {
        memcpy(changed, sample, sizeof sample);
        for (uint32_t k = 1 + roll(3); k > 0; k--) {
            uint32_t at = roll(sizeof sample - 1);
            changed[at] = roll(2) ? (char)roll(256) : sample[roll(sizeof sample - 1)];
        }
        if (open_text(&p, changed, sizeof sample - 1, 16)) use(o);
        else CHECK(p.err.code && p.err.text[0]);
        CHECK(p.heap.peak < 2u << 20);
        close_text(&p);
    }
    return 0;
}

static int loading_survives_an_allocator_that_fails_at_any_call(void)
{
    static char big[200000];
    size_t n = 0;
    n += (size_t)sprintf(big, "{" NORMAL ",\"added_tokens\":[");                 // large enough to take many blocks, with odd merges
    for (int i = 0; i < 1500; i++) n += (size_t)sprintf(big + n, "%s{\"id\":%d,\"content\":\"<u%d>\"}", i ? "," : "", 300 + i, i);
    n += (size_t)sprintf(big + n, "],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"aab\":3},\"merges\":[");
    for (int i = 0; i < 3000; i++) n += (size_t)sprintf(big + n, "%s[\"a\",\"%s\"]", i ? "," : "", i & 1 ? "ab" : "b");
    n += (size_t)sprintf(big + n, "]}}");
    for (int calls = 0; ; calls++) {
        failing f = G3__ZERO;
        f.left = calls;
        const g3_allocator a = { failing_alloc, failing_free, &f };
        g3__heap heap;
        g3__zone keep, temp;
        g3__tok t;
        g3_error err = G3__ZERO;
        g3__heap_init(&heap, &a);
        g3__zone_init(&keep, &heap);
        g3__zone_init(&temp, &heap);
        char *copy = (char *)malloc(n);
        CHECK(copy);
        memcpy(copy, big, n);
        bool ok = g3__tok_load(&t, copy, n, 2000, &keep, &temp, &err);
        free(copy);
        g3__zone_free(&temp);
        if (ok) {
            CHECK(g3__tok_encode(&t, &heap.a, "aab", 3, 0, ids, MOST, NULL) == 1 && ids[0] == 3);
            g3__zone_free(&keep);
            CHECK(calls > 5 && f.live == 0);
            return 0;
        }
        g3__zone_free(&keep);
        CHECK(err.code == G3_ERR_MEMORY && f.live == 0 && heap.live == 0);
    }
}

int main(void)
{
    RUN(every_fixture_line_is_equal);
    RUN(the_vocabulary_is_as_described);
    RUN(runs_of_spaces_and_tabs_are_single_tokens);
    RUN(newlines_digits_and_odd_characters);
    RUN(control_tokens_in_plain_text_are_text);
    RUN(bos_stands_in_front_once_when_asked_for);
    RUN(a_stream_shows_whole_characters);
    RUN(a_stream_equals_decoding_at_once);
    RUN(any_bytes_encode_and_come_back);
    RUN(ids_out_of_range_have_no_piece);
    RUN(the_heap_equals_the_slow_encoder);
    RUN(a_megabyte_without_spaces);
    RUN(ordinary_text_allocates_nothing);
    RUN(the_tables_are_small);
    RUN(any_list_of_merges_is_obeyed);
    RUN(small_files_by_hand);
    RUN(the_longest_added_token_wins);
    RUN(other_kinds_of_tokenizer_are_refused_in_one_sentence);
    RUN(files_that_contradict_themselves_are_refused);
    RUN(the_malformed_corpus_is_refused_and_its_good_files_open);
    RUN(every_cut_and_every_changed_byte_is_survived);
    RUN(loading_survives_an_allocator_that_fails_at_any_call);
    close_text(&real);
    return test_done();
}
