// A small safetensors reader for tests, written apart from the header's own: it trusts the text of its files (fixtures, and
// what the project's programs write) but insists on the layout: tensors lie in the order of the header, without holes, to the end.
#ifndef TEST_ST_H
#define TEST_ST_H
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct st_tensor {
    char name[256], dtype[16];
    int rank;
    size_t dims[8], begin, size;               // begin: in the file
    const unsigned char *data;
} st_tensor;

typedef struct st_file {
    unsigned char *bytes;
    size_t size, header;                       // header: bytes of JSON
    st_tensor *tensor;
    int n;
    char metadata[512];                        // the raw text of __metadata__, or ""
} st_file;

static unsigned char *st_read(const char *path, size_t *size)      // a whole file and a NUL behind it; NULL: cannot be read
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    rewind(f);
    unsigned char *p = n < 0 ? NULL : (unsigned char *)malloc((size_t)n + 1);
    if (p && fread(p, 1, (size_t)n, f) != (size_t)n) { free(p); p = NULL; }
    if (p) { p[n] = 0; *size = (size_t)n; }
    fclose(f);
    return p;
}

static const char *st_text(const char *p, char *out, size_t cap)   // "text" at p, copied to out; the place behind it
{
    const char *end = *p == '"' ? strchr(p + 1, '"') : NULL;
    if (!end || (size_t)(end - p) > cap) return NULL;
    memcpy(out, p + 1, (size_t)(end - p - 1));
    out[end - p - 1] = 0;
    return end + 1;
}

static const char *st_entry(const char *p, st_tensor *t)           // {"dtype":…,"shape":[…],"data_offsets":[b,e]} at p; the place behind it
{
    const char *close = strchr(p, '}'), *dtype = strstr(p, "\"dtype\""), *shape = strstr(p, "\"shape\""), *span = strstr(p, "\"data_offsets\"");
    if (!close || !dtype || !shape || !span || dtype > close || shape > close || span > close) return NULL;
    dtype = strchr(strchr(dtype, ':'), '"');
    if (!dtype || !st_text(dtype, t->dtype, sizeof t->dtype)) return NULL;
    char *q = (char *)strchr(shape, '[') + 1;
    for (t->rank = 0; t->rank < 8; t->rank++) {
        while (*q == ' ' || *q == ',') q++;
        if (*q == ']') break;
        t->dims[t->rank] = (size_t)strtoull(q, &q, 10);
    }
    q = (char *)strchr(span, '[') + 1;
    t->begin = (size_t)strtoull(q, &q, 10);
    t->size = (size_t)strtoull(q + 1, &q, 10) - t->begin;
    return close + 1;
}

static void st_close(st_file *f) { free(f->bytes); free(f->tensor); memset(f, 0, sizeof *f); }

static int st_bits(const char *dtype)
{
    if (!strcmp(dtype, "U8") || !strcmp(dtype, "I8") || !strncmp(dtype, "F8", 2)) return 8;
    return !strcmp(dtype, "F32") ? 32 : !strcmp(dtype, "BF16") || !strcmp(dtype, "F16") ? 16 : 0;
}

static int st_open(st_file *f, const char *path)                   // 1: read and laid out as it should be
{
    unsigned long long n = 0;
    memset(f, 0, sizeof *f);
    f->bytes = st_read(path, &f->size);
    if (!f->bytes || f->size < 8) { st_close(f); return 0; }
    for (int i = 0; i < 8; i++) n |= (unsigned long long)f->bytes[i] << (8 * i);
    if (n > f->size - 8) { st_close(f); return 0; }
    f->header = (size_t)n;
    char *head = (char *)malloc((size_t)n + 1);
    memcpy(head, f->bytes + 8, (size_t)n);
    head[n] = 0;
    const char *p = strchr(head, '{');
    size_t at = 0, cap = 0;
    int ok = p != NULL;
    while (ok) {
        char name[256];
        p += strspn(p + 1, " ,") + 1;
        if (*p != '"') break;
        if (!(p = st_text(p, name, sizeof name))) { ok = 0; break; }
        p = strchr(p, '{');
        if (!strcmp(name, "__metadata__")) {
            const char *close = p ? strchr(p, '}') : NULL;
            ok = close && (size_t)(close + 1 - p) < sizeof f->metadata;
            if (ok) { memcpy(f->metadata, p, (size_t)(close + 1 - p)); p = close; }
            continue;
        }
        if ((size_t)f->n == cap) { cap = cap ? 2 * cap : 64; f->tensor = (st_tensor *)realloc(f->tensor, cap * sizeof *f->tensor); }
        st_tensor *t = &f->tensor[f->n++];
        memset(t, 0, sizeof *t);
        strcpy(t->name, name);
        p = p ? st_entry(p, t) : NULL;
        if (!p || t->begin != at) { ok = 0; break; }
        at += t->size;
        p--;                                                       // the loop skips one character
        size_t elements = 1;
        for (int i = 0; i < t->rank; i++) elements *= t->dims[i];
        if (t->size != elements * (size_t)st_bits(t->dtype) / 8 && st_bits(t->dtype)) { ok = 0; break; }
    }
    free(head);
    ok = ok && 8 + f->header + at == f->size;
    for (int i = 0; ok && i < f->n; i++) {
        f->tensor[i].begin += 8 + f->header;
        f->tensor[i].data = f->bytes + f->tensor[i].begin;
    }
    if (!ok) st_close(f);
    return ok;
}

static const st_tensor *st_find(const st_file *f, const char *fmt, ...)   // by name; NULL: absent
{
    char name[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
    for (int i = 0; i < f->n; i++)
        if (!strcmp(f->tensor[i].name, name)) return &f->tensor[i];
    return NULL;
}

static size_t st_count(const st_tensor *t)                         // elements
{
    size_t n = 1;
    for (int i = 0; i < t->rank; i++) n *= t->dims[i];
    return n;
}

static float st_f32(const st_tensor *t, size_t i) { float f; memcpy(&f, t->data + 4 * i, 4); return f; }

// The number behind "key" in JSON text kept in a U8 tensor (a quant_state); 0 when there is none.
static double st_state(const st_tensor *t, const char *key)
{
    char text[512], quoted[64];
    size_t n = t->size < sizeof text - 1 ? t->size : sizeof text - 1;
    memcpy(text, t->data, n);
    text[n] = 0;
    snprintf(quoted, sizeof quoted, "\"%s\"", key);
    const char *p = strstr(text, quoted);
    return p ? strtod(strchr(p, ':') + 1, NULL) : 0;
}
#endif
