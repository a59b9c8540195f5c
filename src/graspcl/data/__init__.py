"""Where samples come from."""

from graspcl.data.base import Samples
from graspcl.data.groceries import Groceries
from graspcl.data.images import ImageFolder
from graspcl.data.listings import Listings
from graspcl.data.lists import ImageList
from graspcl.data.opening import open_images
from graspcl.data.subset import Subset
from graspcl.data.tables import TextTable
from graspcl.data.text_tasks import TextTasks, text_order

__all__ = [
    "Groceries",
    "ImageFolder",
    "ImageList",
    "Listings",
    "Samples",
    "Subset",
    "TextTable",
    "TextTasks",
    "open_images",
    "text_order",
]
