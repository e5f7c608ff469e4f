// chat: talk with Gemma 3 in a terminal, or have one prompt answered.
//
//     chat -m DIR                               a conversation; /help lists its commands, Ctrl-C stops an answer, Ctrl-D leaves
//     chat -m DIR -p "Why is the sky blue?"     one answer
//     chat -m DIR --raw -p "Once upon a time"   no chat template: the model goes on writing
//     chat -m DIR --image cat.jpg -p "Who is this?"
//
// Shows the public API in one program: the memory plan, loading with progress, pictures, streaming, cancelling from a signal
// handler, and a conversation that outlives its context: the oldest turns are dropped and g3_add_messages reads the rest again.
// What the model writes goes to stdout, everything else to stderr.
// Reading order: growing text, settings, flags, terminal, typing, conversation, pictures, answering, commands, main.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#include "common.h"
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <signal.h>
#include <time.h>
#if defined(_WIN32)
#include <io.h>
#define is_terminal(fd) _isatty(fd)
#else
#include <poll.h>
#include <unistd.h>
#define is_terminal(fd) isatty(fd)
#endif
#if defined(HAVE_READLINE)
#include <readline/history.h>
#include <readline/readline.h>
#elif defined(HAVE_EDITLINE)
#include <editline/readline.h>
#endif

// ---- growing text

typedef struct text { char *p; size_t n, cap; } text;    // p is NULL or ends in a NUL

static void *need(void *p)                               // memory this program cannot go on without
{
    if (p) return p;
    fputs("chat: out of memory\n", stderr);
    exit(1);
}

static void text_add(text *t, const char *p, size_t n)
{
    if (t->n + n + 1 > t->cap) {
        t->cap = 2 * (t->n + n) + 64;
        t->p = (char *)need(realloc(t->p, t->cap));
    }
    if (n) memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
}

static void text_free(text *t) { free(t->p); memset(t, 0, sizeof *t); }

static char *copy_text(const char *p) { text t = { 0 }; text_add(&t, p, strlen(p)); return t.p; }

// ---- settings: what the flags say, in the library's own structs

enum { MAX_STOPS = 16, MAX_NOTES = 32, MAX_IMAGES = 32 };

typedef struct settings {
    const char       *model, *prompt, *file, *system, *stops[MAX_STOPS];
    g3_model_desc     open;
    g3_session_desc   session;
    g3_generate_desc  generate;
    const char       *images[MAX_IMAGES]; int n_images;
    bool              pan_and_scan, raw, plan, quiet, verbose, color;
    const char       *notes[MAX_NOTES], *note_flags[MAX_NOTES]; int n_notes;   // flags of other programs, and what happens instead
    bool screen_if_it_fits;                              // --screened-head auto
    const char *cache;                                   // --kernel-cache
} settings;

typedef enum flag_id {
    F_MODEL, F_PROMPT, F_FILE, F_IMAGE, F_PAN, F_SYSTEM, F_PREDICT, F_CONTEXT, F_BATCH, F_THREADS, F_TEMP, F_TOP_K, F_TOP_P, F_MIN_P, F_PENALTY, F_SEED, F_STOP,
    F_IGNORE_EOS, F_RAW, F_KV, F_DEVICE, F_DEVICES, F_KERNELS, F_CACHE, F_LIBRARIES, F_PRECISE, F_SCREENED, F_NO_VISION, F_MEMORY, F_PLAN, F_COLOR, F_QUIET, F_VERBOSE, F_HELP, F_VERSION, F_NOTHING
} flag_id;

typedef struct flag { flag_id id; const char *names, *value, *help; } flag;   // value: NULL none, [..] may be left out

