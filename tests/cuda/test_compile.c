// Compiled kernels: the cache, a kernel_path, and what is said of a source that does not compile.
#include "on_card.h"
#include "../model/tiny.h"

static char said[1 << 16];

static void listen(void *user, g3_level level, const char *text)
{
    (void)user; (void)level;
    const size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", text);
}

static int compiled(void) { int n = 0; for (const char *p = said; (p = strstr(p, ": compiled for ")) != NULL; p++) n++; return n; }

// Opens a tiny model and adds a token; the text of the error, "" for none.
static const char *opened(const char *cache, const char *kernels)
{
    static g3_error err;
    g3_model_desc d;
    g3_session_desc sd;
    const int id = 2;
    memset(&d, 0, sizeof d);
    memset(&sd, 0, sizeof sd);
    memset(&err, 0, sizeof err);
    said[0] = 0;
    d.path = golden("text/tiny/t2-bf16-mm-old");
    d.no_vision = true;
    on_card(&d);
    d.cache_dir = cache;
    d.kernel_path = kernels;
    d.logger.log_fn = listen;
    sd.context = 32;
    g3_model *m = g3_model_open(&d, &err);
    g3_session *s = m ? g3_session_open(m, &sd, &err) : NULL;
    if (s && g3_add_tokens(s, &id, 1, &err) == G3_OK) g3_logits(s, &err);
    g3_session_close(s);
    g3_model_close(m);
    return err.code ? err.text : "";
}

static char *file_text(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *text = (char *)calloc(1, 4 << 20);
    *n = f ? fread(text, 1, (4 << 20) - 1, f) : 0;
    if (f) fclose(f);
    return text;
}

static bool file_put(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(text, 1, n, f) == n;
    return f && fclose(f) == 0 && ok;
}

static int kept_kernels_are_not_compiled_again(void)
{
    const char *dir = temp_dir();
    CHECK(!*opened(dir, NULL) && compiled() >= 2);       // for the card, or for its driver; the rest, and attention
    CHECK(!*opened(dir, NULL) && compiled() == 0);
    CHECK(!*opened(NULL, NULL) && compiled() >= 2);
    temp_remove(dir);
    return 0;
}

static int a_damaged_cache_is_compiled_anew(void)
{
    char command[512], first[512] = "";
    const char *dir = temp_dir();
    CHECK(!*opened(dir, NULL));
    snprintf(command, sizeof command, "ls %s/*.kernels", dir);
    FILE *p = popen(command, "r");
    CHECK(p && fgets(first, sizeof first, p));
    pclose(p);
    first[strcspn(first, "\n")] = 0;
    size_t n;
    char *text = file_text(first, &n);
    CHECK(n > 1000);
    const size_t at[] = { 3, 20, 40, 70, n / 2, n - 2 };
    for (int i = 0; i < G3__COUNT(at); i++) {
        text[at[i]] ^= 1;
        CHECK(file_put(first, text, n));
        CHECK(!*opened(dir, NULL) && compiled() >= 1);
        text[at[i]] ^= 1;
    }
    CHECK(file_put(first, text, n / 3) && !*opened(dir, NULL) && compiled() >= 1);     // cut short, then whole again
    CHECK(!*opened(dir, NULL) && compiled() == 0);
    free(text);
    temp_remove(dir);
    return 0;
}

static int a_cache_that_cannot_be_written_is_no_error(void)
{
    CHECK(!*opened("/nowhere/at/all", NULL) && compiled() >= 2);
    return 0;
}

static int a_kernel_path_is_compiled_and_its_errors_have_a_line(void)
{
    size_t n;
    char path[512], wrong[600];
    const char *dir = temp_dir();
    char *text = file_text("gemma3_kernels.cuh", &n);
    snprintf(path, sizeof path, "%s/mine.cuh", dir);
    CHECK(file_put(path, text, n) && !*opened(NULL, path) && strstr(said, "mine.cuh: compiled for"));
    FILE *f = fopen(path, "ab");
    CHECK(f && fputs("static __device__ int wrong = nothing;\n", f) >= 0 && fclose(f) == 0);
    int lines = 1;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    snprintf(wrong, sizeof wrong, "mine.cuh:%d: error", lines);
    CHECK(strstr(opened(NULL, path), wrong));
    CHECK(strstr(opened(NULL, "/nowhere/mine.cuh"), "/nowhere/mine.cuh"));
    free(text);
    temp_remove(dir);
    return 0;
}

static int a_ptx_is_loaded_as_it_is(void)
{
    // The tiny model's heads are none of the published sizes: what the file lacks is named.
    if (system("make -s ptx > /dev/null 2>&1")) SKIP("make ptx does not work here");
    const char *text = opened(NULL, "build/gemma3_kernels.sm_80.ptx");
    if (!strstr(text, "has no kernel")) fprintf(stderr, "    %s\n", text);
    CHECK(compiled() == 0 && strstr(text, "build/gemma3_kernels.sm_80.ptx has no kernel g3k_"));
    return 0;
}

int main(void)
{
    if (!fake_card("cc=80")) { printf("0 passed, 0 failed, 1 skipped\n"); return 0; }
    fake.set("quiet", "1");
    RUN(kept_kernels_are_not_compiled_again);
    RUN(a_damaged_cache_is_compiled_anew);
    RUN(a_cache_that_cannot_be_written_is_no_error);
    RUN(a_kernel_path_is_compiled_and_its_errors_have_a_line);
    RUN(a_ptx_is_loaded_as_it_is);
    return test_done();
}
