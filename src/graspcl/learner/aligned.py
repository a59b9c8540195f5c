"""The default learner: a head solved in closed form, rehearsal of the plastic part against it, and the head again.

A trained head follows the features slowly: after a few hundred updates it hides what rehearsal has improved below it.
Here it is never trained by updates. It is the linear discriminant of the features, which follows from running sums
(`Moments`), so it knows a new class at once and fits the features after every session. After a session it is averaged
with a logistic regression, which errs on other samples, where that pays.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graspcl.buffer import Buffer, Codes
from graspcl.checks import Array, checked
from graspcl.learner.learner import Learner, learners
from graspcl.learner.logistic import logistic_rows
from graspcl.learner.moments import (
    Judged,
    Moments,
    Movement,
    Rows,
    averaged,
    calibrated,
    discriminant_rows,
    lowest,
    scaled_rows,
)
from graspcl.learner.optimiser import Optimiser
from graspcl.learner.rehearsal import Batch
from graspcl.model import Execution, LinearHead, Outputs, SplitNetwork
from graspcl.model.network import piecewise
from graspcl.policy import Costs, Policy

_CHUNK = 512  # samples per forward pass
_TOGETHER = 2048  # samples that are added to the sums at a time
_MANY = 2048  # stored samples of which one half may judge for both
_JUDGES = 256  # samples of a half at most on which shrinkage and temperature are chosen
_LATE = 1 / 3  # share of a session after which features of an update count as those of its end
_SHRINKAGES = (1e-3, 1e-2, 0.1, 0.3, 0.6, 0.9)
_STRENGTH = 0.03  # per sample, of the penalty of the logistic regression that corrects the head
_START = 0.1  # share of the discriminant's rows at which the search for it starts
_STEPS = 12  # of the search; more bring little
_CORRECT_WITH, _LOGITS = 20_000, 2**25  # samples and their logits at most
_COMPARED = 1_024  # samples at most on which logits of both heads are compared
_LARGEST_HEAD = 2**21  # weights, above which a correction would take too long and too much memory


@learners.register("aligned")
@checked
class Aligned(Learner):
    """Rehearsal of the plastic part between two solutions of the head: the default learner.

    1. New samples enter the sums of their class at once. Predictions use the discriminant of all sums.
    2. A session rehearses the plastic part against fixed rows. They are cross-fitted: samples are in two halves, and
       each half trains against the rows of the other. Rows solved on the samples they train have almost no loss where
       a class has few of them, and nothing would be learned.
    3. After the session the sums are those of the features as they are now. What updates compute late in a session
       counts as such, for the network hardly changes afterwards; the other samples pass through it once more. For
       samples that the buffer no longer holds, the sums are predicted: a linear map from the features of the network
       as it came, whose sums are exact for all samples ever seen, to those of today. It is fitted on the stored
       samples, which then all pass through both networks.
    4. The head after a session can be the mean of the discriminant and a logistic regression on the features of stored
       samples. Both are linear, and so is their mean: predicting takes no longer. Where samples are lost, the
       regression counts less.

    Shrinkage and temperature of the discriminant are those under which each half's rows make the other half's classes
    likeliest. So the logits are calibrated.

    Rows of a head that was trained before are not used: a class is known once it has a sample.

    Args, besides those of `Learner`; the optimiser is AdamW by default:
        corrected: whether the head after a session is that mean; otherwise it is the discriminant. By default it is,
            unless the plastic part has 2-D convolutions: there it takes a session up to a tenth longer and brings less.

    >>> from graspcl import Buffer
    >>> from graspcl.model import vector_network
    >>> from graspcl.policy import Budget
    >>> learner = Aligned(vector_network(4, generator=torch.Generator().manual_seed(0)), Buffer(), "grasp")
    >>> learner.observe(torch.eye(4), [0, 0, 1, 1])
    >>> learner.predict(torch.eye(4)).tolist()
    [0, 0, 1, 1]
    >>> learner.rehearse(Budget(updates=3, batch_size=2)).coverage
    1.0
    """

    optimiser_by_default = Optimiser("adamw", 3e-4, weight_decay=0.01, layer_decay=1.0, schedule="linear")

    def __init__(
        self,
        network: SplitNetwork,
        buffer: Buffer,
        policy: Policy | str = "grasp",
        optimiser: Optimiser | None = None,
        rng: np.random.Generator | int = 0,
        device: torch.device | str | None = None,
        execution: Execution | None = None,
        corrected: bool | None = None,
    ) -> None:
        self._asked = corrected
        super().__init__(network, buffer, policy, optimiser, rng, device, execution)

    def setup(self) -> None:
        convolutions = any(isinstance(part, nn.Conv2d) for part in self.network.plastic.modules())
        self.corrected = not convolutions if self._asked is None else self._asked
        self._new_head()
        # What the network computed when it came; its features of a sample never change.
        parts = copy.deepcopy(nn.Sequential(self.network.plastic, self.network.neck))
        self._original = parts.eval().requires_grad_(False)
        self._halves = [self._no_moments(), self._no_moments()]  # of all samples that are stored or new
        self._gone = self._no_moments()  # predicted, of samples that are neither
        self._seen = self._no_moments()  # of all samples, in the original features; nothing where nothing can be gone
        self._crossed: list[Rows] = []  # the rows against which each half trains in the next session
        self._shrinkage = len(_SHRINKAGES) // 2  # its place
        self._stale = False  # whether the head misses samples
        self._now: _Measured | None = None  # within a session, what will replace the halves

    def _new_head(self) -> None:
        width, generator = self.network.head.features, torch.Generator().manual_seed(0)
        head = LinearHead(width, len(self.classes), generator=generator)
        self.network.head = head.to(self.device).requires_grad_(False)

    def relearn(self, classes: Sequence[int]) -> None:
        """Know `classes` alone, from the samples that are stored now: call it after others were removed or relabelled.

        The head has rows of these classes only. All sums are computed again, so samples that the buffer lost before
        count no more. The plastic part does not change.
        """
        self._set_classes(classes)
        self._new_head()
        self._seen, self._gone, self._now = self._no_moments(), self._no_moments(), self._nothing_measured()
        self._measure_rest(self._now)
        if self._forgets:
            for begin in range(0, len(self.buffer), _CHUNK):
                slots = np.arange(begin, min(begin + _CHUNK, len(self.buffer)))
                inputs, labels = self.buffer.fetch(slots, self.device)
                self._seen.add(self._originally(inputs), self.rows(labels))
        self._solve(self._now)
        self._correct(self._now)
        self._now, self._crossed = None, []

    def _no_moments(self) -> Moments:
        return Moments(self.network.head.features, device=self.device)

    @property
    def _forgets(self) -> bool:
        """Whether the buffer can lose samples."""
        return not self.buffer.unbounded

    @property
    def _has_forgotten(self) -> bool:
        """Whether the buffer has lost samples."""
        return self._forgets and bool(self._seen.counts.sum() > len(self.buffer))

    def learn_online(self, outputs: Outputs, targets: Tensor) -> None:
        births = self.buffer.seen - len(targets) + np.arange(len(targets))
        _add(self._halves, outputs.features, targets, births)
        self._stale = True

    def observe_codes(self, codes: Codes, labels: Any, ids: Any | None = None) -> None:
        super().observe_codes(codes, labels, ids)
        if self._forgets:
            targets = self.rows(torch.as_tensor(np.asarray(labels), dtype=torch.int64, device=self.device))
            for begin in range(0, len(targets), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                self._seen.add(self._originally(self.buffer.decode(codes[part], self.device)), targets[part])

    def _originally(self, inputs: Tensor) -> Tensor:
        with torch.no_grad(), self.network.execution.autocast():
            return piecewise(self._original, inputs).float()

    def outputs(self, samples: Codes, part: str, coded: bool = True) -> Tensor:
        if part == "logits" and self._stale:
            self._solve()
        return super().outputs(samples, part, coded)

    def logits_of(self, features: Tensor) -> Tensor:
        if self._stale:
            self._solve()
        return super().logits_of(features)

    def begin_session(self) -> None:
        head, known = self.network.head, not self._stale
        before = head.weight.clone(), head.bias.clone()
        if self._stale or not self._crossed:
            self._solve()
        if known:  # with its correction; the session trains against the crossed rows alone
            self._set_head(*before)
        self._now = self._nothing_measured()

    @property
    def _corrects(self) -> bool:
        return self.corrected and len(self.classes) * self.network.head.features <= _LARGEST_HEAD

    def _nothing_measured(self) -> _Measured:
        many = min(_CORRECT_WITH, max(2 * _JUDGES, _LOGITS // max(1, len(self.classes))))
        number = many if self._corrects else 2 * _JUDGES
        slots = _spread(np.arange(len(self.buffer)), number)
        return _Measured(self._no_moments(), self._no_moments(), self.buffer.births, slots)

    def loss(self, batch: Batch) -> Tensor:
        features, births = batch.outputs.features, self.buffer.births[batch.slots]
        if self._now is not None and batch.progress >= _LATE and not self._has_forgotten:
            self._now.add(batch.slots, features.detach(), batch.targets)
        half = torch.from_numpy(_half(births)).to(self.device)
        first, second = (F.linear(features, *rows) for rows in self._crossed)
        return F.cross_entropy(torch.where(half[:, None] == 0, first, second), batch.targets)

    def end_session(self, costs: Costs) -> None:
        now = self._now or self._nothing_measured()
        if costs.updates:
            # Before the buffer shrinks to its capacity, so that the sums are of all samples that took part.
            costs.training_forward += self._measure_rest(now)
        super().end_session(costs)
        if costs.updates:
            self._solve(now)
            self._correct(now)
        elif self._stale:
            self._solve()
        self._now, self._crossed = None, []

    def _measure_rest(self, now: _Measured) -> int:
        """Compute the sums with the features as they are now; return the number of forward passes."""
        rest, peers, number = np.flatnonzero(~now.measured), self.peers, len(self.classes)
        forgotten, stored = self._has_forgotten, self._no_moments()
        moved = Movement(self.network.head.features, self.device)
        if not peers.first:  # what updates have measured counts once
            now.clear()
        own = peers.part(rest)
        with peers.apart():
            for begin in range(0, len(own), _CHUNK):
                slots = own[begin : begin + _CHUNK]
                inputs, targets, features = self._features(slots)
                now.add(slots, features, targets)
                if forgotten:
                    before = self._originally(inputs)
                    stored.add(before, targets)
                    moved.add(before, features)
        self._halves = now.total(number, peers.total)
        if forgotten:
            stored.total(number, peers.total)
            moved.total(peers.total)
            self._gone = moved.carry(self._seen - stored)
        return len(rest) * (1 + forgotten)

    def _features(self, slots: Array) -> tuple[Tensor, Tensor, Tensor]:
        """Return the inputs, the rows of the head and the features of stored samples."""
        inputs, labels = self.buffer.fetch(slots, self.device)
        with torch.no_grad():
            features = self.network.eval()(inputs).features
        return inputs, self.rows(labels), features

    def _judges(self, now: _Measured | None) -> dict[int, Judged]:
        """Return some samples by half, on which shrinkage and temperature are chosen: one half, if there are many."""
        kept = None if now is None else now.kept()
        halves = _half(self.buffer.births) if kept is None else kept[2]
        first, second = (_spread(np.flatnonzero(halves == number), _JUDGES) for number in (0, 1))
        judges = {0: first} if len(self.buffer) >= _MANY and len(first) == _JUDGES else {0: first, 1: second}
        if kept is None:
            return {half: self._features(slots)[1:] for half, slots in judges.items()}
        return {half: (kept[1][some].to(self.device), kept[0][some].to(self.device)) for half, some in judges.items()}

    def _solve(self, now: _Measured | None = None) -> None:
        """Solve the head with all samples, and the rows against which each half trains.

        Shrinkage and temperature are those under which rows of the others make the judges likeliest. After a session,
        which measured features `now`, the shrinkage stays: the samples have been trained, and cannot judge it.
        """
        for moments in (*self._halves, self._gone):
            moments.grow(len(self.classes))
        first, second = self._halves
        others = [second + self._gone, first + self._gone]  # what half 0 and half 1 do not train
        within, judged = [moments.within for moments in others], self._judges(now)

        @functools.cache
        def rows(half: int, place: int) -> Rows:
            return discriminant_rows(others[half], _SHRINKAGES[place], within[half])

        @functools.cache
        def judge(place: int) -> tuple[float, float]:
            return calibrated([(rows(half, place), judges, others[half]) for half, judges in judged.items()])

        best = self._shrinkage
        if now is None:
            best = lowest(lambda place: judge(place)[0], len(_SHRINKAGES), best)
        self._shrinkage, temperature = best, judge(best)[1]
        weight, bias = scaled_rows(discriminant_rows(first + others[0], _SHRINKAGES[best]), temperature)
        self._set_head(weight, bias)
        self._stale, self._crossed = False, []
        if now is not None:
            return  # the next session starts with rows of its own
        for half, moments in enumerate(others):
            # A class without samples in the other half is an exception: it trains against the rows of all samples.
            known, (own, shift) = moments.counts > 0, scaled_rows(rows(half, best), temperature)
            self._crossed.append((torch.where(known[:, None], own, weight), torch.where(known, shift, bias)))

    def _correct(self, now: _Measured) -> None:
        """Average the discriminant with a logistic regression on the samples whose features were kept.

        Where samples are lost, the discriminant knows them and the regression does not: it counts half the share of the
        samples that is stored.
        """
        features, targets, _ = now.kept()
        if not self._corrects or not len(targets):
            return
        number, some = len(self.classes), features[_spread(np.arange(len(features)), _COMPARED)]
        discriminant = self.network.head.weight.cpu(), self.network.head.bias.cpu()
        start, strength = scaled_rows(discriminant, _START), _STRENGTH * len(targets)
        # In double precision, because rounding would end the search at another place on each number of ranks.
        regression = logistic_rows(features, targets, number, strength, start, steps=_STEPS, dtype=torch.float64)
        known = torch.bincount(targets, minlength=number) > 0
        stored = len(self.buffer) / int(self._seen.counts.sum()) if self._has_forgotten else 1.0
        self._set_head(*averaged(discriminant, regression, stored / 2, some, known))

    def _set_head(self, weight: Tensor, bias: Tensor) -> None:
        with torch.no_grad():
            self.network.head.weight.copy_(weight)
            self.network.head.bias.copy_(bias)

    def extra_state(self) -> dict[str, Any]:
        moments = {"first": self._halves[0], "second": self._halves[1], "gone": self._gone, "seen": self._seen}
        return {
            "original": self._original.state_dict(),
            "moments": {name: one.state_dict() for name, one in moments.items()},
            "now": {} if self._now is None else self._now.state_dict(),
            "crossed": {str(n): {"weight": w.clone(), "bias": b.clone()} for n, (w, b) in enumerate(self._crossed)},
            "stale": self._stale,
            "shrinkage": self._shrinkage,
        }

    def adapted(self, state: dict[str, Any]) -> dict[str, Any]:
        return {name: part for name, part in state.items() if name != "strength"}  # of a former correction

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self._original.load_state_dict(state["original"])
        first, second, self._gone, self._seen = (self._no_moments() for _ in range(4))
        for name, one in {"first": first, "second": second, "gone": self._gone, "seen": self._seen}.items():
            one.load_state_dict(state["moments"][name])
        self._halves, self._now = [first, second], None
        if "kept" in state["now"]:  # not in states of earlier versions: everything is measured again
            self._now = _Measured(self._no_moments(), self._no_moments(), np.zeros(0, np.int64), np.zeros(0, np.int64))
            self._now.load_state_dict(state["now"])
        copied = functools.partial(torch.asarray, device=self.device, copy=True)
        self._crossed = [(copied(rows["weight"]), copied(rows["bias"])) for rows in state["crossed"].values()]
        self._stale = bool(state["stale"])
        self._shrinkage = int(state["shrinkage"])


class _Measured:
    """What is measured of the stored samples so far, with their features as they are now.

    Sums of each half, and the features of those in `slots`. `births` [n] are places in the order of arrival.
    """

    def __init__(self, first: Moments, second: Moments, births: Array, slots: Array) -> None:
        self.measured = np.zeros(len(births), bool)  # by slot
        self._births, self._halves, self._slots = births.copy(), [first, second], slots
        width, device = first.sums.shape[1], first.sums.device
        self._kept = torch.zeros(len(slots), width)
        self._rows = torch.zeros(len(slots), dtype=torch.int64)  # of the head
        # Samples that are not yet in the sums: adding a few costs almost as much as adding many.
        self._waiting = np.zeros(0, np.int64)  # slots
        self._features = torch.zeros(0, width, device=device)
        self._targets = torch.zeros(0, dtype=torch.int64, device=device)

    def add(self, slots: Array, features: Tensor, targets: Tensor) -> None:
        """Add samples that are not measured yet, each once."""
        slots, places = np.unique(slots, return_index=True)
        fresh = ~self.measured[slots]
        slots, new = slots[fresh], torch.from_numpy(places[fresh]).to(features.device)
        self.measured[slots] = True
        self._waiting = np.concatenate([self._waiting, slots])
        self._features = torch.cat([self._features, features[new]])
        self._targets = torch.cat([self._targets, targets[new]])
        if len(self._waiting) >= _TOGETHER:
            self.finish()

    def finish(self) -> list[Moments]:
        """Return the sums of each half."""
        _add(self._halves, self._features, self._targets, self._births[self._waiting])
        kept, places, of = np.intersect1d(self._slots, self._waiting, return_indices=True)
        if len(kept):
            chosen = torch.from_numpy(of).to(self._features.device)
            self._kept[places] = self._features[chosen].float().cpu()
            self._rows[places] = self._targets[chosen].cpu()
        self._waiting, self._features, self._targets = self._waiting[:0], self._features[:0], self._targets[:0]
        return self._halves

    def clear(self) -> None:
        """Forget the features of all samples, which another process has too."""
        parts: list[Moments | Tensor] = [*self._halves, self._kept, self._rows]
        for part in parts:
            part.zero_()
        self._waiting, self._features, self._targets = self._waiting[:0], self._features[:0], self._targets[:0]

    def total(self, classes: int, add: Callable[[Tensor], Tensor]) -> list[Moments]:
        """Return the sums of each half over all processes; each sample was measured by one, which kept its features."""
        for moments in self.finish():
            moments.total(classes, add)
        self._kept, self._rows = add(self._kept), add(self._rows)
        return self._halves

    def kept(self) -> tuple[Tensor, Tensor, Array]:
        """Return the features that were kept, in order of arrival, their rows of the head and their halves."""
        births = self._births[self._slots]
        order = np.argsort(births)  # slots have no order that lasts
        return self._kept[order], self._rows[order], _half(births[order])

    def state_dict(self) -> dict[str, Any]:
        halves = {str(half): moments.state_dict() for half, moments in enumerate(self._halves)}
        waiting = {"slots": self._waiting, "features": self._features.clone(), "targets": self._targets.clone()}
        kept = {"slots": self._slots, "features": self._kept, "rows": self._rows}
        samples = {"measured": self.measured.copy(), "births": self._births}
        return {**samples, "halves": halves, "waiting": waiting, "kept": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.measured, self._births = np.array(state["measured"], bool), np.array(state["births"], np.int64)
        for half, moments in enumerate(self._halves):
            moments.load_state_dict(state["halves"][str(half)])
        waiting, kept = state["waiting"], state["kept"]
        self._waiting, self._slots = np.array(waiting["slots"], np.int64), np.array(kept["slots"], np.int64)
        self._features = torch.as_tensor(waiting["features"]).to(self._features)
        self._targets = torch.as_tensor(waiting["targets"]).to(self._targets)
        self._kept, self._rows = torch.as_tensor(kept["features"]).clone(), torch.as_tensor(kept["rows"]).clone()


def _add(halves: list[Moments], features: Tensor, targets: Tensor, births: Array) -> None:
    half = torch.from_numpy(_half(births)).to(features.device)
    for number, moments in enumerate(halves):
        moments.add(features[half == number], targets[half == number])


def _half(births: Array) -> Array:
    """Return the half, 0 or 1, of samples with these places [n] in the order of arrival.

    Multiples of the golden ratio: halves are equally large, whatever the period in which classes arrive.
    """
    return (births.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(63)).astype(np.int64)


def _spread(slots: Array, number: int) -> Array:
    """Return `number` of the `slots`, at equal distances, or all of them."""
    return slots[np.linspace(0, len(slots) - 1, min(number, len(slots))).astype(np.int64)]
