// Pictures through whole tiny models, number by number: every case of the fixtures in every layout, on every kind of vector unit and
// through every chunking; the stages of the tower, the attention rule, and where each tensor goes.
#include "vision.h"

// ---- logits

static int check_case(sample *s, g3_model *m, int c, double *most)
{
    int n = 0;
    g3_error err;
    gold_ids(s, c, "input_ids", &n);
    g3_session *x = sample_session(m, 192, 192, 192);
    CHECK(x && add_case(s, x, c, &err) && g3_session_tokens(x, NULL, 0) == n);
    const float *want = gold_floats(s, "%s.logits", cases[c]);
    for (int i = 0; i < n; i++) {
        const float *z = g3_logits_at(x, n - 1 - i, &err);
        CHECK(z);
        double d = distance(z, want + (size_t)i * (size_t)s->vocab, (size_t)s->vocab);
        *most = G3__MAX(*most, d);
        if (d > sample_tolerance) fprintf(stderr, "    %s %s %s: row %d is %g away\n", s->simd, s->name, cases[c], i, d);
        CHECK(d <= sample_tolerance);
    }
    static const char *const wrong[] = {"%s.wrong.causal_only.last_logits", "%s.wrong.block_ignores_window.last_logits"};
    for (int k = 0; k < 2 && c != TEXT; k++) CHECK(distance(g3_logits(x, &err), gold_floats(s, wrong[k], cases[c]), (size_t)s->vocab) > 0.01);
    CHECK(greedy_matches(s, x, c));
    g3_session_close(x);
    return 0;
}

static int every_layout_and_4_bit_agree_with_the_reference_on_all_vector_units(void)
{
    const char *simd[8];
    int n = variants(simd);
    for (int v = 0; v < n; v++)
        for (int i = 0; i < G3__COUNT(layouts); i++) {
            sample s;
            double most = 0;
            CHECK(sample_open(&s, i));
            s.simd = simd[v];
            g3_model *m = sample_model(&s, 1, false);
            CHECK(m && g3_model_get_info(m).vision && (m->simd != NULL) == (strcmp(simd[v], "c") != 0));
            for (int c = 0; c < N_CASES; c++) {
                int line = check_case(&s, m, c, &most);
                if (line) return line;
            }
            if (i == A || i == A_NF4 || i == B) printf("    %s, %s: %.1e\n", simd[v], s.name, most);
            g3_model_close(m);
            sample_close(&s);
        }
    return 0;
}

static int any_number_of_threads_gives_the_same_bits(void)
{
    const char *simd[8];
    int n = variants(simd);
    for (int v = 0; v < n; v++) {
        float first[520];
        for (int threads = 1; threads <= 5; threads += 2) {
            sample s;
            g3_error err;
            CHECK(sample_open(&s, B));
            s.simd = simd[v];
            g3_model *m = sample_model(&s, threads, false);
            g3_session *x = sample_session(m, 192, 64, 1);
            CHECK(x && add_case(&s, x, THREE, &err) && g3_logits(x, &err));
            if (threads == 1) memcpy(first, g3_logits(x, &err), sizeof first);
            CHECK(!memcmp(first, g3_logits(x, &err), sizeof first));
            g3_session_close(x);
            g3_model_close(m);
            sample_close(&s);
        }
    }
    return 0;
}

// ---- the stages of the tower, by the probe

typedef struct stages { const sample *s; int seen, wrong, pictures; } stages;

static int look_at(void *user, const g3_view *v)
{
    stages *g = (stages *)user;
    char name[64];
    const float *want;
    const size_t count = (size_t)v->rows * (size_t)v->cols;
    const bool soft = !strcmp(v->name, "soft tokens");
    if (v->point != G3_POINT_VISION) return 0;
    snprintf(name, sizeof name, v->layer < 0 ? "vision.embeddings" : "vision.layer%d", v->layer);
    want = soft ? gold_floats(g->s, "%s", "projector.out") + (size_t)g->pictures * count : g->pictures ? v->data : gold_floats(g->s, "%s", name);   // all pictures' soft tokens, the first one's stages
    if (!want || distance(v->data, want, count) > 1e-4) g->wrong++;
    g->seen++;
    g->pictures += soft;
    return 0;
}

