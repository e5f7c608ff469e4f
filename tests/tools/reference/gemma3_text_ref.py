"""Gemma 3 text forward pass in plain numpy, written from a description of the model, not from another program.

Slow and simple on purpose: whole sequence at once, no cache.  It reads a
checkpoint directory by itself (config.json, model.safetensors or a sharded
index) and needs nothing but numpy.

    python gemma3_text_ref.py DIR            # check DIR against its expected.json/.bin
    python gemma3_text_ref.py DIR --mistakes # how far common mistakes move the logits

`Mistake` names in `bug=` switch one classic error on, to see whether a fixture
would catch it.
"""
import json
import math
import os
import struct
import sys

import numpy as np

F = np.float32
DEFAULTS = dict(
    vocab_size=262208, hidden_size=2304, intermediate_size=9216, num_hidden_layers=26, num_attention_heads=8,
    num_key_value_heads=4, head_dim=256, hidden_activation="gelu_pytorch_tanh", max_position_embeddings=131072,
    rms_norm_eps=1e-6, tie_word_embeddings=True, attention_bias=False, query_pre_attn_scalar=256, sliding_window=4096,
    final_logit_softcapping=None, attn_logit_softcapping=None, use_bidirectional_attention=False,
)


def read_config(raw):
    """config.json (as a dict) -> flat dict of resolved text settings."""
    text = raw.get("text_config", raw)
    c = {k: text.get(k, d) for k, d in DEFAULTS.items()}
    c["tie_word_embeddings"] = raw.get("tie_word_embeddings", text.get("tie_word_embeddings", True))
    n, pat = c["num_hidden_layers"], text.get("sliding_window_pattern", 6)
    types = text.get("layer_types") or ["sliding_attention" if (i + 1) % pat else "full_attention" for i in range(n)]
    assert len(types) == n
    c["layer_types"] = types
    rp = text.get("rope_parameters") or {}
    full, slide = dict(rp.get("full_attention") or {}), dict(rp.get("sliding_attention") or {})
    if text.get("rope_scaling"):  # old style; applies to the full-attention layers only
        full.update(text["rope_scaling"])
    full.setdefault("rope_theta", text.get("rope_theta", 1e6))
    slide.setdefault("rope_theta", text.get("rope_local_base_freq", 1e4))

    def factor(p):
        kind = p.get("rope_type", p.get("type", "default"))
        assert kind in ("default", "linear"), kind
        return float(p["factor"]) if kind == "linear" else 1.0

    c["rope_theta_full"], c["rope_factor_full"] = float(full["rope_theta"]), factor(full)
    c["rope_theta_sliding"], c["rope_factor_sliding"] = float(slide["rope_theta"]), factor(slide)
    return c


def read_safetensors(path):
    b = open(path, "rb").read()
    n = struct.unpack("<Q", b[:8])[0]
    head = json.loads(b[8 : 8 + n])
    out = {}
    for name, t in head.items():
        if name == "__metadata__":
            continue
        s, e = (8 + n + o for o in t["data_offsets"])
        if t["dtype"] == "BF16":
            x = (np.frombuffer(b[s:e], "<u2").astype(np.uint32) << 16).view(F)
        else:
            x = np.frombuffer(b[s:e], {"F16": "<f2", "F32": "<f4"}[t["dtype"]]).astype(F)
        out[name] = x.reshape(t["shape"])
    return out


def read_weights(d):
    idx = os.path.join(d, "model.safetensors.index.json")
    files = sorted(set(json.load(open(idx))["weight_map"].values())) if os.path.exists(idx) else ["model.safetensors"]
    w = {}
    for f in files:
        w.update(read_safetensors(os.path.join(d, f)))
    out = {}
    for name, x in w.items():  # longest prefix first; what is not text is dropped
        for old, new in (("language_model.model.", ""), ("model.language_model.", ""), ("language_model.lm_head.", "lm_head."),
                         ("lm_head.", "lm_head."), ("model.vision_tower.", None), ("model.multi_modal_projector.", None),
                         ("vision_tower.", None), ("multi_modal_projector.", None), ("model.", "")):
            if name.startswith(old):
                if new is not None:
                    out[new + name[len(old):]] = x
                break
        else:
            raise KeyError(name)
    return out


def bf16(x):
    u = np.asarray(x, F).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(F)


def rmsnorm(x, w, eps, bug):
    if bug == "norm_without_plus_1":
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w
    e = 0 if bug == "no_eps" else eps
    return x * (1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + F(e))) * (1 + w)


def gelu_tanh(x):
    return F(0.5) * x * (1 + np.tanh(F(math.sqrt(2 / math.pi)) * (x + F(0.044715) * x * x * x)))


def gelu_erf(x):
    return F(0.5) * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)).astype(F))


