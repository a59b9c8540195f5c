"""The report as files, and the command that writes it."""

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from making import make_run

from graspcl.cli.report import report as command
from graspcl.errors import GraspError
from graspcl.metric import interval
from graspcl.report import gather
from graspcl.report.measures import Mean
from graspcl.report.render import images
from graspcl.report.render.images import write_figures
from graspcl.report.render.text import as_csv, as_latex, as_markdown, slug, write_tables
from graspcl.report.tables import Column, Table, mean_cell, number_cell, paper_form_tables, text_cell


@pytest.fixture(scope="module")
def report(sweep):
    return gather([sweep], paper="table-2")


def test_csv_has_plain_numbers_and_their_spread_apart(report, tmp_path):
    written = write_tables(report, tmp_path, "csv")
    assert {path.stem for path in written} >= {"summary", "costs", "runs", "sessions", "classes", "table-2"}
    with open(tmp_path / "summary.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    best = next(row for row in rows if (row["policy"], row["budget"], row["buffer"]) == ("grasp", "1x", "unbounded"))
    assert (float(best["α"]), float(best["Δα"])) == (75, 10)
    assert float(best["α std"]) == pytest.approx(50**0.5)
    assert float(best["α ± 95 %"]) == pytest.approx(interval([80, 70]).high - 75)
    assert (float(best["Δα ± 95 %"]), float(best["Δα std"])) == (0, 0)
    with open(tmp_path / "sessions.csv", newline="", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 32 * 4  # every run: the start and three sessions


def test_a_spreadsheet_executes_no_cell():
    """Names of classes and runs come from folders and tables of others."""
    columns = [Column("=1+1", numeric=False), Column("@b", group="-c"), Column("α")]
    rows = [[text_cell("=cmd|' /C calc'!A0"), text_cell("+1"), text_cell("-1.5")], [text_cell("@x")] * 3]
    found = list(csv.reader(as_csv(Table("t", "T", columns, rows)).splitlines(keepends=True)))
    assert found[0] == ["'=1+1", "'-c: @b", "α"] and [row[0] for row in found[1:]] == ["'=cmd|' /C calc'!A0", "'@x"]


def test_a_table_stays_a_table_whatever_it_holds():
    columns = [Column("a|b", numeric=False), Column("α")]
    table = Table(
        "t", "T_1", columns, [[text_cell('x|y\n"z", <b>&%$#_{}~^\\'), mean_cell(Mean(1234.5, 0.5, 0.25), 1, bold=True)]]
    )
    assert list(csv.reader(as_csv(table).splitlines(keepends=True)))[1] == [
        'x|y\n"z", <b>&%$#_{}~^\\',
        "1234.5",
        "0.5",
        "0.25",
    ]
    line = as_markdown(table).splitlines()[-1]
    assert len(re.split(r"(?<!\\)\|", line)) == 4 and "**1,234.5 ± 0.5**" in line and r"\<b\>" in line
    row = as_latex(table).splitlines()[7]
    assert len(re.split(r"(?<!\\)&", row)) == 2
    assert r"\&\%\$\#\_\{\}\textasciitilde{}\textasciicircum{}\textbackslash{} & $\mathbf{1{,}234.5}$ \tiny" in row


def test_latex_tables_have_the_form_of_the_papers(report):
    lines = as_latex([*paper_form_tables(report.experiments[0])][-1]).splitlines()
    assert r"  \begin{tabular}{l|cccc|cccc}" in lines
    head = [line.strip() for line in lines if "multicolumn" in line or r"\mu_{N} \uparrow" in line]
    assert (
        head[0] == r"& \multicolumn{4}{c|}{\textbf{Unbounded Memory}} & \multicolumn{4}{c}{\textbf{Bounded Memory}} \\"
    )
    assert head[1].count(r"$\mu_{N} \uparrow$ & $\mu_{O} \uparrow$ & $\mu_{A} \uparrow$ & $\alpha \uparrow$") == 2
    assert any(re.search(r"grasp .*\$\\mathbf\{75\.00\}\$ \\tiny \$\\pm 63\.53\$", line) for line in lines)


def test_long_latex_tables_go_on_over_pages():
    rows = [[text_cell(f"row {number}"), number_cell(1.0)] for number in range(41)]
    columns = [Column("Method", numeric=False), Column("α")]
    lines = [line.strip() for line in as_latex(Table("t", "T", columns, rows, "A.")).splitlines()]
    assert lines[:3] == [r"% \usepackage{longtable}", r"\begin{longtable}{lc}", r"\caption{\textbf{T.} A.} \\"]
    assert lines[4:7] == [r"Method & $\alpha \uparrow$ \\", r"\hline", r"\endhead"]
    assert lines[-2:] == [r"\hline", r"\end{longtable}"] and len(lines) == 7 + 41 + 2
    assert r"\begin{tabular}" in as_latex(Table("t", "T", columns, rows[:40]))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_takes_the_tables(report, tmp_path):
    files = write_tables(report, tmp_path, "tex")
    body = "\n".join(rf"\input{{{file.name}}}" for file in files if file.stem not in ("classes", "sessions", "runs"))
    (tmp_path / "all.tex").write_text(
        rf"\documentclass{{article}}\usepackage{{longtable}}\begin{{document}}{body}\end{{document}}"
    )
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]


def test_several_experiments_have_folders_of_their_own(tmp_path):
    make_run(tmp_path / "runs" / "a", name="../up/x")
    make_run(tmp_path / "runs" / "b", name="..", config={"data": {"path": "flowers"}})
    written = write_tables(gather([tmp_path / "runs"]), tmp_path / "out", "md")
    assert {path.parent.name for path in written} == {"out", "1-up-x", "2-unnamed"}
    assert all(path.resolve().is_relative_to((tmp_path / "out").resolve()) for path in written)


def test_names_of_files_are_plain():
    assert slug("../../etc/passwd") == "etc-passwd"
    assert slug("🦉") == "unnamed"
    assert len(slug("x" * 300)) == 80


# -- pictures ----------------------------------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(
    not any(map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), reason="chromium is not installed"
)


