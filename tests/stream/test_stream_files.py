"""Streams in files: what is written comes back; what is damaged, foreign or of other data is refused."""

import json
import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graspcl.errors import GraspError
from graspcl.stream import ClassIncremental, Stream, TaskIncremental, load_stream, save_stream
from graspcl.testing import check_stream

LABELS = np.repeat(np.arange(6), 10)


def blurred():
    return ClassIncremental(np.arange(60), LABELS, 2, 2, np.random.default_rng(0), chunk=7, blurry=0.4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "streams" / "a.stream"  # in a folder still to be made, and under any name


def test_what_is_saved_comes_back(path):
    stream = blurred()
    ids = [f"photo {number} – ü.jpg" for number in range(60)]
    save_stream(stream, path, fingerprint="abc", ids=ids)
    assert [file.name for file in path.parent.iterdir()] == ["a.stream"]
    loaded = load_stream(path, fingerprint="abc")
    assert type(loaded) is Stream and loaded.name == "class_incremental" and loaded.chunk == 7
    assert list(loaded.home.items()) == list(stream.home.items()) and loaded.home != loaded.arrival
    assert list(loaded.arrival.items()) == list(stream.arrival.items())
    assert loaded.counts == stream.counts and loaded.labels.tolist() == stream.labels.tolist()
    assert loaded.ids.tolist() == [ids[sample] for sample in stream.samples]
    told = [(chunk.indices.tolist(), chunk.session, chunk.ends_session) for chunk in loaded]
    assert told == [(chunk.indices.tolist(), chunk.session, chunk.ends_session) for chunk in stream]
    check_stream(lambda: load_stream(path), LABELS)


def test_saved_again_it_is_the_same_file(path, tmp_path):
    save_stream(blurred(), path, fingerprint="abc", ids=np.arange(60))
    save_stream(load_stream(path), tmp_path / "again", fingerprint="abc")
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


def test_tasks_come_back(path):
    task_of = np.repeat([2, 0, 1], 20)
    stream = TaskIncremental(
        np.arange(60), LABELS, task_of, np.random.default_rng(0), task_order=[1, 2, 0], base_tasks=1
    )
    save_stream(stream, path)
    assert load_stream(path).tasks == [2, 0] and load_stream(path).arrival == stream.arrival


def test_a_saved_stream_begins_at_its_beginning(path):
    stream = blurred()
    next(iter(stream))
    save_stream(stream, path)
    assert load_stream(path).passed == 0 and stream.passed == 1


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_stream_comes_back(tmp_path_factory, data):
    samples = data.draw(st.lists(st.integers(0, 10**15), unique=True, max_size=30))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(samples)), min_size=1, max_size=5)))
    base, *sessions = np.split(np.array(samples, np.int64), cuts)
    known = data.draw(st.booleans())
    labels = {sample: sample % 5 - 2 for sample in samples} if known else None
    stream = Stream(base, sessions, data.draw(st.integers(1, 9)), labels)
    path = tmp_path_factory.mktemp("any") / "stream.npz"
    save_stream(stream, path)
    loaded = load_stream(path)
    assert loaded.base.tolist() == base.tolist()
    assert [part.tolist() for part in loaded.sessions] == [part.tolist() for part in sessions]
    assert loaded.arrival == stream.arrival and loaded.counts == stream.counts and loaded.chunk == stream.chunk
    assert (loaded.labels is None) == (not known) and loaded.ids is None


def test_a_stream_of_other_data_is_refused(path):
    save_stream(blurred(), path, fingerprint="abc")
    with pytest.raises(GraspError, match="made for other data: abc, not xyz"):
        load_stream(path, fingerprint="xyz")
    assert load_stream(path).name == "class_incremental"
    save_stream(blurred(), path)
    with pytest.raises(GraspError, match="unnamed data"):
        load_stream(path, fingerprint="xyz")


def test_truncated_files_are_refused(path):
    save_stream(blurred(), path)
    whole = path.read_bytes()
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(GraspError, match="damaged, or not a saved stream"):
            load_stream(path)


def test_a_changed_byte_is_noticed_or_does_not_matter(path):
    save_stream(blurred(), path)
    whole, refused = path.read_bytes(), 0
    expected = load_stream(path)
    for position in range(0, len(whole), 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            loaded = load_stream(path)
        except GraspError:
            refused += 1
        else:  # a byte that a zip file does not need, such as a date
            assert loaded.samples.tolist() == expected.samples.tolist() and loaded.home == expected.home
    assert refused > len(whole) / 3 / 2


def foreign(kind, path):
    path.parent.mkdir(parents=True)
    if kind == "text":
        path.write_text("no stream at all")
    elif kind == "pickle":
        path.write_bytes(pickle.dumps({"base": [1]}))
    elif kind == "array":
        with open(path, "wb") as file:
            np.save(file, np.arange(3))
    elif kind == "arrays":
        with open(path, "wb") as file:
            np.savez(file, base=np.arange(3))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("header", "{}")
    elif kind == "other":
        with open(path, "wb") as file:
            np.savez(file, header=np.array(json.dumps({"format": "a picture"})))
    elif kind == "objects":
        with open(path, "wb") as file:
            np.savez(file, header=np.array({"format": "graspcl stream"}, object))


@pytest.mark.parametrize("kind", ["text", "pickle", "array", "arrays", "zip", "other", "objects"])
def test_foreign_files_are_refused(path, kind):
    foreign(kind, path)
    with pytest.raises(GraspError, match=r"a\.stream is damaged, or not a saved stream"):
        load_stream(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lengths": np.array([3, 3])}, "do not have the lengths it states"),
        ({"lengths": np.array([-1, 41])}, "do not have the lengths it states"),
        ({"lengths": np.array([20.0, 20.0])}, "lengths are not a list of whole numbers"),
        ({"base": np.zeros(20, np.int64)}, "is in the stream twice"),
        ({"base": None}, "its base are missing"),
        ({"labels": np.arange(3)}, "labels for 60 samples"),
        ({"ids": np.array(["a"])}, "ids for 60 samples"),
        ({"classes": np.arange(7), "home": np.zeros(7, np.int64)}, "home must give one of the stream's sessions"),
        ({"home": np.full(6, 3)}, "home must give one of the stream's sessions"),
        ({"tasks": np.arange(3)}, "2 sessions cannot have 3 tasks"),
    ],
)
def test_content_that_does_not_fit_together_is_refused(path, change, message):
    save_stream(blurred(), path)
    with np.load(path) as content:
        arrays = {**content, **change}
    with open(path, "wb") as file:
        np.savez(file, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(GraspError, match=f"is damaged, .*{message}"):
        load_stream(path)


def test_a_later_version_is_named(path):
    save_stream(blurred(), path)
    with np.load(path) as content:
        arrays = dict(content)
    arrays["header"] = np.array(json.dumps({**json.loads(str(arrays["header"])), "version": 2}))
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(GraspError, match="'graspcl stream', version 2; this graspcl reads version 1"):
        load_stream(path)


def test_places_that_cannot_be_used(path, tmp_path):
    with pytest.raises(GraspError, match="there is no saved stream at"):
        load_stream(path)
    with pytest.raises(GraspError, match="damaged, or not a saved stream"):
        load_stream(tmp_path)
    with pytest.raises(GraspError, match="cannot be written"):
        save_stream(blurred(), tmp_path)
    with pytest.raises(GraspError, match="ids must name every sample"):
        save_stream(blurred(), path, ids=["a", "b"])
    assert not path.exists()
