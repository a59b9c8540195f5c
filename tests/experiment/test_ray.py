"""Sweeps on a Ray cluster of two nodes: one is killed, and every run is completed exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from graspcl.cluster import RayWorkers
from graspcl.errors import GraspError
from graspcl.experiment import make_workers, sweep
from graspcl.progress import Silent
from graspcl.registry import load_plugin
from graspcl.settings import change, preset
from graspcl.settings.grid import grid

ray = pytest.importorskip("ray", reason="needs graspcl[ray]")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
PLUGIN = Path(__file__).with_name("ray_plugin.py")
NODE = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
PATIENCE = 600  # seconds for what takes one or two on an idle machine
SETTINGS = {
    "name": "small", "data.path": "ray_clusters", "learner": "siesta", "stream.kind": "class_incremental",
    "stream.base_classes": 2, "stream.sessions": 2, "network": "vector(dim=16,hidden=32,embedding=24)",
    "codec": "half", "base.passes": 2, "buffer": 50, "budget.updates": 12, "budget.batch_size": 10,
    "checkpoint.seconds": 0,
}  # fmt: skip
SLOW_MACHINE = {"worker_register_timeout_seconds": PATIENCE, "health_check_timeout_ms": 60_000}


@pytest.fixture(scope="module")
def cluster():
    """A head that runs no tasks, on the loopback device; tests add nodes."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        source = str(Path(sys.modules["graspcl"].__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join([source, os.environ.get("PYTHONPATH", "")]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setattr("ray._private.services.get_node", patient(ray._private.services.get_node))
        head = {**NODE, "num_cpus": 0, "node_ip_address": "127.0.0.2", "include_dashboard": False}
        head |= {"_system_config": SLOW_MACHINE, **agent_ports()}
        made = Cluster(initialize_head=True, head_node_args=head)
        ray.init(made.address, _node_ip_address="127.0.0.2", log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


def patient(call):
    """`call`, which Ray gives up after 30 seconds, until it succeeds or patience ends."""

    def called(*given, **named):
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return call(*given, **named)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)

    return called


def agent_ports() -> dict[str, int]:
    """Ports of a node's helpers. A node that does not know them waits 15 seconds for them to start, and then dies."""
    names = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    with contextlib.ExitStack() as open_until_all_are_found:
        found = [open_until_all_are_found.enter_context(socket.socket()) for _ in names]
        for one in found:
            one.bind(("127.0.0.2", 0))
        return {name: one.getsockname()[1] for name, one in zip(names, found, strict=True)}


def add_node(cluster, **given):
    return cluster.add_node(**{**NODE, **given}, node_ip_address="127.0.0.2", **agent_ports())


@pytest.fixture
def configs(tmp_path, monkeypatch):
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GRASPCL_TEST_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("GRASPCL_TEST_GO", str(tmp_path / "go"))
    monkeypatch.chdir(tmp_path)
    load_plugin(PLUGIN)
    return grid(change(preset("listings"), SETTINGS), "grasp,uniform", seeds="2", references="none")


def events(folder: Path, kind: str) -> list[list[str]]:
    """What the runs noted: the kind, the run, its process and its node."""
    file = folder / "log"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [line for line in lines if line[0] == kind]


def test_a_node_is_killed_and_every_run_is_completed_once(cluster, configs, tmp_path):
    nodes = [add_node(cluster), add_node(cluster)]
    with RayWorkers([Path("runs")], retries=2, plugins=[PLUGIN]) as workers, ThreadPoolExecutor(1) as thread:
        outcome = thread.submit(sweep, configs, Path("runs"), Silent(), workers)
        end = time.monotonic() + PATIENCE
        while len({node for _, _, _, node in events(tmp_path, "middle")}) < 2:  # a run on each node has stopped midway
            assert time.monotonic() < end and not outcome.done(), outcome
            time.sleep(0.1)
        (lost,) = (int(process) for *_, process, node in events(tmp_path, "middle") if node == nodes[1].node_id)
        cluster.remove_node(nodes[1], allow_graceful=False)
        with contextlib.suppress(ProcessLookupError):  # a process may outlive its raylet, but not its machine
            os.kill(lost, signal.SIGKILL)
        (tmp_path / "go").touch()
        found = outcome.result(PATIENCE)
    assert not found.failed and found.finished == [Path("runs") / config.path for config in configs]
    concluded = [run for _, run, *_ in events(tmp_path, "end")]
    assert sorted(concluded) == sorted(str(config.path) for config in configs)  # each exactly once
    assert len(events(tmp_path, "begin")) == len(configs) + 1  # the lost run began twice
    with make_workers(1) as here:
        alone = sweep(configs, Path("alone"), Silent(), here)
    for mine, other in zip(found.finished, alone.finished, strict=True):
        one, two = (json.loads((path / "summary.json").read_text()) for path in (mine, other))
        assert one["matrix"] == two["matrix"] and one["updates"] == two["updates"]
    assert not [*Path("runs").glob(".seen-*")]


def test_the_command_works_on_the_cluster_at_an_address(cluster, configs, tmp_path):
    """In a process of its own, which is not connected yet."""
    node = add_node(cluster)
    (tmp_path / "go").touch()
    command = [sys.executable, "-m", "graspcl", "sweep", "listings", "--policies", "grasp", "--seeds", "0,"]
    command += [word for name, value in SETTINGS.items() for word in (f"--{name}", str(value))]
    command += ["--references", "none", "--engine", "ray", "--address", cluster.address, "--plugin", str(PLUGIN)]
    elsewhere = {**os.environ, "RAY_ADDRESS": "local"}  # without --address it would start a cluster of its own
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, env=elsewhere)
    assert done.returncode == 0 and "1 run finished, 0 failed" in done.stdout, done.stdout + done.stderr
    ((*_, where),) = events(tmp_path, "end")  # on any node of this cluster: other tests leave some there
    assert where in {one["NodeID"] for one in ray.nodes() if one["Alive"]}
    cluster.remove_node(node)


def test_errors_and_deaths_are_told(cluster, configs):
    node = add_node(cluster)

    def refuse():  # within the test: nodes cannot import the tests
        raise GraspError("a reason")

    with RayWorkers([Path("runs")], retries=0) as workers:
        assert workers.submit(os.getcwd).result(PATIENCE) == os.getcwd()
        assert "a reason" in str(workers.submit(refuse).exception(PATIENCE))
        assert "died 1 times (--retries 0)" in str(workers.submit(os._exit, 3).exception(PATIENCE))
        for mark in Path("runs").glob(".seen-*"):  # as if a node did not see the folder
            mark.unlink()
        task = workers._task.remote(ray.cloudpickle.dumps((os.getcwd, (), {})), workers._home)
        with pytest.raises(Exception, match=r"does not see .*runs; all nodes must share"):
            ray.get(task)
    cluster.remove_node(node)


def test_what_no_node_has_is_refused(cluster):
    wide = add_node(cluster, num_cpus=2)
    deep = add_node(cluster, num_gpus=2)
    there = ".*1 CPUs and 2 GPUs or 2 CPUs and 0 GPUs"  # perhaps also of a node that was just removed
    for cpus, gpus in ((64, 0), (2, 2)):
        for address in (None, "auto"):
            with pytest.raises(GraspError, match=f"Nodes have {there}, got {cpus} and {gpus}"):
                RayWorkers([Path("runs")], address, cpus, gpus)
    cluster.remove_node(wide)
    cluster.remove_node(deep)
