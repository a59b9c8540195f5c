"""What runs are measured by, and how values and names are written. A new column of a report is one entry here."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from graspcl.metric import interval

NONE = "–"  # shown where there is no value
LABEL = 44  # most characters of a method's label in figures
MIN_SEEDS = 3  # to draw intervals and to name a best: two seeds have an interval of ± 13 standard errors

# Tables that show measures: two of the report, the paper's form, two of the terminal, and a run session by session.
TableName = Literal["summary", "costs", "paper", "sweep", "demo", "session"]


@dataclass(frozen=True)
class Measure:
    """A number that runs store, and how tables show it."""

    key: str  # in summary.json; for the table "session", in a line of metrics.jsonl
    symbol: str
    meaning: str  # ends with the unit where the heading does not show it
    unit: str = "%"
    better: Literal["higher", "lower", ""] = "higher"  # which means are printed in bold; empty for costs
    digits: int = 2  # after the decimal point
    factor: float = 1.0  # from the stored value to the unit
    tables: tuple[TableName, ...] = ("summary", "sweep")
    tex: str = ""  # symbol in LaTeX's math mode, if it has one

    @property
    def heading(self) -> str:
        """Heading of its column: costs, which differ in their units, show them."""
        return self.symbol if self.better else f"{self.symbol} {self.unit}".strip()


_PAPER: tuple[TableName, ...] = ("summary", "paper", "demo")
_ALL: tuple[TableName, ...] = (*_PAPER, "sweep")
_COSTS: tuple[TableName, ...] = ("costs",)

MEASURES = [
    Measure("accuracy_before_rehearsal", "before", "accuracy before rehearsal", better="", tables=("session",)),
    Measure("accuracy", "after", "accuracy after rehearsal", better="", tables=("session",)),
    Measure("mu_new", "μ_N", "accuracy on new classes, mean over sessions (%)", tables=_PAPER, tex=r"\mu_{N}"),
    Measure("mu_old", "μ_O", "accuracy on old classes, mean over sessions (%)", tables=_PAPER, tex=r"\mu_{O}"),
    Measure("mu_all", "μ_A", "accuracy on all classes, mean over sessions (%)", tables=_ALL, tex=r"\mu_{A}"),
    Measure("alpha", "α", "accuracy on all classes after the last session (%)", tables=_ALL, tex=r"\alpha"),
    Measure(
        "alpha_tasks", "α tasks", "accuracy after the last session, mean over tasks (%)", tables=("summary",),
        tex=r"\alpha_{\mathrm{tasks}}",
    ),
    Measure("alpha_head", "α_H", "α on classes with many samples (%)", tables=("summary",), tex=r"\alpha_{H}"),
    Measure("alpha_tail", "α_T", "α on classes with few samples (%)", tables=("summary",), tex=r"\alpha_{T}"),
    Measure(
        "top5", "top-5", "label among the five most likely, after the last session (%)", tables=("summary", "session")
    ),
    Measure(
        "forgetting", "forgetting", "drop of a session's classes from their best accuracy, mean over sessions (%)",
        better="lower", tables=("summary",),
    ),
    Measure(
        "forward_transfer", "forward", "accuracy on a session's classes before it, where they were known, minus that "
        "of guessing (%)", tables=("summary",),
    ),
    Measure(
        "drift_auc", "β norm", "area under the drift per update, the norm of the change of embeddings, mean over "
        "sessions (updates × norm)", "", "lower", 4, tables=("summary",), tex=r"\beta_{\mathrm{norm}}",
    ),
    Measure(
        "drift_mean", "φ norm", "drift per update, the norm of the change of embeddings, mean over updates and "
        "sessions", "", "lower", 4, tables=("summary",), tex=r"\phi_{\mathrm{norm}}",
    ),
    Measure(
        "drift_mse_auc", "β MSE", "area under the drift per update, the mean squared change of embeddings, mean over "
        "sessions (updates × MSE)", "", "lower", 6, tables=("summary",), tex=r"\beta_{\mathrm{MSE}}",
    ),
    Measure(
        "drift_mse_mean", "φ MSE", "drift per update, the mean squared change of embeddings, mean over updates and "
        "sessions", "", "lower", 6, tables=("summary",), tex=r"\phi_{\mathrm{MSE}}",
    ),
    Measure("updates", "updates", "mini-batches of all sessions", "", "", 0, tables=("costs", "demo", "session")),
    Measure(
        "coverage", "seen", "share of the buffer rehearsed at least once, mean over sessions", "%", "", 1, 100,
        ("costs", "demo"),
    ),
    Measure("selection_forward", "selection forward", "samples passed forward to select", "", "", 0, tables=_COSTS),
    Measure("selection_backward", "selection backward", "samples passed backward to select", "", "", 0, tables=_COSTS),
    Measure("training_forward", "training forward", "samples passed forward to train", "", "", 0, tables=_COSTS),
    Measure("training_backward", "training backward", "samples passed backward to train", "", "", 0, tables=_COSTS),
    Measure("training_seconds", "train", "time of updates", "s", "", tables=("costs", "demo", "session")),
    Measure("selection_seconds", "select", "time of selection", "s", "", tables=("costs", "demo", "session")),
    Measure("seconds", "run", "time of the whole run", "s", "", 1, tables=_COSTS),
    Measure("buffer_bytes", "buffer", "largest size of the buffer", "MB", "", 2, 1e-6, _COSTS),
    Measure("joules", "energy", "energy of the whole machine during the run", "J", "", 0, tables=_COSTS),
    Measure("stored", "stored", "samples in the buffer", "", "", 0, tables=("session",)),
    Measure("loss", "loss", "mean training loss", "", "", 3, tables=("session",)),
]  # fmt: skip


def measures(table: TableName) -> list[Measure]:
    """Return the measures that a table shows, in the order of its columns."""
    return [measure for measure in MEASURES if table in measure.tables]


# -- how values and names are written ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """A mean over seeds; what is unknown is NaN."""

    mean: float = math.nan
    half: float = math.nan  # half of the 95 % t-interval, for two seeds or more
    std: float = math.nan  # sample standard deviation, for two seeds or more

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of values, one per seed."""
        if not len(values):
            return cls()
        found = interval(values)
        return cls(found.mean, found.high - found.mean, found.std)

    def scaled(self, factor: float) -> Mean:
        """Return it in another unit."""
        return Mean(factor * self.mean, factor * self.half, factor * self.std)

    def text(self, digits: int, sign: str = "") -> str:
        """Return the mean with ± half of its interval, if it has one."""
        if math.isnan(self.mean):
            return NONE
        constant = not digits and not self.half  # whole numbers that are the same for all seeds
        behind = "" if math.isnan(self.half) or constant else f" ± {self.half:,.{digits}f}"
        return f"{self.mean:{sign},.{digits}f}{behind}"


