"""The command predict, on two small runs: coloured images, and texts about four things."""

import contextlib
import csv
import importlib.util
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from graspcl.cli.predict import Input, _write, predict
from graspcl.errors import GraspError

COLOURS = ("red", "lime", "blue")
WORDS = {"fruit": "apple pear plum", "money": "bank loan rate", "sport": "goal match team"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the runs `images` and `texts`, and what they learned from."""
    from graspcl.experiment import run
    from graspcl.settings import from_plain

    image = pytest.importorskip("PIL.Image", reason="needs graspcl[images]")
    if importlib.util.find_spec("wordllama") is None:
        pytest.skip("needs graspcl[demo]")
    folder, rng = tmp_path_factory.mktemp("predict"), np.random.default_rng(0)
    for colour in COLOURS:
        (folder / "data" / colour).mkdir(parents=True)
        for number in range(10):
            pixels = np.asarray(image.new("RGB", (20, 16), colour)) * 0.8 + rng.uniform(0, 50, (16, 20, 3))
            image.fromarray(pixels.astype(np.uint8)).save(folder / "data" / colour / f"{number}.png")
    lines = [
        f"{' '.join(rng.choice([*own.split(), 'the'], 4))} {n},{label}"
        for label, own in WORDS.items()
        for n in range(10)
    ]
    (folder / "texts.csv").write_text("\n".join(["text,label", *lines]))
    common = {
        "codec": "half", "stream": {"sessions": 3}, "budget": {"updates": 30, "batch_size": 8},
        "optimiser": {"lr": 0.1}, "execution": {"device": "cpu"},
    }  # fmt: skip
    data = {"path": str(folder / "data"), "pixels": 16}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRASPCL_CACHE", str(folder / "cache"))
        run(from_plain({**common, "data": data, "network": "small"}), folder / "images")
        network = {"name": "vector", "dim": 256, "hidden": 64, "scale": 10.0}
        run(from_plain({**common, "data": {"path": str(folder / "texts.csv")}, "network": network}), folder / "texts")
    return folder


@pytest.fixture
def call(place, capsys, monkeypatch):
    """Runs the command beside the runs; returns the table's rows and what stood on standard error."""
    monkeypatch.chdir(place)

    def command(*arguments, code=0, **options):
        ended = contextlib.nullcontext()
        if code:
            ended = pytest.raises(SystemExit, check=lambda end: end.code == code)
        with ended:
            predict(*(Path(each) if number == 0 else str(each) for number, each in enumerate(arguments)), **options)
        told = capsys.readouterr()
        return list(csv.reader(io.StringIO(told.out))), told.err

    return command


def test_a_folder_of_images_is_searched(call, place):
    rows, told = call("images", "data", top=2)
    assert rows[0] == ["input", "class", "probability", "class_2", "probability_2"] and not told
    assert [row[0] for row in rows[1:]] == sorted(str(file.relative_to(place)) for file in place.glob("data/*/*.png"))
    assert np.mean([Path(row[0]).parent.name == row[1] for row in rows[1:]]) > 0.8
    assert all(1 >= float(row[2]) >= float(row[4]) >= 0 and row[1] != row[3] for row in rows[1:])
    one, _ = call("images", "data/lime/3.png", top=99)
    assert len(one) == 2 and len(one[0]) == 1 + 2 * len(COLOURS)
    assert one[1][:2] == next(row for row in rows if row[0] == "data/lime/3.png")[:2]


def test_images_in_a_zip_file(call, place, tmp_path):
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.write(place / "data/blue/1.png", "deep/1.png")
        archive.writestr("bad.png", b"no")
    rows, told = call("images", tmp_path / "some.zip", code=1)
    assert [Path(row[0]).name for row in rows[1:]] == ["bad.png", "1.png"]
    assert rows[1][1] == "" and rows[2][1:] == call("images", "data/blue/1.png")[0][1][1:]
    assert "some.zip/bad.png" in told and "it is not an image" in told


def test_a_damaged_image_among_good_ones(call, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no")
    rows, told = call("images", "data/red/1.png", tmp_path / "bad.png", "data/red/2.png", top=2, code=1)
    assert rows[2] == [str(tmp_path / "bad.png"), "", "", "", ""] and all(row[1] for row in (rows[1], rows[3]))
    assert "bad.png cannot be read: it is not an image" in told and "1 of 3 inputs could not be read" in told
    with pytest.raises(GraspError, match="nothing was predicted"):
        call("images", tmp_path / "bad.png")
    with pytest.raises(GraspError, match="nothing was predicted"):
        call("images", tmp_path / "bad.png", output=tmp_path / "out.csv")
    assert [file.name for file in tmp_path.iterdir()] == ["bad.png"]


def test_a_missing_file_among_others(call, tmp_path):
    rows, told = call("images", "data/red/1.png", "nowhere.png", code=1)
    assert rows[1] == call("images", "data/red/1.png")[0][1] and rows[2] == ["nowhere.png", "", ""]
    assert "nowhere.png: there is no such file or folder\ngraspcl: 1 of 2 inputs could not be read" in told
    (tmp_path / "new.txt").write_text("bank loan\n")
    rows, _ = call("texts", "nowhere.csv", tmp_path / "new.txt", code=1)
    assert [row[1] for row in rows[1:]] == ["", "money"] and rows[1][0] == "nowhere.csv"
    with pytest.raises(GraspError, match=r"there is no file or folder a\.png"):
        call("images", "a.png", "b.png")


def test_tables_and_lines_of_texts(call, tmp_path):
    rows, told = call("texts", "texts.csv")
    assert [row[0] for row in rows[1:]] == [str(number) for number in range(2, 32)] and not told
    labels = [line.rpartition(",")[2] for line in Path("texts.csv").read_text().splitlines()[1:]]
    assert np.mean([row[1] == label for row, label in zip(rows[1:], labels, strict=True)]) > 0.8
    (tmp_path / "new.tsv").write_text("id\tsaid\n1\tthe goal of the match\n2\t\n")
    (tmp_path / "new.txt").write_text("pear and plum\n\nbank loan\n")
    output = tmp_path / "deep" / "out.csv"
    nothing, told = call("texts", tmp_path / "new.tsv", tmp_path / "new.txt", output=output, text="said", code=1)
    assert not nothing and f"wrote {output}: 3 predictions" in told
    assert "new.tsv row 3: empty text" in told and "new.txt row 2: empty text" in told
    found = list(csv.reader(io.StringIO(output.read_text(encoding="utf-8"))))
    assert [(Path(row[0]).name, row[1]) for row in found[1:]] == [
        ("new.tsv:2", "sport"), ("new.tsv:3", ""), ("new.txt:1", "fruit"), ("new.txt:2", ""), ("new.txt:3", "money")
    ]  # fmt: skip


def test_mistakes_are_told_before_anything_is_predicted(call, place, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.txt").touch()
    (tmp_path / "what.doc").touch()
    mistakes = {
        ("absent", "data"): "there is no workspace or run absent",
        ("data", "data"): "data is not a run folder: it has no config.toml",
        ("images",): "give inputs after the run",
        ("images", "nowhere.png"): "there is no file or folder nowhere.png",
        ("images", "data", "texts.csv"): "the run in images learned images, and texts.csv has texts",
        ("images", tmp_path / "empty"): "empty has no images",
        ("images", "data", "--topp"): "there is no option --topp; did you mean '--top'?",
        ("texts", "texts.csv", "data"): "the run in texts learned texts, and data is a folder",
        ("texts", "data/red/1.png"): "the run in texts learned texts, and data/red/1.png is an image",
        ("texts", tmp_path / "what.doc"): "what.doc is not a supported file of texts",
        ("texts", tmp_path / "no.txt"): "there is nothing to predict",
    }
    for arguments, words in mistakes.items():
        with pytest.raises(GraspError) as error:
            call(*arguments, output=tmp_path / "out.csv")
        assert words in str(error.value)
    for options, words in (
        ({"text": "txt"}, "no column 'txt'"),
        ({"output": tmp_path}, "is a folder; give -o the name"),
    ):
        with pytest.raises(GraspError, match=words):
            call("texts", "texts.csv", **options)
    with pytest.raises(GraspError, match="--text is for tables of texts"):
        call("images", "data", text="text")
    assert not (tmp_path / "out.csv").exists()


def test_lines_from_standard_input(place):
    command = [str(Path(sys.executable).with_name("graspcl")), "predict", "texts", "-", "--top", "2"]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    given = "the bank\n\nnaïve match team\n".encode() + b"odd \xff\n"
    done = subprocess.run(
        command, input=given, capture_output=True, cwd=place, env=environment, timeout=300, check=False
    )
    told = done.stderr.decode()
    assert done.returncode == 1, told
    rows = list(csv.reader(io.StringIO(done.stdout.decode())))
    assert [row[:2] for row in rows[1:]] == [["1", "money"], ["2", ""], ["3", "sport"], ["4", ""]]
    assert "standard input row 2: empty text" in told and "row 4: text is not UTF-8" in told
    assert "2 of 4 inputs could not be read" in told


def test_paths_of_images_from_standard_input(call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"data/red/1.png\nnowhere.png\n")))
    rows, told = call("images", "-", code=1)
    assert rows[1] == call("images", "data/red/1.png")[0][1] and rows[2] == ["nowhere.png", "", ""]
    assert "nowhere.png cannot be read: No such file" in told


@pytest.mark.parametrize("content", [b"\xff\xd8\xff\xe0\x00\x10JFIF\n", b"\x89PNG\r\n\x1a\n", b"a.png\0b.png\0"])
def test_an_image_on_standard_input_is_not_taken_for_paths(content, call, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    with pytest.raises(GraspError, match="standard input is no list of paths; give the paths of images, one per line"):
        call("images", "-")


def test_what_is_no_regular_file_is_named_and_the_others_are_predicted(place, call):
    folder = place / "odd"
    folder.mkdir()
    (folder / "=1+1.png").write_bytes((place / "data/red/0.png").read_bytes())
    (folder / "gone.png").symlink_to("nowhere")
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "pipe.png")
    os.mkfifo(place / "other.png")
    rows, said = call("images", "odd", "odd/gone.png", "other.png", code=1)
    assert [row[0] for row in rows[1:]] == ["odd/=1+1.png", "odd/gone.png", "other.png"]
    assert [bool(row[1]) for row in rows[1:]] == [True, False, False]
    for reason in ("gone.png cannot be read: No such", "loop is left out", "other.png cannot be read: it is a pipe"):
        assert reason in said


def test_cells_that_a_spreadsheet_would_execute_are_escaped(place, call, monkeypatch):
    monkeypatch.chdir(place / "data/red")
    names = ["=1+1.png", "+a.png", "-b.png", "@c.png"]
    for name in names:
        (place / "data/red" / name).write_bytes((place / "data/red/0.png").read_bytes())
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(names)))
    rows, _ = call(place / "images", "-")
    assert [row[0] for row in rows[1:]] == [f"'{name}" for name in names]
    for name in names:
        (place / "data/red" / name).unlink()


