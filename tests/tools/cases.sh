# cases.sh: what the shell tests share; sourced from the repository's root. A case is a name and a condition:
#
#     is "what is expected" [ "$a" = b ]        runs the command; not true: counted, and what program said last is shown
#     skip "what" "why"
#     finish                                    the closing line; exit status 1 if a case failed
#
# `run PROGRAM ARGS` fills $out and $err (files) and $rc. Everything lies in $tmp, which goes away at the end.

passed=0 failed=0 skipped=0
tmp=$(mktemp -d "${TMPDIR:-/tmp}/gemma3-test.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
out=$tmp/out err=$tmp/err rc=0
: > "$out"; : > "$err"
golden=${GOLDEN:-build/golden}

run() {
    said="$*"
    if command -v timeout >/dev/null 2>&1; then timeout -k 5 "${RUN_LIMIT:-300}" "$@" > "$out" 2> "$err"; else "$@" > "$out" 2> "$err"; fi
    rc=$?
}

is() {
    name=$1; shift
    if "$@"; then passed=$((passed + 1)); echo "ok   $name"; return; fi
    failed=$((failed + 1))
    echo "FAIL $name"
    printf '     not so: %s\n     after:  %s (exit status %s)\n' "$*" "$said" "$rc" | tr '\n\t' '\n ' | head -n 20
    head -c 1500 "$out" | head -n 12 | sed 's/^/     out | /'
    head -c 1500 "$err" | head -n 12 | sed 's/^/     err | /'
}

skip() { skipped=$((skipped + 1)); echo "SKIP $1: $2"; }
finish() { echo "$passed passed, $failed failed, $skipped skipped"; [ "$failed" -eq 0 ]; exit; }

# Conditions
has()    { grep -qF -e "$2" "$1"; }                       # FILE TEXT
hasnt()  { ! grep -qF -e "$2" "$1"; }
empty()  { [ ! -s "$1" ]; }
same()   { cmp -s "$1" "$2"; }
differ() { ! cmp -s "$1" "$2"; }
ends()   { [ "$rc" -eq "$1" ]; }                          # exit status
terminal() { python3 -c 'import pty; pty.openpty()' 2> /dev/null; }           # typed.py can make one here

# A tiny model that can be talked to, into an empty directory: the random weights of text/tiny/t1-f32-text, a context of $2 tokens, and
# tiny_tokenizer's tokenizer. With $3 = chat it brings a chat template.
tiny_model() {
    mkdir -p "$1" || return 1
    cp "$golden/text/tiny/t1-f32-text/model.safetensors" "$1/" || return 1
    sed "s/\"max_position_embeddings\": 512/\"max_position_embeddings\": ${2:-512}/" "$golden/text/tiny/t1-f32-text/config.json" > "$1/config.json"
    if [ "${3:-}" = chat ]; then echo '{"chat_template": "the usual one"}' > "$1/tokenizer_config.json"; fi
    tiny_tokenizer > "$1/tokenizer.json"
}

# One that looks at pictures, too: vision/tiny-b, 16 soft tokens a picture, a context of 4096, with a chat template.
tiny_vision_model() {
    mkdir -p "$1" || return 1
    cp "$golden/vision/tiny-b/model-classic.safetensors" "$1/model.safetensors" && cp "$golden/vision/tiny-b/config-classic.json" "$1/config.json" || return 1
    echo '{"chat_template": "the usual one"}' > "$1/tokenizer_config.json"
    tiny_tokenizer > "$1/tokenizer.json"
}

# Single characters: 5 to 99 printable ASCII, 105 and 106 the turn tokens, 107 the newline, 238 to 493 the bytes, 510 and 511 the
# tokens around a picture, all other ids a word of their own.
tiny_tokenizer() {
    awk 'BEGIN {
        named[0] = "<pad>"; named[1] = "<eos>"; named[2] = "<bos>"; named[3] = "<unk>"; named[105] = "<start_of_turn>"; named[106] = "<end_of_turn>"; named[107] = "\\n"
        named[510] = "<start_of_image>"; named[511] = "<end_of_image>"
        printf "{\"added_tokens\":["
        n = split("0 1 2 3 105 106 510 511", special, " ")
        for (i = 1; i <= n; i++) printf "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}", (i > 1 ? "," : ""), special[i], named[special[i]]
        printf "],\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\342\226\201\"},\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{"
        for (id = 0; id < 512; id++) {
            if (id in named) piece = named[id]
            else if (id == 5) piece = "\342\226\201"
            else if (id > 5 && id < 100) { piece = sprintf("%c", id + 27); if (piece == "\"" || piece == "\\") piece = "\\" piece }
            else if (id >= 238 && id < 494) piece = sprintf("<0x%02X>", id - 238)
            else piece = sprintf("\342\226\201w%d", id)
            printf "%s\"%s\":%d", (id ? "," : ""), piece, id
        }
        printf "},\"merges\":[]}}\n"
    }'
}
