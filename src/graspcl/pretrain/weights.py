"""Weights files: safetensors, and torch's state dicts, read without executing code from them."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from graspcl.codec import Codec, codecs, described
from graspcl.errors import GraspError
from graspcl.files import open_regular
from graspcl.integrity import Damaged, pack_tensors, read_tensors
from graspcl.limits import unpacks_too_far
from graspcl.model import SplitNetwork
from graspcl.state import write_output

Names = tuple[str, ...]
Tensors = Mapping[str, Tensor]

STATES = ("_extra_state", "num_batches_tracked")  # generators and counters, which are not part of a weights file
_CODEC = "codec."  # what the names of a codec's tensors start with
# Where training programs put the state dict within what they save.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "network")


@dataclass(frozen=True)
class LoadReport:
    """Which tensors of a file were loaded into a network. As text, it is one sentence."""

    loaded: tuple[str, ...]  # names in the network
    missing: tuple[str, ...] = ()  # tensors of the network that are not in the file
    unexpected: tuple[str, ...] = ()  # tensors of the file that are not in the network, or have another shape there
    head: str = ""  # why the head was not loaded, if it was not

    def __str__(self) -> str:
        counts = _counted({"missing": self.missing, "not used": self.unexpected})
        return "; ".join(filter(None, [f"{len(self.loaded)} tensors loaded", *counts, self.head]))


def load_weights(
    network: SplitNetwork,
    path: str | Path,
    *,
    part: Literal["network", "body"] = "network",
    prefix: str = "",
    strict: bool = True,
) -> LoadReport:
    """Load the weights at `path` into `network`: a safetensors file, or a state dict saved by torch.

    Tensors are matched by name. In the body, the leading "frozen." or "plastic." is ignored. So a file also fits the
    network's veridical form, and a network split elsewhere if its layers are the same on both sides, as in
    efficientnet_lite0. A head with another number of rows is not loaded. After an error the network is unchanged.

    Args:
        part: "body" leaves the head as it is.
        prefix: removed from the file's names, for example "module.".
        strict: raise an error for missing or unexpected tensors; else only report them.

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
    rows, head = given.get("head.weight"), ""
    if part == "body":
        head = "the head was not loaded"
    elif rows is not None and len(rows) != network.head.classes:
        head = f"the head was not loaded: it has {network.head.classes} rows, the file's {len(rows)}"
    if head:
        own, given = (
            {name: value for name, value in tensors.items() if not name.startswith("head.")} for tensors in (own, given)
        )
    matched, missing, unexpected = _match(own, given)
    hint = _hint(given, own, prefix)
    if not matched:
        raise GraspError(f"{path} has none of the network's tensors{hint}")
    if strict and (missing or unexpected):
        counts = " and ".join(_counted({"tensors are missing": missing, "do not fit": unexpected}))
        raise GraspError(f"{path} does not fit the network: {counts}; strict=False loads what fits{hint}")
    if broken := [name for name, value in matched.items() if not value.isfinite().all()]:
        raise GraspError(
            f"{path} has weights that are NaN or infinite, in {', '.join(broken[:3])}; use a file that has none"
        )
    network.load_state_dict({**network.state_dict(), **matched})
    return LoadReport(tuple(matched), missing, unexpected, head)


def save_weights(
    network: SplitNetwork, path: str | Path, codec: Codec | None = None, settings: Mapping[str, Any] | None = None
) -> None:
    """Write a network, a codec, and `settings` as JSON in the header, to one safetensors file, atomically."""
    tensors = {name: value for name, value in network.state_dict().items() if not name.endswith(STATES)}
    header: dict[str, Any] = {"settings": dict(settings or {})}
    if codec is not None:
        tensors |= {_CODEC + name: torch.as_tensor(value) for name, value in codec.state_dict().items()}
        header["codec"] = described(codec)
    tensors = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    try:
        write_output(path, lambda file: file.write(pack_tensors(tensors, header)))
    except OSError as error:
        raise GraspError(f"the weights cannot be written to {path}: {error.strerror}") from error


