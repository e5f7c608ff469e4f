// card.h: what tests of the CUDA backend share: a card (the emulated one, with its checks on), arrays on it, weights in its layout.
// On a real card the same tests run with REAL_CARD=1 in the environment; what asks the emulated card for more is then skipped.
#ifndef CARD_H
#define CARD_H
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"

#ifndef FAKECUDA_DIR
#define FAKECUDA_DIR "build/fakecuda"                    // another one in the sanitized build
#endif

static struct {
    int  (*set)(const char *, const char *);
    void (*reset)(void);
    long (*reports)(const char *);
    const char *(*report)(long);
    void (*reports_clear)(void);
    long (*leaks)(void);
    char *(*counters)(void);
    void (*counters_reset)(void);
    unsigned long long (*launches)(void);
} fake;

static bool real_card(void) { return getenv("REAL_CARD") != NULL; }

// Where driver and compiler are, for desc.libraries. "": there is no compiler, and none can be fetched.
static const char *card_libraries(void)
{
    static char dirs[2048];
    char path[1024] = "";
    if (*dirs || real_card()) return dirs;
    FILE *p = popen("sh tests/tools/get_nvrtc.sh", "r");
    if (!p || !fgets(path, sizeof path, p)) path[0] = 0;
    if (p) pclose(p);
    char *slash = strrchr(path, '/');
    if (slash) { *slash = 0; snprintf(dirs, sizeof dirs, "%s:%s", FAKECUDA_DIR, path); }
    return dirs;
}

#define FAKE_FIND(name) g3__library_symbol(lib, "fakecuda_" #name, (void *)&fake.name)
static bool fake_open(void)                              // once: the control calls of the emulated card
{
    void *lib = fake.set || real_card() ? NULL : g3__library_open(FAKECUDA_DIR "/libcuda.so.1");
    if (lib) FAKE_FIND(set), FAKE_FIND(reset), FAKE_FIND(reports), FAKE_FIND(report), FAKE_FIND(reports_clear), FAKE_FIND(leaks), FAKE_FIND(counters), FAKE_FIND(counters_reset), FAKE_FIND(launches);
    return fake.set != NULL;
}

// A fresh emulated card; fields as in tests/fakecuda/README.md, "cc=86,seed=3". False: there is no compiler here.
static bool fake_card(const char *fields)
{
    char list[512], *rest = list;
    if (real_card()) return true;
    if (!*card_libraries() || !fake_open()) return false;
    fake.reset();
    fake.set("checks", "all");
    snprintf(list, sizeof list, "%s", fields);
    for (char *field; (field = strtok_r(rest, ",", &rest)) != NULL; ) {
        char *value = strchr(field, '=');
        if (!value || (*value++ = 0, fake.set(field, value) != 1)) { fprintf(stderr, "the emulated card has no field %s\n", field); exit(1); }
    }
    return true;
}

static bool fake_clean(void)                             // no check has reported anything
{
    for (long i = 0; fake.reports && i < fake.reports(NULL); i++) fprintf(stderr, "%s\n", fake.report(i));
    return !fake.reports || fake.reports(NULL) == 0;
}

// ---- one card and arrays on it, given back together

static g3__card card;
static g3_model_desc card_desc;
static g3__heap card_heap;
static g3_error card_err;
static g3__cu_ptr card_array[4096];
static int card_arrays;
static void *card_before;              // what was current before

// False: no compiler here (skip the case). What else goes wrong ends the test.
static bool card_open(const char *fields)
{
    if (!fake_card(fields)) return false;
    memset(&card_desc, 0, sizeof card_desc);
    card_desc.libraries = card_libraries();
    g3__error_clear(&card_err);
    g3__heap_init(&card_heap, NULL);
    card_arrays = 0;
    if (!g3__card_open(&card, &card_desc, &card_heap, &card_err) || !g3__card_enter(&card, &card_before, &card_err)) { fprintf(stderr, "%s\n", card_err.text); exit(1); }
    card.ptx = !real_card();           // the emulated card takes no CUBIN, which a refusal would tell: this saves the time
    return true;
}

