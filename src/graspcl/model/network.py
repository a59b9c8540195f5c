"""The split network: a frozen part that makes latents, a plastic part that learns from them, and a head that grows."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from graspcl.errors import GraspError
from graspcl.model.cut import cut_after
from graspcl.model.execution import Execution
from graspcl.model.head import CosineHead, Head
from graspcl.model.layers import ChannelsLast, GlobalAveragePool, SeededDropout, build, global_seed, seed_dropout
from graspcl.registry import Registry, parameter_names

_IMAGES, _LATENTS = 2**20, 2**19  # numbers that pass through a part of the network at a time

networks: Registry[SplitNetwork] = Registry("network", "graspcl.model", given=("classes", "generator", "seed"))
"""Functions that create a network. Each declares what it `reads`: "images", "texts" or "vectors".

They take `classes`, the number of rows of the head to start with, and `generator` or `seed`, which initialise the
weights. The built-in ones also take `scale`, the cosine head's initial scale, and most take `dropout`, the probability
of dropout before the head. Those for images take [N, 3, H, W] in 0..255, uint8 or float.
"""


class Outputs(NamedTuple):
    """What the plastic part and the head compute for N latents."""

    embedding: Tensor
    """[N, d], the penultimate embedding before its activation, on which GRASP measures distances."""
    features: Tensor
    """[N, features], the head's input."""
    logits: Tensor
    """[N, classes]"""


