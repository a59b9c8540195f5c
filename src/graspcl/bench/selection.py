"""Selection: GRASP's draws against the loop as published and against vectorised uniform rehearsal."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from graspcl.bench.figure import Figure, median_seconds
from graspcl.checks import Array
from graspcl.policy.drawing import group_by_class, uniform_draws
from graspcl.policy.grasp import grasp_draws

_CLASSES, _PER_CLASS, _BUDGET, _RUNS = 1000, 1281, 1_281_024, 9
_LOOP_DRAWS = 3000


def run() -> Iterator[Figure]:
    """1000 classes of 1281 samples, one pass of 1,281,024 draws; then ten times the classes."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(_CLASSES), _PER_CLASS)
    distances = rng.beta(4, 8, len(labels))
    groups = group_by_class(labels)
    loop = _literal_loop(distances, labels, rng) * _BUDGET / _LOOP_DRAWS
    uniform = median_seconds(lambda: uniform_draws(groups, _BUDGET, rng), _RUNS)
    grasp = median_seconds(lambda: grasp_draws(distances, groups, _BUDGET, rng, 1e-7), _RUNS)
    detail = f"medians of {_RUNS} runs"
    extrapolated = (
        f"loop: {_LOOP_DRAWS:,} draws timed, extrapolated to {loop:,.0f} s for {_BUDGET:,}; grasp {grasp:.3f} s"
    )
    yield Figure("selection", "grasp faster than the loop as published, times", loop / grasp, 300, detail=extrapolated)
    yield Figure("selection", "grasp / uniform_balanced with replacement", grasp / uniform, 10, False, detail)
    large = np.concatenate([labels + _CLASSES * i for i in range(10)])
    far, many = np.tile(distances, 10), group_by_class(large)
    tenfold = median_seconds(lambda: grasp_draws(far, many, 10 * _BUDGET, rng, 1e-7), 3)
    yield Figure("selection", "ten times the samples cost, times", tenfold / grasp, 13, False, "median of 3 runs")


def _literal_loop(distances: Array, labels: Array, rng: np.random.Generator) -> float:
    """Seconds of Algorithm 1 as it is written, class by class, for a slice of the draws."""
    d = [distances[labels == k] for k in range(_CLASSES)]
    begin = time.perf_counter()
    for draw in range(_LOOP_DRAWS):
        d_k = d[draw % _CLASSES]
        p = 1 / (d_k + 1e-7)
        m = rng.choice(len(d_k), p=p / p.sum())
        d_k[m] += d_k.max()
    return time.perf_counter() - begin
