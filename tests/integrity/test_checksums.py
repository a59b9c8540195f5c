"""Checksums: what was written is read back, and anything else is refused."""

import errno
import io
import json
import mmap
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch

import graspcl
from graspcl import Buffer, Learner, integrity
from graspcl.errors import GraspError
from graspcl.experiment import RunFolder
from graspcl.integrity import Damaged, pack_arrays, read_arrays, read_object, read_text, seal_object
from graspcl.model import vector_network
from graspcl.objects import Objects
from graspcl.pretrain import load_weights, read_header, save_weights
from graspcl.settings.read import read_toml
from graspcl.state import load_state, pack_state, save_state, write_output, write_whole


def flips(content):
    """The content with each of its bits turned over, one at a time."""
    for place in range(len(content)):
        for bit in range(8):
            bent = bytearray(content)
            bent[place] ^= 1 << bit
            yield bytes(bent)


def test_every_bit_of_arrays_counts(tmp_path):
    file, arrays = tmp_path / "a.npz", {"x": np.arange(3), "name": np.array("µ"), "none": np.empty((0, 2))}
    content = pack_arrays(arrays)
    file.write_bytes(content)
    found = read_arrays(file)
    assert found.keys() == arrays.keys() and all(np.array_equal(found[name], arrays[name]) for name in arrays)
    with np.load(file) as plain:
        assert np.array_equal(plain["x"], arrays["x"])
    for damaged in (*flips(content), *(content[:end] for end in range(len(content))), content + b"x"):
        file.write_bytes(damaged)
        with pytest.raises(Damaged):
            read_arrays(file)


def test_a_pipe_in_a_run_folder_is_not_waited_for(tmp_path):
    place = RunFolder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for name in ("config.toml", "classes.json", "checksums.json", "a.npz", "checkpoints/000001.safetensors"):
        os.mkfifo(tmp_path / name)
    for read in (lambda: read_arrays(tmp_path / "a.npz"), lambda: read_text(tmp_path / "classes.json")):
        with pytest.raises(OSError, match="it is a pipe, not a regular file"):
            read()
    with pytest.raises(GraspError, match="it is a pipe"):
        load_state(tmp_path / "checkpoints" / "000001.safetensors")
    with pytest.raises(GraspError):
        place.config()
    assert place.load_checkpoint(lambda said: None) is None


def test_checksums_that_cannot_be_read_are_named_beside_the_text(tmp_path):
    place = RunFolder(tmp_path)
    (tmp_path / "config.toml").write_text("")
    os.mkfifo(tmp_path / "checksums.json")
    why = r"checksums\.json beside it cannot be opened \(it is a pipe, not a regular file\)"
    with pytest.raises(GraspError, match=rf"config\.toml cannot be read: {why}"):
        place.config()
    with pytest.raises(GraspError, match=f"cannot be written: {why}"):
        place.write_json("summary", {})


def test_arrays_that_unpack_too_far_are_not_unpacked(tmp_path):
    (tmp_path / "a.npz").write_bytes(pack_arrays({"x": np.zeros(120 * 2**20, np.uint8)}))
    with pytest.raises(Damaged, match=r"it unpacks to 125,\d+,\d+ bytes, more than 100 times its size"):
        read_arrays(tmp_path / "a.npz")


def test_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "a.npz").write_bytes(pack_arrays({"x": np.arange(3)}))
    tracemalloc.start()
    read_arrays(tmp_path / "a.npz")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7


def test_every_bit_of_a_state_counts(tmp_path):
    file = tmp_path / "state"
    save_state(file, {"x": np.arange(2), "half": torch.ones(1, dtype=torch.bfloat16), "n": [1, {"y": None}]})
    content, state = file.read_bytes(), load_state(file)
    accepted = 0
    for damaged in (*flips(content), *(content[:end] for end in range(len(content))), content + b"x"):
        file.write_bytes(damaged)
        try:
            found = load_state(file)
        except GraspError:
            continue
        accepted += 1  # a blank that is another blank
        assert repr(found) == repr(state)
    assert accepted < 20


