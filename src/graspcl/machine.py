"""Prepare a machine before torch starts: once, in one place, and never against the user's own settings."""

from __future__ import annotations

import functools
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# Parameter numbers from glibc's malloc.h, and values that keep freed tensors for reuse.
_MALLOPT = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_TOP_PAD": (-2, 2**28)}
# What training and prediction compute in bf16: products, convolutions and attention, with gradients.
_BF16 = """
import torch
from torch.nn import functional as F

def numbers(*shape):
    return torch.ones(shape, dtype=torch.bfloat16, requires_grad=True)

images, tokens = numbers(2, 32, 16, 16), numbers(2, 4, 32, 16)
found = [
    numbers(64, 64) @ numbers(64, 64),
    F.conv2d(images, numbers(64, 32, 3, 3), padding=1),
    F.conv2d(images, numbers(32, 1, 3, 3), padding=1, groups=32),
    F.scaled_dot_product_attention(tokens, tokens, tokens),
]
sum(part.float().sum() for part in found).backward()
assert (found[0] == 64).all() and images.grad.isfinite().all(), "bf16 products are wrong"
"""
# A process that crashes must not leave a core file.
_NO_CORE = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
"""
_set_late: set[str] = set()  # variables that prepare() set after torch was imported, perhaps too late


def process_start(pid: int) -> str | None:
    """Return when a process started, which tells it from a later one of the same number; None if unknown.

    >>> process_start(os.getpid()) == process_start(os.getpid())
    True
    """
    try:
        # The name of the program is in brackets, and may itself contain some.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # no such process, or a system that does not tell
        return None


@functools.cache
def prepare() -> tuple[str, ...]:
    """Prepare this process for torch on a CPU. Call it before torch is imported; it does not import torch itself.

    - On CPUs that report AMX, oneDNN uses only the instruction sets below it. Under some hypervisors bf16 on AMX ends
      the process with an illegal instruction, and torch cannot tell. `ONEDNN_MAX_CPU_ISA=DEFAULT` keeps AMX.
    - Idle OpenMP threads sleep instead of spinning, which slows down every other process on a shared machine.
    - glibc keeps freed memory instead of returning large tensors on every free. In return, the process does not shrink
      below its peak. Any `MALLOC_...` or `GLIBC_TUNABLES` in the environment leaves malloc alone.

    Returns:
        One sentence for each thing that was done, left as the user had set it, or came too late. Later calls change
        nothing and return the same sentences.

    >>> prepare() == prepare()
    True
    """
    return tuple(sentence for step in (_avoid_amx, _sleep_when_idle, _keep_memory) for sentence in step())


def cores() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def flush_denormals() -> bool:
    """Let torch treat denormal floats as zero; return whether this CPU can. Networks near zero run many times faster.

    This applies to the calling thread and the threads it starts later: call it before the first operation.
    """
    import torch

    return bool(torch.set_flush_denormal(True))


@functools.cache
def can_bf16(program: str = _BF16, timeout: float = 120.0) -> str | None:
    """Return why bf16 cannot be used on this CPU, or None if it can.

    torch cannot tell, and where bf16 does not work, the process may end with an illegal instruction. So a child process
    with the same settings runs `program`, once per process and for at most `timeout` seconds.

    >>> can_bf16("pass")
    >>> can_bf16("raise ValueError('no such type')")
    'a process that tried it ended with: ValueError: no such type'
    """
    if not sys.executable:
        return "it cannot be tried: this Python does not know its own executable"
    # Settings that came too late for this process must not help the child either.
    environment = {name: value for name, value in os.environ.items() if name not in _set_late}
    try:
        child = subprocess.run(
            [sys.executable, "-c", _NO_CORE + program],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"a process that tried it did not end within {timeout:g} seconds"
    except OSError as error:
        return f"it cannot be tried in a process of its own: {error.strerror}"
    if child.returncode == 0:
        return None
    how = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
    if child.returncode < 0:
        how = f"signal {-child.returncode} ({signal.strsignal(-child.returncode)})"
        how += "; call graspcl.machine.prepare() before torch is imported" if _reports_amx(_CPUINFO) else ""
    return f"a process that tried it ended with: {how}"


def _avoid_amx() -> list[str]:
    if not _reports_amx(_CPUINFO):
        return []
    # DNNL_... is the older spelling, which oneDNN still accepts.
    if theirs := _set_by_user("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        return theirs
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_FP16"
    done = "Set ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16, because bf16 on AMX can end a process with an illegal instruction"
    if "torch" not in sys.modules:
        return [f"{done}."]
    _set_late.add("ONEDNN_MAX_CPU_ISA")
    return [f"{done}; torch was already imported, so this holds only if it has not computed anything yet."]


def _sleep_when_idle() -> list[str]:
    if theirs := _set_by_user("OMP_WAIT_POLICY"):
        return theirs
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    if "torch" in sys.modules:
        return [
            "Set OMP_WAIT_POLICY=PASSIVE for child processes only: torch was already imported, so idle threads of this "
            "process still spin; call prepare() before importing torch, or use torch.set_num_threads(1)."
        ]
    return ["Set OMP_WAIT_POLICY=PASSIVE, so that idle threads sleep instead of spinning."]


def _keep_memory() -> list[str]:
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return []
    if theirs := _set_by_user("GLIBC_TUNABLES", *sorted(name for name in os.environ if name.startswith("MALLOC_"))):
        return theirs
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):
        return ["Left malloc unchanged: its settings cannot be reached from here."]
    refused = [name for name, (number, value) in _MALLOPT.items() if mallopt(number, value) != 1]
    if refused:
        return [f"malloc refused to keep freed memory ({', '.join(refused)})."]
    settings = ", ".join(f"{name}={value}" for name, (_, value) in _MALLOPT.items())
    return [f"Set malloc to keep freed memory for the next tensors ({settings})."]


def give_back_memory() -> None:
    """Return freed memory to the system between two kinds of work: kept tensors of one rarely fit the other."""
    if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
        import ctypes

        ctypes.CDLL(None).malloc_trim(0)


def _set_by_user(*names: str) -> list[str]:
    """One sentence for each environment variable that the user has set."""
    return [f"Kept {name}={os.environ[name]} from the environment." for name in names if name in os.environ]


def _reports_amx(cpuinfo: Path) -> bool:
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "")
    except OSError:  # not Linux
        return False
    return "amx_tile" in flags.split()
