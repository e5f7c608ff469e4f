#!/bin/sh
# demo_vision.sh: a picture on its whole way through a model of the 4B's widths, on this machine's CPU: read, resized, encoded, put among
# the words, answered. The weights are random and the layers few (6 of 34, and 3 of 27 in the vision tower), so that it takes minutes and
# not a download of gigabytes. `make demo-vision` has built the programs and made the 270M, whose tokenizer is the real one.
set -u

model=build/demo-vision-4b picture=build/demo-picture.png map=build/demo-map.png
die() { echo "demo-vision: $*" >&2; exit 1; }

python=python3
if ! $python -c 'import numpy' 2> /dev/null; then
    python=build/demo-python/bin/python
    $python -c 'import numpy' 2> /dev/null || { python3 -m venv build/demo-python && $python -m pip install -q --disable-pip-version-check numpy >&2; } || die "numpy could not be had; with network, run make demo-vision again"
fi
if [ ! -s $model/tokenizer_config.json ]; then
    rm -rf $model
    $python tests/tools/synth_checkpoint.py 4b $model --text-layers 6 --vision-layers 3 --embed-std 0.004 --tokenizer build/gemma-3-270m > /dev/null || { rm -rf $model; die "the model could not be made"; }
fi
[ -s $picture ] || python3 tests/tools/draw_picture.py $picture || die "the picture could not be drawn"

# shown COMMAND...: what is run, and what it says
shown() { printf '\n    %s\n' "$*"; "$@" || exit 1; }

cat <<END
A model as wide as Gemma 3 4B, with few layers and random weights ($model). Sizes and times per layer are real; what it says
is nonsense. The picture is $picture, a lighthouse at sunset.
END
shown build/chat -m $model --image $picture -p "What is in this picture?" -n 16
shown build/describe -m $model --json -n 16 -s 1 $picture
shown build/describe -m $model -n 16 -s 1 --map $map $picture

cat <<END

$map shows which of the 256 squares of the picture the answer attended to; with random weights that, too, is noise.
The real 4B, in 4 bits (4 GB to download; Gemma's own terms apply), takes this picture through all 27 layers and answers with sense:

    sh examples/get.sh unsloth/gemma-3-4b-it-unsloth-bnb-4bit
    build/chat -m unsloth/gemma-3-4b-it-unsloth-bnb-4bit --image $picture -p "What is in this picture?"
END
