#!/bin/sh
# test_pictures.sh: chat and describe with pictures, as their users run them, on a tiny model with random weights: what is written is
# nonsense, but the same pictures and words must bring the same nonsense, and others another.
. tests/tools/cases.sh

m=$tmp/eyes t=$tmp/blind p="$tmp/my pictures"
tiny_vision_model "$m" && tiny_model "$t" 4096 chat || { skip "all" "no fixtures under $golden"; finish; }
found=
for h in stb_image.h stb/stb_image.h; do printf '#include <stdio.h>\n#include <%s>\n' $h | ${CC:-cc} -E -x c - > /dev/null 2>&1 && found=$h; done
[ "$found" ] || { skip "all" "no stb_image.h here (libstb-dev): nothing reads picture files"; finish; }

# bmp FILE WIDTH HEIGHT SEED: a picture of its own for every seed; 0: one even grey. Bytes from 32 to 122, so that any awk can write them.
le32() { for shift in 1 256 65536 16777216; do printf "\\$(printf %03o $(($1 / shift % 256)))"; done; }
bmp() {
    row=$((($2 * 3 + 3) / 4 * 4))
    { printf BM; le32 $((54 + row * $3)); le32 0; le32 54; le32 40; le32 $2; le32 $3; printf '\001\000\030\000'; for zero in 1 2 3 4 5 6; do le32 0; done
      LC_ALL=C awk -v row=$row -v n=$3 -v s=$4 'BEGIN { for (y = 0; y < n; y++) for (x = 0; x < row; x++) printf "%c", 32 + (s ? 10 * s + (int(x / 9) * s + y * (s + 3)) % 20 : 0) }'; } > "$1"
}
mkdir "$p"
bmp "$p/a.bmp" 60 40 5
bmp "$p/b.bmp" 31 70 1
bmp "$p/long one.bmp" 700 300 7
head -c 500 "$p/a.bmp" > "$p/cut.bmp"
printf 'RIFF\044\000\000\000WEBPVP8 and so on' > "$p/other.webp"
echo "no picture" > "$p/notes.txt"
count() { grep -cF -e "$2" "$1"; }
lines() { [ "$(wc -l < "$1")" -eq "$2" ]; }
tokens() { sed -n 's/.*prompt \([0-9]*\) tokens.*/\1/p' "$1" | tail -n 1; }
looked() { has "$1" "pictures looked at $2,"; }
one() { run build/chat -m "$m" -p "Say it." -n 12 --temp 0 --ignore-eos "$@"; }

# ---- chat --image

one; words=$(tokens "$err"); cp "$out" "$tmp/none"
one --image "$p/a.bmp"
is "chat --image answers" ends 0
is "  has looked at the picture" looked "$err" 1
is "  which is 16 tokens, two around them and two runs of newlines" [ "$(tokens "$err")" -ge $((words + 20)) ]
is "  and says how large it is" has "$err" "60 x 40"
cp "$out" "$tmp/a"
one --image "$p/a.bmp"
is "  the same picture, the same answer" same "$out" "$tmp/a"
draw() { one -n 400 -s 3 --temp 2 --top-k 0 --top-p 1 "$@"; }     # a long answer drawn from all tokens shows any difference; the likeliest hardly change
draw --image "$p/a.bmp"; cp "$out" "$tmp/drawn"
draw --image "$p/a.bmp"
is "  the same seed, too" same "$out" "$tmp/drawn"
draw --image "$p/b.bmp"
is "  another picture, another answer" differ "$out" "$tmp/drawn"
one --image "$p/a.bmp" --image="$p/b.bmp"
is "  two pictures go with one message" looked "$err" 2
cp "$out" "$tmp/ab"
draw --image "$p/a.bmp" --image "$p/b.bmp"; cp "$out" "$tmp/drawn"
draw --image "$p/b.bmp" --image "$p/a.bmp"
is "  in the order given" differ "$out" "$tmp/drawn"
one --image "$p/long one.bmp"
is "a long picture is one picture" looked "$err" 1
one --image "$p/long one.bmp" --pan-and-scan
is "  --pan-and-scan makes it three: the whole and two crops" looked "$err" 3
one --image "$p/a.bmp" -q
is "-q leaves stderr alone" empty "$err"
one --image "$p/a.bmp" -c 20
is "a picture that does not fit the context fails" ends 1
is "  with one sentence" [ "$(count "$err" "chat: ")" -eq 1 ]

