"""The comparison of a workspace with other ways to stay current, on a table of made-up texts."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import rows, table

from graspcl import GraspError
from graspcl.bench import run_benches
from graspcl.bench.workspace import Result, _adaptive, run
from graspcl.data import Subset
from graspcl.progress import Silent
from graspcl.workspace.arriving import open_labelled
from graspcl.workspace.making import choose_settings


class Steps(Silent):
    """Progress that remembers the titles of its steps."""

    def __init__(self):
        self.titles = []

    def task(self, title, total):
        self.titles.append(title)
        return super().task(title, total)


def test_all_ways_are_compared_in_one_run(tmp_path):
    data = table(tmp_path / "texts.csv", rows("fruit", "tool", "animal", "car", "music", end=20))
    steps = Steps()
    found = list(run(str(data), first=3, weeks=2, backbone="vector", progress=steps))
    assert {"reading week 0 for others", "training offline", "training probe", "training finetune"} <= set(steps.titles)
    assert [one.name.split()[0] for one in found] == ["workspace", "retraining", "probe", "fine-tuning"]
    assert found[0].accuracy > 90 and (found[0].points, found[0].time) == (0.0, 1.0)
    for one in found[1:]:
        assert one.points == found[0].accuracy - one.accuracy and one.time == found[0].seconds / one.seconds
    assert found[3].accuracy < 60  # without rehearsal only the last week is known


def test_the_number_of_classes_must_fit(tmp_path):
    data = table(tmp_path / "texts.csv", rows("fruit", "tool", "animal", end=6))
    with pytest.raises(GraspError, match="--first 2: texts has 3 classes, for 4 weeks and at least 2 before"):
        next(run(str(data), first=2, backbone="vector"))


def test_a_missed_bar_is_shown():
    found = Result("probe", 80.0, 2.0, -0.5, 0.5, {"at least 1 point ahead": False, "faster": True})
    assert found.line().endswith("| at least 1 point ahead: MISSED; faster: met |") and not found.ok


def test_the_adaptive_classifier_learns_week_by_week(tmp_path, monkeypatch):
    """The package is made up: it knows the texts of the last week alone."""

    class AdaptiveClassifier:
        def __init__(self, encoder, device):
            assert encoder == "the encoder" and device == "cpu"

        def add_examples(self, texts, labels):
            self.known = dict(zip(texts, labels, strict=True))

        def predict_batch(self, texts, k):
            kinds = {word: label for text, label in self.known.items() for word in text.split()}
            return [[(kinds[text.split()[0]], 1.0)] if text.split()[0] in kinds else [] for text in texts]

    package = SimpleNamespace(AdaptiveClassifier=AdaptiveClassifier)
    monkeypatch.setitem(sys.modules, "adaptive_classifier", package)
    monkeypatch.setattr("graspcl.bench.workspace.encoder_source", lambda model: "the encoder")
    data = table(tmp_path / "texts.csv", rows("fruit", "tool", "animal", "car", end=30))
    config = choose_settings(str(data), "vector", "1MB", None, 0, Silent())
    samples = Subset(open_labelled(config, str(data)), test_per_class=2, rng=np.random.default_rng(0))
    weeks = [samples.train[np.isin(samples.labels[samples.train], part)] for part in ([0, 1], [2, 3])]
    assert _adaptive(config, samples, weeks)[0] == 50.0


def test_options_belong_to_their_bench():
    with pytest.raises(GraspError, match="--first: only `graspcl bench workspace` has this option"):
        run_benches("network", first=3)
    with pytest.raises(GraspError, match="set --data PATH"):
        run_benches("workspace")
