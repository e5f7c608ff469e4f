// The counters against what a few small kernels, written in PTX, are known to ask: bytes, sectors and waves, by space, allocation, kernel and launch.
#include "driver_test.h"

#define HEAD ".version 7.8\n.target sm_80\n.address_size 64\n"
#define BEGIN(name) ".visible .entry " name "(.param .u64 x, .param .u64 y)\n{\n" \
    "  .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .f32 %f<8>; .reg .pred %p<2>;\n" \
    "  ld.param.u64 %d0, [x];\n  ld.param.u64 %d1, [y];\n  mov.u32 %r0, %tid.x;\n  mov.u32 %r1, %ctaid.x;\n  mov.u32 %r2, %ntid.x;\n  mad.lo.s32 %r3, %r1, %r2, %r0;\n"
static const char ptx[] = HEAD
    ".const .align 4 .f32 table[4] = {0f3F800000, 0f3F800000, 0f3F800000, 0f3F800000};\n"
    BEGIN("copy")                                        // y[i] = x[i]
    "  mul.wide.u32 %d2, %r3, 4;\n  add.s64 %d3, %d0, %d2;\n  add.s64 %d4, %d1, %d2;\n  ld.global.f32 %f0, [%d3];\n  st.global.f32 [%d4], %f0;\n  ret;\n}\n"
    BEGIN("same")                                        // every block reads x[tid], one float a sector
    "  mul.wide.u32 %d2, %r0, 32;\n  add.s64 %d3, %d0, %d2;\n  ld.global.f32 %f0, [%d3];\n  ret;\n}\n"
    BEGIN("few")                                         // eight lanes of each warp, the others jump over it
    "  and.b32 %r4, %r0, 31;\n  setp.ge.u32 %p0, %r4, 8;\n  @%p0 bra DONE;\n  mul.wide.u32 %d2, %r3, 4;\n  add.s64 %d3, %d0, %d2;\n  ld.global.f32 %f0, [%d3];\n"
    "DONE:\n  ret;\n}\n"
    BEGIN("banks")                                       // all lanes at one bank, then each at its own; then 16 bytes each
    "  .shared .align 16 .b8 box[8192];\n  mov.u64 %d2, box;\n  mul.wide.u32 %d3, %r0, 128;\n  add.s64 %d4, %d2, %d3;\n  st.shared.u32 [%d4], %r0;\n  bar.sync 0;\n"
    "  mul.wide.u32 %d3, %r0, 4;\n  add.s64 %d4, %d2, %d3;\n  ld.shared.u32 %r4, [%d4];\n  mul.wide.u32 %d3, %r0, 16;\n  add.s64 %d4, %d2, %d3;\n"
    "  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%d4];\n  ld.shared.u32 %r4, [box];\n  ret;\n}\n"
    BEGIN("spaces")
    "  .local .align 8 .b8 own[16];\n  st.local.u64 [own], %d0;\n  ld.local.u32 %r4, [own+4];\n  ld.const.f32 %f0, [table+4];\n  ret;\n}\n"
    BEGIN("atoms") "  atom.global.add.u32 %r4, [%d0], 1;\n  ret;\n}\n"
    BEGIN("copies")                                      // the second copy is one of a copy: both count, whether or not they are made
    "  mov.b32 %r4, %r0;\n  mov.b32 %r5, %r4;\n  add.s32 %r6, %r5, %r4;\n  ret;\n}\n"
    BEGIN("async") "  .shared .align 16 .b8 pool[512];\n  mov.u64 %d2, pool;\n  mul.wide.u32 %d3, %r0, 16;\n  add.s64 %d4, %d2, %d3;\n  add.s64 %d5, %d0, %d3;\n"
    "  setp.lt.u32 %p0, %r0, 16;\n  selp.b32 %r4, 16, 0, %p0;\n  cp.async.cg.shared.global [%d4], [%d5], 16, %r4;\n  cp.async.wait_all;\n  ret;\n}\n"
    BEGIN("multiply") "  mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f0, %f1, %f2, %f3}, {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%f0, %f1, %f2, %f3};\n  ret;\n}\n";

static CUdeviceptr x, y;
static CUmodule module;

static void begin(void)
{
    fresh();
    module = load_module(ptx);
    if (CU.cuMemAlloc_v2(&x, 65536) || CU.cuMemAlloc_v2(&y, 65536) || CU.cuMemsetD8_v2(x, 0, 65536)) fprintf(stderr, "no device memory\n"), exit(1);
}

static void launch(const char *kernel, unsigned grid, unsigned block)
{
    if (CU.cuLaunchKernel(function(module, kernel), grid, 1, 1, block, 1, 1, 0, NULL, (void *[]){&x, &y}, NULL) || CU.cuCtxSynchronize())
        fprintf(stderr, "%s does not run\n", kernel), exit(1);
}

// The number behind "key" behind the first `after` (and behind that "then") of the counters; -1: not there.
static long long number(const char *after, const char *then, const char *key)
{
    char *json = FC.counters(), *p = json, quoted[64];
    const char *const words[] = { after, then, key };
    for (int i = 0; i < 3 && p; i++) {
        snprintf(quoted, sizeof quoted, "\"%s\"", words[i]);
        if (*words[i] && (p = strstr(p, quoted)) != NULL) p += strlen(quoted);
    }
    long long n = p && *p == ':' ? strtoll(p + 1, NULL, 10) : -1;
    free(json);
    return n;
}

