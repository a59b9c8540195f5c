"""The one entry point, and the codec that is trained on base latents in bounded memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_network import same, seeded, stripes, tiny

from graspcl.codec import OPQ, Codec, Half
from graspcl.errors import GraspError
from graspcl.model import vector_network
from graspcl.pretrain import (
    SupervisedSettings,
    SwavSettings,
    fit_codec,
    initialise,
    save_weights,
    train_supervised,
    train_swav,
)
from graspcl.pretrain.initialise import _some_locations

IMAGES, LABELS = stripes(24)
SUPERVISED = SupervisedSettings(epochs=2, batch_size=8, lr=0.05)
SWAV = SwavSettings(epochs=1, batch_size=8, prototypes=6, projection=4, hidden=8, small_views=1)


def read(indices):
    return IMAGES[indices]


def test_each_method_is_what_its_own_function_does(tmp_path: Path) -> None:
    one, other = tiny(), tiny()
    initialise(one, "supervised", read=read, indices=range(24), rows=LABELS, settings=SUPERVISED, rng=3)
    train_supervised(other, read, range(24), LABELS, SUPERVISED, 3)
    assert same(one, other)
    one, other = tiny(), tiny()
    log = initialise(one, "swav", read=read, indices=range(24), settings=SWAV, rng=3)
    train_swav(other, read, range(24), SWAV, 3)
    assert same(one, other) and len(log) == 1
    save_weights(one, tmp_path / "a")
    loaded = tiny(1)
    assert initialise(loaded, "weights", weights=tmp_path / "a") == []
    assert torch.equal(loaded.plastic.layer2[0].weight, one.plastic.layer2[0].weight) and not loaded.training


def test_training_can_begin_from_weights(tmp_path: Path) -> None:
    first = tiny()
    initialise(first, "swav", read=read, indices=range(24), settings=SWAV)
    save_weights(first, tmp_path / "swav")
    second = tiny(1)
    quiet = SupervisedSettings(epochs=1, batch_size=8, lr=1e-9, part="plastic")
    initialise(
        second, "supervised", weights=tmp_path / "swav", read=read, indices=range(24), rows=LABELS, settings=quiet
    )
    torch.testing.assert_close(second.plastic.layer2[0].weight, first.plastic.layer2[0].weight)
    assert torch.equal(second.frozen.layer0[0].weight, first.frozen.layer0[0].weight)
    assert second.head.classes == 4


def test_mistakes_are_explained() -> None:
    with pytest.raises(GraspError, match="no base initialisation called 'swaw'; did you mean 'swav'"):
        initialise(tiny(), "swaw")
    with pytest.raises(GraspError, match="needs a file: weights=PATH"):
        initialise(tiny(), "weights")
    with pytest.raises(GraspError, match="'swav' needs images to train on"):
        initialise(tiny(), "swav", read=read)
    with pytest.raises(GraspError, match="needs the head's row of each sample"):
        initialise(tiny(), "supervised", read=read, indices=range(4))
    with pytest.raises(GraspError, match="'swav' takes SwavSettings, not SupervisedSettings"):
        initialise(tiny(), "swav", read=read, indices=range(4), settings=SUPERVISED)


class Recorder(Codec):
    """Remembers what it was given to learn from."""

    def fit(self, inputs: torch.Tensor) -> Codec:
        self.inputs = inputs
        return self


@pytest.mark.parametrize(("limit", "images", "vectors"), [(100, 24, 100), (10_000, 24, 24 * 16), (7, 7, 7)])
def test_a_codec_learns_from_a_sample_of_locations(limit: int, images: int, vectors: int) -> None:
    network, seen = tiny(), []

    def watched(indices):
        seen.extend(indices.tolist())
        return read(indices)

    done: list[int] = []
    codec = fit_codec(network, Recorder(), watched, range(24), limit=limit, rng=0, chunk=5, on_batch=done.append)
    assert len(seen) == images == sum(done) and max(done) <= 5
    assert codec.inputs.shape == (vectors, 16, 1, 1)
    every = network.encode(IMAGES).movedim(1, -1).reshape(-1, 16)
    distance = torch.cdist(codec.inputs.flatten(1), every, compute_mode="donot_use_mm_for_euclid_dist")
    assert distance.amin(1).max() < 1e-4  # each is a location of some image
    assert len(torch.unique(distance.argmin(1))) > 0.9 * vectors  # and each a different one


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
    with pytest.raises(GraspError, match="at least one latent"):
        fit_codec(network, Recorder(), never, [])
