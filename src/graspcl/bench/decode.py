"""Decoding: sums of table rows against faiss's decode, reverse transform and transposition to channels-first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from graspcl.bench.figure import Figure, median_seconds
from graspcl.codec import OPQ
from graspcl.errors import require

_BATCH, _SIDE, _CHANNELS, _RUNS = 128, 14, 80, 15


def run() -> Iterator[Figure]:
    """Batches of 128 latents of 14 x 14 vectors of 80 numbers, 8 codebooks, one thread each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    require("faiss", "opq").omp_set_num_threads(1)
    try:
        yield from _measure()
    finally:
        torch.set_num_threads(threads)
        require("faiss", "opq").omp_set_num_threads(threads)


def _measure() -> Iterator[Figure]:
    noise = torch.Generator().manual_seed(0)
    mix = torch.randn(_CHANNELS, _CHANNELS, generator=noise)
    latents = torch.einsum("ce,nehw->nchw", mix, torch.randn(_BATCH, _CHANNELS, _SIDE, _SIDE, generator=noise))
    codec = OPQ(iterations=2, samples=10_000).fit(latents)
    codes = codec.encode(latents)
    rotation, quantizer = faiss_twin(codec)
    flat = codes.reshape(-1, codec.codebooks).numpy()

    def by_faiss() -> torch.Tensor:
        vectors = torch.from_numpy(rotation.reverse_transform(quantizer.decode(flat)))
        return vectors.reshape(_BATCH, _SIDE, _SIDE, _CHANNELS).permute(0, 3, 1, 2).contiguous()

    ours, theirs = median_seconds(lambda: codec.decode(codes), _RUNS), median_seconds(by_faiss, _RUNS)
    rate = f"{len(flat) / ours / 1e6:.1f} million vectors/s on one core; medians of {_RUNS} runs"
    yield Figure("decode", "faster than faiss, times", theirs / ours, 5, detail=rate)
    difference = float((codec.decode(codes) - by_faiss()).abs().max())
    yield Figure("decode", "largest difference to faiss, in units of 1e-4", difference * 1e4, 1, False)


def faiss_twin(codec: OPQ) -> tuple[Any, Any]:
    """faiss's own rotation and quantiser with the codec's tables."""
    faiss = require("faiss", "opq")
    state = codec.state_dict()
    dim = len(state["rotation"])
    rotation = faiss.OPQMatrix(dim, codec.codebooks)
    faiss.copy_array_to_vector(state["rotation"].numpy().ravel(), rotation.A)
    rotation.is_trained = rotation.is_orthonormal = True
    quantizer = faiss.ProductQuantizer(dim, codec.codebooks, codec.size.bit_length() - 1)
    faiss.copy_array_to_vector(state["centroids"].numpy().ravel(), quantizer.centroids)
    return rotation, quantizer
