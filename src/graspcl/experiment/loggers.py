"""Log a run to TensorBoard, Weights & Biases or MLflow, into the run's folder. Nothing leaves the machine.

A logger that fails is noted and never stops a run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from graspcl.cache import lock
from graspcl.errors import GraspError, nearest, require
from graspcl.state import write_whole

Note = Callable[[str], None]


class Logger:
    """Receives a run's settings when it starts or resumes, each session, and the summary. By default it does nothing.

    A logger whose runs cannot resume logs everything in `end`, from metrics.jsonl (`replay`).
    """

    config: dict[str, Any]
    folder: Path

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """Log the settings of a run that starts or resumes in `folder`."""
        self.config, self.folder = config, folder

    def session(self, record: dict[str, Any]) -> None:
        """Log a session: a line of metrics.jsonl."""

    def end(self, summary: dict[str, Any]) -> None:
        """Log the summary."""

    def replay(self) -> Iterator[tuple[int, dict[str, float]]]:
        """Yield the number and the measurements of every session."""
        for record in read_metrics(self.folder):
            yield int(record["session"]), dict(numbers(record))


class TensorBoard(Logger):
    """Event files in logs/tensorboard: `tensorboard --logdir RUNS`."""

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")
        self._make: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._last = 0

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        self._writer = self._make(str(logs(folder) / "tensorboard"))
        self._last = logged(folder, "tensorboard").get("session", 0)
        if not self._last:
            self._writer.add_text("settings", "".join(f"    {key} = {value}\n" for key, value in by_name(config)))

    def session(self, record: dict[str, Any]) -> None:
        self._last = int(record["session"])
        for name, value in numbers(record):
            self._writer.add_scalar(f"session/{name}", value, self._last)
        self._writer.flush()  # the run may be killed

    def end(self, summary: dict[str, Any]) -> None:
        for name, value in numbers(summary):
            self._writer.add_scalar(f"summary/{name}", value, self._last)
        self._writer.close()


class WeightsAndBiases(Logger):
    """An offline run in logs/wandb, written when the run ends: `wandb sync RUN/logs/wandb/offline-run-*` uploads it.

    W&B writes nothing of an offline run that is killed, and starts another one when it resumes.
    """

    def __init__(self) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb: Any = require("wandb", "wandb")

    def end(self, summary: dict[str, Any]) -> None:
        quiet = self._wandb.Settings(
            silent=True, console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True
        )
        run = self._wandb.init(
            mode="offline", dir=str(logs(self.folder)), project=str(self.config.get("name", "graspcl")),
            config=self.config, settings=quiet, reinit="create_new",
        )  # fmt: skip
        for session, measured in self.replay():
            run.log(measured, step=session)
        run.summary.update({f"summary/{name}": value for name, value in numbers(summary)})
        run.finish()
        self._wandb.teardown()  # waits until the file is complete, which `finish` does not


class MLflow(Logger):
    """A store of files in logs/mlflow, written when the run ends: `mlflow ui --backend-store-uri RUN/logs/mlflow`."""

    def __init__(self) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Its database needs more than mlflow-skinny; files work if allowed.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow: Any = require("mlflow", "mlflow")

    def end(self, summary: dict[str, Any]) -> None:
        client = self._mlflow.MlflowClient(tracking_uri=(logs(self.folder) / "mlflow").resolve().as_uri())
        name = str(self.config.get("name", "graspcl"))
        found = client.get_experiment_by_name(name)
        run = client.create_run(found.experiment_id if found else client.create_experiment(name)).info.run_id
        for key, value in by_name(self.config):
            client.log_param(run, key, value)
        for session, measured in self.replay():
            for metric, number in measured.items():
                client.log_metric(run, metric, number, step=session)
        for metric, number in numbers(summary):
            client.log_metric(run, f"summary.{metric}", number)
        client.set_terminated(run)


LOGGERS: dict[str, Callable[[], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}
"""Loggers by name."""


class Loggers(Logger):
    """Several loggers as one. Each receives a session once, however often the run is stopped and resumed.

    logs/NAME.json in the run's folder tells how far each of them is.
    """

    def __init__(self, loggers: Mapping[str, Logger], note: Note) -> None:
        self.loggers, self.note = dict(loggers), note
        self.folder = Path()

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """Start all loggers; one that fails receives nothing more."""
        self.folder = folder
        self._each(lambda name, logger: logger.begin(config, folder))

    def session(self, record: dict[str, Any]) -> None:
        """Log a session to all that do not have it yet."""
        number = int(record["session"])

        def log(name: str, logger: Logger) -> None:
            if number > logged(self.folder, name).get("session", 0):
                _remember(self.folder, name, session=number)  # first: a missing point is better than a double one
                logger.session(record)

        self._each(log)

    def end(self, summary: dict[str, Any]) -> None:
        """Log the summary to all that do not have it yet."""

        def log(name: str, logger: Logger) -> None:
            if not logged(self.folder, name).get("ended"):
                logger.end(summary)
                _remember(self.folder, name, ended=True)

        self._each(log)

    def _each(self, log: Callable[[str, Logger], None]) -> None:
        for name, logger in list(self.loggers.items()):
            try:
                log(name, logger)
            except Exception as error:
                del self.loggers[name]
                self.note(f"{name} stops logging this run: {type(error).__name__}: {error}")


def make_loggers(names: str | None, note: Note = lambda text: None) -> Logger:
    """Make the loggers with these comma-separated names as one; `note` receives their failures.

    Raises:
        GraspError: a name does not exist, or its package is not installed.

    >>> make_loggers("tensorbord")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no logger 'tensorbord'; did you mean 'tensorboard'?
    """
    wanted = _listed(names)
    for name in wanted:
        if name not in LOGGERS:
            raise GraspError(f"there is no logger {name!r}; {nearest(name, LOGGERS)}")
    return Loggers({name: LOGGERS[name]() for name in wanted}, note)


def catch_up(names: str | None, config: dict[str, Any], folder: Path, summary: dict[str, Any], note: Note) -> None:
    """Log the end of a finished run to loggers that have only its sessions, because the run was killed just then."""
    states = {name: logged(folder, name) for name in _listed(names)}
    waiting = [name for name, state in states.items() if state and not state.get("ended")]
    if not waiting:
        return
    try:
        with lock(folder / ".lock", wait=False):
            logger = make_loggers(",".join(waiting), note)
            logger.begin(config, folder)
            for record in read_metrics(folder):
                logger.session(record)
            logger.end(summary)
    except (GraspError, OSError, ValueError) as error:  # the run itself is finished
        note(f"{', '.join(waiting)} could not log the end of the run: {error}")


def _listed(names: str | None) -> list[str]:
    return [*dict.fromkeys(name.strip() for name in (names or "").split(",") if name.strip())]


# -- what loggers share ------------------------------------------------------------------------------------------------


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl of a run."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def logs(folder: Path) -> Path:
    """Return the folder in which the loggers of a run write."""
    place = folder / "logs"
    place.mkdir(parents=True, exist_ok=True)
    return place


def logged(folder: Path, name: str) -> dict[str, Any]:
    """Return how far a logger is: its last `session`, and whether it has the end."""
    try:
        found = json.loads((folder / "logs" / f"{name}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(folder: Path, name: str, **progress: Any) -> None:
    content = json.dumps({**logged(folder, name), **progress}).encode()
    write_whole(logs(folder) / f"{name}.json", lambda file: file.write(content))


def numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a record, except the number of the session.

    >>> dict(numbers({"session": 1, "accuracy": 50.0, "loss": None, "policy": "grasp", "updates": 5}))
    {'accuracy': 50.0, 'updates': 5.0}
    """
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and name != "session" and math.isfinite(value):
            yield name, float(value)


def by_name(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings by their dotted names.

    >>> dict(by_name({"seed": 0, "buffer": {"capacity": "8MB"}}))
    {'seed': 0, 'buffer.capacity': '8MB'}
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from by_name(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
