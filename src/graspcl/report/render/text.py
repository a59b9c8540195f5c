"""Tables as text: for the terminal, and as CSV, Markdown and LaTeX files."""

from __future__ import annotations

import csv
import io
import math
import re
from itertools import groupby
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from graspcl.files import inert_cell
from graspcl.report import measures
from graspcl.report.model import Report
from graspcl.report.paper import paper_table
from graspcl.report.tables import Cell, Column, Table, environment_tables, experiment_tables, plain_number, run_list
from graspcl.state import write_output

WIDE = 110  # columns of a terminal from which on intervals fit next to the means
_ONE_PAGE = 40  # rows of a LaTeX table; longer tables break across pages


# -- terminal ----------------------------------------------------------------------------------------------------------


def terminal(table: Table, width: int = 120) -> RichTable:
    """Return a table for `rich`. In a narrow terminal, intervals and parameters are on lines of their own."""
    found = RichTable(
        title=Text(table.title) if table.title else None, title_justify="left", box=SIMPLE_HEAD, padding=0,
        caption=Text(table.caption) if table.caption else None, caption_justify="left",
    )  # fmt: skip
    for place, column in enumerate(table.columns):
        heading, whole = Text(column.heading.replace(" ", "\n")), place > 0 or table.name != "runs"  # paths may wrap
        found.add_column(heading, justify="right" if column.numeric else "left", no_wrap=whole, overflow="fold")
    for row in table.rows:
        cells = zip(row, table.columns, strict=True)
        found.add_row(*(Text(_fit(cell, column, width), "bold" if cell.bold else "") for cell, column in cells))
    return found


def _fit(cell: Cell, column: Column, width: int) -> str:
    if width >= WIDE:
        return cell.text
    if column.numeric:
        return re.sub(r" (?=\()", "\n", cell.text.replace(" ± ", "\n±"))
    return cell.text if "/" in cell.text else re.sub(r" (?=[+·] )|(?=\()", "\n", cell.text)


# -- files -------------------------------------------------------------------------------------------------------------


def write_tables(report: Report, folder: Path, form: Literal["csv", "md", "tex"]) -> list[Path]:
    """Write all tables of a report and return the files. Several experiments have a folder each."""
    render = {"csv": as_csv, "md": as_markdown, "tex": as_latex}[form]
    found: list[tuple[Path, Table]] = []
    for place, experiment in zip(experiment_folders(report, folder), report.experiments, strict=True):
        found += [(place, table) for table in experiment_tables(experiment)]
    found += [(folder, table) for table in (run_list(report.runs), *environment_tables(report.runs))]
    if report.paper:
        found.append((folder, paper_table(report.experiments, report.paper)))
    files = {place / f"{slug(table.name)}.{form}": render(table) for place, table in found}
    for path, text in files.items():
        write_text(path, text)
    return list(files)


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all. Text from names of files may hold characters that UTF-8 does not have."""
    content = text.encode("utf-8", "replace")
    write_output(path, lambda file: file.write(content))


def experiment_folders(report: Report, folder: Path) -> list[Path]:
    """Return the folder of each experiment."""
    if len(report.experiments) < 2:
        return [folder] * len(report.experiments)
    return [folder / f"{place}-{slug(found.title)}" for place, found in enumerate(report.experiments, start=1)]


def slug(text: str) -> str:
    """Return a text as a file name for any system."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", text).strip("-.")[:80] or "unnamed"


def as_csv(table: Table) -> str:
    """Return plain numbers, and texts that a spreadsheet does not execute.

    Columns "± 95 %" and "std" hold half of the interval and the standard deviation.
    """
    columns = []
    for place, column in enumerate(table.columns):
        name = inert_cell(f"{column.group}: {column.heading}" if column.group else column.heading)
        cells = [row[place] for row in table.rows]
        columns.append([name, *(cell.number if column.numeric else inert_cell(cell.text) for cell in cells)])
        for suffix, values in (("± 95 %", [cell.half for cell in cells]), ("std", [cell.std for cell in cells])):
            if not all(map(math.isnan, values)):
                columns.append([f"{name} {suffix}", *map(plain_number, values)])
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(zip(*columns, strict=True))
    return file.getvalue()


