"""The contract holds for the built-in codecs, and finds what is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graspcl.codec import OPQ, Auto, Codec, Half, Identity, Int8
from graspcl.testing.codecs import check_codec
from graspcl.testing.common import seeded


def inputs(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded())


@pytest.mark.parametrize("shape", [(300, 8), (40, 8, 3, 3)], ids=["vectors", "spatial"])
@pytest.mark.parametrize(
    "make",
    [Identity, Half, Int8, lambda: Auto().choose(Int8()), lambda: OPQ(4, 16, iterations=2)],
    ids=["identity", "half", "int8", "auto", "opq"],
)
def test_codecs_keep_the_contract(make: Callable[[], Codec], shape: tuple[int, ...]) -> None:
    if isinstance(make(), OPQ):
        pytest.importorskip("faiss")
    check_codec(make, inputs(*shape))


def test_identity_keeps_the_contract_for_bytes() -> None:
    check_codec(Identity, (inputs(30, 3, 4, 4) * 50 + 128).clamp(0, 255).byte())


class LyingAboutLoss(Half):
    error = "none"


class ByBatch(Half):
    """Scales by the largest number of the batch."""

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().encode(inputs / inputs.abs().max() if len(inputs) else inputs)


class Scaled(Half):
    """Learns a scale, and forgets to save it."""

    scale = 1.0

    def fit(self, inputs: torch.Tensor) -> Codec:
        self.scale = float(inputs.abs().max())
        return self

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().encode(inputs / self.scale)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return super().decode(codes) * self.scale


class FreeTables(Identity):
    """Does not count its tables."""

    def state_dict(self) -> dict[str, Any]:
        return {"table": torch.zeros(256)}


class Pickled(Identity):
    def state_dict(self) -> dict[str, Any]:
        return {"self": self}


class InPlace(Identity):
    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.mul_(2)


class Noisy(Half):
    """Dithers with torch's global generator."""

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        torch.rand(1)
        return super().decode(codes)


class Overflowing(Half):
    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return (inputs.detach() * 1e6).half()


class Attached(Half):
    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.half()


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        (LyingAboutLoss, "declares error 'none'"),
        (ByBatch, "encodes an input by its neighbours|loses more"),
        (Scaled, "restored from its state"),
        (FreeTables, "its state holds 1024 bytes of tables"),
        (Pickled, r"state_dict\(\) holds a Pickled"),
        (InPlace, "changed its inputs"),
        (Noisy, "torch's global generator"),
        (Overflowing, "NaN or infinity"),
        (Attached, "must detach"),
    ],
)
def test_broken_codecs_are_found_out(broken: type[Codec], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_codec(broken, inputs(30, 4))
