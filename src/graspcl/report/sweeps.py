"""The table of a sweep: policies at several budgets and buffers, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from graspcl.metric import Interval, interval, paired_interval, saved_updates
from graspcl.report.runs import RunRecord, read_record

Key = tuple[str, str, str]  # learner and policy, budget, buffer


def sweep_table(title: str, paths: Iterable[Path], baseline: str = "uniform_balanced", width: int = 120) -> Table:
    """A row per learner, policy, budget and buffer: mean over seeds of μ_A and α with half of its 95 % interval, and
    the difference in α to the baseline, where it is among them, at the same budget and buffer over the same seeds.

    In a terminal of fewer than 110 columns the interval stands below the mean.
    """
    groups = group(paths)
    several = {place: len({key[place] for key in groups}) > 1 for place in (1, 2)}
    seeds = max((len(runs) for runs in groups.values()), default=0)
    over = f"{seeds} seeds, mean ± half of its 95 % interval" if seeds > 1 else "one seed"
    table = Table(
        title=escape(f"{title}\n{over}"), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0),
        caption=escape(_caption(groups, baseline)), caption_justify="left",
    )  # fmt: skip
    table.add_column("policy", no_wrap=True)
    for place, heading in ((1, "updates"), (2, "buffer")):
        if several[place]:
            table.add_column(heading, justify="right", no_wrap=True)
    compared = any(key[0] == _baseline(key[0], baseline) for key in groups)
    for heading in ("μ_A", "α", *((f"α −\n{baseline}", "p") if compared else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for key, runs in groups.items():
        cells = [text for place, text in ((1, f"{_updates(runs):,.0f}"), (2, key[2])) if several[place]]
        for name in ("mu_all", "alpha"):
            values = [*_by_seed(runs, name).values()]
            cells.append(_mean(interval(values), "", width) if values else "–")
        label = key[0] if width >= 110 else key[0].replace(" + ", " +\n").replace("(", "\n(")
        table.add_row(escape(label), *cells, *(_against(groups, key, baseline, width) if compared else ()))
    return table


def _mean(found: Interval, sign: str, width: int) -> str:
    """A mean and half of its interval, which a single seed does not have."""
    half = f"{' ± ' if width >= 110 else chr(10) + '±'}{found.high - found.mean:.2f}" if found.n > 1 else ""
    return f"{found.mean:{sign}.2f}{half}"


def group(paths: Iterable[Path]) -> dict[Key, list[RunRecord]]:
    """Finished runs by what they have in common beside the seed, in the order in which they come."""
    found: dict[Key, list[RunRecord]] = {}
    records = [record for record in map(read_record, paths) if record.state == "finished"]
    alike = len({record.learner for record in records}) < 2
    for record in records:
        label = record.policy if alike else f"{record.learner} + {record.policy}"
        found.setdefault((label, _budget(record.config), record.buffer), []).append(record)
    return found


def _budget(config: dict[str, Any]) -> str:
    budget = config.get("budget", {})
    return f"{budget.get('times')} of {budget.get('updates', budget.get('passes'))}"


def _updates(runs: list[RunRecord]) -> float:
    return float(sum(run.summary["updates"] for run in runs) / len(runs))


def _by_seed(runs: list[RunRecord], name: str) -> dict[int, float]:
    return {int(run.summary["seed"]): float(run.summary[name]) for run in runs if run.summary.get(name) is not None}


def _against(groups: dict[Key, list[RunRecord]], key: Key, baseline: str, width: int) -> tuple[str, str]:
    """The difference to the baseline, and the p of the paired t-test."""
    other = (_baseline(key[0], baseline), *key[1:])
    if key[0] == other[0] or other not in groups:
        return "–", "–"
    own, theirs = _by_seed(groups[key], "alpha"), _by_seed(groups[other], "alpha")
    both = sorted(own.keys() & theirs.keys())
    if not both:
        return "–", "–"
    found = paired_interval([own[seed] for seed in both], [theirs[seed] for seed in both])
    return _mean(found, "+", width), f"{found.p:.3f}" if found.n > 1 else "–"


def _baseline(label: str, baseline: str) -> str:
    learner, plus, _ = label.rpartition(" + ")
    return f"{learner}{plus}{baseline}"


def _caption(groups: dict[Key, list[RunRecord]], baseline: str) -> str:
    """How many updates each policy saves to reach the baseline's best accuracy, where budgets differ."""
    curves: dict[tuple[str, str], dict[float, float]] = {}
    for (label, _, buffer), runs in groups.items():
        if alphas := [*_by_seed(runs, "alpha").values()]:
            curves.setdefault((label, buffer), {})[_updates(runs)] = sum(alphas) / len(alphas)
    said = []
    for (label, buffer), curve in curves.items():
        other = curves.get((_baseline(label, baseline), buffer))
        if other is None or label == _baseline(label, baseline) or len(curve) < 2 or len(other) < 2:
            continue
        share = saved_updates([*curve], [*curve.values()], [*other], [*other.values()])
        where = f" (buffer {buffer})" if len({key[1] for key in curves}) > 1 else ""
        if share != share:
            said.append(f"{label}{where} does not reach the best of {baseline}")
        else:
            least = "at least " if curve[min(curve)] >= max(other.values()) else ""  # it was there from the first on
            more = f"{least}{abs(100 * share):.0f} % {'fewer' if share >= 0 else 'more'}"
            said.append(f"{label}{where} reaches the best of {baseline} with {more} updates")
    return "\n".join(said)
