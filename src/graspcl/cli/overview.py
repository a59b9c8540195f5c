"""The command overview."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from graspcl.cli.options import Plugins, load_plugins
from graspcl.errors import GraspError, nearest


def overview(
    run: Path,
    /,
    *,
    class_: Annotated[str | None, Parameter(name="--class")] = None,
    output: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("overview.html"),
    plugin: Plugins = [],  # noqa: B006  (never changed; cyclopts shows it as the default)
) -> None:
    """Show what GRASP draws from one class, as an HTML page.

    Uniform rehearsal is shown next to it.

    Parameters
    ----------
    run
        Folder of a finished run that kept its state.
    class_
        Name of the class. Default: the class with most stored samples.
    output
        Page to write.
    """
    from graspcl.experiment.folder import RunFolder
    from graspcl.experiment.overview import choose_class, class_picture
    from graspcl.experiment.prediction import load_learner
    from graspcl.random import generator
    from graspcl.report.overview import write_overview

    load_plugins(plugin)
    if output.is_dir():
        raise GraspError(f"--output must be a file, but {output} is a folder; try {output / 'overview.html'}")
    if class_ is not None and (run / "classes.json").exists():  # check the name before loading the state
        known = RunFolder(run).class_names()
        if class_ not in known:
            raise GraspError(f"--class {class_!r} is not the name of a class; {nearest(class_, known)}")
    learned = load_learner(run)
    learner, names = learned.learner, learned.classes
    label = choose_class(learner, names, class_)
    picture = class_picture(learner, label, generator(0, "overview"))
    draws = {"GRASP": picture.grasp, "Uniform": picture.uniform}
    try:
        write_overview(
            output, names[label], picture.points, picture.prototype, picture.distances, draws, share=picture.share
        )
    except OSError as error:
        raise GraspError(f"the overview cannot be written to {output}: {error.strerror}") from error
    print(f"wrote {output}: {names[label]}, {len(picture.points)} stored samples")
