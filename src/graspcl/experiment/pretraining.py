"""The network before the stream: built, loaded from weights, or trained on the base classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.cache import cache_folder, digest_of, lock
from graspcl.checks import Array
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork, make_network
from graspcl.pretrain import SupervisedSettings, SwavSettings, load_weights, make_trainer, read_header, save_weights
from graspcl.progress import Progress
from graspcl.random import generator, torch_generator
from graspcl.settings.config import Config, as_plain, digest
from graspcl.settings.rules import network_options
from graspcl.state import drop_unfinished, load_state, save_state

_CHECKPOINT = "training.safetensors"
_STATES = ("_extra_state", "num_batches_tracked")  # generators and counters, which are not part of a weights file
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
    """Bring a new `network` to the start of the stream.

    Trained networks are stored in the cache. With the same settings, data and seed, training happens once; stopped
    training resumes.

    Args:
        config: settings of the run.
        network: as `build_network` returns it; it is changed.
        samples: the data.
        base: base samples [n].
        known: base classes [k], in the order of the head's rows.
        progress: shows the work.
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
    key = _training_key(config, samples, base, network)
    folder = cache_folder() / "base" / key
    with lock(folder / "lock"):
        file = folder / "network.safetensors"
        log = _load_trained(network, file, progress)
        if log is None:
            drop_unfinished(folder)
            # The file holds weights only. Restoring these states makes a run the same whether the file existed or not.
            states = {name: value.clone() for name, value in network.state_dict().items() if name.endswith(_STATES)}
            log = _train(config, network, samples, base, known, folder, progress)
            _save(network, file, log, progress)
            network.load_state_dict(states, strict=False)
    return Pretrained(network, rows, True, {"key": key, **log})


def header(weights: str) -> dict[str, Any]:
    """Return what `graspcl pretrain` wrote beside the tensors; nothing for other files."""
    try:
        return dict(read_header(weights))
    except GraspError:
        return {}


def _training_key(config: Config, samples: Samples[Any], base: Array, network: SplitNetwork) -> str:
    """Identify everything that training depends on; initial weights by their contents."""
    settings = as_plain(config.base)
    for other in ("passes", "optimiser", "weights"):
        settings.pop(other, None)
    body = {name: value for name, value in network.state_dict().items() if not name.endswith("_extra_state")}
    depends = [_VERSION, samples.fingerprint(), digest_of({"base": base}), settings, config.seed, digest_of(body)]
    execution = config.execution.make()
    return digest([*depends, str(config.network), execution.precision, execution.device.partition(":")[0]])[:16]


def _load_trained(network: SplitNetwork, file: Path, progress: Progress) -> dict[str, Any] | None:
    """Load a trained network from the cache; return the log of its training, or None if there is none."""
    if not file.exists():
        return None
    try:
        log = dict(read_header(file)["settings"])
        load_weights(network, file)
    except GraspError as error:
        progress.note(f"{error}; pretraining is repeated")
        return None
    progress.note(f"pretraining was done before ({file})")
    return log


def _train(
    config: Config, network: SplitNetwork, samples: Samples[Any], base: Array, known: Array, folder: Path,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    method, settings = config.base.method, SwavSettings if config.base.method == "swav" else SupervisedSettings
    made: Any = settings(epochs=config.base.epochs, batch_size=config.base.batch_size, lr=config.base.lr)
    network.execute(config.execution.make())
    row_of = np.full(len(samples.classes), -1)
    row_of[known] = np.arange(len(known))
    rows, rng = row_of[samples.labels[base]], generator(config.seed, "base")
    trainer = make_trainer(network, method, samples.read, base, rows, made, rng)  # type: ignore[arg-type]
    checkpoint = folder / _CHECKPOINT
    if checkpoint.exists():
        try:
            trainer.load_state_dict(load_state(checkpoint))
            progress.note(f"pretraining resumes after epoch {len(trainer.log)} of {made.epochs}")
        except GraspError as error:
            progress.note(f"{error}; pretraining starts again")
    left = (made.epochs - len(trainer.log)) * len(base)
    with progress.task(f"pretraining ({method}, {made.epochs} epochs)", left) as advance:
        trainer.run(lambda training: store(checkpoint, training.state_dict(), progress), advance)
    return {"method": method, "epochs": [vars(epoch) for epoch in trainer.log]}


def store(file: Path, state: dict[str, Any], progress: Progress) -> None:
    """Store a state in the cache, if possible."""
    try:
        save_state(file, state)
    except GraspError as error:
        progress.note(f"{error}; if the run is stopped, this work is repeated")


def _save(network: SplitNetwork, file: Path, log: dict[str, Any], progress: Progress) -> None:
    try:
        save_weights(network, file, settings=log)
        (file.parent / _CHECKPOINT).unlink(missing_ok=True)  # only now: until then training resumes from it
    except (GraspError, OSError) as error:
        progress.note(f"the trained network could not be stored ({error}); the run continues")
