"""Run code in a process of its own whose memory is capped, so that exhaustion fails a test and not the machine."""

import os
import subprocess
import sys

CAP = """
import resource
def cap(megabytes):  # more than the process has now
    now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * 2**20,) * 2)
"""


def run_capped(code, *arguments, seconds=60):
    """Run code that calls `cap(megabytes)` after its imports, and return what it prints; fail where it fails."""
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", CAP + code, *map(str, arguments)],
        capture_output=True, text=True, timeout=seconds, env={**os.environ, **alone},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
