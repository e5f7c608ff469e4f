// Norms on the card against the plain C of the table.
#include "card.h"

static int a_norm_is_that_of_plain_c(void)
{
    enum { N = 3, DIM = 640 };
    static float x[N * DIM], y[N * DIM], want[N * DIM], gain[DIM], shift[DIM];
    static uint16_t w[DIM];
    if (!card_open("cc=80")) SKIP("no NVRTC here");
    for (int i = 0; i < N * DIM; i++) x[i] = sinf((float)i * 0.37f) * 3;
    for (int i = 0; i < DIM; i++) { w[i] = g3__f32_to_bf16(cosf((float)i)); gain[i] = 1 + g3__bf16_to_f32(w[i]); }
    g3__norm norm = G3__ZERO;
    norm.dim = DIM; norm.eps = 1e-6f; norm.w.format = G3__BF16; norm.w.data = w;
    for (int t = 0; t < N; t++) g3__cpu_norm_row(want + t * DIM, x + t * DIM, &norm, gain, shift);
    g3__norm there = card_norm(&norm);
    float *dx = (float *)card_copy(x, sizeof x), *dy = (float *)card_take(sizeof y);
    void *args[] = { &dy, &dx, &there };
    CHECK(g3__card_module(&card, "", &card_err));
    CHECK(g3__card_launch(&card, "g3k_norm", N, 1, 256, 0, args, &card_err));
    CHECK(card_from(y, dy, sizeof y));
    for (int i = 0; i < N * DIM; i++) CHECK(fabsf(y[i] - want[i]) < 2e-6f * fabsf(want[i]) + 1e-6f);
    card_close();
    return 0;
}

int main(void)
{
    RUN(a_norm_is_that_of_plain_c);
    return test_done();
}
