"""Selection from very many samples in two shards: its time and its memory per sample. Nothing is sent."""

from __future__ import annotations

import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from graspcl.bench.timing import Bar, cpu_seconds
from graspcl.checks import Array
from graspcl.distributed.race import earliest, race_owned
from graspcl.policy.drawing import draws_per_class, round_robin

_SHARDS, _EPS, _KEYS = 2, 1e-7, (1, 2)
_BYTES, _RATIO = 40, 1.3  # per sample at the peak; cost per sample of the larger size over the smaller


def run(samples: int = 100_000_000, small: int = 1_000_000, classes: int = 10_000) -> Iterator[Bar]:
    """Yield the seconds of GRASP's draws from `small` and from `samples` samples, and the memory of the latter.

    A hundredth of the samples is drawn, and at least one of each class. Births, slots, classes and distances of a shard
    are memory-mapped. They count as memory, too.
    """
    with tempfile.TemporaryDirectory() as folder:
        spent = {}  # CPU seconds of both cores, which other programs do not change
        for number in (small, samples):
            before = peak_bytes(reset=True)
            shards = [_shard(Path(folder), number, classes, one) for one in range(_SHARDS)]
            select(shards, classes, number)  # also compiles the race
            begin = time.perf_counter()
            spent[number] = cpu_seconds(partial(select, shards, classes, number))
            seconds = time.perf_counter() - begin
            memory = peak_bytes() - before
            del shards
            yield Bar.of("scale", f"seconds of a selection from {number:,} samples", [seconds])
            yield Bar.of("scale", f"CPU seconds of a selection from {number:,} samples", [spent[number]])
    ratio = spent[samples] / samples / (spent[small] / small)
    yield Bar.of("scale", f"CPU seconds per sample, {samples:,} / {small:,} samples", [ratio], _RATIO)
    yield Bar.of("scale", f"bytes per sample at the peak, {samples:,} samples", [memory / samples], _BYTES)


def select(shards: list[tuple[Array, ...]], classes: int, samples: int) -> Array:
    """Return the births of the samples that GRASP draws from shards of births, slots, distances and classes."""
    draws = draws_per_class(classes, max(classes, samples // 100))
    with ThreadPoolExecutor(_SHARDS) as pool:
        found = list(pool.map(lambda shard: _candidates(shard, draws), shards))
    births, d, k = (np.concatenate([one[part] for one in found]) for part in range(3))
    extremes = np.stack([np.min([one[3] for one in found], axis=0), np.max([one[4] for one in found], axis=0)])
    order = np.lexsort((births, k))
    births, d, k = births[order], d[order], k[order]
    ends = np.append(0, np.cumsum(draws))
    drawn = race_owned(_KEYS, births, d, k, np.arange(classes), ends, extremes, _EPS)
    return round_robin(births[np.concatenate(drawn)], classes)


def _candidates(shard: tuple[Array, ...], draws: Array) -> tuple[Array, ...]:
    """Return births, distances and classes of the samples that can be drawn, and the extreme distances by class."""
    births, slots, d, k = shard
    rows = earliest(_KEYS[0], births, slots, d, k, draws, _EPS)
    nearest, farthest = np.full(len(draws), np.inf), np.full(len(draws), -np.inf)
    np.minimum.at(nearest, k, d)
    np.maximum.at(farthest, k, d)
    return births[rows], d[rows], k[rows], nearest, farthest


def _shard(folder: Path, samples: int, classes: int, shard: int) -> tuple[Array, ...]:
    """Return births, slots, distances and classes of a shard's samples; classes take turns."""
    number, rng = len(range(shard, samples, _SHARDS)), np.random.default_rng(shard)
    kinds = (("births", np.int64), ("slots", np.int64), ("distances", np.float64), ("classes", np.int32))
    births, slots, distances, of = (
        np.lib.format.open_memmap(folder / f"{name}-{samples}-{shard}.npy", "w+", np.dtype(kind), (number,))
        for name, kind in kinds
    )
    for begin in range(0, number, 1 << 20):
        part = slice(begin, begin + (1 << 20))
        slots[part] = np.arange(begin, min(part.stop, number))
        births[part] = shard + _SHARDS * slots[part]
        rng.random(out=distances[part])
        of[part] = births[part] // _SHARDS % classes
    return births, slots, distances, of


def peak_bytes(reset: bool = False) -> int:
    """Return the most memory that this process has had, since the last `reset` where the system can do that.

    Linux says it in /proc. `getrusage` counts there what the parent process had when it started this one.
    """
    if reset:
        with contextlib.suppress(OSError):  # Linux alone has it
            Path("/proc/self/clear_refs").write_text("5")
    with contextlib.suppress(OSError):
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
