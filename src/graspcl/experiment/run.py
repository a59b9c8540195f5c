"""One run, from base initialisation to the last session, in one readable loop."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from graspcl.buffer import Buffer, Codes, rules
from graspcl.buffer.capacity import capacity_in_samples
from graspcl.codec import Codec
from graspcl.errors import GraspError, nearest
from graspcl.experiment.config import Config, as_plain
from graspcl.experiment.folder import RunFolder, environment
from graspcl.experiment.setups import Latents, Setup
from graspcl.learner import Learner, column_shapes, learners
from graspcl.metric import accuracies
from graspcl.model import veridical
from graspcl.policy import Budget, Policy, policies
from graspcl.policy.uniform import UniformBalanced
from graspcl.random import generator, torch_generator
from graspcl.registry import parameter_names
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


def check(config: Config, setup: Setup) -> None:
    """Refuse, with the reason, what is misspelt or cannot work together; nothing is loaded or trained for that."""
    policies.create(config.policy, **config.policy_parameters)
    given = {"network", "buffer", "policy", "optimiser", "rng", "device", "execution"}
    learner = learners.get(config.learner)
    valid = [name for name in parameter_names(learner) if name not in given]
    for name in config.learner_parameters:
        if name not in valid:
            hint = nearest(name, valid) if valid else "it takes none"
            raise GraspError(f"learner {config.learner!r} has no parameter {name!r}; {hint}")
    if learner.unbounded and config.buffer.capacity is not None:
        raise GraspError(f"learner {config.learner!r} keeps everything it has seen: give the buffer no capacity")
    _learner(config, setup, make_codec(config, setup), policies.create(config.policy), classes=1)


def initialise_base(config: Config, setup: Setup, latents: Latents) -> dict[str, Any]:
    """The state of a learner after base initialisation, from which every policy of a comparison starts.

    The codec is trained on the base classes, then the plastic network: a first session of uniform rehearsal.
    """
    base = make_stream(config, latents).base
    if config.rehearsal == "veridical":
        codec, codes = make_codec(config, setup), raw_codes(setup)[base]
    else:
        values = torch.from_numpy(latents.values[base]).float()
        codec = make_codec(config, setup).fit(values)
        codes = codec.encode(values)
    classes = len(latents.classes)
    given = replace(config, optimiser=config.base.optimiser)
    learner = _learner(given, setup, codec, UniformBalanced(replace=False), classes)
    learner.observe_codes(codes, latents.labels[base], base)
    learner.rehearse(Budget.passes(config.base.passes, len(learner.buffer), config.base.batch_size))
    return {**learner.state_dict(), "policy": {}}


def make_codec(config: Config, setup: Setup) -> Codec:
    """The codec of a run."""
    if config.rehearsal == "latent":
        return setup.codec()
    if setup.raw_codec is None:
        raise GraspError(
            f"{setup.name} has no veridical rehearsal: its frozen part is a text encoder apart from the network"
        )
    return setup.raw_codec()


def raw_codes(setup: Setup) -> Array:
    """All samples as they came [N]."""
    assert setup.raw is not None
    return setup.raw()


def encode_all(rehearsal: str, setup: Setup, latents: Latents, base: dict[str, Any]) -> Codes:
    """Codes of all samples, by the codec of a base state."""
    if rehearsal == "veridical":
        return raw_codes(setup)
    codec = setup.codec()
    codec.load_state_dict(base["buffer"]["codec"])
    return torch.cat([codec.encode(chunk.float()) for chunk in torch.split(torch.from_numpy(latents.values), 256)])


def run(
    config: Config, setup: Setup, latents: Latents, codes: Codes, base: dict[str, Any], folder: RunFolder
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
    learner = _learner(config, setup, make_codec(config, setup), policy, len(latents.classes))
    learner.load_state_dict({**base, "policy": policy.state_dict()})
    labels, test_codes = latents.labels[latents.test], codes[latents.test]
    arrived = np.array([stream.arrival[int(label)] for label in labels])
    fits = samples_within(config, learner, codes[latents.train])
    predictions = [_predict(learner, test_codes, arrived <= 0)]
    totals = {"updates": 0, "selection_seconds": 0.0, "training_seconds": 0.0, "coverage": 0.0}
    for chunk in stream:
        learner.observe_codes(codes[chunk.indices], latents.labels[chunk.indices], chunk.indices)
        if not chunk.ends_session:
            continue
        known = arrived <= chunk.session
        awake = _accuracy(_predict(learner, test_codes, known), labels, known)
        held = learner.buffer.seen if fits is None else min(fits, learner.buffer.seen)
        budget = Budget.passes(config.budget.passes, held, config.budget.batch_size)
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
    named = {"policy": config.policy_label, "learner": config.learner_label}
    folder.write_json("summary", {**named, "matrix": _plain(result.matrix), **summary})
    return summary


def _learner(config: Config, setup: Setup, codec: Codec, policy: Policy, classes: int) -> Learner:
    network = setup.network(torch_generator(config.seed, "init"))
    if config.rehearsal == "veridical":
        network = veridical(network)
    rule = rules.create(config.buffer.maintenance)
    learner = learners.get(config.learner)
    columns = {**column_shapes(rule, network), **learner.columns(classes, **config.learner_parameters)}
    buffer = Buffer(config.buffer.capacity, codec, rule, columns, rng=generator(config.seed, "buffer"))
    rng = generator(config.seed, "policy")
    how = config.execution
    return learner(network, buffer, policy, config.optimiser, rng, execution=how, **config.learner_parameters)


def samples_within(config: Config, learner: Learner, codes: Codes) -> int | None:
    """How many of the samples `codes` the configured capacity has room for, None for all.

    What a learner stores beside them (the logits of DER++) is left out: sessions of all learners are equally long.
    """
    own = learner.columns(1, **config.learner_parameters)
    shapes = [column for name, column in learner.buffer.columns.items() if name not in own]
    columns = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
    codec = learner.buffer.codec
    if codec is not None and isinstance(codes, np.ndarray):  # image files, each with a pointer and its length
        size = int(np.ceil(codec.lengths(codes[:1000]).mean())) + 16
    else:
        size = codes[0].nbytes
    return capacity_in_samples(config.buffer.capacity, size + columns, codec.nbytes if codec else 0)


def _predict(learner: Learner, codes: Codes, known: Array) -> Array:
    """Predictions [n] for the test samples of classes that have arrived (`known` [n]), -1 for the others."""
    predicted = np.full(len(known), -1)
    if known.any():
        predicted[known] = learner.predict_codes(codes[known])
    return predicted


def _accuracy(predicted: Array, labels: Array, known: Array) -> float:
    """Percent right among the test samples of classes that have arrived."""
    return float(100 * (predicted[known] == labels[known]).mean())


def _plain(matrix: Array) -> list[list[float | None]]:
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in matrix]
