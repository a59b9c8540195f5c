"""The command `base`: what a network and a codec learn before the stream."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter, validators
from rich.console import Console

import graspcl
from graspcl.errors import GraspError, nearest

if TYPE_CHECKING:
    import numpy as np

    from graspcl.cli.progress import Bars
    from graspcl.data import Samples
    from graspcl.model import SplitNetwork
    from graspcl.pretrain import Trainer

AtLeastOne = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Positive = Annotated[float, Parameter(validator=validators.Number(gt=0))]


def base(
    *,
    data: str,
    method: Literal["swav", "supervised", "weights"] = "supervised",
    network: str = "mobilenet_v3_large",
    classes: AtLeastOne | None = None,
    class_list: Path | None = None,
    pixels: AtLeastOne = 64,
    epochs: AtLeastOne = 50,
    batch_size: AtLeastOne | None = None,
    lr: Positive | None = None,
    seed: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 0,
    weights: Path | None = None,
    codec: Literal["opq", "half", "identity"] = "opq",
    out: Path = Path("base.safetensors"),
    resume: bool = False,
    split: str | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    compile: bool = False,
    device: str = "auto",
) -> None:
    """Initialise a network on the base classes, train the codec on its latents, and write both to one file.

    Parameters
    ----------
    data
        A folder with train/CLASS/… or train.zip, a folder of class folders, or `groceries` (photos that come by pip).
    method
        Learn with labels, learn without (SwAV), or only load `--weights`.
    network
        Its name.
    classes
        How many classes are base classes: the first ones in sorted order, or of the list. By default all.
    class_list
        A text file with one class name a line: their order.
    pixels
        Images are cut to squares of this size.
    epochs
        Passes over the base classes.
    batch_size
        Images per update; by default 256 with labels, 128 without.
    lr
        The learning rate; by default 0.2.
    seed
        Makes weights, order and augmentation.
    weights
        A file to begin from: safetensors, or a state dict of torch.
    codec
        How latents will be stored.
    out
        The file to write. While training, a checkpoint of each epoch lies beside it.
    resume
        Go on from that checkpoint.
    split
        Where the network is cut: the last frozen layer, by number, or by name for timm's networks.
    precision
        Of products and convolutions; what the machine cannot do is refused.
    compile
        Let torch.compile translate the plastic part: minutes at first.
    device
        cpu, cuda, or auto: cuda where there is one.
    """
    from graspcl.cli.progress import Bars
    from graspcl.codec import codecs
    from graspcl.model import Execution
    from graspcl.pretrain import fit_codec, load_weights, make_trainer, save_weights, train_accuracy
    from graspcl.random import generator

    checkpoint = _check_files(out, resume)
    if method == "weights" and weights is None:
        raise GraspError("--method weights needs the file: --weights FILE")
    console = Console()
    samples = _samples(data, pixels)
    chosen, indices, rows = _base_classes(samples, classes, class_list)
    net = _network(network, len(chosen), pixels, seed, split)
    net.execute(Execution(precision, compile, device).resolve())
    done = f"{network}: {len(chosen)} classes, {len(indices):,} images at {pixels} px"
    asked: dict[str, Any] = {"method": method, "network": network, "pixels": pixels, "seed": seed, "codec": codec}
    asked |= {"data": samples.name, "fingerprint": samples.fingerprint(), "classes": chosen}
    coder = codecs.create(codec)
    with Bars(console) as bars:
        if weights is not None:
            bars.note(f"{weights}: {load_weights(net, weights)}")
        # Now, not after hours: is there all that the codec needs, and do the latents suit it?
        trial = codecs.create(codec, **({"iterations": 1} if codec == "opq" else {}))
        fit_codec(net, trial, samples.read, indices, limit=512, rng=generator(seed, "trial"))
        if method != "weights":
            settings = _settings(method, epochs, batch_size, lr)
            trainer = make_trainer(net, method, samples.read, indices, rows, settings, generator(seed, "base"))
            if resume:
                _go_on(trainer, checkpoint, asked, bars)
            _train(trainer, checkpoint, asked, bars)
            asked |= {"training": trainer.state_dict()["settings"], "log": [vars(epoch) for epoch in trainer.log]}
            done += f"; {_result(trainer)}"
        with bars.task(f"codec {codec}", len(indices)) as advance:
            fit_codec(net, coder, samples.read, indices, rng=generator(seed, "codec"), on_batch=advance)
        if method == "supervised":
            accuracy = train_accuracy(net, samples.read, indices, rows)
            asked["train_accuracy"] = accuracy
            done += f"; train accuracy {100 * accuracy:.1f} % without augmentation"
        save_weights(net, out, coder, {**asked, "graspcl": graspcl.__version__})
    checkpoint.unlink(missing_ok=True)
    console.print(done, soft_wrap=True)
    console.print(f"Wrote {out} ({out.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)


def _check_files(out: Path, resume: bool) -> Path:
    """The checkpoint's path; mistakes with files are found before any work is done."""
    checkpoint = out.with_name(f"{out.name}.checkpoint")
    if out.exists():
        raise GraspError(f"--out {out} is already there; remove it or choose another name")
    if checkpoint.exists() and not resume:
        raise GraspError(f"{checkpoint} is left from a training that was stopped; go on with --resume, or remove it")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GraspError(f"--out {out}: its folder cannot be made: {error.strerror}") from error
    if not os.access(out.parent, os.W_OK):
        raise GraspError(f"--out {out}: its folder cannot be written to")
    return checkpoint