static const flag flags[] = {
    { F_MODEL,    "-m --model",                   "DIR",     "the checkpoint: a directory, or OWNER/NAME if get.sh or Hugging Face's tools fetched it" },
    { F_PROMPT,   "-p --prompt",                  "TEXT",    "answer this and leave" },
    { F_FILE,     "-f --file",                    "FILE",    "take the prompt from a file (- is stdin); with -p it follows that text" },
    { F_IMAGE,    "--image",                      "FILE",    "a picture (JPEG, PNG, BMP) that goes with the first message; may be given 32 times" },
    { F_PAN,      "--pan-and-scan",               NULL,      "look at long pictures once more in up to 4 crops: finer detail, more tokens" },
    { F_SYSTEM,   "--system -sys --system-prompt", "TEXT",   "how to behave, in front of the first turn" },
    { F_PREDICT,  "-n --predict --n-predict",     "N",       "at most N tokens an answer (until the context is full)" },
    { F_CONTEXT,  "-c --ctx-size",                "N|max",   "tokens of context (8192, or what the model can; max: what memory allows)" },
    { F_BATCH,    "-b --batch-size -ub --ubatch-size", "N",  "prompt tokens per step (512)" },
    { F_THREADS,  "-t --threads",                 "N",       "threads (the physical cores)" },
    { F_TEMP,     "--temp --temperature",         "X",       "0: always the likeliest token (the checkpoint's own, or 1)" },
    { F_TOP_K,    "--top-k",                      "N",       "draw among the N likeliest; 0: off (the checkpoint's own, or 64)" },
    { F_TOP_P,    "--top-p",                      "X",       "draw among the likeliest that make up X; 1: off (the checkpoint's own, or 0.95)" },
    { F_MIN_P,    "--min-p",                      "X",       "drop what is less likely than X times the likeliest; 0: off" },
    { F_PENALTY,  "--repeat-penalty",             "X",       "divide the logits of tokens in the context by X; 1: off" },
    { F_SEED,     "-s --seed",                    "N",       "the same seed, the same answer (from the clock)" },
    { F_STOP,     "-r --reverse-prompt --stop",   "TEXT",    "stop before this text; may be given 16 times" },
    { F_IGNORE_EOS, "--ignore-eos",               NULL,      "do not stop at <eos> and <end_of_turn>" },
    { F_RAW,      "--raw -no-cnv --no-conversation", NULL,   "no chat template: <bos> and the text; every line is a prompt of its own" },
    { F_KV,       "--kv -ctk --cache-type-k -ctv --cache-type-v", "TYPE", "keys and values as f32, bf16, fp8 or int8 (bf16)" },
    { F_DEVICE,   "--device -dev",                "NAME",    "auto, cpu or cuda[:N]" },
    { F_DEVICES,  "--list-devices",               NULL,      "say what --device can be, and leave" },
    { F_KERNELS,  "--kernels",                    "FILE",    "compile this .cuh instead of the built-in kernels, or load a .ptx or .cubin" },
    { F_CACHE,    "--kernel-cache",               "DIR",     "keep compiled kernels there, none: nowhere (gemma3 in the user's cache directory)" },
    { F_LIBRARIES, "--cuda-libraries",            "DIRS",    "look for the CUDA driver and NVRTC there first; several are parted by ':' (Windows: ';')" },
    { F_PRECISE,  "--precise",                    NULL,      "float32 activations everywhere: slower, closest to the reference" },
    { F_SCREENED, "--screened-head",              "WHEN",    "on, off or auto: find the likeliest tokens with an 8-bit copy of the head first" },
    { F_NO_VISION, "--no-vision --no-mmproj",     NULL,      "leave the vision tower out of memory: text only" },
    { F_MEMORY,   "--memory-limit",               "SIZE",    "take no more than this, as in 24G (what is free)" },
    { F_PLAN,     "--plan",                       NULL,      "print what would be taken, to the byte, and leave" },
    { F_COLOR,    "-co --color",                  "[WHEN]",  "on, off or auto (on a terminal, unless NO_COLOR is set)" },
    { F_QUIET,    "-q --quiet --log-disable",     NULL,      "nothing on stderr but errors" },
    { F_VERBOSE,  "-v --verbose",                 NULL,      "all that the library logs" },
    { F_HELP,     "-h --help --usage",            NULL,      "this list" },
    { F_VERSION,  "--version",                    NULL,      "the version of the library" },

    { F_NOTHING, "-ngl --gpu-layers --n-gpu-layers", "N",    "layers are not split: --device cuda takes the whole model, --device cpu none of it" },
    { F_NOTHING, "-sm --split-mode",              "MODE",    "a model lies on one device; --device cuda:N chooses it" },
    { F_NOTHING, "-mg --main-gpu",                "N",       "--device cuda:N chooses the card" },
    { F_NOTHING, "-ts --tensor-split",            "LIST",    "a model lies on one device; --device cuda:N chooses it" },
    { F_NOTHING, "-nkvo --no-kv-offload",         NULL,      "keys and values lie where the weights lie" },
    { F_NOTHING, "-fa --flash-attn",              "[WHEN]",  "attention never stores its scores; there is no other kind to choose" },
    { F_NOTHING, "--swa-full",                    NULL,      "sliding layers keep their window and one batch" },
    { F_NOTHING, "--mlock",                       NULL,      "weights are read into memory of the program's own, so no file cache can drop them" },
    { F_NOTHING, "--mmap --no-mmap",              NULL,      "weights are read, not mapped" },
    { F_NOTHING, "--jinja --no-jinja",            NULL,      "Gemma 3's chat template is built in; --raw goes without" },
    { F_NOTHING, "--chat-template --chat-template-file", "NAME", "Gemma 3's chat template is built in; --raw goes without" },
    { F_NOTHING, "-cnv --conversation -i --interactive -if --interactive-first", NULL, "without -p and -f it is a conversation anyway" },
    { F_NOTHING, "-st --single-turn",             NULL,      "-p and -f bring one answer anyway" },
    { F_NOTHING, "-mli --multiline-input",        NULL,      "pasted lines are one message anyway, and \"\"\" opens and closes one" },
    { F_NOTHING, "-tb --threads-batch",           "N",       "-t counts for prompts and answers alike" },
    { F_NOTHING, "--numa",                        "TYPE",    "memory lands where the threads that load it run" },
    { F_NOTHING, "--warmup --no-warmup",          NULL,      "there is nothing to warm up" },
    { F_NOTHING, "--display-prompt --no-display-prompt", NULL, "the prompt is never repeated" },
    { F_NOTHING, "-e --escape --no-escape",       NULL,      "\\n in a prompt stays as it is; a file (-f) can hold any text" },
    { F_NOTHING, "--repeat-last-n",               "N",       "the penalty looks at the whole context" },
    { F_NOTHING, "--keep",                        "N",       "the system text and the latest turns stay when the context is full" },
    { F_NOTHING, "--no-context-shift --context-shift", NULL, "when the context is full the oldest turns are dropped and the rest is read again" },
    { F_NOTHING, "--simple-io",                   NULL,      "a pipe gets plain text anyway" },
    { F_NOTHING, "--mmproj",                      "FILE",    "the vision tower lies in the checkpoint itself" },
};
enum { N_FLAGS = (int)(sizeof flags / sizeof *flags) };

// ---- flags

static bool usage(const char *fmt, const char *a, const char *b)     // false, so that callers can end on it
{
    fputs("chat: ", stderr);
    fprintf(stderr, fmt, a, b);
    fputs("\n", stderr);
    return false;
}

// The next name in a list of names; NULL at its end.
static const char *next_name(const char **list, char name[32])
{
    size_t n = 0;
    while (**list == ' ') (*list)++;
    while ((*list)[n] && (*list)[n] != ' ' && n < 31) { name[n] = (*list)[n]; n++; }
    name[n] = 0;
    *list += n;
    return n ? name : NULL;
}

static const flag *find_flag(const char *arg, size_t n)
{
    char name[32];
    for (int i = 0; i < N_FLAGS; i++)
        for (const char *list = flags[i].names; next_name(&list, name); )
            if (strlen(name) == n && !strncmp(name, arg, n)) return &flags[i];
    return NULL;
}

static int distance(const char *a, const char *b)        // how many letters to change, add or drop (Levenshtein); both under 32 long
{
    int row[33], n = (int)strlen(b);
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int corner = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = corner + (a[i - 1] != b[j - 1]);
            corner = row[j];
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

static bool unknown_flag(const char *arg)
{
    char name[32], asked[32], best[32] = "";
    int nearest = INT_MAX;
    snprintf(asked, sizeof asked, "%.*s", (int)strcspn(arg, "="), arg);
    for (int i = 0; i < N_FLAGS; i++)
        for (const char *list = flags[i].names; next_name(&list, name); )
            if (distance(asked, name) < nearest) { nearest = distance(asked, name); memcpy(best, name, sizeof best); }
    if (!strcmp(asked, "-hf") || !strcmp(asked, "-hfr") || !strcmp(asked, "--hf-repo"))
        return usage("%s: nothing is fetched here; `sh examples/get.sh OWNER/NAME` does, then -m OWNER/NAME%s", asked, "");
    return usage("%s is not a flag; is %s meant? (-h lists them all)", asked, best);
}

static bool to_int(const char *name, const char *value, long min, int *out)
{
    char *end;
    errno = 0;
    long v = strtol(value, &end, 10);
    if (end == value || *end || errno || v < min || v > INT_MAX) return usage("%s: \"%s\" is not a number that fits here", name, value);
    *out = (int)v;
    return true;
}

static bool to_float(const char *name, const char *value, float max, float *out)
{
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end || !(v >= 0 && v <= (double)max)) return usage("%s: \"%s\" is not a number that fits here", name, value);
    *out = (float)v;
    return true;
}

