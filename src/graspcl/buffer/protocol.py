"""What the buffer asks of a codec; the codecs themselves live in `graspcl.codec`, which knows nothing of buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Codec(Protocol):
    """How a sample is stored."""

    @property
    def nbytes(self) -> int:
        """Bytes of the codec's own tables."""

    def encode(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs [n, …] to codes [n, …] on the CPU."""

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes [n, …] to inputs [n, …], on the device the codes are on."""

    def state_dict(self) -> dict[str, Any]:
        """Tables and settings, as arrays, numbers and strings."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
