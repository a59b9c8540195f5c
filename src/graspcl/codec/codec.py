"""The contract of a codec, which encodes inputs when they are stored and decodes them when they are fetched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from graspcl.errors import GraspError
from graspcl.registry import Registry

codecs: Registry[Codec] = Registry("codec", "graspcl.codec")


class Codec:
    """Encodes inputs [n, …] to codes [n, …] and back. A subclass must define `encode` and `decode`."""

    name: ClassVar[str] = ""
    error: ClassVar[str] = "none"  # what is lost, in a word or two
    ragged: bool = False  # codes are objects of different lengths, [n] of `bytes` or `str`, instead of a tensor

    @property
    def nbytes(self) -> int:
        """Bytes of the codec's own tables, which count against a buffer's capacity."""
        return 0

    @property
    def locations(self) -> int:
        """Axis of codes along which they have one entry per location of latents [n, C, L]; the last by default."""
        return -1

    def lengths(self, codes: Any) -> Any:
        """Return the bytes of each code [n]. Only ragged codecs need this."""
        raise GraspError(f"codec {type(self).__name__} is ragged: it must define lengths(codes)")

    def fit(self, inputs: torch.Tensor) -> Codec:
        """Train the codec on inputs [n, …], if it has anything to train; return itself."""
        return self

    def encode(self, inputs: Any) -> Any:
        """Return codes [n, …] on the CPU: a tensor, or objects [n] if ragged."""
        raise GraspError(f"codec {type(self).__name__} must define encode(inputs)")

    def decode(self, codes: Any) -> torch.Tensor:
        """Return inputs [n, …], float32, on the device of the codes."""
        raise GraspError(f"codec {type(self).__name__} must define decode(codes)")

    def state_dict(self) -> dict[str, Any]:
        """Return what was trained, as tensors and numbers."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""


@codecs.register("identity")
@dataclass
class Identity(Codec):
    """Stores inputs unmodified, in their own type.

    >>> Identity().decode(Identity().encode(torch.ones(2, 3))).shape
    torch.Size([2, 3])
    """

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.detach().cpu()

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes


@codecs.register("half")
@dataclass
class Half(Codec):
    """Stores 16-bit floats: half the bytes of float32, three significant digits.

    >>> Half().encode(torch.ones(2, 3)).dtype
    torch.float16
    """

    error = "about 0.05 % of each number"

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        # Numbers beyond the range of half precision become its largest number, never infinity.
        return inputs.detach().cpu().clamp(-65504, 65504).half()

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float()
