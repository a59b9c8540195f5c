"""Insertion into a full buffer of the paper's size: rate with eviction, and whether history slows it down."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from graspcl.bench.figure import Figure
from graspcl.buffer import Buffer

_CAPACITY, _CODE, _CLASSES, _BATCH, _INSERTIONS = 959_665, (14, 14, 8), 1000, 2048, 2_000_000


def run() -> Iterator[Figure]:
    """959,665 codes of 1,568 bytes, then 2 million insertions, each evicting a sample of the largest class."""
    rng = np.random.default_rng(0)
    buffer = Buffer(capacity=_CAPACITY, rng=1)
    codes = rng.integers(256, size=(_BATCH, *_CODE), dtype=np.uint8)
    times: list[float] = []

    def insert() -> None:
        labels = rng.integers(_CLASSES, size=_BATCH)
        begin = time.perf_counter()
        buffer.insert(codes, labels)
        times.append(time.perf_counter() - begin)

    while len(buffer) < _CAPACITY:
        insert()
    for _ in range(20):
        insert()
    times.clear()
    for _ in range(_INSERTIONS // _BATCH):
        insert()
    tenth = len(times) // 10
    detail = f"{len(times)} batches of {_BATCH:,}; buffer of {buffer.nbytes / 1e9:.2f} GB"
    yield Figure(
        "insert", "insertions with eviction per second", _BATCH * len(times) / sum(times), 300_000, detail=detail
    )
    ratio = median(times[-tenth:]) / median(times[:tenth])
    yield Figure("insert", "time per batch, last tenth / first tenth", ratio, 1.3, False, "medians")
