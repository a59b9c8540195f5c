"""Checkpoints in segments: only what is new is written, older ones stay valid, and training changes none of it."""

import os
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch
from killing import differences, make_photos, unequal
from test_robustness import settings
from xxhash import xxh3_128

from graspcl.buffer import Buffer
from graspcl.buffer.state import saved_state
from graspcl.codec import Encoded, Half
from graspcl.errors import GraspError
from graspcl.experiment import runner
from graspcl.experiment.checkpoints import Background, Segments, Stored
from graspcl.experiment.folder import RunFolder
from graspcl.settings import change
from graspcl.state import copied, pack_state


def stored(births) -> Stored:
    births = np.asarray(births)
    return Stored(births, (births[:, None] * np.ones(8)).astype(np.uint8))


def save(place: RunFolder, births, update: int = 0) -> None:
    buffer = {"columns": {"births": np.asarray(births)}}
    place.save_checkpoint({"stream": update, "learner": {"buffer": buffer}}, stored(births))


def load(place: RunFolder, said: list[str]):
    state = RunFolder(place.path).load_checkpoint(said.append)
    assert [*state["learner"]["buffer"]["columns"]] == ["codes", "births"]  # as in a buffer that was never saved
    return state["stream"], np.asarray(state["learner"]["buffer"]["columns"]["codes"])[:, 0].tolist()


def segments(place: RunFolder) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in place.path.glob("codes/*/*")}


def rows(path: Path) -> int:
    from graspcl.state import load_state

    return len(load_state(path)["births"])


def test_only_new_samples_are_written_and_codes_come_back_in_the_order_of_slots(tmp_path):
    place, said = RunFolder(tmp_path), []
    save(place, range(20))
    (first,) = before = segments(place)
    save(place, [*range(100, 101), *range(1, 20)], 1)  # a newcomer in slot 0
    after = segments(place)
    assert after.pop(first) == before[first] and [rows(path) for path in after] == [1]
    assert load(place, said) == (1, [100, *range(1, 20)]) and said == []


def test_files_are_not_mapped_any_longer_than_they_are_read(tmp_path):
    """Mapped files count as memory: a resumed run would take twice its buffer."""
    written, known = Segments(tmp_path), Segments(tmp_path)
    codes = written.write(stored(range(20)))
    written.settle()
    known.open(codes, np.arange(20))
    assert [births.flags.owndata for births in known._births.values()] == [True]


def test_a_resumed_run_knows_what_is_written(tmp_path):
    save(RunFolder(tmp_path), range(20))
    place = RunFolder(tmp_path)
    place.load_checkpoint(lambda said: None)
    before = segments(place)
    save(place, range(20), 1)
    assert segments(place) == before


def test_the_rest_of_a_segment_is_written_again_when_most_of_it_is_gone(tmp_path):
    place = RunFolder(tmp_path)
    save(place, range(20))
    save(place, [9, *range(50, 61)], 1)
    assert sorted(map(rows, segments(place))) == [12, 20]  # the checkpoint before needs the old one
    save(place, [9, *range(50, 61)], 2)
    assert [*map(rows, segments(place))] == [12] and load(place, [])[0] == 2


def test_large_codes_are_divided(tmp_path, monkeypatch):
    monkeypatch.setattr("graspcl.experiment.checkpoints._SEGMENT", 8 * 6)
    place = RunFolder(tmp_path)
    save(place, range(20))
    assert sorted(map(rows, segments(place))) == [2, 6, 6, 6] and load(place, []) == (0, [*range(20)])


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_bad_segment_is_told_of_and_the_checkpoint_before_is_used(tmp_path, how):
    place, said = RunFolder(tmp_path), []
    save(place, range(20))
    old = segments(place)
    save(place, range(24), 1)
    (new,) = segments(place).keys() - old.keys()
    new.write_bytes(new.read_bytes()[:-1] + b"?") if how == "damaged" else new.unlink()
    assert load(place, said) == (0, [*range(20)])
    (line,) = said
    assert f"{new} is {how}" in line and "000002.safetensors" in line and line.endswith("trying the previous one")


