// The other half of static_twice_a.c.
#define GEMMA3_STATIC
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

extern const char *other_version(void);
const char *other_version(void) { return g3_version(); }
