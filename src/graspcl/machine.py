"""What a machine needs before torch starts: one place, called once, never against the user's own settings."""

from __future__ import annotations

import functools
import os
import platform
import sys
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# Parameter numbers from glibc's malloc.h, with the values that keep freed tensors for reuse.
_MALLOPT = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_TOP_PAD": (-2, 2**28)}


def prepare() -> list[str]:
    """Make this process ready for torch on a CPU; best called before torch is imported.

    Returns one sentence per thing done, kept as the user had set it, or come too late for. Later calls change nothing
    and return the same sentences. torch itself is not imported.

    - On CPUs that report AMX, oneDNN is held to the instruction sets below it: under some hypervisors bf16 on AMX ends
      the process with an illegal instruction, and no query of torch tells. `ONEDNN_MAX_CPU_ISA=DEFAULT` keeps AMX.
    - Idle OpenMP threads sleep instead of spinning, which starves every other process on a shared machine.
    - glibc keeps freed memory instead of giving large tensors back on every free. The price: the process does not
      shrink below its peak. Any `MALLOC_...` or `GLIBC_TUNABLES` in the environment leaves malloc alone.

    >>> prepare() == prepare()
    True
    """
    return list(_prepared())


@functools.cache
def _prepared() -> tuple[str, ...]:
    return tuple(sentence for step in (_avoid_amx, _sleep_when_idle, _keep_memory) for sentence in step())


def cores() -> int:
    """Processors this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flush_denormals() -> bool:
    """Let torch treat denormal floats as zero, and say whether this CPU can; networks near zero run many times faster.

    This is a state of the calling thread, inherited by the threads it starts: call it before the first operation.

    >>> import torch
    >>> can = flush_denormals()
    >>> can == torch.set_flush_denormal(False)
    True
    """
    import torch

    return bool(torch.set_flush_denormal(True))


def _avoid_amx() -> list[str]:
    if not _reports_amx(_CPUINFO):
        return []
    # DNNL_... is the older spelling, which oneDNN still obeys.
    if kept := _kept("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        return kept
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
    done = (
        "Set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16, because bf16 on AMX can end the process with an illegal instruction"
    )
    late = "; torch was already imported, so this holds only if it has not computed anything yet"
    return [done + (late if _torch_is_loaded() else "") + "."]


def _sleep_when_idle() -> list[str]:
    if kept := _kept("OMP_WAIT_POLICY"):
        return kept
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if _torch_is_loaded():
        return [
            "Set OMP_WAIT_POLICY=PASSIVE for child processes only: torch was already imported, so idle threads of this "
            "process still spin; call prepare() before importing torch, or use torch.set_num_threads(1)."
        ]
    return ["Set OMP_WAIT_POLICY=PASSIVE, so that idle threads sleep instead of spinning."]


def _keep_memory() -> list[str]:
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return []
    if kept := _kept("GLIBC_TUNABLES", *sorted(name for name in os.environ if name.startswith("MALLOC_"))):
        return kept
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):
        return ["Left malloc as it is: its settings cannot be reached from here."]
    refused = [name for name, (number, value) in _MALLOPT.items() if mallopt(number, value) != 1]
    if refused:
        return [f"Could not tell malloc to keep freed memory: it refused {', '.join(refused)}."]
    settings = ", ".join(f"{name}={value}" for name, (_, value) in _MALLOPT.items())
    return [f"Told malloc to keep freed memory for the next tensors ({settings})."]


def _kept(*names: str) -> list[str]:
    """A sentence for each of the environment variables that the user has set."""
    return [f"Kept {name}={os.environ[name]} from the environment." for name in names if name in os.environ]


def _reports_amx(cpuinfo: Path) -> bool:
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:  # not Linux
        return False
    return "amx_tile" in flags.split()


def _torch_is_loaded() -> bool:
    return "torch" in sys.modules
