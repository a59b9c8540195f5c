"""How checkpoints are written: the codes of stored samples in segments, and all of it in the background.

A code never changes while its sample is stored, and codes are nearly all of a checkpoint. So they are written once, in
immutable files ("segments") that several checkpoints name. Training does not change them either: a thread reads them
where they lie, and only what changes the buffer has to wait until it has read them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.objects import Objects, names_in, read_rows, reusable

_SEGMENT = 1 << 25  # bytes of codes in a segment, which are copied while it is written
_DEAD = 0.5  # share of a segment that is no longer stored, above which its other samples are written again


class Stored(NamedTuple):
    """Samples of a buffer: their births [n] and codes [n, …]."""

    births: Array
    codes: Array


class Segments:
    """The codes of stored samples in a folder, by birth."""

    def __init__(self, folder: Path) -> None:
        self.objects = Objects(folder)
        self._births: dict[str, Array] = {}  # of the samples in each segment that the last checkpoint names

    def write(self, stored: Stored) -> dict[str, Any]:
        """Write the codes that no segment has; return what a checkpoint needs to know. Call `settle` afterwards."""
        births, codes = stored
        names, missing = reusable(self._births, births, _DEAD)
        known = {name: self._births[name] for name in names}
        for some in _pieces(np.flatnonzero(missing), codes):
            known[self.objects.stage({"births": births[some], "codes": codes[some]})] = births[some]
        self._births = known
        return {"names": list(known), "shape": list(codes.shape), "dtype": codes.dtype.str}

    def settle(self) -> None:
        """Write all segments to the disk."""
        try:
            self.objects.settle()
        except BaseException:
            self._births = {}  # some of them may not be there
            raise

    def keep(self, states: Iterable[Path]) -> None:
        """Delete the segments that none of these checkpoints names; none if one of them cannot be read."""
        named = [name for state in states for name in names_in(_header(state))]
        self.objects.keep([*named, *self._births])

    def clear(self) -> None:
        """Delete all segments."""
        self.objects.clear()
        self._births = {}

    def open(
        self, written: dict[str, Any], births: Array, again: Callable[[Array], Array] | None = None,
        note: Callable[[str], None] = lambda said: None,
    ) -> SegmentedCodes:  # fmt: skip
        """Verify what `write` returned, and return the codes of samples with these births [n].

        Args:
            written: what `write` returned.
            births: of the samples.
            again: returns the codes [m, …] of the samples at positions [m], from another source. It is asked for what
                is missing or damaged, which is an error otherwise.
            note: called about each damaged segment.
        """
        known: dict[str, Array] = {}
        for name in written["names"]:
            try:
                known[name] = np.array(self.objects.get(name)["births"])  # a copy, since a view keeps the file mapped
            except GraspError as error:
                if again is None:
                    raise
                note(f"{error}; its codes are taken from the prepared data")
        _, lost = reusable(known, births, dead=1.0)
        if again is None and lost.any():
            raise GraspError(f"{self.objects.folder} lacks the codes of {int(lost.sum())} samples")
        self._births = known
        return SegmentedCodes(self.objects, {**written, "names": [*known]}, births, np.flatnonzero(lost), again)


class SegmentedCodes:
    """Codes [n, …] in segments that are verified. They are read when they are used, one segment at a time.

    The codes at positions `lost` [m] are in no segment, and come from `again`.
    """

    def __init__(self, objects: Objects, written: dict[str, Any], births: Array, lost: Array, again: Any) -> None:
        self._objects, self._names, self._births = objects, written["names"], births
        self._lost, self._again = lost, again
        self.shape: tuple[int, ...] = tuple(written["shape"])
        self.dtype: np.dtype[Any] = np.dtype(written["dtype"])

    def read_into(self, codes: Array) -> None:
        """Read all codes into the first rows of an array."""
        states = (self._objects.get(name, verify=False) for name in self._names)
        read = ((np.asarray(one["births"]), np.asarray(one["codes"])) for one in states)
        fetched = ((self._births[some], np.asarray(self._again(some))) for some in _pieces(self._lost, codes))
        read_rows(chain(read, fetched), self._births, codes)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Array:
        if isinstance(which, slice) and not len(range(*which.indices(len(self)))):
            return np.empty((0, *self.shape[1:]), self.dtype)
        rows: Array = np.asarray(self)[which]
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        codes = np.empty(self.shape, self.dtype)
        self.read_into(codes)
        return codes.astype(dtype or self.dtype, copy=False)


def _pieces(rows: Array, codes: Array) -> list[Array]:
    """Divide `rows` [m] of codes [n, …] so that each part has at most `_SEGMENT` bytes."""
    each = max(1, _SEGMENT // max(1, math.prod(codes.shape[1:]) * codes.itemsize))
    return [rows[begin : begin + each] for begin in range(0, len(rows), each)]


def _header(state: Path) -> str:
    """Return the header of a safetensors file, or something else if it is damaged."""
    with open(state, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, state.stat().st_size)).decode(errors="replace")


class Background:
    """Makes one call at a time in a thread. The call gets a function, to be called when it has read what may change."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._read = Event()
        self._error: BaseException | None = None
        self._read.set()
        self.seconds = 0.0  # that the last call took

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, call: Callable[[Callable[[], None]], None]) -> None:
        """Wait for the call before, and make this one.

        Raises:
            GraspError: the call before has failed.
        """
        self.wait()
        self._read.clear()

        def work() -> None:
            begin = time.perf_counter()
            try:
                call(self._read.set)
            except BaseException as error:  # raised again where it is waited for
                self._error = error
            finally:
                self._read.set()
                self.seconds = time.perf_counter() - begin

        self._thread = Thread(target=work, name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a call that has failed, as soon as it is over."""
        if not self.busy:
            self.wait()

    def wait_until_read(self) -> None:
        """Wait until the call has read what may change."""
        self._read.wait()

    def wait(self) -> None:
        """Wait for the call.

        Raises:
            GraspError: it has failed.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread, error, self._error = None, self._error, None
            if error is not None:
                raise error
