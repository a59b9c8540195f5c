"""The commands for experiments: demo, run, sweep, show, list."""

from __future__ import annotations

import contextlib
import fnmatch
import inspect
import shlex
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from cyclopts import Parameter, validators
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graspcl.cli import options
from graspcl.cli.options import Kind, Memory, Out, Plugins, Runs, Scale, Settings, Timeout, What, Workers
from graspcl.cli.progress import Bars
from graspcl.errors import GraspError, MissingExtra
from graspcl.progress import Progress, Silent
from graspcl.registry import Registry
from graspcl.settings import change, preset
from graspcl.settings.config import as_plain
from graspcl.settings.grid import grid
from graspcl.settings.presets import about, names
from graspcl.settings.read import all_settings, flatten, settled
from graspcl.settings.rules import registries

DEMO_POLICIES = "grasp,uniform_balanced"
DemoStreams = Annotated[tuple[Literal["listings", "groceries"], ...], Parameter(negative=())]
AboveZero = Annotated[float, Parameter(validator=validators.Number(gt=0))]
NotNegative = Annotated[float, Parameter(validator=validators.Number(gte=0))]
Hidden = Annotated[str, Parameter(show_default=False)]  # the help explains the default


_YOUR_OWN = """The same with your own data, a folder with one folder of images per class, or a table of texts:
  graspcl new shop photos/       makes a classifier
  graspcl learn shop week-2/     teaches it new samples and new classes
  graspcl predict shop *.jpg     uses it"""


def demo(
    *,
    streams: DemoStreams = ("listings", "groceries"),
    text: Annotated[bool, Parameter(negative=())] = False,
    data: str | None = None,
    text_column: Annotated[str, Parameter(name="--data.text")] = "text",
    label_column: Annotated[str, Parameter(name="--data.label")] = "label",
    seeds: Runs = 1,
    policies: Hidden = DEMO_POLICIES,
    workers: Workers = None,
    out: Path = Path("runs"),
    plugin: Plugins = (),
) -> None:
    """Learn two real streams week by week, beside simple alternatives.

    The table compares GRASP and uniform rehearsal with training without rehearsal (finetune), a logistic regression
    that is retrained every week (probe) and streaming discriminant analysis (slda).

    Parameters
    ----------
    streams
        Data to learn: marketplace listings (texts), grocery photos (images).
    text
        Learn texts with a small BERT instead (extra `text`): about 3 minutes on 2 cores.
    data
        With --text: a table of texts and labels, or a folder with train.csv and test.csv; by default listings. At most
        30 classes with 60 texts each are used.
    text_column
        Column of the texts in --data.
    label_column
        Column of the labels in --data.
    seeds
        Runs per policy, for intervals beside the means; each seed has its own class order, weights and draws.
    policies
        Comma-separated names; by default grasp and uniform_balanced.
    out
        Folder below which these runs get a folder of their own.
    """
    from graspcl.experiment import make_workers
    from graspcl.experiment import sweep as run_all
    from graspcl.experiment.prepare import fit_to_data
    from graspcl.experiment.run_samples import open_samples
    from graspcl.report import comparison, gather, rows, write_page

    if data is not None and not text:
        raise GraspError("--data needs --text; to learn your own images use `graspcl run PRESET --data PATH`")
    options.load_plugins(plugin)
    console, tables = Console(), []
    folder = out / time.strftime("demo-%Y%m%d-%H%M%S")
    with Bars(console) as bars, make_workers(workers, plugin) as processes:
        for name in ("intents",) if text else streams:
            settings = preset(name)
            if data is not None:
                named = {"data.path": data, "data.text": text_column, "data.label": label_column}
                settings = fit_to_data(change(settings, named))
            configs = grid(settings, policies, seeds=str(seeds), references="finetune,probe,slda")
            outcome = run_all(configs, folder, bars, processes, settings.name)
            for path, reason in outcome.failed.items():
                raise GraspError(f"{path}: {reason}")
            title = about(name)["title"] if data is None else f"{data}, {settings.data.classes} classes"
            tables.append(comparison(title, rows(outcome.finished), console.width))
    for table in tables:
        console.print()
        console.print(table)
    page = folder / "report.html"
    try:
        write_page(gather([folder]), page, open_samples)
        said = f"Report, to open in a browser: {page}"
    except (MissingExtra, OSError) as error:  # plotly may not be installed
        said = f"No report was written: {error}"
    console.print(f"\nAll runs: {folder}\n{said}\n\n{_YOUR_OWN}", soft_wrap=True, highlight=False, markup=False)


