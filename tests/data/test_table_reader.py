"""Texts without labels: one column of a table, or the lines of a file."""

import json
import tracemalloc

import pytest

from graspcl.data import TextTable
from graspcl.data.table_reader import read_column
from graspcl.errors import GraspError


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_the_text_column_of_a_table_is_enough(kind, tmp_path):
    file, texts = tmp_path / f"news.{kind}", ["Rates, again", 'A "goal"', "two\nlines", "naïve", ""]
    if kind == "jsonl":
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    elif kind == "parquet":
        pa = pytest.importorskip("pyarrow", reason="needs graspcl[text]")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table({"text": texts, "other": range(5)}), file)
    else:
        quoted = ["text", *('"' + text.replace('"', '""') + '"' for text in texts)]
        file.write_text("\n".join(quoted), encoding="utf-8")
    first = 2 if kind in ("csv", "tsv") else 1
    assert [*read_column(file, "text")] == [(row, text, "") for row, text in enumerate(texts, start=first)]
    with pytest.raises(GraspError, match=r"has no column 'txt'; its columns are text.*did you mean 'text'\?"):
        [*read_column(file, "txt")]


def test_bad_rows_are_reported_and_the_others_are_read(tmp_path):
    table, lines, records = tmp_path / "a.csv", tmp_path / "a.txt", tmp_path / "a.jsonl"
    table.write_bytes(b'n,text\n1,good\n2\n3,"open\n4,bad \xff\n')
    found = [*read_column(table, "text")]
    assert [(field.row, bool(field.fault)) for field in found] == [(2, False), (3, True), (4, True), (5, False)]
    assert found[0].value == "good" and "quote left open" in found[2].fault and found[3].value == "bad \udcff"
    lines.write_bytes(b"\xef\xbb\xbfone\r\n\ntwo")
    assert [field.value for field in read_column(lines, "text")] == ["one", "", "two"]
    records.write_text('{"text": "one"}\n\n{"text"\n[]\n{"other": 1}\n')
    assert [(row, value, fault[:9]) for row, value, fault in read_column(records, "text")] == [
        (1, "one", ""), (3, None, "malformed"), (4, None, "[] is not"), (5, None, "")
    ]  # fmt: skip
    lines.write_text("text", encoding="utf-16")
    with pytest.raises(GraspError, match="is in UTF-16; save it as UTF-8"):
        read_column(lines, "text")
    table.write_text("")
    with pytest.raises(GraspError, match="is empty"):
        read_column(table, "text")


def test_a_table_without_the_column_is_refused_before_it_is_read(tmp_path, monkeypatch):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": "one"}\n' * 3)
    with pytest.raises(GraspError, match="has no column 'text'; its columns are a;"):
        read_column(file, "text")
    monkeypatch.setattr("graspcl.data.table_reader._FIRST", 3)
    file.write_text('{"a": "one"}\n' * 3 + '{"text": "one", "label": 1}\n')
    for read in (lambda: read_column(file, "text"), lambda: TextTable(file)):
        with pytest.raises(GraspError, match="its columns are a;"):
            read()
    file.write_text('[]\n{"a": "one"}\n{"text": "one"}\n{"a": "two"}\n{"b": 1}\n')
    assert [field.value for field in read_column(file, "text")] == [None, None, "one", None, None]


def test_of_many_columns_a_message_names_some(tmp_path):
    (tmp_path / "a.csv").write_text(",".join(["x" * 1000, *(f"c{number}" for number in range(100_000))]) + "\n")
    with pytest.raises(GraspError, match=r"c198 and 99,801 more; choose") as refused:
        read_column(tmp_path / "a.csv", "text")
    assert len(str(refused.value)) < 3000


def test_a_value_that_occurs_twice_is_a_fault(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "text": "b"}\n{"text": "c"}\n')
    twice, sound = read_column(tmp_path / "a.jsonl", "text")
    assert twice.value is None and "twice" in twice.fault and tuple(sound) == (2, "c", "")


@pytest.mark.parametrize("kind", ["csv", "txt", "jsonl"])
def test_rows_are_read_when_they_are_needed(tmp_path, kind):
    """A table of any length takes little memory: its rows are not kept."""
    row = {"csv": "some text,label\n", "txt": "some text\n", "jsonl": '{"text": "some text"}\n'}[kind]
    file = tmp_path / f"a.{kind}"
    file.write_text(("text,label\n" if kind == "csv" else "") + row * 40_000)
    tracemalloc.start()
    try:
        assert sum(field.value == "some text" for field in read_column(file, "text")) == 40_000
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_tables_may_be_read_side_by_side(tmp_path):
    """Their rows are read in turns, and the csv module has one limit for all."""
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("text\n" + f"{name}\n" * 3000)
    pairs = zip(read_column(tmp_path / "a.csv", "text"), read_column(tmp_path / "b.csv", "text"), strict=True)
    assert {(one.value, other.value) for one, other in pairs} == {("a", "b")}
