#!/bin/sh
# get.sh OWNER/NAME [DIR]: fetches a checkpoint from Hugging Face into models/OWNER/NAME, where the other examples look for it.
#
#     sh examples/get.sh unsloth/gemma-3-4b-it-unsloth-bnb-4bit
#     HF_TOKEN=hf_... sh examples/get.sh google/gemma-3-270m-it        gated: accept the licence on its page first, then use a token
#
# Shows: a download that can be trusted. Only what gemma3.h reads is taken (safetensors, json, tokenizer). A cut transfer goes on where it
# stopped, now or on the next run; a file gets its name only when size and sha256 are those of the listing. HF_ENDPOINT: another server.
# Needs curl, awk and sha256sum (or shasum).

set -u
LC_ALL=C
export LC_ALL
TAB=$(printf '\t')
stop() { printf 'get.sh: %s\n' "$1" >&2; exit 1; }

repo=${1-}
endpoint=${HF_ENDPOINT:-https://huggingface.co}
endpoint=${endpoint%/}
case $repo in
    ''|-*) echo "usage: sh get.sh OWNER/NAME [DIR]" >&2; exit 2 ;;
    */*/*|/*|*/|*[!A-Za-z0-9._/-]*|.*|*/.*|*/-*) stop "'$repo' is not of the form OWNER/NAME" ;;
    */*) ;;
    *) stop "'$repo' has no owner; write OWNER/NAME, as in google/gemma-3-270m-it" ;;
esac
case $endpoint in
    https://*) schemes='=https' ;;
    http://*)  schemes='=http,https' ;;
    *) stop "HF_ENDPOINT is '$endpoint', which is neither http:// nor https://" ;;
esac
case ${HF_TOKEN-} in *[!A-Za-z0-9._-]*) stop "HF_TOKEN holds characters that no token has" ;; esac
dir=${2:-models/$repo}
case $dir in -*) dir=./$dir ;; esac
command -v curl >/dev/null 2>&1 || stop "curl is not installed (Debian: sudo apt-get install curl)"

# ---- transfers: curl with its options in one place; the token goes through stdin, where `ps` does not show it

fetch() {                                                   # fetch URL CURL-OPTION...: prints the HTTP status; curl's exit status
    url=$1
    shift
    if [ -n "${HF_TOKEN-}" ]; then printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN"; fi |
        curl -K - -fL -g --proto "$schemes" --proto-redir "$schemes" --connect-timeout 30 --speed-limit 1 --speed-time 60 \
             -w '%{http_code}' "$@" -- "$url"
}

explain() {                                                 # explain WHAT HTTP-STATUS CURL-STATUS: one sentence, and out
    case $2 in
        401|403) if [ -n "${HF_TOKEN-}" ]
                 then stop "$1: the server refuses this token ($2); accept the licence on $endpoint/$repo with the account the token belongs to"
                 else stop "$1: the server wants a token ($2); accept the licence on $endpoint/$repo, make a token in your settings there, and set HF_TOKEN"
                 fi ;;
        404) stop "$1: not found on $endpoint (404)" ;;
        429) stop "$1: the server asks to slow down (429); try again later" ;;
        000|2*|'') case $3 in
                 6|7|28|35|60) stop "$1: $endpoint cannot be reached (curl error $3)" ;;
                 63) stop "$1: the server sends more bytes than it announced; nothing was kept" ;;
                 23) stop "$1: cannot be written to $dir; is the disk full?" ;;
                 *)  stop "$1: the transfer was cut (curl error $3); run the same command again to go on from here" ;;
             esac ;;
        *)   stop "$1: the server answered $2" ;;
    esac
}

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum < "$1"; else shasum -a 256 < "$1"; fi | cut -d' ' -f1
}

size_of() { if [ -f "$1" ]; then wc -c < "$1" | tr -d ' '; else echo 0; fi; }

# ---- the listing: JSON in, one line "sha256|-  size  name" per file we want

list_files() {
    awk '
    function refuse(why) { print "!" why; failed = 1; exit }
    # An entry is complete. Folders and what gemma3.h does not read are left out.
    function entry() {
        if (type == "file") {
            if (path !~ /\.(safetensors|json|jinja)$/ && path !~ /^tokenizer[^\/]*$/) return
            if (path ~ /[\001-\037\177\\]/) refuse("the listing has a name with control characters or backslashes")
            if (path ~ /^\// || path ~ /(^|\/)\.\.?(\/|$)/) refuse("the listing names " path ", which lies outside the folder")
            if (path ~ /\// || path ~ /^[.-]/ || path ~ /\.part$/) return
            if (size !~ /^[0-9]+$/ || (sha != "-" && (length(sha) != 64 || sha ~ /[^0-9a-f]/))) refuse("the listing has no proper size or sha256 for " path)
            print sha "\t" size "\t" path
        }
    }
    # The text of a JSON string without its quotes; escapes that no file name needs become a control character, which entry() refuses.
    function text(s,    out, c, i) {
        out = ""
        while ((i = index(s, "\\")) > 0) {
            c = substr(s, i + 1, 1)
            out = out substr(s, 1, i - 1) (c == "\"" || c == "/" ? c : c == "\\" ? "\\" : "\001")
            s = substr(s, i + 2)
        }
        return out s
    }
    { json = json $0 "\n" }
    END {
        if (failed) exit
        if (json !~ /^[ \t\r\n]*\[/) refuse("the server did not answer with a list of files")
        depth = 0
        while (length(json)) {
            if (match(json, /^[ \t\r\n,:]+/)) { json = substr(json, RLENGTH + 1); continue }
            c = substr(json, 1, 1)
            if (c == "{" || c == "[") {
                depth++
                if (depth == 2) { type = path = size = ""; sha = "-" }
                inside[depth] = key
                key = ""
                json = substr(json, 2)
            } else if (c == "}" || c == "]") {
                if (depth == 2) { entry(); if (failed) exit }
                key = ""
                depth--
                json = substr(json, 2)
            } else {
                if (c == "\"") {
                    if (!match(json, /^"([^"\\]|\\.)*"/)) refuse("the listing is cut")
                    value = text(substr(json, 2, RLENGTH - 2))
                } else {
                    if (!match(json, /^[-+.A-Za-z0-9]+/)) refuse("the listing is not JSON")
                    value = substr(json, 1, RLENGTH)
                }
                json = substr(json, RLENGTH + 1)
                if (key == "" && c == "\"" && json ~ /^[ \t\r\n]*:/) { key = value; continue }
                if (depth == 2 && key == "type") type = value
                if (depth == 2 && key == "path") path = value
                if (depth == 2 && key == "size") size = value
                if (depth == 3 && inside[3] == "lfs" && key == "oid") sha = value
                key = ""
            }
        }
        if (depth) refuse("the listing is cut")
    }'
}

# A name as a URL has it: every byte but the plain ones as %XX.
url_name() {
    printf %s "$1" | od -An -v -tx1 | tr -s ' ' '\n' | awk '
        BEGIN { for (i = 33; i < 127; i++) if ((c = sprintf("%c", i)) ~ /[A-Za-z0-9._-]/) plain[sprintf("%02x", i)] = c }
        length($0) { printf "%s", ($0 in plain) ? plain[$0] : "%" toupper($0) }'
}

# ---- one file: part, check, rename

get_file() {                                                # get_file SHA256 SIZE NAME
    sum=$1 size=$2 name=$3 file=$dir/$3 part=$dir/$3.part tries=0
    if [ "$sum" = - ]; then
        rm -f "$part"                                        # a small file without a sum to check it against: whole and fresh
    elif [ "$(size_of "$file")" = "$size" ] && [ "$(sha256 "$file")" = "$sum" ]; then
        printf '%s: already here\n' "$name" >&2
        return
    fi
    : >> "$part" || stop "$name: cannot be written to $dir"
    [ "$(size_of "$part")" -le "$size" ] || : > "$part"
    printf '%s: %s bytes\n' "$name" "$size" >&2
    bar=-s
    [ -t 2 ] && bar=-#
    while [ "$(size_of "$part")" -lt "$size" ]; do
        before=$(size_of "$part")
        code=$(fetch "$endpoint/$repo/resolve/main/$(url_name "$name")" "$bar" --max-filesize "$size" -C - -o "$part")
        status=$?
        [ "$status" -eq 0 ] && break
        case $status:$code in
            33:*|*:416) : > "$part" ;;                       # no ranges here, or a part that does not belong: from the start
            18:*|56:*|92:*|28:2*) ;;                         # cut: go on from where it stopped
            *) explain "$name" "$code" "$status" ;;
        esac
        [ "$(size_of "$part")" -gt "$before" ] || tries=$((tries + 1))
        [ "$tries" -lt 3 ] || explain "$name" "$code" "$status"
        sleep 1
    done
    [ "$(size_of "$part")" = "$size" ] || { rm -f "$part"; stop "$name: $size bytes were announced, others came; nothing was kept"; }
    if [ "$sum" != - ] && [ "$(sha256 "$part")" != "$sum" ]; then
        rm -f "$part"
        stop "$name: the sha256 of what came is not that of the listing; it was thrown away, run the same command again"
    fi
    mv -f "$part" "$file" || stop "$name: cannot be renamed in $dir"
}

listing=$(fetch "$endpoint/api/models/$repo/tree/main" -s)
status=$?
code=$(printf %s "$listing" | tail -c 3)                    # fetch prints the status after the body
[ "$status" -eq 0 ] || explain "$repo" "$code" "$status"
files=$(printf %s "${listing%???}" | list_files)
case $files in *!*) bad=$(printf '%s\n' "$files" | sed -n 's/^!//p'); [ -z "$bad" ] || stop "$repo: $bad; nothing was fetched" ;; esac
case $files in *.safetensors*) ;; *) stop "$repo holds no safetensors; gemma3.h reads no other weights" ;; esac
case $files in *"${TAB}config.json"*) ;; *) stop "$repo holds no config.json, so it is not a checkpoint" ;; esac

mkdir -p "$dir" || stop "$dir cannot be made"
printf '%s\n' "$files" | while IFS=$TAB read -r sum size name; do get_file "$sum" "$size" "$name"; done || exit 1
printf '%s\n' "$dir"
