"""The comparison of a workspace with other ways to stay current, on a table of made-up texts."""

import pytest

pytest.importorskip("wordllama", reason="needs graspcl[demo]")

from made_up_texts import rows, table

from graspcl import GraspError
from graspcl.bench import run_benches
from graspcl.bench.workspace import Result, run


def test_all_ways_are_compared_in_one_run(tmp_path):
    data = table(tmp_path / "texts.csv", rows("fruit", "tool", "animal", "car", "music", end=20))
    found = list(run(str(data), first=3, weeks=2, backbone="vector"))
    assert [one.name.split()[0] for one in found] == ["workspace", "retraining", "probe", "fine-tuning"]
    assert found[0].accuracy > 90 and (found[0].points, found[0].time) == (0.0, 1.0)
    for one in found[1:]:
        assert one.points == found[0].accuracy - one.accuracy and one.time == found[0].seconds / one.seconds
    assert found[3].accuracy < 60  # without rehearsal only the last week is known


def test_the_number_of_classes_must_fit(tmp_path):
    data = table(tmp_path / "texts.csv", rows("fruit", "tool", "animal", end=6))
    with pytest.raises(GraspError, match="--first 2: texts has 3 classes, for 4 weeks and at least 2 before"):
        next(run(str(data), first=2, backbone="vector"))


def test_a_missed_bar_is_shown():
    assert Result("probe", 80.0, 2.0, -0.5, 0.5, False, "at least 1 point ahead").line().endswith("ahead: MISSED |")


def test_options_belong_to_their_bench():
    with pytest.raises(GraspError, match="--first: only `graspcl bench workspace` has this option"):
        run_benches("network", first=3)
    with pytest.raises(GraspError, match="set --data PATH"):
        run_benches("workspace")