refused() { run build/chat "$@" -n 5; is "  exit status 1" ends 1; is "  one sentence" [ "$(count "$err" "chat: ")" -eq 1 ]; is "  no answer" empty "$out"; }
echo "a broken picture"; refused -m "$m" -p x --image "$p/cut.bmp"
is "  which names the file" has "$err" "cut.bmp"
echo "a file that is not there"; refused -m "$tmp/nowhere" -p x --image "$p/none.png"
is "  is found before the model is opened" has "$err" "none.png"
echo "a format that is not read"; refused -m "$m" -p x --image "$p/other.webp"
is "  which names the file" has "$err" "other.webp"
echo "no picture at all"; refused -m "$m" -p x --image "$p/notes.txt"
echo "a folder"; refused -m "$m" -p x --image "$p"
echo "a model without vision"; refused -m "$t" -p x --image "$p/a.bmp"
is "  says so" has "$err" "reads text only"
one --image "$p/a.bmp" --no-vision
is "--image and --no-vision contradict each other" [ "$rc" -eq 2 -a "$(count "$err" "--no-vision")" -eq 1 ]
one --image "$p/a.bmp" --raw
is "--image and --raw, too" [ "$rc" -eq 2 -a "$(count "$err" "--raw")" -eq 1 ]
one --no-vision
is "--no-vision alone reads text as ever" same "$out" "$tmp/none"
total() { awk '$1 == "total:" { print $(NF - 2) }' "$1"; }
run build/chat -m "$m" --plan; with=$(total "$out")
run build/chat -m "$m" --plan --no-vision
is "  and takes less memory" [ "$(total "$out")" -lt "$with" ]
run build/chat -h
is "-h names --image and --pan-and-scan" [ "$(count "$out" "--image FILE")" -eq 1 -a "$(count "$out" "--pan-and-scan")" -eq 1 ]

# ---- conversations from a pipe

talk() { printf '%s\n' "$@" > "$tmp/in"; run build/chat -m "$m" -n 12 --temp 0 --ignore-eos -v < "$tmp/in"; }
talk "/image $p/a.bmp" "Say it."
is "/image FILE is --image" same "$out" "$tmp/a"
is "  and says that it waits" has "$err" "1 picture for the next message"
talk "/image '$p/a.bmp'" "/image $tmp/my\\ pictures/b.bmp" "Say it."
is "  quoted, escaped, and several" same "$out" "$tmp/ab"
HOME="$p" talk "/image ~/a.bmp" "Say it."
is "  or in the home directory" same "$out" "$tmp/a"
talk "/image $p/b.bmp" "/undo" "/image $p/a.bmp" "Say it."
is "/undo drops what waits" same "$out" "$tmp/a"
talk "/image $p/b.bmp" "/reset" "Say it."
is "/reset, too" same "$out" "$tmp/none"
talk "/image $p/a.bmp" "Say it." "/retry"
cat "$tmp/a" "$tmp/a" > "$tmp/twice"
is "/retry looks at the picture again" same "$out" "$tmp/twice"
talk "/image $p/a.bmp" "Say it." "And now?"
is "a picture stays in the conversation" [ "$(sed -n 's/.*context \([0-9]*\) of.*/\1/p' "$err" | tail -n 1)" -gt $((2 * words + 44)) ]
talk "/image $p/a.bmp" ""
is "an empty line sends a picture without words" looked "$err" 1
talk "/image $p/cut.bmp" "Say it."
is "a script's broken picture ends it" ends 1
is "  before a question is answered without it" empty "$out"
talk "$p/a.bmp is a file."
is "no path in a pipe is a picture" hasnt "$err" "pictures looked at"
for i in 1 2 3 4 5 6 7 8; do printf '/image %s/a.bmp\nturn %d\n' "$p" $i; done > "$tmp/in"
run build/chat -m "$m" -n 12 --temp 0 --ignore-eos -c 160 -v < "$tmp/in"
is "a conversation of pictures outlives its context" ends 0
is "  with one line about it" has "$err" "context of 160 tokens is full"
is "  and all its answers" [ "$(sed -n 's/.*; answer \([0-9]*\) tokens.*/\1/p' "$err" | tail -n 1)" -eq 96 ]
talk "/image"
is "/image without a file is no crash" has "$err" "which file"

# ---- paths dropped on a terminal