def test_a_finite_number_that_turns_into_another_is_found_in_weights(tmp_path):
    file, network = (
        tmp_path / "weights.safetensors",
        vector_network(4, classes=3, generator=torch.Generator().manual_seed(0)),
    )
    save_weights(network, file, settings={"classes": ["a", "b", "c"]})
    assert read_header(file)["settings"]["classes"] == ["a", "b", "c"]
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    with pytest.raises(GraspError, match="are damaged or not a safetensors file: its content does not match"):
        load_weights(network, file)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_files_of_tensors_are_those_that_safetensors_writes():
    from safetensors.torch import save

    names = "uint64 int64 float64 complex64 float32 uint32 int32 bfloat16 float16 uint16 int16 int8 uint8 bool"
    kinds = [getattr(torch, name) for name in (*names.split(), "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")]
    tensors = {f"{at}é\n{kind}": torch.ones(at % 4, 3).to(kind) for at, kind in enumerate(kinds)}
    tensors |= {"number": torch.tensor(2.5), "b": torch.zeros(2), "a": torch.zeros(3)}
    packed = integrity.pack_tensors(tensors, {"x": "é"})
    length = int.from_bytes(packed[:8], "little")
    assert packed == save(tensors, json.loads(packed[8 : 8 + length])["__metadata__"])


def test_a_state_is_written_from_the_arrays_as_they_lie():
    codes, weights = np.arange(12, dtype=np.uint8).reshape(3, 4), torch.ones(3)
    codes.flags.writeable = False
    _, *parts = pack_state({"weights": weights, "codes": codes, "reversed": np.arange(3)[::-1]})
    assert [np.shares_memory(part, own) for part, own in zip(parts[1:], (weights.numpy(), codes), strict=True)] == [
        True,
        True,
    ]


def test_equal_states_are_equal_files(tmp_path):
    """In other processes, too: hash tables of safetensors have random orders."""
    code = "import sys, numpy as np; from pathlib import Path; from graspcl.state import save_state; "
    code += "save_state(Path(sys.argv[1]), {'x': np.arange(3), 'y': 1})"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "other")], check=True)
    save_state(tmp_path / "own", {"x": np.arange(3), "y": 1})
    assert (tmp_path / "own").read_bytes() == (tmp_path / "other").read_bytes()


def test_files_of_earlier_versions_are_read_and_that_is_said(tmp_path):
    from safetensors.torch import save_file

    header = {"dict": [["x", {"tensor": "0:/x"}]]}
    save_file({"0:/x": torch.arange(3)}, tmp_path / "state", {"graspcl": json.dumps(header)})
    said = []
    assert load_state(tmp_path / "state", said.append)["x"].tolist() == [0, 1, 2]
    assert len(said) == 1 and said[0].endswith("is of an earlier version and has no checksum: it is used unverified")
    np.savez(tmp_path / "a.npz", x=np.arange(2))
    assert read_arrays(tmp_path / "a.npz")["x"].tolist() == [0, 1]
    (tmp_path / "config.toml").write_text("seed = 3")
    assert read_toml(tmp_path / "config.toml") == {"seed": 3}
    assert read_object(b'{"pid": 3}') == {"pid": 3}


def test_an_object_is_what_it_was():
    sealed = seal_object({"pid": 7, "loss": 0.25, "none": None})
    assert read_object(sealed) == {"pid": 7, "loss": 0.25, "none": None}
    for damaged in (sealed.replace(b"7", b"8", 1), sealed[:-1], b"[]", b"\xff", b"", b"[" * 100_000):
        with pytest.raises(Damaged):
            read_object(damaged)


def test_texts_are_verified_and_may_be_changed_on_purpose(tmp_path):
    place = RunFolder(tmp_path)
    place.write_json("classes", ["ant", "bee"])
    place.write_config({"seed": 3})
    assert place.class_names() == ["ant", "bee"]
    (tmp_path / "classes.json").write_text('["ant", "bie"]')
    with pytest.raises(
        GraspError, match=r"classes.json cannot be read: its content .* delete checksums.json beside it"
    ):
        place.class_names()
    assert read_toml(tmp_path / "config.toml") == {"seed": 3}
    (tmp_path / "checksums.json").unlink()
    assert place.class_names() == ["ant", "bie"]


