#!/bin/sh
# get_cuda_headers.sh [13|12]: prints the directories that hold NVIDIA's cuda.h and nvrtc.h of that CUDA generation (13 unless told), one a line.
#
# The installed toolkit's if there is one of that generation. Else they are taken out of the wheels of PyPI that carry them (never installed) and
# kept in build/cuda-headers-GENERATION: cuda.h from the runtime's, 3 MB; nvrtc.h from the compiler's, which is 90 MB, so it is kept for next time.
# CUDA_DIRS: where a toolkit may lie, instead of the usual places (empty: nowhere). Exit status 1, and a word on the standard error, when there is neither.
set -u

generation=${1:-13}
case $generation in
    13) packages="nvidia-cuda-runtime==13.0.88 nvidia-cuda-nvrtc==13.0.88" ;;
    12) packages="nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-nvrtc-cu12==12.9.86" ;;
    *)  echo "get_cuda_headers.sh: only the generations 12 and 13 are known, not $generation" >&2; exit 2 ;;
esac
dir=build/cuda-headers-$generation
whole() { [ -s "$1/cuda.h" ] && [ -s "$1/nvrtc.h" ] && grep -q "define CUDA_VERSION ${generation}" "$1/cuda.h"; }

for d in ${CUDA_DIRS-${CUDA_HOME:+$CUDA_HOME/include} /usr/local/cuda/include /usr/include}; do whole "$d" && { echo "$d"; exit 0; }; done
whole "$dir" && { echo "$dir"; exit 0; }
sh tests/tools/need.sh --try python3 python3-pip
mkdir -p "$dir" || exit 1
if command -v flock >/dev/null 2>&1; then exec 9> "$dir/lock"; flock 9; fi
whole "$dir" && { echo "$dir"; exit 0; }
for package in $packages; do
    echo "cuda headers: fetching $package" >&2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --no-cache-dir --dest "$dir" "$package" >&2 \
        || { echo "cuda headers: $package could not be fetched" >&2; exit 1; }
done
python3 - "$dir" <<'PY'
import glob, os, sys, zipfile
for wheel in glob.glob(os.path.join(sys.argv[1], "*.whl")):
    with zipfile.ZipFile(wheel) as z:
        for n in z.namelist():
            if os.path.basename(n) in ("cuda.h", "nvrtc.h"):
                with open(os.path.join(sys.argv[1], os.path.basename(n)), "wb") as f:
                    f.write(z.read(n))
    os.remove(wheel)
PY
whole "$dir" || { echo "cuda headers: the packages held no cuda.h and nvrtc.h of generation $generation" >&2; exit 1; }
echo "$dir"
