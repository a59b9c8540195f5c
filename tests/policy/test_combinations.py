"""Policies, learners, maintenance rules and codecs work together: every pair of parts meets in some training."""

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer, rules
from graspcl.codec import OPQ, Half, Identity
from graspcl.learner import Optimiser, column_shapes, learners
from graspcl.model import vector_network
from graspcl.policy import Budget, policies
from graspcl.testing.common import seeded

RNG = np.random.default_rng(0)
LABELS = np.arange(48) % 6
INPUTS = torch.from_numpy(RNG.normal(size=(6, 8))[LABELS] + 0.5 * RNG.normal(size=(48, 8))).float()
BUDGET = Budget(2, 6)


@pytest.fixture(scope="module")
def codecs():
    pytest.importorskip("faiss", reason="needs graspcl[opq]")
    return Identity(), Half(), OPQ(codebooks=2, size=16, iterations=2).fit(INPUTS)


def make(policy, learner, rule, codec):
    kind, network = learners.get(learner), vector_network(8, hidden=8, embedding=4, generator=seeded())
    maintenance = rules.create(rule, **({"per_class": 4} if rule == "ring" else {}))
    columns = {**column_shapes(maintenance, network), **kind.columns(6)}
    buffer = Buffer(None if kind.unbounded else 24, codec, maintenance, columns)
    passes = {"passes": 1.0, "tuned": False} if learner == "offline" else {}
    return kind(network, buffer, policies.create(policy), Optimiser(lr=0.1), **passes)


@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_with_every_learner_rule_and_codec(policy, codecs):
    """All pairs (policy, rule) with one learner and one codec each, such that all other pairs occur as well.

    A session spends its budget and trains the network. What is stored stays whole: a sample keeps its label, and as
    long as no rule merges samples, its content.
    """
    known = [name for name in learners.names() if learners.get(name).rehearses]
    first = policies.names().index(policy)
    for number, rule in enumerate(rules.names(), start=first):
        name, codec = known[number % len(known)], codecs[number // len(known) % 3]
        learner, where = make(policy, name, rule, codec), f"{policy}, {name}, {rule}, {codec}"
        for part in (LABELS < 3, LABELS >= 3):
            before = [value.detach().clone() for value in learner.network.plastic.parameters()]
            learner.observe(INPUTS[torch.from_numpy(part)], LABELS[part], np.flatnonzero(part))
            budget = learner.session_budget(BUDGET)
            log = learner.rehearse(BUDGET)
            assert log.costs.updates == len(log.losses) == budget.updates, where
            assert log.picks.shape == (budget.updates, 6) and log.costs.training_backward == budget.samples, where
            assert np.isfinite(log.losses).all(), where
            pairs = zip(before, learner.network.plastic.parameters(), strict=True)
            assert all(not torch.equal(*pair) and pair[1].isfinite().all() for pair in pairs), where
        buffer = learner.buffer
        assert len(np.unique(buffer.ids)) == len(buffer) <= (buffer.capacity or 48), where
        assert len(buffer) or name == "finetune", where  # which keeps nothing
        assert np.array_equal(buffer.labels, LABELS[buffer.ids]), where
        assert all(np.isfinite(buffer[column]).all() for column in buffer.columns), where
        if rule != "exstream" and len(buffer):
            contents, _ = buffer.fetch(np.arange(len(buffer)))
            torch.testing.assert_close(contents, codec.decode(codec.encode(INPUTS[buffer.ids])), msg=where)
        assert set(learner.predict(INPUTS)) <= set(range(6)), where
