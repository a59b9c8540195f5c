"""What a learner computes of newcomers for a rule's columns, and how a rule brings columns of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from graspcl.buffer import ByClassRule, GssRule, HerdingRule, LargestClassRule, RainbowRule, rules
from graspcl.errors import GraspError
from graspcl.testing import check_maintenance
from graspcl.testing.common import seeded


class Outputs(NamedTuple):
    embedding: torch.Tensor
    features: torch.Tensor
    logits: torch.Tensor


WEIGHT = torch.randn(4, 3, generator=seeded(1))
FEATURES = torch.randn(5, 4, generator=seeded(2))
TARGETS = torch.tensor([0, 2, -1, 1, -1])


def head(features: torch.Tensor) -> torch.Tensor:
    return features @ WEIGHT


def values(rule: Any, logits: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    outputs = Outputs(torch.ones(5, 6), FEATURES, head(FEATURES) if logits is None else logits)
    with torch.no_grad():
        found: dict[str, torch.Tensor] = rule.values(outputs, TARGETS, head)
    return found


@pytest.mark.parametrize("name", rules.names())
def test_a_rule_gets_values_of_what_it_wants_and_of_nothing_else(name: str) -> None:
    rule = rules.create(name)
    columns = rule.columns_for(embedding=6, features=4)
    assert columns.keys() == set(rule.columns)
    found = values(rule)
    assert found.keys() == rule.columns - rule.fills
    for column, value in found.items():
        shape, dtype = columns[column]
        assert value.shape == (5, *shape) and dtype is np.float32 and not value.requires_grad


def test_embeddings_are_those_of_the_network() -> None:
    assert torch.equal(values(HerdingRule())["embedding"], torch.ones(5, 6))
    assert values(LargestClassRule()) == {}


def test_uncertainty_is_one_minus_the_largest_probability_and_one_before_any_class() -> None:
    p = head(FEATURES).softmax(1)
    torch.testing.assert_close(values(RainbowRule())["uncertainty"], 1 - p.amax(1))
    assert values(RainbowRule(), torch.empty(5, 0))["uncertainty"].tolist() == [1.0] * 5


def test_gradients_are_those_of_the_loss_with_respect_to_the_features() -> None:
    features = FEATURES.clone().requires_grad_()
    known = TARGETS >= 0
    loss = cross_entropy(head(features[known]), TARGETS[known], reduction="sum")
    (loss + head(features[~known]).logsumexp(1).sum()).backward()  # no row yet: away from the known classes only
    torch.testing.assert_close(values(GssRule())["gradient"], features.grad)
    assert not values(GssRule(), torch.empty(5, 0))["gradient"].any()


class Largest(ByClassRule):
    """Evicts the samples of largest norm: a column that no learner knows."""

    columns = {"norm"}  # noqa: RUF012

    def values(self, outputs: Any, targets: torch.Tensor, head: Any) -> dict[str, torch.Tensor]:
        return {"norm": outputs.embedding.norm(dim=1)}

    def victims(self, label: int, values: np.ndarray, number: int, rng: np.random.Generator) -> np.ndarray:
        return np.argsort(values, kind="stable")[-number:]


def test_a_rule_may_bring_columns_of_its_own() -> None:
    assert Largest().columns_for(6, 4) == {"norm": ((), np.float32)}
    torch.testing.assert_close(values(Largest())["norm"], torch.full((5,), 6**0.5))
    check_maintenance(Largest)


def test_a_column_that_nobody_computes_is_an_error() -> None:
    class Colour(HerdingRule):
        columns = frozenset({"colour"})

    with pytest.raises(GraspError, match=r"Colour must define values\(outputs, targets, head\) for 'colour'"):
        values(Colour())
