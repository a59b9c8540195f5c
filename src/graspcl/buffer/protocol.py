"""What the buffer asks of a codec; the codecs themselves live in `graspcl.codec`, which knows nothing of buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch


class Codec(Protocol):
    """How a sample is stored."""

    ragged: bool
    """Whether codes are objects of different lengths, [n] of `bytes` or `str`, instead of a tensor [n, …]."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codec's own tables."""

    def lengths(self, codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Bytes of each code [n]; asked of ragged codecs only."""

    def encode(self, inputs: Any) -> torch.Tensor | np.ndarray[Any, Any]:
        """Inputs [n, …] to codes [n, …] on the CPU."""

    def decode(self, codes: Any) -> torch.Tensor:
        """Codes [n, …] to inputs [n, …], on the device the codes are on."""

    def state_dict(self) -> dict[str, Any]:
        """Tables and settings, as arrays, numbers and strings."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