static int the_tower_agrees_stage_by_stage(void)
{
    static const int layers[] = {2, 2, 3}, which[] = {A, A_NF4, B};
    const char *simd[8];
    int n = variants(simd);
    for (int k = 0; k < 3 * n; k++) {
        sample s;
        g3_error err;
        g3_session_desc d = G3__ZERO;
        CHECK(sample_open(&s, which[k % 3]));
        s.simd = simd[k / 3];
        stages g = {&s, 0, 0, 0};
        g3_model *m = sample_model(&s, 2, false);
        d.context = 192; d.batch = 64; d.kv = G3_KV_F32;
        d.probe.probe_fn = look_at; d.probe.user = &g; d.probe.points = G3_POINT_VISION;
        g3_session *x = m ? g3_session_open(m, &d, &err) : NULL;
        CHECK(x && add_pieces(&s, x, THREE, &err));
        CHECK(g.pictures == 3 && g.seen == 3 * (layers[k % 3] + 2) && !g.wrong);
        g3_session_close(x);
        g3_model_close(m);
        sample_close(&s);
    }
    return 0;
}

// ---- what the text tower begins with: text rows times sqrt(dim), soft tokens as they are

typedef struct begun { const float *want; double most; int rows; } begun;

static int first_rows(void *user, const g3_view *v)
{
    begun *b = (begun *)user;
    b->most = G3__MAX(b->most, distance(v->data, b->want + (size_t)v->pos * (size_t)v->cols, (size_t)v->rows * (size_t)v->cols));
    b->rows += v->rows;
    return 0;
}

static int soft_tokens_enter_unscaled_among_scaled_text(void)
{
    for (int k = 0; k < 4; k++) {
        sample s;
        g3_error err;
        g3_session_desc d = G3__ZERO;
        CHECK(sample_open(&s, k & 1 ? B : A));
        begun b = {gold_floats(&s, "%s.inputs_embeds", cases[k / 2]), 0, 0};
        g3_model *m = sample_model(&s, 1, false);
        d.context = 128; d.batch = 48; d.kv = G3_KV_F32;
        d.probe.probe_fn = first_rows; d.probe.user = &b; d.probe.points = G3_POINT_EMBED; d.probe.rows = 48;
        g3_session *x = g3_session_open(m, &d, &err);
        CHECK(x && b.want && add_case(&s, x, k / 2, &err));
        CHECK(b.rows == g3_session_tokens(x, NULL, 0) && b.most < 1e-4);
        g3_session_close(x);
        g3_model_close(m);
        sample_close(&s);
    }
    return 0;
}

// ---- the attention rule, from the weights that an observer is shown

typedef struct seen { int n, rows; bool bad; char at[2][64][64]; } seen;     // [full layer][query][key]: 0 or 1

static int look_at_weights(void *user, const g3_view *v)
{
    seen *o = (seen *)user;
    const bool full = v->layer == 5;                     // of tiny-a's seven and tiny-b's eight layers the sixth is global
    if (v->pos >= o->n) return 0;
    o->rows += v->heads > 0;
    for (int key = 0; key < o->n; key++) {
        bool any = false;
        for (int h = 0; h < v->heads && key >= v->key && key < v->key + v->cols; h++) any = any || v->data[h * v->cols + key - v->key] > 0;
        if (v->layer > 0 && v->layer < 5 && o->at[full][v->pos][key] != (char)any) o->bad = true;      // all sliding layers alike
        o->at[full][v->pos][key] = (char)any;
    }
    return 0;
}

