"""Pages: one HTML file with styles, scripts and data, which works offline.

The templates escape every text from run folders. Their styles and scripts are in `templates/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from graspcl.errors import require
from graspcl.report import samples, tables
from graspcl.report.figures import Figure, sections
from graspcl.report.measures import LABEL, MIN_SEEDS, p_text, plural, shorten
from graspcl.report.model import Experiment, Report
from graspcl.report.paper import paper_table
from graspcl.report.render.text import write_text
from graspcl.report.tables import Cell, Column

_MOST_OPENED = 6  # experiments whose data are opened to show samples


def write_page(report: Report, path: Path, open_samples: samples.OpenSamples | None = None) -> None:
    """Write the page of a report; `open_samples` opens the data of a run, to show what GRASP rehearsed."""
    write_text(path, render_report(report, open_samples))


def render_report(
    report: Report,
    open_samples: samples.OpenSamples | None = None,
    progress: dict[str, Any] | None = None,
    live: dict[str, Any] | None = None,
) -> str:
    """Return the page of a report, with the `progress` of a running run at the top; `live` as in `render_page`."""
    found = [(f"e{place}", experiment, sections(experiment)) for place, experiment in enumerate(report.experiments)]
    drawn = [(name, figure) for name, _, parts in found for _, own in parts.values() for figure in own]
    figures = {f"{name}-{figure.name}": figure for name, figure in drawn if figure.views}
    shown = {}
    for place, (name, experiment, _) in enumerate(found if open_samples else ()):
        shown[name] = samples.FirstAndLast(missing=f"Samples are shown for the first {_MOST_OPENED} experiments only.")
        if open_samples and place < _MOST_OPENED:
            shown[name] = samples.first_and_last(experiment, open_samples)
    titles = ", ".join(experiment.title for experiment in report.experiments)
    return render_page(
        "report.html", f"{titles or 'no runs'} – graspcl", figures, live, report=report, experiments=found,
        samples=shown, states=Counter(run.state for run in report.runs), progress=progress,
        paper=paper_table(report.experiments, report.paper) if report.paper else None,
    )  # fmt: skip


def render_page(
    template: str, title: str, figures: dict[str, Figure], live: dict[str, Any] | None = None, **context: Any
) -> str:
    """Return a page from a template that extends `page.html`.

    A page that is `live` asks its server for news: every `refresh` seconds, whether `version` has changed.
    """
    scripts = ["page.js", "overview.js"] if template == "overview.html" else ["page.js"]
    drawn = {
        name: {"choice": figure.choice, "layout": figure.layout, "views": [asdict(view) for view in figure.views]}
        for name, figure in figures.items()
    }
    return render_template(template, {"figures": drawn}, scripts, title=shorten(title, 120), live=live, **context)


def render_template(template: str, data: dict[str, Any], scripts: list[str], **context: Any) -> str:
    """Return a page with plotly, scripts of this package, and data for them."""
    plotly = require("plotly.offline", "report").get_plotlyjs()
    script = "\n".join(map(_asset, scripts))
    return _environment().get_template(template).render(
        data=Markup(json_for_script(data)), plotly=Markup(plotly), script=Markup(script),
        hashes=[base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (plotly, script)],
        **context,
    )  # fmt: skip


def render_part(name: str, *arguments: Any) -> str:
    """Return a part of `parts.html` alone."""
    return str(getattr(_environment().get_template("parts.html").module, name)(*arguments))


def json_for_script(value: Any) -> str:
    """Return JSON for a script element: nothing in it ends the element or starts a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- what templates need -----------------------------------------------------------------------------------------------


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("graspcl.report.render"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {
        "asset": lambda name: Markup(_asset(name)), "cell_parts": _cell_parts, "pixels": samples.PIXELS,
        "plural": plural, "samples_title": samples.TITLE, "tables": tables, "tiles": _tiles,
    }  # fmt: skip
    environment.filters["shorten"] = shorten
    return environment


def _tiles(experiment: Experiment) -> list[tuple[str, str, str]]:
    """Return the key figures: title, value and explanation."""
    found = []
    baseline = shorten(experiment.baseline, LABEL)
    for condition in experiment.ranked_conditions[:1]:
        groups = [group for group in experiment.at(condition) if group.finished]
        label = experiment.condition_label(condition)
        where = "" if label == "all" else f" ({label})"
        if groups:
            best = max(groups, key=lambda group: group.mean("alpha"))
            title = "Best final accuracy" if len(best.runs) >= MIN_SEEDS else "Highest final accuracy"
            found.append((title, f"{best.mean('alpha'):.2f} %", shorten(best.label, LABEL) + where))
        for group in (group for group in groups if group.method.policy == "grasp"):
            if (difference := experiment.difference(group)) is not None:
                texts = [f"{shorten(group.label, LABEL)} against {baseline}{where}"]
                texts.append(plural(difference.seeds, "seed"))
                for name, p in (("p", difference.p), ("McNemar p", difference.mcnemar_p)):
                    texts += [] if math.isnan(p) else [f"{name} {'' if p < 0.001 else '= '}{p_text(p)}"]
                found.append(("Difference in α", difference.text(2, "+"), " · ".join(texts)))
    saved = [
        (saving.share, saving, shorten(method.label, LABEL), buffer)
        for buffer in dict.fromkeys(condition.buffer for condition in experiment.conditions)
        for method, saving in experiment.savings(buffer).items()
        if saving.share > 0
    ]
    if saved:
        _, saving, label, buffer = max(saved, key=lambda one: one[0])
        where = f" (buffer {buffer})" if experiment.differs("buffer") else ""
        time = f", with {saving.time_text}" if saving.time_text else ""
        text = f"{label} at the accuracy of {baseline}{where}{time}"
        found.append(("Updates saved", saving.updates_text.removesuffix(" fewer updates"), text))
    return found[:4]


def _cell_parts(cell: Cell, column: Column) -> dict[str, Any]:
    """Return the text of a cell, what follows it in small print, its class, and what it is sorted by."""
    if column.numeric:
        value = "" if isinstance(cell.value, str) else cell.number
        text, *small = re.split(r" (?=[±(])", cell.text, maxsplit=1)
        return {"text": text, "small": "".join(small), "css": "number", "value": value}
    # A long name may break after _ and /, and before its parameters.
    text = Markup(re.sub(r"([_/])|(?=\()", r"\1<wbr>", str(escape(cell.text))))
    state = f"state-{cell.text}" if cell.text in ("finished", "damaged", "empty") else ""
    key = f"{cell.value:g}" if isinstance(cell.value, float) else None
    return {"text": text, "small": "", "css": "long" if len(cell.text) > 40 else state, "value": key}


def _asset(name: str) -> str:
    return (resources.files("graspcl.report.render") / "templates" / name).read_text(encoding="utf-8").strip()
