"""Where samples come from."""

from graspcl.data.base import Samples
from graspcl.data.groceries import Groceries
from graspcl.data.images import ImageFolder
from graspcl.data.listings import Listings

__all__ = ["Groceries", "ImageFolder", "Listings", "Samples"]
