"""Pieces of the page as HTML; every text from outside is escaped here."""

from __future__ import annotations

import html
import math
import re
from dataclasses import asdict
from typing import Any

from graspcl.report.html.drawing import Figure, by_runs
from graspcl.report.html.grouping import Against, Experiment
from graspcl.report.html.labels import LABEL, counted, cut
from graspcl.report.html.picked import PIXELS, Pick, Picked, Picks
from graspcl.report.html.tables import Cell, Table, said

PICKED = "What GRASP picked first and last"


def tiles(experiment: Experiment, name: str) -> str:
    """What a reader wants to know first."""
    found = []
    for condition in by_runs(experiment)[:1]:
        done = [group for group in experiment.at(condition) if group.finished]
        where = "" if experiment.named(condition) == "all" else f" ({experiment.named(condition)})"
        if done:
            best = max(done, key=lambda group: group.mean("alpha"))
            label = f"{cut(best.method.label, LABEL)}{where}"
            found.append(("Best final accuracy", f"{best.mean('alpha'):.2f} %", label))
        for group in (group for group in done if group.method.policy == "grasp"):
            if (against := experiment.against(group)) is not None:
                whose = f"{cut(group.method.label, LABEL)} against {cut(experiment.baseline, LABEL)}{where}"
                found.append(("Difference in α", f"{against.mean:+.2f}", f"{whose}{_sure(against)}"))
    saved = [
        (share, cut(method.label, LABEL), buffer)
        for buffer in dict.fromkeys(condition.buffer for condition in experiment.conditions)
        for method in experiment.methods
        if (share := experiment.saved(method, buffer)) is not None and share > 0
    ]
    if saved:
        share, label, buffer = max(saved)
        where = f" (buffer {buffer})" if experiment.several("buffer") else ""
        about = f"{label} at the accuracy of {cut(experiment.baseline, LABEL)}{where}"
        found.append(("Updates saved", f"{100 * share:.0f} %", about))
    inner = "".join(
        f'<div class="tile"><p>{title}</p><strong>{safe(value)}</strong><p>{safe(cut(about, 220))}</p></div>'
        for title, value, about in found[:4]
    )
    return f'<div class="tiles" data-part="{name}-tiles">{inner}</div>'


def _sure(against: Against) -> str:
    """How sure a difference is: its interval over seeds, and p."""
    found = []
    if not math.isnan(against.low):
        over = counted(against.seeds, "seed", "seeds")
        found.append(f"95 % interval [{against.low:+.2f}, {against.high:+.2f}] over {over}")
    if not math.isnan(against.p):
        of = "" if against.tested == against.seeds else f" over {counted(against.tested, 'seed', 'seeds')}"
        sign = "" if against.p < 0.001 else "= "
        found.append(f"{'median ' if against.tested > 1 else 'one seed, McNemar’s '}p {sign}{said(against.p)}{of}")
    return "".join(f" · {text}" for text in found)


def card(figure: Figure, name: str, drawn: dict[str, Any]) -> str:
    place = f"{name}-{figure.name}"
    drawn[place] = {"choice": figure.choice, "layout": figure.layout, "views": [asdict(view) for view in figure.views]}
    choose, tag = "", '<span class="tag"></span>'
    if len(figure.views) > 1 and figure.choice != "condition":
        options = "".join(f"<option>{safe(cut(view.label, 90))}</option>" for view in figure.views)
        choose = f'<label>{figure.choice} <select aria-label="{figure.choice}">{options}</select></label>'
    return (
        f'<figure class="card" id="{place}" data-part="{place}" aria-labelledby="{place}-title"><header><div>'
        f'<h3 id="{place}-title">{figure.title}</h3><p class="about">{safe(figure.about)}</p></div>{choose or tag}'
        f'</header><div class="chart" role="img" aria-label="{safe(figure.title)}. {safe(figure.about)}"></div>'
        '<p class="note"></p></figure>'
    )


def left_out(place: str, title: str, why: str) -> str:
    """A line in place of what cannot be shown."""
    return f'<p class="missing" data-part="{place}-missing"><b>{title}</b> is left out. {safe(why)}</p>'


def picked_card(picked: Picked, name: str) -> str:
    """Samples that GRASP picked first and last, class by class."""
    rows = "".join(_picks(picks, picked.images) for picks in picked.classes)
    return (
        f'<div class="card picked" data-part="{name}-picked"><header><div><h3>{PICKED}</h3>'
        f'<p class="about">{safe(picked.about)}</p></div></header>{rows}</div>'
    )


