"""What a user writes: learners by name, a learner of one's own, the optimiser, devices, saving and loading."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from graspcl.buffer import Buffer, rules
from graspcl.errors import GraspError
from graspcl.learner import Batch, Derpp, ErAce, Learner, Optimiser, Rehearsal, Siesta, column_shapes, learners
from graspcl.model import Execution, Outputs, SplitNetwork, execution, vector_network
from graspcl.policy import Budget
from graspcl.testing import check_learner
from graspcl.testing.common import same

INPUTS = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
LABELS = np.arange(40) % 4


def vectors(classes: int = 0) -> SplitNetwork:
    return vector_network(6, hidden=8, embedding=5, classes=classes, generator=torch.Generator().manual_seed(0))


# -- a learner of one's own --------------------------------------------------------------------------------------------


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learners that a test registers are forgotten afterwards."""
    learners.names()
    monkeypatch.setattr(learners, "_parts", dict(learners._parts))
    monkeypatch.setattr(learners, "_declared", dict(learners._declared))


@pytest.mark.usefixtures("registered")
def test_a_learner_as_the_documentation_writes_it() -> None:
    @learners.register("halves")
    class Halves(Learner):
        def loss(self, batch):
            losses = batch.cross_entropies
            parts = [losses[chosen].mean() for chosen in (batch.new, ~batch.new) if chosen.any()]
            return sum(parts) / len(parts)

    def make(capacity: int | None = 30) -> Learner:
        return learners.create("halves", network=vectors(), buffer=Buffer(capacity), optimiser=Optimiser(lr=0.1))

    check_learner(make, INPUTS)
    learner = make(capacity=None)
    learner.observe(INPUTS[:20], LABELS[:20] % 2)
    learner.rehearse(Budget(2, 8))
    learner.observe(INPUTS[20:], 2 + LABELS[20:] % 2)
    seen = list[Batch]()
    learner.loss = lambda batch: seen.append(batch) or Halves.loss(learner, batch)  # type: ignore[method-assign,func-returns-value]
    learner.rehearse(Budget(1, 8))
    (batch,) = seen
    assert batch.new.tolist() == (batch.slots >= 20).tolist() and batch.new.dtype == torch.bool
    assert batch.present.tolist() == [row in batch.targets.tolist() for row in range(4)]
    assert torch.equal(batch.logits, batch.outputs.logits) and len(batch.inputs) == 8


def test_er_ace_lets_new_samples_compete_with_the_classes_in_their_batch() -> None:
    """Old samples compete with all classes, new ones here not with class 1."""
    targets = torch.tensor([0, 0, 2, 3])
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
    outputs = Outputs(logits, logits, logits)
    batch = Batch(INPUTS[:4], targets, np.arange(4), outputs, torch.tensor([False, False, True, True]))
    new = cross_entropy(logits[2:][:, [0, 2, 3]], torch.tensor([1, 2]), reduction="none")
    expected = torch.cat([cross_entropy(logits[:2], targets[:2], reduction="none"), new]).mean()
    torch.testing.assert_close(ErAce(vectors(), Buffer()).loss(batch), expected)


def test_a_learner_may_replace_the_logits() -> None:
    class Reversed(Learner):
        def forward(self, inputs: torch.Tensor) -> Outputs:
            assert not self.network.training and not torch.is_grad_enabled()
            outputs = super().forward(inputs)
            return outputs._replace(logits=-outputs.logits)

    plain, other = Learner(vectors(), Buffer()), Reversed(vectors(), Buffer())
    for learner in (plain, other):
        learner.observe(INPUTS, LABELS)
        learner.network.train()
    logits = plain.logits(INPUTS)
    least = np.asarray(plain.classes)[logits.argmin(1)]
    assert torch.equal(other.logits(INPUTS), -logits) and np.array_equal(other.predict(INPUTS), least)
    codes = other.encode(INPUTS)
    assert torch.equal(other.outputs(codes, "logits"), -logits) and np.array_equal(other.predict_codes(codes), least)


