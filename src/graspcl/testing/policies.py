"""The contract of a rehearsal policy, as one check to run on your own class: `check_policy(MyPolicy())`."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.policy import Budget, Policy, Session, batches
from graspcl.policy.policy import QUANTITIES
from graspcl.random import restore_rng, rng_state

_DIM = 6
# Sessions on each side of the comparison of slot orders, and the difference in standard errors that fails it: found is
# what changes a sample's mean number of draws by 0.7 of its spread from session to session; chance does so once in 10^5
# checks, and as all seeds are fixed, always or never for a given policy.
_SESSIONS = 100
_STANDARD_ERRORS = 5.0


class Outputs(NamedTuple):
    """What a network returns, and what `observe` is given."""

    embedding: torch.Tensor
    logits: torch.Tensor
    losses: torch.Tensor = torch.empty(0)


class Network(nn.Module):
    """A small network that behaves differently in train and eval mode, so that a forgotten mode shows."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(_DIM, 8, generator=generator))
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Parameter(torch.randn(8, classes, generator=generator))

    def forward(self, inputs: torch.Tensor) -> Outputs:
        embedding = self.drop(self.norm(inputs @ self.weight))
        return Outputs(embedding, embedding @ self.head)


@dataclass(frozen=True)
class Case:
    """A small buffer and a budget. The first half of `labels` is old, the rest arrived since the last session."""

    what: str
    labels: tuple[int, ...]
    budget: Budget
    identical: bool = False

    def buffer(self, shuffle: np.random.Generator | None = None) -> Buffer:
        """The samples, inserted in order or shuffled among the old and among the new ones; `ids` tell them apart."""
        rng = np.random.default_rng(1)
        labels = np.array(self.labels)
        centres = rng.normal(size=(labels.max() + 1, _DIM))[labels]
        inputs = np.ones_like(centres) if self.identical else centres + 0.5 * rng.normal(size=centres.shape)
        order = np.arange(len(labels))
        if shuffle is not None:
            order = np.concatenate([shuffle.permutation(part) for part in np.split(order, [self.since])])
        buffer = Buffer()
        buffer.insert(inputs[order].astype(np.float32), labels[order], ids=order)
        return buffer

    @property
    def since(self) -> int:
        """How many samples are old."""
        return len(self.labels) // 2

    def session(self, policy: Policy, buffer: Buffer, seed: int = 0) -> Session:
        """A session as a learner would make it; a policy that needs nothing of a network gets none."""
        classes = torch.from_numpy(np.unique(self.labels))
        network = Network(len(classes)) if policy.needs - {"labels", "new"} else None
        rng = np.random.default_rng(seed)
        buffer.since = self.since
        return Session(buffer, self.budget, rng, network, lambda k: torch.searchsorted(classes, k))


_MIXED = (0, 1, 2, 0, 1, 0, 0, 2, 0, 1, 0, 0, 2, 1, 0, 0, 1, 0, 2, 0, 1, 0)
TYPICAL = Case("three unequal classes", _MIXED, Budget(7, 6))
CASES = (
    TYPICAL,
    Case("one class", (0,) * 9, Budget(4, 5)),
    Case("one sample", (0,), Budget(3, 4)),
    Case("one sample of each class", (0, 1, 2, 3), Budget(3, 3)),
    Case("a mini-batch larger than the buffer", (0, 1, 1, 0, 1), Budget(3, 17)),
    Case("no budget", _MIXED, Budget(0, 4)),
    Case("a budget of one sample", _MIXED, Budget(1, 1)),
    Case("forty passes", _MIXED, Budget(110, 8)),
    Case("identical embeddings", _MIXED, Budget(5, 6), identical=True),
    Case("labels with gaps", tuple(7 + 300 * label for label in _MIXED), Budget(5, 6)),
)


