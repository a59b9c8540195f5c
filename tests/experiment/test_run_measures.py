"""What a run measures beside accuracy: drift in two units, and transfer to classes before their session."""

import numpy as np
import pytest

from graspcl.experiment import run
from graspcl.experiment.measure import stored_drift
from graspcl.metric import summarise_drift
from graspcl.report import read_run
from graspcl.settings import change


def test_drift_is_a_norm_and_a_mean_square(small, tmp_path):
    summary = run(change(small, {"budget.updates": 3, "measure.drift": 20}), tmp_path / "run")
    with np.load(tmp_path / "run" / "drift.npz") as found:
        curves = dict(found)
    assert {*curves} == {f"{kind}_{session}" for kind in ("session", "mse") for session in (1, 2, 3, 4)}
    # A mean of squares is at least the square of a mean; the network embeds in 256 numbers.
    for session in range(1, 5):
        assert (256 * curves[f"mse_{session}"] >= curves[f"session_{session}"] ** 2).all()
        assert (curves[f"mse_{session}"] < curves[f"session_{session}"]).all()
    for name, kind in (("drift", "session"), ("drift_mse", "mse")):
        own = [summarise_drift(curves[f"{kind}_{session}"]) for session in (1, 2, 3, 4)]
        assert summary[f"{name}_auc"] == pytest.approx(np.mean([one.auc for one in own]))
        assert summary[f"{name}_mean"] == pytest.approx(np.mean([one.mean for one in own]))
    told = read_run(tmp_path / "run")
    assert told.drift[1].tolist() == curves["session_2"].tolist()
    assert told.drift_mse[1].tolist() == curves["mse_2"].tolist()


def test_a_checkpoint_of_an_earlier_version_has_norms_alone():
    found = stored_drift([0.5, 0.25])
    assert found["norm"] == [0.5, 0.25] and np.isnan(found["mse"]).tolist() == [True, True]


def test_forward_transfer_where_classes_are_known_before_their_session(small, tmp_path):
    """In a blurred stream some samples of a class arrive earlier; else no class is known before its session."""
    config = change(small, {"budget.updates": 20, "stream.blurry": 0.4})
    summary = run(config, tmp_path / "blurred")
    with np.load(tmp_path / "blurred" / "predictions.npz") as found:
        labels, arrived, predictions = found["labels"], found["arrived"], found["predictions"]
    next_ones = [predictions[t - 1][arrived == t] == labels[arrived == t] for t in (2, 3, 4)]
    assert (predictions[1][arrived == 2] != -1).all()
    first = 0.0 if (predictions[0][arrived == 1] == -1).all() else None
    assert first == 0.0  # before the stream, only base classes are known
    expected = np.mean([100 * right.mean() for right in next_ones]) - 100 / 12
    assert summary["forward_transfer"] == pytest.approx(expected)
    assert summary["mu_all"] == pytest.approx(np.mean(read_run(tmp_path / "blurred").curves["all"][1:]))
    assert "forward_transfer" not in run(change(small, {"budget.updates": 2}), tmp_path / "plain")
