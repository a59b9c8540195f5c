"""The length of padded sequences: what repeats up to the last position is padding."""

from __future__ import annotations

import torch


def unpadded(sequences: torch.Tensor) -> torch.Tensor:
    """Return how many positions of each sequence come before its padding: [n].

    Sequences are token ids [n, L] or vectors [n, D, L]. The last position counts as padding: only its
    neighbour can tell.

    >>> unpadded(torch.tensor([[9, 1, 2, 0, 0], [9, 1, 2, 3, 8]])).tolist()
    [3, 4]
    """
    x = sequences[:, None] if sequences.ndim == 2 else sequences
    return x.shape[2] - (x == x[..., -1:]).all(1).flip(1).cumprod(1).sum(1)
