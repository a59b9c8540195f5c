"""The report as one HTML page that needs nothing else: styles, scripts and data are in it, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from graspcl.errors import GraspError, nearest, require
from graspcl.report.html.drawing import by_runs
from graspcl.report.html.figures import figures
from graspcl.report.html.grouping import Experiment
from graspcl.report.html.labels import counted, cut
from graspcl.report.html.paper import beside
from graspcl.report.html.parts import PICKED, card, folded, left_out, picked_card, safe, table_card, tiles
from graspcl.report.html.picked import Open, Picked, picked
from graspcl.report.html.reading import Run, read_runs
from graspcl.report.html.tables import Table, costs, environment, runs_table, settings, summary
from graspcl.report.html.together import experiments

# What stands together on the page: name, heading, figures.
SECTIONS = (
    ("learning", "Learning", ("learning-all", "learning-old", "learning-new", "bars")),
    ("compute", "Compute and memory", ("updates", "memory", "times")),
    ("rehearsed", "What was rehearsed", ("distance", "shown", "coverage", "seen", "drift")),
    ("details", "Sessions and classes", ("matrix", "classes")),
)
BASELINE = "uniform_balanced"
_OPENED = 6  # experiments whose data are opened to show samples of them


@dataclass(frozen=True)
class Report:
    """Runs, the policy that others are compared with, and the table of the paper to stand beside, if any.

    Where `samples` opens those of a run, the page shows some that GRASP picked.
    """

    runs: list[Run]
    baseline: str = BASELINE
    paper: str | None = None
    samples: Open | None = None

    @cached_property
    def experiments(self) -> list[Experiment]:
        """Runs that can be compared."""
        return experiments(self.runs, self.baseline)

    @property
    def troubled(self) -> int:
        """How many runs are not damaged, but have files that cannot be read, or failed."""
        return sum(bool(run.problems) and run.state not in ("damaged", "empty") for run in self.runs)

    @cached_property
    def beside(self) -> Table | None:
        """The paper's table with our numbers."""
        return beside(self.experiments, self.paper) if self.paper else None

    @cached_property
    def picked(self) -> list[Picked]:
        """What GRASP picked first and last in each experiment."""
        assert self.samples is not None
        some = [picked(experiment, self.samples) for experiment in self.experiments[:_OPENED]]
        rest = Picked(missing=f"Samples are shown of the first {_OPENED} experiments alone.")
        return some + [rest] * (len(self.experiments) - len(some))


def gather(
    paths: Iterable[Path], baseline: str | None = None, paper: str | None = None, samples: Open | None = None
) -> Report:
    """The report of all runs in and below folders; `paper` is table-2 … table-11.

    Policies are compared with the `baseline`, by default uniform_balanced; one that is named must be there. The page
    shows `samples` where the data of a run are where they were.
    """
    runs = read_runs(paths)
    policies = {run.record.policy for run in runs if run.record.config}
    if baseline is not None and policies and baseline not in policies:
        raise GraspError(
            f"no run has the policy {baseline!r} to compare with (--baseline); {nearest(baseline, policies)}"
        )
    return Report(runs, baseline or BASELINE, paper, samples)


def render(of: Report, progress: str = "", refresh: float | None = None) -> str:
    """The page. With `refresh` it asks for data.json every so many seconds, and shows the `progress` above all."""
    parts = content(of, progress)
    plotly = require("plotly.offline", "report").get_plotlyjs()
    script = _asset("page.js")
    names = ", ".join(experiment.title for experiment in of.experiments)
    filled = {
        "policy": html.escape(_policy((plotly, script), refresh is not None)),
        "title": html.escape(cut(f"{names or 'no runs'} – graspcl", 120)), "style": _asset("page.css"),
        "live": f' data-live="{refresh:g}"' if refresh is not None else "", "body": parts["body"],
        "data": embedded({"figures": parts["figures"]}), "plotly": plotly, "script": script,
    }  # fmt: skip
    # In one pass: what is filled in may itself hold such a mark.
    return re.sub(r"{{(\w+)}}", lambda mark: filled[mark[1]], _asset("page.html"))


def write_page(of: Report, path: Path) -> None:
    """The page as a file, whole or not at all."""
    from graspcl.state import write_whole

    write_whole(path, lambda file: file.write(as_bytes(render(of))))


def as_bytes(text: str) -> bytes:
    """UTF-8; names of files may hold what is no character."""
    return text.encode("utf-8", "replace")


