"""What a learner knows and stores, as objects of a workspace.

Codes are in segments, which are never changed: each `learn` adds one with the samples that it brought. A segment is two
arrays, the ids of its samples and their codes. All else is written with every version: weights, sums, and which samples
are stored, by id. The network as it came is not written. It is made again from the settings, and must be the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graspcl.buffer.state import saved_state
from graspcl.cache import digest_of
from graspcl.checks import Array
from graspcl.codec import Codec
from graspcl.errors import GraspError
from graspcl.experiment.prediction import broken_weights
from graspcl.experiment.prepare import make_learner
from graspcl.experiment.pretraining import build_network
from graspcl.learner import Learner
from graspcl.model import SplitNetwork
from graspcl.objects import read_rows, reusable
from graspcl.settings.config import Config
from graspcl.workspace.known import Known
from graspcl.workspace.store import Store

Manifest = dict[str, Any]

_FROZEN = "frozen."  # the names of weights that never change start so
_DEAD = 0.3  # share of a segment that is no longer stored, above which its other samples are written again


@dataclass
class HeldOut:
    """Samples that are never trained, in order of arrival: ids [n], labels [n] and codes [n, …]."""

    ids: Array
    labels: Array
    codes: Array
    # Features of the first of them, of the network as it is now; who trains it empties this.
    features: Tensor = field(default_factory=lambda: torch.empty(0, 0))

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def none(cls) -> HeldOut:
        """Return no samples."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float16))

    def with_samples(self, ids: Array, labels: Array, codes: Array) -> HeldOut:
        """Return these samples and more."""
        known = self.codes if len(self) else codes[:0]
        pairs = ((self.ids, ids), (self.labels, labels), (known, codes))
        first, second, third = (np.concatenate(pair) for pair in pairs)
        return HeldOut(first, second, third, self.features)

    def part(self, which: Array) -> HeldOut:
        """Return some of the samples, by mask or position."""
        return HeldOut(self.ids[which], self.labels[which], self.codes[which])


# -- the network -------------------------------------------------------------------------------------------------------


def new_network(config: Config, expected: str | None = None) -> tuple[SplitNetwork, str]:
    """Return the network as it came and the digest of its weights; refuse another one than `expected`."""
    network = build_network(config)
    found = digest_of(network.state_dict())
    if expected is not None and found != expected:
        name, wrong = config.network.name, "its weights are not those that the workspace was made with"
        raise GraspError(f"the network {name} has changed: {wrong}; install the version of then")
    return network, found


def load_network(store: Store, manifest: Manifest, config: Config) -> SplitNetwork:
    """Return the network as the version knows it, ready to predict; samples are not read."""
    network, _ = new_network(config, manifest["backbone"])
    weights = store.get(manifest["network"])
    network.head = make_head(network, len(weights["head.weight"]))
    _load_weights(network, weights)
    if why := broken_weights(network):
        raise GraspError(f"the workspace {store.folder} cannot predict: {why}; use `graspcl undo`")
    return network.execute(config.execution.make()).eval()


def make_head(network: SplitNetwork, classes: int) -> Any:
    """Return a linear head for the network's features, as the learner makes it."""
    from graspcl.model import LinearHead

    made = LinearHead(network.head.features, classes, generator=torch.Generator().manual_seed(0))
    return made.requires_grad_(False)


def _load_weights(network: SplitNetwork, weights: dict[str, Any]) -> None:
    frozen = {name: value for name, value in network.state_dict().items() if name.startswith(_FROZEN)}
    network.load_state_dict({**frozen, **weights})


# -- the learner -------------------------------------------------------------------------------------------------------


def load_learner(store: Store, manifest: Manifest, config: Config, codec: Codec) -> tuple[Learner, HeldOut]:
    """Return the learner as the version left it, and the held-out samples."""
    network, _ = new_network(config, manifest["backbone"])
    codec.load_state_dict(store.get(manifest["codec"]))
    learner = make_learner(config, network, codec, len(manifest["classes"]))
    buffer, held = store.get(manifest["buffer"]), store.get(manifest["held"])
    stored = np.asarray(buffer["columns"]["ids"])
    codes = _codes_of(store, manifest["segments"], np.concatenate([stored, np.asarray(held["ids"])]))
    if codes is not None:
        buffer["columns"]["codes"] = codes[: len(stored)]
    buffer["codec"] = None  # it is loaded already
    fresh = learner.knowledge()
    frozen = {name: value for name, value in fresh["network"].items() if name.startswith(_FROZEN)}
    known = store.get(manifest["sums"])
    known["moments"] = {name: _wide(sums) for name, sums in known["moments"].items()}
    weights = {**frozen, **store.get(manifest["network"])}
    learner.load_state_dict({**fresh, **known, "network": weights, "buffer": buffer}, copy=False)
    apart = HeldOut(np.asarray(held["ids"]), np.asarray(held["labels"]), np.empty(0))
    apart.codes = np.empty((0, 1), np.float16) if codes is None else codes[len(stored) :]
    return learner, apart


