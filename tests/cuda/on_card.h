// on_card.h: included before a test of whole models, it lets every model run on a card: the emulated one, whose checks must report nothing.
#ifndef ON_CARD
#define ON_CARD
#include "fake.h"
#include <sys/stat.h>
#include <unistd.h>

static void on_card_end(void)          // nothing was left behind
{
    if (fake.leaks && fake.leaks()) { fflush(stdout); _exit(1); }
}

static void on_card(g3_model_desc *d)
{
    static bool there;
    if (d->backend == G3_BACKEND_CPU || d->no_weights) return;
    if (!there && !fake_card(getenv("CARD") ? getenv("CARD") : "cc=80")) { printf("0 passed, 0 failed, 1 skipped\n"); exit(0); }     // no compiler here
    if (!there) atexit(on_card_end);
    there = true;
    d->backend = G3_BACKEND_CUDA;
    d->libraries = card_libraries();
    mkdir("build/cuda/kernels", 0777);
    d->cache_dir = "build/cuda/kernels";                 // compiled once for all tests
}

static bool on_card_holds(void)
{
    const bool clean = fake_clean();
    if (fake.reports_clear) fake.reports_clear();
    return clean;
}
#define TEST_HOLDS() on_card_holds()
#endif
