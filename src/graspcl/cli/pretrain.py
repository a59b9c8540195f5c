"""The command pretrain."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from graspcl.cli.options import Plugins, Scale, Settings, load_plugins, resolve
from graspcl.errors import GraspError


def pretrain(
    what: str,
    /,
    *settings: Settings,
    out: Path = Path("base.safetensors"),
    scale: Scale = "full",
    plugin: Plugins = [],  # noqa: B006  (never changed; cyclopts shows it as the default)
) -> None:
    """Train a network and codec on the base classes, for --base.weights.

    Run the same command again to resume stopped training. The settings --base.method, --stream.base_classes,
    --stream.order, --network and --codec decide what is trained.

    Parameters
    ----------
    what
        A preset (`graspcl list presets`) or a TOML file.
    out
        File to write.
    """
    from graspcl.cli.progress import Bars
    from graspcl.experiment.prepare import write_weights
    from graspcl.settings.rules import check

    load_plugins(plugin)
    config = resolve(pretrain, what, settings, scale)
    if config.base.method == "none":
        raise GraspError("--base.method none trains nothing: set it to supervised, swav or weights")
    check(config)
    if out.exists():
        raise GraspError(f"--out {out} exists already; remove it or choose another name")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GraspError(f"--out {out}: its folder cannot be created: {error.strerror}") from error
    if not os.access(out.parent, os.W_OK):
        raise GraspError(f"--out {out}: its folder cannot be written to")
    console = Console()
    with Bars(console) as bars:
        about = write_weights(config, out, bars)
    said = [f"{about['network']}: {len(about['classes'])} classes, {about['images']:,} images"]
    if epochs := about.get("epochs"):
        said.append(f"{len(epochs)} epochs, loss {epochs[0]['loss']:.3f} → {epochs[-1]['loss']:.3f}")
        if epochs[-1].get("prototypes") is not None:
            said.append(f"{epochs[-1]['prototypes']} prototypes used")
    if "train_accuracy" in about:
        said.append(f"training accuracy {100 * about['train_accuracy']:.1f} % without augmentation")
    console.print("; ".join(said), soft_wrap=True)
    console.print(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
