// The JSON cursor: the grammar of RFC 8259 and nothing more, on text that may be hostile.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"

// A cursor over a copy of `text` in a heap block of exactly its size, so that AddressSanitizer sees a step outside.
typedef struct text_cursor { g3__json j; g3_error err; char *copy; } text_cursor;

static g3__json *text_open(text_cursor *t, const char *text, size_t size)
{
    memset(t, 0, sizeof *t);
    t->copy = (char *)malloc(size ? size : 1);
    memcpy(t->copy, text, size);
    g3__json_init(&t->j, t->copy, size, "text", &t->err);
    return &t->j;
}

static void text_close(text_cursor *t) { free(t->copy); }

// Whether skip takes exactly the whole text as one value; a failure must bring its code and its sentence.
static bool valid_bytes(const char *text, size_t size)
{
    text_cursor t;
    g3__json *j = text_open(&t, text, size);
    bool ok = g3__json_skip(j) && g3__json_end(j), told = t.err.code == G3_ERR_FORMAT && strstr(t.err.text, "text");
    text_close(&t);
    if (ok ? t.err.code != G3_OK : !told) { fprintf(stderr, "result and sentence disagree on: %.*s\n", (int)size, text); exit(1); }
    return ok;
}

static bool valid(const char *text) { return valid_bytes(text, strlen(text)); }

static bool reads_u64(const char *text, uint64_t *out)
{
    text_cursor t;
    g3__json *j = text_open(&t, text, strlen(text));
    bool ok = g3__json_u64(j, out) && g3__json_end(j);
    text_close(&t);
    return ok;
}

static bool reads_f64(const char *text, double *out)
{
    text_cursor t;
    g3__json *j = text_open(&t, text, strlen(text));
    bool ok = g3__json_f64(j, out) && g3__json_end(j);
    text_close(&t);
    return ok;
}

static bool reads_string(const char *text, size_t size, const char *want, size_t want_size)
{
    text_cursor t;
    g3__str s = { NULL, 0 };
    g3__json *j = text_open(&t, text, size);
    bool ok = g3__json_string(j, &s) && g3__json_end(j) && s.n == want_size && memcmp(s.p, want, want_size) == 0;
    text_close(&t);
    return ok;
}

#define READS(text, want) reads_string(text, sizeof(text) - 1, want, sizeof(want) - 1)
#define REFUSES(text)     (!reads_string(text, sizeof(text) - 1, "", 0) && !valid_bytes(text, sizeof(text) - 1))

// ---- the grammar

static int every_kind_of_value_is_taken(void)
{
    static const char *good[] = { "{}", "[]", "true", "false", "null", "0", "-0", "12", "-1.5e-3", "1E+2", "\"\"", "\"a\"", "[1,2,3]", "[[],{},[[]]]", "{\"a\":1}",
        "{\"a\":{\"b\":[null,true]},\"c\":\"d\"}", " \t\r\n[ 1 , 2 ] \n", "{ \"a\" : 1 , \"b\" : 2 }", "{\"a\":1,\"a\":2}", "{\"\":0}" };
    for (int i = 0; i < G3__COUNT(good); i++)
        if (!valid(good[i])) { fprintf(stderr, "refused: %s\n", good[i]); return __LINE__; }
    return 0;
}

static int everything_outside_the_grammar_is_refused(void)
{
    static const char *bad[] = { "", " ", "[", "]", "{", "}", "[1", "[1,", "[1,]", "[,1]", "[,]", "[1 2]", "[1,,2]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{,}", "{\"a\":1 \"b\":2}", "{a:1}", "{1:1}",
        "{\"a\" 1}", "[1}", "{\"a\":1]", "[}", "{]", "1 2", "{} {}", "[]x", "tru", "True", "nul", "nulll", "truefalse", "[truefalse]", "'a'", "\"a", "NaN", "Infinity", "-Infinity", "-", "+1", "01", "-01", "00",
        "1.", ".5", "1.e1", "1e", "1e+", "1e1.5", "0x10", "1_0", "--1", "1,", "// a\n1", "/* */1", "\xEF\xBB\xBF{}", "{\"a\":1}}", "[1]]", "\"a\"b" };
    for (int i = 0; i < G3__COUNT(bad); i++)
        if (valid(bad[i])) { fprintf(stderr, "taken: %s\n", bad[i]); return __LINE__; }
    CHECK(!valid_bytes("[1]\0", 4));                     // a NUL byte is neither white space nor an end
    CHECK(!valid_bytes("\0", 1) && !valid_bytes("[\0]", 3) && !valid_bytes("[1,\0", 4) && !valid_bytes("{\"a\":\0", 6));
    CHECK(!valid("[1]\v") && !valid("[\f1]") && !valid("[1\xC2\xA0]"));   // white space is four characters
    return 0;
}

