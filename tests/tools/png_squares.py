#!/usr/bin/env python3
# png_squares.py FILE N: the red value of each of the N x N squares of an RGB PNG, one a line; exit status 1 if a square is not of one
# colour (its outermost pixels aside, where grid lines may run). Decodes the PNG by its specification, with zlib alone.
import struct, sys, zlib

data, n, at, packed = open(sys.argv[1], "rb").read(), int(sys.argv[2]), 8, b""
while at < len(data):
    size, kind = struct.unpack(">I4s", data[at:at + 8])
    body = data[at + 8:at + 8 + size]
    assert struct.unpack(">I", data[at + 8 + size:at + 12 + size])[0] == zlib.crc32(kind + body)
    if kind == b"IHDR": w, h, depth, color = struct.unpack(">IIBB", body[:10])
    if kind == b"IDAT": packed += body
    at += 12 + size
assert (depth, color) == (8, 2)
raw, rows, above = zlib.decompress(packed), [], bytearray(3 * w)

def paeth(a, b, c):
    d = [abs(b - c), abs(a - c), abs(a + b - 2 * c)]
    return (a, b, c)[d.index(min(d))]

for y in range(h):
    how, row = raw[y * (3 * w + 1)], bytearray(raw[y * (3 * w + 1) + 1:(y + 1) * (3 * w + 1)])
    for i in range(3 * w):
        left, corner = (row[i - 3], above[i - 3]) if i > 2 else (0, 0)
        row[i] = row[i] + (0, left, above[i], (left + above[i]) // 2, paeth(left, above[i], corner))[how] & 255
    rows.append(row)
    above = row
for Y in range(n):
    for X in range(n):
        seen = {bytes(rows[y][3 * x:3 * x + 3]) for y in range(Y * h // n + 2, (Y + 1) * h // n - 2) for x in range(X * w // n + 2, (X + 1) * w // n - 2)}
        if len(seen) != 1: sys.exit("square %d, %d has %d colours" % (Y, X, len(seen)))
        print(seen.pop()[0])
