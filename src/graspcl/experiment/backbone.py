"""What a run knows before its stream begins: the network, trained on the base classes or loaded, and its codec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graspcl.cache import Rows, cache_folder, cached_rows, digest_of, locked
from graspcl.checks import Array
from graspcl.codec import Codec, codecs
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork, make_network, networks
from graspcl.pretrain import (
    SupervisedSettings,
    SwavSettings,
    fit_codec,
    load_codec,
    load_weights,
    make_trainer,
    read_header,
    save_weights,
)
from graspcl.progress import Progress
from graspcl.random import generator, torch_generator
from graspcl.settings.config import Config, Part, as_plain, digest
from graspcl.state import drop_unfinished, load_state, save_state

_LATENTS = 2 * 10**9  # bytes; more are not kept beside their codes
_TRAINING = "training.safetensors"  # the state of a training under way
_STATES = ("_extra_state", "num_batches_tracked")  # generators and counters, which are not part of a weights file
_VERSION = 1  # raised when an encoder or its preprocessing changes what it gives, so that no old cache is taken


@dataclass(frozen=True)
class Backbone:
    """A network whose head has a row for each of the classes `known` [k], and how it came about."""

    network: SplitNetwork
    known: Array
    trained: bool
    log: dict[str, Any]


def build_network(config: Config, classes: int = 0) -> SplitNetwork:
    """The network of a run, its weights drawn with the run's seed."""
    part = config.network
    sized = "pixels" in networks.parameters(part.name)
    options = {**({"pixels": config.data.pixels} if sized else {}), **part.parameters}
    return make_network(part.name, classes, generator=torch_generator(config.seed, "init"), **options)


def make_backbone(config: Config, samples: Samples[Any], base: Array, order: Array, progress: Progress) -> Backbone:
    """The network where the stream begins. `base` [n] are the base samples, their classes the first of `order`.

    Training is kept in the cache: with the same settings, data and seed it is done once, and goes on where it was.
    """
    method, known = config.base.method, order[: config.stream.base_classes]
    if method in ("none", "weights") or not len(base):
        return _loaded(config, samples, known)
    network = build_network(config, len(known) if method == "supervised" else 0)
    if config.base.weights is not None:
        progress.note(f"{config.base.weights}: {load_weights(network, config.base.weights, part='body')}")
    key = _training_key(config, samples, base, network)
    folder = cache_folder() / "base" / key
    with locked(folder):
        file = folder / "network.safetensors"
        log = _trained_before(network, file, progress)
        if log is None:
            drop_unfinished(folder)
            # The file has weights alone; with them a run begins the same whether it was there or not.
            states = {name: value.clone() for name, value in network.state_dict().items() if name.endswith(_STATES)}
            log = _train(config, network, samples, base, known, folder, progress)
            _save(network, file, log, progress)
            network.load_state_dict(states, strict=False)
    rows = known if method == "supervised" else known[:0]
    return Backbone(network, rows, True, {"key": key, **log})


def header(weights: str) -> dict[str, Any]:
    """What `graspcl base` wrote beside the tensors; nothing for a file from elsewhere."""
    try:
        return dict(read_header(weights))
    except GraspError:
        return {}


def _loaded(config: Config, samples: Samples[Any], known: Array) -> Backbone:
    weights = config.base.weights
    if config.base.method == "weights" and weights is None:
        raise GraspError("--base.method weights needs the file: --base.weights FILE")
    if weights is None:
        return Backbone(build_network(config), known[:0], False, {"method": "none"})
    names = [samples.classes[label] for label in known]
    fits = bool(names) and header(weights).get("settings", {}).get("classes") == names
    network = build_network(config, len(known) if fits else 0)
    report = load_weights(network, weights, part="network" if fits else "body")
    return Backbone(network, known if fits else known[:0], False, {"method": "weights", "loaded": str(report)})


def _trained_before(network: SplitNetwork, file: Path, progress: Progress) -> dict[str, Any] | None:
    """Load the network of a training that is in the cache; returns its log, None where there is none to be had."""
    if not file.exists():
        return None
    try:
        log = dict(read_header(file)["settings"])
        load_weights(network, file)
    except GraspError as error:
        progress.note(f"{error}; base training is done anew")
        return None
    progress.note(f"base training was done before ({file})")
    return log


