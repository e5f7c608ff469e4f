#!/bin/sh
# The header's own prototypes of the driver and of NVRTC are NVIDIA's, for both generations of CUDA; see prototypes.cc. Where their headers are
# neither installed nor to be had, or there is no C++ compiler, it skips. That a wrong prototype is noticed is tried on one that is made wrong.
set -u
passed=0 failed=0 skipped=0
out=build/cuda/prototypes
cxx=${CXX:-g++}
mkdir -p "$out"
if ! command -v "${cxx%% *}" >/dev/null 2>&1; then echo "no C++ compiler"; echo "0 passed, 0 failed, 1 skipped"; exit 0; fi
check() { $cxx -std=c++11 -w -fsyntax-only -I"$1" -I"$2" tests/cuda/prototypes.cc > "$out/said" 2>&1; }
for generation in 13 12; do
    if ! headers=$(sh tests/tools/get_cuda_headers.sh $generation); then skipped=$((skipped + 1)); continue; fi
    if check . "$headers"; then
        $cxx -std=c++11 -w -DCOUNT_CALLS -I. -I"$headers" tests/cuda/prototypes.cc -o "$out/count" -lpthread -ldl && n=$("$out/count") || n=0
        passed=$((passed + n)); echo "ok   CUDA $generation: $n prototypes"
        [ "$n" -gt 0 ] || failed=$((failed + 1))
    else
        failed=$((failed + 1)); grep -o "error: .*" "$out/said" | head -n 10
    fi
    sed 's/X(cuMemGetInfo_v2, *(size_t \*free_bytes,/X(cuMemGetInfo_v2, (int *free_bytes,/' gemma3.h > "$out/gemma3.h"
    if ! cmp -s gemma3.h "$out/gemma3.h" && ! check "$out" "$headers" && grep -q "cuMemGetInfo_v2: not as NVIDIA's" "$out/said"; then passed=$((passed + 1)); echo "ok   CUDA $generation: a wrong one is noticed"
    else failed=$((failed + 1)); echo "FAIL CUDA $generation: a wrong prototype was not noticed"; fi
    rm -f "$out/gemma3.h"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