def test_a_segment_is_verified_before_its_codes_are_used(tmp_path):
    """A thread verifies segments while others are read; one that is damaged or missing is replaced from elsewhere."""
    written, read, said = Segments(tmp_path), Segments(tmp_path), []
    known = [written.write(stored(range(20)))["names"], written.write(stored(range(40)))["names"]]
    written.settle()
    about = {"names": known[1], "shape": [40, 8], "dtype": "|u1"}
    expected = np.asarray(read.open(about, np.arange(40)))
    path = read.objects.path(known[1][1])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(GraspError, match="is damaged"):
        read.open(about, np.arange(40))
    codes = read.open(about, np.arange(40), lambda rows: 200 + expected[rows], said.append)
    found = np.asarray(codes)
    assert np.array_equal(found, np.concatenate([expected[:20], 200 + expected[20:]]))
    assert len(said) == 1 and f"{path} is damaged" in said[0]


def test_a_folder_that_was_cleared_forgets_what_was_written(tmp_path):
    save(RunFolder(tmp_path), range(20))
    place = RunFolder(tmp_path)
    place.load_checkpoint(lambda said: None)
    place.clear()
    save(place, range(20), 1)
    assert load(place, []) == (1, [*range(20)])


def test_nothing_is_deleted_if_a_checkpoint_cannot_be_read_for_the_moment(tmp_path, monkeypatch):
    place = RunFolder(tmp_path)
    save(place, range(20))
    with monkeypatch.context() as patch:
        patch.setattr("graspcl.experiment.checkpoints._header", lambda state: os.stat(tmp_path / "absent"))
        save(place, range(24), 1)
    assert load(place, []) == (1, [*range(24)])
    (tmp_path / "checkpoints/000002.safetensors").unlink()
    assert load(place, []) == (0, [*range(20)])


@pytest.mark.parametrize("step", ["write", "sync"])
def test_a_full_disk_is_not_left_full(tmp_path, monkeypatch, step):
    place, calls = RunFolder(tmp_path), iter(range(100))
    save(place, range(20))
    monkeypatch.setattr("graspcl.experiment.checkpoints._SEGMENT", 8 * 6)
    before = segments(place)

    def full(*given):
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        return kept(*given)

    with monkeypatch.context() as patch:
        owner, name = ("graspcl.objects.pack_state", "pack") if step == "write" else ("os.fsync", "fsync")
        kept = pack_state if name == "pack" else os.fsync
        patch.setattr(owner, full)
        with pytest.raises(GraspError, match="No space left"):
            save(place, range(100, 140), 1)
    left = segments(place)
    assert not [path for path in left if path.suffix == ".part"] and before.items() <= left.items()
    save(place, range(100, 140), 2)
    assert load(place, []) == (2, [*range(100, 140)])


def test_a_failed_checkpoint_is_told_of_when_it_is_over():
    writer, end = Background(), Event()

    def fail(read):
        end.wait()
        raise GraspError("the disk is full")

    writer.start(fail)
    writer.check()  # not over yet
    end.set()
    writer._thread.join()
    with pytest.raises(GraspError, match="the disk is full"):
        writer.check()
    writer.check()


def test_each_file_of_a_checkpoint_is_verified_once(tmp_path, monkeypatch):
    """By its name or by its own checksum: hashing codes again takes as long as reading them."""
    place, hashed = RunFolder(tmp_path), []
    save(place, range(4000))

    class Counted:
        def __init__(self) -> None:
            self.own = xxh3_128()
            self.hexdigest = self.own.hexdigest

        def update(self, part) -> None:
            hashed.append(memoryview(part).nbytes)
            self.own.update(part)

    monkeypatch.setattr("xxhash.xxh3_128", Counted)
    assert load(place, []) == (0, stored(range(4000)).codes[:, 0].tolist())
    files = list(tmp_path.rglob("*.safetensors"))
    assert len(files) == 2 and sum(hashed) <= sum(path.stat().st_size for path in files)


