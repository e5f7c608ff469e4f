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
extern const fc_table fc_alu_rows, fc_float_rows, fc_mem_rows, fc_atom_rows, fc_warp_rows, fc_flow_rows;
const fc_row *fc_find_row(const char *spelling);

// What a step needs, in one line of the cache; what only a report needs lies apart, in fc_note.
enum { FC_OPS = 14, FC_SLOT = 64 };
struct fc_insn {
    fc_handler fn;
    const fc_row *row;
    int64_t imm;                                     // offset of the address
    uint16_t o[FC_OPS];                              // places in the register file in units of FC_SLOT, results first; or small numbers
    uint16_t guard;                                  // place of the guard, or 0
    uint16_t run;                                    // how many instructions from here on need no look at the flow (ptx_flow.c)
    int32_t more;                                    // where a branch goes; the offset of a second address
    uint8_t wide, wide2, negated, leader;            // address register of 64 bits; guard by the opposite; a block begins here
};
typedef struct fc_note { int file, line, moves; } fc_note;      // moves: copies that were taken out and count with this instruction

typedef struct fc_operand { int at; char kind; bool result; } fc_operand;
int fc_operands(const fc_insn *in, fc_operand *list);          // the registers of an instruction, without its guard

typedef struct fc_symbol { char name[512]; int space; uint64_t at, size; unsigned char *init; uint64_t align; struct fc_symbol *next; } fc_symbol;
enum { FC_REG, FC_PARAM, FC_GLOBAL, FC_CONST, FC_SHARED, FC_LOCAL };

