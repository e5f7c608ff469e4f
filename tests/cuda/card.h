// card.h: what tests of the CUDA backend share: a card (the emulated one, with its checks on), arrays on it, weights in its layout.
// On a real card the same tests run with REAL_CARD=1 in the environment; what asks the emulated card for more is then skipped.
#ifndef CARD_H
#define CARD_H
#include "fake.h"
#include "../test.h"

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
    d.map = (signed char)(w->nested_map ? g3__card_map(&card, w->nested_map, &card_err) : -1);
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
