// Writes checkpoints of the five published sizes in the layout of the 'dynamic' 4-bit ones, as sparse files: headers, index,
// config, quant states, code tables and nested scales are real, the weights are holes. 27B takes a few MB of disk.
// The layout (order, names, shards of 5e9 bytes, header bytes) is that of synth_checkpoint.py beside this file.
#ifndef TEST_SPARSE_H
#define TEST_SPARSE_H
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct sparse_size { const char *name; int hidden, ffn, layers, heads, kv_heads, head_dim, vocab, window, scalar, vision, shards, tensors, linears; uint64_t tensor_bytes, file_bytes; } sparse_size;

// The last four: what the table of published layouts says comes out.
static const sparse_size sparse_sizes[5] = {
    { "270m", 640, 2048, 18, 4, 1, 256, 262144, 512, 256, 0, 1, 766, 106, 413047518u, 413136270u },
    { "1b", 1152, 6912, 26, 4, 1, 256, 262144, 512, 256, 0, 1, 1150, 162, 1093524017u, 1093658649u },
    { "4b", 2560, 10240, 34, 8, 4, 256, 262208, 1024, 256, 1, 1, 1973, 218, 4285802707u, 4286068291u },
    { "12b", 3840, 15360, 48, 16, 8, 256, 262208, 1024, 256, 1, 2, 2645, 316, 9458640701u, 9458995997u },
    { "27b", 5376, 21504, 62, 32, 16, 128, 262208, 1024, 168, 1, 4, 3317, 414, 18834858462u, 18835304182u },
};
enum { SPARSE_VH = 1152, SPARSE_VI = 4304, SPARSE_VL = 27, SPARSE_MAX = 4000 };

typedef enum sparse_kind { SPARSE_HOLE, SPARSE_STATE, SPARSE_CODES, SPARSE_SCALES, SPARSE_MAP } sparse_kind;
typedef struct sparse_tensor { char name[200], text[256]; const char *dtype; int rank, shard; uint64_t dims[4], bytes; sparse_kind kind; double value; } sparse_tensor;
typedef struct sparse { const sparse_size *size; sparse_tensor *t; int n, shards, linears; uint64_t tensor_bytes, file_bytes; } sparse;

static uint64_t sparse_width(const char *dtype) { return dtype[0] == 'F' ? 4 : dtype[0] == 'B' ? 2 : 1; }

static sparse_tensor *sparse_add(sparse *s, const char *dtype, sparse_kind kind, int rank, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    sparse_tensor *t = &s->t[s->n++];
    uint64_t dims[4];
    dims[0] = a; dims[1] = b; dims[2] = c; dims[3] = d;
    memset(t, 0, sizeof *t);
    t->dtype = dtype;
    t->kind = kind;
    t->rank = rank;
    t->bytes = sparse_width(dtype);
    for (int i = 0; i < rank; i++) { t->dims[i] = dims[i]; t->bytes *= dims[i]; }
    return t;
}

static void sparse_dense(sparse *s, const char *prefix, const char *name, int rank, uint64_t a, uint64_t b)
{
    sparse_tensor *t = sparse_add(s, "BF16", SPARSE_HOLE, rank, a, b, 0, 0);
    snprintf(t->name, sizeof t->name, "%s%s", prefix, name);
}

// The modules left in 16 bits: mlp of layers 1 and L-2, self_attn of 0 and L-1, and six single ones.
static int sparse_is_dense(const sparse_size *z, int layer, const char *module)
{
    int L = z->layers;
    if (!strncmp(module, "mlp.", 4) && (layer == 1 || layer == L - 2)) return 1;
    if (!strncmp(module, "self_attn.", 10) && (layer == 0 || layer == L - 1)) return 1;
    if (!strcmp(module, "mlp.down_proj") && (layer == 2 || layer == 3 || layer == L - 3)) return 1;
    return (!strcmp(module, "self_attn.o_proj") && layer == 4) || (!strcmp(module, "mlp.gate_proj") && layer == 5) || (!strcmp(module, "self_attn.v_proj") && layer == 6);
}

static void sparse_shortest(double x, char *out, size_t cap)              // the shortest decimal that reads back as x
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, cap, "%.*g", digits, x);
        if (strtod(out, NULL) == x) return;
    }
}