@pytest.fixture
def small(tmp_path):
    pytest.importorskip("plotly", reason="plotly is not installed")
    return gather([make_run(tmp_path / "run", "<b>grasp</b>", name="toy")])


@needs_browser
@pytest.mark.parametrize(("kind", "begin"), [("png", b"\x89PNG\r\n"), ("svg", b"<svg")])
def test_figures_are_drawn_as_pictures(small, tmp_path, kind, begin):
    written = write_figures(small, tmp_path / "out", kind)
    assert {path.name for path in written} >= {f"learning-all.{kind}", f"matrix.{kind}", f"repeats.{kind}"}
    assert len(written) == 11
    assert all(path.read_bytes().startswith(begin) for path in written)
    if kind == "svg":
        assert "Accuracy on all classes" in (tmp_path / "out" / "learning-all.svg").read_text(encoding="utf-8")


def test_without_a_browser_the_error_says_what_to_install(small, tmp_path, monkeypatch):
    monkeypatch.setattr(images.shutil, "which", lambda name: None)
    monkeypatch.delenv("BROWSER_PATH", raising=False)
    with pytest.raises(GraspError, match="install Chromium or Chrome"):
        write_figures(small, tmp_path / "out", "png")


def test_a_browser_that_fails_is_named(small, tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", shutil.which("false") or "/nowhere")
    with pytest.raises(GraspError, match=r"drew 0 of 11 figures|cannot draw"):
        write_figures(small, tmp_path / "out", "svg")


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_what_it_could_not_use(tmp_path, monkeypatch, capsys):
    pytest.importorskip("plotly", reason="plotly is not installed")
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/a"))
    Path("runs/b").mkdir()
    Path("runs/b/summary.json").write_text("{}")
    command()
    assert capsys.readouterr().out == "wrote report.html: 2 runs, 1 of them damaged or empty\n"
    Path("runs/a/drift.npz").write_bytes(b"no")
    command(format="csv")
    assert capsys.readouterr().out.endswith("empty, 1 with problems (see the list of runs)\n")
    with pytest.raises(GraspError, match="did you mean 'grasp'"):
        command(baseline="graps")
    command(Path("runs"), output=Path("tables"), format="md", paper="table-8")
    assert Path("tables/table-8.md").exists()
    Path("page").mkdir()
    with pytest.raises(GraspError, match="is a folder"):
        command(Path("runs"), output=Path("page"))
    with pytest.raises(GraspError, match="cannot be written"):
        command(Path("runs"), output=Path("report.html/page.html"))
    with pytest.raises(GraspError, match="there is no folder nowhere"):
        command(Path("nowhere"))
    with pytest.raises(GraspError, match="did you mean 'table-9'"):
        command(Path("runs"), paper="table9")
