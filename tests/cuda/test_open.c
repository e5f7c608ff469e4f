// Opening and closing a card, on the emulated one: where the driver is looked for, one sentence for each thing that is missing, the caller's
// context, errors that nothing survives, the card's memory; and each call of the driver made to fail once.
#include "seam.h"

// ---- where the driver is

static int a_driver_is_found_in_every_place(void)
{
    static const char *const places[] = { "/one/libcuda.so.1", "/two/libcuda.so", "libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1" };
    for (int i = 0; i < G3__COUNT(places); i++) {
        if (!seam_begin("")) SKIP("no NVRTC here");
        seam.hide = true;
        seam.driver = places[i];
        card_desc.libraries = "/one::/two";
        CHECK(seam_open());
        CHECK(strstr(seam_log, places[i]));
        g3__card_close(&card);
        CHECK(seam_nothing_left());
    }
    return 0;
}

static int named_directories_come_first(void)
{
    if (!seam_begin("")) SKIP("no NVRTC here");
    seam.hide = true;
    card_desc.libraries = "/one:/two";
    CHECK(!seam_open());
    CHECK(!strncmp(seam.tried, "/one/libcuda.so.1\n/one/libcuda.so\n/two/libcuda.so.1\n/two/libcuda.so\nlibcuda.so.1\n", 80));
    return 0;
}

static int a_path_that_is_too_long_is_passed_over(void)
{
    static char dirs[4096];
    if (!seam_begin("")) SKIP("no NVRTC here");
    memset(dirs, 'x', 3000);
    strcpy(dirs + 3000, ":/two");
    seam.hide = true;
    seam.driver = "/two/libcuda.so.1";
    card_desc.libraries = dirs;
    CHECK(seam_open());
    g3__card_close(&card);
    return 0;
}

// ---- what may be missing

static int no_driver_is_one_sentence(void)
{
    if (!seam_begin("")) SKIP("no NVRTC here");
    seam.hide = true;
    CHECK(!seam_open() && seam_said(G3_ERR_DEVICE, "there is no CUDA driver here: libcuda.so.1"));
    g3__card_close(&card);                               // harmless
    return 0;
}

static int no_card_is_one_sentence(void)
{
    if (!seam_begin("devices=0")) SKIP("no NVRTC here");
    CHECK(!seam_open() && seam_said(G3_ERR_DEVICE, "it finds no card"));
    return 0;
}

static int an_ordinal_that_is_not_there_is_one_sentence(void)
{
    if (!seam_begin("devices=2")) SKIP("no NVRTC here");
    card_desc.device = 2;
    CHECK(!seam_open() && seam_said(G3_ERR_ARGUMENT, "device: there is no card 2 here; 0 to 1 can be asked for"));
    card_desc.device = -1;
    CHECK(!seam_open() && seam_said(G3_ERR_ARGUMENT, "no card -1"));
    card_desc.device = 1;
    CHECK(seam_open());
    g3__card_close(&card);
    return 0;
}

static int an_old_driver_is_one_sentence(void)
{
    if (!seam_begin("driver=11080")) SKIP("no NVRTC here");
    CHECK(!seam_open() && seam_said(G3_ERR_DEVICE, "it is of CUDA 11.8, and 12.0 is needed"));
    if (!seam_begin("driver=11030")) SKIP("no NVRTC here");
    seam.lacks = "cuGraphInstantiateWithFlags";
    CHECK(!seam_open() && seam_said(G3_ERR_DEVICE, "it is of CUDA 11.3 and has no cuGraphInstantiateWithFlags, and 12.0"));
    if (!seam_begin("")) SKIP("no NVRTC here");
    seam.lacks = "cuGetErrorName";                       // not even that
    CHECK(!seam_open() && seam_said(G3_ERR_DEVICE, "too old"));
    if (!seam_begin("driver=12000")) SKIP("no NVRTC here");
    CHECK(seam_open());
    g3__card_close(&card);
    return 0;
}

static int an_old_card_is_one_sentence(void)
{
    if (!seam_begin("cc=75,name=GeForce RTX 2080")) SKIP("no NVRTC here");
    CHECK(!seam_open() && seam_said(G3_ERR_DEVICE, "card 0, GeForce RTX 2080, is too old: it has compute capability 7.5, and 8.0 is needed"));
    CHECK(seam_nothing_left());
    return 0;
}