static bool to_seed(const char *value, uint64_t *out)    // -1 as elsewhere: any
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(value, &end, 10);
    if (end == value || *end || errno) return false;
    *out = *value == '-' ? 0 : v;
    return true;
}

static bool set_kv(settings *o, const char *name, const char *v)
{
    static const struct { const char *text; g3_kv kv; } kinds[] = {
        { "f32", G3_KV_F32 }, { "bf16", G3_KV_BF16 }, { "f16", G3_KV_BF16 }, { "fp8", G3_KV_FP8 }, { "int8", G3_KV_INT8 }, { "q8_0", G3_KV_INT8 } };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(v, kinds[i].text)) { o->session.kv = kinds[i].kv; return true; }
    return usage("%s: \"%s\" is none of f32, bf16, fp8 and int8", name, v);
}

static bool set_device(settings *o, const char *name, const char *v)
{
    if (!strcmp(v, "auto")) o->open.backend = G3_BACKEND_AUTO;
    else if (!strcmp(v, "cpu")) o->open.backend = G3_BACKEND_CPU;
    else if (!strncmp(v, "cuda", 4) && (!v[4] || v[4] == ':')) {
        o->open.backend = G3_BACKEND_CUDA;
        return !v[4] || to_int(name, v + 5, 0, &o->open.device);
    }
    else return usage("%s: \"%s\" is none of auto, cpu and cuda[:N]", name, v);
    return true;
}

static bool set_switch(const char *name, const char *v, bool when_auto, bool *out)
{
    if (!strcmp(v, "on")) *out = true;
    else if (!strcmp(v, "off")) *out = false;
    else if (!strcmp(v, "auto")) *out = when_auto;
    else return usage("%s: \"%s\" is none of on, off and auto", name, v);
    return true;
}

static void print_help(void)
{
    char left[128];
    puts("chat: Gemma 3 in a terminal\n\n    chat [-m DIR]              a conversation\n    chat [-m DIR] -p TEXT      one answer\n");
    for (int i = 0; i < N_FLAGS && flags[i].id < F_NOTHING; i++) {
        snprintf(left, sizeof left, "%s %s", flags[i].names, flags[i].value ? flags[i].value : "");
        printf("  %-34s %s%s\n", left, strlen(left) > 34 ? "\n                                     " : "", flags[i].help);
    }
    puts("\nIn brackets: what counts without the flag. -ngl -fa --mlock --no-mmap --jinja and their like are accepted and explained.");
}

// One flag with its value. False: said why.
static bool set_flag(settings *o, const flag *f, const char *name, const char *v)
{
    g3_sampler *p = &o->generate.sampler;
    bool on;
    switch (f->id) {
    case F_MODEL:   o->model = v; return true;
    case F_PROMPT:  o->prompt = v; return true;
    case F_FILE:    o->file = v; return true;
    case F_IMAGE:
        if (o->n_images == MAX_IMAGES) return usage("%s: only 32 pictures are possible%s", name, "");
        o->images[o->n_images++] = v;
        return true;
    case F_PAN:     o->pan_and_scan = true; return true;
    case F_SYSTEM:  o->system = v; return true;
    case F_PREDICT:
        if (!to_int(name, v, -2, &o->generate.max_tokens)) return false;
        if (o->generate.max_tokens < 0) o->generate.max_tokens = 0;
        return true;
    case F_CONTEXT: if (!strcmp(v, "max")) { o->session.context = -1; return true; } return to_int(name, v, 0, &o->session.context);
    case F_BATCH:   return to_int(name, v, 1, &o->session.batch);
    case F_THREADS: return to_int(name, v, 0, &o->open.threads);
    case F_TEMP:    if (!to_float(name, v, 1e6f, &p->temperature)) return false; p->greedy = p->temperature == 0; return true;
    case F_TOP_K:   if (!to_int(name, v, -1, &p->top_k)) return false; if (p->top_k == 0) p->top_k = -1; return true;
    case F_TOP_P:   if (!to_float(name, v, 1, &p->top_p)) return false; if (p->top_p == 0) p->top_p = 1e-9f; return true;      // 0 keeps one; in the struct it is "unset"
    case F_MIN_P:   if (!to_float(name, v, 1, &p->min_p)) return false; if (p->min_p == 0) p->min_p = -1; return true;
    case F_PENALTY: if (!to_float(name, v, 1e6f, &p->repeat_penalty)) return false; if (p->repeat_penalty == 0) p->repeat_penalty = 1; return true;
    case F_SEED:    return to_seed(v, &p->seed) || usage("%s: \"%s\" is not a whole number", name, v);
    case F_STOP:
        if (o->generate.n_stops == MAX_STOPS) return usage("%s: only 16 stop texts are possible%s", name, "");
        o->stops[o->generate.n_stops++] = v;
        return true;
    case F_IGNORE_EOS: o->generate.ignore_stop_ids = true; return true;
    case F_RAW:     o->raw = true; return true;
    case F_KV:      return set_kv(o, name, v);
    case F_DEVICE:  return set_device(o, name, v);
    case F_DEVICES:
        puts("auto\ncpu\ncuda[:N]    an NVIDIA card, from compute capability 8.0 on; auto takes it where the model fits");
        exit(0);
    case F_KERNELS: o->open.kernel_path = v; return true;
    case F_CACHE:   o->cache = v; return true;
    case F_LIBRARIES: o->open.libraries = v; return true;
    case F_PRECISE: o->open.precise = true; return true;
    case F_NO_VISION: o->open.no_vision = true; return true;
    case F_SCREENED: o->screen_if_it_fits = !strcmp(v, "auto"); return set_switch(name, v, false, &o->open.screened_head);
    case F_MEMORY:  o->open.memory_limit = parse_bytes(v); return o->open.memory_limit || usage("%s: \"%s\" is not a size such as 24G or 500M", name, v);
    case F_PLAN:    o->plan = true; return true;
    case F_COLOR:   if (!set_switch(name, v ? v : "on", o->color, &on)) return false; o->color = on; return true;
    case F_QUIET:   o->quiet = true; return true;
    case F_VERBOSE: o->verbose = true; return true;
    case F_HELP:    print_help(); exit(0);
    case F_VERSION: printf("chat, gemma3.h %s\n", g3_version()); exit(0);
    case F_NOTHING:
        if (o->n_notes < MAX_NOTES) { o->note_flags[o->n_notes] = name; o->notes[o->n_notes++] = f->help; }
        return true;
    }
    return true;
}

static bool optional_value(const char *v) { return v && (!strcmp(v, "on") || !strcmp(v, "off") || !strcmp(v, "auto")); }

