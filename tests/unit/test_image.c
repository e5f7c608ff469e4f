// Pictures: files to pixels against the fixtures' digests, every way to break one, the resampler against the formula written out,
// patches, crops. Decoding is skipped where stb_image.h was not found; everything else runs on raw pixels.
#include <stddef.h>
static void *watched_malloc(size_t size);
static void watched_free(void *p);
#define GEMMA3_MALLOC(size) watched_malloc(size)
#define GEMMA3_FREE(p) watched_free(p)
#include "../model/golden.h"
#include "../tools/st.h"
#include "../tools/failing.h"

// ---- what the header and stb_image allocate

static struct { size_t live, peak, largest; } watched;

static void *watched_malloc(size_t size)
{
    char *p = (char *)malloc(size + 16);
    if (!p) return NULL;
    memcpy(p, &size, sizeof size);
    watched.live += size;
    watched.peak = G3__MAX(watched.peak, watched.live);
    watched.largest = G3__MAX(watched.largest, size);
    return p + 16;
}

static void watched_free(void *p)
{
    size_t size;
    if (!p) return;
    memcpy(&size, (char *)p - 16, sizeof size);
    watched.live -= size;
    free((char *)p - 16);
}

static uint32_t random_state = 1;
static uint32_t random_u32(void) { random_state ^= random_state << 13; random_state ^= random_state >> 17; random_state ^= random_state << 5; return random_state; }

// ---- the resampler, written out a second time: two passes over whole pictures, weights per output pixel

static void plain_axis(const uint8_t *in, int n_in, int step_in, uint8_t *out, int n_out, int step_out)
{
    const double scale = (double)n_in / n_out, half = scale > 1 ? scale : 1;
    for (int i = 0; i < n_out; i++) {
        volatile double centre = (i + 0.5) * scale, inverse = 1.0 / half;
        double sum = 0;
        int lo = (int)(centre - half + 0.5), hi = (int)(centre + half + 0.5);
        if (centre - half + 0.5 < 0) lo = 0;
        if (hi > n_in) hi = n_in;
        double *w = (double *)malloc(sizeof *w * (size_t)(hi - lo));
        for (int j = lo; j < hi; j++) {
            volatile double t = (j - centre + 0.5) * inverse;
            w[j - lo] = fabs(t) < 1 ? 1 - fabs(t) : 0;
            sum += w[j - lo];
        }
        int64_t total = 1 << 21;
        for (int j = lo; j < hi; j++) total += (int64_t)(0.5 + w[j - lo] / sum * 4194304) * in[(size_t)j * (size_t)step_in];
        out[(size_t)i * (size_t)step_out] = (uint8_t)(total >> 22 > 255 ? 255 : total >> 22);
        free(w);
    }
}

static uint8_t *plain_resize(const uint8_t *rgb, size_t stride, int w, int h, int ow, int oh)
{
    uint8_t *mid = (uint8_t *)malloc(3 * (size_t)ow * (size_t)h), *out = (uint8_t *)malloc(3 * (size_t)ow * (size_t)oh);
    for (int y = 0; y < h; y++)
        for (int c = 0; c < 3; c++) plain_axis(rgb + (size_t)y * stride + c, w, 3, mid + 3 * (size_t)ow * (size_t)y + c, ow, 3);
    for (int x = 0; x < 3 * ow; x++) plain_axis(mid + x, h, 3 * ow, out + x, oh, 3 * ow);
    free(mid);
    return out;
}

static uint8_t *noise(size_t n)
{
    uint8_t *p = (uint8_t *)malloc(n);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(random_u32() >> 24);
    return p;
}

static bool resizes_as_written_out(int w, int h, int extra, int ow, int oh)
{
    g3_error err;
    g3_image img = {NULL, w, h, extra ? 3 * w + extra : 0}, out;
    const size_t stride = 3 * (size_t)w + (size_t)extra;
    uint8_t *rgb = noise(stride * (size_t)h), *want = plain_resize(rgb, stride, w, h, ow, oh);
    img.rgb = rgb;
    bool ok = g3_image_resize(&img, ow, oh, NULL, &out, &err) == G3_OK && out.width == ow && out.height == oh && !out.stride && !memcmp(out.rgb, want, 3 * (size_t)ow * (size_t)oh);
    if (!ok) fprintf(stderr, "    %d x %d to %d x %d: %s\n", w, h, ow, oh, err.text);
    g3_image_free(NULL, &out);
    free(rgb); free(want);
    return ok && !out.rgb && !watched.live;
}

static int resizing_is_the_formula_on_any_two_sizes(void)
{
    static const int sizes[][4] = {{1, 1, 1, 1}, {1, 1, 70, 3}, {1, 4000, 20, 20}, {8000, 1, 20, 20}, {40000, 3, 33, 5}, {3, 40000, 5, 33}, {5000, 2, 1, 1}, {64, 64, 64, 64},
        {17, 33, 896, 8}, {16, 16, 8, 896}, {2, 2, 300, 300}, {1000, 700, 100, 900}, {257, 31, 128, 32}, {31, 257, 32, 128}};
    for (int i = 0; i < G3__COUNT(sizes); i++) CHECK(resizes_as_written_out(sizes[i][0], sizes[i][1], i % 3, sizes[i][2], sizes[i][3]));
    for (int i = 0; i < 300; i++)
        CHECK(resizes_as_written_out(1 + (int)(random_u32() % 90), 1 + (int)(random_u32() % 90), (int)(random_u32() % 4), 1 + (int)(random_u32() % 60), 1 + (int)(random_u32() % 60)));
    return 0;
}

