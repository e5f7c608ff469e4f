// A program that uses stb_image for itself, from another file (stb_b.c): both copies read the same picture. With SAME_FILE from this one.
#ifdef SAME_FILE
#define STB_IMAGE_IMPLEMENTATION
#ifdef STB_SLASH
#include "stb/stb_image.h"
#else
#include "stb_image.h"
#endif
#endif
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

#ifdef __cplusplus
extern "C"
#endif
int stb_sees(const unsigned char *file, int size);
#ifdef SAME_FILE
int stb_sees(const unsigned char *file, int size)
{
    int w, h, channels;
    unsigned char *p = stbi_load_from_memory(file, size, &w, &h, &channels, 3);
    int red = p ? p[0] : -1;
    stbi_image_free(p);
    return red;
}
#endif

int main(void)
{
    static const unsigned char bmp[58] = {'B', 'M', 58, 0, 0, 0, 0, 0, 0, 0, 54, 0, 0, 0, 40, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 24, 0, 0, 0, 0, 0, 4, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 30, 20, 10, 0};
    g3_image img;
    g3_error err;
    if (g3_image_load_memory(bmp, sizeof bmp, NULL, &img, &err) != G3_OK) return 1;
    int red = img.rgb[0];
    g3_image_free(NULL, &img);
    return red != 10 || stb_sees(bmp, (int)sizeof bmp) != 10;
}
