#!/usr/bin/env python3
"""bench_peer.py: the same work in turns, ours and llama.cpp's, and the ratio of each pair.

Builds llama.cpp from the source package `llama-cpp-python` of PyPI into build/peer, makes its files from what `make model` fetched
(and for the 1B from random weights: both sides then read noise, at the true sizes), and runs prompt and writing alternately.
Needs python3, pip, cmake, a C++ compiler. ROUNDS and THREADS from the environment. Prints a table, and one line of JSON at the end.
"""
import glob, json, os, statistics, subprocess, sys, tarfile

ROOT, PEER, VERSION = os.getcwd(), os.path.abspath("build/peer"), "0.3.36"
ROUNDS, THREADS = int(os.environ.get("ROUNDS", "3")), os.environ.get("THREADS", "2")
PYTHON = PEER + "/venv/bin/python"


def run(*command, **how):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **how).stdout


def build():
    os.makedirs(PEER, exist_ok=True)
    if not os.path.exists(PYTHON):
        run(sys.executable, "-m", "venv", PEER + "/venv")
        run(PYTHON, "-m", "pip", "install", "numpy", "pyyaml", "tqdm", "requests")
    if not glob.glob(PEER + "/llama_cpp_python-*/"):
        run(PYTHON, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "-d", PEER, "llama-cpp-python==" + VERSION)
        tarfile.open(glob.glob(PEER + "/llama_cpp_python-*.tar.gz")[0]).extractall(PEER)
    source = glob.glob(PEER + "/llama_cpp_python-*/vendor/llama.cpp")[0]
    if not os.path.exists(PEER + "/build/bin/llama-bench"):
        print("building llama.cpp, which takes about ten minutes", file=sys.stderr)
        run("cmake", "-B", PEER + "/build", "-S", source, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DBUILD_SHARED_LIBS=OFF",
            "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF")
        run("cmake", "--build", PEER + "/build", "-j2", "--target", "llama-bench", "llama-quantize")
    return source


def quantised(source, kind, name):
    out = f"{PEER}/{name}-{kind}.gguf"
    if not os.path.exists(out):
        run(PEER + "/build/bin/llama-quantize", "--allow-requantize", source, out + ".part", kind, THREADS)
        os.rename(out + ".part", out)
    return out


# A GGUF of the 1B's shapes with random weights; vocabulary and settings come from the 270M's.
ONE_B = r'''
import sys, numpy as np
sys.path.insert(0, sys.argv[1] + "/gguf-py")
import gguf
dim, ffn, layers, heads, kv, head = 1152, 6912, 26, 4, 1, 256
old = gguf.GGUFReader(sys.argv[2])
w = gguf.GGUFWriter(sys.argv[3], "gemma3")
own = {"gemma3.block_count": layers, "gemma3.embedding_length": dim, "gemma3.feed_forward_length": ffn, "gemma3.attention.head_count": heads,
       "gemma3.attention.head_count_kv": kv, "gemma3.attention.key_length": head, "gemma3.attention.value_length": head}
for f in old.fields.values():
    if f.name.startswith("GGUF.") or f.name in ("general.architecture", "general.quantization_version", "general.file_type"): continue
    kind = f.types[0]
    sub = f.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    w.add_key_value(f.name, own.get(f.name, f.contents()), kind, sub_type=sub)
r = np.random.default_rng(1)
def add(name, *shape):
    if len(shape) == 1: return w.add_tensor(name, np.ones(shape, np.float32))
    a = np.empty(shape, np.uint16)
    for i in range(0, shape[0], 4096):
        x = (r.standard_normal((min(4096, shape[0] - i), shape[1]), dtype=np.float32) / shape[1] ** 0.5).view(np.uint32)
        a[i:i + 4096] = (x >> 16).astype(np.uint16)
    w.add_tensor(name, a.view(np.uint8).reshape(shape[0], shape[1] * 2), raw_dtype=gguf.GGMLQuantizationType.BF16)
add("token_embd.weight", 262144, dim)
add("output_norm.weight", dim)
for l in range(layers):
    b = f"blk.{l}."
    for n in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"): add(b + n + ".weight", dim)
    for n in ("attn_q_norm", "attn_k_norm"): add(b + n + ".weight", head)
    add(b + "attn_q.weight", heads * head, dim); add(b + "attn_k.weight", kv * head, dim); add(b + "attn_v.weight", kv * head, dim)
    add(b + "attn_output.weight", dim, heads * head)
    add(b + "ffn_gate.weight", ffn, dim); add(b + "ffn_up.weight", ffn, dim); add(b + "ffn_down.weight", dim, ffn)
w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
'''


