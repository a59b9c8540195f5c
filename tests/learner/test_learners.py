"""DER++, GDumb and the two ends of the scale: their equations, what they keep, and the contract of every learner."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from graspcl.buffer import Buffer
from graspcl.codec import Half
from graspcl.errors import GraspError
from graspcl.learner import Batch, Derpp, Diverged, Optimiser, Rehearsal, Siesta, learners, offline
from graspcl.model import Execution, make_network, vector_network
from graspcl.policy import Budget, policies
from graspcl.state import load_state, save_state
from graspcl.testing import check_learner
from graspcl.testing.common import same


def clusters(classes=5, per_class=20, dim=12, seed=0, spread=0.6):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), per_class)
    x = rng.normal(size=(classes, dim))[labels] + spread * rng.normal(size=(len(labels), dim))
    return torch.from_numpy(x).float(), labels


def make(name, policy="grasp", capacity=None, codec=None, maintenance=None, lr=0.1, dropout=0.1, **parameters):
    kind = learners.get(name)
    network = vector_network(12, hidden=32, embedding=16, dropout=dropout, generator=torch.Generator().manual_seed(0))
    buffer = Buffer(capacity, codec, maintenance, columns=kind.columns(12, **parameters))
    return kind(network, buffer, policy, Optimiser(lr=lr), **parameters)


KINDS = [("derpp", {}), ("derpp", {"teacher": True}), ("gdumb", {}), ("gdumb", {"reset": False}), ("finetune", {}),
         ("offline", {"passes": 1}), ("er_ace", {})]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), KINDS)
@pytest.mark.parametrize("policy", ["grasp", "clib"])  # one that plans, one that keeps what training tells it
def test_contract(name, parameters, policy):
    inputs, _ = clusters(per_class=8)
    capacity = None if name == "offline" else 40
    check_learner(lambda: make(name, policy, capacity, Half(), **parameters), inputs)


def test_all_are_known_by_name():
    assert learners.names() == [
        "aligned", "derpp", "er_ace", "finetune", "gdumb", "idbr", "ncm", "offline", "probe", "ranpac", "siesta",
        "slda",
    ]  # fmt: skip


# -- DER++ -----------------------------------------------------------------------------------------------------------


def second_session(**parameters):
    """A learner that has rehearsed classes 0-2 and observed 3 and 4, in its second session."""
    inputs, labels = clusters()
    learner = make("derpp", "uniform", dropout=0.0, **parameters)
    learner.observe(inputs[labels < 3], labels[labels < 3])
    learner.rehearse(Budget(20, 16))
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    learner.observe(inputs[labels >= 3], labels[labels >= 3])
    session = Rehearsal(learner, Budget(10, 16))
    return learner, session, inputs, labels, before


def batch_of(learner, slots):
    inputs, labels = learner.buffer.fetch(slots)
    new = torch.from_numpy(learner.buffer.new[slots])
    return Batch(inputs, learner.rows(labels), slots, learner.network(inputs), new)


def stored_logits(learner):
    """What the 60 samples of the first session are held to: their logits of then, the lowest for classes 3 and 4."""
    then = torch.from_numpy(learner.buffer["logits"][:60, :3].astype(np.float32))
    return torch.cat([then, then.min(1, keepdim=True).values.expand(-1, 2)], 1)


def test_derpp_loss_is_the_sum_of_its_terms_with_stored_logits():
    learner, session, inputs, labels, _ = second_session(alpha=0.3, beta=0.7, average="terms")
    then = stored_logits(learner)  # of the network after the first session
    for _ in range(3):
        session.step()
    slots = np.array([2, 25, 41, 70, 99])  # three old samples, two new ones
    batch = batch_of(learner, slots)
    logits = learner.network(inputs[slots]).logits
    ce = F.cross_entropy(logits, torch.from_numpy(labels[slots]), reduction="none")
    mse = (logits[:3] - then[slots[:3]]).square().mean()
    torch.testing.assert_close(learner.loss(batch), ce[3:].mean() + 0.7 * ce[:3].mean() + 0.3 * mse)


def test_derpp_counts_every_sample_once_unless_it_has_a_teacher():
    """Four old samples and one new one: each has a fifth of the loss, old ones times beta and with alpha times MSE."""
    learner, session, inputs, labels, _ = second_session(alpha=0.3, beta=0.7)
    then = stored_logits(learner)
    session.step()
    for slots, old in ((np.array([2, 25, 41, 50, 99]), 4), (np.arange(5), 5), (np.arange(80, 85), 0)):
        logits = learner.network(inputs[slots]).logits
        ce = F.cross_entropy(logits, torch.from_numpy(labels[slots]), reduction="none")
        mse = (logits[:old] - then[slots[:old]]).square().mean(1)
        expected = (ce[old:].sum() + 0.7 * ce[:old].sum() + 0.3 * mse.sum()) / 5
        torch.testing.assert_close(learner.loss(batch_of(learner, slots)), expected)


@pytest.mark.parametrize("average", ["terms", "batch"])
def test_derpp_has_the_loss_of_the_original_where_half_of_a_batch_is_new_and_the_head_has_all_rows(average):
    """Buzzega et al. store logits of all classes, also of later ones; with half a batch new, only the scale differs."""
    inputs, labels = clusters()
    network = vector_network(12, classes=5, generator=torch.Generator().manual_seed(0))
    buffer = Buffer(columns=Derpp.columns(5))
    learner = Derpp(network, buffer, "uniform", Optimiser(lr=0.1), alpha=0.3, beta=0.7, average=average)
    learner.observe(inputs[labels < 3], labels[labels < 3])
    learner.rehearse(Budget(20, 16))
    then = learner.outputs(inputs[:60], "logits").half().float()
    learner.observe(inputs[labels >= 3], labels[labels >= 3])
    old, new = np.array([3, 30, 50]), np.array([61, 80, 90])
    batch = batch_of(learner, np.append(old, new))
    expected = F.cross_entropy(batch.logits[3:], batch.targets[3:])
    expected = expected + 0.7 * F.cross_entropy(batch.logits[:3], batch.targets[:3])
    expected = expected + 0.3 * F.mse_loss(batch.logits[:3], then[old])
    torch.testing.assert_close(learner.loss(batch), expected / {"terms": 1, "batch": 2}[average])


def test_derpp_holds_no_later_class_to_the_logit_of_a_samples_only_class():
    inputs, labels = clusters(classes=2)
    learner = make("derpp", "uniform", dropout=0.0, beta=0.0)
    learner.observe(inputs[labels < 1], labels[labels < 1])
    learner.rehearse(Budget(5, 4))
    then = torch.from_numpy(learner.buffer["logits"][:20, 0].astype(np.float32))
    learner.observe(inputs[labels > 0], labels[labels > 0])
    batch = batch_of(learner, np.arange(4))
    loss = learner.loss(batch)
    torch.testing.assert_close(loss, 0.1 * F.mse_loss(batch.logits[:, 0], then[:4]))
    loss.backward()
    assert all(parameter.grad.isfinite().all() for _, parameter in learner.network.plastic_parameters())


def test_derpp_stores_what_the_network_said_when_a_sample_stopped_being_new():
    inputs, labels = clusters()
    learner = make("derpp", "uniform", dropout=0.0)
    learner.observe(inputs[labels < 3], labels[labels < 3])
    learner.rehearse(Budget(20, 16))
    first = learner.outputs(inputs[labels < 3], "logits")
    np.testing.assert_allclose(learner.buffer["logits"][:60, :3], first, rtol=1e-3, atol=1e-3)
    learner.observe(inputs[labels >= 3], labels[labels >= 3])
    log = learner.rehearse(Budget(20, 16))
    assert log.costs.training_forward == 20 * 16 + 40  # storing logits of the 40 new ones is booked
    np.testing.assert_allclose(learner.buffer["logits"][:60, :3], first, rtol=1e-3, atol=1e-3)  # and never change
    second = learner.outputs(inputs[labels >= 3], "logits")
    np.testing.assert_allclose(learner.buffer["logits"][60:, :5], second, rtol=1e-3, atol=1e-3)
    assert learner.buffer["known"].tolist() == [3] * 60 + [5] * 40


def test_derpp_loss_with_a_teacher_is_held_to_the_network_of_the_sessions_begin():
    learner, session, inputs, labels, before = second_session(teacher=True)
    assert "logits" not in learner.buffer.columns
    teacher = {name: value.clone() for name, value in learner.network.state_dict().items()}
    assert torch.equal(teacher["plastic.hidden.weight"], before["plastic.hidden.weight"])
    for _ in range(3):
        session.step()
    slots = np.array([2, 25, 41, 70, 99])
    loss = learner.loss(batch_of(learner, slots))
    logits = learner.network(inputs[slots]).logits
    now = {name: value.clone() for name, value in learner.network.state_dict().items()}
    learner.network.load_state_dict(teacher)
    then = learner.network.eval()(inputs[slots]).logits
    learner.network.load_state_dict(now)
    ce = F.cross_entropy(logits, torch.from_numpy(labels[slots]), reduction="none")
    expected = ce[3:].mean() + 0.9 * ce[:3].mean() + 0.1 * (logits[:3] - then[:3]).square().mean()
    torch.testing.assert_close(loss, expected.detach(), check_dtype=False)
    assert learner.loss(batch_of(learner, slots)).requires_grad


@pytest.mark.parametrize("teacher", [False, True])
def test_derpp_without_new_or_without_old_samples_is_cross_entropy(teacher):
    learner, _, _, _, _ = second_session(teacher=teacher, average="terms")
    for slots in (np.arange(5), np.arange(80, 85)):
        batch = batch_of(learner, slots)
        torch.testing.assert_close(learner.loss(batch), batch.cross_entropies.mean())


def test_derpp_says_what_is_missing():
    network = vector_network(4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(GraspError, match=r"columns=Derpp\.columns\(classes\)"):
        Derpp(network, Buffer(), "grasp")
    learner = Derpp(network, Buffer(columns=Derpp.columns(2)), "grasp")
    with pytest.raises(GraspError, match="room for logits of 2 classes, but now there are 3"):
        learner.observe(torch.eye(4), [0, 1, 2, 2])
    assert not len(learner.buffer) and not learner.classes
    with pytest.raises(GraspError, match="alpha must be a number of at least 0, got -1"):
        Derpp(network, Buffer(), "grasp", teacher=True, alpha=-1)


def test_stored_logits_count_as_bytes():
    inputs, labels = clusters()
    sizes = []
    for teacher in (False, True):
        learner = make("derpp", capacity="4KB", teacher=teacher)
        learner.observe(inputs, labels)
        learner.rehearse(Budget(2, 4))
        assert learner.buffer.nbytes <= 4000
        sizes.append(len(learner.buffer))
    assert sizes[0] < sizes[1]


# -- GDumb, offline, fine-tuning -------------------------------------------------------------------------------------


def test_gdumb_begins_every_session_with_the_network_it_was_made_with():
    inputs, labels = clusters()
    learner = make("gdumb", maintenance="gdumb", capacity=30)
    made = {name: value.clone() for name, value in learner.network.plastic.state_dict().items()}
    for part in (labels < 3, labels >= 3):
        learner.observe(inputs[part], labels[part])
        rows = learner.network.head.weight.detach().clone()
        session = Rehearsal(learner, Budget(4, 8))
        for name, value in learner.network.plastic.state_dict().items():
            assert torch.equal(value, made[name])
        assert learner.network.head.weight.shape == rows.shape and not torch.equal(learner.network.head.weight, rows)
        while not session.done:
            session.step()
        session.finish()
        assert not torch.equal(learner.network.plastic.state_dict()["hidden.weight"], made["hidden.weight"])
    assert np.bincount(learner.buffer.labels).tolist() == [6] * 5  # greedily balanced


def test_gdumb_without_reset_keeps_its_network():
    inputs, labels = clusters()
    learner = make("gdumb", reset=False)
    learner.observe(inputs, labels)
    learner.rehearse(Budget(4, 8))
    after = learner.network.plastic.state_dict()["hidden.weight"].clone()
    Rehearsal(learner, Budget(4, 8))
    assert torch.equal(learner.network.plastic.state_dict()["hidden.weight"], after)


def test_finetune_keeps_nothing_and_counts_on():
    inputs, labels = clusters()
    learner = make("finetune", capacity=50)
    learner.observe(inputs[labels < 3], labels[labels < 3])
    log = learner.rehearse(Budget(4, 8))
    assert log.stored == 60 and len(learner.buffer) == 0 and learner.buffer.seen == learner.buffer.since == 60
    learner.observe(inputs[labels >= 3], labels[labels >= 3])
    assert set(learner.buffer.labels) == {3, 4} and learner.classes == [0, 1, 2, 3, 4]
    learner.rehearse(Budget(4, 8))


def test_offline_makes_its_passes_over_everything_and_takes_no_capacity():
    inputs, labels = clusters()
    learner = make("offline", "uniform", passes=3)
    learner.observe(inputs, labels)
    assert learner.rehearse(Budget(2, 10)).costs.updates == 30
    assert learner.rehearse(Budget(50, 10)).costs.updates == 50  # a larger budget is not cut
    with pytest.raises(GraspError, match="without a capacity"):
        make("offline", capacity=50)


def stretched(seed):
    """Classes that differ in their first coordinates, among others of far larger variance."""
    inputs, labels = clusters(per_class=100, seed=3, spread=0.5)
    noise = np.random.default_rng(seed).normal(size=(len(labels), 12)) * ([0.3] * 6 + [6.0] * 6)
    return inputs + torch.from_numpy(noise).float(), labels


def test_offline_is_not_below_a_closed_form_head_on_its_features():
    """With a rate at which nothing is learned, the head is what can be chosen."""
    inputs, labels = stretched(1)
    test, answers = stretched(2)
    accuracy = {}
    for tuned in (True, False):
        learner = make("offline", "uniform", lr=1e-9, passes=0.2, tuned=tuned)
        learner.observe(inputs, labels)
        learner.rehearse(Budget(2, 10))
        accuracy[tuned] = float((learner.predict(test) == answers).mean())
    with torch.no_grad():
        features, unseen = (F.pad(learner.network(x).features, (0, 1), value=1.0) for x in (inputs, test))
    rows = torch.linalg.lstsq(features, F.one_hot(torch.from_numpy(labels)).float()).solution
    closed = float(((unseen @ rows).argmax(1).numpy() == answers).mean())
    assert accuracy[False] + 0.2 < closed <= accuracy[True] + 0.02


@pytest.mark.parametrize(("lr", "factor"), [(0.01, 3.0), (10.0, 0.3)])
def test_offline_chooses_its_rate_on_held_out_samples(lr, factor, monkeypatch):
    monkeypatch.setattr(offline, "_SOLVERS", {})  # the trained head alone depends on the rate
    inputs, labels = clusters(per_class=100, spread=1.0)
    learner = make("offline", "uniform", lr=lr, passes=1)
    learner.observe(inputs, labels)
    session = Rehearsal(learner, learner.session_budget(Budget(2, 10)))
    assert learner.choice.factor == factor
    assert session._optimizer.param_groups[-1]["max_lr"] == pytest.approx(lr * factor)
    while not session.done:
        session.step()
    assert session.finish().costs.training_backward == 500 + 3 * 450  # everything, and nine tenths with three rates


def test_offline_reads_states_of_before_heads_were_chosen():
    inputs, labels = clusters()
    learner, other = make("offline", "uniform", tuned=False), make("offline", "uniform")
    learner.observe(inputs, labels)
    learner.rehearse(Budget(2, 10))
    state = learner.state_dict()
    other.load_state_dict({name: state[name] for name in state if name not in ("choice", "solved", "tried")})
    assert torch.equal(other.logits(inputs), learner.logits(inputs))


def test_the_scale_has_its_ends():
    """Two sessions of well separated classes: without rehearsal the old classes are lost, with it they are not."""
    inputs, labels = clusters(classes=6, per_class=60, spread=0.9)
    test, answers = clusters(classes=6, per_class=60, spread=0.9, seed=0)[0] * 1.0, labels
    score = {}
    for name in learners.names():
        own = {"capacity": None, "passes": 3} if name == "offline" else {"capacity": 120}
        learner = make(name, "uniform_balanced", lr=0.3, **own)
        for part in (labels < 3, labels >= 3):
            learner.observe(inputs[part], labels[part])
            learner.rehearse(Budget(60, 16))
        score[name] = float((learner.predict(test) == answers).mean())
    assert score["finetune"] < 0.7
    for name in ("siesta", "derpp", "gdumb"):
        assert score["finetune"] + 0.1 < score[name] <= score["offline"] + 0.02, score


def test_a_budget_of_nothing_changes_nothing():
    inputs, labels = clusters()
    learner = make("gdumb")
    learner.observe(inputs, labels)
    learner.rehearse(Budget(20, 16))
    before = learner.network.state_dict()["plastic.hidden.weight"].clone()
    learner.rehearse(Budget(0, 8))
    assert torch.equal(learner.network.state_dict()["plastic.hidden.weight"], before)


def test_a_session_that_cannot_begin_leaves_the_network_as_it_was():
    class Refusing(policies.get("uniform")):
        def begin(self, session):
            raise GraspError("not today")

    learner = make("gdumb")
    with pytest.raises(GraspError, match="the buffer is empty"):
        learner.rehearse(Budget(2, 8))
    inputs, labels = clusters()
    learner.observe(inputs, labels)
    learner.rehearse(Budget(20, 16))
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    learner.policy = Refusing()
    with pytest.raises(GraspError, match="not today"):
        learner.rehearse(Budget(2, 8))
    assert all(torch.equal(value, before[name]) for name, value in learner.network.state_dict().items())


def test_a_session_goes_on_with_its_own_budget_and_learner_only():
    inputs, labels = clusters()
    learner, other = make("siesta"), make("gdumb")
    learner.observe(inputs, labels)
    state = Rehearsal(learner, Budget(4, 8)).state_dict()  # before the first step, too
    again = Rehearsal(learner, Budget(4, 8), state)
    again.step()
    with pytest.raises(GraspError, match=r"started with Budget\(updates=4"):
        Rehearsal(learner, Budget(5, 8), state)
    with pytest.raises(GraspError, match=r"does not fit a learner 'gdumb' .* it differs in made, means"):
        other.load_state_dict(learner.state_dict())
    with pytest.raises(GraspError, match="another `reset`"):
        other.load_state_dict(make("gdumb", reset=False).state_dict())


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [("derpp", {"teacher": "no"}, "teacher must be true or false"), ("gdumb", {"reset": 0}, "reset must be"),
     ("offline", {"passes": "x"}, "passes must be a number"), ("derpp", {"alpha": True}, "alpha must be a number")],
)  # fmt: skip
def test_settings_of_the_wrong_kind_are_refused(name, parameters, message):
    network = vector_network(4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(GraspError, match=message):
        learners.get(name)(network, Buffer(columns=Derpp.columns(3)), "grasp", **parameters)


def test_devices_that_are_not_there_are_refused():
    network = vector_network(4, generator=torch.Generator().manual_seed(0))
    assert str(Siesta(network, Buffer(), "grasp", device="auto").device) in ("cpu", "cuda")
    with pytest.raises(GraspError, match="cannot be used here"):
        Siesta(network, Buffer(), "grasp", device="cuda:99")
    with pytest.raises(GraspError, match="not both"):
        Siesta(network, Buffer(), "grasp", device="cpu", execution=Execution())


# The head of `aligned` is solved from samples alone: it does not use rows that were trained before.
@pytest.mark.parametrize("name", sorted({*learners.names()} - {"aligned"}))
def test_rows_of_a_trained_head_are_known_classes(name):
    generator = torch.Generator().manual_seed(0)
    network = vector_network(12, hidden=32, embedding=16, classes=3, generator=generator)
    kind = learners.get(name)
    learner = kind(network, Buffer(columns=kind.columns(12)), "grasp", Optimiser(lr=0.1))
    rows = network.head.weight.detach().clone()
    inputs, labels = clusters()
    learner.observe(inputs[labels >= 2], np.where(labels[labels >= 2] > 3, 7, labels[labels >= 2]))
    assert learner.classes == [0, 1, 2, 3, 7] and set(learner.predict(inputs)) <= {0, 1, 2, 3, 7}
    assert torch.equal(network.head.weight[:3].detach(), rows)  # base rows are not overwritten while awake
    learner.rehearse(Budget(3, 8))


def test_images_in_the_unit_range_are_refused():
    network = make_network("small", pixels=32, generator=torch.Generator().manual_seed(0))
    learner = Siesta(network, Buffer(), "grasp")
    with pytest.raises(GraspError, match="multiply them by 255"):
        learner.observe(torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), [0, 0, 1, 1])
    assert not len(learner.buffer)


def test_a_state_of_another_codec_is_refused():
    learner, other = make("siesta", codec=Half()), make("siesta")
    with pytest.raises(GraspError, match="codec Half, this one has NoneType"):
        other.load_state_dict(learner.state_dict())


def test_passes_through_the_teacher_are_booked():
    _, session, *_ = second_session(teacher=True)
    while not session.done:
        session.step()
    old = int((np.stack(session._picks) < 60).sum())
    assert session.finish().costs.training_forward == 160 + old


# -- sessions that diverge -------------------------------------------------------------------------------------------


def before_divergence(name, policy, **parameters):
    """A learner with one session behind it and a second to come, whose learning rate is far too high."""
    inputs, labels = clusters()
    learner = make(name, policy, **parameters)
    learner.observe(inputs[labels < 3], labels[labels < 3])
    learner.rehearse(Budget(5, 8))
    learner.observe(inputs[labels >= 3], labels[labels >= 3])
    learner.optimiser = Optimiser(lr=1e38, schedule="constant")
    return learner, copy.deepcopy(learner.knowledge())


@pytest.mark.parametrize(("name", "parameters"), [*KINDS, ("siesta", {}), ("idbr", {"regularised": True})])
def test_a_session_that_diverges_leaves_no_trace(name, parameters):
    learner, before = before_divergence(name, "clib", **parameters)
    with pytest.raises(Diverged, match="The learner is as it was before the session"):
        learner.rehearse(Budget(20, 8))
    assert same(learner.knowledge(), before)


@pytest.mark.parametrize("earlier", [False, True])
def test_a_resumed_session_that_diverges_returns_to_its_start(earlier, tmp_path):
    """States of earlier versions say of the start what the network and the generator were, and no more."""
    learner, before = before_divergence("derpp", "clib", teacher=True)
    learner.optimiser = Optimiser(lr=0.1)
    session = Rehearsal(learner, Budget(20, 8))
    session.step()
    state = session.state_dict()
    if earlier:
        state |= {"before": before["network"], "rng_before": before["rng"]}
    save_state(tmp_path / "state", {"learner": learner.state_dict(), "session": state})
    state = load_state(tmp_path / "state")
    learner = make("derpp", "clib", teacher=True)
    learner.load_state_dict(state["learner"])
    halfway = copy.deepcopy(learner.knowledge())
    session = Rehearsal(learner, Budget(20, 8), state["session"])
    for group in session._optimizer.param_groups:
        group["lr"] = 1e38
    session._scheduler.step = lambda: None
    with pytest.raises(Diverged):
        while not session.done:
            session.step()
    expected = {**halfway, "network": before["network"], "rng": before["rng"]} if earlier else before
    assert same(learner.knowledge(), expected)


def test_importances_are_finite_after_a_session_that_diverged():
    learner, _ = before_divergence("siesta", "clib")
    with pytest.raises(Diverged):
        learner.rehearse(Budget(20, 8))
    learner.optimiser = Optimiser(lr=0.1)
    learner.rehearse(Budget(5, 8))
    assert np.isfinite(learner.policy.importance(np.arange(len(learner.buffer)))).all()


def test_texts_are_to_be_encoded_first() -> None:
    learner = Siesta(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "grasp")
    with pytest.raises(GraspError, match="Tokenizer"):
        learner.observe(["a text"], [0])


def test_an_update_does_only_what_is_asked_for(monkeypatch):
    """The mode is set when it is not right, and only policies that name feedback get it."""
    inputs, labels = clusters()
    learner, modes, heard = make("finetune", "uniform"), [], []
    learner.observe(inputs, labels)
    train, loss = learner.network.train, learner.loss
    monkeypatch.setattr(learner.network, "train", lambda mode=True: modes.append(mode) or train(mode))
    monkeypatch.setattr(learner, "loss", lambda batch: heard.append(learner.network.neck.training) or loss(batch))
    monkeypatch.setattr(learner.policy, "observe", lambda slots, outputs: heard.append("feedback"))
    learner.rehearse(Budget(3, 4))
    assert modes.count(True) == 1 and heard == [True] * 3
    learner.observe(inputs, labels)
    learner.rehearse(Budget(3, 4), on_step=lambda session: learner.predict(inputs[:1]))  # in eval mode
    assert modes.count(True) == 1 + 3 and heard == [True] * 6
