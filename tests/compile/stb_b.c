// The other file of stb_a.c's program: stb_image as programs have it, all its names public.
#define STB_IMAGE_IMPLEMENTATION
#ifdef STB_SLASH
#include "stb/stb_image.h"
#else
#include "stb_image.h"
#endif

#ifdef __cplusplus
extern "C"
#endif
int stb_sees(const unsigned char *file, int size);
int stb_sees(const unsigned char *file, int size)
{
    int w, h, channels;
    unsigned char *p = stbi_load_from_memory(file, size, &w, &h, &channels, 3);
    int red = p ? p[0] : -1;
    stbi_image_free(p);
    return red;
}
