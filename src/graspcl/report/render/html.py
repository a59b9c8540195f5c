"""Pages: one HTML file with styles, scripts and data, which works offline.

The templates escape every text from run folders. Their styles and scripts are in `templates/`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import asdict
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from graspcl.errors import require
from graspcl.report.figures import Figure, sections
from graspcl.report.measures import LABEL, mean_text, p_text, plural, shorten
from graspcl.report.model import Experiment, Report
from graspcl.report.paper import paper_table
from graspcl.report.samples import PIXELS, TITLE, FirstAndLast, OpenSamples, first_and_last
from graspcl.report.tables import (
    Cell,
    Column,
    Table,
    comparison_table,
    cost_table,
    environment_tables,
    run_list,
    settings_tables,
)
from graspcl.state import write_whole

_MOST_OPENED = 6  # experiments whose data are opened to show samples


def write_page(report: Report, path: Path, open_samples: OpenSamples | None = None) -> None:
    """Write the page of a report, completely or not at all.

    Args:
        report: What to show.
        path: The file.
        open_samples: Opens the data of a run, to show what GRASP rehearsed first and last.
    """
    content = render_report(report, open_samples).encode("utf-8", "replace")  # names may hold invalid characters
    write_whole(path, lambda file: file.write(content))


def render_report(
    report: Report,
    open_samples: OpenSamples | None = None,
    progress: dict[str, Any] | None = None,
    live: dict[str, Any] | None = None,
) -> str:
    """Return the page of a report.

    Args:
        report: What to show.
        open_samples: Opens the data of a run, to show samples.
        progress: State of a running run, shown at the top.
        live: `refresh` in seconds and `version`, if the page asks a server for news.
    """
    figures: dict[str, Any] = {}
    experiments = [
        _experiment(experiment, place, figures, open_samples) for place, experiment in enumerate(report.experiments)
    ]
    titles = [experiment.title for experiment in report.experiments]
    heading = titles[0] if len(titles) == 1 else f"{len(titles)} experiments" if titles else "No run to show"
    states: dict[str, int] = {}
    for run in report.runs:
        states[run.state] = states.get(run.state, 0) + 1
    context = {
        "heading": shorten(heading, 120),
        "states": f"{plural(len(report.runs), 'run')}: " + " · ".join(f"{n} {state}" for state, n in states.items()),
        "with_problems": report.with_problems,
        "experiments": experiments,
        "paper": paper_table(report.experiments, report.paper) if report.paper else None,
        "runs": run_list(report.runs),
        "environment": environment_tables(report.runs),
        "progress": progress,
    }
    title = f"{', '.join(titles) or 'no runs'} – graspcl"
    return render_page("report.html", title, figures, ["page.css"], ["page.js"], live, **context)


def render_page(
    template: str,
    title: str,
    figures: dict[str, Any],
    styles: list[str],
    scripts: list[str],
    live: dict[str, Any] | None = None,
    **context: Any,
) -> str:
    """Return a page from a template that extends `page.html`.

    Args:
        template: Its file name.
        title: Title of the window.
        figures: What the script draws, by the identifier of the element.
        styles: CSS files.
        scripts: JavaScript files.
        live: As in `render_report`.
        context: Values for the template.
    """
    plotly = require("plotly.offline", "report").get_plotlyjs()
    script = "\n".join(map(_asset, scripts))
    return _environment().get_template(template).render(
        content_security_policy=_content_security_policy((plotly, script), live is not None),
        title=shorten(title, 120), style=Markup("\n".join(map(_asset, styles))),
        figures=Markup(json_for_script({"figures": figures})), plotly=Markup(plotly), script=Markup(script),
        live=live, **context,
    )  # fmt: skip


def render_progress(progress: dict[str, Any]) -> str:
    """Return the state of a running run alone."""
    return str(_environment().get_template("parts.html").module.progress(progress))  # type: ignore[attr-defined]


def figure_card(figure: Figure, prefix: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Return what the template shows of a figure, and add what the script draws to `figures`."""
    views = [asdict(view) for view in figure.views]
    figures[f"{prefix}-{figure.name}"] = {"choice": figure.choice, "layout": figure.layout, "views": views}
    own_choice = len(views) > 1 and figure.choice != "condition"
    return {
        "id": f"{prefix}-{figure.name}", "title": figure.title, "caption": figure.caption, "choice": figure.choice,
        "options": [shorten(view.label, 90) for view in figure.views] if own_choice else [],
    }  # fmt: skip