static bool watch(sample *s, const int *ids, int n, seen *o)
{
    g3_error err;
    g3_session_desc d = G3__ZERO;
    memset(o, 0, sizeof *o);
    o->n = n;
    g3_model *m = sample_model(s, 2, false);
    d.context = 128; d.batch = 64; d.kv = G3_KV_F32;
    d.probe.probe_fn = look_at_weights; d.probe.user = o; d.probe.points = G3_POINT_ATTENTION; d.probe.rows = 64;
    g3_session *x = m ? g3_session_open(m, &d, &err) : NULL;
    bool ok = x && add_ids(s, x, ids, n, &err) && o->rows == n * m->config.layers && !o->bad;
    g3_session_close(x);
    g3_model_close(m);
    return ok;
}

static int attention_sees_what_the_references_masks_allow(void)
{
    static seen o;
    for (int k = 0; k < 4; k++) {
        sample s;
        int n = 0;
        CHECK(sample_open(&s, k & 1 ? B : A));
        const int *ids = gold_ids(&s, k / 2, "input_ids", &n);
        const st_tensor *full = st_find(&s.gold, "%s.mask_full", cases[k / 2]), *sliding = st_find(&s.gold, "%s.mask_sliding", cases[k / 2]);
        CHECK(full && sliding && n <= 64 && watch(&s, ids, n, &o));
        for (int q = 0; q < n; q++)
            for (int key = 0; key < n; key++) CHECK(o.at[1][q][key] == (char)full->data[q * n + key] && o.at[0][q][key] == (char)sliding->data[q * n + key]);
        sample_close(&s);
    }
    return 0;
}

// T T [I I I I] T [J J J J] T: a picture sees itself both ways and what came before, never the next one; text sees backwards only.
static int a_picture_sees_itself_both_ways_and_no_later_one(void)
{
    static const char *const allowed[2][12] = {
        { "100000000000", "110000000000", "111111000000", "111111000000", "011111000000", "001111000000",           // window 4: backwards only
          "000111100000", "000011111110", "000001111110", "000000111110", "000000011110", "000000001111" },
        { "100000000000", "110000000000", "111111000000", "111111000000", "111111000000", "111111000000",           // window 16, and the full layer
          "111111100000", "111111111110", "111111111110", "111111111110", "111111111110", "111111111111" } };
    static const int ids[12] = {2, 9, 508, 508, 508, 508, 10, 508, 508, 508, 508, 11};
    static seen o;
    for (int w = 0; w < 2; w++) {
        sample s;
        ck c;
        CHECK(sample_open(&s, A));
        memset(&c, 0, sizeof c);
        box_put(&c.rest, "config.json", box_find(&s.files, "config.json")->data, box_find(&s.files, "config.json")->size);
        CHECK(ck_config(&c, "\"sliding_window\": 3", w ? "\"sliding_window\": 16" : "\"sliding_window\": 4"));
        box_put(&s.files, "config.json", box_find(&c.rest, "config.json")->data, box_find(&c.rest, "config.json")->size);
        CHECK(watch(&s, ids, 12, &o));
        for (int q = 0; q < 12; q++)
            for (int key = 0; key < 12; key++) CHECK(o.at[0][q][key] == allowed[w][q][key] - '0' && o.at[1][q][key] == allowed[1][q][key] - '0');
        box_free(&c.rest);
        sample_close(&s);
    }
    return 0;
}

// ---- chunks

static int any_chunking_gives_the_same_bits(void)
{
    for (int k = 0; k < 2; k++) {
        sample s;
        int batches[] = {64, 41, 33, 32, 31, 20, 17, 16, 7, 4};
        CHECK(sample_open(&s, k ? B : A));
        g3_model *m = sample_model(&s, 2, false);
        for (int c = 0; c < N_CASES; c++) {
            float first[520];
            for (int i = 0; i < G3__COUNT(batches) + 1; i++) {
                int batch = i < G3__COUNT(batches) ? batches[i] : 64;
                g3_error err;
                if (c == TOUCHING && (i == G3__COUNT(batches) || G3__MAX(batch, s.tokens) < 2 * s.tokens)) continue;
                g3_session *x = sample_session(m, 128, batch, 1);
                CHECK(x && (i < G3__COUNT(batches) ? add_case(&s, x, c, &err) : add_pieces(&s, x, c, &err)));
                const float *z = g3_logits(x, &err);
                CHECK(z);
                if (!i) memcpy(first, z, sizeof *z * (size_t)s.vocab);
                if (memcmp(first, z, sizeof *z * (size_t)s.vocab)) fprintf(stderr, "    %s %s batch %d\n", s.name, cases[c], batch);
                CHECK(!memcmp(first, z, sizeof *z * (size_t)s.vocab));
                g3_session_close(x);
            }
        }
        g3_model_close(m);
        sample_close(&s);
    }
    return 0;
}

