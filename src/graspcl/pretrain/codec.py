"""Codecs trained on a network's latents."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from graspcl.checks import Count, checked
from graspcl.codec import Codec
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.pretrain.trainer import Read

_CHUNK = 128  # images that are read and encoded at a time


@checked
def fit_codec(
    network: SplitNetwork,
    codec: Codec,
    read: Read,
    indices: ArrayLike,
    limit: Count = 100_000,
    rng: np.random.Generator | int = 0,
) -> Codec:
    """Train `codec` on up to `limit` latent vectors of images, and return it. A codec without training reads nothing.

    Memory contains `limit` vectors and one chunk of images: of spatial latents [n, C, H, W], a few random locations of
    each image are used. For `read`, `indices` and `rng` see `make_trainer`.

    >>> from graspcl.codec import OPQ
    >>> from graspcl.model import vector_network
    >>> net = vector_network(4, generator=torch.Generator().manual_seed(0))
    >>> codec = fit_codec(net, OPQ(codebooks=2, size=4), lambda indices: torch.eye(4)[indices % 4], range(20))
    >>> codec.encode(torch.eye(4)).shape
    torch.Size([4, 2])
    """
    if type(codec).fit is Codec.fit:
        return codec
    rng, samples = np.random.default_rng(rng), np.asarray(indices, dtype=np.int64)
    if not len(samples):
        raise GraspError("a codec needs at least one sample to train on, got none")
    samples = np.sort(rng.permutation(samples)[:limit])
    each = math.ceil(limit / len(samples))
    network.eval()
    kept = []
    for start in range(0, len(samples), _CHUNK):
        latents = network.encode(read(samples[start : start + _CHUNK]).to(network.device))
        kept.append(_some_locations(latents, each, rng).cpu())
    vectors = torch.cat(kept)
    return codec.fit(vectors[torch.from_numpy(rng.permutation(len(vectors))[:limit])])


def _some_locations(latents: Tensor, each: int, rng: np.random.Generator) -> Tensor:
    """Return up to `each` random locations of every latent [n, C, …], as latents [m, C, 1…] of one location."""
    if latents.ndim == 2:
        return latents
    flat = latents.flatten(2)  # [n, C, locations]
    order = torch.from_numpy(rng.random((len(flat), flat.shape[2])).argsort(1)[:, :each]).to(latents.device)
    some = flat.gather(2, order[:, None].expand(-1, flat.shape[1], -1)).movedim(1, 2).flatten(0, 1)
    return some.reshape(*some.shape, *[1] * (latents.ndim - 2))
