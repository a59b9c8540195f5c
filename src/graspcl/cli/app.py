"""The commands."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.console import Console

import graspcl
from graspcl.cli import report as reports
from graspcl.cli import run as experiments
from graspcl.cli.base import base
from graspcl.cli.options import AtLeastOne, Plugins, load_plugins, parse_values
from graspcl.cli.overview import overview
from graspcl.cli.predict import predict
from graspcl.cli.stream import stream
from graspcl.errors import GraspError, MissingExtra

app = App(
    name="graspcl",
    help="Continual learning by rehearsal: GRASP and the policies it is compared with.",
    version=graspcl.__version__,
)
for command in (base, experiments.presets, experiments.show, experiments.run, experiments.sweep, experiments.runs):
    app.command(command)
app.command(stream)
app.command(reports.report)
app.command(reports.watch)
app.command(overview)
app.command(predict)
Bench = Literal["selection", "insert", "decode", "session", "policies", "network", "all"]
Stream = Literal["listings", "groceries"]


@app.command
def demo(
    *,
    streams: Annotated[tuple[Stream, ...], Parameter(negative=())] = ("listings", "groceries"),
    text: Annotated[bool, Parameter(negative=())] = False,
    data: str | None = None,
    text_column: Annotated[str, Parameter(name="--data.text")] = "text",
    label_column: Annotated[str, Parameter(name="--data.label")] = "label",
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
    text
        Instead of those, learn texts with a small BERT (extra text): about 3 minutes on 2 cores.
    data
        With --text: a table of texts and labels, or a folder with train.csv and test.csv; by default listings. At most
        30 classes of it are learned, 60 texts of each.
    text_column
        The column of texts in --data.
    label_column
        The column of labels in --data.
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
    from graspcl.experiment import DEMO_CHOICES, change, choose, make_workers, preset
    from graspcl.experiment.compare import compare as run_all
    from graspcl.experiment.fitting import fitted
    from graspcl.report import comparison, rows
    from graspcl.settings.presets import about

    if data is not None and not text:
        raise GraspError("--data is for --text; `graspcl run PRESET --data PATH` learns from images of your own")
    load_plugins(plugin)
    choices = choose(policies) if policies else DEMO_CHOICES
    console = Console()
    tables = []
    with run_folder(out, "demo") as folder, Bars(console) as bars, make_workers(workers, plugin) as processes:
        for name in ("intents",) if text else streams:
            # All the memory the demo's data need: photos are few.
            settings = preset(name, memory="unbounded" if name == "groceries" else "bounded")
            if data is not None:
                named = {"data.path": data, "data.text": text_column, "data.label": label_column}
                settings = fitted(change(settings, named))
            paths = run_all(settings, choices, range(seeds), folder, bars, processes)
            title = about(name)["title"] if data is None else f"{data}, {settings.data.classes} classes"
            tables.append(comparison(title, rows(paths), console.width))
    for table in tables:
        console.print()
        console.print(table)
    leave_page(console, folder)


@app.command
def compare(
    *,
    policies: str = "all",
    seeds: AtLeastOne = 3,
    learners: str = "siesta",
    stream: Stream = "listings",
    rehearsal: Literal["latent", "veridical"] = "latent",
    mode: Literal["proportional", "top"] | None = None,
    policy: dict[str, dict[str, str]] | None = None,
    learner: dict[str, dict[str, str]] | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    compile: bool = False,
    device: str = "auto",
    workers: AtLeastOne | None = None,
    out: Path = Path("runs"),
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Compare rehearsal policies, or learners, on real data at equal updates, with unbounded and bounded memory.

    Parameters
    ----------
    policies
        Comma-separated names, or all.
    seeds
        Runs per policy and memory; each seed has its own class order, weights and draws.
    learners
        Comma-separated names, or all: siesta, derpp, gdumb, and the two ends of the scale, finetune and offline.
    stream
        What to learn from.
    rehearsal
        Rehearse latents, or images as they came (photos only).
    mode
        How policies with a score choose: in proportion to it, or the top ones.
    policy
        Parameters of policies, by name: --policy.mir.candidates 50
    learner
        Parameters of learners, by name: --learner.derpp.teacher true
    precision
        Of products and convolutions; what the machine cannot do is refused.
    compile
        Let torch.compile translate the plastic part: minutes at first, for long runs.
    device
        cpu, cuda, or auto: cuda where there is one.
    workers
        Runs at the same time, each in a process of its own; by default one per core.
    out
        Where the run folder is made.
    """
    from graspcl.cli.progress import Bars
    from graspcl.experiment import choose, make_workers, preset
    from graspcl.experiment.compare import compare as run_all
    from graspcl.model import Execution
    from graspcl.report import bar_chart, rows, sweep_table
    from graspcl.settings.presets import about

    load_plugins(plugin)
    choices = choose(policies, parse_values(policy), mode, learners, parse_values(learner))
    console = Console()
    execution = Execution(precision, compile, device).resolve()
    found = {}
    with run_folder(out, "compare") as folder, Bars(console) as bars, make_workers(workers, plugin) as processes:
        for memory in ("unbounded", "bounded"):
            settings = preset(stream, rehearsal=rehearsal, memory=memory, execution=execution)
            fit = [choice for choice in choices if memory == "unbounded" or not choice.unbounded]
            found[memory] = run_all(settings, fit, range(seeds), folder, bars, processes) if fit else []
    console.print()
    paths = [*found["unbounded"], *found["bounded"]]
    console.print(sweep_table(about(stream)["title"], paths, width=console.width))
    memory = "bounded" if found["bounded"] else "unbounded"
    console.print(bar_chart(f"α, {memory} memory", {row.policy: row.mean("alpha") for row in rows(found[memory])}))
    leave_page(console, folder)


