"""Ranks on GPUs, which exchange by NCCL. One rank per GPU: without two of them nothing here can run."""

import pytest
import torch
from worlds import compare

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS < 2, reason=f"NCCL needs two GPUs, this machine has {GPUS}")

CASES = [
    {"device": "cuda"},
    {"device": "cuda", "learner": "aligned", "dropout": 0.3},
    {"device": "cuda", "how": {"shards": "ranks"}},
    {"device": "cuda", "how": {"shards": "ranks"}, "drawn": {"draws": "by_sample"}},
    {"device": "cuda", "how": {"shards": "ranks"}, "policy": "rainbow"},
]


def test_two_gpus_equal_one_process(worlds):
    results = worlds.run(2, "learn_all", cases=CASES, device="cuda")
    assert [result["device"] for result in results] == ["cuda:0", "cuda:1"]
    assert not compare(results, CASES)
