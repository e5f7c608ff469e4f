// What decoding asks of a card, counted: launches of a layer, sectors of weights and of the cache, waves of shared memory.
#include "on_card.h"
#include "card.h"
#include "../model/tiny.h"

// A number of the counters' JSON: the sum of `field` over the objects of `list` that hold `mark`, from their place on. -1: none.
static long long counted(const char *json, const char *mark, const char *part, const char *field)
{
    long long sum = -1;
    const char *end = strstr(json, "\"launches\": [");
    for (const char *p = json; (p = strstr(p, mark)) != NULL && (!end || p < end); p += strlen(mark)) {
        const char *at = part ? strstr(p, part) : p, *value = at ? strstr(at, field) : NULL;
        if (value) sum = (sum < 0 ? 0 : sum) + strtoll(value + strlen(field), NULL, 10);
    }
    return sum;
}

static int a_layer_is_five_launches(void)
{
    static const char *const models[] = { "text/tiny/t2-bf16-mm-old", "bnb/models/text-nf4-mixed-3shards" };
    if (real_card()) SKIP("counted on the emulated card only");
    for (int i = 0; i < G3__COUNT(models); i++) {
        g3_error err;
        g3_model_desc d;
        g3_session_desc sd;
        const int ids[] = { 2, 20, 30 };
        char path[256];
        memset(&d, 0, sizeof d);
        memset(&sd, 0, sizeof sd);
        snprintf(path, sizeof path, "%s", golden(models[i]));
        d.path = path;
        d.no_vision = true;
        on_card(&d);
        g3_model *m = g3_model_open(&d, &err);
        if (!m) fprintf(stderr, "    %s\n", err.text);
        CHECK(m);
        sd.context = 64;
        g3_session *s = g3_session_open(m, &sd, &err);
        CHECK(s && g3_add_tokens(s, ids, 3, &err) == G3_OK && g3_add_tokens(s, ids, 1, &err) == G3_OK && g3_logits(s, &err));
        const unsigned long long before = fake.launches();
        CHECK(g3_add_tokens(s, ids + 1, 1, &err) == G3_OK);
        g3__card_sync(m->card, &err);
        const unsigned long long step = fake.launches() - before;
        printf("    %s: %llu launches of %d layers, embedding and two tables of angles\n", models[i], step, m->config.layers);
        CHECK(step <= 5 * (unsigned long long)m->config.layers + 3);
        g3_session_close(s);
        g3_model_close(m);
    }
    return 0;
}

// A matrix of the given width, random: what one row of x costs. The matrix lies in arrays of its own, so that its sectors are told apart.
static int decoding_reads_weights_once(void)
{
    static const struct { g3__format format; int rows, cols; } shapes[] = {
        { G3__NF4, 1536, 640 }, { G3__NF4, 640, 1024 }, { G3__NF4, 640, 2048 }, { G3__BF16, 512, 640 },          // the 270M's widths
        { G3__NF4, 64, 5376 }, { G3__NF4, 96, 4096 }, { G3__NF4, 32, 21504 }, { G3__BF16, 64, 5376 } };          // and the 27B's
    if (real_card()) SKIP("counted on the emulated card only");
    for (int i = 0; i < G3__COUNT(shapes); i++) {
        const int rows = shapes[i].rows, cols = shapes[i].cols;
        const bool coded = shapes[i].format == G3__NF4;
        if (!card_open("cc=80,checks=memcheck")) SKIP("no NVRTC here");
        CHECK(g3__card_module(&card, "", &card_err));
        const size_t n = (size_t)rows * (size_t)cols, blocks = n / 64, bytes = coded ? n / 2 : 2 * n;
        g3__mat W = G3__ZERO;
        float map[256], *groups = (float *)calloc(blocks / 256 + 1, 4);
        for (int k = 0; k < 256; k++) map[k] = (float)k / 256;
        W.rows = W.seg[0].rows = rows; W.cols = cols; W.n_segs = 1;
        g3__bits *b = &W.seg[0].bits;
        b->format = shapes[i].format; b->tiled = true;
        b->data = card_copy(calloc(1, bytes), bytes);
        if (coded) {
            b->absmax = card_copy(calloc(1, blocks), blocks);
            b->nested_absmax = (const float *)card_copy(groups, (blocks + 255) / 256 * 4);
            b->blocksize = 64; b->nested_blocksize = 256;
            b->nested_map = (const float *)card_copy(map, sizeof map);
            b->map = (signed char)g3__card_map(&card, map, &card_err);
        }
        float *x = (float *)card_copy(calloc((size_t)cols, 4), (size_t)cols * 4), *y = (float *)card_take((size_t)rows * 4);
        fake.counters_reset();
        g3__card_linear(&card, y, x, NULL, &W, 1, NULL, NULL, &card_err);
        CHECK(!card_err.code && g3__card_sync(&card, &card_err));
        char *json = fake.counters(), mark[3][64];
        const size_t parts[3] = { bytes, coded ? blocks : 0, coded ? (blocks + 255) / 256 * 4 : 0 };
        long long sectors = 0, whole = 0, distinct = 0;
        for (int k = 0; k < 3 && parts[k]; k++) {
            snprintf(mark[k], sizeof mark[k], "\"bytes\": %zu, ", parts[k]);
            sectors += G3__MAX(counted(json, mark[k], NULL, "\"sectors_read\": "), 0);
            distinct += G3__MAX(counted(json, mark[k], NULL, "\"distinct_sectors\": "), 0);
            whole += (long long)parts[k];
        }
        const long long waves = counted(json, "\"kernel\": \"g3k_linear\"", "\"shared\"", "\"waves_read\": ") + counted(json, "\"kernel\": \"g3k_linear\"", "\"shared\"", "\"waves_written\": ");
        printf("    %s %d x %d: sectors %.3f of the bytes, each %.3f times; %lld waves of shared memory\n", coded ? "nf4" : "bf16", rows, cols, 32.0 * (double)sectors / (double)whole, (double)sectors / (double)distinct, waves);
        CHECK(sectors > 0 && 32.0 * (double)sectors <= 1.03 * (double)whole);
        free(json);
        free(groups);
        card_close();
    }
    return 0;
}

int main(void)
{
    RUN(a_layer_is_five_launches);
    RUN(decoding_reads_weights_once);
    return test_done();
}