// A text of every length before the picture, so that a chunk's end would fall on each of its tokens.
static int a_picture_is_never_cut_whatever_stands_before_it(void)
{
    static int ids[100];
    sample s;
    CHECK(sample_open(&s, B));
    g3_model *m = sample_model(&s, 2, false);
    for (int before = 0; before <= 40; before++) {
        static const int batches[] = {64, 32, 19, 16};
        float first[520];
        int n = 0;
        g3_error err;
        for (; n < before; n++) ids[n] = n ? 3 + (n * 37) % 400 : BOS;
        for (; n < before + s.tokens; n++) ids[n] = s.image_token;
        ids[n++] = 11;
        for (int i = 0; i < 4; i++) {
            g3_session *x = sample_session(m, 100, batches[i], 1);
            CHECK(x && add_ids(&s, x, ids, n, &err) && g3_logits(x, &err));
            if (!i) memcpy(first, g3_logits(x, &err), sizeof first);
            CHECK(!memcmp(first, g3_logits(x, &err), sizeof first));
            g3_session_close(x);
        }
    }
    g3_model_close(m);
    sample_close(&s);
    return 0;
}

// ---- where tensors go

static bool ck_of(const sample *s, ck *c)                // the sample's tensors, to be changed
{
    st_file f;
    char path[256];
    memset(c, 0, sizeof *c);
    snprintf(path, sizeof path, "vision/%s", s->name);
    if (!st_open(&f, golden(path))) return false;
    c->t = (ck_tensor *)calloc(CK_MAX, sizeof *c->t);
    c->files = 1;
    for (int k = 0; k < f.n; k++) ck_add(c, f.tensor[k].name, f.tensor[k].dtype, f.tensor[k].rank, f.tensor[k].dims, f.tensor[k].data, f.tensor[k].size, 0);
    box_put(&c->rest, "config.json", s->files.f[1].data, s->files.f[1].size);
    st_close(&f);
    return !strcmp(s->files.f[1].name, "config.json");
}

static int a_missing_tensor_of_the_tower_is_named(void)
{
    static const int which[] = {A, 2, 3, A_NF4};         // all four namings
    for (int k = 0; k < G3__COUNT(which); k++) {
        sample s;
        ck c;
        int dropped = 0;
        CHECK(sample_open(&s, which[k]) && ck_of(&s, &c));
        for (int i = 0; i < c.n; i++) {
            char name[256];
            g3_error err;
            box b;
            if (!strstr(c.t[i].name, "vision") && !strstr(c.t[i].name, "multi_modal")) continue;
            if (strstr(c.t[i].name, ".weight.")) continue;                     // a companion of quantised weights: test_malformed.c
            snprintf(name, sizeof name, "%s", c.t[i].name);
            ck_tensor kept = c.t[i];
            snprintf(c.t[i].name, sizeof c.t[i].name, "other.%d", i);
            ck_build(&c, &b);
            g3_model_desc d = tiny_desc(&b, 1);
            d.no_vision = false;
            g3_model *m = g3_model_open(&d, &err);
            const char *tail = strstr(name, "embeddings.") ? strstr(name, "embeddings.") : strstr(name, "layers.") ? strstr(name, "layers.") : strstr(name, "mm_") ? strstr(name, "mm_") : strstr(name, "post_layernorm");
            if (m || !strstr(err.text, tail)) fprintf(stderr, "    %s: %s\n", name, m ? "not missed" : err.text);
            CHECK(!m && err.code == G3_ERR_MODEL && strstr(err.text, tail));
            c.t[i] = kept;
            box_free(&b);
            dropped++;
        }
        CHECK(dropped == 3 + 2 * 16 + 2 + 2);
        ck_free(&c);
        sample_close(&s);
    }
    return 0;
}

