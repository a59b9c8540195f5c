"""The import graph follows docs/design.md, and `import graspcl` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import graspcl

SOURCE = Path(graspcl.__file__).parent

# Who may import whom among the rooms. The modules beside the rooms (`OPEN` below) are open to all.
MAY_IMPORT = {
    "buffer": set(),
    "codec": set(),
    "policy": {"buffer"},
    "model": set(),
    "pretrain": {"codec", "model"},
    "learner": {"buffer", "policy", "codec", "model"},
    "stream": set(),
    "data": set(),
    "metric": set(),
    "settings": {"buffer", "codec", "policy", "model", "learner", "stream", "data", "experiment"},
    "experiment": {"settings", "buffer", "codec", "policy", "model", "pretrain", "learner", "stream", "data", "metric"},
    "report": {"metric"},
    "cli": {"experiment", "settings", "report", "bench", "policy", "pretrain", "data", "model", "codec", "stream"},
    "bench": {"buffer", "codec", "policy", "model", "learner", "data"},
    "testing": {"buffer", "codec", "policy", "model", "learner", "stream"},
}
# Packages that only some rooms may use, wherever in a module they are imported.
HEAVY = {
    "faiss": {"codec", "bench"},
    "numba": {"policy", "buffer"},
    "transformers": {"model"},
    "PIL": {"data"},
    "pyarrow": {"data"},
    "scipy": {"metric"},
    "plotly": {"report"},
    "rich": {"report", "cli", "bench"},
    "cyclopts": {"cli"},
}
OPEN = {"errors", "state", "cache", "checks", "registry", "random", "machine", "images", "padding", "progress"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
            yield node.args[0].value


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_rooms_import_downwards_only(room):
    for path in (SOURCE / room).glob("**/*.py"):
        for name in imports(path):
            top, *rest = name.split(".")
            if top == "graspcl" and rest and rest[0] not in OPEN:
                assert rest[0] in MAY_IMPORT[room] | {room}, f"{path.name} in {room} imports {name}"
            assert room in HEAVY.get(top, {room}), f"{path.name} in {room} imports {top}"


def test_every_room_is_known():
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == set(MAY_IMPORT)


def test_import_is_light():
    code = """
import sys, time
begin = time.perf_counter()
import graspcl
seconds = time.perf_counter() - begin
heavy = {"faiss", "numba", "transformers", "torch", "pandas", "scipy"} & set(sys.modules)
assert not heavy, heavy
assert seconds < 2, seconds
graspcl.Buffer, graspcl.grasp_order
assert not {"faiss", "numba", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_is_long():
    for path in SOURCE.glob("**/*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 450, f"{path.relative_to(SOURCE)} has {lines} lines: is it one thing?"
