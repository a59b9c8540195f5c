"""Memory of runs: what is not stored in the buffer stays in files, and is read when it is used."""

from __future__ import annotations

import io
import sys
import tarfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capped import run_capped
from graspcl.errors import GraspError
from graspcl.experiment.encoding import cached_rows
from graspcl.progress import Silent

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# Latents and codes of 2 KB each: 24,000 samples take 49 MB twice, of which the buffer keeps 1 MB.
LATENTS = """
import os, sys
from pathlib import Path
import numpy as np, torch
from graspcl.data import Samples, data_sources
from graspcl.experiment import run
from graspcl.experiment.encode import encode
from graspcl.progress import Silent
from graspcl.settings import change, preset

class Vectors(Samples):
    def __init__(self, number):
        rows = np.arange(number)
        split = rows[rows % 5 > 0], rows[rows % 5 == 0]
        super().__init__(f"vectors {number}", "1", [f"class {k}" for k in range(24)], rows % 24, rows, *split)

    def read(self, indices):
        rows = self.check(indices)
        return torch.eye(24, 1024)[self.labels[rows]] * torch.from_numpy(rows % 7 + 1.0).float()[:, None]

place, what, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.environ["GRASPCL_CACHE"] = str(place / "cache")
for name, size in (("small", 240), ("large", number)):
    data_sources.register(name, gives="vectors")(lambda size=size: Vectors(size))

def go(name):
    config = change(preset("listings"), {
        "name": name, "data.path": name, "stream.base_classes": 2, "stream.sessions": 4, "learner": "siesta",
        "network": "vector(dim=1024, hidden=16, embedding=16)", "codec": "half", "buffer": "1MB", "base.passes": 1.0,
        "budget.updates": 2, "budget.batch_size": 16, "optimiser": "sgd", "measure.coded": what == "coded",
    })
    if what == "encode":
        return encode(config, Silent(), workers=1).code_bytes
    return run(config, place / name)["buffer_bytes"]

go("small")
cap(40)
print(go("large"))
"""


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", "coded", "encode"])
def test_codes_much_larger_than_the_buffer_stay_in_files(what: str, tmp_path: Path) -> None:
    found = int(run_capped(LATENTS, tmp_path, what, 24_000))
    assert found == 2048 if what == "encode" else 500_000 < found <= 1_000_000
    assert sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*.npz")) > 2 * 24_000 * 2048


IMAGES = """
import os, sys
from pathlib import Path
import torch
from graspcl.experiment import run
from graspcl.settings import change, preset

place = Path(sys.argv[1])
os.environ["GRASPCL_CACHE"] = str(place / "cache")

def go(name):
    config = change(preset("images", own_data=str(place / f"{name}.tar")), {
        "name": name, "rehearsal": "veridical", "data.pixels": 32, "stream.base_classes": 1, "stream.sessions": 2,
        "stream.chunk": 4, "network": "small", "learner": "er_ace", "buffer": "5MB", "buffer.new_samples": "within",
        "budget.updates": 1, "budget.batch_size": 4, "base.passes": 0.1,
    })
    return run(config, place / name)["buffer_bytes"]

go("small")
cap(60)
print(go("large"))
"""


def write_shard(path: Path, number: int, noise: int) -> None:
    """A WebDataset shard of `number` images in three classes, with bytes of noise behind the end of each."""
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w") as archive:
        for row in range(number):
            image = io.BytesIO()
            Image.new("RGB", (32, 32), (40 * (row % 3), row % 256, 90)).save(image, "PNG")
            for name, content in (
                (f"{row:04d}.png", image.getvalue() + rng.bytes(noise)),
                (f"{row:04d}.cls", b"%d" % (row % 3)),
            ):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


@on_linux
@pytest.mark.slow
def test_veridical_rehearsal_reads_what_a_chunk_inserts(tmp_path: Path) -> None:
    write_shard(tmp_path / "small.tar", 30, 2**10)
    write_shard(tmp_path / "large.tar", 150, 2**20)
    found = int(run_capped(IMAGES, tmp_path))
    assert 4_000_000 < found <= 5_000_000


def test_rows_are_in_memory_only_where_they_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path))

    def compute(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
        return indices[:, None] * np.ones(64), np.arange(len(indices)), []

    peaks = []
    for number in (4096, 16_384):  # 2 and 8 MB
        for _ in ("computed", "read from files"):
            tracemalloc.start()
            rows = cached_rows(str(number), number, compute, Silent(), "title").values
            assert rows[number - 600 :][-1, 0] == number - 1
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert max(peaks) < 5 * 1024 * 64 * 8  # a file is read, verified and unpacked


def test_a_cache_file_that_is_lost_while_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRASPCL_CACHE", str(tmp_path))

    def compute(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[str]]:
        kept = np.flatnonzero(indices % 5 != 2)
        return np.asfortranarray(indices[kept, None] * [1.0, -1.0]), kept, [""] * (len(indices) - len(kept))

    rows = cached_rows("key", 2500, compute, Silent(), "title").values
    every = np.arange(2500)[:, None] * [1.0, -1.0] * (np.arange(2500) % 5 != 2)[:, None]
    mixed = np.random.default_rng(0).permutation(2500)[:700]
    for which in (slice(None), mixed, np.append(mixed, mixed), -1, slice(1020, 1030), np.empty(0, np.int64)):
        assert np.array_equal(rows[which], every[which])
    assert np.array_equal(rows.at(mixed)[5:9], every[mixed[5:9]])
    assert (rows.shape, rows.nbytes, len(rows)) == ((2500, 2), 40_000, 2500)
    _, second, third = sorted((tmp_path / "key").iterdir())
    second.unlink()
    third.write_bytes(third.read_bytes()[:50])
    assert np.array_equal(rows[:1024], every[:1024])
    for row, why in ((1030, "No such file"), (2499, "it has been cut")):
        with pytest.raises(GraspError, match=f"cannot be read again: {why}.*; run the same command again"):
            rows[row]
