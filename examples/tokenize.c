// Shows how Gemma 3 reads a text: the ids, and the piece of text behind each; and back, from ids to text. Only
// tokenizer.json and the headers of the model are read, no weights.
//
//     tokenize "Hello, world!"                  ids and pieces, as a table
//     tokenize --special --bos -f prompt.txt    control tokens such as <start_of_turn> count as such; <bos> in front
//     tokenize --ids-only < book.txt            the ids alone, for other programs
//     tokenize --ids 2 9259 236764 1902         from ids back to text
//
// It uses g3_model_open with no_weights, g3_tokenize, g3_token_piece and g3_detokenize.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "common.h"

typedef struct options { const char *model, *file, *text; int flags; bool ids_only, back; char **ids; int n_ids; } options;

static void usage(FILE *to)
{
    fprintf(to, "usage: tokenize [options] [TEXT]          without TEXT or -f, the text is read from standard input\n"
                "       tokenize [options] --ids ID ID …    from ids back to text; without an ID they are read from standard input\n"
                "  -m, --model DIR|OWNER/NAME   the model (default: build/gemma-3-270m)\n"
                "  -f, --file FILE              the text of a file\n"
                "  --special                    control tokens in the text count as such; else they are plain text\n"
                "  --bos                        <bos> in front\n"
                "  --ids-only                   ids in one line, no table; with --ids, the text alone\n"
                "  -h, --help                   this\n");
}

static int fail(const char *format, const char *what)        // one sentence, exit status 1
{
    fprintf(stderr, "tokenize: ");
    fprintf(stderr, format, what);
    fprintf(stderr, "\n");
    return 1;
}

static char *read_all(FILE *f, size_t *size)                 // a file of any kind, also a pipe; NULL: it cannot be read
{
    size_t room = 1 << 16;
    char *text = (char *)malloc(room), *more = text;
    *size = 0;
    while (more && (*size += fread(text + *size, 1, room - *size, f)) == room) {
        more = (char *)realloc(text, room *= 2);
        if (more) text = more;
    }
    if (more && !ferror(f)) { text[*size] = 0; return text; }   // the loop ended with *size < room
    free(text);
    return NULL;
}

// ---- a piece for the eye: white space and control characters are spelled, bytes that are no character shown in hexadecimal

static int character(const unsigned char *s, int n)          // bytes of the whole character at s, 0 if it is none
{
    int size = s[0] < 0x80 ? 1 : s[0] >= 0xC2 && s[0] < 0xE0 ? 2 : s[0] >= 0xE0 && s[0] < 0xF0 ? 3 : s[0] >= 0xF0 && s[0] < 0xF5 ? 4 : 0;
    for (int i = 1; i < size; i++)
        if (i >= n || (s[i] & 0xC0) != 0x80) return 0;
    return size;
}

static void show_piece(const char *piece, int n)
{
    const unsigned char *s = (const unsigned char *)piece;
    putchar('"');
    for (int i = 0; i < n; ) {
        int k = character(s + i, n - i);
        if (s[i] == '\n') printf("\\n");
        else if (s[i] == '\t') printf("\\t");
        else if (s[i] == '"' || s[i] == '\\') printf("\\%c", s[i]);
        else if (!k || s[i] < 0x20 || s[i] == 0x7F) printf("\\x%02X", s[i]);
        else fwrite(piece + i, 1, (size_t)k, stdout);
        i += k ? k : 1;
    }
    putchar('"');
}

static void show_table(const g3_model *m, const int *ids, int n)
{
    printf(" place      id  piece\n");
    for (int i = 0; i < n; i++) {
        int size;
        const char *piece = g3_token_piece(m, ids[i], &size);
        printf("%6d  %6d  ", i, ids[i]);
        show_piece(piece, size);
        putchar('\n');
    }
}

// ---- from text to ids

static int encode(const g3_model *m, const options *o, const char *text, size_t size)
{
    int n = g3_tokenize(m, text, size, o->flags, NULL, 0), *ids = n >= 0 ? (int *)malloc(((size_t)n + 1) * sizeof *ids) : NULL;
    if (n < 0) return fail("the text cannot be encoded: %s", g3_result_text((g3_result)n));
    if (!ids) return fail("%s", "no memory for the ids");
    g3_tokenize(m, text, size, o->flags, ids, n);
    if (o->ids_only) for (int i = 0; i < n; i++) printf("%d%c", ids[i], i + 1 < n ? ' ' : '\n');
    else {
        show_table(m, ids, n);
        printf("%d token%s for %zu bytes", n, n == 1 ? "" : "s", size);
        if (n) printf(", %.2f bytes each", (double)size / n);
        printf("\n");
    }
    free(ids);
    return 0;
}

// ---- from ids to text

