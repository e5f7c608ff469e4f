#!/usr/bin/env python3
"""What the tests read of the vision fixtures, for tests/tools/pack.sh.  usage: vision_slim.py MADE_DIR OUT_DIR
MADE_DIR is where vision_tiny.py, vision_realdim.py, vision_prompts.py and vision_images.py wrote; OUT_DIR gets images/ and vision/.
Left out: what another array gives (normalised pixels), what only vision_oracle.py compares (decoded and bf16-rounded 4-bit
weights), and the steps inside the wide tower's layers (their sums stay in realdim-L2.json)."""
import json, os, shutil, struct, sys
made, out = sys.argv[1:3]


def dropped(path, name):
    if "realdim" in path: return name.startswith("layer0.") and name.count(".") > 1
    return name == "pixel_values" or name.endswith("_wbf16")


def slim(src, dst):
    data = open(src, "rb").read(); n = struct.unpack("<Q", data[:8])[0]; old = json.loads(data[8:8 + n]); new = {}; body = b""
    for name in sorted((k for k in old if k != "__metadata__" and not dropped(src, k)), key=lambda k: old[k]["data_offsets"][0]):
        a, b = old[name]["data_offsets"]; new[name] = dict(old[name], data_offsets=[len(body), len(body) + b - a]); body += data[8 + n + a:8 + n + b]
    head = json.dumps(new, separators=(",", ":")).encode(); head += b" " * (-len(head) % 8)
    open(dst, "wb").write(struct.pack("<Q", len(head)) + head + body)


def copy(name, part):
    src, dst = os.path.join(made, name), os.path.join(out, part, name.replace("images/", ""))
    os.makedirs(os.path.dirname(dst), exist_ok=True)
    slim(src, dst) if name.endswith("golden.safetensors") or "realdim" in name and name.endswith(".safetensors") else shutil.copyfile(src, dst)


for model in ("tiny-a", "tiny-b", "tiny-a-nf4"):
    for f in os.listdir(os.path.join(made, model)):
        if not f.startswith("dequantised"): copy(os.path.join(model, f), "vision")
for f in ("realdim-L2.json", "realdim-L2.safetensors", "prompts.json", "pan_and_scan.json"): copy(f, "vision")
for f in os.listdir(os.path.join(made, "images")): copy(os.path.join("images", f), "images")
for f in ("preproc.json", "preproc_stb.json", "preproc_samples.safetensors"): copy(f, "images")
