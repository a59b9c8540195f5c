"""The contract of a rehearsal policy, as one check to run on your own class: `check_policy(MyPolicy())`."""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass

import numpy as np
from torch import from_numpy, nn, no_grad, searchsorted

from graspcl.buffer import Buffer
from graspcl.checks import Array
from graspcl.policy import Budget, Policy, Session, batches
from graspcl.policy.policy import QUANTITIES
from graspcl.random import restore_rng, rng_state
from graspcl.testing.common import Outputs, ToyNetwork, contract, global_chance_untouched, same

_DIM = 6
# Sessions on each side when slot orders are compared, and the difference in standard errors that fails. This finds a
# change of a sample's mean number of draws by 0.7 of its standard deviation. Chance exceeds it once in 10^5 checks; as
# all seeds are fixed, a given policy always passes or always fails.
_SESSIONS = 100
_STANDARD_ERRORS = 5.0


@dataclass(frozen=True)
class Case:
    """A small buffer and a budget. The first half of the samples is old, the rest is new."""

    what: str
    labels: tuple[int, ...]
    budget: Budget
    identical: bool = False

    def buffer(self, shuffle: np.random.Generator | None = None) -> Buffer:
        """Return a buffer of the samples, in order, or shuffled among old and among new ones. `ids` identify them."""
        rng = np.random.default_rng(1)
        labels = np.array(self.labels)
        centres = rng.normal(size=(labels.max() + 1, _DIM))[labels]
        inputs = np.ones_like(centres) if self.identical else centres + 0.5 * rng.normal(size=centres.shape)
        order = np.arange(len(labels))
        if shuffle is not None:
            order = np.concatenate([shuffle.permutation(part) for part in np.split(order, [self.old])])
        buffer = Buffer()
        buffer.insert(inputs[order].astype(np.float32), labels[order], ids=order)
        buffer.since = self.old
        return buffer

    @property
    def old(self) -> int:
        """Number of old samples."""
        return len(self.labels) // 2

    def session(self, policy: Policy, seed: int = 0, buffer: Buffer | None = None) -> Session:
        """Return a session as a learner makes it. A policy that needs nothing of a network gets none."""
        classes = from_numpy(np.unique(self.labels))
        network = ToyNetwork(_DIM, len(classes)) if policy.needs - _WITHOUT_NETWORK else None
        rng = np.random.default_rng(seed)
        return Session(buffer or self.buffer(), self.budget, rng, network, lambda k: searchsorted(classes, k))


_WITHOUT_NETWORK = {"labels", "ids", "births", "new", "feedback"}
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
    """Raise an AssertionError that names the problem unless `policy` keeps the contract of a rehearsal policy.

    Args:
        policy: the policy to check. Only clones of it are used.
        random: False for a policy that selects the same samples for every seed.

    >>> from graspcl.policy import Grasp
    >>> check_policy(Grasp(eps=1e-6))
    """
    with contract(repr(policy)):
        with contract(TYPICAL.what):
            _check_description(policy)
        for case in CASES:
            with contract(case.what):
                _check_draws(policy, case)
        with contract(TYPICAL.what):
            _check_side_effects(policy)
            _check_seeds(policy, random)
            _check_resume(policy)
            _check_slot_order(policy)
        with contract("a second session, over a grown buffer"):
            _check_second_session(policy)


def _check_description(policy: Policy) -> None:
    unknown = set(policy.needs) - QUANTITIES.keys()
    assert not unknown, f"`needs` names {unknown}, which no session offers; it offers {set(QUANTITIES)}"
    listens = type(policy).observe is not Policy.observe
    declared = {"feedback", "memory"} & set(policy.needs)
    assert declared or not listens, 'the policy defines observe(): add "feedback" or "memory" to `needs`'
    parameters = policy.parameters()
    for name, value in parameters.items():
        assert f"{name}={value!r}" in repr(policy), f"repr does not show {name}={value!r}: {policy!r}"
    used = policy.clone()
    _run(used, TYPICAL.session(policy))
    clone = used.clone()
    assert type(clone) is type(policy), f"clone() gives a {type(clone).__name__}"
    assert clone.parameters() == parameters, f"a clone has parameters {clone.parameters()}, not {parameters}"
    kept, fresh = clone.state_dict().keys(), policy.clone().state_dict().keys()
    assert kept == fresh, f"a clone of a used policy has history: {set(kept ^ fresh)}"
    for name, value in vars(used).items():
        live = f"the policy keeps the {type(value).__name__} as self.{name}"
        outdated = isinstance(value, (Session, Buffer, nn.Module))
        assert not outdated, f"{live}: it becomes outdated and enters checkpoints"


def _check_draws(policy: Policy, case: Case) -> None:
    """The budget is met with valid slots (`batches` checks them), and draws are balanced if the policy says so."""
    buffer, wanted = case.buffer(), case.budget.samples
    drawn = _run(policy.clone(), case.session(policy, buffer=buffer))
    assert len(drawn) == wanted, f"{len(drawn)} draws for a budget of {wanted}"
    if policy.balanced:
        counts = np.bincount(buffer.labels[drawn], minlength=max(case.labels) + 1)[np.unique(case.labels)]
        assert np.ptp(counts) <= 1, f"`balanced`, but the classes got {counts.tolist()} draws"


