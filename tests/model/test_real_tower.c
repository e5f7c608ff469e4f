// The tower at its real width: 4096 patches of 1152, feed-forward 4304, heads of 72, two layers and the projector to 2560, against float64.
#include "tower.h"

typedef struct compare { st_file gold; g3__value said; const char *errors; int seen; double most; bool wrong; } compare;

static const int patch_rows[] = {0, 1, 63, 64, 65, 2047, 2080, 4032, 4095}, token_rows[] = {0, 1, 15, 16, 137, 255};

static double said(const compare *g, const char *of, const char *stage, const char *what)
{
    char path[96];
    snprintf(path, sizeof path, "%s.%s.%s", of, stage, what);
    return number(g->said, path);
}

static int stage(void *user, const g3_view *v)
{
    compare *g = (compare *)user;
    const bool soft = !strcmp(v->name, "soft tokens");
    const size_t cols = (size_t)v->cols, count = (size_t)v->rows * cols;
    char name[32];
    snprintf(name, sizeof name, soft ? "projector_out" : v->layer < 0 ? "embeddings" : "layer%d", v->layer);
    const st_tensor *rows = st_find(&g->gold, "%s.rows", name), *first = st_find(&g->gold, "%s.cols8", name);
    if (!rows || !first || (int)first->dims[0] != v->rows) return 1;
    double most = 0, sum = 0, squares = 0, apart = 0;
    for (size_t i = 0; i < rows->dims[0]; i++)
        for (size_t k = 0; k < cols; k++) {
            double d = fabs((double)v->data[(size_t)(soft ? token_rows : patch_rows)[i] * cols + k] - (double)((const float *)(const void *)rows->data)[i * cols + k]);
            most = G3__MAX(most, d);
            apart += d * d;
        }
    for (size_t i = 0; i < (size_t)v->rows; i++) most = G3__MAX(most, distance(v->data + i * cols, (const float *)(const void *)first->data + 8 * i, 8));
    for (size_t i = 0; i < count; i++) { sum += (double)v->data[i]; squares += (double)v->data[i] * (double)v->data[i]; }
    const double rms = sqrt(apart / (double)(rows->dims[0] * cols));
    printf("    %-13s at most %.1e, rms %.1e\n", name, most, rms);
    if (g->errors) g->wrong = g->wrong || most > said(g, g->errors, name, "max_abs") || rms > said(g, g->errors, name, "rms");    // no further than the reference's own run
    else g->wrong = g->wrong || most > 1e-4 || fabs(sum - said(g, "stages", name, "sum")) > 1e-6 * (double)count || fabs(squares / said(g, "stages", name, "sum_of_squares") - 1) > 1e-5;
    g->most = G3__MAX(g->most, most);
    g->seen++;
    return 0;
}

static box real_width;                                   // made once
static unsigned char *rgb;

static int look(const char *simd, bool precise)
{
    g3_error err;
    compare g;
    g3_session_desc d = G3__ZERO;
    memset(&g, 0, sizeof g);
    g.said = read_json(golden("vision/realdim-L2.json"));
    g.errors = precise ? NULL : "errors_against_float64.bfloat16_sdpa";
    CHECK(g.said.p && st_open(&g.gold, golden("vision/realdim-L2.safetensors")));
    double bytes = 0;
    for (int i = 0; i < 3 * SIDE * SIDE; i++) bytes += rgb[i];
    CHECK(bytes == number(g.said, "pixel_u8_sum"));
    g3_model_desc md = tiny_desc(&real_width, 2);
    md.no_vision = false;
    md.precise = precise;
    md.simd = simd;
    g3_model *m = g3_model_open(&md, &err);
    if (!m) fprintf(stderr, "    %s\n", err.text);
    d.probe.probe_fn = stage; d.probe.user = &g; d.probe.points = G3_POINT_VISION;
    g3_session *s = m ? g3_session_open(m, &d, &err) : NULL;
    g3_image img = {rgb, SIDE, SIDE, 0};
    CHECK(s && g3_add_image(s, &img, &err) == G3_OK);
    printf("    %s: one picture, two layers: %.1f s; the session takes %.1f MB\n", m->simd ? m->simd->name : "c", g3_session_stats(s).image_s, (double)g3_session_stats(s).memory / 1e6);
    CHECK(g.seen == 4 && !g.wrong && g3_session_stats(s).memory < 200000000);
    g3_session_close(s);
    g3_model_close(m);
    st_close(&g.gold);
    free(g.said.p);
    return 0;
}

