"""What is stored and what it costs, in memory and in memory-mapped files."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer, FifoRule, LargestClassRule, Maintenance, ReservoirRule, RingRule
from graspcl.buffer.capacity import METADATA_BYTES, parse_bytes
from graspcl.codec import OPQ
from graspcl.errors import GraspError
from graspcl.random import generator
from graspcl.testing.common import seeded

Place = Callable[[], str | Path]
RULES: list[Callable[[], Maintenance]] = [LargestClassRule, ReservoirRule, FifoRule, lambda: RingRule(per_class=5)]
NAMES = ["largest_class", "reservoir", "fifo", "ring"]
COLUMNS = {"loss": ((), np.float32), "margin": ((2,), np.float64)}


@pytest.fixture(params=["ram", "mmap"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A new place to store a buffer, each time it is called: memory, or a folder of its own."""
    folders = (tmp_path / f"buffer{i}" for i in count())
    return lambda: "ram" if request.param == "ram" else next(folders)


def fill(buffer: Buffer, rng: np.random.Generator, batches: int, classes: int = 4, **options: Any) -> None:
    """Batches whose inputs and columns follow from the ids."""
    for _ in range(batches):
        ids = np.arange(buffer.seen, buffer.seen + int(rng.integers(1, 30)))
        buffer.insert(
            inputs_of(ids), rng.integers(classes, size=len(ids)), ids,
            {"loss": ids / 2, "margin": np.stack([ids, -ids], 1)}, **options,
        )  # fmt: skip


