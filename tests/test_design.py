"""The import graph follows docs/design.md, names are not hidden, and `import graspcl` stays light."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import graspcl

SOURCE = Path(graspcl.__file__).parent

# Who may import whom among the rooms. The modules beside the rooms (`OPEN` below) are open to all.
PARTS = {"buffer", "codec", "policy", "model", "learner", "stream", "data"}
MAY_IMPORT = {
    "buffer": {"codec"},
    "codec": set(),
    "policy": {"buffer"},
    "model": set(),
    "pretrain": {"codec", "model"},
    "learner": {"buffer", "policy", "codec", "model"},
    "stream": set(),
    "data": set(),
    "metric": set(),
    "distributed": {"buffer", "policy", "model", "learner"},
    "settings": PARTS | {"pretrain"},
    "experiment": PARTS | {"settings", "pretrain", "metric", "distributed"},
    "report": {"metric"},
    "workspace": PARTS | {"settings", "experiment", "pretrain", "metric"},
    "cli": PARTS | {"settings", "experiment", "pretrain", "report", "bench", "workspace", "distributed"},
    "bench": PARTS | {"settings", "experiment", "workspace", "distributed", "report"},
    "testing": PARTS,
}
# Packages that only some rooms may use, wherever in a module they are imported.
HEAVY = {
    "faiss": {"codec", "bench"},
    "numba": {"policy", "buffer"},
    "transformers": {"model"},
    "PIL": {"data", "bench"},
    "pyarrow": {"data"},
    "scipy": {"metric", "learner"},
    "plotly": {"report"},
    "jinja2": {"report"},
    "rich": {"report", "cli", "bench"},
    "cyclopts": {"cli"},
}
OPEN = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}


def imports(source):
    """Dotted names of everything that a module imports, `from graspcl import report` as `graspcl.report`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "graspcl":
                yield from (f"graspcl.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require":
            yield node.args[0].value


def wrong_imports(room, source):
    """Imports of a module in `room` that the rooms do not allow."""
    for name in imports(source):
        top, *rest = name.split(".")
        if top == "graspcl" and rest and rest[0] in MAY_IMPORT and rest[0] not in MAY_IMPORT[room] | {room}:
            yield name
        if room not in HEAVY.get(top, {room}):
            yield name


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_rooms_import_downwards_only(room):
    for path in (SOURCE / room).glob("**/*.py"):
        assert [*wrong_imports(room, path.read_text(encoding="utf-8"))] == [], path.relative_to(SOURCE)


@pytest.mark.parametrize(
    "source",
    ["import graspcl.report", "from graspcl import report", "from graspcl.report import read", "import plotly.io"],
)
def test_every_way_of_importing_is_seen(source):
    assert [*wrong_imports("buffer", source)] != []


def test_modules_beside_the_rooms_import_no_room():
    for name in OPEN:
        found = [*imports((SOURCE / f"{name}.py").read_text(encoding="utf-8"))]
        assert not [one for one in found if one.startswith("graspcl.") and one.split(".")[1] in MAY_IMPORT], name


def test_every_room_is_known():
    assert {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} == set(MAY_IMPORT)


@pytest.mark.parametrize("room", ["graspcl", *(f"graspcl.{room}" for room in sorted(MAY_IMPORT))])
def test_no_module_is_hidden_by_a_name_of_its_package(room):
    package = importlib.import_module(room)
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            loaded = importlib.import_module(f"{room}.{module.name}")
            assert getattr(package, module.name) is loaded, f"{room}.{module.name}"


def test_import_is_light():
    code = """
import sys
import graspcl
heavy = {"faiss", "numba", "transformers", "torch", "pandas", "scipy", "numpy"} & set(sys.modules)
assert not heavy, heavy
graspcl.Buffer, graspcl.grasp_order
assert not {"faiss", "numba", "transformers"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_module_is_long():
    for path in SOURCE.glob("**/*.py"):
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= 450, f"{path.relative_to(SOURCE)} has {lines} lines: is it one idea?"