def _samples(data: str, pixels: int) -> Samples[Any]:
    from graspcl.data import Groceries, ImageFolder

    return Groceries(pixels) if data == "groceries" and not Path(data).exists() else ImageFolder(data, pixels)


def _network(name: str, classes: int, pixels: int, seed: int, split: str | None) -> SplitNetwork:
    from graspcl.model import make_network, networks
    from graspcl.random import torch_generator

    sized = "pixels" in networks.parameters(name)
    options: dict[str, Any] = {"pixels": pixels} if sized else {}
    if split is not None:
        options["split"] = int(split) if split.isdecimal() else split
    return make_network(name, classes, generator=torch_generator(seed, "init"), **options)


def _base_classes(
    samples: Samples[Any], number: int | None, class_list: Path | None
) -> tuple[list[str], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Names of the base classes, the training samples that are of them, and the head's row of each."""
    import numpy as np

    names = samples.classes
    if class_list is not None:
        try:
            names = [line.strip() for line in class_list.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise GraspError(f"--class-list {class_list} cannot be read: {error}") from error
        if not names:
            raise GraspError(f"--class-list {class_list} names no class; it has one a line")
        if unknown := [name for name in names if name not in samples.classes]:
            raise GraspError(
                f"--class-list {class_list}: {samples.name} has no class {unknown[0]!r}; "
                + nearest(unknown[0], samples.classes)
            )
        if len(set(names)) < len(names):
            raise GraspError(f"--class-list {class_list} names a class twice")
    if number is not None and number > len(names):
        raise GraspError(f"--classes {number}: there are only {len(names)} classes")
    names = names[:number]
    row_of = np.full(len(samples.classes), -1)
    row_of[[samples.classes.index(name) for name in names]] = np.arange(len(names))
    rows = row_of[samples.labels[samples.train]]
    return names, samples.train[rows >= 0], rows[rows >= 0]


def _settings(method: str, epochs: int, batch_size: int | None, lr: float | None) -> Any:
    from graspcl.pretrain import SupervisedSettings, SwavSettings

    given = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    plain = SwavSettings() if method == "swav" else SupervisedSettings()
    return replace(plain, **{key: value for key, value in given.items() if value is not None})  # type: ignore[arg-type]


def _go_on(trainer: Trainer[Any], checkpoint: Path, asked: dict[str, Any], bars: Bars) -> None:
    """Bring the trainer to the last checkpoint, if it is one of the same command."""
    from graspcl.state import load_state

    if not checkpoint.exists():
        bars.note(f"there is no checkpoint at {checkpoint}; training begins anew")
        return
    state = load_state(checkpoint)
    if not {"asked", "trainer"} <= state.keys():
        raise GraspError(f"{checkpoint} is not a checkpoint of this command; remove it")
    if changed := [key for key in asked if state["asked"].get(key) != asked[key]]:
        raise GraspError(
            f"{checkpoint} is of a training with other settings ({', '.join(changed)}); "
            "go on with the same ones, or remove it"
        )
    trainer.load_state_dict(state["trainer"])
    bars.note(f"goes on after epoch {len(trainer.log)} of {trainer.settings.epochs}")


def _train(trainer: Trainer[Any], checkpoint: Path, asked: dict[str, Any], bars: Bars) -> None:
    from graspcl.state import save_state

    left = trainer.settings.epochs - len(trainer.log)
    with bars.task(f"base training, {trainer.settings.epochs} epochs", left * len(trainer.indices)) as advance:
        trainer.run(lambda t: save_state(checkpoint, {"asked": asked, "trainer": t.state_dict()}), advance)


def _result(trainer: Trainer[Any]) -> str:
    """What training came to, in words."""
    import math

    first, last = trainer.log[0], trainer.log[-1]
    text = f"{len(trainer.log)} epochs, loss {first.loss:.3f} → {last.loss:.3f}"
    if last.accuracy is not None:
        text += f", accuracy on augmented images {100 * last.accuracy:.1f} %"
    if last.prototypes is not None:
        number = trainer.settings.prototypes
        text += f", {last.prototypes} of {number} prototypes used"
        if last.loss > math.log(number) - 0.01:
            text += (
                f" (a loss of log {number} = {math.log(number):.2f} means that nothing is predicted yet: train longer)"
            )
    return text
