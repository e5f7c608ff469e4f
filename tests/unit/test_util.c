// The small tools below everything: errors, checked sizes, heap and zones, strings, the hash index.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include "../test.h"

// ---- errors

static g3_error fresh(void) { g3_error e; memset(&e, 0, sizeof e); return e; }

static int the_first_failure_sticks(void)
{
    g3_error e = fresh();
    CHECK(g3__fail(&e, G3_ERR_IO, "first %d", 1) == G3_ERR_IO && e.code == G3_ERR_IO && strcmp(e.text, "first 1") == 0);
    CHECK(g3__fail(&e, G3_ERR_MEMORY, "second") == G3_ERR_MEMORY && e.code == G3_ERR_IO && strcmp(e.text, "first 1") == 0);
    g3__error_clear(&e);
    CHECK(e.code == G3_OK && !e.text[0]);
    CHECK(g3__fail(NULL, G3_ERR_IO, "nobody listens") == G3_ERR_IO);
    g3__error_clear(NULL);
    return 0;
}

static int control_characters_in_a_sentence_become_question_marks(void)
{
    g3_error e = fresh();
    g3__fail(&e, G3_ERR_FORMAT, "a\nb\tc\033[31m\x7f \xC3\xA9");
    CHECK(strcmp(e.text, "a?b?c?[31m? \xC3\xA9") == 0);
    return 0;
}

// A sentence longer than the buffer ends with a whole character, whatever the sizes of the characters are.
static int a_long_sentence_is_cut_between_characters(void)
{
    static const char *chars[] = { "a", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80" };
    for (size_t size = 1; size <= 4; size++)
        for (int lead = 0; lead < 8; lead++) {
            char text[1200] = "";
            g3_error e = fresh();
            for (int i = 0; i < lead; i++) strcat(text, "x");
            while (strlen(text) < 1000) strcat(text, chars[size - 1]);
            g3__fail(&e, G3_ERR_FORMAT, "%s", text);
            size_t n = strlen(e.text);
            CHECK(n < sizeof e.text && n + size > sizeof e.text - 1);                 // cut, and not by more than it must
            CHECK((n - (size_t)lead) % size == 0 && memcmp(e.text, text, n) == 0);
        }
    return 0;
}

static int a_whole_last_character_is_kept(void)
{
    g3_error e = fresh();
    g3__fail(&e, G3_ERR_FORMAT, "tensor \xF0\x9F\x98\x80");
    CHECK(strcmp(e.text, "tensor \xF0\x9F\x98\x80") == 0);
    g3__error_clear(&e);
    g3__fail(&e, G3_ERR_FORMAT, "\x80\x80\x80\x80\x80");                            // not UTF-8 at all: anything, but inside the buffer
    CHECK(e.code == G3_ERR_FORMAT);
    g3__error_clear(&e);
    g3__fail(&e, G3_ERR_FORMAT, "%s", "");
    CHECK(e.code == G3_ERR_FORMAT && !e.text[0]);
    return 0;
}

// ---- sizes

static int sums_and_products_notice_the_end_of_64_bits(void)
{
    uint64_t v = 7;
    CHECK(g3__mul(UINT32_MAX, UINT32_MAX, &v) && v == 18446744065119617025u);
    CHECK(!g3__mul((uint64_t)1 << 32, (uint64_t)1 << 32, &v) && !g3__mul(UINT64_MAX, 2, &v) && !g3__mul(2, UINT64_MAX, &v) && !g3__mul(((uint64_t)1 << 63) + 16, 2, &v));
    CHECK(g3__mul(UINT64_MAX, 1, &v) && v == UINT64_MAX && g3__mul(0, UINT64_MAX, &v) && v == 0 && g3__mul(UINT64_MAX, 0, &v) && v == 0);
    CHECK(g3__add(UINT64_MAX, 0, &v) && v == UINT64_MAX && g3__add(UINT64_MAX - 1, 1, &v) && v == UINT64_MAX);
    CHECK(!g3__add(UINT64_MAX, 1, &v) && !g3__add(1, UINT64_MAX, &v) && !g3__add(UINT64_MAX, UINT64_MAX, &v));
    v = 5;
    CHECK(g3__mul(v, 10, &v) && v == 50 && g3__add(v, 3, &v) && v == 53);                // the result may take an operand's place
    CHECK(g3__round_up(0, 64) == 0 && g3__round_up(1, 64) == 64 && g3__round_up(64, 64) == 64 && g3__round_up(65, 64) == 128);
    return 0;
}

// ---- heap

typedef struct counter { uint64_t live, calls, fail_at; int bad; } counter;

static void *count_alloc(void *user, size_t size, size_t align)
{
    counter *c = (counter *)user;
    void *p = NULL;
    if (++c->calls == c->fail_at) return NULL;
    if (posix_memalign(&p, align, size)) return NULL;
    memset(p, 0xA5, size);
    c->live += size;
    return p;
}

static void count_free(void *user, void *ptr, size_t size)
{
    counter *c = (counter *)user;
    if (!ptr || size > c->live) c->bad = 1;
    c->live -= size;
    free(ptr);
}

static g3_allocator counting(counter *c)
{
    g3_allocator a;
    memset(c, 0, sizeof *c);
    a.alloc_fn = count_alloc; a.free_fn = count_free; a.user = c;
    return a;
}

static bool zeroed(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) if (((const char *)p)[i]) return false;
    return true;
}

