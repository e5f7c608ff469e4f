// What several examples share: where a model lies, and sizes for people. Needs nothing but gemma3.h's neighbours in C.
#ifndef EXAMPLES_COMMON_H
#define EXAMPLES_COMMON_H
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static inline int has_config(const char *dir)
{
    char path[2048];
    struct stat st;
    return snprintf(path, sizeof path, "%s/config.json", dir) < (int)sizeof path && stat(path, &st) == 0;
}

// In the Hugging Face cache a checkpoint is HUB/models--OWNER--NAME/snapshots/REVISION, full of symlinks into blobs/.
// refs/main names the revision to take; without it the newest folder is taken.
static inline int find_snapshot(const char *hub, const char *name, char *buf, size_t size)
{
    char root[1024], path[2048], revision[128] = "";
    size_t n = (size_t)snprintf(root, sizeof root, "%s/models--", hub);
    for (; *name && n + 3 < sizeof root; name++) n += (size_t)snprintf(root + n, 3, *name == '/' ? "--" : "%c", *name);
    snprintf(path, sizeof path, "%s/refs/main", root);
    FILE *f = fopen(path, "r");
    if (f) { if (fscanf(f, "%127s", revision) != 1) revision[0] = 0; fclose(f); }
    snprintf(buf, size, "%s/snapshots/%s", root, revision);
    if (revision[0] && has_config(buf)) return 1;
    snprintf(path, sizeof path, "%s/snapshots", root);
    DIR *d = opendir(path);
    time_t newest = 0;
    int found = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL; ) {
        struct stat st;
        snprintf(path, sizeof path, "%s/snapshots/%s", root, e->d_name);
        if (e->d_name[0] == '.' || !has_config(path) || stat(path, &st) || (found && st.st_mtime <= newest)) continue;
        snprintf(buf, size, "%s", path);
        newest = st.st_mtime;
        found = 1;
    }
    if (d) closedir(d);
    return found;
}

// The directory of a model given as a directory or as OWNER/NAME: itself, ./models/OWNER/NAME, ./models/NAME, or a
// snapshot in the Hugging Face cache (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub). Unknown: the argument again,
// so that opening it fails with the header's own sentence.
static inline const char *find_model(const char *arg, char *buf, size_t size)
{
    const char *slash = strchr(arg, '/'), *base = strrchr(arg, '/'), *cache = getenv("HF_HUB_CACHE"), *hf = getenv("HF_HOME"), *home = getenv("HOME");
    char hub[1024];
    if (has_config(arg)) return arg;
    snprintf(buf, size, "models/%s", arg);
    if (has_config(buf)) return buf;
    if (base) snprintf(buf, size, "models/%s", base + 1);
    if (has_config(buf)) return buf;
    if (!slash || slash == arg || slash != base || arg[0] == '.') return arg;             // a path, and no OWNER/NAME
    if (cache && *cache) snprintf(hub, sizeof hub, "%s", cache);
    else if (hf && *hf) snprintf(hub, sizeof hub, "%s/hub", hf);
    else snprintf(hub, sizeof hub, "%s/.cache/huggingface/hub", home ? home : ".");
    return find_snapshot(hub, arg, buf, size) ? buf : arg;
}

static inline int file_exists(const char *path)           // a file: no folder, no device
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

// A file that says it is a picture, by its name or its first bytes. Whether it can be read is another question.
static inline int names_picture(const char *path)
{
    static const char *const ends[] = { ".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".heic", ".heif", ".avif", ".tif", ".tiff" };
    const char *dot = strrchr(path, '.');
    char end[8] = "", head[10] = "";
    if (!file_exists(path)) return 0;
    for (int i = 0; dot && dot[i] && i < 6; i++) end[i] = (char)(dot[i] >= 'A' && dot[i] <= 'Z' ? dot[i] + 32 : dot[i]);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) if (!strcmp(end, ends[i])) return 1;
    FILE *f = fopen(path, "rb");
    if (f) { if (fread(head, 1, sizeof head, f) != sizeof head) head[0] = 0; fclose(f); }
    return !memcmp(head, "\377\330\377", 3) || !memcmp(head, "\211PNG", 4) || (!memcmp(head, "BM", 2) && !memcmp(head + 6, "\0\0\0", 4));
}

// 1234567890 as "1.15 GiB": three digits, in the unit that suits.
static inline const char *human_bytes(uint64_t n, char *buf, size_t size)
{
    static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    double v = (double)n;
    int u = 0;
    for (; v >= 1000 && u < 6; u++) v /= 1024;
    snprintf(buf, size, u == 0 ? "%.0f %s" : v < 9.995 ? "%.2f %s" : v < 99.95 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

// "24G", "22.5GiB", "500M", "1e9": bytes, with K, M, G, T as powers of 1024; 0: not a size.
static inline uint64_t parse_bytes(const char *text)
{
    static const char letters[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    while (*end == ' ') end++;
    const char *letter = *end ? strchr(letters, *end & ~0x20) : NULL;
    for (long k = letter ? letter - letters + 1 : 0; k > 0; k--) v *= 1024;
    if (letter) end++;
    if (!strcmp(end, "iB") || !strcmp(end, "B") || !strcmp(end, "b")) end += strlen(end);
    return *end || !(v >= 1 && v < 9e18) ? 0 : (uint64_t)v;
}
#endif
