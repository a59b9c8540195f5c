"""The figures of a report as plotly takes them: traces and axes. The page decides how they look.

Their texts and axes are in `render/templates/figures.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache, partial
from importlib import resources
from typing import Any

from graspcl.report.figures.accuracy import accuracy_matrix, by_class, class_sessions, final_accuracy, learning_curve
from graspcl.report.figures.cost import by_memory, by_time, by_updates, training_time
from graspcl.report.figures.rehearsal import (
    buffer_coverage,
    class_coverage,
    distance,
    drift_mse,
    drift_norm,
    repetitions,
)
from graspcl.report.figures.style import BAND, Figure, View, why_missing
from graspcl.report.model import Experiment

__all__ = ["Figure", "View", "all_figures", "sections"]

# By section of the page: its heading, and what draws the views of its figures, or says why there are none.
_SECTIONS: dict[str, tuple[str, dict[str, Callable[[Experiment], list[View] | str]]]] = {
    "learning": (
        "Learning",
        {f"learning-{which}": partial(learning_curve, which=which) for which in ("all", "old", "new")}
        | {"bars": final_accuracy},
    ),
    "compute": (
        "Compute and memory",
        {"updates": by_updates, "seconds": by_time, "memory": by_memory, "times": training_time},
    ),
    "rehearsal": (
        "Rehearsed samples",
        {"distance": distance, "repeats": repetitions, "coverage": buffer_coverage, "class-coverage": class_coverage,
         "drift": drift_norm, "drift-mse": drift_mse},
    ),
    "details": (
        "Sessions and classes",
        {"class-sessions": class_sessions, "matrix": accuracy_matrix, "classes": by_class},
    ),
}  # fmt: skip


def sections(experiment: Experiment) -> dict[str, tuple[str, list[Figure]]]:
    """Return the sections of the page: by name, a heading and its figures. Figures without data say why."""
    return {
        section: (heading, [_figure(experiment, name, draw(experiment)) for name, draw in figures.items()])
        for section, (heading, figures) in _SECTIONS.items()
    }


def all_figures(experiment: Experiment) -> list[Figure]:
    """Return all figures in the order of the page."""
    return [figure for _, figures in sections(experiment).values() for figure in figures]


def _figure(experiment: Experiment, name: str, views: list[View] | str) -> Figure:
    own = _texts()[name]
    missing = views if isinstance(views, str) else own["missing"].format(baseline=experiment.baseline)
    return Figure(
        name, own["title"], own["caption"].format(band=BAND), [] if isinstance(views, str) else views, own["layout"],
        why_missing(experiment, own["file"], missing) if "file" in own else missing, own.get("choice", "condition"),
    )  # fmt: skip


@cache
def _texts() -> dict[str, dict[str, Any]]:
    file = resources.files("graspcl.report.render") / "templates" / "figures.toml"
    return tomllib.loads(file.read_text(encoding="utf-8"))
