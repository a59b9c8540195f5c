"""Tables of made-up texts: every class has words of its own."""

import csv
import random

WORDS = {
    "fruit": "apple pear plum kiwi lemon cherry grape melon fig date",
    "tool": "hammer saw drill wrench pliers screwdriver chisel plane level clamp",
    "animal": "dog cat horse cow sheep goat pig hen duck goose",
    "car": "engine wheel brake gear clutch bumper mirror tyre exhaust radiator",
    "music": "piano violin drum flute song melody chord rhythm opera choir",
}


def texts(kind, begin, end):
    """Different texts of a class; the same number gives the same text."""
    found = []
    for number in range(begin, end):
        rng = random.Random(f"{kind} {number}")
        found.append(f"{' '.join(rng.choices(WORDS[kind].split(), k=5))} {number}")
    return found


def table(path, rows):
    """Write a table of (class, text)."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *rows])
    return path


def rows(*kinds, begin=0, end=40):
    return [(kind, text) for kind in kinds for text in texts(kind, begin, end)]
