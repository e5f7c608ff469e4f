// config.json in all its styles: what the released files say, what they leave out, and what is refused by name.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "../tools/checkpoint.h"

typedef struct reading { g3__config c; g3__heap heap; g3__zone zone; g3_error err; bool ok; char *text; } reading;

static void read_text(reading *r, const char *text, size_t size)
{
    memset(r, 0, sizeof *r);
    g3__heap_init(&r->heap, NULL);
    g3__zone_init(&r->zone, &r->heap);
    r->text = (char *)calloc(1, size + 1);
    memcpy(r->text, text, size);
    r->ok = g3__config_read(&r->c, r->text, size, &r->zone, &r->err);
}

static void read_done(reading *r) { g3__zone_free(&r->zone); free(r->text); }

// Reads a text-only config made of these members; "model_type" and the like are added.
static void read_members(reading *r, const char *members)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "{\"model_type\":\"gemma3_text\",\"architectures\":[\"Gemma3ForCausalLM\"]%s%s}", *members ? "," : "", members);
    read_text(r, text, (size_t)n);
}

static void read_multimodal(reading *r, const char *text_config, const char *top)
{
    char text[4096];
    int n = snprintf(text, sizeof text, "{\"model_type\":\"gemma3\",\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"text_config\":{\"model_type\":\"gemma3_text\"%s%s},"
        "\"vision_config\":{\"hidden_size\":1152,\"image_size\":896,\"intermediate_size\":4304,\"model_type\":\"siglip_vision_model\",\"num_attention_heads\":16,\"num_hidden_layers\":27,\"patch_size\":14}%s%s}",
        *text_config ? "," : "", text_config, *top ? "," : "", top);
    read_text(r, text, (size_t)n);
}

