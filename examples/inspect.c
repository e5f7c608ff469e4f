// Shows what a Gemma 3 checkpoint is made of and what memory a run of it will take, without loading a weight: tensors by
// format and by file, then the plan as a table with bars, for this machine or for a card that need not be here.
//
//     inspect -m build/gemma-3-270m                       the model, its files, and the plan for this machine
//     inspect -m google/gemma-3-27b-it --card 24G -c max  the largest context on a card of 24 GiB
//     inspect -m DIR --tensors                            every tensor, in file order
//
// It uses g3_model_open with no_weights, g3_model_tensor and g3_plan_memory. The exit status is 0 when the run would fit,
// 3 when it would not, 1 when the files are at fault.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "common.h"
#include <unistd.h>

enum { WIDTH = 80, BAR = 26 };

typedef struct options { const char *model; g3_model_desc desc; g3_session_desc session; bool tensors, bytes, card, color; } options;

// ---- small parts of a page

static const char *size_text(const options *o, uint64_t n)   // valid until the eighth next call
{
    static char text[8][32];
    static int turn;
    char *p = text[turn++ & 7];
    if (o->bytes) snprintf(p, sizeof text[0], "%llu", (unsigned long long)n);
    else human_bytes(n, p, sizeof text[0]);
    return p;
}

static const char *count_text(uint64_t n)                     // 27009346304 as "27.0 B"
{
    static char text[8][32];
    static int turn;
    char *p = text[turn++ & 7];
    double v = (double)n;
    if (n < 10000) snprintf(p, sizeof text[0], "%llu", (unsigned long long)n);
    else if (n < 1000000) snprintf(p, sizeof text[0], "%.0f K", v / 1e3);
    else if (n < 1000000000) snprintf(p, sizeof text[0], v < 1e7 ? "%.2f M" : v < 1e8 ? "%.1f M" : "%.0f M", v / 1e6);
    else snprintf(p, sizeof text[0], v < 1e10 ? "%.2f B" : "%.1f B", v / 1e9);
    return p;
}

// A bar of up to BAR cells in steps of an eighth; anything above nothing shows.
static const char *bar(uint64_t part, uint64_t whole)
{
    static const char *const eighth[] = { "", "\xE2\x96\x8F", "\xE2\x96\x8E", "\xE2\x96\x8D", "\xE2\x96\x8C", "\xE2\x96\x8B", "\xE2\x96\x8A", "\xE2\x96\x89" };
    static char text[BAR * 3 + 4];
    int steps = whole ? (int)((double)part / (double)whole * BAR * 8 + 0.5) : 0;
    if (part && !steps) steps = 1;
    if (steps > BAR * 8) steps = BAR * 8;
    text[0] = 0;
    for (int i = 0; i < steps / 8; i++) strcat(text, "\xE2\x96\x88");
    strcat(text, eighth[steps % 8]);
    return text;
}

static void heading(const options *o, const char *text) { printf("\n%s%s%s\n", o->color ? "\033[1m" : "", text, o->color ? "\033[0m" : ""); }

// The end of a long name, which tells more than its beginning. Names come from files: what would steer a terminal is shown as '?'.
static const char *tail(const char *name, int width)
{
    static char text[256];
    int n = (int)strlen(name), from = n <= width ? 0 : n - width + 1;
    snprintf(text, sizeof text, "%s%s", from ? "\xE2\x80\xA6" : "", name + from);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    return text;
}

static int pad(const char *text, int width) { return width + (!strncmp(text, "\xE2\x80\xA6", 3) ? 2 : 0); }   // an ellipsis is three bytes wide for printf

// ---- the model

static void show_model(const options *o, const g3_model *m)
{
    g3_model_info i = g3_model_get_info(m);
    heading(o, i.name);
    printf("  Gemma 3, %s, %s parameters, %s of weights%s\n", i.vision ? "text and images" : "text only", count_text(i.parameters), size_text(o, i.weight_bytes), i.chat ? ", made to chat" : "");
    printf("  %d layers, %d wide, feed-forward %d, vocabulary %d\n", i.layers, i.dim, i.ffn, i.vocab);
    printf("  %d heads of %d on %d of keys and values; window %d, context up to %d\n", i.heads, i.head_dim, i.kv_heads, i.window, i.max_context);
}