static int stripes_of_one_pixel_come_out_as_in_pillow(void)
{
    const int n = 1792;
    uint8_t *rgb = (uint8_t *)malloc(3 * (size_t)n * (size_t)n);
    for (size_t i = 0; i < 3 * (size_t)n * (size_t)n; i++) rgb[i] = i / 3 % 2 ? 255 : 0;
    g3_image img = {rgb, n, n, 0}, out;
    CHECK(g3_image_resize(&img, 896, 896, NULL, &out, NULL) == G3_OK);
    for (size_t i = 0; i < 3 * 896 * 896; i++) {
        size_t x = i / 3 % 896;
        CHECK(out.rgb[i] == (x == 0 ? 109 : x == 895 ? 146 : 128));
    }
    g3_image_free(NULL, &out);
    free(rgb);
    return 0;
}

// ---- patches

static int patches_are_values_by_channel_row_and_column(void)
{
    const int size = 56, patch = 14, grid = 4;
    const uint64_t room_size = g3__image_room(size);
    uint8_t *rgb = noise(3 * 301 * 200), *want = plain_resize(rgb + 30 * 903 + 3 * 20, 903, 150, 77, size, size);
    float *patches = (float *)malloc(sizeof(float) * 3 * 56 * 56);
    g3_image img = {rgb, 300, 200, 903};
    g3__rect crop = {20, 30, 150, 77};
    char *room = (char *)malloc((size_t)room_size + 1);
    for (int shift = 0; shift < 2; shift++) {            // room need not be aligned
        CHECK(g3__image_patches(&img, &crop, size, patch, patches, room + shift, room_size, NULL));
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < size; y++)
                for (int x = 0; x < size; x++) {
                    const int p = y / patch * grid + x / patch, k = (c * patch + y % patch) * patch + x % patch;
                    CHECK(patches[p * 3 * patch * patch + k] == ((float)want[3 * (y * size + x) + c] - 127.5f) / 127.5f);
                }
    }
    g3_error err = G3__ZERO;
    CHECK(!g3__image_patches(&img, &crop, size, patch, patches, room, room_size - 1, &err) && err.code == G3_ERR_MEMORY && strstr(err.text, "room"));
    free(rgb); free(want); free(patches); free(room);
    return 0;
}

static int values_are_those_of_the_references_tables(void)
{
    st_file f;
    g3_error err;
    g3_image img;
    uint8_t rgb[256 * 3];
    float patches[768];
    CHECK(st_open(&f, golden("images/preproc_samples.safetensors")));
    for (int v = 0; v < 256; v++) memset(rgb + 3 * v, v, 3);
    img.rgb = rgb; img.width = 16; img.height = 16; img.stride = 0;
    g3__rect whole = {0, 0, 16, 16};
    const uint64_t size = g3__image_room(16);
    void *room = malloc((size_t)size);
    CHECK(g3__image_patches(&img, &whole, 16, 16, patches, room, size, &err));
    int tables = 0;
    for (int i = 0; i < f.n; i++) {
        if (strncmp(f.tensor[i].name, "pixel_value_table.", 18)) continue;
        const double allowed = strstr(f.tensor[i].name, "torchvision") ? 0 : 1e-7;
        for (int v = 0; v < 256; v++) CHECK(fabs((double)patches[v] - (double)st_f32(&f.tensor[i], (size_t)v)) <= allowed);
        tables++;
    }
    CHECK(tables == 2 && !memcmp(patches, patches + 256, 1024) && !memcmp(patches, patches + 512, 1024));
    free(room);
    st_close(&f);
    return 0;
}

static int the_room_depends_on_the_output_alone(void)
{
    CHECK(g3__image_room(896) < 37000000 && g3__image_room(896) > 3 * 896 * 896 * 4 && g3__image_room(56) < 100000);
    return 0;
}

// ---- pan & scan

static int crops_are_the_references(void)
{
    g3__value all = read_json(golden("vision/pan_and_scan.json"));
    char path[64];
    int seen = 0, long_ones = 0;
    CHECK(all.p);
    for (;; seen++) {
        g3__rect crop[4];
        double flat[64];
        snprintf(path, sizeof path, "cases.%d", seen);
        g3__value c = at(all, path);
        if (!c.p) break;
        const int n = g3__image_crops((int)number(c, "width"), (int)number(c, "height"), crop);
        CHECK(n == (int)number(c, "images") - 1 || (n == 0 && (int)number(c, "images") == 1));
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "crops_xywh.%d", i);
            CHECK(numbers(c, path, flat, 64) == 4 && crop[i].x == flat[0] && crop[i].y == flat[1] && crop[i].w == flat[2] && crop[i].h == flat[3]);
        }
        long_ones += n > 0;
        CHECK(!n || (strstr(c.p, "Here is the original image ") && strstr(c.p, " and here are some crops to help you see better ")));
    }
    CHECK(seen == 33 && long_ones > 5);
    free(all.p);
    return 0;
}