def test_damaged_checksums_are_told(tmp_path):
    place = RunFolder(tmp_path)
    place.write_json("classes", ["ant"])
    content = (tmp_path / "checksums.json").read_text()
    (tmp_path / "checksums.json").write_text(content[:-9])
    for use in (place.class_names, lambda: place.write_json("summary", {})):
        with pytest.raises(GraspError, match=r"checksums.json is damaged .*; delete it"):
            use()


@pytest.mark.parametrize("times", [1, 2])
def test_a_run_killed_before_its_text_is_replaced_keeps_the_old_one(tmp_path, monkeypatch, times):
    """Also if that happens twice: the checksum of what is there stays listed."""
    place = RunFolder(tmp_path)
    place.write_metrics([{"session": 1}])
    replace = os.replace

    def killed(part, path):
        if path.name == "metrics.jsonl":
            raise KeyboardInterrupt
        replace(part, path)

    monkeypatch.setattr("os.replace", killed)
    for number in range(times):
        with pytest.raises(KeyboardInterrupt):
            place.write_metrics([{"session": 1}, {"session": 2, "try": number}])
    assert json.loads(read_text(tmp_path / "metrics.jsonl")) == {"session": 1}


def test_a_file_is_synced_before_and_its_folder_after_it_is_in_place(tmp_path, monkeypatch):
    order, replace = [], os.replace
    monkeypatch.setattr("os.fsync", lambda file: order.append(os.path.basename(os.readlink(f"/proc/self/fd/{file}"))))
    monkeypatch.setattr("os.replace", lambda part, path: (order.append("replace"), replace(part, path)))
    write_whole(tmp_path / "a.txt", lambda file: file.write(b"x"))
    part, *others = order
    assert re.fullmatch(r"a\.txt\.\d+\.part", part) and others == ["replace", tmp_path.name]


def test_threads_that_write_one_file_do_not_share_its_parts(tmp_path):
    """Each has a partial file of its own. What is in place in the end is what one of them wrote."""
    meet = threading.Barrier(2, timeout=30)

    def write(file, letter):
        file.write(letter * 10)
        meet.wait()  # both are open
        file.write(letter * 10)

    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(write_whole, tmp_path / "a", partial(write, letter=letter)) for letter in (b"x", b"y")]
        assert [one.exception() for one in made] == [None, None]
    assert (tmp_path / "a").read_bytes() in (b"x" * 20, b"y" * 20) and [*tmp_path.iterdir()] == [tmp_path / "a"]


def test_an_output_is_written_where_its_link_leads_and_any_other_file_replaces_the_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "table.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("elsewhere/table.csv")
    write_output(tmp_path / "link.csv", lambda file: file.write(b"new"))
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "elsewhere" / "table.csv").read_text() == "new"
    write_whole(tmp_path / "link.csv", lambda file: file.write(b"newer"))
    assert not (tmp_path / "link.csv").is_symlink() and (tmp_path / "elsewhere" / "table.csv").read_text() == "new"


def test_what_a_user_saves_is_written_where_its_link_leads(tmp_path):
    (tmp_path / "state").write_text("old")
    (tmp_path / "link").symlink_to("state")
    graspcl.save(tmp_path / "link", {"x": 1})
    assert (tmp_path / "link").is_symlink() and graspcl.load(tmp_path / "state") == {"x": 1}


def test_devices_and_pipes_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to(os.devnull)
    for name in ("pipe", "device"):
        with pytest.raises(OSError, match=f"it is a {name}, not a regular file"):
            write_output(tmp_path / name, lambda file: file.write(b"x"))
    assert (tmp_path / "pipe").is_fifo() and (tmp_path / "device").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    write_whole(tmp_path / "loop", lambda file: file.write(b"x"))
    assert (tmp_path / "loop").read_bytes() == b"x" and len([*tmp_path.iterdir()]) == 3


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot tell")
def test_a_file_that_the_disk_cannot_read_is_damaged_and_does_not_end_the_process(tmp_path, monkeypatch):
    path, mapping = tmp_path / "state", mmap.mmap
    save_state(path, {"x": np.arange(100_000)})

    def failing(*arguments, **options):  # reading what is cut off fails as reading a bad block does
        content = mapping(*arguments, **options)
        os.truncate(path, 1)
        return content

    monkeypatch.setattr("mmap.mmap", failing)
    with pytest.raises(GraspError, match="the disk fails, or the file has been cut"):
        load_state(path)


