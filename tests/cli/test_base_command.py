"""The command `base`: trains, writes one file, goes on after a stop, and answers mistakes in a sentence."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from cyclopts import App

from graspcl.cli.base import base
from graspcl.codec import OPQ, Half
from graspcl.errors import GraspError
from graspcl.model import make_network
from graspcl.pretrain import load_codec, load_weights, read_header, read_weights

pytest.importorskip("PIL", reason="needs graspcl[demo]")
needs_opq = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="needs graspcl[opq]")

CLASSES = ("ant", "bee", "cod", "doe")


@pytest.fixture(autouse=True)
def one_thread():
    """Here nobody has told OpenMP to sleep when idle, as the program does, so that a second thread would only spin."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if importlib.util.find_spec("faiss"):
        importlib.import_module("faiss").omp_set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Four classes that differ in colour: ten noisy pictures to train on and two to test on of each."""
    from PIL import Image

    root, rng = tmp_path_factory.mktemp("data") / "pictures", np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        for number in range(12):
            colour = np.array([200 * (label & 1), 200 * (label >> 1), 100])
            picture = (colour + rng.integers(0, 55, (32, 32, 3))).astype(np.uint8)
            path = root / ("train" if number < 10 else "val") / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(path)
    return root


def run(pictures: Path, out: Path, *more: str) -> None:
    """As on the command line, with small defaults; later options win."""
    app = App()
    app.command(base)
    options = {"--network": "small", "--pixels": "32", "--epochs": "3", "--batch-size": "8", "--codec": "half"}
    options |= {"--data": str(pictures), "--out": str(out), **dict(zip(more[::2], more[1::2], strict=False))}
    words = [word for pair in options.items() for word in pair]
    app(["base", *words, *(["--resume"] if len(more) % 2 else [])], result_action="return_value", exit_on_error=False)


def tensors(path: Path) -> dict[str, torch.Tensor]:
    return read_weights(path)


def same(one: Path, other: Path) -> bool:
    first, second = tensors(one), tensors(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@needs_opq
def test_supervised_training_writes_network_codec_and_settings(pictures: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "deep" / "base.safetensors"
    # 8 px: 30 pictures of 16 locations are enough to train 256 entries, and few enough to be quick.
    run(pictures, out, "--codec", "opq", "--epochs", "12", "--lr", "0.1", "--classes", "3", "--pixels", "8")
    assert os.listdir(out.parent) == ["base.safetensors"]
    settings = read_header(out)["settings"]
    assert settings["classes"] == ["ant", "bee", "cod"] and settings["method"] == "supervised"
    assert len(settings["log"]) == 12 and settings["training"]["lr"] == 0.1 and settings["pixels"] == 8
    assert settings["train_accuracy"] > 0.9
    said = " ".join(capsys.readouterr().out.split())
    assert "small: 3 classes, 30 images at 8 px; 12 epochs, loss" in said
    assert "train accuracy" in said and "Wrote" in said
    network = make_network("small", 3, pixels=8, generator=torch.Generator().manual_seed(9))
    assert not load_weights(network, out).missing
    codec = load_codec(out)
    assert isinstance(codec, OPQ)
    latents = network.encode(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    assert codec.decode(codec.encode(latents)).shape == latents.shape


def test_swav_without_labels(pictures: Path, tmp_path: Path, capsys) -> None:
    run(pictures, tmp_path / "a", "--method", "swav", "--epochs", "1")
    said = capsys.readouterr().out
    assert "prototypes used" in said and "train accuracy" not in said
    assert isinstance(load_codec(tmp_path / "a"), Half)
    # What SwAV has learned is where supervised training begins.
    run(pictures, tmp_path / "b", "--weights", str(tmp_path / "a"), "--epochs", "1")
    assert "tensors loaded" in capsys.readouterr().out


def test_weights_alone(pictures: Path, tmp_path: Path, capsys) -> None:
    run(pictures, tmp_path / "a", "--epochs", "1")
    run(pictures, tmp_path / "b", "--method", "weights", "--weights", str(tmp_path / "a"))
    assert same(tmp_path / "a", tmp_path / "b")
    assert "log" not in read_header(tmp_path / "b")["settings"]


def test_one_seed_one_result(pictures: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        run(pictures, tmp_path / name, "--seed", seed, "--epochs", "1")
    assert same(tmp_path / "a", tmp_path / "b") and not same(tmp_path / "a", tmp_path / "c")


def test_a_list_gives_the_order_of_classes(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "order.txt").write_text("doe\n\nant\ncod\n")
    run(pictures, tmp_path / "a", "--class-list", str(tmp_path / "order.txt"), "--classes", "2", "--epochs", "1")
    assert read_header(tmp_path / "a")["settings"]["classes"] == ["doe", "ant"]
    assert len(tensors(tmp_path / "a")["head.weight"]) == 2


def test_a_stopped_command_goes_on_with_resume(pictures: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    import graspcl.state as checkpoint

    run(pictures, tmp_path / "straight")
    save = checkpoint.save_state

    def stop(path, state) -> None:
        save(path, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_state", stop)
    with pytest.raises(SystemExit):  # cyclopts' answer to Ctrl-C
        run(pictures, tmp_path / "stopped")
    monkeypatch.undo()
    assert not (tmp_path / "stopped").exists()
    with pytest.raises(GraspError, match=r"stopped\.checkpoint is left from a training that was stopped"):
        run(pictures, tmp_path / "stopped")
    with pytest.raises(GraspError, match=r"other settings \(seed\)"):
        run(pictures, tmp_path / "stopped", "--seed", "5", "--resume")
    with pytest.raises(GraspError, match="epochs was 3, is 4"):
        run(pictures, tmp_path / "stopped", "--epochs", "4", "--resume")
    run(pictures, tmp_path / "stopped", "--resume")
    assert "goes on after epoch 1 of 3" in capsys.readouterr().out
    assert same(tmp_path / "straight", tmp_path / "stopped")
    assert not (tmp_path / "stopped.checkpoint").exists()


@pytest.mark.slow
def test_a_killed_command_goes_on_with_resume(pictures: Path, tmp_path: Path) -> None:
    code = f"""
