// fakecuda.h: the interpreter's inside: modules and kernels as parsed, instructions as executed, warps, launches, counters.
// A warp's registers are one file of memory: a 32-bit or 16-bit register is 32 words, a 64-bit one 32 double words, a predicate one word whose bits are
// the lanes. Literals and special registers stand in the same file, so that an operand is nothing but an offset.
#ifndef FAKECUDA_H
#define FAKECUDA_H
#include "driver.h"
#include <setjmp.h>

typedef struct fc_warp fc_warp;
typedef struct fc_insn fc_insn;
typedef struct fc_launch fc_launch;
typedef void (*fc_handler)(fc_warp *w, fc_insn *in, uint32_t mask);

// Classes of the counters: which kind of issue slot an instruction takes.
#define FC_CLASSES(X) X(float) X(int) X(move) X(convert) X(special) X(predicate) X(control) X(global) X(shared) X(other) X(shuffle) X(sync) X(mma)
enum {
#define FC_CLASS(name) FC_##name,
    FC_CLASSES(FC_CLASS)
#undef FC_CLASS
    FC_NCLASS
};

// A row of the table: one exact spelling. shape: results, '=', sources; p predicate, h 16 bits, w 32, d 64, m address, i integer, l label;
// a digit repeats in braces, '|' allows a second, predicate, result, '?' makes what follows optional, x is a result that is dropped.
enum { FC_SYNC = 1, FC_ALIGNED = 2, FC_FLOW = 4, FC_SIGNED = 8 };
typedef struct fc_row { const char *spelling, *shape; fc_handler fn; uint8_t cls, flags; int arg; } fc_row;
typedef struct fc_table { const fc_row *rows; size_t n; } fc_table;
extern const fc_table fc_alu_rows, fc_float_rows, fc_mem_rows, fc_warp_rows, fc_flow_rows;
const fc_row *fc_find_row(const char *spelling);

enum { FC_OPS = 16 };
struct fc_insn {
    fc_handler fn;
    const fc_row *row;
    uint32_t o[FC_OPS];                              // offsets into the register file, results first
    int64_t imm, imm2;                               // offsets of addresses
    uint8_t wide, wide2, has_pair, leader;           // address register of 64 bits; a predicate beside the result; a block begins here
    int32_t guard, target;                           // offset of the guard or -1; where a branch goes
    bool negated;
    int file, line;
    drv_range *cache;                                // the allocation of the last access
    uint64_t hits, lanes;
};

typedef struct fc_symbol { char name[128]; int space; uint64_t at, size; unsigned char *init; uint64_t align; struct fc_symbol *next; } fc_symbol;
enum { FC_REG, FC_PARAM, FC_GLOBAL, FC_CONST, FC_SHARED, FC_LOCAL };

typedef struct fc_kernel {
    char name[128];
    fc_insn *code;
    size_t n, cap;
    unsigned char *file;                             // the register file's first state: literals in place
    uint32_t file_bytes, file_cap;
    fc_symbol *params;
    uint64_t param_bytes, shared_bytes, dynamic_at, local_bytes;
    int max_threads;
    uint32_t special[32];                            // offsets of special registers that the code reads
    struct fc_module *module;
    struct fc_counters *counters;
    struct fc_kernel *next;
} fc_kernel;

typedef struct fc_module { fc_kernel *kernels; fc_symbol *symbols; char files[16][256]; CUmodule handle; } fc_module;

// Where spaces lie: shared and local offsets begin above zero, and their generic windows are addresses no allocation can have.
#define FC_SHARED_BASE ((uint64_t)1024)
#define FC_LOCAL_BASE  ((uint64_t)4096)
#define FC_SHARED_WINDOW ((uint64_t)1 << 56)
#define FC_LOCAL_WINDOW  ((uint64_t)1 << 57)

fc_module *fc_parse(CUmodule handle, const char *ptx, char *log, size_t log_bytes);
void fc_module_free(fc_module *m);

// ---- running

enum { FC_GROUPS = 33, FC_BARRIERS = 16 };
typedef struct fc_group { uint32_t mask; int pc; bool parked; } fc_group;
typedef struct fc_async { uint64_t dst, src; uint32_t bytes, from_src, group; uint8_t lane; fc_insn *in; } fc_async;

struct fc_warp {
    unsigned char *r;                                // the register file
    struct fc_block *block;
    fc_launch *launch;
    uint32_t live, index, pc;
    fc_group group[FC_GROUPS];
    int ngroups, waits;                              // the barrier it waits at, or -1
    int wait_pc;
    uint32_t wait_mask;
    fc_async *async;
    size_t nasync, async_cap;
    uint32_t committed[32];
    unsigned char *local;                            // local_bytes for each lane
};

typedef struct fc_access { uint32_t epoch; uint16_t writer, reader; } fc_access;      // of a shared word: thread + 1; 0xffff: several warps

typedef struct fc_block {
    unsigned id[3];
    fc_warp *warps;
    int nwarps, arrived[FC_BARRIERS];
    unsigned char *shared;
    uint64_t shared_bytes;
    fc_access *access;
    uint32_t epoch;
    uint32_t red[FC_BARRIERS];                       // what bar.red gathers
} fc_block;

typedef struct fc_counters {
    char kernel[128];
    uint64_t launches, warp_insns[FC_NCLASS], thread_insns[FC_NCLASS];
    uint64_t global_read, global_written, global_sectors, shared_requests, shared_waves, mma, barriers;
    struct fc_counters *next;
} fc_counters;

typedef struct fc_options { bool init, race, sync, nc, strict; int mma_truncated, perturb, count; uint64_t watchdog, seed; } fc_options;
extern fc_options fc_opt;

struct fc_launch {
    const drv_op *op;
    fc_kernel *kernel;
    fc_counters *c;
    uint64_t number, steps, threads;
    jmp_buf out;
    CUresult error;
    bool told_race, told_init, told_nc, told_sync;      // each check tells the first of a launch
};

// What the interpreter keeps beside an allocation.
typedef struct fc_range { uint8_t *init; uint8_t *written; uint64_t launch; uint64_t read_bytes, written_bytes; } fc_range;

CUresult fc_run(fc_launch *l);
_Noreturn void fc_fault(fc_warp *w, fc_insn *in, int lane, CUresult code, const char *check, const char *format, ...) __attribute__((format(printf, 6, 7)));
void fc_tell(fc_warp *w, fc_insn *in, int lane, const char *check, const char *format, ...) __attribute__((format(printf, 5, 6)));
unsigned char *fc_shared_row(fc_warp *w, fc_insn *in, int lane, uint64_t at);
uint32_t fc_row_waves(const unsigned char *const *row, int matrices);
void fc_async_land(fc_warp *w, uint32_t mask, uint32_t keep);
void fc_async_commit(fc_warp *w, uint32_t mask);
float fc_perturb(double v, double bound);

#define R32(k) ((uint32_t *)(w->r + in->o[k]))
#define R64(k) ((uint64_t *)(w->r + in->o[k]))
#define RF32(k) ((float *)(w->r + in->o[k]))
#define RPRED(k) ((uint32_t *)(w->r + in->o[k]))

// One body for all lanes of a mask; the compiler makes vectors of it. A result may be one of the sources, lane by lane.
#define LANES(...) do { \
    if (mask == 0xffffffffu) { _Pragma("GCC ivdep") for (int i = 0; i < 32; i++) { __VA_ARGS__; } } \
    else for (uint32_t left_ = mask; left_; left_ &= left_ - 1) { int i = __builtin_ctz(left_); __VA_ARGS__; } } while (0)

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
#define FC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FC_CLONES
#endif

#endif
