"""The settings of a new workspace: chosen from its first data, each with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np

from graspcl.buffer.capacity import parse_bytes
from graspcl.checks import Array, shown
from graspcl.codec import Auto, Codec, codecs
from graspcl.data import Samples
from graspcl.data.sources import data_sources, kind_of_files
from graspcl.errors import GraspError
from graspcl.experiment.automatic import resolve, stored_bytes
from graspcl.experiment.encoding import chosen_part, fitted_codec
from graspcl.experiment.prepare import make_learner
from graspcl.machine import give_back_memory
from graspcl.model import SplitNetwork, networks
from graspcl.progress import Progress
from graspcl.settings import preset
from graspcl.settings.config import Config
from graspcl.settings.read import change, replaced
from graspcl.workspace.arriving import naming_options
from graspcl.workspace.memory import new_network
from graspcl.workspace.version import Version

MEMORY = "64MB"  # of stored samples, by default
_ROOM = 2  # a codec is precise enough to be used without a trial if this many times the first samples fit into memory
_PRECISE = {"half": 2, "int8": 1}  # codecs that cost hardly any accuracy: bytes per number
# Half a pass of different samples: GRASP would begin with a pass over the memory, and had less accuracy (docs/log.md).
_POLICY = {"policy": "uniform_balanced", "policy.replace": False}
_STATIC = 256  # width of the static embeddings that networks of vectors read
_FITTED = 2_000  # samples at most that a codec is trained on


@naming_options()
def choose_settings(
    path: str, backbone: str | None, memory: str, pixels: int | None, seed: int, progress: Progress,
    text: str | None = None, label: str | None = None,
) -> Config:  # fmt: skip
    """Return the settings of a new workspace for the data at `path`; tell `progress` each choice with its reason."""
    if not isinstance(memory, str):
        raise GraspError(f"memory is a size such as '500MB', got {shown(memory)}")
    parse_bytes(memory)
    gives = data_sources.declared(path, "gives") if path in data_sources else kind_of_files(path)
    kind = "images" if gives == "images" else "texts"
    config = preset(kind, own_data=path, seed=seed)
    config = replaced(config, {
        "stream.base_classes": 1, "stream.sessions": 1, "data.test_share": None, "buffer.capacity": memory,
        **{f"data.{name}": column for name, column in (("text", text), ("label", label)) if column},
    })  # fmt: skip
    config = change(config, _POLICY)
    if backbone is not None:
        config = _with_backbone(config, backbone)
    if pixels is not None:
        config = change(config, {"data.pixels": pixels})
    progress.note(f"network = {config.network}: " + ("as given" if backbone else f"the default for {kind}"))
    return resolve(config, progress)


def _with_backbone(config: Config, backbone: str) -> Config:
    """Return settings with another network: its name, or a folder or name of a text encoder."""
    if backbone in networks or backbone.startswith("timm:"):
        width = {"network.dim": _STATIC} if "dim" in networks.parameters(backbone) else {}
        return change(config, {"network": backbone, **width})
    if config.reads == "texts":
        return change(config, {"network.model": backbone})
    networks.get(backbone)  # raises an error with the nearest name
    raise GraspError(f"there is no network {backbone}")


def new_version(config: Config, samples: Samples[Any], rows: Array, progress: Progress) -> Version:
    """Return a version that has learned nothing yet; its codec is chosen and trained on some of the samples."""
    network, backbone = new_network(config)
    network.execute(config.execution.make()).eval()
    config, codec = _choose_codec(config, network, samples, rows, progress)
    return Version(config, backbone, make_learner(config, network, codec, len(samples.classes)))


def _choose_codec(
    config: Config, network: SplitNetwork, samples: Samples[Any], rows: Array, progress: Progress
) -> tuple[Config, Codec]:
    """Return the settings with a codec, and the codec itself: the most precise that leaves room, or else `auto`."""
    memory, number, taken = config.buffer.capacity, len(rows), []
    if codecs.get(config.codec.name) is not codecs.get("half"):
        return config, codecs.create(config.codec.name, **config.codec.parameters)
    for name, width in _PRECISE.items():
        size = number * stored_bytes(config, samples, network, width)
        taken.append(f"{size / 1e6:,.1f} MB in {name}")
        if _ROOM * size <= parse_bytes(str(memory)):
            break
    else:
        name = "auto"
    progress.note(f"codec = {name}: {number:,} samples take {' and '.join(taken)}, for a memory of {memory}")
    if name == "half":
        return config, codecs.create(name)
    config = replaced(config, {"codec.name": name})
    some = rows[np.linspace(0, len(rows) - 1, min(_FITTED, len(rows))).astype(np.int64)]
    codec, _ = fitted_codec(config, samples, network, None, some, progress)
    give_back_memory()
    if not isinstance(codec, Auto):
        return config, codec
    part = chosen_part(codec)
    settings = {"codec.name": part.name, **{f"codec.{name}": value for name, value in part.parameters.items()}}
    return replaced(config, settings), codec.chosen
