"""The command pretrain: trains with the settings of a run, writes one file, resumes, and answers mistakes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl.cli.pretrain import pretrain
from graspcl.codec import OPQ, Half
from graspcl.errors import GraspError
from graspcl.experiment import run
from graspcl.model import make_network
from graspcl.pretrain import Trainer, load_codec, load_weights, read_header, read_weights
from graspcl.settings import from_plain, presets
from graspcl.settings.config import as_plain
from graspcl.settings.read import flatten, read_toml
from graspcl.state import load_state

pytest.importorskip("PIL", reason="needs graspcl[demo]")

CLASSES = ["ant", "bee", "cod", "doe"]
SWAV = "swav(epochs=1,batch_size=8,prototypes=20,small_views=1)"


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


@pytest.fixture
def train(pictures, tmp_path, monkeypatch):
    """Trains with a TOML file of small settings and options; returns the file of weights."""
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    file = tmp_path / "small.toml"
    file.write_text(f"""
network = "small"
codec = "half"
data = {{ path = "{pictures}", pixels = 32 }}
stream = {{ base_classes = 4, order = "sorted" }}
base.stages = "supervised(epochs=3, batch_size=8)"
execution = {{ device = "cpu" }}
""")

    def command(out: str, *options: str, cache: str = "cache") -> Path:
        monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / cache))
        pretrain(str(file), *options, out=tmp_path / out)
        return tmp_path / out

    yield command
    torch.set_num_threads(threads)


def same(one: Path, other: Path) -> bool:
    first, second = read_weights(one), read_weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_supervised_training_writes_network_codec_and_settings(train, pictures, tmp_path, capsys) -> None:
    pytest.importorskip("faiss", reason="needs graspcl[opq]")
    # 8 px: 30 pictures of 16 locations are enough to train 256 entries, and few enough to be quick.
    stage = "supervised(epochs=12, batch_size=8, lr=0.1)"
    options = ["--codec", "opq", "--base.stages", stage, "--stream.base_classes", "3"]
    out = train("deep/base.safetensors", *options, "--data.pixels", "8")
    assert os.listdir(out.parent) == ["base.safetensors"]
    about = read_header(out)["settings"]
    assert about["classes"] == ["ant", "bee", "cod"] and about["stages"][0]["method"] == "supervised"
    assert len(about["stages"][0]["epochs"]) == 12 and about["pixels"] == 8 and about["train_accuracy"] > 0.9
    said = " ".join(capsys.readouterr().out.split())
    assert "small: 3 classes, 30 images; 12 epochs, loss" in said
    assert "training accuracy" in said and "Wrote" in said
    network = make_network("small", 3, pixels=8, generator=torch.Generator().manual_seed(9))
    assert not load_weights(network, out).missing
    codec = load_codec(out)
    assert isinstance(codec, OPQ)
    latents = network.encode(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
    assert codec.decode(codec.encode(latents)).shape == latents.shape
    content = out.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])  # JSON for everyone
    assert json.loads(header["__metadata__"]["graspcl"])["codec"]["name"] == "opq"


def test_an_unreadable_picture_is_left_out(train, pictures, tmp_path, capsys) -> None:
    copy = tmp_path / "pictures"
    shutil.copytree(pictures, copy)
    (copy / "train" / "bee" / "broken.png").write_bytes(b"no picture")
    file = train("weights.safetensors", "--data.path", str(copy), "--base.stages", "supervised(epochs=1)")
    assert read_header(file)["settings"]["images"] == 40
    assert "1 samples cannot be read and are left out" in " ".join(capsys.readouterr().out.split())


def test_swav_without_labels_and_what_a_run_begins_from(train, pictures, tmp_path, capsys) -> None:
    swav = train("swav", "--base.stages", SWAV)
    said = capsys.readouterr().out
    assert "prototypes used" in said and "training accuracy" not in said
    assert isinstance(load_codec(swav), Half)
    # What SwAV has learned is where supervised training begins, and that is where a run begins.
    stages = f"weights(file={swav},seen=report),supervised(epochs=1,batch_size=8)"
    out = train("both", "--base.stages", stages, "--stream.base_classes", "2")
    assert "tensors loaded" in capsys.readouterr().out
    assert read_header(out)["settings"]["trained_on"] == CLASSES
    copy = train("copy", "--base.stages", f"weights(file={out},seen=report)", "--stream.base_classes", "2")
    assert same(out, copy) and read_header(copy)["settings"]["stages"][0]["method"] == "weights"
    plain = as_plain(from_plain({"network": "small", "codec": "half", "data": {"path": str(pictures), "pixels": 32}}))
    plain |= {"stream": {"base_classes": 2, "sessions": 2, "order": "sorted"}, "budget": {"updates": 2}}
    plain["base"] = {"stages": [{"name": "weights", "file": str(out), "seen": "report"}]}
    assert run(from_plain(plain), tmp_path / "run")["seen"].endswith("were trained on 2 classes of the stream")
    made = json.loads((tmp_path / "run" / "environment.json").read_text())["base"]["stages"][0]
    assert made["method"] == "weights" and "loaded" in made["loaded"]
    plain["base"] = {"stages": f"weights(file={out})"}
    with pytest.raises(GraspError, match="trained on 2 classes of the stream: cod, doe; train on the first classes"):
        run(from_plain(plain), tmp_path / "refused")


def test_a_run_trains_the_base_of_a_preset_once_and_resumes(train, pictures, tmp_path, monkeypatch) -> None:
    """It starts from the weights and the codec that `graspcl pretrain` with the preset's settings writes."""
    monkeypatch.setattr(presets, "_read", lambda name: {"settings": flatten(read_toml(tmp_path / "small.toml"))})
    epoch, epochs = Trainer._epoch, []

    def counted(trainer, *given):
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return epoch(trainer, *given)

    def learn(stage: str, folder: str, **options: object) -> dict[str, object]:
        start = {"network": "small", "codec": "half", "data.path": str(pictures), "data.pixels": 32, "seed": 1}
        start |= {"stream.order": "sorted", "stream.sessions": 2, "budget.updates": 2, "base.stages": stage}
        return run(from_plain(start | options), tmp_path / folder)

    by_preset = "weights(preset=small,seen=report)"
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_epoch", counted)
        with pytest.raises(KeyboardInterrupt):
            learn(by_preset, "one", **{"base.data": str(pictures)})
        summary = learn(by_preset, "one", **{"base.data": str(pictures)})
        learn(by_preset, "two", **{"base.data": str(pictures), "seed": 2})
    assert len(epochs) == 4  # of 3: the second was stopped, and the other seed trained nothing
    summary_of_file = learn(f"weights(file={train('base', cache='other')},seen=report)", "three")
    assert summary["alpha"] == summary_of_file["alpha"] and "4 classes of the stream" in summary["seen"]
    first, second = (load_state(next((tmp_path / name / "checkpoints").iterdir())) for name in ("one", "three"))
    for name, value in first["learner"]["network"].items():
        assert torch.equal(value, second["learner"]["network"][name])


