"""Mistakes and full disks: a GraspError that says what is wrong, and nothing stored changes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer, FifoRule, LargestClassRule, Maintenance, ReservoirRule, RingRule
from graspcl.codec import OPQ, Half
from graspcl.errors import GraspError
from graspcl.testing.common import seeded

INPUTS, LABELS = np.ones((3, 2), np.float32), [0, 1, 0]
WITH_NAN = np.array([[1, np.nan], [0, 0], [np.inf, 1]], np.float32)
MANY_NAN = np.full((9, 2), np.nan, np.float32)


def snapshot(buffer: Buffer) -> Any:
    """All that the buffer holds and will do, to be compared."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return (value.dtype, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value

    return plain(buffer.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"inputs": np.ones((3, 5), np.float32)}, r"stores codes of shape \(2,\), got \(5,\)"),
        ({"inputs": np.ones((3, 2, 1), np.float32)}, r"stores codes of shape \(2,\), got \(2, 1\)"),
        ({"inputs": np.ones((3, 2), np.complex64)}, "stores codes of type float32, got complex64"),
        ({"inputs": np.float32(1)}, "one row per sample"),
        ({"labels": [0, 1]}, "there must be one label per input, got 3 inputs and 2 labels"),
        ({"labels": [0, -1, 0]}, "labels must be in 0 … 16777215, got -1 … 0; number classes from 0"),
        ({"labels": [0, 2**24, 0]}, "labels must be in 0 … 16777215, got 0 … 16777216"),
        ({"labels": [0.0, 1.0, 0.0]}, r"labels must be a vector of integers, got float64 of shape \(3,\)"),
        ({"labels": torch.ones(3)}, "labels must be a vector of integers, got float32"),
        ({"labels": [[0, 1, 0]]}, r"labels must be a vector of integers, got int64 of shape \(1, 3\)"),
        ({"labels": ["cat", "dog", "cat"]}, "labels must be a vector of integers"),
        ({"ids": [1, 2]}, "there must be one id per sample, got 2 ids and 3 labels"),
        ({"ids": [1.5, 2.5, 3.5]}, "ids must be a vector of integers, got float64"),
        ({"ids": [[1], [2], [3]]}, r"ids must be a vector of integers, got int64 of shape \(3, 1\)"),
        ({"inputs": WITH_NAN}, r"2 of 3 inputs are NaN or infinite \(rows \[0, 2\]\); nothing was stored"),
        ({"inputs": np.ones((3, 2), np.longdouble)}, r"inputs must be numbers \[n, …\]"),
        ({"inputs": torch.from_numpy(WITH_NAN)}, r"2 of 3 inputs are NaN or infinite \(rows \[0, 2\]\)"),
        ({"inputs": MANY_NAN, "labels": [0] * 9}, r"9 of 9 inputs .* \(rows \[0, 1, 2, 3, 4, …\]\)"),
        ({"inputs": torch.ones(3, 2, dtype=torch.bfloat16)}, r"a tensor of torch.bfloat16 .* cannot be stored"),
        ({"inputs": torch.ones(3, 2).to_sparse()}, "must be a dense tensor in memory, got a torch.sparse_coo tensor"),
        ({"inputs": torch.ones(3, 2, device="meta")}, "must be a dense tensor in memory, got a meta tensor"),
        ({"labels": torch.ones(3, dtype=torch.bfloat16)}, r"a tensor of torch.bfloat16 .* cannot be stored"),
        (
            {"columns": {"loss": torch.ones(3, device="meta")}},
            r"a tensor of torch.float32 \(.*, meta\) cannot be stored",
        ),
        ({"columns": {"los": [1, 2, 3]}}, "no column 'los'; did you mean 'loss'"),
        ({"columns": {"loss": [1, 2]}}, r"column 'loss' takes values of shape \(3,\), got \(2,\)"),
    ],
)
def test_a_wrong_batch_is_refused_and_changes_nothing(arguments: dict[str, Any], message: str) -> None:
    buffer = Buffer(4, columns={"loss": ((), np.float32)})
    buffer.insert(INPUTS, LABELS)
    buffer.insert(INPUTS, LABELS)
    before = snapshot(buffer)
    with pytest.raises(GraspError, match=message):
        buffer.insert(**{"inputs": INPUTS, "labels": LABELS, **arguments})
    assert snapshot(buffer) == before


def test_floats_are_not_squeezed_into_stored_bytes() -> None:
    buffer = Buffer(4)
    buffer.insert(np.full((1, 2), 200, np.uint8), [0])
    with pytest.raises(GraspError, match="stores codes of type uint8, got float32"):
        buffer.insert(np.full((1, 2), 0.7, np.float32), [0])
    assert len(buffer) == 1