static int the_heap_counts_what_it_gives(void)
{
    counter c;
    g3_allocator a = counting(&c);
    g3_error e = fresh();
    g3__heap h;
    g3__heap_init(&h, &a);
    void *p = g3__heap_alloc(&h, 100, 3, &e), *q = g3__heap_alloc(&h, 1, 1000, &e);
    CHECK(p && q && zeroed(p, 300) && zeroed(q, 1000) && (uintptr_t)p % 64 == 0 && (uintptr_t)q % 64 == 0);
    CHECK(h.live == 1300 && h.peak == 1300 && c.live == 1300);
    g3__heap_free(&h, p, 100, 3);
    CHECK(h.live == 1000 && h.peak == 1300);
    void *none = g3__heap_alloc(&h, 0, 8, &e);                                        // an empty table is a pointer all the same
    CHECK(none && h.live == c.live);
    g3__heap_free(&h, none, 0, 8);
    g3__heap_free(&h, q, 1, 1000);
    g3__heap_free(&h, NULL, 5, 5);
    CHECK(h.live == 0 && c.live == 0 && !c.bad && h.peak == 1300 && e.code == G3_OK);
    return 0;
}

static int the_default_heap_aligns_and_zeroes(void)
{
    g3_error e = fresh();
    g3__heap h;
    g3_allocator none;
    memset(&none, 0, sizeof none);
    g3__heap_init(&h, &none);
    for (size_t n = 1; n < 5000; n = n * 3 + 1) {
        char *p = (char *)g3__heap_alloc(&h, n, 1, &e);
        CHECK(p && (uintptr_t)p % 64 == 0 && zeroed(p, n));
        memset(p, 0x5A, n);
        g3__heap_free(&h, p, n, 1);
    }
    CHECK(h.live == 0);
    return 0;
}

static int a_table_beyond_the_address_space_is_refused(void)
{
    counter c;
    g3_allocator a = counting(&c);
    g3__heap h;
    g3__zone z;
    g3__heap_init(&h, &a);
    g3__zone_init(&z, &h);
    g3_error e = fresh();
    CHECK(!g3__heap_alloc(&h, UINT64_MAX, 2, &e) && e.code == G3_ERR_MEMORY && e.text[0]);
    e = fresh();
    CHECK(!g3__zone_alloc(&z, (uint64_t)1 << 62, 8, &e) && e.code == G3_ERR_MEMORY);
    e = fresh();
    CHECK(!g3__zone_alloc(&z, UINT64_MAX, 1, &e) && e.code == G3_ERR_MEMORY);
    CHECK(c.calls == 0 && h.live == 0);
    g3__heap_init(&h, NULL);
    e = fresh();
    CHECK(!g3__heap_alloc(&h, SIZE_MAX - 8, 1, &e) && e.code == G3_ERR_MEMORY);       // the default allocator adds room of its own
    return 0;
}

static int a_failing_allocator_is_named_and_counted_right(void)
{
    counter c;
    g3_allocator a = counting(&c);
    g3__heap h;
    g3_error e = fresh();
    g3__heap_init(&h, &a);
    c.fail_at = 1;
    CHECK(!g3__heap_alloc(&h, 10, 10, &e) && e.code == G3_ERR_MEMORY && strstr(e.text, "100") && h.live == 0 && h.peak == 0);
    return 0;
}

// ---- zones

