"""A finished run opened again: its learner as it was when the last session ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graspcl.codec import Codec, Encoded, Identity
from graspcl.data import Groceries, Samples
from graspcl.errors import GraspError
from graspcl.experiment import texts
from graspcl.experiment.backbone import build_network, make_codec
from graspcl.experiment.check import check
from graspcl.experiment.config import Config, Part
from graspcl.experiment.folder import RunFolder
from graspcl.experiment.progress import Progress, Silent
from graspcl.experiment.settings import from_plain, read_toml
from graspcl.experiment.start import make_learner, ready
from graspcl.learner import Learner
from graspcl.policy import policies


def reopen(folder: Path, progress: Progress | None = None) -> Learner:
    """The learner of the finished run in `folder`: network, buffer, policy and generators as they ended.

    Its data must still be where they were, and its state kept (`checkpoint.keep` "state", which is the default).
    `graspcl.experiment.load_learner` does without the data.
    """
    config, state = finished(folder)
    try:
        check(config)
        start = ready(config, progress or Silent())
    except GraspError as error:
        raise GraspError(f"the run in {folder} cannot be reopened: {error}") from error
    if state["start"] != start.key:
        raise GraspError(
            f"the run in {folder} cannot be reopened: its data, network or codec are not those that it began with"
        )
    return restored(config, state["learner"], len(start.samples.classes))


def finished(folder: Path) -> tuple[Config, dict[str, Any]]:
    """The settings of the finished run in `folder`, and the state that it ended in."""
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
    return config, state


def restored(config: Config, state: dict[str, Any], classes: int) -> Learner:
    """The learner of these settings, made for so many `classes`, in a `state` that its `state_dict` gave."""
    policy = policies.create(config.policy.name, **config.policy.parameters)
    codec = _codec(config, state["buffer"]["codec"] or {})
    learner = make_learner(config, build_network(config), codec, policy, classes)
    learner.load_state_dict(state)
    return learner


def keeps_whole(config: Config) -> bool:
    """Whether the run saw all of its images' shorter side, as `Samples.whole` of its data said."""
    return Groceries.whole if config.data.path == "groceries" else Samples.whole


def _codec(config: Config, state: dict[str, Any]) -> Codec:
    """A codec that can take the `state`."""
    if config.rehearsal == "veridical":
        read_texts = config.network.name in texts.NETWORKS
        return Identity() if read_texts else Encoded(config.data.pixels, whole=keeps_whole(config))
    part = config.codec
    if "centroids" in state:  # those of a codec from a file of weights decide what the settings leave open
        codebooks, size, _ = state["centroids"].shape
        part = Part(part.name, {**part.parameters, "codebooks": codebooks, "size": size})
    return make_codec(part)