def inputs_of(ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.stack([ids, ids**2 % 97, -ids], 1).astype(np.float32)


def assert_tied_to_ids(buffer: Buffer) -> None:
    ids = buffer.ids
    assert torch.equal(buffer.fetch(np.arange(len(buffer)))[0], torch.from_numpy(inputs_of(ids)))
    assert buffer["loss"].tolist() == (ids / 2).tolist()
    assert buffer["margin"].tolist() == np.stack([ids, -ids], 1).tolist()
    assert buffer.births.tolist() == ids.tolist()


# -- storage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_memory_and_files_hold_the_same(rule: Callable[[], Maintenance], tmp_path: Path) -> None:
    states = []
    for storage in ("ram", tmp_path):
        buffer = Buffer(40, maintenance=rule(), columns=COLUMNS, storage=storage)
        fill(buffer, generator(0, "stream"), 12)
        states.append(buffer.state_dict())
    assert_same(*states)


def assert_same(a: Any, b: Any) -> None:
    """Equal dictionaries of arrays, numbers and strings, of the same types."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and np.array_equal(a, b)
    else:
        assert a == b


def test_files_are_plain_npy_that_numpy_reads(tmp_path: Path) -> None:
    buffer = Buffer(5, storage=tmp_path)
    buffer.insert(np.arange(8, dtype=np.float32).reshape(4, 2), [3, 1, 3, 0])
    buffer["labels"].base.flush()
    columns = ["births.npy", "codes.npy", "ids.npy", "labels.npy", "row_checksums.npy"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([".lock", "buffer.json", "counts.npy", *columns])
    assert np.load(tmp_path / "codes.npy")[:4].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert np.load(tmp_path / "labels.npy").tolist() == [3, 1, 3, 0, 0]


def test_a_folder_that_holds_arrays_is_not_overwritten(tmp_path: Path) -> None:
    first = Buffer(storage=tmp_path)
    first.insert(np.ones((50, 3), np.float32), np.zeros(50, int))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(GraspError, match="already holds arrays; give the buffer an empty folder"):
        Buffer(storage=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_inputs_of_any_kind_are_stored_in_their_own_type(storage: Place) -> None:
    kinds: list[Any] = [
        np.arange(6, dtype=np.uint8).reshape(3, 2),
        np.arange(6.0).reshape(3, 2)[::-1],
        np.broadcast_to(np.float32(2), (3, 2)),
        torch.arange(6).reshape(3, 2),
        torch.arange(6.0).reshape(2, 3).T,
        torch.ones(3, 2, dtype=torch.float16),
        torch.ones(3),
        [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
    ]
    for inputs in kinds:
        buffer = Buffer(4, storage=storage())
        buffer.insert(inputs, torch.tensor([0, 1, 2]))
        expected = torch.as_tensor(inputs.copy() if isinstance(inputs, np.ndarray) else inputs)
        got = buffer.fetch(torch.tensor([2, 0]))[0]
        assert torch.equal(got, expected[[2, 0]])
        assert got.dtype == expected.dtype


def test_what_was_fetched_stays_when_its_slot_is_overwritten(storage: Place) -> None:
    buffer = Buffer(1, maintenance=FifoRule(), storage=storage())
    buffer.insert(np.ones((1, 2), np.float32), [0])
    inputs, _ = buffer.fetch([0])
    buffer.insert(np.zeros((1, 2), np.float32), [0])
    assert inputs.tolist() == [[1, 1]]


def test_columns_default_to_zero_and_can_be_written(storage: Place) -> None:
    buffer = Buffer(10, columns=COLUMNS, storage=storage())
    assert buffer["margin"].shape == (0, 2) and buffer["labels"].dtype == buffer.labels.dtype == np.int32
    buffer.insert(np.zeros((3, 2)), [0, 0, 1], columns={"loss": torch.tensor([1.0, 2.0, 3.0])})
    assert buffer["loss"].tolist() == [1, 2, 3] and not buffer["margin"].any()
    buffer["loss"][buffer.slots_of(0)] = 9
    assert buffer["loss"].tolist() == [9, 9, 3]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_columns_move_along_with_their_samples(rule: Callable[[], Maintenance], storage: Place) -> None:
    buffer = Buffer(25, maintenance=rule(), columns=COLUMNS, storage=storage())
    rng = generator(1, "stream")
    for _ in range(3):
        fill(buffer, rng, 4)
        assert_tied_to_ids(buffer)
        fill(buffer, rng, 4, overflow=True)
        assert len(buffer) > 25
        assert_tied_to_ids(buffer)
        gone = buffer.compress()
        assert len(gone) and len(buffer) <= 25
        assert_tied_to_ids(buffer)
    assert not len(buffer.compress()), "there is nothing left to compress"


# -- capacity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [("1.5GB", 1_500_000_000), ("200 mb", 200_000_000), ("512MiB", 2**29), (".5KB", 500), ("1.001KB", 1001), ("7B", 7)],
)
def test_sizes(text: str, number: int) -> None:
    assert parse_bytes(text) == number


@pytest.mark.parametrize("capacity", ["lots", "1.5", "GB", "-1GB", "1.5 parsecs", "1e3MB", 0, -5, 2.5, True, [3]])
def test_a_bad_capacity_is_refused_at_once(capacity: Any) -> None:
    with pytest.raises(
        GraspError, match=r"is not a size; write a number and a unit|must be a positive number of samples"
    ):
        Buffer(capacity)


def test_too_few_bytes_for_a_sample_are_refused_with_the_number_needed() -> None:
    buffer = Buffer("100B")
    with pytest.raises(GraspError, match="a buffer of 100B holds no sample: one needs 112 bytes with its codec"):
        buffer.insert(np.zeros((1, 10), np.float64), [0])
    assert len(buffer) == 0
    buffer.insert(np.zeros((1, 10), np.float32), [0])
    assert buffer.capacity == 1


def test_bytes_pay_for_codes_columns_metadata_and_codec() -> None:
    latents = torch.randn(300, 16, generator=seeded())
    codec = OPQ(codebooks=4, size=16, iterations=2).fit(latents)
    buffer = Buffer("4KB", codec=codec, columns=COLUMNS)
    assert buffer.capacity is None and buffer.nbytes == codec.nbytes == 16 * 16 * 4 + 16 * 16 * 4
    buffer.insert(latents, np.zeros(300, np.int64))
    per_sample = 4 + 4 + 16 + METADATA_BYTES
    assert len(buffer) == buffer.capacity == (4000 - codec.nbytes) // per_sample
    assert buffer.nbytes == codec.nbytes + len(buffer) * per_sample <= 4000


def test_no_capacity_keeps_everything(storage: Place) -> None:
    buffer = Buffer(None, columns=COLUMNS, storage=storage())
    fill(buffer, generator(2, "stream"), 60)
    assert buffer.ids.tolist() == list(range(buffer.seen))
    assert_tied_to_ids(buffer)


@pytest.mark.parametrize("rule", ["largest_class", "reservoir", "fifo", "ring"])
@pytest.mark.parametrize("arrival", ["mixed", "by class"])
@pytest.mark.parametrize("classes", [2, 30, 500])
def test_metadata_takes_no_more_bytes_than_it_is_charged(rule: str, arrival: str, classes: int) -> None:
    """Real bytes of all arrays, also after classes that were once as large as the whole buffer.

    The allowance is for two and more classes, of twenty and more samples on average.
    """
    number, rng = 10_000, np.random.default_rng(0)
    maintenance = RingRule(per_class=number // classes) if rule == "ring" else rule
    buffer = Buffer(number, maintenance=maintenance, columns={"loss": ((), np.float32)})
    labels = np.repeat(np.arange(classes), 3 * number // classes)
    if arrival == "mixed":
        rng.shuffle(labels)
    for batch in np.array_split(labels, 3 * number // 100):
        buffer.insert_codes(np.zeros((len(batch), 3), np.uint8), batch)
    if rule == "fifo" and arrival == "by class" and classes == 2:
        assert len(buffer.classes) == 1  # all that is left is of the last class; the bound is for two and more
        return
    arrays = [*(buffer._storage[name] for name in buffer._storage), *vars(buffer.maintenance).values()]
    real = sum(a.nbytes for a in arrays if isinstance(a, np.ndarray)) + buffer.index.nbytes
    assert len(buffer) > 0.95 * number
    assert real <= buffer.nbytes
    assert buffer.nbytes == len(buffer) * (3 + 4 + 32)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.uint8, np.int64, bool])
def test_arrays_and_tensors_are_stored_alike(dtype: Any) -> None:
    """Also if their sum is too large for their type, or they lie in memory backwards."""
    given = (np.arange(12).reshape(4, 3) % 5).astype(dtype)
    if given.dtype.kind == "f":
        given[1:3] = np.finfo(dtype).max
    tensor = torch.from_numpy(given)
    variants = [given, tensor, given[::-1].copy()[::-1], tensor.T.contiguous().T]
    if given.dtype.kind == "f":
        variants.append(tensor.clone().requires_grad_())
    for variant in variants:
        buffer = Buffer()
        buffer.insert(variant, [0, 1, 0, 1])
        assert np.array_equal(buffer["codes"], given) and buffer["codes"].dtype == given.dtype


# -- state -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overflow", [False, True], ids=["online", "overfull"])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_restored_buffer_goes_on_bit_for_bit(rule: Callable[[], Maintenance], storage: Place, overflow: bool) -> None:
    def make(rng: int) -> Buffer:
        return Buffer(25, maintenance=rule(), columns=COLUMNS, storage=storage(), rng=rng)

    buffer, stream = make(5), generator(3, "stream")
    fill(buffer, stream, 6)
    fill(buffer, stream, 3, overflow=overflow)
    state, at = buffer.state_dict(), stream.bit_generator.state
    restored = make(99)
    fill(restored, generator(4, "stream"), 4)  # what it held before is forgotten
    for twin in (buffer, restored):
        if twin is restored:
            restored.load_state_dict(state)
            stream.bit_generator.state = at
        twin.compress()
        fill(twin, stream, 10)
        fill(twin, stream, 2, overflow=True)
        twin.compress()
        fill(twin, stream, 3)
    assert_same(buffer.state_dict(), restored.state_dict())
    assert_tied_to_ids(restored)


def test_states_of_memory_and_files_are_interchangeable(tmp_path: Path) -> None:
    ram, files = Buffer(20, columns=COLUMNS), Buffer(20, columns=COLUMNS, storage=tmp_path, rng=1)
    fill(ram, generator(5, "stream"), 8)
    files.load_state_dict(ram.state_dict())
    for buffer in (ram, files):
        fill(buffer, generator(6, "stream"), 8)
    assert_same(ram.state_dict(), files.state_dict())


def test_an_empty_buffer_has_a_state_too() -> None:
    empty, other = Buffer("1KB", columns=COLUMNS, rng=8), Buffer("1KB", columns=COLUMNS)
    other.load_state_dict(empty.state_dict())
    for buffer in (empty, other):
        fill(buffer, generator(7, "stream"), 5)
    assert_same(empty.state_dict(), other.state_dict())


def test_an_unbounded_buffer_grows_without_a_copy_of_its_codes():
    buffer, codes = Buffer(), (np.arange(1 << 20) % 251).astype(np.uint8).reshape(1024, 1024)
    Buffer().insert_codes(codes, np.zeros(1024, int))  # loads compiled code
    tracemalloc.start()
    try:
        most = 0
        for _ in range(12):
            tracemalloc.reset_peak()
            buffer.insert_codes(codes, np.zeros(1024, int))
            most = max(most, tracemalloc.get_traced_memory()[1] - len(buffer) * 1024)
    finally:
        tracemalloc.stop()
    assert most < 3 * codes.nbytes  # a copy would be eleven times as large as a batch
    assert np.array_equal(buffer["codes"], np.tile(codes, (12, 1)))


def test_a_view_stays_as_it_is_when_its_column_grows():
    buffer = Buffer()
    buffer.insert_codes(np.full((4, 2), 7, np.uint8), [0, 1, 2, 3])
    labels, codes = buffer.labels, buffer["codes"]
    buffer.insert_codes(np.full((200, 2), 9, np.uint8), np.full(200, 5))
    assert labels.tolist() == [0, 1, 2, 3] and codes.tolist() == [[7, 7]] * 4
    assert buffer.labels[:5].tolist() == [0, 1, 2, 3, 5] and buffer["codes"][3:5].tolist() == [[7, 7], [9, 9]]
