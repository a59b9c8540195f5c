"""Mini-batches on their way from the buffer: the next one is decoded while the network trains on this one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer

Array = np.ndarray[Any, Any]
Fetched = tuple[torch.Tensor, torch.Tensor]


class Loader:
    """Fetches from a buffer that does not change meanwhile; in the background where decoding takes long (images).

    >>> buffer = Buffer()
    >>> _ = buffer.insert(torch.eye(3), [0, 1, 2])
    >>> loader = Loader(buffer, "cpu")
    >>> loader.prepare(np.array([2]))
    >>> loader.fetch(np.array([2]))
    (tensor([[0., 0., 1.]]), tensor([2]))
    """

    def __init__(self, buffer: Buffer, device: torch.device | str) -> None:
        self._buffer, self._device = buffer, device
        self._ahead: tuple[Array, Future[Fetched]] | None = None
        slow = buffer.codec is not None and buffer.codec.ragged
        self._thread = ThreadPoolExecutor(1, "graspcl-loader") if slow else None

    def prepare(self, slots: Array | None) -> None:
        """Begin to fetch `slots` [n], which will be asked for next; None or nothing is known of them."""
        if self._thread is not None and slots is not None and len(slots):
            self._ahead = slots, self._thread.submit(self._buffer.fetch, slots, self._device)

    def close(self) -> None:
        """Let go of the background thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def fetch(self, slots: Array) -> Fetched:
        """Inputs [n, …] and labels [n] of `slots` [n]."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and np.array_equal(ahead[0], slots):
            return ahead[1].result()
        return self._buffer.fetch(slots, self._device)
