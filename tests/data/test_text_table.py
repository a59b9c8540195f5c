"""Tables of texts in every format: what is found, what is left out and reported, and how it is split."""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from graspcl.data import TextTable
from graspcl.data.table_reader import read_rows
from graspcl.errors import GraspError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "text"
FORMATS = ["csv", "tsv", "jsonl", "parquet"]
Row = tuple[object, object]


def write(path: Path, rows: Sequence[Row], columns: tuple[str, str] = ("text", "label")) -> Path:
    """Rows of a text and a label in the format that the name of the file asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[at] for row in rows] for at, name in enumerate(columns)}), path)
    elif path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n" for row in rows]
        path.write_bytes("".join(lines).encode())
    else:
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([columns, *rows])
    return path


def raw(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def everything(table: TextTable) -> list[tuple[str, str]]:
    texts = table.read(np.arange(len(table)))
    return [(text, table.classes[label]) for text, label in zip(texts, table.labels, strict=True)]


def problems(table: TextTable) -> list[str]:
    """Without the folder."""
    return [problem.rpartition("/")[2] for problem in table.problems]


ANIMALS: list[Row] = [("an ant", "insect"), ("a cod", "fish"), ("a bee", "insect"), ("a dab", "fish")]


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format(tmp_path: Path, kind: str) -> None:
    table = TextTable(write(tmp_path / f"animals.{kind}", ANIMALS))
    assert table.name == "animals" and table.classes == ["fish", "insect"] and not table.problems
    assert everything(table) == ANIMALS
    assert table.read([2, 0]) == ["a bee", "an ant"] and table.read([]) == []
    assert len(table.train) == len(table.test) == 2


def test_formats_are_the_same_samples(tmp_path: Path) -> None:
    tables = [TextTable(write(tmp_path / f"animals.{kind}", ANIMALS)) for kind in FORMATS]
    assert len({table.fingerprint() for table in tables}) == 1


@settings(deadline=None, max_examples=60)
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: text.strip()), min_size=1),
    kind=st.sampled_from(FORMATS),
)
@example(
    texts=['he said "no",\n\tand\r\nwent', "a\rb", '"', "'", "\t\\N,;", "\ufeffx", "\u2028x\x85", "\0", "né 🦊"],
    kind="csv",
)
@example(
    texts=['he said "no",\n\tand\r\nwent', "a\rb", '"', "'", "\t\\N,;", "\ufeffx", "\u2028x\x85", "\0", "né 🦊"],
    kind="tsv",
)
@example(texts=["\u2028x\x85\x1c", "\0", '\\"', "\ufeffx"], kind="jsonl")
def test_texts_are_read_unmodified(texts: list[str], kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = TextTable(write(Path(folder) / f"t.{kind}", [(text, "x") for text in texts]), test_share=0)
        assert table.read(np.arange(len(table))) == texts and not table.problems


@pytest.mark.parametrize("kind", FORMATS)
def test_long_texts_are_kept_whole(tmp_path: Path, kind: str) -> None:
    rows: list[Row] = [("word " * 20_000, "x"), ("word\n" * 100_000, "x"), ("short", "x")]
    table = TextTable(write(tmp_path / f"long.{kind}", [*rows, ("x" * 20_000, "x")]))
    assert everything(table) == [*rows, ("x" * 20_000, "x")]
    first = 2 if kind in ("csv", "tsv") else 1
    told = "characters; kept, but a transformer reads only its first tokens"
    assert problems(table) == [
        f"long.{kind} row {first}: 100,000 {told}",
        f"long.{kind} row {first + 1}: 500,000 characters; only the first 100,000 are used",
    ]


def test_the_limit_of_the_csv_module_is_put_back_after_errors_and_threads(tmp_path: Path) -> None:
    before = csv.field_size_limit(1234)
    with pytest.raises(GraspError):
        TextTable(raw(tmp_path / "bad.csv", "a,b\n1,2\n"))
    file = write(tmp_path / "long.csv", [("word " * 40_000, "x"), *ANIMALS * 200])
    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(TextTable, [file] * 8))
    assert {len(table) for table in tables} == {801}
    assert csv.field_size_limit(before) == 1234


def test_spreadsheets_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert TextTable(raw(tmp_path / "a.csv", "\ufefftext,label\none,x\n")).read([0]) == ["one"]
    assert TextTable(raw(tmp_path / "a.jsonl", '\ufeff{"text": "one", "label": "x"}\n')).read([0]) == ["one"]


def test_lines_may_end_in_any_way_and_columns_come_in_any_order(tmp_path: Path) -> None:
    for end in ("\n", "\r\n", "\r"):
        content = end.join(["id, label ,text", "1,x,one", "", '2,y,"two, or 2"'])
        assert everything(TextTable(raw(tmp_path / "a.csv", content))) == [("one", "x"), ("two, or 2", "y")]


@pytest.mark.parametrize("name, delimiter", [("a.csv", ";"), ("a.csv", "\t"), ("a.tsv", ","), ("a.tsv", ";")])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
def test_the_header_shows_the_delimiter(tmp_path: Path, name: str, delimiter: str, quoting: Any) -> None:
    rows = [("one, two; three\tfour", "x"), ('"five"\nsix', "y")]
    with open(tmp_path / name, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=delimiter, quoting=quoting).writerows([("text", "label"), *rows])
    assert everything(TextTable(tmp_path / name)) == rows


def test_semicolons_in_a_header_of_several_columns_are_part_of_a_name(tmp_path: Path) -> None:
    table = TextTable(raw(tmp_path / "a.csv", "text,label,notes;more\na;b,x,c\n"))
    assert everything(table) == [("a;b", "x")]


def test_columns_of_other_names(tmp_path: Path) -> None:
    for kind in FORMATS:
        file = write(tmp_path / f"a.{kind}", ANIMALS, columns=("sentence", "class"))
        assert everything(TextTable(file, text="sentence", label="class")) == ANIMALS


# -- labels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_whole_numbers_are_sorted_by_value(tmp_path: Path, kind: str) -> None:
    table = TextTable(write(tmp_path / f"a.{kind}", [(f"text {n}", n) for n in (10, 9, 100, -1)]))
    assert table.classes == ["-1", "9", "10", "100"] and table.labels.tolist() == [2, 1, 3, 0]


def test_numbers_among_words_are_words(tmp_path: Path) -> None:
    assert TextTable(write(tmp_path / "a.csv", [("a", "10"), ("b", "9"), ("c", "none")])).classes == ["10", "9", "none"]
    assert TextTable(write(tmp_path / "b.csv", [("a", "9" * 5000), ("b", "9")])).classes == ["9", "9" * 5000]


def test_labels_of_other_types(tmp_path: Path) -> None:
    rows: list[Row] = [("a", 2.0), ("b", 10), ("c", " 2 "), ("d", float("nan")), ("e", 2.5), ("f", [1]), ("g", None)]
    table = TextTable(write(tmp_path / "a.jsonl", rows))
    assert everything(table) == [("a", "2"), ("b", "10"), ("c", "2")]
    assert problems(table) == [
        "a.jsonl row 4: no label",
        "a.jsonl row 5: label is 2.5, neither text nor a whole number",
        "a.jsonl row 6: label is [1], neither text nor a whole number",
        "a.jsonl row 7: no label",
    ]
    assert TextTable(write(tmp_path / "b.parquet", [("a", True), ("b", False)])).classes == ["false", "true"]


@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_labels_that_are_all_numbers_count_by_their_value(tmp_path: Path, kind: str) -> None:
    labels = ["1", "1.0", " 2.", "nan", "", "NaN", "3e+00", "-1.0", "2.5", "007"]
    table = TextTable(write(tmp_path / f"a.{kind}", [(f"text {n}", label) for n, label in enumerate(labels)]))
    assert [label for _, label in everything(table)] == ["1", "1", "2", "3", "-1", "007"]
    assert problems(table) == [
        *(f"a.{kind} row {row}: no label" for row in (5, 6, 7)),
        f"a.{kind} row 10: label is 2.5, neither text nor a whole number",
    ]


def test_numbers_among_words_are_as_they_are_written(tmp_path: Path) -> None:
    rows: list[Row] = [("a", "1.0"), ("b", "2.5"), ("c", "word"), ("d", "nan")]
    table = TextTable(write(tmp_path / "a.csv", rows))
    assert everything(table) == rows[:3] and problems(table) == ["a.csv row 5: no label"]


def test_a_csv_file_has_no_types_so_digits_may_be_a_text(tmp_path: Path) -> None:
    rows: list[Row] = [("12345", "x"), ("1.5", "y")]
    assert everything(TextTable(write(tmp_path / "a.csv", rows))) == rows


def test_parquet_columns_with_gaps_and_categories(tmp_path: Path) -> None:
    columns = {
        "text": pa.array(["a", "b", None, "d"]).dictionary_encode(),
        "label": pa.array([1.0, None, 3.0, 3.0]),  # what pandas makes of whole numbers with gaps
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    table = TextTable(tmp_path / "a.parquet")
    assert everything(table) == [("a", "1"), ("d", "3")]
    assert problems(table) == ["a.parquet row 2: no label", "a.parquet row 3: no text"]


# -- bad rows ----------------------------------------------------------------------------------------------------------


def test_bad_rows_of_csv(tmp_path: Path) -> None:
    rows = [
        b"text,label",
        b"good,x",
        b'"of three\nlines, but\none row",x',
        b",x",
        b" \t,x",
        b"no label,",
        b"caf\xe9,x",
        b"good too,\xff",
        b"one column",
        b"three,x,y",
        b'"open" quote,x',
        "café,x".encode(),
    ]
    table = TextTable(raw(tmp_path / "a.csv", b"\n".join(rows)))
    assert [text for text, _ in everything(table)] == ["good", "of three\nlines, but\none row", "café"]
    assert problems(table) == [
        "a.csv row 4: empty text",
        "a.csv row 5: empty text",
        "a.csv row 6: no label",
        "a.csv row 7: text is not UTF-8",
        "a.csv row 8: label is not UTF-8",
        "a.csv row 9: 1 column where the header has 2",
        "a.csv row 10: 3 columns where the header has 2",
        "a.csv row 11: malformed, is a quote left open? (',' expected after '\"')",
    ]


def test_a_blank_line_is_a_row_but_no_problem(tmp_path: Path) -> None:
    table = TextTable(raw(tmp_path / "a.csv", "text,label\n\na,x\n\n,x\n\n"))
    assert everything(table) == [("a", "x")] and problems(table) == ["a.csv row 5: empty text"]


def test_bytes_that_are_not_utf8_matter_only_in_the_columns_used(tmp_path: Path) -> None:
    table = TextTable(raw(tmp_path / "a.csv", b"note,text,label\n\xff,one,x\n"))
    assert everything(table) == [("one", "x")] and not table.problems


@pytest.mark.parametrize("after", ["", 'said "so",x\n', '"quoted",y\n'])
def test_a_quote_left_open_costs_no_other_row(tmp_path: Path, after: str) -> None:
    rows = "".join(f"text {n},{'xy'[n % 2]}\n" for n in range(50))
    table = TextTable(raw(tmp_path / "a.csv", f'text,label\n{rows}"open,x\n{rows.replace("text", "more")}{after}'))
    assert len(table) == 100 + bool(after)
    assert len(table.problems) == 1 and "a.csv row 52: malformed, is a quote left open?" in table.problems[0]


@pytest.mark.parametrize("quoted", [False, True])
def test_a_quote_left_open_costs_no_class_of_a_sorted_file(tmp_path: Path, quoted: bool) -> None:
    mark = '"' if quoted else ""
    rows = [f"{mark}text {n}{mark},class {n // 40}\n" for n in range(400)]
    rows[4] = '"open,class 0\n'
    table = TextTable(raw(tmp_path / "a.csv", "text,label\n" + "".join(rows)))
    assert np.bincount(table.labels).tolist() == [39, *[40] * 9]
    assert [problem.split(":")[0] for problem in problems(table)] == ["a.csv row 6"]


def test_the_only_row_of_a_class_is_in_doubt_after_a_quote_left_open(tmp_path: Path) -> None:
    content = 'text,label\na,x\n"open,x\nb,y\nc,z\nd,y\n'
    table = TextTable(raw(tmp_path / "a.csv", content))
    assert everything(table) == [("a", "x"), ("b", "y"), ("d", "y")]
    assert problems(table)[1:] == ["a.csv row 5: read again after a quote left open, and no other row has its label"]


def test_numbers_are_the_same_label_after_a_quote_left_open(tmp_path: Path) -> None:
    table = TextTable(raw(tmp_path / "a.csv", 'text,label\n"open,0\na,1\nb,1.0\nc,2\nd,02\n'))
    assert everything(table) == [("a", "1"), ("b", "1"), ("c", "2"), ("d", "02")] and len(table.problems) == 1


def test_lines_of_a_text_cut_off_do_not_become_classes(tmp_path: Path) -> None:
    table = TextTable(raw(tmp_path / "a.csv", 'label,text\nx,one\ny,"two\nWell, it depends\non this, and that\nx,thr'))
    assert everything(table) == [("one", "x"), ("thr", "x")] and table.classes == ["x"]
    assert [problem.split(":")[0] for problem in problems(table)] == ["a.csv row 3", "a.csv row 4", "a.csv row 5"]


def test_bad_rows_of_jsonl(tmp_path: Path) -> None:
    lines = [
        b'{"text": "good", "label": "x"}',
        b'{"text": "cut off", "la',
        b'["a", "x"]',
        b"",
        b'{"text": 3, "label": "x"}',
        b'{"text": null, "label": "x"}',
        b'{"text": ["a", "b"], "label": "x"}',
        b'{"label": "x"}',
        b'{"text": "no label"}',
        b'{"text": "caf\xe9", "label": "x"}',
        b'{"text": "half a pair: \\ud83e", "label": "x"}',
        b'{"text": "", "label": "x"}',
        b'{"text": ' + b"[" * 100_000,
        b'{"text": "good too", "label": "x", "more": {}, "more": 1}',
        b'{"text": "one", "text": "two", "label": "x"}',
        b'{"text": "one", "label": "x", "label": "y"}',
    ]
    table = TextTable(raw(tmp_path / "a.jsonl", b"\n".join(lines)))
    assert everything(table) == [("good", "x"), ("good too", "x")]
    reasons = {int(problem.split()[2][:-1]): problem.partition(": ")[2] for problem in problems(table)}
    assert reasons.pop(2).startswith("malformed JSON: Unterminated string starting at, character 21")
    assert reasons.pop(13).startswith("malformed JSON: ")
    assert reasons == {
        3: "['a', 'x'] is not an object with columns",
        5: "text is 3, not a string",
        6: "no text",
        7: "text is ['a', 'b'], not a string",
        8: "no text",
        9: "no label",
        10: "not UTF-8",
        11: "text is not UTF-8",
        12: "empty text",
        15: "it has 'text' twice",
        16: "it has 'label' twice",
    }


def test_bad_rows_of_parquet(tmp_path: Path) -> None:
    lengths = np.array([0, 1, 3, 3, 6], np.int32)  # "a", a byte that is not UTF-8 after "b", "", "def"
    buffers = [None, pa.py_buffer(lengths.tobytes()), pa.py_buffer(b"ab\xffdef")]
    texts = pa.Array.from_buffers(pa.string(), 4, buffers)
    pq.write_table(pa.table({"text": texts, "label": ["x", "x", "x", "x"]}), tmp_path / "a.parquet")
    table = TextTable(tmp_path / "a.parquet")
    assert everything(table) == [("a", "x"), ("def", "x")]
    assert problems(table) == ["a.parquet row 2: text is not UTF-8", "a.parquet row 3: empty text"]


@pytest.mark.parametrize("values", [[1, 2], [["a"], ["b"]], [{"a": 1}, {"a": 2}], [None, None]])
def test_a_parquet_column_without_texts(tmp_path: Path, values: list[Any]) -> None:
    nested = r"its column 'text' is a (list|struct)<.*>, not texts"
    with pytest.raises(GraspError, match=rf"{nested}|no usable rows; bad rows: 2, the first: .* 1: (text is|no text)"):
        TextTable(write(tmp_path / "a.parquet", [(value, "x") for value in values]))


def test_row_numbers_continue_across_batches_of_a_parquet_file(tmp_path: Path) -> None:
    rows: list[Row] = [(f"text {n}", "x") for n in range(70_000)]  # more than a batch
    rows[69_000] = ("", "x")
    assert problems(TextTable(write(tmp_path / "a.parquet", rows))) == ["a.parquet row 69001: empty text"]


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    bad: list[Row] = [("", "x")] * 500
    write(tmp_path / "train.csv", [*ANIMALS, *bad])
    write(tmp_path / "test.csv", [*bad, *ANIMALS])
    assert problems(TextTable(tmp_path)) == [
        *(f"train.csv row {n}: empty text" for n in range(6, 506)),
        *(f"test.csv row {n}: empty text" for n in range(2, 502)),
    ]


# -- files that cannot be used -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.csv", "", "a.csv is empty"),
        ("a.csv", "text,label\n", "a.csv has no usable rows"),
        (
            "a.csv",
            "text,label\n,x\n,y\n",
            "a.csv has no usable rows; bad rows: 2, the first: .* row 2: empty text",
        ),
        (
            "a.csv",
            "texts,label\na,x\n",
            r"no column 'text'; its columns are texts, label; did you mean 'texts'\? "
            r"Choose a column with --data.text NAME \(in Python: text=\)$",
        ),
        ("a.csv", "TEXT,label\na,x\n", "no column 'text'; its columns are TEXT, label; did you mean 'TEXT'"),
        (
            "a.csv",
            "utterance,intent\na,x\n",
            "no column 'text' and no column 'label'; its columns are utterance, intent; "
            r"choose a column with --data.text NAME --data.label NAME \(in Python: text=, label=\)$",
        ),
        (
            "a.csv",
            "text,class\na,x\n",
            r"are text, class; choose a column with --data.label NAME \(in Python: label=\)$",
        ),
        ("a.csv", "body;label\na;x\n", "no column 'text'; its columns are body, label"),
        ("a.csv", "text\na\n", "no column 'label'; its columns are text;"),
        ("a.csv", "text,label, text \na,x,b\n", "a.csv has 2 columns called 'text'; rename or remove all but one"),
        ("a.tsv", "label\ttext\tlabel\nx\ta\ty\n", "a.tsv has 2 columns called 'label'"),
        (
            "a.csv",
            "text,label\na,0.014\nb,0.033\n",
            "bad rows: 2, the first: .* label is 0.014, neither text nor a whole",
        ),
        ("a.csv", b"t\xe9xt,label\na,x\n", r"its columns are t\\udce9xt, label"),
        ("a.csv", '"text,label\na,x\n', "the header, is malformed"),
        ("a.csv", "text,label\na,x\n".encode("utf-16"), "is in UTF-16; save it as UTF-8"),
        ("a.jsonl", '{"txt": "a", "label": "x"}\n', "no column 'text'; its columns are txt, label; did you mean 'txt'"),
        ("a.jsonl", "nothing\n", "no usable rows; bad rows: 1, the first: .* row 1: malformed JSON"),
        ("a.jsonl", "", "no usable rows"),
        ("a.parquet", "nothing", "cannot be read as a Parquet file"),
        ("a.txt", "text,label\na,x\n", r"is not a table; its name must end in one of \.csv, \.tsv"),
    ],
)
def test_unusable_files_are_refused(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(GraspError, match=message) as caught:
        TextTable(raw(tmp_path / name, content))
    str(caught.value).encode()  # can be printed


def test_a_parquet_file_without_the_column(tmp_path: Path) -> None:
    with pytest.raises(GraspError, match="no column 'text'; its columns are body, label"):
        TextTable(write(tmp_path / "a.parquet", ANIMALS, columns=("body", "label")))


def test_a_parquet_file_with_a_column_twice(tmp_path: Path) -> None:
    columns = [pa.array(["a"]), pa.array(["x"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["text", "label", "text"]), tmp_path / "a.parquet")
    with pytest.raises(GraspError, match=r"a\.parquet has 2 columns called 'text'"):
        TextTable(tmp_path / "a.parquet")
    pq.write_table(
        pa.Table.from_arrays(columns[::-1] + columns[:1], names=["id", "label", "text", "id"]), tmp_path / "a.parquet"
    )
    assert everything(TextTable(tmp_path / "a.parquet")) == [("a", "x")]


@pytest.mark.parametrize("kind", ["ArrowInvalid", "ArrowKeyError", "ArrowNotImplementedError", "ArrowTypeError"])
def test_whatever_pyarrow_raises_is_explained(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> None:
        raise getattr(pa, kind)("not this\nfile")

    file = write(tmp_path / "a.parquet", ANIMALS)
    monkeypatch.setattr(pq, "ParquetFile", refuse)
    with pytest.raises(GraspError, match=r"a\.parquet cannot be read as a Parquet file: .*not this file"):
        TextTable(file)


def test_a_parquet_file_cut_short(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.parquet", [(f"text {n}", "x") for n in range(1000)]).read_bytes()
    for damaged in (whole[:-200], whole[:50] + bytes(200) + whole[250:]):
        with pytest.raises(GraspError, match=r"a\.parquet (cannot be read as a Parquet file|has no rows)"):
            TextTable(raw(tmp_path / "a.parquet", damaged))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"test_share": 1}, "test_share must be a number in \\[0, 1\\), got 1"),
        ({"test_per_class": -1}, "test_per_class must be a whole number of at least 0 or none, got -1"),
        ({"val": "trian"}, "val must be 'ignore' or 'train', got 'trian'"),
        ({"label": "text"}, "must be two different columns, got 'text' for both"),
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        TextTable(write(tmp_path / "a.csv", ANIMALS), **options)


def test_missing_paths_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path / "none.csv", (tmp_path / "none.csv", tmp_path / "none.csv")):
        with pytest.raises(GraspError, match=r"there is no file or folder .*none"):
            TextTable(path)
    with pytest.raises(GraspError, match=r"has no training data; add train\.csv \(or \.tsv, "):
        TextTable(tmp_path)
    with pytest.raises(GraspError, match="a pair of files to train and to test on, got 3 paths"):
        TextTable(["a.csv", "b.csv", "c.csv"])


# -- splits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation", "dev", "Test"])
def test_a_folder_with_two_files(tmp_path: Path, test: str) -> None:
    write(tmp_path / "animals" / "train.csv", ANIMALS)
    write(tmp_path / "animals" / f"{test}.jsonl", [("an emu", "fish"), ("an eft", "insect")])
    write(tmp_path / "animals" / "oos_test.csv", [("a car", "thing")])
    table = TextTable(tmp_path / "animals")
    assert table.name == "animals" and table.read(table.test) == ["an emu", "an eft"]
    assert [text for text, _ in ANIMALS] == table.read(table.train)


def test_a_pair_of_files(tmp_path: Path) -> None:
    pair = write(tmp_path / "one.csv", ANIMALS), write(tmp_path / "two.parquet", ANIMALS[:1])
    for path in (pair, [str(file) for file in pair]):
        table = TextTable(path)
        assert table.read(table.train) == [text for text, _ in ANIMALS] and table.read(table.test) == ["an ant"]


def test_val_is_ignored_or_trained_on(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        write(tmp_path / f"{part}.csv", [(f"{part} {n}", "x") for n in range(3)])

    def parts(val: str) -> list[set[str]]:
        table = TextTable(tmp_path, val=val, test_share=0)
        return [{text.split()[0] for text in table.read(split)} for split in (table.train, table.test)]

    assert parts("ignore") == [{"train"}, {"test"}] and parts("train") == [{"train", "val"}, {"test"}]
    (tmp_path / "test.csv").unlink()
    assert parts("ignore") == [{"train"}, {"val"}] and parts("train") == [{"train", "val"}, set()]


def test_two_files_of_one_name(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ANIMALS)
    write(tmp_path / "train.tsv", ANIMALS)
    with pytest.raises(GraspError, match=r"has both train\.csv and train\.tsv"):
        TextTable(tmp_path)


def test_classes_that_are_tested_but_not_trained_on(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ANIMALS)
    write(tmp_path / "test.csv", [("a car", "thing"), ("a cod", "fish")])
    with pytest.raises(GraspError, match=r"test\.csv has classes without training texts: thing"):
        TextTable(tmp_path)


def test_without_a_test_file_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    rows: list[Row] = [(f"{c} {n}", c) for c, size in (("a", 40), ("b", 5), ("c", 1)) for n in range(size)]
    table = TextTable(write(tmp_path / "t.csv", rows), test_share=0.2)
    assert np.bincount(table.labels[table.test], minlength=3).tolist() == [8, 1, 0]
    assert np.bincount(table.labels[table.train], minlength=3).tolist() == [32, 4, 1]
    shuffled = TextTable(write(tmp_path / "u.csv", rows[::-1]), test_share=0.2)
    assert set(shuffled.read(shuffled.test)) == set(table.read(table.test))  # by the text, not by its place
    assert set(shuffled.ids[shuffled.test]) == set(table.ids[table.test])
    assert len(TextTable(tmp_path / "t.csv", test_share=0).test) == 0


def test_a_number_of_each_class_is_held_out(tmp_path: Path) -> None:
    rows: list[Row] = [(f"{c} {n}", c) for c, size in (("a", 40), ("b", 5), ("c", 1)) for n in range(size)]
    table = TextTable(write(tmp_path / "t.csv", rows), test_per_class=10)
    assert np.bincount(table.labels[table.test], minlength=3).tolist() == [10, 4, 0] and len(table) == 46
    fewer = TextTable(tmp_path / "t.csv", test_per_class=3)
    assert set(fewer.read(fewer.test)) < set(table.read(table.test))


def test_at_most_a_number_of_each_class_of_a_test_file(tmp_path: Path) -> None:
    write(tmp_path / "train.csv", ANIMALS)
    write(tmp_path / "test.csv", [(f"{c} {n}", c) for c, size in (("fish", 9), ("insect", 2)) for n in range(size)])
    table = TextTable(tmp_path, test_per_class=3)
    assert np.bincount(table.labels[table.test]).tolist() == [3, 2] and len(table.train) == 4 and len(table) == 9
    assert TextTable(tmp_path).version == table.version  # the same files
    assert TextTable(tmp_path).fingerprint() != table.fingerprint()


@settings(deadline=None, max_examples=40)
@given(
    rows=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), min_size=1, max_size=40),
    share=st.floats(0, 0.99),
)
def test_equal_texts_of_a_class_stay_together_and_have_ids_of_their_own(rows: list[Row], share: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = TextTable(write(Path(folder) / "t.csv", rows), test_share=share)
    assert everything(table) == rows
    train, test = ({everything(table)[row] for row in split} for split in (table.train, table.test))
    assert not train & test and {label for _, label in train} == {label for _, label in rows}
    assert len(set(table.ids.tolist())) == len(rows)
    if share:
        several = {label for _, label in rows if len({text for text, other in rows if other == label}) > 1}
        assert {label for _, label in test} == several


def test_ids_stay_when_rows_are_added(tmp_path: Path) -> None:
    before = TextTable(write(tmp_path / "t.csv", ANIMALS))
    after = TextTable(write(tmp_path / "t.csv", [("a cat", "mammal"), *ANIMALS, ANIMALS[0]]))
    assert after.ids[1:5].tolist() == before.ids.tolist() and after.version != before.version


# -- packages that are not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing, extra", [("datasets", "hub"), ("pyarrow.parquet", "text")])
def test_a_missing_package_is_named_in_one_line(
    tmp_path: Path, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "hf:ag_news" if missing == "datasets" else write(tmp_path / "a.parquet", ANIMALS)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(GraspError, match=rf"^{missing} is not installed; in .* run: pip install '\.\[{extra}\]'$"):
        TextTable(path)


# -- real data ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "clinc150").is_dir(), reason="needs ../shared/data/text/clinc150")
def test_clinc150() -> None:
    table = TextTable(SHARED / "clinc150")
    assert len(table.classes) == 150 and "oos" not in table.classes and not table.problems
    assert np.bincount(table.labels[table.train]).tolist() == [100] * 150
    assert np.bincount(table.labels[table.test]).tolist() == [30] * 150
    merged = TextTable(SHARED / "clinc150", val="train")
    assert np.bincount(merged.labels[merged.train]).tolist() == [120] * 150
    assert merged.ids[merged.test].tolist() == table.ids[table.test].tolist()


@pytest.mark.skipif(not (SHARED / "yelp").is_dir(), reason="needs ../shared/data/text/yelp")
def test_real_texts_are_what_the_csv_module_reads() -> None:
    table = TextTable(SHARED / "yelp" / "train.csv")
    content = (SHARED / "yelp" / "train.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(content, newline="")))
    assert everything(table) == [(row["text"], row["label"]) for row in rows]


def test_a_plus_does_not_change_a_number(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nx,+1\ny,1.0\nz,1\nw,2\n")
    assert read_rows(tmp_path / "a.csv", "text", "label").labels == ["1", "1", "1", "2"]
