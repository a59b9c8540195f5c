"""Codes of all samples: latents through a codec, computed once and stored in the cache."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graspcl.cache import CachedRows, Compute, beat, cache_folder, cached_rows, digest_of, fill_rows, lock
from graspcl.checks import Array
from graspcl.codec import Auto, Codec, codecs, described
from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.experiment.codec_cost import TOLERANCE, CodecTrials, described_cost
from graspcl.experiment.pretraining import Pretrained, header
from graspcl.files import read_regular
from graspcl.integrity import read_object, seal_object
from graspcl.model import SplitNetwork
from graspcl.pretrain import fit_codec, load_codec
from graspcl.progress import Progress, Silent
from graspcl.random import generator
from graspcl.rows import Rows
from graspcl.settings.config import Config, Part, digest
from graspcl.state import load_state, save_state, write_whole

_LATENTS = 2 * 10**9  # bytes; larger latents are not stored beside their codes
_STATES = ("_extra_state", "num_batches_tracked")  # of dropouts: they change with the seed, latents do not
_VERSION = 1  # raise it when an encoder or its preprocessing changes, so that no older cache is used


def encode_samples(
    config: Config, samples: Samples[Any], pretrained: Pretrained, fit_on: Array, progress: Progress
) -> tuple[Codec, CachedRows, dict[str, Any]]:
    """Return the codec, trained on the latents of the samples `fit_on` [n], the codes of all samples, and its cost."""
    network = pretrained.network.execute(config.execution.make()).eval()
    key = _latents_key(network, samples)
    latents = None if pretrained.trained else _latents(samples, network, key, progress)
    # A codec in a weights file belongs to the network in that file, not to one that was trained further.
    codec = None if pretrained.trained else _codec_of_weights(config)
    cost: dict[str, Any] = {}
    if codec is None:
        codec, cost = fitted_codec(config, samples, network, latents, fit_on, progress)
    else:
        cost = _trials(config, samples, network, latents, fit_on).report(config.codec, codec)
        progress.note(described_cost(cost))
    codes_key = _codes_key(config, codec, key, latents is None)

    def recode(indices: Array) -> tuple[Array, Array, list[str]]:
        assert latents is not None
        kept = np.flatnonzero(latents.readable[indices])
        values = torch.from_numpy(latents.values[indices[kept]]).float()
        return codec.encode(values).numpy(), kept, [""] * (len(indices) - len(kept))

    compute = _coder(samples, network, codec) if latents is None else recode
    codes = cached_rows(codes_key, len(samples), compute, progress, f"encoding {samples.name}")
    return codec, codes if latents is None else CachedRows(codes.values, codes.readable, latents.problems), cost


def help_encoding(config: Config, samples: Samples[Any], pretrained: Pretrained, fit_on: Array) -> None:
    """Do a part of the work of a process that calls `encode_samples` and `test_latents`, without keeping the rows."""
    network = pretrained.network.execute(config.execution.make()).eval()
    key, progress = _latents_key(network, samples), Silent()
    if not pretrained.trained and _fit_into_cache(network, samples):  # codes are made from latents within seconds
        fill_rows(f"latents/{key}", len(samples), _extractor(samples, network), progress, "latents")
        return
    codec = None if pretrained.trained else _codec_of_weights(config)
    if codec is None:
        codec, _ = fitted_codec(config, samples, network, None, fit_on, progress)
    fill_rows(_codes_key(config, codec, key, True), len(samples), _coder(samples, network, codec), progress, "codes")
    if not config.measure.coded:
        test_latents(config, samples, pretrained, progress)


def _codes_key(config: Config, codec: Codec, latents_key: str, direct: bool) -> str:
    """Return the folder of codes in the cache; `direct`: they are computed without stored latents."""
    return f"codes/{digest([latents_key, str(config.codec), digest_of(codec.state_dict()), direct])[:16]}"


def _coder(samples: Samples[Any], network: SplitNetwork, codec: Codec) -> Compute:
    def compute(indices: Array) -> tuple[Array, Array, list[str]]:
        images, kept, problems = samples.read_some(indices)
        latent = _encode(network, images)
        return codec.encode(latent).numpy() if len(kept) else latent.numpy(), kept, problems

    return compute


def _extractor(samples: Samples[Any], network: SplitNetwork, rows: Array | None = None) -> Compute:
    """Return a function that computes the latents of samples, or of some `rows` of them, in half precision."""

    def compute(indices: Array) -> tuple[Array, Array, list[str]]:
        inputs, kept, problems = samples.read_some(indices if rows is None else rows[indices])
        return _encode(network, inputs).half().numpy(), kept, problems

    return compute


def test_latents(config: Config, samples: Samples[Any], pretrained: Pretrained, progress: Progress) -> Rows | None:
    """Return the uncoded latents of `samples.test` in half precision; None where they would take too much room."""
    network = pretrained.network.execute(config.execution.make()).eval()
    key, test = _latents_key(network, samples), np.array(samples.test)
    if not pretrained.trained and (latents := _latents(samples, network, key, Silent())) is not None:
        return latents.values.at(test)
    if (size := 2 * _encode(network, first_readable(samples))[0].numel() * len(test)) > _LATENTS:
        why = f"their latents would take {size / 1e9:.1f} GB"
        progress.note(f"test samples pass through the codec, because {why} (--measure.coded true)")
        return None

    title, compute = f"extracting latents of test samples: {samples.name}", _extractor(samples, network, test)
    return cached_rows(f"test-latents/{key}", len(test), compute, progress, title).values


def _latents_key(network: SplitNetwork, samples: Samples[Any]) -> str:
    frozen = {name: value for name, value in network.frozen.state_dict().items() if not name.endswith(_STATES)}
    how = f"{network.execution.precision}-{network.execution.device.partition(':')[0]}"  # both change the last digits
    return f"{samples.name}-{samples.fingerprint()}-{digest_of(frozen)}-{how}-v{_VERSION}"


def _latents(samples: Samples[Any], network: SplitNetwork, key: str, progress: Progress) -> CachedRows | None:
    """Return the latents of all samples in half precision, for every seed; None where they would take too much room."""
    if not _fit_into_cache(network, samples):
        return None
    title, compute = f"extracting latents: {samples.name}", _extractor(samples, network)
    return cached_rows(f"latents/{key}", len(samples), compute, progress, title)


def _fit_into_cache(network: SplitNetwork, samples: Samples[Any]) -> bool:
    return 2 * _encode(network, first_readable(samples))[0].numel() * len(samples) <= _LATENTS


def _codec_of_weights(config: Config) -> Codec | None:
    """Return the codec in the weights file, if it is of the configured kind."""
    weights = config.base.weights
    codec = None if weights is None or "codec" not in header(weights) else load_codec(weights)
    if codec is None or codec.name != config.codec.name:
        return None
    for name, value in config.codec.parameters.items():
        if (found := getattr(codec, name, value)) != value and name not in ("iterations", "samples", "seed"):
            raise GraspError(f"--codec.{name} {value}: the codec in {weights} has {found}; use that, or other weights")
    return codec


def fitted_codec(
    config: Config, samples: Samples[Any], network: SplitNetwork, latents: CachedRows | None, fit_on: Array,
    progress: Progress,
) -> tuple[Codec, dict[str, Any]]:  # fmt: skip
    """Train a codec on the readable samples of `fit_on` [n], or read it from the cache; return it and what it costs.

    It is stored because training with another number of threads ends in other last digits, and a resumed run needs
    the codes of the codec it started with.
    """
    codec = codecs.create(config.codec.name, **config.codec.parameters)
    if type(codec).fit is Codec.fit:  # it learns nothing
        return codec, {}
    key = _latents_key(network, samples)
    name = digest([key, str(config.codec), digest_of({"fit_on": fit_on}), config.seed, latents is None])[:16]
    folder, part, tolerance = cache_folder() / "codecs" / name, config.codec, TOLERANCE
    trials = _trials(config, samples, network, latents, fit_on)
    with lock(folder / "lock"):
        if not _restored(codec, folder / "codec.safetensors", progress):
            if isinstance(codec, Auto):
                codec.choose(_choice(codec, trials, progress))
            _fit(codec.chosen if isinstance(codec, Auto) else codec, config, samples, network, latents, fit_on)
            try:
                save_state(folder / "codec.safetensors", codec.state_dict())
            except GraspError as error:
                progress.note(f"{error}; if the run is stopped, this work is repeated")
        if isinstance(codec, Auto):
            part, tolerance = chosen_part(codec), math.inf
        try:
            cost = read_object(read_regular(folder / "cost.json"))
        except (OSError, ValueError):
            cost = trials.report(part, tolerance=tolerance)
            content = seal_object(cost)
            with contextlib.suppress(OSError):
                write_whole(folder / "cost.json", lambda file: file.write(content))
    progress.note(described_cost(cost))
    return codec, cost


def _restored(codec: Codec, file: Path, progress: Progress) -> bool:
    """Whether `codec` has been restored from a file of the cache."""
    if not file.exists():
        return False
    try:
        codec.load_state_dict(load_state(file))
        return True
    except GraspError as error:
        progress.note(f"{error}; training the codec again")
        return False


def _choice(codec: Auto, trials: CodecTrials, progress: Progress) -> Codec:
    """Return the codec that `auto` chooses, untrained, and say why."""
    part, cost = trials.smallest(codec.tolerance)
    why = f"the smallest that costs at most {codec.tolerance:g} points of accuracy"
    if cost is None:
        why = "there are too few base samples to measure what others cost"
    elif cost.points > codec.tolerance:
        why = f"all smaller ones cost more than {codec.tolerance:g} points of accuracy"
    progress.note(f"codec auto: {part} is chosen, {why}")
    return codecs.create(part.name, **part.parameters)


def chosen_part(codec: Auto) -> Part:
    """Return the chosen codec with the parameters that differ from its defaults."""
    found, usual = described(codec.chosen), described(codecs.create(codec.chosen.name))
    return Part(found["name"], {name: value for name, value in found.items() if usual[name] != value})


def _trials(
    config: Config, samples: Samples[Any], network: SplitNetwork, latents: CachedRows | None, fit_on: Array
) -> CodecTrials:
    def read(rows: Array) -> tuple[torch.Tensor, Array]:
        if latents is not None:
            kept = np.flatnonzero(latents.readable[rows])
            return torch.from_numpy(latents.values[rows[kept]]), kept
        inputs, kept, _ = samples.read_some(rows)
        return _encode(network, inputs), kept

    def fit(codec: Codec, rows: Array) -> Codec:
        return _fit(codec, config, samples, network, latents, rows)

    rng, stored = generator(config.seed, "codec cost"), len(samples.train)
    return CodecTrials(network, fit_on, samples.labels[fit_on], read, fit, stored, rng, network.padding)


def _fit(
    codec: Codec, config: Config, samples: Samples[Any], network: SplitNetwork, latents: CachedRows | None, rows: Array
) -> Codec:
    """Train a codec on the latents of the readable samples among `rows` [n]."""
    beat()
    if latents is None:
        rng = generator(config.seed, "codec")
        return fit_codec(network, codec, lambda some: _with_padding(network, samples.read_some(some)[0]), rows, rng=rng)
    found = torch.from_numpy(latents.values[rows[latents.readable[rows]]])
    return codec.fit(_with_padding(network, found, latent=True).float())


def _with_padding(network: SplitNetwork, values: torch.Tensor, latent: bool = False) -> torch.Tensor:
    """Return inputs [n, …], or latents, with one padding vector for four of them, if the network pads.

    The first texts may all have the full length, and a codec only reproduces what it was trained on. With this much
    padding every codebook contains it: training starts with centroids at random vectors.
    """
    padding = getattr(network.frozen, "padding_input", None)
    if padding is None:
        return values
    more = (_encode(network, padding) if latent else padding).to(values)
    return torch.cat([values, more.expand(-(-len(values) // 4), *more.shape[1:])])


def read_all(samples: Samples[Any], what: str, title: str, progress: Progress, rows: Array | None = None) -> CachedRows:
    """Read all samples once, or some `rows`: their `tokens`, or just which of them are `readable`."""

    def compute(indices: Array) -> tuple[Array, Array, list[str]]:
        found, kept, problems = samples.read_some(indices if rows is None else rows[indices])
        return found.numpy() if what == "tokens" else np.zeros((len(kept), 0), np.uint8), kept, problems

    key = f"{what}/{samples.name}-{samples.fingerprint()}" + ("" if rows is None else f"-{digest_of({'rows': rows})}")
    return cached_rows(key, len(samples if rows is None else rows), compute, progress, f"{title} {samples.name}")


def image_files(samples: Samples[Any]) -> Rows:
    """Return the image files of all samples as the codec 'encoded' stores them [N], which are read when indexed."""

    def read(rows: Array) -> Array:
        files, _, problems = samples.encoded_some(rows)
        if problems:  # since it was found to be readable
            raise GraspError(problems[0])
        return files

    return Rows(read, (len(samples),), object)


def first_readable(samples: Samples[Any]) -> Any:
    """Return the first sample that can be read, as a batch of one."""
    problems: list[str] = []
    for index in range(len(samples)):
        found, kept, wrong = samples.read_some([index])
        if len(kept):
            return found
        problems += wrong
    raise GraspError(f"none of the {len(samples)} samples of {samples.name} can be read: {problems[0]}")


def _encode(network: SplitNetwork, inputs: torch.Tensor, chunk: int = 64) -> torch.Tensor:
    device = next(network.parameters()).device
    if not len(inputs):
        return torch.empty(0)
    latents = []
    for part in torch.split(inputs, chunk):
        latents.append(network.encode(part.to(device)).cpu())
        beat()
    return torch.cat(latents)
