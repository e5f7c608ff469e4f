// sizes: the README's table of memory. For each of the five sizes, in the published 'dynamic' 4-bit layout and in bf16, it writes a checkpoint
// of real headers and no weights (sparse.h) and prints what g3_plan_memory says, as Markdown.
//
//     build/tools/sizes [TOKENIZER.JSON]      default: build/gemma-3-270m/tokenizer.json, which all sizes share
//
// Memory is everything: the arenas of model and session, and all the rest on the host at its peak; 8 threads, keys and values in bf16.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../../examples/common.h"
#include "sparse.h"
#include <limits.h>

static int ends_in(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

// The same checkpoint as it was before quantisation: shapes from the quant states, no companions.
static void make_dense(sparse *s)
{
    int kept = 0;
    for (int i = 0; i < s->n; i++) {
        sparse_tensor *state = &s->t[i];
        unsigned long long rows, cols;
        const char *shape = state->kind == SPARSE_STATE ? strstr(state->text, "\"shape\": [") : NULL;
        if (!shape || sscanf(shape, "\"shape\": [%llu, %llu]", &rows, &cols) != 2) continue;
        for (int k = 0; k < s->n; k++) {
            sparse_tensor *w = &s->t[k];
            size_t n = strlen(w->name);
            if (w->kind != SPARSE_HOLE || strncmp(w->name, state->name, n) || strcmp(state->name + n, ".quant_state.bitsandbytes__nf4")) continue;
            w->dtype = "BF16";
            w->rank = 2;
            w->dims[0] = rows;
            w->dims[1] = cols;
            w->bytes = 2 * rows * cols;
        }
    }
    for (int i = 0; i < s->n; i++)
        if (s->t[i].kind == SPARSE_HOLE && !ends_in(s->t[i].name, ".absmax")) s->t[kept++] = s->t[i];
    s->n = kept;
    s->tensor_bytes = 0;
    sparse_split(s);
    qsort(s->t, (size_t)s->n, sizeof *s->t, sparse_order);
}

static void remove_all(const char *dir)
{
    char path[1024];
    struct dirent *e;
    DIR *d = opendir(dir);
    while (d && (e = readdir(d)) != NULL) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') remove(path);
    }
    if (d) closedir(d);
    rmdir(dir);
}

static uint64_t memory(const char *dir, int context, g3_plan *p)     // 0: said why
{
    g3_error err;
    g3_session_desc s;
    g3_model_desc d;
    memset(&s, 0, sizeof s);
    memset(&d, 0, sizeof d);
    s.context = context;
    d.path = dir;
    d.backend = G3_BACKEND_CPU;
    d.threads = 8;
    d.session = &s;
    if (g3_plan_memory(&d, p, &err) == G3_OK) return p->total + p->host;
    fprintf(stderr, "sizes: %s\n", err.text);
    return 0;
}

static bool print_row(const char *dir, const char *name, const char *format, uint64_t file_bytes)
{
    char a[4][32];
    g3_plan p, q;
    uint64_t small = memory(dir, 4096, &p), large = memory(dir, 32768, &q);
    if (!small || !large) return false;
    human_bytes(file_bytes, a[0], sizeof a[0]);
    human_bytes(small, a[1], sizeof a[1]);
    human_bytes(large, a[2], sizeof a[2]);
    human_bytes(p.vision, a[3], sizeof a[3]);
    printf("| %s | %s | %s | %s | %s | %s |\n", name, format, a[0], a[1], a[2], p.vision ? a[3] : "");
    return true;
}

static bool print_size(const sparse_size *size, bool dense, const char *tokenizer)
{
    char dir[] = "/tmp/gemma3-sizes-XXXXXX", link[64];
    sparse s;
    if (!mkdtemp(dir)) return false;
    snprintf(link, sizeof link, "%s/tokenizer.json", dir);
    sparse_init(&s, size);
    if (dense) make_dense(&s);
    bool ok = sparse_write(&s, dir) && (!tokenizer || !symlink(tokenizer, link));
    ok = ok && print_row(dir, size->name, dense ? "bf16" : "dynamic 4-bit", s.file_bytes);
    sparse_free(&s);
    remove_all(dir);
    return ok;
}

int main(int argc, char **argv)
{
    static char tokenizer[PATH_MAX];
    bool have = realpath(argc > 1 ? argv[1] : "build/gemma-3-270m/tokenizer.json", tokenizer) != NULL, ok = true;
    if (!have) fprintf(stderr, "sizes: no tokenizer.json (make model brings it): the table leaves out what it takes\n");
    printf("| model | format | files | memory at 4096 | at 32768 | of which vision |\n|---|---|---:|---:|---:|---:|\n");
    for (int i = 0; ok && i < 5; i++) ok = print_size(&sparse_sizes[i], false, have ? tokenizer : NULL) && print_size(&sparse_sizes[i], true, have ? tokenizer : NULL);
    return !ok;
}