static void sparse_linear(sparse *s, const char *prefix, int layer, const char *module, uint64_t out, uint64_t in)
{
    char w[128], number[40];
    snprintf(w, sizeof w, "%slayers.%d.%s.weight", prefix, layer, module);
    if (sparse_is_dense(s->size, layer, module)) { sparse_dense(s, w, "", 2, out, in); return; }
    uint64_t blocks = (out * in + 63) / 64;
    double scale = 1.75 * pow((double)in, -0.5);
    sparse_tensor *t;
    s->linears++;
    t = sparse_add(s, "U8", SPARSE_HOLE, 2, (out * in + 1) / 2, 1, 0, 0);  snprintf(t->name, sizeof t->name, "%s", w);
    t = sparse_add(s, "U8", SPARSE_HOLE, 1, blocks, 0, 0, 0);              snprintf(t->name, sizeof t->name, "%s.absmax", w);
    t = sparse_add(s, "F32", SPARSE_CODES, 1, 16, 0, 0, 0);                snprintf(t->name, sizeof t->name, "%s.quant_map", w);
    t = sparse_add(s, "F32", SPARSE_SCALES, 1, (blocks + 255) / 256, 0, 0, 0); snprintf(t->name, sizeof t->name, "%s.nested_absmax", w);
    t->value = 0.25 * scale;
    t = sparse_add(s, "F32", SPARSE_MAP, 1, 256, 0, 0, 0);                 snprintf(t->name, sizeof t->name, "%s.nested_quant_map", w);
    t = sparse_add(s, "U8", SPARSE_STATE, 1, 0, 0, 0, 0);                  snprintf(t->name, sizeof t->name, "%s.quant_state.bitsandbytes__nf4", w);
    sparse_shortest((double)(float)scale, number, sizeof number);
    t->bytes = t->dims[0] = (uint64_t)snprintf(t->text, sizeof t->text, "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [%llu, %llu], \"nested_blocksize\": 256, "
        "\"nested_dtype\": \"float32\", \"nested_offset\": %s}", (unsigned long long)out, (unsigned long long)in, number);
}

static void sparse_tower(sparse *s)
{
    static const char v[] = "vision_tower.vision_model.", *const linear[] = { "self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj", "self_attn.out_proj" };
    char p[128], name[64];
    sparse_tensor *t = sparse_add(s, "BF16", SPARSE_HOLE, 4, SPARSE_VH, 3, 14, 14);
    snprintf(t->name, sizeof t->name, "%sembeddings.patch_embedding.weight", v);
    sparse_dense(s, v, "embeddings.patch_embedding.bias", 1, SPARSE_VH, 0);
    sparse_dense(s, v, "embeddings.position_embedding.weight", 2, 4096, SPARSE_VH);
    for (int i = 0; i < SPARSE_VL; i++) {
        snprintf(p, sizeof p, "%sencoder.layers.%d.", v, i);
        for (int k = 1; k <= 2; k++) {
            snprintf(name, sizeof name, "layer_norm%d.weight", k); sparse_dense(s, p, name, 1, SPARSE_VH, 0);
            snprintf(name, sizeof name, "layer_norm%d.bias", k);   sparse_dense(s, p, name, 1, SPARSE_VH, 0);
        }
        for (int k = 0; k < 4; k++) {
            snprintf(name, sizeof name, "%s.weight", linear[k]); sparse_dense(s, p, name, 2, SPARSE_VH, SPARSE_VH);
            snprintf(name, sizeof name, "%s.bias", linear[k]);   sparse_dense(s, p, name, 1, SPARSE_VH, 0);
        }
        sparse_dense(s, p, "mlp.fc1.weight", 2, SPARSE_VI, SPARSE_VH);
        sparse_dense(s, p, "mlp.fc1.bias", 1, SPARSE_VI, 0);
        sparse_dense(s, p, "mlp.fc2.weight", 2, SPARSE_VH, SPARSE_VI);
        sparse_dense(s, p, "mlp.fc2.bias", 1, SPARSE_VH, 0);
    }
    sparse_dense(s, v, "post_layernorm.weight", 1, SPARSE_VH, 0);
    sparse_dense(s, v, "post_layernorm.bias", 1, SPARSE_VH, 0);
    sparse_dense(s, "multi_modal_projector.", "mm_input_projection_weight", 2, SPARSE_VH, (uint64_t)s->size->hidden);
    sparse_dense(s, "multi_modal_projector.", "mm_soft_emb_norm.weight", 1, SPARSE_VH, 0);
}

