"""Runs told to other programs: read back as those programs read them, each session once, and never a reason to stop."""

from __future__ import annotations

import json
import sys

import pytest

from graspcl.errors import GraspError, MissingExtra
from graspcl.experiment import run
from graspcl.experiment.loggers import LOGGERS, Logger, Loggers, catch_up, make_loggers
from graspcl.settings import change

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
CONFIG = {"name": "toy", "seed": 3, "buffer": {"capacity": "8MB"}}
RECORDS = [{"session": t, "accuracy": 50.0 + t, "loss": None if t == 2 else 1.0 / t, "failed": "no"} for t in (1, 2, 3)]
SUMMARY = {"alpha": 61.5, "policy": "grasp", "matrix": [[1.0]], "joules": None}

# Other people's modules warn of what they will change.
pytestmark = pytest.mark.filterwarnings("default")


def read_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "logs" / "tensorboard"))
    found.Reload()
    assert "8MB" in found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    curves = {name: [(e.step, e.value) for e in found.Scalars(f"session/{name}")] for name in ("accuracy", "loss")}
    assert {tag for tag in found.Tags()["scalars"] if tag.startswith("summary/")} == {"summary/alpha"}
    return curves, found.Scalars("summary/alpha")[0].value


def read_mlflow(folder):
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "logs" / "mlflow").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("toy").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params == {"name": "toy", "seed": "3", "buffer.capacity": "8MB"}
    history = {name: client.get_metric_history(run.info.run_id, name) for name in ("accuracy", "loss")}
    curves = {name: [(point.step, point.value) for point in points] for name, points in history.items()}
    return curves, run.data.metrics["summary.alpha"]


def wandb_records(content):
    """The records of a .wandb file, a LevelDB log: blocks of 32 KiB hold pieces of them, each with a 7-byte head."""
    block, at, whole = 32768, 7, b""
    while at + 7 <= len(content):
        if block - at % block < 7:  # no room for a head
            at += block - at % block
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def read_wandb(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    curves, alpha, config = {"accuracy": [], "loss": []}, None, {}
    (file,) = (folder / "logs" / "wandb").glob("offline-run-*/run-*.wandb")  # before and after the stop it is one run
    for data in wandb_records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        config |= {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key != "_wandb"}
        values = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for name in curves.keys() & values.keys():
            curves[name].append((values["_step"], values[name]))
        for item in record.summary.update:
            alpha = json.loads(item.value_json) if "summary/alpha" in (item.key, *item.nested_key) else alpha
    assert config == CONFIG
    return curves, alpha


READ = {"tensorboard": read_tensorboard, "wandb": read_wandb, "mlflow": read_mlflow}


@pytest.mark.parametrize("name", LOGGERS)
def test_a_run_that_is_stopped_is_read_back_whole_with_each_session_once(name, tmp_path):
    pytest.importorskip(PACKAGES[name], reason=f"needs graspcl[{name}]")
    told: list[str] = []
    first = make_loggers(name, told.append)
    first.begin(CONFIG, tmp_path)
    for record in RECORDS[:2]:
        first.session(record)
    again = make_loggers(name, told.append)  # the last checkpoint was before session 2
    again.begin(CONFIG, tmp_path)
    for record in RECORDS[1:]:
        again.session(record)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    again.end(SUMMARY)
    assert told == []
    curves, alpha = READ[name](tmp_path)
    assert curves["accuracy"] == [(1, 51.0), (2, 52.0), (3, 53.0)]
    assert curves["loss"] == [(1, 1.0), (3, pytest.approx(1 / 3))]
    assert alpha == 61.5


class Spy(Logger):
    """Remembers what it hears, and fails at one of the calls."""

    def __init__(self, fails=""):
        self.fails, self.heard = fails, []

    def hear(self, call):
        self.heard.append(call)
        if call == self.fails:
            raise OSError("the disk is full")

    def begin(self, config, folder):
        self.hear("begin")

    def session(self, record):
        self.hear(f"session {record['session']}")

    def end(self, summary):
        self.hear("end")


WHOLE = ["begin", "session 1", "session 2", "session 3", "end"]


@pytest.mark.parametrize("fails", WHOLE)
def test_one_that_fails_is_noted_and_the_others_go_on(fails, tmp_path):
    bad, good, told = Spy(fails), Spy(), []
    logger = Loggers({"bad": bad, "good": good}, told.append)
    logger.begin(CONFIG, tmp_path)
    for record in RECORDS:
        logger.session(record)
    logger.end(SUMMARY)
    assert good.heard == WHOLE
    assert bad.heard == WHOLE[: WHOLE.index(fails) + 1]
    assert told == ["bad stops logging this run: OSError: the disk is full"]


class Stop(BaseException):
    """The run is killed."""


@pytest.fixture
def spies(monkeypatch):
    """What each logger has heard that was made and told of a run."""
    made = []

    def make():
        made.append(Spy())
        return made[-1]

    monkeypatch.setitem(LOGGERS, "spy", make)
    return lambda: [spy.heard for spy in made if spy.heard]


def test_the_end_is_told_though_the_run_was_killed_when_all_was_written(small, tmp_path, monkeypatch, spies):
    config, folder = change(small, {"log": "spy", "budget.updates": 2}), tmp_path / "run"

    def stop(self, summary):
        raise Stop

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr(Loggers, "end", stop)
        run(config, folder)
    assert (folder / "summary.json").exists() and spies() == [[*WHOLE[:-1], "session 4"]]
    for _ in range(2):
        run(config, folder)
    assert spies()[1:] == [["begin", "end"]]  # and what was told is not told again
    run(change(small, {"log": "tensorboard", "budget.updates": 2}), folder)
    assert not (folder / "logs" / "tensorboard.json").exists()  # that one never heard of the run


def test_a_run_that_comes_to_its_end_is_told_of_it_once(small, tmp_path, spies):
    config = change(small, {"log": "spy", "budget.updates": 2})
    for _ in range(2):
        run(config, tmp_path / "run")
    assert spies() == [[*WHOLE[:-1], "session 4", "end"]]


@pytest.mark.parametrize("damage", ["no package", "metrics.jsonl"])
def test_an_end_that_cannot_be_told_is_noted(tmp_path, spies, monkeypatch, damage):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "spy.json").write_text('{"session": 3}')
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    if damage == "no package":
        monkeypatch.delitem(LOGGERS, "spy")
    else:
        (tmp_path / "metrics.jsonl").write_text("{")
    told = []
    catch_up("spy", CONFIG, tmp_path, SUMMARY, told.append)
    assert len(told) == 1 and told[0].startswith("spy could not log the end of the run: ")


