"""One run, from base initialisation to the last session, in one readable loop."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer
from graspcl.codec import Codec
from graspcl.experiment.config import Config, as_plain
from graspcl.experiment.folder import RunFolder, environment
from graspcl.experiment.progress import Progress, Silent
from graspcl.experiment.setups import Latents, Setup
from graspcl.learner import Learner, learners
from graspcl.metric import accuracies
from graspcl.policy import Budget, Policy, policies
from graspcl.policy.uniform import UniformBalanced
from graspcl.random import generator, torch_generator
from graspcl.stream import ClassIncremental

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Base:
    """What every policy of a comparison starts from: codes of all samples and the learner after base initialisation."""

    setup: Setup
    latents: Latents
    codec: Codec
    codes: torch.Tensor
    state: dict[str, Any]


def make_stream(config: Config, latents: Latents) -> ClassIncremental:
    """The stream of a seed; the same for every policy."""
    return ClassIncremental(
        latents.train,
        latents.labels[latents.train],
        config.stream.base_classes,
        config.stream.sessions,
        generator(config.seed, "stream"),
        chunk=config.stream.chunk,
    )


def initialise_base(config: Config, setup: Setup, latents: Latents, progress: Progress | None = None) -> Base:
    """Train the codec and the plastic network on the base classes: a first session of uniform rehearsal."""
    progress = progress or Silent()
    base = make_stream(config, latents).base
    with progress.task(f"seed {config.seed}: codec", 2) as advance:
        values = torch.from_numpy(latents.values)
        codec = setup.codec().fit(values[base].float())
        advance(1)
        codes = torch.cat([codec.encode(chunk.float()) for chunk in torch.split(values, 256)])
        advance(1)
    learner = _learner(replace(config, optimiser=config.base.optimiser), setup, codec, UniformBalanced(replace=False))
    learner.observe_codes(codes[base], latents.labels[base], base)
    budget = Budget.passes(config.base.passes, len(learner.buffer), config.base.batch_size)
    with progress.task(f"seed {config.seed}: base classes", budget.updates) as advance:
        learner.rehearse(budget, on_step=lambda _: advance(1))
    return Base(setup, latents, codec, codes, {**learner.state_dict(), "policy": {}})


def run(config: Config, base: Base, folder: RunFolder, progress: Progress | None = None) -> dict[str, float]:
    """Learn the stream with the configured policy; returns the summary, and leaves everything in the folder."""
    progress = progress or Silent()
    begin = time.perf_counter()
    latents, stream = base.latents, make_stream(config, base.latents)
    folder.write_config(as_plain(config))
    folder.write_json("environment", environment())
    learner = _learner(config, base.setup, base.codec, policies.create(config.policy, **config.policy_parameters))
    learner.load_state_dict({**base.state, "policy": learner.policy.state_dict()})
    labels, codes = latents.labels[latents.test], base.codes[latents.test]
    arrived = np.array([stream.arrival[int(label)] for label in labels])
    predictions = [_predict(learner, codes, arrived <= 0)]
    totals = {"updates": 0, "selection_seconds": 0.0, "training_seconds": 0.0, "coverage": 0.0}
    with progress.task(f"seed {config.seed}: {config.policy_label}", config.stream.sessions) as advance:
        for chunk in stream:
            learner.observe_codes(base.codes[chunk.indices], latents.labels[chunk.indices], chunk.indices)
            if not chunk.ends_session:
                continue
            known = arrived <= chunk.session
            awake = _accuracy(_predict(learner, codes, known), labels, known)
            budget = Budget.passes(config.budget.passes, len(learner.buffer), config.budget.batch_size)
            log = learner.rehearse(budget)
            predictions.append(_predict(learner, codes, known))
            asleep = _accuracy(predictions[-1], labels, known)
            measured = {**asdict(log.costs), "coverage": log.coverage}
            totals = {name: total + measured[name] for name, total in totals.items()}
            folder.append_metrics(
                {"session": chunk.session, "accuracy": asleep, "accuracy_before_rehearsal": awake, "stored": log.stored,
                 "buffer_bytes": log.buffer_bytes, "loss": float(log.losses[-10:].mean()), **measured}
            )  # fmt: skip
            folder.write_predictions(labels, predictions)
            advance(1)
    result = accuracies(predictions, labels, stream.arrival)
    totals["coverage"] /= config.stream.sessions
    summary = {**result.summary(), **totals, "seconds": time.perf_counter() - begin}
    folder.write_json("summary", {"policy": config.policy_label, "matrix": _plain(result.matrix), **summary})
    return summary


def _learner(config: Config, setup: Setup, codec: Codec, policy: Policy) -> Learner:
    buffer = Buffer(config.buffer.capacity, codec, config.buffer.maintenance, rng=generator(config.seed, "buffer"))
    network = setup.network(torch_generator(config.seed, "init"))
    learner = learners.get(config.learner)
    return learner(network, buffer, policy, config.optimiser, generator(config.seed, "policy"))


def _predict(learner: Learner, codes: torch.Tensor, known: Array) -> Array:
    """Predictions [n] for the test samples of classes that have arrived (`known` [n]), -1 for the others."""
    predicted = np.full(len(known), -1)
    if known.any():
        predicted[known] = learner.predict_codes(codes[torch.from_numpy(known)])
    return predicted


def _accuracy(predicted: Array, labels: Array, known: Array) -> float:
    """Percent right among the test samples of classes that have arrived."""
    return float(100 * (predicted[known] == labels[known]).mean())


def _plain(matrix: Array) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in matrix]