static int crops_of_pictures_that_people_reported(void)
{
    static const struct { int w, h, n, cw, ch; } cases[] = {{2481, 3507, 2, 2481, 1754}, {1000, 1000, 0, 0, 0}, {1199, 1000, 0, 0, 0}, {1200, 1000, 2, 600, 1000}, {2000, 500, 4, 500, 500},
        {4000, 512, 4, 1000, 512}, {511, 300, 2, 256, 300}, {3000, 100, 0, 0, 0}, {1, 4000, 0, 0, 0}, {2147483647, 1, 0, 0, 0}, {2147483647, 2147483647, 0, 0, 0}, {2147483647, 1000000, 4, 536870912, 1000000}};
    for (int i = 0; i < G3__COUNT(cases); i++) {
        g3__rect crop[4];
        CHECK(g3__image_crops(cases[i].w, cases[i].h, crop) == cases[i].n);
        CHECK(!cases[i].n || (crop[0].w == cases[i].cw && crop[0].h == cases[i].ch));
    }
    return 0;
}

// ---- arguments

static int raw_pictures_are_checked(void)
{
    static const struct { bool rgb; int w, h, stride; const char *says; } bad[] = {{false, 4, 4, 0, "rgb"}, {true, 0, 4, 0, "0 x 4"}, {true, 4, -1, 0, "4 x -1"}, {true, 4, 4, 11, "stride of 11"}, {true, 4, 4, -12, "stride of -12"},
        {true, 2147483647, 1, 2147483647, "stride"}};
    static const uint8_t rgb[64] = {0};
    g3_error err;
    g3_image out;
    for (int i = 0; i < G3__COUNT(bad); i++) {
        g3_image img = {bad[i].rgb ? rgb : NULL, bad[i].w, bad[i].h, bad[i].stride};
        err.code = G3_OK;
        CHECK(!g3__image_check(&img, &err) && err.code == G3_ERR_ARGUMENT && strstr(err.text, bad[i].says));
        CHECK(g3_image_resize(&img, 3, 3, NULL, &out, &err) == G3_ERR_ARGUMENT && !out.rgb);
    }
    g3_image good = {rgb, 4, 4, 12};
    static const int sizes[][2] = {{0, 3}, {3, 0}, {-1, 3}, {65536, 1}, {1, 65536}, {65535, 65535}};
    for (int i = 0; i < G3__COUNT(sizes); i++) CHECK(g3_image_resize(&good, sizes[i][0], sizes[i][1], NULL, &out, &err) == G3_ERR_ARGUMENT && strstr(err.text, "pixels"));
    CHECK(g3_image_resize(NULL, 3, 3, NULL, &out, &err) == G3_ERR_ARGUMENT && g3_image_resize(&good, 3, 3, NULL, NULL, &err) == G3_ERR_ARGUMENT);
    for (int left = 0; left < 3; left++) {
        failing f = {left, 0};
        g3_allocator alloc = {failing_alloc, failing_free, &f};
        CHECK(g3_image_resize(&good, 3, 3, &alloc, &out, &err) == (left < 2 ? G3_ERR_MEMORY : G3_OK));
        g3_image_free(&alloc, &out);
        CHECK(!f.live);
    }
    g3_allocator half = {failing_alloc, NULL, NULL};
    CHECK(g3_image_resize(&good, 3, 3, &half, &out, &err) == G3_ERR_ARGUMENT && g3_image_load_memory(rgb, 64, &half, &out, &err) == G3_ERR_ARGUMENT);
    g3_image_free(NULL, NULL);
    return 0;
}

#ifndef G3__DECODES
#define DECODES() SKIP("stb_image.h was not found (Debian: libstb-dev)")
static int a_build_without_decoder_says_what_to_do(void)
{
    g3_error err;
    g3_image img;
    CHECK(g3_image_load(golden("images/one_1x1.png"), NULL, &img, &err) == G3_ERR_UNSUPPORTED && strstr(err.text, "stb_image.h") && strstr(err.text, "one_1x1.png") && !img.rgb);
    CHECK(g3_image_load_memory("x", 1, NULL, &img, &err) == G3_ERR_UNSUPPORTED && !img.rgb);
    return 0;
}
#else
#define DECODES() ((void)0)
#endif

// ---- the fixtures

