// gemma3.h 0.1.0: Gemma 3 (270M to 27B) in one C header, from the Hugging Face files as they are.
//
// In ONE file of your program, before any other include:
//
//     #define GEMMA3_IMPLEMENTATION
//     #include "gemma3.h"
//
// Everywhere else a plain #include "gemma3.h". Link with -lm -lpthread -ldl. A whole chat program:
//
//     static int print(void *user, const g3_token *t) { (void)user; fwrite(t->text, 1, (size_t)t->size, stdout); return fflush(stdout); }
//
//     int main(int argc, char **argv)
//     {
//         g3_error err;
//         char line[4096];
//         g3_model *m = g3_model_open(&(g3_model_desc){ .path = argc > 1 ? argv[1] : "." }, &err);
//         g3_session *s = m ? g3_session_open(m, &(g3_session_desc){ .context = 16384 }, &err) : NULL;
//         if (!s) { fprintf(stderr, "%s\n", err.text); g3_model_close(m); return 1; }
//         while (fputs("\n> ", stdout), fgets(line, sizeof line, stdin))
//             if (g3_chat(s, &(g3_turn){ .text = line, .generate.token_fn = print }, &err) < 0) fprintf(stderr, "%s\n", err.text);
//         g3_session_close(s);
//         g3_model_close(m);
//         return 0;
//     }
//
// Contents; search for the tag:
//     >>manual       what it does and does not do, building, options, hooks, threads, memory, errors, files
//     >>api          the declarations; a user of the library can stop reading after them
//     >>config       compiler and options          >>platform     files, pages, threads, clock
//     >>util         errors, sizes, zones, index   >>numbers      bf16, f16, fp8, NF4, FP4
//     >>json         a cursor over hostile text    >>safetensors  shards, headers, offsets
//     >>tokenizer    text to ids and back          >>model        config.json and names to weights
//     >>image        from a file to patches        >>ops          the table of operations
//     >>forward      the model itself: one page    >>sampler      logits to a token
//     >>plan         every byte, before it is taken  >>load       weights into the arena
//     >>render       the chat template             >>session      one conversation's timeline
//     >>chat         answers and turns             >>cpu          the operations in plain C
//     >>simd         and by vector units           >>public       the entry points
//     >>kernels      CUDA source, as text
// Licence: MIT or public domain, at your choice; see the end of the file.

#if defined(GEMMA3_IMPLEMENTATION) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE     // pread, clock_gettime, affinity; feature macros count only before the first system header
#endif

// ------------------------------------------------------------------------------------------------------------------
// >>manual
//
// WHAT IT DOES NOT DO
//   It runs Gemma 3 and nothing else: no other family, no training, no LoRA (merge first), no server, no GGUF (examples/import_gguf.c
//   converts). One model lies on one device.
//
// BUILDING
//   C99 or C++11, libc, pthreads, libm, dl. No build step, no generated files, no dependency. With gcc and clang the hot loops use AVX-512, AVX2
//   or NEON, whichever the machine has when a model is opened: -O2 is enough, no -m flag is needed, and one binary serves all. Elsewhere (MSVC,
//   gcc for Windows) they are plain C, and want -O3 and the compiler's flag for this machine. The same binary gives the same bits on machines
//   of one instruction set.
//   As a shared library: compile a file that holds just the two lines above with -shared -fPIC.
//
// ON AN NVIDIA CARD
//   From compute capability 8.0 on, with a driver of CUDA 12 or later and NVRTC, which compiles the kernels when a model is opened (toolkit, or
//   `pip install nvidia-cuda-nvrtc`); both are looked for when a program runs, and are not needed to build it. G3_BACKEND_AUTO takes the card if the
//   model and its sessions fit into what it has free, else the CPU, after one line to the logger; G3_BACKEND_CUDA takes it or says why not. cache_dir
//   keeps what was compiled. kernel_path compiles a file instead of the kernels in this header, or loads a .ptx or .cubin, which needs no NVRTC.
//   The kernels have been proven on an emulated card (tests/fakecuda) and not yet measured on a real one; prompts do not run at its full speed yet.
//   On a card linear layers round activations to bf16, unless `precise`; sums, norms, softmax and the residual stream are float32.
//
// THREE LEVELS
//   1 g3_chat: a turn in, a streamed answer out. g3_add_turn and g3_next are the same pulled token by token, for frame loops and other languages.
//   2 g3_tokenize, g3_render, g3_add_tokens, g3_add_messages, g3_generate: prompts of your own.
//   3 g3_logits, g3_logits_at, g3_head, g3_sample: numbers. desc.probe shows the residual stream, attention and operations as they happen.
//
// PICTURES
//   4B, 12B and 27B see. A part of a turn or of a message is a text or a picture, in any order and number: plain RGB, of any size, read during
//   the call only. Each becomes 256 tokens of the context and a frame of two to four; pan_and_scan adds up to four crops of a long one, at as
//   much each. It is looked at before its step of the prompt, some 5.5 TFLOP in the tower; progress_fn hears of each layer and may stop it.
//   What does not fit the context is refused before. A session holds a hash of the pixels: g3_add_messages looks only at what is new.
//   In prompts of your own, g3_add_image adds the 256 tokens; 255999 goes before them and 256000 after, and two must not touch. A picture
//   goes through the model in one step, so `batch` is at least 256.
//
// OPTIONS, defined before the implementation
//   GEMMA3_STATIC            all functions static to the file
//   GEMMA3_NO_STDIO          no file system: models come through the files hooks
//   GEMMA3_NO_THREADS        everything on the calling thread
//   GEMMA3_NO_CUDA           leaves out the CUDA source (it is text; no toolkit is needed either way)
//   GEMMA3_NO_SIMD, GEMMA3_NO_VISION   leave out what their names say
//   GEMMA3_NO_STB_IMAGE      leaves out reading picture files. Without it stb_image.h is used where the compiler finds it, private to this file;
//                            a program that wants stb_image for itself in the same file includes it first, and then both use that one
//   GEMMA3_MALLOC(size), GEMMA3_FREE(ptr)   replace malloc and free, both or neither; desc.allocator goes before them
//   GEMMA3_ASSERT(x)         replaces assert
//
// DESCS
//   Every desc may be all zero except what is marked required; zero means the default, and g3_model_get_desc gives back the values in use.
//   Strings are UTF-8 and copied. Counts are ints; where a call returns a count, a number below zero is a g3_result.
//
// HOOKS
//   allocator, logger, progress, parallel, files, probe, token_fn, logits_fn: all optional, all with a user pointer that comes first. They run
//   on the thread that made the call, except read_fn when files.width > 1, and the bodies that for_fn is given. A hook neither throws nor
//   jumps out. It may call g3_session_cancel, g3_session_tokens and the functions of the model, and nothing else of its own session.
//
// THREADS
//   A model is immutable once open: any number of threads and sessions may use it. A session belongs to one thread at a time;
//   g3_session_cancel alone may come from anywhere, also from a signal handler. The allocator must be thread-safe if several threads use
//   the model (opening, closing and tokenising reach it), and so must a lent for_fn be when sessions run on several. The same bits come out for any number of threads.
//
// MEMORY
//   g3_plan_memory says every byte before anything is taken, from config and headers alone; g3_model_get_plan says it afterwards. The model is
//   one arena, each session is one arena; after opening nothing is allocated, with one exception: text of more than about a thousand characters
//   without a space takes scratch from the allocator while it is tokenised. Sliding layers keep window + batch rows, full layers keep `context` rows. screened_head adds an
//   int8 copy of the vocabulary's table: most of what a small model reads for a token, at half the bytes, with the same tokens.
//   Pictures cost the tower's weights, 0.8 GB in bf16 (no_vision leaves them out), and in each session scratch of about 150 MB, which lies where
//   the scratch of prompts does, so that a large batch pays nothing for it (no_images leaves it out). Any number of pictures takes no more.
//
// ERRORS
//   Calls return a g3_result or NULL and fill the caller's g3_error with one sentence: what failed, in which file, tensor or argument, and what
//   would work. Nothing is printed, nothing exits, nothing aborts. After an error the session can be used again; each call says what it left.
//
// FILES
//   A directory as Hugging Face has it: config.json, model.safetensors or shards with their index, tokenizer.json, and if there
//   generation_config.json and a chat template. Every tensor decides its own format by what lies beside it: bf16, f16, f32, plain fp8, bitsandbytes
//   nf4 and fp4 with or without double quantisation, mixed as they come. Lists of skipped modules in config.json are not trusted. Files are
//   treated as hostile: every length, offset, shape and name is checked before it is used.
//
// READING GUIDE
//   Students: >>forward first (one page), then >>numbers, >>model, >>cpu; then in file order, >>simd last. Porters: >>platform and >>config.

// ------------------------------------------------------------------------------------------------------------------
// >>api
// The declarations, C99 and C++11. After them comes the implementation, which a user of the library need not read.

#ifndef GEMMA3_H_INCLUDED
#define GEMMA3_H_INCLUDED
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GEMMA3_VERSION "0.1.0"
#ifndef G3_API
#  ifdef GEMMA3_STATIC
#    if defined(__GNUC__)
#      define G3_API static __attribute__((unused))
#    else
#      define G3_API static
#    endif
#  else
#    define G3_API extern
#  endif
#endif
#ifdef __cplusplus
extern "C" {
#endif

// ---- results: one list makes the enum and the texts

#define G3__RESULTS(X) \
    X(OK,             0, "ok") \
    X(ERR_ARGUMENT,  -1, "bad argument") \
    X(ERR_MEMORY,    -2, "not enough host memory") \
    X(ERR_IO,        -3, "file cannot be read") \
    X(ERR_FORMAT,    -4, "file is malformed") \
    X(ERR_MODEL,     -5, "not a model this header runs") \
    X(ERR_DEVICE,    -6, "CUDA driver or NVRTC failed") \
    X(ERR_VRAM,      -7, "not enough device memory") \
    X(ERR_CONTEXT,   -8, "context is full") \
    X(ERR_STOPPED,   -9, "stopped before the first token") \
    X(ERR_NUMERIC,  -10, "logits are not finite") \
    X(ERR_UNSUPPORTED, -11, "not in this build")
#define G3__X(name, value, text) G3_##name = value,
typedef enum g3_result { G3__RESULTS(G3__X) G3__RESULT_MAX = 0x7fffffff } g3_result;
#undef G3__X

G3_API const char *g3_result_text(g3_result r);          // a static text of a few words
G3_API const char *g3_version(void);                     // GEMMA3_VERSION of the implementation that is linked

typedef struct g3_error {          // owned by the caller, NULL allowed; every call that takes one writes it (G3_OK on success)
    g3_result code;
    char text[504];                // one sentence: what failed, in which file, tensor or argument, and what would work
} g3_error;

// ---- hooks: `user` is always the first argument; all optional; a hook that returns non-zero means "stop"

typedef struct g3_allocator {      // both functions or neither; thread-safe if sessions are opened from several threads
    void *(*alloc_fn)(void *user, size_t size, size_t align);         // NULL: no memory; align is a power of two, at most 64
    void  (*free_fn)(void *user, void *ptr, size_t size);             // the size that was asked for
    void *user;
} g3_allocator;

typedef enum g3_level { G3_LOG_ERROR, G3_LOG_WARN, G3_LOG_INFO, G3_LOG_DEBUG } g3_level;
typedef struct g3_logger { void (*log_fn)(void *user, g3_level level, const char *text); void *user; } g3_logger;          // one line without its newline

typedef struct g3_progress { int (*progress_fn)(void *user, const char *stage, uint64_t done, uint64_t total); void *user; } g3_progress;   // stage "weights": bytes; "prompt": tokens; "pictures": layers of the vision tower, of all pictures of the call

typedef struct g3_parallel {       // lend your own threads: run body(ctx, 0..n-1) in any order, also one after another, and return when all are done
    void (*for_fn)(void *user, int n, void (*body)(void *ctx, int i), void *ctx);
    int   width;                   // how many bodies may run at once
    void *user;
} g3_parallel;

typedef struct g3_files {          // read a model from somewhere else than a directory (an archive, memory, a fault injector); all three or none
    void *(*open_fn)(void *user, const char *name, uint64_t *size);                         // NULL: no such file; name is a plain file name
    int   (*read_fn)(void *user, void *file, uint64_t offset, void *dst, size_t size);       // 0: all of it was read
    void  (*close_fn)(void *user, void *file);
    int   width;                   // reads in flight at once; 0: 1, so read_fn need not be thread-safe
    void *user;
} g3_files;

// ---- model: immutable once open, shared by any number of sessions and threads; freed when it and its last session are closed

typedef struct g3_model   g3_model;
typedef struct g3_session g3_session;
typedef enum g3_backend { G3_BACKEND_AUTO, G3_BACKEND_CPU, G3_BACKEND_CUDA } g3_backend;
typedef enum g3_kv { G3_KV_DEFAULT, G3_KV_F32, G3_KV_BF16, G3_KV_FP8, G3_KV_INT8 } g3_kv;    // format of cached keys and values, all layers alike; default BF16. FP8 is e4m3; FP8 and INT8 have a float32 scale per row and head

// ---- looking inside: free while probe_fn is NULL; its buffers are in the plan

typedef enum g3_point {
    G3_POINT_EMBED     = 1,        // the scaled embeddings, before the first layer
    G3_POINT_LAYER     = 2,        // the residual stream after a layer
    G3_POINT_BRANCH    = 4,        // what attention or feed-forward is about to add, before its norm
    G3_POINT_ATTENTION = 8,        // softmax weights of one row, all heads
    G3_POINT_VISION    = 16,       // the vision tower, all rows: "patches" after their embedding, "layer", then "soft tokens" [256][dim]
    G3_POINT_OP        = 32        // one operation: time, bytes, flops
} g3_point;
typedef struct g3_view {           // data is valid during the call; what is written to EMBED, LAYER and VISION counts
    g3_point    point;
    const char *name;              // "layer", "attention", "qkv", …; operations of the vision tower: "vision qkv", …
    int         layer;             // 0 … layers-1; -1: outside the layers
    int         pos, rows;         // position of the first row shown (VISION: of the picture's first soft token), rows
    int         heads, cols, key;  // ATTENTION: one row, [heads][cols] weights, column 0 is position `key`
    float      *data;              // [rows][cols], or NULL for OP, which brings the three figures below
    double      seconds;
    uint64_t    bytes, flops;
} g3_view;
typedef struct g3_probe { int (*probe_fn)(void *user, const g3_view *v); void *user; unsigned points; int rows; } g3_probe;   // points: G3_POINT_… or-ed; rows: the last rows of each step, 0: 1

typedef struct g3_session_desc {
    int         context;           // tokens; 0: 8192 or the model's limit, whichever is smaller; <0: the largest that fits
    int         batch;             // prompt tokens per step; 0: 512 (at least one image, 256 tokens, on a model with vision)
    g3_kv       kv;
    int         logits_rows;       // the last rows of each step whose logits can be asked for; 0: 1
    g3_progress progress;          // tokens of a prompt, images; non-zero return cancels
    g3_probe    probe;
    bool        no_images;         // no scratch for the vision tower: this session refuses pictures, and batch may be smaller than one
} g3_session_desc;

typedef struct g3_model_desc {
    const char  *path;             // model directory (required unless `files` is set)
    g3_backend   backend;          // AUTO: CUDA if it loads and the plan fits, else CPU
    int          device;           // CUDA ordinal
    int          threads;          // CPU threads; 0: the physical cores this process may use
    bool         no_vision;        // leave the vision tower out of memory
    bool         no_weights;       // tokenizer, config and plan only
    bool         precise;          // float32 activations everywhere: slower, closest to the oracle
    bool         screened_head;    // an int8 copy of the head finds the candidates, exact rows decide: same greedy and top-k; without vector units nothing changes
    uint64_t     memory_limit;     // bytes the model and its sessions may take on the backend; 0: what is free
    const g3_session_desc *session; int sessions;   // what will be opened: must fit too, checked before any weight is read; NULL: one default session
    const char  *kernel_path;      // compile this file instead of the embedded kernels; a .ptx or .cubin is loaded as it is and needs no NVRTC
    const char  *libraries;        // directories, parted by ':' (Windows: ';'), in which the CUDA driver and NVRTC are looked for before the usual places; NULL: none
    const char  *cache_dir;        // keep compiled kernels here; NULL: compile every time
    g3_files     files;
    g3_allocator allocator;
    g3_logger    logger;
    g3_progress  progress;         // bytes loaded; non-zero return cancels
    g3_parallel  parallel;
    const char  *simd;             // for tests and benchmarks: the vector units to use, "avx512", "avx2" or "neon", or "c" for none; NULL: the best here
} g3_model_desc;

typedef struct g3_model_info {     // texts live as long as the model
    const char *name, *backend, *device;
    int layers, dim, ffn, heads, kv_heads, head_dim, vocab, window, max_context;   // vocab: rows of the table; rows the tokenizer lacks are never sampled
    bool vision, chat;             // vision: a tower is in memory; chat: the files bring a chat template
    uint64_t parameters, weight_bytes;
} g3_model_info;

G3_API g3_model      *g3_model_open(const g3_model_desc *desc, g3_error *err);   // NULL on failure, with nothing left behind
G3_API void           g3_model_close(g3_model *m);                               // NULL allowed; open sessions keep the model alive
G3_API g3_model_info  g3_model_get_info(const g3_model *m);
G3_API g3_model_desc  g3_model_get_desc(const g3_model *m);                      // zeros replaced by the values in use

typedef struct g3_tensor {         // one tensor of the files, as named there; texts live as long as the model
    const char *name, *format, *file;              // format: "bf16", "f16", "f32", "nf4", "fp4", "u8", …
    int         rows, cols;        // of a quantised weight: those it stands for. 1-D: one row; more dimensions: the first by the product of the rest
    uint64_t    offset, bytes;     // in its file; the companions of a quantised weight are tensors of their own
} g3_tensor;
G3_API int       g3_model_tensor(const g3_model *m, int i, g3_tensor *t);        // the number of tensors; *t: the i-th, in file order (a 4-bit one's shape is read from the file); also with no_weights
G3_API g3_result g3_model_read(const g3_model *m, const char *name, int row, int n, float *dst, g3_error *err);   // dst [n][cols]: rows as float32, decoded from the file

// ---- memory: the exact bytes, known from the files' headers before anything is taken; needs no card and no driver

typedef struct g3_plan_item { const char *name; uint64_t bytes; } g3_plan_item;  // "weights: …", "vision: …", "kv: …", "scratch: …", "host: …"
typedef struct g3_plan {
    g3_backend backend;                             // what AUTO chose
    uint64_t weights, kv, scratch, vision, total;   // the arenas and nothing else: the model once, `sessions` sessions; vision: weights of tower and projector
    uint64_t host;                                  // all the rest, on the host (tokenizer, tables, staging), at its peak
    uint64_t available;                             // memory_limit, else what the backend reports free (cgroup limits honoured); 0: unknown, fits is then false
    int      max_context;                           // the largest context that would fit, 0 if none
    bool     fits;
    char     advice[256];                           // when it does not fit: by how much, and which of context, kv, no_images, no_vision would do
    int      n_items;
    g3_plan_item items[48];                         // the sums above, one line each
} g3_plan;
G3_API g3_result g3_plan_memory(const g3_model_desc *desc, g3_plan *plan, g3_error *err);    // for desc->session and desc->sessions; a plan that does not fit is no error
G3_API g3_plan   g3_model_get_plan(const g3_model *m);                                      // the one that this model was opened by

// ---- session: one conversation; one thread at a time

G3_API g3_session *g3_session_open(g3_model *m, const g3_session_desc *desc, g3_error *err); // desc NULL: the model's desc.session
G3_API void        g3_session_close(g3_session *s);                              // NULL allowed
G3_API void        g3_session_cancel(g3_session *s);                             // from any thread or signal handler: the running call returns at its next step; with none running, nothing
G3_API int         g3_session_tokens(const g3_session *s, int *ids, int cap);    // tokens held: the count, and the first cap; every picture is 256 equal ids: compare conversations through g3_add_messages
G3_API int         g3_session_rewind(g3_session *s, int pos, g3_error *err);     // the position reached, <= pos: the start of a picture it falls in, 0 where the rings have moved on; logits are gone until a token is added
G3_API g3_result   g3_session_copy(g3_session *to, const g3_session *from, g3_error *err);   // same model and desc; pictures included; `to` keeps its own seed
typedef struct g3_stats {          // context, held, bytes_per_token and memory as they are now; the rest since the first token added after the last answer
    int context, held, prompt_tokens, images, new_tokens;
    double prompt_s, image_s, first_s, new_s;       // seconds; image_s: of the tower, not in prompt_s; first_s: from the prompt's start to the first token of the answer
    uint64_t bytes_per_token, memory;               // weights that one new token reads; the session's arena
} g3_stats;
G3_API g3_stats    g3_session_stats(const g3_session *s);
G3_API uint64_t    g3_session_seed(const g3_session *s);                         // the seed in use, also when it came from the clock

// ---- pictures; loading where stb_image.h is found at compile time (GEMMA3_NO_STB_IMAGE leaves it out)

typedef struct g3_image { const uint8_t *rgb; int width, height, stride; } g3_image;         // [height][width][3], rows `stride` bytes apart; 0: 3*width
G3_API g3_result g3_image_load(const char *path, const g3_allocator *alloc, g3_image *img, g3_error *err);                 // upright (EXIF), over white
G3_API g3_result g3_image_load_memory(const void *data, size_t size, const g3_allocator *alloc, g3_image *img, g3_error *err);
G3_API void      g3_image_free(const g3_allocator *alloc, g3_image *img);                                                 // of the calls above and below, with the same allocator
G3_API g3_result g3_image_resize(const g3_image *in, int width, int height, const g3_allocator *alloc, g3_image *out, g3_error *err);   // what the model sees at 896 x 896; needs no decoder

// ---- sampling and generation

typedef struct g3_sampler {        // zeros: the checkpoint's generation_config.json, else the model card's settings
    bool     greedy;               // argmax, lowest id on ties; ignores the rest. A user's "temperature 0" is this
    float    temperature;          // 0: 1.0
    int      top_k;                // 0: 64, <0: off
    float    top_p;                // 0: 0.95, <0: off
    float    min_p;                // 0: off
    float    repeat_penalty;       // 0: off
    uint64_t seed;                 // the draw at position p is a function of (seed, p); 0: one from the clock for the session
    bool     logprobs;             // fill g3_token.logprob (of the unfiltered distribution; costs the whole head)
    int    (*logits_fn)(void *user, float *logits, int vocab); void *user;   // see or mask logits before the filters
} g3_sampler;
typedef struct g3_token { int id; const char *text; int size; float logprob; } g3_token;     // text: whole UTF-8 characters, or empty; lives until the callback returns or the next g3_next
typedef int (*g3_token_fn)(void *user, const g3_token *t);                                   // non-zero: stop after this token; at the end once more with id -1 if text was held back
typedef enum g3_finish { G3_FINISH_NONE, G3_FINISH_STOP, G3_FINISH_LENGTH, G3_FINISH_CONTEXT, G3_FINISH_CALLBACK, G3_FINISH_CANCELLED } g3_finish;
typedef struct g3_generate_desc {
    g3_sampler         sampler;
    int                max_tokens; // 0: until the context is full
    const char *const *stops;   int n_stops;      // stop strings; not shown
    bool               ignore_stop_ids;           // go on past <eos> and <end_of_turn>
    g3_token_fn        token_fn;  void *user;
} g3_generate_desc;

// ---- level 1: chat

typedef struct g3_part { const char *text; const g3_image *image; bool pan_and_scan; } g3_part;     // a text or an image; pan_and_scan: a long picture brings up to 4 crops of itself, each one image more
typedef struct g3_turn {
    const char      *system;       // first turn only
    const char      *text;         // the user's words; never parsed for control tokens
    const g3_part   *parts;  int n_parts;         // instead of text: texts and images in order
    g3_generate_desc generate;
} g3_turn;
G3_API int       g3_chat(g3_session *s, const g3_turn *turn, g3_error *err);       // tokens produced, or a g3_result < 0. A call that fails before its first token takes its turn back where the rings allow
G3_API g3_result g3_add_turn(g3_session *s, const g3_turn *turn, g3_error *err);   // the same without the answer, for g3_next
G3_API int       g3_next(g3_session *s, const g3_generate_desc *desc, g3_token *t, g3_error *err);   // one token of the answer: 1; 0 at its end (t->text: what was held back); or a g3_result < 0. desc counts on the first call after tokens were added
G3_API g3_finish g3_session_finish(const g3_session *s);                           // why the last generation ended

// ---- level 2: prompts of your own

typedef struct g3_message { const char *role, *text; const g3_part *parts; int n_parts; } g3_message;   // role: "system" (first only), "user", "assistant"
typedef enum g3_tokenize_flags { G3_TOKENIZE_PLAIN = 0, G3_TOKENIZE_SPECIAL = 1, G3_TOKENIZE_BOS = 2 } g3_tokenize_flags;
G3_API int         g3_tokenize(const g3_model *m, const char *text, size_t size, int flags, int *ids, int cap);     // the count, even when cap is smaller; size SIZE_MAX: to the NUL
G3_API int         g3_detokenize(const g3_model *m, const int *ids, int n, char *text, int cap);                    // bytes, no NUL; the size likewise
G3_API const char *g3_token_piece(const g3_model *m, int id, int *size);                                            // the raw bytes of one token; NULL: none
G3_API int         g3_render(const g3_model *m, const g3_message *messages, int n, bool generation_prompt, int *ids, int cap, g3_error *err);   // the chat template; images as 256 soft tokens
G3_API g3_result   g3_add_messages(g3_session *s, const g3_message *messages, int n, bool generation_prompt, g3_error *err);   // the whole conversation, each time: rendered, the longest prefix the session
                                                                                   // holds is kept (pictures compared by a hash of their pixels, an assistant text equal to what was generated there keeps its ids), the rest is added; at least one token is
G3_API g3_result   g3_add_tokens(g3_session *s, const int *ids, int n, g3_error *err);    // as they are: no BOS is added. Stopped on the way: what went through is held
G3_API g3_result   g3_add_image(g3_session *s, const g3_image *img, g3_error *err);       // 256 soft tokens; their frame of tokens is the caller's: at least one token between two pictures
G3_API int         g3_generate(g3_session *s, const g3_generate_desc *desc, g3_error *err);          // tokens produced, or a g3_result < 0; desc NULL: the defaults

// ---- level 3: logits; computed when asked for

G3_API const float *g3_logits(g3_session *s, g3_error *err);                       // [vocab], after the last token added
G3_API const float *g3_logits_at(g3_session *s, int back, g3_error *err);          // [vocab], `back` rows before it, back < logits_rows; the first request computes all kept rows in one product; valid until tokens are added
G3_API g3_result    g3_head(g3_session *s, const float *x, float *logits, g3_error *err);            // final norm and head of one [dim] row of the residual; not from inside a hook
G3_API int          g3_sample(g3_session *s, const g3_sampler *p, g3_error *err);  // a token for the next position; adds nothing

#ifdef __cplusplus
}
#endif
#endif // GEMMA3_H_INCLUDED

// ==== stop here unless you want the implementation ================================================================

#if defined(__INTELLISENSE__) && !defined(GEMMA3_IMPLEMENTATION)
#define GEMMA3_IMPLEMENTATION          // so that editors complete and check what follows
#endif

// ------------------------------------------------------------------------------------------------------------------
// >>config
// Owns every question about compiler, system and option macros, so that the rest of the file asks none.
// The only place where the implementation looks at _MSC_VER, _WIN32, __linux__ and friends is here and in >>platform.

#ifdef GEMMA3_IMPLEMENTATION
#ifndef G3__IMPLEMENTED
#define G3__IMPLEMENTED

#if defined(__GLIBC__) && !defined(__USE_XOPEN2K8)
#error "include gemma3.h before any system header in the file that defines GEMMA3_IMPLEMENTATION (it sets the POSIX feature macros), or compile with -std=gnu99 or later"
#endif

#if defined(GEMMA3_MALLOC) != defined(GEMMA3_FREE)
#error "define both GEMMA3_MALLOC and GEMMA3_FREE, or neither"
#endif

#include <float.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef GEMMA3_MALLOC
#define GEMMA3_MALLOC(size) malloc(size)
#define GEMMA3_FREE(ptr)    free(ptr)
#endif
#ifndef GEMMA3_ASSERT
#include <assert.h>
#define GEMMA3_ASSERT(x) assert(x)
#endif

#if defined(__GNUC__)
#define G3__PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#define G3__UNUSED             __attribute__((unused))
#define G3__RESTRICT           __restrict__
#define G3__PREFETCH(p)        __builtin_prefetch(p)
#define G3__GNU_VECTORS        1       // typedef float v __attribute__((vector_size(32))): plain C arithmetic on eight floats
#elif defined(_MSC_VER)
#define G3__PRINTF(fmt, first)
#define G3__UNUSED
#define G3__RESTRICT           __restrict
#define G3__PREFETCH(p)        ((void)(p))
#else
#define G3__PRINTF(fmt, first)
#define G3__UNUSED
#define G3__RESTRICT
#define G3__PREFETCH(p)        ((void)(p))
#endif

#ifdef __cplusplus
#define G3__ZERO {}
#else
#define G3__ZERO {0}
#endif

#define G3__COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))
#define G3__MIN(a, b)    ((a) < (b) ? (a) : (b))
#define G3__MAX(a, b)    ((a) > (b) ? (a) : (b))
#define G3__ALIGN        64            // every tensor and table in an arena begins on a cache line

// ------------------------------------------------------------------------------------------------------------------
// >>platform
// Owns what C leaves to the system, in five primitives: read a file at an offset, get pages, share work among threads,
// read the clock, ask how much memory and how many cores there are. POSIX and Win32 stand side by side in each.

#if defined(_WIN32)
#ifndef NOMINMAX
#define NOMINMAX
#endif
#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifndef GEMMA3_NO_THREADS
#include <pthread.h>
#endif
#ifndef GEMMA3_NO_CUDA
#include <dlfcn.h>
#endif
#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

static void g3__error_clear(g3_error *err);
static g3_result g3__fail(g3_error *err, g3_result code, const char *fmt, ...) G3__PRINTF(3, 4);

// ---- clock

static double g3__clock(void)                            // seconds since some fixed moment
{
#if defined(_WIN32)
    LARGE_INTEGER f, t;
    QueryPerformanceFrequency(&f);
    QueryPerformanceCounter(&t);
    return (double)t.QuadPart / (double)f.QuadPart;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

// ---- files: the user's hooks, or a directory of the file system behind the same hooks

typedef struct g3__source { g3_files files; const char *dir; } g3__source;
typedef struct g3__file { const g3_files *files; void *handle; uint64_t size; const char *name; } g3__file;

#ifndef GEMMA3_NO_STDIO
#if defined(_WIN32)
static HANDLE g3__win_open(const char *path)             // paths are UTF-8 everywhere
{
    wchar_t wide[1024];
    if (!MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, wide, 1024)) return INVALID_HANDLE_VALUE;
    return CreateFileW(wide, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, NULL);
}

static void *g3__os_open_path(const char *path, uint64_t *size)
{
    LARGE_INTEGER n;
    HANDLE h = g3__win_open(path);
    if (h == INVALID_HANDLE_VALUE) return NULL;
    if (!GetFileSizeEx(h, &n)) { CloseHandle(h); return NULL; }
    *size = (uint64_t)n.QuadPart;
    return (void *)h;
}

static int g3__os_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    (void)user;
    for (char *p = (char *)dst; size; ) {
        DWORD want = (DWORD)G3__MIN(size, (size_t)1 << 30), got = 0;
        OVERLAPPED at;
        memset(&at, 0, sizeof at);
        at.Offset = (DWORD)offset;
        at.OffsetHigh = (DWORD)(offset >> 32);
        if (!ReadFile((HANDLE)file, p, want, &got, &at) || !got) return 1;
        p += got; offset += got; size -= got;
    }
    return 0;
}

static void g3__os_close(void *user, void *file) { (void)user; CloseHandle((HANDLE)file); }
#else
static void *g3__os_open_path(const char *path, uint64_t *size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);                       // a pipe of that name must not hold us up
    if (fd >= 0 && fd <= 2) {                                                     // the program closed a standard stream: what it writes there must not meet our file
        int higher = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        close(fd);
        fd = higher;
    }
    if (fd < 0) return NULL;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) { close(fd); return NULL; }      // a directory or a pipe is no weight file
    *size = (uint64_t)st.st_size;
    return (void *)(intptr_t)fd;
}

static int g3__os_read(void *user, void *file, uint64_t offset, void *dst, size_t size)
{
    int fd = (int)(intptr_t)file;
    (void)user;
    for (char *p = (char *)dst; size; ) {
        ssize_t got = pread(fd, p, G3__MIN(size, (size_t)1 << 30), (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 1;                                                   // an error, or the file has shrunk
        p += got; offset += (uint64_t)got; size -= (size_t)got;
    }
    return 0;
}

static void g3__os_close(void *user, void *file) { (void)user; close((int)(intptr_t)file); }
#endif

static void *g3__os_open(void *user, const char *name, uint64_t *size)           // user: the directory
{
    char path[4096];
    int len = snprintf(path, sizeof path, "%s/%s", (const char *)user, name);
    return len > 0 && (size_t)len < sizeof path ? g3__os_open_path(path, size) : NULL;
}
#endif // GEMMA3_NO_STDIO

static bool g3__source_init(g3__source *src, const char *path, const g3_files *files, g3_error *err)
{
    memset(src, 0, sizeof *src);
    if (files && files->open_fn) {
        if (!files->read_fn || !files->close_fn) return g3__fail(err, G3_ERR_ARGUMENT, "files: open_fn, read_fn and close_fn come together") == G3_OK;
        src->files = *files;
        src->files.width = G3__MAX(files->width, 1);
        return true;
    }
    if (!path || !*path) return g3__fail(err, G3_ERR_ARGUMENT, "path: the model's directory is required (or the files hooks)") == G3_OK;
#ifdef GEMMA3_NO_STDIO
    return g3__fail(err, G3_ERR_UNSUPPORTED, "this build has no file system (GEMMA3_NO_STDIO): give the files hooks") == G3_OK;
#else
    src->dir = path;
    src->files.open_fn = g3__os_open;
    src->files.read_fn = g3__os_read;
    src->files.close_fn = g3__os_close;
    src->files.width = 8;
    src->files.user = (void *)(uintptr_t)path;
    return true;
#endif
}

static const char *g3__source_name(const g3__source *src) { return src->dir ? src->dir : "the files hooks"; }

static bool g3__file_try(const g3__source *src, const char *name, g3__file *f)           // false: there is no such file
{
    memset(f, 0, sizeof *f);
    f->files = &src->files;
    f->name = name;
    f->handle = src->files.open_fn(src->files.user, name, &f->size);
    return f->handle != NULL;
}

static void g3__file_close(g3__file *f)
{
    if (f->handle) f->files->close_fn(f->files->user, f->handle);
    f->handle = NULL;
}

static bool g3__file_open(const g3__source *src, const char *name, g3__file *f, g3_error *err)
{
    return g3__file_try(src, name, f) || g3__fail(err, G3_ERR_IO, "%s: no readable file of that name in %s", name, g3__source_name(src)) == G3_OK;
}

static bool g3__file_exists(const g3__source *src, const char *name)
{
    g3__file f;
    bool there = g3__file_try(src, name, &f);
    g3__file_close(&f);
    return there;
}

static bool g3__file_read(const g3__file *f, uint64_t offset, void *dst, uint64_t size, g3_error *err)
{
    if (offset > f->size || size > f->size - offset || size > SIZE_MAX)
        return g3__fail(err, G3_ERR_IO, "%s: bytes %llu to %llu lie past its end", f->name, (unsigned long long)offset, (unsigned long long)(offset + size)) == G3_OK;
    if (!size || f->files->read_fn(f->files->user, f->handle, offset, dst, (size_t)size) == 0) return true;
    return g3__fail(err, G3_ERR_IO, "%s: %llu bytes at offset %llu cannot be read", f->name, (unsigned long long)size, (unsigned long long)offset) == G3_OK;
}

// ---- pages: an arena is one mapping, on huge pages where the system gives them

static void *g3__pages_take(void *user, size_t size, size_t align)
{
    (void)user; (void)align;
#if defined(_WIN32)
    return VirtualAlloc(NULL, size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
#else
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
#if defined(MADV_HUGEPAGE)
    if (size >= (size_t)4 << 20) madvise(p, size, MADV_HUGEPAGE);                 // a wish: a refusal costs only speed
#endif
    return p;
#endif
}

static void g3__pages_give(void *user, void *ptr, size_t size)
{
    (void)user;
#if defined(_WIN32)
    (void)size;
    VirtualFree(ptr, 0, MEM_RELEASE);
#else
    munmap(ptr, size);
#endif
}

// ---- libraries, opened while the program runs, and where they are looked for; files that appear whole or not at all

#ifndef GEMMA3_NO_CUDA
#if defined(_WIN32)
#define G3__PATH_LIST ";"
#define G3__TOOLKIT   "C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v%d.%d"
#define G3__BUILTINS  "nvrtc-builtins64_%d%d.dll"
static const char *const g3__driver_files[] = { "nvcuda.dll", NULL };
static const char *const g3__nvrtc_files[]  = { "nvrtc64_130_0.dll", "nvrtc64_120_0.dll" };                     // of the generations 13 and 12
static const char *const g3__nvrtc_below[]  = { "", "/bin/x64", "/bin", "/nvidia/cu13/bin/x86_64", "/nvidia/cu13/bin", "/nvidia/cuda_nvrtc/bin", NULL };
static const char *const g3__driver_dirs[]  = { NULL };
static const char *const g3__toolkit_dirs[] = { NULL };

static bool g3__wide(const char *utf8, wchar_t wide[1024]) { return MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, utf8, -1, wide, 1024) > 0; }

static void *g3__library_open(const char *path)          // UTF-8; what a library at a path needs is looked for beside it
{
    wchar_t wide[1024], full[1024];
    if (!g3__wide(path, wide)) return NULL;
    if (!strpbrk(path, "/\\")) return (void *)LoadLibraryW(wide);
    DWORD n = GetFullPathNameW(wide, 1024, full, NULL);
    return n && n < 1024 ? (void *)LoadLibraryExW(full, NULL, LOAD_WITH_ALTERED_SEARCH_PATH) : NULL;
}
static void g3__library_close(void *lib) { FreeLibrary((HMODULE)lib); }
static bool g3__library_symbol(void *lib, const char *name, void *slot)  // slot: a pointer to a function
{
    FARPROC f = GetProcAddress((HMODULE)lib, name);
    memcpy(slot, &f, sizeof f);
    return f != NULL;
}

static bool g3__environment(const char *name, char *out, int size)
{
    wchar_t key[1024], wide[1024];
    DWORD n = g3__wide(name, key) ? GetEnvironmentVariableW(key, wide, 1024) : 0;
    return n && n < 1024 && WideCharToMultiByte(CP_UTF8, 0, wide, -1, out, size, NULL, NULL) > 0;
}

static bool g3__program_path(char *out, int size)
{
    wchar_t wide[1024];
    DWORD n = GetModuleFileNameW(NULL, wide, 1024);
    return n && n < 1024 && WideCharToMultiByte(CP_UTF8, 0, wide, -1, out, size, NULL, NULL) > 0;
}
#else
#define G3__PATH_LIST ":"
#define G3__TOOLKIT   "/usr/local/cuda-%d.%d"
#define G3__BUILTINS  "libnvrtc-builtins.so.%d.%d"
static const char *const g3__driver_files[] = { "libcuda.so.1", "libcuda.so", NULL };
static const char *const g3__nvrtc_files[]  = { "libnvrtc.so.13", "libnvrtc.so.12" };                          // of the generations 13 and 12
static const char *const g3__nvrtc_below[]  = { "", "/lib64", "/lib", "/targets/x86_64-linux/lib", "/targets/sbsa-linux/lib", "/nvidia/cu13/lib", "/nvidia/cuda_nvrtc/lib", NULL };
static const char *const g3__driver_dirs[]  = { "/usr/lib/wsl/lib", NULL };
static const char *const g3__toolkit_dirs[] = { "/usr/local/cuda", "/opt/cuda", NULL };

static void *g3__library_open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_LOCAL); }
static void g3__library_close(void *lib) { dlclose(lib); }
static bool g3__library_symbol(void *lib, const char *name, void *slot)  // slot: a pointer to a function
{
    void *f = dlsym(lib, name);
    memcpy(slot, &f, sizeof f);
    return f != NULL;
}

static bool g3__environment(const char *name, char *out, int size)
{
    const char *value = getenv(name);
    return value && *value && snprintf(out, (size_t)size, "%s", value) < size;
}

static bool g3__program_path(char *out, int size)
{
#if defined(__linux__)
    const ssize_t n = readlink("/proc/self/exe", out, (size_t)size - 1);
    out[n > 0 ? n : 0] = 0;
    return n > 0 && n < size - 1;
#else
    (void)out; (void)size;
    return false;
#endif
}
#endif

#ifndef GEMMA3_NO_STDIO
// Writes a file under the name `part` and then gives it the name `path`, so that nobody ever reads half of it; false: nothing has changed.
#if defined(_WIN32)
static bool g3__os_replace(const char *path, const char *part, const char *data, uint64_t size)
{
    wchar_t to[1024], from[1024];
    if (!g3__wide(path, to) || !g3__wide(part, from)) return false;
    HANDLE h = CreateFileW(from, GENERIC_WRITE, 0, NULL, CREATE_NEW, FILE_ATTRIBUTE_NORMAL, NULL);
    bool ok = h != INVALID_HANDLE_VALUE;
    if (!ok) return false;
    for (DWORD done = 0; ok && size; data += done, size -= done) ok = WriteFile(h, data, (DWORD)G3__MIN(size, (uint64_t)1 << 30), &done, NULL) && done;
    ok = CloseHandle(h) && ok && MoveFileExW(from, to, MOVEFILE_REPLACE_EXISTING);
    if (!ok) DeleteFileW(from);
    return ok;
}
static void g3__os_mkdir(const char *path) { wchar_t wide[1024]; if (g3__wide(path, wide)) CreateDirectoryW(wide, NULL); }
static unsigned long g3__os_process(void) { return GetCurrentProcessId(); }
#else
static bool g3__os_replace(const char *path, const char *part, const char *data, uint64_t size)
{
    int fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool ok = fd >= 0;
    if (!ok) return false;
    while (ok && size) {
        ssize_t done = write(fd, data, (size_t)G3__MIN(size, (uint64_t)1 << 30));
        if (done < 0 && errno == EINTR) continue;
        ok = done > 0;
        if (ok) { data += done; size -= (uint64_t)done; }
    }
    ok = close(fd) == 0 && ok && rename(part, path) == 0;
    if (!ok) unlink(part);
    return ok;
}
static void g3__os_mkdir(const char *path) { if (mkdir(path, 0777)) return; }           // there already, or not to be had: the file tells
static unsigned long g3__os_process(void) { return (unsigned long)getpid(); }
#endif
#endif // GEMMA3_NO_STDIO
#endif

// ---- atomics: sequentially consistent, on int

#if defined(__GNUC__)
static int  g3__atomic_add(int *p, int n)      { return __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST); }
static int  g3__atomic_get(const int *p)       { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static void g3__atomic_set(int *p, int v)      { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
#elif defined(_MSC_VER)
static int  g3__atomic_add(int *p, int n)      { return (int)InterlockedExchangeAdd((volatile LONG *)p, n); }
static int  g3__atomic_get(const int *p)       { return (int)InterlockedExchangeAdd((volatile LONG *)p, 0); }
static void g3__atomic_set(int *p, int v)      { InterlockedExchange((volatile LONG *)p, v); }
#else
#error "this compiler has neither the __atomic builtins nor the Interlocked functions"
#endif

// ---- threads: a pool that belongs to one model, or the user's own threads through g3_parallel

#ifndef GEMMA3_NO_THREADS
static void g3__pause(void)
{
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
    __asm__ __volatile__("pause");
#elif defined(__GNUC__) && defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#if defined(_WIN32)
typedef CRITICAL_SECTION g3__mutex;
typedef CONDITION_VARIABLE g3__cond;
typedef HANDLE g3__thread;
static bool g3__mutex_init(g3__mutex *m)  { InitializeCriticalSection(m); return true; }
static void g3__mutex_free(g3__mutex *m)  { DeleteCriticalSection(m); }
static void g3__mutex_lock(g3__mutex *m)  { EnterCriticalSection(m); }
static void g3__mutex_unlock(g3__mutex *m){ LeaveCriticalSection(m); }
static bool g3__cond_init(g3__cond *c)    { InitializeConditionVariable(c); return true; }
static void g3__cond_free(g3__cond *c)    { (void)c; }
static void g3__cond_wait(g3__cond *c, g3__mutex *m) { SleepConditionVariableCS(c, m, INFINITE); }
static void g3__cond_wake(g3__cond *c)    { WakeAllConditionVariable(c); }
static void g3__yield(void)               { SwitchToThread(); }
#else
typedef pthread_mutex_t g3__mutex;
typedef pthread_cond_t g3__cond;
typedef pthread_t g3__thread;
static bool g3__mutex_init(g3__mutex *m)  { return pthread_mutex_init(m, NULL) == 0; }
static void g3__mutex_free(g3__mutex *m)  { pthread_mutex_destroy(m); }
static void g3__mutex_lock(g3__mutex *m)  { pthread_mutex_lock(m); }
static void g3__mutex_unlock(g3__mutex *m){ pthread_mutex_unlock(m); }
static bool g3__cond_init(g3__cond *c)    { return pthread_cond_init(c, NULL) == 0; }
static void g3__cond_free(g3__cond *c)    { pthread_cond_destroy(c); }
static void g3__cond_wait(g3__cond *c, g3__mutex *m) { pthread_cond_wait(c, m); }
static void g3__cond_wake(g3__cond *c)    { pthread_cond_broadcast(c); }
static void g3__yield(void)               { sched_yield(); }
#endif
#else
typedef int g3__mutex;
static bool g3__mutex_init(g3__mutex *m)  { *m = 0; return true; }
static void g3__mutex_free(g3__mutex *m)  { (void)m; }
static void g3__mutex_lock(g3__mutex *m)  { (void)m; }
static void g3__mutex_unlock(g3__mutex *m){ (void)m; }
#endif

enum { G3__MAX_THREADS = 256, G3__SPINS = 2000 };

typedef struct g3__pool {
    g3_parallel lent;                  // for_fn set: the user's threads do the work
    int width;                         // bodies that may run at once, the caller's included
#ifndef GEMMA3_NO_THREADS
    g3__mutex turn, lock;              // turn: one call at a time; lock: only for going to sleep
    g3__cond wake;
    bool made;                         // mutexes and condition exist
    // A call publishes its job and opens it; workers that come in time claim indices; the call ends when all indices are
    // claimed and no worker is inside. A worker that sleeps through it all is not waited for.
    void (*body)(void *ctx, int i);
    void *ctx;
    int n, next, job;                  // job: number of the latest
    int open, inside, asleep, quit;    // open: number of the job that may be entered, 0: none
    int n_threads;
    g3__thread thread[G3__MAX_THREADS];
#endif
} g3__pool;

static int g3__pool_width(const g3__pool *p) { return G3__MAX(p->width, 1); }

#ifndef GEMMA3_NO_THREADS
static void g3__pool_work(g3__pool *p)
{
    for (int i; (i = g3__atomic_add(&p->next, 1)) < p->n; ) p->body(p->ctx, i);
}

static int g3__pool_wait(g3__pool *p, int seen)          // the number of the next open job; spins briefly, then sleeps
{
    int now;
    for (int k = 0; k < G3__SPINS; k++) {
        if (g3__atomic_get(&p->quit)) return 0;
        if ((now = g3__atomic_get(&p->open)) != 0 && now != seen) return now;
        g3__pause();
    }
    g3__mutex_lock(&p->lock);
    g3__atomic_add(&p->asleep, 1);
    while (!g3__atomic_get(&p->quit) && ((now = g3__atomic_get(&p->open)) == 0 || now == seen)) g3__cond_wait(&p->wake, &p->lock);
    g3__atomic_add(&p->asleep, -1);
    now = g3__atomic_get(&p->open);
    g3__mutex_unlock(&p->lock);
    return now;
}

static void g3__pool_loop(g3__pool *p)
{
    int seen = 0;
    while (!g3__atomic_get(&p->quit)) {
        int now = g3__pool_wait(p, seen);
        g3__atomic_add(&p->inside, 1);
        if ((now = g3__atomic_get(&p->open)) != 0) { seen = now; g3__pool_work(p); }      // still open: its fields stay until we leave
        g3__atomic_add(&p->inside, -1);
    }
}

#if defined(_WIN32)
static DWORD WINAPI g3__pool_main(void *p) { g3__pool_loop((g3__pool *)p); return 0; }
static bool g3__thread_start(g3__thread *t, g3__pool *p) { *t = CreateThread(NULL, 0, g3__pool_main, p, 0, NULL); return *t != NULL; }
static void g3__thread_join(g3__thread t) { WaitForSingleObject(t, INFINITE); CloseHandle(t); }
#else
static void *g3__pool_main(void *p) { g3__pool_loop((g3__pool *)p); return NULL; }
static bool g3__thread_start(g3__thread *t, g3__pool *p) { return pthread_create(t, NULL, g3__pool_main, p) == 0; }
static void g3__thread_join(g3__thread t) { pthread_join(t, NULL); }
#endif

static void g3__pool_wake(g3__pool *p)
{
    if (!g3__atomic_get(&p->asleep)) return;
    g3__mutex_lock(&p->lock);
    g3__cond_wake(&p->wake);
    g3__mutex_unlock(&p->lock);
}
#endif // GEMMA3_NO_THREADS

// Fewer threads than asked for is not an error: the bits do not depend on their number.
static void g3__pool_init(g3__pool *p, int width, const g3_parallel *lent)
{
    memset(p, 0, sizeof *p);
    p->width = 1;
    if (lent && lent->for_fn) {
        p->lent = *lent;
        p->width = G3__MIN(G3__MAX(lent->width, 1), G3__MAX_THREADS);
        return;
    }
#ifndef GEMMA3_NO_THREADS
    if (width < 2 || !g3__mutex_init(&p->turn)) return;
    if (!g3__mutex_init(&p->lock)) { g3__mutex_free(&p->turn); return; }
    if (!g3__cond_init(&p->wake)) { g3__mutex_free(&p->lock); g3__mutex_free(&p->turn); return; }
    p->made = true;
    while (p->n_threads < G3__MIN(width, G3__MAX_THREADS) - 1 && g3__thread_start(&p->thread[p->n_threads], p)) p->n_threads++;
    p->width = p->n_threads + 1;
#else
    (void)width;
#endif
}

static void g3__pool_free(g3__pool *p)
{
#ifndef GEMMA3_NO_THREADS
    if (!p->made) return;
    g3__mutex_lock(&p->lock);
    g3__atomic_set(&p->quit, 1);
    g3__cond_wake(&p->wake);
    g3__mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++) g3__thread_join(p->thread[i]);
    g3__cond_free(&p->wake);
    g3__mutex_free(&p->lock);
    g3__mutex_free(&p->turn);
    p->made = false;
#else
    (void)p;
#endif
}

// body(ctx, 0), …, body(ctx, n - 1) in any order and on any threads; returns when all are done.
static void g3__pool_for(g3__pool *p, int n, void (*body)(void *ctx, int i), void *ctx)
{
    if (p->lent.for_fn && n > 1) { p->lent.for_fn(p->lent.user, n, body, ctx); return; }
#ifndef GEMMA3_NO_THREADS
    if (p->made && p->width > 1 && n > 1) {
        g3__mutex_lock(&p->turn);
        p->body = body;
        p->ctx = ctx;
        p->n = n;
        g3__atomic_set(&p->next, 0);
        p->job = p->job == INT_MAX ? 1 : p->job + 1;
        g3__atomic_set(&p->open, p->job);
        g3__pool_wake(p);
        g3__pool_work(p);
        g3__atomic_set(&p->open, 0);
        for (int k = 0; g3__atomic_get(&p->inside); k++) { if (k < G3__SPINS) g3__pause(); else g3__yield(); }
        g3__mutex_unlock(&p->turn);
        return;
    }
#endif
    for (int i = 0; i < n; i++) body(ctx, i);
}

// ---- what the machine has

#if !defined(GEMMA3_NO_STDIO) && !defined(_WIN32) && !defined(__APPLE__)
static size_t g3__small_file(const char *path, char *text, size_t size)          // bytes read, a NUL after them; 0: none
{
    FILE *f = fopen(path, "rb");
    size_t n = f ? fread(text, 1, size - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    return n;
}

static bool g3__small_number(const char *dir, const char *name, uint64_t *out)   // false: no such file, or "max"
{
    char path[1024], text[64];
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path || !g3__small_file(path, text, sizeof text)) return false;
    if (text[0] < '0' || text[0] > '9') return false;
    *out = strtoull(text, NULL, 10);
    return true;
}

static uint64_t g3__stat_field(const char *dir, const char *field)               // a line "field N" of memory.stat
{
    char path[1024], text[4096];
    if (snprintf(path, sizeof path, "%s/memory.stat", dir) >= (int)sizeof path || !g3__small_file(path, text, sizeof text)) return 0;
    for (char *p = text; p && *p; p = strchr(p, '\n'), p = p ? p + 1 : p)
        if (!strncmp(p, field, strlen(field)) && p[strlen(field)] == ' ') return strtoull(p + strlen(field), NULL, 10);
    return 0;
}

// What a control group of either version leaves: its limit less what it holds, file cache not counted. UINT64_MAX: no limit.
static uint64_t g3__cgroup_room(const char *dir)
{
    uint64_t limit, used = 0, cache;
    if (g3__small_number(dir, "memory.max", &limit)) { g3__small_number(dir, "memory.current", &used); cache = g3__stat_field(dir, "file"); }
    else if (g3__small_number(dir, "memory.limit_in_bytes", &limit)) { g3__small_number(dir, "memory.usage_in_bytes", &used); cache = g3__stat_field(dir, "total_cache"); }
    else return UINT64_MAX;
    used -= G3__MIN(used, cache);
    return limit > used ? limit - used : 0;
}

// The tightest group from ours up to the root. self: the text of /proc/self/cgroup, lines "N:controllers:/path".
static uint64_t g3__cgroup_free(const char *root, const char *self)
{
    uint64_t room = UINT64_MAX;
    while (self && *self) {
        const char *a = strchr(self, ':'), *b = a ? strchr(a + 1, ':') : NULL, *end = strchr(self, '\n');
        char dir[1024];
        if (!b || (end && b > end)) break;
        bool v2 = b == a + 1, v1 = !v2 && strstr(a, "memory") && strstr(a, "memory") < b;
        int len = (int)(end ? end - b - 1 : (long)strlen(b + 1));
        if ((v1 || v2) && snprintf(dir, sizeof dir, "%s%s%.*s", root, v1 ? "/memory" : "", len, b + 1) < (int)sizeof dir)
            for (size_t stop = strlen(root) + (v1 ? 7 : 0);;) {
                room = G3__MIN(room, g3__cgroup_room(dir));
                char *slash = strrchr(dir, '/');
                if (!slash || (size_t)(slash - dir) < stop) break;
                *slash = 0;
            }
        self = end ? end + 1 : NULL;
    }
    return room;
}
#endif

static uint64_t g3__memory_free(void)                    // bytes this process may still take, 0: unknown
{
#if defined(_WIN32)
    MEMORYSTATUSEX m;
    m.dwLength = sizeof m;
    return GlobalMemoryStatusEx(&m) ? G3__MIN(m.ullAvailPhys, m.ullAvailPageFile) : 0;
#elif defined(__APPLE__)
    uint64_t bytes = 0;
    size_t size = sizeof bytes;
    return sysctlbyname("hw.memsize", &bytes, &size, NULL, 0) == 0 ? bytes : 0;
#elif defined(GEMMA3_NO_STDIO)
    return 0;
#else
    char text[8192];
    uint64_t bytes = 0;
    const char *line = g3__small_file("/proc/meminfo", text, sizeof text) ? strstr(text, "MemAvailable:") : NULL;
    if (line) bytes = strtoull(line + 13, NULL, 10) * 1024;
    if (!g3__small_file("/proc/self/cgroup", text, sizeof text)) return bytes;
    uint64_t room = g3__cgroup_free("/sys/fs/cgroup", text);
    return bytes ? G3__MIN(bytes, room) : room == UINT64_MAX ? 0 : room;
#endif
}

#if defined(__linux__) && defined(CPU_COUNT) && !defined(GEMMA3_NO_STDIO)
static bool g3__first_sibling(int cpu, const cpu_set_t *mine)    // no allowed hardware thread of the same core comes before this one
{
    char path[128], text[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!g3__small_file(path, text, sizeof text)) return true;
    for (char *p = text; *p >= '0' && *p <= '9'; ) {             // "0,64" or "0-1"
        long from = strtol(p, &p, 10), to = *p == '-' ? strtol(p + 1, &p, 10) : from;
        for (long c = from; c <= to && c < cpu; c++)
            if (c < CPU_SETSIZE && CPU_ISSET((size_t)c, mine)) return false;
        if (*p == ',') p++;
    }
    return true;
}

static int g3__quota(int cores)                          // a cgroup's cpu.max "200000 100000" is two cores
{
    char text[128], *rest;
    if (!g3__small_file("/sys/fs/cgroup/cpu.max", text, sizeof text) || text[0] < '0' || text[0] > '9') return cores;
    double quota = strtod(text, &rest), period = strtod(rest, NULL);
    int whole = period > 0 ? (int)(quota / period + 0.5) : cores;
    return G3__MIN(cores, G3__MAX(whole, 1));
}
#endif

static int g3__cores(void)                               // physical cores this process may use, at least 1
{
    long n = 1;
#if defined(_WIN32)
    SYSTEM_INFO s;
    GetSystemInfo(&s);
    n = (long)s.dwNumberOfProcessors;
#elif defined(__linux__) && defined(CPU_COUNT) && !defined(GEMMA3_NO_STDIO)
    cpu_set_t mine;
    CPU_ZERO(&mine);
    n = 0;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0)
        for (int c = 0; c < CPU_SETSIZE; c++) n += CPU_ISSET((size_t)c, &mine) && g3__first_sibling(c, &mine);
    n = g3__quota((int)G3__MAX(n, 1L));
#elif defined(_SC_NPROCESSORS_ONLN)
    n = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return (int)G3__MIN(G3__MAX(n, 1L), (long)G3__MAX_THREADS);
}

// ------------------------------------------------------------------------------------------------------------------
// >>util
// Owns the small tools that everything else stands on: the sticky error, checked sizes, memory zones, strings and the
// hash index. No function here knows what a model is.

// ---- errors: the first failure of a call wins, so that cleaning up never hides the cause

static void g3__error_clear(g3_error *err)
{
    if (err) { err->code = G3_OK; err->text[0] = 0; }
}

// A text that came from a file may hold anything: control characters become '?', a cut never splits a character.
static void g3__text_clean(char *text)
{
    size_t n = strlen(text), k = n;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) text[i] = '?';
    while (k && ((unsigned char)text[k - 1] & 0xC0) == 0x80) k--;                     // first byte of the last character
    if (!k || n - k > 3) return;
    unsigned char lead = (unsigned char)text[k - 1];
    size_t want = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    if (n - (k - 1) < want) text[k - 1] = 0;
}

static g3_result g3__vfail(g3_error *err, g3_result code, const char *fmt, va_list args)
{
    if (err && err->code == G3_OK) {
        err->code = code;
        vsnprintf(err->text, sizeof err->text, fmt, args);
        g3__text_clean(err->text);
    }
    return code;
}

static g3_result g3__fail(g3_error *err, g3_result code, const char *fmt, ...) G3__PRINTF(3, 4);
static g3_result g3__fail(g3_error *err, g3_result code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    g3__vfail(err, code, fmt, args);
    va_end(args);
    return code;
}

// ---- checked sizes: every product and sum of numbers that come from a file goes through these

static bool g3__mul(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b && a > UINT64_MAX / b) return false;
    *out = a * b;
    return true;
}

static bool g3__add(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b) return false;
    *out = a + b;
    return true;
}

static uint64_t g3__round_up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }

// ---- allocation: one counting heap over the user's allocator; its peak is what the plan calls `host`

typedef struct g3__heap {
    g3_allocator a;                    // never empty: g3__heap_init fills in GEMMA3_MALLOC
    uint64_t live, peak;               // bytes asked for and not yet given back; arenas are not counted
} g3__heap;

static void *g3__default_alloc(void *user, size_t size, size_t align)
{
    (void)user;
    if (size > SIZE_MAX - align - sizeof(void *)) return NULL;
    char *base = (char *)GEMMA3_MALLOC(size + align + sizeof(void *));                // room to align, and to remember the base
    if (!base) return NULL;
    char *p = (char *)(((uintptr_t)base + sizeof(void *) + align - 1) / align * align);
    memcpy(p - sizeof(void *), &base, sizeof(void *));
    return p;
}

static void g3__default_free(void *user, void *ptr, size_t size)
{
    void *base;
    (void)user; (void)size;
    memcpy(&base, (char *)ptr - sizeof(void *), sizeof(void *));
    GEMMA3_FREE(base);
}

static void g3__heap_init(g3__heap *h, const g3_allocator *a)
{
    memset(h, 0, sizeof *h);
    if (a && a->alloc_fn) { h->a = *a; return; }
    h->a.alloc_fn = g3__default_alloc;
    h->a.free_fn = g3__default_free;
}

// n * size bytes on a cache line, or NULL with G3_ERR_MEMORY. The caller gives the same size back to g3__heap_free.
static void *g3__heap_take(g3__heap *h, uint64_t n, uint64_t size, g3_error *err)
{
    uint64_t bytes;
    void *p = NULL;
    if (!g3__mul(n, size, &bytes) || bytes > SIZE_MAX) { g3__fail(err, G3_ERR_MEMORY, "a table of %llu x %llu bytes exceeds the address space", (unsigned long long)n, (unsigned long long)size); return NULL; }
    if (!bytes) bytes = 1;
    p = h->a.alloc_fn(h->a.user, (size_t)bytes, G3__ALIGN);
    if (!p) { g3__fail(err, G3_ERR_MEMORY, "the allocator has no %llu bytes of host memory", (unsigned long long)bytes); return NULL; }
    h->live += bytes;
    h->peak = G3__MAX(h->peak, h->live);
    return p;
}

static void *g3__heap_alloc(g3__heap *h, uint64_t n, uint64_t size, g3_error *err)       // the same, zeroed
{
    void *p = g3__heap_take(h, n, size, err);
    if (p) memset(p, 0, (size_t)(n * size));
    return p;
}

static void g3__heap_free(g3__heap *h, void *p, uint64_t n, uint64_t size)
{
    uint64_t bytes = G3__MAX(n * size, (uint64_t)1);
    if (!p) return;
    h->live -= bytes;
    h->a.free_fn(h->a.user, p, (size_t)bytes);
}

// ---- zones: many small pieces that live and die together, so that no error path has a list of frees

typedef struct g3__block { struct g3__block *next; uint64_t size, used; } g3__block;     // the pieces follow the header
typedef struct g3__zone { g3__heap *heap; g3__block *first; } g3__zone;

enum { G3__BLOCK_SIZE = 32 << 10, G3__BLOCK_HEAD = 64 };

static void g3__zone_init(g3__zone *z, g3__heap *heap) { z->heap = heap; z->first = NULL; }

static void *g3__zone_take(g3__zone *z, uint64_t n, uint64_t size, g3_error *err)        // n * size bytes, 16-byte aligned; NULL: err is set
{
    uint64_t bytes;
    if (!g3__mul(n, size, &bytes) || bytes > SIZE_MAX / 2) { g3__fail(err, G3_ERR_MEMORY, "a table of %llu x %llu bytes exceeds the address space", (unsigned long long)n, (unsigned long long)size); return NULL; }
    bytes = g3__round_up(bytes, 16);
    if (!z->first || z->first->size - z->first->used < bytes) {
        uint64_t room = G3__BLOCK_HEAD + bytes;
        bool own = bytes > G3__BLOCK_SIZE / 4;                                            // big pieces get a block of just their size
        if (!own) room = G3__BLOCK_SIZE;
        g3__block *b = (g3__block *)g3__heap_take(z->heap, room, 1, err);
        if (!b) return NULL;
        b->next = NULL;
        b->size = room;
        b->used = G3__BLOCK_HEAD;
        if (own && z->first) { b->next = z->first->next; z->first->next = b; }            // keep filling the block in use
        else { b->next = z->first; z->first = b; }
        b->used += bytes;
        return (char *)b + G3__BLOCK_HEAD;
    }
    void *p = (char *)z->first + z->first->used;
    z->first->used += bytes;
    return p;
}

static void *g3__zone_alloc(g3__zone *z, uint64_t n, uint64_t size, g3_error *err)       // the same, zeroed
{
    void *p = g3__zone_take(z, n, size, err);
    if (p) memset(p, 0, (size_t)(n * size));
    return p;
}

static void g3__zone_free(g3__zone *z)
{
    while (z->first) {
        g3__block *b = z->first;
        z->first = b->next;
        g3__heap_free(z->heap, b, b->size, 1);
    }
}

// ---- strings: a pointer and a length, into memory that somebody else keeps

typedef struct g3__str { const char *p; size_t n; } g3__str;

static g3__str g3__str_make(const char *p, size_t n) { g3__str s; s.p = p; s.n = n; return s; }
static g3__str g3__str_c(const char *c) { return g3__str_make(c, c ? strlen(c) : 0); }
static bool g3__str_equal(g3__str a, g3__str b) { return a.n == b.n && (!a.n || memcmp(a.p, b.p, a.n) == 0); }
static bool g3__str_is(g3__str s, const char *c) { return g3__str_equal(s, g3__str_c(c)); }
static bool g3__str_starts(g3__str s, const char *c) { size_t n = strlen(c); return s.n >= n && (!n || memcmp(s.p, c, n) == 0); }
static bool g3__str_ends(g3__str s, const char *c) { size_t n = strlen(c); return s.n >= n && (!n || memcmp(s.p + s.n - n, c, n) == 0); }
static g3__str g3__str_skip(g3__str s, size_t n) { return g3__str_make(s.p + n, s.n - n); }

// For "%.*s" in messages: never more than fits a sentence.
#define G3__S(s) (int)G3__MIN((s).n, (size_t)96), (s).p

static const char *g3__zone_text(g3__zone *z, g3__str s, g3_error *err)                  // a copy with a NUL at its end
{
    char *p = (char *)g3__zone_alloc(z, (uint64_t)s.n + 1, 1, err);
    if (p && s.n) memcpy(p, s.p, s.n);
    return p;
}

// ---- hash index: from a string to its place in an array of structs, each of which holds a g3__str

static uint64_t g3__hash(const void *data, size_t n)     // multiply and fold, eight bytes a step; not for secrets
{
    const unsigned char *p = (const unsigned char *)data;
    uint64_t h = 0x9E3779B97F4A7C15u ^ (uint64_t)n, w = 0;
    for (; n >= 8; n -= 8, p += 8) {
        memcpy(&w, p, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    w = 0;
    for (size_t i = 0; i < n; i++) w |= (uint64_t)p[i] << (8 * i);
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

typedef struct g3__index { uint32_t *slot, mask; const char *keys; size_t stride; } g3__index;   // slot: place + 1, 0 is empty

static bool g3__index_init(g3__index *ix, g3__zone *z, uint64_t count, const void *first_key, size_t stride, g3_error *err)
{
    uint64_t cap = 16;
    ix->slot = NULL;
    if (count > 1 << 30) return g3__fail(err, G3_ERR_MEMORY, "more than 2^30 names") == G3_OK;
    while (cap < 2 * count) cap *= 2;
    ix->slot = (uint32_t *)g3__zone_alloc(z, cap, sizeof *ix->slot, err);
    ix->mask = (uint32_t)cap - 1;
    ix->keys = (const char *)first_key;
    ix->stride = stride;
    return ix->slot != NULL;
}

static g3__str g3__index_key(const g3__index *ix, uint32_t place)
{
    g3__str s;
    memcpy(&s, ix->keys + place * ix->stride, sizeof s);
    return s;
}

static uint32_t *g3__index_slot(const g3__index *ix, g3__str key)                        // where key is, or where it would go
{
    uint32_t i = (uint32_t)g3__hash(key.p, key.n) & ix->mask;
    while (ix->slot[i] && !g3__str_equal(g3__index_key(ix, ix->slot[i] - 1), key)) i = (i + 1) & ix->mask;
    return &ix->slot[i];
}

static int64_t g3__index_find(const g3__index *ix, g3__str key)                          // the place, -1: absent
{
    return ix->slot ? (int64_t)*g3__index_slot(ix, key) - 1 : -1;
}

static bool g3__index_put(g3__index *ix, uint32_t place)                                 // false: its key is there already
{
    uint32_t *s = g3__index_slot(ix, g3__index_key(ix, place));
    if (*s) return false;
    *s = place + 1;
    return true;
}

// ---- a whole small file as text

static bool g3__file_text(const g3__source *src, const char *name, uint64_t limit, g3__zone *z, char **text, size_t *size, g3_error *err)
{
    g3__file f;
    if (!g3__file_open(src, name, &f, err)) return false;
    *size = (size_t)f.size;
    *text = NULL;
    if (f.size > limit) g3__fail(err, G3_ERR_FORMAT, "%s: %llu bytes are more than a file of its kind has (%llu)", name, (unsigned long long)f.size, (unsigned long long)limit);
    else *text = (char *)g3__zone_take(z, f.size + 1, 1, err);
    bool ok = *text && g3__file_read(&f, 0, *text, f.size, err);
    if (ok) (*text)[f.size] = 0;
    g3__file_close(&f);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------------
// >>numbers
// Owns what the bits of a weight mean: the small float formats, and bitsandbytes' 4-bit codes with their scales. These are
// the definitions, plain and exact; the loops of >>cpu and the kernels must give the same bits. Everything that reads a weight uses them.

static float    g3__as_f32(uint32_t u) { float f; memcpy(&f, &u, sizeof f); return f; }
static uint32_t g3__as_u32(float f) { uint32_t u; memcpy(&u, &f, sizeof u); return u; }

// x / 2^n to the nearest whole number, ties to the even one; 1 <= n <= 25, and x + 2^n must not overflow.
static uint32_t g3__shift_even(uint32_t x, int n)
{
    uint32_t odd = x >> n & 1;
    return (x + ((uint32_t)1 << (n - 1)) - 1 + odd) >> n;
}

// The magnitude |f| (its bits, finite) in a format with a smaller exponent and `bits` bits of mantissa, rounded once. A carry out of
// the mantissa runs into the exponent, which is right. What lies above the format's largest number is the caller's business.
static uint32_t g3__narrow(uint32_t f, int bits, int bias)
{
    int shift = 23 - bits, below = 128 - bias - (int)(f >> 23);                       // binades below the smallest normal number
    if (below <= 0) return g3__shift_even(f - ((uint32_t)(127 - bias) << 23), shift);
    if (shift + below > 25) return 0;                                                 // under half the smallest subnormal
    return g3__shift_even((f & 0x7fffff) | 0x800000, shift + below);
}

// ---- bfloat16: the upper half of a float32

static float g3__bf16_to_f32(uint16_t h) { return g3__as_f32((uint32_t)h << 16); }

static uint16_t g3__f32_to_bf16(float f)
{
    uint32_t u = g3__as_u32(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);             // a quiet NaN, so that no payload rounds to infinity
    return (uint16_t)g3__shift_even(u, 16);
}

// ---- float16: 5 bits of exponent, bias 15, 10 bits of mantissa

static float g3__f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, f = h & 0x7fffu;
    if (f >= 0x7c00) return g3__as_f32(sign | 0x7f800000 | (f & 0x3ff) << 13);
    if (f >= 0x0400) return g3__as_f32(sign | ((f << 13) + ((uint32_t)112 << 23)));
    return g3__as_f32(sign | g3__as_u32((float)f * (1.0f / 16777216)));               // subnormal: f * 2^-24, exact
}

static G3__UNUSED uint16_t g3__f32_to_f16(float f)
{
    uint32_t u = g3__as_u32(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (u >> 13 & 0x1ff));         // NaN
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                            // 65520 and up: infinity
    return (uint16_t)(sign | g3__narrow(u, 10, 15));
}

// ---- fp8 as in "FP8 Formats for Deep Learning" (Micikevicius et al. 2022), the variants safetensors calls F8_E4M3 and F8_E5M2

// E4M3: bias 7, no infinity, 0x7f and 0xff are NaN, largest 448.
static float g3__e4m3_to_f32(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80) << 24, f = b & 0x7fu;
    if (f == 0x7f) return g3__as_f32(sign | 0x7fc00000);
    if (f >= 0x08) return g3__as_f32(sign | ((f << 20) + ((uint32_t)120 << 23)));
    return g3__as_f32(sign | g3__as_u32((float)f * (1.0f / 512)));                    // subnormal: f * 2^-9
}

// Saturating: everything above 448, infinity too, becomes 448. The magnitude must not reach 0x7f, which is NaN.
static uint8_t g3__f32_to_e4m3(float f)
{
    uint32_t u = g3__as_u32(f), sign = u >> 24 & 0x80;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint8_t)(sign | 0x7f);
    if (u > 0x43e00000) return (uint8_t)(sign | 0x7e);                                // above 448
    return (uint8_t)(sign | g3__narrow(u, 3, 7));
}

// E5M2 is the upper byte of a float16.
static float g3__e5m2_to_f32(uint8_t b) { return g3__f16_to_f32((uint16_t)(b << 8)); }

// ---- 4-bit codes: the built-in tables of bitsandbytes (its kernels ignore the copy that files carry)

// NF4: quantiles of a normal distribution, scaled to [-1, 1] ("QLoRA", Dettmers et al. 2023, appendix E).
static const float g3__nf4_table[16] = {
    -1.0f,                -0.6961928009986877f, -0.5250730514526367f,  -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,  0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f,  0.7229568362236023f,   1.0f
};

// FP4: sign, two bits of exponent, one of mantissa, over the largest, 12. Code 8 would be -0 and is zero here.
static const float g3__fp4_table[16] = {
    0.0f,  0.0625f / 12.0f,  8.0f / 12.0f,  12.0f / 12.0f,  4.0f / 12.0f,  6.0f / 12.0f,  2.0f / 12.0f,  3.0f / 12.0f,
    0.0f, -0.0625f / 12.0f, -8.0f / 12.0f, -12.0f / 12.0f, -4.0f / 12.0f, -6.0f / 12.0f, -2.0f / 12.0f, -3.0f / 12.0f
};

// ---- a weight as it lies in memory

typedef enum g3__format { G3__F32, G3__BF16, G3__F16, G3__E4M3, G3__E5M2, G3__NF4, G3__FP4, G3__U8, G3__I8, G3__OTHER } g3__format;

// A weight wherever its bytes lie: in a file buffer or in the arena, aligned or not. All that is needed to decode element e
// of the flat row-major matrix. A 4-bit weight is cut into blocks of `blocksize` elements that share a scale; the blocks run
// on over the ends of rows, and the last one may be short.
typedef struct g3__bits {
    g3__format format;
    const void *data;                  // dense elements, or packed codes: element 2i in the high nibble of byte i, 2i + 1 in the low one
    const void *absmax;                // NF4/FP4: float32 [blocks], or uint8 [blocks] when nested
    const float *nested_absmax;        // float32 [ceil(blocks / nested_blocksize)], NULL: not nested
    const float *nested_map;           // float32 [256]
    float nested_offset;
    uint32_t blocksize, nested_blocksize;
    const void *scale;                 // F8: one number for the whole tensor, of scale_format (G3__F32, G3__BF16 or G3__F16); NULL: 1
    int scale_format;
    bool tiled;                        // rows lie interleaved, see g3__tiles; then only g3__decode_row and >>simd can read it
    signed char map;                   // on a card: number of nested_map in its constant memory, -1: not there
} g3__bits;

// scale[b] = absmax[b], or with double quantisation map[absmax[b]] * nested_absmax[b / nested_blocksize] + offset.
// The product is rounded to float32 before the sum, as in bitsandbytes. A fused multiply-add would skip that rounding, and compilers
// fuse unasked: clang within an expression unless the standard's FP_CONTRACT pragma says no, gcc even across statements, and it ignores
// that pragma. What passes through a volatile object must be a float, in C and in C++ and for every compiler; once a block it costs nothing.
static float g3__block_scale(const g3__bits *w, uint64_t block)
{
    if (!w->nested_absmax) {
        float s;
        memcpy(&s, (const char *)w->absmax + 4 * block, sizeof s);
        return s;
    }
    uint8_t code = ((const uint8_t *)w->absmax)[block];
    volatile float product = w->nested_map[code] * w->nested_absmax[block / w->nested_blocksize];
    return product + w->nested_offset;
}

static bool g3__is_4bit(g3__format f) { return f == G3__NF4 || f == G3__FP4; }

static uint32_t g3__format_bits(g3__format f)            // of one stored element
{
    static const uint8_t bits[] = { 32, 16, 16, 8, 8, 4, 4, 8, 8, 0 };
    return bits[f];
}

// Elements [first, first + n) of one block, whose sixteen possible values are given.
static void g3__decode_codes(const uint8_t *codes, uint64_t first, uint64_t n, const float value[16], float *dst)
{
    const uint8_t *p = codes + (first + 1) / 2;
    uint64_t i = 0;
    if (n && first % 2) dst[i++] = value[codes[first / 2] & 15];
    for (; i + 2 <= n; i += 2, p++) { dst[i] = value[*p >> 4]; dst[i + 1] = value[*p & 15]; }
    if (i < n) dst[i] = value[*p >> 4];
}

// w[e] = table[code[e]] * scale[e / blocksize], one float32 product for each of the sixteen codes of a block.
static void g3__decode_4bit(const g3__bits *w, uint64_t first, uint64_t n, float *dst)
{
    const float *table = w->format == G3__NF4 ? g3__nf4_table : g3__fp4_table;
    while (n) {
        uint64_t block = first / w->blocksize, left = (block + 1) * w->blocksize - first, take = G3__MIN(left, n);
        float scale = g3__block_scale(w, block), value[16];
        for (int c = 0; c < 16; c++) value[c] = table[c] * scale;
        g3__decode_codes((const uint8_t *)w->data, first, take, value, dst);
        first += take; dst += take; n -= take;
    }
}

static uint16_t g3__load_u16(const uint8_t *p) { uint16_t h; memcpy(&h, p, sizeof h); return h; }

static void g3__decode_dense(g3__format format, const uint8_t *p, uint64_t n, float *dst)
{
    switch (format) {
    case G3__F32:  memcpy(dst, p, (size_t)n * 4); break;
    case G3__BF16: for (uint64_t i = 0; i < n; i++) dst[i] = g3__bf16_to_f32(g3__load_u16(p + 2 * i)); break;
    case G3__F16:  for (uint64_t i = 0; i < n; i++) dst[i] = g3__f16_to_f32(g3__load_u16(p + 2 * i)); break;
    case G3__E4M3: for (uint64_t i = 0; i < n; i++) dst[i] = g3__e4m3_to_f32(p[i]); break;
    case G3__E5M2: for (uint64_t i = 0; i < n; i++) dst[i] = g3__e5m2_to_f32(p[i]); break;
    case G3__I8:   for (uint64_t i = 0; i < n; i++) dst[i] = (float)(p[i] < 128 ? p[i] : p[i] - 256); break;
    default:       for (uint64_t i = 0; i < n; i++) dst[i] = (float)p[i]; break;
    }
}

// Elements [first, first + n) of the flat matrix as float32: any range, whatever rows and blocks it cuts.
static void g3__decode(const g3__bits *w, uint64_t first, uint64_t n, float *dst)
{
    GEMMA3_ASSERT(w->format < G3__OTHER && !w->tiled);
    if (g3__is_4bit(w->format)) { g3__decode_4bit(w, first, n, dst); return; }
    if (n) g3__decode_dense(w->format, (const uint8_t *)w->data + first * (g3__format_bits(w->format) / 8), n, dst);
    if (w->scale) {
        float scale;
        g3__decode_dense((g3__format)w->scale_format, (const uint8_t *)w->scale, 1, &scale);
        for (uint64_t i = 0; i < n; i++) dst[i] *= scale;
    }
}

// ---- tiles: the layout of >>simd
//
// Sixteen rows of a matrix form a tile: dword i of its row r lies at [i][r], so that one load brings the next dword of sixteen rows. A dword
// is one float32, two bf16 or f16, four fp8, or eight 4-bit codes. The scales of blocks lie the same way, [block][16]. A tile takes
// exactly the bytes that its rows took, and what does not fit stays as it is stored.

enum { G3__TILE_ROWS = 16, G3__DENSE_BLOCK = 128 };      // rows of a tile; elements summed together where there are no blocks

static bool g3__tiles(g3__format f, int rows, int cols, uint32_t blocksize, uint32_t nested_blocksize)
{
    if (f >= G3__U8 || rows % G3__TILE_ROWS || (uint64_t)cols * g3__format_bits(f) % 32) return false;
    if (!g3__is_4bit(f)) return true;
    return (blocksize == 32 || blocksize == 64 || blocksize == G3__DENSE_BLOCK) && (uint32_t)cols % blocksize == 0
        && !(nested_blocksize & (nested_blocksize - 1)) && (uint64_t)rows * (uint64_t)cols / blocksize < INT_MAX;
}

#ifndef GEMMA3_NO_CUDA
// On a card: units of 8 bytes, so that 32 bytes of each of 16 rows are what a warp loads at once; and only for what is multiplied that way.
static bool g3__card_tiles(g3__format f, int rows, int cols, uint32_t blocksize, uint32_t nested_blocksize)
{
    if (f == G3__BF16) return rows % G3__TILE_ROWS == 0 && cols % 16 == 0;
    return g3__is_4bit(f) && rows % G3__TILE_ROWS == 0 && cols % 64 == 0 && blocksize && blocksize % 64 == 0 && (uint32_t)cols % blocksize == 0 && !(nested_blocksize & (nested_blocksize - 1))
        && (uint64_t)rows * (uint64_t)cols / blocksize < INT_MAX;
}
#endif

// Whole tiles of rows of `row` bytes, as stored, become tiles of units of 1, 4 or 8 bytes.
static void g3__tile_copy(char *G3__RESTRICT dst, const char *G3__RESTRICT src, size_t size, size_t row, size_t unit)
{
    for (size_t at = 0; at < size; at += row * G3__TILE_ROWS, src += row * G3__TILE_ROWS)
        for (size_t i = 0; i < row; i += unit)
            for (size_t r = 0; r < G3__TILE_ROWS; r++, dst += unit)
                if (unit == 8) memcpy(dst, src + r * row + i, 8);
                else if (unit == 4) memcpy(dst, src + r * row + i, 4);
                else *dst = src[r * row + i];
}

static float g3__tile_scale(const g3__bits *w, uint64_t row, uint64_t per_row, uint64_t b)       // of block b of a row
{
    const uint64_t at = (row / G3__TILE_ROWS * per_row + b) * G3__TILE_ROWS + row % G3__TILE_ROWS;
    g3__bits one = *w;                                   // a single block, so that the definition does the arithmetic
    one.absmax = (const char *)w->absmax + at * (w->nested_absmax ? 1 : 4);
    if (w->nested_absmax) one.nested_absmax += (row * per_row + b) / w->nested_blocksize;
    return g3__block_scale(&one, 0);
}

// One row [cols] as float32, however it lies.
static void g3__decode_row(const g3__bits *w, uint64_t row, uint64_t cols, float *dst)
{
    if (!w->tiled) { g3__decode(w, row * cols, cols, dst); return; }
    enum { G3__DWORDS = 16 };
    const uint64_t per = 32 / g3__format_bits(w->format), dwords = cols / per;
    const char *p = (const char *)w->data + (row / G3__TILE_ROWS * dwords * G3__TILE_ROWS + row % G3__TILE_ROWS) * 4;
    for (uint64_t i = 0; i < dwords; i += G3__DWORDS) {
        char piece[4 * G3__DWORDS];
        const uint64_t n = G3__MIN(dwords - i, (uint64_t)G3__DWORDS);
        const float one = 1.0f;
        g3__bits part = *w;
        part.tiled = false;
        part.data = piece;
        part.absmax = &one;
        part.nested_absmax = NULL;
        part.blocksize = G3__DWORDS * 8;
        for (uint64_t k = 0; k < n; k++) memcpy(piece + 4 * k, p + (i + k) * 4 * G3__TILE_ROWS, 4);
        g3__decode(&part, 0, n * per, dst + i * per);
    }
    if (!g3__is_4bit(w->format)) return;
    for (uint64_t b = 0; b < cols / w->blocksize; b++) {
        const float scale = g3__tile_scale(w, row, cols / w->blocksize, b);
        for (uint32_t k = 0; k < w->blocksize; k++) *dst++ *= scale;
    }
}

// ------------------------------------------------------------------------------------------------------------------
// >>json
// Owns reading JSON (RFC 8259) out of safetensors headers, config.json, indexes, quant states and tokenizer.json.
// A cursor walks text that may be hostile: nothing is built, strings are unescaped where they stand, depth is bounded,
// and the first mistake sticks, so that callers read straight on and ask once at the end.

enum { G3__JSON_DEPTH = 128 };

typedef struct g3__json {
    char *p, *end, *begin;             // text is changed in place by g3__json_string; end need not hold a NUL
    const char *what;                  // for messages: "config.json"
    g3_error *err;
    bool failed, dry;                  // dry: strings are checked, not unescaped, so that the text can be read again
    int depth;
    bool first[G3__JSON_DEPTH];        // no element yet at this depth, so no comma expected
} g3__json;

static void g3__json_init(g3__json *j, char *text, size_t size, const char *what, g3_error *err)
{
    memset(j, 0, sizeof *j);
    j->p = j->begin = text;
    j->end = text + size;
    j->what = what;
    j->err = err;
}

static bool g3__json_fail(g3__json *j, const char *why)
{
    if (!j->failed) g3__fail(j->err, G3_ERR_FORMAT, "%s is not valid JSON at byte %llu: %s", j->what, (unsigned long long)(j->p - j->begin), why);
    j->failed = true;
    return false;
}

static int g3__json_peek(g3__json *j)                    // the first byte of what comes next, 0 at the end or after a failure
{
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t')) j->p++;
    return j->failed || j->p >= j->end ? 0 : (unsigned char)*j->p;
}

static bool g3__json_open(g3__json *j, char bracket)
{
    if (g3__json_peek(j) != bracket) return g3__json_fail(j, bracket == '{' ? "expected an object" : "expected an array");
    if (j->depth == G3__JSON_DEPTH) return g3__json_fail(j, "nested deeper than 128");
    j->first[j->depth++] = true;
    j->p++;
    return true;
}

static bool g3__json_object(g3__json *j) { return g3__json_open(j, '{'); }     // then while (g3__json_key(j, &key)) read or skip one value
static bool g3__json_array(g3__json *j) { return g3__json_open(j, '['); }      // then while (g3__json_item(j)) read or skip one value

static bool g3__json_more(g3__json *j, char bracket)     // at the next element of the open container; false at its end, which is taken
{
    int c = g3__json_peek(j);
    if (j->failed) return false;
    bool first = j->first[j->depth - 1];
    if (c == bracket) { j->p++; j->depth--; return false; }
    if (!first && c != ',') return g3__json_fail(j, c ? "expected a comma or the end of the object or array" : "the text ends in the middle");
    if (!first) j->p++;
    j->first[j->depth - 1] = false;
    if (!g3__json_peek(j)) return g3__json_fail(j, "the text ends in the middle");
    return true;
}

static bool g3__json_item(g3__json *j) { return g3__json_more(j, ']'); }

// ---- strings

// Bytes of the UTF-8 character at p (1 to 4), 0 if it is not one: overlong forms, surrogates and above 10FFFF included.
static int g3__utf8_size(const char *p, const char *end)
{
    const unsigned char *s = (const unsigned char *)p;
    size_t n = (size_t)(end - p);
    if (!n) return 0;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n < 2 || (s[1] & 0xC0) != 0x80) return 0;
    if (s[0] < 0xE0) return 2;
    if (n < 3 || (s[2] & 0xC0) != 0x80) return 0;
    if (s[0] < 0xF0) return (s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ? 0 : 3;
    if (n < 4 || (s[3] & 0xC0) != 0x80) return 0;
    return (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F) ? 0 : 4;
}

static int g3__utf8_put(char *out, uint32_t c)           // bytes written, 1 to 4
{
    if (c < 0x80) { out[0] = (char)c; return 1; }
    if (c < 0x800) { out[0] = (char)(0xC0 | c >> 6); out[1] = (char)(0x80 | (c & 63)); return 2; }
    if (c < 0x10000) { out[0] = (char)(0xE0 | c >> 12); out[1] = (char)(0x80 | (c >> 6 & 63)); out[2] = (char)(0x80 | (c & 63)); return 3; }
    out[0] = (char)(0xF0 | c >> 18); out[1] = (char)(0x80 | (c >> 12 & 63)); out[2] = (char)(0x80 | (c >> 6 & 63)); out[3] = (char)(0x80 | (c & 63));
    return 4;
}

static bool g3__json_hex4(g3__json *j, uint32_t *out)    // the four digits after \u
{
    uint32_t v = 0;
    if (j->end - j->p < 4) return g3__json_fail(j, "a cut \\u escape");
    for (int i = 0; i < 4; i++) {
        int c = *j->p++, d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return g3__json_fail(j, "a \\u escape without four hexadecimal digits");
        v = v << 4 | (uint32_t)d;
    }
    *out = v;
    return true;
}

static bool g3__json_escape(g3__json *j, char *out, int *size)    // after the backslash; what it means, 1 to 4 bytes, never longer than the escape
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = j->p < j->end ? *j->p++ : 0;
    const char *k = c ? strchr(from, c) : NULL;
    uint32_t u, low;
    *size = 1;
    if (k) { *out = to[k - from]; return true; }
    if (c != 'u') return g3__json_fail(j, "an unknown escape in a string");
    if (!g3__json_hex4(j, &u)) return false;
    if (u >= 0xDC00 && u <= 0xDFFF) return g3__json_fail(j, "a lone surrogate in a string");
    if (u >= 0xD800 && u <= 0xDBFF) {
        if (j->end - j->p < 2 || j->p[0] != '\\' || j->p[1] != 'u') return g3__json_fail(j, "a lone surrogate in a string");
        j->p += 2;
        if (!g3__json_hex4(j, &low)) return false;
        if (low < 0xDC00 || low > 0xDFFF) return g3__json_fail(j, "a lone surrogate in a string");
        u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
    }
    *size = g3__utf8_put(out, u);
    return true;
}

// One step of a string: a run of plain ASCII, or one escape, or one longer character. What it means is moved to `out`.
static char *g3__json_piece(g3__json *j, char *out)
{
    char *run = j->p, mark[4];
    int n = 0;
    while (j->p < j->end && (unsigned char)*j->p >= 0x20 && (unsigned char)*j->p < 0x80 && *j->p != '"' && *j->p != '\\') j->p++;
    if (j->p == run && j->p < j->end && *j->p == '\\') {
        j->p++;
        if (!g3__json_escape(j, mark, &n)) return out;
        if (!j->dry) memcpy(out, mark, (size_t)n);
        return out + n;
    }
    if (j->p == run && j->p < j->end && *j->p != '"') {
        if ((unsigned char)*run < 0x20) { g3__json_fail(j, "a control character in a string"); return out; }
        n = g3__utf8_size(run, j->end);
        if (!n) { g3__json_fail(j, "invalid UTF-8 in a string"); return out; }
        j->p += n;
    }
    if (!j->dry && out != run) memmove(out, run, (size_t)(j->p - run));
    return out + (j->p - run);
}

// The string as UTF-8, unescaped where it stands: valid as long as the text is. It may hold NUL bytes (\u0000).
static bool g3__json_string(g3__json *j, g3__str *s)
{
    if (g3__json_peek(j) != '"') return g3__json_fail(j, "expected a string");
    char *begin = ++j->p, *out = begin;
    while (j->p < j->end && *j->p != '"' && !j->failed) out = g3__json_piece(j, out);
    if (j->failed) return false;
    if (j->p >= j->end) return g3__json_fail(j, "a string that never ends");
    j->p++;
    *s = g3__str_make(begin, (size_t)(out - begin));
    return true;
}

static bool g3__json_key(g3__json *j, g3__str *key)      // the next key of the open object, its colon taken; false at the object's end
{
    if (!g3__json_more(j, '}')) return false;
    if (!g3__json_string(j, key)) return false;
    if (g3__json_peek(j) != ':') return g3__json_fail(j, "expected a colon after a key");
    j->p++;
    return g3__json_peek(j) != 0 || g3__json_fail(j, "the text ends in the middle");
}

// ---- numbers and words

static bool g3__digits(const char **p, const char *end)
{
    const char *from = *p;
    while (*p < end && **p >= '0' && **p <= '9') (*p)++;
    return *p > from;
}

// The text of a number in JSON's own grammar: no plus sign, no leading zero, no hexadecimal, no NaN.
static bool g3__json_number(g3__json *j, g3__str *s, bool *whole)
{
    if (!g3__json_peek(j)) return g3__json_fail(j, "expected a number");
    const char *p = j->p, *end = j->end;
    if (*p == '-') p++;
    bool zero = p < end && *p == '0', ok = g3__digits(&p, end);
    const char *first = j->p + (j->p < j->end && *j->p == '-');
    if (!ok || (zero && p - first > 1)) return g3__json_fail(j, "expected a number");
    *whole = true;
    if (p < end && *p == '.') { p++; *whole = false; if (!g3__digits(&p, end)) return g3__json_fail(j, "a number that ends in a point"); }
    if (p < end && (*p == 'e' || *p == 'E')) {
        p++;
        *whole = false;
        if (p < end && (*p == '+' || *p == '-')) p++;
        if (!g3__digits(&p, end)) return g3__json_fail(j, "a number without digits in its exponent");
    }
    *s = g3__str_make(j->p, (size_t)(p - j->p));
    j->p += s->n;
    return true;
}

static bool g3__json_u64(g3__json *j, uint64_t *out)     // a whole number from 0 to 2^64 - 1, written without point or exponent
{
    g3__str s;
    bool whole;
    uint64_t v = 0;
    if (!g3__json_number(j, &s, &whole)) return false;
    if (!whole || s.p[0] == '-') return g3__json_fail(j, "expected a whole number from 0 up");
    for (size_t i = 0; i < s.n; i++)
        if (!g3__mul(v, 10, &v) || !g3__add(v, (uint64_t)(s.p[i] - '0'), &v)) return g3__json_fail(j, "a number above 2^64");
    *out = v;
    return true;
}

// The nearest double. strtod reads a bounded copy, with the point written as the process's locale has it.
static bool g3__json_f64(g3__json *j, double *out)
{
    g3__str s;
    bool whole;
    char text[400];
    if (!g3__json_number(j, &s, &whole)) return false;
    if (s.n >= sizeof text) return g3__json_fail(j, "a number of 400 digits or more");
    memcpy(text, s.p, s.n);
    text[s.n] = 0;
    char *dot = strchr(text, '.');
    if (dot) *dot = localeconv()->decimal_point[0];
    *out = strtod(text, NULL);
    return fabs(*out) <= DBL_MAX || g3__json_fail(j, "a number too large for a double");
}

static bool g3__json_word(g3__json *j, const char *word) // takes true, false or null if it comes next
{
    size_t n = strlen(word);
    g3__json_peek(j);
    if (j->failed || (size_t)(j->end - j->p) < n || memcmp(j->p, word, n)) return false;
    j->p += n;
    return true;
}

static bool g3__json_bool(g3__json *j, bool *out)
{
    *out = g3__json_word(j, "true");
    return *out || g3__json_word(j, "false") || g3__json_fail(j, "expected true or false");
}

// ---- whole values

static bool g3__json_scalar(g3__json *j, int c)          // checks and takes a string, number or word that begins with c
{
    g3__str s;
    bool whole;
    if (c == '"') return g3__json_string(j, &s);
    if (c != 't' && c != 'f' && c != 'n') return g3__json_number(j, &s, &whole);
    return g3__json_word(j, "true") || g3__json_word(j, "false") || g3__json_word(j, "null") || g3__json_fail(j, "an unknown word");
}

// Checks and skips one value of any kind and leaves its text as it was. Open brackets are kept on a stack, not by recursion.
static bool g3__json_skip(g3__json *j)
{
    int base = j->depth;
    char kind[G3__JSON_DEPTH];                            // '{' or '[' per open level
    g3__str key;
    bool was = j->dry;
    j->dry = true;
    do {
        if (j->depth > base && !(kind[j->depth - 1] == '{' ? g3__json_key(j, &key) : g3__json_item(j))) continue;
        int c = g3__json_peek(j);
        if (c != '{' && c != '[') g3__json_scalar(j, c);
        else if (g3__json_open(j, (char)c)) kind[j->depth - 1] = (char)c;
    } while (!j->failed && j->depth > base);
    j->dry = was;
    return !j->failed;
}

static bool g3__json_null(g3__json *j) { return g3__json_word(j, "null"); }

static bool g3__json_end(g3__json *j)                    // nothing but white space may follow
{
    if (j->failed) return false;
    g3__json_peek(j);
    return j->p == j->end || g3__json_fail(j, "text after the end");
}

// ---- small objects by key: config.json and its kin, where order does not matter and a key twice is a mistake

typedef struct g3__value { char *p; size_t n; } g3__value;       // the text of one value; p NULL: absent or null

// The value of `key` in the object whose text is `object`; reading all of it finds a second one.
static bool g3__json_get(g3__value object, const char *what, const char *key, g3__value *out, g3_error *err)
{
    g3__json j;
    g3__str k;
    bool found = false;
    out->p = NULL;
    out->n = 0;
    if (!object.p) return true;
    g3__json_init(&j, object.p, object.n, what, err);
    j.dry = true;                                         // keys of interest have no escapes
    if (!g3__json_object(&j)) return false;
    while (g3__json_key(&j, &k)) {
        char *from = j.p;
        bool null = g3__json_peek(&j) == 'n';
        if (!g3__json_skip(&j)) return false;
        if (!g3__str_is(k, key)) continue;
        if (found) return g3__fail(err, G3_ERR_FORMAT, "%s: the key \"%s\" stands there twice", what, key) == G3_OK;
        found = true;
        if (!null) { out->p = from; out->n = (size_t)(j.p - from); }
    }
    return !j.failed;
}

// ------------------------------------------------------------------------------------------------------------------
// >>safetensors
// Owns the files that hold tensors: finds the shards of a checkpoint, reads their headers and makes one table of all
// tensors with every offset checked. File layout: u64 header size N | N bytes of JSON | data (safetensors, "Format").

typedef struct g3__tensor {
    g3__str name;                      // first member: the key of the index
    uint64_t dims[4], count;           // the first four dimensions; count: elements
    uint64_t offset, bytes;            // where in its file
    uint32_t file;
    uint16_t rank;                     // as written; more than four dimensions are legal for tensors that nobody needs
    uint8_t dtype;                     // place in g3__dtypes
    bool unlisted;                     // in a shard, but not in the index's weight_map: not part of the model
} g3__tensor;

typedef struct g3__shards {
    g3__source src;
    int n_files;
    g3__file *file;                    // [n_files], open as long as the model
    uint64_t n;
    g3__tensor *tensor;                // [n], file by file, by offset within each
    g3__index index;                   // by name, unlisted ones left out
} g3__shards;

static const struct { const char *name; int bits; g3__format format; } g3__dtypes[] = {
    {"F32", 32, G3__F32}, {"BF16", 16, G3__BF16}, {"F16", 16, G3__F16}, {"F8_E4M3", 8, G3__E4M3}, {"F8_E5M2", 8, G3__E5M2},
    {"U8", 8, G3__U8}, {"I8", 8, G3__I8}, {"BOOL", 8, G3__OTHER}, {"F8_E8M0", 8, G3__OTHER}, {"F8_E4M3FNUZ", 8, G3__OTHER},
    {"F8_E5M2FNUZ", 8, G3__OTHER}, {"F4", 4, G3__OTHER}, {"F6_E2M3", 6, G3__OTHER}, {"F6_E3M2", 6, G3__OTHER}, {"I16", 16, G3__OTHER},
    {"U16", 16, G3__OTHER}, {"I32", 32, G3__OTHER}, {"U32", 32, G3__OTHER}, {"C64", 64, G3__OTHER}, {"F64", 64, G3__OTHER},
    {"I64", 64, G3__OTHER}, {"U64", 64, G3__OTHER},
};

static g3__format g3__tensor_format(const g3__tensor *t) { return g3__dtypes[t->dtype].format; }

enum { G3__HEADER_LIMIT = 100000000, G3__ENTRY_MIN = 49 };       // ENTRY_MIN: the bytes of the shortest entry, "":{"dtype":"U8","shape":[],"data_offsets":[0,0]}

// ---- one header

static bool g3__st_bad(const g3__file *f, g3__str tensor, const char *why, g3_error *err)
{
    return g3__fail(err, G3_ERR_FORMAT, "%s: tensor \"%.*s\": %s", f->name, G3__S(tensor), why) == G3_OK;
}

static bool g3__st_dtype(g3__json *j, g3__tensor *t)
{
    g3__str s;
    if (!g3__json_string(j, &s)) return false;
    for (int i = 0; i < G3__COUNT(g3__dtypes); i++)
        if (g3__str_is(s, g3__dtypes[i].name)) { t->dtype = (uint8_t)i; return true; }
    return g3__fail(j->err, G3_ERR_FORMAT, "%s: tensor \"%.*s\": unknown dtype \"%.*s\"", j->what, G3__S(t->name), G3__S(s)) == G3_OK;
}

static bool g3__st_shape(g3__json *j, const g3__file *f, g3__tensor *t)
{
    uint64_t d;
    t->count = 1;
    if (!g3__json_array(j)) return false;
    while (g3__json_item(j)) {
        if (!g3__json_u64(j, &d)) return false;
        if (t->rank == UINT16_MAX) return g3__st_bad(f, t->name, "more dimensions than any tensor has", j->err);
        if (t->rank < 4) t->dims[t->rank] = d;
        t->rank++;
        if (!g3__mul(t->count, d, &t->count)) return g3__st_bad(f, t->name, "its shape has more than 2^64 elements", j->err);
    }
    return !j->failed;
}

static bool g3__st_offsets(g3__json *j, const g3__file *f, g3__tensor *t)
{
    uint64_t at[2];
    int n = 0;
    if (!g3__json_array(j)) return false;
    for (; g3__json_item(j); n++) {
        if (n == 2) return g3__st_bad(f, t->name, "data_offsets has more than two numbers", j->err);
        if (!g3__json_u64(j, &at[n])) return false;
    }
    if (j->failed) return false;
    if (n != 2 || at[0] > at[1]) return g3__st_bad(f, t->name, "data_offsets is not [begin, end] with begin <= end", j->err);
    t->offset = at[0];
    t->bytes = at[1] - at[0];
    return true;
}

static bool g3__st_entry(g3__json *j, const g3__file *f, g3__tensor *t)      // {"dtype": …, "shape": […], "data_offsets": [begin, end]}
{
    g3__str key;
    int seen = 0;
    uint64_t bits;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &key)) {
        int field = g3__str_is(key, "dtype") ? 1 : g3__str_is(key, "shape") ? 2 : g3__str_is(key, "data_offsets") ? 4 : 0;
        if (seen & field) return g3__st_bad(f, t->name, "a field stands there twice", j->err);
        seen |= field;
        if (!(field == 1 ? g3__st_dtype(j, t) : field == 2 ? g3__st_shape(j, f, t) : field == 4 ? g3__st_offsets(j, f, t) : g3__json_skip(j))) return false;
    }
    if (j->failed) return false;
    if (seen != 7) return g3__st_bad(f, t->name, "dtype, shape or data_offsets is missing", j->err);
    if (!g3__mul(t->count, (uint64_t)g3__dtypes[t->dtype].bits, &bits) || bits % 8) return g3__st_bad(f, t->name, "its shape and dtype are not a whole number of bytes", j->err);
    return bits / 8 == t->bytes || g3__st_bad(f, t->name, "its shape and dtype disagree with its data_offsets", j->err);
}

static bool g3__st_metadata(g3__json *j)                 // string to string only; nothing in it is needed
{
    g3__str s;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &s)) if (!g3__json_string(j, &s)) return false;
    return !j->failed;
}

// An upper bound of the entries, so that the table is allocated once: objects directly inside the outermost one.
static uint64_t g3__st_count(const char *text, uint64_t size)
{
    uint64_t n = 0, depth = 0;
    bool string = false;
    for (uint64_t i = 0; i < size; i++) {
        if (text[i] == '\\' && string) i++;
        else if (text[i] == '"') string = !string;
        else if (string) continue;
        else if (text[i] == '{') n += depth++ == 1;
        else if (text[i] == '}' && depth) depth--;
    }
    return G3__MIN(n, size / G3__ENTRY_MIN + 1);
}

static bool g3__st_before(const g3__tensor *a, const g3__tensor *b) { return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes; }

static void g3__st_sift(g3__tensor *t, uint64_t root, uint64_t n)
{
    for (uint64_t child; (child = 2 * root + 1) < n; root = child) {
        if (child + 1 < n && g3__st_before(&t[child], &t[child + 1])) child++;
        if (!g3__st_before(&t[root], &t[child])) return;
        g3__tensor x = t[root]; t[root] = t[child]; t[child] = x;
    }
}

static void g3__st_sort(g3__tensor *t, uint64_t n)       // heap sort: in place, n log n also on hostile input
{
    for (uint64_t i = n / 2; i-- > 0; ) g3__st_sift(t, i, n);
    for (uint64_t i = n; i-- > 1; ) {
        g3__tensor x = t[0]; t[0] = t[i]; t[i] = x;
        g3__st_sift(t, 0, i);
    }
}

// Sorted by offset the tensors must tile the data: no hole, no overlap, nothing left over.
static bool g3__st_tile(const g3__file *f, g3__tensor *t, uint64_t n, uint64_t data, g3_error *err)
{
    uint64_t at = 0;
    g3__st_sort(t, n);
    for (uint64_t i = 0; i < n; i++) {
        if (t[i].offset != at) return g3__st_bad(f, t[i].name, t[i].offset < at ? "its bytes overlap those of another tensor" : "bytes before it belong to no tensor", err);
        if (t[i].bytes > f->size - data - at) return g3__st_bad(f, t[i].name, "its bytes lie past the end of the file: the file is cut, fetch it again", err);
        at += t[i].bytes;
        t[i].offset += data;
    }
    return data + at == f->size || g3__fail(err, G3_ERR_FORMAT, "%s: %llu bytes after its last tensor belong to nothing", f->name, (unsigned long long)(f->size - data - at)) == G3_OK;
}

typedef struct g3__header { g3__tensor *tensor; uint64_t n; } g3__header;

static bool g3__st_entries(g3__json *j, const g3__file *f, uint32_t file, g3__header *h, uint64_t cap)
{
    g3__str key;
    bool metadata = false;
    while (g3__json_key(j, &key)) {
        if (g3__str_is(key, "__metadata__")) {
            if (metadata) return g3__st_bad(f, key, "it stands there twice", j->err);
            metadata = true;
            if (!g3__st_metadata(j)) return false;
            continue;
        }
        if (h->n == cap) return g3__st_bad(f, key, "its entry is not an object", j->err);
        g3__tensor *t = &h->tensor[h->n++];
        t->name = key;
        t->file = file;
        if (!g3__st_entry(j, f, t)) return false;
    }
    return g3__json_end(j);
}

// The header of one file: its tensors in z, with absolute offsets, in file order. Their names point into its text, kept in `names`.
static bool g3__st_header(const g3__file *f, uint32_t file, g3__zone *names, g3__zone *z, g3__header *h, g3_error *err)
{
    unsigned char head[8];
    uint64_t size = 0;
    g3__json j;
    if (f->size < 8) return g3__fail(err, G3_ERR_FORMAT, "%s: %llu bytes are too few for a safetensors file", f->name, (unsigned long long)f->size) == G3_OK;
    if (!g3__file_read(f, 0, head, 8, err)) return false;
    for (int i = 0; i < 8; i++) size |= (uint64_t)head[i] << (8 * i);
    if (size > G3__HEADER_LIMIT || size > f->size - 8)
        return g3__fail(err, G3_ERR_FORMAT, "%s: a header of %llu bytes does not fit the file: not a safetensors file, or cut", f->name, (unsigned long long)size) == G3_OK;
    char *text = (char *)g3__zone_take(names, size + 1, 1, err);
    if (!text || !g3__file_read(f, 8, text, size, err)) return false;
    uint64_t cap = g3__st_count(text, size);
    h->n = 0;
    h->tensor = (g3__tensor *)g3__zone_alloc(z, cap, sizeof *h->tensor, err);
    if (!h->tensor) return false;
    g3__json_init(&j, text, (size_t)size, f->name, err);
    if (!g3__json_object(&j) || !g3__st_entries(&j, f, file, h, cap)) return false;
    for (uint64_t i = 0; i < h->n; i++) text[h->tensor[i].name.p + h->tensor[i].name.n - text] = 0;      // over the closing quote: names are C strings too
    return g3__st_tile(f, h->tensor, h->n, size + 8, err);
}

// ---- which files

enum { G3__MAX_FILES = 1000 };
#define G3__INDEX_NAME "model.safetensors.index.json"

typedef struct g3__listed { g3__str name; uint32_t file; } g3__listed;       // one entry of an index's weight_map
typedef struct g3__file_list { g3__str *name; uint32_t n; g3__index by_name; g3__listed *listed; uint64_t n_listed; } g3__file_list;

static bool g3__plain_name(g3__str s)                    // one file name of the directory itself, no way out of it
{
    if (s.n > 200 || s.n < 13 || !g3__str_ends(s, ".safetensors")) return false;
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == '/' || s.p[i] == '\\' || s.p[i] == ':' || s.p[i] == 0x7f) return false;
    return true;
}

static bool g3__add_name(g3__file_list *l, g3__str name, uint32_t *place, g3_error *err)     // distinct names, in order of appearance
{
    int64_t at = g3__index_find(&l->by_name, name);
    if (at < 0 && l->n == G3__MAX_FILES) return g3__fail(err, G3_ERR_FORMAT, G3__INDEX_NAME " names more than %d files", (int)G3__MAX_FILES) == G3_OK;
    if (at < 0) {
        l->name[at = l->n++] = name;
        g3__index_put(&l->by_name, (uint32_t)at);
    }
    *place = (uint32_t)at;
    return true;
}

static bool g3__str_before(g3__str a, g3__str b)
{
    int c = memcmp(a.p, b.p, G3__MIN(a.n, b.n));
    return c ? c < 0 : a.n < b.n;
}

static void g3__sort_names(g3__file_list *l)             // by name, as the reference opens them; insertion sort: shards are few, and mostly in order
{
    uint16_t now[G3__MAX_FILES], place[G3__MAX_FILES];   // now: the old places in the new order; place: the way back
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t k = i;
        for (; k && g3__str_before(l->name[i], l->name[now[k - 1]]); k--) now[k] = now[k - 1];
        now[k] = (uint16_t)i;
    }
    for (uint32_t i = 0; i < l->n; i++) place[now[i]] = (uint16_t)i;
    for (uint64_t e = 0; e < l->n_listed; e++) l->listed[e].file = place[l->listed[e].file];
    for (uint32_t i = 0; i < l->n; i++)                  // follow each cycle of the permutation by swaps
        while (place[i] != i) {
            uint16_t to = place[i];
            g3__str x = l->name[i]; l->name[i] = l->name[to]; l->name[to] = x;
            place[i] = place[to]; place[to] = to;
        }
}

static bool g3__weight_map(g3__json *j, g3__file_list *l)
{
    g3__str name, file;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &name)) {
        if (!g3__json_string(j, &file)) return false;
        if (!g3__plain_name(file)) return g3__fail(j->err, G3_ERR_FORMAT, G3__INDEX_NAME ": \"%.*s\" is no plain file name that ends in .safetensors", G3__S(file)) == G3_OK;
        g3__listed *e = &l->listed[l->n_listed++];
        e->name = name;
        if (!g3__add_name(l, file, &e->file, j->err)) return false;
    }
    return !j->failed;
}

static bool g3__read_index(const g3__source *src, g3__file_list *l, g3__zone *z, g3_error *err)
{
    char *text;
    size_t size;
    g3__json j;
    g3__str key;
    bool map = false;
    if (!g3__file_text(src, G3__INDEX_NAME, G3__HEADER_LIMIT, z, &text, &size, err)) return false;
    l->listed = (g3__listed *)g3__zone_alloc(z, size / 19 + 1, sizeof *l->listed, err);       // the shortest entry, "":"a.safetensors", has 19 bytes
    if (!l->listed) return false;
    g3__json_init(&j, text, size, G3__INDEX_NAME, err);
    if (!g3__json_object(&j)) return false;
    while (g3__json_key(&j, &key)) {
        bool here = g3__str_is(key, "weight_map");
        if (here && map) return g3__fail(err, G3_ERR_FORMAT, G3__INDEX_NAME ": weight_map stands there twice") == G3_OK;
        map = map || here;
        if (!(here ? g3__weight_map(&j, l) : g3__json_skip(&j))) return false;
    }
    if (!g3__json_end(&j)) return false;
    if (!l->n_listed) return g3__fail(err, G3_ERR_FORMAT, G3__INDEX_NAME ": weight_map is missing or empty") == G3_OK;
    g3__sort_names(l);
    return true;
}

static void g3__numbered_name(char *name, size_t size, int i, int n) { snprintf(name, size, "model-%05d-of-%05d.safetensors", i, n); }

// Without an index: a complete numbered set. Its size is found by asking for the first two files of every size.
static bool g3__numbered_set(const g3__source *src, g3__file_list *l, g3__zone *z, g3_error *err)
{
    char name[64];
    int n = 0;
    for (int k = 1; k <= G3__MAX_FILES; k++)
        for (int i = 1; i <= G3__MIN(k, 2); i++) {
            g3__numbered_name(name, sizeof name, i, k);
            if (n == k || !g3__file_exists(src, name)) continue;
            if (n) return g3__fail(err, G3_ERR_FORMAT, "%s: shards of two sets, of %d and of %d files, and no index that says which", g3__source_name(src), n, k) == G3_OK;
            n = k;
        }
    if (!n) return g3__fail(err, G3_ERR_IO, "%s: no model.safetensors, no " G3__INDEX_NAME " and no numbered shards", g3__source_name(src)) == G3_OK;
    for (int i = 1; i <= n; i++) {
        g3__numbered_name(name, sizeof name, i, n);
        l->name[l->n] = g3__str_c(g3__zone_text(z, g3__str_c(name), err));
        if (!l->name[l->n++].p) return false;
    }
    return true;
}

static bool g3__list_files(const g3__source *src, g3__file_list *l, g3__zone *z, g3_error *err)
{
    memset(l, 0, sizeof *l);
    l->name = (g3__str *)g3__zone_alloc(z, G3__MAX_FILES, sizeof *l->name, err);
    if (!l->name || !g3__index_init(&l->by_name, z, G3__MAX_FILES, l->name, sizeof *l->name, err)) return false;
    if (g3__file_exists(src, "model.safetensors")) { l->name[l->n++] = g3__str_c("model.safetensors"); return true; }
    if (g3__file_exists(src, G3__INDEX_NAME)) return g3__read_index(src, l, z, err);
    return g3__numbered_set(src, l, z, err);
}

// ---- all headers, one table

static bool g3__st_check_listed(const g3__shards *s, const g3__file_list *l, g3__zone *temp, g3_error *err)
{
    g3__index seen;
    if (!g3__index_init(&seen, temp, l->n_listed, l->listed, sizeof *l->listed, err)) return false;
    for (uint64_t i = 0; i < l->n_listed; i++) {
        const g3__listed *e = &l->listed[i];
        int64_t at = g3__index_find(&s->index, e->name);
        if (!g3__index_put(&seen, (uint32_t)i)) return g3__fail(err, G3_ERR_FORMAT, G3__INDEX_NAME ": tensor \"%.*s\" is listed twice", G3__S(e->name)) == G3_OK;
        if (at < 0) return g3__fail(err, G3_ERR_FORMAT, "%s: tensor \"%.*s\" is not there, though " G3__INDEX_NAME " says so", s->file[e->file].name, G3__S(e->name)) == G3_OK;
        if (s->tensor[at].file != e->file)
            return g3__fail(err, G3_ERR_FORMAT, "tensor \"%.*s\" lies in %s, not in %s as " G3__INDEX_NAME " says", G3__S(e->name), s->file[s->tensor[at].file].name, s->file[e->file].name) == G3_OK;
    }
    if (l->n_listed)
        for (uint64_t i = 0; i < s->n; i++) s->tensor[i].unlisted = g3__index_find(&seen, s->tensor[i].name) < 0;
    return true;
}

static bool g3__st_index(g3__shards *s, g3__zone *keep, g3_error *err)
{
    if (!g3__index_init(&s->index, keep, s->n, s->tensor, sizeof *s->tensor, err)) return false;
    for (uint64_t i = 0; i < s->n; i++)
        if (!g3__index_put(&s->index, (uint32_t)i)) {
            const g3__tensor *a = &s->tensor[g3__index_find(&s->index, s->tensor[i].name)], *b = &s->tensor[i];
            if (a->file == b->file) return g3__st_bad(&s->file[b->file], b->name, "the name stands there twice", err);
            return g3__fail(err, G3_ERR_FORMAT, "tensor \"%.*s\" is in two files, %s and %s", G3__S(b->name), s->file[a->file].name, s->file[b->file].name) == G3_OK;
        }
    return true;
}

// Opens every shard and reads its header. What stays lives in keep; on failure the caller frees both zones and calls g3__shards_close.
static bool g3__shards_open(g3__shards *s, g3__zone *keep, g3__zone *temp, g3_error *err)
{
    g3__file_list list;
    if (!g3__list_files(&s->src, &list, temp, err)) return false;
    s->file = (g3__file *)g3__zone_alloc(keep, list.n, sizeof *s->file, err);
    g3__header *head = (g3__header *)g3__zone_alloc(temp, list.n, sizeof *head, err);
    if (!s->file || !head) return false;
    for (uint32_t i = 0; i < list.n; i++) {
        const char *name = g3__zone_text(keep, list.name[i], err);
        if (!name || !g3__file_open(&s->src, name, &s->file[i], err)) return false;
        s->n_files++;
        if (!g3__st_header(&s->file[i], i, keep, list.n == 1 ? keep : temp, &head[i], err)) return false;
        s->n += head[i].n;
    }
    s->tensor = list.n == 1 ? head[0].tensor : (g3__tensor *)g3__zone_alloc(keep, s->n, sizeof *s->tensor, err);
    if (!s->tensor) return false;
    for (uint64_t i = 0, at = 0; list.n > 1 && i < list.n; at += head[i++].n) memcpy(s->tensor + at, head[i].tensor, head[i].n * sizeof *s->tensor);
    return g3__st_index(s, keep, err) && g3__st_check_listed(s, &list, temp, err);
}

static void g3__shards_close(g3__shards *s)
{
    for (int i = 0; i < s->n_files; i++) g3__file_close(&s->file[i]);
    s->n_files = 0;
}

static const g3__tensor *g3__shards_find(const g3__shards *s, const char *name)          // NULL: absent, or not part of the model
{
    int64_t at = g3__index_find(&s->index, g3__str_c(name));
    return at < 0 || s->tensor[at].unlisted ? NULL : &s->tensor[at];
}

static bool g3__tensor_read(const g3__shards *s, const g3__tensor *t, uint64_t from, void *dst, uint64_t size, g3_error *err)
{
    if (from > t->bytes || size > t->bytes - from) return g3__st_bad(&s->file[t->file], t->name, "read past its end", err);
    return g3__file_read(&s->file[t->file], t->offset + from, dst, size, err);
}

// ------------------------------------------------------------------------------------------------------------------
// >>tokenizer
// Owns the way between text and ids: tokenizer.json in compact tables, encoding (added tokens, then byte-pair merging
// with byte fallback), the bytes of a token, and streams of whole UTF-8 characters. >>render, the session and the
// public text calls use it. After loading nothing here changes, so any number of threads may share it.
//
// Inside, a piece is kept as it is printed: U+2581 as a space, <0x0A> as that byte. Text is treated alike (a literal
// U+2581 reads as a space), so that the bytes of a section and the bytes of the pieces compare directly.

enum { G3__PIECE_VOCAB = 1, G3__PIECE_ADDED = 2, G3__PIECE_SPECIAL = 4, G3__PIECE_BYTE = 8, G3__PIECE_SPACED = 16, G3__PIECE_ODD = 32 };
// VOCAB: in model.vocab; BYTE: one of <0x00> … <0xFF>; SPACED: holds a real space, which no section does: out of reach of
// merging; ODD: some of its merges are in the table `odd`

typedef struct g3__added { const char *p; uint32_t n; int id; } g3__added;      // as it stands in the file
typedef struct g3__odd { uint32_t id, cut, rank; } g3__odd;                     // cut: bytes of the left part

typedef struct g3__tok {
    int n, bos, unk;                   // ids 0 … n-1 have a piece or are unused; bos, unk: -1 when the file has none
    bool fuse_unk;
    const char *text;                  // all pieces in the order of ids: id is text[at[id]] … text[at[id+1]]
    const uint32_t *at;                // [n + 1]
    uint8_t *flags;                    // [n]
    uint32_t longest;                  // bytes of the longest piece of the vocabulary
    uint32_t *slot, slot_mask, n_odd;  // the hash index of the vocabulary: an id and, above it, a tag from the hash
    // A merge is a cut of the piece it makes. The rank is its place in the file's list, where the cuts of one piece stand
    // together, longest left part first: one number and a set per piece hold them. Whatever stands elsewhere is in `odd`.
    uint32_t *rank, *cuts;             // [n] rank of the first listed cut; bit c: the cut after character c + 1 is listed
    const g3__odd *odd;                // [n_odd] sorted; the last of equal cuts counts
    const g3__added *added;            // sorted by bytes, so that all with a common beginning stand together
    uint32_t first[257];               // those that begin with byte b: added[first[b]] … added[first[b + 1] - 1]
    int byte_id[256], ascii_id[128];   // -1: none
    uint8_t joined[256][16];           // bit y of row x: some piece holds byte x before ASCII byte y
} g3__tok;

enum { G3__SLOT_BITS = 22, G3__MAX_PIECE = 65535, G3__BEYOND_ROWS = 65536 };    // ids below 2^22; how far added tokens may lie above the table's rows

// ---- the index of the vocabulary

static uint32_t *g3__tok_slot(const g3__tok *t, g3__str s)                      // where s is, or where it would go
{
    uint64_t h = g3__hash(s.p, s.n);
    uint32_t i = (uint32_t)h & t->slot_mask, tag = (uint32_t)(h >> 32) & ~(((uint32_t)1 << G3__SLOT_BITS) - 1);
    for (; t->slot[i]; i = (i + 1) & t->slot_mask) {
        uint32_t id = (t->slot[i] ^ tag) - 1, at;
        if (id >= (uint32_t)t->n) continue;                                     // another tag
        at = t->at[id];
        if (t->at[id + 1] - at == s.n && memcmp(t->text + at, s.p, s.n) == 0) break;
    }
    return &t->slot[i];
}

static int g3__tok_lookup(const g3__tok *t, g3__str s)                          // the id of a piece in its printed form, -1
{
    if (!s.n || s.n > t->longest) return -1;
    uint32_t v = *g3__tok_slot(t, s);
    return (int)(v & (((uint32_t)1 << G3__SLOT_BITS) - 1)) - 1;
}

static bool g3__tok_index(g3__tok *t, int id)                                   // false: its text is there already
{
    g3__str s = g3__str_make(t->text + t->at[id], t->at[id + 1] - t->at[id]);
    uint32_t *v = g3__tok_slot(t, s);
    if (*v) return false;
    *v = ((uint32_t)(g3__hash(s.p, s.n) >> 32) & ~(((uint32_t)1 << G3__SLOT_BITS) - 1)) | ((uint32_t)id + 1);
    return true;
}

// ---- one piece: from the file's spelling to the printed form

static int g3__hex_digit(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1; }

static int g3__byte_token(g3__str s)                                            // 0 … 255 for <0x00> … <0xFF>, -1 for anything else
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) || s.p[5] != '>' || g3__hex_digit(s.p[3]) < 0 || g3__hex_digit(s.p[4]) < 0) return -1;
    return g3__hex_digit(s.p[3]) << 4 | g3__hex_digit(s.p[4]);
}

static size_t g3__piece_print(char *p, size_t n, uint8_t *flags)                // in place; the new size, which is never larger
{
    int byte = g3__byte_token(g3__str_make(p, n));
    size_t out = 0;
    if (byte >= 0) { *flags |= G3__PIECE_BYTE; p[0] = (char)byte; return 1; }
    if (memchr(p, ' ', n)) *flags |= G3__PIECE_SPACED;
    for (size_t i = 0; i < n; out++) {
        bool block = n - i >= 3 && memcmp(p + i, "\xE2\x96\x81", 3) == 0;      // U+2581
        p[out] = block ? ' ' : p[i];
        i += block ? 3 : 1;
    }
    return out;
}

// ---- loading. The strings of the file are read where they stand; only the tables of g3__tok are kept.

typedef struct g3__entry { uint32_t at; uint16_t n; uint8_t flags; } g3__entry; // a piece in the file's text; flags 0: no such id
typedef struct g3__odds { struct g3__odds *next; uint32_t n; g3__odd item[1000]; } g3__odds;

typedef struct g3__tok_file {
    g3__tok *t;
    g3__json j;
    g3__zone *keep, *temp;
    g3_error *err;
    g3__added *added;                  // in the file's order until they are sorted; [n_added]
    uint8_t *added_flags;
    uint64_t n_added;
    int rows, ids;                     // rows of the embedding table; ids: one more than the largest that may occur
    g3__entry *entry;                  // [ids]
    g3__odds *odds;
    bool has_added, has_model, has_vocab, has_merges, has_type, has_normalizer;
} g3__tok_file;

static bool g3__tok_fail(g3__tok_file *f, g3_result code, const char *fmt, ...) G3__PRINTF(3, 4);
static bool g3__tok_fail(g3__tok_file *f, g3_result code, const char *fmt, ...)   // false, with the file's name in front
{
    char why[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return g3__fail(f->err, code, "tokenizer.json: %s", why) == G3_OK;
}

static bool g3__tok_odd_value(g3__tok_file *f, const char *name, const char *what)   // a setting of another kind of tokenizer
{
    return g3__tok_fail(f, G3_ERR_MODEL, "%s %s; only Gemma's byte-pair tokenizer is read", name, what);
}

// ---- added tokens

static bool g3__added_read(g3__tok_file *f, g3__added *a, uint8_t *flags)       // one object of the array "added_tokens"
{
    g3__json *j = &f->j;
    g3__str key, s = G3__ZERO;
    uint64_t id = UINT64_MAX;
    bool yes;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &key)) {
        if (g3__str_is(key, "id")) g3__json_u64(j, &id);
        else if (g3__str_is(key, "content")) g3__json_string(j, &s);
        else if (g3__str_is(key, "special")) { if (g3__json_bool(j, &yes) && yes) *flags |= G3__PIECE_SPECIAL; }
        else if (g3__str_is(key, "single_word") || g3__str_is(key, "lstrip") || g3__str_is(key, "rstrip")) {
            if (g3__json_bool(j, &yes) && yes) return g3__tok_odd_value(f, "an added token", "strips or matches words only");
        }
        else g3__json_skip(j);
    }
    if (j->failed) return false;
    if (!s.n || s.n > G3__MAX_PIECE) return g3__tok_fail(f, G3_ERR_FORMAT, "an added token has no \"content\" of 1 to 65535 bytes");
    if (id >= (uint64_t)f->rows + G3__BEYOND_ROWS || id >= ((uint32_t)1 << G3__SLOT_BITS) - 1)
        return g3__tok_fail(f, G3_ERR_FORMAT, "the added token \"%.*s\" has no usable id: the model has %d rows", G3__S(s), f->rows);
    a->p = s.p;
    a->n = (uint32_t)s.n;
    a->id = (int)id;
    f->ids = G3__MAX(f->ids, (int)id + 1);
    return true;
}

static bool g3__added_all(g3__tok_file *f)
{
    uint64_t room = 0;
    if (f->has_added) return g3__tok_fail(f, G3_ERR_FORMAT, "two lists of added tokens");
    f->has_added = true;
    if (!g3__json_array(&f->j)) return false;
    while (g3__json_item(&f->j)) {
        if (f->n_added == room) {                                               // twice the room; what was there stays in the zone
            room = room ? 2 * room : 1024;
            g3__added *more = (g3__added *)g3__zone_alloc(f->temp, room, sizeof *more, f->err);
            uint8_t *flags = (uint8_t *)g3__zone_alloc(f->temp, room, 1, f->err);
            if (!more || !flags) return false;
            if (f->n_added) { memcpy(more, f->added, f->n_added * sizeof *more); memcpy(flags, f->added_flags, f->n_added); }
            f->added = more;
            f->added_flags = flags;
        }
        if (!g3__added_read(f, &f->added[f->n_added], &f->added_flags[f->n_added])) return false;
        f->n_added++;
    }
    return !f->j.failed;
}

static int g3__added_order(const void *a, const void *b)
{
    const g3__added *x = (const g3__added *)a, *y = (const g3__added *)b;
    int c = memcmp(x->p, y->p, G3__MIN(x->n, y->n));
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

// Copies the added tokens as they are matched, enters them among the pieces, and sorts them.
static bool g3__added_keep(g3__tok_file *f)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < f->n_added; i++) bytes += f->added[i].n;
    g3__added *kept = (g3__added *)g3__zone_alloc(f->keep, f->n_added, sizeof *kept, f->err);
    char *text = (char *)g3__zone_alloc(f->keep, bytes, 1, f->err);
    if (!kept || !text) return false;
    for (uint64_t i = 0; i < f->n_added; i++) {
        g3__added a = f->added[i];
        g3__entry *e = &f->entry[a.id], add = G3__ZERO;
        char *here = f->j.begin + (a.p - f->j.begin);                           // the file's text is ours to change
        memcpy(text, a.p, a.n);
        kept[i].p = text;
        kept[i].n = a.n;
        kept[i].id = a.id;
        text += a.n;
        add.at = (uint32_t)(here - f->j.begin);
        add.n = (uint16_t)g3__piece_print(here, a.n, &add.flags);
        g3__str name = g3__str_make(kept[i].p, a.n);
        if (e->flags && (e->n != add.n || memcmp(f->j.begin + e->at, here, add.n) || (e->flags & G3__PIECE_SPACED) != (add.flags & G3__PIECE_SPACED)))
            return g3__tok_fail(f, G3_ERR_FORMAT, "the added token \"%.*s\" has the id %d of another piece", G3__S(name), a.id);
        if (!e->flags) *e = add;
        e->flags |= (uint8_t)(G3__PIECE_ADDED | f->added_flags[i]);
    }
    if (f->n_added) qsort(kept, (size_t)f->n_added, sizeof *kept, g3__added_order);
    for (uint64_t i = 0; i < f->n_added; i++) {
        if (i && g3__added_order(&kept[i - 1], &kept[i]) == 0)
            return g3__tok_fail(f, G3_ERR_FORMAT, "the added token \"%.*s\" is listed twice", (int)G3__MIN(kept[i].n, 96u), kept[i].p);
        f->t->first[(unsigned char)kept[i].p[0] + 1]++;
    }
    for (int b = 0; b < 256; b++) f->t->first[b + 1] += f->t->first[b];
    f->t->added = kept;
    return true;
}

// ---- the vocabulary

static bool g3__vocab_read(g3__tok_file *f)                                     // the object "vocab": piece to id
{
    g3__json *j = &f->j;
    g3__str s;
    uint64_t id;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &s) && g3__json_u64(j, &id)) {
        if (id >= (uint64_t)f->rows || id >= (uint64_t)f->ids)
            return g3__tok_fail(f, G3_ERR_FORMAT, "the piece \"%.*s\" has id %llu, but the model has %d rows", G3__S(s), (unsigned long long)id, f->rows);
        if (s.n > G3__MAX_PIECE) return g3__tok_fail(f, G3_ERR_FORMAT, "a piece is longer than 65535 bytes");
        g3__entry *e = &f->entry[id];
        if (e->flags) return g3__tok_fail(f, G3_ERR_FORMAT, "\"%.*s\" has id %llu, which another piece has too", G3__S(s), (unsigned long long)id);
        e->flags = G3__PIECE_VOCAB;
        e->at = (uint32_t)(s.p - j->begin);
        e->n = (uint16_t)g3__piece_print(j->begin + e->at, s.n, &e->flags);
    }
    return !j->failed;
}

// A section of text may be cut before an ASCII byte y after byte x if no piece holds x before y: no token reaches across.
static bool g3__tok_cut(const g3__tok *t, const char *p)                        // between p[-1] and p[0]
{
    unsigned char x = (unsigned char)p[-1], y = (unsigned char)p[0];
    return y < 0x80 && !(t->joined[x][y >> 3] >> (y & 7) & 1);
}

static void g3__joined_note(g3__tok *t, const char *p, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        unsigned char x = (unsigned char)p[i - 1], y = (unsigned char)p[i];
        if (y < 0x80) t->joined[x][y >> 3] |= (uint8_t)(1u << (y & 7));
    }
}

// What a byte of raw text may stand for: 0x81 may end a U+2581, which is kept as a space; any byte from 0x80 may be
// invalid and become U+FFFD, which ends in 0xBD. Without all byte tokens runs of <unk> fuse: then nothing is cut.
static void g3__joined_finish(g3__tok *t)
{
    bool all = true;
    for (int b = 0; b < 256; b++) all = all && t->byte_id[b] >= 0;
    if (!all) { memset(t->joined, 0xFF, sizeof t->joined); return; }
    for (int k = 0; k < 16; k++) {
        t->joined[0x81][k] |= t->joined[0x20][k];
        for (int x = 0x80; x < 256; x++) t->joined[x][k] |= t->joined[0xBD][k];
    }
}

static bool g3__vocab_enter(g3__tok_file *f, int id)                            // one piece into index, byte table and joined
{
    g3__tok *t = f->t;
    g3__str s = g3__str_make(t->text + t->at[id], t->at[id + 1] - t->at[id]);
    uint8_t flags = t->flags[id];
    int *byte = flags & G3__PIECE_BYTE ? &t->byte_id[(unsigned char)s.p[0]] : NULL;
    g3__joined_note(t, s.p, s.n);
    if (byte) {
        if (*byte >= 0) return g3__tok_fail(f, G3_ERR_FORMAT, "the byte token of id %d is there twice", id);
        *byte = id;
        return true;
    }
    if (!(flags & G3__PIECE_VOCAB)) {
        int other = g3__tok_lookup(t, s);
        if (other < 0 || flags & G3__PIECE_SPACED) return true;
        return g3__tok_fail(f, G3_ERR_FORMAT, "the added token \"%.*s\" has id %d, in the vocabulary it has %d", G3__S(s), id, other);
    }
    if (!s.n || flags & G3__PIECE_SPACED) return true;
    if (!g3__tok_index(t, id)) return g3__tok_fail(f, G3_ERR_FORMAT, "the piece \"%.*s\" is listed twice", G3__S(s));
    if (s.n == 1 && (unsigned char)s.p[0] < 0x80) t->ascii_id[(unsigned char)s.p[0]] = id;
    return true;
}

static bool g3__vocab_keep(g3__tok_file *f)                                     // from the entries to the tables of g3__tok
{
    g3__tok *t = f->t;
    uint64_t bytes = 0, slots = 16, n = 0, indexed = 0;
    for (int id = 0; id < f->ids; id++) {
        bool index = (f->entry[id].flags & (G3__PIECE_VOCAB | G3__PIECE_BYTE | G3__PIECE_SPACED)) == G3__PIECE_VOCAB;
        bytes += f->entry[id].n;
        indexed += index;
        if (f->entry[id].flags) n = (uint64_t)id + 1;
        if (index) t->longest = G3__MAX(t->longest, f->entry[id].n);
    }
    if (bytes > UINT32_MAX) return g3__tok_fail(f, G3_ERR_MODEL, "its pieces hold more than 4 GB");
    while (slots < 2 * indexed) slots *= 2;
    char *text = (char *)g3__zone_alloc(f->keep, bytes, 1, f->err);
    uint32_t *at = (uint32_t *)g3__zone_alloc(f->keep, n + 1, sizeof *at, f->err);
    uint8_t *flags = (uint8_t *)g3__zone_alloc(f->keep, n, 1, f->err);
    t->rank = (uint32_t *)g3__zone_alloc(f->keep, n, sizeof *t->rank, f->err);
    t->cuts = (uint32_t *)g3__zone_alloc(f->keep, n, sizeof *t->cuts, f->err);
    t->slot = (uint32_t *)g3__zone_alloc(f->keep, slots, sizeof *t->slot, f->err);
    if (!text || !at || !flags || !t->rank || !t->cuts || !t->slot) return false;
    t->n = (int)n;
    t->slot_mask = (uint32_t)slots - 1;
    t->text = text;
    t->at = at;
    t->flags = flags;
    for (uint64_t id = 0; id < n; id++) {
        const g3__entry *e = &f->entry[id];
        if (e->n) memcpy(text + at[id], f->j.begin + e->at, e->n);
        at[id + 1] = at[id] + e->n;
        flags[id] = e->flags;
    }
    for (int id = 0; id < t->n; id++)
        if (flags[id] & G3__PIECE_VOCAB && !g3__vocab_enter(f, id)) return false;
    for (int id = 0; id < t->n; id++)
        if (flags[id] && !(flags[id] & G3__PIECE_VOCAB) && !g3__vocab_enter(f, id)) return false;
    g3__joined_finish(t);
    return true;
}

// ---- merges

typedef struct g3__merges {            // where the walk through the list stands
    g3__tok_file *f;
    uint32_t place, last;              // rank of the next merge; the cut before it
    int id;                            // the piece it made, -1: none yet
    bool run;                          // it was in the run of that piece
} g3__merges;

static uint32_t g3__characters(const char *p, size_t n)
{
    uint32_t k = 0;
    for (size_t i = 0; i < n; i++) k += ((unsigned char)p[i] & 0xC0) != 0x80;
    return k;
}

static bool g3__merge_odd(g3__merges *m, uint32_t id, uint32_t cut)             // a merge that does not fit into rank and cuts
{
    g3__tok_file *f = m->f;
    if (!f->odds || f->odds->n == (uint32_t)G3__COUNT(f->odds->item)) {
        g3__odds *more = (g3__odds *)g3__zone_alloc(f->temp, 1, sizeof *more, f->err);
        if (!more) return false;
        more->next = f->odds;
        f->odds = more;
    }
    g3__odd *o = &f->odds->item[f->odds->n++];
    o->id = id;
    o->cut = cut;
    o->rank = m->place;
    f->t->n_odd++;
    f->t->flags[id] |= G3__PIECE_ODD;
    return true;
}

// Piece id is made of its first `cut` bytes and the rest. Both must be pieces that merging can meet.
static bool g3__merge_add(g3__merges *m, int id, uint32_t cut)
{
    g3__tok *t = m->f->t;
    const char *p = t->text + t->at[id];
    uint32_t n = t->at[id + 1] - t->at[id], c = g3__characters(p, cut) - 1;
    g3__str left = g3__str_make(p, cut), right = g3__str_make(p + cut, n - cut);
    if (g3__tok_lookup(t, left) < 0 || g3__tok_lookup(t, right) < 0)
        return g3__tok_fail(m->f, G3_ERR_FORMAT, "merge %u joins \"%.*s\" and \"%.*s\", which are not both in the vocabulary", m->place, G3__S(left), G3__S(right));
    bool starts = !t->cuts[id] && !(t->flags[id] & G3__PIECE_ODD) && c < 32, goes_on = m->run && m->id == id && c < m->last;
    m->run = starts || goes_on;
    if (starts) t->rank[id] = m->place;
    if (m->run) t->cuts[id] |= (uint32_t)1 << c;
    else if (!g3__merge_odd(m, (uint32_t)id, cut)) return false;
    m->id = id;
    m->last = c;
    m->place++;
    return true;
}

// Bytes of `piece` that stand spelled at *p, where a quote must end them; 0 if they do not, or if JSON escapes may be involved.
static size_t g3__merge_spelled(char **p, const char *end, g3__str piece)
{
    size_t i = 0;
    char *q = *p;
    for (; i < piece.n && q < end && *q != '"'; i++) {
        unsigned char c = (unsigned char)piece.p[i];
        if (c == ' ' && end - q > 2 && memcmp(q, "\xE2\x96\x81", 3) == 0) q += 3;
        else if (c > ' ' && c != '\\' && c == (unsigned char)*q) q++;
        else return 0;
    }
    if (q >= end || *q != '"') return 0;
    *p = q + 1;
    return i;
}

static char *g3__merge_gap(char *p, const char *end, char want)                 // past white space and `want`; NULL: something else is there
{
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) {
        p++;
        while (end - p >= 8 && memcmp(p, "        ", 8) == 0) p += 8;
    }
    return p < end && *p == want ? p + 1 : NULL;
}

// Takes ["left","right"] if left and right together spell piece id; else leaves the cursor alone. The list goes through
// the pieces in the order of their ids, so that this way nearly all of it is compared and nothing looked up.
static bool g3__merge_expect(g3__json *j, g3__str piece, uint32_t *cut)
{
    char *p = j->p;
    const char *end = j->end;
    if (!(p = g3__merge_gap(p, end, '[')) || !(p = g3__merge_gap(p, end, '"'))) return false;
    size_t n = g3__merge_spelled(&p, end, piece);
    if (!n || n == piece.n || !(p = g3__merge_gap(p, end, ',')) || !(p = g3__merge_gap(p, end, '"'))) return false;
    if (g3__merge_spelled(&p, end, g3__str_skip(piece, n)) != piece.n - n || !(p = g3__merge_gap(p, end, ']'))) return false;
    j->p = p;
    *cut = (uint32_t)n;
    return true;
}

// The piece, if the cursor is at a merge of the last piece or of the one after it; -1.
static int g3__merge_next(g3__merges *m, uint32_t *cut)
{
    const g3__tok *t = m->f->t;
    for (int id = m->id; id >= 0 && id <= m->id + 1 && id < t->n; id++) {
        g3__str piece = g3__str_make(t->text + t->at[id], t->at[id + 1] - t->at[id]);
        bool plain = (t->flags[id] & (G3__PIECE_VOCAB | G3__PIECE_BYTE | G3__PIECE_SPACED)) == G3__PIECE_VOCAB;
        if (plain && g3__merge_expect(&m->f->j, piece, cut)) return id;
    }
    return -1;
}

static bool g3__merge_read(g3__tok_file *f, g3__str *left, g3__str *right)      // ["a","b"] or "a b"
{
    g3__json *j = &f->j;
    if (g3__json_peek(j) == '"') {
        if (!g3__json_string(j, left)) return false;
        const char *gap = left->n ? (const char *)memchr(left->p, ' ', left->n) : NULL;
        if (!gap) return g3__tok_fail(f, G3_ERR_FORMAT, "a merge holds no space between its two pieces");
        *right = g3__str_skip(*left, (size_t)(gap - left->p) + 1);
        left->n = (size_t)(gap - left->p);
        if (right->n && memchr(right->p, ' ', right->n)) return g3__tok_fail(f, G3_ERR_FORMAT, "a merge of more than two pieces");
        return true;
    }
    int n = 0;
    g3__str s;
    if (!g3__json_array(j)) return false;
    while (g3__json_item(j)) {
        if (!g3__json_string(j, &s)) return false;
        if (n++ == 0) *left = s;
        else *right = s;
    }
    return !j->failed && (n == 2 || g3__tok_fail(f, G3_ERR_FORMAT, "a merge is not of two pieces"));
}

// Any merge: both parts are put side by side, in their printed form, where they stand in the file, and looked up.
static bool g3__merge_any(g3__merges *m)
{
    g3__tok_file *f = m->f;
    g3__str left = G3__ZERO, right = G3__ZERO;
    uint8_t flags = 0;
    if (!g3__merge_read(f, &left, &right)) return false;
    char *p = f->j.begin + (left.p - f->j.begin), *q = f->j.begin + (right.p - f->j.begin);
    if (!left.n || !right.n) return g3__tok_fail(f, G3_ERR_FORMAT, "a merge with an empty piece");
    size_t a = g3__piece_print(p, left.n, &flags), b = g3__piece_print(q, right.n, &flags);
    if (flags & G3__PIECE_BYTE) return g3__tok_odd_value(f, "a merge", "joins byte tokens");
    memmove(p + a, q, b);
    if (flags & G3__PIECE_SPACED) { m->place++; return true; }                  // no section holds a space: it counts and never applies
    g3__str made = g3__str_make(p, a + b);
    int id = g3__tok_lookup(f->t, made);
    if (id < 0) return g3__tok_fail(f, G3_ERR_FORMAT, "merge %u makes \"%.*s\", which is not in the vocabulary", m->place, G3__S(made));
    return g3__merge_add(m, id, (uint32_t)a);
}

static int g3__odd_order(const void *a, const void *b)
{
    const g3__odd *x = (const g3__odd *)a, *y = (const g3__odd *)b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    if (x->cut != y->cut) return x->cut < y->cut ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static bool g3__merges_read(g3__tok_file *f)                                    // the array "merges", after the vocabulary
{
    g3__merges m = G3__ZERO;
    m.f = f;
    m.id = -1;
    if (!g3__json_array(&f->j)) return false;
    while (g3__json_item(&f->j)) {
        if (m.place == UINT32_MAX - 1) return g3__tok_fail(f, G3_ERR_MODEL, "too many merges");
        uint32_t cut = 0;
        int id = g3__merge_next(&m, &cut);
        if (id >= 0 ? !g3__merge_add(&m, id, cut) : !g3__merge_any(&m)) return false;
    }
    if (f->j.failed) return false;
    g3__odd *odd = (g3__odd *)g3__zone_alloc(f->keep, f->t->n_odd, sizeof *odd, f->err);
    uint32_t n = 0;
    if (!odd) return false;
    for (const g3__odds *o = f->odds; o; o = o->next) {
        memcpy(odd + n, o->item, o->n * sizeof *odd);
        n += o->n;
    }
    if (n) qsort(odd, n, sizeof *odd, g3__odd_order);
    f->t->odd = odd;
    return true;
}

// ---- the file

// A part that another one must come before: read now if it may be, else skipped and read when the rest is done.
static bool g3__tok_later(g3__json *j, bool ready, g3__json *later, bool *waits)
{
    if (ready) return false;
    *later = *j;
    *waits = true;
    g3__json_skip(j);
    return true;
}

static bool g3__tok_vocab(g3__tok_file *f)
{
    if (f->has_vocab) return g3__tok_fail(f, G3_ERR_FORMAT, "two vocabularies");
    f->has_vocab = true;
    f->entry = (g3__entry *)g3__zone_alloc(f->temp, (uint64_t)f->ids, sizeof *f->entry, f->err);
    return f->entry && g3__vocab_read(f) && g3__added_keep(f) && g3__vocab_keep(f);
}

static bool g3__tok_merges(g3__tok_file *f)
{
    if (f->has_merges) return g3__tok_fail(f, G3_ERR_FORMAT, "two lists of merges");
    f->has_merges = true;
    return g3__merges_read(f);
}

static bool g3__tok_setting(g3__tok_file *f, g3__str key)                       // the small members of "model"
{
    g3__json *j = &f->j;
    g3__str s = G3__ZERO;
    bool yes = false;
    if (g3__json_null(j)) return true;
    if (g3__str_is(key, "type")) {
        f->has_type = true;
        return g3__json_string(j, &s) && (g3__str_is(s, "BPE") || g3__tok_odd_value(f, "model.type", "is not BPE"));
    }
    if (g3__str_is(key, "continuing_subword_prefix") || g3__str_is(key, "end_of_word_suffix"))
        return g3__json_string(j, &s) && (!s.n || g3__tok_odd_value(f, "model", "marks parts of words"));
    if (g3__str_is(key, "ignore_merges")) return g3__json_bool(j, &yes) && (!yes || g3__tok_odd_value(f, "model.ignore_merges", "is set"));
    if (g3__str_is(key, "fuse_unk")) return g3__json_bool(j, &f->t->fuse_unk);
    if (g3__str_is(key, "byte_fallback")) return g3__json_bool(j, &yes) && (yes || g3__tok_odd_value(f, "model.byte_fallback", "is off"));
    if (g3__str_is(key, "dropout")) { double p = 0; return g3__json_f64(j, &p) && (p <= 0 || g3__tok_odd_value(f, "model.dropout", "is set")); }
    return g3__json_skip(j);
}

static bool g3__tok_model(g3__tok_file *f)
{
    g3__json *j = &f->j, later, end;
    g3__str key, unk = G3__ZERO;
    bool waits = false;
    if (f->has_model) return g3__tok_fail(f, G3_ERR_FORMAT, "two models");
    f->has_model = true;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &key)) {
        bool ok = true;
        if (g3__str_is(key, "vocab")) ok = g3__tok_vocab(f);
        else if (g3__str_is(key, "merges")) ok = g3__tok_later(j, f->has_vocab, &later, &waits) || g3__tok_merges(f);
        else if (g3__str_is(key, "unk_token")) ok = g3__json_null(j) || g3__json_string(j, &unk);
        else ok = g3__tok_setting(f, key);
        if (!ok || j->failed) return false;
    }
    if (j->failed) return false;
    if (!f->has_vocab) return g3__tok_fail(f, G3_ERR_FORMAT, "the model has no \"vocab\"");
    if (!f->has_type) return g3__tok_odd_value(f, "model.type", "is absent");
    if (waits) {
        end = *j;
        *j = later;
        if (!g3__tok_merges(f)) return false;
        *j = end;
    }
    f->t->unk = g3__tok_lookup(f->t, unk);
    return true;
}

static bool g3__tok_normalizer(g3__tok_file *f)                                 // must be: every space becomes U+2581
{
    static const char want[] = "must replace every space by U+2581 and do no more";
    g3__json *j = &f->j;
    g3__str key, s = G3__ZERO;
    int right = 0;
    f->has_normalizer = true;
    if (g3__json_peek(j) != '{') return g3__tok_odd_value(f, "normalizer", want);
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &key)) {
        if (g3__str_is(key, "type")) right += g3__json_string(j, &s) && g3__str_is(s, "Replace");
        else if (g3__str_is(key, "content")) right += g3__json_string(j, &s) && g3__str_is(s, "\xE2\x96\x81");
        else if (g3__str_is(key, "pattern") && g3__json_peek(j) == '{') {
            g3__json_object(j);
            while (g3__json_key(j, &key)) right += g3__str_is(key, "String") && g3__json_string(j, &s) && g3__str_is(s, " ");
        }
        else return !j->failed && g3__tok_odd_value(f, "normalizer", want);
        if (j->failed) return false;
    }
    return !j->failed && (right == 3 || g3__tok_odd_value(f, "normalizer", want));
}

// A splitter at spaces finds none after the normaliser, so it does nothing; any other kind would.
static bool g3__tok_pre_tokenizer(g3__tok_file *f)
{
    g3__json *j = &f->j;
    g3__str key, s = G3__ZERO;
    int right = 0;
    if (g3__json_null(j)) return true;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &key)) {
        if (g3__str_is(key, "type")) right += g3__json_string(j, &s) && g3__str_is(s, "Split");
        else if (g3__str_is(key, "pattern") && g3__json_peek(j) == '{') {
            g3__json_object(j);
            while (g3__json_key(j, &key)) {
                if (g3__str_is(key, "String")) right += g3__json_string(j, &s) && g3__str_is(s, " ");
                else g3__json_skip(j);
            }
        }
        else g3__json_skip(j);
        if (j->failed) return false;
    }
    return !j->failed && (right == 2 || g3__tok_odd_value(f, "pre_tokenizer", "must be absent or split at spaces"));
}

static bool g3__tok_root(g3__tok_file *f)
{
    g3__json *j = &f->j, later;
    g3__str key;
    bool waits = false;
    if (!g3__json_object(j)) return false;
    while (g3__json_key(j, &key)) {
        bool ok;
        if (g3__str_is(key, "added_tokens")) ok = g3__added_all(f);
        else if (g3__str_is(key, "normalizer")) ok = g3__tok_normalizer(f);
        else if (g3__str_is(key, "pre_tokenizer")) ok = g3__tok_pre_tokenizer(f);
        else if (g3__str_is(key, "model")) ok = g3__tok_later(j, f->has_added, &later, &waits) || g3__tok_model(f);
        else ok = g3__json_skip(j);
        if (!ok || j->failed) return false;
    }
    if (!g3__json_end(j)) return false;
    if (waits) *j = later;
    if (waits && !g3__tok_model(f)) return false;
    if (!f->has_model) return g3__tok_fail(f, G3_ERR_FORMAT, "there is no \"model\" object");
    return f->has_normalizer || g3__tok_odd_value(f, "normalizer", "is absent");
}

static int64_t g3__tok_find(const g3__tok *t, const char *piece);

// The whole of tokenizer.json. `rows`: of the embedding table; a piece of the vocabulary at or above it is an error, an
// added token is not. `text` is changed and no longer needed afterwards; what stays lies in `keep`.
static bool g3__tok_load(g3__tok *t, char *text, size_t size, int rows, g3__zone *keep, g3__zone *temp, g3_error *err)
{
    g3__tok_file f = G3__ZERO;
    memset(t, 0, sizeof *t);
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    memset(t->ascii_id, 0xFF, sizeof t->ascii_id);
    t->bos = t->unk = -1;
    f.t = t;
    f.keep = keep;
    f.temp = temp;
    f.err = err;
    f.rows = rows;
    f.ids = G3__MIN(rows, (1 << G3__SLOT_BITS) - 1);
    if (size > UINT32_MAX) return g3__tok_fail(&f, G3_ERR_FORMAT, "more than 4 GB");
    g3__json_init(&f.j, text, size, "tokenizer.json", err);
    if (!g3__tok_root(&f)) return false;
    t->bos = (int)g3__tok_find(t, "<bos>");
    return true;
}

// ---- single tokens

static g3__str g3__tok_piece(const g3__tok *t, int id)                          // raw bytes as printed; p NULL: no such token
{
    if (id < 0 || id >= t->n || !t->flags[id]) return g3__str_make(NULL, 0);
    return g3__str_make(t->text + t->at[id], t->at[id + 1] - t->at[id]);
}

static bool g3__tok_special(const g3__tok *t, int id)
{
    return id >= 0 && id < t->n && (t->flags[id] & G3__PIECE_SPECIAL) != 0;
}

// Sorted added tokens [*lo, *hi) share their first d bytes; keeps those whose next byte is c.
static void g3__added_narrow(const g3__added *a, uint32_t *lo, uint32_t *hi, uint32_t d, unsigned char c)
{
    for (int upper = 0; upper < 2; upper++) {                                   // the first not below c, then the first above it
        uint32_t l = *lo, h = *hi;
        while (l < h) {
            uint32_t mid = l + (h - l) / 2;
            bool below = a[mid].n <= d || (unsigned char)a[mid].p[d] < c + (unsigned)upper;
            if (below) l = mid + 1;
            else h = mid;
        }
        if (upper) *hi = l;
        else *lo = l;
    }
}

static const g3__added *g3__added_longest(const g3__tok *t, const char *p, const char *end)   // that p begins with; NULL
{
    uint32_t lo = t->first[(unsigned char)*p], hi = t->first[(unsigned char)*p + 1];
    const g3__added *best = NULL;
    for (uint32_t d = 1; lo < hi; d++) {
        if (t->added[lo].n == d) best = &t->added[lo];
        if (p + d == end) break;
        g3__added_narrow(t->added, &lo, &hi, d, (unsigned char)p[d]);
    }
    return best;
}

static int64_t g3__tok_find(const g3__tok *t, const char *piece)                // spelled as in the file; -1: none
{
    char text[256];
    size_t n = strlen(piece);
    uint8_t flags = 0;
    const g3__added *a = n ? g3__added_longest(t, piece, piece + n) : NULL;
    if (a && a->n == n) return a->id;
    if (!n || n > sizeof text) return -1;
    memcpy(text, piece, n);
    n = g3__piece_print(text, n, &flags);
    if (flags & G3__PIECE_BYTE) return t->byte_id[(unsigned char)text[0]];
    return flags & G3__PIECE_SPACED ? -1 : g3__tok_lookup(t, g3__str_make(text, n));
}

// ---- UTF-8 that may be broken: each maximal invalid part counts as one U+FFFD (Unicode 3.9, as browsers and Python do)

static bool g3__utf8_begins(const unsigned char *s, int n)                      // n (1 to 4) bytes are a character or the start of one
{
    unsigned char lead = s[0], low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80, high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    if (lead >= 0x80 && (lead < 0xC2 || lead > 0xF4)) return false;
    if (n > (lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4)) return false;
    if (n > 1 && (s[1] < low || s[1] > high)) return false;
    for (int i = 2; i < n; i++)
        if ((s[i] & 0xC0) != 0x80) return false;
    return true;
}

static int g3__utf8_broken(const char *p, const char *end)                      // bytes of the invalid part at p, at least 1
{
    int n = 1;
    while (n < 4 && n < end - p && g3__utf8_begins((const unsigned char *)p, n + 1)) n++;
    return n;
}

typedef struct g3__utf8 { unsigned char tail[4]; int n; } g3__utf8;             // the start of a character that is not complete yet

static int g3__utf8_flush(g3__utf8 *u, char *out)                               // the end: an incomplete tail is one U+FFFD
{
    int n = u->n ? 3 : 0;
    if (n) memcpy(out, "\xEF\xBF\xBD", 3);
    u->n = 0;
    return n;
}

// The bytes of one token in, whole characters out: at most piece.n + 5 bytes when the piece is valid UTF-8 or a single
// byte, as g3__tok_piece gives them, and at most 3 * piece.n + 3 for any bytes.
static int g3__utf8_stream(g3__utf8 *u, g3__str piece, char *out)
{
    char *o = out;
    for (size_t i = 0; i < piece.n; i++) {
        u->tail[u->n++] = (unsigned char)piece.p[i];
        if (!g3__utf8_begins(u->tail, u->n)) {
            unsigned char last = u->tail[--u->n];
            bool again = u->n > 0;                                              // it ends the part before it and may begin the next one
            u->n = 1;
            o += g3__utf8_flush(u, o);
            if (again) { u->tail[u->n++] = last; if (!g3__utf8_begins(u->tail, 1)) o += g3__utf8_flush(u, o); }
        }
        if (u->n && g3__utf8_size((const char *)u->tail, (const char *)u->tail + u->n)) {
            memcpy(o, u->tail, (size_t)u->n);
            o += u->n;
            u->n = 0;
        }
    }
    return (int)(o - out);
}

// ---- merging. A stretch of text is a list of symbols; a heap holds the merges that are possible, lowest rank first and
// leftmost among equals. A merge is taken if it still is what its left symbol would do; what it changes is entered anew.

enum { G3__BPE_LOCAL = 1000, G3__BPE_PER_SYMBOL = 24 + 16 + 4 };                // symbols on the stack; bytes of scratch for each: itself, two in the heap, text
static const uint32_t g3__bpe_none = UINT32_MAX;

// at: where its text begins; rank and made: of the merge with the next symbol
typedef struct g3__symbol { uint32_t at, prev, next, rank; int id, made; } g3__symbol;

typedef struct g3__bpe {
    const g3__tok *t;
    g3__symbol *symbol;                // [room]
    uint64_t *heap;                    // [2 * room] rank << 32 | symbol
    char *text;                        // [4 * room]
    uint64_t room, n, used, heaped;    // n: symbols, counted on beyond room; used: bytes of text
} g3__bpe;

static uint32_t g3__bpe_odd_rank(const g3__tok *t, uint32_t id, uint32_t cut)   // the last of equal ones
{
    uint32_t lo = 0, hi = t->n_odd;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const g3__odd *o = &t->odd[mid];
        if (o->id < id || (o->id == id && o->cut <= cut)) lo = mid + 1;
        else hi = mid;
    }
    return lo && t->odd[lo - 1].id == id && t->odd[lo - 1].cut == cut ? t->odd[lo - 1].rank : g3__bpe_none;
}

static uint32_t g3__bits_set(uint32_t v)
{
    v = v - (v >> 1 & 0x55555555u);
    v = (v & 0x33333333u) + (v >> 2 & 0x33333333u);
    return ((v + (v >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
}

// The merge whose left part is the first `cut` bytes of s. Its place: of the piece's first cut, plus the listed cuts right of this one.
static uint32_t g3__bpe_rank(const g3__tok *t, g3__str s, uint32_t cut, int *made)
{
    int id = g3__tok_lookup(t, s);
    *made = id;
    if (id < 0) return g3__bpe_none;
    if (t->flags[id] & G3__PIECE_ODD) {
        uint32_t rank = g3__bpe_odd_rank(t, (uint32_t)id, cut);
        if (rank != g3__bpe_none) return rank;
    }
    if (!t->cuts[id]) return g3__bpe_none;
    uint32_t c = g3__characters(s.p, cut) - 1;
    if (c > 31 || !(t->cuts[id] >> c & 1)) return g3__bpe_none;
    return t->rank[id] + g3__bits_set(t->cuts[id] >> c >> 1);
}

static void g3__bpe_push(g3__bpe *b, uint64_t key)
{
    uint64_t i = b->heaped++, up;
    for (; i && b->heap[up = (i - 1) / 2] > key; i = up) b->heap[i] = b->heap[up];
    b->heap[i] = key;
}

static uint64_t g3__bpe_pop(g3__bpe *b)
{
    uint64_t top = b->heap[0], last = b->heap[--b->heaped], i = 0, k;
    for (; (k = 2 * i + 1) < b->heaped; i = k) {
        if (k + 1 < b->heaped && b->heap[k + 1] < b->heap[k]) k++;
        if (b->heap[k] >= last) break;
        b->heap[i] = b->heap[k];
    }
    b->heap[i] = last;
    return top;
}

static void g3__bpe_pair(g3__bpe *b, uint32_t i)                                // what symbol i and its right neighbour would make
{
    g3__symbol *s = &b->symbol[i];
    s->rank = g3__bpe_none;
    if (s->next == g3__bpe_none) return;
    uint32_t middle = b->symbol[s->next].at, after = b->symbol[s->next].next;
    uint64_t end = after == g3__bpe_none ? b->used : b->symbol[after].at;
    s->rank = g3__bpe_rank(b->t, g3__str_make(b->text + s->at, (size_t)(end - s->at)), middle - s->at, &s->made);
    if (s->rank != g3__bpe_none) g3__bpe_push(b, (uint64_t)s->rank << 32 | i);
}

static void g3__bpe_merge(g3__bpe *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        b->symbol[i].prev = i - 1;                                              // 0 - 1 is g3__bpe_none
        b->symbol[i].next = i + 1 < b->n ? i + 1 : g3__bpe_none;
    }
    b->heaped = 0;
    for (uint32_t i = 0; i < b->n; i++) g3__bpe_pair(b, i);
    while (b->heaped) {
        uint64_t key = g3__bpe_pop(b);
        uint32_t i = (uint32_t)key;
        g3__symbol *s = &b->symbol[i];
        if (s->rank != key >> 32) continue;                                     // a neighbour was quicker
        g3__symbol *right = &b->symbol[s->next];
        s->id = s->made;
        s->next = right->next;
        right->rank = g3__bpe_none;
        if (s->next != g3__bpe_none) b->symbol[s->next].prev = i;
        g3__bpe_pair(b, i);
        if (s->prev != g3__bpe_none) g3__bpe_pair(b, s->prev);
    }
}

// ---- from text to symbols

static void g3__bpe_put(g3__bpe *b, int id, const char *p, size_t n)            // one symbol, or only counted when there is no room
{
    if (b->n < b->room) {
        b->symbol[b->n].at = (uint32_t)b->used;
        b->symbol[b->n].id = id;
        memcpy(b->text + b->used, p, n);
        b->used += n;
    }
    b->n++;
}

// A character the vocabulary lacks: its bytes as byte tokens; without those <unk>, or nothing. Their text is a byte that
// no piece holds, so that they never merge.
static void g3__bpe_unknown(g3__bpe *b, const char *p, int n, bool *unk)
{
    const g3__tok *t = b->t;
    bool all = true, fuse = *unk && t->fuse_unk;
    for (int i = 0; i < n; i++) all = all && t->byte_id[(unsigned char)p[i]] >= 0;
    for (int i = 0; i < n && all; i++) g3__bpe_put(b, t->byte_id[(unsigned char)p[i]], "\xFF", 1);
    *unk = !all && t->unk >= 0;
    if (*unk && !fuse) g3__bpe_put(b, t->unk, "\xFF", 1);
}

// Symbols from p up to where the text may be cut, at the latest `end`; returns that place.
static const char *g3__bpe_fill(g3__bpe *b, const char *p, const char *end)
{
    const char *begin = p;
    bool unk = false;
    b->n = b->used = 0;
    while (p < end && (p == begin || !g3__tok_cut(b->t, p))) {
        int n = g3__utf8_size(p, end), id;
        const char *s = n ? p : "\xEF\xBF\xBD";
        if (n == 3 && memcmp(p, "\xE2\x96\x81", 3) == 0) s = " ";
        p += n ? n : g3__utf8_broken(p, end);
        n = s[0] == ' ' ? 1 : n ? n : 3;
        id = n == 1 ? b->t->ascii_id[(unsigned char)s[0]] : g3__tok_lookup(b->t, g3__str_make(s, (size_t)n));
        if (id < 0) { g3__bpe_unknown(b, s[0] == ' ' ? "\xE2\x96\x81" : s, s[0] == ' ' ? 3 : n, &unk); continue; }
        g3__bpe_put(b, id, s, (size_t)n);
        unk = false;
    }
    return p;
}

typedef struct g3__ids { int *id; int64_t cap, n; } g3__ids;                    // n goes on beyond cap; nothing is written there

static void g3__ids_put(g3__ids *out, int id)
{
    if (out->n < out->cap) out->id[out->n] = id;
    out->n++;
}

static void g3__bpe_finish(g3__bpe *b, g3__ids *out)
{
    g3__bpe_merge(b);
    for (uint32_t i = 0; b->n && i != g3__bpe_none; i = b->symbol[i].next) g3__ids_put(out, b->symbol[i].id);
}

static bool g3__bpe_long(const g3__tok *t, const g3_allocator *a, const char *p, const char *end, uint64_t n, g3__ids *out, g3_error *err)
{
    g3__bpe b = G3__ZERO;                                                       // a stretch of n symbols: more than the stack holds
    uint64_t bytes = n * G3__BPE_PER_SYMBOL;
    char *scratch = NULL;
    if (n < UINT32_MAX / 4 && bytes <= SIZE_MAX) scratch = (char *)a->alloc_fn(a->user, (size_t)bytes, G3__ALIGN);
    if (!scratch) {
        g3__fail(err, G3_ERR_MEMORY, "the allocator has no %llu bytes to tokenise a stretch of %llu characters", (unsigned long long)bytes, (unsigned long long)n);
        return false;
    }
    b.t = t;
    b.room = n;
    b.heap = (uint64_t *)(void *)scratch;
    b.symbol = (g3__symbol *)(void *)(scratch + 16 * n);
    b.text = scratch + 40 * n;
    g3__bpe_fill(&b, p, end);
    g3__bpe_finish(&b, out);
    a->free_fn(a->user, scratch, (size_t)bytes);
    return true;
}

// The text between two added tokens: one byte-pair word in principle, merged stretch by stretch as no merge crosses a cut.
static bool g3__tok_section(const g3__tok *t, const g3_allocator *a, const char *p, const char *end, g3__ids *out, g3_error *err)
{
    g3__symbol symbol[G3__BPE_LOCAL];
    uint64_t heap[2 * G3__BPE_LOCAL];
    char text[4 * G3__BPE_LOCAL];
    g3__bpe b = G3__ZERO;
    b.t = t;
    b.symbol = symbol;
    b.heap = heap;
    b.text = text;
    b.room = G3__BPE_LOCAL;
    while (p < end) {
        const char *next = g3__bpe_fill(&b, p, end);
        if (b.n <= b.room) g3__bpe_finish(&b, out);
        else if (!g3__bpe_long(t, a, p, next, b.n, out, err)) return false;
        p = next;
    }
    return true;
}

// ---- encoding: the count of ids, of which the first `cap` are written; or a g3_result below 0. Text of ordinary words
// allocates nothing; a longer stretch without a cut takes G3__BPE_PER_SYMBOL bytes for each of its characters.
static int64_t g3__tok_encode(const g3__tok *t, const g3_allocator *a, const char *text, size_t size, int flags, int *ids, int64_t cap, g3_error *err)
{
    const char *end = text + size, *section = text, *p = text;
    g3__ids out;
    out.id = ids;
    out.cap = cap;
    out.n = 0;
    if (flags & G3_TOKENIZE_BOS && t->bos < 0) return g3__fail(err, G3_ERR_MODEL, "tokenizer.json has no <bos>, so none can be put in front");
    if (flags & G3_TOKENIZE_BOS) g3__ids_put(&out, t->bos);
    while (p < end) {
        const g3__added *hit = t->first[(unsigned char)*p] < t->first[(unsigned char)*p + 1] ? g3__added_longest(t, p, end) : NULL;
        bool literal = hit && !(flags & G3_TOKENIZE_SPECIAL) && t->flags[hit->id] & G3__PIECE_SPECIAL;
        if (!hit) { p++; continue; }
        if (literal) { p += hit->n; continue; }                                 // control tokens in plain text are text
        if (!g3__tok_section(t, a, section, p, &out, err)) return G3_ERR_MEMORY;
        g3__ids_put(&out, hit->id);
        section = p += hit->n;
    }
    return g3__tok_section(t, a, section, end, &out, err) ? out.n : (int64_t)G3_ERR_MEMORY;
}
// ------------------------------------------------------------------------------------------------------------------
// >>model
// Owns the step from files to a Gemma 3: config.json in all its styles becomes shapes, tensors under all their names become
// the weights of layers. Everything is checked against the one family this header runs. No weight is read here.

// ---- config.json

typedef struct g3__vision_config {
    int layers, dim, ffn, heads, image, patch;           // image, patch: pixels a side; three channels
    int tokens;                                          // soft tokens of one picture
    float eps;
} g3__vision_config;

typedef struct g3__config {
    int layers, dim, ffn, heads, kv_heads, head_dim, vocab, window, max_context;    // vocab: at first config.json's, then the rows of the table
    float eps, attn_scale, embed_scale;                  // attn_scale: query_pre_attn_scalar^-0.5; embed_scale: sqrt(dim) rounded to bf16
    float theta_full, factor_full, theta_sliding, factor_sliding;
    bool tied;                                           // tie_word_embeddings
    bool *full;                                          // [layers] global attention, else a sliding window
    bool multimodal, has_vision;                         // the architecture, and whether a vision_config describes a tower
    int boi, eoi, image_token;                           // ids that frame and stand for a picture
    g3__vision_config vision;
    int stop[16], n_stop;                                // eos_token_id
    int screen;                                          // rows of the head's int8 copy; 0: none
    bool card;                                           // it runs on a card: arenas are there, what only the host needs is laid apart
} g3__config;

// Where the settings are read from: inside text_config first, then at the top level.
typedef struct g3__settings { g3__value inner, top; const char *what; g3_error *err; bool failed; } g3__settings;

static bool g3__set_fail(g3__settings *s, const char *key, const char *why)
{
    if (!s->failed) g3__fail(s->err, G3_ERR_MODEL, "%s: %s: %s", s->what, key, why);
    s->failed = true;
    return false;
}

static void g3__set_only(g3__settings *s, const char *key, g3__str found, const char *legal)    // a name that is not among the legal ones
{
    char why[192];
    snprintf(why, sizeof why, "\"%.*s\" is not supported, only %s", (int)G3__MIN(found.n, (size_t)40), found.p, legal);
    g3__set_fail(s, key, why);
}

static bool g3__set_find(g3__settings *s, const char *key, g3__value *v)     // false: absent, or the file is at fault
{
    v->p = NULL;
    if (s->failed) return false;
    if (!g3__json_get(s->inner, s->what, key, v, s->err)) s->failed = true;
    if (!s->failed && !v->p && !g3__json_get(s->top, s->what, key, v, s->err)) s->failed = true;
    return !s->failed && v->p;
}

static double g3__set_number(g3__settings *s, const char *key, double otherwise, double low, double high)
{
    g3__value v;
    g3__json j;
    double x;
    char why[96];
    if (!g3__set_find(s, key, &v)) return otherwise;
    g3__json_init(&j, v.p, v.n, s->what, NULL);
    if (!g3__json_f64(&j, &x)) { g3__set_fail(s, key, "expected a number"); return otherwise; }
    if (x >= low && x <= high) return x;
    snprintf(why, sizeof why, "%g is outside %g to %g", x, low, high);
    g3__set_fail(s, key, why);
    return otherwise;
}

static int g3__set_int(g3__settings *s, const char *key, int otherwise, int low, int high)       // 10000 or 10000.0
{
    double x = g3__set_number(s, key, otherwise, low, high);
    if (x != floor(x)) g3__set_fail(s, key, "expected a whole number");
    return s->failed ? otherwise : (int)x;
}

static bool g3__set_bool(g3__settings *s, const char *key, bool otherwise)
{
    g3__value v;
    g3__json j;
    bool b;
    if (!g3__set_find(s, key, &v)) return otherwise;
    g3__json_init(&j, v.p, v.n, s->what, NULL);
    if (!g3__json_bool(&j, &b)) g3__set_fail(s, key, "expected true or false");
    return !s->failed && b;
}

static bool g3__set_string(g3__settings *s, const char *key, g3__str *out)   // false: absent
{
    g3__value v;
    g3__json j;
    if (!g3__set_find(s, key, &v)) return false;
    g3__json_init(&j, v.p, v.n, s->what, NULL);
    j.dry = true;
    return g3__json_string(&j, out) || g3__set_fail(s, key, "expected a string");
}

static g3__settings g3__set_object(g3__settings *s, const char *key)          // a nested object as settings of its own; inner.p NULL: absent
{
    g3__settings in = *s;
    in.top.p = NULL;
    in.inner.p = NULL;
    if (g3__set_find(s, key, &in.inner) && in.inner.p[0] != '{') { g3__set_fail(s, key, "expected an object"); in.inner.p = NULL; }
    in.failed = s->failed;
    return in;
}

static void g3__set_ids(g3__settings *s, const char *key, int *ids, int *n, int cap)             // a number or a list of numbers, added to ids
{
    g3__value v;
    g3__json j;
    uint64_t id;
    if (!g3__set_find(s, key, &v)) return;
    g3__json_init(&j, v.p, v.n, s->what, NULL);
    bool list = g3__json_peek(&j) == '[';
    if (list) g3__json_array(&j);
    while (!j.failed && (!list || g3__json_item(&j))) {
        if (!g3__json_u64(&j, &id) || id > INT_MAX) { g3__set_fail(s, key, "expected a token id or a list of them"); return; }
        if (*n < cap) ids[(*n)++] = (int)id;
        if (!list) return;
    }
    if (j.failed) g3__set_fail(s, key, "expected a token id or a list of them");
}

static void g3__set_refuse(g3__settings *s)              // what no Gemma 3 has
{
    g3__value v;
    g3__str a;
    if (g3__set_bool(s, "use_bidirectional_attention", false)) g3__set_fail(s, "use_bidirectional_attention", "embedding models without a causal mask are not supported");
    if (g3__set_bool(s, "attention_bias", false)) g3__set_fail(s, "attention_bias", "attention with biases is not supported");
    if (g3__set_find(s, "attn_logit_softcapping", &v)) g3__set_fail(s, "attn_logit_softcapping", "soft caps are not supported (no Gemma 3 has them)");
    if (g3__set_find(s, "final_logit_softcapping", &v)) g3__set_fail(s, "final_logit_softcapping", "soft caps are not supported (no Gemma 3 has them)");
    if ((g3__set_string(s, "hidden_activation", &a) || g3__set_string(s, "hidden_act", &a)) && !g3__str_is(a, "gelu_pytorch_tanh"))
        g3__set_only(s, "hidden_activation", a, "gelu_pytorch_tanh is");
}

static float g3__rope_factor(g3__settings *rope)         // of one rope block; "type" is the older spelling of "rope_type"
{
    g3__str kind;
    if (!g3__set_string(rope, "rope_type", &kind) && !g3__set_string(rope, "type", &kind)) return 1;
    if (g3__str_is(kind, "default")) return 1;
    if (!g3__str_is(kind, "linear")) { g3__set_only(rope, "rope_type", kind, "\"default\" and \"linear\" are"); return 1; }
    g3__value v;
    if (!g3__set_find(rope, "factor", &v)) { g3__set_fail(rope, "factor", "linear rope scaling needs it"); return 1; }
    return (float)g3__set_number(rope, "factor", 1, 1e-6, 1e6);
}

// Old files: rope_theta, rope_local_base_freq, rope_scaling (for the full layers). New ones: rope_parameters by kind of layer.
// Where both stand, rope_scaling's keys win over full_attention's; the sliding layers never inherit anything from it.
static void g3__config_rope(g3__config *c, g3__settings *s)
{
    g3__settings all = g3__set_object(s, "rope_parameters"), full = g3__set_object(&all, "full_attention"), slide = g3__set_object(&all, "sliding_attention");
    g3__settings old = g3__set_object(s, "rope_scaling");
    g3__value v;
    c->theta_full = (float)g3__set_number(s, "rope_theta", 1e6, 1e-3, 1e12);
    c->theta_sliding = (float)g3__set_number(s, "rope_local_base_freq", 1e4, 1e-3, 1e12);
    c->theta_full = (float)g3__set_number(&full, "rope_theta", c->theta_full, 1e-3, 1e12);
    c->theta_sliding = (float)g3__set_number(&slide, "rope_theta", c->theta_sliding, 1e-3, 1e12);
    c->factor_sliding = g3__rope_factor(&slide);
    if (g3__set_find(&old, "rope_type", &v) || g3__set_find(&old, "type", &v)) c->factor_full = g3__rope_factor(&old);
    else c->factor_full = g3__rope_factor(&full);
    s->failed = s->failed || all.failed || full.failed || slide.failed || old.failed;
}

static void g3__config_layers(g3__config *c, g3__settings *s)                 // layer_types, else every p-th layer is full
{
    g3__value v;
    g3__json j;
    g3__str kind;
    int n = 0, p = g3__set_int(s, "sliding_window_pattern", 6, 1, 1 << 20);
    if (!g3__set_find(s, "layer_types", &v)) {
        for (int i = 0; i < c->layers && !s->failed; i++) c->full[i] = (i + 1) % p == 0;
        return;
    }
    g3__json_init(&j, v.p, v.n, s->what, NULL);
    j.dry = true;
    if (!g3__json_array(&j)) g3__set_fail(s, "layer_types", "expected a list");
    for (; g3__json_item(&j); n++) {
        bool ok = g3__json_string(&j, &kind), full = ok && g3__str_is(kind, "full_attention");
        if (!ok || (!full && !g3__str_is(kind, "sliding_attention"))) { g3__set_only(s, "layer_types", ok ? kind : g3__str_c("?"), "\"full_attention\" and \"sliding_attention\" are"); return; }
        if (n < c->layers) c->full[n] = full;
    }
    if (n != c->layers) g3__set_fail(s, "layer_types", "its length is not num_hidden_layers");
}

enum { G3__GRID = 256 };               // with the limit of intermediate_size this keeps all counts of the tower within an int

static void g3__config_vision(g3__config *c, g3__settings *s)                 // defaults: SiglipVisionConfig
{
    g3__settings v = g3__set_object(s, "vision_config");
    g3__vision_config *o = &c->vision;
    g3__str act;
    s->failed = s->failed || v.failed;
    if (!v.inner.p) return;
    c->has_vision = true;
    o->dim = g3__set_int(&v, "hidden_size", 768, 1, 1 << 16);
    o->ffn = g3__set_int(&v, "intermediate_size", 3072, 1, 1 << 18);
    o->layers = g3__set_int(&v, "num_hidden_layers", 12, 1, 256);
    o->heads = g3__set_int(&v, "num_attention_heads", 12, 1, 256);
    o->image = g3__set_int(&v, "image_size", 224, 1, 8192);
    o->patch = g3__set_int(&v, "patch_size", 16, 1, 256);
    o->eps = (float)g3__set_number(&v, "layer_norm_eps", 1e-6, 1e-30, 1);
    o->tokens = g3__set_int(s, "mm_tokens_per_image", 256, 1, 1 << 16);
    if (g3__set_int(&v, "num_channels", 3, 1, 64) != 3) g3__set_fail(&v, "num_channels", "only three channels are supported");
    if (g3__set_string(&v, "hidden_act", &act) && !g3__str_is(act, "gelu_pytorch_tanh")) g3__set_only(&v, "hidden_act", act, "gelu_pytorch_tanh is");
    int grid = o->image / o->patch, side = (int)sqrt((double)o->tokens);
    if (!v.failed && (o->image % o->patch || side * side != o->tokens || side > grid || grid % side || o->dim % o->heads || o->dim / o->heads % 2))
        g3__set_fail(&v, "vision_config", "image_size, patch_size, mm_tokens_per_image and heads do not divide");
    if (!v.failed && grid > G3__GRID) g3__set_fail(&v, "image_size", "a picture of more than 256 patches a side is not supported");
    s->failed = s->failed || v.failed;
}

static void g3__config_kind(g3__config *c, g3__settings *s)                   // is it a Gemma 3 at all, and which of the two architectures
{
    g3__str type;
    g3__value arch;
    g3__settings top = *s;
    top.inner.p = NULL;                                  // text_config has a model_type of its own
    bool typed = g3__set_string(&top, "model_type", &type), listed = !top.failed && g3__set_find(&top, "architectures", &arch);
    s->failed = s->failed || top.failed;
    if (typed) {
        c->multimodal = g3__str_is(type, "gemma3");
        if (!c->multimodal && !g3__str_is(type, "gemma3_text")) g3__set_only(s, "model_type", type, "\"gemma3\" and \"gemma3_text\" are");
        return;
    }
    g3__str list = listed ? g3__str_make(arch.p, arch.n) : g3__str_c("");
    for (size_t i = 0; i < list.n && !c->multimodal; i++) c->multimodal = g3__str_starts(g3__str_skip(list, i), "\"Gemma3ForConditionalGeneration\"");
    for (size_t i = 0; i < list.n; i++) if (g3__str_starts(g3__str_skip(list, i), "\"Gemma3ForCausalLM\"")) return;
    if (!c->multimodal) g3__set_fail(s, "model_type", "absent, and architectures names no Gemma 3");
}

static void g3__config_quant(g3__settings *s)            // only the method counts; the tensors decide all the rest
{
    g3__settings q = g3__set_object(s, "quantization_config");
    g3__str method;
    if (g3__set_string(&q, "quant_method", &method) && !g3__str_is(method, "bitsandbytes")) g3__set_only(&q, "quant_method", method, "bitsandbytes 4-bit and unquantised weights are");
    s->failed = s->failed || q.failed;
}

static void g3__config_shapes(g3__config *c, g3__settings *s)                 // defaults: Gemma3TextConfig; released files rely on them
{
    c->vocab = g3__set_int(s, "vocab_size", 262208, 1, 1 << 30);
    c->dim = g3__set_int(s, "hidden_size", 2304, 2, 1 << 20);
    c->ffn = g3__set_int(s, "intermediate_size", 9216, 1, 1 << 22);
    c->layers = g3__set_int(s, "num_hidden_layers", 26, 1, 1024);
    c->heads = g3__set_int(s, "num_attention_heads", 8, 1, 1024);
    c->kv_heads = g3__set_int(s, "num_key_value_heads", 4, 1, 1024);
    c->head_dim = g3__set_int(s, "head_dim", 256, 2, 1024);                   // never derived from hidden_size
    c->window = g3__set_int(s, "sliding_window", 4096, 1, 1 << 30);
    c->max_context = g3__set_int(s, "max_position_embeddings", 131072, 1, 1 << 30);
    c->eps = (float)g3__set_number(s, "rms_norm_eps", 1e-6, 1e-30, 1);
    c->attn_scale = (float)(1 / sqrt(g3__set_number(s, "query_pre_attn_scalar", 256, 1e-6, 1e9)));
    c->embed_scale = g3__bf16_to_f32(g3__f32_to_bf16((float)sqrt((double)c->dim)));
    if (c->heads % c->kv_heads) g3__set_fail(s, "num_attention_heads", "not a multiple of num_key_value_heads");
    if (c->head_dim % 2) g3__set_fail(s, "head_dim", "odd head sizes cannot be rotated");
}

// Reads config.json's text; c->full is allocated in z. The text is left as it was.
static bool g3__config_read(g3__config *c, char *text, size_t size, g3__zone *z, g3_error *err)
{
    g3__json j;
    g3__settings s;
    memset(c, 0, sizeof *c);
    memset(&s, 0, sizeof s);
    g3__json_init(&j, text, size, "config.json", err);
    if (g3__json_peek(&j) != '{') return g3__json_fail(&j, "expected an object");
    if (!g3__json_skip(&j) || !g3__json_end(&j)) return false;
    s.what = "config.json";
    s.err = err;
    s.top.p = text;
    s.top.n = size;
    g3__settings inner = g3__set_object(&s, "text_config"), top = s;
    s.inner = inner.inner;
    s.failed = inner.failed;
    g3__config_kind(c, &s);
    g3__config_quant(&s);
    g3__set_refuse(&s);
    g3__config_shapes(c, &s);
    g3__config_rope(c, &s);
    c->tied = g3__set_bool(s.failed ? &s : &top, "tie_word_embeddings", g3__set_bool(&s, "tie_word_embeddings", true));   // the top level's word counts first
    g3__set_ids(&top, "eos_token_id", c->stop, &c->n_stop, G3__COUNT(c->stop));
    c->boi = g3__set_int(&top, "boi_token_index", g3__set_int(&top, "boi_token_id", 255999, 0, INT_MAX), 0, INT_MAX);
    c->eoi = g3__set_int(&top, "eoi_token_index", g3__set_int(&top, "eoi_token_id", 256000, 0, INT_MAX), 0, INT_MAX);
    c->image_token = g3__set_int(&top, "image_token_index", g3__set_int(&top, "image_token_id", 262144, 0, INT_MAX), 0, INT_MAX);
    if (c->multimodal) g3__config_vision(c, &top);
    if (s.failed || top.failed) return false;
    c->full = (bool *)g3__zone_alloc(z, (uint64_t)c->layers, sizeof *c->full, err);
    if (!c->full) return false;
    g3__config_layers(c, &s);
    return !s.failed;
}

// ---- generation_config.json: what the checkpoint's authors sample with; absent fields are 0, top_k -1 is off

typedef struct g3__generation_config { bool greedy; float temperature, top_p, min_p, repeat_penalty; int top_k; int stop[16], n_stop; } g3__generation_config;

static bool g3__generation_read(g3__generation_config *g, char *text, size_t size, g3_error *err)
{
    g3__settings s;
    g3__json j;
    g3__value v;
    memset(g, 0, sizeof *g);
    memset(&s, 0, sizeof s);
    s.what = "generation_config.json";
    s.err = err;
    s.top.p = text;
    s.top.n = size;
    g3__json_init(&j, text, size, s.what, err);
    if (g3__json_peek(&j) != '{') return g3__json_fail(&j, "expected an object");
    if (!g3__json_skip(&j) || !g3__json_end(&j)) return false;
    g->greedy = !g3__set_bool(&s, "do_sample", true);
    g->temperature = (float)g3__set_number(&s, "temperature", 0, 0, 1e6);
    g->top_k = g3__set_find(&s, "top_k", &v) ? g3__set_int(&s, "top_k", 0, 0, INT_MAX) : 0;
    if (v.p && !g->top_k) g->top_k = -1;                 // a written 0 means off; silence means the default
    g->top_p = (float)g3__set_number(&s, "top_p", 0, 0, 1);
    g->min_p = (float)g3__set_number(&s, "min_p", 0, 0, 1);
    g->repeat_penalty = (float)g3__set_number(&s, "repetition_penalty", 0, 0, 1e6);
    g3__set_ids(&s, "eos_token_id", g->stop, &g->n_stop, G3__COUNT(g->stop));
    return !s.failed;
}

// ---- weights: a tensor, its companions if it is quantised, and the shape the model needs

typedef struct g3__weight {
    const g3__tensor *data;                              // NULL: the model has no such weight
    const g3__tensor *absmax, *nested_absmax, *nested_map;
    g3__format format;
    int rows, cols;
    uint32_t blocksize, nested_blocksize;                // nested_blocksize 0: scales are not quantised
    float nested_offset;
} g3__weight;

static uint64_t g3__weight_count(const g3__weight *w) { return (uint64_t)w->rows * (uint64_t)w->cols; }

static uint64_t g3__part_bytes(const g3__tensor *t) { return t ? t->bytes : 0; }

// What a weight takes in memory: as stored, less the constant code table and the JSON.
static uint64_t g3__weight_bytes(const g3__weight *w)
{
    return g3__part_bytes(w->data) + g3__part_bytes(w->absmax) + g3__part_bytes(w->nested_absmax) + g3__part_bytes(w->nested_map);
}

static const char *g3__format_name(g3__format f)
{
    static const char *const names[] = {"f32", "bf16", "f16", "f8_e4m3", "f8_e5m2", "nf4", "fp4", "u8", "i8", "other"};
    return names[f];
}

// What one layer, one tower and the whole are made of. Dimensions are letters: resolved once from the config, they make the
// table readable: H hidden, I ffn, Q heads * head_dim, K kv_heads * head_dim, D head_dim, V vocabulary, 1 one row.
typedef struct g3__slot { const char *name; char rows, cols; } g3__slot;

enum { G3__NORM_ATT, G3__Q, G3__K, G3__V, G3__O, G3__Q_NORM, G3__K_NORM, G3__POST_ATT, G3__NORM_FFN, G3__GATE, G3__UP, G3__DOWN, G3__POST_FFN, G3__TEXT_SLOTS };
static const g3__slot g3__text_slots[G3__TEXT_SLOTS] = {
    {"input_layernorm.weight", '1', 'H'},
    {"self_attn.q_proj.weight", 'Q', 'H'}, {"self_attn.k_proj.weight", 'K', 'H'}, {"self_attn.v_proj.weight", 'K', 'H'}, {"self_attn.o_proj.weight", 'H', 'Q'},
    {"self_attn.q_norm.weight", '1', 'D'}, {"self_attn.k_norm.weight", '1', 'D'},
    {"post_attention_layernorm.weight", '1', 'H'}, {"pre_feedforward_layernorm.weight", '1', 'H'},
    {"mlp.gate_proj.weight", 'I', 'H'}, {"mlp.up_proj.weight", 'I', 'H'}, {"mlp.down_proj.weight", 'H', 'I'},
    {"post_feedforward_layernorm.weight", '1', 'H'},
};

enum { G3__V_LN1, G3__V_LN1_B, G3__V_Q, G3__V_Q_B, G3__V_K, G3__V_K_B, G3__V_V, G3__V_V_B, G3__V_OUT, G3__V_OUT_B, G3__V_LN2, G3__V_LN2_B, G3__V_FC1, G3__V_FC1_B, G3__V_FC2, G3__V_FC2_B, G3__VISION_SLOTS };
static const g3__slot g3__vision_slots[G3__VISION_SLOTS] = {                  // v hidden, f ffn
    {"layer_norm1.weight", '1', 'v'}, {"layer_norm1.bias", '1', 'v'},
    {"self_attn.q_proj.weight", 'v', 'v'}, {"self_attn.q_proj.bias", '1', 'v'}, {"self_attn.k_proj.weight", 'v', 'v'}, {"self_attn.k_proj.bias", '1', 'v'},
    {"self_attn.v_proj.weight", 'v', 'v'}, {"self_attn.v_proj.bias", '1', 'v'}, {"self_attn.out_proj.weight", 'v', 'v'}, {"self_attn.out_proj.bias", '1', 'v'},
    {"layer_norm2.weight", '1', 'v'}, {"layer_norm2.bias", '1', 'v'},
    {"mlp.fc1.weight", 'f', 'v'}, {"mlp.fc1.bias", '1', 'f'}, {"mlp.fc2.weight", 'v', 'f'}, {"mlp.fc2.bias", '1', 'v'},
};

enum { G3__EMBED, G3__NORM, G3__HEAD, G3__ONCE_SLOTS };                       // HEAD: data NULL when tied
enum { G3__PATCH, G3__PATCH_B, G3__POS, G3__POST_LN, G3__POST_LN_B, G3__VISION_ONCE };
static const g3__slot g3__vision_once[G3__VISION_ONCE] = {                    // p pixels of a patch, g patches
    {"embeddings.patch_embedding.weight", 'v', 'p'}, {"embeddings.patch_embedding.bias", '1', 'v'}, {"embeddings.position_embedding.weight", 'g', 'v'},
    {"post_layernorm.weight", '1', 'v'}, {"post_layernorm.bias", '1', 'v'},
};
enum { G3__SOFT_NORM, G3__PROJ, G3__PROJ_SLOTS };
static const g3__slot g3__proj_slots[G3__PROJ_SLOTS] = {{"mm_soft_emb_norm.weight", '1', 'v'}, {"mm_input_projection_weight", 'v', 'H'}};   // x W, not W x

typedef struct g3__weights {
    int n, n_text;                                       // all; the first n_text are the decoder's
    g3__weight *w;                                       // once | layers * text slots | vision once | layers * vision slots | projector
    bool vision;                                         // a tower is there
} g3__weights;

static g3__weight *g3__text_weight(const g3__weights *s, int layer, int slot)  { return &s->w[G3__ONCE_SLOTS + layer * G3__TEXT_SLOTS + slot]; }
static g3__weight *g3__vision_weight(const g3__weights *s, int layer, int slot){ return &s->w[s->n_text + G3__VISION_ONCE + layer * G3__VISION_SLOTS + slot]; }
static g3__weight *g3__proj_weight(const g3__weights *s, int slot)             { return &s->w[s->n - G3__PROJ_SLOTS + slot]; }

static int g3__dimension(const g3__config *c, char letter)
{
    const g3__vision_config *v = &c->vision;
    switch (letter) {
    case 'H': return c->dim;
    case 'I': return c->ffn;
    case 'Q': return c->heads * c->head_dim;
    case 'K': return c->kv_heads * c->head_dim;
    case 'D': return c->head_dim;
    case 'v': return v->dim;
    case 'f': return v->ffn;
    case 'p': return 3 * v->patch * v->patch;
    case 'g': return (v->image / v->patch) * (v->image / v->patch);
    default:  return 1;
    }
}

// ---- binding: from a name to a weight

typedef struct g3__binder {
    const g3__shards *shards;
    const g3__config *c;
    g3_error *err;
    bool tables;                                         // look at the scales' tables now; else they are looked at once loaded
    char name[256];                                      // prefix + slot, then companions behind it
} g3__binder;

static bool g3__bind_fail(g3__binder *b, g3_result code, const g3__tensor *t, const char *why)
{
    return g3__fail(b->err, code, "%s: tensor \"%s\": %s", t ? b->shards->file[t->file].name : g3__source_name(&b->shards->src), b->name, why) == G3_OK;
}

static const g3__tensor *g3__companion(g3__binder *b, const char *suffix)    // the tensor NAME + suffix, or NULL
{
    char name[320];
    snprintf(name, sizeof name, "%s%s", b->name, suffix);
    return g3__shards_find(b->shards, name);
}

static bool g3__bind_table(g3__binder *b, const g3__tensor *t, const char *what, uint64_t n, g3__format format)
{
    char why[128];
    if (t->count == n && g3__tensor_format(t) == format) return true;
    snprintf(why, sizeof why, "its %s has %llu entries of type %s where %llu of %s are needed", what, (unsigned long long)t->count, g3__dtypes[t->dtype].name, (unsigned long long)n, g3__format_name(format));
    return g3__bind_fail(b, G3_ERR_FORMAT, t, why);
}

enum { G3__CHECK_BYTES = 64 << 10 };

static bool g3__all_finite(const void *floats, uint64_t n)      // n float32, aligned or not
{
    for (uint64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, (const char *)floats + 4 * i, sizeof x);
        if (!(fabsf(x) <= FLT_MAX)) return false;
    }
    return true;
}

// Every float32 of a table is finite; read in pieces, so that no table needs memory of its own.
static bool g3__bind_finite(g3__binder *b, const g3__tensor *t, const char *what)
{
    float piece[1024];
    char why[96];
    for (uint64_t at = 0; at < t->bytes; at += sizeof piece) {
        uint64_t n = G3__MIN(t->bytes - at, (uint64_t)sizeof piece);
        if (!g3__tensor_read(b->shards, t, at, piece, n, b->err)) return false;
        if (g3__all_finite(piece, n / 4)) continue;
        snprintf(why, sizeof why, "its %s holds a NaN or an infinity", what);
        return g3__bind_fail(b, G3_ERR_FORMAT, t, why);
    }
    return true;
}

static bool g3__bind_code_table(g3__binder *b, const g3__weight *w)          // a stored map must be the built-in one
{
    const g3__tensor *t = g3__companion(b, ".quant_map");
    const float *table = w->format == G3__NF4 ? g3__nf4_table : g3__fp4_table;
    float stored[16];
    if (!t) return true;
    if (!g3__bind_table(b, t, "quant_map", 16, G3__F32) || !g3__tensor_read(b->shards, t, 0, stored, sizeof stored, b->err)) return false;
    for (int i = 0; i < 16; i++)
        if (!(fabsf(stored[i] - table[i]) <= 1e-6f)) return g3__bind_fail(b, G3_ERR_FORMAT, t, "its quant_map is not the table of its quant_type");
    return true;
}

static bool g3__legal_block(uint64_t n) { return n >= 32 && n <= 4096 && (n & (n - 1)) == 0; }

typedef struct g3__quant_state { g3__settings s; g3__str type, dtype, nested_dtype /* these point into the JSON */; uint64_t blocksize, nested_blocksize, rows, cols; double offset; bool nested; } g3__quant_state;

static bool g3__state_shape(g3__quant_state *q)
{
    g3__value v;
    g3__json j;
    if (!g3__set_find(&q->s, "shape", &v)) return g3__set_fail(&q->s, "shape", "missing");
    g3__json_init(&j, v.p, v.n, q->s.what, NULL);
    bool two = g3__json_array(&j) && g3__json_item(&j) && g3__json_u64(&j, &q->rows) && g3__json_item(&j) && g3__json_u64(&j, &q->cols) && !g3__json_item(&j);
    return (two && !j.failed) || g3__set_fail(&q->s, "shape", "expected [rows, columns]");
}

static bool g3__state_block(g3__quant_state *q, const char *key, uint64_t *out)
{
    *out = (uint64_t)g3__set_int(&q->s, key, 0, 0, 1 << 20);
    return q->s.failed || g3__legal_block(*out) || g3__set_fail(&q->s, key, "expected a power of two from 32 to 4096");
}

// The JSON of a quant state: {"quant_type", "blocksize", "dtype", "shape", and with double quantisation "nested_blocksize", "nested_dtype", "nested_offset"}.
static bool g3__state_read(g3__quant_state *q, char *text, size_t size, const char *what, g3_error *err)
{
    g3__json j;
    g3__value v;
    memset(q, 0, sizeof *q);
    g3__json_init(&j, text, size, what, err);
    if (g3__json_peek(&j) != '{') return g3__json_fail(&j, "expected an object");
    if (!g3__json_skip(&j) || !g3__json_end(&j)) return false;
    q->s.top.p = text;
    q->s.top.n = size;
    q->s.what = what;
    q->s.err = err;
    if (!g3__set_string(&q->s, "quant_type", &q->type)) g3__set_fail(&q->s, "quant_type", "missing");
    if (!g3__set_string(&q->s, "dtype", &q->dtype)) g3__set_fail(&q->s, "dtype", "missing");
    if (!q->s.failed && !g3__str_is(q->dtype, "bfloat16") && !g3__str_is(q->dtype, "float16") && !g3__str_is(q->dtype, "float32")) g3__set_fail(&q->s, "dtype", "expected bfloat16, float16 or float32");
    if (!q->s.failed) g3__state_shape(q);
    g3__state_block(q, "blocksize", &q->blocksize);
    bool offset = g3__set_find(&q->s, "nested_offset", &v), type = g3__set_string(&q->s, "nested_dtype", &q->nested_dtype);
    q->nested = g3__set_find(&q->s, "nested_blocksize", &v);
    if (!q->s.failed && (q->nested != offset || q->nested != type)) g3__set_fail(&q->s, "nested_blocksize, nested_dtype and nested_offset", "some are missing; they come together");
    if (q->s.failed || !q->nested) return !q->s.failed;
    if (!g3__str_is(q->nested_dtype, "float32")) g3__set_fail(&q->s, "nested_dtype", "expected float32");
    g3__state_block(q, "nested_blocksize", &q->nested_blocksize);
    q->offset = g3__set_number(&q->s, "nested_offset", 0, -FLT_MAX, FLT_MAX);
    return !q->s.failed;
}

static bool g3__bind_state(g3__binder *b, const g3__tensor *state, g3__quant_state *q)
{
    char text[2048], what[400];
    if (state->bytes > sizeof text) return g3__bind_fail(b, G3_ERR_FORMAT, state, "its quant_state is longer than 2048 bytes");
    if (!g3__tensor_read(b->shards, state, 0, text, state->bytes, b->err)) return false;
    snprintf(what, sizeof what, "%s: quant_state of \"%s\"", b->shards->file[state->file].name, b->name);
    if (!g3__state_read(q, text, (size_t)state->bytes, what, b->err)) return false;
    bool nf4 = g3__str_is(q->type, "nf4");
    if (!nf4 && !g3__str_is(q->type, "fp4")) return g3__bind_fail(b, G3_ERR_UNSUPPORTED, state, "its quant_type is neither nf4 nor fp4");
    return g3__str_ends(state->name, nf4 ? "nf4" : "fp4") || g3__bind_fail(b, G3_ERR_FORMAT, state, "its quant_type is not that of its key");
}

static bool g3__bind_packed(g3__binder *b, const g3__weight *w)              // two codes a byte, whatever dtype the bytes are stored under
{
    uint64_t unit = (uint64_t)g3__dtypes[w->data->dtype].bits / 8, need = g3__round_up((g3__weight_count(w) + 1) / 2, unit);
    g3__format f = g3__tensor_format(w->data);
    if (f != G3__U8 && f != G3__BF16 && f != G3__F16 && f != G3__F32) return g3__bind_fail(b, G3_ERR_FORMAT, w->data, "packed 4-bit data of a dtype that bitsandbytes does not store");
    if (w->data->bytes == need) return true;
    if (f != G3__U8 && w->data->bytes == g3__weight_count(w) * unit) return g3__bind_fail(b, G3_ERR_FORMAT, w->data, "quantisation parts stand beside a dense weight");
    return g3__bind_fail(b, G3_ERR_FORMAT, w->data, "its packed data is not half a byte for every weight");
}

static bool g3__bind_scales(g3__binder *b, g3__weight *w, const g3__quant_state *q)
{
    uint64_t blocks = (g3__weight_count(w) + w->blocksize - 1) / w->blocksize;
    w->absmax = g3__companion(b, ".absmax");
    w->nested_absmax = g3__companion(b, ".nested_absmax");
    w->nested_map = g3__companion(b, ".nested_quant_map");
    if (!w->absmax) return g3__bind_fail(b, G3_ERR_FORMAT, w->data, "its absmax is missing");
    if (q->nested != (w->nested_absmax != NULL) || q->nested != (w->nested_map != NULL))
        return g3__bind_fail(b, G3_ERR_FORMAT, w->data, "its quant_state and its nested_absmax and nested_quant_map disagree on double quantisation");
    if (!g3__bind_table(b, w->absmax, "absmax", blocks, q->nested ? G3__U8 : G3__F32)) return false;
    if (!q->nested) return !b->tables || w->absmax->bytes > G3__CHECK_BYTES || g3__bind_finite(b, w->absmax, "absmax");   // not the large ones: that would be a pass over the data
    w->nested_blocksize = (uint32_t)q->nested_blocksize;
    w->nested_offset = (float)q->offset;
    uint64_t groups = (blocks + w->nested_blocksize - 1) / w->nested_blocksize;
    return g3__bind_table(b, w->nested_absmax, "nested_absmax", groups, G3__F32) && g3__bind_table(b, w->nested_map, "nested_quant_map", 256, G3__F32)
        && (!b->tables || (g3__bind_finite(b, w->nested_absmax, "nested_absmax") && g3__bind_finite(b, w->nested_map, "nested_quant_map")));
}

static bool g3__bind_quantised(g3__binder *b, g3__weight *w, const g3__tensor *state)
{
    g3__quant_state q;
    if (!g3__bind_state(b, state, &q)) return false;
    w->format = g3__str_ends(state->name, "nf4") ? G3__NF4 : G3__FP4;
    if (q.rows != (uint64_t)w->rows || q.cols != (uint64_t)w->cols)
        return g3__fail(b->err, G3_ERR_MODEL, "tensor \"%s\": its quant_state says %llu x %llu where config.json makes it %d x %d", b->name, (unsigned long long)q.rows, (unsigned long long)q.cols, w->rows, w->cols) == G3_OK;
    w->blocksize = (uint32_t)q.blocksize;
    return g3__bind_packed(b, w) && g3__bind_code_table(b, w) && g3__bind_scales(b, w, &q);
}

static bool g3__bind_shape(g3__binder *b, const g3__weight *w)               // the sentence for a shape that config.json does not allow
{
    char shape[128] = "", *p = shape;
    for (int i = 0; i < G3__MIN(w->data->rank, 4); i++)
        p += snprintf(p, (size_t)(shape + sizeof shape - p), "%s%llu", i ? ", " : "", (unsigned long long)w->data->dims[i]);
    return g3__fail(b->err, G3_ERR_MODEL, "%s: tensor \"%s\": its shape [%s%s] is not the %d x %d that config.json makes it", b->shards->file[w->data->file].name, b->name, shape,
                    w->data->rank > 4 ? ", ..." : "", w->rows, w->cols) == G3_OK;
}

static bool g3__bind_dense(g3__binder *b, g3__weight *w, int rank)
{
    const g3__tensor *t = w->data;
    g3__format f = g3__tensor_format(t);
    uint64_t first = t->rank > 1 ? t->dims[0] : 1;
    if (g3__companion(b, ".absmax") || g3__companion(b, ".quant_map") || g3__companion(b, ".nested_absmax"))
        return g3__bind_fail(b, G3_ERR_FORMAT, t, f == G3__U8 ? "packed 4-bit data whose quant_state is missing; the file is incomplete" : "quantisation parts stand beside a dense weight");
    if (f == G3__I8) return g3__bind_fail(b, G3_ERR_UNSUPPORTED, t, "8-bit bitsandbytes (LLM.int8) is not supported; 4-bit and unquantised weights are");
    if (f == G3__U8) return g3__bind_fail(b, G3_ERR_FORMAT, t, "packed data (U8) without a quant_state; the file is incomplete");
    if ((f == G3__E4M3 || f == G3__E5M2) && (g3__companion(b, "_scale") || g3__companion(b, "_scale_inv"))) return g3__bind_fail(b, G3_ERR_UNSUPPORTED, t, "FP8 weights with scales are not supported");
    if (f > G3__E5M2 || (rank == 1 && f > G3__F16)) return g3__bind_fail(b, G3_ERR_UNSUPPORTED, t, "a dtype no weight of its kind has");
    if (t->rank != rank || t->count != g3__weight_count(w) || first != (uint64_t)w->rows) return g3__bind_shape(b, w);
    w->format = f;
    return true;
}

static const char *const g3__text_prefixes[] = {"language_model.model.", "model.language_model.", "model.", "", "language_model.", "model.language_model.model.", "model.model."};

// Why a needed tensor is absent: listed nowhere, quantised by a scheme of other names, or under another prefix.
static bool g3__bind_missing(g3__binder *b)
{
    size_t n = strlen(b->name);
    int64_t at = g3__index_find(&b->shards->index, g3__str_c(b->name));
    const char *layer = strstr(b->name, "layers.");
    char other[320];
    if (at >= 0) return g3__bind_fail(b, G3_ERR_FORMAT, &b->shards->tensor[at], "in the shard, but not in the weight_map of " G3__INDEX_NAME);
    snprintf(other, sizeof other, "%.*sqweight", (int)(n - G3__MIN(n, (size_t)6)), b->name);              // "weight" has six letters
    if (g3__shards_find(b->shards, other)) return g3__bind_fail(b, G3_ERR_UNSUPPORTED, NULL, "GPTQ or AWQ (qweight, qzeros, scales) is not supported; bitsandbytes 4-bit and unquantised weights are");
    for (int i = 0; layer && i < G3__COUNT(g3__text_prefixes); i++) {
        snprintf(other, sizeof other, "%s%s", g3__text_prefixes[i], layer);
        if (g3__shards_find(b->shards, other)) return g3__fail(b->err, G3_ERR_MODEL, "tensor \"%s\" is missing, but there is \"%s\": the checkpoint mixes two ways of naming", b->name, other) == G3_OK;
    }
    return g3__bind_fail(b, G3_ERR_MODEL, NULL, "missing");
}

// The weight under b->name with the given shape. rank: of the tensor when it is dense.
static bool g3__bind(g3__binder *b, g3__weight *w, int rows, int cols, int rank)
{
    const g3__tensor *nf4 = g3__companion(b, ".quant_state.bitsandbytes__nf4"), *fp4 = g3__companion(b, ".quant_state.bitsandbytes__fp4");
    w->data = g3__shards_find(b->shards, b->name);
    w->rows = rows;
    w->cols = cols;
    if (!w->data) return g3__bind_missing(b);
    if (nf4 && fp4) return g3__bind_fail(b, G3_ERR_FORMAT, w->data, "it has a quant_state for nf4 and one for fp4");
    if (!nf4 && !fp4) return g3__bind_dense(b, w, rank);
    if (rank != 2) return g3__bind_fail(b, G3_ERR_UNSUPPORTED, w->data, "only matrices can be quantised");
    return g3__bind_quantised(b, w, nf4 ? nf4 : fp4);
}

static bool g3__bind_slots(g3__binder *b, const char *prefix, const g3__slot *slot, int n, g3__weight *w)
{
    for (int i = 0; i < n; i++) {
        int rank = slot[i].rows == '1' ? 1 : slot[i].cols == 'p' ? 4 : 2;
        snprintf(b->name, sizeof b->name, "%s%s", prefix, slot[i].name);
        if (!g3__bind(b, &w[i], g3__dimension(b->c, slot[i].rows), g3__dimension(b->c, slot[i].cols), rank)) return false;
    }
    return true;
}

// ---- prefixes: one model, several spellings

static bool g3__find_prefix(g3__binder *b, const char *const *prefix, int n, const char *probe, const char **found)
{
    *found = NULL;
    for (int i = 0; i < n; i++) {
        snprintf(b->name, sizeof b->name, "%s%s", prefix[i], probe);
        if (!g3__shards_find(b->shards, b->name)) continue;
        if (*found) return g3__fail(b->err, G3_ERR_MODEL, "both \"%s%s\" and \"%s\" are there: the checkpoint mixes two ways of naming", *found, probe, b->name) == G3_OK;
        *found = prefix[i];
    }
    return true;
}

static const char *const g3__head_names[] = {"lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight", "model.language_model.lm_head.weight"};
static const char *const g3__vision_prefixes[] = {"vision_tower.vision_model.", "vision_tower.", "model.vision_tower.vision_model.", "model.vision_tower."};
static const char *const g3__proj_prefixes[] = {"multi_modal_projector.", "model.multi_modal_projector."};

static bool g3__bind_embed(g3__binder *b, g3__config *c, const char *prefix, g3__weight *w)      // the table's rows count, not the config's
{
    snprintf(b->name, sizeof b->name, "%sembed_tokens.weight", prefix);
    const g3__tensor *t = g3__shards_find(b->shards, b->name);
    if (t && t->rank == 2 && t->dims[0] > (uint64_t)c->vocab && t->dims[0] <= 1 << 30) c->vocab = (int)t->dims[0];
    return g3__bind(b, w, c->vocab, c->dim, 2);
}

static bool g3__bind_head(g3__binder *b, const g3__config *c, g3__weight *w)  // a head tensor, if there is one, is used; else the table is
{
    for (int i = 0; i < G3__COUNT(g3__head_names); i++) {
        snprintf(b->name, sizeof b->name, "%s", g3__head_names[i]);
        if (g3__shards_find(b->shards, b->name)) return g3__bind(b, w, c->vocab, c->dim, 2);
    }
    snprintf(b->name, sizeof b->name, "lm_head.weight");
    return c->tied || g3__bind_fail(b, G3_ERR_MODEL, NULL, "missing, though config.json says tie_word_embeddings is false");
}

static bool g3__bind_text(g3__binder *b, g3__config *c, g3__weights *s)
{
    const char *prefix;
    char layer[128];
    if (!g3__find_prefix(b, g3__text_prefixes, G3__COUNT(g3__text_prefixes), "embed_tokens.weight", &prefix)) return false;
    if (!prefix) return g3__fail(b->err, G3_ERR_MODEL, "%s: no tensor \"model.embed_tokens.weight\" under any of the prefixes in use", g3__source_name(&b->shards->src)) == G3_OK;
    if (!g3__bind_embed(b, c, prefix, &s->w[G3__EMBED])) return false;
    snprintf(b->name, sizeof b->name, "%snorm.weight", prefix);
    if (!g3__bind(b, &s->w[G3__NORM], 1, c->dim, 1) || !g3__bind_head(b, c, &s->w[G3__HEAD])) return false;
    for (int i = 0; i < c->layers; i++) {
        snprintf(layer, sizeof layer, "%slayers.%d.", prefix, i);
        if (!g3__bind_slots(b, layer, g3__text_slots, G3__TEXT_SLOTS, g3__text_weight(s, i, 0))) return false;
    }
    return true;
}

static bool g3__bind_vision(g3__binder *b, g3__weights *s)
{
    const char *tower, *proj;
    char layer[128];
    g3__weight *w = &s->w[s->n_text];
    if (!g3__find_prefix(b, g3__vision_prefixes, G3__COUNT(g3__vision_prefixes), g3__vision_once[G3__PATCH].name, &tower)) return false;
    if (!g3__find_prefix(b, g3__proj_prefixes, G3__COUNT(g3__proj_prefixes), g3__proj_slots[G3__PROJ].name, &proj)) return false;
    if (!proj && !g3__find_prefix(b, g3__proj_prefixes, G3__COUNT(g3__proj_prefixes), g3__proj_slots[G3__SOFT_NORM].name, &proj)) return false;
    if (!tower) tower = g3__vision_prefixes[0];          // its missing tensor is reported under the published name
    if (!proj) proj = g3__proj_prefixes[0];
    if (!g3__bind_slots(b, tower, g3__vision_once, G3__VISION_ONCE, w)) return false;
    for (int i = 0; i < b->c->vision.layers; i++) {
        snprintf(layer, sizeof layer, "%sencoder.layers.%d.", tower, i);
        if (!g3__bind_slots(b, layer, g3__vision_slots, G3__VISION_SLOTS, g3__vision_weight(s, i, 0))) return false;
    }
    return g3__bind_slots(b, proj, g3__proj_slots, G3__PROJ_SLOTS, g3__proj_weight(s, 0));
}

static bool g3__of_vision(g3__str name)
{
    if (g3__str_starts(name, "model.")) name = g3__str_skip(name, 6);
    return g3__str_starts(name, "vision_tower.") || g3__str_starts(name, "multi_modal_projector.");
}

static bool g3__any_vision(const g3__shards *s)          // text-only weights may come with a multimodal config
{
    for (uint64_t i = 0; i < s->n; i++) if (g3__of_vision(s->tensor[i].name)) return true;
    return false;
}

// All weights of the model, by tower, layer and slot. c->vocab becomes the rows of the table. tables: read and check the tables of scales, too.
static bool g3__weights_bind(g3__weights *s, g3__config *c, const g3__shards *shards, bool no_vision, bool tables, g3__zone *z, g3_error *err)
{
    g3__binder b;
    b.shards = shards;
    b.c = c;
    b.err = err;
    b.tables = tables;
    s->vision = c->has_vision && !no_vision && g3__any_vision(shards);
    s->n_text = G3__ONCE_SLOTS + c->layers * G3__TEXT_SLOTS;
    s->n = s->n_text + (s->vision ? G3__VISION_ONCE + c->vision.layers * G3__VISION_SLOTS + G3__PROJ_SLOTS : 0);
    s->w = (g3__weight *)g3__zone_alloc(z, (uint64_t)s->n, sizeof *s->w, err);
    return s->w && g3__bind_text(&b, c, s) && (!s->vision || g3__bind_vision(&b, s));
}

// ------------------------------------------------------------------------------------------------------------------
// >>image
// Owns pictures: from a file's bytes to upright RGB, from RGB to the patches that the vision tower reads, and the crops of
// pan & scan. Resizing is Pillow's up to version 12, bit for bit, whatever the machine. stb_image decodes where it is found;
// what it does not tell (files that end early, orientation, sizes) is read from the file first.

typedef struct g3__rect { int x, y, w, h; } g3__rect;

// ---- pan & scan: a long picture is followed by up to four crops of itself, each looked at as a picture of its own

static const char *const g3__pan_text[3] = {"Here is the original image ", " and here are some crops to help you see better ", " "};

enum { G3__CROP_LEAST = 256, G3__CROPS_MOST = 4 };

static G3__UNUSED int g3__image_crops(int width, int height, g3__rect crop[G3__CROPS_MOST])        // how many; 0: none are worth it
{
    const int longer = G3__MAX(width, height), shorter = G3__MIN(width, height);
    const double ratio = (double)longer / shorter;
    if (ratio < 1.2) return 0;
    const int wanted = G3__MIN(longer / G3__CROP_LEAST, (int)(ratio + 0.5)), n = G3__MIN(G3__CROPS_MOST, G3__MAX(2, wanted));
    const int size = longer / n + (longer % n != 0);
    if (G3__MIN(size, shorter) < G3__CROP_LEAST) return 0;
    for (int i = 0; i < n; i++) {
        const int from = size * i, length = G3__MIN(size, longer - from);
        const g3__rect wide = { from, 0, length, height }, tall = { 0, from, width, length };
        crop[i] = width >= height ? wide : tall;
    }
    return n;
}

// ---- raw pictures

static int64_t g3__image_stride(const g3_image *img) { return img->stride ? img->stride : 3 * (int64_t)img->width; }

static bool g3__image_check(const g3_image *img, g3_error *err)
{
    if (!img->rgb || img->width < 1 || img->height < 1)
        return g3__fail(err, G3_ERR_ARGUMENT, "image: %d x %d pixels%s; a picture has at least one, and rgb points at its first row", img->width, img->height, img->rgb ? "" : " and rgb NULL") == G3_OK;
    return g3__image_stride(img) / 3 >= img->width || g3__fail(err, G3_ERR_ARGUMENT, "image: a stride of %d bytes is less than a row of %d pixels; 0 stands for rows without gaps", img->stride, img->width) == G3_OK;
}

// ---- resizing: a triangle filter, first along the rows, then along the columns, with bytes in between
//
// Along an axis of `in` pixels, of which `out` are made:  scale = in / out,  half = max(scale, 1),  centre(i) = (i + 0.5) * scale
//     weight(i, j) = max(0, 1 - |j + 0.5 - centre(i)| / half),  divided by its sum over j and rounded to a multiple of 2^-22
//     out[i] = (2^21 + sum_j weight(i, j) * 2^22 * in[j]) >> 22
// Integer sums come out the same in any order, so the source is read once, sixteen rows at a time, and every sum is kept until it is whole.
// No sum overflows: rounding up at most doubles a weight, and 2 * 255 * 2^22 + 2^21 < 2^31.

enum { G3__STRIP = 16, G3__WEIGHT_BITS = 22 };

typedef struct g3__axis {
    int in, out, n_weights;            // n_weights: how many the cache has room for
    double scale, half;
    double *sum;                       // [out] of the triangle's values
    int *lo, *hi, *at;                 // [out] source pixels lo <= j < hi have a weight; the first one's place in the cache
    int32_t *weight;                   // cache of all weights; NULL: they do not fit and are computed each time
} g3__axis;

typedef struct g3__resampler {
    g3__axis x, y;
    int32_t *whole;                    // [out rows][3 * out columns] sums
    int32_t *part;                     // [out columns][3][G3__STRIP] sums along sixteen rows
    uint8_t *turned;                   // [columns at a time][3][G3__STRIP] source pixels
    uint8_t *rows;                     // [G3__STRIP][3 * out columns] resized along x
    int at_a_time;
} g3__resampler;

static void *g3__carve(char *base, uint64_t *at, uint64_t bytes)
{
    char *p = base ? base + *at : NULL;
    *at += g3__round_up(bytes, G3__ALIGN);
    return p;
}

static void g3__axis_lay(g3__axis *a, int out, char *base, uint64_t *at)
{
    const uint64_t n = (uint64_t)out;
    memset(a, 0, sizeof *a);
    a->out = out;
    a->n_weights = (int)G3__MIN(32 * n, (uint64_t)INT_MAX);
    a->sum = (double *)g3__carve(base, at, n * sizeof *a->sum);
    a->lo = (int *)g3__carve(base, at, n * sizeof *a->lo);
    a->hi = (int *)g3__carve(base, at, n * sizeof *a->hi);
    a->at = (int *)g3__carve(base, at, n * sizeof *a->at);
    a->weight = (int32_t *)g3__carve(base, at, (uint64_t)a->n_weights * sizeof *a->weight);
}

// Lays the parts of a resampler to width x height pixels from base on; how many bytes that takes. base NULL: only that. The source's size plays no part.
static uint64_t g3__resampler_lay(g3__resampler *r, int width, int height, void *room)
{
    char *base = room ? (char *)room + (G3__ALIGN - (uintptr_t)room % G3__ALIGN) % G3__ALIGN : NULL;
    const uint64_t w = (uint64_t)width, h = (uint64_t)height;
    uint64_t at = 0;
    g3__axis_lay(&r->x, width, base, &at);
    g3__axis_lay(&r->y, height, base, &at);
    r->at_a_time = G3__MAX(width, 64);
    r->whole = (int32_t *)g3__carve(base, &at, 3 * w * h * sizeof *r->whole);
    r->part = (int32_t *)g3__carve(base, &at, 3 * w * G3__STRIP * sizeof *r->part);
    r->turned = (uint8_t *)g3__carve(base, &at, 3 * (uint64_t)r->at_a_time * G3__STRIP);
    r->rows = (uint8_t *)g3__carve(base, &at, 3 * w * G3__STRIP);
    return at + G3__ALIGN;
}

static double g3__triangle(const g3__axis *a, int i, int j)
{
    volatile double centre = (i + 0.5) * a->scale, away = (j - centre + 0.5) * (1.0 / a->half);    // volatile, lest a compiler fuse product and sum
    return G3__MAX(1.0 - fabs(away), 0.0);
}

static int32_t g3__weight_of(const g3__axis *a, int i, int j)
{
    if (a->weight) return a->weight[a->at[i] + j - a->lo[i]];
    return (int32_t)(0.5 + g3__triangle(a, i, j) / a->sum[i] * (double)(1 << G3__WEIGHT_BITS));
}

static void g3__axis_span(g3__axis *a, int i)
{
    volatile double centre = (i + 0.5) * a->scale;
    const double from = centre - a->half + 0.5, to = centre + a->half + 0.5;
    a->lo[i] = from > 0 ? (int)from : 0;
    a->hi[i] = to < a->in ? (int)to : a->in;
    a->sum[i] = 0;
    for (int j = a->lo[i]; j < a->hi[i]; j++) a->sum[i] += g3__triangle(a, i, j);
}

static void g3__axis_init(g3__axis *a, int in)
{
    int32_t *cache = a->weight;
    int64_t n = 0;
    a->in = in;
    a->scale = (double)in / a->out;
    a->half = G3__MAX(a->scale, 1.0);
    a->weight = NULL;
    for (int i = 0; i < a->out; i++) {
        g3__axis_span(a, i);
        a->at[i] = (int)G3__MIN(n, (int64_t)a->n_weights);
        n += a->hi[i] - a->lo[i];
    }
    if (n > a->n_weights) return;
    for (int i = 0; i < a->out; i++)
        for (int j = a->lo[i]; j < a->hi[i]; j++) cache[a->at[i] + j - a->lo[i]] = g3__weight_of(a, i, j);
    a->weight = cache;
}

static int g3__whole_level(int32_t sum) { return G3__MIN(sum >> G3__WEIGHT_BITS, 255); }

// part[i] += weight * turned[j - from] for the source pixels from <= j < to; a lane is a row and a colour.
static void g3__across(const g3__resampler *r, int i, int from, int to)
{
    const int first = G3__MAX(r->x.lo[i], from), end = G3__MIN(r->x.hi[i], to);
    int32_t *G3__RESTRICT out = r->part + (size_t)i * 3 * G3__STRIP, sum[3 * G3__STRIP];
    memcpy(sum, out, sizeof sum);
    for (int j = first; j < end; j++) {
        const int32_t w = g3__weight_of(&r->x, i, j);
        const uint8_t *G3__RESTRICT p = r->turned + (size_t)(j - from) * 3 * G3__STRIP;
        for (int k = 0; k < 3 * G3__STRIP; k++) sum[k] += w * p[k];
    }
    memcpy(out, sum, sizeof sum);
}

static void g3__turn(const g3__resampler *r, const uint8_t *rgb, int64_t stride, int n, int columns)     // [n][3 * columns] to [3 * columns][G3__STRIP]
{
    const uint8_t *row[G3__STRIP];
    for (int l = 0; l < G3__STRIP; l++) row[l] = rgb + G3__MIN(l, n - 1) * stride;      // rows that are not there repeat the last one; nobody reads their sums
    for (size_t k = 0; k < 3 * (size_t)columns; k++)
        for (int l = 0; l < G3__STRIP; l++) r->turned[k * G3__STRIP + (size_t)l] = row[l][k];
}

static void g3__resize_rows(const g3__resampler *r, const uint8_t *rgb, int64_t stride, int n)           // n source rows, along x
{
    const g3__axis *a = &r->x;
    const size_t lanes = 3 * (size_t)a->out * G3__STRIP;
    for (size_t k = 0; k < lanes; k++) r->part[k] = 1 << (G3__WEIGHT_BITS - 1);
    for (int from = 0, first = 0, count; from < a->in; from += count) {
        count = G3__MIN(r->at_a_time, a->in - from);
        g3__turn(r, rgb + 3 * (int64_t)from, stride, n, count);
        while (first < a->out && a->hi[first] <= from) first++;
        for (int i = first; i < a->out && a->lo[i] < from + count; i++) g3__across(r, i, from, from + count);
    }
    for (size_t k = 0; k < 3 * (size_t)a->out; k++)
        for (size_t l = 0; l < (size_t)n; l++) r->rows[l * 3 * (size_t)a->out + k] = (uint8_t)g3__whole_level(r->part[k * G3__STRIP + l]);
}

static void g3__add_row(int32_t *G3__RESTRICT sum, const uint8_t *G3__RESTRICT row, int32_t w, size_t n)
{
    for (size_t k = 0; k < n; k++) sum[k] += w * row[k];
}

static int g3__resize_columns(const g3__resampler *r, int y, int n, int first)           // rows y to y + n of the source; the first output row that may want more
{
    const g3__axis *a = &r->y;
    const size_t size = 3 * (size_t)r->x.out;
    while (first < a->out && a->hi[first] <= y) first++;
    for (int i = first; i < a->out && a->lo[i] < y + n; i++)
        for (int j = G3__MAX(a->lo[i], y); j < G3__MIN(a->hi[i], y + n); j++)
            g3__add_row(r->whole + (size_t)i * size, r->rows + (size_t)(j - y) * size, g3__weight_of(a, i, j), size);
    return first;
}

static void g3__resample(g3__resampler *r, const g3_image *img, const g3__rect *crop)    // fills r->whole
{
    const int64_t stride = g3__image_stride(img);
    const uint8_t *rgb = img->rgb + crop->y * stride + 3 * (int64_t)crop->x;
    const size_t n = 3 * (size_t)r->x.out * (size_t)r->y.out;
    g3__axis_init(&r->x, crop->w);
    g3__axis_init(&r->y, crop->h);
    for (size_t k = 0; k < n; k++) r->whole[k] = 1 << (G3__WEIGHT_BITS - 1);
    for (int y = 0, first = 0, rows; y < crop->h; y += rows) {
        rows = G3__MIN(G3__STRIP, crop->h - y);
        g3__resize_rows(r, rgb + y * stride, stride, rows);
        first = g3__resize_columns(r, y, rows, first);
    }
}

// ---- patches: what the tower reads

static uint64_t g3__image_room(int size) { g3__resampler r; return g3__resampler_lay(&r, size, size, NULL); }     // bytes of room for g3__image_patches

// The crop of the picture as [size / patch squared][3][patch][patch] values (v - 127.5) / 127.5; size is a multiple of patch.
static G3__UNUSED bool g3__image_patches(const g3_image *img, const g3__rect *crop, int size, int patch, float *patches, void *room, uint64_t room_size, g3_error *err)
{
    const size_t p = (size_t)patch, grid = (size_t)(size / patch);
    g3__resampler r;
    float value[256];
    if (room_size < g3__image_room(size))
        return g3__fail(err, G3_ERR_MEMORY, "pictures: resizing wants %llu bytes of room and has %llu", (unsigned long long)g3__image_room(size), (unsigned long long)room_size) == G3_OK;
    for (int v = 0; v < 256; v++) value[v] = ((float)v - 127.5f) / 127.5f;
    g3__resampler_lay(&r, size, size, room);
    g3__resample(&r, img, crop);
    for (size_t y = 0; y < (size_t)size; y++)
        for (size_t px = 0; px < grid; px++)
            for (size_t c = 0; c < 3; c++) {
                const int32_t *from = r.whole + 3 * (y * (size_t)size + px * p) + c;
                float *to = patches + (((y / p * grid + px) * 3 + c) * p + y % p) * p;
                for (size_t x = 0; x < p; x++) to[x] = value[g3__whole_level(from[3 * x])];
            }
    return true;
}

// ---- sizes that a file or a caller may ask for

enum { G3__IMAGE_SIDE = 65535, G3__IMAGE_PIXELS = 1 << 27 };

static bool g3__image_size_check(const char *name, g3_result code, uint64_t width, uint64_t height, g3_error *err)
{
    if (!width || !height) return g3__fail(err, code, "%s: %llu x %llu pixels; a picture has at least one", name, (unsigned long long)width, (unsigned long long)height) == G3_OK;
    if (width <= G3__IMAGE_SIDE && height <= G3__IMAGE_SIDE && width * height <= G3__IMAGE_PIXELS) return true;
    return g3__fail(err, code, "%s: %llu x %llu pixels are too many; up to %d a side and %d in all are read, and the model sees 896 x 896", name,
        (unsigned long long)width, (unsigned long long)height, (int)G3__IMAGE_SIDE, (int)G3__IMAGE_PIXELS) == G3_OK;
}

static bool g3__image_resize(const g3_image *in, int width, int height, const g3_allocator *alloc, g3_image *out, g3_error *err)
{
    g3__heap heap;
    g3__resampler r;
    g3__rect whole = { 0, 0, in->width, in->height };
    const size_t n = 3 * (size_t)width * (size_t)height;
    const uint64_t size = g3__resampler_lay(&r, width, height, NULL);
    g3__heap_init(&heap, alloc);
    void *room = g3__heap_take(&heap, size, 1, err);
    uint8_t *rgb = room ? (uint8_t *)g3__heap_take(&heap, n, 1, err) : NULL;
    if (rgb) {
        g3__resampler_lay(&r, width, height, room);
        g3__resample(&r, in, &whole);
        for (size_t k = 0; k < n; k++) rgb[k] = (uint8_t)g3__whole_level(r.whole[k]);
        out->rgb = rgb;
        out->width = width;
        out->height = height;
    }
    g3__heap_free(&heap, room, size, 1);
    return rgb != NULL;
}

// ---- decoding: stb_image, private to this file. A program's own copy, included before this header, is used as it is.

#if defined(GEMMA3_NO_STB_IMAGE) || defined(GEMMA3_NO_VISION)
#elif defined(STBI_VERSION)
#define G3__DECODES 1
#elif defined(__has_include)
#if __has_include("stb_image.h")
#define G3__STB_IMAGE "stb_image.h"
#elif __has_include("stb/stb_image.h")
#define G3__STB_IMAGE "stb/stb_image.h"
#endif
#endif

#ifdef G3__STB_IMAGE
#define G3__DECODES 1

// One piece is never larger than 16-bit RGBA of the largest picture. It comes zeroed: what a broken file leaves out is black, not somebody's old bytes.
static void *g3__stb_alloc(size_t size)
{
    void *p = size <= 9 * (size_t)G3__IMAGE_PIXELS ? GEMMA3_MALLOC(size ? size : 1) : NULL;
    if (p) memset(p, 0, size);
    return p;
}

static G3__UNUSED void *g3__stb_realloc(void *old, size_t old_size, size_t size)
{
    void *p = g3__stb_alloc(size);
    if (p && old) { memcpy(p, old, G3__MIN(old_size, size)); GEMMA3_FREE(old); }
    return p;
}

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wimplicit-fallthrough"
#endif
#define STB_IMAGE_IMPLEMENTATION
#define STBIDEF static G3__UNUSED
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_NO_GIF
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_MAX_DIMENSIONS G3__IMAGE_SIDE
#define STBI_ASSERT(x) ((void)0)
#define STBI_MALLOC(size) g3__stb_alloc(size)
#define STBI_REALLOC_SIZED(p, old_size, size) g3__stb_realloc(p, old_size, size)
#define STBI_FREE(p) GEMMA3_FREE(p)
#define stbi_set_unpremultiply_on_load_thread stbi__unpremultiply_on_load_thread      // version 2.27 declares one and defines the other
#include G3__STB_IMAGE
#undef stbi_set_unpremultiply_on_load_thread
#undef STB_IMAGE_IMPLEMENTATION
#undef STBIDEF
#undef STBI_ONLY_JPEG
#undef STBI_ONLY_PNG
#undef STBI_ONLY_BMP
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#endif // G3__STB_IMAGE

#ifdef G3__DECODES
enum { G3__IMAGE_FILE = 1 << 30 };     // bytes

typedef struct g3__encoded {           // a picture as its file has it
    const char *name;                  // for sentences
    const uint8_t *p; size_t n;
    uint64_t width, height;            // as stored
    int orientation;                   // EXIF: 1 to 8; 1: upright
    int channels;                      // to decode to; 0: those it has
    uint64_t palette;                  // PNG: where its PLTE chunk begins; 0: none
    g3_error *err;
} g3__encoded;

static uint32_t g3__le16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static uint32_t g3__le32(const uint8_t *p) { return g3__le16(p) | g3__le16(p + 2) << 16; }
static uint32_t g3__be16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t g3__be32(const uint8_t *p) { return g3__be16(p) << 16 | g3__be16(p + 2); }

static bool g3__broken(const g3__encoded *e, const char *why)
{
    return g3__fail(e->err, G3_ERR_FORMAT, "%s: %s", e->name, why) == G3_OK;
}

// Tag 0x0112 of the first directory (TIFF 6.0, EXIF 2.3). What is broken counts as absent.
static int g3__exif_orientation(const uint8_t *p, size_t n)
{
    if (n < 8 || p[0] != p[1] || (p[0] != 'I' && p[0] != 'M')) return 1;
    const bool little = p[0] == 'I';
    const size_t at = little ? g3__le32(p + 4) : g3__be32(p + 4);
    if ((little ? g3__le16(p + 2) : g3__be16(p + 2)) != 42 || at > n - 2) return 1;
    const size_t entries = G3__MIN((size_t)(little ? g3__le16(p + at) : g3__be16(p + at)), (n - at - 2) / 12);
    for (size_t i = 0; i < entries; i++) {
        const uint8_t *entry = p + at + 2 + 12 * i;
        if ((little ? g3__le16(entry) : g3__be16(entry)) != 0x0112) continue;
        const uint32_t v = little ? g3__le16(entry + 8) : g3__be16(entry + 8);
        return v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}

// ---- PNG (W3C, second edition)

static uint32_t g3__crc32(const uint8_t *p, size_t n)
{
    uint32_t table[16], crc = 0xFFFFFFFFu;
    for (uint32_t i = 0; i < 16; i++) {
        table[i] = i;
        for (int k = 0; k < 4; k++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320u : 0);
    }
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

// Deflate makes 258 bytes of two bits at most, and hardly more bytes than it was given: data outside of that cannot be these pixels.
static bool g3__png_data_check(const g3__encoded *e, uint64_t data)
{
    static const uint8_t channels[7] = {1, 0, 3, 1, 2, 0, 4};
    const uint32_t depth = e->p[24], kind = e->p[25];
    if (kind > 6 || !channels[kind] || depth > 16) return g3__broken(e, "no PNG has this colour type and depth");
    const uint64_t row = (e->width * channels[kind] * depth + 7) / 8, raw = row * e->height;
    if (data * 1032 < raw) return g3__broken(e, "the PNG's pixel data ends early");
    return data <= 2 * raw + 65536 || g3__broken(e, "the PNG holds more compressed data than its pixels can need");
}

static bool g3__png_check(g3__encoded *e)
{
    uint64_t at = 8, data = 0;
    for (bool end = false; !end; ) {
        if (e->n - at < 12) return g3__broken(e, "the PNG ends early: it has no IEND");
        const uint8_t *chunk = e->p + at, *type = chunk + 4;
        const uint64_t size = g3__be32(chunk);
        if (size > e->n - at - 12) return g3__broken(e, "the PNG ends early, inside a chunk");
        if (!(type[0] & 0x20) && g3__crc32(type, (size_t)size + 4) != g3__be32(chunk + 8 + size)) return g3__broken(e, "the PNG is damaged: the checksum of a chunk is wrong");
        if (at == 8) {
            if (memcmp(type, "IHDR", 4) || size != 13) return g3__broken(e, "the PNG does not begin with its IHDR chunk");
            e->width = g3__be32(chunk + 8);
            e->height = g3__be32(chunk + 12);
        }
        if (!memcmp(type, "PLTE", 4)) e->palette = at;
        if (!memcmp(type, "IDAT", 4)) data += size;
        if (!memcmp(type, "eXIf", 4)) e->orientation = g3__exif_orientation(chunk + 8, (size_t)size);
        end = !memcmp(type, "IEND", 4);
        at += 12 + size;
    }
    return g3__image_size_check(e->name, G3_ERR_FORMAT, e->width, e->height, e->err) && g3__png_data_check(e, data);
}

// ---- JPEG (ITU T.81)

static uint64_t g3__jpeg_scan_end(const g3__encoded *e, uint64_t at)          // the marker after entropy-coded data; n: there is none
{
    for (; at + 1 < e->n; at++)
        if (e->p[at] == 0xFF && e->p[at + 1] && e->p[at + 1] != 0xFF && (e->p[at + 1] & 0xF8) != 0xD0) return at;
    return e->n;
}

static uint64_t g3__jpeg_marker(const g3__encoded *e, uint64_t at)            // where a marker's code lies, from `at` on; n: nowhere
{
    while (at < e->n && e->p[at] != 0xFF) at++;                               // padding between segments
    while (at < e->n && e->p[at] == 0xFF) at++;
    return at;
}

typedef struct g3__jpeg { bool framed; int n; uint8_t id[4]; bool scanned[4]; } g3__jpeg;     // the frame's components, and which of them a scan has

static bool g3__jpeg_frame(g3__encoded *e, g3__jpeg *j, const uint8_t *p, uint64_t size)
{
    if (j->framed || size < 6 || !p[5] || p[5] > 4 || size < 6 + 3 * (uint64_t)p[5]) return g3__broken(e, "the JPEG's frame header is malformed");
    j->framed = true;
    j->n = p[5];
    e->height = g3__be16(p + 1);
    e->width = g3__be16(p + 3);
    for (int i = 0; i < j->n; i++) j->id[i] = p[6 + 3 * i];
    return g3__image_size_check(e->name, G3_ERR_FORMAT, e->width, e->height, e->err);
}

static bool g3__jpeg_scan(const g3__encoded *e, g3__jpeg *j, const uint8_t *p, uint64_t size)
{
    if (!j->framed || size < 1 || size < 4 + 2 * (uint64_t)p[0]) return g3__broken(e, "the JPEG's scan header is malformed");
    for (int k = 0; k < p[0]; k++)
        for (int i = 0; i < j->n; i++) j->scanned[i] = j->scanned[i] || j->id[i] == p[1 + 2 * k];
    return true;
}

// Huffman tables: a class and number, sixteen counts, as many symbols. stb_image before 2.28 writes past its own tables when there are more than 256.
static bool g3__jpeg_tables(const g3__encoded *e, const uint8_t *p, uint64_t size)
{
    for (uint64_t symbols = 0; size; p += symbols, size -= symbols) {
        symbols = 17;
        for (int i = 1; i < 17 && size >= 17; i++) symbols += p[i];
        if (symbols > size || symbols > 17 + 256) return g3__broken(e, "the JPEG is damaged: a Huffman table is malformed");
    }
    return true;
}

static bool g3__jpeg_check(g3__encoded *e)
{
    g3__jpeg j;
    bool exif = false;
    memset(&j, 0, sizeof j);
    for (uint64_t at = 2;;) {
        at = g3__jpeg_marker(e, at);
        if (at >= e->n) return g3__broken(e, "the JPEG ends early: it has no end marker");
        const int m = e->p[at++];
        if (m == 0xD9) break;
        if (m <= 0x01 || (m >= 0xD0 && m <= 0xD8)) continue;                                  // no segment follows
        const uint64_t size = e->n - at >= 2 ? g3__be16(e->p + at) : 0;
        if (size < 2 || size > e->n - at) return g3__broken(e, "the JPEG ends early, inside a segment");
        const uint8_t *body = e->p + at + 2;
        at += size;
        if (m == 0xE1 && !exif && size >= 8 && !memcmp(body, "Exif\0", 6)) { exif = true; e->orientation = g3__exif_orientation(body + 6, (size_t)size - 8); }
        if (m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xC8 && m != 0xCC && !g3__jpeg_frame(e, &j, body, size - 2)) return false;
        if (m == 0xC4 && !g3__jpeg_tables(e, body, size - 2)) return false;
        if (m != 0xDA) continue;
        if (!g3__jpeg_scan(e, &j, body, size - 2)) return false;
        at = g3__jpeg_scan_end(e, at);
    }
    for (int i = 0; i < j.n; i++) if (!j.scanned[i]) return g3__broken(e, "the JPEG ends early: a colour has no scan");
    if (!j.framed) return g3__broken(e, "the JPEG has no frame");
    return (uint64_t)e->n * 512 >= e->width * e->height || g3__broken(e, "the JPEG's scan data runs out");   // a block of 8 x 8 pixels takes a bit at least
}

// ---- BMP

static bool g3__bmp_check(g3__encoded *e)
{
    if (e->n < 30) return g3__broken(e, "the BMP ends early, inside its header");
    const uint32_t header = g3__le32(e->p + 14), offset = g3__le32(e->p + 10);
    const bool old = header == 12;
    const uint32_t bits = g3__le16(e->p + (old ? 24 : 28)), packing = old || e->n < 34 ? 0 : g3__le32(e->p + 30);
    e->width = old ? g3__le16(e->p + 18) : g3__le32(e->p + 18);
    e->height = old ? g3__le16(e->p + 20) : g3__le32(e->p + 22);
    if (!old && e->height >> 31) e->height = 0x100000000u - e->height;                        // rows from the top down
    if (!g3__image_size_check(e->name, G3_ERR_FORMAT, e->width, e->height, e->err)) return false;
    if (packing == 1 || packing == 2) return g3__broken(e, "the BMP is run-length encoded; only plain ones are read. Save it as PNG");
    if (old && bits < 24) return g3__broken(e, "an OS/2 BMP with a palette is not read. Save it as PNG");
    const uint64_t row = (e->width * bits + 7) / 8, stride = g3__round_up(row, 4), least = 14 + (uint64_t)header + (packing == 3 && header == 40 ? 12 : 0);
    if (offset < least || offset > e->n || (e->height - 1) * stride + row > e->n - offset) return g3__broken(e, "the BMP ends early: its rows are not all there");
    if (bits == 32 && packing == 0) e->channels = 3;                                          // the fourth byte means nothing there
    if (bits > 8) return true;
    const uint32_t colours = (offset - 14 - header) / 4, mask = (1u << bits) - 1;
    for (uint64_t y = 0; y < e->height && colours <= mask; y++)
        for (uint64_t x = 0; x < e->width; x++)
            if ((e->p[offset + y * stride + x * bits / 8] >> (8 - bits - x * bits % 8) & mask) >= colours) return g3__broken(e, "the BMP is damaged: a pixel lies outside its palette");
    return true;
}

// ---- which format

typedef enum g3__image_kind { G3__JPEG, G3__PNG, G3__BMP, G3__NOT_READ } g3__image_kind;
static const struct { uint8_t at; uint8_t n; const char *magic, *name; g3__image_kind kind; } g3__image_kinds[] = {
    {0, 3, "\xFF\xD8\xFF", "JPEG", G3__JPEG}, {0, 8, "\x89PNG\r\n\x1A\n", "PNG", G3__PNG}, {0, 2, "BM", "BMP", G3__BMP},
    {0, 4, "GIF8", "GIF", G3__NOT_READ}, {8, 4, "WEBP", "WebP", G3__NOT_READ}, {0, 4, "II*\0", "TIFF", G3__NOT_READ}, {0, 4, "MM\0*", "TIFF", G3__NOT_READ},
    {4, 8, "ftypavif", "AVIF", G3__NOT_READ}, {4, 8, "ftypavis", "AVIF", G3__NOT_READ}, {4, 7, "ftyphei", "HEIC", G3__NOT_READ}, {4, 7, "ftyphev", "HEIC", G3__NOT_READ},
    {4, 8, "ftypmif1", "HEIF", G3__NOT_READ}, {4, 8, "ftypmsf1", "HEIF", G3__NOT_READ}, {4, 8, "JXL \r\n\x87\n", "JPEG XL", G3__NOT_READ}, {0, 2, "\xFF\x0A", "JPEG XL", G3__NOT_READ},
    {4, 4, "jP  ", "JPEG 2000", G3__NOT_READ}, {0, 4, "qoif", "QOI", G3__NOT_READ}, {0, 4, "8BPS", "Photoshop", G3__NOT_READ}, {0, 4, "\0\0\1\0", "icon", G3__NOT_READ},
    {0, 4, "%PDF", "PDF", G3__NOT_READ}, {0, 4, "<svg", "SVG", G3__NOT_READ}, {0, 5, "<?xml", "SVG or XML", G3__NOT_READ}, {0, 2, "P1", "PBM", G3__NOT_READ}, {0, 2, "P2", "PGM", G3__NOT_READ},
    {0, 2, "P3", "PPM", G3__NOT_READ}, {0, 2, "P4", "PBM", G3__NOT_READ}, {0, 2, "P5", "PGM", G3__NOT_READ}, {0, 2, "P6", "PPM", G3__NOT_READ}, {0, 2, "P7", "PAM", G3__NOT_READ} };

static bool g3__image_look(g3__encoded *e)               // everything that is known without decoding
{
    const char *name = "no picture that is known here";
    g3__image_kind kind = G3__NOT_READ;
    if (!e->n) return g3__broken(e, "the file is empty");
    for (int i = G3__COUNT(g3__image_kinds) - 1; i >= 0; i--) {
        const size_t at = g3__image_kinds[i].at, n = g3__image_kinds[i].n;
        if (e->n >= at + n && !memcmp(e->p + at, g3__image_kinds[i].magic, n)) { name = g3__image_kinds[i].name; kind = g3__image_kinds[i].kind; }
    }
    switch (kind) {
    case G3__JPEG: return g3__jpeg_check(e);
    case G3__PNG:  return g3__png_check(e);
    case G3__BMP:  return g3__bmp_check(e);
    default: return g3__fail(e->err, G3_ERR_UNSUPPORTED, "%s: %s; JPEG, PNG and BMP are read. ImageMagick converts: magick \"%s\" picture.png", e->name, name, e->name) == G3_OK;
    }
}

// ---- decode, lay over white, turn upright

// stb_image leaves colours that a PNG's palette lacks to chance: it gets a copy with all 256, black where there was none.
static uint8_t *g3__png_whole_palette(g3__heap *heap, const g3__encoded *e, size_t *n)
{
    const size_t old = g3__be32(e->p + e->palette), before = (size_t)e->palette, after = before + 12 + old;
    if (!old || old % 3 || old >= 768) return NULL;                           // nothing to add, or stb_image's to refuse
    *n = e->n - old + 768;
    uint8_t *p = (uint8_t *)g3__heap_alloc(heap, *n, 1, e->err);
    if (!p) return NULL;
    memcpy(p, e->p, before + 8 + old);
    p[before + 2] = 3;                                   // 768
    p[before + 3] = 0;
    memcpy(p + before + 12 + 768, e->p + after, e->n - after);
    return p;
}

// out = c * a + white * (1 - a), with the reference's rounding; orientations above 4 exchange rows and columns.
static void g3__image_finish(const g3__encoded *e, const uint8_t *pixels, int channels, int width, int height, uint8_t *rgb)
{
    const int o = e->orientation, wide = o > 4 ? height : width, high = o > 4 ? width : height;
    const bool mirrored = o == 2 || o == 3 || o == 6 || o == 7, upside_down = o == 3 || o == 4 || o == 7 || o == 8;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            const uint8_t *p = pixels + ((size_t)y * (size_t)width + (size_t)x) * (size_t)channels;
            const int to_x = o > 4 ? y : x, to_y = o > 4 ? x : y, alpha = channels % 2 ? 255 : p[channels - 1];
            uint8_t *to = rgb + 3 * ((size_t)(upside_down ? high - 1 - to_y : to_y) * (size_t)wide + (size_t)(mirrored ? wide - 1 - to_x : to_x));
            for (int c = 0; c < 3; c++) to[c] = (uint8_t)((p[channels < 3 ? 0 : c] * alpha + 255 * (255 - alpha) + 127) / 255);
        }
}

static bool g3__image_decode(g3__encoded *e, const g3_allocator *alloc, g3_image *img)
{
    g3__heap heap;
    size_t n = e->n;
    int width = 0, height = 0, channels = 0;
    g3__heap_init(&heap, alloc);
    if (e->n > G3__IMAGE_FILE) return g3__fail(e->err, G3_ERR_FORMAT, "%s: %llu bytes; pictures of up to %d are read", e->name, (unsigned long long)e->n, (int)G3__IMAGE_FILE) == G3_OK;
    if (!g3__image_look(e)) return false;
    uint8_t *copy = e->palette ? g3__png_whole_palette(&heap, e, &n) : NULL;
    uint8_t *pixels = e->err->code ? NULL : (uint8_t *)stbi_load_from_memory(copy ? copy : e->p, (int)n, &width, &height, &channels, e->channels);
    g3__heap_free(&heap, copy, n, 1);
    if (!pixels) return g3__fail(e->err, G3_ERR_FORMAT, "%s: the picture cannot be decoded (stb_image: %s)", e->name, stbi_failure_reason() ? stbi_failure_reason() : "no reason given") == G3_OK;
    if (e->channels) channels = e->channels;
    const size_t size = 3 * (size_t)width * (size_t)height;
    uint8_t *rgb = (uint64_t)width == e->width && (uint64_t)height == e->height ? (uint8_t *)g3__heap_take(&heap, size, 1, e->err) : NULL;
    if (rgb) {
        g3__image_finish(e, pixels, channels, width, height, rgb);
        img->rgb = rgb;
        img->width = e->orientation > 4 ? height : width;
        img->height = e->orientation > 4 ? width : height;
    }
    stbi_image_free(pixels);
    return rgb || g3__broken(e, "the decoded picture has another size than its header says");
}
#endif // G3__DECODES

static bool g3__image_from(const char *name, const void *data, size_t size, const g3_allocator *alloc, g3_image *img, g3_error *err)
{
#ifdef G3__DECODES
    g3__encoded e = G3__ZERO;
    e.name = name;
    e.p = (const uint8_t *)data;
    e.n = size;
    e.orientation = 1;
    e.err = err;
    return g3__image_decode(&e, alloc, img);
#else
    (void)data; (void)size; (void)alloc; (void)img;
    return g3__fail(err, G3_ERR_UNSUPPORTED, "%s: this build decodes no pictures; compile it where stb_image.h is found (Debian: libstb-dev), or give the pixels as a g3_image", name) == G3_OK;
#endif
}

static bool g3__image_file(const char *path, const g3_allocator *alloc, g3_image *img, g3_error *err)
{
#if defined(GEMMA3_NO_STDIO) || !defined(G3__DECODES)
#ifdef G3__DECODES
    (void)alloc; (void)img;
    return g3__fail(err, G3_ERR_UNSUPPORTED, "%s: this build has no file system (GEMMA3_NO_STDIO): give the file's bytes to g3_image_load_memory", path) == G3_OK;
#else
    return g3__image_from(path, NULL, 0, alloc, img, err);
#endif
#else
    uint64_t size = 0;
    g3__heap heap;
    g3__heap_init(&heap, alloc);
    void *file = g3__os_open_path(path, &size), *data = NULL;
    if (!file) return g3__fail(err, G3_ERR_IO, "%s: no readable file of that name", path) == G3_OK;
    if (size > G3__IMAGE_FILE) g3__fail(err, G3_ERR_FORMAT, "%s: %llu bytes; pictures of up to %d are read", path, (unsigned long long)size, (int)G3__IMAGE_FILE);
    else data = g3__heap_take(&heap, size, 1, err);
    if (data && size && g3__os_read(NULL, file, 0, data, (size_t)size)) g3__fail(err, G3_ERR_IO, "%s: its %llu bytes cannot be read", path, (unsigned long long)size);
    g3__os_close(NULL, file);
    const bool ok = data && !err->code && g3__image_from(path, data, (size_t)size, alloc, img, err);
    g3__heap_free(&heap, data, size, 1);
    return ok;
#endif
}

// ------------------------------------------------------------------------------------------------------------------
// >>ops
// Owns the vocabulary of the forward pass: what a matrix, a norm, an attention, a cache and a row are, the scratch that
// one session needs, and the table of operations that a backend fills. >>forward is written over it and sees nothing else.

// ---- weights: data that says everything about itself, so that every layer runs through the same code

typedef struct g3__seg {               // rows of a matrix that share one storage
    int rows;                          // 0: the segment is not there
    g3__bits bits;                     // [rows][cols]
    g3__bits bias;                     // [rows]; data NULL: none
} g3__seg;

typedef struct g3__mat {               // y = W x. q|k|v and gate|up are stacks: published files mix 4-bit and 16-bit inside one
    int rows, cols, n_segs;            // rows: the sum of the segments'
    g3__seg seg[3];
    bool transposed;                   // stored as [cols][rows] (the vision projector); then one segment
} g3__mat;

typedef struct g3__norm {
    bool layer;                        // LayerNorm (x - mean) / sqrt(var + eps) * w + b, else RMSNorm x / sqrt(mean(x^2) + eps) * (1 + w)
    int dim;                           // 0: no norm
    float eps;
    g3__bits w, b;                     // [dim]
} g3__norm;

typedef struct g3__attn {
    int heads, kv_heads, head_dim;     // query head h reads kv head h / (heads / kv_heads)
    int window;                        // a row at position p sees the positions above p - window; 0: all
    float scale;                       // query_pre_attn_scalar^-0.5, not head_dim^-0.5
    float theta, factor;               // angle of pair j at position p: p * theta^(-2j/head_dim) / factor
    int angles;                        // which of the run's angle tables holds them: 0 or 1; -1: no rotation
    g3__norm q_norm, k_norm;           // RMSNorms over head_dim, the same weights for every head; dim 0: none
} g3__attn;

typedef struct g3__kv {                // one layer's cache: position p lies in row p % rows
    g3_kv format;
    int rows, kv_heads, head_dim;      // rows: the context, or for windowed layers at least window + batch
    void *k, *v;                       // [kv_heads][rows][head_dim] float32, bf16, fp8 e4m3 or int8
    float *k_scale, *v_scale;          // [kv_heads][rows], fp8 and int8 only
} g3__kv;

static int  g3__kv_size(g3_kv format)   { return format == G3_KV_F32 ? 4 : format == G3_KV_FP8 || format == G3_KV_INT8 ? 1 : 2; }   // bytes of one number
static bool g3__kv_scaled(g3_kv format) { return format == G3_KV_FP8 || format == G3_KV_INT8; }                                     // has a float32 per row and head

typedef struct g3__row { int pos, span, seq; } g3__row;   // position; last position it may see (its own, or the end of its image); which sequence's cache

// ---- towers: layers over one residual stream. Text and vision differ in data only

typedef struct g3__ops g3__ops;

typedef struct g3__layer {
    const g3__ops *op;
    g3__norm norm_att, post_att, norm_ffn, post_ffn;   // vision has no post norms
    g3__mat qkv, wo, gate_up, down;                    // [(heads + 2 kv_heads) head_dim][dim], [dim][heads head_dim], [2 ffn][dim] (vision: [ffn][dim]), [dim][ffn]
    g3__attn att;
} g3__layer;

typedef struct g3__tower { int layers, dim; float embed_scale; g3__layer *layer; } g3__tower;

// A head screened by an int8 copy of itself. Row r of W is near scale[r] codes[r], and |W[r] x - scale[r] codes[r] x| <= bound[r] |x| for every x
// (Cauchy-Schwarz, with the norm of what rounding took away; the rounding of both sums is in it, too).
typedef struct g3__screen {
    int rows;                          // the first rows of the head: those that are ever drawn; a multiple of 16; 0: none
    int8_t *codes;                     // [rows / 16][cols][16]
    float *scale, *bound;              // [rows]
} g3__screen;

// ---- scratch: one list of buffers, from which the plan counts and the session carves

enum {
    G3__KEYS       = 64,               // attention works on 64 keys at a time
    G3__QUERY_ROWS = 8,                // times the queries of 8 rows, in plain C
    G3__KEYS_LD    = G3__KEYS + 16,    // which lie, transposed, an odd number of cache lines apart: a power of two would crowd them into few sets
    G3__QUERIES    = 128,              // by vector units: times 128 queries,
    G3__PART       = 256               // and a softmax begins afresh every 256 positions, to be merged
};

typedef struct g3__shape {             // all that the size of a tower's scratch depends on
    int batch;                         // rows of a step
    int dim, ffn, heads, kv_heads, head_dim;
    bool gated;                        // gate and up, else one projection
    int kinds;                         // angle tables: text 2, vision 0
    int context;                       // positions that a single row may see; 0: a single row is never cut into parts
    int width;                         // bodies that may run at once: g3__pool_width
    int screen;                        // rows of a screened head
    bool card;                         // the buffers are a card's
} g3__shape;

typedef struct g3__acts {              // all float32
    float *x;                          // [batch][dim]                              the residual stream
    float *h;                          // [batch][dim]                              normed, on its way into a projection
    float *qkv;                        // [batch][(heads + 2 kv_heads) head_dim]    heads of q, of k, of v
    float *att;                        // [batch][heads head_dim]                   concatenated heads
    float *out;                        // [batch][dim]                              a branch before it is added
    float *gu;                         // [batch][2 ffn], ungated [batch][ffn]      gate, then up
    float *act;                        // [batch][ffn], ungated none                gelu(gate) * up
    float *angle;                      // [kinds][batch][head_dim / 2][2]           cos and sin of every row's angles, once per step
    float *freq;                       // [kinds][head_dim / 2]                     angle per position
    float *gain;                       // [2][max(dim, head_dim)]                   a norm's weights as float32
    float *work;                       // [width][g3__work_each]                    attention, one slice per body
    float *parts;                      // [g3__parts][heads][head_dim + 2]          a single row's attention, part by part
    float *sieve;                      // [3][tiles of the screened head]           per tile: the most and the least its best row can be; the least again, to be sorted
} g3__acts;

typedef struct g3__acts_item { const char *line, *name; size_t member; uint64_t count; } g3__acts_item;   // of the plan, of the buffer; offset of the pointer in g3__acts; floats
enum { G3__ACTS_ITEMS = 13 };
enum { G3__ACTS_COMMON = 6 };          // the items from here on are laid out alike for text and vision

// a * b * c, or UINT64_MAX where that does not fit: the plan then finds it too large.
static uint64_t g3__acts_count(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t n;
    return g3__mul(a, b, &n) && g3__mul(n, c, &n) && n <= UINT64_MAX / sizeof(float) ? n : UINT64_MAX;
}

static uint64_t g3__lanes_of(uint64_t head_dim) { return g3__round_up(head_dim, 16) | 16; }      // a head's numbers in whole vectors, an odd number of them likewise

// Floats of attention scratch for one body. Plain: a block of keys or values, and per query its scores, its maximum and its sum.
// By vector units: a block of keys and of values, and per query the query, two outputs, the scores, twice maximum and sum, and the fade.
static uint64_t g3__work_each(const g3__shape *s)
{
    uint64_t head = (uint64_t)s->head_dim, wide = g3__lanes_of(head), queries = (uint64_t)G3__QUERY_ROWS * (uint64_t)(s->heads / s->kv_heads);
    uint64_t plain = G3__KEYS * head + queries * (G3__KEYS + 2), simd = G3__KEYS_LD * head + G3__KEYS * wide + G3__QUERIES * (head + 2 * wide + G3__KEYS + 5);
    return g3__round_up(G3__MAX(plain, simd), G3__ALIGN / sizeof(float));
}

static uint64_t g3__parts(const g3__shape *s) { return s->context ? (uint64_t)s->context / G3__PART + 2 : 0; }

static void g3__acts_sizes(const g3__shape *s, g3__acts_item item[G3__ACTS_ITEMS])
{
    const uint64_t n = (uint64_t)s->batch, dim = (uint64_t)s->dim, ffn = (uint64_t)s->ffn, head = (uint64_t)s->head_dim, kinds = (uint64_t)s->kinds;
    const uint64_t q = (uint64_t)s->heads, kv = (uint64_t)s->kv_heads;
    int i = 0;
#define G3__ITEM(what, field, a, b, c) do { item[i].line = "scratch: " what; item[i].name = #field; item[i].member = offsetof(g3__acts, field); item[i].count = g3__acts_count(a, b, c); i++; } while (0)
    G3__ITEM("activations", x,     n, dim, 1);
    G3__ITEM("activations", h,     n, dim, 1);
    G3__ITEM("activations", qkv,   n, q + 2 * kv, head);
    G3__ITEM("activations", att,   n, q, head);
    G3__ITEM("activations", out,   n, dim, 1);
    G3__ITEM("activations", gu,    n, s->gated ? 2 : 1, ffn);
    G3__ITEM("activations", act,   n, s->gated ? 1 : 0, ffn);
    G3__ITEM("activations", angle, kinds, n, head);
    G3__ITEM("activations", freq,  kinds, head / 2, 1);
    G3__ITEM("activations", gain,  s->card ? 0 : 2, G3__MAX(dim, head), 1);
    G3__ITEM("attention",   work,  s->card ? 0 : (uint64_t)s->width, g3__work_each(s), 1);
    G3__ITEM("attention",   parts, g3__parts(s), q, head + 2);
    G3__ITEM("logits",      sieve, 3, (uint64_t)s->screen / G3__TILE_ROWS, 1);
#undef G3__ITEM
}

// ---- a run: what the operations of one session work on. Nothing in it is allocated; the session owns all it points to

typedef struct g3__simd g3__simd;      // the hot loops of one instruction set, see >>simd
typedef struct g3__card g3__card;      // a card, and
typedef struct g3__tape g3__tape;      // what of a session's step is recorded for it, see >>cuda

typedef struct g3__run {
    const g3__ops *op;
    const g3__simd *simd;              // NULL: plain C
    g3_error *err;                     // sticky: after the first failure every operation returns at once
    g3__pool *pool;
    const g3_allocator *memory;        // for alloc and release
    g3__card *card;                    // NULL: the CPU
    g3__tape *tape;
    const g3__tower *tower;            // the tower being run, and its layer (-1: outside the layers): what an observer names an operation by
    int layer;
    g3__kv **kv;                       // [layers][sequences]
    g3__row *rows;                     // [batch]
    g3__shape shape;
    g3__acts a;
    void (*tick)(struct g3__run *r);   // called between the layers of the vision tower, of which r->layer are done; NULL: nobody asks
} g3__run;

// ---- the table of operations
//
// * n is rows (tokens, patches), 1 <= n <= batch. Decoding is n = 1, a prompt is larger n, chunks are several calls: there is no second code path
//   above the table. A backend may do what it likes inside an operation as long as a row's numbers do not depend on n or on the other rows.
// * Nothing is returned. The first failure sticks in r->err and later operations return at once; the caller looks after the step.
// * g3__mat hides the storage, g3__norm the kind of norm, g3__attn heads, scale, rotation and window: local and global layers and both towers
//   share all code.
// * Activations are float32, row-major, the rows next to each other: y of `linear` has stride W->rows, x has stride W->cols.
//   y and x do not overlap, except where y is the only argument.
// * `rope` appends all n rows to the cache before `attend` reads any. A windowed ring has at least window + batch rows, so the step's first
//   row still finds its window. rows[t].span is the last position row t may see; an image lies inside one step.
// * Rows may belong to different sequences (rows[t].seq): decoding a batch of conversations needs no new operation.
// * r->a.h belongs to the norm inside `linear` and `add`: without a norm they leave it alone, and the vision tower lays it over r->a.out.
// * Buffers come from `alloc` and are opaque outside the table; `upload` and `download` copy between them and host memory. Sizes are bytes.
// * desc.probe wraps the table by one that calls the probe after each operation; r->tower, r->layer and the operands name it.

struct g3__ops {
    const char *name;
    void *(*alloc)   (g3__run *r, size_t size);                                        // NULL: r->err is set
    void  (*release) (g3__run *r, void *buf, size_t size);
    void  (*upload)  (g3__run *r, void *dst, const void *src, size_t size);
    void  (*download)(g3__run *r, void *dst, const void *src, size_t size);
    void  (*move)    (g3__run *r, void *dst, const void *src, size_t size);            // from buffer to buffer
    void  (*begin)   (g3__run *r, int n);                                              // r->tower and r->rows are set: angles are computed here
    void  (*end)     (g3__run *r);
    void  (*embed)   (g3__run *r, float *y, const g3__mat *E, const int *ids, int n, float scale);           // y = scale * E[ids]; ids NULL: 0, 1, 2, …; an id < 0 leaves its row as it is
    void  (*linear)  (g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, int n);   // y = W norm(x) + b; norm NULL: none
    void  (*norm)    (g3__run *r, float *y, const float *x, const g3__norm *norm, int n);                    // y = norm(x)
    void  (*rope)    (g3__run *r, float *qkv, const g3__attn *a, g3__kv *kv, const g3__row *rows, int n);     // norm and rotate q and k in place, append k and v
    void  (*attend)  (g3__run *r, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n);
    void  (*add)     (g3__run *r, float *x, const float *y, const g3__norm *norm, int dim, int n);           // x += norm(y); norm NULL: x += y
    void  (*geglu)   (g3__run *r, float *y, const float *gu, int m, int n);                                  // y[m] = gelu(gu[0..m)) * gu[m..2m)
    void  (*gelu)    (g3__run *r, float *y, int m, int n);
    void  (*pool)    (g3__run *r, float *y, const float *x, int side, int k, int dim);                       // means of k*k patches of a side*side grid
    void  (*screen)  (g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, const g3__screen *s, int drawn, int k);     // y = W norm(x) for at least the k largest of `drawn` rows, else -infinity; NULL: not here
};
// ------------------------------------------------------------------------------------------------------------------
// >>forward
// The model. Everything before this page prepares its data, everything after it makes it fast or gives it a use.
// Shapes: n rows; a->x is the residual stream [n][dim]; a matrix [out][in] maps a row of `in` numbers to one of `out`.

static void g3__text_layer(g3__run *r, const g3__layer *L, g3__kv *kv, int n)
{
    const g3__ops *op = L->op;
    g3__acts *a = &r->a;

    // x += norm(Wo attend(rope(Wqkv norm(x))))
    op->linear(r, a->qkv, a->x, &L->norm_att, &L->qkv, n);
    op->rope  (r, a->qkv, &L->att, kv, r->rows, n);
    op->attend(r, a->att, a->qkv, &L->att, kv, r->rows, n);
    op->linear(r, a->out, a->att, NULL, &L->wo, n);
    op->add   (r, a->x, a->out, &L->post_att, L->wo.rows, n);

    // x += norm(Wd (gelu(Wg norm(x)) * Wu norm(x)))
    op->linear(r, a->gu, a->x, &L->norm_ffn, &L->gate_up, n);
    op->geglu (r, a->act, a->gu, L->down.cols, n);
    op->linear(r, a->out, a->act, NULL, &L->down, n);
    op->add   (r, a->x, a->out, &L->post_ffn, L->down.rows, n);
}

// One step: n tokens at the positions of r->rows go through all layers. Rows whose id is negative are an image's, and lie in a->x already.
static void g3__text_forward(g3__run *r, const g3__tower *t, const g3__mat *E, const int *ids, int n)
{
    r->tower = t;
    r->layer = -1;
    r->op->begin(r, n);
    r->op->embed(r, r->a.x, E, ids, n, t->embed_scale);               // sqrt(dim) rounded to bf16, whatever the type of E
    for (r->layer = 0; r->layer < t->layers; r->layer++)
        g3__text_layer(r, &t->layer[r->layer], r->kv[r->layer], n);
    r->layer = -1;
    r->op->end(r);
}

// y = Whead norm(x): logits [n][vocab] of rows first, first + 1, … of the last step. The head is E itself when tied, without its scale.
static void g3__logits(g3__run *r, const g3__mat *head, const g3__norm *final, int first, int n, float *y)
{
    r->op->linear(r, y, r->a.x + (size_t)first * (size_t)head->cols, final, head, n);
}

// What lies around the layers of the vision tower.
typedef struct g3__vit {
    g3__tower tower;
    g3__mat embed, positions;          // [dim][3 patch^2] with bias, [patches][dim]
    g3__norm post, soft;               // LayerNorm after the layers; RMSNorm before the projector
    g3__mat proj;                      // [text dim][dim], transposed
    int side, pool;                    // patches along an edge; pool * pool patches become one row
} g3__vit;

#ifndef GEMMA3_NO_VISION
static void g3__vit_layer(g3__run *r, const g3__layer *L, g3__kv *kv, int n)
{
    const g3__ops *op = L->op;
    g3__acts *a = &r->a;

    // x += Wo attend(Wqkv norm(x))
    op->linear(r, a->qkv, a->x, &L->norm_att, &L->qkv, n);
    op->rope  (r, a->qkv, &L->att, kv, r->rows, n);                   // no rotation and no norm, K and V are appended
    op->attend(r, a->att, a->qkv, &L->att, kv, r->rows, n);           // every row's span is the whole image
    op->linear(r, a->out, a->att, NULL, &L->wo, n);
    op->add   (r, a->x, a->out, NULL, L->wo.rows, n);

    // x += W2 gelu(W1 norm(x))
    op->linear(r, a->gu, a->x, &L->norm_ffn, &L->gate_up, n);
    op->gelu  (r, a->gu, L->down.cols, n);
    op->linear(r, a->out, a->gu, NULL, &L->down, n);
    op->add   (r, a->x, a->out, NULL, L->down.rows, n);
}

// One image: patches [side^2][3 patch^2] become y [(side / pool)^2][text dim], rows of the text's residual stream.
static void g3__vit_forward(g3__run *r, const g3__vit *v, const float *patches, float *y)
{
    const g3__ops *op = r->op;
    const g3__tower *t = &v->tower;
    const int n = v->side * v->side, soft = n / (v->pool * v->pool);
    g3__acts *a = &r->a;

    r->tower = t;
    r->layer = -1;
    op->begin (r, n);
    op->linear(r, a->x, patches, NULL, &v->embed, n);
    op->embed (r, a->out, &v->positions, NULL, n, 1.0f);
    op->add   (r, a->x, a->out, NULL, t->dim, n);
    for (r->layer = 0; r->layer < t->layers; r->layer++) {
        if (r->tick) r->tick(r);
        g3__vit_layer(r, &t->layer[r->layer], r->kv[0], n);           // no layer needs the cache of another
    }
    if (r->tick) r->tick(r);
    r->layer = -1;
    op->norm  (r, a->out, a->x, &v->post, n);
    op->pool  (r, a->att, a->out, v->side, v->pool, t->dim);
    op->linear(r, y, a->att, &v->soft, &v->proj, soft);
    op->end   (r);
}
#endif
// ------------------------------------------------------------------------------------------------------------------
// >>sampler
// Owns the way from one row of logits to a token, and the watch for stop strings. The session is its only caller.
// It knows nothing of models, allocates nothing, and touches each logit a small, fixed number of times: O(vocab), never a sort.

// ---- the settings in use

// A checkpoint's own settings, else those of the model card. Zero in `gc` means that generation_config.json is silent.
// A checkpoint that asks for greedy gets it, unless the user gave any setting that only sampling has.
static g3_sampler g3__sampler_defaults(const g3_sampler *p, const g3__generation_config *gc)
{
    g3_sampler d = G3__ZERO;
    if (p) d = *p;
    if (gc && gc->greedy && d.temperature == 0 && d.top_k == 0 && d.top_p == 0 && d.min_p == 0) d.greedy = true;
    if (d.temperature == 0) d.temperature = gc && gc->temperature > 0 ? gc->temperature : 1.0f;
    if (d.top_k == 0) d.top_k = gc && gc->top_k ? gc->top_k : 64;
    if (d.top_p == 0) d.top_p = gc && gc->top_p > 0 ? gc->top_p : 0.95f;
    if (d.min_p == 0) d.min_p = gc ? gc->min_p : 0;
    if (d.repeat_penalty == 0) d.repeat_penalty = gc && gc->repeat_penalty > 0 ? gc->repeat_penalty : 1.0f;
    return d;
}

// Each comparison is written so that NaN fails it.
static bool g3__sampler_check(const g3_sampler *p, g3_error *err)
{
    if (!(p->temperature >= 0 && p->temperature <= FLT_MAX))
        return g3__fail(err, G3_ERR_ARGUMENT, "temperature %g is not a number from 0 up; 0 takes the default, `greedy` is the cold end", (double)p->temperature) == G3_OK;
    if (!(p->top_p <= 1))
        return g3__fail(err, G3_ERR_ARGUMENT, "top_p %g is not a probability; give 0 to 1, or less than 0 for off", (double)p->top_p) == G3_OK;
    if (!(p->min_p <= 1))
        return g3__fail(err, G3_ERR_ARGUMENT, "min_p %g is not a probability; give 0 to 1, 0 for off", (double)p->min_p) == G3_OK;
    if (!(p->repeat_penalty >= 0 && p->repeat_penalty <= FLT_MAX))
        return g3__fail(err, G3_ERR_ARGUMENT, "repeat_penalty %g is not a number from 0 up; 1 or 0 is off, 1.1 is mild", (double)p->repeat_penalty) == G3_OK;
    return true;
}

// ---- one uniform number per (seed, position)

static uint64_t g3__mix(uint64_t x)                      // the finisher of splitmix64 (Steele, Lea, Flood 2014): a bijection that flips half of the bits
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

// Number `position` of the splitmix64 sequence that starts at mix(seed): in [0, 1), 53 bits, with no state to keep, so
// that rewinding and replaying draws the same. The seed is mixed first, or the sequences of near seeds would overlap.
static double g3__uniform(uint64_t seed, uint64_t position)
{
    uint64_t x = g3__mix(g3__mix(seed) + (position + 1) * 0x9E3779B97F4A7C15u);
    return (double)(x >> 11) * (1.0 / 9007199254740992.0);
}

// ---- the distribution and its filters, in the order of transformers (generation/logits_process.py)
//
// Whatever survives the filters lies above one edge in the order of the logits. So nothing is collected and nothing is
// sorted: each filter only moves the edge, and the edge is found by summing in bins, ever finer ones. The work memory
// is a few numbers per run of 256 tokens and one bit per token, however many survive.

enum { G3__BINS = 1024, G3__RUN = 256, G3__BANNED = 16 };

typedef struct g3__sample_in {
    float *logits; int vocab;          // [vocab] as the model gave them; padded rows, from `vocab` up, do not exist here. What the hook writes stays, all else is left as it was
    const int *held; int n_held;       // the ids in context, for the repeat penalty
    const int *banned; int n_banned;   // ids that are never drawn, at most G3__BANNED
    const g3_sampler *p;               // zeros replaced by g3__sampler_defaults
    uint64_t seed, position;           // position: where the new token will stand
    void *work;                        // g3__sample_work(vocab) bytes, 8-byte aligned
} g3__sample_in;

typedef struct g3__bin { double sum; float lo, hi; } g3__bin;          // of the logits in it: their number or weight, the smallest, the largest

typedef struct g3__draw {
    const float *logits; int vocab, runs;   // [vocab], in `runs` runs of 256
    float penalty, temperature, min_p;
    float max;                         // the largest logit after penalty and temperature; it weighs 1
    float edge; int last;              // survivors: logits above `edge`, and those equal to it whose id is at most `last`
    g3__bin *bin;                      // [G3__BINS] scratch
    double *sum;                       // [runs] the survivors' weight in each run
    float *top;                        // [runs] largest logit of each run: runs below the edge are not looked at again
    uint32_t *held;                    // one bit per id: it is in the context. NULL: no repeat penalty
} g3__draw;

static int g3__sample_runs(int vocab) { return (vocab + G3__RUN - 1) / G3__RUN; }

static uint64_t g3__sample_work(int vocab)               // 60 KiB for 262,144 tokens
{
    uint64_t runs = (uint64_t)g3__sample_runs(vocab);
    return G3__BINS * sizeof(g3__bin) + runs * (sizeof(double) + sizeof(float) + G3__RUN / 8) + 8;
}

// e^x for -88 <= x <= 0, to one unit in the last place; 0 below -87.7. The same bits with every C library, and the loop
// below becomes vectors: e^x = 2^n e^r with r = x - n ln 2, |r| <= 0.35, and the series of e^r to the seventh power.
static float g3__exp(float x)
{
    int n = (int)(x * 1.442695041f - 0.5f);
    float k = (float)n, r = (x - k * 0.693359375f) + k * 2.12194440e-4f;                  // ln 2 in two parts; k times the first is exact
    float e = 1 + r * (1 + r * (1.0f / 2 + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120 + r * (1.0f / 720 + r * (1.0f / 5040)))))));
    uint32_t bits = (uint32_t)(n + 127) << 23;
    memcpy(&k, &bits, sizeof k);                                                          // 2^n, and 0 for n = -127
    return e * k;
}

static void g3__exp_row(const float *z, float max, float *w, int n)     // w = e^(z - max). Two loops: gcc makes vectors of neither when they are one
{
    for (int i = 0; i < n; i++) w[i] = z[i] - max > -88.0f ? z[i] - max : -88.0f;
    for (int i = 0; i < n; i++) w[i] = g3__exp(w[i]);
}

static double g3__sum(const float *w, int n)
{
    double s[4] = { 0, 0, 0, 0 };
    int i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) s[j] += (double)w[i + j];
    for (; i < n; i++) s[0] += (double)w[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

static float g3__max_of(const float *z, int n)           // 32 maxima side by side make vectors too
{
    float m[32], max = -INFINITY;
    int i = 0;
    for (int j = 0; j < 32; j++) m[j] = max;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 32; j++) m[j] = z[i + j] > m[j] ? z[i + j] : m[j];
    for (; i < n; i++) m[0] = G3__MAX(m[0], z[i]);
    for (int j = 0; j < 32; j++) max = G3__MAX(max, m[j]);
    return max;
}

// z' = (z < 0 ? z r : z / r) / temperature, r only for ids in the context: in `room`, or where they lie if nothing changes.
// Kept finite from above, so that a hook may force a token with a huge logit. -Inf is what a mask is, and fills the last run.
static const float *g3__run_logits(const g3__draw *d, int run, float *room)      // [G3__RUN]
{
    int first = run * G3__RUN, n = G3__MIN(d->vocab - first, (int)G3__RUN);
    float *z = room;
    if (n == G3__RUN && !d->held && d->temperature == 1) return d->logits + first;
    memcpy(z, d->logits + first, (size_t)n * sizeof *z);
    for (int i = n; i < G3__RUN; i++) z[i] = -INFINITY;
    for (int i = 0; d->held && i < n; i++) {
        uint32_t bits = d->held[(first + i) >> 5] >> (i & 31);
        if (!bits) i |= 31;                              // none of the next ones either
        else if (bits & 1) z[i] = z[i] < 0 ? z[i] * d->penalty : z[i] / d->penalty;
    }
    for (int i = 0; i < G3__RUN; i++) z[i] /= d->temperature;
    for (int i = 0; i < G3__RUN; i++) z[i] = z[i] < FLT_MAX ? z[i] : FLT_MAX;
    return z;
}

// Those of them from lo to hi, moved together; how many.
static int g3__run_between(const g3__draw *d, int run, float lo, float hi, float *out)   // [G3__RUN]
{
    int n = 0;
    if (d->top[run] < lo) return 0;
    const float *z = g3__run_logits(d, run, out);
    for (int i = 0; i < G3__RUN; i++) {
        out[n] = z[i];                                   // no branch: which ones stay is anybody's guess
        n += (z[i] >= lo) & (z[i] <= hi);
    }
    return n;
}

// The survivors' softmax before its division, and its sum; what the filters took weighs 0.
static double g3__run_weights(const g3__draw *d, int run, float *w)   // [G3__RUN]
{
    float room[G3__RUN];
    const float *z = g3__run_logits(d, run, room);
    int first = run * G3__RUN;
    g3__exp_row(z, d->max, w, G3__RUN);
    for (int i = 0; i < G3__RUN; i++) w[i] = ((z[i] < d->edge) | (w[i] < d->min_p)) ? 0 : w[i];    // p < min_p * largest p, and the largest weighs 1
    for (int i = G3__MAX(d->last + 1 - first, 0); i < G3__RUN; i++)
        if (z[i] == d->edge) w[i] = 0;
    return g3__sum(w, G3__RUN);
}

static double g3__mass(const g3__draw *d)                // of all survivors; d->sum becomes that of each run
{
    float w[G3__RUN];
    double all = 0;
    for (int run = 0; run < d->runs; run++) {
        d->sum[run] = d->top[run] < d->edge ? 0 : g3__run_weights(d, run, w);
        all += d->sum[run];
    }
    return all;
}

// ---- the edge

typedef struct g3__grid { float lo, hi; double scale; } g3__grid;     // bins over the logits from lo to hi; what lies outside is in none

static g3__grid g3__grid_make(float lo, float hi)
{
    g3__grid g;
    g.lo = lo;
    g.hi = hi;
    g.scale = lo < hi ? (G3__BINS - 1) / ((double)hi - (double)lo) : 0;
    return g;
}

// Each token counts one, or its weight. Rounding never turns the order round: a larger logit is in no lower bin.
static void g3__grid_fill(const g3__draw *d, const g3__grid *g, bool mass)
{
    float z[G3__RUN], w[G3__RUN];
    for (int b = 0; b < G3__BINS; b++) { d->bin[b].sum = 0; d->bin[b].lo = g->hi; d->bin[b].hi = g->lo; }
    for (int run = 0; run < d->runs; run++) {
        int n = g3__run_between(d, run, g->lo, g->hi, z);
        if (mass) g3__exp_row(z, d->max, w, n);
        for (int i = 0; i < n; i++) {
            g3__bin *b = &d->bin[(int)(((double)z[i] - (double)g->lo) * g->scale)];
            b->sum += mass ? (double)w[i] : 1.0;
            b->lo = G3__MIN(b->lo, z[i]);
            b->hi = G3__MAX(b->hi, z[i]);
        }
    }
}

// From the top bin down: the one in which the sum reaches `target`; *above becomes what lies above it. Rounding may
// leave the last sum a hair short: then it is the lowest bin that holds anything.
static int g3__grid_cut(const g3__draw *d, double target, double *above)
{
    double sum = *above;
    int cut = 0;
    for (int b = G3__BINS - 1; b >= 0; b--) {
        if (d->bin[b].sum == 0) continue;
        *above = sum;
        cut = b;
        sum += d->bin[b].sum;
        if (sum >= target) break;
    }
    return cut;
}

// A bin with a single logit t in it, such that  sum over larger ones  <  target  <=  sum over t and larger ones. Each
// token counts one, or its weight; then *target comes as a share and becomes a sum. Each grid covers one bin of the grid
// before, from the smallest to the largest logit in it, and at least those two come apart: it always gets to one logit.
static g3__bin g3__cut(const g3__draw *d, float lo, bool mass, double *target, double *above)
{
    g3__grid g = g3__grid_make(lo, d->max);
    double all = 0;
    g3__grid_fill(d, &g, mass);
    for (int b = 0; b < G3__BINS; b++) all += d->bin[b].sum;
    if (mass) *target *= all;
    *above = 0;
    for (;;) {
        const g3__bin *b = &d->bin[g3__grid_cut(d, *target, above)];
        if (b->lo >= b->hi) return *b;
        g = g3__grid_make(b->lo, b->hi);
        g3__grid_fill(d, &g, mass);
    }
}

static float g3__kth_largest(float *v, int n, int k)     // Hoare's FIND, in place; 1 <= k <= n
{
    int lo = 0, hi = n - 1;
    while (lo < hi) {
        float pivot = v[lo + (hi - lo) / 2];
        int i = lo, j = hi;
        while (i <= j) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i <= j) { float t = v[i]; v[i++] = v[j]; v[j--] = t; }
        }
        if (k - 1 <= j) hi = j;
        else if (k - 1 >= i) lo = i;
        else break;
    }
    return v[k - 1];
}

// Top-k: the edge moves to the k-th largest logit; ties with it stay, as in the reference. That logit is no smaller than
// the k-th largest of the runs' maxima, which leaves few runs to look at.
static void g3__filter_top_k(g3__draw *d, int k)
{
    double target = k, above;
    float *top = (float *)d->sum;                        // free until the draw
    if (k < 1 || k >= d->vocab) return;
    if (k <= d->runs) {
        memcpy(top, d->top, (size_t)d->runs * sizeof *top);
        d->edge = G3__MAX(d->edge, g3__kth_largest(top, d->runs, k));
    }
    d->edge = g3__cut(d, d->edge, false, &target, &above).lo;
}

static int g3__nth_equal(const g3__draw *d, float value, double n)    // the id of the n-th token with this logit, the last one if there are fewer
{
    float room[G3__RUN];
    int id = -1;
    for (int run = 0; run < d->runs && n >= 1; run++) {
        if (d->top[run] < value) continue;
        const float *z = g3__run_logits(d, run, room);
        for (int i = 0; i < G3__RUN && n >= 1; i++)
            if (z[i] == value) { id = run * G3__RUN + i; n -= 1; }
    }
    return id;
}

// Top-p: a token stays while the probability of all larger ones is below p; the largest always stays. Of equal ones at
// the edge as many stay as are needed, lowest ids first (the reference leaves open which).
static void g3__filter_top_p(g3__draw *d, float p)
{
    double target = (double)p, above;
    if (p < 0 || p >= 1) return;
    g3__bin ties = g3__cut(d, G3__MAX(d->edge, d->max - 87), true, &target, &above);      // below that nothing weighs anything
    double weight = (double)g3__exp(ties.lo - d->max), need = ceil((target - above) / weight), have = floor(ties.sum / weight + 0.5);
    d->edge = ties.lo;
    if (need < have) d->last = g3__nth_equal(d, d->edge, G3__MAX(need, 1.0));
}

static void g3__draw_init(g3__draw *d, const g3__sample_in *in)
{
    const g3_sampler *p = in->p;
    d->logits = in->logits;
    d->vocab = in->vocab;
    d->runs = g3__sample_runs(in->vocab);
    d->bin = (g3__bin *)in->work;
    d->sum = (double *)(d->bin + G3__BINS);
    d->held = (uint32_t *)(d->sum + d->runs);
    d->top = (float *)(d->held + (size_t)d->runs * (G3__RUN / 32));
    d->penalty = p->repeat_penalty > 0 ? p->repeat_penalty : 1;
    d->temperature = G3__MAX(p->temperature, 1e-20f);           // no two floats come any further apart below that, and the division would overflow
    d->edge = -FLT_MAX;
    d->last = in->vocab;
    if (d->penalty == 1) { d->held = NULL; return; }
    memset(d->held, 0, (size_t)d->runs * (G3__RUN / 8));
    for (int i = 0; i < in->n_held; i++)                        // once per id, however often it is there
        if (in->held[i] >= 0 && in->held[i] < in->vocab) d->held[in->held[i] >> 5] |= 1u << (in->held[i] & 31);
}

// Penalty and temperature are in g3__run_logits. False: those two, pushed to extremes, have left no logit above -Inf.
static bool g3__draw_filter(g3__draw *d, const g3_sampler *p)
{
    float room[G3__RUN];
    for (int run = 0; run < d->runs; run++) d->top[run] = g3__max_of(g3__run_logits(d, run, room), G3__RUN);
    d->max = g3__max_of(d->top, d->runs);
    if (!(d->max >= -FLT_MAX)) return false;
    g3__filter_top_k(d, p->top_k);
    g3__filter_top_p(d, p->top_p);
    d->min_p = G3__MAX(p->min_p, 0.0f);                         // of those that are left
    return true;
}

// The token where the running sum of the survivors' weights, in the order of the ids, passes u times the whole.
static int g3__draw_pick(const g3__draw *d, double u)
{
    float w[G3__RUN];
    double rest = u * g3__mass(d);
    int run = 0, best = 0;
    while (run < d->runs - 1 && rest >= d->sum[run]) rest -= d->sum[run++];
    while (run > 0 && d->sum[run] == 0) rest = d->sum[--run];   // u times the whole was rounded up: the last survivor
    g3__run_weights(d, run, w);
    for (int i = 0; i < G3__RUN && rest >= 0; i++) {
        if (w[i] == 0) continue;
        best = run * G3__RUN + i;
        rest -= (double)w[i];
    }
    return best;
}

// ---- one token

static int g3__argmax(const float *z, int n)             // lowest id on ties
{
    int i = 0, best = 0, k;
    float max = g3__max_of(z, G3__MIN(n, (int)G3__RUN));
    for (; i < n; i += k) {
        k = G3__MIN(n - i, (int)G3__RUN);
        float top = g3__max_of(z + i, k);
        if (top > max) { max = top; best = i; }
    }
    while (best < n - 1 && z[best] != max) best++;
    return best;
}

// NaN and +Inf are a fault in the weights or the engine, never something to draw from; -Inf is a mask.
static g3_result g3__logits_check(const float *z, int n, g3_error *err)
{
    int bad = 0, i = 0;
    for (int k = 0; k < n; k++) bad |= !(z[k] <= FLT_MAX);
    if (!bad) return G3_OK;
    while (z[i] <= FLT_MAX) i++;
    return g3__fail(err, G3_ERR_NUMERIC, "the logit of token %d is %s: the weights, or what a hook wrote, are not finite", i, z[i] > 0 ? "+Inf" : "NaN");
}

// log softmax of the logits before penalty, temperature and filters, over the ids that can be drawn.
static float g3__logprob(const float *z, int n, int id)
{
    float w[G3__RUN], max = g3__max_of(z, n);
    double sum = 0;
    for (int i = 0, k; i < n; i += k) {
        k = G3__MIN(n - i, (int)G3__RUN);
        g3__exp_row(z + i, max, w, k);
        sum += g3__sum(w, k);
    }
    return (float)((double)z[id] - (double)max - log(sum));
}

// Exchanges the logits of the banned ids with `other`; in reverse to undo, so that an id named twice is no trouble.
static void g3__swap_banned(const g3__sample_in *in, float *other, bool undo)
{
    int n = G3__MIN(in->n_banned, (int)G3__BANNED);
    for (int k = 0; k < n; k++) {
        int j = undo ? n - 1 - k : k, id = in->banned[j];
        if (id < 0 || id >= in->vocab) continue;
        float z = in->logits[id];
        in->logits[id] = other[j];
        other[j] = z;
    }
}

// From logits to an id: hook, check, repeat penalty, temperature, top-k, top-p, min-p, softmax, draw. Greedy needs only
// the first two. Returns the id, or G3_ERR_NUMERIC; or G3_ERR_STOPPED, with `err` as it was, when the hook said stop.
static int g3__sample(const g3__sample_in *in, float *logprob, g3_error *err)
{
    const g3_sampler *p = in->p;
    g3__draw d = G3__ZERO;
    float other[G3__BANNED];
    if (p->logits_fn && p->logits_fn(p->user, in->logits, in->vocab)) return G3_ERR_STOPPED;
    g3_result r = g3__logits_check(in->logits, in->vocab, err);
    if (r != G3_OK) return r;
    for (int i = 0; i < G3__BANNED; i++) other[i] = -INFINITY;
    g3__swap_banned(in, other, false);
    int id = g3__argmax(in->logits, in->vocab);
    bool any = in->logits[id] > -INFINITY;
    if (any && !p->greedy) {
        g3__draw_init(&d, in);
        if (g3__draw_filter(&d, p)) id = g3__draw_pick(&d, g3__uniform(in->seed, in->position));
    }
    if (any && logprob) *logprob = g3__logprob(in->logits, in->vocab, id);
    g3__swap_banned(in, other, true);
    return any ? id : (int)g3__fail(err, G3_ERR_NUMERIC, "the logits of all %d tokens are -Inf: every one is masked, there is nothing to draw", in->vocab);
}

// ---- stop strings
//
// The stopper stands between the text of the tokens and the reader. It gives out what is certainly no part of a stop
// string and keeps back an end that may become one. A match is taken where it ends first; of several that end there, the
// longest. That does not depend on how the text is cut into pieces.

enum { G3__STOP_COUNT = 64, G3__STOP_TOTAL = 4096, G3__STOP_PIECE = 4096 };

typedef struct g3__stopper {
    int n, held, shown;                                  // stop strings; bytes kept back, which lie at text + shown
    bool stopped;                                        // a stop string was met: nothing more comes out
    int from[G3__STOP_COUNT + 1];                             // string j is bytes[from[j] .. from[j + 1])
    int state[G3__STOP_COUNT];                                // how many bytes of string j the text so far ends with
    char bytes[G3__STOP_TOTAL];
    uint16_t border[G3__STOP_TOTAL];                     // of each beginning: the longest shorter one that it ends with
    char text[G3__STOP_TOTAL + G3__STOP_PIECE];          // what is kept back, then the piece
} g3__stopper;

// One byte further in string j: the longest beginning of it that the text now ends with (Knuth, Morris, Pratt 1977).
static int g3__stop_step(const g3__stopper *s, int j, int state, char c)
{
    const char *stop = s->bytes + s->from[j];
    const uint16_t *border = s->border + s->from[j];
    while (state && stop[state] != c) state = border[state - 1];
    return state + (stop[state] == c);
}

static bool g3__stop_add(g3__stopper *s, const char *stop, g3_error *err)
{
    size_t size = stop ? strlen(stop) : 0, at = (size_t)s->from[s->n];
    if (!size) return g3__fail(err, G3_ERR_ARGUMENT, "stop string %d is empty; leave it out", s->n) == G3_OK;
    if (size > G3__STOP_TOTAL - at) return g3__fail(err, G3_ERR_ARGUMENT, "the stop strings are longer than %d bytes together", (int)G3__STOP_TOTAL) == G3_OK;
    for (const char *p = stop; p < stop + size; ) {
        int n = g3__utf8_size(p, stop + size);
        if (!n) return g3__fail(err, G3_ERR_ARGUMENT, "stop string %d is not UTF-8", s->n) == G3_OK;
        p += n;
    }
    int j = s->n++, state = 0;
    memcpy(s->bytes + at, stop, size);
    s->from[s->n] = (int)(at + size);
    s->border[at] = 0;
    for (size_t k = 1; k < size; k++) {
        state = g3__stop_step(s, j, state, stop[k]);
        s->border[at + k] = (uint16_t)state;
    }
    return true;
}

static bool g3__stopper_init(g3__stopper *s, const char *const *stops, int n, g3_error *err)    // the strings are copied
{
    s->n = s->held = s->shown = 0;
    s->stopped = false;
    s->from[0] = 0;
    memset(s->state, 0, sizeof s->state);
    if (n < 0 || n > G3__STOP_COUNT || (n && !stops)) return g3__fail(err, G3_ERR_ARGUMENT, "n_stops is %d%s; 0 to %d stop strings are possible", n, n > 0 && !stops ? " and stops is NULL" : "", (int)G3__STOP_COUNT) == G3_OK;
    for (int j = 0; j < n; j++)
        if (!g3__stop_add(s, stops[j], err)) { s->n = 0; return false; }
    return true;
}

// Takes a piece of text (whole characters) and sets *out to what can be shown: valid until the next call on `s`, or as
// long as `text` is when there are no stop strings. s->stopped tells that a stop string was met.
static bool g3__stopper_feed(g3__stopper *s, const char *text, int size, g3__str *out, g3_error *err)
{
    *out = g3__str_make(text, 0);
    if (s->stopped) return true;
    if (!s->n) { out->n = (size_t)size; return true; }
    if (size > G3__STOP_PIECE) return g3__fail(err, G3_ERR_FORMAT, "a token of %d bytes is too long to look for stop strings; %d are possible", size, (int)G3__STOP_PIECE) == G3_OK;
    memmove(s->text, s->text + s->shown, (size_t)s->held);
    memcpy(s->text + s->held, text, (size_t)size);
    int end = s->held, limit = s->held + size, kept = s->held;
    while (end < limit && !s->stopped) {
        int full = 0;
        kept = 0;
        for (int j = 0; j < s->n; j++) {
            int state = s->state[j] = g3__stop_step(s, j, s->state[j], s->text[end]);
            if (state == s->from[j + 1] - s->from[j]) full = G3__MAX(full, state);
            kept = G3__MAX(kept, state);
        }
        end++;
        if (full) { s->stopped = true; kept = full; }
    }
    s->shown = end - kept;
    s->held = s->stopped ? 0 : kept;
    *out = g3__str_make(s->text, (size_t)s->shown);
    return true;
}

static g3__str g3__stopper_flush(g3__stopper *s)         // the end of the answer: what was kept back was no stop string after all
{
    g3__str rest = g3__str_make(s->text + s->shown, (size_t)s->held);
    s->held = 0;
    memset(s->state, 0, sizeof s->state);
    return rest;
}

// ------------------------------------------------------------------------------------------------------------------
// >>plan
// Owns every byte: what a model and a session keep, and where in their arenas. One layout function for each runs twice,
// first without memory to count, then over the arena to carve it; so what is planned, printed and taken cannot differ.

enum { G3__WEIGHTS, G3__KV_CACHE, G3__SCRATCH, G3__VISION, G3__HOST, G3__KINDS };

typedef struct g3__layout {
    char *base;                                          // NULL: only counting
    uint64_t at;                                         // bytes so far, UINT64_MAX once they no longer fit
    bool card;                                           // base is on a card; what only the host touches lies in
    char *host;                                          // pinned memory of its own
    uint64_t host_at;
    uint64_t sum[G3__KINDS];
    g3_plan_item item[48];
    int n;
} g3__layout;

static void g3__lay_item(g3__layout *l, int kind, const char *name, uint64_t bytes)
{
    int i = 0;
    while (i < l->n && strcmp(l->item[i].name, name)) i++;
    if (i == l->n && l->n == G3__COUNT(l->item)) i = l->n - 1;               // cannot happen while the list of names is shorter
    if (i == l->n) { l->item[i].name = name; l->item[i].bytes = 0; l->n++; }
    if (!g3__add(l->item[i].bytes, bytes, &l->item[i].bytes)) l->item[i].bytes = UINT64_MAX;
    if (!g3__add(l->sum[kind], bytes, &l->sum[kind])) l->sum[kind] = UINT64_MAX;
}

// The next `bytes` of the arena, on a cache line; what the line needs to be full counts as scratch.
static void *g3__lay(g3__layout *l, int kind, const char *name, uint64_t bytes)
{
    uint64_t from = l->at, gap = bytes % G3__ALIGN ? G3__ALIGN - bytes % G3__ALIGN : 0;
    g3__lay_item(l, kind, name, bytes);
    if (gap) g3__lay_item(l, G3__SCRATCH, "scratch: alignment", gap);
    if (!g3__add(l->at, bytes, &l->at) || !g3__add(l->at, gap, &l->at)) l->at = UINT64_MAX;
    return l->base ? l->base + from : NULL;
}

// The same for what only the host touches: in the arena too, unless that is on a card.
static void *g3__lay_host(g3__layout *l, int kind, const char *name, uint64_t bytes)
{
    if (!l->card) return g3__lay(l, kind, name, bytes);
    uint64_t from = l->host_at, gap = bytes % G3__ALIGN ? G3__ALIGN - bytes % G3__ALIGN : 0;
    if (!g3__add(l->host_at, bytes, &l->host_at) || !g3__add(l->host_at, gap, &l->host_at)) l->host_at = UINT64_MAX;
    return l->host ? l->host + from : NULL;
}

// A card gives its memory in whole pages: arenas there are as large, and the plan stays exact.
static void g3__lay_page(g3__layout *l)
{
    const uint64_t page = (uint64_t)2 << 20;
    if (l->at % page && l->at != UINT64_MAX) g3__lay(l, G3__SCRATCH, "scratch: alignment", page - l->at % page);
}

// ---- what a model is

struct g3_model {
    g3__heap heap;
    g3__zone keep;                                       // names, tables, tokenizer: as long as the model
    g3_model_desc desc;                                  // zeros replaced; strings copied into keep
    g3_session_desc first;                               // what desc.session pointed to
    g3__shards shards;
    g3__config config;
    g3__generation_config generation;
    g3__weights weights;
    g3__tok tok;
    bool has_tok, chat;                                  // chat: a chat template came with the files
    char *arena;
    uint64_t arena_bytes;
    g3__pool pool;
    g3__card *card;                                      // NULL: it runs on the CPU
    const g3__ops *op;
    const g3__simd *simd;                                // the loops behind op; NULL: plain C, and rows lie as stored
    g3__tower text;
    g3__vit vit;                                         // tower.layers 0: none in memory
    g3__mat embed, head;
    g3__screen screen;
    g3__norm final;
    g3_plan plan;
    g3__mutex turn;                                      // of the sessions on the card: its stream serves one at a time
    bool has_turn;
    g3__mutex lock;                                      // guards heap and users
    bool has_lock;
    int users;                                           // the caller and every open session
    uint64_t session_bytes;                              // arenas of the sessions that are open
    uint64_t weight_bytes, parameters, bytes_per_token;
    char name[96];
};

static void g3__log(const g3_model *m, g3_level level, const char *fmt, ...) G3__PRINTF(3, 4);
static void g3__log(const g3_model *m, g3_level level, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (!m->desc.logger.log_fn) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    g3__text_clean(text);
    m->desc.logger.log_fn(m->desc.logger.user, level, text);
}

// ---- what a session is

typedef struct g3__answer {                              // one generation, from its first token to its last
    g3_sampler p;                                        // zeros replaced
    int max_tokens, made;                                // made: tokens counted so far
    bool ignore_stop_ids, ending;                        // ending: no further token; only held-back text may follow
    g3__utf8 utf8;
    g3__stopper stop;
    char text[G3__STOP_PIECE + 64], shown[G3__STOP_TOTAL + G3__STOP_PIECE + 64];    // whole characters of one token; what is given out
} g3__answer;

enum { G3__ANSWER_NONE, G3__ANSWER_RUNNING, G3__ANSWER_OVER };

typedef struct g3__picture {                             // one picture of a prompt, or held
    int pos;                                             // of its first soft token
    uint64_t hash;                                       // of its pixels
    const g3_image *image;                               // while the call that brings it runs, and what of it is looked at
    g3__rect crop;
} g3__picture;

typedef struct g3__sight {                               // what a session needs to look at pictures
    g3__shape shape;
    g3__acts a;                                          // where the text's activations lie: the two are never in use together
    g3__kv kv, *kv_at;                                   // keys and values of one layer, float32: no layer needs those of another; where they are
    g3__row *rows;                                       // [patches]
    float *patches;                                      // [patches][3 patch^2]
    float *pixels;                                       // the same where the host writes them: on a card not there
    void *room; uint64_t room_size;                      // for resizing, before the tower runs
    g3__vit vit;                                         // the model's, with the observer's table in each layer
    int asked, looked, pos;                              // pictures of the running call; of these looked at; position of the one being looked at
} g3__sight;

struct g3_session {
    g3_model *m;
    g3_session_desc desc;                                // zeros replaced
    char *arena;
    uint64_t arena_bytes;
    g3__run run;
    g3__kv *kv, **kv_of;                                 // [layers], [layers]: one sequence
    uint64_t lasting;                                    // the arena's first bytes, which outlive a step; the rest is scratch
    char *host;                                          // on a card: what only the host touches, in pinned memory
    uint64_t host_bytes, host_lasting;
    int *ids, *fresh;                                    // [context] tokens held; [context] a conversation just rendered
    int *step_ids;                                       // [batch] what the step embeds: -1 where a picture's rows lie already
    g3__picture *pictures, *fresh_pictures;              // [context / tokens] of those held, and of the one just rendered
    int n_pictures;
    g3__sight sight;
    int held, done, high;                                // tokens held; of these through the model (a sampled token waits for the next step); positions ever written
    int last, kept;                                      // rows of the last step; of these, the ones whose logits can be asked for
    float *logits;                                       // [logits_rows][vocab]
    float *raw;                                          // the same where the model writes them: on a card not there
    bool logits_done;
    void *sample_work;
    g3__answer *answer;
    int answering;                                       // G3__ANSWER_…
    bool speaking, told;                                 // the model's turn is open; the log says that this model was not trained to chat
    g3__layer *layers;                                   // [layers] the model's, with the observer's table in each; NULL without a probe
    float *seen;                                         // [heads][context] one row's attention, for the probe
    float *shown, *shown_key;                            // on a card: what the probe is shown, fetched; [head_dim] one key;
    char *shown_k;                                       // the keys of one layer and their scales
    g3__tower text;                                      // the model's tower, over those layers
    g3_error err;                                        // the running call's, for the operations
    int cancel, running;                                 // set from other threads
    uint64_t seed, seed_used;                            // from the clock; of the last draw
    bool answered;                                       // the next tokens added begin a new count
    g3_stats stats;
    g3_finish finish;
};

// ---- the layouts

static const char *g3__weight_item(int slot)             // the line of the plan that a layer's slot belongs to
{
    switch (slot) {
    case G3__Q: case G3__K: case G3__V: case G3__O: return "weights: attention";
    case G3__GATE: case G3__UP: case G3__DOWN: return "weights: feed-forward";
    default: return "weights: norms";
    }
}

static const char *g3__weights_item(const g3__weights *s, int i)
{
    if (i >= s->n - G3__PROJ_SLOTS && s->vision) return "vision: projector";
    if (i >= s->n_text) return "vision: tower";
    if (i >= G3__ONCE_SLOTS) return g3__weight_item((i - G3__ONCE_SLOTS) % G3__TEXT_SLOTS);
    return i == G3__EMBED ? "weights: embedding" : i == G3__HEAD ? "weights: head" : "weights: norms";
}

// Where the parts of every weight lie; place may be NULL while counting.
typedef struct g3__place { char *data, *absmax, *nested_absmax, *nested_map; signed char map; } g3__place;      // map: see g3__bits

// place: [s->n + 1], the last for the screened head: codes, scales, bounds.
static void g3__lay_model(g3__layout *l, const g3__config *c, const g3__weights *s, g3__place *place)
{
    for (int i = 0; i < s->n; i++) {
        const g3__weight *w = &s->w[i];
        int kind = i < s->n_text ? G3__WEIGHTS : G3__VISION;
        const char *name = g3__weights_item(s, i);
        g3__place p = G3__ZERO;
        if (!w->data) continue;
        p.data = (char *)g3__lay(l, kind, name, w->data->bytes);
        if (w->absmax) p.absmax = (char *)g3__lay(l, kind, name, w->absmax->bytes);
        if (w->nested_absmax) p.nested_absmax = (char *)g3__lay(l, kind, name, w->nested_absmax->bytes);
        if (w->nested_map) p.nested_map = (char *)g3__lay(l, kind, name, w->nested_map->bytes);
        if (place) place[i] = p;
    }
    if (c->card) g3__lay_page(l);
    if (!c->screen) return;
    g3__place p = G3__ZERO;
    const uint64_t rows = (uint64_t)c->screen;
    p.data = (char *)g3__lay(l, G3__WEIGHTS, "weights: screen of the head", rows * (uint64_t)c->dim);
    p.absmax = (char *)g3__lay(l, G3__WEIGHTS, "weights: screen of the head", rows * sizeof(float));
    p.nested_absmax = (char *)g3__lay(l, G3__WEIGHTS, "weights: screen of the head", rows * sizeof(float));
    if (place) place[s->n] = p;
}

static int g3__ring_rows(const g3__config *c, const g3_session_desc *d, int layer)       // rows of one layer's cache
{
    int64_t ring = (int64_t)c->window + d->batch;
    return c->full[layer] || ring > d->context ? d->context : (int)ring;
}

static uint64_t g3__kv_bytes(const g3__kv *kv) { return (uint64_t)kv->rows * (uint64_t)kv->kv_heads * (uint64_t)kv->head_dim * (uint64_t)g3__kv_size(kv->format); }

static void g3__lay_kv(g3__layout *l, const g3__config *c, const g3_session_desc *d, g3__kv *kvs)
{
    for (int i = 0; i < c->layers; i++) {
        const char *name = c->full[i] ? "kv: full layers" : "kv: sliding layers";
        g3__kv kv = G3__ZERO;
        kv.format = d->kv;
        kv.rows = g3__ring_rows(c, d, i);
        kv.kv_heads = c->kv_heads;
        kv.head_dim = c->head_dim;
        uint64_t bytes = g3__kv_bytes(&kv), scales = g3__kv_scaled(d->kv) ? (uint64_t)kv.rows * (uint64_t)kv.kv_heads * sizeof(float) : 0;
        kv.k = g3__lay(l, G3__KV_CACHE, name, bytes);
        kv.v = g3__lay(l, G3__KV_CACHE, name, bytes);
        if (scales) kv.k_scale = (float *)g3__lay(l, G3__KV_CACHE, name, scales);
        if (scales) kv.v_scale = (float *)g3__lay(l, G3__KV_CACHE, name, scales);
        if (kvs) kvs[i] = kv;
    }
}

static g3__shape g3__text_shape(const g3__config *c, const g3_session_desc *d, int width)
{
    g3__shape s = G3__ZERO;
    s.batch = d->batch;
    s.dim = c->dim;
    s.ffn = c->ffn;
    s.heads = c->heads;
    s.kv_heads = c->kv_heads;
    s.head_dim = c->head_dim;
    s.gated = true;
    s.kinds = 2;
    s.context = d->context;
    s.screen = c->screen;
    s.width = width;
    s.card = c->card;
    return s;
}

static void g3__lay_acts(g3__layout *l, const g3__shape *shape, g3__acts *acts, int first, int end)      // items [first, end) of the list
{
    g3__acts_item item[G3__ACTS_ITEMS];
    g3__acts_sizes(shape, item);
    for (int i = first; i < end; i++) {
        uint64_t bytes;
        if (!g3__mul(item[i].count, sizeof(float), &bytes)) bytes = UINT64_MAX;
        float *p = (float *)g3__lay(l, G3__SCRATCH, item[i].line, bytes);
        if (acts) memcpy((char *)acts + item[i].member, &p, sizeof p);
    }
}

static g3__shape g3__sight_shape(const g3__config *c, int width)
{
    g3__shape s = G3__ZERO;
    const g3__vision_config *v = &c->vision;
    s.batch = (v->image / v->patch) * (v->image / v->patch);
    s.dim = v->dim;
    s.ffn = v->ffn;
    s.heads = s.kv_heads = v->heads;
    s.head_dim = v->dim / v->heads;
    s.width = width;
    s.card = c->card;
    return s;
}

static float *g3__lay_floats(g3__layout *l, uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t n = g3__acts_count(a, b, c);
    return (float *)g3__lay(l, G3__SCRATCH, "scratch: pictures", n == UINT64_MAX ? n : n * sizeof(float));
}

// What lies from `from` on takes at least this much.
static void g3__lay_pad(g3__layout *l, uint64_t from, uint64_t bytes)
{
    if (l->at - from < bytes) g3__lay(l, G3__SCRATCH, "scratch: pictures", bytes - (l->at - from));
}

// The tower's activations. Three buffers do for six: a branch is added before the next norm is taken, and q, k, v and the heads are done with
// when the feed-forward begins. The patches lie there before the first layer needs it, the room for resizing where x and h will be.
static void g3__lay_sight(g3__layout *l, const g3__config *c, int width, g3__sight *o)
{
    const g3__vision_config *v = &c->vision;
    const uint64_t dim = (uint64_t)v->dim, ffn = (uint64_t)v->ffn, pixels = 3 * (uint64_t)v->patch * (uint64_t)v->patch;
    o->shape = g3__sight_shape(c, width);
    const uint64_t n = (uint64_t)o->shape.batch, first = l->at;
    o->room = o->a.x = g3__lay_floats(l, n, dim, 1);
    o->a.h = o->a.out = g3__lay_floats(l, n, dim, 1);
    if (!l->card) g3__lay_pad(l, first, g3__image_room(v->image));
    o->room_size = l->at - first;
    const uint64_t second = l->at;
    o->pixels = o->patches = o->a.gu = o->a.qkv = g3__lay_floats(l, n, dim, 3);
    o->a.att = g3__lay_floats(l, n, dim, 1);
    g3__lay_pad(l, second, n * G3__MAX(ffn, pixels) * sizeof(float));
    g3__lay_acts(l, &o->shape, &o->a, G3__ACTS_COMMON, G3__ACTS_ITEMS);
    if (l->card) {
        o->room_size = g3__image_room(v->image);
        o->room = g3__lay_host(l, G3__SCRATCH, "host: sessions", o->room_size);
        o->pixels = (float *)g3__lay_host(l, G3__SCRATCH, "host: sessions", n * pixels * sizeof(float));
    }
    o->rows = (g3__row *)g3__lay_host(l, G3__SCRATCH, "scratch: pictures", n * sizeof(g3__row));
    o->kv.format = G3_KV_F32;
    o->kv.rows = o->shape.batch;
    o->kv.kv_heads = o->shape.kv_heads;
    o->kv.head_dim = o->shape.head_dim;
    o->kv.k = g3__lay_floats(l, n, dim, 1);
    o->kv.v = g3__lay_floats(l, n, dim, 1);
}

// What a step needs only while it runs: the text's activations, and in the same place the tower's. x stays, for the logits.
static void g3__lay_step(g3__layout *l, const g3__config *c, const g3_session_desc *d, int width, g3_session *o)
{
    g3__layout pictures = *l;
    o->lasting = l->at;
    o->host_lasting = l->host_at;
    g3__lay_acts(l, &o->run.shape, &o->run.a, 1, G3__ACTS_ITEMS);
    if (d->no_images) return;
    g3__lay_sight(&pictures, c, width, &o->sight);
    l->host_at = pictures.host_at;
    if (pictures.at > l->at) g3__lay(l, G3__SCRATCH, "scratch: pictures", pictures.at - l->at);
}

static int g3__step_rows(const g3__config *c, const g3_session_desc *d)          // of the largest step, of text or of a picture
{
    return d->no_images ? d->batch : G3__MAX(d->batch, g3__sight_shape(c, 1).batch);
}

#ifndef GEMMA3_NO_CUDA
static void g3__lay_tape(g3__layout *l, const g3__config *c, const g3_session_desc *d, g3_session *o);
#else
static void g3__lay_tape(g3__layout *l, const g3__config *c, const g3_session_desc *d, g3_session *o) { (void)l; (void)c; (void)d; (void)o; }
#endif

// What the probe is shown of a card's memory: rows of x, or of q and one layer's keys.
static void g3__lay_shown(g3__layout *l, const g3__config *c, const g3_session_desc *d, g3_session *o)
{
    const uint64_t q = (uint64_t)(c->heads + 2 * c->kv_heads) * (uint64_t)c->head_dim, keys = (uint64_t)d->context * (uint64_t)c->kv_heads;
    uint64_t floats = (uint64_t)d->probe.rows * G3__MAX((uint64_t)c->dim, q);
    if (d->probe.points & G3_POINT_VISION) floats = G3__MAX(floats, G3__MAX((uint64_t)g3__step_rows(c, d) * (uint64_t)c->vision.dim, (uint64_t)c->vision.tokens * (uint64_t)c->dim));
    o->shown = (float *)g3__lay_host(l, G3__SCRATCH, "host: sessions", floats * sizeof(float));
    o->shown_key = (float *)g3__lay_host(l, G3__SCRATCH, "host: sessions", (uint64_t)c->head_dim * sizeof(float));
    if (d->probe.points & G3_POINT_ATTENTION) o->shown_k = (char *)g3__lay_host(l, G3__SCRATCH, "host: sessions", keys * ((uint64_t)c->head_dim + 1) * sizeof(float));
}

static uint64_t g3__most_pictures(const g3__config *c, const g3_session_desc *d) { return d->no_images ? 0 : (uint64_t)(d->context / c->vision.tokens); }

static void g3__lay_session(g3__layout *l, const g3__config *c, const g3_session_desc *d, int width, g3_session *s)   // s NULL: only counting
{
    g3_session none = G3__ZERO, *o = s ? s : &none;
    uint64_t layers = (uint64_t)c->layers, vocab = (uint64_t)c->vocab, pictures = g3__most_pictures(c, d) * sizeof(g3__picture), logits = (uint64_t)d->logits_rows * vocab * sizeof(float);
    l->card = c->card;
    o->run.shape = g3__text_shape(c, d, width);
    o->kv = (g3__kv *)g3__lay_host(l, G3__SCRATCH, "scratch: tables", layers * sizeof(g3__kv));
    o->kv_of = (g3__kv **)g3__lay_host(l, G3__SCRATCH, "scratch: tables", layers * sizeof(g3__kv *));
    o->run.rows = (g3__row *)g3__lay_host(l, G3__SCRATCH, "scratch: tables", (uint64_t)d->batch * sizeof(g3__row));
    o->ids = (int *)g3__lay_host(l, G3__SCRATCH, "scratch: tokens held", (uint64_t)d->context * sizeof(int));
    o->fresh = (int *)g3__lay_host(l, G3__SCRATCH, "scratch: tokens held", (uint64_t)d->context * sizeof(int));
    o->step_ids = (int *)g3__lay_host(l, G3__SCRATCH, "scratch: tokens held", (uint64_t)d->batch * sizeof(int));
    o->pictures = (g3__picture *)g3__lay_host(l, G3__SCRATCH, "scratch: tokens held", pictures);
    o->fresh_pictures = (g3__picture *)g3__lay_host(l, G3__SCRATCH, "scratch: tokens held", pictures);
    g3__lay_kv(l, c, d, s ? s->kv : NULL);
    g3__lay_acts(l, &o->run.shape, &o->run.a, 0, 1);
    o->raw = o->logits = (float *)g3__lay(l, G3__SCRATCH, "scratch: logits", logits);
    if (c->card) o->logits = (float *)g3__lay_host(l, G3__SCRATCH, "host: sessions", logits);
    o->sample_work = g3__lay_host(l, G3__SCRATCH, "scratch: sampler", g3__sample_work(c->vocab));
    o->answer = (g3__answer *)g3__lay_host(l, G3__SCRATCH, "scratch: answer", sizeof(g3__answer));
    if (d->probe.probe_fn) o->layers = (g3__layer *)g3__lay_host(l, G3__SCRATCH, "scratch: probe", layers * sizeof(g3__layer));
    if (d->probe.probe_fn && !d->no_images) o->sight.vit.tower.layer = (g3__layer *)g3__lay_host(l, G3__SCRATCH, "scratch: probe", (uint64_t)c->vision.layers * sizeof(g3__layer));
    if (d->probe.probe_fn && d->probe.points & G3_POINT_ATTENTION)
        o->seen = (float *)g3__lay_host(l, G3__SCRATCH, "scratch: probe", (uint64_t)c->heads * (uint64_t)d->context * sizeof(float));
    if (c->card && d->probe.probe_fn) g3__lay_shown(l, c, d, o);
    g3__lay_step(l, c, d, width, o);
    if (c->card) { g3__lay_tape(l, c, d, o); g3__lay_page(l); }
}

// ---- what is asked for, with zeros replaced

static bool g3__session_resolve(const g3__config *c, bool vision, const g3_session_desc *in, g3_session_desc *d, g3_error *err)   // a negative context stays: "the largest that fits"
{
    g3_session_desc none = G3__ZERO;
    *d = in ? *in : none;
    if (d->context == 0) d->context = G3__MIN(8192, c->max_context);
    if (d->batch == 0) d->batch = 512;
    if (d->kv == G3_KV_DEFAULT) d->kv = G3_KV_BF16;
    if (d->logits_rows == 0) d->logits_rows = 1;
    if (d->probe.rows == 0) d->probe.rows = 1;
    if (d->context > c->max_context) return g3__fail(err, G3_ERR_ARGUMENT, "context: %d tokens are more than the %d this model was made for", d->context, c->max_context) == G3_OK;
    if (d->batch < 1) return g3__fail(err, G3_ERR_ARGUMENT, "batch: %d is not a number of tokens", d->batch) == G3_OK;
    if ((int)d->kv < 0 || d->kv > G3_KV_INT8) return g3__fail(err, G3_ERR_ARGUMENT, "kv: %d is none of G3_KV_F32, _BF16, _FP8, _INT8", (int)d->kv) == G3_OK;
    d->no_images = d->no_images || !vision;
    if (!d->no_images) d->batch = G3__MAX(d->batch, c->vision.tokens);              // a picture is never split
    if (d->context > 0) d->batch = G3__MIN(d->batch, d->context);
    if (d->logits_rows < 1 || d->probe.rows < 1) return g3__fail(err, G3_ERR_ARGUMENT, "logits_rows and probe.rows: a number of rows is needed") == G3_OK;
    d->logits_rows = G3__MIN(d->logits_rows, d->batch);
    d->probe.rows = G3__MIN(d->probe.rows, d->batch);
    return true;
}

// Bytes of a session's arena; *host: what it takes of pinned host memory beside a card's.
static uint64_t g3__session_bytes(const g3__config *c, const g3_session_desc *d, int context, int width, uint64_t *host)
{
    g3__layout l = G3__ZERO;
    g3_session_desc at = *d;
    at.context = context;
    at.batch = G3__MIN(at.batch, context);
    at.logits_rows = G3__MIN(at.logits_rows, at.batch);
    g3__lay_session(&l, c, &at, width, NULL);
    if (host) *host = l.host_at;
    return l.at;
}

// The largest context whose `sessions` sessions take at most `room` bytes; 0: not even one token. Sizes grow with the context, so halving finds it.
static int g3__largest_context(const g3__config *c, const g3_session_desc *d, int sessions, int width, uint64_t room)
{
    int low = 0, high = c->max_context;
    while (low < high) {
        int mid = low + (high - low + 1) / 2;
        uint64_t bytes;
        if (g3__mul(g3__session_bytes(c, d, mid, width, NULL), (uint64_t)sessions, &bytes) && bytes <= room) low = mid;
        else high = mid - 1;
    }
    return low;
}

// ---- the plan

typedef struct g3__asked {             // what the plan is made for
    const g3__config *c;
    const g3__weights *w;
    g3_session_desc d;                 // resolved; its context may be negative
    int sessions, width;
    uint64_t limit, free;              // memory_limit, and what the system reports
    uint64_t host[4];                  // host memory: parsing at its peak, then what stays, staging, one session's
} g3__asked;

static uint64_t g3__model_bytes(const g3__config *c, const g3__weights *w)
{
    g3__layout l = G3__ZERO;
    g3__lay_model(&l, c, w, NULL);
    return l.at;
}

static bool g3__fits_with(const g3__asked *a, g3_kv kv, int context, uint64_t model, uint64_t room)
{
    g3_session_desc d = a->d;
    uint64_t bytes;
    d.kv = kv;
    return room >= model && g3__mul(g3__session_bytes(a->c, &d, context, a->width, NULL), (uint64_t)a->sessions, &bytes) && bytes <= room - model;
}

static bool g3__fits_without(const g3__asked *a, uint64_t model, uint64_t room)     // pictures
{
    g3__asked b = *a;
    b.d.no_images = true;
    return g3__fits_with(&b, a->d.kv, a->d.context, model, room);
}

// What would fit, each by itself: a shorter context, narrower caches, no pictures; else all of them together; else nothing.
static void g3__plan_remedy(const g3_plan *p, const g3__asked *a, uint64_t room, char *text, size_t size)
{
    static const struct { g3_kv kv; const char *name; } narrow[] = {{G3_KV_BF16, "kv bf16"}, {G3_KV_INT8, "kv int8"}};
    uint64_t model = g3__model_bytes(a->c, a->w);
    g3_session_desc d = a->d;
    int n = 0, least;
    if (p->max_context) n += snprintf(text, size, "context %d", p->max_context);
    for (int i = 0; i < 2; i++)
        if (g3__kv_size(narrow[i].kv) < g3__kv_size(a->d.kv) && g3__fits_with(a, narrow[i].kv, a->d.context, model, room)) { n += snprintf(text + n, size - (size_t)n, "%s%s", n ? " or " : "", narrow[i].name); break; }
    if (a->w->vision && g3__fits_without(a, model, room)) n += snprintf(text + n, size - (size_t)n, "%sno_images", n ? " or " : "");
    if (a->w->vision && g3__fits_without(a, model - p->vision, room)) n += snprintf(text + n, size - (size_t)n, "%sno_vision", n ? " or " : "");
    if (n) return;
    d.kv = G3_KV_INT8;
    d.batch = G3__MIN(d.batch, a->d.no_images ? 64 : G3__MAX(64, a->c->vision.tokens));
    least = room > model ? g3__largest_context(a->c, &d, a->sessions, a->width, room - model) : 0;
    if (least) snprintf(text, size, "kv int8, batch %d and context %d", d.batch, least);
    else snprintf(text, size, "only a smaller model");
}

static void g3__plan_advice(g3_plan *p, const g3__asked *a, uint64_t need)
{
    uint64_t beside = need - p->total, room = p->available > beside ? p->available - beside : 0;
    char remedy[96];
    g3__plan_remedy(p, a, room, remedy, sizeof remedy);
    snprintf(p->advice, sizeof p->advice, "%llu bytes too few: weights %llu + vision %llu + kv %llu + scratch %llu, %s %llu; %s would fit", (unsigned long long)(need - p->available),
             (unsigned long long)p->weights, (unsigned long long)p->vision, (unsigned long long)p->kv, (unsigned long long)p->scratch, a->limit ? "memory_limit" : "free",
             (unsigned long long)p->available, remedy);
}

static uint64_t g3__plan_later(const g3__asked *a) { return a->host[1] + a->host[2] + (uint64_t)a->sessions * a->host[3]; }

static void g3__plan_host(g3__layout *l, const g3__asked *a)                    // the peak is either while parsing or later
{
    uint64_t later = g3__plan_later(a);
    g3__lay_item(l, G3__HOST, "host: names, tables, tokenizer", a->host[1]);
    g3__lay_item(l, G3__HOST, "host: staging while loading", a->host[2]);
    g3__lay_item(l, G3__HOST, "host: sessions", (uint64_t)a->sessions * a->host[3]);
    if (a->host[0] > later) g3__lay_item(l, G3__HOST, "host: more while parsing", a->host[0] - later);
}

// Fills the plan and settles the context: a->d.context is the one in use afterwards.
static void g3__plan_make(g3_plan *p, g3__asked *a)
{
    g3__layout l = G3__ZERO;
    uint64_t model = g3__model_bytes(a->c, a->w), host, need, pinned;
    memset(p, 0, sizeof *p);
    host = G3__MAX(a->host[0], g3__plan_later(a));
    p->backend = a->c->card ? G3_BACKEND_CUDA : G3_BACKEND_CPU;
    p->available = a->limit ? a->limit : a->free;
    uint64_t beside = a->limit || a->c->card ? 0 : host;                         // a limit, and a card's free memory, are for the arenas; the system's is for all
    uint64_t room = p->available > beside ? p->available - beside : 0;
    p->max_context = room > model ? g3__largest_context(a->c, &a->d, a->sessions, a->width, room - model) : 0;
    if (a->d.context < 0) {
        a->d.context = G3__MAX(p->max_context, 1);
        a->d.batch = G3__MIN(a->d.batch, a->d.context);
        a->d.logits_rows = G3__MIN(a->d.logits_rows, a->d.batch);
    }
    g3__session_bytes(a->c, &a->d, a->d.context, a->width, &pinned);
    a->host[3] += pinned;
    host = G3__MAX(a->host[0], g3__plan_later(a));
    g3__lay_model(&l, a->c, a->w, NULL);
    for (int i = 0; i < a->sessions; i++) g3__lay_session(&l, a->c, &a->d, a->width, NULL);
    g3__plan_host(&l, a);
    p->weights = l.sum[G3__WEIGHTS];
    p->kv = l.sum[G3__KV_CACHE];
    p->scratch = l.sum[G3__SCRATCH];
    p->vision = l.sum[G3__VISION];
    p->total = l.at;
    p->host = host;
    p->n_items = l.n;
    memcpy(p->items, l.item, sizeof p->items);
    if (!g3__add(p->total, beside, &need)) need = UINT64_MAX;
    p->fits = p->available && need <= p->available;
    if (!p->available) snprintf(p->advice, sizeof p->advice, "%s how much memory is free; give memory_limit", a->c->card ? "there is no card that says" : "the system does not say");
    else if (!p->fits) g3__plan_advice(p, a, need);
}

// ------------------------------------------------------------------------------------------------------------------
// >>load
// Owns opening a model: the small files (config, headers, tokenizer), then the weights, read once, in file order, several
// reads in flight, straight into the one arena that the plan has counted.

// ---- the small files

enum { G3__CONFIG_LIMIT = 4 << 20, G3__TOKENIZER_LIMIT = 256 << 20 };

static bool g3__load_config(g3_model *m, g3__zone *temp, g3_error *err)
{
    char *text;
    size_t size;
    const g3__source *src = &m->shards.src;
    if (!g3__file_text(src, "config.json", G3__CONFIG_LIMIT, temp, &text, &size, err)) return false;
    if (!g3__config_read(&m->config, text, size, &m->keep, err)) return false;
    if (!g3__file_exists(src, "generation_config.json")) return true;
    return g3__file_text(src, "generation_config.json", G3__CONFIG_LIMIT, temp, &text, &size, err) && g3__generation_read(&m->generation, text, size, err);
}

static bool g3__load_tokenizer(g3_model *m, g3__zone *temp, g3_error *err)       // absent: the model runs on ids
{
    char *text;
    size_t size;
    if (!g3__file_exists(&m->shards.src, "tokenizer.json")) return true;
    m->has_tok = g3__file_text(&m->shards.src, "tokenizer.json", G3__TOKENIZER_LIMIT, temp, &text, &size, err)
              && g3__tok_load(&m->tok, text, size, m->config.vocab, &m->keep, temp, err);
    return m->has_tok;
}

static bool g3__load_template(g3_model *m, g3__zone *temp, g3_error *err)        // is there a chat template at all? Its text is never run
{
    g3__value file = G3__ZERO, found;
    const g3__source *src = &m->shards.src;
    m->chat = g3__file_exists(src, "chat_template.jinja") || g3__file_exists(src, "chat_template.json");
    if (m->chat || !g3__file_exists(src, "tokenizer_config.json")) return true;
    if (!g3__file_text(src, "tokenizer_config.json", G3__TOKENIZER_LIMIT, temp, &file.p, &file.n, err)) return false;
    if (!g3__json_get(file, "tokenizer_config.json", "chat_template", &found, err)) return false;
    m->chat = found.p != NULL;
    return true;
}

// Everything but the weights. What was only needed for parsing is given back before the tokenizer is read, and again after it.
static bool g3__load_small(g3_model *m, g3_error *err)
{
    g3__zone temp;
    g3__zone_init(&temp, &m->heap);
    bool ok = g3__load_config(m, &temp, err) && g3__shards_open(&m->shards, &m->keep, &temp, err)
           && g3__weights_bind(&m->weights, &m->config, &m->shards, m->desc.no_vision, m->desc.no_weights, &m->keep, err);
    g3__zone_free(&temp);
    ok = ok && g3__load_tokenizer(m, &temp, err);
    g3__zone_free(&temp);
    ok = ok && g3__load_template(m, &temp, err);
    g3__zone_free(&temp);
    return ok;
}

// ---- rows of one tensor, decoded from the file: no arena needed

typedef struct g3__reader { const g3__shards *shards; const g3__weight *w; uint64_t at, n; float *dst; g3_error *err; } g3__reader;

static bool g3__read_dense(g3__reader *r)
{
    unsigned char piece[16384];
    g3__bits bits = G3__ZERO;
    uint64_t unit = g3__format_bits(r->w->format) / 8;
    bits.format = r->w->format;
    bits.data = piece;
    while (r->n) {
        uint64_t n = G3__MIN(r->n, sizeof piece / unit);
        if (!g3__tensor_read(r->shards, r->w->data, r->at * unit, piece, n * unit, r->err)) return false;
        g3__decode(&bits, 0, n, r->dst);
        r->at += n; r->n -= n; r->dst += n;
    }
    return true;
}

enum { G3__READ_STEP = 4096 };                           // elements: a whole number of blocks of every legal size

// The scales of `n` blocks from block b on, as plain float32, whatever way they are stored.
static bool g3__read_scales(const g3__reader *r, uint64_t b, uint64_t n, const float *map, float *scale)
{
    const g3__weight *w = r->w;
    unsigned char codes[G3__READ_STEP / 32];
    float groups[G3__READ_STEP / 32 + 1];
    if (!w->nested_blocksize) return g3__tensor_read(r->shards, w->absmax, b * 4, scale, n * 4, r->err);
    uint64_t first = b / w->nested_blocksize, last = (b + n - 1) / w->nested_blocksize;
    if (!g3__tensor_read(r->shards, w->absmax, b, codes, n, r->err)) return false;
    if (!g3__tensor_read(r->shards, w->nested_absmax, first * 4, groups, (last - first + 1) * 4, r->err)) return false;
    for (uint64_t i = 0; i < n; i++) {
        g3__bits one = G3__ZERO;                         // a single block, so that the definition in >>numbers does the arithmetic
        one.absmax = &codes[i];
        one.nested_absmax = &groups[(b + i) / w->nested_blocksize - first];
        one.nested_map = map;
        one.nested_offset = w->nested_offset;
        one.nested_blocksize = w->nested_blocksize;
        scale[i] = g3__block_scale(&one, 0);
    }
    return true;
}

static bool g3__read_4bit(g3__reader *r)
{
    const g3__weight *w = r->w;
    unsigned char codes[G3__READ_STEP / 2];
    float scale[G3__READ_STEP / 32], map[256];
    g3__bits bits = G3__ZERO;
    uint64_t total = g3__weight_count(w);
    bits.format = w->format;
    bits.data = codes;
    bits.absmax = scale;
    bits.blocksize = w->blocksize;
    if (w->nested_map && !g3__tensor_read(r->shards, w->nested_map, 0, map, sizeof map, r->err)) return false;
    while (r->n) {
        uint64_t step = r->at / G3__READ_STEP * G3__READ_STEP, end = G3__MIN(step + G3__READ_STEP, total), n = G3__MIN(r->n, end - r->at);
        if (!g3__tensor_read(r->shards, w->data, step / 2, codes, (end - step + 1) / 2, r->err)) return false;
        if (!g3__read_scales(r, step / w->blocksize, (end - step + w->blocksize - 1) / w->blocksize, map, scale)) return false;
        g3__decode(&bits, r->at - step, n, r->dst);
        r->at += n; r->n -= n; r->dst += n;
    }
    return true;
}

static bool g3__read_elements(const g3__shards *s, const g3__weight *w, uint64_t first, uint64_t n, float *dst, g3_error *err)
{
    g3__reader r;
    r.shards = s;
    r.w = w;
    r.at = first;
    r.n = n;
    r.dst = dst;
    r.err = err;
    return g3__is_4bit(w->format) ? g3__read_4bit(&r) : g3__read_dense(&r);
}

// Any tensor of the files as a weight: a bound one, or one the model does not use, described by itself.
static bool g3__tensor_weight(const g3_model *m, const g3__tensor *t, g3__weight *w, g3_error *err)
{
    g3__binder b;
    g3__quant_state q;
    b.shards = &m->shards;
    b.c = &m->config;
    b.err = err;
    b.tables = false;
    memset(w, 0, sizeof *w);
    w->data = t;
    w->format = g3__tensor_format(t);
    uint64_t rows = t->rank > 1 ? t->dims[0] : 1, cols = 1;
    for (int i = t->rank > 1; i < G3__MIN(t->rank, 4); i++) if (!g3__mul(cols, t->dims[i], &cols)) cols = INT_MAX;
    if (rows && t->rank > 4) cols = t->count / rows;
    w->rows = (int)G3__MIN(rows, (uint64_t)INT_MAX);
    w->cols = (int)G3__MIN(cols, (uint64_t)INT_MAX);
    if (t->name.n >= sizeof b.name) return true;                                 // too long to have companions of ours
    snprintf(b.name, sizeof b.name, "%.*s", (int)t->name.n, t->name.p);
    const g3__tensor *nf4 = g3__companion(&b, ".quant_state.bitsandbytes__nf4"), *fp4 = g3__companion(&b, ".quant_state.bitsandbytes__fp4");
    if (!nf4 == !fp4) return true;
    if (!g3__bind_state(&b, nf4 ? nf4 : fp4, &q)) return false;
    if (!q.rows || !q.cols || q.rows > INT_MAX || q.cols > INT_MAX) return g3__bind_fail(&b, G3_ERR_FORMAT, t, "its quant_state has a shape no weight has");
    w->rows = (int)q.rows;
    w->cols = (int)q.cols;
    return g3__bind(&b, w, w->rows, w->cols, 2);
}

// ---- weights into the arena

enum { G3__CHUNK = 1 << 20 };                            // bytes read at once; more where a tile is larger

typedef struct g3__target {            // where a tensor's bytes go, NULL: nowhere; unit: its rows (bytes) are laid in tiles, 0: as stored
    char *dst;
    uint64_t row;
    int unit;
    bool scales;                       // float32 that must be finite
} g3__target;
typedef struct g3__chunk { const g3__file *file; uint64_t offset; const g3__target *to; char *dst; uint64_t size; } g3__chunk;

typedef struct g3__loading {
    g3_model *m;
    g3__target *to;                    // [shards.n]
    char *room;                        // [readers][room_size] what is read before it is laid in tiles
    uint64_t room_size;
    g3__chunk *chunk;
    int n, next, end;                  // next: the first chunk nobody reads yet; end: where this round stops
    int failed, infinite;              // number of the chunk that could not be read, and of one whose scales are not finite, + 1
    char *slot;                        // on a card: pinned memory for the chunks of this round, `slot_size` bytes each, and
    uint64_t slot_size;
    int from;                          // the first of them
} g3__loading;

static void g3__load_to(g3__loading *l, const g3__tensor *t, char *dst, uint64_t row, int unit, bool scales)
{
    if (!t) return;
    g3__target *to = &l->to[t - l->m->shards.tensor];
    to->dst = dst;
    to->row = row;
    to->unit = unit;
    to->scales = scales;
}

static bool g3__weight_tiled(const g3_model *m, const g3__weight *w)     // never a vector, nor what is read column by column
{
    const bool columns = m->weights.vision && w == g3__proj_weight(&m->weights, G3__PROJ);
#ifndef GEMMA3_NO_CUDA
    if (m->config.card) return w->data && !columns && g3__card_tiles(w->format, w->rows, w->cols, w->blocksize, w->nested_blocksize);
#endif
    return m->simd && w->data && !columns && g3__tiles(w->format, w->rows, w->cols, w->blocksize, w->nested_blocksize);
}

static uint64_t g3__chunk_size(const g3__target *to)     // whole tiles
{
    const uint64_t tile = to->row * G3__TILE_ROWS;
    return !to->unit ? (uint64_t)G3__CHUNK : tile > G3__CHUNK ? tile : G3__CHUNK / tile * tile;
}

static int g3__load_chunks(g3__loading *l)               // tensors in file order, cut into pieces; how many; stored when there is room for them
{
    const g3__shards *s = &l->m->shards;
    int n = 0;
    for (uint64_t i = 0; i < s->n; i++) {
        const uint64_t size = g3__chunk_size(&l->to[i]);
        for (uint64_t at = 0; l->to[i].dst && at < s->tensor[i].bytes; at += size, n++) {
            if (l->to[i].unit) l->room_size = G3__MAX(l->room_size, G3__MIN(size, s->tensor[i].bytes));
            if (!l->chunk) continue;
            l->chunk[n].file = &s->file[s->tensor[i].file];
            l->chunk[n].offset = s->tensor[i].offset + at;
            l->chunk[n].to = &l->to[i];
            l->chunk[n].dst = l->to[i].dst + at;
            l->chunk[n].size = G3__MIN(s->tensor[i].bytes - at, size);
        }
    }
    return n;
}

static bool g3__load_chunk(g3__loading *l, int i, char *room)            // reads chunk i, and lays it out
{
    const g3__chunk *c = &l->chunk[i];
    const g3__target *to = c->to;
    char *dst = l->slot ? l->slot + (uint64_t)(i - l->from) * l->slot_size : c->dst, *raw = to->unit ? room : dst;
    if (!g3__file_read(c->file, c->offset, raw, c->size, NULL)) return false;
    if (to->scales && !g3__all_finite(raw, c->size / sizeof(float))) g3__atomic_set(&l->infinite, i + 1);
    if (to->unit) g3__tile_copy(dst, raw, (size_t)c->size, (size_t)to->row, (size_t)to->unit);
    return true;
}

static void g3__load_body(void *ctx, int i)              // one reader: takes chunks until the round is over
{
    g3__loading *l = (g3__loading *)ctx;
    for (int c; (c = g3__atomic_add(&l->next, 1)) < l->end; )
        if (!g3__load_chunk(l, c, l->room + (size_t)i * (size_t)l->room_size)) g3__atomic_set(&l->failed, c + 1);
}

static bool g3__load_failed(const g3__loading *l, g3_error *err)
{
    const g3__chunk *c = &l->chunk[(l->failed ? l->failed : l->infinite) - 1];
    if (!l->failed) return g3__st_bad(c->file, l->m->shards.tensor[c->to - l->to].name, "a scale is a NaN or an infinity", err);
    return g3__fail(err, G3_ERR_IO, "%s: %llu bytes at offset %llu cannot be read", c->file->name, (unsigned long long)c->size, (unsigned long long)c->offset) == G3_OK;
}

static bool g3__load_round(g3__loading *l, g3__pool *pool, int readers, int from, int end, g3_error *err)
{
    l->from = from;
    l->end = end;
    g3__atomic_set(&l->next, from);
    g3__pool_for(pool, readers, g3__load_body, l);
    return !(l->failed || l->infinite) || g3__load_failed(l, err);
}

static bool g3__load_report(const g3__loading *l, uint64_t *done, g3_error *err)      // of the round that is over
{
    const g3_progress *p = &l->m->desc.progress;
    for (int c = l->from; c < l->end; c++) *done += l->chunk[c].size;
    return !p->progress_fn || !p->progress_fn(p->user, "weights", *done, l->m->weight_bytes)
        || g3__fail(err, G3_ERR_STOPPED, "loading was stopped by progress_fn after %llu of %llu bytes", (unsigned long long)*done, (unsigned long long)l->m->weight_bytes) == G3_OK;
}

// Rounds of about 60 ms, so that progress and cancelling come from the caller's thread without slowing the readers.
static bool g3__load_rounds(g3__loading *l, g3__pool *pool, int readers, g3_error *err)
{
    uint64_t done = 0;
    int round = 2 * readers;
    for (int from = 0; from < l->n; from = l->end) {
        double start = g3__clock();
        if (!g3__load_round(l, pool, readers, from, G3__MIN(l->n, from + round), err) || !g3__load_report(l, &done, err)) return false;
        double took = g3__clock() - start;
        if (took < 0.04 && round < 1 << 20) round *= 2;
        else if (took > 0.1) round = G3__MAX(round / 2, readers);
    }
    return true;
}

#ifndef GEMMA3_NO_CUDA
static bool g3__load_to_card(g3__loading *l, g3__pool *pool, int readers, g3_error *err);
static bool g3__load_maps(g3_model *m, g3__place *place, g3_error *err);
#else
static bool g3__load_maps(g3_model *m, g3__place *place, g3_error *err) { (void)m; (void)place; (void)err; return false; }
static bool g3__load_to_card(g3__loading *l, g3__pool *pool, int readers, g3_error *err) { (void)l; (void)pool; (void)readers; (void)err; return false; }
#endif

static void g3__load_targets(g3__loading *l, const g3__place *place)
{
    for (int i = 0; i < l->m->weights.n; i++) {
        const g3__weight *w = &l->m->weights.w[i];
        const bool tiled = g3__weight_tiled(l->m, w);
        const uint64_t row = w->data ? (uint64_t)w->cols * g3__format_bits(w->format) / 8 : 0, blocks = w->blocksize ? (uint64_t)w->cols / w->blocksize : 0;
        const int unit = w->nested_blocksize ? 1 : 4;                            // of absmax
        g3__load_to(l, w->data, place[i].data, row, !tiled ? 0 : l->m->config.card ? 8 : 4, false);
        g3__load_to(l, w->absmax, place[i].absmax, blocks * (uint64_t)unit, tiled ? unit : 0, unit == 4);
        g3__load_to(l, w->nested_absmax, place[i].nested_absmax, 0, 0, true);
        g3__load_to(l, w->nested_map, place[i].nested_map, 0, 0, true);
    }
}

// Tensors that no part of the model asked for are told once: under a name that is not known here, weights of a fine-tune would be missed in silence.
static void g3__load_leftovers(const g3__loading *l)
{
    const g3__shards *s = &l->m->shards;
    uint64_t n = 0, first = 0;
    for (uint64_t i = 0; i < s->n; i++) {
        const g3__str name = s->tensor[i].name;
        if (l->to[i].dst || g3__str_ends(name, "quant_map") || g3__str_ends(name, ".bitsandbytes__nf4") || g3__str_ends(name, ".bitsandbytes__fp4")) continue;
        if (!l->m->weights.vision && g3__of_vision(name)) continue;
        if (!n++) first = i;
    }
    if (n) g3__log(l->m, G3_LOG_WARN, "%s: %llu tensor%s no part of Gemma 3 and not used%s %.*s", l->m->name, (unsigned long long)n, n == 1 ? " is" : "s are", n == 1 ? ":" : "; the first:",
                   (int)G3__MIN(s->tensor[first].name.n, (size_t)200), s->tensor[first].name.p);
}

static bool g3__load_weights(g3_model *m, const g3__place *place, g3_error *err)
{
    g3__loading l = G3__ZERO;
    g3__pool pool;
    int width = G3__MAX(m->shards.src.files.width, 1), readers;
    l.m = m;
    l.to = (g3__target *)g3__heap_alloc(&m->heap, m->shards.n, sizeof *l.to, err);
    if (!l.to) return false;
    g3__load_targets(&l, place);
    g3__load_leftovers(&l);
    l.n = g3__load_chunks(&l);
    int cap = l.n;
    g3__pool_init(&pool, width, m->desc.parallel.for_fn ? &m->desc.parallel : NULL);
    readers = G3__MIN(width, g3__pool_width(&pool));
    uint64_t room = l.room_size * (uint64_t)readers;
    l.chunk = (g3__chunk *)g3__heap_alloc(&m->heap, (uint64_t)cap, sizeof *l.chunk, err);
    if (l.chunk && room) l.room = (char *)g3__heap_take(&m->heap, room, 1, err);
    bool ok = l.chunk && (l.room || !room);
    if (ok) {
        g3__load_chunks(&l);
        ok = m->card ? g3__load_to_card(&l, &pool, readers, err) : g3__load_rounds(&l, &pool, readers, err);
    }
    g3__pool_free(&pool);
    if (l.room) g3__heap_free(&m->heap, l.room, room, 1);
    g3__heap_free(&m->heap, l.chunk, (uint64_t)cap, sizeof *l.chunk);
    g3__heap_free(&m->heap, l.to, m->shards.n, sizeof *l.to);
    return ok;
}

static uint64_t g3__load_staging(const g3_model *m)      // host bytes while loading, at most: the two tables above, and what the readers hold
{
    uint64_t chunks = m->weight_bytes / (G3__CHUNK / 2) + (uint64_t)m->weights.n * 4, largest = 0;
    for (int i = 0; i < m->weights.n; i++) {
        const g3__weight *w = &m->weights.w[i];
        if (!g3__weight_tiled(m, w)) continue;
        largest = G3__MAX(largest, G3__MIN(w->data->bytes, G3__MAX((uint64_t)G3__CHUNK, w->data->bytes / (uint64_t)w->rows * G3__TILE_ROWS)));
    }
    if (m->config.card) largest += 4 * G3__MAX(largest, (uint64_t)G3__CHUNK);    // its readers' slots, see g3__load_to_card
    return m->shards.n * sizeof(g3__target) + chunks * sizeof(g3__chunk) + ((uint64_t)m->weights.n + 1) * sizeof(g3__place) + largest * (uint64_t)G3__MAX(m->shards.src.files.width, 1);
}

// ---- from places to the layers of the forward pass

static g3__bits g3__weight_bits(const g3_model *m, const g3__weight *w, const g3__place *p)
{
    g3__bits b = G3__ZERO;
    b.tiled = g3__weight_tiled(m, w);
    b.format = w->format;
    b.data = p->data;
    b.absmax = p->absmax;
    b.nested_absmax = (const float *)(const void *)p->nested_absmax;
    b.nested_map = (const float *)(const void *)p->nested_map;
    b.nested_offset = w->nested_offset;
    b.blocksize = w->blocksize;
    b.nested_blocksize = w->nested_blocksize;
    b.map = p->map;
    return b;
}

static void g3__mat_add(const g3_model *m, g3__mat *a, const g3__weight *w, const g3__place *p)     // one more segment of rows
{
    g3__seg *s = &a->seg[a->n_segs++];
    s->rows = w->rows;
    s->bits = g3__weight_bits(m, w, p);
    a->rows += w->rows;
    a->cols = w->cols;
}

static g3__norm g3__rms_norm(const g3_model *m, const g3__weight *w, const g3__place *p, float eps)
{
    g3__norm n = G3__ZERO;
    n.dim = w->cols;
    n.eps = eps;
    n.w = g3__weight_bits(m, w, p);
    return n;
}

static void g3__load_layer(const g3_model *m, int i, const g3__place *place, g3__layer *L)
{
    const g3__config *c = &m->config;
    const g3__weight *w = g3__text_weight(&m->weights, i, 0);
    const g3__place *p = place + (w - m->weights.w);
    bool full = c->full[i];
    L->op = m->op;
    L->norm_att = g3__rms_norm(m, &w[G3__NORM_ATT], &p[G3__NORM_ATT], c->eps);
    L->post_att = g3__rms_norm(m, &w[G3__POST_ATT], &p[G3__POST_ATT], c->eps);
    L->norm_ffn = g3__rms_norm(m, &w[G3__NORM_FFN], &p[G3__NORM_FFN], c->eps);
    L->post_ffn = g3__rms_norm(m, &w[G3__POST_FFN], &p[G3__POST_FFN], c->eps);
    for (int s = G3__Q; s <= G3__V; s++) g3__mat_add(m, &L->qkv, &w[s], &p[s]);
    g3__mat_add(m, &L->wo, &w[G3__O], &p[G3__O]);
    g3__mat_add(m, &L->gate_up, &w[G3__GATE], &p[G3__GATE]);
    g3__mat_add(m, &L->gate_up, &w[G3__UP], &p[G3__UP]);
    g3__mat_add(m, &L->down, &w[G3__DOWN], &p[G3__DOWN]);
    L->att.heads = c->heads;
    L->att.kv_heads = c->kv_heads;
    L->att.head_dim = c->head_dim;
    L->att.window = full ? 0 : c->window;
    L->att.scale = c->attn_scale;
    L->att.theta = full ? c->theta_full : c->theta_sliding;
    L->att.factor = full ? c->factor_full : c->factor_sliding;
    L->att.angles = full ? 0 : 1;
    L->att.q_norm = g3__rms_norm(m, &w[G3__Q_NORM], &p[G3__Q_NORM], c->eps);
    L->att.k_norm = g3__rms_norm(m, &w[G3__K_NORM], &p[G3__K_NORM], c->eps);
}

static void g3__load_tower(g3_model *m, const g3__place *place)
{
    const g3__weight *w = m->weights.w;
    int head = w[G3__HEAD].data ? G3__HEAD : G3__EMBED;
    if (w[G3__HEAD].data && m->config.tied) g3__log(m, G3_LOG_WARN, "%s: config.json says tie_word_embeddings, but the files bring a head of their own; that one is used", m->name);
    m->text.layers = m->config.layers;
    m->text.dim = m->config.dim;
    m->text.embed_scale = m->config.embed_scale;
    for (int i = 0; i < m->config.layers; i++) g3__load_layer(m, i, place, &m->text.layer[i]);
    g3__mat_add(m, &m->embed, &w[G3__EMBED], &place[G3__EMBED]);
    g3__mat_add(m, &m->head, &w[head], &place[head]);
    m->final = g3__rms_norm(m, &w[G3__NORM], &place[G3__NORM], m->config.eps);
    m->screen.rows = m->config.screen;
    if (!m->screen.rows) return;
    m->screen.codes = (int8_t *)(void *)place[m->weights.n].data;
    m->screen.scale = (float *)(void *)place[m->weights.n].absmax;
    m->screen.bound = (float *)(void *)place[m->weights.n].nested_absmax;
}

// ---- the vision tower

static g3__bits g3__sight_bits(const g3_model *m, const g3__place *place, const g3__weight *w)
{
    return g3__weight_bits(m, w, &place[w - m->weights.w]);
}

static void g3__sight_mat(const g3_model *m, const g3__place *place, g3__mat *a, const g3__weight *w, const g3__weight *bias)     // one more segment of rows; bias NULL: none
{
    g3__mat_add(m, a, w, &place[w - m->weights.w]);
    if (bias) a->seg[a->n_segs - 1].bias = g3__sight_bits(m, place, bias);
}

static g3__norm g3__sight_norm(const g3_model *m, const g3__place *place, const g3__weight *w, const g3__weight *bias)    // LayerNorm; bias NULL: RMSNorm
{
    g3__norm n = g3__rms_norm(m, w, &place[w - m->weights.w], m->config.vision.eps);
    n.layer = bias != NULL;
    if (bias) n.b = g3__sight_bits(m, place, bias);
    return n;
}

static void g3__load_vision_layer(const g3_model *m, int i, const g3__place *place, g3__layer *L)
{
    const g3__vision_config *v = &m->config.vision;
    const g3__weight *w = g3__vision_weight(&m->weights, i, 0);
    L->op = m->op;
    L->norm_att = g3__sight_norm(m, place, &w[G3__V_LN1], &w[G3__V_LN1_B]);
    L->norm_ffn = g3__sight_norm(m, place, &w[G3__V_LN2], &w[G3__V_LN2_B]);
    for (int k = G3__V_Q; k <= G3__V_V; k += 2) g3__sight_mat(m, place, &L->qkv, &w[k], &w[k + 1]);
    g3__sight_mat(m, place, &L->wo, &w[G3__V_OUT], &w[G3__V_OUT_B]);
    g3__sight_mat(m, place, &L->gate_up, &w[G3__V_FC1], &w[G3__V_FC1_B]);
    g3__sight_mat(m, place, &L->down, &w[G3__V_FC2], &w[G3__V_FC2_B]);
    L->att.heads = L->att.kv_heads = v->heads;
    L->att.head_dim = v->dim / v->heads;
    L->att.scale = (float)(1.0 / sqrt((double)L->att.head_dim));
    L->att.angles = -1;
}

static bool g3__load_vision(g3_model *m, const g3__place *place, g3_error *err)
{
    const g3__vision_config *c = &m->config.vision;
    const g3__weight *once = &m->weights.w[m->weights.n_text], *proj = g3__proj_weight(&m->weights, G3__PROJ);
    g3__vit *v = &m->vit;
    v->tower.layer = (g3__layer *)g3__zone_alloc(&m->keep, (uint64_t)c->layers, sizeof *v->tower.layer, err);
    if (!v->tower.layer) return false;
    v->tower.layers = c->layers;
    v->tower.dim = c->dim;
    for (int i = 0; i < c->layers; i++) g3__load_vision_layer(m, i, place, &v->tower.layer[i]);
    g3__sight_mat(m, place, &v->embed, &once[G3__PATCH], &once[G3__PATCH_B]);
    g3__sight_mat(m, place, &v->positions, &once[G3__POS], NULL);
    v->post = g3__sight_norm(m, place, &once[G3__POST_LN], &once[G3__POST_LN_B]);
    v->soft = g3__sight_norm(m, place, g3__proj_weight(&m->weights, G3__SOFT_NORM), NULL);
    g3__sight_mat(m, place, &v->proj, proj, NULL);
    v->proj.transposed = true;                           // the file has [dim][text dim]
    v->proj.rows = v->proj.seg[0].rows = proj->cols;
    v->proj.cols = proj->rows;
    v->side = c->image / c->patch;
    v->pool = v->side / (int)sqrt((double)c->tokens);
    return true;
}

#ifndef GEMMA3_NO_CUDA
static void *g3__card_take(g3__card *c, uint64_t bytes, g3_error *err);         // on the card, and
static void *g3__card_pinned(g3__card *c, uint64_t bytes, g3_error *err);        // where it reads the host's memory by itself
static void g3__card_give(g3__card *c, void *arena);
static void g3__card_pinned_give(g3__card *c, void *pinned);
static uint64_t g3__card_free_bytes(g3__card *c);                                      // bytes, 0: unknown
static bool g3__tape_start(g3_session *s, g3_error *err);                        // what a session on a card has beside its arenas
static void g3__tape_stop(g3_session *s);
#else
static void *g3__card_take(g3__card *c, uint64_t bytes, g3_error *err)  { (void)c; (void)bytes; (void)err; return NULL; }
static void *g3__card_pinned(g3__card *c, uint64_t bytes, g3_error *err) { (void)c; (void)bytes; (void)err; return NULL; }
static void g3__card_give(g3__card *c, void *arena)   { (void)c; (void)arena; }
static void g3__card_pinned_give(g3__card *c, void *pinned) { (void)c; (void)pinned; }
static uint64_t g3__card_free_bytes(g3__card *c) { (void)c; return 0; }
static bool g3__tape_start(g3_session *s, g3_error *err) { (void)s; (void)err; return false; }
static void g3__tape_stop(g3_session *s) { (void)s; }
#endif

static bool g3__arena_take(g3_model *m, uint64_t bytes, char **arena, g3_error *err)     // exactly `bytes`: of the card, from the user's allocator or as pages
{
    bool own = m->heap.a.alloc_fn == g3__default_alloc;
    *arena = NULL;
    if (m->card) return (*arena = (char *)g3__card_take(m->card, bytes, err)) != NULL;
    if (bytes <= SIZE_MAX) *arena = (char *)(own ? g3__pages_take(NULL, (size_t)bytes, G3__ALIGN) : m->heap.a.alloc_fn(m->heap.a.user, (size_t)bytes, G3__ALIGN));
    return *arena || g3__fail(err, G3_ERR_MEMORY, "%s: %s gives no %llu bytes for an arena; a smaller context, kv int8 or no_vision takes less", m->name,
                                own ? "the system" : "the allocator", (unsigned long long)bytes) == G3_OK;
}

static void g3__arena_give(g3_model *m, char *arena, uint64_t bytes)
{
    if (!arena) return;
    if (m->card) g3__card_give(m->card, arena);
    else if (m->heap.a.alloc_fn == g3__default_alloc) g3__pages_give(NULL, arena, (size_t)bytes);
    else m->heap.a.free_fn(m->heap.a.user, arena, (size_t)bytes);
}

// The weights: one arena, one pass over the files, then the towers that point into it.
static bool g3__load_all(g3_model *m, g3_error *err)
{
    g3__layout l = G3__ZERO;
    uint64_t n = (uint64_t)m->weights.n;
    g3__place *place = (g3__place *)g3__heap_alloc(&m->heap, n + 1, sizeof *place, err);
    m->text.layer = (g3__layer *)g3__zone_alloc(&m->keep, (uint64_t)m->config.layers, sizeof *m->text.layer, err);
    m->arena_bytes = g3__model_bytes(&m->config, &m->weights);
    bool ok = place && m->text.layer && g3__arena_take(m, m->arena_bytes, &m->arena, err);
    if (ok) {
        l.base = m->arena;
        g3__lay_model(&l, &m->config, &m->weights, place);
        ok = g3__load_weights(m, place, err) && (!m->card || g3__load_maps(m, place, err));
    }
    if (ok) g3__load_tower(m, place);
    if (ok && m->weights.vision) ok = g3__load_vision(m, place, err);
    g3__heap_free(&m->heap, place, n + 1, sizeof *place);
    return ok;
}

// ------------------------------------------------------------------------------------------------------------------
// >>render
// Owns the chat template, as an algorithm over ids (the template in tokenizer_config.json): control tokens of the scaffold go in as ids,
// and all text between two of them is joined, then encoded with special parsing off, so that no word of a user can open
// or close a turn. g3_render emits a whole conversation; the chat emits turn after turn, with the same ids.

typedef struct g3__chat_ids { int bos, start_of_turn, end_of_turn, boi, eoi, soft, soft_count; } g3__chat_ids;   // -1: not in the tokenizer

static g3__chat_ids g3__chat_ids_of(const g3__tok *t)    // by their names; config.json may then set boi, eoi, soft and soft_count
{
    g3__chat_ids c;
    c.bos = t->bos;
    c.start_of_turn = (int)g3__tok_find(t, "<start_of_turn>");
    c.end_of_turn = (int)g3__tok_find(t, "<end_of_turn>");
    c.boi = (int)g3__tok_find(t, "<start_of_image>");
    c.eoi = (int)g3__tok_find(t, "<end_of_image>");
    c.soft = (int)g3__tok_find(t, "<image_soft_token>");
    c.soft_count = 256;
    return c;
}

// ---- the emitter: takes text and control tokens in order and writes ids

enum { G3__EMIT_LOCAL = 4096 };

typedef struct g3__emit {
    const g3__tok *t;
    const g3_allocator *a;
    const g3__chat_ids *c;
    g3_error *err;
    g3_result failed;                  // G3_OK, or the first failure, after which nothing more is done
    int *ids;                          // the first cap of
    int64_t cap, n;                    // n ids; n goes on beyond cap
    char *text;                        // text since the last control token that is not encoded yet: local, or a larger piece of `a`
    size_t used, room;
    const int *held; int n_held;       // tokens a session holds: an answer found there word for word keeps its ids; NULL: none
    g3__picture *pictures; int64_t most, n_pictures;     // what is to be looked at, the first `most`; NULL: only ids are wanted
    int64_t at;                        // position of ids[0]
    char local[G3__EMIT_LOCAL];
} g3__emit;

static void g3__emit_begin(g3__emit *e, const g3__tok *t, const g3_allocator *a, const g3__chat_ids *c, int *ids, int64_t cap, g3_error *err)
{
    e->t = t;
    e->a = a;
    e->c = c;
    e->err = err;
    e->failed = G3_OK;
    e->ids = ids;
    e->cap = cap;
    e->n = 0;
    e->text = e->local;
    e->used = 0;
    e->room = sizeof e->local;
    e->held = NULL;
    e->n_held = 0;
    e->pictures = NULL;
    e->most = e->n_pictures = e->at = 0;
}

static void g3__emit_encode(g3__emit *e, size_t n)       // the first n bytes of the text become ids
{
    int64_t room = e->n < e->cap ? e->cap - e->n : 0;
    int64_t got = g3__tok_encode(e->t, e->a, e->text, n, G3_TOKENIZE_PLAIN, room ? e->ids + e->n : NULL, room, e->err);
    if (got < 0) { e->failed = (g3_result)got; return; }
    e->n += got;
    e->used -= n;
    memmove(e->text, e->text + n, e->used);
}

static void g3__emit_grow(g3__emit *e)                   // there is no place to cut: twice the room
{
    size_t room = 2 * e->room;
    char *more = room > e->room ? (char *)e->a->alloc_fn(e->a->user, room, G3__ALIGN) : NULL;
    if (!more) {
        e->failed = g3__fail(e->err, G3_ERR_MEMORY, "the allocator has no %llu bytes to tokenise a text without a break", (unsigned long long)room);
        return;
    }
    memcpy(more, e->text, e->used);
    if (e->text != e->local) e->a->free_fn(e->a->user, e->text, e->room);
    e->text = more;
    e->room = room;
}

// When the room is full, what stands before the last place that no token can reach across is encoded; words have one at every space.
static void g3__emit_make_room(g3__emit *e)
{
    size_t cut = e->used - 1;
    while (cut && !g3__tok_cut(e->t, e->text + cut)) cut--;
    if (cut) g3__emit_encode(e, cut);
    else g3__emit_grow(e);
}

static void g3__emit_text(g3__emit *e, g3__str s)        // joined with the text before and after it
{
    while (s.n && !e->failed) {
        size_t n = G3__MIN(s.n, e->room - e->used);
        memcpy(e->text + e->used, s.p, n);
        e->used += n;
        s = g3__str_skip(s, n);
        if (s.n) g3__emit_make_room(e);
    }
}

static void g3__emit_control(g3__emit *e, int id, const char *name)   // one token of the scaffold; ends the text before it
{
    if (!e->failed) g3__emit_encode(e, e->used);
    if (!e->failed && id < 0) e->failed = g3__fail(e->err, G3_ERR_MODEL, "tokenizer.json has no %s, which the chat template needs", name);
    if (e->failed) return;
    if (e->n < e->cap) e->ids[e->n] = id;
    e->n++;
}

static int64_t g3__emit_end(g3__emit *e)                 // the count, or the g3_result of the first failure; gives the scratch back
{
    if (!e->failed) g3__emit_encode(e, e->used);
    if (e->text != e->local) e->a->free_fn(e->a->user, e->text, e->room);
    e->text = e->local;
    return e->failed ? (int64_t)e->failed : e->n;
}

// ---- trimming, as Python's str.strip: at both ends

static bool g3__space_char(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A)
        || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static int g3__space_size(const char *p, const char *end)   // bytes of the white space character at p, 0: none
{
    const unsigned char *s = (const unsigned char *)p;
    int n = g3__utf8_size(p, end);
    uint32_t c = 0;
    if (n == 1) c = s[0];
    if (n == 2) c = (s[0] & 31u) << 6 | (s[1] & 63u);
    if (n == 3) c = (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u);
    return n && g3__space_char(c) ? n : 0;
}

static g3__str g3__trim(g3__str s)
{
    const char *p = s.p, *end = s.p + s.n;
    int n = 1;
    while (p < end && (n = g3__space_size(p, end)) > 0) p += n;
    while (p < end) {
        const char *last = end - 1;                      // the first byte of the last character
        while (last > p && end - last < 3 && ((unsigned char)*last & 0xC0) == 0x80) last--;
        if (g3__space_size(last, end) != end - last) break;
        end = last;
    }
    return g3__str_make(p, (size_t)(end - p));
}

// ---- pieces of a conversation. `who` names the message in errors ("message 3", "the turn").

static uint64_t g3__image_hash(const g3_image *img, const g3__rect *crop)
{
    const size_t stride = img->stride ? (size_t)img->stride : 3 * (size_t)img->width;
    uint64_t h = (uint64_t)(unsigned)crop->w << 32 | (unsigned)crop->h;
    for (int y = crop->y; y < crop->y + crop->h; y++) {
        uint64_t both[2];
        both[0] = h;
        both[1] = g3__hash(img->rgb + (size_t)y * stride + 3 * (size_t)crop->x, 3 * (size_t)crop->w);
        h = g3__hash(both, sizeof both);
    }
    return h;
}

static void g3__emit_picture(g3__emit *e, const g3_image *img, const g3__rect *crop)     // remembers what its soft tokens stand for; beyond `most` the prompt is too long anyway
{
    if (e->pictures && e->n_pictures < e->most && !e->failed) {
        g3__picture *p = &e->pictures[e->n_pictures];
        p->pos = (int)(e->at + e->n);
        p->hash = g3__image_hash(img, crop);
        p->image = img;
        p->crop = *crop;
    }
    e->n_pictures++;
}

static void g3__emit_image(g3__emit *e, const g3_image *img, const g3__rect *crop)       // the newlines join the text around
{
    g3__emit_text(e, g3__str_c("\n\n"));
    g3__emit_control(e, e->c->boi, "<start_of_image>");
    g3__emit_picture(e, img, crop);
    for (int i = 0; i < e->c->soft_count; i++) g3__emit_control(e, e->c->soft, "<image_soft_token>");
    g3__emit_control(e, e->c->eoi, "<end_of_image>");
    g3__emit_text(e, g3__str_c("\n\n"));
}

// The whole picture, and with pan & scan its crops in the words that the model was trained with.
static void g3__emit_images(g3__emit *e, const g3_part *part)
{
    const g3_image *img = part->image;
    g3__rect whole = { 0, 0, img->width, img->height }, crop[4];
    int n = part->pan_and_scan ? g3__image_crops(img->width, img->height, crop) : 0;
    if (n) g3__emit_text(e, g3__str_c(g3__pan_text[0]));
    g3__emit_image(e, img, &whole);
    if (n) g3__emit_text(e, g3__str_c(g3__pan_text[1]));
    for (int i = 0; i < n; i++) {
        if (i) g3__emit_text(e, g3__str_c(g3__pan_text[2]));
        g3__emit_image(e, img, &crop[i]);
    }
}

static void g3__emit_part(g3__emit *e, const g3_part *part, const char *who, int i)
{
    if (part->text && part->image)
        e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "part %d of %s holds both a text and an image; make it two parts", i, who);
    else if (part->pan_and_scan && !part->image)
        e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "part %d of %s asks for pan_and_scan and is no picture", i, who);
    else if (part->image && !g3__image_check(part->image, e->err))
        e->failed = G3_ERR_ARGUMENT;
    else if (part->image) g3__emit_images(e, part);
    else if (part->text) g3__emit_text(e, g3__trim(g3__str_c(part->text)));
}

// A text, or parts instead of it; each text is trimmed by itself. Neither is an empty message.
static void g3__emit_content(g3__emit *e, const char *text, const g3_part *parts, int n_parts, const char *who)
{
    if (n_parts < 0 || (n_parts > 0 && !parts))
        e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "%s has n_parts %d and %s", who, n_parts, parts ? "parts" : "no parts");
    else if (text && n_parts)
        e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "%s has both a text and parts; give the text as one of the parts", who);
    if (e->failed) return;
    if (text) g3__emit_text(e, g3__trim(g3__str_c(text)));
    for (int i = 0; i < n_parts && !e->failed; i++) g3__emit_part(e, &parts[i], who, i);
}

static void g3__emit_open(g3__emit *e, const char *role) // the head of a turn; after it with "model" the model speaks
{
    g3__emit_control(e, e->c->start_of_turn, "<start_of_turn>");
    g3__emit_text(e, g3__str_c(role));
    g3__emit_text(e, g3__str_c("\n"));
}

// The end of a turn. `ended`: the model wrote its <end_of_turn> itself. The next thing emitted must be g3__emit_open or the end.
static void g3__emit_close(g3__emit *e, bool ended)
{
    if (!ended) g3__emit_control(e, e->c->end_of_turn, "<end_of_turn>");
    g3__emit_text(e, g3__str_c("\n"));
}

// ---- answers that the session holds: their own ids, which encoding the text anew need not give

typedef struct g3__bytes { const g3__tok *t; const int *id; int n; g3__str piece; } g3__bytes;   // the bytes of ids, one after another

static int g3__bytes_next(g3__bytes *b)                  // -1 at the end
{
    while (!b->piece.n && b->n) { b->piece = g3__tok_piece(b->t, *b->id++); b->n--; }
    if (!b->piece.n) return -1;
    b->piece = g3__str_skip(b->piece, 1);
    return (unsigned char)b->piece.p[-1];
}

static bool g3__bytes_equal(g3__bytes b, g3__str text)   // the ids print exactly `text`, white space around both aside
{
    char end[4];
    int c = g3__bytes_next(&b), n = 0;
    while (c >= 0 && c < 0x80 && g3__space_char((uint32_t)c)) c = g3__bytes_next(&b);            // ASCII only in front: other answers are just encoded anew
    for (size_t i = 0; i < text.n; i++, c = g3__bytes_next(&b))
        if (c != (unsigned char)text.p[i]) return false;
    for (; c >= 0; c = g3__bytes_next(&b)) {
        end[n++] = (char)c;
        if (g3__space_size(end, end + n) == n) n = 0;
        else if (n == 3) return false;
    }
    return n == 0;
}

// The model's turn stands at e->n in the held tokens up to <end_of_turn>, and prints `text`: its ids are taken over.
static bool g3__emit_held(g3__emit *e, g3__str text)
{
    g3__bytes b;
    int from = (int)e->n, end = from, last;
    if (!e->held || e->failed || e->n > e->n_held || e->n > e->cap || memcmp(e->ids, e->held, (size_t)e->n * sizeof *e->ids)) return false;
    while (end < e->n_held && e->held[end] != e->c->end_of_turn) end++;
    b.t = e->t;
    b.id = e->held + from;
    for (last = end; last > from && g3__tok_special(e->t, e->held[last - 1]); last--) {}          // an <eos> that ended the answer is not its text
    b.n = last - from;
    b.piece = g3__str_make(NULL, 0);
    if (!g3__bytes_equal(b, text)) return false;
    for (int i = from; i < end; i++, e->n++) if (e->n < e->cap) e->ids[e->n] = e->held[i];
    return true;
}

// One closed turn. `system`: text that goes in front of the first user turn, untrimmed and with a blank line after it; NULL: none.
static void g3__emit_message(g3__emit *e, const char *role, const char *system, const char *text, const g3_part *parts, int n_parts, const char *who)
{
    g3__emit_open(e, role);
    if (system) g3__emit_text(e, g3__str_c(system));
    if (system) g3__emit_text(e, g3__str_c("\n\n"));
    if (!e->failed && e->held && text && !n_parts && !strcmp(role, "model")) {
        g3__emit_encode(e, e->used);                     // no token reaches from the newline into the answer: it is an added token
        if (g3__emit_held(e, g3__trim(g3__str_c(text)))) text = NULL;
    }
    if (!e->failed) g3__emit_content(e, text, parts, n_parts, who);
    g3__emit_close(e, false);
}

// ---- whole conversations

static bool g3__render_system(g3__emit *e, const g3_message *m, const char **system)   // a text, or the first part as the template reads it
{
    bool parts = m->n_parts > 0 && m->parts;
    *system = parts ? m->parts[0].text : m->text;
    if (*system && !(parts && (m->text || m->parts[0].image))) return true;
    e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "message 0 is a system message and must be one text");
    return false;
}

static void g3__render_message(g3__emit *e, const g3_message *m, int i, bool user_turn, const char *system)
{
    char who[32];
    bool user = m->role && strcmp(m->role, "user") == 0;
    snprintf(who, sizeof who, "message %d", i);
    if (!m->role) e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "message %d has no role", i);
    else if (user != user_turn)
        e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "message %d has the role \"%.40s\" where %s must stand: user and assistant alternate, after at most one system message",
                             i, m->role, user_turn ? "\"user\"" : "any role but \"user\"");
    else g3__emit_message(e, strcmp(m->role, "assistant") == 0 ? "model" : m->role, system, m->text, m->parts, m->n_parts, who);
}

static void g3__render_all(g3__emit *e, const g3_message *messages, int n, bool generation_prompt)
{
    const char *system = NULL;
    int first = n > 0 && messages[0].role && strcmp(messages[0].role, "system") == 0;
    if (n <= first) {
        e->failed = g3__fail(e->err, G3_ERR_ARGUMENT, "%s", first ? "message 0 is a system message alone; add a user message" : "the conversation has no messages");
        return;
    }
    if (first && !g3__render_system(e, &messages[0], &system)) return;
    g3__emit_control(e, e->c->bos, "<bos>");
    for (int i = first; i < n && !e->failed; i++) g3__render_message(e, &messages[i], i, (i - first) % 2 == 0, i == first ? system : NULL);
    if (generation_prompt) g3__emit_open(e, "model");
}

// The count of ids, of which the first `cap` are written; or a g3_result below 0.
static int64_t g3__render(const g3__tok *t, const g3_allocator *a, const g3__chat_ids *c, const g3_message *messages, int n, bool generation_prompt,
                          int *ids, int64_t cap, g3_error *err)
{
    g3__emit e;
    g3__emit_begin(&e, t, a, c, ids, cap, err);
    g3__render_all(&e, messages, n, generation_prompt);
    return g3__emit_end(&e);
}
// ------------------------------------------------------------------------------------------------------------------
// >>session
// Owns one conversation's timeline: which tokens are held, where they lie in the rings, what of it can be taken back, and
// the steps that push tokens through the model. >>chat and >>public are its callers; >>forward does the arithmetic.

// ---- opening and closing

static const g3__ops *g3__probe_table(void);
static void g3__probe_carve(g3_session *s);
static void g3__probe_show(g3_session *s, g3_view *v);
static float *g3__probe_fetch(g3_session *s, float *x, size_t floats);
static void g3__sight_tick(g3__run *r);

static void g3__sight_carve(g3_session *s)
{
    g3__layer *own = s->sight.vit.tower.layer;           // the layout has put it there for a probe
    s->sight.vit = s->m->vit;
    if (s->desc.probe.probe_fn && !s->desc.no_images) s->sight.vit.tower.layer = own;
    s->sight.kv_at = &s->sight.kv;
}

static void g3__session_carve(g3_session *s)             // pointers into the arena; also after the arena of another session was copied over it
{
    g3__layout l = G3__ZERO;
    l.base = s->arena;
    l.host = s->host;
    g3__lay_session(&l, &s->m->config, &s->desc, g3__pool_width(&s->m->pool), s);
    for (int i = 0; i < s->m->config.layers; i++) s->kv_of[i] = &s->kv[i];
    s->run.kv = s->kv_of;
    s->run.tick = g3__sight_tick;
    g3__sight_carve(s);
    s->run.op = s->m->op;
    s->run.simd = s->m->simd;
    s->run.pool = &s->m->pool;
    s->run.memory = &s->m->heap.a;
    s->run.card = s->m->card;
    s->run.err = &s->err;
    s->text = s->m->text;
    if (s->layers) g3__probe_carve(s);
}

static uint64_t g3__clock_seed(const void *salt)
{
    double t = g3__clock();
    uint64_t bits;
    memcpy(&bits, &t, sizeof bits);
    return g3__mix(bits ^ g3__mix((uint64_t)(uintptr_t)salt)) | 1;               // never 0, which means "from the clock"
}

static uint64_t g3__session_room(g3_model *m)            // bytes a further session may take; UINT64_MAX: nobody knows
{
    uint64_t limit = m->desc.memory_limit, used = m->arena_bytes + m->session_bytes, room;
    if (limit) return limit > used ? limit - used : 0;
    room = m->card ? g3__card_free_bytes(m->card) : g3__memory_free();
    return room ? room : UINT64_MAX;
}

static bool g3__session_size(g3_session *s, const g3_session_desc *desc, g3_error *err)   // settles the desc and the arena's size
{
    g3_model *m = s->m;
    int width = g3__pool_width(&m->pool);
    uint64_t room = g3__session_room(m);
    if (!g3__session_resolve(&m->config, m->weights.vision, desc, &s->desc, err)) return false;
    int largest = g3__largest_context(&m->config, &s->desc, 1, width, room);
    if (s->desc.context < 0) {
        s->desc.context = G3__MAX(largest, 1);
        s->desc.batch = G3__MIN(s->desc.batch, s->desc.context);
        s->desc.logits_rows = G3__MIN(s->desc.logits_rows, s->desc.batch);
    }
    s->arena_bytes = g3__session_bytes(&m->config, &s->desc, s->desc.context, width, &s->host_bytes);
    if (s->arena_bytes <= room) return true;
    return g3__fail(err, m->card ? G3_ERR_VRAM : G3_ERR_MEMORY, "a session of context %d takes %llu bytes, %llu are left: a context of %d would fit", s->desc.context,
                    (unsigned long long)s->arena_bytes, (unsigned long long)room, largest) == G3_OK;
}

static void g3__session_give(g3_session *s)              // its memory, and itself
{
    g3_model *m = s->m;
    if (s->host) g3__tape_stop(s);
    if (s->host) g3__card_pinned_give(m->card, s->host);
    g3__arena_give(m, s->arena, s->arena_bytes);
    g3__heap_free(&m->heap, s, 1, sizeof *s);
}

static g3_session *g3__session_make(g3_model *m, const g3_session_desc *desc, g3_error *err)      // under the model's lock
{
    g3_session *s = (g3_session *)g3__heap_alloc(&m->heap, 1, sizeof *s, err);
    if (!s) return NULL;
    s->m = m;
    bool ok = g3__session_size(s, desc, err) && g3__arena_take(m, s->arena_bytes, &s->arena, err)
           && (!m->card || (s->host = (char *)g3__card_pinned(m->card, s->host_bytes, err)) != NULL);
    if (ok) {
        if (s->host) memset(s->host, 0, (size_t)s->host_bytes);
        g3__session_carve(s);
        memset(s->answer, 0, sizeof *s->answer);
        s->seed = g3__clock_seed(s);
        ok = !m->card || g3__tape_start(s, err);
    }
    if (!ok) { g3__session_give(s); return NULL; }
    m->users++;
    m->session_bytes += s->arena_bytes;
    return s;
}

// ---- one call at a time; cancel reaches the running one only

static void g3__call_begin(g3_session *s)
{
    g3__error_clear(&s->err);
    g3__atomic_set(&s->cancel, 0);
    g3__atomic_set(&s->running, 1);
}

static g3_result g3__call_end(g3_session *s, g3_error *err)       // the call's own error, copied to the caller's
{
    g3__atomic_set(&s->running, 0);
    if (err) *err = s->err;
    return s->err.code;
}

static bool g3__cancelled(g3_session *s)
{
    return g3__atomic_get(&s->cancel) && g3__fail(&s->err, G3_ERR_STOPPED, "the call was cancelled");
}

// ---- pictures

// The beginning of the picture that pos falls into, else pos itself. Pictures with no token between them are one block: their rows see each other.
static int g3__block_start(const g3_session *s, int pos)
{
    const int size = s->m->config.vision.tokens;
    for (int i = s->n_pictures; i-- > 0; ) {
        const int from = s->pictures[i].pos, end = from + size;
        const bool joined = i + 1 < s->n_pictures && s->pictures[i + 1].pos == end;
        if (from < pos && (pos < end || (pos == end && joined))) pos = from;
    }
    return pos;
}

static void g3__pictures_drop(g3_session *s, int held)   // those from position `held` on
{
    while (s->n_pictures && s->pictures[s->n_pictures - 1].pos >= held) s->n_pictures--;
}

static void g3__sight_show(g3_session *s, const char *name, int layer, int pos, float *x, int rows, int cols)
{
    g3_view v = G3__ZERO;
    v.point = G3_POINT_VISION;
    v.name = name;
    v.layer = layer;
    v.pos = pos;
    v.rows = rows;
    v.heads = 1;
    v.cols = cols;
    if (!(s->desc.probe.points & G3_POINT_VISION) || !(v.data = g3__probe_fetch(s, x, (size_t)rows * (size_t)cols))) return;
    g3__probe_show(s, &v);
    if (v.data != x) s->m->op->upload(&s->run, x, v.data, (size_t)rows * (size_t)cols * sizeof(float));
}

// Between the layers of the tower: was the call cancelled, is progress_fn or probe_fn against going on?
static void g3__sight_tick(g3__run *r)
{
    g3_session *s = (g3_session *)(void *)((char *)r - offsetof(g3_session, run));
    const g3_progress *p = &s->desc.progress;
    const uint64_t layers = (uint64_t)r->tower->layers;
    if (s->err.code || g3__cancelled(s)) return;
    if (p->progress_fn && p->progress_fn(p->user, "pictures", (uint64_t)s->sight.looked * layers + (uint64_t)r->layer, (uint64_t)s->sight.asked * layers))
        g3__fail(&s->err, G3_ERR_STOPPED, "stopped by progress_fn while looking at picture %d of %d", s->sight.looked + 1, s->sight.asked);
    g3__sight_show(s, r->layer ? "layer" : "patches", r->layer - 1, s->sight.pos, r->a.x, r->shape.batch, r->tower->dim);
}

// One picture through the tower: y [tokens][dim] are rows of the text's residual stream.
static void g3__look(g3_session *s, const g3__picture *p, float *y)
{
#ifndef GEMMA3_NO_VISION
    g3__sight *o = &s->sight;
    const g3__vision_config *c = &s->m->config.vision;
    const g3__run text = s->run;
    double start = g3__clock();
    if (s->err.code || !g3__image_patches(p->image, &p->crop, c->image, c->patch, o->pixels, o->room, o->room_size, &s->err)) return;
    if (o->patches != o->pixels) s->run.op->upload(&s->run, o->patches, o->pixels, (size_t)o->shape.batch * 3 * (size_t)(c->patch * c->patch) * sizeof(float));
    for (int t = 0; t < o->shape.batch; t++) {
        o->rows[t].pos = t;
        o->rows[t].span = o->shape.batch - 1;
        o->rows[t].seq = 0;
    }
    o->pos = p->pos;
    s->run.shape = o->shape;
    s->run.a = o->a;
    s->run.kv = &o->kv_at;
    s->run.rows = o->rows;
    g3__vit_forward(&s->run, &o->vit, o->patches, y);
    s->run = text;
    g3__sight_show(s, "soft tokens", -1, p->pos, y, c->tokens, s->m->config.dim);
    s->stats.image_s += g3__clock() - start;
    if (s->err.code) return;
    o->looked++;
    s->stats.images++;
#else
    (void)s; (void)p; (void)y;
#endif
}

// ---- steps

static void g3__step_pictures(g3_session *s, int n)      // of the next n tokens: their rows of x, and what each row of them may see
{
    const int size = s->m->config.vision.tokens;
    for (int i = 0; i < s->n_pictures; i++) {
        const int row = s->pictures[i].pos - s->done;
        if (row < 0 || row >= n) continue;
        for (int t = row; t < row + size; t++) s->step_ids[t] = -1;
        g3__look(s, &s->pictures[i], s->run.a.x + (size_t)row * (size_t)s->m->config.dim);
    }
    for (int t = n - 1; t-- > 0; )
        if (s->step_ids[t] < 0 && s->step_ids[t + 1] < 0) s->run.rows[t].span = s->run.rows[t + 1].span;
}

static void g3__step(g3_session *s, int n)               // the next n held tokens go through the model; pictures among them are whole
{
    for (int t = 0; t < n; t++) {
        g3__row *row = &s->run.rows[t];
        row->pos = row->span = s->done + t;
        row->seq = 0;
        s->step_ids[t] = s->ids[s->done + t];
    }
    s->kept = 0;
    s->logits_done = false;
    if (s->n_pictures) g3__step_pictures(s, n);
    if (s->err.code) return;
    s->high = G3__MAX(s->high, s->done + n);             // from here on older rows of the rings are gone, whatever happens
    g3__text_forward(&s->run, &s->text, &s->m->embed, s->step_ids, n);
    if (s->err.code) return;
    s->done += n;
    s->last = n;
    s->kept = G3__MIN(n, s->desc.logits_rows);
}

// The next step: a batch, or less so that no picture is cut.
static int g3__step_size(g3_session *s)
{
    int n = g3__block_start(s, s->done + G3__MIN(s->held - s->done, s->desc.batch)) - s->done;
    if (n < 1) g3__fail(&s->err, G3_ERR_ARGUMENT, "pictures with no token between them are more than the %d rows of a step; a larger batch or a token between them would do", s->desc.batch);
    return n;
}

// Everything held goes through the model, in steps of `batch`. On failure the first `keep` tokens stay held (a sampled token waits
// for the next try), and of the others those that went through.
static bool g3__advance(g3_session *s, int keep, bool report)
{
    const g3_progress *p = &s->desc.progress;
    int from = s->done, total = s->held - from;
    while (s->done < s->held && !s->err.code && !g3__cancelled(s)) {
        int n = g3__step_size(s);
        if (n > 0) g3__step(s, n);
        if (!s->err.code && report && p->progress_fn && p->progress_fn(p->user, "prompt", (uint64_t)(s->done - from), (uint64_t)total))
            g3__fail(&s->err, G3_ERR_STOPPED, "the prompt was stopped by progress_fn after %d of %d tokens", s->done - from, total);
    }
    s->held = G3__MAX(s->done, keep);
    g3__pictures_drop(s, s->held);
    return !s->err.code;
}

// Every id has a row in the table, or stands for a part of one of the `pictures`: no more of these, and no fewer.
static bool g3__check_ids(g3_session *s, const int *ids, int n, int pictures)
{
    const g3__config *c = &s->m->config;
    int64_t soft = 0, want = (int64_t)pictures * c->vision.tokens;
    for (int i = 0; i < n; i++)
        if (c->multimodal && ids[i] == c->image_token) soft++;
        else if (ids[i] < 0 || ids[i] >= c->vocab)
            return g3__fail(&s->err, G3_ERR_ARGUMENT, "token %d of %d has the id %d; the model's table has rows 0 to %d", i, n, ids[i], c->vocab - 1) == G3_OK;
    return soft == want || g3__fail(&s->err, G3_ERR_ARGUMENT, "the tokens have the id %d, which stands for a part of a picture, %lld times, where %lld belong to pictures given; g3_add_image adds one",
                                    c->image_token, (long long)soft, (long long)want) == G3_OK;
}

static bool g3__check_room(g3_session *s, int64_t held, int64_t n)
{
    return n <= s->desc.context - held || g3__fail(&s->err, G3_ERR_CONTEXT, "%lld tokens are held and %lld more make %lld; the context is %d", (long long)held, (long long)n,
                                                   (long long)(held + n), s->desc.context) == G3_OK;
}

static void g3__stats_begin(g3_session *s)               // counts run from the first token added after an answer
{
    if (!s->answered) return;
    s->answered = false;
    s->stats.prompt_tokens = s->stats.images = s->stats.new_tokens = 0;
    s->stats.prompt_s = s->stats.image_s = s->stats.first_s = s->stats.new_s = 0;
}

// n tokens that stand at ids + held already, and the pictures among them, behind those held. On failure those that went through stay.
static bool g3__add_held(g3_session *s, int n, int pictures)
{
    double start = g3__clock();
    int waiting = s->held - s->done, before = s->done;
    g3__stats_begin(s);
    double looking = s->stats.image_s;
    s->n_pictures += pictures;
    s->sight.asked = pictures;
    s->sight.looked = 0;
    s->answering = G3__ANSWER_NONE;
    s->finish = G3_FINISH_NONE;
    int keep = s->held;
    s->held += n;
    bool ok = g3__advance(s, keep, true);
    s->stats.prompt_tokens += G3__MAX(s->done - before - waiting, 0);
    s->stats.prompt_s += g3__clock() - start - (s->stats.image_s - looking);
    for (int i = 0; i < s->n_pictures; i++) s->pictures[i].image = NULL;         // the caller's again
    return ok;
}

static bool g3__add_ids(g3_session *s, const int *ids, int n)
{
    if (!g3__check_ids(s, ids, n, 0) || !g3__check_room(s, s->held, n)) return false;
    if (n) memcpy(s->ids + s->held, ids, (size_t)n * sizeof *ids);
    return g3__add_held(s, n, 0);
}

static bool g3__sees(g3_session *s)                      // may pictures be added?
{
    const g3_model *m = s->m;
    if (!s->desc.no_images) return true;
#ifdef GEMMA3_NO_VISION
    return g3__fail(&s->err, G3_ERR_UNSUPPORTED, "pictures: this build has no vision tower (GEMMA3_NO_VISION)") == G3_OK;
#endif
    if (m->weights.vision) return g3__fail(&s->err, G3_ERR_ARGUMENT, "pictures: this session was opened with no_images") == G3_OK;
    if (m->desc.no_vision && m->config.has_vision) return g3__fail(&s->err, G3_ERR_ARGUMENT, "pictures: %s was opened with no_vision", m->name) == G3_OK;
    return g3__fail(&s->err, G3_ERR_MODEL, "pictures: the files of %s bring no vision tower, it reads text only", m->name) == G3_OK;
}

static bool g3__add_image(g3_session *s, const g3_image *img)
{
    const int size = s->m->config.vision.tokens;
    g3__rect whole = { 0, 0, img->width, img->height };
    if (!g3__sees(s) || !g3__image_check(img, &s->err) || !g3__check_room(s, s->held, size)) return false;
    if (s->n_pictures && s->pictures[s->n_pictures - 1].pos + size == s->held)
        return g3__fail(&s->err, G3_ERR_ARGUMENT, "two pictures touch: add at least one token between them, as the chat template's frame does") == G3_OK;
    g3__picture *p = &s->pictures[s->n_pictures];
    p->pos = s->held;
    p->hash = g3__image_hash(img, &whole);
    p->image = img;
    p->crop = whole;
    for (int i = 0; i < size; i++) s->ids[s->held + i] = s->m->config.image_token;
    return g3__add_held(s, size, 1);
}

// ---- going back

// Whether position pos can be continued from: all W - 1 keys before it must still be in the rings, which hold the last `rows`
// positions ever written. Position 0 needs none; full layers, and rings as long as the context, lose nothing.
static bool g3__can_rewind(const g3_session *s, int pos)
{
    int64_t rows = (int64_t)s->m->config.window + s->desc.batch;
    bool rings = false;
    for (int i = 0; i < s->m->config.layers; i++) rings = rings || !s->m->config.full[i];
    return pos <= 0 || !rings || rows >= s->desc.context || s->high <= rows || (int64_t)pos - s->m->config.window + 1 >= s->high - rows;
}

static int g3__rewind(g3_session *s, int pos)            // the position reached
{
    if (pos >= s->held) return s->held;
    pos = g3__block_start(s, pos);
    if (pos <= 0 || !g3__can_rewind(s, pos)) pos = 0;
    s->held = pos;
    g3__pictures_drop(s, pos);
    s->done = G3__MIN(s->done, pos);
    if (!pos) s->high = 0;
    s->kept = 0;
    s->speaking = s->speaking && pos > 0;
    s->answering = G3__ANSWER_NONE;
    s->finish = G3_FINISH_NONE;
    return pos;
}

// ---- logits, when asked for

static bool g3__logits_ready(g3_session *s)                        // the token that waits has gone through, and rows are there
{
    if (s->done < s->held && !g3__advance(s, s->held, false)) return false;
    return s->kept || g3__fail(&s->err, G3_ERR_ARGUMENT, "there are no logits: add a token first") == G3_OK;
}

static float *g3__logits_row(g3_session *s, int back)              // NULL: s->err
{
    if (!g3__logits_ready(s)) return NULL;
    if (back < 0 || back >= s->kept) { g3__fail(&s->err, G3_ERR_ARGUMENT, "back: %d, but the last step kept %d rows (logits_rows %d)", back, s->kept, s->desc.logits_rows); return NULL; }
    if (!s->logits_done) {
        g3__logits(&s->run, &s->m->head, &s->m->final, s->last - s->kept, s->kept, s->raw);
        if (s->raw != s->logits) s->run.op->download(&s->run, s->logits, s->raw, (size_t)s->kept * (size_t)s->m->config.vocab * sizeof(float));
    }
    if (s->err.code) return NULL;
    s->logits_done = true;
    return s->logits + (size_t)(s->kept - 1 - back) * (size_t)s->m->config.vocab;
}

static int g3__drawn_rows(const g3_model *m) { return m->has_tok ? G3__MIN(m->config.vocab, m->tok.n) : m->config.vocab; }

// What a draw looks at: all logits, or with a screened head those that can be among its k largest. What the context penalises may fall
// behind as many others, and what stands for a picture is not drawn; so that many more are wanted. NULL: s->err.
static float *g3__draw_logits(g3_session *s, const g3_sampler *p)
{
    g3_model *m = s->m;
    const bool penalty = p->repeat_penalty != 1 && p->repeat_penalty > 0;
    int64_t k = (p->greedy ? 1 : p->top_k) + (m->config.multimodal ? 3 : 0) + (penalty && !p->greedy ? (int64_t)s->held : 0);
    const bool whole = !m->screen.rows || !m->op->screen || p->logits_fn || p->logprobs || s->logits_done || (!p->greedy && (p->top_k < 1 || (penalty && p->repeat_penalty < 1)));
    if (whole || k > m->screen.rows / 64) return g3__logits_row(s, 0);
    if (!g3__logits_ready(s)) return NULL;
    float *y = s->logits + (size_t)(s->kept - 1) * (size_t)m->config.vocab;
    m->op->screen(&s->run, y, s->run.a.x + (size_t)(s->last - 1) * (size_t)m->head.cols, &m->final, &m->head, &m->screen, g3__drawn_rows(m), (int)k);
    return s->err.code ? NULL : y;
}

// Ids that are drawn: those the tokenizer has, less the ones that stand for pictures.
static int g3__draw_token(g3_session *s, const g3_sampler *p, float *logprob)        // the id, or a g3_result
{
    g3__sample_in in = G3__ZERO;
    const g3__config *c = &s->m->config;
    int banned[3];
    float *logits = g3__draw_logits(s, p);
    if (!logits) return s->err.code;
    banned[0] = c->image_token;
    banned[1] = c->boi;
    banned[2] = c->eoi;
    in.logits = logits;
    in.vocab = g3__drawn_rows(s->m);
    in.held = s->ids;
    in.n_held = s->held;
    in.banned = banned;
    in.n_banned = c->multimodal ? 3 : 0;
    in.p = p;
    in.seed = s->seed_used = p->seed ? p->seed : s->seed;
    in.position = (uint64_t)s->held;
    in.work = s->sample_work;
    int id = g3__sample(&in, p->logprobs ? logprob : NULL, &s->err);
    if (p->logits_fn) s->logits_done = false;            // what the hook wrote was for this draw alone
    return id;
}

static int g3__cpu_attention_row(float *weight, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *row, float *room, int *first);

// ---- the probe: the table of operations, wrapped (desc.probe). Each wrapper runs the operation, then shows what it made

static g3_session *g3__probe_session(g3__run *r) { return (g3_session *)(void *)((char *)r - offsetof(g3_session, run)); }

static void g3__probe_show(g3_session *s, g3_view *v)
{
    const g3_probe *p = &s->desc.probe;
    if (s->err.code || !p->probe_fn || !(p->points & (unsigned)v->point)) return;
    if (v->point != G3_POINT_VISION) v->layer = s->run.layer;
    if (p->probe_fn(p->user, v)) g3__fail(&s->err, G3_ERR_STOPPED, "stopped by probe_fn at %s of layer %d", v->name, v->layer);
}

// What the probe is shown: where it lies, or fetched from a card. NULL: that failed.
static float *g3__probe_fetch(g3_session *s, float *x, size_t floats)
{
    if (!s->m->card) return x;
    s->m->op->download(&s->run, s->shown, x, floats * sizeof(float));
    return s->err.code ? NULL : s->shown;
}

static bool g3__probe_sight(const g3_session *s) { return s->run.tower == &s->sight.vit.tower; }         // is it the vision tower that runs?

static void g3__probe_rows(g3_session *s, g3_point point, const char *name, float *x, int cols, int n)    // the last rows of [n][cols]
{
    g3_view v = G3__ZERO;
    if (g3__probe_sight(s)) return;                      // its rows are shown between the layers
    v.point = point;
    v.name = name;
    v.rows = G3__MIN(n, s->desc.probe.rows);
    v.cols = cols;
    v.heads = 1;
    v.pos = s->run.rows[n - v.rows].pos;
    x += (size_t)(n - v.rows) * (size_t)cols;
    if (!(s->desc.probe.points & (unsigned)point) || !(v.data = g3__probe_fetch(s, x, (size_t)v.rows * (size_t)cols))) return;
    g3__probe_show(s, &v);
    if (v.data != x && point != G3_POINT_BRANCH) s->m->op->upload(&s->run, x, v.data, (size_t)v.rows * (size_t)cols * sizeof(float));
}

enum { G3__OP_EMBED, G3__OP_LINEAR, G3__OP_QKV, G3__OP_WO, G3__OP_UP, G3__OP_DOWN, G3__OP_NORM, G3__OP_ROPE, G3__OP_ATTEND, G3__OP_ADD, G3__OP_GELU, G3__OP_POOL, G3__OPS };
static const char *const g3__op_names[2][G3__OPS] = {
    {"embed", "linear", "qkv", "wo", "gate_up", "down", "norm", "rope", "attend", "add", "geglu", "pool"},
    {"vision embed", "vision linear", "vision qkv", "vision wo", "vision up", "vision down", "vision norm", "vision append", "vision attend", "vision add", "vision gelu", "vision pool"}
};

static void g3__probe_op(g3_session *s, int op, int n, double start, uint64_t bytes, uint64_t flops)
{
    g3_view v = G3__ZERO;
    bool sight = g3__probe_sight(s);
    v.point = G3_POINT_OP;
    v.name = g3__op_names[sight][op];
    v.rows = n;
    v.pos = sight ? s->sight.pos : s->run.rows[0].pos;
    v.seconds = g3__clock() - start;
    v.bytes = bytes;
    v.flops = flops;
    g3__probe_show(s, &v);
}

static uint64_t g3__mat_bytes(const g3__mat *W)          // what one pass over the matrix reads
{
    uint64_t bytes = 0;
    for (int i = 0; i < W->n_segs; i++) {
        const g3__bits *b = &W->seg[i].bits;
        uint64_t n = (uint64_t)W->seg[i].rows * (uint64_t)W->cols, blocks = b->blocksize ? (n + b->blocksize - 1) / b->blocksize : 0;
        bytes += (n * g3__format_bits(b->format) + 7) / 8 + blocks * (b->nested_absmax ? 1 : 4);
        if (b->nested_absmax) bytes += (blocks + b->nested_blocksize - 1) / b->nested_blocksize * 4;
    }
    return bytes;
}

static void g3__probe_embed(g3__run *r, float *y, const g3__mat *E, const int *ids, int n, float scale)
{
    g3_session *s = g3__probe_session(r);
    double start = g3__clock();
    s->m->op->embed(r, y, E, ids, n, scale);
    g3__probe_op(s, G3__OP_EMBED, n, start, (uint64_t)n * g3__mat_bytes(E) / (uint64_t)G3__MAX(E->rows, 1), (uint64_t)n * (uint64_t)E->cols);
    g3__probe_rows(s, G3_POINT_EMBED, "embed", y, E->cols, n);
}

static void g3__probe_linear(g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, int n)
{
    g3_session *s = g3__probe_session(r);
    const g3__layer *L = r->layer >= 0 && r->layer < r->tower->layers ? &r->tower->layer[r->layer] : NULL;
    int op = !L ? G3__OP_LINEAR : W == &L->qkv ? G3__OP_QKV : W == &L->wo ? G3__OP_WO : W == &L->gate_up ? G3__OP_UP : G3__OP_DOWN;
    double start = g3__clock();
    s->m->op->linear(r, y, x, norm, W, n);
    g3__probe_op(s, op, n, start, g3__mat_bytes(W), 2 * (uint64_t)n * (uint64_t)W->rows * (uint64_t)W->cols);
}

static void g3__probe_norm(g3__run *r, float *y, const float *x, const g3__norm *norm, int n)
{
    g3_session *s = g3__probe_session(r);
    double start = g3__clock();
    s->m->op->norm(r, y, x, norm, n);
    g3__probe_op(s, G3__OP_NORM, n, start, 8 * (uint64_t)n * (uint64_t)norm->dim, 4 * (uint64_t)n * (uint64_t)norm->dim);
}

static void g3__probe_rope(g3__run *r, float *qkv, const g3__attn *a, g3__kv *kv, const g3__row *rows, int n)
{
    g3_session *s = g3__probe_session(r);
    uint64_t numbers = (uint64_t)n * (uint64_t)(a->heads + 2 * a->kv_heads) * (uint64_t)a->head_dim;
    double start = g3__clock();
    s->m->op->rope(r, qkv, a, kv, rows, n);
    g3__probe_op(s, G3__OP_ROPE, n, start, 4 * numbers, 6 * numbers);
}

static void g3__probe_keys(g3_session *s, g3__kv *kv)    // a card's keys are fetched; kv then points at them
{
    const size_t rows = (size_t)kv->rows * (size_t)kv->kv_heads, keys = rows * (size_t)kv->head_dim * (size_t)g3__kv_size(kv->format);
    if (!s->m->card) return;
    s->m->op->download(&s->run, s->shown_k, kv->k, keys);
    if (kv->k_scale) s->m->op->download(&s->run, s->shown_k + g3__round_up(keys, 4), kv->k_scale, rows * sizeof(float));
    kv->k = s->shown_k;
    kv->k_scale = (float *)(void *)(s->shown_k + g3__round_up(keys, 4));
}

static void g3__probe_attention(g3_session *s, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n)   // row by row
{
    int stride = (a->heads + 2 * a->kv_heads) * a->head_dim, first = n - G3__MIN(n, s->desc.probe.rows);
    g3__kv here = kv[rows[0].seq];
    const float *q = g3__probe_fetch(s, (float *)(uintptr_t)qkv + (size_t)first * (size_t)stride, (size_t)(n - first) * (size_t)stride);
    if (q) g3__probe_keys(s, &here);
    for (int t = first; t < n && !s->err.code; t++) {
        g3_view v = G3__ZERO;
        v.point = G3_POINT_ATTENTION;
        v.name = "attention";
        v.rows = 1;
        v.heads = a->heads;
        v.pos = rows[t].pos;
        v.cols = g3__cpu_attention_row(s->seen, q + (size_t)(t - first) * (size_t)stride, a, s->m->card ? &here : kv, &rows[t], s->m->card ? s->shown_key : s->run.a.work, &v.key);
        v.data = s->seen;
        g3__probe_show(s, &v);
    }
}

static void g3__probe_attend(g3__run *r, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n)
{
    g3_session *s = g3__probe_session(r);
    uint64_t seen = 0, most = 0, row = 2 * (uint64_t)a->kv_heads * (uint64_t)a->head_dim * (uint64_t)g3__kv_size(kv->format);
    double start = g3__clock();
    s->m->op->attend(r, y, qkv, a, kv, rows, n);
    for (int t = 0; t < n; t++) {
        uint64_t keys = (uint64_t)(rows[t].span + 1 - (a->window ? G3__MAX(rows[t].pos - a->window + 1, 0) : 0));
        seen += keys;
        most = G3__MAX(most, keys + (uint64_t)n - 1);
    }
    g3__probe_op(s, G3__OP_ATTEND, n, start, G3__MIN(most, (uint64_t)kv->rows) * row, 4 * seen * (uint64_t)a->heads * (uint64_t)a->head_dim);
    if (s->seen && !g3__probe_sight(s)) g3__probe_attention(s, qkv, a, kv, rows, n);
}

static void g3__probe_add(g3__run *r, float *x, const float *y, const g3__norm *norm, int dim, int n)
{
    g3_session *s = g3__probe_session(r);
    bool last = norm && r->layer >= 0 && norm == &r->tower->layer[r->layer].post_ffn;
    g3__probe_rows(s, G3_POINT_BRANCH, last ? "feed-forward" : "attention", (float *)(uintptr_t)y, dim, n);
    double start = g3__clock();
    s->m->op->add(r, x, y, norm, dim, n);
    g3__probe_op(s, G3__OP_ADD, n, start, 12 * (uint64_t)n * (uint64_t)dim, 5 * (uint64_t)n * (uint64_t)dim);
    if (last) g3__probe_rows(s, G3_POINT_LAYER, "layer", x, dim, n);
}

static void g3__probe_geglu(g3__run *r, float *y, const float *gu, int m, int n)
{
    g3_session *s = g3__probe_session(r);
    double start = g3__clock();
    s->m->op->geglu(r, y, gu, m, n);
    g3__probe_op(s, G3__OP_GELU, n, start, 12 * (uint64_t)n * (uint64_t)m, 10 * (uint64_t)n * (uint64_t)m);
}

static void g3__probe_gelu(g3__run *r, float *y, int m, int n)
{
    g3_session *s = g3__probe_session(r);
    double start = g3__clock();
    s->m->op->gelu(r, y, m, n);
    g3__probe_op(s, G3__OP_GELU, n, start, 8 * (uint64_t)n * (uint64_t)m, 9 * (uint64_t)n * (uint64_t)m);
}

static void g3__probe_pool(g3__run *r, float *y, const float *x, int side, int k, int dim)
{
    g3_session *s = g3__probe_session(r);
    uint64_t n = (uint64_t)side * (uint64_t)side * (uint64_t)dim;
    double start = g3__clock();
    s->m->op->pool(r, y, x, side, k, dim);
    g3__probe_op(s, G3__OP_POOL, side * side, start, 4 * n + 4 * n / (uint64_t)(k * k), n);
}

static void g3__probe_begin(g3__run *r, int n) { g3__probe_session(r)->m->op->begin(r, n); }
static void g3__probe_end(g3__run *r) { g3__probe_session(r)->m->op->end(r); }
static void g3__probe_upload(g3__run *r, void *dst, const void *src, size_t size) { g3__probe_session(r)->m->op->upload(r, dst, src, size); }
static void g3__probe_download(g3__run *r, void *dst, const void *src, size_t size) { g3__probe_session(r)->m->op->download(r, dst, src, size); }

static void g3__probe_carve(g3_session *s)               // the session's own layers, each with the wrapping table
{
    for (int i = 0; i < s->m->config.layers; i++) {
        s->layers[i] = s->m->text.layer[i];
        s->layers[i].op = g3__probe_table();
    }
    s->text.layer = s->layers;
    for (int i = 0; !s->desc.no_images && i < s->m->vit.tower.layers; i++) {
        s->sight.vit.tower.layer[i] = s->m->vit.tower.layer[i];
        s->sight.vit.tower.layer[i].op = g3__probe_table();
    }
    s->run.op = g3__probe_table();
}

static const g3__ops *g3__probe_table(void)
{
    static const g3__ops table = {
        "probe", NULL, NULL, g3__probe_upload, g3__probe_download, NULL, g3__probe_begin, g3__probe_end, g3__probe_embed, g3__probe_linear, g3__probe_norm,
        g3__probe_rope, g3__probe_attend, g3__probe_add, g3__probe_geglu, g3__probe_gelu, g3__probe_pool, NULL
    };
    return &table;
}

// ------------------------------------------------------------------------------------------------------------------
// >>chat
// Owns answers: token after token until something ends them, text given out in whole characters and never past a stop
// string, and turns whose ids are those of the rendered conversation. g3_chat, g3_generate and g3_next are loops over it.

// ---- one answer

static bool g3__is_stop(const g3_model *m, int id)       // <eos>, <end_of_turn>, and what the files add; never tokenizer_config.json's
{
    bool stop = id == 1 || id == 106;
    for (int i = 0; i < m->config.n_stop; i++) stop = stop || id == m->config.stop[i];
    for (int i = 0; i < m->generation.n_stop; i++) stop = stop || id == m->generation.stop[i];
    return stop;
}

static bool g3__answer_begin(g3_session *s, const g3_generate_desc *desc)
{
    g3_generate_desc none = G3__ZERO;
    g3__answer *a = s->answer;
    s->answering = G3__ANSWER_NONE;                      // what is refused below ends the answer that was being pulled, and leaks nothing into it
    if (!desc) desc = &none;
    if (!s->held) return g3__fail(&s->err, G3_ERR_ARGUMENT, "there is nothing to continue: add a turn or tokens first") == G3_OK;
    if (desc->max_tokens < 0) return g3__fail(&s->err, G3_ERR_ARGUMENT, "max_tokens: %d is not a number of tokens", desc->max_tokens) == G3_OK;
    if (desc->n_stops && !s->m->has_tok) return g3__fail(&s->err, G3_ERR_MODEL, "stop strings need tokenizer.json, which this model's files lack") == G3_OK;
    a->p = g3__sampler_defaults(&desc->sampler, &s->m->generation);
    if (!g3__sampler_check(&a->p, &s->err) || !g3__stopper_init(&a->stop, desc->stops, desc->n_stops, &s->err)) return false;
    a->max_tokens = desc->max_tokens;
    a->ignore_stop_ids = desc->ignore_stop_ids;
    a->made = 0;
    a->ending = false;
    a->utf8.n = 0;
    s->answering = G3__ANSWER_RUNNING;
    s->finish = G3_FINISH_NONE;
    s->stats.new_tokens = 0;
    s->stats.new_s = s->stats.first_s = 0;
    return true;
}

static void g3__answer_end(g3_session *s, g3_finish why)
{
    s->answer->ending = true;
    s->finish = why;
}

static void g3__answer_text(g3_session *s, int id, g3_token *t)     // what the token lets us show
{
    g3__answer *a = s->answer;
    g3__str out = g3__str_make(a->text, 0), piece = s->m->has_tok ? g3__tok_piece(&s->m->tok, id) : g3__str_make(NULL, 0);
    if (piece.n > G3__STOP_PIECE) { g3__fail(&s->err, G3_ERR_FORMAT, "token %d is %llu bytes long; answers can show %d", id, (unsigned long long)piece.n, (int)G3__STOP_PIECE); return; }
    int n = piece.p ? g3__utf8_stream(&a->utf8, piece, a->text) : 0;
    if (!g3__stopper_feed(&a->stop, a->text, n, &out, &s->err)) return;
    if (a->stop.stopped) g3__answer_end(s, G3_FINISH_STOP);
    t->text = out.p;
    t->size = (int)out.n;
}

static void g3__answer_rest(g3_session *s, g3_token *t)             // the end: an incomplete character, the beginning of a stop string
{
    g3__answer *a = s->answer;
    g3__str out = g3__str_make(a->text, 0), kept;
    if (!a->stop.stopped && s->m->has_tok) {
        int n = g3__utf8_flush(&a->utf8, a->text);
        g3__stopper_feed(&a->stop, a->text, n, &out, &s->err);
        memmove(a->shown, out.p, out.n);
        kept = g3__stopper_flush(&a->stop);
        if (kept.n) memcpy(a->shown + out.n, kept.p, kept.n);
        t->text = a->shown;
        t->size = (int)(out.n + kept.n);
    }
}

static bool g3__answer_more(g3_session *s)               // may another token be made? Else the reason is set
{
    g3__answer *a = s->answer;
    if (a->max_tokens && a->made >= a->max_tokens) g3__answer_end(s, G3_FINISH_LENGTH);
    else if (s->held >= s->desc.context && a->made) g3__answer_end(s, G3_FINISH_CONTEXT);
    else if (s->held >= s->desc.context) g3__fail(&s->err, G3_ERR_CONTEXT, "the context of %d tokens is full", s->desc.context);
    return !a->ending && !s->err.code;
}

static void g3__answer_stopped(g3_session *s)            // cancelled, or stopped by a hook: an error only before the first token
{
    if (s->err.code != G3_ERR_STOPPED || !s->answer->made) return;
    g3__answer_end(s, g3__atomic_get(&s->cancel) ? G3_FINISH_CANCELLED : G3_FINISH_CALLBACK);
    g3__error_clear(&s->err);
}

static void g3__answer_token(g3_session *s, g3_token *t)            // one more token, if nothing ends the answer before; t->id stays -1 then
{
    g3__answer *a = s->answer;
    if (a->ending || !g3__answer_more(s) || g3__cancelled(s)) return;
    int id = g3__draw_token(s, &a->p, &t->logprob);
    if (id == G3_ERR_STOPPED) g3__fail(&s->err, G3_ERR_STOPPED, "stopped by logits_fn");
    if (id < 0 || s->err.code) return;
    s->ids[s->held++] = id;                              // it goes through the model with whatever comes next
    if (g3__is_stop(s->m, id) && !a->ignore_stop_ids) { g3__answer_end(s, G3_FINISH_STOP); return; }
    t->id = id;
    a->made++;
    g3__answer_text(s, id, t);
}

// The next token of the answer: 1, and it is held. 0: the answer is over, *t brings the text that was held back. Below 0: s->err.
static int g3__answer_next(g3_session *s, g3_token *t)
{
    double start = g3__clock();
    memset(t, 0, sizeof *t);
    t->text = "";
    t->id = -1;
    if (s->answering == G3__ANSWER_OVER) return 0;
    g3__answer_token(s, t);
    g3__answer_stopped(s);
    s->stats.new_tokens = s->answer->made;
    s->stats.new_s += g3__clock() - start;
    if (t->id >= 0 && s->answer->made == 1) s->stats.first_s = s->stats.prompt_s + s->stats.image_s + s->stats.new_s;
    if (t->id >= 0 && !s->err.code) return 1;
    s->answering = G3__ANSWER_OVER;
    s->answered = true;
    if (s->err.code) return s->err.code;
    g3__answer_rest(s, t);
    return 0;
}

static int g3__answer_run(g3_session *s, const g3_generate_desc *desc)          // the whole answer through token_fn: tokens made, or a g3_result
{
    g3_token t;
    int more = 1;
    if (!g3__answer_begin(s, desc)) return s->err.code;
    while (more == 1) {
        more = g3__answer_next(s, &t);
        if (more < 0) return more;
        if (!desc || !desc->token_fn || (!more && !t.size)) continue;
        if (!desc->token_fn(desc->user, &t) || !more) continue;
        g3__answer_end(s, G3_FINISH_CALLBACK);
        s->answering = G3__ANSWER_OVER;
        s->answered = true;
        break;
    }
    return s->answer->made;
}

// ---- turns

static bool g3__need_text(const g3_model *m, g3_error *err)
{
    return m->has_tok || g3__fail(err, G3_ERR_MODEL, "%s has no tokenizer.json: it runs on ids (g3_add_tokens), not on text", m->name) == G3_OK;
}

static g3__chat_ids g3__model_chat_ids(const g3_model *m)
{
    g3__chat_ids c = g3__chat_ids_of(&m->tok);
    if (m->config.multimodal) { c.boi = m->config.boi; c.eoi = m->config.eoi; c.soft = m->config.image_token; }
    if (m->config.has_vision) c.soft_count = m->config.vision.tokens;
    return c;
}

static bool g3__parts_seen(g3_session *s, const g3_part *parts, int n)       // pictures only where they can be looked at
{
    for (int i = 0; i < n && parts; i++)
        if (parts[i].image && !g3__sees(s)) return false;
    return true;
}

static void g3__tell_untrained(g3_session *s)
{
    if (s->m->chat || s->told) return;
    s->told = true;
    g3__log(s->m, G3_LOG_WARN, "%s brings no chat template: it was not trained to chat, its answers may wander", s->m->name);
}

static void g3__turn_emit(g3__emit *e, g3_session *s, const g3__chat_ids *c, const g3_turn *turn)
{
    bool ended = s->held && s->ids[s->held - 1] == c->end_of_turn;
    if (!s->held) g3__emit_control(e, c->bos, "<bos>");
    else if (s->speaking) g3__emit_close(e, ended);
    g3__emit_message(e, "user", turn->system, turn->text, turn->parts, turn->n_parts, "the turn");
    g3__emit_open(e, "model");
}

// The user's turn, and the model's opened: only the new words are encoded. What is held stays in front.
static bool g3__turn_add(g3_session *s, const g3_turn *turn)
{
    g3__emit e;
    g3__chat_ids c;
    if (!turn || (!turn->text && !turn->n_parts)) return g3__fail(&s->err, G3_ERR_ARGUMENT, "turn: text or parts are required") == G3_OK;
    if (turn->system && s->held) return g3__fail(&s->err, G3_ERR_ARGUMENT, "system: only the first turn can bring a system text; g3_session_rewind(s, 0) starts afresh") == G3_OK;
    if (!g3__need_text(s->m, &s->err) || !g3__parts_seen(s, turn->parts, turn->n_parts)) return false;
    g3__tell_untrained(s);
    c = g3__model_chat_ids(s->m);
    g3__emit_begin(&e, &s->m->tok, &s->m->heap.a, &c, s->ids + s->held, s->desc.context - s->held, &s->err);
    e.pictures = s->pictures + s->n_pictures;
    e.most = (int64_t)g3__most_pictures(&s->m->config, &s->desc) - s->n_pictures;
    e.at = s->held;
    g3__turn_emit(&e, s, &c, turn);
    int64_t n = g3__emit_end(&e);
    if (n < 0 || !g3__check_room(s, s->held, n) || !g3__check_ids(s, s->ids + s->held, (int)n, (int)e.n_pictures)) return false;
    bool ok = g3__add_held(s, (int)n, (int)e.n_pictures);
    s->speaking = s->speaking || s->held > 0;
    return ok;
}

// Back to before a turn that brought no token, where the rings allow; else it stays, and the next turn closes it.
static void g3__turn_undo(g3_session *s, int held, bool speaking)
{
    if (s->held <= held) { s->speaking = speaking; return; }
    if (!g3__can_rewind(s, held)) return;
    g3__rewind(s, held);
    s->speaking = speaking && held > 0;
}

// ---- whole conversations, each time: the longest beginning that is held is kept

// Of the first `same` tokens that a new conversation and the held one share, those before the first picture that differs.
static int g3__same_pictures(const g3_session *s, int n, int same)
{
    for (int i = 0; i < n; i++) {
        const g3__picture *p = &s->fresh_pictures[i];
        if (p->pos >= same) break;
        if (i >= s->n_pictures || s->pictures[i].pos != p->pos || s->pictures[i].hash != p->hash) return p->pos;
    }
    return same;
}

static bool g3__messages_add(g3_session *s, const g3_message *messages, int n, bool generation_prompt)
{
    g3__emit e;
    g3__chat_ids c;
    int same = 0, from, pictures = 0;
    if (!g3__need_text(s->m, &s->err)) return false;
    if (n < 0 || (n && !messages)) return g3__fail(&s->err, G3_ERR_ARGUMENT, "messages: n is %d%s", n, messages ? "" : " and messages is NULL") == G3_OK;
    for (int i = 0; i < n; i++) if (!g3__parts_seen(s, messages[i].parts, messages[i].n_parts)) return false;
    g3__tell_untrained(s);
    c = g3__model_chat_ids(s->m);
    g3__emit_begin(&e, &s->m->tok, &s->m->heap.a, &c, s->fresh, s->desc.context, &s->err);
    e.held = s->ids;
    e.n_held = s->held;
    e.pictures = s->fresh_pictures;
    e.most = (int64_t)g3__most_pictures(&s->m->config, &s->desc);
    g3__render_all(&e, messages, n, generation_prompt);
    int64_t total = g3__emit_end(&e);
    if (total < 0 || !g3__check_room(s, 0, total) || !g3__check_ids(s, s->fresh, (int)total, (int)e.n_pictures)) return false;
    while (same < s->done && same < total - 1 && s->fresh[same] == s->ids[same]) same++;
    from = g3__rewind(s, g3__same_pictures(s, (int)e.n_pictures, same));
    memcpy(s->ids + from, s->fresh + from, (size_t)(total - from) * sizeof *s->ids);
    for (int i = 0; i < (int)e.n_pictures; i++)
        if (s->fresh_pictures[i].pos >= from) s->pictures[s->n_pictures + pictures++] = s->fresh_pictures[i];
    bool ok = g3__add_held(s, (int)(total - from), pictures);
    s->speaking = generation_prompt && ok;
    return ok;
}

// ------------------------------------------------------------------------------------------------------------------
// >>cpu
// The table of operations in plain C: the oracle of every other version.
// Same bits always: the order in which the terms of a sum are added depends on its length alone (dot products, norms) or on the positions
// seen (attention), never on the number of rows, threads or chunks. Weights are decoded to float32 exactly, in small blocks on the stack,
// and used for all rows at hand.

enum {
    G3__LANES = 8,                     // partial sums of a dot product: lane i % 8 takes element i
    G3__TILE  = 4,                     // rows of W, and rows of x, worked on together
    G3__COLS  = 512,                   // elements of a row decoded at a time
    G3__ROWS  = 64,                    // rows of x that a decoded block serves
    G3__GRAIN = 65536                  // multiply-adds that are worth waking a thread for
};

// ---- dot products

#ifdef G3__GNU_VECTORS
typedef float g3__lanes __attribute__((vector_size(32), aligned(4), may_alias));
#define G3__MADD(sum, a, b) ((sum) += (a) * (b))
#else
typedef struct g3__lanes { float f[G3__LANES]; } g3__lanes;
#define G3__MADD(sum, a, b) do { for (int l_ = 0; l_ < G3__LANES; l_++) (sum).f[l_] += (a).f[l_] * (b).f[l_]; } while (0)
#endif
#define G3__LOAD(p) (*(const g3__lanes *)(p))

typedef struct g3__sums { float s[G3__TILE][G3__LANES]; } g3__sums;      // of four rows of W and one row of x

static void g3__cpu_tail(g3__sums *sums, const float *const w[G3__TILE], const float *x, int i, int k)
{
    for (; i < k; i++)
        for (int row = 0; row < G3__TILE; row++) sums->s[row][i % G3__LANES] += w[row][i] * x[i];
}

// sums += W x over k elements, for four rows of W. Only the last piece of a row may have a k that is no multiple of 8.
static void g3__cpu_dot1(g3__sums *sums, const float *const w[G3__TILE], const float *x, int k)
{
    g3__lanes *s = (g3__lanes *)sums->s;
    g3__lanes s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3];
    const float *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
    int i = 0;
    for (; i + G3__LANES <= k; i += G3__LANES) {
        const g3__lanes v = G3__LOAD(x + i);
        G3__MADD(s0, G3__LOAD(w0 + i), v);
        G3__MADD(s1, G3__LOAD(w1 + i), v);
        G3__MADD(s2, G3__LOAD(w2 + i), v);
        G3__MADD(s3, G3__LOAD(w3 + i), v);
    }
    s[0] = s0; s[1] = s1; s[2] = s2; s[3] = s3;
    g3__cpu_tail(sums, w, x, i, k);
}

// The same for four rows of x, `ld` apart: every number loaded is used four times, and each sum is made as above.
static void g3__cpu_dot4(g3__sums sums[G3__TILE], const float *const w[G3__TILE], const float *x, size_t ld, int k)
{
    g3__lanes s[G3__TILE][G3__TILE];
    const float *x0 = x, *x1 = x + ld, *x2 = x + 2 * ld, *x3 = x + 3 * ld;
    int i = 0;
    memcpy(s, sums, sizeof s);
    for (; i + G3__LANES <= k; i += G3__LANES) {
        const g3__lanes v0 = G3__LOAD(x0 + i), v1 = G3__LOAD(x1 + i), v2 = G3__LOAD(x2 + i), v3 = G3__LOAD(x3 + i);
        for (int row = 0; row < G3__TILE; row++) {
            const g3__lanes u = G3__LOAD(w[row] + i);
            G3__MADD(s[0][row], u, v0);
            G3__MADD(s[1][row], u, v1);
            G3__MADD(s[2][row], u, v2);
            G3__MADD(s[3][row], u, v3);
        }
    }
    memcpy(sums, s, sizeof s);
    for (int t = 0; t < G3__TILE; t++) g3__cpu_tail(&sums[t], w, x + (size_t)t * ld, i, k);
}

static void g3__cpu_dots(g3__sums *sums, const float *const w[G3__TILE], const float *x, size_t ld, int n, int k)     // n rows of x
{
    int t = 0;
    for (; t + G3__TILE <= n; t += G3__TILE) g3__cpu_dot4(sums + t, w, x + (size_t)t * ld, ld, k);
    for (; t < n; t++) g3__cpu_dot1(sums + t, w, x + (size_t)t * ld, k);
}

static float g3__cpu_total(const float s[G3__LANES])
{
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// ---- work: an operation is a number of units, cut into pieces that threads take. A unit's result does not depend on the cut

typedef struct g3__job {
    g3__run *r;
    float *y;
    const float *x, *table;            // table: of the decoding at hand
    const g3__mat *W;
    const g3__norm *norm;
    const g3__attn *att;
    const g3__kv *kv;
    const g3__row *rows;
    int n, m;                          // rows and columns
    void (*work)(const struct g3__job *j, int first, int end, int piece);
    int units, step;                   // piece i is units [i step, (i + 1) step)
    int group, per_group;              // of linear: rows of x that go through W together; units of each such group
    const g3__screen *screen;
    float norm_x;                      // |x|
    void (*norm_row)(const struct g3__job *j, float *y, const float *x);     // of norm and add: one row normed, and
    void (*sum)(float *x, const float *y, int n);                            // x += y
} g3__job;

static g3__job g3__cpu_job(g3__run *r, float *y, const float *x, int n, int m)
{
    g3__job j = G3__ZERO;
    j.r = r; j.y = y; j.x = x; j.n = n; j.m = m;
    return j;
}

static void g3__cpu_piece(void *ctx, int i)
{
    const g3__job *j = (const g3__job *)ctx;
    int first = i * j->step;
    j->work(j, first, G3__MIN(j->units - first, j->step) + first, i);
}

// Runs the job in at most `pieces` pieces of whole `multiple`s of units; `cost` is the multiply-adds of all: small jobs stay on this thread.
static void g3__cpu_split(g3__job *j, void (*work)(const g3__job *, int, int, int), int units, int multiple, double cost, int pieces)
{
    int most = cost < (double)G3__GRAIN * pieces ? (int)(cost / (double)G3__GRAIN) : pieces, step;
    step = units / G3__MAX(most, 1) + (units % G3__MAX(most, 1) != 0);
    step = G3__MIN((step - 1) / multiple, (INT_MAX - multiple) / multiple) * multiple + multiple;
    j->work = work;
    j->units = units;
    j->step = step;
    pieces = (units - 1) / step + 1;
    if (pieces == 1) g3__cpu_piece(j, 0);
    else g3__pool_for(j->r->pool, pieces, g3__cpu_piece, j);
}

static bool g3__cpu_failed(const g3__run *r) { return r->err->code != G3_OK; }

// ---- memory, begin and end

static void *g3__cpu_alloc(g3__run *r, size_t size)
{
    void *p = g3__cpu_failed(r) ? NULL : r->memory->alloc_fn(r->memory->user, size, G3__ALIGN);
    if (!p) g3__fail(r->err, G3_ERR_MEMORY, "the allocator has no %llu bytes", (unsigned long long)size);
    return p;
}

static void g3__cpu_release(g3__run *r, void *buf, size_t size)
{
    if (buf) r->memory->free_fn(r->memory->user, buf, size);
}

static void g3__cpu_copy(g3__run *r, void *dst, const void *src, size_t size)
{
    if (!g3__cpu_failed(r) && size) memcpy(dst, src, size);
}

static void g3__frequencies(const g3__attn *a, float *freq)               // [head_dim / 2]
{
    for (int i = 0; i < a->head_dim / 2; i++) {
        float exponent = (float)(2 * i) / (float)a->head_dim;
        freq[i] = 1.0f / (float)pow((double)a->theta, (double)exponent) / a->factor;
    }
}

// angle = pos * f in float32, f = 1 / theta^(2j/D) / factor in float32: the reference rounds there, and far positions tell.
static void g3__cpu_angle_rows(const g3__job *j, int first, int end, int piece)
{
    const int half = j->m;
    (void)piece;
    for (int t = first; t < end; t++) {
        float *angle = j->y + (size_t)t * 2 * (size_t)half, pos = (float)j->rows[t].pos;
        for (int i = 0; i < half; i++) {
            double a = (double)(pos * j->x[i]);
            angle[2 * i] = (float)cos(a);
            angle[2 * i + 1] = (float)sin(a);
        }
    }
}

static void g3__cpu_angles(g3__run *r, const g3__attn *a, int n)
{
    const int half = a->head_dim / 2;
    float *freq = r->a.freq + (size_t)a->angles * (size_t)half;
    g3__frequencies(a, freq);
    g3__job j = g3__cpu_job(r, r->a.angle + (size_t)a->angles * (size_t)r->shape.batch * 2 * (size_t)half, freq, n, half);
    j.rows = r->rows;
    g3__cpu_split(&j, g3__cpu_angle_rows, n, 1, 64.0 * n * half, r->shape.width);
}

static void g3__cpu_begin(g3__run *r, int n)
{
    if (g3__cpu_failed(r)) return;
    for (int kind = 0; kind < r->shape.kinds; kind++)
        for (int l = 0; l < r->tower->layers; l++)
            if (r->tower->layer[l].att.angles == kind) { g3__cpu_angles(r, &r->tower->layer[l].att, n); break; }
}

static void g3__cpu_end(g3__run *r) { (void)r; }

// ---- norms

static size_t g3__gain_room(const g3__run *r) { return (size_t)G3__MAX(r->shape.dim, r->shape.head_dim); }      // floats of one of the two gain buffers

// The norm's weights as factors, and for LayerNorm what is added: into the run's two gain buffers.
static float *g3__cpu_gain(g3__run *r, const g3__norm *norm, int slot)
{
    const size_t room = g3__gain_room(r);
    float *gain = r->a.gain + (size_t)slot * room;
    g3__decode(&norm->w, 0, (uint64_t)norm->dim, gain);
    if (norm->layer) g3__decode(&norm->b, 0, (uint64_t)norm->dim, gain + room);
    else for (int i = 0; i < norm->dim; i++) gain[i] += 1.0f;
    return gain;
}

static double g3__cpu_squares(const float *x, double mean, int n)        // sum of (x - mean)^2
{
    double s[4] = { 0, 0, 0, 0 };
    for (int i = 0; i < n; i++) { double d = (double)x[i] - mean; s[i & 3] += d * d; }
    return (s[0] + s[2]) + (s[1] + s[3]);
}

// RMSNorm: y = x / sqrt(mean(x^2) + eps) * (1 + w). LayerNorm: y = (x - mean) / sqrt(var + eps) * w + b. x may be y.
static void g3__cpu_norm_row(float *y, const float *x, const g3__norm *norm, const float *gain, const float *shift)
{
    const int n = norm->dim;
    double mean = 0;
    if (norm->layer) { for (int i = 0; i < n; i++) mean += (double)x[i]; mean /= n; }
    const float scale = (float)(1.0 / sqrt(g3__cpu_squares(x, mean, n) / n + (double)norm->eps)), middle = (float)mean;
    if (norm->layer) for (int i = 0; i < n; i++) y[i] = (x[i] - middle) * scale * gain[i] + shift[i];
    else             for (int i = 0; i < n; i++) y[i] = x[i] * scale * gain[i];
}

static void g3__cpu_norm_one(const g3__job *j, float *y, const float *x)
{
    const float *gain = j->r->a.gain;
    g3__cpu_norm_row(y, x, j->norm, gain, gain + g3__gain_room(j->r));
}

static void g3__cpu_sum(float *x, const float *y, int n) { for (int i = 0; i < n; i++) x[i] += y[i]; }

static void g3__cpu_norm_rows(const g3__job *j, int first, int end, int piece)
{
    const size_t dim = (size_t)j->m;
    (void)piece;
    for (size_t t = (size_t)first; t < (size_t)end; t++) j->norm_row(j, j->y + t * dim, j->x + t * dim);
}

static void g3__cpu_norm(g3__run *r, float *y, const float *x, const g3__norm *norm, int n)
{
    if (g3__cpu_failed(r)) return;
    g3__job j = g3__cpu_job(r, y, x, n, norm->dim);
    g3__cpu_gain(r, norm, 0);
    j.norm = norm;
    j.norm_row = g3__cpu_norm_one;
    g3__cpu_split(&j, g3__cpu_norm_rows, n, 1, 4.0 * n * norm->dim, r->shape.width);
}

static void g3__cpu_add_rows(const g3__job *j, int first, int end, int piece)
{
    const size_t dim = (size_t)j->m;
    float *h = j->r->a.h;
    (void)piece;
    for (size_t t = (size_t)first; t < (size_t)end; t++) {
        const float *y = j->x + t * dim;
        if (j->norm) { j->norm_row(j, h + t * dim, y); y = h + t * dim; }
        j->sum(j->y + t * dim, y, (int)dim);
    }
}

static void g3__cpu_add(g3__run *r, float *x, const float *y, const g3__norm *norm, int dim, int n)
{
    if (g3__cpu_failed(r)) return;
    g3__job j = g3__cpu_job(r, x, y, n, dim);
    if (norm) g3__cpu_gain(r, norm, 0);
    j.norm = norm;
    j.norm_row = g3__cpu_norm_one;
    j.sum = g3__cpu_sum;
    g3__cpu_split(&j, g3__cpu_add_rows, n, 1, 4.0 * n * dim, r->shape.width);
}

// ---- linear

// Every byte of 4-bit codes as its two numbers, the high nibble first.
static void g3__cpu_pairs(float pairs[512], const float code[16])
{
    for (int i = 0; i < 256; i++) { pairs[2 * i] = code[i >> 4]; pairs[2 * i + 1] = code[i & 15]; }
}

// Elements [first, first + n) of 4-bit weights, bit for bit as g3__decode gives them: code times scale. All codes first, whole bytes at a
// time, then the scales block by block: a product right behind its table entry would wait for the store.
static void g3__cpu_decode_4bit(const g3__bits *w, const float *pairs, uint64_t first, int n, float *dst)
{
    const uint8_t *code = (const uint8_t *)w->data + first / 2;
    if ((first | (uint64_t)n) & 1) { g3__decode(w, first, (uint64_t)n, dst); return; }
    const size_t count = (size_t)n / 2;
    for (size_t i = 0; i < count; i++) memcpy(dst + 2 * i, pairs + 2 * (size_t)code[i], 2 * sizeof *dst);
    for (int i = 0; i < n;) {
        const uint64_t block = (first + (uint64_t)i) / w->blocksize, left = (block + 1) * w->blocksize - first - (uint64_t)i;
        const int stop = left < (uint64_t)(n - i) ? i + (int)left : n;
        const float scale = g3__block_scale(w, block);
        for (; i < stop; i++) dst[i] *= scale;
    }
}

// Asks the memory for the block after this one, a fifth of the speed for bf16. It may lie beyond the end: nothing is read then.
static void g3__cpu_ahead(const char *p, uint64_t first, int n, uint32_t bits)
{
    const uintptr_t at = (uintptr_t)p + (uintptr_t)(first * bits / 8), end = at + (uintptr_t)((uint64_t)n * bits / 8);
    for (uintptr_t line = at; line < end; line += G3__ALIGN) G3__PREFETCH((const char *)line);
}

// n elements of W from `first` as float32: where they lie, or decoded into room.
static const float *g3__cpu_weights(const g3__bits *w, const float *tables, uint64_t first, int n, float *room)
{
    const char *p = (const char *)w->data;
    if (w->format == G3__F32 && !w->scale && (uintptr_t)p % sizeof(float) == 0) return (const float *)(const void *)p + first;
    g3__cpu_ahead(p, first + (uint64_t)n, n, g3__format_bits(w->format));
    if (g3__is_4bit(w->format)) g3__cpu_decode_4bit(w, tables + (w->format == G3__FP4) * 512, first, n, room);
    else g3__decode(w, first, (uint64_t)n, room);
    return room;
}

// y[t][row0 + i] = W[row + i] x[t] + b[row + i] for up to four rows i of one segment and all rows t of x.
static void g3__cpu_linear_tile(const g3__job *j, const g3__seg *seg, int row, int row0, int count)
{
    const int cols = j->W->cols;
    float room[G3__TILE][G3__COLS], bias[G3__TILE] = { 0, 0, 0, 0 };
    g3__sums sums[G3__ROWS];
    const float *w[G3__TILE];
    if (seg->bias.data) g3__decode(&seg->bias, (uint64_t)row, (uint64_t)count, bias);
    for (int t0 = 0; t0 < j->n; t0 += G3__ROWS) {
        const int n = G3__MIN(j->n - t0, G3__ROWS);
        const float *x = j->x + (size_t)t0 * (size_t)cols;
        float *y = j->y + (size_t)t0 * (size_t)j->m + row0;
        memset(sums, 0, sizeof *sums * (size_t)n);
        for (int k = 0; k < cols; k += G3__COLS) {
            const int len = G3__MIN(cols - k, G3__COLS);
            for (int i = 0; i < G3__TILE; i++)                           // a missing row repeats the last one; its sums are not used
                w[i] = i < count ? g3__cpu_weights(&seg->bits, j->table, (uint64_t)(row + i) * (uint64_t)cols + (uint64_t)k, len, room[i]) : w[i - 1];
            g3__cpu_dots(sums, w, x + k, (size_t)cols, n, len);
        }
        for (int t = 0; t < n; t++)
            for (int i = 0; i < count; i++) y[(size_t)t * (size_t)j->m + (size_t)i] = g3__cpu_total(sums[t].s[i]) + bias[i];
    }
}

static void g3__cpu_linear_rows(const g3__job *j, int first, int end, int piece)
{
    int base = 0;                                                        // first row of the segment
    (void)piece;
    for (int s = 0; s < j->W->n_segs; base += j->W->seg[s++].rows) {
        const g3__seg *seg = &j->W->seg[s];
        const int stop = G3__MIN(end - base, seg->rows);
        for (int row = G3__MAX(first - base, 0); row < stop; row += G3__TILE)
            g3__cpu_linear_tile(j, seg, row, base + row, G3__MIN(stop - row, G3__TILE));
    }
}

// y[t][c] = sum_i x[t][i] W[i][c] + b[c], columns [first, end) of a matrix stored [in][out], i ascending.
static void g3__cpu_linear_cols(const g3__job *j, int first, int end, int piece)
{
    const g3__seg *seg = &j->W->seg[0];
    const size_t out = (size_t)j->m, in = (size_t)j->W->cols;
    float room[G3__COLS];
    (void)piece;
    for (int c = first; c < end; c += G3__COLS) {
        const int len = G3__MIN(end - c, G3__COLS);
        memset(room, 0, sizeof room);
        if (seg->bias.data) g3__decode(&seg->bias, (uint64_t)c, (uint64_t)len, room);
        for (size_t t = 0; t < (size_t)j->n; t++) memcpy(j->y + t * out + c, room, (size_t)len * sizeof *room);
        for (size_t i = 0; i < in; i++) {
            const float *w = g3__cpu_weights(&seg->bits, j->table, (uint64_t)i * (uint64_t)out + (uint64_t)c, len, room);
            for (size_t t = 0; t < (size_t)j->n; t++) {
                const float x = j->x[t * in + i];
                float *y = j->y + t * out + c;
                for (int k = 0; k < len; k++) y[k] += x * w[k];
            }
        }
    }
}

// The tables that the plain loops will look into: of what lies in tiles they read nothing.
static void g3__cpu_tables(float tables[2 * 512], const g3__mat *W)
{
    for (int s = 0; s < W->n_segs; s++) {
        const g3__bits *w = &W->seg[s].bits;
        if (w->format == G3__NF4 && !w->tiled) g3__cpu_pairs(tables, g3__nf4_table);
        if (w->format == G3__FP4 && !w->tiled) g3__cpu_pairs(tables + 512, g3__fp4_table);
    }
}

static void g3__cpu_linear(g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, int n)
{
    if (g3__cpu_failed(r)) return;
    float tables[2 * 512];
    g3__job j = g3__cpu_job(r, y, x, n, W->rows);
    g3__cpu_tables(tables, W);
    if (norm) { g3__cpu_norm(r, r->a.h, x, norm, n); j.x = r->a.h; }
    j.W = W;
    j.table = tables;
    g3__cpu_split(&j, W->transposed ? g3__cpu_linear_cols : g3__cpu_linear_rows, W->rows, 16, (double)W->rows * W->cols * n, 4 * r->shape.width);
}

// ---- embed

static void g3__cpu_embed_row(float *y, const g3__mat *E, int id, float scale)
{
    const g3__seg *seg = E->seg;
    for (; id >= seg->rows; seg++) id -= seg->rows;
    g3__decode_row(&seg->bits, (uint64_t)id, (uint64_t)E->cols, y);
    for (int i = 0; i < E->cols; i++) y[i] *= scale;
}

static void g3__cpu_embed(g3__run *r, float *y, const g3__mat *E, const int *ids, int n, float scale)
{
    for (int t = 0; t < n && !g3__cpu_failed(r); t++) {
        const int id = ids ? ids[t] : t;
        if (id >= E->rows) g3__fail(r->err, G3_ERR_ARGUMENT, "token id %d, but the table has %d rows", id, E->rows);
        else if (id >= 0) g3__cpu_embed_row(y + (size_t)t * (size_t)E->cols, E, id, scale);
    }
}

// ---- the cache

static float g3__cpu_limit(float x, float most) { return x > most ? most : x < -most ? -most : x == x ? x : 0.0f; }

// The scale of a row: its largest magnitude becomes the largest code. What is not finite makes the scale infinite and the row NaN, so that
// the logits tell; a row of zeros has scale 0.
static float g3__cpu_row_scale(const float *x, int n, float largest)
{
    float most = 0;
    bool finite = true;
    for (int i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        if (!(a <= FLT_MAX)) finite = false;
        if (a > most) most = a;
    }
    return finite ? most / largest : HUGE_VALF;
}

static void g3__cpu_put(void *codes, float *scales, const g3__kv *kv, int head, int pos, const float *x)      // one row of K or of V
{
    const int n = kv->head_dim;
    const size_t row = (size_t)head * (size_t)kv->rows + (size_t)(pos % kv->rows), at = row * (size_t)n;
    if (kv->format == G3_KV_F32) { memcpy((float *)codes + at, x, (size_t)n * sizeof *x); return; }
    if (!g3__kv_scaled(kv->format)) {
        for (int i = 0; i < n; i++) ((uint16_t *)codes)[at + (size_t)i] = g3__f32_to_bf16(x[i]);
        return;
    }
    const bool fp8 = kv->format == G3_KV_FP8;
    const float scale = g3__cpu_row_scale(x, n, fp8 ? 448.0f : 127.0f);
    scales[row] = scale;
    for (int i = 0; i < n; i++) {
        const float code = scale > 0 ? x[i] / scale : 0.0f;
        if (fp8) ((uint8_t *)codes)[at + (size_t)i] = g3__f32_to_e4m3(g3__cpu_limit(code, 448.0f));
        else     ((int8_t *)codes)[at + (size_t)i] = (int8_t)rintf(g3__cpu_limit(code, 127.0f));
    }
}

// One row of K or of V as float32: where it lies, or decoded into room. fp8: e4m3 of every byte.
static const float *g3__cpu_get(const void *codes, const float *scales, const g3__kv *kv, int head, int pos, const float *fp8, float *room)
{
    const int n = kv->head_dim;
    const size_t row = (size_t)head * (size_t)kv->rows + (size_t)(pos % kv->rows), at = row * (size_t)n;
    switch (kv->format) {
    case G3_KV_F32: return (const float *)codes + at;
    case G3_KV_FP8: { const uint8_t *p = (const uint8_t *)codes + at; const float s = scales[row]; for (int i = 0; i < n; i++) room[i] = fp8[p[i]] * s; break; }
    case G3_KV_INT8: { const int8_t *p = (const int8_t *)codes + at; const float s = scales[row]; for (int i = 0; i < n; i++) room[i] = (float)p[i] * s; break; }
    default: { const uint16_t *p = (const uint16_t *)codes + at; for (int i = 0; i < n; i++) room[i] = g3__bf16_to_f32(p[i]); break; }
    }
    return room;
}

// ---- rope: norm, rotate, append

// x'[i] = x[i] cos - x[i + D/2] sin, x'[i + D/2] = x[i + D/2] cos + x[i] sin
static void g3__cpu_rotate(float *x, const float *angle, int half)
{
    for (int i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half], c = angle[2 * i], s = angle[2 * i + 1];
        x[i] = a * c - b * s;
        x[i + half] = b * c + a * s;
    }
}

static void g3__cpu_rope_rows(const g3__job *j, int first, int end, int piece)
{
    const g3__attn *a = j->att;
    const g3__shape *shape = &j->r->shape;
    const size_t d = (size_t)a->head_dim, stride = (size_t)j->m * d;
    const float *q_gain = j->r->a.gain, *k_gain = q_gain + g3__gain_room(j->r);
    (void)piece;
    for (int t = first; t < end; t++) {
        float *x = j->y + (size_t)t * stride;
        const float *angle = a->angles < 0 ? NULL : j->r->a.angle + ((size_t)a->angles * (size_t)shape->batch + (size_t)t) * d;
        const g3__kv *kv = &j->kv[j->rows[t].seq];
        for (int h = 0; h < a->heads + a->kv_heads; h++, x += d) {
            const bool is_q = h < a->heads;
            const g3__norm *norm = is_q ? &a->q_norm : &a->k_norm;
            if (norm->dim) g3__cpu_norm_row(x, x, norm, is_q ? q_gain : k_gain, NULL);
            if (angle) g3__cpu_rotate(x, angle, a->head_dim / 2);
            if (!is_q) g3__cpu_put(kv->k, kv->k_scale, kv, h - a->heads, j->rows[t].pos, x);
        }
        for (int h = 0; h < a->kv_heads; h++, x += d) g3__cpu_put(kv->v, kv->v_scale, kv, h, j->rows[t].pos, x);
    }
}

static void g3__cpu_rope(g3__run *r, float *qkv, const g3__attn *a, g3__kv *kv, const g3__row *rows, int n)
{
    if (g3__cpu_failed(r)) return;
    const int heads = a->heads + 2 * a->kv_heads;
    g3__job j = g3__cpu_job(r, qkv, NULL, n, heads);
    if (a->q_norm.dim) g3__cpu_gain(r, &a->q_norm, 0);
    if (a->k_norm.dim) g3__cpu_gain(r, &a->k_norm, 1);
    j.att = a; j.kv = kv; j.rows = rows;
    g3__cpu_split(&j, g3__cpu_rope_rows, n, 1, 8.0 * n * heads * a->head_dim, r->shape.width);
}

// ---- attend: softmax over blocks of 64 positions
//
// Every query keeps the maximum m of its scores so far, the sum l of exp(s - m) and, in y, the sum of exp(s - m) v. A block with a larger
// maximum m' multiplies both sums by exp(m - m'). Blocks begin at multiples of 64 whatever the row, the chunk or the ring, so that
// a query's sums are made in one order only. ("Online normalizer calculation for softmax", Milakov and Gimelshein, 2018.)

typedef struct g3__queries {           // a few rows of one sequence, and heads that share a kv head
    const g3__attn *att;
    const g3__kv *kv;
    const g3__row *rows;               // [n]
    const float *q, *fp8;              // q of the first row and head; rows are q_ld apart, heads head_dim
    float *y;
    size_t q_ld, y_ld;
    int n, heads, kv_head;
    float *room;                       // [64][head_dim]
    float *score;                      // [n][heads][64]
    float *top, *sum;                  // [n][heads]: m and l
} g3__queries;

static int g3__cpu_low(const g3__attn *a, const g3__row *row)            // first position a row sees
{
    return a->window > 0 && row->pos >= a->window ? row->pos - a->window + 1 : 0;
}

// s[h][i] = scale q[h] . k[i] for keys [first, end) of the block
static void g3__cpu_scores(const g3__queries *u, const float *const *key, const float *q, float *score, int first, int end)
{
    const size_t d = (size_t)u->att->head_dim;
    g3__sums sums[G3__TILE];
    for (int h = 0; h < u->heads; h += G3__TILE)
        for (int i = first; i < end; i += G3__TILE) {
            const int n = G3__MIN(u->heads - h, G3__TILE), count = G3__MIN(end - i, G3__TILE);
            const float *w[G3__TILE];
            for (int k = 0; k < G3__TILE; k++) w[k] = key[i + G3__MIN(k, count - 1)];
            memset(sums, 0, sizeof sums);
            g3__cpu_dots(sums, w, q + (size_t)h * d, d, n, u->att->head_dim);
            for (int t = 0; t < n; t++)
                for (int k = 0; k < count; k++) score[(h + t) * G3__KEYS + i + k] = g3__cpu_total(sums[t].s[k]) * u->att->scale;
        }
}

// Scores become weights exp(s - m); what was summed before is brought to the new maximum.
static void g3__cpu_soften(float *score, int first, int end, float *top, float *sum, float *y, int dim)
{
    float most = *top, total;
    for (int i = first; i < end; i++) if (score[i] > most) most = score[i];
    if (most > *top) {
        const float fade = expf(*top - most);                            // 0 for the first block
        for (int i = 0; i < dim; i++) y[i] *= fade;
        *sum *= fade;
        *top = most;
    }
    total = *sum;
    for (int i = first; i < end; i++) total += score[i] = expf(score[i] - most);
    *sum = total;
}

static void g3__cpu_gather(float *G3__RESTRICT y, const float *weight, const float *const *value, int first, int end, int dim)    // y += w v
{
    int i = first;
    for (; i + 4 <= end; i += 4) {
        const float *v0 = value[i], *v1 = value[i + 1], *v2 = value[i + 2], *v3 = value[i + 3];
        const float w0 = weight[i], w1 = weight[i + 1], w2 = weight[i + 2], w3 = weight[i + 3];
        for (int k = 0; k < dim; k++) {
            float s = y[k];
            s += w0 * v0[k]; s += w1 * v1[k]; s += w2 * v2[k]; s += w3 * v3[k];
            y[k] = s;
        }
    }
    for (; i < end; i++)
        for (int k = 0; k < dim; k++) y[k] += weight[i] * value[i][k];
}

// One block: keys, softmax and values for every query that sees any of it.
static void g3__cpu_attend_block(const g3__queries *u, int block, int low, int high)
{
    const g3__attn *a = u->att;
    const g3__kv *kv = u->kv;
    const float *at[G3__KEYS];
    const int d = a->head_dim, first = G3__MAX(block, low), end = G3__MIN(block + G3__KEYS - 1, high) + 1;
    for (int values = 0; values < 2; values++) {
        const void *codes = values ? kv->v : kv->k;
        const float *scales = values ? kv->v_scale : kv->k_scale;
        for (int i = first; i < end; i++) {
            float *room = u->room + (size_t)(i - block) * (size_t)d;
            at[i - block] = g3__cpu_get(codes, scales, kv, u->kv_head, i, u->fp8, room);
        }
        for (int t = 0; t < u->n; t++) {
            const int from = G3__MAX(first, g3__cpu_low(a, &u->rows[t])) - block, to = G3__MIN(end, u->rows[t].span + 1) - block, q0 = t * u->heads;
            float *y = u->y + (size_t)t * u->y_ld, *score = u->score + q0 * G3__KEYS;
            if (from >= to) continue;
            if (!values) g3__cpu_scores(u, at, u->q + (size_t)t * u->q_ld, score, from, to);
            for (int h = 0; h < u->heads; h++) {
                if (!values) g3__cpu_soften(score + h * G3__KEYS, from, to, &u->top[q0 + h], &u->sum[q0 + h], y + (size_t)h * (size_t)d, d);
                else g3__cpu_gather(y + (size_t)h * (size_t)d, score + h * G3__KEYS, at, from, to, d);
            }
        }
    }
}

static void g3__cpu_attend_queries(const g3__queries *u)
{
    const int d = u->att->head_dim, count = u->heads * d;
    int low = INT_MAX, high = 0;
    for (int t = 0; t < u->n; t++) {
        low = G3__MIN(low, g3__cpu_low(u->att, &u->rows[t]));
        high = G3__MAX(high, u->rows[t].span);
        memset(u->y + (size_t)t * u->y_ld, 0, (size_t)count * sizeof(float));
    }
    for (int i = 0; i < u->n * u->heads; i++) { u->top[i] = -HUGE_VALF; u->sum[i] = 0; }
    for (int block = low / G3__KEYS * G3__KEYS; block <= high; block += G3__KEYS) g3__cpu_attend_block(u, block, low, high);
    for (int t = 0; t < u->n; t++)
        for (int i = 0; i < count; i++) u->y[(size_t)t * u->y_ld + (size_t)i] /= u->sum[t * u->heads + i / d];
}

// Units: (kv head or head) x (group of 8 rows). Later rows see more, so bodies take every width-th unit.
static void g3__cpu_attend_units(const g3__job *j, int first, int end, int piece)
{
    const g3__attn *a = j->att;
    const int per_kv = a->heads / a->kv_heads, group = j->m, columns = a->heads / group;
    const int units = (j->n + G3__QUERY_ROWS - 1) / G3__QUERY_ROWS * columns;
    const size_t d = (size_t)a->head_dim;
    g3__queries u = G3__ZERO;
    (void)piece;
    u.att = a; u.fp8 = j->table; u.heads = group;
    u.q_ld = (size_t)(a->heads + 2 * a->kv_heads) * d;
    u.y_ld = (size_t)a->heads * d;
    u.room = j->r->a.work + (size_t)first * g3__work_each(&j->r->shape);
    u.score = u.room + G3__KEYS * d;
    u.top = u.score + (size_t)G3__QUERY_ROWS * (size_t)per_kv * G3__KEYS;
    u.sum = u.top + G3__QUERY_ROWS * per_kv;
    for (int lane = first; lane < end; lane++)
    for (int unit = lane; unit < units; unit += j->units) {
        const int head = unit % columns * group, stop = G3__MIN((unit / columns + 1) * G3__QUERY_ROWS, j->n);
        u.kv_head = head / per_kv;
        for (int t = unit / columns * G3__QUERY_ROWS; t < stop; t += u.n) {
            for (u.n = 1; t + u.n < stop && j->rows[t + u.n].seq == j->rows[t].seq;) u.n++;
            u.rows = j->rows + t;
            u.kv = &j->kv[u.rows->seq];
            u.q = j->x + (size_t)t * u.q_ld + (size_t)head * d;
            u.y = j->y + (size_t)t * u.y_ld + (size_t)head * d;
            g3__cpu_attend_queries(&u);
        }
    }
}

static void g3__cpu_e4m3_table(float table[256]) { for (int i = 0; i < 256; i++) table[i] = g3__e4m3_to_f32((uint8_t)i); }

static void g3__cpu_attend(g3__run *r, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n)
{
    if (g3__cpu_failed(r)) return;
    const int tiles = (n + G3__QUERY_ROWS - 1) / G3__QUERY_ROWS;
    float fp8[256];
    double keys = 0;
    g3__job j = g3__cpu_job(r, y, qkv, n, tiles * a->kv_heads >= r->shape.width ? a->heads / a->kv_heads : 1);
    if (kv->format == G3_KV_FP8) g3__cpu_e4m3_table(fp8);
    for (int t = 0; t < n; t++) keys += rows[t].span - g3__cpu_low(a, &rows[t]) + 1;
    j.att = a; j.kv = kv; j.rows = rows; j.table = fp8;
    j.units = G3__MIN(r->shape.width, tiles * (a->heads / j.m));
    g3__cpu_split(&j, g3__cpu_attend_units, j.units, 1, 2.0 * keys * a->heads * a->head_dim, j.units);
}

// The weights of one row's softmax, for an observer: weight [heads][cols], columns are the positions from *first to the row's span.
// qkv: the row after rope. Returns cols, which is g3__cpu_attention_cols; the caller has room for heads * cols floats, and for one key.
static int g3__cpu_attention_cols(const g3__attn *a, const g3__row *row) { return row->span - g3__cpu_low(a, row) + 1; }

static int g3__cpu_attention_row(float *weight, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *row, float *room, int *first)
{
    const int low = g3__cpu_low(a, row), cols = g3__cpu_attention_cols(a, row);
    float fp8[256];
    g3__cpu_e4m3_table(fp8);
    kv += row->seq;
    for (int h = 0; h < a->heads; h++) {
        float *w = weight + (size_t)h * (size_t)cols, most = -HUGE_VALF, total = 0;
        for (int i = 0; i < cols; i++) {
            const float *key[G3__TILE];
            g3__sums sums = G3__ZERO;
            key[0] = g3__cpu_get(kv->k, kv->k_scale, kv, h / (a->heads / a->kv_heads), low + i, fp8, room);
            key[1] = key[2] = key[3] = key[0];
            g3__cpu_dot1(&sums, key, qkv + (size_t)h * (size_t)a->head_dim, a->head_dim);
            w[i] = g3__cpu_total(sums.s[0]) * a->scale;
            most = G3__MAX(most, w[i]);
        }
        for (int i = 0; i < cols; i++) total += w[i] = expf(w[i] - most);
        for (int i = 0; i < cols; i++) w[i] /= total;
    }
    *first = low;
    return cols;
}

// ---- gelu, and the vision tower's pooling

// 0.5 x (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2/pi) (x + 0.044715 x^3): one exponential is cheaper than a tanh.
static float g3__cpu_gelu1(float x)
{
    return x / (1.0f + expf(-1.595769122f * (x + 0.044715f * x * x * x)));
}

static void g3__cpu_geglu_units(const g3__job *j, int first, int end, int piece)          // units: (row, 16 columns)
{
    const int m = j->m, per_row = (m + 15) / 16;
    (void)piece;
    for (int u = first; u < end; u++) {
        const int t = u / per_row, c = u % per_row * 16, stop = G3__MIN(c + 16, m);
        const float *gate = j->x + (size_t)t * 2 * (size_t)m, *up = gate + m;
        float *y = j->y + (size_t)t * (size_t)m;
        for (int i = c; i < stop; i++) y[i] = g3__cpu_gelu1(gate[i]) * up[i];
    }
}

static void g3__cpu_geglu(g3__run *r, float *y, const float *gu, int m, int n)
{
    if (g3__cpu_failed(r)) return;
    g3__job j = g3__cpu_job(r, y, gu, n, m);
    g3__cpu_split(&j, g3__cpu_geglu_units, n * ((m + 15) / 16), 1, 32.0 * n * m, r->shape.width);
}

static void g3__cpu_gelu_rows(const g3__job *j, int first, int end, int piece)
{
    (void)piece;
    for (size_t i = (size_t)first * (size_t)j->m; i < (size_t)end * (size_t)j->m; i++) j->y[i] = g3__cpu_gelu1(j->y[i]);
}

static void g3__cpu_gelu(g3__run *r, float *y, int m, int n)
{
    if (g3__cpu_failed(r)) return;
    g3__job j = g3__cpu_job(r, y, NULL, n, m);
    g3__cpu_split(&j, g3__cpu_gelu_rows, n, 1, 32.0 * n * m, r->shape.width);
}

static void g3__cpu_pool(g3__run *r, float *y, const float *x, int side, int k, int dim)
{
    const int out = side / k;
    if (g3__cpu_failed(r)) return;
    for (int cell = 0; cell < out * out; cell++) {
        float *mean = y + (size_t)cell * (size_t)dim;
        memset(mean, 0, (size_t)dim * sizeof *mean);
        for (int p = 0; p < k * k; p++) {
            const int row = cell / out * k + p / k, col = cell % out * k + p % k;
            const float *patch = x + ((size_t)row * (size_t)side + (size_t)col) * (size_t)dim;
            for (int i = 0; i < dim; i++) mean[i] += patch[i];
        }
        for (int i = 0; i < dim; i++) mean[i] /= (float)(k * k);
    }
}

static const g3__ops g3__cpu_ops = {
    "cpu",
    g3__cpu_alloc, g3__cpu_release, g3__cpu_copy, g3__cpu_copy, g3__cpu_copy, g3__cpu_begin, g3__cpu_end,
    g3__cpu_embed, g3__cpu_linear, g3__cpu_norm, g3__cpu_rope, g3__cpu_attend, g3__cpu_add, g3__cpu_geglu, g3__cpu_gelu, g3__cpu_pool, NULL
};
// ------------------------------------------------------------------------------------------------------------------
// >>simd
// Owns the fast versions of the operations: the sums of >>cpu over rows that lie interleaved, by the vector units of this machine.
// First what is the same for every instruction set, then the hot loops of each, whole functions with a suffix, chosen once per model.
// No compiler flag is needed: each function names the instructions it may use.
//
// Lanes. A vector holds one number of sixteen rows (g3__tiles in >>numbers), of sixteen keys, or sixteen numbers of a value. A lane belongs to
// its row, key or number from the first product to the last, so no product is ever summed across lanes.
//
// Order of summation. A row's elements are cut into blocks: the blocks of its 4-bit codes, else 128 elements. The products of a block are
// added in order, by fused multiply-adds; the block's sum times its scale is added to the row's. This holds for one row of x and for a
// thousand, and whoever does it, so prompts, single tokens and any number of threads give the same bits.

// gcc for Windows leaves the stack aligned to 16 bytes and spills wider vectors as if it were aligned to theirs (its bug 54412).
#if !defined(GEMMA3_NO_SIMD) && defined(G3__GNU_VECTORS) && defined(__x86_64__) && (!defined(_WIN32) || defined(__clang__))
#define G3__SIMD_X86 1
#include <immintrin.h>
#define G3__ROUNDED(v) __asm__("" : "+v"(v))       // keeps the compiler from fusing what must be rounded
#elif !defined(GEMMA3_NO_SIMD) && defined(G3__GNU_VECTORS) && defined(__aarch64__)
#define G3__SIMD_NEON 1
#include <arm_neon.h>
#define G3__ROUNDED(v) __asm__("" : "+w"(v))
#endif

#if defined(G3__SIMD_X86) || defined(G3__SIMD_NEON)
#define G3__SIMD 1
#define G3__INLINE       static inline __attribute__((always_inline))
#define G3__UNROLL       _Pragma("GCC unroll 12")

enum {
    G3__PANEL_ROWS = 64,               // rows of W that are decoded together: four tiles,
    G3__PANEL_COLS = G3__DENSE_BLOCK,  // and their columns: 32 KB of float32 stay in the first cache
    G3__X_ROWS     = 264,              // rows of x that meet the same panels: half of the second cache holds their columns
    G3__UNIT_ROWS  = 64,               // rows of W that a thread claims at least,
    G3__MOST_UNITS = 4,                // and that many times as many at most for one product
    G3__AHEAD      = 2048,             // bytes ahead of its use that the memory is asked for a line
    G3__FEW_ROWS   = 3                 // rows of x up to which weights are decoded in registers, once for each row
};

typedef struct g3__scales {            // the scales of one tile's blocks: absmax lies [block][16]
    const void *absmax;                // float32, or codes into map
    const float *map, *nested;         // NULL: absmax is float32
    float offset;
    int per_row, first, shift;         // blocks of a row; the number of the tile's first block; nested[number >> shift]
} g3__scales;

typedef struct g3__dots {              // four tiles times one row of x
    const char *tile[4];
    size_t size, jump;                 // bytes of a tile; from the end of a tile to the next one that will be read after it
    const float *table, *x;            // the sixteen values of a code
    int blocks, block, last;           // elements of a block, of the last block
    g3__scales scales[4];
} g3__dots;

typedef struct g3__product {           // y(t)[lanes] = from(t)[lanes] + scale[lanes] * sum over k of panel(k)[lanes] * x(t, k)
    const float *panel, *x, *scale, *from;
    float *y;
    size_t panel_ld, x_row, x_col, y_row, from_row;      // x(t, k) = x[t x_row + k x_col]; from: y itself, or what it begins with, from_row 0: the same for all
    int n, k, lanes;                   // lanes: a multiple of 16, up to 64
} g3__product;

struct g3__simd {                      // the hot loops of one instruction set
    const char *name;
    bool (*here)(void);                // can this machine run them?
    void (*dots_4bit)(const g3__dots *d, float y[64]);
    void (*dots_bf16)(const g3__dots *d, float y[64]);
    void (*scales)(const g3__scales *s, int first, int n, float *scale);                     // n blocks: [n][64], a quarter of each
    void (*panel_4bit)(const char *tile, const float table[16], int n, float *panel);        // n columns: panel [n][64], a quarter of each; codes without scale
    void (*panel_half)(const char *tile, bool bf16, int n, float *panel);                    // bf16 or f16
    void (*product)(const g3__product *g);
    void (*widen)(const g3__kv *kv, const void *codes, const float *scales, size_t row, int n, float *dst, size_t ld);  // n rows of the cache as float32, ld apart
    void (*turn)(const g3__kv *kv, const void *codes, const float *scales, size_t row, int n, int at, float *dst);      // and as columns at, at + 1, … of dst [head_dim][80]
    void (*soften)(float *score, int n, int keys, float *top, float *sum, float *fade);      // score [n][64], of which `keys`, a multiple of 16; room for fades in sixteens
    void (*gelu)(float *y, const float *gate, const float *up, int n);                       // y = gelu(gate) * up; up NULL: without
    void (*fade)(float *out, float fade, int n);                                             // out *= fade
    void (*merge)(float *out, float *top, float *sum, const float *part, const float *part_top, const float *part_sum, int n, int d);         // [n][d]
    void (*norm)(float *y, const float *x, const float *gain, float scale, int n);           // y = x * scale * gain
    void (*quantise)(const float *panel, int n, int8_t *code, float *most, float *lost, float *norm);      // of the screen: [n][64] to [n][16]; code NULL: only the largest
    void (*sieve)(const int8_t *const code[4], int n, const float *x, float y[64]);          // y = sum of code * x
    void (*sum)(float *x, const float *y, int n);                                            // x += y
};

// Sixteen rows cross into their next nested scale now and then; `left` counts the blocks until one of them does.
typedef struct g3__nested { float scale[G3__TILE_ROWS]; int left; } g3__nested;

static void g3__nested_turn(g3__nested *now, const g3__scales *s, int block)
{
    const int size = 1 << s->shift;
    int most = 0;
    for (int r = 0; r < G3__TILE_ROWS; r++) {
        const int number = s->first + r * s->per_row + block;
        now->scale[r] = s->nested[number >> s->shift];
        most = G3__MAX(most, number & (size - 1));
    }
    now->left = size - 1 - most;
}

// ---- what eight lanes of plain C can do: included in the functions of every instruction set

typedef int32_t  g3__ints  __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t g3__words __attribute__((vector_size(32), aligned(4), may_alias));
#define G3__PICK(mask, a, b) ((g3__lanes)(((g3__ints)(mask) & (g3__ints)(a)) | (~(g3__ints)(mask) & (g3__ints)(b))))       // lane by lane: mask ? a : b

// *x = e^*x to 1 ulp or so; 0 below -87, where float32 ends; NaN stays. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its series; 2^n by adding n to the exponent.
G3__INLINE void g3__exp_lanes(g3__lanes *x)
{
    const g3__lanes none = G3__ZERO, v = G3__PICK(*x > none + 88.0f, none + 88.0f, *x);
    const g3__lanes w = G3__PICK(v < none - 87.0f, none - 87.0f, v), t = w * 1.44269504f + 12582912.0f, n = t - 12582912.0f;  // 1.5 * 2^23: n stands in t's low bits
    const g3__lanes r = (w - n * 0.693359375f) + n * 2.12194440e-4f;
    g3__lanes p = r * (1.0f / 5040) + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    p = (g3__lanes)((g3__ints)p + (g3__ints)((g3__words)t << 23));
    *x = (g3__lanes)((g3__ints)p & ~(g3__ints)(v < none - 87.0f));
}

// x / (1 + e^-2u), u = sqrt(2/pi) (x + 0.044715 x^3), as in >>cpu
G3__INLINE void g3__gelu_lanes(float *y, const float *gate, const float *up)
{
    const g3__lanes x = G3__LOAD(gate);
    g3__lanes e = (x + x * x * x * 0.044715f) * -1.595769122f;
    g3__exp_lanes(&e);
    e = x / (e + 1.0f);
    if (up) e *= G3__LOAD(up);
    *(g3__lanes *)y = e;
}

G3__INLINE void g3__gelu_row(float *y, const float *gate, const float *up, int n)
{
    int i = 0;
    for (; i + G3__LANES <= n; i += G3__LANES) g3__gelu_lanes(y + i, gate + i, up ? up + i : NULL);
    if (i == n) return;
    float g[G3__LANES] = { 0 }, u[G3__LANES] = { 0 };
    memcpy(g, gate + i, (size_t)(n - i) * sizeof *g);
    if (up) memcpy(u, up + i, (size_t)(n - i) * sizeof *u);
    g3__gelu_lanes(g, g, up ? u : NULL);
    memcpy(y + i, g, (size_t)(n - i) * sizeof *g);
}

G3__INLINE float g3__most_lanes(const g3__lanes *v)
{
    float most = (*v)[0];
    for (int i = 1; i < G3__LANES; i++) most = (*v)[i] > most ? (*v)[i] : most;
    return most;
}

G3__INLINE float g3__total_lanes(const g3__lanes *v)
{
    const g3__lanes a = *v;
    return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

G3__INLINE void g3__exp_all(float *y, int n)             // n: up to a multiple of eight
{
    for (int i = 0; i < n; i += G3__LANES) g3__exp_lanes((g3__lanes *)(y + i));
}

// Scores [n][64] of one block become e^(s - m), the maximum m and the sum are brought up to date, and fade is what the old sums are worth now.
G3__INLINE void g3__soften_rows(float *score, int n, int keys, float *top, float *sum, float *fade)
{
    for (int q = 0; q < n; q++) {
        const float *s = score + q * G3__KEYS;
        g3__lanes most = G3__LOAD(s);
        for (int i = G3__LANES; i < keys; i += G3__LANES) { const g3__lanes v = G3__LOAD(s + i); most = G3__PICK(v > most, v, most); }
        const float m = g3__most_lanes(&most), old = top[q];
        top[q] = m > old ? m : old;
        fade[q] = old - top[q];
    }
    g3__exp_all(fade, n);
    for (int q = 0; q < n; q++) {
        float *s = score + q * G3__KEYS;
        g3__lanes total = G3__ZERO;
        for (int i = 0; i < keys; i += G3__LANES) {
            g3__lanes e = G3__LOAD(s + i) - top[q];
            g3__exp_lanes(&e);
            *(g3__lanes *)(s + i) = e;
            total += e;
        }
        sum[q] = sum[q] * fade[q] + g3__total_lanes(&total);
    }
}

typedef uint16_t g3__halves __attribute__((vector_size(16), aligned(2), may_alias));
typedef int16_t  g3__shorts __attribute__((vector_size(16), aligned(2), may_alias));
typedef int16_t  g3__shorts16 __attribute__((vector_size(32), aligned(2), may_alias));
typedef int8_t   g3__chars16 __attribute__((vector_size(16), aligned(1), may_alias));

// e4m3 without its sign is m 2^(e - 10), m = 8 + fraction, but m = fraction and e = 1 where e is 0: whole numbers times a power of two, exact.
G3__INLINE void g3__e4m3_lanes(g3__lanes *y, const g3__words *c)
{
    const g3__words e = *c >> 3 & 15, low = (g3__words)(e == 0) & 1;
    const g3__words m = (*c & 7) | (8 - (low << 3)), power = (e + low + 117) << 23;
    const g3__lanes v = __builtin_convertvector((g3__ints)m, g3__lanes) * (g3__lanes)power;
    *y = (g3__lanes)((g3__words)v | (*c & 128) << 24);
}

// Memory will be wanted soon. A cache is read from end to end, and what lies behind it may be asked for, too.
G3__INLINE void g3__ask(const char *p, const char *end)
{
    for (; p < end; p += 64) G3__PREFETCH(p);
}

G3__INLINE float g3__kv_number(g3_kv format, const void *codes, size_t at, float scale)
{
    if (format == G3_KV_F32) return ((const float *)codes)[at];
    if (format == G3_KV_BF16) return g3__bf16_to_f32(((const uint16_t *)codes)[at]);
    return (format == G3_KV_INT8 ? (float)((const int8_t *)codes)[at] : g3__e4m3_to_f32(((const uint8_t *)codes)[at])) * scale;
}

G3__INLINE void g3__widen_rows(g3_kv format, int d, const void *codes, const float *scales, size_t row, int n, float *dst, size_t ld)
{
    const size_t size = (size_t)g3__kv_size(format);
    for (int r = 0; r < n; r++, row++, dst += ld) {
        const size_t at = row * (size_t)d;
        const uint16_t *h = (const uint16_t *)codes + at;
        const uint8_t *b = (const uint8_t *)codes + at;
        const float s = scales ? scales[row] : 1.0f;
        int i = 0;
        g3__ask((const char *)codes + at * size + G3__AHEAD, (const char *)codes + (at + (size_t)d) * size + G3__AHEAD);
        if (format == G3_KV_F32) { memcpy(dst, (const float *)codes + at, (size_t)d * sizeof *dst); continue; }
        if (format == G3_KV_BF16)
            for (; i + G3__LANES <= d; i += G3__LANES) *(g3__words *)(dst + i) = __builtin_convertvector(*(const g3__halves *)(h + i), g3__words) << 16;
        else for (; i + 16 <= d; i += 16) {              // compilers widen bytes in two steps, or one by one
            int16_t wide[16];
            *(g3__shorts16 *)wide = __builtin_convertvector(*(const g3__chars16 *)(const void *)(b + i), g3__shorts16);
            G3__UNROLL for (int k = 0; k < 16; k += G3__LANES) {
                const g3__ints c = __builtin_convertvector(*(const g3__shorts *)(wide + k), g3__ints);
                g3__lanes v = __builtin_convertvector(c, g3__lanes);
                if (format == G3_KV_FP8) { const g3__words u = (g3__words)c & 255; g3__e4m3_lanes(&v, &u); }
                *(g3__lanes *)(dst + i + k) = v * s;
            }
        }
        for (; i < d; i++) dst[i] = g3__kv_number(format, codes, at + (size_t)i, s);
    }
}

G3__INLINE void g3__widen_kind(const g3__kv *kv, const void *codes, const float *scales, size_t row, int n, float *dst, size_t ld)
{
    const int d = kv->head_dim;
    switch (kv->format) {
    case G3_KV_F32:  g3__widen_rows(G3_KV_F32, d, codes, scales, row, n, dst, ld); break;
    case G3_KV_FP8:  g3__widen_rows(G3_KV_FP8, d, codes, scales, row, n, dst, ld); break;
    case G3_KV_INT8: g3__widen_rows(G3_KV_INT8, d, codes, scales, row, n, dst, ld); break;
    default:         g3__widen_rows(G3_KV_BF16, d, codes, scales, row, n, dst, ld); break;
    }
}

#if defined(__clang__) || __GNUC__ >= 12
#define G3__MIX(a, b, ...) (g3__words)__builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define G3__MIX(a, b, ...) (g3__words)__builtin_shuffle(a, b, g3__words { __VA_ARGS__ })
#endif

// Eight rows of eight words, `stride` bytes apart, become eight columns: pairs of words, then of pairs, then of halves change places.
G3__INLINE void g3__turn_words(const char *p, size_t stride, g3__words t[8])
{
    g3__words a[8], b[8];
    G3__UNROLL for (int i = 0; i < 8; i += 2) {
        const g3__words u = *(const g3__words *)(const void *)(p + (size_t)i * stride), v = *(const g3__words *)(const void *)(p + (size_t)(i + 1) * stride);
        a[i] = G3__MIX(u, v, 0, 8, 1, 9, 4, 12, 5, 13);
        a[i + 1] = G3__MIX(u, v, 2, 10, 3, 11, 6, 14, 7, 15);
    }
    G3__UNROLL for (int i = 0; i < 8; i += 4) G3__UNROLL for (int k = 0; k < 2; k++) {
        b[i + 2 * k] = G3__MIX(a[i + k], a[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[i + 2 * k + 1] = G3__MIX(a[i + k], a[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    }
    G3__UNROLL for (int k = 0; k < 4; k++) {
        t[k] = G3__MIX(b[k], b[k + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        t[k + 4] = G3__MIX(b[k], b[k + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

// One word of eight keys holds one, two or four numbers of each: as many rows of dst.
G3__INLINE void g3__turn_wide(g3_kv format, const g3__words *w, const g3__lanes *scale, float *dst)
{
    if (format == G3_KV_F32) { *(g3__words *)dst = *w; return; }
    if (format == G3_KV_BF16) {
        *(g3__words *)dst = *w << 16;
        *(g3__words *)(dst + G3__KEYS_LD) = *w & 0xffff0000u;
        return;
    }
    G3__UNROLL for (int i = 0; i < 4; i++) {
        const g3__words c = *w >> (8 * i) & 255;
        g3__lanes v;
        if (format == G3_KV_FP8) g3__e4m3_lanes(&v, &c);
        else v = __builtin_convertvector((g3__ints)(c << 24) >> 24, g3__lanes);
        *(g3__lanes *)(dst + i * G3__KEYS_LD) = v * *scale;
    }
}

// Rows of the cache become columns of dst, eight at a time; what is left over one by one.
G3__INLINE void g3__turn_rows(g3_kv format, int d, const void *codes, const float *scales, size_t row, int n, float *dst)
{
    const int per = 4 / g3__kv_size(format), wide = d / (8 * per) * 8 * per;
    const size_t stride = (size_t)d * (size_t)g3__kv_size(format);
    for (int i = 0, m; i < n; i += m, row += (size_t)m) {
        const char *p = (const char *)codes + row * stride, *ahead = p + 2 * G3__LANES * stride;
        m = n - i >= G3__LANES ? G3__LANES : 1;
        const int done = m > 1 ? wide : 0;
        g3__lanes scale = G3__ZERO;
        if (scales && m > 1) scale = G3__LOAD(scales + row);
        for (int k = 0; k < done; k += 8 * per, p += 32) {
            g3__words t[8];
            g3__turn_words(p, stride, t);
            g3__ask(ahead, ahead + 8 * 32);
            ahead += 8 * 32;
            G3__UNROLL for (int j = 0; j < 8; j++) g3__turn_wide(format, &t[j], &scale, dst + (size_t)(k + j * per) * G3__KEYS_LD + i);
        }
        for (int j = 0; j < m; j++)
            for (int k = done; k < d; k++) {
                const size_t r = row + (size_t)j;
                dst[k * G3__KEYS_LD + i + j] = g3__kv_number(format, codes, r * (size_t)d + (size_t)k, scales ? scales[r] : 1.0f);
            }
    }
}

G3__INLINE void g3__turn_kind(const g3__kv *kv, const void *codes, const float *scales, size_t row, int n, float *dst)   // a loop of its own for each format
{
    const int d = kv->head_dim;
    switch (kv->format) {
    case G3_KV_F32:  g3__turn_rows(G3_KV_F32, d, codes, scales, row, n, dst); break;
    case G3_KV_FP8:  g3__turn_rows(G3_KV_FP8, d, codes, scales, row, n, dst); break;
    case G3_KV_INT8: g3__turn_rows(G3_KV_INT8, d, codes, scales, row, n, dst); break;
    default:         g3__turn_rows(G3_KV_BF16, d, codes, scales, row, n, dst); break;
    }
}

G3__INLINE void g3__norm_lanes(float *y, const float *x, const float *gain, float scale, int n)
{
    int i = 0;
    for (; i + G3__LANES <= n; i += G3__LANES) *(g3__lanes *)(y + i) = G3__LOAD(x + i) * scale * G3__LOAD(gain + i);
    for (; i < n; i++) y[i] = x[i] * scale * gain[i];
}

G3__INLINE void g3__sum_lanes(float *x, const float *y, int n)
{
    int i = 0;
    for (; i + G3__LANES <= n; i += G3__LANES) *(g3__lanes *)(x + i) += G3__LOAD(y + i);
    for (; i < n; i++) x[i] += y[i];
}

G3__INLINE void g3__fade_lanes(float *out, float fade, int n)
{
    for (int k = 0; k < n; k += G3__LANES) *(g3__lanes *)(out + k) *= fade;
}

// Two softmaxes over different keys become one: each is worth e^(its maximum - the common one).
G3__INLINE void g3__merge_rows(float *out, float *top, float *sum, const float *part, const float *part_top, const float *part_sum, int n, int d)
{
    float f[G3__QUERIES], g[G3__QUERIES];
    for (int q = 0; q < (int)g3__round_up((uint64_t)n, G3__LANES); q++) {
        const float a = q < n ? top[q] : 0, b = q < n ? part_top[q] : 0, most = b > a ? b : a;
        f[q] = a - most;
        g[q] = b - most;
        if (q < n) top[q] = most;
    }
    g3__exp_all(f, n);
    g3__exp_all(g, n);
    for (int q = 0; q < n; q++, out += d, part += d) {
        sum[q] = sum[q] * f[q] + part_sum[q] * g[q];
        for (int k = 0; k < d; k += G3__LANES) *(g3__lanes *)(out + k) = G3__LOAD(out + k) * f[q] + G3__LOAD(part + k) * g[q];
    }
}

// Sixteen rows: the largest |w|, or code = w * 127 / largest with the squares of what is lost and of what there is.
G3__INLINE void g3__quantise_lanes(const float *panel, int n, int8_t *code, float *most, float *lost, float *norm)
{
    int16_t wide[16];
    for (int k = 0; k < n; k++, panel += G3__PANEL_ROWS, code += code ? G3__TILE_ROWS : 0) {
        for (int r = 0; r < G3__TILE_ROWS; r += G3__LANES) {
            const g3__lanes w = G3__LOAD(panel + r), top = G3__LOAD(most + r), none = G3__ZERO, size = (g3__lanes)((g3__ints)w & 0x7fffffff);
            if (!code) { *(g3__lanes *)(most + r) = G3__PICK(size > top, size, top); continue; }
            const g3__lanes unit = top / 127.0f, q = G3__PICK(top > none, (w * (127.0f / top) + 12582912.0f) - 12582912.0f, none);   // 1.5 * 2^23: to the nearest whole number
            const g3__lanes d = w - unit * q;
            *(g3__shorts *)(wide + r) = __builtin_convertvector(__builtin_convertvector(q, g3__ints), g3__shorts);
            *(g3__lanes *)(lost + r) += d * d;
            *(g3__lanes *)(norm + r) += w * w;
        }
        if (code) *(g3__chars16 *)code = __builtin_convertvector(*(const g3__shorts16 *)wide, g3__chars16);
    }
}

// Where the memory is asked ahead of column k: in the same tile, or in the one that will be read after it, three tiles on.
G3__INLINE size_t g3__sieve_ahead(int k, int n)
{
    return (size_t)G3__AHEAD + ((size_t)k * G3__TILE_ROWS + G3__AHEAD < (size_t)n * G3__TILE_ROWS ? 0 : 3 * (size_t)n * G3__TILE_ROWS);
}

// The functions above, compiled for one instruction set.
#define G3__LANE_FUNCTIONS(isa, target)                                                                                                     \
target static void g3__widen_##isa(const g3__kv *kv, const void *c, const float *s, size_t row, int n, float *y, size_t ld) { g3__widen_kind(kv, c, s, row, n, y, ld); }   \
target static void g3__turn_##isa(const g3__kv *kv, const void *c, const float *s, size_t row, int n, int at, float *y) { g3__turn_kind(kv, c, s, row, n, y + at); }   \
target static void g3__gelu_##isa(float *y, const float *gate, const float *up, int n) { g3__gelu_row(y, gate, up, n); }                    \
target static void g3__fade_##isa(float *out, float fade, int n) { g3__fade_lanes(out, fade, n); }                                          \
target static void g3__merge_##isa(float *o, float *t, float *s, const float *p, const float *pt, const float *ps, int n, int d) { g3__merge_rows(o, t, s, p, pt, ps, n, d); } \
target static void g3__norm_##isa(float *y, const float *x, const float *gain, float scale, int n) { g3__norm_lanes(y, x, gain, scale, n); } \
target static void g3__sum_##isa(float *x, const float *y, int n) { g3__sum_lanes(x, y, n); } \
target static void g3__quantise_##isa(const float *p, int n, int8_t *c, float *most, float *lost, float *norm) { g3__quantise_lanes(p, n, c, most, lost, norm); }

#define G3__SOFTEN(isa, target) \
target static void g3__soften_##isa(float *score, int n, int keys, float *top, float *sum, float *fade) { g3__soften_rows(score, n, keys, top, sum, fade); }

#define G3__SIMD_TABLE(isa) { #isa, g3__here_##isa, g3__dots_4bit_##isa, g3__dots_bf16_##isa, g3__scales_##isa, g3__panel_4bit_##isa, g3__panel_half_##isa, g3__product_##isa, \
    g3__widen_##isa, g3__turn_##isa, g3__soften_##isa, g3__gelu_##isa, g3__fade_##isa, g3__merge_##isa, g3__norm_##isa, g3__quantise_##isa, g3__sieve_##isa, g3__sum_##isa }

// Of a product: as many rows of x as are left, N at a time.
#define G3__ROWS(tile, N) for (; t + N <= g->n; t += N, x += N * g->x_row, from += N * g->from_row, y += N * g->y_row) tile(g, g->panel + lane, g->scale + lane, x, from, y)

// ---- work: bodies claim a few units at a time, so that a slow core does less; a body keeps its slice of scratch

typedef struct g3__claim {             // beside the job, which all threads read and some copy
    const g3__job *j;
    int next;                          // the first unit that no body has claimed
} g3__claim;

static void g3__simd_body(void *ctx, int i)
{
    g3__claim *c = (g3__claim *)ctx;
    const g3__job *j = c->j;
    for (int u; (u = g3__atomic_add(&c->next, j->step)) < j->units; ) j->work(j, u, G3__MIN(j->units - u, j->step) + u, i);
}

static void g3__simd_split(g3__job *j, void (*work)(const g3__job *, int, int, int), int units, double cost)     // cost: multiply-adds of all
{
    const int width = j->r->shape.width, most = cost < (double)G3__GRAIN * width ? (int)(cost / (double)G3__GRAIN) : width;
    g3__claim c = { j, 0 };
    j->work = work;
    j->units = units;
    j->step = G3__MAX(G3__MIN(units / (8 * width), j->n > G3__FEW_ROWS ? G3__MOST_UNITS : units / (32 * width)), 1);
    if (G3__MIN(most, units) <= 1) work(j, 0, units, 0);
    else g3__pool_for(j->r->pool, G3__MIN(most, units), g3__simd_body, &c);
}

// ---- linear

static void g3__simd_norm(g3__run *r, float *y, const float *x, const g3__norm *norm, int n);

static g3__scales g3__simd_scales(const g3__bits *w, int row, int cols)          // of the tile that begins at `row`
{
    g3__scales s = G3__ZERO;
    s.per_row = cols / (int)w->blocksize;
    s.first = row * s.per_row;
    s.absmax = (const char *)w->absmax + (size_t)s.first * (w->nested_absmax ? 1 : 4);
    s.map = w->nested_map;
    s.nested = w->nested_absmax;
    s.offset = w->nested_offset;
    while (s.nested && (w->nested_blocksize >> s.shift) > 1) s.shift++;
    return s;
}

static const char *g3__simd_tile(const g3__bits *w, int row, int cols)
{
    return (const char *)w->data + (size_t)row * ((size_t)cols * g3__format_bits(w->format) / 8);
}

static const float *g3__code_table(const g3__bits *w) { return w->format == G3__NF4 ? g3__nf4_table : g3__fp4_table; }

// Four tiles times one row of x, straight from the codes: y[4][16] += W x for the rows from row[0], row[1], …
static void g3__simd_dots(const g3__simd *v, const g3__bits *w, const int row[4], int cols, const float *x, float *y)
{
    g3__dots d = G3__ZERO;
    const bool coded = g3__is_4bit(w->format);
    for (int t = 0; t < 4; t++) d.tile[t] = g3__simd_tile(w, row[t], cols);
    for (int t = 0; coded && t < 4; t++) d.scales[t] = g3__simd_scales(w, row[t], cols);
    d.size = (size_t)cols * g3__format_bits(w->format) / 8 * G3__TILE_ROWS;
    d.jump = row[3] - row[0] == 3 * G3__TILE_ROWS ? 3 * d.size : 0;
    d.x = x;
    d.block = coded ? (int)w->blocksize : G3__DENSE_BLOCK;
    d.blocks = (cols + d.block - 1) / d.block;
    d.last = cols - (d.blocks - 1) * d.block;
    if (coded) d.table = g3__code_table(w);
    if (coded) v->dots_4bit(&d, y);
    else       v->dots_bf16(&d, y);
}

// Columns [k, k + n) of one tile into its quarter of a panel.
static void g3__simd_quarter(const g3__simd *v, const g3__bits *w, const char *tile, int k, int n, float *panel)
{
    const char *p = tile + (size_t)k * g3__format_bits(w->format) / 8 * G3__TILE_ROWS;
    const uint32_t per = 32 / g3__format_bits(w->format);                        // elements of a dword
    if (g3__is_4bit(w->format)) { v->panel_4bit(p, g3__code_table(w), n, panel); return; }
    if (w->format == G3__BF16 || w->format == G3__F16) { v->panel_half(p, w->format == G3__BF16, n, panel); return; }
    if (w->format == G3__F32 && !w->scale) {
        for (int i = 0; i < n; i++, p += 4 * G3__TILE_ROWS) memcpy(panel + (size_t)i * G3__PANEL_ROWS, p, 4 * G3__TILE_ROWS);
        return;
    }
    g3__bits one = *w;                                                           // the four bytes of one row
    one.tiled = false;
    for (int i = 0; i < n; i += (int)per)
        for (int r = 0; r < G3__TILE_ROWS; r++, p += 4) {
            float e[4];
            one.data = p;
            g3__decode(&one, 0, per, e);
            for (uint32_t j = 0; j < per; j++) panel[((size_t)i + j) * G3__PANEL_ROWS + (size_t)r] = e[j];
        }
}

// Columns [k, k + n) of up to four tiles, and the scales of their blocks.
static void g3__simd_panel(const g3__simd *v, const g3__bits *w, int row, int rows, int cols, int k, int n, float *panel, float *scale)
{
    for (int part = 0; part < rows; part += G3__TILE_ROWS) {
        g3__simd_quarter(v, w, g3__simd_tile(w, row + part, cols), k, n, panel + part);
        if (!g3__is_4bit(w->format)) continue;
        const g3__scales s = g3__simd_scales(w, row + part, cols);
        v->scales(&s, k / (int)w->blocksize, n / (int)w->blocksize, scale + part);
    }
}

// y[t][rows] = bias + W x[t] for all rows t of x. All rows of W go through the same columns before the next columns come, since those of x
// fill a good part of the second cache and would else be fetched from further away for every panel.
static void g3__simd_panels(const g3__job *j, const g3__bits *w, int row, int rows, const float *bias, float *y)
{
    float panel[G3__PANEL_COLS * G3__PANEL_ROWS] __attribute__((aligned(64))), scale[G3__PANEL_COLS / 32 * G3__PANEL_ROWS];
    const bool coded = g3__is_4bit(w->format);
    const int cols = j->W->cols, block = coded ? (int)w->blocksize : G3__DENSE_BLOCK;
    g3__product g = G3__ZERO;
    g.panel_ld = G3__PANEL_ROWS; g.x_row = (size_t)cols; g.x_col = 1; g.y_row = (size_t)j->m;
    for (int i = 0; i < G3__PANEL_ROWS; i++) scale[i] = 1.0f;
    for (int k = 0; k < cols; k += G3__PANEL_COLS)
        for (int r = 0; r < rows; r += G3__PANEL_ROWS) {
            const int n = G3__MIN(cols - k, G3__PANEL_COLS);
            g.lanes = G3__MIN(rows - r, G3__PANEL_ROWS);
            g3__simd_panel(j->r->simd, w, row + r, g.lanes, cols, k, n, panel, scale);
            for (int t = 0; t < j->n; t += g.n)
                for (int b = 0; b < n; b += block) {
                    g.n = G3__MIN(j->n - t, 12);
                    g.k = G3__MIN(n - b, block);
                    g.panel = panel + (size_t)b * G3__PANEL_ROWS;
                    g.scale = scale + (size_t)(coded ? b / block : 0) * G3__PANEL_ROWS;
                    g.x = j->x + (size_t)t * (size_t)cols + k + b;
                    g.y = y + (size_t)t * (size_t)j->m + r;
                    g.from = k + b ? g.y : bias + r;
                    g.from_row = k + b ? g.y_row : 0;
                    j->r->simd->product(&g);
                }
        }
}

static bool g3__simd_few(const g3__bits *w, int n) { return n <= G3__FEW_ROWS && (g3__is_4bit(w->format) || w->format == G3__BF16); }

// y[t][row0 + i] = W[row + i] x[t] + b[row + i] for up to 256 rows i of a segment whose rows lie interleaved.
static void g3__simd_rows(const g3__job *j, const g3__seg *seg, int row, int row0, int rows)
{
    const bool few = g3__simd_few(&seg->bits, j->n);
    const int cols = j->W->cols;
    float bias[G3__UNIT_ROWS * G3__MOST_UNITS] = { 0 };
    if (seg->bias.data) g3__decode(&seg->bias, (uint64_t)row, (uint64_t)rows, bias);
    if (!few) { g3__simd_panels(j, &seg->bits, row, rows, bias, j->y + row0); return; }
    for (int i = 0; i < rows; i += G3__UNIT_ROWS)
        for (int t = 0; t < j->n; t++) {
            const int n = G3__MIN(rows - i, G3__UNIT_ROWS), last = n - G3__TILE_ROWS;            // fewer than four tiles: the last one again
            const int at[4] = { row + i, row + i + G3__MIN(16, last), row + i + G3__MIN(32, last), row + i + G3__MIN(48, last) };
            float sum[G3__UNIT_ROWS];
            memcpy(sum, bias + i, sizeof sum);
            g3__simd_dots(j->r->simd, &seg->bits, at, cols, j->x + (size_t)t * (size_t)cols, sum);
            memcpy(j->y + (size_t)t * (size_t)j->m + row0 + i, sum, (size_t)n * sizeof *sum);
        }
}

static void g3__simd_linear_rows(const g3__job *j, int first, int end)           // units: 64 rows of one segment
{
    int unit = 0, base = 0;                                                      // of the segment's beginning
    for (int s = 0; s < j->W->n_segs; s++) {
        const g3__seg *seg = &j->W->seg[s];
        const int units = (seg->rows + G3__UNIT_ROWS - 1) / G3__UNIT_ROWS, stop = G3__MIN((end - unit) * G3__UNIT_ROWS, seg->rows);
        for (int row = G3__MAX(first - unit, 0) * G3__UNIT_ROWS, n; row < stop; row += n) {
            n = G3__MIN(stop - row, G3__UNIT_ROWS * G3__MOST_UNITS);
            if (seg->bits.tiled) { g3__simd_rows(j, seg, row, base + row, n); continue; }
            for (int i = 0; i < n; i += G3__TILE) g3__cpu_linear_tile(j, seg, row + i, base + row + i, G3__MIN(n - i, G3__TILE));
        }
        unit += units;
        base += seg->rows;
    }
}

// Units: (264 rows of x, 64 of W). A thread stays with rows of x that its second cache holds, and goes through W with them.
static void g3__simd_linear_units(const g3__job *j, int first, int end, int piece)
{
    (void)piece;
    for (int u = first, stop; u < end; u = stop) {
        const int group = u / j->per_group, t = group * j->group;
        g3__job part = *j;
        stop = G3__MIN(end, (group + 1) * j->per_group);
        part.x += (size_t)t * (size_t)j->W->cols;
        part.y += (size_t)t * (size_t)j->m;
        part.n = G3__MIN(j->n - t, j->group);
        g3__simd_linear_rows(&part, u - group * j->per_group, stop - group * j->per_group);
    }
}

// y[t][c..c + n) += x[t][k..k + len) times the panel; the product writes whole lanes, so four rows at a time go through room of their own.
static void g3__simd_strip(const g3__job *j, const float *panel, int k, int len, int c, int n)
{
    float y[4 * G3__PANEL_ROWS], one[G3__PANEL_ROWS], zero[G3__PANEL_ROWS] = { 0 };
    g3__product g = G3__ZERO;
    for (int i = 0; i < G3__PANEL_ROWS; i++) one[i] = 1.0f;
    g.panel = panel; g.scale = one; g.y = y; g.from = zero;
    g.panel_ld = g.y_row = G3__PANEL_ROWS; g.lanes = G3__PANEL_ROWS; g.k = len;
    g.x_row = (size_t)j->W->cols; g.x_col = 1;
    for (int t = 0; t < j->n; t += g.n) {
        g.n = G3__MIN(j->n - t, 4);
        g.x = j->x + (size_t)t * g.x_row + k;
        j->r->simd->product(&g);
        for (int i = 0; i < g.n; i++) j->r->simd->sum(j->y + (size_t)(t + i) * (size_t)j->m + c, y + i * G3__PANEL_ROWS, n);
    }
}

// y = x W for W [in][out], 64 columns a unit: rows of W are a panel as they lie.
static void g3__simd_linear_cols(const g3__job *j, int first, int end, int piece)
{
    const g3__seg *seg = &j->W->seg[0];
    const int out = j->m, in = j->W->cols;
    (void)piece;
    for (int u = first; u < end; u++) {
        float panel[G3__PANEL_COLS * G3__PANEL_ROWS] __attribute__((aligned(64))), bias[G3__PANEL_ROWS] = { 0 };
        const int c = u * G3__PANEL_ROWS, n = G3__MIN(out - c, G3__PANEL_ROWS);
        if (seg->bias.data) g3__decode(&seg->bias, (uint64_t)c, (uint64_t)n, bias);
        for (size_t t = 0; t < (size_t)j->n; t++) memcpy(j->y + t * (size_t)out + c, bias, (size_t)n * sizeof *bias);
        for (int k = 0; k < in; k += G3__PANEL_COLS) {
            const int len = G3__MIN(in - k, G3__PANEL_COLS);
            memset(panel, 0, sizeof panel);
            for (int i = 0; i < len; i++) g3__decode(&seg->bits, (uint64_t)(k + i) * (uint64_t)out + (uint64_t)c, (uint64_t)n, panel + (size_t)i * G3__PANEL_ROWS);
            g3__simd_strip(j, panel, k, len, c, n);
        }
    }
}

static void g3__simd_linear(g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, int n)
{
    if (g3__cpu_failed(r)) return;
    float tables[2 * 512];
    const int groups = (n + G3__X_ROWS - 1) / G3__X_ROWS;
    g3__job j = g3__cpu_job(r, y, x, n, W->rows);
    g3__cpu_tables(tables, W);
    j.group = (int)g3__round_up((uint64_t)((n + groups - 1) / groups), 12);
    for (int s = 0; s < W->n_segs; s++) j.per_group += (W->seg[s].rows + G3__UNIT_ROWS - 1) / G3__UNIT_ROWS;
    const int units = W->transposed ? (W->rows + G3__PANEL_ROWS - 1) / G3__PANEL_ROWS : groups * j.per_group;
    if (norm) { g3__simd_norm(r, r->a.h, x, norm, n); j.x = r->a.h; }
    j.W = W;
    j.table = tables;
    g3__simd_split(&j, W->transposed ? g3__simd_linear_cols : g3__simd_linear_units, units, (double)W->rows * W->cols * n);
}

// ---- norm and add: sums in float64 as in >>cpu, the rest by lanes

static void g3__simd_norm_one(const g3__job *j, float *y, const float *x)
{
    const g3__norm *norm = j->norm;
    if (norm->layer) { g3__cpu_norm_one(j, y, x); return; }
    j->r->simd->norm(y, x, j->r->a.gain, (float)(1.0 / sqrt(g3__cpu_squares(x, 0, norm->dim) / norm->dim + (double)norm->eps)), norm->dim);
}

static void g3__simd_norm(g3__run *r, float *y, const float *x, const g3__norm *norm, int n)
{
    if (g3__cpu_failed(r)) return;
    g3__job j = g3__cpu_job(r, y, x, n, norm->dim);
    g3__cpu_gain(r, norm, 0);
    j.norm = norm;
    j.norm_row = g3__simd_norm_one;
    g3__simd_split(&j, g3__cpu_norm_rows, n, 4.0 * n * norm->dim);
}

static void g3__simd_add(g3__run *r, float *x, const float *y, const g3__norm *norm, int dim, int n)
{
    if (g3__cpu_failed(r)) return;
    g3__job j = g3__cpu_job(r, x, y, n, dim);
    if (norm) g3__cpu_gain(r, norm, 0);
    j.norm = norm;
    j.norm_row = g3__simd_norm_one;
    j.sum = r->simd->sum;
    g3__simd_split(&j, g3__cpu_add_rows, n, 4.0 * n * dim);
}

// ---- gelu

static void g3__simd_gelu_units(const g3__job *j, int first, int end, int piece)            // units: (row, 256 columns); x set: gate and up
{
    const int m = j->m, per_row = (m + 255) / 256;
    (void)piece;
    for (int u = first; u < end; u++) {
        const int t = u / per_row, c = u % per_row * 256;
        float *y = j->y + (size_t)t * (size_t)m + c;
        const float *gate = j->x ? j->x + (size_t)t * 2 * (size_t)m + c : y;
        j->r->simd->gelu(y, gate, j->x ? gate + m : NULL, G3__MIN(m - c, 256));
    }
}

static void g3__simd_geglu(g3__run *r, float *y, const float *gu, int m, int n)
{
    if (g3__cpu_failed(r)) return;
    g3__job j = g3__cpu_job(r, y, gu, n, m);
    g3__simd_split(&j, g3__simd_gelu_units, n * ((m + 255) / 256), 8.0 * n * m);
}

static void g3__simd_gelu(g3__run *r, float *y, int m, int n) { g3__simd_geglu(r, y, NULL, m, n); }

// ---- a screened head

typedef struct g3__screening { const g3__simd *v; const g3__mat *head; g3__screen *s; int next; } g3__screening;

// Columns [k, k + n) of one tile as float32: panel [n][64], the first quarter of each.
static void g3__simd_columns(const g3__simd *v, const g3__bits *w, int row, int cols, int k, int n, float *panel)
{
    float scale[G3__PANEL_COLS / 32 * G3__PANEL_ROWS];
    g3__simd_panel(v, w, row, G3__TILE_ROWS, cols, k, n, panel, scale);
    for (int i = 0; g3__is_4bit(w->format) && i < n; i++)
        for (int r = 0; r < G3__TILE_ROWS; r++) panel[i * G3__PANEL_ROWS + r] *= scale[i / (int)w->blocksize * G3__PANEL_ROWS + r];
}

// scale = largest |w| / 127, code = w / scale to the nearest, and in squares what that took away and what there was.
static void g3__screen_tile(const g3__screening *c, int row)
{
    const int cols = c->head->cols;
    const g3__bits *w = &c->head->seg[0].bits;
    float panel[G3__PANEL_COLS * G3__PANEL_ROWS], most[G3__TILE_ROWS] = { 0 }, lost[G3__TILE_ROWS] = { 0 }, norm[G3__TILE_ROWS] = { 0 };
    int8_t *code = c->s->codes + (size_t)row * (size_t)cols;
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < cols; k += G3__PANEL_COLS) {
            const int n = G3__MIN(cols - k, G3__PANEL_COLS);
            g3__simd_columns(c->v, w, row, cols, k, n, panel);
            c->v->quantise(panel, n, pass ? code + (size_t)k * G3__TILE_ROWS : NULL, most, lost, norm);
        }
    const float slack = 6e-8f * (float)(G3__DENSE_BLOCK + cols / 32 + cols + 8);  // the roundings of the exact sum and of the screen's, relative to |w| |x|
    for (int r = 0; r < G3__TILE_ROWS; r++) {
        c->s->scale[row + r] = most[r] / 127;
        c->s->bound[row + r] = (sqrtf(lost[r]) + slack * sqrtf(norm[r])) * 1.002f;
    }
}

static void g3__screen_body(void *ctx, int i)
{
    g3__screening *c = (g3__screening *)ctx;
    (void)i;
    for (int row; (row = g3__atomic_add(&c->next, 16 * G3__TILE_ROWS)) < c->s->rows; )
        for (int end = G3__MIN(row + 16 * G3__TILE_ROWS, c->s->rows); row < end; row += G3__TILE_ROWS) g3__screen_tile(c, row);
}

static void g3__screen_make(const g3__simd *v, g3__pool *pool, const g3__mat *head, g3__screen *s)
{
    g3__screening c;
    c.v = v;
    c.head = head;
    c.s = s;
    c.next = 0;
    g3__pool_for(pool, g3__pool_width(pool), g3__screen_body, &c);
}

// Units: 64 rows. Per tile the most that its best row can be, per unit the least that its best row is.
static void g3__simd_sieve(const g3__job *j, int first, int end, int piece)
{
    const g3__screen *s = j->screen;
    const int cols = j->W->cols, tiles = s->rows / G3__TILE_ROWS;
    (void)piece;
    for (int u = first; u < end; u++) {
        const int at = 4 * u, n = G3__MIN(4, tiles - at), drawn = G3__MIN(j->m - at * G3__TILE_ROWS, n * G3__TILE_ROWS);
        const int8_t *code[4];
        float about[64];
        for (int t = 0; t < 4; t++) code[t] = s->codes + (size_t)(at + G3__MIN(t, n - 1)) * G3__TILE_ROWS * (size_t)cols;
        j->r->simd->sieve(code, cols, j->x, about);
        float *most = j->r->a.sieve + at, least = -HUGE_VALF;
        for (int t = 0; t < n; t++) most[t] = -HUGE_VALF;
        for (int r = 0; r < n * G3__TILE_ROWS; r++) {
            const int row = at * G3__TILE_ROWS + r;
            const float y = about[r] * s->scale[row], b = s->bound[row] * j->norm_x;
            j->y[row] = -HUGE_VALF;
            if (r >= drawn) continue;                                             // a row that is never drawn is nobody's rival
            if (!(y + b <= most[r / G3__TILE_ROWS])) most[r / G3__TILE_ROWS] = y + b;
            least = G3__MAX(least, y - b);
        }
        j->r->a.sieve[tiles + u] = least;
    }
}

// Units: four of the tiles that were left, whose numbers follow the sieve.
static void g3__simd_exact(const g3__job *j, int first, int end, int piece)
{
    const g3__bits *w = &j->W->seg[0].bits;
    const int *left = (const int *)(const void *)(j->r->a.sieve + 2 * (j->screen->rows / G3__TILE_ROWS));
    (void)piece;
    for (int u = first; u < end; u++) {
        int row[4];
        float y[64] = { 0 };
        for (int t = 0; t < 4; t++) row[t] = left[G3__MIN(4 * u + t, j->n - 1)] * G3__TILE_ROWS;
        g3__simd_dots(j->r->simd, w, row, j->W->cols, j->x, y);
        for (int t = 0; t < 4; t++) memcpy(j->y + row[t], y + t * G3__TILE_ROWS, G3__TILE_ROWS * sizeof *y);
    }
}

// y[row] for at least the k largest of the first `drawn` rows, the very numbers of `linear`; -infinity for all that cannot be among them.
// The k-th largest of the units' least is no larger than the k-th largest logit: what stays below it is out.
static void g3__simd_screen(g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, const g3__screen *s, int drawn, int k)
{
    if (g3__cpu_failed(r)) return;
    const int tiles = s->rows / G3__TILE_ROWS, units = (tiles + 3) / 4;
    int *left = (int *)(void *)(r->a.sieve + 2 * tiles);
    if (norm) { g3__simd_norm(r, r->a.h, x, norm, 1); x = r->a.h; }
    g3__job j = g3__cpu_job(r, y, x, 0, drawn);
    j.W = W;
    j.screen = s;
    j.norm_x = (float)(sqrt(g3__cpu_squares(x, 0, W->cols)) * 1.000001);
    if (k > units || !(j.norm_x <= FLT_MAX)) { g3__simd_linear(r, y, x, NULL, W, 1); return; }
    g3__simd_split(&j, g3__simd_sieve, units, (double)s->rows * W->cols);
    const float edge = g3__kth_largest(r->a.sieve + tiles, units, k);
    for (int t = 0; t < tiles; t++) if (!(r->a.sieve[t] < edge)) left[j.n++] = t;
    g3__simd_split(&j, g3__simd_exact, (j.n + 3) / 4, 64.0 * j.n * W->cols);
}

// ---- attend
//
// Up to 128 queries that share a kv head meet 64 positions at a time, by two products like those of >>linear. Keys lie transposed, [head_dim][80]:
// scores [query][64] = queries times keys, the lanes are keys. Then out [query][head_dim] = weights [query][64] times values [64][head_dim],
// whose lanes are a head's numbers. So one query fills the vectors as well as 128 do. Softmax goes over blocks of 64 positions as in >>cpu; after
// 256 positions it begins afresh, and what came before is merged, in order: one query can be given to many threads, part by part, with the same bits.

typedef struct g3__looking {           // queries of one sequence and one kv head: `heads` of each of n rows
    const g3__simd *v;
    const g3__attn *att;
    const g3__kv *kv;
    const g3__row *rows;               // [n]
    const float *q;                    // of the first row and head; rows are q_ld apart, heads head_dim
    float *y;
    size_t q_ld, y_ld;
    int n, heads, kv_head, queries;    // queries: n * heads, row by row
    int low, high;                     // positions that any query sees,
    int all_low, all_high;             // that every query sees
    int wide;                          // head_dim in whole vectors
    float *keys, *values;              // [head_dim][80] of which 64, [64][wide]
    float *query, *score;              // [queries][head_dim], [queries][64]
    float *part, *whole;               // [queries][wide]
    float *top, *sum, *part_top, *part_sum, *fade;       // [queries]
} g3__looking;

static void g3__look_at(g3__looking *u, float *work)     // carves g3__work_each
{
    const size_t d = (size_t)u->att->head_dim, wide = (size_t)u->wide, n = G3__QUERIES;
    u->keys = work;
    u->values = u->keys + G3__KEYS_LD * d;
    u->query = u->values + G3__KEYS * wide;
    u->score = u->query + n * d;
    u->part = u->score + n * G3__KEYS;
    u->whole = u->part + n * wide;
    u->top = u->whole + n * wide;
    u->sum = u->top + n;
    u->part_top = u->sum + n;
    u->part_sum = u->part_top + n;
    u->fade = u->part_sum + n;
}

static void g3__look_begin(g3__looking *u, int n)
{
    const size_t head = (size_t)u->heads * (size_t)u->att->head_dim;
    u->n = n;
    u->queries = n * u->heads;
    u->low = u->all_high = INT_MAX;
    u->high = u->all_low = 0;
    for (int t = 0; t < n; t++) {
        const int low = g3__cpu_low(u->att, &u->rows[t]), high = u->rows[t].span;
        u->low = G3__MIN(u->low, low);
        u->all_low = G3__MAX(u->all_low, low);
        u->high = G3__MAX(u->high, high);
        u->all_high = G3__MIN(u->all_high, high);
        memcpy(u->query + (size_t)t * head, u->q + (size_t)t * u->q_ld, head * sizeof(float));
    }
}

static void g3__look_empty(const g3__looking *u, float *out, float *top, float *sum)
{
    memset(out, 0, (size_t)u->queries * (size_t)u->wide * sizeof *out);
    for (int i = 0; i < u->queries; i++) { top[i] = -1e30f; sum[i] = 0; }
}

// Keys of positions [first, end) as columns from `at` on. A ring may end in between.
static void g3__look_keys(const g3__looking *u, int first, int end, int at)
{
    const g3__kv *kv = u->kv;
    const size_t head = (size_t)u->kv_head * (size_t)kv->rows;
    const int row = first % kv->rows, before = G3__MIN(end - first, kv->rows - row);
    u->v->turn(kv, kv->k, kv->k_scale, head + (size_t)row, before, at, u->keys);
    if (before < end - first) u->v->turn(kv, kv->k, kv->k_scale, head, end - first - before, at + before, u->keys);
}

static void g3__look_values(const g3__looking *u, int first, int end)            // of positions [first, end), [wide] each
{
    const g3__kv *kv = u->kv;
    const size_t head = (size_t)u->kv_head * (size_t)kv->rows, wide = (size_t)u->wide;
    const int row = first % kv->rows, n = end - first, before = G3__MIN(n, kv->rows - row);
    u->v->widen(kv, kv->v, kv->v_scale, head + (size_t)row, before, u->values, wide);
    if (before < n) u->v->widen(kv, kv->v, kv->v_scale, head, n - before, u->values + (size_t)before * wide, wide);
}

// Scores of keys that a row may not see become -infinity. from and end count from the block; keys: the columns in use.
static void g3__look_mask(const g3__looking *u, int block, int from, int end, int keys)
{
    if (!from && end == keys && block >= u->all_low && block + end <= u->all_high + 1) return;
    for (int q = 0; q < u->queries; q++) {
        const g3__row *row = &u->rows[q / u->heads];
        const int low = G3__MAX(g3__cpu_low(u->att, row) - block, from), high = G3__MIN(row->span - block, end - 1);
        float *s = u->score + (size_t)q * G3__KEYS;
        for (int i = 0; i < G3__MIN(low, keys); i++) s[i] = -HUGE_VALF;
        for (int i = G3__MAX(high + 1, 0); i < keys; i++) s[i] = -HUGE_VALF;
    }
}

// score [queries][64] = scale * q K^T, 128 numbers of a head at a time, so that their keys stay in the first cache
static void g3__look_score(const g3__looking *u, int keys)
{
    const int d = u->att->head_dim;
    float scale[G3__KEYS], zero[G3__KEYS] = { 0 };
    g3__product g = G3__ZERO;
    for (int i = 0; i < G3__KEYS; i++) scale[i] = u->att->scale;
    g.scale = scale; g.from = zero; g.y = u->score; g.panel_ld = G3__KEYS_LD; g.y_row = G3__KEYS; g.lanes = keys;
    g.x_row = (size_t)d; g.x_col = 1; g.n = u->queries;
    for (int k = 0; k < d; k += g.k) {
        g.k = G3__MIN(d - k, G3__PANEL_COLS);
        g.panel = u->keys + (size_t)k * G3__KEYS_LD;
        g.x = u->query + k;
        u->v->product(&g);
        g.from = g.y; g.from_row = g.y_row;
    }
}

// part [queries][wide] += weights [queries][64] V
static void g3__look_gather(const g3__looking *u, int from, int end)
{
    const int used = (int)g3__round_up((uint64_t)u->att->head_dim, 16);
    float one[G3__PANEL_ROWS];
    g3__product g = G3__ZERO;
    for (int i = 0; i < G3__PANEL_ROWS; i++) one[i] = 1.0f;
    g.x = u->score + from; g.x_row = G3__KEYS; g.x_col = 1; g.n = u->queries; g.k = end - from;
    g.panel_ld = g.y_row = g.from_row = (size_t)u->wide; g.scale = one;
    for (int c = 0; c < used; c += g.lanes) {
        g.lanes = G3__MIN(used - c, G3__PANEL_ROWS);
        g.panel = u->values + c;
        g.y = u->part + c;
        g.from = g.y;
        u->v->product(&g);
    }
}

// One block: the positions [first, end) of it that anybody sees.
static void g3__look_block(const g3__looking *u, int block, int first, int end)
{
    const int from = first - block, stop = end - block, keys = (int)g3__round_up((uint64_t)stop, G3__TILE_ROWS);
    g3__look_keys(u, first, end, from);
    g3__look_score(u, keys);
    g3__look_mask(u, block, from, stop, keys);
    u->v->soften(u->score, u->queries, keys, u->part_top, u->part_sum, u->fade);
    for (int q = 0; q < u->queries; q++) if (u->fade[q] != 1.0f) u->v->fade(u->part + (size_t)q * (size_t)u->wide, u->fade[q], u->wide);
    g3__look_values(u, first, end);
    g3__look_gather(u, from, stop);
}

static void g3__look_part(const g3__looking *u, int part)        // of 256 positions, into part, part_top and part_sum
{
    const int low = G3__MAX(u->low, part), high = G3__MIN(u->high, part + G3__PART - 1);
    g3__look_empty(u, u->part, u->part_top, u->part_sum);
    for (int block = low / G3__KEYS * G3__KEYS; block <= high; block += G3__KEYS)
        g3__look_block(u, block, G3__MAX(block, low), G3__MIN(block + G3__KEYS - 1, high) + 1);
}

static void g3__look_merge(const g3__looking *u)         // whole += part
{
    u->v->merge(u->whole, u->top, u->sum, u->part, u->part_top, u->part_sum, u->queries, u->wide);
}

static void g3__look_end(const g3__looking *u)           // y = out / sum
{
    const int d = u->att->head_dim;
    for (int q = 0; q < u->queries; q++) {
        const float *out = u->whole + (size_t)q * (size_t)u->wide;
        float *y = u->y + (size_t)(q / u->heads) * u->y_ld + (size_t)(q % u->heads) * (size_t)d;
        for (int k = 0; k < d; k++) y[k] = out[k] / u->sum[q];
    }
}

// Rows from t on, heads from `head` on: what they are and where their work is done.
static g3__looking g3__simd_look(const g3__job *j, int t, int head, float *work)
{
    const g3__attn *a = j->att;
    const size_t d = (size_t)a->head_dim;
    g3__looking u = G3__ZERO;
    u.v = j->r->simd;
    u.att = a;
    u.heads = j->m;
    u.kv_head = head / (a->heads / a->kv_heads);
    u.rows = j->rows + t;
    u.kv = &j->kv[u.rows->seq];
    u.q_ld = (size_t)(a->heads + 2 * a->kv_heads) * d;
    u.y_ld = (size_t)a->heads * d;
    u.q = j->x + (size_t)t * u.q_ld + (size_t)head * d;
    u.y = j->y + (size_t)t * u.y_ld + (size_t)head * d;
    u.wide = (int)g3__lanes_of(d);
    g3__look_at(&u, work);
    return u;
}

// Units: (row group, head group). Later rows see more, so the last rows come first. `piece` is the body's own slice of work.
static void g3__simd_attend_units(const g3__job *j, int first, int end, int piece)
{
    const int columns = j->att->heads / j->m, group = G3__QUERIES / j->m, groups = (j->n + group - 1) / group;
    float *work = j->r->a.work + (size_t)piece * g3__work_each(&j->r->shape);
    for (int unit = first; unit < end; unit++) {
        const int t0 = (groups - 1 - unit / columns) * group, stop = G3__MIN(t0 + group, j->n);
        for (int t = t0, n; t < stop; t += n) {
            g3__looking u = g3__simd_look(j, t, unit % columns * j->m, work);
            for (n = 1; t + n < stop && j->rows[t + n].seq == j->rows[t].seq;) n++;
            g3__look_begin(&u, n);
            g3__look_empty(&u, u.whole, u.top, u.sum);
            for (int part = u.low / G3__PART * G3__PART; part <= u.high; part += G3__PART) { g3__look_part(&u, part); g3__look_merge(&u); }
            g3__look_end(&u);
        }
    }
}

// One row, many positions: units are (part, head group); results wait in parts [part][heads][head_dim + 2].
static void g3__simd_attend_parts(const g3__job *j, int first, int end, int piece)
{
    const int columns = j->att->heads / j->m, d = j->att->head_dim, from = g3__cpu_low(j->att, j->rows) / G3__PART;
    float *work = j->r->a.work + (size_t)piece * g3__work_each(&j->r->shape);
    for (int unit = first; unit < end; unit++) {
        const int head = unit % columns * j->m;
        g3__looking u = g3__simd_look(j, 0, head, work);
        g3__look_begin(&u, 1);
        g3__look_part(&u, (from + unit / columns) * G3__PART);
        for (int h = 0; h < j->m; h++) {
            float *o = j->r->a.parts + ((size_t)(unit / columns) * (size_t)j->att->heads + (size_t)(head + h)) * (size_t)(d + 2);
            memcpy(o, u.part + (size_t)h * (size_t)u.wide, (size_t)d * sizeof *o);
            o[d] = u.part_top[h];
            o[d + 1] = u.part_sum[h];
        }
    }
}

static void g3__simd_attend_merge(const g3__job *j, int parts)
{
    const int d = j->att->head_dim;
    for (int head = 0; head < j->att->heads; head += j->m) {
        g3__looking u = g3__simd_look(j, 0, head, j->r->a.work);
        g3__look_begin(&u, 1);
        g3__look_empty(&u, u.whole, u.top, u.sum);
        g3__look_empty(&u, u.part, u.part_top, u.part_sum);
        for (int p = 0; p < parts; p++) {
            for (int h = 0; h < j->m; h++) {
                const float *o = j->r->a.parts + ((size_t)p * (size_t)j->att->heads + (size_t)(head + h)) * (size_t)(d + 2);
                memcpy(u.part + (size_t)h * (size_t)u.wide, o, (size_t)d * sizeof *o);
                u.part_top[h] = o[d];
                u.part_sum[h] = o[d + 1];
            }
            g3__look_merge(&u);
        }
        g3__look_end(&u);
    }
}

static int g3__simd_heads(const g3__attn *a)             // heads that are looked at together: all that share a kv head, or a divisor of them
{
    int heads = a->heads / a->kv_heads;
    while (heads > G3__QUERIES || (a->heads / a->kv_heads) % heads) heads--;
    return heads;
}

static void g3__simd_attend(g3__run *r, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n)
{
    if (g3__cpu_failed(r)) return;
    const int heads = g3__simd_heads(a), columns = a->heads / heads, group = G3__QUERIES / heads;
    g3__job j = g3__cpu_job(r, y, qkv, n, heads);
    double keys = 0;
    for (int t = 0; t < n; t++) keys += rows[t].span - g3__cpu_low(a, &rows[t]) + 1;
    keys *= 2.0 * a->heads * a->head_dim;
    j.att = a; j.kv = kv; j.rows = rows;
    const int parts = rows->span / G3__PART - g3__cpu_low(a, rows) / G3__PART + 1;
    if (n > 1 || parts == 1 || !r->shape.context || columns >= 2 * r->shape.width) { g3__simd_split(&j, g3__simd_attend_units, (n + group - 1) / group * columns, keys); return; }
    g3__simd_split(&j, g3__simd_attend_parts, parts * columns, keys);
    g3__simd_attend_merge(&j, parts);
}

// ---- AVX-512 (F, BW, VL, DQ): a vector is the sixteen lanes

#ifdef G3__SIMD_X86
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"   // g++ 12 warns of its own avx512fintrin.h,
#pragma GCC diagnostic ignored "-Wsign-conversion"       // and where intrinsics are macros, gcc -O0 of those
#endif
#define G3__AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))

#define G3__NIBBLE_512(q, shift, table) _mm512_permutexvar_ps(_mm512_srli_epi32(q, shift), table)     // a look-up sees the low four bits of its index

G3__AVX512 static inline __m512 g3__scale_avx512(const g3__scales *s, g3__nested *now, int block)
{
    if (!s->map) return _mm512_loadu_ps((const float *)s->absmax + (size_t)block * 16);
    if (now->left-- == 0) {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), size = _mm512_set1_epi32((1 << s->shift) - 1);
        const __m512i number = _mm512_add_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32(s->per_row)), _mm512_set1_epi32(s->first + block));
        _mm512_storeu_ps(now->scale, _mm512_i32gather_ps(_mm512_srl_epi32(number, _mm_cvtsi32_si128(s->shift)), s->nested, 4));
        now->left = (int)_mm512_reduce_min_epu32(_mm512_sub_epi32(size, _mm512_and_si512(number, size)));
    }
    const __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)((const char *)s->absmax + (size_t)block * 16)));
    __m512 v = _mm512_mul_ps(_mm512_i32gather_ps(code, s->map, 4), _mm512_loadu_ps(now->scale));
    G3__ROUNDED(v);
    return _mm512_add_ps(v, _mm512_set1_ps(s->offset));
}

// y[4][16] += scale * sum of codes * x over the blocks of four tiles. A dword of a row holds columns 1, 0, 3, 2, 5, 4, 7, 6
// from the low bits up, and a look-up sees only the low four bits of its index: a load one byte on brings the next pair without a
// shift. The last one reaches three bytes beyond the codes; in the arena their scales lie there.
G3__AVX512 static void g3__dots_4bit_avx512(const g3__dots *d, float *y)
{
    const __m512 table = _mm512_loadu_ps(d->table);
    const char *p = d->tile[0];
    const ptrdiff_t p1 = d->tile[1] - p, p2 = d->tile[2] - p, p3 = d->tile[3] - p;
    const float *x = d->x;
    g3__nested now[4];
    __m512 y0 = _mm512_loadu_ps(y), y1 = _mm512_loadu_ps(y + 16), y2 = _mm512_loadu_ps(y + 32), y3 = _mm512_loadu_ps(y + 48);
    now[0].left = now[1].left = now[2].left = now[3].left = 0;
    for (int b = 0; b < d->blocks; b++) {
        const size_t soon = G3__AHEAD + ((size_t)(p - d->tile[0]) + G3__AHEAD < d->size ? 0 : d->jump);
        const __m512 s0 = g3__scale_avx512(&d->scales[0], &now[0], b), s1 = g3__scale_avx512(&d->scales[1], &now[1], b);
        const __m512 s2 = g3__scale_avx512(&d->scales[2], &now[2], b), s3 = g3__scale_avx512(&d->scales[3], &now[3], b);
        __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
        for (int i = 0; i < d->block; i += 8, p += 64, x += 8) {
            _mm_prefetch(p + soon, _MM_HINT_T0); _mm_prefetch(p + p1 + soon, _MM_HINT_T0);
            _mm_prefetch(p + p2 + soon, _MM_HINT_T0); _mm_prefetch(p + p3 + soon, _MM_HINT_T0);
            G3__UNROLL for (int byte = 0; byte < 4; byte++) {
                const __m512i q0 = _mm512_loadu_si512(p + byte), q1 = _mm512_loadu_si512(p + p1 + byte);
                const __m512i q2 = _mm512_loadu_si512(p + p2 + byte), q3 = _mm512_loadu_si512(p + p3 + byte);
                const __m512 u = _mm512_set1_ps(x[2 * byte]), v = _mm512_set1_ps(x[2 * byte + 1]);
                a0 = _mm512_fmadd_ps(G3__NIBBLE_512(q0, 4, table), u, a0);
                a1 = _mm512_fmadd_ps(G3__NIBBLE_512(q1, 4, table), u, a1);
                a2 = _mm512_fmadd_ps(G3__NIBBLE_512(q2, 4, table), u, a2);
                a3 = _mm512_fmadd_ps(G3__NIBBLE_512(q3, 4, table), u, a3);
                a0 = _mm512_fmadd_ps(_mm512_permutexvar_ps(q0, table), v, a0);
                a1 = _mm512_fmadd_ps(_mm512_permutexvar_ps(q1, table), v, a1);
                a2 = _mm512_fmadd_ps(_mm512_permutexvar_ps(q2, table), v, a2);
                a3 = _mm512_fmadd_ps(_mm512_permutexvar_ps(q3, table), v, a3);
            }
        }
        y0 = _mm512_fmadd_ps(a0, s0, y0);
        y1 = _mm512_fmadd_ps(a1, s1, y1);
        y2 = _mm512_fmadd_ps(a2, s2, y2);
        y3 = _mm512_fmadd_ps(a3, s3, y3);
    }
    _mm512_storeu_ps(y, y0); _mm512_storeu_ps(y + 16, y1); _mm512_storeu_ps(y + 32, y2); _mm512_storeu_ps(y + 48, y3);
}

// The same for bf16: a dword holds columns 0 (low half) and 1.
G3__AVX512 static void g3__dots_bf16_avx512(const g3__dots *d, float *y)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    const char *p = d->tile[0];
    const ptrdiff_t p1 = d->tile[1] - p, p2 = d->tile[2] - p, p3 = d->tile[3] - p;
    __m512 y0 = _mm512_loadu_ps(y), y1 = _mm512_loadu_ps(y + 16), y2 = _mm512_loadu_ps(y + 32), y3 = _mm512_loadu_ps(y + 48);
    const float *x = d->x;
    for (int b = 0; b < d->blocks; b++) {
        const size_t soon = G3__AHEAD + ((size_t)(p - d->tile[0]) + G3__AHEAD < d->size ? 0 : d->jump);
        const int n = b == d->blocks - 1 ? d->last : d->block;
        __m512 a0 = _mm512_setzero_ps(), a1 = a0, a2 = a0, a3 = a0;
        for (int i = 0; i < n; i += 2, p += 64, x += 2) {
            const __m512i q0 = _mm512_loadu_si512(p), q1 = _mm512_loadu_si512(p + p1), q2 = _mm512_loadu_si512(p + p2), q3 = _mm512_loadu_si512(p + p3);
            const __m512 u = _mm512_set1_ps(x[0]), v = _mm512_set1_ps(x[1]);
            _mm_prefetch(p + soon, _MM_HINT_T0); _mm_prefetch(p + p1 + soon, _MM_HINT_T0);
            _mm_prefetch(p + p2 + soon, _MM_HINT_T0); _mm_prefetch(p + p3 + soon, _MM_HINT_T0);
            a0 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(q0, 16)), u, a0);
            a1 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(q1, 16)), u, a1);
            a2 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(q2, 16)), u, a2);
            a3 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(q3, 16)), u, a3);
            a0 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(q0, high)), v, a0);
            a1 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(q1, high)), v, a1);
            a2 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(q2, high)), v, a2);
            a3 = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(q3, high)), v, a3);
        }
        y0 = _mm512_add_ps(y0, a0); y1 = _mm512_add_ps(y1, a1); y2 = _mm512_add_ps(y2, a2); y3 = _mm512_add_ps(y3, a3);
    }
    _mm512_storeu_ps(y, y0); _mm512_storeu_ps(y + 16, y1); _mm512_storeu_ps(y + 32, y2); _mm512_storeu_ps(y + 48, y3);
}

G3__AVX512 static void g3__scales_avx512(const g3__scales *s, int first, int n, float *scale)
{
    g3__nested now;
    now.left = 0;
    for (int b = first; b < first + n; b++, scale += G3__PANEL_ROWS) _mm512_storeu_ps(scale, g3__scale_avx512(s, &now, b));
}

// One tile's columns as float32, codes without their scale: panel[k][64] for n columns, n a multiple of 8.
G3__AVX512 static void g3__panel_4bit_avx512(const char *p, const float *code, int n, float *panel)
{
    const __m512 table = _mm512_loadu_ps(code);
    for (int k = 0; k < n; k += 8, p += 64, panel += 8 * G3__PANEL_ROWS) {
        const __m512i q = _mm512_loadu_si512(p);
        _mm512_storeu_ps(panel + 0 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 4, table));
        _mm512_storeu_ps(panel + 1 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 0, table));
        _mm512_storeu_ps(panel + 2 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 12, table));
        _mm512_storeu_ps(panel + 3 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 8, table));
        _mm512_storeu_ps(panel + 4 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 20, table));
        _mm512_storeu_ps(panel + 5 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 16, table));
        _mm512_storeu_ps(panel + 6 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 28, table));
        _mm512_storeu_ps(panel + 7 * G3__PANEL_ROWS, G3__NIBBLE_512(q, 24, table));
    }
}

G3__AVX512 static void g3__panel_half_avx512(const char *p, bool bf16, int n, float *panel)     // bf16 or f16
{
    for (int k = 0; k < n; k += 2, p += 64, panel += 2 * G3__PANEL_ROWS) {
        const __m512i q = _mm512_loadu_si512(p);
        if (bf16) {
            _mm512_storeu_ps(panel, _mm512_castsi512_ps(_mm512_slli_epi32(q, 16)));
            _mm512_storeu_ps(panel + G3__PANEL_ROWS, _mm512_castsi512_ps(_mm512_and_si512(q, _mm512_set1_epi32((int)0xffff0000))));
        } else {
            _mm512_storeu_ps(panel, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(q)));
            _mm512_storeu_ps(panel + G3__PANEL_ROWS, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(q, 16))));
        }
    }
}

// y[t][16 V] = from + scale * sum over k of panel[k][16 V] * x(t, k) for N rows of x: V N sums in registers. Six rows times 64 lanes
// take ten loads for 24 multiply-adds, twelve rows times 32 lanes fourteen.
#define G3__TILE_AVX512(N, V)                                                                                               \
G3__AVX512 static void g3__tile##N##x##V##_avx512(const g3__product *g, const float *w, const float *scale, const float *x, const float *from, float *y) \
{                                                                                                                           \
    __m512 sum[V][N], s[V];                                                                                                 \
    const size_t ld = g->panel_ld, row = g->x_row, col = g->x_col, y_row = g->y_row, from_row = g->from_row;                \
    G3__UNROLL for (int t = 0; t < N; t++) G3__UNROLL for (int v = 0; v < V; v++) sum[v][t] = _mm512_setzero_ps();          \
    for (int k = 0; k < g->k; k++, w += ld, x += col) {                                                                     \
        __m512 p[V];                                                                                                        \
        G3__UNROLL for (int v = 0; v < V; v++) p[v] = _mm512_loadu_ps(w + 16 * v);                                          \
        G3__UNROLL for (int t = 0; t < N; t++) {                                                                            \
            const __m512 u = _mm512_set1_ps(x[(size_t)t * row]);                                                            \
            G3__UNROLL for (int v = 0; v < V; v++) sum[v][t] = _mm512_fmadd_ps(p[v], u, sum[v][t]);                         \
        }                                                                                                                   \
    }                                                                                                                       \
    G3__UNROLL for (int v = 0; v < V; v++) s[v] = _mm512_loadu_ps(scale + 16 * v);                                          \
    G3__UNROLL for (int t = 0; t < N; t++, y += y_row, from += from_row) G3__UNROLL for (int v = 0; v < V; v++)             \
        _mm512_storeu_ps(y + 16 * v, _mm512_fmadd_ps(sum[v][t], s[v], _mm512_loadu_ps(from + 16 * v)));                     \
}
G3__TILE_AVX512(6, 4)
G3__TILE_AVX512(4, 4)
G3__TILE_AVX512(2, 4)
G3__TILE_AVX512(1, 4)
G3__TILE_AVX512(12, 2)
G3__TILE_AVX512(4, 2)
G3__TILE_AVX512(1, 2)
G3__TILE_AVX512(12, 1)
G3__TILE_AVX512(4, 1)
G3__TILE_AVX512(1, 1)

G3__AVX512 static void g3__product_avx512(const g3__product *g)
{
    for (int lane = 0, n; lane < g->lanes; lane += n) {
        const float *x = g->x, *from = g->from + lane;
        float *y = g->y + lane;
        int t = 0;
        n = g->lanes - lane < 32 ? 16 : g->lanes - lane < 64 ? 32 : 64;
        if (n == 64)      { G3__ROWS(g3__tile6x4_avx512, 6);   G3__ROWS(g3__tile4x4_avx512, 4); G3__ROWS(g3__tile2x4_avx512, 2); G3__ROWS(g3__tile1x4_avx512, 1); }
        else if (n == 32) { G3__ROWS(g3__tile12x2_avx512, 12); G3__ROWS(g3__tile4x2_avx512, 4); G3__ROWS(g3__tile1x2_avx512, 1); }
        else              { G3__ROWS(g3__tile12x1_avx512, 12); G3__ROWS(g3__tile4x1_avx512, 4); G3__ROWS(g3__tile1x1_avx512, 1); }
    }
}

G3__AVX512 static void g3__sieve_avx512(const int8_t *const code[4], int n, const float *x, float *y)
{
    __m512 a[4];
    G3__UNROLL for (int t = 0; t < 4; t++) a[t] = _mm512_setzero_ps();
    for (int k = 0; k < n; k++) {
        const __m512 v = _mm512_set1_ps(x[k]);
        const size_t soon = g3__sieve_ahead(k, n);
        G3__UNROLL for (int t = 0; t < 4; t++) {
            const int8_t *c = code[t] + (size_t)k * 16;
            if (k % 4 == 0) _mm_prefetch((const char *)c + soon, _MM_HINT_T0);
            a[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)c))), v, a[t]);
        }
    }
    for (int t = 0; t < 4; t++) _mm512_storeu_ps(y + 16 * t, a[t]);
}

G3__LANE_FUNCTIONS(avx512, G3__AVX512)

// e^x = 2^n e^r with |r| <= ln 2 / 2; e^r by its series; 0 below -87, where float32 ends; NaN stays.
G3__AVX512 static inline __m512 g3__exp_avx512(__m512 x)
{
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f), _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x)), one = _mm512_set1_ps(1.0f);
    __m512 p = _mm512_fmadd_ps(r, _mm512_set1_ps(1.0f / 5040), _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(_mm512_fmadd_ps(p, r, one), r, one);
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ), p, n);
}

// As g3__soften_rows, by sixteen keys.
G3__AVX512 static void g3__soften_avx512(float *score, int n, int keys, float *top, float *sum, float *fade)
{
    for (int q = 0; q < n; q++) {
        const float *s = score + q * G3__KEYS;
        __m512 most = _mm512_loadu_ps(s);
        for (int i = 16; i < keys; i += 16) most = _mm512_max_ps(most, _mm512_loadu_ps(s + i));
        const float m = _mm512_reduce_max_ps(most), old = top[q];
        top[q] = m > old ? m : old;
        fade[q] = old - top[q];
    }
    for (int q = 0; q < n; q += 16) _mm512_storeu_ps(fade + q, g3__exp_avx512(_mm512_loadu_ps(fade + q)));
    for (int q = 0; q < n; q++) {
        float *s = score + q * G3__KEYS;
        const __m512 most = _mm512_set1_ps(top[q]);
        __m512 total = _mm512_setzero_ps();
        for (int i = 0; i < keys; i += 16) {
            const __m512 e = g3__exp_avx512(_mm512_sub_ps(_mm512_loadu_ps(s + i), most));
            _mm512_storeu_ps(s + i, e);
            total = _mm512_add_ps(total, e);
        }
        sum[q] = sum[q] * fade[q] + _mm512_reduce_add_ps(total);
    }
}

static bool g3__here_avx512(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");       // and with AVX2 always F16C
}

// ---- AVX2 and FMA: two vectors are the sixteen lanes

#define G3__AVX2 __attribute__((target("avx2,fma,f16c")))

typedef struct g3__pair256 { __m256 low, high; } g3__pair256;

// Sixteen values of a code are two tables of eight; bit 3 of the code, moved to the sign, chooses between them.
G3__AVX2 static inline __m256 g3__look_avx2(__m256i q, int shift, __m256 small, __m256 large)
{
    const __m256i code = _mm256_srli_epi32(q, shift);
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(small, code), _mm256_permutevar8x32_ps(large, code), _mm256_castsi256_ps(_mm256_slli_epi32(q, 28 - shift)));
}

G3__AVX2 static inline __m256 g3__scale_half_avx2(const g3__scales *s, const g3__nested *now, size_t at, int half)
{
    const __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)((const char *)s->absmax + at)));
    __m256 v = _mm256_mul_ps(_mm256_i32gather_ps(s->map, code, 4), _mm256_loadu_ps(now->scale + half));
    G3__ROUNDED(v);
    return _mm256_add_ps(v, _mm256_set1_ps(s->offset));
}

G3__AVX2 static inline g3__pair256 g3__scale_avx2(const g3__scales *s, g3__nested *now, int block)
{
    const size_t at = (size_t)block * 16;
    g3__pair256 v;
    if (s->map && now->left-- == 0) g3__nested_turn(now, s, block);
    v.low  = s->map ? g3__scale_half_avx2(s, now, at, 0)     : _mm256_loadu_ps((const float *)s->absmax + at);
    v.high = s->map ? g3__scale_half_avx2(s, now, at + 8, 8) : _mm256_loadu_ps((const float *)s->absmax + at + 8);
    return v;
}

// One tile after another: two chains of additions are as quick here as the look-ups are.
G3__AVX2 static void g3__dots_4bit_avx2(const g3__dots *d, float *y)
{
    const __m256 small = _mm256_loadu_ps(d->table), large = _mm256_loadu_ps(d->table + 8);
    for (int t = 0; t < 4; t++, y += 16) {
        const char *p = d->tile[t];
        const float *x = d->x;
        __m256 y0 = _mm256_loadu_ps(y), y1 = _mm256_loadu_ps(y + 8);
        g3__nested now;
        now.left = 0;
        for (int b = 0; b < d->blocks; b++) {
            const g3__pair256 scale = g3__scale_avx2(&d->scales[t], &now, b);
            __m256 a0 = _mm256_setzero_ps(), a1 = a0;
            for (int i = 0; i < d->block; i += 8, p += 64, x += 8) {
                const __m256i q0 = _mm256_loadu_si256((const __m256i *)(const void *)p), q1 = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
                _mm_prefetch(p + 2048, _MM_HINT_T0);
                G3__UNROLL for (int k = 0; k < 8; k++) {                         // columns 1, 0, 3, 2, 5, 4, 7, 6 from the low bits up
                    const __m256 v = _mm256_set1_ps(x[k]);
                    a0 = _mm256_fmadd_ps(g3__look_avx2(q0, 4 * (k ^ 1), small, large), v, a0);
                    a1 = _mm256_fmadd_ps(g3__look_avx2(q1, 4 * (k ^ 1), small, large), v, a1);
                }
            }
            y0 = _mm256_fmadd_ps(a0, scale.low, y0);
            y1 = _mm256_fmadd_ps(a1, scale.high, y1);
        }
        _mm256_storeu_ps(y, y0); _mm256_storeu_ps(y + 8, y1);
    }
}

G3__AVX2 static void g3__dots_bf16_avx2(const g3__dots *d, float *y)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    for (int t = 0; t < 4; t++, y += 16) {
        const char *p = d->tile[t];
        const float *x = d->x;
        __m256 y0 = _mm256_loadu_ps(y), y1 = _mm256_loadu_ps(y + 8);
        for (int b = 0; b < d->blocks; b++) {
            const int n = b == d->blocks - 1 ? d->last : d->block;
            __m256 a0 = _mm256_setzero_ps(), a1 = a0;
            for (int i = 0; i < n; i += 2, p += 64, x += 2) {
                const __m256i q0 = _mm256_loadu_si256((const __m256i *)(const void *)p), q1 = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
                const __m256 u = _mm256_set1_ps(x[0]), v = _mm256_set1_ps(x[1]);
                _mm_prefetch(p + 2048, _MM_HINT_T0);
                a0 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(q0, 16)), u, a0);
                a1 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(q1, 16)), u, a1);
                a0 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(q0, high)), v, a0);
                a1 = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(q1, high)), v, a1);
            }
            y0 = _mm256_add_ps(y0, a0);
            y1 = _mm256_add_ps(y1, a1);
        }
        _mm256_storeu_ps(y, y0); _mm256_storeu_ps(y + 8, y1);
    }
}

G3__AVX2 static void g3__scales_avx2(const g3__scales *s, int first, int n, float *scale)
{
    g3__nested now;
    now.left = 0;
    for (int b = first; b < first + n; b++, scale += G3__PANEL_ROWS) {
        const g3__pair256 v = g3__scale_avx2(s, &now, b);
        _mm256_storeu_ps(scale, v.low); _mm256_storeu_ps(scale + 8, v.high);
    }
}

G3__AVX2 static void g3__panel_4bit_avx2(const char *p, const float *code, int n, float *panel)
{
    const __m256 small = _mm256_loadu_ps(code), large = _mm256_loadu_ps(code + 8);
    for (int i = 0; i < n; i += 8, p += 64, panel += 8 * G3__PANEL_ROWS) {
        const __m256i q0 = _mm256_loadu_si256((const __m256i *)(const void *)p), q1 = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32));
        G3__UNROLL for (int k = 0; k < 8; k++) {
            _mm256_storeu_ps(panel + k * G3__PANEL_ROWS, g3__look_avx2(q0, 4 * (k ^ 1), small, large));
            _mm256_storeu_ps(panel + k * G3__PANEL_ROWS + 8, g3__look_avx2(q1, 4 * (k ^ 1), small, large));
        }
    }
}

G3__AVX2 static inline __m256 g3__half_avx2(__m256i q, bool bf16, bool second)       // one of the two numbers in each dword
{
    if (bf16) return _mm256_castsi256_ps(second ? _mm256_and_si256(q, _mm256_set1_epi32((int)0xffff0000)) : _mm256_slli_epi32(q, 16));
    const __m256i h = second ? _mm256_srli_epi32(q, 16) : _mm256_and_si256(q, _mm256_set1_epi32(0xffff));
    return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

G3__AVX2 static void g3__panel_half_avx2(const char *p, bool bf16, int n, float *panel)
{
    for (int k = 0; k < n; k += 2, p += 64, panel += 2 * G3__PANEL_ROWS)
        for (int half = 0; half < 2; half++) {
            const __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * half));
            _mm256_storeu_ps(panel + 8 * half, g3__half_avx2(q, bf16, false));
            _mm256_storeu_ps(panel + G3__PANEL_ROWS + 8 * half, g3__half_avx2(q, bf16, true));
        }
}

// y[t][16] = from + scale * sum over k of panel[k][16] * x(t, k) for N rows of x: 2 N sums in registers.
#define G3__TILE_AVX2(N)                                                                                                    \
G3__AVX2 static void g3__tile##N##_avx2(const g3__product *g, const float *w, const float *scale, const float *x, const float *from, float *y) \
{                                                                                                                           \
    __m256 a[N], b[N];                                                                                                      \
    const size_t ld = g->panel_ld, row = g->x_row, col = g->x_col;                                                          \
    G3__UNROLL for (int t = 0; t < N; t++) a[t] = b[t] = _mm256_setzero_ps();                                               \
    for (int k = 0; k < g->k; k++, w += ld, x += col) {                                                                     \
        const __m256 p = _mm256_loadu_ps(w), q = _mm256_loadu_ps(w + 8);                                                    \
        G3__UNROLL for (int t = 0; t < N; t++) {                                                                            \
            const __m256 s = _mm256_set1_ps(x[(size_t)t * row]);                                                            \
            a[t] = _mm256_fmadd_ps(p, s, a[t]);                                                                             \
            b[t] = _mm256_fmadd_ps(q, s, b[t]);                                                                             \
        }                                                                                                                   \
    }                                                                                                                       \
    const __m256 u = _mm256_loadu_ps(scale), v = _mm256_loadu_ps(scale + 8);                                                \
    G3__UNROLL for (int t = 0; t < N; t++, from += g->from_row, y += g->y_row) {                                            \
        _mm256_storeu_ps(y, _mm256_fmadd_ps(a[t], u, _mm256_loadu_ps(from)));                                               \
        _mm256_storeu_ps(y + 8, _mm256_fmadd_ps(b[t], v, _mm256_loadu_ps(from + 8)));                                       \
    }                                                                                                                       \
}
G3__TILE_AVX2(6)
G3__TILE_AVX2(2)
G3__TILE_AVX2(1)

G3__AVX2 static void g3__product_avx2(const g3__product *g)
{
    for (int lane = 0; lane < g->lanes; lane += 16) {
        const float *x = g->x, *from = g->from + lane;
        float *y = g->y + lane;
        int t = 0;
        G3__ROWS(g3__tile6_avx2, 6);
        G3__ROWS(g3__tile2_avx2, 2);
        G3__ROWS(g3__tile1_avx2, 1);
    }
}

G3__AVX2 static void g3__sieve_avx2(const int8_t *const code[4], int n, const float *x, float *y)
{
    __m256 a[8];
    G3__UNROLL for (int t = 0; t < 8; t++) a[t] = _mm256_setzero_ps();
    for (int k = 0; k < n; k++) {
        const __m256 v = _mm256_set1_ps(x[k]);
        const size_t soon = g3__sieve_ahead(k, n);
        G3__UNROLL for (int t = 0; t < 8; t++) {
            const int8_t *c = code[t / 2] + (size_t)k * 16 + t % 2 * 8;
            if (k % 4 == 0 && t % 2 == 0) _mm_prefetch((const char *)c + soon, _MM_HINT_T0);
            a[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)c))), v, a[t]);
        }
    }
    for (int t = 0; t < 8; t++) _mm256_storeu_ps(y + 8 * t, a[t]);
}

G3__LANE_FUNCTIONS(avx2, G3__AVX2)
G3__SOFTEN(avx2, G3__AVX2)

static bool g3__here_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");       // and with AVX2 always F16C
}
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

// ---- NEON: four vectors are the sixteen lanes. Every ARM64 machine has it

#ifdef G3__SIMD_NEON

// A look-up goes by bytes: value n of a table of sixteen float32 lies in its bytes 4n .. 4n + 3.
static inline float32x4_t g3__look_neon(uint32x4_t q, int shift, uint8x16x4_t table)
{
    const uint32x4_t code = vandq_u32(vshlq_u32(q, vdupq_n_s32(-shift)), vdupq_n_u32(15));
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(vmlaq_n_u32(vdupq_n_u32(0x03020100), code, 0x04040404))));
}

static inline uint8x16x4_t g3__table_neon(const float table[16])
{
    uint8x16x4_t v;
    for (int i = 0; i < 4; i++) v.val[i] = vreinterpretq_u8_f32(vld1q_f32(table + 4 * i));
    return v;
}

static inline float32x4_t g3__half_neon(uint32x4_t q, bool bf16, bool second)    // one of the two numbers in each dword
{
    if (bf16) return vreinterpretq_f32_u32(second ? vandq_u32(q, vdupq_n_u32(0xffff0000)) : vshlq_n_u32(q, 16));
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(second ? vshrq_n_u32(q, 16) : q)));
}

static void g3__scale_neon(const g3__scales *s, g3__nested *now, int block, float *scale)
{
    const size_t at = (size_t)block * 16;
    if (!s->map) { memcpy(scale, (const float *)s->absmax + at, 16 * sizeof *scale); return; }
    if (now->left-- == 0) g3__nested_turn(now, s, block);
    for (int r = 0; r < 16; r++) scale[r] = s->map[((const uint8_t *)s->absmax)[at + (size_t)r]];
    for (int r = 0; r < 16; r += 4) {
        float32x4_t v = vmulq_f32(vld1q_f32(scale + r), vld1q_f32(now->scale + r));
        G3__ROUNDED(v);
        vst1q_f32(scale + r, vaddq_f32(v, vdupq_n_f32(s->offset)));
    }
}

static void g3__dots_4bit_neon(const g3__dots *d, float *y)
{
    const uint8x16x4_t table = g3__table_neon(d->table);
    for (int t = 0; t < 4; t++, y += 16) {
        const char *p = d->tile[t];
        const float *x = d->x;
        g3__nested now;
        now.left = 0;
        for (int b = 0; b < d->blocks; b++) {
            float32x4_t a[4];
            float scale[16];
            g3__scale_neon(&d->scales[t], &now, b, scale);
            for (int v = 0; v < 4; v++) a[v] = vdupq_n_f32(0);
            for (int i = 0; i < d->block; i += 8, p += 64, x += 8) {
                G3__PREFETCH(p + 1024);
                for (int v = 0; v < 4; v++) {
                    const uint32x4_t q = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * v));
                    G3__UNROLL for (int k = 0; k < 8; k++) a[v] = vfmaq_n_f32(a[v], g3__look_neon(q, 4 * (k ^ 1), table), x[k]);      // columns 1, 0, 3, 2, …
                }
            }
            for (int v = 0; v < 4; v++) vst1q_f32(y + 4 * v, vfmaq_f32(vld1q_f32(y + 4 * v), a[v], vld1q_f32(scale + 4 * v)));
        }
    }
}

static void g3__dots_bf16_neon(const g3__dots *d, float *y)
{
    for (int t = 0; t < 4; t++, y += 16) {
        const char *p = d->tile[t];
        const float *x = d->x;
        for (int b = 0; b < d->blocks; b++) {
            const int n = b == d->blocks - 1 ? d->last : d->block;
            float32x4_t a[4];
            for (int v = 0; v < 4; v++) a[v] = vdupq_n_f32(0);
            for (int i = 0; i < n; i += 2, p += 64, x += 2) {
                G3__PREFETCH(p + 1024);
                for (int v = 0; v < 4; v++) {
                    const uint32x4_t q = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * v));
                    a[v] = vfmaq_n_f32(a[v], g3__half_neon(q, true, false), x[0]);
                    a[v] = vfmaq_n_f32(a[v], g3__half_neon(q, true, true), x[1]);
                }
            }
            for (int v = 0; v < 4; v++) vst1q_f32(y + 4 * v, vaddq_f32(vld1q_f32(y + 4 * v), a[v]));
        }
    }
}

static void g3__scales_neon(const g3__scales *s, int first, int n, float *scale)
{
    g3__nested now;
    now.left = 0;
    for (int b = first; b < first + n; b++, scale += G3__PANEL_ROWS) g3__scale_neon(s, &now, b, scale);
}

static void g3__panel_4bit_neon(const char *p, const float *code, int n, float *panel)
{
    const uint8x16x4_t table = g3__table_neon(code);
    for (int i = 0; i < n; i += 8, p += 64, panel += 8 * G3__PANEL_ROWS)
        for (int v = 0; v < 4; v++) {
            const uint32x4_t q = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * v));
            G3__UNROLL for (int k = 0; k < 8; k++) vst1q_f32(panel + k * G3__PANEL_ROWS + 4 * v, g3__look_neon(q, 4 * (k ^ 1), table));
        }
}

static void g3__panel_half_neon(const char *p, bool bf16, int n, float *panel)
{
    for (int k = 0; k < n; k += 2, p += 64, panel += 2 * G3__PANEL_ROWS)
        for (int v = 0; v < 4; v++) {
            const uint32x4_t q = vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16 * v));
            vst1q_f32(panel + 4 * v, g3__half_neon(q, bf16, false));
            vst1q_f32(panel + G3__PANEL_ROWS + 4 * v, g3__half_neon(q, bf16, true));
        }
}

// y[t][16] = from + scale * sum over k of panel[k][16] * x(t, k) for N rows of x: 4 N sums in registers.
#define G3__TILE_NEON(N)                                                                                                    \
static void g3__tile##N##_neon(const g3__product *g, const float *w, const float *scale, const float *x, const float *from, float *y) \
{                                                                                                                           \
    float32x4_t sum[N][4];                                                                                                  \
    G3__UNROLL for (int t = 0; t < N; t++) G3__UNROLL for (int v = 0; v < 4; v++) sum[t][v] = vdupq_n_f32(0);               \
    for (int k = 0; k < g->k; k++, w += g->panel_ld, x += g->x_col) {                                                       \
        float32x4_t p[4];                                                                                                   \
        G3__UNROLL for (int v = 0; v < 4; v++) p[v] = vld1q_f32(w + 4 * v);                                                 \
        G3__UNROLL for (int t = 0; t < N; t++)                                                                              \
            G3__UNROLL for (int v = 0; v < 4; v++) sum[t][v] = vfmaq_n_f32(sum[t][v], p[v], x[(size_t)t * g->x_row]);       \
    }                                                                                                                       \
    G3__UNROLL for (int t = 0; t < N; t++, from += g->from_row, y += g->y_row)                                              \
        G3__UNROLL for (int v = 0; v < 4; v++) vst1q_f32(y + 4 * v, vfmaq_f32(vld1q_f32(from + 4 * v), sum[t][v], vld1q_f32(scale + 4 * v))); \
}
G3__TILE_NEON(6)
G3__TILE_NEON(2)
G3__TILE_NEON(1)

static void g3__product_neon(const g3__product *g)
{
    for (int lane = 0; lane < g->lanes; lane += 16) {
        const float *x = g->x, *from = g->from + lane;
        float *y = g->y + lane;
        int t = 0;
        G3__ROWS(g3__tile6_neon, 6);
        G3__ROWS(g3__tile2_neon, 2);
        G3__ROWS(g3__tile1_neon, 1);
    }
}

static void g3__sieve_neon(const int8_t *const code[4], int n, const float *x, float *y)
{
    float32x4_t a[4][4];
    for (int t = 0; t < 4; t++) for (int v = 0; v < 4; v++) a[t][v] = vdupq_n_f32(0);
    for (int k = 0; k < n; k++)
        G3__UNROLL for (int t = 0; t < 4; t++) {
            const int8x16_t c = vld1q_s8(code[t] + (size_t)k * 16);
            const int16x8_t low = vmovl_s8(vget_low_s8(c)), high = vmovl_s8(vget_high_s8(c));
            if (k % 4 == 0) G3__PREFETCH(code[t] + (size_t)k * 16 + g3__sieve_ahead(k, n));
            a[t][0] = vfmaq_n_f32(a[t][0], vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), x[k]);
            a[t][1] = vfmaq_n_f32(a[t][1], vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))), x[k]);
            a[t][2] = vfmaq_n_f32(a[t][2], vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), x[k]);
            a[t][3] = vfmaq_n_f32(a[t][3], vcvtq_f32_s32(vmovl_s16(vget_high_s16(high))), x[k]);
        }
    for (int t = 0; t < 4; t++) for (int v = 0; v < 4; v++) vst1q_f32(y + 16 * t + 4 * v, a[t][v]);
}

G3__LANE_FUNCTIONS(neon, )
G3__SOFTEN(neon, )

static bool g3__here_neon(void) { return true; }
#endif

// ---- the choice

static const g3__simd g3__simds[] = {                    // the best first
#ifdef G3__SIMD_X86
    G3__SIMD_TABLE(avx512),
    G3__SIMD_TABLE(avx2)
#else
    G3__SIMD_TABLE(neon)
#endif
};

static const g3__ops g3__simd_ops = {
    "cpu",
    g3__cpu_alloc, g3__cpu_release, g3__cpu_copy, g3__cpu_copy, g3__cpu_copy, g3__cpu_begin, g3__cpu_end,
    g3__cpu_embed, g3__simd_linear, g3__simd_norm, g3__cpu_rope, g3__simd_attend, g3__simd_add, g3__simd_geglu, g3__simd_gelu, g3__cpu_pool, g3__simd_screen
};
#endif

// The fastest loops that this machine can run, or those of that name ("c": none); NULL: the plain ones of >>cpu.
static const g3__simd *g3__simd_pick(const char *name)
{
#ifdef G3__SIMD
    for (int i = 0; i < G3__COUNT(g3__simds); i++)
        if (g3__simds[i].here() && (!name || !strcmp(name, g3__simds[i].name))) return &g3__simds[i];
#endif
    (void)name;
    return NULL;
}

static const g3__ops *g3__cpu_table(const g3__simd *v)
{
#ifdef G3__SIMD
    if (v) return &g3__simd_ops;
#endif
    (void)v;
    return &g3__cpu_ops;
}
// ------------------------------------------------------------------------------------------------------------------
// >>cuda
// Owns the card: the driver and NVRTC, found when a model asks for them; kernels compiled for what is there; the weights'
// way into its memory; and the table of operations as launches, which a step records, fuses and replays as one graph.

#ifndef GEMMA3_NO_CUDA

// ---- the driver, as far as it is used here. A test compares these prototypes with NVIDIA's own

#if defined(_WIN32)
#define G3__CUDA_CALL __stdcall
#else
#define G3__CUDA_CALL
#endif

typedef uint64_t g3__cu_ptr;           // CUdeviceptr. All other handles are pointers to what is never looked into

#define G3__DRIVER(X) \
    X(cuInit,                        (unsigned flags)) \
    X(cuDriverGetVersion,            (int *version)) \
    X(cuGetErrorName,                (int error, const char **name)) \
    X(cuGetErrorString,              (int error, const char **text)) \
    X(cuDeviceGetCount,              (int *n)) \
    X(cuDeviceGet,                   (int *device, int ordinal)) \
    X(cuDeviceGetName,               (char *name, int size, int device)) \
    X(cuDeviceGetAttribute,          (int *value, int attribute, int device)) \
    X(cuDevicePrimaryCtxRetain,      (void **context, int device)) \
    X(cuDevicePrimaryCtxRelease_v2,  (int device)) \
    X(cuCtxGetCurrent,               (void **context)) \
    X(cuCtxSetCurrent,               (void *context)) \
    X(cuCtxGetStreamPriorityRange,   (int *lowest, int *highest)) \
    X(cuMemGetInfo_v2,               (size_t *free_bytes, size_t *all)) \
    X(cuMemAlloc_v2,                 (g3__cu_ptr *p, size_t size)) \
    X(cuMemFree_v2,                  (g3__cu_ptr p)) \
    X(cuMemHostAlloc,                (void **p, size_t size, unsigned flags)) \
    X(cuMemFreeHost,                 (void *p)) \
    X(cuMemcpyHtoDAsync_v2,          (g3__cu_ptr dst, const void *src, size_t size, void *stream)) \
    X(cuMemcpyDtoHAsync_v2,          (void *dst, g3__cu_ptr src, size_t size, void *stream)) \
    X(cuMemcpyDtoDAsync_v2,          (g3__cu_ptr dst, g3__cu_ptr src, size_t size, void *stream)) \
    X(cuMemsetD8Async,               (g3__cu_ptr dst, unsigned char value, size_t n, void *stream)) \
    X(cuStreamCreateWithPriority,    (void **stream, unsigned flags, int priority)) \
    X(cuStreamDestroy_v2,            (void *stream)) \
    X(cuStreamSynchronize,           (void *stream)) \
    X(cuStreamBeginCapture_v2,       (void *stream, int mode)) \
    X(cuStreamEndCapture,            (void *stream, void **graph)) \
    X(cuEventCreate,                 (void **event, unsigned flags)) \
    X(cuEventRecord,                 (void *event, void *stream)) \
    X(cuEventSynchronize,            (void *event)) \
    X(cuEventDestroy_v2,             (void *event)) \
    X(cuModuleLoadDataEx,            (void **module, const void *image, unsigned n, int *options, void **values)) \
    X(cuModuleUnload,                (void *module)) \
    X(cuModuleGetFunction,           (void **kernel, void *module, const char *name)) \
    X(cuModuleGetGlobal_v2,          (g3__cu_ptr *p, size_t *size, void *module, const char *name)) \
    X(cuFuncSetAttribute,            (void *kernel, int attribute, int value)) \
    X(cuLaunchKernel,                (void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **args, void **extra)) \
    X(cuGraphInstantiateWithFlags,   (void **exec, void *graph, unsigned long long flags)) \
    X(cuGraphLaunch,                 (void *exec, void *stream)) \
    X(cuGraphExecDestroy,            (void *exec)) \
    X(cuGraphDestroy,                (void *graph))

#define G3__NVRTC(X) \
    X(nvrtcVersion,            (int *major, int *minor)) \
    X(nvrtcGetNumSupportedArchs, (int *n)) \
    X(nvrtcGetSupportedArchs,  (int *archs)) \
    X(nvrtcCreateProgram,      (void **program, const char *source, const char *name, int n, const char *const *headers, const char *const *names)) \
    X(nvrtcCompileProgram,     (void *program, int n, const char *const *options)) \
    X(nvrtcGetProgramLogSize,  (void *program, size_t *size)) \
    X(nvrtcGetProgramLog,      (void *program, char *text)) \
    X(nvrtcGetCUBINSize,       (void *program, size_t *size)) \
    X(nvrtcGetCUBIN,           (void *program, char *image)) \
    X(nvrtcGetPTXSize,         (void *program, size_t *size)) \
    X(nvrtcGetPTX,             (void *program, char *image)) \
    X(nvrtcDestroyProgram,     (void **program))

typedef const char *g3__nvrtc_words(int error);          // nvrtcGetErrorString, the one that answers with a text

static const char *const *g3__kernel_lines(void);        // >>kernels

enum {
    G3__CARD_KERNELS = 64, G3__CARD_MODULES = 16,
    G3__CARD_WORDS = 16, G3__CARD_OPTIONS = 320,         // options of one module, and their text
    G3__DRIVER_NEEDED = 12000, G3__CC_NEEDED = 80        // as cuDriverGetVersion says it; 10 * major + minor
};

struct g3__card {                      // one card, as one model uses it
#define G3__X(name, params) int (G3__CUDA_CALL *name) params;
    struct { void *lib; G3__DRIVER(G3__X) } cu;
    struct { void *lib; G3__NVRTC(G3__X) g3__nvrtc_words *words; } rtc;
#undef G3__X
    const g3_model_desc *desc;
    g3__heap *heap;                    // for what is needed only while opening and compiling
    int ordinal, device, cc, sms, driver;        // cc: 89 for compute capability 8.9
    int shared_most;                   // bytes of shared memory that a block may ask for
    int nvrtc;                         // its version, 130 for 13.0; 0: not opened
    char name[64];
    void *context, *stream;
    int dead;                          // the driver's first error that nothing survives, 0: none
    char died[200];                    // what was said then
    bool no_nvrtc, no_cache;           // looked for and not here; could not be written
    bool ptx;                          // this driver refuses CUBINs: PTX at once
    bool whole;                        // the one module came from a file that holds all kernels
    bool has_lock;
    g3__mutex lock;                    // guards the modules, the kernels and `died`: launches come from any thread
    struct { void *module; char options[G3__CARD_OPTIONS]; } module[G3__CARD_MODULES];
    int n_modules;
    struct { void *kernel; int shared; char name[64]; } kernel[G3__CARD_KERNELS];
    int n_kernels;
    float map[4][256];                 // g3k_maps
    int n_maps;
};

static void g3__card_log(const g3__card *c, g3_level level, const char *fmt, ...) G3__PRINTF(3, 4);
static void g3__card_log(const g3__card *c, g3_level level, const char *fmt, ...)
{
    char text[512];
    va_list args;
    if (!c->desc->logger.log_fn) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    g3__text_clean(text);
    c->desc->logger.log_fn(c->desc->logger.user, level, text);
}

// ---- errors of the driver

// Nothing in the context, nor in the process, answers otherwise after these. Source: the comments of CUresult in cuda.h.
static bool g3__card_fatal(int code)
{
    return code == 4 || code == 214 || code == 220 || code == 226                        // shutting down; ECC, NVLink, contained faults
        || code == 700 || code == 702 || code == 709 || code == 710                      // illegal address, timeout, context destroyed, assertion
        || (code >= 714 && code <= 719) || code == 721;                                  // stack, instruction, alignment, address space, pc, launch failed; tensor memory
}

static bool g3__card_alive(g3__card *c, g3_error *err)
{
    return !g3__atomic_get(&c->dead) || g3__fail(err, G3_ERR_DEVICE, "the card's context died earlier: %s", c->died) == G3_OK;
}

static void g3__card_die(g3__card *c, int code, const char *words)       // the first one counts
{
    g3__mutex_lock(&c->lock);
    if (!c->dead) {
        snprintf(c->died, sizeof c->died, "%s", words);
        g3__atomic_set(&c->dead, code);
    }
    g3__mutex_unlock(&c->lock);
}

static bool g3__card_ok(g3__card *c, int code, const char *call, g3_error *err)        // true: the call succeeded
{
    const char *name = NULL, *text = NULL;
    char words[200];
    if (code <= 0) return !code;
    if (c->cu.cuGetErrorName(code, &name)) name = NULL;
    if (c->cu.cuGetErrorString(code, &text)) text = NULL;
    snprintf(words, sizeof words, "%s answered %d (%s: %s)", call, code, name ? name : "?", text ? text : "?");
    if (!g3__card_fatal(code)) return g3__fail(err, code == 2 ? G3_ERR_VRAM : G3_ERR_DEVICE, "%s", words) == G3_OK;      // CUDA_ERROR_OUT_OF_MEMORY
    if (!g3__card_alive(c, err)) return false;
    g3__card_die(c, code, words);
    return g3__fail(err, G3_ERR_DEVICE, "%s; the card's context has died of it: close its sessions and its model", words) == G3_OK;
}
#define G3__CARD(c, err, call, args) g3__card_ok(c, g3__card_alive(c, err) ? (c)->cu.call args : -1, #call, err)         // -1: told already

static bool g3__nvrtc_ok(g3__card *c, int code, const char *call, g3_error *err)
{
    return !code || g3__fail(err, code == 1 ? G3_ERR_MEMORY : G3_ERR_DEVICE, "%s answered %d (%s)", call, code, c->rtc.words(code)) == G3_OK;      // NVRTC_ERROR_OUT_OF_MEMORY
}
#define G3__RTC(c, err, call, args) g3__nvrtc_ok(c, (c)->rtc.call args, #call, err)

// ---- the context: of the process, which others may use too. Whoever calls finds his own current again afterwards

static bool g3__card_enter(g3__card *c, void **before, g3_error *err)    // makes it this thread's; *before: the caller's, for leave. May be nested; cheap where it is current
{
    *before = NULL;
    return G3__CARD(c, err, cuCtxGetCurrent, (before)) && (*before == c->context || G3__CARD(c, err, cuCtxSetCurrent, (c->context)));
}

static void g3__card_leave(g3__card *c, void *before) { if (before != c->context) c->cu.cuCtxSetCurrent(before); }

// A card is opened by one thread and closed by one; that one compiles. All calls enter for themselves but g3__card_launch, which wants to be quick.
static void g3__card_close(g3__card *c);                                 // what was taken on it has been given back. Works after an error, and on a dead context
static bool g3__card_open(g3__card *c, const g3_model_desc *desc, g3__heap *heap, g3_error *err);        // false: nothing is left to close

// Compiles (or finds in the cache) the kernels under these options, "-DNAME=VALUE" parted by blanks; the same options again cost nothing.
static bool g3__card_module(g3__card *c, const char *options, g3_error *err);

// ---- launches

static void *g3__kernel_known(g3__card *c, const char *name, int shared, int *modules)
{
    void *kernel = NULL;
    g3__mutex_lock(&c->lock);
    *modules = c->n_modules;
    for (int i = 0; i < c->n_kernels && !kernel; i++)
        if (!strcmp(c->kernel[i].name, name) && shared <= c->kernel[i].shared) kernel = c->kernel[i].kernel;
    g3__mutex_unlock(&c->lock);
    return kernel;
}

static void g3__kernel_keep(g3__card *c, const char *name, int shared, void *kernel)
{
    g3__mutex_lock(&c->lock);
    if (c->n_kernels < G3__CARD_KERNELS && strlen(name) < sizeof c->kernel[0].name) {
        snprintf(c->kernel[c->n_kernels].name, sizeof c->kernel[0].name, "%s", name);
        c->kernel[c->n_kernels].shared = shared;
        c->kernel[c->n_kernels++].kernel = kernel;
    }
    g3__mutex_unlock(&c->lock);
}

// A kernel of the modules by its name; NULL: err is set. shared: dynamic bytes that any launch of it may ask for.
static void *g3__card_kernel(g3__card *c, const char *name, int shared, g3_error *err)
{
    int modules, code = 500;                             // CUDA_ERROR_NOT_FOUND: not in this module, perhaps in the next
    void *kernel = g3__kernel_known(c, name, shared, &modules);
    if (kernel) return kernel;
    for (int i = 0; i < modules && code == 500; i++) code = c->cu.cuModuleGetFunction(&kernel, c->module[i].module, name);
    if (code == 500) g3__fail(err, G3_ERR_DEVICE, "%s has no kernel %s", c->desc->kernel_path ? c->desc->kernel_path : "gemma3_kernels.cuh, as it was compiled,", name);
    if (code == 500 || !g3__card_ok(c, code, "cuModuleGetFunction", err)) return NULL;
    if (shared > 48 * 1024 && !G3__CARD(c, err, cuFuncSetAttribute, (kernel, 8, shared))) return NULL;       // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    g3__kernel_keep(c, name, G3__MAX(shared, 48 * 1024), kernel);
    return kernel;
}

// One launch on the card's stream, between enter and leave. args: pointers to the arguments.
static bool g3__card_launch(g3__card *c, const char *name, unsigned gx, unsigned gy, unsigned threads, unsigned shared, void **args, g3_error *err)
{
    if (err->code || !g3__card_alive(c, err)) return false;
    void *kernel = g3__card_kernel(c, name, (int)shared, err);
    return kernel && G3__CARD(c, err, cuLaunchKernel, (kernel, gx, gy, 1, threads, 1, 1, shared, c->stream, args, NULL));
}

// ---- opening: libraries

enum { G3__PATH = 1024 };

// The first of the files that lies in root, or in one of the places below it, and can be opened; path: where it was.
static void *g3__open_below(g3__str root, const char *const *below, const char *const *files, char path[G3__PATH])
{
    for (; root.n && *below; below++)
        for (const char *const *f = files; *f; f++)
            if (snprintf(path, G3__PATH, "%.*s%s/%s", (int)G3__MIN(root.n, (size_t)G3__PATH), root.p, *below, *f) < G3__PATH) {
                void *lib = g3__library_open(path);
                if (lib) return lib;
            }
    return NULL;
}

static void *g3__open_listed(const char *dirs, const char *const *below, const char *const *files, char path[G3__PATH])  // dirs: as in desc.libraries
{
    void *lib = NULL;
    for (const char *p = dirs; p && *p && !lib; ) {
        const size_t n = strcspn(p, G3__PATH_LIST);
        lib = g3__open_below(g3__str_make(p, n), below, files, path);
        p += n + (p[n] != 0);
    }
    return lib;
}

static void *g3__open_known(const char *const *dirs, const char *const *below, const char *const *files, char path[G3__PATH])
{
    void *lib = NULL;
    for (; *dirs && !lib; dirs++) lib = g3__open_below(g3__str_c(*dirs), below, files, path);
    return lib;
}

static void *g3__open_usual(const char *const *files, char path[G3__PATH])     // wherever the system looks
{
    void *lib = NULL;
    for (; *files && !lib; files++) {
        snprintf(path, G3__PATH, "%s", *files);
        lib = g3__library_open(path);
    }
    return lib;
}

static void *g3__open_named(const char *variable, const char *const *below, const char *const *files, char path[G3__PATH])
{
    char root[G3__PATH];
    return g3__environment(variable, root, (int)sizeof root) ? g3__open_below(g3__str_c(root), below, files, path) : NULL;
}

static void *g3__open_beside_program(const char *const *below, const char *const *files, char path[G3__PATH])
{
    char program[G3__PATH];
    size_t n = g3__program_path(program, (int)sizeof program) ? strlen(program) : 0;
    while (n && program[n - 1] != '/' && program[n - 1] != '\\') n--;
    return n ? g3__open_below(g3__str_make(program, n - 1), below, files, path) : NULL;
}

static void *g3__open_toolkit(const char *const *below, const char *const *files, char path[G3__PATH])         // the newest that is installed
{
    void *lib = g3__open_known(g3__toolkit_dirs, below, files, path);
    for (int v = 139; v >= 120 && !lib; v--) {
        char root[128];
        snprintf(root, sizeof root, G3__TOOLKIT, v / 10, v % 10);
        lib = g3__open_below(g3__str_c(root), below, files, path);
    }
    return lib;
}

static bool g3__driver_old(const g3__card *c, const char *why, g3_error *err)
{
    return g3__fail(err, G3_ERR_DEVICE, "the CUDA driver is too old: it is of CUDA %d.%d%s%s, and 12.0 is needed, which is NVIDIA's driver 525 or a later one",
        c->driver / 1000, c->driver % 1000 / 10, why ? " and has no " : "", why ? why : "") == G3_OK;
}

static bool g3__card_driver(g3__card *c, g3_error *err)
{
    static const char *const here[] = { "", NULL };
    const char *missing = NULL;
    char path[G3__PATH];
    c->cu.lib = g3__open_listed(c->desc->libraries, here, g3__driver_files, path);
    if (!c->cu.lib) c->cu.lib = g3__open_usual(g3__driver_files, path);
    if (!c->cu.lib) c->cu.lib = g3__open_known(g3__driver_dirs, here, g3__driver_files, path);
    if (!c->cu.lib) return g3__fail(err, G3_ERR_DEVICE, "there is no CUDA driver here: %s could not be opened; it comes with NVIDIA's driver, and `libraries` may name its directory", g3__driver_files[0]) == G3_OK;
#define G3__X(name, params) if (!g3__library_symbol(c->cu.lib, #name, (void *)&c->cu.name)) missing = #name;
    G3__DRIVER(G3__X)
#undef G3__X
    if (c->cu.cuDriverGetVersion && c->cu.cuGetErrorName && c->cu.cuGetErrorString && !G3__CARD(c, err, cuDriverGetVersion, (&c->driver))) return false;
    if (missing || c->driver < G3__DRIVER_NEEDED) return g3__driver_old(c, missing, err);
    g3__card_log(c, G3_LOG_DEBUG, "CUDA driver: %s", path);
    return true;
}

// The compiler opens its builtins when it is first used, and not everywhere finds them beside itself: so they are opened before.
static void g3__nvrtc_builtins(const g3__card *c, const char *path)
{
    char file[64], builtins[G3__PATH];
    size_t n = strlen(path);
    while (n && path[n - 1] != '/' && path[n - 1] != '\\') n--;
    snprintf(file, sizeof file, G3__BUILTINS, c->nvrtc / 10, c->nvrtc % 10);
    if (n && snprintf(builtins, sizeof builtins, "%.*s%s", (int)n, path, file) < (int)sizeof builtins) (void)g3__library_open(builtins);
}

static void *g3__nvrtc_library(const g3__card *c, char path[G3__PATH])         // that of the driver's own generation is better: an older driver refuses what a newer compiler makes
{
    const int own = c->driver < 13000;
    const char *const files[] = { g3__nvrtc_files[own], g3__nvrtc_files[!own], NULL }, *const *below = g3__nvrtc_below;
    void *lib = g3__open_listed(c->desc->libraries, below, files, path);
    if (!lib) lib = g3__open_beside_program(below, files, path);
    if (!lib) lib = g3__open_named("CUDA_HOME", below, files, path);
    if (!lib) lib = g3__open_named("CUDA_PATH", below, files, path);
    if (!lib) lib = g3__open_usual(files, path);
    return lib ? lib : g3__open_toolkit(below, files, path);
}

static bool g3__nvrtc_none(const g3__card *c, g3_error *err)
{
    return g3__fail(err, G3_ERR_DEVICE, "there is no NVRTC here (%s or %s) that would compile the kernels for %s, compute capability %d.%d: install a CUDA toolkit, or "
        "`pip install nvidia-cuda-nvrtc` and name its site-packages in `libraries`; or let kernel_path be a .ptx, which `make ptx` writes on any machine; or cache_dir a cache filled elsewhere",
        g3__nvrtc_files[0], g3__nvrtc_files[1], c->name, c->cc / 10, c->cc % 10) == G3_OK;
}

static bool g3__card_nvrtc(g3__card *c, g3_error *err)   // opened when something must be compiled, once
{
    const char *missing = NULL;
    char path[G3__PATH];
    int major = 0, minor = 0;
    if (c->nvrtc) return true;
    if (!c->no_nvrtc && !c->rtc.lib) c->rtc.lib = g3__nvrtc_library(c, path);
    c->no_nvrtc = !c->rtc.lib;
    if (c->no_nvrtc) return g3__nvrtc_none(c, err);
#define G3__X(name, params) if (!g3__library_symbol(c->rtc.lib, #name, (void *)&c->rtc.name)) missing = #name;
    G3__NVRTC(G3__X)
#undef G3__X
    if (!g3__library_symbol(c->rtc.lib, "nvrtcGetErrorString", (void *)&c->rtc.words)) missing = "nvrtcGetErrorString";
    bool ok = missing ? g3__fail(err, G3_ERR_DEVICE, "%s is no NVRTC of CUDA 12.0 or later: it has no %s", path, missing) == G3_OK : G3__RTC(c, err, nvrtcVersion, (&major, &minor));
    if (!ok) { g3__library_close(c->rtc.lib); c->rtc.lib = NULL; return false; }
    c->nvrtc = 10 * major + minor;
    g3__nvrtc_builtins(c, path);
    g3__card_log(c, G3_LOG_DEBUG, "NVRTC %d.%d: %s", major, minor, path);
    return true;
}

// ---- opening: the card

static bool g3__card_find(g3__card *c, g3_error *err)
{
    int n = 0, code = c->cu.cuInit(0);
    if (!code && !G3__CARD(c, err, cuDeviceGetCount, (&n))) return false;
    if (code == 100 || (!code && n < 1)) return g3__fail(err, G3_ERR_DEVICE, "the CUDA driver is here, but it finds no card (CUDA_VISIBLE_DEVICES may hide it)") == G3_OK;    // CUDA_ERROR_NO_DEVICE
    if (!g3__card_ok(c, code, "cuInit", err)) return false;
    if (c->ordinal < 0 || c->ordinal >= n) return g3__fail(err, G3_ERR_ARGUMENT, "device: there is no card %d here; %d to %d can be asked for", c->ordinal, 0, n - 1) == G3_OK;
    return G3__CARD(c, err, cuDeviceGet, (&c->device, c->ordinal)) && G3__CARD(c, err, cuDeviceGetName, (c->name, (int)sizeof c->name - 1, c->device));
}

static bool g3__card_facts(g3__card *c, g3_error *err)
{
    int major = 0, minor = 0;
    if (!G3__CARD(c, err, cuDeviceGetAttribute, (&major, 75, c->device)) || !G3__CARD(c, err, cuDeviceGetAttribute, (&minor, 76, c->device))        // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR,
        || !G3__CARD(c, err, cuDeviceGetAttribute, (&c->sms, 16, c->device)) || !G3__CARD(c, err, cuDeviceGetAttribute, (&c->shared_most, 97, c->device))) return false;      // _MULTIPROCESSOR_COUNT, _MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    c->cc = 10 * major + minor;
    g3__text_clean(c->name);
    if (c->cc < G3__CC_NEEDED)
        return g3__fail(err, G3_ERR_DEVICE, "card %d, %s, is too old: it has compute capability %d.%d, and 8.0 is needed (GeForce RTX 30, A100 or later)", c->ordinal, c->name, major, minor) == G3_OK;
    g3__card_log(c, G3_LOG_INFO, "card %d: %s, compute capability %d.%d, %d multiprocessors, driver of CUDA %d.%d", c->ordinal, c->name, major, minor, c->sms, c->driver / 1000, c->driver % 1000 / 10);
    return true;
}

static bool g3__card_context(g3__card *c, g3_error *err)  // and the stream: of the lowest priority, so that a game's or a desktop's work goes first
{
    int low = 0, high = 0;
    void *before, *context = NULL;
    if (!G3__CARD(c, err, cuDevicePrimaryCtxRetain, (&context, c->device))) return false;
    c->context = context;
    if (!g3__card_enter(c, &before, err)) return false;
    bool ok = G3__CARD(c, err, cuCtxGetStreamPriorityRange, (&low, &high)) && G3__CARD(c, err, cuStreamCreateWithPriority, (&c->stream, 1, low));        // CU_STREAM_NON_BLOCKING
    g3__card_leave(c, before);
    return ok;
}

static bool g3__card_open(g3__card *c, const g3_model_desc *desc, g3__heap *heap, g3_error *err)
{
    memset(c, 0, sizeof *c);
    c->desc = desc;
    c->heap = heap;
    c->ordinal = desc->device;
    c->has_lock = g3__mutex_init(&c->lock);
    if (!c->has_lock) return g3__fail(err, G3_ERR_MEMORY, "the system gives no mutex") == G3_OK;
    bool ok = g3__card_driver(c, err) && g3__card_find(c, err) && g3__card_facts(c, err) && g3__card_context(c, err);
    if (!ok) g3__card_close(c);
    return ok;
}

// The libraries stay open, as they do in every program that was linked with them: threads of theirs may still run.
static void g3__card_close(g3__card *c)
{
    void *before = NULL;
    if (c->context) {
        if (!c->cu.cuCtxGetCurrent(&before) && before != c->context) c->cu.cuCtxSetCurrent(c->context);
        for (int i = 0; i < c->n_modules; i++) c->cu.cuModuleUnload(c->module[i].module);
        if (c->stream) c->cu.cuStreamDestroy_v2(c->stream);
        g3__card_leave(c, before);
        c->cu.cuDevicePrimaryCtxRelease_v2(c->device);
    }
    if (c->has_lock) g3__mutex_free(&c->lock);
    memset(c, 0, sizeof *c);
}

// ---- memory of the card, and memory of the host that it reads by itself

static uint64_t g3__card_free_bytes(g3__card *c)         // 0: unknown
{
    size_t room = 0, all = 0;
    void *before;
    if (!g3__card_enter(c, &before, NULL)) return 0;
    if (!G3__CARD(c, NULL, cuMemGetInfo_v2, (&room, &all))) room = 0;
    g3__card_leave(c, before);
    return room;
}

static bool g3__card_full(g3__card *c, uint64_t bytes, g3_error *err)
{
    size_t room = 0, all = 0;
    if (!G3__CARD(c, NULL, cuMemGetInfo_v2, (&room, &all))) return g3__card_alive(c, err) && g3__fail(err, G3_ERR_VRAM, "%s has no %llu bytes of memory left", c->name, (unsigned long long)bytes) == G3_OK;
    return g3__fail(err, G3_ERR_VRAM, "%s gives no %llu bytes of memory: %llu of its %llu are free", c->name, (unsigned long long)bytes, (unsigned long long)room, (unsigned long long)all) == G3_OK;
}

static void *g3__card_take(g3__card *c, uint64_t bytes, g3_error *err)           // NULL: err is set
{
    g3__cu_ptr p = 0;
    void *before;
    if (!g3__card_enter(c, &before, err)) return NULL;
    int code = bytes > SIZE_MAX ? 2 : c->cu.cuMemAlloc_v2(&p, (size_t)G3__MAX(bytes, (uint64_t)1));
    if (code == 2) g3__card_full(c, bytes, err);         // CUDA_ERROR_OUT_OF_MEMORY
    else g3__card_ok(c, code, "cuMemAlloc_v2", err);
    g3__card_leave(c, before);
    return code ? NULL : (void *)(uintptr_t)p;
}

static void g3__card_give(g3__card *c, void *p)
{
    void *before;
    if (!p || !g3__card_enter(c, &before, NULL)) return;  // a dead context: its memory goes with it
    G3__CARD(c, NULL, cuMemFree_v2, ((g3__cu_ptr)(uintptr_t)p));
    g3__card_leave(c, before);
}

static void *g3__card_pinned(g3__card *c, uint64_t bytes, g3_error *err)         // NULL: err is set
{
    void *p = NULL, *before;
    if (!g3__card_enter(c, &before, err)) return NULL;
    int code = bytes > SIZE_MAX ? 2 : c->cu.cuMemHostAlloc(&p, (size_t)G3__MAX(bytes, (uint64_t)1), 0);
    if (code == 2) g3__fail(err, G3_ERR_MEMORY, "the system gives no %llu bytes of pinned host memory, which the card's copies need", (unsigned long long)bytes);
    else g3__card_ok(c, code, "cuMemHostAlloc", err);
    g3__card_leave(c, before);
    return code ? NULL : p;
}

static void g3__card_pinned_give(g3__card *c, void *p)
{
    void *before;
    if (!p || !g3__card_enter(c, &before, NULL)) return;
    G3__CARD(c, NULL, cuMemFreeHost, (p));
    g3__card_leave(c, before);
}

static bool g3__card_sync(g3__card *c, g3_error *err)    // waits for all that was asked of the card; what went wrong there is told here
{
    void *before;
    if (!g3__card_enter(c, &before, err)) return false;
    bool ok = G3__CARD(c, err, cuStreamSynchronize, (c->stream));
    g3__card_leave(c, before);
    return ok;
}

static bool g3__card_up(g3__card *c, void *dst, const void *src, uint64_t bytes, g3_error *err)          // to the card, in the stream's turn: pinned src must live until a sync
{
    void *before;
    if (!bytes || !g3__card_enter(c, &before, err)) return !bytes;
    bool ok = G3__CARD(c, err, cuMemcpyHtoDAsync_v2, ((g3__cu_ptr)(uintptr_t)dst, src, (size_t)bytes, c->stream));
    g3__card_leave(c, before);
    return ok;
}

static bool g3__card_down(g3__card *c, void *dst, const void *src, uint64_t bytes, g3_error *err)        // from the card: dst holds it after a sync
{
    void *before;
    if (!bytes || !g3__card_enter(c, &before, err)) return !bytes;
    bool ok = G3__CARD(c, err, cuMemcpyDtoHAsync_v2, (dst, (g3__cu_ptr)(uintptr_t)src, (size_t)bytes, c->stream));
    g3__card_leave(c, before);
    return ok;
}

// ---- images: what the driver loads, CUBIN or PTX. In memory a head lies before it, which a file of the cache begins with

typedef struct g3__image_head {
    char magic[8];
    uint64_t key, size, sum;           // of source, name, options and card; of the image; its hash
    uint32_t nvrtc, cubin;             // the version that made it; 1: CUBIN, 0: PTX
    uint64_t zero[2], own;             // own: the hash of all above
} g3__image_head;
typedef char g3__head_has_no_holes[sizeof(g3__image_head) == 64 ? 1 : -1];

typedef struct g3__module_image { char *base, *p; uint64_t room, size; bool cubin; } g3__module_image;   // p: behind the head in base, a NUL after its end

static bool g3__image_take(g3__card *c, g3__module_image *m, uint64_t size, g3_error *err)
{
    m->size = size;
    m->room = sizeof(g3__image_head) + size + 1;
    m->base = (char *)g3__heap_take(c->heap, m->room, 1, err);
    if (!m->base) return false;
    m->p = m->base + sizeof(g3__image_head);
    m->p[size] = 0;
    return true;
}

static void g3__image_give(g3__card *c, g3__module_image *m)
{
    if (m->base) g3__heap_free(c->heap, m->base, m->room, 1);
    m->base = NULL;
}

static bool g3__image_load(g3__card *c, const g3__module_image *m, const char *options, g3_error *err)
{
    char log[512] = "";
    int keys[2] = { 5, 6 };                              // CU_JIT_ERROR_LOG_BUFFER, _SIZE_BYTES
    void *module = NULL, *values[2];
    values[0] = log;
    values[1] = (void *)(uintptr_t)(sizeof log - 1);
    if (!G3__CARD(c, err, cuModuleLoadDataEx, (&module, m->p, 2, keys, values))) {
        log[sizeof log - 1] = 0;
        log[strcspn(log, "\r\n")] = 0;
        const size_t n = err && *log ? strlen(err->text) : 0;
        if (n) { snprintf(err->text + n, sizeof err->text - n, ": %s", log); g3__text_clean(err->text); }
        return false;
    }
    g3__mutex_lock(&c->lock);
    snprintf(c->module[c->n_modules].options, sizeof c->module[0].options, "%s", options);
    c->module[c->n_modules++].module = module;
    g3__mutex_unlock(&c->lock);
    return true;
}

// ---- compiling

typedef struct g3__kernels {
    char *text;
    const char *name, *options;        // name: the file that errors point to
    uint64_t key;                      // what the cache knows this text under these options by, 0: not kept
} g3__kernels;

static char *g3__kernel_text(g3__heap *heap, uint64_t *size, g3_error *err)            // the embedded source, joined; the caller gives it back
{
    const char *const *line = g3__kernel_lines();
    uint64_t n = 1;
    for (int i = 0; line[i]; i++) n += strlen(line[i]);
    char *text = (char *)g3__heap_take(heap, n, 1, err), *p = text;
    for (int i = 0; text && line[i]; i++, p += strlen(p)) memcpy(p, line[i], strlen(line[i]) + 1);
    *size = n;
    return text;
}

// What the compiler can aim at: the card itself, or the newest older one that it knows, whose PTX the driver turns into the card's code.
static int g3__nvrtc_arch(g3__card *c, g3_error *err)
{
    int n = 0, best = 0, archs[128];
    if (!G3__RTC(c, err, nvrtcGetNumSupportedArchs, (&n))) return 0;
    if (n < 1 || n > G3__COUNT(archs)) { g3__fail(err, G3_ERR_DEVICE, "NVRTC %d.%d names %d architectures", c->nvrtc / 10, c->nvrtc % 10, n); return 0; }
    if (!G3__RTC(c, err, nvrtcGetSupportedArchs, (archs))) return 0;
    for (int i = 0; i < n; i++)
        if (archs[i] <= c->cc && archs[i] >= G3__CC_NEEDED) best = G3__MAX(best, archs[i]);
    if (!best) g3__fail(err, G3_ERR_DEVICE, "NVRTC %d.%d compiles for nothing that %s (compute capability %d.%d) runs: another version is needed", c->nvrtc / 10, c->nvrtc % 10, c->name, c->cc / 10, c->cc % 10);
    return best;
}

// "name(12): error: ..." becomes "name:12: error: ...", which editors jump to.
static void g3__log_line(char *out, size_t size, const char *line, size_t n, const char *name)
{
    const size_t k = strlen(name);
    const char *close = n > k && !strncmp(line, name, k) && line[k] == '(' ? (const char *)memchr(line + k, ')', n - k) : NULL;
    if (close) snprintf(out, size, "%s:%.*s%.*s", name, (int)(close - line - 1) - (int)k, line + k + 1, (int)(line + n - close) - 1, close + 1);
    else snprintf(out, size, "%.*s", (int)n, line);
}

static void g3__nvrtc_log_lines(g3__card *c, const char *log, const char *name, char first[400])         // all to the logger; first: of those that tell an error
{
    for (const char *p = log; *p; ) {
        const size_t n = strcspn(p, "\r\n");
        char line[400];
        g3__log_line(line, sizeof line, p, n, name);
        if (n) g3__card_log(c, G3_LOG_DEBUG, "NVRTC: %s", line);
        if (!*first && strstr(line, "error")) memcpy(first, line, sizeof line);
        p += n + (p[n] != 0);
    }
}

static void g3__nvrtc_log(g3__card *c, void *program, const char *name, char first[400], g3_error *err)
{
    size_t size = 0;
    *first = 0;
    if (!G3__RTC(c, err, nvrtcGetProgramLogSize, (program, &size))) return;
    char *log = (char *)g3__heap_alloc(c->heap, (uint64_t)size + 1, 1, err);
    if (log && G3__RTC(c, err, nvrtcGetProgramLog, (program, log))) g3__nvrtc_log_lines(c, log, name, first);
    g3__heap_free(c->heap, log, (uint64_t)size + 1, 1);
}

static bool g3__options_cut(char text[G3__CARD_OPTIONS], const char *options, const char **list, int *n, g3_error *err)
{
    const int most = *n + G3__CARD_WORDS;
    if (snprintf(text, G3__CARD_OPTIONS, "%s", options) >= G3__CARD_OPTIONS) return g3__fail(err, G3_ERR_ARGUMENT, "options of kernels: %.64s... is too long", options) == G3_OK;
    for (char *p = text; *p; ) {
        p += strspn(p, " ");
        if (*p && *n == most) return g3__fail(err, G3_ERR_ARGUMENT, "options of kernels: %.300s are more than %d", options, (int)G3__CARD_WORDS) == G3_OK;
        if (*p) list[(*n)++] = p;
        p += strcspn(p, " ");
        if (*p) *p++ = 0;
    }
    return true;
}

// A compiled program, for sm_89 (CUBIN and PTX) or compute_89 (PTX); NULL: err is set. Division and square root are those of IEEE, small numbers stay.
static void *g3__nvrtc_program(g3__card *c, const g3__kernels *k, const char *kind, int arch, g3_error *err)
{
    char target[48], words[G3__CARD_OPTIONS], first[400];
    const char *list[5 + G3__CARD_WORDS] = { target, "-lineinfo", "--ftz=false", "--prec-div=true", "--prec-sqrt=true" };
    void *program = NULL;
    int n = 5;
    snprintf(target, sizeof target, "--gpu-architecture=%s_%d", kind, arch);
    if (!g3__options_cut(words, k->options, list, &n, err) || !G3__RTC(c, err, nvrtcCreateProgram, (&program, k->text, k->name, 0, NULL, NULL))) return NULL;
    const double start = g3__clock();
    const int code = c->rtc.nvrtcCompileProgram(program, n, list);
    g3__nvrtc_log(c, program, k->name, first, code ? err : NULL);                    // what a program that compiled has to say may be lost
    if (!code) {
        g3__card_log(c, G3_LOG_INFO, "%s: compiled for %s_%d by NVRTC %d.%d in %.2f s (%s)", k->name, kind, arch, c->nvrtc / 10, c->nvrtc % 10, g3__clock() - start, *k->options ? k->options : "no options");
        return program;
    }
    if (*first) g3__fail(err, code == 1 ? G3_ERR_MEMORY : G3_ERR_DEVICE, "NVRTC %d.%d refuses the kernels: %s", c->nvrtc / 10, c->nvrtc % 10, first);
    g3__nvrtc_ok(c, code, "nvrtcCompileProgram", err);
    c->rtc.nvrtcDestroyProgram(&program);
    return NULL;
}

static bool g3__nvrtc_image(g3__card *c, void *program, bool cubin, g3__module_image *m, g3_error *err)
{
    size_t size = 0;
    memset(m, 0, sizeof *m);
    m->cubin = cubin;
    if (cubin ? !G3__RTC(c, err, nvrtcGetCUBINSize, (program, &size)) : !G3__RTC(c, err, nvrtcGetPTXSize, (program, &size))) return false;
    if (!size) return g3__fail(err, G3_ERR_DEVICE, "NVRTC gives no %s", cubin ? "CUBIN" : "PTX") == G3_OK;
    if (!g3__image_take(c, m, size, err)) return false;
    if (cubin ? G3__RTC(c, err, nvrtcGetCUBIN, (program, m->p)) : G3__RTC(c, err, nvrtcGetPTX, (program, m->p))) return true;
    g3__image_give(c, m);
    return false;
}

// ---- files: a kernel_path, and the cache. A cache's file is named after what was compiled and for which card, and after the version of NVRTC;
// its head says so too, and sums it up: one that is damaged, cut short or of something else is compiled anew

#ifdef GEMMA3_NO_STDIO
static bool g3__card_file(g3__card *c, const char *path, g3__module_image *m, g3_error *err)
{
    (void)c; (void)m;
    return g3__fail(err, G3_ERR_UNSUPPORTED, "kernel_path: %s: this build has no file system (GEMMA3_NO_STDIO), and only the embedded kernels", path) == G3_OK;
}
static bool g3__cache_load(g3__card *c, const g3__kernels *k) { (void)c; (void)k; return false; }
static void g3__cache_write(g3__card *c, const g3__kernels *k, g3__module_image *m)
{
    (void)k; (void)m;
    if (!c->no_cache && c->desc->cache_dir) g3__card_log(c, G3_LOG_WARN, "cache_dir: this build has no file system (GEMMA3_NO_STDIO): nothing is kept");
    c->no_cache = true;
}
#else
enum { G3__CARD_FILE = 64 << 20 };                       // no image nor source is larger

static bool g3__card_read(g3__card *c, void *file, const char *path, uint64_t size, uint64_t skip, g3__module_image *m, g3_error *err)         // skip: bytes of the head that come from the file
{
    if (size > G3__CARD_FILE || size <= skip) return g3__fail(err, G3_ERR_FORMAT, "%s: %llu bytes are %s kernels", path, (unsigned long long)size, size > G3__CARD_FILE ? "too many for" : "no") == G3_OK;
    if (!g3__image_take(c, m, size - skip, err)) return false;
    if (!g3__os_read(NULL, file, 0, m->p - skip, (size_t)size)) return true;
    g3__image_give(c, m);
    return g3__fail(err, G3_ERR_IO, "%s cannot be read", path) == G3_OK;
}

static bool g3__card_file(g3__card *c, const char *path, g3__module_image *m, g3_error *err)            // all of a kernel_path
{
    uint64_t size = 0;
    memset(m, 0, sizeof *m);
    void *file = g3__os_open_path(path, &size);
    if (!file) return g3__fail(err, G3_ERR_IO, "kernel_path: there is no readable file %s", path) == G3_OK;
    bool ok = g3__card_read(c, file, path, size, 0, m, err);
    g3__os_close(NULL, file);
    return ok;
}

static bool g3__cache_path(const g3__card *c, const g3__kernels *k, int nvrtc, char path[G3__PATH])
{
    return snprintf(path, G3__PATH, "%s/gemma3-%016llx-%d.kernels", c->desc->cache_dir, (unsigned long long)k->key, nvrtc) < G3__PATH;
}

static g3__image_head g3__cache_head(const g3__kernels *k, const g3__module_image *m, int nvrtc)
{
    g3__image_head h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "g3kcache", sizeof h.magic);
    h.key = k->key;
    h.size = m->size;
    h.sum = g3__hash(m->p, (size_t)m->size);
    h.nvrtc = (uint32_t)nvrtc;
    h.cubin = m->cubin;
    h.own = g3__hash(&h, offsetof(g3__image_head, own));
    return h;
}

static bool g3__cache_read(g3__card *c, const g3__kernels *k, int nvrtc, g3__module_image *m)
{
    uint64_t size = 0;
    char path[G3__PATH];
    g3_error why;
    g3__error_clear(&why);
    void *file = g3__cache_path(c, k, nvrtc, path) ? g3__os_open_path(path, &size) : NULL;
    memset(m, 0, sizeof *m);
    if (!file) return false;
    bool ok = g3__card_read(c, file, path, size, sizeof(g3__image_head), m, &why);
    g3__os_close(NULL, file);
    if (why.code == G3_ERR_MEMORY) return false;
    if (ok) {
        uint32_t cubin;
        memcpy(&cubin, m->base + offsetof(g3__image_head, cubin), sizeof cubin);
        m->cubin = cubin == 1;
        const g3__image_head want = g3__cache_head(k, m, nvrtc);
        ok = !memcmp(m->base, &want, sizeof want);
        if (!ok) g3__image_give(c, m);
    }
    if (!ok) g3__card_log(c, G3_LOG_INFO, "cache_dir: %s is damaged, or of something else: it is not used", path);
    return ok;
}

static bool g3__cache_one(g3__card *c, const g3__kernels *k, int nvrtc)
{
    g3__module_image m;
    if (!g3__cache_read(c, k, nvrtc, &m)) return false;
    bool ok = g3__image_load(c, &m, k->options, NULL);
    g3__card_log(c, ok ? G3_LOG_DEBUG : G3_LOG_INFO, "%s: %s of NVRTC %d.%d from the cache%s (%s)", k->name, m.cubin ? "CUBIN" : "PTX", nvrtc / 10, nvrtc % 10,
        ok ? "" : " is refused by the driver", *k->options ? k->options : "no options");
    g3__image_give(c, &m);
    return ok;
}

// What this NVRTC made before; where there is none, what any other made.
static bool g3__cache_load(g3__card *c, const g3__kernels *k)
{
    if (!c->desc->cache_dir || !k->key) return false;
    if (g3__card_nvrtc(c, NULL)) return g3__cache_one(c, k, c->nvrtc);
    for (int v = 199; v >= 120 && !c->dead; v--) if (g3__cache_one(c, k, v)) return true;
    return false;
}

static void g3__cache_write(g3__card *c, const g3__kernels *k, g3__module_image *m)
{
    char path[G3__PATH], part[G3__PATH + 64];
    if (!c->desc->cache_dir || !k->key || c->no_cache) return;
    const g3__image_head h = g3__cache_head(k, m, c->nvrtc);
    memcpy(m->base, &h, sizeof h);
    g3__os_mkdir(c->desc->cache_dir);
    bool ok = g3__cache_path(c, k, c->nvrtc, path);
    if (ok) {                                            // no two writers share a name
        snprintf(part, sizeof part, "%s.%lx-%llx-%llx.part", path, g3__os_process(), (unsigned long long)(uintptr_t)m, (unsigned long long)(1e9 * g3__clock()));
        ok = g3__os_replace(path, part, m->base, sizeof h + m->size);
    }
    if (!ok) g3__card_log(c, G3_LOG_WARN, "cache_dir: nothing can be written into %s: kernels are compiled every time", c->desc->cache_dir);
    c->no_cache = !ok;
}
#endif

// ---- modules

static bool g3__program_load(g3__card *c, void *program, bool cubin, const g3__kernels *k, g3_error *err)
{
    g3__module_image m;
    if (!g3__nvrtc_image(c, program, cubin, &m, err)) return false;
    bool ok = g3__image_load(c, &m, k->options, err);
    if (ok) g3__cache_write(c, k, &m);
    g3__image_give(c, &m);
    return ok;
}

static bool g3__card_cannot(const g3__card *c, const g3_error *why)      // another kind of image would fare no better
{
    return c->dead || why->code == G3_ERR_MEMORY || why->code == G3_ERR_VRAM;
}

static bool g3__card_refuses(g3__card *c, const g3_error *cubin, const g3_error *ptx, g3_error *err)
{
    return g3__fail(err, G3_ERR_DEVICE, "the driver of CUDA %d.%d refuses what NVRTC %d.%d compiles for %s: %.130s%s%.130s; a newer driver would do, or an NVRTC no newer than the driver", c->driver / 1000,
        c->driver % 1000 / 10, c->nvrtc / 10, c->nvrtc % 10, c->name, cubin->text, *cubin->text ? "; " : "", ptx->text) == G3_OK;
}

static bool g3__card_build(g3__card *c, const g3__kernels *k, g3_error *err)    // compiles for just this card; if the driver will not have that, as PTX
{
    g3_error cubin, ptx;
    const int arch = g3__nvrtc_arch(c, err);
    const bool exact = arch == c->cc && !c->ptx;
    void *program = arch ? g3__nvrtc_program(c, k, exact ? "sm" : "compute", arch, err) : NULL;
    if (!program) return false;
    g3__error_clear(&cubin);
    g3__error_clear(&ptx);
    bool ok = exact && g3__program_load(c, program, true, k, &cubin), stop = !ok && g3__card_cannot(c, &cubin);
    if (!ok && !stop) ok = g3__program_load(c, program, false, k, &ptx);
    c->rtc.nvrtcDestroyProgram(&program);
    if (ok && cubin.code) {
        c->ptx = true;
        g3__card_log(c, G3_LOG_INFO, "%s takes PTX, and no CUBIN: %s", c->name, cubin.text);
    }
    if (ok) return true;
    if (stop || g3__card_cannot(c, &ptx)) return g3__fail(err, stop ? cubin.code : ptx.code, "%s", stop ? cubin.text : ptx.text) == G3_OK;
    return g3__card_refuses(c, &cubin, &ptx, err);
}

// An ELF file of 64 bits whose tables lie within its size: a driver is not told the size, and believes them.
static bool g3__is_cubin(const char *p, uint64_t n)
{
    uint64_t at[2];
    uint16_t each[4];                                    // size and number of the program headers, then of the sections
    if (n < 64 || memcmp(p, "\177ELF\2", 5)) return false;
    memcpy(at, p + 32, sizeof at);
    memcpy(each, p + 54, sizeof each);
    for (int i = 0; i < 2; i++) if (at[i] > n || (uint64_t)each[2 * i] * each[2 * i + 1] > n - at[i]) return false;
    return true;
}

static bool g3__path_is_image(const char *path)
{
    return path && (g3__str_ends(g3__str_c(path), ".ptx") || g3__str_ends(g3__str_c(path), ".cubin"));
}

static bool g3__card_image(g3__card *c, g3_error *err)   // kernel_path is a .ptx or .cubin: one module, which has all
{
    const char *path = c->desc->kernel_path;
    g3__module_image m;
    g3_error why;
    if (!g3__card_file(c, path, &m, err)) return false;
    g3__error_clear(&why);
    m.cubin = g3__str_ends(g3__str_c(path), ".cubin");
    bool ok = m.cubin ? g3__is_cubin(m.p, m.size) : !memchr(m.p, 0, (size_t)m.size) && strstr(m.p, ".version");
    if (!ok) g3__fail(err, G3_ERR_FORMAT, "kernel_path: %s holds no %s", path, m.cubin ? "CUBIN" : "PTX");
    else ok = c->whole = g3__image_load(c, &m, "", &why);
    g3__image_give(c, &m);
    if (why.code) g3__fail(err, why.code, "kernel_path: %.150s does not load on %s (compute capability %d.%d): %.250s", path, c->name, c->cc / 10, c->cc % 10, why.text);
    if (ok) g3__card_log(c, G3_LOG_INFO, "kernels from %s", path);
    return ok;
}

// What decides about the code. A text that includes others is not known by itself.
static uint64_t g3__kernels_key(const g3__card *c, const g3__kernels *k)
{
    uint64_t part[4];
    if (c->desc->kernel_path && strstr(k->text, "#include")) return 0;
    part[0] = g3__hash(k->text, strlen(k->text));
    part[1] = g3__hash(k->name, strlen(k->name));
    part[2] = g3__hash(k->options, strlen(k->options));
    part[3] = (uint64_t)c->cc;
    return G3__MAX(g3__hash(part, sizeof part), (uint64_t)1);
}

static bool g3__card_kernels(g3__card *c, g3__kernels *k, g3_error *err)
{
    k->key = g3__kernels_key(c, k);
    return g3__cache_load(c, k) || (g3__card_alive(c, err) && g3__card_nvrtc(c, err) && g3__card_build(c, k, err));
}

static bool g3__card_source(g3__card *c, const char *options, g3_error *err)
{
    g3__kernels k;
    g3__module_image m;
    uint64_t size;
    bool ok = false;
    k.options = options;
    k.name = c->desc->kernel_path;
    if (k.name) {
        if (!g3__card_file(c, k.name, &m, err)) return false;
        k.text = m.p;
        ok = g3__card_kernels(c, &k, err);
        g3__image_give(c, &m);
        return ok;
    }
    k.name = "gemma3_kernels.cuh";
    k.text = g3__kernel_text(c->heap, &size, err);
    if (k.text) ok = g3__card_kernels(c, &k, err);
    g3__heap_free(c->heap, k.text, size, 1);
    return ok;
}

static bool g3__card_module(g3__card *c, const char *options, g3_error *err)
{
    void *before;
    if (c->whole) return true;
    for (int i = 0; i < c->n_modules; i++) if (!strcmp(c->module[i].options, options)) return true;
    if (strlen(options) >= G3__CARD_OPTIONS || c->n_modules == G3__CARD_MODULES)
        return g3__fail(err, G3_ERR_ARGUMENT, "options of kernels: %.64s: %s", options, c->n_modules == G3__CARD_MODULES ? "all modules are taken" : "too long") == G3_OK;
    if (!g3__card_enter(c, &before, err)) return false;
    bool ok = g3__path_is_image(c->desc->kernel_path) ? g3__card_image(c, err) : g3__card_source(c, options, err);
    g3__card_leave(c, before);
    return ok;
}

// Kernels take the header's own structs as arguments; gemma3_kernels.cuh asserts the same sizes.
typedef char g3__same_structs[sizeof(g3__bits) == 72 && sizeof(g3__mat) == 480 && sizeof(g3__norm) == 160 && sizeof(g3__attn) == 352 && sizeof(g3__kv) == 48 && sizeof(g3__row) == 12 ? 1 : -1];

// ---- operations as launches: one function each, which chooses kernel, grid and arguments from the shapes alone
// All pointers are the card's. Rows of one step belong to one sequence.

static unsigned g3__card_blocks(int n, int each) { return ((unsigned)n + (unsigned)each - 1) / (unsigned)each; }

// ---- norms, sums, gelu, pooling

static void g3__card_norm(g3__card *c, float *y, const float *x, const g3__norm *norm, int n, g3_error *err)
{
    void *args[3] = { &y, &x, (void *)(uintptr_t)norm };
    g3__card_launch(c, "g3k_norm", (unsigned)n, 1, 256, 0, args, err);
}

static void g3__card_add(g3__card *c, float *x, const float *y, const g3__norm *norm, int dim, int n, g3_error *err)
{
    g3__norm none = G3__ZERO;
    void *args[4] = { &x, &y, norm ? (void *)(uintptr_t)norm : &none, &dim };
    g3__card_launch(c, "g3k_add", (unsigned)n, 1, 256, 0, args, err);
}

static void g3__card_geglu(g3__card *c, float *y, const float *gu, int m, int n, g3_error *err)
{
    void *args[3] = { &y, &gu, &m };
    g3__card_launch(c, "g3k_geglu", g3__card_blocks(m, 256), (unsigned)n, 256, 0, args, err);
}

static void g3__card_gelu(g3__card *c, float *y, int m, int n, g3_error *err)
{
    void *args[2] = { &y, &m };
    g3__card_launch(c, "g3k_gelu", g3__card_blocks(m, 256), (unsigned)n, 256, 0, args, err);
}

static void g3__card_pool(g3__card *c, float *y, const float *x, int side, int k, int dim, g3_error *err)
{
    void *args[5] = { &y, &x, &side, &k, &dim };
    g3__card_launch(c, "g3k_pool", (unsigned)((side / k) * (side / k)), 1, 256, 0, args, err);
}

static void g3__card_angles(g3__card *c, float *angle, const float *freq, const g3__row *rows, int half, int n, g3_error *err)
{
    void *args[4] = { &angle, &freq, &rows, &half };
    g3__card_launch(c, "g3k_angles", (unsigned)n, 1, 64, 0, args, err);
}

// ---- linear

enum { G3__CARD_ROWS = 8, G3__CARD_MANY = 32 };          // rows of x that a block multiplies at once: of a step that writes, of a prompt

typedef struct g3__card_fuse {         // what is done with a product besides; all NULL: nothing
    float *act;                        // [n][rows / 2]   gelu(gate) * up goes there instead of y
    float *x;                          // [n][rows]       x += norm(y) afterwards, by the block that comes last; post NULL: x += y
    const g3__norm *post;
    unsigned *ticket;                  // 0 before and after
} g3__card_fuse;

typedef struct g3__card_fused { float *act, *x; unsigned *ticket; g3__norm post; } g3__card_fused;      // the same, as the kernel takes it: g3k__fuse

static bool g3__card_tiled(const g3__mat *W)             // all segments lie in tiles
{
    for (int i = 0; i < W->n_segs; i++) if (!W->seg[i].bits.tiled) return false;
    return !W->transposed;
}

static bool g3__card_can_fuse(const g3__mat *W, int n) { return n <= G3__CARD_ROWS && g3__card_tiled(W); }

static g3__card_fused g3__card_fused_of(const g3__card_fuse *fuse)
{
    g3__card_fused f = G3__ZERO;
    if (!fuse) return f;
    f.act = fuse->act;
    f.x = fuse->x;
    f.ticket = fuse->ticket;
    if (fuse->post) f.post = *fuse->post;
    return f;
}

// y [n][W->rows] = W norm(x) + b. h: room [n][W->cols] for norm(x), where the kernel does not take it itself.
static void g3__card_linear(g3__card *c, float *y, const float *x, const g3__norm *norm, const g3__mat *W, int n, float *h, const g3__card_fuse *fuse, g3_error *err)
{
    const int chunks = (W->cols + 63) / 64, splits = chunks >= 32 ? 4 : chunks >= 8 ? 2 : 1;           // warps that share the columns: by the shape alone
    const bool tiled = g3__card_tiled(W), many = n > G3__CARD_ROWS;
    g3__norm none = G3__ZERO;
    g3__card_fused f = g3__card_fused_of(fuse);
    if (norm && (norm->layer || !tiled)) { g3__card_norm(c, h, x, norm, n, err); x = h; norm = NULL; }
    if (!norm) norm = &none;
    if (tiled) {
        void *args[6] = { &y, &x, (void *)(uintptr_t)norm, (void *)(uintptr_t)W, &n, &f };
        g3__card_launch(c, many ? "g3k_linear_many" : "g3k_linear", g3__card_blocks(W->rows, 2 * G3__TILE_ROWS), g3__card_blocks(n, many ? G3__CARD_MANY : G3__CARD_ROWS), 64 * (unsigned)splits, 0, args, err);
    } else {
        void *args[4] = { &y, &x, (void *)(uintptr_t)W, &n };
        g3__card_launch(c, "g3k_linear_plain", g3__card_blocks(W->rows, 4), g3__card_blocks(n, 8), 128, 0, args, err);
    }
}

static void g3__card_embed(g3__card *c, float *y, const g3__mat *E, const int *ids, int n, float scale, g3_error *err)
{
    void *args[4] = { &y, (void *)(uintptr_t)E, &ids, &scale };
    g3__card_launch(c, "g3k_embed", (unsigned)n, 1, 256, 0, args, err);
}

// ---- attention

static const char *g3__card_kv_name(g3_kv kv) { return kv == G3_KV_F32 ? "f32" : kv == G3_KV_FP8 ? "fp8" : kv == G3_KV_INT8 ? "int8" : "bf16"; }

static int g3__card_group(int heads, int kv_heads)       // query heads that share a kv head, or a part of them: at most 8 are worked on at once
{
    const int group = heads / kv_heads;
    int set = G3__MIN(group, 8);
    while (group % set) set--;
    return set;
}

static bool g3__card_attention_module(g3__card *c, int heads, int kv_heads, int head_dim, g3_kv kv, g3_error *err)
{
    char options[80];
    snprintf(options, sizeof options, "-DG3K_HEAD_DIM=%d -DG3K_GROUP=%d -DG3K_KV=%d", head_dim, g3__card_group(heads, kv_heads), kv == G3_KV_F32 ? 0 : kv == G3_KV_FP8 ? 2 : kv == G3_KV_INT8 ? 3 : 1);
    return g3__card_module(c, options, err);
}

static unsigned g3__card_attend_name(char name[64], const char *what, const g3__attn *a, const g3__kv *kv)       // and how many threads a block has
{
    const int group = g3__card_group(a->heads, a->kv_heads);
    snprintf(name, 64, "g3k_%s_%dx%d_%s", what, a->head_dim, group, g3__card_kv_name(kv->format));
    return group * a->head_dim > 1024 ? 64 : 128;
}

static void g3__card_rope(g3__card *c, float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, const float *angle, int n, g3_error *err)
{
    char name[64];
    void *args[5] = { &qkv, (void *)(uintptr_t)a, (void *)(uintptr_t)kv, &rows, &angle };
    g3__card_attend_name(name, "rope", a, kv);
    g3__card_launch(c, name, (unsigned)(a->heads + 2 * a->kv_heads), (unsigned)n, 32, 0, args, err);
}

static void g3__card_attend(g3__card *c, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n, g3_error *err)
{
    char name[64];
    void *args[5] = { &y, &qkv, (void *)(uintptr_t)a, (void *)(uintptr_t)kv, &rows };
    const unsigned threads = g3__card_attend_name(name, "attend", a, kv);
    g3__card_launch(c, name, (unsigned)n, (unsigned)(a->heads / g3__card_group(a->heads, a->kv_heads)), threads, 0, args, err);
}

// Rope and attend of a single row. parts and tickets are scratch: [g3__parts][heads][head_dim + 2], and an unsigned per set of heads, 0 between launches.
static void g3__card_attend_one(g3__card *c, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, const float *angle, float *parts, unsigned *tickets, g3_error *err)
{
    char name[64];
    void *args[8] = { &y, &qkv, (void *)(uintptr_t)a, (void *)(uintptr_t)kv, &rows, &angle, &parts, &tickets };
    const unsigned threads = g3__card_attend_name(name, "attend_one", a, kv), most = (unsigned)kv->rows / G3__PART + 2;
    g3__card_launch(c, name, G3__MIN(most, 64u), (unsigned)(a->heads / g3__card_group(a->heads, a->kv_heads)), threads, 0, args, err);
}


// ---- tables of double quantisation. A checkpoint has one, or a few: they go into constant memory, where looking something up costs no traffic

static int g3__card_map(g3__card *c, const float map[256], g3_error *err)        // its number; -1: there are more than fit
{
    g3__cu_ptr there = 0;
    size_t size = 0;
    int i = 0;
    while (i < c->n_maps && memcmp(c->map[i], map, sizeof c->map[i])) i++;
    if (i < c->n_maps) return i;
    if (i == G3__COUNT(c->map)) return -1;
    memcpy(c->map[c->n_maps++], map, sizeof c->map[i]);
    for (int m = 0; m < c->n_modules; m++) {
        if (c->cu.cuModuleGetGlobal_v2(&there, &size, c->module[m].module, "g3k_maps")) continue;      // kernels of attention have none
        if (!g3__card_up(c, (void *)(uintptr_t)there, c->map, sizeof c->map, err) || !g3__card_sync(c, err)) return -1;
    }
    return i;
}

static bool g3__load_maps(g3_model *m, g3__place *place, g3_error *err)
{
    g3__card *c = m->card;
    float map[256];
    for (int i = 0; i < m->weights.n; i++) {
        place[i].map = -1;
        if (!place[i].nested_map) continue;
        if (!g3__card_down(c, map, place[i].nested_map, sizeof map, err) || !g3__card_sync(c, err)) return false;
        place[i].map = (signed char)g3__card_map(c, map, err);
        if (err->code) return false;
    }
    return true;
}

// ---- the weights' way to the card: rounds of reads into one half of a ring of pinned memory, while the other half is copied

enum { G3__SLOTS = 2 };                                  // chunks a reader has in a round

static bool g3__load_ring(g3__loading *l, g3__pool *pool, int readers, char *ring, void *const used[2], g3_error *err)
{
    g3__card *c = l->m->card;
    const int round = G3__SLOTS * readers;
    uint64_t done = 0;
    for (int from = 0, half = 0; from < l->n; from = l->end, half = !half) {
        if (!G3__CARD(c, err, cuEventSynchronize, (used[half]))) return false;           // not recorded yet: returns at once
        l->slot = ring + (uint64_t)half * (uint64_t)round * l->slot_size;
        if (!g3__load_round(l, pool, readers, from, G3__MIN(l->n, from + round), err)) return false;
        for (int i = from; i < l->end; i++)
            if (!g3__card_up(c, l->chunk[i].dst, l->slot + (uint64_t)(i - from) * l->slot_size, l->chunk[i].size, err)) return false;
        if (!G3__CARD(c, err, cuEventRecord, (used[half], c->stream)) || !g3__load_report(l, &done, err)) return false;
    }
    return g3__card_sync(c, err);
}

static bool g3__load_to_card(g3__loading *l, g3__pool *pool, int readers, g3_error *err)
{
    g3__card *c = l->m->card;
    void *used[2] = { NULL, NULL };
    for (int i = 0; i < l->n; i++) l->slot_size = G3__MAX(l->slot_size, g3__round_up(l->chunk[i].size, G3__ALIGN));
    char *ring = (char *)g3__card_pinned(c, 2 * G3__SLOTS * (uint64_t)readers * l->slot_size, err);
    bool ok = ring && G3__CARD(c, err, cuEventCreate, (&used[0], 2)) && G3__CARD(c, err, cuEventCreate, (&used[1], 2))      // CU_EVENT_DISABLE_TIMING
           && g3__load_ring(l, pool, readers, ring, used, err);
    if (!ok && ring) c->cu.cuStreamSynchronize(c->stream);                               // copies from the ring may be under way
    for (int i = 0; i < 2; i++) if (used[i]) c->cu.cuEventDestroy_v2(used[i]);
    if (ring) g3__card_pinned_give(c, ring);
    return ok;
}

// ---- the tape: a step's operations are recorded between begin and end, neighbours fused, and what a few rows need is replayed as one graph

enum { G3__GRAPH_ROWS = 8 };
enum { G3__DO_ANGLES, G3__DO_EMBED, G3__DO_LINEAR, G3__DO_NORM, G3__DO_ROPE, G3__DO_ATTEND, G3__DO_ADD, G3__DO_GEGLU, G3__DO_GELU, G3__DO_POOL };

typedef struct g3__call {              // one operation, with its arguments; what it has none of is 0
    int op, n, m, k;
    float scale;
    float *y;
    const float *x;
    const g3__norm *norm;
    const g3__mat *W;
    const g3__attn *att;
    const g3__kv *kv;
    const int *ids;
} g3__call;

struct g3__tape {
    g3__call *call;
    int n, cap;
    g3__row *rows, *rows_there;        // of the step: pinned, and on the card
    int *ids, *ids_there;
    float *freq, *freq_there;          // [2][head_dim / 2]
    unsigned *tickets;                 // [heads, or 16] on the card: 0 between launches
    g3__mutex *turn;
    void *before;                      // the caller's context while ours is current
    int step;                          // rows of the running step
    bool recording, pending;           // pending: the card may still read what is pinned
    bool eager;                        // somebody looks at every operation: each runs by itself
    struct { uint64_t hash; void *exec; } graph[G3__GRAPH_ROWS];         // of steps of 1, 2, ... rows
};

static void g3__lay_tape(g3__layout *l, const g3__config *c, const g3_session_desc *d, g3_session *o)
{
    g3__tape none, *t;
    const uint64_t rows = (uint64_t)g3__step_rows(c, d), half = (uint64_t)c->head_dim / 2, calls = 9 * (uint64_t)G3__MAX(c->layers, c->vision.layers) + 16;
    o->run.tape = (g3__tape *)g3__lay_host(l, G3__SCRATCH, "host: sessions", sizeof *t);
    t = o->run.tape ? o->run.tape : &none;
    t->cap = (int)calls;
    t->call = (g3__call *)g3__lay_host(l, G3__SCRATCH, "host: sessions", calls * sizeof *t->call);
    t->rows = (g3__row *)g3__lay_host(l, G3__SCRATCH, "host: sessions", rows * sizeof *t->rows);
    t->ids = (int *)g3__lay_host(l, G3__SCRATCH, "host: sessions", (uint64_t)d->batch * sizeof *t->ids);
    t->freq = (float *)g3__lay_host(l, G3__SCRATCH, "host: sessions", 2 * half * sizeof *t->freq);
    t->rows_there = (g3__row *)g3__lay(l, G3__SCRATCH, "scratch: tables", rows * sizeof *t->rows);
    t->ids_there = (int *)g3__lay(l, G3__SCRATCH, "scratch: tables", (uint64_t)d->batch * sizeof *t->ids);
    t->freq_there = (float *)g3__lay(l, G3__SCRATCH, "scratch: tables", 2 * half * sizeof *t->freq);
    t->tickets = (unsigned *)g3__lay(l, G3__SCRATCH, "scratch: tables", (uint64_t)G3__MAX(c->heads, 16) * sizeof *t->tickets);
}

// The card is this thread's until leave: one session at a time, its context current.
static bool g3__cuda_enter(g3__run *r)
{
    if (r->err->code) return false;
    g3__mutex_lock(r->tape->turn);
    if (g3__card_enter(r->card, &r->tape->before, r->err)) return true;
    g3__mutex_unlock(r->tape->turn);
    return false;
}

static void g3__cuda_leave(g3__run *r)
{
    g3__card_leave(r->card, r->tape->before);
    g3__mutex_unlock(r->tape->turn);
}

static void g3__cuda_wait(g3__run *r)                    // until the card is done with the step before
{
    if (r->tape->pending && g3__card_sync(r->card, r->err)) r->tape->pending = false;
}

// ---- playing a tape

static void g3__cuda_one(g3__run *r, const g3__call *k)  // without a neighbour
{
    g3__card *c = r->card;
    g3__tape *t = r->tape;
    g3_error *err = r->err;
    switch (k->op) {
    case G3__DO_ANGLES: g3__card_angles(c, k->y, k->x, t->rows_there, k->m, k->n, err); break;
    case G3__DO_EMBED:  g3__card_embed(c, k->y, k->W, k->ids, k->n, k->scale, err); break;
    case G3__DO_LINEAR: g3__card_linear(c, k->y, k->x, k->norm, k->W, k->n, r->a.h, NULL, err); break;
    case G3__DO_NORM:   g3__card_norm(c, k->y, k->x, k->norm, k->n, err); break;
    case G3__DO_ROPE:   g3__card_rope(c, k->y, k->att, k->kv, t->rows_there, k->x, k->n, err); break;
    case G3__DO_ATTEND: g3__card_attend(c, k->y, k->x, k->att, k->kv, t->rows_there, k->n, err); break;
    case G3__DO_ADD:    g3__card_add(c, k->y, k->x, k->norm, k->m, k->n, err); break;
    case G3__DO_GEGLU:  g3__card_geglu(c, k->y, k->x, k->m, k->n, err); break;
    case G3__DO_GELU:   g3__card_gelu(c, k->y, k->m, k->n, err); break;
    default:            g3__card_pool(c, k->y, k->x, k->m, k->k, k->n, err); break;
    }
}

// The first call of the list together with its successor, where one launch does both.
static bool g3__cuda_two(g3__run *r, const g3__call *k)
{
    const g3__call *next = k + 1;
    g3__card_fuse fuse = G3__ZERO;
    fuse.ticket = r->tape->tickets;
    if (k->op == G3__DO_ROPE && next->op == G3__DO_ATTEND && k->n == 1 && next->x == k->y) {
        g3__card_attend_one(r->card, next->y, next->x, k->att, k->kv, r->tape->rows_there, k->x, r->a.parts, r->tape->tickets, r->err);
        return true;
    }
    if (k->op != G3__DO_LINEAR || next->x != k->y || !g3__card_can_fuse(k->W, k->n)) return false;
    if (next->op == G3__DO_GEGLU) fuse.act = next->y;
    else if (next->op == G3__DO_ADD) { fuse.x = next->y; fuse.post = next->norm; }
    else return false;
    g3__card_linear(r->card, k->y, k->x, k->norm, k->W, k->n, r->a.h, &fuse, r->err);
    return true;
}

static void g3__cuda_play(g3__run *r)
{
    const g3__tape *t = r->tape;
    for (int i = 0; i < t->n && !r->err->code; i++)
        if (i + 1 < t->n && g3__cuda_two(r, &t->call[i])) i++;
        else g3__cuda_one(r, &t->call[i]);
}

static uint64_t g3__cuda_hash(const g3__tape *t)
{
    uint64_t h = 0, word;
    const char *p = (const char *)t->call;
    for (size_t i = 0; i < (size_t)t->n * sizeof *t->call; i += sizeof word) { memcpy(&word, p + i, sizeof word); h = g3__mix(h ^ word); }
    return h | 1;
}

static void *g3__cuda_capture(g3__run *r)                // the tape as a graph; NULL: r->err
{
    g3__card *c = r->card;
    void *graph = NULL, *exec = NULL;
    if (!G3__CARD(c, r->err, cuStreamBeginCapture_v2, (c->stream, 1))) return NULL;      // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    g3__cuda_play(r);
    const int code = c->cu.cuStreamEndCapture(c->stream, &graph);
    if (!r->err->code && g3__card_ok(c, code, "cuStreamEndCapture", r->err)) G3__CARD(c, r->err, cuGraphInstantiateWithFlags, (&exec, graph, 0));
    if (graph) c->cu.cuGraphDestroy(graph);
    return exec;
}

// A step of few rows: the graph recorded for that many, as long as the calls are the same.
static void g3__cuda_replay(g3__run *r, int n)
{
    g3__tape *t = r->tape;
    const uint64_t hash = g3__cuda_hash(t);
    if (t->graph[n - 1].hash != hash) {
        if (t->graph[n - 1].exec) r->card->cu.cuGraphExecDestroy(t->graph[n - 1].exec);
        t->graph[n - 1].exec = g3__cuda_capture(r);
        t->graph[n - 1].hash = t->graph[n - 1].exec ? hash : 0;
    }
    if (!r->err->code) G3__CARD(r->card, r->err, cuGraphLaunch, (t->graph[n - 1].exec, r->card->stream));
}

static void g3__cuda_put(g3__run *r, const g3__call *k)
{
    g3__tape *t = r->tape;
    if (r->err->code) return;
    GEMMA3_ASSERT(t->n < t->cap);
    t->call[t->n++] = *k;
    if (t->recording && !t->eager) return;
    if (!g3__cuda_enter(r)) { t->n = 0; return; }
    g3__cuda_play(r);
    t->n = 0;
    t->pending = true;
    if (t->eager) g3__cuda_wait(r);
    g3__cuda_leave(r);
}

// ---- the table

static void g3__cuda_upload(g3__run *r, void *dst, const void *src, size_t size)
{
    if (!g3__cuda_enter(r)) return;
    g3__card_up(r->card, dst, src, size, r->err);
    r->tape->pending = true;
    g3__cuda_wait(r);
    g3__cuda_leave(r);
}

static void g3__cuda_download(g3__run *r, void *dst, const void *src, size_t size)
{
    if (!g3__cuda_enter(r)) return;
    g3__card_down(r->card, dst, src, size, r->err);
    r->tape->pending = true;
    g3__cuda_wait(r);
    g3__cuda_leave(r);
}

static void g3__cuda_move(g3__run *r, void *dst, const void *src, size_t size)
{
    if (!g3__cuda_enter(r)) return;
    if (size) G3__CARD(r->card, r->err, cuMemcpyDtoDAsync_v2, ((g3__cu_ptr)(uintptr_t)dst, (g3__cu_ptr)(uintptr_t)src, size, r->card->stream));
    r->tape->pending = true;
    g3__cuda_wait(r);
    g3__cuda_leave(r);
}

static void *g3__cuda_alloc(g3__run *r, size_t size)
{
    void *p = NULL;
    if (!g3__cuda_enter(r)) return NULL;
    p = g3__card_take(r->card, size, r->err);
    g3__cuda_leave(r);
    return p;
}

static void g3__cuda_release(g3__run *r, void *buf, size_t size) { (void)size; if (buf) g3__card_give(r->card, buf); }

static void g3__cuda_angles(g3__run *r, const g3__attn *a, int n)
{
    const size_t half = (size_t)a->head_dim / 2;
    g3__call k = G3__ZERO;
    k.op = G3__DO_ANGLES; k.n = n; k.m = (int)half;
    k.y = r->a.angle + (size_t)a->angles * (size_t)r->shape.batch * 2 * half;
    k.x = r->tape->freq_there + (size_t)a->angles * half;
    g3__cuda_put(r, &k);
}

static void g3__cuda_begin(g3__run *r, int n)
{
    g3__tape *t = r->tape;
    if (!g3__cuda_enter(r)) return;
    g3__cuda_wait(r);
    memcpy(t->rows, r->rows, (size_t)n * sizeof *t->rows);
    g3__card_up(r->card, t->rows_there, t->rows, (size_t)n * sizeof *t->rows, r->err);
    g3__cuda_leave(r);
    t->recording = true;
    t->n = 0;
    for (int kind = 0; kind < r->shape.kinds; kind++)
        for (int l = 0; l < r->tower->layers; l++)
            if (r->tower->layer[l].att.angles == kind) { g3__cuda_angles(r, &r->tower->layer[l].att, n); break; }
    t->step = n;
}

static void g3__cuda_end(g3__run *r)
{
    g3__tape *t = r->tape;
    const int n = t->step;
    t->recording = false;
    if (t->n && g3__cuda_enter(r)) {
        if (n <= G3__GRAPH_ROWS && r->shape.kinds) g3__cuda_replay(r, n);
        else g3__cuda_play(r);
        t->pending = true;
        if (n > 1) g3__cuda_wait(r);                                             // so that a call can be cancelled between its chunks
        g3__cuda_leave(r);
    }
    t->n = 0;
}

static void g3__cuda_embed(g3__run *r, float *y, const g3__mat *E, const int *ids, int n, float scale)
{
    g3__call k = G3__ZERO;
    for (int t = 0; ids && t < n; t++)
        if (ids[t] >= E->rows) g3__fail(r->err, G3_ERR_ARGUMENT, "token id %d, but the table has %d rows", ids[t], E->rows);
    if (ids && g3__cuda_enter(r)) {
        memcpy(r->tape->ids, ids, (size_t)n * sizeof *ids);
        g3__card_up(r->card, r->tape->ids_there, r->tape->ids, (size_t)n * sizeof *ids, r->err);
        g3__cuda_leave(r);
    }
    k.op = G3__DO_EMBED; k.n = n; k.y = y; k.W = E; k.scale = scale; k.ids = ids ? r->tape->ids_there : NULL;
    g3__cuda_put(r, &k);
}

static void g3__cuda_linear(g3__run *r, float *y, const float *x, const g3__norm *norm, const g3__mat *W, int n)
{
    g3__call k = G3__ZERO;
    k.op = G3__DO_LINEAR; k.n = n; k.y = y; k.x = x; k.norm = norm; k.W = W;
    g3__cuda_put(r, &k);
}

static void g3__cuda_norm(g3__run *r, float *y, const float *x, const g3__norm *norm, int n)
{
    g3__call k = G3__ZERO;
    k.op = G3__DO_NORM; k.n = n; k.y = y; k.x = x; k.norm = norm;
    g3__cuda_put(r, &k);
}

static void g3__cuda_rope(g3__run *r, float *qkv, const g3__attn *a, g3__kv *kv, const g3__row *rows, int n)
{
    g3__call k = G3__ZERO;
    (void)rows;                                          // those of begin
    k.op = G3__DO_ROPE; k.n = n; k.y = qkv; k.att = a; k.kv = kv;
    if (a->angles >= 0) k.x = r->a.angle + (size_t)a->angles * (size_t)r->shape.batch * (size_t)a->head_dim;
    g3__cuda_put(r, &k);
}

static void g3__cuda_attend(g3__run *r, float *y, const float *qkv, const g3__attn *a, const g3__kv *kv, const g3__row *rows, int n)
{
    g3__call k = G3__ZERO;
    (void)rows;
    k.op = G3__DO_ATTEND; k.n = n; k.y = y; k.x = qkv; k.att = a; k.kv = kv;
    g3__cuda_put(r, &k);
}

static void g3__cuda_add(g3__run *r, float *x, const float *y, const g3__norm *norm, int dim, int n)
{
    g3__call k = G3__ZERO;
    k.op = G3__DO_ADD; k.n = n; k.m = dim; k.y = x; k.x = y; k.norm = norm;
    g3__cuda_put(r, &k);
}

static void g3__cuda_geglu(g3__run *r, float *y, const float *gu, int m, int n)
{
    g3__call k = G3__ZERO;
    k.op = G3__DO_GEGLU; k.n = n; k.m = m; k.y = y; k.x = gu;
    g3__cuda_put(r, &k);
}

static void g3__cuda_gelu(g3__run *r, float *y, int m, int n)
{
    g3__call k = G3__ZERO;
    k.op = G3__DO_GELU; k.n = n; k.m = m; k.y = y;
    g3__cuda_put(r, &k);
}

static void g3__cuda_pool(g3__run *r, float *y, const float *x, int side, int pool, int dim)
{
    g3__call k = G3__ZERO;
    k.op = G3__DO_POOL; k.n = dim; k.m = side; k.k = pool; k.y = y; k.x = x;
    g3__cuda_put(r, &k);
}

static const g3__ops g3__cuda_ops = {
    "cuda",
    g3__cuda_alloc, g3__cuda_release, g3__cuda_upload, g3__cuda_download, g3__cuda_move, g3__cuda_begin, g3__cuda_end,
    g3__cuda_embed, g3__cuda_linear, g3__cuda_norm, g3__cuda_rope, g3__cuda_attend, g3__cuda_add, g3__cuda_geglu, g3__cuda_gelu, g3__cuda_pool, NULL
};

// ---- a session on the card

static bool g3__tape_start(g3_session *s, g3_error *err)
{
    g3__card *c = s->m->card;
    g3__tape *t = s->run.tape;
    const g3__config *config = &s->m->config;
    t->turn = &s->m->turn;
    t->eager = s->desc.probe.probe_fn != NULL;
    for (int kind = 0; kind < 2; kind++)
        for (int l = 0; l < s->m->text.layers; l++)
            if (s->m->text.layer[l].att.angles == kind) { g3__frequencies(&s->m->text.layer[l].att, t->freq + kind * (config->head_dim / 2)); break; }
    if (!g3__card_attention_module(c, config->heads, config->kv_heads, config->head_dim, s->desc.kv, err)) return false;
    if (!s->desc.no_images && !g3__card_attention_module(c, s->sight.shape.heads, s->sight.shape.kv_heads, s->sight.shape.head_dim, G3_KV_F32, err)) return false;
    return G3__CARD(c, err, cuMemsetD8Async, ((g3__cu_ptr)(uintptr_t)t->tickets, 0, (size_t)G3__MAX(config->heads, 16) * sizeof *t->tickets, c->stream))
        && g3__card_up(c, t->freq_there, t->freq, (uint64_t)(2 * (config->head_dim / 2)) * sizeof *t->freq, err) && g3__card_sync(c, err);
}

static void g3__tape_stop(g3_session *s)
{
    g3__card *c = s->m->card;
    if (!s->run.tape) return;
    g3__card_sync(c, NULL);
    for (int i = 0; i < G3__GRAPH_ROWS; i++) if (s->run.tape->graph[i].exec) c->cu.cuGraphExecDestroy(s->run.tape->graph[i].exec);
}

#else
struct g3__card { char name[1]; };     // never opened
#endif // GEMMA3_NO_CUDA

// ------------------------------------------------------------------------------------------------------------------
// >>public
// Owns the entry points: checks arguments, replaces zeros by the defaults, calls the sections above. Nothing else here.

G3_API const char *g3_result_text(g3_result r)
{
#define G3__X(name, value, text) case G3_##name: return text;
    switch (r) { G3__RESULTS(G3__X) case G3__RESULT_MAX: break; }
#undef G3__X
    return "unknown result";
}

G3_API const char *g3_version(void) { return GEMMA3_VERSION; }

// ---- models

#ifndef GEMMA3_NO_CUDA
static bool g3__model_card_takes(const g3_model *m, g3_error *err)       // are there kernels for this model?
{
    const g3__config *c = &m->config;
    const int sight = m->weights.vision ? c->vision.dim / c->vision.heads : 0;
    if (c->head_dim > 256 || sight > 256) return g3__fail(err, G3_ERR_UNSUPPORTED, "heads of %d numbers: the kernels of a card take up to 256; G3_BACKEND_CPU runs them", G3__MAX(c->head_dim, sight)) == G3_OK;
    for (int i = 0; i < m->weights.n; i++) {
        const g3__weight *w = &m->weights.w[i];
        if (w->data && w->rows == 1 && w->format != G3__F32 && w->format != G3__BF16 && w->format != G3__F16)
            return g3__fail(err, G3_ERR_UNSUPPORTED, "tensor \"%.96s\" is of type %s: a card takes norms and biases as f32, bf16 or f16; G3_BACKEND_CPU runs it", w->data->name.p, g3__format_name(w->format)) == G3_OK;
    }
    return true;
}

// The kernels that its weights and its first session need. Before the plan: what the driver takes for them is then not free.
static bool g3__model_kernels(g3_model *m, g3_error *err)
{
    const g3__config *c = &m->config;
    char options[64];
    void *before = NULL;
    unsigned formats = 0;
    for (int i = 0; i < m->weights.n; i++) if (m->weights.w[i].data && m->weights.w[i].format < G3__U8) formats |= 1u << m->weights.w[i].format;
    snprintf(options, sizeof options, "-DG3K_FORMATS=%u -DG3K_PRECISE=%d", formats, m->desc.precise);
    if (!g3__card_enter(m->card, &before, err)) return false;
    bool ok = g3__card_module(m->card, options, err) && g3__card_attention_module(m->card, c->heads, c->kv_heads, c->head_dim, m->first.kv, err);
    g3__card_leave(m->card, before);
    return ok;
}

static void g3__model_no_card(g3_model *m);
static bool g3__model_card(g3_model *m, bool planning, g3_error *err)    // opens the card; false: err says why there is none, or no use of it
{
    if (!g3__model_card_takes(m, err)) return false;
    m->card = (g3__card *)g3__heap_alloc(&m->heap, 1, sizeof *m->card, err);
    if (!m->card) return false;
    if (g3__card_open(m->card, &m->desc, &m->heap, err) && (planning || g3__model_kernels(m, err))) return true;
    g3__model_no_card(m);
    return false;
}

static void g3__model_no_card(g3_model *m)
{
    if (!m->card) return;
    g3__card_close(m->card);
    g3__heap_free(&m->heap, m->card, 1, sizeof *m->card);
    m->card = NULL;
}

static const g3__ops *g3__model_card_table(void) { return &g3__cuda_ops; }
static bool g3__model_enter(g3_model *m, void **before, g3_error *err) { return !m->card || g3__card_enter(m->card, before, err); }
static void g3__model_leave(g3_model *m, void *before) { if (m->card) g3__card_leave(m->card, before); }
#else
static bool g3__model_card(g3_model *m, bool planning, g3_error *err) { (void)m; (void)planning; return g3__fail(err, G3_ERR_UNSUPPORTED, "backend: this build has no CUDA backend (GEMMA3_NO_CUDA); G3_BACKEND_AUTO and G3_BACKEND_CPU run on the CPU") == G3_OK; }
static void g3__model_no_card(g3_model *m) { (void)m; }
static const g3__ops *g3__model_card_table(void) { return NULL; }
static bool g3__model_enter(g3_model *m, void **before, g3_error *err) { (void)m; (void)before; (void)err; return true; }
static void g3__model_leave(g3_model *m, void *before) { (void)m; (void)before; }
#endif

static void g3__model_free(g3_model *m)
{
    g3__heap heap = m->heap;                             // outlives the struct it came from
    g3__pool_free(&m->pool);
    g3__arena_give(m, m->arena, m->arena_bytes);
    g3__model_no_card(m);
    g3__shards_close(&m->shards);
    if (m->has_turn) g3__mutex_free(&m->turn);
    if (m->has_lock) g3__mutex_free(&m->lock);
    g3__zone_free(&m->keep);
    heap.live = m->heap.live;
    g3__heap_free(&heap, m, 1, sizeof *m);
}

// Of heap, users and, for opening and closing, the card.
static void g3__model_lock(g3_model *m)   { g3__mutex_lock(&m->lock); g3__mutex_lock(&m->turn); }
static void g3__model_unlock(g3_model *m) { g3__mutex_unlock(&m->turn); g3__mutex_unlock(&m->lock); }

static void g3__model_release(g3_model *m)               // the last of the caller and the sessions frees it
{
    g3__mutex_lock(&m->lock);
    bool last = --m->users == 0;
    g3__mutex_unlock(&m->lock);
    if (last) g3__model_free(m);
}

static bool g3__copy_text(g3_model *m, const char **text, g3_error *err)
{
    return !*text || (*text = g3__zone_text(&m->keep, g3__str_c(*text), err)) != NULL;
}

static void g3__model_name(g3_model *m)                  // the directory's last part
{
    const char *p = m->desc.path ? m->desc.path : "", *end = p + strlen(p);
    while (end > p && (end[-1] == '/' || end[-1] == '\\')) end--;
    const char *from = end;
    while (from > p && from[-1] != '/' && from[-1] != '\\') from--;
    if (end - from < 1 || (end - from == 1 && *from == '.')) snprintf(m->name, sizeof m->name, "gemma-3");
    else snprintf(m->name, sizeof m->name, "%.*s", (int)G3__MIN(end - from, 90), from);
}

static bool g3__model_desc_take(g3_model *m, const g3_model_desc *d, g3_error *err)      // copied, strings too; zeros replaced
{
    m->desc = *d;
#ifdef GEMMA3_NO_VISION
    m->desc.no_vision = true;
#endif
    m->desc.allocator = m->heap.a;
    if (d->session) m->first = *d->session;
    m->desc.session = &m->first;
    m->desc.sessions = d->sessions ? d->sessions : 1;
    if (m->desc.sessions < 0 || m->desc.sessions > 65536) return g3__fail(err, G3_ERR_ARGUMENT, "sessions: %d is not a number of sessions (1 to 65536)", d->sessions) == G3_OK;
    if (d->threads < 0) return g3__fail(err, G3_ERR_ARGUMENT, "threads: %d is not a number of threads", d->threads) == G3_OK;
    if ((int)d->backend < 0 || d->backend > G3_BACKEND_CUDA) return g3__fail(err, G3_ERR_ARGUMENT, "backend: %d is none of G3_BACKEND_AUTO, _CPU, _CUDA", (int)d->backend) == G3_OK;
    if (!g3__copy_text(m, &m->desc.path, err) || !g3__copy_text(m, &m->desc.kernel_path, err) || !g3__copy_text(m, &m->desc.cache_dir, err) || !g3__copy_text(m, &m->desc.libraries, err)) return false;
    m->desc.threads = G3__MIN(d->threads ? d->threads : g3__cores(), (int)G3__MAX_THREADS);
    if (d->parallel.for_fn) m->desc.threads = G3__MIN(G3__MAX(d->parallel.width, 1), (int)G3__MAX_THREADS);
    return g3__source_init(&m->shards.src, m->desc.path, &m->desc.files, err);
}

static void g3__model_sums(g3_model *m)
{
    const g3__weight *w = m->weights.w;
    m->parameters = m->weight_bytes = m->bytes_per_token = 0;
    for (int i = 0; i < m->weights.n; i++)
        if (w[i].data) { m->parameters += g3__weight_count(&w[i]); m->weight_bytes += g3__weight_bytes(&w[i]); }
    for (int i = 0; i < m->weights.n_text; i++)          // what writing one token reads: the layers, and the head
        if (w[i].data && i != (w[G3__HEAD].data ? G3__EMBED : -1)) m->bytes_per_token += g3__weight_bytes(&w[i]);
    if (m->config.screen) m->bytes_per_token += (uint64_t)m->config.screen * ((uint64_t)w[G3__EMBED].cols + 2 * sizeof(float)) - g3__weight_bytes(&w[w[G3__HEAD].data ? G3__HEAD : G3__EMBED]);
}

// The head gets an int8 copy of the rows that are ever drawn, where the loops for it exist and its own rows lie in tiles.
static void g3__model_screen(g3_model *m)
{
    const g3__weight *head = &m->weights.w[m->weights.w[G3__HEAD].data ? G3__HEAD : G3__EMBED];
    m->config.screen = 0;
    if (!m->desc.screened_head || m->config.card || !g3__weight_tiled(m, head) || (head->format != G3__BF16 && !g3__is_4bit(head->format))) return;
    m->config.screen = (int)g3__round_up((uint64_t)g3__drawn_rows(m), G3__TILE_ROWS);
}

static void g3__model_place(g3_model *m, bool card)      // where it runs: what its weights look like there, and what follows from that
{
    m->config.card = card;
    m->simd = card ? NULL : g3__simd_pick(m->desc.simd);
    g3__model_screen(m);
    g3__model_sums(m);
}

static bool g3__model_plan(g3_model *m, g3_plan *p);

// CUDA: the card, or an error; a plan alone does without one, and with no_weights nothing runs. AUTO: the card if it opens and all fits, else the CPU.
static bool g3__model_choose(g3_model *m, bool planning, g3_error *err)
{
    const g3_backend asked = m->desc.backend;
    g3_error why = G3__ZERO;
    g3__model_place(m, asked == G3_BACKEND_CUDA);
    if (asked == G3_BACKEND_CPU || (m->desc.no_weights && !planning)) return true;
    if (g3__model_card(m, planning, &why)) {
        if (asked == G3_BACKEND_CUDA) return true;
        const g3_session_desc first = m->first;
        g3_plan p;
        g3__model_place(m, true);
        if (g3__model_plan(m, &p)) { m->first = first; return true; }
        m->first = first;
        m->desc.backend = asked;
        g3__fail(&why, G3_ERR_VRAM, "%s does not fit: %s", m->card->name, p.advice);
        g3__model_no_card(m);
        g3__model_place(m, false);
    } else if (why.code == G3_ERR_MEMORY) return g3__fail(err, why.code, "%s", why.text) == G3_OK;     // the host's: no reason to go on elsewhere
    else if (asked == G3_BACKEND_CUDA) return planning && why.code == G3_ERR_DEVICE ? true : g3__fail(err, why.code, "%s", why.text) == G3_OK;
    g3__log(m, G3_LOG_INFO, "no card: %s", why.text);
    return true;
}

// Opens everything but the weights.
static g3_model *g3__model_begin(const g3_model_desc *desc, bool planning, g3_error *err)
{
    g3__heap heap;
    g3_model_desc none = G3__ZERO;
    if (!desc) desc = &none;
    if (!desc->allocator.alloc_fn != !desc->allocator.free_fn) { g3__fail(err, G3_ERR_ARGUMENT, "allocator: alloc_fn and free_fn come together"); return NULL; }
    g3__heap_init(&heap, &desc->allocator);
    g3_model *m = (g3_model *)g3__heap_alloc(&heap, 1, sizeof *m, err);
    if (!m) return NULL;
    m->heap = heap;
    m->users = 1;
    m->pool.width = 1;
    g3__zone_init(&m->keep, &m->heap);
    m->has_lock = g3__mutex_init(&m->lock);
    m->has_turn = m->has_lock && g3__mutex_init(&m->turn);
    if (!m->has_turn) g3__fail(err, G3_ERR_MEMORY, "the system gives no mutex");
    if (!m->has_turn || !g3__model_desc_take(m, desc, err) || !g3__load_small(m, err)
        || !g3__session_resolve(&m->config, m->weights.vision, &m->first, &m->first, err)) { g3__model_free(m); return NULL; }
    g3__model_name(m);
    if (!g3__model_choose(m, planning, err)) { g3__model_free(m); return NULL; }
    return m;
}

static bool g3__model_plan(g3_model *m, g3_plan *p)      // settles m->first, too: a negative context becomes the largest that fits
{
    g3__asked a = G3__ZERO;
    a.c = &m->config;
    a.w = &m->weights;
    a.d = m->first;
    a.sessions = m->desc.sessions;
    a.width = m->desc.threads;
    a.limit = m->desc.memory_limit;
    if (!a.limit) a.free = !m->config.card ? g3__memory_free() : m->card ? g3__card_free_bytes(m->card) : 0;
    a.host[0] = m->heap.peak;
    a.host[1] = m->heap.live + ((uint64_t)m->config.layers + (uint64_t)(m->weights.vision ? m->config.vision.layers : 0)) * sizeof(g3__layer) + G3__BLOCK_SIZE;
    a.host[2] = g3__load_staging(m);
    a.host[3] = sizeof(g3_session);
    g3__plan_make(p, &a);
    m->first = a.d;
    m->desc.backend = p->backend;
    return p->fits || !p->available;
}

static bool g3__model_load(g3_model *m, g3_error *err)   // everything that runs; the card, if there is one, is entered
{
    if (m->card) return g3__load_all(m, err);
    g3__pool_init(&m->pool, m->desc.threads, &m->desc.parallel);
    if (!g3__load_all(m, err)) return false;
#ifdef G3__SIMD
    if (m->screen.rows) g3__screen_make(m->simd, &m->pool, &m->head, &m->screen);
#endif
    return true;
}

static bool g3__model_finish(g3_model *m, g3_error *err)  // the second half of opening: check that it fits, then load
{
    double start = g3__clock();
    bool fits = g3__model_plan(m, &m->plan);
    if (m->desc.no_weights) return true;
    if (!fits) return g3__fail(err, m->card ? G3_ERR_VRAM : G3_ERR_MEMORY, "%s does not fit: %s", m->name, m->plan.advice) == G3_OK;
    m->op = m->card ? g3__model_card_table() : g3__cpu_table(m->simd);
    if (m->desc.screened_head && !m->config.screen) g3__log(m, G3_LOG_INFO, "screened_head: there are no loops for it on this machine or for this head; the whole head is read, with the same results");
    void *before = NULL;
    if (!g3__model_enter(m, &before, err)) return false;
    bool ok = g3__model_load(m, err);
    g3__model_leave(m, before);
    if (!ok) return false;
    const double took = g3__clock() - start;
    if (m->card) g3__log(m, G3_LOG_INFO, "%s: %llu bytes of weights in %.2f s, on %s", m->name, (unsigned long long)m->weight_bytes, took, m->card->name);
    else g3__log(m, G3_LOG_INFO, "%s: %llu bytes of weights in %.2f s, %d threads", m->name, (unsigned long long)m->weight_bytes, took, g3__pool_width(&m->pool));
    return true;
}

G3_API g3_model *g3_model_open(const g3_model_desc *desc, g3_error *err)
{
    g3_error mine;
    if (!err) err = &mine;
    g3__error_clear(err);
    g3_model *m = g3__model_begin(desc, false, err);
    if (!m || g3__model_finish(m, err)) return m;
    g3__model_free(m);
    return NULL;
}

G3_API void g3_model_close(g3_model *m) { if (m) g3__model_release(m); }

G3_API g3_result g3_plan_memory(const g3_model_desc *desc, g3_plan *plan, g3_error *err)
{
    g3_error mine;
    if (!err) err = &mine;
    g3__error_clear(err);
    if (!plan) return g3__fail(err, G3_ERR_ARGUMENT, "plan: NULL");
    memset(plan, 0, sizeof *plan);
    g3_model *m = g3__model_begin(desc, true, err);
    if (!m) return err->code;
    g3__model_plan(m, plan);
    g3__model_free(m);
    return G3_OK;
}

G3_API g3_model_info g3_model_get_info(const g3_model *m)
{
    g3_model_info i = G3__ZERO;
    if (!m) return i;
    i.name = m->name;
    i.backend = m->config.card ? "CUDA" : "CPU";
    i.device = m->card ? m->card->name : i.backend;
    i.layers = m->config.layers;
    i.dim = m->config.dim;
    i.ffn = m->config.ffn;
    i.heads = m->config.heads;
    i.kv_heads = m->config.kv_heads;
    i.head_dim = m->config.head_dim;
    i.vocab = m->config.vocab;
    i.window = m->config.window;
    i.max_context = m->config.max_context;
    i.vision = m->weights.vision;
    i.chat = m->chat;
    i.parameters = m->parameters;
    i.weight_bytes = m->weight_bytes;
    return i;
}

G3_API g3_plan g3_model_get_plan(const g3_model *m)
{
    g3_plan none = G3__ZERO;
    return m ? m->plan : none;
}

G3_API g3_model_desc g3_model_get_desc(const g3_model *m)
{
    g3_model_desc none = G3__ZERO;
    return m ? m->desc : none;
}

G3_API int g3_model_tensor(const g3_model *m, int i, g3_tensor *t)
{
    g3__weight w;
    if (!m) return 0;
    if (t) memset(t, 0, sizeof *t);
    if (!t || i < 0 || (uint64_t)i >= m->shards.n) return (int)m->shards.n;
    const g3__tensor *x = &m->shards.tensor[i];
    g3__tensor_weight(m, x, &w, NULL);
    t->name = x->name.p;
    t->format = w.format == G3__OTHER ? g3__dtypes[x->dtype].name : g3__format_name(w.format);
    t->file = m->shards.file[x->file].name;
    t->rows = w.rows;
    t->cols = w.cols;
    t->offset = x->offset;
    t->bytes = x->bytes;
    return (int)m->shards.n;
}

G3_API g3_result g3_model_read(const g3_model *m, const char *name, int row, int n, float *dst, g3_error *err)
{
    g3__weight w;
    g3_error mine;
    if (!err) err = &mine;
    g3__error_clear(err);
    if (!m || !name || (!dst && n)) return g3__fail(err, G3_ERR_ARGUMENT, "g3_model_read: model, name and dst are required");
    int64_t at = g3__index_find(&m->shards.index, g3__str_c(name));
    if (at < 0) return g3__fail(err, G3_ERR_ARGUMENT, "the files have no tensor \"%.96s\"", name);
    if (!g3__tensor_weight(m, &m->shards.tensor[at], &w, err)) return err->code;
    if (w.format == G3__OTHER) return g3__fail(err, G3_ERR_UNSUPPORTED, "tensor \"%.96s\" is of type %s, which no weight of ours has", name, g3__dtypes[w.data->dtype].name);
    if (row < 0 || n < 0 || row > w.rows || n > w.rows - row) return g3__fail(err, G3_ERR_ARGUMENT, "tensor \"%.96s\" has %d rows: rows %d to %lld are not there", name, w.rows, row, (long long)row + n);
    if (!g3__read_elements(&m->shards, &w, (uint64_t)row * (uint64_t)w.cols, (uint64_t)n * (uint64_t)w.cols, dst, err)) return err->code;
    return G3_OK;
}

// ---- sessions

static bool g3__closed(const void *s, const char *what, g3_error *err)
{
    if (s) return false;
    g3__fail(err, G3_ERR_ARGUMENT, "%s: NULL", what);
    return true;
}

G3_API g3_session *g3_session_open(g3_model *m, const g3_session_desc *desc, g3_error *err)
{
    g3_error mine;
    if (!err) err = &mine;
    g3__error_clear(err);
    if (g3__closed(m, "model", err)) return NULL;
    if (!m->op) { g3__fail(err, G3_ERR_ARGUMENT, "%s was opened with no_weights: it has nothing to run", m->name); return NULL; }
    g3_session *s = NULL;
    void *before = NULL;
    g3__model_lock(m);
    if (g3__model_enter(m, &before, err)) {
        s = g3__session_make(m, desc ? desc : &m->first, err);
        g3__model_leave(m, before);
    }
    g3__model_unlock(m);
    return s;
}

G3_API void g3_session_close(g3_session *s)
{
    if (!s) return;
    g3_model *m = s->m;
    void *before = NULL;
    g3__model_lock(m);
    const bool entered = g3__model_enter(m, &before, NULL);
    m->session_bytes -= s->arena_bytes;
    g3__session_give(s);
    if (entered) g3__model_leave(m, before);
    g3__model_unlock(m);
    g3__model_release(m);
}

G3_API void g3_session_cancel(g3_session *s)
{
    if (s && g3__atomic_get(&s->running)) g3__atomic_set(&s->cancel, 1);
}

G3_API int g3_session_tokens(const g3_session *s, int *ids, int cap)
{
    if (!s) return 0;
    if (ids && cap > 0) memcpy(ids, s->ids, (size_t)G3__MIN(s->held, cap) * sizeof *ids);
    return s->held;
}

G3_API int g3_session_rewind(g3_session *s, int pos, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    if (pos < 0) return g3__fail(err, G3_ERR_ARGUMENT, "pos: %d is no position", pos);
    return g3__rewind(s, pos);
}

static bool g3__same_shape(const g3_session *a, const g3_session *b)
{
    return a->m == b->m && a->desc.context == b->desc.context && a->desc.batch == b->desc.batch && a->desc.kv == b->desc.kv && a->desc.logits_rows == b->desc.logits_rows && a->lasting == b->lasting && a->arena_bytes == b->arena_bytes;
}

G3_API g3_result g3_session_copy(g3_session *to, const g3_session *from, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(to, "to", err) || g3__closed(from, "from", err)) return G3_ERR_ARGUMENT;
    if (to == from) return G3_OK;
    if (!g3__same_shape(to, from)) return g3__fail(err, G3_ERR_ARGUMENT, "to and from: sessions of one model with the same context, batch, kv, logits_rows, no_images and probe are needed");
    if (to->host) {
        g3__call_begin(to);
        to->run.op->move(&to->run, to->arena, from->arena, (size_t)from->lasting);
        if (g3__call_end(to, err) != G3_OK) return to->err.code;
        memcpy(to->host, from->host, (size_t)from->host_lasting);
    } else memcpy(to->arena, from->arena, (size_t)from->lasting);
    g3__session_carve(to);                               // the tables in the copy pointed into the other arena
    to->held = from->held;
    to->done = from->done;
    to->high = from->high;
    to->last = from->last;
    to->kept = from->kept;
    to->n_pictures = from->n_pictures;
    to->logits_done = from->logits_done;
    to->answering = G3__ANSWER_NONE;
    to->speaking = from->speaking;
    to->answered = from->answered;
    to->finish = from->finish;
    to->stats = from->stats;
    return G3_OK;
}

G3_API g3_stats g3_session_stats(const g3_session *s)
{
    g3_stats none = G3__ZERO;
    if (!s) return none;
    g3_stats t = s->stats;
    t.context = s->desc.context;
    t.held = s->held;
    t.bytes_per_token = s->m->bytes_per_token;
    t.memory = s->arena_bytes;
    return t;
}

G3_API uint64_t g3_session_seed(const g3_session *s) { return !s ? 0 : s->seed_used ? s->seed_used : s->seed; }
G3_API g3_finish g3_session_finish(const g3_session *s) { return s ? s->finish : G3_FINISH_NONE; }

// ---- chat and generation

G3_API int g3_chat(g3_session *s, const g3_turn *turn, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    int held = s->held, made = -1;
    bool speaking = s->speaking;
    g3__call_begin(s);
    s->answer->made = 0;
    if (g3__turn_add(s, turn)) made = g3__answer_run(s, &turn->generate);
    if (made < 0 && !s->answer->made) g3__turn_undo(s, held, speaking);
    g3_result r = g3__call_end(s, err);
    return r != G3_OK ? r : made;
}

G3_API g3_result g3_add_turn(g3_session *s, const g3_turn *turn, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    g3__call_begin(s);
    g3__turn_add(s, turn);
    return g3__call_end(s, err);
}

G3_API int g3_next(g3_session *s, const g3_generate_desc *desc, g3_token *t, g3_error *err)
{
    g3_token mine;
    int more = -1;
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    g3__call_begin(s);
    if (s->answering != G3__ANSWER_NONE || g3__answer_begin(s, desc)) more = g3__answer_next(s, t ? t : &mine);
    g3_result r = g3__call_end(s, err);
    return r != G3_OK ? r : more;
}

G3_API int g3_generate(g3_session *s, const g3_generate_desc *desc, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    g3__call_begin(s);
    int made = g3__answer_run(s, desc);
    g3_result r = g3__call_end(s, err);
    return r != G3_OK ? r : made;
}

G3_API g3_result g3_add_messages(g3_session *s, const g3_message *messages, int n, bool generation_prompt, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    g3__call_begin(s);
    g3__messages_add(s, messages, n, generation_prompt);
    return g3__call_end(s, err);
}

G3_API g3_result g3_add_tokens(g3_session *s, const int *ids, int n, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    if (n < 0 || (n && !ids)) return g3__fail(err, G3_ERR_ARGUMENT, "ids: n is %d%s", n, ids ? "" : " and ids is NULL");
    g3__call_begin(s);
    g3__add_ids(s, ids, n);
    return g3__call_end(s, err);
}

G3_API g3_result g3_add_image(g3_session *s, const g3_image *img, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err) || g3__closed(img, "img", err)) return G3_ERR_ARGUMENT;
    g3__call_begin(s);
    g3__add_image(s, img);
    return g3__call_end(s, err);
}

// ---- text

G3_API int g3_tokenize(const g3_model *m, const char *text, size_t size, int flags, int *ids, int cap)
{
    if (!m || (!text && size)) return G3_ERR_ARGUMENT;
    if (!m->has_tok) return G3_ERR_MODEL;
    if (size == SIZE_MAX) size = strlen(text);
    int64_t n = g3__tok_encode(&m->tok, &m->heap.a, text, size, flags, ids, ids ? G3__MAX(cap, 0) : 0, NULL);
    return n > INT_MAX ? (int)G3_ERR_ARGUMENT : (int)n;
}

G3_API int g3_detokenize(const g3_model *m, const int *ids, int n, char *text, int cap)
{
    int64_t size = 0;
    if (!m || n < 0 || (n && !ids)) return G3_ERR_ARGUMENT;
    if (!m->has_tok) return G3_ERR_MODEL;
    for (int i = 0; i < n; i++) {
        g3__str piece = g3__tok_piece(&m->tok, ids[i]);
        if (!piece.p) return G3_ERR_ARGUMENT;
        for (size_t k = 0; k < piece.n && text && size + (int64_t)k < cap; k++) text[size + (int64_t)k] = piece.p[k];
        size += (int64_t)piece.n;
    }
    return size > INT_MAX ? (int)G3_ERR_ARGUMENT : (int)size;
}

G3_API const char *g3_token_piece(const g3_model *m, int id, int *size)
{
    g3__str piece = m && m->has_tok ? g3__tok_piece(&m->tok, id) : g3__str_make(NULL, 0);
    if (size) *size = (int)piece.n;
    return piece.p;
}

G3_API int g3_render(const g3_model *m, const g3_message *messages, int n, bool generation_prompt, int *ids, int cap, g3_error *err)
{
    g3_error mine;
    if (!err) err = &mine;
    g3__error_clear(err);
    if (g3__closed(m, "model", err)) return G3_ERR_ARGUMENT;
    if (n < 0 || (n && !messages)) return g3__fail(err, G3_ERR_ARGUMENT, "messages: n is %d%s", n, messages ? "" : " and messages is NULL");
    if (!g3__need_text(m, err)) return err->code;
    g3__chat_ids c = g3__model_chat_ids(m);
    int64_t count = g3__render(&m->tok, &m->heap.a, &c, messages, n, generation_prompt, ids, ids ? G3__MAX(cap, 0) : 0, err);
    return count > INT_MAX ? (int)g3__fail(err, G3_ERR_ARGUMENT, "the conversation has more than 2^31 tokens") : (int)count;
}

// ---- logits

G3_API const float *g3_logits_at(g3_session *s, int back, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return NULL;
    g3__call_begin(s);
    const float *row = g3__logits_row(s, back);
    g3__call_end(s, err);
    return row;
}

G3_API const float *g3_logits(g3_session *s, g3_error *err) { return g3_logits_at(s, 0, err); }

G3_API g3_result g3_head(g3_session *s, const float *x, float *logits, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err) || g3__closed(x, "x", err) || g3__closed(logits, "logits", err)) return G3_ERR_ARGUMENT;
    g3__call_begin(s);
    if (s->m->card) {                                    // x and the logits pass through rows of its scratch
        s->run.op->upload(&s->run, s->run.a.out, x, (size_t)s->m->config.dim * sizeof(float));
        s->run.op->linear(&s->run, s->raw, s->run.a.out, &s->m->final, &s->m->head, 1);
        s->run.op->download(&s->run, logits, s->raw, (size_t)s->m->config.vocab * sizeof(float));
    } else s->run.op->linear(&s->run, logits, x, &s->m->final, &s->m->head, 1);
    return g3__call_end(s, err);
}

G3_API int g3_sample(g3_session *s, const g3_sampler *p, g3_error *err)
{
    g3__error_clear(err);
    if (g3__closed(s, "session", err)) return G3_ERR_ARGUMENT;
    g3__call_begin(s);
    g3_sampler used = g3__sampler_defaults(p, &s->m->generation);
    int id = g3__sampler_check(&used, &s->err) ? g3__draw_token(s, &used, NULL) : -1;
    if (id == G3_ERR_STOPPED && !s->err.code) g3__fail(&s->err, G3_ERR_STOPPED, "stopped by logits_fn");
    g3_result r = g3__call_end(s, err);
    return r != G3_OK ? r : id;
}

// ---- pictures

static bool g3__image_call(const void *in, const char *what, const g3_allocator *alloc, g3_image *img, g3_error *err)   // what the calls below have in common
{
    g3__error_clear(err);
    if (img) memset(img, 0, sizeof *img);
    if (g3__closed(in, what, err) || g3__closed(img, "img", err)) return false;
    return !alloc || !alloc->alloc_fn == !alloc->free_fn || g3__fail(err, G3_ERR_ARGUMENT, "alloc: alloc_fn and free_fn come together") == G3_OK;
}

G3_API g3_result g3_image_load(const char *path, const g3_allocator *alloc, g3_image *img, g3_error *err)
{
    g3_error mine;
    if (!err) err = &mine;
    if (g3__image_call(path, "path", alloc, img, err)) g3__image_file(path, alloc, img, err);
    return err->code;
}

G3_API g3_result g3_image_load_memory(const void *data, size_t size, const g3_allocator *alloc, g3_image *img, g3_error *err)
{
    g3_error mine;
    if (!err) err = &mine;
    if (g3__image_call(data, "data", alloc, img, err)) g3__image_from("the picture", data, size, alloc, img, err);
    return err->code;
}

G3_API void g3_image_free(const g3_allocator *alloc, g3_image *img)
{
    g3__heap heap;
    g3__heap_init(&heap, alloc);
    if (!img) return;
    g3__heap_free(&heap, (void *)(uintptr_t)img->rgb, 3 * (uint64_t)img->width, (uint64_t)img->height);
    memset(img, 0, sizeof *img);
}

G3_API g3_result g3_image_resize(const g3_image *in, int width, int height, const g3_allocator *alloc, g3_image *out, g3_error *err)
{
    g3_error mine;
    if (!err) err = &mine;
    if (g3__image_call(in, "in", alloc, out, err) && g3__image_check(in, err) && g3__image_size_check("size", G3_ERR_ARGUMENT, (uint64_t)G3__MAX(width, 0), (uint64_t)G3__MAX(height, 0), err))
        g3__image_resize(in, width, height, alloc, out, err);
    return err->code;
}

// ------------------------------------------------------------------------------------------------------------------
// >>kernels
// Owns the text of gemma3_kernels.cuh, one string per line: element i is line i + 1 of that file. It is joined and given
// to NVRTC when a card is opened. Generated: do not edit between the markers.

#ifndef GEMMA3_NO_CUDA
static const char *const g3__kernel_source[] = {
//>embed gemma3_kernels.cuh (generated: edit that file, then `make embed`)
"// gemma3_kernels.cuh: the CUDA kernels of gemma3.h. The header carries a copy of this file, one string per line; after an edit run `make embed`.\n",
"//\n",
"// Rules of this file\n",
"//  - It includes nothing and asks for no header of the CUDA toolkit: NVRTC compiles it on machines that have none. Types of 16 and 8 bits are\n",
"//    plain integers whose bits are moved by hand; what C++ has no word for is inline PTX.\n",
"//  - It compiles with NVRTC 12 and 13 for sm_80 and up, to CUBIN for the card that is there, to PTX where NVRTC does not know the card yet.\n",
"//  - Kernels are extern \"C\" and named g3k_...; device functions are static, named g3k__... . No printf, no assert, no allocation, no globals\n",
"//    that are written.\n",
"//  - Numbers as on the CPU: sums, norms, softmax and the residual stream are float; float16 is never used for activations. An order of summation\n",
"//    depends on shapes alone, never on timing: no floating-point atomics, so that the same call gives the same bits.\n",
"//  - Indices into weights and caches are size_t from the first multiplication on. Nothing is read or written outside the arrays named above a\n",
"//    kernel, whatever the launch: a kernel checks its own bounds where the grid does not fit them exactly.\n",
"//  - Above each kernel: the formula, the shapes, the launch. What changes from token to token (positions, counts) is read from device memory,\n",
"//    since a recorded graph replays the arguments of its first run.\n",
"//  - What is compiled: where G3K_HEAD_DIM, G3K_GROUP and G3K_KV are defined, the kernels of attention for them; else all others, and with G3K_ALL\n",
"//    those of attention for the published models too. G3K_FORMATS is a mask of weight formats, bit g3k__format; G3K_PRECISE 1 multiplies near float32.\n",
"//  - Spaces, printable ASCII, lines under 300 bytes, no two question marks in a row: the file lives on as C strings.\n",
"\n",
"// ---- the header's own structs, as kernel arguments: same members, same sizes\n",
"\n",
"enum g3k__format { G3K_F32, G3K_BF16, G3K_F16, G3K_E4M3, G3K_E5M2, G3K_NF4, G3K_FP4 };\n",
"\n",
"#if defined(G3K_HEAD_DIM)\n",
"#define G3K_ATTENTION 1\n",
"#define G3K_REST      0\n",
"#else\n",
"#define G3K_ATTENTION defined(G3K_ALL)\n",
"#define G3K_REST      1\n",
"#endif\n",
"#ifndef G3K_FORMATS\n",
"#define G3K_FORMATS 0x7f\n",
"#endif\n",
"#define G3K_HAS(format) ((G3K_FORMATS >> (format) & 1) != 0)\n",
"\n",
"typedef unsigned char      g3k__u8;\n",
"typedef unsigned short     g3k__u16;\n",
"typedef unsigned           g3k__u32;\n",
"typedef unsigned long long g3k__u64;\n",
"\n",
"struct g3k__bits {\n",
"    int format;\n",
"    const void *data, *absmax;\n",
"    const float *nested_absmax, *nested_map;\n",
"    float nested_offset;\n",
"    unsigned blocksize, nested_blocksize;\n",
"    const void *scale;\n",
"    int scale_format;\n",
"    bool tiled;\n",
"    signed char map;\n",
"};\n",
"struct g3k__seg  { int rows; g3k__bits bits, bias; };\n",
"struct g3k__mat  { int rows, cols, n_segs; g3k__seg seg[3]; bool transposed; };\n",
"struct g3k__norm { bool layer; int dim; float eps; g3k__bits w, b; };\n",
"struct g3k__attn { int heads, kv_heads, head_dim, window; float scale, theta, factor; int angles; g3k__norm q_norm, k_norm; };\n",
"struct g3k__kv   { int format, rows, kv_heads, head_dim; void *k, *v; float *k_scale, *v_scale; };\n",
"struct g3k__row  { int pos, span, seq; };\n",
"static_assert(sizeof(g3k__bits) == 72 && sizeof(g3k__mat) == 480 && sizeof(g3k__norm) == 160 && sizeof(g3k__attn) == 352 && sizeof(g3k__kv) == 48 && sizeof(g3k__row) == 12, \"as in the header\");\n",
"\n",
"// ---- numbers\n",
"\n",
"static __device__ __forceinline__ float g3k__bf16(g3k__u16 h) { return __uint_as_float((g3k__u32)h << 16); }\n",
"\n",
"static __device__ __forceinline__ float g3k__f16(g3k__u16 h)\n",
"{\n",
"    float f;\n",
"    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(f) : \"h\"(h));\n",
"    return f;\n",
"}\n",
"\n",
"// e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities, 0x7f and 0xff are NaN. No instruction of sm_80 knows it.\n",
"static __device__ __forceinline__ float g3k__e4m3(g3k__u8 b)\n",
"{\n",
"    const g3k__u32 sign = (g3k__u32)(b & 0x80) << 24, rest = b & 0x7f;\n",
"    if (rest == 0x7f) return __uint_as_float(0x7fc00000u);\n",
"    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 20) * 0x1p120f));      // the exponent's bias: 127 - 7\n",
"}\n",
"\n",
"static __device__ __constant__ const float g3k__nf4[16] = {\n",
"    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,\n",
"    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f\n",
"};\n",
"static __device__ __constant__ const float g3k__fp4[16] = {\n",
"    0.0f, 0.0625f / 12, 8.0f / 12, 12.0f / 12, 4.0f / 12, 6.0f / 12, 2.0f / 12, 3.0f / 12, 0.0f, -0.0625f / 12, -8.0f / 12, -12.0f / 12, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12\n",
"};\n",
"\n",
"// scale[b] = absmax[b], or with double quantisation map[absmax[b]] * nested_absmax[b / nested_blocksize] + offset, the product rounded before the sum.\n",
"// b: the block's number in the matrix; at: where its absmax lies, which is b unless the rows lie in tiles.\n",
"static __device__ __forceinline__ float g3k__scale(const g3k__bits &w, size_t b, size_t at)\n",
"{\n",
"    if (!w.nested_absmax) return ((const float *)w.absmax)[at];\n",
"    return __fadd_rn(__fmul_rn(w.nested_map[((const g3k__u8 *)w.absmax)[at]], w.nested_absmax[b / w.nested_blocksize]), w.nested_offset);\n",
"}\n",
"\n",
"// Tiles: 16 rows of a matrix lie interleaved in units of 8 bytes, [rows / 16][row bytes / 8][16][8]; their scales [rows / 16][blocks of a row][16].\n",
"// So 32 bytes of each of 16 rows are 512 bytes that a warp loads at once, 16 bytes a lane: lane 4 u + ... see g3k_linear.\n",
"static __device__ __forceinline__ size_t g3k__tiled(size_t row, size_t byte, size_t row_bytes)\n",
"{\n",
"    return row / 16 * 16 * row_bytes + byte / 8 * 128 + row % 16 * 8 + byte % 8;\n",
"}\n",
"\n",
"// Element (row, col) of a matrix of `cols` columns, in any format, tiled or as stored: exact, and slow. What is fast decodes for itself.\n",
"static __device__ __forceinline__ float g3k__get(const g3k__bits &w, size_t row, size_t col, size_t cols)\n",
"{\n",
"    const size_t i = row * cols + col;\n",
"    const char *data = (const char *)w.data;\n",
"    if (G3K_HAS(G3K_NF4) || G3K_HAS(G3K_FP4))\n",
"        if (w.format == G3K_NF4 || w.format == G3K_FP4) {\n",
"            const size_t b = i / w.blocksize, per_row = cols / w.blocksize;\n",
"            const g3k__u8 byte = (g3k__u8)data[w.tiled ? g3k__tiled(row, col / 2, cols / 2) : i / 2];\n",
"            const int code = i & 1 ? byte & 15 : byte >> 4;\n",
"            return (w.format == G3K_NF4 ? g3k__nf4[code] : g3k__fp4[code]) * g3k__scale(w, b, w.tiled ? row / 16 * 16 * per_row + col / w.blocksize * 16 + row % 16 : b);\n",
"        }\n",
"    switch (w.format) {\n",
"    case G3K_F32:  return ((const float *)data)[i];\n",
"    case G3K_F16:  return g3k__f16(((const g3k__u16 *)data)[i]);\n",
"    case G3K_BF16: return g3k__bf16(*(const g3k__u16 *)(data + (w.tiled ? g3k__tiled(row, 2 * col, 2 * cols) : 2 * i)));\n",
"    }\n",
"    if (G3K_HAS(G3K_E4M3) || G3K_HAS(G3K_E5M2)) {\n",
"        const float f = w.format == G3K_E4M3 ? g3k__e4m3(((const g3k__u8 *)data)[i]) : g3k__f16((g3k__u16)(((const g3k__u8 *)data)[i] << 8));\n",
"        if (!w.scale) return f;\n",
"        return f * (w.scale_format == G3K_F32 ? *(const float *)w.scale : w.scale_format == G3K_BF16 ? g3k__bf16(*(const g3k__u16 *)w.scale) : g3k__f16(*(const g3k__u16 *)w.scale));\n",
"    }\n",
"    return 0.0f;\n",
"}\n",
"\n",
"// Element i of a norm's weights or of a bias: float, bf16 or half. The host sees to it that they are no other format.\n",
"static __device__ __forceinline__ float g3k__dense(const g3k__bits &w, int i)\n",
"{\n",
"    if (w.format == G3K_F32) return ((const float *)w.data)[i];\n",
"    const g3k__u16 h = ((const g3k__u16 *)w.data)[i];\n",
"    return w.format == G3K_BF16 ? g3k__bf16(h) : g3k__f16(h);\n",
"}\n",
"\n",
"// ---- sums over a warp and a block: the same tree for every run\n",
"\n",
"static __device__ __forceinline__ float g3k__warp_sum(float v)\n",
"{\n",
"    for (int step = 16; step; step >>= 1) v += __shfl_xor_sync(0xffffffffu, v, step);\n",
"    return v;\n",
"}\n",
"\n",
"// The sum of f(i) for i < n, in every thread of the block, whatever its size: 256 lanes take i, i + 256, ..., 32 of them are added as a tree, the 8 results\n",
"// in order. room: 8 floats of shared memory, free for use again on return.\n",
"template <class F> static __device__ __forceinline__ float g3k__block_sum(int n, float *room, F f)\n",
"{\n",
"    const int lane = (int)threadIdx.x & 31, warps = (int)blockDim.x >> 5;\n",
"    for (int v = (int)threadIdx.x >> 5; v < 8; v += warps) {\n",
"        float s = 0.0f;\n",
"        for (int i = 32 * v + lane; i < n; i += 256) s = __fadd_rn(s, f(i));\n",
"        s = g3k__warp_sum(s);\n",
"        if (lane == 0) room[v] = s;\n",
"    }\n",
"    __syncthreads();\n",
"    float s = room[0];\n",
"    for (int v = 1; v < 8; v++) s += room[v];\n",
"    __syncthreads();\n",
"    return s;\n",
"}\n",
"\n",
"static __device__ __forceinline__ float g3k__root(float squares, int n, float eps) { return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)n), eps))); }\n",
"\n",
"static __device__ __forceinline__ float g3k__fresh(const float *p) { return *(const volatile float *)p; }      // as the other blocks of this launch left it\n",
"\n",
"// True in all threads of the block that comes last to the ticket, which is 0 before and after the launch. What the other blocks wrote before is then\n",
"// seen. room: 4 bytes of shared memory.\n",
"static __device__ __forceinline__ bool g3k__last_block(unsigned *ticket, unsigned blocks, void *room)\n",
"{\n",
"    unsigned *last = (unsigned *)room;\n",
"    __threadfence();\n",
"    __syncthreads();\n",
"    if (threadIdx.x == 0) {\n",
"        *last = atomicAdd(ticket, 1u) == blocks - 1;\n",
"        if (*last) *ticket = 0;\n",
"    }\n",
"    __syncthreads();\n",
"    if (*last) __threadfence();\n",
"    return *last;\n",
"}\n",
"\n",
"// ---- gelu, and the sum that ends a branch: parts of several kernels\n",
"\n",
"// 0.5 x (1 + tanh u) = x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3)\n",
"// Where products and sums are fused is written out, here and below: left to the compiler it depends on what stands around, and so would the bits.\n",
"static __device__ __forceinline__ float g3k__gelu(float x)\n",
"{\n",
"    return __fdiv_rn(x, __fadd_rn(1.0f, expf(__fmul_rn(-1.595769122f, fmaf(__fmul_rn(__fmul_rn(0.044715f, x), x), x, x)))));\n",
"}\n",
"\n",
"// One row: x += norm(y), or x += y where norm.dim is 0. y may have been written by other blocks of this launch.\n",
"static __device__ __forceinline__ void g3k__add_row(float *x, const float *y, const g3k__norm &norm, int dim, float *room)\n",
"{\n",
"    float scale = 1.0f;\n",
"    if (norm.dim) scale = g3k__root(g3k__block_sum(dim, room, [&](int i) { const float v = g3k__fresh(y + i); return __fmul_rn(v, v); }), dim, norm.eps);\n",
"    for (int i = (int)threadIdx.x; i < dim; i += (int)blockDim.x) x[i] = fmaf(__fmul_rn(g3k__fresh(y + i), scale), norm.dim ? 1.0f + g3k__dense(norm.w, i) : 1.0f, x[i]);\n",
"}\n",
"\n",
"// ==================================================================================================================\n",
"// Matrix products\n",
"// ==================================================================================================================\n",
"\n",
"#if G3K_REST\n",
"\n",
"#ifndef G3K_PRECISE\n",
"#define G3K_PRECISE 0\n",
"#endif\n",
"\n",
"// y[t][r] = sum over k of W[r][k] h[t][k] + b[r],  h = x, or with a norm h[t][k] = x[t][k] (1 + w[k]) / sqrt(mean of x[t]^2 + eps)\n",
"//\n",
"// Tensor cores multiply 16 rows of W by 16 columns, times 8 rows of x (mma.m16n8k16, bf16 in, float out), whether there are 8 rows of x or one:\n",
"// the card waits for W, not for them. W comes in tiles (g3k__tiled): of 32 bytes of each of 16 rows, lane 4 g + t loads bytes [8 t, 8 t + 8) of\n",
"// rows 2 g and 2 g + 1, 16 bytes that lie together, and keeps them: mma's row g is row 2 g of the tile, its row g + 8 is row 2 g + 1, and its\n",
"// columns are dealt out so that the four numbers which a lane holds of a row in step s are columns 4 s .. 4 s + 3 of its part. A and B agree\n",
"// about that, so nothing is shuffled. What a lane has of the result: rows 2 g and 2 g + 1, rows 2 t and 2 t + 1 of x.\n",
"//\n",
"// Codes become bf16 by byte permutes of tables in registers; the 64 products of a block are summed first, then multiplied by the block's scale.\n",
"// G3K_PRECISE: codes are sums of two bf16 numbers, h of three, and what matters of the six products is added: near float32.\n",
"// The norm's factor 1 / sqrt(...) is taken out of the sum: the squares are gathered in the same pass.\n",
"//\n",
"// A block does 2 tiles with `splits` warps each, which share the columns, in chunks of 64; their sums are added in order. Which warp does what\n",
"// depends on the shape of W alone, so a row of y has the same bits whatever the number of rows of x.\n",
"\n",
"struct g3k__fuse {                       // what is done with the result besides; all null: nothing\n",
"    float *act;                         // W is gate over up: act[t][i] = gelu(gate[i]) up[i] instead of y\n",
"    float *x;                           // the block that comes last does x += norm(y), or x += y where post.dim is 0\n",
"    unsigned *ticket;\n",
"    g3k__norm post;\n",
"};\n",
"\n",
"// Distinct tables of double quantisation; a weight's `map` is its number here, or -1: then it is read where it lies.\n",
"__constant__ float g3k_maps[4][256];\n",
"\n",
"static __device__ __forceinline__ void g3k__mma(float c[4], const g3k__u32 a[4], const g3k__u32 b[2])\n",
"{\n",
"    asm(\"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\"\n",
"        : \"+f\"(c[0]), \"+f\"(c[1]), \"+f\"(c[2]), \"+f\"(c[3]) : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b[0]), \"r\"(b[1]));\n",
"}\n",
"\n",
"static __device__ __forceinline__ g3k__u32 g3k__pair(float low, float high)       // two numbers as bf16, side by side\n",
"{\n",
"    g3k__u32 pair;\n",
"    asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(pair) : \"f\"(high), \"f\"(low));\n",
"    return pair;\n",
"}\n",
"\n",
"static __device__ __forceinline__ uint4 g3k__stream(const void *p)                // 16 bytes that are read once\n",
"{\n",
"    uint4 v;\n",
"    asm volatile(\"ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];\" : \"=r\"(v.x), \"=r\"(v.y), \"=r\"(v.z), \"=r\"(v.w) : \"l\"(p));\n",
"    return v;\n",
"}\n",
"\n",
"// The bf16 bits of the 16 codes, and of what is left of them: low bytes of codes 0-3, 4-7, 8-11, 12-15, then high bytes.\n",
"__constant__ const g3k__u32 g3k_codes[2][2][8] = {\n",
"    { { 0xca063280u, 0x00ba3d92u, 0xad7c25a3u, 0x803910e2u, 0xbebfbfbfu, 0x00bdbebeu, 0x3e3e3e3du, 0x3f3f3f3eu },\n",
"      { 0xcad66700u, 0x0071553bu, 0xce9c5420u, 0x009ef537u, 0xb9baba00u, 0x00b9b93au, 0x3737b9b7u, 0x003938bau } },\n",
"    { { 0x802bab00u, 0x802b00abu, 0x802bab00u, 0x802b00abu, 0x3f3f3b00u, 0x3e3e3f3eu, 0xbfbfbb00u, 0xbebebfbeu },\n",
"      { 0x00ab2b00u, 0x00ab002bu, 0x00ab2b00u, 0x00ab002bu, 0x00bab700u, 0x00b900bau, 0x003a3700u, 0x0039003au } }\n",
"};\n",
"\n",
"// Four codes, bytes `at` and `at` + 1 of the word (at 0 or 2; the high nibble comes first), as two pairs of bf16.\n",
"static __device__ __forceinline__ void g3k__decode(const g3k__u32 table[8], g3k__u32 word, int at, g3k__u32 &first, g3k__u32 &second)\n",
"{\n",
"    const g3k__u32 nibbles = at ? word >> 16 : word, eight = nibbles & 0x7777u, upper = __byte_perm(0x0000ff00u, 0, nibbles >> 3 & 0x1111u);      // upper: of codes 8 to 15\n",
"    const g3k__u32 low = (__byte_perm(table[0], table[1], eight) & ~upper) | (__byte_perm(table[2], table[3], eight) & upper);\n",
"    const g3k__u32 high = (__byte_perm(table[4], table[5], eight) & ~upper) | (__byte_perm(table[6], table[7], eight) & upper);\n",
"    first = __byte_perm(low, high, 0x4051);\n",
"    second = __byte_perm(low, high, 0x6273);\n",
"}\n",
"\n",
"static __device__ __forceinline__ float4 g3k__gain(const g3k__norm &norm, int k)\n",
"{\n",
"    if (norm.w.format == G3K_BF16) {\n",
"        const uint2 w = *(const uint2 *)((const g3k__u16 *)norm.w.data + k);\n",
"        return make_float4(1.0f + g3k__bf16((g3k__u16)w.x), 1.0f + g3k__bf16((g3k__u16)(w.x >> 16)), 1.0f + g3k__bf16((g3k__u16)w.y), 1.0f + g3k__bf16((g3k__u16)(w.y >> 16)));\n",
"    }\n",
"    return make_float4(1.0f + g3k__dense(norm.w, k), 1.0f + g3k__dense(norm.w, k + 1), 1.0f + g3k__dense(norm.w, k + 2), 1.0f + g3k__dense(norm.w, k + 3));\n",
"}\n",
"\n",
"template <int NT> struct g3k__columns {  // 8 NT rows of x\n",
"    const float *x[NT];                 // the lane's, of each eight; nullptr: not there\n",
"    float squares[NT];\n",
"    bool normed;\n",
"};\n",
"\n",
"// acc += A B for one step of 16 columns: A in one or two terms, B made of four numbers of each of the lane's rows of x.\n",
"template <int NT> static __device__ __forceinline__ void g3k__step(float acc[NT][4], const g3k__u32 a[4], const g3k__u32 rest[4], bool has_rest, g3k__columns<NT> &B, const g3k__norm &norm, int k)\n",
"{\n",
"    float4 gain = make_float4(1.0f, 1.0f, 1.0f, 1.0f);\n",
"    if (B.normed) gain = g3k__gain(norm, k);\n",
"#pragma unroll\n",
"    for (int i = 0; i < NT; i++) {\n",
"        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);\n",
"        if (B.x[i]) v = *(const float4 *)(B.x[i] + k);\n",
"        if (B.normed) {\n",
"            B.squares[i] += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;\n",
"            v.x *= gain.x; v.y *= gain.y; v.z *= gain.z; v.w *= gain.w;\n",
"        }\n",
"        g3k__u32 b[2] = { g3k__pair(v.x, v.y), g3k__pair(v.z, v.w) };\n",
"        g3k__mma(acc[i], a, b);\n",
"        if (!G3K_PRECISE) continue;\n",
"        if (has_rest) g3k__mma(acc[i], rest, b);\n",
"        v.x -= g3k__bf16((g3k__u16)b[0]); v.y -= g3k__bf16((g3k__u16)(b[0] >> 16)); v.z -= g3k__bf16((g3k__u16)b[1]); v.w -= g3k__bf16((g3k__u16)(b[1] >> 16));\n",
"        b[0] = g3k__pair(v.x, v.y); b[1] = g3k__pair(v.z, v.w);\n",
"        g3k__mma(acc[i], a, b);\n",
"        if (has_rest) g3k__mma(acc[i], rest, b);\n",
"        v.x -= g3k__bf16((g3k__u16)b[0]); v.y -= g3k__bf16((g3k__u16)(b[0] >> 16)); v.z -= g3k__bf16((g3k__u16)b[1]); v.w -= g3k__bf16((g3k__u16)(b[1] >> 16));\n",
"        b[0] = g3k__pair(v.x, v.y); b[1] = g3k__pair(v.z, v.w);\n",
"        g3k__mma(acc[i], a, b);\n",
"    }\n",
"}\n",
"\n",
"// The scales of one tile, as a lane asks for them: rows 2 g and 2 g + 1 of block b, both in one load. Groups of nested_absmax last long: they are kept.\n",
"struct g3k__scales {\n",
"    const char *absmax;                 // of the tile, at row 2 g\n",
"    g3k__u32 first[2];                  // number of the first block of rows 2 g and 2 g + 1; the host refuses tiles of 2^31 blocks\n",
"    g3k__u32 group[2];                  // which nested_absmax is kept\n",
"    float kept[2];\n",
"};\n",
"\n",
"static __device__ __forceinline__ float2 g3k__scale_pair(const g3k__bits &w, g3k__scales &s, int block)\n",
"{\n",
"    if (!w.nested_absmax) return *(const float2 *)(s.absmax + (size_t)block * 64);\n",
"    const g3k__u16 code = *(const g3k__u16 *)(s.absmax + (size_t)block * 16);\n",
"    float scale[2];\n",
"#pragma unroll\n",
"    for (int i = 0; i < 2; i++) {\n",
"        const g3k__u32 group = (s.first[i] + (g3k__u32)block) >> (31 - __clz((int)w.nested_blocksize));\n",
"        if (group != s.group[i]) { s.group[i] = group; s.kept[i] = w.nested_absmax[group]; }\n",
"        const int c = i ? code >> 8 : code & 255;\n",
"        scale[i] = __fadd_rn(__fmul_rn(w.map < 0 ? w.nested_map[c] : g3k_maps[w.map][c], s.kept[i]), w.nested_offset);\n",
"    }\n",
"    return make_float2(scale[0], scale[1]);\n",
"}\n",
"\n",
"// acc += the tile's rows at `row`, columns [64 from, 64 end), for 4-bit codes.\n",
"template <int NT> static __device__ __forceinline__ void g3k__tile_4bit(float acc[NT][4], const g3k__bits &w, int row, int cols, int from, int end, g3k__columns<NT> &B, const g3k__norm &norm)\n",
"{\n",
"    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, wide = (int)w.blocksize / 64;\n",
"    const char *codes = (const char *)w.data + (size_t)row * cols / 2 + t * 128 + g * 16;\n",
"    g3k__scales s;\n",
"    g3k__u32 table[8], small[8];\n",
"    const size_t per_row = cols / w.blocksize;\n",
"#pragma unroll\n",
"    for (int i = 0; i < 8; i++) { table[i] = g3k_codes[w.format == G3K_FP4][0][i]; small[i] = g3k_codes[w.format == G3K_FP4][1][i]; }\n",
"    s.absmax = (const char *)w.absmax + ((size_t)row / 16 * per_row * 16 + 2 * g) * (w.nested_absmax ? 1 : 4);\n",
"    s.first[0] = (g3k__u32)(row + 2 * g) * (g3k__u32)per_row;\n",
"    s.first[1] = s.first[0] + (g3k__u32)per_row;\n",
"    s.group[0] = s.group[1] = ~0u;\n",
"    const int last = end - 1;\n",
"    uint4 next = g3k__stream(codes + (size_t)from * 512), after = g3k__stream(codes + (size_t)(from < last ? from + 1 : last) * 512);\n",
"    float2 scale = make_float2(0.0f, 0.0f);\n",
"    for (int chunk = from; chunk < end; chunk++) {                               // `from` is even: one request brings the scales of two chunks\n",
"        const g3k__u32 word[4] = { next.x, next.y, next.z, next.w };\n",
"        if (chunk % 2 == 0) scale = g3k__scale_pair(w, s, (chunk + (t & 1) < end ? chunk + (t & 1) : chunk) / wide);\n",
"        next = after;\n",
"        if (chunk + 2 < end) after = g3k__stream(codes + (size_t)(chunk + 2) * 512);\n",
"        const float even = __shfl_sync(0xffffffffu, scale.x, (lane & ~3) + chunk % 2), odd = __shfl_sync(0xffffffffu, scale.y, (lane & ~3) + chunk % 2);\n",
"        float block[NT][4];\n",
"#pragma unroll\n",
"        for (int i = 0; i < NT; i++) block[i][0] = block[i][1] = block[i][2] = block[i][3] = 0.0f;\n",
"#pragma unroll\n",
"        for (int step = 0; step < 4; step++) {\n",
"            g3k__u32 a[4], rest[4];\n",
"            g3k__decode(table, word[step / 2], step % 2 * 2, a[0], a[2]);\n",
"            g3k__decode(table, word[2 + step / 2], step % 2 * 2, a[1], a[3]);\n",
"            if (G3K_PRECISE) g3k__decode(small, word[step / 2], step % 2 * 2, rest[0], rest[2]);\n",
"            if (G3K_PRECISE) g3k__decode(small, word[2 + step / 2], step % 2 * 2, rest[1], rest[3]);\n",
"            g3k__step<NT>(block, a, rest, true, B, norm, chunk * 64 + 16 * t + 4 * step);\n",
"        }\n",
"#pragma unroll\n",
"        for (int i = 0; i < NT; i++) {\n",
"            acc[i][0] += block[i][0] * even; acc[i][1] += block[i][1] * even;\n",
"            acc[i][2] += block[i][2] * odd;  acc[i][3] += block[i][3] * odd;\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"// The same for bf16 weights: a chunk is up to four loads of 16 columns.\n",
"template <int NT> static __device__ __forceinline__ void g3k__tile_bf16(float acc[NT][4], const g3k__bits &w, int row, int cols, int from, int end, g3k__columns<NT> &B, const g3k__norm &norm)\n",
"{\n",
"    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, last = cols / 16 < 4 * end ? cols / 16 : 4 * end;\n",
"    const char *numbers = (const char *)w.data + (size_t)row * cols * 2 + t * 128 + g * 16;\n",
"    for (int part = 4 * from; part < last; part += 4) {\n",
"        uint4 now[4];\n",
"#pragma unroll\n",
"        for (int i = 0; i < 4; i++) if (part + i < last) now[i] = g3k__stream(numbers + (size_t)(part + i) * 512);\n",
"#pragma unroll\n",
"        for (int i = 0; i < 4; i++) {\n",
"            if (part + i >= last) break;\n",
"            const g3k__u32 a[4] = { now[i].x, now[i].z, now[i].y, now[i].w };\n",
"            g3k__step<NT>(acc, a, a, false, B, norm, (part + i) * 16 + 4 * t);\n",
"        }\n",
"    }\n",
"}\n",
"\n",
"// Which rows of which segment tile number `tile` of the matrix holds; first: of y.\n",
"static __device__ __forceinline__ int g3k__find_tile(const g3k__mat &W, int tile, int &row, int &first)\n",
"{\n",
"    int s = 0;\n",
"    first = 0;\n",
"    while (s < W.n_segs && tile >= W.seg[s].rows / 16) { tile -= W.seg[s].rows / 16; first += W.seg[s].rows; s++; }\n",
"    row = tile * 16;\n",
"    return s;\n",
"}\n",
"\n",
"//   x  float [n][cols]    y  float [n][rows]    W  all segments in tiles    norm  RMSNorm, dim 0: none\n",
"//   launch: grid (tiles / 2 rounded up, n / (8 NT) rounded up), 64 splits threads, splits 1, 2 or 4\n",
"template <int NT> static __device__ __forceinline__ void g3k__linear(float *y, const float *x, const g3k__norm &norm, const g3k__mat &W, int n, const g3k__fuse &fuse)\n",
"{\n",
"    __shared__ float4 sums[8 * NT * 32];\n",
"    __shared__ float squares[4][8 * NT];\n",
"    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, splits = blockDim.x / 64, which = warp / splits, split = warp % splits;\n",
"    const int tiles = W.rows / 16, tile = fuse.act ? (int)blockIdx.x + which * (tiles / 2) : (int)blockIdx.x * 2 + which, first_row = (int)blockIdx.y * 8 * NT;\n",
"    const int chunks = (W.cols + 63) / 64, each = (chunks + 2 * splits - 1) / (2 * splits) * 2, from = split * each, end = from + each < chunks ? from + each : chunks;\n",
"    float acc[NT][4];\n",
"    g3k__columns<NT> B;\n",
"    B.normed = norm.dim != 0;\n",
"#pragma unroll\n",
"    for (int i = 0; i < NT; i++) {\n",
"        const int t = first_row + 8 * i + (lane >> 2);\n",
"        B.x[i] = t < n ? x + (size_t)t * W.cols : nullptr;\n",
"        B.squares[i] = acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0.0f;\n",
"    }\n",
"    if (tile < tiles && from < end) {\n",
"        int row, first;\n",
"        const g3k__bits &w = W.seg[g3k__find_tile(W, tile, row, first)].bits;\n",
"        if ((G3K_HAS(G3K_NF4) || G3K_HAS(G3K_FP4)) && w.format != G3K_BF16) g3k__tile_4bit<NT>(acc, w, row, W.cols, from, end, B, norm);\n",
"        else if (G3K_HAS(G3K_BF16)) g3k__tile_bf16<NT>(acc, w, row, W.cols, from, end, B, norm);\n",
"    }\n",
"#pragma unroll\n",
"    for (int i = 0; i < NT; i++) {\n",
"        sums[(warp * NT + i) * 32 + lane] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);\n",
"        float s = B.squares[i];\n",
"        s += __shfl_xor_sync(0xffffffffu, s, 1);\n",
"        s += __shfl_xor_sync(0xffffffffu, s, 2);\n",
"        if (which == 0 && (lane & 3) == 0) squares[split][8 * i + (lane >> 2)] = s;\n",
"    }\n",
"    __syncthreads();\n",
"    for (int item = (int)threadIdx.x; item < (fuse.act ? 1 : 2) * NT * 32; item += (int)blockDim.x) {\n",
"        const int i = item / 32 % NT, of = item & 31, t = first_row + 8 * i + 2 * (of & 3), which_tile = item / 32 / NT;\n",
"        const int there = fuse.act ? (int)blockIdx.x : (int)blockIdx.x * 2 + which_tile;\n",
"        float v[2][4], factor[2] = { 1.0f, 1.0f };\n",
"        int row, first;\n",
"        if (there >= tiles) continue;\n",
"        if (norm.dim)\n",
"#pragma unroll\n",
"            for (int k = 0; k < 2; k++) {\n",
"                float s = 0.0f;\n",
"                for (int p = 0; p < splits; p++) s += squares[p][8 * i + 2 * (of & 3) + k];\n",
"                factor[k] = g3k__root(s, W.cols, norm.eps);\n",
"            }\n",
"#pragma unroll\n",
"        for (int half = 0; half < 2; half++) {\n",
"            if (half && !fuse.act) break;\n",
"            float4 s = sums[((which_tile + half) * splits * NT + i) * 32 + of];\n",
"            for (int p = 1; p < splits; p++) {\n",
"                const float4 u = sums[(((which_tile + half) * splits + p) * NT + i) * 32 + of];\n",
"                s.x += u.x; s.y += u.y; s.z += u.z; s.w += u.w;\n",
"            }\n",
"            v[half][0] = __fmul_rn(s.x, factor[0]); v[half][1] = __fmul_rn(s.y, factor[1]);      // rounded here, whatever follows: fused or not, the same bits\n",
"            v[half][2] = __fmul_rn(s.z, factor[0]); v[half][3] = __fmul_rn(s.w, factor[1]);\n",
"            const g3k__seg &seg = W.seg[g3k__find_tile(W, there + half * (tiles / 2), row, first)];\n",
"            if (seg.bias.data)\n",
"#pragma unroll\n",
"                for (int k = 0; k < 4; k++) v[half][k] += g3k__dense(seg.bias, row + 2 * (of >> 2) + k / 2);\n",
"        }\n",
"        g3k__find_tile(W, there, row, first);\n",
"        row += first + 2 * (of >> 2);\n",
"#pragma unroll\n",
"        for (int k = 0; k < 2; k++) {\n",
"            if (t + k >= n) continue;\n",
"            if (fuse.act) *(float2 *)(fuse.act + (size_t)(t + k) * (W.rows / 2) + row) = make_float2(g3k__gelu(v[0][k]) * v[1][k], g3k__gelu(v[0][2 + k]) * v[1][2 + k]);\n",
"            else *(float2 *)(y + (size_t)(t + k) * W.rows + row) = make_float2(v[0][k], v[0][2 + k]);\n",
"        }\n",
"    }\n",
"    if (fuse.x && g3k__last_block(fuse.ticket, gridDim.x * gridDim.y, squares)) for (int t = 0; t < n; t++) g3k__add_row(fuse.x + (size_t)t * W.rows, y + (size_t)t * W.rows, fuse.post, W.rows, (float *)sums);\n",
"}\n",
"\n",
"#define G3K_LINEAR(name, NT) \\\n",
"extern \"C\" __global__ void __launch_bounds__(256, (NT) == 1 && !G3K_PRECISE ? 3 : (NT) == 1 ? 2 : 1) name(float *y, const float *x, const __grid_constant__ g3k__norm norm, const __grid_constant__ g3k__mat W, int n, const __grid_constant__ g3k__fuse fuse) \\\n",
"{ g3k__linear<NT>(y, x, norm, W, n, fuse); }\n",
"G3K_LINEAR(g3k_linear, 1)               // up to 8 rows of x\n",
"G3K_LINEAR(g3k_linear_many, 4)          // 32 a block\n",
"\n",
"// The same for matrices that do not lie in tiles: any format and shape, float32 throughout. A warp does one row of W and up to 8 rows of x; lane l\n",
"// takes columns l, l + 32, ... and the lanes' sums are added as a tree.\n",
"//   launch: grid (rows / 4 rounded up, n / 8 rounded up), 128 threads\n",
"extern \"C\" __global__ void __launch_bounds__(128) g3k_linear_plain(float *y, const float *x, const __grid_constant__ g3k__mat W, int n)\n",
"{\n",
"    const int lane = threadIdx.x & 31, at = (int)(blockIdx.x * 4 + (threadIdx.x >> 5)), t = (int)blockIdx.y * 8;\n",
"    int s = 0, row = at;\n",
"    if (at >= W.rows) return;\n",
"    while (row >= W.seg[s].rows) row -= W.seg[s++].rows;\n",
"    const g3k__seg &seg = W.seg[s];\n",
"    float sum[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };\n",
"    for (int k = lane; k < W.cols; k += 32) {\n",
"        const float w = W.transposed ? g3k__get(seg.bits, k, row, W.rows) : g3k__get(seg.bits, row, k, W.cols);\n",
"#pragma unroll\n",
"        for (int i = 0; i < 8; i++) if (t + i < n) sum[i] = fmaf(w, x[(size_t)(t + i) * W.cols + k], sum[i]);\n",
"    }\n",
"#pragma unroll\n",
"    for (int i = 0; i < 8; i++) {\n",
"        const float all = g3k__warp_sum(sum[i]);\n",
"        if (lane == 0 && t + i < n) y[(size_t)(t + i) * W.rows + at] = all + (seg.bias.data ? g3k__dense(seg.bias, row) : 0.0f);\n",
"    }\n",
"}\n",
"\n",
"// y[t] = scale E[ids[t]], exactly; ids nullptr: rows 0, 1, 2, ...; an id below 0 leaves its row as it is\n",
"//   launch: grid n, 256 threads\n",
"extern \"C\" __global__ void __launch_bounds__(256) g3k_embed(float *y, const __grid_constant__ g3k__mat E, const int *ids, float scale)\n",
"{\n",
"    const int t = (int)blockIdx.x, id = ids ? ids[t] : t;\n",
"    if (id < 0 || id >= E.rows) return;\n",
"    for (int i = (int)threadIdx.x; i < E.cols; i += (int)blockDim.x) y[(size_t)t * E.cols + i] = g3k__get(E.seg[0].bits, id, i, E.cols) * scale;\n",
"}\n",
"#endif\n",
"\n",
"// ==================================================================================================================\n",
"// Norms, embedding, sums, gelu, pooling\n",
"// ==================================================================================================================\n",
"\n",
"#if G3K_REST\n",
"\n",
"// y = norm(x), row by row.  RMSNorm: x / sqrt(mean of x^2 + eps) * (1 + w).  LayerNorm: (x - mean) / sqrt(mean of (x - mean)^2 + eps) * w + b\n",
"//   x, y  float [n][dim], may be the same array\n",
"//   launch: grid n, 256 threads\n",
"extern \"C\" __global__ void __launch_bounds__(256) g3k_norm(float *y, const float *x, const __grid_constant__ g3k__norm norm)\n",
"{\n",
"    __shared__ float room[8];\n",
"    const size_t row = (size_t)blockIdx.x * (size_t)norm.dim;\n",
"    const float mean = norm.layer ? g3k__block_sum(norm.dim, room, [&](int i) { return x[row + i]; }) / (float)norm.dim : 0.0f;\n",
"    const float scale = g3k__root(g3k__block_sum(norm.dim, room, [&](int i) { const float v = x[row + i] - mean; return __fmul_rn(v, v); }), norm.dim, norm.eps);\n",
"    for (int i = (int)threadIdx.x; i < norm.dim; i += 256)\n",
"        y[row + i] = norm.layer ? (x[row + i] - mean) * scale * g3k__dense(norm.w, i) + g3k__dense(norm.b, i) : x[row + i] * scale * (1.0f + g3k__dense(norm.w, i));\n",
"}\n",
"\n",
"// x[t] += norm(y[t]), or x[t] += y[t] where norm.dim is 0.  x, y  float [n][dim]\n",
"//   launch: grid n, 256 threads\n",
"extern \"C\" __global__ void __launch_bounds__(256) g3k_add(float *x, const float *y, const __grid_constant__ g3k__norm norm, int dim)\n",
"{\n",
"    __shared__ float room[8];\n",
"    g3k__add_row(x + (size_t)blockIdx.x * dim, y + (size_t)blockIdx.x * dim, norm, dim, room);\n",
"}\n",
"\n",
"// y[t][i] = gelu(gu[t][i]) gu[t][m + i].  y  float [n][m], gu  float [n][2 m]\n",
"//   launch: grid (m / 256 rounded up, n), 256 threads\n",
"extern \"C\" __global__ void __launch_bounds__(256) g3k_geglu(float *y, const float *gu, int m)\n",
"{\n",
"    const size_t t = blockIdx.y;\n",
"    const int i = (int)(blockIdx.x * 256 + threadIdx.x);\n",
"    if (i < m) y[t * m + i] = g3k__gelu(gu[t * 2 * m + i]) * gu[t * 2 * m + m + i];\n",
"}\n",
"\n",
"// y = gelu(y).  y  float [n][m].  launch: grid (m / 256 rounded up, n), 256 threads\n",
"extern \"C\" __global__ void __launch_bounds__(256) g3k_gelu(float *y, int m)\n",
"{\n",
"    const int i = (int)(blockIdx.x * 256 + threadIdx.x);\n",
"    if (i < m) y[(size_t)blockIdx.y * m + i] = g3k__gelu(y[(size_t)blockIdx.y * m + i]);\n",
"}\n",
"\n",
"// Means of k k patches of a side side grid: y  float [(side / k)^2][dim], x  float [side^2][dim].  launch: grid (side / k)^2, 256 threads\n",
"extern \"C\" __global__ void __launch_bounds__(256) g3k_pool(float *y, const float *x, int side, int k, int dim)\n",
"{\n",
"    const int out = side / k, cell = (int)blockIdx.x;\n",
"    for (int i = (int)threadIdx.x; i < dim; i += 256) {\n",
"        float sum = 0.0f;\n",
"        for (int p = 0; p < k * k; p++) sum += x[((size_t)(cell / out * k + p / k) * side + cell % out * k + p % k) * dim + i];\n",
"        y[(size_t)cell * dim + i] = sum / (float)(k * k);\n",
"    }\n",
"}\n",
"\n",
"// angle[t][j] = cos, sin of pos freq[j], the product in float32: far positions tell.  angle  float [n][half][2]\n",
"//   launch: grid n, 64 threads\n",
"extern \"C\" __global__ void g3k_angles(float *angle, const float *freq, const g3k__row *rows, int half)\n",
"{\n",
"    for (int i = threadIdx.x; i < half; i += blockDim.x) {\n",
"        float a = (float)rows[blockIdx.x].pos * freq[i];\n",
"        angle[((size_t)blockIdx.x * half + i) * 2] = cosf(a);\n",
"        angle[((size_t)blockIdx.x * half + i) * 2 + 1] = sinf(a);\n",
"    }\n",
"}\n",
"#endif\n",
"\n",
"// ==================================================================================================================\n",
"// Attention\n",
"// ==================================================================================================================\n",
"\n",
"// Keys and values of a sequence lie in a ring: position p in row p % rows, [kv_heads][rows][head_dim]. A row of the step at position p sees positions\n",
"// max(0, p - window + 1) to its span, which is p, or the end of its image. What is compiled: for one size of head, one format of the cache, and one\n",
"// group, the query heads that share a kv head (in sets of at most 8). The names say so: g3k_attend_256x4_bf16.\n",
"//\n",
"// The softmax is cut into parts of 256 positions that begin at multiples of 256, each made by one block, and merged in order (\"Online normalizer\n",
"// calculation for softmax\", Milakov and Gimelshein, 2018): a row alone, whose parts many blocks share, has the same bits as among others.\n",
"\n",
"#if G3K_ATTENTION\n",
"\n",
"#define G3K_KV_F32  0\n",
"#define G3K_KV_BF16 1\n",
"#define G3K_KV_FP8  2\n",
"#define G3K_KV_INT8 3\n",
"\n",
"enum { G3K_PART = 256 };\n",
"\n",
"template <int D, int KV, int G> struct g3k__size {\n",
"    static constexpr int bytes = KV == G3K_KV_F32 ? 4 : KV == G3K_KV_BF16 ? 2 : 1;      // of one number\n",
"    static constexpr int each = 16 / bytes;                                             // numbers that a lane loads at once\n",
"    static constexpr bool whole = D * bytes % 16 == 0;                                  // rows are whole 16 bytes\n",
"    static constexpr int loads = (D + each - 1) / each;                                 // of a row\n",
"    static constexpr int lanes = loads > 16 ? 32 : loads > 8 ? 16 : loads > 4 ? 8 : loads > 2 ? 4 : loads > 1 ? 2 : 1;     // that share a row\n",
"    static constexpr int turns = (loads + lanes - 1) / lanes;\n",
"    static constexpr int keys = 32 / lanes;                                             // rows that a warp loads at once\n",
"    static constexpr int warps = G * D > 1024 ? 2 : 4;\n",
"    static constexpr bool scaled = KV == G3K_KV_FP8 || KV == G3K_KV_INT8;\n",
"};\n",
"\n",
"// ---- the cache\n",
"\n",
"static __device__ __forceinline__ g3k__u16 g3k__to_bf16(float f)                  // nearest, ties to even\n",
"{\n",
"    const g3k__u32 u = __float_as_uint(f);\n",
"    return (u & 0x7fffffffu) > 0x7f800000u ? (g3k__u16)(u >> 16 | 0x40) : (g3k__u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);\n",
"}\n",
"\n",
"static __device__ __forceinline__ g3k__u8 g3k__to_e4m3(float f)                   // |f| <= 448; nearest, ties to even\n",
"{\n",
"    const g3k__u32 u = __float_as_uint(f) & 0x7fffffffu, sign = __float_as_uint(f) >> 24 & 0x80;\n",
"    if (u < 121u << 23) return (g3k__u8)(sign | (g3k__u32)__float2int_rn(__uint_as_float(u) * 512.0f));      // below 2^-6: multiples of 2^-9\n",
"    return (g3k__u8)(sign | (((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120u << 3)));\n",
"}\n",
"\n",
"static __device__ __forceinline__ float g3k__limit(float x, float most) { return x > most ? most : x < -most ? -most : x == x ? x : 0.0f; }\n",
"\n",
"// One row of K or V into the cache, by a warp. 8 bits: the largest magnitude becomes the largest code; what is not finite makes the scale infinite.\n",
"template <int D, int KV> static __device__ __forceinline__ void g3k__put(void *codes, float *scales, size_t row, const float *x)\n",
"{\n",
"    const int lane = (int)threadIdx.x & 31;\n",
"    const size_t at = row * D;\n",
"    if (KV == G3K_KV_F32)  { for (int i = lane; i < D; i += 32) ((float *)codes)[at + i] = x[i]; return; }\n",
"    if (KV == G3K_KV_BF16) { for (int i = lane; i < D; i += 32) ((g3k__u16 *)codes)[at + i] = g3k__to_bf16(x[i]); return; }\n",
"    const float largest = KV == G3K_KV_FP8 ? 448.0f : 127.0f;\n",
"    float most = 0.0f;\n",
"    bool finite = true;\n",
"    for (int i = lane; i < D; i += 32) { const float a = fabsf(x[i]); finite = finite && a <= 3.402823466e+38f; most = a > most ? a : most; }\n",
"    for (int step = 16; step; step >>= 1) { const float a = __shfl_xor_sync(0xffffffffu, most, step); most = a > most ? a : most; }\n",
"    const float scale = __all_sync(0xffffffffu, finite) ? __fdiv_rn(most, largest) : __uint_as_float(0x7f800000u);\n",
"    if (lane == 0) scales[row] = scale;\n",
"    for (int i = lane; i < D; i += 32) {\n",
"        const float code = g3k__limit(scale > 0.0f ? __fdiv_rn(x[i], scale) : 0.0f, largest);\n",
"        if (KV == G3K_KV_FP8) ((g3k__u8 *)codes)[at + i] = g3k__to_e4m3(code);\n",
"        else ((signed char *)codes)[at + i] = (signed char)__float2int_rn(code);\n",
"    }\n",
"}\n",
"\n",
"// Numbers e, e + 1, ... of a row of codes, as many as a lane loads at once; beyond the row 0.\n",
"template <int D, int KV, int G> static __device__ __forceinline__ void g3k__load(float *v, const void *codes, size_t row, int e)\n",
"{\n",
"    typedef g3k__size<D, KV, G> size;\n",
"    const char *p = (const char *)codes + (row * D + e) * size::bytes;\n",
"    if (size::whole) {\n",
"        uint4 w = make_uint4(0, 0, 0, 0);\n",
"        if (e < D) w = *(const uint4 *)p;\n",
"        const g3k__u32 word[4] = { w.x, w.y, w.z, w.w };\n",
"#pragma unroll\n",
"        for (int i = 0; i < size::each; i++) {\n",
"            if (KV == G3K_KV_F32) v[i] = __uint_as_float(word[i]);\n",
"            else if (KV == G3K_KV_BF16) v[i] = __uint_as_float(i & 1 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);\n",
"            else if (KV == G3K_KV_INT8) v[i] = (float)((int)(word[i / 4] << (24 - i % 4 * 8)) >> 24);\n",
"            else v[i] = g3k__e4m3((g3k__u8)(word[i / 4] >> (i % 4 * 8)));\n",
"        }\n",
"        return;\n",
"    }\n",
"#pragma unroll\n",
"    for (int i = 0; i < size::each; i++) {\n",
"        v[i] = 0.0f;\n",
"        if (e + i >= D) continue;\n",
"        if (KV == G3K_KV_F32) v[i] = ((const float *)p)[i];\n",
"        else if (KV == G3K_KV_BF16) v[i] = g3k__bf16(((const g3k__u16 *)p)[i]);\n",
"        else if (KV == G3K_KV_INT8) v[i] = (float)((const signed char *)p)[i];\n",
"        else v[i] = g3k__e4m3(((const g3k__u8 *)p)[i]);\n",
"    }\n",
"}\n",
"\n",
"// ---- rope: one head, by a warp.  u = x / sqrt(mean of x^2 + eps) * (1 + w);  y[i] = u[i] cos - u[i + D / 2] sin,  y[i + D / 2] = u[i + D / 2] cos + u[i] sin\n",
"// norm.dim 0: no norm; angle nullptr: no rotation. y may be x.\n",
"\n",
"template <int D> static __device__ __forceinline__ void g3k__rope_head(float *y, const float *x, const g3k__norm &norm, const float *angle)\n",
"{\n",
"    const int lane = (int)threadIdx.x & 31, half = D / 2;\n",
"    float square = 0.0f, scale = 1.0f;\n",
"    if (norm.dim) {\n",
"        for (int i = lane; i < D; i += 32) square = fmaf(x[i], x[i], square);\n",
"        scale = g3k__root(g3k__warp_sum(square), D, norm.eps);\n",
"    }\n",
"    __syncwarp();\n",
"    for (int i = lane; i < half; i += 32) {\n",
"        float a = x[i], b = x[i + half];\n",
"        if (norm.dim) { a = __fmul_rn(__fmul_rn(a, scale), 1.0f + g3k__dense(norm.w, i)); b = __fmul_rn(__fmul_rn(b, scale), 1.0f + g3k__dense(norm.w, i + half)); }\n",
"        const float c = angle ? angle[2 * i] : 1.0f, s = angle ? angle[2 * i + 1] : 0.0f;\n",
"        y[i] = angle ? fmaf(a, c, -__fmul_rn(b, s)) : a;\n",
"        y[i + half] = angle ? fmaf(b, c, __fmul_rn(a, s)) : b;\n",
"    }\n",
"    __syncwarp();\n",
"}\n",
"\n",
"// q and k are normed and rotated where they lie, k and v go into the cache.  qkv  float [n][heads + 2 kv_heads][D]\n",
"//   launch: grid (heads + 2 kv_heads, n), 32 threads\n",
"template <int D, int KV> static __device__ __forceinline__ void g3k__rope(float *qkv, const g3k__attn &a, const g3k__kv &kv, const g3k__row *rows, const float *angle)\n",
"{\n",
"    const int h = (int)blockIdx.x, t = (int)blockIdx.y, of = h - a.heads;\n",
"    float *x = qkv + ((size_t)t * gridDim.x + h) * D;\n",
"    const size_t at = (size_t)(rows[t].pos % kv.rows);\n",
"    if (of < a.kv_heads) g3k__rope_head<D>(x, x, of < 0 ? a.q_norm : a.k_norm, angle ? angle + (size_t)t * D : nullptr);\n",
"    if (of >= a.kv_heads) g3k__put<D, KV>(kv.v, kv.v_scale, (size_t)(of - a.kv_heads) * kv.rows + at, x);\n",
"    else if (of >= 0) g3k__put<D, KV>(kv.k, kv.k_scale, (size_t)of * kv.rows + at, x);\n",
"}\n",
"\n",
"// ---- attend\n",
"\n",
"template <int D, int KV, int G> struct g3k__attending {  // in shared memory\n",
"    float q[G][D], score[G][G3K_PART], out[g3k__size<D, KV, G>::warps][G][D], sum[G][D];       // out: of each warp; sum: over the parts so far\n",
"    float scale[2][g3k__size<D, KV, G>::scaled ? G3K_PART : 1];                                // of keys, of values\n",
"    float top[G], total[G], part_top[G], part_total[G];                                        // maximum and sum of exp(s - maximum)\n",
"};\n",
"\n",
"// One part: keys [first, first + count) of kv head `head`. Leaves its maximum and sum in part_top and part_total, the weighted values in out[0].\n",
"template <int D, int KV, int G> static __device__ __forceinline__ void g3k__part(g3k__attending<D, KV, G> &m, const g3k__kv &kv, int head, int first, int count, float scale)\n",
"{\n",
"    typedef g3k__size<D, KV, G> size;\n",
"    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, in_row = lane % size::lanes, key = lane / size::lanes;\n",
"    const size_t base = (size_t)head * kv.rows;\n",
"    if (size::scaled)\n",
"        for (int i = (int)threadIdx.x; i < count; i += 32 * size::warps) {\n",
"            m.scale[0][i] = kv.k_scale[base + (first + i) % kv.rows];\n",
"            m.scale[1][i] = kv.v_scale[base + (first + i) % kv.rows];\n",
"        }\n",
"    __syncthreads();\n",
"    float q[G][size::turns * size::each];\n",
"#pragma unroll\n",
"    for (int h = 0; h < G; h++)\n",
"#pragma unroll\n",
"        for (int i = 0; i < size::turns * size::each; i++) {\n",
"            const int e = (i / size::each * size::lanes + in_row) * size::each + i % size::each;\n",
"            q[h][i] = e < D ? m.q[h][e] : 0.0f;\n",
"        }\n",
"    for (int k = warp * size::keys; k < count; k += size::warps * size::keys) {              // scores: a few keys a warp\n",
"        const bool there = k + key < count;\n",
"        float dot[G], v[size::each];\n",
"#pragma unroll\n",
"        for (int h = 0; h < G; h++) dot[h] = 0.0f;\n",
"#pragma unroll\n",
"        for (int turn = 0; turn < size::turns; turn++) {\n",
"            g3k__load<D, KV, G>(v, kv.k, base + (first + (there ? k + key : k)) % kv.rows, (turn * size::lanes + in_row) * size::each);\n",
"#pragma unroll\n",
"            for (int h = 0; h < G; h++)\n",
"#pragma unroll\n",
"                for (int i = 0; i < size::each; i++) dot[h] = fmaf(q[h][turn * size::each + i], v[i], dot[h]);\n",
"        }\n",
"#pragma unroll\n",
"        for (int h = 0; h < G; h++) {\n",
"            for (int step = size::lanes / 2; step; step >>= 1) dot[h] += __shfl_xor_sync(0xffffffffu, dot[h], step);\n",
"            if (in_row == 0 && there) m.score[h][k + key] = __fmul_rn(size::scaled ? __fmul_rn(dot[h], m.scale[0][k + key]) : dot[h], scale);\n",
"        }\n",
"    }\n",
"    __syncthreads();\n",
"    for (int h = warp; h < G; h += size::warps) {                                            // softmax: a head a warp\n",
"        float top = __uint_as_float(0xff800000u), total = 0.0f;\n",
"        for (int i = lane; i < count; i += 32) top = m.score[h][i] > top ? m.score[h][i] : top;\n",
"        for (int step = 16; step; step >>= 1) { const float other = __shfl_xor_sync(0xffffffffu, top, step); top = other > top ? other : top; }\n",
"        for (int i = lane; i < count; i += 32) {\n",
"            const float w = expf(m.score[h][i] - top);\n",
"            total += w;\n",
"            m.score[h][i] = size::scaled ? __fmul_rn(w, m.scale[1][i]) : w;\n",
"        }\n",
"        total = g3k__warp_sum(total);\n",
"        if (lane == 0) { m.part_top[h] = top; m.part_total[h] = total; }\n",
"    }\n",
"    __syncthreads();\n",
"    float sum[G][size::turns * size::each];\n",
"#pragma unroll\n",
"    for (int h = 0; h < G; h++)\n",
"#pragma unroll\n",
"        for (int i = 0; i < size::turns * size::each; i++) sum[h][i] = 0.0f;\n",
"    for (int k = warp * size::keys; k < count; k += size::warps * size::keys) {              // values, by the same lanes\n",
"        const bool there = k + key < count;\n",
"        float v[size::each];\n",
"#pragma unroll\n",
"        for (int turn = 0; turn < size::turns; turn++) {\n",
"            g3k__load<D, KV, G>(v, kv.v, base + (first + (there ? k + key : k)) % kv.rows, (turn * size::lanes + in_row) * size::each);\n",
"#pragma unroll\n",
"            for (int h = 0; h < G; h++) {\n",
"                const float w = there ? m.score[h][k + key] : 0.0f;\n",
"#pragma unroll\n",
"                for (int i = 0; i < size::each; i++) if (there) sum[h][turn * size::each + i] = fmaf(w, v[i], sum[h][turn * size::each + i]);\n",
"            }\n",
"        }\n",
"    }\n",
"#pragma unroll\n",
"    for (int h = 0; h < G; h++)\n",
"#pragma unroll\n",
"        for (int i = 0; i < size::turns * size::each; i++) {\n",
"            const int e = (i / size::each * size::lanes + in_row) * size::each + i % size::each;\n",
"            for (int step = size::lanes; step < 32; step <<= 1) sum[h][i] += __shfl_xor_sync(0xffffffffu, sum[h][i], step);\n",
"            if (key == 0 && e < D) m.out[warp][h][e] = sum[h][i];\n",
"        }\n",
"    __syncthreads();\n",
"    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) {\n",
"        float s = m.out[0][0][i];\n",
"        for (int w = 1; w < size::warps; w++) s += m.out[w][0][i];\n",
"        m.out[0][0][i] = s;\n",
"    }\n",
"    __syncthreads();\n",
"}\n",
"\n",
"// Two runs of softmax become one: sum = sum exp(top - t) + other exp(other_top - t), t the larger maximum; the first is taken as it is.\n",
"static __device__ __forceinline__ float g3k__joined(float top, float other_top, float sum, float other)\n",
"{\n",
"    const float most = other_top > top ? other_top : top;\n",
"    return fmaf(other, expf(other_top - most), __fmul_rn(sum, expf(top - most)));\n",
"}\n",
"\n",
"// sum, top and total of shared memory go on with a part's, which lie at out [G][D], tops [G] and totals [G].\n",
"template <int D, int KV, int G> static __device__ __forceinline__ void g3k__merge(g3k__attending<D, KV, G> &m, const float *out, size_t stride, int tops, bool first)\n",
"{\n",
"    typedef g3k__size<D, KV, G> size;\n",
"    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) {\n",
"        const int h = i / D;\n",
"        const float *part = out + h * stride;\n",
"        m.sum[0][i] = first ? part[i % D] : g3k__joined(m.top[h], part[tops], m.sum[0][i], part[i % D]);\n",
"    }\n",
"    __syncthreads();\n",
"    for (int h = (int)threadIdx.x; h < G; h += 32 * size::warps) {\n",
"        const float *part = out + h * stride;\n",
"        m.total[h] = first ? part[tops + 1] : g3k__joined(m.top[h], part[tops], m.total[h], part[tops + 1]);\n",
"        m.top[h] = first || part[tops] > m.top[h] ? part[tops] : m.top[h];\n",
"    }\n",
"    __syncthreads();\n",
"}\n",
"\n",
"// y[t][h] = softmax(scale q[t][h] K^T) V.  y  float [n][heads][D], qkv as g3k__rope left it.\n",
"//   launch: grid (n, heads / G), 32 warps threads\n",
"template <int D, int KV, int G> static __device__ __forceinline__ void g3k__attend(float *y, const float *qkv, const g3k__attn &a, const g3k__kv &kv, const g3k__row *rows)\n",
"{\n",
"    typedef g3k__size<D, KV, G> size;\n",
"    __shared__ g3k__attending<D, KV, G> m;\n",
"    __shared__ float part[G][D + 2];\n",
"    const int t = (int)blockIdx.x, h = (int)blockIdx.y * G, head = h / (a.heads / a.kv_heads), pos = rows[t].pos, last = rows[t].span;\n",
"    const int low = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0;\n",
"    const float *q = qkv + ((size_t)t * (a.heads + 2 * a.kv_heads) + h) * D;\n",
"    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) m.q[0][i] = q[i];\n",
"    for (int p = low / G3K_PART; p <= last / G3K_PART; p++) {\n",
"        const int first = p * G3K_PART > low ? p * G3K_PART : low, end = (p + 1) * G3K_PART <= last ? (p + 1) * G3K_PART : last + 1;\n",
"        g3k__part(m, kv, head, first, end - first, a.scale);\n",
"        for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) part[i / D][i % D] = m.out[0][0][i];\n",
"        for (int i = (int)threadIdx.x; i < G; i += 32 * size::warps) { part[i][D] = m.part_top[i]; part[i][D + 1] = m.part_total[i]; }\n",
"        __syncthreads();\n",
"        g3k__merge(m, part[0], D + 2, D, p == low / G3K_PART);\n",
"    }\n",
"    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) y[((size_t)t * a.heads + h) * D + i] = __fdiv_rn(m.sum[0][i], m.total[i / D]);\n",
"}\n",
"\n",
"// Rope and attend of one row in one launch, for writing. Each block ropes the heads of q it needs; the one whose part holds the row's own position\n",
"// ropes k, and puts k and v into the cache. Parts go to memory, [parts][heads][D + 2], and the block that comes last joins them.\n",
"//   launch: grid (splits, heads / G), 32 warps threads; splits from the size of the cache, not from the position; tickets  [heads / G]\n",
"template <int D, int KV, int G> static __device__ __forceinline__ void g3k__attend_one(float *y, const float *qkv, const g3k__attn &a, const g3k__kv &kv, const g3k__row *rows, const float *angle,\n",
"                                                                                     float *parts, unsigned *tickets)\n",
"{\n",
"    typedef g3k__size<D, KV, G> size;\n",
"    __shared__ g3k__attending<D, KV, G> m;\n",
"    const int h = (int)blockIdx.y * G, group = a.heads / a.kv_heads, head = h / group, warp = (int)threadIdx.x >> 5, pos = rows[0].pos;\n",
"    const int low = a.window > 0 && pos >= a.window ? pos - a.window + 1 : 0, begin = low / G3K_PART, count = pos / G3K_PART - begin + 1, splits = (int)gridDim.x;\n",
"    const bool own = (count - 1) % splits == (int)blockIdx.x;                                // the last part is this block's\n",
"    if ((int)blockIdx.x < count)\n",
"        for (int i = warp; i < G; i += size::warps) g3k__rope_head<D>(m.q[i], qkv + (size_t)(h + i) * D, a.q_norm, angle);\n",
"    if (own) {\n",
"        const size_t row = (size_t)head * kv.rows + pos % kv.rows;\n",
"        const float *k = qkv + (size_t)(a.heads + head) * D, *v = k + (size_t)a.kv_heads * D;\n",
"        if (warp == 0) { g3k__rope_head<D>(m.sum[0], k, a.k_norm, angle); g3k__put<D, KV>(kv.k, kv.k_scale, row, m.sum[0]); }\n",
"        if (warp == 1) g3k__put<D, KV>(kv.v, kv.v_scale, row, v);\n",
"    }\n",
"    __syncthreads();\n",
"    for (int p = (int)blockIdx.x; p < count; p += splits) {\n",
"        const int at = (begin + p) * G3K_PART, first = at > low ? at : low, end = at + G3K_PART <= pos ? at + G3K_PART : pos + 1;\n",
"        float *part = parts + ((size_t)p * a.heads + h) * (D + 2);\n",
"        g3k__part(m, kv, head, first, end - first, a.scale);\n",
"        for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) part[i / D * (D + 2) + i % D] = m.out[0][0][i];\n",
"        for (int i = (int)threadIdx.x; i < G; i += 32 * size::warps) { part[i * (D + 2) + D] = m.part_top[i]; part[i * (D + 2) + D + 1] = m.part_total[i]; }\n",
"        __syncthreads();\n",
"    }\n",
"    if (!g3k__last_block(tickets + blockIdx.y, (unsigned)splits, m.score)) return;\n",
"    for (int p = 0; p < count; p++) {\n",
"        const float *part = parts + ((size_t)p * a.heads + h) * (D + 2);\n",
"        for (int i = (int)threadIdx.x; i < G * (D + 2); i += 32 * size::warps) m.out[0][0][i] = g3k__fresh(part + i);      // of the first warp, and a little of the next\n",
"        __syncthreads();\n",
"        g3k__merge(m, m.out[0][0], D + 2, D, p == 0);\n",
"    }\n",
"    for (int i = (int)threadIdx.x; i < G * D; i += 32 * size::warps) y[(size_t)h * D + i] = __fdiv_rn(m.sum[0][i], m.total[i / D]);\n",
"}\n",
"\n",
"#define G3K_ATTEND(D, G, KV, name) \\\n",
"extern \"C\" __global__ void __launch_bounds__(32) g3k_rope_##D##x##G##_##name(float *qkv, const __grid_constant__ g3k__attn a, const __grid_constant__ g3k__kv kv, const g3k__row *rows, const float *angle) \\\n",
"{ g3k__rope<D, KV>(qkv, a, kv, rows, angle); } \\\n",
"extern \"C\" __global__ void __launch_bounds__(128) g3k_attend_##D##x##G##_##name(float *y, const float *qkv, const __grid_constant__ g3k__attn a, const __grid_constant__ g3k__kv kv, const g3k__row *rows) \\\n",
"{ g3k__attend<D, KV, G>(y, qkv, a, kv, rows); } \\\n",
"extern \"C\" __global__ void __launch_bounds__(128) g3k_attend_one_##D##x##G##_##name(float *y, const float *qkv, const __grid_constant__ g3k__attn a, const __grid_constant__ g3k__kv kv, \\\n",
"                                                                                   const g3k__row *rows, const float *angle, float *parts, unsigned *tickets) \\\n",
"{ g3k__attend_one<D, KV, G>(y, qkv, a, kv, rows, angle, parts, tickets); }\n",
"#define G3K_ATTEND_OF(D, G, KV, name) G3K_ATTEND(D, G, KV, name)\n",
"\n",
"#if defined(G3K_HEAD_DIM)\n",
"#if G3K_KV == G3K_KV_F32\n",
"G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 0, f32)\n",
"#elif G3K_KV == G3K_KV_BF16\n",
"G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 1, bf16)\n",
"#elif G3K_KV == G3K_KV_FP8\n",
"G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 2, fp8)\n",
"#else\n",
"G3K_ATTEND_OF(G3K_HEAD_DIM, G3K_GROUP, 3, int8)\n",
"#endif\n",
"#else                                   // the published models: 270M and 1B, 4B and 12B, 27B, and the vision tower\n",
"#define G3K_ATTEND_KV(D, G) G3K_ATTEND(D, G, 0, f32) G3K_ATTEND(D, G, 1, bf16) G3K_ATTEND(D, G, 2, fp8) G3K_ATTEND(D, G, 3, int8)\n",
"G3K_ATTEND_KV(256, 4)\n",
"G3K_ATTEND_KV(256, 2)\n",
"G3K_ATTEND_KV(128, 2)\n",
"G3K_ATTEND(72, 1, 0, f32)\n",
"#endif\n",
"#endif\n",
//<embed
NULL };
static const char *const *g3__kernel_lines(void) { return g3__kernel_source; }
#endif

#endif // G3__IMPLEMENTED
#endif // GEMMA3_IMPLEMENTATION

// ------------------------------------------------------------------------------------------------------------------
// History
//     0.1.0   text on the CPU: files, tokenizer, memory plan, sessions, sampling, chat
//
// Licence: choose either.
//
// A. MIT. Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files
//    (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge,
//    publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so,
//    subject to the following conditions: The above copyright notice and this permission notice shall be included in all copies or substantial
//    portions of the Software. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO
//    THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS
//    BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN
//    CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
// B. Public domain (unlicense.org). This is free and unencumbered software released into the public domain. Anyone is free to copy, modify,
//    publish, use, compile, sell, or distribute this software, in source or as a binary, for any purpose, commercial or non-commercial, and by any
//    means. In jurisdictions that recognise copyright laws, the authors dedicate any and all copyright interest in the software to the public
//    domain. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND.
