"""How prototypical a sample is: the cosine distance of its embedding to its class's prototype, the class mean."""

from __future__ import annotations

from typing import Any, overload

import numpy as np
import torch

from graspcl.errors import GraspError

Array = np.ndarray[Any, Any]

_CHUNK = 16384


@overload
def prototype_distances(embeddings: Array, labels: Array) -> Array: ...
@overload
def prototype_distances(embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor: ...


def prototype_distances(embeddings: Any, labels: Any) -> Any:
    """d = 1 - cos(z, q_k), q_k the mean embedding of class k (section 3): [N, D] and [N] to float64 [N] in [0, 2].

    Where the embeddings of a class cancel out (q_k = 0) no direction is prototypical and all its samples get d = 1.
    NaN, infinite and all-zero embeddings have no direction and are an error that names them.

    >>> z = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> prototype_distances(z, np.array([0, 0, 0, 1])).round(3).tolist()
    [0.106, 0.106, 0.553, 0.0]
    """
    numpy_in = isinstance(embeddings, np.ndarray)
    z = torch.as_tensor(embeddings)
    classes, k = torch.unique(torch.as_tensor(labels, device=z.device), return_inverse=True)
    if z.ndim != 2 or len(z) != len(k):
        raise GraspError(
            f"embeddings [N, D] and labels [N] are needed, not shapes {tuple(z.shape)} and {tuple(k.shape)}"
        )
    _refuse_directionless(z)
    q = torch.zeros(len(classes), z.shape[1], dtype=torch.float64, device=z.device)
    for part, rows in zip(torch.split(z, _CHUNK), torch.split(k, _CHUNK), strict=True):
        q.index_add_(0, rows, part.double())  # the sum has the direction of the mean
    q = torch.nn.functional.normalize(q, dim=1)
    d = torch.empty(len(z), dtype=torch.float64, device=z.device)
    for at, (part, rows) in enumerate(zip(torch.split(z, _CHUNK), torch.split(k, _CHUNK), strict=True)):
        cosine = (torch.nn.functional.normalize(part.double(), dim=1) * q[rows]).sum(1)
        d[at * _CHUNK : at * _CHUNK + len(part)] = (1 - cosine).clamp(0, 2)
    return d.numpy() if numpy_in else d


def _refuse_directionless(z: torch.Tensor) -> None:
    norms = torch.linalg.vector_norm(z.to(torch.float64) if len(z) < _CHUNK else z, dim=1)
    for bad, what in ((~norms.isfinite(), "hold NaN or infinity"), (norms == 0, "are all zero")):
        if bad.any():
            which = bad.nonzero()[:, 0]
            raise GraspError(f"{len(which)} of {len(z)} embeddings {what} (rows {which[:5].tolist()})")
