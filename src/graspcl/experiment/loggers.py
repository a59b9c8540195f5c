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
from graspcl.files import read_regular
from graspcl.integrity import Damaged, read_object, read_text, seal_object
from graspcl.settings.read import flatten
from graspcl.state import write_whole

Note = Callable[[str], None]


class Logger:
    """Receives a run's settings when it starts or resumes, each session, and the summary. By default it does nothing.

    A logger whose runs cannot resume logs everything in `end`, from metrics.jsonl.
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


class TensorBoard(Logger):
    """Event files in logs/tensorboard: `tensorboard --logdir RUNS`."""

    def __init__(self) -> None:
        require("tensorboard", "tensorboard")
        self._make: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._last = 0

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        self._writer = self._make(str(folder / "logs" / "tensorboard"))
        self._last = logged(folder, "tensorboard").get("session", 0)
        if not self._last:
            lines = (f"    {key} = {value}\n" for key, value in flatten(config).items())
            self._writer.add_text("settings", "".join(lines))

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
        quiet = {"silent": True, "console": "off", "disable_git": True, "x_disable_stats": True, "x_disable_meta": True}
        run = self._wandb.init(
            mode="offline", dir=str(self.folder / "logs"), project=str(self.config.get("name", "graspcl")),
            config=self.config, settings=self._wandb.Settings(**quiet), reinit="create_new",
        )  # fmt: skip
        for record in read_metrics(self.folder):
            run.log(dict(numbers(record)), step=int(record["session"]))
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
        client = self._mlflow.MlflowClient(tracking_uri=(self.folder / "logs" / "mlflow").resolve().as_uri())
        name = str(self.config.get("name", "graspcl"))
        found = client.get_experiment_by_name(name)
        run = client.create_run(found.experiment_id if found else client.create_experiment(name)).info.run_id
        for key, value in flatten(self.config).items():
            client.log_param(run, key, value)
        for record in read_metrics(self.folder):
            for metric, number in numbers(record):
                client.log_metric(run, metric, number, step=int(record["session"]))
        for metric, number in numbers(summary):
            client.log_metric(run, f"summary.{metric}", number)
        client.set_terminated(run)


LOGGERS: dict[str, Callable[[], Logger]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "mlflow": MLflow}


class Loggers(Logger):
    """Several loggers as one. Each receives a session once: logs/NAME.json in the run's folder tells how far it is."""

    def __init__(self, loggers: Mapping[str, Logger], note: Note) -> None:
        self.loggers, self.note = dict(loggers), note

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        self._each(lambda name, logger: logger.begin(config, folder))

    def session(self, record: dict[str, Any]) -> None:
        number = int(record["session"])

        def log(name: str, logger: Logger) -> None:
            if number > logged(self.folder, name).get("session", 0):
                _remember(self.folder, name, session=number)  # first: a missing point is better than a double one
                logger.session(record)

        self._each(log)

    def end(self, summary: dict[str, Any]) -> None:
        def log(name: str, logger: Logger) -> None:
            if not logged(self.folder, name).get("ended"):
                logger.end(summary)
                _remember(self.folder, name, ended=True)

        self._each(log)

    def _each(self, log: Callable[[str, Logger], None]) -> None:
        """Log to all; one that fails receives nothing more."""
        for name, logger in list(self.loggers.items()):
            try:
                log(name, logger)
            except Exception as error:
                del self.loggers[name]
                self.note(f"{name} stops logging this run: {type(error).__name__}: {error}")


def make_loggers(names: str | None, note: Note = lambda text: None) -> Logger:
    """Make the loggers with these comma-separated names as one; `note` receives their failures.

    >>> make_loggers("tensorbord")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no logger 'tensorbord'; did you mean 'tensorboard'?
    """
    if unknown := [name for name in _listed(names) if name not in LOGGERS]:
        raise GraspError(f"there is no logger {unknown[0]!r}; {nearest(unknown[0], LOGGERS)}")
    return Loggers({name: LOGGERS[name]() for name in _listed(names)}, note)


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


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl of a run."""
    return [json.loads(line) for line in read_text(folder / "metrics.jsonl").splitlines()]


def logged(folder: Path, name: str) -> dict[str, Any]:
    """Return how far a logger is: its last `session`, and whether it has the end."""
    try:
        return read_object(read_regular(folder / "logs" / f"{name}.json"))
    except (OSError, Damaged):
        return {}


def _remember(folder: Path, name: str, **progress: Any) -> None:
    content = seal_object({**logged(folder, name), **progress})
    write_whole(folder / "logs" / f"{name}.json", lambda file: file.write(content))


def numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a record, except the number of the session.

    >>> dict(numbers({"session": 1, "accuracy": 50.0, "loss": None, "policy": "grasp", "updates": 5}))
    {'accuracy': 50.0, 'updates': 5.0}
    """
    for name, value in values.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and name != "session" and math.isfinite(value):
            yield name, float(value)
