// score: how likely a model finds a text. Log-likelihood, perplexity, and what it expected at each place.
//
//     score -m DIR -f FILE              the sums
//     score -m DIR -p TEXT --top 5      every token: its log probability and rank, and the five likeliest
//
// Shows: logits of a whole prompt at the speed of a prompt. A session opened with logits_rows = batch keeps the rows of the last
// step, and g3_logits_at computes them all in one product. A text longer than the context is read in windows: each begins with <bos>
// and the last half of the one before, whose tokens are not counted twice.
// The table and the sums go to stdout, speed to stderr.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#include "common.h"
#include <errno.h>
#include <math.h>
#include <time.h>

enum { MAX_TOP = 20, BOS = 2 };

typedef struct settings { const char *model, *file, *text; int top; g3_model_desc open; g3_session_desc session; } settings;

typedef struct score {
    const g3_model *model;
    g3_session *session;
    int vocab, batch, top;
    int counted;                       // tokens that had something in front of them to be foreseen from
    double nll;                        // minus the sum of their log probabilities
    uint64_t bytes;                    // of their text
} score;

static int fail(const char *what) { fprintf(stderr, "score: %s\n", what); return 1; }

static char *read_all(const char *path, size_t *size)    // NULL: errno
{
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    char *p = NULL;
    size_t cap = 0, n = 0, got = 1;
    while (f && got) {
        if (n == cap) {
            char *q = (char *)realloc(p, cap = 2 * cap + 65536);
            if (!q) { free(p); return NULL; }
            p = q;
        }
        n += got = fread(p + n, 1, cap - n, f);
    }
    if (f && f != stdin) fclose(f);
    *size = n;
    return p;
}

// ---- one row of logits

static double log_sum(const float *z, int n)             // log of the sum of e^z
{
    float max = z[0];
    double sum = 0;
    for (int i = 1; i < n; i++) if (z[i] > max) max = z[i];
    for (int i = 0; i < n; i++) sum += (double)expf(z[i] - max);
    return (double)max + log(sum);
}

static int best(const float *z, int n, int top, int *ids)            // the `top` largest, largest first
{
    int have = 0;
    for (int i = 0; i < n; i++) {
        int k = have;
        if (have == top && z[i] <= z[ids[top - 1]]) continue;
        if (have < top) have++; else k = top - 1;
        for (; k && z[i] > z[ids[k - 1]]; k--) ids[k] = ids[k - 1];
        ids[k] = i;
    }
    return have;
}

static void print_token(const g3_model *m, int id)       // between quotes, in one line
{
    int size = 0;
    const char *p = g3_token_piece(m, id, &size);
    putchar('"');
    for (int i = 0; p && i < size; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c == '\n') fputs("\\n", stdout);
        else if (c == '\t') fputs("\\t", stdout);
        else if (c == '"' || c == '\\') printf("\\%c", c);
        else if (c < 32 || c == 127 || (size == 1 && c > 127)) printf("\\x%02X", c);     // a byte token is not a character by itself
        else putchar(c);
    }
    putchar('"');
}

static void print_row(const score *s, const float *z, double all, int pos, int id)
{
    int ids[MAX_TOP], rank = 1, n = best(z, s->vocab, s->top, ids);
    for (int i = 0; i < s->vocab; i++) rank += z[i] > z[id];
    printf("%6d %9.4f %6d  ", pos, (double)z[id] - all, rank);
    print_token(s->model, id);
    fputs("  <- ", stdout);
    for (int k = 0; k < n; k++) {
        printf("%s%.3f ", k ? ", " : "", exp((double)z[ids[k]] - all));
        print_token(s->model, ids[k]);
    }
    putchar('\n');
}

// ---- the text

