#!/bin/sh
# demo.sh: the real Gemma 3 270M goes on with a few texts, on this machine's CPU. `make demo` has built build/chat and made the model.
# CHAT and MODEL, if set, are used instead.
set -u

chat=${CHAT:-build/chat}
model=${MODEL:-build/gemma-3-270m-nf4}

for need in "$chat" "$model/config.json"; do
    [ -e "$need" ] || { echo "demo: $need is missing; please run: make demo" >&2; exit 1; }
done

# go_on SEED TEXT: the text, what the model writes after it, then chat's line of speed and memory (caught, so that no progress bar
# is drawn over the text)
exec 3>&1
go_on() {
    printf '\n%s' "$2"
    line=$("$chat" -m "$model" --raw --temp 0.6 -n 48 -s "$1" -p "$2" 2>&1 >&3)
    status=$?
    printf '%s\n' "$line"
    [ $status -eq 0 ] || exit $status
}

cat <<EOF
Gemma 3 270M with 4-bit weights ($model), running on the CPU from gemma3.h alone.
This is the base model: it goes on with a text. Each run below opens the model anew.
EOF

go_on 3 'Once upon a time, a lighthouse keeper'
go_on 2 'Three things to see in Paris:'
go_on 1 'int add(int a, int b) {'

cat <<EOF

Any Gemma 3 directory from Hugging Face works in the same way; one whose name ends in -it answers questions: $chat -m DIR
Next, a text of your own:

    $chat -m $model --raw -n 100 -p "The best way to make tea is"
EOF
