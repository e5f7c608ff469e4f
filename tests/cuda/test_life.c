// A model's whole life on a card: its memory to the byte, cards too small, and every call of the driver made to fail once.
#include "on_card.h"
#include "../model/tiny.h"

static char said[1 << 14];

static void listen(void *user, g3_level level, const char *text)
{
    (void)user; (void)level;
    const size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", text);
}

typedef struct life { g3_backend backend, ran; g3_result code; char text[504]; uint64_t total, taken; float logit; } life;

static uint64_t card_room(const g3_model *m) { return m->card ? g3__card_free_bytes(m->card) : 0; }

// Opens, adds a prompt, writes three tokens, closes.
static life live(g3_backend backend)
{
    static const int ids[] = { 2, 20, 30, 40, 50, 60, 70, 80, 90, 100 };
    g3_error err = G3__ZERO;
    g3_model_desc d = G3__ZERO;
    g3_session_desc sd = G3__ZERO;
    life l = G3__ZERO;
    said[0] = 0;
    d.path = golden("text/tiny/t2-bf16-mm-old");
    d.no_vision = true;
    d.precise = true;
    d.threads = 1;
    d.logger.log_fn = listen;
    on_card(&d);
    d.backend = backend;
    sd.context = 64;
    sd.batch = 16;
    d.session = &sd;
    g3_model *m = g3_model_open(&d, &err);
    g3_session *s = m ? g3_session_open(m, &sd, &err) : NULL;
    if (s) {
        const g3_plan p = g3_model_get_plan(m);
        l.ran = p.backend;
        l.total = p.total;
        l.taken = p.available - card_room(m);
    }
    const float *z = NULL;
    if (s && g3_add_tokens(s, ids, 10, &err) == G3_OK)
        for (int i = 0; i < 3 && (i == 0 || z); i++) z = g3_add_tokens(s, ids + i, 1, &err) == G3_OK ? g3_logits(s, &err) : NULL;
    if (z) l.logit = z[7];
    g3_session_close(s);
    g3_model_close(m);
    l.code = err.code;
    memcpy(l.text, err.text, sizeof l.text);
    return l;
}

static int the_card_gives_what_the_plan_says(void)
{
    if (!fake_card("cc=80,memory=24117248000")) SKIP("no NVRTC here");
    const life l = live(G3_BACKEND_CUDA);
    CHECK(l.code == G3_OK && l.ran == G3_BACKEND_CUDA && l.total > 0);
    printf("    planned %llu bytes, taken %llu\n", (unsigned long long)l.total, (unsigned long long)l.taken);
    CHECK(l.taken == l.total);
    return 0;
}

static int a_card_too_small_says_what_would_fit(void)
{
    char fields[64];
    if (!fake_card("cc=80")) SKIP("no NVRTC here");
    const life whole = live(G3_BACKEND_CUDA);
    CHECK(whole.code == G3_OK);
    snprintf(fields, sizeof fields, "cc=80,memory=%llu", (unsigned long long)(whole.total - 1));
    CHECK(fake_card(fields));
    const life l = live(G3_BACKEND_CUDA);
    CHECK(l.code == G3_ERR_VRAM && strstr(l.text, "bytes too few") && strstr(l.text, "would fit"));
    const life other = live(G3_BACKEND_AUTO);
    CHECK(other.code == G3_OK && other.ran == G3_BACKEND_CPU && strstr(said, "no card: "));
    return 0;
}

static int auto_takes_the_card_where_all_fits(void)
{
    if (!fake_card("cc=80")) SKIP("no NVRTC here");
    const life l = live(G3_BACKEND_AUTO), cpu = live(G3_BACKEND_CPU);
    CHECK(l.code == G3_OK && l.ran == G3_BACKEND_CUDA && cpu.ran == G3_BACKEND_CPU && fabsf(l.logit - cpu.logit) < 2e-4f);
    return 0;
}

// The k-th call of each kind fails, for every k up to where there is no such call; late ones by growing steps.
static int every_call_of_the_driver_may_fail(void)
{
    static const char *const calls[] = { "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuStreamCreateWithPriority", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuModuleGetGlobal_v2",
        "cuMemGetInfo_v2", "cuMemAlloc_v2", "cuMemHostAlloc", "cuEventCreate", "cuEventRecord", "cuEventSynchronize", "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemsetD8Async",
        "cuStreamSynchronize", "cuLaunchKernel", "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch" };
    static const int codes[] = { 2, 719 };
    int failures = 0;
    for (int i = 0; i < G3__COUNT(calls); i++)
        for (int c = 0; c < 2; c++)
            for (int k = 1, step = 1; ; k += step, step += k > 4) {
                char fields[96];
                snprintf(fields, sizeof fields, "cc=80,fail=%s:%d:%d", calls[i], k, codes[c]);
                if (!fake_card(fields)) SKIP("no NVRTC here");
                const life l = live(G3_BACKEND_CUDA);
                fake.reports_clear();
                if (fake.leaks()) fprintf(stderr, "    %s: %ld left behind\n", fields, fake.leaks());
                CHECK(!fake.leaks());
                fake.reports_clear();
                if (l.code == G3_OK) break;              // not so many calls, or one that may fail
                failures++;
                if (!*l.text || (l.code != G3_ERR_DEVICE && l.code != G3_ERR_VRAM && l.code != G3_ERR_MEMORY)) fprintf(stderr, "    %s: %d %s\n", fields, l.code, l.text);
                CHECK(*l.text && (l.code == G3_ERR_DEVICE || l.code == G3_ERR_VRAM || l.code == G3_ERR_MEMORY));
            }
    printf("    %d failures survived\n", failures);
    CHECK(failures > 60);
    CHECK(fake_card("cc=80") && live(G3_BACKEND_CUDA).code == G3_OK);
    return 0;
}

int main(void)
{
    RUN(the_card_gives_what_the_plan_says);
    RUN(a_card_too_small_says_what_would_fit);
    RUN(auto_takes_the_card_where_all_fits);
    RUN(every_call_of_the_driver_may_fail);
    return test_done();
}
