"""Fixtures of workspaces."""

import shutil

import pytest

from graspcl import Workspace


@pytest.fixture
def shop(made, tmp_path):
    """A copy, for one test, of the workspace that a test module makes once."""
    shutil.copytree(made, tmp_path / "shop")
    return Workspace.open(tmp_path / "shop")
