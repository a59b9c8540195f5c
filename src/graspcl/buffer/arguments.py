"""What a buffer may be made with: a codec, a rule, columns, a folder, a generator and a padding."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from graspcl.buffer.columns import Columns
from graspcl.buffer.maintenance import LargestClassRule, Maintenance, rules
from graspcl.checks import shown
from graspcl.errors import GraspError

_LONGEST = 100  # characters of a column's name, which is the name of a file


def made_rule(rule: Any) -> Maintenance:
    """Return a rule, one by its name, or the default one."""
    made = LargestClassRule() if rule is None else rules.create(rule) if isinstance(rule, str) else rule
    if not isinstance(made, Maintenance):
        raise GraspError(f"maintenance must be a rule or its name (`graspcl list rules`), got {shown(rule)}")
    return made


def made_rng(rng: Any) -> np.random.Generator:
    """Return a generator, or that of a seed."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise GraspError(f"rng must be a generator or a seed of at least 0, got {shown(rng)}") from error


def made_folder(storage: Any) -> Path | None:
    """Return the folder of a buffer; None for one in memory."""
    if not isinstance(storage, str | os.PathLike) or not os.fspath(storage) or "\0" in str(storage):
        raise GraspError(f"storage must be 'ram' or the path of a folder, got {shown(storage)}")
    return None if storage == "ram" else Path(storage)


def check_parts(codec: Any, padding: Any) -> None:
    """Refuse a codec that cannot encode and decode, and a padding that is no tensor."""
    if isinstance(codec, str):
        raise GraspError(f"the buffer takes a codec, not its name: graspcl.codec.codecs.create({codec!r})")
    if codec is not None and not (hasattr(codec, "encode") and hasattr(codec, "decode")):
        raise GraspError(f"codec must be one of graspcl.codec or None, got {shown(codec)}")
    if padding is not None and not hasattr(padding, "detach"):
        raise GraspError(f"padding must be a tensor, such as network.padding, got {shown(padding)}")


def made_columns(columns: Any, taken: set[str], rule: Maintenance) -> Columns:
    """Return columns by name. Refuse `taken` names, names of no file, and columns that lack what the rule needs."""
    if not isinstance(columns, Mapping):
        raise GraspError(f"columns must be a dictionary of name: (shape, dtype), got {shown(columns)}")
    found = {name: _made_column(name, kind) for name, kind in columns.items()}
    if clash := taken & found.keys():
        raise GraspError(f"a column cannot be named {clash.pop()!r}: the buffer has its own column of that name")
    if missing := sorted(rule.columns - found.keys()):
        needed = ", ".join(f"{name!r}: (shape, np.float32)" for name in missing)
        raise GraspError(
            f"{type(rule).__name__} needs columns that the buffer lacks; add columns={{{needed}}} with "
            "shape () for a number and (d,) for a vector, or those of the rule's columns_for(embedding, features)"
        )
    return found


def _made_column(name: Any, kind: Any) -> tuple[tuple[int, ...], Any]:
    if not isinstance(name, str) or not name or len(name) > _LONGEST or name[0] == "." or set(name) & set("/\\\0"):
        wanted = f"of at most {_LONGEST} characters that can be part of a file's name"
        raise GraspError(f"a column must have a name {wanted}, got {shown(name)}")
    try:
        shape, dtype = kind
        sides, number = tuple(map(operator.index, shape)), np.dtype(dtype)
    except (TypeError, ValueError):
        sides, number = (-1,), np.dtype(object)
    if min(sides, default=0) < 0 or number.hasobject:
        raise GraspError(
            f"column {name!r} must be given as (shape, dtype), such as ((), np.float32), got {shown(kind)}"
        )
    return sides, dtype


def check_folder(folder: Path, ragged: bool) -> None:
    """Refuse a folder that cannot store the columns of a new buffer."""
    if ragged:
        raise GraspError("the codec has codes of different lengths, which cannot be mapped: use storage='ram'")
    if any(folder.glob("*.npy")):
        hint = f"give the buffer an empty folder, or reopen this one with Buffer.open({str(folder)!r})"
        raise GraspError(f"{folder} already holds arrays; {hint}")


class Closed:
    """Replaces the parts of a buffer that was closed: any use of them is an error."""

    def __init__(self, folder: Path) -> None:
        vars(self)["folder"] = folder

    def _refuse(self, *_: Any) -> NoReturn:
        raise GraspError(f"this buffer was closed; reopen it with Buffer.open({str(vars(self)['folder'])!r})")

    __getitem__ = __setitem__ = __contains__ = __iter__ = __len__ = __getattr__ = _refuse
