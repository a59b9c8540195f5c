"""How prototypical a sample is: the cosine distance of its embedding to the class mean; and policies by distance.

`prototype_distances` measures all samples at once. `ByDistance` can also remember distances from when samples were last
seen, so that planning a session needs no forward pass over the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import torch
from torch.linalg import vecdot, vector_norm
from torch.nn.functional import threshold

from graspcl.checks import Array, Positive
from graspcl.errors import GraspError
from graspcl.policy.policy import PlannedPolicy, policies

if TYPE_CHECKING:
    from graspcl.policy.session import Session

_CHUNK = 2048
_ROUNDING = 1e-12
_ROUNDING_32 = 1e-6  # of remembered distances
_AGEING = 0.1  # weight of what a running prototype saw before a session
_TOGETHER = 8  # reported updates that are taken in at once


@overload
def prototype_distances(embeddings: Array, labels: Array) -> Array: ...
@overload
def prototype_distances(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor: ...


def prototype_distances(embeddings: Any, labels: Any) -> Any:
    """Return d = 1 - cos(z, q_k), where the prototype q_k is the mean embedding of class k (section 3).

    Where the embeddings of a class cancel out (q_k = 0), no direction is prototypical and all its samples get d = 1.

    Embeddings [N, D] and labels [N] are arrays or tensors, and so are the distances [N] in [0, 2], float64. Embeddings
    that are NaN, infinite or all zero have no direction and raise an error.

    >>> z = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> prototype_distances(z, np.array([0, 0, 0, 1])).round(3).tolist()
    [0.106, 0.106, 0.553, 0.0]
    """
    z = _tensor(embeddings)
    classes, k = torch.unique(_tensor(labels).to(z.device), return_inverse=True)
    if z.ndim != 2 or k.shape != z.shape[:1]:
        raise GraspError(f"embeddings must be [N, D] and labels [N], got shapes {tuple(z.shape)} and {tuple(k.shape)}")
    lengths, sums, reaches = class_sums(z, k, len(classes))
    d = distances_to(sums, reaches, z, k, lengths)
    return d.numpy() if isinstance(embeddings, np.ndarray) else d


def class_sums(z: torch.Tensor, k: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the lengths [N] of embeddings z [N, D], their sums [K, D] by class k [N], and the sums of lengths [K].

    Sums of parts of the samples can be added.
    """
    # Results go into preallocated arrays: small ones that outlive a chunk would fragment memory.
    lengths = torch.empty(len(z), dtype=torch.float64, device=z.device)
    sums = torch.zeros(classes, z.shape[1], dtype=torch.float64, device=z.device)
    for part in _parts(len(z)):
        lengths[part] = vector_norm(z[part].double(), dim=1)
        sums.index_add_(0, k[part], z[part].double())  # the sum has the direction of the mean
    _check_directions(lengths, np.arange(len(z)))
    return lengths, sums, lengths.new_zeros(classes).index_add_(0, k, lengths)


