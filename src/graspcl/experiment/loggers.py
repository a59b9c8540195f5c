"""Runs told to TensorBoard, Weights & Biases or MLflow, into the run's folder; nothing leaves the machine.

A logger hears of a run's begin, of each session and of its end. What goes wrong in one is noted and never stops a run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from graspcl.cache import alone
from graspcl.errors import GraspError, nearest, require
from graspcl.state import write_whole

Tell = Callable[[str], None]


class Logger(Protocol):
    """Someone who keeps what a run measures."""

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """A run with these settings begins or goes on in a folder."""

    def session(self, record: dict[str, Any]) -> None:
        """What a session brought: a line of metrics.jsonl."""

    def end(self, summary: dict[str, Any]) -> None:
        """What the run came to."""


def make_loggers(names: str | None, tell: Tell = lambda text: None) -> Logger:
    """The loggers with these comma-separated names as one; `tell` is told of what goes wrong in one of them.

    A name that does not exist, or a package that is not installed, is an error.

    >>> make_loggers("tensorbord")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no logger 'tensorbord'; did you mean 'tensorboard'?
    """
    wanted = _listed(names)
    for name in wanted:
        if name not in LOGGERS:
            raise GraspError(f"there is no logger {name!r}; {nearest(name, LOGGERS)}")
    return Together({name: LOGGERS[name]() for name in wanted}, tell)


def catch_up(names: str | None, config: dict[str, Any], folder: Path, summary: dict[str, Any], tell: Tell) -> None:
    """Tell the end of a finished run to those that heard of its sessions alone, since the run was killed just then."""
    heard = {name: remembered(folder, name) for name in _listed(names)}
    waiting = [name for name, notes in heard.items() if notes and not notes.get("ended")]
    if not waiting:
        return
    try:
        with alone(folder):
            logger = make_loggers(",".join(waiting), tell)
            logger.begin(config, folder)
            for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
                logger.session(json.loads(line))
            logger.end(summary)
    except (GraspError, OSError, ValueError) as error:  # the run itself is finished
        tell(f"{', '.join(waiting)} could not be told of the end: {error}")


def _listed(names: str | None) -> list[str]:
    return [*dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip())]


class Together:
    """Several loggers as one. A session is told to each once, however often the run is stopped and goes on.

    Each has a file logs/NAME.json in the run's folder, which says how far it was told.
    """

    def __init__(self, loggers: Mapping[str, Logger], tell: Tell) -> None:
        self.loggers, self.tell = dict(loggers), tell
        self._folder = Path()

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """As for one; where it fails, that logger hears no more."""
        self._folder = folder
        self._each(lambda name, logger: logger.begin(config, folder))

    def session(self, record: dict[str, Any]) -> None:
        """As for one, unless it was told of that session before."""
        number = int(record["session"])

        def say(name: str, logger: Logger) -> None:
            if number > remembered(self._folder, name).get("session", 0):
                remember(
                    self._folder, name, session=number
                )  # before: a point may rather be missing than be there twice
                logger.session(record)

        self._each(say)

    def end(self, summary: dict[str, Any]) -> None:
        """As for one, unless it was told of the end before."""

        def say(name: str, logger: Logger) -> None:
            if not remembered(self._folder, name).get("ended"):
                logger.end(summary)
                remember(self._folder, name, ended=True)

        self._each(say)

    def _each(self, say: Callable[[str, Logger], None]) -> None:
        for name, logger in list(self.loggers.items()):
            try:
                say(name, logger)
            except Exception as error:
                del self.loggers[name]
                self.tell(f"{name} is told no more of this run: {type(error).__name__}: {error}")


class TensorBoard:
    """Event files in logs/tensorboard: `tensorboard --logdir RUNS`."""

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")
        self._make: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._last = 0

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """Settings are a text."""
        self._writer = self._make(str(logs(folder) / "tensorboard"))
        self._last = remembered(folder, "tensorboard").get("session", 0)
        if not self._last:
            self._writer.add_text("settings", "".join(f"    {key} = {value}\n" for key, value in flat(config)))

    def session(self, record: dict[str, Any]) -> None:
        """A point of each curve."""
        self._last = int(record["session"])
        for name, value in numbers(record):
            self._writer.add_scalar(f"session/{name}", value, self._last)
        self._writer.flush()  # a run may be killed

    def end(self, summary: dict[str, Any]) -> None:
        """One point each."""
        for name, value in numbers(summary):
            self._writer.add_scalar(f"summary/{name}", value, self._last)
        self._writer.close()


class WeightsAndBiases:
    """An offline run in logs/wandb, made when the run ends: `wandb sync RUN/logs/wandb/offline-run-*` uploads it.

    Not before: of an offline run whose process is killed W&B has nothing on the disk, and one that goes on is another.
    """

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb: Any = require("wandb", "wandb")

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """Nothing is written yet."""
        self._config, self._folder = config, folder

    def session(self, record: dict[str, Any]) -> None:
        """metrics.jsonl has it until the end."""

    def end(self, summary: dict[str, Any]) -> None:
        """A step for each session, and W&B's summary."""
        lines = (self._folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        quiet = self._wandb.Settings(
            silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        run = self._wandb.init(
            mode="offline", dir=str(logs(self._folder)), project=str(self._config.get("name", "graspcl")),
            config=self._config, settings=quiet, reinit="create_new",
        )  # fmt: skip
        for record in map(json.loads, lines):
            run.log(dict(numbers(record)), step=int(record["session"]))
        run.summary.update({f"summary/{name}": value for name, value in numbers(summary)})
        run.finish()
        self._wandb.teardown()  # waits until the file is whole; `finish` does not


class MLflow:
    """A store of files in logs/mlflow: `mlflow ui --backend-store-uri RUN/logs/mlflow`."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Its database needs more than mlflow-skinny; files it takes when asked so.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow: Any = require("mlflow", "mlflow")

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """Settings are parameters; a run that goes on is the same run to MLflow."""
        self._client = self._mlflow.MlflowClient(tracking_uri=(logs(folder) / "mlflow").resolve().as_uri())
        own = remembered(folder, "mlflow").get("run")
        if own is None:
            name = str(config.get("name", "graspcl"))
            found = self._client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self._client.create_experiment(name)
            own = self._client.create_run(experiment).info.run_id
            for key, value in flat(config):
                self._client.log_param(own, key, value)
            remember(folder, "mlflow", run=own)
        self._run = str(own)

    def session(self, record: dict[str, Any]) -> None:
        """A step of each metric."""
        for name, value in numbers(record):
            self._client.log_metric(self._run, name, value, step=int(record["session"]))

    def end(self, summary: dict[str, Any]) -> None:
        """Metrics of one step each."""
        for name, value in numbers(summary):
            self._client.log_metric(self._run, f"summary.{name}", value)
        self._client.set_terminated(self._run)


LOGGERS: dict[str, Callable[[], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
"""Loggers by name."""


# -- what loggers share ------------------------------------------------------------------------------------------------


def logs(folder: Path) -> Path:
    """Where the loggers of a run write."""
    place = folder / "logs"
    place.mkdir(parents=True, exist_ok=True)
    return place


def remembered(folder: Path, name: str) -> dict[str, Any]:
    """What a logger noted of a run when it was last told of it."""
    try:
        found = json.loads((folder / "logs" / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(folder: Path, name: str, **notes: Any) -> None:
    """Add to what a logger noted."""
    content = json.dumps({**remembered(folder, name), **notes}).encode()
    write_whole(logs(folder) / f"{name}.json", lambda file: file.write(content))


def numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """What can be a point of a curve: finite numbers, but for the session's own.

    >>> dict(numbers({"session": 1, "accuracy": 50.0, "loss": None, "policy": "grasp", "updates": 5}))
    {'accuracy': 50.0, 'updates': 5.0}
    """
    for name, value in values.items():
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and name != "session"
            and math.isfinite(value)
        ):
            yield name, float(value)


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings by their dotted names.

    >>> dict(flat({"seed": 0, "buffer": {"capacity": "8MB"}}))
    {'seed': 0, 'buffer.capacity': '8MB'}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
