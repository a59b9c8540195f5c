"""Whatever is typed or given, the program ends with a message; whatever a function is given, it raises a GraspError."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from graspcl import Budget, Buffer, Siesta, networks
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.learner import Optimiser
from graspcl.pretrain.weights import load_weights, save_weights

DIGITS, LONG = "9" * 400, "x" * 5000


def vector_network(width=8):
    return networks.create("vector", dim=width, classes=2, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["show", "groceries", "--seed", DIGITS], "seed must be"),
        (["show", "groceries", "--optimiser.lr", DIGITS], "optimiser.lr must be a positive number"),
        (["show", "groceries", "--budget.updates", 10**15], "budget.updates must be a whole number in [0, 1000000000]"),
        (["run", "groceries", "--buffer", DIGITS + "GB"], "is more than any machine has"),
        (["run", "groceries", "--buffer", DIGITS], "is not a size"),
        (["show", "groceries", "--name", LONG], "a setting has at most 4,096 characters"),
        (["run", LONG], "File name too long"),
        (["run", "groceries", "--name", "a\udcff"], r"name is 'a\udcff', which is not UTF-8"),
        (["tune", "groceries", "--search", "name=\udcff"], "is not UTF-8"),
        (["run", "groceries", "--out", "a\0b"], "an argument has a NUL character"),
        (["run", "groceries", "--out", LONG, "--scale", "smoke"], "File name too long"),
        (["report", LONG], "File name too long"),
        (["report", "a\0b"], "an argument has a NUL character"),
        (["predict", ".", LONG], "there is no file or folder"),
        (["watch", LONG], "File name too long"),
        (["stream", "show", LONG], "File name too long"),
        (["list", "runs", LONG], "File name too long"),
    ],
)
def test_extreme_arguments(graspcl, arguments, message):
    assert message in graspcl(*arguments, code=2)


@pytest.mark.skipif(os.name != "posix", reason="closes streams as a shell does")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed, tmp_path):
    command = f"{sys.executable} -m graspcl predict nowhere - -o out.csv {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert ("graspcl: " in done.stderr) == ("2>&-" not in closed)


@pytest.mark.parametrize(
    "content, message",
    [
        ("a = " + "[" * 5000 + "]" * 5000, "is not a TOML file"),
        (f"[{'.'.join('a' * 5000)}]", "more than 10 deep"),
        (f"seed = {'9' * 5000}", "is not a TOML file"),
        (f"seed = {DIGITS}", "seed must be a number below 2^63"),
        (f"[buffer]\ncapacity = {DIGITS}", "buffer.capacity must be a number below 2^63"),
        ('name = "a\\u0000b"', "no NUL among them"),
        ("\udcff", "is not a TOML file"),
    ],
)
def test_extreme_files(graspcl, tmp_path, content, message):
    (tmp_path / "a.toml").write_bytes(content.encode(errors="surrogateescape"))
    assert message in graspcl("run", "a.toml", code=2)


def test_a_pipe_is_not_a_file_of_settings(graspcl, tmp_path):
    os.mkfifo(tmp_path / "a.toml")
    assert "it is a pipe, not a regular file" in graspcl("run", "a.toml", code=2)


def test_a_folder_that_may_not_be_read(graspcl, tmp_path, monkeypatch):
    def refuse(self, *arguments):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr("pathlib.Path.is_dir", refuse)
    assert "runs: Permission denied" in graspcl("report", "runs", code=2)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_a_full_device_is_named():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "graspcl", "show", "groceries"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr == "graspcl: No space left on device\n"


@pytest.mark.parametrize(
    "inputs",
    [np.array([None, {}], object), [[1.0, 2.0], [3.0]], [None, None], None, torch.tensor(1.0), 7, {"a": 1}],
    ids=["objects", "ragged", "nones", "none", "scalar", "number", "dict"],
)
def test_inputs_that_are_no_array(inputs):
    learner = Siesta(vector_network(), Buffer(100), "grasp")
    for give in (lambda: learner.observe(inputs, [0, 1]), lambda: Buffer(10).insert(inputs, [0, 1])):
        with pytest.raises(GraspError, match="inputs must"):
            give()
    assert len(learner.buffer) == 0


@pytest.mark.parametrize("inputs", [torch.zeros(2, 5), torch.zeros(2, 8, 8), torch.zeros(2, 8, dtype=torch.complex64)])
def test_inputs_of_a_wrong_width_or_type(inputs):
    learner = Siesta(vector_network(), Buffer(100), "grasp")
    with pytest.raises(GraspError, match=rf"the network cannot take inputs \[2, {inputs.shape[1]}.*: "):
        learner.observe(inputs, [0, 1])
    learner.observe(torch.eye(8)[:2], [0, 1])
    with pytest.raises(GraspError, match=r"cannot take|the buffer stores"):
        learner.predict(inputs)
    assert len(learner.buffer) == 2


def test_ids_above_63_bits_are_refused():
    large = np.array([2**63 + 5], np.uint64)
    with pytest.raises(GraspError, match=r"ids must be below 2\^63, got 9223372036854775813"):
        Buffer(10).insert(torch.zeros(1, 2), [0], ids=large)
    with pytest.raises(GraspError, match="ids must be a vector of integers"):
        Buffer(10).insert(torch.zeros(1, 2), [0], ids=[2**70])

    class Words(Samples):
        def read(self, indices):
            return []

    for ids in (large, [2**70]):
        with pytest.raises(GraspError, match=r"words: ids must be whole numbers below 2\^63"):
            Words("words", "1", ["a"], labels=[0], ids=ids, train=[0], test=[])


@pytest.mark.parametrize(
    "capacity", [DIGITS + "GB", int(DIGITS), 10**5000, "1" * 5000 + "B"], ids=["GB", "digits", "thousands", "B"]
)
def test_extreme_capacities(capacity):
    with pytest.raises(GraspError, match=r"any machine has|buffer capacity must be"):
        Buffer(capacity).insert(torch.zeros(1, 2), [0])


def test_extreme_parameters():
    for value, message in ((10**400, "below 2^63"), (10**5000, "more than 4,000 digits"), ("a", "got 'a'")):
        with pytest.raises(GraspError, match="lr must be") as found:
            Optimiser(lr=value)
        assert message in str(found.value)
    with pytest.raises(GraspError, match="updates must be a whole number in"):
        Budget(updates=10**15, batch_size=2)


def test_weights_that_are_nan_are_refused(tmp_path):
    network = vector_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    broken = vector_network()
    next(broken.parameters()).data[0] = torch.nan
    save_weights(broken, tmp_path / "a.safetensors")
    with pytest.raises(GraspError, match=r"a\.safetensors has weights that are NaN or infinite, in "):
        load_weights(network, tmp_path / "a.safetensors")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_torchrun_does_not_repeat_a_command_in_each_of_its_processes(graspcl, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "predict works in one process: start it without torchrun" in graspcl("predict", "shop", "a.jpg", code=2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert "torchrun" not in graspcl("predict", "shop", "a.jpg", code=2)


def test_pillow_does_not_warn_of_pixels_that_are_counted(graspcl, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs graspcl[images]")
    image.new("1", (10_000, 10_000)).save(tmp_path / "large.png")
    with pytest.raises(Warning, match="decompression bomb"):
        image.open(tmp_path / "large.png")
    graspcl("--version")
    image.open(tmp_path / "large.png").close()