static int bytes_and_sectors_of_global_memory(void)
{
    begin();
    launch("copy", 4, 128);
    CHECK(number("copy", "global", "requests") == 32 && number("copy", "global", "bytes_read") == 2048 && number("copy", "global", "bytes_written") == 2048);
    CHECK(number("copy", "global", "sectors_read") == 64 && number("copy", "global", "sectors_written") == 64 && number("copy", "", "distinct_sectors") == 128);
    launch("same", 4, 128);
    CHECK(number("same", "global", "bytes_read") == 2048 && number("same", "global", "sectors_read") == 512 && number("same", "", "distinct_sectors") == 128);
    launch("few", 1, 64);
    CHECK(number("few", "global", "bytes_read") == 64 && number("few", "global", "sectors_read") == 2 && number("few", "global", "requests") == 2);
    return 0;
}

static int waves_of_shared_memory(void)
{
    begin();
    launch("banks", 1, 32);
    CHECK(number("banks", "shared", "requests") == 4 && number("banks", "shared", "waves_written") == 32 && number("banks", "shared", "bytes_written") == 128);
    CHECK(number("banks", "shared", "waves_read") == 1 + 4 + 1 && number("banks", "shared", "bytes_read") == 128 + 512 + 128 && number("banks", "", "barriers") == 1);
    return 0;
}

static int spaces_are_told_apart(void)
{
    begin();
    launch("spaces", 1, 32);
    CHECK(number("spaces", "local", "bytes_written") == 256 && number("spaces", "local", "sectors_written") == 8 && number("spaces", "local", "bytes_read") == 128);
    CHECK(number("spaces", "local", "sectors_read") == 4 && number("spaces", "constant", "bytes_read") == 128 && number("spaces", "constant", "sectors_read") == 1);
    CHECK(number("spaces", "global", "requests") == 0);
    launch("atoms", 1, 32);
    CHECK(number("atoms", "global", "bytes_written") == 128 && number("atoms", "global", "requests") == 1 && number("atoms", "global", "bytes_read") == 0);
    launch("async", 1, 32);                              // half of the lanes copy nothing
    CHECK(number("async", "global", "bytes_read") == 256 && number("async", "global", "sectors_read") == 8 && number("async", "shared", "bytes_written") == 512);
    return 0;
}

static int instructions_are_counted_by_class(void)
{
    begin();
    launch("copies", 3, 48);                             // a warp and a half, three times
    CHECK(number("copies", "warp_instructions", "int") == 6 * 2 && number("copies", "thread_instructions", "int") == 3 * 48 * 2);
    CHECK(number("copies", "warp_instructions", "move") == 6 * 7 && number("copies", "thread_instructions", "move") == 3 * 48 * 7);
    CHECK(number("copies", "warp_instructions", "control") == 6);
    launch("few", 1, 32);
    CHECK(number("few", "warp_instructions", "global") == 1 && number("few", "thread_instructions", "global") == 8);
    launch("multiply", 2, 32);
    CHECK(number("multiply", "", "mma") == 2 && number("multiply", "thread_instructions", "mma") == 64);
    return 0;
}

// Keys with their values, as they stand before the next key. The module's table is the first allocation, x the second, y the third.
#define LAUNCH(n) "launch\": " #n ", \"grid"
#define SERIAL(n) "serial\": " #n ", \"bytes"
static int each_launch_and_each_allocation_has_its_own(void)
{
    begin();
    launch("copy", 4, 128);
    launch("copy", 2, 64);
    CHECK(number("kernels", "copy", "launches") == 2 && number("kernels", "global", "bytes_read") == 2048 + 512);
    CHECK(number(LAUNCH(1), "global", "bytes_read") == 2048 && number(LAUNCH(2), "global", "bytes_read") == 512 && number(LAUNCH(2), "", "distinct_sectors") == 32);
    CHECK(number(LAUNCH(2), SERIAL(2), "bytes_read") == 512 && number(LAUNCH(2), SERIAL(3), "bytes_written") == 512 && number(LAUNCH(2), SERIAL(3), "distinct_sectors") == 16);
    CHECK(number("launches_left_out", SERIAL(2), "bytes_read") == 2560 && number("launches_left_out", SERIAL(2), "bytes_written") == 0);
    FC.counters_reset();
    CHECK(number("kernels", "copy", "launches") == -1 && number("launches_left_out", SERIAL(2), "bytes_read") == 0);
    return 0;
}

static int launches_can_be_left_out(void)
{
    begin();
    CHECK(FC.set("launches", "1") == 1);
    for (int i = 0; i < 3; i++) launch("copy", 1, 32);
    CHECK(number("kernels", "copy", "launches") == 3 && number("", "", "launches_left_out") == 2);
    return 0;
}

int main(void)
{
    open_card();
    RUN(bytes_and_sectors_of_global_memory);
    RUN(waves_of_shared_memory);
    RUN(spaces_are_told_apart);
    RUN(instructions_are_counted_by_class);
    RUN(each_launch_and_each_allocation_has_its_own);
    RUN(launches_can_be_left_out);
    FC.reset();
    return test_done();
}
