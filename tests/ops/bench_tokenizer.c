// How fast the tokenizer loads and encodes: a megabyte of ordinary text and of the kinds that are hard for byte-pair
// encoders. A benchmark to read, not a test:   build/ops/bench_tokenizer [tokenizer.json] [text file]
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <time.h>

enum { SIZE = 1 << 20, ROUNDS = 5 };

static double now(void)                                    // seconds of processor time, so that a busy machine does not count
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static char *read_all(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) return NULL;
    long n = ftell(f);
    char *text = (char *)malloc((size_t)n + 1);
    rewind(f);
    *size = text ? fread(text, 1, (size_t)n, f) : 0;
    fclose(f);
    return text;
}

typedef struct kind { const char *name, *pattern; uint32_t first, count; } kind;   // a text repeated, or random characters of a range
static const kind kinds[] = {
    { "English words", NULL, 0, 0 }, { "one letter", "a", 0, 0 }, { "two letters", "ab", 0, 0 }, { "Chinese, no spaces", NULL, 0x4E00, 8000 }, { "Korean, no spaces", NULL, 0xAC00, 11172 },
    { "random printable", NULL, 33, 94 }, { "base64", NULL, 1, 0 }, { "spaces", " ", 0, 0 }, { "newlines", "\n", 0, 0 }, { "angle brackets", "<", 0, 0 }, { "emoji", NULL, 0x1F300, 700 },
    { "bytes without a piece", "\xEA\xB9\xB0", 0, 0 }, { "invalid UTF-8", "\xFF", 0, 0 },
};

static void fill(char *out, const kind *k, const char *prose, size_t prose_size)
{
    uint32_t r = 1;
    for (size_t n = 0; n < SIZE; ) {
        r = r * 1664525u + 1013904223u;
        if (k->pattern) { out[n] = k->pattern[n % strlen(k->pattern)]; n++; }
        else if (k->count) n += (size_t)g3__utf8_put(out + n, k->first + (r >> 8) % k->count);
        else if (k->first) out[n++] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[r >> 26];
        else { out[n] = prose[n % prose_size]; n++; }
    }
}

static void *peak_alloc(void *user, size_t size, size_t align) { *(size_t *)user = size; return g3__default_alloc(NULL, size, align); }

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : getenv("G3_TOKENIZER");
    size_t size = 0, prose_size = 0, scratch = 0;
    double load = 1e9;
    g3__heap heap;
    g3__zone keep, temp;
    g3__tok t;
    g3_error err = G3__ZERO;
    const g3_allocator a = { peak_alloc, g3__default_free, &scratch };
    char *file = read_all(path = path ? path : "build/gemma-3-270m/tokenizer.json", &size), *copy = file ? (char *)malloc(size) : NULL;
    char *prose = argc > 2 ? read_all(argv[2], &prose_size) : NULL, *text = (char *)malloc(SIZE + 8);
    static char own[] = "The ferry left late on Tuesday because of the fog, with 214 people on board.\nNobody minded; coffee was free, and the cook's radio played old songs.\n\n";
    if (!copy || !text) { fprintf(stderr, "cannot read %s\n", path); return 1; }
    if (!prose || !prose_size) { prose = own; prose_size = sizeof own - 1; }
    for (int i = 0; i < ROUNDS; i++) {
        memcpy(copy, file, size);
        if (i) g3__zone_free(&keep);
        g3__heap_init(&heap, NULL);
        g3__zone_init(&keep, &heap);
        g3__zone_init(&temp, &heap);
        double from = now();
        if (!g3__tok_load(&t, copy, size, 262144, &keep, &temp, &err)) { fprintf(stderr, "%s\n", err.text); return 1; }
        load = G3__MIN(load, now() - from);
        g3__zone_free(&temp);
    }
    printf("%s: %.1f MB, loaded in %.0f ms; %.1f MB kept, %.1f MB at the peak\n\n", path, (double)size / 1e6, load * 1e3, (double)heap.live / 1e6, (double)heap.peak / 1e6);
    printf("one megabyte of            ids   cpu ms     MB/s   scratch MB\n");
    int *ids = (int *)malloc((SIZE + 8) * sizeof *ids * 3);
    for (int i = 0; ids && i < G3__COUNT(kinds); i++) {
        double best = 1e9;
        int64_t n = 0;
        fill(text, &kinds[i], prose, prose_size);
        scratch = 0;
        for (int k = 0; k < ROUNDS; k++) {
            double from = now();
            n = g3__tok_encode(&t, &a, text, SIZE, G3_TOKENIZE_PLAIN, ids, 3 * (int64_t)SIZE, NULL);
            best = G3__MIN(best, now() - from);
        }
        printf("%-22s %8lld %8.1f %8.1f %12.1f\n", kinds[i].name, (long long)n, best * 1e3, SIZE / best / 1e6, (double)scratch / 1e6);
    }
    return 0;
}
