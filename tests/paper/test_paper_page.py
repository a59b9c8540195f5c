"""docs/paper.md names every experiment of the paper, with commands that work."""

import re
import shlex
from pathlib import Path

import pytest

from graspcl.report.paper import _toml, published
from graspcl.settings import preset
from graspcl.settings.grid import grid
from graspcl.settings.presets import names

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`(graspcl sweep [^`]*)`", PAGE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works(command):
    """It is parsed, and names a preset, policies, budgets and buffers that exist."""
    from graspcl.cli.app import app

    called, *_ = app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
    assert called.__name__ == "sweep"
    words = dict(zip(shlex.split(command)[3::2], shlex.split(command)[4::2], strict=True))
    config = preset(shlex.split(command)[2], rehearsal=words.get("--rehearsal"))
    given = {"seeds": words.get("--seeds", "1"), "updates": words.get("--updates", "1x")}
    assert grid(config, words["--policies"], buffers=words.get("--buffer", ""), **given)


def test_every_table_figure_and_preset_is_named():
    for name in published():
        number = name.rpartition("-")[2]
        assert f"`{name}`" in PAGE or re.search(rf"^\| [^|]*\b{number}\w?\b", PAGE, flags=re.MULTILINE), name
    named = {shlex.split(command)[2] for command in COMMANDS} | set(re.findall(r"`([\w-]+)`", PAGE))
    missing = {name for name in _toml("paper_settings.toml") if name not in named}
    assert missing <= {f"text-order-{number}" for number in (3, 4, 5)}  # "text-order-2 to text-order-6"
    assert named & set(names())


def test_published_numbers_are_those_of_the_tables():
    """Each "x against y" is of GRASP and uniform balanced in one column of the table that the line names."""
    lines = re.findall(r"^\| `((?:table|iid)[\w-]*)` \|[^|]*\| ([^|]*) \|[^|]*\|$", PAGE, flags=re.MULTILINE)
    checked = 0
    for name, text in lines:
        rows = published()[name]["rows"]
        values = {policy: [v for row in rows if row["policy"] == policy for v in row["values"]] for policy in
                  ("grasp", "uniform_balanced")}  # fmt: skip
        for own, other in re.findall(r"([\d.]+) against ([\d.]+)", text):
            assert (float(own), float(other)) in zip(values["grasp"], values["uniform_balanced"], strict=True)
            checked += 1
    assert checked >= 14
