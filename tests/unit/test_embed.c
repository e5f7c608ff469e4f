// The kernels inside the header are those of gemma3_kernels.cuh, line by line, and the generator refuses what it cannot carry.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"

static int embedded_lines_equal_the_kernel_file(void)
{
    char line[512];
    int at = 0;
    FILE *f = fopen("gemma3_kernels.cuh", "rb");
    CHECK(f);
    while (fgets(line, (int)sizeof line, f)) {
        const char *own = g3__kernel_source[at];
        if (!own || strcmp(own, line) != 0) {
            fprintf(stderr, "gemma3_kernels.cuh:%d differs from the copy in gemma3.h; run: make embed\n    file: %s    copy: %s", at + 1, line, own ? own : "(ends here)\n");
            fclose(f);
            return __LINE__;
        }
        at++;
    }
    fclose(f);
    if (g3__kernel_source[at]) fprintf(stderr, "gemma3.h holds more than the %d lines of gemma3_kernels.cuh; run: make embed\n", at);
    CHECK(at > 0 && !g3__kernel_source[at]);
    return 0;
}

static int every_line_ends_and_fits_a_c99_literal(void)
{
    for (int i = 0; g3__kernel_source[i]; i++) {
        size_t n = strlen(g3__kernel_source[i]);
        CHECK(n >= 1 && n < 4095 && g3__kernel_source[i][n - 1] == '\n');
    }
    return 0;
}

// The kernel file includes nothing, so that NVRTC needs no search path.
static int kernels_include_nothing(void)
{
    for (int i = 0; g3__kernel_source[i]; i++) {
        const char *p = g3__kernel_source[i];
        while (*p == ' ') p++;
        CHECK(*p != '#' || !strstr(p, "include"));
    }
    return 0;
}

// Runs the generator on one kernel line over an empty pair of markers; 0: it worked, and `out` is what came of it.
static int embed_line(const char *text, const char *header, char *out, size_t cap)
{
    if (system("mkdir -p build") != 0) return -1;
    FILE *f = fopen("build/embed.cuh", "wb");
    if (!f) return -1;
    fputs(text, f);
    fclose(f);
    f = fopen("build/embed.h", "wb");
    if (!f) return -1;
    fputs(header, f);
    fclose(f);
    int rc = system("LC_ALL=C awk -f tests/embed.awk build/embed.cuh build/embed.h > build/embed.out 2>/dev/null");
    f = fopen("build/embed.out", "rb");
    if (!f) return -1;
    out[fread(out, 1, cap - 1, f)] = 0;
    fclose(f);
    return rc;
}

static const char markers[] = "before\n//>embed x\nold\n//<embed\nafter\n";

static int quotes_backslashes_and_percents_survive(void)
{
    char out[512];
    CHECK(embed_line("a \"b\\n\" %d & \\\n", markers, out, sizeof out) == 0);
    CHECK(strcmp(out, "before\n//>embed x\n\"a \\\"b\\\\n\\\" %d & \\\\\\n\",\n//<embed\nafter\n") == 0);
    return 0;
}

static int the_generator_refuses_what_c_strings_would_change(void)
{
    char out[512];
    CHECK(embed_line("a\tb\n", markers, out, sizeof out) != 0);
    CHECK(embed_line("a\r\n", markers, out, sizeof out) != 0);
    CHECK(embed_line("caf\xc3\xa9\n", markers, out, sizeof out) != 0);
    CHECK(embed_line("what?" "?=\n", markers, out, sizeof out) != 0);
    return 0;
}

static int the_generator_refuses_a_header_without_markers(void)
{
    char out[512];
    CHECK(embed_line("a\n", "no markers\n", out, sizeof out) != 0);
    CHECK(embed_line("a\n", "//>embed x\nnever closed\n", out, sizeof out) != 0);
    CHECK(embed_line("", markers, out, sizeof out) != 0);
    return 0;
}

int main(void)
{
    RUN(embedded_lines_equal_the_kernel_file);
    RUN(every_line_ends_and_fits_a_c99_literal);
    RUN(kernels_include_nothing);
    RUN(quotes_backslashes_and_percents_survive);
    RUN(the_generator_refuses_what_c_strings_would_change);
    RUN(the_generator_refuses_a_header_without_markers);
    return test_done();
}
