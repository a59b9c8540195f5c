"""Settings of sessions: what is new beside the capacity, growing budgets, warm-up and the best weights."""

import json

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.experiment import run
from graspcl.experiment.measure import HeldOut, session_budget
from graspcl.learner import Optimiser, Siesta
from graspcl.model import vector_network
from graspcl.settings import change
from graspcl.settings.config import BudgetConfig, StopConfig


def sessions_of(config, folder):
    run(config, folder)
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("new_samples", "stored"), [("none", [100, 100]), ("within", [100, 100]), ("extra", [180, 180])]
)
def test_new_samples_count_or_not(small, tmp_path, new_samples, stored):
    """A session of 80 samples beside a capacity of 100: SIESTA keeps within it by default."""
    options = {"buffer": 100, "buffer.new_samples": new_samples, "budget.updates": 2, "base.passes": 0}
    config = change(small, {**options, "stream.base_classes": 8, "stream.sessions": 2})
    assert [row["stored"] for row in sessions_of(config, tmp_path / "run")] == stored


def test_offline_learners_can_be_held_to_the_capacity(small, tmp_path):
    options = {"learner": "gdumb", "buffer": 100, "budget.updates": 2, "base.passes": 0, "stream.base_classes": 8}
    config = change(small, {**options, "stream.sessions": 2})
    assert [row["stored"] for row in sessions_of(config, tmp_path / "own")] == [180, 180]
    config = change(config, {"buffer.new_samples": "within"})
    assert [row["stored"] for row in sessions_of(config, tmp_path / "within")] == [100, 100]


def test_sessions_of_growing_length(small, tmp_path):
    """As in IDBR: session t spends t times the updates."""
    settings = BudgetConfig(updates=10, batch_size=8, growth=1.0)
    assert [session_budget(settings, 0, None, t).updates for t in (1, 2, 3)] == [10, 20, 30]
    assert session_budget(BudgetConfig(updates=10), 0, None, 3).updates == 10
    config = change(small, {"budget.updates": 2, "budget.growth": 0.5, "base.passes": 0})
    assert [row["updates"] for row in sessions_of(config, tmp_path / "run")] == [2, 3, 4, 5]


def test_a_constant_rate_rises_first():
    weight = torch.nn.Parameter(torch.zeros(1))
    rates = []
    for warmup in (None, 4):
        settings = Optimiser(lr=1.0, schedule="constant", warmup=warmup)
        optimizer = settings.build([("layer.weight", weight)])
        scheduler = settings.scheduler(optimizer, updates=6)
        own = []
        for _ in range(6):
            own.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        rates.append(own)
    assert rates[0] == [1.0] * 6
    assert rates[1] == pytest.approx([0.25, 0.4375, 0.625, 0.8125, 1.0, 1.0])


def test_the_best_weights_are_kept():
    """Class 1 is right at the first evaluation, wrong at the second."""
    learner = Siesta(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "grasp")
    learner.observe(torch.eye(4), [0, 0, 1, 1])
    for keep, right in ((None, False), ("best", True)):
        held_out = HeldOut(StopConfig(keep=keep, patience=5), None, np.random.default_rng(0))
        held_out.buffer.insert(torch.eye(4)[3:], [1])
        learner.network.head.set_rows(torch.tensor([0, 1]), learner.outputs(torch.eye(4)[[0, 3]], "features"))
        assert not held_out.exhausted(learner) and held_out.progress == [100.0, 0]
        learner.network.head.set_rows(torch.tensor([1, 0]), learner.outputs(torch.eye(4)[[0, 3]], "features"))
        assert learner.predict(torch.eye(4)[3:]).tolist() == [0]
        held_out.end_session(learner)
        assert (learner.predict(torch.eye(4)[3:]).tolist() == [1]) == right


def test_a_run_keeps_the_best_evaluation(small, tmp_path):
    """At a rate that ruins the network, held-out accuracy is best early in the session."""
    options = {"stream.sessions": 1, "stream.base_classes": 2, "budget.updates": 6, "optimiser.schedule": "constant"}
    rates = {"optimiser.lr": 300.0, "base.optimiser.lr": 1.6}
    config = change(small, {**options, **rates, "stop": "patience=9,every=1,share=0.3"})
    last, best = (
        sessions_of(change(config, {"stop.keep": keep}), tmp_path / keep)[-1]["accuracy"] for keep in ("none", "best")
    )
    assert best > last + 5
