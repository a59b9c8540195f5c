"""The contract of a learner."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from graspcl.checks import Array
from graspcl.learner import Learner, Rehearsal
from graspcl.policy import Budget
from graspcl.random import rng_state
from graspcl.testing.common import contract, global_chance_untouched, same

_BUDGET = Budget(updates=6, batch_size=8)


def check_learner(make: Callable[[], Learner], inputs: torch.Tensor) -> None:
    """Assert what every learner promises.

    Args:
        make: returns a new learner, an equal one each time.
        inputs: raw inputs [n, …] for it, n ≥ 40.

    >>> from graspcl.buffer import Buffer
    >>> from graspcl.learner import Optimiser, Siesta
    >>> from graspcl.model import vector_network
    >>> def make() -> Siesta:
    ...     network = vector_network(6, hidden=8, embedding=5, generator=torch.Generator().manual_seed(0))
    ...     return Siesta(network, Buffer(capacity=30), "grasp", Optimiser(lr=0.1))
    >>> check_learner(make, torch.randn(40, 6, generator=torch.Generator().manual_seed(1)))
    """
    labels = np.array([7, 3, 7, 11])[np.arange(len(inputs)) % 4]
    with contract(type(make()).__name__):
        _check_predictions(make(), inputs, labels)
        _check_budget(make(), inputs, labels)
        _check_side_effects(make, inputs, labels)
        _check_restored(make, inputs, labels)
        _check_interrupted(make, inputs, labels)


def _learn(learner: Learner, inputs: torch.Tensor, labels: Array, finish: bool = True) -> None:
    """Run two sessions; the second has a new class. Unless `finish`, stop before its rehearsal."""
    early = labels != 11
    learner.observe(inputs[torch.from_numpy(early)], labels[early])
    learner.rehearse(_BUDGET)
    learner.observe(inputs[torch.from_numpy(~early)], labels[~early])
    if finish:
        learner.rehearse(_BUDGET)


def _check_predictions(learner: Learner, inputs: torch.Tensor, labels: Array) -> None:
    early = labels != 11
    learner.observe(inputs[torch.from_numpy(early)], labels[early])
    predicted = learner.predict(inputs)
    assert predicted.shape == (len(inputs),), "predict returns one label per input"
    assert set(predicted.tolist()) <= set(labels[early].tolist()), "only observed classes can be predicted"
    _learn(learner, inputs, labels)
    assert sorted(learner.classes) == sorted(set(labels.tolist())), "`classes` lists every observed class once"


def _check_budget(learner: Learner, inputs: torch.Tensor, labels: Array) -> None:
    learner.observe(inputs, labels)
    budget = learner.session_budget(_BUDGET)
    log = learner.rehearse(_BUDGET)
    assert log.costs.updates == budget.updates == len(log.losses), "a session makes exactly the updates of its budget"
    assert log.costs.training_backward >= budget.samples, "the log counts every sample that was trained on"
    assert np.isfinite(log.losses).all(), "losses are finite"
    bound = learner.buffer.capacity
    assert bound is None or len(learner.buffer) <= bound, "after a session the buffer is within its capacity"
    assert learner.rehearse(Budget(0, 8)).costs.updates == 0, "a session may have no updates"


def _check_side_effects(make: Callable[[], Learner], inputs: torch.Tensor, labels: Array) -> None:
    first, second = make(), make()
    frozen = {name: value.clone() for name, value in first.network.frozen.state_dict().items()}
    with global_chance_untouched("it"):
        _learn(first, inputs, labels)
        _learn(second, inputs, labels)
    assert same(frozen, dict(first.network.frozen.state_dict())), "the frozen part must not change"
    _assert_same(first, second, "two equal learners must learn the same")


def _check_restored(make: Callable[[], Learner], inputs: torch.Tensor, labels: Array) -> None:
    learner = make()
    learner.observe(inputs, labels)
    learner.rehearse(_BUDGET)
    state = copy.deepcopy(learner.state_dict())
    _learn(learner, inputs, labels)
    for _ in range(2):  # restoring must not change the state
        restored = make()
        restored.load_state_dict(state)
        _learn(restored, inputs, labels)
        _assert_same(learner, restored, "a learner restored between sessions must continue as if nothing had happened")


def _check_interrupted(make: Callable[[], Learner], inputs: torch.Tensor, labels: Array) -> None:
    straight, interrupted, restored = make(), make(), make()
    _learn(straight, inputs, labels)
    _learn(interrupted, inputs, labels, finish=False)  # stopped in its second session, which has old samples
    budget = interrupted.session_budget(_BUDGET)
    session = Rehearsal(interrupted, budget)
    for _ in range(budget.updates // 2):
        session.step()
    restored.load_state_dict(interrupted.state_dict())
    rest = Rehearsal(restored, budget, session.state_dict())
    while not rest.done:
        rest.step()
    rest.finish()
    _assert_same(straight, restored, "a session restored in its middle must end as if nothing had happened")


def _assert_same(one: Learner, other: Learner, message: str) -> None:
    found, expected = _visible(other), _visible(one)
    differ = [name for name in expected if not same(expected[name], found[name])]
    assert not differ, f"{message}, but differs in {', '.join(differ)}"


def _visible(learner: Learner) -> dict[str, Any]:
    buffer = learner.buffer
    columns = {f"buffer[{name!r}]": buffer[name] for name in ("ids", *buffer.columns)}
    known = {"classes": learner.classes, "buffer.since": buffer.since, "rng": rng_state(learner.rng)}
    return {**learner.network.state_dict(), **columns, **known, **learner.extra_state()}
