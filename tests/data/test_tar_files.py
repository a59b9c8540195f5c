"""Images in tar files and WebDataset shards: read one by one, damaged ones named, never a whole archive in memory."""

import io
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from capped import run_capped
from graspcl.data import ImageFolder, ImageShards, open_images
from graspcl.errors import GraspError


def picture(colour, side=16):
    file = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(file, "PNG")
    return file.getvalue()


def write_tar(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def class_folders(prefix=""):
    names = [(name, number) for name in ("ant", "bee") for number in range(4)]
    return {f"{prefix}{name}/{number}.png": picture((len(name) * number, number, 9)) for name, number in names}


def shard(numbers, classes=("7", "10"), content=picture):
    found = {}
    for number in numbers:
        found[f"{number:04d}.png"] = content((number, 2 * number, 3))
        found[f"{number:04d}.cls"] = classes[number % len(classes)].encode()
        found[f"{number:04d}.json"] = b"{}"
    return found


def test_class_folders_in_a_tar_file_are_those_of_a_folder(tmp_path):
    for name, content in class_folders().items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / name).write_bytes(content)
    folder = ImageFolder(tmp_path / "photos", pixels=16)
    for prefix in ("", "./", "photos/"):
        file = write_tar(tmp_path / "photos.tar", {f"{prefix}ant/.hidden.png": b"", **class_folders(prefix)})
        packed = open_images(file, pixels=16)
        assert packed.fingerprint() == folder.fingerprint() and not packed.problems
        every = np.arange(8)
        assert (packed.read(every) == folder.read(every)).all()
        assert (pickle.loads(pickle.dumps(packed)).read([3]) == folder.read([3])).all()  # noqa: S301
    split = tmp_path / "split"
    write_tar(split / "train.tar", class_folders())
    write_tar(split / "val.tar", class_folders("val/"))
    found = open_images(split, pixels=16)
    assert found.classes == ["ant", "bee"] and len(found.train) == len(found.test) == 8 and found.own_test


def test_shards_are_read_in_their_order(tmp_path):
    write_tar(tmp_path / "set-train-0000.tar", shard(range(3, -1, -1)))
    write_tar(tmp_path / "set-train-0001.tar", shard(range(4, 8)))
    write_tar(tmp_path / "set-validation-0.tar", shard(range(8, 10)))
    found = open_images(tmp_path, pixels=16)
    assert isinstance(found, ImageShards) and found.classes == ["7", "10"]  # numbers, in their order
    assert found.train.tolist() == list(range(8)) and found.test.tolist() == [8, 9] and found.own_test
    assert found.labels.tolist() == [1, 0, 1, 0, 0, 1, 0, 1, 0, 1]
    assert found.read(np.arange(10))[:, 0, 0, 0].tolist() == [3, 2, 1, 0, 4, 5, 6, 7, 8, 9]
    alone = open_images(tmp_path / "set-train-0001.tar", pixels=16, test_share=0.5)
    assert not alone.own_test and len(alone.test) == 2 and len(alone.train) == 2
    named = write_tar(tmp_path / "named" / "train" / "a.tar", shard(range(4), ("bee", "ant")))
    write_tar(tmp_path / "named" / "test" / "a.tar", shard(range(2), ("bee", "ant")))
    found = open_images(named.parents[1], pixels=16)
    assert found.classes == ["ant", "bee"] and len(found.train) == 4 and len(found.test) == 2
    with pytest.raises(GraspError, match="no shards named val to test on; there are: test"):
        open_images(named.parents[1], test_split="val")
    with pytest.raises(GraspError, match="remove val_mapping"):
        open_images(named.parents[1], val_mapping="x.txt")


def test_what_is_damaged_is_named(tmp_path):
    members = shard(range(4))
    members["0001.png"], members["0002.cls"] = b"no image", b" "
    link = write_tar(tmp_path / "one.tar", members)
    with tarfile.open(link, "a") as archive:
        member = tarfile.TarInfo("0009.png")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    found = open_images(link, pixels=16)
    assert len(found) == 3 and len(found.problems) == 2
    assert "0009.png is left out: it is no regular file" in found.problems[0]
    assert "member 0002.png is left out: 0002.cls does not say its class" in found.problems[1]
    _, kept, problems = found.read_some(np.arange(3))
    assert kept.tolist() == [0, 2] and problems == [f"{link}, member 0001.png cannot be read: it is not an image"]
    whole = link.read_bytes()
    header = whole.index(b"0003.png")
    link.write_bytes(whole[:header] + b"x" * 512 + whole[header + 512 :])  # a damaged header ends the list
    found = open_images(link, pixels=16)
    assert len(found) == 2 and "is damaged after 9 members, and what follows is left out" in found.problems[0]
    link.write_bytes(whole[: header + 600])  # cut in the middle of an image
    assert any("is damaged" in problem for problem in open_images(link, pixels=16).problems)
    link.write_bytes(b"no tar file at all" * 100)
    with pytest.raises(GraspError, match="cannot be read as a tar file"):
        open_images(link)
    with tarfile.open(tmp_path / "packed.tar.gz", "w:gz"):
        pass
    with pytest.raises(GraspError, match="is compressed as a whole, so no image can be read by itself"):
        open_images(tmp_path / "packed.tar.gz")


