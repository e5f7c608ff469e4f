#!/bin/sh
# test_examples.sh: the example programs as their users run them, on a tiny model with random weights: what is written is nonsense,
# but it must be the same nonsense wherever the numbers are the same. test_real_examples.sh does it with the real 270M.
. tests/tools/cases.sh

m=$tmp/tiny
tiny_model "$m" 32768 chat || { skip "all" "no fixtures under $golden"; finish; }
long=$(awk 'BEGIN { for (i = 0; i < 700; i++) printf "%d ", i }')       # 2690 characters, so many tokens

total() { awk '$1 == "total:" { print $(NF - 2) }' "$1"; }       # of a plan
sums() { awk '$1 == "total:" { total = $(NF - 2) } $1 ~ /^(weights|vision|kv|scratch):/ { sum += $(NF - 2) } END { exit !(total > 0 && sum == total) }' "$1"; }
count() { grep -cF -e "$2" "$1"; }

# ---- hello: the program of the first page

run build/hello "$m" < /dev/null
is "hello leaves at the end of its input" ends 0
is "  after one prompt" has "$out" "> "
run sh -c 'build/hello "$1" <&-' sh "$m"
is "hello with a closed stdin leaves, too" ends 0
is "  and reads no file of the model in its place" [ "$(count "$out" "> ")" -eq 1 ]
printf 'hello\nhello again\n' > "$tmp/in"
run build/hello "$tmp/nowhere" < "$tmp/in"
is "hello names the directory that is not there" has "$err" "$tmp/nowhere"
is "  and fails" ends 1
run sh -c 'cd "$1" && exec "$2" < /dev/null' sh "$m" "$PWD/build/hello"
is "hello without an argument takes the current directory" ends 0

# ---- chat: one answer

run build/chat -m "$m" -p "Say it." -n 30 --temp 0 --ignore-eos
is "chat -p answers" ends 0
is "  on stdout" [ -s "$out" ]
is "  with -n tokens, and says so on stderr" has "$err" "answer 30 tokens"
cp "$out" "$tmp/greedy"
run build/chat -m "$m" -p "Say it." -n 30 --temp 0 --ignore-eos -q
is "the likeliest tokens are the same every time" same "$out" "$tmp/greedy"
is "-q leaves stderr alone" empty "$err"
for flags in "-t 1" "-t 5" "--threads=2" "-c 512" "-c max --memory-limit 64M" "-s 9" "--top-k 1" "--color off"; do
    run build/chat -m "$m" -p "Say it." -n 30 --temp 0 --ignore-eos -q $flags
    is "  also with $flags" same "$out" "$tmp/greedy"
done
printf 'Say it.' > "$tmp/prompt"
run build/chat -m "$m" -f "$tmp/prompt" -n 30 --temp 0 --ignore-eos -q
is "-f FILE is -p with its contents" same "$out" "$tmp/greedy"
run build/chat -m "$m" -f - -n 30 --temp 0 --ignore-eos -q < "$tmp/prompt"
is "-f - reads stdin" same "$out" "$tmp/greedy"
run build/chat --model "$m" --prompt "Say it." --n-predict 30 --temperature 0 --ignore-eos --log-disable
is "the long and the borrowed names are the same flags" same "$out" "$tmp/greedy"
run build/chat -m "$m" -p "Say it." -n 30 --temp 0 --ignore-eos -q --system "You are a poet."
is "--system matters" differ "$out" "$tmp/greedy"
run build/chat -m "$m" -p "Say it." -n 30 --temp 0 --ignore-eos -q --raw
is "--raw goes without the template" differ "$out" "$tmp/greedy"
for kv in f32 bf16 fp8 int8; do
    run build/chat -m "$m" -p "Say it." -n 20 --temp 0 -q --kv $kv --precise
    is "--kv $kv --precise answers" ends 0
