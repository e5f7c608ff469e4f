// How long one picture takes at the real width: 27 layers in bfloat16, 5.45 TFLOP, each part beside this machine's own peak. Not a test.
// bench_tower [threads [layers]]
#include "tower.h"

typedef struct part { const char *name, *ops; double seconds, flops; } part;

static part parts[] = {
    {"linear layers", " embed linear qkv wo up down ", 0, 0}, {"attention", " attend ", 0, 0}, {"gelu", " gelu ", 0, 0}, {"rest", "", 0, 0}};

static int keep(void *user, const g3_view *v)
{
    char name[32];
    int i = 0;
    (void)user;
    if (strncmp(v->name, "vision ", 7)) return 0;
    snprintf(name, sizeof name, " %s ", v->name + 7);
    while (i < 3 && !strstr(parts[i].ops, name)) i++;
    parts[i].seconds += v->seconds;
    parts[i].flops += (double)v->flops;
    return 0;
}

// ---- what of attention is exponentials: the table's function with a clock around it

static const g3__simd *own;
static double soften_s[64];

static void timed_soften(float *score, int n, int keys, float *top, float *sum, float *fade)
{
    const double start = g3__clock();
    own->soften(score, n, keys, top, sum, fade);
    const double took = g3__clock() - start;
    static int turns;
    const int at = g3__atomic_add(&turns, 1) & 63;       // bodies seldom share a slot; a lost sum of 5 us is no matter
    soften_s[at] += took;
}

// ---- the peak: twelve chains of multiply-adds, all threads

#if defined(__AVX512F__)
typedef __m512 lanes;
#define ALL(v) _mm512_set1_ps(v)
#define STEP(x) _mm512_fmadd_ps(m, m, x)
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 lanes;
#define ALL(v) _mm256_set1_ps(v)
#define STEP(x) _mm256_fmadd_ps(m, m, x)
#else
typedef g3__lanes lanes;
#define ALL(v) ((lanes)G3__ZERO + (v))
#define STEP(x) ((x) + m * m)
#endif

enum { CHAINS = 12, ROUNDS = 4000000 };

static void multiply_add(void *ctx, int i)
{
    const lanes m = ALL(1e-3f);
    lanes x[CHAINS];
    for (int k = 0; k < CHAINS; k++) x[k] = ALL((float)k * 1e-6f);
    for (int r = 0; r < ROUNDS; r++) {
        G3__UNROLL for (int k = 0; k < CHAINS; k++) x[k] = STEP(x[k]);
        __asm__ volatile("" ::: );                       // no round may be skipped or merged with the next
    }
    for (int k = 1; k < CHAINS; k++) x[0] += x[k];
    memcpy((char *)ctx + (size_t)i * sizeof(lanes), &x[0], sizeof(lanes));
}

static double peak(g3__pool *pool)
{
    lanes sums[G3__MAX_THREADS];
    double best = 0;
    for (int r = 0; r < 3; r++) {
        const double start = g3__clock();
        g3__pool_for(pool, g3__pool_width(pool), multiply_add, sums);
        best = G3__MAX(best, 2.0 * CHAINS * (double)(sizeof(lanes) / sizeof(float)) * ROUNDS * g3__pool_width(pool) / (g3__clock() - start));
    }
    return best;
}

static double load(void) { double l = 0; FILE *f = fopen("/proc/loadavg", "r"); if (f) { if (fscanf(f, "%lf", &l) != 1) l = 0; fclose(f); } return l; }

int main(int argc, char **argv)
{
    const int threads = argc > 1 ? atoi(argv[1]) : 2, layers = argc > 2 ? atoi(argv[2]) : 27;
    g3_error err;
    g3_session_desc d = G3__ZERO;
    box b;
    make_tower(&b, layers);
    unsigned char *rgb = draw_picture();
    g3_model_desc md = tiny_desc(&b, threads);
    md.no_vision = false;
    g3_model *m = g3_model_open(&md, &err);
    box_free(&b);
    d.probe.probe_fn = keep; d.probe.points = G3_POINT_OP;
    g3_session *s = m ? g3_session_open(m, &d, &err) : NULL;
    g3_image img = {rgb, SIDE, SIDE, 0};
    if (!s) { fprintf(stderr, "%s\n", err.text); return 1; }
    g3__simd table;
    if (m->simd) { own = m->simd; table = *own; table.soften = timed_soften; s->run.simd = &table; }
    const double top = peak(&m->pool), start = g3__clock();
    if (g3_add_image(s, &img, &err)) { fprintf(stderr, "%s\n", err.text); return 1; }
    const double took = g3__clock() - start, later = peak(&m->pool);
    double all = 0, exponentials = 0;
    for (int i = 0; i < 4; i++) all += parts[i].flops;
    for (int i = 0; i < 64; i++) exponentials += soften_s[i] / threads;
    printf("one picture of 896 x 896, %d layers, %d threads, load %.2f: %.2f s, %.2f TFLOP, %.0f GFLOPS of %.0f before and %.0f after; scratch %.0f MB\n", layers, threads,
        load(), took, all / 1e12, all / took / 1e9, top / 1e9, later / 1e9, (double)g3_session_stats(s).memory / 1e6);
    for (int i = 0; i < 4; i++) printf("  %-16s %6.2f s %7.0f GFLOPS\n", parts[i].name, parts[i].seconds, parts[i].flops / parts[i].seconds / 1e9);
    printf("  %-16s %6.2f s, in attention\n", "exponentials", exponentials);
    g3_session_close(s);
    g3_model_close(m);
    free(rgb);
    return 0;
}
