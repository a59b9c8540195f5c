"""Class orders: random, by name, the order of the paper's ImageNet runs, or from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError, nearest
from graspcl.files import read_regular
from graspcl.stream.kinds import in_order


def class_order(order: str | Path | Sequence[int] | Array, classes: Sequence[str], rng: np.random.Generator) -> Array:
    """Return the class numbers [K] in the order in which a stream presents them; class k is called `classes[k]`.

    Args:
        order: "random" (drawn from `rng`), "sorted" (by name), "imagenet" (`imagenet_order`, for classes named by
            their wnids), the path of a text file with one class name per line, or the numbers themselves.
        classes: names of all classes.
        rng: generator for "random".

    >>> class_order("sorted", ["wolf", "ant", "cat"], np.random.default_rng(0))
    array([1, 2, 0])
    """
    if not isinstance(order, str | Path):
        return in_order(np.arange(len(classes)), order)
    if order == "random":
        return rng.permutation(len(classes))
    if order == "sorted":
        return np.array(sorted(range(len(classes)), key=classes.__getitem__), np.int64)
    for name, times in Counter(classes).most_common(1):
        if times > 1:
            raise GraspError(f"two classes are called {name!r}, so names cannot define their order")
    number = {name: position for position, name in enumerate(classes)}
    names = _in_imagenet_order(number) if order == "imagenet" else _in_order_of_file(Path(order), number)
    return np.array([number[name] for name in names], np.int64)


def imagenet_order() -> list[str]:
    """Return the 1,000 wnids of ImageNet-1K in the order of the paper's runs; the first 100 are the base classes.

    >>> order = imagenet_order(); len(order), order[0]
    (1000, 'n09332890')
    """
    return (resources.files("graspcl.stream") / "imagenet_order.txt").read_text(encoding="ascii").split()


def _in_imagenet_order(classes: Collection[str]) -> list[str]:
    order = imagenet_order()
    if others := sorted(set(classes) - set(order)):
        raise GraspError(
            f"the class order 'imagenet' needs classes named by wnids of ImageNet-1K, such as {order[0]}; "
            f"{len(others)} of these {len(classes)} are not, for example {others[0]!r}; "
            f"set --stream.order random, or sorted"
        )
    return [wnid for wnid in order if wnid in classes]


def _in_order_of_file(path: Path, classes: Collection[str]) -> list[str]:
    try:
        lines = read_regular(path).decode("utf-8-sig").splitlines()
    except FileNotFoundError as error:
        hint = nearest(str(path), ("random", "sorted", "imagenet"))
        raise GraspError(f"there is no class order called {str(path)!r}, and no file of that name; {hint}") from error
    except OSError as error:
        raise GraspError(f"the class order in {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise GraspError(f"{path} must be a UTF-8 text file with one class name per line") from error
    seen: dict[str, int] = {}
    for line, name in enumerate(map(str.strip, lines), start=1):
        if name in seen:
            raise GraspError(f"line {line} of {path}: class {name!r} is already in line {seen[name]}")
        if name and name not in classes:
            hint = nearest(name, classes)
            hint = f"; {hint}" if hint.startswith("did") else ""  # listing a thousand names would not help
            raise GraspError(f"line {line} of {path}: there is no class {name!r}{hint}")
        if name:
            seen[name] = line
    if missing := [name for name in classes if name not in seen]:
        raise GraspError(
            f"the class order in {path} must name each of the {len(classes)} classes once; "
            f"{len(missing)} are missing, for example {missing[0]!r}"
        )
    return list(seen)
