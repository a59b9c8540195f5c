"""The commands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter, validators
from rich.console import Console

import graspcl

app = App(
    name="graspcl",
    help="Continual learning by rehearsal: GRASP and the policies it is compared with.",
    version=graspcl.__version__,
)
AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Plugins = Annotated[
    list[Path], Parameter(help="A Python file of yours that registers policies; may be given again.", negative=())
]


@app.command
def demo(
    *,
    streams: tuple[Literal["listings", "groceries"], ...] = ("listings", "groceries"),
    seeds: AtLeastOne = 3,
    policies: str = "",
    workers: AtLeastOne | None = None,
    out: Path = Path("runs"),
    plugin: Plugins = [],  # noqa: B006  (never changed; cyclopts shows it as the default)
) -> None:
    """Learn two real class-incremental streams with GRASP and with uniform rehearsal, and compare.

    Parameters
    ----------
    streams
        What to learn from: marketplace listings (text), grocery photos (images).
    seeds
        Runs per policy; each seed has its own class order, weights and draws.
    policies
        Comma-separated names, instead of grasp and three kinds of uniform rehearsal.
    workers
        Runs at the same time, each in a process of its own; by default one per core.
    out
        Where the run folder is made.
    """
    from graspcl.cli.progress import Bars
    from graspcl.experiment import DEMO_CHOICES, Choice, compare, make_workers, setups
    from graspcl.report import comparison, rows

    load_plugins(plugin)
    choices = [Choice(name.strip()) for name in policies.split(",")] if policies else DEMO_CHOICES
    console = Console()
    folder = out / time.strftime("demo-%Y%m%d-%H%M%S")
    tables = []
    with Bars(console) as bars, make_workers(workers, plugin) as processes:
        for name in streams:
            paths = compare(setups[name], choices, range(seeds), folder, bars, processes)
            tables.append(comparison(setups[name].title, rows(paths), console.width))
    for table in tables:
        console.print()
        console.print(table)
    console.print(f"\nAll runs: {folder}", soft_wrap=True)


@app.command(name="policies")
def show_policies(*, plugin: Plugins = []) -> None:  # noqa: B006
    """List the rehearsal policies: what each needs, what it costs, where it comes from."""
    from rich.table import Table

    from graspcl.policy import policies

    load_plugins(plugin)
    table = Table("policy", "balanced", "needs", "selection cost", "source")
    for name in policies.names():
        policy = policies.get(name)
        table.add_row(
            name, "yes" if policy.balanced else "no", ", ".join(sorted(policy.needs)), policy.cost, policy.source
        )
    Console().print(table)


@app.command
def bench(what: Literal["selection", "insert", "decode", "session", "all"] = "all", *, json: bool = False) -> None:
    """Measure the bars this project sets itself, each as a ratio within one run.

    Parameters
    ----------
    what
        Which measurement.
    json
        Print one JSON object per figure, for a program.
    """
    from graspcl.bench import run_benches

    if not run_benches(what, as_json=json):
        raise SystemExit(1)


def load_plugins(paths: list[Path]) -> None:
    """Make the parts of users' own files known."""
    from graspcl.registry import load_plugin

    for path in paths:
        load_plugin(path)
