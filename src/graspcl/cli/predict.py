"""The command predict."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from graspcl.cli.options import AtLeastOne, Plugins, load_plugins
from graspcl.errors import GraspError, nearest

if TYPE_CHECKING:
    from graspcl.experiment import Learned

_CHUNK = 4096  # inputs that are predicted before their lines are written


@dataclass(frozen=True)
class Input:
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
    plugin: Plugins = [],  # noqa: B006  (never changed; cyclopts shows it as the default)
) -> None:
    """Classify images or texts with a finished run, as a CSV table.

    Parameters
    ----------
    run
        Folder of a finished run that kept its state; the run's data are not needed.
    inputs
        Images: files, folders or zip files. Texts: tables (CSV, TSV, JSONL, Parquet), or .txt files with one text per
        line. Use - to read lines from standard input: texts, or paths of images.
    output
        File for the table; by default it is printed.
    text
        Column of the texts in tables; by default that of the run.
    top
        Number of most likely classes per input.
    """
    from graspcl.experiment import load_learner
    from graspcl.state import write_whole

    load_plugins(plugin)
    if output is not None and output.is_dir():
        raise GraspError(f"{output} is a folder; give -o the name of the table, such as {output / 'predictions.csv'}")
    if not inputs:
        raise GraspError("give inputs after the run: image files or folders, tables of texts, or - for standard input")
    _refuse_options(inputs)
    learned = load_learner(run)
    if text is not None and learned.reads == "images":
        raise GraspError(f"--text is for tables of texts, and the run in {run} learned images")
    column = text or learned.config.data.text
    find = partial(_texts, column=column, many=len(inputs) > 1) if learned.reads == "texts" else _images
    table = _Table(learned, top, [one for each in inputs for one in find(each, run)])
    if output is None:
        table.write(sys.stdout)
    else:
        try:
            write_whole(output, lambda file: _as_text(file, table.write))
        except OSError as error:
            raise GraspError(f"the predictions cannot be written to {output}: {error.strerror}") from error
        print(f"wrote {output}: {len(table.inputs) - table.lost} predictions", file=sys.stderr)


def _refuse_options(inputs: tuple[str, ...]) -> None:
    """Refuse a misspelt option, which would pass for an input."""
    for each in inputs:
        if each.startswith("-") and each != "-":
            hint = nearest(each.partition("=")[0], ["--output", "--text", "--top", "--plugin", "--help"])
            raise GraspError(f"there is no option {each}; {hint}")


class _Table:
    """Predictions of `inputs` as CSV, one line each; those that cannot be read have no class."""

    def __init__(self, learned: Learned, top: int, inputs: list[Input]) -> None:
        self.learned, self.top, self.inputs = learned, min(top, len(learned.classes)), inputs
        self.lost = 0
        if not inputs:
            raise GraspError("there is nothing to predict: the inputs are empty")

    def write(self, file: IO[str]) -> None:
        writer = csv.writer(file, lineterminator="\n")
        more = [f"{what}_{place}" for place in range(2, self.top + 1) for what in ("class", "probability")]
        writer.writerow(["input", "class", "probability", *more])
        for begin in range(0, len(self.inputs), _CHUNK):
            writer.writerows(self._lines(self.inputs[begin : begin + _CHUNK]))
        if self.lost:
            print(f"graspcl: {self.lost} of {len(self.inputs)} inputs could not be read", file=sys.stderr)
        if self.lost == len(self.inputs):
            raise GraspError("nothing was predicted")

    def _lines(self, part: list[Input]) -> Iterator[list[str]]:
        places = [place for place, one in enumerate(part) if not one.fault]
        found = self.learned.predict([part[place].content for place in places])
        best = dict(zip(places, found.top(self.top), strict=True))
        faults = {places[position]: fault for position, fault in found.problems.items()}
        for place, one in enumerate(part):
            if fault := one.fault or faults.get(place):
                print(f"graspcl: {one.place}{fault}", file=sys.stderr)
                self.lost += 1
            cells = [cell for name, value in best.get(place, []) for cell in (name, f"{value:.6f}")]
            yield [one.name, *cells, *[""] * (2 * self.top - len(cells))]


# -- inputs ------------------------------------------------------------------------------------------------------------


def _images(given: str, run: Path) -> list[Input]:
    """Return an image file, the images of a folder or zip file, or those whose paths come from standard input."""
    from graspcl.data.image_folder import SUFFIXES
    from graspcl.data.table_reader import KINDS
    from graspcl.data.trees import open_tree

    if given == "-":
        return [Input(line, line) for line in _standard_input()]
    path = _existing(given)
    if path.is_file() and path.suffix.lower() in KINDS:
        raise GraspError(f"the run in {run} learned images, and {path} has texts; give images, or a run of texts")
    if path.is_file() and path.suffix.lower() != ".zip":
        return [Input(given, path)]
    tree = open_tree(path)
    names = sorted(name for name in tree.sizes if Path(name).suffix.lower() in SUFFIXES)
    if not names:
        raise GraspError(f"{path} has no images; their names must end in one of {', '.join(sorted(SUFFIXES))}")
    files = {name: tree.path(name) for name in names}  # messages about files have their path already
    return [
        Input(str(path / name), file or partial(tree.read, name), "" if file else f"{path / name}: ")
        for name, file in files.items()
    ]


def _texts(given: str, run: Path, column: str, many: bool) -> list[Input]:
    """Return the texts of a table, of a file of lines, or of standard input; with `many` files, names tell which."""
    from graspcl.data.image_folder import SUFFIXES
    from graspcl.data.table_reader import KINDS, Field, read_column

    if given == "-":
        fields = [Field(row, line) for row, line in enumerate(_standard_input(), start=1)]
    else:
        path = _existing(given)
        if path.is_dir() or path.suffix.lower() in SUFFIXES:
            what = "a folder" if path.is_dir() else "an image"
            raise GraspError(f"the run in {run} learned texts, and {path} is {what}; give texts, or a run of images")
        if path.suffix.lower() not in KINDS:
            raise GraspError(f"{path} is no known file of texts; its name must end in one of {', '.join(KINDS)}")
        fields = read_column(path, column)
    where = "standard input" if given == "-" else given
    return [
        Input(f"{given}:{row}" if many else str(row), value, f"{where} row {row}: ", fault)
        for row, value, fault in fields
    ]


def _existing(given: str) -> Path:
    path = Path(given)
    if not path.exists():
        raise GraspError(f"there is no file or folder {path}")
    return path


def _standard_input() -> list[str]:
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    return [line.rstrip("\n") for line in sys.stdin]


# -- output ------------------------------------------------------------------------------------------------------------


def _as_text(file: IO[bytes], write: Callable[[IO[str]], None]) -> None:
    # File names may be in any encoding: they are written unmodified.
    text = io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")
    write(text)
    text.flush()
    text.detach()
