"""Figures as PNG or SVG files, drawn by a browser without a window."""

from __future__ import annotations

import base64
import html
import importlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from graspcl.errors import GraspError, require
from graspcl.report.html.drawing import Figure, View
from graspcl.report.html.page import embedded

Kind = Literal["png", "svg"]

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_FLAGS = (
    "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-quic", "--disable-extensions", "--disable-dev-shm-usage",
)  # fmt: skip
_AT_ONCE = 16  # figures per start of the browser
_DRAW = """
(async () => {
  const { figures, kind } = JSON.parse(document.getElementById("figures").textContent);
  for (const figure of figures) {
    const { width, height } = figure.layout;
    const image = await Plotly.toImage(figure, { format: kind, width, height, scale: kind === "png" ? 2 : 1 });
    const line = document.createElement("pre");
    line.textContent = image;
    document.body.append(line);
  }
})();
"""


def draw(pictures: Mapping[Path, dict[str, Any]], kind: Kind) -> None:
    """Write figures in plotly's form to files; by Chromium if it is there, else by kaleido."""
    program = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    paths = list(pictures)
    if program is None:
        return _by_kaleido(pictures, kind)
    for begin in range(0, len(paths), _AT_ONCE):
        some = paths[begin : begin + _AT_ONCE]
        for path, image in zip(some, _by_browser(program, [pictures[one] for one in some], kind), strict=True):
            path.write_bytes(image)
    return None


def standalone(figure: Figure, view: View, width: int = 900) -> dict[str, Any]:
    """A view of a figure as plotly takes it, with a layout of its own: light, with title and legend.

    >>> standalone(Figure("f", "Title", "", []), View("all", []))["layout"]["title"]["text"]
    'Title'
    """
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


def _by_browser(program: str, figures: list[dict[str, Any]], kind: Kind) -> list[bytes]:
    plotly = require("plotly.offline", "report").get_plotlyjs()
    page = (
        f'<!doctype html><meta charset="utf-8"><body><script type="application/json" id="figures">'
        f"{embedded({'figures': figures, 'kind': kind})}</script><script>{plotly}</script><script>{_DRAW}</script>"
    )
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
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise GraspError(
            f"{program} drew {len(found)} of {len(figures)} figures; {' '.join(said) or 'it does not say why'}"
        )
    return [_decoded(html.unescape(address)) for address in found]


def _decoded(address: str) -> bytes:
    """The content of a data: address."""
    head, _, content = address.partition(",")
    return base64.b64decode(content) if head.endswith(";base64") else unquote(content).encode()


def _by_kaleido(pictures: Mapping[Path, dict[str, Any]], kind: Kind) -> None:
    try:
        importlib.import_module("kaleido")
        write_image = importlib.import_module("plotly.io").write_image
    except ImportError as error:
        raise GraspError(
            f"figures are drawn as {kind} by a browser: install Chromium or Chrome (or name one by BROWSER_PATH), or "
            "a kaleido that brings its own (pip install kaleido==0.2.1); html, csv, md and tex need neither"
        ) from error
    for path, figure in pictures.items():
        try:
            write_image(json.loads(json.dumps(figure)), str(path), format=kind, validate=False)
        except (RuntimeError, ValueError, OSError) as error:
            raise GraspError(f"kaleido cannot draw {path.name}: {error}") from error