def test_codes_may_change_when_they_are_read_and_the_checkpoint_has_those_of_before(tmp_path, monkeypatch):
    """The disk is slower than training: the buffer changes before anything is synced."""
    place, codes, changed = RunFolder(tmp_path), np.arange(20, dtype=np.uint8)[:, None], Event()
    sync = os.fsync
    monkeypatch.setattr("os.fsync", lambda file: changed.wait(60) and sync(file))
    state = {"stream": 0, "learner": {"buffer": {"columns": {"births": np.arange(20)}}}}
    writer = Background()
    writer.start(lambda read: place.save_checkpoint(state, Stored(np.arange(20), codes), read))
    writer.wait_until_read()
    assert writer.busy
    codes[:] = 0
    changed.set()
    writer.wait()
    assert load(place, []) == (0, [*range(20)])


def test_what_fails_in_the_background_is_raised_where_it_is_waited_for(tmp_path):
    def fails(read):
        raise GraspError("the disk is full")

    writer = Background()
    writer.start(fails)
    writer.wait_until_read()
    with pytest.raises(GraspError, match="the disk is full"):
        writer.wait()
    writer.wait()


def test_a_finished_run_keeps_no_segments(tmp_path):
    place = RunFolder(tmp_path)
    save(place, range(20))
    place.drop_checkpoints()
    assert not [*tmp_path.glob("codes")]


def test_segments_share_what_is_equal(tmp_path):
    one, other = Segments(tmp_path), Segments(tmp_path)
    assert one.write(stored(range(4)))["names"] == other.write(stored(range(4)))["names"]


# -- codes of different lengths ----------------------------------------------------------------------------------------

PADDING = torch.full((4, 1), -4.0)


def empty(kind: str) -> Buffer:
    return Buffer(30, Half(), rng=1, padding=PADDING) if kind == "texts" else Buffer(30, Encoded(8), rng=1)


def some_inputs(kind: str, number: int, seed: int):
    rng = np.random.default_rng(seed)
    if kind == "texts":
        lengths = torch.from_numpy(rng.integers(9, size=number))  # some have no token at all
        latents = torch.from_numpy(rng.normal(size=(number, 4, 8))).float()
        return torch.where(torch.arange(8) < lengths[:, None, None], latents, PADDING)
    return [rng.bytes(int(rng.integers(5, 90))) if i % 3 else f"/photos/{seed}/{i}.jpg" for i in range(number)]


