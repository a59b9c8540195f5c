"""The network before the stream: built, loaded from weights, or trained on the base classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from graspcl.cache import cache_folder, digest_of, lock
from graspcl.checks import Array
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork, make_network
from graspcl.pretrain import load_weights, pretrain_once, read_header, trainers
from graspcl.progress import Progress
from graspcl.random import generator, torch_generator
from graspcl.settings.config import Config, digest
from graspcl.settings.rules import network_options

_VERSION = 1  # raise it when training changes, so that older networks in the cache are not used


@dataclass(frozen=True)
class Pretrained:
    """A network whose head has a row for each of the classes `known` [k], and how it was made."""

    network: SplitNetwork
    known: Array
    trained: bool
    log: dict[str, Any]


def build_network(config: Config) -> SplitNetwork:
    """Build the network of a run, without classes; its weights are drawn with the run's seed."""
    init = torch_generator(config.seed, "init")
    return make_network(config.network.name, generator=init, **network_options(config))


def pretrain_network(
    config: Config, network: SplitNetwork, samples: Samples[Any], base: Array, known: Array, progress: Progress
) -> Pretrained:
    """Bring the `network` of `build_network` to the start of the stream, by training or loading it.

    It learns the `base` samples [n] of the classes `known` [k], in the order of the head's rows. The cache stores
    trained networks, so with the same settings, data and seed, training happens once. Stopped training resumes.
    """
    weights, method = config.base.weights, config.base.method
    if not config.base.trains or not len(base):
        if weights is None:
            return Pretrained(network, known[:0], False, {"method": "none"})
        names = [samples.classes[label] for label in known]
        fits = bool(names) and header(weights).get("settings", {}).get("classes") == names
        if fits:
            network.head.grow(len(known))
        report = load_weights(network, weights, part="network" if fits else "body")
        return Pretrained(network, known if fits else known[:0], False, {"method": "weights", "loaded": str(report)})
    rows = known if method == "supervised" else known[:0]
    if len(rows):
        network.head.grow(len(rows))
    if weights is not None:
        progress.note(f"{weights}: {load_weights(network, weights, part='body')}")
    plan = {name: getattr(config.base, name) for name in ("epochs", "batch_size", "lr")}
    settings, execution = trainers.get(method).settings_class(**plan), config.execution.make()
    body = {name: value for name, value in network.state_dict().items() if not name.endswith("_extra_state")}
    # Everything that training depends on; initial weights by their contents.
    depends = [_VERSION, samples.fingerprint(), digest_of({"base": base}), {"method": method, **plan}, config.seed]
    how = [str(config.network), execution.precision, execution.device.partition(":")[0]]
    key = digest([*depends, digest_of(body), *how])[:16]
    folder = cache_folder() / "base" / key
    row_of = np.full(len(samples.classes), -1)
    row_of[known] = np.arange(len(known))
    network.execute(execution)
    with lock(folder / "lock"):
        labels, rng = row_of[samples.labels[base]], generator(config.seed, "base")
        log = pretrain_once(network, folder, method, samples.read, base, labels, settings, rng, progress)
    return Pretrained(network, rows, True, {"key": key, **log})


def header(weights: str) -> dict[str, Any]:
    """Return what `graspcl pretrain` wrote beside the tensors; nothing for other files."""
    try:
        return dict(read_header(weights))
    except GraspError:
        return {}