def one_b(source, small):
    ours, theirs = PEER + "/1b-nf4", PEER + "/1b.gguf"
    if not os.path.exists(ours + "/config.json"):
        run(PYTHON, "tests/tools/synth_checkpoint.py", "1b", ours, "--dense", "none")
    if not os.path.exists(theirs):
        run(PYTHON, "-c", ONE_B, source, small, theirs + ".part")
        os.rename(theirs + ".part", theirs)
    return ours, quantised(theirs, "Q4_0", "1b")


def peer(path, what, n):
    flags = ("-p", str(n), "-n", "0") if what == "prompt" else ("-p", "0", "-n", str(n))
    return json.loads(run(PEER + "/build/bin/llama-bench", "-m", path, *flags, "-t", THREADS, "-r", "1", "-o", "json"))[0]["avg_ts"]


def ours(path, what, n, screened):
    flags = ("-p", str(n), "-n", "4", "-r", "1") if what == "prompt" else ("-p", "16", "-n", str(n), "-r", "1")
    j = json.loads(run("build/bench", "-m", path, *flags, "-t", THREADS, "--screened-head", screened, "--json"))
    return j["prompt_tps" if what == "prompt" else "gen_tps"]


def main():
    source = build()
    small = glob.glob("build/download/*.gguf")[0]
    bf16, q4, iq4 = (quantised(small, k, "270m") for k in ("BF16", "Q4_0", "IQ4_NL"))
    big, big_q4 = one_b(source, small)
    dense, nf4 = "build/gemma-3-270m", "build/gemma-3-270m-nf4"
    work = [("270M prompt 512", dense, "off", bf16, "prompt", 512), ("270M 4-bit prompt 512", nf4, "off", q4, "prompt", 512),
            ("270M bf16 writing", dense, "off", bf16, "gen", 64), ("270M 4-bit writing, screened head", nf4, "on", q4, "gen", 64),
            ("270M 4-bit writing, screened head", nf4, "on", iq4, "gen", 64), ("1B 4-bit prompt 512", big, "off", big_q4, "prompt", 512),
            ("1B 4-bit writing", big, "off", big_q4, "gen", 32), ("1B 4-bit writing, screened head", big, "on", big_q4, "gen", 32)]
    rows = []
    print(f"{'work':36} {'their file':18} {'ours':>9} {'theirs':>9} {'ratio':>6}   ({ROUNDS} rounds in turns, {THREADS} threads, load {os.getloadavg()[0]:.2f})")
    for name, model, screened, file, what, n in work:
        pairs = [(ours(model, what, n, screened), peer(file, what, n)) for _ in range(ROUNDS)]
        a, b, ratio = (statistics.median(x) for x in ([p[0] for p in pairs], [p[1] for p in pairs], [p[0] / p[1] for p in pairs]))
        rows.append({"work": name, "peer_file": os.path.basename(file), "ours": a, "theirs": b, "ratio": ratio})
        print(f"{name:36} {os.path.basename(file):18} {a:9.1f} {b:9.1f} {ratio:6.2f}", flush=True)
    print(json.dumps({"threads": int(THREADS), "rounds": ROUNDS, "rows": rows}))


if __name__ == "__main__":
    main()
