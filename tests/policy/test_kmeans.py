"""k-means rehearsal: its clustering against scikit-learn's, its draws against the distances."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from chi_square import LIKELY, UNLIKELY, p_value

from graspcl.buffer import Buffer
from graspcl.errors import GraspError
from graspcl.policy import Budget, Session, batches
from graspcl.policy.kmeans import KMeans, lloyd, seed_centres
from graspcl.testing.common import seeded
from graspcl.testing.policies import check_policy


def directions(sizes: tuple[int, ...], dim: int = 12, spread: float = 0.05, seed: int = 0) -> np.ndarray:
    """Unit vectors around as many random directions as there are `sizes`."""
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(size=(len(sizes), dim)), sizes, axis=0) + spread * rng.normal(size=(sum(sizes), dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def draw(policy: KMeans, inputs: np.ndarray, labels: np.ndarray, budget: Budget, seed: int = 0) -> np.ndarray:
    buffer = Buffer()
    buffer.insert(inputs.astype(np.float32), labels)
    session = Session(buffer, budget, np.random.default_rng(seed), network=torch.nn.Identity())
    drawn = np.concatenate(list(batches(policy, session)))
    assert session.costs.selection_forward == len(labels) and session.costs.selection_backward == 0
    return drawn


# -- the clustering --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", [0.05, 1.5])
def test_from_the_same_centres_it_ends_where_scikit_learn_does(spread: float) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    x = directions((40, 30, 50), spread=spread).astype(np.float64)
    start = x[[3, 50, 80]]
    theirs = cluster.KMeans(3, init=start, n_init=1, tol=0.0).fit(x)
    centres = start.copy()
    nearest = lloyd(x, centres, 300)
    assert nearest.tolist() == theirs.labels_.tolist()
    np.testing.assert_allclose(centres, theirs.cluster_centers_, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(x - centres[nearest], axis=1), theirs.transform(x).min(1))


@pytest.mark.parametrize("seed", range(5))
def test_separated_clusters_are_found_as_well_as_by_scikit_learn(seed: int) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    x = directions((40, 30, 50), seed=seed)
    theirs = cluster.KMeans(3, n_init=10, random_state=0).fit(x)
    d = KMeans().distances(torch.from_numpy(x), seeded(seed))
    assert float(d.square().sum()) <= 1.01 * theirs.inertia_


def test_lengths_of_embeddings_do_not_matter() -> None:
    x = torch.from_numpy(directions((20, 20, 20)))
    scaled = x * torch.linspace(0.1, 9, 60)[:, None]
    torch.testing.assert_close(KMeans().distances(scaled, seeded()), KMeans().distances(x, seeded()))


def test_seeds_are_drawn_by_squared_distance_to_the_nearest_before() -> None:
    """Three seeds out of four samples: all 24 sequences, for squared distances and, to be told apart, plain ones."""
    x, chance = torch.tensor([[0.0], [1.0], [3.0], [7.0]]), seeded()
    place = {value: i for i, value in enumerate(x[:, 0].tolist())}
    drawn = [tuple(place[c] for c in seed_centres(x, 3, chance)[:, 0].tolist()) for _ in range(6000)]
    sequences = list(permutations(range(4), 3))
    counts = np.array([drawn.count(sequence) for sequence in sequences])
    assert counts.sum() == 6000  # no sample twice
    d = (x - x.T).abs().double().numpy()
    for power, agrees in ((2, True), (1, False)):
        w = d**power
        p = [w[a, b] / w[a].sum() * min(w[a, c], w[b, c]) / np.minimum(w[a], w[b]).sum() / 4 for a, b, c in sequences]
        assert p_value(counts, np.array(p)) > LIKELY if agrees else p_value(counts, np.array(p)) < UNLIKELY


@pytest.mark.parametrize(("rows", "clusters"), [(1, 3), (2, 3), (3, 3), (5, 5)])
def test_with_no_more_samples_than_clusters_each_is_a_centre(rows: int, clusters: int) -> None:
    d = KMeans(clusters).distances(torch.from_numpy(directions((rows,), spread=1.0)), seeded())
    assert d.tolist() == [0.0] * rows


def test_fewer_different_samples_than_clusters_are_no_trouble() -> None:
    x = torch.eye(2).repeat(5, 1)
    assert len(seed_centres(x, 3, seeded())) == 2
    assert KMeans().distances(x, seeded()).tolist() == [0.0] * 10


def test_a_centre_that_is_nobodys_nearest_stays() -> None:
    centres = np.array([[0.0], [99.0], [6.0]])
    nearest = lloyd(np.array([[0.0], [1.0], [5.0]]), centres, 10)
    assert centres[:, 0].tolist() == [0.5, 99.0, 5.0] and nearest.tolist() == [0, 0, 2]


def test_embeddings_without_a_place_are_told() -> None:
    with pytest.raises(GraspError, match="NaN or infinite"):
        KMeans().distances(torch.tensor([[1.0, float("nan")]]), seeded())


# -- the draws -------------------------------------------------------------------------------------------------------


def test_draws_of_each_class_are_weighted_by_the_distance_to_the_nearest_centre() -> None:
    """Two classes of three tight clusters each, which every seed finds; distances by the clusters' known members."""
    inputs = np.concatenate([directions((4, 5, 3), seed=1), directions((6, 4, 4), seed=2)]).astype(np.float16)
    x = inputs / np.linalg.norm(inputs.astype(float), axis=1, keepdims=True)
    labels = np.repeat([5, 2], [12, 14])
    members = np.split(np.arange(26), np.cumsum([4, 5, 3, 6, 4]))
    d = np.concatenate([np.linalg.norm(x[m] - x[m].mean(0), axis=1) for m in members])
    eps = 0.01
    drawn = draw(KMeans(eps=eps), inputs, labels, Budget(400, 100), seed=3)
    assert labels[drawn].tolist() == [2, 5] * 20_000
    counts = np.bincount(drawn, minlength=26)
    for mine in (labels == 2, labels == 5):
        assert p_value(counts[mine], 1 / (d[mine] + eps)) > LIKELY
        assert p_value(counts[mine], 1 / (d[mine] + eps) ** 1.2) < UNLIKELY


def test_identical_embeddings_are_drawn_uniformly() -> None:
    drawn = draw(KMeans(), np.tile([0.3, 1.7, 0.2], (5, 1)), np.zeros(5, int), Budget(30, 100))
    assert p_value(np.bincount(drawn, minlength=5), np.ones(5)) > LIKELY


@pytest.mark.parametrize("policy", [KMeans(clusters=8, iterations=2, eps=0.1)], ids=repr)
@pytest.mark.usefixtures("fewer_sessions")
def test_it_keeps_the_contract_with_other_parameters(policy: KMeans) -> None:
    check_policy(policy)


@pytest.mark.parametrize("wrong", [{"clusters": 0}, {"iterations": 0}, {"eps": 0.0}])
def test_parameters_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(GraspError, match=f"{next(iter(wrong))} must be .*, got"):
        KMeans(**wrong)  # type: ignore[arg-type]
