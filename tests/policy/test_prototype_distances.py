"""Cosine distance to the class mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from graspcl.errors import GraspError
from graspcl.policy import prototype, prototype_distances


def direct(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Section 3, sample by sample."""
    z = z.astype(np.float64)
    mean = {k: z[labels == k].mean(0) for k in np.unique(labels)}
    norm = np.linalg.norm
    return np.array([1 - v @ mean[k] / (norm(v) * norm(mean[k])) for v, k in zip(z, labels, strict=True)])


def problem(n: int = 60, dim: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)) + 0.5, rng.choice([-4, 3, 900], n)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_formula_in_float64_whatever_the_input(dtype: type) -> None:
    z, labels = problem()
    z = z.astype(dtype)
    d = prototype_distances(z, labels)
    assert isinstance(d, np.ndarray) and d.dtype == np.float64
    np.testing.assert_allclose(d, direct(z, labels), rtol=0, atol=1e-14)


def test_torch_in_torch_out() -> None:
    z, labels = problem()
    d = prototype_distances(torch.from_numpy(z).requires_grad_(), torch.from_numpy(labels))
    assert isinstance(d, torch.Tensor) and d.dtype == torch.float64 and not d.requires_grad
    assert (d.numpy() == prototype_distances(z, labels)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_many_samples_go_in_chunks(dtype: type) -> None:
    z, labels = problem(n=prototype._CHUNK * 2 + 5, dim=3)
    z = (np.clip(z, -2, 2) * 30_000).astype(dtype)  # a float16 norm would overflow
    np.testing.assert_allclose(prototype_distances(z, labels), direct(z, labels), rtol=0, atol=1e-11)


EMBEDDINGS = arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.floats(-10, 10, width=32))


@settings(deadline=None)
@given(z=EMBEDDINGS, data=st.data())
def test_range_scale_and_permutation(z: np.ndarray, data: Any) -> None:
    assume((np.linalg.norm(z, axis=1) > 1e-3).all())
    labels = data.draw(arrays(np.int64, len(z), elements=st.integers(0, 2)))
    for k in np.unique(labels):  # where a class nearly cancels out, its direction is rounding
        assume(np.linalg.norm(z[labels == k].sum(0)) > 1e-3)
    d = prototype_distances(z, labels)
    assert (d >= 0).all() and (d <= 2).all()
    for scale in (1e-30, 1e-13, 7.0, 1e30):
        np.testing.assert_allclose(prototype_distances(z * scale, labels), d, rtol=0, atol=1e-9)
    order = data.draw(st.permutations(range(len(z))))
    np.testing.assert_allclose(prototype_distances(z[order], labels[order]), d[order], rtol=0, atol=1e-9)
    np.testing.assert_allclose(prototype_distances(z, 10 - labels), d, rtol=0, atol=1e-9)  # names of classes


def test_a_class_does_not_feel_the_others() -> None:
    z, labels = problem()
    one = labels == 3
    np.testing.assert_allclose(
        prototype_distances(z[one], labels[one]), prototype_distances(z, labels)[one], atol=1e-15
    )


def test_scaling_one_class_changes_nothing_scaling_one_sample_does() -> None:
    z, labels = problem()
    d = prototype_distances(z, labels)
    by_class, by_sample = z.copy(), z.copy()
    by_class[labels == 3] *= 50
    by_sample[0] *= 50  # the mean is of raw embeddings, not of directions
    np.testing.assert_allclose(prototype_distances(by_class, labels), d, atol=1e-14)
    assert prototype_distances(by_sample, labels)[0] < d[0] - 0.1


@pytest.mark.parametrize("seed", range(20))
def test_identical_embeddings_are_at_distance_zero(seed: int) -> None:
    z = np.tile(np.random.default_rng(seed).normal(size=17), (9, 1))
    d = prototype_distances(z, np.zeros(9, int))
    assert (d >= 0).all() and d.max() < 1e-15
    assert (d == d[0]).all()  # no order out of rounding


def test_where_a_class_cancels_out_every_sample_is_at_distance_one() -> None:
    exactly = np.array([[1.0, 2.0], [-1.0, -2.0]])
    assert prototype_distances(exactly, np.zeros(2, int)).tolist() == [1.0, 1.0]
    angles = 2 * np.pi * np.arange(3) / 3
    star = np.stack([np.cos(angles), np.sin(angles)], 1)  # cancels out but for rounding
    for scale in (1e-20, 1.0, 1e20):
        np.testing.assert_allclose(prototype_distances(star * scale, np.zeros(3, int)), 1.0, atol=1e-3)


@pytest.mark.parametrize("n", [50, prototype._CHUNK + 1])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_embeddings_without_a_direction_are_named(n: int, dtype: type) -> None:
    z, labels = np.ones((n, 3), dtype), np.zeros(n, int)
    z[[4, 7]] = 0
    with pytest.raises(GraspError, match=rf"2 of {n} embeddings are all zero \(rows \[4, 7\]\)"):
        prototype_distances(z, labels)
    for bad in (np.nan, np.inf, -np.inf):
        z = np.ones((n, 3), dtype)
        z[n - 1, 2] = bad
        with pytest.raises(GraspError, match=rf"1 of {n} embeddings hold NaN or infinity \(rows \[{n - 1}\]\)"):
            prototype_distances(z, labels)


def test_small_embeddings_have_a_direction() -> None:
    z, labels = problem(n=prototype._CHUNK + 1, dim=2)
    d = prototype_distances(z.astype(np.float32), labels)
    np.testing.assert_allclose(prototype_distances((z * 2.0**-100).astype(np.float32), labels), d, atol=1e-12)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (3,)])
def test_shapes_must_agree(shape: tuple[int, ...]) -> None:
    z = np.ones((4, 2)) if shape != (4,) else np.ones(4)
    with pytest.raises(GraspError, match=r"embeddings must be \[N, D\] and labels \[N\], got shapes"):
        prototype_distances(z, np.zeros(shape, int))


def test_any_layout_of_numpy_arrays() -> None:
    z, labels = problem()
    d = prototype_distances(z, labels)
    np.testing.assert_allclose(prototype_distances(z[::-1], labels[::-1]), d[::-1], atol=1e-15)
    frozen = z.copy()
    frozen.flags.writeable = False
    assert (prototype_distances(frozen, labels) == d).all()
