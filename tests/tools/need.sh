#!/bin/sh
# need.sh [--try] PACKAGE...: see to it that these Debian packages' commands and headers are here.
#
# Missing ones are installed with apt-get where that needs no password; elsewhere the line to run is printed and we stop.
# With --try what cannot be had is only named: the tests that want it skip themselves.

try=
[ "$1" = --try ] && { try=1; shift; }

header() { for c in "${CC:-cc}" gcc clang; do echo "#include <stdio.h>
#include <$1>" | $c -E -x c - >/dev/null 2>&1 && return 0; done; return 1; }

have() {
    case $1 in
        gcc)             set -- ${CC:-cc};   command -v "$1" ;;
        g++)             set -- ${CXX:-g++}; command -v "$1" ;;
        libc6-dev)       header unistd.h ;;
        xz-utils)        command -v xz ;;
        python3-pip)     python3 -m pip --version ;;
        libreadline-dev) header readline/readline.h ;;
        gcc-aarch64-linux-gnu) command -v aarch64-linux-gnu-gcc ;;
        libc6-dev-arm64-cross) test -f /usr/aarch64-linux-gnu/include/stdio.h ;;
        qemu-user)       command -v qemu-aarch64 ;;
        python3-venv)    python3 -c "import ensurepip" ;;
        libstb-dev)      header stb/stb_image.h || header stb_image.h ;;
        *)               command -v "$1" ;;
    esac >/dev/null 2>&1
}

missing() { for p in "$@"; do have "$p" || printf ' %s' "$p"; done; }

want=$(missing "$@")
[ -z "$want" ] && exit 0

root=
if [ "$(id -u)" -ne 0 ]; then root="sudo -n"; fi
if command -v apt-get >/dev/null 2>&1 && { [ -z "$root" ] || sudo -n true 2>/dev/null; }; then
    log=${TMPDIR:-/tmp}/gemma3-apt.$$
    echo "installing$want" >&2
    if { $root apt-get update && $root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $want; } > "$log" 2>&1 < /dev/null; then
        rm -f "$log"
    else
        tail -n 5 "$log" >&2
        rm -f "$log"
    fi
    want=$(missing $want)
    [ -z "$want" ] && exit 0
fi
if [ "$try" ]; then echo "not here, what needs it is skipped:$want" >&2; exit 0; fi
echo "missing:$want; please run:  sudo apt-get install -y$want" >&2
exit 1
