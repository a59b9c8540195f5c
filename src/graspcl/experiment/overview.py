"""What GRASP draws of one class, and what uniform rehearsal draws, on a plane (Appendix A, "Overview of GRASP")."""

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
    """The n stored samples of a class: `points` [n, 2] on a plane that holds `share` of their variance, `distances` [n]
    to the prototype, which lies at `prototype` [2]; and what a session draws of them, in order, as indices [draws].
    """

    points: Array
    prototype: Array
    distances: Array
    share: float
    grasp: Array
    uniform: Array


def class_picture(
    learner: Learner, label: int, rng: np.random.Generator, draws: int | None = None, eps: float | None = None
) -> ClassPicture:
    """The stored samples of class `label` as the network sees them now, and `draws` draws of them, by default a pass.

    `eps` is that of Algorithm 1, by default the learner's, if it rehearses by GRASP.
    """
    buffer = learner.buffer
    slots = buffer.slots_of(label) if label in buffer.classes else np.empty(0, np.int64)
    if not len(slots):
        raise GraspError(f"the buffer holds no sample of class {label}")
    z = learner.outputs(buffer["codes"][slots], "embedding").double().numpy(force=True)
    labels, budget = np.zeros(len(slots), np.int64), len(slots) if draws is None else draws
    distances = prototype_distances(z, labels)
    if eps is None:
        eps = learner.policy.eps if isinstance(learner.policy, Grasp) else Grasp().eps
    points, prototype, share = project(z)
    return ClassPicture(
        points, prototype, distances, share,
        grasp=grasp_order(distances, labels, budget, rng, eps),
        uniform=uniform_draws(group_by_class(labels), budget, rng),
    )  # fmt: skip


def project(embeddings: Array) -> tuple[Array, Array, float]:
    """Embeddings [n, D] on the plane of their first two principal components: [n, 2], the prototype [2] among them,
    and the share of the variance that the plane holds.

    Cosine distance knows directions alone, so it is directions that are projected: between two of them,
    ‖u - v‖² = 2 (1 - cos). Each component points to where its largest entry (of equal ones the first) is positive.

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
    found = components[:2][singular[:2] > 1e-9]  # a direction of rounding errors is none
    plane[: len(found)] = found * np.sign(found[np.arange(len(found)), np.abs(found).round(9).argmax(1)])[:, None]
    variance = singular**2
    share = float(variance[:2].sum() / variance.sum()) if variance.sum() > 0 else 1.0
    return (u - centre) @ plane.T, (q - centre) @ plane.T, share


def choose_class(learner: Learner, names: Sequence[str], wanted: str | None = None) -> int:
    """The label of the class called `wanted`, by default of the one with most stored samples."""
    classes, sizes = learner.buffer.classes, learner.buffer.sizes
    stored = {names[int(label)]: int(label) for label, size in zip(classes, sizes, strict=True) if size}
    if not stored:
        raise GraspError("the buffer of this run is empty: there is no class to show")
    if wanted is None:
        return int(classes[np.argmax(sizes)])
    if wanted not in stored:
        why = "is known, but the buffer holds no sample of it" if wanted in names else "is not among the classes"
        raise GraspError(f"--class {wanted!r} {why}; {nearest(wanted, stored)}")
    return stored[wanted]
