// driver.h: what the files of the emulated driver share: the card, the live objects, the queues of work and the memory map.
// The driver knows nothing of PTX. It reaches the interpreter through drv_core.c alone.
// One lock guards everything; exported functions take it with ENTER and give it back with LEAVE.
#ifndef DRIVER_H
#define DRIVER_H
#define CUresult_CALL __attribute__((visibility("default"))) CUresult
#include "cuda_abi.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the simulated card: every field can be set by FAKECUDA="field=value,..." and by fakecuda_set(field, value)

typedef struct drv_card {
    char name[64];
    int cc, sms, driver, devices;        // 89 is compute capability 8.9; 13000 is a driver of CUDA 13.0
    uint64_t memory, reserved;           // bytes on the card, and bytes that others already use of them
    uint64_t seed;                       // 0: work runs in the order of its calls; else a legal order drawn by the seed
    int guard;                           // 1: the host's reads of device memory crash outside of the driver's calls
    char counters[256];                  // a file that gets the counters as JSON when the program ends
} drv_card;

int drv_card_set(drv_card *card, const char *key, const char *value);    // 1: done, 0: no such field, -1: bad value
void drv_card_defaults(drv_card *card);

// ---- live objects: a handle is the address of its drv_object, valid while it stands in the list

enum { DRV_CONTEXT, DRV_MODULE, DRV_FUNCTION, DRV_STREAM, DRV_EVENT, DRV_GRAPH, DRV_EXEC, DRV_KINDS };
typedef struct drv_object { int kind; struct drv_object *next, *prev; } drv_object;

void *drv_new(int kind, size_t bytes);
void drv_free(void *object);                                // out of the list, and released
bool drv_is(const void *handle, int kind);

// ---- memory: ranges of the card, of pinned host memory and of modules' variables, by rising address

enum { DRV_DEVICE, DRV_PINNED, DRV_REGISTERED, DRV_GLOBAL };
typedef struct drv_range {
    uint64_t lo, bytes;                                     // what the program may touch
    uint64_t map, map_bytes;                                // pages behind it, guard page included
    uint64_t serial, charge;                                // the how-many-th allocation; what it takes of the card's memory
    int kind;
    void *core;                                             // what the interpreter keeps beside it
} drv_range;

typedef struct drv_memory {
    uint64_t base, end, top;                                // the reserved region; top: the first address never given out
    drv_range **live, **freed;                              // sorted by lo
    size_t nlive, nfreed, live_cap, freed_cap;
    uint64_t used, used_small, serial;
    bool open;                                              // the pages can be touched now
} drv_memory;

CUresult drv_mem_alloc(uint64_t bytes, int kind, drv_range **range);
void drv_mem_free(drv_range *range);
drv_range *drv_mem_find(uint64_t address);                  // the live range that holds the address, or NULL
drv_range *drv_mem_freed(uint64_t address);                 // a range that was freed and held it
bool drv_mem_inside(uint64_t address, uint64_t bytes);      // the whole span lies in one live range
drv_range *drv_mem_add_host(void *ptr, uint64_t bytes, int kind);
bool drv_mem_pinned(const void *ptr, uint64_t bytes);
uint64_t drv_mem_room(void);                                // bytes that are still free on the card
void drv_mem_open(void);
void drv_mem_close(void);
void drv_mem_reset(void);
void drv_mem_written(uint64_t address, uint64_t bytes);     // by the host: tells the interpreter's init shadow

// ---- work: what a stream holds, and what a graph's node does

enum { DRV_KERNEL, DRV_COPY, DRV_SET, DRV_RECORD, DRV_WAIT, DRV_GRAPH_RUN };
typedef struct drv_body drv_body;
typedef struct drv_op {
    int kind;
    uint64_t seq;                                           // the order of the calls
    CUfunction fn;                                          // kernel
    unsigned grid[3], block[3], shared;
    bool cooperative;
    unsigned char *params;                                  // a copy, made at the call: what the program changes later is not seen
    size_t param_bytes;
    uint64_t dst, src, bytes;                               // copy, set
    unsigned char *staged;                                  // the bytes of a copy from pageable memory, taken at the call
    unsigned value, width;
    CUevent event;                                          // record, wait
    uint64_t turn;                                          // which record of the event
    drv_body *body;                                         // graph
    struct drv_op *next;
} drv_op;

void drv_op_free(drv_op *op);
drv_op *drv_op_copy(const drv_op *op);
CUresult drv_op_run(drv_op *op);

struct CUstream_st {
    drv_object object;
    drv_op *first, *last;
    bool blocking;                                          // waits for the default stream, and it for this one
    CUgraph capture;                                        // what this stream is being recorded into
    size_t *leaves, nleaves;                                // nodes that the next captured one depends on
    bool origin, invalid;
    int mode;
    pthread_t owner;                                        // the thread that began the capture
};