static int two_layers_at_the_real_width_agree_with_float64(void) { return look(NULL, true); }
static int by_default_they_are_no_further_than_bfloat16(void) { return look(NULL, false); }

static int the_narrower_vector_units_agree_too(void)
{
#ifdef G3__SIMD
    for (int i = 1; i < G3__COUNT(g3__simds); i++)
        if (g3__simds[i].here()) {
            int line = look(g3__simds[i].name, true);
            if (line) return line;
        }
#endif
    return 0;
}

// ---- 4 bits at the real width: rows of 4304 begin in the middle of a block of 64

enum { SMALL = 64 };                                     // text dim

static float values[16];                                 // of the codes, from a file that bitsandbytes wrote

static void code(ck *c, bool packed, const char *name, size_t rows, size_t cols)
{
    const size_t n = rows * cols, blocks = (n + 63) / 64;
    const uint64_t seed = fnv(name);
    char full[160], state[128];
    size_t dims[2] = {rows, cols}, packed_dims[2] = {n / 2, 1}, sixteen = 16;
    unsigned char *codes = (unsigned char *)malloc(n / 2);
    float *absmax = (float *)malloc(blocks * sizeof *absmax), *dense = (float *)malloc(n * sizeof *dense);
    snprintf(full, sizeof full, "vision_tower.vision_model.encoder.layers.0.%s.weight", name);
    for (size_t i = 0; i < n / 2; i++) codes[i] = (unsigned char)(draw(seed, i, 8) + 128);
    for (size_t i = 0; i < blocks; i++) absmax[i] = (float)(1 + i % 7) / 100;
    for (size_t i = 0; i < n; i++) dense[i] = values[i % 2 ? codes[i / 2] & 15 : codes[i / 2] >> 4] * absmax[i / 64];      // the high nibble first
    if (!packed) ck_add(c, full, "F32", 2, dims, dense, n * sizeof *dense, 0);
    else {
        const size_t end = strlen(full), size = (size_t)snprintf(state, sizeof state, "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [%zu, %zu]}", rows, cols);
        ck_add(c, full, "U8", 2, packed_dims, codes, n / 2, 0);
        strcpy(full + end, ".absmax"); ck_add(c, full, "F32", 1, &blocks, absmax, blocks * sizeof *absmax, 0);
        strcpy(full + end, ".quant_map"); ck_add(c, full, "F32", 1, &sixteen, values, sizeof values, 0);
        strcpy(full + end, ".quant_state.bitsandbytes__nf4"); ck_add(c, full, "U8", 1, &size, state, size, 0);
    }
    free(codes); free(absmax); free(dense);
}

