"""The tree of settings. It is the Python API, the TOML file and the command line at once.

The first setting of a group stands for the group: `--buffer 0.2GB` means `--buffer.capacity 0.2GB`. A group with
`parameters` chooses a registered part by its first setting; further settings of the group go to that part.
This module loads no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from graspcl.checks import Count, Natural, NonNegative, Positive, Range, Side, Updates, checked
from graspcl.errors import GraspError

if TYPE_CHECKING:
    from graspcl.model import Execution


@checked
@dataclass(frozen=True)
class Part:
    """A registered part by its name, with the parameters that differ from its defaults."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.parameters.get("weighting") == "reciprocal_shift":  # its former name: one run, not two
            object.__setattr__(self, "parameters", {**self.parameters, "weighting": "published"})

    def __str__(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in self.parameters.items())
        return f"{self.name}({given})" if given else self.name


# "auto" stands for a value that follows from the data; `graspcl.experiment.automatic` finds it before a run starts.
AUTO = "auto"


@checked
@dataclass(frozen=True)
class DataConfig:
    """Where samples come from."""

    path: str = ""  # folder or zip file of images, table of texts, folder of tables, hf:NAME, or a registered name
    pixels: Annotated[Side, AUTO] = 224  # side of the square that images are cut and resized to
    classes: Count | None = None  # number of classes to use, the first in stream.order; all by default
    per_class: Count | None = None  # training samples per class at most; with `tasks`, per class and task
    test_per_class: Count | None = None  # test samples per class at most
    val_mapping: str | None = None  # image folders: file that maps validation images to classes
    test_split: str | None = None  # images to test on: name of a folder; with lists of images, val or test
    # share of each class to test on where the data have no test samples; a tenth by default
    test_share: Annotated[float, Range(0, 1, above=True, below=True), AUTO] | None = None
    # share of each class of the training samples to test on instead of the test samples, to choose settings
    validation: Annotated[float, Range(0, 1, above=True, below=True)] | None = None
    text: str = "text"  # tables: column of the texts, or auto
    label: str = "label"  # tables: column of the labels, or auto
    tasks: str | None = None  # names of tables in the folder `path`, as "ag,yelp,yahoo"; each is a task
    parameters: dict[str, Any] = field(default_factory=dict)  # of a registered source


@checked
@dataclass(frozen=True)
class StreamConfig:
    """In which order samples arrive."""

    kind: str = "class_incremental"  # a registered stream (`graspcl list streams`)
    base_classes: Annotated[int, Range(0), AUTO] = 0  # classes known before the stream starts
    sessions: Annotated[int, Range(1), AUTO] = 1  # number of sessions in which the other classes arrive
    order: str = "random"  # class order: random, sorted, imagenet (the reference's), or a file with one class per line
    blurry: Annotated[float, Range(0, 1, below=True)] = 0.0  # share of samples that arrive in another session
    imbalance: Annotated[float, Range(1)] | None = None  # size of the largest class over the smallest
    chunk: Count = 512  # samples that arrive at a time
    file: str | None = None  # a saved stream to use instead
    parameters: dict[str, Any] = field(default_factory=dict)  # further parameters of a registered stream