// ---- tensors, summed by some name

typedef struct sum { const char *name; int tensors; uint64_t parameters, bytes; } sum;

static void add(sum *list, int *n, int cap, const char *name, uint64_t parameters, uint64_t bytes)
{
    int i = 0;
    while (i < *n && strcmp(list[i].name, name)) i++;
    if (i == cap) return;
    if (i == *n) { memset(&list[i], 0, sizeof list[i]); list[i].name = name; ++*n; }
    list[i].tensors++;
    list[i].parameters += parameters;
    list[i].bytes += bytes;
}

static int larger(const void *a, const void *b)
{
    const sum *x = (const sum *)a, *y = (const sum *)b;
    return x->bytes < y->bytes ? 1 : x->bytes > y->bytes ? -1 : 0;
}

static bool is_companion(const char *name)                    // block scales, tables and descriptions beside a 4-bit weight
{
    static const char *const ends[] = { ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", "bitsandbytes__nf4", "bitsandbytes__fp4" };
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i])) return true;
    return false;
}

static void show_sums(const options *o, const char *title, const sum *list, int n, bool parameters)
{
    uint64_t most = 1;
    for (int i = 0; i < n; i++) if (list[i].bytes > most) most = list[i].bytes;
    heading(o, title);
    for (int i = 0; i < n; i++) {
        const char *name = tail(list[i].name, parameters ? 14 : 33);
        printf("  %-*s %6d", pad(name, parameters ? 14 : 33), name, list[i].tensors);
        if (parameters) printf("  %8s %-7s", list[i].parameters ? count_text(list[i].parameters) : "", list[i].parameters ? "weights" : "");
        printf(" %*s  %s\n", o->bytes ? 12 : 9, size_text(o, list[i].bytes), bar(list[i].bytes, most));
    }
}

static void show_tensors(const options *o, const g3_model *m)
{
    sum format[32];
    static sum file[1024];
    g3_tensor t;
    int n = g3_model_tensor(m, 0, NULL), formats = 0, files = 0;
    for (int i = 0; i < n; i++) {
        g3_model_tensor(m, i, &t);
        bool beside = is_companion(t.name);
        add(format, &formats, 32, beside ? "4-bit scales" : t.format, beside ? 0 : (uint64_t)t.rows * (uint64_t)t.cols, t.bytes);
        add(file, &files, 1024, t.file, 0, t.bytes);
    }
    qsort(format, (size_t)formats, sizeof format[0], larger);
    show_sums(o, "Tensors by format", format, formats, true);
    if (files > 1) show_sums(o, "Tensors by file", file, files, false);
    if (!o->tensors) return;
    heading(o, "Tensors");
    for (int i = 0; i < n; i++) {
        char shape[32];
        g3_model_tensor(m, i, &t);
        const char *name = tail(t.name, 44);
        if (t.rows == 1) snprintf(shape, sizeof shape, "%d", t.cols);
        else snprintf(shape, sizeof shape, "%d x %d", t.rows, t.cols);
        printf("  %-*s %-8s %13s %*s\n", pad(name, 44), name, t.format, shape, o->bytes ? 11 : 8, size_text(o, t.bytes));
    }
}

// ---- the plan

static const char *const kv_names[] = { "bf16", "f32", "bf16", "fp8", "int8" };

static bool make_plan(const options *o, g3_kv kv, int context, g3_plan *p)
{
    g3_error err;
    g3_session_desc s = o->session;
    g3_model_desc d = o->desc;
    s.kv = kv;
    s.context = context;
    d.session = &s;
    if (g3_plan_memory(&d, p, &err) == G3_OK) return true;
    fprintf(stderr, "inspect: %s\n", err.text);
    return false;
}

