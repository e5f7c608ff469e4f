#!/usr/bin/env python3
# draw_picture.py OUT.png: a lighthouse by the sea at sunset, 640 x 480, drawn by formulas; a picture that belongs to nobody.
import struct, sys, zlib

W, H, HORIZON = 640, 480, 300

def mix(a, b, t): return tuple(int(u + (v - u) * t) for u, v in zip(a, b))

def pixel(x, y):
    sun = ((x - 190) ** 2 + (y - 250) ** 2) ** 0.5
    color = mix((38, 60, 120), (250, 160, 90), (y / HORIZON) ** 2) if y < HORIZON else mix((190, 110, 90), (20, 40, 80), (y - HORIZON) / (H - HORIZON))
    if y < HORIZON and sun < 45: color = (255, 225, 130)
    if y >= HORIZON and abs(x - 190) < 20 + (y - HORIZON) / 3 and (y // 6) % 2: color = mix(color, (255, 215, 140), 0.6)     # the sun on the water
    if (x - 470) ** 2 / 150 ** 2 + (y - 345) ** 2 / 45 ** 2 < 1: color = (60, 50, 48)                                        # the rock
    half = 22 + (y - 110) / 12
    if 110 <= y < 315 and abs(x - 470) < half:                                                                               # the tower
        color = mix((200, 40, 40) if ((y - 110) // 41) % 2 else (240, 235, 225), (60, 30, 40), max(0, (x - 470 + half) / (2 * half)) * 0.6)
    if 80 <= y < 110 and abs(x - 470) < 18: color = (255, 240, 170)                                                          # the lamp
    if 55 <= y < 80 and abs(x - 470) < (y - 52): color = (120, 25, 30)                                                       # the roof
    return color

rows = b"".join(b"\0" + bytes(v for x in range(W) for v in pixel(x, y)) for y in range(H))
chunk = lambda kind, body: struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
with open(sys.argv[1], "wb") as f:
    f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", W, H, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b""))
