"""What a user types arrives where the work is done: every option of a command, with the work itself left out."""

import inspect
import socket
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from graspcl.cluster import RayWorkers
from graspcl.experiment import Outcome
from graspcl.experiment.tuning import Search, Trial
from graspcl.settings import change, preset
from graspcl.settings.config import as_plain
from graspcl.settings.grid import grid
from graspcl.settings.presets import load
from graspcl.settings.read import settled
from graspcl.stream import Stream, load_stream, save_stream

PLUGIN = Path(__file__).parents[2] / "examples" / "middle_first.py"


@pytest.fixture
def calls(monkeypatch):
    """Replaces functions by ones that note what they are called with, by their last name."""
    noted = {}

    def replace(place, result=None):
        def note(*given, **named):
            noted.setdefault(place.rpartition(".")[2], []).append((*given, named) if named else given)
            return result(*given, **named) if inspect.isfunction(result) else result

        monkeypatch.setattr(place, note)

    return SimpleNamespace(replace=replace, noted=noted)


def test_run(graspcl, calls):
    calls.replace("graspcl.experiment.run")
    calls.replace("graspcl.report.run_table", "the table")
    options = ("--scale", "small", "--rehearsal", "veridical", "--memory", "unbounded", "--out", "here", "--seed", "5")
    said = graspcl("run", "groceries", *options, "--policy", "middle_first", "--plugin", PLUGIN)
    ((config, folder, _, base, ranks),) = calls.noted["run"]
    assert ranks == {"ranks": None}
    expected = change(preset("groceries", "small", "veridical", "unbounded"), {"policy": "middle_first", "seed": 5})
    assert config == expected and expected.buffer.capacity is None
    assert (folder, base) == (Path("here") / config.path, Path("here") / config.folder / "base")
    assert calls.noted["run_table"] == [(folder,)] and "the table" in said and f"Run: {folder}" in said


def test_the_number_of_ranks_is_told(graspcl, calls):
    calls.replace("graspcl.distributed.launched", True)
    calls.replace("graspcl.distributed.joined", nullcontext(SimpleNamespace(world=4, device=torch.device("cpu"))))
    calls.replace("graspcl.experiment.run")
    calls.replace("graspcl.report.run_table", "the table")
    assert "the run is shared by 4 processes, on cpu" in graspcl("run", "groceries", "--scale", "smoke")


def test_show(graspcl):
    options = ("--scale", "small", "--rehearsal", "veridical", "--memory", "unbounded", "--budget.times", "0.5")
    expected = change(preset("groceries", "small", "veridical", "unbounded"), {"budget.times": 0.5})
    assert tomllib.loads(graspcl("show", "groceries", *options)) == as_plain(settled(expected))


@pytest.fixture
def sweeps(calls):
    """Sweeps in which one run is finished and one has failed."""
    calls.replace("graspcl.experiment.make_workers", nullcontext("the workers"))
    calls.replace("graspcl.experiment.sweep", Outcome([Path("good")], {Path("bad"): "no reason"}))
    calls.replace("graspcl.report.sweep_table", "the table")
    return calls


def test_sweep(graspcl, sweeps):
    lists = {
        "--policies": "mir(candidates=9),middle_first", "--learners": "derpp,siesta", "--seeds": "3,7",
        "--updates": "0.5x,40", "--buffer": "80,none", "--references": "slda",
    }  # fmt: skip
    options = ("--scale", "small", "--rehearsal", "veridical", "--out", "here", "--workers", "2", "--optimiser.lr", "3")
    words = [word for pair in lists.items() for word in pair]
    said = graspcl("sweep", "groceries", *words, *options, "--plugin", PLUGIN, code=1)
    ((configs, out, _, workers, title),) = sweeps.noted["sweep"]
    config = change(preset("groceries", "small", "veridical"), {"optimiser.lr": 3})
    assert configs == grid(config, *lists.values()) and len(configs) == 34
    assert (out, workers, title) == (Path("here"), "the workers", "groceries-small-veridical")
    assert sweeps.noted["make_workers"] == [(2, [PLUGIN])]
    assert sweeps.noted["sweep_table"] == [("groceries-small-veridical", [Path("good")], {"width": 80})]
    assert "failed bad: no reason" in said and f"1 run finished, 1 failed: {Path('here') / config.folder}" in said


