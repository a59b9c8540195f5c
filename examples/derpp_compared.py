"""Compare DER++ with plain rehearsal, and with both of Avalanche: same features, weights, buffer size and updates.

    python examples/derpp_compared.py listings
    python examples/derpp_compared.py TINY_IMAGENET_FOLDER 'derpp half' 'avalanche DER++'

A class-incremental stream of five sessions, on frozen features of 100 training and 50 test samples per class. Further
arguments are the methods, by default all of graspcl's; those of Avalanche need `avalanche-lib`. The learning rate of
each is chosen on a fifth of the training data, with two seeds of their own. Printed are final accuracies (%) of five
seeds on test data: their mean, and half of its 95 % interval.
"""

import sys
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import t
from torch import nn

from graspcl.buffer import Buffer
from graspcl.data import ImageFolder, Listings
from graspcl.learner import Diverged, Optimiser, learners
from graspcl.model import SplitNetwork, make_network
from graspcl.model.head import LinearHead
from graspcl.model.texts import TextInputs
from graspcl.policy import Budget, PlannedPolicy, policies

SESSIONS, BATCH, PASSES, STORED, HIDDEN = 5, 40, 3, 10, 256  # BATCH new samples and as many old ones; STORED per class
ALPHA, BETA = 0.1, 0.5  # Avalanche's defaults
RATES = (0.03, 0.1, 0.3, 1.0)
METHODS = {  # learner, parameters, policy, whether the head has all rows from the start, as in Avalanche
    "rehearsal half": ("gdumb", {"reset": False}, "half", False),
    "derpp(terms) half": ("derpp", {"average": "terms"}, "half", False),
    "derpp(terms) half, whole head": ("derpp", {"average": "terms"}, "half", True),
    "rehearsal uniform": ("gdumb", {"reset": False}, "uniform", False),
    "derpp(terms) uniform": ("derpp", {"average": "terms"}, "uniform", False),
    "derpp uniform": ("derpp", {"average": "batch"}, "uniform", False),
    "rehearsal uniform_balanced": ("gdumb", {"reset": False}, "uniform_balanced", False),
    "derpp(terms) uniform_balanced": ("derpp", {"average": "terms"}, "uniform_balanced", False),
    "derpp uniform_balanced": ("derpp", {"average": "batch"}, "uniform_balanced", False),
    "rehearsal half, whole head": ("gdumb", {"reset": False}, "half", True),
}