import graspcl.machine; graspcl.machine.prepare()
import torch; torch.set_num_threads(1)
from pathlib import Path
from graspcl.cli.base import base
base(data={str(pictures)!r}, network="small", pixels=32, epochs=15, batch_size=8, codec="half",
     out=Path({str(tmp_path / "killed")!r}))
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed.checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert (tmp_path / "killed.checkpoint").exists() and not (tmp_path / "killed").exists()
    run(pictures, tmp_path / "killed", "--epochs", "15", "--resume")
    run(pictures, tmp_path / "straight", "--epochs", "15")
    assert same(tmp_path / "straight", tmp_path / "killed")


def test_resume_without_a_checkpoint_begins(pictures: Path, tmp_path: Path, capsys) -> None:
    run(pictures, tmp_path / "a", "--epochs", "1", "--resume")
    assert "training begins anew" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "a").exists()


def test_the_header_is_json_for_everyone(pictures: Path, tmp_path: Path) -> None:
    run(pictures, tmp_path / "a", "--epochs", "1")
    content = (tmp_path / "a").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert json.loads(header["__metadata__"]["graspcl"])["codec"] == {"name": "half"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "nowhere"), "there is no image folder at nowhere"),
        (("--network", "smal"), "no network called 'smal'; did you mean 'small'"),
        (("--classes", "9"), "--classes 9: there are only 4 classes"),
        (("--class-list", "nowhere.txt"), r"--class-list nowhere\.txt cannot be read"),
        (("--method", "weights"), "--method weights needs the file: --weights FILE"),
        (("--weights", "nowhere.pth"), r"weights nowhere\.pth cannot be read: No such file"),
    ],
)
def test_mistakes_are_answered_in_a_sentence(pictures: Path, tmp_path: Path, options, message: str) -> None:
    with pytest.raises(GraspError, match=message):
        run(pictures, tmp_path / "a", *options)
    assert not list(tmp_path.iterdir())


def test_wrong_class_lists(pictures: Path, tmp_path: Path) -> None:
    for text, message in (
        ("\n", "names no class"),
        ("ant\nbea\n", "no class 'bea'; did you mean 'bee'"),
        ("ant\nant\n", "names a class twice"),
    ):
        (tmp_path / "order.txt").write_text(text)
        with pytest.raises(GraspError, match=message):
            run(pictures, tmp_path / "a", "--class-list", str(tmp_path / "order.txt"))


def test_files_are_not_overwritten(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("precious")
    with pytest.raises(GraspError, match=r"a is already there; remove it or choose another name"):
        run(pictures, tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(GraspError, match="its folder cannot be made"):
        run(pictures, tmp_path / "file" / "a")
    assert (tmp_path / "a").read_text() == "precious"


@needs_opq
def test_a_codec_that_cannot_be_trained_is_found_before_the_training(pictures: Path, tmp_path: Path) -> None:
    # 8 px: ten pictures of 16 locations for 256 entries.
    with pytest.raises(GraspError, match="160 vectors cannot train codebooks of 256 entries"):
        run(pictures, tmp_path / "a", "--codec", "opq", "--pixels", "8", "--epochs", "1000", "--classes", "1")
    assert not list(tmp_path.iterdir())
