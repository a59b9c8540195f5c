"""Everything that a run begins with: data, stream, network, codec, codes, and the learner that has met the base."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer, Codes, rules
from graspcl.cache import Rows, cached_rows, digest_of, locked
from graspcl.checks import Array
from graspcl.codec import Codec, Encoded, Identity
from graspcl.data import Samples, Subset
from graspcl.errors import GraspError
from graspcl.experiment import texts
from graspcl.experiment.backbone import (
    Backbone,
    build_network,
    encode_samples,
    first_readable,
    make_backbone,
)
from graspcl.experiment.source import arrange, open_data
from graspcl.learner import Learner, column_shapes, learners
from graspcl.model import SplitNetwork, veridical
from graspcl.policy import Budget, Policy, policies
from graspcl.policy.uniform import UniformBalanced
from graspcl.progress import Progress
from graspcl.random import generator
from graspcl.settings.config import (
    BudgetConfig,
    CheckpointConfig,
    Config,
    MeasureConfig,
    Part,
    StopConfig,
    as_plain,
    digest,
)
from graspcl.state import drop_unfinished, load_state, save_state
from graspcl.stream import Stream

_TOLD = 20  # problems of the data that are told at once; all of them are in a file
_CHUNK = 16_384  # base samples that a learner meets at once


@dataclass(frozen=True)
class Ready:
    """What the runs of one seed share, whatever their policy and learner.

    `codes` [N] are all samples', `readable` [N] tells which of them there are.
    """

    samples: Samples[Any]
    order: Array
    backbone: Backbone
    codec: Codec
    codes: Codes
    readable: Array
    problems: list[str]

    @cached_property
    def key(self) -> str:
        """Names samples, network and codec by their contents."""
        parts = (self.backbone.network.state_dict(), self.codec.state_dict(), {"readable": self.readable})
        return digest([self.samples.fingerprint(), *map(digest_of, parts)])[:16]

    def stream(self, config: Config) -> Stream:
        """The stream, not yet begun, without samples that cannot be read."""
        whole = arrange(config, self.samples, self.order)
        if self.readable[whole.samples].all():
            return whole
        base, *sessions = (part[self.readable[part]] for part in (whole.base, *whole.sessions))
        rest = Stream(base, sessions, whole.chunk, self.samples.labels, whole.tasks)
        rest.name, rest.home = whole.name, {label: whole.home[label] for label in whole.home if label in rest.home}
        return rest


_kept: dict[str, Ready] = {}


def ready(config: Config, progress: Progress) -> Ready:
    """Open the data, train or load the network, encode all samples; the last answer is remembered."""
    plain = as_plain(config)
    shared = ("seed", "data", "stream", "network", "codec", "rehearsal", "execution")
    base = {name: plain["base"].get(name) for name in ("method", "weights", "epochs", "batch_size", "lr")}
    files = [_stamp(path) for path in (config.base.weights, config.stream.file, config.data.path)]
    key = digest([{name: plain.get(name) for name in shared}, base, files])
    if key not in _kept:
        found = _make_ready(config, progress)
        _kept.clear()
        _kept[key] = found
    return _kept[key]


def _stamp(path: str | None) -> list[tuple[str, int, int]]:
    """Changes when a file is written anew, or in a folder one of its files, or when one comes or goes a level below."""
    if path is None or not (root := Path(path)).exists():  # data may be a name
        return []
    found = []
    for place in (root, *sorted(root.glob("*")), *sorted(root.glob("*/*"))):
        with contextlib.suppress(OSError):  # a link to nowhere, or a file that was just deleted
            found.append((str(place), place.stat().st_size, place.stat().st_mtime_ns))
    return found


def forget() -> None:
    """Let go of what `ready` remembers."""
    _kept.clear()


def _make_ready(config: Config, progress: Progress) -> Ready:
    samples, order = open_data(config)
    for problem in samples.problems[:_TOLD]:
        progress.note(problem)
    if (more := len(samples.problems) - _TOLD) > 0:
        progress.note(f"and {more:,} more of such problems, all listed in problems.json")
    untested = sorted(set(np.unique(samples.labels)) - set(np.unique(samples.labels[samples.test])))
    if untested:
        names = ", ".join(repr(samples.classes[label]) for label in untested[:5])
        few = f"{names} and {len(untested) - 5} more" if len(untested) > 5 else names
        samples.problems = [*samples.problems, f"{samples.name}: no test samples, so not in any accuracy: {few}"]
        progress.note(samples.problems[-1])
    progress.note(_learned_from(samples, config))
    stream = arrange(config, samples, order)
    try_out(build_network(config), samples)
    trains = config.base.method in ("supervised", "swav")
    raw_images = config.rehearsal == "veridical" and config.network.name not in texts.NETWORKS
    scanned = _scan(samples, config, progress) if trains or raw_images else None
    base = stream.base if scanned is None else stream.base[scanned.readable[stream.base]]
    backbone = make_backbone(config, samples, base, order, progress)
    if config.rehearsal == "veridical" and config.network.name in texts.NETWORKS:
        rows = _tokens(samples, progress)
        problems = [*samples.problems, *rows.problems]
        return Ready(samples, order, backbone, Identity(), torch.from_numpy(rows.values), rows.readable, problems)
    if config.rehearsal == "veridical":
        assert scanned is not None
        codes, kept, _ = samples.encoded_some(np.arange(len(samples)))
        everything = np.full(len(samples), b"", object)
        everything[kept] = codes
        return Ready(
            samples, order, backbone, Encoded(config.data.pixels, whole=samples.whole), everything, scanned.readable,
            [*samples.problems, *scanned.problems],
        )  # fmt: skip
    # Without base classes the codec learns from what comes first.
    fit_on = base if len(base) else stream.sessions[0]
    codec, rows = encode_samples(config, samples, backbone, fit_on, progress)
    problems = [*samples.problems, *(problem for problem in rows.problems if problem)]
    return Ready(samples, order, backbone, codec, torch.from_numpy(rows.values), rows.readable, problems)


def _learned_from(samples: Samples[Any], config: Config) -> str:
    """How much of the data is used, in a line."""
    whole = samples.samples if isinstance(samples, Subset) else samples

    def share(part: int, of: int) -> str:
        return f"{part:,}" if part == of else f"{part:,} of {of:,}"

    parts = ("classes", "train", "test")
    classes, train, test = (share(len(getattr(samples, part)), len(getattr(whole, part))) for part in parts)
    said = f"{samples.name}: {classes} classes, {train} training and {test} test"
    cut = config.network.parameters.get("max_tokens", 256) if config.network.name == "transformer" else None
    return f"{said} samples" if cut is None else f"{said} texts, of which the first {cut} tokens are read"


def try_out(network: SplitNetwork, samples: Samples[Any]) -> None:
    """Refuse a network that cannot take the data, before hours are spent."""
    try:
        with torch.no_grad():
            network.eval()(network.encode(first_readable(samples)))
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        said = str(error).partition("\n")[0]
        raise GraspError(f"the network does not take the samples of {samples.name}: {said}") from error


def _scan(samples: Samples[Any], config: Config, progress: Progress) -> Rows:
    """Which samples can be read, found by reading them all once."""

    def compute(indices: Array) -> tuple[Array, Array, list[str]]:
        _, kept, problems = samples.read_some(indices)
        return np.zeros((len(kept), 0), np.uint8), kept, problems

    key = f"readable/{samples.name}-{samples.fingerprint()}"
    return cached_rows(key, len(samples), compute, progress, f"looking through {samples.name}")


def _tokens(samples: Samples[Any], progress: Progress) -> Rows:
    """Token ids of all texts, made once."""

    def compute(indices: Array) -> tuple[Array, Array, list[str]]:
        ids, kept, problems = samples.read_some(indices)
        return ids.numpy(), kept, problems

    key = f"tokens/{samples.name}-{samples.fingerprint()}"
    return cached_rows(key, len(samples), compute, progress, f"tokenising {samples.name}")


# -- the learner ------------------------------------------------------------------------------------------------------


def make_learner(config: Config, network: SplitNetwork, codec: Codec, policy: Policy, classes: int) -> Learner:
    """A learner by its settings, for up to `classes` classes; `network` is taken as it is."""
    if config.rehearsal == "veridical":
        # The paper's text runs train all of BERT; its image runs leave the lower layers as they are.
        network = veridical(network, unfreeze=config.network.name in texts.NETWORKS)
    rule = rules.create(config.buffer.maintenance.name, **config.buffer.maintenance.parameters)
    kind, parameters = learners.get(config.learner.name), config.learner.parameters
    columns = {**column_shapes(rule, network), **kind.columns(classes, **parameters)}
    buffer = Buffer(config.buffer.capacity, codec, rule, columns, rng=generator(config.seed, "buffer"))
    rng = generator(config.seed, "policy")
    return kind(network, buffer, policy, config.optimiser, rng, execution=config.execution, **parameters)


def new_learner(config: Config, start: Ready, policy: Policy | None = None) -> Learner:
    """The learner of a run before it has seen anything."""
    network = build_network(config, len(start.backbone.known))
    network.load_state_dict(start.backbone.network.state_dict())
    policy = policy or policies.create(config.policy.name, **config.policy.parameters)
    learner = make_learner(config, network, copy.deepcopy(start.codec), policy, len(start.samples.classes))
    learner.set_head_labels(start.backbone.known)
    return learner


def start_key(config: Config) -> str:
    """Names all that `start_state` depends on, as far as settings tell."""
    alike = replace(
        config, name="", log=None, policy=Part("grasp"), budget=BudgetConfig(batch_size=config.budget.batch_size),
        stop=StopConfig(), measure=MeasureConfig(), checkpoint=CheckpointConfig(),
    )  # fmt: skip
    return digest(as_plain(alike))[:16]


def start_state(config: Config, start: Ready, folder: Path, progress: Progress) -> dict[str, Any]:
    """The state of a learner after the base samples, from which the runs of all policies begin.

    They are stored, and rehearsed uniformly for `base.passes` passes. The state lies in `folder` for the other runs.
    """
    file = folder / f"{start_key(config)}-{start.key}.safetensors"
    with locked(folder / ".locks" / file.stem):
        drop_unfinished(folder, file.name)
        if file.exists():
            try:
                return load_state(file)
            except GraspError as error:
                progress.note(f"{error}; it is made anew")
        optimiser = config.base.optimiser or config.optimiser
        learner = new_learner(replace(config, optimiser=optimiser), start, UniformBalanced(replace=False))
        base = start.stream(config).base
        if len(base):
            labels = start.samples.labels[base]
            for begin in range(0, len(base), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                learner.observe_codes(start.codes[base[part]], labels[part], base[part])
            passes = Budget.passes(config.base.passes, len(learner.buffer), config.budget.batch_size)
            learner.rehearse(passes)
        state = {**learner.state_dict(), "policy": {}}
        save_state(file, state)
        return state