static float rounded_to_bf16(double x)                   // nearest even, written apart from the header's own
{
    float f = (float)x, back;
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u;
    memcpy(&back, &u, 4);
    return back;
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

// ---- the fixture: 13 files as released, as written by several versions, and odd ones

typedef struct wanted { double vocab, dim, ffn, layers, heads, kv_heads, head_dim, max_context, eps, scalar, window, theta_full, factor_full, theta_sliding, factor_sliding; char kinds[256]; } wanted;

static void read_wanted(g3__json *j, wanted *w)
{
    struct { const char *name; double *to; } field[] = { { "vocab_size", &w->vocab }, { "hidden_size", &w->dim }, { "intermediate_size", &w->ffn }, { "num_hidden_layers", &w->layers },
        { "num_attention_heads", &w->heads }, { "num_key_value_heads", &w->kv_heads }, { "head_dim", &w->head_dim }, { "max_position_embeddings", &w->max_context }, { "rms_norm_eps", &w->eps },
        { "query_pre_attn_scalar", &w->scalar }, { "sliding_window", &w->window }, { "rope_theta_full", &w->theta_full }, { "rope_factor_full", &w->factor_full },
        { "rope_theta_sliding", &w->theta_sliding }, { "rope_factor_sliding", &w->factor_sliding } };
    g3__str key, kinds;
    g3__json_object(j);
    while (g3__json_key(j, &key)) {
        int k = 0;
        while (k < G3__COUNT(field) && !g3__str_is(key, field[k].name)) k++;
        if (k < G3__COUNT(field)) g3__json_f64(j, field[k].to);
        else if (g3__str_is(key, "layer_types")) { g3__json_string(j, &kinds); snprintf(w->kinds, sizeof w->kinds, "%.*s", (int)kinds.n, kinds.p); }
        else g3__json_skip(j);
    }
}

static bool equals(const g3__config *c, const wanted *w)
{
    bool same = c->vocab == w->vocab && c->dim == w->dim && c->ffn == w->ffn && c->layers == w->layers && c->heads == w->heads && c->kv_heads == w->kv_heads && c->head_dim == w->head_dim
        && c->max_context == w->max_context && c->window == w->window && near((double)c->eps, w->eps) && near((double)c->attn_scale, 1 / sqrt(w->scalar)) && c->embed_scale == rounded_to_bf16(sqrt(w->dim))
        && c->theta_full == (float)w->theta_full && c->factor_full == (float)w->factor_full && c->theta_sliding == (float)w->theta_sliding && c->factor_sliding == (float)w->factor_sliding
        && strlen(w->kinds) == (size_t)c->layers;
    for (int i = 0; same && i < c->layers; i++) same = c->full[i] == (w->kinds[i] == 'F');
    return same;
}

static int all_recorded_configs_resolve_as_the_reference_does(void)
{
    size_t size = 0;
    char *text = (char *)st_read(golden("text/configs.json"), &size), *raw = NULL;
    size_t raw_size = 0;
    int seen = 0, wrong = 0;
    g3__json j;
    g3__str key, name = { "", 0 };
    CHECK(text);
    g3__json_init(&j, text, size, "configs.json", NULL);
    for (g3__json_array(&j); g3__json_item(&j); seen++) {
        wanted w;
        reading r;
        memset(&w, 0, sizeof w);
        g3__json_object(&j);
        while (g3__json_key(&j, &key)) {
            if (g3__str_is(key, "name")) g3__json_string(&j, &name);
            else if (g3__str_is(key, "resolved")) read_wanted(&j, &w);
            else if (g3__str_is(key, "raw")) {           // the text as it stands, kept before skip unescapes it
                g3__json_peek(&j);
                char *from = j.p, *copy = (char *)malloc(size);
                memcpy(copy, from, (size_t)(j.end - from));
                g3__json_skip(&j);
                free(raw);
                raw = copy;
                raw_size = (size_t)(j.p - from);
            }
            else g3__json_skip(&j);
        }
        read_text(&r, raw, raw_size);
        if (!r.ok || !equals(&r.c, &w)) { wrong++; fprintf(stderr, "    %.*s: %s\n", (int)name.n, name.p, r.ok ? "differs" : r.err.text); }
        read_done(&r);
    }
    CHECK(g3__json_end(&j) && seen == 13);
    free(raw);
    free(text);
    CHECK(wrong == 0);
    return 0;
}

// ---- where values are found, and what stands in for those that are not

// https://github.com/vllm-project/vllm/issues/14687 https://github.com/huggingface/transformers/issues/36683 https://github.com/axolotl-ai-cloud/axolotl/pull/3354
static int text_settings_are_read_wrapped_or_plain(void)
{
    static const char members[] = "\"hidden_size\":640,\"intermediate_size\":2048,\"num_hidden_layers\":7,\"num_attention_heads\":4,\"num_key_value_heads\":1,\"vocab_size\":1000,\"sliding_window\":512,\"max_position_embeddings\":4096,\"query_pre_attn_scalar\":256";
    reading a, b;
    read_members(&a, members);
    read_multimodal(&b, members, "");
    CHECK(a.ok && b.ok);
    CHECK(a.c.layers == 7 && a.c.layers == b.c.layers && a.c.dim == b.c.dim && a.c.ffn == b.c.ffn && a.c.heads == b.c.heads && a.c.kv_heads == b.c.kv_heads && a.c.head_dim == b.c.head_dim);
    CHECK(a.c.vocab == 1000 && a.c.vocab == b.c.vocab && a.c.window == b.c.window && a.c.max_context == b.c.max_context && a.c.embed_scale == b.c.embed_scale && a.c.attn_scale == b.c.attn_scale);
    read_done(&a);
    read_done(&b);
    return 0;
}

// https://github.com/ddalcu/mlx-serve/issues/43 https://github.com/ddalcu/mlx-serve/pull/46
static int a_config_of_six_keys_gets_the_defaults_it_was_written_against(void)
{
    reading r;
    read_multimodal(&r, "\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024", "");
    CHECK(r.ok && r.c.heads == 8 && r.c.kv_heads == 4 && r.c.head_dim == 256 && r.c.vocab == 262208 && r.c.max_context == 131072 && r.c.window == 1024);
    CHECK(near((double)r.c.eps, 1e-6) && r.c.attn_scale == 0.0625f && r.c.theta_full == 1e6f && r.c.theta_sliding == 1e4f && r.c.factor_full == 8 && r.c.factor_sliding == 1);
    read_done(&r);
    read_members(&r, "");
    CHECK(r.ok && r.c.dim == 2304 && r.c.ffn == 9216 && r.c.layers == 26 && r.c.window == 4096 && r.c.factor_full == 1 && r.c.embed_scale == 48);
    read_done(&r);
    return 0;
}

static int null_counts_as_absent_and_unknown_keys_are_ignored(void)
{
    reading r;
    read_members(&r, "\"head_dim\":null,\"num_attention_heads\":null,\"rope_scaling\":null,\"layer_types\":null,\"sliding_window_pattern\":null,\"rope_theta\":null,\"final_logit_softcapping\":null,\"hidden_activation\":null,\"rope_parameters\":null,"
        "\"cache_implementation\":\"hybrid\",\"x\":[1,{\"hidden_size\":7}],\"unsloth_fixed\":true,\"quantization_config\":null,\"eos_token_id\":[1,106]");
    CHECK(r.ok && r.c.heads == 8 && r.c.head_dim == 256 && r.c.factor_full == 1 && r.c.theta_full == 1e6f && r.c.dim == 2304);
    for (int i = 0; i < r.c.layers; i++) CHECK(r.c.full[i] == ((i + 1) % 6 == 0));
    read_done(&r);
    return 0;
}

static int whole_numbers_may_be_written_as_fractions_where_they_mean_a_real(void)
{
    reading a, b;
    read_members(&a, "\"rope_theta\":1000000,\"rope_local_base_freq\":10000,\"query_pre_attn_scalar\":168");
    read_members(&b, "\"rope_theta\":1000000.0,\"rope_local_base_freq\":1e4,\"query_pre_attn_scalar\":168.0");
    CHECK(a.ok && b.ok && a.c.theta_full == b.c.theta_full && a.c.theta_sliding == b.c.theta_sliding && a.c.attn_scale == b.c.attn_scale);
    read_done(&a);
    read_done(&b);
    return 0;
}

// ---- RoPE

// https://github.com/vllm-project/vllm/pull/28542 https://github.com/vllm-project/vllm/pull/29111 https://github.com/huggingface/transformers/pull/41922
// https://github.com/Lightning-AI/litgpt/pull/1993 https://github.com/lablup/mlxcel/pull/1386
static int old_new_and_mixed_rope_settings_mean_the_same(void)
{
    static const char *styles[] = {
        "\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}",
        "\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0,\"rope_scaling\":{\"factor\":8.0,\"type\":\"linear\"}",
        "\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"linear\",\"factor\":8}",
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"rope_theta\":1000000.0,\"factor\":8.0},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}",
        "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\"},\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0}},\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0",
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0},\"sliding_attention\":{\"rope_type\":\"default\"}}",
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}},\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}",
        "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"rope_theta\":1000000.0,\"factor\":8.0},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}},\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0}",
    };
    for (int i = 0; i < G3__COUNT(styles); i++) {
        reading r;
        read_members(&r, styles[i]);
        bool same = r.ok && r.c.theta_full == 1e6f && r.c.factor_full == 8 && r.c.theta_sliding == 1e4f && r.c.factor_sliding == 1;
        if (!same) { fprintf(stderr, "    style %d: theta %g factor %g, sliding %g %g: %s\n", i, (double)r.c.theta_full, (double)r.c.factor_full, (double)r.c.theta_sliding, (double)r.c.factor_sliding, r.err.text); return __LINE__; }
        read_done(&r);
    }
    return 0;
}

