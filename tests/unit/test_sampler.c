// The sampler against the reference's distributions (sampling.json), against a full sort in double precision written
// here, and against the text of its own contract; the stopper against a naive search over every way to cut a text.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"

enum { MAX_VOCAB = 4096 };

static union { double align; char bytes[1 << 17]; } work;      // for any vocabulary used here

static g3_sampler off(void)                                    // every filter off, temperature 1
{
    g3_sampler p;
    memset(&p, 0, sizeof p);
    p.temperature = 1;
    p.top_k = -1;
    p.top_p = -1;
    return p;
}

static g3__sample_in sample_in(float *logits, int vocab, const g3_sampler *p)
{
    g3__sample_in in;
    memset(&in, 0, sizeof in);
    in.logits = logits;
    in.vocab = vocab;
    in.p = p;
    in.seed = 7;
    in.work = &work;
    return in;
}

// ---- an independent generator for test data, and independent formulas

static uint64_t lcg_state = 1;
static uint32_t lcg(void) { lcg_state = lcg_state * 6364136223846793005u + 1442695040888963407u; return (uint32_t)(lcg_state >> 33); }
static double unit(void) { return (lcg() + 0.5) / 2147483648.0; }
static double gauss(void) { return sqrt(-2 * log(unit())) * cos(6.283185307179586 * unit()); }

