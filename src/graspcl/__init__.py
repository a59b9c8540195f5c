"""Continual learning by rehearsal: GRASP and the policies it is compared with.

Names and submodules are loaded when they are first used, so that `import graspcl` loads neither torch nor numba.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graspcl.buffer import Buffer
    from graspcl.errors import GraspError
    from graspcl.learner import Aligned, Learner, Siesta, learners
    from graspcl.model import networks
    from graspcl.policy import (
        Budget,
        PlannedPolicy,
        Policy,
        Session,
        grasp_order,
        policies,
        prototype_distances,
        rehearse,
    )
    from graspcl.registry import load_plugin
    from graspcl.workspace import RehearsalClassifier, Workspace

_SUBMODULES = {
    "bench", "buffer", "codec", "data", "distributed", "errors", "experiment", "learner", "machine", "metric",
    "model", "policy", "pretrain", "report", "settings", "stream", "testing", "workspace",
}  # fmt: skip
_HOMES = {"Buffer": "buffer", "GraspError": "errors", "load_plugin": "registry", "networks": "model"}
_HOMES |= {"RehearsalClassifier": "workspace", "Workspace": "workspace"}
_HOMES |= dict.fromkeys(
    ("Aligned", "Learner", "Siesta", "learners"), "learner"
)  # all other names are in the room policy

__all__ = [
    "Aligned", "Budget", "Buffer", "GraspError", "Learner", "PlannedPolicy", "Policy", "RehearsalClassifier",
    "Session", "Siesta", "Workspace", "grasp_order", "learners", "load", "load_plugin", "networks", "policies",
    "prototype_distances", "rehearse", "save",
]  # fmt: skip


def save(path: str | Path, state: Any) -> None:
    """Save a state to a file: completely, or not at all if that fails. The file contains no pickle.

    Args:
        path: the file to write; missing folders are created.
        state: nested dictionaries and lists of numbers, strings, arrays and tensors; or an object with `state_dict()`,
            such as a learner, a buffer or a policy.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(f"{folder}/state", {"accuracy": [61.5]})
    ...     load(f"{folder}/state")
    {'accuracy': [61.5]}
    """
    from graspcl.state import save_state

    save_state(Path(os.path.realpath(path)), state.state_dict() if hasattr(state, "state_dict") else state)


def load(path: str | Path) -> dict[str, Any]:
    """Return the state that `save` wrote, for example for `learner.load_state_dict(graspcl.load(path))`."""
    from graspcl.state import load_state

    return load_state(Path(path))


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"graspcl.{name}")
    if name in __all__:
        return getattr(importlib.import_module(f"graspcl.{_HOMES.get(name, 'policy')}"), name)
    raise AttributeError(f"module 'graspcl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES])
