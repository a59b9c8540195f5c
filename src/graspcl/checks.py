"""What a parameter may be, written beside its type.

A parameter states its own constraint, as in scikit-learn's `_parameter_constraints`:

>>> from dataclasses import dataclass
>>> @checked
... @dataclass
... class Optimiser:
...     name: Literal["sgd", "adamw"] = "sgd"
...     lr: Positive = 0.1
>>> Optimiser(lr=-1)
Traceback (most recent call last):
    ...
graspcl.errors.GraspError: lr must be a positive number, got -1
>>> check_parameters(Optimiser, {"name": "adam"})
Traceback (most recent call last):
    ...
graspcl.errors.GraspError: name must be 'sgd' or 'adamw', got 'adam'

`bool`, `int`, `float`, `str`, `Literal`, and unions and tuples of them are checked as they stand; every other type is
left alone. A list passes for a tuple, since TOML has no tuples. A word beside a type, as in `Annotated[int, "auto"]`,
may stand in its place until the value is known.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from graspcl.errors import GraspError

Array = np.ndarray[Any, Any]
Made = TypeVar("Made", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Range:
    """An interval that a number must lie in; `low` and `high` belong to it unless `above` or `below` is set.

    >>> str(Range(0, 1, below=True)), str(Range(1)), str(Range(0, above=True))
    ('in [0, 1)', 'of at least 1', 'positive')
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # the number must be greater than `low`
    below: bool = False  # the number must be less than `high`

    def __contains__(self, value: float) -> bool:
        over = value > self.low if self.above else value >= self.low
        return bool(over and (value < self.high if self.below else value <= self.high))

    def __str__(self) -> str:
        if math.isinf(self.high):
            if self.above:
                return "positive" if not self.low else f"above {self.low}"
            return f"of at least {self.low}"
        return f"in {'(' if self.above else '['}{self.low}, {self.high}{')' if self.below else ']'}"


Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]  # a whole number of at least 1
Natural = Annotated[int, Range(0)]  # a whole number of at least 0
Side = Annotated[int, Range(1, 4096)]  # of the square that an image is cut and resized to, in pixels
Updates = Annotated[int, Range(0, 10**9)]  # of one session; their samples are planned in memory


def check(name: str, value: Any, kind: Any) -> None:
    """Refuse a value that is not of `kind`: a type, possibly annotated with a `Range`."""
    if isinstance(value, int) and abs(value) >= 2**63:
        raise GraspError(f"{name} must be a number below 2^63, got {shown(value)}")
    if not _fits(value, kind):
        raise GraspError(f"{name} must be {_described(kind)}, got {shown(value)}")


def is_utf8(text: str) -> bool:
    """Whether text can be stored as UTF-8. Names of files may have been any bytes, which Python keeps as surrogates.

    >>> is_utf8("é"), is_utf8("\\udcff")
    (True, False)
    """
    return text.encode(errors="ignore").decode() == text


def shown(value: Any) -> str:
    """Return a value for a message, shortened: Python itself refuses to write out a number of thousands of digits.

    >>> shown("a"), len(shown(10**400)), shown(10**5000)
    ("'a'", 101, 'a number of more than 4,000 digits')
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return "a number of more than 4,000 digits" if isinstance(value, int) else f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:100]}…"


def is_finite(value: Any) -> bool:
    """Return whether a number is finite as a float; an integer may be too large for one."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def checked(part: Made) -> Made:
    """Class or function decorator: check the annotated parameters whenever the part is called."""
    if not isinstance(part, type):
        return _checking(part, part)  # type: ignore[no-any-return]
    part.__init__ = _checking(part.__init__, part)  # type: ignore[misc]
    return part


def check_parameters(part: Callable[..., Any], parameters: Mapping[str, Any]) -> None:
    """Check values for the parameters of a class or function, without calling it."""
    kinds = _kinds(part)
    for name, value in parameters.items():
        if name in kinds:
            check(name, value, kinds[name])