static void show_group(const options *o, const g3_plan *p, const char *group, const char *title, uint64_t bytes, uint64_t whole)
{
    size_t n = strlen(group);
    int parts = 0;
    if (!bytes) return;
    printf("  %-28s %*s  %s\n", title, o->bytes ? 14 : 10, size_text(o, bytes), bar(bytes, whole));
    for (int i = 0; i < p->n_items; i++) parts += !strncmp(p->items[i].name, group, n) && p->items[i].bytes;
    for (int i = 0; i < p->n_items && parts > 1; i++) {
        const g3_plan_item *it = &p->items[i];
        if (strncmp(it->name, group, n) || !it->bytes) continue;
        const char *name = it->name + n;
        while (*name == ':' || *name == ' ') name++;
        printf("  %s  %-26s %*s%s\n", o->color ? "\033[2m" : "", name, o->bytes ? 14 : 10, size_text(o, it->bytes), o->color ? "\033[0m" : "");
    }
}

// What the other formats of the cache would take, and how far each would go.
static void show_choices(const options *o, int context)
{
    static const g3_kv kinds[] = { G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 };
    int wide = o->bytes ? 14 : 10;
    heading(o, "The same with another cache");
    printf("  %-6s %*s %*s  largest context\n", "--kv", wide, "cache", wide, "in all");
    for (int i = 0; i < 4; i++) {
        g3_plan p;
        char reach[32];
        if (!make_plan(o, kinds[i], context, &p)) return;
        if (!p.available) snprintf(reach, sizeof reach, "?");
        else if (p.max_context) snprintf(reach, sizeof reach, "%d", p.max_context);
        else snprintf(reach, sizeof reach, "none");
        printf("  %-6s %*s %*s %16s  %s\n", kv_names[kinds[i]], wide, size_text(o, p.kv), wide, size_text(o, p.total), reach, !p.available ? "" : p.fits ? "fits" : "too much");
    }
}

static void show_advice(const char *text)                     // a sentence, broken between words
{
    int column = 2;
    printf("  ");
    for (const char *word = text; *word; ) {
        int n = (int)strcspn(word, " ");
        if (column + n > WIDTH - 2) { printf("\n  "); column = 2; }
        printf("%.*s ", n, word);
        column += n + 1;
        word += n + (word[n] == ' ');
    }
    printf("\n");
}

// How much of what there is would be taken: a bar over its own ground.
static void show_room(const options *o, const g3_plan *p)
{
    double share = (double)p->total / (double)p->available;
    int full = share >= 1 ? BAR : (int)(share * BAR + 0.5);
    printf("  of %-25s %*s  ", o->card ? "the card's" : "what is free here,", o->bytes ? 14 : 10, size_text(o, p->available));
    for (int i = 0; i < BAR; i++) printf("%s", i < full || (!i && share > 0) ? "\xE2\x96\x88" : "\xE2\x96\x91");
    printf(share < 9.995 ? " %3.0f %%\n" : " %4.0f x\n", share < 9.995 ? 100 * share : share);
}

static int show_plan(const options *o, const g3_model *m)
{
    g3_plan p;
    char title[160];
    int limit = g3_model_get_info(m).max_context, context = o->session.context;
    if (!make_plan(o, o->session.kv, context, &p)) return 1;
    if (context < 0) context = p.max_context;
    else if (!context) context = limit < 8192 ? limit : 8192;
    snprintf(title, sizeof title, "Memory for %d %s of %d tokens, cache in %s, on %s", o->desc.sessions, o->desc.sessions == 1 ? "session" : "sessions", context, kv_names[o->session.kv], o->card ? "a card" : "this machine");
    heading(o, title);
    show_group(o, &p, "weights", "weights", p.weights, p.total);
    show_group(o, &p, "vision", "vision weights", p.vision, p.total);
    show_group(o, &p, "kv", "cache of keys and values", p.kv, p.total);
    show_group(o, &p, "scratch", "scratch", p.scratch, p.total);
    printf("  %-28s %*s\n", "in all", o->bytes ? 14 : 10, size_text(o, p.total));
    if (p.available) show_room(o, &p);
    printf("  %-28s %*s\n", "beside it, on the host", o->bytes ? 14 : 10, size_text(o, p.host));
    show_choices(o, context ? context : 1);
    printf("\n");
    if (!p.available) printf("  What is free cannot be told here; --card SIZE checks against a limit.\n");
    else if (p.fits) printf("  It fits, with %s to spare. The largest context here is %d.\n", size_text(o, p.available - p.total), p.max_context);
    else show_advice(p.advice);
    return p.fits || !p.available ? 0 : 3;
}