// Adds ids[from .. from + n) in steps. Where the token after a row is known and `count` is set, it is scored by that row.
static bool add(score *s, const int *ids, int total, int from, int n, bool count, g3_error *err)
{
    for (int step; n > 0; from += step, n -= step) {
        step = n < s->batch ? n : s->batch;
        if (g3_add_tokens(s->session, ids + from, step, err) != G3_OK) return false;
        for (int k = 0; count && k < step && from + k + 1 < total; k++) {
            int next = ids[from + k + 1], size = 0;
            const float *z = g3_logits_at(s->session, step - 1 - k, err);
            if (!z) return false;
            double all = log_sum(z, s->vocab);
            if (s->top) print_row(s, z, all, from + k + 1, next);
            g3_token_piece(s->model, next, &size);
            s->nll -= (double)z[next] - all;
            s->bytes += (uint64_t)size;
            s->counted++;
        }
    }
    return true;
}

static bool run(score *s, const int *ids, int total, g3_error *err)
{
    static const int bos = BOS;
    int context = g3_session_stats(s->session).context, at = 0;      // ids[1 .. at] are scored
    while (at < total - 1) {
        if (at) {                                                     // the next window: <bos> and what came last, unscored
            int again = context / 2 - 1 < at ? context / 2 - 1 : at;
            g3_session_rewind(s->session, 0, NULL);
            if (!add(s, &bos, 1, 0, 1, false, err) || !add(s, ids, total, at - again, again, false, err)) return false;
        }
        int n = context - g3_session_stats(s->session).held;
        if (n > total - at) n = total - at;
        if (n < 1 || !add(s, ids, total, at, n, true, err)) return false;
        at += n;
    }
    return true;
}

// ---- flags and main

static const char help[] =
    "score -m DIR (-f FILE | -p TEXT) [flags]\n\n"
    "  -m, --model DIR       the checkpoint: a directory, or OWNER/NAME\n"
    "  -f, --file FILE       the text (- is stdin)\n"
    "  -p, --prompt TEXT     the text\n"
    "  --top N               a line per token, with the N likeliest (up to 20)\n"
    "  -c, --ctx-size N      tokens of context, 4 or more (8192, or what the model can)\n"
    "  -b, --batch-size N    tokens per step (64; each takes a row of logits: 1 MiB)\n"
    "  -t, --threads N       threads\n"
    "  --kv TYPE             keys and values as f32, bf16, fp8 or int8 (bf16)\n"
    "  --precise             float32 activations everywhere; with --kv f32 the numbers are the reference's\n"
    "  --memory-limit SIZE   take no more than this, as in 24G\n";

static bool is(const char *arg, const char *a, const char *b) { return !strcmp(arg, a) || !strcmp(arg, b); }

static bool number(const char *arg, const char *value, int max, int *out)
{
    char *end = NULL;
    long v = value ? strtol(value, &end, 10) : 0;
    if (!value || end == value || *end || v < 1 || v > max) { fprintf(stderr, "score: %s takes a number from 1 to %d\n", arg, max); return false; }
    *out = (int)v;
    return true;
}

static bool set_kv(settings *o, const char *value)
{
    static const char *const names[] = { "f32", "bf16", "fp8", "int8" };
    static const g3_kv kinds[] = { G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 };
    for (int i = 0; i < 4; i++)
        if (!strcmp(value, names[i])) { o->session.kv = kinds[i]; return true; }
    fprintf(stderr, "score: --kv takes f32, bf16, fp8 or int8\n");
    return false;
}

