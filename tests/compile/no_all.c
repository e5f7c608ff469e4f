// Everything that can be left out is left out.
#define GEMMA3_NO_CUDA
#define GEMMA3_NO_SIMD
#define GEMMA3_NO_THREADS
#define GEMMA3_NO_VISION
#define GEMMA3_NO_STDIO
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
