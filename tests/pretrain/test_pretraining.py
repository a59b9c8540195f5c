"""Methods by name, checkpoints, and results that are computed once."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_network import same, stripes, tiny

import graspcl.pretrain.trainer as module
from graspcl.cache import lock
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.pretrain import (
    SupervisedSettings,
    SwavSettings,
    load_weights,
    make_trainer,
    pretrain_once,
    save_weights,
    stages,
)
from graspcl.pretrain.weights import STATES
from graspcl.state import load_state, save_state

IMAGES, LABELS = stripes(24)
SETTINGS = {
    "supervised": SupervisedSettings(epochs=2, batch_size=8, lr=0.05),
    "swav": SwavSettings(epochs=2, batch_size=8, prototypes=6, projection=4, hidden=8, small_views=1),
}
METHODS = pytest.mark.parametrize("method", sorted(SETTINGS))


class Notes:
    """A progress that remembers what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.titles: list[tuple[str, int]] = []

    def task(self, title, total):
        self.titles.append((title, total))
        return module.Silent().task(title, total)

    def note(self, text: str) -> None:
        self.notes.append(text)


def arguments(method: str) -> tuple:
    return (method, lambda indices: IMAGES[indices], np.arange(24), LABELS, SETTINGS[method], 3)


def interrupted(method: str, run) -> None:
    """Call `run`, and stop it after the checkpoint of its first epoch."""
    save = module.save_state

    def stop(path, state) -> None:
        save(path, state)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "save_state", stop)
        with pytest.raises(KeyboardInterrupt):
            run()


def trained(method: str) -> SplitNetwork:
    """A network trained without a checkpoint."""
    network = tiny(classes=4)
    make_trainer(network, *arguments(method)).run()
    return network


def weights(network: SplitNetwork) -> dict[str, torch.Tensor]:
    """What training changes: `pretrain_once` restores generators and counters."""
    return {name: value for name, value in network.state_dict().items() if not name.endswith(STATES)}


def equal(one: SplitNetwork, other: SplitNetwork) -> bool:
    return all(torch.equal(value, weights(other)[name]) for name, value in weights(one).items())


@METHODS
def test_a_stopped_training_resumes_from_its_checkpoint_to_the_same_weights(tmp_path: Path, method: str) -> None:
    network = tiny(classes=4)
    log = make_trainer(network, *arguments(method)).run()
    interrupted(method, lambda: pretrain_once(tiny(classes=4), tmp_path, *arguments(method)))
    resumed, told = tiny(7, classes=4), Notes()
    again = pretrain_once(resumed, tmp_path, *arguments(method), told)
    assert equal(network, resumed) and [e["loss"] for e in again["epochs"]] == [epoch.loss for epoch in log]
    assert told.notes == ["pretraining resumes after epoch 1 of 2"]
    assert told.titles == [(f"pretraining ({method}, 2 epochs)", 24)]


def test_a_checkpoint_of_the_earlier_command_is_read(tmp_path: Path) -> None:
    resumed, told, file = tiny(7, classes=4), Notes(), tmp_path / "training.safetensors"
    interrupted("supervised", lambda: pretrain_once(tiny(classes=4), tmp_path, *arguments("supervised")))
    save_state(file, {"asked": {"seed": 0}, "trainer": load_state(file)})
    pretrain_once(resumed, tmp_path, *arguments("supervised"), told)
    assert equal(trained("supervised"), resumed) and told.notes == ["pretraining resumes after epoch 1 of 2"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [("swav", "other settings: kind was SwavTrainer"), ("broken", "damaged"), ("none", "this is not a checkpoint")],
)
def test_a_checkpoint_of_another_training_is_replaced(tmp_path: Path, content: str, problem: str) -> None:
    other, told, file = tiny(classes=4), Notes(), tmp_path / "training.safetensors"
    if content == "swav":
        interrupted("swav", lambda: pretrain_once(tiny(classes=4), tmp_path, *arguments("swav")))
    elif content == "broken":
        file.write_bytes(b"broken")
    else:
        save_state(file, {"something": 1})
    pretrain_once(other, tmp_path, *arguments("supervised"), told)
    assert equal(trained("supervised"), other)
    assert problem in told.notes[0] and told.notes[0].endswith("; pretraining starts again")


