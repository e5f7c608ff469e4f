#!/bin/sh
# NVRTC where there is no toolkit: fetched once into the cache; where it cannot be had, get_nvrtc.sh says so and tests skip with a sentence.
passed=0 failed=0
case_of() { if [ "$2" = yes ]; then passed=$((passed + 1)); echo "ok   $1"; else failed=$((failed + 1)); echo "FAIL $1"; fi; }
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT

mkdir "$tmp/toolkit" && touch "$tmp/toolkit/libnvrtc.so.13"
got=$(NVRTC_DIRS=$tmp/toolkit sh tests/tools/get_nvrtc.sh 13)
case_of an_installed_one_is_taken "$([ "$got" = "$tmp/toolkit/libnvrtc.so.13" ] && echo yes)"

mkdir -p "$tmp/cache/nvrtc-13.0.88" && echo x > "$tmp/cache/nvrtc-13.0.88/libnvrtc.so.13"
got=$(NVRTC_DIRS='' NVRTC_CACHE=$tmp/cache sh tests/tools/get_nvrtc.sh 13)
case_of a_fetched_one_is_taken "$([ "$got" = "$tmp/cache/nvrtc-13.0.88/libnvrtc.so.13" ] && echo yes)"

# pip with no index stands for a machine without a network.
export NVRTC_DIRS='' NVRTC_CACHE="$tmp/empty" PIP_NO_INDEX=1
got=$(sh tests/tools/get_nvrtc.sh 12 2> "$tmp/said"); rc=$?
case_of without_network_it_says_so "$([ $rc -ne 0 ] && [ -z "$got" ] && grep -q 'could not be fetched' "$tmp/said" && echo yes)"
for t in targets threads coverage checks; do
    env -u NVRTC "build/fakecuda/test_$t" > "$tmp/said" 2>&1; rc=$?
    case_of "without_network_test_${t}_skips" "$([ $rc -eq 0 ] && tail -n 1 "$tmp/said" | grep -q ' 0 failed, [1-9][0-9]* skipped' && echo yes)"
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