static char *nested(const char *open, const char *close, int depth, const char *inside)
{
    char *text = (char *)calloc(1, (size_t)depth * (strlen(open) + strlen(close)) + strlen(inside) + 1);
    char *p = text;
    for (int i = 0; i < depth; i++) p = strcpy(p, open) + strlen(open);
    p = strcpy(p, inside) + strlen(inside);
    for (int i = 0; i < depth; i++) p = strcpy(p, close) + strlen(close);
    return text;
}

static bool nested_valid(const char *open, const char *close, int depth, const char *inside)
{
    char *text = nested(open, close, depth, inside);
    bool ok = valid(text);
    free(text);
    return ok;
}

static int depth_128_is_read_and_129_is_refused(void)
{
    CHECK(nested_valid("[", "]", 128, "") && !nested_valid("[", "]", 129, ""));
    CHECK(nested_valid("{\"a\":", "}", 128, "1") && !nested_valid("{\"a\":", "}", 129, "1"));
    CHECK(!nested_valid("[", "", 100000, "") && !nested_valid("{\"a\":", "}", 100000, "1") && !nested_valid("[", "]", 100000, ""));
    return 0;
}

static int depth_counts_what_the_caller_has_open(void)
{
    char *text = nested("[", "]", 129, "");
    text_cursor t;
    g3__json *j = text_open(&t, text, strlen(text));
    for (int i = 0; i < 100; i++) CHECK(g3__json_array(j) && g3__json_item(j));
    CHECK(!g3__json_skip(j) && j->failed && strstr(t.err.text, "deeper"));
    text_close(&t);
    free(text);
    return 0;
}

static int a_value_can_be_skipped_inside_any_walk(void)
{
    static const char text[] = "{\"a\":[1,{\"x\":[]},\"s\\n\"],\"b\":{\"c\":null},\"n\":-1.5e9,\"t\":true,\"last\":7}";
    text_cursor t;
    g3__str key;
    uint64_t last = 0;
    int keys = 0;
    g3__json *j = text_open(&t, text, strlen(text));
    CHECK(g3__json_object(j));
    while (g3__json_key(j, &key)) {
        keys++;
        if (g3__str_is(key, "last")) CHECK(g3__json_u64(j, &last));
        else CHECK(g3__json_skip(j));
    }
    CHECK(g3__json_end(j) && keys == 5 && last == 7 && j->depth == 0);
    text_close(&t);
    return 0;
}

// Every object and array of every kind, walked with key and item; duplicates reach the caller, who decides.
static int duplicate_keys_reach_the_caller(void)
{
    text_cursor t;
    g3__str key;
    uint64_t v = 0, sum = 0;
    int seen = 0;
    g3__json *j = text_open(&t, "{\"a\":1,\"a\":2,\"\\u0061\":4}", 24);
    CHECK(g3__json_object(j));
    while (g3__json_key(j, &key)) {
        CHECK(g3__str_is(key, "a") && g3__json_u64(j, &v));
        seen++;
        sum += v;
    }
    CHECK(g3__json_end(j) && seen == 3 && sum == 7);
    text_close(&t);
    return 0;
}

