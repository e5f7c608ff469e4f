// The implementation without threads.
#define GEMMA3_NO_THREADS
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
