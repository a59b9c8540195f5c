"""Buffers in folders: one owner, reopened after a crash with all that was stored completely."""

import json
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer, FifoRule
from graspcl.codec import Half
from graspcl.errors import GraspError


def marked(numbers):
    """A sample per number, which is its label and all of its values."""
    numbers = np.asarray(numbers)
    return np.repeat(numbers[:, None], 8, axis=1).astype(np.float32), numbers


def stored(buffer):
    """Ids by label, after a check that every sample has its own label."""
    inputs, labels = buffer.fetch(np.arange(len(buffer)))
    assert torch.equal(inputs, labels[:, None].expand(-1, 8).float())
    return sorted(zip(buffer.labels.tolist(), buffer.ids.tolist(), strict=True))


@pytest.mark.parametrize("codec", [None, Half()], ids=["plain", "half"])
def test_what_was_stored_is_there_again(tmp_path, codec):
    buffer = Buffer(20, codec, columns={"loss": ((), np.float32)}, storage=tmp_path)
    for begin in range(0, 60, 12):
        buffer.insert(*marked(np.arange(begin, begin + 12) % 7), columns={"loss": np.arange(12)})
    buffer.settle()
    buffer.insert(*marked([1, 2]))
    buffer["loss"][3] = 42
    expected, losses, births, new = stored(buffer), buffer["loss"].copy(), buffer.births.copy(), buffer.new.copy()
    buffer.close()
    again = Buffer.open(tmp_path, codec)
    assert stored(again) == expected and np.array_equal(again["loss"], losses) and np.array_equal(again.births, births)
    assert (again.seen, again.since, again.capacity) == (62, 60, 20) and np.array_equal(again.new, new) and new.any()
    again.insert(*marked(np.arange(30) % 7))
    assert len(again) == 20 and again.sizes.sum() == 20
    stored(again)


def test_a_folder_has_one_owner(tmp_path):
    buffer = Buffer(5, storage=tmp_path)
    with pytest.raises(GraspError, match=r"belongs to a buffer that is open; close\(\) it"):
        Buffer(5, storage=tmp_path)
    buffer.insert(*marked([0, 1]))
    with pytest.raises(GraspError, match="belongs to a buffer that is open"):
        Buffer.open(tmp_path)
    del buffer
    assert len(Buffer.open(tmp_path)) == 2


CRASH = """
import os, signal, sys
import numpy as np
from graspcl.buffer import Buffer
buffer = Buffer(50, storage=sys.argv[1])
for number in range(int(sys.argv[2])):
    labels = (np.arange(9) + 5 * number) % 11
    buffer.insert(np.repeat(labels[:, None], 8, axis=1).astype(np.float32), labels)
storage, write = buffer._storage, np.ndarray.__setitem__
class Deadly(dict):
    def __getitem__(self, name):
        if name == sys.argv[3]:
            os.kill(os.getpid(), signal.SIGKILL)
        return dict.__getitem__(self, name)
deadly = Deadly(storage)
deadly.folder = storage.folder
deadly.reserve, deadly.__class__.rows = storage.reserve, 50
deadly.row_bytes = storage.row_bytes
buffer._storage = deadly
buffer.insert(np.full((9, 8), 3, np.float32), np.full(9, 3))
"""


@pytest.mark.parametrize("column", ["ids", "row_checksums"])
def test_a_process_killed_amid_an_insertion_leaves_whole_samples(tmp_path, column):
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path), "20", column], check=False)
    assert done.returncode == -signal.SIGKILL
    buffer = Buffer.open(tmp_path)
    assert 41 <= len(buffer) < 50 and buffer.seen == 180  # what was being replaced is lost, all else is there
    stored(buffer)
    assert buffer.sizes.sum() == len(buffer) and sorted(buffer.index.grouped()[0]) == list(range(len(buffer)))
    buffer.insert(*marked(np.arange(40) % 11))
    stored(buffer)


