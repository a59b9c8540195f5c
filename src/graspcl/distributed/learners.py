"""A learner on several ranks: `distributed` turns one into it, or says why it cannot."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from graspcl.buffer import Buffer
from graspcl.buffer.state import PackedCodes
from graspcl.cache import digest_of
from graspcl.distributed.ranks import Ranks, text_digest
from graspcl.distributed.session import ShardedSession, SharedSession
from graspcl.distributed.shards import ShardedBuffer
from graspcl.distributed.sharing import RankPeers, SharedForward, average_gradients
from graspcl.errors import GraspError
from graspcl.learner import Learner
from graspcl.model.layers import FrozenBatchNorm2d
from graspcl.policy import Policy
from graspcl.random import rng_state

L = TypeVar("L", bound=Learner)

_CHUNK = 1024  # samples whose codes are read at a time


def distributed(learner: L, ranks: Ranks | None = None, shards: Literal["ranks"] | None = None) -> L:
    """Let the ranks of a process group learn together; returns the learner itself.

    Every rank makes the same learner from the same seeds, and calls the same methods with the same arguments. Each
    computes its share of every forward and backward pass. The samples drawn are those of one process with the same
    seed, and the weights equal its weights up to rounding.

    Args:
        learner: any learner, before or after it has observed samples.
        ranks: by default those of the process group that was joined.
        shards: with "ranks", each rank holds a part of the buffer's codes, and the capacity is that of all together. By
            default every rank holds all of them.

    Raises:
        GraspError: the ranks have different learners, the buffer cannot be divided, the network computes rows of a
            batch together, as BatchNorm does in train mode, or the policy's draws depend on rounding.

    ```python
    with joined() as ranks:  # started by: torchrun --nproc-per-node 4 program.py
        learner = distributed(Aligned(network, Buffer("1GB"), "grasp"), ranks)
        learner.observe(inputs, labels)
        learner.rehearse(Budget(updates=100, batch_size=64))
    ```
    """
    ranks = ranks or Ranks()
    if learner.rehearses:
        refuse_policy(learner.policy, ranks.world)
    refuse(learner)
    ranks.agree(_digests(learner), "make the learner with the same settings and seeds on every rank")
    if shards is not None:
        learner.buffer = ShardedBuffer.of(learner.buffer, ranks)
    SharedForward(ranks, learner.network)
    learner.peers = RankPeers(ranks, learner)
    learner.after_backward = partial(average_gradients, learner, ranks)
    learner.open_session = partial(SharedSession if shards is None else ShardedSession, ranks)
    return learner


def _digests(learner: Learner) -> dict[str, str]:
    """Return digests of what must be the same on every rank, by name."""
    network = {name: value for name, value in learner.network.state_dict().items() if hasattr(value, "numpy")}
    buffer, codec = learner.buffer, learner.buffer.codec
    tables = {} if codec is None else codec.state_dict()
    return {
        "their networks": digest_of(network),
        "what they store": digest_of({"births": buffer.births, "labels": buffer.labels, "ids": buffer.ids}),
        "the codes they store": _codes_digest(buffer),
        "their random generators": text_digest([rng_state(learner.rng), rng_state(buffer._rng)]),
        "their settings": text_digest(
            [type(learner).__name__, repr(learner.policy), repr(learner.optimiser), repr(buffer.maintenance)]
        ),
        "their learners' parameters": text_digest(_plain(learner)),
        "their capacities": text_digest([buffer.given, buffer.capacity]),
        "their codecs": text_digest([type(codec).__name__, _plain(codec), digest_of(tables)]),
    }


def _plain(part: Any) -> dict[str, Any]:
    """Return the public attributes of an object that are plain values: its parameters."""
    found = getattr(part, "__dict__", {})
    plain = bool | int | float | str | None
    return {name: value for name, value in found.items() if name[0] != "_" and isinstance(value, plain)}


def _codes_digest(buffer: Buffer) -> str:
    """Return 16 hexadecimal digits of all codes. A part of them is read at a time."""
    sums = []
    for begin in range(0, len(buffer), _CHUNK):
        codes = PackedCodes(buffer)[np.arange(begin, min(begin + _CHUNK, len(buffer)))]
        arrays = codes.values() if isinstance(codes, dict) else [codes]
        sums += [zlib.crc32(np.asarray(values).tobytes()) for values in arrays]
    return text_digest(sums)


def refuse_policy(policy: Policy, world: int) -> None:
    """Raise an error if `world` ranks could draw other samples by the policy than one process does."""
    if world > 1 and (setting := policy.exact_with):
        name, _, value = setting.partition("=")
        raise GraspError(
            f"policy {policy.display_name!r} with {name}={getattr(policy, name)} may draw other samples on several "
            f"ranks than in one process, because rounding decides; set {setting} (--policy.{name} {value})"
        )


def refuse(learner: Learner) -> None:
    """Raise an error if ranks could not train the learner's network exactly, before anything is trained."""
    network = learner.network.train()
    try:
        for name, part in network.named_modules():
            if reason := _mixes_rows(part):
                kind = type(part).__name__
                raise GraspError(f"{kind} {name!r} cannot be trained on several ranks: {reason}")
    finally:
        network.eval()


def _mixes_rows(part: nn.Module) -> str | None:
    """Return why the outputs of a module in train mode depend on more than each row by itself; None if they do not."""
    if isinstance(part, _BatchNorm) and not isinstance(part, FrozenBatchNorm2d):
        if part.training or not part.track_running_stats:
            return "its statistics would be those of a rank's rows; freeze it, or use GroupNorm"
    elif isinstance(part, _DropoutNd) and part.p:
        return "it draws from torch's global generator; use graspcl.model.SeededDropout"
    return None