def test_sweep_on_ray(graspcl, sweeps):
    sweeps.replace("graspcl.cluster.RayWorkers", nullcontext("the cluster"))
    options = ("--engine", "ray", "--address", "10.0.0.1:6379", "--cpus", "2", "--gpus", "0.5", "--retries", "1")
    graspcl("sweep", "groceries", "--policies", "mof", *options, "--out", "here", "--plugin", PLUGIN, code=1)
    given = {"address": "10.0.0.1:6379", "cpus": 2.0, "gpus": 0.5, "retries": 1, "plugins": [PLUGIN]}
    assert sweeps.noted["RayWorkers"] == [([Path("here")], given)]
    assert sweeps.noted["sweep"][0][3] == "the cluster" and "make_workers" not in sweeps.noted


@pytest.fixture
def ray(monkeypatch, calls):
    """An address at which something listens, and a stand-in for Ray with a node of 4 CPUs and 1 GPU."""
    fake = ModuleType("ray")
    monkeypatch.setitem(sys.modules, "ray", fake)
    fake.is_initialized = lambda: False
    fake.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0}}]
    for name, result in (("init", None), ("remote", lambda **limits: lambda function: function), ("shutdown", None)):
        setattr(fake, name, None)
        calls.replace(f"ray.{name}", result)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_ray_gets_what_was_asked_for(graspcl, sweeps, ray):
    options = ("--engine", "ray", "--address", ray, "--cpus", "2", "--gpus", "0.5", "--retries", "1")
    graspcl("sweep", "groceries", "--policies", "mof", *options, code=1)
    assert sweeps.noted["init"] == [(ray, {"log_to_driver": False, "logging_level": "ERROR"})]
    limits = {"num_cpus": 2.0, "num_gpus": 0.5, "max_retries": 1, "retry_exceptions": False}
    assert sweeps.noted["remote"] == [(limits,)]
    assert isinstance(sweeps.noted["sweep"][0][3], RayWorkers) and sweeps.noted["shutdown"] == [()]
    refused = graspcl("sweep", "groceries", "--policies", "mof", "--engine", "ray", "--cpus", "8", code=2)
    assert "Nodes have 4 CPUs and 1 GPUs, got 8 and 0" in refused


def test_a_cluster_that_does_not_answer_is_told_at_once(graspcl, sweeps, ray):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for start in ("", "ray://"):
            said = graspcl("sweep", "groceries", "--engine", "ray", "--address", start + address, code=2)
            assert f"the Ray cluster {start}{address} cannot be reached (--address)" in said
    assert "init" not in sweeps.noted


def test_a_sweep_of_one_run_without_a_bound(graspcl, sweeps):
    graspcl("sweep", "groceries", "--policies", "mof", "--seeds", "1", "--memory", "unbounded", code=1)
    ((configs, out, *_, title),) = sweeps.noted["sweep"]
    assert configs == grid(preset("groceries", memory="unbounded"), "mof", seeds="1", references="all")
    assert (out, title) == (Path("runs"), "groceries-unbounded")
    graspcl("sweep", "groceries", "--policies", "mof", "--seeds", "1", "--references", "none", code=1)
    assert sweeps.noted["sweep"][1][0] == grid(preset("groceries"), "mof", seeds="1")


@pytest.mark.parametrize(
    ("what", "preset_name"),
    [("photos", "images"), ("mails.CSV", "texts"), ("tables", "texts"), ("listings", "listings")],
)
def test_tune_finds_the_preset_for_the_data(graspcl, calls, tmp_path, what, preset_name):
    (tmp_path / "photos" / "ant").mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    for name in ("mails.CSV", "tables/train.csv"):
        (tmp_path / name).write_text("label,text\n")
    trials = [Trial({"optimiser.lr": 3}, {5: 40.0, None: 61.25}), Trial({}, {5: 30.0})]
    calls.replace("graspcl.experiment.make_workers", nullcontext("the workers"))
    calls.replace("graspcl.experiment.resolve", lambda config, progress: change(config, {"data.classes": 7}))
    calls.replace(
        "graspcl.experiment.tuning.tune",
        lambda config, *_: Search(trials, [(5, 2), (None, 1)], change(config, {"optimiser.lr": 3}), {}),
    )
    options = ("--search", "optimiser.lr=1,3; policy=mir", "--trials", "5", "--seeds", "2", "--out", "here")
    said = graspcl("tune", what, *options, "-o", "best.toml", "--seed", "4", "--workers", "2", "--plugin", PLUGIN)
    ((config, *rest),) = calls.noted["tune"]
    start = preset(preset_name, own_data=None if what == "listings" else what)
    assert config == change(start, {"data.classes": 7, "seed": 4})
    assert rest[:4] == [{"optimiser.lr": [1, 3], "policy": ["mir"]}, 5, 2, Path("here")] and rest[5] == "the workers"
    assert calls.noted["make_workers"] == [(2, [PLUGIN])]
    assert "61.25" in said and "graspcl run best.toml" in said
    written = (tmp_path / "best.toml").read_text()
    expected = change(config, {"optimiser.lr": 3, "name": f"{preset_name}-tuned"})
    assert tomllib.loads(written) == as_plain(settled(expected)) and load(tmp_path / "best.toml") == settled(expected)
    for line in ("optimiser.lr: 1, 3", "trials 2 with 5 samples, 1 with all samples per class; runs of each: 2",
                 "optimiser.lr=3 (5 samples: 40.00; all samples: 61.25)", "unchanged (5 samples: 30.00)"):  # fmt: skip
        assert line in written


