#!/bin/sh
# The header under every compiler, standard and option this machine has, warnings being errors. Run from the repository root; INCLUDE: where gemma3.h is.
#
# gcc gives "unused function" only when it makes code, so it compiles to assembly; clang's syntax check says everything.
# A kind of compiler that is absent counts as skipped.

WARN="-Wall -Wextra -Wshadow -Wconversion -Wpedantic -Werror"
dir=tests/compile
out=build/compile
inc=${INCLUDE:-.}

say() { if [ "$1" -eq 0 ]; then echo "ok   $2"; else echo "FAIL $2"; [ -s "$3" ] && head -n 15 "$3"; fi; }

if [ "$1" = --one ]; then                                    # --one KIND CASE COMPILER LANGUAGE STANDARD
    kind=$2 case=$3 cc=$4 lang=$5 std=$6
    log=$out/$kind-$case-$cc-$std.log
    src=$dir/$case.c
    [ -f "$src" ] || src=$dir/$case
    check="-fsyntax-only"
    case $cc in gcc|g++) check="-S -O0 -o /dev/null" ;; esac
    stb=
    echo '#include "stb/stb_image.h"' | $cc -x c -E - >/dev/null 2>&1 && stb=-DSTB_SLASH
    cc="$cc -x $lang -std=$std $WARN -I$inc"
    case $kind in
        good)  $cc $check "$src" > "$log" 2>&1 ;;
        fast)  $cc -O2 -c -o "$log.o" "$src" > "$log" 2>&1 ;;                    # optimisation sees more: uninitialised, bounds
        stops) ! $cc $check "$src" > "$log" 2>&1 && grep -q 'error.*include gemma3.h before' "$log" ;;
        twice) $cc -O0 -o "$log.exe" $dir/static_twice_a.c $dir/static_twice_b.c -lm -lpthread -ldl > "$log" 2>&1 && "$log.exe" ;;
        stb)   $cc $stb -O0 -w -o "$log.exe" $dir/stb_a.c $dir/stb_b.c -lm -lpthread -ldl > "$log" 2>&1 && "$log.exe" ;;
        same)  $cc $stb -O0 -w -DSAME_FILE -D_GNU_SOURCE -o "$log.exe" $dir/stb_a.c -lm -lpthread -ldl > "$log" 2>&1 && "$log.exe" ;;
        names) sh $dir/symbols.sh "$4" "$lang" "$std" "$inc" "$log.o" "$src" > "$log" 2>&1 ;;
    esac
    say $? "$kind: $case with $4 -std=$std" "$log"
    exit 0
fi

mkdir -p $out
skipped=0
has_stb() { for h in stb_image.h stb/stb_image.h; do echo "#include \"$h\"" | $1 -x c -E - >/dev/null 2>&1 && return 0; done; return 1; }
cases() {
    options="no_cuda no_simd no_threads no_vision no_stdio no_stb no_all"
    for pair in gcc:g++ clang:clang++; do
        c=${pair%:*} cpp=${pair#*:}
        if command -v $c >/dev/null 2>&1; then
            for f in decl_only impl order_impl_first static_twice_a static_twice_b $options; do echo good $f $c c c99; done
            for s in c11 c17; do echo good impl $c c $s; done
            echo good order_decl_first $c c gnu99
            echo stops order_decl_first $c c c99
            echo fast impl $c c c99
            echo twice static_twice $c c c99
            echo names impl $c c c99
            if has_stb $c; then echo stb stb $c c c99; echo same stb $c c c99; fi
        fi
        if command -v $cpp >/dev/null 2>&1; then
            for f in decl_only impl.cc order_impl_first order_decl_first static_twice_a static_twice_b $options; do echo good $f $cpp c++ c++11; done
            echo good impl.cc $cpp c++ c++20
            echo twice static_twice $cpp c++ c++11
            echo names impl.cc $cpp c++ c++11
            if has_stb $cpp; then echo stb stb $cpp c++ c++11; echo same stb $cpp c++ c++11; fi
        fi
    done
    for c in musl-gcc x86_64-w64-mingw32-gcc; do                 # another C library, another system: only where somebody has installed them
        if command -v $c >/dev/null 2>&1; then for f in impl no_all; do echo fast $f $c c c99; done; fi
    done
    if command -v gcc >/dev/null 2>&1; then
        for f in no_cuda no_threads no_stdio no_stb no_all; do echo names $f gcc c c99; done
    fi
}
for c in gcc g++ clang clang++; do
    command -v $c >/dev/null 2>&1 || { echo "SKIP $c is not here"; skipped=$((skipped + 1)); }
done
has_stb "${CC:-cc}" || { echo "SKIP stb_image.h is not here"; skipped=$((skipped + 1)); }
cases | xargs -L 1 -P "${JOBS:-2}" sh "$0" --one > $out/all.txt
cat $out/all.txt
want=$(cases | wc -l)
passed=$(grep -c '^ok  ' $out/all.txt)
echo "$passed passed, $((want - passed)) failed, $skipped skipped"
[ "$passed" -eq "$want" ]
