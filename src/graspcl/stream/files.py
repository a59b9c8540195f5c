"""Streams in files: one .npz each, nothing pickled, so that a stream can be shown, shared and learned again.

header      JSON: format, version, name of the kind of stream, chunk, fingerprint of the data set
base        [n] indices
sessions    [n] indices of all sessions, one after the other
lengths     [T] samples of each session
labels      [n] classes of all samples, the base first                    if known
classes     [K] classes in their order, and home [K], their sessions      if labels are known
tasks       [T] task of each session                                      if sessions are tasks
ids         [n] names of all samples, the base first                      if given
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graspcl.errors import GraspError
from graspcl.files import write_whole
from graspcl.stream.base import Stream

Array = np.ndarray[Any, Any]
FORMAT, VERSION = "graspcl stream", 1


def save_stream(
    stream: Stream, path: str | Path, fingerprint: str | None = None, ids: Sequence[str] | Array | None = None
) -> None:
    """Write what a stream will tell out, from its beginning, to a file; how far it has come is not part of it.

    `fingerprint` names the data set, and `ids` [N] the samples of the whole of it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_stream(Stream([0], [[2, 1]]), f"{folder}/stream.npz", fingerprint="toys")
    ...     load_stream(f"{folder}/stream.npz", fingerprint="toys").sessions
    [array([2, 1])]
    """
    header = {"format": FORMAT, "version": VERSION, "name": stream.name, "chunk": stream.chunk}
    arrays: dict[str, Any] = {
        "header": np.array(json.dumps({**header, "fingerprint": fingerprint})),
        "base": stream.base,
        "sessions": np.concatenate([np.empty(0, np.int64), *stream.sessions]),
        "lengths": np.array([len(session) for session in stream.sessions], np.int64),
    }
    if stream.labels is not None:
        arrays["labels"] = stream.labels
        arrays["classes"] = np.array(list(stream.home), np.int64)
        arrays["home"] = np.array(list(stream.home.values()), np.int64)
    if stream.tasks is not None:
        arrays["tasks"] = np.array(stream.tasks, np.int64)
    names = stream.ids if ids is None else _ids(ids, stream.samples)
    if names is not None:
        arrays["ids"] = names
    try:
        write_whole(Path(path), lambda file: np.savez_compressed(file, **arrays))
    except OSError as error:
        raise GraspError(f"the stream cannot be written to {path}: {error.strerror}") from error


def load_stream(path: str | Path, fingerprint: str | None = None) -> Stream:
    """The stream in a file, at its beginning; refused where `fingerprint` is given and the file's is another.

    >>> load_stream("nowhere.npz")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no saved stream at nowhere.npz
    """
    try:
        arrays = _read(Path(path))
        header = json.loads(str(arrays["header"][()]))
        foreign = header["format"] != FORMAT
    except FileNotFoundError as error:
        raise GraspError(f"there is no saved stream at {path}") from error
    except Exception as error:  # zip files, arrays and JSON each fail in their own ways
        raise GraspError(f"{path} is damaged, or not a saved stream: {error}") from error
    if foreign:
        raise GraspError(f"{path} is not a saved stream")
    if header.get("version") != VERSION:
        raise GraspError(f"{path} has version {header.get('version')} of the format; this graspcl reads {VERSION}")
    if fingerprint is not None and header.get("fingerprint") != fingerprint:
        made_for = header.get("fingerprint") or "data that it does not name"
        raise GraspError(f"the stream in {path} belongs to other data: it was made for {made_for}, not {fingerprint}")
    try:
        return _rebuilt(header, arrays)
    except Exception as error:  # whatever is wrong with the content, the file is to blame
        raise GraspError(f"{path} is damaged: {error}") from error


def _read(path: Path) -> dict[str, Array]:
    # not np.load, which takes any file for a pickle and says so
    with open(path, "rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


def _rebuilt(header: dict[str, Any], arrays: dict[str, Array]) -> Stream:
    lengths, sessions = _whole(arrays, "lengths"), _whole(arrays, "sessions")
    if lengths.min(initial=0) < 0 or lengths.sum() != len(sessions):
        raise ValueError("its sessions are not as long as it says")
    parts = np.split(sessions, np.cumsum(lengths))[:-1]
    tasks = _whole(arrays, "tasks").tolist() if "tasks" in arrays else None
    stream = Stream(_whole(arrays, "base"), parts, header["chunk"], tasks=tasks)
    stream.name = str(header["name"])
    for name in {"labels", "ids"} & arrays.keys():
        if arrays[name].shape != stream.samples.shape:
            raise ValueError(f"it has {arrays[name].shape} {name} for {len(stream.samples)} samples")
    if "labels" in arrays:
        stream._know(_whole(arrays, "labels"))
        home = dict(zip(_whole(arrays, "classes").tolist(), _whole(arrays, "home").tolist(), strict=True))
        if home.keys() != stream.arrival.keys() or not set(home.values()) <= set(range(len(parts) + 1)):
            raise ValueError("its classes are not those of its samples")
        stream._settle(home)
    stream.ids = arrays.get("ids")
    return stream


def _whole(arrays: dict[str, Array], name: str) -> Array:
    if name not in arrays:
        raise ValueError(f"its {name} are missing")
    if arrays[name].dtype.kind != "i" or arrays[name].ndim != 1:
        raise ValueError(f"its {name} are not a list of whole numbers")
    return arrays[name].astype(np.int64)


def _ids(ids: Sequence[str] | Array, samples: Array) -> Array:
    names = np.asarray(ids).astype(np.str_)  # as text: objects would be pickled
    if names.ndim != 1 or (len(samples) and not 0 <= samples.min() <= samples.max() < len(names)):
        raise GraspError(f"ids must name every sample of the data set; {names.shape} do not reach all of the stream's")
    return names[samples]
