"""Measurements of a run: on which samples, with which outputs, and what a session may spend."""

import json

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.experiment import run
from graspcl.experiment.measure import DriftMeter, HeldOut, TestSet, session_budget, stored_distances
from graspcl.experiment.prepare import learn_base, prepare
from graspcl.learner import Rehearsal, Siesta
from graspcl.model import vector_network
from graspcl.policy import Budget, Session, prototype_distances
from graspcl.policy.grasp import Grasp
from graspcl.policy.uniform import UniformBalanced
from graspcl.progress import Silent
from graspcl.settings import change
from graspcl.settings.config import BudgetConfig, StopConfig


@pytest.fixture
def learner():
    network = vector_network(4, hidden=8, embedding=6, generator=torch.Generator().manual_seed(0))
    learner = Siesta(network, Buffer(), "uniform")
    learner.observe(torch.randn(30, 4, generator=torch.Generator().manual_seed(1)), np.arange(30) % 3)
    return learner


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


# -- which samples and outputs -----------------------------------------------------------------------------------------


def test_drift_is_that_of_classes_from_earlier_sessions(learner):
    arrived = np.repeat([0, 1, 2, 3], 5)
    tests = TestSet(torch.arange(20.0)[:, None].expand(20, 4), np.zeros(20), arrived)
    for session, old in ((1, 5), (2, 10), (3, 15)):
        meter = DriftMeter(tests, 100, session, np.random.default_rng(0))
        assert meter.inputs[:, 0].tolist() == list(range(old))
    assert len(DriftMeter(tests, 4, 3, np.random.default_rng(0)).inputs) == 4
    meter = DriftMeter(tests, 100, 1, np.random.default_rng(0))
    before = learner.outputs(tests.inputs[:5], "embedding").numpy()
    meter.measure(learner)
    learner.rehearse(Budget(1, 8))
    meter.measure(learner)
    moved = learner.outputs(tests.inputs[:5], "embedding").numpy() - before
    assert meter.curves["norm"] == pytest.approx([np.linalg.norm(moved, axis=1).mean()], rel=1e-5)
    assert meter.curves["mse"] == pytest.approx([(moved**2).mean()], rel=1e-5)


def test_distances_are_those_of_embeddings_before_the_activation(learner):
    outputs = [learner.outputs(learner.buffer["codes"], part).numpy() for part in ("embedding", "features")]
    expected, other = (prototype_distances(values, learner.buffer.labels) for values in outputs)
    assert np.abs(other - expected).max() > 0.1
    session = Session(learner.buffer, Budget(1, 4), np.random.default_rng(0), learner.network, learner.rows)
    np.testing.assert_allclose(session.distances, expected, atol=2e-3)  # of half precision
    np.testing.assert_allclose(stored_distances(learner, 100, np.random.default_rng(0)), expected, atol=1e-6)


def test_a_share_of_what_arrives_is_held_out_but_never_the_first_of_a_class():
    held = HeldOut(StopConfig(patience=1, share=0.3), None, np.random.default_rng(0))
    labels = np.repeat(np.arange(4), 500)
    kept = held.take(torch.zeros(2000, 2), labels, np.arange(2000))
    assert len(held.buffer) == 2000 - len(kept) == pytest.approx(600, abs=60)
    assert {0, 500, 1000, 1500} <= set(kept.tolist()) and not set(kept) & set(held.buffer.ids.tolist())
    always = HeldOut(StopConfig(patience=1, share=0.999), None, np.random.default_rng(0))
    assert len(always.take(torch.zeros(2000, 2), labels, np.arange(2000))) < 20
    assert 0 not in always.take(torch.zeros(50, 2), np.zeros(50, int), np.arange(50))  # its class is known by now


# -- what a session may spend ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "seen", "fits", "updates"),
    [
        (BudgetConfig(updates=10, batch_size=8, times=0.5), 100, None, 5),
        (BudgetConfig(updates=1, batch_size=8, times=0.1), 100, None, 1),  # never none because of rounding
        (BudgetConfig(updates=0, batch_size=8), 100, None, 0),
        (BudgetConfig(passes=2.0, batch_size=8, times=3.0), 100, 40, 30),
        (BudgetConfig(passes=2.0, batch_size=8), 24, 40, 6),
        (BudgetConfig(passes=2.0, batch_size=8), 100, None, 25),
        (BudgetConfig(passes=0.0, batch_size=8), 100, None, 0),
    ],
)
def test_a_session_may_spend_updates_or_passes_over_what_fits(settings, seen, fits, updates):
    assert session_budget(settings, seen, fits) == Budget(updates, 8)


