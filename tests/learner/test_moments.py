"""Running moments: the same heads as from all samples at once, whatever the order."""

import resource
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn import functional as F

from graspcl.learner.moments import Moments, averaged, discriminant_rows, ridge_rows, solve, squared_error

RNG = np.random.default_rng(0)
LABELS = RNG.integers(4, size=90)
FEATURES = RNG.normal(size=(4, 6))[LABELS] + RNG.normal(size=(90, 6)) * [1, 2, 0.5, 1, 3, 1]


def moments_of(features=FEATURES, labels=LABELS, parts=1):
    moments = Moments(features.shape[1])
    for part in np.array_split(np.arange(len(labels)), parts):
        moments.add(torch.from_numpy(features[part]).float(), torch.from_numpy(labels[part]))
    return moments


def test_discriminant_rows_are_those_of_all_samples_at_once():
    weight, bias = discriminant_rows(moments_of(parts=13), 0.1)
    means = np.stack([FEATURES[k == LABELS].mean(0) for k in range(4)])
    centred = FEATURES - means[LABELS]
    covariance = centred.T @ centred / 90
    inverse = np.linalg.inv(0.9 * covariance + 0.1 * np.trace(covariance) / 6 * np.eye(6))
    assert_allclose(weight, means @ inverse, rtol=1e-4)
    assert_allclose(bias, -np.einsum("kd,de,ke->k", means, inverse, means) / 2, rtol=1e-4)


def test_ridge_rows_are_those_of_all_samples_at_once():
    weight, bias = ridge_rows(moments_of(parts=13), 0.01)
    x, y = FEATURES - FEATURES.mean(0), np.eye(4)[LABELS]
    penalty = 0.01 * np.square(x).sum(0).mean()
    expected = np.linalg.solve(x.T @ x + penalty * np.eye(6), x.T @ y).T
    assert_allclose(weight, expected, rtol=1e-4, atol=1e-6)
    assert_allclose(bias, y.mean(0) - expected @ FEATURES.mean(0), rtol=1e-4)


def test_the_squared_error_is_that_of_the_samples():
    weight, bias = ridge_rows(moments_of(FEATURES[:60], LABELS[:60]), 0.1)
    predicted = FEATURES[60:] @ weight.numpy().T + bias.numpy()
    expected = np.square(predicted - np.eye(4)[LABELS[60:]]).sum(1).mean()
    assert squared_error(moments_of(FEATURES[60:], LABELS[60:]), weight, bias) == pytest.approx(expected, rel=1e-5)


def test_neither_order_nor_parts_matter():
    order = np.random.default_rng(1).permutation(90)
    whole, other = moments_of(), moments_of(FEATURES[order], LABELS[order], parts=7)
    first, rest = moments_of(FEATURES[:30], np.minimum(LABELS[:30], 1)), moments_of(FEATURES[30:], LABELS[30:])
    both = moments_of(FEATURES, np.where(np.arange(90) < 30, np.minimum(LABELS, 1), LABELS))
    for found, expected in ((other, whole), (first + rest, both), (rest + first, both)):
        for name in ("counts", "sums", "second"):
            assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-10)


@pytest.mark.parametrize("rows", [lambda m: discriminant_rows(m, 0.01), lambda m: ridge_rows(m, 0.01)])
def test_a_class_without_samples_is_never_predicted(rows):
    weight, bias = rows(moments_of(FEATURES * 100, LABELS * 2))  # rows 1, 3 and 5 have none
    logits = (torch.from_numpy(FEATURES * 1000) @ weight.T + bias).float()
    assert logits.isfinite().all() and set(logits.argmax(1).tolist()) <= {0, 2, 4, 6}


@pytest.mark.parametrize("level", [0.0, 1e-12])
def test_fewer_samples_than_features_leave_noise_out(level):
    """The pseudo-inverse is the solution; a Cholesky factor of rounding errors is not."""
    x = np.random.default_rng(2).normal(size=(5, 40))
    matrix = x.T @ x
    found = solve(torch.from_numpy(matrix + level * np.eye(40)), torch.from_numpy(x.T.copy()))
    assert_allclose(found, np.linalg.pinv(x), atol=1e-8)
    rows, _ = discriminant_rows(moments_of(x, np.array([0, 0, 0, 1, 1])), 0.0)
    assert rows.abs().max() < 1e3


def test_the_state_is_all_there_is():
    moments, other = moments_of(FEATURES[:50], LABELS[:50]), Moments(6)
    other.load_state_dict(moments.state_dict())
    moments.add(torch.from_numpy(FEATURES[50:]).float(), torch.from_numpy(LABELS[50:]))
    other.add(torch.from_numpy(FEATURES[50:]).float(), torch.from_numpy(LABELS[50:]))
    assert all(torch.equal(getattr(other, name), getattr(moments, name)) for name in ("counts", "sums", "second"))
    assert moments.nbytes == 8 * (4 + 4 * 6 + 6 * 6)


LARGE = """
import torch
from graspcl.learner.moments import Moments, discriminant_rows, ridge_rows
moments, generator = Moments(2048, 10_000), torch.Generator().manual_seed(0)
for start in range(0, 20_000, 2_000):
    moments.add(torch.randn(2_000, 2048, generator=generator), torch.arange(start, start + 2_000) % 10_000)
for rows in (lambda: discriminant_rows(moments, 0.1), lambda: ridge_rows(moments, 0.1)):
    weight, bias = rows()
    assert weight.shape == (10_000, 2048) and weight.isfinite().all() and bias.isfinite().all()
"""


@pytest.mark.slow
def test_ten_thousand_classes_of_2048_features_fit_into_2_gb():
    subprocess.run([sys.executable, "-c", LARGE], check=True)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < 2e9


def test_the_mean_of_two_heads_has_logits_of_the_geometric_mean_of_their_sizes():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(50, 4, generator=generator)
    first, second = ((factor * torch.randn(3, 4, generator=generator), torch.zeros(3)) for factor in (9.0, 1.0))

    def logits(rows):
        found = F.linear(features, rows[0].float(), rows[1].float())
        return found - found.mean(1, keepdim=True)

    def size(values):
        return values.square().mean().sqrt()

    everyone = torch.ones(3, dtype=torch.bool)
    one, other = (logits(averaged(first, second, weight, features, everyone)) for weight in (0.0, 1.0))
    middle = (size(logits(first)) * size(logits(second))).sqrt()
    for found, rows in ((one, first), (other, second)):
        assert torch.allclose(found, logits(rows) * middle / size(logits(rows)), atol=1e-4)
    assert torch.allclose(
        logits(averaged(first, second, 0.25, features, everyone)), 0.75 * one + 0.25 * other, atol=1e-4
    )


def test_a_class_that_the_second_head_does_not_know_keeps_its_row():
    features = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    first, second = (torch.eye(3, 4), torch.zeros(3)), (torch.ones(3, 4).cumsum(0) @ torch.eye(4), torch.ones(3))
    weight, _ = averaged(first, second, 0.5, features, torch.tensor([True, True, False]))
    own, _ = averaged(first, second, 0.0, features, torch.tensor([True, True, False]))
    assert torch.equal(weight[2], own[2]) and not torch.equal(weight[0], own[0])