static uint64_t splitmix_out(uint64_t z)
{
    z ^= z >> 30; z *= UINT64_C(0xBF58476D1CE4E5B9);
    z ^= z >> 27; z *= UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

// Step the textbook splitmix64 `position + 1` times from its mixed seed: what g3__uniform promises to compute at once.
static double stepped_uniform(uint64_t seed, uint64_t position)
{
    uint64_t state = splitmix_out(seed);
    for (uint64_t i = 0; i <= position; i++) state += UINT64_C(0x9E3779B97F4A7C15);
    return ldexp((double)(splitmix_out(state) >> 11), -53);
}

typedef struct row { double z; int id; } row;

static int by_size(const void *a, const void *b)               // descending logit, then ascending id
{
    const row *x = (const row *)a, *y = (const row *)b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id - y->id;
}

static int by_id(const void *a, const void *b) { return ((const row *)a)->id - ((const row *)b)->id; }

// The specification read literally: sort everything, cut, cut, cut. kept[] comes back sorted by id with z replaced by the
// probability. *doubt is how near the closest decision was.
static int reference(const float *logits, int n, const g3_sampler *p, const int *held, int n_held, row *kept, double *doubt)
{
    int m = 0;
    double sum = 0;
    *doubt = 1;
    for (int i = 0; i < n; i++) {
        float z = logits[i];
        bool in = false;
        for (int k = 0; k < n_held; k++) in = in || held[k] == i;
        if (p->repeat_penalty > 0 && in) z = z < 0 ? z * p->repeat_penalty : z / p->repeat_penalty;
        z /= p->temperature;
        if (z > -FLT_MAX) { kept[m].z = (double)z; kept[m++].id = i; }
    }
    qsort(kept, (size_t)m, sizeof *kept, by_size);
    if (p->top_k >= 1 && p->top_k < m) {
        int k = p->top_k;
        while (k < m && kept[k].z == kept[p->top_k - 1].z) k++;
        m = k;
    }
    if (p->top_p >= 0 && p->top_p < 1) {
        double above = 0;
        int k = 0;
        for (int i = 0; i < m; i++) sum += exp(kept[i].z - kept[0].z);
        for (; k < m && (k == 0 || above < (double)p->top_p * sum); k++) {
            double near = fabs(above / sum - (double)p->top_p);
            if (k && near < *doubt) *doubt = near;
            above += exp(kept[k].z - kept[0].z);
        }
        if (fabs(above / sum - (double)p->top_p) < *doubt) *doubt = fabs(above / sum - (double)p->top_p);
        m = k;
    }
    if (p->min_p > 0) {
        int k = 0;
        while (k < m && exp(kept[k].z - kept[0].z) >= (double)p->min_p) k++;
        if (k < m && fabs(exp(kept[k].z - kept[0].z) - (double)p->min_p) < *doubt) *doubt = fabs(exp(kept[k].z - kept[0].z) - (double)p->min_p);
        if (fabs(exp(kept[k - 1].z - kept[0].z) - (double)p->min_p) < *doubt) *doubt = fabs(exp(kept[k - 1].z - kept[0].z) - (double)p->min_p);
        m = k;
    }
    double top = kept[0].z;
    sum = 0;
    for (int i = 0; i < m; i++) sum += kept[i].z = exp(kept[i].z - top);
    for (int i = 0; i < m; i++) kept[i].z /= sum;
    qsort(kept, (size_t)m, sizeof *kept, by_id);
    return m;
}

// What the sampler keeps, through its own private parts: ids and probabilities.
static int filtered(const g3__sample_in *in, row *kept)
{
    g3__draw d;
    float room[G3__RUN], w[G3__RUN];
    int m = 0;
    memset(&d, 0, sizeof d);
    g3__draw_init(&d, in);
    g3__draw_filter(&d, in->p);
    double all = g3__mass(&d);
    for (int run = 0; run < d.runs; run++) {
        const float *z = g3__run_logits(&d, run, room);
        g3__run_weights(&d, run, w);
        for (int i = 0; i < G3__RUN && run * G3__RUN + i < in->vocab; i++) {
            int id = run * G3__RUN + i;
            bool on = z[i] > d.edge || (z[i] == d.edge && id <= d.last);
            if (!on || (d.min_p > 0 && w[i] < d.min_p)) { if (w[i] != 0) return -1; continue; }   // what is filtered must weigh nothing
            kept[m].id = id;
            kept[m++].z = (double)w[i] / all;
        }
    }
    return m;
}

// ---- sampling.json

typedef struct fixture { char name[32]; float z[64]; int n; } fixture;
static fixture sets[16];
static int n_sets;

static int read_floats(g3__json *j, double *out)
{
    int n = 0;
    g3__json_array(j);
    while (g3__json_item(j) && n < 64) g3__json_f64(j, &out[n++]);
    return n;
}

static void read_sets(g3__json *j)
{
    g3__str key;
    double v[64];
    g3__json_object(j);
    while (g3__json_key(j, &key) && n_sets < 16) {
        fixture *s = &sets[n_sets++];
        snprintf(s->name, sizeof s->name, "%.*s", G3__S(key));
        s->n = read_floats(j, v);
        for (int i = 0; i < s->n; i++) s->z[i] = (float)v[i];
    }
}

static void read_params(g3__json *j, g3_sampler *p)
{
    g3__str key;
    double v;
    *p = off();
    g3__json_object(j);
    while (g3__json_key(j, &key)) {
        g3__json_f64(j, &v);
        if (g3__str_is(key, "temperature")) p->temperature = (float)v;
        if (g3__str_is(key, "top_k")) p->top_k = (int)v;
        if (g3__str_is(key, "top_p")) p->top_p = (float)v;          // 0 means 0 down here: keep one
        if (g3__str_is(key, "min_p")) p->min_p = (float)v;
        if (g3__str_is(key, "repetition_penalty")) p->repeat_penalty = (float)v;
    }
}

static int by_double(const void *a, const void *b) { double x = *(const double *)a, y = *(const double *)b; return x < y ? -1 : x > y; }

static int check_case(g3__json *j)
{
    g3__str key, name = { NULL, 0 };
    g3_sampler p = off();
    double ids[64], probs[64], held_f[64], mine[64];
    int n_ids = 0, n_probs = 0, n_held = 0, held[64], m;
    bool tied = false, borderline = false;
    fixture *s = NULL;
    row kept[64];
    g3__json_object(j);
    while (g3__json_key(j, &key)) {
        if (g3__str_is(key, "set")) g3__json_string(j, &name);
        else if (g3__str_is(key, "params")) read_params(j, &p);
        else if (g3__str_is(key, "kept")) n_ids = read_floats(j, ids);
        else if (g3__str_is(key, "probs_of_kept")) n_probs = read_floats(j, probs);
        else if (g3__str_is(key, "previous_ids")) n_held = read_floats(j, held_f);
        else if (g3__str_is(key, "tied_cut")) g3__json_bool(j, &tied);
        else if (g3__str_is(key, "borderline")) g3__json_bool(j, &borderline);
        else g3__json_skip(j);
    }
    CHECK(!j->failed);
    for (int i = 0; i < n_sets; i++) if (g3__str_is(name, sets[i].name)) s = &sets[i];
    CHECK(s && n_ids == n_probs && n_ids > 0);
    g3__sample_in in = sample_in(s->z, s->n, &p);
    for (int i = 0; i < n_held; i++) held[i] = (int)held_f[i];
    in.held = held;
    in.n_held = n_held;
    m = filtered(&in, kept);
    if (borderline) { CHECK(m >= n_ids - 1 && m <= n_ids + 1); return 0; }
    CHECK(m == n_ids);
    for (int i = 0; i < m; i++) mine[i] = kept[i].z;
    if (tied) { qsort(mine, (size_t)m, sizeof *mine, by_double); qsort(probs, (size_t)m, sizeof *probs, by_double); }
    for (int i = 0; i < m; i++) {
        CHECK(tied || kept[i].id == (int)ids[i]);
        CHECK(fabs(mine[i] - probs[i]) <= 1e-6);
    }
    return 0;
}

static int filters_equal_the_reference_on_all_fixtures(void)
{
    static char text[1 << 17];
    g3_error err = { G3_OK, "" };
    g3__json j;
    g3__str key;
    int cases = 0;
    FILE *f = fopen(golden("text/sampling.json"), "rb");
    CHECK(f);
    size_t size = fread(text, 1, sizeof text, f);
    fclose(f);
    CHECK(size > 1000 && size < sizeof text);
    g3__json_init(&j, text, size, "sampling.json", &err);
    g3__json_object(&j);
    while (g3__json_key(&j, &key)) {
        if (g3__str_is(key, "sets")) read_sets(&j);
        else if (g3__str_is(key, "cases")) {
            g3__json_array(&j);
            while (g3__json_item(&j)) {
                int line = check_case(&j);
                if (line) { fprintf(stderr, "in case %d\n", cases); return line; }
                cases++;
            }
        }
        else g3__json_skip(&j);
    }
    CHECK(!j.failed && cases == 160 && n_sets == 8);
    return 0;
}

// ---- against a full sort

static g3_sampler random_sampler(void)
{
    static const int ks[] = { -1, 1, 2, 5, 40, 64, 300, 4000, 100000 };
    static const float ps[] = { -1, 0.1f, 0.5f, 0.9f, 0.95f, 0.999f, 1.0f };
    static const float ms[] = { 0, 0, 0, 0.01f, 0.05f, 0.5f };
    static const float ts[] = { 1, 1, 0.7f, 1.5f, 0.1f, 5 };
    g3_sampler p = off();
    p.top_k = ks[lcg() % 9];
    p.top_p = ps[lcg() % 7];
    p.min_p = ms[lcg() % 6];
    p.temperature = ts[lcg() % 6];
    if (lcg() % 3 == 0) p.repeat_penalty = lcg() % 2 ? 1.2f : 0.8f;
    return p;
}

static void random_logits(float *z, int n)
{
    double spread = pow(10, unit() * 3 - 1.5);
    int coarse = (int)(lcg() % 3);                              // bf16-like and coarser steps make ties
    for (int i = 0; i < n; i++) {
        double v = gauss() * spread;
        z[i] = (float)(coarse == 0 ? v : coarse == 1 ? floor(v * 16) / 16 : floor(v));
        if (lcg() % 50 == 0) z[i] = -INFINITY;
        if (lcg() % 97 == 0) z[i] = -0.0f;
    }
    z[0] = 0;
}

static int draws_equal_a_full_sort(void)
{
    static float z[MAX_VOCAB];
    static row want[MAX_VOCAB], got[MAX_VOCAB];
    int held[40], skipped = 0, drawn = 0, sizes[] = { 1, 2, 3, 50, 255, 256, 257, 300, 1000, 4096 };
    for (int round = 0; round < 500; round++) {
        int n = sizes[lcg() % 10];
        double doubt;
        g3_sampler p = random_sampler();
        g3__sample_in in = sample_in(z, n, &p);
        random_logits(z, n);
        for (int i = 0; i < 40; i++) held[i] = (int)(lcg() % (uint32_t)n);
        in.held = held;
        in.n_held = 40;
        in.seed = lcg();
        int m = reference(z, n, &p, held, 40, want, &doubt);
        if (doubt < 2e-6) { skipped += 20; continue; }
        CHECK(filtered(&in, got) == m);
        for (int i = 0; i < m; i++) CHECK(got[i].id == want[i].id && fabs(got[i].z - want[i].z) < 1e-6);
        for (int k = 0; k < 20; k++, drawn++) {
            double u = stepped_uniform(in.seed, in.position = (uint64_t)k), sum = 0;
            int i = 0;
            while (i < m - 1 && sum + want[i].z <= u) sum += want[i++].z;
            if (fabs(sum - u) < 1e-5 || fabs(sum + want[i].z - u) < 1e-5) { skipped++; continue; }     // a boundary within rounding
            CHECK(g3__sample(&in, NULL, NULL) == want[i].id);
        }
    }
    CHECK(drawn > 9000 && skipped < drawn / 20);
    return 0;
}

static int one_token_has_all_the_mass_of_a_large_vocabulary(void)
{
    int n = 262208;
    float *z = (float *)malloc((size_t)n * sizeof *z);
    g3_sampler p = off();
    CHECK(z && g3__sample_work(n) <= sizeof work);
    for (int i = 0; i < n; i++) z[i] = (float)gauss();
    z[200001] = 60;
    for (int k = 0; k < 4; k++) {
        p.top_k = k & 1 ? 64 : -1;
        p.top_p = k & 2 ? 0.95f : -1;
        g3__sample_in in = sample_in(z, n, &p);
        for (in.position = 0; in.position < 5; in.position++) CHECK(g3__sample(&in, NULL, NULL) == 200001);
    }
    free(z);
    return 0;
}

static int logits_that_span_all_magnitudes(void)
{
    float z[300];
    row want[300], got[300];
    double doubt;
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 300, &p);
    for (int i = 0; i < 300; i++) z[i] = i < 149 ? ldexpf(1, -i) : i < 298 ? -ldexpf(1, i - 298) : i == 298 ? -1e30f : -FLT_MAX;
    for (int k = 1; k <= 300; k += 7) {
        p.top_k = k;
        int m = reference(z, 300, &p, NULL, 0, want, &doubt);
        CHECK(filtered(&in, got) == m);
        for (int i = 0; i < m; i++) CHECK(got[i].id == want[i].id);
    }
    p.top_k = -1;
    for (int k = 1; k < 100; k += 7) {
        p.top_p = (float)k / 100;
        int m = reference(z, 300, &p, NULL, 0, want, &doubt);
        if (doubt > 1e-6) CHECK(filtered(&in, got) == m);
    }
    return 0;
}

