// A tower of the real width, 4096 patches of 1152, feed-forward 4304, heads of 72, and the projector to 2560, around one small layer of text.
// Weights and picture come from formulas: splitmix64 from the FNV-1a hash of a tensor's name (realdim-L2.json lists seeds and sums).
#ifndef MODEL_TOWER_H
#define MODEL_TOWER_H
#include "tiny.h"

enum { D = 1152, M = 4304, N = 4096, H = 2560, SIDE = 896 };

static uint64_t fnv(const char *s) { uint64_t h = 0xCBF29CE484222325u; for (; *s; s++) h = (h ^ (unsigned char)*s) * 0x100000001B3u; return h; }

static int draw(uint64_t seed, uint64_t i, int bits)
{
    uint64_t z = seed + (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return (int)(z >> (64 - bits)) - (1 << (bits - 1));
}

static const struct { const char *ends; int bits, shift, base; } rules[] = {
    {"patch_embedding.weight", 8, 11, 0}, {"patch_embedding.bias", 8, 9, 0}, {"position_embedding.weight", 8, 8, 0},
    {"layer_norm1.weight", 4, 5, 1}, {"layer_norm2.weight", 4, 5, 1}, {"post_layernorm.weight", 4, 5, 1},
    {"layer_norm1.bias", 8, 10, 0}, {"layer_norm2.bias", 8, 10, 0}, {"post_layernorm.bias", 8, 10, 0},
    {"q_proj.weight", 8, 10, 0}, {"k_proj.weight", 8, 11, 0}, {"v_proj.weight", 8, 11, 0}, {"out_proj.weight", 8, 11, 0}, {"fc1.weight", 8, 11, 0}, {"fc2.weight", 8, 12, 0},
    {"q_proj.bias", 8, 10, 0}, {"k_proj.bias", 8, 10, 0}, {"v_proj.bias", 8, 10, 0}, {"out_proj.bias", 8, 10, 0}, {"fc1.bias", 8, 10, 0}, {"fc2.bias", 8, 10, 0},
    {"mm_soft_emb_norm.weight", 8, 10, 0}, {"mm_input_projection_weight", 8, 12, 0}};

static void weight(ck *c, const char *prefix, const char *name, int rank, size_t a, size_t b)
{
    char full[128];
    size_t dims[4] = {a, b, 14, 14}, n = a * (rank > 1 ? b : 1) * (rank == 4 ? 196 : 1);
    uint16_t *w = (uint16_t *)malloc(n * sizeof *w);      // every value is exact in bfloat16
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int r = 0; r < G3__COUNT(rules); r++)
        if (ck_ends(full, rules[r].ends))
            for (size_t i = 0; i < n; i++) w[i] = g3__f32_to_bf16((float)rules[r].base + (float)draw(fnv(full), i, rules[r].bits) / (float)(1 << rules[r].shift));
    ck_add(c, full, "BF16", rank, dims, w, n * sizeof *w, 0);
    free(w);
}

static void plain(ck *c, const char *name, int rank, size_t a, size_t b)                 // of the text model, which only has to be there
{
    size_t dims[2] = {a, b}, n = a * (rank > 1 ? b : 1);
    void *zeros = calloc(n, 2);
    char full[128];
    snprintf(full, sizeof full, "language_model.model.%s", name);
    ck_add(c, full, "BF16", rank, dims, zeros, 2 * n, 0);
    free(zeros);
}

