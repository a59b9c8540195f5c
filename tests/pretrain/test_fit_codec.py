"""The codec that is trained on latents in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_network import seeded, stripes, tiny

from graspcl.codec import OPQ, Codec, Half
from graspcl.errors import GraspError
from graspcl.model import vector_network
from graspcl.pretrain import codec as module
from graspcl.pretrain import fit_codec
from graspcl.pretrain.codec import _some_locations

IMAGES, _ = stripes(24)


def read(indices):
    return IMAGES[indices]


class Recorder(Codec):
    """Remembers what it was given to learn from."""

    def fit(self, inputs: torch.Tensor) -> Codec:
        self.inputs = inputs
        return self


@pytest.mark.parametrize(("limit", "images", "vectors"), [(100, 24, 100), (10_000, 24, 24 * 16), (7, 7, 7)])
def test_a_codec_learns_from_a_sample_of_locations(
    limit: int, images: int, vectors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 5)
    network, chunks = tiny(), []

    def watched(indices):
        chunks.append(len(indices))
        return read(indices)

    codec = fit_codec(network, Recorder(), watched, range(24), limit=limit, rng=0)
    assert sum(chunks) == images and max(chunks) <= 5
    assert codec.inputs.shape == (vectors, 16, 1, 1)
    every = network.encode(IMAGES).movedim(1, -1).reshape(-1, 16)
    distance = torch.cdist(codec.inputs.flatten(1), every, compute_mode="donot_use_mm_for_euclid_dist")
    assert distance.amin(1).max() < 1e-4  # each is a location of some image
    assert len(torch.unique(distance.argmin(1))) > 0.9 * vectors  # and each a different one


def test_the_generator_draws_the_images() -> None:
    def drawn(rng: int) -> list[int]:
        asked: list[int] = []
        fit_codec(tiny(), Recorder(), lambda i: (asked.extend(i.tolist()), read(i))[1], range(24), limit=7, rng=rng)
        return asked

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(set(drawn(0))) == 7 and drawn(0) != list(range(7)) != drawn(1)


def test_locations_are_drawn_evenly() -> None:
    latents = torch.arange(9.0).reshape(1, 1, 3, 3).expand(3000, 2, 3, 3)
    some = _some_locations(latents, 3, np.random.default_rng(0))
    assert some.shape == (9000, 2, 1, 1)
    assert torch.equal(some[:, 0], some[:, 1])  # channels stay together
    counts = torch.bincount(some[:, 0].flatten().long(), minlength=9)
    assert counts.min() > 900 and counts.max() < 1100
    each = some[:, 0].reshape(3000, 3)
    assert all(len(set(row)) == 3 for row in each.tolist())  # none twice from one image


def test_opq_from_a_sample_codes_nearly_as_well_as_from_all() -> None:
    network = tiny()
    images, _ = stripes(200)
    latents = network.encode(images)
    errors = []
    for limit in (600, 100_000):
        codec = fit_codec(network, OPQ(codebooks=4, size=16, iterations=5), lambda i: images[i], range(200), limit)
        errors.append(float((codec.decode(codec.encode(latents)) - latents).square().mean() / latents.square().mean()))
    assert errors[1] <= errors[0] < 1.3 * errors[1] and errors[1] < 0.5


def test_vectors_are_taken_whole_and_a_codec_that_learns_nothing_reads_nothing() -> None:
    network = vector_network(6, generator=seeded())
    codec = fit_codec(network, Recorder(), lambda i: torch.ones(len(i), 6), range(50), limit=20)
    assert codec.inputs.shape == (20, 6)

    def never(indices):
        raise AssertionError("read")

    half = Half()
    assert fit_codec(network, half, never, range(50)) is half
    with pytest.raises(GraspError, match="needs at least one sample"):
        fit_codec(network, Recorder(), never, [])
    with pytest.raises(GraspError, match="limit must be a whole number of at least 1, got 0"):
        fit_codec(network, Recorder(), never, [0], limit=0)
