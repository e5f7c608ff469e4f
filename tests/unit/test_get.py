#!/usr/bin/env python3
"""examples/get.sh against a server of our own: listing, tokens, ranges, cut transfers, wrong sums, hostile names."""
import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import urllib.parse

REPO = "someone/gemma-3-tiny"


class Hub:
    """What the server holds and how it misbehaves; every request it saw."""

    def __init__(self):
        self.files = {"config.json": b'{"model_type": "gemma3_text"}', "tokenizer.json": os.urandom(5000), "model.safetensors": os.urandom(300000),
                      "README.md": b"no", "pytorch_model.bin": b"no", "model.gguf": b"no"}
        self.lfs = {"tokenizer.json", "model.safetensors", "pytorch_model.bin"}
        self.entries = []            # more entries of the listing, as they are
        self.token = None            # the token it wants
        self.cut = {}                # name -> bytes after which the connection is cut, each time
        self.ranges = True           # whether it understands Range
        self.sums = {}               # name -> a sum it claims instead of the true one
        self.seen = []               # (path, Range header)

    def listing(self):
        out = []
        for name, data in self.files.items():
            e = {"type": "file", "oid": "0" * 40, "size": len(data), "path": name}
            if name in self.lfs:
                e["lfs"] = {"oid": self.sums.get(name, hashlib.sha256(data).hexdigest()), "size": len(data), "pointerSize": 135}
            out.append(e)
        return json.dumps(out + self.entries, ensure_ascii=False).encode()


def serve(hub):
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def answer(self, status, body, extra=()):
            self.send_response(status)
            for k, v in extra:
                self.send_header(k, v)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            return body

        def do_GET(self):
            path = urllib.parse.unquote(self.path)
            asked = self.headers.get("Range")
            hub.seen.append((self.path, asked))
            if hub.token and self.headers.get("Authorization") != "Bearer " + hub.token:
                self.wfile.write(self.answer(401, b"{}"))
            elif path == "/api/models/%s/tree/main" % REPO:
                self.wfile.write(self.answer(200, hub.listing()))
            elif path.startswith("/%s/resolve/main/" % REPO) and path.split("/main/", 1)[1] in hub.files:
                name = path.split("/main/", 1)[1]
                data, status, extra = hub.files[name], 200, []
                if asked and hub.ranges:
                    first = int(asked.split("=")[1].split("-")[0])
                    if first >= len(data):
                        self.wfile.write(self.answer(416, b""))
                        return
                    status, extra = 206, [("Content-Range", "bytes %d-%d/%d" % (first, len(data) - 1, len(data)))]
                    data = data[first:]
                self.answer(status, data, extra)
                if name in hub.cut and len(data) > hub.cut[name]:
                    self.wfile.write(data[:hub.cut[name]])
                    self.close_connection = True
                else:
                    self.wfile.write(data)
            else:
                self.wfile.write(self.answer(404, b"{}"))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


class Case:
    """A hub, its server and an empty folder; `get` runs the script in that folder."""

    def __enter__(self):
        self.hub = Hub()
        self.server = serve(self.hub)
        self.dir = tempfile.mkdtemp()
        self.out = os.path.join(self.dir, "models", REPO)
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()
        shutil.rmtree(self.dir)

    def get(self, *args, token=None, endpoint=None):
        env = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
        env["HF_ENDPOINT"] = endpoint or "http://127.0.0.1:%d" % self.server.server_port
        if token is not None:
            env["HF_TOKEN"] = token
        p = subprocess.run(["sh", SCRIPT] + list(args or (REPO,)), cwd=self.dir, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        self.code, self.err = p.returncode, p.stderr.decode("utf-8", "replace")
        return self.code

    def write(self, name, data):
        os.makedirs(self.out, exist_ok=True)
        with open(os.path.join(self.out, name), "wb") as f:
            f.write(data)

    def held(self, where=None):
        out = {}
        for root, _, names in os.walk(where or self.out):
            for n in names:
                with open(os.path.join(root, n), "rb") as f:
                    out[os.path.relpath(os.path.join(root, n), where or self.out)] = f.read()
        return out

    def fails(self, *words):
        assert self.code == 1, (self.code, self.err)
        last = self.err.strip().splitlines()[-1]
        assert last.startswith("get.sh: "), self.err
        for w in words:
            assert w in last, (w, last)


def wanted(hub):
    return {n: hub.files[n] for n in ("config.json", "tokenizer.json", "model.safetensors")}


def fetches_what_the_engine_reads_and_nothing_else(c):
    c.hub.entries = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "original"},
                     {"type": "file", "oid": "0" * 40, "size": 3, "path": "original/consolidated.safetensors"}]
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)
    assert not [p for p, _ in c.hub.seen if "bin" in p or "gguf" in p or "README" in p or "original" in p]