@pytest.mark.parametrize("name", LOGGERS)
def test_an_end_that_is_told_later_is_read_back_as_any_other(name, tmp_path):
    pytest.importorskip(PACKAGES[name], reason=f"needs graspcl[{name}]")
    told: list[str] = []
    first = make_loggers(name, told.append)
    first.begin(CONFIG, tmp_path)
    for record in RECORDS:
        first.session(record)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    for _ in range(2):
        catch_up(name, CONFIG, tmp_path, SUMMARY, told.append)
    assert told == []
    curves, alpha = READ[name](tmp_path)
    assert curves["accuracy"] == [(1, 51.0), (2, 52.0), (3, 53.0)] and alpha == 61.5


def test_a_damaged_note_is_no_reason_to_stop(tmp_path):
    spy = Spy()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "spy.json").write_text("{")
    logger = Loggers({"spy": spy}, pytest.fail)
    logger.begin(CONFIG, tmp_path)
    logger.session(RECORDS[0])
    assert spy.heard == ["begin", "session 1"]


@pytest.mark.parametrize("names", [None, "", " , "])
def test_without_loggers_nothing_is_written(names, tmp_path):
    logger = make_loggers(names, pytest.fail)
    logger.begin(CONFIG, tmp_path)
    logger.session(RECORDS[0])
    logger.end(SUMMARY)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", LOGGERS)
def test_a_missing_package_is_told_before_the_run(name, monkeypatch):
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(MissingExtra, match=rf"pip install '\.\[{name}\]'"):
        make_loggers(name)


def test_a_misspelt_name_is_told():
    with pytest.raises(GraspError, match="there is no logger 'mlfow'; did you mean 'mlflow'"):
        make_loggers("mlfow, tensorboard")