static int opening_says_what_card_it_is(void)
{
    if (!seam_begin("cc=120,sms=170,driver=12080,name=RTX")) SKIP("no NVRTC here");
    CHECK(seam_open());
    CHECK(card.cc == 120 && card.sms == 170 && card.driver == 12080 && card.shared_most == 101376 && !strcmp(card.name, "RTX"));
    CHECK(strstr(seam_log, "card 0: RTX, compute capability 12.0, 170 multiprocessors, driver of CUDA 12.8"));
    CHECK(!strstr(seam.tried, "nvrtc"));                 // nothing is to be compiled yet
    g3__card_close(&card);
    return 0;
}

// ---- the stream and the context

static int the_stream_has_the_lowest_priority_and_does_not_block(void)
{
    if (!seam_begin("")) SKIP("no NVRTC here");
    CHECK(seam_open());
    CHECK(seam.flags == 1 && seam.priority == 0);        // of 0 (lowest) to -5
    g3__card_close(&card);
    return 0;
}

static bool is_current(void *context)
{
    void *now = NULL;
    return card.cu.cuCtxGetCurrent(&now) == 0 && now == context;
}

// All calls once; the context that was current is so again after each.
static int calls_restore(void *mine)
{
    char bytes[64] = "";
    CHECK(is_current(mine));
    void *there = g3__card_take(&card, 64, &card_err);
    CHECK(there && is_current(mine));
    void *pinned = g3__card_pinned(&card, 64, &card_err);
    CHECK(pinned && is_current(mine));
    CHECK(g3__card_up(&card, there, bytes, 64, &card_err) && is_current(mine));
    CHECK(g3__card_down(&card, pinned, there, 64, &card_err) && is_current(mine));
    CHECK(g3__card_sync(&card, &card_err) && is_current(mine));
    CHECK(g3__card_free_bytes(&card) && is_current(mine));
    CHECK(g3__card_module(&card, "", &card_err) && is_current(mine));
    CHECK(!g3__card_take(&card, (uint64_t)1 << 50, &card_err) && is_current(mine));
    g3__card_give(&card, there);
    CHECK(is_current(mine));
    g3__card_pinned_give(&card, pinned);
    CHECK(is_current(mine));
    return 0;
}

static int the_callers_context_is_restored(void)
{
    int (*create)(void **, unsigned, int), (*destroy)(void *), (*get)(void **);
    void *mine = NULL, *now = NULL;
    if (!seam_begin("cc=80")) SKIP("no NVRTC here");
    CHECK(seam_open() && is_current(NULL));              // none was current
    int line = calls_restore(NULL);
    if (line) return line;
    void *lib = card.cu.lib;
    CHECK(g3__library_symbol(lib, "cuCtxCreate_v2", (void *)&create) && g3__library_symbol(lib, "cuCtxDestroy_v2", (void *)&destroy) && g3__library_symbol(lib, "cuCtxGetCurrent", (void *)&get));
    g3__card_close(&card);
    CHECK(get(&now) == 0 && !now);
    CHECK(create(&mine, 0, 0) == 0);                     // one of the caller's own was
    CHECK(seam_open() && is_current(mine));
    if ((line = calls_restore(mine)) != 0) return line;
    card_desc.device = 9;
    g3__card other;
    CHECK(!g3__card_open(&other, &card_desc, &card_heap, &card_err) && is_current(mine));
    card_desc.device = 0;
    g3__card_close(&card);
    CHECK(get(&now) == 0 && now == mine && destroy(mine) == 0);
    CHECK(seam_nothing_left());
    return 0;
}

static int entering_may_be_nested(void)
{
    void *outer, *inner, *there;
    if (!seam_begin("")) SKIP("no NVRTC here");
    CHECK(seam_open());
    CHECK(g3__card_enter(&card, &outer, &card_err) && !outer && is_current(card.context));
    CHECK(g3__card_enter(&card, &inner, &card_err) && inner == card.context);
    CHECK((there = g3__card_take(&card, 100, &card_err)) != NULL && is_current(card.context));
    g3__card_give(&card, there);
    g3__card_leave(&card, inner);
    CHECK(is_current(card.context));
    g3__card_leave(&card, outer);
    CHECK(is_current(NULL));
    g3__card_close(&card);
    return 0;
}

static int two_cards_share_the_process_context(void)
{
    g3__card other;
    if (!seam_begin("")) SKIP("no NVRTC here");
    CHECK(seam_open() && g3__card_open(&other, &card_desc, &card_heap, &card_err));
    g3__card_close(&card);
    void *p = g3__card_take(&other, 100, &card_err);
    CHECK(p);
    g3__card_give(&other, p);
    g3__card_close(&other);
    CHECK(seam_nothing_left());
    return 0;
}

