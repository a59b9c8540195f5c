"""Data sources: where samples come from."""

from graspcl.data.columns import find_columns
from graspcl.data.groceries import Groceries
from graspcl.data.image_folder import ImageFolder
from graspcl.data.image_list import ImageList, open_images
from graspcl.data.image_shards import ImageShards
from graspcl.data.listings import Listings
from graspcl.data.samples import Samples
from graspcl.data.sources import check_source, data_sources, open_samples
from graspcl.data.splits import Subset, Validation, View, take
from graspcl.data.text_table import TextTable
from graspcl.data.text_tasks import TextTasks, open_texts

__all__ = [
    "Groceries",
    "ImageFolder",
    "ImageList",
    "ImageShards",
    "Listings",
    "Samples",
    "Subset",
    "TextTable",
    "TextTasks",
    "Validation",
    "View",
    "check_source",
    "data_sources",
    "find_columns",
    "open_images",
    "open_samples",
    "open_texts",
    "take",
]
