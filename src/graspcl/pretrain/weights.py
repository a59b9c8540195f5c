"""Weights files: safetensors, and torch's state dicts, read without executing code from them."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from graspcl.codec import Codec
from graspcl.errors import GraspError
from graspcl.model import SplitNetwork
from graspcl.state import write_whole

Names = tuple[str, ...]

CODEC = "codec."  # what the names of a codec's tensors start with
STATES = ("_extra_state", "num_batches_tracked")  # generators and counters, which are not part of a weights file
_KEY = "graspcl"  # of the JSON in a safetensors header
# Where training programs put the state dict within what they save.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "network")


@dataclass(frozen=True)
class LoadReport:
    """Which tensors of a file were loaded into a network. As text, it is one sentence."""

    loaded: tuple[str, ...]
    """Names in the network."""
    missing: tuple[str, ...] = ()
    """Tensors of the network that are not in the file."""
    unexpected: tuple[str, ...] = ()
    """Tensors of the file that are not in the network, or have another shape there."""
    head: str = ""
    """Why the head was not loaded, if it was not."""

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        parts += [f"{len(self.missing)} missing ({_few(self.missing)})"] if self.missing else []
        parts += [f"{len(self.unexpected)} not used ({_few(self.unexpected)})"] if self.unexpected else []
        return "; ".join([*parts, *([self.head] if self.head else [])])


def load_weights(
    network: SplitNetwork,
    path: str | Path,
    *,
    part: Literal["network", "body"] = "network",
    prefix: str = "",
    strict: bool = True,
    resize_head: bool = False,
) -> LoadReport:
    """Load the weights at `path` into `network`: a safetensors file, or a state dict saved by torch.

    Tensors are matched by name. In the body, the leading "frozen." or "plastic." is ignored. So a file also fits the
    network's veridical form, and a network split elsewhere if its layers are the same on both sides, as in
    efficientnet_lite0. After an error the network is unchanged.

    Args:
        network: the network to load into.
        path: the file.
        part: "body" leaves the head as it is.
        prefix: removed from the file's names, for example "module.".
        strict: raise an error for missing or unexpected tensors; else only report them.
        resize_head: load a head with another number of rows; else it stays as it is.

    Returns:
        A report of what was loaded.

    >>> import tempfile
    >>> from graspcl.model import vector_network
    >>> make = lambda seed, classes: vector_network(4, classes=classes, generator=torch.Generator().manual_seed(seed))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_weights(make(0, 3), Path(folder) / "weights.safetensors")
    ...     print(load_weights(make(1, 5), Path(folder) / "weights.safetensors"))
    4 tensors loaded; the head was not loaded: it has 5 rows, the file's 3
    """
    given = {name.removeprefix(prefix): value for name, value in read_weights(path).items()}
    own = {name: value for name, value in network.state_dict().items() if not name.endswith(STATES)}
    head = "" if part == "network" else "the head was not loaded"
    rows = given.get("head.weight")
    if not head and rows is not None and len(rows) != network.head.classes and not resize_head:
        head = f"the head was not loaded: it has {network.head.classes} rows, the file's {len(rows)}"
    if head:
        own, given = _without_head(own), _without_head(given)
    matched, missing, unexpected = _match(own, given, resize_head)
    if not matched:
        raise GraspError(f"{path} has none of the network's tensors{_hint(given, own, prefix)}")
    if strict and (missing or unexpected):
        raise GraspError(_mismatch(path, missing, unexpected) + _hint(given, own, prefix))
    network.load_state_dict({**network.state_dict(), **matched})
    return LoadReport(tuple(matched), missing, unexpected, head)


def save_weights(
    network: SplitNetwork, path: str | Path, codec: Codec | None = None, settings: Mapping[str, Any] | None = None
) -> None:
    """Write a network, a codec, and `settings` as JSON in the header, to one safetensors file, atomically."""
    tensors = {name: value for name, value in network.state_dict().items() if not name.endswith(STATES)}
    header: dict[str, Any] = {"settings": dict(settings or {})}
    if codec is not None:
        tensors |= {CODEC + name: torch.as_tensor(value) for name, value in codec.state_dict().items()}
        header["codec"] = {"name": codec.name, **_parameters(codec)}
    content = save(
        {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}, {_KEY: json.dumps(header)}
    )
    path = Path(path)
    try:
        write_whole(path, lambda file: file.write(content))
    except OSError as error:
        raise GraspError(f"the weights cannot be written to {path}: {error.strerror}") from error


def read_header(path: str | Path) -> dict[str, Any]:
    """Return what `save_weights` stored with the tensors: `settings`, and `codec` if there is one."""
    try:
        header: dict[str, Any] = json.loads(read_safetensors(Path(path))[1][_KEY])
    except (KeyError, ValueError) as error:
        raise GraspError(f"{path} was not written by graspcl: it has no settings in its header") from error
    return header


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return all tensors of a weights file by name, on the CPU. Its first bytes show the format."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            start = file.read(9)
    except OSError as error:
        raise GraspError(f"the weights {path} cannot be read: {error.strerror}") from error
    if start[8:9] == b"{":
        tensors, _ = read_safetensors(path)
        return {name: value for name, value in tensors.items() if not name.startswith(CODEC)}
    if start.startswith((b"PK", b"\x80")):
        return _read_torch(path)
    raise GraspError(f"{path} contains no weights: it is neither a safetensors file nor a state dict saved by torch")


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise GraspError(f"the weights {path} are damaged or not a safetensors file: {error}") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise GraspError(
            f"{path} contains more than tensors: reading it would execute code from the file, which is refused. "
            "Save the state dict alone: torch.save(network.state_dict(), path)"
        ) from error
    except Exception as error:  # of many kinds, depending on where the file breaks off
        raise GraspError(
            f"the weights {path} are damaged: {(str(error).splitlines() or [type(error).__name__])[0]}"
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise GraspError(f"{path} must contain a state dict of names and tensors, got {type(state).__name__}")
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def _match(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], resize_head: bool
) -> tuple[dict[str, Tensor], Names, Names]:
    """Return the given tensors under the network's names, what is missing, and what does not fit."""
    by_body = {_body_name(name): name for name in own}
    rows = ("head.weight", "head.bias") if resize_head and {"head.weight", "head.bias"} <= given.keys() else ()
    matched, wrong, unexpected = {}, set(), []
    for name, value in given.items():
        target = name if name in own else by_body.get(_body_name(name), "")
        if target and (
            own[target].shape == value.shape or (target in rows and own[target].shape[1:] == value.shape[1:])
        ):
            matched[target] = value
        elif target:
            wrong.add(target)
            unexpected.append(f"{name} {list(value.shape)} instead of {list(own[target].shape)}")
        elif not name.endswith(STATES):
            unexpected.append(name)
    return matched, tuple(name for name in own if name not in matched and name not in wrong), tuple(unexpected)


