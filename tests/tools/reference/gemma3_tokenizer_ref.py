"""Gemma 3 tokenizer in plain Python, from a description of its rules (standard library only).

    python gemma3_tokenizer_ref.py TOKENIZER_JSON GOLDEN_DIR    # run all fixtures

Naive merging (quadratic); a real engine wants a heap or a linked list.  With
`derive=True` the merge list in the file is ignored and rebuilt from the vocabulary.
"""
import json
import os
import sys


def derive_merges(by_id, first=494, last=255967):
    vocab, out = set(by_id), []
    for i, s in enumerate(by_id):
        score = first - i if first <= i <= last else 0
        out += [((-score, -k, k - len(s), i), s[:k], s[k:]) for k in range(1, len(s)) if s[:k] in vocab and s[k:] in vocab]
    out.sort(key=lambda m: m[0])
    return [(a, b) for _, a, b in out]


class Tokenizer:
    def __init__(self, path, derive=False):
        t = json.load(open(path, encoding="utf-8"))
        self.vocab = dict(t["model"]["vocab"])
        by_id = sorted(self.vocab, key=self.vocab.get)
        merges = derive_merges(by_id) if derive else [tuple(m) for m in t["model"]["merges"]]
        self.rank = {m: i for i, m in enumerate(merges)}
        self.added = {a["content"]: (a["id"], a["special"]) for a in t["added_tokens"]}
        self.starts = {}
        for a in self.added:
            self.starts.setdefault(a[0], []).append(a)
        for v in self.starts.values():
            v.sort(key=len, reverse=True)
        self.text = dict(enumerate(by_id))
        self.text.update({i: s for s, (i, _) in self.added.items()})

    def bpe(self, s):
        s = s.replace(" ", "\u2581")
        sym = []
        for ch in s:
            sym += [ch] if ch in self.vocab else ["<0x%02X>" % b for b in ch.encode("utf-8")]
        while len(sym) > 1:
            best = min(range(len(sym) - 1), key=lambda i: self.rank.get((sym[i], sym[i + 1]), 1 << 60))
            if (sym[best], sym[best + 1]) not in self.rank:
                break
            sym[best : best + 2] = [sym[best] + sym[best + 1]]
        return [self.vocab[x] for x in sym]

    def encode(self, text, parse_special=True):
        ids, start, i = [], 0, 0
        while i < len(text):
            hit = next((a for a in self.starts.get(text[i], ()) if text.startswith(a, i)), None)  # longest at this place
            if hit is None:
                i += 1
                continue
            if not parse_special and self.added[hit][1]:
                i += len(hit)  # stays part of the surrounding plain text
                continue
            ids += self.bpe(text[start:i]) + [self.added[hit][0]]
            start = i = i + len(hit)
        return ids + self.bpe(text[start:])

    def piece_bytes(self, i):
        s = self.text[i]
        if len(s) == 6 and s.startswith("<0x") and 238 <= i <= 493:
            return bytes([i - 238])
        return s.replace("\u2581", " ").encode("utf-8")

    def decode(self, ids):
        """Text as the reference library makes it: a run of byte tokens that is not valid UTF-8 as a whole becomes one U+FFFD per byte."""
        out, run = "", b""
        for i in list(ids) + [None]:
            if i is not None and 238 <= i <= 493:
                run += bytes([i - 238])
                continue
            if run:
                try:
                    out += run.decode("utf-8")
                except UnicodeDecodeError:
                    out += "\ufffd" * len(run)
                run = b""
            if i is not None:
                out += self.text[i].replace("\u2581", " ")
        return out


TRIM = "".join(map(chr, [*range(9, 14), *range(0x1C, 0x21), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]))


