// A session's scratch without a session: buffers of exactly the sizes that g3__acts_sizes asks for, so that a sanitizer sees every overrun.
#ifndef RUN_H
#define RUN_H

typedef struct rig { g3__run r; g3__pool *pool; g3_error err; g3__heap heap; g3__row *rows; } rig;       // pool: on the heap, since a failing case leaves its threads behind

static const g3__simd *rig_simd;       // the loops to test; NULL: plain C

static void rig_open(rig *g, g3__shape shape, const g3_parallel *lent)
{
    g3__acts_item item[G3__ACTS_ITEMS];
    memset(g, 0, sizeof *g);
    g3__heap_init(&g->heap, NULL);
    g->pool = (g3__pool *)malloc(sizeof *g->pool);
    g3__pool_init(g->pool, shape.width, lent);
    g->rows = (g3__row *)calloc((size_t)shape.batch, sizeof *g->rows);
    g->r.op = g3__cpu_table(rig_simd);
    g->r.simd = rig_simd;
    g->r.err = &g->err;
    g->r.pool = g->pool;
    g->r.memory = &g->heap.a;
    g->r.rows = g->rows;
    g->r.layer = -1;
    g->r.shape = shape;
    g3__acts_sizes(&shape, item);
    for (int i = 0; i < G3__ACTS_ITEMS; i++) {
        float *p = (float *)malloc((size_t)item[i].count * sizeof(float));
        for (uint64_t k = 0; k < item[i].count; k++) p[k] = NAN;              // nothing may be read before it is written
        memcpy((char *)&g->r.a + item[i].member, &p, sizeof p);
    }
}

static void rig_close(rig *g)
{
    g3__acts_item item[G3__ACTS_ITEMS];
    g3__acts_sizes(&g->r.shape, item);
    for (int i = 0; i < G3__ACTS_ITEMS; i++) {
        float *p;
        memcpy(&p, (char *)&g->r.a + item[i].member, sizeof p);
        free(p);
    }
    free(g->rows);
    g3__pool_free(g->pool);
    free(g->pool);
}

static g3__shape shape_of(int batch, int dim, int ffn, int heads, int kv_heads, int head_dim, int kinds, int width)
{
    g3__shape s = G3__ZERO;
    s.batch = batch; s.dim = dim; s.ffn = ffn; s.heads = heads; s.kv_heads = kv_heads; s.head_dim = head_dim;
    s.gated = true; s.kinds = kinds; s.width = width; s.context = 2000;
    return s;
}

static g3__kv kv_open(g3_kv format, int rows, int kv_heads, int head_dim)
{
    const size_t cells = (size_t)rows * (size_t)kv_heads;
    g3__kv kv = G3__ZERO;
    kv.format = format; kv.rows = rows; kv.kv_heads = kv_heads; kv.head_dim = head_dim;
    kv.k = malloc(cells * (size_t)head_dim * (size_t)g3__kv_size(format));
    kv.v = malloc(cells * (size_t)head_dim * (size_t)g3__kv_size(format));
    memset(kv.k, 0xff, cells * (size_t)head_dim * (size_t)g3__kv_size(format));   // NaN in every float format: rows that were not written must not be read
    memset(kv.v, 0xff, cells * (size_t)head_dim * (size_t)g3__kv_size(format));
    if (g3__kv_scaled(format)) { kv.k_scale = (float *)malloc(cells * sizeof(float)); kv.v_scale = (float *)malloc(cells * sizeof(float)); }
    for (size_t i = 0; g3__kv_scaled(format) && i < cells; i++) kv.k_scale[i] = kv.v_scale[i] = NAN;
    return kv;
}

static void kv_close(g3__kv *kv) { free(kv->k); free(kv->v); free(kv->k_scale); free(kv->v_scale); }

static uint64_t random_state = 88172645463325252u;
static uint32_t random_u32(void)
{
    random_state ^= random_state << 13; random_state ^= random_state >> 7; random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}
static float random_f32(void) { return (float)(random_u32() >> 8) / 8388608.0f - 1.0f; }       // [-1, 1)
#endif
