// The implementation without the CUDA backend.
#define GEMMA3_NO_CUDA
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
