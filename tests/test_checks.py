"""Constraints beside the types of parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graspcl.checks import Count, Natural, NonNegative, Positive, Range, Share, check, check_parameters, checked
from graspcl.errors import GraspError


@checked
@dataclass(frozen=True)
class Part:
    rate: Positive = 1.0
    share: Share = 0.5
    number: Count = 1
    mode: Literal["a", "b"] = "a"
    most: Count | None = None
    on: bool = False
    anything: Any = None


@checked
@dataclass(frozen=True)
class Derived(Part):
    below: Annotated[float, Range(0, 1, below=True)] = 0.0


class Plain:
    @staticmethod
    @checked
    def function(x: Any, k: Natural = 0) -> int:
        return k

    def __init__(self, size: Count, *, decay: NonNegative = 0.0) -> None:
        self.size, self.decay = size, decay


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": 0}, "^rate must be a positive number, got 0$"),
        ({"rate": float("nan")}, "^rate must be a positive number, got nan$"),
        ({"rate": "1"}, "^rate must be a positive number, got '1'$"),
        ({"share": 1.5}, r"^share must be a number in \[0, 1\], got 1.5$"),
        ({"number": 0}, "^number must be a whole number of at least 1, got 0$"),
        ({"number": 2.0}, "^number must be a whole number of at least 1, got 2.0$"),
        ({"number": True}, "^number must be a whole number of at least 1, got True$"),
        ({"mode": "c"}, "^mode must be 'a' or 'b', got 'c'$"),
        ({"most": 0}, "^most must be a whole number of at least 1 or none, got 0$"),
        ({"on": 1}, "^on must be true or false, got 1$"),
        ({"below": 1}, r"^below must be a number in \[0, 1\), got 1$"),
    ],
)
def test_what_a_parameter_cannot_be_is_refused_with_its_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GraspError, match=message):
        Derived(**given)
    with pytest.raises(GraspError, match=message):
        check_parameters(Derived, given)
    with pytest.raises(GraspError, match=message):
        replace(Derived(), **given)


def test_what_it_can_be_is_taken_as_it_is() -> None:
    part = Derived(rate=np.float32(2), number=np.int64(3), most=None, anything=object(), below=0.999)
    assert part.number == 3 and part.most is None


def test_functions_and_plain_classes_are_checked_too() -> None:
    assert Plain.function("x", 3) == 3
    with pytest.raises(GraspError, match="k must be a whole number of at least 0, got -1"):
        Plain.function("x", k=-1)
    with pytest.raises(TypeError, match="missing"):
        Plain.function()  # what is missing is Python's own error
    made = checked(Plain)
    assert made(3).size == 3
    with pytest.raises(GraspError, match="size must be"):
        made(0)
    with pytest.raises(GraspError, match=r"decay must be a number of at least 0, got -0\.5"):
        made(1, decay=-0.5)


@given(st.floats(), st.floats(0, 1), st.booleans(), st.booleans())
def test_a_range_holds_what_its_description_says(value: float, low: float, above: bool, below: bool) -> None:
    limit = Range(low, low + 1, above, below)
    inside = (value > low if above else value >= low) and (value < low + 1 if below else value <= low + 1)
    assert (value in limit) == inside
    assert str(limit) == f"in {'(' if above else '['}{low}, {low + 1}{')' if below else ']'}"


def test_a_type_that_only_type_checkers_know_is_left_alone() -> None:
    check("x", object(), "whatever")