def pieces(messages, add_generation_prompt):
    """The chat template as a list of (is_control_token, text); ValueError where the template raises."""
    if not messages:
        raise ValueError("empty conversation")
    out, prefix = [(True, "<bos>")], ""
    if messages[0]["role"] == "system":
        c = messages[0]["content"]
        prefix = (c if isinstance(c, str) else c[0]["text"]) + "\n\n"
        messages = messages[1:]
    for i, m in enumerate(messages):
        if (m["role"] == "user") != (i % 2 == 0):
            raise ValueError("roles must alternate")
        out += [(True, "<start_of_turn>"), (False, {"assistant": "model"}.get(m["role"], m["role"]) + "\n" + (prefix if i == 0 else ""))]
        c = m["content"]
        if isinstance(c, str):
            out.append((False, c.strip(TRIM)))
        elif isinstance(c, list):
            for part in c:
                if part["type"] in ("image", "text"):
                    out.append((True, "<start_of_image>") if part["type"] == "image" else (False, part["text"].strip(TRIM)))
        elif c is not None:
            raise ValueError("invalid content type")
        out += [(True, "<end_of_turn>"), (False, "\n")]
    return out + ([(True, "<start_of_turn>"), (False, "model\n")] if add_generation_prompt else [])


def chat(messages, add_generation_prompt):
    return "".join(text for _, text in pieces(messages, add_generation_prompt))


def engine_ids(messages, add_generation_prompt, encode_plain, token_id, expand=False):
    """What g3_render gives: control tokens of the scaffold as ids, all text between them encoded with special parsing off.
    `expand`: every image becomes its 256 soft tokens, as for the model.  A system message alone is an error: its text would be lost."""
    if all(m["role"] == "system" for m in messages):
        raise ValueError("no user message")
    parts = pieces(messages, add_generation_prompt)
    if expand:
        big = [(False, "\n\n"), (True, "<start_of_image>")] + [(True, "<image_soft_token>")] * 256 + [(True, "<end_of_image>"), (False, "\n\n")]
        parts = [q for p in parts for q in (big if p == (True, "<start_of_image>") else [p])]
    ids, text = [], ""
    for control, t in parts + [(True, None)]:
        if not control:
            text += t
            continue
        ids += encode_plain(text)  # neighbours joined first: runs of newlines merge
        text = ""
        if t:
            ids.append(token_id(t))
    return ids


if __name__ == "__main__":
    tk = Tokenizer(sys.argv[1])
    n = 0
    for line in open(os.path.join(sys.argv[2], "chat.jsonl")):
        r = json.loads(line)
        try:
            text = chat(r["messages"], r["add_generation_prompt"])
        except ValueError:
            text = None
        assert text == r.get("text"), r
        assert text is None or tk.encode(text) == r["ids"], r
        try:
            ids = engine_ids(r["messages"], r["add_generation_prompt"], lambda t: tk.encode(t, False), lambda t: tk.added[t][0])
        except ValueError:
            ids = None
        assert (ids is None) == (text is None or r.get("engine_error", False)), r
        assert ids is None or ids == r.get("ids_engine", r["ids"]), r
        if "image_expanded_ids_rle" in r:
            big = "\n\n<start_of_image>" + "<image_soft_token>" * 256 + "<end_of_image>\n\n"
            assert tk.encode(text.replace("<start_of_image>", big)) == [i for i, k in r["image_expanded_ids_rle"] for _ in range(k)], r
            assert engine_ids(r["messages"], r["add_generation_prompt"], lambda t: tk.encode(t, False), lambda t: tk.added[t][0], True) == [i for i, k in r["image_expanded_ids_rle"] for _ in range(k)], r
        n += 1
    print("chat:", n, "fixtures agree")
    for derive in (False, True):
        tk, n = Tokenizer(sys.argv[1], derive), 0
        for line in open(os.path.join(sys.argv[2], "tokenizer.jsonl")):
            r = json.loads(line)
            if r["kind"] == "encode":
                assert tk.encode(r["text"]) == r["ids"], r
                assert tk.encode(r["text"], False) == r.get("ids_plain", r["ids"]), r
            elif r["kind"] == "invalid_utf8":
                assert tk.encode(bytes.fromhex(r["bytes_hex"]).decode("utf-8", "replace")) == r["ids"], r
            elif r["kind"] == "decode":
                assert tk.decode(r["ids"]) == r["text"], r
                assert b"".join(map(tk.piece_bytes, r["ids"])).hex() == r["bytes_hex"], r
            n += 1
        print("merges", "derived:" if derive else "from file:", n, "fixtures agree")
