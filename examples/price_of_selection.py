"""Compare a session's price under three policies, and remembered distances with fresh ones.

    python examples/price_of_selection.py listings

The argument is a preset; further ones are settings, such as `data=FOLDER seed=1 scale=small`. All policies learn the
same stream in turn, in one process on one thread. Printed are CPU seconds (of storing new samples and of the session)
relative to uniform_balanced, and the rank correlation, within classes, of remembered distances with fresh ones.
"""

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from graspcl.experiment import measure
from graspcl.experiment.prepare import learn_base, prepare
from graspcl.policy import Grasp, policies
from graspcl.progress import Silent
from graspcl.settings import change, preset

FRESH, REMEMBERED, WATCHED = "grasp(distances=fresh)", "grasp(distances=remembered)", "watched(distances=remembered)"


@policies.register("watched")
@dataclass
class Watched(Grasp):
    """GRASP that compares its distances with fresh ones; its time does not count."""

    def measured(self, session):
        found, fresh = super().measured(session), session.distances
        self.ranks = [spearmanr(found[own], fresh[own])[0] for own in session.groups.each if len(own) > 2]
        return found


def main(name, **options):
    torch.set_num_threads(1)
    scale, data, seed = options.pop("scale", "full"), options.pop("data", None), int(options.pop("seed", 0))
    config = change(preset(name, scale=scale, own_data=data, seed=seed), options)
    prepared = prepare(config, Silent())
    learners, seconds = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for policy in ("uniform_balanced", FRESH, REMEMBERED, WATCHED):
            own = change(config, {"policy": policy})
            learners[policy], seconds[policy] = prepared.new_learner(own), [0.0]
            learn_base(own, prepared, learners[policy], Path(folder), Silent())
    train = prepared.samples.train[prepared.readable[prepared.samples.train]]
    fits = measure.samples_within(config, learners[FRESH], prepared.codes.at(train[:1000]))
    for chunk in prepared.stream:
        codes, labels = prepared.codes[chunk.indices], prepared.samples.labels[chunk.indices]
        for policy, learner in learners.items():
            start = time.process_time()
            learner.observe_codes(codes, labels, chunk.indices)
            if chunk.ends_session:
                budget = measure.session_budget(config.budget, learner.buffer.seen, fits, chunk.session)
                learner.rehearse(learner.session_budget(budget))
            seconds[policy][-1] += time.process_time() - start
            if chunk.ends_session:
                seconds[policy].append(0.0)
        if chunk.ends_session:
            last = {policy: spent[-2] for policy, spent in seconds.items()}
            show(f"session {chunk.session}", last, f"rank correlation {np.nanmean(learners[WATCHED].policy.ranks):.3f}")
    show("all sessions", {policy: sum(spent) for policy, spent in seconds.items()})


def show(what, seconds, more=""):
    uniform = seconds["uniform_balanced"]
    ratios = ", ".join(f"{policy} {seconds[policy] / uniform:.3f}" for policy in (FRESH, REMEMBERED))
    print(f"{what}: {uniform:.2f} s, {ratios} times that; {more}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], **dict(word.split("=", 1) for word in sys.argv[2:]))
