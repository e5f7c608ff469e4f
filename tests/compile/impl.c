// The implementation alone.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
