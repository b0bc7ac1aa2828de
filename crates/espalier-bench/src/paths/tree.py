"""Lists or reads a tree twice by the package espalier, and prints the seconds of both times.

usage: tree.py DIRECTORY list ENTRIES | tree.py DIRECTORY read BYTES < PATHS (each with a NUL behind)
"""

import sys
import time

import espalier

BATCH = 256


def list_all(tree):
    return sum(1 for _ in tree.walk("."))


def read_all(tree, paths):
    total = 0
    for at in range(0, len(paths), BATCH):
        total += sum(len(content) for content in tree.read_many(paths[at : at + BATCH]))
    return total


def main():
    directory, step, expected = sys.argv[1], sys.argv[2], int(sys.argv[3])
    paths = [path.decode() for path in sys.stdin.buffer.read().split(b"\0") if path]
    tree = espalier.Tree(directory)
    for _ in range(2):
        begun = time.perf_counter()
        found = list_all(tree) if step == "list" else read_all(tree, paths)
        print(time.perf_counter() - begun)
        if found != expected:
            sys.exit(f"{found} instead of {expected}")


main()
