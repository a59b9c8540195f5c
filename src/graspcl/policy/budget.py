"""What a rehearsal session may spend."""

from __future__ import annotations

from dataclasses import dataclass

from graspcl.errors import GraspError


@dataclass(frozen=True)
class Budget:
    """`updates` mini-batches of `batch_size` samples: U = n · b samples in all (section 3, "Rehearsal Phase").

    >>> Budget(updates=1251, batch_size=512).samples
    640512
    """

    updates: int
    batch_size: int

    def __post_init__(self) -> None:
        if not (isinstance(self.updates, int) and isinstance(self.batch_size, int)):
            raise GraspError(f"a budget counts in whole numbers, not {self.updates!r} and {self.batch_size!r}")
        if self.updates < 0 or self.batch_size < 1:
            raise GraspError(f"a budget has updates >= 0 and batch_size >= 1, not {self.updates} and {self.batch_size}")

    @property
    def samples(self) -> int:
        """U, the number of samples used for gradient updates."""
        return self.updates * self.batch_size

    @classmethod
    def passes(cls, passes: float, stored: int, batch_size: int) -> Budget:
        """About `passes` times the number of stored samples, in whole mini-batches.

        >>> Budget.passes(1.0, stored=1000, batch_size=64)
        Budget(updates=16, batch_size=64)
        """
        return cls(max(1, round(passes * stored / batch_size)) if passes and stored else 0, batch_size)
