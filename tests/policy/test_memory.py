"""What measuring a large buffer takes in memory: half of the buffer's own bytes and some chunks."""

import os
import subprocess
import sys

import pytest

CODE = """
import sys
import numpy as np, torch
from graspcl.buffer import Buffer
from graspcl.model import vector_network
from graspcl.policy import Budget, Session, policies

N, D = 100_000, 512
rng = np.random.default_rng(0)
buffer = Buffer(capacity=N)
for _ in range(10):
    buffer.insert(rng.standard_normal((N // 10, D), np.float32), rng.integers(100, size=N // 10))
network = vector_network(D, hidden=256, embedding=D, classes=100, generator=torch.Generator().manual_seed(0))
network(torch.zeros(512, D))

def peak():  # of address space: what is resident depends on how eagerly the system takes pages back
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmPeak"))

small = Buffer()
small.insert(rng.standard_normal((2000, D), np.float32), rng.integers(100, size=2000))
policy = policies.create(sys.argv[1])
for held in (small, buffer):  # the first loads and compiles what is needed once
    session = Session(held, Budget(10, 512), rng, network, needs=policy.needs)
    before = peak()
    policy.begin(session)
print((peak() - before) / buffer.nbytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("policy", ["grasp", "mof", "kmeans", "max_loss", "min_margin", "rainbow", "grad_matching"])
def test_measuring_100_000_samples_takes_half_a_buffer_and_some_chunks(policy):
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}  # arenas reserve address space that nobody uses
    command = [sys.executable, "-c", CODE, policy]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    # A buffer here has 218 MB. Beside the half: a chunk of 512 samples through the network, and of 2048 in float64.
    assert float(done.stdout) < 0.5 + 0.25
