"""One way to open images of any form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from graspcl.data.base import Samples
from graspcl.data.groceries import Groceries
from graspcl.data.images import ImageFolder
from graspcl.data.lists import ImageList, train_lists
from graspcl.data.trees import open_tree
from graspcl.errors import GraspError, nearest
from graspcl.registry import parameter_names

if TYPE_CHECKING:
    import torch


def open_images(path: str | Path, pixels: int = 224, **options: Any) -> Samples[torch.Tensor]:
    """The images at `path`, with the `options` of their class.

    They are an `ImageList` if there are lists such as Places_LT_train.txt or one is given as `train`, else an
    `ImageFolder`. "groceries" means `Groceries`, unless there is a folder of that name.

    >>> open_images("groceries", pixels=64)
    <Groceries 0.1.1: 14 classes, 732 train, 661 test>
    """
    kind = _kind(Path(path), "train" in options)
    valid = [name for name in parameter_names(kind) if name not in ("path", "root", "pixels")]
    for name in options:
        if name not in valid:
            hint = nearest(name, valid) if valid else "it has none"
            raise GraspError(f"{path}: {kind.__name__} has no option {name!r}; {hint}")
    return Groceries(pixels) if issubclass(kind, Groceries) else kind(path, pixels=pixels, **options)


def _kind(path: Path, has_list: bool) -> type[Groceries] | type[ImageList] | type[ImageFolder]:
    if str(path) == "groceries" and not path.exists():
        return Groceries
    return ImageList if has_list or train_lists(path, open_tree(path)) else ImageFolder