def _body_name(name: str) -> str:
    """Return a layer's name wherever the network is split; plain numbers restart in each part, so they stay as is."""
    # In the veridical form, both parts are within the plastic one.
    bare = name.removeprefix("plastic.").removeprefix("frozen.").removeprefix("plastic.")
    return name if bare.partition(".")[0].isdecimal() else bare


def _without_head(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in tensors.items() if not name.startswith("head.")}


def _parameters(codec: Codec) -> dict[str, Any]:
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(codec) if dataclasses.is_dataclass(codec) else ()
    return {field.name: getattr(codec, field.name) for field in fields if field.init}


def _mismatch(path: str | Path, missing: Names, unexpected: Names) -> str:
    parts = [f"it lacks {len(missing)} tensors ({_few(missing)})"] if missing else []
    parts += [f"it has {len(unexpected)} that do not fit ({_few(unexpected)})"] if unexpected else []
    return f"{path} does not fit the network: {' and '.join(parts)}; strict=False loads what fits"


def _hint(given: Mapping[str, Tensor], own: Mapping[str, Tensor], prefix: str) -> str:
    """Suggest a prefix that all names of the file share and the network's do not."""
    shared = next(iter(given), "").partition(".")[0] + "."
    if all(name.startswith(shared) for name in given) and not any(name.startswith(shared) for name in own):
        return f". All its names start with {prefix + shared!r}; pass that as prefix"
    return ""


def _few(names: Names) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
