"""Policies, maintenance rules and codecs work together in a learner: every pair of parts meets in some training."""

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer, rules
from graspcl.codec import OPQ, Half, Identity
from graspcl.learner import Optimiser, Siesta, column_shapes
from graspcl.model import vector_network
from graspcl.policy import Budget, policies
from graspcl.testing.common import seeded

RNG = np.random.default_rng(0)
LABELS = np.arange(48) % 6
INPUTS = torch.from_numpy(RNG.normal(size=(6, 8))[LABELS] + 0.5 * RNG.normal(size=(48, 8))).float()


@pytest.fixture(scope="module")
def opq():
    pytest.importorskip("faiss", reason="needs graspcl[opq]")
    return OPQ(codebooks=2, size=16, iterations=2).fit(INPUTS)


@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_with_every_rule_and_codec(policy, opq):
    """All pairs (policy, rule) with one codec each, such that all other pairs occur as well."""
    codecs, first = (Identity(), Half(), opq), policies.names().index(policy)
    for number, name in enumerate(rules.names(), start=first):
        codec = codecs[number % 3]
        network = vector_network(8, hidden=8, embedding=4, generator=seeded())
        rule = rules.create(name, **({"per_class": 4} if name == "ring" else {}))
        buffer = Buffer(24, codec, rule, column_shapes(rule, network))
        learner = Siesta(network, buffer, policies.create(policy), Optimiser(lr=0.1))
        for part in (LABELS < 3, LABELS >= 3):
            learner.observe(INPUTS[torch.from_numpy(part)], LABELS[part])
            log = learner.rehearse(Budget(2, 6))
            assert log.costs.updates == 2 and np.isfinite(log.losses).all(), f"{policy}, {name}, {codec}"
        assert len(buffer) <= 24, f"{policy}, {name}, {codec}"
