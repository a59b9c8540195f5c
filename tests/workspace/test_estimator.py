"""The classifier of vectors keeps what it learned, and has the manners of scikit-learn without needing it."""

import copy
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

from graspcl.workspace.estimator import InvalidInput, RehearsalClassifier

# Checks of scikit-learn that do not apply, and why. There are none: what it does not ask of this classifier (weights of
# samples, sparse data, several labels) it leaves out itself, by the tags.
NOT_APPLICABLE: dict[str, str] = {}
# Checks that scikit-learn skips itself where SCIPY_ARRAY_API is not set.
SKIPPED = {"check_array_api_input"}


def blobs(classes, seed=0, each=20, width=4):
    """Vectors around one corner per class, and their classes; corners are at least 6 deviations apart."""
    rng, labels = np.random.default_rng(seed), np.repeat(np.arange(len(classes)), each)
    corners = np.random.default_rng(1).normal(size=(9, width)) * 8
    centre = [corners[ord(name[0]) - ord("a")] for name in classes]
    return rng.normal(size=(len(labels), width)) + np.array(centre)[labels], np.array(classes)[labels]


def test_the_checks_of_scikit_learn_pass():
    checks = pytest.importorskip("sklearn.utils.estimator_checks", reason="needs scikit-learn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about no base class of scikit-learn, on purpose
        found = checks.check_estimator(
            RehearsalClassifier(width=20), expected_failed_checks=NOT_APPLICABLE, on_fail=None, on_skip=None
        )
    assert len(found) > 40
    wrong = {
        one["check_name"]: one["exception"] for one in found if one["status"] not in ("passed", "xfail", "skipped")
    }
    assert wrong == {}
    assert {one["check_name"] for one in found if one["status"] == "skipped"} <= SKIPPED


def test_it_works_in_a_search_and_a_pipeline():
    selection = pytest.importorskip("sklearn.model_selection", reason="needs scikit-learn")
    pipeline = pytest.importorskip("sklearn.pipeline").make_pipeline(RehearsalClassifier(width=20))
    X, y = blobs(["ant", "bee"])
    search = selection.GridSearchCV(pipeline, {"rehearsalclassifier__passes": [0, 1]}, cv=2).fit(X, y)
    assert search.best_score_ > 0.9


def test_new_classes_do_not_erase_old_ones():
    model = RehearsalClassifier(width=20)
    for week in (["ant", "bee"], ["cod"], ["dab", "emu"]):
        model.partial_fit(*blobs(week))
    assert model.classes_.tolist() == ["ant", "bee", "cod", "dab", "emu"]
    assert model.score(*blobs(["ant", "bee", "cod", "dab", "emu"], seed=7)) > 0.95


def test_old_classes_are_kept_within_a_small_capacity():
    model = RehearsalClassifier(width=20, capacity=12)
    for week in (["ant", "bee"], ["cod"], ["dab", "emu"]):
        model.partial_fit(*blobs(week))
    assert len(model.learner_.buffer) == 12
    assert model.score(*blobs(["ant", "bee", "cod", "dab", "emu"], seed=7)) > 0.9


def test_columns_are_in_the_order_of_the_classes_whatever_arrived_first():
    model = RehearsalClassifier(width=20).partial_fit(*blobs(["cod"])).partial_fit(*blobs(["bee", "ant"]))
    X, y = blobs(["ant", "bee", "cod"], seed=7)
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (model.classes_[probabilities.argmax(1)] == model.predict(X)).all() and (model.predict(X) == y).mean() > 0.95


def test_a_class_that_is_announced_has_probability_0_until_it_comes():
    X, y = blobs(["ant", "cod"])
    model = RehearsalClassifier(width=20).partial_fit(X, y, classes=["ant", "bee", "cod"])
    assert model.classes_.tolist() == ["ant", "bee", "cod"] and (model.predict_proba(X)[:, 1] == 0).all()
    model.partial_fit(*blobs(["bee"]))
    assert model.score(*blobs(["ant", "bee", "cod"], seed=7)) > 0.95


def test_fit_starts_again():
    model = RehearsalClassifier(width=20).fit(*blobs(["ant", "bee"]))
    model.fit(*blobs(["cod", "dab"], width=3))
    assert model.classes_.tolist() == ["cod", "dab"] and model.n_features_in_ == 3


@pytest.mark.parametrize("labels", [[-5, 7], [0.0, 2.0], [True, False], ["a", "b"], [b"a", b"b"]])
def test_labels_of_any_kind_come_back(labels):
    X, y = blobs(["ant", "bee"])
    given = np.array(labels)[(y == "bee").astype(int)]
    found = RehearsalClassifier(width=20).fit(X, given).predict(X)
    assert found.dtype == given.dtype and (found == given).mean() > 0.95


def test_names_and_numbers_do_not_mix():
    X, y = blobs(["ant", "bee"])
    with pytest.raises(InvalidInput, match="labels must be of one kind"):
        RehearsalClassifier(width=20).fit(X, y).partial_fit(X, np.arange(len(y)))


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ([1, 2**63 + 1], [5]),
        ([-1, 2**63 + 1], [2**70]),
        ([0, 1], np.array([2**63 + 9, 2**63 + 8], np.uint64)),
        (np.array([0, 2**63 + 1], np.uint64), np.array([-1, 2**53 + 1])),
    ],
)
def test_integers_of_any_size_stay_as_they_are(first, later):
    (X, y), (new, _) = blobs(["ant", "bee"]), blobs(["cod"], each=len(later))
    model = RehearsalClassifier(width=20).fit(X, [first[int(name == "bee")] for name in y]).partial_fit(new, later)
    assert model.classes_.tolist() == sorted([*map(int, first), *map(int, later)])
    assert set(model.predict(X).tolist()) == {*map(int, first)}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([None], "labels must be of one kind, .* none missing; got NoneType"),
        ([1, "a", None], "labels must be of one kind, .* got NoneType and int and str"),
        (["a", np.nan], "labels must be of one kind, .* got float and str"),
        ([1, 2.0], "labels must be of one kind, .* got float and int"),
        ([[1], [1, 2]], r"got list"),
        ([0.0, np.nan], "Input y contains NaN or infinity"),
        ([0.0, 0.5], "Unknown label type: continuous"),
    ],
)
@pytest.mark.parametrize("kind", [list, lambda labels: np.array(labels, object)])
def test_labels_of_several_kinds_and_missing_ones_are_refused(labels, message, kind):
    X, _ = blobs(["ant"], each=6)
    with pytest.raises(InvalidInput, match=message):
        RehearsalClassifier(width=20).fit(X, kind((labels * 6)[:6]))


