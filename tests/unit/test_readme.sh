#!/bin/sh
# test_readme.sh: the README says nothing that is not there: its programs compile, its commands, files, flags and names exist.
. tests/tools/cases.sh
said="README.md"
fenced() { awk -v lang="$1" -v want="$2" '/^```/ { if (in_it) { in_it = 0; next } if ($0 == "```" lang && ++n == want) in_it = 1; next } in_it' README.md; }

fenced c 1 > "$tmp/hello.c"
sed '/^\/\//d' examples/hello.c > "$tmp/theirs.c"
is "the program of the first screen is examples/hello.c" same "$tmp/hello.c" "$tmp/theirs.c"
sed -n -e 's,^//     *,,p' -e '/^$/q' gemma3.h | tr -d ' \n' > "$tmp/banner"
sed -n '/^static int print/,$p' "$tmp/hello.c" | tr -d ' \n' > "$tmp/text"
is "  and that of the banner" grep -qF -e "$(cat "$tmp/text")" "$tmp/banner"
run ${CC:-cc} -std=c99 -Wall -Wextra -Werror -O0 -I. "$tmp/hello.c" -o "$tmp/hello" -lm -lpthread -ldl
is "  and is built with the libraries it names" ends 0
{ printf '#include "gemma3.h"\n#include <memory>\nvoid f(const char *dir)\n{\n    g3_error err;\n'; fenced cpp 1; printf '}\n'; } > "$tmp/three.cc"
if command -v "${CXX:-g++}" >/dev/null 2>&1; then
    run ${CXX:-g++} -std=c++11 -Wall -Werror -fsyntax-only -I. "$tmp/three.cc"
    is "the C++ form compiles" ends 0
else skip "the C++ form" "no C++ compiler"
fi
fenced c 2 > "$tmp/gemma3.c"
fenced cmake 1 > "$tmp/lists"
is "the two lines are two lines" [ "$(wc -l < "$tmp/gemma3.c")" -eq 2 ]
if command -v cmake >/dev/null 2>&1; then
    { printf 'cmake_minimum_required(VERSION 3.5)\nproject(x C)\nset(CMAKE_C_FLAGS "-O0 -I%s")\n' "$PWD"; cat "$tmp/lists"; printf 'add_executable(user user.c)\ntarget_link_libraries(user gemma3)\n'; } > "$tmp/CMakeLists.txt"
    printf '#include "gemma3.h"\nint main(void) { return !*g3_version(); }\n' > "$tmp/user.c"
    run sh -c 'cmake -S "$1" -B "$1/b" && cmake --build "$1/b" && "$1/b/user"' sh "$tmp"
    is "the CMake lines make a library that links" ends 0
else skip "CMake" "it is not here"
fi

missing() { say=; for x in $1; do eval "$2" || say="$say $x"; done; echo "$say" > "$out"; [ -z "$say" ]; }
is "every make target exists" missing "$(grep -o 'make [a-z][a-z]*' README.md | awk '$2 !~ /^(and|also|up|it|makes|model)$/ { print $2 }' | sort -u)" 'grep -q "^$x:" Makefile'
is "every file exists" missing "$(grep -oE '(examples|tests)/[A-Za-z0-9_./]+' README.md | sed 's/[.]$//' | sort -u)" '[ -e "$x" ]'
is "every program has its source" missing "$(grep -oE 'build/[a-z_0-9]+' README.md | sort -u | sed 's,build/,,' | grep -v '^gemma$\|^libgemma3$')" '[ -e "examples/$x.c" ]'
is "every name is declared" missing "$(grep -oE '\b(g3|G3|GEMMA3)_[A-Za-z0-9_]*[A-Za-z0-9]' README.md | sort -u)" 'grep -qE "\\b$x" gemma3.h'
is "every tag is a section" missing "$(grep -o '>>[a-z0-9]*' README.md | sort -u)" 'grep -q "^// $x" gemma3.h'
is "every row of make sizes is there" [ "$(grep -cE '^\| (270m|1b|4b|12b|27b) \| (bf16|dynamic 4-bit) \|' README.md)" -eq 10 ]
is "no figure is still a question mark" [ "$(grep -c '| ? |\|MACHINE' README.md)" -eq 0 ]
finish
