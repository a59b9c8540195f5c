"""Prepare a run: network, data, stream, base training and codes, then the learner that has seen the base samples."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from graspcl import __version__
from graspcl.buffer import Buffer, rules
from graspcl.cache import CachedRows, cache_folder, digest_of, lock
from graspcl.checks import Array
from graspcl.codec import Auto, Codec, Encoded, Identity, codecs
from graspcl.data import Samples, Subset, Validation, data_sources, open_samples
from graspcl.data.samples import few
from graspcl.errors import GraspError
from graspcl.experiment.encoding import (
    encode_samples,
    first_readable,
    fitted_codec,
    help_encoding,
    image_files,
    read_all,
    test_latents,
)
from graspcl.experiment.pretraining import VERSION, Pretrained, build_network, pretrain_network, taught_classes
from graspcl.learner import Learner, Optimiser, column_shapes, learners
from graspcl.model import SplitNetwork, veridical
from graspcl.model.texts import TextInputs
from graspcl.policy import Budget, Policy, policies
from graspcl.policy.uniform import UniformBalanced
from graspcl.pretrain import fit_codec, save_weights, train_accuracy
from graspcl.progress import Progress, Silent
from graspcl.random import generator
from graspcl.registry import parameter_names
from graspcl.rows import Rows
from graspcl.settings.config import Config, Part, as_plain, digest, identity
from graspcl.settings.presets import base_preset
from graspcl.settings.rules import check, keeps_frozen, network_options
from graspcl.state import drop_unfinished, load_state, save_state
from graspcl.stream import Stream, class_order, load_stream, make_stream, streams

_SHOWN = 20  # problems of the data that are shown; problems.json lists all
_CHUNK = 16_384  # base samples that a learner observes at once


@dataclass(frozen=True)
class Prepared:
    """What runs of one seed share, whatever their policy and learner. Runs work on copies."""

    samples: Samples[Any]
    stream: Stream  # it has not started, and has only samples that can be read
    pretrained: Pretrained
    codec: Codec
    codes: Rows  # of all samples [N, …], read when they are indexed
    readable: Array  # [N]
    problems: list[str]
    test_latents: Callable[[], Rows | None]  # of `samples.test`, uncoded; None where there are only codes
    codec_cost: dict[str, Any]  # what the codec costs, if it was fitted

    @cached_property
    def key(self) -> str:
        """Identify samples, network and codec by their contents."""
        parts = (self.pretrained.network.state_dict(), self.codec.state_dict(), {"readable": self.readable})
        return digest([self.samples.fingerprint(), *map(digest_of, parts)])[:16]

    def new_learner(self, config: Config) -> Learner:
        """Make the learner of a run before it has seen anything."""
        network, codec = copy.deepcopy(self.pretrained.network), copy.deepcopy(self.codec)
        learner = make_learner(config, network, codec, len(self.samples.classes))
        learner.set_head_labels(self.pretrained.known)
        return learner


def prepare(config: Config, progress: Progress) -> Prepared:
    """Open the data, train or load the network, and encode all samples."""
    config, samples, stream, pretrained, base, scanned = _before_codes(config, progress)
    codec: Codec
    cost: dict[str, Any] = {}
    if config.rehearsal == "veridical" and scanned is not None:
        codec, rows, codes = Encoded(config.data.pixels, whole=samples.whole), scanned, image_files(samples)
    else:
        if config.rehearsal == "veridical":
            codec, rows = Identity(), read_all(samples, "tokens", "tokenising", progress)
        else:
            codec, rows, cost = encode_samples(config, samples, pretrained, base, progress)
        codes = rows.values
    problems = [*samples.problems, *filter(None, rows.problems)]
    stream = _readable_part(stream, rows.readable, samples.labels)
    latents = config.rehearsal == "latent"
    uncoded = cache(lambda: test_latents(config, samples, pretrained, progress) if latents else None)
    return Prepared(samples, stream, pretrained, codec, codes, rows.readable, problems, uncoded, cost)


def help_preparing(config: Config) -> None:
    """Do a part of the work of a process that calls `prepare` with the same settings for latent rehearsal."""
    config, samples, _, pretrained, base, _ = _before_codes(config, Silent())
    help_encoding(config, samples, pretrained, base)


def _before_codes(
    config: Config, progress: Progress
) -> tuple[Config, Samples[Any], Stream, Pretrained, Array, CachedRows | None]:
    """Open the data, and train or load the network.

    The last results are the samples that the codec learns from, and for stored images which of them can be read.
    """
    network = build_network(config)  # first: wrong parameters are found before data are read
    config = _with_weights(config, progress)
    samples, order = open_data(config)
    _report_problems(samples, config, progress)
    stream = arrange(config, samples, order)
    _probe(network, samples)
    raw_images = config.rehearsal == "veridical" and config.reads == "images"
    scanned, base = None, stream.base
    if raw_images:
        scanned = read_all(samples, "readable", "checking", progress)
        base = base[scanned.readable[base]]
    elif config.base.trains:  # damaged samples of the stream are found when they are encoded
        base = base[read_all(samples, "readable", "checking the base samples of", progress, base).readable]
    pretrained = pretrain_network(config, network, samples, base, order[: config.stream.base_classes], progress)
    # Without base classes the codec learns from the first session.
    fit_on = base if len(base) else stream.sessions[0]
    return config, samples, stream, pretrained, fit_on, scanned


def write_weights(config: Config, file: Path, progress: Progress) -> dict[str, Any]:
    """Train network and codec on the base classes; write both to a weights file, and return what its header says."""
    network = build_network(config)
    config = _with_weights(config, progress)
    samples, order = open_data(config)
    known = order[: config.stream.base_classes or len(order)]
    _probe(network, samples)
    scanned = read_all(samples, "readable", "checking", progress)
    base = samples.train[np.isin(samples.labels[samples.train], known) & scanned.readable[samples.train]]
    if broken := [problem for problem in scanned.problems if problem]:
        progress.note(f"{len(broken):,} samples cannot be read and are left out: {few(broken)}")
    # Find out now, not after hours, whether the codec can be trained on such latents.
    quick = {"iterations": 1} if "iterations" in codecs.parameters(config.codec.name) else {}
    trial = codecs.create(config.codec.name, **{**config.codec.parameters, **quick})
    if not isinstance(trial, Auto):  # it has not chosen yet
        fit_codec(network, trial, samples.read, base, limit=512, rng=generator(config.seed, "trial"))
    pretrained = pretrain_network(config, network, samples, base, known, progress)
    pretrained.network.execute(config.execution.make()).eval()
    codec, cost = fitted_codec(config, samples, pretrained.network, None, base, progress)
    codec = codec.chosen if isinstance(codec, Auto) else codec
    classes = [samples.classes[label] for label in known]
    about = {
        "network": str(config.network), "pixels": config.data.pixels, "seed": config.seed, "codec": str(config.codec),
        "data": samples.name, "fingerprint": samples.fingerprint(), "images": len(base),
        "classes": classes, "trained_on": sorted({*classes, *taught_classes(config)}), **pretrained.log,
        "codec_cost": cost, "graspcl": __version__,
    }  # fmt: skip
    if len(pretrained.known):
        rows = np.argsort(known)[np.searchsorted(known, samples.labels[base], sorter=np.argsort(known))]
        about["train_accuracy"] = train_accuracy(pretrained.network, samples.read, base, rows)
    save_weights(pretrained.network, file, codec, about)
    return about


def _with_weights(config: Config, progress: Progress) -> Config:
    """Return settings that name a file in place of `weights(preset=NAME)`; train what is not in the cache."""
    if (start := base_preset(config)) is None:
        return config
    key = digest([VERSION, identity(as_plain(start)), open_data(start)[0].fingerprint()])[:16]
    file = cache_folder() / "weights" / key / "base.safetensors"
    with lock(file.parent / "lock", progress=progress):
        if not file.exists():
            progress.note(f"{config.name} starts from the base training of {start.name}, on {start.data.path}")
            file.unlink(missing_ok=True)  # a link to nothing would stay, and what it leads to be made
            write_weights(start, file, progress)
    stage, *rest = config.base.stages
    loaded = Part("weights", {"file": str(file), "seen": stage.parameters.get("seen", "refuse")})
    return replace(config, base=replace(config.base, stages=(loaded, *rest), data=None))


class PreparedCache:
    """Remembers the last `Prepared`, for runs in one process that differ in policy, learner or budget only."""

    def __init__(self) -> None:
        self._key, self._last = "", None  # type: tuple[str, Prepared | None]

    def get(self, config: Config, progress: Progress) -> Prepared:
        """Return what `prepare` returns, from memory if possible."""
        plain = as_plain(config)
        shared = ("seed", "data", "stream", "network", "codec", "rehearsal", "execution")
        base, paths = plain["base"], (config.base.weights, config.base.data, config.stream.file, config.data.path)
        files = [_stamp(path) for path in paths]
        key = digest([{name: plain.get(name) for name in shared}, base["stages"], base.get("data"), files])
        if self._last is None or key != self._key:
            self._last = None  # first: two of them may not fit into memory
            self._last, self._key = prepare(config, progress), key
        return self._last


def _stamp(path: str | None) -> list[tuple[str, int, int]]:
    """Describe a file or folder, so that changes down to two levels below it are noticed."""
    if path is None or not (root := Path(path)).exists():  # data may be a name
        return []
    found = []
    for place in (root, *sorted(root.glob("*")), *sorted(root.glob("*/*"))):
        with contextlib.suppress(OSError):  # a broken link, or a file that was just deleted
            found.append((str(place), place.stat().st_size, place.stat().st_mtime_ns))
    return found


# -- data and stream ---------------------------------------------------------------------------------------------------


def open_data(config: Config) -> tuple[Samples[Any], Array]:
    """Return the samples of a run, and its class order [classes]."""
    data = config.data
    samples = _as_inputs(open_samples(data, config.reads), config)
    if data.validation is not None:
        samples = Validation(samples, data.validation)
    order = class_order(config.stream.order, samples.classes, generator(config.seed, "stream"))
    if data.tasks is None and (data.classes, data.per_class, data.test_per_class) != (None, None, None):
        number = data.classes if data.classes is not None else len(order)
        if number > len(order):
            fit = fitted(config, len(order)).stream
            base = f"--stream.base_classes {fit.base_classes} " if fit.base_classes else ""
            fits = f"{base}--stream.sessions {fit.sessions} would fit"
            known = f"{samples.name} has only {len(order)} classes; --data.classes {len(order)}"
            raise GraspError(f"--data.classes {number}: {known} {fits}")
        chosen = order[:number]
        # The same samples for every seed, so that latents are shared.
        samples = Subset(samples, np.sort(chosen), data.per_class, data.test_per_class, rng=generator(0, "subset"))
        order = np.argsort(np.argsort(chosen))  # the chosen classes have new labels, in sorted order
    if config.stream.file is not None and (home := _saved_stream(config, samples).home):
        number, given = [*home.values()].count(0), config.stream.base_classes
        if number != given:
            wrong = f"--stream.file {config.stream.file} has {number} base classes, not {given}"
            raise GraspError(f"{wrong}: set --stream.base_classes {number}")
        order = np.array([*home])
    return samples, order


def _as_inputs(samples: Samples[Any], config: Config) -> Samples[Any]:
    """Return samples that the configured network can read."""
    path = config.data.path
    gives = data_sources.declared(path, "gives") if path in data_sources else None
    texts = config.reads != "images" if gives is None else gives == "texts"
    return EncodedTexts(samples, TextInputs.of(config.network.name, network_options(config))) if texts else samples


class EncodedTexts(Samples[torch.Tensor]):
    """Texts through `TextInputs`, with their labels, splits and tasks; `texts` are the texts themselves."""

    def __init__(self, texts: Samples[list[str]], encoder: TextInputs) -> None:
        self.texts, self.encoder = texts, encoder
        split = (texts.labels, texts.ids, texts.train, texts.test)
        super().__init__(texts.name, texts.version, texts.classes, *split, {**texts.options, **encoder.fingerprint()})
        self.problems, self.own_test = texts.problems, texts.own_test
        self.task_of, self.tasks = getattr(texts, "task_of", None), getattr(texts, "tasks", None)

    def read(self, indices: ArrayLike) -> torch.Tensor:
        """Return the encoded texts at `indices` [n]."""
        encoded = torch.as_tensor(self.encoder.encode(self.texts.read(indices)))
        return encoded.float() if encoded.is_floating_point() else encoded


def fit_to_data(config: Config) -> Config:
    """Return settings with no more classes than the data have; base and sessions keep their proportions."""
    check(config)
    whole = replace(config, data=replace(config.data, classes=None, per_class=None, test_per_class=None))
    samples, order = open_data(whole)
    if len(order) < 2:
        raise GraspError(f"{samples.name} has one class; learning needs at least two")
    return config if config.data.classes is None else fitted(config, len(order))


def fitted(config: Config, classes: int) -> Config:
    """Return settings for at most `classes` classes.

    >>> from graspcl.settings import change
    >>> wanted = change(Config(), {"data.classes": 30, "stream.base_classes": 10, "stream.sessions": 20})
    >>> fitted(wanted, 12).stream.base_classes, fitted(wanted, 12).stream.sessions
    (4, 8)
    """
    wanted = config.data.classes or classes
    if classes >= wanted:
        return config
    base = min(config.stream.base_classes, max(1, classes * config.stream.base_classes // wanted))
    stream = replace(config.stream, base_classes=base, sessions=max(1, min(config.stream.sessions, classes - base)))
    return replace(config, data=replace(config.data, classes=classes), stream=stream)


def _saved_stream(config: Config, samples: Samples[Any]) -> Stream:
    try:
        return load_stream(Path(str(config.stream.file)), fingerprint=samples.fingerprint())
    except GraspError as error:
        if config.data.classes is None or config.stream.order != "random":
            raise
        raise GraspError(f"{error} (--seed decides which classes are used: set the one of the saved stream)") from error


def arrange(config: Config, samples: Samples[Any], order: Array) -> Stream:
    """Make the stream of a run; it is the same for every policy and learner."""
    if config.stream.file is not None:
        return _saved_stream(config, samples)
    rng = generator(config.seed, "stream")
    if config.stream.order == "random":
        rng.permutation(len(order))  # the draw that made the order
    taken = parameter_names(streams.get(config.stream.kind))
    offered = {**vars(config.stream), "order": order, **config.stream.parameters}
    if "task_of" in taken:
        offered["task_of"] = _tasks(config, samples, order)[samples.train]
    given = {name: value for name, value in offered.items() if name in taken}
    return make_stream(config.stream.kind, samples.train, samples.labels[samples.train], rng, **given)


def _tasks(config: Config, samples: Samples[Any], order: Array) -> Array:
    """Return the task of each sample [N]: that of the data, or groups of classes in their order."""
    found, sessions = getattr(samples, "task_of", None), config.stream.sessions
    if found is None:
        task_of_class = np.empty(len(order), np.int64)
        for task, classes in enumerate(np.array_split(order, sessions)):
            task_of_class[classes] = task
        found = task_of_class[samples.labels]
    if (number := int(found.max()) + 1) != sessions:
        raise GraspError(f"the data have {number} tasks, one per session: set --stream.sessions {number}")
    return np.asarray(found)


def _readable_part(stream: Stream, readable: Array, labels: Array) -> Stream:
    """Return a stream without the samples that cannot be read."""
    if readable[stream.samples].all():
        return stream
    base, *sessions = (part[readable[part]] for part in (stream.base, *stream.sessions))
    rest = Stream(base, sessions, stream.chunk, labels, stream.tasks)
    rest.name, rest.home = stream.name, {label: stream.home[label] for label in stream.home if label in rest.home}
    return rest


def _report_problems(samples: Samples[Any], config: Config, progress: Progress) -> None:
    """Show what is wrong with the data, and how much of them is used."""
    for problem in samples.problems[:_SHOWN]:
        progress.note(problem)
    if (more := len(samples.problems) - _SHOWN) > 0:
        progress.note(f"and {more:,} more problems, all listed in problems.json")
    untested = np.setdiff1d(samples.labels, samples.labels[samples.test])
    if len(untested):
        names = few([repr(samples.classes[label]) for label in untested])
        samples.problems = [*samples.problems, f"{samples.name}: classes without test samples, not tested: {names}"]
        progress.note(samples.problems[-1])
    whole, counts = samples.samples if isinstance(samples, Subset) else samples, []
    for part in ("classes", "train", "test"):
        used, all_of = len(getattr(samples, part)), len(getattr(whole, part))
        counts.append(f"{used:,}" if used == all_of else f"{used:,} of {all_of:,}")
    tested = "test" if config.data.validation is None else "validation"
    said = f"{samples.name}: {counts[0]} classes, {counts[1]} training and {counts[2]} {tested}"
    tokens = config.network.parameters.get("max_tokens", 256)
    progress.note(f"{said} texts, cut to {tokens} tokens" if config.reads == "texts" else f"{said} samples")


def _probe(network: SplitNetwork, samples: Samples[Any]) -> None:
    """Pass one sample through the network, to find out before hours are spent whether they fit."""
    try:
        with torch.no_grad():
            network.eval()(network.encode(first_readable(samples)))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        said = str(error).partition("\n")[0]
        raise GraspError(f"the network does not take the samples of {samples.name}: {said}") from error


# -- the learner -------------------------------------------------------------------------------------------------------


def make_learner(config: Config, network: SplitNetwork, codec: Codec, classes: int) -> Learner:
    """Make the learner of a run for up to `classes` classes; it works on `network` itself."""
    if config.rehearsal == "veridical":
        network = veridical(network, unfreeze=not keeps_frozen(config))
    rule = rules.create(config.buffer.maintenance.name, **config.buffer.maintenance.parameters)
    kind, parameters = learners.get(config.learner.name), config.learner.parameters
    columns = {**column_shapes(rule, network, kind, **parameters), **kind.columns(classes, **parameters)}
    padding = None if kind.stores_features else network.padding
    rng = generator(config.seed, "buffer")
    buffer = Buffer(config.buffer.capacity, codec, rule, columns, rng=rng, padding=padding)
    policy, rng = policies.create(config.policy.name, **config.policy.parameters), generator(config.seed, "policy")
    optimiser, execution = Optimiser(**vars(config.optimiser)), config.execution.make()
    learner = kind(network, buffer, policy, optimiser, rng, execution=execution, **parameters)
    learner.coded = config.measure.coded
    if config.buffer.new_samples is not None:
        learner.offline = config.buffer.new_samples == "extra"
    return learner


def base_key(config: Config) -> str:
    """Identify the settings that `learn_base` depends on."""
    usual = Config()
    alike = replace(
        config, name="", log=None, policy=usual.policy, stop=usual.stop, measure=usual.measure,
        checkpoint=usual.checkpoint, budget=replace(usual.budget, batch_size=config.budget.batch_size),
    )  # fmt: skip
    return digest(as_plain(alike))[:16]


def learn_base(config: Config, prepared: Prepared, learner: Learner, folder: Path | None, progress: Progress) -> None:
    """Bring a new learner to the start of the stream: it stores the base samples and rehearses them uniformly.

    Runs of all policies start from the same state. It is stored in `folder`, if given, for the others. A learner that
    does not rehearse has one run per seed and stores nothing there.
    """
    if not learner.rehearses:
        _observe_base(config, prepared, learner)
        return
    policy, optimiser = learner.policy, learner.optimiser
    if folder is None:
        learner.policy, learner.optimiser = _base_parts(config)
        _observe_base(config, prepared, learner)
        learner.policy, learner.optimiser = policy, optimiser
        return
    file = folder / f"{base_key(config)}-{prepared.key}.safetensors"
    state = None
    with lock(folder / ".locks" / file.stem / "lock"):
        drop_unfinished(folder, file.name)
        if file.exists():
            try:
                state = load_state(file)
            except GraspError as error:
                progress.note(f"{error}; learning the base samples again")
        if state is None:
            learner.policy, learner.optimiser = _base_parts(config)
            _observe_base(config, prepared, learner)
            state = {**learner.state_dict(), "policy": {}}
            save_state(file, state)
    learner.policy, learner.optimiser = policy, optimiser
    learner.load_state_dict({**state, "policy": policy.state_dict()})  # the same if it was loaded


def _base_parts(config: Config) -> tuple[Policy, Optimiser]:
    return UniformBalanced(replace=False), Optimiser(**vars(config.base.optimiser or config.optimiser))


def _observe_base(config: Config, prepared: Prepared, learner: Learner) -> None:
    base = prepared.stream.base
    for part in (base[start : start + _CHUNK] for start in range(0, len(base), _CHUNK)):
        learner.observe_codes(prepared.codes[part], prepared.samples.labels[part], part)
    if len(base):
        learner.rehearse(Budget.passes(config.base.passes, len(learner.buffer), config.budget.batch_size))