static void text(ck *c, int dim, int side, int tokens, int layers)               // one layer of text around the tower, and the config of both
{
    static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"};
    const size_t h = (size_t)dim;
    char name[96], config[1024];
    plain(c, "embed_tokens.weight", 2, 32, h); plain(c, "norm.weight", 1, h, 0);
    for (int k = 0; k < 4; k++) { snprintf(name, sizeof name, "layers.0.%s.weight", norms[k]); plain(c, name, 1, h, 0); }
    plain(c, "layers.0.self_attn.q_proj.weight", 2, 16, h); plain(c, "layers.0.self_attn.k_proj.weight", 2, 16, h); plain(c, "layers.0.self_attn.v_proj.weight", 2, 16, h);
    plain(c, "layers.0.self_attn.o_proj.weight", 2, h, 16); plain(c, "layers.0.self_attn.q_norm.weight", 1, 16, 0); plain(c, "layers.0.self_attn.k_norm.weight", 1, 16, 0);
    plain(c, "layers.0.mlp.gate_proj.weight", 2, 16, h); plain(c, "layers.0.mlp.up_proj.weight", 2, 16, h); plain(c, "layers.0.mlp.down_proj.weight", 2, h, 16);
    snprintf(config, sizeof config, "{\"architectures\":[\"Gemma3ForConditionalGeneration\"],\"model_type\":\"gemma3\",\"mm_tokens_per_image\":%d,\"image_token_index\":30,\"boi_token_index\":28,\"eoi_token_index\":29,"
        "\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":%d,\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,\"head_dim\":16,"
        "\"vocab_size\":32,\"sliding_window\":512,\"max_position_embeddings\":512},"
        "\"vision_config\":{\"model_type\":\"siglip_vision_model\",\"hidden_size\":1152,\"intermediate_size\":4304,\"num_hidden_layers\":%d,\"num_attention_heads\":16,\"image_size\":%d,\"patch_size\":14}}", tokens, dim, layers, side);
    box_text(&c->rest, "config.json", config);
}

#define NAME(...) (snprintf(name, sizeof name, __VA_ARGS__), name)

static void make_tower(box *b, int layers)
{
    static const char v[] = "vision_tower.vision_model.", p[] = "multi_modal_projector.", *const square[] = {"q_proj", "k_proj", "v_proj", "out_proj"};
    ck c;
    char name[96];
    memset(&c, 0, sizeof c);
    c.t = (ck_tensor *)calloc(CK_MAX, sizeof *c.t);
    c.files = 1;
    weight(&c, v, "embeddings.patch_embedding.weight", 4, D, 3); weight(&c, v, "embeddings.patch_embedding.bias", 1, D, 0); weight(&c, v, "embeddings.position_embedding.weight", 2, N, D);
    for (int i = 0; i < layers; i++) {
        for (int k = 1; k < 3; k++) { weight(&c, v, NAME("encoder.layers.%d.layer_norm%d.weight", i, k), 1, D, 0); weight(&c, v, NAME("encoder.layers.%d.layer_norm%d.bias", i, k), 1, D, 0); }
        for (int k = 0; k < 4; k++) { weight(&c, v, NAME("encoder.layers.%d.self_attn.%s.weight", i, square[k]), 2, D, D); weight(&c, v, NAME("encoder.layers.%d.self_attn.%s.bias", i, square[k]), 1, D, 0); }
        weight(&c, v, NAME("encoder.layers.%d.mlp.fc1.weight", i), 2, M, D); weight(&c, v, NAME("encoder.layers.%d.mlp.fc1.bias", i), 1, M, 0);
        weight(&c, v, NAME("encoder.layers.%d.mlp.fc2.weight", i), 2, D, M); weight(&c, v, NAME("encoder.layers.%d.mlp.fc2.bias", i), 1, D, 0);
    }
    weight(&c, v, "post_layernorm.weight", 1, D, 0); weight(&c, v, "post_layernorm.bias", 1, D, 0);
    weight(&c, p, "mm_soft_emb_norm.weight", 1, D, 0); weight(&c, p, "mm_input_projection_weight", 2, D, H);
    text(&c, H, SIDE, 256, layers);
    ck_build(&c, b);
    ck_free(&c);
}

static unsigned char *draw_picture(void)
{
    unsigned char *rgb = (unsigned char *)malloc(3 * SIDE * SIDE);
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            for (int c = 0; c < 3; c++) {
                uint32_t h = (uint32_t)(x / 32 * 73 + y / 32 * 151 + c * 57) * 2654435761u >> 25;
                rgb[((size_t)y * SIDE + (size_t)x) * 3 + (size_t)c] = (unsigned char)(((x * (c + 1) + y * (3 - c)) / 4 + (int)h) % 256);
            }
    return rgb;
}

#endif
