"""Energy as an estimate: what the processor's own counters say, where the system lets them be read."""

from __future__ import annotations

from pathlib import Path

_COUNTERS = "/sys/class/powercap"


class Meter:
    """Joules of all processor packages since the meter was made; the whole machine's, not this process's alone."""

    def __init__(self, counters: str = _COUNTERS) -> None:
        self._packages = [path for path in sorted(Path(counters).glob("intel-rapl:*")) if path.name.count(":") == 1]
        self._last = self._read()
        self._joules = 0.0

    def go_on(self, spent: float | None) -> None:
        """Count on from what an earlier process spent."""
        self._joules += spent or 0.0

    def joules(self) -> float | None:
        """So far; None where there are no counters. Ask at least once an hour, for counters begin anew at their end."""
        now = self._read()
        if not now or len(now) != len(self._last):
            return None
        for package, before, after in zip(self._packages, self._last, now, strict=True):
            spent = after - before
            if spent < 0:
                spent += _number(package / "max_energy_range_uj") or 0
            self._joules += spent / 1e6
        self._last = now
        return self._joules

    def _read(self) -> list[int]:
        found = [_number(package / "energy_uj") for package in self._packages]
        return [value for value in found if value is not None]


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
