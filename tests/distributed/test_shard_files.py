"""Shards in memory and in checkpoints of earlier versions, where damage of one makes the whole checkpoint unusable."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from graspcl.distributed.shards import ShardedCodes, Shares
from graspcl.experiment import RunFolder
from graspcl.state import save_state

CODES = np.arange(24, dtype=np.uint8).reshape(6, 4)


@pytest.fixture
def place(tmp_path):
    """Two checkpoints of a buffer in two shards."""
    folder = RunFolder(tmp_path)
    for number in (1, 2):
        for rank in range(2):
            slots = np.arange(rank, 6, 2)
            file = tmp_path / "checkpoints" / f"{number:06d}.shard-{rank}-of-2.safetensors"
            save_state(file, {"slots": slots, "codes": CODES[slots] + number})
        shards = {"number": 2, "shape": [6, 4], "dtype": "uint8"}
        buffer = {"columns": {"births": np.arange(6)}}
        folder.save_checkpoint({"stream": number, "learner": {"buffer": buffer}, "shards": shards})
    return folder


def test_shards_make_up_the_codes(place):
    state = place.load_checkpoint(pytest.fail)
    codes = state["learner"]["buffer"]["columns"]["codes"]
    assert np.array_equal(codes, CODES + 2)
    assert np.array_equal(codes[[5, 0]], CODES[[5, 0]] + 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_damaged_shard_is_found_before_anything_is_restored(place, rank):
    flip_last_byte(place.path / "checkpoints" / f"000002.shard-{rank}-of-2.safetensors")
    said = []
    state = place.load_checkpoint(said.append)
    assert state["stream"] == 1 and np.array_equal(state["learner"]["buffer"]["columns"]["codes"], CODES + 1)
    (line,) = said
    assert f"shard-{rank}-of-2.safetensors is damaged" in line and line.endswith("trying the previous one")


def flip_last_byte(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_ranks_count_what_they_hold_as_samples_come_move_and_go():
    codes = ShardedCodes(SimpleNamespace(rank=0, world=3), (12, 2), np.uint8)

    def held():
        return np.bincount(codes.holders[codes.holders >= 0], minlength=3).tolist()

    codes[np.arange(7)] = np.zeros((7, 2), np.uint8)
    assert held() == [3, 2, 2] == codes._levels.tolist()
    codes[np.array([0, 3])] = codes[np.array([5, 6])]  # evicted, and those at the end move
    assert held() == [1, 2, 2] == codes._levels.tolist()
    codes[np.array([5, 6, 1])] = np.zeros((3, 2), np.uint8)  # goes to rank 0 first; slot 1 is overwritten
    assert held() == codes._levels.tolist() and max(held()) - min(held()) <= 1
    codes[np.array([6])] = None
    assert held() == codes._levels.tolist() and codes.holders[6] == -1
    before = held()
    codes.grow(20)
    assert len(codes) == len(codes.holders) == 20 and held() == before == codes._levels.tolist()


def sorted_by_level(levels, number):
    """The rule in one line: sort what each rank would hold after each of `number` samples."""
    after = levels[:, None] + np.arange(number)
    return np.argsort(after.T, axis=None, kind="stable")[:number] % len(levels)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_samples_go_to_the_ranks_that_hold_the_fewest(world):
    rng = np.random.default_rng(world)
    for spread in (1, 2, 5, 30):
        for number in (0, 1, world, 40, 200):
            shares = Shares(SimpleNamespace(rank=0, world=world))
            shares._levels[:] = levels = rng.integers(0, spread, world)
            given = sorted_by_level(levels, number)
            assert np.array_equal(shares._give(number), given)
            assert np.array_equal(shares._levels, levels + np.bincount(given, minlength=world))


@pytest.mark.parametrize("world", [2, 64])
def test_all_slots_are_assigned_at_once_with_few_bytes_beside_the_codes(world):
    """As when a buffer is restored. To sort all samples of all ranks took 72 bytes for 2 ranks, 1,544 for 64."""
    number, width = 300_000, 32
    codes = ShardedCodes(SimpleNamespace(rank=1, world=world), (number, width), np.uint8)
    values = np.arange(number * width, dtype=np.uint8).reshape(number, width)
    tracemalloc.start()
    codes[:] = values
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    own = np.flatnonzero(codes.holders == 1)
    assert np.array_equal(codes._own["codes"][codes._places[own]], values[own])
    assert np.array_equal(codes.holders, np.arange(number) % world)
    copied = min(len(own), 1 << 16) * width
    assert peak < (len(own) + 64) * width * 9 / 8 + copied + 26 * number
