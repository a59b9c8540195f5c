"""The figures of a report as plotly takes them: traces and axes. The page decides how they look."""

from graspcl.report.figures.accuracy import accuracy_matrix, by_class, final_accuracy, learning_curve
from graspcl.report.figures.cost import by_memory, by_updates, training_time
from graspcl.report.figures.rehearsal import class_coverage, coverage, distance, drift, repeats
from graspcl.report.figures.style import Figure, View
from graspcl.report.model import Experiment

__all__ = ["Figure", "View", "all_figures", "sections"]


def sections(experiment: Experiment) -> dict[str, tuple[str, list[Figure]]]:
    """Return the sections of the page: by name, a heading and its figures. Figures without data say why."""
    learning = [learning_curve(experiment, which) for which in ("all", "old", "new")]
    compute = [by_updates(experiment), by_memory(experiment), training_time(experiment)]
    rehearsal = [draw(experiment) for draw in (distance, repeats, coverage, class_coverage, drift)]
    details = [accuracy_matrix(experiment), by_class(experiment)]
    return {
        "learning": ("Learning", [*learning, final_accuracy(experiment)]),
        "compute": ("Compute and memory", compute),
        "rehearsal": ("Rehearsed samples", rehearsal),
        "details": ("Sessions and classes", details),
    }


def all_figures(experiment: Experiment) -> list[Figure]:
    """Return all figures in the order of the page."""
    return [figure for _, figures in sections(experiment).values() for figure in figures]