def _training_key(config: Config, samples: Samples[Any], base: Array, network: SplitNetwork) -> str:
    """Names everything that base training depends on; the first weights by their contents."""
    settings = as_plain(config.base)
    for other in ("passes", "optimiser", "weights"):
        settings.pop(other, None)
    body = {name: value for name, value in network.state_dict().items() if not name.endswith("_extra_state")}
    depends = [_VERSION, samples.fingerprint(), digest_of({"base": base}), settings, config.seed, digest_of(body)]
    execution = config.execution.resolve()
    return digest([*depends, str(config.network), execution.precision, execution.device.partition(":")[0]])[:16]


def _train(
    config: Config, network: SplitNetwork, samples: Samples[Any], base: Array, known: Array, folder: Path,
    progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    settings: Any = SwavSettings if config.base.method == "swav" else SupervisedSettings
    settings = settings(epochs=config.base.epochs, batch_size=config.base.batch_size, lr=config.base.lr)
    network.execute(config.execution.resolve())
    row_of = np.full(len(samples.classes), -1)
    row_of[known] = np.arange(len(known))
    rows, rng = row_of[samples.labels[base]], generator(config.seed, "base")
    trainer = make_trainer(network, config.base.method, samples.read, base, rows, settings, rng)
    checkpoint = folder / _TRAINING
    if checkpoint.exists():
        try:
            trainer.load_state_dict(load_state(checkpoint))
            progress.note(f"base training goes on after epoch {len(trainer.log)} of {settings.epochs}")
        except GraspError as error:
            progress.note(f"{error}; base training begins anew")
    left = (settings.epochs - len(trainer.log)) * len(base)
    with progress.task(f"base training ({config.base.method}, {settings.epochs} epochs)", left) as advance:
        trainer.run(lambda training: _keep(checkpoint, training.state_dict(), progress), advance)
    return {"method": config.base.method, "epochs": [vars(epoch) for epoch in trainer.log]}


def _keep(file: Path, state: dict[str, Any], progress: Progress) -> None:
    try:
        save_state(file, state)
    except GraspError as error:
        progress.note(f"{error}; if the run is stopped, this work is done anew")


def _save(network: SplitNetwork, file: Path, log: dict[str, Any], progress: Progress) -> None:
    try:
        save_weights(network, file, settings=log)
        (file.parent / _TRAINING).unlink(missing_ok=True)  # not before: until then training goes on from there
    except (GraspError, OSError) as error:
        progress.note(f"the trained network could not be kept ({error}); the run goes on")


# -- codes ------------------------------------------------------------------------------------------------------------


def make_codec(part: Part) -> Codec:
    """A codec by its name."""
    return codecs.create(part.name, **part.parameters)


def encode_samples(
    config: Config, samples: Samples[Any], backbone: Backbone, fit_on: Array, progress: Progress
) -> tuple[Codec, Rows]:
    """The codec, trained on the latents of the samples `fit_on` [n], and the codes of all samples by it."""
    network = backbone.network.execute(config.execution.resolve()).eval()
    # The states of dropouts change with the seed, and latents do not.
    frozen = {name: value for name, value in network.frozen.state_dict().items() if not name.endswith(_STATES)}
    how = f"{network.execution.precision}-{network.execution.device.partition(':')[0]}"  # both change the last digits
    key = f"{samples.name}-{samples.fingerprint()}-{digest_of(frozen)}-{how}-v{_VERSION}"
    latents = None if backbone.trained else _latents(config, samples, network, key, progress)
    # A codec from a file is of the network in that file, not of one that was trained on.
    codec = None if backbone.trained else _given_codec(config)
    codec = codec or _fitted_codec(config, samples, network, latents, fit_on, key, progress)
    codes_key = f"codes/{digest([key, str(config.codec), digest_of(codec.state_dict()), latents is None])[:16]}"

    def compute(indices: Array) -> tuple[Array, Array, list[str]]:
        if latents is not None:
            kept = np.flatnonzero(latents.readable[indices])
            values = torch.from_numpy(latents.values[indices[kept]]).float()
            return codec.encode(values).numpy(), kept, [""] * (len(indices) - len(kept))
        images, kept, problems = samples.read_some(indices)
        latent = _encode(network, images)
        return codec.encode(latent).numpy() if len(kept) else latent.numpy(), kept, problems

    codes = cached_rows(codes_key, len(samples), compute, progress, f"encoding {samples.name}")
    return codec, codes if latents is None else Rows(codes.values, codes.readable, latents.problems)


def _given_codec(config: Config) -> Codec | None:
    """The codec that lies in the file of weights, if it is of the kind asked for."""
    if config.base.weights is None or "codec" not in header(config.base.weights):
        return None
    codec = load_codec(config.base.weights)
    if codec is None or codec.name != config.codec.name:
        return None
    for name, value in config.codec.parameters.items():
        if (found := getattr(codec, name, value)) != value and name not in ("iterations", "samples", "seed"):
            raise GraspError(
                f"--codec.{name} {value}: the codec in {config.base.weights} has {found}; take that, or other weights"
            )
    return codec


def _fitted_codec(
    config: Config, samples: Samples[Any], network: SplitNetwork, latents: Rows | None, fit_on: Array, key: str,
    progress: Progress,
) -> Codec:  # fmt: skip
    """A codec trained on what can be read of the samples `fit_on` [n].

    It is kept in the cache: with another number of threads training would end elsewhere in the last digits, and codes
    of a run that goes on must be those of the codec it began with.
    """
    codec = make_codec(config.codec)
    if type(codec).fit is Codec.fit:  # it learns nothing
        return codec
    name = digest([key, str(config.codec), digest_of({"fit_on": fit_on}), config.seed, latents is None])[:16]
    folder = cache_folder() / "codecs" / name
    with locked(folder):
        if (file := folder / "codec.safetensors").exists():
            try:
                codec.load_state_dict(load_state(file))
                return codec
            except GraspError as error:
                progress.note(f"{error}; the codec is trained anew")
        if latents is not None:
            found = torch.from_numpy(latents.values[fit_on[latents.readable[fit_on]]])
            codec.fit(_with_padding(network, found, lambda padding: _encode(network, padding)).float())
        else:
            rng = generator(config.seed, "codec")
            fit_codec(network, codec, lambda rows: _with_padding(network, samples.read_some(rows)[0]), fit_on, rng=rng)
        _keep(file, codec.state_dict(), progress)
    return codec


def _with_padding(
    network: SplitNetwork, values: torch.Tensor, encode: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
) -> torch.Tensor:
    """Inputs [n, …] or, by `encode`, latents, and padding where the network marks it: one for four of them.

    A codec gives back what it was trained on, and all texts that come first may be as long as texts can be. With so
    much padding no codebook is without it: training begins with centroids at random vectors.
    """
    padding = getattr(network.frozen, "padding_input", None)
    if padding is None:
        return values
    more = encode(padding).to(values)
    return torch.cat([values, more.expand(-(-len(values) // 4), *more.shape[1:])])


def _latents(config: Config, samples: Samples[Any], network: SplitNetwork, key: str, progress: Progress) -> Rows | None:
    """Latents of all samples, in half precision, which serve every seed; None where they would take too much room."""
    if 2 * _encode(network, first_readable(samples))[0].numel() * len(samples) > _LATENTS:
        return None

    def compute(indices: Array) -> tuple[Array, Array, list[str]]:
        inputs, kept, problems = samples.read_some(indices)
        return _encode(network, inputs).half().numpy(), kept, problems

    return cached_rows(f"latents/{key}", len(samples), compute, progress, f"extracting latents: {samples.name}")


def first_readable(samples: Samples[Any]) -> Any:
    """The first sample that can be read, as a batch of one."""
    problems: list[str] = []
    for index in range(len(samples)):
        found, kept, wrong = samples.read_some(np.array([index]))
        if len(kept):
            return found
        problems += wrong
    raise GraspError(f"none of the {len(samples)} samples of {samples.name} can be read: {problems[0]}")


def _encode(network: SplitNetwork, inputs: torch.Tensor, chunk: int = 64) -> torch.Tensor:
    device = next(network.parameters()).device
    if not len(inputs):
        return torch.empty(0)
    return torch.cat([network.encode(part.to(device)).cpu() for part in torch.split(inputs, chunk)])
