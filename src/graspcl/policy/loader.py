"""How samples come out of the buffer in a session: decoded once for the policy and for the update, or ahead."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.checks import Array

Samples = tuple[torch.Tensor, torch.Tensor]


class Loader:
    """Fetch samples from a buffer that does not change.

    A policy that looks at samples is likely to train on some of them, and to look at them again. So what it looked at
    last is kept and not decoded again. Image files are decoded ahead, in a background thread, where the next mini-batch
    is known.

    >>> buffer = Buffer()
    >>> _ = buffer.insert(torch.eye(4), labels=[0, 1, 2, 3])
    >>> loader = Loader(buffer, "cpu")
    >>> inputs, labels = loader.look(np.array([3, 1, 2]))
    >>> loader.fetch(np.array([1, 3]))[1].tolist()
    [1, 3]
    """

    def __init__(self, buffer: Buffer, device: torch.device | str) -> None:
        self._buffer, self._device = buffer, torch.device(device)
        self._ahead: tuple[Array, Future[Samples]] | None = None
        slow = buffer.codec is not None and buffer.codec.ragged and not buffer.divided  # ranks exchange in turn
        self._thread = ThreadPoolExecutor(1, "graspcl-loader") if slow else None
        self._kept: Samples | None = None

    def fetch(self, slots: Array, upcoming: Array | None = None) -> Samples:
        """Return the inputs [n, …] and labels [n] of `slots` [n]; start to fetch those `upcoming` next, if known."""
        ahead, self._ahead = self._ahead, None
        expected = ahead is not None and np.array_equal(ahead[0], slots)
        found = ahead[1].result() if ahead and expected else self._kept_of(slots) or self._decode(slots)
        if self._thread is not None and upcoming is not None and len(upcoming):
            self._ahead = upcoming, self._thread.submit(self._decode, upcoming)
        return found

    def look(self, slots: Array) -> Samples:
        """Return the inputs [n, …] and labels [n] of `slots` [n], and keep them until the next look at others."""
        found = self._kept_of(slots)
        if found is None:
            self.forget()  # first, so that old and new are not in memory together
            found = self._kept = self._decode(slots)
            self._slots, self._versions = np.array(slots, np.int64), [part._version for part in found]
        return found

    def forget(self) -> None:
        """Drop what is kept."""
        self._kept = None

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _decode(self, slots: Array) -> Samples:
        return self._buffer.fetch(slots, self._device)

    def _kept_of(self, slots: Array) -> Samples | None:
        """Inputs and labels of `slots` if all of them are kept, and nobody has changed them in place."""
        if self._kept is None or [part._version for part in self._kept] != self._versions:
            return None
        if np.array_equal(slots, self._slots):
            return self._kept
        if not np.isin(slots, self._slots).all():
            return None
        order = np.argsort(self._slots)
        places = torch.from_numpy(order[np.searchsorted(self._slots, slots, sorter=order)]).to(self._device)
        inputs, labels = self._kept
        return inputs[places], labels[places]
