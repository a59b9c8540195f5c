"""What a codec costs: its relative error, and the accuracy that simple classifiers lose if they learn from codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graspcl.buffer.maintenance import occurrence
from graspcl.checks import Array
from graspcl.codec import Codec, codecs, ladder
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.settings.config import Part

TOLERANCE = 1.0  # points of accuracy; a codec that costs more gets a warning
_CHUNK = 256
_MOST = 2_000  # samples that are measured
_BYTES = 256 * 10**6  # of their latents, at most
_TRIAL = {"iterations": 10, "samples": 25_000}  # of the training of codecs that are only tried, at most
_STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0, 10.0)  # of the ridge, in mean eigenvalues


@dataclass(frozen=True)
class CodecCost:
    """What a codec costs, measured on `held_out` samples that it was not trained on.

    >>> print(CodecCost("opq(codebooks=8)", 1568, 0.43, 2.25, 7.8, 1000))
    opq(codebooks=8): 1,568 bytes a sample, relative error 0.430, 2.2 points of nearest-mean and 7.8 of ridge accuracy \
lost on 1,000 held-out base samples
    """

    codec: str
    bytes: float  # of a sample, mean, without padding
    relative_error: float  # ‖latent - decoded‖ / ‖latent‖, without padding
    nearest_mean: float  # points of accuracy lost
    ridge: float
    held_out: int

    @property
    def points(self) -> float:
        """The larger loss of the two."""
        return max(self.nearest_mean, self.ridge)

    def __str__(self) -> str:
        lost = f"{self.nearest_mean:.1f} points of nearest-mean and {self.ridge:.1f} of ridge accuracy lost"
        size = f"{self.bytes:,.0f} bytes a sample, relative error {self.relative_error:.3f}"
        return f"{self.codec}: {size}, {lost} on {self.held_out:,} held-out base samples"


def split(labels: Array, sample_bytes: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return positions of base samples to measure on, and of those to train codecs on.

    Half of each class is measured, as far as room allows: classes of fewer than 4 samples are not. The first array is
    empty if fewer than two classes remain.

    >>> [part.tolist() for part in split(np.array([0, 0, 0, 0, 1, 1, 1]), 8, np.random.default_rng(0))]
    [[], [0, 1, 2, 3, 4, 5, 6]]
    """
    _, rows, counts = np.unique(labels, return_inverse=True, return_counts=True)
    large = int((counts >= 4).sum())
    most = max(2, min(_MOST, _BYTES // sample_bytes) // max(1, large))
    taken = np.where((counts >= 4) & (large > 1), np.minimum(counts // 2, most), 0)
    order = rng.permutation(len(labels))
    measured = np.sort(order[occurrence(rows[order]) < taken[rows[order]]])
    return measured, np.setdiff1d(np.arange(len(labels)), measured)


class CodecMeter:
    """Measures codecs on latents [n, …] of base samples with `labels` [n], of two classes or more.

    Classifiers read the network's features. They learn from decoded samples of one half and are tested on uncoded
    samples of the other, as stored samples and predictions are.
    """

    def __init__(self, network: SplitNetwork, latents: Tensor, labels: Array, padding: Tensor | None = None) -> None:
        self.network, self.latents, self.padding = network, latents, padding
        _, rows = np.unique(labels, return_inverse=True)
        self._rows, self._half = torch.from_numpy(rows), torch.from_numpy(occurrence(rows) % 2 == 1)
        self._features = torch.cat([self._seen(part) for part in self._parts()])
        self._uncoded = self._accuracies(self._features)
        self.places = latents[0, 0].numel()  # locations of a sample
        self.vectors = float(self.places)  # those that are stored, mean: padding is not
        if padding is not None:
            self.vectors = sum(int((part != padding).any(1).sum()) for part in self._parts()) / len(latents)

    def cost(self, codec: Codec, label: str) -> CodecCost:
        """Measure a trained codec."""
        wrong = right = size = 0.0
        features = []
        for part in self._parts():
            codes = codec.encode(part)
            size += float(codec.lengths(codes).sum()) if codec.ragged else codes.nbytes
            decoded = codec.decode(codes).cpu()
            real = torch.ones(()) if self.padding is None else (part != self.padding).any(1, keepdim=True)
            wrong += float(((part - decoded) * real).double().square().sum())
            right += float((part * real).double().square().sum())
            features.append(self._seen(decoded))
        (nearest, ridge), coded, number = self._uncoded, self._accuracies(torch.cat(features)), len(self.latents)
        error = (wrong / max(right, 1e-30)) ** 0.5
        stored = size / (number * self.places) * self.vectors
        return CodecCost(label, stored, error, nearest - coded[0], ridge - coded[1], number)

    def _parts(self) -> Iterator[Tensor]:
        return (part.float() for part in self.latents.split(_CHUNK))

    @torch.no_grad()
    def _seen(self, latents: Tensor) -> Tensor:
        features: Tensor = self.network(latents.to(self.network.device)).features
        return features.double().cpu()

    def _accuracies(self, learned: Tensor) -> tuple[float, float]:
        """Return the accuracies of nearest mean and ridge that learn from features `learned` [n, d], in percent."""
        if not learned.isfinite().all():
            raise GraspError("the network has NaN or infinite features")
        hits = np.zeros(2)
        targets = torch.nn.functional.one_hot(self._rows).double()
        for half in (self._half, ~self._half):
            x, y, tests, rows = learned[half], targets[half], self._features[~half], self._rows[~half]
            means = (y.T @ x) / y.sum(0)[:, None]
            hits[0] += int((torch.cdist(tests, means).argmin(1) == rows).sum())
            centre, spread = x.mean(0), x.std(0).clamp_min(1e-9)
            x, tests = (x - centre) / spread, (tests - centre) / spread
            values, vectors = torch.linalg.eigh(x @ x.T)
            aimed, seen = vectors.T @ (y - y.mean(0)), tests @ x.T @ vectors
            strengths = [strength * float(values.mean()) + 1e-9 for strength in _STRENGTHS]
            found = [seen @ (aimed / (values.clamp_min(0) + ridge)[:, None]) + y.mean(0) for ridge in strengths]
            hits[1] += max(int((scores.argmax(1) == rows).sum()) for scores in found)
        nearest, ridge = (100 * hits / len(self._rows)).tolist()
        return nearest, ridge


class CodecTrials:
    """Tries codecs on base samples `rows` [n] with `labels` [n]: trains them on some, and measures them on others.

    Args:
        read: returns latents of the readable ones among samples [m], and their positions.
        fit: trains a codec on samples [m].
        stored: number of samples that codes are for; a codec's tables count once.
        padding: the latent [C, 1] of a padded location, if the network pads.
    """

    def __init__(
        self, network: SplitNetwork, rows: Array, labels: Array, read: Callable[[Array], tuple[Tensor, Array]],
        fit: Callable[[Codec, Array], Codec], stored: int, rng: np.random.Generator,
        padding: Tensor | None = None,
    ) -> None:  # fmt: skip
        self._network, self._rows, self._labels, self._read, self._fit = network, rows, labels, read, fit
        self._stored, self._rng, self._padding = stored, rng, padding

    def report(self, part: Part, fitted: Codec | None = None, tolerance: float = TOLERANCE) -> dict[str, Any]:
        """Return what the codec `part` costs, and as "within" a codec within the tolerance (or None) if it is not.

        It is trained for this on part of the samples, unless it is `fitted` on others. "not_measured" is the reason why
        nothing is known.
        """
        try:
            cost = self.cost(part, fitted)
        except GraspError as error:
            return {"codec": str(part), "not_measured": str(error)}
        found: dict[str, Any] = asdict(cost)
        if cost.points > tolerance:
            other, its = self.smallest(tolerance, above=cost.bytes)
            found["within"] = str(other) if its is not None and its.points <= tolerance else None
        return found

    def smallest(self, tolerance: float, above: float = 0.0) -> tuple[Part, CodecCost | None]:
        """Return the smallest codec of the ladder, of more than `above` bytes a sample, within `tolerance` points.

        Without enough samples to measure, or if all cost more, it is the last one: half precision.
        """
        cost = None
        try:
            meter, _ = self._prepared
        except GraspError:
            return Part("half"), None
        dim = meter.latents.shape[1]
        vectors = meter.vectors
        offered = sorted(ladder(dim), key=lambda one: one[2] * vectors * self._stored + one[3])
        for name, parameters, size, _ in offered:
            if size * vectors > above:
                try:
                    cost = self.cost(Part(name, parameters))
                except GraspError:  # too few vectors for its codebooks
                    continue
                if cost.points <= tolerance:
                    return Part(name, parameters), cost
        return Part("half"), cost

    def cost(self, part: Part, fitted: Codec | None = None) -> CodecCost:
        """Return what the codec `part` costs; raise a GraspError if there are too few samples."""
        meter, others = self._prepared
        codec = fitted
        if codec is None:
            codec = codecs.create(part.name, **part.parameters)
            for name in _TRIAL.keys() & codecs.parameters(part.name).keys():
                setattr(codec, name, min(getattr(codec, name), _TRIAL[name]))
            self._fit(codec, others)
        return meter.cost(codec, str(part))

    @cached_property
    def _prepared(self) -> tuple[CodecMeter, Array]:
        """Samples to measure on, and the others."""
        one, _ = self._read(self._rows[:1])
        measured, others = split(self._labels, max(1, one.nbytes), self._rng)
        latents, kept = self._read(self._rows[measured])
        labels = self._labels[measured[kept]]
        if len(np.unique(labels)) < 2:
            raise GraspError("measuring a codec takes 4 base samples or more of two classes")
        return CodecMeter(self._network, latents, labels, self._padding), self._rows[others]


def described_cost(cost: dict[str, Any]) -> str:
    """Return one line about a report of `CodecTrials`, for people.

    >>> described_cost({"codec": "half", "not_measured": "there are too few samples"})
    'codec half: what it costs was not measured: there are too few samples'
    """
    if "not_measured" in cost:
        return f"codec {cost['codec']}: what it costs was not measured: {cost['not_measured']}"
    said = f"codec {CodecCost(**{name: value for name, value in cost.items() if name != 'within'})}"
    if "within" not in cost:
        return said
    better = f"--codec '{cost['within']}' is within it" if cost["within"] else "and no larger codec is within it"
    return f"{said}; warning: more than {TOLERANCE:g} point, {better}"