def test_a_disk_that_is_full_does_not_stop_the_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(path, state) -> None:
        raise GraspError("no space left")

    other, told = tiny(classes=4), Notes()
    monkeypatch.setattr(module, "save_state", full)
    pretrain_once(other, tmp_path, *arguments("supervised"), told)
    assert equal(trained("supervised"), other) and len(told.notes) == 2 and "this work is repeated" in told.notes[0]


@METHODS
def test_what_was_trained_once_is_loaded(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    classes, told = (4 if method == "supervised" else 0), Notes()
    first, second = tiny(classes=classes), tiny(classes=classes)
    interrupted(method, lambda: pretrain_once(tiny(7, classes=classes), tmp_path, *arguments(method)))
    assert [file.name for file in tmp_path.iterdir()] == ["training.safetensors"]
    log = pretrain_once(first, tmp_path, *arguments(method))
    assert [file.name for file in tmp_path.iterdir()] == ["network.safetensors"]
    assert log["method"] == method and len(log["epochs"]) == 2
    monkeypatch.setattr(module, "make_trainer", None)  # a second training would fail
    assert pretrain_once(second, tmp_path, *arguments(method), told) == log
    assert same(first, second)  # generators and counters as well
    assert told.notes[0].startswith("pretraining: read from the cache")


def test_a_damaged_result_is_computed_again(tmp_path: Path) -> None:
    first, second, told = tiny(classes=4), tiny(classes=4), Notes()
    log = pretrain_once(first, tmp_path, *arguments("supervised"))
    (tmp_path / "network.safetensors").write_bytes(b"broken")
    again = pretrain_once(second, tmp_path, *arguments("supervised"), told)
    assert same(first, second) and told.notes[0].endswith("; pretraining is repeated")
    assert [epoch["loss"] for epoch in again["epochs"]] == [epoch["loss"] for epoch in log["epochs"]]


def test_a_link_in_place_of_the_result_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "network.safetensors").symlink_to(tmp_path / "precious")
    pretrain_once(tiny(classes=4), tmp_path / "cache", *arguments("supervised"))
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "cache" / "network.safetensors").is_symlink()


def test_training_can_start_from_weights(tmp_path: Path) -> None:
    first, second = tiny(), tiny(1)
    make_trainer(first, *arguments("swav")).run()
    save_weights(first, tmp_path / "swav")
    load_weights(second, tmp_path / "swav")
    quiet = SupervisedSettings(epochs=1, batch_size=8, lr=1e-9, part="plastic")
    make_trainer(second, "supervised", lambda indices: IMAGES[indices], range(24), LABELS, quiet).run()
    torch.testing.assert_close(second.plastic.layer2[0].weight, first.plastic.layer2[0].weight)
    assert torch.equal(second.frozen.layer0[0].weight, first.frozen.layer0[0].weight)
    assert second.head.classes == 4


def test_methods_are_known_by_name_and_mistakes_are_explained() -> None:
    def read(indices):
        raise AssertionError("nothing is read")

    assert stages.names() == ["supervised", "swav", "weights"]
    with pytest.raises(GraspError, match="no stage called 'swaw'; did you mean 'swav'"):
        make_trainer(tiny(), "swaw", read, range(4))
    with pytest.raises(GraspError, match="needs the head's row of each sample; pass rows"):
        make_trainer(tiny(), "supervised", read, range(4))
    with pytest.raises(GraspError, match="'swav' takes SwavSettings, got SupervisedSettings"):
        make_trainer(tiny(), "swav", read, range(4), settings=SETTINGS["supervised"])


def test_training_shows_its_progress_to_who_waits_for_its_lock(tmp_path: Path) -> None:
    """The lock is touched after each batch, within an epoch too."""
    file, touched = tmp_path / "lock", []

    def look(done: int) -> None:
        touched.append(file.stat().st_mtime)
        os.utime(file, (0, 0))

    class Looking(Notes):
        def task(self, title, total):
            return nullcontext(look)

    with lock(file):
        pretrain_once(tiny(classes=4), tmp_path, *arguments("supervised"), Looking())
    assert len(touched) == 6 and all(touched)