if terminal; then
    export TYPED_LIMIT=30
    typed() { cat > "$tmp/script"; run python3 tests/tools/typed.py "$tmp/script" build/chat -m "$m" -n 5 --temp 0; }
    one --image "$p/a.bmp" -n 5; want=$(tokens "$err")
    dropped() {                                          # WHAT PATH: the path and a question
        printf '? > \n> %s Say it.\n? 60 x 40\n? > \n> /quit\n.\n' "$2" | typed
        is "dropped, $1: a picture" [ "$rc" -eq 0 -a "$(count "$out" "pictures looked at 1,")" -eq 1 ]
        is "  and no word of its path" [ "$(tokens "$out")" = "$want" ]
    }
    dropped "in single quotes" "'$p/a.bmp'"
    dropped "in double quotes" "\"$p/a.bmp\""
    dropped "escaped" "$tmp/my\\ pictures/a.bmp"
    dropped "as a URL" "file://$tmp/my%20pictures/%61.bmp"
    dropped "as a URL of this machine" "file://localhost$tmp/my%20pictures/a.bmp"
    cp "$p/a.bmp" "$p/it's.bmp"
    dropped "with a quote in its name" "'$p/it'\\''s.bmp'"
    cp "$p/a.bmp" "$p/plain"
    dropped "without an ending" "'$p/plain'"
    typed <<END
? > 
> $p/a.bmp
? 1 picture for the next message
? > 
> Say it.
? > 
> /quit
.
END
    is "a path alone, blanks and all, waits for words" [ "$rc" -eq 0 -a "$(tokens "$out")" = "$want" ]
    typed <<END
? > 
> Is '$p/a.bmp' like '$p/b.bmp' ?
? 60 x 40
? 31 x 70
? > 
> /quit
.
END
    is "two among words are two pictures" looked "$out" 2
    typed <<END
? > 
> '$p/cut.bmp' Say it.
? cut.bmp
? your words wait
> '$p/a.bmp'
? 60 x 40
? > 
> /quit
.
END
    is "a broken one: the words wait for another" [ "$rc" -eq 0 -a "$(count "$out" "pictures looked at 1,")" -eq 1 ]
    typed <<END
? > 
> '$p/notes.txt' '$p/none.png' Don't!
? > 
> /quit
.
END
    is "what is no picture, or not there, is words" [ "$rc" -eq 0 -a "$(count "$out" "pictures looked at")" -eq 0 ]
    m=$t
    typed <<END