def run(
    what: What,
    /,
    *settings: Settings,
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
    out: Out = Path("runs"),
    timeout: Timeout = 600.0,
    plugin: Plugins = (),
) -> None:
    """Run one experiment, or resume it.

    `torchrun --nproc-per-node N -m graspcl run WHAT` runs it in N processes at once (docs/scale.md).
    """
    from graspcl.distributed import is_first, joined, launched
    from graspcl.experiment import resolve
    from graspcl.experiment import run as run_one
    from graspcl.report import run_table
    from graspcl.report.measures import plural

    config, console = options.resolve(run, what, settings, scale, rehearsal, memory, plugin), Console()
    with contextlib.ExitStack() as stack:
        ranks = stack.enter_context(joined(timeout, config.execution.device)) if launched() else None
        progress: Progress = stack.enter_context(Bars(console)) if is_first() else Silent()
        if ranks is not None:
            progress.note(f"the run is shared by {plural(ranks.world, 'process')}, on {ranks.device.type}")
        elif config.buffer.shards:
            progress.note("buffer.shards = ranks: one process has nothing to divide; start several with torchrun")
        config = resolve(config, progress)  # first: the values name the folder
        folder = out / config.path
        run_one(config, folder, progress, out / config.folder / "base", ranks=ranks)
    if is_first():
        console.print(run_table(folder))
        console.print(f"Run: {shlex.quote(str(folder))}", soft_wrap=True)


def sweep(
    what: What,
    /,
    *settings: Settings,
    policies: str = "grasp,uniform_balanced",
    learners: Hidden = "",
    seeds: str = "3",
    updates: str = "1x",
    buffer: Hidden = "",
    references: str = "all",
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
    workers: Workers = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    cpus: AboveZero | None = None,
    gpus: NotNegative | None = None,
    retries: Annotated[int | None, Parameter(validator=validators.Number(gte=0))] = None,
    out: Out = Path("runs"),
    plugin: Plugins = (),
) -> None:
    """Compare policies, learners and budgets over several seeds.

    Finished runs are skipped: run the same command again to resume.

    Parameters
    ----------
    policies
        Comma-separated names, or all; parameters in brackets, as in mir(candidates=50),max_loss(mode=top).
    learners
        Comma-separated names, or all; by default the preset's.
    seeds
        How many, or which: 3 means 0,1,2. One seed alone is written with a comma: 74,
    updates
        Comma-separated budgets: 0.5x is half of the preset's, 500 is 500 updates per session.
    buffer
        Comma-separated capacities, such as 8MB,400,none; by default the preset's.
    references
        Learners to compare with, run once per seed: comma-separated names, all, or none.
    engine
        Where runs work: processes of this machine, or a Ray cluster (extra `ray`, docs/scale.md).
    address
        ray: the cluster, as in 10.0.0.1:6379; by default that of $RAY_ADDRESS or of this machine, or a new one.
    cpus
        ray: cores per run, by default 1.
    gpus
        ray: GPUs per run, by default 0; 0.5 lets two runs share one.
    retries
        ray: how often a run starts again after its process or node died, by default 3.
    """
    from graspcl.cluster import RayWorkers
    from graspcl.experiment import make_workers, resolve
    from graspcl.experiment import sweep as run_all
    from graspcl.report import sweep_table
    from graspcl.report.measures import plural

    decided = {"policy": "--policies", "seed": "--seeds", "checkpoint.keep": "a sweep, which keeps no states,"}
    if learners:
        decided["learner"] = "--learners"
    if buffer:
        decided["buffer.capacity"] = "--buffer"
        if memory == "unbounded":
            raise GraspError("--memory unbounded means --buffer none: give one of them")
    if "x" not in updates:
        decided |= dict.fromkeys(("budget.updates", "budget.passes", "budget.times"), "--updates")
    for name in flatten(options.parse_settings(settings)):
        for setting, option in decided.items():
            if name == setting or name.startswith(f"{setting}."):
                raise GraspError(f"--{name} would do nothing here: {option} decides")
    asked = {"address": address, "cpus": cpus, "gpus": gpus, "retries": retries}
    cluster: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if engine == "local" and cluster:
        raise GraspError(f"--{next(iter(cluster))} needs --engine ray")
    if engine == "ray" and workers is not None:
        raise GraspError("--workers is for --engine local; on Ray, --cpus decides how many runs work at the same time")
    config = options.resolve(sweep, what, settings, scale, rehearsal, memory, plugin)
    console = Console()
    with contextlib.ExitStack() as stack:
        bars = stack.enter_context(Bars(console))
        ray = engine == "ray"
        made = RayWorkers([out], plugins=plugin, **cluster) if ray else make_workers(workers, plugin)
        processes = stack.enter_context(made)
        configs = grid(resolve(config, bars), policies, learners, seeds, updates, buffer, references)
        outcome = run_all(configs, out, bars, processes, config.name)
    if outcome.finished:
        console.print(sweep_table(config.name, outcome.finished, width=console.width))
    for path, reason in outcome.failed.items():
        console.print(f"[red]failed[/red] {escape(f'{path}: {reason}')}", soft_wrap=True)
    counts = f"{plural(len(outcome.finished), 'run')} finished, {len(outcome.failed)} failed"
    console.print(f"{counts}: {out / config.folder}", soft_wrap=True)
    if outcome.failed:
        raise SystemExit(1)


