"""The command tune."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tomli_w
from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graspcl.checks import is_utf8
from graspcl.cli.options import Kind, Memory, Plugins, Runs, Scale, Settings, Workers, resolve
from graspcl.cli.progress import Bars
from graspcl.errors import GraspError
from graspcl.settings.config import as_plain
from graspcl.settings.presets import names
from graspcl.settings.read import parse, replaced, settled
from graspcl.state import write_output

if TYPE_CHECKING:
    from graspcl.experiment.tuning import Search, Space, Trial


def tune(
    what: str,
    /,
    *settings: Settings,
    search: Annotated[str, Parameter(show_default=False)] = "",
    trials: Runs = 12,
    seeds: Runs = 1,
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
    workers: Workers = None,
    out: Path = Path("tuning"),
    output: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("tuned.toml"),
    plugin: Plugins = (),
) -> None:
    """Search for good settings on held-out training data.

    Successive halving: all trials learn a ninth of the samples, the best third of them a third, the best of these all.
    A fifth of the training samples is held out to compare trials; test samples are never used. Run the same command
    again to resume. Then use the settings: graspcl run tuned.toml

    Parameters
    ----------
    what
        A preset, a TOML file, a folder of images, or a table of texts.
    search
        Values to try, as in "optimiser.lr=1e-3,1e-2; budget.passes=1,2"; by default multiples of the preset's rates,
        budget and head scale, and of the learner's numbers.
    trials
        Combinations of values to try; the preset's own are one of them.
    seeds
        Runs of each trial; their mean counts.
    out
        Folder of the trials.
    output
        TOML file to write the best settings to.
    """
    from graspcl.experiment import make_workers
    from graspcl.experiment import resolve as find
    from graspcl.experiment.tuning import search_space
    from graspcl.experiment.tuning import tune as run_search

    if output.is_dir():
        raise GraspError(f"--output must be a file, but {output} is a folder; try {output / 'tuned.toml'}")
    what, settings = _own_data(what, settings)
    given, console = _parse_search(search), Console()
    config = resolve(tune, what, settings, scale, rehearsal, memory, plugin)
    with Bars(console) as bars, make_workers(workers, plugin) as processes:
        config = find(config, bars)
        space = given or search_space(config)
        if not space:
            raise GraspError('there is nothing to search; give --search "SETTING=VALUE,VALUE"')
        for name, values in space.items():
            bars.note(f"search {name}: {', '.join(map(str, values))}")
        found = run_search(config, space, trials, seeds, out, bars, processes)
    best = replaced(settled(found.best), {"name": f"{config.name}-tuned"})
    about = "".join(f"# {line}\n" for line in _report(found, space, seeds))
    try:
        write_output(output, lambda file: file.write(f"{about}\n{tomli_w.dumps(as_plain(best))}".encode()))
    except OSError as error:
        raise GraspError(f"--output {output} cannot be written: {error.strerror}") from error
    console.print(_table(found))
    for path, reason in found.failed.items():
        console.print(f"[red]failed[/red] {escape(f'{path}: {reason}')}", soft_wrap=True)
    console.print(f"Best settings: {output}; use them with: graspcl run {output}", soft_wrap=True, markup=False)


def _own_data(what: str, settings: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return preset and settings; for a file or folder of data, the preset for them."""
    from graspcl.data.sources import kind_of_files

    path = Path(what)
    if what in names() or path.suffix == ".toml" or (path / "config.toml").exists() or not path.exists():
        return what, settings
    return kind_of_files(what), (*settings, "--data", what)


def _parse_search(text: str) -> Space:
    """Parse values to try, by setting.

    >>> _parse_search("optimiser.lr=1e-3,0.1; learner=siesta,derpp")
    {'optimiser.lr': [0.001, 0.1], 'learner': ['siesta', 'derpp']}
    """
    space: Space = {}
    if not is_utf8(text):  # the file of the outcome repeats it
        raise GraspError(f"--search {text!r} is not UTF-8")
    for part in filter(None, map(str.strip, text.split(";"))):
        name, _, values = part.partition("=")
        space[name.strip()] = [parse(value.strip()) for value in values.split(",") if value.strip()]
        if not space[name.strip()]:
            raise GraspError(f"--search {part}: write SETTING=VALUE,VALUE, with a semicolon between settings")
    return space


def _report(found: Search, space: Space, seeds: int) -> Iterator[str]:
    """Yield lines about a search, for the file of its outcome."""
    yield "Chosen by graspcl tune. Scores are final accuracies (%) on held-out training samples, never on test samples."
    stages = ", ".join(f"{number} with {_samples(per_class)}" for per_class, number in found.stages)
    yield f"Budget: trials {stages} per class; runs of each: {seeds}."
    yield "Search space:"
    yield from (f"  {name}: {', '.join(map(str, values))}" for name, values in space.items())
    yield "Trials, the best first:"
    for trial in found.trials:
        scores = "; ".join(f"{_samples(part)}: {_score(score)}" for part, score in trial.scores.items())
        yield f"  {_values(trial)} ({scores})"


def _table(found: Search) -> Table:
    table = Table(
        "settings", box=SIMPLE_HEAD, title="Validation accuracy (%) by samples per class", title_justify="left"
    )
    table.columns[0].overflow = "fold"
    for per_class, _ in found.stages:
        table.add_column("all" if per_class is None else str(per_class), justify="right", no_wrap=True)
    for trial in found.trials:
        scores = [trial.scores.get(per_class) for per_class, _ in found.stages]
        table.add_row(escape(_values(trial)), *("" if score is None else _score(score) for score in scores))
    return table


def _score(accuracy: float) -> str:
    return "failed" if math.isinf(accuracy) else f"{accuracy:.2f}"


def _values(trial: Trial) -> str:
    return ", ".join(f"{name}={value}" for name, value in trial.values.items()) or "unchanged"


def _samples(per_class: int | None) -> str:
    return "all samples" if per_class is None else f"{per_class} samples"
