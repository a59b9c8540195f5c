"""Learners without rehearsal: exact from running sums, and a probe that converges."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.nn.functional import cross_entropy

from graspcl.buffer import Buffer
from graspcl.codec import Encoded, Half
from graspcl.errors import GraspError
from graspcl.learner import Learner, RanPac, learners
from graspcl.learner.logistic import logistic_rows
from graspcl.learner.moments import Moments, discriminant_rows, likeliest_shrinkage, ridge_rows
from graspcl.model import make_network, vector_network, veridical
from graspcl.policy import Budget, Costs
from graspcl.testing import check_learner

RNG = np.random.default_rng(0)
LABELS = RNG.integers(5, size=200)
INPUTS = torch.from_numpy(RNG.normal(size=(5, 8))[LABELS] + 0.7 * RNG.normal(size=(200, 8))).float()
KINDS = [("ncm", {}), ("slda", {}), ("slda", {"shrinkage": 0.1}), ("ranpac", {"dimensions": 30}),
         ("ranpac", {"dimensions": 30, "ridge": 0.1, "weighting": "class"}), ("probe", {"strength": 1.0}),
         ("probe", {})]  # fmt: skip


def make(name: str, capacity: int | str | None = None, seed: int = 0, codec=None, **parameters) -> Learner:
    network = vector_network(8, hidden=8, embedding=5, generator=torch.Generator().manual_seed(seed))
    return learners.create(name, network=network, buffer=Buffer(capacity, codec), rng=seed, **parameters)


def accuracy(learner: Learner) -> float:
    return float((learner.predict(INPUTS) == LABELS).mean())


@pytest.mark.parametrize(("name", "parameters"), KINDS)
def test_contract(name, parameters):
    capacity = 30 if name == "probe" else None
    check_learner(lambda: make(name, capacity, codec=Half(), **parameters), INPUTS[:60])


@pytest.mark.parametrize(("name", "parameters"), KINDS)
def test_they_learn_without_updates_and_without_the_network(name, parameters):
    learner = make(name, **parameters)
    before = {key: value.clone() for key, value in learner.network.state_dict().items() if "head" not in key}
    learner.observe(INPUTS, LABELS)
    log = learner.rehearse(Budget(5, 8))
    assert log.costs.updates == 0 and not len(log.losses) and accuracy(learner) > 0.9
    assert all(torch.equal(value, learner.network.state_dict()[key]) for key, value in before.items())


@pytest.mark.parametrize(("name", "parameters"), KINDS[:5])
def test_statistics_are_counted_and_no_sample_is_stored(name, parameters):
    learner = make(name, **parameters)
    learner.observe(INPUTS, LABELS)
    width, parts = (
        parameters.get("dimensions", 8),
        2 if name != "ncm" and len(parameters) < 1 + (name == "ranpac") else 1,
    )
    second = 0 if name == "ncm" else width**2
    log = learner.rehearse(Budget(5, 8))
    assert log.buffer_bytes == learner.stored_bytes == 8 * parts * (5 + 5 * width + second)
    assert log.stored == len(learner.buffer) == 0 and learner.buffer.seen == 200


@pytest.mark.parametrize(
    ("name", "parameters"), [(n, p) for n, p in KINDS[:5] if n == "ncm" or "ridge" in p or "shrinkage" in p]
)
def test_order_and_chunks_do_not_matter(name, parameters):
    one, other = make(name, **parameters), make(name, **parameters)
    one.observe(INPUTS, LABELS)
    order = np.random.default_rng(1).permutation(200)
    for part in np.array_split(order, 9):
        other.observe(INPUTS[part], LABELS[part])
        other.predict(INPUTS[:2])  # solving in between changes nothing
    where = [other.classes.index(label) for label in one.classes]
    assert_allclose(one.logits(INPUTS), other.logits(INPUTS)[:, where], atol=1e-4)


def test_the_heads_are_those_of_all_features():
    """Latents that are vectors are the features. A parameter is chosen with a part, the head is solved with all."""
    targets = torch.from_numpy(LABELS)
    moments = Moments(8).add(INPUTS, targets)
    for name, rows in (("slda", discriminant_rows(moments, 0.1)), ("ncm", (moments.means, None))):
        learner = make(name, **({"shrinkage": 0.1} if name == "slda" else {}))
        learner.observe(INPUTS, LABELS)
        found, classes = learner.logits(INPUTS).double(), learner.classes
        if name == "slda":
            expected = (INPUTS.double() @ rows[0].T + rows[1])[:, classes]
        else:
            expected = -torch.cdist(INPUTS.double(), rows[0][classes]).square() / 2
        assert_allclose(found - found[:, :1], expected - expected[:, :1], atol=1e-4)
    learner = make("ranpac", dimensions=40)
    learner.observe(INPUTS, LABELS)
    lifted = learner.lift(INPUTS)
    assert lifted.shape == (200, 40) and (lifted >= 0).all() and (lifted == 0).any()
    rows = torch.tensor([learner.classes.index(label) for label in LABELS])
    candidates = [ridge_rows(Moments(40).add(lifted, rows), ridge) for ridge in (1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)]
    found = learner.logits(INPUTS).double()
    logits = [lifted.double() @ weight.T + bias for weight, bias in candidates]
    assert any(torch.allclose(found - found[:, :1], own - own[:, :1], atol=1e-4) for own in logits)


def test_features_of_images_are_the_heads_inputs():
    network = make_network("small", pixels=16, generator=torch.Generator().manual_seed(0))
    images = torch.randint(256, (6, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    learner = learners.create("ncm", network=network, buffer=Buffer())
    learner.observe(images, [0, 0, 0, 1, 1, 1])
    with torch.no_grad():
        features = network.eval()(network.encode(images)).features
    means = torch.stack([features[:3].mean(0), features[3:].mean(0)])
    assert learner.predict(images).tolist() == torch.cdist(features, means).argmin(1).tolist()


def test_held_out_likelihood_chooses_the_shrinkage():
    """Few samples in many dimensions need a large one, many samples a small one."""

    def chosen(number: int) -> float:
        x = torch.from_numpy(np.random.default_rng(3).normal(size=(number, 30)) * np.linspace(0.2, 3, 30))
        y = torch.arange(number) % 2
        parts = [Moments(30).add(x[at::2], y[at::2] * 0) for at in (0, 1)]
        return likeliest_shrinkage(*parts, (1e-4, 1e-2, 0.1, 0.5))

    assert chosen(4000) == 1e-4 and chosen(40) >= 0.1


def test_weights_of_classes_are_those_of_a_balanced_set():
    """With the same covariance in all classes, the balanced moments are those of as many samples of each."""
    deviations = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]])
    means = torch.tensor([[0.0, 1.0], [4.0, 0.0]])
    few, many = deviations + means[0], (deviations + means[1]).repeat(3, 1)
    tail = Moments(2).add(torch.cat([few, many]), torch.tensor([0] * 4 + [1] * 12))
    even = Moments(2).add(
        torch.cat([few.repeat(2, 1), deviations.repeat(2, 1) + means[1]]), torch.tensor([0] * 8 + [1] * 8)
    )
    for name in ("counts", "sums", "second"):
        assert_allclose(getattr(tail.balanced(), name), getattr(even, name))
    one, other = (make("ranpac", dimensions=10, ridge=0.1, weighting=kind) for kind in ("sample", "class"))
    for learner in (one, other):
        learner.observe(INPUTS[LABELS > 0], LABELS[LABELS > 0])
        learner.observe(INPUTS[LABELS == 0][:3], LABELS[LABELS == 0][:3])
    assert (other.predict(INPUTS) == 0).sum() > (one.predict(INPUTS) == 0).sum()


def test_layers_put_averaged_maps_beside_the_features():
    network = make_network("small", generator=torch.Generator().manual_seed(0))
    images = torch.randint(0, 255, (6, 3, 32, 32), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    learner = RanPac(network, Buffer(), dimensions=9, layers=2)
    latents = learner.latents(images)
    maps = []
    last = [part for part in network.plastic if any(True for _ in part.parameters())][-2]
    hook = last.register_forward_hook(lambda module, inputs, output: maps.append(output))
    with torch.no_grad():
        expected = network.eval()(latents).features
        read = learner.read(latents)
    hook.remove()
    assert read.shape[1] == expected.shape[1] + maps[0].shape[1]
    torch.testing.assert_close(read, torch.cat([maps[0].mean((2, 3)), expected], 1))
    learner.observe(images, [0, 0, 0, 1, 1, 1])
    assert learner.logits(images).shape == (6, 2)


@pytest.mark.parametrize("name", ["ncm", "slda", "ranpac", "probe"])
def test_logits_of_features_are_those_of_predictions(name):
    learner = make(name)
    learner.observe(INPUTS, LABELS)
    assert torch.equal(learner.logits_of(INPUTS), learner.logits(INPUTS))  # vectors are their own features


def test_layers_that_are_not_there_are_refused():
    with pytest.raises(GraspError, match=r"ranpac\(layers=9\): this network has a chain of 2 layers after the cut"):
        make("ranpac", layers=9)


@pytest.mark.parametrize("name", ["ncm", "slda", "ranpac", "probe"])
def test_a_class_of_pretraining_without_samples_is_not_predicted(name):
    network = vector_network(8, hidden=8, embedding=5, classes=3, generator=torch.Generator().manual_seed(0))
    learner = learners.create(name, network=network, buffer=Buffer())
    learner.set_head_labels([7, 8, 9])
    learner.observe(INPUTS, LABELS)
    assert set(learner.predict(INPUTS).tolist()) <= set(range(5)) and learner.logits(INPUTS).isfinite().all()


def test_solving_is_booked_in_the_session(monkeypatch):
    learner = make("ncm")
    times = iter(range(1000))
    monkeypatch.setattr("graspcl.learner.closed_form.time.perf_counter", lambda: float(next(times)))
    learner.observe(INPUTS, LABELS)
    learner.predict(INPUTS)
    learner.predict(INPUTS)  # nothing new: not solved again
    costs = Costs()
    learner.end_session(costs)
    assert costs.training_seconds == 1.0
    learner.end_session(again := Costs())
    assert again.training_seconds == 0.0


@pytest.mark.parametrize("chosen", [{}, {"ridge": 0.1}])
def test_a_state_of_another_form_is_refused(chosen):
    learner, other = make("ranpac", dimensions=9), make("ranpac", dimensions=9, ridge=1.0)
    learner, other = (other, learner) if chosen else (learner, other)
    learner.observe(INPUTS, LABELS)
    with pytest.raises(GraspError, match="a learner that chose its parameter"):
        other.load_state_dict(learner.state_dict())


# -- the probe ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [0.01, 1.0, 100.0])
def test_logistic_regression_converges_to_the_optimum(strength):
    """Newton's method in double precision finds it."""
    targets = torch.from_numpy(LABELS % 3)
    weight, bias = logistic_rows(INPUTS, targets, 3, strength)
    h = INPUTS.double() - INPUTS.double().mean(0)
    scale = h.square().mean().sqrt()
    h = torch.cat([h / scale, torch.ones(200, 1)], 1)

    def loss(flat: torch.Tensor) -> torch.Tensor:
        rows = flat.view(3, 9)
        return cross_entropy(h @ rows.T, targets, reduction="sum") + strength / 2 * rows[:, :8].square().sum()

    best = torch.zeros(27, dtype=torch.float64)
    for _ in range(30):
        gradient = torch.autograd.functional.jacobian(loss, best)
        hessian = torch.autograd.functional.hessian(loss, best) + 1e-9 * torch.eye(27)
        best = best - torch.linalg.solve(hessian, gradient)
    own = torch.cat([weight * scale, (bias + weight @ INPUTS.double().mean(0))[:, None]], 1).ravel()
    assert loss(own) - loss(best) < 1e-4 * loss(best)
    assert_allclose(h @ own.view(3, 9).T - (h @ own.view(3, 9).T).mean(1, keepdim=True),
                    h @ best.view(3, 9).T - (h @ best.view(3, 9).T).mean(1, keepdim=True), atol=0.1)  # fmt: skip


