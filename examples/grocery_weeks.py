"""Write the grocery photos that come by pip as folders of classes: photos/, week-2/, week-3/ and test/.

    python examples/grocery_weeks.py
    graspcl new shop photos/
    graspcl learn shop week-2/

The first ten classes are in photos/, and each later week brings two more. The test photos were taken on other days.
"""

from pathlib import Path

import numpy as np

from graspcl.data import Groceries

photos = Groceries()
folders = {"photos": range(10), "week-2": range(10, 12), "week-3": range(12, 14)}
for part, rows in (("", photos.train), ("test", photos.test)):
    files, _, _ = photos.encoded_some(np.array(rows))
    for row, content in zip(rows, files, strict=True):
        label = int(photos.labels[row])
        folder = part or next(name for name, labels in folders.items() if label in labels)
        path = Path(folder, photos.classes[label], f"{row}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
for folder in (*folders, "test"):
    names = [path.parent.name for path in Path(folder).rglob("*.jpg")]
    print(f"{folder}/: {len(names)} photos of {len(set(names))} classes")  # noqa: T201
