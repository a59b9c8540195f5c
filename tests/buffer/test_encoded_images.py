"""A buffer of images as they came: bytes and paths, what they count, and what is refused."""

import io

import numpy as np
import pytest
import torch

pytest.importorskip("PIL.Image", reason="needs pillow")

from PIL import Image

from graspcl.buffer import Buffer, rules
from graspcl.codec import Encoded
from graspcl.errors import GraspError
from graspcl.learner import column_shapes
from graspcl.model import vector_network
from graspcl.state import load_state, save_state


def photos(number, seed=0, side=16):
    """PNG files of noise, the later the larger."""
    rng = np.random.default_rng(seed)
    files = []
    for i in range(number):
        file = io.BytesIO()
        size = side + 2 * (i % 5)
        Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    return files


LABELS = np.arange(20) % 4


def test_images_come_back_by_slot():
    files = photos(20)
    buffer = Buffer(codec=Encoded(8))
    placed = buffer.insert(files, LABELS)
    assert placed.slots.tolist() == list(range(20)) and buffer["codes"].tolist() == files
    inputs, labels = buffer.fetch([3, 0, 3])
    assert inputs.shape == (3, 3, 8, 8) and inputs.dtype == torch.uint8 and labels.tolist() == [3, 0, 3]
    assert torch.equal(inputs, Encoded(8).decode(np.array([files[3], files[0], files[3]], object)))


def test_bytes_are_those_of_the_files(tmp_path):
    files = photos(20)
    paths = [tmp_path / f"{i}.png" for i in range(20)]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    held, named = Buffer(codec=Encoded(8)), Buffer(codec=Encoded(8))
    held.insert(files, LABELS)
    named.insert(paths, LABELS)
    assert held.nbytes == named.nbytes > sum(map(len, files))
    assert torch.equal(held.fetch(np.arange(20))[0], named.fetch(np.arange(20))[0])


@pytest.mark.parametrize("rule", rules.names())
def test_a_bound_in_bytes_holds_whatever_the_rule(rule):
    made = rules.create(rule, **({"per_class": 2} if rule == "ring" else {}))
    columns = column_shapes(made, vector_network(4, embedding=3, generator=torch.Generator()))
    total = sum(map(len, photos(20)))
    buffer = Buffer(f"{total // 2}B", Encoded(8), made, columns)
    rng = np.random.default_rng(1)
    for seed in range(5):
        values = {name: rng.random((20, *shape)).astype(np.float32) for name, (shape, _) in columns.items()}
        files, ids = photos(20, seed), 20 * seed + np.arange(20)
        placed = buffer.insert(files, LABELS, ids, {n: v for n, v in values.items() if n not in made.fills})
        assert 0.6 * total / 2 < buffer.nbytes <= total // 2
        kept = placed.slots >= 0
        assert np.array_equal(buffer.ids[placed.slots[kept]], ids[kept])
        assert buffer["codes"][placed.slots[kept]].tolist() == [files[i] for i in np.flatnonzero(kept)]
        assert np.array_equal(np.bincount(buffer.labels, minlength=4)[buffer.classes], buffer.sizes)


@pytest.mark.parametrize("rule", rules.names())
def test_a_bound_in_bytes_holds_when_images_grow_and_shrink(rule):
    made = rules.create(rule, **({"per_class": 30} if rule == "ring" else {}))
    columns = column_shapes(made, vector_network(4, embedding=3, generator=torch.Generator()))
    buffer = Buffer("20KB", Encoded(8), made, columns)
    rng = np.random.default_rng(1)
    for number, (count, side) in enumerate([(60, 10), (20, 30), (43, 10), (60, 11), (30, 8), (12, 40)]):
        values = {name: rng.random((count, *shape)).astype(np.float32) for name, (shape, _) in columns.items()}
        ids, before = 100 * number + np.arange(count), buffer.ids.tolist()
        given = {name: value for name, value in values.items() if name not in made.fills}
        placed = buffer.insert(photos(count, number, side), np.arange(count) % 4, ids, given)
        assert 4_000 < buffer.nbytes <= 20_000, (number, len(buffer))
        kept = placed.slots >= 0
        assert np.array_equal(buffer.ids[placed.slots[kept]], ids[kept])
        went = set(before) - set(buffer.ids.tolist())
        assert {before[slot] for slot in placed.evicted} == went
        referenced = sum(len(code) for code in buffer._storage["codes"] if isinstance(code, bytes))
        assert referenced == buffer["lengths"].sum()  # what is gone is not kept in memory


def test_codes_given_as_a_list_keep_every_byte():
    files = [content + b"\0\0" for content in photos(3)]
    buffer = Buffer(codec=Encoded(8))
    buffer.insert_codes(files, [0, 1, 2])
    assert buffer["codes"].tolist() == files


def test_overflow_is_brought_back_by_compress():
    total = sum(map(len, photos(20)))
    buffer = Buffer(f"{total // 2}B", Encoded(8))
    buffer.insert(photos(20), LABELS, overflow=True)
    assert len(buffer) == 20 and buffer.nbytes > total
    gone = buffer.compress()
    assert len(gone) + len(buffer) == 20 and buffer.nbytes <= total // 2
    assert set(buffer.ids.tolist()) == set(range(20)) - set(gone.tolist())


def test_state_survives_a_file(tmp_path):
    (tmp_path / "ü.png").write_bytes(photos(1)[0])
    buffer = Buffer(codec=Encoded(8), capacity=6)
    buffer.insert([*photos(5), tmp_path / "ü.png"], LABELS[:6])
    save_state(tmp_path / "state.safetensors", buffer.state_dict())
    other = Buffer(codec=Encoded(8), capacity=6)
    other.load_state_dict(load_state(tmp_path / "state.safetensors"))
    assert other["codes"].tolist() == buffer["codes"].tolist() and other.nbytes == buffer.nbytes
    for each in (buffer, other):
        each.insert(photos(3, seed=9), [0, 1, 2])
    assert other["codes"].tolist() == buffer["codes"].tolist()


def test_what_cannot_be_stored_is_refused_and_nothing_is_lost(tmp_path):
    buffer = Buffer("20KB", Encoded(8))
    buffer.insert(photos(3), [0, 1, 2])
    before = buffer["codes"].tolist()
    for inputs, message in (
        ([tmp_path / "none.jpg"], "none.jpg"),
        ([np.zeros((3, 8, 8))], "takes the bytes or the path"),
        ([photos(1, side=120)[0]], "holds no sample"),
    ):
        with pytest.raises(GraspError, match=message):
            buffer.insert(inputs, [0])
    with pytest.raises(GraspError, match="storage='ram'"):
        Buffer(codec=Encoded(8), storage=tmp_path / "mapped")
    assert buffer["codes"].tolist() == before


def test_a_file_that_is_no_image_is_named_when_it_is_fetched(tmp_path):
    bad = tmp_path / "broken.jpg"
    bad.write_bytes(b"no image at all")
    buffer = Buffer(codec=Encoded(8))
    buffer.insert([bad], [0])
    with pytest.raises(GraspError, match=r"broken\.jpg"):
        buffer.fetch([0])