def test_sessions_of_all_learners_are_equally_long_in_a_buffer_of_bytes(small, tmp_path):
    """DER++'s logits take bytes of the buffer, but a session is as long as without them: one pass, in batches of 8."""
    half = 256 * 2 + 32  # bytes of a stored sample
    options = {"buffer": f"{183 * half}B", "budget.batch_size": 8, "base.passes": 0.1, "stream.sessions": 1}
    small = change(small, options)
    runs = {name: tmp_path / name for name in ("siesta", "derpp")}
    for name, folder in runs.items():
        run(change(small, {"learner": name}), folder)
    siesta, derpp = (metrics(folder)[0] for folder in runs.values())
    assert siesta["stored"] == 183 and derpp["stored"] > 183  # DER++ shrinks its buffer after the session
    assert siesta["updates"] == derpp["updates"] == round(183 / 8)
    with np.load(runs["siesta"] / "plans" / "session-1.npz") as plan:
        assert plan["picks"].shape == (23, 8)


def test_the_base_is_rehearsed_uniformly_with_its_own_budget_and_optimiser(small, tmp_path, monkeypatch):
    options = {"base.passes": 0.5, "budget.batch_size": 8, "base.optimiser.lr": 0.3, "learner": "siesta"}
    config = change(small, options)
    prepared = prepare(config, Silent())
    learner, seen, real = prepared.new_learner(config), [], Siesta.rehearse

    def rehearse(learner, budget):
        seen.append((budget, learner.policy, learner.optimiser.lr, len(learner.buffer)))
        return real(learner, budget)

    monkeypatch.setattr(Siesta, "rehearse", rehearse)
    learn_base(config, prepared, learner, tmp_path, Silent())
    assert seen == [(Budget(10, 8), UniformBalanced(replace=False), 0.3, 160)]
    assert learner.policy == Grasp() and learner.optimiser.lr == 1.6  # those of the stream
    assert learner.buffer.ids.tolist() == prepared.stream.base.tolist()


def test_the_bytes_of_a_run_are_those_of_its_largest_session(small, tmp_path):
    """Without rehearsal the buffer is emptied after a session, and of 8 classes in 3 sessions the last has fewer."""
    options = {"learner": "finetune", "buffer": "none", "stream.sessions": 3, "budget.updates": 1, "base.passes": 0.1}
    summary = run(change(small, options), tmp_path / "run")
    sizes = [record["buffer_bytes"] for record in metrics(tmp_path / "run")]
    assert sizes[0] == sizes[1] > sizes[2] and summary["buffer_bytes"] == sizes[0]


def test_held_out_samples_count_as_stored_bytes(small, tmp_path):
    options = {"stop": "patience=1,share=0.3", "buffer": "none", "stream.sessions": 1, "base.passes": 0.1}
    run(change(small, {**options, "budget.updates": 1}), tmp_path / "run")
    (record,) = metrics(tmp_path / "run")
    assert record["stored"] < 480 * 0.85  # of 160 base samples and 320 that arrive
    assert record["buffer_bytes"] >= 480 * (256 * 2 + 32)


def test_patience_goes_on_where_a_run_was_stopped(small, tmp_path, monkeypatch):
    """At a rate of almost 0 no evaluation is better than the first, so the third ends a session."""
    options = {"stop": "patience=2,every=1,share=0.2", "optimiser.lr": 1e-12, "base.passes": 0.1, "budget.updates": 8}
    config = change(small, {**options, "stream.sessions": 2, "checkpoint.seconds": 0})
    steps, real = [], Rehearsal.step

    def step(rehearsal):
        steps.append(rehearsal)
        if len(steps) == 4:  # after one update on the base classes and two of the first session
            raise KeyboardInterrupt
        real(rehearsal)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Rehearsal, "step", step)
        run(config, tmp_path / "run")
    run(config, tmp_path / "run")
    assert [(record["updates"], record["updates_saved"]) for record in metrics(tmp_path / "run")] == [(3, 5), (3, 5)]
