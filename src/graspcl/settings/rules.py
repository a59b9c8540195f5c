"""Rules between settings: which do nothing, and which cannot go together. No data are read, no network is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from graspcl.checks import check as check_value
from graspcl.checks import check_parameters
from graspcl.errors import GraspError
from graspcl.registry import Registry
from graspcl.settings.config import Config


def idle_reason(config: Config, name: str) -> str | None:
    """Return why the setting `name` has no effect given the other settings; None if it has one.

    >>> idle_reason(Config(), "stop.every")
    'without stop.patience or stop.keep nothing is held out'
    """
    base, stream, updates = config.base, config.stream, config.budget.updates
    reads = config.reads if re.fullmatch("data.(pixels|text|label|tasks)", name) else ""  # it loads torch
    no_base = not stream.base_classes and stream.file is None
    static = re.match("(policy|budget|optimiser|stop|base|buffer)[.]", name) is not None and not config.rehearses
    stores = not static or registries()["learners"].get(config.learner.name).stores
    learner = f"learner {config.learner.name}"
    adamw = [one is not None and one.name == "adamw" for one in (config.optimiser, base.optimiser)]
    for pattern, idle, reason in (
        ("budget.passes", updates is not None, f"budget.updates is {updates}; --budget.updates none counts passes"),
        (
            "stop.(every|share)",
            config.stop.patience is None and config.stop.keep is None,
            "without stop.patience or stop.keep nothing is held out",
        ),
        ("(policy|budget|optimiser|stop|base.optimiser)[.].*|base.passes", static, f"{learner} does not rehearse"),
        ("buffer.*", not stores, f"{learner} stores no samples"),
        ("base.(passes|optimiser.*)", no_base, "there are no base classes (stream.base_classes)"),
        ("base.optimiser.*", not base.passes, "with base.passes 0 the base samples are not rehearsed"),
        ("base.data", base.preset is None, "no stage of base.stages is weights(preset=NAME)"),
        ("network.frozen", config.rehearsal == "latent", "latent rehearsal never changes the frozen part"),
        ("codec.*|measure.coded", config.rehearsal == "veridical", "veridical rehearsal stores samples unmodified"),
        ("optimiser.momentum", adamw[0], "AdamW has none"),
        ("optimiser.warmup", config.optimiser.schedule == "onecycle", "the schedule onecycle rises by itself"),
        ("base.optimiser.momentum", adamw[1], "AdamW has none"),
        ("data.pixels", reads != "images", "the network reads texts, not images"),
        ("data.(text|label|tasks)", reads == "images", "the network reads images, not texts"),
    ):
        if idle and re.fullmatch(pattern, name):
            return reason
    return _idle_in_stream(config, name.removeprefix("stream.")) if name.startswith("stream.") else None


def _idle_in_stream(config: Config, key: str) -> str | None:
    stream = config.stream
    if key == "order" and stream.file is not None and config.data.classes is not None:
        return None  # the order tells which classes are used
    if stream.file is not None and key not in ("file", "base_classes"):
        return f"the stream comes from {stream.file}"
    if key == "order" and config.data.tasks is not None:
        return "tasks arrive in the order of data.tasks"
    if key in ("base_classes", "sessions", "order", "blurry", "imbalance", "chunk") and key not in _taken(stream.kind):
        return f"streams of kind {stream.kind} do not use it"
    return None


def _taken(kind: str) -> set[str]:
    """Return the settings that a kind of stream uses."""
    from graspcl.stream import streams

    taken = set(streams.parameters(kind))
    return taken | {"sessions", "order"} if "task_of" in taken else taken  # they group classes into tasks


def registries() -> dict[str, Registry[Any]]:
    """Return the registries of all kinds of parts."""
    from graspcl.buffer import rules
    from graspcl.codec import codecs
    from graspcl.data import data_sources
    from graspcl.learner import learners
    from graspcl.model import networks
    from graspcl.policy import policies
    from graspcl.pretrain import stages
    from graspcl.stream import streams

    return {
        "policies": policies, "learners": learners, "networks": networks, "data": data_sources, "streams": streams,
        "rules": rules, "codecs": codecs, "stages": stages,
    }  # fmt: skip


def check(config: Config) -> None:
    """Refuse misspelt names and settings that cannot go together, with the reason, before any data are read."""
    from graspcl.buffer.capacity import parse_bytes
    from graspcl.data import check_source

    config.path  # noqa: B018  (refuses a name that names no folder)
    parts = registries()
    # These three are cheap to make, and check conditions between their parameters when they are.
    for kind, part in {"policies": config.policy, "codecs": config.codec, "rules": config.buffer.maintenance}.items():
        parts[kind].create(part.name, **part.parameters)
    learners = parts["learners"]
    learners.validate(config.learner.name, config.learner.parameters)
    parts["networks"].validate(config.network.name, network_options(config))
    check_value("network.frozen", config.network.parameters.get("frozen"), bool | None)
    base_stages(config)
    kind, own = config.stream.kind, config.stream.parameters
    if unknown := sorted(own.keys() - parts["streams"].parameters(kind).keys()):
        raise GraspError(f"stream {kind!r} has no parameter {unknown[0]!r}")
    check_parameters(parts["streams"].get(kind), own)
    if isinstance(config.buffer.capacity, str):
        parse_bytes(config.buffer.capacity)
    if learners.get(config.learner.name).unbounded and config.buffer.capacity is not None:
        raise GraspError(f"learner {config.learner.name!r} stores everything it has seen: set --buffer none")
    _check_together(config)
    check_source(config.data, config.reads, config.name)
    for name, file in (("base.stages weights", config.base.weights), ("stream.file", config.stream.file)):
        if file is not None and not Path(file).is_file():
            raise GraspError(f"--{name} {file}: there is no such file")
    _check_base(config)
    config.execution.make()


def _check_base(config: Config) -> None:
    """Check the preset whose base training makes the weights that a run starts from, if there is one."""
    from graspcl.settings.presets import base_preset

    if (start := base_preset(config)) is None:
        return
    if not start.data.path:
        needs = f"{config.name} starts from the base training of {start.name}, which needs its images"
        raise GraspError(f"{needs}: set --base.data PATH, or --base.stages 'weights(file=FILE)' for weights you have")
    try:
        check(start)
    except GraspError as error:
        raise GraspError(f"--base.data {config.base.data}: {start.name} cannot be trained on it: {error}") from error


def network_options(config: Config) -> dict[str, Any]:
    """Return the parameters of the network, with the size of images where it takes one."""
    from graspcl.model import networks

    sized = {"pixels": config.data.pixels} if "pixels" in networks.parameters(config.network.name) else {}
    # `frozen` is about the run, not about the network: both values build the same one.
    return {**sized, **{name: value for name, value in config.network.parameters.items() if name != "frozen"}}


def keeps_frozen(config: Config) -> bool:
    """Whether a veridical run leaves the frozen part as it is: `network.frozen`, by default if it reads images."""
    given = config.network.parameters.get("frozen")
    return config.reads == "images" if given is None else bool(given)


def base_stages(config: Config) -> list[Any]:
    """Make the stages of `base.stages`; refuse unknown ones, weights that come too late, and idle parameters."""
    from graspcl.pretrain import stages

    found = []
    for place, part in enumerate(config.base.stages):
        if part.name == "weights" and place:
            raise GraspError("base.stages: weights replace what the stages before them learned; put them first")
        found.append(stages.create(part.name, **part.parameters))
        for name in part.parameters:
            if reason := getattr(found[-1], "idle", {}).get(name):
                raise GraspError(f"base.stages: {name} of {part.name} would do nothing: {reason}")
    return found


def _check_together(config: Config) -> None:
    stream, reads = config.stream, config.reads
    training = [one.name for one in config.base.stages if one.name != "weights"]
    if config.rehearsal == "veridical" and reads == "vectors":
        raise GraspError(f"{config.data.path} has no veridical rehearsal: the network reads encoded vectors")
    for name in ("imbalance", "blurry"):
        if getattr(stream, name) and name not in _taken(stream.kind):
            raise GraspError(f"stream.{name}: streams of kind {stream.kind} do not use it; set another --stream.kind")
    if config.learner.parameters.get("regularised") is True and reads != "texts":
        raise GraspError("--learner.regularised swaps the halves of texts: set --network transformer")
    if training and not stream.base_classes:
        raise GraspError(f"base.stages: {training[0]} needs classes to train on: set --stream.base_classes N")
    if training and reads != "images":
        raise GraspError(f"base.stages: {training[0]} trains on images; for texts set --base.stages none")
