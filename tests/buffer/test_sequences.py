"""Latents of texts without their padding: the same samples in fewer bytes."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer, rules
from graspcl.buffer.columns import Storage
from graspcl.checks import Array
from graspcl.codec import Codec, Encoded, Half, Identity, codecs
from graspcl.errors import GraspError
from graspcl.learner import column_shapes, learners
from graspcl.model import CosineHead, SplitNetwork, vector_network
from graspcl.policy import Budget
from graspcl.state import load_state, save_state
from graspcl.testing import check_buffer

WIDE, LONG = 4, 8
PADDING = torch.full((WIDE, 1), -4.0)
LINK = 4  # bytes of each location
OVERHEAD = 4 + 8 + 32  # of each text: a start, a length, and the metadata of every sample


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


def check_pool(buffer: Buffer) -> Any:
    """Every row of the pool is the padding, free, or of one text. Return the pool."""
    sequences: Any = buffer._sequences
    used, free = sequences._rows(buffer["code_starts"]), sequences._rows([sequences._head], sequences._free)
    rows = [*used[used > 0].tolist(), *free[0].tolist()]
    assert sorted(rows) == list(range(1, sequences._pool.rows))
    assert np.array_equal(sequences.sizes(buffer["code_starts"]), buffer["lengths"])
    return sequences._pool


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
    for some in ([1, 4], slice(2, 7), 3, -1, np.arange(8) > 5):
        assert np.array_equal(cut["codes"][some], padded["codes"][some])
    assert np.array_equal(cut["codes"], padded["codes"]) and len(cut["codes"]) == 8


def test_no_codec_is_needed() -> None:
    buffer = Buffer(padding=PADDING)
    buffer.insert(texts(LENGTHS), LABELS)
    assert torch.equal(buffer.fetch(np.arange(8))[0], texts(LENGTHS))


@pytest.mark.parametrize(("codec", "each"), [(Half(), 2 * WIDE), (Identity(), 4 * WIDE)])
def test_only_real_tokens_count(codec: Codec, each: int) -> None:
    buffer = Buffer(codec=codec, padding=PADDING)
    assert buffer.nbytes == 0
    buffer.insert(texts(LENGTHS), LABELS)
    assert buffer["lengths"].tolist() == ((each + LINK) * LENGTHS).tolist()
    assert buffer.nbytes == (each + LINK) * LENGTHS.sum() + each + OVERHEAD * 8  # the padding is stored once


def test_a_bound_in_bytes_holds_more_short_texts() -> None:
    def stored(lengths: list[int], **options: Any) -> int:
        buffer = Buffer("4KB", Half(), **options)
        buffer.insert(texts(lengths), np.arange(len(lengths)) % 5)
        assert buffer.nbytes <= 4000
        return len(buffer)

    room = 4000 - 2 * WIDE
    assert stored([8] * 100) == 4000 // (8 * WIDE * 2 + 32) == stored([2] * 100)
    assert stored([2] * 100, padding=PADDING) == room // (2 * (WIDE * 2 + LINK) + OVERHEAD) == 58
    assert stored([6] * 100, padding=PADDING) == room // (6 * (WIDE * 2 + LINK) + OVERHEAD)


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
        check_pool(buffer)


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


def test_evicted_texts_make_room_for_new_ones() -> None:
    buffer, rng = Buffer("20KB", Half(), padding=PADDING), np.random.default_rng(0)
    rows = set()
    for number in range(60):
        buffer.insert(texts(rng.integers(1, LONG + 1, 50), seed=number), rng.integers(4, size=50))
        rows.add(check_pool(buffer).rows)
    most = 20_000 // (2 * WIDE + LINK)
    assert max(rows) <= most + 50 * LONG and len(buffer) > 180  # the bound, and a batch that enters before others go


def test_a_number_of_samples_may_be_the_bound() -> None:
    buffer, rng = Buffer(30, Half(), padding=PADDING), np.random.default_rng(0)
    for number in range(20):
        buffer.insert(texts(rng.integers(0, LONG + 1, 12), seed=number), rng.integers(4, size=12))
        check_pool(buffer)
    buffer.remove([3, 29, 11])
    check_pool(buffer)
    assert len(buffer) == 27
    buffer.clear()
    assert check_pool(buffer).rows - 1 == buffer._sequences._free  # type: ignore[union-attr]


# -- files ------------------------------------------------------------------------------------------------------------


def marked(numbers: Any) -> tuple[torch.Tensor, Array]:
    """A text per number, which is its label, all of its values, and gives its length."""
    numbers = np.asarray(numbers)
    values = torch.from_numpy(numbers).float()[:, None, None].expand(-1, WIDE, LONG)
    return torch.where(
        torch.arange(LONG) < torch.from_numpy(numbers % (LONG + 1))[:, None, None], values, PADDING
    ), numbers


def stored(buffer: Buffer) -> list[tuple[int, int]]:
    """Labels and ids, after a check that every text has its own label."""
    inputs, labels = buffer.fetch(np.arange(len(buffer)))
    assert torch.equal(inputs, marked(labels.numpy())[0])
    check_pool(buffer)
    return sorted(zip(buffer.labels.tolist(), buffer.ids.tolist(), strict=True))


@pytest.mark.parametrize("capacity", [None, 25, "2KB"])
def test_texts_in_files_are_there_again(tmp_path: Path, capacity: Any) -> None:
    buffer, same = (Buffer(capacity, Half(), storage=where, padding=PADDING) for where in (tmp_path, "ram"))
    for begin in range(0, 60, 12):
        for one in (buffer, same):
            one.insert(*marked(np.arange(begin, begin + 12) % 17))
            one.remove([0, 5])
    expected, nbytes = stored(buffer), buffer.nbytes
    assert expected == stored(same) and nbytes == same.nbytes
    buffer.close()
    again = Buffer.open(tmp_path, Half(), padding=PADDING)
    assert stored(again) == expected and (again.nbytes, again.seen) == (nbytes, 60)
    again.insert(*marked(np.arange(30) % 17))
    stored(again)
    restored = Buffer(capacity, Half(), storage=tmp_path / "other", padding=PADDING)
    restored.load_state_dict(same.state_dict())
    del restored
    assert stored(Buffer.open(tmp_path / "other", Half(), padding=PADDING)) == expected


class Killed(BaseException):
    """Ends an insertion as a signal would: what was written to the files until then is there."""


@pytest.mark.parametrize("capacity", [40, "2500B"])
@pytest.mark.parametrize("column", ["code_links", "code_places", "code_starts", "ids", "row_checksums"])
@pytest.mark.parametrize("after", [1, 3, 8])
def test_an_insertion_that_is_cut_short_leaves_whole_texts(
    tmp_path: Path, capacity: Any, column: str, after: int
) -> None:
    def read(storage: Storage, name: str) -> Any:
        count[name] = count.get(name, 0) + 1
        if name == column and count[name] == after:
            raise Killed
        return dict.__getitem__(storage, name)

    count: dict[str, int] = {}
    buffer = Buffer(capacity, Half(), storage=tmp_path, padding=PADDING)
    for number in range(10):
        buffer.insert(*marked((np.arange(9) + 5 * number) % 11))
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Storage, "__getitem__", read, raising=False)
        while True:
            buffer.insert(*marked(np.full(9, 3)))
    del buffer
    gc.collect()
    again = Buffer.open(tmp_path, Half(), padding=PADDING)
    assert 12 <= len(again) <= 40 and not again.compress().size  # what was being replaced is lost, all else is there
    stored(again)
    again.insert(*marked(np.arange(40) % 11))
    stored(again)


def test_damaged_texts_are_left_out(tmp_path: Path) -> None:
    buffer = Buffer(None, Half(), storage=tmp_path, padding=PADDING)
    buffer.insert(*marked(np.arange(1, 16)))
    starts = buffer["code_starts"].copy()
    buffer.close()
    links, places = (np.load(tmp_path / f"{name}.npy", mmap_mode="r+") for name in ("code_links", "code_places"))
    links[starts[3]] = starts[3]  # a circle: the text of 4 locations has no end
    links[starts[5]] = 10**6
    places.view(np.uint16)[starts[9], 2] ^= 1 << 15
    del links, places
    np.load(tmp_path / "lengths.npy", mmap_mode="r+")[7] = 10**9
    again = Buffer.open(tmp_path, Half(), padding=PADDING)
    assert [label for label, _ in stored(again)] == [n for n in range(1, 16) if n not in (4, 6, 10)]


def test_no_two_texts_share_a_location(tmp_path: Path) -> None:
    buffer = Buffer(None, Half(), storage=tmp_path, padding=PADDING)
    buffer.insert(texts([3]).repeat(3, 1, 1), [0, 1, 2])
    buffer.close()
    starts = np.load(tmp_path / "code_starts.npy", mmap_mode="r+")
    starts[2] = starts[0]
    del starts
    again = Buffer.open(tmp_path, Half(), padding=PADDING)
    assert again.labels.tolist() == [0, 1]
    check_pool(again)


def test_folders_are_opened_with_the_same_padding(tmp_path: Path) -> None:
    buffer = Buffer(None, Half(), storage=tmp_path, padding=PADDING)
    buffer.insert(*marked([1, 2]))
    buffer.close()
    for other in (None, PADDING + 1):
        with pytest.raises(GraspError, match=r"was made with padding .*; pass the same"):
            Buffer.open(tmp_path, Half(), padding=other)


def test_texts_are_whole_while_others_come_and_go() -> None:
    buffer = Buffer("2KB", Half(), padding=PADDING)
    buffer.insert(*marked(np.arange(40) % 8))
    wrong, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            inputs, labels = buffer.fetch(np.arange(12))
            if not torch.equal(inputs, marked(labels.numpy())[0]):
                wrong.append(labels)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for number in range(150):
            buffer.insert(*marked((np.arange(10) + number) % 8))
    finally:
        done.set()
        thread.join()
    assert not wrong


# -- states -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["half", "opq"])
@pytest.mark.parametrize("former", [False, True], ids=["cut", "padded by an earlier version"])
def test_states_load(tmp_path: Path, name: str, former: bool) -> None:
    codec = trained(name)
    first = Buffer("4KB", codec, padding=None if former else PADDING)
    first.insert(texts(LENGTHS), LABELS)
    state = first.state_dict()
    save_state(tmp_path / "state", state)
    same = type(codec)(2, 16) if name == "opq" else Half()  # type: ignore[call-arg]
    buffer = Buffer("4KB", same, padding=PADDING)
    buffer.load_state_dict(load_state(tmp_path / "state"))
    expected = Buffer("4KB", codec, padding=PADDING)
    expected.insert(texts(LENGTHS), LABELS)
    for one in (buffer, expected):
        one.insert(texts([3, 1], seed=2), [1, 2])
    assert buffer.nbytes == expected.nbytes and np.array_equal(buffer["codes"], expected["codes"])
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


@pytest.mark.parametrize("name", ["aligned", "derpp", "gdumb", "offline"])
def test_learners_learn_as_from_padded_storage(name: str) -> None:
    assert torch.equal(learned(name, "grasp", None), learned(name, "grasp", PADDING))


# -- what is refused --------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(GraspError, match="stores files, which have no padding; leave out `padding`"):
        Buffer(codec=Encoded(8), padding=PADDING)
    buffer = Buffer(codec=Half(), padding=PADDING)
    with pytest.raises(GraspError, match=r"sequences with 4 numbers per location.* got codes of shape \(3, 8\)"):
        buffer.insert(torch.zeros(2, 3, LONG), [0, 1])
    buffer.insert(texts(LENGTHS), LABELS)
    with pytest.raises(GraspError, match=r"stores codes of shape \(4, 8\), got \(4, 9\)"):
        buffer.insert(torch.zeros(2, WIDE, LONG + 1), [0, 1])
    assert len(buffer) == 8