@checked
@dataclass(frozen=True)
class OptimiserConfig:
    """Settings of `graspcl.learner.Optimiser`, without torch."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 1.6
    momentum: Annotated[float, Range(0, 1, below=True)] = 0.9
    weight_decay: NonNegative = 1e-5
    layer_decay: Annotated[float, Range(0, 1, above=True)] = 0.99
    schedule: Literal["onecycle", "linear", "constant"] = "onecycle"
    warmup: Count | None = None


@checked
@dataclass(frozen=True)
class BaseConfig:
    """What happens before the stream: the network passes its stages, then base samples are stored and rehearsed."""

    # In order: weights(file=FILE), and swav and supervised, which train on the base classes (`graspcl list stages`).
    stages: tuple[Part, ...] = ()
    passes: NonNegative = 0.0  # of uniform rehearsal over the stored base samples
    optimiser: OptimiserConfig | None = None  # of that rehearsal; by default that of the sessions
    data: str | None = None  # images of the preset in weights(preset=NAME); by default those of the preset

    @property
    def weights(self) -> str | None:
        """The file of weights to start from, if any."""
        return next((one.parameters.get("file") for one in self.stages if one.name == "weights"), None)

    @property
    def preset(self) -> Part | None:
        """The stage that loads the weights of a preset's base training, if any."""
        return next((one for one in self.stages if one.name == "weights" and "preset" in one.parameters), None)

    @property
    def trains(self) -> bool:
        """Whether the network is trained on the base classes."""
        return any(one.name != "weights" for one in self.stages)


@checked
@dataclass(frozen=True)
class BufferConfig:
    """What is stored: a number of samples, a size such as "8MB", everything (none), or auto; and what is evicted."""

    capacity: Count | str | None = None
    maintenance: Part = Part("largest_class")
    # of the samples of a session: within the capacity, or extra until the session ends; by default as the learner does
    new_samples: Literal["within", "extra"] | None = None
    # under torchrun: each rank holds a part of the codes, and the capacity is that of all; by default each holds all
    shards: Literal["ranks"] | None = None


@checked
@dataclass(frozen=True)
class BudgetConfig:
    """What a session spends: `updates` mini-batches, or `passes` over the stored samples; times `times`."""

    updates: Updates | None = None
    passes: NonNegative = 1.0
    batch_size: Count = 64
    times: Positive = 1.0
    growth: NonNegative | None = None  # session t spends 1 + growth (t - 1) times as much; 1 as IDBR, 0 by default


@checked
@dataclass(frozen=True)
class StopConfig:
    """How a session ends: after `patience` evaluations on held-out samples without a better accuracy, if given."""

    patience: Count | None = None
    every: Count = 25  # updates between evaluations
    share: Annotated[float, Range(0, 1, above=True, below=True)] = 0.05  # of arriving samples, never rehearsed
    keep: Literal["best"] | None = None  # the weights of the best evaluation; by default the last


@checked
@dataclass(frozen=True)
class MeasureConfig:
    """What is measured beside accuracy."""

    drift: Natural = 0  # held-out old samples whose representation drift is measured after every update
    distances: Natural = 500  # stored samples, about, whose distances to prototypes are measured before every session
    head: int = 100  # classes with more training samples than this form the head of a long tail
    coded: bool = False  # predict from inputs that pass through the codec, as stored samples do


@checked
@dataclass(frozen=True)
class CheckpointConfig:
    """How often a run is saved, in seconds (0: after every update), and whether a finished run keeps its last state."""

    seconds: NonNegative = 60.0
    keep: Literal["state", "nothing"] = "state"