static int a_zone_gives_aligned_zeroed_pieces_and_takes_all_back(void)
{
    counter c;
    g3_allocator a = counting(&c);
    g3__heap h;
    g3__zone z;
    g3_error e = fresh();
    static char *piece[600];
    static size_t size[600];
    g3__heap_init(&h, &a);
    g3__zone_init(&z, &h);
    uint64_t asked = 0;
    for (int i = 0; i < 600; i++) {
        size[i] = (size_t)(i % 7 == 0 ? i * 97 : i % 50 == 3 ? 0 : i % 200);               // small, empty and larger than a block
        piece[i] = (char *)g3__zone_alloc(&z, size[i], 1, &e);
        CHECK(piece[i] && (uintptr_t)piece[i] % 16 == 0 && zeroed(piece[i], size[i]));
        memset(piece[i], i & 255, size[i]);
        asked += size[i];
    }
    for (int i = 0; i < 600; i++)
        for (size_t k = 0; k < size[i]; k++) CHECK((unsigned char)piece[i][k] == (i & 255));    // no piece lies in another
    CHECK(h.live == c.live && h.live >= asked && h.live < asked + asked / 2 + (128 << 10));
    g3__zone_free(&z);
    CHECK(h.live == 0 && c.live == 0 && !c.bad && !z.first);
    g3__zone_free(&z);                                                                        // twice is harmless
    CHECK(g3__zone_alloc(&z, 10, 1, &e));                                                     // and the zone can be used again
    g3__zone_free(&z);
    CHECK(c.live == 0 && e.code == G3_OK);
    return 0;
}

static int a_big_piece_takes_no_more_than_its_size(void)
{
    counter c;
    g3_allocator a = counting(&c);
    g3__heap h;
    g3__zone z;
    g3_error e = fresh();
    g3__heap_init(&h, &a);
    g3__zone_init(&z, &h);
    CHECK(g3__zone_alloc(&z, 100, 1, &e));
    uint64_t before = h.live;
    CHECK(g3__zone_alloc(&z, 1, 1000001, &e) && h.live - before < 1000001 + 256);
    uint64_t calls = c.calls;
    CHECK(g3__zone_alloc(&z, 100, 1, &e) && c.calls == calls);                         // the block in use goes on being filled
    g3__zone_free(&z);
    CHECK(c.live == 0);
    return 0;
}

static int a_zone_survives_a_failing_allocator(void)
{
    for (uint64_t at = 1; at < 20; at++) {
        counter c;
        g3_allocator a = counting(&c);
        g3__heap h;
        g3__zone z;
        g3_error e = fresh();
        g3__heap_init(&h, &a);
        g3__zone_init(&z, &h);
        c.fail_at = at;
        int failed = 0;
        for (int i = 0; i < 40; i++) failed += !g3__zone_alloc(&z, 20000, 1, &e);
        CHECK(failed == 1 && e.code == G3_ERR_MEMORY);
        g3__zone_free(&z);
        CHECK(c.live == 0 && h.live == 0);
    }
    return 0;
}

// ---- strings

static int strings_compare_by_length_and_bytes(void)
{
    g3__str s = g3__str_c("model.layers"), empty = g3__str_c(NULL);
    CHECK(g3__str_is(s, "model.layers") && !g3__str_is(s, "model.layer") && !g3__str_is(s, "model.layersX") && !g3__str_is(s, ""));
    CHECK(g3__str_is(empty, "") && g3__str_equal(empty, g3__str_make("x", 0)) && g3__str_starts(empty, "") && g3__str_ends(empty, ""));
    CHECK(!g3__str_starts(empty, "a") && !g3__str_ends(empty, "a"));
    CHECK(g3__str_starts(s, "model.") && g3__str_starts(s, "") && !g3__str_starts(s, "model.layers.") && g3__str_ends(s, ".layers") && !g3__str_ends(s, "xmodel.layers"));
    CHECK(g3__str_is(g3__str_skip(s, 6), "layers"));
    CHECK(!g3__str_equal(g3__str_make("a\0b", 3), g3__str_make("a\0c", 3)) && !g3__str_is(g3__str_make("a\0b", 3), "a"));   // a NUL is a byte like others
    return 0;
}

static int a_zone_text_ends_with_a_nul(void)
{
    g3__heap h;
    g3__zone z;
    g3_error e = fresh();
    g3__heap_init(&h, NULL);
    g3__zone_init(&z, &h);
    const char *t = g3__zone_text(&z, g3__str_make("abcdef", 3), &e), *none = g3__zone_text(&z, g3__str_c(NULL), &e);
    CHECK(t && strcmp(t, "abc") == 0 && none && !none[0]);
    g3__zone_free(&z);
    return 0;
}

// ---- index

typedef struct entry { g3__str name; int value; } entry;

