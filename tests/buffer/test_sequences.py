"""Latents of texts without their padding: the same samples in fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer, rules
from graspcl.codec import Codec, Encoded, Half, Identity, codecs
from graspcl.errors import GraspError
from graspcl.learner import column_shapes, learners
from graspcl.model import CosineHead, SplitNetwork, vector_network
from graspcl.policy import Budget
from graspcl.state import load_state, save_state
from graspcl.testing import check_buffer

WIDE, LONG = 4, 8
PADDING = torch.full((WIDE, 1), -4.0)
OVERHEAD = 33 + 8 + 8 + 32  # of each text: Python's bytes, a pointer, a length, and the metadata of every sample


def texts(lengths: Any, seed: int = 0) -> torch.Tensor:
    """Latents [n, WIDE, LONG] of texts with these numbers of tokens."""
    latents = torch.randn(len(lengths), WIDE, LONG, generator=torch.Generator().manual_seed(seed))
    return torch.where(torch.arange(LONG) < torch.as_tensor(lengths)[:, None, None], latents, PADDING)


def trained(name: str) -> Codec:
    if name == "opq":
        pytest.importorskip("faiss", reason="needs graspcl[opq]")
    parameters = {"codebooks": 2, "size": 16, "iterations": 2} if name == "opq" else {}
    if name == "auto":
        return codecs.create("auto").choose(trained("opq"))  # type: ignore[attr-defined, no-any-return]
    return codecs.create(name, **parameters).fit(texts(np.arange(100) % LONG, seed=1))


LENGTHS = np.array([1, 8, 3, 0, 5, 8, 2, 2])
LABELS = np.arange(8) % 3


@pytest.mark.parametrize("name", ["identity", "half", "int8", "opq", "auto"])
def test_texts_come_back_bit_by_bit_as_from_padded_storage(name: str) -> None:
    codec = trained(name)
    padded, cut = Buffer(codec=codec), Buffer(codec=codec, padding=PADDING)
    latents = texts(LENGTHS)
    latents[6, :, 0] = -4.0  # padding before a token stays
    for buffer in (padded, cut):
        buffer.insert(latents[:5], LABELS[:5])
        buffer.insert(latents[5:], LABELS[5:])
    slots = [7, 0, 3, 3, 1, 6]
    for one, other in zip(padded.fetch(slots), cut.fetch(slots), strict=True):
        assert torch.equal(one, other) and one.dtype == other.dtype
    some = cut["codes"][[1, 4]]
    assert torch.equal(cut.decode(some), padded.decode(padded["codes"][[1, 4]]))


def test_no_codec_is_needed() -> None:
    buffer = Buffer(padding=PADDING)
    buffer.insert(texts(LENGTHS), LABELS)
    assert torch.equal(buffer.fetch(np.arange(8))[0], texts(LENGTHS))


@pytest.mark.parametrize(("codec", "each"), [(Half(), 2 * WIDE), (Identity(), 4 * WIDE)])
def test_only_real_tokens_count(codec: Codec, each: int) -> None:
    buffer = Buffer(codec=codec, padding=PADDING)
    assert buffer.nbytes == 0
    buffer.insert(texts(LENGTHS), LABELS)
    assert buffer.nbytes == each * (LENGTHS.sum() + 1) + OVERHEAD * 8  # the padding's code is stored once
    assert [len(code) for code in buffer["codes"]] == (each * LENGTHS).tolist()


def test_a_bound_in_bytes_holds_more_short_texts() -> None:
    def stored(lengths: list[int], **options: Any) -> int:
        buffer = Buffer("4KB", Half(), **options)
        buffer.insert(texts(lengths), np.arange(len(lengths)) % 5)
        assert buffer.nbytes <= 4000
        return len(buffer)

    room = 4000 - 2 * WIDE
    assert stored([2] * 100, padding=PADDING) == room // (2 * WIDE * 2 + OVERHEAD) == 41
    assert stored([6] * 100, padding=PADDING) == room // (6 * WIDE * 2 + OVERHEAD)


@pytest.mark.parametrize("rule", rules.names())
def test_every_rule_keeps_the_bound_and_the_right_texts(rule: str) -> None:
    made = rules.create(rule, **({"per_class": 2} if rule == "ring" else {}))
    columns = column_shapes(made, vector_network(4, embedding=3, generator=torch.Generator()))
    buffer = Buffer("2KB", Half(), made, columns, padding=PADDING)
    rng, seen = np.random.default_rng(0), torch.empty(0, WIDE, LONG)
    for number in range(4):
        latents, ids = texts(rng.integers(1, LONG + 1, 20), seed=number).half().float(), 20 * number + np.arange(20)
        values = {name: rng.random((20, *shape)).astype(np.float32) for name, (shape, _) in columns.items()}
        given = {name: value for name, value in values.items() if name not in made.fills}
        placed = buffer.insert(latents, np.arange(20) % 4, ids, given)
        seen, kept = torch.cat([seen, latents]), placed.slots >= 0
        assert 0 < buffer.nbytes <= 2000
        assert np.array_equal(buffer.ids[placed.slots[kept]], ids[kept])
        assert torch.equal(buffer.fetch(np.arange(len(buffer)))[0], seen[buffer.ids])
        referenced = [code for code in buffer._storage["codes"] if code]
        assert sum(map(len, referenced)) + 33 * len(buffer) == buffer["lengths"].sum()  # nothing else is in memory


@pytest.mark.parametrize("capacity", [30, None, "3KB"])
def test_the_buffer_keeps_its_contract(capacity: Any) -> None:
    check_buffer(lambda: Buffer(capacity, Identity(), padding=torch.full((4, 1), -4.0)), shape=(4, 2))


def test_overflow_is_brought_back_by_compress() -> None:
    buffer = Buffer("1KB", Half(), padding=PADDING)
    buffer.insert(texts([4] * 20), np.arange(20) % 2, overflow=True)
    assert len(buffer) == 20 and buffer.nbytes > 1000
    gone = buffer.compress()
    assert len(gone) + len(buffer) == 20 and buffer.nbytes <= 1000
    assert torch.equal(buffer.fetch(np.arange(len(buffer)))[0], texts([4] * 20)[buffer.ids].half().float())


# -- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["half", "opq"])
@pytest.mark.parametrize("former", [False, True], ids=["cut", "padded by an earlier version"])
def test_states_load(tmp_path: Path, name: str, former: bool) -> None:
    codec = trained(name)
    first = Buffer("4KB", codec, padding=None if former else PADDING)
    first.insert(texts(LENGTHS), LABELS)
    state = first.state_dict()
    if former:
        del state["padding"]
    save_state(tmp_path / "state", state)
    same = type(codec)(2, 16) if name == "opq" else Half()  # type: ignore[call-arg]
    buffer = Buffer("4KB", same, padding=PADDING)
    buffer.load_state_dict(load_state(tmp_path / "state"))
    expected = Buffer("4KB", codec, padding=PADDING)
    expected.insert(texts(LENGTHS), LABELS)
    for one in (buffer, expected):
        one.insert(texts([3, 1], seed=2), [1, 2])
    assert buffer.nbytes == expected.nbytes and buffer["codes"].tolist() == expected["codes"].tolist()
    assert torch.equal(buffer.fetch(np.arange(10))[0], expected.fetch(np.arange(10))[0])


def test_a_state_without_padding_is_refused_by_a_buffer_that_pads() -> None:
    cut, padded = Buffer(codec=Half(), padding=PADDING), Buffer(codec=Half())
    cut.insert(texts(LENGTHS), LABELS)
    padded.insert(texts([1]), [0])
    with pytest.raises(GraspError, match="differ in columns: lengths"):
        padded.load_state_dict(cut.state_dict())
    assert len(padded) == 1


# -- learners and policies --------------------------------------------------------------------------------------------


def learned(name: str, policy: str, padding: torch.Tensor | None) -> torch.Tensor:
    """Logits of a learner that has seen two batches of texts and rehearsed after each of them."""
    generator = torch.Generator().manual_seed(0)
    plastic = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(WIDE * LONG, 6))
    for weights in plastic.parameters():
        torch.nn.init.normal_(weights, generator=generator)
    network = SplitNetwork(torch.nn.Identity(), plastic, CosineHead(6, 0, generator=generator))
    kind = learners.get(name)
    buffer = Buffer(None if kind.unbounded else 20, Half(), columns=kind.columns(3), padding=padding)
    learner = learners.create(name, network=network, buffer=buffer, policy=policy)
    for seed in range(2):
        learner.observe(texts(np.arange(16) % LONG + 1, seed), np.arange(16) % 3)
        learner.rehearse(Budget(updates=2, batch_size=8))
    return torch.cat(
        [learner.logits(texts(LENGTHS, seed=9)), learner.outputs(learner.encode(texts(LENGTHS)), "logits")]
    )


@pytest.mark.parametrize("policy", ["grasp", "grad_matching", "gss", "mir", "rainbow"])
def test_policies_choose_as_from_padded_storage(policy: str) -> None:
    assert torch.equal(learned("siesta", policy, None), learned("siesta", policy, PADDING))


@pytest.mark.parametrize("name", ["aligned", "derpp", "gdumb", "offline", "probe"])
def test_learners_learn_as_from_padded_storage(name: str) -> None:
    assert torch.equal(learned(name, "grasp", None), learned(name, "grasp", PADDING))


# -- what is refused --------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraspError, match="cannot be memory-mapped: use storage='ram'"):
        Buffer(codec=Half(), padding=PADDING, storage=tmp_path)
    with pytest.raises(GraspError, match="stores files, which have no padding; leave out `padding`"):
        Buffer(codec=Encoded(8), padding=PADDING)
    buffer = Buffer(codec=Half(), padding=PADDING)
    with pytest.raises(GraspError, match=r"sequences with 4 numbers per location.* got codes of shape \(3, 8\)"):
        buffer.insert(torch.zeros(2, 3, LONG), [0, 1])
    buffer.insert(texts(LENGTHS), LABELS)
    with pytest.raises(GraspError, match=r"stores codes of shape \(4, 8\), got \(4, 9\)"):
        buffer.insert(torch.zeros(2, WIDE, LONG + 1), [0, 1])
    assert len(buffer) == 8
