#!/bin/sh
# get_nvrtc.sh [13|12]: prints the path of an NVRTC library of that CUDA generation (13 unless told), from the repository root.
#
# The installed toolkit's is taken if there is one. Else the release below is fetched from PyPI (90 MB, downloaded and unpacked, never
# installed) into build/nvrtc-RELEASE, where it stays. The compiler opens its libnvrtc-builtins.so beside itself when it is first used.
# NVRTC_DIRS: where a toolkit's may lie, instead of the usual places (empty: nowhere). NVRTC_CACHE: what takes the fetched ones, instead of build.
# Exit status 1, and a word on the standard error, when there is neither: tests that want a compiler then skip.
set -u

case ${1:-13} in
    13) release=13.0.88 package=nvidia-cuda-nvrtc ;;
    12) release=12.9.86 package=nvidia-cuda-nvrtc-cu12 ;;
    *)  echo "get_nvrtc.sh: only the generations 12 and 13 are known, not $1" >&2; exit 2 ;;
esac
lib=libnvrtc.so.${1:-13}
dir=${NVRTC_CACHE:-build}/nvrtc-$release
case $dir in /*) ;; *) dir=$PWD/$dir ;; esac

say() { echo "nvrtc: $*" >&2; }

usual="${CUDA_HOME:+$CUDA_HOME/lib64 $CUDA_HOME/lib} /usr/local/cuda/lib64 /usr/local/cuda/lib /usr/lib/x86_64-linux-gnu /usr/lib64"
installed() {
    for d in ${NVRTC_DIRS-$usual}; do [ -e "$d/$lib" ] && { echo "$d/$lib"; return 0; }; done
    return 1
}

# A wheel is a zip file; the two libraries go into the directory under their own names, the compiler last, so that it marks a whole one.
unpack() {
    python3 - "$1" "$dir" <<'PY'
import os, shutil, sys, zipfile
wheel, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    names = [n for n in z.namelist() if "/lib" in n and os.path.basename(n).startswith("libnvrtc") and ".alt." not in n]
    if len(names) < 2:
        sys.exit("nvrtc: no compiler in " + wheel)
    for n in sorted(names, key=lambda n: "builtins" not in n):
        path = os.path.join(out, os.path.basename(n))
        with z.open(n) as f, open(path + ".part", "wb") as g:
            shutil.copyfileobj(f, g, 1 << 20)
        os.replace(path + ".part", path)
PY
}

fetched() { [ -s "$dir/$lib" ] && echo "$dir/$lib"; }

fetch() {
    fetched && return 0                              # while this one waited for its turn
    say "fetching $package $release (90 MB)"
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --no-cache-dir --dest "$dir" "$package==$release" >&2 \
        || { say "$package could not be fetched"; return 1; }
    set -- "$dir"/*.whl
    unpack "$1" || return 1
    rm -f "$dir"/*.whl
    fetched || { say "the package held no $lib"; return 1; }
}

installed && exit 0
fetched && exit 0
sh tests/tools/need.sh --try python3 python3-pip
mkdir -p "$dir" || exit 1
if command -v flock >/dev/null 2>&1; then            # tests run two at a time, and both may ask first
    exec 9> "$dir/lock"
    flock 9
fi
fetch
