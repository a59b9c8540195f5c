"""The overview in a browser: two figures, a slider and a button."""

from __future__ import annotations

import re

import numpy as np
import pytest
from browser import FAINT, WIDE, why_not

from graspcl.report.overview import MOST_POINTS, render_overview, write_overview

pytest.importorskip("plotly", reason="plotly is not installed")
in_a_browser = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>" + "x" * 200


def parts(number=60, draws=60, name="cats & dogs"):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(number, 2))
    distances = (points**2).sum(1)
    near, anywhere = np.argsort(distances)[np.arange(draws) % number], rng.integers(number, size=draws)
    return name, points, np.zeros(2), distances, {"GRASP": near, "Uniform": anywhere}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overview")
    write_overview(folder / "overview.html", *parts(), share=0.4)
    write_overview(folder / "hostile.html", *parts(name=HOSTILE))
    return folder


@pytest.fixture
def page(chromium, folder):
    chromium.look()
    chromium.open((folder / "overview.html").as_uri())
    return chromium


# Of each picture: points stored, drawn before, drawn in this step, and stars.
COUNTS = "return [...document.querySelectorAll('figure .chart')].map(c => c.data.map(t => t.x.length))"
NOTES = "return [...document.querySelectorAll('figure .note')].map(n => n.textContent)"


def slide(page, step):
    page.run(
        "const slider = document.getElementById('step'); slider.value = arguments[0];"
        "slider.dispatchEvent(new Event('input', {bubbles: true}))", step,
    )  # fmt: skip
    page.settle()


@in_a_browser
def test_the_slider_goes_through_the_session(page):
    assert page.run(COUNTS) == [[60, 0, 0, 1]] * 2
    assert all(note.startswith("0 of 60 draws.") for note in page.run(NOTES))
    slide(page, 10)
    grasp, _ = page.run(COUNTS)
    assert grasp == [60, 27, 3, 1]
    first, second = page.run(NOTES)
    _, _, _, distances, draws = parts()
    assert first.startswith("30 of 60 draws: 50 % of the samples seen")
    assert f"mean distance of the draws {distances[draws['GRASP'][:30]].mean():.3f}" in first
    assert f"{100 * len(set(draws['Uniform'][:30])) / 60:.0f} % of the samples seen" in second
    drawn = page.run("return [...document.querySelectorAll('figure')].map(f => f.querySelectorAll('.point').length)")
    assert drawn[0] == sum(grasp)
    assert page.run("return document.getElementById('reach').textContent") == "50 %"
    slide(page, 20)
    assert all(note.startswith("60 of 60 draws") for note in page.run(NOTES))
    assert page.complaints() == []
    assert [a for a in page.requests() if not a.startswith(("file:", "data:", "blob:"))] == []


@in_a_browser
def test_the_button_plays_to_the_end_and_can_be_stopped(page):
    page.run("document.getElementById('play').dataset.pause = 30; document.getElementById('play').click()")
    assert page.run("return document.getElementById('play').textContent") == "Pause"
    page.until("document.getElementById('play').textContent === 'Play'")
    assert page.run("return document.getElementById('step').value") == "20"
    page.run("document.getElementById('play').dataset.pause = 100000; document.getElementById('play').click()")
    assert page.run("return document.getElementById('step').value") == "0"  # from the start again
    page.run("document.getElementById('play').click()")
    assert page.run("return document.getElementById('play').textContent") == "Play"
    assert page.complaints() == []


@in_a_browser
@pytest.mark.parametrize("name", ["overview", "hostile"])
def test_it_keeps_its_frame_and_can_be_read(chromium, folder, name):
    chromium.look(width=360)
    chromium.open((folder / f"{name}.html").as_uri())
    slide(chromium, 7)
    for width, dark in ((360, False), (360, True), (1280, True), (1280, False)):
        chromium.look(width=width, dark=dark)
        assert chromium.run(WIDE) == [], width
        assert chromium.run(FAINT) == [], (width, dark)
    tops = "return [...document.querySelectorAll('figure')].map(f => f.getBoundingClientRect().top)"
    assert len(set(chromium.run(tops))) == 1  # side by side
    chromium.look(width=360)
    assert len(set(chromium.run(tops))) == 2
    assert chromium.run("return window.hacked") is None
    assert chromium.complaints() == []


def test_the_page_asks_for_nothing():
    text = render_overview(*parts())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert all(f"{what} 'none'" in policy[1] for what in ("default-src", "connect-src", "form-action"))


def views(*given):
    import json

    data = re.search(r'id="report-data">(.*?)</script>', render_overview(*given))
    assert data is not None
    return json.loads(data[1])["figures"]["e0-p0"]["views"]


def test_a_small_class_has_a_step_per_draw():
    assert [view["label"] for view in views(*parts(1, 1))] == ["0 %", "100 %"]
    assert [view["label"] for view in views(*parts(2, 3))] == ["0 %", "33 %", "67 %", "100 %"]


def test_of_a_large_class_some_are_drawn_and_all_are_counted():
    last = views(*parts(4000, 4000))[-1]
    assert len(last["data"][0]["x"]) == MOST_POINTS
    assert sum(len(trace["x"]) for trace in last["data"][1:3]) == MOST_POINTS
    assert last["note"].startswith("4,000 of 4,000 draws: 100 % of the samples seen")
