"""Shared helpers of the bitsandbytes golden generators (numpy only, no bitsandbytes).

`dequant_f32` is an independent implementation of the 4-bit dequantisation rule that
bitsandbytes documents; the generators compare it bit for bit with bitsandbytes' own
backend-neutral implementation before writing anything.
"""
import json
import struct
import numpy as np

NF4 = np.array([
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0], dtype=np.float32)
# 0.0625/12, 8/12, 12/12, 4/12, 6/12, 2/12, 3/12 in float32; codes 8..15 are the negatives
_F = np.array([0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0], dtype=np.float32) / np.float32(12.0)
FP4 = np.concatenate([_F, -_F]).astype(np.float32)
CODE = {"nf4": NF4, "fp4": FP4}

DT = {"F64": (8, "<f8"), "F32": (4, "<f4"), "F16": (2, "<f2"), "BF16": (2, "<u2"), "I64": (8, "<i8"),
      "I32": (4, "<i4"), "I16": (2, "<i2"), "I8": (1, "i1"), "U8": (1, "u1"), "BOOL": (1, "u1"),
      "F8_E4M3": (1, "u1"), "F8_E5M2": (1, "u1")}


def bf16_to_f32(u16):
    return (np.asarray(u16, dtype=np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(x):
    """Round to nearest, ties to even; NaN is made quiet."""
    u = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    r = (u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    nan = (u & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, (u >> np.uint32(16)) | np.uint32(0x40), r).astype(np.uint16)


def read_safetensors(path):
    """name -> (dtype, shape, numpy array of the storage type); metadata"""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        head = json.loads(f.read(n))
        data = f.read()
    meta = head.pop("__metadata__", {})
    out = {}
    for k, v in head.items():
        b, e = v["data_offsets"]
        out[k] = (v["dtype"], v["shape"], np.frombuffer(data[b:e], dtype=DT[v["dtype"]][1]).reshape(v["shape"]))
    return out, meta


def write_safetensors(path, tensors, meta=None):
    """tensors: name -> (dtype string, numpy array); written in the given order, header padded to 8."""
    head, off, blobs = {}, 0, []
    if meta is not None:
        head["__metadata__"] = meta
    for k, (dt, a) in tensors.items():
        a = np.ascontiguousarray(a)
        raw = a.tobytes()
        assert len(raw) == a.size * DT[dt][0], k
        head[k] = {"dtype": dt, "shape": list(a.shape), "data_offsets": [off, off + len(raw)]}
        off += len(raw)
        blobs.append(raw)
    j = json.dumps(head, separators=(",", ":")).encode()
    j += b" " * (-len(j) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(j)))
        f.write(j)
        for b in blobs:
            f.write(b)


def quant_state(tensors, name):
    """The JSON of a 4-bit weight, or None for a dense one."""
    for t in ("nf4", "fp4"):
        k = f"{name}.quant_state.bitsandbytes__{t}"
        if k in tensors:
            return json.loads(bytes(tensors[k][2].tobytes()).decode("utf-8"))
    return None


def absmax_f32(tensors, name, qs):
    dt, _, a = tensors[name + ".absmax"]
    if "nested_blocksize" not in qs:
        assert dt == "F32"
        return a.astype(np.float32)
    assert dt == "U8"
    m2 = tensors[name + ".nested_absmax"][2].astype(np.float32)
    code2 = tensors[name + ".nested_quant_map"][2].astype(np.float32)
    idx = np.arange(a.size) // qs["nested_blocksize"]
    prod = code2[a] * m2[idx]                       # one float32 rounding
    return prod + np.float32(qs["nested_offset"])   # a second one; never a fused multiply-add


def dequant_f32(tensors, name):
    """float32 code[nibble] * absmax[flat index // blocksize], shape of the original weight."""
    qs = quant_state(tensors, name)
    packed = tensors[name][2].reshape(-1).view(np.uint8)
    n = int(np.prod(qs["shape"], dtype=np.int64))
    assert packed.size == (n + 1) // 2
    nib = np.empty(packed.size * 2, dtype=np.uint8)
    nib[0::2] = packed >> 4          # high nibble is the first element
    nib[1::2] = packed & 15
    scale = absmax_f32(tensors, name, qs)
    assert scale.size == -(-n // qs["blocksize"])
    return (CODE[qs["quant_type"]][nib[:n]] * scale[np.arange(n) // qs["blocksize"]]).reshape(qs["shape"])