def save_learner(
    store: Store, learner: Learner, held: HeldOut, segments: list[dict[str, Any]], forgotten: bool = False
) -> Manifest:
    """Write a learner and the held-out samples; return their part of a manifest.

    Args:
        segments: those of the version before.
        forgotten: whether samples were forgotten, so that no segment may keep any that is not stored.
    """
    if why := broken_weights(learner.network):
        raise GraspError(f"nothing was changed: training ended with {why}; look at the new samples")
    known, buffer = learner.knowledge(copy=False), saved_state(learner.buffer, without="codes", copy=False)
    codes = learner.buffer["codes"] if buffer["columns"] else np.empty((0, 1), np.float16)
    buffer["columns"].pop("lengths", None)  # of texts without padding; segments hold padded ones, as the held-out part
    weights = {name: value for name, value in known.pop("network").items() if not name.startswith(_FROZEN)}
    known.pop("original")  # it is that of the network as it came
    known["moments"] = {name: _narrow(sums) for name, sums in known["moments"].items()}
    return {
        "network": store.put(weights),
        "sums": store.put(known),
        "codec": store.put(buffer.pop("codec") or {}),
        "buffer": store.put(buffer),
        "held": store.put({"ids": held.ids, "labels": held.labels}),
        "segments": _saved_segments(store, segments, learner.buffer.ids, codes, held, forgotten),
    }


def _narrow(sums: dict[str, Any]) -> dict[str, Any]:
    """Return moments in single precision: they are half of the bytes of a version."""
    return {**sums, "sums": sums["sums"].float(), "second": sums["second"].float()}


def _wide(sums: dict[str, Any]) -> dict[str, Any]:
    return {**sums, **{name: torch.as_tensor(sums[name]).double() for name in ("sums", "second")}}


def load_known(store: Store, names: list[str]) -> Known:
    """Return the labels of samples whose runs are stored under these names."""
    found = (store.get(name) for name in names)
    return Known((np.asarray(one["ids"]), np.asarray(one["labels"])) for one in found)


def save_known(store: Store, known: Known) -> list[str]:
    """Write the runs of labels that are not stored yet; return the names of all."""
    return [store.put({"ids": ids, "labels": labels}) for ids, labels in known.runs]


# -- segments ----------------------------------------------------------------------------------------------------------


def _saved_segments(
    store: Store, segments: list[dict[str, Any]], ids: Array, codes: Array, held: HeldOut, forgotten: bool
) -> list[dict[str, Any]]:
    """Write stored samples, with ids [n] and codes [n, …], and held-out ones that no segment has yet; return all."""
    number, ids = len(ids), np.concatenate([ids, held.ids])
    owned = {one["object"]: np.asarray(store.get(one["object"])["ids"]) for one in segments}
    names, new = reusable(owned, ids, 0.0 if forgotten else _DEAD)
    kept = [one for one in segments if one["object"] in names]
    if new.any():
        found = codes[new[:number]]
        if len(held):
            found = np.concatenate([found, held.codes[new[number:]]])
        kept.append({"object": store.put({"ids": ids[new], "codes": found}), "samples": int(new.sum())})
    return kept


def _codes_of(store: Store, segments: list[dict[str, Any]], ids: Array) -> Array | None:
    """Return the codes [n, …] of samples with these ids [n]; None if there are no segments."""
    first = np.asarray(store.get(segments[0]["object"])["codes"]) if segments else np.empty(0)
    found = np.empty((len(ids), *first.shape[1:]), first.dtype)
    read = (store.get(one["object"]) for one in segments)
    try:
        read_rows(((np.asarray(one["ids"]), np.asarray(one["codes"])) for one in read), ids, found)
    except GraspError as error:
        raise GraspError(f"the workspace is incomplete: {error}; use `graspcl undo`") from error
    return found if segments else None
