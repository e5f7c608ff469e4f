// Checkpoints in memory for tests: a `box` of named files, served through the files hook or written to a directory, and a
// `ck`, the tensors of such a box, to be renamed, moved, dropped and packed again. Include after gemma3.h and test.h.
#ifndef TEST_CHECKPOINT_H
#define TEST_CHECKPOINT_H
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>
#include "st.h"

// ---- an allocator that counts, and fails when told to

typedef struct tally { uint64_t live, peak, calls, fail_at; bool bad; } tally;

static void *tally_alloc(void *user, size_t size, size_t align)
{
    tally *t = (tally *)user;
    void *p = NULL;
    if (++t->calls == t->fail_at || posix_memalign(&p, align < sizeof p ? sizeof p : align, size ? size : 1)) return NULL;
    memset(p, 0xA5, size);                               // whoever relies on zeroes must make them
    t->live += size;
    if (t->live > t->peak) t->peak = t->live;
    return p;
}

static void tally_free(void *user, void *ptr, size_t size)
{
    tally *t = (tally *)user;
    if (!ptr || size > t->live) t->bad = true;
    t->live -= size;
    free(ptr);
}

static g3_allocator tally_hooks(tally *t)
{
    g3_allocator a;
    memset(t, 0, sizeof *t);
    a.alloc_fn = tally_alloc; a.free_fn = tally_free; a.user = t;
    return a;
}

// ---- a box of files

enum { BOX_MAX = 64 };
typedef struct box_file { char name[300]; unsigned char *data; size_t size; } box_file;
typedef struct box {
    box_file f[BOX_MAX];
    int n;
    uint64_t opens, reads, open_now, fail_open, fail_read, bytes_read;    // fail_…: the call that fails, from 1; 0: none
    bool fail_short;                                     // a failing read has written half of what was asked for
} box;

static box_file *box_find(box *b, const char *name)
{
    for (int i = 0; i < b->n; i++) if (!strcmp(b->f[i].name, name)) return &b->f[i];
    return NULL;
}

static void box_put(box *b, const char *name, const void *data, size_t size)         // a new file, or new contents
{
    box_file *f = box_find(b, name);
    if (!f) { f = &b->f[b->n++]; snprintf(f->name, sizeof f->name, "%s", name); f->data = NULL; }
    unsigned char *copy = (unsigned char *)malloc(size ? size : 1);
    memcpy(copy, data, size);
    free(f->data);
    f->data = copy;
    f->size = size;
}

static void box_text(box *b, const char *name, const char *text) { box_put(b, name, text, strlen(text)); }

static void box_drop(box *b, const char *name)
{
    box_file *f = box_find(b, name);
    if (!f) return;
    free(f->data);
    *f = b->f[--b->n];
}

static void box_free(box *b)
{
    while (b->n) free(b->f[--b->n].data);
    memset(b, 0, sizeof *b);
}

static uint64_t box_bytes(const box *b)
{
    uint64_t sum = 0;
    for (int i = 0; i < b->n; i++) sum += b->f[i].size;
    return sum;
}

static bool box_load(box *b, const char *dir)            // every plain file of a directory
{
    char path[1024];
    memset(b, 0, sizeof *b);
    DIR *d = opendir(dir);
    if (!d) return false;
    for (struct dirent *e; (e = readdir(d)) != NULL; ) {
        size_t size = 0;
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (stat(path, &st) || !S_ISREG(st.st_mode)) continue;
        unsigned char *data = st_read(path, &size);
        if (data && b->n < BOX_MAX) box_put(b, e->d_name, data, size);
        free(data);
    }
    closedir(d);
    return b->n > 0;
}

static void box_write(const box *b, const char *dir)     // into a directory that exists
{
    char path[1024];
    for (int i = 0; i < b->n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, b->f[i].name);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(b->f[i].data, 1, b->f[i].size, f) != b->f[i].size || fclose(f)) { perror(path); exit(1); }
    }
}

static void *box_open(void *user, const char *name, uint64_t *size)
{
    box *b = (box *)user;
    box_file *f = box_find(b, name);
    if (++b->opens == b->fail_open || !f) return NULL;
    b->open_now++;
    *size = f->size;
    return f;
}

static int box_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    box *b = (box *)user;
    box_file *f = (box_file *)file;
    bool fail = ++b->reads == b->fail_read;
    if (offset > f->size || size > f->size - offset) { fprintf(stderr, "%s: read past its end\n", f->name); exit(1); }
    if (fail && b->fail_short) memcpy(dst, f->data + offset, size / 2);
    if (fail) return 1;
    memcpy(dst, f->data + offset, size);
    b->bytes_read += size;
    return 0;
}

