"""A finished run opened again: its learner as it was when the last session ended."""

from __future__ import annotations

from pathlib import Path

from graspcl.errors import GraspError
from graspcl.experiment.check import check
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.progress import Progress, Silent
from graspcl.experiment.settings import from_plain, read_toml
from graspcl.experiment.start import new_learner, ready
from graspcl.learner import Learner


def reopen(folder: Path, progress: Progress | None = None) -> Learner:
    """The learner of the finished run in `folder`: network, buffer, policy and generators as they ended.

    Its data must still be where they were, and its state kept (`checkpoint.keep` "state", which is the default).
    """
    file = folder / "config.toml"
    if not file.is_file():
        raise GraspError(f"{folder} is not the folder of a run: it has no config.toml")
    config, place, damage = from_plain(read_toml(file), str(file)), RunFolder(folder), list[str]()
    if not place.finished:
        raise GraspError(f"the run in {folder} is not finished; the `graspcl run` that began it goes on with it")
    state = place.load_checkpoint(damage.append)
    if state is None:
        why = damage[0].partition(";")[0] if damage else "it kept no state; run it with --checkpoint.keep state"
        raise GraspError(f"the run in {folder} cannot be reopened: {why}")
    try:
        check(config)
        start = ready(config, progress or Silent())
    except GraspError as error:
        raise GraspError(f"the run in {folder} cannot be reopened: {error}") from error
    if state["start"] != start.key:
        raise GraspError(
            f"the run in {folder} cannot be reopened: its data, network or codec are not those that it began with"
        )
    learner = new_learner(config, start)
    learner.load_state_dict(state["learner"])
    return learner