static void make_coded(box *b, bool packed)
{
    static const char v[] = "vision_tower.vision_model.", *const square[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj"};
    ck c;
    char name[96];
    memset(&c, 0, sizeof c);
    c.t = (ck_tensor *)calloc(CK_MAX, sizeof *c.t);
    c.files = 1;
    weight(&c, v, "embeddings.patch_embedding.weight", 4, D, 3); weight(&c, v, "embeddings.patch_embedding.bias", 1, D, 0); weight(&c, v, "embeddings.position_embedding.weight", 2, 4, D);
    for (int k = 1; k < 3; k++) { weight(&c, v, NAME("encoder.layers.0.layer_norm%d.weight", k), 1, D, 0); weight(&c, v, NAME("encoder.layers.0.layer_norm%d.bias", k), 1, D, 0); }
    for (int k = 0; k < 4; k++) { code(&c, packed && k != 1, square[k], D, D); weight(&c, v, NAME("encoder.layers.0.%s.bias", square[k]), 1, D, 0); }     // k_proj stays as it is, between the two
    code(&c, packed, "mlp.fc1", M, D); weight(&c, v, "encoder.layers.0.mlp.fc1.bias", 1, M, 0);
    code(&c, packed, "mlp.fc2", D, M); weight(&c, v, "encoder.layers.0.mlp.fc2.bias", 1, D, 0);
    weight(&c, v, "post_layernorm.weight", 1, D, 0); weight(&c, v, "post_layernorm.bias", 1, D, 0);
    weight(&c, "multi_modal_projector.", "mm_soft_emb_norm.weight", 1, D, 0); weight(&c, "multi_modal_projector.", "mm_input_projection_weight", 2, D, SMALL);
    text(&c, SMALL, 28, 4, 1);
    ck_build(&c, b);
    ck_free(&c);
}

static int keep_soft(void *user, const g3_view *v)
{
    if (!strcmp(v->name, "soft tokens")) memcpy(user, v->data, sizeof(float) * (size_t)v->rows * (size_t)v->cols);
    return 0;
}

static int see(box *b, const char *simd, float soft[4 * SMALL])
{
    g3_error err;
    g3_model_desc md = tiny_desc(b, 2);
    g3_session_desc d = G3__ZERO;
    md.no_vision = false;
    md.simd = simd;
    g3_model *m = g3_model_open(&md, &err);
    if (!m) fprintf(stderr, "    %s\n", err.text);
    d.probe.probe_fn = keep_soft; d.probe.user = soft; d.probe.points = G3_POINT_VISION;
    g3_session *s = m ? g3_session_open(m, &d, &err) : NULL;
    g3_image img = {rgb, 28, 28, 3 * SIDE};
    CHECK(s && g3_add_image(s, &img, &err) == G3_OK);
    g3_session_close(s);
    g3_model_close(m);
    return 0;
}

static int a_tower_in_4_bits_is_its_decoded_self(void)
{
    box packed, dense;
    st_file f;
    float want[4 * SMALL], got[4 * SMALL];
    const char *simd[8];
    int n = 0, line;
    CHECK(st_open(&f, golden("vision/tiny-a-nf4/model.safetensors")));
    const st_tensor *map = st_find(&f, "%s", "vision_tower.vision_model.encoder.layers.0.mlp.fc2.weight.quant_map");
    CHECK(map && map->size == sizeof values);
    memcpy(values, map->data, sizeof values);
    st_close(&f);
    make_coded(&packed, true);
    make_coded(&dense, false);
#ifdef G3__SIMD
    for (int i = 0; i < G3__COUNT(g3__simds); i++) if (g3__simds[i].here()) simd[n++] = g3__simds[i].name;
#endif
    simd[n++] = "c";
    line = see(&dense, "c", want);
    CHECK(!line && distance(want, want + SMALL, SMALL) > 0.1);
    for (int i = 0; i < n; i++) {
        line = see(&packed, simd[i], got);
        CHECK(!line);
        printf("    %s: %.1e\n", simd[i], distance(want, got, 4 * SMALL));
        CHECK(distance(want, got, 4 * SMALL) < 2e-5);
    }
    box_free(&packed); box_free(&dense);
    return 0;
}

int main(void)
{
    tiny_quiet();
    rgb = draw_picture();
    make_tower(&real_width, 2);
    RUN(a_tower_in_4_bits_is_its_decoded_self);
    RUN(two_layers_at_the_real_width_agree_with_float64);
    RUN(by_default_they_are_no_further_than_bfloat16);
    RUN(the_narrower_vector_units_agree_too);
    box_free(&real_width);
    free(rgb);
    return test_done();
}
