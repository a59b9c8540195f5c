"""Checksums of files that are written and read again: damage is found when a file is read, and never used.

Arrays (.npz) and tensors (.safetensors) carry their checksum inside. Texts, which people read, have theirs in
checksums.json beside them. The checksum is xxh3-128: it finds damage, not forgery. Files of earlier versions have none
and are read unverified.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graspcl.checks import Array
from graspcl.errors import GraspError
from graspcl.files import mapped, open_regular, read_regular
from graspcl.limits import unpacks_too_far

if TYPE_CHECKING:
    import torch

CHECKSUMS = "checksums.json"  # of the texts in its folder, by name
_HEADER = "graspcl"  # the JSON object in the header of a safetensors file
_KEY = "checksum"  # in JSON objects, also those in headers
_MARK = b"xxh3-128:"  # in the comment of a zip file, before the digits
_COMMENT = len(_MARK) + 32
# Types in the order of their tensors in a file, and the names of those that are not a letter and a number of bits.
_KINDS = (
    "uint64", "int64", "float64", "complex64", "float32", "uint32", "int32", "bfloat16", "float16", "uint16", "int16",
    "float8_e8m0fnu", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool",
)  # fmt: skip
_STORED_AS = {
    "bool": "BOOL", "bfloat16": "BF16", "float8_e8m0fnu": "F8_E8M0", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_HEADER_LIMIT = 100_000_000  # bytes of a header that safetensors reads
_ALONE = 2**24  # bytes of tensors from which a thread of its own is worth its start
_DIFFERS = "its content does not match its checksum"


class Damaged(ValueError):
    """A file is not what was written. The message tells what is wrong with it, without its name."""


def checksum(*parts: Any) -> str:
    """Return the xxh3-128 of texts, bytes or contiguous arrays, one after the other, in hexadecimal.

    >>> checksum(b"ab", "c") == checksum(b"abc")
    True
    """
    return checksum_of(parts)


def checksum_of(parts: Iterable[Any]) -> str:
    """Return the `checksum` of parts that are made one after the other."""
    import xxhash

    digest = xxhash.xxh3_128()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
    return digest.hexdigest()


# -- JSON objects ------------------------------------------------------------------------------------------------------


def seal_object(values: dict[str, Any]) -> bytes:
    """Return a JSON object as bytes, with its checksum as the last value.

    >>> read_object(seal_object({"session": 1}))
    {'session': 1}
    """
    return json.dumps({**values, _KEY: checksum(json.dumps(values))}).encode()


def read_object(content: bytes) -> dict[str, Any]:
    """Return the values of `seal_object`, or of a plain JSON object.

    Raises:
        Damaged: the content is no such object, or does not match its checksum.
    """
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(str(error) or "it is nested too deeply") from error
    if not isinstance(found, dict):
        raise Damaged("it is not an object")
    expected = found.pop(_KEY, None)
    if expected is not None and expected != checksum(json.dumps(found)):
        raise Damaged(_DIFFERS)
    return found


# -- arrays ------------------------------------------------------------------------------------------------------------


def pack_arrays(arrays: dict[str, Array], compress: bool = True) -> bytes:
    """Return a .npz file as bytes. The checksum of the archive is its zip comment, which other readers ignore."""
    content = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(content, **arrays)  # type: ignore[arg-type]
    archive = content.getvalue()
    comment = _MARK + checksum(archive).encode()
    return archive[:-2] + len(comment).to_bytes(2, "little") + comment  # an archive ends with the comment's length


def read_arrays(path: Path) -> dict[str, Array]:
    """Read a .npz file of `pack_arrays`, or one without a checksum.

    Raises:
        Damaged: it is no such file, or does not match its checksum.
        OSError: it cannot be opened.
    """
    content = memoryview(read_regular(path, "table"))
    archive, length, comment = content[: -_COMMENT - 2], content[-_COMMENT - 2 : -_COMMENT], content[-_COMMENT:]
    if bytes(comment[: len(_MARK)]) == _MARK:
        expected = _COMMENT.to_bytes(2, "little") + _MARK + checksum(archive, b"\0\0").encode()
        if bytes(length) + bytes(comment) != expected:
            raise Damaged(_DIFFERS)
    elif bytes(content[-22:-18]) != b"PK\5\6" or any(content[-2:]):  # as archives without a comment end
        raise Damaged("it is no .npz file, or its end is missing")
    try:
        # Not np.load, which takes any other file for a pickle.
        with np.lib.npyio.NpzFile(io.BytesIO(content), allow_pickle=False) as file:
            members = [] if file.zip is None else file.zip.infolist()
            if fault := unpacks_too_far(len(content), sum(member.file_size for member in members)):
                raise Damaged(fault)
            return dict(file)
    except Exception as error:  # zip files and arrays fail in many ways
        raise Damaged(str(error) or type(error).__name__) from error


def place_in_archive(path: Path, name: str, size: int) -> int | None:
    """Return the first byte of an array of `size` bytes in a .npz file that was read; None if it is compressed."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        member = archive.getinfo(f"{name}.npy")
        file.seek(member.header_offset + 26)
        lengths = file.read(2), file.read(2)  # of its name and of what follows that in its header
        begin = member.header_offset + 30 + sum(int.from_bytes(length, "little") for length in lengths)
        return begin + member.file_size - size if member.compress_type == zipfile.ZIP_STORED else None


# -- tensors -----------------------------------------------------------------------------------------------------------


