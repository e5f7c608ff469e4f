# embed_cases.sh: examples/embed.cc and examples/embed.py on the model in $model; sourced by test_embed.sh and test_real_embed.sh.
# $tokens: how many to write; $words: the prompt.

embed_cc_cases() {
    if [ ! -x build/embed ] && ! command -v "${CXX:-g++}" >/dev/null 2>&1; then skip "embed.cc" "no C++ compiler"; return; fi
    run build/embed -m "$model" -n "$tokens" "$words"
    is "embed.cc writes an answer" ends 0
    is "  of as many tokens as asked for" grep -q "^$tokens tokens and [0-9]* frames in" "$err"
    is "  taking nothing from its allocator after opening" has "$err" " 0 of them after opening"
    is "  and giving everything back" has "$err" "0 bytes are left after closing"
    cp "$out" "$tmp/direct"
    for order in late reversed serial; do
        run build/embed -m "$model" -n "$tokens" --order $order "$words"
        is "lent bodies run $order: the text is the same" same "$tmp/direct" "$out"
        is "  and the program ends well" ends 0
    done
    for threads in 1 3; do                               # the library's own threads; the same prompt in steps of the same size
        run build/chat -m "$model" $1 -q -n "$tokens" -b 16 -t $threads --temp 0 -p "$words"
        strip "$out" > "$tmp/theirs"; strip "$tmp/direct" > "$tmp/ours"
        is "$threads thread(s) of the library's own write what lent ones write" same "$tmp/theirs" "$tmp/ours"
    done
}

embed_py_cases() {
    if ! command -v python3 >/dev/null 2>&1; then skip "embed.py" "no python3"; return; fi
    run python3 -B examples/embed.py "$model" "$words" "$tokens"
    is "embed.py writes a completion" ends 0
    strip "$out" > "$tmp/ours"
    run build/chat -m "$model" --raw -q -n "$tokens" --temp 0 -p "$words"
    strip "$out" > "$tmp/theirs"
    is "  the one that chat --raw writes" same "$tmp/ours" "$tmp/theirs"
}

strip() { printf '%s\n' "$(tr -d '\000' < "$1")"; }       # without the newlines at its end
