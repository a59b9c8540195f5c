"""Every parameter of a learner arrives: with another value it knows or stores something else after two sessions."""

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.learner import Optimiser, learners
from graspcl.model import vector_network
from graspcl.policy import Budget

INPUTS, LABELS = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), np.arange(40) % 4
LABELS[LABELS == 3] = 2  # one class is larger
REHEARSING = [name for name in learners.names() if learners.get(name).rehearses]
# Another value of each parameter.
CHANGES = {
    "aligned": {"corrected": False},
    "derpp": {"alpha": 3.0, "beta": 0.1, "teacher": True, "average": "terms"},
    "er_ace": {},
    "finetune": {},
    "gdumb": {"reset": False},
    "idbr": {"store_ratio": 0.2, "regularised": True, "balance": "task"},
    "ncm": {},
    "offline": {"reset": False, "passes": 3.0, "tuned": False, "trial_passes": 1.0},
    "probe": {"strength": 50.0},
    "ranpac": {"dimensions": 20, "ridge": 50.0, "weighting": "class", "layers": 2},
    "siesta": {},
    "slda": {"shrinkage": 0.9},
}


def after_two_sessions(name, policy="grasp", **parameters):
    network = vector_network(6, hidden=8, embedding=5, generator=torch.Generator().manual_seed(0))
    kind = learners.get(name)
    learner = kind(network, Buffer(columns=kind.columns(4, **parameters)), policy, Optimiser(lr=0.1), **parameters)
    for part in (LABELS < 2, LABELS >= 2):
        learner.observe(INPUTS[part], LABELS[part])
        learner.rehearse(Budget(5, 8))
    return learner.logits(INPUTS), learner.buffer.ids.tolist()


@pytest.mark.parametrize("name", learners.names())
def test_another_value_of_every_parameter_learns_something_else(name):
    assert learners.parameters(name).keys() == CHANGES[name].keys()
    logits, stored = after_two_sessions(name)
    for parameter, value in CHANGES[name].items():
        other, others = after_two_sessions(name, **{parameter: value})
        assert not torch.equal(logits, other) or stored != others, f"{parameter} has no effect"


@pytest.mark.parametrize(
    "given", [{"rng": 1}, {"policy": "uniform"}, {"optimiser": Optimiser(lr=0.2)}], ids=["rng", "policy", "optimiser"]
)
@pytest.mark.parametrize("name", REHEARSING)
def test_what_every_learner_takes_reaches_it(name, given):
    """Each learner hands these on by position, so two of them could be swapped or lost."""

    def picks(**more):
        network = vector_network(6, hidden=8, embedding=5, generator=torch.Generator().manual_seed(0))
        kind = learners.get(name)
        learner = kind(network, Buffer(columns=kind.columns(4)), **{"optimiser": Optimiser(lr=0.1), **more})
        learner.observe(INPUTS, LABELS)
        log = learner.rehearse(Budget(5, 8))
        return log.picks.tolist(), log.losses.tolist()

    (before, losses), (after, others) = picks(), picks(**given)
    assert losses != others and (before == after) == ("optimiser" in given)


@pytest.mark.parametrize("name", [name for name in REHEARSING if not learners.get(name).unbounded])
def test_new_samples_keep_their_ids_and_exceed_the_capacity_only_where_they_wait_for_a_session(name):
    network = vector_network(6, hidden=8, embedding=5, generator=torch.Generator().manual_seed(0))
    kind, ids, seen = learners.get(name), 100 + np.arange(40), []
    learner = kind(network, Buffer(30, columns=kind.columns(4)))
    learner.observe(INPUTS, LABELS, ids)
    stored = learner.buffer.ids
    assert len(stored) == (40 if kind.offline else 30) and set(stored) <= set(ids)
    assert learner.buffer.labels.tolist() == LABELS[stored - 100].tolist()
    learner.rehearse(Budget(3, 8), on_step=lambda session: seen.append(session.updates))
    assert len(learner.buffer) <= 30 and seen == [1, 2, 3]
