"""Optimised product quantisation, held to faiss's own encoder and decoder."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from graspcl.codec import OPQ, codecs
from graspcl.errors import GraspError, MissingExtra
from graspcl.testing.common import seeded

faiss = pytest.importorskip("faiss")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Training sets here are so small that threads cost more than they bring."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(before)


def latents(*shape: int, seed: int = 0) -> torch.Tensor:
    """Correlated numbers, so that the rotation has something to do."""
    generator = seeded(seed)
    mix = torch.randn(shape[1], shape[1], generator=seeded(99))
    return torch.einsum("nc...,cd->nd...", torch.randn(*shape, generator=generator), mix)


@cache
def trained(codebooks: int, size: int, dim: int) -> OPQ:
    return OPQ(codebooks=codebooks, size=size, iterations=2).fit(latents(600, dim))


def faiss_parts(codec: OPQ) -> tuple[object, object]:
    """The same rotation and centroids in faiss's own classes."""
    state = codec.state_dict()
    rotation, centroids = state["rotation"].numpy(), state["centroids"].numpy()
    dim = len(rotation)
    transform = faiss.LinearTransform(dim, dim, False)
    faiss.copy_array_to_vector(rotation.ravel(), transform.A)
    transform.is_trained = transform.is_orthonormal = True
    quantizer = faiss.ProductQuantizer(dim, codec.codebooks, codec.size.bit_length() - 1)
    faiss.copy_array_to_vector(centroids.ravel(), quantizer.centroids)
    return transform, quantizer


def unpacked(packed: np.ndarray, codebooks: int, size: int) -> np.ndarray:
    """faiss packs codes of fewer than 8 bits, the first in the lowest bits."""
    width = size.bit_length() - 1
    bits = np.unpackbits(packed, axis=1, bitorder="little")[:, : codebooks * width]
    return bits.reshape(len(packed), codebooks, width) @ (1 << np.arange(width))


@pytest.mark.parametrize(("codebooks", "size", "dim"), [(2, 256, 16), (4, 256, 4), (2, 16, 12), (1, 2, 5), (5, 64, 20)])
def test_codes_and_decoding_are_those_of_faiss(codebooks: int, size: int, dim: int) -> None:
    codec = trained(codebooks, size, dim)
    transform, quantizer = faiss_parts(codec)
    inputs = latents(2000, dim, seed=1)
    codes = codec.encode(inputs)
    rotated = transform.apply(inputs.numpy())
    packed = quantizer.compute_codes(rotated)
    theirs = unpacked(packed, codebooks, size)
    assert codes.dtype == torch.uint8 and codes.shape == (2000, codebooks)
    differ = codes.numpy() != theirs
    assert differ.mean() < 0.001
    # Where the codes differ, the two centroids are as near as each other, to a float's rounding of |y|².
    cut = rotated.reshape(2000, codebooks, -1)
    rounding = 1e-6 * float(np.square(cut).sum(2).max())
    centroids = codec.state_dict()["centroids"].numpy()
    for n, m in np.argwhere(differ):
        ours, other = (np.square(cut[n, m] - centroids[m, c[n, m]]).sum() for c in (codes.numpy(), theirs))
        assert ours == pytest.approx(other, rel=1e-4, abs=rounding)
    expected = transform.reverse_transform(quantizer.decode(packed))
    same = ~differ.any(1)
    scale = np.abs(expected).max()
    assert np.abs(codec.decode(codes).numpy() - expected)[same].max() <= 1e-4 * max(1, scale)


def test_spatial_latents_are_coded_per_location() -> None:
    codec = trained(4, 16, 12)
    inputs = latents(6, 12, 3, 5, seed=2)
    codes = codec.encode(inputs)
    assert codes.shape == (6, 3, 5, 4)
    decoded = codec.decode(codes)
    assert decoded.shape == inputs.shape and decoded.is_contiguous(memory_format=torch.channels_last)
    for h in range(3):
        for w in range(5):
            assert torch.equal(codes[:, h, w], codec.encode(inputs[:, :, h, w]))
            torch.testing.assert_close(decoded[:, :, h, w], codec.decode(codes[:, h, w]))
    sequences = codec.encode(inputs.flatten(2))
    assert sequences.shape == (6, 15, 4)
    torch.testing.assert_close(codec.decode(sequences), decoded.flatten(2))


