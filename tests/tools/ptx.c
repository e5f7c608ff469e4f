// Writes build/gemma3_kernels.sm_80.ptx: all kernels, attention for the published models, for kernel_path on machines without NVRTC. PRECISE=1: its kernels.
//     ptx LIBRARIES FILE        LIBRARIES as g3_model_desc.libraries: where NVRTC is
#define GEMMA3_IMPLEMENTATION
#include "gemma3.h"

static bool write_ptx(g3__card *c, const char *path, g3_error *err)
{
    g3__kernels k = G3__ZERO;
    g3__module_image image;
    uint64_t size;
    k.name = "gemma3_kernels.cuh";
    k.options = getenv("PRECISE") ? "-DG3K_ALL -DG3K_PRECISE=1" : "-DG3K_ALL";
    k.text = g3__kernel_text(c->heap, &size, err);
    if (!k.text || !g3__card_nvrtc(c, err)) return false;
    void *program = g3__nvrtc_program(c, &k, "compute", 80, err);
    if (!program || !g3__nvrtc_image(c, program, false, &image, err)) return false;
    FILE *f = fopen(path, "wb");
    bool ok = f && fwrite(image.p, 1, strlen(image.p), f) == strlen(image.p);
    if (f && fclose(f)) ok = false;
    g3__image_give(c, &image);
    c->rtc.nvrtcDestroyProgram(&program);
    g3__heap_free(c->heap, k.text, size, 1);
    return ok || g3__fail(err, G3_ERR_IO, "%s cannot be written", path) == G3_OK;
}

int main(int argc, char **argv)
{
    g3_model_desc d = G3__ZERO;
    g3_error err = G3__ZERO;
    g3__card c = G3__ZERO;
    g3__heap heap;
    if (argc != 3) { fputs("ptx LIBRARIES FILE\n", stderr); return 2; }
    g3__heap_init(&heap, NULL);
    d.libraries = argv[1];
    c.desc = &d;
    c.heap = &heap;
    c.driver = 13000;
    if (write_ptx(&c, argv[2], &err)) return 0;
    fprintf(stderr, "ptx: %s\n", err.text);
    return 1;
}