// ---- command line

static int usage(FILE *to)
{
    fprintf(to, "usage: inspect -m DIR|OWNER/NAME [options]\n"
                "  -m, --model X       a directory, or a name looked up in ./models and the Hugging Face cache\n"
                "      --tensors       list every tensor\n"
                "      --card SIZE     plan for a card with that much free memory (24G, 22.5GiB, bytes)\n"
                "      --host          plan for this machine's memory (default)\n"
                "  -c, --ctx-size N    tokens of context, or max: the largest that fits (default 8192)\n"
                "  -b, --batch-size N  prompt tokens per step (default 512)\n"
                "      --kv FORMAT     f32, bf16 (default), fp8, int8\n"
                "      --sessions N    conversations at once (default 1)\n"
                "      --no-vision     leave the vision tower out\n"
                "      --bytes         exact bytes instead of MiB and GiB\n");
    return to == stdout ? 0 : 2;
}

static bool parse_number(const char *text, int *out)
{
    char *end;
    long v = strtol(text, &end, 10);
    *out = (int)v;
    return *text && !*end && v > 0 && v < 1 << 30;
}

static bool parse_kv(const char *text, g3_kv *kv)
{
    for (int k = G3_KV_F32; k <= G3_KV_INT8; k++)
        if (!strcmp(text, kv_names[k])) { *kv = (g3_kv)k; return true; }
    return false;
}

static bool parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = i + 1 < argc ? argv[i + 1] : "";
        bool ok = true, took = true;
        if (!strcmp(a, "-m") || !strcmp(a, "--model")) { o->model = v; ok = *v != 0; }
        else if (!strcmp(a, "--card")) { o->desc.memory_limit = parse_bytes(v); o->card = true; ok = o->desc.memory_limit != 0; }
        else if (!strcmp(a, "-c") || !strcmp(a, "--ctx-size")) { if (!strcmp(v, "max")) o->session.context = -1; else ok = parse_number(v, &o->session.context); }
        else if (!strcmp(a, "-b") || !strcmp(a, "--batch-size")) ok = parse_number(v, &o->session.batch);
        else if (!strcmp(a, "--sessions")) ok = parse_number(v, &o->desc.sessions);
        else if (!strcmp(a, "--kv")) ok = parse_kv(v, &o->session.kv);
        else {
            took = false;
            if (!strcmp(a, "--tensors")) o->tensors = true;
            else if (!strcmp(a, "--host")) { o->card = false; o->desc.memory_limit = 0; }
            else if (!strcmp(a, "--no-vision")) o->desc.no_vision = true;
            else if (!strcmp(a, "--bytes")) o->bytes = true;
            else if (a[0] != '-' && !o->model) o->model = a;
            else { fprintf(stderr, "inspect: unknown option %s\n", a); return false; }
        }
        if (!ok) { fprintf(stderr, "inspect: %s: \"%s\" is no value for it\n", a, v); return false; }
        i += took;
    }
    return o->model != NULL;
}

int main(int argc, char **argv)
{
    static options o;
    static char path[2048];
    g3_error err;
    if (argc == 2 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help"))) return usage(stdout);
    o.session.kv = G3_KV_BF16;
    o.desc.sessions = 1;
    if (!parse(&o, argc, argv)) return usage(stderr);
    o.color = isatty(1) && !getenv("NO_COLOR");
    o.desc.path = find_model(o.model, path, sizeof path);
    o.desc.no_weights = true;
    g3_model *m = g3_model_open(&o.desc, &err);
    if (!m) {
        fprintf(stderr, "inspect: %s\n", err.text);
        if (!has_config(o.desc.path)) fprintf(stderr, "Looked for %s as a directory, in ./models and in the Hugging Face cache; examples/get.sh OWNER/NAME fetches a checkpoint.\n", o.model);
        return 1;
    }
    if (o.card) o.desc.backend = G3_BACKEND_CUDA;             // planned without a card and without its driver
    show_model(&o, m);
    show_tensors(&o, m);
    int status = show_plan(&o, m);
    g3_model_close(m);
    return status;
}