GROWTH = """
import itertools, os, signal, sys
import numpy as np
import torch
from graspcl.buffer import Buffer

folder, padding = sys.argv[1], torch.tensor([[-4.0]]) if sys.argv[2] == "sequences" else None
inputs = np.random.default_rng(0).integers(0, 9, (300, 1, 4)).astype(np.float32)
inputs[::3, :, 2:] = -4
Buffer(None, padding=padding).insert(inputs, np.arange(300))  # loads compiled kernels, once for all processes

def grow(number):
    # A process of its own is killed before the n-th file is filled or replaces a shorter one.
    buffer = Buffer(None, storage=f"{folder}/{number}", padding=padding)
    buffer.insert(inputs[:60], np.arange(60) % 7)
    calls = itertools.count(1)
    for name in ("posix_fallocate", "replace"):
        def deadly(*given, call=getattr(os, name)):
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given)
        setattr(os, name, deadly)
    buffer.insert(inputs[60:], np.arange(240) % 7)
    os._exit(0)

for number in itertools.count(1):
    if not (child := os.fork()):
        grow(number)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -signal.SIGKILL:
        break
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "sequences"])
def test_a_process_killed_while_files_grow_loses_no_sample(tmp_path, kind):
    padding = torch.tensor([[-4.0]]) if kind == "sequences" else None
    subprocess.run([sys.executable, "-c", GROWTH, str(tmp_path), kind], check=True)
    folders = sorted(tmp_path.iterdir(), key=lambda place: int(place.name))
    whole = Buffer.open(folders.pop(), padding=padding)  # of the process that was not killed
    first = {one for one in contents(whole) if one[2] < 60}
    assert len(folders) > 6 and len(whole) == 300 and len(first) == 60
    for folder in folders:
        buffer = Buffer.open(folder, padding=padding)
        assert contents(buffer) == first and buffer.seen == 60, folder.name
        assert not [*folder.glob("*.new")]
        inputs, labels = whole.fetch(np.arange(300))
        buffer.insert(inputs[60:], labels[60:])
        everything = contents(buffer)
        assert everything >= first and len(everything) == 300
        buffer.close()
        again = Buffer.open(folder, padding=padding)
        assert contents(again) == everything
        again.close()


def test_damaged_rows_are_left_out(tmp_path):
    buffer = Buffer(30, storage=tmp_path)
    buffer.insert(*marked(np.arange(30)))
    buffer.close()
    codes, labels = np.load(tmp_path / "codes.npy", mmap_mode="r+"), np.load(tmp_path / "labels.npy", mmap_mode="r+")
    codes.view(np.uint32)[4, 2] ^= 1 << 31
    labels[[7, 29]] = 3
    del codes, labels
    again = Buffer.open(tmp_path)
    assert sorted(again.labels.tolist()) == [n for n in range(30) if n not in (4, 7, 29)]
    stored(again)


def test_removed_samples_stay_away(tmp_path):
    buffer = Buffer(None, storage=tmp_path)
    buffer.insert(*marked(np.arange(10)))
    buffer.remove([2, 9, 4])
    expected = stored(buffer)
    buffer.close()
    assert stored(Buffer.open(tmp_path)) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("buffer.json", "buffer.json is damaged"),
        ("codes.npy", "codes.npy is damaged"),
        ("labels.npy", "labels.npy is damaged"),
    ],
)
def test_damaged_files_are_explained(tmp_path, name, message):
    buffer = Buffer(5, storage=tmp_path)
    buffer.insert(*marked([0, 1]))
    buffer.close()
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:20])
    with pytest.raises(GraspError, match=message):
        Buffer.open(tmp_path)
    (tmp_path / name).write_bytes(content)
    assert len(Buffer.open(tmp_path)) == 2


@pytest.mark.parametrize(
    "values",
    [{"columns": [1]}, {"columns": {"loss": [[], "(1,"]}}, {"codes": []}, {"codes": 3}, {"codes": [[4], "99,"]}],
)
def test_a_description_with_other_values_is_damaged(tmp_path, values):
    buffer = Buffer(5, storage=tmp_path)
    buffer.insert(*marked([0, 1]))
    buffer.close()
    about = json.loads((tmp_path / "buffer.json").read_text())
    del about["checksum"]
    (tmp_path / "buffer.json").write_text(json.dumps({**about, **values}))
    with pytest.raises(GraspError, match=f"the buffer in {tmp_path} cannot be opened: buffer.json is damaged"):
        Buffer.open(tmp_path)


def test_a_buffer_is_opened_as_it_was_made(tmp_path):
    with pytest.raises(GraspError, match=r"there is no buffer to open in .*: it has no buffer.json"):
        Buffer.open(tmp_path)
    Buffer(5, Half(), FifoRule(), storage=tmp_path).insert(*marked([0, 1]))
    for wrong in ({"codec": None, "maintenance": FifoRule()}, {"codec": Half()}):
        with pytest.raises(GraspError, match="pass the same"):
            Buffer.open(tmp_path, **wrong)
    assert len(Buffer.open(tmp_path, Half(), "fifo")) == 2


def test_a_fifo_buffer_goes_on_with_its_oldest(tmp_path):
    buffer = Buffer(4, maintenance=FifoRule(), storage=tmp_path)
    buffer.insert(*marked(np.arange(6)))
    buffer.close()
    again = Buffer.open(tmp_path, maintenance=FifoRule())
    again.insert(*marked([6]))
    assert sorted(again.labels.tolist()) == [3, 4, 5, 6]


@pytest.mark.parametrize("storage", ["ram", "folder"])
def test_threads_fetch_whole_samples_while_others_insert_and_remove(tmp_path, storage):
    buffer = Buffer(64, storage="ram" if storage == "ram" else tmp_path)
    buffer.insert(*marked(np.arange(64) % 9))
    wrong, fetched, busy, start = [], [0], threading.Event(), threading.Barrier(4)

    def insert():
        start.wait()
        for number in range(150):
            buffer.insert(*marked((np.arange(32) + number) % 9))
            if number % 10 == 0:
                buffer.remove([0, 5])
        busy.set()

    def fetch():
        rng = np.random.default_rng(0)
        start.wait()
        while not busy.is_set() or not fetched[0]:  # on a full machine the others may be done first
            inputs, labels = buffer.fetch(rng.integers(0, 50, 40))
            fetched[0] += len(labels)
            wrong.extend(labels[(inputs != labels[:, None]).any(1)].tolist())

    threads = [threading.Thread(target=insert), *(threading.Thread(target=fetch) for _ in range(3))]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads change places as often as they can
    try:
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    finally:
        sys.setswitchinterval(before)
    assert fetched[0] > 0 and wrong == []


@pytest.mark.parametrize("inserted", [0, 2])
def test_a_closed_buffer_says_so(tmp_path, inserted):
    buffer = Buffer(5, storage=tmp_path)
    if inserted:
        buffer.insert(*marked(range(inserted)))
    state = buffer.state_dict()
    buffer.close()
    buffer.close()
    always = (
        lambda: buffer.insert(*marked([1])), lambda: buffer.labels, buffer.settle, buffer.state_dict,
        lambda: buffer.load_state_dict(state),
    )  # fmt: skip
    stored = (lambda: buffer.fetch([0]), lambda: buffer.remove([0]), buffer.clear, lambda: buffer.nbytes)
    for use in (*always, *(stored if inserted else ())):
        with pytest.raises(GraspError, match=r"this buffer was closed; reopen it with Buffer.open\("):
            use()
    assert not inserted or len(Buffer.open(tmp_path)) == inserted


def test_counts_are_verified(tmp_path):
    buffer = Buffer(5, storage=tmp_path)
    buffer.insert(*marked([0, 1, 2]))
    buffer.settle()
    buffer.close()
    content = (tmp_path / "counts.npy").read_bytes()
    (tmp_path / "counts.npy").write_bytes(content[:-16] + b"\2" + content[-15:])  # since = 2
    with pytest.raises(GraspError, match=r"counts.npy is damaged; delete it to open the buffer with all samples count"):
        Buffer.open(tmp_path)
    np.save(tmp_path / "counts.npy", np.array([30, 3]))  # as earlier versions stored it
    assert (Buffer.open(tmp_path).seen, Buffer.open(tmp_path).since) == (30, 3)
    (tmp_path / "counts.npy").unlink()
    assert (Buffer.open(tmp_path).seen, Buffer.open(tmp_path).since) == (3, 0)


def mutate(content, rng):
    """Flip a bit; or cut the file, zero or reverse 16 bytes of it, or append some."""
    at = int(rng.integers(len(content)))
    before, here, after = content[:at], content[at : at + 16], content[at + 16 :]
    flipped = bytes([here[0] ^ 1 << int(rng.integers(8))]) + here[1:]
    harmed = (flipped + after, flipped + after, b"", bytes(len(here)) + after, here[::-1] + after, here + after + here)
    return before + harmed[rng.integers(len(harmed))]


@pytest.mark.parametrize("padding", [None, torch.tensor([[-4.0]])], ids=["plain", "sequences"])
def test_a_damaged_folder_is_refused_or_gives_only_what_was_stored(tmp_path, padding):
    """In every file but the user's own columns. Rows that were damaged are left out."""
    sound, used, rng = tmp_path / "sound", tmp_path / "used", np.random.default_rng(0)
    buffer = Buffer(20, storage=sound, columns={"loss": ((), np.float32)}, padding=padding)
    inputs = rng.integers(0, 9, (30, 1, 4)).astype(np.float32)
    inputs[::3, :, 2:] = -4
    buffer.insert(inputs, rng.integers(0, 4, 30), ids=np.arange(30) * 7)
    buffer.settle()
    buffer.insert(inputs[:3], [1, 2, 3])
    kept, counts = contents(buffer), (buffer.seen, buffer.since)
    buffer.close()
    files, refused, left_out = sorted(path.name for path in sound.iterdir() if path.name[0] != "."), 0, 0
    files.remove("loss.npy")
    for number in range(100):
        shutil.rmtree(used, ignore_errors=True)
        shutil.copytree(sound, used)
        file = used / files[number % len(files)]
        file.write_bytes(mutate(file.read_bytes(), rng))
        try:
            again = Buffer.open(used, padding=padding)
        except GraspError as error:
            refused += 1
            assert str(used) in str(error)
            continue
        found = contents(again)
        assert found <= kept and (again.seen, again.since) == counts, file.name
        left_out += len(found) < len(kept)
        again.insert(inputs[:2], [0, 1])
        again.close()
    assert refused > 20 and left_out > 10


def contents(buffer):
    """All that is verified of each sample."""
    inputs, _ = buffer.fetch(np.arange(len(buffer))) if len(buffer) else (torch.zeros(0), None)
    own = zip(buffer.labels.tolist(), buffer.ids.tolist(), buffer.births.tolist(), strict=True)
    return {(*one, code.numpy().tobytes()) for one, code in zip(own, inputs, strict=True)}