static void sparse_decoder(sparse *s)
{
    const sparse_size *z = s->size;
    const char *prefix = z->vision ? "language_model.model." : "model.";
    uint64_t H = (uint64_t)z->hidden, I = (uint64_t)z->ffn, D = (uint64_t)z->head_dim, Q = (uint64_t)z->heads * D, K = (uint64_t)z->kv_heads * D;
    static const char *const norms[] = { "input_layernorm.weight", "post_attention_layernorm.weight", "pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight" };
    char p[64];
    sparse_dense(s, prefix, "embed_tokens.weight", 2, (uint64_t)z->vocab, H);
    for (int i = 0; i < z->layers; i++) {
        snprintf(p, sizeof p, "%slayers.%d.", prefix, i);
        sparse_linear(s, prefix, i, "self_attn.q_proj", Q, H);
        sparse_linear(s, prefix, i, "self_attn.k_proj", K, H);
        sparse_linear(s, prefix, i, "self_attn.v_proj", K, H);
        sparse_linear(s, prefix, i, "self_attn.o_proj", H, Q);
        sparse_linear(s, prefix, i, "mlp.gate_proj", I, H);
        sparse_linear(s, prefix, i, "mlp.up_proj", I, H);
        sparse_linear(s, prefix, i, "mlp.down_proj", H, I);
        sparse_dense(s, p, "self_attn.q_norm.weight", 1, D, 0);
        sparse_dense(s, p, "self_attn.k_norm.weight", 1, D, 0);
        for (int k = 0; k < 4; k++) sparse_dense(s, p, norms[k], 1, H, 0);
    }
    sparse_dense(s, prefix, "norm.weight", 1, H, 0);
}

static void sparse_split(sparse *s)                                       // a new shard before 5e9 bytes are passed, in module order
{
    uint64_t size = 0;
    int shard = 0;
    for (int i = 0; i < s->n; i++) {
        if (size && size + s->t[i].bytes > 5000000000u) { shard++; size = 0; }
        size += s->t[i].bytes;
        s->tensor_bytes += s->t[i].bytes;
        s->t[i].shard = shard;
    }
    s->shards = shard + 1;
}

static int sparse_order(const void *a, const void *b)                     // by shard, then as the writer sorts: wide types first, then names
{
    const sparse_tensor *x = (const sparse_tensor *)a, *y = (const sparse_tensor *)b;
    if (x->shard != y->shard) return x->shard - y->shard;
    uint64_t w = sparse_width(x->dtype), v = sparse_width(y->dtype);
    return w != v ? (w > v ? -1 : 1) : strcmp(x->name, y->name);
}

static void sparse_init(sparse *s, const sparse_size *size)
{
    memset(s, 0, sizeof *s);
    s->size = size;
    s->t = (sparse_tensor *)calloc(SPARSE_MAX, sizeof *s->t);
    if (size->vision) sparse_tower(s);
    sparse_decoder(s);
    sparse_split(s);
    qsort(s->t, (size_t)s->n, sizeof *s->t, sparse_order);
}

static void sparse_free(sparse *s) { free(s->t); memset(s, 0, sizeof *s); }

static void sparse_shard_name(const sparse *s, int shard, char *out, size_t cap)
{
    if (s->shards == 1) snprintf(out, cap, "model.safetensors");
    else snprintf(out, cap, "model-%05d-of-%05d.safetensors", shard + 1, s->shards);
}

static int sparse_by_value(const void *a, const void *b) { float x = *(const float *)a, y = *(const float *)b; return x < y ? -1 : x > y; }

// The signed dynamic map of 8 bits: seven decades, each cut into twice as many means as the one below, both signs, 0 and 1.
static void sparse_map(float *map)
{
    int n = 0;
    for (int e = 0; e < 7; e++)
        for (int k = 0, parts = 1 << e; k < parts; k++) {
            double mean = 0.1 + 0.9 * (k + 0.5) / parts;
            map[n++] = (float)(mean * pow(10, e - 6));
            map[n] = -map[n - 1];
            n++;
        }
    map[n++] = 0;
    map[n++] = 1;
    qsort(map, (size_t)n, sizeof *map, sparse_by_value);
}

static int sparse_put(int fd, uint64_t at, const void *data, size_t size) { return pwrite(fd, data, size, (off_t)at) == (ssize_t)size; }

static int sparse_fill(int fd, uint64_t at, const sparse_tensor *t)       // what is read without weights; all else stays a hole
{
    static const float nf4[16] = { -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
        0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f };
    float map[256];
    if (t->kind == SPARSE_STATE) return sparse_put(fd, at, t->text, (size_t)t->bytes);
    if (t->kind == SPARSE_CODES) return sparse_put(fd, at, nf4, sizeof nf4);
    if (t->kind == SPARSE_MAP) { sparse_map(map); return sparse_put(fd, at, map, sizeof map); }
    if (t->kind == SPARSE_HOLE) return 1;
    float *scales = (float *)malloc((size_t)t->bytes);
    for (uint64_t i = 0; i < t->bytes / 4; i++) scales[i] = (float)t->value;
    int ok = sparse_put(fd, at, scales, (size_t)t->bytes);
    free(scales);
    return ok;
}

