"""Image folders and zip files of every form: what is found, how it is cut, and which errors are raised."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_files import Image, encoded, noise, pack, paths, stored, write

from graspcl.data import ImageFolder
from graspcl.errors import GraspError
from graspcl.images import Pixels, Source, decode_images

SHARED = Path(__file__).parents[2].parent / "shared" / "data"


TRAIN = [f"{name}/{number}.png" for name in ("dog", "cat") for number in (1, 2, 3)]
TEST = ["cat/7.png", "dog/8.png"]


@pytest.fixture
def split(tmp_path: Path) -> Path:
    write(tmp_path / "animals" / "train", TRAIN)
    write(tmp_path / "animals" / "val", TEST, size=(16, 20))
    return tmp_path / "animals"


# -- what is found ---------------------------------------------------------------------------------------------------


def test_a_split_folder(split: Path) -> None:
    images = ImageFolder(split, pixels=16)
    assert images.classes == ["cat", "dog"]
    assert images.labels.tolist() == [0, 0, 0, 1, 1, 1, 0, 1]
    assert images.train.tolist() == [0, 1, 2, 3, 4, 5] and images.test.tolist() == [6, 7]
    assert paths(images, [0])[0] == split / "train" / "cat" / "1.png"
    assert stored(images, [7, 0]) == [(split / "val/dog/8.png").read_bytes(), (split / "train/cat/1.png").read_bytes()]
    assert images.name == "animals" and images.options == {"pixels": 16}


@pytest.mark.parametrize("wrap", ["", "SPLIT/"])
def test_zip_files_are_the_same_samples_as_the_folders(split: Path, tmp_path: Path, wrap: str) -> None:
    folder, zips = ImageFolder(split, pixels=16), tmp_path / "zipped" / "animals"
    zips.mkdir(parents=True)
    for part in ("train", "val"):
        pack(split / part, zips / f"{part}.zip", wrap.replace("SPLIT", part))
    zipped = ImageFolder(zips, pixels=16)
    assert zipped.fingerprint() == folder.fingerprint()
    assert zipped.ids.tolist() == folder.ids.tolist()
    assert stored(zipped, [0, 6]) == stored(folder, [0, 6])
    assert bool((zipped.read(range(8)) == folder.read(range(8))).all())


def test_one_zip_with_both_splits(split: Path, tmp_path: Path) -> None:
    whole = pack(split, tmp_path / "animals.zip", wrap="animals/")
    assert ImageFolder(whole, pixels=16).fingerprint() == ImageFolder(split, pixels=16).fingerprint()


def test_ids_stay_when_files_are_added(split: Path) -> None:
    before = ImageFolder(split).ids.tolist()
    write(split / "train", ["ant/1.png", "cat/0.png"])
    after = ImageFolder(split)
    assert after.classes == ["ant", "cat", "dog"]
    assert set(before) <= set(after.ids.tolist())


def test_changed_files_have_another_version(split: Path) -> None:
    before = ImageFolder(split)
    (split / "train/cat/1.png").write_bytes(encoded(noise(30, 30)))
    after = ImageFolder(split)
    assert after.version != before.version and after.ids.tolist() == before.ids.tolist()


def test_the_split_to_test_on_can_be_chosen(split: Path) -> None:
    write(split / "test", ["images/1.png"])  # without labels, as in ImageNet
    assert len(ImageFolder(split).test) == 2
    write(split / "held-out", ["cat/9.png"])
    assert len(ImageFolder(split, test_split="held-out").test) == 1
    shutil.rmtree(split / "val")
    shutil.rmtree(split / "test" / "images")
    write(split / "test", ["cat/1.png"])
    assert len(ImageFolder(split).test) == 1


def test_other_files_and_hidden_ones_do_not_count(split: Path) -> None:
    for name in ("train/cat/notes.txt", "train/cat/._1.png", "train/.cache/1.png", "train/classes.txt"):
        (split / name).parent.mkdir(exist_ok=True)
        (split / name).write_text("nothing")
    assert len(ImageFolder(split)) == 8
    with zipfile.ZipFile(pack(split / "train", split / "more.zip"), "a") as zipped:
        zipped.writestr("__MACOSX/cat/._1.png", b"nothing")
    assert len(ImageFolder(split / "more.zip")) == 6


# -- the split that is made here -------------------------------------------------------------------------------------


def test_without_a_split_a_share_of_each_class_is_tested(tmp_path: Path) -> None:
    names = [f"{c}/{n}.png" for c, size in (("a", 40), ("b", 5), ("c", 1)) for n in range(size)]
    first = ImageFolder(write(tmp_path / "one", names, size=(4, 4)), pixels=4, test_share=0.2)
    assert np.bincount(first.labels[first.test], minlength=3).tolist() == [8, 1, 0]
    assert np.bincount(first.labels[first.train], minlength=3).tolist() == [32, 4, 1]
    shutil.move(tmp_path / "one", tmp_path / "two")
    again = ImageFolder(tmp_path / "two", pixels=4, test_share=0.2)
    assert again.test.tolist() == first.test.tolist() and again.ids.tolist() == first.ids.tolist()
    zipped = ImageFolder(pack(tmp_path / "two", tmp_path / "two.zip"), pixels=4, test_share=0.2)
    assert zipped.fingerprint() == again.fingerprint()
    assert len(ImageFolder(tmp_path / "two", test_share=0).test) == 0


def test_the_split_is_by_hash_not_by_name_order(tmp_path: Path) -> None:
    images = ImageFolder(write(tmp_path, [f"a/{n:03}.png" for n in range(100)], size=(2, 2)), test_share=0.3)
    assert len(images.test) == 30
    assert 30 < images.test.mean() < 70 and len(np.unique(np.diff(images.test))) > 3


def test_a_train_folder_alone_is_split(split: Path) -> None:
    shutil.rmtree(split / "val")
    assert len(ImageFolder(split).test) == 2 and ImageFolder(split).options["test_share"] == 0.1


# -- images without class folders --------------------------------------------------------------------------------------


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    write(tmp_path / "train", ["n01/images/n01_0.JPEG.png", "n02/images/n02_0.png", "n02/images/n02_1.png"])
    (tmp_path / "train" / "n01" / "n01_boxes.txt").write_text("0 0 1 1")
    write(tmp_path / "val", ["images/val_0.png", "images/val_1.png"])
    return tmp_path


def test_tiny_imagenet_as_it_is_distributed(flat: Path, tmp_path: Path) -> None:
    (flat / "val" / "val_annotations.txt").write_text("val_0.png\tn02\t0\t32\t44\t62\nval_1.png\tn01\t1\t2\t3\t4\n")
    images = ImageFolder(flat)
    assert images.classes == ["n01", "n02"] and images.labels.tolist() == [0, 1, 1, 1, 0]
    assert ImageFolder(pack(flat, tmp_path / f"{flat.name}.zip")).labels.tolist() == images.labels.tolist()


@pytest.mark.parametrize(
    "text",
    [
        "val_0.png n02\nval_1.png n01\nval_77.png n01\n",
        "images/val_0.png n02\n\nimages/val_1.png n01",
        "val_0.png 1\nval_1.png 0\n",
        "ImageId,PredictionString\nval_0,n02 1 2 3 4\nval_1,n01 5 6 7 8 n01 1 1 1 1\n",
    ],
)
def test_usual_forms_of_mappings_are_read(flat: Path, text: str) -> None:
    (flat / "mapping.txt").write_text(text)
    for given in (flat / "mapping.txt", "mapping.txt"):  # a path, or a name within the folder
        assert ImageFolder(flat, val_mapping=given).labels.tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("val_0.png n02\n", r"gives no class for 1 images of .*val: images/val_1.png"),
        ("val_0.png n02\nval_1.png\n", r"mapping.txt, line 2: 'val_1.png' has no class"),
        ("val_0.png n02\nval_1.png n03\n", r"classes without training images: n03"),
        ("val_0.png 0\nval_1.png 2\n", r"mapping\.txt gives images/val_1\.png the class 2, but .* numbered 0\.\.1 in"),
        ("val_0.png 0\nval_1.png -1\n", r"mapping\.txt gives images/val_1\.png the class -1, but train has 2 class"),
    ],
)
def test_a_wrong_mapping_is_explained(flat: Path, text: str, message: str) -> None:
    (flat / "mapping.txt").write_text(text)
    with pytest.raises(GraspError, match=message):
        ImageFolder(flat, val_mapping=flat / "mapping.txt")


def test_numbers_of_a_mapping_count_empty_class_folders(flat: Path) -> None:
    """Else an empty folder would give images another class without a word."""
    (flat / "train" / "n01a").mkdir()
    (flat / "mapping.txt").write_text("val_0.png 2\nval_1.png 0\n")
    assert ImageFolder(flat, val_mapping="mapping.txt").labels.tolist() == [0, 1, 1, 1, 0]
    (flat / "mapping.txt").write_text("val_0.png 2\nval_1.png 1\n")
    with pytest.raises(GraspError, match="classes without training images: n01a"):
        ImageFolder(flat, val_mapping="mapping.txt")


def test_a_number_is_a_name_where_folders_are_called_by_numbers(tmp_path: Path) -> None:
    write(tmp_path / "train", ["1/a.png", "2/a.png", "10/a.png"])
    write(tmp_path / "val", ["x.png", "y.png"])
    (tmp_path / "mapping.txt").write_text("x.png 2\ny.png 10\n")
    images = ImageFolder(tmp_path, val_mapping="mapping.txt")
    assert [images.classes[label] for label in images.labels[images.test]] == ["2", "10"]
    (tmp_path / "mapping.txt").write_text("x.png 2\ny.png 0\n")  # not the first folder
    with pytest.raises(GraspError, match="classes without training images: 0"):
        ImageFolder(tmp_path, val_mapping="mapping.txt")


def test_a_missing_mapping_is_explained(flat: Path) -> None:
    with pytest.raises(GraspError, match=r"without class folders.*val_mapping"):
        ImageFolder(flat)
    with pytest.raises(GraspError, match=r"there is no val_mapping nowhere\.txt, neither as a path nor in "):
        ImageFolder(flat, val_mapping="nowhere.txt")


# -- how images are cut ------------------------------------------------------------------------------------------------


def decode_image(source: Source, pixels: int) -> Pixels:
    return decode_images([source], pixels)[0]


@pytest.mark.parametrize("size", [(64, 64), (70, 64), (64, 91), (73, 80), (69, 66)])
def test_an_image_within_the_margin_is_only_cropped(size: tuple[int, int]) -> None:
    array = noise(*size)
    left, top = (size[0] - 64) // 2, (size[1] - 64) // 2
    np.testing.assert_array_equal(decode_image(encoded(array), 64), array[top : top + 64, left : left + 64])


@pytest.mark.parametrize("size", [(512, 512), (400, 300), (300, 500)])
def test_a_large_image_is_resized_to_256_and_cropped_to_224(size: tuple[int, int]) -> None:
    # Smooth, since two separate steps round the place of the cut to whole pixels.
    image = Image.fromarray(noise(7, 5)).resize(size, Image.Resampling.BICUBIC)
    long = round(256 * max(size) / min(size))
    width, height = (256, long) if size[0] < size[1] else (long, 256)
    box = ((width - 224) // 2, (height - 224) // 2, (width + 224) // 2, (height + 224) // 2)
    expected = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR).crop(box))
    difference = np.abs(decode_image(encoded(image), 224).astype(int) - expected)
    assert difference.mean() < 1 and difference.max() < 8
    whole = np.asarray(image.resize((width, height)).resize((224, 224)))  # this cut is not any cut
    assert np.abs(whole.astype(int) - expected).mean() > 8


def test_a_small_image_grows_to_the_square() -> None:
    array = decode_image(encoded(np.full((10, 20, 3), 9, dtype=np.uint8)), 32)
    assert array.shape == (32, 32, 3) and (array == 9).all()


def test_a_jpeg_decoded_at_reduced_size_looks_the_same() -> None:
    image = Image.fromarray(noise(9, 9)).resize((900, 700), Image.Resampling.BICUBIC)
    full, reduced = decode_image(encoded(image), 56), decode_image(encoded(image, "JPEG"), 56)
    assert np.abs(full.astype(int) - reduced).mean() < 3
    whole = decode_image(encoded(Image.open(io.BytesIO(encoded(image, "JPEG")))), 56)  # the JPEG at full size
    assert not np.array_equal(whole, reduced)


@pytest.mark.parametrize(
    ("image", "kind", "value"),
    [
        (Image.new("L", (8, 8), 77), "PNG", (77, 77, 77)),
        (Image.new("L", (8, 8), 77), "JPEG", (77, 77, 77)),
        (Image.new("1", (8, 8), 1), "PNG", (255, 255, 255)),
        (Image.new("RGBA", (8, 8), (1, 2, 3, 200)), "PNG", (1, 2, 3)),
        (Image.new("CMYK", (8, 8), (255, 0, 0, 0)), "TIFF", (0, 255, 255)),
        (Image.new("RGB", (8, 8), (200, 0, 0)).quantize(4), "PNG", (200, 0, 0)),
        (Image.fromarray(np.full((8, 8), 200 * 256 + 3, dtype=np.uint16)), "PNG", (200, 200, 200)),
    ],
)
def test_every_kind_of_image_becomes_rgb(image: Image.Image, kind: str, value: tuple[int, int, int]) -> None:
    assert decode_image(encoded(image, kind), 4)[0, 0].tolist() == list(value)


def test_cmyk_jpegs_have_their_colours() -> None:
    red = Image.new("RGB", (16, 16), (255, 0, 0)).convert("CMYK")
    assert decode_image(encoded(red, "JPEG"), 16)[8, 8] == pytest.approx([255, 0, 0], abs=6)


def test_a_palette_with_transparency_makes_no_noise() -> None:
    file = io.BytesIO()
    Image.new("P", (8, 8)).save(file, "PNG", transparency=bytes([0, 128]))
    assert decode_image(file.getvalue(), 4).shape == (4, 4, 3)  # a warning would be an error here


def test_read_keeps_order_shape_and_memory(split: Path) -> None:
    torch = pytest.importorskip("torch")
    images = ImageFolder(split, pixels=16)
    batch = images.read([3, 0, 3])
    assert batch.shape == (3, 3, 16, 16) and batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch[0], batch[2]) and not torch.equal(batch[0], batch[1])
    assert np.array_equal(batch[1].permute(1, 2, 0).numpy(), decode_image(split / "train/cat/1.png", 16))
    assert images.read([]).shape == (0, 3, 16, 16)
    with pytest.raises(GraspError, match=r"must lie in 0\.\.7"):
        images.encoded_some([8])


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [encoded(noise(40, 30, seed)) for seed in range(20)]
    decoded = []
    for threads in (1, 5):
        monkeypatch.setattr("graspcl.images.cores", lambda threads=threads: threads)
        decoded.append(decode_images(sources, 16))
    np.testing.assert_array_equal(*decoded)


# -- zip files from threads and processes ------------------------------------------------------------------------------


@pytest.fixture
def zipped(tmp_path: Path) -> ImageFolder:
    names = [f"{c}/{n}.png" for c in "abcd" for n in range(25)]
    return ImageFolder(pack(write(tmp_path / "many", names), tmp_path / "many.zip"), pixels=16)


def sums(images: ImageFolder, indices: list[int]) -> list[int]:
    return [int(images.read([index]).sum()) for index in indices]


def test_zip_files_can_be_read_from_threads(zipped: ImageFolder) -> None:
    expected = sums(zipped, list(range(100)))
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda start: sums(zipped, [(start + i) % 100 for i in range(100)]), range(0, 80, 10))
        for start, part in zip(range(0, 80, 10), parts, strict=True):
            assert part == expected[start:] + expected[:start]


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_zip_files_can_be_read_in_other_processes(zipped: ImageFolder, method: str) -> None:
    expected = sums(zipped, list(range(100)))
    if method == "spawn":
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(sums, (zipped, list(range(100)))) == expected
        return
    contents = stored(zipped, range(100))
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    # Two children and this process read at the same time; with one handle for all they would move each other's place.
    children = [context.Process(target=compare, args=(zipped, contents, results)) for _ in range(2)]
    for child in children:
        child.start()
    assert all(stored(zipped, range(100)) == contents for _ in range(20))
    assert [results.get(timeout=60) for _ in children] == [True, True]
    for child in children:
        child.join()


def compare(images: ImageFolder, contents: list[bytes], results: Any) -> None:
    results.put(all(stored(images, range(100)) == contents for _ in range(20)))


def test_a_pickled_folder_reads_the_same(zipped: ImageFolder) -> None:
    again = pickle.loads(pickle.dumps(zipped))  # noqa: S301  (one's own, as multiprocessing does it)
    assert stored(again, [5]) == stored(zipped, [5]) and again.fingerprint() == zipped.fingerprint()


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [lambda image: image[: len(image) // 2], lambda image: b"no image", lambda _: b""])
def test_a_damaged_image_is_named(split: Path, damage: Any) -> None:
    target = split / "train" / "dog" / "2.png"
    target.write_bytes(damage(target.read_bytes()))
    images = ImageFolder(split, pixels=16)
    with pytest.raises(GraspError, match=r"train/dog/2\.png cannot be read: ") as caught:
        images.read(range(8))
    assert "object at" not in str(caught.value)
    pack(split / "train", split / "again.zip")
    with pytest.raises(GraspError, match=r"again\.zip, member dog/2\.png cannot be read: "):
        ImageFolder(split / "again.zip").read(range(6))
    assert images.read([0, 1, 2]).shape == (3, 3, 16, 16)


def test_a_damaged_zip_is_named(split: Path) -> None:
    archive = pack(split / "train", split / "again.zip")
    images = ImageFolder(archive, pixels=16)
    whole = archive.read_bytes()
    at = whole.find(b"IDAT") + 6
    archive.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    with pytest.raises(GraspError, match=r"again\.zip, member .*\.png cannot be read: Bad CRC"):
        images.read(range(6))
    archive.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GraspError, match=r"again\.zip cannot be read as a zip file: File is not a zip file"):
        ImageFolder(archive)


def test_a_deleted_file_is_named(split: Path) -> None:
    images = ImageFolder(split)
    (split / "train/cat/1.png").unlink()
    with pytest.raises(GraspError, match=r"train/cat/1\.png cannot be read: No such file"):
        images.read([0])
    assert images.encoded_some([0])[2] == [f"{split}/train/cat/1.png cannot be read: No such file or directory"]


def test_an_empty_class_folder_is_left_out_and_named(split: Path) -> None:
    plain = ImageFolder(split)
    assert plain.problems == []
    for name in ("bat", "eel", "eel/deeper", "emu"):
        (split / "train" / name).mkdir()
    (split / "train" / "emu" / "notes.txt").write_text("no image")
    images = ImageFolder(split)
    assert images.classes == ["cat", "dog"] and images.fingerprint() == plain.fingerprint()
    (problem,) = images.problems
    assert problem.endswith("animals/train has class folders without images, left out: bat, eel, emu")


def test_an_empty_class_folder_to_test_on_is_named(split: Path) -> None:
    (split / "val" / "dog" / "8.png").unlink()
    images = ImageFolder(split)
    assert images.classes == ["cat", "dog"] and images.labels[images.test].tolist() == [0]
    assert [problem.rpartition("/")[2] for problem in images.problems] == [
        "val has class folders without images, not tested: dog"
    ]


def test_many_empty_class_folders_are_counted(split: Path) -> None:
    for number in range(9):
        (split / "train" / f"e{number}").mkdir()
    assert ImageFolder(split).problems[0].endswith("left out: e0, e1, e2, e3, e4 and 4 more")


def test_only_empty_class_folders_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with pytest.raises(GraspError, match="has no images"):
        ImageFolder(tmp_path)


def test_a_class_of_one_image_is_trained_on(split: Path) -> None:
    write(split / "train", ["eel/1.png"])
    images = ImageFolder(split, pixels=8)
    assert images.classes == ["cat", "dog", "eel"] and images.problems == []
    assert np.bincount(images.labels[images.train]).tolist() == [3, 3, 1]
    alone = ImageFolder(write(split.parent / "alone", ["eel/1.png"]), pixels=8)  # split here: kept to train on
    assert alone.train.tolist() == [0] and alone.test.tolist() == []


def test_a_class_only_in_val_is_named(split: Path) -> None:
    write(split / "val", ["eel/1.png"])
    with pytest.raises(GraspError, match=r"animals/val has classes without training images: eel"):
        ImageFolder(split)


def test_images_outside_class_folders_are_named(split: Path) -> None:
    write(split / "train", ["1.png"])
    with pytest.raises(GraspError, match=r"train/1\.png is in no class folder"):
        ImageFolder(split)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pixels": 0}, r"pixels must be a whole number in \[1, 4096\], got 0"),
        ({"test_share": 1}, "test_share must be a number in \\[0, 1\\), got 1"),
        ({"test_split": "held-out"}, "neither a folder held-out nor a file held-out.zip"),
    ],
)
def test_wrong_options_are_refused(split: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        ImageFolder(split, **options)


def test_wrong_paths_are_refused(split: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("text")
    with pytest.raises(GraspError, match=r"there is no image folder at .*nowhere"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(GraspError, match="empty has no images; put them into one folder per class"):
        ImageFolder(tmp_path / "empty")
    with pytest.raises(GraspError, match=r"file\.txt is neither a folder of images nor a \.zip or \.tar file"):
        ImageFolder(tmp_path / "file.txt")
    shutil.rmtree(split / "train")
    with pytest.raises(GraspError, match="has val but no train"):
        ImageFolder(split)


def test_the_decoder_names_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(GraspError, match="an image of 4 bytes cannot be read: it is not an image"):
        decode_image(b"text", 8)
    with pytest.raises(GraspError, match=r"nowhere\.jpg cannot be read: No such file"):
        decode_image(tmp_path / "nowhere.jpg", 8)
    with pytest.raises(GraspError, match="photo 3 cannot be read"):
        decode_images([encoded(noise(4, 4)), b"text"], 8, names=["photo 2", "photo 3"])
    with pytest.raises(GraspError, match=r"pixels must be a whole number in \[1, 4096\]"):
        decode_image(b"", 0)


# -- real sets ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "tiny-imagenet-200").is_dir(), reason="needs ../shared/data/tiny-imagenet-200")
def test_tiny_imagenet_zips() -> None:
    images = ImageFolder(SHARED / "tiny-imagenet-200", pixels=64)
    assert (len(images.classes), len(images.train), len(images.test)) == (200, 40_000, 10_000)
    assert set(np.bincount(images.labels[images.train])) == {200}
    assert set(np.bincount(images.labels[images.test])) == {50}
    some = images.test[::97]
    batch = images.read(some)
    for index, picture in zip(some[:20], batch, strict=False):  # 64 px already: exactly what Pillow sees
        (content,) = stored(images, [index])
        expected = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        np.testing.assert_array_equal(picture.permute(1, 2, 0).numpy(), expected)
    grey = [index for index in images.train[:2000] if Image.open(io.BytesIO(stored(images, [index])[0])).mode == "L"]
    assert grey
    assert bool((images.read(grey[:1])[0, 0] == images.read(grey[:1])[0, 2]).all())


@pytest.mark.skipif(not (SHARED / "miniplaces-lt").is_dir(), reason="needs ../shared/data/miniplaces-lt")
def test_miniplaces_zips_are_long_tailed() -> None:
    images = ImageFolder(SHARED / "miniplaces-lt", pixels=112)
    rows = [line.split("\t") for line in (SHARED / "miniplaces-lt" / "classes.tsv").read_text().splitlines()[1:]]
    assert images.classes == sorted(row[1] for row in rows)
    sizes = dict(zip(images.classes, np.bincount(images.labels[images.train]), strict=True))
    assert sizes == {row[1]: int(row[2]) for row in rows}
    assert images.read(images.test[:3]).shape == (3, 3, 112, 112)


def test_a_folder_around_everything_is_not_a_class(split: Path, tmp_path: Path) -> None:
    plain = ImageFolder(split)
    archive = pack(split, tmp_path / "download.zip", wrap="tiny/")
    assert ImageFolder(archive).classes == plain.classes and len(ImageFolder(archive).test) == len(plain.test)
    outer = tmp_path / "outer"
    outer.mkdir()
    shutil.copytree(split, outer / "tiny")
    assert ImageFolder(outer).classes == plain.classes


def test_links_to_folders_of_the_same_name(split: Path, tmp_path: Path) -> None:
    for part in ("train", "val"):
        shutil.copytree(split / part, tmp_path / part / "images")
    linked = tmp_path / "linked"
    linked.mkdir()
    for part in ("train", "val"):
        (linked / part).symlink_to(tmp_path / part / "images")
    assert ImageFolder(linked).ids.tolist() == ImageFolder(split).ids.tolist()


def test_a_damaged_split_that_is_not_used_does_not_matter(split: Path) -> None:
    (split / "test.zip").write_bytes(b"no zip file")
    assert len(ImageFolder(split).test)


def test_files_of_one_size_but_other_contents_have_another_version(tmp_path: Path) -> None:
    for folder, colour in (("a", 0), ("b", 255)):
        for name in ("cat/1.bmp", "cat/2.bmp", "dog/1.bmp", "dog/2.bmp"):
            file = tmp_path / folder / "digits" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (colour,) * 3).save(file)
    a, b = (ImageFolder(tmp_path / folder / "digits", pixels=8) for folder in "ab")
    assert a.version != b.version and a.fingerprint() != b.fingerprint()
