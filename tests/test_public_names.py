"""What `graspcl` offers at its top, loaded when it is used."""

import importlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest
import torch

import graspcl
from graspcl.buffer import Buffer

PUBLIC = {
    "Aligned", "Budget", "Buffer", "GraspError", "Learner", "PlannedPolicy", "Policy", "RehearsalClassifier",
    "Session", "Siesta", "Workspace", "grasp_order", "learners", "load", "load_plugin", "networks", "policies",
    "prototype_distances", "rehearse", "save",
}  # fmt: skip


def test_dir_shows_the_public_names_and_the_submodules():
    assert set(graspcl.__all__) == PUBLIC
    shown = set(dir(graspcl))
    assert shown > PUBLIC
    for name in sorted(shown):
        found = getattr(graspcl, name)
        assert name in PUBLIC or found.__name__ == f"graspcl.{name}"


def test_nothing_else_is_there():
    with pytest.raises(AttributeError, match="module 'graspcl' has no attribute 'Rehearse'"):
        _ = graspcl.Rehearse


def test_submodules_and_names_are_loaded_on_first_use():
    code = """
import sys, graspcl
assert "torch" not in sys.modules and dir(graspcl) and "torch" not in sys.modules
assert graspcl.policy.Grasp is graspcl.policies.get("grasp") and graspcl.learner.Siesta is graspcl.Siesta
from graspcl import policy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_all_policies_are_exported_without_loading_numba():
    code = """
import sys, graspcl.policy
assert "numba" not in sys.modules
names = graspcl.policies.names()
exported = {getattr(graspcl.policy, name) for name in graspcl.policy.__all__}
assert len(names) == 18 and {graspcl.policies.get(name) for name in names} <= exported
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_objects_are_saved_by_their_state(tmp_path):
    buffer = Buffer(capacity=3, rng=1)
    buffer.insert(torch.eye(4), [0, 1, 0, 1])
    graspcl.save(tmp_path / "deep" / "buffer", buffer)
    restored = Buffer(capacity=3)
    restored.load_state_dict(graspcl.load(str(tmp_path / "deep" / "buffer")))
    assert torch.equal(restored.fetch([0, 1, 2])[0], buffer.fetch([0, 1, 2])[0])
    assert restored.draw_seed() == buffer.draw_seed()
    graspcl.save(tmp_path / "plain", {"x": np.arange(3), "n": [None, 0.5]})
    found = graspcl.load(tmp_path / "plain")
    assert found["x"].tolist() == [0, 1, 2] and found["n"] == [None, 0.5]


@pytest.mark.parametrize("room", ["bench", "buffer", "codec", "metric", "policy", "testing"])
def test_no_submodule_is_hidden_by_a_name_of_its_package(room):
    package = importlib.import_module(f"graspcl.{room}")
    for module in pkgutil.iter_modules(package.__path__):
        loaded = importlib.import_module(f"graspcl.{room}.{module.name}")
        assert getattr(package, module.name) is loaded