// ---- greedy, ties, k = 1

static int greedy_takes_the_lowest_id_of_the_largest(void)
{
    float z[MAX_VOCAB];
    g3_sampler p = off();
    p.greedy = true;
    for (int round = 0; round < 200; round++) {
        int n = 1 + (int)(lcg() % MAX_VOCAB), best = 0;
        g3__sample_in in = sample_in(z, n, &p);
        for (int i = 0; i < n; i++) z[i] = (float)((int)(lcg() % 9) - (round % 2 ? 20 : 4));
        for (int i = 1; i < n; i++) if (z[i] > z[best]) best = i;
        for (in.seed = 0; in.seed < 5; in.seed++) CHECK(g3__sample(&in, NULL, NULL) == best);
    }
    return 0;
}

static int greedy_ignores_the_filters(void)
{
    float z[4] = { 1, 5, 4, 0 };
    int held[1] = { 1 };
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 4, &p);
    in.held = held;
    in.n_held = 1;
    p.repeat_penalty = 100;
    p.top_k = 2;
    p.temperature = 50;
    p.greedy = true;
    CHECK(g3__sample(&in, NULL, NULL) == 1);
    return 0;
}

static int top_k_1_is_argmax_and_its_ties_all_stay(void)
{
    float z[600];
    int seen[600] = { 0 };
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 600, &p);
    p.top_k = 1;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < 600; i++) z[i] = (float)gauss();
        in.position = (uint64_t)round;
        int best = 0;
        for (int i = 1; i < 600; i++) if (z[i] > z[best]) best = i;
        CHECK(g3__sample(&in, NULL, NULL) == best);
    }
    for (int i = 0; i < 600; i++) z[i] = i == 5 || i == 300 || i == 599 ? 2.0f : 1.0f;
    for (in.position = 0; in.position < 100; in.position++) seen[g3__sample(&in, NULL, NULL)]++;
    CHECK(seen[5] && seen[300] && seen[599] && seen[5] + seen[300] + seen[599] == 100);
    return 0;
}