static bool read_flags(settings *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *equals = strchr(arg, '='), *value = NULL;
        if (arg[0] != '-' || !arg[1]) return usage("\"%s\" belongs to no flag; a prompt goes behind -p, a model behind -m%s", arg, "");
        const flag *f = find_flag(arg, strlen(arg));
        if (!f && equals && (f = find_flag(arg, (size_t)(equals - arg))) != NULL) {
            if (!f->value) return usage("%s takes no value%s", f->names, "");
            value = equals + 1;
        }
        else if (f && f->value && f->value[0] == '[') value = optional_value(argv[i + 1]) ? argv[++i] : NULL;
        else if (f && f->value && !(value = argv[++i])) return usage("%s: %s is missing", arg, f->value);
        if (!f) return unknown_flag(arg);
        if (!set_flag(o, f, arg, value)) return false;
    }
    if (o->n_images && o->raw) return usage("%s: a picture needs the chat template around it; leave out --raw%s", "--image", "");
    if (o->n_images && o->open.no_vision) return usage("%s: a picture needs the vision tower; leave out --no-vision%s", "--image", "");
    return true;
}

// ---- terminal: interrupts, progress, notes

static struct {
    g3_session *session;               // whom Ctrl-C cancels
    volatile sig_atomic_t interrupted;
    bool bar, bars, color, quiet;      // bar: one is on the screen
    double bar_since; const char *bar_stage;
} term;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (++term.interrupted > 2) _Exit(130);              // nothing answers: then at once
    g3_session_cancel(term.session);
#if defined(_WIN32)
    signal(SIGINT, on_interrupt);
#endif
}

// typing: a line being typed is given up. Else what is being written goes on: an answer's text must not be lost to the signal that ends it.
static void catch_interrupts(bool typing)
{
#if defined(_WIN32)
    (void)typing;
    signal(SIGINT, on_interrupt);
#else
    struct sigaction a;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_interrupt;
    a.sa_flags = typing ? 0 : SA_RESTART;
    sigaction(SIGINT, &a, NULL);
#endif
}

static double seconds(void)
{
#if defined(_WIN32)
    return (double)clock() / CLOCKS_PER_SEC;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
#endif
}

static void clear_bar(void)
{
    if (term.bar) fputs("\r\033[K", stderr);
    term.bar = false;
}

// For loading and for prompts alike: a bar once it has taken a third of a second. Non-zero: stop.
static int on_progress(void *user, const char *stage, uint64_t done, uint64_t total)
{
    char a[16], b[16];
    (void)user;
    if (!term.bars || !total) return term.interrupted;
    if (term.bar_stage != stage || done == 0) { term.bar_stage = stage; term.bar_since = seconds(); }
    if (done >= total) { clear_bar(); term.bar_stage = NULL; return term.interrupted; }
    if (seconds() - term.bar_since < 0.3) return term.interrupted;
    int part = (int)(done * 30 / total);
    bool bytes = !strcmp(stage, "weights");
    fprintf(stderr, "\r%-8.20s [%.*s%.*s] ", stage, part, "##############################", 30 - part, "..............................");
    if (bytes) fprintf(stderr, "%s of %s\033[K", human_bytes(done, a, sizeof a), human_bytes(total, b, sizeof b));
    else fprintf(stderr, "%llu of %llu %s\033[K", (unsigned long long)done, (unsigned long long)total, strcmp(stage, "pictures") ? "tokens" : "layers");
    term.bar = true;
    return term.interrupted;
}

static void note(const char *fmt, ...)                   // one line beside the conversation, unless -q
{
    va_list args;
    clear_bar();
    if (term.quiet) return;
    va_start(args, fmt);
    if (term.color) fputs("\033[2m", stderr);
    vfprintf(stderr, fmt, args);
    fputs(term.color ? "\033[0m\n" : "\n", stderr);
    va_end(args);
}

static void complain(const char *what)
{
    clear_bar();
    fprintf(stderr, "chat: %s\n", what);
}

static void on_log(void *user, g3_level level, const char *line)
{
    const settings *o = (const settings *)user;
    if (level == G3_LOG_ERROR || (level == G3_LOG_WARN && !o->quiet) || o->verbose) complain(line);
}

// ---- typing: one message at a time. What is pasted as a block is one message, and so is what stands between two """

static bool more_waits(void)                             // are there further lines already, as after a paste?
{
#if defined(_WIN32)
    return false;
#else
    struct pollfd fd = { 0, POLLIN, 0 };
    return is_terminal(0) && poll(&fd, 1, 20) > 0 && (fd.revents & POLLIN);
#endif
}

#if defined(HAVE_READLINE)
static int give_up_line(void)                            // called by readline ten times a second
{
    if (term.interrupted) { rl_replace_line("", 0); rl_done = 1; }
    return 0;
}
#endif

static bool plain_line(text *t)
{
    int c = 0, any = 0;
    while (!term.interrupted && (c = getchar()) != EOF) {
        char byte = (char)c;
        any = 1;
        if (c == '\n') break;
        text_add(t, &byte, 1);
    }
    if (c == EOF) clearerr(stdin);
    return any || term.interrupted;
}

static bool read_line(const char *prompt, text *t)       // appended to *t without its newline; false at the end of the input
{
#if defined(HAVE_READLINE) || defined(HAVE_EDITLINE)
    if (is_terminal(0) && is_terminal(2)) {
        char *line;
        rl_outstream = stderr;                           // stdout is for the model alone
#if defined(HAVE_READLINE)
        rl_event_hook = give_up_line;
#endif
        line = readline(prompt);
        if (!line) return term.interrupted != 0;
        text_add(t, line, strlen(line));
        if (*line) add_history(line);
        free(line);
        return true;
    }
#endif
    if (is_terminal(0)) fputs(prompt, stderr);
    fflush(stderr);
    return plain_line(t);
}

// A message into *t; false at the end of the input. After Ctrl-C it is empty.
static bool read_message(text *t)
{
    size_t from = 0;
    term.interrupted = 0;
    t->n = 0;
    text_add(t, "", 0);
    if (!read_line("> ", t)) return false;
    if (!strncmp(t->p, "\"\"\"", 3)) {
        memmove(t->p, t->p + 3, t->n - 2);
        t->n -= 3;
        for (;;) {                                       // until a line ends in three quotes
            if (t->n >= 3 && t->n - from >= 3 && !strcmp(t->p + t->n - 3, "\"\"\"")) { t->n -= 3; t->p[t->n] = 0; break; }
            text_add(t, "\n", 1);
            from = t->n;
            if (term.interrupted || !read_line(". ", t)) break;
        }
    }
    else while (!term.interrupted && more_waits()) {
        text_add(t, "\n", 1);
        if (!read_line("", t)) break;
    }
    if (!term.interrupted) return true;
    note("\n(Ctrl-D or /quit leaves)");
    term.interrupted = 0;
    t->n = 0;
    t->p[0] = 0;
    return true;
}