done
run build/chat -m "$m" -p "Say it." -n 40 -q -s 1; cp "$out" "$tmp/seed1"
run build/chat -m "$m" -p "Say it." -n 40 -q -s 1
is "the same seed, the same answer" same "$out" "$tmp/seed1"
run build/chat -m "$m" -p "Say it." -n 40 -q -s 2
is "another seed, another answer" differ "$out" "$tmp/seed1"
run build/chat -m "$m" -p "Say it." -n 40 -q -s 1 --top-k 0 --top-p 1 --min-p 0 --temp 1.5 --repeat-penalty 1.1
is "all sampler settings together" ends 0
stop=$(tr -c '[:alnum:]' '\n' < "$tmp/seed1" | grep '^w[0-9]' | sed -n 3p)
run build/chat -m "$m" -p "Say it." -n 40 -q -s 1 -r "$stop"
is "-r TEXT stops before the text" [ -n "$stop" -a "$(cat "$out" | grep -cF -e "$stop")" -eq 0 ]
is "  which is earlier" [ "$(wc -c < "$out")" -lt "$(wc -c < "$tmp/seed1")" ]

# ---- chat: what goes wrong

run build/chat -m "$m" -p "$long" -c 1024 --temp 0 -q
is "a prompt longer than the context fails" ends 1
is "  with both numbers in the sentence" has "$err" "1024"
is "  and nothing on stdout" empty "$out"
run build/chat -m "$m" -p "" -n 3 -q
is "an empty prompt is no crash" [ "$rc" -le 1 ]
run build/chat -m "$m" -p "<end_of_turn><start_of_turn>model" -n 3 --temp 0 -q
is "control tokens in the user's words are words" ends 0
run build/chat -m "$tmp/nowhere" -p x
is "a missing directory is named" has "$err" "$tmp/nowhere"
is "  and is a failure" ends 1
run build/chat -m "$m" -p x --memory-limit 100K
is "a model that does not fit is refused" ends 1
is "  with one line" [ "$(wc -l < "$err")" -eq 1 ]
if [ -w /dev/full ]; then
    run sh -c 'build/chat -m "$1" -p x -n 5 -q > /dev/full' sh "$m"
    is "a stdout that cannot be written is a failure" [ "$rc" -ne 0 ]
fi
flag() { run build/chat -m "$m" -p x $1; is "chat $1: $2" has "$err" "$2"; is "  and exit status 2" ends 2; }
flag "--promt y"          "--prompt"
flag "--tmep 0"           "--temp"
flag "--repeat_penalty 1" "--repeat-penalty"
flag "--ctx-sise 9"       "--ctx-size"
flag "--quite"            "--quiet"
flag "--temp warm"        "warm"
flag "-n many"            "many"
flag "-c -7"              "-7"
flag "--kv q4_0"          "q4_0"
flag "--device tpu"       "tpu"
flag "-hf google/x"       "get.sh"
flag "stray"              "stray"
flag "-n"                 "-n"
run build/chat -m "$m" -p "Say it." -n 30 --temp 0 --ignore-eos -ngl 99 -fa --mlock --no-mmap --jinja
is "flags of other programs are accepted" same "$out" "$tmp/greedy"
is "  each with one line on what happens instead" [ "$(grep -c '^chat: -ngl\|^chat: -fa\|^chat: --mlock\|^chat: --no-mmap\|^chat: --jinja' "$err")" -eq 5 ]
run build/chat -h
is "-h lists the flags" ends 0
for f in --model --prompt --file --system --predict --ctx-size --batch-size --threads --temp --top-k --top-p --min-p --repeat-penalty --seed --raw --kv --device --precise --plan --version; do
    has "$out" "$f" || break
done
is "  $f among them" has "$out" "$f"
run build/chat --version
is "--version is that of the header" has "$out" "$(sed -n 's/^#define GEMMA3_VERSION "\(.*\)"/\1/p' gemma3.h)"
run build/chat --list-devices
is "--list-devices knows the CPU" has "$out" "cpu"

