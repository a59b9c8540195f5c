"""The page in a browser: drawn without errors or requests, readable, and within its frame."""

import base64

import pytest
from browser import FAINT, WIDE, why_not
from making import make_run

from graspcl.report import gather, write_page

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
pytest.importorskip("plotly", reason="plotly is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory, sweep):
    """A full comparison with two experiments and a table of the paper, and one whose names are hostile."""
    folder = tmp_path_factory.mktemp("pages")
    make_run(folder / "runs" / "other", name="another", config={"data": {"path": "flowers"}})
    make_run(folder / "runs" / "half", "mof", 1, done=1)
    write_page(gather([sweep, folder / "runs"], paper="table-2"), folder / "report.html")
    hostile = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>" + "x" * 200
    for number, policy in enumerate(("grasp", hostile, f"{hostile}<a href='https://example.org'>")):
        make_run(
            folder / "hostile" / str(number), policy, name=hostile, learner=hostile, drift=True,
            classes=[f"{hostile}{k}" for k in range(5)], config={"note": hostile * (1 + number)},
        )  # fmt: skip
    write_page(gather([folder / "hostile"], baseline=hostile), folder / "hostile.html")
    return folder


@pytest.fixture
def page(chromium, files):
    """The full comparison, opened again."""
    chromium.look()
    chromium.open((files / "report.html").as_uri())
    return chromium


SHOWN = "return [...document.querySelectorAll('article:not([hidden]) figure')].map(f => [f.id, %s])"


def choose(page, select, value):
    page.run(
        "const select = document.querySelector(arguments[0]); select.value = arguments[1];"
        "select.dispatchEvent(new Event('change', {bubbles: true}))", select, value,
    )  # fmt: skip
    page.settle()


def test_every_figure_is_drawn_without_a_complaint_or_a_request(page):
    marks = dict(page.run(SHOWN % "f.querySelectorAll('.trace path, .point, .hm image').length"))
    assert len(marks) == 17
    assert all(marks.values()), marks
    assert page.complaints() == []
    addresses = page.requests()
    assert any(address.endswith("report.html") for address in addresses)
    assert [a for a in addresses if not a.startswith(("file:", "data:", "blob:"))] == []


def test_tables_are_sorted_by_any_column(page):
    cells = "return [...document.querySelector('[data-part=e0-summary] tbody').rows].map(r => r.cells[arguments[0]].%s)"
    heads = page.run("return [...document.querySelectorAll('[data-part=e0-summary] th')].map(h => h.innerText.trim())")
    alpha = heads.index("α")
    click = "document.querySelectorAll('[data-part=e0-summary] th button')[arguments[0]].click()"
    page.run(click, alpha)
    falling = [float(value) for value in page.run(cells % "dataset.value", alpha)]
    assert falling == sorted(falling, reverse=True) and len(set(falling)) > 3
    page.run(click, alpha)
    assert [float(value) for value in page.run(cells % "dataset.value", alpha)] == sorted(falling)
    page.run(click, 0)
    names = page.run(cells % "innerText", 0)
    assert names == sorted(names) and len(set(names)) == 4
    page.run(click, heads.index("p"))
    assert page.run(cells % "dataset.value", heads.index("p"))[-4:] == [""] * 4  # the baseline has none: last


def test_numbers_come_before_words_and_both_are_sorted(page):
    column = (
        "const table = document.querySelector('[data-part=e0-settings-differing] table');"
        "const [row] = table.tBodies[0].rows;"
        "const cells = ['b', '10', 'a', '', '9']; table.tBodies[0].replaceChildren(...cells.map(text => {"
        "const copy = row.cloneNode(true); copy.cells[1].textContent = text; return copy; }));"
        "const head = table.querySelectorAll('th button')[1]; const order = () => { head.click();"
        "return [...table.tBodies[0].rows].map(r => r.cells[1].textContent); }; return [order(), order()]"
    )
    assert page.run(column) == [["9", "10", "a", "b", ""], ["10", "9", "b", "a", ""]]


def test_a_click_on_the_legend_hides_a_method(page):
    from selenium.webdriver.common.action_chains import ActionChains

    toggle = page.driver.find_element("css selector", "#e0-learning-all .legendtoggle")
    page.run("arguments[0].scrollIntoView({block: 'center'})", toggle)
    ActionChains(page.driver).move_to_element(toggle).click().perform()
    data = "document.querySelector('#e0-learning-all .chart').data"
    page.until(f"{data}.some(t => t.visible === 'legendonly')")
    visible = page.run(f"return {data}.map(t => [t.name, t.visible])")
    assert ["grasp", "legendonly"] in visible
    assert ["uniform_balanced", None] in visible or ["uniform_balanced", True] in visible


def test_a_choice_of_budget_holds_for_all_figures(page):
    choice = "#e0 select[data-choice=condition]"
    options = page.run(f"return [...document.querySelector('{choice}').options].map(o => o.text)")
    assert len(options) == 4
    choose(page, choice, options[2])
    tags = page.run("return [...document.querySelectorAll('#e0 .tag')].map(t => t.innerText).filter(Boolean)")
    assert len(tags) > 6 and set(tags) == {options[2]}


def test_another_experiment_is_drawn_when_it_is_chosen(page):
    choose(page, "#experiment", "e1")
    drawn = dict(page.run(SHOWN % "f.querySelectorAll('.main-svg').length > 0"))
    assert len(drawn) >= 8 and all(drawn.values()) and all(name.startswith("e1-") for name in drawn)
    assert page.complaints() == []


def test_figures_and_tables_have_names_and_columns_a_meaning(page):
    charts = page.run(SHOWN % "f.querySelector('.chart[role=img]').getAttribute('aria-label')")
    about = dict(charts)["e0-updates"]
    assert about.startswith("Accuracy by updates. α by the updates of a run.")
    assert "25 % fewer updates" in about  # what the picture shows
    assert all(
        label for _, label in page.run(SHOWN % "document.getElementById(f.getAttribute('aria-labelledby')).innerText")
    )
    assert page.run("return document.querySelectorAll('table:not([aria-label]), nav:not([aria-label])').length") == 0
    page.run("document.querySelector('[data-part=e0-summary-meanings] summary').click()")
    meanings = page.run("return document.querySelector('[data-part=e0-summary-meanings]').innerText")
    for text in ("μ_N", "accuracy on new classes", "paired t-test of α over seeds", "McNemar p", "median over seeds"):
        assert text in meanings


def test_legends_have_the_room_they_take(chromium, tmp_path):
    names = [*"abcdefghijkl", "one_whose_name_is_much_longer_than_others"]
    for place, policy in enumerate(names):
        make_run(tmp_path / str(place), policy)
    write_page(gather([tmp_path]), tmp_path / "page.html")
    chromium.open((tmp_path / "page.html").as_uri())
    for width in (360, 1280):
        chromium.look(width=width)
        room = (
            "(() => { const box = s => f.querySelector(s)?.getBoundingClientRect(); const legend = box('.legend');"
            "return legend ? legend.top - box('.xtitle').bottom : 0; })()"
        )
        gaps = dict(chromium.run(SHOWN % room))
        assert all(-1 <= gap < 30 for gap in gaps.values()), (width, gaps)


def test_the_summary_fits_a_screen_of_1280(page):
    beyond = (
        "const scroll = document.querySelector('[data-part=e0-summary] .scroll');"
        "return scroll.scrollWidth - scroll.clientWidth"
    )
    assert page.run(beyond) <= 0


def test_text_can_be_read_in_light_and_dark(page):
    page.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for dark in (False, True):
        page.look(dark=dark)
        assert page.run(FAINT) == [], "dark" if dark else "light"


def test_the_checks_of_text_and_frame_find_what_is_wrong(page):
    page.run(
        "const bad = document.createElement('p'); bad.textContent = 'pale'; bad.style.color = '#888';"
        "bad.style.width = '3000px'; document.body.append(bad)"
    )
    assert [text for text, _ in page.run(FAINT)] == ["pale"]
    assert len(page.run(WIDE)) == 2


def test_the_numbers_in_the_matrix_can_be_read():
    from graspcl.report.figures.accuracy import SCALE

    def light(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    assert all((light(colour) + 0.05) / (light("#101418") + 0.05) >= 4.5 for _, colour in SCALE)


@pytest.mark.parametrize("name", ["report", "hostile"])
def test_the_page_keeps_its_frame(chromium, files, name):
    chromium.look(width=360)
    chromium.open((files / f"{name}.html").as_uri())
    chromium.run("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for width in (360, 1024, 1920, 700):
        chromium.look(width=width)
        assert chromium.run(WIDE) == [], width
        charts = SHOWN % "[f.querySelector('.chart').clientWidth, f.querySelector('.main-svg').clientWidth]"
        assert all(box == drawing for _, (box, drawing) in chromium.run(charts)), width


def test_hostile_names_do_nothing(chromium, files):
    chromium.look()
    chromium.open((files / "hostile.html").as_uri())
    assert chromium.run("return window.hacked") is None
    active = "main img, main script, main a[href^=http], svg a"
    assert chromium.run("return document.querySelectorAll(arguments[0]).length", active) == 0
    assert chromium.complaints() == []
    assert [a for a in chromium.requests() if not a.startswith(("file:", "data:", "blob:"))] == []


def test_paper_is_light_and_as_wide_as_a_sheet(page):
    page.look(dark=True)
    printed = page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    page.settle()
    cut_off = "return [...document.querySelectorAll('.scroll')].filter(s => s.scrollWidth > s.clientWidth + 1).length"
    assert page.run(cut_off) == 0
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run(FAINT) == []
    assert max(width for _, width in page.run(SHOWN % "f.getBoundingClientRect().width")) <= 690
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.run("window.dispatchEvent(new Event('afterprint'))")
    page.settle()
    assert page.run("return document.documentElement.dataset.print") is None


def test_a_figure_without_the_chosen_budget_draws_nothing(chromium, tmp_path):
    make_run(tmp_path / "runs" / "a", drift=True)
    make_run(tmp_path / "runs" / "b", "uniform_balanced", drift=False, times=2.0)
    write_page(gather([tmp_path / "runs"]), tmp_path / "page.html")
    chromium.look()
    chromium.open((tmp_path / "page.html").as_uri())
    drawn = "return document.querySelector('#e0-drift .chart').querySelectorAll('.trace path').length"
    names = chromium.run("return [...document.querySelectorAll('[data-choice=condition] option')].map(o => o.text)")
    assert len(names) == 2
    seen = {}
    for name in [*names, *names]:
        choose(chromium, "[data-choice=condition]", name)
        seen[name] = chromium.run(drawn)
    assert sorted(bool(number) for number in seen.values()) == [False, True]
    assert chromium.complaints() == []