// Each number of the tower in turn replaced by one that fits nothing else: a sentence before any weight is read, and no crash.
static int numbers_no_tower_has_are_refused_by_name(void)
{
    static const char *const keys[][2] = {{"hidden_size", "24"}, {"image_size", "56"}, {"intermediate_size", "44"}, {"num_attention_heads", "2"}, {"num_channels", "3"}, {"num_hidden_layers", "2"}, {"patch_size", "14"}, {"mm_tokens_per_image", "4"}};
    static const char *const values[] = {"0", "-1", "1.5", "\"8\"", "[8]", "4294967297", "1e400", "7", "513", "65536", "8192", "262144", "null"};
    for (int k = 0; k < G3__COUNT(keys); k++)
        for (int v = 0; v < G3__COUNT(values); v++) {
            sample s;
            g3_error err;
            char from[64], to[64];
            CHECK(sample_open(&s, A));
            box_file *f = box_find(&s.files, "config.json");
            char *text = (char *)calloc(1, f->size + 64), *at;
            memcpy(text, f->data, f->size);
            snprintf(from, sizeof from, "\"%s\": %s", keys[k][0], keys[k][1]);
            snprintf(to, sizeof to, "\"%s\": %s", keys[k][0], values[v]);
            char *tower = strstr(text, "vision_config");
            at = strstr(!strcmp(keys[k][0], "mm_tokens_per_image") ? text : tower, from);
            CHECK(tower && at);
            memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
            memcpy(at, to, strlen(to));
            box_text(&s.files, "config.json", text);
            free(text);
            g3_model_desc d = tiny_desc(&s.files, 1);
            d.no_vision = false;
            g3_model *m = g3_model_open(&d, &err);
            const bool same = (k == 3 || k == 4) && v == 12;           // null is the default: 12 heads of 2 will do, three channels are right
            if (!m != !same || (!m && strlen(err.text) < 20)) fprintf(stderr, "    %s: %s\n", to, m ? "taken" : err.text);
            CHECK(!m == !same && (m || (err.code < 0 && strlen(err.text) > 20)));
            g3_model_close(m);
            sample_close(&s);
        }
    return 0;
}

static int a_grid_of_more_than_256_patches_a_side_is_refused(void)
{
    static const int sides[] = {256, 257};
    for (int k = 0; k < 2; k++) {
        box b;
        char config[800];
        g3_error err;
        memset(&b, 0, sizeof b);
        snprintf(config, sizeof config, "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\",\"mm_tokens_per_image\":1,"
                 "\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":32,\"num_hidden_layers\":1},\"vision_config\":{\"hidden_size\":2,\"num_attention_heads\":1,\"image_size\":%d,\"patch_size\":1}}", sides[k]);
        box_text(&b, "config.json", config);
        g3_model_desc d = tiny_desc(&b, 1);
        d.no_weights = true;
        g3_model *m = g3_model_open(&d, &err);
        CHECK(!m && (strstr(err.text, "256 patches") != NULL) == (k == 1));    // the first one lacks its weights only
        box_free(&b);
    }
    return 0;
}

typedef struct said { int lines; char text[512]; } said;

static void take_line(void *user, g3_level level, const char *text)
{
    said *s = (said *)user;
    if (level == G3_LOG_WARN) { s->lines++; snprintf(s->text, sizeof s->text, "%s", text); }
}

