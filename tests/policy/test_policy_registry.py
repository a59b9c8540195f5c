"""Policies by name, and policies of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from graspcl.errors import GraspError
from graspcl.policy import policies
from graspcl.registry import load_plugin
from graspcl.testing.policies import check_policy

PLUGIN = '''
from dataclasses import dataclass
import numpy as np
from graspcl.policy import PlannedPolicy, policies

@policies.register("shuffle_my_way", "my_way")
@dataclass
class Mine(PlannedPolicy):
    """All samples in random order, again and again."""
    start: int = 0

    def plan(self, session):
        samples = session.budget.samples
        passes = -(-samples // len(session)) + self.start
        return np.concatenate([session.rng.permutation(len(session)) for _ in range(passes)])[:samples]
'''


@pytest.fixture(autouse=True)
def registry_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    policies.names()
    monkeypatch.setattr(policies, "_parts", dict(policies._parts))
    monkeypatch.setattr(policies, "_aliases", dict(policies._aliases))
    yield


def test_the_built_in_policies_are_known() -> None:
    assert {"grasp", "uniform", "uniform_balanced", "mof", "hard_biased"} <= set(policies.names())
    assert policies.names("uniform*") == ["uniform", "uniform_balanced"]
    assert policies.get("easy_biased") is policies.get("mof")


@pytest.mark.parametrize(("typed", "meant"), [("graps", "grasp"), ("easy_biassed", "easy_biased")])
def test_an_unknown_name_suggests_the_nearest(typed: str, meant: str) -> None:
    with pytest.raises(GraspError, match=f"no policy called '{typed}'; did you mean '{meant}'"):
        policies.create(typed)


def test_an_unknown_parameter_suggests_the_nearest() -> None:
    with pytest.raises(
        GraspError, match="policy 'uniform_balanced' has no parameter 'replaces'; did you mean 'replace'"
    ):
        policies.create("uniform_balanced", replaces=False)
    with pytest.raises(GraspError, match="'uniform' has no parameter 'eps'; it takes none"):
        policies.create("uniform", eps=1.0)


def test_a_plugin_file_brings_a_policy_that_keeps_the_contract(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    load_plugin(file)
    assert "shuffle_my_way" in policies.names()
    mine = policies.create("my_way", start=1)
    assert mine.name == "shuffle_my_way" and mine.parameters() == {"start": 1}
    check_policy(mine)
    load_plugin(file)  # twice is no clash


def test_a_plugin_that_fails_is_told(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text("1 / 0")
    with pytest.raises(GraspError, match=r"bad\.py could not be loaded: ZeroDivisionError: division by zero"):
        load_plugin(file)


def test_a_plugin_cannot_take_a_known_name(tmp_path: Path) -> None:
    file = tmp_path / "thief.py"
    file.write_text(PLUGIN.replace("shuffle_my_way", "grasp"))
    with pytest.raises(GraspError, match="both register the policy 'grasp'"):
        load_plugin(file)


def test_every_policy_says_what_it_costs_and_where_it_is_from() -> None:
    for name in policies.names():
        part = policies.get(name)
        assert part.cost != "not stated" and part.source != "not stated" and part.__doc__


def test_every_built_in_policy_says_in_one_line_what_it_follows() -> None:
    built_in = [part for part in map(policies.get, policies.names()) if part.__module__.startswith("graspcl.policy.")]
    assert len(built_in) >= 18
    for part in built_in:
        said = [line for line in (inspect.getdoc(part) or "").splitlines() if line.startswith("Follows: ")]
        assert len(said) == 1 and said[0].endswith("."), part.name
        assert "paper" in said[0] or "program" in said[0], part.name