// ---- each call of the driver fails once

static void forget_current(void)                         // a context that could not be left stays current, dead or not
{
    int (*set)(void *);
    void *lib = g3__library_open(FAKECUDA_DIR "/libcuda.so.1");
    if (lib && g3__library_symbol(lib, "cuCtxSetCurrent", (void *)&set)) set(NULL);
}

// With one failure planned, opens the card, and takes, copies, waits, gives and closes as far as it gets.
static bool whole_life(void)
{
    char bytes[64] = "";
    void *a = NULL, *p = NULL;
    bool ok = seam_open();
    if (ok) {
        a = g3__card_take(&card, 64, &card_err);
        p = g3__card_pinned(&card, 64, &card_err);
        ok = a && p && g3__card_up(&card, a, bytes, 64, &card_err) && g3__card_down(&card, p, a, 64, &card_err) && g3__card_sync(&card, &card_err);
        g3__card_give(&card, a);
        g3__card_pinned_give(&card, p);
    }
    g3__card_close(&card);
    return ok;
}

static int every_driver_call_may_fail(void)
{
    static const struct { const char *call; int times; } calls[] = { { "cuDriverGetVersion", 1 }, { "cuInit", 1 }, { "cuDeviceGetCount", 1 }, { "cuDeviceGet", 1 }, { "cuDeviceGetName", 1 },
        { "cuDeviceGetAttribute", 4 }, { "cuDevicePrimaryCtxRetain", 1 }, { "cuCtxGetCurrent", 6 }, { "cuCtxSetCurrent", 11 }, { "cuCtxGetStreamPriorityRange", 1 }, { "cuStreamCreateWithPriority", 1 },
        { "cuMemAlloc_v2", 1 }, { "cuMemHostAlloc", 1 }, { "cuMemcpyHtoDAsync_v2", 1 }, { "cuMemcpyDtoHAsync_v2", 1 }, { "cuStreamSynchronize", 1 } };
    static const int codes[] = { 1, 2, 46, 700, 719, 999 };
    int failures = 0;
    for (int i = 0; i < G3__COUNT(calls); i++)
        for (int k = 0; k < G3__COUNT(codes); k++)
            for (int at = 1; at <= calls[i].times; at++) {
                char fail[128], words[64];
                snprintf(fail, sizeof fail, "fail=%s:%d:%d", calls[i].call, at, codes[k]);
                if (!seam_begin(fail)) SKIP("no NVRTC here");
                const bool ok = whole_life(), leaves = !strcmp(calls[i].call, "cuCtxSetCurrent") && at % 2 == 0;         // nobody is told that leaving failed
                snprintf(words, sizeof words, "%s answered %d (", calls[i].call, codes[k]);
                if (codes[k] == 2 && !strcmp(calls[i].call, "cuMemAlloc_v2")) snprintf(words, sizeof words, "gives no 64 bytes");
                if (codes[k] == 2 && !strcmp(calls[i].call, "cuMemHostAlloc")) snprintf(words, sizeof words, "pinned host memory");
                CHECK(ok || seam_said(codes[k] != 2 ? G3_ERR_DEVICE : strcmp(calls[i].call, "cuMemHostAlloc") ? G3_ERR_VRAM : G3_ERR_MEMORY, leaves ? "" : words));
                if (ok && !leaves) fprintf(stderr, "%s was not noticed\n", fail);
                CHECK(!ok || leaves);
                CHECK(seam_nothing_left());
                failures += !ok;
                if (!seam_begin("")) return __LINE__;
                CHECK(whole_life() && seam_nothing_left());  // and the process lives on
                forget_current();
            }
    printf("    %d failures\n", failures);
    CHECK(failures > 150);
    return 0;
}

static int closing_goes_on_when_its_calls_fail(void)
{
    static const char *const calls[] = { "cuCtxGetCurrent", "cuCtxSetCurrent", "cuStreamDestroy_v2", "cuDevicePrimaryCtxRelease_v2", "cuMemFree_v2", "cuMemFreeHost" };
    for (int i = 0; i < G3__COUNT(calls); i++) {
        char value[64];
        if (!seam_begin("")) SKIP("no NVRTC here");
        CHECK(seam_open());
        void *a = g3__card_take(&card, 64, &card_err), *p = g3__card_pinned(&card, 64, &card_err);
        CHECK(a && p);
        snprintf(value, sizeof value, "%s:1:999", calls[i]);
        CHECK(fake.set("fail", value) == 1);
        g3__card_give(&card, a);
        g3__card_pinned_give(&card, p);
        g3__card_close(&card);
        CHECK(!card.context && !card_heap.live);
    }
    return 0;
}

