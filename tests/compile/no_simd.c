// The implementation without intrinsics.
#define GEMMA3_NO_SIMD
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