static void *card_take(size_t size)
{
    g3__cu_ptr p = 0;
    if (card_arrays == G3__COUNT(card_array) || card.cu.cuMemAlloc_v2(&p, size ? size : 1)) { fprintf(stderr, "no device memory\n"); exit(1); }
    card_array[card_arrays++] = p;
    return (void *)(uintptr_t)p;
}

static void card_to(void *dst, const void *src, size_t size)
{
    if (size && (card.cu.cuMemcpyHtoDAsync_v2((g3__cu_ptr)(uintptr_t)dst, src, size, card.stream) || card.cu.cuStreamSynchronize(card.stream))) { fprintf(stderr, "copy to the card failed\n"); exit(1); }
}

static void *card_copy(const void *src, size_t size) { void *p = card_take(size); if (src) card_to(p, src, size); return p; }

// false: a launch failed, or a check reported something
static bool card_from(void *dst, const void *src, size_t size)
{
    int code = card.cu.cuStreamSynchronize(card.stream);
    if (!code) code = card.cu.cuMemcpyDtoHAsync_v2(dst, (g3__cu_ptr)(uintptr_t)src, size, card.stream);
    if (!code) code = card.cu.cuStreamSynchronize(card.stream);
    if (code) fprintf(stderr, "the card answered %d\n", code);
    return !code && fake_clean();
}

static void card_close(void)
{
    for (int i = 0; i < card_arrays; i++) card.cu.cuMemFree_v2(card_array[i]);
    card_arrays = 0;
    g3__card_leave(&card, card_before);
    g3__card_close(&card);
}

// ---- weights: the host's description becomes the card's; the host's must be laid as stored (not tiled)

static g3__bits card_bits(const g3__bits *w, int rows, int cols)
{
    g3__bits d = *w;
    const uint64_t n = (uint64_t)rows * (uint64_t)cols, bytes = (n * g3__format_bits(w->format) + 7) / 8, blocks = w->blocksize ? (n + w->blocksize - 1) / w->blocksize : 0;
    const size_t unit = w->nested_absmax ? 1 : 4;
    if (!w->data) return d;
    d.tiled = g3__card_tiles(w->format, rows, cols, w->blocksize, w->nested_blocksize);
    char *data = (char *)malloc(bytes), *absmax = (char *)malloc(blocks * unit + 1);
    if (d.tiled) g3__tile_copy(data, (const char *)w->data, bytes, bytes / (uint64_t)rows, 8);
    else memcpy(data, w->data, bytes);
    if (blocks && d.tiled) g3__tile_copy(absmax, (const char *)w->absmax, blocks * unit, blocks / (uint64_t)rows * unit, unit);
    else if (blocks) memcpy(absmax, w->absmax, blocks * unit);
    d.data = card_copy(data, bytes);
    if (blocks) d.absmax = card_copy(absmax, blocks * unit);
    if (w->nested_absmax) d.nested_absmax = (const float *)card_copy(w->nested_absmax, (blocks + w->nested_blocksize - 1) / w->nested_blocksize * 4);
    if (w->nested_map) d.nested_map = (const float *)card_copy(w->nested_map, 256 * 4);
    if (w->scale) d.scale = card_copy(w->scale, w->scale_format == G3__F32 ? 4 : 2);
    free(data);
    free(absmax);
    return d;
}

static g3__mat card_mat(const g3__mat *W)
{
    g3__mat d = *W;
    for (int i = 0; i < W->n_segs; i++) {
        d.seg[i].bits = card_bits(&W->seg[i].bits, W->transposed ? W->cols : W->seg[i].rows, W->transposed ? W->rows : W->cols);
        d.seg[i].bias = card_bits(&W->seg[i].bias, 1, W->seg[i].rows);
    }
    return d;
}

static g3__norm card_norm(const g3__norm *norm)
{
    g3__norm d = *norm;
    d.w = card_bits(&norm->w, 1, norm->dim);
    d.b = card_bits(&norm->b, 1, norm->dim);
    return d;
}
#endif