def test_more_vectors_than_a_chunk_are_coded_alike() -> None:
    codec = trained(2, 16, 4)
    inputs = latents(8192 + 50, 4, seed=3)
    assert torch.equal(codec.encode(inputs)[-60:], codec.encode(inputs[-60:]))


def test_spatial_and_vector_latents_train_alike() -> None:
    inputs = latents(40, 8, 4, 4)
    spatial = OPQ(2, 16, iterations=2).fit(inputs)
    vectors = OPQ(2, 16, iterations=2).fit(inputs.movedim(1, -1).reshape(-1, 8))
    assert torch.equal(spatial.state_dict()["centroids"], vectors.state_dict()["centroids"])


def test_at_most_samples_vectors_train_chosen_by_the_seed() -> None:
    inputs = latents(500, 8)
    few = [OPQ(2, 16, iterations=2, samples=100, seed=s).fit(inputs).state_dict()["centroids"] for s in (0, 0, 1)]
    assert torch.equal(few[0], few[1]) and not torch.equal(few[0], few[2])


def test_the_seed_chooses_the_vectors_that_train() -> None:
    """With as many vectors as centroids, every vector that trains becomes a centroid, and no other is coded exactly."""
    inputs, chosen = latents(200, 4), []
    for seed in (0, 0, 1):
        codec = OPQ(1, 16, iterations=1, samples=16, seed=seed).fit(inputs)
        exact = (codec.decode(codec.encode(inputs)) - inputs).norm(dim=1) < 1e-3
        chosen.append(exact.nonzero().flatten().tolist())
        assert len(chosen[-1]) == 16
    assert chosen[0] == chosen[1] != chosen[2]
    assert len(set(chosen[0]) & set(range(16))) < 16  # not just the first


def test_the_seed_starts_the_centroids() -> None:
    """Where all vectors train, the seed still decides where both rotation and centroids start."""
    inputs = latents(300, 8)
    for part in ("rotation", "centroids"):
        zero, again, one = (OPQ(2, 16, iterations=2, seed=s).fit(inputs).state_dict()[part] for s in (0, 0, 1))
        assert torch.equal(zero, again) and not torch.equal(zero, one)
    # A rotation moves no vector relative to others, so decoded, one codebook shows the centroids' own start.
    every = torch.arange(16, dtype=torch.uint8)[:, None]
    zero, one = (OPQ(1, 16, iterations=1, seed=s).fit(inputs).decode(every) for s in (0, 1))
    assert (zero - one).abs().max() > 0.1


def test_every_parameter_trains_other_tables() -> None:
    changes = {"codebooks": 4, "size": 8, "iterations": 4, "samples": 100, "seed": 1}
    assert codecs.parameters("opq").keys() == changes.keys()
    start, inputs = {"codebooks": 2, "size": 16, "iterations": 1, "samples": 200}, latents(300, 8)
    before = OPQ(**start).fit(inputs).state_dict()
    for name, value in changes.items():
        after = OPQ(**{**start, name: value}).fit(inputs).state_dict()
        assert not any(torch.equal(before[table], after[table]) for table in ("rotation", "centroids")), name


def test_more_codebooks_lose_less() -> None:
    inputs = latents(1500, 16)
    losses = [(c.decode(c.encode(inputs)) - inputs).square().mean() for c in (trained(m, 16, 16) for m in (1, 4, 16))]
    assert losses[0] > losses[1] > losses[2]


def test_bytes_are_those_of_rotation_and_centroids() -> None:
    assert OPQ().nbytes == 0
    assert trained(4, 16, 12).nbytes == 4 * (12 * 12 + 16 * 12)


def test_the_rotation_is_orthonormal() -> None:
    rotation = trained(4, 16, 12).state_dict()["rotation"]
    torch.testing.assert_close(rotation @ rotation.T, torch.eye(12), atol=1e-4, rtol=0)