static int a_wrong_kind_is_refused_by_every_reader(void)
{
    static const char *values[] = { "{}", "[]", "\"s\"", "5", "true", "null" };
    enum { OBJECT, ARRAY, STRING, NUMBER, BOOL, NULLS, KINDS };
    for (int v = 0; v < KINDS; v++)
        for (int reader = 0; reader < KINDS + 1; reader++) {
            text_cursor t;
            g3__str s;
            uint64_t u;
            double d;
            bool b, ok = false;
            g3__json *j = text_open(&t, values[v], strlen(values[v]));
            if (reader == OBJECT) ok = g3__json_object(j);
            if (reader == ARRAY) ok = g3__json_array(j);
            if (reader == STRING) ok = g3__json_string(j, &s);
            if (reader == NUMBER) ok = g3__json_u64(j, &u);
            if (reader == KINDS) ok = g3__json_f64(j, &d);
            if (reader == BOOL) ok = g3__json_bool(j, &b);
            if (reader == NULLS) ok = g3__json_null(j);
            text_close(&t);
            bool fits = v == (reader == KINDS ? NUMBER : reader);
            if (ok != fits) { fprintf(stderr, "reader %d on %s\n", reader, values[v]); return __LINE__; }
            if (reader != NULLS) CHECK(t.j.failed == !fits && (t.err.code == G3_ERR_FORMAT) == !fits);
            else CHECK(!t.j.failed);                     // null is a question, not a demand
        }
    return 0;
}

// ---- the first mistake sticks

static int after_a_failure_nothing_is_read(void)
{
    text_cursor t;
    g3__str s;
    uint64_t u;
    double d;
    bool b;
    char first[504];
    g3__json *j = text_open(&t, "[01, 2, 3, true, null]", 22);
    CHECK(g3__json_array(j) && g3__json_item(j) && !g3__json_u64(j, &u) && j->failed);
    strcpy(first, t.err.text);
    CHECK(strstr(first, "text") && strstr(first, "number"));
    CHECK(!g3__json_item(j) && !g3__json_key(j, &s) && !g3__json_string(j, &s) && !g3__json_object(j) && !g3__json_array(j));
    CHECK(!g3__json_u64(j, &u));
    CHECK(!g3__json_f64(j, &d));
    CHECK(!g3__json_bool(j, &b) && !g3__json_null(j));
    CHECK(!g3__json_skip(j));
    CHECK(!g3__json_peek(j) && !g3__json_end(j));
    CHECK(strcmp(first, t.err.text) == 0);
    text_close(&t);
    return 0;
}

// The cursor may stand before something that would read well: it is not read.
static int after_a_failure_even_good_values_are_refused(void)
{
    static const char *values[] = { "5", "[5]", "{}", "true", "\"s\"" };
    for (int i = 0; i < G3__COUNT(values); i++) {
        text_cursor t;
        g3__str s;
        uint64_t u;
        double d;
        bool b, other = values[i][0] == '"';
        g3__json *j = text_open(&t, values[i], strlen(values[i]));
        CHECK(!(other ? g3__json_array(j) : g3__json_string(j, &s)) && j->failed);
        CHECK(!g3__json_u64(j, &u));
        CHECK(!g3__json_f64(j, &d));
        CHECK(!g3__json_skip(j));
        CHECK(!g3__json_bool(j, &b) && !g3__json_null(j) && !g3__json_string(j, &s) && !g3__json_object(j) && !g3__json_array(j) && !g3__json_end(j));
        text_close(&t);
    }
    return 0;
}

static int the_error_is_optional(void)
{
    char text[] = "[1,";
    g3__json j;
    g3__json_init(&j, text, strlen(text), "text", NULL);
    CHECK(!g3__json_skip(&j) && j.failed);
    return 0;
}

// ---- truncation

static const char document[] =
    "{ \"__metadata__\": {\"format\": \"pt\"}, \"w\\u00e9ight \\ud83d\\ude00 \xF0\x9F\x98\x80 \xC3\xA9\": {\"dtype\":\"F32\", \"shape\":[2, 3], \"data_offsets\":[0,24], \"n\":-1.25e-3, \"b\":[true,false,null], \"e\":[],\"o\":{}} }";

