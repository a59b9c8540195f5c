"""Every preset of the paper has the paper's settings, and every setting has the words of the paper that name it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from graspcl.report.paper import _toml, paper_settings
from graspcl.report.read import flatten
from graspcl.settings import preset
from graspcl.settings.config import as_plain
from graspcl.settings.presets import about, names
from graspcl.settings.rules import registries

SHARED = Path(__file__).parents[2].parent / "shared"
PAPER, FACTS = SHARED / "paper" / "grasp.tex", SHARED / "spec" / "reference-facts.md"
EXPERIMENTS = _toml("paper_settings.toml")
BOTH = ("imagenet-1k", "derpp-imagenet-1k", "gdumb-imagenet-1k", "imagenet-300")  # with latents and with images
VARIANTS = [
    (name, rehearsal, memory)
    for name in EXPERIMENTS
    for rehearsal in (("latent", "veridical") if name in BOTH else ("veridical" if "text" in name else "latent",))
    for memory in ("bounded", "unbounded")
]


def settings_of(name, rehearsal, memory):
    """The settings of a preset by dotted names, as texts; defaults of its learner and network where it names none."""
    config = preset(name, rehearsal=rehearsal, memory=memory)
    plain = as_plain(config)
    stages = {one["name"]: one for one in plain["base"].pop("stages", [])}
    parts = registries()
    defaults = {
        group: {key: value for key, value in parts[kind].parameters(plain[group]["name"]).items() if value is not None}
        for group, kind in (("learner", "learners"), ("network", "networks"))
    }
    return {**flatten(defaults), **flatten({**plain, "base": {**plain["base"], "stages": stages}})}


@pytest.mark.parametrize(("name", "rehearsal", "memory"), VARIANTS)
def test_a_preset_has_the_papers_settings(name, rehearsal, memory):
    wanted = {key: item for key, item in paper_settings(name, rehearsal, memory).items() if key != "test.samples"}
    own = settings_of(name, rehearsal, memory)
    expected = {key: "".join(flatten({"": item["is"]}).values()) for key, item in wanted.items()}
    assert {key: own.get(key, "none") for key in wanted} == expected
    assert preset(name, rehearsal=rehearsal).rehearsal == rehearsal


def test_every_experiment_of_the_paper_is_there():
    assert {name for name in names() if about(name)["paper"] != "–"} == set(EXPERIMENTS)
    assert {"groceries", "listings"} <= set(names()) - set(EXPERIMENTS)


@pytest.mark.parametrize(("name", "rehearsal"), {one[:2]: None for one in VARIANTS})
def test_memory_changes_the_buffer_alone(name, rehearsal):
    config, unbounded = (preset(name, rehearsal=rehearsal, memory=memory) for memory in ("bounded", "unbounded"))
    assert unbounded.buffer.capacity is None and unbounded.buffer.new_samples is None
    assert unbounded == replace(config, name=unbounded.name, buffer=unbounded.buffer)


def items():
    for name, section in EXPERIMENTS.items():
        for key, item in section.items():
            if isinstance(item, dict):
                yield from [(name, key, item)] if "is" in item else [(name, *one) for one in item.items()]


def test_every_setting_has_one_source():
    for name, key, item in items():
        assert sum(source in item for source in ("paper", "reference", "ours")) == 1, f"{name}: {key}"
        assert item.keys() <= {"is", "default", "paper", "reference", "ours"}


def plain(text):
    """LaTeX and Markdown as words: without comments, citations, commands and marks."""
    text = re.sub(r"(?<!\\)%.*", "", text)
    text = re.sub(r"~?\\cite[pt]?\s*\{[^}]*\}|~?\\ref\{[^}]*\}", "", text)
    text = (
        re.sub(r"\^\{([^}]*)\}", r"^\1", text).replace(r"\times", "×").replace(r"\rightarrow", "→").replace(r"\%", "%")
    )
    text = re.sub(r"\\[a-zA-Z]+|[${}~\\`*]", " ", text)
    return re.sub(r"\s+", " ", re.sub(r"\s+(?=[.,;)])|(?<=\()\s+", "", text)).replace(" ×", "×")


@pytest.mark.skipif(not PAPER.exists(), reason="needs ../shared/paper/grasp.tex")
def test_the_words_are_those_of_the_sources():
    said = {"paper": plain(PAPER.read_text(encoding="utf-8")), "reference": plain(FACTS.read_text(encoding="utf-8"))}
    missing = [
        f"{name}: {key}: {words}"
        for name, key, item in items()
        for source, text in said.items()
        if (words := item.get(source)) is not None and plain(words.replace("%", r"\%")).strip() not in text
    ]
    assert missing == []
