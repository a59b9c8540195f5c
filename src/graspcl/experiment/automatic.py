"""Settings that follow from the data: each "auto" becomes a value, with its reason.

`RULES` is the table of all settings that may be "auto". They are found in its order, so a rule may rely on those
before it. A run's folder contains the values, so nothing is found again when the run resumes or predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from graspcl.buffer.capacity import METADATA_BYTES, parse_bytes
from graspcl.buffer.sequences import sequence_bytes
from graspcl.checks import Array
from graspcl.data import Samples, data_sources, find_columns
from graspcl.data.sources import source_name
from graspcl.errors import GraspError
from graspcl.experiment.encoding import first_readable
from graspcl.experiment.prepare import open_data
from graspcl.experiment.pretraining import build_network
from graspcl.images import shorter_sides
from graspcl.learner import learners
from graspcl.model import SplitNetwork
from graspcl.model.texts import TextInputs
from graspcl.progress import Progress
from graspcl.settings.config import AUTO, Config, as_plain
from graspcl.settings.read import flatten, replaced
from graspcl.settings.rules import check, network_options

Found = tuple[Any, str]  # a value and its reason; without a reason it has no effect

_TEST_SHARE = 0.2
_SESSIONS = 5  # at most
_SMALL, _ENLARGED = 64, 128  # images with a shorter side up to the first are enlarged to the second
# The side of larger images, by their number. One core encodes 30 images of 224 pixels in a second, 60 of 160 pixels;
# to rehearse one takes about as long as to encode it.
_SIDES = ((3_000, 224), (20_000, 160), (math.inf, 128))
_TOKENS, _QUANTILE = 128, 0.98  # at most, and the share of the texts that are not cut
_BUFFER = "2GB"
_LOOKED_AT = 1000  # samples whose sizes or lengths are looked at


def resolve(config: Config, progress: Progress) -> Config:
    """Return `config` with a value in place of every "auto"; tell `progress` each value with its reason.

    Settings that cannot work are refused before any data are read.
    """
    wanted = [name for name in RULES if flatten(as_plain(config)).get(name) == AUTO]
    if not wanted:
        return config
    check(_with_stand_ins(config))
    facts = Facts(config)
    for name in wanted:
        value, reason = RULES[name].find(facts)
        facts = facts.with_setting(name, value)
        if reason:
            progress.note(f"{name} = {'none' if value is None else value}: {reason}")
    return facts.config


def _with_stand_ins(config: Config) -> Config:
    """Return settings with which data can be opened; their pixels and tokens mean nothing."""
    given = flatten(as_plain(config))
    return replaced(config, {name: rule.stand_in for name, rule in RULES.items() if given.get(name) == AUTO})


class Facts:
    """What rules look at: the settings found so far, and the data."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.source = source_name(config.data.path, config.reads)

    def with_setting(self, name: str, value: Any) -> Facts:
        """Return the facts when a setting is known; the data are opened again only if they depend on it."""
        facts = Facts(replaced(self.config, {name: value}))
        if "samples" in vars(self) and (value == RULES[name].stand_in or name.startswith(("stream.", "buffer."))):
            facts.samples = self.samples
        return facts

    @cached_property
    def samples(self) -> Samples[Any]:
        """The samples of the run, as far as they are known."""
        return open_data(_with_stand_ins(self.config))[0]

    @property
    def some(self) -> Any:
        """Training samples to look at: all, or every so many."""
        train = self.samples.train
        return train[:: max(1, -(-len(train) // _LOOKED_AT))]

    def takes(self, parameter: str) -> bool:
        """Whether the source has a parameter of this name."""
        return parameter in data_sources.parameters(self.source)


class Rule(NamedTuple):
    """How a setting is found, and the value it has while the data are opened for that."""

    find: Callable[[Facts], Found]
    stand_in: Any


# -- the rules ---------------------------------------------------------------------------------------------------------


def _column(facts: Facts, which: int) -> Found:
    data, usual = facts.config.data, ("text", "label")
    if not facts.takes("text") or data.tasks is not None:
        return usual[which], ""
    given = (None if name == AUTO else name for name in (data.text, data.label))
    found = find_columns(data.path, *given)[which]
    return found, f"the column of the {usual[which]}s, by its name"


def _test_share(facts: Facts) -> Found:
    if not facts.takes("test_share") or facts.samples.own_test:
        return None, "the data have test samples"
    return _TEST_SHARE, f"there are no test samples, so {_TEST_SHARE:.0%} of each class are held out, always the same"


def _base_classes(facts: Facts) -> Found:
    classes = len(facts.samples.classes)
    if classes < 2:
        raise GraspError(f"{facts.samples.name} has {classes} class; learning needs at least two")
    return (2 * classes + 2) // 5, f"about two fifths of {classes} classes"


def _sessions(facts: Facts) -> Found:
    base = facts.config.stream.base_classes
    others = max(1, len(facts.samples.classes) - base)
    if others < _SESSIONS:
        return others, f"one for each of the classes that arrive after the first {base}"
    return _SESSIONS, f"{others} classes arrive after the first {base}"


def _pixels(facts: Facts) -> Found:
    number, source = len(facts.samples), facts.samples
    if facts.config.reads != "images":
        return 224, ""
    try:
        sides = shorter_sides(source.encoded_some(facts.some)[0].tolist())
    except GraspError:
        return 224, f"{source.name} does not tell the size of its images"
    side = round(float(np.median(sides.astype(float))))
    if side <= _SMALL:
        return _ENLARGED, f"images of {side} pixels are enlarged"
    pixels = next(pixels for limit, pixels in _SIDES if number <= limit)
    return pixels, f"{number:,} images of {side} pixels, learned in minutes"


def _token_counts(facts: Facts) -> Array:
    """Return how many tokens some of the texts have [n], without padding."""
    opened = _with_stand_ins(facts.config)
    padding = TextInputs.of(opened.network.name, network_options(opened)).encode([""])[0, -1]
    counts: Array = (facts.samples.read(facts.some) != padding).sum(1).numpy()
    return counts


def _max_tokens(facts: Facts) -> Found:
    lengths = _token_counts(facts)
    needed = 8 * math.ceil(float(np.quantile(lengths, _QUANTILE)) / 8)
    if needed < _TOKENS:
        return needed, f"{_QUANTILE:.0%} of the texts have at most that many"
    return _TOKENS, f"at most; {float((lengths >= _TOKENS).mean()):.0%} of the texts have as many or more and are cut"


def _capacity(facts: Facts) -> Found:
    config, number = facts.config, len(facts.samples.train)
    if learners.get(config.learner.name).unbounded:
        return None, f"the learner {config.learner.name} stores everything"
    if config.rehearsal == "veridical":
        return _BUFFER, "as many samples as fit"
    size = number * stored_bytes(config, facts.samples, build_network(config).eval())
    said = f"{number:,} training samples take {size / 1e6:,.1f} MB in half precision"
    return (None, f"everything is stored: {said}") if size <= parse_bytes(_BUFFER) else (_BUFFER, f"a bound: {said}")


def stored_bytes(config: Config, samples: Samples[Any], network: SplitNetwork, width: int = 2) -> int:
    """Return the bytes of a stored sample, on average, with `width` bytes per number of its latent."""
    latent = network.encode(first_readable(samples).to(network.device))[0]
    if network.padding is None:
        return width * latent.numel() + METADATA_BYTES
    facts = Facts(config)
    facts.samples = samples  # texts are stored without padding
    return sequence_bytes(float(_token_counts(facts).mean()), width * len(latent)) + METADATA_BYTES


RULES = {
    "data.text": Rule(lambda facts: _column(facts, 0), "text"),
    "data.label": Rule(lambda facts: _column(facts, 1), "label"),
    "data.test_share": Rule(_test_share, None),
    "stream.base_classes": Rule(_base_classes, 1),
    "stream.sessions": Rule(_sessions, 1),
    "data.pixels": Rule(_pixels, 224),
    "network.max_tokens": Rule(_max_tokens, _TOKENS),
    "buffer.capacity": Rule(_capacity, None),
}
