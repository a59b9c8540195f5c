"""Veridical rehearsal: it agrees with latent rehearsal where nothing is lost, and it learns from files."""

import io
import threading

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.codec import Encoded
from graspcl.errors import GraspError
from graspcl.learner import Optimiser, Rehearsal, learners
from graspcl.model import mobilenet_v3_large, small_network, veridical
from graspcl.policy import Budget, policies
from graspcl.policy.loader import Loader
from graspcl.testing import check_learner


def images(number=48, pixels=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (number, 3, pixels, pixels), generator=generator).to(torch.uint8)


def make(name, raw, policy="grasp", codec=None, unfreeze=False, paper=False):
    generator = torch.Generator().manual_seed(0)
    network = mobilenet_v3_large(generator=generator) if paper else small_network(32, generator=generator)
    network = veridical(network, unfreeze) if raw else network
    kind = learners.get(name)
    return kind(network, Buffer(codec=codec, columns=kind.columns(8)), policy, Optimiser(lr=0.01))


@pytest.mark.parametrize("name", ["siesta", "derpp", "gdumb", "finetune"])
def test_latent_and_veridical_rehearsal_agree(name):
    """Same plan, same mini-batches, and after two sessions the same parameters to 1e-5."""
    inputs, labels = images(), np.arange(48) % 6
    shown = []
    for raw in (False, True):
        learner = make(name, raw, paper=name == "siesta")
        batches = []
        for part in (labels < 4, labels >= 4):
            learner.observe(inputs[torch.from_numpy(part)], labels[part])
            session = Rehearsal(learner, Budget(3, 8))
            while not session.done:
                session.step()
                batches.append(session._picks[-1])
            session.finish()
        shown.append((learner, batches))
    (latent, plan), (whole, same_plan) = shown
    assert all(np.array_equal(a, b) for a, b in zip(plan, same_plan, strict=True))
    ours = [parameter for _, parameter in latent.network.plastic_parameters()]
    theirs = [parameter for _, parameter in whole.network.plastic_parameters()]
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert np.array_equal(latent.predict(inputs), whole.predict(inputs))


def test_the_frozen_part_stays_as_it_is_unless_it_is_unfrozen():
    inputs, labels = images(16), np.arange(16) % 2
    for unfreeze in (False, True):
        learner = make("siesta", raw=True, unfreeze=unfreeze)
        frozen = learner.network.plastic.frozen
        before = {name: value.clone() for name, value in frozen.state_dict().items()}
        learner.observe(inputs, labels)
        learner.rehearse(Budget(2, 8))
        changed = [name for name, value in frozen.state_dict().items() if not torch.equal(value, before[name])]
        assert bool(changed) == unfreeze
        assert (learner.network.share_plastic() == 1.0) == unfreeze


def files(number, tmp_path, pixels=32):
    from PIL import Image

    stored = []
    for i, picture in enumerate(images(number, pixels).permute(0, 2, 3, 1).numpy()):
        content = io.BytesIO()
        Image.fromarray(picture).save(content, "PNG")
        path = tmp_path / f"{i}.png"
        path.write_bytes(content.getvalue())
        stored.append(path if i % 2 else content.getvalue())
    return stored


def test_learning_from_files_equals_learning_from_their_pixels(tmp_path):
    pytest.importorskip("PIL.Image", reason="needs pillow")
    labels = np.arange(24) % 3
    weights = []
    for codec, inputs in ((None, images(24)), (Encoded(32), files(24, tmp_path))):
        learner = make("siesta", raw=True, codec=codec)
        learner.observe(inputs, labels)
        learner.rehearse(Budget(3, 8))
        assert set(learner.predict(inputs)) <= {0, 1, 2}
        weights.append(learner.network.head.weight.detach().clone())
    torch.testing.assert_close(*weights, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("policy", ["gss", "ocs", "grad_matching"])
def test_full_gradients_of_a_convolutional_network(policy, raw):
    learner = make("siesta", raw, policies.create(policy, gradients="full"))
    learner.observe(images(12), np.arange(12) % 3)
    assert np.isfinite(learner.rehearse(Budget(1, 4)).losses).all()


def test_an_image_that_cannot_be_read_is_refused_and_nothing_is_stored(tmp_path):
    pytest.importorskip("PIL.Image", reason="needs pillow")
    for name in ("siesta", "gdumb"):
        learner = make(name, raw=True, codec=Encoded(32))
        learner.observe(files(4, tmp_path), [0, 0, 1, 1])
        with pytest.raises(GraspError, match="not an image"):
            learner.observe([files(1, tmp_path)[0], b"broken"], [2, 2])
        assert len(learner.buffer) == 4 and learner.classes == [0, 1]
        learner.rehearse(Budget(1, 4))


def test_images_need_a_network_that_takes_them():
    with pytest.raises(GraspError, match=r"pass veridical\(network\)"):
        make("siesta", raw=False, codec=Encoded(32))


def test_contract_of_a_veridical_learner():
    """On vectors, for speed: the form is the same."""
    from torch import nn

    from graspcl.model import SplitNetwork, vector_network

    def made():
        generator = torch.Generator().manual_seed(0)
        body = vector_network(6, hidden=8, embedding=5, generator=generator)
        frozen = nn.Linear(6, 6)
        with torch.no_grad():
            frozen.weight.copy_(torch.eye(6))
            frozen.bias.zero_()
        network = veridical(SplitNetwork(frozen, body.plastic, body.head, body.neck))
        return learners.get("siesta")(network, Buffer(capacity=30), "grasp", Optimiser(lr=0.1))

    check_learner(made, torch.randn(40, 6, generator=torch.Generator().manual_seed(1)))


def test_the_next_images_are_decoded_in_the_background(tmp_path):
    pytest.importorskip("PIL.Image", reason="needs pillow")
    buffer, threads = Buffer(codec=Encoded(32)), []
    buffer.insert(files(4, tmp_path), [0, 0, 1, 1])
    fetch = buffer.fetch

    def watched(*arguments):
        threads.append(threading.current_thread().name)
        return fetch(*arguments)

    buffer.fetch = watched
    loader = Loader(buffer, "cpu")
    loader.fetch(np.array([0]), np.array([1, 2]))
    ahead, _ = loader.fetch(np.array([1, 2]), np.array([1, 2]))
    assert torch.equal(ahead, fetch([1, 2])[0]) and threads[1].startswith("graspcl-loader")
    other, _ = loader.fetch(np.array([3]))  # a policy may change its mind: what was prepared is not taken
    assert torch.equal(other, fetch([3])[0])