def json_for_script(value: Any) -> str:
    """Return JSON for a script element: nothing in it ends the element or starts a comment.

    >>> json_for_script({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# -- what templates need -----------------------------------------------------------------------------------------------


def _experiment(
    experiment: Experiment, place: int, figures: dict[str, Any], open_samples: OpenSamples | None
) -> dict[str, Any]:
    """Return what the template shows of an experiment."""
    name = f"e{place}"
    parts = []
    for key, (heading, found) in sections(experiment).items():
        cards = [figure_card(figure, name, figures) for figure in found if figure.views]
        missing = [(figure.title, figure.missing) for figure in found if not figure.views]
        samples = None
        if key == "rehearsal" and open_samples is not None:
            samples = _samples(experiment, place, open_samples)
            if not samples.classes:
                missing.append((TITLE, samples.missing))
        parts.append({"key": key, "heading": heading, "cards": cards, "missing": missing, "samples": samples})
    conditions = [experiment.condition_label(condition) for condition in experiment.ranked_conditions]
    return {
        "name": name, "title": shorten(experiment.title), "tiles": _tiles(experiment), "sections": parts,
        "conditions": conditions if len(conditions) > 1 else [], "summary": comparison_table(experiment),
        "costs": cost_table(experiment), "settings": settings_tables(experiment.runs),
    }  # fmt: skip


def _samples(experiment: Experiment, place: int, open_samples: OpenSamples) -> FirstAndLast:
    if place < _MOST_OPENED:
        return first_and_last(experiment, open_samples)
    return FirstAndLast(missing=f"Samples are shown for the first {_MOST_OPENED} experiments only.")


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
            found.append(("Best final accuracy", f"{best.mean('alpha'):.2f} %", shorten(best.label, LABEL) + where))
        for group in (group for group in groups if group.method.policy == "grasp"):
            if (difference := experiment.difference(group)) is not None:
                texts = [f"{shorten(group.label, LABEL)} against {baseline}{where}"]
                texts.append(plural(difference.seeds, "seed"))
                for name, p in (("p", difference.p), ("McNemar p", difference.mcnemar_p)):
                    texts += [] if math.isnan(p) else [f"{name} {'' if p < 0.001 else '= '}{p_text(p)}"]
                value = mean_text(difference.mean, 2, difference.half, "+")
                found.append(("Difference in α", value, " · ".join(texts)))
    saved = [
        (saving.share, str(saving).removesuffix(" fewer updates"), shorten(method.label, LABEL), buffer)
        for buffer in dict.fromkeys(condition.buffer for condition in experiment.conditions)
        for method, saving in experiment.savings(buffer).items()
        if saving.share > 0
    ]
    if saved:
        _, text, label, buffer = max(saved)
        where = f" (buffer {buffer})" if experiment.differs("buffer") else ""
        found.append(("Updates saved", text, f"{label} at the accuracy of {baseline}{where}"))
    return [(title, value, shorten(about, 220)) for title, value, about in found[:4]]


def _cell_parts(cell: Cell, column: Column) -> dict[str, Any]:
    """Return the text of a cell, what stands behind it in small print, its classes, and what it is sorted by."""
    if column.numeric:
        value = "" if isinstance(cell.value, str) or math.isnan(cell.value) else f"{cell.value:.10g}"
        text, *small = re.split(r" (?=[±(])", cell.text, maxsplit=1)
        return {"text": text, "small": "".join(small), "css": "number", "value": value, "bold": cell.bold}
    # A long name may break after _ and /, and before its parameters.
    text = Markup(re.sub(r"([_/])|(?=\()", r"\1<wbr>", str(escape(cell.text))))
    state = f"state-{cell.text}" if cell.text in ("finished", "damaged", "empty") else ""
    key = f"{cell.value:g}" if isinstance(cell.value, float) else None
    return {"text": text, "small": "", "css": "long" if len(cell.text) > 40 else state, "value": key, "bold": False}


def _spans(table: Table) -> list[tuple[str, int]]:
    """Return the headings above several columns, with how many; empty if there are none."""
    groups = [column.group for column in table.columns]
    return [(group, len(list(columns))) for group, columns in groupby(groups)] if any(groups) else []


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("graspcl.report.render"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.globals |= {"cell_parts": _cell_parts, "spans": _spans, "pixels": PIXELS, "samples_title": TITLE}
    environment.filters["shorten"] = shorten
    return environment


def _content_security_policy(scripts: tuple[str, ...], live: bool) -> str:
    """Return what the browser may do: run these very scripts, and reach nothing but the server of a live page."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{found}'" for found in hashes)
    reached = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {reached}; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (resources.files("graspcl.report.render") / "templates" / name).read_text(encoding="utf-8").strip()
