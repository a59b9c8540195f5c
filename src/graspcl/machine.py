"""What a machine needs before torch starts: one place, called once, never against the user's own settings."""

from __future__ import annotations

import functools
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# Parameter numbers from glibc's malloc.h, with the values that keep freed tensors for reuse.
_MALLOPT = {"M_MMAP_MAX": (-4, 0), "M_TRIM_THRESHOLD": (-1, 2**31 - 1), "M_TOP_PAD": (-2, 2**28)}
# What training and prediction do in bf16: products, convolutions (plain and depthwise) and attention, with gradients.
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
assert (found[0] == 64).all() and images.grad.isfinite().all(), "bf16 products come out wrong"
"""
# A process that dies is not to leave its memory behind as a file.
_NO_CORE = """
try:
    import resource
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
"""
_set_late: set[str] = set()  # variables that prepare() set when torch was loaded, and had perhaps read them, already


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


@functools.cache
def can_bf16(program: str = _BF16, timeout: float = 120.0) -> str | None:
    """Why bf16 cannot be used on this CPU; None if it can.

    No query of torch tells: where it does not work the process may end on an illegal instruction. So a child process
    with the settings of this one tries it, once per process, for some seconds. `program` is what the child runs.

    >>> can_bf16("pass")
    >>> can_bf16("raise ValueError('no such type')")
    'a process that tried it ended with: ValueError: no such type'
    """
    if not sys.executable:
        return "it cannot be tried, since this Python does not know its own program"
    # What came too late for this process must not save the child either.
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
    return f"a process that tried it ended with: {_how_it_ended(child)}"


def _how_it_ended(child: subprocess.CompletedProcess[str]) -> str:
    if child.returncode < 0:
        hint = "; call graspcl.machine.prepare() before torch is imported" if _reports_amx(_CPUINFO) else ""
        return f"signal {-child.returncode} ({signal.strsignal(-child.returncode)}){hint}"
    lines = child.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {child.returncode}"


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
    if not _torch_is_loaded():
        return [f"{done}."]
    _set_late.add("ONEDNN_MAX_CPU_ISA")
    return [f"{done}; torch was already imported, so this holds only if it has not computed anything yet."]


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
