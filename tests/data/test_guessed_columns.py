"""The text and the label column of a table, found by their names."""

import json
import os

import pytest

from graspcl.data.columns import choose_columns, find_columns
from graspcl.data.sources import kind_of_files
from graspcl.errors import GraspError


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        (["label", "text"], ("text", "label")),
        (["text", "body", "label", "class"], ("text", "label")),  # the names that the settings have come first
        (["Utterance", "Intent", "id"], ("Utterance", "Intent")),
        (["title", "category"], ("title", "category")),
        (["review", "stars"], ("review", "stars")),
    ],
)
def test_columns_are_found(columns, found):
    assert choose_columns("a.csv", columns) == found


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (["a", "b"], "--data.text NAME and --data.label NAME"),
        (["review", "comment", "label"], "--data.text NAME"),
        (["text", "intent", "topic"], "--data.label NAME"),
        (["text"], "--data.label NAME"),
    ],
)
def test_what_is_unclear_is_refused(columns, options):
    with pytest.raises(GraspError) as error:
        choose_columns("a.csv", columns)
    assert str(error.value).endswith(f"Its columns are {', '.join(columns)}; set {options}")


def test_a_column_that_is_given_is_kept():
    assert choose_columns("a.csv", ["review", "comment", "label"], text="comment") == ("comment", "label")
    assert choose_columns("a.csv", ["text", "sentiment"], label="text") == ("sentiment", "text")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", '\ufeff"id","my\nid",Message,Category\n1,2,hello,x\n'),
        ("a.csv", "id;Message;Category\n1;hello;x\n"),
        ("a.tsv", "id\tMessage\tCategory\n1\thello\tx\n"),
        ("a.jsonl", "\n" + json.dumps({"id": 1, "Message": "hello", "Category": "x"}) + "\n"),
    ],
)
def test_every_format_tells_its_columns(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert find_columns(str(tmp_path / name)) == ("Message", "Category")


def test_parquet_tells_its_columns_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow", reason="needs graspcl[text]")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"Message": ["a"], "Category": ["b"]}), tmp_path / "train.parquet")
    assert find_columns(str(tmp_path)) == ("Message", "Category")  # the table in the folder


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.jsonl", "[1]", "is not an object with columns"),
        ("a.jsonl", "{", "cannot be read"),
        ("a.parquet", "text", "cannot be read as a Parquet file"),
        ("a.txt", "text", "is not a table"),
    ],
)
def test_a_file_without_columns_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(GraspError, match=message):
        find_columns(str(tmp_path / name))


def test_a_folder_has_images_unless_it_has_tables(tmp_path):
    assert kind_of_files(str(tmp_path)) == "images"
    (tmp_path / "train.tsv").write_text("")
    assert kind_of_files(str(tmp_path)) == "texts"


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(GraspError, match="pipe"):
        find_columns(str(tmp_path / "x.csv"), None, None)


def test_a_first_row_that_is_nested_deeply_is_refused(tmp_path):
    (tmp_path / "x.jsonl").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(GraspError, match="cannot be read"):
        find_columns(str(tmp_path / "x.jsonl"), None, None)
