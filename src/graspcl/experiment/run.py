"""One run, from base initialisation to the last session, in one readable loop."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer, rules
from graspcl.codec import Codec
from graspcl.experiment.config import Config, as_plain
from graspcl.experiment.folder import RunFolder, environment
from graspcl.experiment.setups import Latents, Setup
from graspcl.learner import Learner, column_shapes, learners
from graspcl.metric import accuracies
from graspcl.policy import Budget, Policy, policies
from graspcl.policy.uniform import UniformBalanced
from graspcl.random import generator, torch_generator
from graspcl.stream import ClassIncremental

Array = np.ndarray[Any, Any]


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


def initialise_base(config: Config, setup: Setup, latents: Latents) -> dict[str, Any]:
    """The state of a learner after base initialisation, from which every policy of a comparison starts.

    The codec is trained on the base classes, then the plastic network: a first session of uniform rehearsal.
    """
    base = make_stream(config, latents).base
    values = torch.from_numpy(latents.values[base]).float()
    codec = setup.codec().fit(values)
    learner = _learner(replace(config, optimiser=config.base.optimiser), setup, codec, UniformBalanced(replace=False))
    learner.observe_codes(codec.encode(values), latents.labels[base], base)
    learner.rehearse(Budget.passes(config.base.passes, len(learner.buffer), config.base.batch_size))
    return {**learner.state_dict(), "policy": {}}


def encode_all(setup: Setup, latents: Latents, base: dict[str, Any]) -> torch.Tensor:
    """Codes of all samples, by the codec of a base state."""
    codec = setup.codec()
    codec.load_state_dict(base["buffer"]["codec"])
    return torch.cat([codec.encode(chunk.float()) for chunk in torch.split(torch.from_numpy(latents.values), 256)])


def run(
    config: Config, setup: Setup, latents: Latents, codes: torch.Tensor, base: dict[str, Any], folder: RunFolder
) -> dict[str, float]:
    """Learn the stream with the configured policy; returns the summary, and leaves everything in the folder.

    `codes` [N, …] are all samples' (`encode_all`), `base` is the state to start from (`initialise_base`).
    """
    begin = time.perf_counter()
    stream = make_stream(config, latents)
    folder.clear()
    folder.write_config(as_plain(config))
    folder.write_json("environment", environment())
    policy = policies.create(config.policy, **config.policy_parameters)
    learner = _learner(config, setup, setup.codec(), policy)
    learner.load_state_dict({**base, "policy": policy.state_dict()})
    labels, test_codes = latents.labels[latents.test], codes[torch.from_numpy(latents.test)]
    arrived = np.array([stream.arrival[int(label)] for label in labels])
    predictions = [_predict(learner, test_codes, arrived <= 0)]
    totals = {"updates": 0, "selection_seconds": 0.0, "training_seconds": 0.0, "coverage": 0.0}
    for chunk in stream:
        learner.observe_codes(codes[torch.from_numpy(chunk.indices)], latents.labels[chunk.indices], chunk.indices)
        if not chunk.ends_session:
            continue
        known = arrived <= chunk.session
        awake = _accuracy(_predict(learner, test_codes, known), labels, known)
        budget = Budget.passes(config.budget.passes, len(learner.buffer), config.budget.batch_size)
        log = learner.rehearse(budget)
        predictions.append(_predict(learner, test_codes, known))
        asleep = _accuracy(predictions[-1], labels, known)
        measured = {**asdict(log.costs), "coverage": log.coverage}
        totals = {name: total + measured[name] for name, total in totals.items()}
        folder.append_metrics(
            {"session": chunk.session, "accuracy": asleep, "accuracy_before_rehearsal": awake, "stored": log.stored,
             "buffer_bytes": log.buffer_bytes, "loss": float(log.losses[-10:].mean()), **measured}
        )  # fmt: skip
        folder.write_predictions(labels, predictions)
    result = accuracies(predictions, labels, stream.arrival)
    totals["coverage"] /= config.stream.sessions
    summary = {**result.summary(), **totals, "seconds": time.perf_counter() - begin}
    folder.write_json("summary", {"policy": config.policy_label, "matrix": _plain(result.matrix), **summary})
    return summary


def _learner(config: Config, setup: Setup, codec: Codec, policy: Policy) -> Learner:
    network = setup.network(torch_generator(config.seed, "init"))
    rule = rules.create(config.buffer.maintenance)
    columns = column_shapes(rule, network)
    buffer = Buffer(config.buffer.capacity, codec, rule, columns, rng=generator(config.seed, "buffer"))
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