# ---- chat: the plan

run build/chat -m "$m" --plan -c 4096
is "--plan answers" ends 0
is "  and its parts make up the total" sums "$out"
cp "$out" "$tmp/plan"
run build/chat -m "$m" --plan -c 8192
is "  twice the context takes more" [ "$(total "$out")" -gt "$(total "$tmp/plan")" ]
run build/chat -m "$m" --plan -c 4096 --memory-limit 100K
is "  a limit that is too low is a failure" ends 1
is "  with advice" has "$out" "does not fit"

# ---- chat: conversations from a pipe

talk() { printf "$1" > "$tmp/in"; shift; run build/chat -m "$m" -n 12 --temp 0 --ignore-eos "$@" < "$tmp/in"; }
talk 'one\n'
is "a line from a pipe is a turn" ends 0
cp "$out" "$tmp/one"
talk 'one\ntwo\n'
is "two lines are two turns" [ "$(head -c "$(wc -c < "$tmp/one")" "$out" | cmp - "$tmp/one" && wc -c < "$out")" -gt "$(wc -c < "$tmp/one")" ]
cp "$out" "$tmp/two"
talk 'one\n/reset\none\n'
cat "$tmp/one" "$tmp/one" > "$tmp/twice"
is "/reset: the same words bring the same answer again" same "$out" "$tmp/twice"
talk 'one\n/retry\n'
is "/retry with --temp 0 finds the same answer" same "$out" "$tmp/twice"
talk 'zero\n/undo\none\n'
tail -c "$(wc -c < "$tmp/one")" "$out" > "$tmp/last"
is "/undo: as if the turn had not been" same "$tmp/last" "$tmp/one"
is "  and says so" has "$err" "turns left: 0"
talk 'one\n/undo\n/undo\n/retry\none\n'
tail -c "$(wc -c < "$tmp/one")" "$out" > "$tmp/last"
is "/undo and /retry with nothing there are no crash" same "$tmp/last" "$tmp/one"
talk 'one\ntwo\n/undo\ntwo\n'
tail -c "$(($(wc -c < "$tmp/two") - $(wc -c < "$tmp/one")))" "$out" > "$tmp/last"
tail -c "$(($(wc -c < "$tmp/two") - $(wc -c < "$tmp/one")))" "$tmp/two" > "$tmp/second"
is "/undo keeps the turns before" same "$tmp/last" "$tmp/second"
talk '/seed 7\n/seed\n'
is "/seed sets and shows the seed" [ "$(count "$err" "seed 7")" -eq 2 ]
printf '/seed 3\none\n/seed 3\n/reset\none\n' > "$tmp/in"
run build/chat -m "$m" -n 12 --ignore-eos < "$tmp/in"
head -c "$(($(wc -c < "$out") / 2))" "$out" > "$tmp/a"; tail -c "$(($(wc -c < "$out") / 2))" "$out" > "$tmp/b"
is "the same seed at the same place draws the same" same "$tmp/a" "$tmp/b"
printf '/seed 3\none\n/retry\n' > "$tmp/in"
run build/chat -m "$m" -n 12 --ignore-eos < "$tmp/in"
head -c "$(wc -c < "$tmp/a")" "$out" > "$tmp/b"; tail -c +"$(($(wc -c < "$tmp/a") + 1))" "$out" > "$tmp/c"
is "/retry answers again" same "$tmp/a" "$tmp/b"
is "  with another answer" differ "$tmp/b" "$tmp/c"
talk 'one\n/stats\n'
is "/stats shows tokens and speed" has "$err" "answer 12 tokens"
talk '/plan\n/help\n/nonsense\n/quit\none\n'
is "/quit leaves at once" empty "$out"
is "/plan shows the plan" has "$err" "total"
is "/help lists the commands" has "$err" "/retry"
is "an unknown command is named" has "$err" "/nonsense"
talk '/system You are a poet.\none\n'; cp "$out" "$tmp/poet"
talk 'one\n' --system 'You are a poet.'
is "/system is --system" same "$out" "$tmp/poet"
printf 'one\ntwo' > "$tmp/prompt"
run build/chat -m "$m" -n 12 --temp 0 --ignore-eos -q -f "$tmp/prompt"; cp "$out" "$tmp/block"
talk '"""one\ntwo"""\n'
is "\"\"\" makes one message of several lines" same "$out" "$tmp/block"
talk '"""\none\ntwo\n"""\n'
is "  also on lines of their own" same "$out" "$tmp/block"
talk '"""one'
is "  one that is never closed ends with the input" ends 0
talk 'one' -q
is "a last line without its newline counts" same "$out" "$tmp/one"
talk "$(awk 'BEGIN { for (i = 0; i < 12; i++) printf "turn number %d\\n", i }')\\n/stats\\n" -c 128
is "a conversation outlives its context" ends 0
is "  with one line about it" has "$err" "context of 128 tokens is full"
is "  and all its answers" [ "$(sed -n 's/.*; answer \([0-9]*\) tokens.*/\1/p' "$err" | tail -n 1)" -eq 144 ]
talk 'one\n/reset\none\n' -c 256 -b 1
is "prompts one token at a time" ends 0

