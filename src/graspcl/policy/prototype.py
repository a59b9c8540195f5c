"""How prototypical a sample is: the cosine distance of its embedding to the class mean; and policies by distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from graspcl.checks import Array, Positive
from graspcl.errors import GraspError
from graspcl.policy.policy import PlannedPolicy, policies

if TYPE_CHECKING:
    from graspcl.policy.session import Session

_CHUNK = 2048
_ROUNDING = 1e-12


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
    # Results go into preallocated arrays: small ones that outlive a chunk would fragment memory.
    parts = [slice(begin, begin + _CHUNK) for begin in range(0, len(z), _CHUNK)]
    lengths, cosines = (torch.empty(len(z), dtype=torch.float64, device=z.device) for _ in range(2))
    q = torch.zeros(len(classes), z.shape[1], dtype=torch.float64, device=z.device)
    for part in parts:
        lengths[part] = torch.linalg.vector_norm(z[part].double(), dim=1)
        q.index_add_(0, k[part], z[part].double())  # the sum has the direction of the mean
    zero = (lengths == 0, "are all zero", "; take them before the last activation")
    for bad, what, hint in ((~lengths.isfinite(), "hold NaN or infinity", ""), zero):
        if bad.any():
            rows = bad.nonzero()[:5, 0].tolist()
            raise GraspError(f"{int(bad.sum())} of {len(z)} embeddings {what} (rows {rows}){hint}")
    # A sum that is only rounding error counts as zero, at any scale of the embeddings.
    rounding = _ROUNDING * lengths.new_zeros(len(classes)).index_add_(0, k, lengths)
    q /= torch.maximum(torch.linalg.vector_norm(q, dim=1), rounding)[:, None]
    for part in parts:
        cosines[part] = (z[part].double() * q[k[part]]).sum(1)
    d = (1 - cosines / lengths).clamp(0, 2)
    d[d < _ROUNDING] = 0.0  # identical embeddings have distance 0 despite rounding
    return d.numpy() if isinstance(embeddings, np.ndarray) else d


def _tensor(values: Any) -> torch.Tensor:
    if isinstance(values, np.ndarray):
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))  # torch takes no others; rarely a copy
    return torch.as_tensor(values).detach()


class _ByDistance(PlannedPolicy):
    needs = frozenset({"distances"})
    balanced = True
    family = "prototype"
    cost = "one forward pass over the buffer per session"


@policies.register("mof", "easy_biased")
@dataclass
class Mof(_ByDistance):
    """Mean of features, easy-biased: p ~ 1 / (d + ε), near the class mean first, throughout the session.

    Follows: the paper and the reference program, which rehearse by the rule; its authors store by it.
    """

    eps: Positive = 1e-7

    source = "Chaudhry et al. 2019; GRASP's first-draw rule without its update"

    def plan(self, session: Session) -> Array:
        return session.draw(1 / (session.distances + self.eps))


@policies.register("hard_biased")
@dataclass
class HardBiased(_ByDistance):
    """Hard-biased: p ~ d, far from the class mean first, throughout the session.

    Follows: the paper and the reference program.
    """

    source = "Harun et al. 2024, section 4.3"

    def plan(self, session: Session) -> Array:
        return session.draw(session.distances)
