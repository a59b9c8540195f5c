"""The command pretrain."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console

from graspcl.cli.options import Plugins, Scale, Settings, What, resolve
from graspcl.cli.progress import Bars
from graspcl.errors import GraspError
from graspcl.settings.rules import check


def pretrain(
    what: What,
    /,
    *settings: Settings,
    out: Path = Path("base.safetensors"),
    scale: Scale = "full",
    plugin: Plugins = (),
) -> None:
    """Train a network and codec on the base classes.

    A run uses the file with --base.stages "weights(file=FILE)". Run the same command again to resume stopped training.
    The settings --base.stages, --stream.base_classes, --stream.order, --network and --codec decide what is trained.

    Parameters
    ----------
    out
        File to write.
    """
    from graspcl.experiment import resolve as find
    from graspcl.experiment.prepare import write_weights

    config = resolve(pretrain, what, settings, scale, plugins=plugin)
    if not config.base.stages:
        raise GraspError("base.stages is empty, so nothing is trained: set --base.stages 'supervised(epochs=50)'")
    console = Console()
    config = find(config, Bars(console))
    check(config)
    if out.exists():
        raise GraspError(f"--out {out} exists already; remove it or choose another name")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out.parent).close()  # find out now, not after the training
    except OSError as error:
        raise GraspError(f"--out {out}: its folder cannot be created or written to: {error.strerror}") from error
    with Bars(console) as bars:
        about = write_weights(config, out, bars)
    said = [f"{about['network']}: {len(about['classes'])} classes, {about['images']:,} images"]
    for epochs in (stage["epochs"] for stage in about["stages"] if "epochs" in stage):
        said.append(f"{len(epochs)} epochs, loss {epochs[0]['loss']:.3f} → {epochs[-1]['loss']:.3f}")
        if epochs[-1].get("prototypes") is not None:
            said.append(f"{epochs[-1]['prototypes']} prototypes used")
    if "train_accuracy" in about:
        said.append(f"training accuracy {100 * about['train_accuracy']:.1f} % without augmentation")
    console.print("; ".join(said), soft_wrap=True)
    console.print(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
