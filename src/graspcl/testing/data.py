"""The contract of a data source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from graspcl.data import Samples
from graspcl.errors import GraspError
from graspcl.testing.common import global_chance_untouched


def check_data(samples: Samples[Any], again: Samples[Any] | None = None) -> None:
    """Assert what every data source promises.

    Args:
        samples: the source. At least one of its first and last training and test samples must be readable.
        again: the same source, loaded a second time. If given, it must contain the same samples.

    >>> class Words(Samples[list[str]]):
    ...     def read(self, indices):
    ...         return [["ant", "bee", "cod"][i] for i in self.check(indices)]
    >>> check_data(Words("words", "1", ["insect", "fish"], [0, 0, 1], ids=[7, 8, 9], train=[0, 2], test=[1]))
    """
    name, fingerprint = type(samples).__name__, samples.fingerprint()
    with global_chance_untouched(name):
        _check_arrays(samples, name)
        some = np.unique(np.concatenate([samples.train[:3], samples.train[-2:], samples.test[:3], samples.test[-2:]]))
        _check_reading(samples, name, some)
        _check_refusals(samples, name)
        _check_files(samples, name, some)
    assert samples.fingerprint() == fingerprint, f"{name} changes its fingerprint when it is read"
    if again is not None:
        assert again.fingerprint() == fingerprint, f"{name} has another fingerprint when it is loaded again"
        same = _equal(again.read_some(some)[0], samples.read_some(some)[0])
        assert same, f"{name} has other contents when loaded again"


def _check_arrays(samples: Samples[Any], name: str) -> None:
    for column in ("labels", "ids", "train", "test"):
        array = getattr(samples, column)
        assert isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1, (
            f"{name}.{column} must be a one-dimensional int64 array; call Samples.__init__"
        )
        assert not array.flags.writeable, f"{name}.{column} must be read-only"
    size, split = len(samples), np.concatenate([samples.train, samples.test])
    assert len(samples.labels) == len(samples.ids) == size, f"{name} must have one label and one id per sample"
    assert len(np.unique(samples.ids)) == size, f"{name} must have different ids"
    assert all(isinstance(each, str) for each in samples.classes), f"{name}.classes must be strings"
    assert len(set(samples.classes)) == len(samples.classes), f"{name}.classes must be different"
    assert np.isin(samples.labels, np.arange(len(samples.classes))).all(), f"{name}.labels must be positions in classes"
    assert np.isin(split, np.arange(size)).all(), f"{name}.train and {name}.test must be positions of samples"
    assert len(np.unique(split)) == len(split), f"{name}.train and {name}.test must be disjoint"
    assert len(samples.train), f"{name} must have training samples"
    assert len(samples.fingerprint()) == 16, f"{name}.fingerprint() must have 16 digits"


def _check_reading(samples: Samples[Any], name: str, some: np.ndarray[Any, Any]) -> None:
    contents, kept, problems = samples.read_some(some)
    assert len(contents) == len(kept) and len(kept) + len(problems) == len(some), (
        f"{name}.read_some must return the contents or a message for every sample"
    )
    assert len(kept), f"{name}: no sample is readable: {problems[:1]}"
    assert (np.diff(kept) > 0).all(), f"{name}.read_some must return ascending positions"
    good = some[kept]
    batch = samples.read(good)
    assert _equal(batch, contents), f"{name}.read and {name}.read_some must return the same contents"
    assert _equal(samples.read(good), batch), f"{name}.read must return the same contents each time"
    if isinstance(batch, torch.Tensor):
        images = batch.ndim == 4 and batch.shape[1] == 3 and batch.dtype == torch.uint8
        vectors = batch.ndim == 2 and not batch.is_complex() and batch.dtype != torch.bool
        assert images or vectors, f"{name}.read must return images uint8 [n, 3, H, W] or vectors [n, D]"
    else:
        assert isinstance(batch, list) and all(isinstance(text, str) for text in batch), (
            f"{name}.read must return a tensor or a list of texts"
        )
    order = [*reversed(range(len(good))), 0]  # backwards, and one of them twice
    expected = batch[order] if isinstance(batch, torch.Tensor) else [batch[place] for place in order]
    assert _equal(samples.read(good[order]), expected), f"{name}.read must follow the order of its indices"
    empty = samples.read([])
    same = type(empty) is type(batch) and getattr(empty, "shape", ())[1:] == getattr(batch, "shape", ())[1:]
    assert len(empty) == 0 and same, f"{name}.read([]) must return an empty batch of the same kind"


def _check_refusals(samples: Samples[Any], name: str) -> None:
    for wrong in ([len(samples)], [-1], [0.0], [True], [[0]]):
        for method in (samples.read, samples.read_some):
            try:
                method(wrong)
            except GraspError:
                continue
            raise AssertionError(f"{name}.{method.__name__} must refuse the indices {wrong}; call self.check(indices)")


def _check_files(samples: Samples[Any], name: str, some: np.ndarray[Any, Any]) -> None:
    """Sources of images may have files; all others refuse to name them."""
    try:
        codes, kept, problems = samples.encoded_some(some)
    except GraspError:
        return
    assert codes.dtype == object and len(codes) == len(kept) and len(kept) + len(problems) == len(some), (
        f"{name}.encoded_some must return a code or a message for every sample"
    )
    for code in codes:
        assert isinstance(code, bytes) or (isinstance(code, str) and Path(code).is_absolute()), (
            f"{name}.encoded_some must return the absolute path of an image, or its bytes"
        )


def _equal(one: Any, two: Any) -> bool:
    return torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
