"""Codecs that keep every number: as it is, or in half the bytes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from graspcl.codec.base import Codec, codecs


@codecs.register("identity")
@dataclass
class Identity(Codec):
    """Stores inputs as they are, in their own type.

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
        # Beyond half precision's range a number is kept as the largest one it has, never as infinity.
        return inputs.detach().cpu().clamp(-65504, 65504).half()

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return codes.float()