def test_many_bad_rows_are_counted_by_kind(call, tmp_path):
    (tmp_path / "new.jsonl").write_text(
        '{"text": "the bank"}\n' + '{"text": ""}\n' * 30 + '{"text": 5}\n{"text": 67}\n'
    )
    rows, told = call("texts", tmp_path / "new.jsonl", text="text", code=1)
    assert len(rows) == 34 and told.count("empty text") == 21 and told.count("not a string") == 2
    assert "10 more like this: empty text" in told and "32 of 33 inputs could not be read" in told


@pytest.mark.parametrize(("marks", "cells"), [(True, ["yes", "no", ""]), (False, ["", "", ""])])
def test_unknown_is_empty_where_it_cannot_be_told(marks, cells):
    """Of a workspace: for an input that cannot be read, and for all if too few samples are held out."""
    from graspcl.workspace.classifier import Recognised

    class Shop:
        classes = ("a", "b")
        learn = None

        def predict(self, contents):
            probabilities = np.array([[0.9, 0.1], [0.2, 0.8], [np.nan, np.nan]])
            return Recognised(
                self.classes, probabilities, {2: "odd"}, np.array([True, False, False]), np.zeros(3), marks
            )

    found = io.StringIO()
    assert _write(Shop(), [[Input(name, name) for name in "xyz"]], 1, False, found) == (1, 2)
    assert [line.split(",")[-1] for line in found.getvalue().splitlines()[1:]] == cells
