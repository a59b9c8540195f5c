"""What the README shows is run as it stands."""

import re
from pathlib import Path

import pytest
import torch

from graspcl import load_plugin, policies
from graspcl.policy import Policy
from graspcl.testing import check_policy

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_ten_lines_learn_and_do_not_forget():
    noise = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(8, 16, generator=noise)
    labels = [torch.randint(first, first + 2, (200,), generator=noise) for first in (0, 2, 4, 6)]
    stream = [(centres[y] + torch.randn(200, 16, generator=noise), y) for y in labels]
    layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)]
    for layer in layers[::2]:
        torch.nn.init.normal_(layer.weight, std=0.2, generator=noise)
    names = {"model": torch.nn.Sequential(*layers), "stream": stream}
    exec(BLOCKS[0], names)
    x, y = torch.cat([x for x, _ in stream]), torch.cat(labels)
    accuracy = (names["model"](x).argmax(1) == y).float()
    assert accuracy.mean() > 0.9
    assert accuracy[:200].mean() > 0.85  # the first week's classes, three weeks later
    assert len(names["buffer"]) == 800


def test_the_loop_is_about_ten_lines():
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 12


@pytest.fixture
def middle_first() -> type[Policy]:
    load_plugin(ROOT / "examples" / "middle_first.py")
    yield policies.get("middle_first")
    policies._parts.pop("middle_first")


def test_the_example_policy_passes_the_contract(middle_first):
    assert BLOCKS[1].rstrip() == (ROOT / "examples" / "middle_first.py").read_text(encoding="utf-8").rstrip()
    assert len(BLOCKS[1].splitlines()) <= 40
    check_policy(middle_first())
    assert "middle_first" in policies.names()


def test_a_learner_learns_from_image_files(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs pillow")
    colours = ["red", "lime", "blue"]
    paths = [tmp_path / f"{number}.png" for number in range(30)]
    for number, path in enumerate(paths):
        image.new("RGB", (64, 64), colours[number % 3]).save(path)
    names = {"paths": paths, "labels": [number % 3 for number in range(30)]}
    exec(BLOCKS[2].replace("updates=100", "updates=10"), names)
    assert names["learner"].predict(paths).tolist() == names["labels"]


def test_commands_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").rstrip().endswith("make test")


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