static bool read_file(const char *path, text *t)
{
    char chunk[65536];
    size_t n;
    FILE *f = strcmp(path, "-") ? fopen(path, "rb") : stdin;
    if (!f) return usage("-f %s: %s", path, strerror(errno));
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) text_add(t, chunk, n);
    bool ok = !ferror(f);
    if (f != stdin) fclose(f);
    return ok || usage("-f %s: %s", path, "cannot be read");
}

// ---- conversation

typedef struct parts { g3_part *p; int n; } parts;       // texts and pictures in order, all of them ours

typedef struct turn { parts user; char *answer; } turn;

typedef struct chat {
    settings *o;
    g3_model *model;
    g3_session *session;
    g3_plan plan;
    char *system;                      // NULL: none
    turn *turns; int n;                // the last one is open while it is being answered
    parts waiting;                     // for the next message: pictures, and words whose picture could not be read
    bool failed;                       // a script's picture could not be read
    bool in_step;                      // the session holds just these turns, with the answers' own tokens
    text answer;
    int prompt_tokens, new_tokens, pictures; double prompt_s, new_s, picture_s;      // since the program began
} chat;

static void free_parts(parts *t)
{
    while (t->n) {
        const g3_part *p = &t->p[--t->n];
        g3_image *img = (g3_image *)(uintptr_t)p->image;
        if (img) g3_image_free(NULL, img);
        free(img);
        free((char *)(uintptr_t)p->text);
    }
    free(t->p);
    t->p = NULL;
}

static g3_part *add_part(parts *t)
{
    t->p = (g3_part *)need(realloc(t->p, (size_t)(t->n + 1) * sizeof *t->p));
    memset(&t->p[t->n], 0, sizeof *t->p);
    return &t->p[t->n++];
}

static void add_words(parts *t, const char *p, size_t n)
{
    text words = { 0 };
    g3_part *last = t->n ? &t->p[t->n - 1] : NULL;
    bool joins = last && last->text;                     // to words that wait already
    if (joins) { text_add(&words, last->text, strlen(last->text)); text_add(&words, "\n", 1); }
    text_add(&words, p, n);
    if (joins) free((char *)(uintptr_t)last->text);
    else last = add_part(t);
    last->text = words.p;
}

static int on_token(void *user, const g3_token *t)
{
    chat *c = (chat *)user;
    clear_bar();
    text_add(&c->answer, t->text, (size_t)t->size);
    fwrite(t->text, 1, (size_t)t->size, stdout);
    return fflush(stdout) != 0 || term.interrupted;
}

static void free_turn(turn *t)
{
    free_parts(&t->user);
    free(t->answer);
}

static void drop_last(chat *c)
{
    free_turn(&c->turns[--c->n]);
    c->in_step = false;
}

static void drop_oldest(chat *c)
{
    free_turn(&c->turns[0]);
    memmove(c->turns, c->turns + 1, (size_t)--c->n * sizeof *c->turns);
    c->in_step = false;
}

static void push_turn(chat *c)                           // what waits becomes the turn to be answered
{
    c->turns = (turn *)need(realloc(c->turns, (size_t)(c->n + 1) * sizeof *c->turns));
    c->turns[c->n].user = c->waiting;
    c->turns[c->n++].answer = NULL;
    memset(&c->waiting, 0, sizeof c->waiting);
}

// The conversation as messages; the caller frees the array.
static g3_message *messages(const chat *c, int *n)
{
    g3_message *m = (g3_message *)need(calloc((size_t)c->n * 2 + 1, sizeof *m));
    *n = 0;
    if (c->system) { m[*n].role = "system"; m[(*n)++].text = c->system; }
    for (int i = 0; i < c->n; i++) {
        m[*n].role = "user";
        m[*n].parts = c->turns[i].user.p;
        m[(*n)++].n_parts = c->turns[i].user.n;
        if (!c->turns[i].answer) continue;
        m[*n].role = "assistant";
        m[(*n)++].text = c->turns[i].answer;
    }
    return m;
}

// ---- pictures: from a flag, from /image, or dragged into the terminal, which types the file's path

static int waiting_pictures(const chat *c)
{
    int n = 0;
    for (int i = 0; i < c->waiting.n; i++) n += c->waiting.p[i].image != NULL;
    return n;
}

static void tell_waiting(const chat *c)
{
    int pictures = waiting_pictures(c);
    if (c->waiting.n > pictures) note("(your words%s wait for the next message; Enter alone sends them, /undo drops them)", pictures ? " and pictures" : "");
    else if (pictures) note("(%d picture%s for the next message; Enter alone sends %s, /undo drops %s)", pictures, pictures > 1 ? "s" : "", pictures > 1 ? "them" : "it", pictures > 1 ? "them" : "it");
}

static bool can_see(const chat *c)
{
    char why[512];
    if (c->o->raw) { complain("a picture needs the chat template around it; --raw goes without"); return false; }
    if (!c->model || g3_model_get_info(c->model).vision) return true;              // not open yet: seen to later
    snprintf(why, sizeof why, "%.200s reads text only: %s", g3_model_get_info(c->model).name, c->o->open.no_vision ? "--no-vision left its vision tower out" : "its files bring no vision tower");
    complain(why);
    return false;
}

// What the model sees, a square whatever the picture's shape, squeezed further. Each character is two pixels: an upper half
// block with a colour of its own, on a background that is the lower one's.
static void show_picture(const g3_image *img)
{
    enum { SIDE = 32 };
    const char *kind = getenv("TERM");
    g3_image small;
    if (!term.bars || !term.color || !kind || !strcmp(kind, "dumb") || g3_image_resize(img, SIDE, SIDE, NULL, &small, NULL) != G3_OK) return;
    const int stride = small.stride ? small.stride : 3 * SIDE;
    for (int y = 0; y < SIDE; y += 2) {
        for (int x = 0; x < SIDE; x++) {
            const uint8_t *up = small.rgb + y * stride + 3 * x, *low = up + stride;
            fprintf(stderr, "\033[38;2;%d;%d;%dm\033[48;2;%d;%d;%dm\342\226\200", up[0], up[1], up[2], low[0], low[1], low[2]);
        }
        fputs("\033[0m\n", stderr);
    }
    g3_image_free(NULL, &small);
}

// One more picture for the next message. False: said why.
static bool add_picture(chat *c, const char *path)
{
    g3_error err;
    g3_image *img = (g3_image *)need(calloc(1, sizeof *img));
    if (g3_image_load(path, NULL, img, &err) != G3_OK) { complain(err.text); free(img); return false; }
    g3_part *p = add_part(&c->waiting);
    p->image = img;
    p->pan_and_scan = c->o->pan_and_scan;
    show_picture(img);
    note("(%s: %d x %d pixels)", path, img->width, img->height);
    return true;
}