// ---- errors that nothing survives

static int a_dead_context_is_told_once_and_then_remembered(void)
{
    static const int dead[] = { 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 214, 220, 226, 4 };
    for (int i = 0; i < G3__COUNT(dead); i++) {
        char value[64], words[128];
        void *before, *p;
        if (!seam_begin("")) SKIP("no NVRTC here");
        CHECK(seam_open() && (p = g3__card_take(&card, 256, &card_err)) != NULL);
        snprintf(value, sizeof value, "cuStreamSynchronize:1:%d", dead[i]);
        CHECK(fake.set("fail", value) == 1);
        CHECK(!g3__card_sync(&card, &card_err));
        snprintf(words, sizeof words, "cuStreamSynchronize answered %d (", dead[i]);
        CHECK(seam_said(G3_ERR_DEVICE, words) && strstr(card_err.text, "has died of it") && card.dead == dead[i]);
        snprintf(words, sizeof words, "the card's context died earlier: cuStreamSynchronize answered %d (", dead[i]);
#define IT_IS_KNOWN(call) do { g3__error_clear(&card_err); CHECK(!(call)); CHECK(seam_said(G3_ERR_DEVICE, words)); } while (0)
        IT_IS_KNOWN(g3__card_sync(&card, &card_err));
        IT_IS_KNOWN(g3__card_take(&card, 1, &card_err));
        IT_IS_KNOWN(g3__card_pinned(&card, 1, &card_err));
        IT_IS_KNOWN(g3__card_up(&card, p, value, 1, &card_err));
        IT_IS_KNOWN(g3__card_down(&card, value, p, 1, &card_err));
        IT_IS_KNOWN(g3__card_enter(&card, &before, &card_err));
        IT_IS_KNOWN(g3__card_module(&card, "", &card_err));
        IT_IS_KNOWN(g3__card_launch(&card, "g3k_norm", 1, 1, 32, 0, NULL, &card_err));
        CHECK(!g3__card_free_bytes(&card));
        g3__card_give(&card, p);
        g3__card_close(&card);
        CHECK(seam_nothing_left());
    }
    return 0;
}

static int other_errors_do_not_stick(void)
{
    static const int codes[] = { 1, 2, 201, 400, 600, 701, 708, 712, 713, 720, 801, 999 };
    for (int i = 0; i < G3__COUNT(codes); i++) {
        char value[64];
        if (!seam_begin("")) SKIP("no NVRTC here");
        CHECK(seam_open());
        snprintf(value, sizeof value, "cuStreamSynchronize:1:%d", codes[i]);
        CHECK(fake.set("fail", value) == 1);
        CHECK(!g3__card_sync(&card, &card_err) && seam_said(codes[i] == 2 ? G3_ERR_VRAM : G3_ERR_DEVICE, "cuStreamSynchronize answered"));
        g3__error_clear(&card_err);
        CHECK(!card.dead && g3__card_sync(&card, &card_err));
        g3__card_close(&card);
        CHECK(seam_nothing_left());
    }
    return 0;
}

static int a_fault_of_a_kernel_is_told(void)
{
    g3__norm norm = G3__ZERO;
    float *wild = (float *)(uintptr_t)0x10;
    void *args[] = { &wild, &wild, &norm }, *before;
    if (!seam_begin("cc=80")) SKIP("no NVRTC here");
    norm.dim = 32;
    CHECK(seam_open() && g3__card_module(&card, "", &card_err) && g3__card_enter(&card, &before, &card_err));
    CHECK(g3__card_launch(&card, "g3k_norm", 1, 1, 32, 0, args, &card_err));
    CHECK(!g3__card_sync(&card, &card_err) && seam_said(G3_ERR_DEVICE, "cuStreamSynchronize answered 700 (CUDA_ERROR_ILLEGAL_ADDRESS"));
    g3__error_clear(&card_err);
    CHECK(!g3__card_launch(&card, "g3k_norm", 1, 1, 32, 0, args, &card_err) && seam_said(G3_ERR_DEVICE, "died earlier"));
    g3__card_leave(&card, before);
    g3__card_close(&card);
    CHECK(seam_nothing_left());
    fake.reports_clear();
    return 0;
}