def tensor_parts(tensors: Mapping[str, torch.Tensor | Array], header: dict[str, Any]) -> list[Any]:
    """Return a safetensors file in parts: tensors, and in its header a JSON object with the checksum of all.

    The tensors are contiguous, and the parts are their own memory: nothing is copied. Equal tensors give equal bytes,
    those that safetensors writes.
    """
    digest = _tensor_checksum(tensors, json.dumps(header))
    # One value alone: safetensors stores several in any order, and equal states must be equal files.
    about: dict[str, Any] = {"__metadata__": {_HEADER: json.dumps({**header, _KEY: digest})}}
    kinds = {name: _dtype(value) for name, value in tensors.items()}
    begin, parts = 0, []
    for name in sorted(tensors, key=lambda name: (_KINDS.index(kinds[name]), name.encode())):
        parts.append(_content(tensors[name]).reshape(-1).view(np.uint8))
        end = begin + parts[-1].nbytes
        kind = _STORED_AS.get(kinds[name]) or kinds[name][0].upper() + re.sub(r"\D", "", kinds[name])
        about[name] = {"dtype": kind, "shape": list(tensors[name].shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_LIMIT:
        raise GraspError(
            f"this state cannot be stored: its plain values and names of tensors take {len(text):,} bytes, and at most "
            f"{_HEADER_LIMIT:,} could be read again"
        )
    return [len(text).to_bytes(8, "little") + text, *parts]


def pack_tensors(tensors: Mapping[str, torch.Tensor | Array], header: dict[str, Any]) -> bytes:
    """Return the file of `tensor_parts` as bytes."""
    return b"".join(tensor_parts(tensors, header))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any], bool]:
    """Read a safetensors file; return its tensors, the header of `pack_tensors` if any, and whether it has a checksum.

    Raises:
        Damaged: it is no such file, or does not match its checksum.
        OSError: it cannot be opened.
    """
    with reading_tensors(path) as found:
        return found


@contextlib.contextmanager
def reading_tensors(path: Path, verify: bool = True) -> Iterator[tuple[dict[str, torch.Tensor], dict[str, Any], bool]]:
    """Give what `read_tensors` returns, to be copied while a thread verifies it: use nothing before the context ends.

    Args:
        path: the file.
        verify: compare the content with the checksum. Not needed for a file that was verified as a whole.

    Raises:
        Damaged: it is no such file, or, at the end of the context, it does not match its checksum.
        OSError: it cannot be opened.
    """
    from safetensors import SafetensorError, safe_open

    with mapped(path) if verify else open_regular(path):  # safetensors waits for a pipe, and dies of a failing disk
        pass
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_HEADER, "{}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        header = json.loads(text)
        expected = header.pop(_KEY, None)  # none in files of other programs and of earlier versions
    except (SafetensorError, ValueError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError) as error:
        raise Damaged(str(error) or type(error).__name__) from error
    if not verify or expected is None:
        yield tensors, header, expected is not None
        return
    before = text.rpartition(f', "{_KEY}": ')[0] + "}"  # as it was written; to write it again would take longer
    if sum(tensor.nbytes for tensor in tensors.values()) < _ALONE:
        found = _tensor_checksum(tensors, before)
        yield tensors, header, True
    else:
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(_tensor_checksum, tensors, before)
            yield tensors, header, True
        found = waiting.result()
    if found != expected:
        raise Damaged(_DIFFERS)


def _tensor_checksum(tensors: Mapping[str, torch.Tensor | Array], header: str) -> str:
    names = sorted(tensors)
    about = [[name, f"torch.{_dtype(tensors[name])}", list(tensors[name].shape)] for name in names]
    return checksum(f"[{json.dumps(about)}, {header}]", *(_content(tensors[name]) for name in names))


def _dtype(tensor: torch.Tensor | Array) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _content(tensor: torch.Tensor | Array) -> Array:
    """Return the memory of a contiguous tensor. A state has hundreds of them: the quick way is tried first."""
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        return tensor.numpy()
    except TypeError:  # a type that numpy does not have, such as bfloat16
        import torch

        return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()


# -- texts -------------------------------------------------------------------------------------------------------------


def listed_checksums(folder: Path) -> dict[str, list[str]]:
    """Return the valid checksums of each text in a folder; nothing if there is no checksums.json.

    A text that is about to be replaced has two: that of its old content and that of the new one.
    """
    try:
        return read_object(read_regular(folder / CHECKSUMS))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:  # callers name the text
        why = f"{CHECKSUMS} beside it cannot be opened ({error.strerror})"
        raise OSError(error.errno, why, error.filename) from error
    except Damaged as error:
        raise Damaged(f"{CHECKSUMS} is damaged ({error}); delete it to use the files beside it unverified") from None


def read_text(path: Path) -> str:
    """Read a text, and verify it if checksums.json lists it.

    Raises:
        Damaged: it does not match its checksum.
        OSError: it cannot be opened.
    """
    content = read_regular(path)
    valid = listed_checksums(path.parent).get(path.name)
    if valid is not None and checksum(content) not in valid:
        raise Damaged(f"{_DIFFERS}; restore it, or delete {CHECKSUMS} beside it if you changed it on purpose")
    return content.decode("utf-8")


def list_texts(folder: Path, texts: dict[str, bytes]) -> bytes:
    """Return checksums.json for a folder in which these texts are about to be written."""
    listed = listed_checksums(folder)
    for name, content in texts.items():
        try:
            before = checksum(read_regular(folder / name))
        except OSError:
            before = ""
        listed[name] = [checksum(content), *(one for one in listed.get(name, []) if one == before)]
    return seal_object(listed)