static int the_coldest_temperature_is_greedy(void)
{
    float z[3] = { 20, 19.999998f, 1 }, up[3] = { 3, FLT_MAX, 2 }, down[3] = { -FLT_MAX, -1e30f, -FLT_MAX };
    g3_sampler p = off();
    p.temperature = 1e-38f;
    g3__sample_in in = sample_in(z, 3, &p);
    for (in.position = 0; in.position < 50; in.position++) CHECK(g3__sample(&in, NULL, NULL) == 0);
    p.temperature = 0.5f;                                        // a forced and a masked logit overflow here
    in.logits = up;
    for (in.position = 0; in.position < 50; in.position++) CHECK(g3__sample(&in, NULL, NULL) == 1);
    p.temperature = 1;
    in.logits = down;
    for (in.position = 0; in.position < 50; in.position++) CHECK(g3__sample(&in, NULL, NULL) == 1);
    return 0;
}

static int settings_that_sink_every_logit_fall_back_on_the_largest(void)
{
    float z[300];
    int held[300];
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 300, &p);
    for (int i = 0; i < 300; i++) { held[i] = i; z[i] = i == 260 ? -1e29f : -1e30f; }
    in.held = held;
    in.n_held = 300;
    p.repeat_penalty = 1e30f;
    for (int k = 0; k < 4; k++) {
        p.top_k = k & 1 ? 5 : -1;
        p.top_p = k & 2 ? 0.5f : -1;
        CHECK(g3__sample(&in, NULL, NULL) == 260);
    }
    return 0;
}

// ---- the draw

static int the_uniform_is_a_function_of_seed_and_position(void)
{
    double sum = 0, square = 0;
    for (uint64_t seed = 0; seed < 20; seed++)
        for (uint64_t position = 0; position < 500; position += 7) CHECK(g3__uniform(seed, position) == stepped_uniform(seed, position));
    for (uint64_t i = 0; i < 100000; i++) {
        double u = g3__uniform(3, i), v = g3__uniform(i, 3);
        CHECK(u >= 0 && u < 1 && v >= 0 && v < 1);
        sum += u + v;
        square += u * u + v * v;
    }
    CHECK(fabs(sum / 200000 - 0.5) < 5 * sqrt(1.0 / 12 / 200000));
    CHECK(fabs(square / 200000 - 1.0 / 3) < 5 * sqrt(4.0 / 45 / 200000));
    CHECK(g3__uniform(1, 0) != g3__uniform(2, 0) && g3__uniform(0, 0) != g3__uniform(0, 1));
    for (uint64_t i = 0; i < 1000; i++) CHECK(g3__uniform(5, i + 1) != g3__uniform(6, i));       // near seeds are not shifts of one another
    return 0;
}

static int same_seed_and_position_same_token(void)
{
    float z[100];
    int a[50], other = 0, different = 0;
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 100, &p);
    for (int i = 0; i < 100; i++) z[i] = (float)gauss();
    for (int i = 0; i < 50; i++) { in.position = (uint64_t)i; a[i] = g3__sample(&in, NULL, NULL); }
    for (int i = 49; i >= 0; i--) { in.position = (uint64_t)i; CHECK(g3__sample(&in, NULL, NULL) == a[i]); }
    for (int i = 1; i < 50; i++) different += a[i] != a[0];
    in.seed = 8;
    for (int i = 0; i < 50; i++) { in.position = (uint64_t)i; other += g3__sample(&in, NULL, NULL) != a[i]; }
    CHECK(different > 25 && other > 25);
    return 0;
}

