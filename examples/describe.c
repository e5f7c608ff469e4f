// describe: says what is in pictures, one line each, for lists and for other programs.
//
//     describe -m DIR photos/                        FILE: what is in it
//     describe -m DIR --json a.jpg b.png             one JSON object a line
//     describe -m DIR --map map.png a.jpg            and where the model looked while it answered
//
// Shows: one model and one session for any number of pictures (g3_session_rewind to 0 starts afresh), a turn of parts, and the probe:
// which of a picture's soft tokens the answer attends to. A picture that cannot be read gets its line on stderr and the run goes
// on; the exit status is 1 then. Reading order: answers, where the model looked, lists of files, main.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#include "common.h"
#include <math.h>
#if defined(__has_include)
#if __has_include(<stb_image_write.h>)
#define WRITER <stb_image_write.h>
#elif __has_include(<stb/stb_image_write.h>)
#define WRITER <stb/stb_image_write.h>
#endif
#endif
#ifdef WRITER
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include WRITER
#endif

typedef struct options { const char *model, *prompt, *map; bool json, pan_and_scan; g3_model_desc open; g3_session_desc session; g3_generate_desc generate; } options;

typedef struct answer { char *text; size_t size, room; } answer;

static int complain(const char *what) { fprintf(stderr, "describe: %s\n", what); return 1; }

// ---- answers

static int on_token(void *user, const g3_token *t)       // gathers the text; non-zero stops
{
    answer *a = (answer *)user;
    if (a->size + (size_t)t->size + 1 > a->room) {
        size_t room = 2 * a->room + (size_t)t->size + 256;
        char *more = (char *)realloc(a->text, room);
        if (!more) return 1;
        a->text = more;
        a->room = room;
    }
    if (t->size) memcpy(a->text + a->size, t->text, (size_t)t->size);
    a->text[a->size += (size_t)t->size] = 0;
    return 0;
}

static int character(const char *p)                      // bytes of the UTF-8 character at p; 0: it is none
{
    const unsigned char *s = (const unsigned char *)p;
    int size = s[0] < 0x80 ? 1 : s[0] >= 0xC2 && s[0] < 0xE0 ? 2 : s[0] >= 0xE0 && s[0] < 0xF0 ? 3 : s[0] >= 0xF0 && s[0] < 0xF5 ? 4 : 0;
    for (int i = 1; i < size; i++)
        if ((s[i] & 0xC0) != 0x80) return 0;
    bool surrogate = s[0] == 0xED && s[1] > 0x9F, overlong = (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90), beyond = s[0] == 0xF4 && s[1] > 0x8F;
    return surrogate || overlong || beyond ? 0 : size;
}

static void print_json_string(const char *p)             // names of files may hold any bytes, JSON may not
{
    putchar('"');
    while (*p) {
        int n = character(p);
        if (!n) fputs("\\ufffd", stdout);
        else if (*p == '"' || *p == '\\') printf("\\%c", *p);
        else if (*p == '\n') fputs("\\n", stdout);
        else if ((unsigned char)*p < 0x20 || *p == 0x7F) printf("\\u%04x", (unsigned)*p);
        else fwrite(p, 1, (size_t)n, stdout);
        p += n ? n : 1;
    }
    putchar('"');
}

static void print_line(const char *p)                    // what would begin another line becomes a space
{
    for (; *p; p++) putchar((unsigned char)*p < 0x20 || *p == 0x7F ? ' ' : *p);
}

static void print_answer(const options *o, const char *file, const g3_image *img, const char *text, int tokens)
{
    text += strspn(text, " \n");
    if (o->json) {
        fputs("{\"file\":", stdout);
        print_json_string(file);
        printf(",\"width\":%d,\"height\":%d,\"tokens\":%d,\"text\":", img->width, img->height, tokens);
        print_json_string(text);
        puts("}");
    }
    else {
        print_line(file);
        fputs(": ", stdout);
        print_line(text);
        putchar('\n');
    }
    fflush(stdout);
}

// ---- where the model looked: the attention that each soft token of the picture gets from the rows that write the answer, the sum
// over layers and heads. A soft token stands for a square of the picture: 16 x 16 of them, row by row

typedef struct gaze { int pos, n; bool answering; double sum[4096]; } gaze;      // position of the first soft token, how many

