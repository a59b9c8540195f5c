"""Hard or neglected samples first: policies that keep one score per stored sample and draw by it.

All stored samples are scored when a session starts, and drawn samples again from the logits of each update. A
mini-batch is drawn without replacement, independently of the mini-batches before it and of classes.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from graspcl.checks import Array, Positive
from graspcl.errors import GraspError
from graspcl.policy.drawing import whole_passes
from graspcl.policy.policy import Policy, policies
from graspcl.policy.session import Session

_CHUNK = 16384
_EPS = 1e-7  # as published
_EXPONENT = 600.0  # exp(±600) and sums of it are neither infinite nor zero


@dataclass
class _ByScore(Policy):
    """Draws from a tree over all samples (see `graspcl.policy.tree`) that follows their scores.

    `mode="proportional"` draws with probability proportional to a weight that falls with the score (or rises, with
    `largest`). `mode="top"` takes the n smallest (largest) current scores, ties in random order.
    """

    mode: Literal["proportional", "top"] = "proportional"

    largest: ClassVar[bool] = False  # whether large scores come first
    family = "score"

    def warm_up(self) -> None:
        tree = _compiled()
        nodes = tree.build(tree.by_weight(np.ones(2)))
        tree.update(nodes, tree.draw(nodes, np.zeros(1)), nodes[2:3])

    def select(self, session: Session, n: int) -> Array:
        whole, rest = whole_passes(np.arange(len(self._scores)), n)
        return np.append(whole, _compiled().draw(self._tree, session.rng.random(rest)))

    def weights(self, scores: Array) -> Array:
        """Return weights ≥ 0 [n] of samples with these scores [n]."""
        raise GraspError(f"policy {type(self).__name__} must define weights(scores)")

    def _set_all(self, scores: Array) -> None:
        self._scores = scores
        self._tree = _compiled().build(self._leaves(scores))

    def _update(self, slots: Array) -> None:
        _compiled().update(self._tree, slots, self._leaves(self._scores[slots]))

    def _leaves(self, scores: Array) -> Any:
        tree = _compiled()
        return tree.by_level(self._urgency(scores)) if self.mode == "top" else tree.by_weight(self.weights(scores))

    def _urgency(self, scores: Array) -> Array:
        return scores if self.largest else -scores


def _compiled() -> Any:
    from graspcl.policy import tree  # compiled code is loaded where it is used

    return tree


@dataclass
class _ByLogits(_ByScore):
    """The score is a function of a sample's logits and class.

    `weighting` turns scores into weights (without effect in mode "top"):
    - "rank": w = N + 1/2 - r, where r counts the scores at session start that come before this one, ties as half. So
      the weights start as N, N-1, …, 1. A later score gets the rank it would have had at the start.
    - "softmax": w = exp(∓s / (σ · temperature)), where σ is the standard deviation of the scores at session start.
    - "published": w = 1 / (s + 1e-7), or w = s for `max_loss`; then w + 1 - min w, recomputed in O(N) for each
      mini-batch, as for the published numbers. It is not monotone where scores have a sign: margins of
      (-5, -0.001, 0.001, 5) get probabilities of (0.25, 0.0002, 0.50, 0.25). A slightly wrong sample is hardly ever
      drawn, and a very wrong one no more often than a very right one. "reciprocal_shift" is its former name.
    """

    weighting: Literal["rank", "softmax", "published", "reciprocal_shift"] = "rank"
    temperature: Positive = 1.0

    needs = frozenset({"labels", "logits", "feedback"})
    cost = "one forward pass over the buffer per session"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting == "reciprocal_shift":
            self.weighting = "published"

    @property
    def exact_with(self) -> str:
        # The first update gives drawn samples the scores they had: whether they tie with themselves is rounding.
        return "weighting=softmax" if self.mode == "proportional" and self.weighting == "rank" else ""

    def score(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Return the scores [n] of samples with these logits [n, K] and correct columns `rows` [n]."""
        raise GraspError(f"policy {type(self).__name__} must define score(logits, rows)")

    def begin(self, session: Session) -> None:
        self._rows = session.rows.numpy(force=True)
        scores = self._checked_scores(session.logits, np.arange(len(session)))
        self._start = np.sort(self._urgency(scores))
        self._spread = float(scores.std()) or 1.0  # equal scores have equal weights in any unit
        self._set_all(scores)

    def observe(self, slots: Array, outputs: Any) -> None:
        # Cross-entropy, too, comes from the logits: a learner's own loss may have another scale.
        self._scores[slots] = self._checked_scores(outputs.logits, slots)
        if self.mode == "proportional" and self.weighting == "published":  # one new score changes all weights
            self._set_all(self._scores)
        else:
            self._update(slots)

    def weights(self, scores: Array) -> Array:
        urgency, start = self._urgency(scores), self._start
        if self.weighting == "rank":
            weights = (1 + np.searchsorted(start, urgency) + np.searchsorted(start, urgency, side="right")) / 2
        elif self.weighting == "softmax":
            exponents = (urgency - start[-1]) / self._spread / self.temperature
            weights = np.exp(exponents.clip(-_EXPONENT, _EXPONENT))
        else:
            raw = scores if self.largest else 1 / (scores + _EPS)
            weights = raw + (1 - raw.min())
        return np.asarray(weights)

    def _checked_scores(self, logits: torch.Tensor, slots: Array) -> Array:
        rows = torch.from_numpy(self._rows[slots]).to(logits.device)
        low, high = int(rows.min()), int(rows.max())
        if not 0 <= low <= high < logits.shape[1]:
            raise GraspError(
                f"policy {self.display_name!r} reads columns {low} … {high} of logits that have {logits.shape[1]}: "
                "number classes from 0, or give the session `rows`, which maps labels to columns"
            )
        parts = zip(torch.split(logits, _CHUNK), torch.split(rows, _CHUNK), strict=True)
        scores = torch.cat([self.score(part.double(), right) for part, right in parts])
        # The largest logit is NaN if any is. A NaN of another class may not affect the score.
        bad = (~scores.isfinite() | logits.amax(1).isnan()).numpy(force=True)
        if bad.any():
            raise GraspError(
                f"policy {self.display_name!r}: the logits of {bad.sum()} of {len(bad)} samples are NaN or give no "
                f"finite score (slots {slots[bad][:5].tolist()})"
            )
        return scores.numpy(force=True)