static int frequencies_are_the_probabilities(void)
{
    float z[700];
    int count[700] = { 0 }, n = 100000, ids[5] = { 0, 255, 256, 511, 699 };
    double p5[5] = { 0.4, 0.3, 0.2, 0.09, 0.01 };
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 700, &p);
    for (int i = 0; i < 700; i++) z[i] = -INFINITY;
    for (int i = 0; i < 5; i++) z[ids[i]] = (float)(log(p5[i]) + 3);
    for (int i = 0; i < n; i++) { in.position = (uint64_t)i; count[g3__sample(&in, NULL, NULL)]++; }
    for (int i = 0; i < 5; i++) CHECK(fabs(count[ids[i]] - n * p5[i]) < 5 * sqrt(n * p5[i] * (1 - p5[i])));
    CHECK(count[0] + count[255] + count[256] + count[511] + count[699] == n);
    return 0;
}

static int a_share_rounded_up_to_one_draws_the_last_survivor(void)
{
    float z[2000];
    g3__draw d;
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 2000, &p);
    for (int i = 0; i < 2000; i++) z[i] = i == 3 || i == 400 ? 1.0f : -INFINITY;
    memset(&d, 0, sizeof d);
    g3__draw_init(&d, &in);
    g3__draw_filter(&d, &p);
    CHECK(g3__draw_pick(&d, 0) == 3 && g3__draw_pick(&d, 0.49) == 3 && g3__draw_pick(&d, 0.51) == 400);
    CHECK(g3__draw_pick(&d, 1) == 400 && g3__draw_pick(&d, 1 + 1e-15) == 400);
    return 0;
}

// ---- what may and may not be drawn

static int padded_rows_are_never_drawn(void)
{
    float z[320];
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 300, &p);
    for (int i = 0; i < 320; i++) z[i] = i < 300 ? (float)gauss() : i == 310 ? NAN : 1000;
    for (int k = 0; k < 8; k++) {
        p.greedy = k == 0;
        p.top_k = k & 1 ? 40 : -1;
        p.top_p = k & 2 ? 0.9f : -1;
        for (in.position = 0; in.position < 200; in.position++) {
            int id = g3__sample(&in, NULL, NULL);
            CHECK(id >= 0 && id < 300);
        }
    }
    return 0;
}

static int banned_ids_are_never_drawn_and_keep_their_logits(void)
{
    float z[50], before[50], lp;
    int banned[6] = { 3, 49, 3, 1000, -1, 3 };
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 50, &p);
    for (int i = 0; i < 50; i++) before[i] = z[i] = i == 3 || i == 49 ? 9.0f : (float)gauss();
    in.banned = banned;
    in.n_banned = 6;
    for (in.position = 0; in.position < 200; in.position++) {
        p.greedy = in.position & 1;
        int id = g3__sample(&in, &lp, NULL);
        CHECK(id >= 0 && id != 3 && id != 49);
        CHECK(!memcmp(z, before, sizeof z));
    }
    for (int i = 0; i < 50; i++) z[i] = i == 3 ? 1.0f : -INFINITY;
    memcpy(before, z, sizeof z);
    CHECK(g3__sample(&in, NULL, NULL) == G3_ERR_NUMERIC);
    CHECK(!memcmp(z, before, sizeof z));
    return 0;
}

static int logits_that_are_not_finite_are_an_error_that_names_the_token(void)
{
    float z[300];
    g3_error err = { G3_OK, "" };
    for (int k = 0; k < 8; k++) {
        g3_sampler p = off();
        p.greedy = k & 1;
        if (k & 2) p.top_k = 5;
        g3__sample_in in = sample_in(z, 300, &p);
        for (int i = 0; i < 300; i++) z[i] = (float)i / 100;
        z[137] = k & 4 ? INFINITY : NAN;
        err.code = G3_OK;
        CHECK(g3__sample(&in, NULL, &err) == G3_ERR_NUMERIC && err.code == G3_ERR_NUMERIC);
        CHECK(strstr(err.text, "137") && strstr(err.text, k & 4 ? "+Inf" : "NaN"));
        for (int i = 0; i < 300; i++) z[i] = -INFINITY;
        err.code = G3_OK;
        CHECK(g3__sample(&in, NULL, &err) == G3_ERR_NUMERIC && strstr(err.text, "-Inf"));
        CHECK(g3__sample(&in, NULL, NULL) == G3_ERR_NUMERIC);
        z[299] = -3;
        err.code = G3_OK;
        CHECK(g3__sample(&in, NULL, &err) == 299 && err.code == G3_OK);
    }
    return 0;
}

static int hook_calls, hook_vocab, hook_says;
static int even_only(void *user, float *z, int vocab)
{
    hook_calls++;
    hook_vocab = vocab;
    for (int i = 1; i < vocab; i += 2) z[i] = -INFINITY;
    if (user) z[*(int *)user] = NAN;
    return hook_says;
}