typedef struct fc_kernel {
    char name[512];
    fc_insn *code;
    fc_note *notes;
    size_t n, cap, notes_cap;
    unsigned char *file;                             // the register file's first state: literals in place
    uint32_t file_bytes, file_cap;
    fc_symbol *params;
    uint64_t param_bytes, shared_bytes, dynamic_at, local_bytes;
    int max_threads;
    uint32_t special[32];                            // offsets of special registers that the code reads
    struct fc_module *module;
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
void fc_flow(fc_kernel *k);
int fc_live_registers(const fc_kernel *k);

// ---- running

enum { FC_GROUPS = 33, FC_BARRIERS = 16 };
typedef struct fc_group { uint32_t mask; int pc; bool parked; } fc_group;
// Lanes of one cp.async that stand in the same group of copies.
typedef struct fc_async { fc_insn *in; uint32_t mask, group, bytes, dst[32]; uint64_t src[32]; uint8_t from_src[32]; } fc_async;

struct fc_warp {
    unsigned char *r;                                // the register file
    struct fc_block *block;
    fc_launch *launch;
    uint32_t live, index, pc;
    fc_group group[FC_GROUPS];
    int ngroups, waits;                              // the barrier it waits at, or -1
    bool in_run, uneven;                             // within a run; lanes have committed copies apart from each other
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

// ---- counting (count.c)

typedef struct fc_traffic { uint64_t requests, read, written, sectors_read, sectors_written; } fc_traffic;
typedef struct fc_counts {
    uint64_t warp_insns[FC_NCLASS], thread_insns[FC_NCLASS];
    fc_traffic global, local, constant, shared;      // of shared memory the sectors are waves
    uint64_t mma, barriers;
} fc_counts;

typedef struct fc_options { bool init, race, sync, nc, strict; int mma_truncated, perturb, count, threads; uint64_t watchdog, seed, launches; } fc_options;
extern fc_options fc_opt;

// What one worker of a launch does with one allocation. A chunk has a bit for each sector of a MiB.
enum { FC_CHUNK = 20, FC_CHUNK_WORDS = 1 << (FC_CHUNK - 5 - 6) };
typedef struct fc_use {
    uint64_t lo, bytes;
    struct fc_range *core;
    drv_range *range;
    bool watched;                                    // a check looks at each of its bytes
    fc_traffic traffic;
    uint64_t **chunks, distinct;
    struct fc_use *next;
} fc_use;

// How often an instruction ran: as the first of a run, and alone.
typedef struct fc_tally { uint64_t runs, run_lanes, hits, lanes; } fc_tally;

// ---- a launch: what its workers share, and what each has of its own

typedef struct fc_grid {
    pthread_mutex_t lock;
    uint64_t next, blocks, step, together;           // the next block to start; how they are ordered; how many run side by side
    uint64_t fences;
    CUresult error;
    bool stop, told_race, told_init, told_nc, told_sync;        // each check tells the first of a launch
} fc_grid;

struct fc_launch {
    const drv_op *op;
    fc_kernel *kernel;
    fc_grid *grid;
    fc_counts c;
    fc_tally *tally;
    fc_use **cache, *uses;                           // by instruction: the allocation of the last access
    uint64_t number, steps, threads;
    jmp_buf out;
};

// What the interpreter keeps beside an allocation: a bit a byte, whether it was ever written, and whether this launch wrote it.
typedef struct fc_range { uint8_t *init, *written; uint64_t launch; fc_traffic traffic; } fc_range;

CUresult fc_run(const drv_op *op, uint64_t number);
_Noreturn void fc_fault(fc_warp *w, fc_insn *in, int lane, CUresult code, const char *check, const char *format, ...) __attribute__((format(printf, 6, 7)));
void fc_tell(fc_warp *w, fc_insn *in, int lane, const char *check, const char *format, ...) __attribute__((format(printf, 5, 6)));
bool fc_first(bool *told);                           // true for the first who asks
float fc_perturb(double v, double bound);

// Where the lanes of a request go. What lanes outside of the mask hold is where one of those inside goes.
enum { FC_SCATTERED, FC_STRAIGHT, FC_SAME, FC_RISING };          // all lanes each beside the one before; all at one place; all by equal steps upward
typedef struct fc_span { uint64_t at[32], lo, hi; uint32_t mask, bytes; int shape; bool aligned; } fc_span;
void fc_reach(const fc_warp *w, uint16_t reg, bool wide, int64_t imm, uint32_t mask, uint32_t bytes, fc_span *s);

// Checked against every law of the space, and shown to the checks; what is out of bounds ends the launch. parts: bytes of each lane, if not the same.
enum { FC_READ, FC_WRITE, FC_ATOMIC };
void fc_touch_global(fc_warp *w, fc_insn *in, const fc_span *s, const uint8_t *parts, int how, const char *what);
void fc_bound_shared(fc_warp *w, fc_insn *in, const fc_span *s, const char *what);
void fc_touch_shared(fc_warp *w, fc_insn *in, const fc_span *s, bool write, const char *what);
void fc_race(fc_warp *w, fc_insn *in, int lane, uint64_t at, uint32_t bytes, bool write);
static inline uint32_t fc_lanes(uint32_t mask) { return mask == 0xffffffffu ? 32 : (uint32_t)__builtin_popcount(mask); }
static inline uint64_t fc_shared_zero(const fc_warp *w) { return (uint64_t)(uintptr_t)w->block->shared - FC_SHARED_BASE; }      // add a shared address

void fc_mma_bf16(fc_warp *w, fc_insn *in, uint32_t mask);

fc_use *fc_use_at(fc_launch *l, uint64_t address);   // NULL: no allocation holds it
void fc_count_global(fc_traffic *t, fc_use *u, const fc_span *s, uint64_t bytes, bool write);
void fc_count_lanes(fc_launch *l, fc_traffic *t, const fc_span *s, const uint8_t *parts, bool write);
void fc_count_local(fc_traffic *t, const fc_span *s, bool write);
void fc_count_shared(fc_traffic *t, const fc_span *s, bool write);
void fc_count_add(uint64_t *to, const uint64_t *from, size_t bytes);
void fc_count_launch(fc_launch *const *workers, int n);
void fc_uses_free(fc_launch *l);

#define R32(k) ((uint32_t *)(w->r + (size_t)in->o[k] * FC_SLOT))
#define R64(k) ((uint64_t *)(w->r + (size_t)in->o[k] * FC_SLOT))
#define RF32(k) ((float *)(w->r + (size_t)in->o[k] * FC_SLOT))
#define RPRED(k) ((uint32_t *)(w->r + (size_t)in->o[k] * FC_SLOT))

// One body for all lanes of a mask; the compiler makes vectors of it. A result may be one of the sources, lane by lane.
#ifdef __clang__
#define FC_ALONE
#else
#define FC_ALONE _Pragma("GCC ivdep")                // no lane looks at another's result
#endif
#define LANES(...) do { \
    if (mask == 0xffffffffu) { FC_ALONE for (int i = 0; i < 32; i++) { __VA_ARGS__; } } \
    else { FC_ALONE for (int i = 0; i < 32; i++) if (mask >> i & 1) { __VA_ARGS__; } } } while (0)

// Handlers exist for three generations of vector units; the loader picks (not under sanitizers, which cannot yet stand at that point).
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FC_WIDE 1
#define FC_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FC_CLONES
#endif
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define FC_SHUFFLES 1
#endif
#endif

#endif