def check_policy(policy: Policy, *, random: bool = True) -> None:
    """Raise an AssertionError that says what is wrong unless `policy` keeps the contract of a rehearsal policy.

    `policy` itself is not used, only its clones. Give `random=False` for a policy that is meant to select the same
    samples whatever the seed.

    >>> from graspcl.policy import Grasp
    >>> check_policy(Grasp(eps=1e-6))
    """
    with _one_thread():
        _check_description(policy)
        for case in CASES:
            _check_draws(policy, case)
        _check_side_effects(policy)
        _check_seeds(policy, random)
        _check_resume(policy)
        _check_second_session(policy)
        _check_slot_order(policy)


def _check_description(policy: Policy) -> None:
    unknown = set(policy.needs) - QUANTITIES
    _require(not unknown, f"`needs` names {unknown}, which no session offers; it offers {set(QUANTITIES)}")
    parameters = policy.parameters()
    for name, value in parameters.items():
        _require(f"{name}={value!r}" in repr(policy), f"repr does not show {name}={value!r}: {policy!r}")
    used = policy.clone()
    _run(used, TYPICAL)
    clone = used.clone()
    _require(type(clone) is type(policy), f"clone() gives a {type(clone).__name__}")
    _require(clone.parameters() == parameters, f"a clone has parameters {clone.parameters()}, not {parameters}")
    kept, fresh = clone.state_dict().keys(), policy.clone().state_dict().keys()
    _require(kept == fresh, f"a clone of a used policy has history: {set(kept ^ fresh)}")
    for name, value in vars(used).items():
        _require(
            not isinstance(value, (Session, Buffer, nn.Module)),
            f"the policy keeps the {type(value).__name__} as self.{name}: it would go stale, and into every checkpoint",
        )


def _check_draws(policy: Policy, case: Case) -> None:
    """Slots are in range and as many as asked for (`batches` sees to that), and balanced if the policy says so."""
    buffer = case.buffer()
    drawn = _run(policy.clone(), case, buffer)
    wanted = case.budget.samples
    _require(len(drawn) == wanted, f"{case.what}: {len(drawn)} draws for a budget of {wanted}")
    if policy.balanced:
        counts = np.bincount(buffer.labels[drawn], minlength=max(case.labels) + 1)[np.unique(case.labels)]
        _require(bool(np.ptp(counts) <= 1), f"{case.what}: `balanced`, but the classes got {counts.tolist()} draws")


def _check_side_effects(policy: Policy) -> None:
    buffer = TYPICAL.buffer()
    session = TYPICAL.session(policy, buffer)
    held = copy.deepcopy(buffer.state_dict())
    network = session.network if isinstance(session.network, nn.Module) else nn.Module()
    for number, module in enumerate(network.modules()):
        module.training = number % 2 == 0
    weights = copy.deepcopy(network.state_dict())
    modes = [module.training for module in network.modules()]
    chance = _global_random_state()
    _run(policy.clone(), TYPICAL, session=session)
    _require(_same(chance, _global_random_state()), "a global random generator was used; draw from `session.rng` only")
    _require(_same(held, buffer.state_dict()), "the policy changed the buffer")
    _require(_same(weights, network.state_dict()), "the policy changed the network's weights or running statistics")
    _require(modes == [m.training for m in network.modules()], "the policy changed the network's train/eval mode")
    _require(all(p.grad is None for p in network.parameters()), "the policy left gradients in the network's .grad")


def _check_seeds(policy: Policy, random: bool) -> None:
    first, again = (_run(policy.clone(), TYPICAL, seed=3) for _ in range(2))
    _require(_same(first, again), "two sessions with the same seed drew differently: `session.rng` must decide alone")
    if random:
        others = [_run(policy.clone(), TYPICAL, seed=seed) for seed in range(4, 8)]
        _require(
            not all(_same(first, other) for other in others),
            "five seeds gave the same draws; if that is meant, check_policy(policy, random=False)",
        )


