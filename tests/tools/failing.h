// An allocator that gives out `left` pieces and then fails; `live`: pieces not given back. Include after the implementation.
#ifndef TEST_FAILING_H
#define TEST_FAILING_H
typedef struct failing { int left, live; } failing;
static void *failing_alloc(void *user, size_t size, size_t align)
{
    failing *f = (failing *)user;
    if (f->left-- <= 0) return NULL;
    f->live++;
    return g3__default_alloc(NULL, size, align);
}
static void failing_free(void *user, void *p, size_t size) { ((failing *)user)->live--; g3__default_free(NULL, p, size); }
#endif
