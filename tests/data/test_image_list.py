"""Images named in text files, as Places-LT is distributed: what is found and which errors are raised."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
from picture_files import pack, paths, stored, write

from graspcl.data import ImageFolder, ImageList, data_sources, open_images
from graspcl.errors import GraspError

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
TRAIN = """data_256/a/abbey/1.jpg 0
data_256/y/yard/1.jpg 1
data_256/a/abbey/2.jpg 0
"""
TEST = "val_256/Places365_val_1.jpg 1\nval_256/Places365_val_2.jpg 0\n"
FILES = [line.split()[0] for line in (TRAIN + TEST).splitlines()]


@pytest.fixture
def places(tmp_path: Path) -> Path:
    root = write(tmp_path / "places", [*FILES, "data_256/z/zoo/1.jpg"])  # one that no list names
    return lists(root)


def lists(root: Path, train: str = TRAIN, test: str = TEST) -> Path:
    (root / "Places_LT_train.txt").write_text(train)
    (root / "Places_LT_test.txt").write_text(test)
    return root


def called(names: dict[str, int], root: Path) -> list[str]:
    """The classes of a list of these images, all of which exist."""
    write(root, [*names, "test.jpg"], size=(4, 4))
    lists(root, "".join(f"{name} {label}\n" for name, label in names.items()), "test.jpg 0\n")
    return ImageList(root).classes


# -- what is found -----------------------------------------------------------------------------------------------------


def test_images_labels_and_split_are_those_of_the_lists(places: Path) -> None:
    images = ImageList(places, pixels=16)
    assert images.classes == ["abbey", "yard"] and images.labels.tolist() == [0, 1, 0, 1, 0]
    assert images.train.tolist() == [0, 1, 2] and images.test.tolist() == [3, 4]
    assert paths(images, range(5)) == [places / name for name in FILES]
    assert stored(images, [3, 0]) == [(places / FILES[3]).read_bytes(), (places / FILES[0]).read_bytes()]
    assert images.read([4, 1]).shape == (2, 3, 16, 16)
    assert images.name == "places" and images.options == {"pixels": 16} and images.problems == []


def test_lists_are_found_by_path_and_by_name(places: Path, tmp_path: Path) -> None:
    expected = ImageList(places).fingerprint()
    elsewhere = tmp_path / "lists"
    elsewhere.mkdir()
    for kind in ("train", "test"):
        shutil.copy(places / f"Places_LT_{kind}.txt", elsewhere / f"Places_LT_{kind}.txt")
    (elsewhere / "mine.txt").write_text(TEST)
    given: list[dict[str, Any]] = [
        {"train": "Places_LT_train.txt"},
        {"train": "Places_LT_train.txt", "test": "Places_LT_test.txt"},
        {"train": elsewhere / "Places_LT_train.txt"},
        {"train": "Places_LT_train.txt", "test": elsewhere / "mine.txt"},
    ]
    assert {ImageList(places, **some).fingerprint() for some in given} == {expected}


def test_the_list_to_test_on_is_test_else_val(places: Path) -> None:
    (places / "Places_LT_val.txt").write_text("val_256/Places365_val_2.jpg 0\n")
    assert len(ImageList(places).test) == 2
    (places / "Places_LT_test.txt").unlink()
    assert len(ImageList(places).test) == 1
    (places / "Places_LT_val.txt").unlink()
    with pytest.raises(GraspError, match=r"no Places_LT_test\.txt or Places_LT_val\.txt next to .*_train\.txt"):
        ImageList(places)


@pytest.mark.parametrize("wrap", ["", "places/"])
def test_a_zip_file_is_the_same(places: Path, tmp_path: Path, wrap: str) -> None:
    folder = ImageList(places, pixels=16)
    zipped = ImageList(pack(places, tmp_path / "places.zip", wrap), pixels=16)
    assert zipped.fingerprint() == folder.fingerprint()
    assert bool((zipped.read(range(5)) == folder.read(range(5))).all())


def test_lists_beside_a_zip_file(places: Path, tmp_path: Path) -> None:
    for kind in ("train", "test"):
        shutil.move(places / f"Places_LT_{kind}.txt", tmp_path / f"places_{kind}.txt")
    archive = pack(places, tmp_path / "places.zip")
    assert ImageList(archive).labels.tolist() == [0, 1, 0, 1, 0]
    archive.rename(tmp_path / "other.zip")
    with pytest.raises(GraspError, match=r"other\.zip has no list that ends in _train\.txt"):
        ImageList(tmp_path / "other.zip")


def test_zip_files_in_place_of_folders(places: Path) -> None:
    folder = ImageList(places, pixels=16)
    expected = folder.read(range(5))
    for part in ("data_256", "val_256"):
        pack(places / part, places / f"{part}.zip")
        shutil.rmtree(places / part)
    zipped = ImageList(places, pixels=16)
    assert zipped.fingerprint() == folder.fingerprint()
    assert bool((zipped.read(range(5)) == expected).all())


def test_ids_stay_when_lists_grow(places: Path) -> None:
    before = ImageList(places)
    lists(places, "data_256/z/zoo/1.jpg 2\n" + TRAIN)
    after = ImageList(places)
    assert after.classes == ["abbey", "yard", "zoo"] and set(before.ids.tolist()) < set(after.ids.tolist())


def test_lines_may_have_several_forms(places: Path) -> None:
    """Spaces in a name, tabs, empty lines, ends of lines of other systems, a mark at the beginning."""
    write(places, ["data_256/a/abbey/a b.jpg"])
    text = "\ufeff./data_256/a/abbey/a b.jpg\t0\r\n\r\ndata_256//y/yard/1.jpg   1  \r\n"
    (places / "Places_LT_train.txt").write_bytes(text.encode())
    images = ImageList(places)
    assert paths(images, images.train) == [places / "data_256/a/abbey/a b.jpg", places / FILES[1]]


def test_absolute_paths_are_accepted(places: Path) -> None:
    expected = ImageList(places)
    lists(places, TRAIN.replace("data_256", f"{places}/data_256"))
    assert stored(ImageList(places), range(5)) == stored(expected, range(5))


# -- what classes are called -------------------------------------------------------------------------------------------


def test_folders_of_the_same_name_are_named_with_their_parents(tmp_path: Path) -> None:
    names = {"d/a/airfield/1.jpg": 0, "d/h/hotel/outdoor/1.jpg": 1, "d/m/museum/outdoor/1.jpg": 2, "d/y/1.jpg": 3}
    assert called(names, tmp_path) == ["airfield", "hotel/outdoor", "museum/outdoor", "y"]


def test_a_folder_within_another_of_its_name(tmp_path: Path) -> None:
    assert called({"b/1.jpg": 0, "a/b/1.jpg": 1, "c/1.jpg": 2}, tmp_path) == ["b", "a/b", "c"]


@pytest.mark.parametrize(
    "names, expected",
    [
        ({"all/1.jpg": 0, "all/2.jpg": 1, "c/1.jpg": 2}, ["0", "1", "c"]),  # one folder for two classes
        ({"1.jpg": 0, "2.jpg": 1}, ["0", "1"]),  # none
        ({"a/1.jpg": 0, "b/1.jpg": 0, "c/1.jpg": 1}, ["0", "c"]),  # two for one class
        ({"1/1.jpg": 0, "1.jpg": 1}, ["0", "1"]),  # called like the other's number
    ],
)
def test_classes_without_a_folder_of_their_own(tmp_path: Path, names: dict[str, int], expected: list[str]) -> None:
    assert called(names, tmp_path) == expected


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "train, message",
    [
        ("data_256/a/abbey/1.jpg\n", r"_train\.txt, line 1: 'data_256/a/abbey/1\.jpg' has no label; a line is 'path"),
        (f"{TRAIN}\n7\n", r"_train\.txt, line 5: '7' has no label"),
        ("data_256/a/abbey/1.jpg abbey\n", r"_train\.txt, line 1: the label must be a whole number .* got 'abbey'"),
        ("data_256/a/abbey/1.jpg 0\ndata_256/a/abbey/2.jpg -1\n", r"_train\.txt, line 2: .* from 0, got '-1'"),
        ("data_256/a/abbey/1.jpg 1.0\n", r"line 1: the label must be a whole number from 0, got '1\.0'"),
        (f"data_256/a/abbey/1.jpg {9**99}\n", r"line 1: the label must be a whole number"),
        (TRAIN + "data_256/a/abbey/1.jpg 1\n", r"line 4: .*abbey/1\.jpg is already named in .*_train\.txt, line 1;"),
        (TRAIN + f"{FILES[4]} 0\n", r"_test\.txt, line 2: .*val_2\.jpg is already named in .*_train\.txt, line 4;"),
        (
            TRAIN + "data_256/a/abbey/9.jpg 0\n",
            r"_train\.txt, line 4: there is no .*a/abbey/9\.jpg; paths are relative to",
        ),
        (TRAIN + "data_256/a/abbey 0\n", r"_train\.txt, line 4: there is no .*a/abbey;"),
        ("a/1.jpg 0\na/2.jpg 0\na/3.jpg 1\n", r"line 1: there is no .*a/1\.jpg; 2 more images are missing; paths"),
        (
            "data_256/a/abbey/1.jpg 0\n",
            r"_test\.txt, line 1: label 1 is not in .*_train\.txt; add training images of it",
        ),
        ("\n \n", r"_train\.txt names no image"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_a_wrong_line_is_named(places: Path, train: str, message: str, zipped: bool) -> None:
    lists(places, train)
    with pytest.raises(GraspError, match=message):
        ImageList(pack(places, places.parent / "p.zip") if zipped else places)


def test_a_label_beyond_the_declared_range_is_named(places: Path) -> None:
    assert len(ImageList(places, classes=2).classes) == 2
    lists(places, TRAIN + "data_256/z/zoo/1.jpg 2\n")
    with pytest.raises(GraspError, match=r"_train\.txt, line 4: the label must lie in 0\.\.1 for 2 classes, got 2"):
        ImageList(places, classes=2)
    lists(places, TRAIN, "val_256/Places365_val_1.jpg 7\n")
    with pytest.raises(GraspError, match=r"_test\.txt, line 1: the label must lie in 0\.\.1 .* got 7"):
        ImageList(places, classes=2)


def test_labels_without_images_are_left_out_and_named(places: Path) -> None:
    lists(places, TRAIN + "data_256/z/zoo/1.jpg 4\n")
    images = ImageList(places)
    assert images.classes == ["abbey", "yard", "zoo"] and images.labels.tolist() == [0, 1, 0, 2, 1, 0]
    (problem,) = images.problems
    assert problem.endswith("Places_LT_train.txt has labels without images, left out: 2, 3")
    assert ImageList(places, classes=365).problems[0].endswith("left out: 2, 3, 5, 6, 7 and 357 more")


def test_damaged_images_are_found_at_reading(places: Path) -> None:
    (places / FILES[1]).write_bytes(b"text")
    images = ImageList(places, pixels=16)
    _, kept, problems = images.read_some(range(5))
    assert kept.tolist() == [0, 2, 3, 4]
    assert problems == [f"{places / FILES[1]} cannot be read: it is not an image"]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"train": "nowhere.txt"}, r"there is no list nowhere\.txt, neither as a path nor in .*places"),
        ({"test": "nowhere.txt"}, r"there is no list nowhere\.txt"),
        ({"train": "mine.txt"}, r"there is no list to test on next to .*mine\.txt; name the list to use as test"),
        ({"pixels": 0}, r"pixels must be a whole number in \[1, 4096\], got 0"),
        ({"classes": 0}, "classes must be a whole number of at least 1 or none, got 0"),
    ],
)
def test_wrong_options_are_refused(places: Path, options: dict[str, Any], message: str) -> None:
    (places / "mine.txt").write_text(TRAIN)
    with pytest.raises(GraspError, match=message):
        ImageList(places, **options)


def test_ambiguous_and_missing_lists_are_refused(places: Path) -> None:
    (places / "b_train.txt").write_text(TRAIN)
    with pytest.raises(
        GraspError, match=r"several lists to train on: Places_LT_train\.txt, b_train\.txt; name the list to use"
    ):
        ImageList(places)
    with pytest.raises(GraspError, match="there is no image folder at"):
        ImageList(places / "nowhere")


# -- one way to open images --------------------------------------------------------------------------------------------


def test_images_are_opened_by_what_is_there(places: Path, tmp_path: Path) -> None:
    opened = open_images(places, 16)
    assert type(opened) is ImageList and opened.fingerprint() == ImageList(places, pixels=16).fingerprint()
    assert type(open_images(str(pack(places, tmp_path / "places.zip")), 16)) is ImageList
    for kind in ("train", "test"):
        shutil.move(places / f"Places_LT_{kind}.txt", tmp_path / f"{kind}.txt")
    shutil.rmtree(places / "val_256")
    folder = open_images(places, 16)
    assert type(folder) is ImageFolder and folder.options == {"pixels": 16, "test_share": 0.1}


def test_the_list_to_test_on_is_chosen(places: Path) -> None:
    (places / "Places_LT_val.txt").write_text("val_256/Places365_val_2.jpg 0\n")
    assert {split: len(open_images(places, test_split=split).test) for split in ("val", "test")} == {
        "val": 1,
        "test": 2,
    }
    (places / "Places_LT_val.txt").unlink()
    with pytest.raises(GraspError, match=r"there is no Places_LT_val\.txt next to .*Places_LT_train\.txt"):
        open_images(places, test_split="val")


def test_wrong_options_get_a_hint(places: Path) -> None:
    with pytest.raises(GraspError, match=r"has no parameter 'pixel'; did you mean 'pixels'\?"):
        data_sources.create(f"images:{places}", pixel=8)
    with pytest.raises(
        GraspError, match=r"val_mapping is for class folders, but Places_LT_train\.txt lists the images"
    ):
        open_images(places, val_mapping="val.txt")
    with pytest.raises(GraspError, match="there is no image folder at"):
        open_images(places / "nowhere")


# -- a real set --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "miniplaces-lt").is_dir(), reason="needs ../shared/data/miniplaces-lt")
def test_lists_of_a_long_tailed_set(tmp_path: Path) -> None:
    folder = ImageFolder(SHARED / "miniplaces-lt", pixels=64)
    for kind in ("train", "val"):
        with ZipFile(SHARED / "miniplaces-lt" / f"{kind}.zip") as zipped:
            rows = [f"{kind}/{name} {folder.classes.index(name.split('/')[0])}" for name in zipped.namelist()]
        (tmp_path / f"Places_LT_{kind}.txt").write_text("\n".join(rows))
    images = ImageList(SHARED / "miniplaces-lt", tmp_path / "Places_LT_train.txt", pixels=64, classes=100)
    assert images.classes == folder.classes and images.problems == []
    assert len(images.train) == 8223 and len(images.test) == 2000
    sizes = np.bincount(images.labels[images.train])
    assert (sizes == np.bincount(folder.labels[folder.train])).all() and (sizes.max(), sizes.min()) == (900, 5)
    label_of = dict(zip(folder.ids.tolist(), folder.labels.tolist(), strict=True))  # ids are of the same names
    assert images.labels.tolist() == [label_of[number] for number in images.ids.tolist()]
    some = images.train[::200]
    _, at, _ = np.intersect1d(folder.ids, images.ids[some], return_indices=True)
    assert len(at) == len(some)
    batch, kept, problems = images.read_some(some)
    assert len(kept) == len(some) and problems == []
    order = np.argsort(images.ids[some])
    assert bool((batch[order] == folder.read(at)).all())


@pytest.mark.skipif(not (SHARED / "miniplaces-lt").is_dir(), reason="needs ../shared/data/miniplaces-lt")
def test_lists_of_one_zip_file(tmp_path: Path) -> None:
    with ZipFile(SHARED / "miniplaces-lt" / "val.zip") as zipped:
        names = sorted(zipped.namelist())
    classes = sorted({name.split("/")[0] for name in names})
    for kind, part in (("train", names[::2]), ("test", names[1::2])):
        rows = [f"{name} {classes.index(name.split('/')[0])}" for name in part]
        (tmp_path / f"{kind}.txt").write_text("\n".join(rows))
    images = ImageList(SHARED / "miniplaces-lt" / "val.zip", tmp_path / "train.txt", pixels=32)
    assert images.classes == classes
    assert len(images.train) == len(images.test) == 1000
    assert images.read(images.test[:7]).shape == (7, 3, 32, 32)
