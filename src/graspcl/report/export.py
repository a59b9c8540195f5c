"""The report as files: its figures as pictures, and its tables for a spreadsheet, a page of text or a paper."""

from __future__ import annotations

import csv
import functools
import io
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

from graspcl.errors import GraspError
from graspcl.report.html.figures import class_means, figures
from graspcl.report.html.grouping import Experiment
from graspcl.report.html.page import Report, as_bytes
from graspcl.report.html.paper import in_form
from graspcl.report.html.pictures import draw, standalone
from graspcl.report.html.tables import (
    Cell,
    Column,
    Table,
    costs,
    environment,
    figure,
    runs_table,
    settings,
    summary,
    words,
)
from graspcl.state import write_whole

Format = Literal["png", "svg", "csv", "md", "tex"]

_ONE_PAGE = 40  # rows of a LaTeX table; longer ones go on over pages


def export(of: Report, folder: Path, form: Format) -> list[Path]:
    """Write the figures (png, svg) or tables (csv, md, tex) of a report into a folder; returns the files.

    Where there are several experiments each has a folder of its own below it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written = _figures(of, folder, form) if form in ("png", "svg") else _tables(of, folder, form)
    except OSError as error:
        raise GraspError(f"the report cannot be written to {folder}: {error.strerror}") from error
    return written


def _figures(of: Report, folder: Path, form: Format) -> list[Path]:
    pictures = {}
    for place, experiment in zip(_folders(of, folder), of.experiments, strict=True):
        place.mkdir(exist_ok=True)
        for drawn in figures(experiment):
            names: set[str] = set()
            for view in drawn.views:
                name = drawn.name if len(drawn.views) == 1 else f"{drawn.name}--{slug(view.label)}"
                names.add(name := name if name not in names else f"{name}-{len(names)}")
                pictures[place / f"{name}.{form}"] = standalone(drawn, view)
    draw(pictures, "png" if form == "png" else "svg")
    return list(pictures)


def _tables(of: Report, folder: Path, form: Format) -> list[Path]:
    write = {"csv": as_csv, "md": as_markdown, "tex": as_latex}[form]
    found: list[tuple[Path, Table]] = []
    for place, experiment in zip(_folders(of, folder), of.experiments, strict=True):
        found += [(place, table) for table in tables(experiment)]
    around = [runs_table(of.runs), *environment(of.runs), *([of.beside] if of.beside else [])]
    written = []
    for place, table in [*found, *((folder, table) for table in around)]:
        path = place / f"{slug(table.name)}.{form}"
        write_whole(path, functools.partial(_put, as_bytes(write(table))))
        written.append(path)
    return written


def _put(content: bytes, file: IO[bytes]) -> None:
    file.write(content)


def tables(experiment: Experiment) -> Iterator[Table]:
    """All tables of an experiment, with more than the page has room for: every session, every class."""
    yield summary(experiment)
    yield from in_form(experiment)
    yield costs(experiment)
    yield from settings(experiment.runs)
    yield _sessions(experiment)
    yield _classes(experiment)


def _which(experiment: Experiment) -> list[Column]:
    return [Column(name, numeric=False) for name in ("method", "budget", "buffer")]


def _sessions(experiment: Experiment) -> Table:
    columns = [*_which(experiment), *(Column(name) for name in ("seed", "session", "all", "old", "new"))]
    rows = []
    for group in experiment.groups:
        for run in group.runs:
            for session in range(len(run.curves.get("all", []))):
                values = [run.curves.get(name, []) for name in ("all", "old", "new")]
                cells = [figure(own[session] if session < len(own) else math.nan, 4) for own in values]
                head = [words(group.method.label), words(group.condition.budget), words(group.condition.buffer)]
                rows.append([*head, figure(run.seed, 0), figure(session, 0), *cells])
    return Table("sessions", "Accuracy after each session", columns, rows, "In percent, on all, old and new classes.")


def _classes(experiment: Experiment) -> Table:
    rows = []
    for group in experiment.groups:
        for name, value in class_means(group).items():
            head = [words(group.method.label), words(group.condition.budget), words(group.condition.buffer)]
            rows.append([*head, words(name), figure(value)])
    columns = [*_which(experiment), Column("class", numeric=False), Column("accuracy")]
    return Table("classes", "Accuracy by class", columns, rows, "After the last session, in percent, mean over seeds.")


def _folders(of: Report, folder: Path) -> list[Path]:
    if len(of.experiments) < 2:
        return [folder] * len(of.experiments)
    return [folder / f"{place}-{slug(experiment.title)}" for place, experiment in enumerate(of.experiments, start=1)]


def slug(text: str) -> str:
    """A text as the name of a file on any system.

    >>> slug("grasp, seed 0 (0.5x updates)")
    'grasp-seed-0-0.5x-updates'
    """
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text).strip("-.")[:80] or "unnamed"


# -- tables as text ----------------------------------------------------------------------------------------------------


def as_csv(table: Table) -> str:
    """For a program: plain numbers, and the deviation over seeds or an interval in columns of their own."""
    file = io.StringIO()
    write = csv.writer(file, lineterminator="\n")
    columns = []
    for place, column in enumerate(table.columns):
        name = f"{column.under}: {column.heading}" if column.under else column.heading
        cells = [row[place] for row in table.rows]
        columns.append([name, *(_bare(cell, column.numeric) for cell in cells)])
        if any(not math.isnan(cell.spread) for cell in cells):
            columns.append([f"{name} std", *(_number(cell.spread) for cell in cells)])
        if any(cell.interval for cell in cells):
            for end, said in enumerate(("low", "high")):
                columns.append(
                    [f"{name} {said}", *(_number(cell.interval[end]) if cell.interval else "" for cell in cells)]
                )
    write.writerows(zip(*columns, strict=True))
    return file.getvalue()


def _bare(cell: Cell, numeric: bool) -> str:
    return _number(cell.value) if numeric and not isinstance(cell.value, str) else cell.text


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"


def as_markdown(table: Table) -> str:
    """For a page of text."""
    names = [f"{column.under} {column.heading}".strip() for column in table.columns]
    lines = [f"## {_plain(table.title)}", "", *([_plain(table.about), ""] if table.about else [])]
    lines.append(f"| {' | '.join(map(_plain, names))} |")
    lines.append(f"|{'|'.join('---:' if column.numeric else '---' for column in table.columns)}|")
    for row in table.rows:
        cells = (f"**{_plain(cell.text)}**" if cell.bold else _plain(cell.text) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text that Markdown takes as such, on one line."""
    line = re.sub(r"\s+", " ", text)
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", line)