def test_integers_do_not_become_floats():
    X, y = blobs(["ant", "bee"])
    model = RehearsalClassifier(width=20).fit(X, np.where(y == "ant", 0, 2**53 + 1))
    with pytest.raises(InvalidInput, match="labels must be of one kind"):
        model.partial_fit(X, np.where(y == "ant", 0.0, 1.0))
    assert model.classes_.tolist() == [0, 2**53 + 1]


def test_equal_seeds_give_equal_bits_and_copies_go_on_alike():
    (X, y), more = blobs(["ant", "bee"]), blobs(["cod"])
    first, second = (RehearsalClassifier(width=20, capacity=15, random_state=3).fit(X, y) for _ in range(2))
    copied, sent = copy.deepcopy(first), pickle.loads(pickle.dumps(first))  # noqa: S301  (as joblib does)
    expected = first.partial_fit(*more).predict_proba(X)
    for one in (second, copied, sent):
        assert (one.partial_fit(*more).predict_proba(X) == expected).all()
    other = RehearsalClassifier(width=20, capacity=15, random_state=4).fit(X, y).partial_fit(*more)
    assert (other.predict_proba(X) != expected).any()


def test_features_of_any_scale_and_constant_ones_are_fine():
    X, y = blobs(["ant", "bee", "cod"])
    wide = np.concatenate([X * [1e-9, 1e9, 1, 1], np.full((len(X), 2), 0.1)], axis=1)
    model = RehearsalClassifier(width=20).fit(wide, y)
    assert model.score(wide, y) > 0.95
    assert np.isfinite(model.predict_proba(wide * 1e30)).all()


def test_parameters_are_shown_set_and_checked():
    model = RehearsalClassifier(passes=2.0)
    assert repr(model) == "RehearsalClassifier(passes=2.0)" and model.set_params(width=8).get_params()["width"] == 8
    with pytest.raises(ValueError, match=r"Invalid parameter 'wide'.*valid: \['learner', 'policy', 'width'"):
        model.set_params(wide=3)
    with pytest.raises(InvalidInput, match=r"passes must be a number in \[0, 1000000\], got -1"):
        model.set_params(passes=-1).fit(*blobs(["ant", "bee"]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0}, {"passes": np.inf}, {"passes": None}, {"policy": None}, {"learner": None},
        {"random_state": -1}, {"random_state": 2**70}, {"width": 0}, {"width": True},
    ],
)  # fmt: skip
def test_parameters_that_cannot_be_are_refused_whenever_it_learns(wrong):
    (X, y), (name,) = blobs(["ant", "bee"]), wrong
    with pytest.raises(InvalidInput, match=f"{name} must be"):
        RehearsalClassifier(**wrong).fit(X, y)
    model = RehearsalClassifier(width=20).fit(X, y).set_params(**wrong)
    with pytest.raises(InvalidInput, match=f"{name} must be"):
        model.partial_fit(X, y)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": "10B"}, "a buffer of 10B holds no sample"), ({"capacity": -1}, "capacity must be a positive"),
        ({"passes": 1e300}, "passes must be a number in"), ({"learner": "nosuch"}, "nosuch"),
    ],
)  # fmt: skip
def test_what_fails_is_a_value_error_and_leaves_it_unfitted(wrong, message):
    X, y = blobs(["ant", "bee"])
    for model in (RehearsalClassifier(**wrong), RehearsalClassifier(width=20).fit(X, y).set_params(**wrong)):
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
        if "passes" not in wrong:  # it is refused before anything happens
            with pytest.raises(AttributeError, match="not fitted yet"):
                model.predict(X)


def test_it_works_without_scikit_learn():
    code = """
import sys
sys.modules["sklearn"] = None
from graspcl.workspace.estimator import RehearsalClassifier
model = RehearsalClassifier(width=20)
try:
    model.predict([[0.0]])
except AttributeError as error:
    assert "not fitted yet" in str(error)
model.fit([[0.0], [0.1], [1.0], [1.1]], ["a", "a", "b", "b"]).partial_fit([[3.0], [3.1]], ["c", "c"])
assert model.predict([[0.0], [1.0], [3.0]]).tolist() == ["a", "b", "c"] and repr(model)
assert not [name for name in sys.modules if name.startswith("sklearn.")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
