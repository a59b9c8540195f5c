"""One part of each kind in a single file: load it with `--plugin examples/one_of_each.py` and use the parts by name.

graspcl run examples/one_of_each.toml --plugin examples/one_of_each.py
"""

from dataclasses import dataclass

import numpy as np
import torch

from graspcl import Learner, PlannedPolicy, learners, networks, policies
from graspcl.buffer.maintenance import rules
from graspcl.buffer.scored_rules import ByClassRule
from graspcl.checks import Count
from graspcl.codec import Codec, codecs
from graspcl.data import Samples, data_sources
from graspcl.model import SplitNetwork
from graspcl.stream import ClassIncremental, streams


@data_sources.register("points", gives="vectors")
class Points(Samples[torch.Tensor]):
    """Noisy points around one centre per class."""

    def __init__(self, width: Count = 8, classes: int = 6, per_class: int = 30) -> None:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(classes or 6), per_class)
        centres = 3 * rng.standard_normal((classes or 6, width))
        self._points = torch.tensor(centres[labels] + rng.standard_normal((len(labels), width)), dtype=torch.float32)
        everyone = np.arange(len(labels))
        names = [f"centre {number}" for number in range(classes or 6)]
        test = everyone % 3 == 0
        super().__init__("points", "1", names, labels, everyone, everyone[~test], everyone[test], {"width": width})

    def read(self, indices):
        return self._points[self.check(indices)]


@networks.register("two_layers", reads="vectors")
def two_layers(width: Count = 8, hidden: Count = 32, classes=0, *, generator):
    """A frozen linear layer and a plastic one."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator.initial_seed())
        frozen, plastic = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, hidden)
    example = torch.zeros(1, width)
    return SplitNetwork.of(
        frozen, plastic, example, generator=generator, neck=torch.nn.ReLU(), classes=classes, scale=9
    )


@codecs.register("tenths")
@dataclass
class Tenths(Codec):
    """Whole tenths in 16 bits."""

    error = "at most 0.05 of each number"

    def encode(self, inputs):
        return (10 * inputs).round().clamp(-32768, 32767).to(torch.int16).cpu()

    def decode(self, codes):
        return codes.float() / 10


@rules.register("least_confident")
@dataclass
class LeastConfidentRule(ByClassRule):
    """The largest class evicts the samples with the largest logits. It brings a column of its own."""

    columns = frozenset({"confidence"})

    def values(self, outputs, targets, head):
        largest = outputs.logits.amax(1) if outputs.logits.shape[1] else torch.zeros(len(targets))
        return {"confidence": largest}

    def victims(self, label, values, number, rng):
        return np.argsort(-values, kind="stable")[:number]


@streams.register("in_steps")
class InSteps(ClassIncremental):
    """Sessions of `step` new classes each."""

    def __init__(self, indices, labels, rng, order=None, base_classes: int = 0, step: Count = 1, chunk: int = 512):
        sessions = (len(np.unique(labels)) - base_classes) // step
        super().__init__(indices, labels, base_classes, sessions, rng, order, chunk)


@policies.register("farthest_first")
@dataclass
class FarthestFirst(PlannedPolicy):
    """Class-balanced draws, in proportion to the distance to the class prototype."""

    power: float = 1.0

    needs = {"distances"}
    balanced = True

    def plan(self, session):
        return session.draw(session.distances**self.power)


@learners.register("halves")
class Halves(Learner):
    """Cross-entropy in which new and old samples of a mini-batch weigh the same."""

    def loss(self, batch):
        losses = batch.cross_entropies
        parts = [losses[chosen].mean() for chosen in (batch.new, ~batch.new) if chosen.any()]
        return sum(parts) / len(parts)
