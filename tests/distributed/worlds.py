"""Learn in worlds of several gloo processes, and in one process, to compare what they did.

As a program this is a driver: it loads graspcl once, and forks the ranks of each world from itself. Tests thus pay the
imports once.
"""

from __future__ import annotations

import importlib
import io
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import traceback
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from graspcl import Budget, Buffer, GraspError
from graspcl.buffer import rules
from graspcl.codec import Codec, Encoded, Half, codecs
from graspcl.distributed import Ranks, distributed, joined, race
from graspcl.distributed.shards import Shares
from graspcl.learner import Batch, Learner, Optimiser, Rehearsal, column_shapes, learners
from graspcl.model import CosineHead, SplitNetwork, vector_network, veridical
from graspcl.policy import policies
from graspcl.state import load_state, save_state

# By rank, rounding decides whether a score that did not change counts as equal to what it was: that is refused.
SMOOTH = {name: {"weighting": "softmax"} for name in ("max_loss", "min_confidence", "min_logit_distance", "min_margin")}

DIM, CLASSES, CAPACITY = 8, 6, 45
WIDE, LONG, PIXELS = 4, 8, 8  # of texts' latents, and of images
PADDING = torch.full((WIDE, 1), -4.0)
BUDGET = Budget(updates=4, batch_size=10)


def make_learner(case: dict[str, Any]) -> Learner:
    """The learner of a case: names of learner, policy and rule, their parameters, and sizes."""
    network, codec, padding = make_network(case)
    kind, parameters = learners.get(case.get("learner", "siesta")), case.get("parameters", {})
    rule = rules.create(case.get("rule", "largest_class"))
    columns = {**column_shapes(rule, network, kind, **parameters), **kind.columns(CLASSES, **parameters)}
    capacity = None if kind.unbounded else case.get("capacity", CAPACITY)
    buffer = Buffer(capacity, codec, rule, columns, rng=2, padding=padding)
    policy = policies.create(case.get("policy", "grasp"), **case.get("drawn", {}))
    # AdamW would hide wrong scales. Rates much above this one let losses rise, and rounding with them.
    optimiser = Optimiser("sgd", case.get("rate", 0.03), layer_decay=1.0, schedule="constant")
    return kind(network, buffer, policy, optimiser, rng=3, device=case.get("device"), **parameters)


def make_network(case: dict[str, Any]) -> tuple[SplitNetwork, Codec | None, torch.Tensor | None]:
    """A network of vectors, texts or image files, with the codec and the padding of its buffer."""
    generator = torch.Generator().manual_seed(1)
    if (kind := case.get("kind")) is None:
        return vector_network(DIM, 16, 12, dropout=case.get("dropout", 0.0), generator=generator), None, None
    numbers, frozen = (WIDE * LONG, nn.Identity()) if kind == "texts" else (3 * PIXELS**2, Pixels())
    plastic = nn.Sequential(nn.Flatten(), nn.Linear(numbers, 12))
    nn.init.normal_(plastic[1].weight, std=0.1, generator=generator)
    nn.init.zeros_(plastic[1].bias)
    network = SplitNetwork(frozen, plastic, CosineHead(12, 0, generator=generator))
    return (network, Half(), PADDING) if kind == "texts" else (veridical(network), Encoded(PIXELS), None)