def distances_to(
    sums: torch.Tensor, reaches: torch.Tensor, z: torch.Tensor, k: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return the distances [N] of embeddings z [N, D] to the prototypes of their classes k [N] (see `class_sums`)."""
    # A sum that is only rounding error counts as zero, at any scale of the embeddings.
    q = sums / torch.maximum(vector_norm(sums, dim=1), _ROUNDING * reaches)[:, None]
    cosines = torch.empty_like(lengths)
    for part in _parts(len(z)):
        cosines[part] = (z[part].double() * q[k[part]]).sum(1)
    d = cosines.div_(lengths).neg_().add_(1).clamp_(0, 2)  # in place: there may be very many
    d[d < _ROUNDING] = 0.0  # identical embeddings have distance 0 despite rounding
    return d


def _parts(number: int) -> list[slice]:
    return [slice(begin, begin + _CHUNK) for begin in range(0, number, _CHUNK)]


def _tensor(values: Any) -> torch.Tensor:
    if isinstance(values, np.ndarray):
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))  # torch takes no others; rarely a copy
    return torch.as_tensor(values).detach()


def _check_directions(lengths: torch.Tensor, rows: Array) -> None:
    """Refuse embeddings without a direction, given the lengths [n] of those in `rows` [n]."""
    zero = (lengths == 0, "are all zero", "; take them before the last activation")
    for bad, what, hint in ((~lengths.isfinite(), "hold NaN or infinity", ""), zero):
        if bad.any():
            wrong = rows[bad.numpy(force=True)][:5].tolist()
            raise GraspError(f"{int(bad.sum())} of {len(lengths)} embeddings {what} (rows {wrong}){hint}")


@dataclass
class ByDistance(PlannedPolicy):
    """A policy that plans by the distances of stored samples to their prototypes (`measured`).

    `distances` selects how they are measured:
    - "fresh": all at once when a session starts, in one forward pass over the buffer.
    - "remembered": each when its sample was last seen, against running prototypes. A sample is seen on arrival, if the
      learner computes outputs then, and in every update on it. Only samples without a distance take a forward pass when
      a session starts: those that arrived unseen, and those whose mini-batch was not reported.

    A running prototype is the mean embedding of what was seen of its class; what was seen before a session counts a
    tenth in it. Remembered distances are the policy's state, not a column of the buffer: 16 bytes per sample (distance,
    arrival number, prototype) and an embedding per class.
    """

    distances: Literal["fresh", "remembered"] = field(default="fresh", kw_only=True)

    needs = frozenset({"labels", "births", "embeddings", "distances", "memory"})
    balanced = True
    family = "prototype"
    cost = "one forward pass over the buffer per session, or over its new samples if distances are remembered"

    # What is remembered; empty until something is.
    _births = np.empty(0, np.int64)  # of the sample in each slot [N]
    _known = np.empty(0, np.float32)  # its distance [N], NaN if unknown
    _row_of = np.empty(0, np.int32)  # its row of _sums [N]
    _groups = np.empty(0, np.int64)  # classes, or other groups, that have a prototype [K], sorted
    _sums = torch.empty(0, 0)  # of embeddings [K, D]; they have the directions of the prototypes
    _current = np.empty(0, bool)  # whether that is a distance after the last session [N]
    _reported = cast(Sequence[tuple[Array, torch.Tensor]], ())  # slots [n] and embeddings [n, D] of the last updates

    @property
    def listens(self) -> bool:
        return self.distances == "remembered"

    def measured(self, session: Session) -> Array:
        """Return the distance of every stored sample [N] when a session starts."""
        if self.distances == "fresh":
            return session.distances
        self._take_in()
        trained = self._plan[: self._next]
        trained = trained[trained < len(self._known)]
        self._known[trained[~self._current[trained]]] = np.nan  # training on them was not reported
        self._births, self._known = session.births.copy(), self._recalled(session.births)
        self._current = np.zeros(len(session), bool)
        self._sums = self._sums * _AGEING
        unknown = np.flatnonzero(np.isnan(self._known))
        if len(unknown):
            z = session.embed(unknown)
            _check_directions(vector_norm(z, dim=1, dtype=torch.float32), unknown)
            rows = self._rows(session.group_of[unknown], z)
            parts = [*zip(z.split(_CHUNK), rows.split(_CHUNK), strict=True)]
            for part, own in parts:
                self._sums.index_add_(0, own, part.float())
            self._known[unknown] = torch.cat([self._apart(*part) for part in parts]).numpy(force=True)
        self._row_of = np.searchsorted(self._groups, session.group_of).astype(np.int32)
        return self._known.astype(np.float64)

    def observe(self, slots: Array, outputs: Any) -> None:
        if len(self._known) and outputs.embedding.shape[1]:
            self._reported = [*self._reported, (slots, outputs.embedding)]
            if len(self._reported) == _TOGETHER:
                self._take_in()

    def observe_new(self, slots: Array, births: Array, labels: Array, outputs: Any) -> None:
        if self.distances == "remembered" and len(slots):
            self._take_in()
            missing = max(0, int(slots.max()) + 1 - len(self._births))
            self._births = np.append(self._births, np.full(missing, -1))
            self._known = np.append(self._known, np.full(missing, np.nan, np.float32))
            self._current = np.append(self._current, np.zeros(missing, bool))
            self._births[slots] = births
            self._remember(slots, outputs.embedding, self._rows(labels, outputs.embedding))

    def _take_in(self) -> None:
        """Take in what was reported. Several updates at once cost little more than one."""
        if self._reported:
            slots, z = np.concatenate([one for one, _ in self._reported]), torch.cat([one for _, one in self._reported])
            self._remember(slots, z, torch.from_numpy(self._row_of[slots]).to(z.device))
            self._reported = ()

    def _remember(self, slots: Array, z: torch.Tensor, rows: torch.Tensor) -> None:
        """Move the prototypes in `rows` [n] by embeddings z [n, D] of `slots` [n]; remember the distances to them."""
        finite = z.isfinite().all(1)
        z = torch.where(finite[:, None], z, 0).float()
        self._sums = self._sums.to(z.device).index_add(0, rows, z)
        self._known[slots] = torch.where(finite, self._apart(z, rows), torch.nan).numpy(force=True)
        self._current[slots] = True

    def _recalled(self, births: Array) -> Array:
        """Look up the distances of samples by their births [N], which identify them in any slot; NaN if unknown."""
        found = np.full(len(births), np.nan, np.float32)
        old = np.flatnonzero(~np.isnan(self._known))
        _, before, now = np.intersect1d(self._births[old], births, assume_unique=True, return_indices=True)
        found[now] = self._known[old[before]]
        return found

    def _rows(self, groups: Array, z: torch.Tensor) -> torch.Tensor:
        """Return the prototypes' rows of `groups` [n]; new groups get one, as wide as embeddings z."""
        known = np.union1d(self._groups, groups)
        sums = torch.zeros(len(known), z.shape[1], device=z.device)
        before = self._sums.to(z.device).reshape(len(self._groups), z.shape[1])
        sums[torch.from_numpy(np.searchsorted(known, self._groups))] = before
        self._groups, self._sums = known, sums
        return torch.from_numpy(np.searchsorted(self._groups, groups)).to(z.device)

    def _apart(self, z: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the distances of embeddings z [n, D] to the prototypes in `rows` [n], float32 [n]."""
        z, q = z.float(), self._sums.index_select(0, rows)
        # Several times as fast as torch's cosine_similarity. Rows of zeros are at distance 1.
        cosines = vecdot(z, q) / (vector_norm(z, dim=1) * vector_norm(q, dim=1)).clamp_min(1e-30)
        return threshold(1 - cosines, _ROUNDING_32, 0.0)  # identical embeddings have distance 0 despite rounding


@policies.register("mof", "easy_biased")
@dataclass
class Mof(ByDistance):
    """Mean of features, easy-biased: p ~ 1 / (d + ε), near the class mean first, throughout the session.

    Follows: the paper and the reference program, which rehearse by the rule; its authors store by it.
    """

    eps: Positive = 1e-7

    source = "Chaudhry et al. 2019; GRASP's first-draw rule without its update"

    def plan(self, session: Session) -> Array:
        return session.draw(1 / (self.measured(session) + self.eps))


@policies.register("hard_biased")
@dataclass
class HardBiased(ByDistance):
    """Hard-biased: p ~ d, far from the class mean first, throughout the session.

    Follows: the paper and the reference program.
    """

    source = "Harun et al. 2024, section 4.3"

    def plan(self, session: Session) -> Array:
        return session.draw(self.measured(session))
