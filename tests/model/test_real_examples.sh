#!/bin/sh
# test_real_examples.sh: the example programs on the real 270M, as their users run them. What must come out is the reference's:
# ids, greedy tokens and likelihood from golden/text/270m.json.
. tests/tools/cases.sh
dense=build/gemma-3-270m nf4=build/gemma-3-270m-nf4
[ -f $dense/config.json ] && [ -f $nf4/config.json ] || { skip "all" "no $dense and $nf4 (make model)"; finish; }
[ -f "$golden/text/270m.json" ] || { skip "all" "no fixtures under $golden"; finish; }
words="The capital of France is"

# ---- tokenize: prompts.short and the passage

run build/tokenize -m $dense --ids-only --bos "$words"
is "tokenize finds the reference's ids" [ "$(cat "$out")" = "2 818 5279 529 7001 563" ]
run build/tokenize -m $dense --ids-only --bos -f "$golden/text/passage.txt"
is "  all 1987 of the passage" [ "$(wc -w < "$out")" -eq 1987 ]
tr ' ' '\n' < "$out" | sed -n 2,257p > "$tmp/ids"
run build/tokenize -m $dense --ids --ids-only < "$tmp/ids"
head -c "$(($(wc -c < "$out") - 1))" "$out" > "$tmp/start"
head -c "$(wc -c < "$tmp/start")" "$golden/text/passage.txt" > "$tmp/a"
is "  and back: 256 ids are bytes" [ "$(wc -c < "$tmp/start")" -gt 256 ]
is "  namely the passage's beginning" same "$tmp/a" "$tmp/start"

# ---- score: passage_nll.mean_nll_by_256[0] of mode f32_scalebf is 3.53842

run build/score -m $dense -f "$tmp/start" --precise --kv f32
is "score: the first 256 tokens of the passage" has "$out" "tokens          256 "
is "  are as likely as the reference says" [ "$(awk '$1 == "per" { d = $3 + 3.53842; print (d < 1e-4 && d > -1e-4) }' "$out")" = 1 ]
run build/score -m $nf4 -p "The capital of France is Paris, and the capital of Germany is Berlin." --top 3
is "  with --top, what it expected" has "$out" '" Berlin"'
sense=$(awk '$1 == "perplexity" { print $2 }' "$out")
run build/score -m $nf4 -p "Paris capital the is The Berlin of, France Germany of. is and capital the"
is "  sense is likelier than its words in disorder" [ "$(awk -v a="$sense" '$1 == "perplexity" { print (a > 0 && 4 * a < $2) }' "$out")" = 1 ]

# ---- chat: prompts.short goes on with the reference's 64 greedy tokens

line=" the capital of the country of France. It is the largest city in France and the second largest city in Europe."
run build/tokenize -m $dense --ids-only "$line"
ids=$(tr -d '[] \n' < "$golden/text/270m.json" | grep -o "506,5279,529,506,2891,529,7001,236761,1030,563,506,7488,3207,528,7001,532,506,1855,7488,3207,528,3879,236761" | sed -n 1p)
is "the fixture's greedy ids are that sentence" [ "$(tr ' ' , < "$out")" = "$ids" ]
run build/chat -m $dense --raw --precise --kv f32 --temp 0 -n 64 -p "$words"
is "chat --raw goes on as the reference does" has "$out" "$line It is the capital of the country of France. It is the largest city in France and the second largest city in Europe. It is the capital of the country of France. It is the largest city in"
is "  with 64 tokens" has "$err" "answer 64 tokens"
cp "$out" "$tmp/answer"
printf '%s' "$words" > "$tmp/prompt"
run build/chat -m $dense --raw --precise --kv f32 --temp 0 -n 12 -f "$tmp/prompt" -q
is "  -f FILE alike" [ "$(head -c "$(($(wc -c < "$out") - 1))" "$out")" = "$(head -c "$(($(wc -c < "$out") - 1))" "$tmp/answer")" ]
run build/chat -m $nf4 --raw --temp 0 -n 6 -p "The first planets of the solar system are Mercury,"
is "in 4 bits it knows the planets" has "$out" "Venus"
printf 'Hello there.\nWho are you?\n/stats\n/quit\nNever read.\n' > "$tmp/in"
run build/chat -m $nf4 -n 8 --temp 0 < "$tmp/in"
is "two turns of a conversation" ends 0
is "  with the warning that this model was not made to chat" has "$err" "chat template"
run build/chat -m $nf4 --plan
is "chat --plan" has "$out" "total"
if terminal; then
    cat > "$tmp/script" <<'END'
? > 
> Once upon a time
? world
^C
? (stopped)
? > 
> /quit
.
END
    run python3 tests/tools/typed.py "$tmp/script" build/chat -m $nf4 --raw --ignore-eos --temp 0
    is "Ctrl-C ends the answer and not the program" ends 0
fi

# ---- hello and inspect

run build/hello $nf4 < /dev/null
is "hello opens it and leaves at the end of its input" ends 0
run build/inspect $dense
is "inspect: the dense one" has "$out" "268 M parameters"
run build/inspect $nf4
is "  the 4-bit one" has "$out" "nf4"
is "  of as many parameters" has "$out" "268 M parameters"
finish
