"""A rehearsal session on several ranks: what a policy sees is the same on all of them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from graspcl.cache import digest_of
from graspcl.checks import Array
from graspcl.distributed.race import earliest, race_owned
from graspcl.distributed.ranks import Ranks, positions, text_digest
from graspcl.distributed.shards import ShardedBuffer
from graspcl.policy import Policy, Session
from graspcl.policy.drawing import draws_per_class, round_robin
from graspcl.policy.grasp import race_keys
from graspcl.policy.prototype import class_sums, distances_to
from graspcl.policy.session import _FROM_EMBEDDINGS, _FROM_LOGITS
from graspcl.random import rng_state

_HINT = "give every rank the same settings and seeds, and let every rank observe the same samples in the same order"


class SharedSession(Session):
    """A session of which every rank has a copy. Before the first update, all must have planned the same."""

    def __init__(self, ranks: Ranks, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ranks = ranks

    def _serve(self, policy: Policy, started: bool) -> None:
        super()._serve(policy, started)
        if started:
            plan = policy.upcoming(self.budget.samples)
            stored = {"births": self._buffer.births, "labels": self._buffer.labels, "ids": self._buffer.ids}
            digests = {
                "what they store": digest_of(stored),
                "what they draw": digest_of({"plan": np.empty(0, np.int64) if plan is None else plan}),
                "their random generators": text_digest(rng_state(self.rng)),
            }
            self.ranks.agree(digests, _HINT)


class ShardedSession(SharedSession):
    """A session over a buffer whose codes are divided: each rank measures the samples that it holds.

    Outputs of all samples are exchanged where a policy reads them. Distances to prototypes need less: sums of
    embeddings by class are exchanged, then each rank's distances. GRASP with draws by sample exchanges not even those,
    but only the arrivals that can be drawn.
    """

    _buffer: ShardedBuffer

    def _measure(self, slots: Array) -> dict[str, torch.Tensor]:
        holders = self._buffer.holders(slots)
        order, counts = positions(holders, self.ranks.world)
        found = {}
        for name, rows in self._measure_own(slots[holders == self.ranks.rank]).items():
            whole = self.ranks.gather(rows, counts, "measurements")
            found[name] = torch.empty_like(whole)
            found[name][torch.from_numpy(order).to(whole.device)] = whole
        self.costs.selection_forward += len(slots) - counts[self.ranks.rank]
        return found

    def _measure_own(self, slots: Array) -> dict[str, torch.Tensor]:
        """Return what the policy needs of `slots` [n] that this rank holds, maybe none."""
        with self.ranks.apart():
            found = super()._measure(slots)
        kinds = {"embeddings": (_FROM_EMBEDDINGS, torch.float16), "logits": (_FROM_LOGITS, torch.float32)}
        wanted = {name: dtype for name, (quantities, dtype) in kinds.items() if quantities & self._needs}
        widths = torch.tensor([found[name].shape[1] if name in found else 0 for name in wanted])
        for (name, dtype), width in zip(wanted.items(), self.ranks.maximum(widths, "agreements"), strict=True):
            found.setdefault(name, torch.empty(0, int(width), dtype=dtype, device=self.device))
        return found

    # -- GRASP ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _own_distances(self) -> tuple[Array, Array]:
        """The slots that this rank holds, and the distances of their samples to prototypes of all samples."""
        slots = self._buffer.held
        z = self._measure_own(slots)["embeddings"]
        self.costs.selection_forward += len(self) - len(slots)
        k = torch.from_numpy(self._class_of(slots)).to(z.device, torch.int64)
        lengths, *sums = class_sums(z, k, self._groups.number)
        both = self.ranks.add(torch.cat([sums[0], sums[1][:, None]], dim=1), "prototypes")
        return slots, distances_to(both[:, :-1].contiguous(), both[:, -1], z, k, lengths).numpy(force=True)

    def _class_of(self, slots: Array) -> Array:
        """Return which of the sorted classes present, or other groups, the samples in `slots` [n] belong to, int32."""
        first = self._groups.members[self._groups.offsets[:-1]]
        return np.searchsorted(self._group_of[first], self._group_of[slots]).astype(np.int32)

    @cached_property
    def _distances(self) -> Array:
        order, counts = positions(self._buffer.holders(np.arange(len(self))), self.ranks.world)
        found = np.empty(len(self))
        found[order] = self.ranks.gather(torch.from_numpy(self._own_distances[1]), counts, "distances").numpy()
        found.flags.writeable = False
        return found

    def race(self, eps: float) -> Array:
        """Return GRASP's plan with draws by sample, that of `grasp_draws` in one process.

        A class has as many draws as are planned for it, so no more than that many of its samples can be drawn. Each
        rank sends those of its samples that arrive first to the rank that owns the class. That one lets them race.
        """
        keys, groups, ranks = race_keys(self.rng), self._groups, self.ranks
        draws = draws_per_class(groups.number, self.budget.samples)
        ends = np.append(0, np.cumsum(draws))
        slots, d = self._own_distances
        k = self._class_of(slots)
        # The extreme distances of each class.
        nearest, farthest = np.full(groups.number, np.inf), np.full(groups.number, -np.inf)
        np.minimum.at(nearest, k, d)
        np.maximum.at(farthest, k, d)
        both = torch.from_numpy(np.stack([-nearest, farthest]))
        extremes = ranks.maximum(both, "candidates").numpy() * [[-1], [1]]
        # The earliest arrivals of each class, sorted by the rank that owns it.
        sent = earliest(keys[0], self._buffer.births, slots, d, k, draws, eps)
        sent = sent[np.argsort(k[sent] % ranks.world, kind="stable")]
        rows = torch.from_numpy(np.column_stack([slots[sent], d[sent]]).astype(np.float64))
        counts = np.bincount(k[sent] % ranks.world, minlength=ranks.world).tolist()
        found = ranks.deal(rows, counts, "candidates").numpy()
        # The race of each class that this rank owns.
        slots, d = found[:, 0].astype(np.int64), found[:, 1].copy()
        k = self._class_of(slots)
        order = np.lexsort((slots, k))
        slots, d, k = slots[order], d[order], k[order]
        owned = np.arange(ranks.rank, groups.number, ranks.world)
        raced = race_owned(keys, self._buffer.births[slots], d, k, owned, ends, extremes, eps)
        drawn = slots[np.concatenate([np.empty(0, np.int64), *raced])]
        # All draws, class after class.
        order, counts = positions(np.repeat(np.arange(groups.number) % ranks.world, draws), ranks.world)
        plan = np.empty(self.budget.samples, np.int64)
        plan[order] = ranks.gather(torch.from_numpy(drawn), counts, "plans").numpy()
        return round_robin(plan, groups.number)
