"""Shared set-up of the policy tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_torch_thread() -> Iterator[None]:
    """Threads that wait for each other take most of the time of small tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def fewer_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of the contract's sessions, for parameters other than the defaults, which are tested at full length."""
    monkeypatch.setattr("graspcl.testing.policies._SESSIONS", 20)