def a_folder_of_ones_own(c):
    assert c.get(REPO, "my models/-a b") == 0, c.err
    assert c.held(os.path.join(c.dir, "my models/-a b")) == wanted(c.hub)


def a_second_run_fetches_no_weights_again(c):
    assert c.get() == 0, c.err
    c.hub.seen.clear()
    assert c.get() == 0, c.err
    assert not [p for p, _ in c.hub.seen if "safetensors" in p or "tokenizer" in p], c.hub.seen


def a_cut_transfer_goes_on_where_it_stopped(c):
    c.hub.cut["model.safetensors"] = 120000
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)
    assert [r for p, r in c.hub.seen if "safetensors" in p] == [None, "bytes=120000-", "bytes=240000-"], c.hub.seen


def a_part_of_an_earlier_run_is_used(c):
    c.write("model.safetensors.part", c.hub.files["model.safetensors"][:200000])
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)
    assert ("/%s/resolve/main/model.safetensors" % REPO, "bytes=200000-") in c.hub.seen


def a_complete_part_needs_no_transfer(c):
    c.write("model.safetensors.part", c.hub.files["model.safetensors"])
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)
    assert not [p for p, _ in c.hub.seen if "safetensors" in p]


def a_part_that_is_too_long_begins_anew(c):
    c.write("model.safetensors.part", c.hub.files["model.safetensors"] + b"more")
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)


def a_server_without_ranges_begins_anew(c):
    c.hub.ranges = False
    c.write("model.safetensors.part", b"x" * 1000)
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)


def a_transfer_that_never_ends_stops_with_a_sentence(c):
    c.hub.cut["model.safetensors"] = 0
    assert c.get() == 1
    c.fails("model.safetensors", "again")
    assert "model.safetensors" not in c.held()


def a_wrong_sum_is_thrown_away_and_nothing_good_with_it(c):
    c.write("model.safetensors", b"an older one")
    c.hub.sums["model.safetensors"] = "ab" * 32
    assert c.get() == 1
    c.fails("model.safetensors", "sha256")
    held = c.held()
    assert held["model.safetensors"] == b"an older one" and held["tokenizer.json"] == c.hub.files["tokenizer.json"]
    assert "model.safetensors.part" not in held


def a_damaged_file_is_replaced(c):
    good = c.hub.files["model.safetensors"]
    c.write("model.safetensors", good[:100] + b"?" + good[101:])
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)


def without_a_token_the_sentence_names_the_licence_page(c):
    c.hub.token = "hf_secret"
    assert c.get() == 1
    c.fails("HF_TOKEN", "licence", "/" + REPO, "401")
    assert not c.held()


def a_wrong_token_is_told_apart(c):
    c.hub.token = "hf_secret"
    assert c.get(token="hf_wrong") == 1
    c.fails("refuses this token", "licence")
    assert "hf_wrong" not in c.err


def with_the_token_it_works(c):
    c.hub.token = "hf_secret"
    assert c.get(token="hf_secret") == 0, c.err
    assert c.held() == wanted(c.hub)


def a_token_with_a_line_break_is_not_sent(c):
    assert c.get(token='x"\nurl = "file:///etc/passwd') == 1
    c.fails("HF_TOKEN")
    assert not c.hub.seen


def an_unknown_model_is_not_found(c):
    assert c.get("someone/else") == 1
    c.fails("someone/else", "404")
    assert not os.path.exists(os.path.join(c.dir, "models"))


def a_file_missing_behind_the_listing(c):
    c.hub.entries = [{"type": "file", "size": 4, "path": "gone.safetensors"}]
    assert c.get() == 1
    c.fails("gone.safetensors", "404")


def no_server_at_all(c):
    assert c.get(endpoint="http://127.0.0.1:9") == 1
    c.fails("cannot be reached")


