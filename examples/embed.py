#!/usr/bin/env python3
# embed.py: streams a completion from Python, through ctypes and the shared library that `make all` builds from the header.
#
#     python3 examples/embed.py build/gemma-3-270m-nf4 "Once upon a time" [TOKENS]
#
# No binding is needed: descs are plain structs in which zero is the default, and g3_next is pulled, so that no callback crosses the
# languages. Only what is used here is described, every struct in full, as in the header: name, then i int, f float, ? bool, Q uint64_t,
# P pointer, z text, or another struct. tests/model/test_embed.sh compares the place of every field with the C compiler's.
import ctypes as c, os, sys

KIND = {"i": c.c_int, "f": c.c_float, "?": c.c_bool, "Q": c.c_uint64, "P": c.c_void_p, "z": c.c_char_p, "text": c.c_char * 504}

def struct(name, fields):
    KIND[name] = type(name, (c.Structure,), {"_fields_": [(f, KIND[k]) for f, k in (x.split(":") for x in fields.split())]})
    return KIND[name]

g3_error = struct("g3_error", "code:i text:text")
struct("g3_allocator", "alloc_fn:P free_fn:P user:P")
struct("g3_logger", "log_fn:P user:P")
struct("g3_progress", "progress_fn:P user:P")
struct("g3_parallel", "for_fn:P width:i user:P")
struct("g3_files", "open_fn:P read_fn:P close_fn:P width:i user:P")
g3_model_desc = struct("g3_model_desc", "path:z backend:i device:i threads:i no_vision:? no_weights:? precise:? screened_head:? memory_limit:Q session:P sessions:i "
                       "kernel_path:z libraries:z cache_dir:z files:g3_files allocator:g3_allocator logger:g3_logger progress:g3_progress parallel:g3_parallel simd:z")
struct("g3_sampler", "greedy:? temperature:f top_k:i top_p:f min_p:f repeat_penalty:f seed:Q logprobs:? logits_fn:P user:P")
g3_generate_desc = struct("g3_generate_desc", "sampler:g3_sampler max_tokens:i stops:P n_stops:i ignore_stop_ids:? token_fn:P user:P")
g3_token = struct("g3_token", "id:i text:P size:i logprob:f")

def library(path=os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "build", "libgemma3.so")):
    g3 = c.CDLL(path)
    g3.g3_model_open.restype = g3.g3_session_open.restype = c.c_void_p
    return g3

def complete(g3, path, prompt, tokens):                  # yields bytes, whole UTF-8 characters, as they are written
    err, token, how = g3_error(), g3_token(), g3_generate_desc(max_tokens=tokens)
    how.sampler.greedy = True
    def call(f, *args):
        result = f(*args, c.byref(err))
        if err.code: raise RuntimeError(err.text.decode())
        return result
    model = session = c.c_void_p()
    try:
        model = c.c_void_p(call(g3.g3_model_open, c.byref(g3_model_desc(path=os.fsencode(path)))))
        session = c.c_void_p(call(g3.g3_session_open, model, None))
        ids = (c.c_int * (len(prompt) + 1))()            # never more tokens than bytes, and <bos>
        call(g3.g3_add_tokens, session, ids, g3.g3_tokenize(model, prompt, c.c_size_t(len(prompt)), 2, ids, len(ids)))
        while call(g3.g3_next, session, c.byref(how), c.byref(token)) == 1: yield c.string_at(token.text, token.size)
        yield c.string_at(token.text, token.size)        # what was held back
    finally:
        g3.g3_session_close(session)
        g3.g3_model_close(model)

if __name__ == "__main__":
    if len(sys.argv) < 3: sys.exit("usage: embed.py DIR PROMPT [TOKENS]")
    try:
        for text in complete(library(), sys.argv[1], os.fsencode(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 100):
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
    except (OSError, RuntimeError) as error: sys.exit("embed.py: %s" % error)
    print()