@policies.register("half")
@dataclass
class Half(PlannedPolicy):
    """Half of each mini-batch new, half old, each in shuffled passes, as in other libraries."""

    needs = {"new"}

    def plan(self, session):
        updates, n = session.budget.updates, session.budget.batch_size
        new, old = np.flatnonzero(session.new), np.flatnonzero(~session.new)
        parts = [(new, n - n // 2), (old, n // 2)] if len(old) else [(new, n)]
        return np.hstack([passes(slots, updates * k, session.rng).reshape(updates, k) for slots, k in parts]).ravel()


def passes(slots, number, rng):
    return np.concatenate([rng.permutation(slots) for _ in range(-(-number // len(slots)))])[:number]


def features(data):
    """Return x [n, 256], y [n] of the training samples and of the test samples; vectors have length 16."""
    if data == "listings":
        samples, encode = Listings(max_train=100), TextInputs.of("vector", {"dim": 256}).encode
    else:
        samples = ImageFolder(data, pixels=64)
        generator = torch.Generator().manual_seed(0)
        network = make_network("efficientnet_lite0", split=15, generator=generator).eval()
        projection = torch.randn(1280, 256, generator=generator)  # updates cost less

        @torch.no_grad()
        def encode(images):
            return network(network.encode(images)).embedding @ projection

    found = []
    for rows, most in ((samples.train, 100), (samples.test, 50)):
        rows = np.concatenate([rows[samples.labels[rows] == label][:most] for label in range(100)])
        x = torch.cat([encode(samples.read(part)) for part in np.array_split(rows, -(-len(rows) // 200))])
        found += [16 * nn.functional.normalize(x), torch.from_numpy(samples.labels[rows])]
    return found


def streamed(data, seed, validation):
    """Return training samples by session and test samples; labels are in the order of arrival."""
    x, y, test_x, test_y = data
    rng = np.random.default_rng(seed)
    place = torch.from_numpy(rng.permutation(int(y.max()) + 1))
    y, test_y = place[y], place[test_y]
    if validation:
        held_out = torch.zeros(len(y), dtype=torch.bool)
        for label in range(len(place)):
            own = np.flatnonzero(y == label)
            held_out[rng.permutation(own)[: len(own) // 5]] = True
        x, y, test_x, test_y = x[~held_out], y[~held_out], x[held_out], y[held_out]
    parts = np.array_split(np.arange(len(place)), SESSIONS)
    return [(x[own], y[own]) for own in (torch.isin(y, torch.from_numpy(part)) for part in parts)], test_x, test_y


def network_of(dim, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    plastic = nn.Linear(dim, HIDDEN)
    for parameter in plastic.parameters():
        nn.init.uniform_(parameter, -(dim**-0.5), dim**-0.5, generator=generator)
    return SplitNetwork(nn.Identity(), plastic, LinearHead(HIDDEN, classes, generator=generator), nn.ReLU())


def run(method, sessions, test_x, test_y, lr, seed):
    dim, classes = test_x.shape[1], int(test_y.max()) + 1
    if method.startswith("avalanche"):
        network = network_of(dim, classes, seed)
        model = nn.Sequential(network.plastic, nn.ReLU(), nn.Linear(HIDDEN, classes))
        model[2].load_state_dict(network.head.state_dict(), strict=False)
        predicted = by_avalanche(method.split()[1], model, sessions, test_x, lr, STORED * classes, seed)
        return 100 * (predicted == test_y).float().mean().item()
    name, parameters, policy, whole = METHODS[method]
    if name == "derpp":
        parameters = {"alpha": ALPHA, "beta": BETA, **parameters}
    kind = learners.get(name)
    buffer = Buffer(STORED * classes, columns=kind.columns(classes))
    optimiser = Optimiser(lr=lr, momentum=0.0, weight_decay=0.0, layer_decay=1.0, schedule="constant")
    learner = kind(network_of(dim, classes * whole, seed), buffer, policy, optimiser, seed, **parameters)
    for number, (x, y) in enumerate(sessions):
        learner.observe(x, y)
        learner.rehearse(Budget(PASSES * -(-len(x) // BATCH), BATCH if number == 0 else 2 * BATCH))
    return 100 * float((learner.predict(test_x) == test_y.numpy()).mean())


def by_avalanche(name, model, sessions, test_x, lr, stored, seed):
    for operator in ("nms", "qnms"):  # without them torchvision does not import beside a CPU build of torch
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    from avalanche.benchmarks.scenarios.dataset_scenario import benchmark_from_datasets
    from avalanche.benchmarks.utils.classification_dataset import _make_taskaware_tensor_classification_dataset as table
    from avalanche.training.plugins import EvaluationPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ClassBalancedBuffer
    from avalanche.training.supervised import DER, Naive

    torch.manual_seed(seed)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr), "train_epochs": PASSES,
             "train_mb_size": BATCH, "evaluator": EvaluationPlugin()}  # fmt: skip
    if name == "rehearsal":
        rule = ClassBalancedBuffer(stored, adaptive_size=True)
        strategy = Naive(plugins=[ReplayPlugin(stored, BATCH, BATCH, storage_policy=rule)], **given)
    else:
        beta = BETA if name == "DER++" else 0.0
        strategy = DER(mem_size=stored, batch_size_mem=BATCH, alpha=ALPHA, beta=beta, **given)
    datasets = [table(x, y, targets=y.tolist(), task_labels=0) for x, y in sessions]
    for experience in benchmark_from_datasets(train=datasets).train_stream:
        strategy.train(experience)
    updates = sum(PASSES * -(-len(x) // BATCH) for x, _ in sessions)
    assert strategy.clock.train_iterations == updates, (strategy.clock.train_iterations, updates)
    with torch.no_grad():
        return model.eval()(test_x).argmax(1)


def attempt(method, data, seed, validation, lr):
    try:
        return run(method, *streamed(data, seed, validation), lr, seed)
    except Diverged:
        return 0.0


def main(name, *methods):
    torch.set_num_threads(1)
    data = features(name)
    for method in methods or METHODS:
        scores = [np.mean([attempt(method, data, seed, True, lr) for seed in (100, 101)]) for lr in RATES]
        lr = RATES[int(np.argmax(scores))]
        found = [attempt(method, data, seed, False, lr) for seed in range(5)]
        half = t.ppf(0.975, 4) * np.std(found, ddof=1) / 5**0.5
        print(f"{method}: {np.mean(found):.1f} ± {half:.1f}, rate {lr}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
