"""The commands for streams: stream show, stream save."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cyclopts import App
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from graspcl.cli.options import Plugins, Scale, Settings, What, resolve
from graspcl.cli.progress import Bars
from graspcl.errors import GraspError
from graspcl.settings import Config
from graspcl.settings.config import BaseConfig
from graspcl.settings.presets import names
from graspcl.settings.rules import check
from graspcl.stream import Stream, load_stream, save_stream, session_table

stream = App(name="stream", help="Show or save the order in which samples arrive.")


@stream.command
def show(what: str, /, *settings: Settings, scale: Scale = "full", plugin: Plugins = ()) -> None:
    """Show the samples and classes of each session.

    Parameters
    ----------
    what
        A preset, a TOML file, a run folder, or a saved stream.
    """
    from graspcl.experiment import RunFolder

    path = Path(what)
    saved = path / "stream.npz" if path.is_dir() and what not in names() else path
    if saved.suffix == ".npz":
        if settings or scale != "full":
            raise GraspError(f"{saved} is a saved stream: it takes no settings")
        arriving = load_stream(saved)
        classes = RunFolder(saved.parent).class_names() if (saved.parent / "classes.json").exists() else None
    else:
        samples, arriving = _arranged(resolve(show, what, settings, scale, plugins=plugin))
        classes = samples.classes
    table = Table("session", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("samples", "classes", "new"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("first new classes", "largest", "smallest"):
        table.add_column(heading, overflow="fold")
    for row in session_table(arriving, classes):
        counts = (f"{row['samples']:,}", str(row.get("classes", "–")), str(row.get("new_classes", "–")))
        extremes = (f"{row.get(size, '–')}: {row.get(f'{size}_samples', '–')}" for size in ("largest", "smallest"))
        texts = (", ".join(row.get("first_new", [])), *extremes)
        table.add_row(str(row["session"] or "base"), *counts, *map(escape, texts))
    Console().print(table)


@stream.command
def save(what: What, /, *settings: Settings, out: Path, scale: Scale = "full", plugin: Plugins = ()) -> None:
    """Save the stream of a preset or TOML file, for --stream.file.

    Parameters
    ----------
    out
        File to write.
    """
    samples, arriving = _arranged(resolve(save, what, settings, scale, plugins=plugin))
    save_stream(arriving, out, fingerprint=samples.fingerprint(), ids=samples.ids)
    print(f"wrote {out}")


def _arranged(config: Config) -> tuple[Any, Stream]:
    """Return the samples of a run, and their stream."""
    from graspcl.experiment import resolve as find
    from graspcl.experiment.prepare import arrange, open_data

    config = find(config, Bars(Console()))
    check(replace(config, base=BaseConfig()))  # how the network starts does not matter
    samples, order = open_data(config)
    return samples, arrange(config, samples, order)
