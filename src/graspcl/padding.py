"""Where sequences end: what is repeated up to their last place is padding."""

from __future__ import annotations

import torch


def unpadded(sequences: torch.Tensor) -> torch.Tensor:
    """How many places of each sequence, [n, L] or of vectors [n, D, L], come before its padding: [n].

    The last place counts as padding: whether it is can be told by none but its neighbour.

    >>> unpadded(torch.tensor([[9, 1, 2, 0, 0], [9, 1, 2, 3, 8]])).tolist()
    [3, 4]
    """
    x = sequences[:, None] if sequences.ndim == 2 else sequences
    return x.shape[2] - (x == x[..., -1:]).all(1).flip(1).cumprod(1).sum(1)
