"""Equal budgets: how long a session is, whatever the learner and the policy."""

from __future__ import annotations

import numpy as np

from graspcl.buffer import Codes
from graspcl.buffer.capacity import capacity_in_samples
from graspcl.experiment.config import BudgetConfig, Config
from graspcl.learner import Learner
from graspcl.policy import Budget


def session_budget(settings: BudgetConfig, seen: int, fits: int | None) -> Budget:
    """What a session may spend after `seen` samples, where a buffer has room for `fits` of them (None: for all).

    >>> session_budget(BudgetConfig(passes=2.0, batch_size=10), seen=1000, fits=400)
    Budget(updates=80, batch_size=10)
    """
    if settings.updates is not None:
        updates = max(1, round(settings.times * settings.updates)) if settings.updates else 0
        return Budget(updates, settings.batch_size)
    return Budget.passes(
        settings.times * settings.passes, seen if fits is None else min(fits, seen), settings.batch_size
    )


def samples_within(config: Config, learner: Learner, codes: Codes) -> int | None:
    """How many of the samples `codes` the configured capacity has room for, None for all.

    What a learner stores beside them (the logits of DER++) is left out: sessions of all learners are equally long.
    """
    own = learner.columns(1, **config.learner.parameters)
    shapes = [column for name, column in learner.buffer.columns.items() if name not in own]
    columns = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in shapes)
    codec = learner.buffer.codec
    if codec is not None and isinstance(codes, np.ndarray):  # image files, each with a pointer and its length
        size = int(np.ceil(codec.lengths(codes[:1000]).mean())) + 16
    else:
        size = codes[0].nbytes
    return capacity_in_samples(config.buffer.capacity, size + columns, codec.nbytes if codec else 0)