def as_markdown(table: Table) -> str:
    """Return a Markdown table with its title and caption."""
    names = [f"{column.group} {column.heading}".strip() for column in table.columns]
    lines = [f"## {_md(table.title)}", "", *([_md(table.caption), ""] if table.caption else [])]
    lines.append(f"| {' | '.join(map(_md, names))} |")
    lines.append(f"|{'|'.join('---:' if column.numeric else '---' for column in table.columns)}|")
    for row in table.rows:
        cells = (f"**{_md(cell.text)}**" if cell.bold else _md(cell.text) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|#])", r"\\\1", re.sub(r"\s+", " ", text))


# -- LaTeX -------------------------------------------------------------------------------------------------------------

_ARROWS = {"higher": r" \uparrow", "lower": r" \downarrow", "": ""}
_OTHER_HEADINGS = {"T": r"$T \downarrow$", "Δα": r"$\Delta\alpha$", "p": "$p$", "McNemar p": "McNemar $p$"}
_TEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "–": "--", "…": r"\ldots{}", "·": r"$\cdot$", "−": "$-$", "±": r"$\pm$", "μ": r"$\mu$",
    "α": r"$\alpha$", "β": r"$\beta$", "φ": r"$\phi$", "Δ": r"$\Delta$", **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip


def as_latex(table: Table) -> str:
    """Return a table in the form of the paper's: groups of columns separated, the best in bold, intervals small."""
    groups = groupby(table.columns, lambda column: column.group)
    form = "|".join("".join("c" if column.numeric else "l" for column in own) for _, own in groups)
    headings = " & ".join(_tex_heading(column.heading) for column in table.columns)
    head = [r"    \hline", *_tex_groups(table), rf"    {headings} \\", r"    \hline"]
    caption = rf"\caption{{\textbf{{{_tex(table.title)}.}} {_tex(table.caption)}}}"
    rows = []
    for row in table.rows:
        cells = (_tex_cell(cell, column.numeric) for cell, column in zip(row, table.columns, strict=True))
        rows.append(rf"    {' & '.join(cells)} \\")
    if len(rows) > _ONE_PAGE:
        begin = [r"% \usepackage{longtable}", rf"\begin{{longtable}}{{{form}}}", rf"  {caption} \\"]
        return "\n".join([*begin, *head, r"    \endhead", *rows, r"    \hline", r"\end{longtable}", ""])
    begin = [r"\begin{table}[t]", rf"  {caption}", r"  \centering", rf"  \begin{{tabular}}{{{form}}}", *head]
    return "\n".join([*begin, *rows, r"    \hline", r"  \end{tabular}", r"\end{table}", ""])


def _tex_heading(heading: str) -> str:
    symbols = {m.symbol: f"${m.tex}{_ARROWS[m.better]}$" for m in measures.MEASURES if m.tex}
    return {**symbols, **_OTHER_HEADINGS}.get(heading, _tex(heading))


def _tex_groups(table: Table) -> list[str]:
    """Return the row of headings above several columns, if there are any."""
    cells = []
    for place, (group, size) in enumerate(table.spans):
        edge = "|" if place + 1 < len(table.spans) else ""
        cells.append(rf"\multicolumn{{{size}}}{{c{edge}}}{{\textbf{{{_tex(group)}}}}}" if group else "")
    return [rf"    {' & '.join(cells)} \\"] if cells else []


def _tex_cell(cell: Cell, numeric: bool) -> str:
    found = re.fullmatch(r"(?P<mean>[-+\d.,]+)( ± (?P<half>[\d.,]+))?(?P<note> \(.*\))?", cell.text)
    if not numeric or isinstance(cell.value, str) or found is None:
        return _tex(cell.text)
    mean = found["mean"].replace(",", "{,}")
    half = rf" \tiny $\pm {found['half']}$" if found["half"] else ""
    return (rf"$\mathbf{{{mean}}}$" if cell.bold else f"${mean}$") + half + _tex(found["note"] or "")


def _tex(text: str) -> str:
    """Escape text for LaTeX, on one line."""
    parts = re.split(r"(μ_[NOA]|α_[HT])", re.sub(r"\s+", " ", text))
    signs = {"μ": r"\mu", "α": r"\alpha"}
    return "".join(
        f"${signs[part[0]]}_{{{part[2]}}}$" if place % 2 else "".join(_TEX.get(sign, sign) for sign in part)
        for place, part in enumerate(parts)
    )