? > 
> '$p/a.bmp' Say it.
? reads text only
? your words wait
? > 
> 
? (5 tokens
? > 
> /quit
.
END
    is "a model without vision says so, and keeps the words" [ "$rc" -eq 0 -a "$(count "$out" "reads text only")" -eq 1 ]
    m=$tmp/eyes
    blocks() { printf '\342\226\200' > "$tmp/block"; grep -o "$(cat "$tmp/block")" "$out" | wc -l; }
    printf '? > \n> /image %s/a.bmp\n? waits\n> /quit\n.\n' "$p" > "$tmp/script"; sed 's/waits/1 picture/' "$tmp/script" > "$tmp/s" && mv "$tmp/s" "$tmp/script"
    TYPED_TERM=xterm-256color run python3 tests/tools/typed.py "$tmp/script" build/chat -m "$m"
    is "what the model sees is shown in 32 x 16 half blocks" [ "$(blocks)" -eq 512 ]
    TYPED_TERM=dumb run python3 tests/tools/typed.py "$tmp/script" build/chat -m "$m"
    is "  but not on a terminal without colours" [ "$(blocks)" -eq 0 ]
else
    skip "paths dropped on a terminal" "no python3, or no pseudo-terminals here"
fi

# ---- describe

mkdir "$tmp/shelf"
cp "$p/a.bmp" "$p/b.bmp" "$p/cut.bmp" "$p/notes.txt" "$tmp/shelf/"
run build/describe -m "$m" -n 12 "$tmp/shelf"
is "describe: a line for each picture of a folder" lines "$out" 2
is "  in order of their names" [ "$(cut -d: -f1 "$out" | tr '\n' ' ')" = "$tmp/shelf/a.bmp $tmp/shelf/b.bmp " ]
is "  the broken one has its line on stderr" [ "$(count "$err" "cut.bmp")" -eq 1 -a "$(wc -l < "$err")" -eq 1 ]
is "  and the exit status tells" ends 1
head -n 1 "$out" > "$tmp/first"
run build/describe -m "$m" -n 12 "$p/b.bmp" "$tmp/shelf/a.bmp"
is "a file after another is described as if it were the first" [ "$rc" -eq 0 -a "$(sed -n 2p "$out")" = "$(cat "$tmp/first")" ]
run build/describe -m "$m" -n 12 -s 1 "$tmp/shelf/a.bmp"
is "--seed draws" differ "$out" "$tmp/first"
run build/describe -m "$m" -n 12 -p "How many?" "$tmp/shelf/a.bmp"
is "--prompt matters" differ "$out" "$tmp/first"
run build/describe -m "$m" "$tmp/nowhere.png"
is "a missing file: exit status 1 and its name" [ "$rc" -eq 1 -a "$(count "$err" "nowhere.png")" -eq 1 ]
mkdir "$tmp/bare"
run build/describe -m "$m" "$tmp/bare"
is "a folder without pictures: exit status 1 and its name" [ "$rc" -eq 1 -a "$(count "$err" "$tmp/bare")" -eq 1 ]
run build/describe -m "$t" "$p/a.bmp"
is "a model without vision: exit status 1, one sentence" [ "$rc" -eq 1 -a "$(count "$err" "reads text only")" -eq 1 -a "$(wc -l < "$err")" -eq 1 ]
run build/describe -m "$m" --jsn "$p/a.bmp"
is "an unknown flag: exit status 2 and its name" [ "$rc" -eq 2 -a "$(count "$err" "--jsn")" -eq 1 ]
run build/describe "$p/a.bmp"
is "no model: exit status 2" ends 2
run build/describe -h
is "-h explains" [ "$rc" -eq 0 -a "$(count "$out" "--map")" -gt 0 ]
if command -v python3 > /dev/null 2>&1; then
    name=$(printf 'a "quoted" \\ name\n\303\244 \377.bmp')
    cp "$p/a.bmp" "$tmp/shelf/$name" 2> /dev/null || :
    run build/describe -m "$m" -n 40 --json "$tmp/shelf"
    cp "$out" "$tmp/json"
    run python3 -c '
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
assert all(set(r) == {"file", "width", "height", "tokens", "text"} for r in rows), rows
assert [r["width"] for r in rows if r["file"].endswith("/b.bmp")] == [31] and len(rows) == int(sys.argv[2])
assert all(r["tokens"] == 40 or r["tokens"] > 0 for r in rows)
odd = [r["file"] for r in rows if "quoted" in r["file"]]
assert all(f.endswith("a \"quoted\" \\ name\n\u00e4 \ufffd.bmp") for f in odd), odd' "$tmp/json" "$(ls "$tmp/shelf" | grep -c 'bmp$' | awk '{ print $1 - 1 }')"
    is "--json: every line is an object, whatever the name" ends 0
else skip "--json" "no python3"
fi
run build/describe -m "$m" -n 5 --map "$tmp/map.png" "$p/a.bmp" "$p/b.bmp"
is "--map with two pictures is refused" ends 2
bmp "$tmp/black.bmp" 64 64 0
printf '#include <stdio.h>\n#include <%s>\n' "$(echo $found | sed 's/stb_image/stb_image_write/')" | ${CC:-cc} -E -x c - > /dev/null 2>&1 && writer=1 || writer=
if [ "$writer" ]; then
    run build/describe -m "$m" -n 5 --map "$tmp/map.png" "$tmp/black.bmp"
    is "--map writes a picture" [ "$rc" -eq 0 -a -s "$tmp/map.png" ]
    is "  a PNG of 896 x 896" [ "$(od -An -tx1 -N24 "$tmp/map.png" | tr -d ' \n')" = "89504e470d0a1a0a0000000d494844520000038000000380" ]
    is "  beside its line" lines "$out" 1
    if command -v python3 > /dev/null 2>&1; then         # squares of one colour each: 4 x 4 of them, the strongest at full, the weakest without red
        run python3 tests/tools/png_squares.py "$tmp/map.png" 4
        is "  4 x 4 squares of even colour, for 16 soft tokens" ends 0
        is "  from none to all" [ "$(sort -n "$out" | sed -n '1p;$p' | tr '\n' ' ')" = "32 210 " ]
    fi
    run build/describe -m "$m" -n 5 --map "$tmp/nowhere/map.png" "$p/a.bmp"
    is "a map that cannot be written: exit status 1 and its name" [ "$rc" -eq 1 -a "$(count "$err" "nowhere/map.png")" -eq 1 ]
else skip "--map" "no stb_image_write.h here"
fi
finish