enum { LONGEST_PATH = 4096 };

// One word as shells read it, where 'a b', "a b" and a\ b are one: its length in *p; 0 where a quote stays open.
static size_t shell_word(const char *p, text *word)
{
    char quote = 0;
    size_t n = 0;
    for (; p[n] && n < LONGEST_PATH && (quote || !strchr(" \t\r\n", p[n])); n++) {
        if (quote ? p[n] == quote : p[n] == '\'' || p[n] == '"') { quote = quote ? 0 : p[n]; continue; }
        if (p[n] == '\\' && p[n + 1] && (!quote || (quote == '"' && strchr("\"\\$`", p[n + 1])))) n++;
        text_add(word, p + n, 1);
    }
    return quote ? 0 : n;
}

static int hex(char c) { return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1; }

static void file_url(text *t)                            // file:///a%20b or file://localhost/a%20b becomes /a b
{
    if (!t->n || strncmp(t->p, "file://", 7)) return;
    const char *from = t->p + (strncmp(t->p + 7, "localhost/", 10) ? 7 : 16);
    char *to = t->p;
    for (; *from; from++) {
        bool coded = *from == '%' && hex(from[1]) >= 0 && hex(from[2]) >= 0;
        *to++ = (char)(coded ? hex(from[1]) * 16 + hex(from[2]) : *from);
        if (coded) from += 2;
    }
    *to = 0;
    t->n = (size_t)(to - t->p);
}

// Does *p begin with the path of a picture, as a terminal types it for a file dropped on it? Always a whole path, with its blanks
// quoted, escaped or left alone. How long it is; 0: it does not.
static size_t dropped_picture(const char *p, text *path)
{
    size_t n = strlen(p);
    path->n = 0;
    if (!strchr("/'\"\\f", *p)) return 0;
    if (*p == '/' && n < LONGEST_PATH) {
        text_add(path, p, n);
        while (strchr(" \t\r\n", path->p[path->n - 1])) path->p[--path->n] = 0;
        if (names_picture(path->p)) return n;            // all of it, blanks and all
    }
    path->n = 0;
    text_add(path, "", 0);
    n = shell_word(p, path);
    file_url(path);
    return n && path->p[0] == '/' && names_picture(path->p) ? n : 0;
}

static void add_trimmed(chat *c, const char *p, const char *end)
{
    while (p < end && strchr(" \t\r\n", *p)) p++;
    while (p < end && strchr(" \t\r\n", end[-1])) end--;
    if (p < end) add_words(&c->waiting, p, (size_t)(end - p));
}

// A typed message: its words and the pictures dropped among them, in order. False: a picture could not be read.
static bool add_typed(chat *c, const char *line)
{
    text path = { 0 };
    const char *words = line;
    bool ok = true;
    for (const char *p = line; *p; ) {
        size_t n = dropped_picture(p, &path);
        if (n && !can_see(c)) { ok = false; break; }     // the path waits as words like others
        if (n) {
            add_trimmed(c, words, p);
            ok = add_picture(c, path.p) && ok;
            words = p += n;
        }
        else p += strcspn(p, " \t\r\n");
        p += strspn(p, " \t\r\n");
    }
    add_trimmed(c, words, words + strlen(words));
    text_free(&path);
    return ok;
}

// /image FILE: any path, as it is or as a shell would want it. False: said why.
static bool image_command(chat *c, const char *file)
{
    text path = { 0 };
    const char *home = getenv("HOME");
    if (!strncmp(file, "~/", 2) && home) { text_add(&path, home, strlen(home)); file++; }
    text_add(&path, file, strlen(file));
    while (path.n && strchr(" \t\r\n", path.p[path.n - 1])) path.p[--path.n] = 0;
    if (!file_exists(path.p)) {
        text word = { 0 };
        text_add(&word, "", 0);
        if (shell_word(path.p, &word)) { file_url(&word); text_free(&path); path = word; }
        else text_free(&word);
    }
    if (!path.p[0]) complain("/image FILE: which file?");
    bool ok = path.p[0] && can_see(c) && add_picture(c, path.p);
    if (ok) tell_waiting(c);
    text_free(&path);
    return ok;
}

// ---- answering

static int rendered_size(const chat *c)                  // tokens of the conversation, with what has been answered so far
{
    int n, size;
    g3_message *m = messages(c, &n);
    size = g3_render(c->model, m, n, true, NULL, 0, NULL);
    free(m);
    return size + (c->answer.n ? g3_tokenize(c->model, c->answer.p, c->answer.n, G3_TOKENIZE_PLAIN, NULL, 0) : 0);
}

// The context is full: drop turns from the oldest on until half of it is free, so that this is not needed at every turn.
static bool make_room(chat *c)
{
    int context = g3_session_stats(c->session).context, dropped = 0;
    for (; c->n > 1 && (!dropped || rendered_size(c) > context / 2); dropped++) drop_oldest(c);
    if (dropped) note("%s(the context of %d tokens is full: the oldest %s dropped, the rest is read again)", c->answer.n ? "\n" : "", context, dropped > 1 ? "turns are" : "turn is");
    return dropped > 0;
}

static g3_result add_raw(chat *c, const char *p, size_t size, int how, g3_error *err)
{
    int n = g3_tokenize(c->model, p, size, how, NULL, 0);
    int *ids = (int *)need(malloc((size_t)(n > 0 ? n : 1) * sizeof *ids));
    g3_tokenize(c->model, p, size, how, ids, n);
    g3_result r = g3_add_tokens(c->session, ids, n, err);
    free(ids);
    return r;
}

// Bring the session to where the answer begins, or where the part of it that is there ends.
static g3_result read_turns(chat *c, g3_error *err)
{
    const parts *last = &c->turns[c->n - 1].user;
    if (c->o->raw) {                                     // without pictures: one text
        g3_session_rewind(c->session, 0, NULL);
        return add_raw(c, last->p->text, strlen(last->p->text), G3_TOKENIZE_BOS, err);
    }
    if (c->in_step) {                                    // the usual case: only what is new is read
        g3_turn t = { .parts = last->p, .n_parts = last->n, .system = c->n == 1 ? c->system : NULL };
        return g3_add_turn(c->session, &t, err);
    }
    int n;
    g3_message *m = messages(c, &n);
    g3_result r = g3_add_messages(c->session, m, n, true, err);
    free(m);
    return r == G3_OK && c->answer.n ? add_raw(c, c->answer.p, c->answer.n, G3_TOKENIZE_PLAIN, err) : r;
}

static void count_tokens(chat *c)
{
    g3_stats s = g3_session_stats(c->session);
    c->prompt_tokens += s.prompt_tokens;
    c->prompt_s += s.prompt_s;
    c->pictures += s.images;
    c->picture_s += s.image_s;
    c->new_tokens += s.new_tokens;
    c->new_s += s.new_s;
}

