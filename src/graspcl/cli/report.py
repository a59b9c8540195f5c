"""The commands report and watch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter, validators

Output = Annotated[Path | None, Parameter(name=("--output", "-o"))]
Port = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))]
Refresh = Annotated[float, Parameter(validator=validators.Number(gt=0))]


def report(
    *runs: Path,
    output: Output = None,
    baseline: str | None = None,
    format: Literal["html", "png", "svg", "csv", "md", "tex"] = "html",
    paper: str | None = None,
    samples: bool = True,
) -> None:
    """Report on runs or a workspace: an HTML page, or tables or figures.

    Parameters
    ----------
    runs
        Run folders, or folders with runs below them; or one workspace, which has a page only. Default: runs.
    output
        Page to write (default: report.html, or WORKSPACE-report.html), or folder for the files of another format
        (default: report).
    baseline
        Policy to compare with, including its parameters. Default: uniform_balanced.
    format
        html: a self-contained page; png, svg: its figures; csv, md, tex: its tables.
    paper
        Show what the paper printed next to the runs: table-2 to table-11, iid, figure-1, figure-7 to figure-9.
    samples
        Show samples that GRASP rehearsed first and last, if the data of the runs are available.
    """
    from graspcl.cli.workspace import is_workspace, write_report
    from graspcl.errors import GraspError
    from graspcl.experiment.run_samples import open_samples
    from graspcl.report import gather, write_page
    from graspcl.report.measures import plural
    from graspcl.report.render.images import write_figures
    from graspcl.report.render.text import write_tables

    if format == "html" and output is not None and output.is_dir():
        raise GraspError(f"--output must be a file, but {output} is a folder; try {output / 'report.html'}")
    if len(runs) == 1 and is_workspace(runs[0]):
        if format != "html":
            raise GraspError(f"--format {format}: the report of a workspace is an HTML page; remove the option")
        write_report(runs[0], output or _page(f"{runs[0].resolve().name}-report.html"))
        return
    output = output or (_page("report.html") if format == "html" else Path("report"))
    found = gather(runs or (Path("runs"),), baseline, paper)
    unused = sum(not run.usable for run in found.runs)
    if unused == len(found.runs):
        raise GraspError(f"there is no run to report on in {', '.join(map(str, runs)) or 'runs'}; nothing was written")
    files: list[Path] = []
    try:
        if format == "html":
            write_page(found, output, open_samples if samples else None)
        elif format == "png" or format == "svg":
            files = write_figures(found, output, format)
        else:
            files = write_tables(found, output, format)
    except OSError as error:
        raise GraspError(f"the report cannot be written to {output}: {error.strerror}") from error
    written = str(output) if format == "html" else f"{len(files)} files to {output}"
    damaged = f", {unused} of them damaged or empty" if unused else ""
    problems = f", {found.with_problems} with problems (see the list of runs)" if found.with_problems else ""
    print(f"wrote {written}: {plural(len(found.runs), 'run')}{damaged}{problems}")


def _page(name: str) -> Path:
    """Return the page to write by default; refuse to replace a file that is no report."""
    from graspcl.errors import GraspError
    from graspcl.files import read_regular

    path = Path(name)
    if path.exists() and not re.search(b"<title>[^<]*graspcl</title>", read_regular(path)):
        raise GraspError(f"{path} exists and is not a report of graspcl; give the report another name: -o NAME.html")
    return path


def watch(run: Path = Path("runs"), /, *, port: Port = 0, refresh: Refresh = 3.0) -> None:
    """Follow a running run on a local web page.

    The page updates itself. The command ends with the run.

    Parameters
    ----------
    run
        Run folder, or a folder above it: then the unfinished run that changed last.
    port
        Port of the page; 0 for any free one.
    refresh
        Seconds between two looks at the run.
    """
    from graspcl.report.watch import watch as serve

    end = serve(run, lambda address: print(f"watching at {address} (Ctrl-C to stop)", flush=True), port, refresh)
    print("the run is finished" if end == "finished" else "the run has stopped; run the same command again to resume")