static bool read_flags(settings *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *value = argv[i + 1];
        if (is(arg, "-h", "--help")) { fputs(help, stdout); exit(0); }
        if (!strcmp(arg, "--precise")) { o->open.precise = true; continue; }
        if (!value) { fprintf(stderr, "score: %s: no such flag, or its value is missing; -h lists them\n", arg); return false; }
        i++;
        if (is(arg, "-m", "--model")) o->model = value;
        else if (is(arg, "-f", "--file")) o->file = value;
        else if (is(arg, "-p", "--prompt")) o->text = value;
        else if (!strcmp(arg, "--kv")) { if (!set_kv(o, value)) return false; }
        else if (!strcmp(arg, "--memory-limit")) {
            o->open.memory_limit = parse_bytes(value);
            if (!o->open.memory_limit) { fputs("score: --memory-limit takes a size such as 24G or 500M\n", stderr); return false; }
        }
        else if (!strcmp(arg, "--top")) { if (!number(arg, value, MAX_TOP, &o->top)) return false; }
        else if (is(arg, "-c", "--ctx-size")) { if (!number(arg, value, 1 << 24, &o->session.context)) return false; }
        else if (is(arg, "-b", "--batch-size")) { if (!number(arg, value, 1 << 16, &o->session.batch)) return false; }
        else if (is(arg, "-t", "--threads")) { if (!number(arg, value, 1 << 10, &o->open.threads)) return false; }
        else { fprintf(stderr, "score: %s is not a flag; -h lists them\n", arg); return false; }
    }
    if (!o->model || !o->file == !o->text) { fputs("score: a model (-m) and one text (-f or -p) are needed; -h tells more\n", stderr); return false; }
    return true;
}

static int report(const score *s, double seconds)
{
    double per_token = s->nll / s->counted;
    char size[16];
    if (s->top) putchar('\n');
    printf("tokens          %d (%llu bytes)\n", s->counted, (unsigned long long)s->bytes);
    printf("log-likelihood  %.4f\n", -s->nll);
    printf("per token       %.6f\n", -per_token);
    printf("perplexity      %.4f\n", exp(per_token));
    printf("bits per byte   %.4f\n", s->nll / log(2) / (double)s->bytes);
    fprintf(stderr, "%.1f s, %.1f tokens a second, session %s\n", seconds, s->counted / seconds, human_bytes(g3_session_stats(s->session).memory, size, sizeof size));
    return ferror(stdout) ? fail("stdout cannot be written") : 0;
}

static int score_text(score *s, const char *text, size_t size)
{
    g3_error err;
    struct timespec from, to;
    int n = g3_tokenize(s->model, text, size, G3_TOKENIZE_BOS, NULL, 0);
    if (n < 0) return fail("the checkpoint has no tokenizer.json: there is no way to read a text");
    if (n < 2) return fail("the text is empty");
    int *ids = (int *)malloc((size_t)n * sizeof *ids);
    if (!ids) return fail("out of memory");
    g3_tokenize(s->model, text, size, G3_TOKENIZE_BOS, ids, n);
    if (s->top) puts("   pos  log prob   rank  token  <- what was likeliest");
    clock_gettime(CLOCK_MONOTONIC, &from);
    bool ok = run(s, ids, n, &err);
    clock_gettime(CLOCK_MONOTONIC, &to);
    free(ids);
    return ok ? report(s, (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) * 1e-9) : fail(err.text);
}

int main(int argc, char **argv)
{
    settings o;
    score s;
    g3_error err;
    char dir[4096], *text = NULL;
    size_t size = 0;
    memset(&o, 0, sizeof o);
    memset(&s, 0, sizeof s);
    o.session.batch = 64;
    if (!read_flags(&o, argc, argv)) return 2;
    if (o.file && !(text = read_all(o.file, &size))) { fprintf(stderr, "score: -f %s: %s\n", o.file, strerror(errno)); return 1; }
    o.session.logits_rows = o.session.batch;
    o.open.path = find_model(o.model, dir, sizeof dir);
    o.open.session = &o.session;
    g3_model *m = g3_model_open(&o.open, &err);
    s.session = m ? g3_session_open(m, &o.session, &err) : NULL;
    s.model = m;
    s.vocab = g3_model_get_info(m).vocab;
    s.batch = o.session.batch;
    s.top = o.top;
    int status = !s.session ? fail(err.text) : score_text(&s, text ? text : o.text, text ? size : strlen(o.text));
    g3_session_close(s.session);
    g3_model_close(m);
    free(text);
    return status;
}
