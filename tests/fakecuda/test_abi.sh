#!/bin/sh
# cuda_abi.h says what a real cuda.h says: every code, every attribute and every struct's layout, and each call's parameters by number and size.
# Skips where there is no cuda.h, and none can be fetched.
set -u
if ! header=$(sh tests/tools/get_cuda_headers.sh 13); then echo "0 passed, 0 failed, 1 skipped"; exit 0; fi
dir=build/fakecuda/abi
mkdir -p "$dir"

# Theirs first, under their names; ours is then compared as text made into static checks. Both define the same types, so each has its own file.
{
    echo '#include <stddef.h>'
    echo '#include <stdio.h>'
    echo "#ifdef OURS"
    echo '#include "cuda_abi.h"'
    echo "#else"
    echo '#define cuGetProcAddress_v2 real_header_hides_it'
    echo '#include <cuda.h>'
    echo "#endif"
    echo '#define SAY(name, value) printf("%s %d%c", #name, (int)(value), 10);'
    echo 'int main(void) {'
    for name in $(grep -o 'CU_[A-Z0-9_]* = [0-9]*' tests/fakecuda/cuda_abi.h | cut -d' ' -f1) $(grep -o 'X(CUDA_[A-Z_]*' tests/fakecuda/cuda_abi.h | cut -c3-); do
        echo "SAY($name, $name)"
    done
    for type in CUdevice CUdeviceptr CUcontext CUresult CUuuid CUlaunchConfig CUlaunchAttribute CUgraphExecUpdateResultInfo; do
        echo "SAY($type, sizeof($type))"
    done
    for field in gridDimX gridDimZ blockDimX blockDimZ sharedMemBytes hStream attrs numAttrs; do
        echo "SAY($field, offsetof(CUlaunchConfig, $field))"
    done
    echo 'SAY(value, offsetof(CUlaunchAttribute, value))'
    echo 'SAY(errorNode, offsetof(CUgraphExecUpdateResultInfo, errorNode))'
    echo 'return 0; }'
} > "$dir/list.c"
passed=0 failed=0
if ${CC:-cc} -DOURS -Itests/fakecuda "$dir/list.c" -o "$dir/ours" && ${CC:-cc} -I"$header" "$dir/list.c" -o "$dir/theirs"; then
    "$dir/ours" > "$dir/ours.txt"; "$dir/theirs" > "$dir/theirs.txt"
    passed=$(wc -l < "$dir/theirs.txt")
    diff "$dir/ours.txt" "$dir/theirs.txt" || { failed=$(diff "$dir/ours.txt" "$dir/theirs.txt" | grep -c '^<'); passed=$((passed - failed)); }
else
    failed=1
fi

# The calls: redeclared beside the real header with our parameters, where enums and handles pass for each other by size.
${CC:-cc} -E -I"$header" -include cuda.h -x c /dev/null 2>/dev/null | tr '\n' ' ' | grep -o 'cu[A-Z][A-Za-z0-9_]*([^;{]*);' > "$dir/real.txt"
count() { sed 's/^[^(]*(//; s/)[^)]*$//' | awk -F, '{ print ($0 ~ /^ *void *$/) ? 0 : NF }'; }
tr '\n' ' ' < tests/fakecuda/cuda_abi.h | tr -d '\\' | grep -o 'X(cu[A-Za-z0-9_]*, ([^)]*))' | sed 's/^X(\([^,]*\), (\(.*\)))$/\1(\2)/' > "$dir/calls.txt"
while IFS= read -r ours; do
    name=${ours%%(*}
    real=$(grep -m1 "^$name(" "$dir/real.txt")
    [ -z "$real" ] && continue                   # an older form that this header no longer declares
    a=$(printf '%s\n' "$ours" | count) b=$(printf '%s\n' "${real%;}" | count)
    if [ "$a" = "$b" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "$name: $a parameters here, $b there"; fi
done < "$dir/calls.txt"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
