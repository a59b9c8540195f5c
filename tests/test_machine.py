"""prepare() is tried in child processes: it changes its process for good."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graspcl import machine

OURS = ("ONEDNN_", "DNNL_", "OMP_", "MALLOC_", "GLIBC_TUNABLES")
glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these malloc settings")


def child(code: str, **environment: str) -> Any:
    """Run `code` in a fresh process with none of our settings but `environment`; its `answer` comes back."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    program = f"import json, os, sys\nfrom graspcl import machine\n{code}\nprint(json.dumps(answer))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=clean | environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return json.loads(done.stdout)


def fake_cpu(folder: Path, flags: str) -> str:
    """Code that makes machine.prepare() read these CPU flags."""
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\nflags\t\t: fpu sse2 {flags}\nbugs\t\t: none\n")
    return f"from pathlib import Path; machine._CPUINFO = Path({str(path)!r})\n"


def test_nothing_heavy_is_imported() -> None:
    answer = child("machine.prepare(); answer = [name for name in ('torch', 'numpy') if name in sys.modules]")
    assert answer == []


def test_idle_threads_sleep() -> None:
    sentences, policy = child("answer = [machine.prepare(), os.environ['OMP_WAIT_POLICY']]")
    assert policy == "PASSIVE"
    assert any("OMP_WAIT_POLICY=PASSIVE" in sentence for sentence in sentences)


@pytest.mark.skipif(platform.system() != "Linux", reason="reads the C environment of a Linux process")
def test_the_setting_reaches_c_code() -> None:
    code = "machine.prepare(); import ctypes; get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p\n"
    assert child(code + "answer = get(b'OMP_WAIT_POLICY').decode()") == "PASSIVE"


def test_the_users_settings_are_kept(tmp_path: Path) -> None:
    theirs = {"OMP_WAIT_POLICY": "ACTIVE", "ONEDNN_MAX_CPU_ISA": "DEFAULT", "MALLOC_ARENA_MAX": "2"}
    code = fake_cpu(tmp_path, "amx_tile") + "answer = [machine.prepare(), dict(os.environ)]"
    sentences, environment = child(code, **theirs)
    assert theirs.items() <= environment.items()
    assert not any(sentence.startswith("Set") for sentence in sentences)


@glibc
@pytest.mark.parametrize("name, value", [("MALLOC_TOP_PAD_", "65536"), ("GLIBC_TUNABLES", "glibc.malloc.check=0")])
def test_the_users_malloc_is_left_alone(name: str, value: str) -> None:
    sentences = child("answer = machine.prepare()", **{name: value})
    assert f"Kept {name}={value} from the environment." in sentences
    assert not any("Set malloc" in sentence for sentence in sentences)


def test_twice_is_once() -> None:
    code = "first = machine.prepare(); before = dict(os.environ); second = machine.prepare()\n"
    first, second, same = child(code + "answer = [first, second, before == dict(os.environ)]")
    assert first == second
    assert same


def test_too_late_is_said() -> None:
    sentences = child("import torch; answer = machine.prepare()")
    assert any("torch was already imported" in sentence and "OMP_WAIT_POLICY" in sentence for sentence in sentences)


def test_amx_is_avoided_where_reported(tmp_path: Path) -> None:
    code = "machine.prepare(); answer = os.environ.get('ONEDNN_MAX_CPU_ISA')"
    assert child(fake_cpu(tmp_path, "avx512f amx_bf16 amx_tile") + code) == "AVX512_CORE_FP16"
    assert child(fake_cpu(tmp_path, "avx512f") + code) is None
    assert child(fake_cpu(tmp_path, "amx_tile") + code, DNNL_MAX_CPU_ISA="AVX2") is None


@pytest.mark.skipif(not machine._reports_amx(machine._CPUINFO), reason="this CPU does not report AMX")
def test_bf16_survives() -> None:
    code = "machine.prepare(); import torch; ones = torch.ones(32, 32, dtype=torch.bfloat16)\n"
    assert child(code + "answer = float((ones @ ones).sum())") == 32**3


ILLEGAL = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (ILLEGAL, r"signal 4 \(Illegal instruction\)"),
        ("import sys; sys.exit(3)", "exit code 3"),
        ("raise RuntimeError('not implemented for BFloat16')", "RuntimeError: not implemented for BFloat16"),
    ],
)
def test_bf16_is_no_good_where_a_child_process_fails(program: str, reason: str) -> None:
    assert re.search(reason, machine.can_bf16(program) or "")


def test_bf16_is_good_where_a_child_process_lives() -> None:
    assert machine.can_bf16("pass") is None


def test_a_child_process_that_hangs_is_not_waited_for() -> None:
    assert machine.can_bf16("import time; time.sleep(60)", 0.5) == (
        "a process that tried it did not end within 0.5 seconds"
    )


def test_bf16_is_tried_once(tmp_path: Path) -> None:
    path = tmp_path / "tries"
    program = f"open({str(path)!r}, 'a').write('x')"
    assert machine.can_bf16(program) is machine.can_bf16(program) is None
    assert path.read_text() == "x"


def test_bf16_is_tried_with_the_settings_of_this_process(tmp_path: Path) -> None:
    """With what prepare() set, unless torch was loaded before: then it may not hold here, so not for the child."""
    ask = "reason = machine.can_bf16(\"import os; raise SystemExit(os.environ.get('ONEDNN_MAX_CPU_ISA'))\")\n"
    code = fake_cpu(tmp_path, "amx_tile") + "machine.prepare()\n" + ask + "answer = reason"
    assert child(code).endswith("AVX512_CORE_FP16")
    loaded = "sys.modules['torch'] = sys\n"  # what it is does not matter, only that it is there
    assert child(loaded + code) is None
    assert child(loaded + code, ONEDNN_MAX_CPU_ISA="AVX2").endswith("AVX2")


@glibc
def test_freed_memory_is_used_again() -> None:
    """Page faults of taking and freeing 64 MB over and over: none once malloc keeps what it was given back."""
    code = """
import numpy, resource
def work():
    numpy.ones(2**23)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
before = faults()
for _ in range(50): work()
answer = faults() - before
"""
    plain, prepared = child(code), child("sentences = machine.prepare()\n" + code)
    assert plain > 500
    assert prepared < plain / 20


def test_other_systems_are_left_in_peace(tmp_path: Path) -> None:
    code = f"from pathlib import Path; machine._CPUINFO = Path({str(tmp_path / 'none')!r})\n"
    code += "import platform; platform.system = lambda: 'Darwin'\nanswer = machine.prepare()"
    assert child(code) == ["Set OMP_WAIT_POLICY=PASSIVE, so that idle threads sleep instead of spinning."]


@glibc
def test_malloc_out_of_reach_is_said() -> None:
    sentences = child("sys.modules['ctypes'] = None; answer = machine.prepare()")
    assert "Left malloc unchanged: its settings cannot be reached from here." in sentences


def test_denormals_become_zero() -> None:
    code = "import torch; tiny = torch.tensor([1e-40]); can = machine.flush_denormals()\n"
    can, value = child(code + "answer = [can, float((tiny * 1)[0])]")
    assert not can or value == 0
