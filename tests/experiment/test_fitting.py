"""Settings that fit the data they are given."""

import pytest

from graspcl.errors import GraspError
from graspcl.experiment import change, run
from graspcl.experiment.fitting import fitted


def test_more_classes_than_there_are_become_those_there_are(small, tmp_path):
    wanted = change(small, {"data.classes": 30, "stream.base_classes": 10, "stream.sessions": 20})
    found = fitted(wanted)
    assert (found.data.classes, found.stream.base_classes, found.stream.sessions) == (12, 4, 8)
    said = "has only 12 classes; --data.classes 12 --stream.base_classes 4 --stream.sessions 8 would fit"
    with pytest.raises(GraspError, match=said):
        run(wanted, tmp_path / "run")


def test_what_fits_stays_as_it_is(small):
    fits = change(small, {"data.classes": 6, "stream.base_classes": 2})
    assert fitted(fits) == fits and fitted(small) == small