static int a_document_cut_anywhere_fails_inside_its_buffer(void)
{
    size_t size = sizeof document - 1;
    CHECK(valid_bytes(document, size));
    for (size_t n = 0; n < size; n++)
        if (valid_bytes(document, n)) { fprintf(stderr, "taken when cut at %zu\n", n); return __LINE__; }
    static const char *leaves[] = { "true", "false", "null", "\"ab\\n\\u1234\\ud83d\\ude00\xF0\x9F\x98\x80\"", "[1]", "{\"a\":1}" };
    for (int i = 0; i < G3__COUNT(leaves); i++)
        for (size_t n = 0; n < strlen(leaves[i]); n++) CHECK(!valid_bytes(leaves[i], n));
    return 0;
}

// One byte changed at every place to every value: any answer will do, but never a step outside or a silent failure.
static int a_document_with_any_byte_changed_is_answered(void)
{
    size_t size = sizeof document - 1;
    char *copy = (char *)malloc(size);
    int taken = 0;
    for (size_t at = 0; at < size; at++)
        for (int byte = 0; byte < 256; byte++) {
            memcpy(copy, document, size);
            copy[at] = (char)byte;
            taken += valid_bytes(copy, size);
        }
    free(copy);
    CHECK(taken > (int)size);                            // at least the unchanged ones
    return 0;
}

// ---- strings

static int strings_are_unescaped_in_place(void)
{
    CHECK(READS("\"\"", "") && READS("\"abc\"", "abc"));
    CHECK(READS("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t"));
    CHECK(READS("\"a\\nb\\nc\"", "a\nb\nc"));
    CHECK(READS("\"\\u0041\\u00e9\\u20AC\\uFFFF\"", "A\xC3\xA9\xE2\x82\xAC\xEF\xBF\xBF"));
    CHECK(READS("\"x\\u0000y\"", "x\0y"));
    CHECK(READS("\"\\ud83d\\ude00|\\uD800\\uDC00|\\uDBFF\\uDFFF\"", "\xF0\x9F\x98\x80|\xF0\x90\x80\x80|\xF4\x8F\xBF\xBF"));
    CHECK(READS("\"\x7f\"", "\x7f") && READS("\"\\u007f\\u0080\"", "\x7f\xC2\x80"));
    CHECK(READS("\"\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF\"", "\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF \xF0\x90\x80\x80 \xF4\x8F\xBF\xBF"));
    CHECK(READS("\"\\n\xC3\xA9\\n\xF0\x9F\x98\x80 plain\"", "\n\xC3\xA9\n\xF0\x9F\x98\x80 plain"));   // runs move down behind escapes
    return 0;
}

static int unescaping_never_grows_and_stays_in_the_text(void)
{
    text_cursor t;
    g3__str s;
    g3__json *j = text_open(&t, "[\"\\u20ac\\ud83d\\ude00\",\"next\"]", 29);
    CHECK(g3__json_array(j) && g3__json_item(j) && g3__json_string(j, &s));
    CHECK(s.p >= t.copy && s.p + s.n <= t.copy + 29 && s.n == 7 && memcmp(s.p, "\xE2\x82\xAC\xF0\x9F\x98\x80", 7) == 0);
    CHECK(g3__json_item(j) && g3__json_string(j, &s) && g3__str_is(s, "next") && !g3__json_item(j) && g3__json_end(j));
    text_close(&t);
    return 0;
}

static int bad_escapes_are_refused(void)
{
    CHECK(REFUSES("\"\\x41\"") && REFUSES("\"\\'\"") && REFUSES("\"\\a\"") && REFUSES("\"\\0\"") && REFUSES("\"\\U0041\""));
    CHECK(REFUSES("\"\\") && REFUSES("\"\\\"") && REFUSES("\"\\u\"") && REFUSES("\"\\u12\"") && REFUSES("\"\\u12g4\"") && REFUSES("\"\\u123\"") && REFUSES("\"\\u+123\"") && REFUSES("\"\\u 123\""));
    CHECK(REFUSES("\"\\\0\""));
    return 0;
}