def p_text(p: float) -> str:
    """Return a p-value as text, such as "0.042" or "< 0.001"."""
    return NONE if math.isnan(p) else f"{p:.3f}" if p >= 0.001 else "< 0.001"


def significant(value: float, digits: int) -> int:
    """Return how many digits after the point to show: more than `digits` if a small value would lose its first two."""
    return digits if not value or math.isnan(value) else max(digits, 1 - math.floor(math.log10(abs(value))))


def plural(count: int, noun: str) -> str:
    """Return a number of things, such as "1 run", "2 runs" or "3 classes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def shorten(value: object, most: int = 60) -> str:
    """Return a text as one line of at most `most` characters, cut in the middle."""
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", str(value)).strip()
    return line if len(line) <= most else f"{line[: most - most // 4 - 1]}…{line[-(most // 4) :]}"


def tick_label(value: object) -> str:
    """Return a label for the tick of an axis: short lines, with the parameters of a policy on a line of their own."""
    lines: list[str] = []
    for part in re.split(r"(?=\()| · | \+ ", shorten(value, LABEL)):
        lines += textwrap.wrap(part, 22, break_on_hyphens=False)
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def distinct_labels(labels: Sequence[str]) -> list[str]:
    """Number the labels that would look the same when shortened, at the end, which is never cut off."""
    drawn = Counter(map(tick_label, labels))
    if len(drawn) == len(labels):
        return list(labels)
    found, count = [], 0
    for label in labels:
        distinct = len(label) <= LABEL and drawn[tick_label(label)] == 1
        count += not distinct
        found.append(label if distinct else f"{label} [{count}]")
    return found
