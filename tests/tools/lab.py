"""Prints the counters of the emulated card, one line a kernel: python3 lab.py counters.json"""
import json
import sys


def number(n):
    for unit in ("", "k", "M", "G"):
        if n < 1000:
            return f"{n:.0f}{unit}" if n >= 100 or not unit else f"{n:.1f}{unit}"
        n /= 1000
    return f"{n:.0f}T"


def main():
    with open(sys.argv[1]) as f:
        kernels = json.load(f)["kernels"]
    print(f"{'kernel':<30}{'launches':>9}{'sectors':>9}{'distinct':>9}{'waves':>8}{'issued':>8}{'mma':>8}{'barriers':>9}")
    for k in sorted(kernels, key=lambda k: -sum(k["warp_instructions"].values())):
        memory, shared = k["global"], k["shared"]
        cells = [(k["launches"], 9), (memory["sectors_read"] + memory["sectors_written"], 9), (k["distinct_sectors"], 9), (shared["waves_read"] + shared["waves_written"], 8),
                 (sum(k["warp_instructions"].values()), 8), (k["mma"], 8), (k["barriers"], 9)]
        print(f"{k['kernel'][:29]:<30}" + "".join(f"{number(n):>{width}}" for n, width in cells))
    print("sectors: 32 bytes asked for, read and written; distinct: each counted once a launch; waves: of shared memory; issued: instructions of warps")


main()
