"""Text from outside as figures show it: short, taken as text by plotly, and telling methods apart."""

from __future__ import annotations

import html
import re
import textwrap
from collections import Counter
from collections.abc import Sequence

LABEL = 44  # characters of a method's label in figures


def cut(value: object, most: int = 60) -> str:
    """One line of at most so many characters.

    >>> cut("a" * 300, 9)
    'aaaaaa…aa'
    """
    line = re.sub(r"[\s\x00-\x1f\x7f]+", " ", str(value)).strip()
    return line if len(line) <= most else f"{line[: most - most // 4 - 1]}…{line[-(most // 4) :]}"


def text(value: object, most: int = LABEL) -> str:
    """Text for plotly, which would take a part of HTML as such; what is long is cut in the middle.

    >>> text("<b>bold</b>")
    '&lt;b&gt;bold&lt;/b&gt;'
    """
    return html.escape(cut(value, most), quote=False)


def wrapped(value: object) -> str:
    """Text for the ticks of an axis: short lines, a policy's parameters on one of their own.

    >>> wrapped("uniform_balanced(replace=False)")
    'uniform_balanced<br>(replace=False)'
    """
    lines: list[str] = []
    for part in re.split(r"(?=\()| · | \+ ", cut(value, LABEL)):
        lines += textwrap.wrap(part, 22, break_on_hyphens=False)
    return "<br>".join(html.escape(line, quote=False) for line in lines)


def told_apart(labels: Sequence[str]) -> list[str]:
    """Labels that stay distinct when figures cut them: where they would not, the long ones are numbered at their end,
    which is never cut off.

    >>> one, two = "a" * 40 + "b" + "a" * 20, "a" * 40 + "c" + "a" * 20
    >>> [cut(label, LABEL)[-7:] for label in told_apart(["short", one, two])]
    ['short', 'aaa [1]', 'aaa [2]']
    """
    met = Counter(map(wrapped, labels))
    if len(met) == len(labels):
        return list(labels)
    found, number = [], 0
    for label in labels:
        alone = len(label) <= LABEL and met[wrapped(label)] == 1
        number += not alone
        found.append(label if alone else f"{label} [{number}]")
    return found


def counted(count: int, one: str, more: str) -> str:
    """A number of things.

    >>> counted(1, "run", "runs"), counted(2, "run", "runs")
    ('1 run', '2 runs')
    """
    return f"{count} {one if count == 1 else more}"
