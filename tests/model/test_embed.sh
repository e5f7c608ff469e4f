#!/bin/sh
# test_embed.sh: the embedding examples on a tiny model: lent threads in every order, counted memory, frames, ctypes layouts.
. tests/tools/cases.sh
. tests/model/embed_cases.sh

# The structs of embed.py as the C compiler lays them out: "struct.field offset size" on both sides.
layouts() {
    python3 -B - > "$1" <<'PY'
import ctypes, sys
sys.path.insert(0, "examples")
import embed
for name, s in embed.KIND.items():
    if isinstance(s, type) and issubclass(s, ctypes.Structure):
        print(name, "all", 0, ctypes.sizeof(s))
        for field, kind in s._fields_: print(name, field, getattr(s, field).offset, ctypes.sizeof(kind))
PY
    awk 'BEGIN { print "#include \"gemma3.h\"\n#include <stdio.h>\nint main(void)\n{" }
         $2 == "all" { printf "    printf(\"%s all 0 %%d\\n\", (int)sizeof(%s));\n", $1, $1; next }
         { printf "    printf(\"%s %s %%d %%d\\n\", (int)offsetof(%s, %s), (int)sizeof(((%s *)0)->%s));\n", $1, $2, $1, $2, $1, $2 }
         END { print "    return 0;\n}" }' "$1" > "$tmp/layout.c"
    ${CC:-cc} -std=c99 -I. "$tmp/layout.c" -o "$tmp/layout" && "$tmp/layout" > "$2"
}

tokens=40 words="Is it 7 o'clock?"
model=$tmp/talks
tiny_model "$model" 512 chat || { skip "all" "no fixtures under $golden"; finish; }
embed_cc_cases
embed_py_cases

model=$tmp/writes                                        # without a chat template: embed.cc goes on writing
tiny_model "$model" 512
tokens=25
embed_cc_cases --raw

if command -v python3 >/dev/null 2>&1; then
    said="layouts of examples/embed.py"
    layouts "$out" "$tmp/c"
    rc=$?
    is "every struct of embed.py compiles as C" ends 0
    is "  at least ten of them" [ "$(grep -c ' all ' "$tmp/c")" -ge 10 ]
    is "  each field where the C compiler puts it" same "$out" "$tmp/c"
    run python3 -B examples/embed.py "$tmp/nowhere" "x"
    is "embed.py passes on the library's sentence" has "$err" "$tmp/nowhere"
    is "  and fails" ends 1
fi
if [ -x build/embed ]; then
    run build/embed -m "$tmp/nowhere" x
    is "embed.cc passes on the library's sentence" has "$err" "$tmp/nowhere"
    is "  and fails" ends 1
    run build/embed --order backwards x
    is "an unknown order brings the usage" has "$err" "usage: embed"
    is "  and exit status 2" ends 2
    run build/embed -m "$model" ""
    is "an empty prompt is no crash" [ "$rc" -le 1 ]
fi
finish
