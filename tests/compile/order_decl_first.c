// Declarations and system headers first, the implementation last: fine where the compiler's own dialect has POSIX (gnu99, C++);
// under strict C99 the header says in one line what to do.
#include "gemma3.h"
#include <stdio.h>
#include <string.h>
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