def content(of: Report, progress: str = "") -> dict[str, Any]:
    """What changes while a run goes on: the `body` as HTML, and the `figures` by their places in it."""
    drawn: dict[str, Any] = {}
    body = [progress, _head(of)]
    if of.beside:
        body.append(_part("paper", "Beside the paper", table_card(of.beside, "all")))
    for place, experiment in enumerate(of.experiments):
        body.append(_article(experiment, place, drawn, of.picked[place] if of.samples is not None else None))
    body.append(_around(of))
    return {"body": "\n".join(filter(None, body)), "figures": drawn}


def embedded(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment.

    >>> embedded({"name": "</script>"})
    '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _policy(scripts: Sequence[str], live: bool) -> str:
    """What the browser may do: run these very scripts, and reach nothing, but for the server of a live page."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{found}'" for found in hashes)
    reached = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {reached}; base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8").strip()


# -- parts of the page -------------------------------------------------------------------------------------------------


def _head(of: Report) -> str:
    states: dict[str, int] = {}
    for run in of.runs:
        states[run.state] = states.get(run.state, 0) + 1
    said = " · ".join(f"{count} {state}" for state, count in states.items())
    if of.troubled:
        said += f' · <a href="#runs">{of.troubled} with problems</a>'
    titles = [experiment.title for experiment in of.experiments]
    heading = titles[0] if len(titles) == 1 else f"{len(titles)} experiments" if titles else "No run to show"
    choose = ""
    if len(titles) > 1:
        options = "".join(f'<option value="e{at}">{safe(cut(title))}</option>' for at, title in enumerate(titles))
        choose = f'<label>Experiment <select id="experiment">{options}</select></label>'
    return (
        f'<div class="head" data-part="head"><div><h1>{safe(cut(heading, 120))}</h1>'
        f"<p>{counted(len(of.runs), 'run', 'runs')}: {said}</p></div>{choose}</div>"
        "<noscript><p>Figures need JavaScript; tables do not.</p></noscript>"
    )


def _article(experiment: Experiment, place: int, drawn: dict[str, Any], samples: Picked | None) -> str:
    name = f"e{place}"
    found = {figure.name: figure for figure in figures(experiment)}
    differ, common = settings(experiment.runs)
    anchors = [("summary", "Summary"), *((key, heading) for key, heading, _ in SECTIONS), ("costs", "Costs")]
    anchors += [("settings", "Settings")]
    links = "".join(f'<a href="#{name}-{key}">{heading}</a>' for key, heading in anchors)
    navigation = f'<nav class="sections" aria-label="Sections">{links}<a href="#runs">Runs</a></nav>'
    parts = [f'<div class="bar">{navigation}{_conditions(experiment)}</div>']
    parts.append(_part(f"{name}-summary", "Summary", tiles(experiment, name) + table_card(summary(experiment), name)))
    for key, heading, names in SECTIONS:
        own = [found[one] for one in names]
        cards = "".join(card(figure, name, drawn) for figure in own if figure.views)
        missing = "".join(
            left_out(f"{name}-{figure.name}", figure.title, figure.missing) for figure in own if not figure.views
        )
        if key == "rehearsed" and samples is not None:
            if samples.classes:
                cards += picked_card(samples, name)
            else:
                missing += left_out(f"{name}-picked", PICKED, samples.missing)
        parts.append(_part(f"{name}-{key}", heading, (f'<div class="grid">{cards}</div>' if cards else "") + missing))
    parts.append(_part(f"{name}-costs", "Costs", table_card(costs(experiment), name)))
    parts.append(_part(f"{name}-settings", "Settings", table_card(differ, name) + folded(common, name)))
    hidden = " hidden" if place else ""
    return f'<article id="{name}" aria-label="{safe(cut(experiment.title))}"{hidden}>{"".join(parts)}</article>'


def _conditions(experiment: Experiment) -> str:
    """The choice of budget and buffer, which holds for all figures of an experiment."""
    names = [experiment.named(condition) for condition in by_runs(experiment)]
    if len(names) < 2:
        return ""
    options = "".join(f"<option>{safe(name)}</option>" for name in names)
    return f'<label>Figures at <select data-choice="condition">{options}</select></label>'


def _part(name: str, heading: str, inner: str) -> str:
    return f'<section class="part" id="{name}"><h2>{heading}</h2>{inner}</section>'


def _around(of: Report) -> str:
    """What concerns all experiments."""
    parts = table_card(runs_table(of.runs), "all")
    differ, common = environment(of.runs)
    parts += (table_card(differ, "all") if differ.rows else "") + folded(common, "all")
    return f'<section class="part" id="runs"><h2>Runs and environment</h2>{parts}</section>'