def read_header(path: str | Path) -> dict[str, Any]:
    """Return what `save_weights` stored with the tensors: `settings`, and `codec` if there is one."""
    _, header = _read_safetensors(path)
    if "settings" not in header:
        raise GraspError(f"{path} was not written by graspcl: it has no settings in its header")
    return header


def load_codec(path: str | Path) -> Codec | None:
    """Return the trained codec that `save_weights` stored with a network, or None if there is none."""
    parameters = read_header(path).get("codec")
    if parameters is None:
        return None
    codec = codecs.create(**parameters)
    tensors, _ = _read_safetensors(path)
    codec.load_state_dict({n.removeprefix(_CODEC): value for n, value in tensors.items() if n.startswith(_CODEC)})
    return codec


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return all tensors of a weights file by name, on the CPU. Its first bytes show the format."""
    path = Path(path)
    try:
        with open_regular(path) as file:
            start = file.read(9)
    except OSError as error:
        raise GraspError(f"the weights {path} cannot be read: {error.strerror}") from error
    if start[8:9] == b"{":
        tensors, _ = _read_safetensors(path)
        return {name: value for name, value in tensors.items() if not name.startswith(_CODEC)}
    if start.startswith((b"PK", b"\x80")):
        return _read_torch(path)
    raise GraspError(f"{path} contains no weights: it is neither a safetensors file nor a state dict saved by torch")


def _read_safetensors(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        tensors, header, _ = read_tensors(Path(path))
        return tensors, header
    except (OSError, Damaged) as error:
        raise GraspError(f"the weights {path} are damaged or not a safetensors file: {error}") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        if zipfile.is_zipfile(path):  # torch stores tensors as they are; a packed file may be a bomb
            with zipfile.ZipFile(path) as archive:
                fault = unpacks_too_far(path.stat().st_size, sum(member.file_size for member in archive.infolist()))
            if fault:
                raise ValueError(fault)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise GraspError(
            f"{path} contains more than tensors: reading it would execute code from the file, which is refused. "
            "Save the state dict alone: torch.save(network.state_dict(), path)"
        ) from error
    except Exception as error:  # of many kinds, depending on where the file breaks off
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise GraspError(f"the weights {path} are damaged: {reason}") from error
    for wrapper in _WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not any(isinstance(value, Tensor) for value in state.values()):
        raise GraspError(f"{path} must contain a state dict of names and tensors, got {type(state).__name__}")
    return {str(name): value for name, value in state.items() if isinstance(value, Tensor)}


def _match(own: Tensors, given: Tensors) -> tuple[dict[str, Tensor], Names, Names]:
    """Return the given tensors under the network's names, what is missing, and what does not fit."""
    by_body = {_body_name(name): name for name in own}
    matched, missing, unexpected = {}, dict.fromkeys(own), []
    for name, value in given.items():
        target = name if name in own else by_body.get(_body_name(name), "")
        missing.pop(target, None)
        if target and own[target].shape == value.shape:
            matched[target] = value
        elif target:
            unexpected.append(f"{name} {list(value.shape)} instead of {list(own[target].shape)}")
        elif not name.endswith(STATES):
            unexpected.append(name)
    return matched, tuple(missing), tuple(unexpected)


def _body_name(name: str) -> str:
    """Return a layer's name wherever the network is split; plain numbers restart in each part, so they stay as is."""
    # In the veridical form, both parts are within the plastic one.
    bare = name.removeprefix("plastic.").removeprefix("frozen.").removeprefix("plastic.")
    return name if bare.partition(".")[0].isdecimal() else bare


def _hint(given: Tensors, own: Tensors, prefix: str) -> str:
    """Suggest a prefix that all names of the file share and the network's do not."""
    shared = next(iter(given), "").partition(".")[0] + "."
    if all(name.startswith(shared) for name in given) and not any(name.startswith(shared) for name in own):
        return f". All its names start with {prefix + shared!r}; pass that as prefix"
    return ""


def _counted(kinds: Mapping[str, Names]) -> list[str]:
    """Return the number and the first names of each kind that has some."""
    few = {kind: ", ".join(names[:3]) + ", …" * (len(names) > 3) for kind, names in kinds.items()}
    return [f"{len(names)} {kind} ({few[kind]})" for kind, names in kinds.items() if names]