def show(
    what: str,
    /,
    *settings: Settings,
    scale: Scale = "full",
    rehearsal: Kind | None = None,
    memory: Memory = "bounded",
    plugin: Plugins = (),
) -> None:
    """Print the settings of a run as TOML.

    Save the output to a file, change it, and run it with `graspcl run FILE.toml`.

    Parameters
    ----------
    what
        A preset, a TOML file, or a run folder.
    """
    plain = as_plain(settled(options.resolve(show, what, settings, scale, rehearsal, memory, plugin)))
    if what in names():
        print(f"# {about(what)['title']} (paper: {about(what)['paper']})")
    print(tomli_w.dumps(plain), end="")
    given = flatten(plain)
    unset = [name for name, _ in all_settings() if name not in given and f"{name}.name" not in given]
    print("\n# Not set: " + ", ".join(unset))


def list_(
    what: Literal[
        "policies", "presets", "runs", "learners", "networks", "data", "streams", "rules", "codecs", "stages"
    ],
    folder: Path = Path("runs"),
    /,
    *,
    name: str = "*",
    policy: str = "*",
    learner: str = "*",
    state: Literal["finished", "unfinished", "damaged", "all"] = "all",
    plugin: Plugins = (),
) -> None:
    """List policies, presets, runs, or other parts.

    Parameters
    ----------
    what
        What to list.
    folder
        runs: where to look.
    name
        Only names that match this pattern, such as 'imagenet-*'.
    policy
        runs: only policies that match this pattern.
    learner
        runs: only learners that match this pattern.
    state
        runs: only finished, unfinished or damaged runs.
    """
    options.load_plugins(plugin)
    if what == "runs":
        from graspcl.report import find_runs, runs_table

        if not folder.is_dir():
            raise GraspError(f"there is no folder {folder}")
        if found := find_runs(folder, name, policy, learner, None if state == "all" else state):
            Console().print(runs_table(found, folder))
        else:
            print(f"no such runs in {folder}")
    elif what == "presets":
        table = Table("preset", "what", "paper", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.columns[0].no_wrap, table.columns[2].max_width = True, 18
        for each in fnmatch.filter(names(), name):
            table.add_row(each, about(each)["title"], about(each)["paper"])
        choices = "--scale full, small or smoke; --rehearsal latent or veridical; --memory bounded or unbounded"
        Console().print(table, f"Options: {choices}.", sep="\n")
    else:
        Console().print(_parts(registries()[what], name))


def _parts(registry: Registry[Any], pattern: str) -> Table:
    """Return a table of parts: what each does, needs and costs, its source, and its parameters."""
    table = Table(registry.kind, "what it does; its parameters", box=SIMPLE_HEAD)
    table.columns[0].no_wrap = True
    for name in registry.names(pattern):
        part: Any = registry.get(name)
        needs = ", ".join(sorted(getattr(part, "needs", ())))
        summary = (inspect.getdoc(part) or "").partition("\n")[0]
        lines = [summary, f"needs {needs}" if needs else "", getattr(part, "cost", ""), getattr(part, "source", "")]
        given = registry.parameters(name).items()
        lines.append(" ".join(key if value is inspect.Parameter.empty else f"{key}={value}" for key, value in given))
        lines += [f"also called {also}" for also in registry.aliases(name)]
        kind = getattr(part, "family", "") + (", balanced" if getattr(part, "balanced", False) is True else "")
        kind = kind or registry.declared(name, "reads") or registry.declared(name, "gives") or ""
        table.add_row(f"{name}\n[dim]{kind}[/dim]", escape("\n".join(filter(None, lines))), end_section=True)
    return table