# ---- chat: at a terminal

if terminal; then
    typed() { cat > "$tmp/script"; run python3 tests/tools/typed.py "$tmp/script" build/chat -m "$m" "$@"; }
    typed -n 20000 -c 32768 --ignore-eos -s 1 <<'END'
? > 
> one
? w
^C
? (stopped)
? > 
> /stats
? context 
? > 
> /quit
.
END
    is "Ctrl-C ends the answer and not the program" ends 0
    typed -n 5 --temp 0 <<'END'
? > 
^C
? > 
> /help
? /undo
? > 
^D
.
END
    is "Ctrl-C at an empty prompt leaves nothing; Ctrl-D does" ends 0
    typed -n 5 --temp 0 <<'END'
? > 
> one\ntwo\nthree
? > 
> /undo
? (turns left: 0)
> /quit
.
END
    is "a pasted block is one message" ends 0
    typed -n 5 --temp 0 <<'END'
? > 
> """one
> two"""
? > 
> /undo
? (turns left: 0)
> /quit
.
END
    is "\"\"\" does so at a terminal, too" ends 0
    typed -p "Say it." -n 20000 -c 32768 --ignore-eos -s 1 <<'END'
? w
^C
.
END
    is "Ctrl-C while -p answers ends the program" [ "$rc" -eq 0 -o "$rc" -eq 130 ]
else
    skip "chat at a terminal" "no python3, or no pseudo-terminals here"
fi

# ---- inspect

run build/inspect "$m" -c 4096 --bytes
is "inspect shows a model" ends 0
is "  its shape" has "$out" "4 layers, 64 wide"
is "  and its plan: the bytes that chat --plan says" has "$out" "$(total "$tmp/plan")"
run build/inspect "$m" --tensors
for t in model.embed_tokens.weight model.layers.3.mlp.down_proj.weight model.norm.weight; do has "$out" $t || break; done
is "  --tensors lists $t" has "$out" $t
run build/inspect "$m" --card 100K
is "  a card that is too small: exit status 3" ends 3
run build/inspect "$tmp/nowhere"
is "  a missing directory: exit status 1 and its name" [ "$rc" -eq 1 -a "$(count "$err" "$tmp/nowhere")" -gt 0 ]
run build/inspect "$m" --tensor
is "  an unknown option: exit status 2 and its name" [ "$rc" -eq 2 -a "$(count "$err" "--tensor")" -gt 0 ]

# ---- tokenize: the ids of the tiny tokenizer are a formula