def test_an_archive_without_its_end_is_named(tmp_path):
    """A block of zeros, or the end of the file, in place of a header: what was read before is used."""
    file = write_tar(tmp_path / "one.tar", shard(range(4)))
    whole = file.read_bytes()
    place = whole.index(b"0002.png")
    assert not open_images(file, pixels=16).problems
    for content, fault in (
        (whole[:place] + bytes(512) + whole[place + 512 :], "neither a header nor the end of the archive"),
        (whole + whole, "neither a header nor the end of the archive"),
        (whole[:place], "the end of the archive is missing"),
        (whole[:place] + bytes(512), "the end of the archive is missing"),
    ):
        file.write_bytes(content)
        found = open_images(file, pixels=16)
        number = 12 if content.startswith(whole) else 6
        assert len(found) == number // 3
        assert found.problems == [f"{file} is damaged after {number} members, and what follows is left out: {fault}"]


def test_zeros_are_no_class(tmp_path):
    members = shard(range(4))
    members["0001.cls"] = b"\0\0"
    found = open_images(write_tar(tmp_path / "one.tar", members), pixels=16)
    assert found.classes == ["7", "10"] and len(found) == 3
    assert "member 0001.png is left out: 0001.cls does not say its class" in found.problems[0]


def header(name, size, kind=tarfile.REGTYPE):
    """A header of a tar file, with a size as it stands there."""
    content = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    content[156:157], content[124:136] = kind, size if isinstance(size, bytes) else b"%011o\0" % size
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content)
    return bytes(content)


def extended(*records):
    """A header with what has no room in the usual one."""
    content = b""
    for name, value in records:
        record = f" {name}={value}\n".encode()
        content += next(b"%d" % n + record for n in range(len(record), 999) if len(b"%d" % n + record) == n)
    return header("x", len(content), tarfile.XHDTYPE) + content + bytes(-len(content) % 512)


END = bytes(1024)
BELOW_ZERO = b"\xff" + (-512).to_bytes(11, "big", signed=True)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (header("ant/2.png", BELOW_ZERO) + END, "a size below zero"),  # the same header again and again
        (extended(("size", -2048)) + header("ant/2.png", 0) + END, "a size below zero"),
        (header("ant/2.png", 0) + extended(("size", "9" * 26)) + header("ant/3.png", 0) + END, ""),
        (extended(("a", "b")) * 3000 + header("ant/2.png", 0) + END, "headers of more than 16,384 bytes"),
        (header("x", 8**11 - 1, tarfile.XHDTYPE) + END, "headers of more than 16,384 bytes"),
        (header("x", 8**11 - 512, tarfile.GNUTYPE_LONGNAME) + END, "headers of more than 16,384 bytes"),
        (header("x", 1 << 18, tarfile.XHDTYPE) + b"1" * (1 << 18) + END, "headers of more than 16,384 bytes"),
        (extended(("GNU.sparse.map", "1,x")) + header("ant/2.png", 0) + END, ""),
        (extended(("GNU.sparse.major", 1), ("GNU.sparse.minor", 0)) + header("ant/2.png", 0) + END, ""),
    ],
)
def test_headers_that_no_program_writes(tmp_path, content, fault):
    """They took gigabytes, minutes or for ever, or ended in a traceback."""
    file = tmp_path / "a.tar"
    file.write_bytes(header("ant/1.png", 0) + header("bee/1.png", 0) + content)
    found = open_images(file, pixels=16)
    assert len(found) >= 2 and "is damaged after" in found.problems[-1] and fault in found.problems[-1]
    file.write_bytes(header("7.png", 0) + header("7.cls", 1) + b"1".ljust(512, b"\0") + content)
    assert any(fault in problem for problem in open_images(file, pixels=16).problems)
    file.write_bytes(content)
    if fault:  # the others are those of tarfile, and depend on its version
        with pytest.raises(GraspError, match=f"cannot be read as a tar file: {fault}"):
            open_images(file)


READ = """
import sys
from PIL import Image
import numpy as np
from graspcl.data import open_images
import torch
open_images(sys.argv[2], pixels=16).read([0])
cap(60)
images = open_images(sys.argv[1], pixels=16)
for begin in range(0, len(images), 8):
    assert len(images.read(np.arange(begin, min(begin + 8, len(images)))))
print(len(images))
"""


def test_an_archive_larger_than_memory_is_read(tmp_path):
    """Each image has a megabyte of noise behind its end."""
    noise = np.random.default_rng(0).bytes(2**20)
    small = write_tar(tmp_path / "small.tar", shard(range(4)))
    large = write_tar(tmp_path / "large.tar", shard(range(120), content=lambda colour: picture(colour) + noise))
    assert large.stat().st_size > 120 * 2**20
    assert run_capped(READ, large, small).strip() == "120"
