"""The command predict."""

from __future__ import annotations

import csv
import io
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, count, islice
from json import dumps
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

from cyclopts import Parameter

from graspcl.cli.options import AtLeastOne, Plugins, load_plugins
from graspcl.cli.workspace import is_workspace
from graspcl.errors import GraspError, nearest
from graspcl.files import beside, bounded_lines, inert_cell, one_line
from graspcl.limits import limit
from graspcl.progress import Silent
from graspcl.state import write_output

if TYPE_CHECKING:
    from graspcl.experiment import Learned
    from graspcl.workspace import Workspace

_CHUNK = 4096  # inputs that are read and predicted before their lines are written
_NAMED = 20  # inputs that are named of each kind of problem; the others are counted
_KINDS = 100  # kinds of problems that are counted separately


class Input(NamedTuple):
    """One image or text: its name in the table, its content, its name in messages, and a problem known already."""

    name: str
    content: Any
    place: str = ""
    fault: str = ""


def predict(
    run: Path,
    /,
    *inputs: Annotated[str, Parameter(allow_leading_hyphen=True)],  # so that - can be one
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
    text: str | None = None,
    top: AtLeastOne = 1,
    json: bool = False,
    plugin: Plugins = (),
) -> None:
    """Classify images or texts with a workspace or a run.

    The table is CSV. With a workspace, its last column marks inputs that look like no learned class. The exit code is 1
    if some inputs could not be read, and 2 if nothing was predicted.

    Parameters
    ----------
    run
        Folder of a workspace, or of a finished run that kept its state. The data it learned are not needed.
    inputs
        Images: files, folders or zip files. Texts: tables (CSV, TSV, JSONL, Parquet), or .txt files with one text per
        line. Use - to read lines from standard input: texts, or paths of images.
    output
        File for the table; by default it is printed.
    text
        Column of the texts in tables; by default that of the run.
    top
        Number of most likely classes per input.
    json
        Print one JSON object per line instead of CSV.
    """
    load_plugins(plugin)
    if output is not None and os.path.isdir(output):
        raise GraspError(f"{output} is a folder; give -o the name of the table, such as {output / 'predictions.csv'}")
    if not inputs:
        raise GraspError("give inputs after the run: image files or folders, tables of texts, or - for standard input")
    if not os.path.lexists(run):
        raise GraspError(f"there is no workspace or run {run}{beside(run)}")
    for given in inputs:
        if given.startswith("-") and given != "-":  # a misspelt option would pass for an input
            hint = nearest(given.partition("=")[0], ["--output", "--text", "--top", "--json", "--plugin", "--help"])
            raise GraspError(f"there is no option {given}; {hint}")
    missing = {given for given in inputs if given != "-" and not os.path.lexists(given)}
    if missing == {*inputs}:
        raise GraspError(f"there is no file or folder {inputs[0]}{beside(Path(inputs[0]))}")
    learned = _load(run)
    title = f"the workspace {run}" if hasattr(learned, "learn") else f"the run in {run}"
    if text is not None and learned.reads == "images":
        raise GraspError(f"--text is for tables of texts, and {title} learned images")
    column = text or learned.config.data.text
    find = partial(_texts, column=column, many=len(inputs) > 1) if learned.reads == "texts" else _images
    # Errors in any of them are raised before the first prediction.
    sources = [_missing(given) if given in missing else find(given, title) for given in inputs]
    blocks = _blocks(chain.from_iterable(sources))
    first = next(blocks, None)
    if first is None:
        raise GraspError("there is nothing to predict: the inputs are empty")
    lost, predicted = _write_to(output, partial(_write, learned, chain([first], blocks), top, json))
    if output is not None:
        print(f"wrote {output}: {predicted} predictions", file=sys.stderr)
    if lost:  # the others are predicted, so it is no error, which has exit code 2
        raise SystemExit(1)


def _write_to(output: Path | None, write_table: Callable[[IO[str]], tuple[int, int]]) -> tuple[int, int]:
    """Write a table to a file, whole or not at all, or print it; return what `write_table` returns."""
    if output is None:
        return write_table(sys.stdout)
    found = 0, 0

    def write(file: IO[bytes]) -> None:
        nonlocal found
        # File names may be in any encoding: they are written unmodified.
        table = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
        found = write_table(table)
        table.detach()

    try:
        write_output(output, write)
    except OSError as error:
        raise GraspError(f"the predictions cannot be written to {output}: {error.strerror}") from error
    return found


def _say(text: str) -> None:
    print(f"graspcl: {one_line(text)}", file=sys.stderr)


class _Told(Silent):
    """Shows notes on standard error, apart from the table."""

    def note(self, text: str) -> None:
        _say(text)


def _load(folder: Path) -> Learned | Workspace:
    """Open what predicts: a workspace, or a run."""
    if is_workspace(folder):
        from graspcl.workspace import Workspace

        return Workspace.open(folder, progress=_Told())
    from graspcl.experiment import load_learner

    learned = load_learner(folder)
    for note in learned.notes:
        _say(note)
    return learned


def _blocks(inputs: Iterator[Input]) -> Iterator[list[Input]]:
    """Divide inputs into blocks that are read, predicted and written before the next one is read."""
    while part := list(islice(inputs, _CHUNK)):
        yield part