run build/tokenize -m "$m" --ids-only "Hi é"
is "tokenize: printable characters are their code - 27, other bytes theirs + 238" [ "$(cat "$out")" = "45 78 5 433 407" ]
run build/tokenize -m "$m" --ids-only --bos "Hi"
is "  --bos puts <bos> in front" [ "$(cat "$out")" = "2 45 78" ]
run build/tokenize -m "$m" --ids-only --special "<end_of_turn>"
is "  --special knows control tokens" [ "$(cat "$out")" = "106" ]
run build/tokenize -m "$m" --ids-only "<end_of_turn>"
is "  which are words without it" [ "$(wc -w < "$out")" -eq 13 ]
printf 'Hi' > "$tmp/in"
run build/tokenize -m "$m" --ids-only < "$tmp/in"
is "  reads stdin" [ "$(cat "$out")" = "45 78" ]
run build/tokenize -m "$m" --ids-only -f "$tmp/in"
is "  or a file" [ "$(cat "$out")" = "45 78" ]
run build/tokenize -m "$m" --ids 45 78 5 433 407
is "  and goes back from ids" has "$out" "Hi é"
printf '45, 78' > "$tmp/in"
run build/tokenize -m "$m" --ids --ids-only < "$tmp/in"
is "  also from stdin" [ "$(cat "$out")" = "Hi" ]
run build/tokenize -m "$m" --ids 99999
is "  an id that is none is named" has "$err" "99999"
is "  and fails" [ "$rc" -ne 0 ]

# ---- score

run build/score -m "$m" -p "Say it." --precise --kv f32
is "score scores" ends 0
is "  every token of the text" has "$out" "tokens          7 (7 bytes)"
likely() { awk '$1 == "log-likelihood" { print $2 }' "$1"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { d = a - b; exit !(a < 0 && b < 0 && d < 0.002 && d > -0.002) }'; }
whole=$(likely "$out")
run build/score -m "$m" -p "Say it." --precise --kv f32 -b 1
is "  alike in any step" near "$whole" "$(likely "$out")"
run build/score -m "$m" -p "Say it." --precise --kv f32 --top 3
awk '$1 ~ /^[0-9]+$/ && $2 < 0 { sum += $2 } END { print "log-likelihood", sum }' "$out" > "$tmp/rows"
is "  the lines of --top add up to it" near "$(likely "$tmp/rows")" "$whole"
is "  three candidates a line" [ "$(awk '$1 == 1' "$out" | grep -o '0\.[0-9]* "' | wc -l)" -eq 3 ]
run build/score -m "$m" -p "$long" -c 256 -b 64
is "  a text longer than the context is read in windows" has "$out" "tokens          2690"
run build/score -m "$m" -p "$long" -c 4
is "  of any size" has "$out" "tokens          2690"
run build/score -m "$m" -p ""
is "  an empty text is refused" [ "$rc" -ne 0 ]
run build/score -m "$tmp/nowhere" -p x
is "  a missing directory is named" has "$err" "$tmp/nowhere"

# ---- quantize and import_gguf

run build/quantize --help
is "quantize --help" [ "$rc" -eq 0 -a "$(count "$out" "SOURCE")" -gt 0 ]
run build/quantize "$m" "$tmp/nf4"
is "quantize makes a 4-bit checkpoint" ends 0
run build/chat -m "$tmp/nf4" -p "Say it." -n 10 --temp 0 --ignore-eos
is "  which answers" has "$err" "answer 10 tokens"
run build/inspect "$tmp/nf4"
is "  and is 4-bit" has "$out" "nf4"
run build/quantize "$m" "$tmp/nf4"
is "  and is not overwritten" [ "$rc" -ne 0 ]
run build/import_gguf --help
is "import_gguf --help" [ "$rc" -eq 0 -a "$(count "$out" "OUT_DIR")" -gt 0 ]
run build/import_gguf "$m/model.safetensors" "$tmp/imported"
is "  what is no GGUF is refused" [ "$rc" -ne 0 -a ! -e "$tmp/imported/config.json" ]

finish
