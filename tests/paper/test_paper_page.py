"""docs/paper.md names every experiment of the paper, with commands that work."""

import re
import shlex
from pathlib import Path

import pytest

from graspcl.cli.app import app
from graspcl.cli.experiments import sweep
from graspcl.cli.options import resolve
from graspcl.report.paper import _toml, published
from graspcl.settings.grid import grid
from graspcl.settings.presets import names
from graspcl.settings.read import parse_parts
from graspcl.settings.rules import base_stages

PAGE = (Path(__file__).parents[2] / "docs" / "paper.md").read_text(encoding="utf-8")
LINES = re.findall(r"^\| `([\w-]+)` \| (.*graspcl sweep .*) \|$", PAGE, flags=re.MULTILINE)
COMMANDS = [text.strip("`") for _, text in LINES]


def test_every_line_is_one_whole_command():
    """So that nothing is left to the reader, and `test_every_command_works` sees all of it."""
    assert len(COMMANDS) == len(re.findall("graspcl sweep", PAGE)) >= 24
    for _, text in LINES:
        assert re.fullmatch("`graspcl sweep [^`]*`", text), text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works(command):
    """It is parsed, and names a preset, policies, budgets, buffers and stages that exist and can be made."""
    called, bound, _ = app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
    assert called is sweep
    what, *settings = bound.args
    given = {"seeds": "3", "updates": "1x", "rehearsal": None, "memory": "bounded", "buffer": "", **bound.kwargs}
    config = resolve(sweep, what, settings, "full", given["rehearsal"], given["memory"])
    found = grid(config, given["policies"], "", given["seeds"], given["updates"], given["buffer"])
    assert found
    for one in found:
        base_stages(one)


@pytest.mark.parametrize(
    "name", [name for name, table in published().items() if name.startswith("table") or name == "iid"]
)
def test_commands_make_all_rows_of_a_table(name):
    """With the parameters of each policy that the row asks for."""
    asked = {(row["policy"], *sorted(row.get("parameters", {}).items())) for row in published()[name]["rows"]}
    texts = [shlex.split(text.strip("`")) for which, text in LINES if which == name]
    for words in texts:
        parts = parse_parts(words[words.index("--policies") + 1])
        assert {(part.name, *sorted(part.parameters.items())) for part in parts} == asked


def test_every_table_figure_and_preset_is_named():
    for name in published():
        number = name.rpartition("-")[2]
        assert f"`{name}`" in PAGE or re.search(rf"^\| [^|]*\b{number}\w?\b", PAGE, flags=re.MULTILINE), name
    named = {shlex.split(command)[2] for command in COMMANDS} | set(re.findall(r"`([\w-]+)`", PAGE))
    assert {*_toml("paper_settings.toml")} <= named
    assert named & set(names())


def test_published_numbers_are_those_of_the_tables():
    """Each "x against y" is of GRASP and uniform balanced in one column of the table that the line names."""
    lines = re.findall(r"^\| `((?:table|iid)[\w-]*)` \|[^|]*\| ([^|]*) \|[^|]*\|[^|]*\|$", PAGE, flags=re.MULTILINE)
    checked = 0
    for name, text in lines:
        rows = published()[name]["rows"]
        values = {policy: [v for row in rows if row["policy"] == policy for v in row["values"]] for policy in
                  ("grasp", "uniform_balanced")}  # fmt: skip
        for own, other in re.findall(r"([\d.]+) against ([\d.]+)", text):
            assert (float(own), float(other)) in zip(values["grasp"], values["uniform_balanced"], strict=True)
            checked += 1
    assert checked >= 14
