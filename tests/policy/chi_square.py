"""Exact probabilities of Algorithm 1 and the chi-square test that the tests of this folder share.

All seeds are fixed. A right implementation fails a test at LIKELY with a chance of 1 in 1000 when a seed is chosen, and
never afterwards; a wrong rule is called found only below UNLIKELY.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

LIKELY, UNLIKELY = 1e-3, 1e-6


def p_value(observed: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square test of counts against probabilities, cells with an expectation below 5 pooled."""
    expected = probabilities / probabilities.sum() * observed.sum()
    by_size = np.argsort(-expected, kind="stable")
    observed, expected = observed[by_size], expected[by_size]
    large = int((expected >= 5).sum())
    if large < len(expected):  # the pool takes in the smallest large cell where it is too small itself
        large -= expected[large:].sum() < 5
        observed = np.append(observed[:large], observed[large:].sum())
        expected = np.append(expected[:large], expected[large:].sum())
    return float(stats.chisquare(observed, expected).pvalue)


def sequence_probabilities(
    d: np.ndarray, draws: int, eps: float, bump: Callable[[np.ndarray, int], float] = lambda d, drawn: d.max()
) -> np.ndarray:
    """Probability of every sequence of draws from one class [J, …, J], by Algorithm 1 along the tree of all draws.

    `bump` is what the drawn sample's distance grows by; other rules than Algorithm 1's show what a test can tell apart.
    """
    p = 1 / (d + eps)
    p /= p.sum()
    if draws == 1:
        return p
    table = np.empty((len(d),) * draws)
    for drawn in range(len(d)):
        after = d.copy()
        after[drawn] += bump(d, drawn)
        table[drawn] = p[drawn] * sequence_probabilities(after, draws - 1, eps, bump)
    return table


def algorithm_1(d: np.ndarray, draws: int, eps: float, rng: np.random.Generator, runs: int) -> np.ndarray:
    """Algorithm 1 as written, for one class, `runs` times side by side: sequences [runs, draws]."""
    d = np.tile(np.asarray(d, np.float64), (runs, 1))
    every = np.arange(runs)
    sequence = np.empty((runs, draws), np.int64)
    for c in range(draws):
        p = 1 / (d + eps)
        p /= p.sum(1, keepdims=True)
        m = (p.cumsum(1) < rng.random((runs, 1))).sum(1).clip(max=d.shape[1] - 1)
        d[every, m] += d.max(1)
        sequence[:, c] = m
    return sequence


def count_sequences(sequences: np.ndarray, size: int) -> np.ndarray:
    """How often each sequence of draws from a class of `size` came [size, …, size]."""
    counts = np.zeros((size,) * sequences.shape[1], np.int64)
    np.add.at(counts, tuple(sequences.T), 1)
    return counts