def insert(buffer: Buffer, kind: str, number: int, seed: int) -> None:
    codes = buffer.encode(some_inputs(kind, number, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graspcl.codec.image_files._length", len)  # there are no such photos
        buffer.insert_codes(codes, np.arange(number) % 3)


def checkpoint(place: RunFolder, buffer: Buffer) -> None:
    state = copied(saved_state(buffer, "codes", copy=False))
    stored = Stored.of(buffer, state["columns"]["births"])
    place.save_checkpoint({"stream": 0, "learner": {"buffer": state}}, stored)


def resumed(place: RunFolder, kind: str, **how) -> Buffer:
    state = RunFolder(place.path).load_checkpoint(pytest.fail if not how else lambda said: None, **how)
    buffer = empty(kind)
    buffer.load_state_dict(state["learner"]["buffer"])
    return buffer


@pytest.mark.parametrize("kind", ["texts", "files"])
def test_codes_of_different_lengths_are_written_once(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("graspcl.experiment.checkpoints._SEGMENT", 256)
    place, buffer = RunFolder(tmp_path), empty(kind)
    insert(buffer, kind, 30, seed=0)
    checkpoint(place, buffer)
    before = segments(place)
    assert len(before) > 3
    assert unequal(resumed(place, kind).state_dict(), buffer.state_dict()) == []
    insert(buffer, kind, 2, seed=1)  # evicts two
    checkpoint(place, buffer)
    new = segments(place).keys() - before.keys()
    assert before.items() <= segments(place).items() and sum(map(rows, new)) == (buffer.births >= 30).sum() > 0
    other = resumed(place, kind)
    assert unequal(other.state_dict(), buffer.state_dict()) == []
    for changed in (other, buffer):
        insert(changed, kind, 9, seed=2)
    assert unequal(other.state_dict(), buffer.state_dict()) == []


@pytest.mark.parametrize("kind", ["texts", "files"])
def test_codes_of_different_lengths_are_taken_from_elsewhere_where_files_are_damaged(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("graspcl.experiment.checkpoints._SEGMENT", 256)
    place, buffer = RunFolder(tmp_path), empty(kind)
    insert(buffer, kind, 30, seed=0)
    checkpoint(place, buffer)
    for path in list(segments(place))[::2]:
        path.unlink()
    codes = buffer.encode(some_inputs(kind, 30, 0))
    assert unequal(resumed(place, kind, codes=lambda ids: codes[ids]).state_dict(), buffer.state_dict()) == []


def test_texts_take_the_room_of_their_tokens(tmp_path):
    """On the disk as in memory."""
    place, buffer = RunFolder(tmp_path), empty("texts")
    latents = torch.zeros(30, 4, 4000)
    latents[:] = PADDING
    latents[:, :, :2] = 0
    buffer.insert(latents, np.arange(30) % 3)
    checkpoint(place, buffer)
    assert sum(path.stat().st_size for path in segments(place)) < 5000 < 30 * 4 * 4000 * 2


class Late(Background):
    """Does all its work at the last moment."""

    call = None

    @property
    def busy(self):
        return False

    def start(self, call):
        self.wait()
        self.call = call

    def wait_until_read(self):
        call, self.call = self.call, None
        if call is not None:
            call(lambda: None)

    wait = wait_until_read


def test_a_run_changes_its_buffer_only_after_its_codes_were_read(tmp_path, monkeypatch):
    """However late a checkpoint is written, it has the codes and weights of the update at which it was due."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    written, save = [], RunFolder.save_checkpoint

    class Noted(Stored):
        def __init__(self, births, codes):
            self.then = codes.copy()

    def saved(self, state, stored=None, read=lambda: None):
        if stored is not None:
            written.append(np.array_equal(stored.codes, stored.then))
            assert np.array_equal(stored.births, state["learner"]["buffer"]["columns"]["births"])
        save(self, state, stored, read)

    monkeypatch.setattr(runner, "Background", Late)
    monkeypatch.setattr(runner, "Stored", Noted)
    monkeypatch.setattr(RunFolder, "save_checkpoint", saved)
    config = change(settings(make_photos(tmp_path / "photos")), {"checkpoint.seconds": 1e-9, "buffer.capacity": 12})
    runner.run(config, tmp_path / "run")
    assert len(written) > 6 and all(written)


def test_a_checkpoint_copies_weights_once(tmp_path, monkeypatch):
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    learners, live = [], []

    class Noted(runner._RunLoop):
        def _save(self, *given, **named):
            learners.append(self.learner)
            super()._save(*given, **named)

    def copy(state):
        own = {value.data_ptr() for value in learners[-1].network.parameters()}
        live.append(own <= {value.data_ptr() for value in state["learner"]["network"].values()})
        return copied(state)

    monkeypatch.setattr(runner, "_RunLoop", Noted)
    monkeypatch.setattr(runner, "copied", copy)
    runner.run(settings(make_photos(tmp_path / "photos")), tmp_path / "run")
    assert live and all(live)  # what is copied is no copy


def test_codes_of_damaged_segments_are_taken_from_the_prepared_data(small, tmp_path, monkeypatch, notes):
    config = change(small, {"budget.updates": 3, "checkpoint.seconds": 0})
    number, save = iter(range(100)), RunFolder.save_checkpoint
    runner.run(config, tmp_path / "straight")

    def saved(*given):
        save(*given)
        if next(number) == 5:  # in the second session
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RunFolder, "save_checkpoint", saved)
        runner.run(config, tmp_path / "run")
    place = RunFolder(tmp_path / "run")
    for path in segments(place):
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    said: list[str] = []
    assert place.load_checkpoint(said.append) is None and len(said) == 2  # both checkpoints name a damaged one
    runner.run(config, tmp_path / "run", notes)
    assert "its codes are taken from the prepared data" in notes and "from a checkpoint (session 2, update 2" in notes
    assert differences(tmp_path / "run", tmp_path / "straight") == []
