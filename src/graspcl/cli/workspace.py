"""The commands of a workspace: new, learn, evaluate, status, undo, forget, rename, merge, verify and export."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, validators

from graspcl.cli.options import AtLeastOne
from graspcl.errors import GraspError
from graspcl.files import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from graspcl.workspace import Workspace
    from graspcl.workspace.learning import Learnt
    from graspcl.workspace.overview import Status

Shop = Annotated[Path, Parameter(help="Folder of the workspace.")]
Budget = Annotated[str | None, Parameter(help="Time to spend, such as 90s, 2min or 1h.")]
Updates = Annotated[AtLeastOne | None, Parameter(help="Number of mini-batches to train on.")]
Text = Annotated[str | None, Parameter(help="Column of the texts in a table; by default found by its name.")]
Label = Annotated[str | None, Parameter(help="Column of the classes in a table; by default found by its name.")]
Wait = Annotated[
    float, Parameter(help="Seconds to wait for another process that changes it.", validator=validators.Number(gte=0))
]
_SHOWN = 30  # classes or problems that are listed
_PAST = 3  # changes whose accuracies are shown for each class


def new(
    workspace: Shop, data: str, /, *, backbone: str | None = None, memory: str | None = None,
    pixels: AtLeastOne | None = None, budget: Budget = None, updates: Updates = None, text: Text = None,
    label: Label = None, seed: int = 0,
) -> None:  # fmt: skip
    """Make a classifier from labelled images or texts.

    Parameters
    ----------
    data
        Folder or zip file with one folder of images per class, or a table of texts (CSV, TSV, JSONL, Parquet).
    backbone
        Network (`graspcl list networks`), or folder of a text encoder.
    memory
        Largest size of the stored samples, such as 500MB.
    pixels
        Side of the square that images are cut and resized to.
    seed
        Seed of all random choices.
    """
    from rich.console import Console

    from graspcl.cli.progress import Bars
    from graspcl.workspace import Workspace
    from graspcl.workspace.making import MEMORY

    with Bars(Console()) as bars:
        made = Workspace.new(
            workspace, data, backbone=backbone, memory=memory or MEMORY, pixels=pixels, text=text, label=label,
            budget=budget, updates=updates, seed=seed, progress=bars,
        )  # fmt: skip
    if made.made is not None:
        _tell(made.made)
    name = shlex.quote(str(workspace))
    print(f"made {workspace}: graspcl predict {name} FILE, or graspcl learn {name} FOLDER with new samples")


def learn(
    workspace: Shop, data: str, /, *, accept: bool = False, budget: Budget = None, updates: Updates = None,
    text: Text = None, label: Label = None, wait: Wait = 0.0,
) -> None:  # fmt: skip
    """Learn new samples of old or new classes.

    By default it rehearses half of the memory, or up to 100 mini-batches of it if these are more. The exit code is 1 if
    all samples contradict each other or stored ones, and 2 if the change is refused.

    Parameters
    ----------
    data
        Folder of class folders, or a table of texts.
    accept
        Commit even if a class falls beyond chance.
    """
    from graspcl.workspace.learning import Refused

    with _opened(workspace, wait) as shop:
        try:
            result = shop.learn(data, accept=accept, budget=budget, updates=updates, text=text, label=label)
        except Refused as error:
            _tell(error.result)
            raise
    _tell(result)
    if result.samples:
        return
    if result.contradictions and not result.duplicates:
        print("nothing was learned: all readable samples contradict each other or stored ones; correct their classes")
        raise SystemExit(1)
    print("there is nothing new; nothing was changed")


def evaluate(workspace: Shop, data: str, /, *, text: Text = None, label: Label = None) -> None:
    """Test a workspace on samples whose classes are known.

    Parameters
    ----------
    data
        Folder of class folders, or a table of texts. If it has test samples of its own, these are used.
    """
    with _opened(workspace) as shop:
        found = shop.evaluate(data, text=text, label=label)
    _list("problem", found.problems)
    table = _table("class", "correct", "samples", "accuracy")
    for name, tally in _first(found.classes.items()):
        table.add_row(_name(name), str(tally.right), str(tally.number), f"{tally.points:.1f} %")
    _print(table)
    for true, taken, number in found.confused[:10]:
        print(f"{_name(true)} is taken for {_name(taken)}: {plural(number, 'time')}")
    if found.overall.number:
        print(f"accuracy {found.overall.points:.1f} % ({found.overall.right} of {found.overall.number})")
        print(f"expected calibration error {100 * found.calibration_error:.1f} points")
    else:
        print("accuracy not measured: no sample is of a class that was learned")
    if found.marks and found.overall.number:
        print(f"called unknown although known: {found.unknown}")
    elif not found.marks:
        print("nothing is called unknown: there are fewer than 20 held-out samples to choose a threshold on")
    if found.foreign.number:
        marked = f", called unknown: {found.foreign}" if found.marks else f": {found.foreign.number}"
        auroc = "" if found.auroc is None else f", AUROC {found.auroc:.3f}"
        print(f"samples of classes that were not learned{marked}{auroc}")


def status(workspace: Shop, /) -> None:
    """Show classes, memory, history and warnings of a workspace."""
    from graspcl.workspace import Workspace

    found = Workspace.open(workspace).status()
    titles, classes = _class_table(found)
    for heads, rows in ((titles, _first(classes)), _change_table(found)):
        table = _table(*heads)
        for row in rows:
            table.add_row(*row)
        _print(table)
    for line in _facts(found):
        print(line)
    _list("warning", found.warnings)


def write_report(workspace: Path, output: Path) -> None:
    """Write the page of a workspace."""
    from graspcl.report.workspace import write_workspace
    from graspcl.workspace import Workspace

    found = Workspace.open(workspace).status()
    try:
        write_workspace(
            output, one_line(workspace.resolve().name), _facts(found), [one_line(line) for line in found.warnings],
            found.history, [("Changes", *_change_table(found)), ("Classes", *_class_table(found))],
        )  # fmt: skip
    except OSError as error:
        raise GraspError(f"the report cannot be written to {output}: {error.strerror}") from error
    print(f"wrote {output}: {plural(len(found.history), 'change')} of {workspace}")


def undo(workspace: Shop, /, *, wait: Wait = 0.0) -> None:
    """Take the last change of a workspace back."""
    from graspcl.workspace import Workspace

    print(f"undone: {_said(Workspace.open(workspace, wait).undo())}")


def forget(workspace: Shop, /, *classes: str, ids: Path | None = None, wait: Wait = 0.0) -> None:
    """Forget classes or single samples for good.

    Earlier versions are removed as well, so this cannot be undone.

    Parameters
    ----------
    classes
        Names of classes.
    ids
        File with one sample per line: its id of 16 digits, the path of an image, or a text.
    """
    with _opened(workspace, wait) as shop:
        lines = _ids(shop, ids) if ids is not None else []
        if ids is not None and not lines:
            raise GraspError(f"{ids} names no sample: it has no line")
        told = shop.forget(*classes, ids=[number for _, number in lines])
    what = "class" if len(told["forgot"]) == 1 else "classes"
    names = f" and the {what} {', '.join(map(_name, told['forgot']))}" if told["forgot"] else ""
    missing = set(told["missing"])
    _list("not learned", [line for line, number in lines if number in missing])
    print(f"forgot {plural(told['samples'], 'sample')}{names}; earlier versions are gone")


def rename(workspace: Shop, old: str, new: str, /, *, wait: Wait = 0.0) -> None:
    """Give a class another name."""
    from graspcl.workspace import Workspace

    Workspace.open(workspace, wait).rename(old, new)
    print(f"{_name(old)} is now called {_name(new)}")


def merge(workspace: Shop, source: str, into: str, /, *, wait: Wait = 0.0) -> None:
    """Make all samples of one class samples of another."""
    with _opened(workspace, wait) as shop:
        told = shop.merge(source, into)
    print(f"merged {plural(told['samples'], 'stored sample')} of {_name(source)} into {_name(into)}")


def verify(workspace: Shop, /, *, restore: Path | None = None, wait: Wait = 0.0) -> None:
    """Check every file of a workspace.

    Parameters
    ----------
    restore
        Copy of the workspace. Missing and damaged files are replaced by its files, if these are sound. The journal is
        written again from its own backup, or else from the copy's. If only the journal is damaged, name the workspace
        itself.
    """
    from graspcl.progress import Silent
    from graspcl.workspace import Workspace

    shop = Workspace(workspace, wait, Silent()) if restore is not None else Workspace.open(workspace, wait)
    if restore is not None:
        if not (restore / "objects").is_dir():
            raise GraspError(f"--restore {restore}: it is not a copy of a workspace: it has no folder objects")
        print(f"restored {plural(shop.restore(restore), 'file')} from {restore}")
    problems = shop.verify()
    _list("problem", problems)
    if problems:
        raise GraspError(f"{workspace} is damaged: {shop.way_out()}")
    print(f"{workspace} is sound")


def export(workspace: Shop, file: Path, /) -> None:
    """Write the classifier to one file for other programs.

    Parameters
    ----------
    file
        Name of the file. It ends in .onnx or .safetensors.
    """
    with _opened(workspace) as shop:
        difference = shop.export(file)
    compared = "" if difference is None else f"; onnxruntime's probabilities differ by at most {difference:.1g}"
    print(f"wrote {file}: {file.stat().st_size / 1e6:.1f} MB{compared}")


# -- what several commands share ---------------------------------------------------------------------------------------


def is_workspace(folder: Path) -> bool:
    """Whether a folder holds a workspace. Its database may be lost: then the copy is read."""
    return any((folder / name).is_file() for name in ("workspace.db", "workspace.backup"))


class _opened:
    """Opens a workspace, and shows the progress of what is done with it."""

    def __init__(self, folder: Path, wait: float = 0.0) -> None:
        from rich.console import Console

        from graspcl.cli.progress import Bars

        self.folder, self.wait, self.bars = folder, wait, Bars(Console(stderr=True))

    def __enter__(self) -> Workspace:
        from graspcl.workspace import Workspace

        shop = Workspace.open(self.folder, self.wait, self.bars)
        self.bars.__enter__()
        return shop

    def __exit__(self, *error: object) -> None:
        self.bars.__exit__(*error)


def _tell(result: Learnt) -> None:
    """Print what a `learn` did: samples, and per class what was gained and lost."""
    from graspcl.workspace.judging import GUARDED

    _list("problem", result.problems)
    _list("contradiction", result.contradictions)
    table = _table("class", "new samples", "held out", "correct before", "now")
    for name, change in _first(sorted(result.changed.items(), key=lambda one: one[1].points)):
        cells = (f"{change.before.points:.0f} %", f"{change.after.points:.0f} %")
        table.add_row(_name(name), str(result.added.get(name, 0)), str(change.after.number), *cells)
    for name, tally in _first(result.new.items()):
        table.add_row(_name(name), str(result.added.get(name, 0)), str(tally.number), "new", f"{tally.points:.0f} %")
    for name in _first(name for name, number in result.held_out.items() if not number):
        table.add_row(_name(name), str(result.added.get(name, 0)), "0", "–", "–")
    _print(table)
    same, others = plural(result.duplicates, "duplicate"), plural(len(result.contradictions), "contradiction")
    print(f"{plural(result.samples, 'new sample')}, {result.held} of them held out; {same} and {others} left out")
    print(f"{plural(result.trained.updates, 'update')} in {result.seconds:.0f} s: {result.trained.reason}")
    old = result.together
    before = f", earlier classes {old.before} before and {old.after} now" if old.before.number else ""
    print(f"held-out accuracy {result.overall}{before}")
    if few := [number for number in result.held_out.values() if number < GUARDED]:
        classes = f"{len(few)} of {plural(len(result.held_out), 'class')} have fewer than {GUARDED} held-out samples"
        none = f", {few.count(0)} of them none" if 0 in few else ""
        print(f"{classes}{none}: that says little about their accuracy, and they can fall unnoticed")
    if result.novelty is not None:
        print(f"the new classes looked unknown before: AUROC {result.novelty:.3f} against held-out samples")
    _list("warning", result.confused)


def _class_table(found: Status) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return titles and rows of the classes, with their held-out accuracies after the last changes."""
    changes = range(len(found.history))[-_PAST:]
    titles = ["class", "seen", "stored", "held out", *(f"after {change}" for change in changes[:-1]), "now"]
    rows: list[tuple[str, ...]] = []
    for one in found.classes:
        past = [f"{one.past[change].points:.0f} %" if one.past[change].number else "–" for change in changes]
        rows.append((_name(one.name), str(one.seen), str(one.stored), str(one.held.number), *past))
    return titles, rows