def _check_resume(policy: Policy) -> None:
    whole = _run(policy.clone(), TYPICAL)
    for begun in (1, TYPICAL.budget.updates - 2):
        stopped, buffer = policy.clone(), TYPICAL.buffer()
        session = TYPICAL.session(policy, buffer)
        head = _run(stopped, TYPICAL, session=session, updates=begun)
        restored = policy.clone()
        restored.load_state_dict(stopped.state_dict())
        rest = TYPICAL.session(policy, buffer)
        restore_rng(rest.rng, rng_state(session.rng))
        tail = _run(restored, TYPICAL, session=rest, begun=begun)
        _require(
            _same(whole, np.concatenate([head, tail])),
            f"stopped after mini-batch {begun} and restored by state_dict, the session went on differently",
        )


def _check_second_session(policy: Policy) -> None:
    used, buffer = policy.clone(), TYPICAL.buffer()
    _run(used, TYPICAL, buffer)
    more = TYPICAL.buffer()
    buffer.insert(more.fetch(np.arange(len(more)))[0] + 0.1, more.labels)
    _run(used, TYPICAL, buffer, what="a second session, over a grown buffer")


def _check_slot_order(policy: Policy) -> None:
    """A sample is drawn as often wherever it is stored: compare the mean number of draws per session."""
    shuffle = np.random.default_rng(2)
    means, errors = [], []
    for shuffled in (False, True):
        counts = []
        for seed in range(_SESSIONS):
            buffer = TYPICAL.buffer(shuffle if shuffled else None)
            drawn = _run(policy.clone(), TYPICAL, buffer, seed=100 + 2 * seed + shuffled)
            counts.append(np.bincount(buffer.ids[drawn], minlength=len(buffer)))
        means.append(np.mean(counts, axis=0))
        errors.append(np.var(counts, axis=0) / _SESSIONS)
    # A sample that is never, or always, drawn on both sides shows no spread: one draw is then the resolution.
    error = np.sqrt(np.maximum(errors[0] + errors[1], _SESSIONS**-2.0))
    difference = np.abs(means[0] - means[1]) / error
    worst = np.argmax(difference)
    _require(
        bool(difference[worst] < _STANDARD_ERRORS),
        f"which slot a sample lies in decides how often it is drawn: {means[0][worst]:.2f} times a session on average, "
        f"{means[1][worst]:.2f} after the slots were shuffled",
    )


# -- tools -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other would take most of the time of networks this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run(
    policy: Policy,
    case: Case,
    buffer: Buffer | None = None,
    seed: int = 0,
    session: Session | None = None,
    updates: int | None = None,
    begun: int | None = None,
    what: str = "",
) -> Array:
    """All slots of a session, with feedback after each mini-batch; whatever goes wrong names the case."""
    session = session or case.session(policy, buffer or case.buffer(), seed)
    told = _feedback(session.buffer)
    drawn = [np.empty(0, np.int64)]
    try:
        for slots in batches(policy, session, begun):
            policy.observe(slots, Outputs(told.embedding[slots], told.logits[slots], told.losses[slots]))
            drawn.append(slots)
            if len(drawn) - 1 == updates:
                break
    except Exception as error:
        raise AssertionError(f"{what or case.what}: {type(error).__name__}: {error}") from error
    return np.concatenate(drawn)


def _feedback(buffer: Buffer) -> Outputs:
    """What training would tell about each slot, of a network that does not learn."""
    inputs, labels = buffer.fetch(np.arange(len(buffer)))
    rows = torch.searchsorted(torch.from_numpy(buffer.classes), labels)
    with torch.no_grad():
        embedding, logits, _ = Network(len(buffer.classes)).eval()(inputs)
    return Outputs(embedding, logits, nn.functional.cross_entropy(logits, rows, reduction="none"))


def _global_random_state() -> list[Any]:
    return [random.getstate(), np.random.get_state(), torch.get_rng_state()]  # noqa: NPY002


def _same(a: Any, b: Any) -> bool:
    """Equal, through dictionaries, sequences, arrays and tensors."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def _require(condition: bool, message: str) -> None:  # unlike `assert`, also under python -O
    if not condition:
        raise AssertionError(message)