# -- parameters --------------------------------------------------------------------------------------------------------

GIVEN = ["network", "buffer", "policy", "optimiser", "rng", "device", "execution"]


@pytest.mark.parametrize("name", learners.names())
def test_learners_spell_out_their_parameters(name: str) -> None:
    parameters = inspect.signature(learners.get(name)).parameters
    assert list(parameters)[:7] == GIVEN and all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
    assert list(learners.parameters(name)) == list(parameters)[7:]
    kind, capacity = learners.get(name), None if name == "offline" else 20
    buffer = Buffer(capacity, columns=kind.columns(4))
    learner = learners.create(name, network=vectors(), buffer=buffer, policy="uniform", rng=3)
    learner.observe(INPUTS, LABELS)
    updates = learner.rehearse(Budget(2, 8)).costs.updates
    assert updates >= 2 if kind.rehearses else updates == 0


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("derpp", {"alpha": -1}, "learner 'derpp': alpha must be a number of at least 0, got -1"),
        ("derpp", {"teacher": "no"}, "teacher must be true or false, got 'no'"),
        ("idbr", {"store_ratio": 1.5}, r"store_ratio must be a number in \[0, 1\], got 1.5"),
        ("idbr", {"balance": "classes"}, "balance must be 'class' or 'task', got 'classes'"),
        ("offline", {"passes": -1.0}, "passes must be a number of at least 0, got -1.0"),
        ("siesta", {"alpha": 1}, "learner 'siesta' has no parameter 'alpha'; it takes none"),
        ("slda", {"shrinkage": 2}, r"shrinkage must be a number in \[0, 1\] or none, got 2"),
        ("ranpac", {"dimensions": 0}, "dimensions must be a whole number of at least 1, got 0"),
        ("ranpac", {"weighting": "classes"}, "weighting must be 'sample' or 'class', got 'classes'"),
        ("probe", {"strength": 0}, "strength must be a positive number or none, got 0"),
        ("gdumb", {"rest": True}, "no parameter 'rest'; did you mean 'reset'"),
    ],
)
def test_wrong_parameters_are_refused_without_building(name: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        learners.validate(name, parameters)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "adam"}, "name must be 'sgd' or 'adamw', got 'adam'"),
        ({"schedule": "cosine"}, "schedule must be 'onecycle', 'linear' or 'constant', got 'cosine'"),
        ({"lr": 0}, "lr must be a positive number, got 0"),
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\), got 1.0"),
        ({"weight_decay": -1e-5}, "weight_decay must be a number of at least 0"),
        ({"layer_decay": 0.0}, r"layer_decay must be a number in \(0, 1\], got 0.0"),
    ],
)
def test_the_optimiser_refuses_what_it_does_not_know(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        Optimiser(**settings)


# -- devices -----------------------------------------------------------------------------------------------------------


def test_a_learner_stays_on_its_networks_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second device: "meta" is one to which tensors can go, but from which they cannot return."""
    monkeypatch.setattr(execution, "_check_device", lambda device: None)
    network = vectors(classes=2).to("meta")
    learner = Siesta(network, Buffer())
    assert learner.device == torch.device("meta") == torch.device(learner.execution.device)
    assert {parameter.device.type for parameter in network.parameters()} == {"meta"}
    assert Siesta(vectors(), Buffer(), device="meta").device.type == "meta"  # an explicit device wins
    assert Siesta(vectors(), Buffer(), execution=Execution(device="meta")).device.type == "meta"
    assert Siesta(vectors(), Buffer()).device.type == "cpu"


# -- one forward pass --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rule", "passes"),
    [(Siesta, "largest_class", 1), (Siesta, "herding", 1), (Siesta, "gss", 1), (Learner, "rainbow", 1),
     (Learner, "largest_class", 0)],
)  # fmt: skip
def test_a_new_sample_passes_the_network_at_most_once(kind: type[Learner], rule: str, passes: int) -> None:
    network, counted = vectors(), []
    made = rules.create(rule)
    learner = kind(network, Buffer(maintenance=made, columns=column_shapes(made, network)))
    network.plastic.register_forward_hook(lambda module, inputs, output: counted.append(len(output)))
    learner.observe(INPUTS, LABELS)
    assert counted == [len(INPUTS)] * passes


# -- state -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", learners.names())
def test_a_saved_learner_is_loaded_into_another(name: str, tmp_path: Path) -> None:
    def make(seed: int) -> Learner:
        network = vector_network(6, hidden=8, embedding=5, generator=torch.Generator().manual_seed(seed))
        kind = learners.get(name)
        return kind(network, Buffer(columns=kind.columns(4)), "grasp", Optimiser(lr=0.1), rng=seed)

    first, second = make(0), make(1)
    first.observe(INPUTS, LABELS)
    first.rehearse(Budget(4, 8))
    first.save(tmp_path / "learner")
    second.load(tmp_path / "learner")
    for learner in (first, second):
        learner.observe(INPUTS, LABELS)
        learner.rehearse(Budget(4, 8))
    assert np.array_equal(first.predict(INPUTS), second.predict(INPUTS))
    for one, other in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_state_of_an_earlier_version_is_loaded() -> None:
    """It says at the top where new samples start, and the buffer's own state did not."""
    learner, other = Siesta(vectors(), Buffer()), Siesta(vectors(), Buffer())
    learner.observe(INPUTS[:20], LABELS[:20])
    learner.rehearse(Budget(2, 8))
    learner.observe(INPUTS[20:], LABELS[20:])
    state = learner.state_dict()
    state["since"], state["buffer"]["since"] = learner.buffer.since, 0
    other.load_state_dict(state)
    assert other.buffer.since == 20 and other.buffer.new.tolist() == [False] * 20 + [True] * 20


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    learner = Derpp(vectors(), Buffer(), teacher=True)
    learner.observe(INPUTS, LABELS)
    for state in (Siesta(vectors(), Buffer()).state_dict(), {}, {**learner.state_dict(), "more": 1}):
        with pytest.raises(GraspError, match="the state does not fit a learner 'derpp'"):
            learner.load_state_dict(state)
    assert len(learner.buffer) == 40 and learner.classes == [0, 1, 2, 3]


def test_a_state_whose_buffer_does_not_fit_changes_nothing() -> None:
    learner, other = Siesta(vectors(), Buffer(capacity=40)), Siesta(vectors(), Buffer(capacity=20))
    learner.observe(INPUTS, LABELS)
    other.observe(INPUTS[:10], LABELS[:10] + 5)
    before = copy.deepcopy(learner.knowledge())
    with pytest.raises(GraspError, match="the state is of a buffer with capacity 20, this one has 40"):
        learner.load_state_dict(other.state_dict())
    assert same(learner.knowledge(), before) and len(learner.buffer) == 40


def test_head_labels_can_be_set() -> None:
    learner = Siesta(vectors(classes=3), Buffer())
    learner.set_head_labels([5, 9, 1])
    assert set(learner.predict(INPUTS).tolist()) <= {5, 9, 1}
    for labels in ([5, 9], [5, 5, 1]):
        with pytest.raises(GraspError, match="expected 3 distinct labels, one per head row"):
            learner.set_head_labels(labels)


def test_a_session_without_steps_can_be_given_up() -> None:
    learner = Siesta(vectors(), Buffer())
    learner.observe(INPUTS, LABELS)
    Rehearsal(learner, Budget(2, 8)).abandon()
    assert not learner.buffer.new.any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"network": torch.nn.Linear(4, 4)},
            "network must be a SplitNetwork .*, got Linear",
        ),
        ({"optimiser": torch.optim.SGD([torch.zeros(1)], lr=1)}, "optimiser must be a .*Optimiser, got SGD"),
    ],
)
def test_objects_of_another_kind_are_refused_at_once(given, message):
    network = vector_network(4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(GraspError, match=message):
        Siesta(**{"network": network, "buffer": Buffer(), **given})
