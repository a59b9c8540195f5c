"""The commands around reports: report, watch."""

from __future__ import annotations

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
    """Make a report of runs: one HTML page with tables and figures, or these as files.

    Parameters
    ----------
    runs
        Run folders, or folders with runs below them; by default runs.
    output
        The page (by default report.html), or the folder for the files of another format (by default report).
    baseline
        The policy that others are compared with, with its parameters if it has some; by default uniform_balanced.
    format
        html is a page that needs nothing else, not even a network; png and svg are its figures, csv, md and tex its
        tables.
    paper
        A table of the paper to stand beside: table-2 to table-11.
    samples
        Show on the page some samples that GRASP picked first and last, where the data of the runs are at hand.
    """
    from graspcl.errors import GraspError
    from graspcl.experiment.shown import open_shown
    from graspcl.report.export import export
    from graspcl.report.html import gather, write_page
    from graspcl.report.html.labels import counted

    if format == "html" and output is not None and output.is_dir():
        raise GraspError(f"{output} is a folder; give -o the name of the page, such as {output / 'report.html'}")
    found = gather(runs or (Path("runs"),), baseline, paper, open_shown if samples else None)
    if not any(run.state not in ("damaged", "empty") for run in found.runs):
        raise GraspError(f"there is no run to report on in {', '.join(map(str, runs)) or 'runs'}; nothing was written")
    if format == "html":
        file = output or Path("report.html")
        try:
            write_page(found, file)
        except OSError as error:
            raise GraspError(f"the report cannot be written to {file}: {error.strerror}") from error
        written = str(file)
    else:
        folder = output or Path("report")
        written = f"{len(export(found, folder, format))} files into {folder}"
    unused = sum(run.state in ("damaged", "empty") for run in found.runs)
    said = [f"wrote {written}: {counted(len(found.runs), 'run', 'runs')}"]
    said += [f"{unused} of them damaged or empty"] if unused else []
    said += [f"{found.troubled} with problems, which the list of runs tells"] if found.troubled else []
    print(", ".join(said))


def watch(run: Path = Path("runs"), /, *, port: Port = 0, refresh: Refresh = 3.0) -> None:
    """Show a run while it goes on, on a page of this machine that follows it; ends when the run does.

    Parameters
    ----------
    run
        Its folder, or one above it: then the run below it that was last at work.
    port
        Of the page; 0 for any free one.
    refresh
        Seconds between two looks at the run.
    """
    from graspcl.report.html.watch import watch as serve

    end = serve(run, lambda address: print(f"watching at {address} (Ctrl-C to stop)", flush=True), port, refresh)
    print("the run is finished" if end == "finished" else "the run is stopped; the same command goes on")