class _Problems:
    """Prints the first problems of each kind as they occur, and at the end how many more there are."""

    def __init__(self) -> None:
        self.total = 0
        self._kinds = Counter[str]()

    def add(self, one: Input, fault: str) -> None:
        """Report what is wrong with an input."""
        self.total += 1
        # Messages that differ in names and numbers alone are of one kind.
        kind = re.sub(r"'[^']*'|\d[\d,.]*", "…", fault.rpartition("cannot be read: ")[2])
        kind = kind if kind in self._kinds or len(self._kinds) < _KINDS else "other problems"
        self._kinds[kind] += 1
        if self._kinds[kind] <= _NAMED:
            _say(f"{one.place}{fault}")

    def finish(self, inputs: int) -> None:
        """Report the number of problems."""
        for kind, number in self._kinds.items():
            if number > _NAMED:
                _say(f"{number - _NAMED:,} more like this: {kind}")
        if self.total:
            _say(f"{self.total} of {inputs} inputs could not be read")


def _write(
    learned: Learned | Workspace, blocks: Iterable[list[Input]], top: int, json: bool, file: IO[str]
) -> tuple[int, int]:
    """Write one line per input, without a class if it cannot be read; return how many cannot, and how many can."""
    top, inputs, problems = min(top, len(learned.classes)), 0, _Problems()
    rows = _json_lines(file) if json else _csv_lines(file, top, hasattr(learned, "learn"))
    for part in blocks:
        inputs += len(part)
        places = [place for place, one in enumerate(part) if not one.fault]
        found = learned.predict([part[place].content for place in places])
        best = dict(zip(places, found.top(top), strict=True))
        marks = getattr(found, "unknown", []) if getattr(found, "marks", False) else []
        unknown = dict(zip(places, marks, strict=False))
        faults = {places[position]: fault for position, fault in found.problems.items()}
        for place, one in enumerate(part):
            if fault := one.fault or faults.get(place):
                problems.add(one, fault)
            rows(one.name, best.get(place, []), None if fault else unknown.get(place))
    problems.finish(inputs)
    if problems.total == inputs:
        raise GraspError("nothing was predicted")
    return problems.total, inputs - problems.total


Line = Callable[[str, list[tuple[str, float]], Any], None]  # writes the classes of an input, and whether it is unknown


def _csv_lines(file: IO[str], top: int, marks: bool) -> Line:
    writer = csv.writer(file, lineterminator="\n")
    more = [f"{what}_{place}" for place in range(2, top + 1) for what in ("class", "probability")]
    writer.writerow(["input", "class", "probability", *more, *["unknown"] * marks])

    def write(name: str, best: list[tuple[str, float]], unknown: Any) -> None:
        cells = [cell for one, value in best for cell in (one, f"{value:.6f}")]
        mark = [] if not marks else [""] if unknown is None else ["yes" if unknown else "no"]
        writer.writerow([*map(inert_cell, (name, *cells)), *[""] * (2 * top - len(cells)), *mark])

    return write


def _json_lines(file: IO[str]) -> Line:
    def write(name: str, best: list[tuple[str, float]], unknown: Any) -> None:
        classes = [{"class": one, "probability": round(value, 6)} for one, value in best]
        mark = {} if unknown is None else {"unknown": bool(unknown)}
        file.write(dumps({"input": name, "classes": classes, **mark}) + "\n")

    return write


def _missing(given: str) -> Iterable[Input]:
    return [Input(given, None, f"{given}: ", "there is no such file or folder")]


def _images(given: str, title: str) -> Iterable[Input]:
    """Return an image file, the images of a folder or zip file, or those whose paths come from standard input."""
    from graspcl.data.image_folder import SUFFIXES
    from graspcl.data.table_reader import KINDS
    from graspcl.data.trees import open_tree

    if given == "-":
        return (Input(line, line) for line in _paths())
    path = Path(given)
    if os.path.isfile(path) and path.suffix.lower() in KINDS:
        raise GraspError(f"{title} learned images, and {path} has texts; give images")
    if not os.path.isdir(path) and path.suffix.lower() != ".zip":
        return [Input(given, path)]
    tree = open_tree(path)
    for problem in tree.problems:
        _say(problem)
    names = sorted(name for name in tree.sizes if Path(name).suffix.lower() in SUFFIXES)
    if not names:
        raise GraspError(f"{path} has no images; their names must end in one of {', '.join(sorted(SUFFIXES))}")
    if tree.path(names[0]):  # files: messages about them have their path already
        return [Input(str(path / name), tree.path(name)) for name in names]
    return [Input(str(path / name), partial(tree.read, name), f"{path / name}: ") for name in names]


def _texts(given: str, title: str, column: str, many: bool) -> Iterable[Input]:
    """Return the texts of a table, of a file of lines, or of standard input; with `many` files, names tell which."""
    from graspcl.data.image_folder import SUFFIXES
    from graspcl.data.table_reader import KINDS, Field, read_column

    if given == "-":
        where = "standard input"
        fields: Iterator[Field] = map(Field, count(1), _standard_input())
    else:
        where, path = given, Path(given)
        if os.path.isdir(path) or path.suffix.lower() in SUFFIXES:
            what = "a folder" if os.path.isdir(path) else "an image"
            raise GraspError(f"{title} learned texts, and {path} is {what}; give texts")
        if path.suffix.lower() not in KINDS:
            raise GraspError(f"{path} is not a supported file of texts; its name must end in one of {', '.join(KINDS)}")
        fields = read_column(path, column)
    before = f"{given}:" if many else ""
    return (Input(f"{before}{row}", text, f"{where} row {row}: ", fault) for row, text, fault in fields)


def _paths() -> Iterator[str]:
    """Return the paths that come from standard input; refuse the content of an image in their place."""
    for number, line in enumerate(_standard_input()):
        if not number and ("\0" in line or line.startswith("\udc89PNG")):
            raise GraspError("standard input is no list of paths; give the paths of images, one per line")
        yield line


def _standard_input() -> Iterator[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    # A line that is too long becomes one that cannot be used, so that the others keep their numbers.
    return ("" if line is None else line.rstrip("\n") for line in bounded_lines(sys.stdin, limit("row")))