static int read_id(const char *text, const g3_model *m, int *id)   // 0: a number that has a piece
{
    char *end;
    long v = strtol(text, &end, 10);
    int size;
    *id = v < 0 || v > 0x7fffffff ? -1 : (int)v;
    return end == text || (*end && *end != ',') || !g3_token_piece(m, *id, &size);
}

static int decode(const g3_model *m, const options *o, char **words, int n)
{
    int *ids = (int *)malloc(((size_t)n + 1) * sizeof *ids), status = 0;
    if (!ids) return fail("%s", "no memory for the ids");
    for (int i = 0; i < n && !status; i++)
        if (read_id(words[i], m, &ids[i])) status = fail("'%s' is no id of this tokenizer", words[i]);
    int size = status ? 0 : g3_detokenize(m, ids, n, NULL, 0);
    char *text = (char *)malloc((size_t)(size > 0 ? size : 0) + 1);
    if (size < 0 || !text) status = fail("the ids cannot be decoded: %s", g3_result_text(size < 0 ? (g3_result)size : G3_ERR_MEMORY));
    if (!status) {
        g3_detokenize(m, ids, n, text, size);
        if (!o->ids_only) show_table(m, ids, n);
        fwrite(text, 1, (size_t)size, stdout);
        putchar('\n');
    }
    free(text);
    free(ids);
    return status;
}

static int decode_words(const g3_model *m, const options *o, char *text, size_t size)   // ids that stand in a text
{
    char **words = (char **)malloc((size / 2 + 1) * sizeof *words);
    int n = 0;
    if (!words) return fail("%s", "no memory for the ids");
    for (size_t i = 0; i < size; i++) if (strchr(" ,\n\r\t[]", text[i])) text[i] = 0;
    for (size_t i = 0; i < size; i++) if (text[i] && (!i || !text[i - 1])) words[n++] = text + i;
    int status = decode(m, o, words, n);
    free(words);
    return status;
}

// ---- the command line

static int parse(int argc, char **argv, options *o)          // 0: go on; else the exit status + 1
{
    o->model = "build/gemma-3-270m";
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        bool value = !strcmp(a, "-m") || !strcmp(a, "--model") || !strcmp(a, "-f") || !strcmp(a, "--file");
        if (value && i + 1 == argc) return 1 + fail("%s wants a value; -h shows the options", a);
        if (value) *(a[1] == 'm' || !strcmp(a, "--model") ? &o->model : &o->file) = argv[++i];
        else if (!strcmp(a, "--special")) o->flags |= G3_TOKENIZE_SPECIAL;
        else if (!strcmp(a, "--bos")) o->flags |= G3_TOKENIZE_BOS;
        else if (!strcmp(a, "--ids-only")) o->ids_only = true;
        else if (!strcmp(a, "--ids")) { o->back = true; o->ids = argv + i + 1; while (i + 1 < argc && argv[i + 1][0] != '-') { i++; o->n_ids++; } }
        else if (!strcmp(a, "-h") || !strcmp(a, "--help")) { usage(stdout); return 1; }
        else if (!strcmp(a, "--") && i + 2 == argc && !o->text) o->text = argv[++i];
        else if (a[0] == '-') return 1 + fail("'%s' is no option; -h shows them", a);
        else if (o->text) return 1 + fail("'%s' is a second text; put a text of several words in quotes", a);
        else o->text = a;
    }
    if (o->text && (o->file || o->back)) return 1 + fail("'%s': give a text, or -f, or --ids, not two of them", o->text);
    return 0;
}

int main(int argc, char **argv)
{
    options o = { 0 };
    g3_model_desc desc = { 0 };
    g3_error err;
    char path[2048];
    int status = parse(argc, argv, &o);
    if (status) return status - 1;
    desc.path = find_model(o.model, path, sizeof path);
    desc.no_weights = true;                                  // a directory needs its config.json and its weight files all the same: their headers are checked
    g3_model *m = g3_model_open(&desc, &err);
    if (!m) return fail("%s", err.text);

    size_t size = o.text ? strlen(o.text) : 0;
    bool read = !o.text && !(o.back && o.n_ids);
    FILE *f = read && o.file ? fopen(o.file, "rb") : stdin;
    char *text = read && f ? read_all(f, &size) : NULL;
    if (read && !text) status = fail("cannot read %s", o.file ? o.file : "standard input");
    else if (o.back) status = read ? decode_words(m, &o, text, size) : decode(m, &o, o.ids, o.n_ids);
    else status = encode(m, &o, read ? text : o.text, size);
    if (f && f != stdin) fclose(f);
    free(text);
    g3_model_close(m);
    if (fflush(stdout) || ferror(stdout)) status = fail("%s", "standard output cannot be written");
    return status;
}