def _checking(function: Any, part: Callable[..., Any]) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:  # the function itself says what is missing or too much
            given = {}
        check_parameters(part, given)
        return function(*args, **kwargs)

    return call


@functools.cache
def _kinds(part: Callable[..., Any]) -> dict[str, Any]:
    """The types of a part's parameters, as far as they exist at run time."""
    owner = next(base for base in part.__mro__ if "__init__" in vars(base)) if isinstance(part, type) else part
    if isinstance(part, type) and "__dataclass_fields__" in vars(owner):
        sources = [(vars(sys.modules[base.__module__]), inspect.get_annotations(base)) for base in part.__mro__[::-1]]
    else:
        function: Any = inspect.unwrap(part.__init__ if isinstance(part, type) else part)  # type: ignore[misc]
        sources = [(getattr(function, "__globals__", {}), getattr(function, "__annotations__", {}))]
    kinds: dict[str, Any] = {}
    for scope, annotated in sources:
        for name, kind in annotated.items():
            try:
                kinds[name] = eval(kind, dict(scope)) if isinstance(kind, str) else kind
            except Exception:  # a type that only type checkers import
                kinds.pop(name, None)
    return kinds


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        ranges = [limit for limit in inner[1:] if isinstance(limit, Range)]
        stands_in = isinstance(value, str) and value in inner[1:]
        return stands_in or (_fits(value, inner[0]) and all(value in limit for limit in ranges))
    if origin in (Union, types.UnionType):
        return any(_fits(value, choice) for choice in inner)
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in inner)
    if origin is tuple and ... not in inner:
        same_length = isinstance(value, tuple | list) and len(value) == len(inner)
        return same_length and all(map(_fits, value, inner))
    if kind is float:
        return isinstance(value, int | float | np.number) and not isinstance(value, bool) and is_finite(value)
    if kind is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    if kind in (bool, str, type(None)):
        return isinstance(value, kind)
    return True


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", type(None): "none"}


def _described(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        said = _described(inner[0])
        for limit in inner[1:]:
            said = said.replace("a ", f"a {limit} ", 1) if str(limit) == "positive" else f"{said} {_alternative(limit)}"
        return said
    if origin in (Union, types.UnionType):
        return " or ".join(_described(choice) for choice in inner)
    if origin is Literal:
        *first, last = (repr(choice) for choice in inner)
        return f"{', '.join(first)} or {last}" if first else last
    if origin is tuple:
        return f"[{', '.join(map(_described, inner))}]"
    return _WORDS.get(kind, getattr(kind, "__name__", str(kind)))


def _alternative(limit: Range | str) -> str:
    return f"or {limit!r}" if isinstance(limit, str) else str(limit)


def numbers(name: str, values: Any, dimensions: int = 1, empty: bool = True) -> Array:
    """Return `values` as a float64 array; refuse NaN, infinity, other dimensions and, unless `empty`, no entries."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GraspError(f"{name} must be an array of numbers ({error})") from error
    if array.ndim != dimensions:
        raise GraspError(f"{name} must have {dimensions} dimension{'s'[: dimensions > 1]}, got shape {array.shape}")
    if broken := int(array.size - np.isfinite(array).sum()):
        raise GraspError(f"{name} must be finite: {broken} of {array.size} numbers are NaN or infinite")
    if not (empty or array.size):
        raise GraspError(f"{name} must not be empty")
    return array


def aligned(**arrays: Any) -> list[Array]:
    """Return vectors as arrays; refuse other dimensions and different lengths."""
    found = {name: np.asarray(values) for name, values in arrays.items()}
    for name, array in found.items():
        if array.ndim != 1:
            raise GraspError(f"{name} must have 1 dimension, got shape {array.shape}")
    lengths = [len(array) for array in found.values()]
    if len(set(lengths)) > 1:
        raise GraspError(f"{' and '.join(found)} must have the same length, got {' and '.join(map(str, lengths))}")
    return list(found.values())