class Pixels(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float() / 128 - 1


def made_inputs(case: dict[str, Any], vectors: np.ndarray[Any, Any]) -> Any:
    """Vectors [n, DIM]; or latents of texts of 0 to 8 tokens, or files of images, that follow from them."""
    if (kind := case.get("kind")) is None:
        return torch.from_numpy(vectors).float()
    if kind == "texts":
        tokens = torch.from_numpy(np.abs(vectors[:, :1] * 997).astype(int) % (LONG + 1))
        latents = torch.from_numpy(vectors[:, :WIDE, None] * np.ones(LONG)).float()
        return torch.where(torch.arange(LONG) < tokens[:, :, None], latents, PADDING)
    pixels = np.clip(vectors[:, :, None, None] * 20 + 128 + np.arange(3), 0, 255).astype(np.uint8)
    return [
        png(np.tile(image, (1, 1 + number % 2, 1))) for number, image in enumerate(np.tile(pixels, (1, 1, PIXELS, 1)))
    ]


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def chunks(case: dict[str, Any]) -> list[tuple[Any, np.ndarray[Any, Any]]]:
    """Three chunks of samples, each with new classes, the third with old ones too."""
    rng = np.random.default_rng(4)
    means = 2 * rng.normal(size=(CLASSES, DIM))
    found = []
    for classes, number in (((0, 1, 2), case.get("first", 36)), ((3,), 9), ((4, 5, 0), 15)):
        labels = rng.permutation(np.resize(classes, number))
        found.append((made_inputs(case, means[labels] + rng.normal(size=(number, DIM))), labels))
    return found


def learn(ranks: Ranks | None, case: dict[str, Any]) -> dict[str, Any]:
    """Observe and rehearse three chunks; return what was drawn and stored, and what the learner knows."""
    learner = make_learner(case)
    if ranks is not None:
        learner = distributed(learner, ranks, **case.get("how", {}))
        if case.get("placed"):
            place_by_chunk()
    elif "noise" in case:
        add_noise(learner, case["noise"])
    drawn, stored, weights = [], [], {}
    for number, (inputs, labels) in enumerate(chunks(case)):
        learner.observe(inputs, labels, 1000 * number + np.arange(len(labels)))
        log = learner.rehearse(BUDGET)
        drawn.append(log.ids[log.picks] if len(log.picks) else np.empty((0, 0), np.int64))
        stored.append(np.array(learner.buffer.ids))
        for name, value in learner.network.state_dict().items():
            if value.is_floating_point():
                weights[f"{name} after session {number + 1}"] = value.clone()
    held = 0 if ranks is None or not case.get("how") else len(learner.buffer.held)
    probe = made_inputs(case, np.random.default_rng(5).normal(size=(20, DIM)))
    return {
        "drawn": drawn, "stored": stored, "weights": weights, "logits": learner.logits(probe), "losses": log.losses,
        "sent": dict(ranks.sent) if ranks is not None else {}, "held": held,
    }  # fmt: skip


def add_noise(learner: Learner, seed: int) -> None:
    """Change each gradient by about 1e-7 of itself, which is what rounding in float32 does."""
    rng = np.random.default_rng(seed)

    def change() -> None:
        for _, value in learner.network.plastic_parameters():
            if value.grad is not None:
                value.grad *= torch.as_tensor(1 + 1e-7 * rng.normal(size=value.shape))

    learner.after_backward = change


def place_by_chunk() -> None:
    """Let each insertion go to one rank: shards are uneven, some classes lie on one rank, and rank 3 holds nothing."""
    insertions = itertools.count()

    def give(codes: Shares, number: int) -> Any:
        rank = next(insertions) % min(3, codes.ranks.world)
        codes._levels[rank] += number
        return np.full(number, rank, np.int16)

    Shares._give = give


def learn_all(ranks: Ranks | None, cases: list[dict[str, Any]]) -> dict[str, Any]:
    return {"cases": [learn(ranks, case) for case in cases], "device": str(ranks.device) if ranks else "none"}


def first_session(ranks: Ranks, case: dict[str, Any]) -> dict[str, Any]:
    """What a rank sends in the first session."""
    learner = distributed(make_learner(case), ranks, **case["how"])
    learner.observe(*chunks(case)[0])
    ranks.sent.clear()
    learner.rehearse(BUDGET)
    parameters = sum(value.numel() for _, value in learner.network.plastic_parameters())
    return {"sent": dict(ranks.sent), "classes": len(learner.classes), "parameters": parameters}


def differ(ranks: Ranks, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """What is said where rank 1 makes the learner of a case, and rank 0 the usual one."""
    said = []
    for case in cases:
        learner = make_learner({"learner": "aligned"} | (case if ranks.rank else {}))
        inputs, labels = chunks({})[0]
        if case.get("int8"):
            learner.buffer.codec = codecs.create("int8").fit(inputs * (1 + ranks.rank))
        learner.observe(inputs * (2 if ranks.rank and case.get("doubled") else 1), labels)
        try:
            distributed(learner, ranks)
            said.append("nothing")
        except GraspError as error:
            said.append(str(error))
    return {"said": said}


def fail_alone(ranks: Ranks, how: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 fails by itself in the second update, while rank 0 waits for its gradients; what it sent after that."""
    learner = distributed(make_learner({}), ranks, **how)
    learner.observe(*chunks({})[0])
    session, sent = Rehearsal(learner, BUDGET), Counter[str]()
    session.step()

    def fail(batch: Batch) -> torch.Tensor:
        sent.update(ranks.sent)
        raise MemoryError("no memory is left")

    if ranks.rank == 1:
        learner.loss = fail
    try:
        session.step()
    except MemoryError as error:
        return {"said": str(error), "sent": dict(ranks.sent - sent)}
    return {}


def race_memory(ranks: Ranks) -> dict[str, Any]:
    """Bytes at the peak of GRASP's race, per sample that a rank holds, with its slots and distances."""
    case = {"capacity": None, "drawn": {"draws": "by_sample"}}
    learner, number = distributed(make_learner(case), ranks, "ranks"), 20_000
    labels = np.arange(number) % CLASSES
    learner.buffer.insert(torch.randn(number, DIM, generator=torch.Generator().manual_seed(4)), labels)
    given = learner.buffer, BUDGET, learner.rng, learner.network
    session = learner.open_session(*given, chunk=number, needs=learner.policy.needs)
    race._CHUNK = 256
    held = sum(values.nbytes for values in session._own_distances)
    session.race(1e-7)  # loads what it needs
    tracemalloc.start()
    session.race(1e-7)
    return {"bytes": (held + tracemalloc.get_traced_memory()[1]) / len(session._own_distances[0])}


def observe_apart(ranks: Ranks) -> dict[str, Any]:
    """Each rank observes samples of its own, as a user may do who is used to data-parallel training."""
    learner = distributed(make_learner({}), ranks)
    inputs, labels = chunks({})[0]
    learner.observe(inputs[ranks.rank :: 2], labels[ranks.rank :: 2])
    learner.rehearse(BUDGET)
    return {}


def compare(results: list[dict[str, Any]], cases: list[dict[str, Any]]) -> dict[str, Any]:
    """In what the ranks' results of `learn_all` differ from one process, and from each other."""
    wrong = {}
    for number, case in enumerate(cases):
        found = [result["cases"][number] for result in results]
        wrong[f"{case}"] = [differences(learn(None, case), one) for one in found]
        wrong[f"{case}, ranks"] = [differences(found[0], one, tolerance=0) for one in found[1:]]
    return {case: found for case, found in wrong.items() if any(found)}


def differences(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-5) -> list[str]:
    """In what two results of `learn` differ: in the samples drawn or stored, or in numbers by more than `tolerance`."""
    found = []
    for what in ("drawn", "stored"):
        for session, (a, b) in enumerate(zip(one[what], other[what], strict=True), start=1):
            if not np.array_equal(a, b):
                found.append(f"{what} in session {session}")
    others = numbers(other)
    for name, a in numbers(one).items():
        b = others[name]
        if a.shape != b.shape or not np.allclose(a, b, rtol=tolerance, atol=tolerance):
            found.append(f"{name} by {np.abs(a - b).max() if a.shape == b.shape else (a.shape, b.shape)}")
    return found


def numbers(result: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """The weights after each session, and the logits and losses of the last, of a result of `learn`."""
    found = {**result["weights"], "logits": result["logits"], "losses": result["losses"]}
    return {name: torch.as_tensor(value).numpy(force=True) for name, value in found.items()}


def distance(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference between the weights, logits and losses of two results of `learn`."""
    others = numbers(other)
    return max(float(np.abs(a - others[name]).max()) for name, a in numbers(one).items())


# -- the driver -------------------------------------------------------------------------------------------------------


class Worlds:
    """Starts worlds of ranks, each a process; files lie in the folder `home`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        command = [sys.executable, __file__]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=home, env=one_thread
        )

    def close(self) -> None:
        self._process.communicate()

    def run(self, world: int, job: str, **given: Any) -> list[dict[str, Any]]:
        """Let `world` ranks do a job of this module; return their results."""
        failed, results = self.attempt(world, job, **given)
        assert not failed, failed
        return results

    def attempt(self, world: int, job: str, **given: Any) -> tuple[list[str], list[dict[str, Any]]]:
        """As `run`, for a job that may fail; return what the failing ranks said, and the results."""
        assert self._process.stdin is not None and self._process.stdout is not None
        place = self.home / "world"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        print(json.dumps({"world": world, "job": job, "given": given}), file=self._process.stdin, flush=True)
        assert self._process.stdout.readline().strip() == "done"
        failed = [file.read_text() for file in sorted(place.glob("*.error"))]
        return failed, [load_state(file) for file in sorted(place.glob("*.safetensors"))]


def _rank(rank: int, port: int, order: dict[str, Any]) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(order["world"]),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    file = Path("world") / f"{rank}"
    try:
        with joined(order["given"].pop("timeout", 60.0), order["given"].pop("device", "cpu")) as ranks:
            result = globals()[order["job"]](ranks, **order["given"])
        save_state(file.with_suffix(".safetensors"), result)
    except BaseException:
        file.with_suffix(".error").write_text(traceback.format_exc())
        os._exit(1)
    os._exit(0)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _drive() -> None:
    importlib.import_module("torch._dynamo")  # the first update would load it, which takes seconds
    Buffer(2).insert_codes(np.eye(3, dtype=np.float32), [0, 0, 1])  # compiled kernels
    for name in policies.names():
        policies.create(name).warm_up()
    for line in sys.stdin:
        order, port, children = json.loads(line), free_port(), []
        for rank in range(order["world"]):
            if (pid := os.fork()) == 0:
                _rank(rank, port, order)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _drive()