def test_an_object_that_the_disk_cannot_read_is_told(tmp_path, monkeypatch):
    objects = Objects(tmp_path)
    name = objects.put({"x": np.arange(100_000)})

    class Failing(io.FileIO):
        def read(self, size=-1):
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("graspcl.objects.open_regular", Failing)
    assert objects.fault(name) == "cannot be read: Input/output error"


def test_what_is_no_file_is_not_an_object(tmp_path):
    objects = Objects(tmp_path)
    name = objects.put({"x": np.arange(3)})
    objects.path(name).unlink()
    assert objects.fault(name) == "is missing"
    os.mkfifo(objects.path(name))
    assert objects.fault(name) == "cannot be read: it is a pipe, not a regular file"
    objects.path(name).unlink()
    objects.path(name).touch()
    assert objects.fault(name) == "is damaged: its content does not match its name"


def test_an_object_that_may_not_be_read_is_not_damaged(tmp_path, monkeypatch):
    objects = Objects(tmp_path)
    name = objects.put({"x": np.arange(3)})

    def forbidden(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("graspcl.objects.open_regular", forbidden)
    for use in (objects.fault, objects.get, lambda one: objects.faults([one])):
        with pytest.raises(GraspError, match=r"\.safetensors may not be read \(Permission denied\): change its perm"):
            use(name)


def test_a_state_that_is_mapped_keeps_its_content(tmp_path):
    save_state(tmp_path / "state", {"x": np.arange(100_000)})
    mapped = load_state(tmp_path / "state")["x"]
    save_state(tmp_path / "state", {"x": np.zeros(3)})
    assert np.array_equal(mapped, np.arange(100_000))


def test_damage_of_any_kind_falls_back_to_the_checkpoint_before(tmp_path):
    place, said = RunFolder(tmp_path), []
    for number in range(3):
        place.save_checkpoint({"stream": {"passed": number}, "weights": np.full(50, float(number))})
    _, second = sorted((tmp_path / "checkpoints").iterdir())
    content = bytearray(second.read_bytes())
    content[-9] ^= 64  # a weight becomes another number
    second.write_bytes(content)
    state = place.load_checkpoint(said.append)
    assert state is not None and state["stream"]["passed"] == 1 and (state["weights"] == 1).all()
    assert len(said) == 1 and "trying the previous one" in said[0] and second.name in said[0]


def test_the_checksum_is_xxh3():
    assert integrity.checksum("") == "99aa06d3014798d86001c324468d497f"  # as published with the algorithm


def _learner():
    return Learner(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "uniform")


@pytest.mark.parametrize("alone", [0, 2**24])
def test_a_damaged_state_leaves_a_learner_as_it_is(tmp_path, monkeypatch, alone):
    """However large a state is: it is copied while a thread verifies it, and used afterwards."""
    monkeypatch.setattr(integrity, "_ALONE", alone)
    learner, other = (_learner() for _ in range(2))
    learner.observe(torch.arange(40.0).reshape(10, 4), [0, 1] * 5)
    learner.save(tmp_path / "state")
    before = pack_state(other.state_dict())
    content = bytearray((tmp_path / "state").read_bytes())
    content[-1] ^= 1
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(GraspError, match="does not match its checksum"):
        other.load(tmp_path / "damaged")
    assert b"".join(map(bytes, pack_state(other.state_dict()))) == b"".join(map(bytes, before))
    other.load(tmp_path / "state")
    assert len(other.buffer) == 10


def test_learners_that_load_one_file_share_nothing(tmp_path):
    learners = [_learner() for _ in range(3)]
    learners[0].observe(torch.arange(40.0).reshape(10, 4), [0, 1] * 5)
    learners[0].save(tmp_path / "state")
    before = (tmp_path / "state").read_bytes()
    for one in learners[1:]:
        one.load(tmp_path / "state")
    learners[1].observe(torch.ones(30, 4), [0, 1, 2] * 10)  # its columns grow
    learners[1].buffer["codes"][:] = 7
    learners[2].save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == before == (tmp_path / "state").read_bytes()