@pytest.fixture
def demos(calls):
    calls.replace("graspcl.experiment.make_workers", nullcontext("the workers"))
    calls.replace("graspcl.experiment.sweep", Outcome([Path("good")]))
    calls.replace("graspcl.report.rows", ["a group"])
    for name, result in (("comparison", "the table"), ("gather", "the report"), ("write_page", None)):
        calls.replace(f"graspcl.report.{name}", result)
    return calls


def test_demo(graspcl, demos):
    options = ("--seeds", "2", "--policies", "mir,middle_first", "--workers", "3", "--out", "here", "--plugin", PLUGIN)
    said = graspcl("demo", *options)
    listings, groceries = demos.noted["sweep"]
    assert listings[0] == grid(preset("listings"), "mir,middle_first", seeds="2", references="finetune,probe,slda")
    assert groceries[0] == grid(preset("groceries"), "mir,middle_first", seeds="2", references="finetune,probe,slda")
    assert [one[3:] for one in (listings, groceries)] == [
        ("the workers", "listings"), ("the workers", "groceries"),
    ]  # fmt: skip
    assert demos.noted["make_workers"] == [(3, [PLUGIN])]
    folder = listings[1]
    assert folder.parent == Path("here") and folder.name.startswith("demo-") and groceries[1] == folder
    assert [given[1:] for given in demos.noted["comparison"]] == 2 * [(["a group"], 80)]
    assert demos.noted["gather"] == [([folder],)] and demos.noted["write_page"][0][:2] == (
        "the report", folder / "report.html"
    )  # fmt: skip
    assert said.count("the table") == 2
    demos.noted.clear()
    graspcl("demo", "--streams", "groceries")
    assert [given[4] for given in demos.noted["sweep"]] == ["groceries"]


def test_demo_of_texts(graspcl, demos):
    graspcl("demo", "--text")
    assert demos.noted["sweep"][0][0] == grid(preset("intents"), DEMO, seeds="1", references="finetune,probe,slda")
    demos.replace("graspcl.experiment.prepare.fit_to_data", preset("intents", seed=8))
    graspcl("demo", "--text", "--data", "my.csv", "--data.text", "said", "--data.label", "meant", "--seeds", "1")
    ((given,),) = demos.noted["fit_to_data"]
    assert (given.data.path, given.data.text, given.data.label) == ("my.csv", "said", "meant")
    assert [config.seed for config in demos.noted["sweep"][1][0]] == [0] * 5
    assert demos.noted["comparison"][1][0] == f"my.csv, {given.data.classes} classes"


DEMO = "grasp,uniform_balanced"


def test_lists_of_runs(graspcl, calls, tmp_path):
    (tmp_path / "mine").mkdir()
    calls.replace("graspcl.report.find_runs", [])
    patterns = ("--name", "a*", "--policy", "b*", "--learner", "c*", "--state", "damaged")
    assert "no such runs in mine" in graspcl("list", "runs", "mine", *patterns)
    graspcl("list", "runs", "mine")
    assert calls.noted["find_runs"] == [
        (Path("mine"), "a*", "b*", "c*", "damaged"),
        (Path("mine"), "*", "*", "*", None),
    ]


