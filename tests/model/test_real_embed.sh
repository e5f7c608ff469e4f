#!/bin/sh
# test_real_embed.sh: the embedding examples on the real 270M in 4 bits.
. tests/tools/cases.sh
. tests/model/embed_cases.sh
model=build/gemma-3-270m-nf4
[ -f $model/config.json ] || { skip "all" "no $model (make model)"; finish; }
tokens=8 words="The first planets of the solar system are Mercury,"
embed_cc_cases --raw
embed_py_cases
is "and what is written makes sense" has "$tmp/ours" "Venus"
finish
