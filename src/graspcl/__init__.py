"""Continual learning by rehearsal: GRASP and the policies it is compared with.

The names below are loaded when first used, so that `import graspcl` itself loads neither torch nor anything heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from graspcl.buffer import Buffer
    from graspcl.policy import Budget, grasp_order, policies, prototype_distances, rehearse
    from graspcl.registry import load_plugin

_HOMES = {
    "Budget": "graspcl.policy",
    "Buffer": "graspcl.buffer",
    "grasp_order": "graspcl.policy",
    "load_plugin": "graspcl.registry",
    "policies": "graspcl.policy",
    "prototype_distances": "graspcl.policy",
    "rehearse": "graspcl.policy",
}

__all__ = ["Budget", "Buffer", "grasp_order", "load_plugin", "policies", "prototype_distances", "rehearse"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'graspcl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