static int on_view(void *user, const g3_view *v)
{
    gaze *g = (gaze *)user;
    if (v->point == G3_POINT_VISION) {                   // with --pan-and-scan the whole picture comes first, then its crops
        if (!g->n && !strcmp(v->name, "soft tokens") && v->rows <= 4096) { g->pos = v->pos; g->n = v->rows; }
        return 0;
    }
    // Of the prompt only the last row counts: it writes the answer's first token. A step shows its last row, layer after layer.
    if (!g->answering && v->layer == 0) memset(g->sum, 0, sizeof g->sum);
    for (int h = 0; h < v->heads; h++)
        for (int t = 0; t < g->n; t++) {
            int col = g->pos + t - v->key;               // sliding layers no longer see what is far back
            if (col >= 0 && col < v->cols) g->sum[t] += (double)v->data[h * v->cols + col];
        }
    return 0;
}

// The picture as the model sees it, grey; from the square that gets the least attention to the one that gets the most it turns red.
// The square root lets weak ones show.
static int write_map(const char *path, const g3_image *img, const gaze *g, g3_error *err)
{
    enum { SIDE = 896 };
    static uint8_t out[SIDE * SIDE * 3];
    const int grid = (int)(sqrt((double)g->n) + 0.5);
    double min = g->sum[0], max = min;
    g3_image square;
    for (int t = 1; t < g->n; t++) { min = fmin(min, g->sum[t]); max = fmax(max, g->sum[t]); }
    if (g3_image_resize(img, SIDE, SIDE, NULL, &square, err) != G3_OK) return complain(err->text);
    const int stride = square.stride ? square.stride : 3 * SIDE;
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++) {
            const uint8_t *p = square.rgb + y * stride + 3 * x;
            uint8_t *q = out + (y * SIDE + x) * 3;
            const double heat = max > min ? sqrt((g->sum[y * grid / SIDE * grid + x * grid / SIDE] - min) / (max - min)) : 0;
            const bool line = x * grid % SIDE < grid || y * grid % SIDE < grid;
            const double grey = (0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]) * (line ? 0.5 : 1);
            q[0] = (uint8_t)(grey + (255 - grey) * heat * (line ? 0.5 : 0.8) + 0.5);
            q[1] = q[2] = (uint8_t)(grey * (1 - 0.8 * heat) + 0.5);
        }
    g3_image_free(NULL, &square);
#ifdef WRITER
    if (stbi_write_png(path, SIDE, SIDE, 3, out, 3 * SIDE)) return 0;
#endif
    fprintf(stderr, "describe: %s: cannot be written\n", path);
    return 1;
}

// ---- one picture

static int describe(const options *o, g3_session *s, gaze *g, const char *file)      // 0: it has its line
{
    g3_error err;
    g3_image img;
    answer a = { NULL, 0, 0 };
    if (g3_image_load(file, NULL, &img, &err) != G3_OK) return complain(err.text);
    g3_part parts[2] = { { .image = &img, .pan_and_scan = o->pan_and_scan }, { .text = o->prompt } };
    g3_turn turn = { .parts = parts, .n_parts = 2 };
    g3_generate_desc how = o->generate;
    how.token_fn = on_token;
    how.user = &a;
    g3_session_rewind(s, 0, NULL);
    g->answering = false;
    int n = (int)g3_add_turn(s, &turn, &err);
    g->answering = true;
    if (n == G3_OK) n = g3_generate(s, &how, &err);
    int status = n < 0;
    if (n < 0) fprintf(stderr, "describe: %s: %s\n", file, err.text);
    else print_answer(o, file, &img, a.text ? a.text : "", n);
    if (n >= 0 && o->map) status = write_map(o->map, &img, g, &err);
    free(a.text);
    g3_image_free(NULL, &img);
    return status;
}

// ---- lists of files

typedef struct list { char **p; int n; } list;

static void add_name(list *l, const char *dir, const char *name)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    char **more = (char **)realloc(l->p, (size_t)(l->n + 1) * sizeof *l->p), *path = (char *)malloc(size);
    if (!more || !path) { complain("out of memory"); exit(1); }
    snprintf(path, size, "%s%s%s", dir, *dir && dir[strlen(dir) - 1] != '/' ? "/" : "", name);
    l->p = more;
    l->p[l->n++] = path;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int add_files(list *l, const char *path)          // a file, or the pictures of a folder in order of their names; 1: it has none
{
    DIR *d = opendir(path);
    const int from = l->n;
    if (!d) { add_name(l, "", path); return 0; }         // what it is shows when it is read
    for (struct dirent *e; (e = readdir(d)) != NULL; ) {
        if (e->d_name[0] == '.') continue;
        add_name(l, path, e->d_name);
        if (!names_picture(l->p[l->n - 1])) free(l->p[--l->n]);
    }
    closedir(d);
    if (l->n > from) { qsort(l->p + from, (size_t)(l->n - from), sizeof *l->p, by_name); return 0; }
    fprintf(stderr, "describe: %s: no pictures in this folder\n", path);
    return 1;
}

// ---- main

