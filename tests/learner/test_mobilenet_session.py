"""One full latent SIESTA session of the paper's network at its size, on real images."""

from pathlib import Path

import numpy as np
import pytest
import torch

from graspcl.buffer import Buffer
from graspcl.codec import OPQ
from graspcl.learner import Optimiser, Siesta
from graspcl.model import mobilenet_v3_large
from graspcl.policy import Budget

TINY = Path(__file__).parents[3] / "shared/data/tiny-imagenet-200"


@pytest.mark.slow
@pytest.mark.skipif(not TINY.is_dir(), reason="needs ../shared/data/tiny-imagenet-200")
def test_a_full_session_at_224_pixels_on_2000_images():
    """10 classes x 200 images through the frozen part, OPQ and a pass of rehearsal. Weights are random and 31 updates
    few, so what can be asked is little: the loss is below that of guessing, and what was seen is named above chance."""
    pytest.importorskip("faiss", reason="needs graspcl[opq]")
    pytest.importorskip("PIL.Image", reason="needs pillow")
    from graspcl.data import ImageFolder

    images = ImageFolder(TINY, pixels=224)
    indices = images.train[images.labels[images.train] < 10]
    assert len(indices) == 2000
    labels = images.labels[indices]
    network = mobilenet_v3_large(scale=16.0, generator=torch.Generator().manual_seed(0))
    chunks = np.array_split(np.random.default_rng(0).permutation(len(indices)), 40)
    first = network.encode(images.read(indices[chunks[0]]))
    assert first.shape == (50, 80, 14, 14)
    buffer = Buffer("1.5GB", OPQ(iterations=3).fit(first))
    learner = Siesta(network, buffer, "grasp", Optimiser(lr=0.2))
    for chunk in chunks:
        learner.observe(images.read(indices[chunk]), labels[chunk])
    assert buffer["codes"].shape == (2000, 14, 14, 8)  # 1,568 bytes a sample, as the paper says
    log = learner.rehearse(Budget.passes(1.0, len(buffer), 64))
    assert log.costs.updates == 31 and log.coverage > 0.9
    assert log.losses[-8:].mean() < np.log(10) - 0.01
    seen = chunks[0]
    assert (learner.predict(images.read(indices[seen])) == labels[seen]).mean() > 0.2
