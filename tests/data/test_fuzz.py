"""Every reader of foreign files, on files that no program wrote: each is read, or refused with a message.

Memory is capped, so that a file that exhausts it fails a test. What was found stays as an `example` or as a case of
test_foreign_files.py.
"""

import io
import json
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from picture_files import encoded, noise
from PIL import Image

from graspcl.cli.workspace import _ids
from graspcl.codec import Half
from graspcl.data import ImageFolder, ImageList, TextTable, open_images
from graspcl.data.table_reader import read_column
from graspcl.errors import GraspError
from graspcl.files import walk
from graspcl.images import FORMATS, decode_some
from graspcl.model import vector_network
from graspcl.model.texts import Tokenizer
from graspcl.pretrain.weights import load_codec, load_weights, read_header, save_weights
from graspcl.settings.presets import load
from graspcl.stream import Stream, load_stream, save_stream
from graspcl.stream.order import class_order

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
EXAMPLES = int(os.environ.get("GRASPCL_FUZZ", "40"))  # of each test; thousands find more
LONGER = 2000  # in the slow suite
fuzz = settings(
    max_examples=EXAMPLES, derandomize=EXAMPLES == 40, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
Damage = Callable[[bytes], bytes]


@pytest.fixture(scope="module", autouse=True)
def capped() -> Iterator[None]:
    """No more than 2 GB beyond what the process has now."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + 2 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@st.composite
def damage(draw: st.DrawFn) -> Damage:
    """A function that flips, cuts, repeats, fills and inserts bytes."""
    kinds = st.sampled_from(["set", "cut", "repeat", "fill", "insert"])
    changes = draw(st.lists(st.tuples(kinds, st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=4))

    def apply(content: bytes) -> bytes:
        for kind, where, put in changes:
            at = int(where * len(content))
            after = {
                "set": put + content[at + len(put) :],
                "cut": b"",
                "repeat": content[max(0, at - 40) :],
                "fill": put[:1] * 16 + content[at + 16 :],
                "insert": put + content[at:],
            }
            content = content[:at] + after[kind]
        return content

    return apply


def read_or_refuse(read: Callable[[], Any]) -> None:
    try:
        read()
    except GraspError as error:
        str(error).encode(errors="surrogateescape")  # a message can always be printed


def image_folder(path: Path) -> None:
    images = ImageFolder(path, 8)
    _, kept, problems = images.read_some(range(len(images)))
    assert len(kept) + len(problems) == len(images)


# -- tables ------------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(["text", "label", ",", ";", "\t", '"', '""', "\n", "\r", "\r\n", "a", "1", "1.0", "nan", "\0",
    "\ufeff", "é", "\udc80", "{", "}", "[", "]", ":", '{"text": "a", "label": ', "1e999",
    "9" * 5000, "=1+1", " "])  # fmt: skip


@fuzz
@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from(["csv", "tsv", "jsonl", "ndjson", "txt"]))
def test_tables_of_pieces(content: str, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"a.{kind}"
        for start in ("", "text,label\n", "text\tlabel\n"):
            file.write_bytes((start + content).encode(errors="surrogateescape"))
            read_or_refuse(lambda: TextTable(file))
            read_or_refuse(lambda: [*read_column(file, "text")])


def parquet_files() -> Iterator[bytes]:
    texts = [f"text {number % 7}" for number in range(50)]
    for compression, dictionary in (("snappy", True), ("gzip", False), ("zstd", True), ("none", False)):
        file = io.BytesIO()
        table = pa.table({"text": texts, "label": list(range(50)), "other": [[1]] * 50})
        pq.write_table(table, file, compression=compression, use_dictionary=dictionary)
        yield file.getvalue()


@fuzz
@given(damage(), st.sampled_from([*parquet_files()]))
def test_parquet_files(harm: Damage, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.parquet"
        file.write_bytes(harm(content))
        read_or_refuse(lambda: TextTable(file))


# -- images ------------------------------------------------------------------------------------------------------------

SOUND = [encoded(noise(20, 16), kind) for kind in FORMATS]
MODES = (("P", "PNG"), ("L", "TIFF"), ("1", "BMP"), ("RGBA", "WEBP"), ("CMYK", "JPEG"))
SOUND += [encoded(Image.fromarray(noise(20, 16)).convert(mode), kind) for mode, kind in MODES]


@fuzz
@given(damage(), st.sampled_from(SOUND))
@pytest.mark.filterwarnings("ignore")  # of Pillow, about damaged metadata
def test_images(harm: Damage, content: bytes) -> None:
    images, kept, problems = decode_some([harm(content), content], 8)
    assert 1 in kept and len(images) == len(kept) == 2 - len(problems)


@fuzz
@given(damage(), st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
@pytest.mark.filterwarnings("ignore")
def test_zip_files(harm: Damage, compression: int) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        for number, image in enumerate(SOUND[:4]):
            archive.writestr(f"{'cat' if number % 2 else 'dog'}/{number}.png", image)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.zip").write_bytes(harm(content.getvalue()))
        read_or_refuse(lambda: image_folder(Path(folder) / "a.zip"))


def tar_file(kind: int, shard: bool) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=kind, pax_headers={"comment": "é"}) as archive:
        for number, image in enumerate(SOUND[:4]):
            name, long = ("cat", "dog")[number % 2], "x" * (150 if number == 3 else 1)
            files = {f"{name}/{number}{long}.png": image}
            files = {f"{number}{long}.png": image, f"{number}{long}.cls": name.encode()} if shard else files
            for title, inside in files.items():
                member = tarfile.TarInfo(title)
                member.size = len(inside)
                archive.addfile(member, io.BytesIO(inside))
    return content.getvalue()


@st.composite
def tar_headers(draw: st.DrawFn) -> Damage:
    """A function that sets fields of headers, and their checksums, so that they count."""
    fields = {"name": (0, 100), "size": (124, 136), "kind": (156, 157), "magic": (257, 265), "prefix": (345, 500)}
    numbers = st.integers(-(2**70), 2**70).map(lambda n: n.to_bytes(12, "big", signed=True))
    some = st.sampled_from([b"0", b"1", b"2", b"5", b"L", b"K", b"S", b"x", b"g", b"7", b"\x80" + b"\xff" * 11,
                            b"\xff" * 12, b"77777777777\0", b"-1", b"../", b"/", b"\0"])  # fmt: skip
    changes = draw(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([*fields.values()]), some | numbers)))

    def apply(content: bytes) -> bytes:
        blocks = bytearray(content)
        for where, (begin, end), value in changes:
            at = int(where * (len(blocks) // 512 - 1)) * 512
            block = blocks[at : at + 512]
            block[begin:end] = value[: end - begin].ljust(end - begin, b"\0")
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
            blocks[at : at + 512] = block
        return bytes(blocks)

    return apply


@fuzz
@given(damage(), tar_headers(), st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]), st.booleans())
@pytest.mark.filterwarnings("ignore")
def test_tar_files(harm: Damage, bend: Damage, kind: int, shard: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.tar"
        file.write_bytes(bend(harm(tar_file(kind, shard))))

        def read() -> None:
            images = open_images(file, 8)
            _, kept, problems = images.read_some(range(len(images)))
            assert len(kept) + len(problems) == len(images)

        read_or_refuse(read)


NAMES = st.sampled_from(["train", "val", "cat", "dog", "images", "1.png", "2.jpg", "train.zip", "val_annotations.txt",
                         "my_train.txt", ".hidden", "é", "\udcff.png", "new\nline.png"])  # fmt: skip
ENTRIES = st.sampled_from(["image", "text", "empty", "folder", "pipe", "up", "gone", "loop", "device", "list"])


@fuzz
@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=3), ENTRIES), max_size=25))
def test_folders(tree: list[tuple[list[str], str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for parts, kind in tree:
            path = Path(folder, *parts)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.is_symlink() or path.exists():
                    continue
                if kind == "pipe":
                    os.mkfifo(path)
                elif kind == "folder":
                    path.mkdir()
                elif kind in ("up", "gone", "loop", "device"):
                    path.symlink_to({"up": folder, "gone": "nowhere", "loop": path.name, "device": "/dev/zero"}[kind])
                else:
                    contents = {
                        "image": SOUND[1],
                        "text": b"\xff\0,",
                        "empty": b"",
                        "list": b"cat/1.png 0\n1.png 1 cat",
                    }
                    path.write_bytes(contents[kind])
            except OSError:  # below a file or a link that leads nowhere
                continue
        found, problems = walk(Path(folder))
        assert not set(found) & set(problems)
        read_or_refuse(lambda: image_folder(Path(folder)))


LINES = st.lists(st.sampled_from(["cat/1.png", "dog/1.png", "../1.png", "/etc/passwd", " ", "0", "1", "-1", "9" * 30,
                                  "\n", "\t", "\r", "\0", "é", "\udc80", "x" * 5000]), max_size=30)  # fmt: skip


@fuzz
@given(LINES.map("".join))
def test_image_lists(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cat", "dog"):
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "1.png").write_bytes(SOUND[1])
        for part in ("train", "test"):
            (Path(folder) / f"my_{part}.txt").write_bytes(content.encode(errors="surrogateescape"))
        read_or_refuse(lambda: ImageList(folder, pixels=8))


# -- names, ids and vocabularies ---------------------------------------------------------------------------------------

CLASSES = ["cat", "dog", "é", "a b"]
WORDS = st.lists(st.sampled_from([*CLASSES, "n01440764", "0123456789abcdef", "ff", "\n", "\r", "\t", ",", " ", "\0",
                                  "\ufeff", "\u2028", "\udc80", "-1", "9" * 30, "x" * 5000]), max_size=30)  # fmt: skip


@fuzz
@given(WORDS.map("".join), damage())
def test_class_orders(content: str, harm: Damage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "order.txt"
        for written in (content.encode(errors="surrogateescape"), harm("\n".join(CLASSES).encode())):
            file.write_bytes(written)

            def order() -> None:
                found = class_order(file, CLASSES, np.random.default_rng(0))
                assert sorted(found.tolist()) == [0, 1, 2, 3]

            read_or_refuse(order)


@fuzz
@given(WORDS.map("".join))
def test_class_names_of_test_images(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("train/cat", "train/dog", "val"):
            (Path(folder) / name).mkdir(parents=True)
            (Path(folder) / name / "1.png").write_bytes(SOUND[1])
        for start in ("", "1.png "):
            (Path(folder) / "names.txt").write_bytes((start + content).encode(errors="surrogateescape"))
            read_or_refuse(lambda: ImageFolder(folder, 8, val_mapping=Path(folder) / "names.txt"))


@fuzz
@given(WORDS.map("".join))
def test_ids_of_samples(content: str) -> None:
    """Of samples that a workspace is to forget: an id or a sample per line."""

    class Known:
        def ids(self, contents: list[str]) -> np.ndarray[Any, Any]:
            return np.array([-1 if len(one) > 9 else len(one) for one in contents])

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ids.txt"
        file.write_bytes(content.encode(errors="surrogateescape"))
        shop: Any = Known()
        read_or_refuse(lambda: [-(2**63) <= one < 2**63 or pytest.fail(str(one)) for _, one in _ids(shop, file)])


VOCABULARY = {word: place for place, word in enumerate(["[UNK]", "[PAD]", "[CLS]", "[SEP]", "a", "b", "##c"])}


def tokenizer_files() -> Iterator[bytes]:
    tokenizers = pytest.importorskip("tokenizers")
    for model in (tokenizers.models.WordPiece(VOCABULARY, unk_token="[UNK]"),
                  tokenizers.models.BPE({**VOCABULARY, "ab": 7}, [("a", "b")], unk_token="[UNK]")):  # fmt: skip
        yield tokenizers.Tokenizer(model).to_str().encode()


@fuzz
@given(damage(), st.sampled_from([*tokenizer_files()]))
def test_vocabularies(harm: Damage, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tokenizer.json").write_bytes(harm(content))
        read_or_refuse(lambda: Tokenizer(folder, 8).encode(["a b ac", ""]))


# -- settings, weights, streams ----------------------------------------------------------------------------------------

TOML = st.sampled_from(["extends", "name", "policy", "buffer", "capacity", "base", "stages", "seed", "data", "path",
    "network", " = ", "=", "[", "]", "{", "}", ".", ",", "\n", '"', "'", "1", "-1", "1e400", "9" * 5000, "nan",
    "inf", "true",
    '"grasp"', '"groceries"', "'8MB'", "1979-05-27", "\0", "\ufeff", "é", "[[", "]]", "#"])  # fmt: skip


@fuzz
@given(st.lists(TOML, max_size=30).map("".join))
def test_settings(content: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.toml").write_text(content, encoding="utf-8")
        read_or_refuse(lambda: load(Path(folder) / "a.toml"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**30) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3), max_leaves=5,
)  # fmt: skip
SETTINGS = ("name", "seed", "policy", "buffer", "buffer.capacity", "codec", "network", "stream.sessions", "stream.kind",
            "base.stages", "budget.updates", "optimiser", "data", "data.path", "learner", "extends")  # fmt: skip


@fuzz
@given(st.dictionaries(st.sampled_from(SETTINGS), VALUES, max_size=4))
def test_settings_of_any_type(values: dict[str, Any]) -> None:
    import tomli_w

    def clean(value: Any) -> Any:  # TOML has no null, and surrogates are no text
        if isinstance(value, dict):
            return {clean(key): clean(one) for key, one in value.items() if one is not None}
        if isinstance(value, list):
            return [clean(one) for one in value if one is not None]
        return value.encode(errors="replace").decode() if isinstance(value, str) else value

    tree: dict[str, Any] = {}
    for name, value in clean(values).items():
        group, _, key = name.partition(".")
        if key:
            inner = tree.setdefault(group, {})
            if isinstance(inner, dict):
                inner[key] = value
        else:
            tree[name] = value
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")
        read_or_refuse(lambda: load(Path(folder) / "a.toml"))


def network() -> Any:
    return vector_network(4, classes=3, hidden=4, generator=torch.Generator().manual_seed(0))


def weight_files() -> Iterator[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        save_weights(network(), Path(folder) / "a", Half(), {"a": 1})
        yield (Path(folder) / "a").read_bytes()
        torch.save(network().state_dict(), Path(folder) / "b")
        yield (Path(folder) / "b").read_bytes()
        torch.save({"state_dict": {"a": [1, None]}}, Path(folder) / "c", _use_new_zipfile_serialization=False)
        yield (Path(folder) / "c").read_bytes()
    for header in ({}, {"a": 1}, {"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}):
        text = json.dumps(header).encode()
        yield len(text).to_bytes(8, "little") + text
    yield (2**62).to_bytes(8, "little") + b"{}"


@fuzz
@given(damage(), st.sampled_from([*weight_files()]))
@pytest.mark.filterwarnings("ignore")
def test_weights(harm: Damage, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a"
        file.write_bytes(harm(content))
        for read in (lambda: load_weights(network(), file, strict=False), lambda: read_header(file),
                     lambda: load_codec(file)):  # fmt: skip
            read_or_refuse(read)


@fuzz
@given(damage())
def test_streams(harm: Damage) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.npz"
        save_stream(Stream(np.arange(3), [[3, 4], [5]], labels=np.arange(6)), file, ids=np.arange(6))
        file.write_bytes(harm(file.read_bytes()))
        read_or_refuse(lambda: load_stream(file))


@pytest.mark.slow
def test_thousands_of_examples() -> None:
    """All tests of this file, with other examples each time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env={**os.environ, "GRASPCL_FUZZ": str(LONGER)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