def _change_table(found: Status) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return titles and rows of the changes, oldest first."""
    rows: list[tuple[str, ...]] = []
    for number, entry in enumerate(found.history):
        right, held = entry["accuracy"]
        rows.append((str(number), _said(entry), f"{100 * right / held:.1f} % of {held}" if held else "–"))
    return ["change", "what", "held-out accuracy"], rows


def _facts(found: Status) -> list[str]:
    """Return sentences about a workspace."""
    stored, seen = (sum(getattr(one, part) for one in found.classes) for part in ("stored", "seen"))
    told, size = found.calibration, f"{found.bytes / 1e6:,.1f} MB on disk"
    new = [entry["novelty"] for entry in found.history if entry.get("novelty") is not None]
    aurocs = [] if told.auroc is None else [f"AUROC {told.auroc:.3f} with classes left out"]
    aurocs += [f"AUROC {value:.3f} with the last new classes before they were learned" for value in new[-1:]]
    unknown = ", ".join(aurocs or ["AUROC not measured"]) if told.marks else "too few held-out samples"
    undoable = {0: "nothing", 1: "the last change"}.get(found.undoable, f"the last {found.undoable} changes")
    facts = [
        f"{len(found.classes)} classes, {seen:,} samples seen, {stored:,} stored; {size}",
        f"network {found.network}, codec {found.codec}, memory at most {found.memory}",
        f"held-out accuracy {found.overall}; temperature {told.temperature:.2f}; unknown: {unknown}",
        f"{undoable} can be undone",
    ]
    if found.drift is not None and not found.drift.found:
        look = f"look like what was learned (distance {found.drift.distance:.2f})"
        facts.append(f"the last {found.drift.number} inputs {look}")
    return facts


def _said(entry: dict[str, Any]) -> str:
    """Return an entry of the history in words."""
    verb = entry["verb"]
    if verb in ("new", "learn"):
        classes = len(entry["added"]) + entry.get("forgotten", 0)
        what = f"{plural(entry['samples'], 'sample')} of {plural(classes, 'class')}"
        return f"{verb}: {what} from {one_line(str(entry['source']))}"
    if verb == "forget":
        names = "".join(f", class {_name(name)}" for name in entry["forgot"])
        return f"forget: {plural(entry['samples'], 'sample')}{names}"
    if verb == "rename":
        return f"rename: {_name(entry['renamed'])} to {_name(entry['to'])}"
    return f"merge: {_name(entry['merged'])} into {_name(entry['into'])}"


def plural(count: int, noun: str) -> str:
    """Return a number of things, such as "1 update"."""
    from graspcl.report.measures import plural as counted

    return counted(count, noun)


def _ids(shop: Workspace, file: Path) -> list[tuple[str, int]]:
    """Return the samples in a file, one per line, with their ids."""
    from graspcl.files import read_regular

    lines = [line for line in read_regular(file).decode("utf-8", "replace").splitlines() if line.strip()]
    known = [len(line) == 16 and set(line) <= set("0123456789abcdef") for line in lines]
    contents = [line for line, is_id in zip(lines, known, strict=True) if not is_id]
    found = shop.ids(contents).tolist() if contents else []
    if -1 in found:
        raise GraspError(
            f"{file}: this is neither an id nor a sample that can be read: {contents[found.index(-1)][:80]}"
        )
    numbers = iter(found)
    return [
        (line, int.from_bytes(bytes.fromhex(line), signed=True) if is_id else next(numbers))  # ids are int64
        for line, is_id in zip(lines, known, strict=True)
    ]


def _name(name: str) -> str:
    """Return the name of a class for a table or a sentence."""
    return one_line(name, 200)


def _list(what: str, lines: Sequence[str]) -> None:
    for line in lines[:_SHOWN]:
        print(f"{what}: {one_line(line)}")
    if len(lines) > _SHOWN:
        print(f"and {len(lines) - _SHOWN:,} more of these")


def _first(rows: Iterable[Any]) -> list[Any]:
    """Return the rows of a table that are shown, and say how many there are more."""
    found = list(rows)
    if len(found) > _SHOWN:
        print(f"{len(found)} classes, of which {_SHOWN} are shown")
    return found[:_SHOWN]


def _table(first: str, *others: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(first, overflow="fold")
    for title in others:
        table.add_column(title, justify="right" if title != "what" else "left")
    return table


def _print(table: Table) -> None:
    from rich.console import Console

    if table.row_count:
        Console(markup=False, highlight=False).print(table)
