#!/bin/sh
# Prints the compiler flags for line editing: readline, libedit, or nothing where neither is installed.
dir=$(mktemp -d) || exit 0
trap 'rm -rf "$dir"' EXIT
try() {
    printf '#include <stdio.h>\n#include <%s>\nint main(void) { return readline(0) != 0; }\n' "$1" > "$dir/t.c"
    ${CC:-cc} "$dir/t.c" -o "$dir/t" "$3" 2>/dev/null && { echo "$2 $3"; exit 0; }
}
try readline/readline.h -DHAVE_READLINE -lreadline
try editline/readline.h -DHAVE_EDITLINE -ledit