// Angle of a pair at a position, as a layer of that kind turns it.
static double angle(const g3__config *c, bool full, int pos, int pair)
{
    double theta = (double)(full ? c->theta_full : c->theta_sliding), factor = (double)(full ? c->factor_full : c->factor_sliding);
    return pos / factor * pow(theta, -2.0 * pair / c->head_dim);
}

// https://github.com/lablup/mlxcel/issues/1340 https://github.com/Blaizzy/mlx-vlm/pull/1709 https://github.com/antonellof/ferrox/issues/39 https://github.com/ollama/ollama/pull/12348
static int linear_scaling_turns_global_layers_only(void)
{
    reading r;
    read_multimodal(&r, "\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024", "");
    CHECK(r.ok && near(angle(&r.c, true, 8, 0), 1) && near(angle(&r.c, false, 8, 0), 8) && near(angle(&r.c, true, 1000, 127), 125 * pow(1e6, -254.0 / 256)));
    read_done(&r);
    static const char *plain[] = { "", "\"rope_scaling\":null", "\"rope_scaling\":{}", "\"rope_scaling\":{\"rope_type\":\"default\"}", "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},\"sliding_attention\":{\"rope_type\":\"default\"}}" };
    for (int i = 0; i < G3__COUNT(plain); i++) {
        read_members(&r, plain[i]);
        CHECK(r.ok && near(angle(&r.c, true, 8, 0), 8) && r.c.factor_full == 1 && r.c.factor_sliding == 1);
        read_done(&r);
    }
    return 0;
}