def test_stages_follow_each_other_and_each_is_trained_once(train, capsys) -> None:
    first = train("first", "--base.stages", f"{SWAV},supervised(epochs=1,batch_size=8)")
    assert "pretraining: read from the cache" not in capsys.readouterr().out
    second = train("second", "--base.stages", f"{SWAV},supervised(epochs=1,batch_size=8,optimiser=adamw,lr=0.001)")
    assert capsys.readouterr().out.count("pretraining: read from the cache") == 1
    stages = [read_header(file)["settings"]["stages"] for file in (first, second)]
    assert [[stage["method"] for stage in each] for each in stages] == [["swav", "supervised"]] * 2
    assert stages[0][0]["key"] == stages[1][0]["key"] and stages[0][1]["key"] != stages[1][1]["key"]
    alone = train("alone", "--base.stages", "supervised(epochs=1,batch_size=8)")
    assert not same(first, second) and not same(first, alone)  # what SwAV learned is where the other begins


def test_data_with_the_same_base_share_its_training(train, capsys) -> None:
    all_classes = train("all", "--base.stages", SWAV, "--stream.base_classes", "2")
    fewer = train("fewer", "--base.stages", SWAV, "--stream.base_classes", "2", "--data.classes", "3")
    assert same(all_classes, fewer) and capsys.readouterr().out.count("pretraining: read from the cache") == 1
    train("others", "--base.stages", SWAV, "--stream.base_classes", "3", "--data.classes", "3")
    assert "pretraining: read from the cache" not in capsys.readouterr().out


def test_one_seed_one_result_and_an_order_of_classes(train, tmp_path) -> None:
    (tmp_path / "order.txt").write_text("doe\nant\ncod\nbee\n")
    options = [
        "--base.stages",
        "supervised(epochs=1,batch_size=8)",
        "--stream.order",
        str(tmp_path / "order.txt"),
        "--stream.base_classes",
        "2",
    ]
    seeds = {"a": "1", "b": "1", "c": "2"}
    a, b, c = (train(name, *options, "--seed", seed, cache=f"cache {name}") for name, seed in seeds.items())
    assert same(a, b) and not same(a, c)
    assert read_header(a)["settings"]["classes"] == ["doe", "ant"] and len(read_weights(a)["head.weight"]) == 2


def test_a_stopped_command_resumes(train, monkeypatch, capsys) -> None:
    straight = train("straight", cache="other cache")
    epoch, done = Trainer._epoch, []

    def stop(trainer, *given):
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(1)
        return epoch(trainer, *given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(Trainer, "_epoch", stop)
        train("stopped")
    stopped = train("stopped")
    assert "resumes after epoch 1 of 3" in " ".join(capsys.readouterr().out.split())
    assert same(straight, stopped)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "nowhere"), "--data nowhere: there is no such folder"),
        (("--network", "smal"), "no network called 'smal'; did you mean 'small'"),
        (("--stream.base_classes", "0"), "needs classes to train on"),
        (("--base.stages", "weights"), r"weights needs a file or a preset: set --base.stages 'weights\(file=FILE\)'"),
        (("--base.stages", "weights(file=nowhere.pth)"), r"nowhere\.pth: there is no such file"),
        (("--base.stages", "none"), "so nothing is trained"),
        # 8 px: ten pictures of 16 locations for 256 entries.
        (
            (
                "--codec",
                "opq",
                "--data.pixels",
                "8",
                "--base.stages",
                "supervised(epochs=1000)",
                "--stream.base_classes",
                "1",
            ),
            "codebooks of 256 entries need at least 256 vectors, got 160",
        ),
    ],
)
def test_mistakes_are_answered_before_the_training(train, tmp_path, options, message: str) -> None:
    if "opq" in options:
        pytest.importorskip("faiss", reason="needs graspcl[opq]")
    with pytest.raises(GraspError, match=message):
        train("a", *options)
    assert not (tmp_path / "a").exists() and not (tmp_path / "cache" / "base").exists()


def test_files_are_not_overwritten(train, tmp_path) -> None:
    (tmp_path / "a").write_text("precious")
    with pytest.raises(GraspError, match=r"a exists already; remove it or choose another name"):
        train("a")
    (tmp_path / "file").write_text("")
    with pytest.raises(GraspError, match="its folder cannot be created or written to"):
        train("file/a")
    assert (tmp_path / "a").read_text() == "precious"
