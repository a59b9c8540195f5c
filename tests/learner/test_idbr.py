"""IDBR: what it keeps of a task, its regularisation, and the contract of every learner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from graspcl.buffer import Buffer
from graspcl.codec import Half
from graspcl.errors import GraspError
from graspcl.learner import Batch, Idbr, Optimiser, Rehearsal
from graspcl.learner.idbr import swap_halves
from graspcl.model import LinearHead, SplitNetwork, transformer_network, vector_network, veridical
from graspcl.policy import Budget
from graspcl.state import load_state, save_state
from graspcl.testing import check_learner


def clusters(classes: int = 5, per_class: int = 20, dim: int = 12) -> tuple[torch.Tensor, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), per_class)
    x = rng.normal(size=(classes, dim))[labels] + 0.6 * rng.normal(size=(len(labels), dim))
    return torch.from_numpy(x).float(), labels


def vectors(dropout: float = 0.1, classes: int = 0) -> SplitNetwork:
    generator = torch.Generator().manual_seed(0)
    return vector_network(12, hidden=32, embedding=16, classes=classes, dropout=dropout, generator=generator)


def make(
    policy: str = "uniform", capacity: int | None = None, network: SplitNetwork | None = None, **parameters: Any
) -> Idbr:
    buffer = Buffer(capacity, Half(), columns=Idbr.columns(12, **parameters))
    return Idbr(network or vectors(), buffer, policy, Optimiser(lr=0.05), **parameters)


KINDS = pytest.mark.parametrize("parameters", [{}, {"regularised": True}], ids=["plain", "regularised"])


@KINDS
@pytest.mark.parametrize("policy", ["grasp", "mir", "min_rehearsal"])
def test_contract(parameters: dict[str, Any], policy: str) -> None:
    check_learner(lambda: make(policy, 40, **parameters), clusters()[0])


@KINDS
def test_a_session_stopped_in_its_middle_goes_on_from_disk_to_the_same_bytes(
    tmp_path: Path, parameters: dict[str, Any]
) -> None:
    inputs, labels = clusters()
    straight, stopped, restored = (make("grasp", 60, **parameters) for _ in range(3))
    for one in (straight, stopped):
        one.observe(inputs[labels < 3], labels[labels < 3])
        one.rehearse(Budget(20, 8))
        one.observe(inputs[labels >= 3], labels[labels >= 3])
    expected = straight.rehearse(Budget(20, 8))
    session = Rehearsal(stopped, Budget(20, 8))
    for _ in range(7):
        session.step()
    save_state(tmp_path / "state", {"learner": stopped.state_dict(), "session": session.state_dict()})
    state = load_state(tmp_path / "state")
    restored.load_state_dict(state["learner"])
    rest = Rehearsal(restored, Budget(20, 8), state["session"])
    while not rest.done:
        rest.step()
    log = rest.finish()
    assert np.array_equal(log.losses, expected.losses)
    assert log.costs.training_forward == expected.costs.training_forward
    save_state(tmp_path / "straight", straight.state_dict())
    save_state(tmp_path / "restored", restored.state_dict())
    assert (tmp_path / "straight").read_bytes() == (tmp_path / "restored").read_bytes()


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_half_of_each_task_stays_and_what_stayed_stays() -> None:
    inputs, labels = clusters()
    learner = make()
    learner.observe(inputs[labels < 3], labels[labels < 3])
    log = learner.rehearse(Budget(10, 8))
    assert log.stored == 60 and len(learner.buffer) == 30
    first = set(learner.buffer.ids.tolist())
    learner.observe(inputs[labels >= 3][:25], labels[labels >= 3][:25])
    assert learner.rehearse(Budget(10, 8)).stored == 55
    assert len(learner.buffer) == 30 + 13 and first <= set(learner.buffer.ids.tolist())
    for slot, sample in enumerate(learner.buffer.ids):  # columns and codes moved along
        assert learner.buffer.labels[slot] == labels[sample]
        assert torch.equal(learner.buffer.fetch([slot])[0][0], inputs[sample].half().float())


@pytest.mark.parametrize(("ratio", "kept"), [(0, 0), (0.07, 7), (0.5, 50), (0.501, 51), (1.0, 100)])
def test_the_share_that_stays(ratio: float, kept: int) -> None:
    inputs, labels = clusters()
    learner = make(store_ratio=ratio)
    learner.observe(inputs, labels)
    learner.rehearse(Budget(1, 8))
    assert len(learner.buffer) == kept


def test_every_sample_is_as_likely_to_stay() -> None:
    """Over 300 seeds each of 20 samples stays in half of them, within four standard deviations."""
    inputs, labels = clusters(per_class=4)
    network, counts = vectors(), np.zeros(20)
    for seed in range(300):
        learner = Idbr(network, Buffer(), "uniform", rng=seed)
        learner.observe(inputs, labels)
        learner.rehearse(Budget(0, 8))
        counts[learner.buffer.ids] += 1
    assert counts.sum() == 3000 and np.abs(counts - 150).max() < 4 * np.sqrt(300 / 4)


def test_what_stays_does_not_depend_on_the_policy() -> None:
    inputs, labels = clusters()
    kept = []
    for policy in ("uniform", "uniform_balanced", "clib"):
        learner = make(policy)
        for part in (labels < 3, labels >= 3):
            learner.observe(inputs[part], labels[part])
            learner.rehearse(Budget(3, 8))
        kept.append(sorted(learner.buffer.births.tolist()))
    assert kept[0] == kept[1] == kept[2]


def test_the_state_of_an_earlier_version_is_loaded() -> None:
    """It has no generator for what stays, so the learner uses its own."""
    inputs, labels = clusters()
    first = make()
    first.observe(inputs, labels)
    state = first.state_dict()
    del state["storing"]
    ids = []
    for _ in range(2):
        other = make()
        other.load_state_dict(state)
        other.rehearse(Budget(2, 8))
        ids.append(other.buffer.ids.tolist())
    first.rehearse(Budget(2, 8))
    assert ids == [first.buffer.ids.tolist()] * 2  # all were made with the same seed


def test_a_capacity_bounds_what_stays_and_the_largest_class_makes_room() -> None:
    inputs, labels = clusters()
    order = np.concatenate([np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)[:8]])
    learner = make(capacity=10, store_ratio=1.0)
    learner.observe(inputs[order], labels[order])
    assert len(learner.buffer) == 28  # until the session ends
    learner.rehearse(Budget(2, 8))
    assert learner.buffer.sizes.tolist() == [5, 5]


def test_plain_loss_is_cross_entropy() -> None:
    inputs, labels = clusters()
    learner = make(network=vectors(dropout=0.0))
    learner.observe(inputs, labels)
    session = Rehearsal(learner, Budget(2, 8))
    session.step()
    batch = batch_of(learner, np.arange(5))
    assert torch.equal(learner.loss(batch), batch.cross_entropies.mean())
    assert session.finish().costs.training_forward == 8


# -- regularisation ----------------------------------------------------------------------------------------------------


def batch_of(learner: Idbr, slots: np.ndarray[Any, Any]) -> Batch:
    inputs, labels = learner.buffer.fetch(slots)
    new = torch.from_numpy(learner.buffer.new[slots])
    return Batch(inputs, learner.rows(labels), slots, learner.network(inputs), new)


def regularised() -> tuple[Idbr, Rehearsal]:
    """In its second session, after three updates; 30 old samples of classes 0-2 and 40 new ones of 3 and 4."""
    inputs, labels = clusters()
    learner = make(network=vectors(dropout=0.0), regularised=True)
    learner.observe(inputs[labels < 3], labels[labels < 3])
    learner.rehearse(Budget(20, 8))
    learner.observe(inputs[labels >= 3], labels[labels >= 3])
    session = Rehearsal(learner, Budget(10, 8))
    return learner, session


def terms(learner: Idbr, batch: Batch) -> dict[str, torch.Tensor]:
    """The terms of the loss, from the weights alone."""
    network, spaces = learner.network, learner.network.neck[-1]  # type: ignore[index]
    inputs = torch.cat([batch.inputs, swap_halves(batch.inputs)])
    seen = network.neck[0](network.plastic(inputs))  # type: ignore[index]
    general, specific = spaces.general(seen).tanh(), spaces.specific(seen).tanh()
    logits = F.linear(torch.cat([general, specific], 1), network.head.weight, network.head.bias)
    n = len(batch.targets)
    task = torch.from_numpy(learner.tasks * learner.buffer.new[batch.slots])
    return {
        "class": F.cross_entropy(logits, batch.targets.repeat(2)),
        "order": F.cross_entropy(spaces.order(general), torch.tensor([0] * n + [1] * n)),
        "task": F.cross_entropy(F.linear(specific, spaces.task.weight, spaces.task.bias), task.repeat(2)),
        "general": general[:n],
        "specific": specific[:n],
    }


def test_the_loss_is_the_sum_of_its_terms() -> None:
    learner, session = regularised()
    then = {name: value.detach() for name, value in terms(learner, batch_of(learner, np.arange(70))).items()}
    for _ in range(3):
        session.step()
    for slots, new in ((np.array([2, 25, 41, 69]), False), (np.array([30, 55, 69]), True)):
        batch = batch_of(learner, slots)
        parts = terms(learner, batch)
        held = 0.5 * F.mse_loss(parts["general"], then["general"][slots])
        held = held + 0.5 * F.mse_loss(parts["specific"], then["specific"][slots])
        assert held > 0
        expected = parts["class"] + parts["order"] + (0.5 * held if new else 5.0 * held + parts["task"])
        torch.testing.assert_close(learner.loss(batch), expected)


def test_in_the_first_task_nothing_is_held_and_no_task_told() -> None:
    inputs, labels = clusters()
    learner = make(network=vectors(dropout=0.0), regularised=True)
    learner.observe(inputs, labels)
    Rehearsal(learner, Budget(2, 8)).step()
    batch = batch_of(learner, np.arange(5))
    parts = terms(learner, batch)
    torch.testing.assert_close(learner.loss(batch), parts["class"] + parts["order"])


def test_all_sub_networks_learn() -> None:
    learner, session = regularised()
    before = {name: value.clone() for name, value in learner.network.state_dict().items()}
    for _ in range(5):
        session.step()
    after = learner.network.state_dict()
    for part in ("general", "specific", "order", "task"):
        assert not torch.equal(before[f"neck.1.{part}.weight"], after[f"neck.1.{part}.weight"]), part


def test_tasks_are_counted_in_sessions() -> None:
    learner, session = regularised()
    assert learner.buffer["task"].tolist() == [0] * 30 + [1] * 40
    while not session.done:
        session.step()
    assert learner._spaces.task.classes == 2
    session.finish()
    assert sorted(learner.buffer["task"].tolist()) == [0] * 30 + [1] * 20 and learner.tasks == 2


def test_passes_beside_the_budget_are_booked() -> None:
    _, session = regularised()
    while not session.done:
        session.step()
    costs = session.finish().costs
    assert costs.training_forward == 80 + 80 + 70 and costs.training_backward == 80 + 80


def test_features_are_held_more_firmly_than_without() -> None:
    """How far old samples' features moved in a session, as a share of their size."""
    moved = {}
    for hold in (True, False):
        learner, session = regularised()
        then = learner.outputs(learner.buffer["codes"][:30], "features")
        if not hold:
            learner.loss = lambda batch: batch.cross_entropies.mean()  # type: ignore[method-assign]
        while not session.done:
            session.step()
        moved[hold] = float((learner.outputs(learner.buffer["codes"][:30], "features") - then).norm() / then.norm())
    assert moved[True] < moved[False]


