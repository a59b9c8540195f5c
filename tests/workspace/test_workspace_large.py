"""Workspaces of many classes and of many files: everything works, within bounds of memory."""

import random
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import table

from graspcl import Workspace

pytestmark = pytest.mark.slow
CLASSES, TEXTS, FILES = 10_000, 100_000, 100_000


def rows(begin, end):
    """Texts of classes in turn; each class has four words of its own."""
    parts = [[first + last for first in "bdfgklmnprstvz" for last in vowels] for vowels in ("aeiou", "ou", "aei")]
    words = ["".join(three) for three in np.array(np.meshgrid(*parts)).reshape(3, -1).T.tolist()]
    own = [random.Random(label).sample(words, 4) for label in range(CLASSES)]
    for number in range(begin, end):
        label = number % CLASSES
        yield f"class {label:05d}", f"{' '.join(random.Random(number).sample(own[label], 3))} {number}"


def test_10_000_classes(tmp_path):
    first, second = table(tmp_path / "1.csv", rows(0, TEXTS)), table(tmp_path / "2.csv", rows(TEXTS, TEXTS + CLASSES))
    shop = Workspace.new(tmp_path / "shop", first, backbone="vector", memory="20MB", updates=5)
    assert shop.made.samples == TEXTS and shop.made.held == CLASSES
    found = shop.learn(second, updates=5, accept=True)
    assert found.samples == CLASSES and found.together.before.points > 80 and found.overall.points > 80
    assert shop.learn(first, updates=5).duplicates == TEXTS  # most were evicted
    gone = [next(rows(7, 8))[1]]
    assert shop.forget("class 00000", ids=shop.ids(gone))["samples"] == 12
    status = shop.status()
    assert len(status.classes) == CLASSES - 1 and sum(one.seen for one in status.classes) == TEXTS + CLASSES - 12
    assert shop.verify() == []


PROGRAM = """
import resource, sys
from graspcl import Workspace
shop = Workspace.new(sys.argv[1], sys.argv[2], backbone="small", pixels=32, memory="20MB", updates=5)
assert shop.made.samples == int(sys.argv[3]) and not shop.made.problems, shop.made
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_100_000_files(tmp_path):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (FILES, 8, 8, 3), np.uint8)
    for number in range(FILES):
        place = tmp_path / "photos" / f"class {number % 100}"
        if number < 100:
            place.mkdir(parents=True)
        Image.fromarray(pixels[number]).save(place / f"{number}.png", compress_level=0)
    run = [sys.executable, "-c", PROGRAM, tmp_path / "shop", tmp_path / "photos", str(FILES)]
    peak = int(subprocess.run(run, check=True, capture_output=True).stdout.splitlines()[-1])
    assert peak < 1500  # MB