// ---- constants

// https://github.com/antonellof/ferrox/issues/40 https://github.com/ggml-org/llama.cpp/pull/13951 https://github.com/tenstorrent/tt-metal/issues/22810
static int the_attention_scale_comes_from_its_own_scalar(void)
{
    reading r;
    read_members(&r, "\"query_pre_attn_scalar\":168,\"head_dim\":128");
    CHECK(r.ok && fabs((double)r.c.attn_scale - 0.0771517) < 5e-8 && r.c.head_dim == 128);
    read_done(&r);
    read_members(&r, "\"query_pre_attn_scalar\":256,\"head_dim\":128");
    CHECK(r.ok && r.c.attn_scale == 0.0625f);
    read_done(&r);
    return 0;
}

// https://github.com/huggingface/transformers/issues/38702 https://github.com/huggingface/transformers/pull/29402 https://github.com/google/gemma_pytorch/pull/67
static int the_embedding_multiplier_is_rounded_to_bf16(void)
{
    static const struct { int dim; float scale; } want[] = { { 640, 25.25f }, { 1152, 34.0f }, { 2560, 50.5f }, { 3840, 62.0f }, { 5376, 73.5f } };
    for (int i = 0; i < G3__COUNT(want); i++) {
        reading r;
        char members[64];
        snprintf(members, sizeof members, "\"hidden_size\":%d", want[i].dim);
        read_members(&r, members);
        CHECK(r.ok && r.c.embed_scale == want[i].scale);
        read_done(&r);
    }
    return 0;
}

// https://github.com/tenstorrent/tt-metal/issues/31471 https://github.com/InternLM/lmdeploy/pull/3772
static int global_layers_follow_the_list_else_the_pattern(void)
{
    static const struct { int layers, globals; } size[] = { { 18, 3 }, { 26, 4 }, { 34, 5 }, { 48, 8 }, { 62, 10 } };
    reading r;
    for (int i = 0; i < G3__COUNT(size); i++) {
        char members[64];
        int globals = 0;
        snprintf(members, sizeof members, "\"num_hidden_layers\":%d", size[i].layers);
        read_members(&r, members);
        CHECK(r.ok);
        for (int k = 0; k < size[i].layers; k++) { CHECK(r.c.full[k] == (k % 6 == 5)); globals += r.c.full[k]; }
        CHECK(globals == size[i].globals);
        read_done(&r);
    }
    read_members(&r, "\"num_hidden_layers\":4,\"sliding_window_pattern\":2");
    CHECK(r.ok && !r.c.full[0] && r.c.full[1] && !r.c.full[2] && r.c.full[3]);
    read_done(&r);
    read_members(&r, "\"num_hidden_layers\":3,\"sliding_window_pattern\":2,\"_sliding_window_pattern\":3,\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\"]");
    CHECK(r.ok && r.c.full[0] && !r.c.full[1] && !r.c.full[2]);
    read_done(&r);
    read_members(&r, "\"num_hidden_layers\":3,\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"],\"sliding_window\":512");
    CHECK(r.ok && !r.c.full[0] && !r.c.full[1] && !r.c.full[2] && r.c.window == 512);
    read_done(&r);
    return 0;
}

// ---- refused, by name

static int what_this_header_cannot_run_is_refused_by_name(void)
{
    static const struct { const char *members, *word; } bad[] = {
        { "\"use_bidirectional_attention\":true", "bidirectional" }, { "\"attn_logit_softcapping\":50.0", "softcapping" }, { "\"final_logit_softcapping\":30.0", "softcapping" }, { "\"attention_bias\":true", "attention_bias" },
        { "\"num_attention_heads\":8,\"num_key_value_heads\":3", "num_" }, { "\"head_dim\":255", "head_dim" }, { "\"hidden_activation\":\"silu\"", "hidden_act" }, { "\"hidden_activation\":null,\"hidden_act\":\"relu\"", "hidden_act" },
        { "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0}", "rope_type" }, { "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4.0}", "rope_type" },
        { "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"longrope\",\"rope_theta\":1e6},\"sliding_attention\":{\"rope_type\":\"default\"}}", "rope_type" },
        { "\"layer_types\":[\"mamba\"],\"num_hidden_layers\":1", "layer_types" }, { "\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}", "quant_method" } };
    for (int i = 0; i < G3__COUNT(bad); i++) {
        reading r;
        read_members(&r, bad[i].members);
        if (r.ok || r.err.code >= 0 || !strstr(r.err.text, bad[i].word) || !strstr(r.err.text, "config.json")) { fprintf(stderr, "    %s: %d %s\n", bad[i].members, r.err.code, r.ok ? "taken" : r.err.text); return __LINE__; }
        read_done(&r);
    }
    return 0;
}

