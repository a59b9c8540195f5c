"""Optimised product quantisation of latents: a few bytes per location (section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from graspcl.checks import Count, checked
from graspcl.codec.codec import Codec, codecs
from graspcl.errors import GraspError, require

_SCORES = 2**21  # numbers at a time, while the nearest centroids are searched


@codecs.register("opq")
@checked
@dataclass
class OPQ(Codec):
    """`codebooks` bytes per vector: rotate, cut into `codebooks` parts, store the nearest of `size` centroids of each.

    Spatial latents [n, C, H, W] are coded per location to [n, H, W, codebooks], vectors [n, D] to [n, codebooks].
    `fit` trains rotation and centroids with faiss on at most `samples` vectors. Call it once, on base latents.

    Decoding is Rᵀ · concat(c_m[code_m]) = Σ_m T_m[code_m], with the tables T_m = R_mᵀ c_m computed once. It is a sum of
    table rows on the device of the codes, without a matrix product.

    >>> codec = OPQ(codebooks=2, size=16, iterations=2).fit(torch.arange(400.0).reshape(100, 4).sin())
    >>> codec.encode(torch.zeros(3, 4)).shape, codec.decode(codec.encode(torch.zeros(3, 4))).shape
    (torch.Size([3, 2]), torch.Size([3, 4]))
    """

    codebooks: Count = 8
    size: Literal[2, 4, 8, 16, 32, 64, 128, 256] = 256
    iterations: Count = 50
    samples: Count = 100_000
    seed: int = 0
    _rotation: torch.Tensor | None = field(default=None, init=False, repr=False)  # [D, D]
    _centroids: torch.Tensor | None = field(default=None, init=False, repr=False)  # [codebooks, size, D / codebooks]
    _tables: dict[torch.device, torch.Tensor] = field(default_factory=dict, init=False, repr=False)

    error = "distance to the nearest centroids"

    @property
    def nbytes(self) -> int:
        return sum(table.numel() * table.element_size() for table in self.state_dict().values())

    @property
    def locations(self) -> int:
        return -2

    def fit(self, inputs: torch.Tensor) -> OPQ:
        faiss = require("faiss", "opq")
        vectors, _ = _as_vectors(inputs)
        dim = vectors.shape[1]
        if dim % self.codebooks:
            fit = [m for m in range(1, dim + 1) if dim % m == 0]
            raise GraspError(f"codebooks must divide the {dim} dimensions and be one of {fit}, got {self.codebooks}")
        if len(vectors) < self.size:
            raise GraspError(f"codebooks of {self.size} entries need at least {self.size} vectors, got {len(vectors)}")
        if len(vectors) > self.samples:
            choice = torch.Generator().manual_seed(self.seed)
            vectors = vectors[torch.randperm(len(vectors), generator=choice)[: self.samples]]
        # With fewer vectors than dimensions faiss writes beyond its memory. Repeated vectors train the same tables.
        x = vectors.repeat(-(-dim // len(vectors)), 1).float().cpu().contiguous().numpy()
        bits = self.size.bit_length() - 1
        rotation = faiss.OPQMatrix(dim, self.codebooks)
        rotation.niter = self.iterations
        rotation.pq = start = faiss.ProductQuantizer(dim, self.codebooks, bits)
        quantizer = faiss.ProductQuantizer(dim, self.codebooks, bits)
        for pq in (start, quantizer):
            pq.cp.seed = self.seed + 1234
            pq.cp.min_points_per_centroid = 1  # a small base set is the user's choice: do not warn on every run
        rotation.train(x)
        quantizer.train(rotation.apply(x))
        r = faiss.vector_to_array(rotation.A).reshape(dim, dim)
        c = faiss.vector_to_array(quantizer.centroids).reshape(self.codebooks, self.size, dim // self.codebooks)
        self._set(torch.from_numpy(r.copy()), torch.from_numpy(c.copy()))
        return self

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        rotation, centroids = self._trained()
        vectors, shape = _as_vectors(inputs)
        if vectors.shape[1] != len(rotation):
            raise GraspError(f"this OPQ was trained on {len(rotation)} dimensions, got {vectors.shape[1]}")
        rotation, centroids = rotation.to(vectors.device), centroids.to(vectors.device)
        half_norms = centroids.square().sum(2) / 2  # argmin |y - c|² = argmax y·c - |c|²/2
        codes = torch.empty(len(vectors), self.codebooks, dtype=torch.uint8, device=vectors.device)
        chunk = _SCORES // (self.codebooks * self.size) + 1
        for begin in range(0, len(vectors), chunk):
            y = (vectors[begin : begin + chunk].float() @ rotation.T).reshape(-1, self.codebooks, centroids.shape[2])
            scores = torch.einsum("nmd,mkd->nmk", y, centroids).sub_(half_norms)
            codes[begin : begin + chunk] = scores.argmax(2)
        return codes.reshape(*shape, self.codebooks).cpu()

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        table = self._table(codes.device)
        if codes.ndim < 2 or codes.shape[-1] != self.codebooks:
            raise GraspError(f"this OPQ has codes of {self.codebooks} bytes per vector, got shape {tuple(codes.shape)}")
        # All locations of a sample in one row: adding to one long row is much faster than to rows of 8 numbers.
        offsets = torch.arange(0, self.codebooks * self.size, self.size, dtype=torch.int32, device=codes.device)
        locations = codes.shape[1:-1].numel()
        rows = codes.reshape(len(codes), locations * self.codebooks).int().add_(offsets.repeat(locations))
        vectors = torch.nn.functional.embedding_bag(rows.reshape(-1, self.codebooks), table, mode="sum")
        if codes.ndim == 2:
            return vectors
        # [n, H, W, C] in memory, viewed as [n, C, H, W]: channels-last, the fastest layout for convolutions.
        return vectors.reshape(*codes.shape[:-1], table.shape[1]).movedim(-1, 1)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._rotation is None else {"rotation": self._rotation, "centroids": self._centroids}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._set(torch.as_tensor(state["rotation"]), torch.as_tensor(state["centroids"]))

    def _set(self, rotation: torch.Tensor, centroids: torch.Tensor) -> None:
        found, expected = tuple(centroids.shape), (self.codebooks, self.size, len(rotation) // self.codebooks)
        if found != expected:
            raise GraspError(f"an OPQ with centroids of shape {found} does not fit {self!r}, which has {expected}")
        self._rotation, self._centroids, self._tables = rotation, centroids, {}

    def _trained(self) -> tuple[torch.Tensor, torch.Tensor]:
        if self._rotation is None or self._centroids is None:
            raise GraspError("this OPQ is not trained: call fit(latents) on base latents first")
        return self._rotation, self._centroids

    def _table(self, device: torch.device) -> torch.Tensor:
        if device not in self._tables:
            rotation, centroids = self._trained()
            parts = rotation.reshape(self.codebooks, -1, len(rotation))  # R_m: [D / codebooks, D]
            self._tables[device] = torch.einsum("mkd,mde->mke", centroids, parts).flatten(0, 1).to(device)
        return self._tables[device]


def _as_vectors(inputs: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """[n, D] unmodified, [n, C, …] as one vector of C numbers per location; and the shape without the vectors."""
    if inputs.ndim < 2:
        raise GraspError(f"OPQ takes vectors [n, D] or spatial latents [n, C, H, W], got shape {tuple(inputs.shape)}")
    last = inputs.movedim(1, -1)
    return last.reshape(-1, last.shape[-1]), tuple(last.shape[:-1])