static int sparse_write_shard(sparse *s, const char *dir, int shard)
{
    char path[1024], name[64], *text = (char *)malloc((size_t)s->n * 300 + 100);
    uint64_t data = 0, head = 8;
    head += (uint64_t)sprintf(text + head, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < s->n; i++) {
        const sparse_tensor *t = &s->t[i];
        if (t->shard != shard) continue;
        head += (uint64_t)sprintf(text + head, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (int k = 0; k < t->rank; k++) head += (uint64_t)sprintf(text + head, "%s%llu", k ? "," : "", (unsigned long long)t->dims[k]);
        head += (uint64_t)sprintf(text + head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)data, (unsigned long long)(data + t->bytes));
        data += t->bytes;
    }
    text[head++] = '}';
    while (head % 8) text[head++] = ' ';
    for (int i = 0; i < 8; i++) text[i] = (char)((head - 8) >> (8 * i) & 255);
    sparse_shard_name(s, shard, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), ok = fd >= 0 && ftruncate(fd, (off_t)(head + data)) == 0 && sparse_put(fd, 0, text, (size_t)head);
    uint64_t at = head;
    for (int i = 0; ok && i < s->n; i++)
        if (s->t[i].shard == shard) { ok = sparse_fill(fd, at, &s->t[i]); at += s->t[i].bytes; }
    if (fd >= 0 && close(fd)) ok = 0;
    free(text);
    s->file_bytes += head + data;
    return ok;
}

static int sparse_write_text(const char *dir, const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    return f && fputs(text, f) >= 0 && !fclose(f);
}

static int sparse_write_index(const sparse *s, const char *dir)
{
    char *text = (char *)malloc((size_t)s->n * 240 + 200), name[64];
    size_t len = (size_t)sprintf(text, "{\n  \"metadata\": {\n    \"total_size\": %llu\n  },\n  \"weight_map\": {", (unsigned long long)s->tensor_bytes);
    for (int i = 0; i < s->n; i++) {
        sparse_shard_name(s, s->t[i].shard, name, sizeof name);
        len += (size_t)sprintf(text + len, "%s\n    \"%s\": \"%s\"", i ? "," : "", s->t[i].name, name);
    }
    sprintf(text + len, "\n  }\n}");
    int ok = sparse_write_text(dir, "model.safetensors.index.json", text);
    free(text);
    return ok;
}

static int sparse_write_config(const sparse_size *z, const char *dir)
{
    char inner[2048], text[4096];
    snprintf(inner, sizeof inner, "\"attention_bias\": false, \"attn_logit_softcapping\": null, \"final_logit_softcapping\": null, \"head_dim\": %d, \"hidden_activation\": \"gelu_pytorch_tanh\", \"hidden_size\": %d, "
        "\"intermediate_size\": %d, \"max_position_embeddings\": %d, \"model_type\": \"gemma3_text\", \"num_attention_heads\": %d, \"num_hidden_layers\": %d, \"num_key_value_heads\": %d, \"query_pre_attn_scalar\": %d, "
        "\"rms_norm_eps\": 1e-06, \"rope_local_base_freq\": 10000, \"rope_scaling\": %s, \"rope_theta\": 1000000, \"sliding_window\": %d, \"sliding_window_pattern\": 6, \"torch_dtype\": \"bfloat16\", \"vocab_size\": %d",
        z->head_dim, z->hidden, z->ffn, z->vision ? 131072 : 32768, z->heads, z->layers, z->kv_heads, z->scalar, z->vision ? "{\"factor\": 8.0, \"rope_type\": \"linear\"}" : "null", z->window, z->vocab);
    if (!z->vision) snprintf(text, sizeof text, "{\"architectures\": [\"Gemma3ForCausalLM\"], \"eos_token_id\": 106, %s, \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}}", inner);
    else snprintf(text, sizeof text, "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\", \"boi_token_index\": 255999, \"eoi_token_index\": 256000, \"image_token_index\": 262144, \"eos_token_id\": 106, "
        "\"mm_tokens_per_image\": 256, \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}, \"text_config\": {%s}, \"vision_config\": {\"hidden_act\": \"gelu_pytorch_tanh\", \"hidden_size\": 1152, "
        "\"image_size\": 896, \"intermediate_size\": 4304, \"layer_norm_eps\": 1e-06, \"model_type\": \"siglip_vision_model\", \"num_attention_heads\": 16, \"num_channels\": 3, \"num_hidden_layers\": 27, \"patch_size\": 14}}", inner);
    return sparse_write_text(dir, "config.json", text);
}

// The whole checkpoint into an existing directory; 0 when the disk refuses.
static int sparse_write(sparse *s, const char *dir)
{
    int ok = sparse_write_config(s->size, dir);
    s->file_bytes = 0;
    for (int i = 0; ok && i < s->shards; i++) ok = sparse_write_shard(s, dir, i);
    return ok && (s->shards == 1 || sparse_write_index(s, dir));
}
#endif