// Read what is new and write the answer, making room as often as needed. The number of tokens, or a g3_result.
static int write_answer(chat *c, g3_error *err)
{
    g3_generate_desc g = c->o->generate;
    int made = 0, limit = g.max_tokens;
    for (;;) {
        int r = (int)read_turns(c, err);
        c->in_step = false;                              // until the answer is complete
        if (r == G3_OK && term.interrupted) return made;
        if (r == G3_OK) {
            g.max_tokens = limit ? limit - made : 0;
            r = g3_generate(c->session, &g, err);
            if (r >= 0) { made += r; count_tokens(c); }
            if (r >= 0 && g3_session_finish(c->session) != G3_FINISH_CONTEXT) { c->in_step = true; return made; }
            if (limit && made >= limit) return made;
        }
        bool full = r >= 0 || r == G3_ERR_CONTEXT;
        if (full && !c->o->raw && make_room(c)) continue;
        if (full && made) note("\n(the context of %d tokens is full)", g3_session_stats(c->session).context);
        return made ? made : r;
    }
}

// Answers the last turn. False: there is no answer, and the turn is gone.
static bool answer(chat *c)
{
    g3_error err;
    term.interrupted = 0;
    c->answer.n = 0;
    text_add(&c->answer, "", 0);
    catch_interrupts(false);
    int made = write_answer(c, &err);
    clear_bar();
    if (c->answer.n && c->answer.p[c->answer.n - 1] != '\n') putchar('\n');
    fflush(stdout);
    catch_interrupts(true);
    if (made < 0) {
        if (term.interrupted) note("(stopped)");
        else complain(err.text);
        drop_last(c);
        return false;
    }
    if (term.interrupted) note("(stopped)");
    else if (g3_session_finish(c->session) == G3_FINISH_LENGTH && !c->o->prompt && !c->o->file) note("(%d tokens: -n says no more)", made);
    c->turns[c->n - 1].answer = copy_text(c->answer.p);
    if (c->o->raw) c->in_step = false;
    return true;
}

// ---- commands

static void print_plan(FILE *f, const g3_plan *p)
{
    char a[16];
    for (int i = 0; i < p->n_items; i++) fprintf(f, "  %-36s %16llu  %s\n", p->items[i].name, (unsigned long long)p->items[i].bytes, human_bytes(p->items[i].bytes, a, sizeof a));
    fprintf(f, "  %-36s %16llu  %s\n", "total: model and session", (unsigned long long)p->total, human_bytes(p->total, a, sizeof a));
    fprintf(f, "  %-36s %16llu  %s\n", "host: at its peak", (unsigned long long)p->host, human_bytes(p->host, a, sizeof a));
    if (p->available) fprintf(f, "  %-36s %16llu  %s\n", "available", (unsigned long long)p->available, human_bytes(p->available, a, sizeof a));
    if (p->max_context) fprintf(f, "  the largest context that fits is %d tokens\n", p->max_context);
    if (!p->fits) fprintf(f, "  it does not fit%s%s\n", p->advice[0] ? ": " : "", p->advice);
}

static void print_stats(chat *c)
{
    char a[16], b[16], d[16];
    g3_stats s = g3_session_stats(c->session);
    clear_bar();
    if (c->pictures) note("pictures looked at %d, %.2f seconds each", c->pictures, c->picture_s / c->pictures);
    note("prompt %d tokens, %.0f a second; answer %d tokens, %.1f a second; context %d of %d; memory %s (model %s, session %s)",
         c->prompt_tokens, c->prompt_s > 0 ? c->prompt_tokens / c->prompt_s : 0, c->new_tokens, c->new_s > 0 ? c->new_tokens / c->new_s : 0, s.held, s.context,
         human_bytes(c->plan.total + c->plan.host, a, sizeof a), human_bytes(c->plan.weights, b, sizeof b), human_bytes(s.memory, d, sizeof d));
}

static void next_seed(chat *c)                           // the draw at a position depends on seed and position alone: another answer needs another seed
{
    uint64_t *seed = &c->o->generate.sampler.seed;
    *seed = (*seed ? *seed : g3_session_seed(c->session)) + 1;
    if (!*seed) *seed = 1;
}

static void reset(chat *c)
{
    while (c->n) drop_last(c);
    free_parts(&c->waiting);
    g3_session_rewind(c->session, 0, NULL);
    c->in_step = true;
}

static void set_system(chat *c, const char *words)
{
    free(c->system);
    c->system = *words ? copy_text(words) : NULL;
    if (c->n) c->in_step = false;                        // it stands in front of the first turn: the next one reads all again
    note(c->system ? "(system text set)" : "(no system text)");
}

static void retry(chat *c)
{
    if (!c->n) { note("(there is nothing to retry)"); return; }
    turn *t = &c->turns[c->n - 1];
    if (c->o->generate.sampler.greedy) note("(--temp 0 finds the same answer again)");
    next_seed(c);
    free(t->answer);
    t->answer = NULL;
    c->in_step = false;
    answer(c);
}

// A line that begins with a slash. False: leave.
static bool command(chat *c, const char *line)
{
    size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
#define IS(name) (n == strlen(name) && !strncmp(line, name, n))
    if (IS("/quit") || IS("/exit") || IS("/q")) return false;
    if (IS("/reset") || IS("/clear")) { reset(c); note("(a new conversation)"); }
    else if (IS("/system")) set_system(c, rest);
    else if (IS("/retry")) retry(c);
    else if (IS("/image")) { if (!image_command(c, rest) && !is_terminal(0)) { c->failed = true; return false; } }   // nobody is there to choose another
    else if (IS("/undo") && c->waiting.n) { free_parts(&c->waiting); note("(nothing waits any more)"); }
    else if (IS("/undo")) {
        if (c->n) drop_last(c);
        if (!c->n) reset(c);
        note("(turns left: %d)", c->n);
    }
    else if (IS("/seed")) {
        if (*rest && !to_seed(rest, &c->o->generate.sampler.seed)) note("(\"%s\" is not a whole number)", rest);
        uint64_t seed = c->o->generate.sampler.seed ? c->o->generate.sampler.seed : g3_session_seed(c->session);
        note("(seed %llu)", (unsigned long long)seed);
    }
    else if (IS("/stats")) print_stats(c);
    else if (IS("/plan")) { if (!term.quiet) print_plan(stderr, &c->plan); }
    else if (IS("/help") || IS("/?"))
        note("/image FILE     a picture for the next message; one dragged into the terminal does the same\n/reset          forget the conversation\n/system TEXT    how to behave; empty: no such text\n/retry          answer again, with another seed\n"
             "/undo           take back what waits for the next message, else the last turn\n/seed [N]       show or set the seed\n/stats          speed and memory\n/plan           where the memory goes\n"
             "/quit           leave (Ctrl-D too)\n\"\"\"             opens and closes a message of several lines; a pasted block is one message\nCtrl-C          stops the answer");
    else note("(%.*s is no command; /help lists them, and a space in front makes it a message)", (int)n, line);
#undef IS
    return true;
}

