// The whole test runner. A case is `static int name(void)`: 0 when it holds, the failing line, or SKIP with a reason.
// A program runs its cases with RUN and ends with `return test_done();`, whose last line the Makefile adds up.
#ifndef TEST_H
#define TEST_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEST_SKIPPED = -77 };
static int test_passed, test_failed, test_skipped;

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); return __LINE__; } } while (0)
#define SKIP(why) do { printf("    skipped: %s\n", why); return TEST_SKIPPED; } while (0)
#define RUN(fn) test_run(#fn, fn)

#ifndef TEST_HOLDS
#define TEST_HOLDS() 1                 // asked after every case: does what all cases have in common hold?
#endif

static void test_run(const char *name, int (*fn)(void))
{
    int line = fn();
    if (!line && !TEST_HOLDS()) line = -1;
    if (line == TEST_SKIPPED) test_skipped++;
    else if (line) test_failed++;
    else test_passed++;
    printf("%s %s\n", line == TEST_SKIPPED ? "SKIP" : line ? "FAIL" : "ok  ", name);
    fflush(stdout);
}

static int test_done(void)
{
    printf("%d passed, %d failed, %d skipped\n", test_passed, test_failed, test_skipped);
    return test_failed != 0;
}

// A fixture's path: under build/golden unless GOLDEN says otherwise. Valid until the eighth next call.
#if defined(__GNUC__)
__attribute__((unused))
#endif
static const char *golden(const char *name)
{
    static char path[8][512];
    static int turn;
    const char *root = getenv("GOLDEN");
    char *p = path[turn++ & 7];
    snprintf(p, sizeof path[0], "%s/%s", root ? root : "build/golden", name);
    return p;
}
#endif