static int run(const options *o, const list *files, gaze *g)
{
    g3_error err;
    g3_model *m = g3_model_open(&o->open, &err);
    g3_session *s = m ? g3_session_open(m, &o->session, &err) : NULL;
    int status = 0;
    if (!s) status = complain(err.text);
    else if (!g3_model_get_info(m).vision) { fprintf(stderr, "describe: %s reads text only: its files bring no vision tower; the 4B, 12B and 27B have one\n", g3_model_get_info(m).name); status = 1; }
    else for (int i = 0; i < files->n; i++) status |= describe(o, s, g, files->p[i]);
    g3_session_close(s);
    g3_model_close(m);
    return status || ferror(stdout);
}

static int usage(FILE *to)
{
    fputs("usage: describe -m DIR [options] FILE|FOLDER …\n"
          "  -m, --model DIR|OWNER/NAME   a Gemma 3 that has a vision tower: 4B and larger\n"
          "  -p, --prompt TEXT            what to ask of each picture (Describe this picture in one sentence.)\n"
          "  --json                       one JSON object a line: file, width, height, tokens, text\n"
          "  --map FILE.png               of one picture: where the model looked while it answered\n"
          "  --pan-and-scan               look at long pictures once more in up to 4 crops\n"
          "  -n, --predict N              at most N tokens an answer (128)\n"
          "  -c, --ctx-size N             tokens of context (2048)\n"
          "  -t, --threads N              threads (the physical cores)\n"
          "  -s, --seed N                 draw the words, as chat does; without it the likeliest are taken: the same picture, the same line\n"
          "  -h, --help                   this\n", to);
    return 2;
}

static bool number(const char *v, int *out)
{
    char *end;
    long n = strtol(v, &end, 10);
    *out = (int)n;
    return end != v && !*end && n > 0 && n < 1 << 24;
}

static int wrong(const char *what, const char *arg) { fprintf(stderr, "describe: %s %s (-h lists what there is)\n", arg, what); return 2; }

// Below zero: go on; else the exit status, why is said. *missing: a folder without pictures was named.
static int read_flags(options *o, list *files, int *missing, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *v = argv[i + 1];
        int seed;
#define IS(brief, full) (!strcmp(a, brief) || !strcmp(a, full))
        if (IS("-h", "--help")) { usage(stdout); return 0; }
        if (IS("--json", "--json")) { o->json = true; continue; }
        if (IS("--pan-and-scan", "--pan-and-scan")) { o->pan_and_scan = true; continue; }
        if (a[0] != '-') { *missing |= add_files(files, a); continue; }
        if (!v) return wrong("is no flag, or its value is missing", a);
        i++;
        if (IS("-m", "--model")) o->model = v;
        else if (IS("-p", "--prompt")) o->prompt = v;
        else if (IS("--map", "--map")) o->map = v;
        else if (IS("-n", "--predict")) { if (!number(v, &o->generate.max_tokens)) return wrong("is no number of tokens", v); }
        else if (IS("-c", "--ctx-size")) { if (!number(v, &o->session.context)) return wrong("is no number of tokens", v); }
        else if (IS("-t", "--threads")) { if (!number(v, &o->open.threads)) return wrong("is no number of threads", v); }
        else if (IS("-s", "--seed")) {
            if (!number(v, &seed)) return wrong("is no seed", v);
            o->generate.sampler.seed = (uint64_t)seed;
            o->generate.sampler.greedy = false;
        }
        else return wrong("is no flag", a);
#undef IS
    }
    if (!o->model) return complain("-m DIR names the model") + 1;
    if (!files->n) return *missing ? 1 : usage(stderr);
#ifndef WRITER
    if (o->map) return complain("--map: this build cannot write PNG files; where stb_image_write.h is found (Debian: libstb-dev) it can");
#endif
    if (o->map && files->n != 1) return complain("--map draws on one picture; give one file") + 1;
    return -1;
}

int main(int argc, char **argv)
{
    static gaze g;
    options o;
    list files = { NULL, 0 };
    char dir[4096];
    int missing = 0;
    memset(&o, 0, sizeof o);
    o.prompt = "Describe this picture in one sentence.";
    o.session.context = 2048;
    o.generate.max_tokens = 128;
    o.generate.sampler.greedy = true;
    int status = read_flags(&o, &files, &missing, argc, argv);
    if (status < 0) {
        o.open.path = find_model(o.model, dir, sizeof dir);
        o.open.session = &o.session;
        o.open.sessions = 1;
        if (o.map) { o.session.probe.probe_fn = on_view; o.session.probe.user = &g; o.session.probe.points = G3_POINT_ATTENTION | G3_POINT_VISION; }
        status = run(&o, &files, &g) | missing;
    }
    while (files.n) free(files.p[--files.n]);
    free(files.p);
    return status;
}