static int lone_surrogates_are_refused(void)
{
    CHECK(REFUSES("\"\\ud800\"") && REFUSES("\"\\udc00\"") && REFUSES("\"\\udfff\"") && REFUSES("\"\\ud800x\"") && REFUSES("\"\\ud800\\n\"") && REFUSES("\"\\ud800\\u0041\"") && REFUSES("\"\\ud800\\ud800\""));
    CHECK(REFUSES("\"\\ud83d\\u") && REFUSES("\"\\ud83d\\ude0") && REFUSES("\"\\ud83d\\") && REFUSES("\"\\ude00\\ud83d\""));
    return 0;
}

static int control_characters_in_strings_are_refused(void)
{
    for (int c = 0; c < 0x20; c++) {
        char text[4] = { '"', (char)c, '"', 0 };
        if (valid_bytes(text, 3)) { fprintf(stderr, "control character %d\n", c); return __LINE__; }
    }
    return 0;
}

// The table of well-formed sequences in chapter 3 of the Unicode standard; holds whether `char` is signed or not.
static int invalid_utf8_in_strings_is_refused(void)
{
    CHECK(REFUSES("\"\x80\"") && REFUSES("\"\xBF\"") && REFUSES("\"\xFF\"") && REFUSES("\"\xFE\""));
    CHECK(REFUSES("\"a\x80\"") && REFUSES("\"a\xFF z\"") && REFUSES("\"\\n\x80\""));
    CHECK(REFUSES("\"\xC0\x80\"") && REFUSES("\"\xC1\xBF\"") && REFUSES("\"\xE0\x80\x80\"") && REFUSES("\"\xE0\x9F\xBF\"") && REFUSES("\"\xF0\x80\x80\x80\"") && REFUSES("\"\xF0\x8F\xBF\xBF\""));
    CHECK(REFUSES("\"\xED\xA0\x80\"") && REFUSES("\"\xED\xBF\xBF\"") && REFUSES("\"\xF4\x90\x80\x80\"") && REFUSES("\"\xF5\x80\x80\x80\""));
    CHECK(REFUSES("\"\xC3\"") && REFUSES("\"\xE2\x82\"") && REFUSES("\"\xF0\x9F\x98\"") && REFUSES("\"\xC3(\"") && REFUSES("\"\xE2\x82\xC0\""));
    CHECK(REFUSES("\"\xC3") && REFUSES("\"\xE2\x82") && REFUSES("\"\xF0\x9F\x98"));                    // cut at the end of the buffer
    for (int a = 0x80; a < 0x100; a++) {
        char text[4] = { '"', (char)a, '"', 0 };
        CHECK(!valid_bytes(text, 3));
    }
    return 0;
}

// ---- numbers

static int whole_numbers_are_exact_up_to_2_64(void)
{
    uint64_t v = 1;
    CHECK(reads_u64("0", &v) && v == 0);
    CHECK(reads_u64("9007199254740993", &v) && v == 9007199254740993u);            // no way through a double
    CHECK(reads_u64("18446744073709551615", &v) && v == UINT64_MAX);
    CHECK(!reads_u64("18446744073709551616", &v) && !reads_u64("18446744073709551625", &v) && !reads_u64("99999999999999999999999999999999", &v));
    CHECK(!reads_u64("-1", &v) && !reads_u64("-0", &v) && !reads_u64("1.0", &v) && !reads_u64("3.2e1", &v) && !reads_u64("1e3", &v) && !reads_u64("1E0", &v));
    CHECK(!reads_u64("01", &v) && !reads_u64("+1", &v) && !reads_u64("0x1", &v) && !reads_u64("\"1\"", &v) && !reads_u64("", &v) && !reads_u64("null", &v));
    return 0;
}

