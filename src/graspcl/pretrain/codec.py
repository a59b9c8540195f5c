"""Codecs trained on a network's latents, and read from weights files."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from graspcl.checks import Count, checked
from graspcl.codec import Codec, codecs
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.pretrain.trainer import Read
from graspcl.pretrain.weights import CODEC, read_header, read_safetensors


@checked
def fit_codec(
    network: SplitNetwork,
    codec: Codec,
    read: Read,
    indices: ArrayLike,
    limit: Count = 100_000,
    rng: np.random.Generator | int = 0,
    chunk: int = 128,
    on_batch: Callable[[int], None] | None = None,
) -> Codec:
    """Train `codec` on latents of images, and return it. A codec without training reads nothing.

    Memory contains `limit` vectors and one chunk of images: of spatial latents [n, C, H, W], a few random locations of
    each image are used.

    Args:
        read, indices, rng: see `pretrain`.
        limit: the largest number of vectors.
        chunk: images that are read and encoded at a time.
        on_batch: called with the number of images of each chunk.

    >>> from graspcl.codec import OPQ
    >>> from graspcl.model import mobilenet_v3_large
    >>> net = mobilenet_v3_large(generator=torch.Generator().manual_seed(0))
    >>> images = torch.arange(240, dtype=torch.uint8).reshape(20, 3, 2, 2).repeat(1, 1, 32, 32)
    >>> codec = fit_codec(net, OPQ(size=16, iterations=1), lambda indices: images[indices], range(20), limit=100)
    >>> codec.encode(net.encode(images[:2])).shape
    torch.Size([2, 4, 4, 8])
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
    for start in range(0, len(samples), chunk):
        latents = network.encode(read(samples[start : start + chunk]).to(network.device))
        kept.append(_some_locations(latents, each, rng).cpu())
        if on_batch is not None:
            on_batch(len(latents))
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


def load_codec(path: str | Path) -> Codec | None:
    """Return the trained codec that `save_weights` stored with a network, or None if there is none."""
    header = read_header(path).get("codec")
    if header is None:
        return None
    parameters = dict(header)
    codec = codecs.create(parameters.pop("name"), **parameters)
    tensors, _ = read_safetensors(Path(path))
    codec.load_state_dict({n.removeprefix(CODEC): value for n, value in tensors.items() if n.startswith(CODEC)})
    return codec