static void box_close(void *user, void *file) { (void)file; ((box *)user)->open_now--; }

static g3_files box_hooks(box *b)
{
    g3_files f;
    f.open_fn = box_open; f.read_fn = box_read; f.close_fn = box_close; f.width = 1; f.user = b;
    return f;
}

static g3_model_desc box_desc(box *b)                    // no weights, one reader
{
    g3_model_desc d;
    memset(&d, 0, sizeof d);
    d.files = box_hooks(b);
    d.no_weights = true;
    d.threads = 1;
    return d;
}

// ---- temporary directories

static const char *temp_dir(void)                        // a new one; the caller removes it. Valid until the fourth next call
{
    static char path[4][64];
    static int turn;
    char *p = path[turn++ & 3];
    strcpy(p, "/tmp/g3-test-XXXXXX");
    if (!mkdtemp(p)) { perror(p); exit(1); }
    return p;
}

static void temp_remove(const char *dir)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    if (strncmp(dir, "/tmp/g3-test-", 13) || system(command)) fprintf(stderr, "%s is left behind\n", dir);
}

// ---- the tensors of a checkpoint

enum { CK_MAX = 1024, CK_FILES = 8 };
typedef struct ck_tensor { char name[256], dtype[16]; int rank, file; size_t dims[8], size; unsigned char *data; } ck_tensor;
typedef struct ck { ck_tensor *t; int n, files; box rest; } ck;           // rest: config.json and what else is no safetensors

static bool ck_ends(const char *s, const char *end) { size_t n = strlen(s), k = strlen(end); return n >= k && !strcmp(s + n - k, end); }

static ck_tensor *ck_add(ck *c, const char *name, const char *dtype, int rank, const size_t *dims, const void *data, size_t size, int file)
{
    ck_tensor *t = &c->t[c->n++];
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    t->rank = rank;
    t->file = file;
    t->size = size;
    for (int i = 0; i < rank; i++) t->dims[i] = dims[i];
    t->data = (unsigned char *)malloc(size ? size : 1);
    memcpy(t->data, data, size);
    return t;
}

static int ck_by_name(const void *a, const void *b) { return strcmp(((const box_file *)a)->name, ((const box_file *)b)->name); }

static bool ck_load(ck *c, const char *dir)
{
    box b;
    char path[1024];
    memset(c, 0, sizeof *c);
    if (!box_load(&b, dir)) return false;
    c->t = (ck_tensor *)calloc(CK_MAX, sizeof *c->t);
    qsort(b.f, (size_t)b.n, sizeof b.f[0], ck_by_name);
    for (int i = 0; i < b.n; i++) {
        st_file f;
        if (ck_ends(b.f[i].name, ".index.json")) continue;
        if (!ck_ends(b.f[i].name, ".safetensors")) { box_put(&c->rest, b.f[i].name, b.f[i].data, b.f[i].size); continue; }
        snprintf(path, sizeof path, "%s/%s", dir, b.f[i].name);
        if (!st_open(&f, path)) { box_free(&b); return false; }
        for (int k = 0; k < f.n; k++) ck_add(c, f.tensor[k].name, f.tensor[k].dtype, f.tensor[k].rank, f.tensor[k].dims, f.tensor[k].data, f.tensor[k].size, c->files);
        c->files++;
        st_close(&f);
    }
    box_free(&b);
    return c->files > 0;
}

static void ck_free(ck *c)
{
    for (int i = 0; i < c->n; i++) free(c->t[i].data);
    free(c->t);
    box_free(&c->rest);
    memset(c, 0, sizeof *c);
}

static ck_tensor *ck_find(ck *c, const char *name)
{
    for (int i = 0; i < c->n; i++) if (!strcmp(c->t[i].name, name)) return &c->t[i];
    return NULL;
}

static void ck_drop(ck *c, const char *name)             // that tensor, order kept
{
    ck_tensor *t = ck_find(c, name);
    if (!t) { fprintf(stderr, "no tensor %s to drop\n", name); exit(1); }
    free(t->data);
    memmove(t, t + 1, (size_t)(&c->t[--c->n] - t) * sizeof *t);
}

static void ck_set(ck_tensor *t, const char *dtype, int rank, const size_t *dims, const void *data, size_t size)
{
    unsigned char *copy = (unsigned char *)malloc(size ? size : 1);
    memcpy(copy, data, size);
    free(t->data);
    t->data = copy;
    t->size = size;
    t->rank = rank;
    for (int i = 0; i < rank; i++) t->dims[i] = dims[i];
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
}