class SplitNetwork(nn.Module):
    """A frozen part, a plastic part, a neck (activation and dropout) and a head.

    `encode` maps inputs to latents. Calling the network maps latents to `Outputs`. The frozen part has no gradients and
    always stays in eval mode.

    Args:
        frozen: maps inputs [N, …] to latents [N, …].
        plastic: maps latents to embeddings [N, d].
        head: maps features to logits.
        neck: maps embeddings to features; by default they are the same.

    >>> head = CosineHead(4, classes=3, generator=torch.Generator().manual_seed(0))
    >>> net = SplitNetwork(nn.Identity(), nn.Flatten(), head, nn.GELU())
    >>> latents = net.encode(torch.ones(2, 2, 2))
    >>> net(latents).logits.shape, round(net.share_plastic(), 2)
    (torch.Size([2, 3]), 1.0)
    """

    veridical = False  # whether raw inputs are rehearsed, not latents; see `veridical` below

    def __init__(self, frozen: nn.Module, plastic: nn.Module, head: Head, neck: nn.Module | None = None) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.plastic = plastic
        self.neck = nn.Identity() if neck is None else neck
        self.head = head
        self.execution = Execution()
        self.train(self.training)

    @staticmethod
    def of(
        frozen: nn.Module,
        plastic: nn.Module,
        example: Tensor,
        *,
        generator: torch.Generator,
        neck: nn.Module | None = None,
        classes: int = 0,
        scale: float = 1.0,
    ) -> SplitNetwork:
        """Create a network from your own modules, whose weights stay as they are.

        `example` are inputs [N, …], which show the head's width; `generator` initialises its `classes` rows.

        >>> g = torch.Generator().manual_seed(0)
        >>> net = SplitNetwork.of(nn.Flatten(), nn.Linear(8, 5), torch.zeros(1, 2, 4), generator=g, neck=nn.ReLU())
        >>> net.head
        CosineHead(features=5, classes=0)
        """
        shape, values = list(example.shape), example
        parts = {"frozen part": frozen, "plastic part": plastic, "neck": nn.Identity() if neck is None else neck}
        for name, part in parts.items():
            try:
                with torch.no_grad():
                    values = part.eval()(values)
            except Exception as error:
                raise GraspError(f"an example of shape {shape} does not pass through the {name}: {error}") from error
            if len(values) != len(example):
                raise GraspError(f"the example must be a batch [N, ...] with one row per sample, got shape {shape}")
            if name != "frozen part" and values.ndim != 2:
                raise GraspError(f"the {name} must return one vector per sample, [N, d], got {list(values.shape)}")
        head = CosineHead(values.shape[1], classes, generator=generator, scale=scale)
        return SplitNetwork(frozen, plastic, head, neck)

    @staticmethod
    def cut(
        model: nn.Module,
        after: str,
        classes: int = 0,
        seed: int = 0,
        *,
        example: Tensor | None = None,
        input: nn.Module | None = None,
        scale: float = 1.0,
    ) -> SplitNetwork:
        """Cut an existing classifier after a named block; a cosine head replaces its last linear layer.

        What precedes the block may be any computation. What follows must be a plain chain of modules, with nothing but
        flattening or average pooling between them. Another block raises an error that names the possible ones.
        BatchNorm in the plastic part keeps its statistics, because rehearsal must not change them.

        Args:
            model: the classifier, with trained or random weights; it is copied.
            after: the last frozen block, such as "layer3" or "layer3.0".
            classes, seed: the head's number of rows to start with, and what initialises them and seeds dropout.
            example: inputs [N, …] for one pass; by default images of 64 px, or vectors, as the first layer shows.
            input: what prepares raw inputs. By default, images of three channels in 0..255 are normalised with
                ImageNet's mean and deviation, as torchvision's weights expect.
            scale: the cosine head's initial scale.

        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.Linear(6, 3))
        >>> net = SplitNetwork.cut(model, after="1", classes=2)
        >>> latents = net.encode(torch.ones(5, 4))
        >>> latents.shape, net(latents).embedding.shape
        (torch.Size([5, 8]), torch.Size([5, 6]))
        """
        frozen, plastic, width = cut_after(model, after, example, input)
        generator = torch.Generator().manual_seed(seed)
        head = CosineHead(width, classes, generator=generator, scale=scale)
        seed_dropout(plastic, generator)
        return SplitNetwork(frozen, plastic, head)

    @property
    def device(self) -> torch.device:
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    @property
    def embedding_width(self) -> int:
        """d, the width of embeddings: what the neck's first linear layer takes, or the head if the neck has none."""
        linear = (layer for layer in self.neck.modules() if isinstance(layer, nn.Linear))
        return next((layer.in_features for layer in linear), self.head.features)

    @property
    def padding(self) -> Tensor | None:
        """The latent [C, 1] of a padded location, for a network whose latents [N, C, L] are padded."""
        text = getattr(self.frozen, "padding_input", None)
        return None if text is None else self.encode(text.to(self.device))[0, :, -1:].cpu()

    def train(self, mode: bool = True) -> SplitNetwork:
        super().train(mode)
        self.frozen.eval()
        return self

    def encode(self, x: Tensor, learn: bool = False) -> Tensor:
        """Return latents [N, …] of inputs x [N, …]; with gradients only if the frozen part is to `learn`."""
        with torch.set_grad_enabled(learn and torch.is_grad_enabled()), self.execution.autocast():
            latents = piecewise(self.frozen, x, _IMAGES)
        return latents.float() if latents.is_floating_point() else latents

    def forward(self, latents: Tensor) -> Outputs:
        with self.execution.autocast():
            embedding = piecewise(self.plastic, latents)
            features = self.neck(embedding)
        # The head stays in float32, as in the reference: cosines of 1280 numbers need the precision.
        return Outputs(embedding.float(), features.float(), self.head(features.float()))

    def execute(self, execution: Execution) -> SplitNetwork:
        """Set device, precision and compilation from now on; returns the network itself."""
        self.execution = execution
        execution.prepare(self)
        execution.compiled(self.plastic)
        return self

    def plastic_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return the names and values of all parameters that learn, from the first layer to the last."""
        return [named for named in self.named_parameters() if named[1].requires_grad]

    def share_plastic(self) -> float:
        """Return the share of all parameters that learns, 0..1."""
        plastic = sum(parameter.numel() for _, parameter in self.plastic_parameters())
        return plastic / max(1, sum(parameter.numel() for parameter in self.parameters()))


def piecewise(part: nn.Module, x: Tensor, numbers: int = _LATENTS) -> Tensor:
    """Return `part(x)`, computed for a few images or latents [N, C, H, W] after the other where nothing learns.

    So few maps are in memory at a time, on CPUs. In a process that is not prepared (`graspcl.machine`) this also takes
    less time, because malloc returns large maps to the system, and a prepared one takes up to a quarter more.
    """
    traced = torch.compiler.is_compiling() or torch.onnx.is_in_onnx_export()  # such a model takes any number of images
    together = traced or torch.is_grad_enabled() or part.training
    if together or not isinstance(x, Tensor) or x.ndim != 4 or x.device.type != "cpu":
        whole: Tensor = part(x)
        return whole
    size = max(1, numbers * len(x) // max(1, x.numel()))
    return torch.cat([part(piece) for piece in x.split(size)])


def veridical(network: SplitNetwork, unfreeze: bool = False) -> SplitNetwork:
    """Return `network` in a form for veridical rehearsal: it is called with raw inputs and encodes them every time.

    Both forms share their layers. With `unfreeze`, the frozen part learns as well. The buffer stores images as files
    (codec `encoded`) or tensors (codec `identity`).

    >>> head = CosineHead(4, classes=3, generator=torch.Generator().manual_seed(0))
    >>> raw = veridical(SplitNetwork(nn.Flatten(), nn.Linear(4, 4), head))
    >>> raw(raw.encode(torch.ones(2, 2, 2))).logits.shape, raw.veridical
    (torch.Size([2, 3]), True)
    """
    # A module of its own, not a mode of the network: its parameters' names are part of saved states.
    whole = SplitNetwork(nn.Identity(), _Whole(network.frozen, network.plastic, unfreeze), network.head, network.neck)
    whole.execution, whole.veridical = network.execution, True
    return whole


class _Whole(nn.Module):
    """The frozen part followed by the plastic part."""

    def __init__(self, frozen: nn.Module, plastic: nn.Module, unfreeze: bool) -> None:
        super().__init__()
        self.frozen, self.plastic, self.unfrozen = frozen.requires_grad_(unfreeze), plastic, unfreeze

    def train(self, mode: bool = True) -> _Whole:
        super().train(mode)
        self.frozen.train(mode and self.unfrozen)
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.unfrozen):
            latents = self.frozen(x)
        embedding: Tensor = self.plastic(latents)
        return embedding


def convolutional(
    input: nn.Module,
    body: nn.Sequential,
    frozen_layers: int,
    channels: int,
    classes: int,
    generator: torch.Generator,
    dropout: float,
    scale: float,
    *,
    embedding: int | None = None,
) -> SplitNetwork:
    """Create a network for images from its named layers, average pooling, dropout and a cosine head.

    Args:
        input: what normalises images.
        body: the layers; the last one returns `channels` channels.
        frozen_layers: how many of them are frozen.
        embedding: width of a linear layer after pooling, whose output passes a GELU; by default there is none.
    """
    layers = list(body.named_children())
    frozen = OrderedDict([("input", input), *layers[:frozen_layers]])
    plastic = OrderedDict([("channels_last", ChannelsLast()), *layers[frozen_layers:], ("pool", GlobalAveragePool())])
    neck: nn.Module
    # What is drawn first is part of a seed's meaning: with an embedding the dropout, otherwise the head.
    if embedding is None:
        head = CosineHead(channels, classes, generator=generator, scale=scale)
        neck = SeededDropout(dropout, generator)
    else:
        plastic["embedding"] = build(lambda: nn.Linear(channels, embedding), generator)
        neck = nn.Sequential(nn.GELU(), SeededDropout(dropout, generator))
        head = CosineHead(embedding, classes, generator=generator, scale=scale)
    return SplitNetwork(nn.Sequential(frozen), nn.Sequential(plastic), head, neck)


def make_network(name: str, classes: int = 0, *, generator: torch.Generator, **options: Any) -> SplitNetwork:
    """Create the network called `name`, or `timm:NAME` for one of timm's.

    A function that draws from torch's global generator gets a seeded one, and the global state is restored. An unknown
    name or option raises an error that suggests the nearest valid one.

    Args:
        classes: the number of rows of the head to start with.
        generator: initialises the weights; a function may take just its seed, as `seed`.
        options: parameters of the network's function.

    >>> net = make_network("vector", classes=3, dim=8, generator=torch.Generator().manual_seed(0))
    >>> net(torch.zeros(2, 8)).logits.shape
    torch.Size([2, 3])
    """
    seed = generator.initial_seed()
    takes = parameter_names(networks.get(name))
    given = {"classes": classes, "generator": generator, "seed": seed}
    with global_seed(seed):
        return networks.create(name, **{key: value for key, value in given.items() if key in takes}, **options)
