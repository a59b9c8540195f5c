"""Figures as PNG or SVG files, drawn by an installed Chromium or Chrome without a window."""

from __future__ import annotations

import base64
import html
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from graspcl.errors import GraspError
from graspcl.report.figures import Figure, View, all_figures
from graspcl.report.model import Report
from graspcl.report.render.html import render_template
from graspcl.report.render.text import experiment_folders, slug

Kind = Literal["png", "svg"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_FLAGS = (
    "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic", "--disable-extensions", "--disable-dev-shm-usage",
)  # fmt: skip
_AT_ONCE = 16  # figures per start of the browser


def write_figures(report: Report, folder: Path, kind: Kind) -> list[Path]:
    """Draw all views of all figures into files and return these. Several experiments have a folder each.

    Raises:
        GraspError: If no browser is installed, or it fails. BROWSER_PATH names one that is not in PATH.
    """
    program = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if program is None:
        raise GraspError(
            f"figures are drawn as {kind} by a browser: install Chromium or Chrome, or set BROWSER_PATH to one; "
            "--format html, csv, md and tex need none"
        )
    figures = list(_named_figures(report, folder, kind))
    for start in range(0, len(figures), _AT_ONCE):
        paths, some = zip(*figures[start : start + _AT_ONCE], strict=True)
        for path, image in zip(paths, _draw(program, some, kind), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
    return [path for path, _ in figures]


def _named_figures(report: Report, folder: Path, kind: Kind) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield the file of each view, and the view as plotly takes it."""
    for place, experiment in zip(experiment_folders(report, folder), report.experiments, strict=True):
        for figure in all_figures(experiment):
            names: set[str] = set()
            for view in figure.views:
                name = figure.name if len(figure.views) == 1 else f"{figure.name}--{slug(view.label)}"
                names.add(name := name if name not in names else f"{name}-{len(names)}")
                yield place / f"{name}.{kind}", standalone(figure, view)


def standalone(figure: Figure, view: View, width: int = 900) -> dict[str, Any]:
    """Return a view as plotly takes it, with a complete layout: light, with title and legend."""
    own = {**figure.layout, **view.layout}
    names = [trace for trace in view.data if trace.get("name") and trace.get("showlegend", True)]
    inner = max(200, 1.25 * own.get("meta", {}).get("height", 300))
    ink, line = "#1c2127", "#d9dee4"
    where = "" if view.label == "all" else f"<br><sub>{html.escape(view.label, quote=False)}</sub>"
    axes = {
        name: {"automargin": True, "gridcolor": "#e6e9ee", "linecolor": line, "zerolinecolor": line,
               **figure.layout.get(name, {}), **view.layout.get(name, {})}
        for name in ("xaxis", "yaxis")
    }  # fmt: skip
    layout = {
        **own, **axes, "width": width, "height": inner + 150 + 10 * len(names), "showlegend": len(names) > 1,
        "title": {"text": f"{figure.title}{where}", "x": 0.02}, "margin": {"t": 70, "r": 24},
        "font": {"family": "Arial, Helvetica, sans-serif", "size": 14, "color": ink}, "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff", "legend": {"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom"},
        "shapes": [{"line": {"color": line, "width": 1}, **shape} for shape in own.get("shapes", [])],
    }  # fmt: skip
    return {"data": view.data, "layout": layout}


def _draw(program: str, figures: Sequence[dict[str, Any]], kind: Kind) -> list[bytes]:
    page = render_template("images.html", {"figures": figures, "kind": kind}, ["images.js"])
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "figures.html"
        file.write_text(page, encoding="utf-8")
        sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        flags = [*_FLAGS, *sandbox, f"--user-data-dir={folder}/profile", "--virtual-time-budget=600000", "--dump-dom"]
        command = [program, *flags, file.as_uri()]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise GraspError(f"{program} cannot draw figures: {error}") from error
    found = re.findall(r"<pre>(data:image/[^<]*)</pre>", done.stdout.decode("utf-8", "replace"))
    if len(found) != len(figures):
        reason = " ".join(done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]) or "it gives no reason"
        raise GraspError(f"{program} drew {len(found)} of {len(figures)} figures: {reason}")
    data = [html.unescape(address).partition(",") for address in found]
    return [base64.b64decode(text) if head.endswith(";base64") else unquote(text).encode() for head, _, text in data]