def leave_page(console: Console, folder: Path) -> None:
    """Say where all runs are, and where a page of them is, if what draws it is installed."""
    from graspcl.experiment.run_samples import open_samples
    from graspcl.report import gather, write_page

    page = folder / "report.html"
    try:
        write_page(gather([folder]), page, open_samples)
    except (MissingExtra, OSError) as error:
        told = f"No page of figures was made: {error}"
    else:
        told = f"A page of tables and figures, for a browser: {page}"
    console.print(f"\nAll runs: {folder}\n{told}", soft_wrap=True, highlight=False, markup=False)


@app.command(name="policies")
def show_policies(*, plugin: Plugins = []) -> None:  # noqa: B006
    """List the rehearsal policies: what each needs and costs, where it comes from, and its parameters."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from graspcl.policy import policies
    from graspcl.registry import parameters

    load_plugins(plugin)
    table = Table("policy", "what it needs, costs, comes from; its parameters", box=SIMPLE_HEAD)
    table.columns[0].no_wrap = True
    for policy in sorted(map(policies.get, policies.names()), key=lambda policy: (policy.family, policy.name)):
        needs = ", ".join(sorted(policy.needs))
        about = [f"needs {needs}" if needs else "", policy.cost, policy.source]
        about.append(" ".join(f"{name}={value}" for name, value in parameters(policy).items()))
        about += [f"also called {also}" for also in policies.aliases(policy.name)]
        kind = f"{policy.family}{', balanced' if policy.balanced else ''}"
        table.add_row(f"{policy.name}\n[dim]{kind}[/dim]", escape("\n".join(filter(None, about))), end_section=True)
    Console().print(table)


@app.command
def bench(
    what: Bench = "all", *, json: bool = False, pixels: AtLeastOne | None = None, compile: bool | None = None
) -> None:
    """Measure the bars this project sets itself, each as a ratio within one run.

    Parameters
    ----------
    what
        Which measurement. `network` compares precisions, layouts and compiled code at every stage of latent rehearsal;
        it has no bars and takes minutes, so it is not part of all.
    json
        Print one JSON object per figure, for a program.
    pixels
        network: the side of its images, by default 224.
    compile
        network: also with compiled networks, which takes minutes more.
    """
    from graspcl.bench import run_benches

    options = {"pixels": pixels, "compile": compile}
    given = {name: value for name, value in options.items() if value is not None}
    if not run_benches(what, as_json=json, **given):
        raise SystemExit(1)


@contextlib.contextmanager
def run_folder(out: Path, command: str) -> Iterator[Path]:
    """A new folder for the runs of a command, made before any work is done, and gone again if none was done."""
    folder = out / time.strftime(f"{command}-%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GraspError(f"--out {out}: the run folder cannot be made there: {error.strerror}") from error
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):  # not empty
            folder.rmdir()
            out.rmdir()
