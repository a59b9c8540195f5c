"""Class orders: the shipped one, those from files, and what is said when names do not fit."""

import hashlib
import os
import re

import numpy as np
import pytest

from graspcl.errors import GraspError
from graspcl.stream import ClassIncremental, class_order, imagenet_order

NAMES = ["wolf", "ant", "cat", "emu"]


def rng(seed=0):
    return np.random.default_rng(seed)


def test_the_shipped_order():
    order = imagenet_order()
    assert len(order) == len(set(order)) == 1000
    assert all(re.fullmatch(r"n\d{8}", wnid) for wnid in order)
    assert order[:3] == ["n09332890", "n03983396", "n02134084"] and order[-1] == "n03657121"


def test_its_first_hundred_are_the_base():
    wnids = sorted(imagenet_order())
    order = class_order("imagenet", wnids, rng())
    stream = ClassIncremental(np.arange(2000), np.repeat(np.arange(1000), 2), 100, 9, rng(), order=order)
    assert [wnids[label] for label in list(stream.home)[:100]] == imagenet_order()[:100]
    assert {wnids[label] for label, session in stream.home.items() if session == 0} == set(imagenet_order()[:100])
    assert {wnids[label] for label, session in stream.home.items() if session == 9} == set(imagenet_order()[900:])


def test_it_is_the_order_of_imagenet_1k():
    """The digest is that of ImageNet-1K's own 1,000 wnids, sorted, one per line."""
    sorted_lines = "\n".join(sorted(imagenet_order()))
    assert hashlib.sha256(sorted_lines.encode()).hexdigest()[:16] == "385e0240499426c0"


def test_it_orders_two_hundred_of_them_as_those_of_tiny_imagenet():
    wnids = sorted(imagenet_order())[::5]
    ordered = [wnids[number] for number in class_order("imagenet", wnids, rng())]
    places = [imagenet_order().index(wnid) for wnid in ordered]
    assert sorted(ordered) == sorted(wnids) and places == sorted(places) and len(places) == 200


def test_by_chance_as_a_stream_does_it_alone():
    labels = np.repeat(np.arange(4), 5)
    drawn = rng(3)
    order = class_order("random", NAMES, drawn)
    given = ClassIncremental(np.arange(20), labels, 1, 3, drawn, order=order)
    alone = ClassIncremental(np.arange(20), labels, 1, 3, rng(3))
    assert given.samples.tolist() == alone.samples.tolist()
    assert len({tuple(class_order("random", NAMES, rng(seed))) for seed in range(50)}) > 15


def test_by_name_and_by_number():
    assert class_order("sorted", NAMES, rng()).tolist() == [1, 2, 3, 0]
    assert class_order([3, 0, 1, 2], NAMES, rng()).tolist() == [3, 0, 1, 2]
    assert class_order(np.array([3, 0, 1, 2]), NAMES, rng()).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("text", ["emu\nwolf\nant\ncat", "\ufeffemu\r\n  wolf \r\n\r\nant\r\ncat\r\n"])
def test_from_a_file(tmp_path, text):
    path = tmp_path / "order.txt"
    path.write_bytes(text.encode())
    assert class_order(str(path), NAMES, rng()).tolist() == class_order(path, NAMES, rng()).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("emu\nwolf\nant", r"each of the 4 classes once; 1 are missing, for example 'cat'"),
        ("emu\nwolv\nant\ncat", r"line 2 of .*order.txt: there is no class 'wolv'; did you mean 'wolf'\?"),
        ("emu\nxyzzy\nant\ncat", r"there is no class 'xyzzy'$"),
        ("emu\nwolf\n\nemu\ncat", r"line 4 of .*: class 'emu' is already in line 1"),
        ("", "4 are missing"),
        (b"\xff\xfe\x00", "must be a UTF-8 text file"),
    ],
)
def test_mistakes_in_a_file_are_explained(tmp_path, text, message):
    path = tmp_path / "order.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GraspError, match=message):
        class_order(str(path), NAMES, rng())


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("imagenet", "wnids of ImageNet-1K, such as n09332890; 4 of these 4 are not, for example 'ant'"),
        ("imagenet", "set --stream.order random, or sorted"),
        ("randm", "no class order called 'randm', and no file of that name; did you mean 'random'"),
        (".", "cannot be read"),
        ([0, 1, 2], "each of 4 class numbers once; missing: 3"),
        (["ant", "cat"], "must be a list of class numbers"),
    ],
)
def test_mistakes_are_explained(order, message):
    with pytest.raises(GraspError, match=message):
        class_order(order, NAMES, rng())


def test_two_classes_of_one_name_have_no_order_by_name(tmp_path):
    with pytest.raises(GraspError, match="two classes are called 'n02134084'"):
        class_order("imagenet", ["n02134084", "n09332890", "n02134084"], rng())


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "order.txt")
    with pytest.raises(GraspError, match=r"order.txt cannot be read: it is a pipe, not a regular file"):
        class_order(tmp_path / "order.txt", ["cat", "dog"], np.random.default_rng(0))
