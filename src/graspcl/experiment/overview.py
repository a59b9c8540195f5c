"""What GRASP draws from one class, and what uniform rehearsal draws, on a plane (Appendix A, "Overview of GRASP")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError, nearest
from graspcl.learner import Learner
from graspcl.policy import Grasp, grasp_order, prototype_distances
from graspcl.policy.drawing import group_by_class, uniform_draws


@dataclass(frozen=True)
class ClassPicture:
    """The n stored samples of a class on a plane, and what a session draws from them."""

    points: Array  # [n, 2]
    prototype: Array  # [2]
    distances: Array  # to the prototype [n]
    share: float  # of the variance that the plane holds
    grasp: Array  # indices in the order of drawing [draws]
    uniform: Array


def class_picture(
    learner: Learner, label: int, rng: np.random.Generator, draws: int | None = None, eps: float | None = None
) -> ClassPicture:
    """Draw from the stored samples of class `label`, as the network sees them now.

    `draws` is one per stored sample by default. `eps` of Algorithm 1 is that of the learner's policy if it is GRASP.
    """
    buffer = learner.buffer
    if not learner.rehearses:
        raise GraspError(f"learner {learner.name!r} does not rehearse, so there are no draws to show")
    if label not in buffer.classes or not len(slots := buffer.slots_of(label)):
        raise GraspError(f"the buffer holds no sample of class {label}")
    z = learner.outputs(buffer["codes"][slots], "embedding").double().numpy(force=True)
    labels, budget = np.zeros(len(slots), np.int64), len(slots) if draws is None else draws
    distances = prototype_distances(z, labels)
    if eps is None:
        eps = learner.policy.eps if isinstance(learner.policy, Grasp) else Grasp().eps
    points, prototype, share = project(z)
    grasp = grasp_order(distances, labels, budget, rng, eps)
    return ClassPicture(points, prototype, distances, share, grasp, uniform_draws(group_by_class(labels), budget, rng))


def project(embeddings: Array) -> tuple[Array, Array, float]:
    """Project embeddings [n, D] to the plane of their first two principal components.

    Cosine distance depends on directions alone, so directions are projected: ‖u - v‖² = 2 (1 - cos). The largest entry
    of a component (the first of equal ones) is positive. Return the points [n, 2], the prototype among them [2], and
    the share of the variance that the plane holds.

    >>> points, prototype, share = project(np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    >>> points.round(2).tolist(), prototype.round(2).tolist(), round(share, 3)
    ([[0.71, 0.0], [-0.71, 0.0]], [-0.32, 0.0], 1.0)
    """
    z = np.asarray(embeddings, np.float64)
    u, q = z / np.linalg.norm(z, axis=1, keepdims=True), z.sum(0)
    if length := float(np.linalg.norm(q)):
        q = q / length
    centre = u.mean(0)
    _, singular, components = np.linalg.svd(u - centre, full_matrices=False)
    plane = np.zeros((2, z.shape[1]))
    found = components[:2][singular[:2] > 1e-9]  # smaller ones are rounding errors
    plane[: len(found)] = found * np.sign(found[np.arange(len(found)), np.abs(found).round(9).argmax(1)])[:, None]
    variance = singular**2
    share = float(variance[:2].sum() / variance.sum()) if variance.sum() > 0 else 1.0
    return (u - centre) @ plane.T, (q - centre) @ plane.T, share


def choose_class(learner: Learner, names: Sequence[str], wanted: str | None = None) -> int:
    """Return the label of the class named `wanted`, by default of the class with most stored samples."""
    classes, sizes = learner.buffer.classes, learner.buffer.sizes
    stored = {names[int(label)]: int(label) for label, size in zip(classes, sizes, strict=True) if size}
    if not stored:
        raise GraspError("the buffer of this run is empty, so there is no class to show")
    if wanted is None:
        return int(classes[np.argmax(sizes)])
    if wanted not in stored:
        reason = "has no stored sample" if wanted in names else "is not the name of a class"
        raise GraspError(f"--class {wanted!r} {reason}; {nearest(wanted, stored)}")
    return stored[wanted]
