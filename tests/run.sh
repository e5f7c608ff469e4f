#!/bin/sh
# run.sh NAME PROGRAM...: runs test programs, two at a time, and adds up their last lines.
#
# A program ends with `N passed, N failed, N skipped` (see test.h). One that is missing, crashes, hangs for TEST_LIMIT seconds,
# or prints no such line counts as one failure; what a failing program said is shown. The last line here is the sum, alone.
# Programs are C tests under build/, or scripts under tests/ (*.sh, *.py). Logs: build/log/NAME/.
# Environment: JOBS (2), TEST_LIMIT (900).

if [ "$1" = --one ]; then                                    # --one LOGDIR PROGRAM: what a worker runs
    prog=$3
    name=$(printf %s "$prog" | tr '/ ' '__')
    log=$2/$name.txt
    limit=
    command -v timeout >/dev/null 2>&1 && limit="timeout -k 10 ${TEST_LIMIT:-900}"
    case $prog in
        *.sh) run="sh $prog" ;;
        *.py) run="python3 $prog" ;;
        build/arm64/*) run="qemu-aarch64 ./$prog" ;;
        *)    run=./$prog ;;
    esac
    if [ ! -f "$prog" ]; then
        echo "not built" > "$log"; rc=127
    elif [ "$run" != "${run#python3}" ] && ! command -v python3 >/dev/null 2>&1; then
        echo "0 passed, 0 failed, 1 skipped" > "$log"; rc=0
    else
        $limit $run > "$log" 2>&1 < /dev/null; rc=$?
    fi
    # The closing line counts only as the very last one; a bad exit status without a counted failure is a failure of its own.
    set -- "$2" $(awk '{ last = $0 } END { if (last ~ /^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$/) { gsub(/[^0-9 ]/, "", last); split(last, n, " +"); print n[1]+0, n[2]+0, n[3]+0 } }' "$log")
    passed=${2:-0} failed=${3:-0} skipped=${4:-0} why=
    if [ $# -lt 4 ]; then failed=1 why=" (no closing line, exit status $rc)"
    elif [ "$rc" -ne 0 ] && [ "$failed" -eq 0 ]; then failed=1 why=" (exit status $rc)"
    fi
    [ "$rc" -eq 124 ] && why=" (stopped after ${TEST_LIMIT:-900} seconds)"
    echo "$passed $failed $skipped" > "$1/$name.sum"
    if [ "$failed" -eq 0 ]; then
        printf 'ok    %-40s %6d passed%s\n' "$prog" "$passed" "$([ "$skipped" -gt 0 ] && echo ", $skipped skipped")"
    else
        printf 'FAIL  %-40s %6d passed, %d failed%s\n%s\n' "$prog" "$passed" "$failed" "$why" "$(grep -v '^ok  ' "$log" | tail -n 40 | sed 's/^/      | /')"
    fi
    exit 0
fi

logs=build/log/$1
shift
rm -rf "$logs"
mkdir -p "$logs"
if [ $# -gt 0 ]; then
    printf '%s\n' "$@" | xargs -n 1 -P "${JOBS:-2}" sh "$0" --one "$logs"
fi
# A worker that was killed leaves no sum: that is a failure too.
cat "$logs"/*.sum 2>/dev/null | awk -v want=$# '
    { passed += $1; failed += $2; skipped += $3 }
    END { if (NR < want || !want) failed += want ? want - NR : 1
          printf "%d passed, %d failed%s\n", passed, failed, skipped ? ", " skipped " skipped" : ""; exit failed != 0 }'
