"""The commands around experiments: presets, show, run, sweep, runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from graspcl.cli.options import (
    AtLeastOne,
    Kind,
    Memory,
    Plugins,
    Scale,
    Settings,
    load_plugins,
    parse_settings,
    refuse,
    resolve,
)
from graspcl.errors import GraspError

List = Annotated[str, Parameter(show_default=False)]  # its help tells the default


def presets() -> None:
    """List the presets: the experiments of the paper, and two streams that come by pip."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from graspcl.settings.presets import about, names

    table = Table("preset", "what", "paper", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.columns[0].no_wrap, table.columns[2].max_width = True, 18
    for name in names():
        found = about(name)
        table.add_row(name, found["title"], found["paper"])
    console = Console()
    console.print(table)
    console.print(
        "Each at --scale full, small or smoke, --rehearsal latent or veridical, --memory bounded or unbounded."
    )


def show(
    what: str,
    /,
    *settings: Settings,
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
    plugin: Plugins = [],  # noqa: B006  (never changed; cyclopts shows it as the default)
) -> None:
    """Print the settings that a run would have, as TOML: all that can be changed, and what `graspcl run` takes.

    Any of them is an option, by its dotted name: --optimiser.lr 0.5, --policy mir --policy.candidates 50. A group's
    name alone stands for the first of the group: --buffer 0.2GB.

    Parameters
    ----------
    what
        A preset, a TOML file, or the folder of a run.
    """
    import tomli_w

    from graspcl.settings.config import as_plain
    from graspcl.settings.presets import about, names
    from graspcl.settings.read import all_settings

    load_plugins(plugin)
    config = resolve(show, what, settings, scale, rehearsal, memory)
    if what in names():
        found = about(what)
        print(f"# {found['title']} (paper: {found['paper']})")
    plain = as_plain(config)
    print(tomli_w.dumps(plain), end="")
    unset = [name for name, _ in all_settings() if _lookup(plain, name) is None]
    print("\n# Not set: " + ", ".join(unset))


def _lookup(plain: dict[str, Any], name: str) -> Any:
    for key in name.split("."):
        plain = plain.get(key) if isinstance(plain, dict) else None  # type: ignore[assignment]
    return plain


def run(
    what: str,
    /,
    *settings: Settings,
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
    out: Path = Path("runs"),
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Run an experiment. If it was stopped before, the same command goes on where it was.

    Any setting is an option, by its dotted name: --data PATH, --policy uniform, --buffer.capacity 0.2GB, --seed 3,
    --measure.drift 200, --log tensorboard. `graspcl show PRESET` prints all of them.

    Parameters
    ----------
    what
        A preset, or a TOML file.
    out
        Below it the run gets a folder of its own.
    """
    from graspcl.cli.progress import Bars
    from graspcl.experiment import run as run_one
    from graspcl.report import run_table

    load_plugins(plugin)
    config = resolve(run, what, settings, scale, rehearsal, memory)
    console = Console()
    folder = out / config.path
    with Bars(console) as bars:
        run_one(config, folder, bars, out / config.name / "base")
    console.print(run_table(folder))
    console.print(f"Run: {folder}", soft_wrap=True)


def sweep(
    what: str,
    /,
    *settings: Settings,
    policies: str = "grasp,uniform_balanced",
    learners: List = "",
    seeds: str = "3",
    updates: str = "1x",
    buffer: List = "",
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
    workers: AtLeastOne | None = None,
    out: Path = Path("runs"),
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Run a preset with several policies, seeds, budgets and buffers; what is finished already is skipped.

    Any other setting is an option, by its dotted name, as for `graspcl run`.

    Parameters
    ----------
    what
        A preset, or a TOML file.
    policies
        Comma-separated names, or all; a variant in brackets, as in uniform_balanced(replace=False).
    learners
        Comma-separated names; by default the preset's.
    seeds
        How many, or which: 3 is 0,1,2.
    updates
        Comma-separated budgets: 0.5x is half of the preset's, 500 is 500 updates per session.
    buffer
        Comma-separated capacities, such as 0.1GB,0.2GB,none; by default the preset's.
    workers
        Runs at the same time, each in a process of its own; by default one per core.
    out
        Below it every run gets a folder of its own.
    """
    from graspcl.cli.progress import Bars
    from graspcl.experiment import make_workers
    from graspcl.experiment import sweep as run_all
    from graspcl.report import sweep_table
    from graspcl.settings.grid import grid
    from graspcl.settings.read import single

    load_plugins(plugin)
    decided = {"policy": "--policies", "seed": "--seeds", "checkpoint.keep": "a sweep, which keeps results alone,"}
    if learners:
        decided["learner"] = "--learners"
    if buffer:
        decided["buffer.capacity"] = "--buffer"
        if memory == "unbounded":
            raise GraspError("--memory unbounded is --buffer none: give one of them")
    if "x" not in updates:
        decided |= dict.fromkeys(("budget.updates", "budget.passes", "budget.times"), "--updates")
    refuse(single(parse_settings(settings)), decided)
    config = resolve(sweep, what, settings, scale, rehearsal, memory)
    configs = grid(config, policies, learners, seeds, updates, buffer)
    console = Console()
    with Bars(console) as bars, make_workers(workers, plugin) as processes:
        outcome = run_all(configs, out, bars, processes, f"{config.name}: {len(configs)} runs")
    if outcome.finished:
        console.print(sweep_table(config.name, outcome.finished, width=console.width))
    for path, reason in outcome.failed.items():
        console.print(f"[red]failed[/red] {escape(f'{path}: {reason}')}", soft_wrap=True)
    console.print(
        f"{len(outcome.finished)} runs finished, {len(outcome.failed)} failed: {out / config.name}", soft_wrap=True
    )
    if outcome.failed:
        raise SystemExit(1)


def runs(
    folder: Path = Path("runs"),
    *,
    name: str = "*",
    policy: str = "*",
    learner: str = "*",
    state: Literal["finished", "unfinished", "damaged", "all"] = "all",
) -> None:
    """List runs below a folder.

    Parameters
    ----------
    folder
        Where to look.
    name
        Only experiments whose name fits this pattern, such as 'imagenet-*'.
    policy
        Only policies that fit.
    learner
        Only learners that fit.
    state
        Only runs that came to their end, that did not, or whose files are damaged.
    """
    from graspcl.report import find_runs, runs_table

    if not folder.is_dir():
        raise GraspError(f"there is no folder {folder}")
    found = find_runs(folder, name=name, policy=policy, learner=learner, state=None if state == "all" else state)
    if not found:
        print(f"no such runs in {folder}")
        return
    console = Console()
    console.print(runs_table(found, folder))