def rope(x, pos, theta, factor, bug):
    """x: (heads, T, D).  Half-split layout: element i pairs with element i + D/2."""
    D = x.shape[-1]
    inv = (1.0 / theta ** (np.arange(0, D, 2, dtype=F) / F(D))).astype(F) / F(factor)
    ang = pos[:, None].astype(F) * inv
    c, s = np.cos(ang), np.sin(ang)
    if bug == "rope_interleaved":
        a, b = x[..., 0::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., 0::2], out[..., 1::2] = a * c - b * s, b * c + a * s
        return out
    a, b = x[..., : D // 2], x[..., D // 2 :]
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def forward(c, w, ids, embed_scale_bf16=True, bug=None):
    """embed_scale_bf16=False is the reference's own float32 run (mode `f32` of 270m.json); every other float32 golden has the rounded multiplier."""
    H, D, nh, nk = c["hidden_size"], c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
    T, eps, W = len(ids), c["rms_norm_eps"], c["sliding_window"]
    pos = np.arange(T)
    scale = F(math.sqrt(H))
    if embed_scale_bf16 and bug != "embed_scale_unrounded":
        scale = bf16(scale)
    if bug == "no_embed_scale":
        scale = F(1)
    x = w["embed_tokens.weight"][ids] * scale
    out = {"embed": x}
    qpas = D if bug == "scale_from_head_dim" else c["query_pre_attn_scalar"]
    causal = pos[None, :] <= pos[:, None]
    win = {"window_plus_1": W + 1, "window_minus_1": W - 1}.get(bug, W)
    local = causal & (pos[None, :] > pos[:, None] - win)
    for i in range(c["num_hidden_layers"]):
        p, full = f"layers.{i}.", c["layer_types"][i] == "full_attention"
        if bug == "pattern_shifted":
            full = i % 6 == 0
        g = lambda k: w[p + k + ".weight"]
        h = rmsnorm(x, g("input_layernorm"), eps, bug)
        q, k, v = ((h @ g("self_attn." + n).T).reshape(T, -1, D).transpose(1, 0, 2) for n in ("q_proj", "k_proj", "v_proj"))
        if bug != "no_qk_norm":
            q, k = rmsnorm(q, g("self_attn.q_norm"), eps, bug), rmsnorm(k, g("self_attn.k_norm"), eps, bug)
        kind = "full" if (full != (bug == "thetas_swapped")) else "sliding"
        th, fa = c["rope_theta_" + kind], c["rope_factor_" + kind]
        if bug == "linear_factor_everywhere":
            fa = c["rope_factor_full"]
        if bug == "no_linear_factor":
            fa = 1.0
        q, k = rope(q, pos, th, fa, bug), rope(k, pos, th, fa, bug)
        if bug == "gqa_interleaved":  # head h uses kv h % nk instead of h // (nh/nk)
            k, v = np.tile(k, (nh // nk, 1, 1)), np.tile(v, (nh // nk, 1, 1))
        else:
            k, v = np.repeat(k, nh // nk, 0), np.repeat(v, nh // nk, 0)
        s = (q @ k.transpose(0, 2, 1)) * F(qpas ** -0.5)
        s = np.where(causal if full or bug == "no_window" else local, s, -np.inf)
        s = np.exp(s - s.max(-1, keepdims=True))
        s /= s.sum(-1, keepdims=True)
        o = (s @ v).transpose(1, 0, 2).reshape(T, nh * D)
        o = o @ g("self_attn.o_proj").T
        if bug != "no_post_norms":
            o = rmsnorm(o, g("post_attention_layernorm"), eps, bug)
        x = x + o
        h = rmsnorm(x, g("pre_feedforward_layernorm"), eps, bug)
        act = {"gelu_erf": gelu_erf, "silu": lambda z: z / (1 + np.exp(-z))}.get(bug, gelu_tanh)
        a, b = ("up_proj", "gate_proj") if bug == "gate_up_swapped" else ("gate_proj", "up_proj")
        m = (act(h @ g("mlp." + a).T) * (h @ g("mlp." + b).T)) @ g("mlp.down_proj").T
        if bug != "no_post_norms":
            m = rmsnorm(m, g("post_feedforward_layernorm"), eps, bug)
        x = x + m
        out[f"layer_{i}"] = x
    x = rmsnorm(x, w["norm.weight"], eps, bug)
    out["final_norm"] = x
    head = w.get("lm_head.weight")  # a head tensor, if there is one, wins
    if head is None:
        assert c["tie_word_embeddings"]
        head = w["embed_tokens.weight"]
    out["logits"] = x @ head.T
    return out


MISTAKES = ["norm_without_plus_1", "no_eps", "no_embed_scale", "embed_scale_unrounded", "rope_interleaved", "thetas_swapped", "linear_factor_everywhere",
            "no_linear_factor", "scale_from_head_dim", "window_plus_1", "window_minus_1", "no_window", "pattern_shifted", "no_qk_norm",
            "gqa_interleaved", "no_post_norms", "gelu_erf", "silu", "gate_up_swapped"]


def read_expected(d):
    e = json.load(open(os.path.join(d, "expected.json")))
    b = open(os.path.join(d, "expected.bin"), "rb").read()
    arr = {}
    for a in e["arrays"]:
        n = int(np.prod(a["shape"]))
        arr[a["name"]] = np.frombuffer(b, "<f4", n, a["offset"]).reshape(a["shape"])
    return e, arr


if __name__ == "__main__":
    d = sys.argv[1]
    c = read_config(json.load(open(os.path.join(d, "config.json"))))
    w = read_weights(d)
    e, arr = read_expected(d)
    got = forward(c, w, e["ids"])
    worst = 0.0
    for name in arr:
        if name in got:
            err = float(np.abs(got[name] - arr[name]).max())
            worst = max(worst, err)
    print(f"{d}: max abs error over {len([n for n in arr if n in got])} arrays {worst:.2e}, logit std {arr['logits'].std():.3f}")
    assert worst < 2e-4
    ids = e["ids"][: e["greedy_prompt_len"]]
    for want in e["greedy_continuation"]:
        ids = ids + [int(forward(c, w, ids)["logits"][-1].argmax())]
        assert ids[-1] == want, (ids, e["greedy_continuation"])
    if "--mistakes" in sys.argv:
        for bug in MISTAKES:
            g = forward(c, w, e["ids"], bug=bug)["logits"]
            print("  %-26s moves a logit by up to %.4f" % (bug, np.abs(g - arr["logits"]).max()))