static int the_hook_sees_and_masks_logits_first(void)
{
    float z[40];
    int bad = 4;
    g3_error err = { G3_OK, "" };
    g3_sampler p = off();
    g3__sample_in in = sample_in(z, 33, &p);
    p.logits_fn = even_only;
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 40; i++) z[i] = i & 1 ? 50.0f : (float)gauss();
        p.greedy = round & 1;
        p.top_k = round & 2 ? 3 : -1;
        in.position = (uint64_t)round;
        int id = g3__sample(&in, NULL, &err);
        CHECK(id >= 0 && id < 33 && id % 2 == 0);
    }
    CHECK(hook_calls == 100 && hook_vocab == 33);
    hook_says = 1;
    CHECK(g3__sample(&in, NULL, &err) == G3_ERR_STOPPED && err.code == G3_OK);
    hook_says = 0;
    p.user = &bad;
    CHECK(g3__sample(&in, NULL, &err) == G3_ERR_NUMERIC && strstr(err.text, "token 4 "));
    return 0;
}

static int the_penalty_counts_an_id_once(void)
{
    float z[64];
    row a[64], b[64];
    int once[3] = { 1, 5, 63 }, often[11] = { 5, 1, 1, 63, 5, 1, -7, 64, 262144, 5, 1 };
    g3_sampler p = off();
    p.repeat_penalty = 1.5f;
    g3__sample_in in = sample_in(z, 64, &p);
    for (int i = 0; i < 64; i++) z[i] = (float)(i % 7) - 3;
    in.held = once;
    in.n_held = 3;
    int n = filtered(&in, a);
    in.held = often;
    in.n_held = 11;
    CHECK(n == 64 && filtered(&in, b) == 64);
    for (int i = 0; i < 64; i++) CHECK(a[i].z == b[i].z);
    CHECK(fabs(a[5].z / a[12].z - exp(2 / 1.5 - 2)) < 1e-6);     // ids 5 and 12 have logit 2
    CHECK(fabs(a[1].z / a[8].z - exp(-2 * 1.5 + 2)) < 1e-6);     // ids 1 and 8 have logit -2
    return 0;
}

// ---- numbers

static int exp_is_exact_to_a_unit(void)
{
    for (double x = -87.3; x <= 0; x += 0.00037) {
        float f = (float)x;
        double want = exp((double)f), got = (double)g3__exp(f);
        CHECK(fabs(got / want - 1) < 1.3e-7);
    }
    CHECK(g3__exp(0) == 1 && g3__exp(-88) == 0);
    return 0;
}

static int logprob_is_the_log_softmax_of_the_unfiltered_logits(void)
{
    float z[1000], lp;
    int held[2] = { 1, 2 };
    for (int round = 0; round < 200; round++) {
        g3_sampler p = random_sampler();
        p.greedy = round % 5 == 0;
        g3__sample_in in = sample_in(z, 1 + (int)(lcg() % 1000), &p);
        in.held = held;
        in.n_held = 2;
        random_logits(z, in.vocab);
        in.position = (uint64_t)round;
        int id = g3__sample(&in, &lp, NULL);
        double max = -1e300, sum = 0;
        for (int i = 0; i < in.vocab; i++) if ((double)z[i] > max) max = (double)z[i];
        for (int i = 0; i < in.vocab; i++) sum += exp((double)z[i] - max);
        double want = (double)z[id] - max - log(sum);
        CHECK(id >= 0 && fabs((double)lp - want) < 1e-6 * (1 + fabs(want)));
    }
    return 0;
}

// ---- settings

static int zeros_take_the_checkpoint_then_the_model_card(void)
{
    g3__generation_config gc;
    g3_sampler p, d;
    memset(&gc, 0, sizeof gc);
    memset(&p, 0, sizeof p);
    d = g3__sampler_defaults(NULL, NULL);
    CHECK(!d.greedy && d.temperature == 1 && d.top_k == 64 && d.top_p == 0.95f && d.min_p == 0 && d.repeat_penalty == 1);
    d = g3__sampler_defaults(&p, &gc);
    CHECK(!d.greedy && d.temperature == 1 && d.top_k == 64 && d.top_p == 0.95f && d.min_p == 0 && d.repeat_penalty == 1);
    gc.temperature = 0.5f; gc.top_k = 20; gc.top_p = 0.8f; gc.min_p = 0.1f; gc.repeat_penalty = 1.1f;
    d = g3__sampler_defaults(&p, &gc);
    CHECK(d.temperature == 0.5f && d.top_k == 20 && d.top_p == 0.8f && d.min_p == 0.1f && d.repeat_penalty == 1.1f);
    p.temperature = 2; p.top_k = -1; p.top_p = -1; p.min_p = 0.3f; p.repeat_penalty = 1; p.seed = 9;
    d = g3__sampler_defaults(&p, &gc);
    CHECK(d.temperature == 2 && d.top_k == -1 && d.top_p == -1 && d.min_p == 0.3f && d.repeat_penalty == 1 && d.seed == 9);
    gc.greedy = true;
    CHECK(!g3__sampler_defaults(&p, &gc).greedy);
    memset(&p, 0, sizeof p);
    CHECK(g3__sampler_defaults(&p, &gc).greedy && g3__sampler_defaults(NULL, &gc).greedy);
    return 0;
}