static int numbers_are_the_nearest_double(void)
{
    double d = 0;
    CHECK(reads_f64("0", &d) && d == 0 && reads_f64("-0.0", &d) && d == 0 && signbit(d));
    CHECK(reads_f64("0.04340278", &d) && d == 0.04340278);
    CHECK(reads_f64("0.1", &d) && d == 0.1 && reads_f64("1e-06", &d) && d == 1e-6 && reads_f64("10000", &d) && d == 10000 && reads_f64("1E+2", &d) && d == 100);
    CHECK(reads_f64("1.7976931348623157e308", &d) && d == DBL_MAX && reads_f64("4.9e-324", &d) && d > 0 && reads_f64("1e-400", &d) && d == 0);
    CHECK(reads_f64("9007199254740993", &d) && d == 9007199254740992.0);           // ties to even
    CHECK(!reads_f64("1e999", &d) && !reads_f64("-1e999", &d) && !reads_f64("NaN", &d) && !reads_f64("Infinity", &d) && !reads_f64("-Infinity", &d));
    CHECK(!reads_f64(".5", &d) && !reads_f64("1.", &d) && !reads_f64("0x1p3", &d) && !reads_f64("1f", &d));
    return 0;
}

static int long_numbers_are_bounded(void)
{
    char text[600];
    double d;
    memset(text, '1', sizeof text);
    text[0] = '0'; text[1] = '.';
    text[300] = 0;
    CHECK(reads_f64(text, &d) && fabs(d - 1.0 / 9) < 1e-15);
    text[300] = '1'; text[599] = 0;
    CHECK(valid(text));                                  // skipped it may be
    reads_f64(text, &d);                                 // read or refused, but never written past a buffer
    return 0;
}

// A process that runs with a decimal comma reads the same numbers.
static int numbers_do_not_depend_on_the_locale(void)
{
    static const char *names[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE", "test_comma" };
    char dir[] = "/tmp/g3-locale-XXXXXX", command[256];
    const char *got = NULL;
    bool made = false;
    double a = 0, b = 0;
    for (int i = 0; i < 4 && !got; i++) got = setlocale(LC_ALL, names[i]);
    if (!got && mkdtemp(dir)) {                          // no such locale here: make one, where the system has the means
        made = true;
        snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/test_comma >/dev/null 2>&1", dir);
        if (system(command) >= 0 && setenv("LOCPATH", dir, 1) == 0) got = setlocale(LC_ALL, "test_comma");
    }
    bool comma = got && strcmp(localeconv()->decimal_point, ",") == 0, ok = false;
    if (comma) ok = reads_f64("1.5", &a) && reads_f64("-2.25e-3", &b) && !reads_f64("1,5", &b) && valid("[1.5,2.5]");
    setlocale(LC_ALL, "C");
    if (made) { snprintf(command, sizeof command, "rm -rf %s", dir); if (system(command)) return __LINE__; unsetenv("LOCPATH"); }
    if (!comma) SKIP("no locale with a decimal comma");
    CHECK(ok && a == 1.5);
    return 0;
}

int main(void)
{
    RUN(every_kind_of_value_is_taken);
    RUN(everything_outside_the_grammar_is_refused);
    RUN(depth_128_is_read_and_129_is_refused);
    RUN(depth_counts_what_the_caller_has_open);
    RUN(a_value_can_be_skipped_inside_any_walk);
    RUN(duplicate_keys_reach_the_caller);
    RUN(a_wrong_kind_is_refused_by_every_reader);
    RUN(after_a_failure_nothing_is_read);
    RUN(after_a_failure_even_good_values_are_refused);
    RUN(the_error_is_optional);
    RUN(a_document_cut_anywhere_fails_inside_its_buffer);
    RUN(a_document_with_any_byte_changed_is_answered);
    RUN(strings_are_unescaped_in_place);
    RUN(unescaping_never_grows_and_stays_in_the_text);
    RUN(bad_escapes_are_refused);
    RUN(lone_surrogates_are_refused);
    RUN(control_characters_in_strings_are_refused);
    RUN(invalid_utf8_in_strings_is_refused);
    RUN(whole_numbers_are_exact_up_to_2_64);
    RUN(numbers_are_the_nearest_double);
    RUN(long_numbers_are_bounded);
    RUN(numbers_do_not_depend_on_the_locale);
    (void)golden;
    return test_done();
}