def _picks(picks: Picks, images: bool) -> str:
    inner = "".join(
        f"<div><p>{end.capitalize()}</p>{_thumbnails(own, end, picks) if images else _lines(own)}</div>"
        for end, own in (("first", picks.first), ("last", picks.last))
        if own
    )
    return (
        f'<div class="picks"><div><h4>{safe(cut(picks.name))}</h4>'
        f"<p>{picks.shown:,} of {picks.stored:,} stored shown</p></div>{inner}</div>"
    )


def _thumbnails(own: tuple[Pick, ...], end: str, picks: Picks) -> str:
    inner = "".join(
        f'<img src="{safe(pick.content)}" width="{PIXELS}" height="{PIXELS}" '
        f'alt="{safe(cut(picks.name))}, {end}: {pick.place} of {picks.shown}">'
        for pick in own
    )
    return f'<div class="thumbnails">{inner}</div>'


def _lines(own: tuple[Pick, ...]) -> str:
    return "<ol>" + "".join(f'<li value="{pick.place}">{safe(pick.content)}</li>' for pick in own) + "</ol>"


def folded(table: Table, name: str) -> str:
    if not table.rows:
        return ""
    return (
        f'<details class="card" data-part="{name}-{table.name}"><summary>{safe(table.title)} '
        f'<span class="soft">({len(table.rows)})</span></summary>{_grid(table)}</details>'
    )


def table_card(table: Table, name: str) -> str:
    about = f'<p class="about">{safe(table.about)}</p>' if table.about else ""
    title = "" if table.name in ("summary", "costs") else f"<h3>{safe(table.title)}</h3>"  # the section's says it
    inner = _grid(table) if table.rows else '<p class="missing">There is nothing to show.</p>'
    card = f'<div class="card" data-part="{name}-{table.name}"><header><div>{title}{about}</div></header>{inner}</div>'
    return card + (_meanings(table, name) if table.rows and table.name in ("summary", "costs") else "")


def _meanings(table: Table, name: str) -> str:
    """What the headings of a table tell to a pointer, told to all."""
    pairs = ((safe(column.heading), safe(column.meaning)) for column in table.columns if column.meaning)
    inner = "".join(f"<dt>{heading}</dt><dd>{meaning}</dd>" for heading, meaning in pairs)
    return (
        f'<details class="meanings" data-part="{name}-{table.name}-meanings"><summary>What the columns mean</summary>'
        f"<dl>{inner}</dl></details>"
    )


def _grid(table: Table) -> str:
    heads = [
        f'<th scope="col" data-place="{place}" title="{safe(column.meaning)}"'
        f'{" class=number" if column.numeric else ""}><button type="button">{safe(column.heading)}</button></th>'
        for place, column in enumerate(table.columns)
    ]
    body = []
    for row in table.rows:
        cells = (_cell(cell, column.numeric) for cell, column in zip(row, table.columns, strict=True))
        body.append(f"<tr>{''.join(cells)}</tr>")
    head = f"<thead>{_under(table)}<tr>{''.join(heads)}</tr></thead>"
    return (
        f'<div class="scroll" tabindex="0"><table aria-label="{safe(table.title)}">{head}'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _under(table: Table) -> str:
    """The row of headings that several columns stand under."""
    if not any(column.under for column in table.columns):
        return ""
    spans: list[list[Any]] = []
    for column in table.columns:
        if spans and spans[-1][0] == column.under:
            spans[-1][1] += 1
        else:
            spans.append([column.under, 1])
    return "<tr>" + "".join(f'<th class="under" colspan="{size}">{safe(name)}</th>' for name, size in spans) + "</tr>"


def _cell(cell: Cell, numeric: bool) -> str:
    mean, *behind = re.split(r" (?=[±\[(])", cell.text, maxsplit=1)
    inner = f"<b>{safe(mean)}</b>" if cell.bold else safe(mean)
    inner += "".join(f" <small>{safe(spread)}</small>" for spread in behind)
    if not numeric:
        inner = re.sub(r"([_/])", r"\1<wbr>", safe(cell.text)).replace("(", "<wbr>(")
        state = f' class="state-{cell.text}"' if cell.text in ("finished", "damaged", "empty") else ""
        long = ' class="long"' if len(cell.text) > 40 else state
        value = f' data-value="{cell.value:g}"' if isinstance(cell.value, float) else ""
        return f"<td{long}{value}>{inner}</td>"
    value = "" if isinstance(cell.value, str) or math.isnan(cell.value) else f"{cell.value:.10g}"
    return f'<td class="number" data-value="{value}">{inner}</td>'


def safe(text: object) -> str:
    return html.escape(str(text))
