"""Class orders: random, by name, the order of the paper's ImageNet runs, or from a file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError, nearest
from graspcl.stream.kinds import in_order

ORDERS = ("random", "sorted", "imagenet")


def class_order(order: str | Path | Sequence[int] | Array, classes: Sequence[str], rng: np.random.Generator) -> Array:
    """Return the class numbers [K] in the order in which a stream presents them; class k is called `classes[k]`.

    Args:
        order: "random" (drawn from `rng`), "sorted" (by name), "imagenet" (`imagenet_order`, for classes named by
            their wnids), the path of a text file with one class name per line, or the numbers themselves.
        classes: names of all classes.
        rng: generator for "random".

    >>> class_order("sorted", ["wolf", "ant", "cat"], np.random.default_rng(0))
    array([1, 2, 0])
    >>> class_order("imagenet", ["n02134084", "n09332890"], np.random.default_rng(0))
    array([1, 0])
    """
    if not isinstance(order, str | Path):
        return in_order(np.arange(len(classes)), order)
    if order == "random":
        return rng.permutation(len(classes))
    if order == "sorted":
        return np.array(sorted(range(len(classes)), key=classes.__getitem__), np.int64)
    if order == "imagenet":
        return _imagenet(classes)
    return _from_file(Path(order), classes)


def imagenet_order() -> list[str]:
    """Return the 1,000 wnids of ImageNet-1K in the order of the paper's runs; the first 100 are the base classes.

    >>> order = imagenet_order(); len(order), order[0]
    (1000, 'n09332890')
    """
    return (resources.files("graspcl.stream") / "imagenet_order.txt").read_text(encoding="ascii").split()


def _imagenet(classes: Sequence[str]) -> Array:
    number = _numbers(classes)
    order = imagenet_order()
    others = sorted(number.keys() - set(order))
    if others:
        raise GraspError(
            f"the class order 'imagenet' needs classes named by wnids of ImageNet-1K, such as {order[0]}; "
            f"{len(others)} of these {len(classes)} are not, for example {others[0]!r}"
        )
    return np.array([number[wnid] for wnid in order if wnid in number], np.int64)


def _from_file(path: Path, classes: Sequence[str]) -> Array:
    number = _numbers(classes)
    seen: dict[str, int] = {}
    for line, text in enumerate(_lines(path), start=1):
        name = text.strip()
        if not name:
            continue
        if name not in number:
            raise GraspError(f"line {line} of {path}: there is no class {name!r}{_hint(name, classes)}")
        if name in seen:
            raise GraspError(f"line {line} of {path}: class {name!r} is already in line {seen[name]}")
        seen[name] = line
    missing = [name for name in classes if name not in seen]
    if missing:
        raise GraspError(
            f"the class order in {path} must name each of the {len(classes)} classes once; "
            f"{len(missing)} are missing, for example {missing[0]!r}"
        )
    return np.array([number[name] for name in seen], np.int64)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise GraspError(
            f"there is no class order called {str(path)!r}, and no file of that name; {nearest(str(path), ORDERS)}"
        ) from error
    except OSError as error:
        raise GraspError(f"the class order in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise GraspError(f"{path} must be a UTF-8 text file with one class name per line") from error


def _numbers(classes: Sequence[str]) -> dict[str, int]:
    number = {name: position for position, name in enumerate(classes)}
    if len(number) < len(classes):
        twice = next(name for position, name in enumerate(classes) if number[name] != position)
        raise GraspError(f"two classes are called {twice!r}, so names cannot define their order")
    return number


def _hint(name: str, classes: Sequence[str]) -> str:
    hint = nearest(name, classes)
    return f"; {hint}" if hint.startswith("did you mean") else ""  # listing a thousand names would not help
