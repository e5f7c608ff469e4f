#!/usr/bin/env python3
"""The whole multimodal forward pass in plain float64 numpy, written from a description of the model, checked against the goldens.

usage: vision_oracle.py GOLDEN_DIR        (reads tiny-a, tiny-b with every weight layout, and tiny-a-nf4)
"""
import json, os, re, sys
import numpy as np
from safetensors.numpy import load_file
F = np.float64


def canon(n):            # any layout -> one set of names
    n = re.sub(r"^model\.", "", n)
    if n.startswith("vision_tower."): return re.sub(r"^vision_tower\.(vision_model\.)?", "v.", n)
    if n.startswith("language_model.lm_head."): return n[len("language_model."):]
    if n.startswith("language_model."): return re.sub(r"^language_model\.(model\.)?", "t.", n)
    return re.sub(r"^multi_modal_projector\.", "p.", n)


def bf16(x):                 # nearest bfloat16, ties to even
    u = np.asarray(x, np.float32).view(np.uint32); return ((u + 0x7FFF + ((u >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def load(path, wbf16=False): # torch reads bfloat16 for us; NF4 tensors are decoded: float32 code x scale, or (wbf16) that product rounded to bfloat16
    import torch; from safetensors.torch import load_file as lt
    d = lt(path); out = {}
    for k, v in d.items():
        if any(k.endswith(e) for e in (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")) or ".quant_state." in k: continue
        st = k + ".quant_state.bitsandbytes__nf4"
        if st in d:
            q = json.loads(bytes(d[st].numpy()).decode()); b = v.numpy().reshape(-1); n = int(np.prod(q["shape"]))
            nib = np.stack([b >> 4, b & 15], 1).reshape(-1)[:n]; a8 = d[k + ".absmax"].numpy()
            am = d[k + ".nested_quant_map"].numpy()[a8] * d[k + ".nested_absmax"].numpy()[np.arange(a8.size) // q["nested_blocksize"]] + np.float32(q["nested_offset"])
            v = torch.from_numpy((d[k + ".quant_map"].numpy()[nib] * am[np.arange(n) // q["blocksize"]]).astype(np.float32).reshape(q["shape"]))
            if wbf16: v = v.bfloat16()
        out[canon(k)] = v.float().numpy().astype(F)
    return out


gelu = lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))
def ln(x, w, b, eps): m = x.mean(-1, keepdims=True); v = ((x - m) ** 2).mean(-1, keepdims=True); return (x - m) / np.sqrt(v + eps) * w + b
def rms(x, w, eps): return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 + w)
def softmax(s): s = s - s.max(-1, keepdims=True); e = np.exp(s); return e / e.sum(-1, keepdims=True)


def vision(W, vc, px):       # px [3,H,H] -> [patches, hidden]
    P, D, H = vc["patch_size"], vc["hidden_size"], vc["num_attention_heads"]; g = vc["image_size"] // P; eps = vc.get("layer_norm_eps", 1e-6)
    x = px.reshape(3, g, P, g, P).transpose(1, 3, 0, 2, 4).reshape(g * g, 3 * P * P)          # patch row-major; inside: channel, y, x
    x = x @ W["v.embeddings.patch_embedding.weight"].reshape(D, -1).T + W["v.embeddings.patch_embedding.bias"] + W["v.embeddings.position_embedding.weight"]
    st = {"embeddings": x}
    for i in range(vc["num_hidden_layers"]):
        w = lambda n: W[f"v.encoder.layers.{i}.{n}"]; lin = lambda a, n: a @ w(n + ".weight").T + w(n + ".bias")
        a = ln(x, w("layer_norm1.weight"), w("layer_norm1.bias"), eps)
        q, k, v = (lin(a, f"self_attn.{c}_proj").reshape(len(a), H, D // H).transpose(1, 0, 2) for c in "qkv")
        o = np.stack([softmax(q[h] @ k[h].T * (D // H) ** -0.5) @ v[h] for h in range(H)], 1).reshape(len(a), D)
        x = x + lin(o, "self_attn.out_proj")
        x = x + lin(gelu(lin(ln(x, w("layer_norm2.weight"), w("layer_norm2.bias"), eps), "mlp.fc1")), "mlp.fc2")
        st[f"layer{i}"] = x
    st["last"] = ln(x, W["v.post_layernorm.weight"], W["v.post_layernorm.bias"], eps)
    return st


def project(W, vc, mm, x):   # [patches, hidden] -> [mm, text_hidden]
    g = vc["image_size"] // vc["patch_size"]; t = int(mm ** 0.5); k = g // t
    pooled = x.reshape(t, k, t, k, -1).mean((1, 3)).reshape(t * t, -1)
    return rms(pooled, W["p.mm_soft_emb_norm.weight"], vc.get("layer_norm_eps", 1e-6)) @ W["p.mm_input_projection_weight"]


def text(W, c, ids, soft, feats, mask=""):   # -> dict: inputs_embeds, mask_full, mask_sliding, hidden{i}, hidden_final_normed, logits; mask: "" or the name of a classic mistake
    tc = c["text_config"]; D, H, KV, hd = tc["hidden_size"], tc["num_attention_heads"], tc["num_key_value_heads"], tc["head_dim"]; eps = tc["rms_norm_eps"]
    S = len(ids); ids = np.array(ids); E = W["t.embed_tokens.weight"]
    x = E[np.where(soft, 0, ids)] * F(bf16(np.float32(np.sqrt(D))))      # text rows scaled; the multiplier is rounded to bfloat16 whatever the table's type
    if soft.any(): x[soft] = feats                       # soft tokens inserted unscaled, after the scaling
    q_i, k_i = np.arange(S)[:, None], np.arange(S)[None, :]
    blk = np.cumsum(soft & ~np.r_[False, soft[:-1]]) * soft            # 0 = text, 1.. = block number
    same = (blk[:, None] == blk[None]) & (blk[:, None] > 0); near = q_i - k_i < tc["sliding_window"]
    full = (k_i <= q_i) | same; slide = full & near
    if mask == "causal_only": full = k_i <= q_i; slide = full & near
    if mask == "block_ignores_window": slide = ((k_i <= q_i) & near) | same
    out = {"inputs_embeds": x, "mask_full": full, "mask_sliding": slide}
    pat = tc.get("sliding_window_pattern", tc.get("_sliding_window_pattern", 6))
    def rope(a, theta, factor):
        inv = theta ** (-np.arange(0, hd, 2) / hd) / factor; an = np.outer(np.arange(S), inv); co, si = np.r_["1", np.cos(an), np.cos(an)], np.r_["1", np.sin(an), np.sin(an)]
        r = np.concatenate([-a[..., hd // 2:], a[..., :hd // 2]], -1); return a * co + r * si
    for i in range(tc["num_hidden_layers"]):
        w = lambda n: W[f"t.layers.{i}.{n}.weight"]; glob = (i + 1) % pat == 0; out[f"hidden{i}"] = x
        a = rms(x, w("input_layernorm"), eps)
        q = rms((a @ w("self_attn.q_proj").T).reshape(S, H, hd).transpose(1, 0, 2), w("self_attn.q_norm"), eps)
        k = rms((a @ w("self_attn.k_proj").T).reshape(S, KV, hd).transpose(1, 0, 2), w("self_attn.k_norm"), eps)
        v = (a @ w("self_attn.v_proj").T).reshape(S, KV, hd).transpose(1, 0, 2)
        th, fa = (1e6, 8.0) if glob else (1e4, 1.0)
        q, k = rope(q, th, fa), rope(k, th, fa); k, v = np.repeat(k, H // KV, 0), np.repeat(v, H // KV, 0)
        s = q @ k.transpose(0, 2, 1) * tc["query_pre_attn_scalar"] ** -0.5
        o = (softmax(np.where(full if glob else slide, s, -np.inf)) @ v).transpose(1, 0, 2).reshape(S, H * hd) @ w("self_attn.o_proj").T
        x = x + rms(o, w("post_attention_layernorm"), eps)
        a = rms(x, w("pre_feedforward_layernorm"), eps)
        x = x + rms((gelu(a @ w("mlp.gate_proj").T) * (a @ w("mlp.up_proj").T)) @ w("mlp.down_proj").T, w("post_feedforward_layernorm"), eps)
    x = rms(x, W["t.norm.weight"], eps); out.update(hidden_final_normed=x, logits=x @ E.T); return out


DONE = set()


def check(label, a, b, tol):
    DONE.add(label); a = np.asarray(a, F); d = float(np.abs(a - b).max()); print(f"  {label:48s} max abs {d:.2e}"); assert a.shape == b.shape and d < tol, label


def main():
    G = sys.argv[1]
    for name in ("tiny-a", "tiny-b", "tiny-a-nf4"):
        d = os.path.join(G, name); g = load_file(os.path.join(d, "golden.safetensors")); nf4 = name.endswith("nf4"); DONE.clear()
        c = json.load(open(os.path.join(d, "config.json"))); vc = c["vision_config"]; base = None; mm = c["mm_tokens_per_image"]; P = vc["patch_size"]
        for lay in ("",) if nf4 else ("-5.24", "-classic", "-new", "-classic-bf16"):
            W = load(os.path.join(d, f"model{lay}.safetensors")); W.pop("lm_head.weight", None)
            if base is None: base = W
            assert W.keys() == base.keys() and all(np.array_equal(W[k], base[k]) for k in W)
        px = (g["pixel_u8"].astype(F) - 127.5) / 127.5; print(name); DONE.add("pixel_u8")
        if "pixel_values" in g: check("pixel_values", px, g["pixel_values"], 1e-6)
        st = [vision(W, vc, p) for p in px]; feats = [project(W, vc, mm, s["last"]) for s in st]
        check("vision.embeddings", st[0]["embeddings"], g["vision.embeddings"], 2e-5)
        for i in range(vc["num_hidden_layers"]): check(f"vision.layer{i}", st[0][f"layer{i}"], g[f"vision.layer{i}"], 2e-5)
        check("vision.last_hidden_state", [s["last"] for s in st], g["vision.last_hidden_state"], 2e-5); check("projector.out", feats, g["projector.out"], 2e-5)
        n = vc["image_size"] // P; t = int(mm ** 0.5); pooled = st[0]["last"].reshape(t, n // t, t, n // t, -1).mean((1, 3)).reshape(mm, -1)
        check("projector.pooled", pooled, g["projector.pooled"], 2e-5); check("projector.normed", rms(pooled, W["p.mm_soft_emb_norm.weight"], vc.get("layer_norm_eps", 1e-6)), g["projector.normed"], 2e-5)
        if nf4:
            W16 = load(os.path.join(d, "model.safetensors"), wbf16=True); f16 = [project(W16, vc, mm, vision(W16, vc, p)["last"]) for p in px]
            l0 = {canon(k): v for k, v in load_file(os.path.join(d, "dequantised-layer0.safetensors")).items()}
            assert l0 and all(v.dtype == np.float32 and np.array_equal(v, W[k]) for k, v in l0.items()); print("  dequantised-layer0: %d tensors equal bit for bit" % len(l0))
        for k in sorted(g):
            if not k.endswith(".input_ids"): continue
            case = k[:-10]; ids = g[k]; soft = ids == c["image_token_index"]; n = soft.sum() // mm; fe = lambda f: np.concatenate(f[:n]) if n else None
            assert np.array_equal(g[case + ".token_type_ids"], soft); DONE.update({k, case + ".token_type_ids", case + ".greedy_ids"})
            r = text(W, c, ids, soft, fe(feats))
            for q, v in r.items():
                if f"{case}.{q}" in g: check(f"{case}.{q}", v, g[f"{case}.{q}"], 2e-4)
            for q in ("causal_only", "block_ignores_window"):
                if n: check(f"{case}.wrong.{q}.last_logits", text(W, c, ids, soft, fe(feats), q)["logits"][-1], g[f"{case}.wrong.{q}.last_logits"], 2e-4)
            if nf4: check(case + ".logits_wbf16", text(W16, c, ids, soft, fe(f16))["logits"], g[case + ".logits_wbf16"], 2e-4)
            full = list(ids) + list(g[case + ".greedy_ids"])[:-1]
            lg = text(W, c, full, np.array(full) == c["image_token_index"], fe(feats))["logits"][len(ids) - 1:]
            check(case + ".greedy_logits", lg, g[case + ".greedy_logits"], 2e-4)
            assert lg.argmax(-1).tolist() == g[case + ".greedy_ids"].tolist()
        assert DONE == set(g), DONE ^ set(g)                  # nothing left unchecked


if __name__ == "__main__":
    main()
