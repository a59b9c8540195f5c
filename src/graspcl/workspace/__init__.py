"""A classifier that stays current: one folder that holds everything it knows, and verbs that change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graspcl.workspace.estimator import RehearsalClassifier
    from graspcl.workspace.workspace import Workspace

__all__ = ["RehearsalClassifier", "Workspace"]


def __getattr__(name: str) -> Any:
    if name == "Workspace":  # loaded when it is first used: the store alone needs no torch
        from graspcl.workspace.workspace import Workspace

        return Workspace
    if name == "RehearsalClassifier":
        from graspcl.workspace.estimator import RehearsalClassifier

        return RehearsalClassifier
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