static int settings_that_mean_nothing_are_named(void)
{
    static const char *names[] = { "temperature", "top_p", "min_p", "repeat_penalty" };
    g3_error err;
    g3_sampler p = off();
    CHECK(g3__sampler_check(&p, NULL));
    for (int which = 0; which < 4; which++)
        for (int k = 0; k < 3; k++) {
            float bad = k == 0 ? NAN : k == 1 ? INFINITY : which == 0 || which == 3 ? -1.0f : 1.5f;
            memset(&err, 0, sizeof err);
            p = off();
            if (which == 0) p.temperature = bad;
            if (which == 1) p.top_p = bad;
            if (which == 2) p.min_p = bad;
            if (which == 3) p.repeat_penalty = bad;
            CHECK(!g3__sampler_check(&p, &err) && err.code == G3_ERR_ARGUMENT && strstr(err.text, names[which]));
        }
    return 0;
}

// ---- stop strings

// The contract, read literally: the first end at which a stop string ends, the longest of those that end there.
static int naive_stop(const char *text, int n, const char *const *stops, int n_stops, bool *stopped)
{
    for (int end = 1; end <= n; end++) {
        int longest = 0;
        for (int j = 0; j < n_stops; j++) {
            int size = (int)strlen(stops[j]);
            if (size <= end && !memcmp(text + end - size, stops[j], (size_t)size) && size > longest) longest = size;
        }
        if (longest) { *stopped = true; return end - longest; }
    }
    *stopped = false;
    return n;
}

static int naive_kept(const char *text, int n, const char *const *stops, int n_stops)    // the longest end that begins a stop string
{
    int kept = 0;
    for (int j = 0; j < n_stops; j++)
        for (int size = 1; size < (int)strlen(stops[j]) && size <= n; size++)
            if (!memcmp(text + n - size, stops[j], (size_t)size) && size > kept) kept = size;
    return kept;
}

static g3__stopper stopper;

// Cut `text` behind character i when bit i of `cuts` is set, and feed the pieces.
static int check_cut(const char *text, uint32_t cuts, const char *const *stops, int n_stops)
{
    char out[256];
    int n = (int)strlen(text), shown = 0, from = 0, character = 0;
    bool stopped;
    g3_error err = { G3_OK, "" };
    g3__str piece;
    CHECK(g3__stopper_init(&stopper, stops, n_stops, &err));
    for (int i = 0; i < n; ) {
        i += g3__utf8_size(text + i, text + n);
        if (i < n && !(cuts >> (character++ & 31) & 1)) continue;
        CHECK(g3__stopper_feed(&stopper, text + from, i - from, &piece, &err));
        memcpy(out + shown, piece.p, piece.n);
        shown += (int)piece.n;
        from = i;
        bool so_far;
        int all = naive_stop(text, i, stops, n_stops, &so_far);
        CHECK(so_far == stopper.stopped);
        CHECK(shown == (so_far ? all : i - naive_kept(text, i, stops, n_stops)));       // nothing is kept without need
        if (i % 3 == 0) {                                                                // an empty piece changes nothing
            CHECK(g3__stopper_feed(&stopper, "", 0, &piece, &err) && piece.n == 0);
        }
    }
    piece = g3__stopper_flush(&stopper);
    memcpy(out + shown, piece.p, piece.n);
    shown += (int)piece.n;
    CHECK(shown == naive_stop(text, n, stops, n_stops, &stopped));
    CHECK(stopped == stopper.stopped && !memcmp(out, text, (size_t)shown));
    return 0;
}

static int stop_strings_are_found_however_the_text_is_cut(void)
{
    static const char *const sets_of[][4] = {
        { "ab" }, { "aab" }, { "abab", "b" }, { "aba", "abc", "bab" }, { "aaaa" }, { "abcabd" }, { "b", "abb" }, { "\n\n", "a\n" },
        { "\303\251\303\250" }, { "\303\251", "a\303\251b" }, { "a", "a" }, { "abcdefghijk", "cdx", "def" } };
    static const char *const texts[] = {
        "aabaab", "abababab", "aaaaaaaab", "xxabcabcabdyy", "nothing", "a\n\nb\n", "ab", "b", "aaa", "abaabcab",
        "\303\251\303\251\303\250a", "a\303\250a\303\251b", "abcdefghi", "abcabcabcabd", "cdcdcdx" };
    for (int t = 0; t < (int)(sizeof texts / sizeof *texts); t++)
        for (int s = 0; s < (int)(sizeof sets_of / sizeof *sets_of); s++) {
            int n = 0;
            while (n < 4 && sets_of[s][n]) n++;
            for (uint32_t cuts = 0; cuts < 1u << G3__MIN(strlen(texts[t]) - 1, (size_t)12); cuts++) {
                int line = check_cut(texts[t], cuts, sets_of[s], n);
                if (line) { fprintf(stderr, "text \"%s\", set %d, cuts %x\n", texts[t], s, cuts); return line; }
            }
        }
    return 0;
}

static int random_stop_strings_over_two_letters(void)
{
    char text[41], stop[3][8];
    const char *stops[3] = { stop[0], stop[1], stop[2] };
    for (int round = 0; round < 5000; round++) {
        int n = 1 + (int)(lcg() % 40), k = 1 + (int)(lcg() % 3);
        for (int i = 0; i < n; i++) text[i] = (char)('a' + lcg() % 2);
        text[n] = 0;
        for (int j = 0; j < k; j++) {
            int size = 1 + (int)(lcg() % 7);
            for (int i = 0; i < size; i++) stop[j][i] = (char)('a' + lcg() % 2);
            stop[j][size] = 0;
        }
        int line = check_cut(text, lcg(), stops, k);
        if (line) { fprintf(stderr, "text \"%s\", stops \"%s\" \"%s\" \"%s\", %d\n", text, stop[0], stop[1], stop[2], k); return line; }
    }
    return 0;
}