def test_report(graspcl, calls):
    runs = [SimpleNamespace(usable=True)]
    calls.replace("graspcl.report.gather", SimpleNamespace(runs=runs, with_problems=0))
    calls.replace("graspcl.report.write_page")
    calls.replace("graspcl.report.render.images.write_figures", [1, 2])
    calls.replace("graspcl.report.render.text.write_tables", [1])
    assert "wrote report.html: 1 run\n" in graspcl("report")
    Path("report.html").write_text("<title>My own page</title>")
    assert "report.html exists and is not a report of graspcl; give the report another" in graspcl("report", code=2)
    Path("report.html").unlink()
    graspcl("report", "a", "b", "-o", "x.html", "--baseline", "mir", "--paper", "table-3", "--no-samples")
    assert calls.noted["gather"] == [((Path("runs"),), None, None), ((Path("a"), Path("b")), "mir", "table-3")]
    (_, page, samples), (_, other, none) = calls.noted["write_page"]
    assert (page, other) == (Path("report.html"), Path("x.html")) and callable(samples) and none is None
    assert "wrote 2 files to drawn: 1 run" in graspcl("report", "--format", "svg", "-o", "drawn")
    graspcl("report", "--format", "tex")
    assert [given[1:] for given in calls.noted["write_figures"]] == [(Path("drawn"), "svg")]
    assert [given[1:] for given in calls.noted["write_tables"]] == [(Path("report"), "tex")]


def test_watch(graspcl, calls):
    calls.replace("graspcl.report.watch.watch", "finished")
    assert "the run is finished" in graspcl("watch", "mine", "--port", "81", "--refresh", "0.5")
    run, _, port, refresh = calls.noted["watch"][0]
    assert (run, port, refresh) == (Path("mine"), 81, 0.5)


def test_pretrain(graspcl, calls):
    def write(config, out, progress):
        out.write_bytes(bytes(2_500_000))
        return {"network": config.network.name, "classes": ["ant"], "images": 3_000, "stages": []}

    calls.replace("graspcl.experiment.prepare.write_weights", write)
    calls.replace("graspcl.cli.pretrain.check")
    options = ("--scale", "small", "--data", "photos", "--base.stages", "swav(epochs=3)", "--out", "deep/w")
    said = graspcl("pretrain", "imagenet-300", *options)
    ((config, out, _),) = calls.noted["write_weights"]
    expected = preset("imagenet-300", "small", own_data="photos")
    assert config == change(expected, {"data": "photos", "base.stages": "swav(epochs=3)"}) and out == Path("deep/w")
    assert f"{config.network.name}: 1 classes, 3,000 images" in said and "Wrote deep/w (2.5 MB)" in said


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_is_shown_column_by_column(graspcl):
    """4 samples of 2 classes, then 6 of 3 classes, of which one is new."""
    save_stream(Stream([0, 1, 2, 3], [[4, 5, 6, 7, 8, 9]], labels=[7, 7, 7, 2, 2, 2, 2, 7, 5, 5]), "mine.npz")
    first, second = (line.split() for line in graspcl("stream", "show", "mine.npz").splitlines()[3:5])
    assert first == ["base", "4", "2", "2", "7,", "2", "7:", "3", "2:", "1"]
    assert second == ["1", "6", "3", "1", "5", "2:", "3", "7:", "1"]


def test_the_settings_of_a_stream_arrive(graspcl, calls, monkeypatch):
    """Whatever is asked for is what is arranged; the file names the data and their samples."""
    data = SimpleNamespace(classes=["ant", "bee"], ids=np.array([40, 41, 42]), fingerprint=lambda: "data 1")
    calls.replace("graspcl.experiment.prepare.open_data", (data, "the order"))
    calls.replace("graspcl.experiment.prepare.arrange", Stream([0], [[1, 2]], labels=[0, 1, 1]))
    options = ("--scale", "smoke", "--seed", "4", "--plugin", PLUGIN)
    shown = graspcl("stream", "show", "listings", *options)
    assert "ant" in shown and "bee" in shown
    graspcl("stream", "save", "listings", *options, "--out", "mine.npz")
    expected = preset("listings", "smoke", seed=4)
    assert calls.noted["open_data"] == 2 * [(expected,)]
    assert calls.noted["arrange"] == 2 * [(expected, data, "the order")]
    assert load_stream("mine.npz", "data 1").ids.tolist() == ["40", "41", "42"]
    assert "ant" in graspcl("stream", "show", "places-lt", "--data", ".")  # without the images of its base
