"""The commands for streams: stream show, stream save."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.console import Console
from rich.markup import escape

from graspcl.cli.options import Plugins, Scale, Settings, load_plugins, resolve
from graspcl.errors import GraspError

if TYPE_CHECKING:
    from graspcl.settings import Config

stream = App(name="stream", help="Show or save the order in which samples arrive.")


@stream.command(name="show")
def show_stream(
    what: str,
    /,
    *settings: Settings,
    scale: Scale = "full",
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Show the samples and classes of each session.

    Parameters
    ----------
    what
        A preset, a TOML file, a run folder, or a saved stream.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from graspcl.stream import describe

    load_plugins(plugin)
    arriving, names = _stream(what, settings, scale)
    table = Table("session", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("samples", "classes", "new"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("first new classes", "largest", "smallest"):
        table.add_column(heading, overflow="fold")
    for row in describe(arriving, names):
        table.add_row(
            "base" if row["session"] == 0 else str(row["session"]), f"{row['samples']:,}", str(row.get("classes", "–")),
            str(row.get("new_classes", "–")), escape(", ".join(row.get("first_new", []))),
            *(escape(f"{row.get(size, '–')}: {row.get(f'{size}_samples', '–')}") for size in ("largest", "smallest")),
        )  # fmt: skip
    Console().print(table)


@stream.command(name="save")
def save_stream(
    what: str,
    /,
    *settings: Settings,
    out: Path,
    scale: Scale = "full",
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Save the stream of a preset or TOML file, for --stream.file.

    Parameters
    ----------
    what
        A preset or a TOML file.
    out
        File to write.
    """
    from graspcl.stream import save_stream as write

    load_plugins(plugin)
    samples, arriving = _arranged(resolve(save_stream, what, settings, scale))
    write(arriving, out, fingerprint=samples.fingerprint(), ids=samples.ids)
    print(f"wrote {out}")


def _stream(what: str, settings: tuple[str, ...], scale: Scale) -> tuple[Any, list[str] | None]:
    from graspcl.experiment import RunFolder
    from graspcl.settings.presets import names
    from graspcl.stream import load_stream

    path = Path(what)
    saved = path / "stream.npz" if path.is_dir() and what not in names() else path
    if saved.suffix == ".npz":
        if settings or scale != "full":
            raise GraspError(f"{saved} is a saved stream: it takes no settings")
        place = RunFolder(saved.parent)
        return load_stream(saved), place.class_names() if (saved.parent / "classes.json").exists() else None
    samples, arriving = _arranged(resolve(show_stream, what, settings, scale))
    return arriving, samples.classes


def _arranged(config: Config) -> tuple[Any, Any]:
    """Return the samples of a run, and their stream."""
    from graspcl.experiment.prepare import arrange, open_data
    from graspcl.settings.rules import check

    check(config)
    samples, order = open_data(config)
    return samples, arrange(config, samples, order)