static int without_stop_strings_text_passes_untouched(void)
{
    const char *text = "anything";
    g3__str out;
    CHECK(g3__stopper_init(&stopper, NULL, 0, NULL));
    CHECK(g3__stopper_feed(&stopper, text, 8, &out, NULL) && out.p == text && out.n == 8);
    CHECK(g3__stopper_flush(&stopper).n == 0 && !stopper.stopped);
    return 0;
}

static int nothing_comes_after_a_stop(void)
{
    const char *stops[1] = { "END" };
    g3__str out;
    CHECK(g3__stopper_init(&stopper, stops, 1, NULL));
    CHECK(g3__stopper_feed(&stopper, "one END two EN", 14, &out, NULL) && out.n == 4 && stopper.stopped);
    CHECK(g3__stopper_feed(&stopper, "three", 5, &out, NULL) && out.n == 0);
    CHECK(g3__stopper_flush(&stopper).n == 0);
    CHECK(g3__stopper_init(&stopper, stops, 1, NULL) && !stopper.stopped);               // and a new answer starts afresh
    CHECK(g3__stopper_feed(&stopper, "EN", 2, &out, NULL) && out.n == 0 && g3__stopper_flush(&stopper).n == 2);
    return 0;
}

static int stop_strings_that_cannot_be_are_argument_errors(void)
{
    static char long_one[G3__STOP_TOTAL + 2];
    const char *empty[2] = { "ok", "" }, *null[1] = { NULL }, *bad[1] = { "\251" }, *big[1] = { long_one }, *many[G3__STOP_COUNT + 1], *both[2] = { long_one, "x" };
    g3_error err;
    g3__str out;
    struct { const char *const *stops; int n; } wrong[7] = { { empty, 2 }, { null, 1 }, { bad, 1 }, { big, 1 }, { many, G3__STOP_COUNT + 1 }, { NULL, 1 }, { empty, -1 } };
    memset(long_one, 'x', G3__STOP_TOTAL + 1);
    for (int i = 0; i <= G3__STOP_COUNT; i++) many[i] = "s";
    for (int i = 0; i < 7; i++) {
        memset(&err, 0, sizeof err);
        CHECK(!g3__stopper_init(&stopper, wrong[i].stops, wrong[i].n, &err) && err.code == G3_ERR_ARGUMENT && strlen(err.text) > 10);
    }
    long_one[G3__STOP_TOTAL] = 0;                                 // the longest that fits, and its neighbour that does not
    CHECK(g3__stopper_init(&stopper, big, 1, NULL) && !g3__stopper_init(&stopper, both, 2, NULL));
    CHECK(g3__stopper_init(&stopper, many, G3__STOP_COUNT, NULL));
    CHECK(g3__stopper_init(&stopper, big, 1, NULL));
    for (int i = 0; i < 3; i++) CHECK(g3__stopper_feed(&stopper, long_one, G3__STOP_PIECE - 1, &out, NULL) && (i < 1 ? out.n == 0 : stopper.stopped));
    CHECK(g3__stopper_init(&stopper, many, 1, NULL));
    memset(&err, 0, sizeof err);
    CHECK(!g3__stopper_feed(&stopper, long_one, G3__STOP_PIECE + 1, &out, &err) && err.code == G3_ERR_FORMAT);
    return 0;
}

int main(void)
{
    RUN(filters_equal_the_reference_on_all_fixtures);
    RUN(draws_equal_a_full_sort);
    RUN(one_token_has_all_the_mass_of_a_large_vocabulary);
    RUN(logits_that_span_all_magnitudes);
    RUN(greedy_takes_the_lowest_id_of_the_largest);
    RUN(greedy_ignores_the_filters);
    RUN(top_k_1_is_argmax_and_its_ties_all_stay);
    RUN(the_coldest_temperature_is_greedy);
    RUN(settings_that_sink_every_logit_fall_back_on_the_largest);
    RUN(the_uniform_is_a_function_of_seed_and_position);
    RUN(same_seed_and_position_same_token);
    RUN(frequencies_are_the_probabilities);
    RUN(a_share_rounded_up_to_one_draws_the_last_survivor);
    RUN(padded_rows_are_never_drawn);
    RUN(banned_ids_are_never_drawn_and_keep_their_logits);
    RUN(logits_that_are_not_finite_are_an_error_that_names_the_token);
    RUN(the_hook_sees_and_masks_logits_first);
    RUN(the_penalty_counts_an_id_once);
    RUN(exp_is_exact_to_a_unit);
    RUN(logprob_is_the_log_softmax_of_the_unfiltered_logits);
    RUN(zeros_take_the_checkpoint_then_the_model_card);
    RUN(settings_that_mean_nothing_are_named);
    RUN(stop_strings_are_found_however_the_text_is_cut);
    RUN(random_stop_strings_over_two_letters);
    RUN(without_stop_strings_text_passes_untouched);
    RUN(nothing_comes_after_a_stop);
    RUN(stop_strings_that_cannot_be_are_argument_errors);
    return test_done();
}