def test_a_wrong_first_batch_leaves_the_buffer_empty_and_open_to_another_shape() -> None:
    buffer = Buffer("1KB", columns={"loss": ((), np.float32)})
    before = snapshot(buffer)
    with pytest.raises(GraspError, match="labels must be in"):
        buffer.insert(np.ones((2, 7)), [-1, 0])
    assert snapshot(buffer) == before
    buffer.insert(INPUTS, LABELS)
    assert len(buffer) == 3


def test_reading_mistakes() -> None:
    buffer = Buffer(4, columns={"loss": ((), np.float32)})
    with pytest.raises(GraspError, match="the buffer is empty: insert samples before fetching"):
        buffer.fetch([0])
    buffer.insert(INPUTS, LABELS)
    for slots in ([3], [-1], [0, 9]):
        with pytest.raises(GraspError, match="slots must be in 0 … 2, got"):
            buffer.fetch(slots)
    with pytest.raises(GraspError, match="no column 'lable'; did you mean 'labels'"):
        buffer["lable"]
    with pytest.raises(GraspError, match="cannot be named 'ids': the buffer has its own"):
        Buffer(4, columns={"ids": ((), np.int64)})
    with pytest.raises(GraspError, match="no column 'loss'; it was made without columns"):
        Buffer(4).insert(INPUTS, LABELS, columns={"loss": [1, 2, 3]})


@pytest.mark.parametrize("rule", [LargestClassRule, ReservoirRule, FifoRule, RingRule])
def test_an_overfull_buffer_must_be_compressed_before_it_goes_on_online(rule: type[Maintenance]) -> None:
    buffer = Buffer(40, maintenance=rule())
    buffer.insert(INPUTS, LABELS, overflow=True)
    before = snapshot(buffer)
    with pytest.raises(GraspError, match=r"overflow=True: call compress\(\) before"):
        buffer.insert(INPUTS, LABELS)
    assert snapshot(buffer) == before
    buffer.compress()
    buffer.insert(INPUTS, LABELS)
    assert len(buffer) == 6


def test_a_state_with_other_columns_is_refused() -> None:
    buffer, other = Buffer(4, columns={"loss": ((), np.float32)}), Buffer(4)
    buffer.insert(INPUTS, LABELS)
    other.insert(INPUTS, LABELS)
    before = snapshot(other)
    with pytest.raises(GraspError, match="differ in columns: loss"):
        other.load_state_dict(buffer.state_dict())
    assert snapshot(other) == before


@pytest.mark.parametrize(
    ("saved", "own", "message"),
    [
        ({"capacity": 4}, {"capacity": 3}, "with capacity 4, this one has 3; make it with the same capacity"),
        ({"capacity": 4}, {"capacity": None}, "with capacity 4, this one has None"),
        ({"capacity": "1KB"}, {"capacity": "2KB"}, "with capacity 1000B, this one has 2000B"),
        ({"capacity": "1KB"}, {"capacity": 4}, "with capacity 1000B, this one has 4"),
        (
            {"maintenance": "fifo"},
            {"maintenance": "ring"},
            r"with rule FifoRule\(\), this one has RingRule\(per_class=20\)",
        ),
        ({"maintenance": RingRule(5)}, {"maintenance": RingRule(6)}, r"with rule RingRule\(per_class=5\)"),
        ({"codec": Half()}, {}, "with codec Half, this one has NoneType"),
    ],
)
def test_a_state_of_another_kind_of_buffer_is_refused_and_changes_nothing(
    saved: dict[str, Any], own: dict[str, Any], message: str
) -> None:
    source, buffer = Buffer(**saved), Buffer(**own)
    assert_refused(source, buffer, message)


def assert_refused(source: Buffer, buffer: Buffer, message: str) -> None:
    """Assert that the state of `source` is refused by `buffer`, both with samples."""
    for each in (source, buffer):
        each.insert(INPUTS, LABELS)
    before = snapshot(buffer)
    with pytest.raises(GraspError, match=message):
        buffer.load_state_dict(source.state_dict())
    assert snapshot(buffer) == before


def test_a_state_of_another_size_of_opq_is_refused_and_changes_nothing() -> None:
    latents = torch.randn(50, 2, generator=seeded())
    source, buffer = (Buffer(codec=OPQ(codebooks, size=4, iterations=1).fit(latents)) for codebooks in (2, 1))
    assert_refused(source, buffer, r"OPQ .* does not fit OPQ\(codebooks=1")


