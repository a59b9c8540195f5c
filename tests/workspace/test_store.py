"""A store keeps versions and their objects; readers see one moment, and one process writes."""

import numpy as np
import pytest
import torch

from graspcl.errors import GraspError
from graspcl.workspace.store import Store


@pytest.fixture
def shop(tmp_path):
    """A workspace of two versions: rows 0 1 2, then 3 more."""
    with Store.create(tmp_path / "shop", {"network": "wide"}) as store:
        first = store.put({"rows": np.arange(3), "weights": {"w": torch.ones(2, dtype=torch.bfloat16)}})
        store.commit("new", {"samples": 3}, {"segments": [first]})
        second = store.put({"rows": np.arange(3, 6)})
        store.commit("learn", {"samples": 6}, {"segments": [first, second]})
    return tmp_path / "shop"


def rows(store):
    return [int(row) for name in store.head.manifest["segments"] for row in store.get(name)["rows"]]


def test_what_is_committed_is_read_again(shop):
    with Store.open(shop) as store:
        assert store.format == {"network": "wide"} and rows(store) == [0, 1, 2, 3, 4, 5]
        assert [(one.number, one.parent, one.verb, one.summary) for one in store.versions()] == [
            (1, 0, "learn", {"samples": 6}), (0, None, "new", {"samples": 3}),
        ]  # fmt: skip
        weights = store.get(store.head.manifest["segments"][0])["weights"]["w"]
        assert weights.dtype == torch.bfloat16 and store.verify() == []


def test_undo_moves_back_and_is_an_entry_of_its_own(shop):
    with Store.open(shop, write=True) as store:
        assert store.undo().number == 0 and rows(store) == [0, 1, 2]
        with pytest.raises(GraspError, match="nothing to undo"):
            store.undo()
        again = store.commit("learn", {}, {"segments": []})
        assert (again.number, again.parent) == (2, 0)
    with Store.open(shop) as store:
        assert [one.verb for one in store.entries()] == ["learn", "undo", "learn", "new"]
        assert [one.number for one in store.versions()] == [2, 0]