_TEX_HEADINGS = {
    "μ_N": r"$\mu_{N} \uparrow$", "μ_O": r"$\mu_{O} \uparrow$", "μ_A": r"$\mu_{A} \uparrow$", "α": r"$\alpha \uparrow$",
    "α_H": r"$\alpha_{H} \uparrow$", "α_T": r"$\alpha_{T} \uparrow$",
    "α tasks": r"$\alpha_{\mathrm{tasks}} \uparrow$", "β": r"$\beta \downarrow$",
    "φ": r"$\phi \downarrow$", "T": r"$T \downarrow$", "Δα": r"$\Delta\alpha$", "p": "$p$",
}  # fmt: skip
_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "–": "--", "…": r"\ldots{}", "·": r"$\cdot$", "−": "$-$", "±": r"$\pm$", "μ": r"$\mu$",
    "α": r"$\alpha$", "β": r"$\beta$", "φ": r"$\phi$", "Δ": r"$\Delta$", **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip


def as_latex(table: Table) -> str:
    r"""For a paper, in the form of the paper's own: groups of columns apart, the best in bold, deviations small.

    >>> columns = [Column("Method", numeric=False), Column("μ_N")]
    >>> table = Table("t", "T", columns, [[words("a_b"), figure(68.13, 2, 0.13, bold=True)]])
    >>> print(as_latex(table).splitlines()[7].strip())
    a\_b & $\mathbf{68.13}$ \tiny $\pm 0.13$ \\
    """
    unders = [column.under for column in table.columns]
    edges = ["|" if place and unders[place] != unders[place - 1] else "" for place in range(len(unders))]
    form = "".join(f"{edge}{'c' if column.numeric else 'l'}" for edge, column in zip(edges, table.columns, strict=True))
    heads = (_TEX_HEADINGS.get(column.heading, _tex(column.heading)) for column in table.columns)
    head = [r"    \hline", *_tex_under(unders), rf"    {' & '.join(heads)} \\", r"    \hline"]
    caption = rf"\caption{{\textbf{{{_tex(table.title)}.}} {_tex(table.about)}}}"
    rows = []
    for row in table.rows:
        cells = (_tex_cell(cell, column.numeric) for cell, column in zip(row, table.columns, strict=True))
        rows.append(rf"    {' & '.join(cells)} \\")
    if len(rows) > _ONE_PAGE:
        begin = [
            r"% \usepackage{longtable}",
            rf"\begin{{longtable}}{{{form}}}",
            rf"  {caption} \\",
            *head,
            r"    \endhead",
        ]
        return "\n".join([*begin, *rows, r"    \hline", r"\end{longtable}", ""])
    begin = [r"\begin{table}[t]", rf"  {caption}", r"  \centering", rf"  \begin{{tabular}}{{{form}}}", *head]
    return "\n".join([*begin, *rows, r"    \hline", r"  \end{tabular}", r"\end{table}", ""])


def _tex_under(unders: list[str]) -> list[str]:
    """The row of headings that several columns stand under."""
    if not any(unders):
        return []
    spans: list[tuple[str, int]] = []
    for under in unders:
        before = spans.pop() if spans and spans[-1][0] == under else (under, 0)
        spans.append((under, before[1] + 1))
    cells = []
    for place, (under, size) in enumerate(spans):
        edge = "|" if place + 1 < len(spans) else ""
        cells.append(rf"\multicolumn{{{size}}}{{c{edge}}}{{\textbf{{{_tex(under)}}}}}" if under else "")
    return [rf"    {' & '.join(cells)} \\"]


def _tex_cell(cell: Cell, numeric: bool) -> str:
    mean, plus, spread = cell.text.partition(" ± ")
    if not numeric or isinstance(cell.value, str) or math.isnan(cell.value) or not re.fullmatch(r"[-+\d.,]+", mean):
        return _tex(cell.text)
    mean = mean.replace(",", "{,}")
    return (rf"$\mathbf{{{mean}}}$" if cell.bold else f"${mean}$") + (rf" \tiny $\pm {spread}$" if plus else "")


def _tex(text: str) -> str:
    parts = re.split(r"(μ_[NOA]|α_[HT])", re.sub(r"\s+", " ", text))
    signs = {"μ": r"\mu", "α": r"\alpha"}
    return "".join(
        f"${signs[part[0]]}_{{{part[2]}}}$" if place % 2 else "".join(_TEX.get(sign, sign) for sign in part)
        for place, part in enumerate(parts)
    )
