"""Settings that would do nothing beside the others: to give one of them is a mistake."""

from __future__ import annotations

from graspcl.experiment.config import Config


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
