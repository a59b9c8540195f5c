"""One entry point for what happens to a network before the stream: trained weights, or training on the base classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from graspcl.codec import Codec
from graspcl.errors import GraspError, nearest
from graspcl.model import SplitNetwork
from graspcl.pretrain.supervised import SupervisedSettings, SupervisedTrainer
from graspcl.pretrain.swav import SwavSettings, SwavTrainer
from graspcl.pretrain.trainer import Epoch, Read, Settings, Trainer
from graspcl.pretrain.weights import load_weights

Method = Literal["supervised", "swav", "weights"]
METHODS: tuple[Method, ...] = ("supervised", "swav", "weights")


def initialise(
    network: SplitNetwork,
    method: Method,
    *,
    weights: str | Path | None = None,
    read: Read | None = None,
    indices: ArrayLike | None = None,
    rows: ArrayLike | None = None,
    settings: Settings | None = None,
    rng: np.random.Generator | int = 0,
    on_epoch: Callable[[Trainer[Any]], None] | None = None,
) -> list[Epoch]:
    """Bring `network` to where a stream begins, and return the log of its epochs (none for `weights`).

    - "weights": load the file `weights` (`load_weights`);
    - "supervised": train on `read(indices)` with the head's `rows` (`train_supervised`);
    - "swav": train on `read(indices)` without labels (`train_swav`).

    With both, training begins from `weights`. Afterwards the network is frozen as before and in eval mode.

    >>> import tempfile
    >>> from graspcl.pretrain import save_weights
    >>> from graspcl.model import vector_network
    >>> first, second = (vector_network(4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(first, Path(folder) / "base.safetensors")
    ...     log = initialise(second, "weights", weights=Path(folder) / "base.safetensors")
    >>> bool((first(torch.ones(1, 4)).embedding == second(torch.ones(1, 4)).embedding).all())
    True
    """
    if method not in METHODS:
        raise GraspError(f"there is no base initialisation called {method!r}; {nearest(method, METHODS)}")
    if method == "weights" and weights is None:
        raise GraspError("base initialisation from weights needs a file: weights=PATH")
    if weights is not None:
        load_weights(network, weights)
    if method == "weights":
        network.eval()
        return []
    if read is None or indices is None:
        raise GraspError(f"base initialisation by {method!r} needs images to train on: read and indices")
    return make_trainer(network, method, read, indices, rows, settings, rng).run(on_epoch)


def make_trainer(
    network: SplitNetwork,
    method: Method,
    read: Read,
    indices: ArrayLike,
    rows: ArrayLike | None = None,
    settings: Settings | None = None,
    rng: np.random.Generator | int = 0,
) -> Trainer[Any]:
    """The trainer behind a method, for those who save its state between epochs."""
    expected = SwavSettings if method == "swav" else SupervisedSettings
    if settings is not None and not isinstance(settings, expected):
        raise GraspError(f"{method!r} takes {expected.__name__}, not {type(settings).__name__}")
    if method == "swav":
        return SwavTrainer(network, read, indices, cast("SwavSettings | None", settings), rng)
    if rows is None:
        raise GraspError("supervised base initialisation needs the head's row of each sample: rows")
    return SupervisedTrainer(network, read, indices, rows, cast("SupervisedSettings | None", settings), rng)


def fit_codec(
    network: SplitNetwork,
    codec: Codec,
    read: Read,
    indices: ArrayLike,
    limit: int = 100_000,
    rng: np.random.Generator | int = 0,
    chunk: int = 128,
    on_batch: Callable[[int], None] | None = None,
) -> Codec:
    """Train `codec` on latents of the images at `indices`, and return it.

    Images are read and encoded `chunk` at a time. Of spatial latents [n, C, H, W] a few random locations of each image
    are kept, `limit` in all, so memory holds limit·C numbers and one chunk. A codec that learns nothing reads nothing.

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
    rng, device = np.random.default_rng(rng), next(network.parameters()).device
    samples = np.asarray(indices, dtype=np.int64)
    if limit < 1 or not len(samples):
        raise GraspError(f"a codec is trained on at least one latent, not on {min(limit, len(samples))}")
    samples = np.sort(rng.permutation(samples)[:limit])  # fewer than there are images: one location of some
    each = math.ceil(limit / len(samples))
    network.eval()
    kept = []
    for start in range(0, len(samples), chunk):
        latents = network.encode(read(samples[start : start + chunk]).to(device))
        kept.append(_some_locations(latents, each, rng).cpu())
        if on_batch is not None:
            on_batch(len(latents))
    vectors = torch.cat(kept)
    return codec.fit(vectors[torch.from_numpy(rng.permutation(len(vectors))[:limit])])


def _some_locations(latents: Tensor, each: int, rng: np.random.Generator) -> Tensor:
    """`each` random locations of every latent [n, C, …], or all if there are fewer, as latents [m, C, 1…] of one."""
    if latents.ndim == 2:
        return latents
    flat = latents.flatten(2)  # [n, C, locations]
    order = torch.from_numpy(rng.random((len(flat), flat.shape[2])).argsort(1)[:, :each]).to(latents.device)
    some = flat.gather(2, order[:, None].expand(-1, flat.shape[1], -1)).movedim(1, 2).flatten(0, 1)
    return some.reshape(*some.shape, *[1] * (latents.ndim - 2))
