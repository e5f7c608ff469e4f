// The implementation without the decoder of pictures, also where stb_image.h is found.
#ifndef GEMMA3_NO_STB_IMAGE
#define GEMMA3_NO_STB_IMAGE
#endif
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"
