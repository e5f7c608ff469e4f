// The implementation, then system headers, then the declarations again.
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
#include <stdio.h>
#include <unistd.h>
#include "gemma3.h"
