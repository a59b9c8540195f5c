"""Tests do not wait for the disk: what they write need not last through a power failure."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
