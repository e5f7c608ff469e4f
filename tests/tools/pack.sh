#!/bin/sh
# pack.sh DIR NAME: DIR becomes tests/golden/NAME.tar.xz, the same bytes every time (GNU tar and xz).
# READMEs stay out (tests/golden/README.md speaks for all), and a *.tar.xz inside DIR goes in unpacked.
set -eu
[ $# -eq 2 ] || { echo "usage: sh tests/tools/pack.sh DIR NAME" >&2; exit 2; }
out=$(pwd)/tests/golden/$2.tar.xz
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp -R "$1" "$tmp/in"
chmod -R u+w "$tmp/in"
cd "$tmp/in"
find . -name README.md -exec rm {} +
find . -name '*.tar.xz' -exec sh -c 'xz -dc "$0" | tar -xf - -C "$(dirname "$0")" && rm "$0"' {} \;
# Float tables pack best with the position inside a word as context (lp=2) and none from the previous byte (lc=0).
find . ! -type d -o -type d -empty | LC_ALL=C sort | sed 's,^\./,,' |
    tar --format=ustar --owner=0 --group=0 --numeric-owner --mtime=@0 --mode=u=rwX,go=rX --no-recursion -cf - -T - |
    xz -T1 -c --lzma2=preset=9e,dict=64MiB,lc=0,lp=2,pb=2,nice=273,depth=512 > "$out.tmp"
mv "$out.tmp" "$out"
ls -l "$out"
