"""Rows of tables as their readers yield them, and the columns that are looked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from graspcl.errors import GraspError
from graspcl.limits import limit, variable

Wanted = Sequence[tuple[str, str]]  # columns to read, each with the option that sets it: ("--data.text", "text")
_SHOWN = 200  # columns that a message names, and characters of each


class Record(NamedTuple):
    """The wanted values of a row, or what is wrong with it."""

    row: int
    values: tuple[Any, ...] = ()
    fault: str = ""
    reread: bool = False  # whether the row was read again after an open quote


def wanted_columns(text: str | Sequence[str], label: str) -> Wanted:
    """Return the columns to read, each with the option that sets it."""
    return [*(("--data.text", name) for name in ([text] if isinstance(text, str) else text)), ("--data.label", label)]


def check_columns(where: str, columns: Sequence[str], wanted: Wanted) -> None:
    """Refuse a table that lacks a wanted column, or has it twice."""
    names = [name for _, name in wanted]
    if len(set(names)) < len(names):
        raise GraspError(f"{where}: text and label must be two different columns, got {names[0]!r} for both")
    if missing := {option: name for option, name in wanted if name not in columns}:
        # Names may have any encoding, but an error must always be printable.
        shown = [column[:_SHOWN].encode(errors="backslashreplace").decode() for column in columns[:_SHOWN]]
        more = f" and {len(columns) - _SHOWN:,} more" if len(columns) > _SHOWN else ""
        folded = {column.casefold(): column for column in shown}
        # The cutoff keeps 'text' and 'intent' apart.
        close = [get_close_matches(name.casefold(), folded, n=1, cutoff=0.75) for name in missing.values()]
        near = " and ".join(repr(folded[found[0]]) for found in close if found)
        hint = f"did you mean {near}? Choose" if near else "choose"
        options = " ".join(f"{option} NAME" for option in missing)
        arguments = ", ".join(f"{re.split('[.-]', option)[-1]}=" for option in missing)
        raise GraspError(
            f"{where} has no column {' and no column '.join(map(repr, missing.values()))}; "
            f"its columns are {', '.join(shown)}{more}; {hint} a column with {options} (in Python: {arguments})"
        )
    for name in names:
        if (number := list(columns).count(name)) > 1:
            raise GraspError(f"{where} has {number} columns called {name!r}; rename or remove all but one")


def too_long() -> str:
    """Return why a row is left out that is longer than `graspcl.limits` allows."""
    return f"more than {limit('row'):,} characters (set {variable('row')} to read it)"