static uint32_t crc_of(const uint8_t *p, size_t n)                               // bit by bit, as the standard has it
{
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static bool text_at(g3__value v, const char *path, char *out, size_t cap)
{
    v = at(v, path);
    if (!v.p || v.n < 2 || v.n > cap || v.p[0] != '"') return false;
    memcpy(out, v.p + 1, v.n - 2);
    out[v.n - 2] = 0;
    return true;
}

static bool digest_is(g3__value c, const char *key, const uint8_t *p, size_t n)
{
    char path[64], hex[16];
    snprintf(path, sizeof path, "%s.crc32", key);
    return text_at(c, path, hex, sizeof hex) && strtoul(hex, NULL, 16) == crc_of(p, n);
}

static int levels_apart(const st_tensor *t, const uint8_t *p)
{
    int most = 0;
    for (size_t i = 0; i < t->size; i++) most = G3__MAX(most, abs(t->data[i] - p[i]));
    return most;
}

static double means_apart(const st_tensor *t, const uint8_t *p)                  // means of 64 x 64 blocks of 896 x 896
{
    double most = 0;
    for (int b = 0; b < 14 * 14 * 3; b++) {
        double sum = 0;
        for (int y = 0; y < 64; y++)
            for (int x = 0; x < 64; x++) sum += p[3 * ((b / 42 * 64 + y) * 896 + b / 3 % 14 * 64 + x) + b % 3];
        most = G3__MAX(most, fabs(sum / 4096 - (double)st_f32(t, (size_t)b)));
    }
    return most;
}

static int check_resized(const st_file *samples, g3__value c, const char *name, const g3_image *img, int allowed)
{
    static const int rows[] = {0, 1, 447, 448, 894, 895};
    const size_t row = 3 * 896;
    uint8_t sampled[6 * 3 * 896];
    g3_image out;
    CHECK(g3_image_resize(img, 896, 896, NULL, &out, NULL) == G3_OK);
    for (int i = 0; i < 6; i++) memcpy(sampled + (size_t)i * row, out.rgb + (size_t)rows[i] * row, row);
    const st_tensor *r = st_find(samples, "%s.rows", name), *means = st_find(samples, "%s.mean64", name);
    CHECK(r && r->size == sizeof sampled && means);
    if (!allowed) CHECK(digest_is(c, "resized_pillow", out.rgb, 896 * row) && !levels_apart(r, sampled) && means_apart(means, out.rgb) < 1e-3);
    else {
        printf("    %s: at most %d levels, block means %.3f apart\n", name, levels_apart(r, sampled), means_apart(means, out.rgb));
        CHECK(levels_apart(r, sampled) <= allowed && means_apart(means, out.rgb) <= 0.5);
    }
    g3_image_free(NULL, &out);
    return 0;
}

static int check_fixture(const st_file *samples, g3__value c, const char *name)
{
    g3_error err;
    g3_image img;
    char path[128];
    snprintf(path, sizeof path, "images/%s", name);
    const bool jpeg = strstr(name, ".jpg") != NULL, gray16 = !strncmp(name, "gray16", 6);
    const int allowed = !jpeg ? 0 : strstr(name, "422") ? 32 : 3;
    if (g3_image_load(golden(path), NULL, &img, &err) != G3_OK) fprintf(stderr, "    %s\n", err.text);
    CHECK(img.rgb && !img.stride);
    if (!strncmp(name, "exif6", 5)) CHECK(img.width == 200 && img.height == 320);
    else CHECK(img.width == (int)number(c, "width") && img.height == (int)number(c, "height"));
    const size_t n = 3 * (size_t)img.width * (size_t)img.height;
    const st_tensor *decoded = st_find(samples, "%s.decoded", name);
    if (!gray16) {
        if (!jpeg) CHECK(digest_is(c, "decoded_rgb", img.rgb, n));
        if (decoded) CHECK(decoded->size == n && levels_apart(decoded, img.rgb) <= allowed);
        int line = check_resized(samples, c, name, &img, allowed);
        if (line) return line;
    }
    g3_image_free(NULL, &img);
    CHECK(!watched.live);
    return 0;
}

static int fixtures_decode_and_resize_to_the_references_bytes(void)
{
    DECODES();
    g3__value all = read_json(golden("images/preproc.json"));
    st_file samples;
    int exact = 0, refused = 0;
    CHECK(all.p && st_open(&samples, golden("images/preproc_samples.safetensors")));
    for (int i = 0;; i++) {
        char path[96], name[64], engine[64];
        snprintf(path, sizeof path, "images.%d", i);
        g3__value c = at(all, path);
        if (!c.p) break;
        CHECK(text_at(c, "file", name, sizeof name));
        if (text_at(c, "engine", engine, sizeof engine) && strstr(engine, "refused")) {
            g3_error err;
            g3_image img;
            snprintf(path, sizeof path, "images/%s", name);
            CHECK(g3_image_load(golden(path), NULL, &img, &err) == G3_ERR_UNSUPPORTED && !img.rgb && strstr(err.text, name) && strstr(err.text, "magick"));
            refused++;
            continue;
        }
        int line = check_fixture(&samples, c, name);
        if (line) fprintf(stderr, "    %s\n", name);
        CHECK(!line);
        exact++;
    }
    CHECK(exact == 32 && refused == 4);
    st_close(&samples);
    free(all.p);
    return 0;
}

// ---- files made here: PNG with stored blocks, BMP

typedef struct bytes { uint8_t p[1 << 16]; size_t n; } bytes;
static bytes made;

static void put(const void *p, size_t n) { memcpy(made.p + made.n, p, n); made.n += n; }
static void put_be(uint32_t v) { uint8_t b[4] = {(uint8_t)(v >> 24), (uint8_t)(v >> 16), (uint8_t)(v >> 8), (uint8_t)v}; put(b, 4); }
static void put_le(uint64_t v, int n) { for (int i = 0; i < n; i++) { uint8_t b = (uint8_t)(i < 8 ? v >> (8 * i) : 0); put(&b, 1); } }
static void chunk(const char *type, const void *p, size_t n)
{
    put_be((uint32_t)n);
    put(type, 4);
    if (n) put(p, n);
    put_be(crc_of(made.p + made.n - n - 4, n + 4));
}

static void png_head(uint32_t w, uint32_t h, int depth, int kind)
{
    uint8_t ihdr[13] = {(uint8_t)(w >> 24), (uint8_t)(w >> 16), (uint8_t)(w >> 8), (uint8_t)w, (uint8_t)(h >> 24), (uint8_t)(h >> 16), (uint8_t)(h >> 8), (uint8_t)h, (uint8_t)depth, (uint8_t)kind, 0, 0, 0};
    made.n = 0;
    put("\x89PNG\r\n\x1A\n", 8);
    chunk("IHDR", ihdr, 13);
}

static void png_rows(const uint8_t *rows, size_t n)                              // each row begins with its filter, 0
{
    static uint8_t z[1 << 15];
    uint32_t a = 1, b = 0;
    const uint8_t head[7] = {0x78, 1, 1, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n, (uint8_t)(~n >> 8)};
    memcpy(z, head, 7);
    memcpy(z + 7, rows, n);
    for (size_t i = 0; i < n; i++) { a = (a + rows[i]) % 65521; b = (b + a) % 65521; }
    const uint8_t sum[4] = {(uint8_t)(b >> 8), (uint8_t)b, (uint8_t)(a >> 8), (uint8_t)a};
    memcpy(z + 7 + n, sum, 4);
    chunk("IDAT", z, n + 11);
    chunk("IEND", NULL, 0);
}

static bool pixels_are(const uint8_t *want, int w, int h)
{
    g3_error err;
    g3_image img;
    if (g3_image_load_memory(made.p, made.n, NULL, &img, &err) != G3_OK) { fprintf(stderr, "    %s\n", err.text); return false; }
    bool ok = img.width == w && img.height == h && !memcmp(img.rgb, want, 3 * (size_t)w * (size_t)h);
    if (!ok) for (int i = 0; i < 3 * w * h && i < 12; i++) fprintf(stderr, "    %d, not %d\n", img.rgb[i], want[i]);
    g3_image_free(NULL, &img);
    return ok && !watched.live;
}

static bool refused(const char *says)
{
    g3_error err;
    g3_image img;
    memset(&img, 1, sizeof img);
    bool ok = g3_image_load_memory(made.p, made.n, NULL, &img, &err) < 0 && !img.rgb && strstr(err.text, says) && !watched.live;
    if (!ok) fprintf(stderr, "    \"%s\", not \"%s\"\n", err.text, says);
    g3_image_free(NULL, &img);
    return ok;
}

static int transparency_lies_over_white(void)
{
    DECODES();
    static const uint8_t rgba[] = {0, 240, 30, 10, 0, 200, 60, 30, 128, 1, 2, 3, 255}, grey[] = {0, 77, 0, 77, 255, 0, 51};
    static const uint8_t want[] = {255, 255, 255, 227, 157, 142, 1, 2, 3}, want_grey[] = {255, 255, 255, 77, 77, 77, 204, 204, 204};
    png_head(3, 1, 8, 6);
    png_rows(rgba, sizeof rgba);
    CHECK(pixels_are(want, 3, 1));
    png_head(3, 1, 8, 4);
    png_rows(grey, sizeof grey);
    CHECK(pixels_are(want_grey, 3, 1));
    for (int a = 0; a < 256; a++) {                      // every alpha over every level of one colour
        static uint8_t rows[1 + 4 * 256], all[3 * 256];
        for (int c = 0; c < 256; c++) {
            const uint8_t px[4] = {(uint8_t)c, 0, 255, (uint8_t)a};
            memcpy(rows + 1 + 4 * c, px, 4);
            for (int k = 0; k < 3; k++) all[3 * c + k] = (uint8_t)((px[k] * a + 255 * (255 - a) + 127) / 255);
        }
        png_head(256, 1, 8, 6);
        png_rows(rows, sizeof rows);
        CHECK(pixels_are(all, 256, 1));
    }
    return 0;
}

static int sixteen_bits_keep_their_high_byte(void)
{
    DECODES();
    static const uint8_t grey[] = {0, 0, 0, 0x80, 0x00, 0xFF, 0xFF, 0x12, 0xFF}, want[] = {0, 0, 0, 128, 128, 128, 255, 255, 255, 0x12, 0x12, 0x12};
    png_head(4, 1, 16, 0);
    png_rows(grey, sizeof grey);
    CHECK(pixels_are(want, 4, 1));
    return 0;
}

static int colours_that_a_palette_lacks_are_black(void)
{
    DECODES();
    static const uint8_t rows[] = {0, 0, 1, 2, 255}, palette[] = {10, 20, 30, 40, 50, 60}, want[] = {10, 20, 30, 40, 50, 60, 0, 0, 0, 0, 0, 0};
    png_head(4, 1, 8, 3);
    chunk("PLTE", palette, 6);
    png_rows(rows, sizeof rows);
    CHECK(pixels_are(want, 4, 1));
    return 0;
}

static void bmp(int w, int h, int bits, uint32_t packing, int colours, const uint8_t *rows, size_t n)
{
    made.n = 0;
    put("BM", 2);
    put_le(0, 8);
    put_le((uint32_t)(54 + 4 * colours), 4);
    put_le(40, 4);
    put_le((uint32_t)w, 4); put_le((uint32_t)h, 4);
    put_le(1, 2); put_le((uint32_t)bits, 2); put_le(packing, 4);
    put_le(0, 20);
    for (int i = 0; i < colours; i++) put_le((uint32_t)(i * 10) | (uint32_t)(i * 20) << 8 | (uint32_t)(i * 30) << 16, 4);
    put(rows, n);
}

static int bmps_of_every_depth_are_read(void)
{
    DECODES();
    static const uint8_t rows24[] = {3, 2, 1, 6, 5, 4, 0, 0, 9, 8, 7, 12, 11, 10, 0, 0}, up[] = {7, 8, 9, 10, 11, 12, 1, 2, 3, 4, 5, 6}, down[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    static const uint8_t rows32[] = {3, 2, 1, 77, 6, 5, 4, 0}, want32[] = {1, 2, 3, 4, 5, 6}, rows16[] = {0x1F, 0x7C, 0xE0, 0x03}, want16[] = {255, 0, 255, 0, 255, 0};
    static const uint8_t rows8[] = {2, 1, 0, 0}, want8[] = {60, 40, 20, 30, 20, 10, 0, 0, 0}, rows4[] = {0x21, 0, 0, 0}, rows1[] = {0x40, 0, 0, 0}, want1[] = {0, 0, 0, 30, 20, 10, 0, 0, 0};
    bmp(2, 2, 24, 0, 0, rows24, sizeof rows24);   CHECK(pixels_are(up, 2, 2));
    bmp(2, -2, 24, 0, 0, rows24, sizeof rows24);  CHECK(pixels_are(down, 2, 2));
    bmp(2, 1, 32, 0, 0, rows32, sizeof rows32);   CHECK(pixels_are(want32, 2, 1));       // the fourth byte is no alpha
    bmp(2, 1, 16, 0, 0, rows16, sizeof rows16);   CHECK(pixels_are(want16, 2, 1));
    bmp(3, 1, 8, 0, 3, rows8, sizeof rows8);      CHECK(pixels_are(want8, 3, 1));
    bmp(3, 1, 4, 0, 3, rows4, sizeof rows4);      CHECK(pixels_are(want8, 3, 1));
    bmp(3, 1, 1, 0, 2, rows1, sizeof rows1);      CHECK(pixels_are(want1, 3, 1));
    bmp(3, 1, 8, 0, 2, rows8, sizeof rows8);      CHECK(refused("outside its palette"));
    bmp(3, 1, 8, 1, 3, rows8, sizeof rows8);      CHECK(refused("run-length"));
    bmp(2, 3, 24, 0, 0, rows24, sizeof rows24);   CHECK(refused("rows are not all there"));
    bmp(1 << 30, 2, 24, 0, 0, rows24, sizeof rows24);                CHECK(refused("too many"));
    bmp(2, (int)0x80000000u, 24, 0, 0, rows24, sizeof rows24);       CHECK(refused("too many"));
    return 0;
}

// ---- orientation

static uint8_t *turned(const uint8_t *rgb, int w, int h, int o)                  // as EXIF's table says where row 0 and column 0 of the stored picture lie
{
    const int ow = o > 4 ? h : w, oh = o > 4 ? w : h;
    uint8_t *out = (uint8_t *)malloc(3 * (size_t)w * (size_t)h);
    for (int y = 0; y < oh; y++)
        for (int x = 0; x < ow; x++) {
            const int at[9][2] = {{0, 0}, {x, y}, {w - 1 - x, y}, {w - 1 - x, h - 1 - y}, {x, h - 1 - y}, {y, x}, {y, h - 1 - x}, {w - 1 - y, h - 1 - x}, {w - 1 - y, x}};
            memcpy(out + 3 * (y * ow + x), rgb + 3 * (at[o][1] * w + at[o][0]), 3);
        }
    return out;
}

static void exif_block(uint8_t tiff[26], bool little, int o)                     // one directory with one entry
{
    static const uint8_t ii[26] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, mm[26] = {'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0};
    memcpy(tiff, little ? ii : mm, 26);
    tiff[little ? 18 : 19] = (uint8_t)o;
}

static int all_eight_orientations_come_upright(void)
{
    DECODES();
    static const uint8_t rows[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 10, 11, 12, 13, 14, 15, 16, 17, 18}, rgb[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
    for (int o = 0; o < 20; o++) {                       // 0 and 9 and on mean nothing
        const int means = o >= 1 && o <= 8 ? o : 1;
        uint8_t tiff[26], *want = turned(rgb, 3, 2, means);
        exif_block(tiff, o % 2 == 0, o);
        png_head(3, 2, 8, 2);
        chunk("eXIf", tiff, 26);
        png_rows(rows, sizeof rows);
        CHECK(pixels_are(want, means > 4 ? 2 : 3, means > 4 ? 3 : 2));
        free(want);
    }
    return 0;
}

static int orientation_of_a_jpeg_is_read_from_its_exif(void)
{
    DECODES();
    size_t n, place = 0;
    g3_error err;
    g3_image plain, img;
    uint8_t *file = st_read(golden("images/exif6_320x200.jpg"), &n);
    CHECK(file);
    for (size_t i = 0; i + 12 < n && !place; i++)
        if (!memcmp(file + i, "\x12\x01\x03\x00\x01\x00\x00\x00\x06\x00", 10) || !memcmp(file + i, "\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06", 10)) place = file[i] == 0x12 ? i + 8 : i + 9;
    CHECK(place);
    file[place] = 1;
    CHECK(g3_image_load_memory(file, n, NULL, &plain, &err) == G3_OK && plain.width == 320 && plain.height == 200);
    for (int o = 1; o <= 8; o++) {
        uint8_t *want = turned(plain.rgb, 320, 200, o);
        file[place] = (uint8_t)o;
        CHECK(g3_image_load_memory(file, n, NULL, &img, &err) == G3_OK && img.width == (o > 4 ? 200 : 320) && img.height == (o > 4 ? 320 : 200));
        CHECK(!memcmp(img.rgb, want, 3 * 320 * 200));
        g3_image_free(NULL, &img);
        free(want);
    }
    g3_image_free(NULL, &plain);
    free(file);
    return 0;
}

static int broken_exif_counts_as_upright(void)
{
#ifdef G3__DECODES
    uint8_t tiff[26];
    exif_block(tiff, true, 6);
    CHECK(g3__exif_orientation(tiff, 26) == 6);
    for (size_t n = 0; n < 22; n++) { uint8_t *cut = (uint8_t *)malloc(n + !n); memcpy(cut, tiff, n); CHECK(g3__exif_orientation(cut, n) == 1); free(cut); }
    for (int i = 0; i < 20000; i++) {                    // anything at all: an orientation, and no read past the end
        size_t n = random_u32() % 40;
        uint8_t *p = noise(n + !n);
        if (n >= 26) { exif_block(p, i % 2, i % 9); p[random_u32() % 26] = (uint8_t)random_u32(); }
        const int o = g3__exif_orientation(p, n);
        CHECK(o >= 1 && o <= 8);
        free(p);
    }
#endif
    DECODES();
    return 0;
}

// ---- what is refused

static int other_formats_are_named(void)
{
    DECODES();
    static const struct { const char *head; size_t n; const char *says; } cases[] = {{"GIF89a", 6, "GIF;"}, {"RIFF\1\2\3\4WEBPVP8 ", 16, "WebP;"}, {"II*\0\1\2\3\4", 8, "TIFF;"}, {"MM\0*\1\2\3\4", 8, "TIFF;"},
        {"\0\0\0\x18" "ftypheic", 12, "HEIC;"}, {"\0\0\0\x18" "ftypmif1", 12, "HEIF;"}, {"\0\0\0\x20" "ftypavif", 12, "AVIF;"}, {"P6\n1 1 255\nabc", 14, "PPM;"}, {"P5 1 1 255 a", 12, "PGM;"},
        {"\0\0\0\x0CJXL \r\n\x87\n", 12, "JPEG XL;"}, {"8BPS", 4, "Photoshop;"}, {"<svg xmlns=", 11, "SVG;"}, {"%PDF-1.7", 8, "PDF;"}, {"hello, world", 12, "no picture that is known"}, {"\xFF\xD8", 2, "no picture that is known"}};
    for (int i = 0; i < G3__COUNT(cases); i++) {
        made.n = 0;
        put(cases[i].head, cases[i].n);
        CHECK(refused(cases[i].says) && refused("JPEG, PNG and BMP are read") && refused("magick"));
    }
    made.n = 0;
    CHECK(refused("empty"));
    return 0;
}

static int files_that_cannot_be_read_are_named(void)
{
    DECODES();
    g3_error err;
    g3_image img;
    CHECK(g3_image_load("no/such/picture.png", NULL, &img, &err) == G3_ERR_IO && strstr(err.text, "no/such/picture.png"));
    CHECK(g3_image_load(golden("images"), NULL, &img, &err) == G3_ERR_IO);              // a directory
    CHECK(g3_image_load(NULL, NULL, &img, &err) == G3_ERR_ARGUMENT && g3_image_load("x", NULL, NULL, &err) == G3_ERR_ARGUMENT && g3_image_load("x", NULL, &img, NULL) == G3_ERR_IO);
    return 0;
}

static int broken_fixtures_are_refused_with_a_sentence(void)
{
    DECODES();
    static const char *const names[] = {"bad_empty.png", "bad_garbage.bin", "bad_header_only.jpg", "bad_huge_dims.png", "bad_idat_bitflip.png", "bad_truncated.jpg", "bad_truncated.png", "bad_zero_dims.png"};
    for (int i = 0; i < G3__COUNT(names); i++) {
        g3_error err;
        g3_image img;
        char path[64];
        snprintf(path, sizeof path, "images/%s", names[i]);
        CHECK(g3_image_load(golden(path), NULL, &img, &err) < 0 && !img.rgb && strstr(err.text, names[i]) && !watched.live);
        printf("    %s\n", strstr(err.text, names[i]));
    }
    return 0;
}

static int too_many_pixels_are_refused_before_anything_is_allocated(void)
{
    DECODES();
    static const uint32_t sizes[][2] = {{0x80000000u, 0x80000000u}, {65536, 1}, {1, 65536}, {65535, 65535}, {0xFFFFFFFFu, 1}, {0, 5}, {11586, 11586}};
    static const uint8_t row[4] = {0, 1, 2, 3};
    for (int i = 0; i < G3__COUNT(sizes); i++) {
        png_head(sizes[i][0], sizes[i][1], 8, 2);
        png_rows(row, 4);
        memset(&watched, 0, sizeof watched);
        CHECK(refused("pixels") && !watched.peak);
    }
    png_head(10000, 10000, 8, 2);                        // few enough, but their data cannot be there
    png_rows(row, 4);
    CHECK(refused("pixel data ends early") && !watched.peak);
    return 0;
}

// The files of all formats that the next tests cut and bend: small ones.
static const char *const victims[] = {"column_1x900.png", "one_1x1.png", "gray1_50x47.png", "palette_trns_60x60.png", "rgba16_33x21.png", "graya_64x64.png", "interlaced_99x61.png", "palette_41x23.bmp",
    "rgb_65x33.bmp", "gray_200x100.jpg", "cmyk_100x80.jpg", "base420_301x199.jpg", "base422_303x201.jpg", "prog420_640x427.jpg"};

static int files_cut_anywhere_are_refused(void)
{
    DECODES();
    for (int i = 0; i < G3__COUNT(victims); i++) {
        g3_error err;
        g3_image img;
        size_t n;
        char path[64];
        snprintf(path, sizeof path, "images/%s", victims[i]);
        uint8_t *file = st_read(golden(path), &n);
        const size_t spare = strstr(victims[i], ".bmp") ? 3 : 0;                 // the last row's padding
        CHECK(file);
        for (size_t cut = 1 + spare; cut <= n; cut += 1 + (cut > 300 ? n / 60 : 0)) {
            uint8_t *part = (uint8_t *)malloc(n - cut + 1);                      // of its own size, for the sanitizers
            memcpy(part, file, n - cut);
            if (g3_image_load_memory(part, n - cut, NULL, &img, &err) >= 0) fprintf(stderr, "    %s cut by %d bytes\n", victims[i], (int)cut);
            CHECK(err.code && !img.rgb && strlen(err.text) > 20);
            free(part);
        }
        free(file);
    }
    CHECK(!watched.live);
    return 0;
}

static int memory_that_runs_out_leaves_nothing_behind(void)
{
    DECODES();
    for (int i = 0; i < G3__COUNT(victims); i++)
        for (int left = 0, done = 0; !done; left++) {
            failing f = {left, 0};
            g3_allocator alloc = {failing_alloc, failing_free, &f};
            g3_error err;
            g3_image img;
            char path[64];
            snprintf(path, sizeof path, "images/%s", victims[i]);
            done = g3_image_load(golden(path), &alloc, &img, &err) == G3_OK;
            CHECK(done ? img.rgb && f.live == 1 : err.code == G3_ERR_MEMORY && !img.rgb && !f.live);
            g3_image_free(&alloc, &img);
            CHECK(!f.live && left < 6);
        }
    CHECK(!watched.live);
    return 0;
}

// ---- ten thousand bent files

static void mend_checksums(uint8_t *p, size_t n)                                 // so that a PNG's bent bytes reach the decoder
{
    for (size_t at = 8; n - at >= 12; ) {
        const size_t size = (size_t)p[at] << 24 | (size_t)p[at + 1] << 16 | (size_t)p[at + 2] << 8 | p[at + 3];
        if (size > n - at - 12) return;
        const uint32_t crc = crc_of(p + at + 4, size + 4);
        for (int i = 0; i < 4; i++) p[at + 8 + size + (size_t)i] = (uint8_t)(crc >> (24 - 8 * i));
        at += 12 + size;
    }
}

static int bent_files_neither_crash_nor_take_much_memory(void)
{
    DECODES();
    int opened = 0, most = 0;
    random_state = 12345;
    for (int i = 0; i < 10000; i++) {
        g3_error err;
        g3_image img;
        size_t n;
        char path[64];
        const char *name = victims[i % 50 ? i % (G3__COUNT(victims) - 1) : G3__COUNT(victims) - 1];    // the progressive one is slow
        snprintf(path, sizeof path, "images/%s", name);
        uint8_t *file = st_read(golden(path), &n);
        CHECK(file && n > 20);
        const int bends = 1 + (int)(random_u32() % 4);
        for (int k = 0; k < bends; k++) {
            const size_t reach = random_u32() % 2 ? n : G3__MIN(n, (size_t)700);  // tables and headers lie at the front
            file[random_u32() % reach] = random_u32() % 3 ? (uint8_t)random_u32() : (uint8_t)(random_u32() % 2 ? 0 : 255);
        }
        if (strstr(name, ".png") && i % 4) mend_checksums(file, n);
        memset(&watched, 0, sizeof watched);
        const g3_result r = g3_image_load_memory(file, n, NULL, &img, &err);
        CHECK(r == err.code && (r == G3_OK ? img.rgb != NULL && img.width > 0 && img.height > 0 : !img.rgb && strlen(err.text) > 20));
        if (r == G3_OK) {                                // every byte is there
            unsigned sum = 0;
            for (size_t k = 0; k < 3 * (size_t)img.width * (size_t)img.height; k++) sum += img.rgb[k];
            opened += sum < 0xFFFFFFFFu;
        }
        // JPEG: at most 512 pixels a byte, each in some 16 bytes of planes, coefficients and results; PNG: deflate's 1032. And 16 MB for small sides in wide blocks.
        CHECK(watched.peak <= 16 * 512 * n + (16u << 20));
        most = G3__MAX(most, (int)(watched.peak >> 20));
        g3_image_free(NULL, &img);
        CHECK(!watched.live);
        free(file);
    }
    printf("    %d of 10000 still opened; at most %d MB\n", opened, most);
    CHECK(opened > 500 && opened < 9500);
    return 0;
}

int main(void)
{
    RUN(resizing_is_the_formula_on_any_two_sizes);
    RUN(stripes_of_one_pixel_come_out_as_in_pillow);
    RUN(patches_are_values_by_channel_row_and_column);
    RUN(values_are_those_of_the_references_tables);
    RUN(the_room_depends_on_the_output_alone);
    RUN(crops_are_the_references);
    RUN(crops_of_pictures_that_people_reported);
    RUN(raw_pictures_are_checked);
#ifndef G3__DECODES
    RUN(a_build_without_decoder_says_what_to_do);
#endif
    RUN(fixtures_decode_and_resize_to_the_references_bytes);
    RUN(transparency_lies_over_white);
    RUN(sixteen_bits_keep_their_high_byte);
    RUN(colours_that_a_palette_lacks_are_black);
    RUN(bmps_of_every_depth_are_read);
    RUN(all_eight_orientations_come_upright);
    RUN(orientation_of_a_jpeg_is_read_from_its_exif);
    RUN(broken_exif_counts_as_upright);
    RUN(other_formats_are_named);
    RUN(files_that_cannot_be_read_are_named);
    RUN(broken_fixtures_are_refused_with_a_sentence);
    RUN(too_many_pixels_are_refused_before_anything_is_allocated);
    RUN(files_cut_anywhere_are_refused);
    RUN(memory_that_runs_out_leaves_nothing_behind);
    RUN(bent_files_neither_crash_nor_take_much_memory);
    return test_done();
}
