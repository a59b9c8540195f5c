"""Settings that would do nothing beside the others: to give one of them is a mistake."""

from __future__ import annotations

from graspcl.codec import Encoded, Identity
from graspcl.errors import GraspError, nearest
from graspcl.experiment import texts
from graspcl.experiment.backbone import build_network, make_codec
from graspcl.experiment.loggers import make_loggers
from graspcl.experiment.source import check_data
from graspcl.experiment.start import make_learner
from graspcl.learner import learners
from graspcl.policy import policies
from graspcl.registry import parameter_names
from graspcl.settings.config import Config
from graspcl.stream import streams


def idle_settings(config: Config) -> dict[str, str]:
    """Settings that do nothing beside the others, and why."""
    base, budget, stream = config.base, config.budget, config.stream
    found: dict[str, str] = {}
    if budget.updates is not None:
        found["budget.passes"] = f"budget.updates is {budget.updates}; --budget.updates none counts passes instead"
    if config.stop.patience is None:
        found |= dict.fromkeys(("stop.every", "stop.share"), "without stop.patience no session ends early")
    if base.method not in ("supervised", "swav"):
        reason = f"with base.method {base.method} nothing is trained before the stream"
        found |= dict.fromkeys(("base.epochs", "base.batch_size", "base.lr"), reason)
    if not base.passes:
        found["base.optimiser"] = "with base.passes 0 the base samples are not rehearsed"
    if not stream.base_classes and stream.file is None:
        found |= dict.fromkeys(("base.passes", "base.optimiser"), "there are no base classes (stream.base_classes)")
    if stream.file is not None:
        order = ["order"] if config.data.classes is None else []  # else it says which classes those are
        for name in ("kind", "sessions", "blurry", "imbalance", "chunk", *order):
            found[f"stream.{name}"] = f"the stream comes from {stream.file}"
    if config.rehearsal == "veridical":
        found["codec"] = "veridical rehearsal stores samples as they came"
    if config.network.name in ("vector", "transformer"):
        found["data.pixels"] = "the network reads texts, not images"
    else:
        columns = ("data.text", "data.label", "data.tasks")
        found |= dict.fromkeys(columns, "the network sees images, not texts")
    if config.data.tasks is not None:
        found["stream.order"] = "tasks come in the order of data.tasks"
    if stream.kind == "task_incremental":
        found["stream.base_classes"] = "tasks come one after the other from the first on"
    for name, optimiser in (("optimiser", config.optimiser), ("base.optimiser", base.optimiser)):
        if optimiser is not None and optimiser.name == "adamw":
            found[f"{name}.momentum"] = "AdamW has none"
    return found


def check(config: Config) -> None:
    """Refuse, with the reason, what is misspelt or cannot work together; nothing is read or trained for that."""
    policy = policies.create(config.policy.name, **config.policy.parameters)
    given = {"network", "buffer", "policy", "optimiser", "rng", "device", "execution"}
    learner, parameters = learners.get(config.learner.name), config.learner.parameters
    valid = [name for name in parameter_names(learner) if name not in given]
    for name in parameters:
        if name not in valid:
            hint = nearest(name, valid) if valid else "it takes none"
            raise GraspError(f"learner {config.learner.name!r} has no parameter {name!r}; {hint}")
    if learner.unbounded and config.buffer.capacity is not None:
        raise GraspError(f"learner {config.learner.name!r} keeps everything it has seen: give the buffer no capacity")
    streams.get(config.stream.kind)
    make_loggers(config.log)
    _check_numbers(config)
    check_data(config)
    config.execution.resolve()
    network = build_network(config)
    codec = make_codec(config.codec)
    if config.rehearsal == "veridical":
        codec = Identity() if config.network.name in texts.NETWORKS else Encoded(config.data.pixels)
    make_learner(config, network, codec, policy, classes=1)


def _check_numbers(config: Config) -> None:
    stream, budget, stop = config.stream, config.budget, config.stop
    if config.rehearsal == "veridical" and config.network.name == "vector":
        raise GraspError(
            f"{config.data.path} has no veridical rehearsal: its frozen part is a text encoder apart from the network"
        )
    if stream.imbalance is not None and stream.kind != "long_tailed":
        raise GraspError(f"stream.imbalance is for long_tailed streams, and this one is {stream.kind}")
    if stream.blurry and stream.kind != "class_incremental":
        raise GraspError(f"stream.blurry is for class_incremental streams, and this one is {stream.kind}")
    if config.learner.parameters.get("regularised") is True and config.network.name != "transformer":
        raise GraspError("--learner.regularised swaps the halves of texts: it needs --network transformer")
    if config.base.method in ("supervised", "swav") and not stream.base_classes:
        raise GraspError(f"base.method {config.base.method} needs classes to train on: --stream.base_classes N")
    if config.base.method in ("supervised", "swav") and config.network.name in texts.NETWORKS:
        raise GraspError(f"--base.method {config.base.method} trains on images; for texts it is none, or weights")
    wrong = {
        "seed": config.seed < 0,
        "stream.base_classes": stream.base_classes < 0,
        "stream.sessions": stream.sessions < 1,
        "stream.chunk": stream.chunk < 1,
        "stream.blurry": not 0 <= stream.blurry < 1,
        "data.classes": config.data.classes is not None and config.data.classes < 1,
        "data.per_class": config.data.per_class is not None and config.data.per_class < 1,
        "base.epochs": config.base.epochs < 1,
        "base.batch_size": config.base.batch_size < 2,
        "base.lr": not config.base.lr > 0,
        "checkpoint.seconds": config.checkpoint.seconds < 0,
        "budget.updates": budget.updates is not None and budget.updates < 0,
        "budget.passes": budget.passes < 0,
        "budget.times": budget.times <= 0,
        "budget.batch_size": budget.batch_size < 1,
        "stop.patience": stop.patience is not None and stop.patience < 1,
        "stop.every": stop.every < 1,
        "stop.share": not 0 < stop.share < 1,
        "measure.drift": config.measure.drift < 0,
        "measure.distances": config.measure.distances < 0,
        "base.passes": config.base.passes < 0,
        "data.pixels": config.data.pixels < 1,
    }
    for name, bad in wrong.items():
        if bad:
            group, _, last = name.partition(".")
            value = getattr(getattr(config, group), last) if last else config.seed
            raise GraspError(f"{name} cannot be {value}")