@pytest.mark.parametrize("capacity", [4, "1KB", None])
def test_a_state_of_an_earlier_version_is_restored(capacity: Any) -> None:
    source, buffer = Buffer(capacity), Buffer(capacity)
    source.insert(INPUTS, LABELS)
    state = source.state_dict()
    del state["bound"], state["rule"]
    buffer.load_state_dict(state)
    assert snapshot(buffer) == snapshot(source)


def test_a_capacity_may_be_written_in_another_unit() -> None:
    source, buffer = Buffer("1KB"), Buffer("1000 B")
    source.insert(INPUTS, LABELS)
    buffer.load_state_dict(source.state_dict())
    assert snapshot(buffer) == snapshot(source)


def test_more_memory_than_there_is() -> None:
    buffer = Buffer(10**15)
    with pytest.raises(GraspError, match=r"not enough memory for .* bytes of codes; lower the capacity"):
        buffer.insert(np.ones((1, 10**4), np.float32), [0])
    assert len(buffer) == 0


# -- disks -----------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(GraspError, match=r"the buffer cannot be stored in .*file"):
        Buffer(4, storage=tmp_path / "file" / "buffer")


def mounted(folder: Path, options: str) -> Iterator[Path]:
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.name != "posix":
        pytest.skip("no mount")
    yield from mounted(tmp_path, "size=1m")


@pytest.fixture
def read_only_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path, "size=1m,ro")


def insert_many(buffer: Buffer, batches: int, **options: Any) -> None:
    for _ in range(batches):
        ids = np.arange(buffer.seen, buffer.seen + 100)
        buffer.insert(np.repeat(ids[:, None], 100, 1).astype(np.float32), ids % 3, ids, **options)


def assert_serves_everything(buffer: Buffer) -> None:
    inputs, labels = buffer.fetch(np.arange(len(buffer)))
    assert (inputs.numpy() == buffer.ids[:, None]).all()
    assert labels.tolist() == (buffer.ids % 3).tolist()


