// Prompts with pictures in the real tokenizer's ids: 13 conversations and 33 sizes for pan & scan, as transformers' processor gives them.
#include "real.h"

static int run_length(g3__value v, int *ids, int cap)     // [[id, count], …]: how many ids
{
    int n = 0;
    for (int i = 0; ; i++) {
        char path[24];
        int pair[2];
        snprintf(path, sizeof path, "%d", i);
        if (ints(v, path, pair, 2) != 2) return n;
        for (int k = 0; k < pair[1]; k++, n++) if (n < cap) ids[n] = pair[0];
    }
}

static char *unquoted(g3__value v)                       // a string of the fixture: \n is its only escape
{
    char *text = (char *)calloc(1, v.n + 1), *q = text;
    for (size_t i = 1; i + 1 < v.n; i++)
        if (v.p[i] == '\\' && v.p[i + 1] == 'n') { *q++ = '\n'; i++; }
        else *q++ = v.p[i];
    return text;
}

static bool is(g3__value v, const char *text) { return v.p && v.n == strlen(text) + 2 && !memcmp(v.p + 1, text, v.n - 2); }

enum { MOST = 4096 };
static const uint8_t pixel[3] = {1, 2, 3};                // rendering alone never looks at one
static int want[MOST], got[MOST];

static int prompt(g3_model *m, g3__value c)
{
    g3_message msg[4] = {{0}};
    g3_part part[4][8] = {{{0}}};
    g3_image img = {pixel, 900, 900, 0};
    g3_error err;
    int n = 0;
    if (is(at(c, "name"), "pan_and_scan_1920x1080")) { img.width = 1920; img.height = 1080; }
    for (; n < 4; n++) {
        char path[64];
        snprintf(path, sizeof path, "messages.%d", n);
        g3__value v = at(c, path), role = at(v, "role");
        if (!v.p) break;
        msg[n].role = is(role, "system") ? "system" : is(role, "user") ? "user" : "assistant";
        msg[n].parts = part[n];
        for (int k = 0; k < 8; k++) {
            snprintf(path, sizeof path, "content.%d", k);
            g3__value p = at(v, path);
            if (!p.p) break;
            if (is(at(p, "type"), "image")) part[n][k].image = &img;
            else part[n][k].text = unquoted(at(p, "text"));
            part[n][k].pan_and_scan = part[n][k].image && at(c, "processor_kwargs.do_pan_and_scan").p;
            msg[n].n_parts++;
        }
    }
    int count = run_length(at(c, "ids_rle"), want, MOST), made = g3_render(m, msg, n, true, got, MOST, &err);
    for (int i = 0; i < n; i++) for (int k = 0; k < msg[i].n_parts; k++) free((void *)(uintptr_t)part[i][k].text);
    CHECK(count > 10 && n > 0);
    if (is(at(c, "name"), "literal_soft_token_text")) {   // the reference parses what a user types, we never do: no placeholder
        for (int i = 0; i < made; i++) CHECK(got[i] != 262144);
        return 0;
    }
    if (made != count || memcmp(want, got, sizeof *got * (size_t)count)) fprintf(stderr, "    %.*s: %d ids, not %d\n", (int)at(c, "name").n, at(c, "name").p, made, count);
    CHECK(made == count && !memcmp(want, got, sizeof *got * (size_t)count));
    return 0;
}

static int prompts_with_pictures_have_the_reference_s_ids(void)
{
    NEED(dense_270m);
    g3_error err;
    g3_model_desc d = G3__ZERO;
    d.path = dense_270m;
    d.no_weights = true;
    g3_model *m = g3_model_open(&d, &err);
    g3__value all = read_json(golden("vision/prompts.json"));
    CHECK(m && all.p);
    for (int i = 0; i < 13; i++) {
        char path[24];
        snprintf(path, sizeof path, "cases.%d", i);
        CHECK(at(all, path).p);
        int line = prompt(m, at(all, path));
        if (line) return line;
    }
    free(all.p);
    g3_model_close(m);
    return 0;
}

