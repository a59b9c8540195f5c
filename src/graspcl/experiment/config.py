"""The settings of a run: one tree of dataclasses, written into the run folder as TOML."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from graspcl.learner import Optimiser
from graspcl.model import Execution


@dataclass(frozen=True)
class StreamConfig:
    """Classes known at the start, and how many sessions bring the others."""

    base_classes: int
    sessions: int
    chunk: int = 512


@dataclass(frozen=True)
class BufferConfig:
    """What is kept: a number of samples, a size such as "8MB", or everything (None)."""

    capacity: int | str | None = None
    maintenance: str = "largest_class"


@dataclass(frozen=True)
class BudgetConfig:
    """What a session may spend: so many passes over the stored samples, in mini-batches."""

    passes: float = 1.0
    batch_size: int = 64


@dataclass(frozen=True)
class BaseConfig:
    """Base initialisation: supervised training on the base classes before the stream begins."""

    passes: float
    optimiser: Optimiser
    batch_size: int = 64


@dataclass(frozen=True)
class Config:
    """One run."""

    setup: str
    stream: StreamConfig
    buffer: BufferConfig
    budget: BudgetConfig
    base: BaseConfig
    optimiser: Optimiser
    policy: str = "grasp"
    policy_parameters: dict[str, Any] = field(default_factory=dict)
    learner: str = "siesta"
    learner_parameters: dict[str, Any] = field(default_factory=dict)
    rehearsal: Literal["latent", "veridical"] = "latent"
    execution: Execution = field(default_factory=lambda: Execution(device="cpu"))
    seed: int = 0

    @property
    def policy_label(self) -> str:
        """The policy as it is named in tables: with the parameters that are not its defaults.

        >>> from graspcl.experiment.setups import setups
        >>> setups["listings"].config(policy="uniform_balanced", policy_parameters={"replace": False}).policy_label
        'uniform_balanced(replace=False)'
        """
        return _label(self.policy, self.policy_parameters)

    @property
    def learner_label(self) -> str:
        """The learner as it is named in tables."""
        return _label(self.learner, self.learner_parameters)


def _label(name: str, parameters: dict[str, Any]) -> str:
    given = ", ".join(f"{key}={value}" for key, value in parameters.items())
    return f"{name}({given})" if given else name


def as_plain(config: Config) -> dict[str, Any]:
    """The tree as nested dictionaries without None, fit for TOML."""

    def prune(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: prune(inner) for key, inner in value.items() if inner is not None}
        return value

    plain: dict[str, Any] = prune(asdict(config))
    return plain
