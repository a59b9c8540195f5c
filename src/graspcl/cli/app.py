"""The commands of `graspcl`, in groups."""

from __future__ import annotations

import inspect
from typing import Literal

from cyclopts import App, Group

import graspcl
from graspcl.cli import experiments, report, workspace
from graspcl.cli.encode import encode
from graspcl.cli.options import AtLeastOne, settings_help
from graspcl.cli.overview import overview
from graspcl.cli.predict import predict
from graspcl.cli.pretrain import pretrain
from graspcl.cli.stream import stream
from graspcl.cli.tune import tune


def bench(
    what: Literal[
        "selection",
        "insert",
        "decode",
        "session",
        "filters",
        "heads",
        "state",
        "policies",
        "network",
        "workspace",
        "scale",
        "full",
        "size",
        "all",
    ] = "all",
    *,
    json: bool = False,
    pixels: AtLeastOne | None = None,
    compile: bool | None = None,
    data: str | None = None,
    first: AtLeastOne | None = None,
    weeks: AtLeastOne | None = None,
    per_class: AtLeastOne | None = None,
    backbone: str | None = None,
    memory: str | None = None,
    samples: AtLeastOne | None = None,
    classes: AtLeastOne | None = None,
) -> None:
    """Measure speed against the project's own targets.

    Parameters
    ----------
    what
        The measurement. `network` compares precisions, layouts and compiled code at every stage of latent rehearsal;
        it has no targets, takes minutes, and is not part of `all`. `workspace` compares weekly learning with
        retraining, a probe and fine-tuning on your data. `scale` selects from 100 million samples, and `full`
        rehearses codes as many as ImageNet-1K has; they need 4 and 6 GB of memory. `size` measures a workspace of
        100,000 photos: memory, disk, start and rate. These three are not part of `all`, either.
    json
        Print one JSON object per measurement.
    pixels
        network: the side of its images, by default 224. workspace: as for `graspcl new`.
    compile
        network: also measure compiled networks, which takes minutes more.
    data
        workspace: class folders of images, or a table of texts.
    first
        workspace: number of classes at the start, by default about half.
    weeks
        workspace: number of weeks in which the other classes arrive, by default 4.
    per_class
        workspace: samples per class at most, of training and of test samples each.
    backbone
        workspace: as for `graspcl new`.
    memory
        workspace: as for `graspcl new`.
    samples
        scale, full, size: number of samples.
    classes
        scale, full, size: number of classes.
    """
    from rich.console import Console

    from graspcl.bench import run_benches
    from graspcl.cli.progress import Bars

    options = {
        "pixels": pixels, "compile": compile, "data": data, "first": first, "weeks": weeks, "per_class": per_class,
        "backbone": backbone, "memory": memory, "samples": samples, "classes": classes,
    }  # fmt: skip
    given = {name: value for name, value in options.items() if value is not None}
    lines = Bars(Console(stderr=True, force_terminal=False))  # bars would take the table from standard output
    if not run_benches(what, as_json=json, progress=lines, **given):
        raise SystemExit(1)


_COMMANDS = {
    "A classifier that stays current": (
        workspace.new,
        workspace.learn,
        workspace.evaluate,
        workspace.status,
        workspace.undo,
        workspace.forget,
        workspace.rename,
        workspace.merge,
        workspace.verify,
        workspace.export,
    ),
    "Everyday": (experiments.demo, experiments.run, experiments.sweep, predict, report.report),
    "More": (tune, experiments.list_, experiments.show, stream, pretrain, encode, report.watch, overview, bench),
}

app = App(
    name="graspcl",
    help="Continual learning by rehearsal: GRASP and the policies it is compared with.",
    version=graspcl.__version__,
    suppress_keyboard_interrupt=False,  # `main` tells how to resume
)
app["--help"].show = False  # known to its reader, and the list fits one screen without it
for _key, (_title, _commands) in enumerate(_COMMANDS.items()):
    _group = Group(_title, sort_key=_key)
    for _place, _command in enumerate(_commands):
        if isinstance(_command, App):
            _command.group, _command.sort_key = (_group,), _place
            app.command(_command)
        else:
            _epilogue = settings_help() if "settings" in inspect.signature(_command).parameters else None
            app.command(_command, group=_group, sort_key=_place, help_epilogue=_epilogue)
app["--version"].group = (_group,)
