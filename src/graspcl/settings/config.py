"""The settings of a run: one tree of dataclasses, which is the Python API, the TOML file and the command line.

In each group the first setting is the one that stands for the group: `--buffer 0.2GB` is `--buffer.capacity 0.2GB`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from graspcl.learner import Optimiser
from graspcl.model import Execution


@dataclass(frozen=True)
class Part:
    """A part by its name, with parameters that are not its defaults.

    >>> str(Part("uniform_balanced", {"replace": False}))
    'uniform_balanced(replace=False)'
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from.

    `path` is a folder or zip file of images, or the name of data that come by pip: groceries, listings. Of it `classes`
    classes (the first of the stream's order) with at most `per_class` training and `test_per_class` test samples each
    are used, by default all. `val_mapping` and `test_split` are those of image folders. Texts come as a table (CSV,
    TSV, JSONL, Parquet) with the columns `text` and `label`, or as several of them in a folder: `tasks` says which, as
    "ag,yelp,yahoo", and `per_class` then counts in each.
    """

    path: str = ""
    pixels: int = 224
    classes: int | None = None
    per_class: int | None = None
    test_per_class: int | None = None
    val_mapping: str | None = None
    test_split: str | None = None
    text: str = "text"
    label: str = "label"
    tasks: str | None = None


@dataclass(frozen=True)
class StreamConfig:
    """The order of arrival: which kind of stream, how many classes are known at its start, in how many sessions the
    others come.

    `order` is random, sorted, imagenet (the reference's) or a file with one class a line. `blurry` is the share of
    samples that come in another session than their class, `imbalance` the ratio of the largest to the smallest class
    of a long-tailed stream, `file` a stream that was saved.
    """

    kind: str = "class_incremental"
    base_classes: int = 0
    sessions: int = 1
    order: str = "random"
    blurry: float = 0.0
    imbalance: float | None = None
    chunk: int = 512
    file: str | None = None


@dataclass(frozen=True)
class BaseConfig:
    """What comes before the stream.

    First the network learns: `method` is none (its weights are what they are), weights (a file), supervised or swav
    (training on the base classes; from `weights` if given) with `epochs`, `batch_size` and `lr`. Then the base samples
    are stored, and rehearsed for `passes` passes of uniform rehearsal with `optimiser` (by default the sessions').
    """

    method: Literal["none", "weights", "supervised", "swav"] = "none"
    weights: str | None = None
    epochs: int = 50
    batch_size: int = 256
    lr: float = 0.2
    passes: float = 0.0
    optimiser: Optimiser | None = None


@dataclass(frozen=True)
class BufferConfig:
    """What is kept: a number of samples, a size such as "8MB", or everything (none); and who makes room."""

    capacity: int | str | None = None
    maintenance: Part = Part("largest_class")


@dataclass(frozen=True)
class BudgetConfig:
    """What a session may spend: `updates` mini-batches, or so many `passes` over the stored samples; `times` that."""

    updates: int | None = None
    passes: float = 1.0
    batch_size: int = 64
    times: float = 1.0


@dataclass(frozen=True)
class StopConfig:
    """When a session may end early: after `patience` looks at held-out samples, `every` so many updates, without a
    better accuracy. For that a `share` of the arriving samples is kept apart and never rehearsed.
    """

    patience: int | None = None
    every: int = 25
    share: float = 0.05


@dataclass(frozen=True)
class MeasureConfig:
    """What is measured beside accuracy: representation `drift` on so many held-out old samples after every update, and
    before every session the `distances` of about so many stored samples to their prototypes, class by class.
    """

    drift: int = 0
    distances: int = 500
    head: int = 100  # classes with more training samples than this are the head of a long tail


@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run is saved: after so many `seconds`, 0 for after every update. A finished run keeps its last state
    (network, buffer, means, generators) or nothing but its results.
    """

    seconds: float = 60.0
    keep: Literal["state", "nothing"] = "state"


@dataclass(frozen=True)
class Config:
    """One run."""

    name: str = "run"
    policy: Part = Part("grasp")
    learner: Part = Part("siesta")
    rehearsal: Literal["latent", "veridical"] = "latent"
    seed: int = 0
    log: str | None = None  # where else sessions are told of: tensorboard, wandb, mlflow, separated by commas
    data: DataConfig = DataConfig()
    stream: StreamConfig = StreamConfig()
    network: Part = Part("mobilenet_v3_large")
    codec: Part = Part("opq")
    base: BaseConfig = BaseConfig()
    buffer: BufferConfig = BufferConfig()
    budget: BudgetConfig = BudgetConfig()
    optimiser: Optimiser = field(default_factory=Optimiser)
    stop: StopConfig = StopConfig()
    measure: MeasureConfig = MeasureConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    execution: Execution = field(default_factory=lambda: Execution(device="auto"))

    @property
    def label(self) -> str:
        """The run in a table: its learner and policy.

        >>> Config(policy=Part("uniform_balanced", {"replace": False})).label
        'siesta + uniform_balanced(replace=False)'
        """
        return f"{self.learner} + {self.policy}"

    @property
    def path(self) -> str:
        """Where the run lies below a folder of runs: by name, learner, policy and seed, and a hash of its identity."""
        return f"{self.name}/{self.learner}/{self.policy}/seed-{self.seed}-{digest(identity(as_plain(self)))[:6]}"

    def with_(self, **changes: Any) -> Config:
        """The same settings with changes."""
        return replace(self, **changes)


def as_plain(config: Any) -> dict[str, Any]:
    """A tree of settings as nested dictionaries without None, fit for TOML; a part's parameters stand beside its name.

    >>> as_plain(BufferConfig("8MB", Part("reservoir", {"seed": 1})))
    {'capacity': '8MB', 'maintenance': {'name': 'reservoir', 'seed': 1}}
    """

    def plain(value: Any) -> Any:
        if not isinstance(value, dict):
            return list(value) if isinstance(value, tuple) else value
        if value.keys() == {"name", "parameters"}:
            return {"name": value["name"], **plain(value["parameters"])}
        return {key: plain(inner) for key, inner in value.items() if inner is not None}

    return dict(plain(asdict(config)))


def identity(plain: dict[str, Any]) -> dict[str, Any]:
    """Of plain settings those that decide what a run comes to; how often it is saved and who is told do not."""
    return {name: value for name, value in plain.items() if name not in ("checkpoint", "log")}


def digest(value: Any) -> str:
    """A hash of plain values: what a file depends on, made its name."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