// ---- memory

static int memory_goes_to_the_card_and_back(void)
{
    enum { N = 5000 };
    static unsigned char here[N], back[N];
    if (!seam_begin("memory=1G,reserved=200M")) SKIP("no NVRTC here");
    CHECK(seam_open());
    const uint64_t all = g3__card_free_bytes(&card);
    CHECK(all > 0 && all <= (uint64_t)824 << 20);
    for (int i = 0; i < N; i++) here[i] = (unsigned char)(i * 7);
    char *there = (char *)g3__card_take(&card, N, &card_err);
    unsigned char *pinned = (unsigned char *)g3__card_pinned(&card, N, &card_err);
    CHECK(there && pinned && g3__card_free_bytes(&card) < all);
    CHECK(g3__card_up(&card, there, here, N, &card_err) && g3__card_down(&card, pinned, there, N, &card_err) && g3__card_sync(&card, &card_err));
    CHECK(!memcmp(here, pinned, N));
    CHECK(g3__card_down(&card, back, there + 100, N - 100, &card_err) && g3__card_sync(&card, &card_err) && !memcmp(here + 100, back, N - 100));
    CHECK(g3__card_up(&card, there, here, 0, &card_err) && g3__card_down(&card, back, there, 0, &card_err));
    g3__card_give(&card, there);
    g3__card_give(&card, NULL);
    g3__card_pinned_give(&card, pinned);
    g3__card_pinned_give(&card, NULL);
    CHECK(g3__card_free_bytes(&card) == all);
    void *none = g3__card_take(&card, 0, &card_err);     // nothing is something to give back
    CHECK(none);
    g3__card_give(&card, none);
    g3__card_close(&card);
    CHECK(seam_nothing_left() && fake_clean());
    return 0;
}

static int too_much_memory_says_how_much_there_is(void)
{
    char words[128];
    if (!seam_begin("memory=1G,name=Small card")) SKIP("no NVRTC here");
    CHECK(seam_open());
    const uint64_t all = g3__card_free_bytes(&card);
    snprintf(words, sizeof words, "Small card gives no 1073741825 bytes of memory: %llu of its 1073741824 are free", (unsigned long long)all);
    CHECK(!g3__card_take(&card, ((uint64_t)1 << 30) + 1, &card_err) && seam_said(G3_ERR_VRAM, words));
    g3__error_clear(&card_err);
    CHECK(!g3__card_take(&card, UINT64_MAX, &card_err) && seam_said(G3_ERR_VRAM, "18446744073709551615 bytes"));
    g3__error_clear(&card_err);
    fake.set("fail", "cuMemAlloc_v2:1:2");               // and where even that cannot be asked
    fake.set("fail", "cuMemGetInfo_v2:1:999");
    CHECK(!g3__card_take(&card, 77, &card_err) && seam_said(G3_ERR_VRAM, "Small card has no 77 bytes"));
    fake.set("fail", "cuMemGetInfo_v2:1:999");
    CHECK(g3__card_free_bytes(&card) == 0 && g3__card_free_bytes(&card) == all && !card.dead);
    void *p = g3__card_take(&card, all / 2, &card_err);
    CHECK(p);
    g3__card_give(&card, p);
    g3__card_close(&card);
    CHECK(seam_nothing_left());
    return 0;
}

int main(void)
{
    RUN(a_driver_is_found_in_every_place);
    RUN(named_directories_come_first);
    RUN(a_path_that_is_too_long_is_passed_over);
    RUN(no_driver_is_one_sentence);
    RUN(no_card_is_one_sentence);
    RUN(an_ordinal_that_is_not_there_is_one_sentence);
    RUN(an_old_driver_is_one_sentence);
    RUN(an_old_card_is_one_sentence);
    RUN(opening_says_what_card_it_is);
    RUN(the_stream_has_the_lowest_priority_and_does_not_block);
    RUN(the_callers_context_is_restored);
    RUN(entering_may_be_nested);
    RUN(two_cards_share_the_process_context);
    RUN(every_driver_call_may_fail);
    RUN(closing_goes_on_when_its_calls_fail);
    RUN(a_dead_context_is_told_once_and_then_remembered);
    RUN(other_errors_do_not_stick);
    RUN(a_fault_of_a_kernel_is_told);
    RUN(memory_goes_to_the_card_and_back);
    RUN(too_much_memory_says_how_much_there_is);
    return test_done();
}
