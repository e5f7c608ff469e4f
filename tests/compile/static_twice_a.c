// Two files with a private copy each, linked into one program: no symbol clashes.
#define GEMMA3_STATIC
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

extern const char *other_version(void);
int main(void) { return strcmp(g3_version(), other_version()); }
