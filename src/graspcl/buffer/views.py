"""What is stored, by name."""

from __future__ import annotations

import operator
from abc import abstractmethod
from typing import TYPE_CHECKING

from graspcl.checks import Array, shown
from graspcl.errors import GraspError

if TYPE_CHECKING:
    from graspcl.buffer.class_index import ClassIndex


class Views:
    """Views of the columns and the class index of a buffer."""

    index: ClassIndex
    since: int  # samples offered before this count are old

    @abstractmethod
    def __getitem__(self, column: str) -> Array:
        """Return a column [n, …], a view."""

    @property
    def labels(self) -> Array:
        """Class of each stored sample [n], int32, a view."""
        return self["labels"]

    @property
    def ids(self) -> Array:
        """The user's number of each stored sample [n], int64, a view."""
        return self["ids"]

    @property
    def births(self) -> Array:
        """When each stored sample arrived, counted in samples offered [n], int64, a view."""
        return self["births"]

    @property
    def new(self) -> Array:
        """Whether each stored sample arrived since the last call of `settle` [n], bool."""
        return self.births >= self.since

    @property
    def classes(self) -> Array:
        """Sorted labels of the stored classes."""
        return self.index.classes

    @property
    def sizes(self) -> Array:
        """Number of samples of each of `classes`."""
        return self.index.sizes

    def slots_of(self, label: int) -> Array:
        """Return the slots of one class, a view."""
        try:
            return self.index.slots_of(operator.index(label))
        except TypeError:
            raise GraspError(f"the label of a class is a whole number, got {shown(label)}") from None
