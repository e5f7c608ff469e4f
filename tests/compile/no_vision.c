// The implementation without the vision tower.
#define GEMMA3_NO_VISION
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