// ---- main

static void talk(chat *c)
{
    text line = { 0 }, path = { 0 };
    while (read_message(&line)) {
        const bool drops = is_terminal(0) && !c->o->raw, blank = !line.p[strspn(line.p, " \t\r\n")];
        if (blank && !c->waiting.n) continue;
        if (line.p[0] == '/' && !(drops && dropped_picture(line.p, &path))) { if (!command(c, line.p)) break; continue; }
        bool ready = true;
        if (drops) ready = add_typed(c, line.p) && (blank || c->waiting.n > waiting_pictures(c));
        else if (!blank) add_words(&c->waiting, line.p, line.n);
        if (!ready) { tell_waiting(c); continue; }       // a picture has no question yet, or could not be read
        push_turn(c);
        answer(c);
        if (ferror(stdout)) break;
    }
    if (is_terminal(0) && !term.quiet) fputs("\n", stderr);
    text_free(&line);
    text_free(&path);
}

static bool one_answer(chat *c)
{
    text t = { 0 };
    if (c->o->prompt) text_add(&t, c->o->prompt, strlen(c->o->prompt));
    if (c->o->prompt && c->o->file) text_add(&t, "\n\n", 2);
    bool ok = !c->o->file || read_file(c->o->file, &t);
    if (ok) { add_words(&c->waiting, t.p ? t.p : "", t.n); push_turn(c); }
    ok = ok && answer(c);
    text_free(&t);
    return ok;
}

static const char *choose_model(const char *asked, char *buf, size_t size)
{
    static const char *const here[] = { ".", "build/gemma-3-270m-nf4", "build/gemma-3-270m" };
    if (asked) return find_model(asked, buf, size);
    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
        if (has_config(here[i])) return here[i];
    return NULL;
}

// Where compiled kernels are kept. Without --kernel-cache: gemma3 in the user's cache directory, which the library makes; NULL: nowhere.
static const char *kernel_cache(const char *asked, char *buf, size_t size)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *local = getenv("LOCALAPPDATA");
    if (asked) return strcmp(asked, "none") ? asked : NULL;
    int n = base && *base ? snprintf(buf, size, "%s/gemma3", base) : local && *local ? snprintf(buf, size, "%s/gemma3", local) : home && *home ? snprintf(buf, size, "%s/.cache/gemma3", home) : 0;
    return n > 0 && (size_t)n < size ? buf : NULL;
}

// The 8-bit copy of the head makes writing faster; by default it is taken where it fits beside all that was asked for.
static bool open_all(chat *c, g3_error *err)
{
    g3_model_desc with = c->o->open;
    const bool maybe = c->o->screen_if_it_fits && c->o->session.context >= 0;
    with.screened_head = with.screened_head || maybe;
    c->model = g3_model_open(&with, err);
    if (!c->model && maybe && err->code == G3_ERR_MEMORY) c->model = g3_model_open(&c->o->open, err);
    clear_bar();
    c->plan = g3_model_get_plan(c->model);
    c->session = c->model ? g3_session_open(c->model, &c->o->session, err) : NULL;
    term.session = c->session;
    return c->session != NULL;
}

static void greet(const chat *c)
{
    char a[16];
    g3_model_info i = g3_model_get_info(c->model);
    if (!is_terminal(0)) return;
    note("%s on %s, %d threads, context %d, memory %s. /help lists commands, Ctrl-C stops an answer, Ctrl-D leaves.", i.name, i.device, g3_model_get_desc(c->model).threads,
         g3_session_stats(c->session).context, human_bytes(c->plan.total + c->plan.host, a, sizeof a));
}

static int run(chat *c, settings *o)
{
    g3_error err;
    bool ok = true;
    if (o->plan && g3_plan_memory(&o->open, &c->plan, &err) != G3_OK) { complain(err.text); return 1; }
    if (o->plan) { print_plan(stdout, &c->plan); return c->plan.fits ? 0 : 1; }
    for (int i = 0; i < o->n_images; i++)                // before the model: a wrong path should not cost the time of loading
        if (!add_picture(c, o->images[i])) return 1;
    if (!open_all(c, &err)) { complain(err.text); return term.interrupted ? 130 : 1; }
    if (c->waiting.n && !can_see(c)) return 1;
    if (o->system) c->system = copy_text(o->system);
    c->in_step = true;
    if (o->prompt || o->file) ok = one_answer(c);
    else { greet(c); talk(c); ok = !c->failed; }
    if (c->new_tokens && (o->prompt || o->file || is_terminal(0) || o->verbose)) print_stats(c);
    if (o->verbose) note("seed %llu", (unsigned long long)g3_session_seed(c->session));
    return ferror(stdout) ? 1 : ok ? 0 : term.interrupted ? 130 : 1;
}

int main(int argc, char **argv)
{
    settings o;
    chat c;
    char dir[4096], cache[4096];
    memset(&o, 0, sizeof o);
    memset(&c, 0, sizeof c);
    o.screen_if_it_fits = true;
    o.color = is_terminal(2) && !getenv("NO_COLOR");
    if (!read_flags(&o, argc, argv)) return 2;
    term.quiet = o.quiet;
    term.color = o.color;
    term.bars = is_terminal(2) && !o.quiet;
    for (int i = 0; i < o.n_notes; i++) note("chat: %s: %s", o.note_flags[i], o.notes[i]);
    o.open.path = choose_model(o.model, dir, sizeof dir);
    if (!o.open.path) { complain("no model here: `make model` fetches a small one, -m DIR names another"); return 1; }
    if (o.open.backend != G3_BACKEND_CPU && !o.plan) o.open.cache_dir = kernel_cache(o.cache, cache, sizeof cache);
    o.open.session = &o.session;
    o.open.sessions = 1;
    o.open.logger.log_fn = on_log;
    o.open.logger.user = &o;
    o.open.progress.progress_fn = on_progress;
    o.session.progress.progress_fn = on_progress;
    o.generate.stops = o.stops;
    o.generate.token_fn = on_token;
    o.generate.user = &c;
    c.o = &o;
    catch_interrupts(true);
    int status = run(&c, &o);
    term.session = NULL;
    g3_session_close(c.session);
    g3_model_close(c.model);
    while (c.n) drop_last(&c);
    free_parts(&c.waiting);
    free(c.turns);
    free(c.system);
    text_free(&c.answer);
    return status;
}