static int the_index_finds_every_name_and_no_other(void)
{
    enum { N = 5000 };
    static char text[N][24];
    static entry table[N];
    g3__heap h;
    g3__zone z;
    g3__index ix;
    g3_error e = fresh();
    g3__heap_init(&h, NULL);
    g3__zone_init(&z, &h);
    CHECK(g3__index_init(&ix, &z, N, table, sizeof table[0], &e));
    for (uint32_t i = 0; i < N; i++) {
        int n = snprintf(text[i], sizeof text[i], "layers.%u.weight", (unsigned)i * 7);
        table[i].name = g3__str_make(text[i], (size_t)n);
        CHECK(g3__index_find(&ix, table[i].name) == -1);
        CHECK(g3__index_put(&ix, i));
        CHECK(!g3__index_put(&ix, i));                                                // its key is there
    }
    for (uint32_t i = 0; i < N; i++) {
        char copy[24];
        memcpy(copy, text[i], sizeof copy);                                           // found by content, not by address
        CHECK(g3__index_find(&ix, g3__str_make(copy, table[i].name.n)) == (int64_t)i);
        CHECK(g3__index_find(&ix, g3__str_make(copy, table[i].name.n - 1)) == -1);
    }
    CHECK(g3__index_find(&ix, g3__str_c("")) == -1);
    g3__zone_free(&z);
    return 0;
}

// Names whose hashes fall into one slot, found by trying: probing must tell them apart, around the end of the table too.
static int colliding_names_are_told_apart(void)
{
    enum { N = 8, LAST = 15 };
    static char text[N + 1][16];
    entry table[N];
    g3__heap h;
    g3__zone z;
    g3__index ix;
    g3_error e = fresh();
    g3__heap_init(&h, NULL);
    g3__zone_init(&z, &h);
    memset(table, 0, sizeof table);
    CHECK(g3__index_init(&ix, &z, N, table, sizeof table[0], &e) && ix.mask == LAST);
    int found = 0;
    for (unsigned i = 0; found < N + 1; i++) {
        size_t n = (size_t)snprintf(text[found], sizeof text[0], "t%u", i);
        if ((g3__hash(text[found], n) & ix.mask) == LAST) found++;
    }
    for (uint32_t i = 0; i < N; i++) { table[i].name = g3__str_c(text[i]); CHECK(g3__index_put(&ix, i)); }
    for (uint32_t i = 0; i < N; i++) CHECK(g3__index_find(&ix, g3__str_c(text[i])) == (int64_t)i);
    CHECK(g3__index_find(&ix, g3__str_c(text[N])) == -1);
    g3__zone_free(&z);
    return 0;
}

static int an_index_that_could_not_be_made_finds_nothing(void)
{
    counter c;
    g3_allocator a = counting(&c);
    g3__heap h;
    g3__zone z;
    g3__index ix;
    g3_error e = fresh();
    g3__heap_init(&h, &a);
    g3__zone_init(&z, &h);
    c.fail_at = 1;
    CHECK(!g3__index_init(&ix, &z, 10, NULL, sizeof(entry), &e) && e.code == G3_ERR_MEMORY && g3__index_find(&ix, g3__str_c("a")) == -1);
    e = fresh();
    CHECK(!g3__index_init(&ix, &z, (uint64_t)1 << 40, NULL, sizeof(entry), &e) && e.code == G3_ERR_MEMORY);
    g3__zone_free(&z);
    return 0;
}

// Keys of all lengths read exactly their own bytes; equal bytes have equal hashes wherever they lie.
static int the_hash_reads_its_bytes_and_no_more(void)
{
    uint64_t seen[65];
    for (size_t n = 0; n <= 64; n++) {
        char *p = (char *)malloc(n ? n : 1), *q = (char *)malloc(n + 1);
        memset(p, 'a', n);
        memset(q, 'a', n + 1);
        seen[n] = g3__hash(p, n);
        CHECK(g3__hash(q + 1, n) == seen[n]);
        for (size_t k = 0; k < n; k++) CHECK(seen[k] != seen[n]);
        free(p);
        free(q);
    }
    return 0;
}

int main(void)
{
    RUN(the_first_failure_sticks);
    RUN(control_characters_in_a_sentence_become_question_marks);
    RUN(a_long_sentence_is_cut_between_characters);
    RUN(a_whole_last_character_is_kept);
    RUN(sums_and_products_notice_the_end_of_64_bits);
    RUN(the_heap_counts_what_it_gives);
    RUN(the_default_heap_aligns_and_zeroes);
    RUN(a_table_beyond_the_address_space_is_refused);
    RUN(a_failing_allocator_is_named_and_counted_right);
    RUN(a_zone_gives_aligned_zeroed_pieces_and_takes_all_back);
    RUN(a_big_piece_takes_no_more_than_its_size);
    RUN(a_zone_survives_a_failing_allocator);
    RUN(strings_compare_by_length_and_bytes);
    RUN(a_zone_text_ends_with_a_nul);
    RUN(the_index_finds_every_name_and_no_other);
    RUN(colliding_names_are_told_apart);
    RUN(an_index_that_could_not_be_made_finds_nothing);
    RUN(the_hash_reads_its_bytes_and_no_more);
    (void)golden;
    return test_done();
}