def test_state_restores_codes_and_decoding() -> None:
    codec, inputs = trained(4, 16, 12), latents(50, 12, seed=4)
    other = OPQ(4, 16, iterations=1).fit(latents(300, 12, seed=5))
    other.decode(other.encode(inputs))  # so that its table must be made anew
    other.load_state_dict(codec.state_dict())
    assert torch.equal(other.encode(inputs), codec.encode(inputs))
    assert torch.equal(other.decode(codec.encode(inputs)), codec.decode(codec.encode(inputs)))


# -- errors ----------------------------------------------------------------------------------------------------------


def test_errors_of_use() -> None:
    with pytest.raises(GraspError, match=r"divide the 12 dimensions and be one of \[1, 2, 3, 4, 6, 12\], got 5"):
        OPQ(5, 16).fit(latents(100, 12))
    with pytest.raises(GraspError, match="codebooks of 16 entries need at least 16 vectors, got 9"):
        OPQ(4, 16).fit(latents(9, 12))
    with pytest.raises(GraspError, match=r"vectors \[n, D\] or spatial latents \[n, C, H, W\], got shape \(7,\)"):
        trained(4, 16, 12).encode(torch.zeros(7))
    with pytest.raises(GraspError, match="trained on 12 dimensions, got 8"):
        trained(4, 16, 12).encode(torch.zeros(2, 8))
    for attempt in (
        lambda: OPQ().encode(torch.zeros(1, 8)),
        lambda: OPQ().decode(torch.zeros(1, 8, dtype=torch.uint8)),
    ):
        with pytest.raises(GraspError, match=r"not trained: call fit\(latents\)"):
            attempt()
    with pytest.raises(GraspError, match=r"codes of 4 bytes per vector, got shape \(4, 3\)"):
        trained(4, 16, 12).decode(torch.zeros(4, 3, dtype=torch.uint8))


@pytest.mark.parametrize("size", [0, 3, 100, 512])
def test_a_codebook_size_that_is_no_byte(size: int) -> None:
    with pytest.raises(GraspError, match=f"size must be 2, 4, .* or 256, got {size}"):
        OPQ(size=size)


def test_no_codebooks() -> None:
    with pytest.raises(GraspError, match="codebooks must be a whole number of at least 1, got 0"):
        OPQ(codebooks=0)


def test_a_state_of_another_size_is_refused() -> None:
    codec = trained(4, 16, 12)
    before = codec.state_dict()["centroids"].clone()
    with pytest.raises(GraspError, match=r"shape \(2, 16, 6\) does not fit .*codebooks=4.* which has \(4, 16, 3\)"):
        codec.load_state_dict(trained(2, 16, 12).state_dict())
    assert torch.equal(codec.state_dict()["centroids"], before)


# -- without faiss ---------------------------------------------------------------------------------------------------

CHILD = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "faiss":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import torch
from safetensors.torch import load_file
from graspcl.codec import OPQ
from graspcl.errors import MissingExtra

stored = load_file(sys.argv[1])
codec = OPQ(codebooks=4, size=16)
codec.load_state_dict({"rotation": stored["rotation"], "centroids": stored["centroids"]})
assert torch.equal(codec.encode(stored["inputs"]), stored["codes"])
assert torch.equal(codec.decode(stored["codes"]), stored["decoded"])
try:
    codec.fit(stored["inputs"])
except MissingExtra as error:
    print(error)
assert "faiss" not in sys.modules
"""


def test_once_trained_it_works_without_faiss(tmp_path: Path) -> None:
    codec, inputs = trained(4, 16, 12), latents(20, 12, seed=6)
    codes = codec.encode(inputs)
    save_file({**codec.state_dict(), "inputs": inputs, "codes": codes, "decoded": codec.decode(codes)}, tmp_path / "s")
    done = subprocess.run([sys.executable, "-c", CHILD, tmp_path / "s"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "faiss is not installed; in the folder of graspcl's source run: pip install '.[opq]'\n"
    assert issubclass(MissingExtra, GraspError)


def test_fewer_vectors_than_dimensions_train_it_too():
    """faiss would end the process."""
    vectors = torch.randn(120, 192, generator=seeded())
    codec = OPQ(codebooks=8, size=16, iterations=1).fit(vectors)
    back = codec.decode(codec.encode(vectors))
    assert back.shape == vectors.shape and ((back - vectors) ** 2).mean() < (vectors**2).mean()
