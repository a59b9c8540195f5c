"""How large and how quick a workspace is: memory of learning, size on disk, start and rate of predicting.

The commands run in processes of their own, as a user starts them, on made-up photos of 64 x 64 pixels. The rate of the
bare network is that on the same pictures, decoded beforehand.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from graspcl.bench.timing import Bar
from graspcl.errors import GraspError, require
from graspcl.progress import Progress, Silent
from graspcl.workspace.store import Store
from graspcl.workspace.version import load_classifier
from graspcl.workspace.workspace import Workspace

_SIDE, _QUALITY = 64, 85
_PREDICTED, _STARTS = 1000, 3
_START, _RATE, _MEMORY, _DISK = 3.0, 0.9, 1500.0, 250.0  # seconds, share of the network's rate, MB, MB


def run(samples: int = 100_000, classes: int = 100, progress: Progress | None = None) -> Iterator[Bar]:
    """Yield the figures of a workspace that learns half of the samples first and then the other half.

    Args:
        samples: number of photos.
        classes: number of classes.
        progress: what shows the steps; by default nothing is shown.
    """
    progress = progress or Silent()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        progress.note(f"writing {samples:,} photos of {classes} classes")
        for part, number in (("first", samples // 2), ("second", samples - samples // 2), ("more", _PREDICTED)):
            _write_photos(folder / part, number, classes, seed=len(part))
        for verb, part, *more in (("new", "first"), ("learn", "second", "--accept")):
            progress.note(f"graspcl {verb} shop {part}/")
            seconds, peak = _spent([verb, "shop", part, *more], folder)
            yield Bar.of("size", f"seconds of graspcl {verb}, {samples // 2:,} photos", [seconds])
            yield Bar.of("size", f"MB of memory at the peak of graspcl {verb}", [peak], _MEMORY)
        size = sum(path.stat().st_size for path in (folder / "shop").rglob("*") if path.is_file())
        yield Bar.of("size", f"MB on disk after {samples:,} photos", [size / 1e6], _DISK)
        pictures = [str(path.relative_to(folder)) for path in sorted((folder / "more").rglob("*.jpg"))]
        starts = [_spent(["predict", "shop", pictures[0]], folder)[0] for _ in range(_STARTS)]
        yield Bar.of("size", "seconds of graspcl predict, one photo", starts, _START)
        yield from _rates(folder, pictures)


def _write_photos(folder: Path, number: int, classes: int, seed: int) -> None:
    """Write JPEG files of patterns that differ by class, in class folders."""
    image = require("PIL.Image", "images")
    rng, patterns = np.random.default_rng(seed), np.random.default_rng(0).integers(0, 256, (classes, 4, 4, 3))
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
    for place in range(number):
        label = place % classes
        small = np.clip(patterns[label] + rng.normal(0, 40, (4, 4, 3)), 0, 255).astype(np.uint8)
        photo = image.fromarray(small).resize((_SIDE, _SIDE), image.Resampling.BICUBIC)
        photo.save(folder / f"class {label}" / f"{place}.jpg", quality=_QUALITY)


def _spent(arguments: Sequence[str], folder: Path) -> tuple[float, float]:
    """Run the program in a folder; return the seconds that passed and its memory at the peak in MB."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "graspcl", *arguments], cwd=folder, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begin
        said.seek(0)
        if process.returncode:
            raise GraspError(f"graspcl {' '.join(arguments)} failed: {said.read().decode(errors='replace')[-500:]}")
    return seconds, used.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _rates(folder: Path, pictures: list[str]) -> Iterator[Bar]:
    """The rate at which a workspace predicts files, beside that of its network on decoded pictures, in turn."""
    shop, files = Workspace.open(folder / "shop"), [folder / one for one in pictures]
    with Store.open(folder / "shop") as store:
        bare = load_classifier(store)
    decoded = [batch for _, batch, _ in bare.inputs.batches(bare.inputs.check(files))]
    ratios = []
    for _ in range(_STARTS):
        begin = time.perf_counter()
        for batch in decoded:
            bare.logits(batch)
        between = time.perf_counter()
        shop.predict(files)
        ratios.append((between - begin) / (time.perf_counter() - between))
    yield Bar.of("size", f"rate of predicting {len(files):,} photos / bare network", ratios, _RATE, at_least=True)