@policies.register("max_loss")
@dataclass
class MaxLoss(_ByLogits):
    """Large cross-entropy first: s = log Σ_j exp f_j - f_y.

    By rank this is the order of `min_confidence`, as p_y = exp(-s); by value the two differ.

    Follows: the paper (score); the reference program with `weighting="published"`.
    """

    largest = True
    source = "Kawaguchi and Lu 2020"

    def score(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, rows, reduction="none")


@policies.register("min_margin")
@dataclass
class MinMargin(_ByLogits):
    """Small margin first: s = p_y - max_{j≠y} p_j, below 0 where the network is wrong; 0 with a single class.

    `of="logits"` takes the logits f instead of the probabilities p.

    Follows: the paper (probabilities); the reference program with `of="logits", weighting="published"`.
    """

    of: Literal["probabilities", "logits"] = "probabilities"

    source = "Scheffer et al. 2001"

    def score(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return _margins(torch.softmax(logits, dim=1) if self.of == "probabilities" else logits, rows)


@policies.register("min_logit_distance")
@dataclass
class MinLogitDistance(_ByLogits):
    """Near the decision boundary first: s = |f_y|, the distance to the hyperplane of its own class.

    `of="probabilities"` takes s = |p_y - max_{j≠y} p_j|, the distance to the strongest other class. Unsigned (as
    published), a sample far on the wrong side counts as far. With `signed`, s keeps its sign, and such a sample comes
    first. A cosine head has rows of length 1; for other heads |f_y| is the distance times the length of the row.

    Follows: the reference program (score), and with `weighting="published"` its draws; the paper has no formula.
    """

    signed: bool = False
    of: Literal["logits", "probabilities"] = "logits"

    source = "Chaudhry et al. 2018"

    def score(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        s = _own(logits, rows) if self.of == "logits" else _margins(torch.softmax(logits, dim=1), rows)
        return s if self.signed else s.abs()


@policies.register("min_confidence")
@dataclass
class MinConfidence(_ByLogits):
    """Small probability of the right class first: s = p_y = exp f_y / Σ_j exp f_j.

    Follows: the paper (score); the reference program with `weighting="published"`.
    """

    source = "Gal et al. 2017"

    def score(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return _own(torch.softmax(logits, dim=1), rows)


@policies.register("min_rehearsal")
@dataclass
class MinRehearsal(_ByScore):
    """Rarely rehearsed first: s = 1 + the number of times the sample was drawn in this session; w = 1 / s.

    Counts start at 1 in every session, as published, so new samples have no advantage over old ones. Counts over a
    sample's whole life would spend every session on the newest samples. In mode "top" every sample is shown once, in
    random order, before any is shown again. With `weighting="published"`, all s are lowered so that the smallest is 1,
    and w = 1 / (s + 1e-7).

    Follows: the paper; counts are those of the reference program's latent runs, weights with "published".
    """

    weighting: Literal["reciprocal", "published"] = "reciprocal"

    needs = frozenset({"feedback"})
    cost = "none"
    source = "Hayes and Kanan 2021"

    def begin(self, session: Session) -> None:
        self._set_all(np.ones(len(session)))

    def observe(self, slots: Array, outputs: Any) -> None:
        np.add.at(self._scores, slots, 1)
        self._update(slots)
        if self.weighting == "published" and (excess := self._scores.min() - 1):
            self._set_all(self._scores - excess)

    def weights(self, scores: Array) -> Array:
        return 1 / (scores + _EPS) if self.weighting == "published" else 1 / scores


def _own(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The value of each sample's own class [n], of values [n, K]."""
    return values.gather(1, rows[:, None])[:, 0]


def _margins(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The value of each sample's own class, minus the largest of the others [n]."""
    if values.shape[1] == 1:
        return values.new_zeros(len(values))
    return _own(values, rows) - values.scatter(1, rows[:, None], -torch.inf).amax(1)
