"""State on disk: files written whole or not at all, and nested states as safetensors. Nothing is pickled.

States are verified when they are read (see `graspcl.integrity`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.files import check_regular
from graspcl.integrity import reading_tensors, tensor_parts

_OWN = r".+\.(safetensors|npz|json|jsonl|toml|txt)"  # files of runs and of the cache

if TYPE_CHECKING:  # loaded when a state is saved or read: writing plain files needs no torch
    import torch


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file in one step, creating its folders.

    The content goes to a file beside `path`, is synced, and then replaces `path`. If that fails with an OSError,
    `path` is unchanged. Processes that read or map the old file keep it as it was. A device or pipe, such as
    /dev/stdout, is not replaced: that is an OSError. A link is replaced, and the file that it leads to stays.
    """
    if os.path.lexists(path) and not path.is_symlink():
        check_regular(path, os.lstat(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = partial_name(path)
    with writing(part) as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)


def write_output(path: str | Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file that the user named, as `write_whole`, but keep a link: the file that it leads to is replaced."""
    write_whole(Path(os.path.realpath(path)), write)


def partial_name(path: Path) -> Path:
    """Return a name for the partial file of `path` that no other writer has, in this process or another one.

    >>> partial_name(Path("a")) == partial_name(Path("a"))
    False
    """
    return path.with_name(f"{path.name}.{secrets.randbits(48)}.part")


@contextlib.contextmanager
def writing(part: Path, mode: str = "xb") -> Iterator[IO[bytes]]:
    """Open a partial file, and delete it if anything fails."""
    try:
        with open(part, mode) as file:
            yield file
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Make the new name of a file last through a power failure, where the system can do that."""
    try:
        opened = os.open(folder, os.O_RDONLY)
    except OSError:  # this system does not open folders, or does not let us read this one
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot sync folders
            raise
    finally:
        os.close(opened)


def pack_state(state: dict[str, Any]) -> list[Any]:
    """Return nested dictionaries and lists of numbers, strings, arrays and tensors as the parts of a file, in order.

    Parts are bytes and the memory of the state's own arrays: nothing is copied. Equal states give equal files.
    `load_state` reads such a file.
    """
    tensors: dict[str, torch.Tensor | Array] = {}
    skeleton = _flatten(state, "", tensors)
    return tensor_parts(tensors, skeleton)


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a state (see `pack_state`) to `path` in one step."""
    parts = pack_state(state)
    try:
        write_whole(path, lambda file: file.writelines(parts))
    except OSError as error:
        raise GraspError(f"the checkpoint {path} cannot be written: {error.strerror}") from error


def copied(state: Any) -> Any:
    """Return a state whose arrays and tensors are copies, so that it stays as it is."""
    import torch

    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        values = [copied(value) for value in state]
        return values if isinstance(state, list) else tuple(values)
    if isinstance(state, torch.Tensor):
        return state.detach().clone()
    return state.copy() if isinstance(state, np.ndarray) else state


def load_state(
    path: Path, note: Callable[[str], None] | None = None, verify: bool = True, copy: bool = False
) -> dict[str, Any]:
    """Read what `save_state` wrote, bit by bit the same.

    Args:
        path: the file.
        note: called if an earlier version wrote it without a checksum, so that it cannot be verified.
        verify: False for a file that the caller has just verified in another way.
        copy: copy arrays and tensors while a thread verifies them. Otherwise they are views of the file.

    Raises:
        GraspError: there is no such file, or it is damaged.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_state(Path(folder) / "a", {"x": np.arange(3), "y": {"n": 2**100, 1: [None, 0.5]}})
    ...     load_state(Path(folder) / "a")
    {'x': array([0, 1, 2]), 'y': {'n': 1267650600228229401496703205376, 1: [None, 0.5]}}
    """
    try:
        with reading_tensors(path, verify) as (tensors, header, sealed):
            state: dict[str, Any] = _unflatten(header, tensors)
            state = copied(state) if copy else state
    except FileNotFoundError as error:
        raise GraspError(f"there is no checkpoint at {path}") from error
    except (OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise GraspError(f"the checkpoint {path} is damaged or not written by graspcl: {error}") from error
    if not sealed and note is not None:
        note(f"{path} is of an earlier version and has no checksum: it is used unverified")
    return state


def drop_unfinished(folder: Path, names: str = _OWN) -> None:
    """Delete the partial files that killed processes left in a folder. No other process may be writing there.

    Args:
        folder: where they are; it may not exist.
        names: pattern of the names of whole files. Other programs have partial files too, and those stay.
    """
    own = re.compile(rf"({names})\.\d{{1,15}}\.part")
    for part in folder.glob("*.part"):
        if own.fullmatch(part.name):
            with contextlib.suppress(OSError):
                part.unlink()


def _flatten(value: Any, path: str, tensors: dict[str, torch.Tensor | Array]) -> Any:
    import torch

    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, (str, int))]:
            raise GraspError(f"the key {odd[0]!r} at {path} cannot be part of a checkpoint; use text or integers")
        return {"dict": [[key, _flatten(inner, f"{path}/{key}", tensors)] for key, inner in value.items()]}
    if isinstance(value, (list, tuple)):
        return {"list": [_flatten(inner, f"{path}/{number}", tensors) for number, inner in enumerate(value)]}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        name = f"{len(tensors)}:{path}"  # numbered, since paths need not be unique
        if isinstance(value, torch.Tensor):
            tensors[name] = value.detach().cpu().contiguous()
            return {"tensor": name}
        if value.dtype.kind not in "biuf" or value.itemsize > 8:
            raise GraspError(f"an array of {value.dtype} at {path} cannot be part of a checkpoint")
        native = value.dtype.newbyteorder("=")
        tensors[name] = np.asarray(value, native, order="C")
        return {"array": name}
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise GraspError(f"{type(value).__name__} at {path} cannot be part of a checkpoint")


def _unflatten(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {key: _unflatten(inner, tensors) for key, inner in content}
    if kind == "list":
        return [_unflatten(inner, tensors) for inner in content]
    return tensors[content] if kind == "tensor" else tensors[content].numpy()