def used(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


@pytest.mark.parametrize("capacity", [None, 500], ids=["unbounded", "overflow"])
def test_a_full_disk_is_an_error_and_the_buffer_keeps_what_it_had(small_disk: Path, capacity: int | None) -> None:
    buffer = Buffer(capacity, storage=small_disk)
    insert_many(buffer, 5)
    before, space = snapshot(buffer), used(small_disk)
    grow: Callable[[], None] = lambda: insert_many(buffer, 30, overflow=capacity is not None)  # noqa: E731
    with pytest.raises(GraspError, match=r"file .*\.npy could not grow to [\d,]+ bytes: No space left on device"):
        grow()
    assert len(buffer) >= 500
    after = snapshot(buffer)
    with pytest.raises(GraspError, match="No space left"):
        grow()
    assert snapshot(buffer) == after
    assert len(buffer) > 500 or (after == before and used(small_disk) == space)
    assert_serves_everything(buffer)
    assert not list(small_disk.glob("*.new")), "what could not grow leaves nothing behind"
    buffer.compress()
    assert_serves_everything(buffer)


def test_a_disk_too_small_for_the_capacity_is_an_error_at_the_first_insertion(small_disk: Path) -> None:
    buffer = Buffer("5MB", storage=small_disk)
    with pytest.raises(GraspError, match="No space left on device"):
        insert_many(buffer, 1)
    assert len(buffer) == 0 and [file.name for file in small_disk.iterdir()] == [".lock"]
    buffer.close()
    Buffer("500KB", storage=small_disk).insert(INPUTS, LABELS)


def test_a_state_too_large_for_the_disk_leaves_the_buffer_as_it_was(small_disk: Path) -> None:
    large, buffer = Buffer(None), Buffer(None, storage=small_disk)
    insert_many(large, 40)
    insert_many(buffer, 3)
    before = snapshot(buffer)
    with pytest.raises(GraspError, match="No space left on device"):
        buffer.load_state_dict(large.state_dict())
    assert snapshot(buffer) == before
    assert_serves_everything(buffer)


def test_an_unwritable_folder(read_only_disk: Path) -> None:
    with pytest.raises(GraspError, match=r"cannot be stored in .*inner: Read-only file system"):
        Buffer(4, storage=read_only_disk / "inner")
    buffer = Buffer(4, storage=read_only_disk)
    with pytest.raises(GraspError, match=r"codes\.npy could not grow to .* bytes: Read-only file system"):
        buffer.insert(INPUTS, LABELS)
    assert len(buffer) == 0


@pytest.mark.parametrize("slots", [[True, False, True], [1.9, 0.2], np.array([2.7])])
def test_masks_and_fractions_are_no_slots(slots: Any) -> None:
    buffer = Buffer()
    buffer.insert(np.zeros((3, 2), np.float32), [5, 6, 7])
    for use in (buffer.fetch, buffer.remove):
        with pytest.raises(GraspError, match="slots must be integers"):
            use(slots)
    assert buffer.labels.tolist() == [5, 6, 7]


@pytest.mark.parametrize("label", [0.5, [0.5], np.array([0.5]), "a", None])
def test_labels_of_slots_are_whole_numbers(label: Any) -> None:
    buffer = Buffer()
    buffer.insert(INPUTS, LABELS)
    with pytest.raises(GraspError, match="the label of a class is a whole number, got"):
        buffer.slots_of(label)
    assert buffer.slots_of(0).tolist() == [0, 2]


@pytest.mark.parametrize(
    ("dtype", "values", "message"),
    [
        (np.uint8, [1, 2, 300], "1 of 3 values of column 'own' do not fit its type uint8, such as 300; nothing was"),
        (np.int64, np.array([1, 2, 2**63], np.uint64), "1 of 3 values .* type int64, such as 9223372036854775808"),
        (np.int64, [1, 2, 2**70], "do not fit its type int64|must be of type int64"),
        (np.int32, [1.0, np.nan, 2.5], "2 of 3 values of column 'own' do not fit its type int32, such as nan"),
        (np.float16, [1, 2, 1e6], "1 of 3 values of column 'own' do not fit its type float16, such as 1000000.0"),
        (np.float32, ["a", "b", "c"], "the values of column 'own' must be of type float32"),
        (np.float32, [[1], [2, 3], []], "the values of column 'own' must be of type float32"),
        (np.bool_, [0, 1, 2], "1 of 3 values of column 'own' do not fit its type bool, such as 2"),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused(dtype: Any, values: Any, message: str) -> None:
    buffer = Buffer(4, columns={"own": ((), dtype)})
    with pytest.raises(GraspError, match=message):
        buffer.insert(INPUTS, LABELS, columns={"own": values})
    assert len(buffer) == 0


def test_values_of_a_column_may_be_rounded_missing_or_of_another_type() -> None:
    buffer = Buffer(4, columns={"own": ((), np.float32), "whole": ((), np.int8)})
    buffer.insert(INPUTS, LABELS, columns={"own": [0.1, np.nan, np.inf], "whole": [1.0, 2.0, -3.0]})
    np.testing.assert_array_equal(buffer["own"], np.array([0.1, np.nan, np.inf], np.float32))
    assert buffer["whole"].tolist() == [1, 2, -3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codec": 5}, "codec must be one of graspcl.codec or None, got 5"),
        ({"maintenance": 5}, "maintenance must be a rule or its name"),
        ({"storage": 5}, "storage must be 'ram' or the path of a folder, got 5"),
        ({"storage": "a\0b"}, "storage must be 'ram' or the path"),
        ({"rng": "x"}, "rng must be a generator or a seed of at least 0, got 'x'"),
        ({"rng": -1}, "rng must be a generator or a seed of at least 0, got -1"),
        ({"padding": [0.0]}, "padding must be a tensor"),
        ({"columns": ["loss"]}, r"columns must be a dictionary of name: \(shape, dtype\), got \['loss'\]"),
        ({"columns": {"loss": np.float32}}, r"column 'loss' must be given as \(shape, dtype\)"),
        ({"columns": {"loss": ((), "nonsense")}}, r"column 'loss' must be given as \(shape, dtype\)"),
        ({"columns": {"loss": ((), object)}}, r"column 'loss' must be given as \(shape, dtype\)"),
        ({"columns": {"loss": ((-1,), np.float32)}}, r"column 'loss' must be given as \(shape, dtype\)"),
        ({"columns": {"../esc": ((), np.float32)}}, "a column must have a name of .* got '../esc'"),
        ({"columns": {5: ((), np.float32)}}, "a column must have a name of .* got 5"),
        ({"columns": {"counts": ((), np.float32)}}, "a column cannot be named 'counts'"),
        ({"columns": {"code_links": ((), np.float32)}}, "a column cannot be named 'code_links'"),
    ],
)
def test_odd_arguments_are_explained(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        Buffer(4, **arguments)


@pytest.mark.parametrize("folder", [5, "ram", "", None, "a\0b"])
def test_what_is_no_folder_is_not_opened(folder: Any) -> None:
    with pytest.raises(GraspError, match="folder"):
        Buffer.open(folder)
