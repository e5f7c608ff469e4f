// The implementation without a file system.
#define GEMMA3_NO_STDIO
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
