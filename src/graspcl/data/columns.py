"""Find the text and the label column of a table by their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from graspcl.data.hub import HUB, hub_name, load_splits
from graspcl.data.samples import few
from graspcl.data.table_reader import column_names
from graspcl.data.text_table import training_table
from graspcl.errors import GraspError

# Names that such columns usually have, in lower case.
_TEXTS = ("text", "texts", "sentence", "utterance", "content", "body", "message", "query", "question", "review",
          "comment", "tweet", "document", "description")  # fmt: skip
_LABELS = ("label", "labels", "class", "category", "intent", "target", "topic", "sentiment", "tag")


def find_columns(path: str, text: str | None = None, label: str | None = None) -> tuple[str, str]:
    """Return the names of the text and the label column of the data at `path`, as far as they are not given.

    Raises:
        GraspError: no column, or more than one, has a usual name; the message names the columns and the options.
    """
    if path.startswith(HUB):
        return choose_columns(path, load_splits(*hub_name(path))["train"].column_names, text, label)
    file = training_table(Path(path))
    return choose_columns(str(file), column_names(file), text, label)


def choose_columns(
    where: str, columns: Sequence[str], text: str | None = None, label: str | None = None
) -> tuple[str, str]:
    """Choose the text and the label column among `columns`, as far as they are not given.

    A column called text or label is taken. Else exactly one column must have one of the usual names. Of two columns,
    the other one is taken if the first is known.

    >>> choose_columns("mails.csv", ["id", "Message", "category"]), choose_columns("a.csv", ["title", "label"])
    (('Message', 'category'), ('title', 'label'))
    """
    text = text or _usual(columns, _TEXTS, label)
    label = label or _usual(columns, _LABELS, text)
    if len(columns) == 2 and (text is None) != (label is None):
        (other,) = (name for name in columns if name not in (text, label))
        text, label = text or other, label or other
    missing = {"--data.text NAME": text, "--data.label NAME": label}
    options = [option for option, found in missing.items() if found is None]
    if text is None or label is None:
        what = " and the ".join({"--data.text NAME": "texts", "--data.label NAME": "labels"}[one] for one in options)
        raise GraspError(
            f"{where}: which column has the {what}? Its columns are {few(columns)}; set {' and '.join(options)}"
        )
    return text, label


def _usual(columns: Sequence[str], names: Sequence[str], taken: str | None) -> str | None:
    """Return the column with the first of `names`, or the only one with any of them."""
    found = [name for name in columns if name.strip().lower() in names and name != taken]
    first = [name for name in found if name.lower() == names[0]]
    return first[0] if first else found[0] if len(found) == 1 else None
