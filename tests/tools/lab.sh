#!/bin/sh
# lab.sh: the 270M on the emulated card, a few tokens, then what each kernel asked of it. For those who write kernels: no GPU is needed.
#
#     make lab                                the kernels as they are
#     make lab KERNELS=my.cuh N=4             a copy of gemma3_kernels.cuh, edited: nothing is rebuilt
#     make lab MODEL=DIR PROMPT='...' CARD=cc=90,memory=80G FLAGS='--kv int8'
set -u
model=${MODEL:-build/gemma-3-270m-nf4}
out=build/lab.json
[ -e "$model/config.json" ] || { echo "lab: $model is missing; please run: make model" >&2; exit 1; }
nvrtc=$(sh tests/tools/get_nvrtc.sh) || { echo "lab: kernels are compiled by NVRTC, and there is none" >&2; exit 1; }
rm -f "$out"
FAKECUDA="counters=$out,${CARD:-cc=89}" build/chat -m "$model" --device cuda --cuda-libraries "build/fakecuda:$(dirname "$nvrtc")" \
    --raw --temp 0 -n "${N:-2}" -p "${PROMPT:-The capital of France is}" --kernel-cache none ${KERNELS:+--kernels "$KERNELS"} ${FLAGS:-} || exit $?
[ -s "$out" ] || { echo "lab: the card left no counters" >&2; exit 1; }
exec python3 tests/tools/lab.py "$out"
