// The screened head against the whole one: what is among the largest is found, with the very numbers, for random and for the worst rows.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"
#include "run.h"

#ifdef G3__SIMD
enum { ROWS = 1040, COLS = 96, DRAWN = 1030 };            // the last unit holds one tile, and of that the last rows are never drawn

typedef struct head { g3__mat W; g3__screen s; uint16_t *tiles, *rows; rig g; float *whole, *found; } head;

static float weight(const head *h, int row, int col) { return g3__bf16_to_f32(h->rows[row * COLS + col]); }
static float rounded(const head *h, int row, int col)     // what the int8 copy says
{
    return h->s.scale[row] * (float)h->s.codes[((size_t)(row / 16) * COLS + (size_t)col) * 16 + (size_t)(row % 16)];
}

static void head_open(head *h, const g3__simd *v, int threads)
{
    memset(h, 0, sizeof *h);
    rig_simd = v;
    g3__shape shape = shape_of(1, COLS, 1, 1, 1, 2, 0, threads);
    shape.screen = ROWS;
    rig_open(&h->g, shape, NULL);
    h->rows = (uint16_t *)malloc(ROWS * COLS * 2);
    h->tiles = (uint16_t *)malloc(ROWS * COLS * 2);
    for (int i = 0; i < ROWS * COLS; i++) h->rows[i] = g3__f32_to_bf16(random_f32() * (1 + (float)(i / COLS % 7)));
    memset(h->rows + 5 * COLS, 0, COLS * 2);              // a row of zeros has no scale
    g3__tile_copy((char *)h->tiles, (const char *)h->rows, ROWS * COLS * 2, COLS * 2, 4);
    h->W.rows = ROWS; h->W.cols = COLS; h->W.n_segs = 1;
    h->W.seg[0].rows = ROWS;
    h->W.seg[0].bits.format = G3__BF16; h->W.seg[0].bits.data = h->tiles; h->W.seg[0].bits.tiled = true;
    h->s.rows = ROWS;
    h->s.codes = (int8_t *)malloc(ROWS * COLS);
    h->s.scale = (float *)malloc(ROWS * sizeof(float));
    h->s.bound = (float *)malloc(ROWS * sizeof(float));
    h->whole = (float *)malloc(ROWS * sizeof(float));
    h->found = (float *)malloc(ROWS * sizeof(float));
    g3__screen_make(v, h->g.pool, &h->W, &h->s);
}

static void head_close(head *h)
{
    rig_close(&h->g);
    free(h->rows); free(h->tiles); free(h->s.codes); free(h->s.scale); free(h->s.bound); free(h->whole); free(h->found);
}

// Screened and whole: the k largest of the drawn rows are there, bit for bit; what is not there is -infinity and smaller than they are.
static int same_largest(head *h, const float *x, int k, int *missing)
{
    static float sorted[ROWS];
    h->g.r.op->linear(&h->g.r, h->whole, x, NULL, &h->W, 1);
    h->g.r.op->screen(&h->g.r, h->found, x, NULL, &h->W, &h->s, DRAWN, k);
    memcpy(sorted, h->whole, DRAWN * sizeof *sorted);
    const float least = g3__kth_largest(sorted, DRAWN, k);
    *missing = 0;
    for (int i = 0; i < DRAWN; i++) {
        if (!memcmp(&h->found[i], &h->whole[i], sizeof(float))) continue;
        if (h->found[i] != -HUGE_VALF || h->whole[i] >= least) { fprintf(stderr, "k %d: row %d is %.9g, not %.9g; the k-th is %.9g\n", k, i, (double)h->found[i], (double)h->whole[i], (double)least); return __LINE__; }
        ++*missing;
    }
    return 0;
}

static const g3__simd *loops;

static int fifty_thousand_steps(void)
{
    static const int want[] = { 1, 2, 5, 17 };            // more than the 17 units: the whole head
    int64_t out = 0;
    head h;
    head_open(&h, loops, 2);
    for (int i = 0; i < 50000; i++) {
        float x[COLS];
        int missing, line;
        for (int c = 0; c < COLS; c++) x[c] = random_f32() * (c % 13 ? 1 : 20);
        if (i % 2) for (int c = 0; c < COLS; c++) x[c] += 3 * weight(&h, i % DRAWN, c);           // one row stands out, as in a model that knows what it wants
        line = same_largest(&h, x, want[i % 4], &missing);
        if (line) { head_close(&h); return line; }
        out += missing;
    }
    printf("    of %d rows %.1f were left on average\n", DRAWN, DRAWN - (double)out / 50000);
    CHECK(out > 50000 * (int64_t)(DRAWN / 4));            // it does spare work
    head_close(&h);
    return 0;
}

// |W x - copy x| <= bound |x|, in double; and along what the rounding took away nearly all of the bound is used.
static int no_row_leaves_its_bound(void)
{
    double used = 0;
    head h;
    head_open(&h, loops, 1);
    for (int r = 0; r < ROWS; r++)
        for (int kind = 0; kind < 4; kind++) {
            double y = 0, near = 0, size = 0;
            for (int c = 0; c < COLS; c++) {
                const double w = (double)weight(&h, r, c), q = (double)rounded(&h, r, c), x = kind ? (double)random_f32() : w - q;
                y += w * x; near += q * x; size += x * x;
            }
            if (r != 5) CHECK(fabs(y - near) <= (double)h.s.bound[r] * sqrt(size));
            if (kind == 0 && r != 5) used += fabs(y - near) / ((double)h.s.bound[r] * sqrt(size)) / ROWS;
        }
    CHECK(used > 0.9);
    head_close(&h);
    return 0;
}

// The worst case: row r wins by a hair, and x lies along all that r lost in rounding, or the others gained.
static int adversarial_rows_at_the_bound(void)
{
    head h;
    head_open(&h, loops, 1);
    for (int r = 16; r < DRAWN; r++) {
        for (int sign = -1; sign <= 1; sign += 2)
            for (int k = 1; k <= 3; k++) {
                float x[COLS];
                int missing;
                for (int c = 0; c < COLS; c++) x[c] = (float)sign * (weight(&h, r, c) - rounded(&h, r, c)) * 1000 + 0.01f * weight(&h, (r * 7 + 3) % DRAWN, c);
                const int line = same_largest(&h, x, k, &missing);
                if (line) { head_close(&h); return line; }
            }
    }
    head_close(&h);
    return 0;
}

static int what_is_not_finite_is_not_hidden(void)
{
    head h;
    float x[COLS] = { 0 };
    head_open(&h, loops, 1);
    x[3] = NAN;
    h.g.r.op->screen(&h.g.r, h.found, x, NULL, &h.W, &h.s, DRAWN, 1);
    CHECK(h.found[0] != h.found[0]);
    x[3] = 0;
    int missing, line = same_largest(&h, x, 3, &missing); // all equal: nothing may go
    CHECK(line == 0 && missing == 0);
    head_close(&h);
    return 0;
}

int main(void)
{
    for (int i = 0; i < G3__COUNT(g3__simds); i++) {
        loops = &g3__simds[i];
        printf("%s%s\n", loops->name, loops->here() ? "" : ": not on this machine");
        if (!loops->here()) continue;
        RUN(fifty_thousand_steps);
        RUN(no_row_leaves_its_bound);
        RUN(adversarial_rows_at_the_bound);
        RUN(what_is_not_finite_is_not_hidden);
    }
    return test_done();
}
#else
static int there_are_no_vector_units(void) { SKIP("this machine or this build has none"); }
int main(void) { RUN(there_are_no_vector_units); return test_done(); }
#endif