def test_more_features_than_latents_fit_into_the_same_bytes():
    network = make_network("small", pixels=16, generator=torch.Generator().manual_seed(0))
    images = torch.randint(256, (40, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    stored = {}
    for name in ("probe", "siesta"):
        learner = learners.create(name, network=network, buffer=Buffer("6KB", Half()), policy="uniform")
        learner.observe(images, np.arange(40) % 2)
        stored[name] = len(learner.buffer)
    width = network.head.features
    assert stored == {"probe": 6000 // (2 * width + 32), "siesta": 6000 // (2 * learner.encode(images)[0].numel() + 32)}
    assert stored["probe"] > 2 * stored["siesta"]


def test_the_probe_stores_features_of_image_files(tmp_path):
    from PIL import Image

    for number, colour in enumerate(["red", "lime"] * 4):
        Image.new("RGB", (16, 16), colour).save(tmp_path / f"{number}.png")
    network = veridical(make_network("small", pixels=16, generator=torch.Generator().manual_seed(0)))
    learner = learners.create("probe", network=network, buffer=Buffer(6, Encoded(pixels=16)))
    learner.observe(paths := sorted(tmp_path.iterdir()), [0, 1] * 4)
    assert learner.predict(paths).tolist() == [0, 1] * 4 and len(learner.buffer) == 6


def test_the_probe_refuses_rules_that_need_more_than_features():
    rule = Buffer(9, maintenance="herding", columns={"embedding": ((5,), np.float32)})
    with pytest.raises(GraspError, match=r"stores features, from which .* cannot choose"):
        learners.create("probe", network=vector_network(8, generator=torch.Generator().manual_seed(0)), buffer=rule)
