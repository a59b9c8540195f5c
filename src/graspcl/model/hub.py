"""Files in Hugging Face's format: in a folder, downloaded before, or on the hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from graspcl.errors import GraspError, require

T = TypeVar("T")

_PATIENCE = 3.0  # seconds in which the hub must answer
_INSTEAD = "give --network.model FOLDER, or leave network.model out for MiniLM, which comes by pip"


def read_pretrained(source: str | Path, read: Callable[[bool], T]) -> T:
    """What `read(local)` gives for `source`, a folder or a name on the hub; with `local` it must not ask the hub.

    The hub is asked only for names that `read` does not find on this machine, and only if it answers at once: the
    libraries themselves would try again and again, and say so each time.

    >>> read_pretrained("/no/such/folder", lambda local: "files")
    Traceback (most recent call last):
        ...
    graspcl.errors.GraspError: there is no folder /no/such/folder
    """
    if Path(source).is_dir():
        return read(True)
    name = str(source)
    if isinstance(source, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise GraspError(f"there is no folder {name}")
    try:
        return read(True)
    except Exception:  # of many kinds, by what it lacks
        _ask_hub(name)
    return read(False)


def _ask_hub(name: str) -> None:
    """Refuse a name that the hub does not know, or where it does not answer."""
    hub = require("huggingface_hub", "text")
    try:
        hub.model_info(name, timeout=_PATIENCE)
    except (hub.errors.RepositoryNotFoundError, hub.errors.HFValidationError) as error:
        raise GraspError(f"there is no folder {name}, and no model of that name on the hub; {_INSTEAD}") from error
    except Exception as error:
        raise GraspError(f"there is no folder {name}, and the hub cannot be reached; {_INSTEAD}") from error