// Begins of names exchanged: of every name that begins with `from`.
static int ck_rename(ck *c, const char *from, const char *to)
{
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        char rest[256];
        if (strncmp(c->t[i].name, from, strlen(from))) continue;
        snprintf(rest, sizeof rest, "%s", c->t[i].name + strlen(from));
        if (strlen(to) + strlen(rest) >= sizeof rest) exit(1);
        memcpy(c->t[i].name, to, strlen(to));
        strcpy(c->t[i].name + strlen(to), rest);
        n++;
    }
    return n;
}

static const char *ck_shard(int i, int n)                // its file name; valid until the eighth next call
{
    static char name[8][64];
    static int turn;
    char *p = name[turn++ & 7];
    if (n == 1) strcpy(p, "model.safetensors");
    else snprintf(p, sizeof name[0], "model-%05d-of-%05d.safetensors", i + 1, n);
    return p;
}

static void ck_file(const ck *c, int file, box *b)       // one safetensors file from the tensors of that number
{
    size_t cap = 1 << 20, data = 0, len = 8;
    char *text = (char *)malloc(cap);
    len += (size_t)sprintf(text + len, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < c->n; i++) {
        const ck_tensor *t = &c->t[i];
        if (t->file != file) continue;
        len += (size_t)sprintf(text + len, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (int k = 0; k < t->rank; k++) len += (size_t)sprintf(text + len, "%s%zu", k ? "," : "", t->dims[k]);
        len += (size_t)sprintf(text + len, "],\"data_offsets\":[%zu,%zu]}", data, data + t->size);
        data += t->size;
        if (len + 1024 > cap) exit(1);
    }
    text[len++] = '}';
    while (len % 8) text[len++] = ' ';
    for (int i = 0; i < 8; i++) text[i] = (char)((len - 8) >> (8 * i) & 255);
    text = (char *)realloc(text, len + data + 1);
    for (int i = 0; i < c->n; i++) if (c->t[i].file == file) { memcpy(text + len, c->t[i].data, c->t[i].size); len += c->t[i].size; }
    box_put(b, ck_shard(file, c->files), text, len);
    free(text);
}

static void ck_index(const ck *c, box *b)
{
    char *text = (char *)malloc((size_t)c->n * 400 + 100);
    size_t len = (size_t)sprintf(text, "{\"metadata\":{\"total_size\":0},\"weight_map\":{");
    for (int i = 0; i < c->n; i++) len += (size_t)sprintf(text + len, "%s\"%s\":\"%s\"", i ? "," : "", c->t[i].name, ck_shard(c->t[i].file, c->files));
    len += (size_t)sprintf(text + len, "}}");
    box_put(b, "model.safetensors.index.json", text, len);
    free(text);
}

static void ck_build(const ck *c, box *b)                // all files of the checkpoint, the index if there are several shards
{
    memset(b, 0, sizeof *b);
    for (int i = 0; i < c->rest.n; i++) box_put(b, c->rest.f[i].name, c->rest.f[i].data, c->rest.f[i].size);
    for (int i = 0; i < c->files; i++) ck_file(c, i, b);
    if (c->files > 1) ck_index(c, b);
}

// Replaces `from` in config.json by `to`; false: it is not there.
static bool ck_config(ck *c, const char *from, const char *to)
{
    box_file *f = box_find(&c->rest, "config.json");
    char *text = (char *)calloc(1, f->size + strlen(to) + 1);
    memcpy(text, f->data, f->size);
    char *at = strstr(text, from);
    if (at) {
        memmove(at + strlen(to), at + strlen(from), strlen(at + strlen(from)) + 1);
        memcpy(at, to, strlen(to));
        box_text(&c->rest, "config.json", text);
    }
    free(text);
    return at != NULL;
}

static uint64_t box_hash(const box *b)                   // keeps compilers quiet about functions that a test does not use
{
    uint64_t h = 0;
    (void)tally_hooks; (void)box_desc; (void)box_drop; (void)box_text; (void)box_bytes; (void)box_write; (void)temp_dir; (void)temp_remove;
    (void)ck_load; (void)ck_free; (void)ck_drop; (void)ck_set; (void)ck_rename; (void)ck_build; (void)ck_config; (void)st_bits; (void)st_find; (void)st_count; (void)st_f32; (void)st_state;
    (void)golden;
    for (int i = 0; i < b->n; i++) h += g3__hash(b->f[i].data, b->f[i].size);
    return h;
}
#endif