static int tensors_that_nobody_asks_for_are_told_once(void)
{
    for (int k = 0; k < 5; k++) {                        // nothing, a strange one, two, and the tower with no_vision
        sample s;
        ck c;
        box b;
        g3_error err;
        said log = {0, ""};
        size_t four = 4;
        CHECK(sample_open(&s, k == 4 ? A_NF4 : A) && ck_of(&s, &c));
        if (k == 1 || k == 2) ck_add(&c, "vision_tower.vision_model.head.probe", "F32", 1, &four, "0123456789abcdef", 16, 0);
        if (k == 2) ck_add(&c, "base_model.lora_A", "F32", 1, &four, "0123456789abcdef", 16, 0);
        ck_build(&c, &b);
        g3_model_desc d = tiny_desc(&b, 1);
        d.no_vision = k == 3;
        d.logger.log_fn = take_line; d.logger.user = &log;
        g3_model *m = g3_model_open(&d, &err);
        CHECK(m && log.lines == (k == 1 || k == 2) && (!log.lines || (strstr(log.text, k == 1 ? " 1 tensor is" : " 2 tensors are") && strstr(log.text, "vision_model.head.probe"))));
        g3_model_close(m);
        box_free(&b);
        ck_free(&c);
        sample_close(&s);
    }
    return 0;
}

static int keep_soft(void *user, const g3_view *v)
{
    if (!strcmp(v->name, "soft tokens")) memcpy(user, v->data, sizeof(float) * (size_t)v->rows * (size_t)v->cols);
    return 0;
}

static int the_projector_moves_channel_i_to_j_and_not_j_to_i(void)
{
    enum { I = 5, J = 19, IN = 24, OUT = 32 };           // W is stored [in][out]
    const char *simd[8];
    int n = variants(simd);
    for (int v = 0; v < n; v++) {
        sample s;
        ck c;
        box b;
        g3_error err;
        float W[IN * OUT] = {0}, soft[4 * OUT];
        size_t dims[2] = {IN, OUT};
        CHECK(sample_open(&s, A) && ck_of(&s, &c));
        W[I * OUT + J] = 1;
        ck_set(ck_find(&c, "multi_modal_projector.mm_input_projection_weight"), "F32", 2, dims, W, sizeof W);
        ck_build(&c, &b);
        g3_model_desc d = tiny_desc(&b, 1);
        d.no_vision = false;
        d.simd = simd[v];
        g3_model *m = g3_model_open(&d, &err);
        g3_session_desc sd = G3__ZERO;
        sd.context = 64; sd.batch = 64; sd.probe.probe_fn = keep_soft; sd.probe.user = soft; sd.probe.points = G3_POINT_VISION;
        g3_session *x = m ? g3_session_open(m, &sd, &err) : NULL;
        g3_image img = picture(&s, 0);
        CHECK(x && g3_add_image(x, &img, &err) == G3_OK);
        const float *normed = gold_floats(&s, "%s", "projector.normed");
        for (int t = 0; t < 4; t++)
            for (int j = 0; j < OUT; j++) CHECK(fabs((double)soft[t * OUT + j] - (j == J ? (double)normed[t * IN + I] : 0)) < 1e-4);
        picture_free(&img);
        g3_session_close(x);
        g3_model_close(m);
        box_free(&b);
        ck_free(&c);
        sample_close(&s);
    }
    return 0;
}

int main(void)
{
    tiny_quiet();
#ifdef ON_CARD                          // what is left is the same for every table of operations
    RUN(the_tower_agrees_stage_by_stage);
    RUN(attention_sees_what_the_references_masks_allow);
    return test_done();
#endif
    RUN(every_layout_and_4_bit_agree_with_the_reference_on_all_vector_units);
    RUN(any_number_of_threads_gives_the_same_bits);
    RUN(the_tower_agrees_stage_by_stage);
    RUN(soft_tokens_enter_unscaled_among_scaled_text);
    RUN(attention_sees_what_the_references_masks_allow);
    RUN(a_picture_sees_itself_both_ways_and_no_later_one);
    RUN(any_chunking_gives_the_same_bits);
    RUN(a_picture_is_never_cut_whatever_stands_before_it);
    RUN(a_missing_tensor_of_the_tower_is_named);
    RUN(numbers_no_tower_has_are_refused_by_name);
    RUN(a_grid_of_more_than_256_patches_a_side_is_refused);
    RUN(tensors_that_nobody_asks_for_are_told_once);
    RUN(the_projector_moves_channel_i_to_j_and_not_j_to_i);
    return test_done();
}