def _check_side_effects(policy: Policy) -> None:
    buffer = TYPICAL.buffer()
    session = TYPICAL.session(policy, buffer=buffer)
    held = copy.deepcopy(buffer.state_dict())
    network = session._network if isinstance(session._network, nn.Module) else nn.Module()
    for number, module in enumerate(network.modules()):
        module.training = number % 2 == 0
    weights = copy.deepcopy(network.state_dict())
    modes = [module.training for module in network.modules()]
    with global_chance_untouched("the policy must draw from `session.rng` only, but"):
        _run(policy.clone(), session)
    assert same(held, buffer.state_dict()), "the policy changed the buffer"
    assert same(weights, network.state_dict()), "the policy changed the network's weights or running statistics"
    assert modes == [m.training for m in network.modules()], "the policy changed the network's train/eval mode"
    assert all(p.grad is None for p in network.parameters()), "the policy left gradients in the network's .grad"


def _check_seeds(policy: Policy, random: bool) -> None:
    first, again, *others = (_run(policy.clone(), TYPICAL.session(policy, seed)) for seed in (3, 3, 4, 5, 6, 7))
    assert same(first, again), "two sessions with the same seed drew differently: `session.rng` must decide alone"
    differ = not random or any(not same(first, other) for other in others)
    assert differ, "five seeds gave the same draws; if that is meant, check_policy(policy, random=False)"


def _check_resume(policy: Policy) -> None:
    whole = _run(policy.clone(), TYPICAL.session(policy))
    for begun in (1, TYPICAL.budget.updates - 2):
        stopped, restored = policy.clone(), policy.clone()
        session, rest = TYPICAL.session(policy), TYPICAL.session(policy)
        head = _run(stopped, session, updates=begun)
        restored.load_state_dict(stopped.state_dict())
        restore_rng(rest.rng, rng_state(session.rng))
        tail = _run(restored, rest, begun=begun)
        stop = f"stopped after mini-batch {begun} and restored by state_dict"
        assert same(whole, np.concatenate([head, tail])), f"{stop}, the session continued differently"


def _check_second_session(policy: Policy) -> None:
    used, buffer, more = policy.clone(), TYPICAL.buffer(), TYPICAL.buffer()
    _run(used, TYPICAL.session(policy, buffer=buffer))
    buffer.insert(more.fetch(np.arange(len(more)))[0] + 0.1, more.labels)
    _run(used, TYPICAL.session(policy, buffer=buffer))


def _check_slot_order(policy: Policy) -> None:
    """A sample is drawn equally often in any slot: compare the mean number of draws per session."""
    shuffle = np.random.default_rng(2)
    means, errors = [], []
    for shuffled in (False, True):
        counts = []
        for seed in range(_SESSIONS):
            buffer = TYPICAL.buffer(shuffle if shuffled else None)
            drawn = _run(policy.clone(), TYPICAL.session(policy, 100 + 2 * seed + shuffled, buffer))
            counts.append(np.bincount(buffer.ids[drawn], minlength=len(buffer)))
        means.append(np.mean(counts, axis=0))
        errors.append(np.var(counts, axis=0) / _SESSIONS)
    # A sample that is never, or always, drawn has no variance: one draw is then the resolution.
    error = np.sqrt(np.maximum(errors[0] + errors[1], _SESSIONS**-2.0))
    worst = np.argmax(np.abs(means[0] - means[1]) / error)
    before, after = means[0][worst], means[1][worst]
    assert abs(before - after) < _STANDARD_ERRORS * error[worst], (
        f"the slot of a sample decides how often it is drawn: {before:.2f} times a session on average, "
        f"{after:.2f} after the slots were shuffled"
    )


# -- tools -----------------------------------------------------------------------------------------------------------


def _run(policy: Policy, session: Session, updates: int | None = None, begun: int | None = None) -> Array:
    """Return the slots of a session, or of its first `updates`, with feedback after each."""
    outputs, drawn = _feedback(session._buffer), [np.empty(0, np.int64)]
    try:
        for slots in itertools.islice(batches(policy, session, begun), updates):
            policy.observe(slots, Outputs(*(part[slots] for part in outputs)))
            drawn.append(slots)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}") from error
    return np.concatenate(drawn)


def _feedback(buffer: Buffer) -> Outputs:
    """Outputs of training for each slot, by a network that does not learn."""
    inputs, labels = buffer.fetch(np.arange(len(buffer)))
    rows = searchsorted(from_numpy(buffer.classes), labels)
    with no_grad():
        embedding, logits, _ = ToyNetwork(_DIM, len(buffer.classes)).eval()(inputs)
    return Outputs(embedding, logits, nn.functional.cross_entropy(logits, rows, reduction="none"))
