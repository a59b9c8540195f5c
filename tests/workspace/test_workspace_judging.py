"""Which samples are held out, when a class falls, how predictions are calibrated and when training ends."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from graspcl.errors import GraspError
from graspcl.progress import Silent
from graspcl.workspace.calibration import Calibration, auroc, calibrate, calibration_error, left_out_auroc, novelty
from graspcl.workspace.evaluation import evaluate
from graspcl.workspace.judging import Change, Tally, changes, fallen, hold_out
from graspcl.workspace.overview import RECENT, drift_of, recent_scores, remember_scores
from graspcl.workspace.training import Effort, parse_seconds, train


@pytest.mark.parametrize(("number", "held"), [(4, 0), (5, 1), (14, 1), (16, 2), (100, 10), (600, 50)])
def test_a_tenth_of_a_class_is_held_out(number, held):
    ids = np.random.default_rng(0).permutation(number)
    mask = hold_out(ids, np.zeros(number, int), {}, {})
    assert mask.sum() == held and set(ids[mask]) == set(range(held))  # those with the smallest ids


def test_what_was_held_out_before_counts():
    ids, labels = np.arange(20), np.repeat([0, 1], 10)
    mask = hold_out(ids, labels, seen={0: 90, 1: 0}, held={0: 9})
    assert np.flatnonzero(mask).tolist() == [0, 10]


def change(lost, gained, number=20, right=15):
    return Change(Tally(right, number), Tally(right - lost + gained, number), lost, gained)


def test_the_chance_of_a_fall_is_exact():
    assert change(lost=3, gained=0).chance == 1 / 8
    assert change(lost=2, gained=1).chance == 4 / 8
    assert change(lost=0, gained=0).chance == 1


def test_a_fall_must_be_large_and_beyond_chance():
    assert fallen({0: change(8, 0)}) == [0]
    assert fallen({0: change(4, 0)}) == []  # 20 points, p = 1/16
    assert fallen({0: change(8, 0)}, tolerance=40) == []
    assert fallen({0: change(10, 6)}) == []


def test_many_classes_that_change_a_little_do_not_hide_one_that_falls():
    assert fallen({**{label: change(1, 1) for label in range(200)}, 200: change(9, 0)}) == [200]


def test_many_tests_are_corrected_for():
    """Among 100 classes, seven samples lost and one gained in one of them is chance (p = 0.035)."""
    found = {label: change(7, 7) for label in range(99)}
    assert fallen({**found, 99: change(7, 1)}) == []
    assert fallen({99: change(7, 1)}) == [99]


def test_changes_by_class():
    before, after = np.array([True, True, False, True]), np.array([True, False, True, True])
    found = changes(before, after, np.array([5, 5, 8, 8]))
    assert (found[5].lost, found[5].gained, found[5].points) == (1, 0, -50.0)
    assert (found[8].lost, found[8].gained, found[8].points) == (0, 1, 50.0)


def overconfident(number=400, classes=4):
    """Logits that are three times too large, and their true classes."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(number, classes)) * 2)
    chosen = [rng.choice(classes, p=row) for row in logits.softmax(1).numpy()]
    return 3 * logits, torch.tensor(chosen)


def test_the_temperature_undoes_what_is_too_certain():
    logits, targets = overconfident()
    found = calibrate(logits, targets)
    assert found.temperature == pytest.approx(3, rel=0.15)

    def error(calibration):
        probabilities = calibration.probabilities(logits)
        return calibration_error(probabilities.max(1), probabilities.argmax(1) == targets.numpy())

    assert error(found) < error(Calibration()) / 3


def test_the_threshold_calls_a_twentieth_of_held_out_samples_unknown():
    logits, targets = overconfident()
    found = calibrate(logits, targets)
    assert found.unknown(logits).mean() == pytest.approx(0.05, abs=0.001)
    assert found.unknown(torch.full((1, 4), -50.0)).all()


def test_no_probability_is_one_because_all_held_out_samples_are_right():
    targets = torch.arange(60) % 3
    logits = 4.0 * torch.nn.functional.one_hot(targets, 3) + torch.linspace(-1, 1, 60)[:, None] * torch.eye(3)[targets]
    found = calibrate(logits, targets)
    assert found.temperature > 0.3 and found.probabilities(logits).max() < 1 - 1e-5


def test_too_few_samples_calibrate_nothing():
    logits, targets = overconfident(number=19)
    found = calibrate(logits, targets)
    assert (found.temperature, found.threshold, found.auroc) == (1.0, float("-inf"), None)
    assert not found.unknown(torch.full((1, 4), -50.0)).any() and not found.marks


def test_a_calibration_is_plain_json_and_back():
    for found in (Calibration(), calibrate(*overconfident())):
        assert Calibration.from_plain(found.as_plain()) == found


def test_auroc():
    assert auroc(np.array([1.0, 1.0]), np.array([1.0])) == 0.5
    assert auroc(np.array([3.0]), np.array([1.0, 2.0])) == 1.0
    assert left_out_auroc(torch.zeros(2, 2), torch.tensor([0, 1])) is None  # one class would be left


def test_a_class_left_out_is_scored_as_if_the_head_had_never_known_it():
    """A sample of class 0 looks much like class 1. Its score is low only while class 0 takes part in the mean."""
    logits, targets = torch.tensor([[6.0, 0.0, -6.0], [-1.0, 2.0, -1.0]]), torch.tensor([0, 1])
    assert left_out_auroc(logits, targets) == 0.5  # of class 0 left out 0, of class 1 left out 1