static int pan_and_scan_crops_and_says_what_the_reference_does(void)
{
    NEED(dense_270m);
    g3_error err;
    g3_model_desc d = G3__ZERO;
    d.path = dense_270m;
    d.no_weights = true;
    g3_model *m = g3_model_open(&d, &err);
    g3__value all = read_json(golden("vision/pan_and_scan.json"));
    int n = 0;
    CHECK(m && all.p);
    for (;; n++) {
        char path[48];
        snprintf(path, sizeof path, "cases.%d", n);
        g3__value c = at(all, path);
        if (!c.p) break;
        g3__rect crop[4];
        g3_image img = {pixel, (int)number(c, "width"), (int)number(c, "height"), 0};
        int crops = g3__image_crops(img.width, img.height, crop);
        CHECK(crops + 1 == (int)number(c, "images"));
        for (int i = 0; i < crops; i++) {
            int r[4];
            snprintf(path, sizeof path, "crops_xywh.%d", i);
            CHECK(ints(c, path, r, 4) == 4 && r[0] == crop[i].x && r[1] == crop[i].y && r[2] == crop[i].w && r[3] == crop[i].h);
        }
        g3__emit e;
        g3__chat_ids ids = g3__model_chat_ids(m);
        g3_part part = {NULL, &img, true};
        g3__emit_begin(&e, &m->tok, &m->heap.a, &ids, got, MOST, &err);
        g3__emit_part(&e, &part, "the turn", 0);
        int made = (int)g3__emit_end(&e), count = run_length(at(c, "ids_rle"), want, MOST);
        CHECK(made == count && !memcmp(want, got, sizeof *got * (size_t)count));
    }
    CHECK(n == 33);
    free(all.p);
    g3_model_close(m);
    return 0;
}

// Runs of ids as [id, count]: the newlines around a picture join what stands next to them.
static int the_newlines_around_a_picture_join_the_text(void)
{
    enum { SOFT = 262144, COUNT = 256 };
    static const int one[][2] = {{2, 1}, {105, 1}, {2364, 1}, {109, 1}, {255999, 1}, {SOFT, COUNT}, {256000, 1}, {108, 1}, {3689, 1}, {236881, 1}, {106, 1}, {107, 1}, {105, 1}, {4368, 1}, {107, 1}};
    NEED(dense_270m);
    g3_error err;
    g3_model_desc d = G3__ZERO;
    g3_image img = {pixel, 900, 900, 0};
    g3_part parts[4];
    memset(parts, 0, sizeof parts);
    g3_message msg = {"user", NULL, parts, 2};
    d.path = dense_270m;
    d.no_weights = true;
    g3_model *m = g3_model_open(&d, &err);
    parts[0].image = &img; parts[1].text = "What?";
    int n = g3_render(m, &msg, 1, true, got, MOST, &err), at = 0;
    CHECK(n == 270);
    for (int i = 0; i < G3__COUNT(one); i++) for (int k = 0; k < one[i][1]; k++) CHECK(got[at++] == one[i][0]);
    CHECK(at == n);
    parts[0].image = NULL; parts[0].text = "A"; parts[1].text = NULL; parts[1].image = parts[2].image = &img; parts[3].text = "B";
    msg.n_parts = 4;
    n = g3_render(m, &msg, 1, false, got, MOST, &err);
    static const int two[][2] = {{2, 1}, {105, 1}, {2364, 1}, {107, 1}, {236776, 1}, {108, 1}, {255999, 1}, {SOFT, COUNT}, {256000, 1}, {110, 1}, {255999, 1}, {SOFT, COUNT}, {256000, 1}, {108, 1}, {236799, 1}, {106, 1}, {107, 1}};
    CHECK(n == 4 + 521 + 2);                             // 521 are those of the content
    at = 0;
    for (int i = 0; i < G3__COUNT(two); i++) for (int k = 0; k < two[i][1]; k++) CHECK(got[at++] == two[i][0]);
    CHECK(at == n);
    g3_model_close(m);
    return 0;
}

int main(void)
{
    RUN(prompts_with_pictures_have_the_reference_s_ids);
    RUN(the_newlines_around_a_picture_join_the_text);
    RUN(pan_and_scan_crops_and_says_what_the_reference_does);
    return test_done();
}