@checked
@dataclass(frozen=True)
class ExecutionConfig:
    """Settings of `graspcl.model.Execution`."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    device: str = "auto"
    channels_last: bool = True

    def make(self) -> Execution:
        """Make the execution; refuse what this machine cannot do."""
        from graspcl.model import Execution

        return Execution(**asdict(self)).resolve()


@checked
@dataclass(frozen=True)
class Config:
    """All settings of one run; `log` lists loggers: tensorboard, wandb, mlflow, separated by commas.

    >>> Config(policy=Part("uniform_balanced", {"replace": False})).label
    'aligned + uniform_balanced(replace=False)'
    """

    name: str = "run"
    policy: Part = Part("grasp")
    learner: Part = Part("aligned")
    rehearsal: Literal["latent", "veridical"] = "latent"
    seed: Natural = 0
    log: str | None = None
    data: DataConfig = field(default_factory=DataConfig)
    stream: StreamConfig = field(default_factory=StreamConfig)
    network: Part = Part("mobilenet_v3_large")
    codec: Part = Part("opq")
    base: BaseConfig = BaseConfig()
    buffer: BufferConfig = BufferConfig()
    budget: BudgetConfig = BudgetConfig()
    optimiser: OptimiserConfig = OptimiserConfig("adamw", 3e-4, weight_decay=0.01, layer_decay=1.0, schedule="linear")
    stop: StopConfig = StopConfig()
    measure: MeasureConfig = MeasureConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    execution: ExecutionConfig = ExecutionConfig()

    @property
    def label(self) -> str:
        """Return learner and policy, if it has one, as tables show them."""
        return f"{self.learner} + {self.policy}" if self.rehearses else str(self.learner)

    @property
    def folder(self) -> str:
        """Return the folder of all runs of this name, below a folder of runs."""
        return _folder_name(self.name)

    @property
    def path(self) -> str:
        """Return the run's folder below a folder of runs: name, learner, policy, seed and a digest of the settings.

        A learner that does not rehearse has no policy.
        """
        from graspcl.settings.read import settled

        parts = [self.folder, _folder_name(str(self.learner))]
        parts += [_folder_name(str(self.policy))] if self.rehearses else []
        return f"{'/'.join(parts)}/seed-{self.seed}-{digest(identity(as_plain(settled(self))))[:6]}"

    @property
    def rehearses(self) -> bool:
        """Return whether the learner rehearses samples that the policy selects."""
        if self.learner.name in ("aligned", "siesta"):  # the usual ones do; asking others loads torch
            return True
        from graspcl.learner import learners

        return self.learner.name not in learners or learners.get(self.learner.name).rehearses

    @property
    def reads(self) -> str:
        """Return what the network reads: "images", "texts" or "vectors"."""
        from graspcl.model import networks

        return str(networks.declared(self.network.name, "reads") or "images")


def _folder_name(text: str) -> str:
    """Return `text` as the name of one folder: "mir(candidates=40)" stays, "../../x" becomes ".._.._x"."""
    name = re.sub(r"[^\w.()=, +-]", "_", text)
    if not name.strip(". "):
        raise GraspError(f"name must contain a letter or a digit, since it names a folder, got {text!r}")
    return name


def as_plain(value: Any) -> Any:
    """Return settings as nested dictionaries without None, fit for TOML; parameters are beside the other settings.

    >>> as_plain(BufferConfig("8MB", Part("reservoir", {"seed": 1})))
    {'capacity': '8MB', 'maintenance': {'name': 'reservoir', 'seed': 1}}
    """
    if is_dataclass(value):
        values = {item.name: getattr(value, item.name) for item in fields(value)}
        parameters = values.pop("parameters", {})
        value = {**values, **parameters}
    if isinstance(value, Mapping):
        return {key: as_plain(inner) for key, inner in value.items() if inner is not None}
    return [as_plain(inner) for inner in value] if isinstance(value, tuple | list) else value


# What stood for `base.stages = []` before there were stages. Names of run folders are digests of it.
_NO_STAGES = {"method": "none", "epochs": 50, "batch_size": 256, "lr": 0.2}


def identity(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the plain settings that decide a run's result; where it lies, and how often it is saved, does not."""
    base, measure = dict(plain["base"]), dict(plain["measure"])
    buffer = {name: value for name, value in plain["buffer"].items() if name != "shards"}
    if measure["coded"]:  # as all runs were before the setting existed
        del measure["coded"]
    if not base["stages"]:
        base = {**base, **_NO_STAGES}
        del base["stages"]
    learner = dict(plain["learner"])
    if learner["name"] == "derpp" and not learner.get("teacher"):
        learner["loss"] = 2  # it changed, so that folders of earlier runs are not taken for repetitions
    decisive = {**plain, "learner": learner, "base": base, "measure": measure, "buffer": buffer}
    return {name: value for name, value in decisive.items() if name not in ("checkpoint", "log")}


def digest(value: Any) -> str:
    """Return a hash of plain values, as a name for what depends on them."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