def other_schemes_are_refused(c):
    assert c.get(endpoint="file:///etc") == 1
    c.fails("HF_ENDPOINT")


def odd_names_are_quoted(c):
    for n in ("a b.json", "$(touch pwned).json", "quote'\".json", "100%#?&;|`x`.json", "ünï.json", "*.json", " lead.json"):
        c.hub.files[n] = n.encode() * 3
    assert c.get() == 0, c.err
    held = c.held()
    for n, data in c.hub.files.items():
        assert held.get(n) == data or not n.endswith((".json", ".safetensors")), n
    assert not [f for f in c.held(c.dir) if "pwned" in f and "touch" not in f]


def path_tricks_fetch_nothing(c):
    for n in ("../evil.json", "/tmp/evil.safetensors", "a/../../evil.json", "..\\evil.json", "a\nb.json", "\u0001.json", "./config.json"):
        c.hub.entries = [{"type": "file", "size": 4, "path": n}]
        assert c.get() == 1, n
        c.fails("listing")
        assert list(os.listdir(c.dir)) == [], n


def names_that_look_like_options_or_hide_are_left_out(c):
    for n in ("-o.json", ".hidden.json"):
        c.hub.files[n] = b"{}"
    assert c.get() == 0, c.err
    assert c.held() == wanted(c.hub)


def a_listing_that_is_none(c):
    for body in (b"", b"<html>", b'{"error": "x"}', b'[{"type": "file", "path": "model.safetensors"', b'[{"type":"file","path":"x.json","size":-1}]',
                 b'[{"type":"file","path":"x.json","size":1,"lfs":{"oid":"zz"}}]', b"[]"):
        c.hub.listing = lambda body=body: body
        assert c.get() == 1, body
        c.fails(REPO)


def repositories_without_weights_or_config(c):
    del c.hub.files["config.json"]
    assert c.get() == 1
    c.fails("config.json")
    c.hub.files = {"config.json": b"{}", "model.gguf": b"x"}
    assert c.get() == 1
    c.fails("safetensors")


def names_of_models_are_checked(c):
    for n in ("gemma", "a/b/c", "../x", "a/..", "a b/c", "/x", "x/", "a/-b", ".a/b", "a/b;c"):
        assert c.get(n) in (1, 2), n
    assert not c.hub.seen


def more_bytes_than_announced(c):
    c.hub.entries = [{"type": "file", "size": 4, "path": "long.json"}]
    c.hub.listing = lambda: json.dumps([{"type": "file", "size": 4, "path": "config.json"}, {"type": "file", "size": 300000, "path": "model.safetensors"}]).encode()
    assert c.get() == 1
    c.fails("config.json")
    assert "config.json" not in c.held()


CASES = [fetches_what_the_engine_reads_and_nothing_else, a_folder_of_ones_own, a_second_run_fetches_no_weights_again, a_cut_transfer_goes_on_where_it_stopped,
         a_part_of_an_earlier_run_is_used, a_complete_part_needs_no_transfer, a_part_that_is_too_long_begins_anew, a_server_without_ranges_begins_anew,
         a_transfer_that_never_ends_stops_with_a_sentence, a_wrong_sum_is_thrown_away_and_nothing_good_with_it, a_damaged_file_is_replaced,
         without_a_token_the_sentence_names_the_licence_page, a_wrong_token_is_told_apart, with_the_token_it_works, a_token_with_a_line_break_is_not_sent,
         an_unknown_model_is_not_found, a_file_missing_behind_the_listing, no_server_at_all, other_schemes_are_refused, odd_names_are_quoted, path_tricks_fetch_nothing,
         names_that_look_like_options_or_hide_are_left_out, a_listing_that_is_none, repositories_without_weights_or_config, names_of_models_are_checked, more_bytes_than_announced]
SCRIPT = os.path.abspath("examples/get.sh")


def main():
    if not shutil.which("curl"):
        print("SKIP curl is not here\n0 passed, 0 failed, %d skipped" % len(CASES))
        return 0
    passed = failed = 0
    for case in CASES:
        try:
            with Case() as c:
                case(c)
            print("ok  ", case.__name__)
            passed += 1
        except Exception as e:                    # a failed assertion, or a script that hangs
            print("FAIL", case.__name__, type(e).__name__, e)
            failed += 1
    print("%d passed, %d failed, 0 skipped" % (passed, failed))
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
