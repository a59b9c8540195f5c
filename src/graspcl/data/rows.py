"""What a row of a text and a label must be, and what is told of one that is not."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from graspcl.errors import GraspError

LONG = 20_000  # characters from which on a text is told of
TWICE = object()  # the value of a column that a row has twice


@dataclass
class Rows:
    """Texts and their labels, and by row what was left out (or is odd: a very long text is kept, but told of).

    >>> rows = Rows("news.csv")
    >>> rows.add(2, "Rates fall.", "Business")
    >>> rows.add(3, " ", "Sports")
    >>> rows.texts, rows.labels, rows.problems
    (['Rates fall.'], ['Business'], ['news.csv row 3: empty text'])
    """

    where: str
    texts: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, number: int, text: object, label: object) -> None:
        """Take a row if it is sound; else report it."""
        try:
            sound = _text(text), _label(label)
        except _Unfit as reason:
            self.report(number, str(reason))
            return
        self.texts.append(sound[0])
        self.labels.append(sound[1])
        if (length := len(sound[0])) > LONG:
            self.report(number, f"{length:,} characters; kept, but a transformer reads only its first tokens")

    def report(self, number: int, what: str) -> None:
        """Tell what is wrong with a row, or odd."""
        self.problems.append(f"{self.where} row {number}: {what}")

    def checked(self) -> Rows:
        """These rows, or an error if there are none."""
        if not self.texts:
            reason = f"; {len(self.problems)} are bad, the first: {self.problems[0]}" if self.problems else ""
            raise GraspError(f"{self.where} has no rows that can be used{reason}")
        return self


def check_columns(where: str, columns: Sequence[str], text: str, label: str) -> None:
    """Refuse a table without a column `text` or `label`, or with two of them.

    >>> check_columns("news.csv", ["texts", "label"], "text", "label")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: news.csv has no column 'text'; its columns are texts, label; did you mean 'texts'? Say \
which to take: --data.text NAME (in Python: text=)
    """
    if text == label:
        raise GraspError(f"{where}: text and label must be two columns, not both {text!r}")
    wanted = {"text": text, "label": label}
    if missing := {role: name for role, name in wanted.items() if name not in columns}:
        # Names may be in any encoding, but an error must always be printable.
        shown = [column.encode(errors="backslashreplace").decode() for column in columns]
        near = [close for name in missing.values() if (close := _near(name, shown))]
        hint = f"; did you mean {' and '.join(map(repr, near))}? Say" if near else "; say"
        raise GraspError(
            f"{where} has no column {' and none '.join(map(repr, missing.values()))}; its columns are "
            f"{', '.join(shown)}{hint} which to take: {' '.join(f'--data.{role} NAME' for role in missing)} "
            f"(in Python: {', '.join(f'{role}=' for role in missing)})"
        )
    for name in wanted.values():
        if (number := list(columns).count(name)) > 1:
            raise GraspError(f"{where} has {number} columns called {name!r}; rename or remove all but one")


def _near(name: str, columns: Sequence[str]) -> str | None:
    """The column that is spelled almost so. A likeness as of 'text' and 'intent' is none."""
    folded = {column.casefold(): column for column in columns}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.75)
    return folded[close[0]] if close else None


class _Unfit(Exception):
    """Why a row cannot be used."""


def _text(value: object) -> str:
    if value is None:
        raise _Unfit("no text")
    text = _decoded(value, "text")
    if not isinstance(text, str):
        raise _Unfit(f"text is {reprlib.repr(text)}, not a string")
    if not text or text.isspace():
        raise _Unfit("empty text")
    return text


def _label(value: object) -> str:
    """A label as the name of a class: text without spaces around it, a whole number, or true or false."""
    label = _decoded(value, "label")
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        label = int(label)  # what pandas makes of whole numbers in a column with gaps
    if isinstance(label, int):
        return str(label)
    if (
        label is None
        or (isinstance(label, float) and math.isnan(label))
        or (isinstance(label, str) and not label.strip())
    ):
        raise _Unfit("no label")
    if not isinstance(label, str):
        raise _Unfit(f"label is {reprlib.repr(label)}, neither text nor a whole number")
    return label.strip()


def _decoded(value: object, what: str) -> object:
    if value is TWICE:
        raise _Unfit(f"it has a {what} twice")
    try:
        if isinstance(value, str):
            value.encode()  # a lone surrogate fails, be it from bad bytes or written out in JSON
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeError:
        raise _Unfit(f"{what} is not UTF-8") from None
