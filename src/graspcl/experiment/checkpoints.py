"""How checkpoints are written: the codes of stored samples in segments, and all of it in the background.

A code never changes while its sample is stored, and codes are nearly all of a checkpoint. So they are written once, in
immutable files ("segments") that several checkpoints name. Training does not change them either: a thread reads them
where they lie, and only what changes the buffer has to wait until it has read them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

import numpy as np

from graspcl.buffer import Buffer
from graspcl.buffer.state import PackedCodes, unpacked
from graspcl.checks import Array
from graspcl.distributed import Ranks, ShardedBuffer
from graspcl.errors import GraspError
from graspcl.files import open_regular
from graspcl.objects import Objects, names_in, placed_rows, read_rows, reusable

_SEGMENT = 1 << 25  # bytes of codes in a segment, which are copied while it is written
_DEAD = 0.5  # share of a segment that is no longer stored, above which its other samples are written again


class Stored(NamedTuple):
    """Samples of a buffer: their births [n], their codes [n, …], and which of them this process has [n], if not all."""

    births: Array
    codes: Array | PackedCodes
    own: Array | None = None

    @classmethod
    def of(cls, buffer: Buffer, births: Array) -> Stored:
        """Return the samples of a buffer, whose births [n] may be a copy; its codes are none."""
        if isinstance(buffer, ShardedBuffer):
            return cls(
                births,
                PackedCodes(buffer, buffer.ranks.apart),
                buffer.holders(np.arange(len(buffer))) == buffer.ranks.rank,
            )
        return cls(births, buffer["codes"] if buffer.equal_codes else PackedCodes(buffer))


class Segments:
    """The codes of stored samples in a folder, by birth."""

    def __init__(self, folder: Path) -> None:
        self.objects = Objects(folder)
        self._births: dict[str, Array] = {}  # of the samples in each segment that the last checkpoint names

    @property
    def names(self) -> list[str]:
        """The segments that the last checkpoint names."""
        return list(self._births)

    def forget(self) -> None:
        """Let the next checkpoint write all codes again."""
        self._births = {}

    def write(self, stored: Stored) -> dict[str, Any]:
        """Write the codes that no segment has; return what a checkpoint needs to know. Call `settle` afterwards."""
        births, codes, own = stored
        names, missing = reusable(self._births, births, _DEAD)
        known = {name: self._births[name] for name in names}
        for some in _pieces(np.flatnonzero(missing if own is None else missing & own), codes):
            known[self.objects.stage({"births": births[some], "codes": codes[some]})] = births[some]
        self._births = known
        return {"names": self.names, "shape": list(codes.shape), "dtype": codes.dtype.str}

    def write_shares(self, stored: Stored, ranks: Ranks) -> dict[str, Any]:
        """As `write` and `settle`, while the other ranks write what they have. All know all segments afterwards."""
        written = self.write(stored)
        self.settle()
        names = ranks.texts(written["names"], "agreements")
        # What the others have just written needs no check: it is verified when it is read to be restored.
        self._births = {name: known if (known := self._births.get(name)) is not None else self._births_in(name)
                        for name in names}  # fmt: skip
        return {**written, "names": names}

    def settle(self) -> None:
        """Write all segments to the disk."""
        try:
            self.objects.settle()
        except BaseException:
            self.forget()  # some of them may not be there
            raise

    def keep(self, states: Iterable[Path]) -> None:
        """Delete the segments that none of these checkpoints names; none if one of them cannot be read."""
        named = [name for state in states for name in names_in(_header(state))]
        self.objects.keep([*named, *self._births])

    def finish(self, states: Iterable[Path]) -> None:
        """As `keep`, after the last checkpoint. Nothing is left if they name none."""
        self.forget()
        self.keep(states)
        self.objects.drop_empty()

    def clear(self) -> None:
        """Delete all segments."""
        self.objects.clear()
        self.forget()

    def open(
        self, written: dict[str, Any], births: Array, again: Callable[[Array], Array] | None = None,
        note: Callable[[str], None] = lambda said: None, verify: bool = True,
    ) -> SegmentedCodes:  # fmt: skip
        """Verify what `write` returned, and return the codes of samples with these births [n].

        Args:
            written: what `write` returned.
            births: of the samples.
            again: returns the codes [m, …] of the samples at positions [m], from another source. It is asked for what
                is missing or damaged, which is an error otherwise.
            note: called about each damaged segment.
            verify: compare the segments with their checksums.
        """
        known: dict[str, Array] = {}
        names = written["names"]
        for name, fault in zip(names, self.objects.faults(names) if verify else [""] * len(names), strict=True):
            if not fault:
                known[name] = self._births_in(name)
                continue
            said = f"{self.objects.path(name)} {fault}"
            if again is None:
                raise GraspError(said)
            note(f"{said}; its codes are taken from the prepared data")
        _, lost = reusable(known, births, dead=1.0)
        if again is None and lost.any():
            raise GraspError(f"{self.objects.folder} lacks the codes of {int(lost.sum())} samples")
        self._births = known
        return SegmentedCodes(self.objects, {**written, "names": [*known]}, births, lost, again)

    def _births_in(self, name: str) -> Array:
        """Return the births of the samples in a segment [m], which is not verified."""
        return np.array(self.objects.get(name, verify=False)["births"])  # a copy, since a view keeps the file mapped


class SegmentedCodes:
    """Codes [n, …] in segments that are verified. They are read when they are used, one segment at a time.

    Those that are `lost` [n], bool, are in no segment, and come from `again`.
    """

    def __init__(self, objects: Objects, written: dict[str, Any], births: Array, lost: Array, again: Any) -> None:
        self._objects, self._names, self._births = objects, written["names"], births
        self._lost, self._again = lost, again
        self.shape: tuple[int, ...] = tuple(written["shape"])
        self.dtype: np.dtype[Any] = np.dtype(written["dtype"])

    def read_into(self, codes: Array) -> None:
        """Read all codes into the first rows of an array."""
        read_rows(self._segments(np.arange(len(self))), self._births, codes)

    def parts(self, rows: Array | None = None) -> Iterator[tuple[Array, Array]]:
        """Yield the codes at positions `rows` [m], or all: where some belong in `rows`, and these codes."""
        rows = np.arange(len(self)) if rows is None else rows
        return placed_rows(self._segments(rows), self._births[rows])

    def _segments(self, rows: Array) -> Iterator[tuple[Array, Array]]:
        """Births and codes in each segment, then those among `rows` [m] that are in none."""
        for name in self._names:
            state = self._objects.get(name, verify=False)
            yield np.asarray(state["births"]), unpacked(state["codes"], self.shape[1:])
        for some in _pieces(rows[self._lost[rows]], self):
            yield self._births[some], np.asarray(self._again(some))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> Array:
        rows = np.arange(len(self))[which]
        codes = np.empty((len(rows), *self.shape[1:]), self.dtype)
        if len(rows):
            read_rows(self._segments(rows), self._births[rows], codes)
        return codes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        codes = np.empty(self.shape, self.dtype)
        self.read_into(codes)
        return codes.astype(dtype or self.dtype, copy=False)


def _pieces(rows: Array, codes: Array | PackedCodes | SegmentedCodes) -> list[Array]:
    """Divide `rows` [m] of codes [n, …] so that no part has many more than `_SEGMENT` bytes."""
    if not len(rows):
        return []
    if isinstance(codes, PackedCodes):
        sizes = codes.sizes(rows)
    else:
        sizes = np.full(len(rows), math.prod(codes.shape[1:]) * codes.dtype.itemsize)
    begins = np.cumsum(sizes) - sizes
    return np.split(rows, np.flatnonzero(np.diff(begins // _SEGMENT)) + 1)


def _header(state: Path) -> str:
    """Return the header of a safetensors file, or something else if it is damaged."""
    with open_regular(state) as file:
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
