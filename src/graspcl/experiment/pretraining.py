"""The network before the stream: built, then brought through the stages of `base.stages`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from graspcl.cache import cache_folder, digest_of, lock
from graspcl.checks import Array
from graspcl.data import Samples, Subset
from graspcl.data.samples import few
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork, make_network, networks
from graspcl.pretrain import Settings, WeightsStage, load_weights, pretrain_once, read_header
from graspcl.progress import Progress
from graspcl.random import generator, torch_generator
from graspcl.settings.config import Config, digest
from graspcl.settings.rules import base_stages, network_options
from graspcl.stream import imagenet_order

VERSION = 2  # raise it when training changes, so that older networks in the cache are not used


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
    """Bring the `network` of `build_network` to the start of the stream, stage by stage.

    It learns the `base` samples [n] of the classes `known` [k], in the order of the head's rows. The cache stores the
    network after each stage that trains, so with the same settings, data and seed, training happens once. Stopped
    training resumes.
    """
    rows, logs, trained, stages = known[:0], list[dict[str, Any]](), 0, base_stages(config)
    if seen := _seen(config, samples, known):  # first: it may refuse the weights
        progress.note(seen)
    for stage in stages:
        if isinstance(stage, WeightsStage):
            rows, log = _load(network, stage, samples, known, alone=len(stages) == 1)
            progress.note(f"{stage.file}: {log['loaded']}")
        else:
            if stage.labelled:
                rows = known
                network.head.grow(len(rows))
            log = _train(config, stage, trained, network, samples, base, known, progress)
            trained += 1
        logs.append(log)
    return Pretrained(network, rows, bool(trained), {"stages": logs, **({"seen": seen} if seen else {})})


def _load(
    network: SplitNetwork, stage: WeightsStage, samples: Samples[Any], known: Array, alone: bool
) -> tuple[Array, dict[str, Any]]:
    """Load weights; their head as well if no stage follows and it is of the base classes. Return the classes it has."""
    names, file = [samples.classes[label] for label in known], str(stage.file)
    fits = alone and bool(names) and header(file).get("settings", {}).get("classes") == names
    if fits:
        network.head.grow(len(known))
    report = load_weights(network, file, part="network" if fits else "body")
    return known if fits else known[:0], {"method": "weights", "loaded": str(report)}


def _train(
    config: Config, stage: Settings, number: int, network: SplitNetwork, samples: Samples[Any], base: Array,
    known: Array, progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Train the network through a stage, or read the result from the cache. `number` counts stages that train."""
    method, execution = stage.name, config.execution.make()
    body = {name: value for name, value in network.state_dict().items() if not name.endswith("_extra_state")}
    row_of = np.full(len(samples.classes), -1)
    row_of[known] = np.arange(len(known))
    labels = row_of[samples.labels[base]]
    if isinstance(samples, Subset):  # other classes change nothing: presets with the same base share its training
        base = samples.rows(base)
        samples = samples.samples
    # Everything that training depends on; earlier stages by the weights that they ended in.
    learned = digest_of({"base": base, "labels": labels})
    depends = [VERSION, samples.fingerprint(), learned, method, asdict(stage), config.seed, number]
    how = [config.network.name, network_options(config), execution.precision, execution.device.partition(":")[0]]
    key = digest([*depends, digest_of(body), *how])[:16]
    folder = cache_folder() / "base" / key
    network.execute(execution)
    rng = generator(config.seed, f"base {number}" if number else "base")
    with lock(folder / "lock"):
        log = pretrain_once(network, folder, method, samples.read, base, labels, stage, rng, progress)
    return {"key": key, **log}


def taught_classes(config: Config) -> set[str]:
    """Return the classes on which the weights that a run starts from were trained, as far as that is known."""
    if (file := config.base.weights) is not None:
        about = header(file).get("settings", {})
        return {*about.get("trained_on", about.get("classes", []))}
    name = config.network.name
    published = {**networks.parameters(name), **config.network.parameters}.get("pretrained") is True
    return {*imagenet_order()} if published and networks.declared(name, "trained_on") == "imagenet" else set()


def _seen(config: Config, samples: Samples[Any], known: Array) -> str:
    """Return a sentence about weights that were trained on classes of the stream; refuse a file with such weights."""
    later = {samples.classes[label] for label in np.setdiff1d(np.arange(len(samples.classes)), known)}
    if not (both := sorted(later & taught_classes(config))):
        return ""
    file = config.base.weights
    source = f"the published weights of {config.network.name}" if file is None else f"the weights in {file}"
    found = f"{source} were trained on {len(both)} classes of the stream"
    if file is not None and base_stages(config)[0].seen == "refuse":
        hint = "train on the first classes of this stream's order, or accept it with weights(file=FILE, seen=report)"
        raise GraspError(f"{found}: {few(both)}; {hint}")
    return found


def header(weights: str) -> dict[str, Any]:
    """Return what `graspcl pretrain` wrote beside the tensors; nothing for other files."""
    try:
        return dict(read_header(weights))
    except GraspError:
        return {}