def test_the_auroc_of_new_classes_needs_samples_of_both():
    known, new = 3 * torch.eye(4).repeat(5, 1), torch.zeros(20, 4)
    assert novelty(known, new) == 1.0 and novelty(new, known) == 0.0
    assert novelty(known[:19], new) is None and novelty(known, new[:19]) is None


def test_drift_needs_samples_and_a_difference():
    known = Calibration(scores=np.linspace(0, 1, 100).tolist(), threshold=0.05, samples=100)
    assert drift_of([0.5] * 29, known) is None
    assert not drift_of(np.linspace(0, 1, 50).tolist(), known).found
    moved = drift_of(np.linspace(-1, 0, 50).tolist(), known)
    assert moved.found and moved.unknown == 1.0


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"scores": 3}',
        b'{"scores": [NaN, "a", null]}',
        b"\xff" * 100,
        b'{"version": 3, "scores": [%s, true]}' % (b"9" * 400),
    ],
)
def test_recent_scores_that_cannot_be_used_are_none(content, tmp_path):
    (tmp_path / RECENT).write_bytes(content)
    assert recent_scores(tmp_path, 3) == []
    remember_scores(tmp_path, np.array([1.5, np.nan, 2.5]), 3)
    assert recent_scores(tmp_path, 3) == [1.5, 2.5]


def test_the_last_thousand_scores_are_kept(tmp_path):
    for begin in (0, 900):
        remember_scores(tmp_path, np.arange(begin, begin + 900.0), 0)
    assert recent_scores(tmp_path, 0) == np.arange(800.0, 1800.0).tolist()


def test_scores_of_another_version_do_not_count(tmp_path):
    remember_scores(tmp_path, np.ones(40), 1)
    assert recent_scores(tmp_path, 2) == []
    remember_scores(tmp_path, np.array([7.0]), 2)
    assert recent_scores(tmp_path, 2) == [7.0] and recent_scores(tmp_path, 1) == []


def scripted(stored, accuracies, restored=None):
    """A version that stores so many samples, and whose held-out accuracy is what is given, one after the other."""
    left, restored = iter(accuracies), [] if restored is None else restored
    learner = SimpleNamespace(buffer=range(stored), knowledge=lambda: "before", restore=restored.append)
    return SimpleNamespace(learner=learner, held=range(100), accuracy=lambda: next(left), retrained=lambda: None)


def test_a_pass_that_lowers_the_accuracy_is_undone_and_explained(monkeypatch):
    restored: list[str] = []
    monkeypatch.setattr("graspcl.workspace.training._session", lambda *_: 4)
    found = train(scripted(40, [0.9, 0.1], restored), Effort(), 10, 0.0, Silent())
    assert found.updates == 0 and restored == ["before"]
    assert "a pass over the memory lowered held-out accuracy" in found.reason
    assert "the last layer still learned the new samples" in found.reason


def test_passes_are_numbered_and_end_when_nothing_is_left_to_gain(monkeypatch):
    titles: list[str] = []
    monkeypatch.setattr("graspcl.workspace.training._session", lambda *given: titles.append(given[-1]) or 4)
    found = train(scripted(40, [0.5, 0.8, 1.0]), Effort(), 10, 0.0, Silent())
    assert titles == ["training, pass 1 of at most 3", "training, pass 2 of at most 3"]
    assert (found.updates, found.reason) == (8, "all held-out samples are predicted correctly")


@pytest.mark.parametrize(("stored", "updates"), [(30, 9), (100, 30), (1_000, 100), (10_000, 500)])
def test_a_later_change_makes_half_a_pass_and_three_passes_of_a_small_memory(stored, updates, monkeypatch):
    monkeypatch.setattr("graspcl.workspace.training._session", lambda version, number, *_: number)
    rising = [0.1, 0.2, 0.3, 0.4]
    assert train(scripted(stored, rising), Effort(), 10, 0.0, Silent(), first=False).updates == updates
    assert train(scripted(stored, rising), Effort(), 10, 0.0, Silent()).updates == 3 * round(stored / 10)


def test_an_evaluation_does_not_keep_all_probabilities():
    """Of 2,000 samples and classes they are 32 MB; of 100,000 samples and 10,000 classes, 8 GB."""
    number, names = 2_000, [str(label) for label in range(2_000)]
    classifier = SimpleNamespace(classes=names, calibration=Calibration(), logits=lambda inputs: 30 * inputs)
    samples = SimpleNamespace(
        name="all", problems=[], classes=names, labels=np.arange(number),
        read_some=lambda rows: (torch.eye(number)[rows], np.arange(len(rows)), []),
    )  # fmt: skip
    tracemalloc.start()
    found = evaluate(classifier, samples, np.arange(number), Silent())
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.overall == (number, number) and found.classes["7"] == (1, 1) and found.calibration_error < 1e-6
    assert most < 8e6


@pytest.mark.parametrize("text", ["", "two", "5 parsecs", "-3s", "nan", "inf"])
def test_a_budget_that_is_no_time_is_refused(text):
    with pytest.raises(GraspError, match="a budget is a time such as"):
        parse_seconds(text)