struct CUevent_st {
    drv_object object;
    uint64_t asked, done;                                   // turns of cuEventRecord: called, reached
    double when;                                            // milliseconds at the last turn reached
    unsigned flags;
    int uses;                                               // operations in queues that still point here
    bool dead;                                              // destroyed while in use
    CUgraph capture;                                        // where it was last recorded, if in a capture
    size_t *leaves, nleaves;
};

typedef struct drv_node { drv_op *op; size_t *deps, ndeps; } drv_node;
struct drv_body { drv_node *nodes; size_t n, cap; int uses; };
struct CUgraph_st { drv_object object; drv_body *body; };
struct CUgraphExec_st { drv_object object; drv_body *body; };

drv_body *drv_body_copy(const drv_body *body);
void drv_body_drop(drv_body *body);
CUresult drv_body_run(drv_body *body);

CUresult drv_submit(CUstream stream, drv_op *op);           // into the queue or the capture; takes the op
CUresult drv_drain(CUstream stream);                        // runs work until the stream is empty
CUresult drv_drain_all(void);
CUresult drv_drain_event(CUevent event);
bool drv_step(void);                                        // runs one operation that may run; false: none may
bool drv_in_flight(uint64_t lo, uint64_t bytes);            // a queued copy uses this span
CUresult drv_capture_guard(CUstream stream);                // for calls that are forbidden while something captures
void drv_invalidate(CUgraph graph);
void drv_event_done(CUevent event);
CUresult drv_stream_arg(CUstream *stream);                  // the default stream for NULL; an error for a dead handle

typedef struct drv_registers { char name[512]; int count; } drv_registers;
struct CUmod_st {
    drv_object object;
    void *core;
    drv_range **globals;
    size_t nglobals;
    CUfunction functions;
    drv_registers *registers;                               // what ptxas says, by kernel
    size_t nregisters;
};
struct CUfunc_st {
    drv_object object;
    CUmodule module;
    struct CUfunc_st *sibling;
    void *core;
    char name[512];
    int registers, max_threads, dynamic_shared;
    size_t static_shared, local_bytes, const_bytes, param_bytes;       // as the PTX declares them
    size_t nparams, *param_at, *param_size;
};
struct CUctx_st { drv_object object; int uses; bool primary; };

void drv_module_free(CUmodule module);
int drv_registers_set(const char *value);                   // "ptxas", a file with its log, or "estimate"
void drv_registers_load(CUmodule module, const char *ptx);
int drv_registers_of(CUfunction f);

// ---- state

typedef struct drv_fail { char call[64]; long at, seen; CUresult code; struct drv_fail *next; } drv_fail;
typedef struct drv_state {
    pthread_mutex_t lock;
    drv_card card;
    bool ready;                                             // cuInit was called
    CUresult sticky;                                        // after a kernel's fault every call answers this
    drv_object lists[DRV_KINDS];
    long count[DRV_KINDS];
    drv_memory mem;
    struct CUstream_st default_stream;
    CUcontext primary;
    uint64_t seq, random;
    drv_fail *fails;
    uint64_t staged_bytes, launches;
} drv_state;
extern drv_state drv;

// What a call asks for before it may run.
enum { DRV_ANY = 0, DRV_INITED = 1, DRV_CTX = 2 | DRV_INITED, DRV_NOT_IN_CAPTURE = 4 };
int drv_attribute(int attribute);                           // of the device; -1: not known here
CUresult drv_enter(const char *call, int wants);
CUresult drv_leave(CUresult result);
#define ENTER(wants) do { CUresult enter_ = drv_enter(__func__, wants); if (enter_ != CUDA_SUCCESS) return enter_; } while (0)
#define LEAVE(result) return drv_leave(result)
uint64_t drv_random(uint64_t below);
CUcontext drv_current(void);
void drv_reset_context(void);                               // frees all that belongs to the context

// ---- reports of the driver's own checks (check.c keeps them beside the interpreter's)

void drv_report(const char *check, const char *format, ...) __attribute__((format(printf, 2, 3)));
long drv_leaks(bool tell);                                  // objects that the program did not give back
void drv_reports_quiet(int on);
_Noreturn void drv_missing(const char *what);               // prints the name of what is not emulated, and ends the program

// ---- the interpreter, as the driver sees it (drv_core.c)

CUresult core_load(CUmodule module, const char *ptx, char *log, size_t log_bytes);
void core_unload(CUmodule module);
CUfunction core_function(CUmodule module, const char *name);    // a new object, or NULL
int core_registers(CUfunction f);                               // the most values that live at one place
drv_range *core_global(CUmodule module, const char *name);      // a variable of the module, or NULL
CUresult core_launch(const drv_op *op, uint64_t number);        // runs the whole grid; the how-many-th launch
void core_range_new(drv_range *range);
void core_range_gone(drv_range *range);
void core_host_wrote(drv_range *range, uint64_t at, uint64_t bytes);
void core_copied(drv_range *dst, uint64_t to, drv_range *src, uint64_t from, uint64_t bytes);
int core_set(const char *key, const char *value);               // options of the interpreter: as drv_card_set
char *core_counters_json(void);                                 // to be freed by the caller
void core_counters_reset(void);

#endif
