"""Many runs: those that are finished are skipped, those that fail are listed with their reason, the rest go on."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from graspcl.errors import GraspError
from graspcl.experiment.config import Config
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.progress import Progress, Silent
from graspcl.experiment.run import held, run
from graspcl.experiment.start import check, forget, ready, start_key, start_state


@dataclass
class Outcome:
    """The folders of runs that are finished, and of those that are not, the reason."""

    finished: list[Path] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)


def sweep(
    configs: Sequence[Config], folder: Path, progress: Progress, workers: Executor, title: str = "runs"
) -> Outcome:
    """Run every one of `configs`, each in its own folder below `folder` (`Config.path`).

    What is misspelt or cannot work together is refused before anything is done. What several runs begin from is made
    once.
    """
    for one in {config.with_(seed=0).path: config for config in configs}.values():
        check(one)
    outcome, waiting = Outcome(), list(dict.fromkeys(configs_by_path(configs)))
    by_path = configs_by_path(configs)
    for path in list(waiting):
        place = folder / path
        if (place / "config.toml").exists() and held(RunFolder(place), by_path[path]) and RunFolder(place).finished:
            outcome.finished.append(place)
            waiting.remove(path)
    if outcome.finished:
        progress.note(f"{len(outcome.finished)} runs were finished before")
    if not waiting:
        return outcome
    forget()
    if by_path[waiting[0]].base.method in ("none", "weights"):
        ready(by_path[waiting[0]], progress)  # from here on the cache has the latents
    _work({path: by_path[path] for path in waiting}, folder, progress, workers, title, outcome)
    order = {folder / path: number for number, path in enumerate(by_path)}
    outcome.finished.sort(key=order.__getitem__)
    return outcome


def configs_by_path(configs: Sequence[Config]) -> dict[str, Config]:
    """Settings by the folder of their run; the same settings come once."""
    return {config.path: config for config in configs}


def _work(
    configs: dict[str, Config], folder: Path, progress: Progress, workers: Executor, title: str, outcome: Outcome
) -> None:
    together: dict[str, list[str]] = {}  # runs that start from the same state
    for path, config in configs.items():
        together.setdefault(start_key(config), []).append(path)
    runs: dict[Future[str], Path] = {}
    with progress.task(title, len(together) + len(configs)) as advance:
        try:
            bases = {workers.submit(_base_task, configs[paths[0]], folder): paths for paths in together.values()}
            for base in as_completed(bases):
                for path in bases[base]:
                    if reason := base.result():
                        outcome.failed[folder / path] = reason
                        advance(1)
                    else:
                        runs[workers.submit(_run_task, configs[path], folder)] = folder / path
                advance(1)
            for done in as_completed(runs):
                if reason := done.result():
                    outcome.failed[runs[done]] = reason
                else:
                    outcome.finished.append(runs[done])
                advance(1)
        except BrokenProcessPool as error:
            raise GraspError(
                "a worker process was ended from outside, perhaps for want of memory; finished runs stay, and the same "
                "command goes on with the others"
            ) from error


def _base_task(config: Config, folder: Path) -> str:
    """Make what a run begins from; returns why not, if it fails."""
    try:
        start_state(config, ready(config, Silent()), folder / config.name / "base", Silent())
    except GraspError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return ""


def _run_task(config: Config, folder: Path) -> str:
    try:
        run(config, folder / config.path, base=folder / config.name / "base")
    except GraspError as error:
        return str(error)
    except Exception:
        return traceback.format_exc()
    return ""