static int numbers_no_model_has_are_refused_by_name(void)
{
    static const char *keys[] = { "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "sliding_window", "max_position_embeddings" };
    static const char *values[] = { "0", "-1", "1.5", "\"8\"", "true", "[8]", "{}", "4294967297", "1099511627776", "18446744073709551616", "1e400" };
    for (int k = 0; k < G3__COUNT(keys); k++)
        for (int v = 0; v < G3__COUNT(values); v++) {
            reading r;
            char members[200];
            snprintf(members, sizeof members, "\"%s\":%s", keys[k], values[v]);
            read_members(&r, members);
            if (r.ok || r.err.code >= 0 || !strstr(r.err.text, "config.json")) { fprintf(stderr, "    %s: %d %s\n", members, r.err.code, r.ok ? "taken" : r.err.text); return __LINE__; }
            read_done(&r);
        }
    static const char *reals[] = { "\"rms_norm_eps\":-1.0", "\"rms_norm_eps\":NaN", "\"rope_theta\":0", "\"rope_theta\":-1", "\"rope_local_base_freq\":0", "\"query_pre_attn_scalar\":0", "\"query_pre_attn_scalar\":-4",
        "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}", "\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":-8}", "\"sliding_window_pattern\":0", "\"sliding_window_pattern\":-1", "\"layer_types\":[\"full_attention\"]", "\"layer_types\":\"full\"" };
    for (int i = 0; i < G3__COUNT(reals); i++) {
        reading r;
        read_members(&r, reals[i]);
        if (r.ok || r.err.code >= 0 || !strstr(r.err.text, "config.json")) { fprintf(stderr, "    %s: %d %s\n", reals[i], r.err.code, r.ok ? "taken" : r.err.text); return __LINE__; }
        read_done(&r);
    }
    return 0;
}

static int other_model_families_are_refused_by_name(void)
{
    static const char *texts[] = { "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"]}", "{\"model_type\":\"gemma2\",\"hidden_size\":2304}", "{\"model_type\":\"gemma3n\",\"text_config\":{}}", "{\"hidden_size\":640}", "{}" };
    for (int i = 0; i < G3__COUNT(texts); i++) {
        reading r;
        read_text(&r, texts[i], strlen(texts[i]));
        CHECK(!r.ok && r.err.code < 0 && strstr(r.err.text, "config.json"));
        if (i == 0) CHECK(r.err.code == G3_ERR_MODEL && strstr(r.err.text, "model_type"));
        read_done(&r);
    }
    return 0;
}

static int a_config_cut_anywhere_is_refused(void)
{
    static const char text[] = "{\"model_type\":\"gemma3_text\",\"hidden_size\":640,\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8.0},\"layer_types\":null,\"num_hidden_layers\":2}";
    for (size_t n = 0; n + 1 < sizeof text; n++) {
        reading r;
        read_text(&r, text, n);
        CHECK(!r.ok && r.err.code < 0 && strstr(r.err.text, "config.json"));
        read_done(&r);
        CHECK(r.heap.live == 0);
    }
    return 0;
}

int main(void)
{
    RUN(all_recorded_configs_resolve_as_the_reference_does);
    RUN(text_settings_are_read_wrapped_or_plain);
    RUN(a_config_of_six_keys_gets_the_defaults_it_was_written_against);
    RUN(null_counts_as_absent_and_unknown_keys_are_ignored);
    RUN(whole_numbers_may_be_written_as_fractions_where_they_mean_a_real);
    RUN(old_new_and_mixed_rope_settings_mean_the_same);
    RUN(linear_scaling_turns_global_layers_only);
    RUN(the_attention_scale_comes_from_its_own_scalar);
    RUN(the_embedding_multiplier_is_rounded_to_bf16);
    RUN(global_layers_follow_the_list_else_the_pattern);
    RUN(what_this_header_cannot_run_is_refused_by_name);
    RUN(numbers_no_model_has_are_refused_by_name);
    RUN(other_model_families_are_refused_by_name);
    RUN(a_config_cut_anywhere_is_refused);
    (void)box_hash;
    return test_done();
}