def test_the_network_gets_its_spaces_and_a_linear_head() -> None:
    network = vectors(classes=3)
    before = torch.get_rng_state()
    learner = make(network=network, regularised=True)
    assert torch.equal(before, torch.get_rng_state())
    assert isinstance(learner.network.head, LinearHead) and learner.network.head.features == 256
    assert learner.network.head.classes == 3 and learner.classes == [0, 1, 2]
    assert learner.outputs(torch.zeros(2, 12), "embedding").shape == (2, 16)  # what GRASP's distances are taken of


def test_mistakes_are_explained() -> None:
    with pytest.raises(GraspError, match=r"Idbr\.columns"):
        Idbr(vectors(), Buffer(), regularised=True)
    with pytest.raises(GraspError, match=r"store_ratio must be a number in \[0, 1\], got 1\.5"):
        make(store_ratio=1.5)
    with pytest.raises(GraspError, match="store_ratio must be a number"):
        make(store_ratio="half")
    with pytest.raises(GraspError, match="regularised must be true or false"):
        make(regularised="yes")


# -- swapped halves ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 9), st.integers(0, 5), st.integers(0, 2**32 - 1))
def test_halves_change_places_and_nothing_else_moves(tokens: int, padding: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    content = rng.integers(1, 4, tokens)
    content[-1] = 9  # what ends a sequence is not what pads it
    sequence = np.concatenate([[7], content, np.zeros(padding, np.int64)])
    moving = content if padding else content[:-1]  # without padding the last token stays
    half = len(moving) // 2
    expected = np.concatenate([[7], moving[half:], moving[:half], sequence[1 + len(moving) :]])
    found = swap_halves(torch.from_numpy(sequence)[None])
    assert found.tolist() == [expected.tolist()]
    of_vectors = torch.from_numpy(sequence)[None, None] * torch.tensor([1.0, -2.0])[None, :, None]
    assert torch.equal(swap_halves(of_vectors)[0, 0], found[0].float())
    assert torch.equal(swap_halves(of_vectors)[0, 1], found[0] * -2.0)


def test_latents_are_swapped_as_their_texts_are(tmp_path: Path) -> None:
    """Latents of embeddings without positions: swapping before and after the frozen part is the same."""
    network = text_network(tmp_path, frozen_layers=0)
    network.frozen.embeddings.position_embeddings.weight.data.zero_()  # type: ignore[union-attr,operator]
    ids = texts()
    torch.testing.assert_close(swap_halves(network.encode(ids)), network.encode(swap_halves(ids)))


# -- texts -------------------------------------------------------------------------------------------------------------


def text_network(folder: Path, frozen_layers: int = 1) -> SplitNetwork:
    transformers = pytest.importorskip("transformers", reason="needs graspcl[text]: transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.BertConfig(**sizes, vocab_size=50, max_position_embeddings=12)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        transformers.utils.logging.disable_progress_bar()
        transformers.BertModel(config).save_pretrained(folder)
    return transformer_network(folder, frozen_layers, generator=torch.Generator().manual_seed(0), max_tokens=12)


def texts(n: int = 40) -> torch.Tensor:
    """Token ids [n, 12] of texts of different lengths; the second token tells four classes apart."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(10, 50, (n, 12), generator=generator, dtype=torch.int32)
    lengths = torch.randint(3, 13, (n, 1), generator=generator)
    ids[:, 0], ids[:, 1] = 2, 4 + torch.arange(n, dtype=torch.int32) % 4
    return ids.masked_fill(torch.arange(12) >= lengths, 0)


@KINDS
@pytest.mark.parametrize("raw", [False, True], ids=["latents", "texts"])
def test_it_learns_texts_task_by_task(tmp_path: Path, parameters: dict[str, Any], raw: bool) -> None:
    network = text_network(tmp_path)
    network = veridical(network, unfreeze=True) if raw else network
    buffer = Buffer(codec=None if raw else Half(), columns=Idbr.columns(4, **parameters))
    learner = Idbr(network, buffer, "grasp", Optimiser("adamw", lr=2e-3, schedule="constant"), **parameters)
    inputs, labels = texts(160), np.arange(160) % 4
    for part in (labels < 2, labels >= 2):
        learner.observe(inputs[torch.from_numpy(part)], labels[part])
        learner.rehearse(Budget(40, 8))
    assert (learner.predict(inputs) == labels).mean() > 0.9


@KINDS
def test_contract_with_texts(tmp_path: Path, parameters: dict[str, Any]) -> None:
    text_network(tmp_path)

    def learner() -> Idbr:
        network = transformer_network(tmp_path, 1, generator=torch.Generator().manual_seed(0), max_tokens=12)
        return make("grasp", 30, network, **parameters)

    check_learner(learner, texts())


def test_a_buffer_forgets_the_samples_it_is_told_to() -> None:
    buffer = Buffer(capacity=8, maintenance="fifo", columns={"loss": ((), np.float32)})
    buffer.insert(np.eye(6, dtype=np.float32), [0, 1, 0, 1, 2, 2], columns={"loss": np.arange(6)})
    buffer.remove([4, 0, 4])
    buffer.remove([])
    assert sorted(buffer.ids.tolist()) == [1, 2, 3, 5] == sorted(buffer["loss"].tolist())
    assert buffer.classes.tolist() == [0, 1, 2] and buffer.sizes.tolist() == [1, 2, 1]
    for slot, sample in enumerate(buffer.ids):
        assert buffer.fetch([slot])[0].argmax() == sample and slot in buffer.slots_of(buffer.labels[slot])
    for slots in ([4], [-1, 0]):
        with pytest.raises(GraspError, match=r"slots must be in 0 … 3, got .*; nothing was removed"):
            buffer.remove(slots)
    buffer.insert(np.eye(6, dtype=np.float32), [0] * 6, ids=np.arange(10, 16))
    assert sorted(buffer.ids.tolist()) == [3, 5, 10, 11, 12, 13, 14, 15]  # first in, first out, of what was left
