"""States and latents on disk: exact, whole or not at all, and explained when damaged."""

import os

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.cache import cache_folder, cached_rows
from graspcl.codec import Half
from graspcl.errors import GraspError
from graspcl.learner import Optimiser, Rehearsal, learners
from graspcl.model import vector_network
from graspcl.policy import Budget
from graspcl.progress import Silent
from graspcl.state import load_state, save_state

BUDGET = Budget(20, 8)
LEARNERS = [("siesta", {}), ("derpp", {}), ("derpp", {"teacher": True}), ("gdumb", {}), ("gdumb", {"reset": False}),
            ("finetune", {}), ("offline", {"passes": 3}),
            ("slda", {}), ("ranpac", {"dimensions": 9}), ("probe", {})]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters"), LEARNERS)
@pytest.mark.parametrize("policy", ["grasp", "mir"])
def test_a_session_stopped_in_its_middle_goes_on_from_disk_to_the_same_bytes(tmp_path, name, parameters, policy):
    """The second session, so that there are old samples: network, buffer, means, logits, policy and rates go on."""

    def learner():
        network = vector_network(6, hidden=8, embedding=5, dropout=0.2, generator=torch.Generator().manual_seed(0))
        kind = learners.get(name)
        buffer = Buffer(None if name == "offline" else 30, Half(), columns=kind.columns(4, **parameters))
        return kind(network, buffer, policy, Optimiser(lr=0.1), **parameters)

    inputs, labels = torch.randn(40, 6, generator=torch.Generator().manual_seed(1)), np.arange(40) % 4
    straight, stopped, restored = learner(), learner(), learner()
    for one in (straight, stopped):
        one.observe(inputs[labels < 2], labels[labels < 2])
        one.rehearse(BUDGET)
        one.observe(inputs[labels >= 2], labels[labels >= 2])
    expected = straight.rehearse(BUDGET)
    session = Rehearsal(stopped, stopped.session_budget(BUDGET))
    for _ in range(min(7, session.budget.updates)):
        session.step()
    save_state(tmp_path / "state", {"learner": stopped.state_dict(), "session": session.state_dict()})
    state = load_state(tmp_path / "state")
    restored.load_state_dict(state["learner"])
    rest = Rehearsal(restored, restored.session_budget(BUDGET), state["session"])
    while not rest.done:
        rest.step()
    log = rest.finish()
    assert np.array_equal(log.losses, expected.losses) and np.array_equal(log.rehearsed, expected.rehearsed)
    save_state(tmp_path / "straight", straight.state_dict())
    save_state(tmp_path / "restored", restored.state_dict())
    assert (tmp_path / "straight").read_bytes() == (tmp_path / "restored").read_bytes()


def test_types_survive(tmp_path):
    state = {
        "float16": torch.ones(2, dtype=torch.float16), "uint8": np.array([255], np.uint8), "bool": np.array([True]),
        "scalar": torch.tensor(1.5), "empty": np.empty((0, 3)), "strided": np.arange(6).reshape(2, 3).T,
        "nested": [{"big": 2**127, 3: "three"}, None, True, -0.1], "number": np.int64(4),
    }  # fmt: skip
    save_state(tmp_path / "deep" / "state", state)
    back = load_state(tmp_path / "deep" / "state")
    for name in ("float16", "scalar"):
        assert torch.equal(back[name], state[name]) and back[name].dtype == state[name].dtype
    for name in ("uint8", "bool", "empty", "strided"):
        assert np.array_equal(back[name], state[name]) and back[name].dtype == state[name].dtype
    assert back["nested"] == state["nested"] and back["number"] == 4
    assert os.listdir(tmp_path / "deep") == ["state"]


def test_damage_is_explained(tmp_path):
    path = tmp_path / "state"
    save_state(path, {"x": np.arange(1000)})
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a checkpoint at all", whole[:4]):
        path.write_bytes(damaged)
        with pytest.raises(GraspError, match="damaged or not written by graspcl"):
            load_state(path)
    with pytest.raises(GraspError, match="there is no checkpoint at"):
        load_state(tmp_path / "nowhere")
    for odd, message in (
        ({"x": {1, 2}}, "set at /x"),
        ({"x": {(1, 2): 3}}, "the key"),
        ({"x": np.array(["a"])}, "array of"),
    ):
        with pytest.raises(GraspError, match=message):
            save_state(path, odd)


def test_names_that_look_like_paths_do_not_collide(tmp_path):
    save_state(tmp_path / "state", {"a/b": np.zeros(2), "a": {"b": np.ones(2)}})
    back = load_state(tmp_path / "state")
    assert back["a/b"].tolist() == [0, 0] and back["a"]["b"].tolist() == [1, 1]


def test_rows_are_computed_once_and_a_damaged_file_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "cache"))
    asked = []

    def compute(indices):
        asked.extend(indices.tolist())
        kept = np.flatnonzero(indices % 7 != 3)  # one in seven cannot be read
        wrong = [f"no {i}" for i in indices[indices % 7 == 3]]
        return (indices[kept, None] * np.ones(2)).astype(np.float32), kept, wrong

    for _ in range(2):
        rows = cached_rows("key", 1500, compute, Silent(), "title")
        assert rows.values.shape == (1500, 2) and rows.values[1400].tolist() == [1400, 1400]
        assert np.array_equal(rows.readable, np.arange(1500) % 7 != 3) and rows.problems[:2] == ["no 3", "no 10"]
    assert asked == list(range(1500))
    _, second = sorted((cache_folder() / "key").glob("*.npz"))
    second.write_bytes(second.read_bytes()[:100])
    assert cached_rows("key", 1500, compute, Silent(), "title").values[1400].tolist() == [1400, 1400]
    assert asked == [*range(1500), *range(1024, 1500)]  # only what was damaged
    cached_rows("other", 5, compute, Silent(), "title")
    assert len(asked) == 1500 + 476 + 5


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path / "file" / "cache"))
    notes = []

    class Notes(Silent):
        def note(self, text):
            notes.append(text)

    def compute(indices):
        return np.ones((len(indices), 2)), np.arange(len(indices)), []

    assert len(cached_rows("key", 2, compute, Notes(), "title").values) == 2
    assert "could not be written" in notes[0]
